"""Sums of products: register tiles of several rows by a few vectors of columns.

The last spatial axis, along which one operand (the rhs) and the result are contiguous, is vectorized; row axes, along which the
other operand is broadcast, are unrolled. The tile lives in registers while all reduction axes run; what follows the sum
(bias, activation, residual) is applied to the tile before it is stored. Padding is materialized per band of rows.
Source: the outer-product micro-kernel of Goto and van de Geijn (2008); for convolutions, Georganas et al. (2018).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from tc.errors import ScheduleError
from tc.ir.expr import Const, Expr, Mul, is_const
from tc.ir.loop import is_strict
from tc.ir.node import walk
from tc.ir.uses import variables
from tc.ir.x86_intrinsics import TILE_ROWS
from tc.schedule.analysis import Contraction, as_contraction, block_infos, in_parts, is_stencil, sum_of_parts
from tc.schedule.rules.bands import least_of_far, padded_row
from tc.schedule.rules.common import depth_block, extent_value, lanes_for, works_in_place
from tc.schedule.rules.epilogue import (
    block_info,
    contraction_of,
    driven_spatial,
    final_block,
    inline_chain,
    is_single,
    total_of,
)
from tc.schedule.rules.operands import (
    LEAST_PACKED_COLUMNS,
    LEAST_PACKED_ROWS,
    Dot,
    choose_dot,
    copies_words_for_tiles,
    making_blocks,
    may_pack_rhs,
    stage_operands,
    terms_in_words,
)
from tc.schedule.rules.padding import rows_of_taps
from tc.schedule.rules.product import (
    operands_of,
    panel_stays_near,
    rhs_stays_near,
    rows_clash,
    schedule_product_tiles,
    terms_copied,
)
from tc.schedule.rules.roles import Roles, TiledProduct, roles_of
from tc.schedule.rules.row_sums import schedule_row_sums
from tc.schedule.rules.spatial import schedule_block
from tc.schedule.rules.tile import is_at_least, is_at_most, lower_versions, split_off
from tc.schedule.rules.tiling import (
    FEW_ROWS,
    LOW_ROWS,
    LOW_ROWS_OF_WORDS,
    MOST_SHALLOW_TERMS,
    NEAR_VECTORS,
    PREFERRED_VECTORS,
    ROW_CYCLES,
    Tile,
    TileSpace,
)
from tc.schedule.rules.window_tiles import WindowTiles, choose_window_tiles, schedule_window_tiles
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.machine import machine_of


def schedule_contraction(schedule: Schedule, target: Target) -> str | None:
    """Tile the one contraction of a PrimFunc; everything before it is scheduled on its own, everything after it is fused.

    Tuning may find that what follows is better done afterwards, in loops of its own.
    """
    return _schedule_contraction(schedule, target, on_tiles=False)


def schedule_convolution(schedule: Schedule, target: Target) -> str | None:
    """The same for a convolution on tile registers; None where these do not pay."""
    return _schedule_contraction(schedule, target, on_tiles=True)


def _schedule_contraction(schedule: Schedule, target: Target, on_tiles: bool) -> str | None:
    infos = block_infos(schedule.func)
    found = [(k, c) for k, info in enumerate(infos) if (c := as_contraction(info)) is not None]
    totals = {total.name for _, c in found if (total := sum_of_parts(c.info, infos)) is not None}  # products of parts and their scales
    found = [(k, c) for k, c in found if c.info.name not in totals]
    if len(found) != 1:
        return None
    position, contraction = found[0]
    if is_stencil(contraction):
        return None
    contraction = in_parts(contraction, infos)
    before, after = infos[:position], infos[position + 1 :]
    if contraction.parts:  # their sum follows
        position, after = position + 1, after[1:]
    if not all(info.is_spatial for info in (*before, *after)):
        return None
    last = after[-1] if after else contraction.info
    if all(is_single(last, axis) for axis in driven_spatial(last)):
        return None
    name = contraction.info.name
    strict = is_strict(schedule.func)
    tiles = choose_window_tiles(contraction, target, strict) if on_tiles and not contraction.parts else None
    if on_tiles and tiles is None:
        return None
    rule = None if contraction.parts or on_tiles else schedule_row_sums(schedule, contraction, target)
    if rule is not None:
        return rule
    is_static = all(isinstance(axis.extent, Const) for axis in last.block.axes)
    apart = bool(after) and is_static and schedule.choose(name, "epilogue", ("tile", "alone"), "tile", ordered=False) == "alone"
    if apart and inline_chain(schedule, [info.name for info in after]) is None:
        return None
    has_few = tiles is None and copies_words_for_tiles(contraction, target, strict)  # where rows are symbolic
    packs = tiles is None and not has_few and contraction.rhs.buffer in schedule.func.inputs and may_pack_rhs(contraction, target, strict)
    final = _final_of(schedule, name, apart) if has_few or packs else None
    few = None if final is None else (_small_apart if packs else _few_rows_apart)(schedule, name, final, target)
    dot = stage_operands(schedule, name, target, packs=packs and few != {}) if tiles is None else None
    final = _final_of(schedule, name, apart) if final is None else final
    if final is None:
        return None
    others = frozenset[str]() if not few else _schedule_few_rows(schedule, few[name], few[final], frozenset(few.values()), target)
    contraction = contraction_of(schedule, name)
    if tiles is None:
        others |= _schedule_near_images(schedule, name, final, target, dot, others)
        _schedule_versions(schedule, contraction_of(schedule, name), name, final, target, dot, others)
    else:
        _schedule_windows(schedule, name, final, tiles, target)
    if apart:
        schedule_block(schedule, last.name, target)
    return "contraction"


def _final_of(schedule: Schedule, name: str, apart: bool) -> str | None:
    """One block of all that follows a contraction, or all but the last block; None where that is not possible."""
    infos, outer = block_infos(schedule.func), total_of(schedule, name)
    after = infos[[info.name for info in infos].index(outer) + 1 :]
    return final_block(schedule, outer, after[:-1] if apart else after)


# -- the schedule


def _few_rows_apart(schedule: Schedule, name: str, final: str, target: Target) -> dict[str, str] | None:
    """Where the number of rows is symbolic, a version for fewer than a tile has: its blocks by those of the program."""
    lanes = lanes_for(block_info(schedule, final), target)

    def row_of(names: dict[str, str]) -> str:
        return roles_of(schedule, contraction_of(schedule, names[name]), names[final], lanes).rows[-1]

    rows = roles_of(schedule, contraction_of(schedule, name), final, lanes).rows
    if not rows or extent_value(schedule, rows[-1]) is not None:
        return None
    return next(iter(lower_versions(schedule, _blocks(schedule), row_of, [TILE_ROWS])), None)


def _small_apart(schedule: Schedule, name: str, final: str, target: Target) -> dict[str, str] | None:
    """A version for fewer rows or columns than copies of the rhs pay for, where these are symbolic: its blocks by those of the program.
    None where there are always as many, no blocks where there never are."""
    roles = roles_of(schedule, contraction_of(schedule, name), final, lanes_for(block_info(schedule, final), target))
    least = [(loop, LEAST_PACKED_ROWS) for loop in roles.rows[-1:]] + [(roles.lane, LEAST_PACKED_COLUMNS * target.cores)]
    asked = [each for each in least if extent_value(schedule, each[0]) is None]
    if any(is_at_most(schedule, loop, size - 1) for loop, size in asked):
        return {}
    both = [part for each in asked for part in each]
    return (asked and split_off(schedule, _blocks(schedule), lambda: schedule.specialize(*both))) or None  # type: ignore[arg-type]


def _schedule_near_images(
    schedule: Schedule, name: str, final: str, target: Target, dot: Dot | None, apart: frozenset[str]
) -> frozenset[str]:
    """Schedule a version for images that stay in the second-level cache while they are padded, where their size is symbolic; all blocks
    that it then has, none where that is no question. `apart`: blocks of other versions."""
    contraction = contraction_of(schedule, name)
    roles = roles_of(schedule, contraction, final, lanes_for(block_info(schedule, final), target))
    row = padded_row(contraction, roles, operands_of(schedule, contraction))
    least = [] if row is None else least_of_far(schedule, contraction, roles, row, target)
    asked = [part for each in least if extent_value(schedule, each[0]) is None for part in each]
    near = split_off(schedule, _blocks(schedule, apart), lambda: schedule.specialize(*asked)) if asked else {}  # type: ignore[arg-type]
    if not near:
        return frozenset()
    others = frozenset(_blocks(schedule, frozenset(near.values())))
    _schedule_versions(schedule, contraction_of(schedule, near[name]), near[name], near[final], target, dot, others)
    return frozenset(_blocks(schedule, others))


def _schedule_few_rows(schedule: Schedule, name: str, final: str, blocks: frozenset[str], target: Target) -> frozenset[str]:
    """Schedule the version that has these blocks, in which words of the rhs are read as they lie; all blocks that it then has."""
    others = frozenset(_blocks(schedule)).difference(blocks)
    dot = stage_operands(schedule, name, target, few_rows=True)
    _schedule_versions(schedule, contraction_of(schedule, name), name, final, target, dot, others)
    return frozenset(_blocks(schedule)).difference(others)


def _blocks(schedule: Schedule, but: frozenset[str] = frozenset()) -> list[str]:
    """The blocks of a program, but those of another version."""
    return [info.name for info in block_infos(schedule.func) if info.name not in but]


def _schedule_windows(schedule: Schedule, name: str, final: str, tiles: WindowTiles, target: Target) -> None:
    """Tiles, and where the number of pixels of a row is symbolic, vectors for fewer than a tile has."""
    blocks, contraction = [info.name for info in block_infos(schedule.func)], contraction_of(schedule, name)
    copies: list[dict[str, str]] = []
    if tiles.is_symbolic:

        def row_of(names: dict[str, str]) -> str:
            return roles_of(schedule, contraction_of(schedule, names[name]), names[final], 0).rows[-1]

        copies = lower_versions(schedule, blocks, row_of, [tiles.shape.rows])
        contraction = contraction_of(schedule, name)
    schedule_window_tiles(schedule, contraction, final, making_blocks(schedule, name, "lhs"), tiles, target)
    for names in copies:
        copy, lanes = contraction_of(schedule, names[name]), lanes_for(block_info(schedule, names[final]), target)
        roles = roles_of(schedule, copy, names[final], lanes)
        tile = replace(_tile_space(schedule, copy, names[final], roles, lanes, target).best(), rows=FEW_ROWS)
        product = TiledProduct(copy, roles, tile, target, dot=choose_dot(copy, target, tiles=False))
        schedule_product_tiles(schedule, product, operands_of(schedule, copy))


def schedule_product(
    schedule: Schedule, name: str, final: str, target: Target, longest_sum: int | None = None, around: str | None = None
) -> None:
    """Tile one contraction among other blocks; the spatial block `final`, which may be inside the loop `around`, stores its result.

    See `TiledProduct` for `longest_sum`. Inside a loop sizes are numbers and no loops are parallel. Where the number of rows is
    symbolic, the last tile is cut short: other versions, as below, would be of all blocks.
    """
    contraction = contraction_of(schedule, name)
    lanes = lanes_for(block_info(schedule, final), target)
    roles = roles_of(schedule, contraction, final, lanes, around)
    tile = _choose(schedule, name, _tile_space(schedule, contraction, final, roles, lanes, target))
    schedule_product_tiles(schedule, TiledProduct(contraction, roles, tile, target, longest_sum, around))


def _schedule_versions(
    schedule: Schedule,
    contraction: Contraction,
    name: str,
    final: str,
    target: Target,
    dot: Dot | None,
    apart: frozenset[str] = frozenset(),
) -> None:
    """One schedule, or several where the number of rows is symbolic; see `_versions`. `apart`: blocks of other versions."""
    lanes = lanes_for(block_info(schedule, final), target)
    roles = roles_of(schedule, contraction, final, lanes)
    columns, rhs = extent_value(schedule, roles.lane), contraction.rhs
    is_padded = rhs.indices[-1] in contraction.columns and not is_const(rhs.buffer.shape[-1], columns)
    if dot is None and roles.blocks is None and columns is not None and not is_padded:
        lanes = min(lanes, max(columns, 1))  # of part of a vector, where the rhs has no more: tiles of registers of one width
    space = _tile_space(schedule, contraction, final, roles, lanes, target)
    is_in_place = contraction.rhs.buffer in schedule.func.inputs
    if dot is not None and not is_in_place:
        space = replace(space, vectors_divide=dot.columns(contraction, target) // lanes, is_row_major=False, panel=1)
    elif not is_in_place:
        space = replace(space, is_row_major=False)
    if roles.is_part and not works_in_place(schedule):
        space = replace(space, exact=False, overlaps=True)
    has_rows = bool(roles.rows) and extent_value(schedule, roles.rows[-1]) is None
    if space.is_one_dim and columns is None and dot is None and (is_in_place if has_rows else not works_in_place(schedule)):
        space = replace(space, has_narrow=True)
    heights = [] if dot is None else dot.heights()
    if dot is not None and dot.grid is not None:
        tile = Tile(heights[0], dot.columns(contraction, target) // lanes, lanes)
    else:
        tile = _choose(schedule, name, space)
    if not has_rows or tile.rows == 1:
        narrow = _narrow_version(schedule, _blocks(schedule, apart), name, final, space, tile, lanes) if space.has_narrow else None
        is_wide = space.has_narrow and is_at_least(schedule, roles.lane, tile.columns)
        product = TiledProduct(contraction, roles, tile, target, dot=dot, overlaps=narrow is not None or is_wide)
        schedule_product_tiles(schedule, product, operands_of(schedule, contraction))
        if narrow is not None:
            names, each = narrow
            copy = contraction_of(schedule, names[name])
            product = TiledProduct(copy, roles_of(schedule, copy, names[final], lanes), each, target)
            schedule_product_tiles(schedule, product, operands_of(schedule, copy))
        return
    takes_words_apart = dot is None and any(terms_copied(block_info(schedule, made)) > 1 for made in making_blocks(schedule, name, "rhs"))
    low = LOW_ROWS_OF_WORDS if takes_words_apart else LOW_ROWS
    blocks = _blocks(schedule, apart)
    for names, each, has_few in _versions(schedule, blocks, name, final, roles, space, tile, heights[1:] if heights else None, low):
        is_low = has_few and not (dot is not None and is_in_place)
        if is_low:  # a copy of the rhs would be read about as often as it is made
            _inline_rhs(schedule, names[name])
        copy = contraction_of(schedule, names[name])
        roles = roles_of(schedule, copy, names[final], lanes)
        if is_low and takes_words_apart:  # panels are read in words, as wide as they are
            of_words = replace(_tile_space(schedule, copy, names[final], roles, lanes, target), rows=each.rows)
            each = of_words.best()
        own = None if is_low else dot
        if own is not None and own.grid is not None and each.rows < TILE_ROWS:
            own = choose_dot(copy, target, tiles=False)
        product = TiledProduct(copy, roles, each, target, dot=own)
        schedule_product_tiles(schedule, product, operands_of(schedule, copy))


def _inline_rhs(schedule: Schedule, name: str) -> None:
    """Compute the rhs where the sum reads it. What is made of several tensors, none of which has all of its axes, is no operand of a
    contraction then, and stays one block."""
    made = making_blocks(schedule, name, "rhs")

    def inline() -> str | None:
        inline_chain(schedule, [*made, name])
        if as_contraction(block_info(schedule, name)) is None:
            raise ScheduleError(f"{name}: its rhs has no read that goes along all of its axes")
        return name

    if schedule.attempt(inline) is None:
        inline_chain(schedule, made)


Version = tuple[dict[str, str], Tile]
"""Its blocks by those of the program, and its tile."""


def _narrow_version(
    schedule: Schedule, blocks: list[str], name: str, final: str, space: TileSpace, tile: Tile, lanes: int
) -> Version | None:
    """One of these blocks for a symbolic number of columns that is less than a tile's, in narrower ones, if it pays."""
    vectors = space.narrow_vectors(tile)
    if vectors == tile.vectors:
        return None

    def lane_of(names: dict[str, str]) -> str:
        return roles_of(schedule, contraction_of(schedule, names[name]), names[final], lanes).lane

    copies = lower_versions(schedule, blocks, lane_of, [tile.columns])
    return (copies[0], space.best(vectors)) if copies else None


