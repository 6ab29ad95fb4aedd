"""How matrices lie in the registers of a warp, as PTX defines it, and warps as arrays.

All shapes follow one rule. Lane 4 g + t holds, of operand A, row g (register 0), row g + 8 (register 1), and the same
rows again further along k; a register holds p neighbours along k, and four lanes together 4 p. Operand B is the same
with columns in the place of rows, and accumulators are pairs of neighbours along n.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tests.ptx.errors import DivergentBarrier

LANE = np.arange(32)
GROUP, MEMBER = LANE // 4, LANE % 4


@lru_cache(maxsize=64)
def place_a(rows: int, registers: int, per_register: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, k) of each element of A: int[32, registers, per_register]. `rows` is 8 or 16."""
    register, part = np.arange(registers)[None, :, None], np.arange(per_register)
    half = register % 2 if rows == 16 else 0 * register
    step = register // 2 if rows == 16 else register
    row = GROUP[:, None, None] + 8 * half + 0 * part
    k = step * 4 * per_register + MEMBER[:, None, None] * per_register + part
    return row, k


@lru_cache(maxsize=64)
def place_b(registers: int, per_register: int) -> tuple[np.ndarray, np.ndarray]:
    """(k, column) of each element of B: int[32, registers, per_register]."""
    column, k = place_a(8, registers, per_register)
    return k, column


@lru_cache(maxsize=64)
def place_d(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of each element of an accumulator: int[32, elements]."""
    halves = rows // 8
    element = np.arange(2 * halves * columns // 8)
    row = GROUP[:, None] + 8 * (element // 2 % halves)
    column = element // (2 * halves) * 8 + MEMBER[:, None] * 2 + element % 2
    return row, column


def to_matrix(values: np.ndarray, place: tuple[np.ndarray, np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """Fragments [warps, 32, ...] as matrices [warps, *shape]."""
    matrix = np.empty((len(values), *shape), values.dtype)
    matrix[:, place[0], place[1]] = values
    return matrix


def to_fragments(matrix: np.ndarray, place: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Matrices [warps, rows, columns] as fragments [warps, 32, ...]."""
    return matrix[:, place[0], place[1]]


def by_warp(values: np.ndarray, count: int) -> np.ndarray:
    """One value per lane of whole warps -> [warps, 32]."""
    return np.broadcast_to(values, (count,)).reshape(-1, 32)


def require_whole_warps(lanes: np.ndarray, what: str) -> None:
    """All 32 lanes of a warp must take part."""
    if len(lanes) % 32 or (lanes.reshape(-1, 32) % 32 != LANE).any():
        raise DivergentBarrier(f"{what} by a warp that is not whole: some of its lanes have ended, or were never there", 0)
