"""Sampling of images and volumes at places that are data: what a point is made of depends on where it is.

A point is made of elements next to it, `taps` along each axis. Which ones, and how much of each, is the same for all channels: `grid_taps`
finds that out once for each point, one table for each axis and tap, and `sample_taps` reads the image and adds up. A table of places holds
the element's index along its axis times the elements between two of them, so that the places of an element along all axes add up to where
it lies; a sum below 0 stands for an element outside of the image, which is zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError, UnsupportedError
from tc.ir.dtype import DType, f32, f64, i32, i64
from tc.ir.expr import Const, Expr, call, cast, const, logical_and, maximum, minimum, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import Arrays, Tensors, Types, exprs, ints, operand, require_equal
from tc.ops.registry import REQUIRED, OpDef, register, require
from tc.ops.resize import cubic_weights
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]

PADDINGS = ("zeros", "border", "reflection")
OFFSETS = {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}
"""For each mode, how far from the element at or below a point those are that it is made of, along one axis."""
CUBIC_COEFFICIENT = -0.75
"""Source: ONNX, GridSample; PyTorch's is the same."""
_OUTSIDE = {i32: -(1 << 29), i64: -(1 << 60)}
"""The place of an element outside, so low that other axes do not make up for it, and that three of it are a number still."""


OUTSIDE = _OUTSIDE[i64]
_FAR = 2.0**60


def _place_dtype(sizes: Sequence[Expr]) -> DType:
    elements = product(tuple(sizes))
    return i32 if isinstance(elements, Const) and elements.value < -_OUTSIDE[i32] else i64


