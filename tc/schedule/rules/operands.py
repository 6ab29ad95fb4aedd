"""How the operands of a sum of products come into its tiles: as they lie, or as copies converted and packed on the way.

What is done to an operand (a cast, a scale, a choice of rows) is done once for each element in a copy of a part that stays in the cache,
rather than once for each tile that reads it; instructions that add several products at once want their terms side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from tc.cost.typical import USUAL_PRODUCT
from tc.ir.arith import Facts, linear_coefficients, simplify
from tc.ir.dtype import DType, bf16
from tc.ir.expr import Cast, Const, Expr, FloorDiv, FloorMod, Load, Var, const
from tc.ir.intrinsic import INTRINSICS, number_of_row
from tc.ir.loop import is_strict
from tc.ir.node import children
from tc.ir.types import DimFact
from tc.ir.uses import buffers_read, reads_memory, variables
from tc.ir.x86_intrinsics import (
    DOT_OPERANDS,
    TILE_OPERANDS,
    TILE_ROWS,
    Operands,
    dot_name,
    interleave_name,
    spread_name,
    terms_of_dot,
    tile_dot_name,
)
from tc.schedule.analysis import Contraction, block_infos
from tc.schedule.cache import narrowed
from tc.schedule.rules.common import depth_block, lanes_for
from tc.schedule.rules.epilogue import block_info, contraction_of
from tc.schedule.rules.matrix_tiles import Grid, TileProduct, terms_of_tile
from tc.schedule.step import Schedule
from tc.target import Target
from tc.target.machine import machine_of

TOGETHER = 4
"""Bytes of a word."""

MATRIX_DIMS = 3
"""Of an operand that is a batch of matrices; an image in blocks of channels has more."""

LONGEST_CHAIN = 8192
"""How many terms may be summed one after the other. Longer sums are made of parts: the error is that of two chains of their square root."""

LONGEST_CHAIN_ON_TILES = 65536
"""The same of products of bf16 on tile registers: roundings of so long a sum add at most 2^-8 of its magnitudes, as those of its factors
do."""

LEAST_STAGED_ROWS = 16
"""Rows that must share an operand's columns for a copy of what is computed of them to pay."""

USUAL_TILE_ROWS = 14
"""Rows of a tile: each tile after the first would compute again what is not copied."""

COPY_OPERATIONS = 2
"""What a copy costs beside the computation, for each vector: it is stored, and read from a farther cache."""

LEAST_PACKED_ROWS = 192
"""The same for columns that are only read: their copy is contiguous, and lies in few lines of the cache."""

LEAST_PACKED_COLUMNS = 128
"""Columns for each thread, that are enough tiles for them to share, where their number is symbolic."""

LEAST_STAGED_COLUMNS = 64
"""Columns that must share an operand's rows for a copy of them to pay."""

DOT_VECTORS = 2
"""Vectors of columns that the tiles of an instruction have at least: few streams of the rhs, many rows."""


@dataclass(frozen=True)
class Dot:
    """An instruction that adds `depth` products at once in each lane: its name, the types of its operands, and that which packs the rhs.

    `grid`: for instructions on tile registers, which of these a tile of the result is made of; `tile_terms`: how many terms one takes.
    """

    name: str
    lhs: DType
    rhs: DType
    interleave: str
    grid: Grid | None = None
    tile_terms: int = 0

    @property
    def depth(self) -> int:
        return terms_of_dot(self.lhs, self.rhs)

    @property
    def terms(self) -> int:
        """How many terms of a sum one instruction takes: their number is rounded up to a multiple."""
        return self.depth if self.grid is None else self.tile_terms

    def takes_rhs_in_place(self, contraction: Contraction) -> bool:
        """Whether the terms of the rhs lie as the instruction takes them."""
        is_whole = _count(contraction, contraction.depth, 1) % self.terms == 0
        return is_whole and groups_of_terms(contraction) == self.depth and contraction.rhs.dtype == self.rhs

    def columns(self, contraction: Contraction, target: Target) -> int:
        """What the number of columns is rounded up to a multiple of: the columns of a tile."""
        return columns_block(contraction, target) if self.grid is None else self.grid[1] * TILE_ROWS

    def heights(self) -> list[int]:
        """The rows of tiles that instructions on tile registers make, for many rows and for few; none for other instructions."""
        high = 0 if self.grid is None else self.grid[0]
        return [rows * TILE_ROWS for rows in sorted({high, min(high, 1)}, reverse=True) if rows]


