"""The register tile of a contraction, chosen by an estimate of processor cycles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf

from tc.cost.rates import L2_STREAMS
from tc.ir.dtype import DType
from tc.ir.expr import Const, Expr
from tc.target.table import GENERIC, LINE_BYTES, SET_BYTES, CoreRates

PREFERRED_VECTORS = 2
"""Among tiles of equal cost: few streams of the rhs, since those at distances of a large power of two evict each other."""

NEAR_VECTORS = 4
"""The same where the rhs of a tile stays in the first-level cache: the lhs is read the less often, and in fewer streams."""

MOST_CLASHING_ROWS = 8
"""Rows of a tile at most where their addresses share one set of the first-level cache, which holds 8 to 12 lines of a set."""

MOST_SYMBOLIC_ROWS = 14
"""Rows of a tile at most where their number is symbolic: with fewer rows than a tile's the kernel takes lower tiles, or single rows."""

TILE_CYCLES = 1.4
"""What a step costs beside its multiply-adds, measured on tiles of 7 to 13 rows by two vectors; it speaks for high tiles."""

ROW_CYCLES = 4.0
"""What a row of a tile costs beside its steps: addresses, first values, a store that begins in the middle of a line."""

MOST_SHALLOW_TERMS = 64
"""Terms of a sum up to which that counts: it then speaks for wide tiles, of which a row has fewer."""

VARIOUS_SIZES = (*(round(8 * 1.11**step) for step in range(46)), *(8, 16, 24, 32, 48, 64, 96, 128, 256, 512))
"""Numbers of rows, or of columns, that stand for a symbolic one, the mean over these counts: all sizes up to a thousand, round ones more
than others."""

FEW_ROWS = 4
"""Rows of the tiles for a symbolic number of rows that is below the height of the others."""

LOW_ROWS = (FEW_ROWS, 3, 2)
"""Rows of the tiles of versions for fewer rows than the others have. Two or three single rows would read all of the rhs as often: measured,
tiles of two and three take between a third and three quarters of their time."""

LOW_ROWS_OF_WORDS = (5, *LOW_ROWS)
"""The same where the rhs is taken out of words: from six rows on a copy of a panel takes no more time than to do that for each tile."""

LEAST_SUMS, MOST_VERSIONS = 12, 4
"""Vectors of sums of a tile at least, half as many again as multiply-adds that wait for each other, to be preferred for its few versions;
and the versions of a tile that leaves both rows and vectors over."""

NEAR_LEAST = 0.01
"""For a symbolic number of rows the highest tile is taken that is this near to the least cycles; the widest one for rows that clash."""

LEAST_GAIN_OF_SECOND = 0.02
"""The part of the cycles that a second height must save to be worth its code."""


def is_clashing_pitch(pitch: Expr, dtype: DType) -> bool:
    """Whether rows of so many elements, a known number, evict each other from the first-level cache."""
    return isinstance(pitch, Const) and int(pitch.value) * dtype.size_bytes % SET_BYTES == 0


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


