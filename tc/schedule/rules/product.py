"""The schedule of one contraction in tiles: their order, where what precedes the sum is made, and the sum itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tc.cost.typical import USUAL_PRODUCT
from tc.ir.arith import simplify
from tc.ir.expr import Const, Load, Var
from tc.ir.loop import is_strict
from tc.ir.types import product as product_of_dims
from tc.ir.x86_intrinsics import spread_name
from tc.schedule.analysis import BlockInfo, Contraction
from tc.schedule.rules.bands import in_bands, in_bands_of_images, with_rows_of_image
from tc.schedule.rules.common import (
    TASKS_OF_CORE,
    buffer_bytes,
    divisors,
    extent_value,
    known_product,
    lanes_for,
    set_parallel,
)
from tc.schedule.rules.epilogue import block_info, driving_loops, result_lanes, total_of
from tc.schedule.rules.operands import Dot, making_blocks, moves_apart, tile_product, words_along
from tc.schedule.rules.padding import skip_padding
from tc.schedule.rules.roles import NO_OPERANDS, Operands, TiledProduct, Tiles
from tc.schedule.rules.spatial import schedule_before, schedule_block
from tc.schedule.rules.tile import (
    cut,
    cut_and_peel,
    cut_overlapped,
    cut_tiles,
    cut_vectors,
    even_sizes,
    interleave_stores,
    is_peeled,
    largest,
    peel,
    unroll,
    up_to_peeled,
    vectorize_loop,
)
from tc.schedule.rules.tile_sum import TileSum, schedule_tile_sum
from tc.schedule.rules.tiling import MOST_CLASHING_ROWS, NEAR_VECTORS, is_clashing_pitch
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

ROWS_TOGETHER_OF_L2, COLUMNS_TOGETHER_OF_L2 = 0.4, 0.12
"""How much of the second-level cache rows may take that share tiles of columns, where neither all rows nor all columns fit; one tile of
columns."""

LEAST_ROWS_TOGETHER = 12
"""Tiles of rows that must share a tile of columns for that to pay: it comes from behind the cache each time."""

IMAGE_COLUMNS_OF_L2, LEAST_PIXELS_TOGETHER = 0.4, 4
"""The same for images in blocks of channels, in which each block of a sum lies far from the one before: read again for every tile of
columns, images of 10 MB and more took half as long again (640 to 1,280 channels of 64 x 64 pixels)."""


@dataclass(frozen=True)
class TileNest:
    """The loops around a tile, and the leading ones that may be parallel.

    `lhs_place`, `rhs_place`: the loops inside which operands are made; None: before all. `tiles_together`: tiles of columns that share
    rows of the lhs are innermost.
    """

    outer: list[str]
    parallel: list[str]
    lhs_place: str | None
    rhs_place: str | None = None
    tiles_together: bool = False


def operands_of(schedule: Schedule, contraction: Contraction) -> Operands:
    """The blocks that make a contraction's operands."""
    name = contraction.info.name
    lhs, rhs = (making_blocks(schedule, name, side) for side in ("lhs", "rhs"))
    if not moves_apart(contraction, contraction.rhs):  # windows: a part of it is made with a band of rows
        return Operands([*rhs, *lhs], [], False)
    return Operands(lhs, rhs, bool(lhs) and moves_apart(contraction, contraction.lhs))


def schedule_product_tiles(schedule: Schedule, product: TiledProduct, operands: Operands = NO_OPERANDS) -> None:
    """Schedule a contraction and the block that stores it, and what makes its operands."""
    product = with_rows_of_image(schedule, product, operands)
    tiles, operands, lhs_name = _with_bands(schedule, product, operands)
    nest = _order(schedule, product, operands, tiles)
    schedule.compute_at(total_of(schedule, product.name), nest.outer[-1])
    *rows, column = tiles.inner
    vectors, lane = cut_vectors(schedule, column, result_lanes(schedule, column, product.target, product.tile.lanes))
    schedule.vectorize(lane)
    unroll(schedule, [*vectors, *rows])
    total = TileSum(product, product.contraction, anchor=nest.outer[-1], lhs_name=lhs_name)
    instructions = schedule_tile_sum(schedule, total)
    schedule_before(schedule, operands.lhs, nest.lhs_place, product.target)
    _schedule_rhs(schedule, product, operands.rhs, nest)
    is_on_tiles = product.dot is not None and product.dot.grid is not None
    around = [_parts_loop(schedule, product.name)] if is_on_tiles and product.contraction.parts else nest.outer
    for loop, instruction in instructions.items():
        schedule.tensorize(loop, instruction)
    if not instructions and not product.roles.images and not is_strict(schedule.func):  # of bands, few rows are padding
        skip_padding(schedule, total.contraction.info.name)
    if product.dot is not None and product.dot.grid is not None and product.around is None:
        pays = tile_product(product.contraction, product.dot.lhs).interleaving_pays(product.dot.grid, product.target)
        interleave_stores(schedule, product.name, around, pays)


