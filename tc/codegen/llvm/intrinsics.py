"""How the instructions of `tc.ir.x86_intrinsics` are emitted: vectors of operands loaded, one instruction or a few, the result stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tc.codegen.llvm.builder import FunctionBuilder, Value, llvm_type
from tc.codegen.llvm.memory import MemoryEmitter
from tc.codegen.llvm.tiles import emission_of
from tc.errors import CodegenError
from tc.ir.dtype import bf16, i4, i8, i16, u4, u8
from tc.ir.expr import Expr, Load, const
from tc.ir.intrinsic import INTRINSICS, Intrinsic
from tc.ir.loop import IntrinsicCall
from tc.ir.x86_intrinsics import dot_name, interleave_name, spread_name


def emit_intrinsic(emitter: MemoryEmitter, call: IntrinsicCall) -> None:
    """The instructions of a call. CodegenError where the name has none here."""
    emit = emission_of(call.name) or _EMITTERS.get(call.name)
    if emit is None:
        raise CodegenError(f"no intrinsic {call.name!r}")
    emit(emitter, INTRINSICS[call.name], call.operands)


def _prefetch(emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    (place,) = _places(operands)
    emitter.prefetch(place.buffer, place.indices)


EmitSum = Callable[[MemoryEmitter, Value, Value, Value], Value]
"""Emits a vector of totals with products of the lanes of two vectors added to them."""


def _dot(emit_sum: EmitSum, emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    """c += the sums of products of a's terms, the same in each 32-bit lane, and b's."""
    a, b, c = _places(operands)
    lanes, depth = (int(dim.value) for dim in intrinsic.pattern.buffers[1].shape)  # type: ignore[attr-defined]
    builder = emitter.b
    element = llvm_type(intrinsic.pattern.buffers[0].dtype)
    total = emitter.load_vector(c, lanes)
    terms = builder.splat(emitter.load_bits(a, "i32"), lanes)
    lhs = builder.emit(f"bitcast {terms} to <{lanes * depth} x {element}>", element, lanes * depth)
    rhs = emitter.load_vector(b, lanes * depth)
    emitter.store_vector(c, emit_sum(emitter, total, lhs, rhs))


def _half_bytes_dot(emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    """Products of bytes of a and the lower halves of b's bytes, and then the upper ones."""
    a, b, c = _places(operands)
    lanes, each, halves = (int(dim.value) for dim in intrinsic.pattern.buffers[1].shape)  # type: ignore[attr-defined]
    builder = emitter.b
    words = emitter.load_words(b, lanes)
    total = emitter.load_vector(c, lanes)
    bits = 8 // halves
    ones = sum((2**bits - 1) << (8 * k) for k in range(4))
    for half in range(halves):
        *lead, last = a.indices
        terms = builder.splat(emitter.load_bits(Load(a.buffer, (*lead, last + const(each * half))), "i32"), lanes)
        lhs = builder.emit(f"bitcast {terms} to <{4 * lanes} x i8>", "i8", 4 * lanes)
        moved = builder.binary("lshr", words, builder.int(bits * half, words)) if half else words
        kept = builder.binary("and", moved, builder.int(ones, moved))
        rhs = builder.emit(f"bitcast {kept} to <{4 * lanes} x i8>", "i8", 4 * lanes)
        total = _sum_of_bytes_exchanged(emitter, total, lhs, rhs)
    emitter.store_vector(c, total)


def _places(operands: tuple[Expr, ...]) -> tuple[Load, ...]:
    assert all(isinstance(operand, Load) for operand in operands), "operands are places in buffers"
    return operands  # type: ignore[return-value]


def _call(name: str, emitter: MemoryEmitter, total: Value, lhs: Value, rhs: Value) -> Value:
    full = f"llvm.x86.{name}.{32 * total.lanes}"
    emitter.module.declare(full, total.type, [total.type, lhs.type, rhs.type])
    return emitter.b.emit(f"call {total.type} @{full}({total}, {lhs}, {rhs})", total.element, total.lanes)


def _sum_of_bytes_exchanged(emitter: MemoryEmitter, total: Value, lhs: Value, rhs: Value) -> Value:
    return _call("avx512.vpdpbusd", emitter, total, rhs, lhs)


def _sum_of_bf16(emitter: MemoryEmitter, total: Value, lhs: Value, rhs: Value) -> Value:
    return _call("avx512bf16.dpbf16ps", emitter, total, emitter.b.bitcast(lhs, "bfloat"), emitter.b.bitcast(rhs, "bfloat"))


def _sum_of_words(emitter: MemoryEmitter, total: Value, lhs: Value, rhs: Value) -> Value:
    """One instruction where the processor has it, else a sum of two products and an addition."""
    bits = 32 * total.lanes
    has = emitter.module.has
    if (has("avx512vnni") and (bits == 512 or has("avx512vl"))) or (bits == 256 and has("avxvnni")):
        return _call("avx512.vpdpwssd", emitter, total, lhs, rhs)
    name = "llvm.x86.avx512.pmaddw.d.512" if bits == 512 else "llvm.x86.avx2.pmadd.wd"
    emitter.module.declare(name, total.type, [lhs.type, rhs.type])
    products = emitter.b.emit(f"call {total.type} @{name}({lhs}, {rhs})", total.element, total.lanes)
    return emitter.b.add(total, products)


