"""Operands that count or point somewhere, and what they must stay below, by operator: said once, for every way a node can run.

Gathers and scatters check their own indices. Here stand operands whose bad values would go unnoticed: lengths that masks compare with,
and indices that a reference kernel takes as numpy does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tc.errors import InputError
from tc.frontend.onnx.node_context import NodeContext
from tc.frontend.onnx.operand_sizes import check_sizes
from tc.frontend.onnx.values import ModelValue
from tc.ir.dtype import i64, int_range
from tc.ir.expr import Const, Expr, const


@dataclass(frozen=True)
class OperandCheck:
    """Input number `operand` holds numbers called `what`, each at least 0 and below `limit`; None: nothing to check."""

    operand: int
    what: str
    limit: Callable[[NodeContext], Expr | None]


def _steps(n: NodeContext) -> Expr:
    return n.value(0).shape[1 if n.attr("layout", 0) else 0] + 1


def _reversed_steps(n: NodeContext) -> Expr:
    return n.value(0).shape[n.attr("time_axis", 0)] + 1


def _cached(n: NodeContext) -> Expr:
    return n.value(1).shape[-2] + 1


def _images(n: NodeContext) -> Expr:
    return n.value(0).shape[0]


def _positions(n: NodeContext) -> Expr:
    return n.value(1).shape[0]


def _last_write(n: NodeContext) -> Expr:
    """Where an update may begin; a circular one does so anywhere, counted round and round."""
    if n.attr("mode", b"linear") in (b"circular", "circular"):
        return const(int_range(i64)[1])
    axis = n.attr("axis", -2)
    return n.value(0).shape[axis] - n.value(1).shape[axis] + 1


OPERAND_CHECKS: dict[str, OperandCheck] = {
    **dict.fromkeys(("RNN", "GRU", "LSTM"), OperandCheck(4, "sequence length", _steps)),
    "ReverseSequence": OperandCheck(1, "sequence length", _reversed_steps),
    "Attention": OperandCheck(6, "number of keys", _cached),
    "RotaryEmbedding": OperandCheck(3, "position", _positions),
    "RoiAlign": OperandCheck(2, "batch index", _images),
    "TensorScatter": OperandCheck(2, "place of an update", _last_write),
}


def check_operands(n: NodeContext) -> None:
    """Let the node see such an operand only after a check; one that is known is checked now. InputError for one that is wrong,
    ShapeError where operands do not fit each other."""
    check_sizes(n)
    row = OPERAND_CHECKS.get(n.op_type) if not n.domain else None
    if row is None or n.optional(row.operand) is None:
        return
    value = n.value(row.operand)
    limit = row.limit(n)
    if limit is None:
        return
    known = n.graph.array(value)
    if known is not None and isinstance(limit, Const):
        wrong = (known < 0) | (known >= limit.value)
        if wrong.any():
            raise InputError(
                f"{row.what} {known[wrong].flat[0]} is out of range: it must be at least 0 and below {limit.value}",
                code="TC2004",
            )
        return
    n.inputs[row.operand] = _checked(n, value, row.what, limit)


def _checked(n: NodeContext, value: ModelValue, what: str, limit: Expr) -> ModelValue:
    return n.call("check_range", value, limit=limit, what=what)
