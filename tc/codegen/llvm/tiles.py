"""Tile registers of x86 (AMX): which number a tile has, and the instructions on them.

Instructions name registers by numbers that stand in the code: LLVM allocates none, and spills none. The shapes of all eight are set where
a function begins that uses them, and they are released where it ends, so that no call, thread or process inherits any.
Source: Intel, "Architecture Instruction Set Extensions Programming Reference", 319433, chapter 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from tc.codegen.llvm.memory import MemoryEmitter
from tc.errors import CodegenError
from tc.ir.dtype import DType, bf16, i8, u8
from tc.ir.expr import Buffer, Const, Expr, Load, as_expr, mul
from tc.ir.intrinsic import Intrinsic
from tc.ir.loop import Alloc, For, LoopKind, Stmt, inner_statements
from tc.ir.types import product
from tc.ir.x86_intrinsics import (
    NUM_TILES,
    TILE_OPERANDS,
    TILE_ROWS,
    base_and_shape,
    tile_copy_name,
    tile_dot_name,
    tile_zero_name,
)

TileSize = tuple[int, int]
"""Rows of a tile register, and bytes of a row."""

_FULL = (TILE_ROWS, 64)

EmitTile = Callable[[MemoryEmitter, Intrinsic, tuple[Expr, ...]], None]


def tile_registers(stmt: Stmt, *, in_parallel: bool = False) -> list[TileSize]:
    """The sizes of the registers, by their numbers, of a function with this body; none where it holds no tiles.

    CodegenError where there are too few. Parallel loops are functions of their own unless it is that of one.
    """
    sizes = _sizes(stmt, in_parallel)
    numbered = [size for size in sorted(sizes, reverse=True) for _ in range(sizes[size])]
    if len(numbered) > NUM_TILES:
        raise CodegenError(f"tiles of sizes {dict(sizes)} do not fit {NUM_TILES} registers")
    return [*numbered, *[_FULL] * (NUM_TILES - len(numbered))] if numbered else []


def _sizes(stmt: Stmt, in_parallel: bool) -> Counter[TileSize]:
    """How many tiles of each size are held at once."""
    if isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL and not in_parallel:
        return Counter()
    found: Counter[TileSize] = Counter()
    for child in inner_statements(stmt):
        found |= _sizes(child, in_parallel)
    if isinstance(stmt, Alloc) and stmt.buffer.scope == "tile":
        found[_size(stmt.buffer)] += 1
    return found


def _size(tile: Buffer) -> TileSize:
    rows, size = tile.shape[0], product(tile.shape[1:])
    assert isinstance(rows, Const) and isinstance(size, Const), "registers have a size"
    return int(rows.value), int(size.value) * tile.dtype.size_bytes


def configuration(emitter: MemoryEmitter) -> str:
    """The instruction that shapes the registers of the function, and sets all of them to zero."""
    rows, widths = zip(*emitter.state.tile_sizes, strict=True)
    config = bytes([1, *bytes(15), *(byte for width in widths for byte in (width, 0)), *bytes(16), *rows, *bytes(8)])
    emitter.module.declare("llvm.x86.ldtilecfg", "void", ["ptr"])
    return f"call void @llvm.x86.ldtilecfg(ptr {emitter.module.constant('tile_config', config)})"


def release(emitter: MemoryEmitter) -> str:
    """The instruction with which there are no tiles any more."""
    emitter.module.declare("llvm.x86.tilerelease", "void", [])
    return "call void @llvm.x86.tilerelease()"


def allocate(emitter: MemoryEmitter, tile: Buffer) -> None:
    """Give a buffer of scope `tile` the next register of its size. CodegenError where all are taken."""
    numbers, size = emitter.state.tile_numbers, _size(tile)
    free = (number for number, each in enumerate(emitter.state.tile_sizes) if each == size and number not in numbers.values())
    number = next(free, None)
    if number is None:
        raise CodegenError(f"{tile} has no register: there are those of sizes {emitter.state.tile_sizes}")
    numbers[tile] = number


def _number(emitter: MemoryEmitter, operand: Expr) -> str:
    assert isinstance(operand, Load), "operands are places in buffers"
    return f"i8 {emitter.state.tile_numbers[operand.buffer]}"


def _call(emitter: MemoryEmitter, name: str, *args: str, memory: str = "", aliasing: str = "") -> None:
    """An instruction on registers, which LLVM takes for memory that nothing else reaches; `memory`: what is done with that of the operand.

    Without that LLVM would take every instruction for one that may write anywhere, and read everything again behind it.
    """
    full, effects = f"llvm.x86.{name}", f"{memory}inaccessiblemem: readwrite"
    emitter.module.declare(full, "void", [arg.split()[0] for arg in args])
    emitter.b.emit_void(f"call void @{full}({', '.join(args)}) nounwind willreturn nosync nofree memory({effects}){aliasing}")


def _copy(emitter: MemoryEmitter, name: str, effect: str, intrinsic: Intrinsic, tile: Expr, place: Expr) -> None:
    """Between a register and memory."""
    assert isinstance(place, Load), "operands are places in buffers"
    operands = _number(emitter, tile), *_memory(emitter, intrinsic, place)
    _call(emitter, name, *operands, memory=f"argmem: {effect}, ", aliasing=emitter.aliasing.get(place.buffer, ""))


def _memory(emitter: MemoryEmitter, intrinsic: Intrinsic, operand: Expr) -> tuple[str, str]:
    """The first byte of a tile in memory, and the bytes from row to row."""
    assert isinstance(operand, Load), "operands are places in buffers"
    inner = len(intrinsic.pattern.buffers[0].shape) - 1
    _, shape = base_and_shape(intrinsic.name)
    pitch = mul(product(operand.buffer.shape[-inner:]), as_expr(operand.buffer.dtype.size_bytes * shape.step))
    return str(emitter.place(operand.buffer, operand.indices)), str(emitter.value(pitch))


def _load(emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    place, tile = operands
    _copy(emitter, "tileloaddt164" if base_and_shape(intrinsic.name)[1].streams else "tileloadd64", "read", intrinsic, tile, place)
    _fetch_ahead(emitter, intrinsic, place)


def _fetch_ahead(emitter: MemoryEmitter, intrinsic: Intrinsic, place: Expr) -> None:
    """Prefetch the rows of a tile that the loop will load some iterations later, if it is to."""
    assert isinstance(place, Load), "operands are places in buffers"
    rows, *inner = intrinsic.pattern.buffers[0].shape
    pitch = product(place.buffer.shape[-len(inner) :])
    if isinstance(rows, Const) and isinstance(pitch, Const):
        emitter.prefetch_rows(place, int(rows.value), int(pitch.value) * base_and_shape(intrinsic.name)[1].step)


def _store(emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    tile, place = operands
    _copy(emitter, "tilestored64", "write", intrinsic, tile, place)
    emitter.forget_memory()


def _zero(emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    _call(emitter, "tilezero", _number(emitter, operands[0]))


def _dot(instruction: str, emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    lhs, rhs, total = (_number(emitter, operand) for operand in operands)
    _call(emitter, instruction, total, lhs, rhs)


def _instruction(lhs: DType, rhs: DType) -> str:
    """The instruction for products of these types, such as tdpbusd."""
    letters = {u8: "u", i8: "s"}
    return "tdpbf16ps" if lhs is bf16 else f"tdpb{letters[lhs]}{letters[rhs]}d"


_DOTS = {tile_dot_name(*operands): _instruction(*operands) for each in TILE_OPERANDS.values() for operands in each}

_EMIT: dict[str, EmitTile] = {
    **{name: partial(_dot, instruction) for name, instruction in _DOTS.items()},
    **{tile_zero_name(total): _zero for total in TILE_OPERANDS},
    **{tile_copy_name("load.sums", total): _load for total in TILE_OPERANDS},
    **{tile_copy_name("store", total): _store for total in TILE_OPERANDS},
    **{tile_copy_name(f"load.{side}", dtype): _load for side in ("lhs", "rhs") for dtype in (u8, i8, bf16)},
}


def emission_of(name: str) -> EmitTile | None:
    """How an intrinsic on tile registers is emitted; None for others."""
    return _EMIT.get(base_and_shape(name)[0])
