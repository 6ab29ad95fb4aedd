"""What the rules share: inlining, and choosing vector widths and grains."""

from __future__ import annotations

from itertools import islice

from tc.cost.typical import USUAL_DIM, USUAL_PRODUCT
from tc.errors import ScheduleError
from tc.ir.arith import simplify
from tc.ir.byte_table import PERMUTES_BYTES, place_in_table
from tc.ir.expr import Buffer, Const, Div, Expr, FloorDiv, FloorMod, Load, Lt, MathCall, Select, Var, const, is_const
from tc.ir.loop import Store
from tc.ir.node import Node, cached_on_node, children, walk
from tc.ir.polynomial import linear_coefficients
from tc.ir.uses import buffers_read, reads_memory, variables
from tc.schedule.analysis import BlockInfo, as_contraction, block_infos, consumers
from tc.schedule.layout import facts_of_axes
from tc.schedule.parts import choice_ends
from tc.schedule.step import Schedule
from tc.target import Target

MOST_VECTORS = 8
"""Vectors of its widest type in which an elementwise block of narrower ones may compute at once, of 32 registers. A function or a division
needs several for each, but one whose steps all wait for the one before needs few, and lets the next vector fill the time."""

TASKS_OF_CORE = 8
"""Tasks for a core that are enough: one more for one of them is little."""

TASK_ELEMENTS = 16384
"""Elements that one parallel task should at least touch: about 5 us of streaming, several times a fork and join."""

MOST_PARTS = 1024
"""Parts of an expression that is computed at several places, at most."""

MOST_PARTS_OF_TERM = 256
"""The same of a term of a reduction, of which trees of terms and the ends of rows have many copies."""

SYMBOLIC_BANDS = (1, 2, 4, 6, 8, 12)
"""How many rows of an image a band may have where their number is symbolic."""

SYMBOLIC_BAND = 6
"""How many it has: a window of five rows pads ten for six of the result, rather than five for each."""


MOST_TURNED = 7
"""Columns of a result, fewer than a vector has lanes, before which transpositions are made in a pass of their own."""

MOST_UNREAD = 4
"""Elements that are computed before for each that is computed with them, at most."""


def inline_elementwise(schedule: Schedule, *, keeps_tables: bool) -> None:
    """Inline every elementwise block that is cheap to compute where it is read. `keeps_tables`: not what would be computed anew for
    each row."""
    changed = True
    while changed:
        changed = False
        infos = block_infos(schedule.func)
        turned_last = sorted(infos, key=lambda info: len(info.writes) == 1 and _is_transposition(info))  # readers are whole by then
        for info in turned_last:
            if _should_inline(info, infos, schedule) and not (keeps_tables and _is_table(info, infos)):
                try:
                    schedule.compute_inline(info.name)
                except ScheduleError:
                    continue
                changed = True
                break


def _should_inline(info: BlockInfo, infos: list[BlockInfo], schedule: Schedule) -> bool:
    if not info.is_spatial or info.block.init is not None or len(info.writes) != 1:
        return False
    buffer = info.writes[0].buffer
    if buffer in schedule.func.buffers:
        return False
    readers = list(consumers(infos, buffer))
    if any(reader.is_opaque for reader in readers):
        return False
    heavy = is_heavy(info.writes[0].value) or is_large(info.writes[0].value, MOST_PARTS)
    if any(reader.reduction_axes for reader in readers) and is_large(info.writes[0].value, MOST_PARTS_OF_TERM):
        return False
    if any(as_contraction(reader) is not None for reader in readers):
        return not heavy and not _has_select(info.writes[0].value)
    if (_has_select(info.writes[0].value) or _is_transposition(info)) and any(
        r.reduction_axes and _is_rescanned(r, info) for r in readers
    ):
        return False
    if len(readers) == 1 and _is_transposition(info) and _joins_columns(readers[0], info, schedule):
        return False
    if _is_padding(info.writes[0].value) and not all(
        _num_points(reader) <= _num_points(info) or (_is_joined(info) and _reads_once(reader, buffer)) for reader in readers
    ):
        return False
    if len(info.reads) > 1 and any(_looks_up(reader, info, schedule) for reader in readers):
        return False
    if _spreads(info) and all(_reads_again(reader, buffer) for reader in readers):
        return False
    if len(readers) > 1 or any(len(reader.reads_of(buffer)) > 2 or _repeats(reader, buffer) for reader in readers):
        return not heavy
    return not (heavy and readers and readers[0].reduction_axes and _is_rescanned(readers[0], info))


