"""Attention: softmax(f(q k^T)) v in one pass over tiles of query rows.

A tile of rows is carried all the way: its scores, register tiles of rows by a few vectors of keys, go through f and stay in
cache; their maximum, exponentials and sum are taken row by row; then they weigh the values, again in register tiles.
Keys are packed once so that the lanes of a vector are neighbouring keys. With few rows nothing would be reused: then keys stream from
memory as they are, and a score is a dot product along the lanes, or, where keys lie side by side, one of the lanes of a sum of vectors.
Source: the row-block scheme of Dao et al. (2022), with whole rows of scores, which fit the caches of a CPU.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove
from tc.ir.expr import Load, Mul, Var, const
from tc.ir.loop import annotation
from tc.ir.node import walk
from tc.schedule.analysis import BlockInfo, axes_in, block_infos, consumers, producer
from tc.schedule.rules.common import extent_value, known_product, loops_inside, set_parallel
from tc.schedule.rules.epilogue import block_info
from tc.schedule.rules.partial_sums import reduce_along
from tc.schedule.rules.spatial import schedule_block
from tc.schedule.rules.tile import cut_overlapped, loops_of_sum, lower_versions, peel, unroll_tile, vectorize_tile
from tc.schedule.step import Schedule
from tc.target import Target

FEW_ROWS = 4
"""Up to this many query rows are scheduled one by one."""

MOST_ROWS = 14
"""Rows of a register tile at most."""

USUAL_ROWS = 8
"""Those where the number of all rows is symbolic: often a multiple of this, and else few are done twice."""

KEY_VECTORS = 8
"""Vectors of keys that lie side by side, whose scores for one row are summed at once."""

SHARES = 8
"""Tasks that the work should at least be cut into, so that cores finish together."""


@dataclass(frozen=True)
class AttentionChain:
    """The names of the blocks of an attention, in order."""

    scores: str
    masked: str
    top: str
    powers: str
    total: str
    inverse: str
    weighted: str
    final: str


def schedule_attention(schedule: Schedule, target: Target) -> str | None:
    """Schedule two products with a softmax between them as one kernel."""
    chain = find_chain(block_infos(schedule.func))
    if chain is None or not is_worth(schedule, chain) or not inline_around(schedule, chain):
        return None
    infos = block_infos(schedule.func)
    chain = chain_of(infos)
    row, _, _ = output_loops(schedule, chain)
    rows = 1 if row is None else extent_value(schedule, row)
    dim = None if row is None or rows is not None else schedule.extent_of(row)
    most = min(MOST_ROWS, (target.num_vector_registers - 3) // 2)
    tile = schedule.choose(chain.weighted, "rows", range(2, min(rows or most, most) + 1), choose_rows(rows, most))
    is_enough = None if dim is None else prove(const(tile) <= dim, Facts.of(schedule.func.facts))
    names = [info.name for info in infos]
    if isinstance(dim, Var) and is_enough is None:
        for few in lower_versions(schedule, names, lambda _: dim.name, [tile]):
            _schedule_version(schedule, list(few.values()), 1, target)
    elif is_enough is False:
        rows = FEW_ROWS  # so many at most, or little more: one by one
    _schedule_version(schedule, names, tile if rows is None or rows > FEW_ROWS else 1, target)
    return "attention" if rows is None or rows > FEW_ROWS else "attention, row by row"


def _schedule_version(schedule: Schedule, names: list[str], tile: int, target: Target) -> None:
    """Schedule the blocks called `names`, an attention and what it could not take in, by tiles of so many rows."""
    chain = chain_of([info for info in block_infos(schedule.func) if info.name in names])
    for name in names:
        if name not in vars(chain).values():
            schedule_block(schedule, name, target)
    row, column, lead = output_loops(schedule, chain)
    if tile == 1 or row is None:
        _schedule_few_rows(schedule, chain, row, column, lead, target)
    else:
        _schedule_tiles(schedule, chain, (row, column), lead, tile, target)


# -- recognition


def chain_of(infos: list[BlockInfo]) -> AttentionChain:
    """The chain that is known to be there."""
    chain = find_chain(infos)
    assert chain is not None, "nothing has changed the chain"
    return chain


def find_chain(infos: list[BlockInfo]) -> AttentionChain | None:
    """The blocks of an attention by what they read and write, or None."""
    reductions = [info for info in infos if info.reduction_axes]
    if len(reductions) != 4 or any(info.is_opaque or len(info.writes) != 1 for info in infos):
        return None
    tops = [info for info in reductions if annotation(info.block, "monoid") in ("max", "max_number")]
    if len(tops) != 1 or any(annotation(r.block, "monoid") != "sum" for r in reductions if r not in tops):
        return None
    top = tops[0]
    masked = _only(producer(infos, buffer) for buffer in top.read_buffers)
    scores = _only(r for r in reductions if masked is not None and r.writes[0].buffer in masked.read_buffers)
    powers = _only(consumers(infos, top.writes[0].buffer))
    if masked is None or scores is None or powers is None or powers.reduction_axes or masked.reduction_axes:
        return None
    readers = list(consumers(infos, powers.writes[0].buffer))
    total = _only(r for r in readers if len(r.read_buffers) == 1 and r.reduction_axes)
    product = _only(r for r in readers if len(r.read_buffers) == 2 and r.reduction_axes)
    if total is None or product is None or len(readers) != 2 or not _is_product(product) or not _is_product(scores):
        return None
    inverse = _only(consumers(infos, total.writes[0].buffer))
    final = _only(consumers(infos, product.writes[0].buffer))
    if inverse is None or final is None or inverse.reduction_axes or final.reduction_axes:
        return None
    return AttentionChain(*(i.name for i in (scores, masked, top, powers, total, inverse, product, final)))


def _only(found: object) -> BlockInfo | None:
    items = list(found)  # type: ignore[call-overload]
    return items[0] if len(items) == 1 else None


def _is_product(info: BlockInfo) -> bool:
    return any(isinstance(node, Mul) for node in walk(info.writes[0].value))


def is_worth(schedule: Schedule, chain: AttentionChain) -> bool:
    """Whether there is more than one key, and keys and values have more than one element."""
    weighted, scores = block_info(schedule, chain.weighted), block_info(schedule, chain.scores)
    needed = [(weighted, weighted.spatial_axes[-1]), *((i, axis) for i in (weighted, scores) for axis in i.reduction_axes)]
    return all(_loop_of(info, axis) is not None for info, axis in needed)


def inline_around(schedule: Schedule, chain: AttentionChain) -> bool:
    """Inline what comes before the chain where it is read, and the chain's end into what follows. False: nothing was done.

    What follows must be element by element, up to the one output.
    """
    infos = block_infos(schedule.func)
    own = list(vars(chain).values())
    place = next(k for k, info in enumerate(infos) if info.name == chain.final)
    after = infos[place + 1 :]
    if any(not info.is_spatial for info in infos if info.name not in own) or len(after) > 1:
        return False
    final = infos[place]
    load = next(load for load in final.reads if load.buffer in block_info(schedule, chain.weighted).written_buffers)
    if not all(isinstance(index, Var) or not axes_in(index) for index in load.indices):
        return False
    for info in infos:
        if info.name not in own and info not in after:
            with suppress(ScheduleError):
                schedule.compute_inline(info.name)
    if after:
        schedule.compute_inline(chain.final)
    return True


def _loop_of(info: BlockInfo, axis: Var) -> str | None:
    value = next(each.value for each in info.block.axes if each.var is axis)
    return value.name if isinstance(value, Var) else None


def output_loops(schedule: Schedule, chain: AttentionChain) -> tuple[str | None, str, list[str]]:
    """The loops of the final block that choose the row, the column of the values, and the rest in order."""
    info = block_info(schedule, chain.final)
    (weighted,) = block_info(schedule, chain.weighted).written_buffers
    load = info.reads_of(weighted)[0]
    row, column = (_loop_of(info, i) if isinstance(i, Var) else None for i in load.indices[-2:])
    assert column is not None, "there is more than one column"
    lead = [loop for loop in schedule.loops_of(chain.final) if loop not in (row, column)]
    return row, column, lead


# -- many rows


def choose_rows(rows: int | None, most: int) -> int:
    """Rows of a register tile: few iterations wasted at the end, and more rows rather than fewer."""
    if rows is None:
        return min(USUAL_ROWS, most)

    def cost(tile: int) -> float:
        return -(-rows // tile) * tile * (1 + 1.5 / tile)

    return min(range(min(rows, max(2, most // 2)), min(rows, most) + 1), key=cost)


def _vectors(extent: int | None, lanes: int) -> int:
    """Vectors of columns of a register tile."""
    if extent is None:
        return 2
    needed = -(-extent // lanes)
    return 2 if needed % 2 == 0 else 3 if needed % 3 == 0 else 1 if needed == 1 else 2


def _schedule_tiles(
    schedule: Schedule, chain: AttentionChain, output: tuple[str, str], lead: list[str], rows: int, target: Target
) -> None:
    row, column = output
    lanes = target.lanes(32)
    columns = extent_value(schedule, column)
    most = (target.num_vector_registers - 2) // (rows + 1)
    fitting = [count for count in (1, 2, 3, 4) if count <= most and count <= -(-(columns or 64) // lanes)]
    vectors = schedule.choose(chain.weighted, "vectors", fitting, _vectors(columns, lanes))
    _pack_keys(schedule, chain, 2 * lanes, target)
    tiles = cut_overlapped(schedule, row, rows)
    if not tiles.is_whole:
        peel(schedule, tiles.around)
    block, columns_inside = schedule.split(column, vectors * lanes)
    schedule.reorder(*lead, tiles.around, block, tiles.inside, columns_inside)
    peel(schedule, block)
    tile_loop = _share(schedule, chain, lead, tiles.around, rows)
    schedule.compute_at(chain.weighted, block)
    for name in (chain.inverse, chain.total, chain.powers, chain.top, chain.masked):
        schedule.compute_at(name, tile_loop)
    for name in (chain.masked, chain.powers):
        _interleave_rows(schedule, name, lanes)
    _tile_scores(schedule, chain, tile_loop, lanes)
    for name in (chain.total, chain.top):
        reduce_along(schedule, name, tile_loop, target)
    _in_vectors(schedule, chain.powers, lanes)
    _split_keys(schedule, chain.weighted, lanes)
    _register_tile(schedule, chain.weighted, block, lanes)
    unroll_tile(schedule, [tiles.inside, columns_inside], lanes)


def _share(schedule: Schedule, chain: AttentionChain, lead: list[str], tile_loop: str, rows: int) -> str:
    """Run the leading axes in parallel, and parts of the row tiles too where those are few. Returns the loop over tiles."""
    heads = known_product(schedule, lead, SHARES)
    tiles = extent_value(schedule, tile_loop)
    outer = list(lead)
    if heads < SHARES and tiles is not None and tiles > 1:
        wanted = schedule.choose(chain.weighted, "shares", (2, 4, SHARES, 2 * SHARES), SHARES)
        share, tile_loop = schedule.split_overlapped(tile_loop, _tiles_per_task(tiles, -(-wanted // heads)))
        outer.append(share)
    set_parallel(schedule, chain.weighted, outer, rows * (extent_value(schedule, tile_loop) or 8) * 1024)
    return tile_loop


def _tiles_per_task(tiles: int, wanted: int) -> int:
    """Cut tiles into at least `wanted` tasks, or one each, so that few tiles are done twice."""
    counts = range(min(wanted, tiles), min(2 * wanted, tiles) + 1)
    best = min(counts, key=lambda count: count * -(-tiles // count))
    return -(-tiles // best)


def _pack_keys(schedule: Schedule, chain: AttentionChain, columns: int, target: Target) -> None:
    """Copy the keys so that `columns` neighbouring keys are neighbours in memory, for each element of the depth.

    The last of them are padded, and scores of the padding computed: cheaper than not computing them.
    """
    padded = _pad_keys(schedule, chain, columns)
    info = block_info(schedule, chain.scores)
    key = _key_load(info)
    axis = info.spatial_axes[-1]
    place = next(d for d, index in enumerate(key.indices) if index is axis)
    depth = next(d for d, index in enumerate(key.indices) if index in info.reduction_axes)
    names = [f"a{d}" for d in range(len(key.indices))]
    rest = [name for d, name in enumerate(names) if d not in (place, depth)]
    packed = [*rest, f"{names[place]} // {columns}", names[depth], f"{names[place]} % {columns}"]
    copy = schedule.cache_read(chain.scores, key.buffer.name, "global", f"{', '.join(names)} -> {', '.join(packed)}")
    for block in padded:
        schedule.compute_inline(block)
    *outer, deep, column = schedule.loops_of(copy)
    depth_extent = extent_value(schedule, deep) or 64
    lanes = target.lanes(32)
    if place < depth and depth_extent % lanes == 0:
        _exchange_axes(schedule, deep, column, lanes)
    else:
        schedule.vectorize(column)
    set_parallel(schedule, copy, outer, columns * depth_extent)


def _exchange_axes(schedule: Schedule, row: str, column: str, lanes: int) -> None:
    """Copy squares of vectors, read along `row` and written along `column`."""
    rows, row = schedule.split(row, lanes)
    columns, column = schedule.split(column, lanes)
    schedule.reorder(rows, columns, row, column)
    schedule.vectorize(column)
    schedule.unroll(row)
    schedule.annotate_loop(row, "transpose", 1)


def _pad_keys(schedule: Schedule, chain: AttentionChain, columns: int) -> list[str]:
    """Round the number of keys up for the first product; returns the blocks that pad its operand and cut its result."""
    info = block_info(schedule, chain.scores)
    multiples = [columns if axis.var is info.spatial_axes[-1] else 1 for axis in info.block.axes]
    before = {each.name for each in block_infos(schedule.func)}
    try:
        schedule.pad_einsum(chain.scores, multiples)
    except ScheduleError:  # not a plain sum of products: then its tail runs under a mask
        return []
    return [each.name for each in block_infos(schedule.func) if each.name not in before]


def _key_load(info: BlockInfo) -> Load:
    """The operand of the scores that the last axis chooses elements of."""
    axis = info.spatial_axes[-1]
    return next(load for load in info.reads if axis in axes_in(load.indices) and load.buffer not in info.written_buffers)


def _tile_scores(schedule: Schedule, chain: AttentionChain, tile_loop: str, lanes: int) -> None:
    """Register tiles of scores, brought to their final form before they are stored."""
    row, column = loops_inside(schedule, chain.masked, tile_loop)
    block, columns_inside = schedule.split(column, 2 * lanes)
    schedule.reorder(block, row, columns_inside)
    peel(schedule, block)
    schedule.compute_at(chain.scores, block)
    _register_tile(schedule, chain.scores, block, lanes)
    unroll_tile(schedule, [row, columns_inside], lanes)


def _interleave_rows(schedule: Schedule, name: str, lanes: int) -> None:
    """Let a vector of one row lie beside those of other rows: rows a power of two apart would share few lines of the cache."""
    (buffer,) = block_info(schedule, name).written_buffers
    names = [f"a{d}" for d in range(len(buffer.shape))]
    *lead, row, column = names
    parts = [*lead, f"{column} // {lanes}", row, f"{column} % {lanes}"]
    schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join(parts)}")


def _register_tile(schedule: Schedule, name: str, anchor: str, lanes: int) -> None:
    """Rows by vectors of sums in registers, the reduction around them."""
    loops = loops_of_sum(schedule, name, anchor)
    depth = [loop for loop in loops.depth if extent_value(schedule, loop) != 1]
    schedule.reorder(*loops.single, *(loop for loop in loops.depth if loop not in depth), *depth, *loops.tiled)
    unroll_tile(schedule, loops.tiled, lanes)
    if depth:
        schedule.decompose_reduction(name, depth[0])
    schedule.set_scope(block_info(schedule, name).writes[0].buffer.name, "register")


def _split_keys(schedule: Schedule, name: str, lanes: int) -> None:
    """The sum over keys in steps of a vector, in which scores lie together."""
    outer, _ = schedule.split(schedule.loops_of(name)[-1], lanes)
    peel(schedule, outer)


def _in_vectors(schedule: Schedule, name: str, lanes: int) -> None:
    """Vectorize the last loop of a block, its remainder under a mask."""
    vectors, lane = schedule.split(schedule.loops_of(name)[-1], lanes)
    schedule.vectorize(lane)
    peel(schedule, vectors)


# -- few rows


def _schedule_few_rows(
    schedule: Schedule, chain: AttentionChain, row: str | None, column: str, lead: list[str], target: Target
) -> None:
    lanes = target.lanes(32)
    outer = [*lead, *([row] if row is not None else [])]
    block, column = schedule.split(column, extent_value(schedule, column) or 4 * lanes)
    schedule.reorder(*outer, block, column)
    anchor = set_parallel(schedule, chain.weighted, outer, 64 * 1024) or block
    schedule.compute_at(chain.weighted, block)
    for name in (chain.inverse, chain.total, chain.powers, chain.top, chain.masked):
        schedule.compute_at(name, anchor)
    (key,) = loops_inside(schedule, chain.masked, anchor)[-1:]
    scores = block_info(schedule, chain.scores)
    if _key_load(scores).indices[-1] is scores.spatial_axes[-1]:
        keys, inside = schedule.split(key, KEY_VECTORS * lanes)
        peel(schedule, keys)
        schedule.compute_at(chain.scores, keys)
        _register_tile(schedule, chain.scores, keys, lanes)
        unroll_tile(schedule, [inside], lanes)
    else:
        schedule.compute_at(chain.scores, key)
        reduce_along(schedule, chain.scores, key, target, accumulators=1)
    for name in (chain.top, chain.total):
        reduce_along(schedule, name, anchor, target)
    _in_vectors(schedule, chain.powers, lanes)
    _register_tile(schedule, chain.weighted, block, lanes)
    vectorize_tile(schedule, column, lanes)

