"""Integer, logic and bit instructions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx import ops_float
from tests.ptx.coder import Coder, Run, builds
from tests.ptx.element_types import SIGNED, TYPES, UNSIGNED, PtxType
from tests.ptx.machine import Machine
from tests.ptx.program import Register

# ---------------------------------------------------------------- plumbing


def elementwise(c: Coder, update: Callable[..., np.ndarray], result: PtxType, *operands: PtxType) -> Run:
    """`d = update(a, b, ...)`, lane by lane."""
    write = c.destination(0, result)
    reads = [c.source(i + 1, type) for i, type in enumerate(operands)]
    return lambda m, active: write(m, active, update(*(read(m, active) for read in reads)))


def wide_type(type: PtxType) -> PtxType:
    return TYPES[f"{type.kind}{type.bits * 2}"]


def high_half(a: np.ndarray, b: np.ndarray, type: PtxType) -> np.ndarray:
    """The upper `type.bits` of the exact product."""
    if type.bits < 64:
        wide = (SIGNED if type.is_signed else UNSIGNED)[type.bits * 2]
        return (a.astype(wide) * b.astype(wide) >> wide.type(type.bits)).astype(type.dtype)
    ua, ub = a.view(np.uint64), b.view(np.uint64)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    al, ah, bl, bh = ua & mask, ua >> shift, ub & mask, ub >> shift
    middle = ah * bl + (al * bl >> shift)
    low_middle = al * bh + (middle & mask)
    high = ah * bh + (middle >> shift) + (low_middle >> shift)
    if type.is_signed:
        high = high - np.where(a < 0, ub, np.uint64(0)) - np.where(b < 0, ua, np.uint64(0))
    return high.view(type.dtype)


# ---------------------------------------------------------------- sums and products


def saturated(exact: np.ndarray, type: PtxType) -> np.ndarray:
    info = np.iinfo(type.dtype)
    return exact.clip(info.min, info.max).astype(type.dtype)


def pairs(c: Coder, operation: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Run:
    """u16x2 and s16x2: two halves of a word at once."""
    type = c.type("u16x2", "s16x2")
    half = np.dtype(np.int16 if type.name == "s16x2" else np.uint16)

    def update(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = (np.ascontiguousarray(x).view(half) for x in np.broadcast_arrays(a, b))
        return operation(a, b).view(np.uint32)

    return elementwise(c, update, type, type, type)


def has_pairs(c: Coder) -> bool:
    return "u16x2" in c.mods or "s16x2" in c.mods


@builds("add", "sub")
def build_add(c: Coder) -> Run:
    if has_pairs(c):
        return pairs(c, np.add if c.opcode == "add" else np.subtract)
    if not any(m in TYPES and TYPES[m].is_integer for m in c.mods):
        return ops_float.build_sum(c)
    if c.flag("cc"):
        return carrying(c, False)
    sat, type = c.flag("sat"), c.type()
    if sat and type.name != "s32":
        raise c.unsupported("saturation of this type")
    operation = np.add if c.opcode == "add" else np.subtract
    if sat:
        return elementwise(c, lambda a, b: saturated(operation(a.astype(np.int64), b.astype(np.int64)), type), type, type, type)
    return elementwise(c, operation, type, type, type)


@builds("addc", "subc")
def build_add_with_carry(c: Coder) -> Run:
    return carrying(c, True)


def carry_register(c: Coder) -> int:
    """The predicate that holds the carry of `.cc` instructions."""
    names, registers = c.flat.module_scope.names, c.flat.layout.registers
    if "%carry" not in names:
        registers.append("pred")
        names["%carry"] = Register(len(registers) - 1, "pred")
    register = names["%carry"]
    assert isinstance(register, Register)
    return register.index


def carrying(c: Coder, reads_carry: bool) -> Run:
    """add.cc, addc, sub.cc, subc (with .cc or not): a chain through the carry."""
    writes_carry = c.flag("cc") or not reads_carry
    type = c.type()
    bits = TYPES[f"u{type.bits}"]
    carry = carry_register(c)
    write, first, second = c.destination(0, bits), c.source(1, bits), c.source(2, bits)
    subtracts = c.opcode.startswith("sub")

    def run(m: Machine, active: np.ndarray | None) -> None:
        a, b = np.broadcast_arrays(first(m, active), second(m, active))
        carried = m.regs[carry] if active is None else m.regs[carry][active]
        extra = carried.astype(bits.dtype) if reads_carry else bits.dtype.type(0)
        if subtracts:
            total = a - b - extra
            out = (a < b) | ((a == b) & (extra != 0))
        else:
            total = a + b + extra
            out = (total < a) | ((total == a) & (b != 0)) | ((b == 0) & (total < extra))
        write(m, active, total)
        if writes_carry:
            m.regs[carry][m.indices(active)] = out

    return run


@builds("mul", "mul24")
def build_mul(c: Coder) -> Run:
    if not any(m in TYPES and TYPES[m].is_integer for m in c.mods):
        return ops_float.build_product(c)
    part, type = c.choose("lo", "hi", "wide"), c.type()
    cut = low_24(type) if c.opcode == "mul24" else lambda a: a
    if part == "wide":
        wide = wide_type(type)
        return elementwise(c, lambda a, b: a.astype(wide.dtype) * b.astype(wide.dtype), wide, type, type)
    if c.opcode == "mul24" and part == "hi":
        shift = np.int64(16)
        return elementwise(c, lambda a, b: (cut(a).astype(np.int64) * cut(b) >> shift).astype(type.dtype), type, type, type)
    if part == "hi":
        return elementwise(c, lambda a, b: high_half(*np.broadcast_arrays(a, b), type), type, type, type)
    return elementwise(c, lambda a, b: cut(a) * cut(b), type, type, type)


def low_24(type: PtxType) -> Callable[[np.ndarray], np.ndarray]:
    """The low 24 bits, by the type's sign."""
    eight = type.dtype.type(8)
    return lambda a: (a << eight) >> eight