def _is_table(info: BlockInfo, infos: list[BlockInfo]) -> bool:
    """Whether something that takes many steps is read along the last axis of its readers, and is the same along another of theirs. What
    follows a reduction is computed beside it."""
    if not is_heavy(info.writes[0].value):
        return False
    buffer = info.writes[0].buffer
    totals = {written for each in infos if each.reduction_axes for written in each.written_buffers}
    if any(load.buffer in totals for load in info.reads):
        return False
    for reader in consumers(infos, buffer):
        axes = [axis for axis in reader.block.axes if not is_const(axis.extent, 1)]
        used = frozenset[Var]().union(*(variables(index) for load in reader.reads_of(buffer) for index in load.indices))
        if len(axes) < 2 or axes[-1].var not in used or all(axis.var in used for axis in axes):
            return False
    return True


def looked_up(reader: BlockInfo, buffer: Buffer) -> list[Expr]:
    """The indices of a buffer that a block looks up for each lane: its vectors are gathered."""
    if not reader.is_spatial or not reader.block.axes:
        return []
    last = reader.block.axes[-1].var
    return [index for load in reader.reads_of(buffer) for index in load.indices if reads_memory(index) and last in variables(index)]


def _looks_up(reader: BlockInfo, info: BlockInfo, schedule: Schedule) -> bool:
    """Whether a block takes several vectors from places that it looks up in tables of its own, as in an image of another size: then what is
    there is better computed before, side by side, than once more at each of these places."""
    found = looked_up(reader, info.writes[0].buffer)
    given = set(schedule.func.inputs)
    few = _num_points(info) <= MOST_UNREAD * _num_points(reader)
    return len(found) > 1 and few and not any(buffers_read(index) & given for index in found)


def _is_padding(value: Expr) -> bool:
    """Whether the place of an element decides what it is."""
    return any(isinstance(node, Select) and not reads_memory(node.condition) for node in walk(value))


def _repeats(reader: BlockInfo, buffer: Buffer) -> bool:
    """Whether a block reads each element of a buffer at several places side by side, as what makes an image larger does."""
    for load in reader.reads_of(buffer):
        nodes = [node for index in load.indices for node in walk(index)]
        digits = {node.lhs for node in nodes if isinstance(node, FloorMod)}  # of which no two places have the same
        if any(isinstance(node, FloorDiv) and isinstance(node.rhs, Const) and node.lhs not in digits for node in nodes):
            return True
    return False


def _spreads(info: BlockInfo) -> bool:
    """Whether a block reads one element for some neighbours along its last axis, as what a group has for each of its channels."""
    last = info.block.axes[-1].var if info.block.axes else None
    return any(
        isinstance(node, FloorDiv) and last in variables(node.lhs) for load in info.reads for index in load.indices for node in walk(index)
    )


def _reads_again(reader: BlockInfo, buffer: Buffer) -> bool:
    """Whether a block reads an element of a buffer in all iterations of an axis: vectors of it had better not be gathered there."""
    used = {var for load in reader.reads_of(buffer) for index in load.indices for var in variables(index)}
    return any(axis.var not in used and not is_const(axis.extent, 1) for axis in reader.block.axes)


def _is_joined(info: BlockInfo) -> bool:
    """Whether each choice by the place alone is one between parts along an axis, as in a concatenation."""
    ends = {end for axis in range(len(info.block.axes)) for end in choice_ends(info.block, axis)}
    choices = [node.condition for node in walk(info.writes[0].value) if isinstance(node, Select) and not reads_memory(node.condition)]
    return all(isinstance(choice, Lt) and isinstance(choice.lhs, Var) and choice.rhs in ends for choice in choices)