def _parts_loop(schedule: Schedule, name: str) -> str:
    """The loop over the parts of a sum."""
    outer = total_of(schedule, name)
    info = block_info(schedule, outer)
    (loop,) = driving_loops(info, list(schedule.loops_of(outer)), info.reduction_axes)
    return loop


# -- tiles


def _cut_result(schedule: Schedule, product: TiledProduct) -> Tiles:
    """Cut rows and columns into tiles; loops whose last tile is not full are peeled."""
    s, tile, roles = schedule, product.tile, product.roles
    inner: list[str] = []
    rows: list[str] = []
    images = [*roles.images] or roles.rows[-2:-1]
    if roles.rows:
        rows, inner = _cut_tiles(s, product, roles.rows[-1], tile.rows)
    if images and tile.outer_rows > 1:
        images, whole_rows = _cut_tiles(s, product, images[0], tile.outer_rows)
        inner = [*whole_rows, *inner]
    if roles.blocks is not None:
        (columns,), vectors = _cut_tiles(s, product, roles.blocks, tile.vectors)
        return Tiles(images, [], rows, columns, [*inner, *vectors, roles.lane])
    lanes = (cut_overlapped if product.overlaps else cut_and_peel)(s, roles.lane, tile.columns)
    return Tiles(images, [], rows, lanes.around, [*inner, lanes.inside])


def _cut_tiles(schedule: Schedule, product: TiledProduct, loop: str, size: int) -> tuple[list[str], list[str]]:
    """The loop over tiles, and the loop inside one. They overlap at the end where their number is symbolic, or none can be cut short."""
    extent, dot = extent_value(schedule, loop), product.dot
    is_whole = dot is not None and dot.grid is not None  # of an instruction on tiles there is no part
    is_whole |= product.roles.is_part and loop == product.roles.rows[-1]
    overlaps = extent is None or (is_whole and extent % size > 0)
    made = (cut_overlapped if overlaps else cut)(schedule, loop, size)
    peel(schedule, *([] if made.is_whole else [made.around]))
    return [made.around], [made.inside]


# -- bands


def _with_bands(schedule: Schedule, product: TiledProduct, operands: Operands) -> tuple[Tiles, Operands, str]:
    """The result in tiles, and these in bands where something is made of the lhs for each; with the operands, and the buffer of the lhs."""
    tiles, lhs_name = _cut_result(schedule, product), product.contraction.lhs.buffer.name
    if operands.lhs and not operands.is_copied:
        tiles = in_bands_of_images(schedule, product, tiles)
    packed = _pack_lhs(schedule, product, tiles) if not operands.lhs and product.dot is None else None
    if packed is not None:
        block, lhs_name = packed
        operands = replace(operands, lhs=[block])
        tiles = in_bands(schedule, product, tiles)
    tasks = _num_tasks(schedule, product, [*_shared(product), tiles.columns])
    row_tasks = _num_tasks(schedule, product, [*_others(product), *tiles.bands, *tiles.rows])
    operands = replace(operands, rhs_is_apart=tasks < product.target.cores <= row_tasks)
    are_several = len(tiles.rows) == 1 and (extent_value(schedule, tiles.rows[0]) or 1) > 1
    if operands.is_copied and not operands.rhs_is_in_tiles and not tiles.bands and are_several:
        tiles = in_bands(schedule, product, tiles)
    return tiles, operands, lhs_name


