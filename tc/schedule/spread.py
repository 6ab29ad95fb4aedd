"""Primitives that make more than is needed: copies of elements, one for each of several threads, and elements up to a multiple."""

from __future__ import annotations

from collections.abc import Sequence

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove, simplify
from tc.ir.boxes import copied_element
from tc.ir.expr import (
    TRUE,
    Add,
    Buffer,
    Expr,
    Load,
    MathCall,
    Sub,
    Var,
    ceildiv,
    const,
    equal,
    floordiv,
    floormod,
    logical_and,
    select,
)
from tc.ir.loop import AxisKind, Block, BlockAxis, For, PrimFunc, Stmt, Store, annotation
from tc.ir.node import Node, replace, substitute, transform, walk
from tc.ir.uses import buffers_read, buffers_written, has_intrinsic, reads_memory, variables
from tc.schedule.tree import (
    Place,
    axis_loops,
    block_names,
    block_places,
    facts_at,
    find_block,
    find_buffer,
    fresh_names,
    loop_var,
    own_root,
    place_of,
    replace_stmt,
    writers_of,
)


def spread(func: PrimFunc, names: Sequence[str], copies: int) -> PrimFunc:
    """Give each element of some scratch buffers `copies` copies, a last dim; what makes an element makes all of them.

        for i: M[i] = f(i)                    for i: for c in 4: M[i, c] = f(i)
        for i: N[i] = M[i] + N[i]      =>     for i: for c in 4: N[i, c] = M[i, c] + N[i, c]
        for i: for j: ... M[i]                for i: for j: ... M[i, 0]

    The new loops stand inside of those that drive spatial axes. `read_copy` lets a reader take another one of the copies. Raises
    ScheduleError for parameters, and for blocks that write something else besides.
    """
    if copies < 1:
        raise ScheduleError(f"spread: there cannot be {copies} copies")
    old = [find_buffer(func, name) for name in dict.fromkeys(names)]
    if any(buffer in func.buffers or buffer.strides is not None for buffer in old):
        raise ScheduleError("spread: only scratch buffers have copies")
    new: dict[Node, Buffer] = {buffer: replace(buffer, shape=(*buffer.shape, const(copies))) for buffer in old}
    for place in block_places(func):
        written = buffers_written(place.block)
        if written & set(old) and (not written <= set(old) or has_intrinsic(place.block)):
            raise ScheduleError(f"spread: block {place.block.name} writes something else besides, or is an intrinsic")
    for block in [place.block for place in block_places(func)]:
        if buffers_written(block) & set(old):
            func = _with_copies(func, place_of(func, block), old, copies)
    rest = transform(func.body, lambda node: _at(node, old, const(0)))
    return replace(func, body=substitute(rest, new))


def _at(node: Node, buffers: Sequence[Buffer], copy: Expr) -> Node | None:
    if isinstance(node, (Load, Store)) and node.buffer in buffers and len(node.indices) == len(node.buffer.shape):
        changed = transform(node.value, lambda inner: _at(inner, buffers, copy)) if isinstance(node, Store) else None
        moved = replace(node, indices=(*node.indices, copy))
        return moved if changed is None else replace(moved, value=changed)
    return None


def _with_copies(func: PrimFunc, place: Place, buffers: Sequence[Buffer], copies: int) -> PrimFunc:
    """A writer that makes all copies, in a loop of its own."""
    block, kinds = place.block, axis_loops(place)
    (name,) = fresh_names(func, [f"{block.name}_copy"])
    var, axis = loop_var(name), Var(f"v{name}", loop_var(name).dtype)

    def redirect(node: Node) -> Node | None:
        return _at(node, buffers, axis)

    init = None if block.init is None else transform(block.init, redirect)
    made = replace(
        block,
        axes=(*block.axes, BlockAxis(axis, const(copies), AxisKind.SPATIAL, var)),
        body=transform(block.body, redirect),
        init=init,
    )
    driving = [k for k, stmt in enumerate(place.path) if isinstance(stmt, For) and kinds.get(stmt.var) is AxisKind.SPATIAL]
    path: tuple[Stmt, ...] = (*place.path, block)
    first = driving[-1] + 1 if driving else 0
    depth, outer = next((k, stmt) for k, stmt in enumerate(path) if k >= first and block_names(stmt) == (block.name,))
    whole = transform(outer, lambda node: made if node is block else None)
    return replace_stmt(func, Place(outer, place.path[:depth]), For(var, const(copies), whole))


