"""Arithmetic on LLVM values, scalars and vectors alike: what each operation means for each dtype.

Integers wrap; dividing by zero gives zero, and shifting by the width or more gives what shifting one by one would give. Known
integers are computed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from tc.codegen.llvm.bfloat import BF16, emit_cut_to_bf16, emit_from_bf16, emit_to_bf16
from tc.codegen.llvm.builder import FunctionBuilder, Value, float_text, int_value, llvm_type, mangled
from tc.codegen.llvm.float8 import emit_from_float8, emit_rounded_to_odd, emit_to_float8
from tc.errors import CodegenError
from tc.interp.scalars import number
from tc.ir.arith import Facts, bounds
from tc.ir.dtype import NARROW_FLOATS, SUB_BYTE, DType, bf16, f16, f32, f64, i8, int_range, u8
from tc.ir.expr import (
    Add,
    BinaryExpr,
    CompareExpr,
    Const,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Max,
    Min,
    Mul,
    Ne,
    Select,
    Sub,
)

_FLOAT_OPS: dict[type[Expr], str] = {Add: "fadd", Sub: "fsub", Mul: "fmul", Div: "fdiv"}
_FLOAT_COMPARE = {Eq: "oeq", Ne: "une", Lt: "olt", Le: "ole"}
_SIGNED_COMPARE = {Eq: "eq", Ne: "ne", Lt: "slt", Le: "sle"}
_UNSIGNED_COMPARE = {Eq: "eq", Ne: "ne", Lt: "ult", Le: "ule"}
PYTHON_COMPARE = {
    Eq: lambda a, b: a == b,
    Ne: lambda a, b: a != b,
    Lt: lambda a, b: a < b,
    Le: lambda a, b: a <= b,
}
BIT_OPS = {"bit_and": "and", "bit_or": "or", "bit_xor": "xor", "shift_left": "shl", "shift_right": "lshr"}


def boolean(value: bool) -> Value:
    return Value("true" if value else "false", "i1", 0, int(value))


def literal(expr: Const) -> Value:
    kind = llvm_type(expr.dtype)
    if expr.dtype in _AS_BITS:
        return Value(str(int(number(expr.value, expr.dtype).view(f"u{expr.dtype.size_bytes}"))), kind)
    if expr.dtype.is_float:
        return Value(float_text(float(expr.value), kind), kind)
    if expr.dtype.is_bool:
        return boolean(bool(expr.value))
    return int_value(int(expr.value), kind)


def _wrap(value: int, dtype: DType) -> int:
    low, high = int_range(dtype)
    return (value - low) % (high - low + 1) + low


def fold(expr: BinaryExpr, a: Value, b: Value) -> Value:
    """Integer arithmetic on known numbers."""
    assert a.known is not None and b.known is not None
    x, y = a.known, b.known
    match expr:
        case Add():
            result = x + y
        case Sub():
            result = x - y
        case Mul():
            result = x * y
        case Min():
            result = min(x, y)
        case Max():
            result = max(x, y)
        case FloorDiv():
            result = x // y if y else 0
        case FloorMod():
            result = x % y if y else 0
        case _:
            result = 0 if y == 0 else abs(x) // abs(y) * (1 if (x >= 0) == (y > 0) else -1)
    return boolean(bool(result)) if expr.dtype.is_bool else int_value(_wrap(result, expr.dtype), a.element)


def emit_compare(builder: FunctionBuilder, operation: type[CompareExpr], a: Value, b: Value, dtype: DType) -> Value:
    """A comparison of two values of `dtype`; known when both are."""
    if a.known is not None and b.known is not None:
        return boolean(PYTHON_COMPARE[operation](a.known, b.known))
    if dtype == bf16:
        return emit_compare(builder, operation, emit_from_bf16(builder, a), emit_from_bf16(builder, b), f32)
    if dtype.is_float:
        return builder.compare(f"fcmp {_FLOAT_COMPARE[operation]}", a, b)
    table = _UNSIGNED_COMPARE if dtype.kind in ("uint", "bool") else _SIGNED_COMPARE
    return builder.compare(f"icmp {table[operation]}", a, b)


def emit_division(builder: FunctionBuilder, expr: BinaryExpr, a: Value, b: Value, facts: Facts) -> Value:
    """Div, FloorDiv and FloorMod: cheap where nothing is negative, and 0 when the divisor is 0."""
    unsigned = expr.dtype.kind == "uint"
    low, divisor = bounds(expr.lhs, facts).lo, bounds(expr.rhs, facts).lo
    plain = unsigned or (low is not None and low >= 0 and divisor is not None and divisor >= 0)
    if plain:
        nonzero = divisor is not None and divisor > 0
        safe = b if nonzero else _nonzero(builder, b)
        result = _divided(builder, "urem" if isinstance(expr, FloorMod) else "udiv", a, safe)
        return result if nonzero else _zero_if_zero(builder, b, result)
    safe = _nonzero(builder, b)
    minus_one = builder.compare("icmp eq", safe, builder.int(-1, safe))
    safe = builder.select(minus_one, builder.int(1, safe), safe)  # INT_MIN / -1 traps; x / -1 is -x
    quotient = _divided(builder, "sdiv", a, safe)
    negated = builder.binary("sub", builder.int(0, quotient), builder.unify(a, safe)[0])
    quotient = builder.select(minus_one, negated, quotient)
    if isinstance(expr, Div):
        return _zero_if_zero(builder, b, quotient)
    remainder = builder.binary("sub", a, builder.binary("mul", quotient, b))
    zero = builder.int(0, remainder)
    differs = builder.compare("icmp slt", builder.binary("xor", remainder, b), zero)
    adjust = builder.binary("and", differs, builder.compare("icmp ne", remainder, zero))
    if isinstance(expr, FloorDiv):
        lowered = builder.binary("sub", quotient, builder.int(1, quotient))
        return _zero_if_zero(builder, b, builder.select(adjust, lowered, quotient))
    raised = builder.binary("add", remainder, b)
    return _zero_if_zero(builder, b, builder.select(adjust, raised, remainder))


def _divided(builder: FunctionBuilder, op: str, a: Value, b: Value) -> Value:
    """sdiv, udiv, srem or urem by what is not zero, and does not overflow.

    CPUs have no division of integers in vectors. Floats of twice the digits and more have quotients that are cut to the right integer:
    the quotient is at least 1 / b below the next integer, and by less than that it is rounded.
    """
    a, b = builder.unify(a, b)
    bits = int(a.element[1:])
    if not a.lanes or bits > 32 or b.text[0] != "%":
        return builder.binary(op, a, b)
    convert, back = ("sitofp", "fptosi") if op[0] == "s" else ("uitofp", "fptoui")
    wide = [builder.convert(convert, each, "double" if bits == 32 else "float") for each in (a, b)]
    quotient = builder.convert(back, builder.binary("fdiv", *wide), a.element)
    return builder.binary("sub", a, builder.binary("mul", quotient, b)) if op.endswith("rem") else quotient


def _nonzero(builder: FunctionBuilder, value: Value) -> Value:
    if value.known:
        return value
    is_zero = builder.compare("icmp eq", value, builder.int(0, value))
    return builder.select(is_zero, builder.int(1, value), value)


def _zero_if_zero(builder: FunctionBuilder, divisor: Value, result: Value) -> Value:
    if divisor.known:
        return result
    is_zero = builder.compare("icmp eq", divisor, builder.int(0, divisor))
    if result.lanes and not is_zero.lanes:
        is_zero = builder.splat(is_zero, result.lanes)
    return builder.select(is_zero, builder.int(0, result), result)


def emit_integer_extreme(builder: FunctionBuilder, operation: type[Expr], dtype: DType, a: Value, b: Value) -> Value:
    """The smaller (Min) or the larger (Max) of two integers."""
    return builder.intrinsic(("s" if dtype.kind == "int" else "u") + ("min" if operation is Min else "max"), a, b)


def emit_float_operation(builder: FunctionBuilder, operation: type[Expr], a: Value, b: Value, second: Expr | None = None) -> Value:
    """a op b; `second` is what b was made from, if that is known.

    The extremes are NaN if either is NaN. An unordered comparison takes care of a; a literal b needs no test.
    """
    if a.element == BF16:
        result = emit_float_operation(builder, operation, emit_from_bf16(builder, a), emit_from_bf16(builder, b), second)
        return emit_to_bf16(builder, result) if operation in _FLOAT_OPS else emit_cut_to_bf16(builder, result)
    if operation in _FLOAT_OPS:
        return builder.binary(_FLOAT_OPS[operation], a, b)
    if operation is Select:
        return builder.select(builder.compare("fcmp olt", a, b), b, a)
    if operation not in (Min, Max):
        raise CodegenError(f"{operation.__name__} is not defined for floats")
    is_number = isinstance(second, Const) and second.value == second.value
    if builder.has_extremes and not is_number:
        return builder.extreme("minimum" if operation is Min else "maximum", a, b)
    chosen = builder.select(builder.compare("fcmp ult" if operation is Min else "fcmp ugt", a, b), a, b)
    return chosen if is_number else builder.select(builder.compare("fcmp uno", b, b), b, chosen)


def emit_bit_operation(builder: FunctionBuilder, name: str, args: Sequence[Value], dtype: DType) -> Value:
    """An operation on bits, by its name in `BIT_OPS`."""
    op = "ashr" if name == "shift_right" and dtype.kind == "int" else BIT_OPS[name]
    if name in ("shift_left", "shift_right"):
        return _shift(builder, op, args[0], args[1], dtype)
    return builder.binary(op, *args)


def _shift(builder: FunctionBuilder, op: str, value: Value, amount: Value, dtype: DType) -> Value:
    """Shifting by the width or more gives what shifting one by one would give."""
    limit = builder.int(dtype.bits - 1, amount)
    too_far = builder.compare("icmp ugt", amount, limit)
    shifted = builder.binary(op, value, builder.select(too_far, limit, amount))
    if op == "ashr":
        return shifted
    return builder.select(too_far, builder.int(0, shifted), shifted)


def emit_integer_math(builder: FunctionBuilder, name: str, args: tuple[Value, ...], dtype: DType) -> Value:
    """A function of the language on integers."""
    b, x = builder, args[0]
    zero = b.int(0, x)
    match name:
        case "float_of_bits":
            return b.bitcast(x, "double" if dtype.bits == 64 else "float")
        case "abs":
            if dtype.kind == "uint":
                return x
            return b.select(b.compare("icmp slt", x, zero), b.binary("sub", zero, x), x)
        case "sign":
            positive = b.compare("icmp ugt" if dtype.kind == "uint" else "icmp sgt", x, zero)
            one = b.select(positive, b.int(1, x), zero)
            if dtype.kind == "uint":
                return one
            return b.select(b.compare("icmp slt", x, zero), b.int(-1, x), one)
        case "floor" | "ceil" | "round" | "trunc":
            return x
        case "isnan" | "isinf":
            return Value("zeroinitializer", "i1", x.lanes) if x.lanes else boolean(False)
        case "fmod":
            return _truncated_remainder(builder, x, args[1], dtype)
        case "pow":
            return b.per_lane(lambda base, power: _integer_power(builder, base, power, dtype), *args)
    raise CodegenError(f"no code for {name} of {dtype}")


def _truncated_remainder(builder: FunctionBuilder, a: Value, b: Value, dtype: DType) -> Value:
    """The remainder with the sign of the dividend; 0 when the divisor is 0."""
    safe = _nonzero(builder, b)
    if dtype.kind == "uint":
        return _zero_if_zero(builder, b, _divided(builder, "urem", a, safe))
    minus_one = builder.compare("icmp eq", safe, builder.int(-1, safe))
    safe = builder.select(minus_one, builder.int(1, safe), safe)
    return _zero_if_zero(builder, b, _divided(builder, "srem", a, safe))


def _integer_power(builder: FunctionBuilder, base: Value, power: Value, dtype: DType) -> Value:
    """base ** power by squaring, wrapping; a negative power gives 0 except for bases 1 and -1."""
    b = builder
    kind = base.element
    loop, done = b.label("pow"), b.label("powend")
    before = b.block
    b.branch(loop)
    b.start_block(loop)
    result, square, left = b.name("r"), b.name("s"), b.name("e")
    at = len(b.lines)
    b.lines.extend(["", "", ""])
    current = Value(left, kind)
    odd = b.compare("icmp ne", b.binary("and", current, int_value(1, kind)), int_value(0, kind))
    multiplied = b.binary("mul", Value(result, kind), Value(square, kind))
    next_result = b.select(odd, multiplied, Value(result, kind))
    next_square = b.binary("mul", Value(square, kind), Value(square, kind))
    next_left = b.binary("lshr", current, int_value(1, kind))
    b.lines[at] = f"  {result} = phi {kind} [ 1, %{before} ], [ {next_result.text}, %{loop} ]"
    b.lines[at + 1] = f"  {square} = phi {kind} [ {base.text}, %{before} ], [ {next_square.text}, %{loop} ]"
    b.lines[at + 2] = f"  {left} = phi {kind} [ {power.text}, %{before} ], [ {next_left.text}, %{loop} ]"
    b.branch_if(b.compare("icmp eq", next_left, int_value(0, kind)), done, loop)
    b.start_block(done)
    if dtype.kind == "uint":
        return next_result
    negative = b.compare("icmp slt", power, int_value(0, kind))
    is_one = b.compare("icmp eq", base, int_value(1, kind))
    is_minus_one = b.compare("icmp eq", base, int_value(-1, kind))
    power_odd = b.compare("icmp ne", b.binary("and", power, int_value(1, kind)), int_value(0, kind))
    sign = b.select(power_odd, int_value(-1, kind), int_value(1, kind))
    small = b.select(is_one, int_value(1, kind), b.select(is_minus_one, sign, int_value(0, kind)))
    return b.select(negative, small, next_result)


def emit_cast(builder: FunctionBuilder, value: Value, source: DType, target: DType) -> Value:
    """`value` as another dtype: floats to integers saturate, integers to narrower ones wrap."""
    if source == target:
        return value
    if source in _AS_BITS:
        wide = emit_from_bf16(builder, value) if source == bf16 else emit_from_float8(builder, value, source)
        return emit_cast(builder, wide, f32, target)
    if target in _AS_BITS:
        if value.known is not None:
            return literal(Const(value.known, target))
        near = near_f32(builder, value, source)
        return emit_to_bf16(builder, near) if target == bf16 else emit_to_float8(builder, near, target)
    if target in SUB_BYTE and value.known is None:
        return _narrowed(builder, value, source, target)
    return _emit_plain_cast(builder, value, source, target)


_AS_BITS = (bf16, *NARROW_FLOATS)
"""Floats that are held as their bits."""

_EXACT = 1 << 52
"""Up to here f64 has all integers."""


def near_f32(builder: FunctionBuilder, value: Value, source: DType) -> Value:
    """An f32 that rounds on to narrower floats as `value` does."""
    b = builder
    if source.is_int and source.bits == 64:  # what is beyond f64 shows in a bit that it has
        rest = b.binary("and", value, b.int(0xFFF, value))
        sticky = b.select(b.compare("icmp eq", rest, b.int(0, value)), b.int(0, value), b.int(0x800, value))
        cut = b.binary("or", b.binary("and", value, b.int(-0x1000, value)), sticky)
        moved = value if source.kind == "uint" else b.binary("add", value, b.int(_EXACT, value))
        limit = b.int(_EXACT if source.kind == "uint" else 2 * _EXACT, value)
        value = b.select(b.compare("icmp ult", moved, limit), value, cut)
    if source == f64 or (source.is_int and source.bits >= 32):
        return emit_rounded_to_odd(b, emit_cast(b, value, source, f64))
    return emit_cast(b, value, source, f32)


def _narrowed(builder: FunctionBuilder, value: Value, source: DType, target: DType) -> Value:
    """`value` as an integer of less than a byte."""
    byte = i8 if target.kind == "int" else u8
    made = _emit_plain_cast(builder, value, source, byte)
    if source.is_float:
        low, high = int_range(target)
        made = builder.intrinsic("umin" if byte == u8 else "smin", made, builder.int(high, made))
        return made if byte == u8 else builder.intrinsic("smax", made, builder.int(low, made))
    return extended(builder, made, target)


def extended(builder: FunctionBuilder, value: Value, dtype: DType) -> Value:
    """The number that the lowest bits of a byte are in `dtype`, which is narrower; of a float, its bits."""
    bits = builder.binary("and", value, builder.int(2**dtype.bits - 1, value))
    if dtype.kind != "int":
        return bits
    sign = builder.int(2 ** (dtype.bits - 1), bits)
    return builder.binary("sub", builder.binary("xor", bits, sign), sign)


def _emit_plain_cast(builder: FunctionBuilder, value: Value, source: DType, target: DType) -> Value:
    """`emit_cast` among the types that LLVM has; integers of less than a byte are bytes."""
    b = builder
    kind = llvm_type(target)
    if target.is_bool:
        if value.known is not None:
            return boolean(value.known != 0)
        if source.is_float:
            return b.compare("fcmp une", value, b.float(0.0, value))
        return b.compare("icmp ne", value, b.int(0, value))
    if source.is_float and target.is_float:
        if source == f64 and target == f16 and not b.module.has("avx512fp16"):  # LLVM would call a function for each lane
            value = emit_rounded_to_odd(b, value)
            return b.convert("fptrunc", value, kind)
        return b.convert("fpext" if target.bits > source.bits else "fptrunc", value, kind)
    if source.is_float and (value.lanes or not b.saturates):
        return _saturated(b, value if source.bits >= 32 else b.convert("fpext", value, "float"), target)
    if source.is_float:
        signed = "s" if target.kind == "int" else "u"
        name = f"llvm.fpto{signed}i.sat.{mangled(Value('', kind, value.lanes))}.{mangled(value)}"
        result_type = Value("", kind, value.lanes).type
        builder.module.declare(name, result_type, [value.type])
        return b.emit(f"call {result_type} @{name}({value})", kind, value.lanes)
    if target.is_float:
        if value.known is not None:
            return Value(float_text(float(value.known), kind), kind)
        return b.convert("sitofp" if source.kind == "int" else "uitofp", value, kind)
    if value.known is not None:
        return int_value(_wrap(value.known, target), kind)
    held, wanted = max(source.bits, 8), max(target.bits, 8)
    if source.is_bool or wanted > held:
        return b.convert("sext" if source.kind == "int" else "zext", value, kind)
    return b.convert("trunc", value, kind) if wanted < held else Value(value.text, kind, value.lanes)


def _saturated(builder: FunctionBuilder, value: Value, target: DType) -> Value:
    """f32 or f64 as integers: the nearest one towards 0, NaN as 0, and the ends of the range for what is beyond.

    LLVM's saturating conversions of vectors are made lane by lane.
    """
    b, (low, high) = builder, int_range(target)
    kind, zero = llvm_type(target), b.float(0.0, value)
    convert = "fptosi" if target.kind == "int" or target.bits < 32 else "fptoui"
    if target.bits < 32:  # all of its numbers are numbers of f32, and of i32
        number = b.select(b.compare("fcmp ord", value, value), value, zero)
        for end, beyond in ((low, "olt"), (high, "ogt")):
            limit = b.float(float(end), value)
            number = b.select(b.compare(f"fcmp {beyond}", number, limit), limit, number)
        return b.convert("trunc", b.convert(convert, number, "i32"), kind)
    above = b.compare("fcmp oge", value, b.float(float(high + 1), value))  # a power of two, which high is not
    below = b.compare("fcmp olt", value, b.float(float(low), value))
    inside = b.compare("fcmp ord", value, value)
    for outside in (above, below):
        inside = b.binary("and", inside, b.binary("xor", outside, b.int(1, outside)))
    whole = b.convert(convert, b.select(inside, value, zero), kind)
    whole = b.select(inside, whole, b.int(0, whole))
    whole = b.select(above, b.int(high, whole), whole)
    return b.select(below, b.int(low, whole), whole)
