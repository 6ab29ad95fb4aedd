"""What each operation on numbers is in C: an operator where C's own has the IR's meaning, else a call of a helper.

Integers wrap without undefined behaviour: signed ones are added as unsigned ones. f16, bf16 and narrower floats are held as their bits, and
computed with in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tc.codegen.c.builder import ScalarBuilder, float_literal, helper_text
from tc.codegen.c.helpers import Helpers, function_text
from tc.codegen.c.small_floats import emit_from_f16, emit_to_f16
from tc.codegen.llvm.builder import Value, llvm_type
from tc.codegen.llvm.scalars import (
    BIT_OPS,
    emit_bit_operation,
    emit_cast,
    emit_division,
    emit_float_operation,
    emit_integer_math,
    near_f32,
)
from tc.codegen.llvm.vecmath import emit_math
from tc.interp.scalars import number
from tc.ir.arith import Facts
from tc.ir.dtype import NARROW_FLOATS, DType, bf16, bool_, f16, f32
from tc.ir.expr import (
    Add,
    And,
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
    Or,
    Select,
    Sub,
    Var,
    result_of_call,
)

PRIMARY, UNARY, PRODUCT, SUM, SHIFT, COMPARISON, EQUALITY, LOGICAL, CHOICE = 15, 14, 13, 12, 11, 10, 9, 5, 3


class CValue(NamedTuple):
    """An expression: its text, its dtype, its lanes (0: a number), how strongly its outermost operator binds, and of a mask the width."""

    text: str
    dtype: DType
    lanes: int = 0
    strength: int = PRIMARY
    mask_bits: int = 0

    def at(self, strength: int) -> str:
        """The text where an operand must bind so strongly."""
        return self.text if self.strength >= strength else f"({self.text})"

    def __str__(self) -> str:
        return self.text


AS_BITS = (f16, bf16, *NARROW_FLOATS)
"""Floats that are held as their bits."""

_INFIX: dict[type[Expr], tuple[str, int]] = {Add: ("+", SUM), Sub: ("-", SUM), Mul: ("*", PRODUCT), Div: ("/", PRODUCT)}
_COMPARE: dict[type[Expr], tuple[str, int]] = {Eq: ("==", EQUALITY), Ne: ("!=", EQUALITY), Lt: ("<", COMPARISON), Le: ("<=", COMPARISON)}
_INDEX: dict[type[Expr], tuple[str, int]] = {FloorDiv: ("/", PRODUCT), FloorMod: ("%", PRODUCT)}
BITWISE = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}
_OWN_FUNCTIONS = {"floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc", "abs": "fabs", "sqrt": "sqrt"}
_NAMES: dict[type[Expr], str] = {Div: "div", FloorDiv: "floordiv", FloorMod: "floormod", Min: "min", Max: "max", Select: "larger"}

Operation = type[Expr] | str
"""A class of expressions of two operands, or the name of a MathCall."""


def c_type(dtype: DType) -> str:
    """The type of a number in memory and in registers."""
    if dtype.is_bool:
        return "u8"
    if dtype in AS_BITS:
        return f"u{8 * dtype.size_bytes}"
    return dtype.name if dtype.bits >= 8 else f"{dtype.name[0]}8"


def literal(helpers: Helpers, const: Const) -> CValue:
    """A number."""
    dtype = const.dtype
    if dtype.is_bool:
        return CValue(str(int(const.value)), dtype)
    if dtype in AS_BITS:
        return CValue(f"{int(number(const.value, dtype).view(f'u{dtype.size_bytes}')):#x}", dtype)
    if dtype.is_float:
        text = float_literal(helpers, float(const.value), dtype.name)
        return CValue(text, dtype, strength=UNARY if text[0] == "-" else PRIMARY)
    value, suffix = int(const.value), helpers.dialect.long_suffix
    if dtype.kind == "uint":
        return CValue(f"{value}U{suffix}" if dtype.bits == 64 else f"{value}u", dtype)
    if value == -(1 << 63):
        return CValue(f"(-{-(value + 1)}{suffix} - 1)", dtype)
    text = f"{value}{suffix}" if abs(value) >= 1 << 31 else str(value)
    return CValue(f"(-{-(value + 1)} - 1)" if value == -(1 << 31) else text, dtype, strength=UNARY if value < 0 else PRIMARY)


class Scalars:
    """Operations on numbers, for one text."""

    def __init__(self, helpers: Helpers) -> None:
        self.helpers = helpers

    # -- operators

    def binary(self, operation: type[Expr], a: CValue, b: CValue) -> CValue:
        """a op b, of operands of one dtype."""
        dtype = a.dtype
        if operation in _COMPARE:
            return self._compare(operation, a, b)
        if operation in (And, Or):
            sign = "&&" if operation is And else "||"
            return CValue(f"{_logical(a, operation)} {sign} {_logical(b, operation)}", bool_, strength=LOGICAL)
        if operation is Select:
            return self.larger(a, b)
        if dtype in (f16, bf16):
            return self._in_f32(operation, a, b)
        if operation in _INFIX and dtype.is_float:
            sign, strength = _INFIX[operation]
            return CValue(f"{a.at(strength)} {sign} {b.at(strength + 1)}", dtype, strength=strength)
        if operation in (Add, Sub, Mul) and dtype.is_int:
            return self._wrapped(*_INFIX[operation], a, b)
        return self._call(operation, a, b)

    def index(self, operation: type[Expr], a: CValue, b: CValue) -> CValue:
        """The sum, difference or product of indices, which are in range; or their quotient or remainder where nothing is negative."""
        sign, strength = _INDEX.get(operation) or _INFIX[operation]
        return CValue(f"{a.at(strength)} {sign} {b.at(strength + 1)}", a.dtype, strength=strength)

    def fused(self, a: CValue, b: CValue, c: CValue) -> CValue:
        """a * b + c, rounded once."""
        if a.dtype in (f16, bf16):
            wide = [self.cast(each, f32) for each in (a, b, c)]
            return self.cast(self.fused(*wide), a.dtype)
        return CValue(f"{self.helpers.dialect.function('fma', a.dtype.name)}({a}, {b}, {c})", a.dtype)

    def opposite(self, a: CValue) -> CValue:
        """The negation of a bool."""
        return CValue(f"!{a.at(UNARY)}", bool_, strength=UNARY)

    def larger(self, a: CValue, b: CValue) -> CValue:
        """b where a < b, else a: the larger of two numbers where NaN does not count."""
        return self._in_f32(Select, a, b) if a.dtype in (f16, bf16) else self._call(Select, a, b)

    def choice(self, condition: CValue, a: CValue, b: CValue) -> CValue:
        return CValue(f"{condition.at(CHOICE + 1)} ? {a.at(CHOICE + 1)} : {b.at(CHOICE)}", a.dtype, strength=CHOICE)

    def _compare(self, operation: type[Expr], a: CValue, b: CValue) -> CValue:
        if a.dtype in AS_BITS:
            a, b = self.cast(a, f32), self.cast(b, f32)
        sign, strength = _COMPARE[operation]
        return CValue(f"{a.at(SHIFT)} {sign} {b.at(SHIFT)}", bool_, strength=strength)

    def _in_f32(self, operation: type[Expr], a: CValue, b: CValue) -> CValue:
        return self.cast(self.binary(operation, self.cast(a, f32), self.cast(b, f32)), a.dtype)

    def _wrapped(self, sign: str, strength: int, a: CValue, b: CValue) -> CValue:
        """Arithmetic modulo 2 ** bits."""
        dtype = a.dtype
        if dtype.kind == "uint" and dtype.bits >= 32:
            return CValue(f"{a.at(strength)} {sign} {b.at(strength + 1)}", dtype, strength=strength)
        word = f"u{max(dtype.bits, 32)}"
        return CValue(f"({c_type(dtype)})(({word}){a.at(UNARY)} {sign} ({word}){b.at(UNARY)})", dtype, strength=UNARY)

    def _call(self, operation: type[Expr], a: CValue, b: CValue) -> CValue:
        dtype = a.dtype
        params = ((dtype, "a"), (dtype, "b"))
        name = self._helper(f"tc_{_NAMES[operation]}_{dtype}", dtype, params, lambda b, x: _emit_binary(b, operation, x, dtype))
        return CValue(f"{name}({a}, {b})", dtype)

    # -- functions and casts

    def function(self, name: str, args: Sequence[CValue]) -> CValue:
        """A MathCall."""
        dtype = args[0].dtype
        if name == "fma" and dtype.is_float:
            return self.fused(*args)
        if dtype in (f16, bf16):
            wide = self.function(name, [self.cast(arg, f32) for arg in args])
            return wide if wide.dtype.is_bool else self.cast(wide, dtype)
        if name in _OWN_FUNCTIONS and dtype.is_float:
            return CValue(f"{self.helpers.dialect.function(_OWN_FUNCTIONS[name], dtype.name)}({args[0]})", dtype)
        if name in BITWISE:
            return CValue(f"({c_type(dtype)}){self.bitwise(name, *args)}", dtype, strength=UNARY)
        if name == "bit_not":
            return self.opposite(args[0]) if dtype.is_bool else CValue(f"({c_type(dtype)})~{args[0].at(UNARY)}", dtype, strength=UNARY)
        if dtype.is_int and name in ("floor", "ceil", "round", "trunc"):
            return args[0]
        result = result_of_call(name, dtype)
        params = [(dtype, f"x{k}") for k in range(len(args))]
        helper = self._helper(f"tc_{name}_{dtype}", result, params, lambda b, x: _emit_function(b, name, x, dtype))
        return CValue(f"{helper}({', '.join(map(str, args))})", result)

    def bitwise(self, name: str, a: CValue, b: CValue) -> CValue:
        """Of integers, in the type that C gives it."""
        return CValue(f"({a.at(PRIMARY)} {BITWISE[name]} {b.at(PRIMARY)})", a.dtype)

    def cast(self, value: CValue, target: DType) -> CValue:
        """Floats to integers truncate and saturate, integers wrap, anything to bool is whether it is not zero."""
        source = value.dtype
        if source == target:
            return value
        if target.is_bool and source not in AS_BITS:
            return CValue(f"{value.at(SHIFT)} != 0", bool_, strength=EQUALITY)
        if _is_plain_cast(source, target):
            return CValue(f"({c_type(target)}){value.at(UNARY)}", target, strength=UNARY)
        own = self.helpers.dialect.casts.get((target.name, source.name))
        if own is not None:
            name, head = f"tc_{target}_from_{source}", f"{self.helpers.dialect.helper} {c_type(target)}"
            self.helpers.need(name, lambda: function_text(f"{head} {name}({c_type(source)} x)", own))
            return CValue(f"{name}({value})", target)
        name = self._helper(f"tc_{target}_from_{source}", target, ((source, "x"),), lambda b, x: _emit_cast(b, x[0], source, target))
        return CValue(f"{name}({value})", target)

    def _helper(self, name: str, result: DType, params: Sequence[tuple[DType, str]], write: Callable[[Any, list[Value]], Value]) -> str:
        """A helper on numbers; `write` is told of its arguments."""

        def body(builder: ScalarBuilder) -> str:
            value = write(builder, [_received(builder, dtype, param) for dtype, param in params])
            text = builder._text(value)
            return f"({c_type(result)}){text}" if result.kind == "int" else text

        return self.helpers.need(name, lambda: helper_text(self.helpers, name, c_type(result), [(c_type(d), p) for d, p in params], body))


def _logical(value: CValue, operation: type[Expr]) -> str:
    """An operand of && or ||; in parentheses where a reader might take it for one of the other."""
    same, other = (" && ", " || ") if operation is And else (" || ", " && ")
    is_same = value.strength == LOGICAL and same in value.text and other not in value.text
    return value.text if value.strength > LOGICAL or is_same else f"({value})"


def _is_plain_cast(source: DType, target: DType) -> bool:
    """Whether C's own conversion is the IR's."""
    if source in AS_BITS or target in AS_BITS or min(source.bits, target.bits) < 8:
        return False
    return target.is_float or not source.is_float


def _received(builder: ScalarBuilder, dtype: DType, param: str) -> Value:
    """An argument as the builder holds it: integers without sign."""
    element = llvm_type(dtype) if dtype != f16 else "i16"
    if dtype.kind != "int":
        return Value(param, element)
    return builder.assign(f"(u{max(dtype.bits, 8)}){param}", element)


def _emit_binary(builder: ScalarBuilder, operation: type[Expr], args: list[Value], dtype: DType) -> Value:
    a, b = args
    if dtype.is_float:
        return emit_float_operation(builder, operation, a, b)
    if operation in (Min, Max):
        is_less = builder.compare("icmp slt" if dtype.kind == "int" else "icmp ult", a, b)
        return builder.select(is_less, a, b) if operation is Min else builder.select(is_less, b, a)
    return emit_division(builder, operation(Var("a", dtype), Var("b", dtype)), a, b, Facts())  # type: ignore[call-arg, arg-type]


def _emit_function(builder: ScalarBuilder, name: str, args: list[Value], dtype: DType) -> Value:
    if name == "bounded_quotient":  # a compiler of C divides as well
        x, by, _, low, high = args
        above = builder.select(builder.compare("fcmp ogt", x, low), x, low)
        return builder.binary("fdiv", builder.select(builder.compare("fcmp olt", above, high), above, high), by)
    if dtype.is_float:
        return emit_math(builder, name, *args)
    if name in BIT_OPS:
        return emit_bit_operation(builder, name, args, dtype)
    if name == "pow":
        return _integer_power(builder, args, dtype)
    return emit_integer_math(builder, name, tuple(args), dtype)


def _integer_power(builder: ScalarBuilder, args: list[Value], dtype: DType) -> Value:
    """base ** power by squaring, wrapping; a negative power gives 0 except for bases 1 and -1."""
    base, power = args
    kind, word = f"u{dtype.bits}", f"u{max(dtype.bits, 32)}"
    builder.lines += [
        f"{kind} result = 1, square = {base.text};",
        f"for ({kind} left = {power.text}; left != 0; left >>= 1) {{",
        f"    if (left & 1) result = ({kind})(({word})result * square);",
        f"    square = ({kind})(({word})square * square);",
        "}",
    ]
    result = Value("result", base.element)
    if dtype.kind == "uint":
        return result
    zero, one, minus_one = (builder.int(n, base) for n in (0, 1, -1))
    odd = builder.compare("icmp ne", builder.binary("and", power, one), zero)
    small = builder.select(builder.compare("icmp eq", base, minus_one), builder.select(odd, minus_one, one), zero)
    small = builder.select(builder.compare("icmp eq", base, one), one, small)
    return builder.select(builder.compare("icmp slt", power, zero), small, result)


def _emit_cast(builder: ScalarBuilder, value: Value, source: DType, target: DType) -> Value:
    if source == f16:
        return emit_cast(builder, emit_from_f16(builder, value), f32, target)
    if target == f16:
        wide = near_f32(builder, value, source) if source != f32 else value
        return emit_to_f16(builder, wide)
    return emit_cast(builder, value, source, target)