def read_copy(func: PrimFunc, block: str, buffer: str, axis: int, divisor: int) -> PrimFunc:
    """Let a block read, of the copies that a buffer has along its last dim, the one that an axis of the block chooses.

        for i: for j: B[i, j] = M[i, 0]      =>      for i: for j: B[i, j] = M[i, j // 2 % 4]

    `axis` counts the block's axes, from the last one if it is negative. Raises ScheduleError unless all copies are known to be equal:
    each is made of what the other ones are, or of their own copies of the like.
    """
    place, source = find_block(func, block), find_buffer(func, buffer)
    axes = place.block.axes
    if not -len(axes) <= axis < len(axes) or divisor < 1 or has_intrinsic(place.block):
        raise ScheduleError(f"read_copy: block {block} has no axis {axis}, or {divisor} divides nothing")
    if source not in buffers_read(place.block) or source in buffers_written(place.block):
        raise ScheduleError(f"read_copy: block {block} does not read {buffer}, or makes it")
    _check_equal(func, source)
    copy = floormod(floordiv(axes[axis].var, const(divisor)), source.shape[-1])

    def redirect(node: Node) -> Node | None:
        return replace(node, indices=(*node.indices[:-1], copy)) if isinstance(node, Load) and node.buffer is source else None

    return replace_stmt(func, place, transform(place.block, redirect))


def _check_equal(func: PrimFunc, buffer: Buffer) -> None:
    """ScheduleError unless what is stored along the last dim of a buffer does not depend on the place there."""
    open_, known = [buffer], {buffer}
    while open_:
        current = open_.pop()
        writers = writers_of(func, current)
        if not writers:
            raise ScheduleError(f"read_copy: nothing makes equal copies of {current.name}")
        for block in writers:
            own = next((index for index in (_stored_at(block, current)) if index in {axis.var for axis in block.axes}), None)
            if own is None or own in variables(block.where):
                raise ScheduleError(f"read_copy: block {block.name} makes no equal copies of {current.name}")
            for load in (node for node in walk(block) if isinstance(node, Load) and own in variables(node)):
                if load.indices[-1] is not own or any(own in variables(index) for index in load.indices[:-1]):
                    raise ScheduleError(f"read_copy: block {block.name} makes copies of {current.name} that differ")
                if load.buffer not in known:
                    known.add(load.buffer)
                    open_.append(load.buffer)
            if _used_elsewhere(block, own):
                raise ScheduleError(f"read_copy: block {block.name} makes copies of {current.name} that differ")


def _stored_at(block: Block, buffer: Buffer) -> set[Expr]:
    return {node.indices[-1] for node in walk(block) if isinstance(node, Store) and node.buffer is buffer}


def _used_elsewhere(block: Block, var: Var) -> bool:
    """Whether a variable stands anywhere in a block's statements but at the end of an element's indices."""

    def without(node: Node) -> Node | None:
        if isinstance(node, (Load, Store)) and node.indices and node.indices[-1] is var:
            kept = replace(node, indices=(*node.indices[:-1], const(0)))
            return replace(kept, value=transform(kept.value, without)) if isinstance(kept, Store) else kept
        return None

    parts = (block.body, *(() if block.init is None else (block.init,)))
    return any(var in variables_of(transform(part, without)) for part in parts)


