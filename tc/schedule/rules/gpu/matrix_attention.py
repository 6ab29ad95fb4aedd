"""Attention on matrix instructions: the tiling of `attention`, each warp with rows of its own from the scores to the result.

Scores are sums of products in fragments; masks, greatest values and exponentials are computed by the lanes on the elements that they hold,
what a row has in common by the four lanes that share it, which exchange it; rounded exponentials are, as they lie in registers, the left
operand of the second product. Keys and values come in stages of asynchronous copies. No lane waits for another warp but for these.
Source: Dao (2023), FlashAttention-2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tc.errors import ScheduleError
from tc.ir.expr import Const
from tc.ir.lane_exchange import combine_name
from tc.ir.loop import annotation
from tc.ir.nvidia_intrinsics import ldmatrix_name
from tc.schedule.analysis import block_infos
from tc.schedule.rules.attention import AttentionChain, chain_of, find_chain, inline_around, is_worth, output_loops
from tc.schedule.rules.epilogue import block_info, contraction_of, driving_loops
from tc.schedule.rules.gpu.attention import (
    compute_in_block,
    first_with_enough_blocks,
    is_symbolic,
    lay_out_heads_first,
    made_by,
    outermost_keys,
)
from tc.schedule.rules.gpu.blocking import Blocking
from tc.schedule.rules.gpu.elementwise import schedule_block
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
from tc.schedule.rules.gpu.product import (
    TiledAxes,
    bind_blocks,
    fetch_tile,
    loops_by_axis,
    pad_to_tiles,
    stage_operands,
)
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.device import DeviceFacts

QUAD = 4
"""Lanes that share a row of sums."""

TILES = (
    *((128, 64, 16), (128, 32, 16), (64, 64, 16), (64, 32, 16), (64, 16, 16)),
    *((32, 32, 16), (32, 16, 16), (16, 32, 16), (16, 16, 16)),
)
"""Rows of queries, keys, and rows of a warp."""

MOST_WIDTH = 256
"""Elements of a row of queries, keys or values at most: what a lane has of them stays in registers."""


def schedule_matrix_attention(schedule: Schedule, target: Target) -> str | None:
    """Schedule two products of halves with a softmax between them as one launch; None where the device has no matrix instruction for it."""
    chain = find_chain(block_infos(schedule.func))
    if target.device is None or chain is None or not is_worth(schedule, chain) or not inline_around(schedule, chain):
        return None
    chain = chain_of(block_infos(schedule.func))
    row, _, _ = output_loops(schedule, chain)
    if row is None:
        return None
    others = [info.name for info in block_infos(schedule.func) if info.name not in vars(chain).values()]
    rule = schedule.attempt(partial(_tiled, schedule, chain, target.device))
    if rule is not None:
        for name in others:
            schedule_block(schedule, name, target)
    return rule


OTHER_REGISTERS = 40
"""Registers of a lane beside those of its fragments: addresses, counters, fragments of keys and values on their way."""


@dataclass(frozen=True)
class WarpTile:
    """Sizes of a block's tiles: rows of queries, keys, rows of a warp, elements of a row of queries and of values; the number of stages."""

    rows: int
    keys: int
    warp: int
    depth: int
    width: int
    stages: int = 1

    @property
    def warps(self) -> int:
        return self.rows // self.warp

    @property
    def registers(self) -> int:
        """Of a lane, estimated: scores and results in f32, queries and weights in halves, and all others."""
        return self.warp * (self.keys + self.width) // LANES + self.warp * (self.depth + self.keys) // (2 * LANES) + OTHER_REGISTERS

    def shared_bytes(self) -> int:
        return 2 * (self.rows * self.depth + self.stages * self.keys * (self.depth + self.width))


