"""Winograd convolution: transforms of rows inside transforms of columns, one matrix product for each place of a tile, and back.

The three parts are parallel programs one after the other. What a transform makes of one row of tiles stays in the first cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.schedule.analysis import BlockInfo, as_contraction, block_infos, consumers, producer
from tc.schedule.rules.common import divisors, extent_value, known_product, set_parallel
from tc.schedule.rules.contraction import schedule_product
from tc.schedule.rules.epilogue import block_info, driven_spatial
from tc.schedule.step import Schedule
from tc.target import Target

LONGEST_SUM = 16
"""Channels summed at once. What a sum loses by rounding is multiplied by the transform back; with sums as short as these, tiles of 4
err no more than direct sums do, at the price of a fiftieth of the time (`tc.ops.winograd` has the errors)."""


@dataclass(frozen=True)
class Chain:
    """Names of the blocks: padding, transform of rows and of columns, products, transform back of rows; and all that follows."""

    pad: str
    rows: str
    tiles: str
    products: str
    back: str
    after: tuple[str, ...]


def schedule_winograd(schedule: Schedule, target: Target) -> str | None:
    """Schedule a Winograd convolution and the elementwise blocks that follow it."""
    chain = find_chain(block_infos(schedule.func))
    if chain is None:
        return None
    for name in chain.after[:-1]:
        try:
            schedule.compute_inline(name)
        except ScheduleError:
            return None
    _schedule_tiles(schedule, chain)
    schedule.cache_write(chain.products, "register")
    schedule_product(schedule, chain.products, f"{chain.products}_copy", target, LONGEST_SUM)
    _schedule_back(schedule, chain)
    return "winograd"


def find_chain(infos: list[BlockInfo]) -> Chain | None:
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
    few = ((tiles, 5), (rows, 5), (sums[0], 5), (back, 5), (infos[-1], 4))  # axes of one iteration have no loop
    if any(len(driven_spatial(info)) < count for info, count in few):
        return None
    if infos[:place] != [pad, rows, tiles, sums[0]] or not after or not all(i.is_spatial for i in infos if i is not sums[0]):
        return None
    return Chain(pad.name, rows.name, tiles.name, sums[0].name, back.name, after)


def _producer_of_many(infos: list[BlockInfo], reader: BlockInfo | None) -> BlockInfo | None:
    """What makes the one buffer that a block reads in three or more places."""
    if reader is None:
        return None
    many = [buffer for buffer in reader.read_buffers if len(reader.reads_of(buffer)) >= 3]
    return producer(infos, many[0]) if len(many) == 1 else None


def _only(found: list[BlockInfo]) -> BlockInfo | None:
    return found[0] if len(found) == 1 else None


def _schedule_tiles(schedule: Schedule, chain: Chain) -> None:
    """For each block of channels and row of tiles: pad and transform the rows, then the columns."""
    s = schedule
    *lead, down, across, channels, tile, lane = s.loops_of(chain.tiles)
    wide, tiles = _tiles_across(s, chain), extent_value(s, tile)
    if wide > 1 and tiles is not None and wide != tiles:
        wide = s.choose("tiles/together", [size for size in divisors(tiles) if size % wide == 0], wide)
    if wide > 1 and wide != tiles:
        row, tile = s.split(tile, wide)
        outer = [*lead, channels, row]
    else:
        outer = [*lead, channels]
    s.reorder(*outer, tile, down, across, lane)
    s.unroll(down)
    s.unroll(across)
    s.vectorize(lane)
    work = known_product(s, [tile, down, across, lane], 64) * 4
    anchor = set_parallel(s, outer, work)
    assert anchor is not None
    s.compute_at(chain.rows, anchor)
    inside = _inside(s, chain.rows, anchor)
    *rest, lane = inside
    (transformed,) = [loop for loop in rest if extent_value(s, loop) == extent_value(s, down)][:1]
    others = [loop for loop in rest if loop != transformed]
    s.reorder(*others, transformed, lane)
    s.unroll(transformed)
    s.vectorize(lane)
    s.compute_at(chain.pad, anchor)
    s.vectorize(_inside(s, chain.pad, anchor)[-1])


def _tiles_across(schedule: Schedule, chain: Chain) -> int:
    """How many tiles stand side by side: the padded rows are `tile * count + 2` wide."""
    size = extent_value(schedule, schedule.loops_of(chain.tiles)[-5]) or 0
    width = extent_value(schedule, schedule.loops_of(chain.rows)[-2]) or 0
    return max(1, (width - 2) // max(1, size - 2))


def _inside(schedule: Schedule, block: str, anchor: str) -> list[str]:
    """The loops of a block inside of `anchor`, without those of one iteration."""
    loops = schedule.loops_of(block)
    return [loop for loop in loops[loops.index(anchor) + 1 :] if extent_value(schedule, loop) != 1]


def _schedule_back(schedule: Schedule, chain: Chain) -> None:
    """For each block of output channels and row of tiles: transform rows back, then columns, and store."""
    s = schedule
    final = chain.after[-1]
    size = len(block_info(s, chain.back).reads_of(_read_of(s, chain.back, chain.products))) - 2
    *lead, high, wide, lane = s.loops_of(final)
    row, p = s.split(high, size)
    column, q = s.split(wide, size)
    for loop in (row, column):
        s.annotate_loop(loop, "partition", 1)
    s.reorder(*lead, row, column, p, q, lane)
    s.unroll(p)
    s.unroll(q)
    s.vectorize(lane)
    work = known_product(s, [column, p, q, lane], 64) * 4
    anchor = set_parallel(s, [*lead, row], work)
    assert anchor is not None
    s.compute_at(chain.back, anchor)
    *rest, lane = _inside(s, chain.back, anchor)
    transformed = next(loop for loop in rest if extent_value(s, loop) == size)
    others = [loop for loop in rest if loop != transformed]
    s.reorder(*others, transformed, lane)
    s.unroll(transformed)
    s.vectorize(lane)


def _read_of(schedule: Schedule, reader: str, writer: str) -> object:
    """The buffer that one block reads and another, or the copy of its result, writes."""
    written = {
        info.writes[0].buffer for info in block_infos(schedule.func) if info.name in (writer, f"{writer}_copy")
    }
    return next(buffer for buffer in block_info(schedule, reader).read_buffers if buffer in written)
