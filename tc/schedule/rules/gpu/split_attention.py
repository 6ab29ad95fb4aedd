"""Attention of few query rows on devices: keys cut in parts that blocks of threads do at once, then the parts of each row combined.

    for b in block.x: for p in block.y:          a row of a head, a part of the keys
        scores, a key a thread; masks; the part's greatest score, exponentials relative to it, their sum, and weighted values
    for b in block.x: for t in thread.x:         an element of the result
        the greatest score of all parts; sums of parts, brought to it, added in order; divided and stored

With few rows nothing is used twice: memory is to be busy, and one row of blocks would not keep it so. The parts depend on the schedule
alone, so sums are the same in every run.
Source: Dao, Haziza, Massa, Sizov (2023), Flash-Decoding.
"""

from __future__ import annotations

from functools import partial
from math import prod

from tc.errors import ScheduleError
from tc.ir.expr import Const
from tc.schedule.analysis import axes_in, block_infos
from tc.schedule.rules.attention import AttentionChain, chain_of, find_chain, inline_around, is_worth, output_loops
from tc.schedule.rules.common import extent_value, loads_of
from tc.schedule.rules.epilogue import block_info, driving_loops
from tc.schedule.rules.gpu.attention import made_by
from tc.schedule.rules.gpu.elementwise import is_aligned, schedule_block
from tc.schedule.rules.gpu.launch import THREADS, bind_all
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.device import DeviceFacts

FEW_ROWS = 4
"""Rows of queries up to which each is done by itself."""

LENGTHS = (64, 128, 256)
"""Keys of a part: one for each thread."""

LANES = 16
"""Threads that reduce what a part has, a sixteenth each at most."""

VECTOR_BYTES = 16


def schedule_split_attention(schedule: Schedule, target: Target) -> str | None:
    """Schedule an attention of few rows in two launches; what is computed before it may need launches of its own."""
    chain = find_chain(block_infos(schedule.func))
    if target.device is None or chain is None or not is_worth(schedule, chain) or not inline_around(schedule, chain):
        return None
    chain = chain_of(block_infos(schedule.func))
    row, _, _ = output_loops(schedule, chain)
    if row is not None and (extent_value(schedule, row) or FEW_ROWS + 1) > FEW_ROWS:
        return None
    others = [info.name for info in block_infos(schedule.func) if info.name not in vars(chain).values()]
    rule = schedule.attempt(partial(_split, schedule, chain, target.device))
    if rule is not None:
        for name in others:
            schedule_block(schedule, name, target)
    return rule


def _split(schedule: Schedule, chain: AttentionChain, device: DeviceFacts) -> str:
    length = _choose_length(schedule, chain, device)
    top, total, weighted = (_in_parts(schedule, name, length) for name in (chain.top, chain.total, chain.weighted))
    schedule.rebase_parts(chain.top, length)
    nests = [_cut_keys(schedule, name, length) for name in (chain.scores, chain.masked, chain.powers)]
    nests += [_parts_outermost(schedule, name, columns) for name, columns in ((top, 0), (total, 0), (weighted, 1))]
    if len({len(nest) for nest in nests}) != 1:
        raise ScheduleError(f"block {chain.scores}: the loops around it are not those of all stages")
    for loops in zip(*nests, strict=True):
        schedule.merge_loops(*loops)
    grid = schedule.loops_of(weighted)[: len(nests[0])]
    for loop, axis in zip(grid, ("block.x", "block.y"), strict=False):
        schedule.bind(loop, axis)
    for name in (chain.scores, chain.masked, chain.powers):
        schedule.set_scope(made_by(schedule, name), "shared")
        schedule.bind(_below(schedule, name, grid[-1])[0], "thread.x")
    _read_keys(schedule, chain.scores)
    for name in (top, total):
        _reduce_part(schedule, name, grid[-1])
    _weigh_part(schedule, weighted, grid[-1])
    _combine(schedule, chain)
    return "attention split over keys"


