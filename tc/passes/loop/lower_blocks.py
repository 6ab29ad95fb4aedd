"""Replace blocks by what they mean: their axes by the loops' expressions, conditions by If, initialisations by a test."""

from __future__ import annotations

from tc.ir.empty_reductions import start_empty_reductions
from tc.ir.expr import equal, logical_and
from tc.ir.loop import AxisKind, Block, If, PrimFunc, Stmt, is_statement, seq
from tc.ir.node import Node, replace, substitute, transform
from tc.passes.manager import loop_pass


@loop_pass
def lower_blocks(func: PrimFunc) -> PrimFunc:
    """Remove every block.

    with block (vi = i * 8 + j, vk = k) where c:        if c:
        init: C[vi] = 0                           =>        if k == 0: C[i * 8 + j] = 0
        C[vi] = C[vi] + A[vi, vk]                           C[i * 8 + j] = C[i * 8 + j] + A[i * 8 + j, k]

    Reductions that may be over no terms are initialised all the same (see `start_empty_reductions`).
    """

    def lower(node: Node) -> Node | None:
        return _lower(node) if isinstance(node, Block) else None

    started = start_empty_reductions(func)
    return replace(started, body=transform(started.body, lower, is_statement))


def _lower(block: Block) -> Stmt:
    values: dict[Node, Node] = {axis.var: axis.value for axis in block.axes}
    body = substitute(block.body, values)
    if block.init is not None:
        first = logical_and(*(equal(axis.value, 0) for axis in block.axes if axis.kind is not AxisKind.SPATIAL))
        body = seq(_guarded(first, substitute(block.init, values)), body)
    return _guarded(block.where, body)


def _guarded(condition: object, body: Stmt) -> Stmt:
    value = getattr(condition, "value", None)
    return body if value is True else If(condition, body)  # type: ignore[arg-type]
