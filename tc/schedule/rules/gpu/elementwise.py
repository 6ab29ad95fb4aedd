"""Elementwise computation and data movement on devices: 128 bits an access where that is known to be aligned, enough threads to hide
latency, and what is read along another axis than it is written along through a tile in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tc.ir.arith import Facts, prove, simplify
from tc.ir.expr import Const, Expr, Load, Var, const, equal, is_const
from tc.ir.loop import Store
from tc.ir.node import substitute
from tc.ir.polynomial import linear_coefficients, polynomial
from tc.ir.uses import variables
from tc.schedule.analysis import BlockInfo, block_infos
from tc.schedule.rules.common import extent_value, loads_of, loops_inside
from tc.schedule.rules.epilogue import block_info
from tc.schedule.rules.gpu.fallback import schedule_nest
from tc.schedule.rules.gpu.launch import THREAD_COUNTS, THREADS, bind_all
from tc.schedule.rules.spatial import is_flat, read_along
from tc.schedule.step import Schedule
from tc.schedule.tree import block_names, facts_at, find_block, find_loop
from tc.target import Target

ACCESS_BYTES = 16
"""What a thread reads or writes at once at most."""

TILE = 32
"""Rows and columns of a tile that is turned in shared memory: a warp reads a row of it and writes a column."""

TILE_THREAD_ROWS = 8
"""Rows of a tile that its threads move at once."""

BANK_BYTES = 4
"""What one bank of shared memory holds in a row of banks: a row longer by that much puts its neighbours in a column into other banks."""


def schedule_elementwise(schedule: Schedule, target: Target) -> str | None:
    """Every block a launch of its own, of threads that run over vectors."""
    infos = block_infos(schedule.func)
    if not infos or not all(info.is_spatial for info in infos):
        return None
    if not all(stands_alone(schedule, info.name) for info in infos):
        return None
    for info in infos:
        schedule_block(schedule, info.name, target)
    return "elementwise"


def stands_alone(schedule: Schedule, block: str) -> bool:
    """Whether a block is a perfect nest by itself, one of the statements of the function."""
    place = find_block(schedule.func, block)
    outermost = place.loops[0] if place.loops else place.block
    return block_names(outermost) == (block,) and all(loop in place.path[-len(place.loops) :] for loop in place.loops)


def schedule_block(schedule: Schedule, block: str, target: Target) -> None:
    """One elementwise block as a launch; one that steps cannot take apart so runs in threads of an element each."""
    info = block_info(schedule, block)
    if not info.loops:
        schedule_nest(schedule, block)
    elif schedule.attempt(partial(_turned, schedule, info, target)) is None:
        if schedule.attempt(partial(_streamed, schedule, block)) is None:
            schedule_nest(schedule, schedule.loops_of(block)[0])


# -- streams


def _streamed(schedule: Schedule, block: str) -> str | None:
    """Vectors along the last loop, all others and the count of vectors in threads."""
    info, loops = block_info(schedule, block), list(schedule.loops_of(block))
    lanes = vector_lanes(schedule, info, loops[-1])
    most = widest_lanes([*loads_of(info), *info.writes])
    if lanes < most and is_flat(info):  # rows are no whole number of vectors; all of them may be, but for the last one
        loops = [schedule.fuse(*loops)]
        lanes = most if (extent_value(schedule, loops[0]) or most) >= most else lanes
    options = [count for count in (1, 2, 4, 8, 16) if count <= lanes]
    lanes = schedule.choose(block, "lanes", options, lanes)
    if lanes > 1:
        around, lane = schedule.split(loops[-1], lanes)
        schedule.vectorize(lane)
        loops = [*loops[:-1], around]
    bind_all(schedule, loops, schedule.choose(block, "threads", THREAD_COUNTS, THREADS))
    return block


def widest_lanes(accesses: Sequence[Load | Store]) -> int:
    """Lanes of vectors of which none is wider than 128 bits."""
    return ACCESS_BYTES // max(access.buffer.dtype.size_bytes for access in accesses)


def moving_along(accesses: Sequence[Load | Store], axis: Var) -> list[Load | Store]:
    """Those of which neighbours along an axis are at places of their own; others are one element for all of them."""
    return [access for access in accesses if any(axis in variables(index) for index in access.indices)]


def vector_lanes(schedule: Schedule, info: BlockInfo, loop: str) -> int:
    """How many iterations of a loop over the last axis may be one vector: no access is wider than 128 bits, and all are aligned; else 1."""
    axis = next((axis.var for axis in info.block.axes if isinstance(axis.value, Var) and axis.value.name == loop), None)
    accesses: list[Load | Store] = [*loads_of(info), *info.writes]
    moving = [] if axis is None else moving_along(accesses, axis)
    if not moving or axis is None:
        return 1
    lanes = _dividing(schedule, widest_lanes(moving), loop)
    while lanes > 1 and not all(is_aligned(access, axis, lanes) for access in moving):
        lanes //= 2
    return lanes


def _dividing(schedule: Schedule, lanes: int, loop: str) -> int:
    """The most lanes, so many or fewer, of which a loop is known to be a multiple."""
    extent, facts = schedule.extent_of(loop), facts_at(schedule.func, find_loop(schedule.func, loop))
    while lanes > 1 and prove(equal(extent % lanes, 0), facts) is not True:
        lanes //= 2
    return lanes


def _divides(number: int, extent: Expr) -> bool:
    """Whether a known extent is a multiple of a number."""
    return isinstance(extent, Const) and extent.value % number == 0


def is_aligned(access: Load | Store, axis: Var, lanes: int) -> bool:
    """Whether what is touched for `lanes` neighbours along an axis, from a multiple of `lanes` on, is one element, or as many neighbours in
    memory that begin at a multiple of their size."""
    if not moving_along([access], axis):
        return True
    vector, lane = Var("vector", axis.dtype), Var("lane", axis.dtype)
    facts = Facts().with_range(lane, const(lanes)).assume(vector >= 0)
    *outer, last = (simplify(substitute(index, {axis: vector * lanes + lane}), facts) for index in access.indices)
    if any(lane in variables(index) for index in outer):
        return False
    found = polynomial(last)
    moving = {monomial: factor for monomial, factor in found.terms.items() if any(lane in variables(atom) for atom in monomial)}
    rest = [factor for monomial, factor in found.terms.items() if monomial not in moving] + [found.constant]
    is_row = all(isinstance(index, Const) and index.value == 0 for index in outer) or _divides(lanes, access.buffer.shape[-1])
    return is_row and moving == {(lane,): 1} and all(number % lanes == 0 for number in rest)


def is_vector(access: Load | Store, values: dict[Var, Expr], loop: Var, lanes: int, facts: Facts) -> bool:
    """The same of a loop by which the axes of a block, one or several, get their values: by the place in all of the buffer's memory."""
    buffer = access.buffer
    if buffer.strides is not None:
        return False
    offset: Expr = const(0)
    for index, dim in zip(access.indices, buffer.shape, strict=True):
        offset = offset * dim + substitute(index, values)
    offset = simplify(offset, facts)
    form = linear_coefficients(offset, [loop])
    if loop not in variables(offset):
        return True
    return form is not None and is_const(form[0][loop], 1) and prove(equal(form[1] % lanes, 0), facts) is True


