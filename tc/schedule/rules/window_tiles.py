"""Convolutions on tile registers: sums of products over taps, of pixels as they lie in memory, without copies of windows.

A tile holds neighbouring pixels of a row of the result, and up to 64 bytes of the channels of each: what they read of one tap lies in
memory at equal distances, `stride` pixels apart, and is loaded in place. Where windows are single pixels, tiles run on across the ends of
rows. Rows are the dimension for tails: a row of pixels is cut into tiles of equal height, of up to sixteen. Weights, packed as
[.., taps, k / 4, n, 4], are tiles as they lie.
Source: the batch-reduced products of "High-Performance Deep Learning via a Single Building Block" (Georganas et al., 2020).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tc.cost.typical import USUAL_DIM
from tc.ir.dtype import DType, bf16
from tc.ir.expr import Const, Var, const
from tc.ir.x86_intrinsics import TILE_OPERANDS, TILE_ROWS, TileShape, tile_dot_name, tile_zero_name
from tc.schedule.analysis import Contraction
from tc.schedule.rules.common import (
    TASKS_OF_CORE,
    buffer_bytes,
    divisors,
    extent_value,
    known_product,
    set_parallel,
    stream_lanes,
)
from tc.schedule.rules.epilogue import block_info, contraction_of, driving_loops, result_lanes
from tc.schedule.rules.matrix_tiles import TILE_BYTES
from tc.schedule.rules.operands import (
    LONGEST_CHAIN_ON_TILES,
    fitting_instructions,
    grouped_axis,
    groups_of_terms,
    is_in_place,
    rows_follow,
    step_along,
    step_of_rows,
)
from tc.schedule.rules.roles import Roles, roles_of
from tc.schedule.rules.spatial import schedule_block
from tc.schedule.rules.tile import (
    cut,
    cut_overlapped,
    cut_vectors,
    fetch_tiles_ahead,
    interleave_stores,
    is_moved,
    loops_of_sum,
    unroll,
)
from tc.schedule.rules.window_cost import BAND_OF_L2, WindowGrid, WindowProduct
from tc.schedule.step import Schedule
from tc.target import Target

LEAST_DIMS = 4
"""Of an image in blocks of channels."""

MOST_CALLS = 48
"""Products of tiles in the body of a loop: taps are unrolled up to there."""

MOST_FETCHED_TIMES = 4
"""How often weights may be read that are fetched ahead each time: later they come from a cache."""

COPIED_PER_CYCLE = 16
"""Bytes of an image that is copied."""

TILES_IN_ORDER = 8
"""So many tiles follow each other in a task, if others are tasks enough: of the first and the last, half is done alone."""


@dataclass(frozen=True)
class WindowTiles:
    """Which instruction sums a convolution: the types of its operands, and the shape of its tiles; and what it is a product of.

    `is_symbolic`: how many pixels there are in a row is not known. `strides`: where tiles may run on across the ends of rows, how many
    pixels of the padded image lie from one that is read to the next, below and beside. `pitch`: how many of those beside it has in a row.
    """

    lhs: DType
    rhs: DType
    shape: TileShape
    product: WindowProduct
    is_symbolic: bool
    strides: tuple[int, ...] = ()
    pitch: int = 0

    def run_on(self) -> WindowTiles:
        """Those that run on across the ends of rows."""
        product = self.product.run_on(self.pitch)
        return replace(self, product=product, shape=TileShape(product.rows, self.shape.row_bytes))

    @property
    def name(self) -> str:
        return tile_dot_name(self.lhs, self.rhs, self.shape)

    @property
    def terms(self) -> int:
        return self.shape.row_bytes // self.lhs.size_bytes


def choose_window_tiles(contraction: Contraction, target: Target, strict: bool = False) -> WindowTiles | None:
    """The tiles for a convolution of packed weights whose pixels hold whole blocks of channels; None where vectors take fewer cycles, or
    pixels do not lie so that they can be loaded in place. `strict`: floats are to be rounded one by one."""
    found = _operands(contraction, target)
    if found is None or not contraction.rows or (found[0] is bf16 and strict):
        return None
    if not rows_follow(contraction):
        return None
    lhs, rhs, block = found
    channel = grouped_axis(contraction)
    terms = next((size for size in (TILE_BYTES // lhs.size_bytes, block) if block % size == 0), 0)
    row_bytes = terms * lhs.size_bytes
    depth = _extent(contraction, channel)
    lane = _extent(contraction, contraction.columns[-1])
    if depth is None or depth % block or not 4 <= row_bytes <= TILE_BYTES or lane is None or lane % TILE_ROWS:
        return None
    taps = [_extent(contraction, axis) for axis in contraction.depth if axis is not channel]
    step = step_of_rows(contraction)
    if step is None or not all(taps):
        return None
    num_taps = prod(tap or 1 for tap in taps)
    total = depth // terms * num_taps
    if lhs is bf16 and total * terms > LONGEST_CHAIN_ON_TILES:
        return None
    *outer, width = (_extent(contraction, axis) for axis in contraction.rows)
    images, height = (prod(size or 1 for size in outer[:-1]), outer[-1] or 1) if outer else (1, 1)
    columns = prod(_extent(contraction, axis) or 1 for axis in (*contraction.columns, *contraction.batch))
    product = WindowProduct(images, height, TILE_ROWS if width is None else width, columns, lane, total, row_bytes, lhs, num_taps)
    shape = TileShape(product.rows, row_bytes, *step)
    tiles = WindowTiles(lhs, rhs, shape, product, width is None, *_strides(contraction))
    pays = product.pays(target) or (tiles.strides and _cycles_run_on(contraction, tiles, target) < product.cycles_on_vectors(target))
    return tiles if pays else None


def _strides(contraction: Contraction) -> tuple[tuple[int, ...], int]:
    """`strides` and `pitch` of tiles for a convolution; none where the image is not two-dimensional, or its size is not known."""
    image, rows = contraction.lhs, contraction.rows[-2:]
    *_, below, beside, _ = image.indices
    sizes = [_extent(contraction, axis) for axis in rows]
    is_known = len(rows) == 2 and all(sizes) and all(isinstance(dim, Const) for dim in image.buffer.shape[-3:])
    if not is_known or contraction.info.writes[0].indices[-3:-1] != rows:
        return (), 0
    strides = tuple(step_along(index, axis) or 0 for index, axis in zip((below, beside), rows, strict=True))
    if not all(strides) or step_along(below, rows[1]) or step_along(beside, rows[0]):
        return (), 0
    return strides, -(-int(image.buffer.shape[-2].value) // strides[1])  # type: ignore[attr-defined]


def _cycles_run_on(contraction: Contraction, tiles: WindowTiles, target: Target, is_copied: bool = False) -> float:
    """Of tiles that run on across the ends of rows; the image has to be copied for them where it is not, `is_copied`, padded anyhow."""
    copied = 0 if is_copied else buffer_bytes(contraction.lhs.buffer) / COPIED_PER_CYCLE
    return tiles.run_on().product.best_cycles(target) + copied


def _operands(contraction: Contraction, target: Target) -> tuple[DType, DType, int] | None:
    """The types of the operands of the instruction, and how many channels a block of pixels has; None where there is no instruction."""
    if not contraction.columns or contraction.info.spatial_axes[-1:] != contraction.columns[-1:]:
        return None
    for _, lhs, rhs in fitting_instructions(contraction, target, TILE_OPERANDS, tile_dot_name):
        group = 4 // lhs.size_bytes
        if groups_of_terms(contraction) != group or contraction.rhs.dtype != rhs or len(contraction.lhs.indices) < LEAST_DIMS:
            continue
        groups, _, terms = contraction.rhs.buffer.shape[-3:]
        is_packed = isinstance(groups, Const) and terms is const(group)
        if is_packed and is_in_place(contraction.lhs_value, lhs, grouped_axis(contraction), group):
            block = int(groups.value) * group  # type: ignore[attr-defined]
            return (lhs, rhs, block) if contraction.lhs.buffer.shape[-1] is const(block) else None
    return None


def _extent(contraction: Contraction, axis: Var) -> int | None:
    extent = next(each.extent for each in contraction.info.block.axes if each.var is axis)
    return int(extent.value) if isinstance(extent, Const) else None


# -- the schedule


def schedule_window_tiles(
    schedule: Schedule, contraction: Contraction, final: str, before: list[str], tiles: WindowTiles, target: Target
) -> None:
    """Schedule the convolution, the block `final` that stores it, and those that pad the image, `before`."""
    s, name = schedule, contraction.info.name
    flat = _in_one_row(s, contraction, before, tiles, target)
    tiles, grid = flat or (tiles, _choose_grid(s, name, tiles.product, target))
    contraction = contraction_of(s, name)
    nest = _cut_result(s, contraction, final, before, tiles, grid, target)
    s.compute_at(name, nest.anchor)
    if flat:
        axes = [axis.var for axis in contraction.info.block.axes]
        s.run_on(name, [axes.index(axis) for axis in contraction.rows[-2:]], tiles.pitch, tiles.product.extent(grid))
        contraction = contraction_of(s, name)
    *rows, column = nest.inner
    vectors, lane = cut_vectors(s, column, result_lanes(s, column, target, target.vector_bits // 32))
    s.vectorize(lane)
    unroll(s, vectors)
    _unroll_rows(s, name, rows)
    instructions = _schedule_sum(s, contraction, nest.anchor, tiles, grid)
    _schedule_padding(s, before, nest.place, target)
    for loop, instruction in instructions.items():
        s.tensorize(loop, instruction)
    interleave_stores(s, name, nest.outer, tiles.product.interleaving_pays(grid, target))


def _choose_grid(schedule: Schedule, name: str, product: WindowProduct, target: Target) -> WindowGrid:
    return schedule.choose(name, "tile_grid", product.grids(), product.best_grid(target), ordered=False)


def _in_one_row(
    schedule: Schedule, contraction: Contraction, before: list[str], tiles: WindowTiles, target: Target
) -> tuple[WindowTiles, WindowGrid] | None:
    """Let all pixels of a padded image lie in one dim, with as many behind them as tiles read that run on across the ends of rows, if that
    is wanted and legal: these tiles, and their grid. An image that is not padded is copied, by a block that is added to `before`."""
    s, name, image = schedule, contraction.info.name, contraction.lhs.buffer
    if not tiles.strides:
        return None
    maker = next((each for each in before if image in block_info(s, each).written_buffers), None)
    tasks = tiles.product.images * -(-tiles.product.columns // TILE_ROWS)  # rows of pixels are others
    waits = -(-tasks // s.cores) * s.cores / tasks
    is_less = waits * _cycles_run_on(contraction, tiles, target, maker is not None) < tiles.product.best_cycles(target)
    if not s.choose(name, "runs_on", (False, True), is_less, ordered=False):
        return None
    flat = tiles.run_on()
    grid, rank, height = _choose_grid(s, name, flat.product, target), len(image.shape), image.shape[-3]
    assert isinstance(height, Const), "the image is of known size"
    down, beside = tiles.strides
    behind = flat.product.extent(grid) - flat.product.width  # of which nobody reads the sums
    needed = -(-int(height.value) // down) * down + -(-behind // tiles.pitch) * down

    def merge() -> str:
        made = maker or s.cache_read(name, image.name)
        copy = contraction_of(s, name).lhs.buffer.name
        if needed > height.value:
            s.widen((made,), rank - 3, needed)
        outer = [f"d{k}" for k in range(rank - 3)]
        if tiles.strides != (1, 1):  # pixels that tiles read one after the other
            parts = f"y % {down}, x % {beside}, y // {down}, x // {beside}"
            s.transform_layout(copy, f"{', '.join(outer)}, y, x, c -> {', '.join(outer)}, {parts}, c")
            outer += ["y", "x"]
        s.merge_dims(copy, (len(outer), len(outer) + 1))
        s.transform_layout(copy, f"p, {', '.join(outer)}, c -> {', '.join(outer)}, p, c")
        return made

    made = s.attempt(merge)
    if made is None:
        return None
    before += [] if maker else [made]
    return flat, grid


@dataclass(frozen=True)
class _Nest:
    """The loops of the result: `outer`, those around a tile; those of a tile, rows of images first, channels last; and the one
    inside which a band of the image is padded, None where that is done before."""

    outer: list[str]
    inner: list[str]
    place: str | None

    @property
    def anchor(self) -> str:
        """The innermost loop around a tile."""
        return self.outer[-1]


def _cut_result(
    schedule: Schedule, contraction: Contraction, final: str, before: list[str], tiles: WindowTiles, grid: WindowGrid, target: Target
) -> _Nest:
    s, name, (across, below, wide) = schedule, contraction.info.name, grid
    roles = roles_of(s, contraction, final, lanes=0)
    *images, pixels = roles.rows
    if tiles.product.is_run_on:
        return _cut_channels(s, contraction, [*images[:-1]], [images[-1], pixels], roles, target)
    inner: list[str] = []
    made = cut_overlapped(s, pixels, across * tiles.shape.rows)
    pixel_tiles, inner = [made.around], [made.inside]
    row_tiles: list[str] = []
    if images:
        made = cut_overlapped(s, images[-1], below) if below > 1 else cut(s, images[-1], 1)
        images, row_tiles, inner = images[:-1], [made.around], [made.inside, *inner]
    lanes = cut(s, roles.lane, wide * TILE_ROWS)
    bands, row_tiles, pixel_tiles = _cut_bands(s, contraction, row_tiles, pixel_tiles, images if before else None, tiles, target)
    columns = [*roles.others, lanes.around]
    order = "columns" if not before and _reads_less_by_columns(contraction, target) else "rows"
    order = s.choose(name, "outermost", ("rows", "columns"), order, ordered=False)
    leading = [*images, *bands, *columns] if order == "rows" else [*columns, *images, *bands]
    outer = [*leading, *row_tiles, *pixel_tiles]
    s.reorder(*outer, *inner, lanes.inside)
    work = prod((tiles.product.steps, *grid)) * TILE_ROWS * TILE_ROWS * known_product(s, [*row_tiles, *pixel_tiles], 8)
    free = [*images, *bands] if before and order == "rows" else leading
    free = _with_tiles_in_order(s, free, [*row_tiles, *pixel_tiles])
    set_parallel(s, name, free, work * known_product(s, [loop for loop in leading if loop not in free], 8))
    around = [*images, *bands] if order == "rows" else []
    return _Nest(outer, [*inner, lanes.inside], around[-1] if around else None)


def _cut_channels(
    schedule: Schedule, contraction: Contraction, images: list[str], inner: list[str], roles: Roles, target: Target
) -> _Nest:
    """The nest of a result whose tiles run on across the ends of rows: all pixels of an image, for as many channels as a tile has."""
    s, name = schedule, contraction.info.name
    lanes = cut(s, roles.lane, TILE_ROWS)
    columns = [*roles.others, lanes.around]
    usual = "rows" if images and not _reads_less_by_columns(contraction, target) else "columns"
    order = s.choose(name, "outermost", ("rows", "columns"), usual, ordered=False)
    outer = [*images, *columns] if order == "rows" else [*columns, *images]
    s.reorder(*outer, *inner, lanes.inside)
    terms = prod(_extent(contraction, axis) or 1 for axis in contraction.depth)
    set_parallel(s, name, outer, terms * TILE_ROWS * known_product(s, inner, 8))
    return _Nest(outer, [*inner, lanes.inside], None)


def _with_tiles_in_order(schedule: Schedule, free: list[str], inside: list[str]) -> list[str]:
    """The loops to run in parallel, of `free` around `inside`: without the last ones where few tiles would follow each other in a task,
    each of which can be multiplied while the one before is stored, and the others are tasks enough."""
    while len(free) > 1 and known_product(schedule, inside, TILES_IN_ORDER) < TILES_IN_ORDER:
        if known_product(schedule, free[:-1], 1) < TASKS_OF_CORE * schedule.cores:
            break
        free, inside = free[:-1], [free[-1], *inside]
    return free


def _cut_bands(
    schedule: Schedule,
    contraction: Contraction,
    rows: list[str],
    pixels: list[str],
    padded: list[str] | None,
    tiles: WindowTiles,
    target: Target,
) -> tuple[list[str], list[str], list[str]]:
    """The loops over bands, over rows of tiles in a band, and over tiles in these; a band of the image stays in a cache while it is read
    again for each tile of channels: the second where it is padded, of which each band does some twice, else the first.

    `padded`: the loops around bands that then run in parallel, each band being padded for all channels.
    """
    s = schedule
    (loop,) = rows or pixels
    count = extent_value(s, loop)
    if count is None:
        return [], rows, pixels
    image = prod(int(dim.value) for dim in contraction.lhs.buffer.shape[1:] if isinstance(dim, Const)) * tiles.lhs.size_bytes
    most = max(1, int((target.l1_bytes / 2 if padded is None else BAND_OF_L2 * target.l2_bytes) * count / max(image, 1)))
    sizes = divisors(count)
    others = [each for each in s.loops_of(contraction.info.name) if each not in (*rows, *pixels)]
    tasks = known_product(s, others if padded is None else padded, 1)
    usual = max(size for size in sizes if size <= most)
    if tasks * (count // usual) < target.cores:
        usual = max((size for size in sizes if count // size >= target.cores), default=usual)
    size = s.choose(contraction.info.name, "band_tiles", sizes, usual)
    made = cut(s, loop, size)
    return ([made.around], [made.inside], pixels) if rows else ([made.around], [], [made.inside])


def _reads_less_by_columns(contraction: Contraction, target: Target) -> bool:
    """Whether the weights are larger than the image, and than a cache."""
    lhs, rhs = (
        prod(int(dim.value) for dim in load.buffer.shape if isinstance(dim, Const)) * load.dtype.size_bytes
        for load in (contraction.lhs, contraction.rhs)
    )
    return rhs > max(lhs, target.l2_bytes // 8)


def _unroll_rows(schedule: Schedule, name: str, rows: list[str]) -> None:
    """Unroll a few rows of what follows the sums."""
    counts = [size for size in divisors(extent_value(schedule, rows[-1]) or 1) if size <= 8]
    count = schedule.choose(name, "rows_unroll", counts, max(size for size in counts if size <= 2))
    if count > 1:
        unroll(schedule, [cut(schedule, rows[-1], count).inside])


def _schedule_sum(schedule: Schedule, contraction: Contraction, anchor: str, tiles: WindowTiles, grid: WindowGrid) -> dict[str, str]:
    """A nest of products of tiles, over blocks of channels and taps; returns the loops that are instructions -> their names."""
    name = contraction.info.name
    s, sums = schedule, block_info(schedule, name).writes[0].buffer
    s.set_scope(sums.name, "global")
    info, loops = block_info(s, name), loops_of_sum(s, name, anchor)
    channel, *taps = loops.depth
    inside = list(s.loops_of(name))
    own = [loop for loop in inside[inside.index(anchor) + 1 :] if loop not in loops.depth]
    column = own[-1]
    across, below, wide = grid
    rows = contraction.rows[-2 if below > 1 else -1 :]
    axes = zip(contraction.info.block.axes, info.block.axes, strict=True)
    row_loops = driving_loops(info, own, tuple(new.var for old, new in axes if old.var in rows))
    single = [loop for loop in own[:-1] if loop not in row_loops]
    group = 4 // tiles.lhs.size_bytes
    steps, groups, terms = s.split(channel, (None, tiles.terms // group, group))
    pixel_tiles, pixel = s.split(row_loops[-1], tiles.shape.rows)
    if tiles.product.is_run_on:
        blocks, pixel_tiles = s.split(pixel_tiles, across)
        single.append(blocks)
    column_tiles, column = s.split(column, TILE_ROWS)
    unrolled = [*row_loops[:-1], pixel_tiles, column_tiles]
    s.reorder(*single, steps, *taps, *unrolled, pixel, column, groups, terms)
    unroll(s, unrolled)
    calls = across * below * wide
    for tap in reversed(taps):
        calls *= extent_value(s, tap) or MOST_CALLS
        if calls > MOST_CALLS:
            break
        s.unroll(tap)
    product = tiles.product
    times = product.tiles(grid) / product.images / -(-product.columns // (wide * TILE_ROWS))
    fetch_tiles_ahead(s, contraction, steps, pays=times <= MOST_FETCHED_TIMES)
    start = s.decompose_reduction(name, steps)
    return {s.loops_of(start)[-2]: tile_zero_name(sums.dtype, tiles.shape), pixel: tiles.name}


def _schedule_padding(schedule: Schedule, names: list[str], place: str | None, target: Target) -> None:
    """Pad the image, inside the loop `place` if there is one: whole pixels at a time."""
    s = schedule
    for name in reversed(names):
        if place is not None and not is_moved(s, name, place):
            schedule_block(s, name, target)
            continue
        *outer, last = s.loops_of(name)
        work = known_product(s, [*outer[-2:], last], USUAL_DIM)
        vectors, lane = cut_vectors(s, last, stream_lanes(block_info(s, name), target, extent_value(s, last)))
        s.vectorize(lane)
        unroll(s, vectors)
        if place is None:  # rows and pixels one after the other: what is apart at their ends is cut off
            set_parallel(s, name, outer[:-2], work)
