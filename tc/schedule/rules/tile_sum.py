"""The sum inside a register tile: in what order its loops run, how many steps and terms at a time, and what is fetched ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from math import isqrt, prod

from tc.ir.dtype import i16
from tc.ir.expr import Const, Var
from tc.ir.node import walk
from tc.ir.x86_intrinsics import TILE_ROWS, TileShape, tile_dot_name, tile_zero_name
from tc.schedule.analysis import BlockInfo, Contraction
from tc.schedule.rules.common import buffer_bytes, depth_block, divisors, extent_value, known_product
from tc.schedule.rules.epilogue import block_info, contraction_of, driving_loops, total_of
from tc.schedule.rules.matrix_tiles import NEAR_PART
from tc.schedule.rules.operands import LONGEST_CHAIN, Dot, step_of_rows, terms_in_words
from tc.schedule.rules.roles import TiledProduct
from tc.schedule.rules.tile import (
    cut,
    cut_and_peel,
    cut_vectors,
    fetch_tiles_ahead,
    loops_of_sum,
    start_sum,
    unroll,
    vectorize_tile,
)
from tc.schedule.step import Schedule
from tc.target import Target

DEPTH_UNROLL = 2
"""Steps of the sum per iteration of the innermost loop."""

PREFETCH_BYTES = 2048
"""How far ahead the rhs is prefetched at least: some thirty steps of the sum, each of about a dozen cycles, cover the latency of memory."""

FAR_BYTES = 8192
"""The same where each step of the sum takes a word of several terms, and for tiles of few rows, which wait for the rhs rather than
compute: measured, one to four rows take 0.65 to 0.85 of the time where it comes from the third-level cache, four rows 0.8 of it where it
comes from memory, one and two the same."""

ROWS_THAT_WAIT = range(1, 9)
"""Those of such tiles."""

PREFETCH_STEPS = 8
"""How many steps of the sum ahead it is prefetched at least: where a step is a row of a matrix, the bytes after it are no help."""

NEAR_RHS_OF_L2 = 0.5
"""The part of the second-level cache that the rhs of products of tiles may take to stay there while rows of the lhs pass by."""

MOST_ORDERED = 4
"""Reduction loops of which every order may be tried."""

PARTS_OF_SUM = (64, 128, 256, 512)
"""How many terms may be summed at once, where tuning may decide."""


@dataclass(frozen=True)
class TileSum:
    """A product's sum inside a tile, or a part of it: that of the block `contraction`, once for each iteration of the loop `anchor`.

    `lhs_name`: the buffer it reads the lhs from. Knobs are named after the product.
    """

    product: TiledProduct
    contraction: Contraction
    anchor: str
    lhs_name: str

    @property
    def name(self) -> str:
        return self.contraction.info.name


def schedule_tile_sum(schedule: Schedule, total: TileSum) -> dict[str, str]:
    """Inside the tile: reduction loops outermost, then rows, then vectors, so that a broadcast serves all vectors at once.

    Returns the outermost loops of nests that are instructions -> their names.
    """
    s, tile, dot = schedule, total.product.tile, total.product.dot
    if dot is not None and dot.grid is not None:
        return _schedule_products(s, total, dot)
    each = total if dot is not None and total_of(s, total.name) == total.name else _in_parts(s, total)
    info, loops = block_info(s, each.name), loops_of_sum(s, each.name, each.anchor)
    depth = loops.depth
    if known_product(s, loops.tiled, 1 << 20) <= 64 * tile.lanes:  # larger ones stay in memory
        s.set_scope(info.writes[0].buffer.name, "register")
    ordered = _ordered(each, info, loops.tiled)
    terms: list[str] = []
    if dot is not None:
        made = cut(s, depth[0], dot.depth)
        depth, terms = [made.around, *depth[1:]], [made.inside]
        if dot.rhs.per_byte > 1:
            terms = list(s.split(made.inside, (dot.rhs.per_byte, None)))
    steps, few = _split_depth(s, each, depth)
    depth = [*_arranged(s, each, steps), *few]
    if depth and (loops.single or loops.tiled):
        s.reorder(*loops.single, *depth, *ordered, *terms)
    if ordered:
        _order_tile(s, each, _vectorize_tile(s, each, ordered))
    start = ""
    if depth:
        _prefetch_rhs(s, each, depth[0])
        start = start_sum(s, each.name, depth[0])
    if dot is None:
        return {}
    s.vectorize(s.loops_of(start)[-1])
    return {s.loops_of(each.name)[-1 - len(terms)]: dot.name}


def _schedule_products(schedule: Schedule, total: TileSum, dot: Dot) -> dict[str, str]:
    """A loop over products of tiles."""
    s, sums = schedule, block_info(schedule, total.name).writes[0].buffer
    s.set_scope(sums.name, "global")
    if total_of(s, total.name) != total.name:
        total = _in_given_parts(s, total)
        s.transform_layout(sums.name, "i, g, j -> g, i, j")  # rows of tiles follow each other
        sums = block_info(s, total.name).writes[0].buffer
    contraction, loops = contraction_of(s, total.name), list(s.loops_of(total.name))
    inside = loops[loops.index(total.anchor) + 1 :]
    found = step_of_rows(contraction)
    assert found is not None, "rows that lie otherwise were copied"
    step, runs_on = found
    (depth,) = loops_of_sum(s, total.name, total.anchor).depth
    which_part = driving_loops(contraction.info, inside, contraction.parts)
    *single, row, column = [loop for loop in inside if loop not in (depth, *which_part)]
    assert all(extent_value(s, loop) == 1 for loop in single), "a tile has rows and columns"
    around = [loop for loop in loops[: -len(inside)] if extent_value(s, loop) != 1]
    by_columns = bool(driving_loops(contraction.info, around[-1:], contraction.columns))
    default = by_columns and _rhs_streams(s, contraction, (row, column, depth), total.product.target)
    streams = s.choose(contraction.info.name, "stream_rhs", (False, True), default, ordered=False)
    shape = TileShape(row_bytes=dot.terms * dot.lhs.size_bytes, step=step, runs_on=runs_on, streams=streams)
    steps, groups, terms = s.split(depth, (None, dot.terms // dot.depth, dot.depth))
    row_tiles, row = s.split(row, TILE_ROWS)
    column_tiles, column = s.split(column, TILE_ROWS)
    s.reorder(*which_part, *single, steps, row_tiles, column_tiles, row, column, groups, terms)
    unroll(s, [row_tiles, column_tiles])
    fetch_tiles_ahead(s, contraction, steps, pays=not streams)
    start = s.decompose_reduction(total.name, steps)
    return {s.loops_of(start)[-2]: tile_zero_name(sums.dtype), row: tile_dot_name(dot.lhs, dot.rhs, shape)}


def _rhs_streams(schedule: Schedule, contraction: Contraction, inside: tuple[str, str, str], target: Target) -> bool:
    """Whether the rhs of blocks of tiles that share rows comes from the second-level cache, while the lhs of all of them would stay in the
    first, had it not to share that. `inside`: the loops of a block over rows, columns and depth.

    Measured on an Emerald Rapids: sums of 1024 bytes take 0.75 of the time, of 768 0.93; where another thread shares the core, which
    leaves few registers to rename tiles to, 1.1 and 1.15, as loads take longer then.
    """
    rows, columns, depth = (extent_value(schedule, loop) for loop in inside)
    if rows is None or columns is None or depth is None:
        return False
    size = depth * contraction.lhs.dtype.size_bytes
    stays = rows * size <= NEAR_PART * target.l1_bytes and buffer_bytes(contraction.rhs.buffer) <= NEAR_RHS_OF_L2 * target.l2_bytes
    return stays and (rows + columns) * size > target.l1_bytes


def _in_parts(schedule: Schedule, total: TileSum) -> TileSum:
    """Sum the tile over a part of the depth at a time, and then these sums: rounding errors grow with the terms of one sum.

    The totals wait in the first-level cache while a part is summed in registers. Returns the sum of a part.
    """
    s, name = schedule, total.name
    if total_of(s, name) != name:
        return _in_given_parts(s, total)
    depth = loops_of_sum(s, name, total.anchor).depth
    size = _part_of_sum(s, total, extent_value(s, depth[0])) if depth else 0
    if not size:
        return total
    parts, _ = s.split(depth[0], size)
    s.set_scope(block_info(s, name).writes[0].buffer.name, "global")
    part = s.rfactor(name, parts)
    inside = list(s.loops_of(name))
    *tiled, parts = inside[inside.index(total.anchor) + 1 :]
    tiled = [loop for loop in tiled if extent_value(s, loop) != 1]
    s.reorder(parts, *tiled)
    _vectorize_tile(s, total, _ordered(total, block_info(s, name), tiled))
    s.decompose_reduction(name, parts)
    s.compute_at(part, parts)
    return replace(total, anchor=parts, contraction=contraction_of(s, part))


def _in_given_parts(schedule: Schedule, total: TileSum) -> TileSum:
    """Add up the parts that the sum makes by its definition, each when it is made; the totals stay in registers where there is room."""
    s, tile = schedule, total.product.tile
    outer = total_of(s, total.name)
    loops = loops_of_sum(s, outer, total.anchor)
    (parts,) = loops.depth
    s.reorder(parts, *loops.tiled)
    if loops.tiled:
        *rows, column = loops.tiled
        vectorize_tile(s, column, tile.lanes)
        unroll(s, rows)
    if 2 * tile.all_rows * tile.vectors + tile.vectors < total.product.target.num_vector_registers:
        s.set_scope(block_info(s, outer).writes[0].buffer.name, "register")
    s.decompose_reduction(outer, parts)
    s.compute_at(total.name, parts)
    return replace(total, anchor=parts)


def _part_of_sum(schedule: Schedule, total: TileSum, depth: int | None) -> int:
    """How many terms of the outermost depth loop to sum at once; 0: all. Where rounding sets a limit, tuning has no say."""
    lanes, longest = total.product.tile.lanes, total.product.longest_sum
    if longest is None and depth is not None and depth > LONGEST_CHAIN:
        longest = max(isqrt(depth), lanes)  # as many parts as terms of a part
    if longest is not None:
        return part_of_sum(depth, lanes, longest) or 0
    parts = [part_of_sum(depth, lanes, longest) for longest in PARTS_OF_SUM if depth is not None and depth % lanes == 0]
    return schedule.choose(total.product.name, "part", sorted({0, *(part for part in parts if part is not None)}), 0)


def _prefetch_rhs(schedule: Schedule, total: TileSum, loop: str) -> None:
    """Fetch the rhs ahead where it comes from memory rather than from a cache: an input as large as a part of the second-level one."""
    s, rhs = schedule, total.contraction.rhs
    if rhs.buffer not in s.func.inputs:
        return
    ahead = max(PREFETCH_BYTES, PREFETCH_STEPS * _step_bytes(total.contraction))
    if terms_in_words(total.contraction) > 1:
        ahead = FAR_BYTES
    elif _waits_for_rhs(total):
        ahead = max(ahead, FAR_BYTES)
    is_far = buffer_bytes(rhs.buffer) > total.product.target.l2_bytes // 8
    default = ahead if is_far else 0
    ahead = s.choose(total.product.name, "prefetch_bytes", (0, ahead // 4, ahead // 2, ahead, 2 * ahead), default)
    if ahead:
        s.annotate_loop(loop, "prefetch", (s.func.buffers.index(rhs.buffer), ahead))


def _waits_for_rhs(total: TileSum) -> bool:
    """Whether a tile has few rows, and all there are."""
    axes = [axis.extent for axis in total.contraction.info.block.axes if axis.var in total.contraction.rows]
    rows = prod(int(size.value) for size in axes if isinstance(size, Const))
    is_known = all(isinstance(size, Const) for size in axes)
    return total.product.tile.all_rows in ROWS_THAT_WAIT and (not is_known or rows == total.product.tile.all_rows)


def _step_bytes(contraction: Contraction) -> int:
    """The distance in the rhs of two steps of the sum next to each other; 0 where it is symbolic, or there is none."""
    rhs = contraction.rhs
    places = [k for k, index in enumerate(rhs.indices) if any(node in contraction.depth for node in walk(index))]
    if not places:
        return 0
    dims = rhs.buffer.shape[places[-1] + 1 :]
    return buffer_bytes(rhs.buffer, dims) if all(isinstance(dim, Const) for dim in dims) else 0


def _arranged(schedule: Schedule, total: TileSum, depth: list[str]) -> list[str]:
    """The reduction loops in the order of the knob."""
    if not 1 < len(depth) <= MOST_ORDERED:
        return depth
    orders = [tuple(order) for order in permutations(range(len(depth)))]
    return [depth[place] for place in schedule.choose(total.product.name, "depth_order", orders, orders[0], ordered=False)]


def _ordered(total: TileSum, info: BlockInfo, tiled: list[str]) -> list[str]:
    """Row loops before the loop over vectors."""
    if len(tiled) < 2 or total.product.roles.blocks is None:
        return tiled
    contraction = total.contraction
    column_axes = (*contraction.columns, *contraction.batch)
    places = [k for k, axis in enumerate(contraction.info.block.axes) if axis.var in column_axes]
    columns = {node.name for k in places for node in walk(info.block.axes[k].value) if isinstance(node, Var)}
    *rest, lane = tiled
    return [*(loop for loop in rest if loop not in columns), *(loop for loop in rest if loop in columns), lane]


def _split_depth(schedule: Schedule, total: TileSum, depth: list[str]) -> tuple[list[str], list[str]]:
    """Blocks of channels outermost, then the taps, then the lanes of a block, a few of them at a time; and the loop over these few."""
    if not depth:
        return depth, []
    s, info = schedule, block_info(schedule, total.name)
    loads = [load for load in info.reads if load.buffer.name == total.lhs_name]
    dot = total.product.dot
    block = depth_block(loads[0], info.reduction_axes) if loads else None
    block = block if block is None or dot is None else block // dot.depth
    first, *taps = depth
    extent = extent_value(s, first)
    if extent is None or (block is None and taps):
        return depth, []
    if block is None:
        return _unroll_steps(s, total, first, extent)
    if extent % block == 0:
        outer, inside = s.split(first, block)
        steps, few = _unroll_steps(s, total, inside, block)
        return [*_unroll_blocks(s, total, outer, extent // block), *taps, *steps], few
    made = cut_and_peel(s, first, block)
    return [made.around, *taps, made.inside], []


def _unroll_blocks(schedule: Schedule, total: TileSum, loop: str, extent: int) -> list[str]:
    """Cut a few blocks of the depth off their loop, and unroll them around the taps and the steps."""
    counts = [each for each in (1, 2, 4) if extent % each == 0 and each <= extent]
    count = schedule.choose(total.product.name, "blocks_unroll", counts, 1)
    if count == 1:
        return [loop]
    blocks, few = schedule.split(loop, count)
    schedule.unroll(few)
    return [blocks, few]


def _broadcasts_spill(total: TileSum) -> bool:
    """Whether LLVM, which starts with the numbers of all steps that are unrolled, would store sums to have registers for them: of tiles of
    one vector there are as many numbers as sums. Instructions of AVX-512 read them from memory."""
    product = total.product
    rows, registers = product.tile.all_rows, product.target.num_vector_registers
    return product.tile.vectors == 1 and 2 * rows > registers - 2 and "avx512f" not in product.target.features


def _unroll_steps(schedule: Schedule, total: TileSum, loop: str, extent: int) -> tuple[list[str], list[str]]:
    """Cut a few steps of the sum off the innermost loop, and unroll them."""
    counts = [count for count in (1, 2, 4, 8, 16) if extent % count == 0 and count < max(extent, 2)]
    dot = total.product.dot
    adds_first = dot is not None and dot.lhs is i16  # LLVM adds the products of two steps before it adds them to the sum
    usual = 1 if adds_first or _broadcasts_spill(total) else DEPTH_UNROLL
    if dot is None:  # a word is read once, and taken apart
        usual = max(usual, terms_in_words(total.contraction))
    count = schedule.choose(total.product.name, "depth_unroll", counts, usual if usual in counts else 1)
    if count == 1:
        return [loop], []
    steps, few = schedule.split(loop, count)
    schedule.unroll(few)
    return [steps], [few]


def _vectorize_tile(schedule: Schedule, total: TileSum, tiled: list[str]) -> list[str]:
    """Vectorize the last of the loops, unless an instruction is to be, and unroll the others; all loops of the tile."""
    s, tile = schedule, total.product.tile
    *rows, column = tiled
    is_known = extent_value(s, column) is not None
    vectors, lane = cut_vectors(s, column, tile.lanes)
    unroll(s, vectors if is_known else [])
    if total.product.dot is None:
        s.vectorize(lane)
    unroll(s, [loop for loop in rows if (extent_value(s, loop) or 99) <= max(tile.all_rows, tile.vectors)])
    return [*rows, *vectors, lane]


def _order_tile(schedule: Schedule, total: TileSum, loops: list[str]) -> None:
    """Rows around vectors, so that a broadcast serves all vectors at once, or vectors around rows."""
    several = [loop for loop in loops if extent_value(schedule, loop) != 1]
    if len(several) < 3 or any(extent_value(schedule, loop) is None for loop in several):
        return
    *rows, vectors, lanes = several
    if schedule.choose(total.product.name, "tile_order", ("rows", "vectors"), "rows", ordered=False) == "vectors":
        schedule.reorder(vectors, *rows, lanes)


def part_of_sum(depth: int | None, block: int, longest: int) -> int | None:
    """How many terms to sum at once: at most `longest`, whole blocks, equally many each time where all blocks are whole; None: all."""
    if depth is None or depth <= longest:
        return None
    most = max(longest // block, 1)
    return block * (most if depth % block else max(size for size in divisors(depth // block) if size <= most))
