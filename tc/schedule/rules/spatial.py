"""Elementwise computation and data movement: stream through memory in vectors, on all cores."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tc.cost.typical import USUAL_DIM
from tc.ir.arith import linear_coefficients, prove
from tc.ir.expr import Buffer, Const, Expr, FloorDiv, FloorMod, Load, Max, Min, Var, const, equal, is_const
from tc.ir.loop import Store
from tc.ir.node import Node, children, substitute, walk
from tc.ir.uses import reads_memory, variables
from tc.schedule.analysis import BlockInfo, axes_in, block_infos
from tc.schedule.layout import facts_of_axes
from tc.schedule.parts import choice_ends, in_order
from tc.schedule.rules.common import (
    buffer_bytes,
    extent_value,
    is_function,
    known_product,
    lanes_for,
    loads_of,
    looked_up,
    loops_inside,
    set_parallel,
    stream_lanes,
)
from tc.schedule.rules.epilogue import block_info
from tc.schedule.rules.tile import cut, cut_overlapped, is_moved, peel, vectorize_loop
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.machine import machine_of
from tc.target.table import SET_BYTES

MOST_PARTS = 128
"""Of more parts a choice between them stays one loop."""

USUAL_ROW = 256
"""Elements of a row of which nothing is known."""

USUAL_JOINED = 4 * USUAL_ROW
"""The same, of several axes as one."""

LINE_BYTES = 64
"""Of a cache."""

LEAST_PART = 2 * LINE_BYTES
"""Bytes of a part of a row that is copied by itself: what is left of vectors at its end is then little of it."""

MANY = 1 << 30
"""Iterations of a loop of unknown extent."""

MOST_SHARING = 4
"""Iterations of a loop that share what chooses their elements, at most: each reads other memory."""

PLANES_OF_L2 = 0.5
"""The part of the second-level cache that what a few iterations choose from may take."""

PLANES_OF_CORE = 8
"""So many iterations there are for each core, where a few of them are a task that makes a copy of what it chooses from."""

ROWS_ACROSS = 8
"""Rows from which an element that was chosen for all is taken without a loop."""

ROW_VECTORS = 4
"""Vectors of a row that are taken without a loop: what is chosen by the place, as in a concatenation, is known in each of them."""

MOST_COLUMNS = 15
"""Of a result, which are interleaved in registers where an operand is read along its rows."""

FUNCTION_COLUMNS, COPIED_COLUMNS = 0.75, 0.4
"""Of rows that are no whole vectors: the part of one up to which vectors are columns, where a function is computed of each element, and
where they are only loaded, added and the like. Measured with vectors of 512 bits."""

LEAST_LANES = 4
"""Of a vector of elements that are interleaved with others."""

MOST_EXCHANGED = 8
"""Operands of an element, at most, where squares are exchanged in registers: each row of a square has code of its own for each of them."""

LEAST_LOOPS = 6
"""Iterations of a loop over a row whose ends are read at other places: most of them are to be between these."""


def schedule_spatial(schedule: Schedule, target: Target) -> str | None:
    """Vectorize the last loop and run the others in parallel; one loop over everything where all operands allow it."""
    infos = block_infos(schedule.func)
    if not infos or not all(info.is_spatial or not info.loops for info in infos):
        return None
    *before, last = [info for info in infos if info.is_spatial and info.loops] or [infos[-1]]
    if before and (sharing := _schedule_sharing(schedule, last, target)) is not None:
        for info in reversed(before):
            is_gathered = len(looked_up(last, info.writes[0].buffer)) > 1
            place = sharing.vectors if sharing.by_all else sharing.rows if is_gathered else None
            schedule_before(schedule, [info.name], place, target)
        return "elementwise"
    for info in infos:
        if info.is_spatial and info.loops:
            for name in _parts(schedule, block_info(schedule, info.name)):  # whose loops have other names since others were scheduled
                schedule_block(schedule, name, target)
    return "elementwise"


def _parts(schedule: Schedule, info: BlockInfo) -> list[str]:
    """The names of the blocks that a block has become: one for each of few parts, as in a concatenation, that are copied in rows which are
    not short."""
    for axis, chosen in enumerate(info.block.axes):
        ends = choice_ends(info.block, axis)
        loops = [loop.var.name for loop in info.loops]
        if not 0 < len(ends) < MOST_PARTS or not isinstance(chosen.value, Var) or chosen.value.name not in loops:
            continue
        row = known_product(schedule, loops[loops.index(chosen.value.name) :], USUAL_ROW)
        if row * info.writes[0].buffer.dtype.size_bytes < LEAST_PART * (len(ends) + 1):
            continue
        if in_order(ends, chosen.extent, facts_of_axes(schedule.func)) is None:
            continue
        if schedule.choose(info.name, "parts", (False, True), True, ordered=False):
            return schedule.cut_choices(info.name, axis)
    return [info.name]


def schedule_block(schedule: Schedule, block: str, target: Target) -> None:
    """Vectorize and parallelize one elementwise block; one that is a single point stays."""
    info = block_info(schedule, block)
    loops, usual_row = list(schedule.loops_of(block)), USUAL_ROW
    if not loops:
        return
    if len(loops) > 1 and is_flat(info) and schedule.choose(block, "flat", (False, True), True, ordered=False):
        loops = [schedule.fuse(*loops)]
    elif (dense := _dense_loops(info, loops)) > 1 and _is_short(schedule, loops[-1], lanes_for(info, target)):
        loops = [*loops[:-dense], schedule.fuse(*loops[-dense:])]
        usual_row = USUAL_JOINED
    info = block_info(schedule, block)
    if _schedule_turns(schedule, info, loops, target) or _schedule_squares(schedule, info, loops, target):
        return
    info, loops = block_info(schedule, block), list(schedule.loops_of(block))  # some may have been joined
    row = _row_length(info, loops[-1], schedule.extent_of(loops[-1]), lanes_for(info, target))
    if row and schedule.choose(block, "row_by_row", (False, True), True, ordered=False):
        _schedule_rows(schedule, info, loops, row, lanes_for(info, target))
        return
    if _schedule_sharing(schedule, info, target) is not None:
        return
    *outer, last = loops
    extent = extent_value(schedule, last)
    lanes = stream_lanes(info, target, extent)
    if extent is not None and extent < lanes:
        rows = extent_value(schedule, loops[-2]) if len(loops) > 1 else 0
        is_long = rows is None or rows >= lanes_for(info, target)
        if is_long and _are_few_columns(info, loops, extent, lanes) and _schedule_columns(schedule, info, loops, lanes_for(info, target)):
            return
        around = extent_value(schedule, outer[-1]) if outer else None
        if around is not None and extent < LEAST_LANES <= extent * around <= lanes and _are_rows_dense(info, loops, of_rows=True):
            last, extent = schedule.fuse(outer.pop(), last), extent * around
        if extent >= LEAST_LANES:
            schedule.vectorize(last)
            set_parallel(schedule, block, outer, extent)
        elif outer:
            set_parallel(schedule, block, outer, extent)
        return
    counts = [count for count in (1, 2, 4, 8) if extent is None or count * lanes <= extent]
    is_row = bool(outer) and extent is not None and not any(is_function(store.value) for store in info.writes)
    usual = max(count for count in counts if count <= ROW_VECTORS) if is_row else 1
    if usual * lanes < (extent or 0) < LEAST_LOOPS * usual * lanes and _has_border(info, last):
        usual = 1
    vectors = schedule.choose(block, "vectors", counts, usual)
    if vectors > 1:
        out, few, inner = schedule.split(last, (None, vectors, lanes))
        schedule.unroll(few)
    else:
        out, inner = schedule.split(last, lanes)
    schedule.vectorize(inner)
    if extent is None or extent % (vectors * lanes):
        peel(schedule, out)
    if outer:
        set_parallel(schedule, block, outer, extent or usual_row)
    else:
        set_parallel(schedule, block, [out], vectors * lanes)


def _has_border(info: BlockInfo, last: str) -> bool:
    """Whether the place along a loop decides from where an element is read, as in what is padded by its own elements."""
    axes = {axis.var for axis in info.block.axes if isinstance(axis.value, Var) and axis.value.name == last}
    nodes = [node for load in loads_of(info) for index in load.indices for node in walk(index)]
    return any(isinstance(node, (Max, Min)) and variables(node) & axes for node in nodes)


def _sharing_choices(info: BlockInfo, outer: list[str], last: str) -> str | None:
    """The innermost loop for all of whose iterations loads choose the same elements, several for each lane; None where none is."""
    places = {node.name: axis.var for axis in info.block.axes for node in walk(axis.value) if isinstance(node, Var)}
    loads = {load for load in loads_of(info) if any(reads_memory(index) for index in load.indices)}
    if sum(any(places.get(last) in variables(index) for index in load.indices if reads_memory(index)) for load in loads) < 2:
        return None
    chosen = {index for load in loads for index in load.indices if reads_memory(index)}
    for loop in reversed(outer):
        axis = places.get(loop)
        if axis is not None and not any(axis in variables(index) for index in chosen):
            return loop
    return None


@dataclass(frozen=True)
class _Sharing:
    """`vectors`: the loop over vectors of elements that are chosen once, inside of `rows`; `by_all`: for all that shares them."""

    rows: str
    vectors: str
    by_all: bool


def _schedule_sharing(schedule: Schedule, info: BlockInfo, target: Target) -> _Sharing | None:
    """Find once what chooses a vector of elements, for a few iterations of an outer loop; None where nothing is chosen that way.

    What they choose from is copied before where it comes from afar: a copy runs at the rate of memory, while gathers wait for each line.
    """
    *outer, last = schedule.loops_of(info.name)
    extent = extent_value(schedule, last)
    lanes = stream_lanes(info, target, extent)
    sharing = _sharing_choices(info, outer, last)
    if sharing is None or (extent is not None and extent < lanes):
        return None
    most = extent_value(schedule, sharing) or MANY
    far = _far_planes(schedule, info, outer[: outer.index(sharing) + 1], target)
    held = MOST_SHARING if far is None else min(MOST_SHARING, int(target.l2_bytes * PLANES_OF_L2) // far[1])
    few = schedule.choose(info.name, "sharing", [count for count in (1, 2, 3, 4, 8) if count <= most], min(most, held))
    copy = None
    if far is not None and schedule.choose(info.name, "planes", (False, True), True, ordered=False):
        copy = schedule.cache_read(info.name, far[0].name)
    around, some = schedule.split(sharing, few)
    vectors = cut_overlapped(schedule, last, lanes)
    outer = [around if loop == sharing else loop for loop in outer]
    schedule.reorder(*outer, vectors.around, some, vectors.inside)
    schedule.unroll(some)
    schedule.vectorize(vectors.inside)
    peel(schedule, *(loop for loop, is_whole in ((around, most % few == 0), (vectors.around, vectors.is_whole)) if not is_whole))
    if copy is not None:
        schedule.compute_at(copy, around)
        vectorize_loop(schedule, schedule.loops_of(copy)[-1], lanes_for(block_info(schedule, copy), target))
        inner = outer[outer.index(around) + 1 :]
        outer = outer[: -len(inner) or None]
    else:
        inner = []
    set_parallel(schedule, info.name, outer, (extent or USUAL_ROW) * few * known_product(schedule, inner, USUAL_ROW))
    return _Sharing(around, vectors.around, few == most)


def _far_planes(schedule: Schedule, info: BlockInfo, outer: list[str], target: Target) -> tuple[Buffer, int] | None:
    """The one input of which elements are chosen, and how many bytes of it the innermost of the loops `outer` chooses from in an iteration,
    where these fit into the second-level cache and the whole does not, and there are iterations for all cores. Else None."""
    loads = [load for load in dict.fromkeys(loads_of(info)) if any(reads_memory(index) for index in load.indices)]
    buffer = loads[0].buffer
    if any(load.buffer is not buffer for load in loads) or buffer not in schedule.func.inputs:
        return None
    if not all(isinstance(dim, Const) for dim in buffer.shape) or buffer_bytes(buffer) <= target.l2_bytes:
        return None
    steps = {axis.var for axis in info.block.axes if isinstance(axis.value, Var) and axis.value.name in outer}
    plane = buffer_bytes(buffer, tuple(
        dim for axis, dim in enumerate(buffer.shape)
        if not all(isinstance(load.indices[axis], Const) or load.indices[axis] in steps for load in loads)
    ))  # fmt: skip
    is_near = plane <= target.l2_bytes * PLANES_OF_L2 and known_product(schedule, outer, 1) >= PLANES_OF_CORE * schedule.cores
    return (buffer, plane) if is_near else None


def schedule_before(schedule: Schedule, names: list[str], place: str | None, target: Target) -> None:
    """Compute blocks, which follow each other, inside the loop `place` of their reader; on their own where that cannot be, or is None."""
    for name in reversed(names):
        if place is None or not is_moved(schedule, name, place):
            schedule_block(schedule, name, target)
        elif not _copy_across(schedule, block_info(schedule, name), place, target):
            vectorize_loop(schedule, schedule.loops_of(name)[-1], lanes_for(block_info(schedule, name), target))


def _copy_across(schedule: Schedule, info: BlockInfo, place: str, target: Target) -> bool:
    """Copy rows of which the same elements are chosen by loads: element by element, each of them from a few rows.

    One choice then serves these rows, and no vector is gathered. False: it is no such block, or vectors are gathered in less time than
    elements are copied, one in each cycle.
    """
    loops = loops_inside(schedule, info.name, place)
    if len(loops) < 2 or len(info.writes) != 1 or _gather_cycles(target) <= 1:
        return False
    rows, last = loops[-2:]
    places = {node.name: axis.var for axis in info.block.axes for node in walk(axis.value) if isinstance(node, Var)}
    chosen = [index for load in loads_of(info) for index in load.indices if reads_memory(index)]
    if last not in places or rows not in places or not chosen:
        return False
    if any(places[last] not in variables(index) or places[rows] in variables(index) for index in chosen):
        return False
    around, few = schedule.split(rows, ROWS_ACROSS)
    schedule.reorder(around, last, few)
    schedule.unroll(few)
    peel(schedule, around)
    return True


def _gather_cycles(target: Target) -> float:
    """Cycles for each lane of a gathered vector; they were measured in the widest vectors."""
    return machine_of(target).gather_cycles_per_lane * 512 / target.vector_bits


def _row_length(info: BlockInfo, last: str, extent: Expr, lanes: int) -> int:
    """How long the rows are that the last loop runs through one after the other, where vectors would reach over their ends; else 0.

    Inside a row what lies side by side is read as vectors; a vector across two is gathered.
    """
    axes = [axis.var for axis in info.block.axes if isinstance(axis.value, Var) and axis.value.name == last]
    lengths = {
        int(node.rhs.value)
        for load in loads_of(info)
        for node in walk(load)
        if isinstance(node, FloorMod) and node.lhs in axes and isinstance(node.rhs, Const)
    }
    rows = max(lengths, default=0)
    return rows if rows >= lanes and rows % lanes and not is_const(extent, rows) and prove(equal(extent % rows, 0)) is True else 0


def _schedule_rows(schedule: Schedule, info: BlockInfo, loops: list[str], row: int, lanes: int) -> None:
    """Cut the last loop into rows, and these into vectors, the last of which begins early where that is allowed."""
    rows, last = schedule.split(loops[-1], row)
    vectors = cut_overlapped(schedule, last, lanes)
    if not vectors.is_whole:  # it works in place
        peel(schedule, vectors.around)
    schedule.vectorize(vectors.inside)
    set_parallel(schedule, info.name, [*loops[:-1], rows], row)


def _schedule_squares(schedule: Schedule, info: BlockInfo, loops: list[str], target: Target) -> bool:
    """Where an operand is contiguous along another loop than the result: squares, read along one and written along the other.

    Codegen exchanges the axes of a square in registers. False: there is no such loop, or it is short.
    """
    found, lanes = read_along(info, loops), lanes_for(info, target)
    if found is None or len(loads_of(info)) > MOST_EXCHANGED:
        return False
    row, block = found
    count = len(loops)
    if loops.index(row) < len(loops) - 2:
        loops = joined(schedule, info, loops, len(loops) - 1, lanes)
    elif not block and loops.index(row) > 0:
        place = loops.index(row)
        loops = joined(schedule, info, loops, place, lanes)
        row = loops[place - (len(loops) < count)]
    *_, last = loops
    extents = extent_value(schedule, row), extent_value(schedule, last)
    if extents[1] is not None and 1 < extents[1] <= min(MOST_COLUMNS, lanes - 1) and not block and loops[-2] == row:
        return _schedule_columns(schedule, info, loops, lanes)
    if extents[0] is not None and 1 < extents[0] <= min(MOST_COLUMNS, lanes) and not block and _lie_side_by_side(info, last):
        return _schedule_short_rows(schedule, info, loops, row, lanes)
    if any(extent is not None and extent < lanes for extent in extents) or (block and block % lanes):
        return False
    if not any(last in names for names in _loops_of_loads(block_info(schedule, info.name))):
        return False  # one number for all of a row, whatever lies beside it
    in_order = not block and _is_better_in_order(info, last, target)
    if not schedule.choose(info.name, "squares", (False, True), not in_order, ordered=False):
        return False
    around = [loop for loop in loops if loop not in (row, last)]
    rows, row = schedule.split(row, lanes)
    columns, last = (None, last) if extents[1] == lanes else schedule.split(last, lanes)
    guarded = [loop for loop, extent in ((rows, extents[0]), (columns, extents[1])) if loop and (extent is None or extent % lanes)]
    tiles = [rows, *([columns] if columns else [])]
    usual = "columns" if not block and _are_read_apart(*extents, target) else "rows"
    order = schedule.choose(info.name, "order", ("rows", "columns"), usual, ordered=False) if columns else "rows"
    schedule.reorder(*around, *(tiles if order == "rows" else reversed(tiles)), row, last)
    schedule.vectorize(last)
    schedule.unroll(row)
    schedule.annotate_loop(row, "transpose", 1)
    peel(schedule, *guarded)
    inside = known_product(schedule, tiles, 8 if len(loops) == count else 8 * USUAL_DIM) * lanes * lanes
    if around:
        set_parallel(schedule, info.name, around, inside)
    else:
        set_parallel(schedule, info.name, [loop for loop in tiles if loop not in guarded][:1], inside)
    return True


def _are_few_columns(info: BlockInfo, loops: list[str], extent: int, lanes: int) -> bool:
    """Whether rows are so short that vectors had better be columns: of few elements, or where it takes long to compute each. What chooses
    elements by data, or divides places, is no column."""
    if len(loops) < 2 or len(info.writes) != 1:
        return False
    is_heavy = any(is_function(store.value) for store in info.writes)
    most = FUNCTION_COLUMNS if is_heavy else COPIED_COLUMNS if _are_rows_dense(info, loops) else 0.0
    if extent > max(LEAST_LANES - 1, min(MOST_COLUMNS, int(lanes * most))):
        return False
    accesses: list[Load | Store] = [*loads_of(info), *info.writes]
    indices = [index for access in accesses for index in access.indices]
    axes = {axis.var for axis in info.block.axes if {node.name for node in walk(axis.value) if isinstance(node, Var)} & set(loops[-2:])}
    return all(isinstance(index, Var) or (variables(index).isdisjoint(axes) and not reads_memory(index)) for index in indices)


def _are_rows_dense(info: BlockInfo, loops: list[str], *, of_rows: bool = False) -> bool:
    """Whether what is read along the last two loops, with `of_rows` all that is read along the first of them, lies side by side."""
    row, last = ([axis.var for axis in info.block.axes if isinstance(axis.value, Var) and axis.value.name == loop] for loop in loops[-2:])
    both = [load for load in loads_of(info) if variables(load) & set(row) and (of_rows or variables(load) & set(last))]
    return all([*load.indices[-2:]] == [*row, *last] and load.buffer.shape[-1] == info.loops[-1].extent for load in both)


def _loops_of_loads(info: BlockInfo) -> list[set[str]]:
    """For each load the loops that it moves along."""
    values = {axis.var: {node.name for node in walk(axis.value) if isinstance(node, Var)} for axis in info.block.axes}
    return [set[str]().union(*(values.get(var, set()) for var in variables(load))) for load in loads_of(info)]


def _schedule_columns(schedule: Schedule, info: BlockInfo, loops: list[str], lanes: int) -> bool:
    """The same where the result has few columns: a vector of each of them, interleaved in registers."""
    *around, row, last = loops
    usual, lanes = lanes, _lanes_of_rows(extent_value(schedule, row), lanes)
    if lanes < max(extent_value(schedule, last) or MANY, LEAST_LANES):
        return False
    if not schedule.choose(info.name, "squares", (False, True), True, ordered=False):
        return False
    _interleave(schedule, info, around, row, last, lanes, ends_early=lanes < usual)
    return True


def _schedule_turns(schedule: Schedule, info: BlockInfo, loops: list[str], target: Target) -> bool:
    """Where a row takes its elements in turn from a few rows, as of images made larger: a vector of each, interleaved in registers."""
    turns, extent = _turns(info, loops[-1]), extent_value(schedule, loops[-1])
    if not 1 < turns <= MOST_COLUMNS:
        return False
    is_even = prove(equal(schedule.extent_of(loops[-1]) % turns, 0), facts_of_axes(schedule.func)) is True
    if not is_even and extent is None:
        return False
    lanes = _lanes_of_rows(None if extent is None else extent // turns, lanes_for(info, target))
    if lanes < max(turns, LEAST_LANES) or not schedule.choose(info.name, "turns", (False, True), True, ordered=False):
        return False
    *around, last = loops
    row, place = schedule.split(last, turns)
    _interleave(schedule, info, around, row, place, lanes, ends_early=is_even)
    return True


def _lanes_of_rows(rows: int | None, lanes: int) -> int:
    """The lanes of a vector of one element of each row: as many as usual, or half of it, and so on, so that there are as many rows."""
    return lanes if rows is None else min(lanes, 1 << max(rows.bit_length() - 1, 0))


def _interleave(
    schedule: Schedule, info: BlockInfo, around: list[str], row: str, last: str, lanes: int, *, ends_early: bool
) -> None:
    """Vectors of `lanes` rows, one for each iteration of the last loop, interleaved in registers; `ends_early`: the last begin so early
    that they are whole, else they are code of their own."""
    extent, columns = extent_value(schedule, row), known_product(schedule, [last], 1)
    few = (cut_overlapped if ends_early else cut)(schedule, row, lanes)
    schedule.vectorize(last)
    schedule.unroll(few.inside)
    schedule.annotate_loop(few.inside, "transpose", 1)
    if not ends_early or not few.is_whole:
        peel(schedule, few.around)
    set_parallel(schedule, info.name, around or [few.around], columns * ((extent or USUAL_ROW) if around else lanes))


def _turns(info: BlockInfo, last: str) -> int:
    """How many elements along the last loop are of one place, each of a row of its own or all of one; 0 where they are not. Other operands
    may be read at the place that is written."""
    found: set[int] = set()
    axes = [axis.var for axis in info.block.axes if isinstance(axis.value, Var) and axis.value.name == last]
    for index in (index for load in loads_of(info) for index in load.indices):
        if len(axes) != 1 or reads_memory(index):
            return 0
        if index is axes[0]:
            continue
        parts = [node for node in walk(index) if isinstance(node, (FloorMod, FloorDiv)) and axes[0] in variables(node.lhs)]
        for node in parts:
            inner = node.lhs.lhs if isinstance(node.lhs, FloorMod) else node.lhs  # a place within one of several rows that lie in this one
            along = linear_coefficients(inner, axes)
            if along is None or not is_const(along[0].get(axes[0], const(0)), 1) or not isinstance(node.rhs, Const):
                return 0
            found.add(int(node.rhs.value))
        if axes[0] in variables(substitute(index, {node: const(0) for node in parts})):
            return 0
    turns = min(found, default=0)
    return turns if turns > 1 and not any(rows % turns for rows in found) else 0


def _lie_side_by_side(info: BlockInfo, last: str) -> bool:
    """Whether rows of the operands, one after the other, are those that the last loop goes through."""
    values = {axis.var: axis.value for axis in info.block.axes}
    for load in loads_of(info):
        moving = [index for index, dim in zip(load.indices, load.buffer.shape, strict=True) if not is_const(dim, 1)]
        if all(isinstance(index, Const) for index in moving):
            continue
        around = values.get(moving[-2]) if len(moving) > 1 and isinstance(moving[-2], Var) else None
        if around is None or not any(isinstance(node, Var) and node.name == last for node in walk(around)):
            return False
    return True


def _schedule_short_rows(schedule: Schedule, info: BlockInfo, loops: list[str], row: str, lanes: int) -> bool:
    """Where an operand has few columns, each of which is a row of the result: a vector of each of them, out of rows side by side."""
    last = loops[-1]
    extent = extent_value(schedule, last)
    if (extent is not None and extent < lanes) or not schedule.choose(info.name, "squares", (False, True), True, ordered=False):
        return False
    around = [loop for loop in loops if loop not in (row, last)]
    vectors, inside = schedule.split(last, lanes)
    schedule.reorder(*around, vectors, row, inside)
    schedule.vectorize(inside)
    schedule.unroll(row)
    if extent is None or extent % lanes:
        peel(schedule, vectors)
    rows = known_product(schedule, [row], 1)
    set_parallel(schedule, info.name, around or [vectors], rows * ((extent or USUAL_ROW) if around else lanes))
    return True


def _is_better_in_order(info: BlockInfo, last: str, target: Target) -> bool:
    """Whether an operand that is read across, and the result, are better written in order, each vector gathered.

    Both lie behind the second-level cache, where a result in squares, whose lines are begun here and ended there, waits for each of them;
    gathering a line takes less time than reading one and writing one; and the lines that a row of the result comes from stay in the
    first-level cache for the rows after it.
    """
    (load,) = [load for load in loads_of(info) if not all(isinstance(index, Const) for index in load.indices)][:1]
    buffer, size = load.buffer, load.buffer.dtype.size_bytes
    axes = [axis.var for axis in info.block.axes if isinstance(axis.value, Var) and axis.value.name == last]
    places = [k for k, index in enumerate(load.indices) if any(index is axis for axis in axes)]
    if len(places) != 1 or not all(isinstance(dim, Const) for dim in buffer.shape):
        return False
    dims = [int(dim.value) for dim in buffer.shape if isinstance(dim, Const)]
    lines, pitch = dims[places[0]], size * prod(dims[places[0] + 1 :])
    sets = SET_BYTES // max(LINE_BYTES, gcd(pitch, SET_BYTES))  # that lines so far apart share
    is_far = 2 * size * prod(dims) > target.l2_bytes
    gathered = LINE_BYTES // size * _gather_cycles(target)
    is_hidden = gathered <= 2 * machine_of(target).memory_cycles_per_line
    return is_far and is_hidden and lines <= sets * (target.l1_bytes // SET_BYTES)


def _are_read_apart(rows: int | None, columns: int | None, target: Target) -> bool:
    """Whether an operand that is read across has so many rows that a line of each does not stay in the first-level cache until its rest
    is wanted, and the result has no more: then the operand is read row by row, and the result written across."""
    return rows is not None and columns is not None and rows <= columns and columns * LINE_BYTES > target.l1_bytes


def joined(schedule: Schedule, info: BlockInfo, loops: list[str], place: int, lanes: int) -> list[str]:
    """Make one loop of that at `place` and the one around it, if what moves along them is dense over both, and the inner alone is not in
    vectors, or may not be."""
    around, loop = loops[place - 1], loops[place]
    known = extent_value(schedule, loop)
    if known is not None and (known % lanes == 0 or extent_value(schedule, around) is None):
        return loops
    if known is None and known_product(schedule, [each for each in loops if each not in (around, loop)], 1) < schedule.cores:
        return loops  # whose rows are what threads share
    return dense_joined(schedule, info, loops, place)


def dense_joined(schedule: Schedule, info: BlockInfo, loops: list[str], place: int) -> list[str]:
    """Make one loop of that at `place` and the one around it, if what moves along them is dense over both."""
    around, loop = loops[place - 1], loops[place]
    if not is_dense_over(schedule, info, around, loop):
        return loops
    return [*loops[: place - 1], schedule.fuse(around, loop), *loops[place + 1 :]]


def is_dense_over(schedule: Schedule, info: BlockInfo, around: str, loop: str) -> bool:
    """Whether all that moves along two loops does so in neighbouring axes, all of the inner one."""
    axes = {axis.value.name: axis.var for axis in info.block.axes if isinstance(axis.value, Var)}
    pair, extent = (axes.get(around), axes.get(loop)), schedule.extent_of(loop)
    accesses: tuple[Load | Store, ...] = (*loads_of(info), *info.writes)
    for access in accesses:
        if not any(axis in axes_in(index) for index in access.indices for axis in pair):
            continue
        at = next((k for k, index in enumerate(access.indices) if index is pair[1]), 0)
        dense = at > 0 and access.indices[at - 1] is pair[0] and access.buffer.shape[at] == extent
        elsewhere = (index for k, index in enumerate(access.indices) if k not in (at - 1, at))
        if not dense or any(axis in axes_in(index) for index in elsewhere for axis in pair):
            return False
    return True


def read_along(info: BlockInfo, loops: list[str]) -> tuple[str, int] | None:
    """The one loop along which operands are contiguous, if it is not the last, and the length of its runs (0: all of it)."""
    values = {axis.var: axis.value for axis in info.block.axes}
    found: set[tuple[str, int]] = set()
    for load in loads_of(info):
        moving = [index for index, dim in zip(load.indices, load.buffer.shape, strict=True) if not is_const(dim, 1)]
        if all(isinstance(index, Const) for index in moving):
            continue
        match moving[-1]:
            case Var() as axis:
                run = 0
            case FloorMod(lhs=Var() as axis, rhs=Const(value=size)):
                run = int(size)
            case _:
                return None
        loop = values.get(axis)
        if not isinstance(loop, Var) or loop.name not in loops:
            return None
        found.add((loop.name, run))
    if len(found) != 1 or len(info.writes) != 1:
        return None
    ((name, run),) = found
    return None if name == loops[-1] else (name, run)


def is_flat(info: BlockInfo) -> bool:
    """Whether every operand is read at the place that is written, or is one number: then all axes are one."""
    store = info.writes[0]
    if len(info.writes) != 1:
        return False
    shape = store.buffer.shape
    for load in loads_of(info):
        same = len(load.indices) == len(store.indices) and all(
            a is b for a, b in zip(load.indices, store.indices, strict=True)
        )
        same = same and all(a is b for a, b in zip(load.buffer.shape, shape, strict=True))
        if not same and not all(isinstance(index, Const) for index in load.indices):
            return False
    if any(variables(inner.extent) & {outer.var for outer in info.loops} for inner in info.loops):
        return False  # rows of different lengths
    axes = [axis.var for axis in info.block.axes]
    used = [index for index in store.indices if not isinstance(index, Const)]
    in_order = len(used) == len(axes) and all(a is b for a, b in zip(used, axes, strict=True))
    return in_order and not _value_vars(info)


def _dense_loops(info: BlockInfo, loops: list[str]) -> int:
    """How many of the last loops may be one: every operand is read at the places that are written along them, in memory as dense as the
    result, or at one place for all of them."""
    store, axes = info.writes[0], [axis.var for axis in info.block.axes if isinstance(axis.value, Var) and axis.value.name in loops]
    if len(info.writes) != 1 or [axis.value.name for axis in info.block.axes if axis.var in axes] != loops:  # type: ignore[attr-defined]
        return 1
    used = _value_vars(info) | variables(info.block.where)
    extents = {inner.var.name: inner.extent for inner in info.loops}
    accesses: tuple[Load | Store, ...] = (store, *loads_of(info))
    count = 0
    for place, axis in enumerate(reversed(axes), 1):
        if axis in used or any(axis in variables(extent) for extent in extents.values()):
            break
        if not all(_is_dense(access, axes[-place:], [extents[name] for name in loops[-place:]]) for access in accesses):
            break
        count = place
    return count


def _is_dense(access: Load | Store, axes: list[Var], extents: list[Expr]) -> bool:
    """Whether the last indices are the axes, which run through all of these dims but the first, or no index has one of them. In the first
    of the dims they may begin anywhere."""
    dims = [(index, dim) for index, dim in zip(access.indices, access.buffer.shape, strict=True) if not is_const(dim, 1)]
    if isinstance(access, Load) and not any(set(axes) & axes_in(index) for index, _ in dims):
        return True
    found, before = dims[-len(axes) :], dims[: -len(axes)]
    if len(found) != len(axes) or any(set(axes) & axes_in(index) for index, _ in before):
        return False
    same = all(index is axis for (index, _), axis in zip(found[1:], axes[1:], strict=True)) and _is_moved(found[0][0], axes)
    return same and all(prove(equal(dim, extent)) is True for (_, dim), extent in zip(found[1:], extents[1:], strict=True))


def _is_moved(index: Expr, axes: list[Var]) -> bool:
    """Whether an index is the first of the axes, or so far from it as none of them says."""
    form = linear_coefficients(index, axes)
    if form is None:
        return False
    coefficients, rest = form
    return list(coefficients) == axes[:1] and is_const(coefficients[axes[0]], 1) and not set(axes) & variables(rest)


def _is_short(schedule: Schedule, loop: str, lanes: int) -> bool:
    """Whether a loop is of few vectors, or of who knows how many, or the last one is not full."""
    extent = extent_value(schedule, loop)
    return extent is None or extent < ROW_VECTORS * lanes or extent % lanes > 0


def _value_vars(info: BlockInfo) -> set[Var]:
    """Axes that the value uses other than as an index."""
    found: set[Var] = set()

    def visit(node: Node) -> None:
        if isinstance(node, Load):
            return
        if isinstance(node, Var):
            found.add(node)
        for child in children(node):
            visit(child)

    visit(info.writes[0].value)
    return found
