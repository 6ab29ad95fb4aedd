"""Arithmetic written as C, one operation a line: for the bodies of helpers whose meaning is stated once for LLVM and for C.

The functions of `tc.codegen.llvm.scalars`, `vecmath`, `bfloat` and `float8` say what operations mean by calls of a builder. Given this one
they write C. Integers have no sign here, as in LLVM: they are held as unsigned numbers, whose arithmetic wraps.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable
from typing import Any

from tc.codegen.c.helpers import Helpers, folded, function_text, without_unused
from tc.codegen.llvm.builder import POWER_OF_TWO, FunctionBuilder, Module, Value, int_value

_TYPES = {"i1": "i32", "i8": "u8", "i16": "u16", "i32": "u32", "i64": "u64", "float": "f32", "double": "f64"}
_WIDTHS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<", "lshr": ">>", "udiv": "/", "urem": "%",
    "fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/", "frem": "%",
}  # fmt: skip
_SHIFTS = ("shl", "lshr")
_SIGNED_INFIX = {"ashr": ">>", "sdiv": "/", "srem": "%"}
_INTEGER_COMPARE = {
    "eq": "==", "ne": "!=",
    **{f"{sign}{name}": text for sign in "su" for name, text in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
}
_FLOAT_COMPARE = {
    "oeq": "{a} == {b}",
    "une": "{a} != {b}",
    "olt": "{a} < {b}",
    "ole": "{a} <= {b}",
    "ogt": "{a} > {b}",
    "oge": "{a} >= {b}",
    "ult": "!({a} >= {b})",
    "ule": "!({a} > {b})",
    "ugt": "!({a} <= {b})",
    "uge": "!({a} < {b})",
    "ueq": "!({a} < {b} || {a} > {b})",
    "ord": "{a} == {a} && {b} == {b}",
    "uno": "{a} != {a} || {b} != {b}",
}
_OF_ONE = {"ord": "{a} == {a}", "uno": "{a} != {a}"}
_OTHER_NAMES = {"roundeven": "rint"}
_EXTREMES = {"smin": "<", "smax": ">", "umin": "<", "umax": ">"}


class ScalarBuilder(FunctionBuilder):
    """Writes the statements of one helper. Values are numbers; there are no vectors."""

    saturates = False

    def __init__(self, helpers: Helpers) -> None:
        super().__init__(Module())
        self.helpers = helpers

    # -- text

    def assign(self, text: str, element: str) -> Value:
        """A new variable with the value of an expression."""
        self._count += 1
        name = f"t{self._count}"
        self.lines.append(f"const {_TYPES[element]} {name} = {text};")
        return Value(name, element)

    def emit(self, text: str, element: str, lanes: int = 0) -> Value:
        raise AssertionError(f"LLVM text where C is written: {text}")

    def _text(self, value: Value) -> str:
        if value.known is None:
            return value.text
        return unsigned_literal(value.known, _WIDTHS[value.element], self.helpers.dialect.long_suffix)

    def _shift(self, value: Value) -> str:
        """By how many bits."""
        return self._text(value) if value.known is None else str(value.known)

    def signed(self, value: Value) -> str:
        """The number that an integer's bits are as a signed one."""
        return f"(i{_WIDTHS[value.element]}){self._text(value)}"

    # -- arithmetic

    def binary(self, op: str, a: Value, b: Value) -> Value:
        op = op.split()[0]
        if op in _SIGNED_INFIX:
            right = self._shift(b) if op == "ashr" else self.signed(b)
            return self.assign(f"({_TYPES[a.element]})({self.signed(a)} {_SIGNED_INFIX[op]} {right})", a.element)
        left = f"(u32){self._text(a)}" if a.element in ("i8", "i16") else self._text(a)  # u16 * u16 would be an int, and may not fit
        text = f"{left} {_INFIX[op]} {self._shift(b) if op in _SHIFTS else self._text(b)}"
        return self.assign(f"({_TYPES[a.element]})({text})" if a.element in ("i8", "i16") else text, a.element)

    def compare(self, op: str, a: Value, b: Value) -> Value:
        kind, name = op.split()
        if kind == "fcmp":
            form = _OF_ONE[name] if name in _OF_ONE and a == b else _FLOAT_COMPARE[name]
            return self.assign(form.format(a=self._text(a), b=self._text(b)), "i1")
        show = self.signed if name[0] == "s" else self._text
        return self.assign(f"{show(a)} {_INTEGER_COMPARE[name]} {show(b)}", "i1")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.assign(f"{self._text(condition)} ? {self._text(a)} : {self._text(b)}", a.element)

    def convert(self, op: str, value: Value, element: str) -> Value:
        kind = _TYPES[element]
        match op:
            case "bitcast":
                return self.assign(self._bitcast(value, element), element)
            case "sext":
                return self.assign(f"({kind})(i{_WIDTHS[element]}){self.signed(value)}", element)
            case "sitofp":
                return self.assign(f"({kind}){self.signed(value)}", element)
            case "fptosi":
                return self.assign(f"({kind})(i{_WIDTHS[element]}){self._text(value)}", element)
            case "trunc" if element == "i1":
                return self.assign(f"(i32)({self._text(value)} & 1)", element)
        return self.assign(f"({kind}){self._text(value)}", element)  # zext, trunc, uitofp, fptoui, fpext, fptrunc

    def _bitcast(self, value: Value, element: str) -> str:
        is_float = element in ("float", "double")
        name = "f32" if "float" in (element, value.element) else "f64"
        return f"{bits_function(self.helpers, name, to_float=is_float)}({self._text(value)})"

    def intrinsic(self, name: str, *args: Value, element: str | None = None) -> Value:
        first = args[0]
        if name in _EXTREMES:
            show = self.signed if name[0] == "s" else self._text
            a, b = args
            return self.assign(f"{show(a)} {_EXTREMES[name]} {show(b)} ? {self._text(a)} : {self._text(b)}", first.element)
        called = self.helpers.dialect.function(_OTHER_NAMES.get(name, name), _TYPES[first.element])
        return self.assign(f"{called}({', '.join(map(self._text, args))})", first.element)

    def libm(self, name: str, *args: Value) -> Value:
        """In double, rounded once for f32, as compilers for processors have it; on a device in the type of the arguments."""
        kind = _TYPES[args[0].element]
        if not self.helpers.dialect.is_host:
            return self.assign(f"{self.helpers.dialect.function(name, kind)}({', '.join(map(self._text, args))})", args[0].element)
        text = f"{name}({', '.join(map(self._text, args))})"
        return self.assign(f"({kind}){text}" if kind == "f32" else text, args[0].element)

    @property
    def has_power_of_two(self) -> bool:
        return self.helpers.dialect.has_warps  # it takes PTX

    def power_of_two(self, x: Value) -> Value:
        head = f"{self.helpers.dialect.helper} f32 tc_power_of_two(f32 x) {{"
        lines = (head, "    f32 y;", f'    asm("{POWER_OF_TWO} %0, %1;" : "=f"(y) : "f"(x));', "    return y;", "}")
        name = self.helpers.need("tc_power_of_two", lambda: "\n".join(lines))
        return self.assign(f"{name}({self._text(x)})", "float")

    def fneg(self, a: Value) -> Value:
        return self.assign(f"-{self._text(a)}", a.element)

    def float(self, value: float, like: Value) -> Value:
        return Value(float_literal(self.helpers, value, _TYPES[like.element]), like.element)

    def add(self, a: Value, b: Value) -> Value:
        return self.binary("add", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.binary("mul", a, b)

    def splat(self, value: Value, lanes: int) -> Value:
        return value

    def unify(self, *values: Value) -> tuple[Value, ...]:
        return values

    def per_lane(self, fn: Callable[..., Value], *args: Value) -> Value:
        return fn(*args)

    def int(self, value: int, like: Value, element: str | None = None) -> Value:
        return int_value(value, element or like.element)


def unsigned_literal(value: int, bits: int, long_suffix: str) -> str:
    """The bits of a number as an unsigned literal."""
    number = value & ((1 << bits) - 1)
    suffix = {1: "", 8: "", 16: "", 32: "u", 64: f"U{long_suffix}"}[bits]
    return f"{number:#x}{suffix}" if number > 9 else f"{number}{suffix}"


def float_literal(helpers: Helpers, value: float, kind: str) -> str:
    """An f32 or f64, exact; what is no number by its bits."""
    if math.isinf(value):
        return f"{'-' * (value < 0)}{_infinity(helpers)}"
    if not math.isfinite(value) or (kind == "f32" and math.isinf(_rounded(value))):
        code = "<f" if kind == "f32" else "<d"
        bits = int.from_bytes(struct.pack(code, _rounded(value) if kind == "f32" else value), "little")
        bits = bits if value == value else (0x7FC00000 if kind == "f32" else 0x7FF8000000000000)
        text = f"{bits:#x}u" if kind == "f32" else f"{bits:#x}U{helpers.dialect.long_suffix}"
        return f"{bits_function(helpers, kind, to_float=True)}({text})"
    if kind == "f64":
        return repr(value)
    near = _rounded(value)
    return f"{_shortest(near)}f"


def _infinity(helpers: Helpers) -> str:
    """Its name, which a dialect has, or a macro."""
    own = helpers.dialect.infinity
    return own or helpers.need("TC_INFINITY", lambda: f"#define TC_INFINITY {helpers.dialect.bits['f32'][0]}(0x7f800000u)")


def _rounded(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _shortest(value: float) -> str:
    """The shortest decimal that reads as this f32."""
    for digits in range(1, 18):
        text = f"{value:.{digits}g}"
        if _rounded(float(text)) == value:
            break
    return text if re.search(r"[.e]", text) else f"{text}.0"


def bits_function(helpers: Helpers, kind: str, *, to_float: bool) -> str:
    """The function between an f32 or f64 and its bits: the language's, or a helper."""
    own = helpers.dialect.bits.get(kind)
    if own is not None and not own[0].startswith("tc_"):
        return own[0] if to_float else own[1]
    word = "u32" if kind == "f32" else "u64"
    name, source, target = (f"tc_{kind}_of_bits", word, kind) if to_float else (f"tc_bits_of_{kind}", kind, word)
    lines = [f"{helpers.dialect.helper} {target} {name}({source} x) {{", f"    union {{ {source} from; {target} to; }} both;"]
    return helpers.need(name, lambda: "\n".join([*lines, "    both.from = x;", "    return both.to;", "}"]))


def helper_text(helpers: Helpers, name: str, result: str, params: Iterable[tuple[str, str]], write: Callable[[Any], str]) -> str:
    """The text of a helper of these params (type, name); `write` writes its body into a builder, and gives the value of the call."""
    builder = ScalarBuilder(helpers)
    value = write(builder)
    arguments = ", ".join(f"{kind} {param}" for kind, param in params)
    body = folded(without_unused([f"    {line}" for line in (*builder.lines, f"return {value};")]))
    return function_text(f"{helpers.dialect.helper} {result} {name}({arguments})", body)
