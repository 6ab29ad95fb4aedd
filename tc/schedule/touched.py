"""Which part of a buffer a block touches in one iteration of a loop around it."""

from __future__ import annotations

from collections.abc import Iterable

from tc.ir.arith import Facts, prove, simplify
from tc.ir.expr import TRUE, Buffer, Const, Expr, FloorDiv, FloorMod, Load, Var
from tc.ir.loop import Block, BlockAxis, For, Let, PrimFunc, Stmt, Store
from tc.ir.node import Node, cached_on_node, substitute, walk
from tc.ir.uses import has_intrinsic, reads_memory, variables
from tc.schedule.region import Interval, interval_of, leaves_no_gaps, union, whole
from tc.schedule.tree import Place, facts_inside


def part_written(target: Place, place: Place, buffer: Buffer, facts: Facts) -> list[Interval] | None:
    """What a block inside a loop writes of a buffer in one iteration, where its condition holds; None when that may have gaps, or
    its stores are to several elements.

    `facts` hold in the body of the loop.
    """
    inner, inside, values = inside_of(target, place, facts)
    bound = _bound_below(place.block.body)
    used: set[Var] = set()
    region: list[Interval] = []
    first, *others = dict.fromkeys(_indices_of(place.block, buffer, Store)) or [()]
    if others or has_intrinsic(place.block):
        return None
    for index in first:
        value = simplify(substitute(index, values), inside)
        found = interval_of(value, inner, inside)
        own = variables(value) & {loop.var for loop in inner}
        if found is None or own & used or variables(value) & bound or not leaves_no_gaps(value, inner, inside):
            return None
        used |= own
        region.append(found)
    return region


def parts_read(func: PrimFunc, target: Place, readers: list[Place], buffer: Buffer) -> list[Interval]:
    """What the readers inside a loop read of a buffer, in one iteration."""
    facts = facts_inside(func, target)
    region: list[Interval | None] = [None] * len(buffer.shape)
    for place in readers:
        inner, inside, values = inside_of(target, place, facts)
        bound, opaque = _bound_below(place.block.body), has_intrinsic(place.block)
        seen: set[tuple[int, Expr]] = set()
        for indices in _indices_of(place.block, buffer, Load):
            for d, index in enumerate(indices):
                if (d, index) in seen:  # loads of one block differ in few of their indices
                    continue
                seen.add((d, index))
                value = simplify(substitute(index, values), inside)
                if _is_cut(value) and _guards_reads(place.block):
                    value = simplify(value, inside.assume(substitute(place.block.where, values)))
                found = None
                if not opaque and not variables(value) & bound and not reads_memory(value):
                    found = interval_of(value, inner, inside)
                found = found or whole(buffer.shape[d])
                known = region[d]
                region[d] = found if known is None else union(known, found, facts)
    return [
        whole(dim) if part is None or _is_no_less(part.extent, dim, facts) else part
        for part, dim in zip(region, buffer.shape, strict=True)
    ]


def _is_cut(index: Expr) -> bool:
    """Whether it has quotients or remainders, of which a block's condition may say more: nothing is read where that does not hold."""
    return any(isinstance(node, (FloorDiv, FloorMod)) for node in walk(index))


def _guards_reads(block: Block) -> bool:
    """Whether a block has a condition, and reads memory only where that holds."""
    return block.where is not TRUE and not any(map(reads_memory, (block.where, *(axis.value for axis in block.axes))))


def _is_no_less(extent: Expr, dim: Expr, facts: Facts) -> bool:
    """Whether a part is as good as the whole: not when its size is a number and that of the whole is none, however small."""
    if isinstance(extent, Const) and not isinstance(dim, Const):
        return False
    return prove(extent >= dim, facts) is True


def inside_of(target: Place, place: Place, facts: Facts) -> tuple[list[For], Facts, dict[Node, Node]]:
    """The loops between a loop and a block inside it, what is known there, and the values of the block's axes."""
    loops = place.loops
    inner = list(loops[loops.index(target.loop) + 1 :])
    for loop in inner:
        facts = facts.with_range(loop.var, loop.extent)
    return inner, facts, {axis.var: axis.value for axis in place.block.axes}


def _indices_of(block: Block, buffer: Buffer, kind: type[Node]) -> Iterable[tuple[Expr, ...]]:
    """The indices at which a block loads from, or stores to, a buffer."""
    parts = (block.body, block.init, block.where, *(axis.value for axis in block.axes))
    for part in parts:
        for its_kind, its_buffer, indices in () if part is None else _accesses(part):
            if its_kind is kind and its_buffer is buffer:
                yield indices


@cached_on_node
def _accesses(node: Node) -> tuple[tuple[type[Node], Buffer, tuple[Expr, ...]], ...]:
    """The loads and stores at and below a node, each once: the kind, the buffer and the indices."""
    found = (node for node in walk(node) if isinstance(node, (Load, Store)))
    return tuple(dict.fromkeys((type(node), node.buffer, node.indices) for node in found))


@cached_on_node
def _bound_below(stmt: Stmt) -> frozenset[Var]:
    """Variables that mean something only inside the body of a block: those of its loops, lets, and the axes of blocks in it."""
    return frozenset(node.var for node in walk(stmt) if isinstance(node, (For, Let, BlockAxis)))
