"""Single instructions on random and extreme operands, against definitions in Python's integers and in exact rationals."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.ptx.errors import PtxSyntaxError, Unsupported
from tests.ptx.launch import run

LETTER = {"u": "r", "i": "r", "f": "f"}
MEMORY = {np.dtype(np.float16): "b16", np.dtype(np.bool_): "u8"}


def kind_of(dtype: np.dtype) -> str:
    return f"b{dtype.itemsize * 8}"


def apply(instruction: str, result: type, *operands: np.ndarray, before: str = "", many: int = 1) -> np.ndarray:
    """`instruction` with `d`, `a`, `b`, `c`, `e` as registers: element by element, one thread each.

    With `many` results they are `d0`, `d1`, ... and the answer has a column for each.
    """
    n, names = len(operands[0]), "abce"
    results = [f"d{i}" for i in range(many)] if many > 1 else ["d"]
    out = np.zeros((n, many), result)
    lines = [".version 8.4", ".target sm_90a", ".address_size 64"]
    lines.append(".visible .entry f(.param .u64 out, .param .u32 n" + "".join(f", .param .u64 p{i}" for i in range(len(operands))) + ") {")
    lines += ["  .reg .pred %q, %q1, %q2; .reg .b64 %p, %i; .reg .b32 %t, %t1, %t2;"]
    lines += [f"  .reg .{kind_of(np.dtype(result))} {', '.join(results)};"]
    lines += [f"  .reg .{kind_of(x.dtype)} {name};" for x, name in zip(operands, names)]
    lines += ["  mov.u32 %t, %ctaid.x; mad.lo.u32 %t, %t, 256, %tid.x; ld.param.u32 %t1, [n]; setp.ge.u32 %q, %t, %t1; @%q exit;"]
    lines += ["  cvt.u64.u32 %i, %t;"]
    for i, (x, name) in enumerate(zip(operands, names)):
        lines += [f"  ld.param.u64 %p, [p{i}]; mad.lo.u64 %p, %i, {x.itemsize}, %p; ld.global.{kind_of(x.dtype)} {name}, [%p];"]
    lines += [f"  {before}{instruction};", f"  ld.param.u64 %p, [out]; mad.lo.u64 %p, %i, {out.itemsize * many}, %p;"]
    lines += [f"  st.global.{kind_of(out.dtype)} [%p+{out.itemsize * i}], {name};" for i, name in enumerate(results)]
    run("\n".join([*lines, "  ret;", "}", ""]), "f", (-(-n // 256),), (256,), [out, n, *operands])
    return out if many > 1 else out[:, 0]


def integers(dtype: type, n: int = 200, seed: int = 0) -> np.ndarray:
    """Random bits, small numbers, and the extremes."""
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    wide = rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True)
    small = rng.integers(0, 70, n // 2).astype(dtype)
    extremes = np.array([0, 1, info.max, info.min, info.max - 1, info.min + 1, info.max // 2], dtype)
    return rng.permutation(np.concatenate([wide, small, *[extremes] * 4]))


def wrap(value: int, dtype: type) -> int:
    bits = np.dtype(dtype).itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if np.iinfo(dtype).min < 0 and value >> (bits - 1) else value


def cut(value: int, dtype: type) -> int:
    return min(max(value, np.iinfo(dtype).min), np.iinfo(dtype).max)


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def bits_of(value: int, width: int) -> int:
    return value & ((1 << width) - 1)


def extract(a: int, start: int, length: int, width: int, signed: bool) -> int:
    """bfe as the ISA's pseudo code says it, bit by bit."""
    start, length = start & 255, length & 255
    fill = 0 if not signed or length == 0 else bits_of(a, width) >> min(start + length - 1, width - 1) & 1
    found = 0
    for i in range(width):
        bit = bits_of(a, width) >> (start + i) & 1 if i < length and start + i < width else fill
        found |= bit << i
    return found


def insert(a: int, b: int, start: int, length: int, width: int) -> int:
    start, length = start & 255, length & 255
    for i in range(length):
        if start + i < width:
            b = b & ~(1 << (start + i)) | (a >> i & 1) << (start + i)
    return b