def variables_of(stmt: Node) -> set[Var]:
    return {node for node in walk(stmt) if isinstance(node, Var)}


def widen(func: PrimFunc, names: Sequence[str], axis: int, multiple: int) -> PrimFunc:
    """Let blocks compute more elements along one of their axes, a multiple; nobody reads these.

        for i in m: B[i] = f(X[i])           for i in (m + 3) // 4 * 4: B[i] = f(X[i]) if i < m else 0
        for i in m: C[i] = g(B[i])     =>    for i in (m + 3) // 4 * 4: C[i] = g(B[i])

    What is in multiples needs no conditions on tiles. `axis` counts the axes of each of the blocks. Raises ScheduleError unless the
    blocks, not scheduled before, write scratch buffers at their own axes, this one has a loop of its own in each, and is spatial; a
    reduction must read what the blocks before it make alone.
    """
    if multiple < 1:
        raise ScheduleError(f"widen: nothing is a multiple of {multiple}")
    wide: dict[Buffer, int] = {}
    for name in dict.fromkeys(names):
        func = _widened(func, find_block(func, name), axis, multiple, wide)
    return func


def _widened(func: PrimFunc, place: Place, axis: int, multiple: int, wide: dict[Buffer, int], fill: Expr | None = None) -> PrimFunc:
    """One block with more elements along an axis; those that are made of what has none there are `fill`, or zero."""
    block = place.block
    if not -len(block.axes) <= axis < len(block.axes):
        raise ScheduleError(f"widen: block {block.name} has no axis {axis}")
    own, store, buffer = block.axes[axis], *_one_store(func, place)
    if own.kind is not AxisKind.SPATIAL or own.var not in store.indices:
        raise ScheduleError(f"widen: block {block.name} does not write {buffer.name} at its axis {own.var.name}")
    extent = _rounded(func, place, own, multiple)
    if extent is own.extent:
        return func
    position = store.indices.index(own.var)
    if not _reads_wide_alone(store, own.var, buffer, wide):
        if block.init is not None:
            raise ScheduleError(f"widen: block {block.name} reduces what is not wider")
        store = replace(store, value=select(own.var < own.extent, store.value, const(0, buffer.dtype) if fill is None else fill))
    larger = replace(buffer, shape=(*buffer.shape[:position], extent, *buffer.shape[position + 1 :]))
    wide[larger] = position
    return substitute(_extended(func, place, own, extent, store), {buffer: larger})


def read_on(func: PrimFunc, block: str, axis: int, multiple: int) -> PrimFunc:
    """Let a block copy more elements along one of its axes, a multiple: what comes next in memory, and zeros where nothing does.

        for i in m: B[i] = X[i + 2] if i + 2 < n else 0     =>     for i in (m + 3) // 4 * 4: B[i] = X[i + 2] if i + 2 < n else 0

    Nobody reads these. What is left out is outside of what is copied from, as it is of boxes that hardware copies. Raises ScheduleError
    unless the block, not scheduled before, stores an element of one buffer, or zero, in scratch memory at its own axis, which is spatial;
    indices must not come from memory.
    """
    if multiple < 1:
        raise ScheduleError(f"read_on: nothing is a multiple of {multiple}")
    place = find_block(func, block)
    if not -len(place.block.axes) <= axis < len(place.block.axes):
        raise ScheduleError(f"read_on: block {block} has no axis {axis}")
    own, store, buffer = place.block.axes[axis], *_one_store(func, place)
    condition, load = copied_element(store.value)
    is_copy = load is not None and not any(map(reads_memory, (condition, *load.indices)))
    if own.kind is not AxisKind.SPATIAL or own.var not in store.indices or load is None or not is_copy:
        raise ScheduleError(f"read_on: block {block} does not copy elements at its axis {own.var.name}")
    extent = _rounded(func, place, own, multiple)
    if extent is own.extent:
        return func
    facts = Facts.of(func.facts)
    for each in place.block.axes:
        facts = facts.with_range(each.var, extent if each is own else each.extent)
    facts = facts.assume(condition)
    inside = [part for index, dim in zip(load.indices, load.buffer.shape, strict=True) for part in (index >= 0, index < dim)]
    missing = [part for part in inside if simplify(part, facts) is not TRUE]
    value = select(logical_and(condition, *missing), load, const(0, buffer.dtype))
    position = store.indices.index(own.var)
    larger = replace(buffer, shape=(*buffer.shape[:position], extent, *buffer.shape[position + 1 :]))
    return substitute(_extended(func, place, own, extent, replace(store, value=value)), {buffer: larger})


