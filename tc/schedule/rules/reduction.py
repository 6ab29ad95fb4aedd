"""Reductions without reuse: pooling, means, softmax and normalisations."""

from __future__ import annotations

from tc.errors import ScheduleError
from tc.ir.expr import Buffer, Var
from tc.ir.node import walk
from tc.schedule.analysis import BlockInfo, block_infos
from tc.schedule.rules.common import extent_value, known_product, lanes_for, loops_inside, set_parallel
from tc.schedule.rules.epilogue import block_info, driving_loops, vectorize_loop
from tc.schedule.step import Schedule
from tc.target import Target

ACCUMULATORS = 4
"""Vectors that a row reduction sums into at once, to hide the latency of additions."""

FEW_VECTORS = 8
"""Vectors of a row that are taken one after the other without a loop."""


def schedule_reduction(schedule: Schedule, target: Target) -> str | None:
    """Run rows in parallel; inside a row, all stages one after the other, each in vectors."""
    infos = block_infos(schedule.func)
    reductions = [info for info in infos if info.reduction_axes]
    if not reductions or any(info.is_opaque for info in infos):
        return None
    outputs = [info for info in infos if set(info.written_buffers) & set(schedule.func.buffers)]
    if len(outputs) != 1:
        _schedule_apart(schedule, target)
        return "reduction, stage by stage"
    final = outputs[0]
    if final.reduction_axes:
        if len(final.written_buffers) > 1 or not final.spatial_axes:
            _schedule_apart(schedule, target)
            return "reduction, stage by stage"
        schedule.cache_write(final.name, "local")
        final_name = f"{final.name}_copy"
    else:
        final_name = final.name
    final = block_info(schedule, final_name)
    rows = _row_loops(schedule, final)
    loops = schedule.loops_of(final_name)
    if rows == len(loops) and rows > 0:
        rows_rule = _schedule_columns(schedule, final_name, target)
        if rows_rule is not None:
            return rows_rule
    if rows == 0:
        _schedule_apart(schedule, target)
        return "reduction, stage by stage"
    _schedule_rows(schedule, final_name, rows, target)
    return "row reduction"


def _row_loops(schedule: Schedule, final: BlockInfo) -> int:
    """How many leading loops of the final block choose the row: those by which reduced values are indexed."""
    loops = schedule.loops_of(final.name)
    driven = {axis.var: axis.value for axis in final.block.axes}
    reduced = {b for info in block_infos(schedule.func) if info.reduction_axes for b in info.written_buffers}
    used: set[str] = set()
    for load in final.reads:
        if load.buffer in reduced:
            for index in load.indices:
                for node in walk(index):
                    value = driven.get(node)  # type: ignore[call-overload]
                    if isinstance(value, Var):
                        used.add(value.name)
    count = 0
    while count < len(loops) and loops[count] in used:
        count += 1
    return count if used <= set(loops[:count]) else 0


def _schedule_rows(schedule: Schedule, final: str, rows: int, target: Target) -> None:
    loops = list(schedule.loops_of(final))
    inner = known_product(schedule, loops[rows:], 256) if rows < len(loops) else 64
    row = set_parallel(schedule, loops[:rows], inner * 8)
    assert row is not None
    others = [info.name for info in reversed(block_infos(schedule.func)) if info.name != final]
    for name in others:
        try:
            schedule.compute_at(name, row)
        except ScheduleError:
            _schedule_one(schedule, name, target)
    for info in block_infos(schedule.func):
        if row in schedule.loops_of(info.name):
            _vectorize_inside(schedule, info.name, row, target)


def _vectorize_inside(schedule: Schedule, name: str, row: str, target: Target) -> None:
    """Vectorize one stage of a row."""
    info = block_info(schedule, name)
    inside = loops_inside(schedule, name, row)
    if not inside:
        return
    if info.reduction_axes:
        _reduce_along_lanes(schedule, info, inside, target)
        return
    last = inside[-1]
    _vectorize_row(schedule, last, lanes_for(info, target))


def _vectorize_row(schedule: Schedule, loop: str, lanes: int) -> None:
    """Run a loop in vectors, all of them at once where they are few."""
    vectors = vectorize_loop(schedule, loop, lanes)
    if vectors is not None:
        _unroll_few(schedule, vectors)


