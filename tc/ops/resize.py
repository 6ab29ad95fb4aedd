"""Resampling of images and volumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError, UnsupportedError
from tc.ir.dtype import DType, f32, f64, i32, i64
from tc.ir.expr import (
    Expr,
    MathCall,
    Var,
    call,
    cast,
    ceildiv,
    const,
    equal,
    is_const,
    logical_and,
    logical_or,
    maximum,
    minimum,
    select,
)
from tc.ir.graph import Attrs
from tc.ir.node import walk
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, exprs, ints, operand, require_equal, wide
from tc.ops.registry import REQUIRED, BlockedForm, Form, OpDef, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


COORDINATE_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
    "align_corners",
    "asymmetric",
)


def source_place(out: Any, size_in: Any, size_out: Any, scale: Any, mode: str, to_float: Any) -> Any:
    """The coordinate in the input that output index `out` stands for. Works on numpy arrays and on expressions of f32.

    Where `scale` is None it is the quotient of the sizes. An axis that keeps its size stays as it is (`tf_half_pixel_for_nn`); with
    `pytorch_half_pixel` and `align_corners` an axis of one element reads the first.
    """

    def shrunk(place: Any) -> Any:  # divided last, so that whole and half places come out exactly
        return place * to_float(size_in) / to_float(size_out) if scale is None else place / to_float(scale)

    match mode:
        case "half_pixel":
            return shrunk(out + to_float(0.5)) - to_float(0.5)
        case "asymmetric":
            return shrunk(out)
        case "tf_half_pixel_for_nn":
            place = shrunk(out + to_float(0.5))
            keeps = isinstance(size_in, Expr) and scale in (None, 1.0)
            return select(equal(size_out, size_in), out, place) if keeps else place
        case "pytorch_half_pixel":
            place = shrunk(out + to_float(0.5)) - to_float(0.5)
            if isinstance(size_out, Expr):
                return select(size_out > 1, place, to_float(0))
            return place if size_out > 1 else out * to_float(0)
        case "align_corners":
            steps = maximum(size_out - 1, 1) if isinstance(size_out, Expr) else max(size_out - 1, 1)
            return out * (to_float(size_in) - to_float(1)) / to_float(steps)
        case "half_pixel_symmetric":
            if scale is None:  # nothing was rounded off, so nothing is to be centred
                return shrunk(out + to_float(0.5)) - to_float(0.5)
            from_middle = out + to_float(0.5) - to_float(size_out) / to_float(2)
            return shrunk(from_middle) + to_float(size_in) / to_float(2) - to_float(0.5)
    raise UnsupportedError(f"resize: no coordinate mode {mode!r}", code="TC1013")


def _infer_resize(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "resize")
    sizes = exprs(attrs.sizes)
    if len(sizes) != x.rank or len(attrs.scales) != x.rank:
        raise ShapeError(f"resize: sizes and scales must have one entry per axis of {x}")
    if attrs.mode not in ("nearest", "linear", "cubic"):
        raise UnsupportedError(f"resize: no mode {attrs.mode!r}", code="TC1013", supported="nearest, linear, cubic")
    if attrs.coordinate_mode not in COORDINATE_MODES:
        supported = ", ".join(COORDINATE_MODES)
        raise UnsupportedError(f"resize: no coordinate mode {attrs.coordinate_mode!r}", code="TC1013", supported=supported)
    if len(types) > 1 and types[1] is not None:
        factors = types[1]
        if factors.rank != 1 or not factors.dtype.is_float:
            raise ShapeError(f"resize: the scales are {factors}, no vector of floats")
        require_equal(factors.shape[0], const(x.rank), "resize: the number of scales")
    for d, (dim, size) in enumerate(zip(x.shape, sizes, strict=True)):
        if dim is not size:
            require(logical_or(dim >= 1, size <= 0), f"resize: dim {d} of {x} is {dim}, of which nothing can be {size}")
    return TensorType(sizes, x.dtype)


def _axis_taps(n_in: int, n_out: int, scale: float | None, attrs: Attrs) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """(int64[n_out] index, float64[n_out] weight) of each input element that goes into an output element along one axis; None means 1.

    The nearest element is a matter of the last bit of its place, which is of f32 as in ONNX.
    """
    kind = np.float32 if attrs.mode == "nearest" else np.float64
    places = np.asarray(source_place(np.arange(n_out, dtype=kind), n_in, n_out, scale, attrs.coordinate_mode, kind))
    if attrs.mode == "nearest":
        return [(np.clip(np_nearest(places, attrs.nearest_mode, scale), 0, n_in - 1), None)]
    base = np.floor(places).astype(np.int64)
    t = places - base
    if attrs.mode == "linear":
        # clamping the coordinate or the two taps is the same thing
        terms = [(0, 1 - t), (1, t)]
    else:
        terms = list(zip(range(-1, 3), cubic_weights(t, attrs.cubic_coeff_a), strict=True))
    return [(np.clip(base + k, 0, n_in - 1), weight) for k, weight in terms]


def np_nearest(places: np.ndarray, mode: str, scale: Any = None) -> np.ndarray:
    match mode:
        case "simple":
            return np.floor(places).astype(np.int64) if scale is None or scale >= 1 else np.ceil(places).astype(np.int64)
        case "round_prefer_floor":
            return np.ceil(places - 0.5).astype(np.int64)
        case "round_prefer_ceil":
            return np.floor(places + 0.5).astype(np.int64)
        case "floor":
            return np.floor(places).astype(np.int64)
        case "ceil":
            return np.ceil(places).astype(np.int64)
    raise UnsupportedError(f"resize: no nearest mode {mode!r}", code="TC1013")


def cubic_weights(t: Any, a: float) -> list[Any]:
    """Weights of the four neighbours at distance 1 + t, t, 1 - t, 2 - t (Keys, 1981)."""

    def near(s: Any) -> Any:
        return ((a + 2) * s - (a + 3)) * s * s + 1.0

    def far(s: Any) -> Any:
        return ((s - 5.0) * s + 8.0) * s * a - 4.0 * a

    return [far(t + 1.0), near(t), near((t * -1.0) + 1.0), far((t * -1.0) + 2.0)]


def _run_resize(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    result: Any = wide(x)
    sizes = ints(attrs.sizes)
    factors = arrays[1].astype(np.float32).tolist() if len(arrays) > 1 and arrays[1] is not None else attrs.scales
    for axis, (size, scale) in enumerate(zip(sizes, factors, strict=True)):
        if size == x.shape[axis] and (scale is None or scale == 1.0):
            continue
        column = [-1 if d == axis else 1 for d in range(x.ndim)]
        taps = _axis_taps(x.shape[axis], size, scale, attrs)
        parts = (np.take(result, place, axis) * (1 if weight is None else weight.reshape(column)) for place, weight in taps)
        result = sum(parts)
    if x.dtype.kind in "iu":
        low, high = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
        return np.clip(np.trunc(result) if attrs.mode != "nearest" else result, low, high).astype(x.dtype)
    return np.ascontiguousarray(result.astype(x.dtype))


def nearest(place: Expr, mode: str, scale: Any = None) -> Expr:
    """The whole number that stands for a place; `simple`: the one below where an axis grows, the one above where it shrinks."""
    match mode:
        case "simple" if isinstance(scale, Expr):
            return select(scale >= 1.0, call("floor", place), call("ceil", place))
        case "simple":
            return call("floor" if scale is None or scale >= 1 else "ceil", place)
        case "round_prefer_floor":
            return call("ceil", place - 0.5)
        case "round_prefer_ceil":
            return call("floor", place + 0.5)
        case "floor":
            return call("floor", place)
    return call("ceil", place)


def _clamped(place: Expr, dim: Expr) -> Expr:
    return maximum(minimum(place, dim - 1), 0)


def _taps(axis: Expr, n_in: Expr, n_out: Expr, scale: Any, attrs: Attrs, kind: DType) -> list[tuple[Expr, Expr | None]]:
    """(index, weight) of the input elements along one axis, in numbers of `kind`; weight None means 1."""
    whole = _whole_ratio(n_in, n_out, scale)
    if attrs.mode == "nearest" and whole is not None and (
        (attrs.coordinate_mode == "asymmetric" and attrs.nearest_mode in ("floor", "simple"))
        or (attrs.coordinate_mode == "half_pixel"
        and attrs.nearest_mode.startswith("round"))
    ):
        return [(axis // whole, None)]  # enlarging by a whole number: plain index arithmetic

    def to_float(value: Any) -> Any:
        return cast(value, kind) if isinstance(value, Expr) else const(float(value), kind)

    static_out = int(n_out) if is_const(n_out) else n_out
    place = source_place(cast(axis, kind), n_in, static_out, scale, attrs.coordinate_mode, to_float)
    if attrs.mode == "nearest":
        chosen = cast(nearest(place, attrs.nearest_mode, scale), i64)
        return [(_clamped(select(_keeps(n_in, n_out, scale), axis, chosen) if isinstance(scale, Expr) else chosen, n_in), None)]
    base_float = call("floor", place)
    t = place - base_float
    base = cast(base_float, i64)
    if attrs.mode == "linear":
        return [(_clamped(base, n_in), t * -1.0 + 1.0), (_clamped(base + 1, n_in), t)]
    return [
        (_clamped(base + k, n_in), weight)
        for k, weight in zip(range(-1, 3), cubic_weights(t, attrs.cubic_coeff_a), strict=True)
    ]


def _keeps(n_in: Expr, n_out: Expr, scale: Expr) -> Expr:
    """Whether an axis whose scale is data keeps its size: then it stays as it is, whatever the mode of coordinates."""
    return logical_and(equal(scale, 1.0), equal(n_in, n_out))


def _tables(
    n_in: Expr, size: Expr, scale: Any, attrs: Attrs, axis: int, kind: DType
) -> Callable[[Expr], list[tuple[Expr, Expr | None]]]:
    """`_taps` of any place along an axis, by tables where they take many steps: the same for all rows."""
    found = _taps(Var("i", i64), n_in, size, scale, attrs, kind)
    if not any(isinstance(node, MathCall) for place, _ in found for node in walk(place)):
        return lambda place: _taps(place, n_in, size, scale, attrs, kind)
    narrow = i32 if is_const(n_in) and int(n_in) < 2**31 else i64

    def table(k: int, part: int) -> Tensor:
        def entry(i: Expr) -> Expr:
            value = _taps(i, n_in, size, scale, attrs, kind)[k][part]
            assert value is not None
            return cast(value, narrow) if part == 0 else value

        return te.compute((size,), entry, f"{('place', 'share')[part]}{axis}_{k}")

    tables = [(table(k, 0), None if share is None else table(k, 1)) for k, (_, share) in enumerate(found)]

    def look_up(place: Expr) -> list[tuple[Expr, Expr | None]]:
        top = const(int(n_in) - 1, narrow) if is_const(n_in) else n_in - 1
        bottom = const(0, narrow)
        known = [cast(maximum(minimum(at[place], top), bottom), i64) for at, _ in tables]
        return [(at, None if share is None else share[place]) for at, (_, share) in zip(known, tables, strict=True)]

    return look_up


def _whole_ratio(n_in: Expr, n_out: Expr, scale: Any) -> int | None:
    """By which whole number an axis grows, if it does; a scale of 2.3 may give the sizes of 2, but not its places."""
    for ratio in (2, 3, 4, 8):
        if scale in (None, float(ratio)) and exprs((n_in * ratio,))[0] is n_out:
            return ratio
    return None


def _compute_resize(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    result = tensors[0]
    assert result is not None
    source = result
    dtype = source.dtype
    kind = f64 if dtype is f64 and attrs.mode != "nearest" else f32
    given = tensors[1] if len(tensors) > 1 else None
    scales = attrs.scales if given is None else [cast(given[const(d)], f32) for d in range(len(source.shape))]
    for axis, (size, scale) in enumerate(zip(types[0].shape, scales, strict=True)):
        if size is source.shape[axis] and scale in (None, 1.0):
            continue
        shape = (*result.shape[:axis], size, *result.shape[axis + 1 :])
        tables = _tables(result.shape[axis], size, scale, attrs, axis, kind)

        def body(*axes: Expr, axis: int = axis, scale: Any = scale, x: Tensor = result, taps: Any = tables) -> Expr:
            total: Expr | None = None
            for place, weight in taps(axes[axis]):
                value: Expr = x[(*axes[:axis], place, *axes[axis + 1 :])]
                if weight is not None:
                    value = cast(value, kind) * weight
                total = value if total is None else total + value
            assert total is not None
            if not isinstance(scale, Expr) or attrs.mode == "nearest":  # which the place of the nearest says: one element is read
                return total
            n_in, at = x.shape[axis], axes[axis]
            own: Expr = x[(*axes[:axis], _clamped(at, n_in), *axes[axis + 1 :])]
            return select(_keeps(n_in, types[0].shape[axis], scale), cast(own, total.dtype), total)

        result = te.compute(shape, body, f"resize{axis}")
    if result.dtype != dtype:
        final = result
        return te.compute(final.shape, lambda *axes: cast(final[axes], dtype), "rounded")
    if result is source:
        return te.compute(source.shape, lambda *axes: source[axes], "copy")
    return result


def _blocked_resize(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
    """The lanes are one more axis, of unchanged size; the channels must keep their number."""
    x, sizes = operand(types, 0, "resize"), exprs(attrs.sizes)
    if x.rank < 3 or sizes[1] is not x.shape[1] or (len(types) > 1 and types[1] is not None):
        return None
    changed = {
        "sizes": (sizes[0], ceildiv(sizes[1], block), *sizes[2:], const(block)),
        "scales": (*attrs.scales, None),
    }
    return BlockedForm("resize", tuple({**dict(attrs), **changed}.items()), (Form.CHANNELS,))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((1, 2, 4, 5)).astype(np.float32)
    base = {"sizes": (1, 2, 8, 10), "scales": (1.0, 1.0, 2.0, 2.0)}
    yield [x], {**base, "mode": "nearest", "coordinate_mode": "asymmetric", "nearest_mode": "floor"}
    yield [x], {**base, "mode": "nearest"}
    yield [x], {**base, "mode": "linear"}
    yield [x], {"sizes": (1, 2, 7, 3), "scales": (1.0, 1.0, None, None), "mode": "linear", "coordinate_mode": "align_corners"}
    yield [x], {"sizes": (1, 2, 6, 9), "scales": (1.0, 1.0, None, None), "mode": "cubic"}
    yield [x], {"sizes": (1, 2, 3, 2), "scales": (1.0, 1.0, None, None), "mode": "nearest", "nearest_mode": "ceil"}
    yield [x], {"sizes": (1, 2, 4, 10), "scales": (1.0, 1.0, 1.2, 2.1), "mode": "nearest", "coordinate_mode": "asymmetric"}
    for scales in ((1.0, 1.0, 1.2, 0.6), (1.0, 1.0, 0.7, 2.0)):
        sizes = (1, 2, int(4 * scales[2]), int(5 * scales[3]))
        yield [x], {"sizes": sizes, "scales": scales, "mode": "nearest", "coordinate_mode": "asymmetric", "nearest_mode": "simple"}
    yield [x, np.array([1, 1, 1.6, 2.3], np.float32)], {"sizes": (1, 2, 6, 11), "scales": (None,) * 4, "mode": "linear"}
    for mode in COORDINATE_MODES:
        yield [x], {"sizes": (1, 2, 1, 9), "scales": (1.0, 1.0, None, None), "mode": "linear", "coordinate_mode": mode}
        yield [x], {"sizes": (1, 2, 6, 3), "scales": (1.0, 1.0, 1.7, 0.6), "mode": "linear", "coordinate_mode": mode}


register(
    OpDef(
        "resize",
        _infer_resize,
        _run_resize,
        _compute_resize,
        {
            "sizes": REQUIRED,
            "scales": REQUIRED,
            "mode": "nearest",
            "coordinate_mode": "half_pixel",
            "nearest_mode": "round_prefer_floor",
            "cubic_coeff_a": -0.75,
        },
        blocked=_blocked_resize,
        samples=_samples,
    )
)