def cycles_per_step(rows: int, vectors: int, far_bytes: int = LINE_BYTES, machine: CoreRates = GENERIC) -> float:
    """Cycles for one step of the sum: rows x vectors fused multiply-adds, their loads, and `far_bytes` of each vector of the rhs from the
    L2 cache, in whole lines."""
    if rows == 0 or vectors == 0:
        return 0.0
    return max(
        rows * vectors / machine.fma_per_cycle,
        (rows + vectors) / machine.loads_per_cycle,
        machine.fma_latency,
        -(-vectors * far_bytes // LINE_BYTES) * L2_STREAMS * machine.l2_cycles_per_line,
    )


@dataclass(frozen=True)
class TileSpace:
    """The register tiles that are legal for `outer_rows` x `rows` rows and `blocks` vectors of columns (None: symbolic).

    Accumulators, the vectors of the rhs and one broadcast must fit the registers. Leftover rows and vectors run as smaller
    tiles. Several whole rows of an image may make one tile when a row is short. With `vectors_divide`, the number of vectors
    divides it. `panel` vectors of the rhs lie side by side; a tile takes a panel, or a part of one.
    `exact`: only tiles that leave no rows over. `is_row_major`: a step of the sum reads its vectors side by side from a row of
    the rhs that is longer than a panel, so that wide tiles have no more streams than narrow ones. `near_rhs`: the rhs of a tile
    stays in the first-level cache from one tile to the next. `near_panel`: so do PREFERRED_VECTORS vectors of it, and tiles of equal cost
    are chosen by how few versions of their code there are. `clashing_rows`: rows of the lhs share one set of that cache, so a tile
    had better have few of them. `row_cycles`: what a row of a tile costs beside its steps, for each of them.
    `is_one_dim`: a symbolic number of columns is one dim, which may be any size, rather than several together, which make a large one.
    `has_narrow`: there may be a version in narrower tiles for fewer columns than a tile's.
    `overlaps`: the last tile of rows begins early rather than ends late. `in_words`: several terms of a column of the rhs share a word, and
    a whole panel is one stream. `vector_bytes`: of the rhs. `taps`: of the places of a window along rows, the first row and the one after
    the last whose pixel is no padding; tiles of padding alone are left out.
    """

    rows: int | None
    outer_rows: int
    blocks: int | None
    lanes: int
    registers: int
    vectors_divide: int = 0
    panel: int = 1
    exact: bool = False
    is_row_major: bool = False
    near_rhs: bool = False
    near_panel: bool = False
    clashing_rows: bool = False
    machine: CoreRates = GENERIC
    row_cycles: float = 0.0
    is_one_dim: bool = False
    has_narrow: bool = False
    overlaps: bool = False
    in_words: bool = False
    vector_bytes: int = LINE_BYTES
    taps: tuple[tuple[int, int], ...] = ()

    @property
    def far_bytes(self) -> int:
        """Of a vector of the rhs, from behind the first-level cache."""
        return 0 if self.near_rhs else self.vector_bytes

    def vectors(self) -> list[int]:
        """How many vectors of columns a tile may take."""
        most = min(8, self.blocks or 16)
        return [
            count
            for count in range(1, most + 1)
            if not (self.vectors_divide and self.vectors_divide % count) and not (self.panel > 1 and self.panel % count)
        ]

    def heights(self, vectors: int) -> list[int]:
        """How many rows a tile of so many vectors may take."""
        most = min(self._most_rows(vectors), self.rows or MOST_SYMBOLIC_ROWS)
        return [count for count in range(1, most + 1) if not (self.exact and self.rows and self.rows % count)]

    def outer_heights(self, vectors: int, height: int) -> list[int]:
        """How many whole rows of an image a tile may take."""
        if height != self.rows:
            return [1]
        return list(range(1, max(1, min(self.outer_rows, self._most_rows(vectors) // height)) + 1))

    def _most_rows(self, vectors: int) -> int:
        return (self.registers - vectors - 1) // vectors if vectors > 1 else self.registers - 2

    def best(self, vectors: int | None = None, height: int | None = None) -> Tile:
        """The tile of the least estimated cycles, among those of so many vectors and rows where these are given."""
        return _best_tile(self, vectors, height)

    def tile_cost(self, rows: int, vectors: int) -> int:
        """What a tile of so many rows costs, in a hundredth of a cycle for each step of the sum."""
        blocks = self._mean_blocks(Tile(rows, vectors, self.lanes))
        return round(100 * _tile_cycles(blocks, rows, vectors, self.vector_bytes, self.machine, self.row_cycles))

    def _mean_blocks(self, tile: Tile) -> float:
        """Vectors of columns that tiles compute; of a symbolic number, where there is a narrow version for those of one vector, as many as
        for sixteen that are needed, the last tile computing some for nothing."""
        if self.blocks is not None or not self.has_narrow:
            return self.blocks or 16
        mean, needed = (_mean_tiles(tile.lanes, vectors, 1, inf) for vectors in (tile.vectors, 1))
        return 16 * tile.vectors * mean / needed

    def second_height(self, tile: Tile) -> int:
        """Rows of a lower tile that leaves fewer rows over where `tile` leaves many, their number being symbolic; 0: none pays."""
        cycles = self._cycles_by_second(tile)
        best = min(cycles, key=cycles.__getitem__)
        return best if cycles[best] < (1 - LEAST_GAIN_OF_SECOND) * cycles[0] else 0

    def _cycles_by_second(self, tile: Tile) -> dict[int, float]:
        """Cycles per row and step with each second height; 0: with none."""
        blocks = self._mean_blocks(tile)
        heights = [rows for rows in self.heights(tile.vectors) if 1 < rows < tile.rows]
        pairs = {rows: (tile.rows, rows) for rows in heights}
        return {0: _mean_cycles(blocks, (tile.rows,), tile.vectors, self.vector_bytes, self.machine, self.row_cycles)} | {
            rows: _mean_cycles(blocks, pair, tile.vectors, self.vector_bytes, self.machine, self.row_cycles) for rows, pair in pairs.items()
        }

    def cycles(self, tile: Tile) -> float:
        """Cycles for one step of the sum over all rows and columns; per row, or per vector of columns, where their number is symbolic."""
        if self.rows is None:
            return min(self._cycles_by_second(tile).values())
        if self.blocks is not None or not self.is_one_dim:
            return self._cycles_of(tile, self.blocks or 16)
        wide = _mean_tiles(tile.lanes, tile.vectors, tile.vectors, inf)
        return wide * self.tile_cycles(tile) + min(self._cycles_by_narrow(tile).values())

    def narrow_vectors(self, tile: Tile) -> int:
        """Vectors of a tile for fewer columns than a tile's, their number being symbolic; those of `tile` where no other pays."""
        cycles = self._cycles_by_narrow(tile)
        best = min(cycles, key=cycles.__getitem__)
        return best if cycles[best] < (1 - LEAST_GAIN_OF_SECOND) * cycles[tile.vectors] else tile.vectors

    def _cycles_by_narrow(self, tile: Tile) -> dict[int, float]:
        """Cycles of a step for each vector of fewer columns than a tile's, in tiles of so many vectors."""
        fewer = [vectors for vectors in self.vectors() if vectors < tile.vectors] if self.has_narrow else []
        costs = {vectors: _least_tile_cycles(self, vectors) for vectors in fewer} | {tile.vectors: self.tile_cycles(tile)}
        return {vectors: _mean_tiles(tile.lanes, vectors, 0, tile.vectors) * cost for vectors, cost in costs.items()}

    def tile_cycles(self, tile: Tile) -> float:
        """Cycles of a step for all rows and the columns of one tile, with what tiles cost beside their multiply-adds."""
        return self._cycles_of(tile, tile.vectors) + self.outer_rows * -(-(self.rows or 1) // tile.rows) / tile.outer_rows * TILE_CYCLES

    def _cycles_of(self, tile: Tile, blocks: int) -> float:
        """Cycles of a step for all rows, a known number, and so many vectors of columns."""
        known = self.rows or 1
        rows = -(-known // tile.rows) * tile.rows if self.overlaps else known
        beside = rows * self.outer_rows * -(-blocks // tile.vectors) * self.row_cycles
        return _total_cycles(rows, self.outer_rows, blocks, tile, self.far_bytes, self.machine, self.taps) + beside


@lru_cache(maxsize=8192)
def _least_tile_cycles(space: TileSpace, vectors: int) -> float:
    """`tile_cycles` of the best tile of so many vectors."""
    return min(space.tile_cycles(Tile(rows, vectors, space.lanes)) for rows in space.heights(vectors))


@lru_cache(maxsize=8192)
def _best_tile(space: TileSpace, vectors: int | None, height: int | None) -> Tile:
    most_rows = MOST_CLASHING_ROWS if space.clashing_rows else space.registers
    tiles = [
        Tile(rows, count, space.lanes, outer)
        for count in (space.vectors() if vectors is None else [vectors])
        for rows in ([rows for rows in space.heights(count) if rows <= most_rows] if height is None else [height])
        for outer in space.outer_heights(count, rows)
    ]
    cycles = list(map(space.cycles, tiles))
    least = min(cycles, default=0.0)
    most = least if space.rows is not None and not space.clashing_rows else (1 + NEAR_LEAST) * least
    return min(
        (tile for tile, its_cycles in zip(tiles, cycles, strict=True) if its_cycles <= most),
        key=lambda tile: (_num_versions(space, tile), _distance(space, tile), -tile.all_rows),
        default=Tile(1, 1, space.lanes),
    )


def _num_versions(space: TileSpace, tile: Tile) -> int:
    """How many sizes of tiles there are, those of rows and of vectors that are left over among them, where lower tiles cost nothing."""
    if not space.near_panel or tile.all_rows * tile.vectors < LEAST_SUMS:
        return MOST_VERSIONS
    has_rest = space.rows is not None and bool(space.rows % tile.rows or space.outer_rows % tile.outer_rows)
    return (1 + has_rest) * (1 + bool(space.blocks is not None and space.blocks % tile.vectors))


def _distance(space: TileSpace, tile: Tile) -> int:
    """How far the vectors of a tile are from the preferred number."""
    if space.is_row_major:
        return -tile.vectors
    if space.panel > 1 and tile.all_rows == (space.rows or 0) * space.outer_rows:  # the rhs is read once: a panel is one stream
        return space.panel - tile.vectors
    return abs(tile.vectors - (NEAR_VECTORS if space.near_rhs or space.clashing_rows or space.in_words else PREFERRED_VECTORS))


def _total_cycles(
    rows: int, outer_rows: int, blocks: int, tile: Tile, far_bytes: int, machine: CoreRates, taps: tuple[tuple[int, int], ...] = ()
) -> float:
    def over_blocks(tile_rows: int) -> float:
        full, rest = divmod(blocks, tile.vectors)
        left = cycles_per_step(tile_rows, rest, far_bytes, machine)
        return full * cycles_per_step(tile_rows, tile.vectors, far_bytes, machine) + left

    if tile.rows == rows:
        full, rest = divmod(outer_rows, tile.outer_rows)
        return full * over_blocks(tile.all_rows) + (over_blocks(tile.rows * rest) if rest else 0.0)
    full, rest = divmod(rows, tile.rows)
    if not taps:
        return outer_rows * (full * over_blocks(tile.rows) + over_blocks(rest))
    shares = [sum(first < k + tile.rows and k < last for first, last in taps) / len(taps) for k in range(0, rows, tile.rows)]
    beside = TILE_CYCLES * -(-blocks // tile.vectors)
    return outer_rows * (sum(shares[:full]) * (over_blocks(tile.rows) + beside) + sum(shares[full:]) * (over_blocks(rest) + beside))


@lru_cache(maxsize=256)
def _mean_tiles(lanes: int, vectors: int, first: int, last: float) -> float:
    """Tiles for each vector of columns, all of the last tile being computed, needed or not: the part of the mean over various numbers of
    columns that is due to those of `first` vectors or more, but fewer than `last`."""
    blocks = [-(-columns // lanes) for columns in VARIOUS_SIZES if first * lanes <= columns < last * lanes]
    return sum(-(-count // vectors) / count for count in blocks) / len(VARIOUS_SIZES)


@lru_cache(maxsize=8192)
def _mean_cycles(
    blocks: float, heights: tuple[int, ...], vectors: int, far_bytes: int, machine: CoreRates, row_cycles: float = 0.0
) -> float:
    """Cycles per row and step where tiles of the cheapest height cover each number of rows; the last one overlaps."""

    few = min(FEW_ROWS, *heights)
    costs = {height: _tile_cycles(blocks, height, vectors, far_bytes, machine, row_cycles) for height in (*heights, few)}

    def cycles(rows: int) -> float:
        whole = [height for height in heights if height <= rows] or [few]
        return min([-(-rows // height) * costs[height] for height in whole]) / rows

    return sum(map(cycles, VARIOUS_SIZES)) / len(VARIOUS_SIZES)


def _tile_cycles(blocks: float, height: int, vectors: int, far_bytes: int, machine: CoreRates, row_cycles: float = 0.0) -> float:
    """Cycles of one step of the sum for a tile of rows over all columns, with what it costs beside its multiply-adds."""
    full, rest = divmod(blocks, vectors) if isinstance(blocks, int) else (blocks / vectors, 0)  # a mean is of whole tiles
    steps = full * cycles_per_step(height, vectors, far_bytes, machine) + cycles_per_step(height, rest, far_bytes, machine)
    return steps + (TILE_CYCLES + row_cycles * height) * (full + (rest > 0))
