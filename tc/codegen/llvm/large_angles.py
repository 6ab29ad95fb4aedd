"""Large angles without the turns in them, by integers: what sines and cosines begin with. Source: Payne and Hanek (1983)."""

from __future__ import annotations

import math

from tc.codegen.llvm.builder import Value
from tc.codegen.llvm.number import Number

_WINDOW = 192


def _two_over_pi(bits: int) -> int:
    """floor(2 / pi * 2^bits), by Machin's formula."""
    scale = 1 << (bits + 64)

    def inverse_tangent(n: int) -> int:
        total = term = scale // n
        k = 1
        while term:
            term //= -n * n
            k += 2
            total += term // k
        return total

    pi = 4 * (4 * inverse_tangent(5) - inverse_tangent(239))
    return 2 * scale * (1 << bits) // pi


def payne_hanek(x: Number) -> tuple[Value, Number]:
    """The same of any large angle: M 2^e times as many digits of 2 / pi as count, modulo four quarter turns.

    With W the 192 digits from place e - 2 on, x * 2 / pi is M * W * 2^-190 but for multiples of 4.
    """
    b, words = x.b, 20
    digits = _two_over_pi(64 * words)
    content = b"".join((digits >> 64 * (words - 1 - k) & (2**64 - 1)).to_bytes(8, "little") for k in range(words))
    table = b.module.constant("tc_two_over_pi", content)
    bits = b.binary("and", x.bits, b.int(2**63 - 1, x.bits))
    exponent = b.binary("sub", b.binary("lshr", bits, b.int(52, bits)), b.int(1075, bits))
    mantissa = b.binary("or", b.binary("and", bits, b.int(2**52 - 1, bits)), b.int(2**52, bits))
    place = b.binary("sub", exponent, b.int(2, exponent))
    before = b.compare("icmp slt", place, b.int(0, place))  # so many digits 0 come before the point
    start = b.select(before, b.int(0, place), place)
    start = b.select(b.compare("icmp sgt", start, b.int(64 * (words - 4), start)), b.int(0, start), start)  # infinity, NaN
    first = b.binary("lshr", start, b.int(6, start))
    window: Value | None = None
    for k in range(4):
        index = b.binary("add", first, b.int(k, first))
        word = b.emit(f"load i64, ptr {b.emit(f'getelementptr i64, ptr {table}, i64 {index.text}', 'ptr').text}, align 8", "i64")
        wide = b.convert("zext", word, "i256")
        window = wide if window is None else b.binary("or", b.binary("shl", window, b.int(64, window)), wide)
    assert window is not None
    skipped = b.convert("zext", b.binary("and", start, b.int(63, start)), "i256")
    window = b.binary("lshr", b.binary("shl", window, skipped), b.int(64, window))
    whole = b.binary("mul", window, b.convert("zext", mantissa, "i256"))
    behind = b.convert("zext", b.select(before, b.binary("sub", b.int(0, place), place), b.int(0, place)), "i256")
    whole = b.binary("shl", b.binary("lshr", whole, behind), b.int(256 - _WINDOW, whole))  # the quarter turns are the two highest bits
    rounded = b.binary("add", whole, b.int(1 << 253, whole))
    turns = b.convert("trunc", b.binary("lshr", rounded, b.int(254, rounded)), "i64")
    rest = b.binary("ashr", b.binary("shl", whole, b.int(2, whole)), b.int(2, whole))  # signed, of -1/2 to 1/2 quarter turns
    value: Number | None = None
    for k in range(4):
        part = b.convert("trunc", b.binary("lshr", rest, b.int(192 - 64 * k, rest)), "i64")
        number = Number(b, b.convert("uitofp" if k else "sitofp", part, "double")) * 2.0 ** (-62 - 64 * k)
        value = number if value is None else value + number
    assert value is not None
    is_negative = b.compare("icmp slt", x.bits, b.int(0, x.bits))
    angle = value * (math.pi / 2)
    angle = angle.where(is_negative, -angle)
    turns = b.select(is_negative, b.binary("sub", b.int(0, turns), turns), turns)
    return turns, angle.where(x.math("abs").test("ueq", math.inf), math.nan)
