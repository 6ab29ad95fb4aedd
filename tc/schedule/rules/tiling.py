"""The register tile of a contraction, chosen by an estimate of processor cycles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

FMA_PER_CYCLE = 2.0
LOADS_PER_CYCLE = 2.0
FMA_LATENCY = 4.0
L2_CYCLES_PER_VECTOR = 3.0
"""What one vector of the rhs costs when it comes from the second-level cache."""

PREFERRED_VECTORS = 2
"""Among tiles of equal cost: few streams of the rhs, since those at distances of a large power of two evict each other."""

TYPICAL_ROWS = (23, 39, 100, 197, 401, 803)
"""What a symbolic number of rows is taken to be: the mean over these."""


@dataclass(frozen=True)
class Tile:
    """`outer_rows` x `rows` rows by `vectors` vectors of `lanes` columns."""

    rows: int
    vectors: int
    lanes: int
    outer_rows: int = 1

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def all_rows(self) -> int:
        return self.outer_rows * self.rows


def cycles_per_step(rows: int, vectors: int) -> float:
    """Cycles for one step of the sum: rows x vectors fused multiply-adds, their loads, and the rhs from the L2 cache."""
    if rows == 0 or vectors == 0:
        return 0.0
    return max(
        rows * vectors / FMA_PER_CYCLE,
        (rows + vectors) / LOADS_PER_CYCLE,
        FMA_LATENCY,
        vectors * L2_CYCLES_PER_VECTOR,
    )


@lru_cache(maxsize=4096)
def choose_tile(
    rows: int | None,
    outer_rows: int,
    blocks: int | None,
    lanes: int,
    registers: int,
    vectors_divide: int = 0,
    panel: int = 1,
    exact: bool = False,
) -> Tile:
    """The tile of the least total cycles over `outer_rows` x `rows` rows and `blocks` vectors of columns (None: symbolic).

    Accumulators, the vectors of the rhs and one broadcast must fit the registers. Leftover rows and vectors run as smaller
    tiles. Several whole rows of an image may make one tile when a row is short. With `vectors_divide`, the number of vectors
    divides it. `panel` vectors of the rhs lie side by side; a tile takes a panel, or a part of one.
    `exact`: only tiles that leave no rows over.
    """
    best: tuple[float, int, int] | None = None
    found = Tile(1, 1, lanes)
    row_count, block_count = rows or max(TYPICAL_ROWS), blocks or 16
    for vectors in range(1, min(8, block_count) + 1):
        if (vectors_divide and vectors_divide % vectors) or (panel > 1 and panel % vectors):
            continue
        most = (registers - vectors - 1) // vectors if vectors > 1 else registers - 2
        for height in range(1, min(most, row_count) + 1):
            if (rows is None and height > 14) or (exact and row_count % height):
                continue
            whole = height == row_count and rows is not None
            for outer in range(1, min(outer_rows, most // height) + 1) if whole else (1,):
                if rows is None:
                    cost = _mean_cycles(block_count, height, vectors)
                else:
                    cost = _total_cycles(row_count, outer_rows, block_count, height, outer, vectors)
                key = (cost, abs(vectors - PREFERRED_VECTORS), -height * outer)
                if best is None or key < best:
                    best, found = key, Tile(height, vectors, lanes, outer)
    return found


def _total_cycles(rows: int, outer_rows: int, blocks: int, height: int, outer: int, vectors: int) -> float:
    def over_blocks(tile_rows: int) -> float:
        full, rest = divmod(blocks, vectors)
        return full * cycles_per_step(tile_rows, vectors) + cycles_per_step(tile_rows, rest)

    if height == rows:
        full, rest = divmod(outer_rows, outer)
        return full * over_blocks(height * outer) + (over_blocks(height * rest) if rest else 0.0)
    full, rest = divmod(rows, height)
    return outer_rows * (full * over_blocks(height) + over_blocks(rest))


def _mean_cycles(blocks: int, height: int, vectors: int) -> float:
    """Cycles per row and step with tiles of `height` rows, the last of which overlaps the one before."""
    full, rest = divmod(blocks, vectors)
    over_blocks = full * cycles_per_step(height, vectors) + cycles_per_step(height, rest)
    return sum(-(-rows // height) * over_blocks / rows for rows in TYPICAL_ROWS) / len(TYPICAL_ROWS)
