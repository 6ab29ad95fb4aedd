"""Tensors of which a part along one axis is written anew, at a place that data say, as caches of attention are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.dtype import i64
from tc.ir.expr import Expr, cast, const, logical_and, maximum, minimum, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, operand, require_equal
from tc.ops.registry import REQUIRED, OpDef, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _infer(types: Types, attrs: Attrs) -> TensorType:
    """Updates begin where others have made sure; what would lie behind the end is not written, or at the front if `circular`."""
    x, update = operand(types, 0, "write_along"), operand(types, 1, "write_along")
    if not 0 < attrs.axis < x.rank or update.rank != x.rank or update.dtype != x.dtype:
        raise ShapeError(f"write_along: {update} along axis {attrs.axis} of {x}")
    for d, (dim, own) in enumerate(zip(x.shape, update.shape, strict=True)):
        if d != attrs.axis:
            require_equal(own, dim, f"write_along: dim {d} of the update {update}")
    require(update.shape[attrs.axis] <= x.shape[attrs.axis], f"write_along: an update {update} is longer than what it is written into, {x}")
    begins = types[2] if len(types) > 2 else None
    if begins is not None:
        if begins.rank != 1 or begins.dtype.is_float:
            raise ShapeError(f"write_along: where updates begin is {begins}")
        require_equal(begins.shape[0], x.shape[0], f"write_along: the number of places {begins}")
    return x


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, update, begins = (*tensors, None)[:3]
    assert x is not None and update is not None
    axis, size, count = attrs.axis, x.shape[attrs.axis], update.shape[attrs.axis]

    def element(*axes: Expr) -> Expr:
        begin = None if begins is None else cast(begins[axes[0]], i64)
        offset = axes[axis] if begin is None else axes[axis] - (begin % size if attrs.circular else begin)
        if attrs.circular:
            offset = select(offset < 0, offset + size, offset)
        held = maximum(minimum(offset, count - 1), const(0))
        new = update[(*axes[:axis], held, *axes[axis + 1 :])]
        return select(logical_and(offset >= 0, offset < count), new, x[axes])

    return te.compute(x.shape, element, "write_along")


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, update, begins = (*arrays, None)[:3]
    assert x is not None and update is not None
    result, axis = x.copy(), attrs.axis
    for n in range(len(x)):
        places = np.arange(update.shape[axis]) + (0 if begins is None else int(begins[n]))
        if attrs.circular:
            places = places % max(x.shape[axis], 1)
        kept = np.flatnonzero((places >= 0) & (places < x.shape[axis]))
        np.moveaxis(result[n], axis - 1, 0)[places[kept]] = np.moveaxis(update[n], axis - 1, 0)[kept]
    return result


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, update = rng.standard_normal((2, 3, 6, 4)).astype(np.float32), rng.standard_normal((2, 3, 2, 4)).astype(np.float32)
    yield [x, update, np.array([4, 1])], {"axis": 2}
    yield [x, update, np.array([5, 3])], {"axis": 2, "circular": True}
    yield [x, update], {"axis": 2}
    yield [x[:, :, 0], update[:, :1, 0], np.array([2, 0], np.int32)], {"axis": 1}
    yield [x, update[:, :, :0], np.array([2, 0])], {"axis": 2}


register(OpDef("write_along", _infer, _run, _compute, {"axis": REQUIRED, "circular": False}, samples=_samples))
