"""Cut loops that copy where what they choose between changes: in the middle of a padded image nothing is chosen any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice

from tc.ir.arith import Facts, linear_coefficients, prove, simplify, slack_of
from tc.ir.dtype import i64
from tc.ir.expr import (
    Const,
    Eq,
    Expr,
    Le,
    Load,
    Lt,
    Max,
    Min,
    Select,
    Var,
    conjuncts,
    const,
    equal,
    is_const,
    logical_and,
    maximum,
    minimum,
)
from tc.ir.loop import For, If, LoopKind, PrimFunc, Seq, Stmt, Store, inner_statements, seq
from tc.ir.node import Node, cached_on_node, children, replace, substitute, transform, walk
from tc.ir.structural import fresh_binders
from tc.ir.uses import buffers_read, buffers_written, has_choices, has_selects, reads_memory, variables
from tc.passes.loop.simplify_loops import simplify_statement
from tc.passes.manager import loop_pass

MOST_NODES = 400
"""Of a loop that is cut: there are up to three copies of it, and of those inside of its middle."""

LEAST_MIDDLE = 3
"""Iterations that the middle must have, and as many as all others together, unless cutting saves gathering vectors."""


@loop_pass
def cut_borders(func: PrimFunc) -> PrimFunc:
    """Split loops over copies into the iterations where every condition of a choice holds, and those before and after.

        for i in range(n + 2):                                        B[0] = 0.0
            B[i] = select(1 <= i and i <= n, A[i - 1], 0.0)    =>     for i in range(n): B[i + 1] = A[i]
                                                                      B[n + 1] = 0.0

    A least or largest index is a choice too. A vector at an end which would be gathered for it is copied in elements. What no iteration
    of a loop decides is asked once before it. Conditions that read memory stay, and so do loops that compute sums. Of a loop whose first
    iteration alone reads nothing that it has written, that one is apart.
    """
    return replace(func, body=_cut_rows(func.body, Facts.of(func.facts), frozenset(func.dims)))


def _cut_rows(stmt: Stmt, facts: Facts, dims: frozenset[Var]) -> Stmt:
    """`_cut`, and of a program's own loops those over the vectors of one row, which threads share: its ends are few."""
    if isinstance(stmt, Seq):
        return seq(*(_cut_rows(child, facts, dims) for child in stmt.stmts))
    if isinstance(stmt, For) and _is_shared_row(stmt):
        middle = _middle(stmt, facts, dims, LEAST_MIDDLE)
        if middle is not None:
            return _split(stmt, *middle, facts, dims)
    return _cut(stmt, facts, dims)


def _is_shared_row(loop: For) -> bool:
    """Whether threads share the vectors of a row, some of which are gathered."""
    if loop.kind is not LoopKind.PARALLEL or not (_saves_gathers(loop) and _is_copy(loop) and _is_small(loop)):
        return False
    return all(node.kind is LoopKind.VECTORIZED for node in walk(loop.body) if isinstance(node, For))


def _cut(stmt: Stmt, facts: Facts, dims: frozenset[Var], *, at_end: bool = False) -> Stmt:
    """`at_end`: before or after the middle of a loop that was cut, where unrolled loops are cut too."""
    if not has_choices(stmt):
        return stmt
    if isinstance(stmt, For):
        return _cut_loop(stmt, facts, dims, at_end)
    if isinstance(stmt, Seq):
        cut = tuple(_cut(child, facts, dims, at_end=at_end) for child in stmt.stmts)
        return stmt if cut == stmt.stmts else seq(*cut)
    parts = ((name, getattr(stmt, name, None)) for name in ("body", "then_body", "else_body"))
    return replace(stmt, **{name: _cut(child, facts, dims, at_end=at_end) for name, child in parts if isinstance(child, Stmt)})


_CUT = (LoopKind.SERIAL, LoopKind.UNROLLED, LoopKind.VECTORIZED)


def _cut_loop(loop: For, facts: Facts, dims: frozenset[Var], at_end: bool) -> Stmt:
    if loop.kind is LoopKind.SERIAL and _begins_otherwise(loop) and _is_small(loop):
        return _split_first(loop, facts, dims, at_end)
    if loop.kind in _CUT and _is_copy(loop) and _is_small(loop):
        return _cut_copy(loop, facts, dims, at_end)
    return _cut_inside(loop, facts, dims, at_end)


def _cut_inside(loop: For, facts: Facts, dims: frozenset[Var], at_end: bool) -> Stmt:
    return replace(loop, body=_cut(loop.body, facts.with_range(loop.var, loop.extent), dims, at_end=at_end))


