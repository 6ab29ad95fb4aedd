"""Reductions on devices: softmax, normalisations, sums, means, greatest elements, pooling over whole images.

All stages of a row, or of a few short ones, are in one block of threads, what later stages read again kept in shared memory. Where that
is not possible each stage is a launch of its own; few long rows are cut in parts by launches of their own, in a way that the number of
processors of the device decides, not the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from tc.errors import ScheduleError
from tc.ir.expr import Const, Expr, Load, Var
from tc.ir.node import walk
from tc.schedule.analysis import BlockInfo, block_infos
from tc.schedule.rules.common import extent_value, loops_inside
from tc.schedule.rules.epilogue import block_info
from tc.schedule.rules.gpu.elementwise import schedule_block, stands_alone, vector_lanes
from tc.schedule.rules.gpu.fallback import schedule_nest
from tc.schedule.rules.gpu.launch import THREADS, bind_all
from tc.schedule.rules.gpu.product import is_tiled, schedule_product
from tc.schedule.rules.gpu.rows import (
    LEAST_TERMS,
    RowPart,
    RowThreads,
    bind_part,
    bind_rows,
    choose_threads,
    count_rows,
    is_even,
    place_part,
    take_apart,
    terms_of,
)
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.device import DeviceFacts

ROW_BYTES = 24 << 10
"""What a block may keep of its rows in shared memory: a processor then holds a few such blocks."""

LONG_ROW = 1 << 15
"""Terms of a row of which several blocks do parts, where there are fewer rows than keep the device busy."""

MOST_COLUMNS = 16
"""Results of a row for each of its terms, at most, where the block that reduces the row computes them."""

SHORT_ROW = 64
"""Elements that a thread keeps of each stage of a row."""

LEAST_PART = 1 << 12
"""Terms of a part at least."""


def schedule_reduction(schedule: Schedule, target: Target) -> str | None:
    """All stages of a row in one block of threads: one result, every reduction along its rows."""
    device, infos = target.device, block_infos(schedule.func)
    reduced = [info for info in infos if info.reduction_axes]
    if device is None or not reduced or not all(stands_alone(schedule, i.name) for i in infos):
        return None
    if not all(is_even(schedule, info) for info in infos) or (len(reduced) > 1 and any(map(is_tiled, reduced))):
        return None
    written = [info for info in infos if set(info.written_buffers) & set(schedule.func.buffers)]
    if len(written) != 1 or any(len(info.written_buffers) != 1 for info in infos) or any(_is_long(info, device) for info in reduced):
        return None
    if max(map(terms_of, reduced)) < LEAST_TERMS:
        return schedule.attempt(partial(_short_rows, schedule, written[0].name)) if len(infos) > 1 else None
    return schedule.attempt(partial(_rows, schedule, written[0].name, device))


def _rows(schedule: Schedule, final: str, device: DeviceFacts) -> str:
    """The stages of a program in blocks of threads that take a few rows each."""
    if block_info(schedule, final).reduction_axes:
        schedule.cache_write(final, "shared")
        final = f"{final}_copy"
    _inline_long_stages(schedule, final)
    rows = _row_loops(schedule, final)
    stages = [info for info in block_infos(schedule.func) if info.name != final]
    main = max((info for info in stages if _is_of_rows(info, rows)), key=terms_of, default=None)
    if main is None:
        raise ScheduleError(f"nothing is reduced to one number for each row of block {final}")
    columns = [extent_value(schedule, loop) or 1 for loop in schedule.loops_of(final) if loop not in rows]
    if prod(columns) > MOST_COLUMNS * terms_of(main):
        raise ScheduleError(f"block {final} makes more of a row than one block of threads should")
    count = count_rows(schedule, rows, device)
    threads = choose_threads(schedule, main, extent_value(schedule, rows[-1]) if rows else 1, count, device)
    parts = {info.name: take_apart(schedule, info.name, threads) for info in stages if _is_of_rows(info, rows)}
    place, row = _bind_rows(schedule, final, rows, threads)
    for info in reversed(stages):
        if info.name in parts:
            for part in reversed(parts[info.name]):
                place_part(schedule, part, place, threads)
        else:
            _place_stage(schedule, info.name, place, threads)
    _bind_elements(schedule, final, place, row, threads)
    return "row reduction"


def _is_of_rows(info: BlockInfo, rows: list[str]) -> bool:
    """Whether a block reduces rows to one number each. Others make elements of rows, by sums or not."""
    driven = [axis for axis in info.block.axes if axis.var in info.spatial_axes and isinstance(axis.value, Var)]
    return bool(info.reduction_axes) and len(driven) <= len(rows)


def _short_rows(schedule: Schedule, final: str) -> str:
    """All stages of a short row in one thread, which keeps what it reads again."""
    if block_info(schedule, final).reduction_axes:
        raise ScheduleError(f"block {final} is a reduction by itself")
    rows, loops = _row_loops(schedule, final), list(schedule.loops_of(final))
    columns = [extent_value(schedule, loop) for loop in loops if loop not in rows]
    if not rows or None in columns or prod(size or 1 for size in columns) > SHORT_ROW:
        raise ScheduleError(f"rows of block {final} are not short")
    schedule.reorder(*rows, *(loop for loop in loops if loop not in rows))
    thread = _bind_threads(schedule, rows)
    for info in reversed(block_infos(schedule.func)):
        if info.name == final:
            continue
        schedule.compute_at(info.name, thread)
        extents = [extent_value(schedule, loop) for loop in loops_inside(schedule, info.name, thread)]
        if None in extents or prod(extent or 1 for extent in extents) > SHORT_ROW:
            raise ScheduleError(f"a thread does not keep what block {info.name} makes")
        schedule.set_scope(block_info(schedule, info.name).written_buffers[0].name, "local")
    return "short rows"


def _bind_threads(schedule: Schedule, rows: list[str]) -> str:
    """A thread for each row; the loop over threads. Rows are numbered as one unless that takes remainders by a symbolic number: what a
    thread keeps is then found to be one element only where no condition says more of the remainder."""
    if all(extent_value(schedule, loop) is not None for loop in rows[1:]):
        return bind_all(schedule, rows, THREADS)
    if len(rows) > 3:
        raise ScheduleError("there are more loops over rows than axes of a launch")
    thread = bind_all(schedule, rows[-1:], THREADS)
    for loop, axis in zip(reversed(rows[:-1]), ("block.y", "block.z"), strict=False):
        schedule.bind(loop, axis)
    return thread


def _inline_long_stages(schedule: Schedule, final: str) -> None:
    """Compute elements of a row again where shared memory does not hold them. ScheduleError where that is not possible."""
    for info in block_infos(schedule.func):
        if info.name == final or not info.is_spatial:
            continue
        extents = [axis.extent for axis in info.block.axes]
        rows = len(_row_loops(schedule, final))
        size = prod(int(e.value) if isinstance(e, Const) else ROW_BYTES for e in extents[rows:]) * info.writes[0].buffer.dtype.size_bytes
        if size > ROW_BYTES:
            schedule.compute_inline(info.name)


def _row_loops(schedule: Schedule, final: str) -> list[str]:
    """The loops of the final block that choose the row, in order: those by which all reduced values are indexed."""
    info = block_info(schedule, final)
    driven = {axis.var: axis.value for axis in info.block.axes}
    reduced = {buffer for each in block_infos(schedule.func) if each.reduction_axes for buffer in each.written_buffers}
    used = [{value.name for value in _drivers(load, driven)} for load in info.reads if load.buffer in reduced]
    return [loop for loop in schedule.loops_of(final) if used and all(loop in each for each in used)]


def _drivers(load: Load, driven: dict[Var, Expr]) -> list[Var]:
    nodes = (node for index in load.indices for node in walk(index))
    return [value for node in nodes if isinstance(value := driven.get(node), Var)]  # type: ignore[call-overload]


def _bind_rows(schedule: Schedule, final: str, rows: list[str], threads: RowThreads) -> tuple[str, str | None]:
    """Let blocks of threads take a few neighbouring rows each: the loop over blocks, and the one over a block's rows."""
    others = [loop for loop in schedule.loops_of(final) if loop not in rows]
    if not rows:
        place = schedule.add_unit_loop(others[0] if others else final)
        schedule.bind(place, "block.x")
        return place, None
    around, row = schedule.split(rows[-1], threads.rows)
    schedule.reorder(*rows[:-1], around, row, *others)
    place = schedule.fuse(*rows[:-1], around)
    schedule.bind(place, "block.x")
    return place, row


