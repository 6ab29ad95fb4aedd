"""Sums of products: register tiles of several rows by a few vectors of columns.

The last spatial axis, along which one operand (the rhs) and the result are contiguous, is vectorized; row axes, along which the
other operand is broadcast, are unrolled. The tile lives in registers while all reduction axes run; what follows the sum
(bias, activation, residual) is applied to the tile before it is stored. Padding is materialized per band of rows.
Source: the outer-product micro-kernel of Goto and van de Geijn (2008); for convolutions, Georganas et al. (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.expr import Buffer, Const, Expr, FloorDiv, Load, Var
from tc.ir.node import children, walk
from tc.schedule.analysis import BlockInfo, Contraction, as_contraction, block_infos
from tc.schedule.rules.common import extent_value, known_product, lanes_for, set_parallel
from tc.schedule.rules.epilogue import block_info, driven_spatial, driving_loops, final_block, is_single, vectorize_loop
from tc.schedule.rules.spatial import schedule_block
from tc.schedule.rules.tiling import Tile, choose_tile
from tc.schedule.step import Schedule
from tc.target import Target

DEPTH_UNROLL = 2
"""Steps of the sum per iteration of the innermost loop."""

PREFETCH_BYTES = 2048
"""How far ahead the rhs is prefetched: some thirty steps of the sum, each of about a dozen cycles, cover the latency of memory."""

TYPICAL_SYMBOLIC = 256
"""What the product of an operand's symbolic dims is taken to be."""

ALIASING_BYTES = 4096
"""Addresses at a multiple of this distance share one set of the first-level cache."""

LEAST_SHARED_COLUMNS = 256
"""Columns that must use a packed lhs for the copy to pay."""

BAND_BYTES_OF_L2 = 0.4
"""How much of the second-level cache the padded input of one band of rows may take."""


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


def schedule_contraction(schedule: Schedule, target: Target) -> str | None:
    """Tile the one contraction of a PrimFunc; everything before it is scheduled on its own, everything after it is fused."""
    infos = block_infos(schedule.func)
    found = [(k, c) for k, info in enumerate(infos) if (c := as_contraction(info)) is not None]
    if len(found) != 1:
        return None
    position, contraction = found[0]
    before, after = infos[:position], infos[position + 1 :]
    if not all(info.is_spatial for info in (*before, *after)):
        return None
    last = after[-1] if after else contraction.info
    if all(is_single(last, axis) for axis in driven_spatial(last)):
        return None
    name = contraction.info.name
    final = final_block(schedule, name, after)
    if final is None:
        return None
    _schedule_versions(schedule, contraction, name, final, [info.name for info in before], target)
    return "contraction"


# -- who does what


def _roles(schedule: Schedule, contraction: Contraction, final: str, lanes: int) -> Roles:
    loops = [loop for loop in schedule.loops_of(final) if extent_value(schedule, loop) != 1]
    axes = [axis for axis in driven_spatial(contraction.info) if not is_single(contraction.info, axis)]
    if len(axes) != len(loops):
        loops = loops or list(schedule.loops_of(final))
        return Roles([], None, 0, loops[-1], loops[:-1])
    loop_of = dict(zip(axes, loops, strict=True))
    lane = loops[-1]
    rows = [loop_of[axis] for axis in axes if axis in contraction.rows and loop_of[axis] != lane]
    blocks, divide = None, 0
    if extent_value(schedule, lane) == lanes:
        for axis in reversed(axes[:-1]):
            shared = _group_size(contraction, axis)
            if axis in contraction.columns or shared:
                blocks, divide = loop_of[axis], shared or 0
                break
    others = [loop for loop in loops if loop not in (*rows, blocks, lane)]
    return Roles(rows, blocks, divide, lane, others)


def _group_size(contraction: Contraction, axis: Var) -> int | None:
    """How many neighbours along `axis` read the same part of the lhs: q, if the lhs depends on it through axis // q alone."""
    if axis not in contraction.batch:
        return None
    sizes = set()

    def visit(node: Expr) -> None:
        match node:
            case FloorDiv(lhs=lhs, rhs=Const(value=value)) if lhs is axis:
                sizes.add(int(value))
            case _ if node is axis:
                sizes.add(0)
            case _:
                for child in children(node):
                    if isinstance(child, Expr):
                        visit(child)

    for index in contraction.lhs.indices:
        visit(index)
    return sizes.pop() if len(sizes) == 1 and sizes != {0} else None


# -- the schedule


def schedule_product(schedule: Schedule, name: str, final: str, target: Target) -> None:
    """Tile one contraction among other blocks; the spatial block `final` stores its result."""
    contraction = as_contraction(block_info(schedule, name))
    assert contraction is not None, f"{name} is a contraction"
    _schedule_versions(schedule, contraction, name, final, [], target)


