"""Reductions of which all threads of a block do a part: partial results of each thread, then a fixed tree in shared memory.

    for i: for k: s[i] += A[i, k]    =>    for b in block.x:
                                               for y, x in threads: for o: P[x, y] (+)= A[b * R + y, o * T + x]
                                               for y, x in threads(T / 8): Q[x, y] (+)= P[o * T / 8 + x, y]
                                               for y in threads: s[b * R + y] (+)= Q[o, y]

The order of additions follows from the schedule alone, and errors grow with the depth of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from tc.errors import ScheduleError
from tc.ir.arith import prove
from tc.ir.expr import Const, Var, equal
from tc.ir.intrinsic import has_all_of_one
from tc.ir.lane_exchange import FEATURES, WARP_LANES
from tc.ir.loop import LoopKind
from tc.ir.uses import reads_memory, variables
from tc.schedule.analysis import BlockInfo
from tc.schedule.rules.common import extent_value, loads_of, loops_inside
from tc.schedule.rules.epilogue import block_info, driving_loops
from tc.schedule.rules.gpu.elementwise import is_aligned, moving_along, widest_lanes
from tc.schedule.rules.gpu.launch import THREADS
from tc.schedule.rules.reduction import keeps_last_axis
from tc.schedule.step import Schedule
from tc.schedule.tree import facts_at, find_loop
from tc.target.device import DeviceFacts

FAN_IN = 8
"""Partial results that one thread combines in a step of the tree."""

LEAST_TERMS = 32
"""Terms of a sum at least of which several threads do a part."""

MOST_LANES = 256
"""Threads that share a row at most."""

USUAL_TERMS = 4096
"""What a symbolic number of terms is taken to be."""

BUSY_THREADS = 1024
"""Threads of a processor that read enough at a time to keep its memory busy."""

COLUMN_LANES = 32
"""Neighbouring results that the threads of a warp reduce, where these lie side by side in memory and the terms of one do not."""


@dataclass(frozen=True)
class RowThreads:
    """How a block of threads shares rows: `rows` of them at a time, `lanes` threads each, which take `vector` neighbouring terms at once,
    or so many terms of `together` neighbouring rows. `along`: the axis of the threads that share a row, the other one is of rows.
    `halves`: the lanes of a warp give each other what they have, so that half as many partial results are left by each step."""

    rows: int
    lanes: int
    vector: int
    along: str
    together: int = 1
    halves: bool = False

    @property
    def across(self) -> str:
        return "thread.y" if self.along == "thread.x" else "thread.x"


def terms_of(info: BlockInfo) -> int:
    """Terms of one result; symbolic ones as they usually are."""
    total = 1
    for axis in info.block.axes:
        if axis.var in info.reduction_axes:
            total *= int(axis.extent.value) if isinstance(axis.extent, Const) else USUAL_TERMS
    return total


def is_even(schedule: Schedule, info: BlockInfo) -> bool:
    """Whether dims alone say how many results and terms there are."""
    dims = frozenset(schedule.func.dims)
    return all(variables(axis.extent) <= dims and not reads_memory(axis.extent) for axis in info.block.axes)


def count_rows(schedule: Schedule, rows: list[str], device: DeviceFacts) -> int:
    """How many rows loops make, symbolic ones enough to keep the device busy. ScheduleError for none: nothing is asked about these."""
    extents = [extent_value(schedule, loop) for loop in rows]
    if 0 in extents:
        raise ScheduleError("there are no rows")
    return prod(extent or device.processors for extent in extents)


def choose_threads(schedule: Schedule, info: BlockInfo, row: int | None, rows: int, device: DeviceFacts) -> RowThreads:
    """How many rows of a reduction a block does, by the extent of the innermost loop over rows and by the number of all rows."""
    if rows == 0:
        raise ScheduleError(f"block {info.name} has no rows")
    terms = terms_of(info)
    across = keeps_last_axis(info)
    vector, together = (1, _rows_together(schedule, info)) if across else (vector_of(schedule, info), 1)
    if across:
        few = min(COLUMN_LANES, _power(row or COLUMN_LANES))
        side = few // together
        wanted = _power(-(-BUSY_THREADS * device.processors // max(rows, 1)))
        lanes = max(2, min(max(THREADS // side, wanted), 1024 // side, _power(-(-terms // FAN_IN))))
    else:
        lanes = max(4, min(MOST_LANES, _power(-(-terms // (2 * vector)))))
        few = min(THREADS // lanes, _power(row or THREADS))
        while few > 1 and few * lanes > WARP_LANES and -(-rows // few) < device.processors:  # lanes of a warp cost nothing
            few //= 2
    lanes = schedule.choose(info.name, "lanes", [size for size in (2, 4, 8, 16, 32, 64, 128, 256) if size * few // together <= 1024], lanes)
    halves = not across and has_all_of_one(device.features, FEATURES) and few * lanes % WARP_LANES == 0
    return RowThreads(few, lanes, vector, "thread.y" if across else "thread.x", together, halves)


def _power(number: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, number - 1).bit_length()


def _rows_together(schedule: Schedule, info: BlockInfo) -> int:
    """Neighbouring rows of which a thread reads terms at once: terms of these lie side by side, aligned; else 1."""
    axis = next((axis for axis in reversed(info.block.axes) if axis.var in info.spatial_axes and isinstance(axis.value, Var)), None)
    moving = [] if axis is None else moving_along(loads_of(info), axis.var)
    if axis is None or not moving or not isinstance(axis.extent, Const):
        return 1
    lanes = widest_lanes(moving)
    while lanes > 1 and not (int(axis.extent.value) % COLUMN_LANES == 0 and all(is_aligned(load, axis.var, lanes) for load in moving)):
        lanes //= 2
    return lanes


def vector_of(schedule: Schedule, info: BlockInfo) -> int:
    """Neighbouring terms that a thread reads at once: the last axis is of terms, and reads are aligned; else 1."""
    loads = loads_of(info)
    loop, *_ = reversed(schedule.loops_of(info.name))
    axis = next((axis.var for axis in info.block.axes if isinstance(axis.value, Var) and axis.value.name == loop), None)
    moving = [] if axis is None else moving_along(loads, axis)
    if axis is None or axis not in info.reduction_axes or not moving:
        return 1
    extent, facts = schedule.extent_of(loop), facts_at(schedule.func, find_loop(schedule.func, loop))
    lanes = widest_lanes(moving)
    while lanes > 1 and not (prove(equal(extent % lanes, 0), facts) is True and all(is_aligned(load, axis, lanes) for load in moving)):
        lanes //= 2
    return max(lanes, 1)


# -- taking a reduction apart


@dataclass(frozen=True)
class RowPart:
    """A block of a reduction that was taken apart: how many threads of a row have it (0: one of them), whether each has a vector, and
    whether it reads what is reduced."""

    name: str
    lanes: int
    is_vector: bool = False
    is_first: bool = False

    @property
    def leading(self) -> int:
        """How many of its axes count threads and lanes of vectors; the results' own follow."""
        return bool(self.lanes) + self.is_vector