def _unroll_few(schedule: Schedule, loop: str) -> None:
    """Unroll a loop of few vectors: a short row then stays in registers from stage to stage."""
    extent = extent_value(schedule, loop)
    if extent is None or not 1 < extent <= 4 * FEW_VECTORS:
        return
    if schedule.choose("row/unroll", (False, True), extent <= FEW_VECTORS, ordered=False):
        schedule.unroll(loop)


def reduce_along(schedule: Schedule, name: str, anchor: str, target: Target, accumulators: int = ACCUMULATORS) -> None:
    """Reduce along the lanes of at most `accumulators` vectors, for a block inside the loop `anchor`."""
    info = block_info(schedule, name)
    inside = loops_inside(schedule, name, anchor)
    _reduce_along_lanes(schedule, info, inside, target, accumulators)


def _reduce_along_lanes(
    schedule: Schedule, info: BlockInfo, inside: list[str], target: Target, most: int = ACCUMULATORS
) -> None:
    """Partial results in the lanes of a few vectors; at the end these are combined as a tree."""
    depth = driving_loops(info, inside, info.reduction_axes)
    if not depth:
        return
    lanes = lanes_for(info, target)
    nested = _nested(schedule, depth, info.name)
    extent = known_product(schedule, depth, 1 << 20) if nested else extent_value(schedule, depth[-1])
    if len(info.written_buffers) > 1 or (extent is not None and extent < lanes):
        schedule.decompose_reduction(info.name, depth[0])
        return
    along = schedule.fuse(*depth) if len(depth) > 1 and nested else depth[-1]
    accumulators = _choose_accumulators(schedule, extent_value(schedule, along), lanes, most)
    width = lanes * accumulators
    out, inner = schedule.split(along, width)
    extent = extent_value(schedule, out)
    partial = schedule.rfactor(info.name, inner)
    loops = list(schedule.loops_of(partial))
    chain = loops[loops.index(out) :]
    schedule.reorder(*[loop for loop in chain if loop != inner], inner)
    schedule.annotate_loop(out, "partition", 1)
    schedule.decompose_reduction(partial, out)
    _unroll_few(schedule, out)
    for each in (f"{partial}_init", partial):
        last = schedule.loops_of(each)[-1]
        if accumulators > 1:
            blocks, last = schedule.split(last, lanes)
            schedule.unroll(blocks)
        schedule.vectorize(last)
    final_loop = schedule.loops_of(info.name)[-1]
    schedule.decompose_reduction(info.name, final_loop)
    schedule.unroll(final_loop)
    schedule.annotate_loop(final_loop, "tree", 1)
    for buffer in block_info(schedule, partial).written_buffers:
        if any(loop not in depth for loop in inside):  # several rows: all partial results, then all trees, side by side
            _lanes_last(schedule, buffer)
        else:
            schedule.set_scope(buffer.name, "register")


def _lanes_last(schedule: Schedule, buffer: Buffer) -> None:
    """Put the lanes of partial results, their first axis, last."""
    names = [f"a{d}" for d in range(len(buffer.shape))]
    schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join([*names[1:], names[0]])}")
    schedule.set_scope(buffer.name, "local")


def _accumulators(extent: int | None, lanes: int, most: int) -> int:
    """Vectors that are summed into at once: as many as hide latency, a power of two, none of them idle."""
    if extent is None:
        return most
    found = 1
    while found < most and extent >= 2 * found * lanes:
        found *= 2
    return found


def _choose_accumulators(schedule: Schedule, extent: int | None, lanes: int, most: int) -> int:
    options = [count for count in (1, 2, 4, 8, 16) if extent is None or count * lanes <= max(extent, lanes)]
    return schedule.choose("reduce/accumulators", options, _accumulators(extent, lanes, most))


def _nested(schedule: Schedule, loops: list[str], block: str) -> bool:
    order = list(schedule.loops_of(block))
    places = [order.index(loop) for loop in loops]
    return places == list(range(places[0], places[0] + len(places)))