def _place_stage(schedule: Schedule, name: str, place: str, threads: RowThreads) -> None:
    """Compute elements of a block's rows once, for all stages that read them."""
    schedule.compute_at(name, place)
    (buffer,) = block_info(schedule, name).written_buffers
    schedule.set_scope(buffer.name, "shared")
    info, inside = block_info(schedule, name), loops_inside(schedule, name, place)
    terms = [loop for loop in inside if loop in _reducing(info, inside)]
    inside = [loop for loop in inside if loop not in terms]
    if any(extent_value(schedule, loop) is None for loop in inside):
        raise ScheduleError(f"the part of block {name} in a row is of no known size")
    _bind_elements(schedule, name, place, inside[0] if len(inside) > 1 else None, threads, terms)


def _bind_elements(schedule: Schedule, name: str, place: str, row: str | None, threads: RowThreads, terms: Sequence[str] = ()) -> None:
    """Let the threads of each row compute its elements, neighbouring threads neighbouring elements or vectors of them; if these are sums
    of `terms`, each by one thread."""
    columns = [loop for loop in loops_inside(schedule, name, place) if loop != row and loop not in terms]
    if row is not None and (threads.rows == 1 or (extent_value(schedule, row) or 0) > threads.rows):
        columns, row = [*([row] if extent_value(schedule, row) != 1 else []), *columns], None
    several = None if row is None else bind_rows(schedule, row, threads)
    if several is not None:
        schedule.reorder(*columns, *terms, several)
        schedule.vectorize(several)
    if not columns:
        if row is None:
            inside = list(schedule.loops_of(name))
            inside = inside[inside.index(place) + 1 :]
            schedule.bind(inside[0] if inside else schedule.add_unit_loop(name), threads.along)
        return
    lanes = vector_lanes(schedule, block_info(schedule, name), columns[-1]) if threads.along == "thread.x" and not terms else 1
    vectors = []
    if lanes > 1:
        around, lane = schedule.split(columns[-1], lanes)
        schedule.vectorize(lane)
        columns, vectors = [*columns[:-1], around], [lane]
    rest, shared = schedule.split(schedule.fuse(*columns), threads.lanes)
    schedule.reorder(shared, rest, *vectors, *terms)
    schedule.bind(shared, threads.along)
    if terms:
        schedule.decompose_reduction(name, terms[0])