I32, U32, I64, U64, I16, U16 = np.int32, np.uint32, np.int64, np.uint64, np.int16, np.uint16
INTEGER: list[tuple[str, type, tuple[type, ...], Callable[..., int]]] = [
    ("add.s32 d, a, b", I32, (I32, I32), lambda a, b: a + b),
    ("add.sat.s32 d, a, b", I32, (I32, I32), lambda a, b: cut(a + b, I32)),
    ("sub.sat.s32 d, a, b", I32, (I32, I32), lambda a, b: cut(a - b, I32)),
    ("sub.u16 d, a, b", U16, (U16, U16), lambda a, b: a - b),
    ("mul.lo.s64 d, a, b", I64, (I64, I64), lambda a, b: a * b),
    ("mul.hi.s64 d, a, b", I64, (I64, I64), lambda a, b: a * b >> 64),
    ("mul.hi.u64 d, a, b", U64, (U64, U64), lambda a, b: a * b >> 64),
    ("mul.hi.s32 d, a, b", I32, (I32, I32), lambda a, b: a * b >> 32),
    ("mul.hi.u32 d, a, b", U32, (U32, U32), lambda a, b: a * b >> 32),
    ("mul.wide.s32 d, a, b", I64, (I32, I32), lambda a, b: a * b),
    ("mul.wide.u16 d, a, b", U32, (U16, U16), lambda a, b: a * b),
    ("mul24.lo.s32 d, a, b", I32, (I32, I32), lambda a, b: sign24(a) * sign24(b)),
    ("mad.lo.s32 d, a, b, c", I32, (I32, I32, I32), lambda a, b, c: a * b + c),
    ("mad.hi.s32 d, a, b, c", I32, (I32, I32, I32), lambda a, b, c: (a * b >> 32) + c),
    ("mad.wide.u32 d, a, b, c", U64, (U32, U32, U64), lambda a, b, c: a * b + c),
    ("div.s32 d, a, b", I32, (I32, I32), lambda a, b: towards_zero(a, b) if b else -1),
    ("div.u64 d, a, b", U64, (U64, U64), lambda a, b: a // b if b else -1),
    ("rem.s32 d, a, b", I32, (I32, I32), lambda a, b: a - towards_zero(a, b) * b if b else a),
    ("rem.u32 d, a, b", U32, (U32, U32), lambda a, b: a % b if b else a),
    ("min.s64 d, a, b", I64, (I64, I64), min),
    ("max.u32 d, a, b", U32, (U32, U32), max),
    ("abs.s32 d, a", I32, (I32,), abs),
    ("neg.s64 d, a", I64, (I64,), lambda a: -a),
    ("sad.s32 d, a, b, c", I32, (I32, I32, I32), lambda a, b, c: c + abs(a - b)),
    ("and.b32 d, a, b", U32, (U32, U32), lambda a, b: a & b),
    ("not.b64 d, a", U64, (U64,), lambda a: ~a),
    ("cnot.b32 d, a", U32, (U32,), lambda a: int(a == 0)),
    ("lop3.b32 d, a, b, c, 0xE8", U32, (U32, U32, U32), lambda a, b, c: a & b | b & c | a & c),
    ("lop3.b32 d, a, b, c, 0x1A", U32, (U32, U32, U32), lambda a, b, c: (a & b | c) ^ a),
    ("shl.b32 d, a, b", U32, (U32, U32), lambda a, b: a << b if b < 32 else 0),
    ("shl.b64 d, a, b", U64, (U64, U32), lambda a, b: a << b if b < 64 else 0),
    ("shr.u32 d, a, b", U32, (U32, U32), lambda a, b: a >> min(b, 99)),
    ("shr.s32 d, a, b", I32, (I32, U32), lambda a, b: a >> min(b, 99)),
    ("shr.s16 d, a, b", I16, (I16, U32), lambda a, b: a >> min(b, 99)),
    ("shf.l.wrap.b32 d, a, b, c", U32, (U32, U32, U32), lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32),
    ("shf.r.clamp.b32 d, a, b, c", U32, (U32, U32, U32), lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    ("shf.l.clamp.b32 d, a, b, c", U32, (U32, U32, U32), lambda a, b, c: ((b << 32 | a) << min(c, 32)) >> 32),
    ("bfe.u32 d, a, b, c", U32, (U32, U32, U32), lambda a, b, c: extract(a, b, c, 32, False)),
    ("bfe.s32 d, a, b, c", I32, (I32, U32, U32), lambda a, b, c: extract(a, b, c, 32, True)),
    ("bfe.s64 d, a, b, c", I64, (I64, U32, U32), lambda a, b, c: extract(a, b, c, 64, True)),
    ("bfi.b32 d, a, b, c, e", U32, (U32, U32, U32, U32), lambda a, b, c, e: insert(a, b, c, e, 32)),
    ("bfi.b64 d, a, b, c, e", U64, (U64, U64, U32, U32), lambda a, b, c, e: insert(a, b, c, e, 64)),
    ("clz.b32 d, a", U32, (U32,), lambda a: 32 - a.bit_length()),
    ("clz.b64 d, a", U32, (U64,), lambda a: 64 - a.bit_length()),
    ("popc.b64 d, a", U32, (U64,), lambda a: a.bit_count()),
    ("brev.b32 d, a", U32, (U32,), lambda a: int(f"{a:032b}"[::-1], 2)),
    ("bfind.u32 d, a", U32, (U32,), lambda a: a.bit_length() - 1),
    ("bfind.s32 d, a", U32, (I32,), lambda a: (~a if a < 0 else a).bit_length() - 1),
    ("bfind.shiftamt.u32 d, a", U32, (U32,), lambda a: 32 - a.bit_length() if a else -1),
    ("prmt.b32 d, a, b, c", U32, (U32, U32, U32), lambda a, b, c: permute(a, b, c)),
    ("dp4a.s32.u32 d, a, b, c", I32, (I32, U32, I32), lambda a, b, c: c + dot(parts(a, 8, True), parts(b, 8, False))),
    ("dp2a.hi.s32.s32 d, a, b, c", I32, (I32, I32, I32),
     lambda a, b, c: c + dot(parts(a, 16, True), parts(b, 8, True)[2:])),
    ("cvt.s8.s32 d, a", I32, (I32,), lambda a: wrap(a, np.int8)),
    ("cvt.u16.u32 d, a", U32, (U32,), lambda a: a & 0xFFFF),
    ("cvt.sat.s8.s32 d, a", I32, (I32,), lambda a: cut(a, np.int8)),
    ("cvt.sat.u32.s64 d, a", U32, (I64,), lambda a: cut(a, U32)),
    ("cvt.s64.s32 d, a", I64, (I32,), lambda a: a),
    ("cvt.u64.u32 d, a", U64, (U32,), lambda a: a),
    ("selp.b32 d, a, b, %q1", U32, (U32, U32), lambda a, b: a if a < b else b),
]  # fmt: skip


def sign24(a: int) -> int:
    return (a & 0xFFFFFF) - (a >> 23 & 1) * (1 << 24)


def parts(a: int, width: int, signed: bool) -> list[int]:
    found = [bits_of(a, 32) >> i & ((1 << width) - 1) for i in range(0, 32, width)]
    return [p - (1 << width) if signed and p >> (width - 1) else p for p in found]


def dot(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def permute(a: int, b: int, selector: int) -> int:
    source, found = (b << 32 | a).to_bytes(8, "little"), 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = source[nibble & 7]
        found |= (byte if nibble < 8 else 255 * (byte >> 7)) << 8 * i
    return found


@pytest.mark.parametrize(("instruction", "result", "types", "definition"), INTEGER, ids=[row[0].split()[0] for row in INTEGER])
def test_integer_instruction(instruction: str, result: type, types: tuple[type, ...], definition: Callable[..., int]) -> None:
    operands = [integers(t, seed=i) for i, t in enumerate(types)]
    before = "setp.lt.u32 %q1, a, b; " if "%q1" in instruction else ""

    got = apply(instruction, result, *operands, before=before)

    expected = [wrap(definition(*(int(x) for x in row)), result) for row in zip(*operands, strict=True)]
    wrong = [(row, int(g), e) for row, g, e in zip(zip(*operands), got, expected) if int(g) != e]
    assert not wrong, wrong[:3]


@pytest.mark.parametrize("subtract", [False, True])
def test_carries_go_through_chains(subtract: bool) -> None:
    a, b = integers(U64, seed=1), integers(U64, seed=2)
    name = "sub" if subtract else "add"
    halves = "mov.b64 {%t, %t1}, a; mov.b64 {%t2, d2}, b; "

    low_high = apply(
        f"{name}.cc.u32 d0, %t, %t2; {name}c.cc.u32 d1, %t1, d2; {name}c.u32 d2, 0, 0", U32, a, b, before=halves, many=3,
    )  # fmt: skip

    for x, y, row in zip(a.tolist(), b.tolist(), low_high.tolist(), strict=True):
        assert row[0] | row[1] << 32 | row[2] << 64 == (x - y if subtract else x + y) % (1 << 96)


def test_products_with_carry() -> None:
    a, b = integers(U64, seed=3), integers(U64, seed=4)
    halves = "mov.b64 {%t, %t1}, a; mov.b64 {%t2, d3}, b; "
    text = (
        "mul.lo.u32 d0, %t, %t2; mul.hi.u32 d1, %t, %t2; mad.lo.cc.u32 d1, %t, d3, d1; madc.hi.u32 d2, %t, d3, 0; "
        "mad.lo.cc.u32 d1, %t1, %t2, d1; madc.hi.cc.u32 d2, %t1, %t2, d2; addc.u32 %t2, 0, 0; mad.lo.cc.u32 d2, %t1, d3, d2; "
        "madc.hi.u32 d3, %t1, d3, %t2"
    )

    got = apply(text, U32, a, b, before=halves, many=4)

    for x, y, row in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        assert sum(part << 32 * i for i, part in enumerate(row)) == x * y


# ---------------------------------------------------------------- floating point


def floats(dtype: type, n: int = 300, seed: int = 0) -> np.ndarray:
    """Random bits (all exponents, NaN), neighbours of one size, and special values."""
    rng = np.random.default_rng(seed)
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    raw = rng.integers(0, np.iinfo(unsigned).max, n, dtype=unsigned, endpoint=True).view(dtype)
    near = (rng.standard_normal(n) * 3).astype(dtype)
    info = np.finfo(dtype)
    limits = [info.tiny, info.smallest_subnormal, info.max, -info.max]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 1.5, 2.5, *limits], dtype)
    return rng.permutation(np.concatenate([raw, near, special, special]))


def round_exact(value: Fraction, dtype: type, mode: str) -> float:
    """A rational number to the type's grid, by rn, rz, rm, rp; with its range of exponents."""
    info = np.finfo(dtype)
    digits, lowest = info.nmant + 1, info.minexp
    if value == 0:
        return 0.0
    exponent = max(abs(value.numerator).bit_length() - value.denominator.bit_length() - 1, lowest)
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while exponent > lowest and abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - digits + 1)
    scaled = value / unit
    whole = {"rn": round(scaled), "rz": math.trunc(scaled), "rm": math.floor(scaled), "rp": math.ceil(scaled)}[mode]
    result = whole * unit
    if abs(result) > Fraction(float(info.max)):
        away = mode == "rn" or (mode == "rp" and value > 0) or (mode == "rm" and value < 0)
        return (math.inf if away else float(info.max)) * (1 if value > 0 else -1)
    return float(result)


