"""What deformable convolutions multiply their weights with (Dai et al., 2017): taps of windows, each moved by data, between elements.

Where a tap lies and how much of each of the four elements around it counts is the same for many channels: `moved_taps` finds that out once,
and `sample_moved` takes these elements from images whose channels come last, so that channels are what a vector is of.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import bounds
from tc.ir.dtype import f32, f64, i32, i64
from tc.ir.expr import Const, Expr, add, call, cast, const, logical_and, maximum, minimum, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import Arrays, Tensors, Types, exprs, ints, operand, require_equal
from tc.ops.registry import REQUIRED, OpDef, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]

CORNERS = tuple(itertools.product((0, 1), repeat=2))
"""The elements around a point, by how far they are from the one at or above and before it."""

_OUTSIDE = -1
"""The place of an element outside of the image: it is zero."""

_INT32 = 1 << 31

_NUM_TABLES = 2 * len(CORNERS)
"""What `moved_taps` finds of each tap: places, and how much each counts."""


def _infer_moved_taps(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    offset = operand(types, 0, "moved_taps")
    sizes, taps = exprs(attrs.sizes), exprs(attrs.taps)
    if offset.rank != 4 or not offset.dtype.is_float or len(sizes) != 2 or len(taps) != 2:
        raise ShapeError(f"moved_taps: offsets {offset} of {attrs.taps} taps in images of {attrs.sizes}")
    count, out = product(taps), offset.shape[2:]
    require_equal(offset.shape[1], count * (2 * attrs.parts), f"moved_taps: dim 1 of the offsets {offset}")
    shape, elements = (offset.shape[0], const(attrs.parts), count, *out), product(sizes)
    place = i32 if isinstance(elements, Const) and elements.value < _INT32 else i64
    weight = f64 if offset.dtype is f64 else f32
    return (*[TensorType(shape, place)] * len(CORNERS), *[TensorType(shape, weight)] * len(CORNERS))


def _compute_moved_taps(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    offset = tensors[0]
    assert offset is not None
    (height, width), taps, place, weight = exprs(attrs.sizes), exprs(attrs.taps), types[0].dtype, types[-1].dtype
    sizes, count, wide = (height, width), types[0].shape[2], f64 if offset.dtype is f64 else f32

    def coordinate(axis: int, at: Sequence[Expr]) -> Expr:
        n, part, tap, *out = at
        along = tap // taps[1] if axis == 0 else tap % taps[1]
        unmoved = out[axis] * attrs.strides[axis] + along * attrs.dilations[axis] - attrs.pads[axis]
        ends = exprs((types[0].shape[3 + axis], taps[axis]))
        reach = bounds(ends[0] * attrs.strides[axis] + ends[1] * attrs.dilations[axis] + abs(attrs.pads[axis])).hi
        if reach is not None and reach < _INT32:
            unmoved = cast(unmoved, i32)  # of which vectors become floats
        return cast(offset[(n, (part * count + tap) * 2 + axis, *out)], wide) + cast(unmoved, wide)

    def element(axis: int, by: int, at: Sequence[Expr]) -> tuple[Expr, Expr, Expr]:
        """Whether the element is in the image, its index along the axis, and how much of it counts."""
        found = coordinate(axis, at)
        base = call("floor", found)
        rest, index = found - base, base + float(by)
        none, last = const(0.0, wide), cast(sizes[axis] - 1, wide)
        held = cast(maximum(minimum(index, last), none), place)
        held = maximum(minimum(held, cast(sizes[axis] - 1, place)), const(0, place))  # a size is rounded in f32, and NaN is any integer
        return logical_and(index >= 0.0, index <= last), held, rest if by else rest * -1.0 + 1.0

    def corner_place(corner: tuple[int, int]) -> Tensor:
        def body(*at: Expr) -> Expr:
            (in_rows, row, _), (in_columns, column, _) = (element(axis, by, at) for axis, by in enumerate(corner))
            return select(logical_and(in_rows, in_columns), row * cast(width, place) + column, const(_OUTSIDE, place))

        return te.compute(types[0].shape, body, "place{}{}".format(*corner))

    def corner_weight(corner: tuple[int, int]) -> Tensor:
        def body(*at: Expr) -> Expr:
            (_, _, row), (_, _, column) = (element(axis, by, at) for axis, by in enumerate(corner))
            return cast(row * column, weight)

        return te.compute(types[0].shape, body, "weight{}{}".format(*corner))

    return (*map(corner_place, CORNERS), *map(corner_weight, CORNERS))


def _run_moved_taps(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, ...]:
    offset = arrays[0]
    assert offset is not None
    sizes, taps = ints(attrs.sizes), ints(attrs.taps)
    n, _, *out = offset.shape
    wide = np.float64 if offset.dtype == np.float64 else np.float32
    dtype = np.int32 if sizes[0] * sizes[1] < _INT32 else np.int64
    moved = offset.astype(wide).reshape(n, attrs.parts, taps[0], taps[1], 2, *out)
    inside, index, share = [], [], []
    with np.errstate(all="ignore"):
        for axis in (0, 1):
            tap = np.arange(taps[axis]).reshape([-1 if d == axis else 1 for d in range(4)])
            line = np.arange(out[axis]).reshape([-1 if d == axis else 1 for d in range(2)])
            unmoved = line * attrs.strides[axis] + tap * attrs.dilations[axis] - attrs.pads[axis]
            found = moved[:, :, :, :, axis] + unmoved.astype(wide)
            base = np.floor(found)
            rest = found - base
            corners = [base, base + wide(1)]
            inside.append([(each >= 0) & (each <= sizes[axis] - 1) for each in corners])
            index.append([np.nan_to_num(each).clip(0, sizes[axis] - 1).astype(dtype) for each in corners])
            share.append([wide(1) - rest, rest])
    shape = (n, attrs.parts, taps[0] * taps[1], *out)
    elements = [index[0][a] * dtype(sizes[1]) + index[1][b] for a, b in CORNERS]
    within = [inside[0][a] & inside[1][b] for a, b in CORNERS]
    places = [np.where(held, place, dtype(_OUTSIDE)).reshape(shape) for held, place in zip(within, elements, strict=True)]
    with np.errstate(all="ignore"):
        weights = [(share[0][a] * share[1][b]).reshape(shape) for a, b in CORNERS]
    return (*places, *weights)


def _moved_samples(rng: np.random.Generator) -> Iterator[Sample]:
    attrs = {"sizes": (5, 4), "taps": (2, 3), "parts": 2, "strides": (2, 1), "dilations": (1, 2), "pads": (1, 0)}
    offset = 2 * rng.standard_normal((2, 24, 3, 9)).astype(np.float32)
    offset[0, :4, 0] = [[np.nan] * 9, [np.inf] * 9, [-np.inf] * 9, [1e30] * 9]
    yield [offset], attrs
    yield [offset.clip(-9, 9).astype(np.float16)], attrs
    yield [offset.astype(np.float64)], {**attrs, "sizes": (1, 1)}
    yield [offset[:, :, :0]], attrs


register(
    OpDef(
        "moved_taps",
        _infer_moved_taps,
        _run_moved_taps,
        _compute_moved_taps,
        {"sizes": REQUIRED, "taps": REQUIRED, "parts": 1, "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0)},
        apart=True,
        samples=_moved_samples,
    )
)


def _infer_sample_moved(types: Types, attrs: Attrs) -> TensorType:
    x, place = operand(types, 0, "sample_moved"), operand(types, 1, "sample_moved")
    unit, groups = exprs((attrs.unit, attrs.groups))
    if x.rank != 3 or place.rank != 5 or len(types) not in (_NUM_TABLES + 1, _NUM_TABLES + 2) or not x.dtype.is_float:
        raise ShapeError(f"sample_moved: {x} and {len(types) - 1} tables such as {place}")
    require_equal(place.shape[0], x.shape[0], f"sample_moved: dim 0 of the places {place}")
    for index in range(2, _NUM_TABLES + 1):
        for d, (dim, wanted) in enumerate(zip(operand(types, index, "sample_moved").shape, place.shape, strict=True)):
            require_equal(dim, wanted, f"sample_moved: dim {d} of table {index}")
    require(x.shape[1] >= 1, f"sample_moved: an image has {x.shape[1]} elements, of which nothing can be sampled")
    n, parts, taps, *out = place.shape
    if (mask := types[-1] if len(types) > _NUM_TABLES + 1 else None) is not None:
        if mask.rank != 4:
            raise ShapeError(f"sample_moved: a mask {mask} of places {place}")
        for d, dim in enumerate((n, parts * taps, *out)):
            require_equal(mask.shape[d], dim, f"sample_moved: dim {d} of the mask {mask}")
    units, of_part = exprs((attrs.units, attrs.units_of_part))
    require_equal(groups * units * unit, x.shape[2], f"sample_moved: the channels of {x} in {attrs.groups} groups")
    require_equal(parts * of_part, groups * units, f"sample_moved: the units of channels of {x} in {parts} parts")
    return TensorType((x.shape[0], groups, *out, taps, units, unit), x.dtype)


def _compute_sample_moved(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, *tables = tensors[: _NUM_TABLES + 1]
    assert x is not None and all(table is not None for table in tables)
    places, weights = tables[: len(CORNERS)], tables[len(CORNERS) :]
    mask = tensors[-1] if len(tensors) > _NUM_TABLES + 1 else None
    unit, units, of_part = exprs((attrs.unit, attrs.units, attrs.units_of_part))
    wide = f64 if f64 in (x.dtype, weights[0].dtype, x.dtype if mask is None else mask.dtype) else f32  # type: ignore[union-attr]

    def element(n: Expr, group: Expr, row: Expr, column: Expr, tap: Expr, own: Expr, c: Expr) -> Expr:
        number = group * units + own
        entry = (n, minimum(number // of_part, places[0].shape[1] - 1), tap, row, column)  # type: ignore[union-attr]
        total: Expr | None = None
        for place_of, weight_of in zip(places, weights, strict=True):
            place: Expr = place_of[entry]  # type: ignore[index]
            held = maximum(minimum(cast(place, i64), x.shape[1] - 1), const(0))
            value = cast(select(place >= 0, x[(n, held, number * unit + c)], const(0, x.dtype)), wide)
            term = value * cast(weight_of[entry], wide)  # type: ignore[index]
            total = term if total is None else add(total, term)
        assert total is not None
        if mask is not None:  # of the sum: an element that does not count would not be nothing by an infinite mask
            total = total * cast(mask[(n, entry[1] * places[0].shape[2] + tap, row, column)], wide)  # type: ignore[union-attr]
        return cast(total, x.dtype)

    return te.compute(types[0].shape, element, "sample")


def _run_sample_moved(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, *tables = arrays[: _NUM_TABLES + 1]
    assert x is not None
    places, weights = tables[: len(CORNERS)], tables[len(CORNERS) :]
    mask = arrays[-1] if len(arrays) > _NUM_TABLES + 1 else None
    unit, units, groups, of_part = ints((attrs.unit, attrs.units, attrs.groups, attrs.units_of_part))
    wide = np.float64 if np.float64 in [array.dtype for array in (x, weights[0], mask) if array is not None] else np.float32
    batch = np.arange(len(x)).reshape(-1, 1, 1, 1, 1)
    n, _, taps, *out = places[0].shape  # type: ignore[union-attr]
    result = np.zeros((n, groups, *out, taps, units, unit), x.dtype)
    for group, own in np.ndindex(groups, units):
        number = group * units + own
        part, channels = number // of_part, slice(number * unit, (number + 1) * unit)
        total: Any = 0
        for place, weight in zip(places, weights, strict=True):
            at = place[:, part]  # type: ignore[index]
            value = x[batch[..., 0], at.clip(0, x.shape[1] - 1).astype(np.int64), channels].astype(wide)
            with np.errstate(all="ignore"):
                total = total + np.where((at >= 0)[..., None], value, wide(0)) * weight[:, part, ..., None].astype(wide)  # type: ignore[index]
        if mask is not None:
            with np.errstate(all="ignore"):
                total = total * mask[:, part * taps : (part + 1) * taps, ..., None].astype(wide)
        result[:, group, :, :, :, own] = np.moveaxis(total, 1, 3).astype(x.dtype)
    return result


def _sampled_samples(rng: np.random.Generator) -> Iterator[Sample]:
    defaults = {"parts": 1, "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0)}
    x = rng.standard_normal((2, 20, 8)).astype(np.float32)
    x[0, 0] = [np.inf, np.nan, -np.inf, 1, 0, -0.0, 3e38, 1e-45]
    for parts, groups, unit in ((1, 1, 8), (2, 1, 4), (1, 2, 4), (4, 2, 2)):
        offset = 2 * rng.standard_normal((2, 12 * parts, 2, 3)).astype(np.float32)
        tables = _run_moved_taps([offset], Attrs(tuple({**defaults, "sizes": (5, 4), "taps": (2, 3), "parts": parts}.items())))
        attrs = {"groups": groups, "units": 8 // groups // unit, "unit": unit, "units_of_part": 8 // unit // parts}
        yield [x, *tables], attrs
        if parts == 1:
            yield [x.clip(-9, 9).astype(np.float16), *tables], attrs
        mask = rng.standard_normal((2, 6 * parts, 2, 3)).astype(np.float32)
        mask[0, :3, 0] = [[np.inf] * 3, [-np.inf] * 3, [np.nan] * 3]
        yield [x[:, ::-1].copy(), *tables, mask], attrs


register(
    OpDef(
        "sample_moved",
        _infer_sample_moved,
        _run_sample_moved,
        _compute_sample_moved,
        {"groups": REQUIRED, "units": REQUIRED, "unit": REQUIRED, "units_of_part": REQUIRED},
        apart=True,  # what moves channels to the end would be done anew for each element that is taken
        samples=_sampled_samples,
    )
)