# -- stages that stand alone


def schedule_stages(schedule: Schedule, target: Target) -> str | None:
    """Every stage a launch of its own, as its class asks."""
    infos = block_infos(schedule.func)
    if target.device is None or not any(info.reduction_axes for info in infos):
        return None
    if not all(stands_alone(schedule, info.name) for info in infos) or any(info.is_opaque for info in infos):
        return None
    for info in infos:
        schedule_stage(schedule, info.name, target)
    return "stage by stage"


def schedule_stage(schedule: Schedule, name: str, target: Target) -> None:
    """One stage, which stands alone."""
    info = block_info(schedule, name)
    if info.is_spatial:
        schedule_block(schedule, name, target)
    elif schedule_product(schedule, name, [], [], target) is None:
        reduce_alone(schedule, name, target)


def reduce_alone(schedule: Schedule, name: str, target: Target) -> None:
    """A reduction that stands alone: by all threads of a block where there are many terms, in parts if rows are few and long."""
    info, device = block_info(schedule, name), target.device
    assert device is not None, "rules for devices"
    if is_even(schedule, info) and terms_of(info) >= LEAST_TERMS:
        if _is_long(info, device) and schedule.attempt(partial(_in_parts, schedule, name, target)) is not None:
            return
        rule = _row_alone if len(info.written_buffers) == 1 else _in_launches
        if schedule.attempt(partial(rule, schedule, name, device)) is not None:
            return
    schedule_nest(schedule, schedule.loops_of(name)[0] if schedule.loops_of(name) else name)


