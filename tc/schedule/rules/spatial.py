"""Elementwise computation and data movement: stream through memory in vectors, on all cores."""

from __future__ import annotations

from tc.ir.expr import Const, Load, Var
from tc.ir.node import Node, children
from tc.schedule.analysis import BlockInfo, block_infos
from tc.schedule.rules.common import extent_value, lanes_for, loads_of, set_parallel
from tc.schedule.step import Schedule
from tc.target import Target


def schedule_spatial(schedule: Schedule, target: Target) -> str | None:
    """Vectorize the last loop and run the others in parallel; one loop over everything where all operands allow it."""
    infos = block_infos(schedule.func)
    if not infos or not all(info.is_spatial or not info.loops for info in infos):
        return None
    for info in infos:
        if info.is_spatial and info.loops:
            schedule_block(schedule, info.name, target)
    return "elementwise"


def schedule_block(schedule: Schedule, block: str, target: Target) -> None:
    """Vectorize and parallelize one elementwise block."""
    info = next(i for i in block_infos(schedule.func) if i.name == block)
    loops = list(schedule.loops_of(block))
    lanes = lanes_for(info, target)
    if len(loops) > 1 and _is_flat(info) and schedule.choose("stream/flat", (False, True), True, ordered=False):
        loops = [schedule.fuse(*loops)]
    *outer, last = loops
    extent = extent_value(schedule, last)
    if extent is not None and extent < lanes:
        if extent >= 4:
            schedule.vectorize(last)
            set_parallel(schedule, outer, extent)
        elif outer:
            set_parallel(schedule, outer, extent)
        return
    vectors = schedule.choose("stream/vectors", [count for count in (1, 2, 4, 8) if extent is None or count * lanes <= extent], 1)
    if vectors > 1:
        out, few, inner = schedule.split(last, (None, vectors, lanes))
        schedule.unroll(few)
    else:
        out, inner = schedule.split(last, lanes)
    schedule.vectorize(inner)
    if extent is None or extent % (vectors * lanes):
        schedule.annotate_loop(out, "partition", 1)
    if outer:
        set_parallel(schedule, outer, extent or 256)
    else:
        set_parallel(schedule, [out], vectors * lanes)


def _is_flat(info: BlockInfo) -> bool:
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
    axes = [axis.var for axis in info.block.axes]
    used = [index for index in store.indices if not isinstance(index, Const)]
    in_order = len(used) == len(axes) and all(a is b for a, b in zip(used, axes, strict=True))
    return in_order and not _value_vars(info)


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
