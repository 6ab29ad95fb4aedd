"""Shrink scratch buffers to the part that is alive at once, and allocate them as far inside as possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tc.ir.arith import Facts, linear_coefficients, proves, simplify
from tc.ir.bounds import poly_bounds
from tc.ir.expr import Buffer, Const, Expr, Load, Var, const, logical_and, logical_not
from tc.ir.loop import (
    Alloc,
    For,
    If,
    LoopKind,
    PrimFunc,
    Stmt,
    Store,
    While,
    annotation,
    inner_statements,
    row_padding_of,
)
from tc.ir.node import Node, binders, children, replace, transform
from tc.ir.polynomial import polynomial
from tc.ir.uses import reads_memory, touches, variables
from tc.passes.loop.handed_on import hands_on
from tc.passes.manager import loop_pass
from tc.schedule.region import interval_of
from tc.schedule.tree import statements


@loop_pass
def compact_buffers(func: PrimFunc) -> PrimFunc:
    """Move each allocation to the innermost loop body that holds all accesses, and make the buffer as small as these need.

        T = alloc(f32[n])                               for io in range(n // 8):
        for io in range(n // 8):                            T = alloc(f32[8])
            for j in range(8): T[io * 8 + j] = ...   =>     for j in range(8): T[j] = ...
            for j in range(8): ... T[io * 8 + j]            for j in range(8): ... T[j]

    A dimension of whose accesses no interval is known is kept whole. Rows get the padding that `pad_rows` asks for.
    Expects a PrimFunc without blocks.
    """
    places = [place for place in statements(func.body) if isinstance(place.stmt, Alloc)]
    allocs = [place.stmt for place in places if isinstance(place.stmt, Alloc)]
    body = func.body
    padding = {row_padding_of(alloc.buffer): annotation(func, row_padding_of(alloc.buffer), 0) for alloc in allocs}
    for place, alloc in zip(places, allocs, strict=True):
        extra = padding[row_padding_of(alloc.buffer)]
        assert isinstance(extra, int), "a number of elements"
        body = _compact(body, alloc.buffer, Facts.of(func.facts), extra, sum(isinstance(stmt, (For, While)) for stmt in place.path))
    return replace(func, body=body, attrs=tuple(attr for attr in func.attrs if attr[0] not in padding))


_IN_ORDER = (LoopKind.SERIAL, LoopKind.UNROLLED)
"""Kinds of loops whose iterations may hand something on."""


@dataclass(frozen=True, eq=False)
class _Access:
    """A load or a store inside the root: the loops around it, and the conditions that it is under and that do not read memory."""

    indices: tuple[Expr, ...]
    loops: tuple[For, ...] = ()
    guarded: tuple[Expr, ...] = ()


def _compact(body: Stmt, buffer: Buffer, facts: Facts, padding: int, around: int) -> Stmt:
    stripped = _without_alloc(body, buffer)
    found = _common_path(stripped, buffer, facts, around)
    if found is None:
        return stripped
    outer, conditions = found
    for loop in outer:
        facts = facts.with_range(loop.var, loop.extent)
    inside = facts
    for condition in conditions:
        inside = inside.assume(condition)
    root = outer[-1].body if outer else stripped
    accesses = list(_accesses(root, buffer, _Access(())))
    lows, extents = [], []
    bound = {loop.var for loop in outer}
    for d, dim in enumerate(buffer.shape):
        low, extent = _dimension(accesses, d, dim, inside, whole_tiles=buffer.scope == "register")
        if inside is not facts and not isinstance(extent, Const):  # what holds where it is used need not where it is allocated
            low, extent = _dimension(accesses, d, dim, facts, whole_tiles=buffer.scope == "register")
        if not _is_known_before(low, extent, bound):
            low, extent = const(0), dim
        lows.append(low)
        extents.append(extent)
    if padding:
        extents[-1] = simplify(extents[-1] + padding, facts)
    small = replace(buffer, shape=tuple(extents))

    def rewrite(node: Node) -> Node | None:
        if isinstance(node, (Load, Store)) and node.buffer is buffer:
            indices = tuple(index - low for index, low in zip(node.indices, lows, strict=True))
            return replace(node, buffer=small, indices=indices)
        return None

    def has_buffer(node: Node) -> bool:
        return buffer in binders(node)

    new_root = Alloc(small, transform(root, rewrite, has_buffer))
    return transform(stripped, lambda node: new_root if node is root else None, has_buffer) if outer else new_root


def _is_known_before(low: Expr, extent: Expr, bound: set[Var]) -> bool:
    """Whether the size depends on dims alone, and neither it nor the offset on what is in memory."""
    return not reads_memory(low) and not reads_memory(extent) and not variables(extent) & bound


def _without_alloc(body: Stmt, buffer: Buffer) -> Stmt:
    return transform(
        body,
        lambda node: node.body if isinstance(node, Alloc) and node.buffer is buffer else None,
        lambda node: isinstance(node, Stmt) and buffer in binders(node),
    )


def _common_path(body: Stmt, buffer: Buffer, facts: Facts, around: int) -> tuple[tuple[For, ...], tuple[Expr, ...]] | None:
    """The loops around all accesses, outermost first, and conditions under which all of them are; None when there are no accesses.

    Those inside a loop that hands on in the buffer what later iterations read do not count. The outermost `around`
    loops, which are around its allocation already, do.
    Conditions that read memory are left out: what is read again may differ.
    """
    loops: list[For] = []
    conditions: list[Expr] = []
    if not touches(body, buffer):
        return None
    current = body
    while True:
        inner = [child for child in inner_statements(current) if touches(child, buffer)]
        direct = isinstance(current, Store) or (
            isinstance(current, (For, If))
            and any(touches(child, buffer) for child in children(current) if isinstance(child, Expr))
        )
        if direct or len(inner) != 1:
            break
        if isinstance(current, (For, While)):
            if around <= 0 and _may_hand_on(current, buffer, facts):
                break
            around -= 1
        if isinstance(current, For):
            loops.append(current)
            facts = facts.with_range(current.var, current.extent)
        if isinstance(current, If) and inner[0] is current.then_body and not reads_memory(current.condition):
            conditions.append(current.condition)
        current = inner[0]
    return tuple(loops), tuple(conditions)


def _may_hand_on(loop: For | While, buffer: Buffer, facts: Facts) -> bool:
    return isinstance(loop, While) or (loop.kind in _IN_ORDER and hands_on(loop, buffer, facts))


def _accesses(stmt: Node, buffer: Buffer, around: _Access) -> Iterator[_Access]:
    if isinstance(stmt, (Load, Store)) and stmt.buffer is buffer:
        yield _Access(stmt.indices, around.loops, around.guarded)
    for child in children(stmt):
        if not touches(child, buffer):
            continue
        inside = around
        match stmt:
            case For():
                inside = _Access((), (*around.loops, stmt), around.guarded)
            case If(condition=condition) if child is not condition and not reads_memory(condition):
                holds = condition if child is stmt.then_body else logical_not(condition)
                inside = _Access((), around.loops, (*around.guarded, holds))
        yield from _accesses(child, buffer, inside)


def _dimension(
    accesses: list[_Access], d: int, dim: Expr, facts: Facts, whole_tiles: bool
) -> tuple[Expr, Expr]:
    """(offset, extent) of dimension d; (0, dim) when it cannot shrink.

    With `whole_tiles` the extent covers the loops even where guards cut them short, so that a vector never straddles two rows; so it does
    along vectorized loops.
    """
    whole = (const(0), dim)
    found: tuple[Expr, Expr] | None = None  # lowest index, one past the highest
    for access in accesses:
        span = _span(access, d, facts)
        if span is None:
            return whole
        if not whole_tiles:
            span = _without_guarded(span, access, d, facts)
        if found is None:
            found = span
            continue
        low = _smaller(found[0], span[0], facts)
        high = _larger(found[1], span[1], facts)
        if low is None or high is None:
            return whole
        found = (low, high)
    assert found is not None
    extent = simplify(found[1] - found[0], facts)
    if whole_tiles and isinstance(extent, Const):
        return found[0], extent
    if not isinstance(extent, Const) and not proves(extent <= dim, facts):
        return whole
    if isinstance(extent, Const) and isinstance(dim, Const) and extent.value >= dim.value:
        return whole
    return found[0], extent


def _span(access: _Access, d: int, facts: Facts) -> tuple[Expr, Expr] | None:
    index = access.indices[d]
    for loop in access.loops:
        facts = facts.with_range(loop.var, loop.extent)
    index = simplify(index, facts)
    form = linear_coefficients(index, [loop.var for loop in access.loops])
    if form is None:
        part = interval_of(index, access.loops, facts)
        return None if part is None else (part.low, simplify(part.low + part.extent, facts))
    coefficients, low = form
    high = low + 1
    for loop in access.loops:
        coefficient = coefficients.get(loop.var)
        if coefficient is None:
            continue
        if not proves(coefficient >= 0, facts):
            return None
        high = high + coefficient * (loop.extent - 1)
    if {loop.var for loop in access.loops} & variables(high):  # an extent that another one of the loops decides
        return None
    return simplify(low, facts), simplify(high, facts)


def _without_guarded(span: tuple[Expr, Expr], access: _Access, d: int, facts: Facts) -> tuple[Expr, Expr]:
    """A span of constant extent without what the conditions around the access leave out at its end."""
    low, high = span
    index = access.indices[d]
    extent = simplify(high - low, facts)
    vectors = {loop.var for loop in access.loops if loop.kind is LoopKind.VECTORIZED}
    if not access.guarded or not isinstance(extent, Const) or extent.value <= 1 or vectors & variables(index):
        return span
    for loop in access.loops:
        facts = facts.with_range(loop.var, loop.extent)
    facts = facts.assume(logical_and(*access.guarded)).counting_guards()
    last = poly_bounds(polynomial(simplify(index - low, facts)), facts).hi
    return span if last is None or not 0 <= last < extent.value - 1 else (low, simplify(low + (last + 1), facts))


def _smaller(a: Expr, b: Expr, facts: Facts) -> Expr | None:
    if proves(a <= b, facts):
        return a
    return b if proves(b <= a, facts) else None


def _larger(a: Expr, b: Expr, facts: Facts) -> Expr | None:
    if proves(a >= b, facts):
        return a
    return b if proves(b >= a, facts) else None
