"""Cut loops in two where a bounds check stops being always true, so that the main part runs without it."""

from __future__ import annotations

from dataclasses import replace as replace_fields

from tc.ir.arith import Facts, linear_coefficients, prove, simplify, slack_of
from tc.ir.expr import Const, Expr, Le, Load, Lt, Select, Var, conjuncts, const, logical_and, maximum, minimum
from tc.ir.loop import For, If, LoopKind, PrimFunc, Seq, Stmt, seq
from tc.ir.node import Node, children, replace, substitute, transform, walk
from tc.ir.structural import fresh_binders
from tc.passes.loop.simplify_loops import simplify_statement
from tc.passes.manager import loop_pass

_CUT_KINDS = (LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.UNROLLED)
"""Loops that are of any number of iterations."""


@loop_pass
def partition_loops(func: PrimFunc) -> PrimFunc:
    """Split each loop annotated `partition` into the iterations where its guards hold for sure, and the rest.

        for i in range(n):                         for i in range(n - 1): S(i)
            if i * 8 + j < m: S(i)          =>     for i in range(1): if (i + n - 1) * 8 + j < m: S(i + n - 1)

    A guard is a condition `a * i + rest < bound` with a > 0, where the loops inside range over constants.
    """
    facts = Facts.of(func.facts)
    body = _partition(func.body, facts)
    return replace(func, body=body)


def _partition(stmt: Stmt, facts: Facts) -> Stmt:
    if isinstance(stmt, For):
        return _cut(stmt, facts) if stmt.hints.partition and stmt.kind in _CUT_KINDS else _inside(stmt, facts)
    changes = {}
    for name in ("body", "then_body", "else_body"):
        child = getattr(stmt, name, None)
        if isinstance(child, Stmt):
            changes[name] = _partition(child, facts)
    if hasattr(stmt, "stmts"):
        return replace(stmt, stmts=tuple(_partition(child, facts) for child in stmt.stmts))
    return replace(stmt, **changes) if changes else stmt


def _inside(loop: For, facts: Facts) -> For:
    return replace(loop, body=_partition(loop.body, facts.with_range(loop.var, loop.extent)))


def _cut(loop: For, facts: Facts) -> Stmt:
    """Cut one loop, before the loops inside of it: in the first part their guards may be gone."""
    plain = replace(loop, hints=replace_fields(loop.hints, partition=False))
    limit = _safe_iterations(plain, facts)
    if limit is None or prove(limit >= loop.extent, facts) is True:
        return _inside(plain, facts)
    limit = simplify(maximum(minimum(limit, loop.extent), 0), facts)
    first = replace(plain, extent=limit)
    rest_extent = simplify(_reached(plain, facts) - limit, facts)
    copy = fresh_binders(replace(plain, extent=rest_extent))
    moved = substitute(copy.body, {copy.var: copy.var + limit})
    rest: For = _trimmed(replace(copy, body=moved), facts)
    inside = facts.with_range(first.var, limit)
    cleaned = _assume_guards(first.body, first.var)
    first = _inside(replace(first, body=simplify_statement(cleaned, inside)), facts)
    if loop.kind is LoopKind.PARALLEL:
        rest = replace(rest, kind=LoopKind.SERIAL)
    inner = facts.with_range(rest.var, rest.extent)
    rest = replace(rest, body=_partition(simplify_statement(rest.body, inner), inner))
    return seq(simplify_statement(first, facts), simplify_statement(rest, facts))


def _reached(loop: For, facts: Facts) -> Expr:
    """The iterations up to the last one in which something may happen, where a number of dims decides that of a constant number."""
    if not isinstance(loop.extent, Const) or loop.extent.value < 2 or loop.kind is LoopKind.PARALLEL:
        return loop.extent
    limit = _iterations(loop, facts, safe=False) if _is_all_guarded(loop.body, loop.var) else None
    if limit is None or isinstance(limit, Const):
        return loop.extent
    return simplify(maximum(minimum(limit, loop.extent), 0), facts)


def _trimmed(loop: For, facts: Facts) -> For:
    """Without the last iterations in which a guard around everything is false whatever the loops inside do."""
    limit = _iterations(loop, facts, safe=False) if _is_all_guarded(loop.body, loop.var) else None
    if not isinstance(limit, Const) or not isinstance(loop.extent, Const):
        return loop
    return replace(loop, extent=const(max(0, min(limit.value, loop.extent.value))))