def _cut_copy(loop: For, facts: Facts, dims: frozenset[Var], at_end: bool) -> Stmt:
    if loop.kind is LoopKind.VECTORIZED:
        if not _is_gathered(loop):
            return _cut_inside(loop, facts, dims, at_end)
        elements = replace(loop, kind=LoopKind.UNROLLED)
        middle = _middle(elements, facts, dims, 1)
        return loop if middle is None else _split(elements, *middle, facts, dims)
    saves_gathers = _saves_gathers(loop)
    if loop.kind is LoopKind.SERIAL or at_end or saves_gathers:
        free = [] if at_end else _decided_before(loop)
        if free:
            return If(logical_and(*free), _cut_loop(fresh_binders(_without(loop, free)), facts, dims, at_end), loop)
        half = int(loop.extent) / 2 if isinstance(loop.extent, Const) else 0
        middle = _middle(loop, facts, dims, 1 if saves_gathers else max(half, 1 if at_end else LEAST_MIDDLE))
        if middle is not None:
            return _split(loop, *middle, facts, dims)
    return _cut_inside(loop, facts, dims, at_end)


def _is_small(loop: For) -> bool:
    return len(list(islice(walk(loop), MOST_NODES))) < MOST_NODES


def _begins_otherwise(loop: For) -> bool:
    """Whether a loop reads what it has written so far, but for its first iteration: then what one iteration leaves the next one finds in a
    register."""
    if not has_selects(loop.body) or reads_memory(loop.extent):
        return False
    asks = (node.condition for node in walk(loop.body) if isinstance(node, Select))
    sides = ((part.lhs, part.rhs) for part in asks if isinstance(part, Eq))
    begins = any((a is loop.var and is_const(b, 0)) or (b is loop.var and is_const(a, 0)) for a, b in sides)
    return begins and not buffers_read(loop).isdisjoint(node.buffer for node in walk(loop.body) if isinstance(node, Store))


def _split_first(loop: For, facts: Facts, dims: frozenset[Var], at_end: bool) -> Stmt:
    """The first iteration, if there is one, and the others."""
    first = simplify_statement(substitute((one := fresh_binders(loop)).body, {one.var: const(0)}), facts)
    if prove(const(1) <= loop.extent, facts) is not True:
        first = If(const(0) < loop.extent, first)
    copy, extent = fresh_binders(loop), simplify(loop.extent - 1, facts)
    inside = facts.with_range(copy.var, extent)
    body = simplify_statement(substitute(copy.body, {copy.var: copy.var + 1}), inside)
    return seq(first, replace(copy, extent=extent, body=_cut(body, inside, dims, at_end=at_end)))


def _is_copy(loop: For) -> bool:
    """Whether all that a loop does is to store what it reads elsewhere."""
    return _is_plain(loop) and buffers_read(loop).isdisjoint(buffers_written(loop.body))


@cached_on_node
def _is_plain(stmt: Stmt) -> bool:
    """Whether there are only loops, stores and conditions at and below a statement."""
    return isinstance(stmt, (For, Seq, Store, If)) and all(map(_is_plain, inner_statements(stmt)))


def _saves_gathers(loop: For) -> bool:
    """Whether some vector inside of a loop is gathered for a choice between places."""
    return _chooses_places(loop) and any(
        _is_gathered(node) for node in walk(loop) if isinstance(node, For) and node.kind is LoopKind.VECTORIZED
    )


def _is_gathered(loop: For) -> bool:
    """Whether a choice between places to read is made for each lane of a loop over a vector."""
    if not _chooses_places(loop):
        return False
    indices = [index for node in walk(loop) if isinstance(node, Load) for index in node.indices if has_choices(index)]
    choices = [node for index in indices for node in walk(index) if _is_choice(node)]
    return any(loop.var in variables(node) for node in choices)


def _is_choice(node: Node) -> bool:
    """Whether a node is one of two indices."""
    return isinstance(node, (Max, Min, Select)) and node.dtype == i64


@cached_on_node
def _chooses_places(node: Node) -> bool:
    """Whether there is one of two indices at or below a node."""
    return _is_choice(node) or any(_chooses_places(child) for child in children(node) if has_choices(child))


def _choices(loop: For, *kinds: type[Expr]) -> Iterator[tuple[Expr, dict[Var, Expr]]]:
    """Conditions of choices inside of a loop, or of these kinds of them, one by one, with the extents of the loops inside that are around
    each."""

    def visit(node: Node, inner: dict[Var, Expr]) -> Iterator[tuple[Expr, dict[Var, Expr]]]:
        if not has_choices(node):
            return
        if isinstance(node, For):
            inner = {**inner, node.var: node.extent}
        if isinstance(node, (Select, Max, Min)) and isinstance(node, kinds or Expr):
            yield from ((part, inner) for part in _conditions(node) if not reads_memory(part))
        for child in children(node):
            yield from visit(child, inner)

    yield from visit(loop.body, {})


