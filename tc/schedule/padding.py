"""Leaving padding out of sums: iterations in which one factor of what is added is known to be 0."""

from __future__ import annotations

from tc.errors import ScheduleError
from tc.ir.arith import linear_coefficients, simplify, slack_of
from tc.ir.expr import (
    FALSE,
    TRUE,
    Add,
    Cast,
    Const,
    Expr,
    Le,
    Load,
    Lt,
    Mul,
    Select,
    Var,
    conjuncts,
    const,
    is_const,
    logical_and,
    logical_not,
)
from tc.ir.loop import AxisKind, Block, For, If, Let, PrimFunc, Store, annotation
from tc.ir.node import Node, substitute
from tc.ir.uses import reads_memory, variables
from tc.schedule.tree import Place, axis_loops, block_names, facts_at, find_block, fresh_names, replace_stmt, writers_of

LONGEST_WAY = 4
"""Buffers through which padding is followed to where it is made."""


def skip_padding(func: PrimFunc, block: str) -> PrimFunc:
    """Leave out iterations of the reduction loops of a sum in which all that the loops inside would add is padding.

        P[i] = select(4 <= i and i < n + 4, X[i - 4], 0)        for i0: for k in 3:
        for i0: for k in 3: for i1 in 8:                  =>        let inside = 4 <= i0 * 8 + 7 + k * 4 and i0 * 8 + k * 4 < n + 4:
            C[i0 * 8 + i1] += P[i0 * 8 + i1 + k * 4] * W[k]              if inside: for i1 in 8: C[...] += ...

    The condition is asked once, as a variable: loops are not cut in two for it. Exact where the other factors are finite; an infinity or
    NaN times padding would be NaN. Raises ScheduleError unless the block, whose initialisation is apart, is a sum that has such
    iterations.
    """
    place = find_block(func, block)
    if _term(place.block) is None:
        raise ScheduleError(f"skip_padding: block {block} is not a sum")
    if place.block.init is not None:
        raise ScheduleError(f"skip_padding: block {block} initialises what it sums")
    condition = logical_and(*parts_inside(func, place))
    if condition is TRUE:
        raise ScheduleError(f"skip_padding: of what block {block} adds, no iteration of its reduction loops is padding alone")
    used = variables(condition)
    loop = [each for each in place.loops if each.var in used][-1]
    if set(block_names(loop)) != {block}:
        raise ScheduleError(f"skip_padding: loop {loop.var.name} is around other blocks than {block}")
    (name,) = fresh_names(func, [f"{block}_inside"])
    flag = Var(name, condition.dtype)
    body = Let(flag, condition, If(flag, loop.body))
    depth = place.path.index(loop) + 1
    path = (*place.path, place.stmt)
    return replace_stmt(func, Place(path[depth], path[:depth]), body)


def _term(stmt: Block) -> Expr | None:
    """What a block adds to what it has; None for what is no sum."""
    store = stmt.body
    if not isinstance(store, Store) or not isinstance(store.value, Add) or annotation(stmt, "monoid") != "sum":
        return None
    sides = (store.value.lhs, store.value.rhs), (store.value.rhs, store.value.lhs)
    own = [term for total, term in sides if isinstance(total, Load) and (total.buffer, total.indices) == (store.buffer, store.indices)]
    return own[0] if own else None


def parts_inside(func: PrimFunc, place: Place) -> list[Expr]:
    """What holds, each by itself, wherever the loops inside of the last reduction loop around a sum add anything but padding: comparisons
    of the other loops' variables."""
    stmt, term = place.block, _term(place.block)
    kinds = axis_loops(place)
    reducing = [k for k, loop in enumerate(place.loops) if kinds.get(loop.var, AxisKind.SPATIAL) is not AxisKind.SPATIAL]
    if term is None or not reducing:
        return []
    inner = place.loops[reducing[-1] + 1 :]
    values: dict[Node, Node] = {axis.var: axis.value for axis in stmt.axes}
    facts = facts_at(func, Place(inner[0] if inner else stmt, place.path[: place.path.index(place.loops[reducing[-1]]) + 1]))
    around = {loop.var for loop in place.loops[: reducing[-1] + 1]}
    parts: list[Expr] = []
    for part in conjuncts(_support(func, term)):
        weaker = _for_any(substitute(part, values), inner)
        weaker = TRUE if weaker is None else simplify(weaker, facts)
        if variables(weaker) & around and not reads_memory(weaker):
            parts.append(weaker)
    return parts


def _support(func: PrimFunc, value: Expr, way: int = LONGEST_WAY) -> Expr:
    """A condition without which a value is 0, as far as it can be told."""
    match value:
        case Const():
            return FALSE if is_const(value, 0) else TRUE
        case Cast(operand=operand):
            return _support(func, operand, way)
        case Mul(lhs=lhs, rhs=rhs):
            return logical_and(_support(func, lhs, way), _support(func, rhs, way))
        case Select(condition=condition, true_value=chosen, false_value=Const(value=0)):
            return logical_and(condition, _support(func, chosen, way))
        case Select(condition=condition, true_value=Const(value=0), false_value=chosen):
            return logical_and(logical_not(condition), _support(func, chosen, way))
        case Load() if way and value.buffer not in func.buffers:
            store = _maker(func, value)
            if store is not None:
                made = _support(func, store.value, way - 1)
                return substitute(made, dict(zip(store.indices, value.indices, strict=True)))
    return TRUE


def _maker(func: PrimFunc, load: Load) -> Store | None:
    """The one store that makes the elements of a scratch buffer, where it does each at the axes of its block."""
    writers = writers_of(func, load.buffer)
    if len(writers) != 1 or not isinstance(store := writers[0].body, Store) or writers[0].init is not None:
        return None
    own = {axis.var for axis in writers[0].axes}
    is_plain = len(set(store.indices)) == len(store.indices) and own.issuperset(store.indices)
    return store if is_plain and variables(store.value) & own <= set(store.indices) else None


def _for_any(part: Expr, loops: tuple[For, ...]) -> Expr | None:
    """A comparison that holds where `part` does in any iteration of some loops; None where it is not linear in them."""
    inside = variables(part) & {loop.var for loop in loops}
    if not inside:
        return part
    if not isinstance(part, (Lt, Le)):
        return None
    form = linear_coefficients(slack_of(part), inside)
    if form is None:
        return None
    coefficients, most = form
    for loop in loops:
        coefficient = coefficients.get(loop.var)
        if coefficient is None:
            continue
        if not isinstance(coefficient, Const) or not isinstance(loop.extent, Const):
            return None
        most = most + max(int(coefficient.value), 0) * (loop.extent - 1)
    return Le(const(0), most)
