"""Axes along which everything lies without gaps, as one: of a symbolic one nobody knows how short it is, whose elements a rule would put
into the lanes of vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tc.ir.arith import Facts, prove, simplify
from tc.ir.expr import Buffer, Const, Expr, Load, Var, equal, is_const
from tc.ir.loop import AxisKind, Block, BlockAxis, For, IntrinsicCall, LoopKind, PrimFunc, Store
from tc.ir.node import Node, children, replace, substitute, transform, walk
from tc.ir.types import product
from tc.ir.uses import reads_memory, variables
from tc.schedule.tree import Place, allocated_in, block_places, fresh_names, loop_var, own_root, place_of, replace_stmt

Pair = tuple[Expr, Expr]
Access = Load | Store


def merge_dense(func: PrimFunc, known: int = 0) -> PrimFunc:
    """Have one axis, and one dim, in place of neighbours along which all blocks go from the first element to the last, where the inner is
    symbolic, or, if `known` is 1, of any extent.

        for i in a: for j in b: for r in c: B[i, j] += A[r, i, j]     =>     for f in a * b: for r in c: B[f] += A[r, f]

    Parameters too have fewer dims then: their memory is the same. What has strides, and what an intrinsic or anything beside blocks
    touches, stays; so do blocks whose loops are not their own, one for each axis.
    """
    places = [place for place in block_places(func) if _is_plain(place)]
    axes: dict[Expr, BlockAxis] = {axis.var: axis for place in places for axis in place.block.axes if isinstance(axis.value, Var)}
    accesses: list[Access] = []
    loose: set[Expr] = set()  # axes that are used otherwise than as an index by themselves
    for place in places:
        _note_uses(place.block, accesses, loose)
        loose |= {axis.var for axis in place.block.axes if reads_memory(axis.extent) or not variables(axis.extent) <= set(func.dims)}
    fixed, facts = _fixed_buffers(func, places), Facts.of(func.facts)
    found = {(two, access.buffer.shape[k + 1]) for access in accesses for k, two in enumerate(_neighbours(access))}
    unfit = {two for two, dim in found if not _may_be_one(two, dim, axes, loose, facts, known=bool(known))}
    pairs = {two for two, _ in found} - unfit
    while True:
        joined = _joined_dims(accesses, pairs, fixed)
        left = {pair for pair in pairs if all(_are_together(access, pair, joined) for access in accesses)}
        if left == pairs:
            return _merged(func, places, pairs, joined, facts) if pairs else func
        pairs = left


def _is_plain(place: Place) -> bool:
    """Whether serial loops, one for each axis of more than one element, are a block's own."""
    root = own_root(place)
    if len(root.path) + len(place.loops) != len(place.path) or root.loops:
        return False
    loops = {loop.var for loop in place.loops if loop.kind is LoopKind.SERIAL}
    moving = [axis.value for axis in place.block.axes if not is_const(axis.value, 0)]
    return len(loops) == len(place.loops) == len(moving) and set(moving) == loops


def _note_uses(block: Block, accesses: list[Access], loose: set[Expr]) -> None:
    """Collect the accesses of a block, and the variables that are anything but an index by themselves."""

    def visit(node: Node) -> None:
        if isinstance(node, Var):
            loose.add(node)
        elif isinstance(node, (Load, Store)):
            accesses.append(node)
            for index in node.indices:
                if not isinstance(index, Var):
                    visit(index)
            if isinstance(node, Store):
                visit(node.value)
        else:
            for child in children(node):
                visit(child)

    for part in (block.body, block.init, block.where, *(axis.extent for axis in block.axes)):
        if part is not None:
            visit(part)


def _fixed_buffers(func: PrimFunc, places: list[Place]) -> set[Buffer]:
    """Buffers that have strides, or that something beside these blocks touches, or an intrinsic."""
    fixed = {buffer for buffer in (*func.buffers, *allocated_in(func.body)) if buffer.strides is not None}
    inside = {place.block for place in places}

    def visit(node: Node) -> None:
        if isinstance(node, (Load, Store)):
            fixed.add(node.buffer)
        for child in children(node):
            if child not in inside:
                visit(child)

    visit(func.body)
    calls = (call for block in inside for call in walk(block) if isinstance(call, IntrinsicCall))
    return fixed | {node for call in calls for node in walk(call) if isinstance(node, Buffer)}


def _neighbours(access: Access) -> Iterable[Pair]:
    return zip(access.indices, access.indices[1:], strict=False)