def _one_store(func: PrimFunc, place: Place) -> tuple[Store, Buffer]:
    """What a block that has not been scheduled stores in scratch memory that is its own."""
    store = place.block.body
    if not isinstance(store, Store) or store.buffer in func.buffers or len(writers_of(func, store.buffer)) != 1:
        raise ScheduleError(f"widen: block {place.block.name} does not write one scratch buffer, alone")
    return store, store.buffer


def _rounded(func: PrimFunc, place: Place, axis: BlockAxis, multiple: int) -> Expr:
    facts = facts_at(func, place)
    if prove(equal(axis.extent % multiple, 0), facts) is True:
        return axis.extent
    return simplify(ceildiv(axis.extent, multiple) * multiple, facts)


def _extended(func: PrimFunc, place: Place, axis: BlockAxis, extent: Expr, store: Store) -> PrimFunc:
    """A block and the loop of one of its axes with another extent, and what it then stores."""
    block, root = place.block, own_root(place)
    loop = next((stmt for stmt in place.path if isinstance(stmt, For) and stmt.var is axis.value), None)
    if loop is None or loop not in (root.stmt, *place.path[len(root.path) :]) or loop.extent is not axis.extent or block.where is not TRUE:
        raise ScheduleError(f"axis {axis.var.name} of block {block.name} has no loop of its own, or the block has been scheduled")
    made = replace(block, axes=tuple(replace(each, extent=extent) if each is axis else each for each in block.axes), body=store)
    longer = replace(loop, extent=extent, body=transform(loop.body, lambda node: made if node is block else None))
    return replace_stmt(func, Place(loop, place.path[: place.path.index(loop)]), longer)


def _reads_wide_alone(store: Store, var: Var, own: Buffer, wide: dict[Buffer, int]) -> bool:
    """Whether all that a block reads by an axis has as many elements there as it will make, and the axis decides nothing else."""
    loads = [node for node in walk(store.value) if isinstance(node, Load) and var in variables(node)]
    fits = all(load.buffer is own or (load.buffer in wide and load.indices[wide[load.buffer]] is var) for load in loads)
    once = all(sum(var in variables(index) for index in load.indices) == 1 for load in loads)
    hidden = transform(store.value, lambda node: const(0, node.dtype) if isinstance(node, Load) else None)
    return fits and once and var not in variables_of(hidden)