def _schedule_columns(schedule: Schedule, final: str, target: Target) -> str | None:
    """The last axis of the result is not reduced: a vector of results is reduced at once."""
    info = block_info(schedule, final)
    lanes = lanes_for(info, target)
    loops = list(schedule.loops_of(final))
    producers = [i.name for i in reversed(block_infos(schedule.func)) if i.name != final]
    last = loops[-1]
    if _reduces_contiguously(schedule, final):
        return None
    extent = extent_value(schedule, last)
    if extent is not None and extent < 4:
        return None
    wide = extent is None or extent >= lanes
    width = lanes * _choose_accumulators(schedule, extent, lanes, ACCUMULATORS) if wide else extent
    assert width is not None, "a narrow row has a known extent"
    out, inner = schedule.split(last, width)
    guarded = extent is None or extent % width != 0
    if guarded:
        schedule.annotate_loop(out, "partition", 1)
    outer = [*loops[:-1], *([] if guarded else [out])]
    fused = set_parallel(schedule, outer, width * 16 * (1 if not guarded else max((extent or 64) // width, 1)))
    anchor = out if guarded else fused
    if anchor is None:
        return None
    for name in producers:
        try:
            schedule.compute_at(name, anchor)
        except ScheduleError:
            _schedule_one(schedule, name, target)
    _vectorize_tile(schedule, inner, lanes)
    for each in block_infos(schedule.func):
        if each.name != final and anchor in schedule.loops_of(each.name):
            _vector_of_reductions(schedule, each, anchor, width, lanes)
    return "column reduction"


def _vectorize_tile(schedule: Schedule, loop: str, lanes: int) -> None:
    """Vectorize a loop of a few vectors, these one after the other."""
    if (extent_value(schedule, loop) or 0) > lanes:
        vectors, loop = schedule.split(loop, lanes)
        schedule.unroll(vectors)
    schedule.vectorize(loop)


def _reduces_contiguously(schedule: Schedule, final: str) -> bool:
    """Whether a reduction runs along the contiguous axis of what it reads: then lanes belong to the reduction."""
    for info in block_infos(schedule.func):
        if not info.reduction_axes or info.name == final:
            continue
        for load in info.reads:
            if load.buffer in info.written_buffers or not load.indices:
                continue
            if any(node in info.spatial_axes for node in walk(load.indices[-1])):
                return False
    return True


def _vector_of_reductions(schedule: Schedule, info: BlockInfo, anchor: str, width: int, lanes: int) -> None:
    loops = list(schedule.loops_of(info.name))
    inside = loops[loops.index(anchor) + 1 :]
    depth = driving_loops(info, inside, info.reduction_axes)
    spatial = [loop for loop in inside if loop not in depth]
    wide = [loop for loop in spatial if extent_value(schedule, loop) != 1]
    if not wide:
        if depth:
            schedule.decompose_reduction(info.name, depth[0])
        return
    lane = wide[-1]
    if depth:
        schedule.reorder(*[loop for loop in spatial if loop != lane], *depth, lane)
    extent = extent_value(schedule, lane)
    if extent is not None and extent <= width:
        _vectorize_tile(schedule, lane, lanes)
        for buffer in info.written_buffers:
            schedule.set_scope(buffer.name, "register")
    elif extent is not None and extent <= 4 * width:
        schedule.vectorize(lane)
    if depth:
        schedule.decompose_reduction(info.name, depth[0])


def _schedule_one(schedule: Schedule, name: str, target: Target) -> None:
    """A stage that stands alone: parallel over its spatial loops, its reduction decomposed."""
    info = block_info(schedule, name)
    loops = list(schedule.loops_of(name))
    depth = driving_loops(info, loops, info.reduction_axes)
    spatial = [loop for loop in loops if loop not in depth]
    if depth:
        if spatial and loops[: len(spatial)] != spatial:
            schedule.reorder(*spatial, *depth)
        schedule.decompose_reduction(name, depth[0])
        set_parallel(schedule, spatial, known_product(schedule, depth, 64))
        return
    if loops:
        *outer, last = loops
        _vectorize_row(schedule, last, lanes_for(info, target))
        if outer:
            set_parallel(schedule, outer, 64)


def _schedule_apart(schedule: Schedule, target: Target) -> None:
    """Every stage on its own."""
    for info in block_infos(schedule.func):
        if info.loops:
            _schedule_one(schedule, info.name, target)