def _tiled(schedule: Schedule, chain: AttentionChain, device: DeviceFacts) -> str:
    scores = contraction_of(schedule, chain.scores)
    instruction = instruction_for(scores, device)
    tile = _choose_tile(schedule, chain, instruction, device)
    axes, last = _axes(schedule, chain, tile)
    rows = len(scores.info.spatial_axes) - 2
    schedule.widen((chain.masked, chain.top, chain.powers, chain.total, chain.inverse), rows, tile.rows)
    schedule.pad_softmax(chain.top, tile.keys)
    result, (queries, keys) = pad_to_tiles(schedule, chain.scores, axes, stage_operands(schedule, scores))
    weights = [schedule.cache_operand(chain.weighted, side, instruction.lhs.name, "shared") for side in ("lhs", "rhs")]
    final_result, (powers, values) = pad_to_tiles(schedule, chain.weighted, last, weights)
    for block in (result, final_result):
        if block is not None:
            schedule.compute_inline(block)
    _place_stages(schedule, chain, powers)
    loops = loops_by_axis(schedule, chain.weighted, chain.final)
    for name, copies in ((chain.scores, (queries, keys)), (chain.weighted, (powers, values))):
        for copy in copies:
            lay_out_heads_first(schedule, name, copy)
    order = "".join(lay_out_matrix(schedule, chain.scores, copy, axes, instruction) for copy in (queries, keys))
    turned = lay_out_matrix(schedule, chain.weighted, values, last, instruction)
    fragments = [_fragment_of(schedule, chain.scores, copy) for copy in (queries, keys)]
    value_fragment = _fragment_of(schedule, chain.weighted, values)
    place, parts = bind_blocks(schedule, chain.final, last, loops, PAIR, is_symbolic(schedule))
    compute_in_block(schedule, chain.weighted, place, rows)
    stage, step, calls = tile_matrix_sum(schedule, chain.weighted, replace(last, batch=()), place, instruction, f"n{turned}")
    calls.append(load_matrix_fragment(schedule, value_fragment, step, f"rhs.{turned}", instruction))
    for name in (powers, chain.inverse, chain.total, chain.powers, chain.top, chain.masked, chain.scores):
        compute_in_block(schedule, name, place, rows)
    merged = [stage, *(_tile_keys(schedule, name, place, tile) for name in (chain.masked, chain.powers, powers))]
    merged += [_reduce_rows(schedule, name, place, tile) for name in (chain.top, chain.total)]
    _cut_rows(schedule, chain.inverse, place, tile.warp)
    around = outermost_keys(schedule, chain.scores, place, tile.keys)
    merged.append(around)
    _, step, made = tile_matrix_sum(schedule, chain.scores, replace(axes, batch=()), around, instruction, order)
    calls += made
    calls.append(load_matrix_fragment(schedule, fragments[1], step, f"rhs.{order[1]}", instruction))
    calls.append(_hold_queries(schedule, fragments[0], place, tile, f"lhs.{order[0]}", instruction))
    new = schedule.merge_online(chain.top, *merged)
    for copy, loop, of in ((queries, place, axes), (values, around, last), (keys, around, axes)):
        fetch_tile(schedule, copy, loop, of)
        unroll_fetch(schedule, copy, loop)
    calls += _share_rows(schedule, chain, new)
    for name in (chain.top, chain.total):
        schedule.set_scope(made_by(schedule, name), "fragment")
    store_matrix_tile(schedule, last, parts)
    if tile.stages > 1:
        schedule.annotate_loop(around, "pipeline", tile.stages)
    for loop, intrinsic in calls:  # no other step knows what an instruction touches
        schedule.tensorize(loop, intrinsic)
    return "tiled attention on matrix instructions"


# -- sizes


