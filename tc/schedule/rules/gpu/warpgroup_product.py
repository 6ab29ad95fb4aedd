"""Sums of products on the instructions of warpgroups, whose operands come to shared memory by copies of boxes (wgmma and TMA).

A block of threads is so many groups of four warps: `thread.y` counts groups, `thread.x` their 128 threads. A stage of both operands is
copied by the block as a whole, in boxes whose rows have 128 bytes; each group multiplies 64 rows of it with all columns, and keeps the
sums in registers. Who begins the copies, and who waits for what, is decided where the loop over stages is pipelined (`pipeline_loops`).
Source: the warp-specialised kernels of CUTLASS (NVIDIA).
"""

from __future__ import annotations

from collections.abc import Sequence

from tc.errors import ScheduleError
from tc.ir.box_copies import BOX_ALIGNMENT
from tc.ir.boxes import boxed_source
from tc.ir.dtype import DType, f32
from tc.ir.expr import Const, Expr, Var, const
from tc.ir.nvidia_intrinsics import SWIZZLED_COLUMNS, WGMMA_OPERANDS, fragment_name, wgmma_name
from tc.ir.polynomial import linear_coefficients
from tc.schedule.analysis import BlockInfo, Contraction
from tc.schedule.cache import narrowed
from tc.schedule.rules.common import loops_inside
from tc.schedule.rules.epilogue import block_info, contraction_of, driving_loops
from tc.schedule.rules.gpu.blocking import SHARED_BYTES_PER_CYCLE, Blocking, Extents
from tc.schedule.rules.gpu.matrix_blocking import CACHE_BYTES_PER_CYCLE, START_CYCLES
from tc.schedule.rules.gpu.matrix_product import Call
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
    if len(contraction.depth) != 1 or not contraction.columns:
        raise ScheduleError(f"block {name} is no product of matrices")
    return types.pop()


def _tile(schedule: Schedule, name: str, before: list[str], after: list[str], device: DeviceFacts) -> str:
    contraction = contraction_of(schedule, name)
    dtype = check_operands(contraction)
    axes, tile = _axes(schedule, contraction, device)
    result, copies = pad_to_tiles(schedule, name, axes, stage_operands(schedule, contraction))
    inline_before(schedule, before)
    final = last_block(schedule, name, result, after)
    loops = loops_by_axis(schedule, name, final)
    order = "".join(lay_out_boxes(schedule, name, copy, axes) for copy in copies)
    schedule.set_scope(block_info(schedule, name).written_buffers[0].name, "fragment")
    place, final_tile = bind_blocks(schedule, final, axes, loops, PAIR, _is_symbolic(contraction), device)
    schedule.compute_at(name, place)
    stage, calls = tile_group_sum(schedule, name, axes, place, wgmma_name(tile[1], dtype, "shared", order), order)
    for copy, turned, along_depth in zip(copies, order, "nt", strict=True):
        fetch_boxes(schedule, copy, stage, turned == along_depth)
    store_group_tile(schedule, axes, final_tile)
    schedule.annotate_loop(stage, "pipeline", _stages_at_once(schedule, name, tile, device))
    for loop, intrinsic in calls:  # no other step knows what an instruction touches
        schedule.tensorize(loop, intrinsic)
    return "warpgroup contraction"


# -- sizes


def _axes(schedule: Schedule, contraction: Contraction, device: DeviceFacts) -> tuple[TiledAxes, tuple[int, int]]:
    """Ask for the size of a tile."""
    sizes, name = sizes_of(contraction), contraction.info.name
    (depth,) = contraction.depth
    options = _tiles_for(contraction)
    tile = schedule.choose(name, "tile", options, _usual_tile(options, sizes, device), ordered=False)

    def tiled(axes: tuple[Var, ...], size: int, group: int) -> dict[Var, tuple[int, int]]:
        return {axis: (size, group) if axis is axes[-1] else (1, 1) for axis in axes}

    rows, columns = tile
    along = tiled(contraction.rows, rows, GROUP_ROWS), tiled(contraction.columns, columns, columns)
    return TiledAxes(contraction.batch, *along, {depth: DEPTH}, _blocking(tile)), tile


def _tiles_for(contraction: Contraction) -> list[tuple[int, int]]:
    """Those that a product may have; ScheduleError where there are none."""
    name, (depth,) = contraction.info.name, contraction.depth
    terms, *long = extents_along(contraction, (depth, contraction.rows[-1], contraction.columns[-1]))
    if (terms or LEAST_TERMS) < LEAST_TERMS:
        raise ScheduleError(f"block {name}: sums of {terms} terms are no pipeline")
    options = [tile for tile in TILES if all(map(is_filled, tile, long))]
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


