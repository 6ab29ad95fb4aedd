"""Sizes of the tiles of a product on matrix instructions: what a block and a warp compute, and how many stages are in shared memory.

The default is the choice of least time by a simple model: processors multiply, read shared memory and fetch from the second-level cache at
their rates, mostly at once; every one that the device can hold is an answer that a search may give.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tc.ir.dtype import DType
from tc.schedule.rules.gpu.blocking import SHARED_BYTES_PER_CYCLE, Blocking, Extents
from tc.target.device import DeviceFacts, occupancy

LANES = 32

MatrixTile = tuple[int, int, int, int]
"""Rows and columns of a block, and of a warp."""

MATRIX_TILES: tuple[MatrixTile, ...] = (
    *((128, 256, 64, 64), (256, 128, 64, 64), (128, 128, 64, 64), (128, 128, 64, 32), (128, 64, 64, 32), (64, 128, 32, 64)),
    *((64, 64, 32, 32), (32, 64, 16, 32), (32, 32, 16, 16)),
)

SEARCHED_TILES: tuple[MatrixTile, ...] = (
    *MATRIX_TILES,
    *(
        (rows, columns, warp_rows, warp_columns)
        for rows, columns in product((32, 64, 128, 256), repeat=2)
        for warp_rows, warp_columns in product((16, 32, 64), repeat=2)
        if rows // warp_rows * (columns // warp_columns) in (2, 4, 8, 16)
        if (rows, columns, warp_rows, warp_columns) not in MATRIX_TILES
    ),
)
"""The tiles that a search may choose: of two to sixteen warps."""

DEPTHS, USUAL_DEPTH = (16, 32, 64), 32
"""Terms of a stage."""

STAGES, USUAL_STAGES = (1, 2, 3, 4), 3
"""How many are in shared memory at once, where copies go on while threads multiply."""

OTHER_REGISTERS = 96
"""Of a thread beside its sums: fragments of one step, addresses."""

CACHE_BYTES_PER_CYCLE = 32.0
"""That a processor gets from the second-level cache when all do: 4 to 5 TB/s of an A100."""

NOT_HIDDEN = 0.25
"""Of what does not take longest: the part that is not done meanwhile."""

START_CYCLES = 3000.0
"""In which a block does not multiply: until its first stages are there, and while it stores its sums."""


def blocking_of(tile: MatrixTile, depth: int) -> Blocking:
    """A tile as blocks are described: as if each lane had a part of each row of its warp."""
    rows, columns, warp_rows, warp_columns = tile
    warps = rows // warp_rows * (columns // warp_columns)
    return Blocking(rows, columns, rows // warps, columns // LANES, depth)


def matrix_tiles(sizes: Extents, device: DeviceFacts, tiles: Sequence[MatrixTile] = MATRIX_TILES) -> list[MatrixTile]:
    """Those that the device can hold, and that are less than twice as large as the result along each side."""
    least = min(tile[0] for tile in MATRIX_TILES), min(tile[1] for tile in MATRIX_TILES)
    return [
        tile
        for tile in tiles
        if tile[0] < 2 * max(sizes.rows, least[0]) and tile[1] < 2 * max(sizes.columns, least[1])
        if _resident(tile, sizes, device, min(DEPTHS), 1)
    ]


def best_matrix_tile(options: Sequence[MatrixTile], sizes: Extents, device: DeviceFacts, dtype: DType) -> MatrixTile:
    """The one of least cycles; of equals the one that fetches least."""
    return min(options, key=lambda tile: (matrix_cycles(tile, sizes, device, dtype), 1 / tile[0] + 1 / tile[1]))


def stage_counts(blocking: Blocking, sizes: Extents, device: DeviceFacts) -> list[int]:
    """How many stages shared memory may have at once."""
    one = blocking.shared_bytes(sizes.lhs_bytes, sizes.rhs_bytes)
    most = STAGES if device.has("cp.async") else STAGES[:1]
    return [count for count in most if count * one <= device.max_shared_bytes_per_block]


def matrix_cycles(tile: MatrixTile, sizes: Extents, device: DeviceFacts, dtype: DType) -> float:
    """Of the whole product on the busiest processor."""
    rows, columns, warp_rows, warp_columns = tile
    blocks = sizes.batch * -(-sizes.rows // rows) * -(-sizes.columns // columns)
    per_processor, steps = -(-blocks // device.processors), -(-max(sizes.depth, 1) // USUAL_DEPTH)
    together = min(_resident(tile, sizes, device, USUAL_DEPTH, USUAL_STAGES if device.has("cp.async") else 1) or 1, per_processor)
    warps = rows // warp_rows * (columns // warp_columns)
    rates = dict(device.tensor_flops_per_cycle)
    rate = rates.get(dtype.name, rates.get("i8", 1024)) * min(1.0, warps * together / device.partitions_per_processor)
    multiply = 2 * rows * columns * USUAL_DEPTH / rate
    load = warps * (warp_rows * sizes.lhs_bytes + warp_columns * sizes.rhs_bytes) * USUAL_DEPTH / SHARED_BYTES_PER_CYCLE
    fetch = (rows * sizes.lhs_bytes + columns * sizes.rhs_bytes) * USUAL_DEPTH / CACHE_BYTES_PER_CYCLE
    longest = max(multiply, load, fetch)
    stage = longest + (multiply + load + fetch - longest) * NOT_HIDDEN
    return per_processor * steps * stage + -(-per_processor // together) * START_CYCLES


def _resident(tile: MatrixTile, sizes: Extents, device: DeviceFacts, depth: int, stages: int) -> int:
    """How many blocks a processor holds."""
    registers = tile[2] * tile[3] // LANES + OTHER_REGISTERS
    blocking = blocking_of(tile, depth)
    shared = stages * blocking.shared_bytes(sizes.lhs_bytes, sizes.rhs_bytes)
    return occupancy(blocking.threads, registers, shared, device)