def _pack_lhs(schedule: Schedule, product: TiledProduct, tiles: Tiles) -> tuple[str, str] | None:
    """Copy the lhs into blocks of depth, [k / b, row, b], if its rows lie at distances that evict each other; the block and the copy."""
    contraction, tile = product.contraction, product.tile
    lhs = contraction.lhs
    row, depth = (lhs.indices[0], lhs.indices[-1]) if _is_matrix(contraction) else (None, None)
    if row not in contraction.rows or depth not in contraction.depth or len(tiles.rows) != 1:
        return None
    if not isinstance(lhs.buffer.shape[-1], Const):
        return None
    columns = known_product(schedule, [tiles.columns], 8) * tile.columns
    pays = rows_clash(contraction) and tile.rows > MOST_CLASHING_ROWS and columns >= LEAST_SHARED_COLUMNS
    if not schedule.choose(product.name, "pack_lhs", (False, True), pays, ordered=False):
        return None
    parts = "g, " if contraction.parts else ""
    layout = f"i, {parts}k -> {parts}k // {tile.lanes}, i, k % {tile.lanes}"
    name = schedule.cache_read(product.name, lhs.buffer.name, "global", layout)
    reads = block_info(schedule, product.name).reads
    return name, next(load.buffer.name for load in reads if load.buffer.name.startswith(name))


# -- the order of tiles


def _order(schedule: Schedule, product: TiledProduct, operands: Operands, tiles: Tiles) -> TileNest:
    """Decide which operand stays in the cache: the outermost tile loop runs over the larger one, in parallel."""
    s = schedule
    by_columns = operands.rhs_is_in_tiles
    if not by_columns:
        default = "columns" if _prefers_columns(s, product, operands, tiles) else "rows"
        by_columns = s.choose(product.name, "outermost", ("rows", "columns"), default, ordered=False) == "columns"
    again = by_columns and extent_value(s, tiles.columns) != 1  # inside a band each tile of columns would pad anew
    nest = (_by_columns if by_columns else _by_rows)(s, product, operands, tiles)
    s.reorder(*nest.outer, *tiles.inner)
    if operands.lhs and not operands.is_copied:
        bands = tiles.bands[-1:]
        if bands and s.choose(product.name, "padding", ("band", "alone"), "alone" if again else "band", ordered=False) == "alone":
            bands = []
        nest = replace(nest, lhs_place=bands[0] if bands else None)
    if product.around is None:
        _set_parallel(s, product, nest)
    return nest


def _by_columns(schedule: Schedule, product: TiledProduct, operands: Operands, tiles: Tiles) -> TileNest:
    """Tiles of columns around rows; around few of them, where these share what is copied of the lhs."""
    shared, others = _shared(product), [loop for loop in _others(product) if loop not in product.roles.batch]
    columns, together = _cut_columns_together(schedule, product, operands, tiles.columns)
    parallel = [*shared, columns]
    if not operands.rhs and _num_tasks(schedule, product, parallel) < TASKS_OF_CORE * product.target.cores:
        parallel += [loop for loop in others if loop in product.roles.columns]  # as rows of an image
    rows = [*(loop for loop in others if loop not in parallel), *tiles.bands, *tiles.band_rows, *tiles.rows]
    return TileNest(
        outer=[*parallel, *rows, *together],
        parallel=parallel,
        lhs_place=next(reversed(tiles.bands if tiles.is_banded else [*tiles.bands, *tiles.rows]), None),
        rhs_place=None if operands.rhs_is_apart else columns,
        tiles_together=bool(together),
    )


def _by_rows(schedule: Schedule, product: TiledProduct, operands: Operands, tiles: Tiles) -> TileNest:
    """Rows around tiles of columns, which may be cut in parts around the rows."""
    s, name = schedule, product.name
    apart, columns = _cut_columns_apart(s, product, tiles.columns)
    around, inside = ([], tiles.rows) if tiles.is_banded else _cut_row_tiles(s, product, tiles, apart)
    innermost = [*columns, *tiles.band_rows, *inside]
    if columns and inside and not tiles.is_banded and s.choose(name, "innermost", ("rows", "columns"), "rows", ordered=False) == "columns":
        innermost = [*tiles.band_rows, *inside, *columns]
    rows = [*tiles.bands, *around]
    if tiles.bands and around and s.choose(name, "outer_order", ("bands", "rows"), "bands", ordered=False) == "rows":
        rows = [*around, *tiles.bands]
    parallel = [*_others(product), *rows, *apart]
    place = tiles.bands if tiles.is_banded else rows if around else [*rows, *inside]
    return TileNest([*parallel, *innermost], parallel, next(reversed(place), None))


def _others(product: TiledProduct) -> list[str]:
    return [*product.roles.others, *product.roles.rows[:-2]]


def _shared(product: TiledProduct) -> list[str]:
    """The loops that choose elements of both operands."""
    return [loop for loop in _others(product) if loop in product.roles.batch]


