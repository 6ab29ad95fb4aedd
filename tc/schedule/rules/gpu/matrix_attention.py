"""Attention whose products are those of single warps: `mma`, of fragments that `ldmatrix` loads.

Each warp has rows of its own. Keys and values come in stages of asynchronous copies; no lane waits for another warp but for these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tc.errors import ScheduleError
from tc.ir.dtype import DType
from tc.ir.expr import Const
from tc.ir.nvidia_intrinsics import ldmatrix_name
from tc.schedule.rules.attention import AttentionChain
from tc.schedule.rules.epilogue import block_info, contraction_of
from tc.schedule.rules.gpu.attention import first_with_enough_blocks, made_by, tile_chain
from tc.schedule.rules.gpu.fragment_attention import (
    AttentionOperands,
    FragmentTile,
    HeldRows,
    row_lengths,
    tile_attention,
)
from tc.schedule.rules.gpu.matrix_blocking import LANES
from tc.schedule.rules.gpu.matrix_product import (
    PAIR,
    ROWS,
    Call,
    MatrixInstruction,
    instruction_for,
    lay_out_matrix,
    load_matrix_fragment,
    store_matrix_tile,
    tile_matrix_sum,
    unroll_fetch,
)
from tc.schedule.rules.gpu.product import FinalTile, TiledAxes, fetch_tile
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.device import DeviceFacts

TILES = (
    *((128, 64, 16), (128, 32, 16), (64, 64, 16), (64, 32, 16), (64, 16, 16)),
    *((32, 32, 16), (32, 16, 16), (16, 32, 16), (16, 16, 16)),
)
"""Rows of queries, keys, and rows of a warp."""

OTHER_REGISTERS = 40
"""Registers of a lane beside those of its fragments: addresses, counters, fragments of keys and values on their way."""


def schedule_matrix_attention(schedule: Schedule, target: Target) -> str | None:
    """Schedule two products of halves with a softmax between them as one launch; None where the device has no matrix instruction for it."""
    return tile_chain(schedule, target, _tiled)


def _tiled(schedule: Schedule, chain: AttentionChain, device: DeviceFacts) -> str:
    instruction = instruction_for(contraction_of(schedule, chain.scores), device)
    return tile_attention(schedule, chain, WarpProducts(instruction, _choose_tile(schedule, chain, instruction, device)))


def _registers(tile: FragmentTile) -> int:
    """Of a lane, estimated: scores and results in f32, queries and weights in halves, and all others."""
    return tile.own * (tile.keys + tile.width) // LANES + tile.own * (tile.depth + tile.keys) // (2 * LANES) + OTHER_REGISTERS


def _choose_tile(schedule: Schedule, chain: AttentionChain, instruction: MatrixInstruction, device: DeviceFacts) -> FragmentTile:
    """Ask for the sizes of tiles, and the number of stages that keys and values have at once."""
    depth, width = row_lengths(schedule, chain)
    info = block_info(schedule, chain.weighted)
    rows = next(axis.extent for axis in info.block.axes if axis.var is info.spatial_axes[-2])
    most = -(-depth // instruction.depth) * instruction.depth, -(-width // ROWS) * ROWS
    found = [
        tile
        for tile in (FragmentTile(*size, *most) for size in TILES)
        if tile.shared_bytes() <= device.max_shared_bytes_per_block
        and _registers(tile) <= device.max_registers_per_thread
        and (tile.rows == ROWS or not isinstance(rows, Const) or tile.rows < 2 * int(rows.value))
    ]
    if not found:
        raise ScheduleError(f"block {chain.weighted}: shared memory holds no tile of rows of {most[1]} values")
    options = [(tile.rows, tile.keys, tile.own) for tile in found]
    usual = first_with_enough_blocks(schedule, chain, [tile.rows for tile in found], device)
    tile = FragmentTile(*schedule.choose(chain.weighted, "tile", options, options[usual], ordered=False), *most)
    stages = [count for count in (1, 2, 3) if replace(tile, stages=count).shared_bytes() <= device.max_shared_bytes_per_block]
    if not device.has("cp.async"):
        stages = stages[:1]
    return replace(tile, stages=schedule.choose(chain.weighted, "stages_at_once", stages, min(2, max(stages))))


@dataclass(frozen=True)
class WarpProducts:
    """Products of warps. See `AttentionProducts`."""

    instruction: MatrixInstruction
    tile: FragmentTile
    name: str = "tiled attention on matrix instructions"

    @property
    def dtype(self) -> DType:
        return self.instruction.lhs

    @property
    def rows(self) -> HeldRows:
        return HeldRows((self.tile.own // ROWS, 2, ROWS // 2), (False, False, True))

    def lay_out(
        self, schedule: Schedule, chain: AttentionChain, axes: tuple[TiledAxes, TiledAxes], operands: AttentionOperands
    ) -> AttentionOperands:
        copies = operands.by_product(chain, axes)
        order = "".join(lay_out_matrix(schedule, name, copy, of, self.instruction) for name, copy, of in copies)
        fragments = [schedule.cache_read(name, made_by(schedule, copy), "fragment") for name, copy, _ in copies]
        return replace(operands, fragments=tuple(fragments), order=order)

    def multiply_values(
        self, schedule: Schedule, name: str, axes: TiledAxes, place: str, operands: AttentionOperands
    ) -> tuple[str, list[Call]]:
        order = operands.order[2]
        stage, step, calls = tile_matrix_sum(schedule, name, axes, place, self.instruction, f"n{order}")
        return stage, [*calls, load_matrix_fragment(schedule, operands.fragments[2], step, f"rhs.{order}", self.instruction)]

    def multiply_keys(
        self, schedule: Schedule, name: str, axes: TiledAxes, around: str, place: str, operands: AttentionOperands
    ) -> list[Call]:
        queries, keys, _ = operands.fragments
        order = operands.order[:2]
        _, step, calls = tile_matrix_sum(schedule, name, axes, around, self.instruction, order)
        calls.append(load_matrix_fragment(schedule, keys, step, f"rhs.{order[1]}", self.instruction))
        return [*calls, _hold_queries(schedule, queries, place, self.tile, f"lhs.{order[0]}", self.instruction)]

    def fetch(self, schedule: Schedule, copy: str, loop: str, axes: TiledAxes) -> None:
        fetch_tile(schedule, copy, loop, axes)
        unroll_fetch(schedule, copy, loop)

    def rescale(self, schedule: Schedule, name: str) -> None:
        *_, high, wide, row, column = schedule.loops_of(name)
        half, low = schedule.split(row, (None, ROWS // 2))
        quad, pair = schedule.split(column, (None, PAIR))
        schedule.reorder(low, quad, high, wide, half, pair)
        schedule.bind(schedule.fuse(low, quad), "thread.x")
        for loop in (half, pair):
            schedule.unroll(loop)

    def store(self, schedule: Schedule, axes: TiledAxes, tile: FinalTile) -> None:
        store_matrix_tile(schedule, axes, tile)


def _hold_queries(schedule: Schedule, fragment: str, place: str, tile: FragmentTile, role: str, instruction: MatrixInstruction) -> Call:
    """Load a warp's rows of the queries once, by `ldmatrix` of four matrices."""
    schedule.compute_at(fragment, place)
    shape = (ROWS, instruction.depth) if role == "lhs.n" else (instruction.depth, ROWS)
    *_, first, second = schedule.loops_of(fragment)
    rows, columns = (first, second) if role == "lhs.n" else (second, first)
    y, high, row = schedule.split(rows, (None, tile.own // ROWS, ROWS))
    wide, column = schedule.split(columns, (None, instruction.depth))
    inner = (row, column) if role == "lhs.n" else (column, row)
    schedule.reorder(y, high, wide, *inner)
    schedule.bind(y, "thread.y")
    for loop in (high, wide):
        schedule.unroll(loop)
    return inner[0], ldmatrix_name(role, shape, instruction.lhs)
