"""Loops to tensor expressions: what a PrimFunc that somebody wrote computes, in the form that operators have.

The inverse of `create_prim_func`, for loops with and without blocks. What is raised fuses like an operator, and its loops are made anew
beside those of its neighbours, with buffers and names of their own. Loops that are scheduled, or that say more than one value for each
element, are not raised: they run as written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from tc.ir.arith import Facts, equal_shapes
from tc.ir.dtype import DType, i64
from tc.ir.expr import TRUE, Add, BinaryExpr, Buffer, Checked, Const, Expr, Load, Max, Min, Mul, Var, is_const
from tc.ir.hints import NO_HINTS
from tc.ir.loop import Alloc, AxisKind, Block, For, Let, LoopKind, PrimFunc, Seq, Stmt, Store, annotation
from tc.ir.node import Node, children, substitute, transform, walk
from tc.ir.uses import buffers_read, reads_memory, variables
from tc.te import MONOIDS, Monoid, Read, Stage, Tensor, checked

_COMBINES: dict[type[Expr], str] = {Add: "sum", Mul: "prod", Max: "max", Min: "min"}

MOST_TERMS = 256
"""How many ways to take the updates of a reduction apart are looked at."""


class NotRaised(Exception):
    """A PrimFunc, or a part of it, has no form as tensor expressions; the words say why."""


@dataclass(frozen=True)
class _Nest:
    """One loop nest: its loops by kind, what it starts each element with (nothing unless it reduces), what it computes.

    `values`: axes of the block that are literals. `monoid`: what the block says that it combines by.
    """

    spatial: tuple[tuple[Var, Expr], ...]
    reduction: tuple[tuple[Var, Expr], ...]
    init: Stmt | None
    body: Stmt
    values: Mapping[Node, Node]
    name: str
    monoid: str = ""


@dataclass(frozen=True)
class _Stores:
    """Statements that store at one place: buffers, indices, values."""

    buffers: tuple[Buffer, ...]
    indices: tuple[Expr, ...]
    values: tuple[Expr, ...]


def raise_prim_func(func: PrimFunc, operands: Sequence[Tensor], dims: Sequence[Expr], facts: Facts) -> tuple[Tensor, ...]:
    """The results of `func` on `operands`, its scalars being `dims`, about which `facts` are known.

    Raises NotRaised. Checks inside are asked for by the current `te.origin`.
    """
    others = [name for name, _ in func.attrs if name != "in_place"]
    if others:
        raise NotRaised(f"it says {others[0]}")
    for buffer in func.buffers:
        _check_buffer(buffer)
    made: dict[Buffer, Tensor] = dict(zip(func.inputs, operands, strict=True))
    scalars: dict[Node, Node] = dict(zip(func.dims, dims, strict=True))
    for nest in _nests(func.body, frozenset(func.dims)):
        for buffer, tensor in _stage_of(nest, made, scalars, facts).items():
            made[buffer] = tensor
    missing = [buffer for buffer in func.outputs if buffer not in made]
    if missing:
        raise NotRaised(f"nothing computes {missing[0].name}")
    return tuple(made[buffer] for buffer in func.outputs)


def _check_buffer(buffer: Buffer) -> None:
    if buffer.scope != "global" or buffer.strides is not None:
        raise NotRaised(f"it says how {buffer.name} lies in memory")


def _nests(stmt: Stmt, scalars: frozenset[Var]) -> Iterator[_Nest]:
    match stmt:
        case Alloc(buffer=buffer, body=body):
            _check_buffer(buffer)
            yield from _nests(body, scalars)
        case Seq(stmts=stmts):
            for part in stmts:
                yield from _nests(part, scalars)
        case _:
            loops, core = _loops(stmt, scalars)
            yield _nest_of_block(loops, core) if isinstance(core, Block) else _nest_of_loops(loops, core, scalars)


def _loops(stmt: Stmt, scalars: frozenset[Var]) -> tuple[list[tuple[Var, Expr]], Stmt]:
    """Plain loops one in the other, and what is inside."""
    found: list[tuple[Var, Expr]] = []
    while isinstance(stmt, For):
        if stmt.kind is not LoopKind.SERIAL or stmt.hints != NO_HINTS or stmt.thread or stmt.var.dtype is not i64:
            raise NotRaised(f"the loop {stmt.var.name} is scheduled")
        if not variables(stmt.extent) <= scalars or reads_memory(stmt.extent):
            raise NotRaised(f"the extent of the loop {stmt.var.name} is known only inside")
        found.append((stmt.var, stmt.extent))
        stmt = stmt.body
    return found, stmt


def _nest_of_block(loops: list[tuple[Var, Expr]], block: Block) -> _Nest:
    """A block each of whose axes is one of the loops around it, which all are."""
    if block.where is not TRUE:
        raise NotRaised(f"the block {block.name} has a condition")
    extents = dict(loops)
    parts: dict[AxisKind, list[tuple[Var, Expr]]] = {AxisKind.SPATIAL: [], AxisKind.REDUCTION: []}
    values: dict[Node, Node] = {}
    for axis in block.axes:
        if is_const(axis.value, 0) and is_const(axis.extent, 1):
            values[axis.var] = axis.value
        elif isinstance(axis.value, Var) and extents.pop(axis.value, None) is axis.extent and axis.kind in parts:
            parts[axis.kind].append((axis.var, axis.extent))
        else:
            raise NotRaised(f"the axis {axis.var.name} of {block.name} is not one of the loops around it")
    if extents:
        raise NotRaised(f"the block {block.name} runs more than once for an element")
    spatial, reduction = map(tuple, parts.values())
    if (block.init is None) != (not reduction):
        raise NotRaised(f"the block {block.name} has no start, or no end")
    return _Nest(spatial, reduction, block.init, block.body, values, block.name, str(annotation(block, "monoid", "")))


def _nest_of_loops(loops: list[tuple[Var, Expr]], core: Stmt, scalars: frozenset[Var]) -> _Nest:
    """Loops without a block: an element is stored, or started and then updated in loops of its own."""
    if isinstance(core, Seq) and len(core.stmts) == 2 and isinstance(core.stmts[0], Store) and isinstance(core.stmts[1], For):
        inner, body = _loops(core.stmts[1], scalars)
        if isinstance(body, Store) and body.buffer is core.stmts[0].buffer:
            return _Nest(tuple(loops), tuple(inner), core.stmts[0], body, {}, body.buffer.name)
    if isinstance(core, (Store, Let)):
        stored = next(node for node in walk(core) if isinstance(node, Store))
        return _Nest(tuple(loops), (), None, core, {}, stored.buffer.name)
    raise NotRaised(f"{type(core).__name__} inside the loops")


def _stores(stmt: Stmt, values: Mapping[Node, Node]) -> _Stores:
    """What a statement stores, in terms of `values`: all values are taken before any is stored."""
    known = dict(values)
    while isinstance(stmt, Let):
        known[stmt.var] = substitute(stmt.value, known)
        stmt = stmt.body
    parts = stmt.stmts if isinstance(stmt, Seq) else (stmt,)
    stores = [part for part in parts if isinstance(part, Store)]
    if not stores or len(stores) != len(parts):
        raise NotRaised("something else than stores")
    buffers = tuple(store.buffer for store in stores)
    if len(stores) > 1 and (len(set(buffers)) < len(buffers) or any(buffers_read(s.value) & set(buffers) for s in stores)):
        raise NotRaised("a value is read after another was stored")
    places = [tuple(substitute(index, known) for index in store.indices) for store in stores]
    if any(len(place) != len(places[0]) or any(a is not b for a, b in zip(place, places[0], strict=True)) for place in places):
        raise NotRaised("values are stored at several places")
    return _Stores(buffers, places[0], tuple(substitute(store.value, known) for store in stores))


def _stage_of(nest: _Nest, made: Mapping[Buffer, Tensor], scalars: Mapping[Node, Node], facts: Facts) -> dict[Buffer, Tensor]:
    """The tensors that a nest computes from those made so far."""
    stored = _stores(nest.body, nest.values)
    if any(buffer in made for buffer in stored.buffers):
        raise NotRaised(f"{stored.buffers[0].name} is written twice")
    shape = tuple(substitute(dim, dict(scalars)) for dim in stored.buffers[0].shape)
    axes, renamed = _axes(nest, stored, shape, scalars, facts)
    reduce_axes = tuple(Var(f"r{k}", i64) for k in range(len(nest.reduction)))
    renamed = {**scalars, **renamed, **dict(zip((var for var, _ in nest.reduction), reduce_axes, strict=True))}
    own = {buffer: Buffer(buffer.name, shape, buffer.dtype) for buffer in stored.buffers}
    values = tuple(_value(value, renamed, made, own if reduce_axes else {}, axes) for value in stored.values)
    init = _init(nest, stored)
    annotations: tuple[tuple[str, str], ...] = ()
    if init:
        values, annotations = _by_monoid(values, init, tuple(Load(own[buffer], axes) for buffer in stored.buffers), nest.monoid)
    extents = tuple(substitute(extent, dict(scalars)) for _, extent in nest.reduction)
    stage = Stage(nest.name, tuple(own.values()), axes, reduce_axes, extents, init, values, annotations=annotations)
    return {buffer: Tensor(new, stage) for buffer, new in own.items()}


def _axes(
    nest: _Nest, stored: _Stores, shape: Sequence[Expr], scalars: Mapping[Node, Node], facts: Facts
) -> tuple[tuple[Var, ...], dict[Node, Node]]:
    """An axis for each dim of the buffers, and what the nest's loops over elements are in terms of them."""
    extents = dict(nest.spatial)
    axes = tuple(Var(f"i{k}", i64) for k in range(len(shape)))
    renamed: dict[Node, Node] = {}
    for axis, index, dim in zip(axes, stored.indices, shape, strict=True):
        if is_const(index, 0) and is_const(dim, 1):
            continue
        extent = extents.pop(index, None) if isinstance(index, Var) else None
        if extent is None or equal_shapes((substitute(extent, dict(scalars)),), (dim,), facts) is not True:
            raise NotRaised(f"{stored.buffers[0].name} is not stored element by element")
        renamed[index] = axis
    if extents or any(equal_shapes(b.shape, stored.buffers[0].shape, facts) is not True for b in stored.buffers):
        raise NotRaised(f"{stored.buffers[0].name} is stored more than once")
    return axes, renamed


