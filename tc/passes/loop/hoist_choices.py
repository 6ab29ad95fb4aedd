"""Ask once what all vectors of an iteration are answered alike: of a triangle's rows most is taken or left out as a whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from tc.ir.arith import Facts, linear_coefficients, prove, simplify, slack_of
from tc.ir.dtype import i64
from tc.ir.expr import Const, Expr, Le, Load, Lt, Select, Var, conjuncts, const, logical_and
from tc.ir.loop import For, If, LoopKind, PrimFunc, Seq, Stmt, Store
from tc.ir.node import Node, NodeT, cached_on_node, replace, transform, walk
from tc.ir.structural import fresh_binders
from tc.ir.uses import has_selects, variables
from tc.passes.manager import loop_pass

MOST_NODES = 300
"""Of a loop whose body is copied for each answer."""

MOST_CHOICES = 2
"""Conditions that are asked for in a loop."""

_VECTORS = (LoopKind.UNROLLED, LoopKind.VECTORIZED)


@loop_pass
def hoist_choices(func: PrimFunc) -> PrimFunc:
    """Before the vectors of an iteration, ask whether a condition of their choices holds in all of them, or in none.

        for j in range(m):                                              for j in range(m):
            for l in vectorized(8):                                         if j * 8 + 7 <= i:
                B[i, j * 8 + l] = select(j * 8 + l <= i, A[...], 0.0)  =>       for l in vectorized(8): B[i, j * 8 + l] = A[...]
                                                                            elif i < j * 8:
                                                                                for l in vectorized(8): B[i, j * 8 + l] = 0.0
                                                                            else: (as it was)

    Of loops that copy, where loops around or memory decide where the condition changes; what no vector of a loop decides is asked before
    it. A question reads memory only where what it reads is known to be there, whatever else was asked before.
    """
    body = _hoist(func.body, Facts.of(func.facts))
    return func if body is func.body else replace(func, body=body)


def _hoist(stmt: Stmt, facts: Facts) -> Stmt:
    return change_loops(stmt, facts, has_selects, _with_questions)


def _with_questions(loop: For, facts: Facts) -> Stmt | None:
    if loop.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL) or not copies_vectors(loop):
        return None
    return _asked(loop, facts, MOST_CHOICES) or loop


def change_loops(stmt: Stmt, facts: Facts, concerns: Callable[[Node], bool], change: Callable[[For, Facts], Stmt | None]) -> Stmt:
    """The statement with loops that are something else; where `change` gives None, the loops inside are asked for.

    concerns: whether there is anything to change at or below a node. Facts are those that hold where the loop stands.
    """
    if not concerns(stmt):
        return stmt
    if isinstance(stmt, For):
        if (changed := change(stmt, facts)) is not None:
            return changed
        facts = facts.with_range(stmt.var, stmt.extent)
    if isinstance(stmt, Seq):
        parts = tuple(change_loops(part, facts, concerns, change) for part in stmt.stmts)
        return stmt if all(a is b for a, b in zip(parts, stmt.stmts, strict=True)) else replace(stmt, stmts=parts)
    below = {name: part for name in ("body", "then_body", "else_body") if isinstance(part := getattr(stmt, name, None), Stmt)}
    made = {name: change_loops(part, facts, concerns, change) for name, part in below.items()}
    return stmt if all(made[name] is below[name] for name in below) else replace(stmt, **made)


@cached_on_node
def copies_vectors(loop: For) -> bool:
    """Whether a loop stores what it reads elsewhere in vectors, and little code says what."""
    nodes = list(islice(walk(loop.body), MOST_NODES))
    vectors = (node for node in (loop, *nodes) if isinstance(node, For) and node.kind is LoopKind.VECTORIZED)
    if len(nodes) == MOST_NODES or next(vectors, None) is None:
        return False
    written = {node.buffer for node in nodes if isinstance(node, Store)}
    statements = [node for node in nodes if isinstance(node, Stmt)]
    is_plain = all(isinstance(stmt, (Seq, Store, If)) or (isinstance(stmt, For) and stmt.kind in _VECTORS) for stmt in statements)
    return is_plain and not any(isinstance(node, Load) and node.buffer in written for node in nodes)


def _asked(loop: For, facts: Facts, most: int) -> Stmt | None:
    """The loop with the first condition that can be asked for; None if there is none."""
    if not most:
        return None
    inner = {node.var: node.extent for node in walk(loop.body) if isinstance(node, For)}
    parts = (part for node in walk(loop.body) if isinstance(node, Select) for part in conjuncts(node.condition))
    for part in dict.fromkeys(parts):
        if not variables(part) & {loop.var, *inner}:
            if variables(part) and is_readable(part, facts):
                parts_of = (fresh_binders(_decided(loop, part, holds)) for holds in (True, False))
                held, other = (_asked(each, facts, most - 1) or each for each in parts_of)
                return If(part, held, other)
            continue
        found = _bounds(part, loop.var, inner, facts)
        if found is None:
            continue
        always, never = found
        held, other = (fresh_binders(_decided(loop.body, part, holds)) for holds in (True, False))
        held, other = (_body_asked(replace(loop, body=each), facts, most - 1) for each in (held, other))
        return replace(loop, body=If(always, held, other if never is None else If(never, other, loop.body)))
    return None


def _body_asked(loop: For, facts: Facts, most: int) -> Stmt:
    """The loop's body with what can be asked for in it; conditions that stand around the loop stay there."""
    asked = _asked(loop, facts, most)
    return asked.body if isinstance(asked, For) else loop.body


def _decided(stmt: NodeT, known: Expr, holds: bool) -> NodeT:
    """What a statement is where a condition is known to hold or not to."""

    def rewrite(node: Node) -> Node | None:
        match node:
            case Select(condition=condition, true_value=chosen, false_value=other) if known in (parts := conjuncts(condition)):
                kept = [part for part in parts if part != known]
                return other if not holds else replace(node, condition=logical_and(*kept)) if kept else chosen
        return None

    return transform(stmt, rewrite)


def _bounds(part: Expr, var: Var, inner: dict[Var, Expr], facts: Facts) -> tuple[Expr, Expr | None] | None:
    """Conditions under which `part` holds for all iterations of the loops inside, and for none of them: None where these do not count, so
    that it is the other one's opposite."""
    if not isinstance(part, (Lt, Le)) or part.lhs.dtype != i64 or not all(isinstance(extent, Const) for extent in inner.values()):
        return None
    form = linear_coefficients(simplify(slack_of(part)), [var, *inner])
    if form is None:
        return None
    coefficients, rest = form
    if variables(rest) & {var, *inner} or not (variables(rest) or _reads(rest)) or not is_readable(rest, facts):
        return None
    least = most = rest
    for each, coefficient in coefficients.items():
        if not isinstance(coefficient, Const):
            return None
        if each is var:
            least, most = least + coefficient * var, most + coefficient * var
        elif coefficient.value < 0:
            least = least + coefficient * (inner[each] - 1)
        else:
            most = most + coefficient * (inner[each] - 1)
    return simplify(const(0) <= least), None if most is least else simplify(most < 0)


def _reads(expr: Expr) -> list[Load]:
    return [node for node in walk(expr) if isinstance(node, Load)]


def is_readable(expr: Expr, facts: Facts) -> bool:
    """Whether all that is read is there, whatever has been asked before."""
    return all(
        not _reads(index) and prove(logical_and(const(0) <= index, index < dim), facts) is True
        for load in _reads(expr)
        for index, dim in zip(load.indices, load.buffer.shape, strict=True)
    )