@builds("mad", "mad24")
def build_mad(c: Coder) -> Run:
    if not any(m in TYPES and TYPES[m].is_integer for m in c.mods):
        return ops_float.build_fma(c)
    if c.flag("cc"):
        return mad_carrying(c, False)
    part, sat, type = c.choose("lo", "hi", "wide"), c.flag("sat"), c.type()
    if part == "wide":
        wide = wide_type(type)
        return elementwise(c, lambda a, b, d: a.astype(wide.dtype) * b.astype(wide.dtype) + d, wide, type, type, wide)
    if c.opcode == "mad24":
        if part == "hi":
            raise c.unsupported("the upper half of mad24")
        cut = low_24(type)
        return elementwise(c, lambda a, b, d: cut(a) * cut(b) + d, type, type, type, type)
    if part == "lo":
        return elementwise(c, lambda a, b, d: a * b + d, type, type, type, type)
    if sat:
        return elementwise(
            c, lambda a, b, d: saturated(high_half(*np.broadcast_arrays(a, b), type).astype(np.int64) + d, type), type, type, type, type
        )
    return elementwise(c, lambda a, b, d: high_half(*np.broadcast_arrays(a, b), type) + d, type, type, type, type)


@builds("madc")
def build_mad_with_carry(c: Coder) -> Run:
    return mad_carrying(c, True)


def mad_carrying(c: Coder, reads_carry: bool) -> Run:
    writes_carry = c.flag("cc") or not reads_carry
    part, type = c.choose("lo", "hi"), c.type()
    bits = TYPES[f"u{type.bits}"]
    carry = carry_register(c)
    write = c.destination(0, bits)
    first, second, third = (c.source(i, type) for i in (1, 2, 3))

    def run(m: Machine, active: np.ndarray | None) -> None:
        a, b, d = np.broadcast_arrays(first(m, active), second(m, active), third(m, active))
        product = ((a * b) if part == "lo" else high_half(a, b, type)).view(bits.dtype)
        d = d.view(bits.dtype)
        carried = m.regs[carry] if active is None else m.regs[carry][active]
        extra = carried.astype(bits.dtype) if reads_carry else bits.dtype.type(0)
        part_sum = product + d
        total = part_sum + extra
        write(m, active, total)
        if writes_carry:
            m.regs[carry][m.indices(active)] = (part_sum < product) | (total < part_sum)

    return run


