"""f16 values as their bits in an i16: conversions to and from f32 by integer arithmetic, right on every processor and device.

Rounding is to nearest, ties to even, once; NaN stays NaN, quiet.
"""

from __future__ import annotations

from tc.codegen.llvm.builder import FunctionBuilder, Value


def emit_from_f16(b: FunctionBuilder, value: Value) -> Value:
    """The f32 of the same value."""
    bits = b.convert("zext", value, "i32")
    sign = b.binary("shl", b.binary("and", bits, b.int(0x8000, bits)), b.int(16, bits))
    size = b.binary("and", bits, b.int(0x7FFF, bits))
    moved = b.binary("shl", size, b.int(13, bits))
    normal = b.binary("add", moved, b.int(112 << 23, bits))
    special = b.binary("add", moved, b.int(224 << 23, bits))
    large = b.select(b.compare("icmp uge", size, b.int(0x7C00, bits)), special, normal)
    count = b.convert("sitofp", size, "float")
    small = b.bitcast(b.binary("fmul", count, b.float(2.0**-24, count)), "i32")
    number = b.select(b.compare("icmp ult", size, b.int(0x400, bits)), small, large)
    quiet = b.select(b.compare("icmp ugt", size, b.int(0x7C00, bits)), b.int(0x400000, bits), b.int(0, bits))
    return b.bitcast(b.binary("or", b.binary("or", number, quiet), sign), "float")


def emit_to_f16(b: FunctionBuilder, value: Value) -> Value:
    """The bits of an f32 rounded to f16."""
    bits = b.bitcast(value, "i32")
    size = b.binary("and", bits, b.int(0x7FFFFFFF, bits))
    sign = b.binary("and", b.binary("lshr", bits, b.int(16, bits)), b.int(0x8000, bits))
    payload = b.binary("lshr", size, b.int(13, bits))
    nan = b.binary("or", b.binary("and", payload, b.int(0x3FF, bits)), b.int(0x7E00, bits))
    odd = b.binary("and", payload, b.int(1, bits))
    rebased = b.binary("sub", size, b.int((112 << 23) - 0xFFF, bits))
    normal = b.binary("lshr", b.binary("add", rebased, odd), b.int(13, bits))
    normal = b.select(b.compare("icmp uge", size, b.int(0x477FF000, bits)), b.int(0x7C00, bits), normal)
    # Beside a number whose last bit is worth as much as the least f16, adding rounds to multiples of it.
    lifted = b.binary("fadd", b.bitcast(size, "float"), b.float(0.5, value))
    small = b.binary("sub", b.bitcast(lifted, "i32"), b.int(0x3F000000, bits))
    finite = b.select(b.compare("icmp ult", size, b.int(0x38800000, bits)), small, normal)
    magnitude = b.select(b.compare("icmp ugt", size, b.int(0x7F800000, bits)), nan, finite)
    return b.convert("trunc", b.binary("or", magnitude, sign), "i16")
