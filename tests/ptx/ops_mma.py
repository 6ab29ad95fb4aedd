"""Matrix instructions of a warp: mma.sync, ldmatrix, stmatrix, movmatrix."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tests.ptx import numerics
from tests.ptx.coder import Coder, Reader, Run, builds, spread
from tests.ptx.element_types import TYPES, PtxType
from tests.ptx.fragments import by_warp, place_a, place_b, place_d, require_whole_warps, to_fragments, to_matrix
from tests.ptx.machine import Machine
from tests.ptx.memory import SHARED
from tests.ptx.ops_memory import note_wavefronts, take_space
from tests.ptx.ops_warp import together
from tests.ptx.syntax import Operand

# ---------------------------------------------------------------- operands as exact values


def decode_words(words: np.ndarray, type: PtxType) -> np.ndarray:
    """Registers uint32[...] -> exact values [..., per register], float64 or int64."""
    words = np.ascontiguousarray(words)
    match type.name:
        case "f16":
            return words[..., None].view(np.float16).astype(np.float64)
        case "bf16":
            return numerics.from_bf16(words[..., None].view(np.uint16)).astype(np.float64)
        case "tf32":  # the lower 13 bits are not looked at
            return (words & np.uint32(0xFFFFE000))[..., None].view(np.float32).astype(np.float64)
        case "e4m3" | "e5m2":
            return numerics.FP8[type.name][words[..., None].view(np.uint8)].astype(np.float64)
        case "s8" | "u8":
            return words[..., None].view(type.dtype).astype(np.int64)
        case "f64":
            return words[..., None].view(np.float64)
    raise AssertionError(type.name)


def read_registers(m: Machine, active: np.ndarray | None, reads: list[Reader]) -> np.ndarray:
    """[warps, 32, registers]"""
    count = m.count(active)
    return np.stack([by_warp(read(m, active), count) for read in reads], 2)



def close_sum(total: np.ndarray, type: PtxType, satfinite: bool) -> np.ndarray:
    """Sums, exact as far as float64 goes, in the type of the accumulator."""
    if type.name == "s32":
        if satfinite:
            total = total.clip(-(2**31), 2**31 - 1)
        return total.astype(np.uint32).view(np.int32)
    return total.astype(type.dtype)


# ---------------------------------------------------------------- mma.sync

SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
COMBINATIONS = {
    ("f16", "f16", "f16", "f16"): {(16, 8, 8), (16, 8, 16)},
    ("f32", "f16", "f16", "f32"): {(16, 8, 8), (16, 8, 16)},
    ("f32", "bf16", "bf16", "f32"): {(16, 8, 8), (16, 8, 16)},
    ("f32", "tf32", "tf32", "f32"): {(16, 8, 4), (16, 8, 8)},
    ("f64", "f64", "f64", "f64"): {(8, 8, 4)},
    **{("s32", a, b, "s32"): {(8, 8, 16), (16, 8, 16), (16, 8, 32)} for a in ("s8", "u8") for b in ("s8", "u8")},
    **{("f32", a, b, "f32"): {(16, 8, 32)} for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")},
}


def take_shape(c: Coder) -> tuple[int, int, int]:
    for mod in c.mods:
        if found := SHAPE.match(mod):
            c.mods.remove(mod)
            m, n, k = (int(number) for number in found.groups())
            return m, n, k
    raise c.unsupported("no shape")


@builds("mma")
def build_mma(c: Coder) -> Run:
    if not (c.flag("sync") and c.flag("aligned")):
        raise c.unsupported("mma without .sync.aligned")
    shape = take_shape(c)
    if c.mods[:2] != ["row", "col"]:
        raise c.unsupported("layout other than row.col")
    del c.mods[:2]
    satfinite = c.flag("satfinite")
    types = [c.type() for _ in range(4)]
    if shape not in COMBINATIONS.get(tuple(t.name for t in types), ()):  # type: ignore[arg-type]
        raise c.unsupported("this shape with these types")
    return mma_step(c, shape, types, satfinite)


def mma_step(c: Coder, shape: tuple[int, int, int], types: list[PtxType], satfinite: bool) -> Run:
    m_size, n_size, k_size = shape
    type_d, type_a, type_b, type_c = types
    word = "b64" if type_a.name == "f64" else "b32"
    per_register = TYPES[word].bits // type_a.bits
    reads_a, reads_b = ([c.source(o, word) for o in c.items(i)] for i in (1, 2))
    check_count(c, len(reads_a), m_size * k_size // (32 * per_register))
    check_count(c, len(reads_b), n_size * k_size // (32 * per_register))
    places = place_a(m_size, len(reads_a), per_register), place_b(len(reads_b), per_register), place_d(m_size, n_size)
    read_c = accumulator_reader(c, c.items(3), type_c, m_size * n_size // 32)
    write_d = accumulator_writer(c, c.items(0), type_d, m_size * n_size // 32)

    def act(m: Machine, active: np.ndarray | None) -> None:
        require_whole_warps(m.indices(active), "mma")
        a = to_matrix(decode_words(read_registers(m, active, reads_a), type_a), places[0], (m_size, k_size))
        b = to_matrix(decode_words(read_registers(m, active, reads_b), type_b), places[1], (k_size, n_size))
        total = np.matmul(a, b) + to_matrix(read_c(m, active), places[2], (m_size, n_size))
        write_d(m, active, to_fragments(close_sum(total, type_d, satfinite), places[2]))

    return together(c, act)


def check_count(c: Coder, found: int, wanted: int) -> None:
    if found != wanted:
        raise c.unsupported(f"{found} registers where the shape needs {wanted}")


def accumulator_reader(c: Coder, operands: tuple[Operand, ...], type: PtxType, elements: int) -> Callable[..., np.ndarray]:
    """Reads [warps, 32, elements] as float64 or int64; f16 come in pairs."""
    packed = type.name == "f16"
    check_count(c, len(operands), elements // 2 if packed else elements)
    reads = [c.source(o, "b32" if packed else type) for o in operands]
    wide = np.int64 if type.name == "s32" else np.float64

    def read(m: Machine, active: np.ndarray | None) -> np.ndarray:
        words = read_registers(m, active, reads)
        return (words.view(np.float16) if packed else words).astype(wide)

    return read


def accumulator_writer(c: Coder, operands: tuple[Operand, ...], type: PtxType, elements: int) -> Callable[..., None]:
    """Writes [warps, 32, elements] of the accumulator's type."""
    packed = type.name == "f16"
    check_count(c, len(operands), elements // 2 if packed else elements)
    writes = [c.destination(o, "b32" if packed else type) for o in operands]

    def write(m: Machine, active: np.ndarray | None, values: np.ndarray) -> None:
        words = np.ascontiguousarray(values).view(np.uint32) if packed else values
        for i, put in enumerate(writes):
            put(m, active, words[:, :, i].reshape(-1))

    return write


# ---------------------------------------------------------------- ldmatrix and stmatrix


def take_matrix_form(c: Coder) -> tuple[int, bool, bool]:
    """(number of matrices, transposed, the address is generic)"""
    if not (c.flag("sync") and c.flag("aligned") and c.flag("m8n8")):
        raise c.unsupported("a form other than .sync.aligned.m8n8")
    count, transposed, space = int(c.choose("x1", "x2", "x4")[1]), c.flag("trans"), take_space(c)
    if space not in ("shared", "generic"):
        raise c.unsupported(f"state space {space}")
    c.type("b16")
    return count, transposed, space == "generic"


def row_addresses(m: Machine, active: np.ndarray | None, address: Reader, count: int, generic: bool) -> tuple[np.ndarray, np.ndarray]:
    """(lanes, addresses) of those lanes that name rows: the first 8 for each matrix. Their wavefronts are noted."""
    lanes = m.indices(active)
    naming = lanes % 32 < 8 * count
    named = spread(address(m, active), len(lanes))[naming] - (SHARED if generic else 0)
    lanes = lanes[naming]
    words = named[:, None] // 4 + np.arange(4)
    note_wavefronts(m, len(lanes) // (8 * count), np.repeat(lanes // 8, 4), words.reshape(-1))
    return lanes, named


def transpose_pairs(rows: np.ndarray, transposed: bool) -> np.ndarray:
    """Matrices uint16[..., 8, 8] -> what the 32 lanes hold of each, uint16[..., 32, 2]; its own inverse up to shape."""
    matrix = np.swapaxes(rows, -1, -2) if transposed else rows
    return matrix.reshape(*matrix.shape[:-2], 32, 2)


@builds("ldmatrix")
def build_ldmatrix(c: Coder) -> Run:
    count, transposed, generic = take_matrix_form(c)
    writes = [c.destination(o, "b32") for o in c.items(0)]
    check_count(c, len(writes), count)
    address = c.address(1)

    def act(m: Machine, active: np.ndarray | None) -> None:
        require_whole_warps(m.indices(active), "ldmatrix")
        lanes, named = row_addresses(m, active, address, count, generic)
        rows = m.shared.load(m.lane_block[lanes], m.lane_warp[lanes], named, 2, 8).reshape(-1, count, 8, 8)
        words = np.ascontiguousarray(transpose_pairs(rows, transposed)).view(np.uint32)[..., 0]
        for i, write in enumerate(writes):
            write(m, active, words[:, i].reshape(-1))

    return together(c, act)


@builds("stmatrix")
def build_stmatrix(c: Coder) -> Run:
    count, transposed, generic = take_matrix_form(c)
    reads = [c.source(o, "b32") for o in c.items(1)]
    check_count(c, len(reads), count)
    address = c.address(0)

    def act(m: Machine, active: np.ndarray | None) -> None:
        require_whole_warps(m.indices(active), "stmatrix")
        lanes, named = row_addresses(m, active, address, count, generic)
        words = read_registers(m, active, reads).swapaxes(1, 2)  # [warps, count, 32]
        rows = np.ascontiguousarray(words)[..., None].view(np.uint16).reshape(-1, count, 8, 8)
        rows = np.swapaxes(rows, -1, -2) if transposed else rows
        m.shared.store(m.lane_block[lanes], m.lane_warp[lanes], named, 2, rows.reshape(-1, 8))

    return together(c, act)


@builds("movmatrix")
def build_movmatrix(c: Coder) -> Run:
    if not (c.flag("sync") and c.flag("aligned") and c.flag("m8n8") and c.flag("trans")):
        raise c.unsupported("a form other than .sync.aligned.m8n8.trans")
    c.type("b16")
    write, read = c.destination(0, "b32"), c.source(1, "b32")

    def act(m: Machine, active: np.ndarray | None) -> None:
        require_whole_warps(m.indices(active), "movmatrix")
        rows = np.ascontiguousarray(by_warp(read(m, active), m.count(active)))[..., None].view(np.uint16).reshape(-1, 8, 8)
        write(m, active, np.ascontiguousarray(transpose_pairs(rows, True)).view(np.uint32).reshape(-1))

    return together(c, act)
