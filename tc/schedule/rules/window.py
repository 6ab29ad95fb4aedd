"""Reductions that leave the contiguous axis alone, or shift along it: pooling, depthwise convolution, sums over leading axes.

A vector of neighbouring results is reduced at once, for several rows together: neighbouring windows share what they load, and
independent sums hide the latency of additions. Padding is materialized per band of rows, small enough for the first cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tc.ir.expr import Const, Expr, Var, is_const
from tc.ir.polynomial import linear_coefficients
from tc.ir.uses import variables
from tc.schedule.analysis import BlockInfo, as_contraction, axes_in, block_infos, is_stencil
from tc.schedule.rules.common import (
    SYMBOLIC_BAND,
    SYMBOLIC_BANDS,
    divisors,
    extent_value,
    known_product,
    lanes_for,
    loads_of,
    set_parallel,
)
from tc.schedule.rules.epilogue import block_info, driven_spatial, driving_loops, final_block, is_single
from tc.schedule.rules.partial_sums import is_long_sum, rounds
from tc.schedule.rules.spatial import schedule_before
from tc.schedule.rules.tile import (
    cut,
    cut_overlapped,
    cut_vectors,
    loops_of_sum,
    lower_versions,
    peel,
    start_sum,
    unroll,
    up_to_peeled,
)
from tc.schedule.rules.tiling import Tile
from tc.schedule.step import Schedule
from tc.target import MOST_SHUFFLED_STRIDE, Target

MOST_ROWS = 8
"""Rows of a tile: a window of three taps then loads ten vectors for twenty-four operations."""

MOST_VECTORS = 4
"""Vectors of a tile where there is one row."""

PLANE_VECTORS = 8
"""The same where each tap is a stream of its own: of each so many lines are read before those of the next."""

LONGEST_UNROLLED = 7
"""The innermost taps are unrolled up to this many, so that neighbouring windows share loads."""

LEAST_BAND = 4


def schedule_window(schedule: Schedule, target: Target) -> str | None:
    """Tile the one reduction of a PrimFunc whose last axis is not reduced and is read contiguously, from wherever its windows begin."""
    infos = block_infos(schedule.func)
    found = [k for k, info in enumerate(infos) if info.reduction_axes]
    if len(found) != 1:
        return None
    info, before, after = infos[found[0]], infos[: found[0]], infos[found[0] + 1 :]
    if len(info.writes) != 1 or not all(each.is_spatial for each in (*before, *after)) or not _is_even(info):
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


def _is_even(info: BlockInfo) -> bool:
    """Whether loops may change places: none has as many iterations as another one says, and none has none."""
    counters = {loop.var for loop in info.loops}
    return not any(variables(loop.extent) & counters or is_const(loop.extent, 0) for loop in info.loops)


def _schedule_versions(schedule: Schedule, info: BlockInfo, final: str, before: list[str], target: Target) -> None:
    """One schedule, or two where the number of rows is symbolic: tiles that overlap at the end, and single rows for too few."""
    rows = _roles(schedule, info, final, before).rows
    blocks = [each.name for each in block_infos(schedule.func)]
    copies: list[dict[str, str]] = []
    height = None
    if rows is not None and extent_value(schedule, rows) is None:
        height = MOST_ROWS
        copies = lower_versions(schedule, blocks, lambda _: rows, [height])
    _schedule_version(schedule, info, final, before, target, height)
    for names in copies:
        _schedule_version(schedule, block_info(schedule, names[info.name]), names[final], [names[each] for each in before], target, 1)


def _schedule_version(schedule: Schedule, info: BlockInfo, final: str, before: list[str], target: Target, height: int | None) -> None:
    """Tiles of `height` rows, or as many as is good, of the reduction, in order: the result, the reduction, what precedes it."""
    name = info.name
    roles = _roles(schedule, info, final, before)
    tile = _choose_tile(schedule, name, final, roles, target, height)
    nest = _cut_result(schedule, name, roles, tile, before, target)
    _set_parallel(schedule, name, nest, tile, bool(before))
    anchor = nest.inside[-1] if nest.inside else nest.leading[-1] if nest.leading else None
    if anchor is not None:
        schedule.compute_at(name, anchor)
    schedule.vectorize(nest.lane)
    unroll(schedule, nest.unrolled)
    _schedule_sum(schedule, name, anchor, tile)
    place = nest.band
    if place is not None and before and schedule.choose(name, "padding", ("band", "alone"), "band", ordered=False) == "alone":
        place = None
    schedule_before(schedule, before, place, target)


@dataclass(frozen=True)
class _Roles:
    """The loops of the block that stores the result: over rows of a tile, over what is cut into bands, over columns, and others.

    `bands_overlap`: windows move along what is cut into bands, so that two of them read some of the same.
    """

    others: list[str]
    bands: str | None
    rows: str | None
    lane: str
    bands_overlap: bool = False


def _roles(schedule: Schedule, info: BlockInfo, final: str, before: list[str]) -> _Roles:
    loops = [loop for loop in schedule.loops_of(final) if extent_value(schedule, loop) != 1]
    axes = [axis for axis in driven_spatial(info) if not is_single(info, axis)]
    rows = loops[-2] if len(loops) > 1 else None
    is_window = len(axes) == len(loops) and len(axes) > 1 and _shares_index(info, axes[-2])
    bands = loops[-3] if is_window and before and len(loops) > 2 else None
    overlap = bands is not None and _shares_index(info, axes[-3])
    return _Roles([loop for loop in loops[:-1] if loop not in (rows, bands)], bands, rows, loops[-1], overlap)


def _is_contiguous(info: BlockInfo) -> bool:
    """Whether every operand that varies along the last spatial axis is contiguous along it, be it in windows, and one is."""
    axes = driven_spatial(info)
    if not axes:
        return False
    last = axes[-1]
    seen = False
    for load in info.reads:
        if load.buffer in info.written_buffers:
            continue
        is_window = bool(load.indices) and _is_window(load.indices[-1], last, info.reduction_axes) and _has_few_terms(info)
        if load.indices and (load.indices[-1] is last or is_window):
            seen = True
            continue
        if last in axes_in(load.indices):
            return False
        if load.indices and any(axis in axes_in(load.indices[-1]) for axis in info.reduction_axes):
            return False
    return seen


def _has_few_terms(info: BlockInfo) -> bool:
    """Whether terms may be added one after the other: where sums do not round, or are of no more taps than are unrolled."""
    extents = [axis.extent for axis in info.block.axes if axis.var in info.reduction_axes]
    terms = prod(int(extent.value) for extent in extents if isinstance(extent, Const))
    return not rounds(info) or (all(isinstance(extent, Const) for extent in extents) and terms <= LONGEST_UNROLLED**2)


def _is_window(index: Expr, last: Var, taps: tuple[Var, ...]) -> bool:
    """Whether an index moves along `last` in steps that are loaded as whole vectors, and from tap to tap of a window there."""
    found = linear_coefficients(index, [last, *taps])
    step = None if found is None else found[0].get(last)
    return isinstance(step, Const) and 1 <= step.value <= MOST_SHUFFLED_STRIDE and bool(axes_in(index) & set(taps))


def _shares_index(info: BlockInfo, axis: Var) -> bool:
    """Whether the axis and a reduction axis move through the same dimension of an operand."""
    return any(
        axis in axes_in(index) and axes_in(index) & set(info.reduction_axes)
        for load in info.reads
        if load.buffer not in info.written_buffers
        for index in load.indices
    )


def _reads_planes(info: BlockInfo) -> bool:
    """Whether each tap is read from a plane of its own: windows then share no load, and each row of a tile is so many more streams that
    are gone through at once."""
    extents = {axis.var: axis.extent for axis in info.block.axes}
    loads = [load for load in info.reads if load.buffer not in info.written_buffers and axes_in(load.indices) & set(info.reduction_axes)]
    return bool(loads) and all(any(_numbers_apart(index, info.reduction_axes, extents) for index in load.indices[:-1]) for load in loads)


def _numbers_apart(index: Expr, axes: Sequence[Var], extents: Mapping[Var, Expr]) -> bool:
    """Whether an index tells apart all iterations of several axes, as digits do, and of what else it is made of."""
    form = linear_coefficients(index, list(extents))
    if form is None or len(axes) < 2 or not all(axis in form[0] for axis in axes):
        return False
    reach = 0
    for axis, step in sorted(form[0].items(), key=lambda item: item[1].value if isinstance(item[1], Const) else 0):
        extent = extents[axis]
        if not isinstance(step, Const) or step.value <= reach or (axis in axes and not isinstance(extent, Const)):
            return False
        reach += int(step.value) * (int(extent.value) - 1 if isinstance(extent, Const) else 1 << 40)
    return True


def choose_rows(rows: int | None) -> int:
    """The largest tile that leaves the fewest rows over."""
    if rows is None:
        return MOST_ROWS // 2
    if rows <= MOST_ROWS:
        return rows
    return min(range(MOST_ROWS // 2, MOST_ROWS + 1), key=lambda r: (-(-rows // r) * r, -r))


def _choose_tile(schedule: Schedule, name: str, final: str, roles: _Roles, target: Target, height: int | None) -> Tile:
    info, lanes = block_info(schedule, name), lanes_for(block_info(schedule, final), target)
    extent = extent_value(schedule, roles.lane)
    is_wide = extent is None or extent >= MOST_VECTORS * lanes
    are_planes = _reads_planes(info) or (is_wide and not any(_shares_index(info, axis) for axis in driven_spatial(info)))
    if height is None or roles.rows is None:
        count = extent_value(schedule, roles.rows) if roles.rows is not None else 1
        usual = 1 if are_planes else choose_rows(count)
        height = schedule.choose(name, "rows", range(1, min(count or MOST_ROWS, 2 * MOST_ROWS) + 1), usual)
    if extent is not None and extent < lanes:
        return Tile(height, 1, extent)
    blocks = -(-extent // lanes) if extent is not None else MOST_VECTORS
    most = max(1, min(blocks, (target.num_vector_registers - 4) // height))
    vectors = max(1, min((PLANE_VECTORS if are_planes else MOST_VECTORS) // height, blocks))
    return Tile(height, schedule.choose(name, "vectors", range(1, min(most, 8) + 1), vectors), lanes)


@dataclass(frozen=True)
class _Nest:
    """The loops of the result: those that may be parallel, the last of them over bands if there are any, those inside, and of a tile."""

    leading: list[str]
    band: str | None
    inside: list[str]
    unrolled: list[str]
    lane: str


def _cut_result(schedule: Schedule, name: str, roles: _Roles, tile: Tile, before: list[str], target: Target) -> _Nest:
    s, lane = schedule, roles.lane
    extent = extent_value(s, lane)
    columns: list[str] = []
    unrolled: list[str] = []
    peeled: list[str] = []
    if extent is None or extent > tile.lanes:
        out, vectors, lane = s.split(lane, (None, tile.vectors, tile.lanes))
        columns, unrolled = [out], [vectors]
        if extent is None or extent % (tile.columns):
            peeled.append(out)
    rows: list[str] = []
    if roles.rows is not None:
        overlaps = extent_value(s, roles.rows) is None and tile.rows > 1
        made = (cut_overlapped if overlaps else cut)(s, roles.rows, tile.rows)
        rows, unrolled = [made.around], [made.inside, *unrolled]
        peeled += [] if made.is_whole else rows
    band = cut(s, roles.bands, _band_height(s, name, roles, roles.bands, tile, before[-1], target)) if roles.bands is not None else None
    leading = [*roles.others, *([band.around] if band else [])]
    inside = [*([band.inside] if band else []), *rows, *columns]
    s.reorder(*leading, *inside, *unrolled, lane)
    peel(s, *peeled)
    return _Nest(leading, band.around if band else None, inside, unrolled, lane)


def _band_height(schedule: Schedule, name: str, roles: _Roles, loop: str, tile: Tile, padded: str, target: Target) -> int:
    """Rows of a band, such that what the block `padded` makes for it stays in the first cache; one where bands share none of that."""
    rows = extent_value(schedule, loop)
    if rows is not None and not roles.bands_overlap:
        return schedule.choose(name, "band_rows", divisors(rows), 1)
    if rows is None:
        return schedule.choose(name, "band_rows", SYMBOLIC_BANDS, SYMBOLIC_BAND)
    buffer = block_info(schedule, padded).writes[0].buffer
    row_bytes = tile.lanes * buffer.dtype.size_bytes * (extent_value(schedule, schedule.loops_of(padded)[-2]) or 64)
    most = max(LEAST_BAND, int(0.75 * target.l1_bytes) // row_bytes - 2)
    heights = divisors(rows)
    height = [each for each in heights if each <= most][-1]
    return schedule.choose(name, "band_rows", heights, rows if height < min(LEAST_BAND, rows) else height)


def _set_parallel(schedule: Schedule, name: str, nest: _Nest, tile: Tile, is_padded: bool) -> None:
    info = block_info(schedule, name)
    depth = driving_loops(info, list(schedule.loops_of(name)), info.reduction_axes)
    work = tile.rows * tile.columns * min(known_product(schedule, depth, 16), 256) // 2
    free = [*nest.leading, *([] if is_padded else up_to_peeled(schedule, nest.inside))] or nest.inside[:1]
    rest = [loop for loop in nest.inside if loop not in free]
    if free:
        set_parallel(schedule, name, free, work * known_product(schedule, rest, 8))


def _schedule_sum(schedule: Schedule, name: str, anchor: str | None, tile: Tile) -> None:
    """The reduction inside a tile: its taps outermost, the tile in registers where it is of a known size."""
    s, info = schedule, block_info(schedule, name)
    loops = loops_of_sum(s, name, anchor)
    depth, tiled = loops.depth, loops.tiled
    if not tiled or known_product(s, tiled, 1 << 20) > 64 * tile.lanes:
        if depth:
            s.decompose_reduction(name, depth[0])
        return
    s.reorder(*loops.single, *depth, *tiled)
    vectors, lane = cut_vectors(s, tiled[-1], tile.lanes)
    s.vectorize(lane)
    unroll(s, [*vectors, *tiled[:-1]])
    if depth:
        _unroll_taps(s, info, depth, tile)
        start_sum(s, name, depth[0])
    s.set_scope(info.writes[0].buffer.name, "register")


def _unroll_taps(schedule: Schedule, info: BlockInfo, depth: list[str], tile: Tile) -> None:
    """Unroll the innermost reduction loops where they are short."""
    if (extent_value(schedule, depth[-1]) or LONGEST_UNROLLED + 1) > LONGEST_UNROLLED:
        return
    short = _short(schedule, depth)
    default = len(short) if _shifts(info) else int(tile.rows > 1)
    count = schedule.choose(info.name, "unrolled_taps", range(len(short) + 1), default)
    unroll(schedule, depth[len(depth) - count :])


def _shifts(info: BlockInfo) -> bool:
    """Whether rows share what they load only when all taps are unrolled: vectors are shifted against each other within a row.

    Where the length of a row is symbolic, the places of so many loads take more registers than there are.
    """
    last = info.spatial_axes[-1]
    loads = [load for load in loads_of(info) if load.indices and _is_window(load.indices[-1], last, info.reduction_axes)]
    return bool(loads) and all(isinstance(load.buffer.shape[-1], Const) for load in loads)


def _short(schedule: Schedule, depth: list[str]) -> list[str]:
    """The innermost reduction loops whose product is small enough to unroll them all."""
    short: list[str] = []
    for loop in reversed(depth):
        if known_product(schedule, [loop, *short], 1 << 20) > LONGEST_UNROLLED**2:
            break
        short.insert(0, loop)
    return short
