"""Attention on matrix instructions: the tiling of `attention`, whoever multiplies with rows of its own from the scores to the result.

Scores are sums of products in fragments; masks, greatest values and exponentials are computed by the lanes on the elements that they hold,
what a row has in common by the four lanes that share it, which exchange it; rounded exponentials are, as they lie in registers, the left
operand of the second product. Which instructions multiply, and how operands come to them, is what `AttentionProducts` stands for.
Source: Dao (2023), FlashAttention-2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tc.errors import ScheduleError
from tc.ir.dtype import DType
from tc.ir.expr import Const
from tc.ir.lane_exchange import combine_name
from tc.ir.loop import annotation
from tc.schedule.analysis import block_infos
from tc.schedule.rules.attention import AttentionChain
from tc.schedule.rules.epilogue import block_info, contraction_of, driving_loops
from tc.schedule.rules.gpu.attention import compute_in_block, is_symbolic, lay_out_heads_first, made_by, outermost_keys
from tc.schedule.rules.gpu.blocking import Blocking
from tc.schedule.rules.gpu.matrix_blocking import LANES
from tc.schedule.rules.gpu.matrix_product import PAIR, Call
from tc.schedule.rules.gpu.product import FinalTile, TiledAxes, bind_blocks, loops_by_axis, pad_to_tiles, stage_operands
from tc.schedule.step import Schedule

QUAD = 4
"""Lanes that share a row of sums."""

MOST_WIDTH = 256
"""Elements of a row of queries, keys or values at most: what a lane has of them stays in registers."""


@dataclass(frozen=True)
class FragmentTile:
    """Sizes of a block's tiles: rows of queries, keys, rows of those who multiply together, elements of a row of queries and of values; the
    number of stages."""

    rows: int
    keys: int
    own: int
    depth: int
    width: int
    stages: int = 1

    def shared_bytes(self) -> int:
        return 2 * (self.rows * self.depth + self.stages * self.keys * (self.depth + self.width))


@dataclass(frozen=True)
class HeldRows:
    """The rows of those who multiply together, cut in `parts`, outermost first: some are among lanes, others in a lane's registers."""

    parts: tuple[int, ...]
    among_lanes: tuple[bool, ...]

    def lanes(self, loops: Sequence[str]) -> list[str]:
        return [loop for loop, is_lane in zip(loops, self.among_lanes, strict=True) if is_lane]

    def own(self, loops: Sequence[str]) -> list[str]:
        return [loop for loop, is_lane in zip(loops, self.among_lanes, strict=True) if not is_lane]


@dataclass(frozen=True)
class AttentionOperands:
    """The blocks that copy queries, keys and values; those that load fragments of them, if any do; the order of each in shared memory."""

    queries: str
    keys: str
    values: str
    fragments: tuple[str, ...] = ()
    order: str = ""

    def by_product(self, chain: AttentionChain, axes: tuple[TiledAxes, TiledAxes]) -> tuple[tuple[str, str, TiledAxes], ...]:
        """The copies, each behind the product that reads it and before the axes of that."""
        scores, last = axes
        return (chain.scores, self.queries, scores), (chain.scores, self.keys, scores), (chain.weighted, self.values, last)


