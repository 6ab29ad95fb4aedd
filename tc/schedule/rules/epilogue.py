"""What rules for reductions share: finding their blocks and loops, and making one block of all that follows a reduction."""

from __future__ import annotations

from collections.abc import Sequence

from tc.errors import ScheduleError
from tc.ir.expr import Const, FloorMod, Var, is_const
from tc.ir.node import walk
from tc.schedule.analysis import BlockInfo, Contraction, as_contraction, block_infos, in_parts, sum_of_parts
from tc.schedule.rules.common import extent_value, stream_lanes
from tc.schedule.step import Schedule
from tc.target import Target


def final_block(schedule: Schedule, name: str, after: list[BlockInfo]) -> str | None:
    """Make everything after the contraction one block; returns its name."""
    if not after:
        schedule.cache_write(name, "register")
        return f"{name}_copy"
    last = inline_chain(schedule, [info.name for info in after])
    if last is None:
        return None
    contraction = next(info for info in block_infos(schedule.func) if info.name == name)
    _split_divided_axes(schedule, contraction, last)
    _fuse_joint_axes(schedule, contraction, last)
    return last


def inline_chain(schedule: Schedule, names: Sequence[str]) -> str | None:
    """Make one block of a chain of elementwise ones, the last; its name, None where that is not possible."""
    for name in names[:-1]:
        try:
            schedule.compute_inline(name)
        except ScheduleError:
            return None
    return names[-1]


def _split_divided_axes(schedule: Schedule, contraction: BlockInfo, final: str) -> None:
    """Where the result is read at axis // c and axis % c (groups of channels, phases of a transposed convolution), split that loop."""
    info = block_info(schedule, final)
    driven = {axis.var: axis.value for axis in info.block.axes}
    for load in info.reads:
        if load.buffer not in contraction.written_buffers:
            continue
        for index in load.indices:
            match index:
                case FloorMod(lhs=Var() as axis, rhs=Const(value=divisor)) if isinstance(loop := driven.get(axis), Var):
                    del driven[axis]
                    schedule.split(loop.name, int(divisor))
        return


def _fuse_joint_axes(schedule: Schedule, contraction: BlockInfo, final: str) -> None:
    """Where the sum runs over several neighbouring axes of the result as one (pixels, rows of a batch), fuse their loops."""
    loops = list(schedule.loops_of(final))
    axes = driven_spatial(contraction)
    joint = len(loops) - len(axes) + 1
    if joint < 2 or not axes:
        return
    place = 0
    extents = {axis.var: axis.extent for axis in contraction.block.axes}
    while place < len(axes) - 1 and schedule.extent_of(loops[place]) is extents[axes[place]]:
        place += 1
    schedule.fuse(*loops[place : place + joint])


def driven_spatial(info: BlockInfo) -> list[Var]:
    """The spatial axes of a block that has not been scheduled which have a loop (those of extent 1 have none)."""
    return [axis.var for axis in info.block.axes if axis.var in info.spatial_axes and isinstance(axis.value, Var)]


def is_single(info: BlockInfo, axis: Var) -> bool:
    return any(each.var is axis and is_const(each.extent, 1) for each in info.block.axes)


def block_info(schedule: Schedule, name: str) -> BlockInfo:
    return next(info for info in block_infos(schedule.func) if info.name == name)


def contraction_of(schedule: Schedule, name: str) -> Contraction:
    """What the block called `name` computes, known to be a contraction."""
    found = as_contraction(block_info(schedule, name))
    assert found is not None, f"{name} is a contraction"
    return in_parts(found, block_infos(schedule.func))


def total_of(schedule: Schedule, name: str) -> str:
    """The block that sums up the parts which the contraction called `name` makes; itself where it makes whole sums."""
    total = sum_of_parts(block_info(schedule, name), block_infos(schedule.func))
    return name if total is None else total.name


def result_lanes(schedule: Schedule, loop: str, target: Target, lanes: int) -> int:
    """How many lanes of the last loop of the block that stores a result are one vector: of bytes, as many vectors as become one."""
    info = next(info for info in block_infos(schedule.func) if loop in schedule.loops_of(info.name))
    is_bytes = all(store.buffer.dtype.bits == 8 for store in info.writes)
    return max(lanes, stream_lanes(info, target, extent_value(schedule, loop))) if is_bytes else lanes


def driving_loops(info: BlockInfo, loops: list[str], axes: tuple[Var, ...]) -> list[str]:
    """Those of `loops` that drive one of `axes`."""
    names = {
        node.name for axis in info.block.axes if axis.var in axes for node in walk(axis.value) if isinstance(node, Var)
    }
    return [loop for loop in loops if loop in names]
