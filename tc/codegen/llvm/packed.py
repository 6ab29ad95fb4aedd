"""Loads and stores of elements that share bytes: integers of four bits and of two, and floats of four, in the memory of tensors.

A vector of neighbours is read as whole bytes, once for each place within a byte that a lane may have, and interleaved; one of the same
place in each byte is these bytes. Nothing is read but bytes that hold an element wanted. Stores write whole bytes where all of their
elements are theirs, and else change the bits of one element after the other: at once, as other threads see it, where a neighbour may be
another thread's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tc.codegen.llvm.builder import FunctionBuilder, Value, int_value
from tc.codegen.llvm.scalars import extended
from tc.ir.dtype import DType
from tc.ir.expr import Buffer


class ByteAccess(Protocol):
    """Accesses to bytes at a point of the emitted code. `num_lanes`: of the vectorized loop there; 0 outside."""

    mask: Value | None

    @property
    def b(self) -> FunctionBuilder: ...

    @property
    def num_lanes(self) -> int: ...

    def where(self, condition: Value, emit: Callable[[], None]) -> None: ...

    def may_share_bytes(self, buffer: Buffer) -> bool: ...

    def any_lane(self, mask: Value) -> Value: ...

    def pointer_to(self, buffer: Buffer, uniform: Value, known: int) -> Value: ...

    def vector_offset(self, uniform: Value, known: int, lane: Value | None, varying: Value | None) -> Value: ...

    def scalar_load(self, buffer: Buffer, pointer: Value) -> Value: ...

    def whole_load(self, buffer: Buffer, pointer: Value, lanes: int) -> Value: ...

    def masked_load(self, buffer: Buffer, pointer: Value, mask: Value) -> Value: ...

    def gather(self, buffer: Buffer, pointers: Value) -> Value: ...

    def store_at(self, buffer: Buffer, pointer: Value, value: Value) -> None: ...


@dataclass(frozen=True)
class PackedPlace:
    """An offset in elements: what all lanes share, a constant, what follows from the number of the lane, what differs otherwise.

    `whole`: whether the part that is shared is known to be a whole number of bytes.
    """

    uniform: Value
    known: int
    lane: Value | None
    varying: Value | None
    whole: bool

    @property
    def is_contiguous(self) -> bool:
        return self.varying is None and self.lane is not None and self.lane.known == 1

    def is_one_of_each_byte(self, dtype: DType) -> bool:
        """Whether lanes are at the same place of bytes that follow each other."""
        return self.varying is None and self.lane is not None and self.lane.known == dtype.per_byte

    @property
    def is_scalar(self) -> bool:
        return self.varying is None and (self.lane is None or self.lane.known == 0)


def is_packed(buffer: Buffer) -> bool:
    """Whether elements share bytes: in tensors, not in scratch memory."""
    return buffer.dtype.per_byte > 1 and buffer.scope == "global"


def load_packed(emitter: ByteAccess, buffer: Buffer, place: PackedPlace) -> Value:
    """What lies at a place: a number, or a vector where lanes differ."""
    b, dtype = emitter.b, buffer.dtype
    if place.is_scalar:
        pointer, shift = _byte(emitter, buffer, place, 0)
        return extended(b, _shifted(b, "lshr", emitter.scalar_load(buffer, pointer), shift), dtype)
    lanes = emitter.num_lanes
    if place.is_one_of_each_byte(dtype):
        pointer, shift = _byte(emitter, buffer, place, 0)
        mask = emitter.mask
        bytes_ = emitter.whole_load(buffer, pointer, lanes) if mask is None else emitter.masked_load(buffer, pointer, b.splat(mask, lanes))
        return extended(b, _shifted(b, "lshr", bytes_, shift), dtype)
    if not place.is_contiguous or lanes % dtype.per_byte:
        return _gathered(emitter, buffer, place)
    parts = []
    for first in range(dtype.per_byte):
        pointer, shift = _byte(emitter, buffer, place, first)
        if emitter.mask is None:
            loaded = emitter.whole_load(buffer, pointer, lanes // dtype.per_byte)
        else:
            mask = _every(b, b.splat(emitter.mask, lanes), first, dtype.per_byte)
            loaded = emitter.masked_load(buffer, pointer, mask)
        parts.append(_shifted(b, "lshr", loaded, shift))
    return extended(b, _interleaved(b, parts), dtype)


def store_packed(emitter: ByteAccess, buffer: Buffer, place: PackedPlace, value: Value) -> None:
    """Store a number, or a vector where lanes differ, under the mask there is."""
    b = emitter.b
    lanes = emitter.num_lanes
    if not lanes:
        _store_element(emitter, buffer, _total(b, place, 0), value)
        return
    value = b.splat(value, lanes)
    mask = None if emitter.mask is None else b.splat(emitter.mask, lanes)
    if not place.is_contiguous or lanes % buffer.dtype.per_byte:
        offsets = emitter.vector_offset(place.uniform, place.known, place.lane, place.varying)
        _store_lanes(emitter, buffer, [b.extract(offsets, lane) for lane in range(lanes)], value, mask)
        return
    if mask is None:
        _store_neighbours(emitter, buffer, place, value)
        return
    some_missing = emitter.any_lane(b.binary("xor", mask, b.int(-1, mask)))
    emitter.where(b.binary("xor", some_missing, int_value(1, "i1")), lambda: _store_neighbours(emitter, buffer, place, value))
    one_by_one = [_total(b, place, lane) for lane in range(lanes)]
    emitter.where(some_missing, lambda: _store_lanes(emitter, buffer, one_by_one, value, mask))


def _total(b: FunctionBuilder, place: PackedPlace, ahead: int) -> Value:
    return b.add(place.uniform, int_value(place.known + ahead))


def _byte(emitter: ByteAccess, buffer: Buffer, place: PackedPlace, ahead: int) -> tuple[Value, Value]:
    """Where the byte is of the element `ahead` of a place, and how far up the element begins in it (i8)."""
    b, dtype = emitter.b, buffer.dtype
    if place.whole:
        byte, rest = divmod(place.known + ahead, dtype.per_byte)
        uniform = place.uniform
        if uniform.known is not None:
            return emitter.pointer_to(buffer, int_value(0), uniform.known // dtype.per_byte + byte), int_value(rest * dtype.bits, "i8")
        shared = b.binary("ashr", uniform, int_value(dtype.per_byte.bit_length() - 1))
        return emitter.pointer_to(buffer, shared, byte), int_value(rest * dtype.bits, "i8")
    byte_value, shift = _split(b, _total(b, place, ahead), dtype)
    return emitter.pointer_to(buffer, byte_value, 0), shift


def _split(b: FunctionBuilder, offset: Value, dtype: DType) -> tuple[Value, Value]:
    """The byte of an element, or of one in each lane, and how far up it begins there (i8)."""
    if offset.known is not None:
        byte, rest = divmod(offset.known, dtype.per_byte)
        return int_value(byte), int_value(rest * dtype.bits, "i8")
    byte_value = b.binary("ashr", offset, b.int(dtype.per_byte.bit_length() - 1, offset))
    rest_value = b.convert("trunc", b.binary("and", offset, b.int(dtype.per_byte - 1, offset)), "i8")
    return byte_value, b.binary("mul", rest_value, b.int(dtype.bits, rest_value))


def _shifted(b: FunctionBuilder, op: str, value: Value, amount: Value) -> Value:
    return value if amount.known == 0 else b.binary(op, value, amount)


def _gathered(emitter: ByteAccess, buffer: Buffer, place: PackedPlace) -> Value:
    b = emitter.b
    offsets = emitter.vector_offset(place.uniform, place.known, place.lane, place.varying)
    bytes_, shifts = _split(b, offsets, buffer.dtype)
    base = emitter.pointer_to(buffer, int_value(0), 0)
    pointers = b.emit(f"getelementptr i8, {base}, {bytes_}", "ptr", offsets.lanes)
    return extended(b, b.binary("lshr", emitter.gather(buffer, pointers), shifts), buffer.dtype)


def _every(b: FunctionBuilder, vector: Value, first: int, step: int) -> Value:
    """Lanes first, first + step, first + 2 step, ..."""
    order = ", ".join(f"i32 {lane}" for lane in range(first, vector.lanes, step))
    count = vector.lanes // step
    return b.emit(f"shufflevector {vector}, {vector.type} poison, <{count} x i32> <{order}>", vector.element, count)


def _interleaved(b: FunctionBuilder, parts: Sequence[Value]) -> Value:
    """Lane 0 of every part, lane 1 of every part, ..."""
    if len(parts) == 1:
        return parts[0]
    even, odd = _interleaved(b, parts[0::2]), _interleaved(b, parts[1::2])
    order = ", ".join(f"i32 {lane}, i32 {even.lanes + lane}" for lane in range(even.lanes))
    return b.emit(f"shufflevector {even}, {odd}, <{2 * even.lanes} x i32> <{order}>", even.element, 2 * even.lanes)


def _together(b: FunctionBuilder, value: Value, dtype: DType) -> Value:
    """The bytes of elements in lanes side by side."""
    low = b.binary("and", value, b.int(2**dtype.bits - 1, value))
    parts = [_every(b, low, first, dtype.per_byte) for first in range(dtype.per_byte)]
    result = parts[0]
    for first, part in enumerate(parts[1:], 1):
        result = b.binary("or", result, b.binary("shl", part, b.int(first * dtype.bits, part)))
    return result


def _store_neighbours(emitter: ByteAccess, buffer: Buffer, place: PackedPlace, value: Value) -> None:
    """Store all lanes, which lie side by side: whole bytes as such, what is before and behind them one by one."""
    b, per_byte = emitter.b, buffer.dtype.per_byte
    if place.whole:
        _store_from(emitter, buffer, place, value, -place.known % per_byte)
        return
    missing = b.binary("and", b.binary("sub", int_value(0), _total(b, place, 0)), int_value(per_byte - 1))
    for before in range(per_byte):
        condition = b.compare("icmp eq", missing, int_value(before))
        emitter.where(condition, partial(_store_from, emitter, buffer, place, value, before))


def _store_from(emitter: ByteAccess, buffer: Buffer, place: PackedPlace, value: Value, before: int) -> None:
    """Store all lanes, of which the first `before` end a byte that others begin."""
    b, per_byte = emitter.b, buffer.dtype.per_byte
    inside = (value.lanes - before) // per_byte * per_byte
    apart = [*range(before), *range(before + inside, value.lanes)]
    if inside:
        order = ", ".join(f"i32 {before + lane}" for lane in range(inside))
        middle = b.emit(f"shufflevector {value}, {value.type} poison, <{inside} x i32> <{order}>", "i8", inside) if apart else value
        pointer, _ = _byte(emitter, buffer, place, before)
        emitter.store_at(buffer, pointer, _together(b, middle, buffer.dtype))
    for lane in apart:
        _store_element(emitter, buffer, _total(b, place, lane), b.extract(value, lane))


def _store_lanes(emitter: ByteAccess, buffer: Buffer, offsets: Sequence[Value], value: Value, mask: Value | None) -> None:
    """Store lane after lane, those that the mask lets through."""
    b = emitter.b
    for lane, offset in enumerate(offsets):
        def store(lane: int = lane, offset: Value = offset) -> None:
            _store_element(emitter, buffer, offset, b.extract(value, lane))

        if mask is None:
            store()
        else:
            emitter.where(b.extract(mask, lane), store)


def _store_element(emitter: ByteAccess, buffer: Buffer, offset: Value, value: Value) -> None:
    """Change the bits of one element."""
    b, dtype = emitter.b, buffer.dtype
    byte, shift = _split(b, offset, dtype)
    pointer = emitter.pointer_to(buffer, byte if byte.known is None else int_value(0), byte.known or 0)
    ones = b.binary("shl", int_value(2**dtype.bits - 1, "i8"), shift)
    others = b.binary("xor", ones, int_value(-1, "i8"))
    bits = b.binary("shl", b.binary("and", value, int_value(2**dtype.bits - 1, "i8")), shift)
    if emitter.may_share_bytes(buffer):
        b.emit(f"atomicrmw and {pointer}, {others} monotonic", "i8")
        b.emit(f"atomicrmw or {pointer}, {bits} monotonic", "i8")
        return
    old = b.emit(f"load i8, {pointer}, align 1", "i8")
    emitter.store_at(buffer, pointer, b.binary("or", b.binary("and", old, others), bits))