def exactly(definition: Callable[..., Fraction], fallback: Callable[..., float], row: tuple, dtype: type, mode: str) -> float:
    if all(np.isfinite(row)):
        try:
            exact = definition(*(Fraction(float(x)) for x in row))
        except ZeroDivisionError:
            return float(fallback(*(np.float64(x) for x in row)))
        if exact != 0:
            return round_exact(exact, dtype, mode)
    return float(fallback(*(np.float64(x) for x in row)))


ROUNDED = [
    (f"{name}.{mode}.{kind}", dtype, count, definition, mode)
    for kind, dtype in (("f32", np.float32), ("f64", np.float64), ("f16", np.float16))
    for name, count, definition in (("add", 2, lambda a, b: a + b), ("mul", 2, lambda a, b: a * b), ("fma", 3, lambda a, b, c: a * b + c),
                                    ("div", 2, lambda a, b: a / b))
    for mode in (("rn", "rz", "rm", "rp") if kind == "f32" else ("rn",))
    if not (name == "div" and kind == "f16")
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "dtype", "count", "definition", "mode"), ROUNDED, ids=[row[0] for row in ROUNDED])
def test_floating_point_is_rounded_as_the_exact_result_is(opcode: str, dtype: type, count: int, definition: Callable, mode: str) -> None:
    operands = [floats(dtype, seed=i) for i in range(count)]
    if count == 3:  # products that nearly cancel, and sums half way between two numbers
        with np.errstate(all="ignore"):
            operands[2][::3] = (-operands[0][::3].astype(np.float64) * operands[1][::3]).astype(dtype)
        tiny = np.float64(np.finfo(dtype).eps) / 2
        operands[0][::5], operands[1][::5], operands[2][::5] = 1, 1 + 2 * tiny, tiny * (1 + 4 * tiny)

    got = apply(f"{opcode} d, {', '.join('abc'[:count])}", dtype, *operands)

    with np.errstate(all="ignore"):
        expected = np.array([exactly(definition, definition, row, dtype, mode) for row in zip(*operands, strict=True)]).astype(dtype)
    signless = expected == 0  # the sign of an exact zero is the fallback's, in the nearest rounding only
    same = (got == expected) | (np.isnan(got) & np.isnan(expected)) | (signless & (got == 0))
    assert same.all(), [(tuple(o[i] for o in operands), got[i], expected[i]) for i in np.flatnonzero(~same)[:3]]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("pair", ["f32.f64", "f16.f32", "f32.s32", "f32.u64", "f64.s64", "f16.u32"])
