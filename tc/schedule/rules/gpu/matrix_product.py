"""Sums of products on the matrix instructions of devices: tiles of blocks in shared memory, of warps in fragments.

A block is so many warps of 32 lanes: `thread.y` counts warps, `thread.x` lanes. Stages of both operands are fetched as for other products;
each warp loads what it needs of them for one step into fragments, and adds products of fragments to its sums, which stay in registers.
What follows the sum is computed by the lanes on the elements that they hold, and stored from there.
Source: the tiling of CUTLASS (NVIDIA); fragments that are buffers with a layout, as in Triton.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tc.errors import ScheduleError
from tc.ir.dtype import DType, f32
from tc.ir.expr import Const, Var
from tc.ir.intrinsic import INTRINSICS
from tc.ir.loop import LoopKind
from tc.ir.nvidia_intrinsics import MMA_OPERANDS, fragment_name, ldmatrix_name, mma_name
from tc.ir.polynomial import linear_coefficients
from tc.ir.uses import variables
from tc.schedule.analysis import Contraction
from tc.schedule.cache import narrowed
from tc.schedule.rules.common import extent_value, known_product, loads_of, loops_inside
from tc.schedule.rules.epilogue import block_info, contraction_of
from tc.schedule.rules.gpu.blocking import innermost, stage_of, tile_of
from tc.schedule.rules.gpu.matrix_blocking import (
    DEPTHS,
    SEARCHED_TILES,
    USUAL_DEPTH,
    USUAL_STAGES,
    best_matrix_tile,
    blocking_of,
    matrix_tiles,
    stage_counts,
)
from tc.schedule.rules.gpu.product import (
    FinalTile,
    TiledAxes,
    bind_blocks,
    cut_in_stages,
    extents_along,
    fetch_tile,
    inline_before,
    last_block,
    loops_by_axis,
    pad_to_tiles,
    sizes_of,
    stage_operands,
    tile_contraction,
)
from tc.schedule.step import Schedule
from tc.schedule.tree import find_loop
from tc.target import Target
from tc.target.device import DeviceFacts

ROWS, COLUMNS = 16, 8
"""Of the sums of one instruction."""

PAIR = 2
"""Neighbouring sums of a lane."""

EVEN_ROWS = 64
"""Rows of which there is a whole number along an axis where tiles need not run on across its end."""

Call = tuple[str, str]
"""A loop, and the instruction that does what it does."""


@dataclass(frozen=True)
class MatrixInstruction:
    """A product of fragments: terms of one instruction, types of its operands and of its sums."""

    depth: int
    lhs: DType
    rhs: DType

    def name(self, order: str) -> str:
        return mma_name(self.depth, self.lhs, self.rhs, order)


def schedule_matrix_contraction(schedule: Schedule, target: Target) -> str | None:
    """Tile the one contraction of a program for the device's matrix instructions; None where it has none for it."""
    return tile_contraction(schedule, target, _tiled)


def _tiled(schedule: Schedule, name: str, before: list[str], after: list[str], device: DeviceFacts) -> str:
    """Tile a product; ScheduleError before anything is asked where that is not possible, as then it is not whatever the answers are."""
    contraction = contraction_of(schedule, name)
    if _is_symbolic(contraction) or _rows_to_fuse(contraction):
        _tile(Schedule(schedule.func), name, before, after, device)
    return _tile(schedule, name, before, after, device)


def _tile(schedule: Schedule, name: str, before: list[str], after: list[str], device: DeviceFacts) -> str:
    contraction = contraction_of(schedule, name)
    instruction = instruction_for(contraction, device)
    copies = stage_operands(schedule, contraction)
    rows = _rows_to_fuse(contraction)
    if rows:
        contraction, after = _with_one_row_axis(schedule, contraction, rows, copies[0], after)
    axes = _axes(schedule, contraction, instruction, device)
    result, copies = pad_to_tiles(schedule, name, axes, copies)
    inline_before(schedule, before)
    final = last_block(schedule, name, result, after)
    if rows:
        _fuse_final(schedule, name, final)
    loops = loops_by_axis(schedule, name, final)
    order = "".join(lay_out_matrix(schedule, name, copy, axes, instruction) for copy in copies)
    fragments = [schedule.cache_read(name, block_info(schedule, copy).written_buffers[0].name, "fragment") for copy in copies]
    schedule.set_scope(block_info(schedule, name).written_buffers[0].name, "fragment")
    place, tile = bind_blocks(schedule, final, axes, loops, PAIR, _is_symbolic(contraction), device)
    schedule.compute_at(name, place)
    stage, step, calls = tile_matrix_sum(schedule, name, axes, place, instruction, order)
    for side, fragment, turned in zip(("lhs", "rhs"), fragments, order, strict=True):
        calls.append(load_matrix_fragment(schedule, fragment, step, f"{side}.{turned}", instruction))
    for copy in copies:
        fetch_tile(schedule, copy, stage, axes)
        unroll_fetch(schedule, copy, stage)
    store_matrix_tile(schedule, axes, tile)
    ahead = _stages_at_once(schedule, name, contraction, axes, device)
    if ahead > 1:
        schedule.annotate_loop(stage, "pipeline", ahead)
    for loop, intrinsic in calls:  # no other step knows what an instruction touches
        schedule.tensorize(loop, intrinsic)
    return "matrix contraction"


