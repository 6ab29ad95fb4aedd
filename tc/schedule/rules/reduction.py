"""Reductions without reuse: pooling, means, softmax and normalisations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

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
    loops = list(schedule.loops_of(final_name))
    rows = _row_loops(schedule, final, loops)
    if rows and loops[-1] in rows:
        columns_rule = _schedule_columns(schedule, final_name, [loop for loop in loops if loop not in rows], target)
        if columns_rule is not None:
            return columns_rule
    if not rows or loops[: len(rows)] != rows:
        _schedule_apart(schedule, target)
        return "reduction, stage by stage"
    _schedule_rows(schedule, final_name, len(rows), target)
    return "row reduction"


def _row_loops(schedule: Schedule, final: BlockInfo, loops: list[str]) -> list[str]:
    """Those of the final block's loops that choose the row, in order: those by which reduced values are indexed."""
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
    return [loop for loop in loops if loop in used]


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
    if not _nested(schedule, depth, info.name):
        loops = list(schedule.loops_of(info.name))
        around = loops[loops.index(depth[0]) :]
        schedule.reorder(*(loop for loop in around if loop not in depth), *depth)
    extent = known_product(schedule, depth, 1 << 20)
    if len(info.written_buffers) > 1 or (extent is not None and extent < lanes):
        schedule.decompose_reduction(info.name, depth[0])
        return
    along = schedule.fuse(*depth)
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


def _schedule_columns(schedule: Schedule, final: str, others: list[str], target: Target) -> str | None:
    """The last axis of the result is not reduced: a vector of results is reduced at once. The `others` of its loops run inside."""
    info = block_info(schedule, final)
    lanes = lanes_for(info, target)
    loops = list(schedule.loops_of(final))
    producers = [i.name for i in reversed(block_infos(schedule.func)) if i.name != final]
    if _reduces_contiguously(schedule, final):
        return None
    extent = extent_value(schedule, loops[-1])
    columns = _split_columns(schedule, loops[-1], lanes)
    if columns is None:
        return None
    guarded, width = columns.is_guarded, columns.width
    lead = [loop for loop in loops[:-1] if loop not in others]
    schedule.reorder(*lead, columns.tiles, *others, columns.tile)
    outer = [*lead, *([] if guarded else [columns.tiles])]
    fused = set_parallel(schedule, outer, width * 16 * (1 if not guarded else max((extent or 64) // width, 1)))
    anchor = columns.tiles if guarded else fused
    if anchor is None:
        return None
    for name in producers:
        try:
            schedule.compute_at(name, anchor)
        except ScheduleError:
            _schedule_one(schedule, name, target)
    _vectorize_tile(schedule, columns.tile, lanes)
    for each in block_infos(schedule.func):
        if each.name != final and anchor in schedule.loops_of(each.name):
            _vector_of_reductions(schedule, each, anchor, width, lanes)
    return "column reduction"


@dataclass(frozen=True)
class _Columns:
    """A loop over columns cut in `tiles` and a `tile` of `width` columns; `is_guarded`: the last one may not be full."""

    tiles: str
    tile: str
    width: int
    is_guarded: bool


def _split_columns(schedule: Schedule, loop: str, lanes: int) -> _Columns | None:
    """Cut a loop into tiles of a few vectors; None where it is too short for one."""
    extent = extent_value(schedule, loop)
    if extent is not None and extent < 4:
        return None
    wide = extent is None or extent >= lanes
    width = lanes * _choose_accumulators(schedule, extent, lanes, ACCUMULATORS) if wide else extent
    assert width is not None, "a narrow row has a known extent"
    tiles, tile = schedule.split(loop, width)
    is_guarded = extent is None or extent % width != 0
    if is_guarded:
        schedule.annotate_loop(tiles, "partition", 1)
    return _Columns(tiles, tile, width, is_guarded)


def _vectorize_tile(schedule: Schedule, loop: str, lanes: int) -> None:
    """Vectorize a loop of a few vectors, these one after the other."""
    if (extent_value(schedule, loop) or 0) > lanes:
        vectors, loop = schedule.split(loop, lanes)
        schedule.unroll(vectors)
    schedule.vectorize(loop)


def _reduces_contiguously(schedule: Schedule, final: str) -> bool:
    """Whether all reductions run along the contiguous axis of what they read: then lanes belong to the reduction."""
    reductions = [info for info in block_infos(schedule.func) if info.reduction_axes and info.name != final]
    return not any(map(_keeps_last_axis, reductions))


def _keeps_last_axis(info: BlockInfo) -> bool:
    """Whether the contiguous axis of something that a reduction reads is none that it reduces."""
    indices = (load.indices for load in info.reads if load.buffer not in info.written_buffers and load.indices)
    return any(node in info.spatial_axes for each in indices for node in walk(each[-1]))


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
        for buffer in info.written_buffers if len(wide) == 1 else ():
            schedule.set_scope(buffer.name, "register")
    elif extent is not None and extent <= 2 * lanes:  # two vectors, the second one not full
        schedule.vectorize(lane)
    else:
        vectorize_loop(schedule, lane, lanes)
    if depth:
        schedule.decompose_reduction(info.name, depth[0])


def _schedule_one(schedule: Schedule, name: str, target: Target) -> None:
    """A stage that stands alone: parallel over its spatial loops, its reduction decomposed."""
    info = block_info(schedule, name)
    loops = list(schedule.loops_of(name))
    depth = driving_loops(info, loops, info.reduction_axes)
    spatial = [loop for loop in loops if loop not in depth]
    by_columns = depth and spatial and _keeps_last_axis(info)
    columns = _split_columns(schedule, spatial[-1], lanes_for(info, target)) if by_columns else None
    if columns is not None:
        outer = spatial[:-1]
        schedule.reorder(*outer, columns.tiles, *depth, columns.tile)
        _vectorize_tile(schedule, columns.tile, lanes_for(info, target))
        schedule.decompose_reduction(name, depth[0])
        whole = [*outer, *([] if columns.is_guarded else [columns.tiles])]
        set_parallel(schedule, whole, known_product(schedule, depth, 64) * columns.width)
    elif depth:
        if spatial and loops[: len(spatial)] != spatial:
            schedule.reorder(*spatial, *depth)
        schedule.decompose_reduction(name, depth[0])
        set_parallel(schedule, spatial, known_product(schedule, depth, 64))
    elif loops:
        *outer, last = loops
        _vectorize_row(schedule, last, lanes_for(info, target))
        if outer:
            set_parallel(schedule, outer, 64)


def schedule_stages(schedule: Schedule, target: Target) -> str | None:
    """What no other rule fits: each stage on its own, those for which there is no legal schedule as they are written."""

    def schedule_stage(name: str) -> str:
        _schedule_one(schedule, name, target)
        return name

    infos = block_infos(schedule.func)
    if any(info.is_opaque for info in infos):
        return None
    names = [info.name for info in infos if info.loops]
    done = [name for name in names if schedule.attempt(partial(schedule_stage, name))]
    return "stage by stage" if done else None


def _schedule_apart(schedule: Schedule, target: Target) -> None:
    """Every stage on its own."""
    for info in block_infos(schedule.func):
        if info.loops:
            _schedule_one(schedule, info.name, target)