def _interleave(emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    """Rows side by side become columns side by side: pairs of rows are interleaved, and then pairs of these."""
    x, t = _places(operands)
    depth, lanes = (int(dim.value) for dim in intrinsic.pattern.buffers[0].shape)  # type: ignore[attr-defined]
    *lead, row, column = x.indices
    rows = [emitter.load_vector(Load(x.buffer, (*lead, row + const(k), column)), lanes) for k in range(depth)]
    while len(rows) > 1:
        half = len(rows) // 2
        rows = [_zipped(emitter, rows[k], rows[k + half]) for k in range(half)]
    emitter.store_vector(t, rows[0])


def _zipped(emitter: MemoryEmitter, a: Value, b: Value) -> Value:
    order = ", ".join(f"i32 {k}, i32 {a.lanes + k}" for k in range(a.lanes))
    return emitter.b.emit(f"shufflevector {a}, {b}, <{2 * a.lanes} x i32> <{order}>", a.element, 2 * a.lanes)


def _spread_halves(emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    """Words of half bytes: of each pair of terms one is shifted to the lower half of its word, one to the upper, and each half, of which
    five bits count, chooses one of the sixteen numbers, which stand twice."""
    x, t = _places(operands)
    narrow, wide = (buffer.dtype for buffer in intrinsic.pattern.buffers)
    rows, lanes, _ = (int(dim.value) for dim in intrinsic.pattern.buffers[1].shape)  # type: ignore[attr-defined]
    builder = emitter.b
    words = emitter.load_words(x, lanes)
    numbers = np.arange(16, dtype=np.uint8).astype(narrow.numpy).astype(wide.numpy).view(np.uint16)
    table = Value(f"<{', '.join(f'i16 {number}' for number in np.tile(numbers, 2))}>", "i16", 2 * lanes)
    name = "llvm.x86.avx512.permvar.hi.512"
    emitter.module.declare(name, table.type, [table.type, table.type])
    for k in range(rows):
        first = 16 * (k % 2) + narrow.bits * (k // 2)
        low, high = (
            builder.binary("and", moved, builder.int(kept, moved))
            for moved, kept in ((_moved(builder, words, -first), 0xFFFF), (_moved(builder, words, 8 - first), -0x10000))
        )
        halves = builder.binary("or", low, high)
        chosen = builder.emit(f"bitcast {halves} to {table.type}", "i16", table.lanes)
        made = builder.emit(f"call {table.type} @{name}({table}, {chosen})", "i16", table.lanes)
        emitter.store_vector(_row_after(t, k), made)


def _spread_bytes(emitter: MemoryEmitter, intrinsic: Intrinsic, operands: tuple[Expr, ...]) -> None:
    """Words of bytes: each of a pair becomes an f32, whose upper half has all that is not zero."""
    x, t = _places(operands)
    narrow = intrinsic.pattern.buffers[0].dtype
    rows, lanes, _ = (int(dim.value) for dim in intrinsic.pattern.buffers[1].shape)  # type: ignore[attr-defined]
    builder = emitter.b
    words = emitter.load_words(x, lanes)
    extend, convert = ("lshr", "uitofp") if narrow is u8 else ("ashr", "sitofp")
    for k in range(rows):
        halves = []
        for moved in (_moved(builder, words, 24 - 16 * k), _moved(builder, words, 16 - 16 * k)):
            whole = builder.binary(extend, moved, builder.int(24, moved))
            halves.append(builder.bitcast(builder.convert(convert, whole, "float"), "i32"))
        low = builder.binary("lshr", halves[0], builder.int(16, words))
        joined = builder.binary("or", low, builder.binary("and", halves[1], builder.int(-0x10000, words)))
        emitter.store_vector(_row_after(t, k), builder.emit(f"bitcast {joined} to <{2 * lanes} x i16>", "i16", 2 * lanes))


def _row_after(place: Load, rows: int) -> Load:
    """So many rows of pairs further."""
    *lead, row, column, term = place.indices
    return Load(place.buffer, (*lead, row + const(rows), column, term))


def _moved(builder: FunctionBuilder, words: Value, bits: int) -> Value:
    """Shifted up, or down where `bits` is negative."""
    if bits == 0:
        return words
    return builder.binary("shl" if bits > 0 else "lshr", words, builder.int(abs(bits), words))


_EMITTERS: dict[str, Callable[[MemoryEmitter, Intrinsic, tuple[Expr, ...]], None]] = {"prefetch": _prefetch}

for _narrow in (i4, u4, i8, u8):
    _EMITTERS[spread_name(_narrow, bf16)] = _spread_bytes if _narrow.per_byte == 1 else _spread_halves

for _bits in (256, 512):
    _EMITTERS[dot_name(_bits, u8, i8)] = partial(_dot, partial(_call, "avx512.vpdpbusd"))
    _EMITTERS[dot_name(_bits, i8, u8)] = partial(_dot, _sum_of_bytes_exchanged)
    _EMITTERS[dot_name(_bits, i8, u4)] = _half_bytes_dot
    _EMITTERS[dot_name(_bits, i16, i16)] = partial(_dot, _sum_of_words)
    _EMITTERS[dot_name(_bits, bf16, bf16)] = partial(_dot, _sum_of_bf16)
    for _dtype in (i8, u8, i16, bf16):
        _EMITTERS[interleave_name(_bits, _dtype)] = _interleave