# -- tiles that are turned


def _turned(schedule: Schedule, info: BlockInfo, target: Target) -> str | None:
    """A tile at a time, read along the axis along which the operand lies in memory, written along the result's last one."""
    loops = list(schedule.loops_of(info.name))
    found = read_along(info, loops)
    if found is None or found[1]:
        return None
    row, last = found[0], loops[-1]
    sizes = [extent_value(schedule, loop) for loop in (row, last)]
    if any(size is not None and size < TILE // 2 for size in sizes):
        return None
    moved = _turned_operands(info, row, last)
    if not moved or not schedule.choose(info.name, "turned", (False, True), True, ordered=False):
        return None
    rows, row = schedule.split(row, TILE)
    columns, last = schedule.split(last, TILE)
    others = [loop for loop in loops if loop not in found and loop != loops[-1]]
    schedule.reorder(*others, rows, columns, row, last)
    place = schedule.fuse(*others, rows, columns)
    copies = [_copied(schedule, info.name, load, place) for load in moved]
    schedule.bind(place, "block.x")
    for name in copies:
        inside = loops_inside(schedule, name, place)
        _bind_tile(schedule, inside, inside[-1])
    _bind_tile(schedule, [row, last], last)
    return info.name


def _turned_operands(info: BlockInfo, row: str, last: str) -> list[Load]:
    """The operands that lie along the loop `row` and move along `last`: one read of each buffer, all reads at single axes."""
    loops = {axis.var: axis.value.name for axis in info.block.axes if isinstance(axis.value, Var)}
    loads = loads_of(info)
    moved = [load for load in loads if {row, last} <= {loops.get(index) for index in load.indices if isinstance(index, Var)}]
    buffers = [load.buffer for load in loads]
    plain = all(isinstance(index, (Var, Const)) for load in loads for index in load.indices)
    return moved if plain and len(set(buffers)) == len(buffers) else []


def _copied(schedule: Schedule, block: str, load: Load, place: str) -> str:
    """The block that copies a tile of an operand to shared memory, in rows that are longer than a row of banks."""
    name = schedule.cache_read(block, load.buffer.name, "shared")
    schedule.compute_at(name, place)
    copy = block_info(schedule, name).written_buffers[0]
    schedule.pad_rows(copy.name, max(1, BANK_BYTES // copy.dtype.size_bytes))
    return name


def _bind_tile(schedule: Schedule, loops: list[str], along: str) -> None:
    """The threads of a tile: `along` is its width, the other loop its height, a few rows of which are at once."""
    (height,) = [loop for loop in loops if loop != along]
    few, rows = schedule.split(height, TILE_THREAD_ROWS)
    schedule.reorder(rows, along, few)
    schedule.bind(rows, "thread.y")
    schedule.bind(along, "thread.x")
    schedule.unroll(few)
