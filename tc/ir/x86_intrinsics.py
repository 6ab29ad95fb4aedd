"""The instructions of x86 processors that schedules may ask for by name."""

from __future__ import annotations

from tc.ir.dtype import DType, bf16, f32, i8, i16, i32, u4, u8
from tc.ir.expr import const
from tc.ir.intrinsic import (
    Intrinsic,
    copy_pattern,
    dot_pattern,
    fill_pattern,
    half_bytes_dot_pattern,
    interleave_pattern,
    register_intrinsic,
    tile_dot_pattern,
)

_WIDTHS = {512: ("avx512f", "avx512bw"), 256: ("avx2",)}
"""Bits of a vector -> the features with which there are such vectors of integers."""

_BYTES = {512: (("avx512vnni",),), 256: (("avx512vnni", "avx512vl"), ("avxvnni",))}
_BF16 = {512: (("avx512bf16",),), 256: (("avx512bf16", "avx512vl"),)}


def dot_name(bits: int, lhs: DType, rhs: DType) -> str:
    """The name of the instruction that adds short sums of products to each 32-bit lane of a vector of so many bits."""
    return f"dot{terms_of_dot(lhs, rhs)}.{lhs.name}.{rhs.name}.{bits}"


def terms_of_dot(lhs: DType, rhs: DType) -> int:
    """How many products are added to each lane: of elements that fill 32 bits of the narrower operand."""
    return 32 // min(lhs.bits, rhs.bits)


def interleave_name(bits: int, dtype: DType) -> str:
    """The name of the instructions that interleave the rows of which each 32-bit lane of a vector of so many bits takes one element."""
    return f"interleave{32 // dtype.bits}.{dtype.name}.{bits}"


TILE_ROWS = 16
"""Rows of a tile of AMX, of 64 bytes each: so many sums of 32 bits, or that many times 4 or 2 terms of a product."""

NUM_TILES = 8
"""Tile registers of a core."""

Operands = dict[DType, tuple[tuple[DType, DType], ...]]

DOT_OPERANDS: Operands = {
    # vpdpbusd; the same, its operands exchanged; twice the same, halves of bytes apart; vpdpwssd, or vpmaddwd and vpaddd
    i32: ((u8, i8), (i8, u8), (i8, u4), (i16, i16)),
    f32: ((bf16, bf16),),  # vdpbf16ps
}
"""The type of a sum -> the types of the operands of products that instructions on vectors add up, the fastest first."""

TILE_OPERANDS: Operands = {
    i32: ((u8, i8), (i8, i8), (u8, u8), (i8, u8)),  # tdpb{u,s}{u,s}d
    f32: ((bf16, bf16),),  # tdpbf16ps
}
"""The same for instructions on tiles."""

_TILE_FEATURES = {i32: "amx-int8", f32: "amx-bf16"}


def tile_dot_name(lhs: DType, rhs: DType) -> str:
    """The name of the instruction that adds the product of two tiles of operands to a tile of sums."""
    return f"tile_dot.{lhs.name}.{rhs.name}"


def tile_zero_name(dtype: DType) -> str:
    """The name of the instruction that sets a tile of sums to zero."""
    return f"tile_zero.{dtype.name}"


def tile_copy_name(what: str, dtype: DType) -> str:
    """The name of the instruction that copies a tile: `load` of an operand, `lhs` or `rhs`, or of `sums`, or `store` of sums."""
    return f"tile_{what}.{dtype.name}"


DOTS = frozenset(dot_name(bits, *operands) for bits in _WIDTHS for each in DOT_OPERANDS.values() for operands in each)
"""The names of the instructions on vectors that add products."""

TILE_DOTS = frozenset(tile_dot_name(*operands) for each in TILE_OPERANDS.values() for operands in each)
TILE_ZEROS = frozenset(map(tile_zero_name, TILE_OPERANDS))
SUM_LOADS = frozenset(tile_copy_name("load.sums", total) for total in TILE_OPERANDS)
"""The names of the instructions on tiles of sums, by what they do."""


def _register() -> None:
    for bits, needed in _WIDTHS.items():
        lanes = bits // 32
        features = {8: _BYTES[bits], 16: (needed,)}
        for total, operands in DOT_OPERANDS.items():
            for lhs, rhs in operands:
                name, wanted = dot_name(bits, lhs, rhs), _BF16[bits] if lhs is bf16 else features[lhs.bits]
                make = half_bytes_dot_pattern if rhs.per_byte > 1 else dot_pattern
                register_intrinsic(Intrinsic(name, make(name, lanes, terms_of_dot(lhs, rhs), lhs, rhs, total), wanted))
        for dtype in (i8, u8, i16, bf16):
            name = interleave_name(bits, dtype)
            pattern = interleave_pattern(name, lanes, 32 // dtype.bits, dtype)
            register_intrinsic(Intrinsic(name, pattern, (needed,), apart=frozenset((0,))))
    for total, operands in TILE_OPERANDS.items():
        _register_tiles(total, operands, ("amx-tile", _TILE_FEATURES[total]))


def _register_tiles(total: DType, operands: tuple[tuple[DType, DType], ...], needed: tuple[str, ...]) -> None:
    name = tile_zero_name(total)
    zero = fill_pattern(name, (TILE_ROWS, 16), const(0, total))
    register_intrinsic(Intrinsic(name, zero, (needed,), apart=frozenset((0,))))
    shapes: dict[tuple[str, DType], tuple[int, ...]] = {(what, total): (TILE_ROWS, 16) for what in ("store", "load.sums")}
    for lhs, rhs in operands:
        name = tile_dot_name(lhs, rhs)
        register_intrinsic(Intrinsic(name, tile_dot_pattern(name, lhs, rhs, total), (needed,), apart=frozenset((0, 1, 2))))
        shapes["load.lhs", lhs] = (TILE_ROWS, 512 // lhs.bits)
        shapes["load.rhs", rhs] = (TILE_ROWS, 16, 32 // rhs.bits)
    for (what, dtype), shape in shapes.items():
        name = tile_copy_name(what, dtype)
        scopes = ("tile", "global") if what == "store" else ("global", "tile")
        register_intrinsic(Intrinsic(name, copy_pattern(name, shape, dtype, scopes), (needed,), apart=frozenset((0, 1))))


_register()
