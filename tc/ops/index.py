"""Operators whose indices are data: gathers and scatters, and numbers that must stay in a range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from tc import te
from tc.errors import InputError, ShapeError
from tc.ir.dtype import i64
from tc.ir.expr import Const, Expr, Load, Var, cast, const, equal, select
from tc.ir.graph import Attrs
from tc.ir.loop import For, LoopKind, Stmt, Store, seq
from tc.ir.types import TensorType, product
from tc.ops.common import Arrays, Tensors, Types, exprs, ints, normalize_axis, operand, require_equal, require_within
from tc.ops.registry import REQUIRED, OpDef, register
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def wrapped_index(index: Expr, dim: Expr) -> Expr:
    """An index as data: negative ones count from the end."""
    place = cast(index, i64)
    if index.dtype.kind == "uint":
        return place
    return select(place < 0, place + dim, place)


def place_of(index: Expr, axis: int, dim: Expr, is_known: bool) -> tuple[Expr, Callable[[Expr], Expr]]:
    """Where in an axis of size `dim` an index that is data points, and what makes a value depend on that being in range.

    `is_known`: it is in range as others have made sure, so that holding it there changes nothing and costs less than to check.
    """
    place = wrapped_index(index, dim)
    if is_known:
        return te.maximum(te.minimum(place, dim - 1), const(0)), lambda value: value
    message = f"index {{index}} is out of range for axis {axis} of size {{size}}"
    return place, lambda value: te.checked(value, place, dim, message, cast(index, i64))


def check_places(indices: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Indices as data, int64, those below 0 counted from the end. InputError for one outside [-size, size)."""
    places = indices.astype(np.int64)
    if indices.dtype.kind != "u":
        places = np.where(places < 0, places + size, places)
    wrong = (places < 0) | (places >= size)
    if wrong.any():
        raise InputError(f"index {indices[wrong].flat[0]} is out of range for axis {axis} of size {size}", code="TC2004")
    return places


# -- axes that are data


def _infer_part_axes(types: Types, attrs: Attrs) -> TensorType:
    x, kept, reduced = operand(types, 0, "part_axes"), exprs(attrs.kept), exprs(attrs.reduced)
    if len(kept) != x.rank or len(reduced) != x.rank:
        raise ShapeError(f"part_axes: {len(kept)} and {len(reduced)} dims for {x}")
    for d, (dim, own, other) in enumerate(zip(x.shape, kept, reduced, strict=True)):
        require_equal(own + other, dim + 1, f"part_axes: what dim {d} of {x} is parted into, and 1,")
    return TensorType((*kept, *reduced), x.dtype)


