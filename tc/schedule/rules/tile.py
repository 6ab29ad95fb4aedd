"""What schedules of tiles are made of: loops cut in two, parts that are peeled, vectors, sums in registers, versions of a program.

Each function takes a schedule and names of its loops and blocks, does one thing, and returns the names of what it made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import inf, prod

from tc.cost.typical import USUAL_DIM, typical
from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove
from tc.schedule.analysis import Contraction, block_infos
from tc.schedule.rules.common import buffer_bytes, extent_value
from tc.schedule.rules.epilogue import block_info, driving_loops
from tc.schedule.step import Schedule, Step
from tc.schedule.tree import facts_at, find_loop

GROWN_DIM = 16 * USUAL_DIM
"""A symbolic dim that has become large."""

MOST_GROWTH = 4
"""How much more often, for each element, a block may run when dims have become large, where it is computed inside a loop of its readers:
halos and parts that overlap are less."""

TILES_AHEAD = 8192
"""How many bytes ahead tiles of the rhs are fetched: four to eight products of each."""

LEAST_FAR_BYTES = 1 << 16
"""Of an operand that is taken to come from memory. Measured on an Emerald Rapids in whole models: ResNet-50 takes 0.94 of the time, MiniLM
0.9, others 0.97 to 1."""

# -- loops in two


@dataclass(frozen=True)
class Cut:
    """A loop in two: `around` counts parts, `inside` runs through one. `is_whole`: none is cut short."""

    around: str
    inside: str
    is_whole: bool


def cut(schedule: Schedule, loop: str, size: int) -> Cut:
    """Cut a loop in parts of `size` iterations."""
    extent = extent_value(schedule, loop)
    around, inside = schedule.split(loop, size)
    return Cut(around, inside, size == 1 or (extent is not None and extent % size == 0))


def cut_overlapped(schedule: Schedule, loop: str, size: int) -> Cut:
    """`cut`, the last part being shifted to end where the loop ends; just `cut` where the loop may have fewer iterations than a part."""
    try:
        return Cut(*schedule.split_overlapped(loop, size), True)
    except ScheduleError:
        return cut(schedule, loop, size)


def cut_and_peel(schedule: Schedule, loop: str, size: int) -> Cut:
    """`cut`, a part that is cut short being run by code of its own, so that the others need no guard."""
    made = cut(schedule, loop, size)
    if not made.is_whole:
        peel(schedule, made.around)
    return made


def peel(schedule: Schedule, *loops: str) -> None:
    """Let iterations of loops that have guards be run by code of their own."""
    for loop in loops:
        schedule.annotate_loop(loop, "partition", 1)


def is_peeled(schedule: Schedule, loop: str) -> bool:
    """Whether iterations of a loop that have guards are to be run by code of their own."""
    return find_loop(schedule.func, loop).loop.hints.partition


def up_to_peeled(schedule: Schedule, loops: Sequence[str]) -> list[str]:
    """The leading loops that can run as one: up to one that is to be peeled."""
    return list(takewhile(lambda loop: not is_peeled(schedule, loop), loops))


def cut_tiles(schedule: Schedule, loop: str, size: int) -> Cut:
    """Cut a loop over tiles in groups; both loops are peeled where the last tile or the last group is cut short."""
    was_peeled = is_peeled(schedule, loop)
    made = cut(schedule, loop, size)
    if was_peeled or not made.is_whole:
        peel(schedule, made.inside, made.around)
    return made


def even_sizes(count: int) -> list[int]:
    """How many of `count` tiles a part may have, the last part being as near to the others as can be; in order."""
    return sorted({-(-count // parts) for parts in range(1, count + 1)})


def largest(sizes: Iterable[int], most: int) -> int:
    """The largest of these sizes that is not more than `most`."""
    return max(size for size in sizes if size <= most)


# -- vectors


def cut_vectors(schedule: Schedule, loop: str, lanes: int) -> tuple[list[str], str]:
    """The loop over vectors of a loop, if it has several, and the loop over the lanes of one."""
    extent = extent_value(schedule, loop)
    if extent is not None and extent <= lanes:
        return [], loop
    vectors, lane = schedule.split(loop, lanes)
    return [vectors], lane


def unroll(schedule: Schedule, loops: Iterable[str]) -> None:
    for loop in loops:
        schedule.unroll(loop)


def vectorize_tile(schedule: Schedule, loop: str, lanes: int) -> None:
    """Vectorize a loop of a few vectors, these one after the other."""
    vectors, lane = cut_vectors(schedule, loop, lanes)
    unroll(schedule, vectors)
    schedule.vectorize(lane)


def unroll_tile(schedule: Schedule, loops: Sequence[str], lanes: int) -> None:
    """Vectorize the last loop of a tile, rows by a few vectors of columns, and unroll the others."""
    if loops:
        vectorize_tile(schedule, loops[-1], lanes)
        unroll(schedule, loops[:-1])


def vectorize_loop(schedule: Schedule, loop: str, lanes: int, most: int | None = None) -> str | None:
    """Run a loop, of at most `most` iterations where that is known, in vectors, if that is worth it; the loop over them where all are
    whole."""
    extent = extent_value(schedule, loop)
    if extent is not None and extent <= lanes:
        if extent >= 4:
            schedule.vectorize(loop)
        return None
    made = cut(schedule, loop, lanes)
    schedule.vectorize(made.inside)
    if not made.is_whole:
        if most is None or most > lanes:
            peel(schedule, made.around)
        return None
    return made.around


# -- places


def is_moved(schedule: Schedule, block: str, loop: str, most: float = inf) -> bool:
    """Compute a block inside a loop of its readers; False, and it stays, where that is not legal, or what it makes again grows with the
    dims, as where all of it is made in each iteration, or is made more than `most` times as often as before."""
    before = _many_times(schedule, block)

    def move() -> str:
        schedule.compute_at(block, loop)
        after = _many_times(schedule, block)
        if after[1] * before[0] >= MOST_GROWTH * after[0] * before[1] or after[0] > most * before[0]:
            raise ScheduleError(f"{block} is made anew in each iteration of {loop}")
        return block

    return schedule.attempt(move) is not None


def _many_times(schedule: Schedule, block: str) -> list[int]:
    """How many iterations the loops around a block have where symbolic dims are of a usual size, and where they are large."""
    facts = Facts.of(schedule.func.facts)
    loops = [schedule.extent_of(loop) for loop in schedule.loops_of(block)]
    return [prod(typical(extent, facts, size) for extent in loops) for size in (USUAL_DIM, GROWN_DIM)]


# -- sums in tiles


@dataclass(frozen=True)
class SumLoops:
    """The loops of a sum in a tile: over its terms, over the tile, and those of one iteration that choose elements of the tile."""

    depth: list[str]
    tiled: list[str]
    single: list[str]


def loops_of_sum(schedule: Schedule, name: str, anchor: str | None) -> SumLoops:
    """The loops of the sum called `name` inside the loop `anchor`, or all of them."""
    info, loops = block_info(schedule, name), list(schedule.loops_of(name))
    inside = loops if anchor is None else loops[loops.index(anchor) + 1 :]
    depth = driving_loops(info, inside, info.reduction_axes)
    tiled = [loop for loop in inside if loop not in depth and extent_value(schedule, loop) != 1]
    return SumLoops(depth, tiled, [loop for loop in inside if loop not in depth and loop not in tiled])


def interleave_stores(schedule: Schedule, name: str, loops: Sequence[str], pays: bool) -> None:
    """Do what follows a tile of sums between the products of the next tile, if that is legal: `loops` are those around a tile, innermost
    last. `pays`: whether to, untuned."""
    several = [loop for loop in loops if extent_value(schedule, loop) != 1]
    if not several:
        return
    step = Step("pipeline", (several[-1], 2))
    try:
        step.apply(schedule.func)
    except ScheduleError:
        return
    default = "interleaved" if pays else "plain"
    if schedule.choose(name, "stores", ("plain", "interleaved"), default, ordered=False) == "interleaved":
        schedule.apply(step)


def start_sum(schedule: Schedule, name: str, loop: str) -> str:
    """Let a sum start in front of a loop: with 0, or for integers with what is added when they are summed. Returns the block that does."""
    s = schedule
    start = s.decompose_reduction(name, loop)
    if block_info(s, start).writes[0].buffer.dtype.is_int:
        s.attempt(partial(s.init_with_addend, start))
    return start


def fetch_tiles_ahead(schedule: Schedule, contraction: Contraction, loop: str, pays: bool = True) -> None:
    """Let a loop over products of tiles fetch the tiles of the rhs ahead where these come from memory: it is an input as large as a part of
    the second-level cache. `pays`: whether to, untuned."""
    s, rhs = schedule, contraction.rhs.buffer
    if rhs not in s.func.inputs:
        return
    options = (0, TILES_AHEAD // 2, TILES_AHEAD, 2 * TILES_AHEAD, 4 * TILES_AHEAD)
    default = TILES_AHEAD if pays and buffer_bytes(rhs) > LEAST_FAR_BYTES else 0
    ahead = s.choose(contraction.info.name, "prefetch_bytes", options, default)
    if ahead:
        s.annotate_loop(loop, "prefetch", (s.func.buffers.index(rhs), ahead))


# -- versions


def is_at_most(schedule: Schedule, loop: str, size: int) -> bool:
    """Whether it is known that a loop has no more than `size` iterations."""
    place = find_loop(schedule.func, loop)
    return prove(place.loop.extent <= size, facts_at(schedule.func, place)) is True


def is_at_least(schedule: Schedule, loop: str, size: int) -> bool:
    """Whether it is known that a loop has `size` iterations or more."""
    place = find_loop(schedule.func, loop)
    return prove(place.loop.extent >= size, facts_at(schedule.func, place)) is True


def lower_versions(
    schedule: Schedule, names: Sequence[str], row_of: Callable[[dict[str, str]], str], heights: Iterable[int]
) -> list[dict[str, str]]:
    """A version of the blocks called `names` for fewer rows than the first height, one of it for fewer than the next, and so on.

    `row_of`: the dim, or the loop of a version, that is the number of rows. There are none from a height on for which that is no question.
    """
    versions: list[dict[str, str]] = []
    last = dict(zip(names, names, strict=True))
    for height in heights:
        row = row_of(last)
        copies = split_off(schedule, list(last.values()), partial(schedule.specialize, row, height))
        if not copies:
            break
        last = {block: copies[copy] for block, copy in last.items()}
        versions.append(last)
    return versions


def split_off(schedule: Schedule, names: Sequence[str], specialize: Callable[[], None]) -> dict[str, str]:
    """The blocks of a second version of those called `names`, by these; empty where there is no question which version runs."""
    before = {info.name for info in block_infos(schedule.func)}
    try:
        specialize()
    except ScheduleError:  # known to be so or so, or not decided by dims
        return {}
    copies = [info.name for info in block_infos(schedule.func) if info.name not in before]
    return dict(zip(names, copies, strict=True))
