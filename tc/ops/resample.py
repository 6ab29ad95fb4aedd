"""Resampling along one axis by tables: which elements each element of a result is made of, and how much of each.

`resize_taps` makes the tables, `resize_axis` adds up. Unlike `resize` the number of elements is free, as it must be where an axis shrinks
and none may be passed over (antialiasing), weights may leave out what lies outside, and places may be those of a region that is cut out.
Places and weights are of one `dtype`: f32 as in ONNX, f64 for weights of doubles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError, UnsupportedError
from tc.ir.dtype import f32, f64, i64
from tc.ir.expr import Expr, call, cast, const, is_const, logical_and, logical_or, maximum, minimum, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, exprs, operand, require_equal
from tc.ops.registry import REQUIRED, OpDef, register, require
from tc.ops.resize import nearest, np_nearest, source_place
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]

REACH = {"nearest": 1, "linear": 1, "cubic": 2}
"""How far from a place elements count, where an axis does not shrink."""
NOWHERE = -(1 << 40)
"""The place of what lies outside of the region that is cut out."""
_FAR = float(1 << 30)


def kernel(mode: str, distance: Any, a: float) -> Any:
    """How much an element at a distance counts (cubic: Keys, 1981). Works on numpy arrays and on expressions, in numbers of theirs."""
    is_expr = isinstance(distance, Expr)
    d = call("abs", distance) if is_expr else np.abs(distance)
    if mode == "linear":
        return maximum(d * -1.0 + 1.0, const(0.0, d.dtype)) if is_expr else np.maximum(1 - d, 0)
    number = float if is_expr else d.dtype.type
    near = ((number(a + 2) * d - number(a + 3)) * d * d) + number(1.0)
    far = ((d - number(5.0)) * d + number(8.0)) * d * number(a) - number(4.0 * a)
    if is_expr:
        return select(d <= 1.0, near, select(d < 2.0, far, const(0.0, d.dtype)))
    return np.where(d <= 1, near, np.where(d < 2, far, number(0)))


def _infer_taps(types: Types, attrs: Attrs) -> tuple[TensorType, TensorType]:
    if attrs.mode not in REACH:
        raise UnsupportedError(f"resize: no mode {attrs.mode!r}", code="TC1013", supported=", ".join(REACH))
    for k, (count, what) in enumerate(((1, "scale"), (2, "region"))):
        type_ = types[k] if len(types) > k else None
        if type_ is not None:
            if type_.rank != 1 or not type_.dtype.is_float:
                raise ShapeError(f"resize: the {what} of an axis is {type_}")
            require_equal(type_.shape[0], const(count), f"resize: dim 0 of the {what} of an axis")
    before, size, half = exprs((attrs.before, attrs.size, attrs.half))
    require(logical_or(before >= 1, size <= 0), f"resize: a dim is {before}, of which nothing can be {size}")
    return TensorType((size,), i64), TensorType((size, half * 2 if attrs.mode != "nearest" else const(1)), attrs.dtype)


def _place(at: Any, attrs: Attrs, before: Any, size: Any, scale: Any, region: Any, to_float: Any) -> Any:
    """Where in the input the element `at` of the result lies."""
    if region is None:
        return source_place(at, before, size, scale, attrs.coordinate_mode, to_float)
    begin, end = region
    last = to_float(before) - to_float(1)
    steps = to_float(size) - to_float(1)
    if isinstance(steps, Expr):
        along = select(steps > 0, at * (end - begin) * last / maximum(steps, to_float(1)), (end - begin) * last / to_float(2))
    else:
        along = at * (end - begin) * last / steps if steps > 0 else at * to_float(0) + (end - begin) * last / to_float(2)
    return along + begin * last


def _compute_taps(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, Tensor]:
    factor, roi = (*tensors, None, None)[:2]
    before, size, half = exprs((attrs.before, attrs.size, attrs.half))
    kind = attrs.dtype

    def to_float(value: Any) -> Any:
        return cast(value, kind) if isinstance(value, Expr) else const(float(value), kind)

    scale = attrs.scale if factor is None else cast(factor[const(0)], kind)
    region = None if roi is None else tuple(cast(roi[const(k)], kind) for k in (0, 1))

    def place(o: Expr) -> Expr:
        size_out = int(size) if is_const(size) else size
        found = _place(cast(o, kind), attrs, before, size_out, scale, region, to_float)
        return minimum(maximum(found, const(-_FAR, kind)), const(_FAR, kind))

    places = te.compute((size,), place, "place")
    if attrs.mode == "nearest":
        start = te.compute((size,), lambda o: cast(nearest(places[o], attrs.nearest_mode, scale), i64), "start")
        weights = te.compute(types[1].shape, lambda o, k: const(1.0, kind), "weight")
    else:
        shrink = _shrink(attrs, before, size, scale, to_float)
        start = te.compute((size,), lambda o: cast(call("floor", places[o]), i64) + (const(1) - half), "start")

        def raw_weight(o: Expr, k: Expr) -> Expr:
            away = cast(k + (const(1) - half), kind) - (places[o] - call("floor", places[o]))
            found = kernel(attrs.mode, away if shrink is None else away * shrink, attrs.cubic_coeff_a)
            if not attrs.exclude_outside:
                return found
            index = start[o] + k
            return select(logical_and(index >= 0, index < before), found, const(0.0, kind))

        weights = te.compute(types[1].shape, raw_weight, "raw_weight")
        if attrs.antialias or attrs.exclude_outside:
            raw = weights
            total = te.reduce("sum", (size,), (half * 2,), lambda o, k: raw[(o, k)], "total")
            weights = te.compute(types[1].shape, lambda o, k: raw[(o, k)] / total[o], "weight")
    if region is None:
        return start, weights

    def held(o: Expr) -> Expr:
        inside = logical_and(places[o] >= 0.0, places[o] <= cast(before - 1, kind))
        return select(inside, start[o], const(NOWHERE))

    return te.compute((size,), held, "held"), weights


def _shrink(attrs: Attrs, before: Any, size: Any, scale: Any, to_float: Any) -> Any:
    """By what distances are multiplied, at most 1; None for nothing."""
    if not attrs.antialias:
        return None
    ratio = to_float(size) / to_float(before) if scale is None else to_float(scale)
    return minimum(ratio, to_float(1)) if isinstance(ratio, Expr) else np.minimum(ratio, to_float(1))


def _run_taps(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, np.ndarray]:
    factor, roi = (*arrays, None, None)[:2]
    before, size, half = int(attrs.before), int(attrs.size), int(attrs.half)
    kind = attrs.dtype.numpy.type
    scale = attrs.scale if factor is None else kind(factor[0])
    region = None if roi is None else tuple(roi.astype(kind))
    with np.errstate(all="ignore"):
        at = np.arange(size, dtype=kind)
        places = np.asarray(_place(at, attrs, before, size, scale, region, kind)).astype(kind).clip(-_FAR, _FAR)
        inside = (places >= 0) & (places <= kind(before - 1))
        base = np.floor(places)
        if attrs.mode == "nearest":
            start, weights = np_nearest(np.nan_to_num(places), attrs.nearest_mode, scale), np.ones((size, 1), kind)
        else:
            start = np.nan_to_num(base).astype(np.int64) + (1 - half)
            away = np.arange(1 - half, half + 1, dtype=kind) - (places - base)[:, None]
            shrink = _shrink(attrs, before, size, scale, kind)
            weights = kernel(attrs.mode, away if shrink is None else away * shrink, attrs.cubic_coeff_a)
            if attrs.exclude_outside:
                index = start[:, None] + np.arange(2 * half)
                weights = np.where((index >= 0) & (index < before), weights, kind(0))
            if attrs.antialias or attrs.exclude_outside:
                weights = weights / weights.astype(np.float64).sum(1, keepdims=True)
    return start if region is None else np.where(inside, start, NOWHERE), weights.astype(kind)


def _tap_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for mode in ("linear", "cubic"):
        for before, size, scale in ((9, 4, None), (9, 4, 0.5), (10, 3, None), (4, 7, None)):
            ratio = scale or size / before
            half = int(np.ceil(REACH[mode] / min(ratio, 1)))
            for exclude in (False, True):
                sizes = {"before": before, "size": size, "half": half, "scale": scale}
                yield [], {**sizes, "mode": mode, "antialias": True, "exclude_outside": exclude}
        yield [], {"before": 9, "size": 4, "half": 3 * REACH[mode], "scale": None, "mode": mode, "antialias": True, "dtype": f64}
        yield [np.array([0.5], np.float32)], {"before": 8, "size": 4, "half": 2 * REACH[mode], "mode": mode, "antialias": True}
    yield [], {"before": 5, "size": 8, "half": 2, "scale": None, "mode": "cubic", "exclude_outside": True, "coordinate_mode": "asymmetric"}
    for size in (1, 6):
        for mode in REACH:
            for region in ([0.3, 0.9], [-0.2, 1.4], [0.9, 0.1], [np.nan, 1], [0, np.inf], [0, 1e30]):
                roi = np.array(region, np.float32)
                yield [None, roi], {"before": 5, "size": size, "half": REACH[mode], "scale": None, "mode": mode}
    yield [], {"before": 5, "size": 0, "half": 1, "scale": None, "mode": "linear", "antialias": True}


register(
    OpDef(
        "resize_taps",
        _infer_taps,
        _run_taps,
        _compute_taps,
        {
            "before": REQUIRED,
            "size": REQUIRED,
            "half": REQUIRED,
            "mode": REQUIRED,
            "scale": None,
            "coordinate_mode": "half_pixel",
            "nearest_mode": "round_prefer_floor",
            "cubic_coeff_a": -0.75,
            "antialias": False,
            "exclude_outside": False,
            "dtype": f32,
        },
        apart=True,
        samples=_tap_samples,
    )
)


def _infer_axis(types: Types, attrs: Attrs) -> TensorType:
    x, start, weights = (operand(types, k, "resize_axis") for k in range(3))
    if not 0 <= attrs.axis < x.rank or start.rank != 1 or weights.rank != 2:
        raise ShapeError(f"resize_axis: axis {attrs.axis} of {x} by tables {start} and {weights}")
    require_equal(weights.shape[0], start.shape[0], f"resize_axis: dim 0 of the weights {weights}")
    require(weights.shape[1] >= 1, f"resize_axis: the weights {weights} are of no elements")
    require(logical_or(x.shape[attrs.axis] >= 1, start.shape[0] <= 0), f"resize: a dim of {x} is 0, of which nothing can be made")
    shape = (*x.shape[: attrs.axis], start.shape[0], *x.shape[attrs.axis + 1 :])
    return TensorType(shape, x.dtype if attrs.nearest or x.dtype is f64 else f32)


def _compute_axis(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, start, weights = tensors
    assert x is not None and start is not None and weights is not None
    axis, dtype, last = attrs.axis, types[0].dtype, x.shape[attrs.axis] - 1

    def term(*axes: Expr) -> Expr:
        *place, k = axes
        index = maximum(minimum(start[place[axis]] + k, last), const(0))
        value = x[(*place[:axis], index, *place[axis + 1 :])]
        return value if attrs.nearest else cast(value, dtype) * cast(weights[(place[axis], k)], dtype)

    shape = types[0].shape
    if attrs.nearest:
        found = te.compute(shape, lambda *axes: term(*axes, const(0)), "resize_axis")
    else:
        found = te.reduce("sum", shape, (weights.shape[1],), term, "resize_axis")
    if not attrs.cut:
        return found
    outside = const(int(attrs.extrapolation_value) if not dtype.is_float else float(attrs.extrapolation_value), dtype)
    return te.compute(shape, lambda *axes: select(start[axes[axis]] > NOWHERE // 2, found[axes], outside), "cut")


def _run_axis(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, start, weights = arrays
    assert x is not None and start is not None and weights is not None
    axis = attrs.axis
    column = [-1 if d == axis else 1 for d in range(x.ndim)]
    index = (start[:, None] + np.arange(weights.shape[1])).clip(0, max(x.shape[axis] - 1, 0))
    if attrs.nearest:
        result = np.take(x, index[:, 0], axis)
    else:
        wide = x.astype(np.float64)
        zero = np.zeros((*x.shape[:axis], len(start), *x.shape[axis + 1 :]))
        with np.errstate(all="ignore"):
            result = sum((np.take(wide, index[:, k], axis) * weights[:, k].reshape(column) for k in range(weights.shape[1])), zero)
        result = result.astype(np.float64 if x.dtype == np.float64 else np.float32)
    if attrs.cut:
        result = np.where((start > NOWHERE // 2).reshape(column), result, np.asarray(attrs.extrapolation_value).astype(result.dtype))
    return np.ascontiguousarray(result)


def _axis_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 5, 7)).astype(np.float32)
    start, weights = np.array([-2, 0, 3, NOWHERE]), rng.standard_normal((4, 3)).astype(np.float32)
    for axis in range(3):
        yield [x, start[:3], weights[:3]], {"axis": axis}
        yield [x, start, weights], {"axis": axis, "cut": True, "extrapolation_value": 2.5}
    yield [(x * 9).astype(np.int32), start, weights[:, :1]], {"axis": 1, "cut": True, "nearest": True, "extrapolation_value": 2.5}
    yield [x.astype(np.float16), start[:3], weights[:3]], {"axis": 2}
    yield [x.astype(np.float64), start[:3], weights[:3]], {"axis": 0}
    yield [x, start[:0], weights[:0]], {"axis": 1}


register(
    OpDef(
        "resize_axis",
        _infer_axis,
        _run_axis,
        _compute_axis,
        {"axis": REQUIRED, "nearest": False, "cut": False, "extrapolation_value": 0.0},
        samples=_axis_samples,
    )
)
