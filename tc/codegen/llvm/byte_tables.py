"""Tables of 256 bytes in registers: bytes choose among those of two registers at once, twice, and their highest bit between the two.

Source: `vpermi2b` (AVX-512 VBMI), Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from tc.codegen.llvm.builder import FunctionBuilder, Module, Value

REGISTER_BYTES = 64

_PERMUTE = f"llvm.x86.avx512.vpermi2var.qi.{8 * REGISTER_BYTES}"


def looked_up(module: Module, b: FunctionBuilder, table: Sequence[Value], places: Value) -> Value:
    """The entries at `places`, bytes of at most a register, of a table that four registers hold."""
    wide = _resized(b, places, REGISTER_BYTES)
    module.declare(_PERMUTE, wide.type, [wide.type] * 3)
    halves = [
        b.emit(f"call {wide.type} @{_PERMUTE}({even}, {wide}, {odd})", wide.element, wide.lanes)
        for even, odd in (table[:2], table[2:])
    ]
    is_high = b.emit(f"icmp slt {wide}, zeroinitializer", "i1", wide.lanes)
    return _resized(b, b.select(is_high, halves[1], halves[0]), places.lanes)


def _resized(b: FunctionBuilder, value: Value, lanes: int) -> Value:
    """The first lanes of a vector, and any number in those that it does not have."""
    if value.lanes == lanes:
        return value
    order = ", ".join(f"i32 {k}" if k < value.lanes else "i32 poison" for k in range(lanes))
    return b.emit(f"shufflevector {value}, {value.type} poison, <{lanes} x i32> <{order}>", value.element, lanes)
