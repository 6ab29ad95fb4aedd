"""Winograd convolution: transforms of rows inside transforms of columns, one matrix product for each place of a tile, and back.

What a transform makes of one row of tiles stays in the first cache. Where it pays, bands of rows of tiles go through all stages one
after the other, so that what is between the stages stays in a cache; else the stages are parallel programs one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tc.ir.expr import Const
from tc.schedule.analysis import BlockInfo, as_contraction, block_infos, consumers, producer
from tc.schedule.rules.common import divisors, extent_value, known_product, loops_inside, set_parallel
from tc.schedule.rules.contraction import schedule_product
from tc.schedule.rules.epilogue import block_info, driven_spatial, driving_loops, inline_chain
from tc.schedule.rules.tile import peel, unroll
from tc.schedule.rules.winograd_cost import WinogradShape
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.machine import machine_of

LONGEST_SUM = {2: 64, 4: 32}
"""Channels summed at once, by the size of the tiles. What a sum loses by rounding is multiplied by the transform back; with sums as short
as these, tiles of 4 err no more than direct sums do, at the price of 3 % of the time (`tc.ops.winograd` has the errors)."""


@dataclass(frozen=True)
class WinogradChain:
    """Names of the blocks: padding, transform of rows and of columns, products, transform back of rows; and all that follows.

    `beside`: what precedes the products and is read by what follows alone, such as a sum's other operand that is cast.
    """

    pad: str
    rows: str
    tiles: str
    products: str
    back: str
    after: tuple[str, ...]
    beside: tuple[str, ...] = ()


def schedule_winograd(schedule: Schedule, target: Target) -> str | None:
    """Schedule a Winograd convolution and the elementwise blocks that follow it."""
    chain = find_chain(block_infos(schedule.func))
    if chain is None:
        return None
    if inline_chain(schedule, (*chain.beside, *chain.after)) is None:
        return None
    schedule.cache_write(chain.products, "register")
    copy = f"{chain.products}_copy"
    band = _schedule_result(schedule, chain, target)
    if band is not None:
        schedule.compute_at(copy, band)
    schedule_product(schedule, chain.products, copy, target, LONGEST_SUM[_tile_size(schedule, chain)], band)
    if band is not None:
        schedule.compute_at(chain.tiles, band)
    _schedule_tiles(schedule, chain, band)
    return "winograd"


def find_chain(infos: list[BlockInfo]) -> WinogradChain | None:
    """The blocks of a Winograd convolution by what they read and write, or None."""
    sums = [info for info in infos if info.reduction_axes]
    if len(sums) != 1 or any(info.is_opaque or len(info.writes) != 1 for info in infos):
        return None
    contraction = as_contraction(sums[0])
    if contraction is None or len(contraction.batch) < 2:
        return None
    tiles = producer(infos, contraction.lhs.buffer)
    rows = _producer_of_many(infos, tiles)
    pad = _producer_of_many(infos, rows)
    back = _only(list(consumers(infos, sums[0].writes[0].buffer)))
    if tiles is None or rows is None or pad is None or back is None or len(back.reads_of(sums[0].writes[0].buffer)) < 3:
        return None
    place = infos.index(back)
    after = tuple(info.name for info in infos[place + 1 :])
    few = ((rows, 5), (sums[0], 5), (back, 5), (infos[-1], 4))  # axes of one iteration have no loop
    if any(len(driven_spatial(info)) < count for info, count in few) or not {*tiles.spatial_axes[-5:]} <= {*driven_spatial(tiles)}:
        return None
    stages = [pad, rows, tiles, sums[0]]
    beside = [info for info in infos[:place] if info not in stages]
    needed = {buffer for info in stages for buffer in info.read_buffers}
    if [info for info in infos[:place] if info in stages] != stages or any(set(info.written_buffers) & needed for info in beside):
        return None
    if not after or not all(i.is_spatial for i in infos if i is not sums[0]):
        return None
    return WinogradChain(pad.name, rows.name, tiles.name, sums[0].name, back.name, after, tuple(info.name for info in beside))


def _producer_of_many(infos: list[BlockInfo], reader: BlockInfo | None) -> BlockInfo | None:
    """What makes the one buffer that a block reads in three or more places."""
    if reader is None:
        return None
    many = [buffer for buffer in reader.read_buffers if len(reader.reads_of(buffer)) >= 3]
    return producer(infos, many[0]) if len(many) == 1 else None


def _only(found: list[BlockInfo]) -> BlockInfo | None:
    return found[0] if len(found) == 1 else None


def _schedule_tiles(schedule: Schedule, chain: WinogradChain, band: str | None) -> None:
    """For each block of channels and row of tiles: pad and transform the rows, then the columns."""
    s = schedule
    *lead, down, across, channels, tile, lane = loops_inside(s, chain.tiles, band)
    wide, tiles = _tiles_across(s, chain), extent_value(s, tile)
    if wide > 1 and tiles is not None and wide != tiles and band is None:
        wide = s.choose(chain.tiles, "tiles_together", [size for size in divisors(tiles) if size % wide == 0], wide)
    if wide > 1 and wide != tiles:
        row, tile = s.split(tile, wide)
        outer = [*lead, channels, row]
    else:
        outer = [*lead, channels]
    s.reorder(*outer, tile, down, across, lane)
    unroll(s, [down, across])
    s.vectorize(lane)
    anchor = outer[-1]
    if band is None:
        set_parallel(s, chain.tiles, outer, known_product(s, [tile, down, across, lane], 64) * 4)
    s.compute_at(chain.rows, anchor)
    _unroll_transform(s, chain.rows, anchor, extent_value(s, down))
    s.compute_at(chain.pad, anchor)
    s.vectorize(loops_inside(s, chain.pad, anchor)[-1])


def _unroll_transform(schedule: Schedule, name: str, anchor: str, size: int | None) -> None:
    """Run a transform of rows in vectors, its loop of `size` iterations, each another sum, unrolled inside all others."""
    *rest, lane = loops_inside(schedule, name, anchor)
    transformed = next(loop for loop in rest if extent_value(schedule, loop) == size)
    schedule.reorder(*(loop for loop in rest if loop != transformed), transformed, lane)
    schedule.unroll(transformed)
    schedule.vectorize(lane)


def _tiles_across(schedule: Schedule, chain: WinogradChain) -> int:
    """How many tiles stand side by side: the padded rows are `tile * count + 2` wide."""
    width = extent_value(schedule, schedule.loops_of(chain.rows)[-2]) or 0
    return max(1, (width - 2) // _tile_size(schedule, chain))


def _schedule_result(schedule: Schedule, chain: WinogradChain, target: Target) -> str | None:
    """For each block of output channels and row of tiles: transform rows back, then columns, and store. Returns the loop over bands,
    if all stages are to be inside of one."""
    s = schedule
    final = chain.after[-1]
    size = _tile_size(s, chain)
    *lead, high, wide, lane = s.loops_of(final)
    info = block_info(s, final)
    blocks = driving_loops(info, lead, info.spatial_axes[1:2])
    planes = [loop for loop in lead if loop not in blocks]
    row, p = s.split(high, size)
    column, q = s.split(wide, size)
    peel(s, column)
    whole, height = _choose_height(s, chain, target)
    outer, inside = [*planes, *blocks, row], [column, p, q, lane]
    if height is not None:
        band, row = s.split(row, height)
        outer, inside = [*planes, band], [*blocks, row, *inside]
    else:
        peel(s, row)
        if planes and not whole:
            outer, inside = planes, [*blocks, row, *inside]
    s.reorder(*outer, *inside)
    unroll(s, [p, q])
    s.vectorize(lane)
    set_parallel(s, final, outer, known_product(s, inside, 64) * 4)
    s.compute_at(chain.back, row)
    _unroll_transform(s, chain.back, row, size)
    return None if row == outer[-1] else outer[-1]


def _tile_size(schedule: Schedule, chain: WinogradChain) -> int:
    """m of F(m): transformed tiles, [..., m + 2, m + 2, channels, tile, lane], are of m + 2 by m + 2 numbers."""
    size = block_info(schedule, chain.tiles).writes[0].buffer.shape[-4]
    assert isinstance(size, Const), "the size of tiles is a number"
    return int(size.value) - 2


def _choose_height(schedule: Schedule, chain: WinogradChain, target: Target) -> tuple[bool, int | None]:
    """Whether each stage does all rows of tiles before the next; how many rows, if not a plane's, go through all stages at a time.

    Symbolic samples count as one. Of symbolic volumes a plane goes through at a time: each is transformed for every tap along the other
    axes, which for all at once takes many times the volume's room.
    """
    s = schedule
    names = (chain.tiles, chain.rows, f"{chain.products}_copy")
    shapes = [block_info(s, name).writes[0].buffer.shape for name in names]
    outer = shapes[0][1:-5]
    whole = all(isinstance(dim, Const) for dim in outer)
    if not all(isinstance(dim, Const) for shape in shapes for dim in shape[1 + len(outer) :]):
        return not outer, None
    (*planes, _, _, inputs, tiles, block), (*_, rows, _, _), (*_, outputs, _, _) = (
        [int(dim.value) if isinstance(dim, Const) else 1 for dim in shape] for shape in shapes
    )
    samples = prod(planes)
    shape = WinogradShape(_tile_size(s, chain), samples, inputs, outputs, rows, tiles // rows, block, target.lanes(32), machine_of(target))
    best = shape.best_height(target.l2_bytes, target.num_vector_registers, target.cores)
    height = s.choose(chain.after[-1], "band_rows", shape.heights, best)
    return whole and height == shape.all_rows, height if height < rows else None