def _cut_columns_together(schedule: Schedule, product: TiledProduct, operands: Operands, loop: str) -> tuple[str, list[str]]:
    """Cut the loop over column tiles in two, around and inside the loops over rows; one is inside by default, more if the lhs is copied."""
    count = extent_value(schedule, loop)
    guarded = is_peeled(schedule, loop)
    sizes = [] if count is None or guarded else divisors(count)
    most = max(1, min(COPIED_TILES, (count or 1) // product.target.cores)) if operands.is_copied else 1
    if count is not None and most > 1 and not any(1 < size <= most for size in sizes):
        sizes = even_sizes(count - guarded)
    size = schedule.choose(product.name, "columns_together", sizes, max((size for size in sizes if size <= most), default=1))
    if size == 1:
        return loop, []
    made = cut_tiles(schedule, loop, size)
    return made.around, [made.inside]


def _cut_columns_apart(schedule: Schedule, product: TiledProduct, loop: str) -> tuple[list[str], list[str]]:
    """Cut the loop over column tiles in two, around and inside the loops over rows: blocking of the rhs in a cache; all inside, untuned."""
    count = extent_value(schedule, loop)
    sizes = [] if count is None or is_peeled(schedule, loop) else divisors(count)
    parts = schedule.choose(product.name, "columns_apart", sizes, 1)
    if parts == 1 or count is None:
        return [], [loop]
    made = cut(schedule, loop, count // parts)
    return [made.around], [made.inside]


def _cut_row_tiles(schedule: Schedule, product: TiledProduct, tiles: Tiles, apart: list[str]) -> tuple[list[str], list[str]]:
    """Cut the loop over row tiles in two, around and inside the loops over columns; by default those inside share columns that come from
    behind a cache, all others are around."""
    rows = tiles.rows
    count = extent_value(schedule, rows[0]) if len(rows) == 1 else None
    if count is None or not (whole := count - is_peeled(schedule, rows[0])):
        return rows, []
    most = 1 if apart else _row_tiles_together(schedule, product, tiles)
    sizes = divisors(whole)
    if whole < count or 2 * largest(sizes, most) <= most:  # some rows have code of their own already, or had better have
        sizes = even_sizes(whole)
    size = schedule.choose(product.name, "rows_together", sizes, largest(sizes, most))
    if size > 1:
        made = cut_tiles(schedule, rows[0], size)
        return [made.around], [made.inside]
    if apart:  # columns in blocks around all rows: each block is read once for all of them
        return [], rows
    return rows, []


def _row_tiles_together(schedule: Schedule, product: TiledProduct, tiles: Tiles) -> int:
    """How many tiles of rows, which stay in the second-level cache beside a tile of columns, share what is read of the rhs; 1 where all
    of the lhs or of the rhs stays there, or too few would share."""
    target, count = product.target, extent_value(schedule, tiles.rows[0]) if len(tiles.rows) == 1 else None
    products = known_product(schedule, _shared(product), 1)
    lhs, rhs = product.lhs_bytes // products, product.rhs_bytes // products
    if count is None or tiles.is_banded or min(lhs, rhs) <= target.l2_bytes // 2:
        return 1
    row_tile = max(1, product.lhs_bytes // known_product(schedule, [*_others(product), *tiles.bands, *tiles.band_rows, *tiles.rows], 1))
    column_tile = rhs // known_product(schedule, [tiles.columns], 8)
    most = min(int(target.l2_bytes * ROWS_TOGETHER_OF_L2) // row_tile, count // target.cores)
    part, least = COLUMNS_TOGETHER_OF_L2, LEAST_ROWS_TOGETHER
    if product.roles.blocks is not None:
        part, least = IMAGE_COLUMNS_OF_L2, LEAST_PIXELS_TOGETHER
    return most if most >= least and column_tile <= part * target.l2_bytes else 1


def _prefers_columns(schedule: Schedule, product: TiledProduct, operands: Operands, tiles: Tiles) -> bool:
    """Whether the outermost loop runs over column tiles: the rhs is the larger operand, and there are tasks enough.

    Where the result's rows run across column tiles, a small rhs, which stays in the cache anyway, does not break them up.
    """
    cores = product.target.cores
    if product.roles.images:
        return False
    column_tasks = _num_tasks(schedule, product, [*_shared(product), tiles.columns])
    rows = [] if tiles.is_banded else tiles.rows
    row_tasks = _num_tasks(schedule, product, [*_others(product), *tiles.bands, *rows])
    if column_tasks < cores <= row_tasks:
        return False
    if row_tasks < cores <= column_tasks:
        return True
    if operands.is_copied and tiles.is_banded:  # once, rather than for each tile of columns
        return False
    is_wide = product.roles.blocks is not None and product.tile.vectors == NEAR_VECTORS and not tiles.is_banded
    stays = is_wide and rhs_stays_near(product.contraction, product.tile.columns, product.target)
    return stays or product.rhs_is_larger or (not tiles.is_banded and _reads_less_by_columns(schedule, product, tiles))


def _reads_less_by_columns(schedule: Schedule, product: TiledProduct, tiles: Tiles) -> bool:
    """Whether reading all of the lhs again for each tile of columns is less than reading all of the rhs for each tile of rows.

    What fits half of the second-level cache is read once.
    """
    near = product.target.l2_bytes // 2
    lhs, rhs = product.lhs_bytes, product.rhs_bytes
    row_tiles = known_product(schedule, tiles.rows, USUAL_PRODUCT // max(1, product.tile.rows))
    column_tiles = known_product(schedule, [tiles.columns], 8)
    row_tiles = -(-row_tiles // _row_tiles_together(schedule, product, tiles))
    return rhs > near and (0 if lhs <= near else column_tiles * lhs) < row_tiles * rhs


# -- tasks


def _num_tasks(schedule: Schedule, product: TiledProduct, loops: list[str]) -> int:
    """How many tasks `_set_parallel` can make of these loops; a symbolic number of samples may be 1."""
    free = _fusible(schedule, loops)
    samples = [loop for loop in free if loop == product.roles.samples]
    return known_product(schedule, samples, 1) * known_product(schedule, [loop for loop in free if loop not in samples], 8)


def _fusible(schedule: Schedule, loops: list[str]) -> list[str]:
    """The leading loops that can run as one parallel loop: up to one that is to be peeled, or that one alone."""
    return up_to_peeled(schedule, loops) or loops[:1]


def _set_parallel(schedule: Schedule, product: TiledProduct, nest: TileNest) -> None:
    """Run the leading loops in parallel, fused as far as possible."""
    info = block_info(schedule, product.name)
    depth = [axis.value.name for axis in info.block.axes if axis.var in info.reduction_axes and isinstance(axis.value, Var)]
    work = product.tile.all_rows * product.tile.columns * min(known_product(schedule, depth, 64), 4096) // 4
    free = _fusible(schedule, nest.parallel)
    inside = [loop for loop in nest.outer if loop not in free]
    set_parallel(schedule, product.name, free, work * known_product(schedule, inside, 8))


# -- the rhs


def _schedule_rhs(schedule: Schedule, product: TiledProduct, names: list[str], nest: TileNest) -> None:
    """Make the rhs of each tile of columns where all rows read it: packed by an instruction, out of a few rows at a time.

    All of it is made before where its tiles are too few for all cores.
    """
    s, tile, dot, place, packed = schedule, product.tile, product.dot, nest.rhs_place, ""
    for name in reversed(names):
        if place is not None:
            s.compute_at(name, place)
        elif dot is None:
            schedule_block(s, name, product.target)
            continue
        if nest.tiles_together and name is names[-1]:
            _lay_tiles_apart(s, product)
        if dot is not None and name is names[-1] and not isinstance(block_info(s, name).writes[0].value, Load):
            _copy_words_for_dot(s, product, name, dot)
            continue
        if dot is not None and not packed:
            *_, place, columns, _ = s.loops_of(name)
            words = terms_copied(block_info(s, names[0])) // dot.depth
            if words > 1:  # each is taken apart once
                place, _ = s.split(place, words)
            *_, packed = s.split(columns, (None, tile.vectors, tile.lanes))
        else:
            terms = terms_copied(block_info(s, name))
            tiles, columns = s.split(s.loops_of(name)[-1], tile.columns)
            if terms > 1:
                _copy_by_words(s, name, terms, columns, tile.lanes)
                continue
            vectors = vectorize_loop(s, columns, lanes_for(block_info(s, name), product.target))
            if place is not None and is_peeled(s, place):  # the columns of the last tiles are fewer
                peel(s, *([vectors] if vectors else []), tiles)
    if dot is not None and packed:
        s.tensorize(packed, dot.interleave)


def terms_copied(info: BlockInfo) -> int:
    """How many neighbours along the last axis but one share a word of what a copy reads."""
    is_matrix = len(info.spatial_axes) > 1 and len(info.reads) == 1
    return words_along(info.reads[0], info.spatial_axes[-2]) if is_matrix else 1


def _copy_words_for_dot(schedule: Schedule, product: TiledProduct, name: str, dot: Dot) -> None:
    """Let a copy for an instruction take words apart: a vector of bytes of one place in them after the other, or by instructions."""
    s, tile = schedule, product.tile
    (load,) = block_info(s, name).reads
    *_, groups, columns, terms = s.loops_of(name)
    groups, group = s.split(groups, 32 // load.dtype.bits // dot.depth)
    tiles, vectors, lane = s.split(columns, (None, tile.vectors, tile.lanes))
    if dot.depth == 2:
        places = s.split(group, 2) if load.dtype.per_byte > 1 else (group,)
        s.reorder(tiles, groups, vectors, *places, lane, terms)
        s.tensorize(places[0], spread_name(load.dtype, dot.rhs))
        return
    s.reorder(tiles, groups, vectors, group, lane, terms)
    s.unroll(group)
    s.vectorize(s.fuse(lane, terms))


def _copy_by_words(schedule: Schedule, name: str, terms: int, columns: str, lanes: int) -> None:
    """Let a copy take the words of a vector of columns apart, all terms of one after the other."""
    s = schedule
    *_, depth, _, _ = s.loops_of(name)
    words, word = s.split(depth, terms)
    vectors, lane = cut_vectors(s, columns, lanes)
    s.reorder(words, *vectors, word, lane)
    s.vectorize(lane)
    s.unroll(word)


def _lay_tiles_apart(schedule: Schedule, product: TiledProduct) -> None:
    """Let each tile of columns of the rhs's copy lie by itself."""
    rhs = product.contraction.rhs
    names = [f"a{d}" for d in range(len(rhs.indices))]
    rest = [] if product.dot is None else [names.pop()]
    *outer, column = names
    size = product.tile.columns
    layout = [f"{column} // {size}", *outer, f"{column} % {size}", *rest]
    schedule.transform_layout(rhs.buffer.name, f"{', '.join([*names, *rest])} -> {', '.join(layout)}")


# -- facts


def rows_clash(contraction: Contraction) -> bool:
    """Whether the rows of the lhs, a matrix or several, lie at distances at which they evict each other from the first-level cache."""
    lhs = contraction.lhs
    if _is_matrix(contraction):
        return lhs.indices[0] in contraction.rows and is_clashing_pitch(simplify(product_of_dims(lhs.buffer.shape[1:])), lhs.buffer.dtype)
    are_several = len(lhs.indices) > 2 and lhs.indices[-2] in contraction.rows and lhs.indices[-1] in contraction.depth
    return are_several and is_clashing_pitch(lhs.buffer.shape[-1], lhs.buffer.dtype)


def _is_matrix(contraction: Contraction) -> bool:
    """Whether the lhs has rows, and in these terms or parts of them."""
    indices = contraction.lhs.indices
    return len(indices) == 2 or (len(indices) == 3 and indices[1] in contraction.parts)


def panel_stays_near(contraction: Contraction, columns: int, target: Target) -> bool:
    """Whether so many columns of the rhs stay in the first-level cache from one tile of rows to the next."""
    terms = _terms(contraction)
    return terms is not None and contraction.rhs.buffer.dtype.size_bytes * columns * terms <= NEAR_RHS_OF_L1 * target.l1_bytes


def rhs_stays_near(contraction: Contraction, columns: int, target: Target) -> bool:
    """Whether so many columns of the rhs stay in the first-level cache, and all of the lhs in the second, from rows to rows."""
    if contraction.batch or not all(isinstance(size, Const) for size in contraction.lhs.buffer.shape):
        return False
    if (_terms(contraction) or 0) < LEAST_NEAR_DEPTH or not panel_stays_near(contraction, columns, target):
        return False
    return buffer_bytes(contraction.lhs.buffer) <= NEAR_LHS_OF_L2 * target.l2_bytes


def _terms(contraction: Contraction) -> int | None:
    """Of a sum; None where their number is symbolic."""
    depth = [axis.extent for axis in contraction.info.block.axes if axis.var in contraction.info.reduction_axes]
    return math.prod(int(size.value) for size in depth if isinstance(size, Const)) if all(isinstance(d, Const) for d in depth) else None
