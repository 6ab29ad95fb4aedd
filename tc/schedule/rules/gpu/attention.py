"""Attention on devices: one kernel, in which a block of threads carries a tile of query rows over tiles of keys (online softmax).

    for b in block.x:                               a tile of rows of a head
        for k: scores of the rows and a tile of keys; masks; greatest values so far, and by how much older sums shrink;
               exponentials; their sums; products with the tile of values, added to what is in registers
        sums divided and stored

Scores, their masked forms and the result are in registers of the threads; what a row has in common, and the exponentials, which another
product reads, in shared memory.
Source: Dao et al. (2022, 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from tc.errors import ScheduleError
from tc.ir.expr import Const, Var
from tc.schedule.analysis import block_infos
from tc.schedule.rules.attention import AttentionChain, chain_of, find_chain, inline_around, is_worth, output_loops
from tc.schedule.rules.epilogue import block_info, contraction_of, driving_loops
from tc.schedule.rules.gpu.blocking import USUAL_EXTENT, Blocking
from tc.schedule.rules.gpu.elementwise import schedule_block
from tc.schedule.rules.gpu.product import (
    TiledAxes,
    bind_blocks,
    cut_for_threads,
    fetch_tile,
    lay_out,
    load_fragment,
    loops_by_axis,
    neighbours,
    pad_to_tiles,
    stage_operands,
    store_tile,
    tile_sum,
)
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.device import DeviceFacts

THREAD_ROWS, THREAD_COLUMNS = 16, 16
"""Threads of a block along rows and along columns of its tiles."""

TILES = ((64, 32), (64, 16), (32, 32), (32, 16), (16, 32), (16, 16))
"""Rows of queries, and keys, of a tile."""

DEPTH = 16
"""Elements of queries and keys that are fetched at a time."""

MOST_WIDTH = 256
"""Elements of a row of values at most: what a thread has of results stays in registers."""

PAD_BYTES = 16


Tiling = Callable[[Schedule, AttentionChain, DeviceFacts], str]
"""How a chain is made one launch: the name of the rule; ScheduleError where that is not possible."""


def schedule_tiled_attention(schedule: Schedule, target: Target) -> str | None:
    """Schedule two products with a softmax between them as one launch; what is computed before them may need launches of its own."""
    return tile_chain(schedule, target, _tiled)


def tile_chain(schedule: Schedule, target: Target, tiled: Tiling) -> str | None:
    """Make the attention that a program is one launch; None where it is none, or that is not possible."""
    chain = find_chain(block_infos(schedule.func))
    if target.device is None or chain is None or not is_worth(schedule, chain) or not inline_around(schedule, chain):
        return None
    chain = chain_of(block_infos(schedule.func))
    row, _, _ = output_loops(schedule, chain)
    if row is None:
        return None
    others = [info.name for info in block_infos(schedule.func) if info.name not in vars(chain).values()]
    rule = schedule.attempt(partial(tiled, schedule, chain, target.device))
    if rule is not None:
        for name in others:
            schedule_block(schedule, name, target)
    return rule


@dataclass(frozen=True)
class AttentionTile:
    """Sizes of a block's tiles: rows of queries, keys, elements of queries and keys at a time, and elements of values."""

    rows: int
    keys: int
    depth: int
    width: int

    def shared_bytes(self, size: int) -> int:
        """Of operands, exponentials, and what rows have in common, by the size of a number."""
        fetched = self.depth * (self.rows + self.keys) + self.keys * self.width
        return size * (fetched + self.keys * self.rows + (2 * THREAD_COLUMNS + 6) * self.rows) + PAD_BYTES * (3 * self.keys + self.depth)


