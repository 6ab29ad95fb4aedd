"""Reductions without reuse: pooling, means, softmax and normalisations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, prod

from tc.errors import ScheduleError
from tc.ir.expr import Buffer, Const, Expr, FloorDiv, FloorMod, Load, Select, Var, is_const
from tc.ir.loop import LoopKind
from tc.ir.node import children, walk
from tc.ir.polynomial import polynomial
from tc.ir.uses import reads_memory, variables
from tc.schedule.analysis import BlockInfo, block_infos, consumers
from tc.schedule.rules.common import (
    extent_value,
    is_chain,
    is_heavy,
    is_large,
    known_product,
    lanes_for,
    loads_of,
    loops_inside,
    set_parallel,
    stream_lanes,
)
from tc.schedule.rules.epilogue import block_info, driving_loops
from tc.schedule.rules.partial_sums import (
    ACCUMULATORS,
    CHAIN,
    FEW_VECTORS,
    accumulators_for,
    choose_accumulators,
    joined_terms,
    reduce_in_columns,
    reduce_in_lanes,
    reduce_parts,
    rounds,
    unroll_few,
)
from tc.schedule.rules.roles import shared_by
from tc.schedule.rules.spatial import dense_joined, is_dense_over, joined, schedule_block
from tc.schedule.rules.tile import Cut, cut_and_peel, is_moved, lower_versions, vectorize_loop, vectorize_tile
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.machine import machine_of

PART_TERMS = 16384
"""Terms of one part where few long rows are summed on all cores: as much as one parallel task should touch."""

PART_ROWS = 256
"""The same where lanes belong to neighbouring results, for each of these."""

LEAST_IN_PARTS = 1 << 17
"""Elements that are worth an additional stage; half of that where much is computed of each."""

MOST_LONG_ROWS = 16
"""How many rows, or tiles of columns, are few: fewer than keep all cores busy equally."""

MANY = 1 << 20
"""What a symbolic extent is taken to be when it is decided whether rows are few and long."""

SHORT_SEARCH = 64
"""Terms of a search up to which its lanes are neighbouring rows; twice as many where their number is symbolic, as then there are more
partial results to search."""

SEARCH_CYCLES, TERM_CYCLES = 17, 0.44
"""What a row takes whose terms are lanes, and each of them: fewer terms make lanes that are rows faster, a gather for each term. Measured
with vectors of 512 bits."""

LEAST_MASKED_LANES = 8
"""Of a vector that is worth a version for rows that it holds."""

LEAST_SEARCHED = 20
"""Of a row whose terms are lanes: fewer are no whole vectors."""

MOST_TIMES = 2
"""That what takes long is computed of each term of a short row."""

MOST_COPIES = 4
"""Times that an element is copied rather than once, by a stage of its own."""

MOST_SHORT_STEPS = 16
"""Terms that may be added one after the other where lanes belong to neighbouring results."""


def schedule_reduction(schedule: Schedule, target: Target) -> str | None:
    """Run rows in parallel; inside a row, all stages one after the other, each in vectors. Few long rows: stage by stage, in parts.

    Where the length of rows is symbolic there are several versions: short ones need no parts, and shorter ones fewer vectors.
    """
    infos = block_infos(schedule.func)
    if not any(info.reduction_axes for info in infos) or any(info.is_opaque for info in infos):
        return None
    schedule.merge_dense()
    for info in _writers_of_results(schedule):
        if info.reduction_axes and len(info.written_buffers) == 1 and info.spatial_axes:
            schedule.cache_write(info.name, "local")
            if keeps_last_axis(info):
                _fuse_single(schedule, info.written_buffers[0])
    copies = _specialized(schedule, block_infos(schedule.func), target)
    rule = _Version(schedule, target, frozenset[str]().union(*(names for names, _ in copies))).run()
    for names, terms in copies:
        others = {info.name for info in block_infos(schedule.func)} - names
        _Version(schedule, target, frozenset(others), terms).run()
    return rule


def _fuse_single(schedule: Schedule, buffer: Buffer) -> None:
    """Have no loops of one iteration after the last of several, around what writes a buffer: results lie side by side along that."""
    name = next(info.name for info in block_infos(schedule.func) if buffer in info.written_buffers)
    loops = list(schedule.loops_of(name))
    while len(loops) > 1 and extent_value(schedule, loops[-1]) == 1:
        last = loops.pop()
        loops.append(schedule.fuse(loops.pop(), last))


def schedule_rows(schedule: Schedule, target: Target, apart: Sequence[str]) -> str:
    """Schedule a reduction of which each term is read once for a result, and what follows it; the blocks `apart` on their own."""
    for info in _writers_of_results(schedule):
        if info.reduction_axes:
            schedule.cache_write(info.name, "local")
    rule = _Version(schedule, target, frozenset(apart)).run()
    for name in apart:
        schedule_block(schedule, name, target)
    return rule


def schedule_stages(schedule: Schedule, target: Target) -> str | None:
    """What no other rule fits: each stage on its own, those for which there is no legal schedule as they are written."""
    if any(info.is_opaque for info in block_infos(schedule.func)):
        return None
    version = _Version(schedule, target, frozenset())

    def schedule_stage(name: str) -> str:
        version.schedule_one(name)
        return name

    names = [info.name for info in version.infos() if info.loops]
    done = [name for name in names if schedule.attempt(partial(schedule_stage, name))]
    return "stage by stage" if done else None


def _specialized(schedule: Schedule, infos: list[BlockInfo], target: Target) -> list[tuple[set[str], int]]:
    """Make versions of the program for short reductions; the names of their blocks, and of how many terms they are at most. There are none
    where lengths are known, or where terms lie in several pieces of memory: to take them for one row, each would be divided into a piece
    and a place in it."""
    if any(info.reduction_axes and not _is_search(info) for info in _writers_of_results(schedule)):
        return []
    first = next(info for info in infos if info.reduction_axes)
    depth = driving_loops(first, list(schedule.loops_of(first.name)), first.reduction_axes)
    if all(extent_value(schedule, loop) is not None for loop in depth):
        return []
    lanes = lanes_for(first, target)
    if keeps_last_axis(first):
        is_plain = len(infos) == 1 and not rounds(first) and not _is_search(first)
        most = [] if is_plain else [MOST_SHORT_STEPS]
    elif _is_search(first):
        most = [2 * _most_searched(target)]
    else:
        most = [CHAIN * ACCUMULATORS * lanes] if any(map(rounds, infos)) else []
        most += [2 * lanes, lanes] if lanes >= LEAST_MASKED_LANES else []
    if not most:
        return []
    *pieces, _ = joined_terms(schedule, first, depth)
    if pieces:
        return []
    names = [info.name for info in infos]

    def row_of(version: dict[str, str]) -> str:
        info = block_info(schedule, version[first.name])
        return driving_loops(info, list(schedule.loops_of(info.name)), info.reduction_axes)[-1]

    copies = lower_versions(schedule, names, row_of, [terms + 1 for terms in most])
    return [({*version.values()}, terms) for version, terms in zip(copies, most, strict=False)]


def _writers_of_results(schedule: Schedule) -> list[BlockInfo]:
    return [info for info in block_infos(schedule.func) if set(info.written_buffers) & set(schedule.func.buffers)]


@dataclass(frozen=True)
class _Version:
    """The schedule of one version of a program while it is made. `others`: blocks of the other versions; `most_terms`: of this one,
    if it is one for few."""

    schedule: Schedule
    target: Target
    others: frozenset[str]
    most_terms: int | None = None

    @property
    def is_short(self) -> bool:
        return self.most_terms is not None

    def vectors(self, lanes: int) -> int:
        """Of how many vectors side by side a row may be."""
        return ACCUMULATORS if self.most_terms is None else min(ACCUMULATORS, -(-self.most_terms // lanes))

    def infos(self) -> list[BlockInfo]:
        return [info for info in block_infos(self.schedule.func) if info.name not in self.others]

    def run(self) -> str:
        """Schedule everything; the name of the rule."""
        schedule = self.schedule
        if self._is_long():
            self._cut()
            self._apart()
            return "reduction in parts"
        outputs = [info for info in _writers_of_results(schedule) if info.name not in self.others]
        final = outputs[0] if len(outputs) == 1 else None
        if final is None or final.reduction_axes or self._are_summed_again():
            return self._apart()
        loops = list(schedule.loops_of(final.name))
        rows = self._row_loops(final, loops)
        if rows and loops[-1] in rows and self._has_short_columns(loops):
            return self._apart()
        if rows and loops[-1] in rows:
            columns_rule = self._columns(final.name, [loop for loop in loops if loop not in rows])
            if columns_rule is not None:
                return columns_rule
        if not rows or loops[: len(rows)] != rows:
            return self._apart()
        reductions = [info for info in self.infos() if info.reduction_axes]
        if len(loops) == len(rows) + 1 and self._are_short_rows(reductions) and not any(map(_is_of_a_batch, reductions)):
            made = schedule.attempt(partial(self._short_rows, final.name))
            if made is not None:
                return made
        return self._rows(final.name, len(rows))

    # -- few results of many terms

    def _is_long(self) -> bool:
        """Whether rows are too few and too long for one core to take a row at a time; not where data say how long, and so how many parts
        there would be room for."""
        infos = self.infos()
        if self._is_uneven():
            return False
        least = LEAST_IN_PARTS // (2 if any(map(_is_heavy, infos)) else 1)
        return not self.is_short and all(self._is_long_reduction(info, least) for info in infos if info.reduction_axes)

    def _is_long_reduction(self, info: BlockInfo, least: int) -> bool:
        extents = {axis.var: axis.extent for axis in info.block.axes}
        rows = prod(int(e.value) if isinstance(e := extents[axis], Const) else MANY for axis in info.spatial_axes)
        terms = prod(int(e.value) if isinstance(e := extents[axis], Const) else MANY for axis in info.reduction_axes)
        if keeps_last_axis(info):
            return rows * terms >= least and rows < MOST_LONG_ROWS * 64 and terms >= 4 * PART_ROWS
        return rows * terms >= least and rows < MOST_LONG_ROWS and terms >= 4 * PART_TERMS

    def _cut(self) -> None:
        """Sum parts of the rows first. What is computed from an element for several stages is computed in each of them, unless programs
        would become too long."""
        schedule = self.schedule
        for info in self.infos():
            if info.is_spatial and not is_large(info.writes[0].value) and not set(info.written_buffers) & set(schedule.func.buffers):
                try:
                    schedule.compute_inline(info.name)
                except ScheduleError:
                    continue
        for info in self.infos():
            if info.reduction_axes:
                reduce_parts(schedule, info.name, PART_ROWS if keeps_last_axis(info) else PART_TERMS, is_row=not keeps_last_axis(info))

    def _most_terms(self) -> int:
        """Terms of one result, as far as they are known."""
        known = ([e.value for a in i.block.axes if a.var in i.reduction_axes and isinstance(e := a.extent, Const)] for i in self.infos())
        return max(int(prod(extents)) for extents in known)

    # -- rows

    def _is_uneven(self) -> bool:
        """Whether data or the row says how many terms there are, so that nothing is known of how many."""
        dims = frozenset(self.schedule.func.dims)
        extents = [axis.extent for info in self.infos() for axis in info.block.axes if axis.var in info.reduction_axes]
        return any(reads_memory(extent) or not variables(extent) <= dims for extent in extents)

    def _row_loops(self, final: BlockInfo, loops: list[str]) -> list[str]:
        """Those of the final block's loops that choose the row, in order: those by which reduced values are indexed."""
        driven = {axis.var: axis.value for axis in final.block.axes}
        reduced = {b for info in self.infos() if info.reduction_axes for b in info.written_buffers}
        used: set[str] = set()
        for load in final.reads:
            if load.buffer in reduced:
                for index in load.indices:
                    for node in walk(index):
                        value = driven.get(node)  # type: ignore[call-overload]
                        if isinstance(value, Var):
                            used.add(value.name)
        return [loop for loop in loops if loop in used]

    def _rows(self, final: str, rows: int) -> str:
        schedule = self.schedule
        self._split_shared_rows(final, schedule.loops_of(final)[rows - 1])
        loops = list(schedule.loops_of(final))
        inner = known_product(schedule, loops[rows:], 256) if rows < len(loops) else 256 if self._is_uneven() else 64
        row = set_parallel(schedule, final, loops[:rows], max(inner * 8, self._most_terms()))
        assert row is not None
        for info in [info for info in reversed(self.infos()) if info.name != final]:
            self._compute_at(info, row)
        inside = [info for info in self.infos() if row in schedule.loops_of(info.name)]
        computed = self._computed_where_reduced(inside, row)
        for info in inside:
            if info.name not in computed:
                self._vectorize_inside(info.name, row, is_plain=not computed)
        for name in computed:
            self._vectorize_inside(name, self._into_reduction(name) or row)
        return "row reduction"

    def _split_shared_rows(self, final: str, loop: str) -> None:
        """Cut a loop over rows of which several neighbours use the same reduced values, as channels of a group do: these are reduced once
        for all of them, in the outer of the two loops."""
        info = block_info(self.schedule, final)
        axes = [axis.var for axis in info.block.axes if isinstance(axis.value, Var) and axis.value.name == loop]
        reduced = {buffer for each in self.infos() if each.reduction_axes for buffer in each.written_buffers}
        indices = [index for load in info.reads if load.buffer in reduced for index in load.indices]
        sizes = {size for axis in axes for index in indices for size in shared_by(index, axis)}
        extent = extent_value(self.schedule, loop)
        if len(sizes) == 1 and extent is not None and (size := sizes.pop()) and extent % size == 0:
            self.schedule.split(loop, size)

    # -- elements of a row that are reduced, and used once more after that

    def _computed_where_reduced(self, infos: list[BlockInfo], row: str | None) -> list[str]:
        """Blocks that compute elements of a long row, which a reduction reads first, to be run in the loop that reduces them."""
        return [info.name for info in infos if self._is_computed_where_reduced(info, row)]

    def _is_computed_where_reduced(self, info: BlockInfo, row: str | None) -> bool:
        loops = loops_inside(self.schedule, info.name, row)
        if not info.is_spatial or len(loops) != 1 or set(info.written_buffers) & set(self.schedule.func.buffers):
            return False
        extent = extent_value(self.schedule, loops[0])
        if extent is not None and extent <= FEW_VECTORS * lanes_for(info, self.target):
            return False  # the row stays in registers
        readers = list(consumers(self.infos(), info.writes[0].buffer))
        return bool(readers and readers[0].reduction_axes) and len(readers[0].written_buffers) == 1

    def _into_reduction(self, name: str) -> str | None:
        """Move a block to the vectors of its first reader, a reduction; the innermost loop around it then, None where it stays.

        What is a chain of steps is computed for all vectors that accumulate side by side, so that their steps fill each other's time.
        """
        info = block_info(self.schedule, name)
        reader = next(consumers(self.infos(), info.writes[0].buffer))
        if not reader.reduction_axes or len(reader.loops) < 2 or reader.loops[-1].kind is not LoopKind.VECTORIZED:
            return None
        few = 3 if len(reader.loops) > 2 and reader.loops[-2].kind is LoopKind.UNROLLED and is_chain(info.writes[0].value) else 2
        anchor = reader.loops[-few].var.name
        return anchor if is_moved(self.schedule, name, anchor) else None

    def _compute_at(self, info: BlockInfo, anchor: str) -> None:
        """Compute a block where it is read, or apart: what is copied, as the padding of windows that overlap, is not copied many times."""
        is_copy = info.is_spatial and all(isinstance(store.value, (Load, Select)) for store in info.writes)
        is_apart = _is_search(info) and not keeps_last_axis(info)  # whose lanes may be several rows
        if is_apart or not is_moved(self.schedule, info.name, anchor, MOST_COPIES if is_copy else inf):
            self.schedule_one(info.name)

    def _vectorize_inside(self, name: str, row: str, *, is_plain: bool = True) -> None:
        """Vectorize one stage of a row. `is_plain`: what reductions read is computed before."""
        schedule = self.schedule
        info = block_info(schedule, name)
        inside = loops_inside(schedule, name, row)
        if not inside:
            return
        if info.reduction_axes:
            is_plain = is_plain and not _is_heavy(info)
            most = self.vectors(lanes_for(info, self.target))
            reduce_in_lanes(schedule, name, inside, self.target, most, most_terms=self.most_terms, is_plain=is_plain)
            return
        inside = joined(schedule, info, inside, len(inside) - 1, lanes_for(info, self.target)) if len(inside) > 1 else inside
        info = block_info(schedule, name)
        lanes = stream_lanes(info, self.target, extent_value(schedule, inside[-1]) or self.most_terms)
        vectors = vectorize_loop(schedule, inside[-1], lanes, self.most_terms)
        if vectors is not None:
            unroll_few(schedule, name, vectors)

    # -- columns

    def _columns(self, final: str, others: list[str]) -> str | None:
        """The last axis of the result is not reduced: a vector of results is reduced at once. The `others` of its loops run inside."""
        schedule = self.schedule
        loops = list(schedule.loops_of(final))
        reductions = [info for info in self.infos() if info.reduction_axes and info.name != final]
        searches = [info for info in reductions if _is_search(info)]  # their results are wider than what is searched
        lanes = max(lanes_for(info, self.target) for info in (block_info(schedule, final), *searches))
        are_short = self._are_short_rows(reductions)
        if not any(map(keeps_last_axis, reductions)) and not are_short:  # then lanes belong to the reduction
            return None
        extent = extent_value(schedule, loops[-1])
        found = _split_columns(schedule, final, loops[-1], lanes, 1 if are_short else ACCUMULATORS)
        if found is None:
            return None
        columns, width = found
        lead = [loop for loop in loops[:-1] if loop not in others]
        schedule.reorder(*lead, columns.around, *others, columns.inside)
        anchor = self._shared(final, lead, found, extent, max(256 if self._is_uneven() else 16, self._most_terms()))
        if anchor is None:
            return None
        for info in [info for info in reversed(self.infos()) if info.name != final]:
            self._compute_at(info, anchor)
        vectorize_tile(schedule, columns.inside, lanes)
        for each in self.infos():
            if each.name != final and anchor in schedule.loops_of(each.name):
                reduce_in_columns(schedule, each.name, anchor, width, lanes, is_short=self.is_short, is_row=are_short)
        return "column reduction"

    def _shared(self, final: str, lead: list[str], found: tuple[Cut, int], extent: int | None, terms: int) -> str | None:
        """Have threads share the tiles that a loop of so many results was cut into; the loop in which a tile is computed."""
        columns, width = found
        is_shared = columns.is_whole or not lead  # one loop alone may be cut short
        outer = [*lead, *([columns.around] if is_shared else [])]
        fused = set_parallel(self.schedule, final, outer, width * terms * (1 if is_shared else max((extent or 64) // width, 1)))
        return fused if is_shared else columns.around

    def _are_short_rows(self, reductions: Sequence[BlockInfo]) -> bool:
        """Whether rows have so few terms that lanes had better be rows, as much is computed of each term."""
        return any(map(_is_heavy, self.infos())) and all(map(_is_of_short_rows, reductions))

    def _has_short_columns(self, loops: list[str]) -> bool:
        """Whether the last axis of the result is shorter than a vector, and the one before it is not reduced either: the one reduction, of
        which nothing is read again, may run along both by itself."""
        reductions = [info for info in self.infos() if info.reduction_axes]
        if len(reductions) != 1 or len(self.infos()) > 2 or len(loops) < 2:
            return False
        (reduction,), extent = reductions, extent_value(self.schedule, loops[-1])
        own = list(self.schedule.loops_of(reduction.name))
        depth = driving_loops(reduction, own, reduction.reduction_axes)
        own = [loop for loop in own if loop not in depth and extent_value(self.schedule, loop) != 1]
        if len(own) < 2 or not is_dense_over(self.schedule, reduction, *own[-2:]):
            return False
        others = [info for info in self.infos() if info is not reduction]
        is_read_again = any({load.buffer for load in loads_of(info)} & {load.buffer for load in loads_of(reduction)} for info in others)
        return extent is not None and extent < lanes_for(reduction, self.target) and keeps_last_axis(reduction) and not is_read_again

    def _are_summed_again(self) -> bool:
        """Whether what is reduced of many terms is all that another reduction reads, as sums of channels are for their groups: a row, or a
        tile of columns, would sum for itself what others of its group sum, too."""
        reductions = [info for info in self.infos() if info.reduction_axes]
        made = {buffer for info in reductions if keeps_last_axis(info) for buffer in info.written_buffers}
        read = ({load.buffer for load in info.reads if load.buffer not in info.written_buffers} for info in reductions)
        return any(buffers and buffers <= made for buffers in read)

    def _short_rows(self, final: str) -> str | None:
        """A vector of neighbouring rows at a time, whose terms are exchanged in registers when they are read and when they are stored."""
        schedule = self.schedule
        stages = [info for info in self.infos() if info.is_spatial and info.name != final]
        for info in stages:  # the exponential of a term is summed and divided: twice is less than storing it for lanes that are rows
            readers = list(consumers(self.infos(), info.writes[0].buffer))
            if is_large(info.writes[0].value) or (_is_heavy(info) and len(readers) > MOST_TIMES):
                return None
        for info in stages:
            schedule.compute_inline(info.name)
        schedule.merge_dense(known=True)
        lanes = lanes_for(block_info(schedule, final), self.target)
        *lead, row, last = schedule.loops_of(final)
        extent = extent_value(schedule, row)
        found = None if extent is not None and extent < lanes else _split_columns(schedule, final, row, lanes, 1)
        if found is None:
            return None
        columns, width = found
        anchor = self._shared(final, lead, found, extent, 16 * self._most_terms())
        if anchor is None:
            return None
        for name in [info.name for info in reversed(self.infos()) if info.name != final]:
            schedule.compute_at(name, anchor)
        schedule.vectorize(last)
        schedule.unroll(columns.inside)
        schedule.annotate_loop(columns.inside, "transpose", 1)
        for info in self.infos():
            if info.reduction_axes:
                reduce_in_columns(schedule, info.name, anchor, width, lanes, is_row=True)
        return "row reduction"

    # -- stages that stand alone

    def _apart(self) -> str:
        """Every stage on its own."""
        computed = self._computed_where_reduced(self.infos(), None)
        for info in self.infos():
            if info.loops and info.name not in computed:
                self.schedule_one(info.name, is_plain=not computed)
        for name in computed:
            anchor = self._into_reduction(name)
            if anchor is None:
                self.schedule_one(name)
            else:
                self._vectorize_inside(name, anchor)
        return "reduction, stage by stage"

    def schedule_one(self, name: str, *, is_plain: bool = True) -> None:
        """A stage that stands alone: parallel over its spatial loops, each of its reductions in vectors."""
        schedule, target = self.schedule, self.target
        info = block_info(schedule, name)
        loops = list(schedule.loops_of(name))
        depth = driving_loops(info, loops, info.reduction_axes)
        spatial = [loop for loop in loops if loop not in depth]
        if not depth:
            schedule_block(schedule, name, target)
            return
        lanes = lanes_for(info, target)
        is_short_search = _is_search(info) and (self.is_short or _is_short(info, target))
        found = None
        if spatial and (is_short_search or keeps_last_axis(info)):
            spatial = _all_joined(schedule, name, spatial, lanes)
            found = _split_columns(schedule, name, spatial[-1], lanes, 2 if is_short_search else ACCUMULATORS)
        if found is not None:
            outer, (columns, width) = spatial[:-1], found
            schedule.reorder(*outer, columns.around, *depth, columns.inside)
            whole = [*outer, *([columns.around] if columns.is_whole or not outer else [])]  # one loop alone may be cut short
            set_parallel(schedule, name, whole, known_product(schedule, depth, 64) * width)
            is_row = is_short_search and _is_of_short_rows(info) and not _is_of_a_batch(info)
            reduce_in_columns(schedule, name, columns.around, width, lanes, is_local=False, is_short=self.is_short, is_row=is_row)
            return
        if spatial and loops[: len(spatial)] != spatial:
            schedule.reorder(*spatial, *depth)
        set_parallel(schedule, name, spatial, known_product(schedule, depth, 64))
        most = self.vectors(lanes)
        reduce_in_lanes(schedule, name, depth, target, most, most_terms=self.most_terms, is_plain=is_plain and not _is_heavy(info))


def _all_joined(schedule: Schedule, block: str, loops: list[str], lanes: int) -> list[str]:
    """The loops, the last of which is as long as can be, if it is no whole vectors by itself."""
    while len(loops) > 1 and ((extent := extent_value(schedule, loops[-1])) is None or extent % lanes):
        made = dense_joined(schedule, block_info(schedule, block), loops, len(loops) - 1)
        if len(made) == len(loops):
            break
        loops = made
    return loops


def _split_columns(schedule: Schedule, block: str, loop: str, lanes: int, most: int = ACCUMULATORS) -> tuple[Cut, int] | None:
    """Cut a loop into tiles of a few vectors, `most` of them, of so many columns; None where it is too short for one."""
    extent = extent_value(schedule, loop)
    if extent is not None and extent < 4:
        return None
    wide = extent is None or extent >= lanes
    width = lanes * choose_accumulators(schedule, block, extent, lanes, accumulators_for(extent, lanes, most)) if wide else extent
    assert width is not None, "a narrow row has a known extent"
    return cut_and_peel(schedule, loop, width), width


def _is_heavy(info: BlockInfo) -> bool:
    return any(is_heavy(store.value) for store in info.writes)


def _is_search(info: BlockInfo) -> bool:
    """Whether a reduction finds several results at once, as a largest number and its place. With few terms its lanes are rows, though these
    do not lie side by side: much is computed of each term."""
    return bool(info.reduction_axes) and len(info.written_buffers) > 1


def _is_of_short_rows(info: BlockInfo) -> bool:
    """Whether the terms of a reduction are rows of a few elements that lie side by side."""
    terms = [axis for axis in info.block.axes if axis.var in info.reduction_axes]
    if len(terms) != 1 or not isinstance(terms[0].extent, Const) or not 1 < terms[0].extent.value <= MOST_SHORT_STEPS:
        return False
    (term,) = terms
    moving = [load for load in loads_of(info) if term.var in variables(load)]
    return all(load.indices[-1] is term.var and load.buffer.shape[-1] == term.extent for load in moving)


def _is_of_a_batch(info: BlockInfo) -> bool:
    """Whether rows are a batch of any size alone, which is small as a rule: code that exchanges terms of many takes longer to compile."""
    rows = [axis.extent for axis in info.block.axes if axis.var in info.spatial_axes and not is_const(axis.extent, 1)]
    return len(rows) == 1 and isinstance(rows[0], Var)


def _is_short(info: BlockInfo, target: Target) -> bool:
    """Whether a search has few terms, a known number."""
    terms = [axis.extent for axis in info.block.axes if axis.var in info.reduction_axes]
    return all(isinstance(e, Const) for e in terms) and prod(int(e.value) for e in terms if isinstance(e, Const)) <= _most_searched(target)


def _most_searched(target: Target) -> int:
    """Terms up to which lanes of a search are rows."""
    gather = machine_of(target).gather_cycles_per_lane - TERM_CYCLES
    if target.vector_bits < 512 or gather * SHORT_SEARCH < SEARCH_CYCLES:
        return SHORT_SEARCH
    return max(int(SEARCH_CYCLES / gather), LEAST_SEARCHED)


def keeps_last_axis(info: BlockInfo) -> bool:
    """Whether something that a reduction reads for each term is contiguous along an axis that it does not reduce, nor decides how much is
    reduced. What is read once for all terms does not count."""
    deciding = frozenset[Var]().union(*(variables(axis.extent) for axis in info.block.axes if axis.var in info.reduction_axes))
    moving = (axis for axis in info.block.axes if axis.var in info.spatial_axes and not is_const(axis.extent, 1))
    axes = tuple(axis.var for axis in moving if not variables(axis.value) & deciding)
    terms = [load for load in loads_of(info) if load.indices and not variables(load).isdisjoint(info.reduction_axes)]
    return any(_is_contiguous_along(_last_index(load), axes) for load in terms)


def _last_index(load: Load) -> Expr:
    """Of the last axis that has not one element."""
    several = [index for index, dim in zip(load.indices, load.buffer.shape, strict=True) if not is_const(dim, 1)]
    return several[-1] if several else load.indices[-1]


def _is_contiguous_along(index: Expr, axes: tuple[Var, ...]) -> bool:
    """Whether an index has one of `axes`, be it in the steps of a window, but not as the number of a part: times its size."""
    return any(0 < step < PART_ROWS for step in _steps_along(index, axes))


def _steps_along(index: Expr, axes: tuple[Var, ...]) -> Iterator[int]:
    """How far apart neighbours along one of the axes read, as far as numbers tell; not where it is divided by what is not known."""
    for monomial, factor in polynomial(index).terms.items():
        for atom in monomial if len(monomial) == 1 else ():
            if atom in axes:
                yield factor
            elif isinstance(atom, FloorMod) or (isinstance(atom, FloorDiv) and isinstance(atom.rhs, Const)):
                yield from (step * factor for step in _steps_along(atom.lhs, axes))
            elif not isinstance(atom, (FloorDiv, Load)):
                yield from (step * factor for part in children(atom) if isinstance(part, Expr) for step in _steps_along(part, axes))
