"""Sums of products on devices: tiles of blocks of threads, fetched to shared memory by all of them, and of threads, kept in registers.

Both operands are copied, with all that is done to them, to indices of their own (a convolution becomes a product of matrices that way), in
stages along the sum; the copies are filled up with zeros where sizes are no multiples of the tile. What follows the sum is computed where
its sums are stored.
Source: the two-level tiling of CUTLASS (NVIDIA); schedules as those of TVM's dlight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from tc.errors import ScheduleError
from tc.ir.arith import prove, simplify
from tc.ir.expr import Const, Expr, FloorDiv, Load, Var, equal
from tc.ir.loop import Store
from tc.ir.node import substitute
from tc.ir.uses import variables
from tc.schedule.analysis import BlockInfo, Contraction, as_contraction, block_infos, is_stencil
from tc.schedule.cache import narrowed
from tc.schedule.rules.common import extent_value, is_heavy, known_product, loads_of, loops_inside
from tc.schedule.rules.epilogue import block_info, contraction_of, driving_loops, inline_chain
from tc.schedule.rules.gpu.blocking import (
    USUAL_BATCH,
    USUAL_EXTENT,
    Blocking,
    Extents,
    best,
    blockings,
    innermost,
    repeats,
    stage_of,
    tile_of,
    usual_extents,
)
from tc.schedule.rules.gpu.elementwise import is_aligned, is_vector, schedule_block, stands_alone
from tc.schedule.rules.gpu.fallback import schedule_nest
from tc.schedule.rules.gpu.launch import THREADS, bind_all, bind_one_thread
from tc.schedule.rules.gpu.raster import columns_together
from tc.schedule.rules.tile import cut_vectors
from tc.schedule.step import Schedule
from tc.schedule.tree import facts_at, find_block, find_loop
from tc.target import Target
from tc.target.device import DeviceFacts, occupancy

LEAST_ROWS = 4
"""Rows and columns that a product must have at least to be tiled: with fewer an operand is used a few times only, and the other decides."""

PADDING_BYTES = 16
"""Between rows of a copy that is turned as it is made: a vector, so that rows begin at multiples of one."""

ENOUGH_THREADS = 512
"""Threads of a processor that hide what each waits for in registers and shared memory, if not in global memory: 4 warps a scheduler."""

STAGES, USUAL_STAGES = (1, 2, 3, 4), 3
"""How many stages of a sum are in shared memory at once: copies of all but one are on their way. More than three hide no more of the way
to memory unless a stage is very short."""

VECTOR_BYTES = 16
"""What a thread moves at once at most."""


Tiling = Callable[[Schedule, str, list[str], list[str], DeviceFacts], str]
"""Tiles a product, given the names of its block, of those before it and of those computed with its results; the name of the rule."""


def schedule_contraction(schedule: Schedule, target: Target) -> str | None:
    """Tile the one contraction of a program; what stands before it is a launch of its own unless it is computed where it is fetched."""
    return tile_contraction(schedule, target, _tiled)


Usual = Callable[[Contraction, DeviceFacts], Blocking | None]
"""The tile that a product usually has; None where the device holds none."""


def usual_blocking(contraction: Contraction, device: DeviceFacts) -> Blocking | None:
    """That of threads that each have a tile of their own."""
    return best(sizes_of(contraction), device)


def tile_contraction(schedule: Schedule, target: Target, tile: Tiling, usual: Usual = usual_blocking) -> str | None:
    """The same by one way to tile, whose tiles usually are of some size."""
    infos = block_infos(schedule.func)
    found = [k for k, info in enumerate(infos) if info.reduction_axes]
    if len(found) != 1 or not all(stands_alone(schedule, info.name) for info in infos):
        return None
    (position,) = found
    before, after = infos[:position], infos[position + 1 :]
    if not all(info.is_spatial for info in (*before, *after)):
        return None
    return schedule_product(schedule, infos[position].name, [i.name for i in before], [i.name for i in after], target, tile, usual)


def schedule_product(
    schedule: Schedule, name: str, before: list[str], after: list[str], target: Target, tile: Tiling | None = None,
    usual: Usual = usual_blocking,
) -> str | None:  # fmt: skip
    """Tile one contraction, the elementwise blocks `after` it where its sums are stored if that is possible; None where it is none."""
    if target.device is None or not is_tiled(block_info(schedule, name)):
        return None
    parts = _choose_parts(schedule, name, target.device, usual)
    if parts > 1:
        return schedule.attempt(partial(_in_parts, schedule, name, before, after, parts, target, tile or _tiled))
    fused = after if _can_be_fused(schedule, name, after) else []
    rule = schedule.attempt(partial(tile or _tiled, schedule, name, before, fused, target.device))
    if rule is None:
        return None
    left = {info.name for info in block_infos(schedule.func)}
    for block in [*before, *(block for block in after if block not in fused)]:
        if block in left and stands_alone(schedule, block):
            schedule_block(schedule, block, target)
    return rule


# -- few tiles of long sums


def _choose_parts(schedule: Schedule, name: str, device: DeviceFacts, usual_of: Usual) -> int:
    """In how many parts a sum is made by different blocks of threads: so many that there is a block for each processor."""
    info = block_info(schedule, name)
    contraction = contraction_of(schedule, name)
    sizes, usual = sizes_of(contraction), None
    first = next(axis.extent for axis in info.block.axes if axis.var in info.reduction_axes)
    if not isinstance(first, Const) or info.block.init is None or (usual := usual_of(contraction, device)) is None:
        return 1
    blocks = sizes.batch * -(-sizes.rows // usual.rows) * -(-sizes.columns // usual.columns)
    options = [count for count in (1, 2, 4, 8, 16, 32, 64) if int(first.value) % count == 0 and sizes.depth >= count * usual.part_terms]
    wanted = max([count for count in options if count * blocks <= 2 * device.processors], default=1)
    if not options or blocks * 2 > device.processors:
        wanted = 1
    return schedule.choose(name, "parts", options, wanted)


def _in_parts(
    schedule: Schedule, name: str, before: list[str], after: list[str], parts: int, target: Target, tile: Tiling
) -> str | None:
    """Make parts of the sums by a launch, and add these up, always in the same order, where what follows is computed, by another."""
    info, loops = block_info(schedule, name), list(schedule.loops_of(name))
    depth = driving_loops(info, loops, info.reduction_axes)
    part, _ = schedule.split(depth[0], (parts, None))
    partial_sums = schedule.rfactor(name, part)
    assert target.device is not None
    rule = schedule.attempt(partial(tile, schedule, partial_sums, before, [], target.device))
    rule = rule or _tiled(schedule, partial_sums, before, [], target.device)
    left = {info.name for info in block_infos(schedule.func)}
    for block in before:
        if block in left and stands_alone(schedule, block):
            schedule_block(schedule, block, target)
    final = inline_chain(schedule, after) if after else None
    if final is None or schedule.attempt(partial(_added_where_read, schedule, name, final)) is None:
        schedule_nest(schedule, schedule.loops_of(name)[0])
        for block in after:
            if block in {info.name for info in block_infos(schedule.func)}:
                schedule_block(schedule, block, target)
    return f"{rule} in parts"


def _added_where_read(schedule: Schedule, name: str, final: str) -> str:
    """Add parts up in the thread that computes something of the sum."""
    schedule.compute_at(name, bind_all(schedule, schedule.loops_of(final), THREADS))
    schedule.set_scope(block_info(schedule, name).written_buffers[0].name, "local")
    return final


def is_tiled(info: BlockInfo) -> bool:
    """Whether a block is a product whose operands are each used several times."""
    contraction = as_contraction(info)
    if contraction is None or is_stencil(contraction) or not contraction.rows:
        return False
    sizes = sizes_of(contraction)
    return min(sizes.rows, sizes.columns) >= LEAST_ROWS


def _can_be_fused(schedule: Schedule, name: str, after: list[str]) -> bool:
    """Whether what follows a product can be computed where its sums are stored, whatever the size of tiles."""
    probe = Schedule(schedule.func)
    if set(block_info(schedule, name).written_buffers) & set(schedule.func.buffers):
        return not after  # the sums themselves are a result
    try:
        loops_by_axis(probe, name, last_block(probe, name, None, after))
    except ScheduleError:
        return False
    return True


def sizes_of(contraction: Contraction) -> Extents:
    """How much of each role, symbolic extents as they usually are."""
    rows, columns = extents_along(contraction, contraction.rows), extents_along(contraction, contraction.columns)
    batch, depth = extents_along(contraction, contraction.batch), extents_along(contraction, contraction.depth)
    return Extents(
        batch=prod(USUAL_BATCH if extent is None else extent for extent in batch) * repeats(rows) * repeats(columns),
        rows=prod(usual_extents(rows)),
        columns=prod(usual_extents(columns)),
        depth=prod(USUAL_EXTENT if extent is None else extent for extent in depth),
        lhs_bytes=contraction.lhs.buffer.dtype.size_bytes,
        rhs_bytes=contraction.rhs.buffer.dtype.size_bytes,
        sum_bytes=contraction.info.writes[0].buffer.dtype.size_bytes,
    )


def extents_along(contraction: Contraction, axes: Sequence[Var]) -> list[int | None]:
    """The extents of some axes of a product, None for symbolic ones."""
    extents = {axis.var: int(axis.extent.value) if isinstance(axis.extent, Const) else None for axis in contraction.info.block.axes}
    return [extents[axis] for axis in axes]


# -- the schedule


@dataclass(frozen=True)
class TiledAxes:
    """The axes of a product by role, with the size of a block's tile and of a thread's along each. `depth`: of a stage."""

    batch: tuple[Var, ...]
    rows: dict[Var, tuple[int, int]]
    columns: dict[Var, tuple[int, int]]
    depth: dict[Var, int]
    blocking: Blocking

    def multiple(self, axis: Var) -> int:
        """What the extent of an axis is to be rounded up to a multiple of."""
        if axis in self.depth:
            return self.depth[axis]
        return (self.rows | self.columns).get(axis, (1, 1))[0]


def _tiled(schedule: Schedule, name: str, before: list[str], after: list[str], device: DeviceFacts) -> str:
    contraction = contraction_of(schedule, name)
    axes = _axes(schedule, contraction, device)
    result, copies = pad_to_tiles(schedule, name, axes, stage_operands(schedule, contraction))
    inline_before(schedule, before)
    final = last_block(schedule, name, result, after)
    loops = loops_by_axis(schedule, name, final)
    fragments = [lay_out(schedule, name, copy, axes) for copy in copies]
    place, tile = bind_blocks(schedule, final, axes, loops, device=device)
    schedule.compute_at(name, place)
    stage, steps = tile_sum(schedule, name, axes, place)
    for fragment, step in zip(fragments, steps, strict=True):
        load_fragment(schedule, fragment, step)
    for copy in copies:
        fetch_tile(schedule, copy, stage, axes)
    store_tile(schedule, axes, tile)
    _copy_ahead(schedule, contraction, stage, axes.blocking, device)
    return "contraction"


def _copy_ahead(schedule: Schedule, contraction: Contraction, stage: str, blocking: Blocking, device: DeviceFacts) -> None:
    """Let the operands of the next stages be copied while one is multiplied, where a processor then still has warps to choose from."""
    sizes = sizes_of(contraction)
    shared, registers = blocking.shared_bytes(sizes.lhs_bytes, sizes.rhs_bytes), blocking.registers(sizes.sum_bytes)
    most = STAGES if device.has("cp.async") else STAGES[:1]
    options = [count for count in most if count * shared <= device.static_shared_bytes_per_block]
    resident = {count: occupancy(blocking.threads, registers, count * shared, device) * blocking.threads for count in options}
    free = [count for count in options if resident[count] >= min(resident[1], ENOUGH_THREADS)]
    usual = max((count for count in free if count <= USUAL_STAGES), default=1)
    count = schedule.choose(contraction.info.name, "stages", options, usual)
    if count > 1:
        schedule.pipeline(stage, count)


def _axes(schedule: Schedule, contraction: Contraction, device: DeviceFacts) -> TiledAxes:
    """Ask for the sizes of tiles."""
    sizes, name = sizes_of(contraction), contraction.info.name
    usual = best(sizes, device)
    if usual is None:
        raise ScheduleError(f"the device holds no tile of block {name}")
    options = [(b.rows, b.columns, b.thread_rows, b.thread_columns) for b in blockings(sizes, device)]
    default = (usual.rows, usual.columns, usual.thread_rows, usual.thread_columns)
    rows, columns, thread_rows, thread_columns = schedule.choose(name, "tile", options, default, ordered=False)
    depth = schedule.choose(name, "stage", [size for size in (8, 16, 32) if size < 2 * max(sizes.depth, 1)], usual.depth)
    blocking = Blocking(rows, columns, thread_rows, thread_columns, depth)
    if blocking.shared_bytes(sizes.lhs_bytes, sizes.rhs_bytes) > device.static_shared_bytes_per_block:
        raise ScheduleError(f"block {name}: stages of {depth} terms are more than shared memory holds")

    def tiled(axes: tuple[Var, ...], size: int, thread: int) -> dict[Var, tuple[int, int]]:
        tile = tile_of(extents_along(contraction, axes), size)
        return dict(zip(axes, zip(tile, innermost(tile, thread), strict=True), strict=True))

    stage = stage_of(extents_along(contraction, contraction.depth), depth)
    return TiledAxes(
        contraction.batch,
        tiled(contraction.rows, rows, thread_rows),
        tiled(contraction.columns, columns, thread_columns),
        dict(zip(contraction.depth, stage, strict=True)),
        blocking,
    )


def stage_operands(schedule: Schedule, contraction: Contraction) -> list[str]:
    """Let the product read copies of its operands, each with an index for each axis that it depends on; the copies' blocks."""
    name = contraction.info.name
    copies = []
    for side, value, load in (("lhs", contraction.lhs_value, contraction.lhs), ("rhs", contraction.rhs_value, contraction.rhs)):
        narrow = load.buffer.dtype.name if narrowed(value, load.buffer.dtype.name) is not None else value.dtype.name
        copies.append(schedule.cache_operand(name, side, narrow, "shared"))
    return copies