class AttentionProducts(Protocol):
    """The instructions of both products of a tile. `rows`: how lanes hold what they make."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def tile(self) -> FragmentTile: ...

    @property
    def rows(self) -> HeldRows: ...

    def lay_out(
        self, schedule: Schedule, chain: AttentionChain, axes: tuple[TiledAxes, TiledAxes], operands: AttentionOperands
    ) -> AttentionOperands:
        """Lay copies out as instructions take them."""

    def multiply_values(
        self, schedule: Schedule, name: str, axes: TiledAxes, place: str, operands: AttentionOperands
    ) -> tuple[str, list[Call]]:
        """Cut the sum below `place` in stages and among lanes: the loop over stages, and the instructions."""

    def multiply_keys(
        self, schedule: Schedule, name: str, axes: TiledAxes, around: str, place: str, operands: AttentionOperands
    ) -> list[Call]:
        """Cut the scores of a tile of keys among lanes: the instructions. `place`: the loop around the tiles of keys."""

    def fetch(self, schedule: Schedule, copy: str, loop: str, axes: TiledAxes) -> None:
        """Copy what an iteration of a loop needs."""

    def rescale(self, schedule: Schedule, name: str) -> None:
        """Let each lane scale the sums that it holds."""

    def store(self, schedule: Schedule, axes: TiledAxes, tile: FinalTile) -> None:
        """Let each lane store what is made of the sums that it holds."""


def tile_attention(schedule: Schedule, chain: AttentionChain, products: AttentionProducts) -> str:
    """Make the attention one launch whose products are these; the name of the rule."""
    tile = products.tile
    axes, last = _axes(schedule, chain, tile)
    heads = len(contraction_of(schedule, chain.scores).info.spatial_axes) - 2
    operands, powers = _copy_operands(schedule, chain, products, axes, last)
    _place_stages(schedule, chain, powers)
    loops = loops_by_axis(schedule, chain.weighted, chain.final)
    for name, copies in ((chain.scores, (operands.queries, operands.keys)), (chain.weighted, (powers, operands.values))):
        for copy in copies:
            lay_out_heads_first(schedule, name, copy)
    operands = products.lay_out(schedule, chain, (axes, last), operands)
    place, parts = bind_blocks(schedule, chain.final, last, loops, PAIR, is_symbolic(schedule))
    compute_in_block(schedule, chain.weighted, place, heads)
    stage, calls = products.multiply_values(schedule, chain.weighted, replace(last, batch=()), place, operands)
    for name in (powers, chain.inverse, chain.total, chain.powers, chain.top, chain.masked, chain.scores):
        compute_in_block(schedule, name, place, heads)
    merged = [stage, *(_tile_keys(schedule, name, place, products, name == powers) for name in (chain.masked, chain.powers, powers))]
    merged += [_reduce_rows(schedule, name, place, products) for name in (chain.top, chain.total)]
    _cut_rows(schedule, chain.inverse, place, products.rows)
    around = outermost_keys(schedule, chain.scores, place, tile.keys)
    merged.append(around)
    calls += products.multiply_keys(schedule, chain.scores, replace(axes, batch=()), around, place, operands)
    new = schedule.merge_online(chain.top, *merged)
    for copy, loop, of in ((operands.queries, place, axes), (operands.values, around, last), (operands.keys, around, axes)):
        products.fetch(schedule, copy, loop, of)
    calls += _share_rows(schedule, chain, new, products)
    for name in (chain.top, chain.total):
        schedule.set_scope(made_by(schedule, name), "fragment")
    products.store(schedule, last, parts)
    if tile.stages > 1:
        schedule.annotate_loop(around, "pipeline", tile.stages)
    for loop, intrinsic in calls:  # no other step knows what an instruction touches
        schedule.tensorize(loop, intrinsic)
    return products.name


def row_lengths(schedule: Schedule, chain: AttentionChain) -> tuple[int, int]:
    """Elements of a row of queries, and of values. ScheduleError where they are too many, or not known."""
    weighted, scores = block_info(schedule, chain.weighted), block_info(schedule, chain.scores)
    sizes = {axis.var: axis.extent for info in (weighted, scores) for axis in info.block.axes}
    depth, width = (sizes[axis] for axis in (*scores.reduction_axes, weighted.spatial_axes[-1]))
    if not isinstance(width, Const) or not isinstance(depth, Const) or max(int(width.value), int(depth.value)) > MOST_WIDTH:
        raise ScheduleError(f"block {chain.weighted}: rows of queries or values are too long, or of no known length")
    return int(depth.value), int(width.value)


def _axes(schedule: Schedule, chain: AttentionChain, tile: FragmentTile) -> tuple[TiledAxes, TiledAxes]:
    """The axes of both products by role."""
    made = []
    for name, columns, depth in ((chain.scores, tile.keys, tile.depth), (chain.weighted, tile.width, tile.keys)):
        info = block_info(schedule, name)
        *batch, row, column = info.spatial_axes
        (term,) = info.reduction_axes
        blocking = Blocking(tile.rows, LANES, tile.own, 1, depth)  # so many threads fetch
        made.append(TiledAxes(tuple(batch), {row: (tile.rows, tile.own)}, {column: (columns, columns)}, {term: depth}, blocking))
    return made[0], made[1]


# -- stages of a tile


def _copy_operands(
    schedule: Schedule, chain: AttentionChain, products: AttentionProducts, axes: TiledAxes, last: TiledAxes
) -> tuple[AttentionOperands, str]:
    """Let both products read copies of their operands, up to whole tiles; those, and the copy of the exponentials."""
    scores, tile = contraction_of(schedule, chain.scores), products.tile
    rows = len(scores.info.spatial_axes) - 2
    schedule.widen((chain.masked, chain.top, chain.powers, chain.total, chain.inverse), rows, tile.rows)
    schedule.pad_softmax(chain.top, tile.keys)
    result, (queries, keys) = pad_to_tiles(schedule, chain.scores, axes, stage_operands(schedule, scores))
    weights = [schedule.cache_operand(chain.weighted, side, products.dtype.name, "shared") for side in ("lhs", "rhs")]
    final_result, (powers, values) = pad_to_tiles(schedule, chain.weighted, last, weights)
    for block in (result, final_result):
        if block is not None:
            schedule.compute_inline(block)
    return AttentionOperands(queries, keys, values), powers


def _place_stages(schedule: Schedule, chain: AttentionChain, powers: str) -> None:
    """Say where each stage is kept: what lanes have for themselves, and operands and results of instructions."""
    for name in (chain.masked, chain.powers, chain.top, chain.total, chain.inverse):
        schedule.set_scope(made_by(schedule, name), "local")
    for name in (chain.scores, chain.weighted, powers):
        schedule.set_scope(made_by(schedule, name), "fragment")


def _below(schedule: Schedule, name: str, place: str) -> list[str]:
    inside = list(schedule.loops_of(name))
    return inside[inside.index(place) + 1 :]


@dataclass(frozen=True)
class LaneLoops:
    """The loops of a block of rows and keys as sums are held: over `tiles` of keys, over those who multiply, `y`, over the parts of their
    rows, and over keys: `wide`, `quad` and `pair`."""

    tiles: str
    y: str
    rows: tuple[str, ...]
    keys: tuple[str, str, str]

    def bind(self, schedule: Schedule, held: HeldRows, is_vector: bool = False) -> None:
        """`is_vector`: neighbours are done at once, as those that are narrowed to one register."""
        lanes, own, (wide, quad, pair) = held.lanes(self.rows), held.own(self.rows), self.keys
        alone = [*own[:-1], wide, *own[-1:], pair]
        schedule.reorder(self.tiles, self.y, *lanes, quad, *alone)
        schedule.bind(self.y, "thread.y")
        schedule.bind(schedule.fuse(*lanes, quad), "thread.x")
        for loop in alone[:-1] if is_vector else alone:
            schedule.unroll(loop)
        if is_vector:
            schedule.vectorize(pair)


def _cut(schedule: Schedule, name: str, place: str, products: AttentionProducts) -> LaneLoops:
    """Cut rows and keys of a block, its last axes, among lanes as the sums of the scores are; nothing is bound yet."""
    info, inside = block_info(schedule, name), _below(schedule, name, place)
    row, column = (driving_loops(info, inside, (axis.var,))[0] for axis in info.block.axes[-2:])
    tiles, part = schedule.split(column, products.tile.keys)
    y, *rows = schedule.split(row, (None, *products.rows.parts))
    wide, quad, pair = schedule.split(part, (None, QUAD, PAIR))
    schedule.reorder(tiles, y, *rows, quad, wide, pair)
    return LaneLoops(tiles, y, tuple(rows), (wide, quad, pair))


def _tile_keys(schedule: Schedule, name: str, place: str, products: AttentionProducts, is_vector: bool) -> str:
    """Let each lane do an elementwise block for the scores that it holds; the loop over tiles of keys."""
    loops = _cut(schedule, name, place, products)
    loops.bind(schedule, products.rows, is_vector)
    return loops.tiles


def _reduce_rows(schedule: Schedule, name: str, place: str, products: AttentionProducts) -> str:
    """Reduce along the keys: each lane those that it holds, then what the lanes of a row have; the loop over tiles of keys."""
    loops = _cut(schedule, name, place, products)
    part = schedule.rfactor(name, loops.keys[1])
    buffer = block_info(schedule, part).writes[0].buffer
    names = [f"a{k}" for k in range(len(buffer.shape))]
    schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join((*names[1:], names[0]))}")
    schedule.set_scope(buffer.name, "fragment")
    loops.bind(schedule, products.rows)
    schedule.decompose_reduction(part, loops.tiles)
    y = _below(schedule, name, place)[0]
    schedule.bind(y, "thread.y")
    schedule.decompose_reduction(name, y)
    return loops.tiles


def _cut_rows(schedule: Schedule, name: str, place: str, rows: HeldRows) -> None:
    """Give those who multiply together their rows of a block that makes one number of each."""
    info = block_info(schedule, name)
    (row,) = driving_loops(info, _below(schedule, name, place), info.spatial_axes[-1:])
    y, *_ = schedule.split(row, (None, *rows.parts))
    schedule.bind(y, "thread.y")


# -- what the lanes of a row have in common


def _share_rows(schedule: Schedule, chain: AttentionChain, new: list[str], products: AttentionProducts) -> list[Call]:
    """Let each of the four lanes that share a row have what the row has: the instructions that combine it. `new`: what merging made."""
    rescaled = [name for name in new if _updates(schedule, name)]
    made = dict.fromkeys(made_by(schedule, name) for name in new if name not in rescaled)
    top, total, inverse = (made_by(schedule, name) for name in (chain.top, chain.total, chain.inverse))
    shared = (top, total, inverse, *made)
    schedule.spread(shared, QUAD)
    schedule.read_copy(chain.powers, top, -1, PAIR)
    schedule.read_copy(chain.final, inverse, _place_of_column(schedule, chain), PAIR)
    for name in rescaled:
        info = block_info(schedule, name)
        (change,) = info.read_buffers
        last = [axis.var for axis in info.block.axes].index(info.writes[0].indices[-1])  # type: ignore[arg-type]
        is_result = info.writes[0].buffer.name == made_by(schedule, chain.weighted)
        schedule.read_copy(name, change.name, last, PAIR if is_result else 1)
        if is_result:
            products.rescale(schedule, name)
    found = (_in_quads(schedule, chain, info.name, shared, products.rows) for info in block_infos(schedule.func))
    return [call for call in found if call is not None]


def _updates(schedule: Schedule, name: str) -> bool:
    info = block_info(schedule, name)
    return bool(info.reads_of(info.writes[0].buffer))


def _place_of_column(schedule: Schedule, chain: AttentionChain) -> int:
    """Which axis of the final block chooses the element of a row."""
    final, weighted = block_info(schedule, chain.final), block_info(schedule, chain.weighted)
    (load,) = final.reads_of(weighted.writes[0].buffer)
    return [axis.var for axis in final.block.axes].index(load.indices[-1])  # type: ignore[arg-type]


def _in_quads(schedule: Schedule, chain: AttentionChain, name: str, shared: tuple[str, ...], held: HeldRows) -> Call | None:
    """Let lanes compute what is shared by those of a row, if a block does: the instruction, where one combines it."""
    info = block_info(schedule, name)
    if not info.writes or info.writes[0].buffer.name not in shared:
        return None
    if name in (chain.top, chain.total):
        return _combine(schedule, name, held)
    *rows, copy = schedule.loops_of(name)[-1 - len(held.parts) :]
    lanes, own = held.lanes(rows), held.own(rows)
    schedule.reorder(*lanes, copy, *own)
    schedule.bind(schedule.fuse(*lanes, copy), "thread.x")
    for loop in own:
        schedule.unroll(loop)
    return None


def _combine(schedule: Schedule, name: str, held: HeldRows) -> Call:
    """Let the lanes of each row combine what they have: all rows of a group at once, and those of a warp half by half."""
    info = block_info(schedule, name)
    *rows, _, _ = schedule.loops_of(name)[-2 - len(held.parts) :]
    first = held.among_lanes.index(True)
    for loop in rows[:first]:
        schedule.unroll(loop)
    count = 1
    for part in held.parts[first:]:
        count *= part
    row = schedule.fuse(*rows[first:]) if len(rows) - first > 1 else rows[first]
    return row, combine_name(str(annotation(info.block, "monoid")), info.writes[0].buffer.dtype, count)

