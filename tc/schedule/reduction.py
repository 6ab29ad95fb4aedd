"""Primitives for reductions and for the buffers they work in."""

from __future__ import annotations

from tc.errors import ScheduleError
from tc.ir.arith import prove
from tc.ir.dtype import i64
from tc.ir.expr import And, Buffer, Expr, Load, Var, logical_and
from tc.ir.loop import Alloc, AxisKind, Block, BlockAxis, For, Let, PrimFunc, Stmt, Store, annotation, seq
from tc.ir.node import Node, children, replace, substitute, transform, walk
from tc.schedule.loops import facts_at
from tc.schedule.tree import Place, axis_loops, blocks_in, find_block, find_loop, fresh_name, replace_stmt
from tc.te import MONOIDS


def decompose_reduction(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Move the initialisation of a reduction in front of `loop`.

        for i: for k:                                  for i:
            if k == 0: C[i] = 0                 =>         C[i] = 0
            C[i] = C[i] + A[i, k]                          for k: C[i] = C[i] + A[i, k]

    The initialisation gets the loops at and below `loop` that drive spatial axes. Raises ScheduleError if the block has no
    initialisation, or a loop outside `loop` drives a reduction axis. Source: `decompose_reduction` of TVM.
    """
    place, target = find_block(func, block), find_loop(func, loop)
    stmt = place.stmt
    assert isinstance(stmt, Block)
    if stmt.init is None:
        raise ScheduleError(f"decompose_reduction: block {block} has no initialisation")
    if target.stmt not in place.path:
        raise ScheduleError(f"decompose_reduction: loop {loop} is not around block {block}")
    kinds = axis_loops(place)
    position = place.loops.index(target.stmt)  # type: ignore[arg-type]
    for outer in place.loops[:position]:
        if kinds.get(outer.var, AxisKind.SPATIAL) is not AxisKind.SPATIAL and prove(
            outer.extent <= 1, facts_at(func, place)
        ) is not True:
            raise ScheduleError(
                f"decompose_reduction: loop {outer.var.name} outside loop {loop} drives a reduction of block {block}"
            )
    inner = [each for each in place.loops[position:] if kinds.get(each.var, AxisKind.SPATIAL) is AxisKind.SPATIAL]
    renamed: dict[Node, Node] = {}
    taken: set[str] = set()
    for each in inner:
        name = fresh_name(func, f"{each.var.name}_init")
        while name in taken:
            name += "_"
        taken.add(name)
        renamed[each.var] = Var(name, i64)
    spatial = tuple(axis for axis in stmt.axes if axis.kind is AxisKind.SPATIAL)
    body: Stmt = Block(
        f"{block}_init",
        tuple(replace(axis, var=Var(axis.var.name, i64)) for axis in spatial),
        stmt.init,
        where=_spatial_where(stmt.where, kinds),
        span=stmt.span,
    )
    assert isinstance(body, Block)
    new_axes = {old.var: new.var for old, new in zip(spatial, body.axes, strict=True)}
    body = replace(body, body=substitute(body.body, new_axes))
    nest: Stmt = substitute(body, renamed)
    for each in reversed(inner):
        nest = For(renamed[each.var], each.extent, nest, each.kind, annotations=each.annotations)  # type: ignore[arg-type]
    update = replace_stmt(func, place, replace(stmt, init=None))
    loop_place = find_loop(update, loop)
    return replace_stmt(update, loop_place, seq(nest, loop_place.stmt))


def _spatial_where(where: Expr, kinds: dict[Var, AxisKind]) -> Expr:
    """The part of a condition that speaks of spatial loops only."""
    from_reduction = {var for var, kind in kinds.items() if kind is not AxisKind.SPATIAL}
    return logical_and(
        *(part for part in _conjuncts(where) if not any(node in from_reduction for node in walk(part)))
    )


def _conjuncts(where: Expr) -> list[Expr]:
    return [*_conjuncts(where.lhs), *_conjuncts(where.rhs)] if isinstance(where, And) else [where]


def rfactor(func: PrimFunc, block: str, loop: str) -> PrimFunc:
    """Reduce along `loop` last: partial results, one per iteration of it, then one reduction over these.

        for i: for ko: for ki:                       for i: for ki: for ko: P[ki, i] (+)= A[i, ko * 4 + ki]
            C[i] += A[i, ko * 4 + ki]         =>     for i: for ki: C[i] (+)= P[ki, i]

    The partial block has `loop` as a spatial axis and may be vectorized or run in parallel along it. The order of additions
    changes, in a way that depends on the schedule alone. Raises ScheduleError unless the block is a named monoid and `loop`
    drives one of its reduction axes. Source: Suriana et al. (2017); `rfactor` of Halide and of TVM.
    """
    place = find_block(func, block)
    stmt = place.stmt
    assert isinstance(stmt, Block)
    monoid = annotation(stmt, "monoid")
    if stmt.init is None or monoid not in MONOIDS:
        raise ScheduleError(f"rfactor: block {block} is not a reduction by a named monoid")
    loops = place.loops
    chosen = next((each for each in loops if each.var.name == loop), None)
    if chosen is None or axis_loops(place).get(chosen.var) is not AxisKind.REDUCTION:
        raise ScheduleError(f"rfactor: loop {loop} does not drive a reduction axis of block {block}")
    spatial = [axis for axis in stmt.axes if axis.kind is AxisKind.SPATIAL]
    stores = [node for node in walk(stmt.init) if isinstance(node, Store)]
    partial = {s.buffer: Buffer(f"{s.buffer.name}_rf", (chosen.extent, *s.buffer.shape), s.buffer.dtype) for s in stores}
    lane = Var(f"v{loop}", i64)
    first = _partial_block(stmt, place, chosen, lane, partial)
    second = _final_block(stmt, spatial, chosen, partial, stores, str(monoid))
    names: dict[Node, Node] = {}
    taken: set[str] = set()
    kinds = axis_loops(place)
    root = next(each for each in loops if blocks_in(each) == [stmt])  # loops around other blocks as well are shared
    own = loops[loops.index(root) :]
    outer = [each for each in own if kinds.get(each.var, AxisKind.SPATIAL) is AxisKind.SPATIAL]
    for each in (*outer, chosen):
        name = fresh_name(func, f"{each.var.name}_f")
        while name in taken:
            name += "_"
        taken.add(name)
        names[each.var] = Var(name, i64)
    final: Stmt = substitute(second, names)
    for each in reversed((*outer, chosen)):
        final = For(names[each.var], each.extent, final)  # type: ignore[arg-type]
    rebuilt = replace_stmt(func, place, first)
    root_place = find_loop(rebuilt, root.var.name)
    rebuilt = replace_stmt(rebuilt, root_place, seq(root_place.stmt, final))
    body = rebuilt.body
    for buffer in partial.values():
        body = Alloc(buffer, body)
    return replace(rebuilt, body=body)


def _partial_block(stmt: Block, place: Place, chosen: For, lane: Var, partial: dict[Buffer, Buffer]) -> Block:
    """The block that fills the partial results, with `chosen` as a spatial axis of its own."""
    assert stmt.init is not None

    def redirect(node: Node) -> Node | None:
        buffer = getattr(node, "buffer", None)
        if isinstance(node, (Load, Store)) and buffer in partial:
            return replace(node, buffer=partial[buffer], indices=(lane, *node.indices))
        return None

    axes = [BlockAxis(lane, chosen.extent, AxisKind.SPATIAL, chosen.var)]
    inside: dict[Node, Node] = {}
    for axis in stmt.axes:
        uses = axis.kind is AxisKind.REDUCTION and any(node is chosen.var for node in walk(axis.value))
        if not uses:
            axes.append(axis)
            continue
        others = [each for each in place.loops if each is not chosen and each.var in set(walk(axis.value))]
        rest = {each.var: Var(f"v{each.var.name}", i64) for each in others}
        inside[axis.var] = substitute(axis.value, {**rest, chosen.var: lane})
        axes.extend(BlockAxis(rest[each.var], each.extent, AxisKind.REDUCTION, each.var) for each in others)
    body = substitute(transform(stmt.body, redirect), inside)
    return replace(stmt, name=f"{stmt.name}_rf", axes=tuple(axes), body=body, init=transform(stmt.init, redirect))


def _final_block(
    stmt: Block,
    spatial: list[BlockAxis],
    chosen: For,
    partial: dict[Buffer, Buffer],
    stores: list[Store],
    monoid: str,
) -> Block:
    """The block that combines the partial results; it keeps the original name."""
    axes = {axis.var: Var(axis.var.name, i64) for axis in spatial}
    k = Var("vk", i64)
    places = [tuple(substitute(index, axes) for index in store.indices) for store in stores]
    old = tuple(Load(s.buffer, at) for s, at in zip(stores, places, strict=True))
    new = tuple(Load(partial[s.buffer], (k, *at)) for s, at in zip(stores, places, strict=True))
    values = MONOIDS[monoid].combine(old, new)
    if len(stores) == 1:
        body: Stmt = Store(stores[0].buffer, places[0], values[0])
    else:
        names = [Var(f"new{j}", s.buffer.dtype) for j, s in enumerate(stores)]
        body = seq(*(Store(s.buffer, at, name) for s, at, name in zip(stores, places, names, strict=True)))
        for name, value in reversed(list(zip(names, values, strict=True))):
            body = Let(name, value, body)
    assert stmt.init is not None
    block_axes = [BlockAxis(axes[axis.var], axis.extent, AxisKind.SPATIAL, axis.value) for axis in spatial]
    return Block(
        stmt.name,
        (*block_axes, BlockAxis(k, chosen.extent, AxisKind.REDUCTION, chosen.var)),
        body,
        init=substitute(stmt.init, axes),
        annotations=(("monoid", monoid),),
        span=stmt.span,
    )


def cache_write(func: PrimFunc, block: str, scope: str) -> PrimFunc:
    """Let a block write a scratch buffer, and add a block `<block>_copy` that copies it to the original one.

        C[i] = ...     =>     T[i] = ... ;  C[i] = T[i]

    Raises ScheduleError unless the block writes one buffer, at its own spatial axes. Source: `cache_write` of TVM.
    """
    place = find_block(func, block)
    stmt = place.stmt
    assert isinstance(stmt, Block)
    stores = [node for node in walk(stmt) if isinstance(node, Store)]
    if len({store.buffer for store in stores}) != 1:
        raise ScheduleError(f"cache_write: block {block} must write one buffer")
    buffer = stores[0].buffer
    scratch = Buffer(f"{buffer.name}_{scope}", buffer.shape, buffer.dtype, "global" if scope == "global" else scope)

    def redirect(node: Node) -> Node | None:
        if isinstance(node, (Load, Store)) and node.buffer is buffer:
            return replace(node, buffer=scratch)
        return None

    cached = replace(
        stmt,
        body=transform(stmt.body, redirect),
        init=None if stmt.init is None else transform(stmt.init, redirect),
    )
    loop_vars = [Var(fresh_name(func, f"{name}c"), i64) for name in _axis_names(len(buffer.shape))]
    axes = [Var(f"v{var.name}", i64) for var in loop_vars]
    copy: Stmt = Block(
        f"{block}_copy",
        tuple(
            BlockAxis(axis, dim, AxisKind.SPATIAL, var)
            for axis, dim, var in zip(axes, buffer.shape, loop_vars, strict=True)
        ),
        Store(buffer, tuple(axes), Load(scratch, tuple(axes))),
    )
    for var, dim in reversed(list(zip(loop_vars, buffer.shape, strict=True))):
        copy = For(var, dim, copy)
    rebuilt = replace_stmt(func, place, cached)
    outermost = find_block(rebuilt, block)
    root = next((s for s in outermost.path if isinstance(s, For)), outermost.stmt)
    root_place = Place(root, outermost.path[: outermost.path.index(root)] if root in outermost.path else outermost.path)
    rebuilt = replace_stmt(rebuilt, root_place, seq(root, copy))
    return replace(rebuilt, body=Alloc(scratch, rebuilt.body))


def _axis_names(count: int) -> list[str]:
    return [f"{'ijklmnpq'[d % 8]}{d // 8 or ''}" for d in range(count)]


def set_scope(func: PrimFunc, buffer: str, scope: str) -> PrimFunc:
    """Say where a scratch buffer lives: "global", "local" or "register"."""
    found = {s.buffer for s in _allocs(func) if s.buffer.name == buffer}
    if len(found) != 1:
        raise ScheduleError(f"set_scope: {buffer} names {len(found)} scratch buffers of {func.name}")
    (old,) = found
    new = replace(old, scope=scope)
    return substitute(func, {old: new})


def _allocs(func: PrimFunc) -> list[Alloc]:
    found: list[Alloc] = []
    stack: list[Stmt] = [func.body]
    while stack:
        stmt = stack.pop()
        if isinstance(stmt, Alloc):
            found.append(stmt)
        stack.extend(child for child in children(stmt) if isinstance(child, Stmt))
    return found
