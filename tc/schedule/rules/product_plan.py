"""The schedule of one contraction while it is made: tiles, their order, and where padding and packing happen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tc.errors import ScheduleError
from tc.ir.expr import Const, Var
from tc.schedule.analysis import Contraction
from tc.schedule.rules.common import (
    TYPICAL_SYMBOLIC,
    buffer_bytes,
    divisors,
    extent_value,
    known_product,
    lanes_for,
    loops_inside,
    set_parallel,
)
from tc.schedule.rules.epilogue import (
    block_info,
    driven_spatial,
    driving_loops,
    is_single,
)
from tc.schedule.rules.operands import Dot, making_blocks, moves_apart
from tc.schedule.rules.spatial import schedule_block
from tc.schedule.rules.tile import vectorize_loop
from tc.schedule.rules.tile_sum import TileSum, schedule_tile_sum
from tc.schedule.rules.tiling import MOST_CLASHING_ROWS, NEAR_VECTORS, Tile, is_clashing_pitch
from tc.schedule.step import Schedule
from tc.target import Target

LEAST_SHARED_COLUMNS = 256
"""Columns that must use a packed lhs for the copy to pay."""

NEAR_RHS_OF_L1, NEAR_LHS_OF_L2 = 0.7, 0.5
"""The parts of the caches that one tile of columns of the rhs, and all of the lhs, may take to stay there."""

LEAST_NEAR_DEPTH = 64
"""Terms of a sum from which on this pays: with fewer, high tiles have less to store for what they read."""

COPIED_TILES = 4
"""Tiles of columns that share what is copied of the lhs for a tile of rows."""

LEAST_BAND_ROWS = 3
"""Bands are not made lower only to have enough of them: each pads a few rows of its own."""

BAND_BYTES_OF_L2 = 0.4
"""How much of the second-level cache the padded input of one band of rows may take."""

PACKED_BYTES_OF_L2 = 0.25
"""The same for rows that are packed: they are read once for each tile of columns, which comes from behind that cache."""


@dataclass(frozen=True)
class Roles:
    """The loops of the block that stores the result, by what they do; all but `lane` may be absent.

    rows: choose elements of the lhs only, outermost first. blocks: counts vectors of columns, where the layout has such an
    axis (`vectors_divide`: how many of them share a group). lane: the last axis. others: the rest (batch, groups).
    """

    rows: list[str]
    blocks: str | None
    vectors_divide: int
    lane: str
    others: list[str]


def loop_of_axis(schedule: Schedule, contraction: Contraction, final: str, around: str | None = None) -> dict[Var, str]:
    """The loop of the block `final` inside `around` over each spatial axis of the sum; empty where they do not run alike."""
    loops = loops_inside(schedule, final, around)
    axes = [axis for axis in driven_spatial(contraction.info) if not is_single(contraction.info, axis)]
    if around is not None:  # `final` is a copy of the sum's result: axes that no loop inside drives have one index there
        info = block_info(schedule, final)
        driven = [bool(driving_loops(info, loops, (axis.var,))) for axis in info.block.axes]
        own = {axis for axis, is_driven in zip(contraction.info.spatial_axes, driven, strict=True) if is_driven}
        axes = [axis for axis in axes if axis in own]
    return dict(zip(axes, loops, strict=True)) if len(axes) == len(loops) else {}


class ProductPlan:
    """The schedule of one contraction while it is made."""

    def __init__(
        self,
        schedule: Schedule,
        contraction: Contraction,
        name: str,
        final: str,
        roles: Roles,
        tile: Tile,
        target: Target,
        longest_sum: int | None = None,
        around: str | None = None,
        dot: Dot | None = None,
        with_operands: bool = False,
    ) -> None:
        """`longest_sum`: where it is given, no more terms are summed at once; see `TileSum`. `around`: all is inside this loop.
        `dot`: the instruction that sums. `with_operands`: the blocks that make the operands are to be scheduled, too."""
        self.dot = dot
        self.s, self.contraction, self.name, self.final = schedule, contraction, name, final
        self.longest_sum, self.around = longest_sum, around
        self.lhs_name = contraction.lhs.buffer.name
        self.roles, self.rows, self.tile, self.target = roles, list(roles.rows), tile, target
        self.before: list[str] = making_blocks(schedule, name, "lhs") if with_operands else []
        self.rhs_before: list[str] = making_blocks(schedule, name, "rhs") if with_operands else []
        if not moves_apart(contraction, contraction.rhs):  # windows: a part of it is made with a band of rows
            self.before, self.rhs_before = [*self.rhs_before, *self.before], []
        self.lhs_is_copied = bool(self.before) and not self._has_windows()
        loops = loop_of_axis(schedule, contraction, final, around)
        self.batch = {loop for axis, loop in loops.items() if axis in contraction.batch}
        lead = contraction.lhs.indices
        self.samples = loops.get(lead[0]) if len(lead) > 2 and isinstance(lead[0], Var) else None
        self.guarded: list[str] = []
        self.inner: list[str] = []  # rows of the tile, then vectors, then lanes
        self.row_tiles: list[str] = []
        self.bands: list[str] = []
        self.column_tiles: str = ""
        self.anchor = ""
        self.rhs_place = ""
        self.tiles_together = False
        self.rhs_is_apart = False

    def _has_windows(self) -> bool:
        """Whether an operand is read through windows that overlap."""
        return not all(moves_apart(self.contraction, load) for load in (self.contraction.lhs, self.contraction.rhs))

    def run(self) -> None:
        """All steps."""
        self.split()
        self.order()
        self.finish_final()
        instructions = self.finish_sum()
        self.finish_padding()
        self.finish_rhs()
        for loop, instruction in instructions.items():
            self.s.tensorize(loop, instruction)

    def split(self) -> None:
        """Cut rows and columns into tiles; loops whose last tile is not full are marked for peeling."""
        s, tile = self.s, self.tile
        row_loops = []
        if self.rows:
            row_loops.append(self._cut(self.rows[-1], tile.rows, self.row_tiles))
        if len(self.rows) > 1 and tile.outer_rows > 1:
            row_loops.insert(0, self._cut(self.rows[-2], tile.outer_rows, self.bands))
        elif len(self.rows) > 1:
            self.bands.append(self.rows[-2])
        if self.roles.blocks is not None:
            columns: list[str] = []
            vectors = self._cut(self.roles.blocks, tile.vectors, columns)
            self.column_tiles = columns[0]
            self.inner = [*row_loops, vectors, self.roles.lane]
        else:
            extent = extent_value(s, self.roles.lane)
            self.column_tiles, columns_in = s.split(self.roles.lane, tile.columns)
            if extent is None or extent % tile.columns:
                self._guard(self.column_tiles)
            self.inner = [*row_loops, columns_in]

    def _cut(self, loop: str, factor: int, outer: list[str]) -> str:
        extent = extent_value(self.s, loop)
        is_whole = self.dot is not None and self.dot.grid is not None  # of an instruction on tiles there is no part
        if extent is None or (is_whole and extent % factor):
            try:
                out, inside = self.s.split_overlapped(loop, factor)
                extent = None
            except ScheduleError:  # there may be too few
                extent = factor + 1
        if extent is not None:
            out, inside = self.s.split(loop, factor)
            if extent % factor:
                self._guard(out)
        outer.append(out)
        return inside

    def _guard(self, loop: str) -> None:
        self.guarded.append(loop)
        self.s.annotate_loop(loop, "partition", 1)

    def order(self) -> None:
        """Decide which operand stays in the cache: the outermost tile loop runs over the larger one, in parallel."""
        s, before = self.s, [] if self.lhs_is_copied else self.before
        others = [*self.roles.others, *self.rows[:-2]]
        bands = self._banded() if before else self.bands
        packed = self._pack_lhs() if not self.before and self.dot is None else None
        if packed is not None:
            before = self.before = [packed]
            bands = self._packed_bands()
        band_rows = [loop for loop in self.bands if loop not in bands] if before else []
        tiles = self.row_tiles
        tasks = self._num_tasks([*(loop for loop in others if loop in self.batch), self.column_tiles])
        self.rhs_is_apart = tasks < self.target.cores <= self._num_tasks([*others, *bands, *self.row_tiles])
        is_in_tiles = bool(self.rhs_before) and not self.rhs_is_apart
        are_several = len(tiles) == 1 and (extent_value(s, tiles[0]) or 1) > 1
        copied = self._packed_bands() if self.lhs_is_copied and not is_in_tiles and not bands and are_several else []
        bands, tiles, is_banded = [*bands, *copied], self.row_tiles, bool(before or copied)
        by_columns = is_in_tiles or self._columns_outermost(others, bands, is_banded)
        again = by_columns and extent_value(s, self.column_tiles) != 1  # inside a band each tile of columns would pad anew
        if by_columns:
            shared = [loop for loop in others if loop in self.batch]
            others = [loop for loop in others if loop not in shared]
            columns, together = self._cut_columns("columns_together", smallest=True)
            self.tiles_together = bool(together)
            outer = [*shared, columns, *others, *bands, *band_rows, *tiles, *together]
            parallel = [*shared, columns]
            self.rhs_place = columns
        else:
            apart, columns = self._cut_columns("columns_apart", smallest=False)
            rows, tiles = ([], tiles) if is_banded else self._cut_row_tiles(apart)
            inside = [*columns, *band_rows, *tiles]
            sides = ("rows", "columns")
            if columns and tiles and not is_banded and s.choose(self.name, "innermost", sides, "rows", ordered=False) == "columns":
                inside = [*band_rows, *tiles, *columns]
            around = [*bands, *rows]
            if bands and rows and s.choose(self.name, "outer_order", ("bands", "rows"), "bands", ordered=False) == "rows":
                around = [*rows, *bands]
            outer = [*others, *around, *apart, *inside]
            parallel = [*others, *around, *apart]
        s.reorder(*outer, *self.inner)
        self.anchor = outer[-1]
        self.padding_place = bands[-1] if bands else None
        if self.lhs_is_copied:
            self.padding_place = next(iter([*copied, *reversed(tiles), *reversed(bands)]), None)
        elif self.padding_place is not None and before:
            place = s.choose(self.name, "padding", ("band", "alone"), "alone" if again else "band", ordered=False)
            self.padding_place = self.padding_place if place == "band" else None
        self._set_parallel(parallel, outer)

    def _cut_columns(self, knob: str, *, smallest: bool) -> tuple[Any, Any]:
        """Cut the loop over column tiles in two, around and inside the loops over rows: blocking of the rhs in a cache.

        By default all of it is around (`smallest`: column tiles that stay together inside are one) or all inside.
        """
        s, loop = self.s, self.column_tiles
        count = extent_value(s, loop)
        sizes = [] if count is None or loop in self.guarded else divisors(count)
        if smallest:
            most = max(1, min(COPIED_TILES, (count or 1) // self.target.cores)) if self.lhs_is_copied else 1
            if count is not None and most > 1 and not any(1 < size <= most for size in sizes):
                sizes = _even_sizes(count - (loop in self.guarded))
            size = s.choose(self.name, knob, sizes, max((size for size in sizes if size <= most), default=1))
            if size == 1:
                return loop, []
            around, inside = self._split_guarded(loop, size)
            return around, [inside]
        parts = s.choose(self.name, knob, sizes, 1)
        if parts == 1 or count is None:
            return [], [loop]
        around, inside = s.split(loop, count // parts)
        return [around], [inside]

    def _lay_tiles_apart(self) -> None:
        """Let each tile of columns of the rhs's copy lie by itself."""
        s = self.s
        rhs = self.contraction.rhs
        names = [f"a{d}" for d in range(len(rhs.indices))]
        rest = [] if self.dot is None else [names.pop()]
        *outer, column = names
        size = self.tile.columns
        layout = [f"{column} // {size}", *outer, f"{column} % {size}", *rest]
        s.transform_layout(rhs.buffer.name, f"{', '.join([*names, *rest])} -> {', '.join(layout)}")

    def _cut_row_tiles(self, apart: list[str]) -> tuple[list[str], list[str]]:
        """Cut the loop over row tiles in two, around and inside the loops over columns; by default all of it is around."""
        s = self.s
        if len(self.row_tiles) != 1 or self.row_tiles[0] in self.guarded:
            return self.row_tiles, []
        loop = self.row_tiles[0]
        size = s.choose(self.name, "rows_together", divisors(extent_value(s, loop) or 1), 1)
        if size > 1:
            around, inside = s.split(loop, size)
            return [around], [inside]
        if apart:  # columns in blocks around all rows: each block is read once for all of them
            return [], self.row_tiles
        return self.row_tiles, []

    def _pack_lhs(self) -> str | None:
        """Copy the lhs into blocks of depth, [k / b, row, b], if its rows lie at distances that evict each other; the copy's block."""
        lhs = self.contraction.lhs
        row, depth = lhs.indices[-2:] if len(lhs.indices) == 2 else (None, None)
        if row not in self.contraction.rows or depth not in self.contraction.depth or len(self.row_tiles) != 1:
            return None
        if not isinstance(lhs.buffer.shape[-1], Const):
            return None
        columns = known_product(self.s, [self.column_tiles], 8) * self.tile.columns
        pays = rows_clash(self.contraction) and self.tile.rows > MOST_CLASHING_ROWS and columns >= LEAST_SHARED_COLUMNS
        if not self.s.choose(self.name, "pack_lhs", (False, True), pays, ordered=False):
            return None
        block = self.tile.lanes
        name = self.s.cache_read(self.name, lhs.buffer.name, "global", f"i, k -> k // {block}, i, k % {block}")
        self.lhs_name = next(load.buffer.name for load in block_info(self.s, self.name).reads if load.buffer.name.startswith(name))
        return name

    def _packed_bands(self) -> list[str]:
        """Cut the loop over tiles of rows so that the packed rows of one band fit the cache; the band loop."""
        loop = self.row_tiles[0]
        count = extent_value(self.s, loop)
        if count is None:
            self.bands, self.row_tiles = [loop], []
            return [loop]
        guarded = loop in self.guarded
        count = max(1, count - guarded)  # whole tiles: the last one, if cut short, is peeled and becomes a band of its own
        tile_bytes = self.tile.rows * max(1, self._lhs_bytes() // max(1, count * self.tile.rows))
        most = max(1, min(int(self.target.l2_bytes * PACKED_BYTES_OF_L2) // tile_bytes, count // self.target.cores))
        sizes = _even_sizes(count)
        size = self.s.choose(self.name, "band_tiles", sizes, max(size for size in sizes if size <= most))
        band, inside = self._split_guarded(loop, size)
        self.bands, self.row_tiles = [band], [inside]
        return [band]

    def _split_guarded(self, loop: str, size: int) -> tuple[str, str]:
        """Cut a loop over tiles, both parts to be peeled where the last part or the last tile is short."""
        count = extent_value(self.s, loop)
        is_whole = loop not in self.guarded and count is not None and count % size == 0
        around, inside = self.s.split(loop, size)
        if not is_whole:
            self.guarded.append(around)
            self._guard(inside)
            self.s.annotate_loop(around, "partition", 1)
        return around, inside

    def _banded(self) -> list[str]:
        """With padding: cut the rows of the image into bands whose padded input fits the cache; the band loop."""
        if not self.bands:
            return []
        loop = self.bands[-1]
        rows = extent_value(self.s, loop)
        if rows is None:
            return [loop]
        if loop in self.guarded or rows == 1:
            return [loop]
        most = max(1, int(self.target.l2_bytes * BAND_BYTES_OF_L2) // max(1, self._lhs_bytes() // rows))
        heights = divisors(rows)
        fitting = [height for height in heights if rows // height >= -(-rows // most)]
        height = fitting[-1] if fitting else 1
        if rows // height < self.target.cores and not self._rhs_is_larger():  # bands are what runs in parallel
            height = max((h for h in heights if rows // h >= self.target.cores and h >= LEAST_BAND_ROWS), default=height)
        return self._band(loop, self.s.choose(self.name, "band_rows", heights, height))

    def _band(self, loop: str, height: int) -> list[str]:
        band, inside = self.s.split(loop, height)
        self.bands = [band, inside]
        return [band]

    def _lhs_bytes(self) -> int:
        return buffer_bytes(self.contraction.lhs.buffer)

    def _columns_outermost(self, others: list[str], bands: list[str], is_padded: bool) -> bool:
        default = "columns" if self._prefers_columns(others, bands, is_padded) else "rows"
        return self.s.choose(self.name, "outermost", ("rows", "columns"), default, ordered=False) == "columns"

    def _prefers_columns(self, others: list[str], bands: list[str], is_padded: bool) -> bool:
        """Whether the outermost loop runs over column tiles: the rhs is the larger operand, and there are tasks enough.

        Where the result's rows run across column tiles, a small rhs, which stays in the cache anyway, does not break them up.
        """
        cores = self.target.cores
        column_tasks = self._num_tasks([*(loop for loop in others if loop in self.batch), self.column_tiles])
        row_tasks = self._num_tasks([*others, *bands, *([] if is_padded else self.row_tiles)])
        if column_tasks < cores <= row_tasks:
            return False
        if row_tasks < cores <= column_tasks:
            return True
        if self.lhs_is_copied and is_padded:  # once, rather than for each tile of columns
            return False
        is_wide = self.roles.blocks is not None and self.tile.vectors == NEAR_VECTORS and not is_padded
        stays = is_wide and rhs_stays_near(self.contraction, self.tile.columns, self.target)
        return stays or self._rhs_is_larger() or (not is_padded and self._reads_less_by_columns())

    def _reads_less_by_columns(self) -> bool:
        """Whether reading all of the lhs again for each tile of columns is less than reading all of the rhs for each tile of rows.

        What fits half of the second-level cache is read once.
        """
        near = self.target.l2_bytes // 2
        lhs, rhs = self._lhs_bytes(), buffer_bytes(self.contraction.rhs.buffer)
        row_tiles = known_product(self.s, self.row_tiles, TYPICAL_SYMBOLIC // max(1, self.tile.rows))
        column_tiles = known_product(self.s, [self.column_tiles], 8)
        return rhs > near and (0 if lhs <= near else column_tiles * lhs) < row_tiles * rhs

    def _num_tasks(self, loops: list[str]) -> int:
        """How many tasks `_set_parallel` can make of these loops; a symbolic number of samples may be 1."""
        free = self._fusible(loops)
        samples = [loop for loop in free if loop == self.samples]
        return known_product(self.s, samples, 1) * known_product(self.s, [loop for loop in free if loop not in samples], 8)

    def _rhs_is_larger(self) -> bool:
        rhs = buffer_bytes(self.contraction.rhs.buffer)
        return rhs > self._lhs_bytes() and (self.roles.blocks is not None or rhs > self.target.l2_bytes // 8)

    def _set_parallel(self, parallel: list[str], outer: list[str]) -> None:
        """Run the leading loops in parallel, fused as far as possible."""
        s = self.s
        if self.around is not None:
            return
        work = self.tile.all_rows * self.tile.columns * min(known_product(s, self._depth_loops(), 64), 4096) // 4
        free = self._fusible(parallel)
        inside = [loop for loop in outer if loop not in free]
        set_parallel(s, self.name, free, work * known_product(s, inside, 8))

    def _fusible(self, loops: list[str]) -> list[str]:
        """The leading loops that can run as one parallel loop: up to one that is to be peeled, or that one alone."""
        return list(takewhile(lambda loop: loop not in self.guarded, loops)) or loops[:1]

    def _depth_loops(self) -> list[str]:
        info = block_info(self.s, self.name)
        return [axis.value.name for axis in info.block.axes if axis.var in info.reduction_axes and isinstance(axis.value, Var)]

    def finish_final(self) -> None:
        """Place the sum inside the tile; vectorize and unroll the loops of the block that stores it."""
        s, tile = self.s, self.tile
        s.compute_at(self.name, self.anchor)
        *unrolled, column = self.inner
        if self.roles.blocks is None and tile.vectors > 1:
            blocks, lanes = s.split(column, tile.lanes)
            s.vectorize(lanes)
            s.unroll(blocks)
        else:
            s.vectorize(column)
        for loop in unrolled:
            s.unroll(loop)

    def finish_sum(self) -> dict[str, str]:
        """Schedule the sum inside a tile; the outermost loops of nests that are instructions -> their names."""
        total = TileSum(
            self.contraction,
            name=self.name,
            knobs=self.name,
            anchor=self.anchor,
            lhs_name=self.lhs_name,
            tile=self.tile,
            target=self.target,
            has_blocks=self.roles.blocks is not None,
            longest_sum=self.longest_sum,
            dot=self.dot,
        )
        return schedule_tile_sum(self.s, total)

    def finish_rhs(self) -> None:
        """Make the rhs of each tile of columns where all rows read it: packed by an instruction, out of a few rows at a time.

        All of it is made before where its tiles are too few for all cores.
        """
        s, place, packed = self.s, self.rhs_place, ""
        for name in reversed(self.rhs_before):
            if not self.rhs_is_apart or packed:
                s.compute_at(name, place)
            elif self.dot is None:
                schedule_block(s, name, self.target)
                continue
            if self.tiles_together and name is self.rhs_before[-1]:
                self._lay_tiles_apart()
            if self.dot is not None and not packed:
                *_, place, columns, _ = s.loops_of(name)
                *_, packed = s.split(columns, (None, self.tile.vectors, self.tile.lanes))
            else:
                _, columns = s.split(s.loops_of(name)[-1], self.tile.columns)
                vectorize_loop(s, columns, lanes_for(block_info(s, name), self.target))
        if self.dot is not None:
            s.tensorize(packed, self.dot.interleave)

    def finish_padding(self) -> None:
        """Compute what precedes the sum once per band of rows, or on its own where there are no bands."""
        s = self.s
        for name in reversed(self.before):
            if self.padding_place is not None:
                try:
                    s.compute_at(name, self.padding_place)
                except ScheduleError:
                    schedule_block(s, name, self.target)
                    continue
                last = s.loops_of(name)[-1]
                vectorize_loop(s, last, lanes_for(block_info(s, name), self.target))
            else:
                schedule_block(s, name, self.target)


def _even_sizes(count: int) -> list[int]:
    """How many of `count` tiles a part may have, the last part being as near to the others as can be; in order."""
    return sorted({-(-count // parts) for parts in range(1, count + 1)})


def rows_clash(contraction: Contraction) -> bool:
    """Whether the rows of the lhs, a matrix, lie at distances at which they evict each other from the first-level cache."""
    lhs = contraction.lhs
    is_matrix = len(lhs.indices) == 2 and lhs.indices[0] in contraction.rows
    return is_matrix and is_clashing_pitch(lhs.buffer.shape[-1], lhs.buffer.dtype)


def rhs_stays_near(contraction: Contraction, columns: int, target: Target) -> bool:
    """Whether so many columns of the rhs stay in the first-level cache, and all of the lhs in the second, from rows to rows."""
    depth = [axis.extent for axis in contraction.info.block.axes if axis.var in contraction.info.reduction_axes]
    sizes = [*depth, *contraction.lhs.buffer.shape]
    if contraction.batch or not all(isinstance(size, Const) for size in sizes):
        return False
    terms = math.prod(int(size.value) for size in depth if isinstance(size, Const))
    if terms < LEAST_NEAR_DEPTH:
        return False
    rhs = contraction.rhs.buffer.dtype.size_bytes * columns * terms
    return rhs <= NEAR_RHS_OF_L1 * target.l1_bytes and buffer_bytes(contraction.lhs.buffer) <= NEAR_LHS_OF_L2 * target.l2_bytes
