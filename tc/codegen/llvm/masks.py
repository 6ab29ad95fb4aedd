"""Which masks a register tile, or a task's own scratch, does not need."""

from __future__ import annotations

from collections.abc import Iterator

from tc.ir.arith import Facts, prove, simplify
from tc.ir.expr import Expr, Load, Lt, Select, Var, conjuncts, logical_not
from tc.ir.loop import Alloc, For, If, LoopKind, Stmt, Store, inner_statements
from tc.ir.node import Node, children, walk

SCOPES = ("register", "local")
"""Of buffers that nobody else sees."""


def has_spare_lanes(alloc: Alloc, facts: Facts) -> bool:
    """Whether lanes that are masked off hold nothing: every access to the buffer is guarded by one and the same bound on its last index.
    In memory, rather than in registers, they must be there.

        if l < 4: T[i, l] = 0.0                            T[i, l] = 0.0        l of 16 lanes: what is in T[i, 4:] is never read
        if l < 4: T[i, l] = T[i, l] + a[i] * b[l]    =>    T[i, l] = T[i, l] + a[i] * (b[l] if l < 4 else 0.0)
        if l < 4: c[i, l] = T[i, l]                        if l < 4: c[i, l] = T[i, l]

    Storing such lanes too spares the blend with what was there, which would be in the chain of every sum; and in memory what is stored
    under a mask is not there for the next load before it has reached the cache.
    """
    if alloc.buffer.scope not in SCOPES:
        return False
    if alloc.buffer.scope != "register" and not _has_guards(alloc.body):
        return False
    inside = {node.var for node in walk(alloc.body) if isinstance(node, For)}
    bounds, places = set[Expr](), set[Expr]()
    for lane, indices, guards in _accesses(alloc.body, alloc, None, ()):
        bound = _bound(lane, indices[-1], guards) if lane is not None and indices else None
        if bound is None or not inside.isdisjoint(walk(bound)):
            return False
        bounds.add(bound)
        places.add(indices[-1])
    return len(bounds) == 1 and (alloc.buffer.scope == "register" or _are_there(alloc, places, facts))


def _has_guards(stmt: Stmt) -> bool:
    return isinstance(stmt, If) or any(map(_has_guards, inner_statements(stmt)))


def _are_there(alloc: Alloc, places: set[Expr], facts: Facts) -> bool:
    """Whether the last index of a buffer is within it in all lanes."""
    for node in walk(alloc.body):
        if isinstance(node, For):
            facts = facts.with_range(node.var, node.extent)
    return all(prove(place < alloc.buffer.shape[-1], facts) is True for place in places)


def _accesses(
    node: Node, alloc: Alloc, lane: Var | None, guards: tuple[Expr, ...]
) -> Iterator[tuple[Var | None, tuple[Expr, ...], tuple[Expr, ...]]]:
    """The vectorized variable, the indices and the guards of each access to the tile."""
    match node:
        case For(var=var, kind=LoopKind.VECTORIZED) if lane is None:
            lane = var
        case Load(buffer=buffer) | Store(buffer=buffer) if buffer is alloc.buffer:
            yield lane, node.indices, guards
        case If(condition=condition, then_body=body, else_body=other):
            yield from _accesses(condition, alloc, lane, guards)
            yield from _accesses(body, alloc, lane, (*guards, *conjuncts(condition)))
            if other is not None:
                yield from _accesses(other, alloc, lane, (*guards, logical_not(condition)))
            return
        case Select(condition=condition, true_value=yes, false_value=no):
            yield from _accesses(condition, alloc, lane, guards)
            yield from _accesses(yes, alloc, lane, (*guards, *conjuncts(condition)))
            yield from _accesses(no, alloc, lane, (*guards, logical_not(condition)))
            return
    for child in children(node):
        yield from _accesses(child, alloc, lane, guards)


def _bound(lane: Var, index: Expr, guards: tuple[Expr, ...]) -> Expr | None:
    """What the guard on the lanes says that `index` is below; None where there is no such guard, or it says more."""
    match [guard for guard in guards if any(node is lane for node in walk(guard))]:
        case [Lt(lhs=place, rhs=end)]:
            bound = simplify(end - place + index)
            return None if any(node is lane for node in walk(bound)) else bound
    return None