# -- the instruction, and sizes


def instruction_for(contraction: Contraction, device: DeviceFacts) -> MatrixInstruction:
    """The deepest that the device has for the operands and sums; ScheduleError where there is none."""
    total = contraction.info.writes[0].buffer.dtype
    sides = ((contraction.lhs_value, contraction.lhs), (contraction.rhs_value, contraction.rhs))
    types = [load.buffer.dtype for _, load in sides]
    kept = all(narrowed(value, load.buffer.dtype.name) is not None for value, load in sides)
    found = [
        each
        for depth, lhs, rhs, sums, _ in MMA_OPERANDS
        if kept and [lhs, rhs, sums] == [*types, total] and lhs is not f32
        if INTRINSICS[(each := MatrixInstruction(depth, lhs, rhs)).name("nn")].is_there(device.features)
    ]
    if not found:
        what = f"{types[0]} x {types[1]} in {total}"
        raise ScheduleError(f"block {contraction.info.name}: {device.arch} has no matrix instruction for {what}")
    return max(found, key=lambda each: each.depth)


def _axes(schedule: Schedule, contraction: Contraction, instruction: MatrixInstruction, device: DeviceFacts) -> TiledAxes:
    """Ask for the sizes of tiles."""
    sizes, name = sizes_of(contraction), contraction.info.name
    options = matrix_tiles(sizes, device)
    if not options or not contraction.columns:
        raise ScheduleError(f"block {name} is smaller than tiles of matrix instructions")
    usual, searched = best_matrix_tile(options, sizes, device, instruction.lhs), matrix_tiles(sizes, device, SEARCHED_TILES)
    rows, columns, warp_rows, warp_columns = tile = schedule.choose(name, "tile", searched, usual, ordered=False)
    depths = [depth for depth in DEPTHS if depth >= instruction.depth]
    blocking = blocking_of(tile, schedule.choose(name, "stage", depths, USUAL_DEPTH))
    depth = blocking.depth
    if not stage_counts(blocking, sizes, device):
        raise ScheduleError(f"block {name}: stages of {depth} terms are more than shared memory holds")

    def tiled(axes: tuple[Var, ...], size: int, warp: int, least: int) -> dict[Var, tuple[int, int]]:
        tile = tile_of(extents_along(contraction, axes), size, least)
        parts = innermost(tile, warp)
        if parts[-1] < least:
            raise ScheduleError(f"block {name}: the last axis of a tile has {parts[-1]} elements, matrix instructions take {least}")
        return dict(zip(axes, zip(tile, parts, strict=True), strict=True))

    terms = terms_of(contraction, instruction.depth)
    stage = stage_of(extents_along(contraction, terms), depth)
    stage[-1] = -(-stage[-1] // instruction.depth) * instruction.depth
    return TiledAxes(
        contraction.batch,
        tiled(contraction.rows, rows, warp_rows, ROWS),
        tiled(contraction.columns, columns, warp_columns, 2 * COLUMNS),
        dict(zip(terms, stage, strict=True)),
        blocking,
    )


def terms_of(contraction: Contraction, depth: int) -> tuple[Var, ...]:
    """The axes of the sum, last the one along which an instruction adds `depth` terms: one that is long enough, if any is, along which an
    operand lies in memory, if any does."""

    def worth(axis: Var) -> tuple[bool, bool, int]:
        (extent,) = extents_along(contraction, [axis])
        lies = any(load.indices and axis in variables(load.indices[-1]) for load in (contraction.lhs, contraction.rhs))
        return extent is None or extent >= depth, lies, contraction.depth.index(axis)

    last = max(contraction.depth, key=worth)
    return (*(axis for axis in contraction.depth if axis is not last), last)


def _stages_at_once(schedule: Schedule, name: str, contraction: Contraction, axes: TiledAxes, device: DeviceFacts) -> int:
    """Ask how many stages shared memory has at once, copies of all but one being on their way."""
    if not device.has("cp.async"):
        return 1
    options = stage_counts(axes.blocking, sizes_of(contraction), device)
    return schedule.choose(name, "stages_at_once", options, min(USUAL_STAGES, max(options)))


def _is_symbolic(contraction: Contraction) -> bool:
    return not all(isinstance(axis.extent, Const) for axis in contraction.info.block.axes)


# -- rows of images as one axis


def _rows_to_fuse(contraction: Contraction) -> tuple[Var, ...]:
    """The axes of rows, where tiles are to run on across the ends of all but the first: where these are no multiples of a tile, and known,
    and what lies side by side in memory are terms."""
    rows = contraction.rows
    extents = extents_along(contraction, rows[1:])
    lies = contraction.lhs.indices and variables(contraction.lhs.indices[-1]) & {*rows}
    if not extents or lies or None in extents or extents[-1] % EVEN_ROWS == 0:  # type: ignore[operator]
        return ()
    return rows


def _with_one_row_axis(
    schedule: Schedule, contraction: Contraction, rows: tuple[Var, ...], copy: str, after: list[str]
) -> tuple[Contraction, list[str]]:
    """Let a product, and the copy of its left operand, have one axis of rows; the product then, and what follows it."""
    name = contraction.info.name
    (sums,) = block_info(schedule, name).written_buffers
    if sums in schedule.func.buffers:
        schedule.cache_write(name, "local")
        after = [f"{name}_copy", *after]
    store, load = block_info(schedule, name).writes[0], contraction_of(schedule, name).lhs
    schedule.fuse_axes(copy, [load.indices.index(axis) for axis in rows])
    spatial = [axis.var for axis in block_info(schedule, name).block.axes]
    places = [[access.indices.index(axis) for axis in rows] for access in (load, store)]
    schedule.fuse_axes(name, [spatial.index(axis) for axis in rows])
    for buffer, dims in zip((load.buffer, store.buffer), places, strict=True):
        schedule.merge_dims(buffer.name, dims)
    rank = len(block_info(schedule, name).writes[0].indices)
    if rank > 2:  # rows and columns of a fragment are the last two
        names = [f"a{k}" for k in range(rank)]
        schedule.transform_layout(store.buffer.name, f"{', '.join(names)} -> {', '.join([*names[1:-1], names[0], names[-1]])}")
    found = contraction_of(schedule, name)
    return replace(contraction, info=found.info, rows=found.rows), after


def _fuse_final(schedule: Schedule, name: str, final: str) -> None:
    """Let the block that stores results have one axis of rows, too."""
    (sums,) = block_info(schedule, name).written_buffers
    (load,) = block_info(schedule, final).reads_of(sums)
    axes = [axis.var for axis in block_info(schedule, final).block.axes]
    form = linear_coefficients(load.indices[-2], axes)
    if form is None or not all(isinstance(step, Const) for step in form[0].values()):
        raise ScheduleError(f"block {final} reads the sums of block {name} in an order of its own")
    used = sorted(form[0], key=lambda axis: -int(form[0][axis].value))  # type: ignore[attr-defined]
    if len(used) > 1:
        schedule.fuse_axes(final, [axes.index(axis) for axis in used])


# -- operands


def lay_out_matrix(schedule: Schedule, name: str, copy: str, axes: TiledAxes, instruction: MatrixInstruction) -> str:
    """Lay a copy out so that its last two indices are those of a fragment, in the order of memory where the load can turn them.

    What the order is called: "n" or "t".
    """
    (buffer,) = block_info(schedule, copy).written_buffers
    (load,) = block_info(schedule, name).reads_of(buffer)
    is_left = list(axes.rows)[-1] in load.indices
    own, depth = list(axes.rows if is_left else axes.columns)[-1], list(axes.depth)[-1]
    if own not in load.indices or depth not in load.indices:
        raise ScheduleError(f"{buffer.name} is no matrix of {own.name} and {depth.name}")
    places = [load.indices.index(own), load.indices.index(depth)]
    ends_in_depth = _lies_along(schedule, copy, *places) or buffer.dtype.bits != 16
    last = places if ends_in_depth else places[::-1]
    names = [f"a{k}" for k in range(len(load.indices))]
    order = [*(each for k, each in enumerate(names) if k not in last), *(names[k] for k in last)]
    if order != names:
        schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join(order)}")
    return "n" if ends_in_depth == is_left else "t"


