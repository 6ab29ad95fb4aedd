"""Floats rounded to integers of a byte or two and clipped, as quantization does: one conversion that rounds, of what was clipped before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tc.codegen.llvm.builder import FunctionBuilder, Value, int_value, llvm_type, mangled
from tc.codegen.llvm.byte_packs import packs_for
from tc.ir.dtype import DType, f32, i8, int_range
from tc.ir.expr import Add, Cast, Const, Div, Expr, MathCall, Max, Min, Sub, const

LEAST_DIVISOR, MOST_DIVISOR = 2.0**-60, 2.0**60
"""Between these a quotient that lies in the range of 16 bits is found by products."""

MOST_SHIFT = 1 << 20


@dataclass(frozen=True)
class ClippedRound:
    """`dtype(clip(round(value / divisor) + shift, low, high))`; bounds and shift are integers, 0 lies between the bounds.

    A shift that is no literal is f32, a number of `dtype`; `low` is then 0. The value may then be a `bounded_quotient`, whose bounds are
    what the least and the greatest of `dtype` mean.
    """

    value: Expr
    divisor: float | None
    shift: int | Expr
    low: int
    high: int
    dtype: DType

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
    if not isinstance(rounded, MathCall) or rounded.name != "round":
        return None
    least, most = int_range(dtype)
    if isinstance(inside, Add) and (_is_bounded_quotient(rounded.args[0]) or (shift is None and _is_number_of(dtype, inside.rhs))):
        if low != 0 or not _is_whole(high) or high > most:
            return None
        value, divisor = _divided(rounded.args[0])
        return ClippedRound(value, divisor, inside.rhs, 0, int(high), dtype)
    if shift is None or not all(_is_whole(number) for number in (low, high, shift)) or abs(shift) > MOST_SHIFT:
        return None
    if not least <= low <= 0 <= high <= most:
        return None
    value, divisor = _divided(rounded.args[0])
    return ClippedRound(value, divisor, int(shift), int(low), int(high), dtype)


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


def as_dequantized(expr: Expr) -> tuple[ClippedRound, int | Expr] | None:
    """What a cast back to f32, less a literal integer or the same shift, or as it is, computes of such a number."""
    cast, less = (expr.lhs, expr.rhs) if isinstance(expr, Sub) else (expr, _NOTHING)
    match cast:
        case Cast(operand=Cast(operand=Min() | Max()) as inner, dtype=dtype) if dtype is f32:
            found = as_clipped_round(inner)
            if found is None or found.is_bounded:
                return None
            if isinstance(found.shift, Expr):
                return (found, less) if less is found.shift else None
            number = _number(less)
            return (found, int(number)) if number is not None and _is_whole(number) and abs(number) <= MOST_SHIFT else None
    return None


_NOTHING = const(0.0, f32)


def _number(expr: Expr) -> float | None:
    """A literal, or one of an integer type as f32."""
    match expr:
        case Const(value=value) | Cast(operand=Const(value=value)):
            return float(value)
    return None


def _is_whole(number: float) -> bool:
    return number == number and abs(number) < float("inf") and number == int(number)


def emit_clipped_round(builder: FunctionBuilder, found: ClippedRound, value_of: Callable[[Expr], Value]) -> Value:
    """Clipped first, where bounds are whole numbers of steps, and then rounded; NaN gives 0."""
    b = builder
    if found.is_bounded:
        return _shifted(b, found, value_of)
    value = value_of(found.value)
    shift = value_of(found.shift) if isinstance(found.shift, Expr) else None
    whole_shift = int_value(found.shift, "i32") if isinstance(found.shift, int) else b.convert("fptosi", shift, "i32")  # type: ignore[arg-type]
    packs = packs_for(b, value) if found.dtype.bits == 8 and not whole_shift.lanes else None
    if packs is not None:
        return _within(b, packs.to_bytes(b, _steps(b, found, value, shift, saturates=True), whole_shift, found.dtype), found)
    whole = _rounded(b, _steps(b, found, value, shift))
    if whole_shift.known != 0:
        whole = b.add(*b.unify(whole, whole_shift))
    return b.convert("trunc", whole, llvm_type(found.dtype))


def emit_clipped_float(builder: FunctionBuilder, found: ClippedRound, value_of: Callable[[Expr], Value], less: int | Expr = 0) -> Value:
    """The same as f32, less an integer: what is dequantized at once never becomes an integer."""
    b = builder
    steps = _steps(b, found, value_of(found.value), value_of(found.shift) if isinstance(found.shift, Expr) else None)
    if isinstance(found.shift, Expr) or isinstance(less, Expr) or found.shift == less:
        return b.convert("sitofp", _rounded(b, steps), "float")
    whole = b.intrinsic("roundeven", steps)
    return b.binary("fadd", whole, b.float(float(found.shift - less), whole))  # no zero stays negative


def _within(b: FunctionBuilder, made: Value, found: ClippedRound) -> Value:
    """Bytes within bounds that are narrower than their type's."""
    sign, (least, most) = "s" if found.dtype is i8 else "u", int_range(found.dtype)
    if found.low > least:
        made = b.intrinsic(f"{sign}max", made, b.int(found.low, made))
    return b.intrinsic(f"{sign}min", made, b.int(found.high, made)) if found.high < most else made