def _conditions(node: Select | Max | Min) -> list[Expr]:
    """What decides what a node is: where all of it holds it is its first part."""
    match node:
        case Select(condition=condition):
            return conjuncts(condition)
        case Max(lhs=lhs, rhs=rhs) if node.dtype == i64:
            return [rhs <= lhs]
        case Min(lhs=lhs, rhs=rhs) if node.dtype == i64:
            return [lhs <= rhs]
    return []


def _decided_before(loop: For) -> list[Expr]:
    """What none of the iterations of an innermost loop decides, nor those of its vectors."""
    if any(isinstance(node, For) and node.kind is not LoopKind.VECTORIZED for node in walk(loop.body)):
        return []
    found = (part for part, inner in _choices(loop, Select) if variables(part) and not variables(part) & {loop.var, *inner})
    return list(dict.fromkeys(found))


def _without(loop: For, known: Collection[Expr]) -> For:
    """The loop where conditions hold."""

    def rewrite(node: Node) -> Node | None:
        match node:
            case Select(condition=condition, true_value=chosen):
                kept = [part for part in conjuncts(condition) if part not in known]
                if len(kept) == len(conjuncts(condition)):
                    return None
                return replace(node, condition=logical_and(*kept)) if kept else chosen
            case Max(lhs=chosen) | Min(lhs=chosen) if any(part in known for part in _conditions(node)):
                return chosen
        return None

    return transform(loop, rewrite)


def _middle(loop: For, facts: Facts, dims: frozenset[Var], least: float) -> tuple[Expr, Expr, list[Expr]] | None:
    """The first and the last but one iteration in which conditions hold whatever the loops inside do, and these; None for no such part."""
    begin: list[Expr] = [const(0)]
    end, known = [loop.extent], list[Expr]()
    for part, inner in _choices(loop):
        bound = _bound(part, loop.var, inner, dims)
        if bound is not None:
            (begin if bound[0] else end).append(bound[1])
            known.append(part)
    if not known:
        return None
    last = simplify(maximum(_of_all(minimum, end), 0), facts)
    first = simplify(minimum(_of_all(maximum, begin), last), facts)
    size = simplify(last - first, facts)
    if loop.kind is LoopKind.UNROLLED and not (isinstance(first, Const) and isinstance(last, Const)):
        return None
    is_small = isinstance(size, Const) and size.value < least
    return None if is_small else (first, last, known)


def _of_all(combine: Callable[[Expr, Expr], Expr], values: Sequence[Expr]) -> Expr:
    return reduce(combine, values[1:], values[0])


def _bound(part: Expr, var: Var, inner: Mapping[Var, Expr], dims: frozenset[Var]) -> tuple[bool, Expr] | None:
    """Where a condition `a * var + rest >= 0` begins to hold (True), or stops (False)."""
    if not isinstance(part, (Lt, Le)) or part.lhs.dtype != i64:
        return None
    form = linear_coefficients(simplify(slack_of(part)), [var, *inner])
    if form is None:
        return None
    coefficients, rest = form
    own = coefficients.pop(var, None)
    for each, coefficient in coefficients.items():
        if not isinstance(coefficient, Const):
            return None
        if coefficient.value < 0:
            rest = rest + coefficient * (inner[each] - 1)
    if not isinstance(own, Const) or own.value == 0 or not variables(rest) <= dims or reads_memory(rest):
        return None
    if own.value > 0:
        return True, (rest // const(own.value)) * -1
    return False, rest // const(-own.value) + 1


def _split(loop: For, first: Expr, last: Expr, known: Collection[Expr], facts: Facts, dims: frozenset[Var]) -> Stmt:
    def part(begin: Expr, end: Expr, source: For, at_end: bool) -> Stmt:
        copy, extent = fresh_binders(source), simplify(end - begin, facts)
        if at_end and copy.kind is LoopKind.PARALLEL:
            copy = replace(copy, kind=LoopKind.SERIAL)
        if prove(equal(extent, 1), facts) is True:
            return _cut(simplify_statement(substitute(copy.body, {copy.var: begin}), facts), facts, dims, at_end=at_end)
        inside = facts.with_range(copy.var, extent)
        body = simplify_statement(substitute(copy.body, {copy.var: copy.var + begin}), inside)
        moved = replace(copy, extent=extent, body=body)
        if prove(extent <= 0, facts) is True:
            return Seq(())
        if at_end:
            return replace(moved, body=_cut(body, inside, dims, at_end=True))
        return _cut_rows(moved, facts, dims) if loop.kind is LoopKind.PARALLEL else _cut_loop(moved, facts, dims, False)

    middle = part(first, last, _without(loop, known), False)
    return seq(part(const(0), first, loop, True), middle, part(last, loop.extent, loop, True))