def _compute_part_axes(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    rank = len(x.shape)

    def body(*axes: Expr) -> Expr:
        places = [
            te.maximum(te.minimum(own + other, dim - 1), const(0))
            for own, other, dim in zip(axes[:rank], axes[rank:], x.shape, strict=True)
        ]
        return x[tuple(places)]

    return te.compute(types[0].shape, body, "part_axes")


def _run_part_axes(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    reduced = [d for d, size in enumerate(ints(attrs.reduced)) if size != 1]
    kept = [d for d in range(x.ndim) if d not in reduced]
    return np.ascontiguousarray(x.transpose(kept + reduced)).reshape(ints(attrs.kept) + ints(attrs.reduced))


register(
    OpDef(
        "part_axes",
        _infer_part_axes,
        _run_part_axes,
        _compute_part_axes,
        {"kept": REQUIRED, "reduced": REQUIRED},
        samples=lambda rng: iter(
            [
                ([_normal(rng, 3, 4, 5)], {"kept": (1, 4, 1), "reduced": (3, 1, 5)}),
                ([_normal(rng, 3, 4)], {"kept": (3, 1), "reduced": (1, 4)}),
                ([_normal(rng, 3, 0)], {"kept": (3, 1), "reduced": (1, 0)}),
                ([_normal(rng, 0, 2)], {"kept": (0, 1), "reduced": (1, 2)}),
            ]
        ),
    )
)


def _infer_strided_slice(types: Types, attrs: Attrs) -> TensorType:
    x, sizes = operand(types, 0, "strided_slice"), exprs(attrs.sizes)
    if len(sizes) != x.rank:
        raise ShapeError(f"strided_slice: {len(sizes)} sizes for {x}")
    for index, what in ((1, "starts"), (2, "steps")):
        given = operand(types, index, "strided_slice")
        if given.rank != 1:
            raise ShapeError(f"strided_slice: the {what} are {given}, no vector")
        require_equal(given.shape[0], const(x.rank), f"strided_slice: the number of {what}")
    require_within(sizes, x.shape, "strided_slice: the result")
    return TensorType(sizes, x.dtype)


def _compute_strided_slice(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, starts, steps = tensors
    assert x is not None and starts is not None and steps is not None

    def body(*axes: Expr) -> Expr:
        found = [
            place_of(starts[const(d)] + axis * steps[const(d)], d, dim, False)
            for d, (axis, dim) in enumerate(zip(axes, x.shape, strict=True))
        ]
        value: Expr = x[tuple(place for place, _ in found)]
        for _, checked in reversed(found):
            value = checked(value)
        return value

    return te.compute(types[0].shape, body, "strided_slice")


def _run_strided_slice(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, starts, steps = arrays
    assert x is not None and starts is not None and steps is not None
    places = [check_places(np.arange(size) * step + start, d, x.shape[d]) for d, (size, start, step) in enumerate(
        zip(ints(attrs.sizes), starts.tolist(), steps.tolist(), strict=True)
    )]
    return x[np.ix_(*places)] if places else x.copy()


register(
    OpDef(
        "strided_slice",
        _infer_strided_slice,
        _run_strided_slice,
        _compute_strided_slice,
        {"sizes": REQUIRED},
        samples=lambda rng: iter(
            [
                ([_normal(rng, 5, 4), np.array([4, 1]), np.array([-2, 1])], {"sizes": (3, 2)}),
                ([_normal(rng, 5), np.array([0]), np.array([7])], {"sizes": (0,)}),
            ]
        ),
    )
)


# -- gather


def _infer_gather(types: Types, attrs: Attrs) -> TensorType:
    x, indices = operand(types, 0, "gather"), operand(types, 1, "gather")
    axis = normalize_axis(attrs.axis, x.rank, "gather")
    return TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)


def _compute_gather(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, indices = tensors[0], tensors[1]
    assert x is not None and indices is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "gather")
    rank = len(indices.shape)

    def body(*axes: Expr) -> Expr:
        place, checked = place_of(indices[axes[axis : axis + rank]], axis, x.shape[axis], attrs.in_range)
        return checked(x[(*axes[:axis], place, *axes[axis + rank :])])

    return te.compute(types[0].shape, body, "gather")


def _run_gather(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, indices = arrays[0], arrays[1]
    assert x is not None and indices is not None
    axis = normalize_axis(attrs.axis, x.ndim, "gather")
    return np.take(x, check_places(indices, axis, x.shape[axis]), axis=axis)


register(
    OpDef(
        "gather",
        _infer_gather,
        _run_gather,
        _compute_gather,
        {"axis": 0, "in_range": False},
        samples=lambda rng: iter(
            [
                ([_normal(rng, 5, 3), np.array([[0, 4], [-1, 2]], np.int64)], {}),
                ([_normal(rng, 2, 5, 3), np.array(-2, np.int32)], {"axis": 1}),
                ([_normal(rng, 4, 3), np.zeros((0,), np.int64)], {}),
            ]
        ),
    )
)


def _compute_gather_elements(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, indices = tensors[0], tensors[1]
    assert x is not None and indices is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "gather_elements")

    def body(*axes: Expr) -> Expr:
        place, checked = place_of(indices[axes], axis, x.shape[axis], attrs.in_range)
        return checked(x[(*axes[:axis], place, *axes[axis + 1 :])])

    return te.compute(types[0].shape, body, "gather_elements")


def _run_gather_elements(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, indices = arrays[0], arrays[1]
    assert x is not None and indices is not None
    axis = normalize_axis(attrs.axis, x.ndim, "gather_elements")
    grid = list(np.indices(indices.shape))
    grid[axis] = check_places(indices, axis, x.shape[axis])
    return x[tuple(grid)]


def _infer_gather_elements(types: Types, attrs: Attrs) -> TensorType:
    x, indices = operand(types, 0, "gather_elements"), operand(types, 1, "gather_elements")
    axis = normalize_axis(attrs.axis, x.rank, "gather_elements")
    require_within(indices.shape, x.shape, "gather_elements: the index", but=axis)
    return TensorType(indices.shape, x.dtype)


register(
    OpDef(
        "gather_elements",
        _infer_gather_elements,
        _run_gather_elements,
        _compute_gather_elements,
        {"axis": 0, "in_range": False},
        samples=lambda rng: iter(
            [([_normal(rng, 3, 4), np.array([[0, -1], [2, 1]], np.int64)], {"axis": 1})]
        ),
    )
)


def _infer_gather_nd(types: Types, attrs: Attrs) -> TensorType:
    x, indices = operand(types, 0, "gather_nd"), operand(types, 1, "gather_nd")
    if indices.rank <= attrs.batch_dims or not isinstance(indices.shape[-1], Const):
        raise ShapeError(f"gather_nd: indices {indices} with {attrs.batch_dims} batch dims need one more, the last, that is known")
    depth = int(indices.shape[-1])
    if depth + attrs.batch_dims > x.rank:
        raise ShapeError(f"gather_nd: indices {indices} choose {depth} axes of {x}")
    for d in range(attrs.batch_dims):
        require_equal(indices.shape[d], x.shape[d], f"gather_nd: dim {d} of the indices")
    return TensorType((*indices.shape[:-1], *x.shape[attrs.batch_dims + depth :]), x.dtype)


def _compute_gather_nd(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, indices = tensors[0], tensors[1]
    assert x is not None and indices is not None
    depth, batch, rank = int(indices.shape[-1]), attrs.batch_dims, len(indices.shape) - 1

    def body(*axes: Expr) -> Expr:
        found = [place_of(indices[(*axes[:rank], const(k))], batch + k, x.shape[batch + k], attrs.in_range) for k in range(depth)]
        value: Expr = x[(*axes[:batch], *(place for place, _ in found), *axes[rank:])]
        for _, checked in reversed(found):
            value = checked(value)
        return value

    return te.compute(types[0].shape, body, "gather_nd")


def _run_gather_nd(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, indices = arrays[0], arrays[1]
    assert x is not None and indices is not None
    batch, depth = attrs.batch_dims, indices.shape[-1]
    outer = indices.shape[:-1]
    grid = np.indices(outer)
    chosen = [grid[k] for k in range(batch)] + [
        check_places(indices[..., k], batch + k, x.shape[batch + k]) for k in range(depth)
    ]
    return x[tuple(chosen)] if chosen else np.broadcast_to(x, (*outer, *x.shape)).copy()


register(
    OpDef(
        "gather_nd",
        _infer_gather_nd,
        _run_gather_nd,
        _compute_gather_nd,
        {"batch_dims": 0, "in_range": False},
        samples=lambda rng: iter(
            [
                ([_normal(rng, 3, 4, 2), np.array([[0, 1], [-1, 3]], np.int64)], {}),
                ([_normal(rng, 2, 3, 4), np.array([[1], [0]], np.int64)], {"batch_dims": 1}),
            ]
        ),
    )
)


# -- scatter


_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _np_scatter(x: np.ndarray, places: Sequence[np.ndarray], updates: np.ndarray, reduction: str) -> np.ndarray:
    """x with its elements, or parts, at places combined with the updates there, one after the other in order."""
    result = x.copy()
    where = (np.zeros(updates.shape[: updates.ndim - x.ndim + len(places)], np.int64), *places)  # some place, even where x is all of it
    if reduction == "none":
        result[np.newaxis][where] = updates
    else:
        _REDUCTIONS[reduction].at(result[np.newaxis], where, updates)
    return result


def combine_updates(reduction: str, old: Expr, new: Expr) -> Expr:
    """What an update makes of an element."""
    match reduction:
        case "none":
            return new
        case "add":
            return te.maximum(old, new) if old.dtype.is_bool else old + new  # as in numpy
        case "mul":
            return te.minimum(old, new) if old.dtype.is_bool else old * new
        case "max":
            return te.maximum(old, new)
        case "min":
            return te.minimum(old, new)
    raise ShapeError(f"scatter: unknown reduction {reduction!r}")


def loops_over(extents: Sequence[Expr], body: Callable[..., Stmt], prefix: str) -> Stmt:
    """Nested serial loops around `body(*indices)`."""
    variables = [Var(f"{prefix}{k}", i64) for k in range(len(extents))]
    stmt = body(*variables)
    for variable, extent in reversed(list(zip(variables, extents, strict=True))):
        stmt = For(variable, extent, stmt)
    return stmt


COPY_LANES = 16
"""Elements side by side that are copied, or updated, at once."""


def vectors_over(extents: Sequence[Expr], body: Callable[..., Stmt], prefix: str) -> Stmt:
    """`loops_over`, the last axis in vectors as far as they go: there iterations have nothing to do with each other."""
    *outer, last = extents
    if isinstance(last, Const) and last.value < COPY_LANES:
        return loops_over(extents, body, prefix)

    def along(*axes: Expr) -> Stmt:
        whole = last // COPY_LANES
        few, lane, rest = (Var(f"{prefix}{len(outer)}{name}", i64) for name in ("", "_lane", "_rest"))
        vectors = For(few, whole, For(lane, const(COPY_LANES), body(*axes, few * COPY_LANES + lane), LoopKind.VECTORIZED))
        return seq(vectors, For(rest, last - whole * COPY_LANES, body(*axes, whole * COPY_LANES + rest)))

    return loops_over(outer, along, prefix)


def rows_together(extents: Sequence[Expr], body: Callable[..., Stmt], prefix: str) -> Stmt:
    """`vectors_over`, rows that are known to be short as one with those after them: for what goes through memory from end to end."""
    last = extents[-1]
    if not isinstance(last, Const) or last.value >= COPY_LANES or len(extents) < 2:
        return vectors_over(extents, body, prefix)
    known = list(takewhile(lambda extent: isinstance(extent, Const) and extent.value > 0, reversed(extents[1:])))
    outer = extents[: -1 - len(known)]

    def together(*axes: Expr) -> Stmt:
        *around, place = axes
        inside: list[Expr] = []
        for extent in known:
            inside.insert(0, place % extent)
            place = place // extent
        return body(*around, place, *inside)

    return vectors_over([*outer, product(tuple(extents[len(outer) :]))], together, prefix)


Places = tuple[tuple[Expr, ...], Callable[[Expr], Expr]]
"""The indices of an element, and what makes a value depend on their being in range."""


def _scatter(
    x: Tensor, updates: Tensor, extents: Sequence[Expr], place: Callable[[Sequence[Expr]], Places], reduction: str, name: str, in_rows: bool
) -> Tensor:
    """Copy `x`, then apply the updates of the first `extents` along each axis one after the other, in row-major order.

    `in_rows`: indices choose whole rows, whose elements stay in order.
    """

    def body(out: Any) -> Stmt:
        def copy(*axes: Expr) -> Stmt:
            return Store(out, axes, x[axes])

        def update(*axes: Expr) -> Stmt:
            at, checked = place(axes)
            return Store(out, at, checked(combine_updates(reduction, Load(out, at), updates[axes])))

        updated = vectors_over(extents, update, "u") if in_rows else loops_over(extents, update, "u")
        return seq(rows_together(x.shape, copy, "c") if x.shape else copy(), updated)

    return te.raw([(name, x.shape, x.dtype)], body, name)[0]


def _compute_scatter_elements(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, indices, updates = tensors[0], tensors[1], tensors[2]
    assert x is not None and indices is not None and updates is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "scatter_elements")

    def place(axes: Sequence[Expr]) -> Places:
        index, checked = place_of(indices[tuple(axes)], axis, x.shape[axis], attrs.in_range)
        return (*axes[:axis], index, *axes[axis + 1 :]), checked

    return _scatter(x, updates, indices.shape, place, attrs.reduction, "scatter_elements", False)


def _run_scatter_elements(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, indices, updates = arrays
    assert x is not None and indices is not None and updates is not None
    axis = normalize_axis(attrs.axis, x.ndim, "scatter_elements")
    places = list(np.indices(indices.shape))
    places[axis] = check_places(indices, axis, x.shape[axis])
    return _np_scatter(x, places, updates[tuple(map(slice, indices.shape))], attrs.reduction)


def _infer_scatter_elements(types: Types, attrs: Attrs) -> TensorType:
    x, indices, updates = (operand(types, k, "scatter_elements") for k in range(3))
    axis = normalize_axis(attrs.axis, x.rank, "scatter_elements")
    require_within(indices.shape, x.shape, "scatter_elements: the index", but=axis)
    require_within(indices.shape, updates.shape, "scatter_elements: the index, against the updates")
    return x


register(
    OpDef(
        "scatter_elements",
        _infer_scatter_elements,
        _run_scatter_elements,
        _compute_scatter_elements,
        {"axis": 0, "reduction": "none", "in_range": False},
        samples=lambda rng: iter(
            [
                ([_normal(rng, 3, 4), np.array([[0, -1]], np.int64), _normal(rng, 1, 2)], {"axis": 1}),
                ([_normal(rng, 4), np.array([1, 1, 2], np.int64), _normal(rng, 3)], {"reduction": "add"}),
            ]
        ),
    )
)


def _compute_scatter_nd(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, indices, updates = tensors[0], tensors[1], tensors[2]
    assert x is not None and indices is not None and updates is not None
    depth, rank = int(indices.shape[-1]), len(indices.shape) - 1

    def place(axes: Sequence[Expr]) -> Places:
        found = [place_of(indices[(*axes[:rank], const(k))], k, x.shape[k], attrs.in_range) for k in range(depth)]

        def checked(value: Expr) -> Expr:
            for _, check in reversed(found):
                value = check(value)
            return value

        return (*(index for index, _ in found), *axes[rank:]), checked

    return _scatter(x, updates, updates.shape, place, attrs.reduction, "scatter_nd", depth < len(x.shape))


def _run_scatter_nd(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, indices, updates = arrays
    assert x is not None and indices is not None and updates is not None
    places = [check_places(indices[..., k], k, x.shape[k]) for k in range(indices.shape[-1])]
    return _np_scatter(x, places, updates, attrs.reduction)


def _infer_scatter_nd(types: Types, attrs: Attrs) -> TensorType:
    x, indices = operand(types, 0, "scatter_nd"), operand(types, 1, "scatter_nd")
    if not indices.rank or not isinstance(indices.shape[-1], Const):
        raise ShapeError(f"scatter_nd: indices {indices} need a last dim that is known")
    if int(indices.shape[-1]) > x.rank:
        raise ShapeError(f"scatter_nd: indices {indices} choose {int(indices.shape[-1])} axes of {x}")
    updates, wanted = operand(types, 2, "scatter_nd"), (*indices.shape[:-1], *x.shape[int(indices.shape[-1]) :])
    if updates.rank != len(wanted):
        raise ShapeError(f"scatter_nd: updates {updates} for indices {indices} into {x}")
    for d, (dim, size) in enumerate(zip(updates.shape, wanted, strict=True)):
        require_equal(dim, size, f"scatter_nd: dim {d} of the updates")
    return x


register(
    OpDef(
        "scatter_nd",
        _infer_scatter_nd,
        _run_scatter_nd,
        _compute_scatter_nd,
        {"reduction": "none", "in_range": False},
        samples=lambda rng: iter(
            [
                ([_normal(rng, 4, 3), np.array([[1], [-1]], np.int64), _normal(rng, 2, 3)], {}),
                ([_normal(rng, 4), np.array([[1], [1]], np.int64), _normal(rng, 2)], {"reduction": "max"}),
            ]
        ),
    )
)


# -- numbers that must stay in a range


def _compute_check_range(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    (limit,) = exprs((attrs.limit,))
    lowest = "-{size}" if attrs.from_end else "0"
    message = f"{attrs.what} {{index}} is out of range: it must be at least {lowest} and below {{size}}"

    def element(*axes: Expr) -> Expr:
        given = cast(x[axes], i64)
        place = wrapped_index(x[axes], limit) if attrs.from_end else given
        return te.checked(cast(place, x.dtype) if attrs.from_end else x[axes], place, limit, message, given)

    return te.compute(x.shape, element, "check_range")


def _run_check_range(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    limit = int(attrs.limit)
    lowest = -limit if attrs.from_end else 0
    wrong = (x < lowest) | (x >= limit)
    if wrong.any():
        raise InputError(
            f"{attrs.what} {x[wrong].flat[0]} is out of range: it must be at least {lowest} and below {limit}",
            code="TC2004",
        )
    return np.where(x < 0, x + x.dtype.type(limit), x)


register(
    OpDef(
        "check_range",
        lambda types, attrs: operand(types, 0, "check_range"),
        _run_check_range,
        _compute_check_range,
        {"limit": REQUIRED, "what": "number", "from_end": False},  # from_end: numbers below 0 count from the limit
        samples=lambda rng: iter(
            [
                ([np.array([0, 3, 1], np.int32)], {"limit": 4}),
                ([np.array([7], np.int64)], {"limit": 8}),
                ([np.array([-8, 7, -1, 0], np.int64)], {"limit": 8, "from_end": True}),
            ]
        ),
    )
)


# -- one hot


def _compute_one_hot(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    indices, values = tensors[0], tensors[1]
    assert indices is not None and values is not None
    axis = normalize_axis(attrs.axis, types[0].rank, "one_hot")
    (depth,) = exprs((attrs.depth,))

    def body(*axes: Expr) -> Expr:
        place = wrapped_index(indices[(*axes[:axis], *axes[axis + 1 :])], depth)
        return select(equal(place, axes[axis]), values[const(1)], values[const(0)])

    return te.compute(types[0].shape, body, "one_hot")


def _infer_one_hot(types: Types, attrs: Attrs) -> TensorType:
    indices, values = operand(types, 0, "one_hot"), operand(types, 1, "one_hot")
    axis = normalize_axis(attrs.axis, indices.rank + 1, "one_hot")
    if values.rank != 1:
        raise ShapeError(f"one_hot: the values are {values}, but must have 1 dim")
    require_equal(values.shape[0], const(2), "one_hot: the number of values")
    return TensorType((*indices.shape[:axis], *exprs((attrs.depth,)), *indices.shape[axis:]), values.dtype)


def _run_one_hot(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    indices, values = arrays[0], arrays[1]
    assert indices is not None and values is not None
    depth = int(attrs.depth)
    places = np.trunc(indices).astype(np.int64) if indices.dtype.kind == "f" else indices.astype(np.int64)
    places = np.where(places < 0, places + depth, places)
    hot = np.expand_dims(places, attrs.axis) == np.arange(depth).reshape(
        [-1 if d == attrs.axis % (indices.ndim + 1) else 1 for d in range(indices.ndim + 1)]
    )
    return np.where(hot, values[1], values[0])


register(
    OpDef(
        "one_hot",
        _infer_one_hot,
        _run_one_hot,
        _compute_one_hot,
        {"depth": REQUIRED, "axis": -1},
        samples=lambda rng: iter(
            [
                ([np.array([0, -1, 7], np.int64), np.array([0.5, 2.0], np.float32)], {"depth": 4}),
                ([np.array([[1, 0]], np.int32), np.array([0, 1], np.int64)], {"depth": 3, "axis": 1}),
            ]
        ),
    )
)