def _choose_tile(schedule: Schedule, chain: AttentionChain, instruction: MatrixInstruction, device: DeviceFacts) -> WarpTile:
    """Ask for the sizes of tiles, and the number of stages that keys and values have at once."""
    weighted, scores = block_info(schedule, chain.weighted), block_info(schedule, chain.scores)
    sizes = {axis.var: axis.extent for info in (weighted, scores) for axis in info.block.axes}
    rows, width, depth = (sizes[axis] for axis in (*weighted.spatial_axes[-2:], *scores.reduction_axes))
    if not isinstance(width, Const) or not isinstance(depth, Const) or max(int(width.value), int(depth.value)) > MOST_WIDTH:
        raise ScheduleError(f"block {chain.weighted}: rows of queries or values are too long, or of no known length")
    most = -(-int(depth.value) // instruction.depth) * instruction.depth, -(-int(width.value) // ROWS) * ROWS
    found = [
        tile
        for tile in (WarpTile(*size, *most) for size in TILES)
        if tile.shared_bytes() <= device.max_shared_bytes_per_block
        and tile.registers <= device.max_registers_per_thread
        and (tile.rows == ROWS or not isinstance(rows, Const) or tile.rows < 2 * int(rows.value))
    ]
    if not found:
        raise ScheduleError(f"block {chain.weighted}: shared memory holds no tile of rows of {most[1]} values")
    options = [(tile.rows, tile.keys, tile.warp) for tile in found]
    usual = first_with_enough_blocks(schedule, chain, [tile.rows for tile in found], device)
    tile = WarpTile(*schedule.choose(chain.weighted, "tile", options, options[usual], ordered=False), *most)
    stages = [count for count in (1, 2, 3) if replace(tile, stages=count).shared_bytes() <= device.max_shared_bytes_per_block]
    if not device.has("cp.async"):
        stages = stages[:1]
    return replace(tile, stages=schedule.choose(chain.weighted, "stages_at_once", stages, min(2, max(stages))))


def _axes(schedule: Schedule, chain: AttentionChain, tile: WarpTile) -> tuple[TiledAxes, TiledAxes]:
    """The axes of both products by role."""
    made = []
    for name, columns, depth in ((chain.scores, tile.keys, tile.depth), (chain.weighted, tile.width, tile.keys)):
        info = block_info(schedule, name)
        *batch, row, column = info.spatial_axes
        (term,) = info.reduction_axes
        blocking = Blocking(tile.rows, LANES, tile.warp, 1, depth)  # so many threads fetch
        made.append(TiledAxes(tuple(batch), {row: (tile.rows, tile.warp)}, {column: (columns, columns)}, {term: depth}, blocking))
    return made[0], made[1]


# -- stages of a tile


def _place_stages(schedule: Schedule, chain: AttentionChain, powers: str) -> None:
    """Say where each stage is kept: what lanes have for themselves, and operands and results of instructions."""
    for name in (chain.masked, chain.powers, chain.top, chain.total, chain.inverse):
        schedule.set_scope(made_by(schedule, name), "local")
    for name in (chain.scores, chain.weighted, powers):
        schedule.set_scope(made_by(schedule, name), "fragment")


def _fragment_of(schedule: Schedule, name: str, copy: str) -> str:
    return schedule.cache_read(name, made_by(schedule, copy), "fragment")


def _below(schedule: Schedule, name: str, place: str) -> list[str]:
    inside = list(schedule.loops_of(name))
    return inside[inside.index(place) + 1 :]


@dataclass(frozen=True)
class LaneLoops:
    """The loops of a block of rows and keys as sums are held: rows are `y`, `high`, `half`, `low`, keys `tiles`, `wide`, `quad`, `pair`."""

    tiles: str
    y: str
    rows: tuple[str, str, str]
    keys: tuple[str, str, str]

    def bind(self, schedule: Schedule) -> None:
        (high, half, low), (wide, quad, pair) = self.rows, self.keys
        schedule.reorder(self.tiles, self.y, low, quad, high, wide, half, pair)
        schedule.bind(self.y, "thread.y")
        schedule.bind(schedule.fuse(low, quad), "thread.x")
        for loop in (high, wide, half, pair):
            schedule.unroll(loop)


def _cut(schedule: Schedule, name: str, place: str, tile: WarpTile) -> LaneLoops:
    """Cut rows and keys of a block, its last axes, among lanes as the sums of the scores are; nothing is bound yet."""
    info, inside = block_info(schedule, name), _below(schedule, name, place)
    row, column = (driving_loops(info, inside, (axis.var,))[0] for axis in info.block.axes[-2:])
    tiles, part = schedule.split(column, tile.keys)
    y, high, half, low = schedule.split(row, (None, tile.warp // ROWS, 2, ROWS // 2))
    wide, quad, pair = schedule.split(part, (None, QUAD, PAIR))
    schedule.reorder(tiles, y, high, half, low, quad, wide, pair)
    return LaneLoops(tiles, y, (high, half, low), (wide, quad, pair))


def _tile_keys(schedule: Schedule, name: str, place: str, tile: WarpTile) -> str:
    """Let each lane do an elementwise block for the scores that it holds; the loop over tiles of keys."""
    loops = _cut(schedule, name, place, tile)
    loops.bind(schedule)
    return loops.tiles


def _reduce_rows(schedule: Schedule, name: str, place: str, tile: WarpTile) -> str:
    """Reduce along the keys: each lane those that it holds, then what the lanes of a row have; the loop over tiles of keys."""
    loops = _cut(schedule, name, place, tile)
    part = schedule.rfactor(name, loops.keys[1])
    buffer = block_info(schedule, part).writes[0].buffer
    names = [f"a{k}" for k in range(len(buffer.shape))]
    schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join((*names[1:], names[0]))}")
    schedule.set_scope(buffer.name, "fragment")
    loops.bind(schedule)
    schedule.decompose_reduction(part, loops.tiles)
    y = _below(schedule, name, place)[0]
    schedule.bind(y, "thread.y")
    schedule.decompose_reduction(name, y)
    return loops.tiles


def _cut_rows(schedule: Schedule, name: str, place: str, warp: int) -> None:
    """Give each warp its rows of a block that makes one number of each."""
    info = block_info(schedule, name)
    (row,) = driving_loops(info, _below(schedule, name, place), info.spatial_axes[-1:])
    y, *_ = schedule.split(row, (None, warp // ROWS, 2, ROWS // 2))
    schedule.bind(y, "thread.y")


def _hold_queries(schedule: Schedule, fragment: str, place: str, tile: WarpTile, role: str, instruction: MatrixInstruction) -> Call:
    """Load a warp's rows of the queries once, by `ldmatrix` of four matrices."""
    schedule.compute_at(fragment, place)
    shape = (ROWS, instruction.depth) if role == "lhs.n" else (instruction.depth, ROWS)
    *_, first, second = schedule.loops_of(fragment)
    rows, columns = (first, second) if role == "lhs.n" else (second, first)
    y, high, row = schedule.split(rows, (None, tile.warp // ROWS, ROWS))
    wide, column = schedule.split(columns, (None, instruction.depth))
    inner = (row, column) if role == "lhs.n" else (column, row)
    schedule.reorder(y, high, wide, *inner)
    schedule.bind(y, "thread.y")
    for loop in (high, wide):
        schedule.unroll(loop)
    return inner[0], ldmatrix_name(role, shape, instruction.lhs)


# -- what the lanes of a row have in common


def _share_rows(schedule: Schedule, chain: AttentionChain, new: list[str]) -> list[Call]:
    """Let each of the four lanes that share a row have what the row has: the instructions that combine it. `new`: what merging made."""
    rescaled = [name for name in new if _updates(schedule, name)]
    made = dict.fromkeys(made_by(schedule, name) for name in new if name not in rescaled)
    top, total, inverse = (made_by(schedule, name) for name in (chain.top, chain.total, chain.inverse))
    shared = (top, total, inverse, *made)
    schedule.spread(shared, QUAD)
    schedule.read_copy(chain.powers, top, -1, PAIR)
    schedule.read_copy(chain.final, inverse, _place_of_column(schedule, chain), PAIR)
    for name in rescaled:
        info = block_info(schedule, name)
        (change,) = info.read_buffers
        last = [axis.var for axis in info.block.axes].index(info.writes[0].indices[-1])  # type: ignore[arg-type]
        is_result = info.writes[0].buffer.name == made_by(schedule, chain.weighted)
        schedule.read_copy(name, change.name, last, PAIR if is_result else 1)
        if is_result:
            _rescale_in_lanes(schedule, name)
    return [call for info in block_infos(schedule.func) if (call := _in_quads(schedule, chain, info.name, shared)) is not None]


def _updates(schedule: Schedule, name: str) -> bool:
    info = block_info(schedule, name)
    return bool(info.reads_of(info.writes[0].buffer))


def _place_of_column(schedule: Schedule, chain: AttentionChain) -> int:
    """Which axis of the final block chooses the element of a row."""
    final, weighted = block_info(schedule, chain.final), block_info(schedule, chain.weighted)
    (load,) = final.reads_of(weighted.writes[0].buffer)
    return [axis.var for axis in final.block.axes].index(load.indices[-1])  # type: ignore[arg-type]


def _in_quads(schedule: Schedule, chain: AttentionChain, name: str, shared: tuple[str, ...]) -> Call | None:
    """Let lanes compute what is shared by those of a row, if a block does: the instruction, where one combines it."""
    info = block_info(schedule, name)
    if not info.writes or info.writes[0].buffer.name not in shared:
        return None
    if name in (chain.top, chain.total):
        *_, high, half, low, _, _ = schedule.loops_of(name)
        call = low, combine_name(str(annotation(info.block, "monoid")), info.writes[0].buffer.dtype)
    else:
        *_, high, half, low, copy = schedule.loops_of(name)
        schedule.reorder(low, copy, high, half)
        schedule.bind(schedule.fuse(low, copy), "thread.x")
        call = None
    for loop in (high, half):
        schedule.unroll(loop)
    return call


def _rescale_in_lanes(schedule: Schedule, name: str) -> None:
    """Let each lane scale the sums that it holds."""
    *_, high, wide, row, column = schedule.loops_of(name)
    half, low = schedule.split(row, (None, ROWS // 2))
    quad, pair = schedule.split(column, (None, PAIR))
    schedule.reorder(low, quad, high, wide, half, pair)
    schedule.bind(schedule.fuse(low, quad), "thread.x")
    for loop in (half, pair):
        schedule.unroll(loop)