# ---------------------------------------------------------------- division


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero; all ones where the divisor is zero."""
    a, b = np.broadcast_arrays(a, b)
    zero = b == 0
    safe = np.where(zero, 1, b).astype(b.dtype)
    if a.dtype.kind == "u":
        return np.where(zero, np.iinfo(a.dtype).max, a // safe).astype(a.dtype)
    quotient = a // safe
    quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(zero, -1, quotient).astype(a.dtype)


@builds("div")
def build_div(c: Coder) -> Run:
    if not any(m in TYPES and TYPES[m].is_integer for m in c.mods):
        return ops_float.build_division(c)
    type = c.type()
    return elementwise(c, divide, type, type, type)


@builds("rem")
def build_rem(c: Coder) -> Run:
    type = c.type()

    def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(b == 0, a, a - divide(a, b) * b).astype(a.dtype)

    return elementwise(c, remainder, type, type, type)


# ---------------------------------------------------------------- logic and shifts


@builds("and", "or", "xor")
def build_logic(c: Coder) -> Run:
    type = c.type()
    operation = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[c.opcode]
    return elementwise(c, operation, type, type, type)


@builds("not")
def build_not(c: Coder) -> Run:
    type = c.type()
    return elementwise(c, np.bitwise_not, type, type)


@builds("cnot")
def build_cnot(c: Coder) -> Run:
    type = c.type()
    return elementwise(c, lambda a: (a == 0).astype(type.dtype), type, type)


@builds("lop3")
def build_lop3(c: Coder) -> Run:
    if "and" in c.mods or "or" in c.mods:
        raise c.unsupported("lop3 with a predicate")
    type = c.type("b32")
    table = c.source(4, "u32")(None, None)
    terms = [i for i in range(8) if int(table[0]) >> i & 1]

    def look_up(a: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, d.shape), np.uint32)
        for i in terms:
            result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (d if i & 1 else ~d)
        return result

    return elementwise(c, look_up, type, type, type, type)


@builds("shl")
def build_shl(c: Coder) -> Run:
    type = c.type()
    bits = TYPES[f"u{type.bits}"]

    def shift(a: np.ndarray, n: np.ndarray) -> np.ndarray:
        return np.where(n < type.bits, a << n.clip(0, type.bits - 1).astype(bits.dtype), 0).astype(bits.dtype)

    return elementwise(c, shift, bits, bits, TYPES["u32"])


@builds("shr")
def build_shr(c: Coder) -> Run:
    type = c.type()

    def shift(a: np.ndarray, n: np.ndarray) -> np.ndarray:
        shifted = a >> n.clip(0, type.bits - 1).astype(type.dtype)
        return shifted if type.is_signed else np.where(n < type.bits, shifted, 0).astype(type.dtype)

    return elementwise(c, shift, type, type, TYPES["u32"])


@builds("shf")
def build_shf(c: Coder) -> Run:
    """The 64 bits `b:a`, moved left (the upper half is the result) or right (the lower one)."""
    side, mode = c.choose("l", "r"), c.choose("clamp", "wrap")
    type = c.type("b32")

    def funnel(a: np.ndarray, b: np.ndarray, n: np.ndarray) -> np.ndarray:
        n = (n & 31 if mode == "wrap" else np.minimum(n, 32)).astype(np.uint64)
        both = b.astype(np.uint64) << np.uint64(32) | a
        return ((both << n) >> np.uint64(32) if side == "l" else both >> n).astype(np.uint32)

    return elementwise(c, funnel, type, type, type, TYPES["u32"])


# ---------------------------------------------------------------- bit fields


def field_mask(length: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`length` ones, 0 to all bits."""
    bits = dtype.itemsize * 8
    ones = (dtype.type(1) << np.minimum(length, bits - 1).astype(dtype)) - dtype.type(1)
    return np.where(length >= bits, ~dtype.type(0), ones).astype(dtype)


