"""Conversions between floats of 8 bits and of 4, held as their bits in an i8, and f32: integer arithmetic that vectors have everywhere.

Rounding is to nearest, ties to even, once. What is too large becomes infinity, or NaN where there is none; NaN stays NaN. f4e2m1, which
has neither, and f8e8m0, which has powers of two and NaN: see `tc.ir.dtype.round_to`.
Source: Micikevicius et al., "FP8 Formats for Deep Learning", and Noune et al., "8-bit Numerical Formats for Deep Neural Networks";
Open Compute Project, "OCP Microscaling Formats (MX) Specification".
"""

from __future__ import annotations

from dataclasses import dataclass

from tc.codegen.llvm.builder import FunctionBuilder, Value
from tc.ir.dtype import DType, f4e2m1, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0


@dataclass(frozen=True)
class _Format:
    """`mantissa`: bits of the fraction. `overflow`: the bits, sign apart, of what is too large, and of NaN where there is no infinity;
    with `signed_zero` false, the one NaN has the bits of a negative zero. `sign`: its bit. `has_nan`: else `nan` is what NaN becomes."""

    mantissa: int
    bias: int
    overflow: int
    nan: int
    signed_zero: bool = True
    sign: int = 0x80
    has_nan: bool = True


_FORMATS = {
    f8e4m3fn: _Format(3, 7, 0x7F, 0x7F),
    f8e5m2: _Format(2, 15, 0x7C, 0x7E),
    f8e4m3fnuz: _Format(3, 8, 0x80, 0x80, signed_zero=False),
    f8e5m2fnuz: _Format(2, 16, 0x80, 0x80, signed_zero=False),
    f4e2m1: _Format(1, 1, 0x7, 0x8, sign=0x8, has_nan=False),
}
_FLOAT_BIAS, _FLOAT_MANTISSA, _NAN, _EXPONENT_NAN = 127, 23, 0x7FC00000, 0xFF


def emit_from_float8(b: FunctionBuilder, value: Value, source: DType) -> Value:
    """The f32 of the same value; of a NaN a quiet one."""
    bits = b.convert("zext", value, "i32")
    if source is f8e8m0:
        return _from_exponent(b, bits)
    form = _FORMATS[source]
    size = b.binary("and", bits, b.int(form.sign - 1, bits))
    sign = b.binary("shl", b.binary("and", bits, b.int(form.sign, bits)), b.int(32 - form.sign.bit_length(), bits))
    moved = b.binary("shl", size, b.int(_FLOAT_MANTISSA - form.mantissa, bits))
    normal = b.binary("add", moved, b.int((_FLOAT_BIAS - form.bias) << _FLOAT_MANTISSA, bits))
    count = b.convert("sitofp", size, "float")
    scaled = b.binary("fmul", count, b.float(2.0 ** (1 - form.bias - form.mantissa), count))
    is_small = b.compare("icmp ult", size, b.int(1 << form.mantissa, bits))
    number = b.select(is_small, b.bitcast(scaled, "i32"), normal)
    if not form.has_nan:
        return b.bitcast(b.binary("or", number, sign), "float")
    if form.signed_zero:
        if form.overflow != form.nan:
            infinity = b.compare("icmp eq", size, b.int(form.overflow, bits))
            number = b.select(infinity, b.int(0x7F800000, bits), number)
        is_nan = b.compare("icmp ugt", size, b.int(form.overflow if form.overflow != form.nan else form.nan - 1, bits))
    else:
        is_nan = b.compare("icmp eq", bits, b.int(form.nan, bits))
    number = b.select(is_nan, b.int(_NAN, bits), number)
    return b.bitcast(b.binary("or", number, sign), "float")


