"""Nests of stores that copy a box of a global buffer, as the tensor memory accelerator of a device does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tc.ir.arith import Facts, linear_coefficients, prove, simplify
from tc.ir.box_copies import BOX_ROW_BYTES
from tc.ir.expr import TRUE, Buffer, Const, Expr, Le, Load, Lt, Select, Var, conjuncts, const, equal
from tc.ir.loop import Store
from tc.ir.types import product

MOST_BOX_EXTENT = 256
"""Elements of a box along a dim. Source: CUDA driver API, cuTensorMapEncodeTiled."""

MOST_BOX_DIMS = 5

STRIDE_BYTES = 16
"""What strides of a tensor that boxes are copied from are multiples of."""


@dataclass(frozen=True, eq=False)
class Box:
    """A nest of stores as a box: of the source, where it begins, its extents; and where it goes."""

    source: Buffer
    corner: tuple[Expr, ...]
    box: tuple[Expr, ...]
    indices: tuple[Expr, ...]


def box_of(loops: Sequence[tuple[Var, int]], store: Store, facts: Facts) -> Box | None:
    """The box that a perfect nest of loops copies; None where it does something else, or hardware has no such copy.

    Each loop moves along one dim of a global buffer, element by element, and along the same of the last dims of a shared one, in the same
    order; all that is left out by a condition is outside of the global buffer, and becomes zeros.
    """
    for var, extent in loops:
        facts = facts.with_range(var, const(extent))
    load = boxed_source(store.value, facts)
    if load is None or load.buffer.dtype != store.buffer.dtype:
        return None
    variables = [var for var, _ in loops]
    forms = [linear_coefficients(simplify(index, facts), variables) for index in (*load.indices, *store.indices)]
    if any(form is None for form in forms):
        return None
    known = [form for form in forms if form is not None]
    rank = len(load.indices)
    source, target = known[:rank], known[rank:]
    if not _moves_in_order([form[0] for form in source], variables) or not _moves_in_order([form[0] for form in target], variables):
        return None
    sizes = dict(loops)
    box = tuple(const(next((sizes[var] for var in form[0]), 1)) for form in source)
    if not (_is_hardware_box(load.buffer, box) and _fills_last_dims(store.buffer, target, sizes)):
        return None
    return Box(load.buffer, tuple(form[1] for form in source), box, tuple(form[1] for form in target))


def boxed_source(value: Expr, facts: Facts) -> Load | None:
    """What a value is an element of, and zero just where there is none; None for values that boxes do not bring."""
    condition, load = _copied(value)
    if load is None or load.buffer.scope != "global" or not has_box_strides(load.buffer, facts):
        return None
    return load if all(_is_inside(part, load, facts) for part in conjuncts(condition) if part is not TRUE) else None


def _copied(value: Expr) -> tuple[Expr, Load | None]:
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


def has_box_strides(source: Buffer, facts: Facts) -> bool:
    """Whether boxes of a buffer can be copied, by where its rows begin: at multiples of 16 bytes, whatever its symbolic dims are."""
    if source.strides is not None or not 0 < len(source.shape) <= MOST_BOX_DIMS or source.dtype.bits < 8:
        return False
    pieces = STRIDE_BYTES // source.dtype.size_bytes
    strides = [product(source.shape[d:]) for d in range(1, len(source.shape))]
    return all(prove(equal(stride % pieces, 0), facts) is True for stride in strides)


def _fills_last_dims(buffer: Buffer, forms: list[tuple[dict[Var, Expr], Expr]], sizes: dict[Var, int]) -> bool:
    """Whether loops cover the last dims, but for the first of these, along which they are part of it."""
    last = [(dim, form) for dim, form in zip(buffer.shape, forms, strict=True)]
    while last and not last[0][1][0]:
        last.pop(0)
    return all(
        isinstance(dim, Const) and (sizes[next(iter(step))] if step else 1) == dim.value and first == const(0)
        for dim, (step, first) in last[1:]
    )


def _is_inside(part: Expr, load: Load, facts: Facts) -> bool:
    """Whether a condition fails only for elements that are not there."""
    match part:
        case Lt(lhs=index, rhs=extent):
            return any(
                simplify(index - at, facts) == const(0) and simplify(extent - dim, facts) == const(0)
                for at, dim in zip(load.indices, load.buffer.shape, strict=True)
            )
        case Le(lhs=Const(value=0), rhs=index):
            return any(simplify(index - at, facts) == const(0) for at in load.indices)
    return False