def _tiled(schedule: Schedule, chain: AttentionChain, device: DeviceFacts) -> str:
    scores, weighted = contraction_of(schedule, chain.scores), contraction_of(schedule, chain.weighted)
    tile = _choose_tile(schedule, chain, device)
    axes, last = _axes(schedule, chain, tile)
    result, operands = pad_to_tiles(schedule, chain.scores, axes, stage_operands(schedule, scores))
    final_result, (powers, values) = pad_to_tiles(schedule, chain.weighted, last, stage_operands(schedule, weighted))
    for block in (result, final_result):
        if block is not None:
            schedule.compute_inline(block)
    heads = len(scores.info.spatial_axes) - 2
    schedule.set_scope(made_by(schedule, chain.weighted), "local")
    loops = loops_by_axis(schedule, chain.weighted, chain.final)
    _in_registers(schedule, chain)
    for name, copies in ((chain.scores, operands), (chain.weighted, (powers, values))):
        for copy in copies:
            lay_out_heads_first(schedule, name, copy)
    fragments = [lay_out(schedule, chain.scores, copy, axes) for copy in operands]
    weights = [lay_out(schedule, chain.weighted, copy, last) for copy in (powers, values)]
    place, parts = bind_blocks(schedule, chain.final, last, loops, neighbours(tile.width // THREAD_COLUMNS), is_symbolic(schedule))
    compute_in_block(schedule, chain.weighted, place, heads)
    stage, steps = tile_sum(schedule, chain.weighted, replace(last, batch=()), place)
    merged = [stage]
    for fragment, step in zip(weights, steps, strict=True):
        load_fragment(schedule, fragment, step)
    fetch_tile(schedule, values, stage, last)
    for name in (powers, chain.inverse, chain.total, chain.powers, chain.top, chain.masked, chain.scores):
        compute_in_block(schedule, name, place, heads)
    merged += [_tile_keys(schedule, name, place, tile) for name in (chain.masked, chain.powers, powers)]
    merged += [_reduce_rows(schedule, name, place, tile) for name in (chain.top, chain.total)]
    _bind_rows(schedule, chain.inverse, place, tile)
    merged.append(outermost_keys(schedule, chain.scores, place, tile.keys))
    stage, steps = tile_sum(schedule, chain.scores, replace(axes, batch=()), merged[-1])
    for fragment, step in zip(fragments, steps, strict=True):
        load_fragment(schedule, fragment, step)
    for copy in operands:
        fetch_tile(schedule, copy, stage, axes)
    store_tile(schedule, last, parts)
    schedule.merge_online(chain.top, *merged)
    return "tiled attention"


# -- sizes


def _choose_tile(schedule: Schedule, chain: AttentionChain, device: DeviceFacts) -> AttentionTile:
    """Ask for the sizes of tiles: by default the largest that shared memory holds and that has few rows more than the problem."""
    info = block_info(schedule, chain.weighted)
    sizes = {axis.var: axis.extent for axis in info.block.axes}
    rows, width = (sizes[axis] for axis in info.spatial_axes[-2:])
    number = info.writes[0].buffer.dtype.size_bytes
    if not isinstance(width, Const) or width.value > MOST_WIDTH:
        raise ScheduleError(f"block {chain.weighted}: rows of values are too long, or of no known length")
    whole = -(-int(width.value) // THREAD_COLUMNS) * THREAD_COLUMNS
    limit = device.static_shared_bytes_per_block
    found = [
        tile
        for tile in (AttentionTile(*size, DEPTH, whole) for size in TILES)
        if tile.shared_bytes(number) <= limit and (tile.rows == 16 or not isinstance(rows, Const) or tile.rows < 2 * rows.value)
    ]
    if not found:
        raise ScheduleError(f"block {chain.weighted}: shared memory holds no tile of rows of {whole} values")
    options = [(tile.rows, tile.keys) for tile in found]
    usual = first_with_enough_blocks(schedule, chain, [tile.rows for tile in found], device)
    size = schedule.choose(chain.weighted, "tile", options, options[usual], ordered=False)
    return AttentionTile(*size, DEPTH, whole)


def first_with_enough_blocks(schedule: Schedule, chain: AttentionChain, rows: Sequence[int], device: DeviceFacts) -> int:
    """Which of tiles of so many rows is the first with a block for each processor; the first of the smallest where none has."""
    *lead, queries, _ = (axis.extent for axis in block_info(schedule, chain.scores).block.axes if axis.var in _spatial(schedule, chain))
    heads = prod(int(extent.value) if isinstance(extent, Const) else 1 for extent in lead)
    number = int(queries.value) if isinstance(queries, Const) else USUAL_EXTENT
    enough = (k for k, size in enumerate(rows) if heads * -(-number // size) >= device.processors)
    return next(enough, rows.index(min(rows)))


def _spatial(schedule: Schedule, chain: AttentionChain) -> tuple[Var, ...]:
    return block_info(schedule, chain.scores).spatial_axes


def _axes(schedule: Schedule, chain: AttentionChain, tile: AttentionTile) -> tuple[TiledAxes, TiledAxes]:
    """The axes of both products by role."""
    made = []
    for name, columns, depth in ((chain.scores, tile.keys, tile.depth), (chain.weighted, tile.width, tile.keys)):
        info = block_info(schedule, name)
        *batch, row, column = info.spatial_axes
        (term,) = info.reduction_axes
        rows, own = (tile.rows, tile.rows // THREAD_ROWS), (columns, columns // THREAD_COLUMNS)
        blocking = Blocking(tile.rows, columns, rows[1], own[1], depth)
        made.append(TiledAxes(tuple(batch), {row: rows}, {column: own}, {term: depth}, blocking))
    return made[0], made[1]


def is_symbolic(schedule: Schedule) -> bool:
    return not all(isinstance(axis.extent, Const) for info in block_infos(schedule.func) for axis in info.block.axes)


# -- stages of a tile


def made_by(schedule: Schedule, name: str) -> str:
    return block_info(schedule, name).writes[0].buffer.name


def lay_out_heads_first(schedule: Schedule, name: str, copy: str) -> None:
    """Lay a copy out so that what chooses a head, of which a block of threads has one, stands in front, whatever the operand's order."""
    info = block_info(schedule, name)
    buffer = block_info(schedule, copy).writes[0].buffer
    (load,) = info.reads_of(buffer)
    inside = (*info.spatial_axes[-2:], *info.reduction_axes)
    names = [f"a{k}" for k in range(len(load.indices))]
    heads = [each for each, index in zip(names, load.indices, strict=True) if index not in inside]
    order = [*heads, *(each for each in names if each not in heads)]
    if order != names:
        schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join(order)}")


def _in_registers(schedule: Schedule, chain: AttentionChain) -> None:
    """Say where each stage is kept."""
    for name in (chain.scores, chain.masked, chain.powers):
        schedule.set_scope(made_by(schedule, name), "local")
    for name in (chain.top, chain.total, chain.inverse):
        schedule.set_scope(made_by(schedule, name), "shared")


def compute_in_block(schedule: Schedule, name: str, place: str, heads: int) -> None:
    """Compute a block's part for a block of threads, without loops over its first axes, which choose the one head."""
    schedule.compute_at(name, place)
    info, inside = block_info(schedule, name), list(schedule.loops_of(name))
    inside = inside[inside.index(place) + 1 :]
    axes = tuple(axis.var for axis in info.block.axes[:heads])
    for loop in driving_loops(info, inside, axes):
        schedule.drop_unit_loop(loop)


def outermost_keys(schedule: Schedule, name: str, place: str, keys: int) -> str:
    """Cut the keys of the scores in tiles, these outermost; the loop over tiles."""
    info, inside = block_info(schedule, name), list(schedule.loops_of(name))
    inside = inside[inside.index(place) + 1 :]
    (column,) = driving_loops(info, inside, info.spatial_axes[-1:])
    around, part = schedule.split(column, keys)
    schedule.reorder(around, *(part if loop == column else loop for loop in inside))
    return around


@dataclass(frozen=True)
class ThreadLoops:
    """The loops of a block of rows and keys: over `tiles` of keys, over threads along rows, `y`, and keys, `x`, and a thread's `own`."""

    tiles: str
    y: str
    x: str
    own: tuple[str, ...]


def _cut(schedule: Schedule, name: str, place: str, tile: AttentionTile) -> ThreadLoops:
    """Cut rows and keys of a block, its last axes, among threads as the sums of the scores are."""
    info, inside = block_info(schedule, name), list(schedule.loops_of(name))
    inside = inside[inside.index(place) + 1 :]
    row, column = (driving_loops(info, inside, (axis.var,))[0] for axis in info.block.axes[-2:])
    tiles, part = schedule.split(column, tile.keys)
    y, rows = cut_for_threads(schedule, row, tile.rows // THREAD_ROWS)
    own = tile.keys // THREAD_COLUMNS
    x, columns = cut_for_threads(schedule, part, own, neighbours(own))
    return ThreadLoops(tiles, y, x, (*rows, *columns))


def _bind(schedule: Schedule, loops: ThreadLoops) -> None:
    schedule.reorder(loops.tiles, loops.y, loops.x, *loops.own)
    schedule.bind(loops.y, "thread.y")
    schedule.bind(loops.x, "thread.x")
    for loop in loops.own:
        schedule.unroll(loop)


def _tile_keys(schedule: Schedule, name: str, place: str, tile: AttentionTile) -> str:
    """Let each thread do an elementwise block for the scores that it has; the loop over tiles of keys."""
    loops = _cut(schedule, name, place, tile)
    _bind(schedule, loops)
    return loops.tiles


def _reduce_rows(schedule: Schedule, name: str, place: str, tile: AttentionTile) -> str:
    """Reduce along the keys: each thread those that it has, then one thread for each row; the loop over tiles of keys."""
    loops = _cut(schedule, name, place, tile)
    part = schedule.rfactor(name, loops.x)
    schedule.set_scope(made_by(schedule, part), "shared")
    _bind(schedule, loops)
    schedule.decompose_reduction(part, loops.tiles)
    _bind_rows(schedule, name, place, tile)
    return loops.tiles


def _bind_rows(schedule: Schedule, name: str, place: str, tile: AttentionTile) -> None:
    """A thread for each row of a block that makes one number of it."""
    info, inside = block_info(schedule, name), list(schedule.loops_of(name))
    inside = inside[inside.index(place) + 1 :]
    rows = driving_loops(info, inside, info.spatial_axes[-1:])
    if len(rows) == 1:
        rows = list(schedule.split(rows[0], tile.rows // THREAD_ROWS))
    for loop, axis in zip(rows, ("thread.y", "thread.x"), strict=True):
        schedule.bind(loop, axis)
    for loop in driving_loops(info, inside, info.reduction_axes):
        schedule.decompose_reduction(name, loop)
