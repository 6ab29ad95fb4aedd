"""Sums of products on tile registers: of how many tiles of sums a tile of the result is made."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from tc.ir.dtype import DType, bf16
from tc.ir.x86_intrinsics import NUM_TILES, TILE_ROWS
from tc.target import Target
from tc.target.machine import machine_of

TILE_BYTES = 64
"""Of a row of a tile."""

PRODUCT_LATENCY = 52
"""Cycles until the sums of a product of tiles may be added to. Source: Intel, "64 and IA-32 Architectures Optimization Reference Manual",
chapter on AMX."""

MOST_SUMS = NUM_TILES // 2
"""Tiles of sums at most: the others hold operands."""

NEAR_PART = 0.7
"""The part of the first-level cache that the columns of a tile may take to stay there."""

AFTER_VECTOR_CYCLES = 3.0
"""Of what follows the sums, for a vector of them: it is loaded, scaled, rounded, narrowed and stored. Measured on an Emerald Rapids: 19 ns
for the sixteen vectors of a tile, of which 4.7 are its store."""

Grid = tuple[int, int]
"""Tiles of sums of one tile of the result: so many below each other by so many side by side."""


@dataclass(frozen=True)
class TileProduct:
    """A product of `rows` x `depth` and `depth` x `columns` terms of `dtype`, on tile registers or on vectors of a target.

    `panel`: where columns lie in panels, how many one has. `in_parts`: it is a part of a sum, which is scaled and added up by itself: that
    takes longer than the products, and tiles that share operands gain nothing.
    """

    rows: int
    columns: int
    depth: int
    dtype: DType
    panel: int = 0
    in_parts: bool = False

    @property
    def steps(self) -> int:
        """Products of tiles that a tile of sums adds up."""
        return -(-self.depth // terms_of_tile(self.dtype))

    def grids(self) -> list[Grid]:
        """All that the registers allow and that the rows fill; one tile where there are none."""
        sides = range(1, MOST_SUMS + 1)
        heights = [1] if self.in_parts else [high for high in sides if high * TILE_ROWS <= self.rows]
        widths = [wide for wide in sides if self.panel % (wide * TILE_ROWS) == 0]
        return [(high, wide) for high, wide in product(heights, widths) if high * wide <= MOST_SUMS] or [(1, 1)]

    def best_grid(self, target: Target) -> Grid:
        """The grid of the least cycles; of equal ones, the one that loads least."""
        return min(self.grids(), key=lambda grid: (self.cycles(grid, target), grid[0] + grid[1]))

    def cycles(self, grid: Grid, target: Target, is_interleaved: bool = True) -> float:
        """On tiles. Rows come from the second-level cache, and columns where they do not stay in the first."""
        machine, (high, wide) = machine_of(target), grid
        per_cycle = machine.amx_bf16_per_cycle if self.dtype is bf16 else machine.amx_i8_per_cycle
        operations = 2 * TILE_ROWS * TILE_ROWS * terms_of_tile(self.dtype)
        panel = wide * TILE_ROWS * self.depth * self.dtype.size_bytes
        column_load = machine.tile_load_cycles if panel <= NEAR_PART * target.l1_bytes else machine.tile_l2_load_cycles
        loads = high * machine.tile_l2_load_cycles + wide * column_load
        step = max(high * wide * operations / per_cycle, PRODUCT_LATENCY, loads)
        tiles = -(-self.rows // (high * TILE_ROWS)) * -(-self.columns // (wide * TILE_ROWS))
        after = high * wide * TILE_ROWS * vectors_of_tile_row(target) * AFTER_VECTOR_CYCLES
        return cycles_of_tiles(tiles, self.steps * step, high * wide * machine.tile_store_cycles, after, is_interleaved)

    def interleaving_pays(self, grid: Grid, target: Target) -> bool:
        """Whether what follows the sums of a tile is better done between the products of the next."""
        return self.cycles(grid, target) < self.cycles(grid, target, is_interleaved=False)

    def cycles_on_vectors(self, target: Target) -> float:
        """By instructions that sum several products in each lane, or by multiply-adds."""
        machine = machine_of(target)
        dots = machine.bf16_dots_per_fma if self.dtype is bf16 else machine.i8_dots_per_fma
        vectors = -(-self.columns // (target.vector_bits // 32))
        return self.rows * vectors * (self.depth / (machine.fma_per_cycle * max(dots, 1.0)) + AFTER_VECTOR_CYCLES)

    def paying_grid(self, target: Target) -> Grid | None:
        """The best grid where there are rows for a tile, and tiles take fewer cycles than vectors; else None."""
        has_rates = machine_of(target).amx_i8_per_cycle > 0 and machine_of(target).amx_bf16_per_cycle > 0
        if not has_rates or self.rows < TILE_ROWS:
            return None
        best = self.best_grid(target)
        return best if self.cycles(best, target) < self.cycles_on_vectors(target) else None


def cycles_of_tiles(count: int, products: float, stores: float, after: float, is_interleaved: bool) -> float:
    """Of `count` tiles of the result, one after the other: of each, the products, the stores of its sums, and what follows these.

    Interleaved, the latter is done by units that the products of the next tile leave idle: the longer of both counts.
    """
    if not is_interleaved:
        return count * (products + PRODUCT_LATENCY + stores + after)
    return count * (PRODUCT_LATENCY + stores) + (count - 1) * max(products, after) + products + after


def vectors_of_tile_row(target: Target) -> float:
    """How many vectors the sums of a row of a tile are."""
    return TILE_ROWS * 32 / target.vector_bits


def terms_of_tile(dtype: DType) -> int:
    """How many terms of a sum a row of a tile holds."""
    return TILE_BYTES // dtype.size_bytes
