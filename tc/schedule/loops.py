"""Primitives that reshape loops: split, fuse, reorder, and what kind a loop is."""

from __future__ import annotations

from collections.abc import Sequence

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove, simplify
from tc.ir.dtype import i64
from tc.ir.expr import Const, Expr, Var, ceildiv, const, equal, logical_and, mul
from tc.ir.loop import AnnotationValue, AxisKind, Block, For, LoopKind, PrimFunc, Stmt
from tc.ir.node import Node, replace, substitute, walk
from tc.schedule.tree import (
    Place,
    axis_loops,
    find_block,
    find_loop,
    fresh_name,
    map_blocks,
    replace_stmt,
    statements,
)


def facts_at(func: PrimFunc, place: Place) -> Facts:
    """What is known at a place: the dims' promises and the ranges of the loops around it."""
    facts = Facts.of(func.facts)
    for loop in place.loops:
        facts = facts.with_range(loop.var, loop.extent)
    return facts


def split(func: PrimFunc, loop: str, factor: int, names: tuple[str, str]) -> PrimFunc:
    """Split a loop of extent n into an outer loop and an inner one of `factor` iterations.

        for i in range(n):          for io in range((n + f - 1) // f):
            S(i)              =>        for ii in range(f):
                                            S(io * f + ii) where io * f + ii < n

    The condition goes into the blocks, and is left out when n % f == 0 is proven.
    Raises ScheduleError if the loop is vectorized or bound, or the factor is not positive.
    Source: `split` of Halide and of TVM.
    """
    place = find_loop(func, loop)
    stmt = place.stmt
    assert isinstance(stmt, For)
    if factor < 1:
        raise ScheduleError(f"split: the factor of loop {loop} is {factor}, must be at least 1")
    if stmt.kind in (LoopKind.VECTORIZED, LoopKind.BOUND):
        raise ScheduleError(f"split: loop {loop} is {stmt.kind.name.lower()}; split it before that")
    outer_name, inner_name = names
    facts = facts_at(func, place)
    outer = Var(fresh_name(func, outer_name), i64)
    inner = Var(fresh_name(func, inner_name), i64)
    value = outer * factor + inner
    exact = prove(equal(stmt.extent % factor, 0), facts) is True
    body = substitute(stmt.body, {stmt.var: value})
    if not exact:
        body = map_blocks(body, lambda block: replace(block, where=logical_and(block.where, value < stmt.extent)))
    outer_extent = simplify(ceildiv(stmt.extent, factor), facts)
    nest = For(outer, outer_extent, For(inner, const(factor), body, stmt.kind), stmt.kind, span=stmt.span)
    return replace_stmt(func, place, nest)


