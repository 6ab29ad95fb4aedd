"""How long reductions are taken apart: vectors of partial results, few terms in a row, and trees over what these give.

A sum of n terms in a row has an error that grows with n; a tree of additions one that grows with log2(n). Here no partial sum takes
more than `CHAIN` terms one after the other: longer ones are cut in parts, of a size that is fixed by shape and target (never by
threads), and the parts' sums are summed in turn by a tree or by more parts. Along the contiguous axis the terms of a part lie in the
lanes of several vectors; otherwise the lanes belong to neighbouring results. So the deepest path of additions to any term of a sum
is about 4 + log2(n) long: 4 + log2 of the terms of the first level, log2 on every other.
"""

from __future__ import annotations

from math import prod

from tc.ir.arith import prove
from tc.ir.expr import Buffer, Const, equal
from tc.ir.loop import annotation
from tc.ir.types import product
from tc.ir.uses import reads_memory, variables
from tc.schedule.analysis import BlockInfo, axes_in
from tc.schedule.rules.common import extent_value, lanes_for, loads_of, loops_inside
from tc.schedule.rules.epilogue import block_info, driving_loops
from tc.schedule.rules.tile import peel, vectorize_loop, vectorize_tile
from tc.schedule.step import Schedule
from tc.target import Target

ACCUMULATORS = 4
"""Vectors that a row reduction sums into at once, to hide the latency of additions."""

CHAIN = 8
"""Terms that are added one after the other at the first level: 7 additions, 4 more than a tree of them is deep."""

LATER_CHAIN = 2
"""The same at later levels: as deep as a tree."""

MOST_LEVELS = 2
"""How often a reduction of symbolic extent is cut in parts: what remains then is short for all that fits in memory."""

FEW_LANES = 4
"""Lanes in which pairs of partial results, such as a largest one and its place, are combined before that is done one after the other."""

FEW_VECTORS = 8
"""Vectors of a row that are taken one after the other without a loop."""

FAN = 16
"""Vectors of partial results that are combined by one tree."""

UNKNOWN_STEPS = 1 << 40
"""How many steps a loop of symbolic extent is taken to make."""

ROUNDING = ("sum", "prod", "log_sum_exp")
"""Monoids whose combination rounds."""


def rounds(info: BlockInfo) -> bool:
    """Whether the result of a reduction depends on the order of its terms."""
    return annotation(info.block, "monoid") in ROUNDING and any(buffer.dtype.is_float for buffer in info.written_buffers)


def is_long_sum(info: BlockInfo) -> bool:
    """Whether a reduction rounds, and has too many terms to be added one after the other."""
    extents = [axis.extent for axis in info.block.axes if axis.var in info.reduction_axes]
    return rounds(info) and prod(int(e.value) if isinstance(e, Const) else UNKNOWN_STEPS for e in extents) > 2 * CHAIN


# -- lanes along the reduction


def reduce_along(schedule: Schedule, name: str, anchor: str, target: Target, accumulators: int = ACCUMULATORS) -> None:
    """Reduce along the lanes of about `accumulators` vectors at once, for a block inside the loop `anchor`."""
    reduce_in_lanes(schedule, name, loops_inside(schedule, name, anchor), target, accumulators)


LEAST_LANES = 2
"""Of a vector that a short piece of a row makes by itself."""