def choose_tiles(contraction: Contraction, target: Target, strict: bool = False) -> Dot | None:
    """The instruction on tile registers for a sum of products, as `choose_dot`; None too where vectors take fewer cycles."""
    if contraction.rows and not contraction.parts and not rows_follow(contraction):
        return None
    for name, lhs, rhs in fitting_instructions(contraction, target, TILE_OPERANDS, tile_dot_name):
        size = tile_product(contraction, lhs)
        if lhs is bf16 and (strict or size.depth > LONGEST_CHAIN_ON_TILES):
            continue
        grid = size.paying_grid(target)
        if grid is not None:
            terms = _terms_of_part(contraction, lhs, rhs) if contraction.parts else terms_of_tile(lhs)
            if terms:
                return Dot(name, lhs, rhs, interleave_name(target.vector_bits, rhs), grid, terms)
    return None


def rows_follow(contraction: Contraction) -> bool:
    """Whether rows of the sums follow each other in memory, as those of a tile do."""
    return contraction.info.writes[0].indices[-2:-1] == contraction.rows[-1:]


def _terms_of_part(contraction: Contraction, lhs: DType, rhs: DType) -> int:
    """How many terms a tile takes of a part of a sum, which is not filled up: equally many each time; 0 where that is not whole groups."""
    depth = _count(contraction, contraction.depth, 1)
    most, group = terms_of_tile(lhs), terms_of_dot(lhs, rhs)
    return next((terms for terms in range(most, 0, -group) if depth % terms == 0), 0)


def fitting_instructions(
    contraction: Contraction, target: Target, table: Operands, name_of: Callable[[DType, DType], str]
) -> Iterator[tuple[str, DType, DType]]:
    """Of a table's instructions for the type of the sum, those that the target has and whose types hold both operands: name and types."""
    for lhs, rhs in table.get(contraction.info.writes[0].buffer.dtype, ()):
        known = INTRINSICS.get(name_of(lhs, rhs))
        if known is None or not known.is_there(target.features):
            continue
        if narrowed(contraction.lhs_value, lhs.name) is not None and narrowed(contraction.rhs_value, rhs.name) is not None:
            yield known.name, lhs, rhs


def tile_product(contraction: Contraction, dtype: DType) -> TileProduct:
    """What a contraction of operands of this type is to tile registers; symbolic sizes are taken to be usual ones."""
    sides = (contraction.rows[-1:], contraction.columns, contraction.depth)
    rows, columns, depth = (_count(contraction, axes, USUAL_PRODUCT) for axes in sides)
    is_copied = terms_in_words(contraction) > 1 and groups_of_terms(contraction) != TOGETHER // dtype.size_bytes
    panel = depth_block(contraction.rhs, contraction.columns) if is_copied or contraction.parts else None
    return TileProduct(rows, columns, depth, dtype, panel or 0, bool(contraction.parts))


def choose_dot(contraction: Contraction, target: Target, strict: bool = False, tiles: bool = True) -> Dot | None:
    """The instruction for a sum of products of small integers, or of bf16, each exact in its types; None where none fits the loops.

    Terms of one operand must follow each other along the one reduction axis, or along the channels of a convolution whose weights are
    packed; those on tile registers also take copies of what lies in words. `strict`: floats are to be rounded one by one. `tiles`: it may
    be one of these.
    """
    columns = contraction.columns
    is_packed, is_matrix = groups_of_terms(contraction) > 0, len(contraction.depth) == 1 and len(columns) == 1
    shape_fits = (is_packed or is_matrix) and contraction.info.spatial_axes[-1:] == columns[-1:]
    if not shape_fits or lanes_for(contraction.info, target) * 32 != target.vector_bits:
        return None
    are_words = terms_in_words(contraction) > 1
    on_tiles = choose_tiles(contraction, target, strict) if tiles and is_matrix and (are_words or not contraction.parts) else None
    is_image = is_packed and len(contraction.lhs.indices) > MATRIX_DIMS  # a block of whose channels is no number of words, but lies as one
    if on_tiles is not None and (not is_packed or (are_words and not is_image) or on_tiles.takes_rhs_in_place(contraction)):
        return on_tiles
    for name, lhs, rhs in fitting_instructions(contraction, target, DOT_OPERANDS, partial(dot_name, target.vector_bits)):
        dot = Dot(name, lhs, rhs, interleave_name(target.vector_bits, rhs))
        pays = lhs is not bf16 or (not strict and _pays_for_bf16(contraction, target))
        if rhs.per_byte > 1 and not is_packed:  # nothing brings halves of bytes side by side
            continue
        if pays and (not is_packed or dot.takes_rhs_in_place(contraction)):
            return dot
    return None


