"""Sums of products on the instructions of warpgroups, whose operands come to shared memory by copies of boxes (wgmma and TMA).

A block of threads is so many groups of four warps: `thread.y` counts groups, `thread.x` their 128 threads. A stage of both operands is
copied by the block as a whole, in boxes whose rows have 128 bytes; each group multiplies 64 rows of it with all columns, and keeps the
sums in registers. A tile may be one over several axes, as a rectangle of pixels of some images is: then a box of each tap of a window is
what the pixels see there, zeros beyond the borders. Who begins the copies, and who waits for what, is decided where the loop over stages
is pipelined (`pipeline_loops`).
Source: the warp-specialised kernels of CUTLASS (NVIDIA).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tc.errors import ScheduleError
from tc.ir.arith import simplify
from tc.ir.box_copies import BOX_ALIGNMENT
from tc.ir.boxes import boxed_view
from tc.ir.dtype import DType, f32, i64
from tc.ir.expr import TRUE, Buffer, Const, Expr, Load, Var, const
from tc.ir.loop import Store
from tc.ir.node import Node, substitute
from tc.ir.nvidia_intrinsics import SWIZZLED_COLUMNS, WGMMA_OPERANDS, fragment_name, wgmma_name
from tc.ir.polynomial import linear_coefficients
from tc.ir.uses import variables
from tc.schedule.analysis import BlockInfo, Contraction
from tc.schedule.cache import narrowed
from tc.schedule.rules.common import extent_value, loops_inside
from tc.schedule.rules.epilogue import block_info, contraction_of, driving_loops
from tc.schedule.rules.gpu.blocking import SHARED_BYTES_PER_CYCLE, Blocking, Extents, tile_of
from tc.schedule.rules.gpu.matrix_blocking import CACHE_BYTES_PER_CYCLE, START_CYCLES
from tc.schedule.rules.gpu.matrix_product import Call, terms_of
from tc.schedule.rules.gpu.product import (
    FinalTile,
    TiledAxes,
    bind_blocks,
    cut_in_stages,
    extents_along,
    inline_before,
    last_block,
    loops_by_axis,
    pad_to_tiles,
    sizes_of,
    stage_operands,
    tile_contraction,
    usual_blocking,
)
from tc.schedule.step import Schedule
from tc.schedule.tree import facts_at, find_block
from tc.target import Target
from tc.target.device import DeviceFacts

GROUP_ROWS, GROUP_THREADS = 64, 128
"""Rows of the sums, and threads, of a group of four warps."""

PAIR = 2
"""Neighbouring sums of a lane."""

TILES = ((128, 256), (128, 128), (64, 256), (64, 128), (64, 64))
"""Rows and columns of a block of threads: those that a search may choose."""

DEPTH, STEP = SWIZZLED_COLUMNS, 16
"""Terms of a stage, whose rows then have 128 bytes, and of one instruction."""

LEAST_TERMS = 2 * DEPTH
"""Of a sum: fewer are no pipeline."""

LEAST_PART_TERMS = 16 * DEPTH
"""Of a part of a sum: fewer take less time than the launch that adds parts up."""

MOST_WASTE = 1.75
"""How many times as many sums as there are may be computed in tiles along several axes."""

MOST_STAGES, USUAL_STAGES = 6, 4

BYTES = 2
"""Of an element of an operand."""


def schedule_warpgroup_contraction(schedule: Schedule, target: Target) -> str | None:
    """Tile the one contraction of a program for wgmma; None where the device has none, or the operands do not fit."""
    if target.device is None or not (target.device.has("wgmma") and target.device.has("tma")):
        return None
    return tile_contraction(schedule, target, _tiled, _usual_blocking)


def _usual_blocking(contraction: Contraction, device: DeviceFacts) -> Blocking | None:
    """The usual tile, or that of threads by themselves where the operands do not fit."""
    try:
        check_operands(contraction)
        tile = _usual_tile(_tiles_for(contraction), sizes_of(contraction), device)
    except ScheduleError:
        return usual_blocking(contraction, device)
    return _blocking(tile)


def _blocking(tile: tuple[int, int]) -> Blocking:
    return Blocking(*tile, GROUP_ROWS, tile[1] // GROUP_THREADS or 1, DEPTH, LEAST_PART_TERMS)


def _tiled(schedule: Schedule, name: str, before: list[str], after: list[str], device: DeviceFacts) -> str:
    """Tile a product; ScheduleError before anything is asked where that is not possible, as then it is not whatever the answers are."""
    check_operands(contraction_of(schedule, name))
    _tile(Schedule(schedule.func), name, before, after, device)
    return _tile(schedule, name, before, after, device)


def check_operands(contraction: Contraction) -> DType:
    """The type of both operands; ScheduleError where wgmma does not take them as they lie in memory."""
    name = contraction.info.name
    total = contraction.info.writes[0].buffer.dtype
    sides = ((contraction.lhs_value, contraction.lhs), (contraction.rhs_value, contraction.rhs))
    types = {load.buffer.dtype for _, load in sides}
    if len(types) != 1 or (*types, total) not in WGMMA_OPERANDS:
        raise ScheduleError(f"block {name}: wgmma has no product of {' and '.join(map(str, types))} in {total}")
    if any(narrowed(value, load.buffer.dtype.name) is None for value, load in sides):
        raise ScheduleError(f"block {name}: an operand is computed where it is read")
    if not contraction.columns:
        raise ScheduleError(f"block {name} is no product of matrices")
    return types.pop()


def _tile(schedule: Schedule, name: str, before: list[str], after: list[str], device: DeviceFacts) -> str:
    contraction = contraction_of(schedule, name)
    dtype = check_operands(contraction)
    axes, tile = _axes(schedule, contraction, device)
    copies = stage_operands(schedule, contraction)
    inline_before(schedule, before)
    if _joined_sizes(axes.rows):
        _read_on(schedule, copies[0], contraction_of(schedule, name).lhs, axes)
    result, copies = pad_to_tiles(schedule, name, axes, copies)
    final = last_block(schedule, name, result, after)
    loops = loops_by_axis(schedule, name, final)
    lies = [_lies_along_terms(schedule, name, copy, axes) for copy in copies]
    joined = _join(schedule, name, copies, axes)
    order = "".join(_lay_out(schedule, name, copy, joined, along) for copy, along in zip(copies, lies, strict=True))
    schedule.set_scope(block_info(schedule, name).written_buffers[0].name, "fragment")
    place, final_tile = bind_blocks(schedule, final, axes, loops, PAIR, _is_symbolic(contraction), device)
    schedule.compute_at(name, place)
    instruction = wgmma_name(tile[1], dtype, "shared", order)
    is_numbered = joined is axes
    stage, calls = tile_group_sum(schedule, name, joined, place, instruction, order, is_numbered)
    for copy, parts, along in zip(copies, (axes.rows, axes.columns), lies, strict=True):
        fetch_boxes(schedule, copy, stage, along, list(_joined_sizes(parts).values()))
    store_group_tile(schedule, axes, final_tile, is_numbered)
    if any(schedule.block(each).where is not TRUE for each in (name, *copies)):
        raise ScheduleError(f"block {name}: tiles are not known to be of blocks that there are")
    schedule.annotate_loop(stage, "pipeline", _stages_at_once(schedule, name, tile, device))
    for loop, intrinsic in calls:  # no other step knows what an instruction touches
        schedule.tensorize(loop, intrinsic)
    return "warpgroup contraction"


# -- sizes


def _axes(schedule: Schedule, contraction: Contraction, device: DeviceFacts) -> tuple[TiledAxes, tuple[int, int]]:
    """Ask for the size of a tile."""
    sizes, name = sizes_of(contraction), contraction.info.name
    options = _tiles_for(contraction)
    tile = schedule.choose(name, "tile", options, _usual_tile(options, sizes, device), ordered=False)

    def tiled(axes: tuple[Var, ...], load: Load, size: int) -> dict[Var, tuple[int, int]]:
        parts = tile_of(extents_along(contraction, axes), size, _least_part(axes, load))
        return {axis: (part, part) for axis, part in zip(axes, parts, strict=True)}

    rows, columns = tile
    *others, last = terms_of(contraction, STEP)
    along = tiled(contraction.rows, contraction.lhs, rows), tiled(contraction.columns, contraction.rhs, columns)
    return TiledAxes(contraction.batch, *along, dict.fromkeys(others, 1) | {last: DEPTH}, _blocking(tile)), tile


def _least_part(axes: tuple[Var, ...], load: Load) -> int:
    """How far a tile goes along the last axis at least: a row of a box, where an operand lies along it."""
    return SWIZZLED_COLUMNS if load.indices and axes[-1] in variables(load.indices[-1]) else 1


def _waste(extents: Sequence[int | None], parts: list[int]) -> float:
    """How many times as many elements as there are tiles have, along known axes."""
    return prod(-(-extent // part) * part / max(extent, 1) for extent, part in zip(extents, parts, strict=True) if extent is not None)


def _tiles_for(contraction: Contraction) -> list[tuple[int, int]]:
    """Those that a product may have; ScheduleError where there are none."""
    name = contraction.info.name
    *others, terms = extents_along(contraction, terms_of(contraction, STEP))
    if prod(extent or LEAST_TERMS for extent in others) * -(-(terms or LEAST_TERMS) // DEPTH) < LEAST_TERMS // DEPTH:
        raise ScheduleError(f"block {name}: sums of {terms} terms are no pipeline")
    if others and not _are_filled(DEPTH, [terms], 1):
        raise ScheduleError(f"block {name}: stages of {DEPTH} terms are mostly empty along an axis of {terms}")
    sides = ((contraction.rows, contraction.lhs), (contraction.columns, contraction.rhs))
    along = [(extents_along(contraction, axes), _least_part(axes, load)) for axes, load in sides]
    options = [tile for tile in TILES if all(_are_filled(size, *each) for size, each in zip(tile, along, strict=True))]
    if not options:
        raise ScheduleError(f"block {name} is smaller than tiles of warpgroups")
    return options


def _usual_tile(options: list[tuple[int, int]], sizes: Extents, device: DeviceFacts) -> tuple[int, int]:
    """The one of least time; of equals the largest."""
    return min(options, key=lambda tile: (_cycles(tile, sizes, device), -tile[0] * tile[1]))


def is_filled(size: int, extent: int | None) -> bool:
    """Whether tiles of this size are three quarters full; of the smallest, the first one."""
    tiles = 1 if size == GROUP_ROWS else -(-(extent or 1) // size)
    return extent is None or 4 * extent >= 3 * size * tiles


def _are_filled(size: int, extents: list[int | None], least: int) -> bool:
    """The same of tiles that are one over several axes, the smallest of which may be as empty as makes up for twice the rate of other
    instructions."""
    parts = tile_of(extents, size, least)
    if parts[-1] == size:
        return is_filled(size, extents[-1])
    return _waste(extents, parts) <= (MOST_WASTE if size == GROUP_ROWS else 4 / 3)


def _cycles(tile: tuple[int, int], sizes: Extents, device: DeviceFacts) -> float:
    """Of the whole product on the busiest processor, by a simple model: it multiplies, and fetches from the second-level cache, at once;
    instructions on 64 columns also read shared memory as fast as they can."""
    rows, columns = tile
    blocks = sizes.batch * -(-sizes.rows // rows) * -(-sizes.columns // columns)
    per_processor, steps = -(-blocks // device.processors), -(-max(sizes.depth, 1) // DEPTH)
    together = min(_most_stages(tile, device) // USUAL_STAGES or 1, per_processor)
    multiply = 2 * rows * columns * DEPTH / dict(device.tensor_flops_per_cycle)["f16"]
    read = rows // GROUP_ROWS * (GROUP_ROWS + columns) * DEPTH * BYTES / SHARED_BYTES_PER_CYCLE
    fetch = (rows + columns) * DEPTH * BYTES / CACHE_BYTES_PER_CYCLE
    return per_processor * steps * max(multiply, read, fetch) + -(-per_processor // together) * START_CYCLES


def _most_stages(tile: tuple[int, int], device: DeviceFacts) -> int:
    """How many stages shared memory holds; what is left is for barriers."""
    return (device.max_shared_bytes_per_block - BOX_ALIGNMENT) // (sum(tile) * DEPTH * BYTES)


def _stages_at_once(schedule: Schedule, name: str, tile: tuple[int, int], device: DeviceFacts) -> int:
    """Ask how many stages shared memory has at once."""
    options = [count for count in range(2, MOST_STAGES + 1) if count <= _most_stages(tile, device)]
    return schedule.choose(name, "stages_at_once", options, min(USUAL_STAGES, max(options)))


def _is_symbolic(contraction: Contraction) -> bool:
    return not all(isinstance(axis.extent, Const) for axis in contraction.info.block.axes)


# -- operands


def _lies_along_terms(schedule: Schedule, name: str, copy: str, axes: TiledAxes) -> bool:
    """Whether terms, or else rows or columns, of what is copied lie side by side; ScheduleError where a tile of it is no box."""
    info = block_info(schedule, copy)
    (buffer,) = info.written_buffers
    (load,) = block_info(schedule, name).reads_of(buffer)
    own, depth = list(axes.rows if list(axes.rows)[-1] in load.indices else axes.columns)[-1], list(axes.depth)[-1]
    sizes = _tile_sizes(load, info, axes)
    steps = _steps(schedule, info, sizes)
    if own not in load.indices or depth not in load.indices or not steps:
        raise ScheduleError(f"{buffer.name} is no matrix of {own.name} and {depth.name} in memory")
    _check_boxes(buffer, steps)
    found = [axis for axis, at in zip(load.indices, info.writes[0].indices, strict=True) if at in steps[-1]]
    if found not in ([own], [depth]):
        raise ScheduleError(f"{buffer.name}: neither {own.name} nor {depth.name} is what lies side by side in memory")
    return found == [depth]


def lay_out_boxes(schedule: Schedule, name: str, copy: str, axes: TiledAxes) -> str:
    """Lay a copy out in the order of memory; what the order is called: "n" or "t". ScheduleError where boxes do not bring it."""
    return _lay_out(schedule, name, copy, axes, _lies_along_terms(schedule, name, copy, axes))


def _lay_out(schedule: Schedule, name: str, copy: str, axes: TiledAxes, is_along_depth: bool) -> str:
    """Lay a copy out in the order of memory; what the order is called: "n" or "t"."""
    (buffer,) = block_info(schedule, copy).written_buffers
    (load,) = block_info(schedule, name).reads_of(buffer)
    is_left = list(axes.rows)[-1] in load.indices
    own, depth = list(axes.rows if is_left else axes.columns)[-1], list(axes.depth)[-1]
    names = [f"a{k}" for k in range(len(load.indices))]
    last = [names[load.indices.index(axis)] for axis in ((own, depth) if is_along_depth else (depth, own))]
    order = [*(each for each in names if each not in last), *last]
    if order != names:
        schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join(order)}")
    return "n" if is_along_depth == is_left else "t"


def _tile_sizes(load: Load, info: BlockInfo, axes: TiledAxes) -> dict[Expr, int]:
    """How far a tile goes along each index of a copy, which a product loads from."""
    sizes: dict[Expr, int] = {axis: size for axis, (size, _) in (axes.rows | axes.columns).items()} | axes.depth  # type: ignore[assignment]
    return {index: sizes.get(axis, 1) for index, axis in zip(info.writes[0].indices, load.indices, strict=True)}


def _check_boxes(buffer: Buffer, steps: list[dict[Expr, Expr]]) -> None:
    """ScheduleError unless a tile is a box of what is copied, each index of which moves by these steps."""
    moving = [axis for step in steps for axis in step]
    if len(moving) != len({*moving}) or any(len(step) > 1 or any(by != const(1) for by in step.values()) for step in steps):
        raise ScheduleError(f"{buffer.name}: what a tile takes is no box, but elements apart")


def _steps(schedule: Schedule, info: BlockInfo, sizes: dict[Expr, int]) -> list[dict[Expr, Expr]]:
    """How each index of what is copied moves with the indices of the copy within a tile; nothing where boxes do not bring it."""
    facts = facts_at(schedule.func, find_block(schedule.func, info.name))
    inside = {axis: Var(f"{axis}i", i64) for axis, size in sizes.items() if size > 1}
    for axis, var in inside.items():
        facts = facts.with_range(var, const(sizes[axis]))
    moved: dict[Node, Node] = {axis: Var(f"{axis}o", i64) * sizes[axis] + var for axis, var in inside.items()}
    view = boxed_view(substitute(info.writes[0].value, moved), [*inside.values()], facts)
    forms = [linear_coefficients(simplify(index, facts), [*inside.values()]) for index in view.indices] if view else [None]
    axes = {var: axis for axis, var in inside.items()}
    return [] if None in forms else [{axes[var]: by for var, by in form[0].items()} for form in forms if form is not None]


def _read_on(schedule: Schedule, copy: str, load: Load, axes: TiledAxes) -> None:
    """Copy as many rows as tiles have: what is next in memory, as boxes bring it."""
    for place, axis in enumerate(load.indices):
        if axis in axes.rows and axes.rows[axis][0] > 1:
            schedule.read_on(copy, place, axes.rows[axis][0])


def fetch_boxes(schedule: Schedule, copy: str, loop: str, is_one: bool, parts: Sequence[int] = ()) -> None:
    """Copy what an iteration of a loop needs by boxes: by the block, no thread of which has a part of its own. `is_one`: rows of a
    tile have 128 bytes as they are, and are not cut in several of that length. `parts`: of a tile's rows along several axes."""
    schedule.compute_at(copy, loop)
    info, loops = block_info(schedule, copy), loops_inside(schedule, copy, loop)
    (buffer,) = info.written_buffers
    rows, columns = (loop for axis in info.writes[0].indices[-2:] for loop in driving_loops(info, loops, (axis,)))  # type: ignore[arg-type]
    schedule.reorder(*(loop for loop in loops if loop not in (rows, columns)), rows, columns)
    if is_one:
        if parts:
            schedule.split(rows, parts)
        return
    wide, column = schedule.split(columns, (None, SWIZZLED_COLUMNS))
    schedule.reorder(wide, rows, column)
    names = [f"a{k}" for k in range(len(buffer.shape))]
    cut = f"{names[-1]} // {SWIZZLED_COLUMNS}, {names[-2]}, {names[-1]} % {SWIZZLED_COLUMNS}"
    schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join([*names[:-2], cut])}")


