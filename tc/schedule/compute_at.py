"""Primitives that move a block to where its results are used, or to where its operands are made."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from tc.errors import ScheduleError
from tc.ir.arith import Facts, linear_coefficients, prove, simplify
from tc.ir.expr import TRUE, Buffer, Const, Expr, Load, Lt, Var, conjuncts, const, logical_and, maximum, minimum
from tc.ir.loop import Alloc, AxisKind, BlockAxis, For, PrimFunc, Seq, Stmt, Store, seq
from tc.ir.node import Node, binders, replace, substitute, walk
from tc.ir.uses import buffers_read, buffers_written, has_intrinsic, own_reads, variables
from tc.schedule.independence import check_marked_loops
from tc.schedule.region import Interval, interval_of, leaves_no_gaps, union, whole
from tc.schedule.touched import inside_of, part_written, parts_read
from tc.schedule.tree import (
    Place,
    axis_loops,
    block_places,
    facts_at,
    facts_inside,
    find_block,
    find_loop,
    fresh_names,
    guarded_read,
    in_scope_at,
    is_uneven,
    loop_var,
    place_of,
    reads_at,
    replace_stmt,
    writers_of,
)


def compute_at(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Compute, in each iteration of `loop`, the part of a block's result that the iteration reads.

        for i: B[i] = f(i)                        for i0:
        for i0: for i1: C[..] = g(B[i0 * 8 + i1])  =>      for b in range(8): B[i0 * 8 + b] = f(i0 * 8 + b)
                                                           for i1: C[..] = g(B[i0 * 8 + i1])

    The block gets new loops, over the part for its spatial axes, as before for the others; the buffer keeps its shape, and
    `compact_buffers` shrinks it when the blocks are gone. Raises ScheduleError unless the block alone writes one scratch
    buffer, or several at the same places of which others read one, at its own axes and all its readers are inside the loop, or behind it
    when its iterations are known to read all that the block makes; a loop around them that is parallel must stay one that may be.
    Source: `compute_at` of Halide and of TVM; there no reader may be behind.
    """
    place, target = find_block(func, block), find_loop(func, loop)
    store = _check_producer(func, place, target)
    readers = [p for p in block_places(func) if p.block is not place.block and store.buffer in reads_at(p)]
    inside = [reader for reader in readers if target.stmt in reader.path]
    if not inside:
        raise ScheduleError(f"compute_at: nothing inside loop {loop} reads {store.buffer.name}")
    _check_inputs_stay(func, place, target)
    _check_decides_nothing(inside, store.buffer)
    region = parts_read(func, target, inside, store.buffer)
    intervals = {index: part for index, part in zip(store.indices, region, strict=True) if isinstance(index, Var)}
    apart = _statements_apart(place, target)
    behind = set(block_places(func)[1 + max(k for k, p in enumerate(block_places(func)) if apart[0] in p.path) :])
    for reader in readers:
        if reader not in inside and not (reader in behind and _makes_all(func, place, target, apart, intervals)):
            raise ScheduleError(f"compute_at: block {reader.block.name} reads {store.buffer.name} outside loop {loop}")
    nest = _nest_over(func, target, place, intervals, "compute_at")
    moved = replace_stmt(func, target, replace(target.loop, body=seq(nest, target.loop.body)))
    result = replace_stmt(moved, place_of(moved, place.block), None)
    return result if len(inside) == len(readers) else check_marked_loops(result, _loops_down_to(target), "compute_at")


def _loops_down_to(target: Place) -> list[str]:
    return [loop.var.name for loop in (*target.loops, target.loop)]


def _check_decides_nothing(readers: list[Place], buffer: Buffer) -> None:
    """Extents of loops, and conditions around blocks, are evaluated before a part of what they read could be made there."""
    for reader in readers:
        if any(buffer in own_reads(stmt) for stmt in reader.path):
            raise ScheduleError(f"compute_at: {buffer.name} decides whether or how often block {reader.block.name} runs")