def _reads_once(reader: BlockInfo, buffer: Buffer) -> bool:
    """Whether no two points of a block read the same element of a buffer, as its indices show: blocks of channels that fill others up."""
    extents = {axis.var: axis.extent.value for axis in reader.block.axes if isinstance(axis.extent, Const) and axis.extent.value != 1}
    loads = reader.reads_of(buffer)
    if len(loads) != 1 or len(extents) < sum(not is_const(axis.extent, 1) for axis in reader.block.axes):
        return False
    seen: set[Var] = set()
    for index in loads[0].indices:
        form = linear_coefficients(index, list(extents))
        if form is None or not seen.isdisjoint(form[0]):
            return False
        steps = [(int(step.value), extents[axis]) for axis, step in form[0].items() if isinstance(step, Const)]
        reach = 0
        for step, extent in sorted(steps):
            if step <= reach:
                return False
            reach += step * (int(extent) - 1)
        if len(steps) < len(form[0]):
            return False
        seen |= set(form[0])
    return len(seen) == len(extents)


def _num_points(info: BlockInfo) -> int:
    """How often a block runs; 0 where that is not known."""
    total = 1
    for axis in info.block.axes:
        total *= int(axis.extent.value) if isinstance(axis.extent, Const) else 0
    return total


def _is_transposition(info: BlockInfo) -> bool:
    """Whether the block reads something along its last axis that is not contiguous there."""
    last = info.writes[0].indices[-1] if info.writes[0].indices else None
    return isinstance(last, Var) and any(
        load.indices[-1] is not last and any(last is node for index in load.indices for node in walk(index))
        for load in loads_of(info)
        if load.indices
    )


def _joins_columns(reader: BlockInfo, info: BlockInfo, schedule: Schedule) -> bool:
    """Whether a block stores few columns, which it takes from rows side by side, or as they lie: vectors of rows are interleaved, or
    copied, in registers then, where of what is transposed as well it would take elements one by one (two to four times as long)."""
    axes = [axis for axis in reader.block.axes if not is_const(axis.extent, 1)]
    if not reader.is_spatial or len(axes) < 2 or not isinstance(axes[-1].extent, Const) or axes[-1].extent.value > MOST_TURNED:
        return False
    if _num_points(reader) < _num_points(info):
        return False
    row, column, columns = axes[-2].var, axes[-1].var, int(axes[-1].extent.value)
    facts = facts_of_axes(schedule.func)
    for load in reader.reads_of(info.writes[0].buffer):
        offset: Expr = const(0)
        for index, dim in zip(load.indices, load.buffer.shape, strict=True):
            offset = offset * dim + (const(0) if is_const(dim, 1) else index)
        form = linear_coefficients(simplify(offset, facts), [row, column])
        if form is None:
            return False
        step, across = form[0].get(row, const(0)), form[0].get(column, const(0))
        if not (is_const(step, 1) if not is_const(across, 1) else is_const(step, columns)):
            return False
    return True


def _is_rescanned(reader: BlockInfo, info: BlockInfo) -> bool:
    """Whether a reduction reads each element of the block more than once: windows that overlap."""
    buffer = info.writes[0].buffer
    axes = {axis.var for axis in reader.block.axes if not is_const(axis.extent, 1)}
    for load in reader.reads_of(buffer):
        moving = [used for index in load.indices if (used := variables(index) & axes)]
        if len(moving) < len(axes) or not axes <= frozenset().union(*moving):
            return True
    return False


def is_heavy(value: Expr) -> bool:
    """Whether computing the value twice costs more than storing it."""
    return not _operations(value) <= {_INTEGER_QUOTIENT, _CHOICE}


