"""Products whose result has one column, or a few: vectors lie along the sum, and each number of the result is a row reduction.

A tile of columns would leave most lanes of its vectors empty, and a matrix times a vector has no columns at all: its rows are as far
apart as the matrix is wide, and lanes that belong to them are loaded one by one.
"""

from __future__ import annotations

from functools import partial
from math import log2, prod

from tc.cost.rates import L2_STREAMS
from tc.cost.typical import USUAL_PRODUCT
from tc.ir.expr import Const, Load, Var, const, is_const
from tc.ir.uses import reads_memory
from tc.schedule.analysis import Contraction, block_infos
from tc.schedule.rules.common import known_product, lanes_for, loops_inside, set_parallel
from tc.schedule.rules.epilogue import block_info, driving_loops
from tc.schedule.rules.operands import LONGEST_CHAIN, moves_apart
from tc.schedule.rules.partial_sums import put_last
from tc.schedule.rules.reduction import schedule_rows
from tc.schedule.rules.spatial import schedule_block
from tc.schedule.rules.tile import cut_and_peel, peel, vectorize_tile
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.machine import machine_of
from tc.target.table import LINE_BYTES

ROW_CYCLES = 20.0
"""What a row of a tile takes beside its steps, of one load and one multiply-add each: its masked store, and the wait for the last sum."""

TREE_CYCLES = 3.0
"""What halving a vector of partial sums takes: a shuffle and an addition, after the one before."""

SUMS_SHARE = 0.75
"""The part of the vector registers in which sums of a tile are made."""

LEAST_ROWS = 2
"""Rows of a tile: of fewer, nothing is read once for several."""

LEAST_TERMS = 256
"""Terms of shorter sums are few beside the trees that they end in."""

COPY_CYCLES = 1.0
"""What copying an element across takes."""


def schedule_row_sums(schedule: Schedule, contraction: Contraction, target: Target) -> str | None:
    """Schedule a product as sums along its depth; None, with nothing changed but knobs, where that is not possible or worse.

    Blocks before the product are scheduled on their own.
    """
    name = contraction.info.name
    depth = _depth(contraction)
    if depth is None or not _lies_along(contraction.lhs if contraction.rows else contraction.rhs, depth):
        return None
    if contraction.rows and not _are_few(contraction, lanes_for(contraction.info, target)):
        return None
    other = contraction.rhs if contraction.rows else contraction.lhs
    is_copied = not _lies_along(other, depth)
    if is_copied and not _can_turn(schedule, contraction, depth):
        return None
    tile = _tile(contraction, depth, target)
    pays = _pays(contraction, depth, is_copied, target, tile)
    if schedule.choose(name, "lanes", ("columns", "depth"), "depth" if pays else "columns", ordered=False) == "columns":
        return None
    if is_copied:
        *batch, row, column = (f"a{d}" for d in range(len(other.indices)))
        schedule.cache_read(name, other.buffer.name, "global", f"{', '.join([*batch, row, column])} -> {', '.join([*batch, column, row])}")
    names = [info.name for info in block_infos(schedule.func)]
    before, after = names[: names.index(name)], names[names.index(name) + 1 :]
    if tile is not None and len(after) <= 1:
        made = schedule.attempt(partial(_schedule_tiles, schedule, contraction, depth, tile, target), "row_sums")
        if made is not None:
            for each in before:
                schedule_block(schedule, each, target)
            return made
    return schedule_rows(schedule, target, before)


def _tile(contraction: Contraction, depth: Var, target: Target) -> int | None:
    """Rows of which all columns are summed at once, each number in a vector of its own; None where that is not possible.

    What is read of the other operand, which no first cache holds beside a row, serves them all. A sum is one chain in each lane.
    """
    extents = {axis.var: axis.extent for axis in contraction.info.block.axes}
    columns = [extents[axis] for axis in contraction.columns]
    terms, rows = extents[depth], extents[contraction.rows[-1]] if contraction.rows else const(1)
    if not isinstance(terms, Const) or not LEAST_TERMS <= terms.value <= LONGEST_CHAIN:
        return None
    count = prod(int(extent.value) for extent in columns if isinstance(extent, Const))
    most = int(target.num_vector_registers * SUMS_SHARE) // count
    tile = 1 << min(3, most.bit_length() - 1) if most else 0
    return tile if tile >= LEAST_ROWS and (not isinstance(rows, Const) or rows.value >= 4 * tile) else None