def pad_to_tiles(schedule: Schedule, name: str, axes: TiledAxes, copies: list[str]) -> tuple[str | None, list[str]]:
    """Round sizes up to those of tiles: zeros are added to the copies. The block that copies the result then, and the copies."""
    before = {info.name for info in block_infos(schedule.func)}
    block = block_info(schedule, name).block
    schedule.pad_einsum(name, tuple(axes.multiple(axis.var) for axis in block.axes))
    made = [info for info in block_infos(schedule.func) if info.name not in before]
    padded = {load.buffer: info.name for info in made for load in loads_of(info)}
    found, result = [], None
    for copy in copies:
        (buffer,) = block_info(schedule, copy).written_buffers
        if buffer in padded:
            schedule.compute_inline(copy)
        found.append(padded.get(buffer, copy))
        schedule.set_scope(block_info(schedule, found[-1]).written_buffers[0].name, "shared")
    sums = block_info(schedule, name).written_buffers[0]
    if sums in padded:
        result = padded[sums]
    elif sums in schedule.func.buffers:
        schedule.cache_write(name, "local")
        result = f"{name}_copy"
    schedule.set_scope(block_info(schedule, name).written_buffers[0].name, "local")
    return result, found


def inline_before(schedule: Schedule, before: list[str]) -> None:
    """Compute what is cheap where it is fetched."""
    for block in reversed(before):
        info = block_info(schedule, block)
        if not is_heavy(info.writes[0].value):
            schedule.attempt(partial(_inlined, schedule, block))