def _check_producer(func: PrimFunc, place: Place, target: Place) -> Store:
    """The store of a block that may be moved to its readers."""
    block = place.block
    if target.stmt in place.path:
        raise ScheduleError(f"compute_at: block {block.name} is inside loop {target.loop.var.name} already")
    buffers = buffers_written(block)
    read = list(buffers)
    if len(buffers) > 1:
        others = [each for each in block_places(func) if each.block is not block]
        read = [buffer for buffer in buffers if any(buffer in reads_at(each) for each in others)]
    if len(read) != 1 or has_intrinsic(block):
        raise ScheduleError(f"compute_at: block {block.name} must write one buffer that others read, it writes {len(read)}")
    stores = [node for node in walk(block.body) if isinstance(node, Store)]
    store = next(each for each in stores if each.buffer in read)
    for buffer in buffers:
        if buffer in func.buffers:
            raise ScheduleError(f"compute_at: block {block.name} writes the parameter {buffer.name}")
        if len(writers_of(func, buffer)) != 1:
            raise ScheduleError(f"compute_at: {buffer.name} has other writers than block {block.name}")
    spatial = [axis.var for axis in block.axes if axis.kind is AxisKind.SPATIAL]
    plain = [index for index in store.indices if not isinstance(index, Const)]
    if len(set(plain)) != len(plain) or not all(index in spatial for index in plain):
        raise ScheduleError(f"compute_at: block {block.name} does not write {store.buffer.name} at its own axes")
    if any(each.indices != store.indices for each in stores if each.buffer is not store.buffer):
        raise ScheduleError(f"compute_at: block {block.name} writes {len(buffers)} buffers at different places")
    return store


def _statements_apart(place: Place, target: Place) -> tuple[Stmt, ...]:
    """The statements around the body of a loop, and the loop, that are not around a block too, outermost first."""
    path = (*target.path, target.stmt)
    return path[sum(a is b for a, b in zip(place.path, path)) :]


def _makes_all(func: PrimFunc, place: Place, target: Place, apart: tuple[Stmt, ...], intervals: dict[Var, Interval]) -> bool:
    """Whether what a block makes where it stands is known to be made by parts of it, one in each iteration of the loops in `apart`."""
    loops = [stmt for stmt in apart if isinstance(stmt, For)]
    if not all(isinstance(stmt, (For, Seq, Alloc)) for stmt in apart):
        return False
    inside, outside = facts_inside(func, target), facts_at(func, Place(apart[0], target.path[: len(target.path) + 1 - len(apart)]))
    own_loops = [loop for loop in place.loops if loop not in target.loops]
    used: set[Var] = set()
    ranges: list[tuple[Expr, Expr]] = []  # an index, and how many there are of the elements that it goes over
    for axis in place.block.axes:
        part = intervals.get(axis.var)
        if part is None:  # is made in whole, in each part
            continue
        made = interval_of(axis.value, own_loops, facts_at(func, place)) or whole(axis.extent)
        end = simplify(minimum(made.low + made.extent, axis.extent), outside)
        step = For(loop_var("step"), part.extent, seq())
        index, facts = simplify(part.low + step.var, inside), inside.with_range(step.var, step.extent)
        covered = interval_of(index, [*loops, step], facts)
        own = variables(index) & {loop.var for loop in loops}
        ranges.append((index, end - made.low))
        if covered is None or own & used or not leaves_no_gaps(index, [*loops, step], facts):
            return False
        used |= own
        if prove(logical_and(covered.low <= maximum(made.low, 0), covered.low + covered.extent >= end), outside) is not True:
            return False
    for loop in loops:
        if prove(loop.extent >= 1, outside) is not True and not any(_is_empty_with(loop, *part, outside) for part in ranges):
            return False
    return True


def _is_empty_with(loop: For, index: Expr, count: Expr, facts: Facts) -> bool:
    """Whether the elements that `index` goes over are none when a loop makes no iteration: they are known to be at most as many as
    its iterations times the step of the index."""
    form = linear_coefficients(index, [loop.var])
    step = form[0].get(loop.var) if form else None
    return isinstance(step, Const) and step.value > 0 and prove(count <= loop.extent * step, facts) is True