def _schedule_tiles(schedule: Schedule, contraction: Contraction, depth: Var, rows: int, target: Target) -> str:
    """for i in rows, j: for k: C[i, j] += A[i, k] * B[k, j]   =>

    parallel io: for ko: for ii in unrolled(rows), j unrolled: for ki in vectorized: S[ii, j, ki] += ..., then C[ii, j] by a tree
    """
    name, lanes = contraction.info.name, lanes_for(contraction.info, target)
    extents = {axis.var: axis.extent for axis in contraction.info.block.axes}
    *_, last = block_infos(schedule.func)
    final = schedule.cache_write(name, "local") if last.name == name else last.name
    loops = loops_inside(schedule, final, None)
    place = len(loops) - sum(not is_const(extents[axis], 1) for axis in contraction.columns)
    *lead, row = loops[:place]
    tile = cut_and_peel(schedule, row, rows)
    schedule.reorder(*lead, tile.around, tile.inside, *loops[place:])
    terms = extents[depth]
    assert isinstance(terms, Const), "tiles are of sums of a known number of terms"
    set_parallel(schedule, final, [*lead, tile.around], known_product(schedule, loops[place:]) * rows * int(terms))
    schedule.compute_at(name, tile.around)
    info = block_info(schedule, name)
    (along,) = driving_loops(info, loops_inside(schedule, name, tile.around), info.reduction_axes)
    _, lane = schedule.split(along, lanes)
    part = schedule.rfactor(name, lane)
    *results, steps, lane = loops_inside(schedule, part, tile.around)
    schedule.reorder(steps, *results, lane)
    peel(schedule, steps)
    schedule.decompose_reduction(part, steps)
    for each in (f"{part}_init", part):
        *results, lane = (loop for loop in loops_inside(schedule, each, tile.around) if loop != steps)
        for loop in results:
            schedule.unroll(loop)
        vectorize_tile(schedule, lane, lanes)
    *results, tree = loops_inside(schedule, name, tile.around)
    schedule.decompose_reduction(name, tree)
    for loop in (*results, tree):
        schedule.unroll(loop)
    schedule.annotate_loop(tree, "tree", 1)
    (sums,) = block_info(schedule, part).written_buffers
    put_last(schedule, sums)
    schedule.set_scope(sums.name, "register")
    return "row reduction"


def _depth(contraction: Contraction) -> Var | None:
    """The axis that is summed over, if it is one."""
    extents = {axis.var: axis.extent for axis in contraction.info.block.axes}
    found = [axis for axis in contraction.depth if not is_const(extents[axis], 1)]
    return found[0] if len(found) == 1 else None


def _are_few(contraction: Contraction, lanes: int) -> bool:
    """Whether all columns fit a vector."""
    extents = [axis.extent for axis in contraction.info.block.axes if axis.var in contraction.columns]
    return all(isinstance(extent, Const) for extent in extents) and prod(int(e.value) for e in extents if isinstance(e, Const)) <= lanes


def _lies_along(load: Load, axis: Var) -> bool:
    """Whether neighbours along an axis are neighbours in memory."""
    place = next((k for k, index in enumerate(load.indices) if index is axis), None)
    return place is not None and all(is_const(dim, 1) for dim in load.buffer.shape[place + 1 :])


def _can_turn(schedule: Schedule, contraction: Contraction, depth: Var) -> bool:
    """Whether the rhs is an input of the program, a matrix for each of a batch, whose columns can be made rows."""
    rhs, value = contraction.rhs, contraction.rhs_value
    if not isinstance(value, Load) or len(rhs.indices) < 2:  # what is made on the way, or a vector
        return False
    is_matrix = rhs.indices[-2] is depth and rhs.indices[-1] in contraction.columns
    is_known = isinstance(rhs.buffer.shape[-2], Const) and not any(map(reads_memory, rhs.indices))
    return is_matrix and is_known and rhs.buffer in schedule.func.inputs and moves_apart(contraction, rhs)


def _pays(contraction: Contraction, depth: Var, is_copied: bool, target: Target, tile: int | None) -> bool:
    """Whether sums along the depth take fewer cycles than a tile whose vectors hold all columns, a row's number being broadcast to them."""
    lanes, machine = lanes_for(contraction.info, target), machine_of(target)
    sizes = {axis.var: int(e.value) if isinstance(e := axis.extent, Const) else USUAL_PRODUCT for axis in contraction.info.block.axes}
    terms = sizes[depth]
    if terms < lanes:
        return False
    if not contraction.rows:
        return True
    rows, columns = (prod(sizes[axis] for axis in axes) for axes in (contraction.rows, contraction.columns))
    vectors = -(-terms // lanes)
    vector_bytes = target.vector_bits // 8
    stays_near = (columns + 1) * vectors * vector_bytes <= target.l1_bytes
    far = 0.0 if stays_near else L2_STREAMS * machine.l2_cycles_per_line * vector_bytes / LINE_BYTES
    step = 2 / machine.loads_per_cycle + far  # of one row and column
    if tile is not None:
        step = max(1 / machine.fma_per_cycle, (tile + columns) / (tile * columns * machine.loads_per_cycle)) + far / tile
    one = vectors * step + TREE_CYCLES * log2(lanes)
    copy = COPY_CYCLES * terms * columns if is_copied else 0.0
    return rows * columns * one + copy < rows * (terms / machine.loads_per_cycle + ROW_CYCLES)
