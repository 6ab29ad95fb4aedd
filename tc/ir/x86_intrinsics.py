"""The instructions of x86 processors that schedules may ask for by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tc.ir.dtype import DType, bf16, f32, i4, i8, i16, i32, u4, u8
from tc.ir.expr import const
from tc.ir.intrinsic import (
    INTRINSICS,
    Intrinsic,
    copy_pattern,
    dot_pattern,
    fill_pattern,
    half_bytes_dot_pattern,
    interleave_pattern,
    register_intrinsic,
    spread_pattern,
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


def spread_name(narrow: DType, dtype: DType) -> str:
    """The name of the instructions that make pairs of terms of words of narrow integers, as those that multiply pairs take them."""
    return f"spread.{narrow.name}.{dtype.name}.512"


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


@dataclass(frozen=True)
class TileShape:
    """What an instruction on tiles takes: so many rows of sums, made of so many bytes of each row of the lhs. In memory the rows of the lhs
    are `step` rows apart, and with `runs_on` go on from one index of the dims before to the next. `streams`: the rhs is loaded past the
    first-level cache, which others need. A product takes as many cycles as it has rows, down to some ten, whatever the bytes are."""

    rows: int = TILE_ROWS
    row_bytes: int = 64
    step: int = 1
    runs_on: bool = False
    streams: bool = False

    @property
    def groups(self) -> int:
        """Rows of the tile of the rhs."""
        return self.row_bytes // 4

    def named(self, base: str) -> str:
        """The name of an instruction for this shape; that for full tiles of neighbours is `base`."""
        size = "" if (self.rows, self.row_bytes) == (TILE_ROWS, 64) else f".{self.rows}x{self.row_bytes}"
        step = f".step{self.step}" if self.step > 1 else ""
        return f"{base}{size}{step}{'.runs_on' if self.runs_on else ''}{'.streams' if self.streams else ''}"


FULL = TileShape()


def tile_dot_name(lhs: DType, rhs: DType, shape: TileShape = FULL) -> str:
    """The name of the instruction that adds the product of two tiles of operands to a tile of sums."""
    return shape.named(f"tile_dot.{lhs.name}.{rhs.name}")


def tile_zero_name(dtype: DType, shape: TileShape = FULL) -> str:
    """The name of the instruction that sets a tile of sums to zero."""
    return TileShape(shape.rows).named(f"tile_zero.{dtype.name}")


def tile_copy_name(what: str, dtype: DType, shape: TileShape = FULL) -> str:
    """The name of the instruction that copies a tile: `load` of an operand, `lhs` or `rhs`, or of `sums`, or `store` of sums."""
    own = {"load.lhs": replace(shape, streams=False), "load.rhs": TileShape(shape.groups, streams=shape.streams)}
    return own.get(what, TileShape(shape.rows)).named(f"tile_{what}.{dtype.name}")


_SHAPED = re.compile(r"(tile_[a-z_.0-9]+?)(?:\.(\d+)x(\d+))?(?:\.step(\d+))?(\.runs_on)?(\.streams)?")


def base_and_shape(name: str) -> tuple[str, TileShape]:
    """The name that an instruction on tiles has where its shape is FULL, and its shape; other names as they are."""
    match = _SHAPED.fullmatch(name)
    if match is None:
        return name, FULL
    base, rows, row_bytes, step, runs_on, streams = match.groups()
    return base, TileShape(int(rows or TILE_ROWS), int(row_bytes or 64), int(step or 1), bool(runs_on), bool(streams))


DOTS = frozenset(dot_name(bits, *operands) for bits in _WIDTHS for each in DOT_OPERANDS.values() for operands in each)
"""The names of the instructions on vectors that add products."""

INTERLEAVED = (i8, u8, i16, bf16)
"""Types of the elements that there are instructions to interleave for."""

INTERLEAVES = frozenset(interleave_name(bits, dtype) for bits in _WIDTHS for dtype in INTERLEAVED)
"""The names of the instructions on vectors that interleave rows, and add nothing."""

_TILE_DOTS = {tile_dot_name(*operands): (*operands, total) for total, each in TILE_OPERANDS.items() for operands in each}
_TILE_ZEROS = {tile_zero_name(total): total for total in TILE_OPERANDS}
_SUM_LOADS = {tile_copy_name("load.sums", total): total for total in TILE_OPERANDS}
_SUM_STORES = {tile_copy_name("store", total): total for total in TILE_OPERANDS}


def is_tile_dot(name: str) -> bool:
    """Whether an instruction adds the product of two tiles to a third."""
    return base_and_shape(name)[0] in _TILE_DOTS


def is_tile_zero(name: str) -> bool:
    """Whether an instruction sets a tile of sums to zero."""
    return base_and_shape(name)[0] in _TILE_ZEROS


def is_sum_load(name: str) -> bool:
    """Whether an instruction loads a tile of sums."""
    return base_and_shape(name)[0] in _SUM_LOADS


def is_sum_store(name: str) -> bool:
    """Whether an instruction stores a tile of sums."""
    return base_and_shape(name)[0] in _SUM_STORES


def fills_tile(name: str) -> bool:
    """Whether an instruction writes a tile register, and no memory."""
    base = base_and_shape(name)[0]
    return any(base in names for names in (_TILE_DOTS, _TILE_ZEROS, _SUM_LOADS, _OPERAND_LOADS))


def _register() -> None:
    for bits, needed in _WIDTHS.items():
        lanes = bits // 32
        features = {8: _BYTES[bits], 16: (needed,)}
        for total, operands in DOT_OPERANDS.items():
            for lhs, rhs in operands:
                name, wanted = dot_name(bits, lhs, rhs), _BF16[bits] if lhs is bf16 else features[lhs.bits]
                make = half_bytes_dot_pattern if rhs.per_byte > 1 else dot_pattern
                register_intrinsic(Intrinsic(name, make(name, lanes, terms_of_dot(lhs, rhs), lhs, rhs, total), wanted))
        for dtype in INTERLEAVED:
            name = interleave_name(bits, dtype)
            pattern = interleave_pattern(name, lanes, 32 // dtype.bits, dtype)
            register_intrinsic(Intrinsic(name, pattern, (needed,), apart=frozenset((0,))))
    for narrow in (i4, u4, i8, u8):
        name = spread_name(narrow, bf16)
        register_intrinsic(Intrinsic(name, spread_pattern(name, 16, narrow, bf16), (_WIDTHS[512],), apart=frozenset((0, 1))))
    for name in (*_TILE_DOTS, *_TILE_ZEROS, *_SUM_LOADS, *_SUM_STORES, *_OPERAND_LOADS):
        found = _tile_intrinsic(name)
        assert found is not None, "a name without a shape is that of full tiles"
        register_intrinsic(found)
    INTRINSICS.families.append(_tile_intrinsic)


_OPERAND_LOADS = {
    tile_copy_name(f"load.{side}", operands[place]): (operands[place], total)
    for total, each in TILE_OPERANDS.items()
    for operands in each
    for place, side in enumerate(("lhs", "rhs"))
}


def _tile_intrinsic(name: str) -> Intrinsic | None:
    """The instruction on tiles of this name, for any shape that tiles may have."""
    base, shape = base_and_shape(name)
    is_lhs = base in _TILE_DOTS or base.startswith("tile_load.lhs")
    fits = 1 <= shape.rows <= TILE_ROWS and 4 <= shape.row_bytes <= 64 and shape.row_bytes % 4 == 0 and shape.step >= 1
    fits &= is_lhs or shape == TileShape(shape.rows, streams=shape.streams)
    fits &= not shape.streams or base in _TILE_DOTS or base.startswith("tile_load.rhs")
    if not fits or shape.named(base) != name:
        return None
    ends_open = frozenset((0,)) if shape.runs_on else frozenset()
    if base in _TILE_DOTS:
        lhs, rhs, total = _TILE_DOTS[base]
        pattern = tile_dot_pattern(name, lhs, rhs, total, shape.rows, shape.groups, shape.step)
        return Intrinsic(name, pattern, _features_of_tiles(total), apart=frozenset((0, 1, 2)), runs_on=ends_open)
    if base in _TILE_ZEROS:
        pattern = fill_pattern(name, (shape.rows, 16), const(0, _TILE_ZEROS[base]))
        return Intrinsic(name, pattern, _features_of_tiles(_TILE_ZEROS[base]), apart=frozenset((0,)))
    if base in _OPERAND_LOADS:
        dtype, total = _OPERAND_LOADS[base]
        size = (shape.rows, shape.row_bytes // dtype.size_bytes) if is_lhs else (shape.rows, 16, 32 // dtype.bits)
        pattern = copy_pattern(name, size, dtype, ("global", "tile"), shape.step)
        return Intrinsic(name, pattern, _features_of_tiles(total), apart=frozenset((0, 1)), runs_on=ends_open)
    for copies, scopes in ((_SUM_LOADS, ("global", "tile")), (_SUM_STORES, ("tile", "global"))):
        if base in copies:
            pattern = copy_pattern(name, (shape.rows, 16), copies[base], scopes)
            return Intrinsic(name, pattern, _features_of_tiles(copies[base]), apart=frozenset((0, 1)))
    return None


def _features_of_tiles(total: DType) -> tuple[tuple[str, ...], ...]:
    return (("amx-tile", _TILE_FEATURES[total]),)


_register()
