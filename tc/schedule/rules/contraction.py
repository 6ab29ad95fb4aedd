"""Sums of products: register tiles of several rows by a few vectors of columns.

The last spatial axis, along which one operand (the rhs) and the result are contiguous, is vectorized; a row axis, along which the
other operand is broadcast, is unrolled. The tile lives in registers while all reduction axes run; what follows the sum
(bias, activation, residual) is applied to the tile before it is stored.
Source: the outer-product micro-kernel of Goto and van de Geijn (2008).
"""

from __future__ import annotations

from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.expr import Var
from tc.ir.node import walk
from tc.schedule.analysis import BlockInfo, Contraction, as_contraction, block_infos
from tc.schedule.rules.common import extent_value, known_product, lanes_for, set_parallel
from tc.schedule.rules.spatial import schedule_block
from tc.schedule.step import Schedule
from tc.target import Target


@dataclass(frozen=True)
class Tile:
    """Rows by `vectors` vectors of `lanes` columns."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


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
    name = contraction.info.name
    final = _final_block(schedule, name, after)
    if final is None:
        return None
    for info in before:
        schedule_block(schedule, info.name, target)
    _tile(schedule, contraction, name, final, target)
    return "contraction"


def _final_block(schedule: Schedule, name: str, after: list[BlockInfo]) -> str | None:
    """Make everything after the contraction one block; returns its name."""
    if not after:
        schedule.cache_write(name, "register")
        return f"{name}_copy"
    for info in after[:-1]:
        try:
            schedule.compute_inline(info.name)
        except ScheduleError:
            return None
    last = after[-1].name
    contraction = next(info for info in block_infos(schedule.func) if info.name == name)
    spatial = len(_spatial_loops(contraction))
    loops = schedule.loops_of(last)
    if len(loops) > spatial > 0:  # the sum runs over several axes of the result as one
        schedule.fuse(*loops[spatial - 1 :])
    return last


def _spatial_loops(info: BlockInfo) -> list[str]:
    """The loops that drive the spatial axes of a block that has not been scheduled."""
    return [
        axis.value.name
        for axis in info.block.axes
        if axis.var in info.spatial_axes and isinstance(axis.value, Var)
    ]


def choose_tile(rows: int | None, columns: int | None, lanes: int, target: Target) -> Tile:
    """The register tile: as many vectors as one row of the result needs, at most 4, and rows to fill the registers.

    Accumulators, one vector per column block and a broadcast must fit. Among the row counts that fit, the one that leaves the
    fewest rows of the last tile unused wins, larger ones first.
    """
    wanted = 2 if columns is None else max(1, min(4, -(-columns // lanes)))
    if columns is not None and columns % (2 * lanes) == 0:
        wanted = 2
    elif columns is not None and columns > 4 * lanes:
        wanted = 2 if columns % lanes else 1 if columns % (3 * lanes) else 3
    room = target.num_vector_registers - wanted - 1
    most = max(1, min(room // wanted, 14))
    if rows is None:
        return Tile(min(most, 6), wanted, lanes)
    if rows <= most:
        return Tile(rows, wanted, lanes)
    best = min(range(max(1, most // 2), most + 1), key=lambda r: (-(-rows // r) * r + (most - r) * rows // 64, -r))
    return Tile(best, wanted, lanes)


def _tile(schedule: Schedule, contraction: Contraction, name: str, final: str, target: Target) -> None:
    loops = list(schedule.loops_of(final))
    info = next(i for i in block_infos(schedule.func) if i.name == final)
    lanes = lanes_for(info, target)
    axis_of = _loops_by_axis(schedule, name)
    own_loops = list(schedule.loops_of(name))
    spatial = [axis_of[axis] for axis in contraction.info.spatial_axes if axis in axis_of]
    column = loops[-1]
    row_names = [axis_of[axis] for axis in contraction.rows if axis in axis_of]
    row = _matching_loop(loops, spatial, own_loops, row_names)
    columns = extent_value(schedule, column)
    rows = extent_value(schedule, row) if row is not None else 1
    tile = choose_tile(rows, columns, lanes, target)
    guarded = []
    column_out, column_in = schedule.split(column, tile.columns)
    if columns is None or columns % tile.columns:
        guarded.append(column_out)
    order_inner = [column_in]
    row_out = None
    if row is not None:
        row_out, row_in = schedule.split(row, tile.rows)
        if rows is None or rows % tile.rows:
            guarded.append(row_out)
        order_inner.insert(0, row_in)
    others = [loop for loop in loops if loop not in (row, column)]
    outer = [*others, *([row_out] if row_out is not None else []), column_out]
    free = [loop for loop in outer if loop not in guarded]
    ordered = [*free, *guarded]
    schedule.reorder(*ordered, *order_inner)
    for loop in guarded:
        schedule.annotate_loop(loop, "partition", 1)
    _fuse_outer(schedule, free, guarded, tile)
    anchor = schedule.loops_of(final)[-1 - len(order_inner)] if len(schedule.loops_of(final)) > len(order_inner) else None
    if anchor is None:
        return
    schedule.compute_at(name, anchor)
    _finish_final(schedule, final, order_inner, tile)
    _finish_sum(schedule, name, tile, anchor, len(contraction.info.spatial_axes))


def _loops_by_axis(schedule: Schedule, name: str) -> dict[Var, str]:
    """The loop that drives each axis of a block that has not been scheduled."""
    info = next(i for i in block_infos(schedule.func) if i.name == name)
    return {axis.var: axis.value.name for axis in info.block.axes if isinstance(axis.value, Var)}


def _matching_loop(loops: list[str], spatial: list[str], own: list[str], rows: list[str]) -> str | None:
    """The loop of the final block that corresponds to the contraction's innermost row loop."""
    del own
    if len(loops) != len(spatial):
        return None
    candidates = [loops[k] for k, loop in enumerate(spatial) if loop in rows and k < len(loops) - 1]
    return candidates[-1] if candidates else None


