"""What a convolution on tile registers costs, in cycles: for the rule that cuts it into tiles, and for passes that choose layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

from tc.ir.dtype import DType, bf16
from tc.ir.x86_intrinsics import NUM_TILES, TILE_ROWS
from tc.schedule.rules.common import divisors
from tc.schedule.rules.matrix_tiles import (
    AFTER_VECTOR_CYCLES,
    MOST_SUMS,
    NEAR_PART,
    PRODUCT_LATENCY,
    TILE_BYTES,
    cycles_of_tiles,
    vectors_of_tile_row,
)
from tc.target import Target
from tc.target.machine import machine_of
from tc.target.table import CoreRates

WHATEVER_ROWS = 0.5
"""The part of the cycles of a product of 16 rows that one takes whatever its rows are. Measured on an Emerald Rapids, of random numbers,
with the loads of operands: 16 rows 6.9 ns, 14 rows 6.4, 12 rows 6.1, 10 rows 5.7, 8 rows 5.2, 4 rows 4.4."""

BAND_OF_L2 = 0.4
"""The part of the second-level cache that a padded band of rows may take."""

WindowGrid = tuple[int, int, int]
"""Tiles of sums of one tile of the result: so many along a row of pixels, for so many rows of pixels, by so many of channels."""


@dataclass(frozen=True)
class WindowProduct:
    """A convolution as sums of products of tiles: of `images` images of `height` rows of `width` pixels, for `columns` channels, `lanes` of
    them side by side.

    `steps`: products of tiles that a tile of sums adds up, each of `row_bytes` of a pixel, `taps` for each block of channels. `is_run_on`:
    a row is the whole image, with the padding between its rows, of which nobody reads the sums.
    """

    images: int
    height: int
    width: int
    columns: int
    lanes: int
    steps: int
    row_bytes: int
    dtype: DType
    taps: int = 1
    is_run_on: bool = False

    def run_on(self, pitch: int) -> WindowProduct:
        """With tiles that run on across the ends of rows of pixels, which lie `pitch` apart, padding included."""
        return replace(self, height=1, width=(self.height - 1) * pitch + self.width, is_run_on=True)

    @property
    def rows(self) -> int:
        """Pixels of a tile: as many as a tile has rows, or fewer where a row of pixels is then cut evenly."""
        return -(-self.width // -(-self.width // TILE_ROWS))

    def grids(self) -> list[WindowGrid]:
        """All that the registers allow and that the result fills."""
        if self.is_run_on:  # one operand of each side at a time
            return [(across, 1, 1) for across in range(1, min(NUM_TILES - 2, -(-self.width // self.rows)) + 1)]
        across, below = (range(1, min(MOST_SUMS, count) + 1) for count in (self.width // max(self.rows, 1), self.height))
        wide = [count for count in divisors(max(self.lanes // TILE_ROWS, 1)) if count <= MOST_SUMS]
        return [grid for grid in product(across, below, wide) if prod(grid) <= MOST_SUMS] or [(1, 1, 1)]

    def best_grid(self, target: Target) -> WindowGrid:
        """The grid of the least cycles; of equal ones, the one that loads least."""
        return _best_grid(self, target, machine_of(target))

    def best_cycles(self, target: Target) -> float:
        """Of the best grid."""
        return self.cycles(self.best_grid(target), target)

    def extent(self, grid: WindowGrid) -> int:
        """Of a row of pixels in whole tiles."""
        size = grid[0] * self.rows
        return -(-self.width // size) * size

    def product_cycles(self, target: Target) -> float:
        """Of one product of tiles."""
        machine = machine_of(target)
        per_cycle = machine.amx_bf16_per_cycle if self.dtype is bf16 else machine.amx_i8_per_cycle
        full = 2 * TILE_ROWS * TILE_ROWS * (TILE_BYTES // self.dtype.size_bytes) / per_cycle
        return (WHATEVER_ROWS + (1 - WHATEVER_ROWS) * self.rows / TILE_ROWS) * full

    def cycles(self, grid: WindowGrid, target: Target, is_interleaved: bool = True) -> float:
        """On tiles. Pixels come from the second-level cache for the first tap, weights where a tile's do not stay in the first one."""
        machine, (across, below, wide) = machine_of(target), grid
        high = across * below
        panel = wide * TILE_ROWS * self.steps * self.row_bytes
        column_load = machine.tile_load_cycles if panel <= NEAR_PART * target.l1_bytes else machine.tile_l2_load_cycles
        part = self.rows / TILE_ROWS
        pixel_load = machine.tile_load_cycles + (machine.tile_l2_load_cycles - machine.tile_load_cycles) / self.taps
        loads = high * part * pixel_load + wide * self.row_bytes / TILE_BYTES * column_load
        step = max(high * wide * self.product_cycles(target), PRODUCT_LATENCY, loads)
        stores = high * wide * part * machine.tile_store_cycles
        after = high * wide * self.rows * vectors_of_tile_row(target) * AFTER_VECTOR_CYCLES
        return cycles_of_tiles(self.tiles(grid), self.steps * step, stores, after, is_interleaved and not self.is_run_on)

    def interleaving_pays(self, grid: WindowGrid, target: Target) -> bool:
        """Whether what follows the sums of a tile is better done between the products of the next."""
        return self.cycles(grid, target) < self.cycles(grid, target, is_interleaved=False)

    def tiles(self, grid: WindowGrid) -> int:
        """Of the result, for a grid."""
        across, below, wide = grid
        sides = ((self.width, across * self.rows), (self.height, below), (self.columns, wide * TILE_ROWS))
        count = self.images
        for extent, size in sides:
            count *= -(-extent // size)
        return count

    def cycles_on_vectors(self, target: Target) -> float:
        """By instructions that sum several products in each lane, or by multiply-adds."""
        machine = machine_of(target)
        dots = machine.bf16_dots_per_fma if self.dtype is bf16 else machine.i8_dots_per_fma
        depth = self.steps * self.row_bytes // self.dtype.size_bytes
        vectors = -(-self.columns // (target.vector_bits // 32))
        pixels = self.images * self.height * self.width
        return pixels * vectors * (depth / (machine.fma_per_cycle * max(dots, 1.0)) + AFTER_VECTOR_CYCLES)

    def pays(self, target: Target, part: float = 1.0) -> bool:
        """Whether tiles, whose rates must be known, take fewer cycles than vectors, which sum no more than `part` of the terms."""
        has_rates = machine_of(target).amx_i8_per_cycle > 0 and machine_of(target).amx_bf16_per_cycle > 0
        return has_rates and self.best_cycles(target) < part * self.cycles_on_vectors(target)


@lru_cache(maxsize=512)
def _best_grid(product: WindowProduct, target: Target, machine: CoreRates) -> WindowGrid:
    """`best_grid`, remembered: passes ask for the same convolutions again and again. `machine`: the rates that cycles are counted by."""
    return min(product.grids(), key=lambda grid: (product.cycles(grid, target), grid[0] * grid[1] + grid[2]))
