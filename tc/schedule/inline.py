"""Primitives that merge a block into its neighbours."""

from __future__ import annotations

from tc.errors import ScheduleError
from tc.ir.expr import Buffer, Load, Var
from tc.ir.loop import Alloc, AxisKind, Block, PrimFunc, Stmt, Store
from tc.ir.node import Node, replace, substitute, transform, walk
from tc.schedule.tree import Place, find_block, replace_stmt, statements


def compute_inline(func: PrimFunc, block: str) -> PrimFunc:
    """Compute a block's elements where they are read, and remove the block.

        B[i] = A[i] + 1.0
        C[i] = B[i] * 2.0     =>     C[i] = (A[i] + 1.0) * 2.0

    Raises ScheduleError unless the block is spatial, writes one element of a scratch buffer at its own axes, and is
    unconditional. Source: `compute_inline` of TVM.
    """
    place = find_block(func, block)
    stmt = place.stmt
    assert isinstance(stmt, Block)
    store = _single_store(stmt)
    if store is None or stmt.init is not None or any(axis.kind is not AxisKind.SPATIAL for axis in stmt.axes):
        raise ScheduleError(f"compute_inline: block {block} is not a plain elementwise computation")
    if store.buffer in func.buffers:
        raise ScheduleError(f"compute_inline: block {block} writes the parameter {store.buffer.name}")
    axes = {axis.var for axis in stmt.axes}
    if len(set(store.indices)) != len(store.indices) or not all(index in axes for index in store.indices):
        raise ScheduleError(f"compute_inline: block {block} does not write {store.buffer.name} at its own axes")
    if not _is_trivial(stmt):
        raise ScheduleError(f"compute_inline: block {block} has been scheduled already")
    without = replace_stmt(func, place, None)
    inlined = replace(without, body=_inline_loads(without.body, store))
    return remove_alloc(inlined, store.buffer)


def _single_store(block: Block) -> Store | None:
    return block.body if isinstance(block.body, Store) else None


def _is_trivial(block: Block) -> bool:
    """Whether every axis is driven by one loop, as at the start."""
    values = [axis.value for axis in block.axes]
    return all(isinstance(value, Var) or not any(isinstance(n, Var) for n in walk(value)) for value in values)


def _inline_loads(stmt: Stmt, producer: Store) -> Stmt:
    def rewrite(node: Node) -> Node | None:
        if isinstance(node, Load) and node.buffer is producer.buffer:
            return substitute(producer.value, dict(zip(producer.indices, node.indices, strict=True)))
        return None

    return transform(stmt, rewrite)


def remove_alloc(func: PrimFunc, buffer: Buffer) -> PrimFunc:
    """Drop the allocation of a buffer that is no longer used."""

    def rewrite(node: Node) -> Node | None:
        return node.body if isinstance(node, Alloc) and node.buffer is buffer else None

    return replace(func, body=_map_stmts(func.body, rewrite))


def _map_stmts(stmt: Stmt, rewrite: object) -> Stmt:
    """Rewrite statements outside blocks, parents first."""
    new = rewrite(stmt)  # type: ignore[operator]
    if new is not None:
        return _map_stmts(new, rewrite)
    if isinstance(stmt, Block):
        return stmt
    changes = {}
    for name in ("body", "then_body", "else_body"):
        child = getattr(stmt, name, None)
        if isinstance(child, Stmt):
            mapped = _map_stmts(child, rewrite)
            if mapped is not child:
                changes[name] = mapped
    if hasattr(stmt, "stmts"):
        items = tuple(_map_stmts(item, rewrite) for item in stmt.stmts)
        if any(a is not b for a, b in zip(items, stmt.stmts, strict=True)):
            changes["stmts"] = items  # type: ignore[assignment]
    return replace(stmt, **changes) if changes else stmt


def reverse_compute_inline(func: PrimFunc, block: str) -> PrimFunc:
    """Apply an elementwise consumer right where its only producer stores.

        B[i] = A[i] + 1.0
        C[i] = B[i] * 2.0     =>     C[i] = (A[i] + 1.0) * 2.0        (the producer's loops are kept)

    Raises ScheduleError unless the consumer reads one element of one scratch buffer at its own axes, all of them, and the
    producer is a spatial block that writes nothing else. Source: `reverse_compute_inline` of TVM.
    """
    place = find_block(func, block)
    consumer = place.stmt
    assert isinstance(consumer, Block)
    store = _single_store(consumer)
    if store is None or any(axis.kind is not AxisKind.SPATIAL for axis in consumer.axes):
        raise ScheduleError(f"reverse_compute_inline: block {block} is not a plain elementwise computation")
    producer_place = _only_producer(func, place, store)
    producer = producer_place.stmt
    assert isinstance(producer, Block)
    source = _single_store(producer)
    if source is None or producer.init is not None:
        raise ScheduleError(f"reverse_compute_inline: the producer {producer.name} is a reduction")
    loads = {n for n in walk(store.value) if isinstance(n, Load) and n.buffer is source.buffer}
    if len(loads) != 1:
        raise ScheduleError(f"reverse_compute_inline: block {block} reads {source.buffer.name} in several ways")
    (load,) = loads
    axes = [axis.var for axis in consumer.axes]
    if sorted(map(id, load.indices)) != sorted(map(id, axes)):
        raise ScheduleError(f"reverse_compute_inline: block {block} does not read {source.buffer.name} at its own axes")
    mapping: dict[Node, Node] = dict(zip(load.indices, source.indices, strict=True))
    value = substitute(store.value, {load: source.value})
    new_store = Store(store.buffer, tuple(substitute(i, mapping) for i in store.indices), substitute(value, mapping))
    merged = replace_stmt(func, producer_place, replace(producer, body=new_store))
    return remove_alloc(replace_stmt(merged, find_block(merged, block), None), source.buffer)


def _only_producer(func: PrimFunc, place: Place, store: Store) -> Place:
    block = place.stmt
    assert isinstance(block, Block)
    read = {node.buffer for node in walk(store.value) if isinstance(node, Load)}
    found = []
    for other in statements(func.body):
        if isinstance(other.stmt, Block) and other.stmt is not block:
            written = {node.buffer for node in walk(other.stmt.body) if isinstance(node, Store)}
            if written & read and not written & set(func.buffers):
                found.append(other)
    if len(found) != 1:
        raise ScheduleError(f"reverse_compute_inline: block {block.name} must have one producer, found {len(found)}")
    return found[0]


def uses_of(func: PrimFunc, buffer: Buffer) -> list[Block]:
    """The blocks that touch a buffer."""
    return [
        place.stmt
        for place in statements(func.body)
        if isinstance(place.stmt, Block)
        and any(getattr(node, "buffer", None) is buffer for node in walk(place.stmt))
    ]


