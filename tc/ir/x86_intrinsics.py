"""The instructions of x86 processors that schedules may ask for by name."""

from __future__ import annotations

from tc.ir.dtype import DType, bf16, f32, i8, i16, i32, u8
from tc.ir.intrinsic import Intrinsic, dot_pattern, interleave_pattern, register_intrinsic

_WIDTHS = {512: ("avx512f", "avx512bw"), 256: ("avx2",)}
"""Bits of a vector -> the features with which there are such vectors of integers."""

_BYTES = {512: (("avx512vnni",),), 256: (("avx512vnni", "avx512vl"), ("avxvnni",))}
_BF16 = {512: (("avx512bf16",),), 256: (("avx512bf16", "avx512vl"),)}


def dot_name(bits: int, lhs: DType, rhs: DType) -> str:
    """The name of the instruction that adds short sums of products to each 32-bit lane of a vector of so many bits."""
    return f"dot{32 // lhs.bits}.{lhs.name}.{rhs.name}.{bits}"


def interleave_name(bits: int, dtype: DType) -> str:
    """The name of the instructions that interleave the rows of which each 32-bit lane of a vector of so many bits takes one element."""
    return f"interleave{32 // dtype.bits}.{dtype.name}.{bits}"


def _register() -> None:
    for bits, needed in _WIDTHS.items():
        lanes = bits // 32
        for lhs, rhs, total, features in (
            (u8, i8, i32, _BYTES[bits]),  # vpdpbusd
            (i8, u8, i32, _BYTES[bits]),  # the same, its operands exchanged
            (i16, i16, i32, (needed,)),  # vpdpwssd, or vpmaddwd and vpaddd
            (bf16, bf16, f32, _BF16[bits]),  # vdpbf16ps
        ):
            name = dot_name(bits, lhs, rhs)
            register_intrinsic(Intrinsic(name, dot_pattern(name, lanes, 32 // lhs.bits, lhs, rhs, total), features))
        for dtype in (i8, u8, i16, bf16):
            name = interleave_name(bits, dtype)
            pattern = interleave_pattern(name, lanes, 32 // dtype.bits, dtype)
            register_intrinsic(Intrinsic(name, pattern, (needed,), apart=frozenset((0,))))


_register()
