"""Primitives that merge a block into its neighbours."""

from __future__ import annotations

from tc.errors import ScheduleError
from tc.ir.arith import prove
from tc.ir.expr import TRUE, Buffer, Const, Eq, Expr, Le, Load, Lt, Ne, Select, Var, equal
from tc.ir.loop import AxisKind, Block, PrimFunc, Store
from tc.ir.node import Node, binders, replace, substitute, transform, walk
from tc.ir.uses import buffers_read, buffers_written, has_intrinsic, variables
from tc.schedule.tree import (
    Place,
    block_places,
    facts_at,
    find_block,
    is_uneven,
    replace_stmt,
    without_alloc,
    writers_of,
)


def compute_inline(func: PrimFunc, block: str) -> PrimFunc:
    """Compute a block's elements where they are read, and remove the block.

        B[i] = A[i] + 1.0
        C[i] = B[i] * 2.0     =>     C[i] = (A[i] + 1.0) * 2.0

    Raises ScheduleError unless the block is spatial, writes one element of a scratch buffer at its own axes, and is
    unconditional; and for floats that are computed and then compared with what was made of them, as with the largest of their row: computed
    anew they may be rounded another way. Source: `compute_inline` of TVM.
    """
    place = find_block(func, block)
    store = _elementwise_store(place.block, "compute_inline")
    if store.buffer in func.buffers:
        raise ScheduleError(f"compute_inline: block {block} writes the parameter {store.buffer.name}")
    axes = {axis.var for axis in place.block.axes}
    if len(set(store.indices)) != len(store.indices) or not all(index in axes for index in store.indices):
        raise ScheduleError(f"compute_inline: block {block} does not write {store.buffer.name} at its own axes")
    if place.block.where is not TRUE or not _is_trivial(place.block):
        raise ScheduleError(f"compute_inline: block {block} has been scheduled already")
    if len(writers_of(func, store.buffer)) > 1:
        raise ScheduleError(f"compute_inline: {store.buffer.name} has other writers than block {block}")
    _check_inputs_stay(func, place, store)
    _check_not_found_again(func, store)
    without = replace_stmt(func, place, None)
    inlined = replace(without, body=_inline_loads(without.body, store))
    return without_alloc(inlined, store.buffer)


def _elementwise_store(block: Block, what: str) -> Store:
    """The store of a block that computes each element of one buffer by itself; ScheduleError when it does something else."""
    spatial = all(axis.kind is AxisKind.SPATIAL for axis in block.axes)
    if not isinstance(block.body, Store) or block.init is not None or not spatial:
        raise ScheduleError(f"{what}: block {block.name} is not a plain elementwise computation")
    if any(isinstance(node, Load) and node.buffer is block.body.buffer for node in walk(block.body)):
        raise ScheduleError(f"{what}: block {block.name} reads {block.body.buffer.name}, which it writes")
    return block.body


def _check_inputs_stay(func: PrimFunc, place: Place, store: Store) -> None:
    """What the block reads must still be there where its result is read."""
    inputs = buffers_read(place.block)
    passed = False
    for other in block_places(func):
        if other.block is place.block:
            passed = True
            continue
        if store.buffer in buffers_read(other.block) and has_intrinsic(other.block):
            raise ScheduleError(f"compute_inline: an intrinsic of block {other.block.name} reads {store.buffer.name}")
        changed = inputs & buffers_written(other.block)
        if passed and changed:
            name = min(buffer.name for buffer in changed)
            raise ScheduleError(
                f"compute_inline: block {other.block.name} overwrites {name}, which {place.block.name} reads"
            )


def _check_not_found_again(func: PrimFunc, store: Store) -> None:
    """No reader compares the buffer's elements with those of scratch memory that another block fills; nothing is computed where they only
    move."""
    if not store.buffer.dtype.is_float or _is_moved(store.value):
        return
    for place in block_places(func):
        if store.buffer not in buffers_read(place.block):
            continue
        own = {*func.buffers, *buffers_written(place.block), store.buffer}
        for node in walk(place.block):
            if isinstance(node, (Eq, Ne, Lt, Le)):
                read = [buffers_read(operand) for operand in (node.lhs, node.rhs)]
                if any(store.buffer in one and other - own for one, other in (read, read[::-1])):
                    raise ScheduleError(f"compute_inline: block {place.block.name} compares {store.buffer.name} with what is made of it")


def _is_moved(value: Expr) -> bool:
    """Whether nothing is computed: elements are read, or chosen."""
    match value:
        case Load() | Const():
            return True
        case Select(true_value=one, false_value=other):
            return _is_moved(one) and _is_moved(other)
    return False