def _steps(b: FunctionBuilder, found: ClippedRound, value: Value, shift: Value | None, saturates: bool = False) -> Value:
    """What is rounded, so that nothing beyond the bounds comes of it, and what gives 0 of NaN. `shift`: one that is no literal;
    `saturates`: what rounds it makes the least number of what is too low, and of NaN."""
    by = 1.0 if found.divisor is None else found.divisor

    def bound(end: int) -> Value:
        if shift is None:
            assert isinstance(found.shift, int), "it is given otherwise"
            return b.float((end - found.shift) * by, value)
        less = b.binary("fsub", b.float(float(end), shift), shift)
        scaled = less if by == 1.0 else b.binary("fmul", less, b.float(by, less))
        return b.splat(scaled, value.lanes)

    if found.low:
        value = b.select(b.compare("fcmp ord", value, value), value, bound(0))
    if not saturates:
        low = bound(found.low)
        value = b.select(b.compare("fcmp ogt", value, low), value, low)  # NaN is not
    value = _at_most(b, value, bound(found.high))
    return value if found.divisor is None else _quotient(b, value, found.divisor)


def _at_most(b: FunctionBuilder, value: Value, high: Value) -> Value:
    """The lesser of both, NaN if `value` is."""
    return b.select(b.compare("fcmp olt", high, value), high, value)


def _shifted(b: FunctionBuilder, found: ClippedRound, value_of: Callable[[Expr], Value]) -> Value:
    """Of a `bounded_quotient`, which is never NaN: clipped as an integer."""
    assert isinstance(found.value, MathCall) and isinstance(found.shift, Expr), "as as_clipped_round finds it"
    x, divisor, inverse, low, high = b.unify(*map(value_of, found.value.args))
    shift = value_of(found.shift)
    packs = packs_for(b, x) if found.dtype.bits == 8 else None
    if packs is not None and not shift.lanes:  # what is too low for the quotient gives the least number, and so does NaN
        value = emit_quotient(b, _at_most(b, x, high), divisor, inverse)
        return _within(b, packs.to_bytes(b, value, b.convert("fptosi", shift, "i32"), found.dtype), found)
    value, shift = b.unify(emit_bounded_quotient(b, x, divisor, inverse, low, high), shift)
    whole = b.add(_rounded(b, value), b.convert("fptosi", shift, "i32"))
    for name, end in (("smax", found.low), ("smin", found.high)):
        whole = b.intrinsic(name, whole, b.int(end, whole))
    return b.convert("trunc", whole, llvm_type(found.dtype))


def emit_bounded_quotient(b: FunctionBuilder, x: Value, y: Value, inverse: Value, low: Value, high: Value) -> Value:
    """Comparisons with NaN do not hold, so that it becomes `low`."""
    above = b.select(b.compare("fcmp ogt", x, low), x, low)
    return emit_quotient(b, b.select(b.compare("fcmp olt", above, high), above, high), y, inverse)


def _quotient(b: FunctionBuilder, value: Value, divisor: float) -> Value:
    return emit_quotient(b, value, b.float(divisor, value), b.float(1.0 / divisor, value))


def emit_quotient(b: FunctionBuilder, value: Value, divisor: Value, inverse: Value) -> Value:
    """The quotient as a division rounds it, by products: what the first estimate leaves over is known without an error.

    Source: Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor" (1990).
    """
    estimate = b.binary("fmul", value, inverse)
    rest = b.fma(b.fneg(estimate), divisor, value)
    return b.fma(rest, inverse, estimate)


def _rounded(b: FunctionBuilder, value: Value) -> Value:
    """The nearest i32, the even one of two. LLVM's targets for devices have no code for `lrint`, and end the process."""
    if b.module.f32_libm:
        return b.convert("fptosi", b.intrinsic("roundeven", value), "i32")
    kind = Value("", "i32", value.lanes)
    name = f"llvm.lrint.{mangled(kind)}.{mangled(value)}"
    b.module.declare(name, kind.type, [value.type])
    return b.emit(f"call {kind.type} @{name}({value})", "i32", value.lanes)
