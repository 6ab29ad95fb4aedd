"""Floats in LLVM IR with the operators of Python: what the functions of libm are written in."""

from __future__ import annotations

from dataclasses import dataclass

from tc.codegen.llvm.builder import FunctionBuilder, Value
from tc.codegen.llvm.vecmath import emit_math


@dataclass(frozen=True)
class Number:
    """A float of either width; each operator emits one instruction."""

    b: FunctionBuilder
    v: Value

    def _of(self, other: Number | float) -> Value:
        return other.v if isinstance(other, Number) else self.b.float(float(other), self.v)

    def _made(self, value: Value) -> Number:
        return Number(self.b, value)

    def __add__(self, other: Number | float) -> Number:
        return self._made(self.b.binary("fadd", self.v, self._of(other)))

    def __sub__(self, other: Number | float) -> Number:
        return self._made(self.b.binary("fsub", self.v, self._of(other)))

    def __rsub__(self, other: float) -> Number:
        return self._made(self.b.binary("fsub", self._of(other), self.v))

    def __mul__(self, other: Number | float) -> Number:
        return self._made(self.b.binary("fmul", self.v, self._of(other)))

    def __truediv__(self, other: Number | float) -> Number:
        return self._made(self.b.binary("fdiv", self.v, self._of(other)))

    def __rtruediv__(self, other: float) -> Number:
        return self._made(self.b.binary("fdiv", self._of(other), self.v))

    def __neg__(self) -> Number:
        return self._made(self.b.fneg(self.v))

    def fma(self, factor: Number | float, addend: Number | float) -> Number:
        """self * factor + addend, rounded once."""
        return self._made(self.b.fma(self.v, self._of(factor), self._of(addend)))

    def math(self, name: str) -> Number:
        """A function that has code of its own: exp, abs, sqrt, trunc, round ..."""
        return self._made(emit_math(self.b, name, self.v))

    def with_sign_of(self, other: Number) -> Number:
        """self, not negative, with the sign of another number."""
        return self._made(self.b.intrinsic("copysign", self.v, other.v))

    def test(self, predicate: str, other: Number | float) -> Value:
        """A comparison, by LLVM's name of it."""
        return self.b.compare(f"fcmp {predicate}", self.v, self._of(other))

    def where(self, condition: Value, other: Number | float) -> Number:
        """`other` where a condition holds, else self."""
        return self._made(self.b.select(condition, self._of(other), self.v))

    def series(self, coefficients: list[float]) -> Number:
        """The sum of coefficients times powers, the lowest first."""
        total = self._made(self.b.float(coefficients[-1], self.v))
        for coefficient in reversed(coefficients[:-1]):
            total = total.fma(self, coefficient)
        return total

    @property
    def bits(self) -> Value:
        """As an integer."""
        return self.b.bitcast(self.v, "i64" if self.v.element == "double" else "i32")


def from_bits(b: FunctionBuilder, bits: Value) -> Number:
    """The float that has these bits."""
    return Number(b, b.bitcast(bits, "double" if bits.element == "i64" else "float"))


def either(b: FunctionBuilder, condition: Value, yes: Number, no: Number) -> Number:
    """One of two numbers."""
    return Number(b, b.select(condition, yes.v, no.v))