def is_large(value: Expr, most: int = MOST_PARTS_OF_TERM) -> bool:
    """Whether an expression has so many parts that copies of it, and copies of these, make programs that nobody compiles in time."""
    return next(islice(walk(value), most, None), None) is not None


def _has_select(value: Expr) -> bool:
    return _CHOICE in _operations(value)


_QUOTIENT, _INTEGER_QUOTIENT, _CHOICE = "/", "//", "?:"


@cached_on_node
def _operations(node: Node) -> frozenset[str]:
    """What is computed at a node or below it that rules ask for: functions, by their names, quotients, choices."""
    own: frozenset[str] = frozenset()
    if isinstance(node, MathCall):
        own = frozenset((node.name,))
    elif isinstance(node, Div):
        own = frozenset((_QUOTIENT,) if node.dtype.is_float else (_QUOTIENT, _INTEGER_QUOTIENT))
    elif isinstance(node, FloorDiv):
        own = frozenset((_INTEGER_QUOTIENT,))
    elif isinstance(node, Select):
        own = frozenset((_CHOICE,))
    below = children(node)
    if len(below) == 1 and not own:
        return _operations(below[0])
    return own.union(*map(_operations, below)) if below else own


def lanes_for(info: BlockInfo, target: Target) -> int:
    """Lanes of a vector of the widest type that the block stores, or of 32 bits where that is more: those that sums have."""
    bits = max([32, *(store.buffer.dtype.bits for store in info.writes)])
    return target.vector_bits // min(bits, 64)