def _may_be_one(two: Pair, dim: Expr, axes: dict[Expr, BlockAxis], loose: set[Expr], facts: Facts, *, known: bool) -> bool:
    """Whether two indices are axes of one kind, the inner of which is symbolic, or `known` allows any, and runs through all of a dim."""
    one, other = axes.get(two[0]), axes.get(two[1])
    if one is None or other is None or loose & set(two) or one.kind is not other.kind or one.kind is AxisKind.ORDERED:
        return False
    return (known or not isinstance(other.extent, Const)) and prove(equal(other.extent, dim), facts) is True


def _joined_dims(accesses: list[Access], pairs: set[Pair], fixed: set[Buffer]) -> set[tuple[Buffer, int]]:
    """The dims that are one with the next: in some access of axes that are one, and in all others of such or of numbers."""
    found, apart = set(), set()
    for access in accesses:
        for k, two in enumerate(_neighbours(access)):
            if two in pairs and access.buffer not in fixed:
                found.add((access.buffer, k))
            elif access.buffer in fixed or not all(isinstance(index, Const) for index in two):
                apart.add((access.buffer, k))
    return found - apart


def _are_together(access: Access, pair: Pair, joined: set[tuple[Buffer, int]]) -> bool:
    """Whether an access has both of two axes, one behind the other in dims that are one, or neither."""
    for k, index in enumerate(access.indices):
        first = k if index is pair[0] else k - 1 if index is pair[1] else None
        if first is None:
            continue
        if first < 0 or access.indices[first : first + 2] != pair or (access.buffer, first) not in joined:
            return False
    return True


def _merged(func: PrimFunc, places: list[Place], pairs: set[Pair], joined: set[tuple[Buffer, int]], facts: Facts) -> PrimFunc:
    following = dict(pairs)
    whole: dict[Expr, Var] = {}  # by the first of the axes that are one

    def one(extents: Iterable[Expr]) -> Expr:
        return simplify(product(tuple(extents)), facts)

    for block in [place.block for place in places]:
        func = _with_whole_axes(func, block, following, whole, one)
    runs = {buffer: _runs(buffer, joined) for buffer, _ in joined}
    made = {
        buffer: Buffer(buffer.name, tuple(one(buffer.shape[k] for k in run) for run in own), buffer.dtype, buffer.scope)
        for buffer, own in runs.items()
    }

    def index(access: Access, run: list[int]) -> Expr:
        place = access.indices[run[0]]
        if place in whole and len(run) > 1:
            return whole[place]
        for k in run[1:]:
            place = place * access.buffer.shape[k] + access.indices[k]
        return simplify(place, facts)

    def rewrite(node: Node) -> Node | None:
        if not isinstance(node, (Load, Store)) or node.buffer not in made:
            return None
        return replace(node, buffer=made[node.buffer], indices=tuple(index(node, run) for run in runs[node.buffer]))

    return substitute(replace(func, body=transform(func.body, rewrite)), dict(made))


def _runs(buffer: Buffer, joined: set[tuple[Buffer, int]]) -> list[list[int]]:
    """The dims of a buffer, those together that become one."""
    found = [[0]]
    for k in range(1, len(buffer.shape)):
        if (buffer, k - 1) in joined:
            found[-1].append(k)
        else:
            found.append([k])
    return found


def _with_whole_axes(
    func: PrimFunc, block: Block, following: dict[Expr, Expr], whole: dict[Expr, Var], one: Callable[[Iterable[Expr]], Expr]
) -> PrimFunc:
    """The function with one axis, and one loop, for each of the groups of axes of a block, which the block does not use yet."""
    by_var: dict[Expr, BlockAxis] = {axis.var: axis for axis in block.axes}
    axes: list[BlockAxis] = []
    loops: dict[Expr, For | None] = {}
    place, later = place_of(func, block), set(following.values())
    for axis in block.axes:
        if axis.var in later:
            continue
        group = [axis]
        while group[-1].var in following:
            group.append(by_var[following[group[-1].var]])
        if len(group) == 1:
            axes.append(axis)
            continue
        (name,) = fresh_names(func, ["".join(str(each.value) for each in group)])
        extent, loop = one(each.extent for each in group), loop_var(name)
        whole[axis.var] = Var(f"v{name}", axis.var.dtype)
        axes.append(BlockAxis(whole[axis.var], extent, axis.kind, loop))
        driven: set[Expr] = {each.value for each in group}
        outermost = next(each for each in place.loops if each.var in driven)
        loops |= {**dict.fromkeys(driven), outermost.var: replace(outermost, var=loop, extent=extent)}
    if not loops:
        return func
    body: Block | For = replace(block, axes=tuple(axes))
    for old in reversed(place.loops):
        new = loops.get(old.var, old)
        body = body if new is None else replace(new, body=body)
    return replace_stmt(func, own_root(place), body)