def fuse(func: PrimFunc, outer: str, inner: str, name: str) -> PrimFunc:
    """Join two directly nested loops into one.

        for i in range(n):           for ij in range(n * m):
            for j in range(m):  =>       S(ij // m, ij % m)
                S(i, j)

    Raises ScheduleError if the inner loop is not the whole body of the outer one, or its extent depends on it.
    """
    place = find_loop(func, outer)
    first = place.stmt
    assert isinstance(first, For)
    second = first.body
    if not isinstance(second, For) or second.var.name != inner:
        raise ScheduleError(f"fuse: loop {inner} is not directly inside loop {outer}")
    if any(node is first.var for node in walk(second.extent)):
        raise ScheduleError(f"fuse: the extent of loop {inner} depends on loop {outer}")
    fused = Var(fresh_name(func, name), i64)
    values: dict[Node, Node] = {first.var: fused // second.extent, second.var: fused % second.extent}
    extent = simplify(mul(first.extent, second.extent), facts_at(func, place))
    return replace_stmt(func, place, For(fused, extent, substitute(second.body, values), first.kind, span=first.span))


def reorder(func: PrimFunc, loops: Sequence[str]) -> PrimFunc:
    """Bring loops of one perfect nest into the given order, outermost first; loops of the nest that are not named stay.

        for i: for j: for k: S   =>   for k: for i: for j: S        (reorder k, i, j)

    Raises ScheduleError if the loops do not form a perfect nest, or an extent would depend on an inner loop.
    """
    places = [find_loop(func, name) for name in loops]
    outermost = min(places, key=lambda place: len(place.path))
    chain = _perfect_nest(outermost.stmt)
    names = [loop.var.name for loop in chain]
    missing = [name for name in loops if name not in names]
    if missing:
        raise ScheduleError(f"reorder: loop {missing[0]} is not in the perfect nest of loop {names[0]}")
    depth = max(names.index(name) for name in loops) + 1
    nest = chain[:depth]
    wanted = iter([chain[names.index(name)] for name in loops])
    ordered = [next(wanted) if loop.var.name in loops else loop for loop in nest]
    seen: set[Var] = set()
    for loop in ordered:
        later = {other.var for other in ordered} - seen
        if any(node in later for node in walk(loop.extent)):
            raise ScheduleError(f"reorder: the extent of loop {loop.var.name} depends on a loop that would be inside it")
        seen.add(loop.var)
    body = nest[-1].body
    for loop in reversed(ordered):
        body = replace(loop, body=body)
    return replace_stmt(func, outermost, body)


def _perfect_nest(stmt: Stmt) -> list[For]:
    chain = []
    while isinstance(stmt, For):
        chain.append(stmt)
        stmt = stmt.body
    return chain


def _check_independent(func: PrimFunc, place: Place, what: str) -> None:
    """Only spatial axes of the blocks inside may use the loop."""
    loop = place.stmt
    assert isinstance(loop, For)
    for inner in statements(func.body):
        if isinstance(inner.stmt, Block) and loop in inner.path:
            kind = axis_loops(inner).get(loop.var, AxisKind.SPATIAL)
            if kind is not AxisKind.SPATIAL:
                raise ScheduleError(
                    f"{what}: loop {loop.var.name} drives a {kind.value} axis of block {inner.stmt.name}; "
                    "use rfactor first"
                )


def set_kind(func: PrimFunc, loop: str, kind: LoopKind, thread: str = "") -> PrimFunc:
    """Mark how the iterations of a loop are carried out.

    Parallel, vectorized and bound loops must drive spatial axes only; a vectorized loop must have a constant extent.
    """
    place = find_loop(func, loop)
    stmt = place.stmt
    assert isinstance(stmt, For)
    if kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.BOUND):
        _check_independent(func, place, kind.name.lower())
    if kind is LoopKind.VECTORIZED and not isinstance(stmt.extent, Const):
        raise ScheduleError(f"vectorize: the extent of loop {loop} is {stmt.extent}; split it by a constant first")
    if kind is LoopKind.UNROLLED and not isinstance(stmt.extent, Const):
        raise ScheduleError(f"unroll: the extent of loop {loop} is {stmt.extent}; only constant extents unroll")
    return replace_stmt(func, place, replace(stmt, kind=kind, thread=thread))


def annotate_loop(func: PrimFunc, loop: str, key: str, value: AnnotationValue) -> PrimFunc:
    """Attach a note to a loop; a note of the same name is replaced."""
    place = find_loop(func, loop)
    stmt = place.stmt
    assert isinstance(stmt, For)
    kept = tuple(item for item in stmt.annotations if item[0] != key)
    return replace_stmt(func, place, replace(stmt, annotations=(*kept, (key, value))))


def annotate_block(func: PrimFunc, block: str, key: str, value: AnnotationValue) -> PrimFunc:
    """Attach a note to a block; a note of the same name is replaced."""
    place = find_block(func, block)
    stmt = place.stmt
    assert isinstance(stmt, Block)
    kept = tuple(item for item in stmt.annotations if item[0] != key)
    return replace_stmt(func, place, replace(stmt, annotations=(*kept, (key, value))))


def loops_of(func: PrimFunc, block: str) -> tuple[str, ...]:
    """Names of the loops around a block, outermost first."""
    return tuple(loop.var.name for loop in find_block(func, block).loops)


def extent_of(func: PrimFunc, loop: str) -> Expr:
    stmt = find_loop(func, loop).stmt
    assert isinstance(stmt, For)
    return stmt.extent