def _lies_along(schedule: Schedule, copy: str, own: int, depth: int) -> bool:
    """Whether what is copied lies in memory along the index number `depth` of the copy rather than along the one of number `own`."""
    info = block_info(schedule, copy)
    indices = info.writes[0].indices
    for load in sorted(loads_of(info), key=lambda each: -len(each.indices)):
        used = variables(load.indices[-1]) if load.indices else frozenset()
        along = [place for place in (own, depth) if variables(indices[place]) & used]
        if len(along) == 1:
            return along == [depth]
    return own < depth


MOST_UNROLLED = 16
"""Vectors that a lane fetches of a stage in loops that are unrolled."""


def unroll_fetch(schedule: Schedule, copy: str, stage: str) -> None:
    """Let each lane's vectors of a stage have addresses of their own, unless these are many."""
    loops = [loop for loop in loops_inside(schedule, copy, stage) if find_loop(schedule.func, loop).loop.kind is LoopKind.SERIAL]
    if (known_product(schedule, loops) or MOST_UNROLLED + 1) <= MOST_UNROLLED:
        for loop in loops:
            schedule.unroll(loop)


def load_matrix_fragment(schedule: Schedule, fragment: str, step: str, role: str, instruction: MatrixInstruction) -> Call:
    """Load what a warp needs of an operand for one step: by `ldmatrix` of four matrices."""
    schedule.compute_at(fragment, step)
    shape = [ROWS if role[0] == "l" else 2 * COLUMNS, instruction.depth]
    if role in ("lhs.t", "rhs.n"):
        shape.reverse()
    dtype = instruction.lhs if role[0] == "l" else instruction.rhs
    *_, rows, columns = schedule.loops_of(fragment)
    high, row = schedule.split(rows, (None, shape[0]))
    wide, column = schedule.split(columns, (None, shape[1]))
    schedule.reorder(high, wide, row, column)
    schedule.unroll(high)
    schedule.unroll(wide)
    return row, ldmatrix_name(role, tuple(shape), dtype)


