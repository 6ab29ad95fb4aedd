"""Sums and maxima over small windows on devices: depthwise convolutions and pooling.

A thread makes a few neighbours of the result, whose windows overlap: it reads what they all need once, to registers. Where channels lie
side by side threads take vectors of these. What makes the image larger at its ends is computed where it is read.
"""

from __future__ import annotations

from functools import partial
from math import prod

from tc.errors import ScheduleError
from tc.ir.expr import Const, Load
from tc.ir.loop import LoopKind, Store
from tc.ir.uses import variables
from tc.schedule.analysis import BlockInfo, block_infos
from tc.schedule.rules.common import extent_value, is_heavy, loads_of, loops_inside
from tc.schedule.rules.epilogue import block_info, inline_chain
from tc.schedule.rules.gpu.elementwise import is_aligned, stands_alone
from tc.schedule.rules.gpu.launch import THREAD_COUNTS, THREADS, bind_all
from tc.schedule.rules.gpu.product import is_tiled
from tc.schedule.rules.tile import unroll
from tc.schedule.step import Schedule
from tc.schedule.tree import find_loop
from tc.target import Target

MOST_TERMS = 49
"""Of a window: as many loads are code of their own."""

MOST_PRODUCTS = 192
"""Terms of all sums of a thread at most: what it reads for them are registers."""

VECTOR_BYTES = 16
"""What a thread reads or writes at once at most."""

TILES = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4))
"""Neighbours of a thread along the last two axes of an image: rows, and elements of a row."""


def schedule_windows(schedule: Schedule, target: Target) -> str | None:
    """Tile the one sum over windows of a program; None where there is none, or what stands around it cannot be part of its launch."""
    infos = block_infos(schedule.func)
    found = [k for k, info in enumerate(infos) if info.reduction_axes]
    if target.device is None or len(found) != 1 or not all(stands_alone(schedule, info.name) for info in infos):
        return None
    (position,) = found
    before, after = infos[:position], infos[position + 1 :]
    if not all(info.is_spatial for info in (*before, *after)) or not _has_window(infos[position]) or is_tiled(infos[position]):
        return None
    names = [[info.name for info in part] for part in (before, after)]
    return schedule.attempt(partial(_tiled, schedule, infos[position].name, *names))


def _has_window(info: BlockInfo) -> bool:
    """Whether neighbours read windows that overlap, of a known number of elements, not large."""
    extents = [axis.extent for axis in info.block.axes if axis.var in info.reduction_axes]
    if not all(isinstance(extent, Const) for extent in extents):
        return False
    spatial, reduced = {*info.spatial_axes}, {*info.reduction_axes}
    moves = any(variables(index) & spatial and variables(index) & reduced for load in loads_of(info) for index in load.indices)
    return moves and len(info.writes) == 1 and 1 < prod(int(e.value) for e in extents if isinstance(e, Const)) <= MOST_TERMS


def _tiled(schedule: Schedule, name: str, before: list[str], after: list[str]) -> str:
    for block in reversed(before):
        if is_heavy(block_info(schedule, block).writes[0].value):
            raise ScheduleError(f"block {block} takes too long to be computed for each element of a window")
    if after and (last := inline_chain(schedule, after)) is not None:
        final = last
    elif after:
        raise ScheduleError(f"what follows block {name} is no chain")
    else:
        schedule.cache_write(name, "local")
        final = f"{name}_copy"
    windowed = _window_axes(schedule, name)
    loops = [loop for loop in schedule.loops_of(final) if extent_value(schedule, loop) != 1]
    if not loops or block_info(schedule, final).writes[0].buffer.dtype.bits < 8:
        raise ScheduleError(f"block {final} has no loops to tile")
    lane = _lane(schedule, name, final, loops[-1], windowed)
    rows = loops[:-1] if lane else loops
    vectors = [schedule.split(loops[-1], lane)] if lane else []
    tile = _choose_tile(schedule, name, rows, lane or 1)
    outer, inner = rows[: len(rows) - len(tile)], []
    for loop, size in zip(rows[len(rows) - len(tile) :], tile, strict=True):
        around, inside = schedule.split(loop, size)
        outer.append(around)
        inner.append(inside)
    grid = [*outer, *(pair[0] for pair in vectors)]
    schedule.reorder(*grid, *inner, *(pair[1] for pair in vectors))
    thread = bind_all(schedule, grid, schedule.choose(name, "threads", THREAD_COUNTS, THREADS))
    schedule.set_scope(block_info(schedule, name).written_buffers[0].name, "local")
    schedule.compute_at(name, thread)
    for block in reversed(before):
        schedule.set_scope(block_info(schedule, block).written_buffers[0].name, "local")
        schedule.compute_at(block, thread)
    start = _order_sum(schedule, name, thread)
    for block in (*before, start, name):
        _write_out(schedule, block, thread, lane or 1)
    _write_out(schedule, final, thread, lane or _side_by_side(schedule, final, inner[-1]))
    return "windows"