def _is_all_guarded(stmt: Stmt, var: Var) -> bool:
    """Whether everything that happens in a statement stands under a guard that mentions `var`."""
    if isinstance(stmt, If) and any(node is var for node in walk(stmt.condition)):
        return stmt.else_body is None or _is_all_guarded(stmt.else_body, var)
    inner = [child for name in ("body", "then_body", "else_body") if isinstance(child := getattr(stmt, name, None), Stmt)]
    inner += getattr(stmt, "stmts", ())
    return all(_is_all_guarded(child, var) for child in inner) and (bool(inner) or isinstance(stmt, Seq))


def _guards(loop: For) -> list[tuple[Expr, tuple[For, ...]]]:
    """The conditions below that mention the loop variable, with the loops between."""
    found = []

    def visit(node: Node, loops: tuple[For, ...]) -> None:
        if isinstance(node, If):
            for part in conjuncts(node.condition):
                if any(inner is loop.var for inner in walk(part)):
                    found.append((part, loops))
        if isinstance(node, For):
            loops = (*loops, node)
        from_children = (getattr(node, name, None) for name in ("body", "then_body", "else_body"))
        for child in (*from_children, *getattr(node, "stmts", ())):
            if isinstance(child, Stmt):
                visit(child, loops)

    visit(loop.body, ())
    return found


def _safe_iterations(loop: For, facts: Facts) -> Expr | None:
    """How many first iterations satisfy every guard; None when there is no guard of the known form."""
    return _iterations(loop, facts, safe=True)


def _iterations(loop: For, facts: Facts, *, safe: bool) -> Expr | None:
    """How many first iterations satisfy every guard: for all iterations of the loops inside (`safe`), or for any of them."""
    limit: Expr | None = None
    for condition, loops in _guards(loop):
        if not isinstance(condition, (Lt, Le)):
            return None
        variables = [loop.var, *(inner.var for inner in loops)]
        form = linear_coefficients(simplify(slack_of(condition), facts), variables)
        if form is None:
            return None
        coefficients, rest = form
        own = coefficients.pop(loop.var, None)
        if not isinstance(own, Const) or own.value >= 0:
            return None
        for inner in loops:
            coefficient = coefficients.get(inner.var)
            if coefficient is None:
                continue
            if not isinstance(coefficient, Const):
                return None
            if (coefficient.value < 0) == safe:
                rest = rest + coefficient * (inner.extent - 1)
        # own * i + rest >= 0  <=>  i <= rest / -own  <=>  i < rest // -own + 1
        bound = rest // const(-own.value) + 1
        limit = bound if limit is None else minimum(limit, bound) if safe else maximum(limit, bound)
    if limit is None or not _reads_no_more(limit, loop.extent):  # it is evaluated where the extent is, not under the guards
        return None
    return simplify(limit, facts)


Conditions = frozenset[tuple[Expr, bool]]


def _reads_no_more(expr: Expr, other: Expr) -> bool:
    """Whether every read from memory is one of `other` as well, under no conditions that are not around it in `expr`."""
    known = _reads(other)
    return all(any(load is read and held <= under for read, held in known) for load, under in _reads(expr))


def _reads(expr: Expr, under: Conditions = frozenset()) -> set[tuple[Load, Conditions]]:
    """What an expression reads from memory, each with the conditions that guard it and whether they hold there."""
    match expr:
        case Load():
            return {(expr, under)}.union(*(_reads(index, under) for index in expr.indices))
        case Select(condition=condition, true_value=true_value, false_value=false_value):
            chosen = _reads(true_value, under | {(condition, True)}) | _reads(false_value, under | {(condition, False)})
            return chosen | _reads(condition, under)
    return set[tuple[Load, Conditions]]().union(*(_reads(part, under) for part in children(expr) if isinstance(part, Expr)))


def _assume_guards(body: Stmt, var: Var) -> Stmt:
    """Drop the guards that mention `var`: they hold here."""
    def rewrite(node: Node) -> Node | None:
        if not isinstance(node, If) or node.else_body is not None:
            return None
        kept = [part for part in conjuncts(node.condition) if not any(inner is var for inner in walk(part))]
        if len(kept) == len(conjuncts(node.condition)):
            return None
        return replace(node, condition=logical_and(*kept)) if kept else node.then_body

    return transform(body, rewrite)
