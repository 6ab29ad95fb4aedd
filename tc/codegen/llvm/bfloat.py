"""bf16 values are held as their bits in an i16, and computed with in f32: the same code, and the same bits, on every CPU.

Where there is no instruction for bfloat vectors, LLVM takes them apart lane by lane; where there is one (`vcvtneps2bf16`), it flushes
numbers below 2^-126 to zero.
"""

from __future__ import annotations

from tc.codegen.llvm.builder import FunctionBuilder, Value

BF16 = "i16"
"""The element type of bf16 values; in a float operation nothing else is an i16."""


def emit_from_bf16(b: FunctionBuilder, value: Value) -> Value:
    """The f32 of the same value."""
    bits = b.convert("zext", value, "i32")
    return b.bitcast(b.binary("shl", bits, b.int(16, bits)), "float")


def emit_to_bf16(b: FunctionBuilder, value: Value) -> Value:
    """An f32 rounded to the nearest bf16, ties to even; NaN stays NaN, quiet."""
    bits = b.bitcast(value, "i32")
    top = b.binary("lshr", bits, b.int(16, bits))
    odd = b.binary("and", top, b.int(1, bits))
    rounded = b.binary("lshr", b.binary("add", b.binary("add", bits, b.int(0x7FFF, bits)), odd), b.int(16, bits))
    quiet = b.binary("or", top, b.int(0x40, bits))
    return b.convert("trunc", b.select(b.compare("fcmp uno", value, value), quiet, rounded), BF16)


def emit_cut_to_bf16(b: FunctionBuilder, value: Value) -> Value:
    """An f32 that is a bf16 number."""
    bits = b.bitcast(value, "i32")
    return b.convert("trunc", b.binary("lshr", bits, b.int(16, bits)), BF16)