def pad_softmax(func: PrimFunc, block: str, multiple: int) -> PrimFunc:
    """Let a softmax go over more terms, a multiple, of which those that are too many are -inf and add nothing.

        for j in n: X[j] = f(j)               for j in (n + 3) // 4 * 4: X[j] = f(j) if j < n else -inf
        for j in n: M = max(M, X[j])    =>    for j in (n + 3) // 4 * 4: M = max(M, X[j])
        for j in n: P[j] = exp(X[j] - M)      for j in (n + 3) // 4 * 4: P[j] = exp(X[j] - M)
        for j in n: S += P[j]                 for j in (n + 3) // 4 * 4: S += P[j]

    `block` makes the greatest term. Where there is one above -inf, what is added is 0; where there is none, S is NaN as it was. Sums of
    products with the exponentials go over the terms that there were. Raises ScheduleError unless X is scratch memory that the maximum and
    the exponentials alone read, and nothing has been scheduled.
    """
    top, maximum = _one_store(func, find_block(func, block))[1], find_block(func, block).block
    load, axis = _term_of(maximum)
    source = load.buffer
    place = load.indices.index(axis.var)
    readers = [each.block for each in block_places(func) if source in buffers_read(each.block)]
    powers = next((each for each in readers if each is not maximum and _is_exponential(each, source, top)), None)
    makers = writers_of(func, source)
    if powers is None or len(readers) != 2 or len(makers) != 1:
        raise ScheduleError(f"pad_softmax: {source.name} is not what block {block} and exponentials alone are made of")
    made = _one_store(func, find_block(func, powers.name))[1]
    sums = [each.block for each in block_places(func) if made in buffers_read(each.block)]
    if any(annotation(each, "monoid") != "sum" for each in sums):
        raise ScheduleError(f"pad_softmax: what block {powers.name} makes is not only added up")
    plain = [each.name for each in sums if _adds_alone(each, made)]
    wide: dict[Buffer, int] = {}
    lowest = const(float("-inf"), source.dtype)
    func = _widened(func, find_block(func, makers[0].name), _axis_at(makers[0], source, place), multiple, wide, lowest)
    if not wide:
        return func
    func = _with_more_terms(func, block, multiple)
    position = _axis_at(powers, made, _load_of(powers, source).indices.index(_axis_of(powers, source, place)))
    func = _widened(func, find_block(func, powers.name), position, multiple, wide)
    for name in plain:
        func = _with_more_terms(func, name, multiple)
    return func


def _term_of(block: Block) -> tuple[Load, BlockAxis]:
    """What a reduction reads, and the one axis that it reduces, an index of that."""
    axes = [axis for axis in block.axes if axis.kind is AxisKind.REDUCTION]
    own = buffers_written(block)
    loads = {node for node in walk(block.body) if isinstance(node, Load) and node.buffer not in own}
    is_known = annotation(block, "monoid") in ("max_number", "sum")
    if not is_known or len(axes) != 1 or len(loads) != 1 or axes[0].var not in next(iter(loads)).indices:
        raise ScheduleError(f"pad_softmax: block {block.name} does not reduce one buffer along one axis")
    return next(iter(loads)), axes[0]


def _load_of(block: Block, buffer: Buffer) -> Load:
    return next(node for node in walk(block.body) if isinstance(node, Load) and node.buffer is buffer)


def _axis_of(block: Block, buffer: Buffer, place: int) -> Var:
    index = _load_of(block, buffer).indices[place]
    if not isinstance(index, Var):
        raise ScheduleError(f"pad_softmax: block {block.name} does not read {buffer.name} at its axes")
    return index


def _axis_at(block: Block, buffer: Buffer, place: int) -> int:
    """Which axis of its writer is an index of a buffer."""
    index = next(node.indices[place] for node in walk(block.body) if isinstance(node, Store) and node.buffer is buffer)
    return next((k for k, axis in enumerate(block.axes) if axis.var is index), len(block.axes))


def _is_exponential(block: Block, source: Buffer, top: Buffer) -> bool:
    match block.body:
        case Store(value=MathCall(name="exp" | "decay" | "exp_brief", args=(Sub(lhs=Load(buffer=lhs), rhs=Load(buffer=rhs)),))):
            return lhs is source and rhs is top
    return False


def _adds_alone(block: Block, made: Buffer) -> bool:
    """Whether a sum adds up what is in a buffer, by one of its axes, as it is."""
    match block.body:
        case Store(value=Add(rhs=Load(buffer=buffer))):
            return buffer is made
    return False


def _with_more_terms(func: PrimFunc, name: str, multiple: int) -> PrimFunc:
    place = find_block(func, name)
    _, axis = _term_of(place.block)
    return _extended(func, place, axis, _rounded(func, place, axis, multiple), _one_store(func, place)[0])