def _schedule_versions(
    schedule: Schedule, contraction: Contraction, name: str, final: str, before: list[str], target: Target
) -> None:
    """One schedule, or two where the number of rows is symbolic: tiles that overlap at the end, and single rows for too few."""
    lanes = lanes_for(block_info(schedule, final), target)
    roles = _roles(schedule, contraction, final, lanes)
    tile = _choose(schedule, contraction, final, roles, lanes, target)
    if not roles.rows or extent_value(schedule, roles.rows[-1]) is not None or tile.rows == 1:
        _Plan(schedule, contraction, name, final, roles, tile, target).run(before)
        return
    blocks = [info.name for info in block_infos(schedule.func)]
    try:
        schedule.specialize(roles.rows[-1], tile.rows)
    except ScheduleError:  # known to be enough, or not decided by dims
        _Plan(schedule, contraction, name, final, roles, tile, target).run(before)
        return
    copies = dict(zip(blocks, [info.name for info in block_infos(schedule.func)][len(blocks) :], strict=True))
    _Plan(schedule, contraction, name, final, roles, tile, target).run(before)
    name, final, before = copies[name], copies[final], [copies[each] for each in before]
    other = as_contraction(block_info(schedule, name))
    assert other is not None
    roles = _roles(schedule, other, final, lanes)
    panel = choose_tile(1, 1, _num_blocks(schedule, roles, lanes), lanes, target.num_vector_registers, roles.vectors_divide, tile.vectors)
    _Plan(schedule, other, name, final, roles, panel, target).run(before)