def test_conversion_is_rounded_once(pair: str, mode: str) -> None:
    types = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": I32, "u32": U32, "s64": I64, "u64": U64}
    target, source = (types[t] for t in pair.split("."))
    values = floats(source) if pair.split(".")[1][0] == "f" else integers(source)
    if pair == "f32.f64":
        values[::4] = (np.random.default_rng(0).standard_normal(len(values[::4])).astype(np.float32)).astype(np.float64) + 2.0**-60

    got = apply(f"cvt.{mode}.{pair} d, a", target, values)

    expected = []
    for value in values.tolist():
        special = isinstance(value, float) and not math.isfinite(value)
        expected.append(value if special or value == 0 else round_exact(Fraction(value), target, mode))
    np.testing.assert_array_equal(got, np.array(expected).astype(target))


@pytest.mark.parametrize("name", ["rn", "rz", "rna"])
@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_conversion_to_shortened_floats(kind: str, name: str) -> None:
    if (kind == "tf32") != (name == "rna"):
        return
    x = floats(np.float32)
    drop = 16 if kind == "bf16" else 13

    got = apply(f"cvt.{name}.{kind}.f32 d, a", np.uint16 if kind == "bf16" else np.uint32, x)

    for value, bits in zip(x.tolist(), got.tolist(), strict=True):
        found = float(np.uint32(bits << 16 if kind == "bf16" else bits).view(np.float32))
        whole = int(np.float32(value).view(np.uint32))
        down, up = whole >> drop << drop, (whole >> drop) + 1 << drop
        low, high = (float(np.uint32(b & 0xFFFFFFFF).view(np.float32)) for b in (down, up))
        if not math.isfinite(value) or whole & ((1 << drop) - 1) == 0 or name == "rz":
            assert found == low or (math.isnan(found) and math.isnan(value)), value
            continue
        middle = whole & ((1 << drop) - 1)
        half = 1 << (drop - 1)
        take_up = middle > half or (middle == half and (name == "rna" or down >> drop & 1))
        assert found == (high if take_up else low), value