def _window_axes(schedule: Schedule, name: str) -> set[int]:
    """The numbers of the result's axes along which windows move."""
    info = block_info(schedule, name)
    spatial, reduced = [*info.spatial_axes], {*info.reduction_axes}
    moving = [index for load in loads_of(info) for index in load.indices if variables(index) & reduced]
    return {spatial.index(axis) for index in moving for axis in variables(index) if axis in spatial}


def _lane(schedule: Schedule, name: str, final: str, loop: str, windowed: set[int]) -> int:
    """How many neighbours along the last axis, along which no window moves, a thread takes as a vector; 0 where windows move along it."""
    info, extent = block_info(schedule, final), extent_value(schedule, loop)
    count = len(block_info(schedule, name).spatial_axes)
    if count - 1 in windowed or extent is None:
        return 0
    axis = next(axis.var for axis in info.block.axes if loop in {var.name for var in variables(axis.value)})
    lanes = VECTOR_BYTES // info.writes[0].buffer.dtype.size_bytes
    accesses: list[Load | Store] = [*loads_of(info), *info.writes]
    while lanes > 1 and not (extent % lanes == 0 and all(is_aligned(access, axis, lanes) for access in accesses)):
        lanes //= 2
    return lanes


def _choose_tile(schedule: Schedule, name: str, rows: list[str], lanes: int) -> tuple[int, ...]:
    """Ask how many neighbours along the last axes a thread makes: a whole number of them, whose windows registers hold."""
    info = block_info(schedule, name)
    terms = [axis.extent for axis in info.block.axes if axis.var in info.reduction_axes]
    reach = prod(int(extent.value) for extent in terms if isinstance(extent, Const))
    extents = [extent_value(schedule, loop) for loop in rows[-2:]]
    extents = [*[None] * (2 - len(extents)), *extents]

    def is_good(tile: tuple[int, int]) -> bool:
        whole = all(size == 1 or (extent is not None and extent % size == 0) for size, extent in zip(tile, extents, strict=True))
        return whole and reach * prod(tile) * lanes <= MOST_PRODUCTS

    options = [tile for tile in TILES if is_good(tile)] or [TILES[0]]
    most = max(options, key=lambda tile: (prod(tile) <= 4, prod(tile), tile[1]))
    return schedule.choose(name, "neighbours", options, most, ordered=False)[2 - min(len(rows), 2) :]


def _side_by_side(schedule: Schedule, final: str, loop: str) -> int:
    """The neighbours along a loop if they are one access to each tensor, else 1."""
    info, lanes = block_info(schedule, final), extent_value(schedule, loop) or 1
    axis = next(axis.var for axis in info.block.axes if loop in {var.name for var in variables(axis.value)})
    both: list[Load | Store] = [*loads_of(info), *info.writes]
    accesses = [access for access in both if access.buffer in schedule.func.buffers]
    narrow = all(access.buffer.dtype.size_bytes * lanes <= VECTOR_BYTES for access in accesses)
    return lanes if narrow and all(is_aligned(access, axis, lanes) for access in accesses) else 1


def _order_sum(schedule: Schedule, name: str, thread: str) -> str:
    """Run through the window around the neighbours; the block that begins the sums, before."""
    info, inside = block_info(schedule, name), loops_inside(schedule, name, thread)
    names = {var.name for axis in info.block.axes if axis.var in info.reduction_axes for var in variables(axis.value)}
    terms, own = [loop for loop in inside if loop in names], [loop for loop in inside if loop not in names]
    schedule.reorder(*terms, *own)
    return schedule.decompose_reduction(name, terms[0])


def _write_out(schedule: Schedule, block: str, thread: str, lanes: int) -> None:
    """Each element by code of its own, those of a vector at once."""
    inside = [loop for loop in loops_inside(schedule, block, thread) if find_loop(schedule.func, loop).loop.kind is LoopKind.SERIAL]
    if lanes > 1 and inside and extent_value(schedule, inside[-1]) == lanes:
        schedule.vectorize(inside.pop())
    unroll(schedule, inside)
