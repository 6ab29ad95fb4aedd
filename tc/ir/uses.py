"""What a piece of loop IR mentions: variables, buffers it reads and writes. Each answer is kept with the node."""

from __future__ import annotations

from tc.ir.box_copies import Arrive, CopyBox, SetUpBarrier
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Load, Max, Min, Select, Var
from tc.ir.loop import Alloc, Block, For, If, IntrinsicCall, Let, Stmt, Store, WarpCall, While, inner_statements
from tc.ir.node import Located, Node, binders, cached_on_node, children


def variables(node: Node) -> frozenset[Var]:
    """The variables that occur at or below a node."""
    return frozenset((node,)) if isinstance(node, Var) else _variables_below(node)


@cached_on_node
def _variables_below(node: Node) -> frozenset[Var]:
    return frozenset(inner for inner in binders(node) if isinstance(inner, Var))


@cached_on_node
def buffers_read(node: Node) -> frozenset[Buffer]:
    """Buffers that a block (or a part of one) loads from, its own result included for a reduction."""
    below = _joined([buffers_read(child) for child in children(node)])
    if isinstance(node, CopyBox):
        return below | {node.source}
    return below | {node.buffer} if isinstance(node, Load) else below


def _joined(parts: list[frozenset[Buffer]]) -> frozenset[Buffer]:
    """All of several sets, most of which are empty."""
    some = [part for part in parts if part]
    return frozenset().union(*some) if len(some) > 1 else some[0] if some else _NO_BUFFERS


_NO_BUFFERS: frozenset[Buffer] = frozenset()


@cached_on_node
def buffers_written(node: Node) -> frozenset[Buffer]:
    """Buffers that a block (or a part of one) stores to; the operands of an intrinsic count as read and written."""
    if isinstance(node, Store):
        return frozenset((node.buffer,))
    if isinstance(node, IntrinsicCall):
        return frozenset(operand.buffer for operand in node.operands if isinstance(operand, Load))
    if isinstance(node, CopyBox):
        return frozenset((node.buffer, node.barrier.buffer))
    if isinstance(node, (SetUpBarrier, Arrive)):
        return frozenset((node.barrier.buffer,))
    if isinstance(node, WarpCall):
        return frozenset((node.operands[-1].buffer,))
    return _joined([buffers_written(child) for child in children(node) if isinstance(child, Located)])


@cached_on_node
def has_selects(node: Node) -> bool:
    """Whether anything at or below a node is one of two values, as a condition says; not the sizes of buffers, which nothing computes."""
    return isinstance(node, Select) or (not isinstance(node, Buffer) and any(map(has_selects, children(node))))


@cached_on_node
def has_choices(node: Node) -> bool:
    """Whether anything at or below a node is one of two values as a condition says, or of two indices the larger or smaller one; not the
    sizes of buffers."""
    is_one = isinstance(node, Select) or (isinstance(node, (Max, Min)) and node.dtype == i64)
    return is_one or (not isinstance(node, Buffer) and any(map(has_choices, children(node))))


@cached_on_node
def has_intrinsic(stmt: Stmt) -> bool:
    """Whether a block hands regions of buffers to an intrinsic, so that its loads do not tell all that it touches."""
    return isinstance(stmt, IntrinsicCall) or any(map(has_intrinsic, inner_statements(stmt)))


@cached_on_node
def has_tiles(stmt: Stmt) -> bool:
    """Whether tiles are held in registers of their own at or below a statement."""
    is_one = isinstance(stmt, Alloc) and stmt.buffer.scope == "tile"
    return is_one or any(map(has_tiles, inner_statements(stmt)))


@cached_on_node
def unbound(node: Stmt) -> frozenset[Node]:
    """The variables and buffers that a statement uses and does not bind itself: what has to be in scope where it stands."""
    match node:
        case For(var=var, extent=extent, body=body):
            inside = unbound(body)
            return (inside - {var} if var in inside else inside) | binders(extent)
        case Let(var=var, value=value, body=body):
            return binders(value) | (unbound(body) - {var})
        case Alloc(buffer=buffer, body=body):
            return frozenset().union(*map(binders, children(buffer))) | (unbound(body) - {buffer})
        case Block(axes=axes, body=body, init=init, where=where):
            inside = unbound(body) | (frozenset() if init is None else unbound(init))
            outside = [part for axis in axes for part in (axis.extent, axis.value)]
            return (inside - {axis.var for axis in axes}).union(binders(where), *map(binders, outside))
    return frozenset[Node]().union(*(unbound(child) if isinstance(child, Stmt) else binders(child) for child in children(node)))


def own_reads(stmt: Stmt) -> frozenset[Buffer]:
    """Buffers that a statement which is around others reads itself, to know whether and how often those run."""
    match stmt:
        case For(extent=expr) | Let(value=expr) | If(condition=expr) | While(condition=expr):
            return buffers_read(expr)
    return frozenset()


def reads_memory(node: Node) -> bool:
    """Whether it depends on the contents of a buffer: a second evaluation may differ, and it has a value only where it is guarded so."""
    return bool(buffers_read(node))


def touches(node: Node, buffer: Buffer) -> bool:
    """Whether an element of a buffer is read or written at or below a node."""
    return buffer in buffers_read(node) or buffer in buffers_written(node)