def groups_of_terms(contraction: Contraction) -> int:
    """How many terms of each column of the rhs lie side by side; 0 where they do not."""
    return _grouping(contraction)[1]


def grouped_axis(contraction: Contraction) -> Var:
    """The reduction axis along which terms lie side by side, or will in a copy: the first."""
    axis, _ = _grouping(contraction)
    return contraction.depth[0] if axis is None else axis


def _grouping(contraction: Contraction) -> tuple[Var | None, int]:
    """The axis k and g where term k of column j of the rhs is at [.., k // g, .., j, k % g], or at k // b and k // g % (b / g); else 0."""
    rhs = contraction.rhs
    is_plain = isinstance(contraction.rhs_value, Cast) and contraction.rhs_value.operand is rhs
    if not is_plain or len(rhs.indices) < 3:
        return None, 0
    *before, _, last = rhs.indices
    match last:
        case FloorMod(lhs=Var() as k, rhs=Const(value=int(group))) if k in contraction.depth:
            block = depth_block(rhs, (k,)) or group
            inside = {k // group} if block == group else {k // block, k // group % (block // group)}
            return (k, group) if block % group == 0 and inside <= set(before) else (None, 0)
        case FloorMod(lhs=FloorDiv(lhs=Var() as k)) if k in contraction.depth and rhs.indices[-2] is k % TOGETHER:  # several to a byte
            return k, terms_in_words(contraction)
        case Var() as k if k in contraction.depth and len(contraction.depth) > 1:  # no more terms than a group
            return k, _count(contraction, (k,))
    return None, 0


def terms_in_words(contraction: Contraction) -> int:
    """How many terms t of a column of the rhs share a word of 32 bits, being at [.., k // t, .., k % 4, k // 4 % (t / 4)]; or 1."""
    return words_along(contraction.rhs, contraction.depth[0]) if len(contraction.depth) == 1 else 1


def words_along(load: Load, axis: Var) -> int:
    """How many elements along an axis share a word of 32 bits; 1 where they do not."""
    bits = load.dtype.bits
    return 32 // bits if bits <= 8 and load.dtype.is_int and depth_block(load, (axis,)) == 32 // bits else 1


def _pays_for_bf16(contraction: Contraction, target: Target) -> bool:
    """Whether the machine sums products of bf16 faster than those of f32, and the sum is not so long that it must be made in parts."""
    return machine_of(target).bf16_dots_per_fma > 1.0 and _count(contraction, contraction.depth, LONGEST_CHAIN + 1) <= LONGEST_CHAIN


def copies_words_for_tiles(contraction: Contraction, target: Target, strict: bool) -> bool:
    """Whether `stage_operands` copies words of the rhs for tile registers. With few rows they are better read in place."""
    dot = choose_dot(contraction, target, strict) if terms_in_words(contraction) > 1 else None
    return dot is not None and dot.grid is not None and not dot.takes_rhs_in_place(contraction)


def may_pack_rhs(contraction: Contraction, target: Target, strict: bool) -> bool:
    """Whether a copy of each tile of columns pays for a rhs of unknown size, where symbolic numbers of rows and of columns are large: see
    `_pays_for_rhs`."""
    rhs = contraction.rhs
    is_row_major = isinstance(contraction.rhs_value, Load) and _columns_are_last(contraction) and rhs.indices[-1] is contraction.columns[0]
    if all(isinstance(size, Const) for size in rhs.buffer.shape) or not is_row_major or len(contraction.depth) != 1:
        return False
    known = _count(contraction, contraction.rows, LEAST_PACKED_ROWS), _count(contraction, contraction.columns, LEAST_PACKED_COLUMNS)
    is_large = known[0] >= LEAST_PACKED_ROWS and known[1] >= LEAST_PACKED_COLUMNS
    return is_large and not groups_of_terms(contraction) and choose_dot(contraction, target, strict) is None


def _columns_are_last(contraction: Contraction) -> bool:
    """Whether columns are the last axis of the result, and a copy of the rhs has no element twice."""
    columns = contraction.columns
    return moves_apart(contraction, contraction.rhs) and len(columns) == 1 and contraction.info.spatial_axes[-1:] == columns


def stage_operands(schedule: Schedule, name: str, target: Target, few_rows: bool = False, packs: bool = False) -> Dot | None:
    """Put copies of operands in front of the contraction `name`, not yet scheduled, where an instruction wants them or they pay.

    Returns the instruction. Axes whose last tile it would not fill are padded. `few_rows`: they are fewer than a copy of the rhs or tiles
    of rows pay for. `packs`: a copy of the rhs pays in any case.
    """
    contraction = contraction_of(schedule, name)
    strict = is_strict(schedule.func)
    is_packed = groups_of_terms(contraction) > 0
    are_many = _count(contraction, contraction.rows) >= LEAST_STAGED_ROWS
    dot = choose_dot(contraction, target, strict, tiles=not few_rows) if is_packed or are_many else None
    if dot is not None:
        if dot.grid is not None:
            fitting = tile_product(contraction, dot.lhs).grids()
            dot = replace(dot, grid=schedule.choose(name, "tile_grid", fitting, dot.grid, ordered=False))
        _stage_for_dot(schedule, contraction, dot, target)
        return dot
    if packs or (not few_rows and _pays_for_rhs(schedule, contraction)):
        schedule.cache_operand(name, "rhs", contraction.rhs_value.dtype.name)
    is_work = not isinstance(contraction.lhs_value, Load) or any(map(reads_memory, contraction.lhs.indices))
    if is_work and moves_apart(contraction, contraction.lhs) and _count(contraction, contraction.columns) >= LEAST_STAGED_COLUMNS:
        schedule.cache_operand(name, "lhs", contraction.lhs_value.dtype.name)
    return None


def _pays_for_rhs(schedule: Schedule, contraction: Contraction) -> bool:
    """Whether a copy of each tile of columns pays: they are computed, gathered, or lie in as many lines of the cache as there are terms."""
    rhs, value = contraction.rhs, contraction.rhs_value
    if not _columns_are_last(contraction):
        return False
    rows = _count(contraction, contraction.rows)
    if any(map(reads_memory, rhs.indices)):
        return rows >= LEAST_STAGED_ROWS
    if not isinstance(value, Load):
        again = -(-rows // USUAL_TILE_ROWS) - 1
        return rows >= LEAST_STAGED_ROWS and again * _operations(value) >= COPY_OPERATIONS
    is_row_major = rhs.indices[-1] is contraction.columns[0] and rhs.buffer in schedule.func.inputs
    rows, columns = _count(contraction, contraction.rows, 1), _count(contraction, contraction.columns, 1)
    is_large = rows >= LEAST_PACKED_ROWS and columns >= LEAST_STAGED_COLUMNS
    return is_row_major and is_large and len(contraction.depth) == 1 and all(isinstance(dim, Const) for dim in rhs.buffer.shape)


def _operations(value: Expr) -> int:
    """How many operations an operand takes, beside its load and what that reads."""
    if isinstance(value, (Load, Const)):
        return 0
    return 1 + sum(_operations(child) for child in children(value) if isinstance(child, Expr))


def moves_apart(contraction: Contraction, load: Load) -> bool:
    """Whether each axis of the block moves along a dim of its own, or two as the digits of a number: a copy has no element twice."""
    axes = {axis.var for axis in contraction.info.block.axes}
    digits: set[Var] = set()
    whole: list[Var] = []
    for index in load.indices:
        used = variables(index) & axes
        if len(used) > 1:
            return False
        match index:
            case FloorDiv(lhs=Var() as axis, rhs=Const()) | FloorMod(lhs=Var() as axis, rhs=Const()) if axis in axes:
                digits.add(axis)
            case FloorMod(lhs=FloorDiv(lhs=Var() as axis, rhs=Const()), rhs=Const()) if axis in axes:
                digits.add(axis)
            case _:
                whole.extend(used)
    return len(set(whole)) == len(whole) and digits.isdisjoint(whole)


def _count(contraction: Contraction, axes: tuple[Var, ...], unknown: int = LEAST_STAGED_COLUMNS) -> int:
    """How many elements some axes go over, symbolic ones counted as `unknown`."""
    total = 1
    for axis in contraction.info.block.axes:
        if axis.var in axes:
            total *= int(axis.extent.value) if isinstance(axis.extent, Const) else unknown
    return total


def _stage_for_dot(schedule: Schedule, contraction: Contraction, dot: Dot, target: Target) -> None:
    """Each operand in the instruction's type, its terms side by side, both padded where tiles are not full, unless they are already."""
    name, k, column = contraction.info.name, grouped_axis(contraction), contraction.columns[-1]
    lhs_is_in_place = is_in_place(contraction.lhs_value, dot.lhs, k, dot.depth)
    if dot.grid is not None:  # tiles take rows at equal distances
        lhs_is_in_place &= step_of_rows(contraction) is not None
    if groups_of_terms(contraction) and (dot.grid is None or dot.takes_rhs_in_place(contraction)):
        if not lhs_is_in_place:
            schedule.cache_operand(name, "lhs", dot.lhs.name)
        return
    copies, are_words = [], terms_in_words(contraction) > 1
    if contraction.lhs.indices[-1] is not k:  # in blocks, whose last one is not made longer
        lhs_is_in_place &= _count(contraction, (k,), 1) % dot.terms == 0
    if not lhs_is_in_place:
        copies.append(schedule.cache_operand(name, "lhs", dot.lhs.name))
    rhs_is_in_place = is_in_place(contraction.rhs_value, dot.rhs, column, 1) and contraction.rhs.indices[-2:] == (k, column)  # no image
    if not rhs_is_in_place or (lhs_is_in_place and contraction.lhs.buffer is contraction.rhs.buffer):  # which is laid out below
        copies.append(schedule.cache_operand(name, "rhs", dot.rhs.name))
    block = dot.columns(contraction, target)
    schedule.pad_einsum(name, [dot.terms if axis.var is k else block if axis.var is column else 1 for axis in contraction.info.block.axes])
    read = set(block_info(schedule, name).read_buffers)
    for copy in copies:
        if not read & set(block_info(schedule, copy).written_buffers):  # a padded copy of it is read
            schedule.compute_inline(copy)
    rhs = contraction_of(schedule, name).rhs
    names = [f"a{d}" for d in range(len(rhs.indices))]
    *batch, row, last = names
    layout = f"{', '.join(names)} -> {', '.join([*batch, f'{row} // {dot.depth}', last, f'{row} % {dot.depth}'])}"
    schedule.cache_read(name, rhs.buffer.name, "global", layout)
    if are_words and (dot.depth == TOGETHER or spreads(contraction.rhs.dtype, dot, target)):  # one copy is enough
        schedule.compute_inline(copies[-1])


def spreads(narrow: DType, dot: Dot, target: Target) -> bool:
    """Whether instructions make pairs of terms of words of so narrow integers."""
    known = INTRINSICS.get(spread_name(narrow, dot.rhs))
    return known is not None and known.is_there(target.features) and target.vector_bits == 512


def columns_block(contraction: Contraction, target: Target) -> int:
    """What the number of columns is rounded up to a multiple of: the columns of a tile."""
    lanes = target.vector_bits // 32
    (extent,) = (axis.extent for axis in contraction.info.block.axes if axis.var in contraction.columns)
    return lanes if isinstance(extent, Const) and extent.value <= lanes else DOT_VECTORS * lanes


def is_in_place(value: Expr, dtype: DType, axis: Var, group: int) -> bool:
    """Whether an operand is a load of the type, cast once, whose elements along an axis, `group` at a time, follow each other."""
    match value:
        case Cast(operand=Load() as load) if load.dtype == dtype:
            match load.indices[-1]:
                case FloorMod(lhs=Var() as index, rhs=Const(value=int(block))):
                    return index is axis and block % group == 0
                case index:
                    return index is axis
    return False


def step_of_rows(contraction: Contraction) -> tuple[int, bool] | None:
    """How far apart rows of the lhs that follow each other are in memory, in rows, and whether they run on from one index of the dims
    before to the next, as pixels do across the ends of rows of an image; None where that differs from row to row."""
    axis, (*indices, _), shape = contraction.rows[-1], contraction.lhs.indices, contraction.lhs.buffer.shape
    facts = Facts.of(DimFact(var, 1) for dim in shape for var in variables(dim))  # where one is 0 there are no rows
    for each in contraction.info.block.axes:
        facts = facts.with_range(each.var, each.extent)
    number, facts = number_of_row(indices, shape, facts)
    step = step_along(simplify(number, facts), axis)
    if step is None:
        return None
    is_plain = step_along(indices[-1], axis) == step and all(step_along(index, axis) == 0 for index in indices[:-1])
    return step, not is_plain


def step_along(index: Expr, axis: Var) -> int | None:
    """How much an index grows with an axis; None where that differs."""
    form = linear_coefficients(index, [axis])
    factor = const(0) if form is None else form[0].get(axis, const(0))
    return int(factor.value) if form is not None and isinstance(factor, Const) else None


def making_blocks(schedule: Schedule, name: str, side: str) -> list[str]:
    """The blocks that make an operand of a contraction, in program order."""
    infos = block_infos(schedule.func)
    contraction = contraction_of(schedule, name)
    wanted = set(buffers_read(contraction.lhs_value if side == "lhs" else contraction.rhs_value))
    found = []
    for info in reversed(infos):
        if info.name != name and wanted.intersection(info.written_buffers):
            found.append(info.name)
            wanted.update(info.read_buffers)
    return found[::-1]