def _value(
    value: Expr, renamed: Mapping[Node, Node], made: Mapping[Buffer, Tensor], states: Mapping[Buffer, Buffer], axes: tuple[Var, ...]
) -> Expr:
    """A stored value, which reads tensors; of `states`, what the nest itself stores, only the element that is updated."""

    def read(node: Node) -> Node | None:
        match node:
            case Var():
                return renamed.get(node)
            case Load(buffer=buffer, indices=indices) if buffer in made:
                return Read(made[buffer], indices)
            case Load(buffer=buffer, indices=indices):
                at_axes = all(i is a or (is_const(i, 0) and is_const(d, 1)) for i, a, d in zip(indices, axes, buffer.shape, strict=True))
                if buffer not in states or not at_axes:
                    raise NotRaised(f"{buffer.name} is read before it is computed")
                return Load(states[buffer], axes)
            case Checked(value=inner, index=index, extent=extent, given=given, message=message):
                return checked(inner, index, extent, message, given)
        return None

    return transform(value, read)


def _init(nest: _Nest, stored: _Stores) -> tuple[Expr, ...]:
    """What a reduction starts with, for each buffer: literals."""
    if nest.init is None:
        return ()
    started = _stores(nest.init, nest.values)
    by_buffer = dict(zip(started.buffers, started.values, strict=True))
    same_place = len(started.indices) == len(stored.indices) and all(
        a is b for a, b in zip(started.indices, stored.indices, strict=True)
    )
    if set(by_buffer) != set(stored.buffers) or not same_place or not all(isinstance(v, Const) for v in by_buffer.values()):
        raise NotRaised(f"{stored.buffers[0].name} does not start with literals")
    return tuple(by_buffer[buffer] for buffer in stored.buffers)


