"""Elements that need the ones before them along an axis: many of them at once beside that axis, in vectors or as chains of their own."""

from __future__ import annotations

from tc.ir.expr import Const, Var
from tc.ir.loop import AxisKind
from tc.ir.uses import reads_memory, variables
from tc.schedule.analysis import BlockInfo, block_infos
from tc.schedule.rules.common import extent_value, known_product, loops_inside, set_parallel, stream_lanes
from tc.schedule.rules.epilogue import block_info, driving_loops
from tc.schedule.rules.tile import cut_and_peel, peel, split_off
from tc.schedule.step import Schedule
from tc.target import Target

CHAINS = 8
"""Rows that are gone through side by side: an addition is done some cycles after it began."""

VECTORS = 4
"""Vectors that are gone through without a loop."""

MOST_VECTORS = 4
"""Of a row that is one vector, of whatever length: what a mask had stored at its end the next step would wait for."""

ROWS = 32
"""Rows for which a fold is gone through one after the other, before the results beside them: what these look up is near then.

Source: the tree-block by row-block order of compiled forests (Treebeard; Prasad, Rajendra, Govindarajan, 2022)."""

STRIP = 1024
"""Elements of a row that are read and written one after the other, before those behind them: few are left in the first cache."""

LONGEST_STRIP = 4 * STRIP
"""Of which the row before is in the second cache at least."""


def schedule_scan(schedule: Schedule, target: Target) -> str | None:
    """The axis that has an order inside of all others but vectors of the last one, or, if it is the last one itself, but some rows.

    for o: for t: for i: ...      =>      parallel o, strips: for t: for io: for iu in unrolled(4): for ii in vectorized: ...
    for o: for t: ...             =>      parallel oo: for t: for oi in unrolled(8): ...
    for r: for o: fold t          =>      parallel ro, oo: for ri in 32: for t: for oi in unrolled(16): ..., in registers
    """
    if not any(axis.kind is AxisKind.ORDERED for info in block_infos(schedule.func) for axis in info.block.axes):
        return None
    schedule.merge_dense()
    infos = block_infos(schedule.func)
    if len(infos) != 1:
        return None
    info = infos[0]
    ordered = [axis for axis in info.block.axes if axis.kind is AxisKind.ORDERED]
    if len(ordered) != 1 or any(axis.kind is AxisKind.REDUCTION for axis in info.block.axes):
        return None
    loops = list(schedule.loops_of(info.name))
    if any(extent_value(schedule, loop) == 0 for loop in loops):
        return None
    driving = [loop for loop, stmt in zip(loops, info.loops, strict=True) if stmt.var in variables(ordered[0].value)]
    if len(driving) != 1:
        return None
    (own,) = driving
    others = [loop for loop in loops if loop != own]
    if info.block.init is not None:
        return _beside_results(schedule, info, ordered[0].var, own, others)
    if len(loops) != sum(not isinstance(axis.value, Const) for axis in info.block.axes):  # axes of one element have no loop
        return None
    if loops[-1] != own:
        short = _short_version(schedule, info, others[-1], target)
        _beside_vectors(schedule, info, own, others, target)
        if short is not None:
            _one_by_one(schedule, short, list(schedule.loops_of(short)), loops.index(own))
    elif others:
        _beside_rows(schedule, info, own, others)
    return "scan"


def _short_version(schedule: Schedule, info: BlockInfo, last: str, target: Target) -> str | None:
    """The block of a version for rows that are shorter than a vector, where that is not known; in vectors each would be mostly nothing."""
    if extent_value(schedule, last) is not None:
        return None
    copies = split_off(schedule, [info.name], lambda: schedule.specialize(last, stream_lanes(info, target, None)))
    return copies.get(info.name)


def _one_by_one(schedule: Schedule, block: str, loops: list[str], own: int) -> None:
    """The loops in the order of memory, but that the ordered one, number `own`, is around the last."""
    schedule.reorder(*loops[:own], *loops[own + 1 : -1], loops[own], loops[-1])
    set_parallel(schedule, block, [*loops[:own], *loops[own + 1 : -1]], known_product(schedule, [loops[own]]))