def _infer_grid_taps(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    grid, sizes = operand(types, 0, "grid_sample"), exprs(attrs.sizes)
    if attrs.mode not in OFFSETS or attrs.padding not in PADDINGS:
        supported = f"{', '.join(OFFSETS)}; padding {', '.join(PADDINGS)}"
        raise UnsupportedError(f"grid_sample: no mode {attrs.mode!r} with padding {attrs.padding!r}", code="TC1013", supported=supported)
    if not 1 <= len(sizes) <= 3 or grid.rank < 2:
        raise ShapeError(f"grid_sample: a grid {grid} for {len(sizes)} axes; there may be one to three")
    require_equal(grid.shape[-1], const(len(sizes)), f"grid_sample: the last dim of the grid {grid}")
    for d, size in enumerate(sizes):
        require(size >= 1, f"grid_sample: axis {d} of the image has {size} elements, of which nothing can be sampled")
    count = len(sizes) * len(OFFSETS[attrs.mode])
    places = TensorType(grid.shape[:-1], _place_dtype(sizes))
    weights = TensorType(grid.shape[:-1], f64 if grid.dtype is f64 else f32)
    return (places,) * count + (() if attrs.mode == "nearest" else (weights,) * count)


def _coordinate(where: Any, size: Any, align_corners: bool) -> Any:
    """The coordinate in an axis of `size` elements that a normalized one, from -1 to 1, stands for."""
    if align_corners:
        return (where + 1.0) / 2.0 * (size - 1.0)
    return ((where + 1.0) * size - 1.0) / 2.0


def _finite(found: Expr, last: Expr, attrs: Attrs) -> Expr:
    """A coordinate that is in the image, or that is mirrored into it: of NaN, and of infinities that are mirrored, it is 0."""
    zero = const(0.0, found.dtype)
    if attrs.mode != "linear" or attrs.padding == "zeros":
        return found
    if attrs.padding == "border":
        return select(found > zero, minimum(found, last), zero)
    return select(call("abs", found) < const(_FAR, found.dtype), found, zero)


def _weights(mode: str, t: Any) -> list[Any]:
    """Of the elements along one axis, for a point that is `t` from the one below."""
    if mode == "linear":
        return [t * -1.0 + 1.0, t]
    return cubic_weights(t, CUBIC_COEFFICIENT) if mode == "cubic" else [t]


def _compute_grid_taps(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    grid = tensors[0]
    assert grid is not None
    sizes, points, dtype = exprs(attrs.sizes), types[0].shape, types[0].dtype
    wide = f64 if grid.dtype is f64 else f32
    places, weights = [], []
    for axis, size in enumerate(sizes):
        stride = product(sizes[axis + 1 :])

        def base_and_rest(at: Sequence[Expr], axis: int = axis, size: Expr = size) -> tuple[Expr, Expr]:
            where = cast(grid[(*at, const(len(sizes) - 1 - axis))], wide)
            found = _finite(_coordinate(where, cast(size, wide), attrs.align_corners), cast(size, wide) - 1.0, attrs)
            base = call("round" if attrs.mode == "nearest" else "floor", found)
            return base, found - base

        for k, offset in enumerate(OFFSETS[attrs.mode]):

            def place(*at: Expr, of: Any = base_and_rest, by: int = offset, size: Expr = size, stride: Expr = stride) -> Expr:
                return _place(of(at)[0] + float(by), size, stride, dtype, attrs)

            def weight(*at: Expr, of: Any = base_and_rest, k: int = k) -> Expr:
                return _weights(attrs.mode, of(at)[1])[k]

            places.append(te.compute(points, place, f"place{axis}_{k}"))
            weights.append(te.compute(points, weight, f"weight{axis}_{k}"))
    return tuple(places) if attrs.mode == "nearest" else (*places, *weights)


def _place(at: Expr, size: Expr, stride: Expr, dtype: DType, attrs: Attrs) -> Expr:
    """What the whole number `at` is as a place along an axis."""
    wide, last = at.dtype, cast(size, at.dtype) - 1.0
    if attrs.padding == "reflection":
        at = _reflected(at, size, attrs.align_corners)
    index = cast(maximum(minimum(at, last), const(0.0, wide)), dtype)
    # a size is rounded in f32, and NaN is 0 as an integer
    index = maximum(minimum(index, cast(size - 1, dtype)), const(0, dtype)) * cast(stride, dtype)
    if attrs.padding != "zeros":
        return index
    return select(logical_and(at >= 0.0, at <= last), index, const(_OUTSIDE[dtype], dtype))


def _reflected(at: Expr, size: Expr, align_corners: bool) -> Expr:
    """A whole number, mirrored at the ends of an axis as often as needed: at its first and last element, or at their outer edges.

    What is off by a period, by rounding, is so at an end, where both sides of the mirror are the same element.
    """
    period = cast(maximum(2 * size - 2, const(1)) if align_corners else 2 * size, at.dtype)
    rest = at - call("floor", at / period) * period
    return minimum(rest, period - rest if align_corners else period - 1.0 - rest)


def _run_grid_taps(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, ...]:
    grid, sizes = arrays[0], ints(attrs.sizes)
    assert grid is not None
    wide = np.float64 if grid.dtype == np.float64 else np.float32
    dtype = np.int32 if np.prod(sizes, dtype=object) < -_OUTSIDE[i32] else np.int64
    places, weights = [], []
    with np.errstate(all="ignore"):
        for axis, size in enumerate(sizes):
            where = grid[..., len(sizes) - 1 - axis].astype(wide)
            found = _coordinate(where, wide(size), attrs.align_corners)
            if attrs.mode == "linear" and attrs.padding == "border":
                found = np.where(found > 0, np.minimum(found, wide(size - 1)), wide(0))
            elif attrs.mode == "linear" and attrs.padding == "reflection":
                found = np.where(np.abs(found) < wide(_FAR), found, wide(0))
            base = np.rint(found) if attrs.mode == "nearest" else np.floor(found)
            for offset, weight in zip(OFFSETS[attrs.mode], _weights(attrs.mode, found - base), strict=True):
                at = base + wide(offset)
                index = np.nan_to_num(at, nan=0.0).clip(-(2.0**60), 2.0**60).astype(np.int64)
                if attrs.padding == "reflection":
                    period = max(2 * size - 2, 1) if attrs.align_corners else 2 * size
                    index = np.minimum(index % period, (-index if attrs.align_corners else -1 - index) % period)
                index = index.clip(0, size - 1) * int(np.prod(sizes[axis + 1 :]))
                if attrs.padding == "zeros":
                    index = np.where((at >= 0) & (at <= size - 1), index, _OUTSIDE[i32 if dtype is np.int32 else i64])
                places.append(index.astype(dtype))
                weights.append(np.asarray(weight, wide))
    return tuple(places) if attrs.mode == "nearest" else (*places, *weights)


def _grids(rng: np.random.Generator) -> Iterator[Sample]:
    grid = rng.uniform(-1.6, 1.6, (2, 3, 7, 2)).astype(np.float32)
    for mode, padding, align_corners in itertools.product(OFFSETS, PADDINGS, (False, True)):
        yield [grid], {"sizes": (4, 5), "mode": mode, "padding": padding, "align_corners": align_corners}
    yield [rng.uniform(-2, 2, (1, 2, 3, 2, 3)).astype(np.float32)], {"sizes": (3, 1, 4), "padding": "reflection", "align_corners": True}
    yield [rng.uniform(-2, 2, (1, 9, 1))], {"sizes": (6,)}


register(
    OpDef(
        "grid_taps",
        _infer_grid_taps,
        _run_grid_taps,
        _compute_grid_taps,
        {"sizes": REQUIRED, "mode": "linear", "padding": "zeros", "align_corners": False},
        samples=_grids,
    )
)


def _choices(attrs: Attrs) -> list[tuple[int, ...]]:
    """For each element that a point is made of, the numbers of its tables, one for each axis."""
    along = itertools.product(range(attrs.taps), repeat=attrs.rank)
    return [tuple(axis * attrs.taps + k for axis, k in enumerate(chosen)) for chosen in along]


def _infer_sample_taps(types: Types, attrs: Attrs) -> TensorType:
    x, place = operand(types, 0, "sample_taps"), operand(types, 1, "sample_taps")
    count = attrs.rank * attrs.taps
    if x.rank != 3 or len(types) not in (1 + count, 1 + 2 * count):
        raise ShapeError(f"sample_taps: {x} and {len(types) - 1} tables for {attrs.taps} taps along {attrs.rank} axes")
    require_equal(place.shape[0], x.shape[0], f"grid_sample: dim 0 of the grid's places {place}")
    for index in range(2, len(types)):
        table = operand(types, index, "sample_taps")
        if table.rank != place.rank:
            raise ShapeError(f"sample_taps: tables {table} and {place}")
        for d, (dim, wanted) in enumerate(zip(table.shape, place.shape, strict=True)):
            require_equal(dim, wanted, f"sample_taps: dim {d} of table {index} {table}")
    require(x.shape[2] >= 1, f"grid_sample: an image has {x.shape[2]} elements, of which nothing can be sampled")
    return TensorType((*x.shape[:2], *place.shape[1:]), x.dtype)


def _compute_sample_taps(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, *tables = tensors
    assert x is not None and all(table is not None for table in tables)
    count, elements = attrs.rank * attrs.taps, x.shape[2]

    def element(n: Expr, c: Expr, *point: Expr) -> Expr:
        places = [table[(n, *point)] for table in tables[:count]]  # type: ignore[index]
        weights = [table[(n, *point)] for table in tables[count:]]  # type: ignore[index]
        total: Expr | None = None
        for chosen in _choices(attrs):
            place = reduce(lambda a, b: a + b, [places[t] for t in chosen])
            index = maximum(minimum(cast(place, i64), elements - 1), const(0))
            value: Expr = x[(n, c, index)]
            if attrs.zeros:
                value = select(place >= 0, value, const(0, x.dtype))
            if not weights:
                return value
            wide = f64 if f64 in (x.dtype, weights[0].dtype) else f32
            weight = reduce(lambda a, b: a * b, [cast(weights[t], wide) for t in chosen])
            total = cast(value, wide) * weight if total is None else total + cast(value, wide) * weight
        assert total is not None
        return cast(total, x.dtype)

    return te.compute(types[0].shape, element, "sample")


def _run_sample_taps(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, *tables = arrays
    assert x is not None
    count = attrs.rank * attrs.taps
    places, weights = tables[:count], tables[count:]
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * (places[0].ndim - 1))  # type: ignore[union-attr]
    total: Any = 0
    for chosen in _choices(attrs):
        place = sum(places[t].astype(np.int64) for t in chosen)  # type: ignore[union-attr]
        value = np.moveaxis(x[batch, :, np.clip(place, 0, x.shape[2] - 1)], -1, 1)
        if attrs.zeros:
            value = np.where((place >= 0)[:, None], value, np.zeros((), x.dtype))
        if not weights:
            return np.ascontiguousarray(value)
        wide = np.float64 if np.float64 in (x.dtype, weights[0].dtype) else np.float32  # type: ignore[union-attr]
        with np.errstate(all="ignore"):
            total = total + value.astype(wide) * np.prod([weights[t].astype(wide) for t in chosen], axis=0)[:, None]  # type: ignore[union-attr]
    return np.asarray(total).astype(x.dtype)


def _tap_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 3, 20)).astype(np.float32)
    for [grid], attrs in _grids(rng):
        if attrs["sizes"] == (4, 5):
            tables = _run_grid_taps([grid], Attrs(tuple({"padding": "zeros", "align_corners": False, **attrs}.items())))
            yield [x, *tables], {"rank": 2, "taps": len(OFFSETS[attrs["mode"]]), "zeros": attrs["padding"] == "zeros"}
    yield [x.astype(np.float16), np.array([[1, 19], [-5, 3]])], {"rank": 1, "taps": 1, "zeros": True}


register(
    OpDef(
        "sample_taps",
        _infer_sample_taps,
        _run_sample_taps,
        _compute_sample_taps,
        {"rank": REQUIRED, "taps": REQUIRED, "zeros": False},
        samples=_tap_samples,
    )
)
