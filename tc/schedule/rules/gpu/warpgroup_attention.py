"""Attention whose products are those of groups of warps, whose operands come to shared memory by copies of boxes (wgmma and TMA).

Each group of four warps has 64 rows of its own. Queries are copied once, keys and values in stages; exponentials are, as they lie in
registers, the left operand of the second product. Who begins the copies, and who waits for what, is decided where the loop over tiles of
keys is pipelined (`pipeline_loops`).
Source: Shah et al. (2024), FlashAttention-3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tc.errors import ScheduleError
from tc.ir.box_copies import BOX_ALIGNMENT
from tc.ir.dtype import DType
from tc.ir.expr import Const
from tc.ir.nvidia_intrinsics import WGMMA_COLUMNS, wgmma_name
from tc.schedule.rules.attention import AttentionChain
from tc.schedule.rules.common import extent_value
from tc.schedule.rules.epilogue import block_info, contraction_of
from tc.schedule.rules.gpu.attention import first_with_enough_blocks, tile_chain
from tc.schedule.rules.gpu.fragment_attention import (
    QUAD,
    AttentionOperands,
    FragmentTile,
    HeldRows,
    row_lengths,
    tile_attention,
)
from tc.schedule.rules.gpu.matrix_product import PAIR, Call
from tc.schedule.rules.gpu.product import FinalTile, TiledAxes
from tc.schedule.rules.gpu.warpgroup_product import (
    DEPTH,
    GROUP_ROWS,
    GROUP_THREADS,
    check_operands,
    fetch_boxes,
    is_filled,
    lay_out_boxes,
    store_group_tile,
    tile_group_sum,
)
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.device import DeviceFacts, most_registers

TILES = ((128, 64), (64, 64), (128, 128), (64, 128), (192, 64))
"""Rows of queries, and keys: those that a search may choose."""

USUAL_TILES = ((128, 64), (64, 64))
"""Those of which the default is one, the best first."""

OTHER_REGISTERS = 40
"""Registers of a thread beside those of its fragments."""


def schedule_warpgroup_attention(schedule: Schedule, target: Target) -> str | None:
    """Schedule two products of halves with a softmax between them as one launch; None where the device has no wgmma, or the operands do not
    fit."""
    if target.device is None or not (target.device.has("wgmma") and target.device.has("tma")):
        return None
    return tile_chain(schedule, target, _tiled)


def _tiled(schedule: Schedule, chain: AttentionChain, device: DeviceFacts) -> str:
    """Tile an attention; ScheduleError before anything is asked where that is not possible, as then it is not whatever the answers are."""
    _tile(Schedule(schedule.func), chain, device)
    return _tile(schedule, chain, device)


def _tile(schedule: Schedule, chain: AttentionChain, device: DeviceFacts) -> str:
    dtype = check_operands(contraction_of(schedule, chain.scores))
    return tile_attention(schedule, chain, GroupProducts(dtype, _choose_tile(schedule, chain, device)))


# -- sizes


def _choose_tile(schedule: Schedule, chain: AttentionChain, device: DeviceFacts) -> FragmentTile:
    """Ask for the sizes of tiles, and the number of stages that keys and values have at once."""
    info = block_info(schedule, chain.weighted)
    sizes = {axis.var: int(axis.extent.value) if isinstance(axis.extent, Const) else None for axis in info.block.axes}
    rows, keys = sizes[info.spatial_axes[-2]], sizes[info.reduction_axes[0]]
    lengths = row_lengths(schedule, chain)
    most = -(-lengths[0] // DEPTH) * DEPTH, next(columns for columns in WGMMA_COLUMNS if columns >= lengths[1])
    if any(4 * length < 3 * size for length, size in zip(lengths, most, strict=True)):
        raise ScheduleError(f"block {chain.weighted}: rows of {lengths[0]} and {lengths[1]} elements leave much of tiles empty")
    found = [
        tile
        for tile in (FragmentTile(*size, GROUP_ROWS, *most, 2) for size in TILES)
        if _shared_bytes(tile) <= device.max_shared_bytes_per_block
        and _registers(tile) <= most_registers((tile.rows // GROUP_ROWS + 1) * GROUP_THREADS, device)  # one group copies
        and is_filled(tile.rows, rows)
        and (keys is None or keys > tile.keys)
    ]
    options = [(tile.rows, tile.keys) for tile in found]
    usual = [size for size in USUAL_TILES if size in options]
    if not usual:
        raise ScheduleError(f"block {chain.weighted} is smaller than tiles of warpgroups, or larger than a block of threads holds")
    default = usual[first_with_enough_blocks(schedule, chain, [size[0] for size in usual], device)]
    size = schedule.choose(chain.weighted, "tile", options, default, ordered=False)
    tile = found[options.index(size)]
    stages = [count for count in (2, 3, 4) if _shared_bytes(replace(tile, stages=count)) <= device.max_shared_bytes_per_block]
    return replace(tile, stages=schedule.choose(chain.weighted, "stages_at_once", stages, 2))


def _shared_bytes(tile: FragmentTile) -> int:
    """With what is left for barriers."""
    return tile.shared_bytes() + BOX_ALIGNMENT


def _registers(tile: FragmentTile) -> int:
    """Of a thread, estimated: scores and results in f32, weights in halves, and all others."""
    return (2 * (tile.keys + tile.width) + tile.keys) * GROUP_ROWS // (2 * GROUP_THREADS) + OTHER_REGISTERS


# -- products


@dataclass(frozen=True)
class GroupProducts:
    """Products of groups of warps. See `AttentionProducts`."""

    dtype: DType
    tile: FragmentTile
    name: str = "tiled attention on warpgroups"

    @property
    def rows(self) -> HeldRows:
        return HeldRows((4, 2, 8), (True, False, True))

    def lay_out(
        self, schedule: Schedule, chain: AttentionChain, axes: tuple[TiledAxes, TiledAxes], operands: AttentionOperands
    ) -> AttentionOperands:
        order = "".join(lay_out_boxes(schedule, *each) for each in operands.by_product(chain, axes))
        return replace(operands, order=order)

    def multiply_values(
        self, schedule: Schedule, name: str, axes: TiledAxes, place: str, operands: AttentionOperands
    ) -> tuple[str, list[Call]]:
        order = f"n{operands.order[2]}"
        return tile_group_sum(schedule, name, axes, place, wgmma_name(self.tile.width, self.dtype, "fragment", order), order)

    def multiply_keys(
        self, schedule: Schedule, name: str, axes: TiledAxes, around: str, place: str, operands: AttentionOperands
    ) -> list[Call]:
        order = operands.order[:2]
        return tile_group_sum(schedule, name, axes, around, wgmma_name(self.tile.keys, self.dtype, "shared", order), order)[1]

    def fetch(self, schedule: Schedule, copy: str, loop: str, axes: TiledAxes) -> None:
        fetch_boxes(schedule, copy, loop, False)

    def rescale(self, schedule: Schedule, name: str) -> None:
        *loops, column = schedule.loops_of(name)
        columns = [] if extent_value(schedule, column) == self.tile.width else [loops.pop()]
        warp, half, low = schedule.split(loops[-1], (None, 2, 8))
        wide, quad, pair = schedule.split(column, (None, QUAD, PAIR))
        own = [*columns, wide, half, pair]
        schedule.reorder(warp, low, quad, *own)
        schedule.bind(schedule.fuse(warp, low, quad), "thread.x")
        for loop in own:
            schedule.unroll(loop)

    def store(self, schedule: Schedule, axes: TiledAxes, tile: FinalTile) -> None:
        store_group_tile(schedule, axes, tile)