def _beside_vectors(schedule: Schedule, info: BlockInfo, own: str, others: list[str], target: Target) -> None:
    *outer, last = others
    extent = extent_value(schedule, last)
    lanes = stream_lanes(info, target, extent)
    steps = known_product(schedule, [own])
    if extent is not None and (extent < lanes or (extent % lanes and extent < MOST_VECTORS * lanes)):
        outer, rows, chains = _side_by_side(schedule, info, outer, -(-extent // lanes))
        schedule.reorder(*outer, own, *rows, last)
        if extent >= 4:
            schedule.vectorize(last)
        set_parallel(schedule, info.name, outer, steps * extent * chains)
        return
    counts = [count for count in (1, 2, 4, 8) if extent is None or count * lanes <= extent]
    vectors = schedule.choose(info.name, "vectors", counts, max(count for count in counts if count <= VECTORS))
    step = vectors * lanes
    strip = schedule.choose(info.name, "strip", *_strips(schedule, outer, extent, step))
    rows, chains = [], 1
    if extent is not None and extent <= strip:
        outer, rows, chains = _side_by_side(schedule, info, outer, -(-strip // lanes))
    around, along, few, inside = schedule.split(last, (None, max(strip // step, 1), vectors, lanes))
    schedule.reorder(*outer, around, own, *rows, along, few, inside)
    schedule.unroll(few)
    schedule.vectorize(inside)
    if extent is None or extent % strip:
        peel(schedule, around, along)
    set_parallel(schedule, info.name, [*outer, around], steps * strip * chains)


def _side_by_side(schedule: Schedule, info: BlockInfo, outer: list[str], vectors: int) -> tuple[list[str], list[str], int]:
    """Some iterations of the last of the loops `outer`, of known extent, to be gone through at once where a step of one is so few vectors
    that it waits for the step before: the loops around, that of those iterations if there are several, and how many they are."""
    count = extent_value(schedule, outer[-1]) if outer else None
    if count is None:
        return outer, [], 1
    tasks = max(1, schedule.cores // max(known_product(schedule, outer[:-1], 1), 1))
    most = min(CHAINS // vectors, count // tasks)
    counts = [chains for chains in (1, 2, 4, 8) if chains <= count]
    chains = schedule.choose(info.name, "chains", counts, max(chains for chains in counts if chains <= max(most, 1)))
    if chains == 1:
        return outer, [], 1
    around, some = schedule.split(outer[-1], chains)
    schedule.unroll(some)
    if count % chains:
        peel(schedule, around)
    return [*outer[:-1], around], [some], chains


def _strips(schedule: Schedule, outer: list[str], extent: int | None, step: int) -> tuple[list[int], int]:
    """How many elements of a row may be a strip, and usually are: all of it, if it is no longer than the longest strip and there are other
    loops for the threads, for then rows are read in the order of memory; else what gives each thread one, or a strip that is not short."""
    if extent is None:
        return [256, STRIP, LONGEST_STRIP], STRIP
    whole = -(-extent // step) * step
    strips = [size for size in (256, STRIP, LONGEST_STRIP) if size < extent]
    threads = -(-schedule.cores // max(known_product(schedule, outer), 1))
    usual = min(whole, LONGEST_STRIP)
    if threads > 1:
        usual = min(usual, max(-(-extent // (threads * step)) * step, STRIP))
    return sorted({*strips, min(whole, LONGEST_STRIP), usual}), usual


def _beside_rows(schedule: Schedule, info: BlockInfo, own: str, others: list[str]) -> None:
    *outer, rows = others
    extent = extent_value(schedule, rows)
    counts = [count for count in (1, 2, 4, 8, 16) if extent is None or count <= extent]
    chains = schedule.choose(info.name, "chains", counts, max(count for count in counts if count <= CHAINS))
    around, few = schedule.split(rows, chains)
    schedule.reorder(*outer, around, own, few)
    schedule.unroll(few)
    if extent is None or extent % chains:
        peel(schedule, around)
    set_parallel(schedule, info.name, [*outer, around], known_product(schedule, [own]) * chains)


def _beside_results(schedule: Schedule, info: BlockInfo, order: Var, own: str, others: list[str]) -> str | None:
    """Some results of a fold, which goes on for all of them at once, in registers; None where data say how many steps there are."""
    steps, sizes = extent_value(schedule, own), [extent_value(schedule, loop) for loop in others]
    many = [size for size in sizes if size != 1]
    if not many or steps is None or steps == 1 or len(info.written_buffers) != 1:
        return None
    counts = [count for count in (1, 2, 4, 8, 16, 32) if many[-1] is None or count <= many[-1]]
    chains = schedule.choose(info.name, "chains", counts, max(count for count in counts if count <= 2 * CHAINS))
    copy = schedule.cache_write(info.name, "local")
    *front, last = sorted(schedule.loops_of(copy), key=lambda loop: extent_value(schedule, loop) != 1)  # those of one iteration first
    results = cut_and_peel(schedule, last, chains)
    whole, anchor = [*front, results.around], results.around
    if len(many) > 1:
        rows = cut_and_peel(schedule, front.pop(), ROWS)
        whole, anchor = [*front, rows.around, results.around], rows.inside
        schedule.reorder(*whole, rows.inside, results.inside)
    elif front:
        schedule.reorder(*whole, results.inside)
    schedule.unroll(results.inside)
    schedule.compute_at(info.name, anchor)
    inside = loops_inside(schedule, info.name, anchor)
    (own,) = driving_loops(block_info(schedule, info.name), inside, (order,))
    tile = [loop for loop in inside if loop != own]
    schedule.reorder(own, *tile)
    for loop in tile:
        schedule.unroll(loop)
    schedule.set_scope(block_info(schedule, info.name).written_buffers[0].name, "register")
    schedule.decompose_reduction(info.name, own)
    lookups = sum(any(map(reads_memory, load.indices)) for load in info.reads)
    set_parallel(schedule, copy, whole, steps * chains * (ROWS if len(many) > 1 else 1) * (1 + 4 * lookups))
    return "fold"