# -- a warp's sums


def tile_matrix_sum(
    schedule: Schedule, name: str, axes: TiledAxes, place: str, instruction: MatrixInstruction, order: str
) -> tuple[str, str, list[Call]]:
    """Cut the sum in stages and among warps; the innermost loops over stages, and over steps of a stage, and the instructions."""
    by_axis, stages, steps = cut_in_stages(schedule, name, axes, place)
    last_step, term = schedule.split(steps.pop(), (None, instruction.depth))
    steps.append(last_step)
    shared: list[str] = []
    own: list[str] = []
    tile: list[str] = []
    for sizes, count in ((axes.rows, ROWS), (axes.columns, COLUMNS)):
        for axis, (_, warp) in sizes.items():
            for loop in by_axis[axis]:
                warps, part = schedule.split(loop, (None, warp))
                shared.append(warps)
                if axis is list(sizes)[-1]:
                    part, element = schedule.split(part, (None, count))
                    tile.append(element)
                own.append(part)
    single = [loop for axis in axes.batch for loop in by_axis[axis]]
    schedule.reorder(*single, *stages, *shared, *steps, *own, *tile, term)
    if all(extent_value(schedule, loop) for loop in stages[1:]):  # stages are copied ahead along all of them
        stages = [schedule.fuse(*stages)]
    schedule.bind(schedule.fuse(*shared), "thread.y")
    for loop in (*steps, *own):
        schedule.unroll(loop)
    start = schedule.decompose_reduction(name, stages[0])
    total = block_info(schedule, start).writes[0].buffer.dtype
    zero = schedule.loops_of(start)[-2], fragment_name("zero", "sums", (ROWS, COLUMNS), total)
    return stages[-1], steps[-1], [(tile[0], instruction.name(order)), zero]


# -- results


def store_matrix_tile(schedule: Schedule, axes: TiledAxes, tile: FinalTile) -> None:
    """Let each lane store what is made of the sums that it holds."""
    shared: list[str] = []
    own: list[str] = []
    for sizes, loops in ((axes.rows, tile.rows), (axes.columns, tile.columns)):
        for axis, loop in loops.items():
            is_vector = tile.vector is not None and axis is list(axes.columns)[-1]
            warps, part = schedule.split(loop, (None, sizes[axis][1] // (2 if is_vector else 1)))
            shared.append(warps)
            own.append(part)
    schedule.reorder(*shared, *own, *([tile.vector] if tile.vector else []))
    if shared:
        schedule.bind(schedule.fuse(*shared), "thread.y")
    _share_out(schedule, axes, tile, own)


def _share_out(schedule: Schedule, axes: TiledAxes, tile: FinalTile, own: list[str]) -> None:
    """Share the elements of the last two loops of a warp's tile among its lanes as fragments of sums are."""
    by_axis = dict(zip((*tile.rows, *tile.columns), own, strict=True))
    row, column = by_axis.pop(list(axes.rows)[-1]), by_axis.pop(list(axes.columns)[-1])
    high, half, low = schedule.split(row, (None, 2, 8))
    if tile.vector is None:
        wide, quad, pair = schedule.split(column, (None, 4, 2))
    else:
        (wide, quad), pair = schedule.split(column, (None, 4)), tile.vector
    schedule.reorder(low, quad, *by_axis.values(), high, wide, half, pair)
    schedule.bind(schedule.fuse(low, quad), "thread.x")
    for loop in (*by_axis.values(), high, wide, half, *(() if tile.vector else (pair,))):
        schedule.unroll(loop)
    if tile.vector:
        schedule.vectorize(pair)
