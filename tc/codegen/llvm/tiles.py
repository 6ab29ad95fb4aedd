"""Tile registers of x86 (AMX): which number a tile has, and the instructions on them.

Instructions name registers by numbers that stand in the code: LLVM allocates none, and spills none. The shape of all eight is set where a
function begins that uses them, 16 rows of 64 bytes, and they are released where it ends, so that no call, thread or process inherits any.
Source: Intel, "Architecture Instruction Set Extensions Programming Reference", 319433, chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tc.codegen.llvm.memory import MemoryEmitter
from tc.errors import CodegenError
from tc.ir.dtype import DType, bf16, i8, u8
from tc.ir.expr import Buffer, Expr, Load, as_expr, mul
from tc.ir.intrinsic import Intrinsic
from tc.ir.loop import For, IntrinsicCall, LoopKind, Stmt
from tc.ir.node import children
from tc.ir.types import product
from tc.ir.x86_intrinsics import (
    NUM_TILES,
    SUM_LOADS,
    TILE_OPERANDS,
    TILE_ROWS,
    TILE_ZEROS,
    tile_copy_name,
    tile_dot_name,
)

_ROW_BYTES = 64

EmitTile = Callable[[MemoryEmitter, Intrinsic, tuple[Expr, ...]], None]


def uses_tiles(stmt: Stmt, *, in_parallel: bool = False) -> bool:
    """Whether a function with this body holds tiles: parallel loops are functions of their own unless it is that of one."""
    if isinstance(stmt, IntrinsicCall):
        return stmt.name in EMIT_TILE
    is_apart = isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL and not in_parallel
    return not is_apart and any(uses_tiles(child, in_parallel=in_parallel) for child in children(stmt) if isinstance(child, Stmt))


def configuration(emitter: MemoryEmitter) -> str:
    """The instruction that shapes the registers, and sets all of them to zero."""
    rows = bytes([1, *bytes(15), *(_ROW_BYTES, 0) * NUM_TILES, *bytes(16), *[TILE_ROWS] * NUM_TILES, *bytes(8)])
    emitter.module.declare("llvm.x86.ldtilecfg", "void", ["ptr"])
    return f"call void @llvm.x86.ldtilecfg(ptr {emitter.module.constant('tile_config', rows)})"


def release(emitter: MemoryEmitter) -> str:
    """The instruction with which there are no tiles any more."""
    emitter.module.declare("llvm.x86.tilerelease", "void", [])
    return "call void @llvm.x86.tilerelease()"


def allocate(emitter: MemoryEmitter, tile: Buffer) -> None:
    """Give a buffer of scope `tile` the next register. CodegenError where all are taken."""
    numbers = emitter.state.tile_numbers
    if len(numbers) == NUM_TILES:
        raise CodegenError(f"{tile} would be in tile {NUM_TILES + 1} of {NUM_TILES}")
    numbers[tile] = len(numbers)


def _number(emitter: MemoryEmitter, operand: Expr) -> str:
    assert isinstance(operand, Load), "operands are places in buffers"
    return f"i8 {emitter.state.tile_numbers[operand.buffer]}"


def _call(emitter: MemoryEmitter, name: str, *args: str) -> None:
    full = f"llvm.x86.{name}"
    emitter.module.declare(full, "void", [arg.split()[0] for arg in args])
    emitter.b.emit_void(f"call void @{full}({', '.join(args)})")


def _memory(emitter: MemoryEmitter, intrinsic: Intrinsic, operand: Expr) -> tuple[str, str]:
    """The first byte of a tile in memory, and the bytes from row to row."""
    assert isinstance(operand, Load), "operands are places in buffers"
    inner = len(intrinsic.pattern.buffers[0].shape) - 1
    pitch = mul(product(operand.buffer.shape[-inner:]), as_expr(operand.buffer.dtype.size_bytes))
    return str(emitter.place(operand.buffer, operand.indices)), str(emitter.value(pitch))


def _load(emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    place, tile = operands
    _call(emitter, "tileloadd64", _number(emitter, tile), *_memory(emitter, intrinsic, place))


def _store(emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    tile, place = operands
    _call(emitter, "tilestored64", _number(emitter, tile), *_memory(emitter, intrinsic, place))
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

EMIT_TILE: dict[str, EmitTile] = {
    **{name: partial(_dot, instruction) for name, instruction in _DOTS.items()},
    **dict.fromkeys(TILE_ZEROS, _zero),
    **dict.fromkeys(SUM_LOADS, _load),
    **{name.replace("load.sums", "store"): _store for name in SUM_LOADS},
    **{tile_copy_name(f"load.{side}", dtype): _load for side in ("lhs", "rhs") for dtype in (u8, i8, bf16)},
}
"""Name of an intrinsic on tile registers -> how it is emitted."""
