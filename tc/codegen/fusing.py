"""Which products are fused with the sums that they are added to: x + a * b rounded once.

Not those of sums of dequantized numbers. Scales are often multiples of each other, and such sums then lie half way between two numbers of
what they are quantized to, in bulk: a product that is not rounded decides otherwise than those who calibrated the network did. Nor those
in what is made a whole number: places in an image often lie half way between two pixels, or on one.
"""

from __future__ import annotations

from tc.ir.expr import Add, BinaryExpr, Cast, Expr, MathCall, Max, Min, Mul, Select, Sub


def adds_dequantized(expr: BinaryExpr) -> bool:
    """Whether an expression adds whole numbers times a scale, of two kinds or more: its products are not fused into the sum.

    cast(a, f32) * 0.05 + (cast(b, f32) - 3.0) * 0.025
    """
    return isinstance(expr, Add) and _is_dequantized(expr.lhs) and _is_dequantized(expr.rhs)


def makes_whole(expr: Cast | MathCall) -> bool:
    """Whether an expression makes whole numbers of others: in these, each operation is rounded by itself."""
    if isinstance(expr, Cast):
        return expr.dtype.is_int and expr.operand.dtype.is_float
    return expr.name in _TO_WHOLE


_TO_WHOLE = frozenset(("ceil", "floor", "round", "trunc"))


def _is_dequantized(expr: Expr) -> bool:
    match expr:
        case Mul(lhs=lhs, rhs=rhs):
            return _is_whole(lhs) or _is_whole(rhs)
        case Add():
            return adds_dequantized(expr)
        case Max(lhs=lhs, rhs=rhs) | Min(lhs=lhs, rhs=rhs) | Select(true_value=lhs, false_value=rhs):
            return _is_dequantized(lhs) or _is_dequantized(rhs)
    return False


def _is_whole(expr: Expr) -> bool:
    match expr:
        case Cast(operand=operand):
            return operand.dtype.is_int
        case Sub(lhs=lhs):
            return _is_whole(lhs)
        case Max(lhs=lhs, rhs=rhs) | Min(lhs=lhs, rhs=rhs) | Select(true_value=lhs, false_value=rhs):
            return _is_whole(lhs) or _is_whole(rhs)
    return False