def _by_monoid(
    values: tuple[Expr, ...], init: tuple[Expr, ...], states: tuple[Load, ...], said: str
) -> tuple[tuple[Expr, ...], tuple[tuple[str, str], ...]]:
    """The updates of a reduction as the monoid has them that combines so and starts with `init`; as they stand where there is none.

    said: what the block calls its monoid. It is believed where the monoid makes these very updates of some terms.
    """
    dtypes = tuple(state.dtype for state in states)
    for name in dict.fromkeys((said, _COMBINES.get(type(values[0]), ""))):
        if name not in MONOIDS or not _is_identity(MONOIDS[name], dtypes, init):
            continue
        for terms in islice(product(*_terms(values, states)), MOST_TERMS):
            made = MONOIDS[name].combine(states, terms)
            if all(a is b or _is_swapped(a, b) for a, b in zip(made, values, strict=True)):
                return made, (("monoid", name),)
    return values, ()


def _is_identity(monoid: Monoid, dtypes: tuple[DType, ...], init: tuple[Expr, ...]) -> bool:
    try:
        start = monoid.identity(dtypes)
    except IndexError:  # a monoid of more states
        return False
    return len(start) == len(init) and all(a is b for a, b in zip(start, init, strict=True))


def _is_swapped(a: Expr, b: Expr) -> bool:
    """Whether two sums, products, maxima or minima differ in the order of their operands only."""
    if isinstance(a, BinaryExpr) and isinstance(b, BinaryExpr) and type(a) is type(b) and type(a) in _COMBINES:
        return a.lhs is b.rhs and a.rhs is b.lhs
    return False


def _terms(values: tuple[Expr, ...], states: tuple[Load, ...]) -> list[list[Expr]]:
    """For each state, what may be the term that the updates combine with it: the largest parts of its dtype that read no state."""
    found: dict[Expr, None] = {}
    stack: list[Node] = list(values)
    while stack:
        node = stack.pop()
        if any(isinstance(inner, Load) for inner in walk(node)):
            stack.extend(children(node))
        elif isinstance(node, Expr) and not isinstance(node, Const):
            found[node] = None
    return [[term for term in found if term.dtype is state.dtype] for state in states]
