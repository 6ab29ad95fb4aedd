"""Floats rounded to integers of a byte or two and clipped, as quantization does."""

from __future__ import annotations

from dataclasses import dataclass

from tc.ir.dtype import DType, f32, i32, int_range
from tc.ir.expr import Add, Cast, Const, Div, Expr, MathCall, Max, Min

LEAST_DIVISOR, MOST_DIVISOR = 2.0**-60, 2.0**60
"""Between these a quotient that lies in the range of 16 bits is found by products."""

MOST_SHIFT = 1 << 20


@dataclass(frozen=True)
class ClippedRound:
    """`dtype(clip(round(value / divisor) + shift, low, high))`; bounds and shift are integers, 0 lies between the bounds.

    A shift that is no literal is f32, a number of `dtype`; `low` is then 0. The value may then be a `bounded_quotient`, whose bounds are
    what the least and the greatest of `dtype` mean. `is_whole`: the quotient is known to be nearest to an i32.
    """

    value: Expr
    divisor: float | None
    shift: int | Expr
    low: int
    high: int
    dtype: DType
    is_whole: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether the value is within bounds by itself."""
        return _is_bounded_quotient(self.value)


def as_clipped_round(expr: Cast) -> ClippedRound | None:
    """What a cast of f32 computes, if it is of that kind."""
    dtype = expr.dtype
    if not dtype.is_int or dtype.is_bool or not 8 <= dtype.bits <= 16 or expr.operand.dtype is not f32:
        return None
    match expr.operand:
        case Max(lhs=Min(lhs=inside, rhs=Const(value=high)), rhs=Const(value=low)):
            pass
        case Min(lhs=Max(lhs=inside, rhs=Const(value=low)), rhs=Const(value=high)):
            pass
        case _:
            return None
    rounded, shift = (inside.lhs, _number(inside.rhs)) if isinstance(inside, Add) else (inside, 0.0)
    is_whole = False
    match rounded:
        case Cast(operand=Cast(operand=inner, dtype=between)) if between is i32:  # a cast is of what is in range
            rounded, is_whole = inner, True
    if not isinstance(rounded, MathCall) or rounded.name != "round":
        return None
    least, most = int_range(dtype)
    is_given = shift is None and (is_whole or _is_number_of(dtype, inside.rhs)) if isinstance(inside, Add) else False
    if isinstance(inside, Add) and (_is_bounded_quotient(rounded.args[0]) or is_given):
        if low != 0 or not _is_whole(high) or high > most:
            return None
        value, divisor = _divided(rounded.args[0])
        return ClippedRound(value, divisor, inside.rhs, 0, int(high), dtype, is_whole)
    if shift is None or not all(_is_whole(number) for number in (low, high, shift)) or abs(shift) > MOST_SHIFT:
        return None
    if not least <= low <= 0 <= high <= most:
        return None
    value, divisor = _divided(rounded.args[0])
    return ClippedRound(value, divisor, int(shift), int(low), int(high), dtype, is_whole)


def _divided(value: Expr) -> tuple[Expr, float | None]:
    """What is divided by a literal whose quotients are found by products, and that; what is divided by nothing else, and None."""
    match value:
        case Div(lhs=lhs, rhs=Const(value=by)) if LEAST_DIVISOR < by < MOST_DIVISOR:
            return lhs, None if by == 1.0 else float(by)
    return value, None


def _is_number_of(dtype: DType, shift: Expr) -> bool:
    """Whether it is a number of an integer type, as f32."""
    return isinstance(shift, Cast) and shift.operand.dtype is dtype


def _is_bounded_quotient(value: Expr) -> bool:
    return isinstance(value, MathCall) and value.name == "bounded_quotient"


def _number(expr: Expr) -> float | None:
    """A literal, or one of an integer type as f32."""
    match expr:
        case Const(value=value) | Cast(operand=Const(value=value)):
            return float(value)
    return None


def _is_whole(number: float) -> bool:
    return number == number and abs(number) < float("inf") and number == int(number)