# -- a group's sums


def tile_group_sum(
    schedule: Schedule, name: str, axes: TiledAxes, place: str, instruction: str, order: str, is_numbered: bool = True
) -> tuple[str, list[Call]]:
    """Cut the sum in stages and among groups; the loop over stages, and the instructions. `is_numbered`: one group has a number, too."""
    by_axis, stages, steps = cut_in_stages(schedule, name, axes, place)
    inner = (STEP,) if list(axes.depth.values())[-1] <= SWIZZLED_COLUMNS else (SWIZZLED_COLUMNS // STEP, STEP)
    *last, term = schedule.split(steps.pop(), (None, *inner))
    steps = [*steps, *last]
    *single_rows, row = [loop for axis in axes.rows for loop in by_axis[axis]]
    *single_columns, column = [loop for axis in axes.columns for loop in by_axis[axis]]
    group, row = schedule.split(row, (None, GROUP_ROWS))
    columns, width = [column], list(axes.columns.values())[-1][0]
    if order[1] == "n" and width > SWIZZLED_COLUMNS:
        columns = list(schedule.split(column, (None, SWIZZLED_COLUMNS)))
    single = [*(loop for axis in axes.batch for loop in by_axis[axis]), *single_rows, *single_columns]
    ordered = [*single, *stages, group, *steps, row, *columns, term]
    below = schedule.loops_of(name)[schedule.loops_of(name).index(place) + 1 :]
    schedule.reorder(*(loop for loop in below if loop not in ordered), *ordered)  # loops of one iteration over axes of no role come first
    stage = stages[0] if len(stages) == 1 else schedule.fuse(*stages)
    _bind_groups(schedule, group, is_numbered)
    for loop in steps:
        schedule.unroll(loop)
    start = schedule.decompose_reduction(name, stage)
    zero = schedule.loops_of(start)[-1 - len(columns) :]
    if len(columns) > 1:
        schedule.fuse(*zero[1:])
    return stage, [(row, instruction), (zero[0], fragment_name("zero", "sums", (GROUP_ROWS, width), f32))]


def _bind_groups(schedule: Schedule, loop: str, is_numbered: bool) -> None:
    """A group for each iteration."""
    if is_numbered or extent_value(schedule, loop) != 1:
        schedule.bind(loop, "thread.y")


# -- several axes as one


def _joined_sizes(tile: dict[Var, tuple[int, int]]) -> dict[Var, int]:
    """The axes that a tile is one over, and how far it goes along each; nothing where it goes along one."""
    sizes = {axis: size for axis, (size, _) in tile.items() if size > 1}
    return sizes if len(sizes) > 1 else {}


def _join(schedule: Schedule, name: str, copies: list[str], axes: TiledAxes) -> TiledAxes:
    """Let rows, and columns, of a tile be one axis of the product, of the copies of its operands and of its sums; the axes then."""
    sides = [_joined_sizes(axes.rows), _joined_sizes(axes.columns)]
    if not any(sides):
        return axes
    info = block_info(schedule, name)
    loads = [info.reads_of(block_info(schedule, copy).written_buffers[0])[0] for copy in copies]
    for copy, load, sizes in zip(copies, loads, sides, strict=True):
        if sizes:
            schedule.tile_axes(copy, [load.indices.index(axis) for axis in sizes], [*sizes.values()])
    columns = _join_axes(schedule, name, axes.columns, sides[1])
    rows = _join_axes(schedule, name, axes.rows, sides[0])
    for load, sizes in zip(loads, sides, strict=True):
        if sizes:
            _join_dims(schedule, load, [sizes])
    _join_dims(schedule, info.writes[0], [sizes or [list(tile)[-1]] for sizes, tile in zip(sides, (axes.rows, axes.columns), strict=True)])
    return replace(axes, rows=rows, columns=columns)


def _join_axes(schedule: Schedule, name: str, tile: dict[Var, tuple[int, int]], sizes: dict[Var, int]) -> dict[Var, tuple[int, int]]:
    """Let a product have one axis for the elements of tiles along several, behind those that number tiles; the tile along all axes then."""
    if not sizes:
        return tile
    axes = [axis.var for axis in block_info(schedule, name).block.axes]
    schedule.tile_axes(name, [axes.index(axis) for axis in sizes], [*sizes.values()])
    *outer, own = [axis.var for axis in block_info(schedule, name).block.axes[: len(sizes) + 1]]
    single = dict.fromkeys([*(axis for axis in tile if axis not in sizes), *outer], (1, 1))
    return single | {own: (prod(sizes.values()), prod(sizes.values()))}


def _join_dims(schedule: Schedule, access: Load | Store, groups: Sequence[dict[Var, int] | list[Var]]) -> None:
    """Let the last dims of a buffer be those of `groups`: of tiles over several of its indices, or of one index as it is."""
    names = {index: f"a{k}" for k, index in enumerate(access.indices)}
    tail = [[f"{names[axis]} % {group[axis]}" if isinstance(group, dict) else names[axis] for axis in group] for group in groups]
    cut = {axis: size for group in groups if isinstance(group, dict) for axis, size in group.items()}
    whole = {axis for group in groups if not isinstance(group, dict) for axis in group}
    head = [f"{each} // {cut[index]}" if index in cut else each for index, each in names.items() if index not in whole]
    buffer = access.buffer.name
    schedule.transform_layout(buffer, f"{', '.join(names.values())} -> {', '.join([*head, *(part for parts in tail for part in parts)])}")
    dims = [*(("head", k) for k in range(len(head))), *(("tail", k) for k, parts in enumerate(tail) for _ in parts)]
    for k, parts in enumerate(tail):
        if len(parts) > 1:
            schedule.merge_dims(buffer, [at for at, each in enumerate(dims) if each == ("tail", k)])
            dims = [("tail", k), *(each for each in dims if each != ("tail", k))]
    order = [dims.index(each) for each in sorted(dims)]
    if order != [*range(len(dims))]:
        schedule.transform_layout(buffer, f"{', '.join(f'a{k}' for k in range(len(dims)))} -> {', '.join(f'a{k}' for k in order)}")


# -- results


def store_group_tile(schedule: Schedule, axes: TiledAxes, tile: FinalTile, is_numbered: bool = True) -> None:
    """Let each thread store what is made of the sums that it holds, as fragments of sums are: pairs of columns of two rows."""
    tiles = [(axes.rows, tile.rows), (axes.columns, tile.columns)]
    rows, columns = ([loops[axis] for axis in _joined_sizes(sizes) or [list(sizes)[-1]]] for sizes, loops in tiles)
    others = [loop for _, loops in tiles for loop in loops.values() if loop not in (*rows, *columns)]
    schedule.reorder(*others, *rows, *columns, *([tile.vector] if tile.vector else []))
    row, column = (loops[0] if len(loops) == 1 else schedule.fuse(*loops) for loops in (rows, columns))
    group, warp, half, low = schedule.split(row, (None, 4, 2, 8))
    if tile.vector is None:
        wide, quad, pair = schedule.split(column, (None, 4, PAIR))
    else:
        (wide, quad), pair = schedule.split(column, (None, 4)), tile.vector
    schedule.reorder(group, warp, low, quad, wide, half, pair)
    _bind_groups(schedule, group, is_numbered)
    schedule.bind(schedule.fuse(warp, low, quad), "thread.x")
    for loop in (wide, half, *(() if tile.vector else (pair,))):
        schedule.unroll(loop)
    if tile.vector:
        schedule.vectorize(pair)
