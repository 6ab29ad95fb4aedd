"""Several axes of a block as one, and several dims of a buffer as one: so that tiles run on across the ends of rows, and of images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove, simplify
from tc.ir.expr import TRUE, Buffer, Expr, Load, Var, const, equal, logical_and
from tc.ir.loop import AxisKind, BlockAxis, For, LoopKind, PrimFunc, Stmt, Store
from tc.ir.node import Node, replace, substitute, transform, walk
from tc.ir.uses import variables
from tc.schedule.layout import check_no_intrinsic, facts_of_axes, is_inside
from tc.schedule.tree import (
    Place,
    facts_at,
    find_block,
    find_buffer,
    fresh_names,
    loop_var,
    own_root,
    replace_stmt,
    writers_of,
)


def fuse_axes(func: PrimFunc, block: str, axes: Sequence[int]) -> PrimFunc:
    """Let a block have one axis, and one loop, the outermost, in place of the spatial axes of these numbers, which are its digits.

        for i in m: for j in n: B[i, j] = A[j, i]     =>     for f in m * n: B[f // n, f % n] = A[f % n, f // n]

    Raises ScheduleError unless each axis is a spatial one that a serial loop drives by itself, in a nest that is the block's alone.
    """
    place = find_block(func, block)
    _check_numbers(axes, len(place.block.axes), f"fuse_axes: block {block}")
    chosen = [place.block.axes[k] for k in axes]
    loops = loops_of_axes(place, chosen, "fuse_axes")
    (name,) = fresh_names(func, ["".join(loop.var.name for loop in loops)])
    loop, axis = loop_var(name), Var(f"v{name}", chosen[0].var.dtype)
    extent = simplify(_product([each.extent for each in chosen]), Facts.of(func.facts))
    digits: dict[Node, Node] = {}
    for number, each in enumerate(chosen):
        rest = axis // _product([inner.extent for inner in chosen[number + 1 :]])
        digits[each.var] = rest % each.extent if number else rest
    facts = Facts.of(func.facts).with_range(axis, extent)
    others = tuple(each for each in place.block.axes if each not in chosen)
    for each in others:
        facts = facts.with_range(each.var, each.extent)
    bare = replace(place.block, axes=others)
    body: Stmt = simplified_accesses(substitute(bare, digits), facts)  # type: ignore[assignment]
    body = replace(body, axes=(BlockAxis(axis, extent, AxisKind.SPATIAL, loop), *others))
    for outer in reversed(place.loops):
        body = body if outer in loops else replace(outer, body=body)
    return replace_stmt(func, own_root(place), For(loop, extent, body))


def tile_axes(func: PrimFunc, block: str, axes: Sequence[int], multiples: Sequence[int]) -> PrimFunc:
    """Let a block have one axis for the elements of tiles over the spatial axes of these numbers, behind those that number the tiles.

        for i in 16: for j in 32:           for io in 2: for jo in 4: for f in 64:
            B[i, j] = A[j, i]       =>          B[io * 8 + f // 8, jo * 8 + f % 8] = A[jo * 8 + f % 8, io * 8 + f // 8]     (8, 8)

    The new axes are the first ones, their loops the outermost. Raises ScheduleError unless each axis is a spatial one that a serial loop
    drives by itself, in a nest that is the block's alone, and has a multiple of its extent in a tile.
    """
    place = find_block(func, block)
    _check_numbers(axes, len(place.block.axes), f"tile_axes: block {block}")
    chosen, facts = [place.block.axes[k] for k in axes], Facts.of(func.facts)
    pairs = list(zip(chosen, multiples, strict=False))
    even = all(multiple > 0 and prove(equal(each.extent % multiple, 0), facts) is True for each, multiple in pairs)
    if len(multiples) != len(axes) or not even:
        raise ScheduleError(f"tile_axes: axes of block {block} are no multiples of {tuple(multiples)}")
    loops = loops_of_axes(place, chosen, "fuse_axes")
    *tiles, last = fresh_names(func, [*(f"{loop.var.name}o" for loop in loops), "".join(loop.var.name for loop in loops)])
    extents = [*(simplify(each.extent // multiple, facts) for each, multiple in pairs), const(prod(multiples))]
    made = [
        BlockAxis(Var(f"v{name}", chosen[0].var.dtype), extent, AxisKind.SPATIAL, loop_var(name))
        for name, extent in zip((*tiles, last), extents, strict=True)
    ]
    digits: dict[Node, Node] = {}
    for number, (each, multiple) in enumerate(pairs):
        rest = made[-1].var // prod(multiples[number + 1 :])
        digits[each.var] = made[number].var * multiple + (rest % multiple if number else rest)
    others = tuple(each for each in place.block.axes if each not in chosen)
    for each in (*made, *others):
        facts = facts.with_range(each.var, each.extent)
    bare = replace(place.block, axes=others)
    body: Stmt = simplified_accesses(substitute(bare, digits), facts)  # type: ignore[assignment]
    body = replace(body, axes=(*made, *others))
    for outer in reversed(place.loops):
        body = body if outer in loops else replace(outer, body=body)
    for each in reversed(made):
        body = For(each.value, each.extent, body)  # type: ignore[arg-type]
    return replace_stmt(func, own_root(place), body)


def _check_numbers(axes: Sequence[int], count: int, what: str) -> None:
    if len(axes) < 2 or len(set(axes)) != len(axes) or not all(0 <= k < count for k in axes):
        raise ScheduleError(f"{what} has no two or more axes {tuple(axes)}, it has {count}")


def loops_of_axes(place: Place, axes: Sequence[BlockAxis], what: str) -> list[For]:
    """The loops that drive spatial axes, each by itself."""
    root, name = own_root(place), place.block.name
    if len(root.path) + len(place.loops) != len(place.path) or root.loops:
        raise ScheduleError(f"{what}: the loops of block {name} are not its own")
    found = [_driving_loop(place, axis, what) for axis in axes]
    if any(node in {loop.var for loop in found} for loop in place.loops for node in walk(loop.extent)):
        raise ScheduleError(f"{what}: loops of block {name} run as far as others say")
    return found


def merge_dims(func: PrimFunc, buffer: str, axes: Sequence[int]) -> PrimFunc:
    """Let a scratch buffer have one dim, the first, in place of those of these numbers, everywhere.

        A[i, j, k]     =>     A[k * m + i, j]           (of the dims 2 and 0, the latter of extent m)

    Raises ScheduleError for a parameter, and where an intrinsic uses the buffer.
    """
    old = find_buffer(func, buffer)
    if old in func.buffers or old.strides is not None:
        raise ScheduleError(f"merge_dims: {buffer} is a parameter, or has strides")
    _check_numbers(axes, len(old.shape), f"merge_dims: buffer {buffer}")
    check_no_intrinsic(func, old, "merge_dims")
    others = [k for k in range(len(old.shape)) if k not in axes]
    facts = facts_of_axes(func)
    shape = (simplify(_product([old.shape[k] for k in axes]), facts), *(old.shape[k] for k in others))
    new = Buffer(old.name, shape, old.dtype, old.scope)

    def rewrite(node: Node) -> Node | None:
        if not isinstance(node, (Load, Store)) or node.buffer is not old:
            return None
        place: Expr = const(0)
        for k in axes:
            place = place * old.shape[k] + node.indices[k]
        return replace(node, buffer=new, indices=(simplify(place, facts), *(node.indices[k] for k in others)))

    return substitute(replace(func, body=transform(func.body, rewrite)), {old: new})


def run_on(func: PrimFunc, block: str, axes: Sequence[int], pitch: int, extent: int) -> PrimFunc:
    """Let a block have one axis, of `extent`, in place of two: it runs on from row to row, which begin `pitch` apart. What is between rows,
    and behind the last, nobody reads.

        for i in 7: for j in 7: for k in 3: C[i, j] += A[i * 9 + j + k]      =>      for q in 64: for k in 3: C[q] += A[q + k]
        for i in 7: for j in 7: D[i, j] = C[i, j]                                    for i in 7: for j in 7: D[i, j] = C[i * 9 + j]

    Raises ScheduleError unless serial loops, one directly inside the other, drive the axes, which are spatial, and no others; the block
    writes a scratch buffer at them, alone; and it reads what lies at `i * pitch + j`, as far as the new axis goes.
    """
    place = find_block(func, block)
    what, own, facts = f"run_on: block {block}", place.block, facts_at(func, place)
    _check_numbers(axes, len(own.axes), what)
    rows, columns = (own.axes[k] for k in axes) if len(axes) == 2 else (None, None)
    if rows is None or columns is None or own.where is not TRUE or not isinstance(own.body, Store):
        raise ScheduleError(f"{what} has conditions or several statements, or {tuple(axes)} are not two axes")
    inner = _driving_loop(place, columns, what)
    outer = _driving_loop(place, rows, what)
    if outer.body is not inner or any({outer.var, inner.var} & variables(loop.extent) for loop in place.loops):
        names = f"{inner.var.name} is not directly inside loop {outer.var.name}"
        raise ScheduleError(f"{what}: its loop {names}, or others run as far as they say")
    old = own.body.buffer
    at = next((k for k, index in enumerate(own.body.indices) if index is rows.var), -1)
    is_written = at >= 0 and own.body.indices[at + 1 : at + 2] == (columns.var,)
    if old in func.buffers or old.strides is not None or len(writers_of(func, old)) != 1 or not is_written:
        raise ScheduleError(f"{what} does not write a scratch buffer at these axes, alone")
    check_no_intrinsic(func, old, what)
    last = (rows.extent - 1) * pitch + columns.extent
    if prove(logical_and(columns.extent <= pitch, last <= extent), facts) is not True:
        raise ScheduleError(f"{what}: rows of {columns.extent} do not fit, {rows.extent} of them {pitch} apart in {extent}")
    new = Buffer(old.name, (*old.shape[:at], const(extent), *old.shape[at + 2 :]), old.dtype, old.scope)

    def merged(node: Node) -> Node | None:
        if not isinstance(node, (Load, Store)) or node.buffer is not old:
            return None
        i, j = node.indices[at : at + 2]
        return replace(node, buffer=new, indices=(*node.indices[:at], simplify(i * pitch + j), *node.indices[at + 2 :]))

    (name,) = fresh_names(func, [f"{outer.var.name}{inner.var.name}"])
    loop, var = loop_var(name), Var(f"v{name}", columns.var.dtype)
    inside = facts_of_axes(func).with_range(var, const(extent))
    axis = BlockAxis(var, const(extent), AxisKind.SPATIAL, loop)
    bare = replace(own, axes=tuple(each for each in own.axes if each is not columns))
    made = simplified_accesses(substitute(transform(bare, merged), {columns.var: var - rows.var * pitch}), inside)
    made = replace(made, axes=tuple(axis if each.var is rows.var else each for each in bare.axes))
    if rows.var in variables(made):
        raise ScheduleError(f"{what} reads what does not lie at {rows.var.name} * {pitch} + {columns.var.name}")
    for node in walk(made):
        if isinstance(node, Load) and not is_inside(node.indices, node.buffer.shape, inside):
            raise ScheduleError(f"{what} would read {node}, of which there are {tuple(map(str, node.buffer.shape))}")
    body = transform(inner.body, lambda node: made if node is own else None)
    around = Place(outer, place.path[: place.path.index(outer)])
    func = replace_stmt(func, around, For(loop, const(extent), body))
    return substitute(replace(func, body=transform(func.body, merged)), {old: new})


def _driving_loop(place: Place, axis: BlockAxis, what: str) -> For:
    """The serial loop that drives a spatial axis by itself, and no other axis."""
    loop = next((loop for loop in place.loops if loop.var is axis.value), None)
    users = [each for each in place.block.axes if loop is not None and loop.var in variables(each.value)]
    if loop is None or loop.kind is not LoopKind.SERIAL or axis.kind is not AxisKind.SPATIAL or len(users) != 1:
        name = f"axis {axis.var.name} of block {place.block.name}"
        raise ScheduleError(f"{what}: {name} is not spatial, and driven by a serial loop of its own")
    return loop


def _product(extents: Sequence[Expr]) -> Expr:
    total: Expr = const(1)
    for extent in extents:
        total = total * extent
    return total


def simplified_accesses(block: Node, facts: Facts) -> Node:
    """A block, or what is in it, with the indices of its accesses simplified."""

    def rewrite(node: Node) -> Node | None:
        if isinstance(node, (Load, Store)):
            return replace(node, indices=tuple(simplify(index, facts) for index in node.indices))
        return None

    return transform(block, rewrite)