def _inlined(schedule: Schedule, block: str) -> str:
    schedule.compute_inline(block)
    return block


def last_block(schedule: Schedule, name: str, result: str | None, after: list[str]) -> str:
    """The block that stores the sums, or what is made of them."""
    chain = [*([result] if result else []), *after]
    if not chain:
        schedule.set_scope(block_info(schedule, name).written_buffers[0].name, "global")
        schedule.cache_write(name, "local")
        return f"{name}_copy"
    if len(chain) == 1:
        return chain[0]
    final = inline_chain(schedule, chain)
    if final is None:
        raise ScheduleError(f"what follows block {name} is no chain")
    return final


def lay_out(schedule: Schedule, name: str, copy: str, axes: TiledAxes) -> str:
    """Lay a copy out by terms of the sum first, so that what a thread needs for one of them lies side by side, and let it be read into
    registers from there; the block that does that."""
    (buffer,) = block_info(schedule, copy).written_buffers
    (load,) = block_info(schedule, name).reads_of(buffer)
    names = [f"a{k}" for k in range(len(load.indices))]
    terms = [each for each, index in zip(names, load.indices, strict=True) if index in axes.depth]
    order = [*terms, *(each for each in names if each not in terms)]
    if order != names:
        schedule.transform_layout(buffer.name, f"{', '.join(names)} -> {', '.join(order)}")
        schedule.pad_rows(buffer.name, PADDING_BYTES // buffer.dtype.size_bytes)  # what is read along rows is written along columns
    return schedule.cache_read(name, buffer.name, "local")


def loops_by_axis(schedule: Schedule, name: str, final: str) -> dict[Var, str]:
    """The loop of the final block over each axis of the sum that has one; ScheduleError where these do not run alike."""
    (store,) = block_info(schedule, name).writes
    loads = block_info(schedule, final).reads_of(store.buffer)
    if len(loads) != 1:
        raise ScheduleError(f"block {final} does not read the sums of block {name} one by one")
    _number_alike(schedule, final, loads[0])
    found: dict[Var, str] = {}
    for index, axis in zip(_by_loops(schedule, final, loads[0]), store.indices, strict=True):
        if isinstance(index, Const) or isinstance(axis, Const):
            continue
        if not isinstance(index, Var) or not isinstance(axis, Var):
            raise ScheduleError(f"block {final} reads the sums of block {name} at {index}")
        found[axis] = index.name
    loops = list(schedule.loops_of(final))
    if set(found.values()) != set(loops) or len(found) != len(loops):
        raise ScheduleError(f"block {final} has loops that block {name} has not")
    return found


def _by_loops(schedule: Schedule, block: str, load: Load) -> list[Expr]:
    """The indices of a read, of loops."""
    facts = facts_at(schedule.func, find_block(schedule.func, block))
    values = {axis.var: axis.value for axis in schedule.block(block).axes}
    return [simplify(substitute(index, values), facts) for index in load.indices]


def _number_alike(schedule: Schedule, final: str, load: Load) -> None:
    """Let the final block count as the sums do: several loops as one where the sums have one axis for them (all pixels of an image), one
    as several where these have more (groups of channels)."""
    for index in _by_loops(schedule, final, load):
        used = variables(index)
        loops = [loop for loop in schedule.loops_of(final) if any(loop == var.name for var in used)]
        if len(loops) > 1:
            schedule.fuse(*loops)
        elif isinstance(index, FloorDiv) and isinstance(index.lhs, Var) and isinstance(index.rhs, Const):
            schedule.split(loops[0], (None, int(index.rhs.value)))


# -- blocks of threads


@dataclass(frozen=True)
class FinalTile:
    """The loops of the final block inside of a tile, by the axis of the sum; `vector`: the innermost, one access, if there is one."""

    rows: dict[Var, str]
    columns: dict[Var, str]
    vector: str | None


def bind_blocks(
    schedule: Schedule,
    final: str,
    axes: TiledAxes,
    loops: dict[Var, str],
    most: int = VECTOR_BYTES,
    apart: bool = False,
    device: DeviceFacts | None = None,
) -> tuple[str, FinalTile]:
    """Cut the final block's loops in tiles, and let a block of threads compute each; the innermost loop over tiles.

    `most`: results that a thread stores at once at most. `apart`: batches, rows and columns have an axis of the launch each, so that no
    index is a quotient by a symbolic size; of several axes of rows the last one has it, if it is symbolic, the others are as batches.
    `device`: the one for whose waves the order of tiles is chosen; None: columns before rows.
    """
    batch = [loops[axis] for axis in axes.batch if axis in loops]
    batch += [loop for axis, loop in loops.items() if axis not in axes.rows | axes.columns and loop not in batch]  # of one iteration
    vector = _vector_of(schedule, final, axes, loops, most)
    outer: dict[bool, list[str]] = {False: [], True: []}
    inner: dict[bool, dict[Var, str]] = {False: {}, True: {}}
    for is_column, tiles in ((False, axes.rows), (True, axes.columns)):
        for axis, (size, _) in tiles.items():
            if axis not in loops:
                continue
            loop, lanes = loops[axis], 1
            if vector and axis is list(axes.columns)[-1]:
                lanes = vector
                loop, lane = schedule.split(loop, vector)
            around, inside = schedule.split(loop, size // lanes)
            outer[is_column].append(around)
            inner[is_column][axis] = inside
    order = [*batch, *outer[False], *outer[True], *inner[False].values(), *inner[True].values(), *([lane] if vector else [])]
    schedule.reorder(*order)
    tile = FinalTile(inner[False], inner[True], lane if vector else None)
    lead = outer[False][:-1] if apart and outer[False] and not isinstance(schedule.extent_of(outer[False][-1]), Const) else []
    before, rows = [*batch, *lead], outer[False][len(lead) :]
    columns, together = _in_waves(schedule, final, axes, before, rows, outer[True], device)
    if apart:
        grid = [along for along in ([*rows, *together], columns, before) if along]
        for place, letter in zip([schedule.fuse(*along) for along in grid], "xyz", strict=False):
            schedule.bind(place, f"block.{letter}")
        return [loop for loop in schedule.loops_of(final) if find_loop(schedule.func, loop).loop.thread][-1], tile
    place = schedule.fuse(*before, *(columns if together else ()), *rows, *(together or columns))  # only x takes any number of blocks
    schedule.bind(place, "block.x")
    return place, tile


def _in_waves(
    schedule: Schedule, final: str, axes: TiledAxes, before: list[str], rows: list[str], columns: list[str], device: DeviceFacts | None
) -> tuple[list[str], list[str]]:
    """The loops over columns of tiles in two, around those over rows and inside of them; the latter none where rows come last."""
    size = prod(size for size, _ in axes.rows.values()), prod(size for size, _ in axes.columns.values())
    count = columns_together(schedule, final, rows, columns, size, device) if device else None
    if count is None:
        return columns, []
    around, together = schedule.split(schedule.fuse(*columns), (None, count))
    schedule.reorder(*before, around, *rows, together)
    return [around], [together]


def _vector_of(schedule: Schedule, final: str, axes: TiledAxes, loops: dict[Var, str], most: int) -> int:
    """How many results of a row a thread stores at once: the last axis is of columns, and all accesses along it are aligned; else 0."""
    info = block_info(schedule, final)
    axis, (_, thread) = list(axes.columns.items())[-1]
    last = info.loops[-1].var
    if last.name != loops.get(axis):
        return 0
    extent, facts = schedule.extent_of(loops[axis]), facts_at(schedule.func, find_block(schedule.func, final))
    values = {each.var: each.value for each in info.block.axes}
    accesses: list[Load | Store] = [*(load for load in loads_of(info) if load.buffer.scope == "global"), *info.writes]
    lanes = min(neighbours(thread), most, VECTOR_BYTES // max(access.buffer.dtype.size_bytes for access in accesses))
    while lanes > 1:
        aligned = all(is_vector(access, values, last, lanes, facts) for access in accesses)
        if aligned and prove(equal(extent % lanes, 0), facts) is True:
            return lanes
        lanes //= 2
    return 0


# -- a thread's sums


def cut_for_threads(schedule: Schedule, loop: str, thread: int, lanes: int = 1) -> tuple[str, list[str]]:
    """Cut a loop of a tile: the part that threads share, and those of one thread: neighbours, at most `lanes` of columns, at distances."""
    extent = extent_value(schedule, loop)
    assert extent is not None, "a tile has a known size"
    if lanes == 1:
        shared, own = schedule.split(loop, (None, thread))
        return shared, [own]
    apart, shared, own = schedule.split(loop, (thread // lanes, extent // thread, lanes))
    return shared, [apart, own]


def neighbours(thread: int) -> int:
    """Neighbouring columns of a thread: one access to shared memory of f32, or a half or a quarter of one."""
    return next(lanes for lanes in (4, 2, 1) if thread % lanes == 0)


def cut_in_stages(schedule: Schedule, name: str, axes: TiledAxes, place: str) -> tuple[dict[Var, list[str]], list[str], list[str]]:
    """Cut the sum of a block below a loop in stages: the loops of each axis there as they were, those over stages, and those within one."""
    info, inside = block_info(schedule, name), list(schedule.loops_of(name))
    inside = inside[inside.index(place) + 1 :]
    by_axis = {axis.var: driving_loops(info, inside, (axis.var,)) for axis in info.block.axes}
    cut = [schedule.split(loop, size) for axis, size in axes.depth.items() for loop in by_axis[axis]]
    return by_axis, [stage for stage, _ in cut], [step for _, step in cut]


def tile_sum(schedule: Schedule, name: str, axes: TiledAxes, place: str) -> tuple[str, tuple[str, str]]:
    """Cut the sum in stages and among threads; the innermost loop over stages, and those in which operands of rows and columns are read."""
    by_axis, stages, steps = cut_in_stages(schedule, name, axes, place)
    rows = [cut_for_threads(schedule, loop, thread) for axis, (_, thread) in axes.rows.items() for loop in by_axis[axis]]
    columns = [
        cut_for_threads(schedule, loop, thread, neighbours(thread)) for axis, (_, thread) in axes.columns.items() for loop in by_axis[axis]
    ]
    single = [loop for axis in axes.batch for loop in by_axis[axis]]
    apart = [loop for _, own in columns for loop in own[:-1]]
    own_rows, own_columns = [loop for _, own in rows for loop in own], [own[-1] for _, own in columns]
    shared = [[loop for loop, _ in rows], [loop for loop, _ in columns]]
    schedule.reorder(*single, *stages, *shared[0], *shared[1], *steps, *apart, *own_rows, *own_columns)
    for loops, thread in zip(shared, ("thread.y", "thread.x"), strict=True):
        schedule.bind(schedule.fuse(*loops), thread)
    for loop in (*apart, *own_rows, *own_columns):
        schedule.unroll(loop)
    schedule.decompose_reduction(name, stages[0])
    return stages[-1], (steps[-1], apart[-1] if apart else steps[-1])


def load_fragment(schedule: Schedule, fragment: str, loop: str) -> None:
    """Read what a thread needs of an operand for one step from shared memory: neighbours at once."""
    schedule.compute_at(fragment, loop)
    inside = loops_inside(schedule, fragment, loop)
    if inside and schedule.loops_of(fragment)[-1] == inside[-1]:
        lanes = VECTOR_BYTES // block_info(schedule, fragment).writes[0].buffer.dtype.size_bytes
        vectors, lane = cut_vectors(schedule, inside.pop(), lanes)
        schedule.vectorize(lane)
        inside += vectors
    for each in inside:
        schedule.unroll(each)


# -- fetching


def fetch_tile(schedule: Schedule, copy: str, stage: str, axes: TiledAxes) -> None:
    """Copy a stage of an operand to shared memory, with all threads, in vectors where memory is aligned."""
    schedule.compute_at(copy, stage)
    loops = _in_memory_order(schedule, copy, loops_inside(schedule, copy, stage))
    if not loops:
        bind_one_thread(schedule, copy)
        return
    single = [loop for loop in schedule.loops_of(copy) if extent_value(schedule, loop) == 1]
    schedule.reorder(*[loop for loop in single if is_inside(schedule, copy, loop, stage)], *loops)
    y, x = axes.blocking.threads_y, axes.blocking.threads_x
    lanes = _fetch_lanes(schedule, copy, loops[-1])
    while lanes > 1 and known_product(schedule, loops) < lanes * y * x:  # all threads rather than few with vectors
        lanes //= 2
    if lanes > 1:
        around, lane = schedule.split(loops[-1], lanes)
        schedule.vectorize(lane)
        loops = [*loops[:-1], around]
    rest, rows, columns = schedule.split(schedule.fuse(*loops), (None, y, x))
    schedule.reorder(rows, columns, rest)
    schedule.bind(rows, "thread.y")
    schedule.bind(columns, "thread.x")


def is_inside(schedule: Schedule, block: str, loop: str, around: str) -> bool:
    """Whether a loop of a block is inside another one of it."""
    loops = schedule.loops_of(block)
    return loops.index(loop) > loops.index(around)


def _in_memory_order(schedule: Schedule, copy: str, loops: list[str]) -> list[str]:
    """The loops of a copy in the order in which what is read lies in memory, the last one along neighbours."""
    info = block_info(schedule, copy)
    load = max(loads_of(info), key=lambda each: len(each.indices), default=None)
    if load is None:
        return loops

    def place(loop: str) -> tuple[int, int]:
        axes = {axis.var for axis in info.block.axes if loop in {var.name for var in variables(axis.value)}}
        found = [k for k, index in enumerate(load.indices) if variables(index) & axes]
        return max(found, default=-1), extent_value(schedule, loop) or 0

    return sorted(loops, key=place)


def _fetch_lanes(schedule: Schedule, copy: str, loop: str) -> int:
    """How many neighbours a thread fetches at once."""
    info, extent = block_info(schedule, copy), extent_value(schedule, loop) or 1
    axis = next(axis.var for axis in info.block.axes if loop in {var.name for var in variables(axis.value)})
    sizes = [load.buffer.dtype.size_bytes for load in loads_of(info)]
    lanes = VECTOR_BYTES // max([*sizes, info.writes[0].buffer.dtype.size_bytes])
    while lanes > 1 and not (extent % lanes == 0 and all(is_aligned(load, axis, lanes) for load in loads_of(info))):
        lanes //= 2
    return lanes


# -- results


def store_tile(schedule: Schedule, axes: TiledAxes, tile: FinalTile) -> None:
    """Let each thread store its own sums, or what is made of them."""
    rows = [cut_for_threads(schedule, loop, axes.rows[axis][1]) for axis, loop in tile.rows.items()]
    columns = []
    for axis, loop in tile.columns.items():
        thread = axes.columns[axis][1]
        if tile.vector is None or axis is not list(axes.columns)[-1]:
            columns.append(cut_for_threads(schedule, loop, thread, neighbours(thread)))
            continue
        width, lanes, extent = extent_value(schedule, tile.vector) or 1, neighbours(thread), extent_value(schedule, loop) or 1
        apart, shared, vectors = schedule.split(loop, (thread // lanes, extent * width // thread, lanes // width))
        columns.append((shared, [apart, vectors]))
    together = [[loop for loop, _ in rows], [loop for loop, _ in columns]]
    own = [loop for _, parts in (*rows, *columns) for loop in parts]
    schedule.reorder(*together[0], *together[1], *own, *([tile.vector] if tile.vector else []))
    for loops, thread_axis in zip(together, ("thread.y", "thread.x"), strict=True):
        if loops:
            schedule.bind(schedule.fuse(*loops), thread_axis)
    for loop in own:
        schedule.unroll(loop)
    if tile.vector:
        schedule.vectorize(tile.vector)
