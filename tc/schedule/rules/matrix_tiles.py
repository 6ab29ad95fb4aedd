"""Sums of products on tile registers: of how many tiles of sums a tile of the result is made."""

from __future__ import annotations

from functools import partial
from itertools import product

from tc.ir.x86_intrinsics import NUM_TILES, TILE_ROWS

TILE_BYTES = 64
"""Of a row of a tile."""

PRODUCT_CYCLES, PRODUCT_LATENCY, LOAD_CYCLES = 16, 52, 8
"""Of the product of two tiles, and of a tile's load from the first-level cache. Source: Intel, "64 and IA-32 Architectures Optimization
Reference Manual", chapter on AMX."""

STORE_CYCLES = 32
"""What it takes to set a tile of sums to zero, to store it, and to read it again for what follows the sum."""

MOST_SUMS = NUM_TILES // 2
"""Tiles of sums at most: the others hold operands."""

Grid = tuple[int, int]
"""Tiles of sums of one tile of the result: so many below each other by so many side by side."""


def grids_of(rows: int) -> list[Grid]:
    """All that the registers allow and that so many rows fill; one tile where there are none."""
    sides = range(1, MOST_SUMS + 1)
    found = [(high, wide) for high, wide in product(sides, sides) if high * wide <= MOST_SUMS and high * TILE_ROWS <= rows]
    return found or [(1, 1)]


def grid_cycles(grid: Grid, rows: int, columns: int, steps: int) -> int:
    """Cycles for a result of so many rows and columns, whose sums have `steps` products of tiles."""
    high, wide = grid
    step = max(PRODUCT_CYCLES * high * wide, PRODUCT_LATENCY, LOAD_CYCLES * (high + wide))
    tiles = -(-rows // (high * TILE_ROWS)) * -(-columns // (wide * TILE_ROWS))
    return tiles * (steps * step + STORE_CYCLES * high * wide + PRODUCT_LATENCY)


def best_grid(rows: int, columns: int, steps: int) -> Grid:
    """The grid of the least cycles whose tiles the rows fill; of equal ones, the one that loads least."""
    cost = partial(grid_cycles, rows=rows, columns=columns, steps=steps)
    return min(grids_of(rows), key=lambda grid: (cost(grid), grid[0] + grid[1]))
