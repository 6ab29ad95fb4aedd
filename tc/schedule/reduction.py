"""Primitives for reductions: where they start, and how they are taken apart."""

from __future__ import annotations

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove, simplify
from tc.ir.dtype import i64
from tc.ir.expr import Add, Buffer, Const, Expr, FloorDiv, FloorMod, Load, Var, conjuncts, const, equal, logical_and
from tc.ir.loop import (
    Alloc,
    AxisKind,
    Block,
    BlockAxis,
    For,
    If,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Stmt,
    Store,
    annotation,
    seq,
)
from tc.ir.node import Node, replace, substitute, transform, walk
from tc.ir.paths import facts_along
from tc.ir.uses import buffers_read, buffers_written, has_intrinsic, variables
from tc.schedule.tree import (
    Place,
    axis_loops,
    block_names,
    block_places,
    check_extent_stays,
    facts_at,
    find_block,
    find_loop,
    fresh_block_name,
    fresh_buffer_name,
    fresh_names,
    loop_var,
    own_root,
    replace_stmt,
    writers_of,
)
from tc.te import MONOIDS


def decompose_reduction(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Move the initialisation of a reduction in front of `loop`, as a block `<block>_init`.

        for i: for k:                                  for i:
            if k == 0: C[i] = 0                 =>         C[i] = 0
            C[i] = C[i] + A[i, k]                          for k: C[i] = C[i] + A[i, k]

    The initialisation gets the loops at and below `loop` that drive spatial axes. Raises ScheduleError if the block has no
    initialisation, a loop outside `loop` drives a reduction axis, a loop drives spatial and reduction axes at once, or the
    loops from `loop` on are shared with another block or repeat this one.
    Source: `decompose_reduction` of TVM.
    """
    place, target = find_block(func, block), find_loop(func, loop)
    stmt = place.block
    if stmt.init is None:
        raise ScheduleError(f"decompose_reduction: block {block} has no initialisation")
    if target.stmt not in place.path:
        raise ScheduleError(f"decompose_reduction: loop {loop} is not around block {block}")
    kinds = axis_loops(place)
    position = place.loops.index(target.loop)
    _check_visited_once(func, place, target)
    for outer in place.loops[:position]:
        once = equal(outer.extent, 1)  # of no iteration, nothing inside would be initialised
        if _reduces(kinds, outer.var) and prove(once, facts_along(func, place.path[: place.path.index(outer)], outer)) is not True:
            raise ScheduleError(
                f"decompose_reduction: loop {outer.var.name} outside loop {loop} drives a reduction of block {block}"
            )
    spatial = tuple(axis for axis in stmt.axes if axis.kind is AxisKind.SPATIAL)
    _check_apart(spatial, kinds, "decompose_reduction", block)
    check_extent_stays("decompose_reduction", *place.loops[position:])
    start = points_of(func, place, place.path.index(target.stmt), fresh_block_name(func, f"{block}_init"), stmt.init)
    update = replace_stmt(func, place, replace(stmt, init=None))
    loop_place = find_loop(update, loop)
    return replace_stmt(update, loop_place, seq(start, loop_place.stmt))


def points_of(
    func: PrimFunc, place: Place, depth: int, name: str, body: Stmt, ordered: tuple[BlockAxis, ...] = (), suffix: str = "init"
) -> Stmt:
    """A block that does `body` for each point of the spatial axes of the block at `place`, under copies of those of the loops around it
    which drive these, from the `depth`-th statement of the path on; `ordered`: axes of its own besides.

    ScheduleError when the extent of such a loop depends on one that drives a reduction.
    """
    block, kinds = place.block, axis_loops(place)
    spatial = tuple(axis for axis in block.axes if axis.kind is AxisKind.SPATIAL)
    where = logical_and(*(part for part in conjuncts(block.where) if not _mentions_reduction(part, kinds)))
    needed = {var for axis in spatial for var in variables(axis.value)} | variables(where)
    loops = [each for each in place.path[depth:] if isinstance(each, For)]
    inner = [each for each in loops if each.var in needed]
    left = {each.var for each in loops if each not in inner}
    for each in inner:
        if variables(each.extent) & left:
            raise ScheduleError(f"the extent {each.extent} of loop {each.var.name} depends on a loop that drives a reduction")
    names = fresh_names(func, [f"{each.var.name}_{suffix}" for each in inner])
    renamed: dict[Node, Node] = {each.var: loop_var(name) for each, name in zip(inner, names, strict=True)}
    axes: dict[Node, Node] = {axis.var: Var(axis.var.name, i64) for axis in spatial}
    own = tuple(replace(axis, var=axes[axis.var], value=substitute(axis.value, renamed)) for axis in spatial)
    order = tuple(replace(axis, var=Var(axis.var.name, i64)) for axis in ordered)
    start: Stmt = Block(name, (*order, *own), substitute(body, axes), where=substitute(where, renamed), span=block.span)
    for each in reversed(inner):
        extent = substitute(each.extent, renamed)
        start = For(renamed[each.var], extent, start, each.kind, each.thread, each.hints)  # type: ignore[arg-type]
    return start


def _check_visited_once(func: PrimFunc, place: Place, target: Place) -> None:
    """One initialisation in front of a loop is enough only if the loop does not go over the same elements again."""
    block, loop = place.block, target.loop
    sharing = [name for name in block_names(loop) if name != block.name]
    if sharing:
        raise ScheduleError(f"decompose_reduction: loop {loop.var.name} is around block {sharing[0]} too")
    driving = {var for axis in block.axes for var in variables(axis.value)}
    for each in place.loops[place.loops.index(loop) :]:
        if each.var not in driving and prove(each.extent <= 1, facts_at(func, place)) is not True:
            raise ScheduleError(f"decompose_reduction: loop {each.var.name} repeats block {block.name}")


def _reduces(kinds: dict[Var, AxisKind], var: Var) -> bool:
    return kinds.get(var, AxisKind.SPATIAL) is not AxisKind.SPATIAL


def _mentions_reduction(condition: Expr, kinds: dict[Var, AxisKind]) -> bool:
    return any(_reduces(kinds, var) for var in variables(condition))


def _check_apart(spatial: tuple[BlockAxis, ...], kinds: dict[Var, AxisKind], what: str, block: str) -> None:
    for axis in spatial:
        for var in variables(axis.value):
            if _reduces(kinds, var):
                raise ScheduleError(
                    f"{what}: loop {var.name} drives spatial and reduction axes of block {block} at once"
                )


def init_with_addend(func: PrimFunc, block: str) -> PrimFunc:
    """Let sums of integers, which the block sets to 0, start with what is added to them when they are done.

        for j: C[i, j] = 0                                  for j: C[i, j] = B[j]
        for k: for j: C[i, j] = C[i, j] + A[k, j]    =>     for k: for j: C[i, j] = C[i, j] + A[k, j]
        for j: Y[i, j] = f(C[i, j] + B[j])                  for j: Y[i, j] = f(C[i, j])

    Sums of integers wrap, so every bit stays. Raises ScheduleError unless the block does that at its own axes, what else writes the sums
    adds to them, and what else reads them adds one element of an input to each, the same everywhere.
    """
    start = find_block(func, block).block
    store = start.body
    if not isinstance(store, Store) or not _is_zero(store.value):
        raise ScheduleError(f"init_with_addend: block {block} does not set sums of integers to 0")
    sums, axes = store.buffer, {axis.var for axis in start.axes}
    if sums in func.buffers or len(set(store.indices)) != len(store.indices) or not axes.issuperset(store.indices):
        raise ScheduleError(f"init_with_addend: block {block} does not write scratch memory at its own axes")
    added: dict[Node, Load] = {}
    addends: set[Load] = set()
    for other in (place.block for place in block_places(func)):
        if other is start or sums not in buffers_read(other) | buffers_written(other):
            continue
        if sums in buffers_written(other):
            if not _adds_to(other.body, sums):
                raise ScheduleError(f"init_with_addend: block {other.name} does not just add to {sums.name}")
            continue
        found = [(node, *_sum_and_addend(node, sums)) for node in walk(other) if isinstance(node, Add)]
        found = [each for each in found if each[1] is not None]
        reads = sum(isinstance(node, Load) and node.buffer is sums for node in walk(other))
        if has_intrinsic(other) or len(found) != reads:
            raise ScheduleError(f"init_with_addend: block {other.name} reads {sums.name} without an addend")
        for node, load, addend in found:
            added[node] = load
            addends.add(_at_start(func, addend, load, store))
    if len(addends) != 1:
        raise ScheduleError(f"init_with_addend: {sums.name} has {len(addends)} addends")
    (value,) = addends
    started = replace_stmt(func, find_block(func, block), replace(start, body=replace(store, value=value)))
    return replace(started, body=substitute(started.body, added))


def _is_zero(value: Expr) -> bool:
    return isinstance(value, Const) and value.dtype.is_int and not value.dtype.is_bool and value.value == 0


def _adds_to(body: Stmt, sums: Buffer) -> bool:
    """Whether a statement adds to one element of the sums what they are not part of."""
    if not isinstance(body, Store) or not isinstance(body.value, Add):
        return False
    total, term = body.value.lhs, body.value.rhs
    return isinstance(total, Load) and total.buffer is sums and total.indices == body.indices and sums not in buffers_read(term)


def _sum_and_addend(node: Add, sums: Buffer) -> tuple[Load, Load] | tuple[None, None]:
    """The element of the sums and the other that an addition is of."""
    match node.lhs, node.rhs:
        case (Load() as load, Load() as addend) | (Load() as addend, Load() as load) if load.buffer is sums and addend.buffer is not sums:
            return load, addend
    return None, None


def _at_start(func: PrimFunc, addend: Load, load: Load, store: Store) -> Load:
    """What is added to an element where it is read, by the axes of the block that sets it to 0."""
    buffer, places = addend.buffer, {index: place for place, index in enumerate(load.indices) if isinstance(index, Var)}
    if buffer not in func.inputs or writers_of(func, buffer) or buffer.dtype is not store.buffer.dtype:
        raise ScheduleError(f"init_with_addend: {buffer.name} is no input of the type of the sums")
    for dim, index in zip(buffer.shape, addend.indices, strict=True):
        known = index in places and prove(store.buffer.shape[places[index]] <= dim, Facts.of(func.facts)) is True
        if not known and not isinstance(index, Const):
            raise ScheduleError(f"init_with_addend: {buffer.name} has no element for each of {store.buffer.name}")
    return substitute(addend, {index: store.indices[place] for index, place in places.items()})


def rfactor(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Reduce along `loop` last: partial results, one per iteration of it, then one reduction over these.

        for i: for ko: for ki:                       for i: for ki: for ko: P[ki, i] (+)= A[i, ko * 4 + ki]
            C[i] += A[i, ko * 4 + ki]         =>     for i: for ki: C[i] (+)= P[ki, i]

    The block of partial results is `<block>_rf`; it has `loop` as a spatial axis and may be vectorized or run in parallel along
    it. The final block keeps the name and follows the loops that are the block's own. The order of additions changes, in a way
    that depends on the schedule alone. Raises ScheduleError unless the block is a named monoid with its initialisation and
    `loop`, of an extent known before the kernel runs, drives only reduction axes of it.
    Source: Suriana et al. (2017); `rfactor` of Halide and of TVM.
    """
    place = find_block(func, block)
    chosen = _check_rfactor(func, place, loop)
    stores = [node for node in walk(place.block.init) if isinstance(node, Store)]  # type: ignore[arg-type]
    partial: dict[Buffer, Buffer] = {}
    for each in stores:
        name = fresh_buffer_name(func, f"{each.buffer.name}_rf")
        partial[each.buffer] = Buffer(name, (chosen.extent, *each.buffer.shape), each.buffer.dtype)
    first = _partial_block(func, place, chosen, partial)
    root = own_root(place)
    rebuilt = replace_stmt(func, place, first)
    final = _final_nest(func, place, root, chosen, partial, stores)
    rooted = own_root(find_block(rebuilt, first.name))
    rebuilt = replace_stmt(rebuilt, rooted, seq(rooted.stmt, final))
    body = rebuilt.body
    for buffer in partial.values():
        body = Alloc(buffer, body)
    return replace(rebuilt, body=body)


def _check_rfactor(func: PrimFunc, place: Place, loop: str) -> For:
    """The loop; ScheduleError when the block cannot be taken apart along it."""
    block, name = place.block, place.block.name
    if block.init is None or annotation(block, "monoid") not in MONOIDS:
        raise ScheduleError(f"rfactor: block {name} is not a reduction by a named monoid")
    if any(isinstance(node, (Block, For, IntrinsicCall)) for node in walk(block.body)):
        raise ScheduleError(f"rfactor: block {name} is a tile; take the reduction apart before that")
    chosen = next((each for each in place.loops if each.var.name == loop), None)
    kinds = axis_loops(place)
    if chosen is None or kinds.get(chosen.var) is not AxisKind.REDUCTION:
        raise ScheduleError(f"rfactor: loop {loop} does not drive a reduction axis of block {name}")
    _check_apart(tuple(axis for axis in block.axes if axis.kind is AxisKind.SPATIAL), kinds, "rfactor", name)
    for buffer in {node.buffer for node in walk(block.init) if isinstance(node, Store)}:
        if len(writers_of(func, buffer)) != 1:
            raise ScheduleError(f"rfactor: {buffer.name} has other writers than block {name}")
    if not variables(chosen.extent) <= set(func.dims):
        raise ScheduleError(f"rfactor: the extent of loop {loop} is {chosen.extent}, which other loops decide")
    root = own_root(place)
    for outer in place.loops:
        if outer in root.path and _reduces(kinds, outer.var):
            raise ScheduleError(
                f"rfactor: loop {outer.var.name} around other blocks drives a reduction of block {name}"
            )
    axes = _spatial_axes(block)
    for part in conjuncts(block.where):
        used = variables(substitute(part, axes)) & {each.var for each in place.loops}
        if _mentions_reduction(part, kinds) and any(not _reduces(kinds, var) for var in used):
            raise ScheduleError(f"rfactor: a condition of block {name} mixes spatial and reduction loops: {part}")
    return chosen


def _spatial_axes(block: Block) -> dict[Node, Node]:
    """The spatial axes of a block by what drives them: by these, a condition on loops is one on axes."""
    return {axis.value: axis.var for axis in block.axes if axis.kind is AxisKind.SPATIAL and variables(axis.value)}


def _partial_block(func: PrimFunc, place: Place, chosen: For, partial: dict[Buffer, Buffer]) -> Block:
    """The block that fills the partial results, with `chosen` as its first axis, spatial, and an axis per other reduction loop.

    Conditions on reduction loops move into its body: every partial result is initialised, needed or not.
    """
    block = place.block
    assert block.init is not None
    kinds = axis_loops(place)
    check_extent_stays("rfactor", *(each for each in place.loops if _reduces(kinds, each.var)))
    lane = Var(f"v{chosen.var.name}", i64)
    own = {each.var: Var(f"v{each.var.name}", i64) for each in place.loops if _reduces(kinds, each.var)}
    own[chosen.var] = lane

    def redirect(node: Node) -> Node | None:
        buffer = getattr(node, "buffer", None)
        if isinstance(node, (Load, Store)) and buffer in partial:
            return replace(node, buffer=partial[buffer], indices=(lane, *node.indices))
        return None

    values: dict[Node, Node] = {
        axis.var: substitute(axis.value, dict(own)) for axis in block.axes if axis.kind is not AxisKind.SPATIAL
    }
    axes = [BlockAxis(lane, chosen.extent, AxisKind.SPATIAL, chosen.var)]
    axes += [axis for axis in block.axes if axis.kind is AxisKind.SPATIAL]
    axes += [
        BlockAxis(own[each.var], each.extent, AxisKind.REDUCTION, each.var)
        for each in place.loops
        if each.var in own and each is not chosen
    ]
    if not any(axis.kind is AxisKind.REDUCTION for axis in axes):  # a sum of one term each
        axes.append(BlockAxis(Var("vone", i64), const(1), AxisKind.REDUCTION, const(0)))
    body = _with_simple_divisions(substitute(transform(block.body, redirect), values), func, axes)
    guards = [part for part in conjuncts(block.where) if _mentions_reduction(part, kinds)]
    kept = [part for part in conjuncts(block.where) if part not in guards]
    if guards:
        body = If(substitute(logical_and(*guards), {**_spatial_axes(block), **own}), body)
    return replace(
        block,
        name=fresh_block_name(func, f"{block.name}_rf"),
        axes=tuple(axes),
        body=body,
        init=transform(block.init, redirect),
        where=logical_and(*kept),
    )


def _with_simple_divisions(body: Stmt, func: PrimFunc, axes: list[BlockAxis]) -> Stmt:
    """`body` with divisions of indices made simpler: (ko * 64 + ki) // 16, say, is ko * 4 + ki // 16."""
    facts = Facts.of(func.facts)
    for axis in axes:
        facts = facts.with_range(axis.var, axis.extent)

    def rewrite(node: Node) -> Node | None:
        return simplify(node, facts) if isinstance(node, (FloorDiv, FloorMod)) else None

    return transform(body, rewrite)


def _final_nest(
    func: PrimFunc, place: Place, root: Place, chosen: For, partial: dict[Buffer, Buffer], stores: list[Store]
) -> Stmt:
    """The block that combines the partial results, under loops of its own; it keeps the original name."""
    block = place.block
    assert block.init is not None
    kinds = axis_loops(place)
    spatial = [axis for axis in block.axes if axis.kind is AxisKind.SPATIAL]
    where = logical_and(*(part for part in conjuncts(block.where) if not _mentions_reduction(part, kinds)))
    needed = {var for axis in spatial for var in variables(axis.value)} | variables(where)
    loops = [each for each in place.loops if each not in root.path and each.var in needed]
    names = fresh_names(func, [f"{each.var.name}_f" for each in (*loops, chosen)])
    fresh: dict[Node, Node] = {each.var: loop_var(name) for each, name in zip((*loops, chosen), names, strict=True)}
    axes = {axis.var: Var(axis.var.name, i64) for axis in spatial}
    k = Var("vk", i64)
    result: Stmt = Block(
        block.name,
        (
            *(replace(axis, var=axes[axis.var], value=substitute(axis.value, fresh)) for axis in spatial),
            BlockAxis(k, chosen.extent, AxisKind.REDUCTION, fresh[chosen.var]),  # type: ignore[arg-type]
        ),
        _combine(block, axes, k, partial, stores),
        init=substitute(block.init, dict(axes)),
        where=substitute(where, fresh),
        annotations=block.annotations,
        span=block.span,
    )
    for each in reversed((*loops, chosen)):
        kind = each.kind if each is not chosen else LoopKind.SERIAL
        result = For(fresh[each.var], substitute(each.extent, fresh), result, kind)  # type: ignore[arg-type]
    return result


def _combine(block: Block, axes: dict[Var, Var], k: Var, partial: dict[Buffer, Buffer], stores: list[Store]) -> Stmt:
    """result = combine(result, partial[k]), for all states of the monoid at once."""
    places = [tuple(substitute(index, dict(axes)) for index in store.indices) for store in stores]
    old = tuple(Load(s.buffer, at) for s, at in zip(stores, places, strict=True))
    new = tuple(Load(partial[s.buffer], (k, *at)) for s, at in zip(stores, places, strict=True))
    values = MONOIDS[str(annotation(block, "monoid"))].combine(old, new)
    if len(stores) == 1:
        return Store(stores[0].buffer, places[0], values[0])
    names = [Var(f"new{j}", s.buffer.dtype) for j, s in enumerate(stores)]
    body = seq(*(Store(s.buffer, at, name) for s, at, name in zip(stores, places, names, strict=True)))
    for name, value in reversed(list(zip(names, values, strict=True))):
        body = Let(name, value, body)
    return body