def _versions(
    schedule: Schedule,
    blocks: list[str],
    name: str,
    final: str,
    roles: Roles,
    space: TileSpace,
    tile: Tile,
    heights: list[int] | None,
    low: tuple[int, ...],
) -> list[tuple[dict[str, str], Tile, bool]]:
    """Several, for a symbolic number of rows, and whether it is for few: tiles that overlap at the end, of the one of two heights that
    leaves less over, these also for one vector of columns where that may be all, `low` ones for fewer rows, and single rows. `heights`:
    those for fewer rows, and then there is no second one.
    """
    row, second = roles.rows[-1], 0
    if heights is None:
        options = [0, *(rows for rows in space.heights(tile.vectors) if 1 < rows < tile.rows)]
        second = schedule.choose(name, "second_rows", options, space.second_height(tile))
    lanes, count = tile.lanes, _num_blocks(schedule, roles, tile.lanes)
    single = TileSpace(1, 1, count, lanes, space.registers, roles.vectors_divide, tile.vectors, vector_bytes=space.vector_bytes)
    panel = replace(single, panel=1, is_row_major=True).best() if space.has_narrow else single.best()
    if space.in_words:  # a panel is one stream
        panel = replace(space, rows=1, outer_rows=1).best()
    least = second or tile.rows
    if low is LOW_ROWS_OF_WORDS:  # with more rows than those a copy pays
        least = max(least, low[0] + 1)
    lower = [*(replace(tile, rows=rows) for rows in (*(heights or ()), *low) if rows < least), panel]

    def row_of(names: dict[str, str]) -> str:
        return roles_of(schedule, contraction_of(schedule, names[name]), names[final], lanes).rows[-1]

    copies = lower_versions(schedule, blocks, row_of, [least, *(each.rows for each in lower[:-1])])
    versions = [(dict(zip(blocks, blocks, strict=True)), tile, False)]
    versions += [(names, each, each.rows <= low[0]) for names, each in zip(copies, lower[: len(copies)], strict=True)]
    if second:
        costs = [number for rows in (tile.rows, second) for number in (rows, space.tile_cost(rows, tile.vectors))]
        others = split_off(schedule, blocks, partial(schedule.specialize_tiles, row, *costs))
        versions += [(others, replace(tile, rows=second), False)] if others else []
    for names, each, _ in [v for v in versions if space.has_narrow and v[1].vectors > 1 and (v[1].rows >= least or v[1].rows == 1)]:
        lane = roles_of(schedule, contraction_of(schedule, names[name]), names[final], lanes).lane
        narrow = split_off(schedule, list(names.values()), partial(schedule.specialize, lane, lanes + 1))
        versions += [({block: narrow[copy] for block, copy in names.items()}, replace(each, vectors=1), False)] if narrow else []
    return versions