def lay_out_boxes(schedule: Schedule, name: str, copy: str, axes: TiledAxes) -> str:
    """Lay a copy out in the order of memory; what the order is called: "n" or "t"."""
    info = block_info(schedule, copy)
    (buffer,) = info.written_buffers
    (load,) = block_info(schedule, name).reads_of(buffer)
    is_left = list(axes.rows)[-1] in load.indices
    own, depth = list(axes.rows if is_left else axes.columns)[-1], list(axes.depth)[-1]
    if own not in load.indices or depth not in load.indices:
        raise ScheduleError(f"{buffer.name} is no matrix of {own.name} and {depth.name} in memory")
    places = [load.indices.index(own), load.indices.index(depth)]
    names = [f"a{k}" for k in range(len(load.indices))]
    at_own, at_depth = (names[place] for place in places)
    others = [each for each in names if each not in (at_own, at_depth)]
    store = info.writes[0].indices
    steps = _steps(schedule, info, [store[place] for place in places])
    if not steps:
        raise ScheduleError(f"{buffer.name} is no matrix of {own.name} and {depth.name} in memory")
    side_by_side = [axis for axis, by in steps[-1].items() if by is const(1)]
    is_along_depth = store[places[1]] in side_by_side
    if not is_along_depth and store[places[0]] not in side_by_side:
        raise ScheduleError(f"{buffer.name}: neither {own.name} nor {depth.name} is what lies side by side in memory")
    order = [*others, *((at_own, at_depth) if is_along_depth else (at_depth, at_own))]
    if order != names:
        schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join(order)}")
    return "n" if is_along_depth == is_left else "t"


def _steps(schedule: Schedule, info: BlockInfo, matrix: Sequence[Expr]) -> list[dict[Var, Expr]]:
    """How each index of what is copied moves with the two of the copy that are a matrix; nothing where boxes do not bring it, or one of
    them is in two."""
    load = boxed_source(info.writes[0].value, facts_at(schedule.func, find_block(schedule.func, info.name)))
    if load is None:
        return []
    axes = [index for index in matrix if isinstance(index, Var)]
    steps = [form[0] for index in load.indices if (form := linear_coefficients(index, axes)) is not None]
    moving = [axis for step in steps for axis in step]
    return steps if len(steps) == len(load.indices) and len({*moving}) == len(moving) else []


def fetch_boxes(schedule: Schedule, copy: str, loop: str, is_one: bool) -> None:
    """Copy what an iteration of a loop needs by boxes: by the block, no thread of which has a part of its own. `is_one`: rows of a
    tile have 128 bytes as they are, and are not cut in several of that length."""
    schedule.compute_at(copy, loop)
    if is_one:
        return
    info, inside = block_info(schedule, copy), loops_inside(schedule, copy, loop)
    axes = [index for index in info.writes[0].indices[-2:] if isinstance(index, Var)]
    rows, columns = (driving_loops(info, inside, (axis,))[0] for axis in axes)
    (buffer,) = info.written_buffers
    wide, column = schedule.split(columns, (None, SWIZZLED_COLUMNS))
    schedule.reorder(wide, rows, column)
    names = [f"a{k}" for k in range(len(buffer.shape))]
    cut = f"{names[-1]} // {SWIZZLED_COLUMNS}, {names[-2]}, {names[-1]} % {SWIZZLED_COLUMNS}"
    schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join([*names[:-2], cut])}")


# -- a group's sums


def tile_group_sum(
    schedule: Schedule, name: str, axes: TiledAxes, place: str, instruction: str, order: str
) -> tuple[str, list[Call]]:
    """Cut the sum in stages and among groups; the loop over stages, and the instructions."""
    by_axis, (stage,), (step,) = cut_in_stages(schedule, name, axes, place)
    inner = (STEP,) if list(axes.depth.values())[-1] <= SWIZZLED_COLUMNS else (SWIZZLED_COLUMNS // STEP, STEP)
    *steps, term = schedule.split(step, (None, *inner))
    *single_rows, row = [loop for axis in axes.rows for loop in by_axis[axis]]
    *single_columns, column = [loop for axis in axes.columns for loop in by_axis[axis]]
    group, row = schedule.split(row, (None, GROUP_ROWS))
    columns = [column]
    if order[1] == "n" and list(axes.columns.values())[-1][0] > SWIZZLED_COLUMNS:
        columns = list(schedule.split(column, (None, SWIZZLED_COLUMNS)))
    single = [*(loop for axis in axes.batch for loop in by_axis[axis]), *single_rows, *single_columns]
    schedule.reorder(*single, stage, group, *steps, row, *columns, term)
    schedule.bind(group, "thread.y")
    for step in steps:
        schedule.unroll(step)
    start = schedule.decompose_reduction(name, stage)
    zero = schedule.loops_of(start)[-1 - len(columns) :]
    if len(columns) > 1:
        schedule.fuse(*zero[1:])
    shape = GROUP_ROWS, list(axes.columns.values())[-1][0]
    return stage, [(row, instruction), (zero[0], fragment_name("zero", "sums", shape, f32))]


# -- results


def store_group_tile(schedule: Schedule, axes: TiledAxes, tile: FinalTile) -> None:
    """Let each thread store what is made of the sums that it holds, as fragments of sums are: pairs of columns of two rows."""
    row, column = tile.rows[list(axes.rows)[-1]], tile.columns[list(axes.columns)[-1]]
    group, warp, half, low = schedule.split(row, (None, 4, 2, 8))
    if tile.vector is None:
        wide, quad, pair = schedule.split(column, (None, 4, PAIR))
    else:
        (wide, quad), pair = schedule.split(column, (None, 4)), tile.vector
    others = [loop for loop in (*tile.rows.values(), *tile.columns.values()) if loop not in (row, column)]
    schedule.reorder(*others, group, warp, low, quad, wide, half, pair)
    schedule.bind(group, "thread.y")
    schedule.bind(schedule.fuse(warp, low, quad), "thread.x")
    for loop in (wide, half, *(() if tile.vector else (pair,))):
        schedule.unroll(loop)
    if tile.vector:
        schedule.vectorize(pair)
