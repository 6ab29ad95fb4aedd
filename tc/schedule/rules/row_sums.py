"""Products whose result has one column, or a few: vectors lie along the sum, and each number of the result is a row reduction.

A tile of columns would leave most lanes of its vectors empty, and a matrix times a vector has no columns at all: its rows are as far
apart as the matrix is wide, and lanes that belong to them are loaded one by one.
"""

from __future__ import annotations

from math import log2, prod

from tc.cost.rates import L2_STREAMS
from tc.cost.typical import USUAL_PRODUCT
from tc.ir.expr import Const, Load, Var, is_const
from tc.ir.uses import reads_memory
from tc.schedule.analysis import Contraction, block_infos
from tc.schedule.rules.common import lanes_for
from tc.schedule.rules.operands import moves_apart
from tc.schedule.rules.reduction import schedule_rows
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.machine import machine_of
from tc.target.table import LINE_BYTES

ROW_CYCLES = 20.0
"""What a row of a tile takes beside its steps, of one load and one multiply-add each: its masked store, and the wait for the last sum."""

TREE_CYCLES = 3.0
"""What halving a vector of partial sums takes: a shuffle and an addition, after the one before."""

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
    pays = _pays(contraction, depth, is_copied, target)
    if schedule.choose(name, "lanes", ("columns", "depth"), "depth" if pays else "columns", ordered=False) == "columns":
        return None
    if is_copied:
        *batch, row, column = (f"a{d}" for d in range(len(other.indices)))
        schedule.cache_read(name, other.buffer.name, "global", f"{', '.join([*batch, row, column])} -> {', '.join([*batch, column, row])}")
    infos = block_infos(schedule.func)
    before = [info.name for info in infos[: [info.name for info in infos].index(name)]]
    return schedule_rows(schedule, target, before)


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
    is_matrix = isinstance(value, Load) and len(rhs.indices) >= 2 and rhs.indices[-2] is depth and rhs.indices[-1] in contraction.columns
    is_known = isinstance(rhs.buffer.shape[-2], Const) and not any(map(reads_memory, rhs.indices))
    return is_matrix and is_known and rhs.buffer in schedule.func.inputs and moves_apart(contraction, rhs)


def _pays(contraction: Contraction, depth: Var, is_copied: bool, target: Target) -> bool:
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
    loads = 2 / machine.loads_per_cycle + far
    one = vectors * loads + TREE_CYCLES * log2(lanes)
    copy = COPY_CYCLES * terms * columns if is_copied else 0.0
    return rows * columns * one + copy < rows * (terms / machine.loads_per_cycle + ROW_CYCLES)