def _check_inputs_stay(func: PrimFunc, place: Place, target: Place) -> None:
    """Nothing between the block and the end of the loop overwrites what the block reads."""
    inputs = reads_at(place)
    order = block_places(func)
    start = next(k for k, p in enumerate(order) if p.block is place.block)
    end = max(k for k, p in enumerate(order) if target.stmt in p.path)
    if end < start:
        raise ScheduleError(f"compute_at: loop {target.loop.var.name} runs before block {place.block.name}")
    for other in order[start + 1 : end + 1]:
        changed = inputs & buffers_written(other.block)
        if changed:
            name = min(buffer.name for buffer in changed)
            raise ScheduleError(
                f"compute_at: block {other.block.name} overwrites {name}, which block {place.block.name} reads"
            )


def reverse_compute_at(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Run, in each iteration of `loop`, the part of an elementwise block that reads what the iteration has made.

        for i0: for i1: B[i0 * 8 + i1] = ...           for i0:
        for i: C[i] = B[i]                        =>       for i1: B[i0 * 8 + i1] = ...
                                                           for c in range(8): C[i0 * 8 + c] = B[i0 * 8 + c]

    Raises ScheduleError unless the block is spatial and reads the producers' buffers at its own axes, an iteration of the loop
    finishes a dense part of them, and nothing in between touches what the block reads or writes.
    Source: `reverse_compute_at` of TVM.
    """
    place, target = find_block(func, block), find_loop(func, loop)
    consumer = place.block
    if consumer.init is not None or any(axis.kind is not AxisKind.SPATIAL for axis in consumer.axes):
        raise ScheduleError(f"reverse_compute_at: block {block} is not elementwise")
    if has_intrinsic(consumer):
        raise ScheduleError(f"reverse_compute_at: block {block} is an intrinsic")
    if target.stmt in place.path:
        raise ScheduleError(f"reverse_compute_at: block {block} is inside loop {loop} already")
    producers = [p for p in block_places(func) if target.stmt in p.path]
    _check_reverse_order(func, place, target, producers)
    region = _consumer_region(func, place, target, producers)
    guards = _guards(func, target, producers, buffers_read(consumer))
    nest = _nest_over(func, target, place, region, "reverse_compute_at", guards)
    moved = replace_stmt(func, target, replace(target.loop, body=seq(target.loop.body, nest)))
    return check_marked_loops(replace_stmt(moved, place_of(moved, consumer), None), _loops_down_to(target), "reverse_compute_at")


def _check_reverse_order(func: PrimFunc, place: Place, target: Place, producers: list[Place]) -> None:
    """Each iteration finishes what it makes, and the consumer may run before everything that stands between."""
    consumer, name = place.block, place.block.name
    read, written = reads_at(place), buffers_written(consumer)
    for producer in producers:
        if not buffers_written(producer.block) & read:
            continue
        if is_uneven(func, producer.block):
            raise ScheduleError(f"reverse_compute_at: block {producer.block.name} may make a part of what block {name} reads only")
        kinds = axis_loops(producer)
        for outer in (*target.loops, target.loop):
            if kinds.get(outer.var, AxisKind.SPATIAL) is not AxisKind.SPATIAL:
                raise ScheduleError(
                    f"reverse_compute_at: loop {outer.var.name} drives a reduction of block {producer.block.name}, "
                    f"whose result block {name} reads"
                )
    order = block_places(func)
    start = next(k for k, p in enumerate(order) if target.stmt in p.path)
    end = next(k for k, p in enumerate(order) if p.block is consumer)
    for other in order[start:end]:
        reads, writes = reads_at(other), buffers_written(other.block)
        inside = target.stmt in other.path
        if written & (reads | writes) or (not inside and writes & read):
            raise ScheduleError(f"reverse_compute_at: block {name} must stay behind block {other.block.name}")


def _written_region(target: Place, producers: list[Place], buffer: Buffer, facts: Facts) -> list[Interval]:
    """What the blocks inside a loop write of a buffer in one iteration; ScheduleError when it may have gaps."""
    region: list[Interval] | None = None
    for place in producers:
        if buffer not in buffers_written(place.block):
            continue
        part = part_written(target, place, buffer, facts)
        if part is None:
            raise ScheduleError(f"reverse_compute_at: block {place.block.name} writes {buffer.name} irregularly")
        region = part if region is None else [union(a, b, facts) for a, b in zip(region, part, strict=True)]
    return region or [whole(dim) for dim in buffer.shape]


def _guards(func: PrimFunc, target: Place, producers: list[Place], read: AbstractSet[Buffer]) -> Expr:
    """When an iteration of the loop makes what the consumer reads; ScheduleError when a condition leaves gaps in it.

    A condition that keeps an axis inside its extent leaves none: the consumer has its own.
    """
    facts = facts_inside(func, target)
    outside = {loop.var for loop in (*target.loops, target.loop)} | set(func.dims)
    found: dict[Expr, None] = {}
    for producer in producers:
        if not buffers_written(producer.block) & read:
            continue
        _, inside, _ = inside_of(target, producer, facts)
        bounds = {simplify(axis.value < axis.extent, inside) for axis in producer.block.axes}
        bounds |= {simplify(axis.value >= 0, inside) for axis in producer.block.axes}
        for part in conjuncts(producer.block.where):
            condition = simplify(part, inside)
            if variables(condition) <= outside:
                found[condition] = None
            elif condition not in bounds:
                raise ScheduleError(f"reverse_compute_at: block {producer.block.name} runs only where {part}")
    return logical_and(*found)


def _consumer_region(func: PrimFunc, place: Place, target: Place, producers: list[Place]) -> dict[Var, Interval]:
    """For each axis of the consumer, the part that reads what one iteration of the loop makes."""
    consumer, name = place.block, place.block.name
    facts = facts_inside(func, target)
    made = {buffer for producer in producers for buffer in buffers_written(producer.block)}
    loads = dict.fromkeys(n for n in walk(consumer) if isinstance(n, Load) and n.buffer in made)
    if not loads:
        raise ScheduleError(f"reverse_compute_at: block {name} reads nothing that loop {target.loop.var.name} makes")
    region: dict[Var, Interval] = {}
    extents = {axis.var: axis.extent for axis in consumer.axes}
    for load in loads:
        parts = _written_region(target, producers, load.buffer, facts)
        for index, part, dim in zip(load.indices, parts, load.buffer.shape, strict=True):
            if isinstance(index, Var) and index in extents:
                if prove(extents[index] <= dim, facts) is not True:
                    raise ScheduleError(f"reverse_compute_at: block {name} makes more than what it reads of {load.buffer.name}")
                known = region.setdefault(index, part)
                if known.low is not part.low or known.extent is not part.extent:
                    raise ScheduleError(f"reverse_compute_at: the operands of block {name} are made in different parts")
            elif prove(logical_and(part.low <= 0, part.low + part.extent >= dim), facts) is not True:
                raise ScheduleError(
                    f"reverse_compute_at: block {name} does not read {load.buffer.name} at its own axes"
                )
    for axis in consumer.axes:
        if axis.var not in region:
            if prove(axis.extent <= 1, facts) is not True:
                raise ScheduleError(
                    f"reverse_compute_at: axis {axis.var.name} of {name} is not an index of what it reads"
                )
            region[axis.var] = Interval(const(0), const(1))
    return region


def _nest_over(
    func: PrimFunc, target: Place, place: Place, region: dict[Var, Interval], what: str, where: Expr = TRUE
) -> Stmt:
    """A block under new loops in the loop at `target`: over `region` for its spatial axes, over everything for the others.

    Extents and conditions that speak of the block's old loops speak of the new ones then. ScheduleError when that leaves one that
    has no meaning in the loop.
    """
    block, facts = place.block, facts_inside(func, target)
    names = fresh_names(func, [f"{axis.var.name.removeprefix('v')}t" for axis in block.axes])
    scope = in_scope_at(func, Place(target.loop.body, (*target.path, target.loop)))
    moved: dict[Node, Node] = {}  # what drove an axis, and what drives it now
    axes: list[BlockAxis] = []
    loops: list[tuple[Var, Expr]] = []
    inside = facts
    left: frozenset[Var] = frozenset()  # loops that drove axes which other ones drive now, and are around still
    for axis, name in zip(block.axes, names, strict=True):
        extent = substitute(axis.extent, moved)
        _check_means_the_same(extent, target, scope, f"{what}: the extent of axis {axis.var.name} of block {block.name}")
        if variables(extent) & left:
            raise ScheduleError(f"{what}: extent {axis.extent} of axis {axis.var.name} of block {block.name} is of loops that it leaves")
        part = region.get(axis.var) if axis.kind is AxisKind.SPATIAL else None
        part = part or whole(guarded_read(extent, where, const(0)))
        _check_means_the_same(part.extent, target, scope, f"{what}: the part of axis {axis.var.name} of block {block.name}")
        var = loop_var(name)
        loops.append((var, part.extent))
        value = simplify(part.low + var, facts)
        inside = facts.with_range(var, part.extent)
        new = simplify(value, inside)
        if variables(axis.value) and new is not axis.value:
            moved[axis.value] = new
            left |= variables(axis.value) - variables(new)
        scope |= {var}  # loops of later axes are inside
        where = logical_and(where, simplify(value < extent, inside), simplify(value >= 0, inside))
        axes.append(replace(axis, value=value, extent=extent))
    kept = _kept_conditions(place, target, moved, scope, what)
    where = logical_and(*dict.fromkeys((*conjuncts(where), *(simplify(part, inside) for part in kept))))
    body: Stmt = replace(block, axes=tuple(axes), where=where)
    for var, extent in reversed(loops):
        body = For(var, extent, body)
    return body


def _check_means_the_same(expr: Expr, target: Place, scope: frozenset[Node], what: str) -> None:
    """ScheduleError when an expression uses what is not there at the start of a loop's body, or what the body changes."""
    missing = binders(expr) - scope
    if missing:
        names = ", ".join(sorted(node.name for node in missing))  # type: ignore[attr-defined]
        raise ScheduleError(f"{what} is {expr}, but {names} means nothing in loop {target.loop.var.name}")
    changed = buffers_read(expr) & buffers_written(target.loop.body)
    if changed:
        name = min(buffer.name for buffer in changed)
        raise ScheduleError(f"{what} is {expr}, but loop {target.loop.var.name} writes {name}")


def _kept_conditions(place: Place, target: Place, moved: dict[Node, Node], scope: frozenset[Node], what: str) -> list[Expr]:
    """The conditions of a block that are not of the loops that it leaves, which kept their iterations inside an extent."""
    block = place.block
    left = {loop.var for loop in place.loops} - scope
    kept = []
    for part in conjuncts(block.where):
        condition = substitute(part, moved)
        if variables(condition) & left:
            if not _keeps_in_extent(condition, left):
                loop = target.loop.var.name
                raise ScheduleError(f"{what}: block {block.name} runs only where {part}, which means nothing in loop {loop}")
            continue
        _check_means_the_same(condition, target, scope | variables(condition), f"{what}: a condition of block {block.name}")
        kept.append(condition)
    return kept


def _keeps_in_extent(condition: Expr, loops: set[Var]) -> bool:
    """Whether a condition is what `split` adds: an index made of loops, of an outer one times a number and others, is in an extent."""
    match condition:
        case Lt(lhs=index, rhs=extent) if not variables(extent) & loops:
            form = linear_coefficients(index, loops)
            steps = [] if form is None else list(form[0].values())
            return any(isinstance(step, Const) and step.value > 1 for step in steps)
    return False