def _is_trivial(block: Block) -> bool:
    """Whether every axis is driven by one loop, as at the start."""
    return all(isinstance(axis.value, Var) or not variables(axis.value) for axis in block.axes)


def _inline_loads(stmt: Node, producer: Store) -> Node:
    def rewrite(node: Node) -> Node | None:
        if isinstance(node, Load) and node.buffer is producer.buffer:
            return substitute(producer.value, dict(zip(producer.indices, node.indices, strict=True)))
        return None

    return transform(stmt, rewrite, lambda node: producer.buffer in binders(node))


def reverse_compute_inline(func: PrimFunc, block: str) -> PrimFunc:
    """Apply an elementwise consumer right where its only producer stores.

        B[i] = A[i] + 1.0
        C[i] = B[i] * 2.0     =>     C[i] = (A[i] + 1.0) * 2.0        (the producer's loops are kept)

    Raises ScheduleError unless the consumer is the only reader of one scratch buffer, reads one element of it at its own axes,
    all of them, and the producer is a spatial block that writes nothing else. Source: `reverse_compute_inline` of TVM.
    """
    place = find_block(func, block)
    consumer = place.block
    store = _elementwise_store(consumer, "reverse_compute_inline")
    producer_place = _only_producer(func, place)
    producer = producer_place.block
    reduces = producer.init is not None or any(axis.kind is not AxisKind.SPATIAL for axis in producer.axes)
    if not isinstance(producer.body, Store) or reduces or producer.body.buffer in buffers_read(producer):
        raise ScheduleError(f"reverse_compute_inline: the producer {producer.name} is a reduction")
    if is_uneven(func, producer):
        raise ScheduleError(f"reverse_compute_inline: the producer {producer.name} may make a part of {producer.body.buffer.name} only")
    source = producer.body
    loads = {n for n in walk(store.value) if isinstance(n, Load) and n.buffer is source.buffer}
    if len(loads) != 1:
        raise ScheduleError(f"reverse_compute_inline: block {block} reads {source.buffer.name} in several ways")
    (load,) = loads
    _check_whole(func, place, load)
    _check_only_reader(func, place, producer_place, source.buffer)
    mapping: dict[Node, Node] = dict(zip(load.indices, source.indices, strict=True))
    mapping[load] = source.value
    new_store = Store(
        store.buffer, tuple(substitute(i, mapping) for i in store.indices), substitute(store.value, mapping)
    )
    merged = replace_stmt(func, producer_place, replace(producer, body=new_store))
    return without_alloc(replace_stmt(merged, find_block(merged, block), None), source.buffer)


def _only_producer(func: PrimFunc, place: Place) -> Place:
    read = buffers_read(place.block) - set(func.buffers)
    found = [p for p in block_places(func) if p.block is not place.block and buffers_written(p.block) & read]
    if len(found) != 1:
        raise ScheduleError(
            f"reverse_compute_inline: block {place.block.name} must have one producer, found {len(found)}"
        )
    return found[0]


def _check_whole(func: PrimFunc, place: Place, load: Load) -> None:
    """The consumer must go once over every element of what it reads."""
    block = place.block
    axes = {axis.var: axis for axis in block.axes}
    if len(load.indices) != len(axes) or {*load.indices} != {*axes}:
        raise ScheduleError(
            f"reverse_compute_inline: block {block.name} does not read {load.buffer.name} at its own axes"
        )
    facts = facts_at(func, place)
    for index, dim in zip(load.indices, load.buffer.shape, strict=True):
        assert isinstance(index, Var)
        if prove(equal(axes[index].extent, dim), facts) is not True:
            raise ScheduleError(f"reverse_compute_inline: block {block.name} reads a part of {load.buffer.name} only")


def _check_only_reader(func: PrimFunc, place: Place, producer: Place, buffer: Buffer) -> None:
    """Nothing else reads the buffer, and nothing between the two makes what the consumer reads or touches what it writes."""
    consumer = place.block
    between = False
    for other in block_places(func):
        if other.block is producer.block or other.block is consumer:
            between = other.block is producer.block
            continue
        if buffer in buffers_read(other.block):
            raise ScheduleError(f"reverse_compute_inline: block {other.block.name} reads {buffer.name} too")
        touched = buffers_written(other.block) | buffers_read(other.block)
        if between and (buffers_written(other.block) & buffers_read(consumer) or buffers_written(consumer) & touched):
            raise ScheduleError(f"reverse_compute_inline: block {consumer.name} depends on block {other.block.name}")