def stream_lanes(info: BlockInfo, target: Target, extent: int | None = None) -> int:
    """Lanes of a vector of the narrowest type that an elementwise block loads or stores, for a loop of `extent` iterations.

    What is wider is computed in several vectors, no more than registers hold; as many compute functions that are chains of steps. Where
    an operand is not contiguous along the last axis, or is found through memory, its lanes are loaded one by one or shuffled, and there
    are as many as in `lanes_for`; not where it is a table that registers hold.
    """
    least = lanes_for(info, target)
    accesses: list[Load | Store] = [*loads_of(info), *info.writes]
    last = info.block.axes[-1].var if info.block.axes else None
    if PERMUTES_BYTES in target.features:
        accesses = [access for access in accesses if isinstance(access, Store) or place_in_table(access) is None]
    if last is None or len(info.writes) != 1 or not all(_is_streamed(access, last) for access in accesses):
        return least
    value = info.writes[0].value
    lanes, widest = target.vector_bits // max(8, min(access.buffer.dtype.bits for access in accesses)), _widest_bits(value)
    registers = MOST_VECTORS if target.vector_bits == 512 else MOST_VECTORS // 2
    if is_chain(value):
        registers = min(registers, 4)
        lanes = max(lanes, registers * target.vector_bits // widest)
    elif is_function(value):
        registers //= 2
    while lanes > least and (lanes * widest > registers * target.vector_bits or (extent is not None and lanes > extent)):
        lanes //= 2
    return max(lanes, least)


_FEW_INSTRUCTIONS = frozenset("fma floor ceil round trunc abs sign isnan isinf".split())


def is_function(value: Expr) -> bool:
    """Whether something is computed that takes many instructions and registers."""
    return not _operations(value) - {_QUOTIENT, _CHOICE} <= _FEW_INSTRUCTIONS


_CHAINS = frozenset("exp decay log tanh erf sigmoid normal_cdf".split())
"""Functions of f32 that are one polynomial, and little beside it."""


def is_chain(value: Expr) -> bool:
    """Whether the functions that are computed hold few registers, and most of their steps wait for the one before."""
    names = _operations(value) - _FEW_INSTRUCTIONS - {_QUOTIENT, _CHOICE}
    return bool(names) and names <= _CHAINS and _widest_bits(value) <= 32


def _is_streamed(access: Load | Store, axis: Var) -> bool:
    """Whether neighbours along an axis are neighbours in memory, or one element."""
    *outer, last = access.indices or (const(0),)
    if any(axis in variables(index) for index in outer) or reads_memory(last):
        return False
    form = linear_coefficients(last, [axis])
    return form is not None and (axis not in form[0] or is_const(form[0][axis], 1))


@cached_on_node
def _widest_bits(value: Expr) -> int:
    """The widest type in which something is computed; not where it is."""
    if isinstance(value, Load):
        return value.dtype.bits
    parts = (part for part in children(value) if isinstance(part, Expr) and not isinstance(part, Const))
    return max([value.dtype.bits, *map(_widest_bits, parts)])


def extent_value(schedule: Schedule, loop: str) -> int | None:
    extent = schedule.extent_of(loop)
    return int(extent.value) if isinstance(extent, Const) else None


def works_in_place(schedule: Schedule) -> bool:
    """Whether the result takes the place of an operand: no iteration may then run twice."""
    return any(key == "in_place" for key, _ in schedule.func.attrs)


def loops_inside(schedule: Schedule, block: str, anchor: str | None) -> list[str]:
    """The loops of a block inside of `anchor`, or all of them, that have more than one iteration."""
    loops = list(schedule.loops_of(block))
    inside = loops if anchor is None else loops[loops.index(anchor) + 1 :]
    return [loop for loop in inside if extent_value(schedule, loop) != 1]


def known_product(schedule: Schedule, loops: tuple[str, ...] | list[str], unknown: int = 32) -> int:
    """The product of the extents, symbolic ones taken as `unknown`."""
    total = 1
    for loop in loops:
        total *= extent_value(schedule, loop) or unknown
    return total


def divisors(number: int) -> list[int]:
    """The divisors of a positive number in order."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def set_parallel(schedule: Schedule, block: str, loops: list[str], work: int) -> str | None:
    """Run the nest of `loops` around `block` in parallel; returns the name of the innermost.

    `work`: what one iteration of that one does, in elements. Two symbolic extents together are taken to be USUAL_PRODUCT, more of them to
    be an image: where they are less the grain leaves one task.
    """
    if not loops:
        return None
    unknown = sum(extent_value(schedule, loop) is None for loop in loops)
    usual = USUAL_PRODUCT * USUAL_DIM ** max(unknown - 2, 0) if unknown else 1
    pays = known_product(schedule, loops, 1) * usual * work >= 2 * TASK_ELEMENTS
    if schedule.cores > 1:
        pays = schedule.choose(block, "parallel", (False, True), pays, ordered=False)
    if not pays:
        return loops[-1]
    count, grain = len(loops), max(1, TASK_ELEMENTS // max(work, 1))
    if schedule.cores > 1:
        count = schedule.choose(block, "parallel_loops", range(1, len(loops) + 1), count)
        most = max(1, known_product(schedule, loops[:count]) // schedule.cores)
        grain = schedule.choose(block, "parallel_grain", [size for size in (1, 2, 4, 8, 16, 64, 256) if size <= most], grain)
    for loop in loops[:count]:
        schedule.parallel(loop)
    if grain > 1:
        schedule.annotate_loop(loops[0], "grain", grain)
    return loops[-1]


def loads_of(info: BlockInfo) -> list[Load]:
    return [load for load in info.reads if load.buffer not in info.written_buffers]


def depth_block(load: Load, axes: tuple[Var, ...]) -> int | None:
    """The block size b when a load is at k // b and k % b for one of `axes`."""
    for index in load.indices:
        for node in walk(index):
            if isinstance(node, FloorDiv) and isinstance(node.rhs, Const) and node.lhs in axes:
                return int(node.rhs.value)
    return None


def buffer_bytes(buffer: Buffer, dims: tuple[Expr, ...] | None = None) -> int:
    """The size of a buffer, or of a part with these dims; symbolic ones together are taken to be USUAL_PRODUCT."""
    dims = buffer.shape if dims is None else dims
    total = buffer.dtype.size_bytes
    for dim in dims:
        total *= int(dim.value) if isinstance(dim, Const) else 1
    return total if all(isinstance(dim, Const) for dim in dims) else total * USUAL_PRODUCT