def _is_one_dim(extent: Expr) -> bool:
    """Whether a symbolic extent grows as one dim does, rather than as a product of several."""
    products = (node for node in walk(extent) if isinstance(node, Mul))
    return len(variables(extent)) == 1 and not any(variables(node.lhs) and variables(node.rhs) for node in products)


def _num_blocks(schedule: Schedule, roles: Roles, lanes: int) -> int | None:
    """How many vectors the columns are; None when symbolic."""
    if roles.blocks is not None:
        return extent_value(schedule, roles.blocks)
    columns = extent_value(schedule, roles.lane)
    return None if columns is None else -(-columns // lanes)


def _tile_space(
    schedule: Schedule, contraction: Contraction, final: str, roles: Roles, lanes: int, target: Target
) -> TileSpace:
    rows = roles.rows
    sizes = [extent_value(schedule, loop) for loop in rows]
    row_count = sizes[-1] if rows else 1
    outer_rows = (sizes[-2] or 1) if len(rows) > 1 else 1
    panel_columns = depth_block(contraction.rhs, contraction.columns)
    panel = max(1, (panel_columns or lanes) // lanes) if roles.blocks is None else 1
    is_row_major = roles.blocks is None and panel_columns is None
    blocks = _num_blocks(schedule, roles, lanes)
    is_even = roles.blocks is not None and blocks is not None and blocks % (NEAR_VECTORS * target.cores) == 0
    near = is_even and rhs_stays_near(contraction, NEAR_VECTORS * lanes, target)
    each = _row_cycles(contraction) if roles.blocks is None else 0.0
    return TileSpace(
        rows=row_count,
        outer_rows=outer_rows,
        blocks=blocks,
        lanes=lanes,
        registers=target.num_vector_registers,
        vectors_divide=roles.vectors_divide,
        panel=panel,
        exact=roles.is_part,
        is_row_major=is_row_major,
        near_rhs=near,
        near_panel=panel_stays_near(contraction, PREFERRED_VECTORS * lanes, target),
        clashing_rows=rows_clash(contraction),
        machine=machine_of(target),
        row_cycles=each,
        is_one_dim=_is_one_dim(schedule.extent_of(roles.lane)),
        in_words=terms_in_words(contraction) > 1,
        vector_bytes=target.vector_bits // 8,
        taps=rows_of_taps(schedule, contraction, row_count),
    )


def _row_cycles(contraction: Contraction) -> float:
    """What a row of a tile costs beside its steps, for each of them; 0 where there are many, or their number is not known."""
    summed = (*contraction.depth, *contraction.parts)
    depth = [axis.extent for axis in contraction.info.block.axes if axis.var in summed]
    terms = prod(int(size.value) for size in depth if isinstance(size, Const))
    is_shallow = all(isinstance(size, Const) for size in depth) and 0 < terms <= MOST_SHALLOW_TERMS
    return ROW_CYCLES / terms if is_shallow else 0.0


def _choose(schedule: Schedule, block: str, space: TileSpace) -> Tile:
    vectors = schedule.choose(block, "vectors", space.vectors(), space.best().vectors)
    height = schedule.choose(block, "rows", space.heights(vectors), space.best(vectors).rows)
    best = space.best(vectors, height)
    outer = schedule.choose(block, "outer_rows", space.outer_heights(vectors, height), best.outer_rows)
    return Tile(height, vectors, space.lanes, outer)
