"""Primitives that move a block to where its results are used, or to where its operands are made."""

from __future__ import annotations

from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.arith import Facts, linear_coefficients, prove, simplify
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Const, Expr, Load, Var, const, logical_and, maximum, minimum
from tc.ir.loop import AxisKind, Block, BlockAxis, For, PrimFunc, Stmt, Store, seq
from tc.ir.node import Node, replace, substitute, walk
from tc.schedule.loops import facts_at
from tc.schedule.tree import Place, find_block, find_loop, fresh_name, replace_stmt, statements


@dataclass(frozen=True)
class Interval:
    """Indices `low` .. `low + extent - 1` along one dimension of a buffer; `low` depends on outer loops only."""

    low: Expr
    extent: Expr


def compute_at(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Compute, in each iteration of `loop`, the part of a block's result that the iteration reads.

        for i: B[i] = f(i)                        for i0:
        for i0: for i1: C[..] = g(B[i0 * 8 + i1])  =>      for b in range(8): B[i0 * 8 + b] = f(i0 * 8 + b)
                                                           for i1: C[..] = g(B[i0 * 8 + i1])

    The buffer keeps its shape; `compact_buffers` shrinks it when the blocks are gone. Raises ScheduleError unless the block writes
    one scratch buffer at its own axes and all its readers are inside the loop. Source: `compute_at` of Halide and of TVM.
    """
    place, target = find_block(func, block), find_loop(func, loop)
    producer, anchor = place.stmt, target.stmt
    assert isinstance(producer, Block) and isinstance(anchor, For)
    store = _check_producer(func, producer, "compute_at")
    readers = _readers(func, store.buffer, producer)
    outside = [reader for reader in readers if anchor not in reader.path]
    if outside:
        name = outside[0].stmt.name  # type: ignore[attr-defined]
        raise ScheduleError(f"compute_at: block {name} reads {store.buffer.name} outside loop {loop}")
    if not readers:
        raise ScheduleError(f"compute_at: nothing inside loop {loop} reads {store.buffer.name}")
    region = _region(func, target, readers, store.buffer)
    nest = _nest(func, place, target, store, region)
    moved = replace_stmt(func, target, replace(anchor, body=seq(nest, anchor.body)))
    return replace_stmt(moved, _same_block(moved, producer, nest), None)


def reverse_compute_at(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Run, in each iteration of `loop`, the part of an elementwise block that reads what the iteration has made.

        for i0: for i1: B[i0 * 8 + i1] = ...           for i0:
        for i: C[i] = B[i]                        =>       for i1: B[i0 * 8 + i1] = ...
                                                           for c in range(8): C[i0 * 8 + c] = B[i0 * 8 + c]

    Raises ScheduleError unless the block is spatial and reads the producer's buffer at its own axes, one each.
    Source: `reverse_compute_at` of TVM.
    """
    place, target = find_block(func, block), find_loop(func, loop)
    consumer, anchor = place.stmt, target.stmt
    assert isinstance(consumer, Block) and isinstance(anchor, For)
    if consumer.init is not None or any(axis.kind is not AxisKind.SPATIAL for axis in consumer.axes):
        raise ScheduleError(f"reverse_compute_at: block {block} is not elementwise")
    producers = [p for p in statements(anchor) if isinstance(p.stmt, Block)]
    written = {n.buffer for p in producers for n in walk(p.stmt.body) if isinstance(n, Store)}  # type: ignore[attr-defined]
    loads = {n for n in walk(consumer.body) if isinstance(n, Load) and n.buffer in written}
    if not loads:
        raise ScheduleError(f"reverse_compute_at: block {block} reads nothing that loop {loop} makes")
    region: dict[Var, Interval] = {}
    for load in loads:
        written_region = _written_region(func, target, load.buffer)
        for index, interval in zip(load.indices, written_region, strict=True):
            if isinstance(index, Var) and index not in region:
                region[index] = interval
    missing = [axis for axis in consumer.axes if axis.var not in region]
    facts = facts_at(func, target)
    for axis in missing:
        if prove(axis.extent <= 1, facts) is not True:
            raise ScheduleError(f"reverse_compute_at: axis {axis.var.name} of {block} is not an index of what it reads")
        region[axis.var] = Interval(const(0), const(1))
    nest = _nest_over(func, target, consumer, region)
    moved = replace_stmt(func, target, replace(anchor, body=seq(anchor.body, nest)))
    return replace_stmt(moved, _same_block(moved, consumer, nest), None)


def _check_producer(func: PrimFunc, block: Block, what: str) -> Store:
    stores = [node for node in walk(block.body) if isinstance(node, Store)]
    buffers = {store.buffer for store in stores}
    if len(buffers) != 1:
        raise ScheduleError(f"{what}: block {block.name} must write one buffer, it writes {len(buffers)}")
    store = stores[0]
    if store.buffer in func.buffers:
        raise ScheduleError(f"{what}: block {block.name} writes the parameter {store.buffer.name}")
    spatial = {axis.var for axis in block.axes if axis.kind is AxisKind.SPATIAL}
    if not all(index in spatial or isinstance(index, Const) for index in store.indices):
        raise ScheduleError(f"{what}: block {block.name} does not write {store.buffer.name} at its own axes")
    return store


def _readers(func: PrimFunc, buffer: Buffer, producer: Block) -> list[Place]:
    return [
        place
        for place in statements(func.body)
        if isinstance(place.stmt, Block)
        and place.stmt is not producer
        and any(isinstance(node, Load) and node.buffer is buffer for node in walk(place.stmt.body))
    ]


def _same_block(func: PrimFunc, block: Block, nest: Stmt) -> Place:
    """The place of the original block, not of the copy of it inside `nest`."""
    for place in statements(func.body):
        if place.stmt is block and nest not in place.path:
            return place
    raise AssertionError(f"block {block.name} has vanished")


def _inner_loops(target: Place, place: Place) -> list[For]:
    """The loops between a loop and a block inside it."""
    anchor = target.stmt
    return list(place.loops[place.loops.index(anchor) + 1 :])  # type: ignore[arg-type]


def interval_of(index: Expr, inner: list[For], facts: Facts) -> Interval | None:
    """The values an index takes while the inner loops run; None when it is not linear in them."""
    variables = [loop.var for loop in inner]
    used = [loop for loop in inner if any(node is loop.var for node in walk(index))]
    if not used:
        return Interval(index, const(1))
    form = linear_coefficients(index, variables)
    if form is None:
        return None
    coefficients, low = form
    extent: Expr = const(1)
    for loop in used:
        coefficient = coefficients.get(loop.var, const(0))
        if prove(coefficient >= 0, facts) is True:
            extent = extent + coefficient * (loop.extent - 1)
        elif prove(coefficient <= 0, facts) is True:
            low = low + coefficient * (loop.extent - 1)
            extent = extent - coefficient * (loop.extent - 1)
        else:
            return None
    return Interval(simplify(low, facts), simplify(extent, facts))


def union(a: Interval, b: Interval, facts: Facts) -> Interval:
    """The smallest interval around two; falls back to symbolic min and max."""
    if a.low is b.low:
        return Interval(a.low, simplify(maximum(a.extent, b.extent), facts))
    low = simplify(minimum(a.low, b.low), facts)
    high = simplify(maximum(a.low + a.extent, b.low + b.extent), facts)
    return Interval(low, simplify(high - low, facts))


def _region(func: PrimFunc, target: Place, readers: list[Place], buffer: Buffer) -> list[Interval]:
    """What the readers inside `target` read of the buffer, in one iteration."""
    facts = _with_loop(facts_at(func, target), target)
    region: list[Interval | None] = [None] * len(buffer.shape)
    for place in readers:
        block = place.stmt
        assert isinstance(block, Block)
        inner = _inner_loops(target, place)
        values: dict[Node, Node] = {axis.var: axis.value for axis in block.axes}
        inside = facts
        for loop in inner:
            inside = inside.with_range(loop.var, loop.extent)
        for node in walk(block.body):
            if isinstance(node, Load) and node.buffer is buffer:
                for d, index in enumerate(node.indices):
                    found = interval_of(simplify(substitute(index, values), inside), inner, inside)
                    found = found or Interval(const(0), buffer.shape[d])
                    known = region[d]
                    region[d] = found if known is None else union(known, found, facts)
    return [
        Interval(const(0), dim) if interval is None else _clamped(interval, dim, facts)
        for interval, dim in zip(region, buffer.shape, strict=True)
    ]


def _with_loop(facts: Facts, place: Place) -> Facts:
    loop = place.stmt
    assert isinstance(loop, For)
    return facts.with_range(loop.var, loop.extent)


def _clamped(interval: Interval, dim: Expr, facts: Facts) -> Interval:
    """No more than the whole dimension."""
    if prove(interval.extent >= dim, facts) is True:
        return Interval(const(0), dim)
    return interval


def _written_region(func: PrimFunc, target: Place, buffer: Buffer) -> list[Interval]:
    """What the blocks inside `target` write of the buffer, in one iteration."""
    facts = _with_loop(facts_at(func, target), target)
    region: list[Interval | None] = [None] * len(buffer.shape)
    for place in statements(func.body):
        block = place.stmt
        if not isinstance(block, Block) or target.stmt not in place.path:
            continue
        inner = _inner_loops(target, place)
        values: dict[Node, Node] = {axis.var: axis.value for axis in block.axes}
        inside = facts
        for loop in inner:
            inside = inside.with_range(loop.var, loop.extent)
        for node in walk(block.body):
            if isinstance(node, Store) and node.buffer is buffer:
                for d, index in enumerate(node.indices):
                    found = interval_of(simplify(substitute(index, values), inside), inner, inside)
                    if found is None:
                        raise ScheduleError(f"reverse_compute_at: block {block.name} writes {buffer.name} irregularly")
                    known = region[d]
                    region[d] = found if known is None else union(known, found, facts)
    return [interval or Interval(const(0), dim) for interval, dim in zip(region, buffer.shape, strict=True)]


def _nest(func: PrimFunc, place: Place, target: Place, store: Store, region: list[Interval]) -> Stmt:
    """The producer's new loops: over the region for its spatial axes, as before for its reduction axes."""
    block = place.stmt
    assert isinstance(block, Block)
    intervals = {
        index: interval for index, interval in zip(store.indices, region, strict=True) if isinstance(index, Var)
    }
    return _nest_over(func, target, block, intervals, place)


def _nest_over(
    func: PrimFunc, target: Place, block: Block, region: dict[Var, Interval], place: Place | None = None
) -> Stmt:
    facts = _with_loop(facts_at(func, target), target)
    where: Expr = const(True, block.where.dtype)
    axes: list[BlockAxis] = []
    loops: list[tuple[Var, Expr]] = []
    used: set[str] = set()
    for axis in block.axes:
        interval = region.get(axis.var)
        if axis.kind is not AxisKind.SPATIAL or interval is None:
            extent = axis.extent
            low: Expr = const(0)
        else:
            low, extent = interval.low, interval.extent
        name = fresh_name(func, f"{axis.var.name.removeprefix('v')}t")
        while name in used:
            name += "t"
        used.add(name)
        var = Var(name, i64)
        loops.append((var, extent))
        value = simplify(low + var, facts)
        inside = facts.with_range(var, extent)
        condition = simplify(value < axis.extent, inside)
        if not (isinstance(condition, Const) and condition.value):
            where = logical_and(where, condition)
        below = simplify(value >= 0, inside)
        if not (isinstance(below, Const) and below.value):
            where = logical_and(where, below)
        axes.append(replace(axis, value=value))
    del place
    body: Stmt = replace(block, axes=tuple(axes), where=where)
    for var, extent in reversed(loops):
        body = For(var, extent, body)
    return body