@pytest.mark.parametrize("pair", ["s32.f32", "u8.f32", "s64.f64", "u32.f16", "s16.f64", "u64.f32"])
@pytest.mark.parametrize("mode", ["rzi", "rni", "rmi", "rpi"])
def test_floats_become_integers_within_their_range(pair: str, mode: str) -> None:
    to, source = pair.split(".")
    dtype = np.dtype(("u" if to[0] == "u" else "i") + str(int(to[1:]) // 8))
    x = floats({"f16": np.float16, "f32": np.float32, "f64": np.float64}[source])
    held = np.dtype(f"{dtype.kind}{max(dtype.itemsize, 4)}").type

    got = apply(f"cvt.{mode}.{pair} d, a", held, x)

    rounding = {"rzi": math.trunc, "rni": round, "rmi": math.floor, "rpi": math.ceil}[mode]
    for value, found in zip(x.tolist(), got.tolist(), strict=True):
        if math.isnan(value):
            assert bits_of(found, dtype.itemsize * 8) == (1 << (dtype.itemsize * 8 - 1) if dtype.itemsize == 8 or source == "f64" else 0)
        elif math.isinf(value):
            assert found == (np.iinfo(dtype).max if value > 0 else np.iinfo(dtype).min)
        else:
            assert found == cut(rounding(value), dtype.type), value


@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
def test_least_and_greatest_prefer_numbers_and_order_zeros(kind: str) -> None:
    dtype = {"f32": np.float32, "f64": np.float64, "f16": np.float16}[kind]
    a, b = floats(dtype, seed=1), floats(dtype, seed=2)
    a[:4], b[:4] = [0.0, -0.0, np.nan, np.nan], [-0.0, 0.0, 1.0, np.nan]

    least, greatest = apply(f"min.{kind} d, a, b", dtype, a, b), apply(f"max.{kind} d, a, b", dtype, a, b)

    np.testing.assert_array_equal(least, np.fmin(a, b))
    np.testing.assert_array_equal(greatest, np.fmax(a, b))
    np.testing.assert_array_equal(np.signbit(least[:2]), [True, True])
    np.testing.assert_array_equal(np.signbit(greatest[:2]), [False, False])
    if kind != "f64":
        np.testing.assert_array_equal(apply(f"min.NaN.{kind} d, a, b", dtype, a, b), np.minimum(a, b))


COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


@pytest.mark.parametrize("name", [*COMPARISONS, *(f"{n}u" for n in COMPARISONS), "num", "nan"])
def test_comparisons_of_floats(name: str) -> None:
    a, b = floats(np.float32, seed=1), floats(np.float32, seed=2)
    b[::3] = a[::3]

    got = apply(f"setp.{name}.f32 %q1|%q2, a, b; selp.u32 d0, 1, 0, %q1; selp.u32 d1, 1, 0, %q2", U32, a, b, many=2)

    unordered = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        expected = unordered == (name == "nan")
    else:
        ordered = name in COMPARISONS
        with np.errstate(invalid="ignore"):
            plain = COMPARISONS[name if ordered else name[:-1]](a, b)
        expected = plain & ~unordered if ordered else plain | unordered
    np.testing.assert_array_equal(got[:, 0], expected)
    np.testing.assert_array_equal(got[:, 1], ~expected)


def test_predicates_combine() -> None:
    a, b = integers(I32, seed=1), integers(I32, seed=2)
    compare = "setp.gt.s32 %q, a, 0; setp.lt.and.s32 %q1|%q2, a, b, !%q; "
    text = "selp.u32 d0, 1, 0, %q1; selp.u32 d1, 1, 0, %q2; set.le.u32.s32 d2, a, b"

    got = apply(compare + text, U32, a, b, many=3)

    np.testing.assert_array_equal(got[:, 0], (a < b) & (a <= 0))
    np.testing.assert_array_equal(got[:, 1], (a >= b) & (a <= 0))
    np.testing.assert_array_equal(got[:, 2], np.where(a <= b, 0xFFFFFFFF, 0))


def test_flushing_and_saturation() -> None:
    a, b = floats(np.float32, seed=1), floats(np.float32, seed=2)

    flushed, clamped = apply("mul.ftz.f32 d, a, b", np.float32, a, b), apply("add.sat.f32 d, a, b", np.float32, a, b)

    def flush(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)

    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(flushed, flush(flush(a) * flush(b)))
        np.testing.assert_array_equal(clamped, np.nan_to_num(a + b, nan=0.0, posinf=2).clip(0, 1))


def test_pairs_of_halves() -> None:
    a, b, c = (floats(np.float16, seed=i)[:600].reshape(-1, 2) for i in range(3))
    packed = [x.copy().view(np.uint32)[:, 0] for x in (a, b, c)]

    total = apply("fma.rn.f16x2 d, a, b, c", U32, *packed).view(np.float16).reshape(-1, 2)
    least = apply("min.f16x2 d, a, b", U32, *packed[:2]).view(np.float16).reshape(-1, 2)
    less = apply("setp.lt.f16x2 %q1|%q2, a, b; selp.u32 d0, 1, 0, %q1; selp.u32 d1, 1, 0, %q2", U32, *packed[:2], many=2)
    flipped = apply("neg.f16x2 d, a", U32, packed[0])
    wide = floats(np.float32)[:600].reshape(-1, 2)
    joined = apply("cvt.rn.f16x2.f32 d, a, b", U32, wide[:, 0].copy(), wide[:, 1].copy()).view(np.float16).reshape(-1, 2)

    with np.errstate(all="ignore"):
        for x, y, z, got in zip(a.ravel(), b.ravel(), c.ravel(), total.ravel(), strict=True):
            expected = np.float16(exactly(lambda x, y, z: x * y + z, lambda x, y, z: x * y + z, (x, y, z), np.float16, "rn"))
            assert got == expected or (np.isnan(got) and np.isnan(expected)), (x, y, z)
        np.testing.assert_array_equal(least, np.fmin(a, b))
        np.testing.assert_array_equal(joined, wide[:, ::-1].astype(np.float16))
        np.testing.assert_array_equal(less, a < b)
    np.testing.assert_array_equal(flipped, packed[0] ^ 0x80008000)


def test_eight_bit_floats_go_to_the_nearest_value() -> None:
    powers = (2.0 ** np.arange(-20, 18)).astype(np.float32)
    x = np.concatenate([floats(np.float32, 100), np.linspace(-600, 600, 301).astype(np.float32), powers])

    for kind, mantissa, bias, top in (("e4m3", 3, 7, 448.0), ("e5m2", 2, 15, 57344.0)):
        codes = apply(f"cvt.rn.satfinite.{kind}x2.f32 d, a, a", np.uint16, x)
        back = apply(f"cvt.rn.f16x2.{kind}x2 d, a", U32, codes).view(np.float16)[::2]

        grid = np.array([m * 2.0 ** (1 - bias - mantissa) for m in range(1 << mantissa)]
                        + [(1 + m / (1 << mantissa)) * 2.0 ** (e - bias) for e in range(1, 40) for m in range(1 << mantissa)])  # fmt: skip
        grid = grid[grid <= top]
        for value, got in zip(x.astype(np.float64), back.astype(np.float64), strict=True):
            if np.isnan(value):
                assert np.isnan(got)
            else:
                nearest = np.abs(grid - min(abs(value), top)).min()
                assert abs(abs(got) - min(abs(value), top)) == nearest and np.signbit(got) == np.signbit(value), (kind, value, got)
        np.testing.assert_array_equal(codes & 255, codes >> 8)


# ---------------------------------------------------------------- what is not there


STRANGE = ["frob.u32 d, a", "add.u32.wide d, a, a", "cvt.rn.satfinite.e2m1x2.f32 d, a, a", "shfl.down.b32 d, a, 1, 31"]


@pytest.mark.parametrize("text", STRANGE)
def test_unknown_instructions_are_errors_with_their_line(text: str) -> None:
    with pytest.raises(Unsupported, match=r"line \d+: .*"):
        apply(text, U32, integers(U32))


def test_text_that_is_not_ptx_is_an_error() -> None:
    with pytest.raises(PtxSyntaxError, match=r"line 11: unknown name z"):
        apply("add.u32 d, a, z", U32, integers(U32))
    with pytest.raises(PtxSyntaxError, match="wanted"):
        apply("add.u32 d a", U32, integers(U32))
