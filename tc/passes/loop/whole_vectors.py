"""Vectors at the end of what there is: whole ones stay vectors, the elements of the last one are asked for one by one.

    for v in vectorized(4):                       if i * 4 + 3 < n:
        if i * 4 + v < n: S(v)            =>          for v in vectorized(4): S(v)
                                                  else:
                                                      for v in range(4): if i * 4 + v < n: S(v)

A vector of which a device is to touch some lanes only is no access of 128 bits.
"""

from __future__ import annotations

from tc.ir.arith import linear_coefficients
from tc.ir.expr import Const, Expr, Le, Lt, Var, conjuncts, const, logical_and
from tc.ir.launch import launches_in
from tc.ir.loop import For, If, LoopKind, PrimFunc, is_statement, walk_statements
from tc.ir.node import Node, replace, substitute, transform
from tc.ir.structural import fresh_binders
from tc.ir.uses import reads_memory, variables
from tc.passes.manager import loop_pass


@loop_pass
def whole_vectors(func: PrimFunc) -> PrimFunc:
    """Cut loops over the lanes of vectors in launches in two: where the condition inside holds for all lanes, and elsewhere.

    Conditions that hold for all lanes if they do for the last one: `a * v + rest < bound` with a > 0; what lanes have in common was moved
    out of the loop before. Others stay as they are.
    """
    inside = frozenset(loop for launch in launches_in(func.body) for loop in walk_statements(launch) if isinstance(loop, For))

    def rewrite(node: Node) -> Node | None:
        if not isinstance(node, For) or node not in inside or node.kind is not LoopKind.VECTORIZED:
            return None
        guard = node.body
        if not isinstance(guard, If) or guard.else_body is not None or not isinstance(node.extent, Const):
            return None
        parts = conjuncts(guard.condition)
        if not all(_holds_if_last_does(part, node.var) for part in parts):
            return None
        last = {node.var: const(int(node.extent.value) - 1)}
        single = fresh_binders(replace(node, kind=LoopKind.SERIAL))
        return If(logical_and(*(substitute(part, last) for part in parts)), replace(node, body=guard.then_body), single)

    return replace(func, body=transform(func.body, rewrite, is_statement))


def _holds_if_last_does(condition: Expr, lane: Var) -> bool:
    """Whether a condition that holds for a lane holds for those before it."""
    if not isinstance(condition, (Lt, Le)) or reads_memory(condition) or lane in variables(condition.rhs):
        return False
    form = linear_coefficients(condition.lhs, [lane])
    return form is not None and isinstance(step := form[0].get(lane), Const) and step.value > 0
