"""Resize and Upsample of ONNX, in all their spellings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tc.errors import ModelError, ShapeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.run_time_axes import count_of, vector
from tc.frontend.onnx.size_elements import SizeRatio, make_elements
from tc.frontend.onnx.values import ModelValue, elements_value
from tc.ir.arith import simplify
from tc.ir.dtype import f32, i64
from tc.ir.expr import Const, Expr, const, equal, floordiv, is_const, maximum
from tc.ir.graph import AttrValue
from tc.ir.types import product
from tc.ops.registry import require


@onnx_op("Upsample")
def import_upsample_by_attribute(n: NodeContext) -> NodeResult:
    return _upsample(n, n.attr("scales"))


@onnx_op("Upsample", since=9)
def import_upsample(n: NodeContext) -> NodeResult:
    scales = n.array(1, "scales")
    assert scales is not None
    return _upsample(n, scales.reshape(-1).tolist())


@onnx_op("Resize", since=10)
def import_resize_10(n: NodeContext) -> NodeResult:
    scales = n.array(1, "scales")
    assert scales is not None
    return _upsample(n, scales.reshape(-1).tolist())


def _upsample(n: NodeContext, scales: Sequence[float]) -> ModelValue:
    """The first form of resizing: output index over scale; the nearest element is before that place where an axis grows, and after it
    where it shrinks. ONNX leaves this open; onnxruntime does it so."""
    x = n.value(0)
    if len(scales) != x.rank:
        raise ShapeError(f"{n.op_type}: {len(scales)} scales for {x.type}")
    if not all(scale > 0 for scale in scales):
        raise ModelError(f"{n.op_type}: scales must be positive, found {list(scales)}")
    sizes = tuple(_scaled(n, dim, scale) for dim, scale in zip(x.shape, scales, strict=True))
    mode = n.attr("mode", "nearest")
    if mode != "nearest":
        return _resized(n, x, sizes, tuple(map(float, scales)), mode="linear" if mode == "bilinear" else mode)
    for nearest_mode, chosen in (("floor", [s >= 1 for s in scales]), ("ceil", [s < 1 for s in scales])):
        if any(chosen):
            now = tuple(size if c else dim for size, dim, c in zip(sizes, x.shape, chosen, strict=True))
            by = tuple(float(s) if c else 1.0 for s, c in zip(scales, chosen, strict=True))
            x = _resized(n, x, now, by, mode=mode, nearest_mode=nearest_mode)
    return x


def _resized(n: NodeContext, x: ModelValue, sizes: tuple[Expr, ...], scales: tuple[float, ...], **attrs: AttrValue) -> ModelValue:
    return n.call("resize", x, sizes=sizes, scales=scales, coordinate_mode="asymmetric", **attrs)


def _scaled(n: NodeContext, dim: Expr, scale: float) -> Expr:
    """floor(dim * scale)"""
    if isinstance(dim, Const):
        return const(int(np.floor(np.float32(int(dim)) * np.float32(scale))))
    numerator, denominator = float(scale).as_integer_ratio()
    if numerator >= 1 << 40 or denominator >= 1 << 40:
        raise UnsupportedError(f"{n.op_type}: the scale {scale} of the dim {dim}")
    return simplify(floordiv(dim * numerator, denominator), n.facts)


@onnx_op("Resize", since=11)
def import_resize(n: NodeContext) -> NodeResult:
    x = n.value(0)
    mode, coordinates = n.attr("mode", "nearest"), n.attr("coordinate_transformation_mode", "half_pixel")
    if n.attr("exclude_outside", 0) and mode == "cubic":
        raise UnsupportedError("Resize that leaves out what lies outside of the image")
    if coordinates == "tf_crop_and_resize" or n.attr("antialias", 0):
        what = "with antialiasing" if n.attr("antialias", 0) else f"with coordinates {coordinates!r}"
        raise UnsupportedError(f"Resize {what}")
    axes = [axis % x.rank for axis in n.attr("axes") or range(x.rank)]
    factors = _scales_from_data(n, x, axes)
    if factors is None:
        sizes, scales = _resize_targets(n, x, axes)
    else:
        enlarged = n.call("floor", n.call("mul", n.call("cast", vector(x.shape), dtype=f32), factors))
        sizes = list(n.graph.dims(n.call("cast", enlarged, dtype=i64), f"{n.label}.size", n.span))
        scales = [None] * x.rank
    return n.call(
        "resize",
        x,
        factors,
        sizes=tuple(sizes),
        scales=tuple(scales),
        mode=mode,
        coordinate_mode=coordinates,
        nearest_mode=n.attr("nearest_mode", "round_prefer_floor"),
        cubic_coeff_a=n.attr("cubic_coeff_a", -0.75),
    )


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


def _resize_targets(n: NodeContext, x: ModelValue, axes: Sequence[int]) -> tuple[list[Expr], list[float | None]]:
    """Sizes and scales of all axes. A scale None is the size of the result over that of the input."""
    sizes: list[Expr] = list(x.shape)
    scales: list[float | None] = [1.0] * x.rank
    wanted = n.optional(3)
    if wanted is not None and not is_const(product(wanted.shape), 0):
        targets = n.dims(3, "sizes")
        if n.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
            return _keep_aspect(n, x, axes, targets)
        for axis, size in zip(axes, targets, strict=True):
            sizes[axis], scales[axis] = size, None
        return sizes, scales
    given = n.optional(2)
    if given is None:
        raise ModelError("Resize: neither sizes nor scales are given")
    array = n.graph.array(given)
    elements = n.graph.elements(given)
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
            raise UnsupportedError("Resize: the scales depend on data")
    return sizes, scales


def _ratio_of_dim(n: NodeContext, dim: Expr, ratio: SizeRatio) -> Expr:
    """floor(dim * ratio), where a ratio over the dim itself cancels."""
    if ratio.den is dim:
        return ratio.num
    return simplify(floordiv(dim * ratio.num, ratio.den), n.facts)


def _keep_aspect(
    n: NodeContext, x: ModelValue, axes: Sequence[int], targets: Sequence[Expr]
) -> tuple[list[Expr], list[float | None]]:
    """One scale for all axes: the smallest or the largest that the wanted sizes ask for."""
    if not all(is_const(t) for t in targets) or not all(is_const(x.shape[axis]) for axis in axes):
        raise UnsupportedError("Resize that keeps the aspect ratio of sizes that are not known")
    policy = n.attr("keep_aspect_ratio_policy")
    ratios = [int(t) / int(x.shape[axis]) for axis, t in zip(axes, targets, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    sizes: list[Expr] = list(x.shape)
    scales: list[float | None] = [1.0] * x.rank
    for axis in axes:
        sizes[axis] = const(int(np.floor(int(x.shape[axis]) * scale + 0.5)))
        scales[axis] = scale
    return sizes, scales




@onnx_op("AffineGrid", since=20)
def import_affine_grid(n: NodeContext) -> NodeResult:
    """Places in [-1, 1] of the elements of a result, mapped by one matrix per batch: theta @ (x, y[, z], 1)."""
    theta, sizes = n.value(0), n.dims(1, "size")
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
    return n.call("reshape", moved, shape=(theta.shape[0], *sizes[2:], const(space)))


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