def reduce_in_lanes(
    schedule: Schedule,
    name: str,
    inside: list[str],
    target: Target,
    most: int = ACCUMULATORS,
    level: int = 0,
    *,
    most_terms: int | None = None,
    is_plain: bool = True,
) -> None:
    """Partial results in the lanes of a few vectors, at the end combined as a tree; in parts where there are many terms.

    `inside`: the loops of the block that are its own. `level`: how often its terms were cut in parts already; `most_terms`: where that is
    known there are so few that they need no parts. `is_plain`: terms are loaded rather than computed, so that loops over a few vectors
    of them are worth unrolling.
    """
    info = block_info(schedule, name)
    depth = driving_loops(info, inside, info.reduction_axes)
    if not depth:
        return
    lanes = lanes_for(info, target)
    terms = _extent(schedule, depth)
    others = [loop for loop in inside if loop not in depth]
    loops = list(schedule.loops_of(name))
    around = loops[loops.index(depth[0]) :]
    schedule.reorder(*(loop for loop in around if loop not in depth), *depth)
    depth = joined_terms(schedule, info, depth)
    extent = extent_value(schedule, depth[-1])
    if extent is not None and LEAST_LANES <= extent < lanes <= terms and len(info.written_buffers) == 1:
        lanes = extent  # short pieces of a row, apart from each other, are a vector each
    if terms < lanes or (extent is not None and extent < lanes):
        schedule.decompose_reduction(name, depth[0])
        return
    if len(info.written_buffers) > 1:  # lanes are combined one after the other: twice as many pay where that saves as many steps of a row
        most = 2 if extent is not None and extent // lanes >= 2 * lanes else 1
    registers = most * (4 if target.vector_bits == 512 else 2)
    accumulators = accumulators_for(extent, lanes, most)
    chain = LATER_CHAIN if level else CHAIN
    is_short = most_terms is not None or not _is_known_before(schedule, depth)
    if rounds(info) and not is_short and (extent is not None or level < MOST_LEVELS):
        while accumulators < registers and _steps(schedule, depth, lanes * accumulators) > chain and not (
            extent is None or extent <= lanes * accumulators
        ):
            accumulators *= 2
        if _steps(schedule, depth, lanes * accumulators) > chain:
            _in_parts(schedule, name, depth, others, target, most, level, is_plain)
            return
    accumulators = choose_accumulators(schedule, name, extent, lanes, accumulators)
    is_one_step = most_terms is not None and most_terms <= lanes * accumulators
    _in_lanes(schedule, name, depth, others, lanes, accumulators, is_plain, is_one_step)


def _is_known_before(schedule: Schedule, loops: list[str]) -> bool:
    """Whether dims alone decide how often loops run, so that partial results of their iterations can have a place in memory.

    Where other loops or data decide it, as in rows of different lengths, all terms are summed into a few vectors.
    """
    extents = [schedule.extent_of(loop) for loop in loops]
    return all(variables(extent) <= set(schedule.func.dims) and not reads_memory(extent) for extent in extents)


def _extent(schedule: Schedule, loops: list[str]) -> int:
    return prod(extent_value(schedule, loop) or UNKNOWN_STEPS for loop in loops)


