"""Scalars of every dtype, exactly: each operation gives what the IR says, rounded or wrapped to its dtype.

A value is a numpy scalar of its dtype, whose own operators round (floats) and wrap (integers), except that an i64 is a Python int, so
that indices are cheap, and a bool is a bool. Arithmetic of i64 wraps where `wrap` is asked for: dims and indices are unbounded.
Functions such as exp are computed in float64 and rounded once.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tc.errors import VerifyError
from tc.ir.dtype import NARROW_FLOATS, DType, bf16, f4e2m1, f8e8m0, f32, f64, i64, int_range, round_to, u32, u64
from tc.ir.expr import Const

Scalar = Any
POISON = 1_000_003


def literal(const: Const) -> Scalar:
    """The value of a literal."""
    return number(const.value, const.dtype)


def number(value: int | float | bool, dtype: DType) -> Scalar:
    """A Python number as a scalar of `dtype`: floats are rounded, integers wrapped."""
    if dtype.is_bool:
        return bool(value)
    if dtype.is_float:
        return _round(float(value), dtype)
    return wrap(int(value), dtype)


def poison(dtype: DType) -> Scalar:
    """What memory holds before it is written: NaN, or a large number."""
    return number(math.nan, dtype) if dtype.is_float else number(POISON % (1 << (dtype.bits - 1)), dtype)


def wrap(value: int, dtype: DType) -> Scalar:
    """An integer modulo 2**bits, in the range of `dtype`."""
    low, high = int_range(dtype)
    if not low <= value <= high:
        value = (value - low) % (high - low + 1) + low
    return value if dtype == i64 else dtype.numpy.type(value)


def _round(value: float, dtype: DType) -> Scalar:
    """A double rounded once to `dtype`."""
    if dtype == f64:
        return np.float64(value)
    if dtype in (f8e8m0, f4e2m1):
        return round_to(np.asarray(value), dtype)[()]
    if dtype == bf16 or dtype in NARROW_FLOATS:  # their constructors go through float32: make that step keep what decides the rounding
        value = _odd_float32(value)
    return dtype.numpy.type(value)


def _odd_float32(value: float) -> float:
    """`value` cut to float32; if that loses anything, the last bit is set, so that another rounding cannot go wrong."""
    if not math.isfinite(value):
        return value
    near = float(np.float32(value))
    if near == value or math.isinf(near):
        return near
    bits = int(struct.unpack("<I", struct.pack("<f", near))[0])
    if bits & 1:
        return near
    step = 1 if (abs(value) > abs(near)) else -1
    return float(struct.unpack("<f", struct.pack("<I", bits + step))[0])


def convert(source: DType, target: DType) -> Callable[[Scalar], Scalar]:
    """The function that `Cast` from `source` to `target` is."""
    if target.is_bool:
        return lambda x: bool(x != 0)
    if target.is_float:
        if source.is_float:
            return lambda x: _round(float(x), target)
        if target == f64:
            return lambda x: np.float64(int(x))
        return lambda x: _round(_sticky_float(int(x)), target)
    if source.is_float:
        return lambda x: _saturated(float(x), target)
    return lambda x: wrap(int(x), target)


def _sticky_float(value: int) -> float:
    """An integer of up to 64 bits as a double whose last bit says whether anything was cut off: it rounds on to f32 correctly."""
    if abs(value) <= 1 << 53:
        return float(value)
    size = abs(value)
    kept = (size >> 12) | bool(size & 0xFFF)
    return math.copysign(kept * 4096.0, value)


def _saturated(value: float, dtype: DType) -> Scalar:
    """Truncated toward zero and clipped to the range of `dtype`; NaN is 0."""
    low, high = int_range(dtype)
    if value != value:
        return wrap(0, dtype)
    return wrap(low if value <= low else high if value >= high else int(value), dtype)


# -- operators that Python and numpy lack


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """The smaller; NaN if either is. Of two equal ones the second, which matters for zeros only."""
    return a if a < b or a != a else b


def maximum(a: Scalar, b: Scalar) -> Scalar:
    return a if a > b or a != a else b


def floor_divide(a: Scalar, b: Scalar) -> Scalar:
    return a // b if b else 0 * b


def floor_modulo(a: Scalar, b: Scalar) -> Scalar:
    return a % b if b else 0 * b


@functools.cache
def divider(dtype: DType) -> Callable[[Scalar, Scalar], Scalar]:
    """`Div` of integers: toward zero; 0 when the divisor is 0."""

    def divide(a: Scalar, b: Scalar) -> Scalar:
        x, y = int(a), int(b)
        if y == 0:
            return wrap(0, dtype)
        size = abs(x) // abs(y)
        return wrap(size if (x < 0) == (y < 0) else -size, dtype)

    return divide


# -- functions


@functools.cache
def function(name: str, dtype: DType) -> Callable[..., Scalar]:
    """The function that `MathCall(name)` is on arguments of `dtype`."""
    table = _float_functions(dtype) if dtype.is_float else _integer_functions(dtype)
    if name not in table:
        raise VerifyError(f"{name} is not defined for {dtype}")
    return table[name]


def _float_functions(dtype: DType) -> dict[str, Callable[..., Scalar]]:
    def rounded(exact: Callable[..., Any]) -> Callable[..., Scalar]:
        return lambda *args: _round(float(exact(*map(np.float64, args))), dtype)

    return {name: rounded(exact) for name, exact in _IN_FLOAT64.items()} | {
        "isnan": lambda x: bool(x != x),
        "isinf": lambda x: math.isinf(float(x)),
        "round_tf32": lambda x: _round_tf32(x, dtype),
        "float_bits": lambda x: _float_bits(x, dtype),
        "bounded_quotient": lambda x, y, _, low, high: np.fmin(np.fmax(x, low), high) / y,
        "fma": lambda a, b, c: _fma(float(a), float(b), float(c), dtype),
    }


_IN_FLOAT64: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "decay": np.exp,
    "exp_brief": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "erf": lambda x: math.erf(x),
    "normal_cdf": lambda x: 0.5 * math.erfc(-x * math.sqrt(0.5)),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)) if x >= 0 or x != x else np.exp(x) / (1.0 + np.exp(x)),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.float64(1.0) / np.sqrt(x),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "abs": np.abs,
    "sign": np.sign,
    "pow": np.power,
    "fmod": np.fmod,
}
"""For f32 and narrower, sqrt, and all functions with exact results, come out exact: a double has twice their digits and more."""


def _round_tf32(x: Scalar, dtype: DType) -> Scalar:
    """An f32 rounded to 11 significant bits, ties away from zero. VerifyError for another type."""
    if dtype != f32:
        raise VerifyError(f"round_tf32 is not defined for {dtype}")
    if not math.isfinite(float(x)):
        return x
    bits = np.float32(x).view(np.uint32)
    return (bits + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


def _float_bits(x: Scalar, dtype: DType) -> Scalar:
    """VerifyError for another type than f32 and f64."""
    if dtype not in (f32, f64):
        raise VerifyError(f"float_bits is not defined for {dtype}")
    return dtype.numpy.type(x).view(f"u{dtype.size_bytes}")


def _float_of_bits(x: Scalar, dtype: DType) -> Scalar:
    """VerifyError for another type than u32 and u64."""
    if dtype not in (u32, u64):
        raise VerifyError(f"float_of_bits is not defined for {dtype}")
    return dtype.numpy.type(x).view(f"f{dtype.size_bytes}")


def _fma(a: float, b: float, c: float, dtype: DType) -> Scalar:
    """a * b + c, rounded once."""
    product = a * b
    total = product + c
    if dtype == f64:
        return np.float64(_fma_float64(a, b, c) if math.isfinite(total) else total)
    if not math.isfinite(total):
        return _round(total, dtype)
    back = total - product  # the product of two narrow floats is exact in a double; Knuth's two-sum finds what the sum lost
    lost = (product - (total - back)) + (c - back)
    if lost:
        bits = int(struct.unpack("<q", struct.pack("<d", total))[0])
        if not bits & 1:
            total = float(struct.unpack("<d", struct.pack("<q", bits + (1 if (lost > 0) == (total > 0) else -1)))[0])
    return _round(total, dtype)


def _fma_float64(a: float, b: float, c: float) -> float:
    """By integers of any size: slow, and right."""
    (an, ad), (bn, bd), (cn, cd) = a.as_integer_ratio(), b.as_integer_ratio(), c.as_integer_ratio()
    numerator, denominator = an * bn * cd + cn * ad * bd, ad * bd * cd
    return numerator / denominator if numerator else a * b + c  # division of integers rounds once; keeps the sign of a zero


def _integer_functions(dtype: DType) -> dict[str, Callable[..., Scalar]]:
    def wrapped(exact: Callable[..., int]) -> Callable[..., Scalar]:
        return lambda *args: wrap(int(exact(*map(int, args))), dtype)

    if dtype.is_bool:
        return {
            "bit_and": lambda a, b: a and b,
            "bit_or": lambda a, b: a or b,
            "bit_xor": lambda a, b: bool(a) != bool(b),
            "bit_not": lambda a: not a,
        }
    bits = dtype.bits
    return {
        "abs": wrapped(abs),
        "sign": wrapped(lambda x: (x > 0) - (x < 0)),
        **dict.fromkeys(("floor", "ceil", "round", "trunc"), lambda x: x),
        **dict.fromkeys(("isnan", "isinf"), lambda x: False),
        "bit_and": wrapped(lambda a, b: a & b),
        "bit_or": wrapped(lambda a, b: a | b),
        "bit_xor": wrapped(lambda a, b: a ^ b),
        "bit_not": wrapped(lambda a: ~a),
        "shift_left": wrapped(lambda a, n: a << n if 0 <= n < bits else 0),
        "shift_right": wrapped(lambda a, n: a >> n if 0 <= n < bits else -(a < 0)),
        "fmod": wrapped(_remainder),
        "float_of_bits": lambda x: _float_of_bits(x, dtype),
        "pow": wrapped(lambda a, n: pow(a, n, 1 << bits) if n >= 0 else _inverse_power(a, n)),
    }


def _remainder(a: int, b: int) -> int:
    """With the sign of the dividend; 0 when the divisor is 0."""
    return 0 if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)


def _inverse_power(base: int, power: int) -> int:
    """1 / base ** -power toward zero."""
    if base in (1, -1):
        return 1 if base == 1 or power % 2 == 0 else -1
    return 0