@builds("bfe")
def build_bfe(c: Coder) -> Run:
    type = c.type("u32", "u64", "s32", "s64")
    unsigned = type.unsigned

    def extract(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = start & 255, length & 255
        mask = field_mask(length, unsigned)
        moved = np.where(start < type.bits, a.view(unsigned) >> np.minimum(start, type.bits - 1).astype(unsigned), 0)
        if not type.is_signed:
            return (moved & mask).astype(unsigned)
        last = np.minimum(start + length - 1, type.bits - 1).astype(unsigned)
        sign = ((a.view(unsigned) >> last) & unsigned.type(1)).astype(bool) & (length > 0)
        inside = field_mask(np.minimum(length, np.maximum(type.bits - start.astype(np.int64), 0)), unsigned)
        return np.where(sign, moved & inside | ~inside, moved & inside).astype(unsigned).view(type.dtype)

    return elementwise(c, extract, type, type, TYPES["u32"], TYPES["u32"])


@builds("bfi")
def build_bfi(c: Coder) -> Run:
    type = c.type("b32", "b64")

    def insert(a: np.ndarray, b: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = start & 255, length & 255
        shift = np.minimum(start, type.bits - 1).astype(type.dtype)
        mask = np.where(start < type.bits, field_mask(length, type.dtype) << shift, 0).astype(type.dtype)
        return (b & ~mask) | ((a << shift) & mask)

    return elementwise(c, insert, type, type, type, TYPES["u32"], TYPES["u32"])


@builds("bmsk")
def build_bmsk(c: Coder) -> Run:
    mode = c.choose("clamp", "wrap")
    type = c.type("b32")

    def mask(start: np.ndarray, length: np.ndarray) -> np.ndarray:
        if mode == "wrap":
            start, length = start & 31, length & 31
        ones = field_mask(length, np.dtype(np.uint32))
        return np.where(start < 32, ones << np.minimum(start, 31), 0).astype(np.uint32)

    return elementwise(c, mask, type, TYPES["u32"], TYPES["u32"])


def bit_length(a: np.ndarray) -> np.ndarray:
    """Place of the highest set bit, plus one; 0 for 0."""
    result = np.zeros(a.shape, np.uint32)
    rest = a.astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        high = rest >> np.uint64(step)
        more = high != 0
        result += np.where(more, np.uint32(step), np.uint32(0))
        rest = np.where(more, high, rest)
    return result + (rest != 0).astype(np.uint32)


@builds("clz")
def build_clz(c: Coder) -> Run:
    type = c.type("b32", "b64")
    return elementwise(c, lambda a: np.uint32(type.bits) - bit_length(a), TYPES["u32"], type)


@builds("popc")
def build_popc(c: Coder) -> Run:
    type = c.type("b32", "b64")
    return elementwise(c, lambda a: np.bitwise_count(a).astype(np.uint32), TYPES["u32"], type)


@builds("bfind")
def build_bfind(c: Coder) -> Run:
    amount, type = c.flag("shiftamt"), c.type()

    def find(a: np.ndarray) -> np.ndarray:
        bits = np.where(a < 0, ~a, a).astype(type.dtype).view(type.unsigned)
        length = bit_length(bits)
        place = np.uint32(type.bits) - length if amount else length - np.uint32(1)
        return np.where(length == 0, np.uint32(0xFFFFFFFF), place).astype(np.uint32)

    return elementwise(c, find, TYPES["u32"], type)


@builds("brev")
def build_brev(c: Coder) -> Run:
    type = c.type("b32", "b64")

    def reverse(a: np.ndarray) -> np.ndarray:
        bits = np.unpackbits(np.ascontiguousarray(a).view(np.uint8).reshape(-1, type.size), axis=1, bitorder="little")
        return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(type.dtype)[:, 0]

    return elementwise(c, reverse, type, type)


# ---------------------------------------------------------------- bytes

PRMT_MODES = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


@builds("prmt")
def build_prmt(c: Coder) -> Run:
    type = c.type("b32")
    mode = c.choose(*PRMT_MODES, default="")

    def permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
        a, b, selector = np.broadcast_arrays(a, b, selector)
        source = np.stack([a, b], 1).view(np.uint8).reshape(-1, 8)
        if mode:
            return np.take_along_axis(source, np.array(PRMT_MODES[mode])[selector & 3], 1).view(np.uint32)[:, 0]
        nibble = selector[:, None] >> np.arange(0, 16, 4, dtype=np.uint32) & 15
        picked = np.take_along_axis(source, (nibble & 7).astype(np.int64), 1)
        signs = np.where(picked & 0x80, np.uint8(0xFF), np.uint8(0))
        return np.where(nibble & 8, signs, picked).astype(np.uint8).view(np.uint32)[:, 0]

    return elementwise(c, permute, type, type, type, type)


@builds("sad")
def build_sad(c: Coder) -> Run:
    type = c.type()
    return elementwise(c, lambda a, b, d: (np.maximum(a, b) - np.minimum(a, b) + d).astype(type.dtype), type, type, type, type)


def dot_bytes(a: np.ndarray, b: np.ndarray, first: np.dtype, second: np.dtype) -> np.ndarray:
    """Sums of products of the parts of words, int64."""
    x = np.ascontiguousarray(a).view(first).reshape(len(a), -1).astype(np.int64)
    y = np.ascontiguousarray(b).view(second).reshape(len(b), -1).astype(np.int64)
    return (x * y).sum(1) if x.shape == y.shape else (x[:, None] * y).sum(-1)


@builds("dp4a")
def build_dp4a(c: Coder) -> Run:
    first, second = c.type("u32", "s32"), c.type("u32", "s32")
    result = TYPES["s32" if first.is_signed or second.is_signed else "u32"]
    parts = [np.dtype(np.int8 if t.is_signed else np.uint8) for t in (first, second)]

    def dot(a: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
        a, b, d = np.broadcast_arrays(a, b, d)
        return (dot_bytes(a, b, *parts) + d).astype(np.uint32).view(result.dtype)

    return elementwise(c, dot, result, first, second, result)


@builds("dp2a")
def build_dp2a(c: Coder) -> Run:
    upper = c.choose("lo", "hi") == "hi"
    first, second = c.type("u32", "s32"), c.type("u32", "s32")
    result = TYPES["s32" if first.is_signed or second.is_signed else "u32"]

    def dot(a: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
        a, b, d = np.broadcast_arrays(a, b, d)
        x = np.ascontiguousarray(a).view(np.int16 if first.is_signed else np.uint16).reshape(-1, 2).astype(np.int64)
        y = np.ascontiguousarray(b).view(np.int8 if second.is_signed else np.uint8).reshape(-1, 4).astype(np.int64)
        y = y[:, 2:] if upper else y[:, :2]
        return ((x * y).sum(1) + d).astype(np.uint32).view(result.dtype)

    return elementwise(c, dot, result, first, second, result)


# ---------------------------------------------------------------- least, greatest, sign


@builds("min", "max")
def build_extreme(c: Coder) -> Run:
    operation = np.minimum if c.opcode == "min" else np.maximum
    if has_pairs(c):
        return pairs(c, operation)
    if not any(m in TYPES and TYPES[m].is_integer for m in c.mods):
        return ops_float.build_extreme(c)
    if c.flag("relu"):
        raise c.unsupported("relu")
    type = c.type()
    return elementwise(c, operation, type, type, type)


@builds("abs")
def build_abs(c: Coder) -> Run:
    if not any(m in TYPES and TYPES[m].is_integer for m in c.mods):
        return ops_float.build_abs(c)
    type = c.type()
    return elementwise(c, np.abs, type, type)


@builds("neg")
def build_neg(c: Coder) -> Run:
    if not any(m in TYPES and TYPES[m].is_integer for m in c.mods):
        return ops_float.build_neg(c)
    type = c.type()
    return elementwise(c, np.negative, type, type)
