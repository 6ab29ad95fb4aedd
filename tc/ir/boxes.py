"""Nests of stores that copy a box of a global buffer, as the tensor memory accelerator of a device does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tc.ir.arith import Facts, linear_coefficients, prove, simplify
from tc.ir.box_copies import BOX_ROW_BYTES, MOST_BOX_DIMS
from tc.ir.expr import TRUE, Buffer, Const, Expr, FloorDiv, FloorMod, Le, Load, Lt, Select, Var, conjuncts, const, equal
from tc.ir.loop import Store
from tc.ir.node import walk
from tc.ir.types import product
from tc.ir.uses import variables

MOST_BOX_EXTENT = 256
"""Elements of a box along a dim. Source: CUDA driver API, cuTensorMapEncodeTiled."""

STRIDE_BYTES = 16
"""What strides of a tensor that boxes are copied from are multiples of."""


@dataclass(frozen=True, eq=False)
class Box:
    """A nest of stores as a box: of the source, how that is seen, where it begins, its extents; and where it goes."""

    source: Buffer
    view: tuple[Expr, ...]
    corner: tuple[Expr, ...]
    box: tuple[Expr, ...]
    indices: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class BoxView:
    """An element of a buffer, which is seen as an array of `shape`: at which indices it is there."""

    source: Buffer
    shape: tuple[Expr, ...]
    indices: tuple[Expr, ...]


def box_of(loops: Sequence[tuple[Var, int]], store: Store, facts: Facts) -> Box | None:
    """The box that a perfect nest of loops copies; None where it does something else, or hardware has no such copy.

    Each loop moves along one dim of a global buffer, element by element, and all of them, in the same order, through the last dims of a
    shared one from element to element; all that is left out by a condition is outside of the global buffer, and becomes zeros.
    """
    for var, extent in loops:
        facts = facts.with_range(var, const(extent))
    moving = [var for var, _ in loops]
    view = boxed_view(store.value, moving, facts)
    if view is None or view.source.dtype != store.buffer.dtype:
        return None
    forms = [linear_coefficients(simplify(index, facts), moving) for index in (*view.indices, *store.indices)]
    if any(form is None for form in forms):
        return None
    known = [form for form in forms if form is not None]
    rank = len(view.indices)
    source, target, sizes = known[:rank], known[rank:], dict(loops)
    if not _moves_in_order([form[0] for form in source], moving) or not _fills_last_dims(store.buffer, target, loops):
        return None
    box = tuple(const(next((sizes[var] for var in form[0]), 1)) for form in source)
    if not _is_hardware_box(view.source, box):
        return None
    return Box(view.source, view.shape, tuple(form[1] for form in source), box, tuple(form[1] for form in target))


def boxed_view(value: Expr, moving: Sequence[Var], facts: Facts) -> BoxView | None:
    """The element that a value is, and zero just where there is none; None for values that boxes do not bring, whose elements differ in the
    values of `moving`.

    Neighbouring dims are seen as one where that makes indices simpler, as all pixels of an image are one row, and where there are more than
    hardware knows, of which some do not move. What is left out by a condition is outside of the view.
    """
    condition, load = copied_element(value)
    if load is None or load.buffer.scope != "global" or load.buffer.strides is not None or load.buffer.dtype.bits < 8:
        return None
    parts = [part for part in conjuncts(condition) if part is not TRUE]
    dims = [(simplify(index, facts), dim) for index, dim in zip(load.indices, load.buffer.shape, strict=True)]
    for k in reversed(range(len(dims) - 1)):
        joined = _as_one(dims[k], dims[k + 1], facts)
        checked = any(_is_inside(part, *dim, facts) for part in parts for dim in dims[k : k + 2])
        if not checked and _quotients(joined[0]) < _quotients(dims[k][0]) + _quotients(dims[k + 1][0]):
            dims[k : k + 2] = [joined]
    while len(dims) > MOST_BOX_DIMS:
        still = [not variables(index) & {*moving} and not any(_is_inside(part, index, dim, facts) for part in parts) for index, dim in dims]
        pair = next((k for k in range(len(dims) - 1) if still[k] and still[k + 1]), None)
        if pair is None:
            return None
        dims[pair : pair + 2] = [_as_one(dims[pair], dims[pair + 1], facts)]
    inside = all(any(_is_inside(part, *dim, facts) for dim in dims) for part in parts)
    shape = tuple(dim for _, dim in dims)
    return BoxView(load.buffer, shape, tuple(index for index, _ in dims)) if inside and has_box_strides(load.buffer, shape, facts) else None


def _as_one(first: tuple[Expr, Expr], second: tuple[Expr, Expr], facts: Facts) -> tuple[Expr, Expr]:
    """The index and the size of two neighbouring dims that are one."""
    return simplify(first[0] * second[1] + second[0], facts), simplify(first[1] * second[1], facts)


def _quotients(index: Expr) -> int:
    """How many quotients and remainders an index is made of."""
    return sum(isinstance(node, (FloorDiv, FloorMod)) for node in walk(index))


def copied_element(value: Expr) -> tuple[Expr, Load | None]:
    """The element that a value is where a condition holds, and zero elsewhere; None where it is something else."""
    match value:
        case Load():
            return TRUE, value
        case Select(condition=condition, true_value=Load() as load, false_value=Const() as other) if other == const(0, other.dtype):
            return condition, load
    return TRUE, None


def _moves_in_order(steps: list[dict[Var, Expr]], variables: list[Var]) -> bool:
    """Whether each loop moves along one index, by one, and later loops along later ones."""
    moving = [var for step in steps for var in step]
    return moving == variables and all(len(step) <= 1 and all(by == const(1) for by in step.values()) for step in steps)


def _is_hardware_box(source: Buffer, box: tuple[Expr, ...]) -> bool:
    """Whether there is a copy of boxes of these extents: rows of 128 bytes."""
    extents = [int(extent.value) for extent in box if isinstance(extent, Const)]
    size = source.dtype.size_bytes
    return max(extents) <= MOST_BOX_EXTENT and extents[-1] * size == BOX_ROW_BYTES


def has_box_strides(source: Buffer, shape: Sequence[Expr], facts: Facts) -> bool:
    """Whether boxes of a buffer can be copied, by where its rows begin: at multiples of 16 bytes, whatever its symbolic dims are."""
    pieces = STRIDE_BYTES // source.dtype.size_bytes
    strides = [product(tuple(shape[d:])) for d in range(1, len(shape))]
    return bool(shape) and all(prove(equal(stride % pieces, 0), facts) is True for stride in strides)


def _fills_last_dims(buffer: Buffer, forms: Sequence[tuple[dict[Var, Expr], Expr]], loops: Sequence[tuple[Var, int]]) -> bool:
    """Whether loops go from element to element through the last dims, all of these but the first, along which they may stay in a part."""
    last, left = [(dim, form) for dim, form in zip(buffer.shape, forms, strict=True)], list(loops)
    while last and not last[0][1][0]:
        last.pop(0)
    for k, (dim, (steps, first)) in reversed([*enumerate(last)]):
        rows = 1
        for _ in steps:
            var, extent = left.pop() if left else (None, 1)
            if var is None or steps.get(var) != const(rows):
                return False
            rows *= extent
        if k and not (isinstance(dim, Const) and rows == dim.value and first == const(0)):
            return False
    return not left


def _is_inside(part: Expr, index: Expr, dim: Expr, facts: Facts) -> bool:
    """Whether a condition fails just where an index is too small, or too large, for a dim."""
    match part:
        case Lt(lhs=lhs, rhs=rhs):
            return simplify((lhs - rhs) - (index - dim), facts) == const(0)
        case Le(lhs=lhs, rhs=rhs):
            return simplify((rhs - lhs) - index, facts) == const(0)
    return False
