"""A block as several, one for each part of an axis: what is joined is copied part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove, simplify
from tc.ir.expr import Expr, Lt, Select, const
from tc.ir.loop import AxisKind, Block, BlockAxis, PrimFunc, Stmt, seq
from tc.ir.node import Node, cached_by_identity, replace, substitute, transform, walk
from tc.ir.structural import fresh_binders
from tc.ir.uses import reads_memory, variables
from tc.schedule.layout import facts_of_axes
from tc.schedule.merge import loops_of_axes, simplified_accesses
from tc.schedule.tree import find_block, fresh_block_name, own_root, rename_loops, replace_stmt


def cut_choices(func: PrimFunc, block: str, axis: int) -> PrimFunc:
    """Make a block one for each part of a spatial axis in which what is chosen by its place there does not change.

        for i in n + m: B[i] = select(i < n, A[i], C[i - n])     =>     for i in n: B[i] = A[i]
                                                                        for i in m: B[i + n] = C[i]

    Raises ScheduleError where nothing is chosen so, the order of the places where choices change is not known, and unless a serial loop
    drives the axis by itself, in a nest that is the block's alone.
    """
    place = find_block(func, block)
    if not 0 <= axis < len(place.block.axes):
        raise ScheduleError(f"cut_choices: block {block} has no axis {axis}, it has {len(place.block.axes)}")
    chosen, facts = place.block.axes[axis], facts_of_axes(func)
    (loop,) = loops_of_axes(place, [chosen], "cut_choices")
    found = choice_ends(place.block, axis)
    if not found:
        raise ScheduleError(f"cut_choices: nothing is chosen along axis {axis} of block {block}")
    ends = in_order(found, chosen.extent, facts)
    if ends is None:
        raise ScheduleError(f"cut_choices: the order of {', '.join(map(str, (0, *found, chosen.extent)))} is not known")
    places = [const(0), *ends, chosen.extent]
    nests = list[Stmt]()
    for number, (begin, end) in enumerate(pairwise(places)):
        extent = simplify(end - begin, facts)
        if prove(extent <= 0, facts) is True:
            continue
        name = fresh_block_name(func, f"{block}_part{number}")
        holds = {each: k >= number for k, each in enumerate(ends)}
        part = _part(replace(place.block, name=name), chosen, begin, extent, holds, facts)
        nest: Stmt = replace(part, where=substitute(part.where, {loop.var: loop.var + begin}))
        for outer in reversed(place.loops):
            nest = replace(outer, body=nest, extent=extent if outer is loop else outer.extent)
        nests.append(fresh_binders(nest))
    return rename_loops(replace_stmt(func, own_root(place), seq(*nests)))


def choice_ends(block: Block, axis: int) -> list[Expr]:
    """Where along an axis a choice by the place there alone changes."""
    chosen = block.axes[axis]
    if chosen.kind is not AxisKind.SPATIAL or block.init is not None:
        return []
    own = {each.var for each in block.axes}
    found = dict.fromkeys(end for place, end in _choices(block.body) if place is chosen.var)
    return [end for end in found if not variables(end) & own and not reads_memory(end)]


@cached_by_identity(64)
def _choices(body: Stmt) -> tuple[tuple[Expr, Expr], ...]:
    """The places by which something is chosen, and where these choices change."""
    conditions = dict.fromkeys(node.condition for node in walk(body) if isinstance(node, Select))
    return tuple((condition.lhs, condition.rhs) for condition in conditions if isinstance(condition, Lt))


def in_order(ends: Sequence[Expr], extent: Expr, facts: Facts) -> list[Expr] | None:
    """Places along an axis in their order, from 0 to its extent; None where that is not known."""
    ordered: list[Expr] = [const(0)]
    for end in ends:
        ordered.insert(sum(prove(known <= end, facts) is True for known in ordered), end)
    is_known = all(prove(begin <= end, facts) is True for begin, end in pairwise([*ordered, extent]))
    return ordered[1:] if is_known else None


def _part(block: Block, axis: BlockAxis, begin: Expr, extent: Expr, holds: Mapping[Expr, bool], facts: Facts) -> Block:
    """The block where the axis begins at a place; `holds`: the ends of choices, and whether the part is before them."""

    def decide(node: Node) -> Node | None:
        match node:
            case Select(condition=Lt(lhs=place, rhs=end)) if place is axis.var and end in holds:
                return node.true_value if holds[end] else node.false_value
        return None

    def decided(node: Node) -> Node:
        while (once := transform(node, decide)) is not node:
            node = once
        return node

    axes = tuple(replace(each, extent=extent) if each is axis else each for each in block.axes)
    inside = facts.with_range(axis.var, extent)
    moved = substitute(decided(block.body), {axis.var: axis.var + begin})
    return replace(block, axes=axes, body=simplified_accesses(moved, inside))
