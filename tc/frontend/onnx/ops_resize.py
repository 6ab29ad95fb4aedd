"""Resize and Upsample of ONNX, in all their spellings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.run_time_axes import bound, count_of, vector
from tc.frontend.onnx.size_elements import SizeRatio, make_elements
from tc.frontend.onnx.values import ModelValue, elements_value
from tc.ir.arith import simplify
from tc.ir.dtype import f32, f64, i64, int_range
from tc.ir.expr import Const, Expr, ceildiv, const, equal, floordiv, is_const, maximum, minimum
from tc.ir.graph import AttrValue
from tc.ir.types import product
from tc.ops.registry import require
from tc.ops.resample import REACH


@onnx_op("Upsample")
def import_upsample_by_attribute(n: NodeContext) -> NodeResult:
    return _upsample(n, n.attr("scales"))


@onnx_op("Upsample", since=9)
def import_upsample(n: NodeContext) -> NodeResult:
    return _upsample_by_input(n)


@onnx_op("Resize", since=10)
def import_resize_10(n: NodeContext) -> NodeResult:
    return _upsample_by_input(n)


def _upsample_by_input(n: NodeContext) -> ModelValue:
    scales = n.graph.array(n.value(1))
    return _upsample(n, n.value(1) if scales is None else scales.reshape(-1).tolist())


def _upsample(n: NodeContext, scales: Sequence[float] | ModelValue) -> ModelValue:
    """The first form of resizing: output index over scale; the nearest element is before that place where an axis grows, and after it
    where it shrinks. ONNX leaves this open; onnxruntime does it so."""
    x, mode = n.value(0), n.attr("mode", "nearest")
    attrs = {"mode": "linear" if mode == "bilinear" else mode, "coordinate_mode": "asymmetric", "nearest_mode": "simple"}
    count = count_of(n, 1, "scales") if isinstance(scales, ModelValue) else len(scales)
    if count != x.rank:
        raise ShapeError(f"{n.op_type}: {count} scales for {x.type}")
    if isinstance(scales, ModelValue):
        return n.call("resize", x, scales, sizes=_sizes_from_data(n, x, scales), scales=(None,) * x.rank, **attrs)
    if not all(scale > 0 for scale in scales):
        raise NodeError(f"{n.op_type}: scales must be positive, found {list(scales)}")
    sizes = tuple(_scaled(n, dim, scale) for dim, scale in zip(x.shape, scales, strict=True))
    return n.call("resize", x, sizes=sizes, scales=tuple(map(float, scales)), **attrs)


def _sizes_from_data(n: NodeContext, x: ModelValue, factors: ModelValue) -> tuple[Expr, ...]:
    enlarged = n.call("floor", n.call("mul", n.call("cast", vector(x.shape), dtype=f32), factors))
    return n.graph.dims(n.call("cast", enlarged, dtype=i64), f"{n.label}.size", n.span)


def _scaled(n: NodeContext, dim: Expr, scale: float) -> Expr:
    """floor(dim * scale)"""
    if isinstance(dim, Const):
        return const(int(np.floor(np.float32(int(dim)) * np.float32(scale))))
    numerator, denominator = float(scale).as_integer_ratio()
    if numerator >= 1 << 40 or denominator >= 1 << 40:
        raise UnsupportedError(f"{n.op_type}: the scale {scale} of the dim {dim}", code="TC1022")
    return simplify(floordiv(dim * numerator, denominator), n.facts)


@dataclass(frozen=True)
class _Targets:
    """Sizes and scales of all axes. A scale None is that of the sizes, unless data say what all scales are (`factors`)."""

    sizes: tuple[Expr, ...]
    scales: tuple[float | None, ...]
    factors: ModelValue | None = None


@onnx_op("Resize", since=11)
def import_resize(n: NodeContext) -> NodeResult:
    x = n.value(0)
    mode, coordinates = n.attr("mode", "nearest"), n.attr("coordinate_transformation_mode", "half_pixel")
    axes = n.different_axes(n.attr("axes") or range(x.rank), x.rank)
    factors = _scales_from_data(n, x, axes)
    found = _resize_targets(n, x, axes) if factors is None else _Targets(_sizes_from_data(n, x, factors), (None,) * x.rank, factors)
    attrs: dict[str, AttrValue] = {
        "mode": mode,
        "coordinate_mode": coordinates,
        "nearest_mode": n.attr("nearest_mode", "round_prefer_floor"),
        "cubic_coeff_a": n.attr("cubic_coeff_a", -0.75),
    }
    antialias = bool(n.attr("antialias", 0)) and mode != "nearest"
    # of two elements between which a place lies, one outside counts for nothing that the other does not
    exclude = bool(n.attr("exclude_outside", 0)) and (mode == "cubic" or antialias)
    if antialias or exclude or coordinates == "tf_crop_and_resize":
        return _resized_by_tables(n, x, axes, found, {**attrs, "antialias": antialias, "exclude_outside": exclude})
    return n.call("resize", x, found.factors, sizes=found.sizes, scales=found.scales, **attrs)


def _resized_by_tables(n: NodeContext, x: ModelValue, axes: Sequence[int], found: _Targets, attrs: dict[str, AttrValue]) -> ModelValue:
    """One axis after the other, by tables of what each element is made of."""
    dtype, mode, cut = x.dtype, str(attrs["mode"]), attrs["coordinate_mode"] == "tf_crop_and_resize"
    attrs = {**attrs, "dtype": f64 if dtype is f64 and mode != "nearest" else f32}
    for k, axis in enumerate(axes):
        before, size, scale = x.shape[axis], found.sizes[axis], found.scales[axis]
        region = _region(n, k, len(axes)) if cut else None
        if found.factors is None and size is before and scale in (None, 1.0) and (region is None or _is_whole(n, region)):
            continue
        factor = None if found.factors is None else n.call("slice", found.factors, starts=(axis,), sizes=(1,), steps=(1,))
        half = _half_of_taps(n, mode, before, size, scale, factor) if attrs["antialias"] else const(REACH[mode])
        sizes = {"before": before, "size": size, "half": half, "scale": scale}
        start, weights = n.graph.call("resize_taps", factor, region, span=n.span, **sizes, **attrs)
        outside = n.attr("extrapolation_value", 0.0)
        x = n.call("resize_axis", x, start, weights, axis=axis, nearest=mode == "nearest", cut=cut, extrapolation_value=outside)
    if x.dtype == dtype:
        return x
    if not dtype.is_float:
        low, high = int_range(dtype)
        if attrs["antialias"]:  # sums of more than two elements are rounded to the nearest integer, others cut off, as in onnxruntime
            x = n.call("round", x)
        x = n.call("clip", x, n.const(low, x.dtype), n.const(high, x.dtype))
    return n.call("cast", x, dtype=dtype)


def _region(n: NodeContext, k: int, count: int) -> ModelValue:
    """Where along an axis the region begins and ends: of all begins, then all ends, numbers `k`."""
    if n.optional(1) is None or count_of(n, 1, "roi") != 2 * count:
        raise NodeError(f"Resize: {n.attr('coordinate_transformation_mode')} needs a roi of {2 * count} numbers")
    array = n.graph.array(n.value(1))
    if array is not None:
        return n.const(array.reshape(-1)[[k, k + count]], n.value(1).dtype)
    return n.call("slice", n.value(1), starts=(k,), sizes=(2,), steps=(count,))


def _is_whole(n: NodeContext, region: ModelValue) -> bool:
    array = n.graph.array(region)
    return array is not None and array.tolist() == [0.0, 1.0]


def _half_of_taps(n: NodeContext, mode: str, before: Expr, size: Expr, scale: float | None, factor: ModelValue | None) -> Expr:
    """How many elements on one side of a place count, where an axis that shrinks passes none over."""
    reach = REACH[mode]
    if factor is not None:
        at_most = n.call("cast", vector([before * reach]), dtype=f32)
        wanted = n.call("div", n.const([reach], f32), n.call("minimum", n.call("cast", factor, dtype=f32), n.const([1], f32)))
        held = n.call("maximum", n.call("minimum", n.call("ceil", wanted), at_most), n.const([reach], f32))
        (taps,) = n.graph.dims(n.call("cast", held, dtype=i64), f"{n.label}.taps", n.span)
        return taps
    if scale is not None:
        return const(int(np.ceil(reach / min(scale, 1.0))))
    return simplify(maximum(ceildiv(before * reach, maximum(size, const(1))), reach), n.facts)


def _scales_from_data(n: NodeContext, x: ModelValue, axes: Sequence[int]) -> ModelValue | None:
    """The scales of all axes, where they are data; those of axes that are not named are 1."""
    sizes, given = n.optional(3), n.optional(2)
    if (sizes is not None and not is_const(product(sizes.shape), 0)) or given is None or n.graph.elements(given) is not None:
        return None
    count = count_of(n, 2, "scales")
    if count != len(axes):
        raise ShapeError(f"Resize: {count} scales for {len(axes)} axes")
    if list(axes) == list(range(x.rank)):
        return given
    return n.call("scatter_elements", n.const(np.ones(x.rank), f32), n.const(np.array(axes), i64), given)


def _resize_targets(n: NodeContext, x: ModelValue, axes: Sequence[int]) -> _Targets:
    sizes: list[Expr] = list(x.shape)
    scales: list[float | None] = [1.0] * x.rank
    wanted = n.optional(3)
    if wanted is not None and not is_const(product(wanted.shape), 0):
        targets = n.dims(3, "sizes", len(axes))
        if n.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
            return _keep_aspect(n, x, axes, targets)
        for axis, size in zip(axes, targets, strict=True):
            sizes[axis], scales[axis] = size, None
        return _Targets(tuple(sizes), tuple(scales))
    given = n.optional(2)
    if given is None:
        raise NodeError("Resize: neither sizes nor scales are given")
    array = n.graph.array(given)
    elements = n.graph.elements(given)
    counted = array if array is not None else elements
    if counted is not None and counted.size != len(axes):
        raise ShapeError(f"Resize: {counted.size} scales for {len(axes)} axes")
    for k, axis in enumerate(axes):
        if array is not None:
            scales[axis] = float(array.reshape(-1)[k])
            sizes[axis] = _scaled(n, x.shape[axis], float(array.reshape(-1)[k]))
        elif elements is not None:
            ratio = elements.reshape(-1)[k]
            assert isinstance(ratio, SizeRatio)
            scales[axis] = None
            sizes[axis] = _ratio_of_dim(n, x.shape[axis], ratio)
        else:
            raise UnsupportedError("Resize: the scales depend on data", code="TC1015")
    return _Targets(tuple(sizes), tuple(scales))


def _ratio_of_dim(n: NodeContext, dim: Expr, ratio: SizeRatio) -> Expr:
    """floor(dim * ratio), where a ratio over the dim itself cancels."""
    if ratio.den is dim:
        return ratio.num
    return simplify(floordiv(dim * ratio.num, ratio.den), n.facts)


def _keep_aspect(n: NodeContext, x: ModelValue, axes: Sequence[int], targets: Sequence[Expr]) -> _Targets:
    """One scale for all axes: the smallest or the largest that the wanted sizes ask for; halves are rounded up."""
    policy = n.attr("keep_aspect_ratio_policy")
    if policy not in ("not_larger", "not_smaller"):
        raise NodeError(f"Resize: there is no keep_aspect_ratio_policy {policy!r}")
    sizes: list[Expr] = list(x.shape)
    scales: list[float | None] = [1.0] * x.rank
    if all(is_const(t) for t in targets) and all(is_const(x.shape[axis]) for axis in axes):
        ratios = [int(t) / max(int(x.shape[axis]), 1) for axis, t in zip(axes, targets, strict=True)]
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        for axis in axes:
            sizes[axis] = const(int(np.floor(int(x.shape[axis]) * scale + 0.5)))
            scales[axis] = scale
        return _Targets(tuple(sizes), tuple(scales))
    known = [maximum(x.shape[axis], const(1)) for axis in axes]
    for axis in axes:
        asked = [floordiv(2 * x.shape[axis] * t + dim, 2 * dim) for dim, t in zip(known, targets, strict=True)]
        sizes[axis] = reduce(minimum if policy == "not_larger" else maximum, asked)
    found = bound(n, [sizes[axis] for axis in axes], "size")
    for axis, size in zip(axes, found, strict=True):
        sizes[axis] = size
    ratio = n.call("div", n.call("cast", vector(targets), dtype=f32), n.call("cast", vector(known), dtype=f32))
    chosen = n.call("min" if policy == "not_larger" else "max", ratio, axes=(0,), keepdims=True)
    spread = n.call("expand", chosen, shape=(const(len(axes)),))
    factors = n.call("scatter_elements", n.const(np.ones(x.rank), f32), n.const(np.array(axes), i64), spread)
    return _Targets(tuple(sizes), (None,) * x.rank, factors)


@onnx_op("AffineGrid", since=20)
def import_affine_grid(n: NodeContext) -> NodeResult:
    """Places in [-1, 1] of the elements of a result, mapped by one matrix per batch: theta @ (x, y[, z], 1); rounded to 16 bits once."""
    given = n.value(0)
    theta = n.widened(given)
    space_of_theta = theta.shape[1] if theta.rank == 3 else None
    sizes = n.dims(1, "size", int(space_of_theta) + 2 if isinstance(space_of_theta, Const) else None)
    space = len(sizes) - 2
    if space not in (2, 3) or theta.rank != 3:
        raise ShapeError(f"AffineGrid: a size of {len(sizes)} dims and {theta.type}; 4 or 5 dims and [n, 2, 3] or [n, 3, 4] are needed")
    for axis, (dim, wanted) in enumerate(zip(theta.shape, (sizes[0], space, space + 1), strict=True)):
        message = f"AffineGrid: dim {axis} of {theta.type} is {dim}, but must be {wanted}"
        n.graph.state(partial(require, equal(dim, wanted), message), n.span)
    lines = [_grid_line(n, size, axis, space, theta) for axis, size in enumerate(sizes[2:])]
    full = (*sizes[2:], const(1))
    columns = [n.call("expand", line, shape=full) for line in (*reversed(lines), n.const(np.ones((1,) * (space + 1)), theta.dtype))]
    base = n.call("reshape", n.call("concat", *columns, axis=space), shape=(product(sizes[2:]), const(space + 1)))
    moved = n.call("matmul", base, n.call("transpose", theta, perm=(0, 2, 1)))
    return n.cast(n.call("reshape", moved, shape=(theta.shape[0], *sizes[2:], const(space))), given.dtype)


def _grid_line(n: NodeContext, size: Expr, axis: int, space: int, theta: ModelValue) -> ModelValue:
    """The places along one axis, as a tensor that broadcasts over the grid; its last axis holds the one number."""
    dtype = theta.dtype
    align = bool(n.attr("align_corners", 0))
    steps = maximum(size - 1, 1) if align else size  # a single place is the first one, as ONNX's reference has it
    count = n.call("cast", elements_value(make_elements([steps], (1,)), i64), dtype=dtype)
    index = n.call("cast", n.call("range", start=0, size=size, step=1), dtype=dtype)
    two, one = n.const(2, dtype), n.const(1, dtype)
    step = n.call("div", two, count)
    start = n.const([-1], dtype) if align else n.call("sub", n.call("div", step, two), one)
    line = n.call("add", start, n.call("mul", index, step))
    shape = tuple(size if d == axis else const(1) for d in range(space + 1))
    return n.call("reshape", line, shape=shape)