def _num_blocks(schedule: Schedule, roles: Roles, lanes: int) -> int | None:
    """How many vectors the columns are; None when symbolic."""
    if roles.blocks is not None:
        return extent_value(schedule, roles.blocks)
    columns = extent_value(schedule, roles.lane)
    return None if columns is None else -(-columns // lanes)


def _choose(
    schedule: Schedule, contraction: Contraction, final: str, roles: Roles, lanes: int, target: Target
) -> Tile:
    rows = roles.rows
    sizes = [extent_value(schedule, loop) for loop in rows]
    row_count = sizes[-1] if rows else 1
    outer_rows = (sizes[-2] or 1) if len(rows) > 1 else 1
    panel = max(1, (_depth_block(contraction.rhs, contraction.columns) or lanes) // lanes) if roles.blocks is None else 1
    divided = bool(rows) and _is_part(schedule, final, rows[-1])
    blocks = _num_blocks(schedule, roles, lanes)
    registers = target.num_vector_registers
    return choose_tile(row_count, outer_rows, blocks, lanes, registers, roles.vectors_divide, panel, divided)


def _is_part(schedule: Schedule, final: str, loop: str) -> bool:
    """Whether an axis of the block is made of the loop and others: tiles must then not run over the end of the loop."""
    loops = schedule.loops_of(final)
    for axis in block_info(schedule, final).block.axes:
        names = {node.name for node in walk(axis.value) if isinstance(node, Var) and node.name in loops}
        if loop in names and len(names) > 1:
            return True
    return False


def _batch_loops(schedule: Schedule, contraction: Contraction, final: str) -> set[str]:
    """The loops over axes that choose parts of both operands: each iteration is a product of its own."""
    loops = [loop for loop in schedule.loops_of(final) if extent_value(schedule, loop) != 1]
    axes = [axis for axis in driven_spatial(contraction.info) if not is_single(contraction.info, axis)]
    if len(loops) != len(axes):
        return set()
    return {loop for loop, axis in zip(loops, axes, strict=True) if axis in contraction.batch}


class _Plan:
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
    ) -> None:
        self.s, self.contraction, self.name, self.final = schedule, contraction, name, final
        self.lhs_name = contraction.lhs.buffer.name
        self.roles, self.rows, self.tile, self.target = roles, list(roles.rows), tile, target
        self.before: list[str] = []
        self.batch = _batch_loops(schedule, contraction, final)
        self.guarded: list[str] = []
        self.inner: list[str] = []  # rows of the tile, then vectors, then lanes
        self.row_tiles: list[str] = []
        self.bands: list[str] = []
        self.column_tiles: str = ""
        self.anchor = ""

    def run(self, before: list[str]) -> None:
        """All steps; `before` are the blocks that the sum reads from."""
        self.split()
        self.order(before)
        self.finish_final()
        self.finish_sum()
        self.finish_padding(before or self.before)

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
        if extent is None:
            try:
                out, inside = self.s.split_overlapped(loop, factor)
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

    def order(self, before: list[str]) -> None:
        """Decide which operand stays in the cache: the outermost tile loop runs over the larger one, in parallel."""
        s = self.s
        others = [*self.roles.others, *self.rows[:-2]]
        bands = self._banded() if before else self.bands
        packed = self._pack_lhs() if not before else None
        if packed is not None:
            before = self.before = [packed]
            bands = self._packed_bands()
        band_rows = [loop for loop in self.bands if loop not in bands] if before else []
        if self._columns_outermost(others, bands):
            shared = [loop for loop in others if loop in self.batch]
            others = [loop for loop in others if loop not in shared]
            outer = [*shared, self.column_tiles, *others, *bands, *band_rows, *self.row_tiles]
            parallel = [*shared, self.column_tiles]
        else:
            outer = [*others, *bands, *([] if before else self.row_tiles), self.column_tiles, *band_rows]
            if before:
                outer += self.row_tiles
            parallel = outer[: outer.index(self.column_tiles)]
        s.reorder(*outer, *self.inner)
        self.anchor = outer[-1]
        self.padding_place = bands[-1] if bands else None
        if before and not self._pad_at_band(before):
            self.padding_place = None
        self._set_parallel(parallel, outer)

    def _pack_lhs(self) -> str | None:
        """Copy the lhs into blocks of depth, [k / b, row, b], if its rows lie at distances that evict each other; the copy's block."""
        lhs = self.contraction.lhs
        row, depth = lhs.indices[-2:] if len(lhs.indices) == 2 else (None, None)
        if row not in self.contraction.rows or depth not in self.contraction.depth or len(self.row_tiles) != 1:
            return None
        pitch = lhs.buffer.shape[-1]
        if not isinstance(pitch, Const) or int(pitch.value) * lhs.buffer.dtype.size_bytes % ALIASING_BYTES:
            return None
        columns = known_product(self.s, [self.column_tiles], 8) * self.tile.columns
        if self.tile.rows < 4 or columns < LEAST_SHARED_COLUMNS:
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
        most = max(1, int(self.target.l2_bytes * BAND_BYTES_OF_L2) // tile_bytes)
        size = max(d for d in range(1, count + 1) if count % d == 0 and d <= most and (count // d >= self.target.cores or d == 1))
        band, inside = self.s.split(loop, size)
        if guarded:
            self.guarded.append(band)
            self._guard(inside)
            self.s.annotate_loop(band, "partition", 1)
        self.bands, self.row_tiles = [band], [inside]
        return [band]

    def _banded(self) -> list[str]:
        """With padding: cut the rows of the image into bands whose padded input fits the cache; the band loop."""
        if not self.bands:
            return []
        loop = self.bands[-1]
        rows = extent_value(self.s, loop)
        if rows is None:
            return [loop]
        size = max(1, self._lhs_bytes() // rows)
        most = max(1, int(self.target.l2_bytes * BAND_BYTES_OF_L2) // size)
        count = -(-rows // most)
        wanted = [d for d in range(1, rows + 1) if rows % d == 0 and d >= count]
        height = rows // wanted[0] if wanted else 1
        if loop in self.guarded or height == rows:
            return [loop] if loop in self.guarded or rows == 1 else self._band(loop, rows)
        return self._band(loop, height)

    def _band(self, loop: str, height: int) -> list[str]:
        band, inside = self.s.split(loop, height)
        self.bands = [band, inside]
        return [band]

    def _lhs_bytes(self) -> int:
        return _bytes(self.contraction.lhs.buffer)

    def _columns_outermost(self, others: list[str], bands: list[str]) -> bool:
        """Whether the outermost loop runs over column tiles: the rhs is the larger operand, and there are tasks enough.

        Where the result's rows run across column tiles, a small rhs, which stays in the cache anyway, does not break them up.
        """
        column_tasks = extent_value(self.s, self.column_tiles) or 8
        row_tasks = known_product(self.s, [*others, *bands, *self.row_tiles])
        cores = self.target.cores
        if column_tasks < cores <= row_tasks:
            return False
        if row_tasks < cores <= column_tasks:
            return True
        rhs = _bytes(self.contraction.rhs.buffer)
        return rhs > self._lhs_bytes() and (self.roles.blocks is not None or rhs > self.target.l2_bytes // 8)

    def _pad_at_band(self, before: list[str]) -> bool:
        return self.padding_place is not None

    def _set_parallel(self, parallel: list[str], outer: list[str]) -> None:
        """Run the leading loops in parallel, fused as far as none is to be peeled."""
        s = self.s
        work = self.tile.all_rows * self.tile.columns * min(known_product(s, self._depth_loops(), 64), 4096) // 4
        free: list[str] = []
        for loop in parallel:
            if loop in self.guarded:
                break
            free.append(loop)
        inside = [loop for loop in outer if loop not in free]
        if not free:
            if not parallel:
                return
            free, inside = parallel[:1], outer[1:]
        total_inside = work * known_product(s, inside, 8)
        set_parallel(s, free, total_inside)

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

    def finish_sum(self) -> None:
        """Inside the tile: reduction loops outermost, then rows, then vectors, so that a broadcast serves all vectors at once."""
        s, tile = self.s, self.tile
        info = block_info(s, self.name)
        loops = list(s.loops_of(self.name))
        inside = loops[loops.index(self.anchor) + 1 :]
        depth = driving_loops(info, inside, info.reduction_axes)
        spatial = [loop for loop in inside if loop not in depth]
        unit = [loop for loop in spatial if extent_value(s, loop) == 1]
        tiled = [loop for loop in spatial if loop not in unit]
        is_static = known_product(s, tiled, 1 << 20) <= 64 * tile.lanes  # larger ones stay in memory
        ordered = self._ordered(info, tiled)
        depth = self._split_depth(depth)
        if depth and spatial:
            s.reorder(*unit, *depth, *ordered)
        if ordered:
            self._vectorize_tile(ordered)
        if depth and self._streams_rhs():
            place = s.func.buffers.index(self.contraction.rhs.buffer)
            s.annotate_loop(depth[0], "prefetch", f"{place}:{PREFETCH_BYTES}")
        if depth:
            s.decompose_reduction(self.name, depth[0])
        if is_static:
            s.set_scope(info.writes[0].buffer.name, "register")

    def _streams_rhs(self) -> bool:
        """Whether the rhs comes from memory rather than from a cache: an input as large as a part of the second-level cache."""
        rhs = self.contraction.rhs.buffer
        return rhs in self.s.func.inputs and _bytes(rhs) > self.target.l2_bytes // 8

    def _ordered(self, info: BlockInfo, tiled: list[str]) -> list[str]:
        """Row loops before the loop over vectors."""
        if len(tiled) < 2 or self.roles.blocks is None:
            return tiled
        column_axes = (*self.contraction.columns, *self.contraction.batch)
        places = [k for k, axis in enumerate(self.contraction.info.block.axes) if axis.var in column_axes]
        driving = [info.block.axes[k].value for k in places]
        columns = {node.name for value in driving for node in walk(value) if isinstance(node, Var)}
        *rest, lane = tiled
        return [*(loop for loop in rest if loop not in columns), *(loop for loop in rest if loop in columns), lane]

    def _split_depth(self, depth: list[str]) -> list[str]:
        """Blocks of channels outermost, then the taps, then the lanes of a block, a few of them at a time."""
        s = self.s
        if not depth:
            return depth
        info = block_info(s, self.name)
        loads = [load for load in info.reads if load.buffer.name == self.lhs_name]
        block = _depth_block(loads[0], info.reduction_axes) if loads else None
        first = depth[0]
        extent = extent_value(s, first)
        if block is not None and extent is not None:
            outer, inside = s.split(first, block)
            if extent % block:
                s.annotate_loop(outer, "partition", 1)
            if extent % block == 0 or len(depth) > 1:
                depth = [outer, *depth[1:], inside]
                if block % DEPTH_UNROLL == 0 and extent % block == 0:
                    steps, few = s.split(inside, DEPTH_UNROLL)
                    s.unroll(few)
                    depth[-1:] = [steps, few]
            else:
                depth = [outer, inside]
        elif len(depth) == 1 and extent is not None and extent % DEPTH_UNROLL == 0 and extent > DEPTH_UNROLL:
            steps, few = s.split(first, DEPTH_UNROLL)
            s.unroll(few)
            depth = [steps, few]
        return depth

    def _vectorize_tile(self, tiled: list[str]) -> None:
        s, tile = self.s, self.tile
        column = tiled[-1]
        extent = extent_value(s, column)
        if extent is None or extent > tile.lanes:
            blocks, lanes = s.split(column, tile.lanes)
            s.vectorize(lanes)
            if extent is not None:
                s.unroll(blocks)
        else:
            s.vectorize(column)
        for loop in tiled[:-1]:
            if (extent_value(s, loop) or 99) <= max(tile.all_rows, tile.vectors):
                s.unroll(loop)

    def finish_padding(self, before: list[str]) -> None:
        """Compute what precedes the sum once per band of rows, or on its own where there are no bands."""
        s = self.s
        for name in reversed(before):
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


def _depth_block(load: Load, axes: tuple[Var, ...]) -> int | None:
    """The block size b when a load is at k // b and k % b for one of `axes`."""
    for index in load.indices:
        for node in walk(index):
            if isinstance(node, FloorDiv) and isinstance(node.rhs, Const) and node.lhs in axes:
                return int(node.rhs.value)
    return None


def _bytes(buffer: Buffer) -> int:
    """The size of a buffer; symbolic dims together are taken to be TYPICAL_SYMBOLIC."""
    total = buffer.dtype.size_bytes
    for dim in buffer.shape:
        total *= int(dim.value) if isinstance(dim, Const) else 1
    return total if all(isinstance(dim, Const) for dim in buffer.shape) else total * TYPICAL_SYMBOLIC