def _steps(schedule: Schedule, depth: list[str], width: int) -> int:
    """How many vectors of `width` lanes along the last of the loops there are."""
    *outer, along = depth
    extent = extent_value(schedule, along)
    return UNKNOWN_STEPS if extent is None else _extent(schedule, outer) * -(-extent // width)


def accumulators_for(extent: int | None, lanes: int, most: int) -> int:
    """Vectors that are summed into at once: as many as hide latency, a power of two, none of them idle."""
    if extent is None:
        return most
    found = 1
    while found < most and extent >= 2 * found * lanes:
        found *= 2
    return found


def choose_accumulators(schedule: Schedule, block: str, extent: int | None, lanes: int, default: int) -> int:
    options = [count for count in (1, 2, 4, 8, 16) if extent is None or count * lanes <= max(extent, lanes)]
    return schedule.choose(block, "accumulators", options, default)


def joined_terms(schedule: Schedule, info: BlockInfo, depth: list[str]) -> list[str]:
    """The reduction loops, those fused over which memory is dense, the innermost last."""
    order = list(schedule.loops_of(info.name))
    *rest, last = depth
    while rest and order.index(rest[-1]) == order.index(last) - 1 and _is_dense(schedule, info, rest[-1], last):
        last = schedule.fuse(rest.pop(), last)
        info, order = block_info(schedule, info.name), list(schedule.loops_of(info.name))
    return [*rest, last]


def _is_dense(schedule: Schedule, info: BlockInfo, outer: str, inner: str) -> bool:
    """Whether what a block reads along `inner` goes on where the next iteration of `outer` begins."""
    values = {axis.var: axis.value for axis in info.block.axes}
    axes = {loop: {var for var, value in values.items() if any(v.name == loop for v in axes_in(value))} for loop in (outer, inner)}
    found = False
    for load in loads_of(info):
        places = [[k for k, index in enumerate(load.indices) if axes_in(index) & axes[loop]] for loop in (outer, inner)]
        if not all(places):
            continue
        (a, *more), (b, *others) = places
        inside = range(b, b + 1 + len(others))
        if more or [b, *others] != list(inside) or b - a not in (0, 1) or (others and a == b):
            return False
        size = schedule.extent_of(inner)
        if b == a + 1 and prove(equal(product(tuple(load.buffer.shape[k] for k in inside)), size)) is not True:
            return False
        found = True
    return found


def _in_lanes(
    schedule: Schedule,
    name: str,
    depth: list[str],
    others: list[str],
    lanes: int,
    accumulators: int,
    is_unrolled: bool = True,
    is_one_step: bool = False,
) -> None:
    """All terms at once: `accumulators` vectors that take those of the last of the loops in turn, then one tree.

    `is_unrolled`: a short loop over vectors is worth unrolling. `is_one_step`: the vectors hold all terms, and only where they hold more.
    """
    out, inner = schedule.split(depth[-1], lanes * accumulators)
    partial = schedule.rfactor(name, inner)
    steps = [*depth[:-1], out]
    around = schedule.loops_of(name)[-2:-1]
    is_apart = bool(around) and around[0] not in schedule.loops_of(partial) and not others  # rows are loops of the block's own
    is_one = len(block_info(schedule, partial).written_buffers) == 1
    if is_apart and is_one:
        schedule.compute_at(partial, around[0])
        own = loops_inside(schedule, partial, around[0])
        info = block_info(schedule, partial)
        steps = driving_loops(info, own, info.reduction_axes)
        inner = next(loop for loop in own if loop not in steps)
    loops = list(schedule.loops_of(partial))
    chain = loops[min(map(loops.index, (*steps, inner))) :]
    schedule.reorder(*[loop for loop in chain if loop not in (*steps, inner)], *steps, inner)
    if steps and not is_one_step:
        peel(schedule, steps[-1])
        if is_unrolled:
            unroll_few(schedule, partial, steps[-1])
    schedule.decompose_reduction(partial, (steps or [inner])[0])
    for each in (f"{partial}_init", partial):
        vectorize_tile(schedule, schedule.loops_of(each)[-1], lanes)
    if not is_one and lanes * accumulators >= FEW_LANES**2:
        _in_few_lanes(schedule, name)
    final_loop = schedule.loops_of(name)[-1]
    schedule.decompose_reduction(name, final_loop)
    schedule.unroll(final_loop)
    schedule.annotate_loop(final_loop, "tree", 1)
    for buffer in block_info(schedule, partial).written_buffers:
        if is_apart and not is_one:
            put_last(schedule, buffer)
        elif others:  # several rows: all partial results, then all trees, side by side
            put_last(schedule, buffer)
            schedule.set_scope(buffer.name, "local")
        else:
            schedule.set_scope(buffer.name, "register")


def _in_few_lanes(schedule: Schedule, name: str) -> None:
    """Combine the partial results of lanes in few lanes first: one after the other, each step waits for the one before."""
    _, few = schedule.split(schedule.loops_of(name)[-1], FEW_LANES)
    part = schedule.rfactor(name, few)
    along = schedule.loops_of(part)[-2]
    schedule.decompose_reduction(part, along)
    for each in (f"{part}_init", part):
        vectorize_tile(schedule, schedule.loops_of(each)[-1], FEW_LANES)
    schedule.unroll(along)
    for buffer in block_info(schedule, part).written_buffers:
        put_last(schedule, buffer)


def _in_parts(
    schedule: Schedule, name: str, depth: list[str], others: list[str], target: Target, most: int, level: int, is_plain: bool
) -> None:
    """A sum for every part of the terms, each by one tree, and then the sum of these."""
    lanes, extent = lanes_for(block_info(schedule, name), target), extent_value(schedule, depth[-1])
    more = (2 if level == 0 else 4) if target.vector_bits == 512 else (1 if level == 0 else 2)
    more = 1 if extent is None else more  # the last part may be short
    accumulators = accumulators_for(extent, lanes, most * more)
    chain = LATER_CHAIN if level else CHAIN
    terms = lanes * accumulators * chain
    is_cut = len(depth) > 1 and extent is not None and extent > terms and extent % terms > 0  # every few parts one, under a condition
    parts = cut(schedule, depth, others, terms, chain, lanes * accumulators)
    part = schedule.rfactor(name, parts)
    loops = list(schedule.loops_of(part))
    is_unrolled = is_plain and extent is not None and not is_cut
    _in_lanes(schedule, part, loops[loops.index(parts) + 1 :], [], lanes, accumulators, is_unrolled)
    peel(schedule, schedule.loops_of(part)[-2])
    for buffer in block_info(schedule, part).written_buffers:
        put_last(schedule, buffer)
    own = list(schedule.loops_of(name))
    reduce_in_lanes(schedule, name, [own[-1]], target, most, level + 1)


def cut(schedule: Schedule, depth: list[str], spatial: list[str], terms: int, chain: int, width: int, most: int = 1) -> str:
    """Make one loop over parts of at most about `terms` terms each; returns its name. It is around what remains of the loops.

    Where the last loop alone is long, parts are pieces of it; otherwise they are iterations of the loop before, `chain` vectors
    of `width` terms together. Parts that are all of one size, so that no term stands under a condition, may be `most` times as large.
    """
    *outer, along = depth
    extent = extent_value(schedule, along)
    if extent is None or extent > most * terms or not outer:
        part, rest = schedule.split(along, terms)
        parts, chained = [*outer, part], [rest]
    else:
        *outer, last = outer
        part, some = schedule.split(last, _even_part(extent_value(schedule, last), chain / -(-extent // width), most))
        parts, chained = [*outer, part], [some, along]
    schedule.reorder(*spatial, *parts, *chained)
    if most > 1 and len(chained) > 1:  # so many terms that they are added as a tree
        schedule.fuse(*chained)
    return schedule.fuse(*parts)


def _even_part(extent: int | None, wanted: float, most: int) -> int:
    """About as many iterations of a loop as are wanted: more, up to `most` times as many, or fewer, down to a third, where that divides
    it."""
    few = max(1, int(wanted))
    if extent is None:
        return few
    divisors = [size for size in range(few, min(extent, int(wanted * most)) + 1) if extent % size == 0]
    fewer = [size for size in range(few, max(few // 3, 1) - 1, -1) if extent % size == 0]
    return (divisors or fewer or [few])[0]


# -- lanes over neighbouring results


def reduce_in_columns(
    schedule: Schedule, name: str, anchor: str, width: int, lanes: int, *, is_local: bool = True, is_short: bool = False,
    is_row: bool = False,
) -> None:  # fmt: skip
    """Vectors of results, for a block inside the loop `anchor`; a tree over parts of the terms where there are many.

    `is_local`: the results are used inside the loop alone; `is_short`: the terms are few in any case; `is_row`: they lie side by side, so
    that vectors of all of them come from the same memory.
    """
    info = block_info(schedule, name)
    inside = loops_inside(schedule, name, anchor)
    depth = driving_loops(info, inside, info.reduction_axes)
    spatial = [loop for loop in inside if loop not in depth]
    if not spatial:
        if depth:
            schedule.decompose_reduction(name, depth[0])
        return
    *others, lane = sorted(spatial, key=lambda loop: is_row and extent_value(schedule, loop) != 1)
    if depth:
        loops = schedule.loops_of(name)
        single = [loop for loop in loops[loops.index(anchor) + 1 :] if loop not in inside and len(depth) > 1]  # none between two of these
        schedule.reorder(*single, *others, *depth, lane)
    extent = extent_value(schedule, lane)
    is_tile = extent is not None and extent <= width
    is_short = is_short or not _is_known_before(schedule, depth)
    if is_tile and rounds(info) and not is_short and _extent(schedule, depth) > 2 * CHAIN:
        _columns_in_parts(schedule, name, joined_terms(schedule, info, depth), others, lanes)
        return
    if is_tile:
        vectorize_tile(schedule, lane, lanes)
        for buffer in info.written_buffers if is_local and not others else ():
            schedule.set_scope(buffer.name, "register")
    elif extent is not None and extent <= 2 * lanes:  # two vectors, the second one not full
        schedule.vectorize(lane)
    else:
        vectorize_loop(schedule, lane, lanes)
    if is_row and depth:
        schedule.unroll(depth[-1])
    if depth:
        schedule.decompose_reduction(name, depth[0])


def _columns_in_parts(schedule: Schedule, name: str, depth: list[str], others: list[str], lanes: int) -> None:
    """Chains of a few terms, trees over `FAN` of their sums where these are made, and trees over those in turn."""
    parts = cut(schedule, depth, others, CHAIN, CHAIN, 1, most=2)
    if _extent(schedule, [parts]) > FAN:
        count = extent_value(schedule, parts)
        even = _even_part(count, FAN, 1)
        parts, fan = schedule.split(parts, even if count is not None and count // even <= FAN else FAN)
        part = schedule.rfactor(name, parts)
        chain = schedule.rfactor(part, fan)
        schedule.compute_at(chain, _vectors_of_part(schedule, part, lanes))
    else:
        chain = schedule.rfactor(name, parts)
    _vectors_of_part(schedule, chain, lanes)
    for _ in range(MOST_LEVELS):
        steps = schedule.loops_of(name)[-1]
        if _extent(schedule, [steps]) > FAN:
            parts, _ = schedule.split(steps, FAN)
            _vectors_of_part(schedule, schedule.rfactor(name, parts), lanes)
    _vectors_of_part(schedule, name, lanes, is_last=True)


def _vectors_of_part(schedule: Schedule, name: str, lanes: int, *, is_last: bool = False) -> str:
    """Vectors of sums, as trees where these are of `FAN` terms at most; the loop over parts, each of which has sums of its own."""
    info = block_info(schedule, name)
    loops = [loop for loop in schedule.loops_of(name) if extent_value(schedule, loop) != 1]
    steps = driving_loops(info, loops, info.reduction_axes) or driving_loops(info, [*schedule.loops_of(name)], info.reduction_axes)[-1:]
    own = [] if is_last else driving_loops(info, loops, info.spatial_axes[:1])  # rfactor puts the axis of parts first
    lane = [loop for loop in driving_loops(info, loops, info.spatial_axes) if loop not in own][-1]
    schedule.reorder(*own, *steps, lane)
    vectorize_tile(schedule, lane, lanes)
    if len(steps) == 1 and _extent(schedule, steps) <= FAN:
        schedule.unroll(steps[0])
        schedule.annotate_loop(steps[0], "tree", 1)
    schedule.decompose_reduction(name, steps[0])
    if is_last or not own:  # of one part there is no loop over parts
        return ""
    peel(schedule, own[-1])
    return own[-1]


def reduce_parts(schedule: Schedule, name: str, terms: int, *, is_row: bool) -> None:
    """A block that reduces parts of about `terms` terms each, and the block `name`, which reduces what that gives.

    `is_row`: the reduction runs along the contiguous axis.
    """
    info = block_info(schedule, name)
    loops = list(schedule.loops_of(name))
    depth = driving_loops(info, loops, info.reduction_axes)
    spatial = [loop for loop in loops if loop not in depth]
    schedule.reorder(*spatial, *depth)
    depth = joined_terms(schedule, info, depth)
    parts = cut(schedule, depth, spatial, terms, terms, 1)
    part = schedule.rfactor(name, parts)
    if not is_row:
        schedule.reorder(parts, *spatial)
    for buffer in block_info(schedule, part).written_buffers if is_row else ():
        put_last(schedule, buffer)


def put_last(schedule: Schedule, buffer: Buffer) -> None:
    """Put the axis of partial results, their first one, last."""
    names = [f"a{d}" for d in range(len(buffer.shape))]
    if len(names) > 1:
        schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join([*names[1:], names[0]])}")


def unroll_few(schedule: Schedule, block: str, loop: str) -> None:
    """Unroll a loop of few vectors around `block`: a short row then stays in registers from stage to stage."""
    extent = extent_value(schedule, loop)
    if extent is None or not 1 < extent <= 4 * FEW_VECTORS:
        return
    if schedule.choose(block, "unroll", (False, True), extent <= FEW_VECTORS, ordered=False):
        schedule.unroll(loop)