def take_apart(schedule: Schedule, name: str, threads: RowThreads) -> list[RowPart]:
    """Partial results of each thread, then of fewer and fewer threads; the last block makes the results, and keeps the name."""
    info, loops = block_info(schedule, name), list(schedule.loops_of(name))
    depth = driving_loops(info, loops, info.reduction_axes)
    schedule.reorder(*(loop for loop in loops if loop not in depth), *depth)
    parts, vector = [], None
    if threads.vector > 1:
        last, vector = schedule.split(depth[-1], threads.vector)
        depth = [*depth[:-1], last]
    _, lane = schedule.split(schedule.fuse(*depth), threads.lanes)
    partial = schedule.rfactor(name, lane)
    if vector is not None:
        parts.append(RowPart(schedule.rfactor(partial, vector), threads.lanes, is_vector=True, is_first=True))
    parts.append(RowPart(partial, threads.lanes, is_first=not parts))
    for left in _steps(threads):
        _, lane = schedule.split(schedule.loops_of(name)[-1], left)
        parts.append(RowPart(schedule.rfactor(name, lane), left))
    return [*parts, RowPart(name, 0)]


def _steps(threads: RowThreads) -> Iterator[int]:
    """The partial results of a row that each step of the tree leaves, but for the last one."""
    left = threads.lanes
    while left > (2 if threads.halves else FAN_IN):
        left = max(left // FAN_IN, WARP_LANES) if threads.halves and left > WARP_LANES else left // (2 if threads.halves else FAN_IN)
        yield left


def place_part(schedule: Schedule, part: RowPart, place: str, threads: RowThreads) -> None:
    """Compute a part in the loop over blocks, each of its threads at once; sums of what is read from memory stay in registers meanwhile."""
    if part.is_first and not part.is_vector:
        schedule.cache_write(part.name, "local")
        sums, part = part, replace(part, name=f"{part.name}_copy")
        schedule.compute_at(part.name, place)
        _share(schedule, part)
        bind_part(schedule, part, place, threads)
        _sum_in_registers(schedule, sums, part.name, threads)
        return
    schedule.compute_at(part.name, place)
    _share(schedule, part)
    bind_part(schedule, part, place, threads)


def _share(schedule: Schedule, part: RowPart) -> None:
    (buffer,) = block_info(schedule, part.name).written_buffers
    schedule.set_scope(buffer.name, "local" if part.is_vector else "shared")


def _sum_in_registers(schedule: Schedule, part: RowPart, copy: str, threads: RowThreads) -> None:
    """Let a thread add up what it then copies to where others see it."""
    bound = [loop for loop in schedule.loops_of(copy) if find_loop(schedule.func, loop).loop.kind is LoopKind.BOUND]
    schedule.compute_at(part.name, bound[-1])
    info, inside = block_info(schedule, part.name), loops_inside(schedule, part.name, bound[-1])
    steps = driving_loops(info, inside, info.reduction_axes)
    own = [loop for loop in inside if loop not in steps]
    schedule.reorder(*steps, *own)
    if threads.together > 1:
        schedule.vectorize(own[-1])
    if steps:
        schedule.decompose_reduction(part.name, steps[0])


def bind_rows(schedule: Schedule, row: str, threads: RowThreads) -> str | None:
    """Let threads take the rows of a block: the loop over those that one has at once, if these are several."""
    several = None
    if threads.together > 1:
        row, several = schedule.split(row, (None, threads.together))
    schedule.bind(row, threads.across)
    return several


def bind_part(schedule: Schedule, part: RowPart, place: str | None, threads: RowThreads) -> None:
    """Run a part that stands in the loop over blocks with a thread for each of its lanes and rows."""
    info, inside = block_info(schedule, part.name), list(schedule.loops_of(part.name))
    inside = inside[inside.index(place) + 1 :] if place is not None else inside
    axes = info.spatial_axes
    lane = driving_loops(info, inside, axes[part.leading - 1 : part.leading]) if part.lanes else []
    vector = driving_loops(info, inside, axes[:1]) if part.is_vector else []
    own = driving_loops(info, inside, axes[part.leading :])
    rows = [loop for loop in own if extent_value(schedule, loop) != 1]
    if len(rows) > 1 or any(extent_value(schedule, loop) is None for loop in (*rows, *lane)):
        raise ScheduleError(f"block {part.name} has more than rows of one loop")
    rest = [loop for loop in inside if loop not in (*rows, *lane, *vector)]
    schedule.reorder(*rows, *lane, *rest, *vector)
    several = [loop for loop in (bind_rows(schedule, row, threads) for row in rows) if loop is not None]
    for loop in lane:
        schedule.bind(loop, threads.along)
    if several:
        schedule.reorder(*lane, *rest, *several)
        vector = several
    for loop in vector:
        schedule.vectorize(loop)
    if not rows and not lane:
        schedule.bind(own[0] if own else schedule.add_unit_loop(inside[0]), threads.along)
    steps = [loop for loop in rest if loop not in own]
    if steps:
        schedule.decompose_reduction(part.name, steps[0])
    if len(steps) == 1 and (extent_value(schedule, steps[0]) or THREADS) <= FAN_IN:
        schedule.unroll(steps[0])
