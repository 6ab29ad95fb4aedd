"""wgmma: matrix products of a warpgroup (four warps), with operands in shared memory behind descriptors.

The sums are there at once, but their registers belong to the unit until the group is waited for, and registers that
other instructions wrote need a wgmma.fence before it may use them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tests.ptx.coder import Coder, Reader, Run, builds
from tests.ptx.element_types import PtxType
from tests.ptx.errors import AsyncMisuse
from tests.ptx.fragments import by_warp, place_a, place_d, require_whole_warps, to_fragments, to_matrix
from tests.ptx.machine import Machine
from tests.ptx.ops_copy import groups_of
from tests.ptx.ops_mma import accumulator_reader, accumulator_writer, close_sum, decode_words, read_registers
from tests.ptx.program import Step
from tests.ptx.syntax import Group, Int
from tests.ptx.tensor_map import swizzle

WARPGROUP = 4
CHUNK = 16  # bytes

# ---------------------------------------------------------------- who owns registers


class Ownership:
    """Which registers the unit owns (`busy[register, warp]`), and which were written since the last fence."""

    def __init__(self, m: Machine) -> None:
        shape = (len(m.regs), m.blocks * m.warps)
        self.busy = np.zeros(shape, bool)
        self.unfenced = np.ones(shape, bool)
        self.groups: list[list[tuple[int, ...]]] = [[] for _ in range(shape[1])]  # registers of committed groups
        self.open: list[tuple[int, ...]] = [() for _ in range(shape[1])]  # of the group that is not committed yet

    def check(self, m: Machine, step: Step, active: np.ndarray | None) -> None:
        """An ordinary instruction uses its registers."""
        warps = m.warps_of(active)
        registers = np.array(step.registers)
        if self.busy[registers[:, None], warps].any():
            raise AsyncMisuse("a register of a wgmma that is in flight is used before wgmma.wait_group", 0)
        if step.writes:
            self.unfenced[np.array(step.writes)[:, None], warps] = True

    def fence(self, warps: np.ndarray) -> None:
        self.unfenced[:, warps] = False

    def issue(self, warps: np.ndarray, results: tuple[int, ...], sources: tuple[int, ...]) -> None:
        """An instruction begins; its results may be those of others in flight, as the unit keeps their order."""
        registers = np.array(results + sources)
        if self.unfenced[registers[:, None], warps].any():
            raise AsyncMisuse("a register was written since the last wgmma.fence, and wgmma uses it", 0)
        self.busy[registers[:, None], warps] = True
        for warp in warps.tolist():
            self.open[warp] += tuple(registers.tolist())

    def commit(self, warps: np.ndarray) -> None:
        for warp in warps.tolist():
            self.groups[warp].append(self.open[warp])
            self.open[warp] = ()

    def wait(self, warps: np.ndarray, allowed: int) -> None:
        for warp in warps.tolist():
            groups = self.groups[warp]
            self.groups[warp] = groups[len(groups) - allowed :] if allowed else []
            kept = {r for group in (*self.groups[warp], self.open[warp]) for r in group}
            freed = np.flatnonzero(self.busy[:, warp])
            self.busy[[r for r in freed.tolist() if r not in kept], warp] = False


def ownership_of(m: Machine) -> Ownership:
    found = m.unit.get("wgmma")
    if found is None:
        found = m.unit["wgmma"] = Ownership(m)
    assert isinstance(found, Ownership)
    return found


# ---------------------------------------------------------------- matrices behind descriptors

SPANS = {0: 0, 1: 128, 2: 64, 3: 32}


@dataclass(frozen=True)
class Descriptor:
    """A matrix in shared memory: where, the two strides in bytes, the span of its swizzle (0 for none)."""

    start: int
    leading: int
    stride: int
    span: int

    @staticmethod
    def of(bits: int) -> Descriptor:
        if bits >> 49 & 7:
            raise AsyncMisuse("a matrix descriptor with a base offset", 0)
        leading, stride = (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4
        return Descriptor((bits & 0x3FFF) << 4, leading, stride, SPANS[bits >> 62])

    def along_k(self, rows: int, row_bytes: int) -> np.ndarray:
        """Addresses of 16-byte pieces of rows that lie along k: int64[rows, row_bytes / 16].

        Eight rows form a group; groups lie `stride` apart. Without swizzle a row's pieces lie `leading` apart and the
        rows of a group 16 bytes; with it rows lie `span` bytes apart and their pieces side by side, then swizzled.
        """
        row, piece = np.arange(rows)[:, None], np.arange(row_bytes // CHUNK)
        between_rows = self.span or CHUNK
        between_pieces = CHUNK if self.span else self.leading
        return self.swizzled(row // 8 * self.stride + row % 8 * between_rows + piece * between_pieces)

    def across_k(self, rows: int, depth: int) -> np.ndarray:
        """Addresses of pieces of 8 rows at one k: int64[rows / 8, depth], of two-byte types.

        Eight steps of k form a group. Without swizzle pieces along the rows lie `stride` apart, groups of k `leading`;
        with it, a line of `span` bytes holds pieces along the rows, lines follow k, line groups along the rows lie
        `leading` apart and along k `stride`.
        """
        piece, k = np.arange(rows // 8)[:, None], np.arange(depth)
        if not self.span:
            return self.swizzled(piece * self.stride + k // 8 * self.leading + k % 8 * CHUNK)
        a_line = self.span // CHUNK
        return self.swizzled(piece // a_line * self.leading + piece % a_line * CHUNK + k // 8 * self.stride + k % 8 * self.span)

    def swizzled(self, offset: np.ndarray) -> np.ndarray:
        return swizzle(self.start + offset, self.span)


def read_matrix(
    m: Machine, warps: np.ndarray, descriptor: Descriptor, rows: int, depth: int, type: PtxType, transposed: bool
) -> np.ndarray:
    """The matrix [rows, depth] as exact values; all four warps read it."""
    per_piece = CHUNK // type.size
    where = descriptor.across_k(rows, depth) if transposed else descriptor.along_k(rows, depth * type.size)
    if where.size and int(where.max()) + CHUNK > m.shared.stride:
        raise AsyncMisuse(f"a matrix descriptor reaches shared address 0x{int(where.max()):x}", 0)
    address = np.tile(where.reshape(-1), len(warps))
    readers = np.repeat(warps, where.size)
    block = readers // m.warps
    data = m.shared.read_async(block, readers, address, CHUNK, m.clocks.column("wgmma", readers), m.clocks.latest("wgmma", readers))
    words = np.ascontiguousarray(data[: where.size]).view(np.uint32)
    values = decode_words(words, type).reshape(*where.shape, per_piece)
    if transposed:  # [pieces of rows, k, 8 rows]
        return values.swapaxes(1, 2).reshape(rows, depth)
    return values.reshape(rows, depth)


# ---------------------------------------------------------------- instructions

SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
SUMS = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "s8": ("s32",), "u8": ("s32",),
    "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"),
}  # fmt: skip


@builds("wgmma")
def build_wgmma(c: Coder) -> Run:
    what = c.choose("fence", "commit_group", "wait_group", "mma_async")
    if not (c.flag("sync") and c.flag("aligned")):
        raise c.unsupported("wgmma without .sync.aligned")
    if what == "mma_async":
        return build_product(c)
    c.control = True
    if what == "fence":
        return by_warpgroup(lambda m, warps, lanes: ownership_of(m).fence(warps))
    if what == "commit_group":
        return by_warpgroup(commit)
    count = c.operand(0)
    if not isinstance(count, Int):
        raise c.unsupported("a number of groups that is no literal")
    allowed = count.value
    return by_warpgroup(lambda m, warps, lanes: wait(m, warps, allowed))


def commit(m: Machine, warps: np.ndarray, lanes: np.ndarray) -> None:
    ownership_of(m).commit(warps)
    groups_of(m, "wgmma").commit(warps)


def wait(m: Machine, warps: np.ndarray, allowed: int) -> None:
    ownership_of(m).wait(warps, allowed)
    groups_of(m, "wgmma").wait(warps, allowed)


def by_warpgroup(act) -> Run:  # type: ignore[no-untyped-def]
    """A step for `act(machine, warps of one warpgroup, their lanes)` that waits until all four warps are there."""

    def run(m: Machine, active: np.ndarray | None, pc: int) -> list:
        lanes = m.indices(m.gather(pc, m.join_waiting(pc, active)))
        require_whole_warps(lanes, "wgmma")
        warps = lanes[::32] // 32
        group = warps // m.warps * m.warps + warps % m.warps // WARPGROUP
        complete = np.bincount(group, minlength=1)[group] == WARPGROUP
        if not complete.all():
            missing = lanes.reshape(-1, 32)[~complete].reshape(-1)
            m.gathering[pc] = np.sort(np.concatenate([m.gathering.get(pc, missing[:0]), missing]))
        for number in np.unique(group[complete]).tolist():
            mine = warps[group == number]
            m.acting = lanes.reshape(-1, 32)[group == number].reshape(-1)
            act(m, mine, m.acting)
        onward = lanes.reshape(-1, 32)[complete].reshape(-1)
        return [(pc + 1, m.tidy(onward))] if len(onward) else []

    return run


def build_product(c: Coder) -> Run:
    """`wgmma.mma_async.sync.aligned.m64nNkK.d.a.b sums, a, b, scale-d {, scale-a, scale-b {, trans-a, trans-b}}`"""
    shape = next((found for mod in c.mods if (found := SHAPE.match(mod))), None)
    if shape is None:
        raise c.unsupported("no shape")
    c.mods.remove(shape.group())
    columns, depth = (int(n) for n in shape.groups())
    satfinite = c.flag("satfinite")
    type_d, type_a, type_b = (c.type() for _ in range(3))
    if DEPTHS.get(type_a.name) != depth or DEPTHS.get(type_b.name) != depth or type_d.name not in SUMS[type_a.name]:
        raise c.unsupported("this shape with these types")
    if type_a.bits != type_b.bits or columns % 8 or not 8 <= columns <= 256:
        raise c.unsupported("this shape with these types")
    return product_step(c, columns, depth, (type_d, type_a, type_b), satfinite)


def literal(c: Coder, i: int, default: int) -> int:
    if i >= len(c.operands):
        return default
    operand = c.operand(i)
    if not isinstance(operand, Int):
        raise c.unsupported(f"operand {i + 1} is no literal")
    return operand.value


def product_step(c: Coder, columns: int, depth: int, types: tuple[PtxType, PtxType, PtxType], satfinite: bool) -> Run:
    type_d, type_a, type_b = types
    elements = 64 * columns // 128
    from_registers = isinstance(c.operand(1), Group)
    read_d = accumulator_reader(c, c.items(0), type_d, elements)
    write_d = accumulator_writer(c, c.items(0), type_d, elements)
    results = tuple(dict.fromkeys(c.registers))
    read_a = [c.source(o, "b32") for o in c.items(1)] if from_registers else [c.source(1, "b64")]
    sources = tuple(r for r in dict.fromkeys(c.registers) if r not in results) if from_registers else ()
    read_b, scale = c.source(2, "b64"), c.source(3, "pred")
    signs = (literal(c, 4, 1), literal(c, 5, 1))
    flips = (0, literal(c, 6, 0)) if from_registers else (literal(c, 6, 0), literal(c, 7, 0))
    if any(flips) and type_a.bits != 16:
        raise c.unsupported("a transposed operand of this type")
    places = place_a(16, 4, 32 // type_a.bits), place_d(16, columns)
    c.control = True
    c.asynchronous = True

    def act(m: Machine, warps: np.ndarray, lanes: np.ndarray) -> None:
        ownership_of(m).issue(warps, results, sources)
        m.clocks.issue("wgmma", warps)
        if from_registers:
            fragments = to_matrix(decode_words(read_registers(m, lanes, read_a), type_a), places[0], (16, depth))
            a = fragments.reshape(64, depth)
        else:
            a = read_matrix(m, warps, descriptor_of(m, lanes, read_a[0]), 64, depth, type_a, bool(flips[0]))
        b = read_matrix(m, warps, descriptor_of(m, lanes, read_b), columns, depth, type_b, bool(flips[1]))
        total = (a @ b.T * (signs[0] * signs[1])).reshape(WARPGROUP, 16, columns)
        if uniform(m, lanes, scale):
            total = total + to_matrix(read_d(m, lanes), places[1], (16, columns))
        write_d(m, lanes, to_fragments(close_sum(total, type_d, satfinite), places[1]))

    return by_warpgroup(act)


def uniform(m: Machine, lanes: np.ndarray, read: Reader) -> int:
    """The value that all lanes of the warpgroup share."""
    values = by_warp(read(m, lanes), len(lanes))
    if (values != values[0, 0]).any():
        raise AsyncMisuse("an operand of wgmma that is not the same in all threads of the warpgroup", 0)
    return int(values[0, 0])


def descriptor_of(m: Machine, lanes: np.ndarray, read: Reader) -> Descriptor:
    return Descriptor.of(uniform(m, lanes, read))