def _choose_length(schedule: Schedule, chain: AttentionChain, device: DeviceFacts) -> int:
    """Ask for the length of parts: by default the longest with which there is a part for each processor."""
    info = block_info(schedule, chain.scores)
    *outer, keys = (axis.extent for axis in info.block.axes if axis.var in info.spatial_axes)
    if not isinstance(keys, Const):
        return schedule.choose(chain.scores, "part", LENGTHS, LENGTHS[-1])
    rows = prod(int(extent.value) for extent in outer if isinstance(extent, Const))
    enough = [length for length in LENGTHS if rows * -(-int(keys.value) // length) >= device.processors]
    return schedule.choose(chain.scores, "part", LENGTHS, max(enough, default=LENGTHS[0]))


def _below(schedule: Schedule, name: str, place: str) -> list[str]:
    inside = list(schedule.loops_of(name))
    return inside[inside.index(place) + 1 :]


def _in_parts(schedule: Schedule, name: str, length: int) -> str:
    """Reduce parts of the keys first; the block that does."""
    info, loops = block_info(schedule, name), list(schedule.loops_of(name))
    (keys,) = driving_loops(info, loops, info.reduction_axes)
    part, _ = schedule.split(keys, length)
    return schedule.rfactor(name, part)


def _cut_keys(schedule: Schedule, name: str, length: int) -> list[str]:
    """Cut the keys of a stage that makes something for each of them; the loops over rows of heads, as one, and over parts."""
    info, loops = block_info(schedule, name), list(schedule.loops_of(name))
    (keys,) = driving_loops(info, loops, info.spatial_axes[-1:])
    rows = driving_loops(info, loops, info.spatial_axes[:-1])
    part, inside = schedule.split(keys, length)
    return _outermost(schedule, rows, part, [inside, *(loop for loop in loops if loop not in (*rows, keys))])


def _parts_outermost(schedule: Schedule, name: str, columns: int) -> list[str]:
    """The same of a stage that makes something of each part, for so many axes besides."""
    info, loops = block_info(schedule, name), list(schedule.loops_of(name))
    (part,) = driving_loops(info, loops, info.spatial_axes[:1])
    rows = driving_loops(info, loops, info.spatial_axes[1 : len(info.spatial_axes) - columns])
    keys = driving_loops(info, loops, info.reduction_axes)
    return _outermost(schedule, rows, part, [*keys, *(loop for loop in loops if loop not in (*rows, part, *keys))])


def _outermost(schedule: Schedule, rows: list[str], part: str, inside: list[str]) -> list[str]:
    schedule.reorder(*rows, part, *inside)
    return [*([schedule.fuse(*rows)] if rows else []), part]


# -- a part


def _read_keys(schedule: Schedule, name: str) -> None:
    """Let each thread read its key by vectors where it lies so in memory."""
    info, loops = block_info(schedule, name), list(schedule.loops_of(name))
    (term,), (depth,) = info.reduction_axes, driving_loops(info, loops, info.reduction_axes)
    key = next(load for load in loads_of(info) if info.spatial_axes[-1] in axes_in(load.indices))
    lanes = VECTOR_BYTES // key.buffer.dtype.size_bytes
    extent = extent_value(schedule, depth)
    if extent is None or extent % lanes or extent == lanes or key.buffer not in schedule.func.buffers or not is_aligned(key, term, lanes):
        schedule.decompose_reduction(name, depth)
        return
    around, inside = schedule.split(depth, lanes)
    schedule.decompose_reduction(name, around)
    copy = schedule.cache_read(name, key.buffer.name, "local")
    schedule.compute_at(copy, around)
    *_, lane = schedule.loops_of(copy)
    schedule.vectorize(lane)
    schedule.unroll(inside)


def _reduce_part(schedule: Schedule, name: str, around: str) -> None:
    """One number of a part: by a few threads, then by one."""
    (keys,) = _below(schedule, name, around)
    steps, lane = schedule.split(keys, LANES)
    part = schedule.rfactor(name, lane)
    schedule.set_scope(made_by(schedule, part), "shared")
    schedule.reorder(lane, steps)
    schedule.bind(lane, "thread.x")
    schedule.decompose_reduction(part, steps)
    (left,) = _below(schedule, name, around)
    schedule.bind(schedule.add_unit_loop(left), "thread.x")
    schedule.decompose_reduction(name, left)


def _weigh_part(schedule: Schedule, name: str, around: str) -> None:
    """The values of a part, weighed: groups of threads take keys of their own, each thread an element of the row."""
    keys, column = _below(schedule, name, around)
    width, length = extent_value(schedule, column), extent_value(schedule, keys)
    if width is None or length is None:
        raise ScheduleError(f"block {name}: rows of values are of no known length")
    groups = 1
    while 2 * groups * width <= THREADS and length % (2 * groups) == 0:
        groups *= 2
    if groups > 1:
        group, keys = schedule.split(keys, (groups, None))
        part = schedule.rfactor(name, group)
        schedule.set_scope(made_by(schedule, part), "shared")
        schedule.reorder(group, column, keys)
        _bind_threads(schedule, schedule.fuse(group, column))
        schedule.decompose_reduction(part, keys)
        column, keys = _below(schedule, name, around)
    else:
        schedule.reorder(column, keys)
    _bind_threads(schedule, column)
    schedule.decompose_reduction(name, keys)


def _bind_threads(schedule: Schedule, loop: str) -> None:
    """A thread for each iteration, or for every so manieth."""
    if (extent_value(schedule, loop) or 0) > THREADS:
        rest, loop = schedule.split(loop, THREADS)
        schedule.reorder(loop, rest)
    schedule.bind(loop, "thread.x")


# -- all parts


def _combine(schedule: Schedule, chain: AttentionChain) -> None:
    """A thread for each element of the result, which goes over the parts of its row in order."""
    thread = bind_all(schedule, schedule.loops_of(chain.final), THREADS)
    for name in (chain.weighted, chain.inverse, chain.total, chain.top):
        schedule.compute_at(name, thread)
        schedule.set_scope(made_by(schedule, name), "local")
