"""Small integers that lie several to a word of 32 bits, one word to a lane: the words are loaded as a vector and taken apart in registers.

As floats they need no conversion: bits at place p of a word become the lowest digits of a float whose last digit there is worth 1, from
which what its exponent adds is subtracted.
Source: the conversion of integers by adding 2**23; Agner Fog, "Optimizing subroutines in assembly language".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tc.codegen.llvm.builder import FunctionBuilder, Value, float_text, int_value
from tc.ir.dtype import DType

MANTISSA_BITS = 23
HALF_WORD = 16


class WordPlace(NamedTuple):
    """The words of all lanes, and the bit at which an element of `dtype` begins in each."""

    words: Value
    bit: int
    dtype: DType


def integer_in(b: FunctionBuilder, place: WordPlace) -> Value:
    """The elements as bytes, extended."""
    words, bit, dtype = place
    if dtype.kind == "int":
        up = 32 - bit - dtype.bits
        moved = b.binary("shl", words, b.int(up, words)) if up else words
        moved = b.binary("ashr", moved, b.int(32 - dtype.bits, words))
    else:
        moved = b.binary("lshr", words, b.int(bit, words)) if bit else words
        moved = b.binary("and", moved, b.int(2**dtype.bits - 1, words))
    return b.convert("trunc", moved, "i8")


def float_in(b: FunctionBuilder, place: WordPlace) -> Value:
    """The elements as f32, exact."""
    words, bit, dtype = place
    if bit + dtype.bits > MANTISSA_BITS:
        words, bit = b.binary("lshr", words, b.int(HALF_WORD, words)), bit - HALF_WORD
    bias = 2.0 ** (MANTISSA_BITS - bit)
    flipped = 1 << (bit + dtype.bits - 1) if dtype.kind == "int" else 0  # the sign bit, turned around, counts up from the least number
    (pattern,) = struct.unpack("<i", struct.pack("<f", bias))
    digits = b.binary("and", words, b.int((2**dtype.bits - 1) << bit, words))
    number = b.bitcast(b.binary("xor", digits, b.int(pattern | flipped, words)), "float")
    least = 2.0 ** (dtype.bits - 1) if flipped else 0.0
    return b.binary("fsub", number, b.splat(Value(float_text(bias + least, "float"), "float"), words.lanes))


def bytes_before(b: FunctionBuilder, elements: Value, dtype: DType) -> Value:
    """How many bytes so many elements take, which are whole bytes."""
    if elements.known is not None:
        return int_value(elements.known // dtype.per_byte)
    return b.binary("ashr", elements, int_value(dtype.per_byte.bit_length() - 1)) if dtype.per_byte > 1 else elements
