"""Integer expressions for many values of their variables at once: what can be counted need not be proven."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tc.ir.bits import is_xor
from tc.ir.expr import And, Const, Expr, FloorDiv, FloorMod, MathCall, Max, Min, Not, Or, Select, Var
from tc.ir.samples import OPERATIONS

Values = Mapping[Var, np.ndarray]

_OPERATIONS: dict[type[Expr], Callable[[Any, Any], Any]] = {
    **OPERATIONS,
    FloorDiv: operator.floordiv,
    FloorMod: operator.mod,
    Min: np.minimum,
    Max: np.maximum,
    And: operator.and_,
    Or: operator.or_,
}


def column(expr: Expr, values: Values) -> np.ndarray | None:
    """The values of an expression of integers, or of a condition on them; None for one that is no arithmetic of these variables.

    A division by 0 has no value either.
    """
    match expr:
        case Const(value=value):
            return np.asarray(value)
        case Var():
            return values.get(expr)
        case Not(operand=operand):
            inner = column(operand, values)
            return None if inner is None else ~inner
        case Select(condition=condition, true_value=yes, false_value=no):
            holds, a, b = (column(part, values) for part in (condition, yes, no))
            return None if holds is None or a is None or b is None else np.where(holds, a, b)
        case MathCall(args=args) if is_xor(expr):
            return _joined(operator.xor, args, values)
    operation = _OPERATIONS.get(type(expr))
    if operation is None:
        return None
    lhs, rhs = expr.lhs, expr.rhs  # type: ignore[attr-defined]
    if isinstance(expr, (FloorDiv, FloorMod)) and not (isinstance(rhs, Const) and rhs.value):
        return None
    return _joined(operation, (lhs, rhs), values)


def _joined(operation: Callable[[Any, Any], Any], operands: Sequence[Expr], values: Values) -> np.ndarray | None:
    found = [column(operand, values) for operand in operands]
    return None if any(each is None for each in found) else reduce(operation, found)


def grid(extents: Mapping[Var, int]) -> Values:
    """The values of variables at all points of a space, one array element a point; the first variable changes slowest."""
    axes = np.indices(tuple(extents.values()), np.int64).reshape(len(extents), -1)
    return dict(zip(extents, axes, strict=True))