def _fuse_outer(schedule: Schedule, free: list[str], guarded: list[str], tile: Tile) -> None:
    work = tile.rows * tile.columns * 64
    for loop in guarded:
        work *= extent_value(schedule, loop) or 8
    if free:
        set_parallel(schedule, free, work)
    elif guarded:
        set_parallel(schedule, guarded[:1], work)


def _finish_final(schedule: Schedule, final: str, inner: list[str], tile: Tile) -> None:
    """Vectorize and unroll the loops of the block that stores the tile."""
    column = inner[-1]
    if tile.vectors > 1:
        blocks, lanes = schedule.split(column, tile.lanes)
        schedule.vectorize(lanes)
        schedule.unroll(blocks)
    else:
        schedule.vectorize(column)
    if len(inner) > 1:
        schedule.unroll(inner[0])
    del final


def _finish_sum(schedule: Schedule, name: str, tile: Tile, anchor: str, num_spatial: int) -> None:
    """Inside the tile: reduction loops outermost, then rows unrolled, then vectors."""
    info = next(i for i in block_infos(schedule.func) if i.name == name)
    loops = list(schedule.loops_of(name))
    inside = loops[loops.index(anchor) + 1 :]
    reduction = set()
    for axis in info.block.axes:
        if axis.var in info.reduction_axes:
            reduction |= {n.name for n in walk(axis.value) if isinstance(n, Var)}
    depth = [loop for loop in inside if loop in reduction]
    spatial = [loop for loop in inside if loop not in reduction]
    unit = [loop for loop in spatial if extent_value(schedule, loop) == 1]
    tiled = [loop for loop in spatial if loop not in unit]
    is_static = known_product(schedule, tiled, 1 << 20) <= 64 * tile.lanes  # larger ones stay in memory
    if depth and spatial:
        schedule.reorder(*unit, *depth, *tiled)
    if tiled:
        column = tiled[-1]
        extent = extent_value(schedule, column)
        if extent is None or extent > tile.lanes:
            blocks, lanes = schedule.split(column, tile.lanes)
            schedule.vectorize(lanes)
            if extent is not None:
                schedule.unroll(blocks)
        else:
            schedule.vectorize(column)
        for loop in tiled[:-1]:
            if (extent_value(schedule, loop) or 99) <= tile.rows:
                schedule.unroll(loop)
    if depth:
        schedule.decompose_reduction(name, depth[0])
    buffer = info.writes[0].buffer
    if is_static:
        schedule.set_scope(buffer.name, "register")
    del num_spatial