def _is_long(info: BlockInfo, device: DeviceFacts) -> bool:
    """Whether rows are known to be so long, and so few, that one block is not to take a whole one."""
    if not all(isinstance(axis.extent, Const) for axis in info.block.axes if axis.var in info.reduction_axes):
        return False
    extents = [axis.extent for axis in info.block.axes if axis.var in info.spatial_axes]
    rows = prod(int(e.value) if isinstance(e, Const) else device.processors for e in extents)
    return terms_of(info) >= LONG_ROW and 2 * rows <= device.processors


def _in_parts(schedule: Schedule, name: str, target: Target) -> str:
    """Reduce parts of the rows first, then the parts' results."""
    info, loops = block_info(schedule, name), list(schedule.loops_of(name))
    depth = [loop for loop in loops if loop in _reducing(info, loops)]
    spatial = [loop for loop in loops if loop not in depth]
    schedule.reorder(*spatial, *depth)
    rows = prod(extent_value(schedule, loop) or 1 for loop in spatial)
    assert target.device is not None
    most = max(2, min(2 * target.device.processors // max(rows, 1), terms_of(info) // LEAST_PART))
    count = schedule.choose(name, "parts", [size for size in (2, 4, 8, 16, 32, 64, 128, 256) if size <= 2 * most], _power_below(most))
    terms = schedule.fuse(*depth)
    extent = extent_value(schedule, terms)
    if extent is None:
        raise ScheduleError(f"the terms of block {name} are of no known number")
    part, _ = schedule.split(terms, (count, -(-extent // count)))
    partial_name = schedule.rfactor(name, part)
    for each in (partial_name, name):
        reduce_alone_in_rows(schedule, each, target)
    return name


def reduce_alone_in_rows(schedule: Schedule, name: str, target: Target) -> None:
    """A reduction whose rows are no longer cut."""
    device, info = target.device, block_info(schedule, name)
    assert device is not None
    rule = _row_alone if len(info.written_buffers) == 1 else _in_launches
    if terms_of(info) < LEAST_TERMS or schedule.attempt(partial(rule, schedule, name, device)) is None:
        schedule_nest(schedule, schedule.loops_of(name)[0])


def _power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def _reducing(info: BlockInfo, loops: list[str]) -> set[str]:
    names = {axis.value.name for axis in info.block.axes if axis.var in info.reduction_axes and isinstance(axis.value, Var)}
    return names & set(loops)


def _row_alone(schedule: Schedule, name: str, device: DeviceFacts) -> str:
    """The last block of the tree stands in the loops over rows; the others come to it."""
    info, loops = block_info(schedule, name), list(schedule.loops_of(name))
    rows = [loop for loop in loops if loop not in _reducing(info, loops)]
    count = count_rows(schedule, rows, device)
    threads = choose_threads(schedule, info, extent_value(schedule, rows[-1]) if rows else 1, count, device)
    parts = take_apart(schedule, name, threads)
    left = list(schedule.loops_of(name))
    place, _ = _bind_rows(schedule, name, left[:-1], threads)
    for part in reversed(parts[:-1]):
        place_part(schedule, part, place, threads)
    bind_part(schedule, RowPart(name, 0), place, threads)
    return name


def _in_launches(schedule: Schedule, name: str, device: DeviceFacts) -> str:
    """Each step of the tree a launch of its own: results of several values have several buffers, which do not move together."""
    info, loops = block_info(schedule, name), list(schedule.loops_of(name))
    rows = [loop for loop in loops if loop not in _reducing(info, loops)]
    count = count_rows(schedule, rows, device)
    threads = choose_threads(schedule, info, 1, count, device)
    for part in take_apart(schedule, name, RowThreads(1, threads.lanes, 1, threads.along)):
        schedule_nest(schedule, schedule.loops_of(part.name)[0])
    return name
