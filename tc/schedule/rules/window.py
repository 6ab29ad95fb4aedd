"""Reductions that leave the contiguous axis alone, or shift along it: pooling, depthwise convolution, sums over leading axes.

A vector of neighbouring results is reduced at once, for several rows together: neighbouring windows share what they load, and
independent sums hide the latency of additions. Padding is materialized per band of rows, small enough for the first cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.expr import Const, Var
from tc.schedule.analysis import BlockInfo, as_contraction, axes_in, block_infos, is_stencil
from tc.schedule.rules.common import (
    SYMBOLIC_BAND,
    SYMBOLIC_BANDS,
    divisors,
    extent_value,
    known_product,
    lanes_for,
    set_parallel,
)
from tc.schedule.rules.epilogue import block_info, driven_spatial, driving_loops, final_block, is_single
from tc.schedule.rules.partial_sums import is_long_sum
from tc.schedule.rules.spatial import schedule_block
from tc.schedule.rules.tile import vectorize_loop
from tc.schedule.step import Schedule
from tc.target import Target

MOST_ROWS = 8
"""Rows of a tile: a window of three taps then loads ten vectors for twenty-four operations."""

MOST_VECTORS = 4
"""Vectors of a tile where there is one row."""

LONGEST_UNROLLED = 7
"""The innermost taps are unrolled up to this many, so that neighbouring windows share loads."""

LEAST_BAND = 4


@dataclass(frozen=True)
class _Tile:
    rows: int
    vectors: int
    lanes: int


def schedule_window(schedule: Schedule, target: Target) -> str | None:
    """Tile the one reduction of a PrimFunc whose last axis is not reduced and is read contiguously, from wherever its windows begin."""
    infos = block_infos(schedule.func)
    found = [k for k, info in enumerate(infos) if info.reduction_axes]
    if len(found) != 1:
        return None
    info, before, after = infos[found[0]], infos[: found[0]], infos[found[0] + 1 :]
    if len(info.writes) != 1 or not all(each.is_spatial for each in (*before, *after)):
        return None
    contraction = as_contraction(info)
    if not (is_stencil(contraction) if contraction is not None else _is_contiguous(info)):
        return None
    axes = [axis for axis in driven_spatial(info) if not is_single(info, axis)]
    if not axes or (is_long_sum(info) and not any(_shares_index(info, axis) for axis in axes)):
        return None
    final = final_block(schedule, info.name, after)
    if final is None:
        return None
    _schedule_versions(schedule, info, final, [each.name for each in before], target)
    return "window reduction"


def _schedule_versions(schedule: Schedule, info: BlockInfo, final: str, before: list[str], target: Target) -> None:
    """One schedule, or two where the number of rows is symbolic: tiles that overlap at the end, and single rows for too few."""
    rows = _row_loops(schedule, info, final, bool(before))[1]
    height = MOST_ROWS if rows is not None and extent_value(schedule, rows) is None else None
    blocks = [each.name for each in block_infos(schedule.func)]
    copies: dict[str, str] = {}
    if height is not None:
        try:
            schedule.specialize(rows, height)  # type: ignore[arg-type]
            copies = dict(zip(blocks, [each.name for each in block_infos(schedule.func)][len(blocks) :], strict=True))
        except ScheduleError:  # known to be enough, or not decided by dims
            copies = {}
    _Plan(schedule, info.name, final, *_row_loops(schedule, info, final, bool(before)), before, target, height).run()
    if copies:
        other = block_info(schedule, copies[info.name])
        loops = _row_loops(schedule, other, copies[final], bool(before))
        _Plan(schedule, other.name, copies[final], *loops, [copies[each] for each in before], target, 1).run()


def _row_loops(
    schedule: Schedule, info: BlockInfo, final: str, is_padded: bool
) -> tuple[list[str], str | None, str | None]:
    """The loops of the block that stores the result, the one over rows of a tile, and the one to be cut into bands."""
    loops = [loop for loop in schedule.loops_of(final) if extent_value(schedule, loop) != 1]
    axes = [axis for axis in driven_spatial(info) if not is_single(info, axis)]
    rows = loops[-2] if len(loops) > 1 else None
    is_window = len(axes) == len(loops) and len(axes) > 1 and _shares_index(info, axes[-2])
    return loops, rows, loops[-3] if is_window and is_padded and len(loops) > 2 else None


def _is_contiguous(info: BlockInfo) -> bool:
    """Whether every operand that varies along the last spatial axis is contiguous along it, and one is."""
    axes = driven_spatial(info)
    if not axes:
        return False
    last = axes[-1]
    seen = False
    for load in info.reads:
        if load.buffer in info.written_buffers:
            continue
        if load.indices and load.indices[-1] is last:
            seen = True
        elif last in axes_in(load.indices):
            return False
        if load.indices and any(axis in axes_in(load.indices[-1]) for axis in info.reduction_axes):
            return False
    return seen


def _shares_index(info: BlockInfo, axis: Var) -> bool:
    """Whether the axis and a reduction axis move through the same dimension of an operand."""
    return any(
        axis in axes_in(index) and axes_in(index) & set(info.reduction_axes)
        for load in info.reads
        if load.buffer not in info.written_buffers
        for index in load.indices
    )


def choose_rows(rows: int | None) -> int:
    """The largest tile that leaves the fewest rows over."""
    if rows is None:
        return MOST_ROWS // 2
    if rows <= MOST_ROWS:
        return rows
    return min(range(MOST_ROWS // 2, MOST_ROWS + 1), key=lambda r: (-(-rows // r) * r, -r))


class _Plan:
    """The schedule of one reduction while it is made."""

    def __init__(
        self,
        schedule: Schedule,
        name: str,
        final: str,
        loops: list[str],
        rows: str | None,
        bands: str | None,
        before: list[str],
        target: Target,
        height: int | None = None,
    ) -> None:
        self.s, self.name, self.final, self.loops = schedule, name, final, loops
        self.rows, self.bands, self.before, self.target = rows, bands, before, target
        lanes = lanes_for(block_info(schedule, final), target)
        extent = extent_value(schedule, loops[-1])
        if height is None or rows is None:
            count = extent_value(schedule, rows) if rows is not None else 1
            height = schedule.choose(name, "rows", range(1, min(count or MOST_ROWS, 2 * MOST_ROWS) + 1), choose_rows(count))
        if extent is not None and extent < lanes:
            self.tile = _Tile(height, 1, extent)
        else:
            blocks = -(-extent // lanes) if extent is not None else MOST_VECTORS
            most = max(1, min(blocks, (target.num_vector_registers - 4) // height))
            vectors = max(1, min(MOST_VECTORS // height, blocks))
            self.tile = _Tile(height, schedule.choose(name, "vectors", range(1, min(most, 8) + 1), vectors), lanes)

    def run(self) -> None:
        s, tile = self.s, self.tile
        lane = self.loops[-1]
        others = [loop for loop in self.loops[:-1] if loop not in (self.rows, self.bands)]
        lane_out: list[str] = []
        inner: list[str] = []
        guarded: list[str] = []
        extent = extent_value(s, lane)
        if extent is None or extent > tile.lanes:
            out, vectors, lane = s.split(lane, (None, tile.vectors, tile.lanes))
            lane_out, inner = [out], [vectors]
            if extent is None or extent % (tile.vectors * tile.lanes):
                guarded.append(out)
        row_out: list[str] = []
        if self.rows is not None:
            row_count = extent_value(s, self.rows)
            out, row_in, is_whole = self._split_rows(row_count)
            row_out, inner = [out], [row_in, *inner]
            if not is_whole:
                guarded.append(out)
        band, band_rows = self._bands()
        outer = [*others, *band, *band_rows, *row_out, *lane_out]
        s.reorder(*outer, *inner, lane)
        for loop in guarded:
            s.annotate_loop(loop, "partition", 1)
        self._set_parallel([*others, *band], [*band_rows, *row_out, *lane_out], guarded)
        anchor = outer[-1] if outer else None
        if anchor is not None:
            s.compute_at(self.name, anchor)
        s.vectorize(lane)
        for loop in inner:
            s.unroll(loop)
        self._finish_sum(anchor)
        self._finish_padding(band[0] if band else None)

    def _split_rows(self, count: int | None) -> tuple[str, str, bool]:
        """The loop over tiles, the loop inside a tile, and whether all tiles are full."""
        assert self.rows is not None
        if count is None and self.tile.rows > 1:
            try:
                return *self.s.split_overlapped(self.rows, self.tile.rows), True
            except ScheduleError:  # there may be too few
                pass
        out, inside = self.s.split(self.rows, self.tile.rows)
        return out, inside, self.tile.rows == 1 or (count is not None and count % self.tile.rows == 0)

    def _bands(self) -> tuple[list[str], list[str]]:
        if self.bands is None:
            return [], []
        s = self.s
        rows = extent_value(s, self.bands)
        if rows is None:
            height = s.choose(self.name, "band_rows", SYMBOLIC_BANDS, SYMBOLIC_BAND)
            band, inside = s.split(self.bands, height)
            return [band], [inside]
        info = next(each for each in block_infos(s.func) if each.name == self.before[-1])
        buffer = info.writes[0].buffer
        row_bytes = self.tile.lanes * buffer.dtype.size_bytes * (extent_value(s, s.loops_of(info.name)[-2]) or 64)
        most = max(LEAST_BAND, int(0.75 * self.target.l1_bytes) // row_bytes - 2)
        heights = divisors(rows)
        height = [each for each in heights if each <= most][-1]
        if height < min(LEAST_BAND, rows):
            height = rows
        band, inside = s.split(self.bands, s.choose(self.name, "band_rows", heights, height))
        return [band], [inside]

    def _set_parallel(self, leading: list[str], inside: list[str], guarded: list[str]) -> None:
        s = self.s
        info = block_info(s, self.name)
        depth = driving_loops(info, list(s.loops_of(self.name)), info.reduction_axes)
        work = self.tile.rows * self.tile.vectors * self.tile.lanes * min(known_product(s, depth, 16), 256) // 2
        free = list(leading)
        rest = list(inside)
        while rest and not self.before and rest[0] not in guarded:
            free.append(rest.pop(0))
        if not free and rest:
            free.append(rest.pop(0))
        if free:
            set_parallel(s, self.name, free, work * known_product(s, rest, 8))

    def _finish_sum(self, anchor: str | None) -> None:
        s, tile = self.s, self.tile
        info = block_info(s, self.name)
        loops = list(s.loops_of(self.name))
        inside = loops[loops.index(anchor) + 1 :] if anchor is not None else loops
        depth = driving_loops(info, inside, info.reduction_axes)
        spatial = [loop for loop in inside if loop not in depth]
        unit = [loop for loop in spatial if extent_value(s, loop) == 1]
        tiled = [loop for loop in spatial if loop not in unit]
        if not tiled or known_product(s, tiled, 1 << 20) > 64 * tile.lanes:
            if depth:
                s.decompose_reduction(self.name, depth[0])
            return
        s.reorder(*unit, *depth, *tiled)
        last = extent_value(s, tiled[-1])
        if last is not None and last > tile.lanes:
            blocks, lane = s.split(tiled[-1], tile.lanes)
            s.vectorize(lane)
            s.unroll(blocks)
        else:
            s.vectorize(tiled[-1])
        for loop in tiled[:-1]:
            s.unroll(loop)
        if depth:
            self._unroll_taps(info, depth)
            s.decompose_reduction(self.name, depth[0])
        s.set_scope(info.writes[0].buffer.name, "register")

    def _unroll_taps(self, info: BlockInfo, depth: list[str]) -> None:
        """Unroll the innermost reduction loops where they are short."""
        s = self.s
        if (extent_value(s, depth[-1]) or LONGEST_UNROLLED + 1) > LONGEST_UNROLLED:
            return
        short = self._short(depth)
        count = s.choose(self.name, "unrolled_taps", range(len(short) + 1), len(short) if self._shifts(info) else int(self.tile.rows > 1))
        for loop in depth[len(depth) - count :]:
            s.unroll(loop)

    def _shifts(self, info: BlockInfo) -> bool:
        """Whether rows share what they load only when all taps are unrolled: vectors are shifted against each other within a row.

        Where the length of a row is symbolic, the places of so many loads take more registers than there are.
        """
        contraction = as_contraction(info)
        return contraction is not None and is_stencil(contraction) and isinstance(contraction.rhs.buffer.shape[-1], Const)

    def _short(self, depth: list[str]) -> list[str]:
        """The innermost reduction loops whose product is small enough to unroll them all."""
        short: list[str] = []
        for loop in reversed(depth):
            if known_product(self.s, [loop, *short], 1 << 20) > LONGEST_UNROLLED**2:
                break
            short.insert(0, loop)
        return short

    def _finish_padding(self, band: str | None) -> None:
        s = self.s
        if band is not None and self.before and s.choose(self.name, "padding", ("band", "alone"), "band", ordered=False) == "alone":
            band = None
        for name in reversed(self.before):
            if band is None:
                schedule_block(s, name, self.target)
                continue
            try:
                s.compute_at(name, band)
            except ScheduleError:
                schedule_block(s, name, self.target)
                continue
            vectorize_loop(s, s.loops_of(name)[-1], lanes_for(block_info(s, name), self.target))
