"""Floats rounded to integers of a byte or two and clipped, as quantization does: one conversion that rounds, of what was clipped before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tc.codegen.llvm.builder import FunctionBuilder, Value, int_value, llvm_type, mangled
from tc.codegen.llvm.byte_packs import packs_for
from tc.ir.clipped_round import ClippedRound
from tc.ir.dtype import i8, i32, int_range
from tc.ir.expr import Cast, Const, Expr, MathCall

WHOLE = 1.5 * 2.0**23
"""The f32 halfway between two powers of 2 whose numbers are all integers: up to 2^22 from it they are as well, in order."""


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

    if saturates and found.is_whole:
        return value if found.divisor is None else _quotient(b, value, found.divisor)
    if found.low:
        value = b.select(b.compare("fcmp ord", value, value), value, bound(0))
    if not saturates:
        low = bound(found.low)
        value = b.select(b.compare("fcmp ogt", value, low), value, low)  # NaN is not
    value = _at_most(b, value, value, bound(found.high))
    return value if found.divisor is None else _quotient(b, value, found.divisor)


def _shifted(b: FunctionBuilder, found: ClippedRound, value_of: Callable[[Expr], Value]) -> Value:
    """Of a `bounded_quotient`, which is never NaN, nor is its nearest number out of range. A shift that is data is one of f32."""
    assert isinstance(found.value, MathCall) and isinstance(found.shift, Expr), "as as_clipped_round finds it"
    shift = value_of(found.shift)
    whole_shift = int_value(int(found.shift.value), "i32") if isinstance(found.shift, Const) else None
    operands = _operands(b, found.value, value_of)
    packs = packs_for(b, operands[0]) if found.dtype.bits == 8 and not shift.lanes else None
    if packs is not None:  # what is too low for the quotient gives the least number, and so does NaN
        value = _quotient_of(b, _at_most, *operands)
        return _within(b, packs.to_bytes(b, value, whole_shift or b.convert("fptosi", shift, "i32"), found.dtype), found)
    value = _quotient_of(b, _bounded, *operands)
    if whole_shift is not None:
        whole = b.add(*b.unify(_rounded(b, value), whole_shift))
    else:  # a number so large has no bits for fractions: what is added to it is rounded, and its last bits are an integer
        whole = b.convert("bitcast", b.binary("fadd", *b.unify(b.binary("fadd", value, b.float(WHOLE, value)), shift)), "i32")
    return b.convert("trunc", whole, llvm_type(found.dtype))


def emit_bounded_quotient(b: FunctionBuilder, x: Value, y: Value, inverse: Value, low: Value, high: Value) -> Value:
    return _quotient_of(b, _bounded, x, low, high, y, inverse)


def _operands(b: FunctionBuilder, quotient: MathCall, value_of: Callable[[Expr], Value]) -> Sequence[Value]:
    """Of a `bounded_quotient`, as `_quotient_of` takes them: nothing is divided by the literal 1."""
    x, divisor, inverse, low, high = quotient.args
    is_one = isinstance(divisor, Const) and divisor.value == 1.0
    return b.unify(*map(value_of, (x, low, high) if is_one else (x, low, high, divisor, inverse)))


def _quotient_of(b: FunctionBuilder, clip: Callable[..., Value], x: Value, low: Value, high: Value, *divisor_and_inverse: Value) -> Value:
    clipped = clip(b, x, low, high)
    return emit_quotient(b, clipped, *divisor_and_inverse) if divisor_and_inverse else clipped


def _bounded(b: FunctionBuilder, x: Value, low: Value, high: Value) -> Value:
    """Comparisons with NaN do not hold, so that it becomes `low`."""
    return _at_most(b, b.select(b.compare("fcmp ogt", x, low), x, low), low, high)


def _at_most(b: FunctionBuilder, x: Value, low: Value, high: Value) -> Value:
    """The lesser of both, NaN if `x` is."""
    return b.select(b.compare("fcmp olt", high, x), high, x)


def rounded_quotient(expr: Cast) -> MathCall | None:
    """The `bounded_quotient` that is rounded to an i32, which every such number is."""
    match expr:
        case Cast(operand=MathCall(name="round", args=(MathCall(name="bounded_quotient") as quotient,)), dtype=dtype) if dtype is i32:
            return quotient
    return None


def emit_rounded_quotient(b: FunctionBuilder, quotient: MathCall, value_of: Callable[[Expr], Value]) -> Value:
    """The i32 nearest to it."""
    return _rounded(b, _quotient_of(b, _bounded, *_operands(b, quotient, value_of)))


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