def emit_to_float8(b: FunctionBuilder, value: Value, target: DType) -> Value:
    """The bits of an f32 rounded to `target`."""
    bits = b.bitcast(value, "i32")
    if target is f8e8m0:
        return _to_exponent(b, bits)
    form = _FORMATS[target]
    cut = _FLOAT_MANTISSA - form.mantissa
    size = b.binary("and", bits, b.int(0x7FFFFFFF, bits))
    sign = b.binary("and", b.binary("lshr", bits, b.int(32 - form.sign.bit_length(), bits)), b.int(form.sign, bits))
    odd = b.binary("and", b.binary("lshr", size, b.int(cut, bits)), b.int(1, bits))
    least_normal = (_FLOAT_BIAS - form.bias + 1) << _FLOAT_MANTISSA
    rebased = b.binary("add", size, b.int((1 << (cut - 1)) - 1 - ((_FLOAT_BIAS - form.bias) << _FLOAT_MANTISSA), bits))
    normal = b.binary("lshr", b.binary("add", rebased, odd), b.int(cut, bits))
    # Beside a number whose last bit is worth as much as the least one here, adding rounds to multiples of it.
    exponent = _FLOAT_MANTISSA + 1 - form.bias - form.mantissa
    lifted = b.binary("fadd", b.bitcast(size, "float"), b.float(2.0**exponent, value))
    small = b.binary("sub", b.bitcast(lifted, "i32"), b.int((exponent + _FLOAT_BIAS) << _FLOAT_MANTISSA, bits))
    number = b.select(b.compare("icmp ult", size, b.int(least_normal, bits)), small, normal)
    too_large = b.compare("icmp ugt", number, b.int(form.overflow - 1, bits))
    number = b.select(too_large, b.int(form.overflow, bits), number)
    number = b.select(b.compare("icmp ugt", size, b.int(0x7F800000, bits)), b.int(form.nan, bits), number)
    if not form.signed_zero:
        sign = b.select(b.compare("icmp eq", number, b.int(0, bits)), b.int(0, bits), sign)
    return b.convert("trunc", b.binary("or", number, sign), "i8")


def _from_exponent(b: FunctionBuilder, code: Value) -> Value:
    """f8e8m0, whose bits are the exponent of an f32; the least number is a denormal f32."""
    number = b.binary("shl", code, b.int(_FLOAT_MANTISSA, code))
    number = b.select(b.compare("icmp eq", code, b.int(0, code)), b.int(1 << (_FLOAT_MANTISSA - 1), code), number)
    number = b.select(b.compare("icmp eq", code, b.int(_EXPONENT_NAN, code)), b.int(_NAN, code), number)
    return b.bitcast(number, "float")


def _to_exponent(b: FunctionBuilder, bits: Value) -> Value:
    """f8e8m0: the exponent, and one more from the middle on; that of denormal numbers is none but the middle's."""
    is_small = b.compare("icmp ult", bits, b.int(1 << _FLOAT_MANTISSA, bits))
    half = b.select(is_small, b.int(1 << (_FLOAT_MANTISSA - 2), bits), b.int(1 << (_FLOAT_MANTISSA - 1), bits))
    code = b.binary("lshr", b.binary("add", bits, half), b.int(_FLOAT_MANTISSA, bits))
    # Zero as the largest integer is out of range, as signs are.
    is_number = b.compare("icmp ult", b.binary("sub", bits, b.int(1, bits)), b.int(0x7F7FFFFF, bits))
    code = b.select(is_number, code, b.int(_EXPONENT_NAN, code))
    return b.convert("trunc", code, "i8")


def emit_rounded_to_odd(b: FunctionBuilder, value: Value) -> Value:
    """An f64 as an f32 whose last bit says whether anything was cut off: it rounds on to a narrower float correctly.

    Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd".
    """
    near = b.convert("fptrunc", value, "float")
    back = b.convert("fpext", near, "double")
    exact = b.compare("fcmp ueq", back, value)
    over = b.compare("fcmp ogt", b.intrinsic("fabs", back), b.intrinsic("fabs", value))
    bits = b.bitcast(near, "i32")
    below = b.binary("sub", bits, b.convert("zext", over, "i32"))
    odd = b.binary("or", below, b.int(1, bits))
    return b.bitcast(b.select(exact, bits, odd), "float")
