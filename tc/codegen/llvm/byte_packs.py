"""Floats rounded to bytes, two or four vectors at once: instructions that narrow two vectors to one of half the bits saturate, so that
nothing is clipped before, and one store writes what else takes four."""

from __future__ import annotations

from dataclasses import dataclass

from tc.codegen.llvm.builder import FunctionBuilder, Value
from tc.ir.dtype import DType, i8


@dataclass(frozen=True)
class Packs:
    """Vectors of `width` lanes of 32 bits: what rounds them, and the instructions that narrow two of i32, and two of i16."""

    feature: str
    width: int
    rounds: str
    to_words: str
    to_signed: str
    to_unsigned: str

    def to_bytes(self, b: FunctionBuilder, value: Value, shift: Value, dtype: DType) -> Value:
        """`value` rounded, and `shift`, an i32 within 16 bits, added: the nearest number of `dtype`. What is below all i32, and NaN, is the
        least; nothing is above all of them."""
        count = value.lanes // self.width
        wholes = [self._rounded(b, b.shuffled(value, value, range(k * self.width, (k + 1) * self.width))) for k in range(count)]
        pairs = [self._call(b, self.to_words, wholes[k], wholes[k + 1], "i16") for k in range(0, count, 2)]
        words = [self._shifted(b, pair, shift) for pair in pairs]
        packed = self._call(b, self.to_signed if dtype is i8 else self.to_unsigned, words[0], words[-1], "i8")
        return self._in_order(b, packed, count)

    def _rounded(self, b: FunctionBuilder, value: Value) -> Value:
        kind, more = f"<{self.width} x i32>", ""
        if "mask" in self.rounds:
            b.module.declare(self.rounds, kind, [value.type, kind, "i16", "i32"])
            more = f", {kind} zeroinitializer, i16 -1, i32 4"
        else:
            b.module.declare(self.rounds, kind, [value.type])
        return b.emit(f"call {kind} @{self.rounds}({value}{more})", "i32", self.width)

    def _shifted(self, b: FunctionBuilder, words: Value, shift: Value) -> Value:
        if shift.known == 0:
            return words
        return b.intrinsic("sadd.sat", words, b.splat(b.convert("trunc", shift, "i16"), words.lanes))

    def _call(self, b: FunctionBuilder, name: str, first: Value, second: Value, element: str) -> Value:
        kind = f"<{2 * first.lanes} x {element}>"
        b.module.declare(name, kind, [first.type, second.type])
        return b.emit(f"call {kind} @{name}({first}, {second})", element, 2 * first.lanes)

    def _in_order(self, b: FunctionBuilder, packed: Value, count: int) -> Value:
        """The instructions take four lanes of each vector in turn."""
        parts = self.width // 4
        fours = b.emit(f"bitcast {packed} to <{self.width} x i32>", "i32", self.width)
        ordered = b.shuffled(fours, fours, [lane % parts * 4 + lane // parts for lane in range(count * parts)])
        lanes = count * self.width
        return b.emit(f"bitcast {ordered} to <{lanes} x i8>", "i8", lanes)


PACKS = (
    Packs(
        "avx512bw", 16, "llvm.x86.avx512.mask.cvtps2dq.512",
        "llvm.x86.avx512.packssdw.512", "llvm.x86.avx512.packsswb.512", "llvm.x86.avx512.packuswb.512",
    ),
    Packs("avx2", 8, "llvm.x86.avx.cvt.ps2dq.256", "llvm.x86.avx2.packssdw", "llvm.x86.avx2.packsswb", "llvm.x86.avx2.packuswb"),
    Packs(
        "sse4.1", 4, "llvm.x86.sse2.cvtps2dq",
        "llvm.x86.sse2.packssdw.128", "llvm.x86.sse2.packsswb.128", "llvm.x86.sse2.packuswb.128",
    ),
)  # fmt: skip


def packs_for(b: FunctionBuilder, value: Value) -> Packs | None:
    """The instructions for a vector of f32, two or four times as long as those of the target; None where there are none."""
    for packs in PACKS:
        if b.module.has(packs.feature):
            return packs if value.element == "float" and value.lanes in (2 * packs.width, 4 * packs.width) else None
    return None
