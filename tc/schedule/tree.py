"""Finding and replacing statements of a PrimFunc: what every primitive starts and ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.arith import Facts
from tc.ir.expr import Buffer, Load, Var, logical_not
from tc.ir.loop import Alloc, AxisKind, Block, For, If, IntrinsicCall, Let, PrimFunc, Seq, Stmt, Store, While, seq
from tc.ir.node import Node, cached_by_identity, children, replace, substitute, walk


@dataclass(eq=False, slots=True)
class Place:
    """A statement and those around it, outermost first. Not to be changed: many analyses share it."""

    stmt: Stmt
    path: tuple[Stmt, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        return tuple(stmt for stmt in self.path if isinstance(stmt, For))

    @property
    def block(self) -> Block:
        """The statement, known to be a block."""
        assert isinstance(self.stmt, Block), "not the place of a block"
        return self.stmt

    @property
    def loop(self) -> For:
        """The statement, known to be a loop."""
        assert isinstance(self.stmt, For), "not the place of a loop"
        return self.stmt


@cached_by_identity(512)
def statements(root: Stmt) -> tuple[Place, ...]:
    """Every statement, in program order, down to blocks; what is inside a block is its own affair."""
    found: list[Place] = []
    _collect(root, (), found)
    return tuple(found)


def _collect(stmt: Stmt, path: tuple[Stmt, ...], found: list[Place]) -> None:
    found.append(Place(stmt, path))
    if not isinstance(stmt, Block):
        inner = (*path, stmt)
        for child in _sub_statements(stmt):
            _collect(child, inner, found)


def statements_from(start: Place) -> Iterator[Place]:
    """`statements` of the statement at a place, each with its path from the top."""
    return (Place(inner.stmt, (*start.path, *inner.path)) for inner in statements(start.stmt))


def _sub_statements(stmt: Stmt) -> tuple[Stmt, ...]:
    if isinstance(stmt, (For, Alloc, Let, While)):
        return (stmt.body,)
    if isinstance(stmt, Seq):
        return stmt.stmts
    if isinstance(stmt, (Store, IntrinsicCall)):
        return ()
    return tuple(child for child in children(stmt) if isinstance(child, Stmt))


@dataclass(eq=False, slots=True)
class _Names:
    """Where the loops and blocks of a tree are, by name."""

    loops: dict[str, list[Place]]
    blocks: dict[str, Place]
    in_order: list[Place]
    """The places of blocks, in program order."""


@cached_by_identity(512)
def _names(root: Stmt) -> _Names:
    names = _Names({}, {}, [])
    for place in statements(root):
        stmt = place.stmt
        if isinstance(stmt, For):
            names.loops.setdefault(stmt.var.name, []).append(place)
        elif isinstance(stmt, Block):
            names.blocks.setdefault(stmt.name, place)
            names.in_order.append(place)
    return names


def find_loop(func: PrimFunc, name: str) -> Place:
    """The loop whose variable is called `name`; ScheduleError when there is none, or more than one."""
    found = _names(func.body).loops.get(name, [])
    if len(found) != 1:
        known = [p.loop.var.name for p in statements(func.body) if isinstance(p.stmt, For)]
        what = "is not in" if not found else "is not unique in"
        raise ScheduleError(f"loop {name} {what} {func.name}; there are: {', '.join(known) or 'no loops'}")
    return found[0]


def find_block(func: PrimFunc, name: str) -> Place:
    """The block called `name`, the first one; ScheduleError when there is none."""
    found = _names(func.body).blocks.get(name)
    if found is None:
        known = [place.block.name for place in block_places(func)]
        raise ScheduleError(f"block {name} is not in {func.name}; there are: {', '.join(known) or 'no blocks'}")
    return found


def find_buffer(func: PrimFunc, name: str) -> Buffer:
    """The parameter or scratch buffer called `name`; ScheduleError when there is not exactly one."""
    known = [*func.buffers, *(stmt.buffer for stmt in _allocations(func))]
    found = [buffer for buffer in known if buffer.name == name]
    if len(found) != 1:
        what = "is not in" if not found else "is not unique in"
        raise ScheduleError(f"buffer {name} {what} {func.name}; there are: {', '.join(b.name for b in known)}")
    return found[0]


def _allocations(func: PrimFunc) -> list[Alloc]:
    return [place.stmt for place in statements(func.body) if isinstance(place.stmt, Alloc)]


def block_places(func: PrimFunc) -> Sequence[Place]:
    """The places of all blocks, in program order."""
    return _names(func.body).in_order


def blocks_in(stmt: Stmt) -> list[Block]:
    """The blocks below a statement, in program order."""
    return [place.block for place in _names(stmt).in_order]


def own_root(place: Place) -> Place:
    """The outermost loop (or the block itself) that contains no block but this one, with the path to it."""
    for depth, stmt in enumerate(place.path):
        if isinstance(stmt, For) and len(blocks_in(stmt)) == 1:
            return Place(stmt, place.path[:depth])
    return place


def replace_stmt(func: PrimFunc, place: Place, new: Stmt | None) -> PrimFunc:
    """`func` with the statement at `place` replaced, or removed along with loops that become empty."""
    current: Stmt | None = new
    old = place.stmt
    for parent in reversed(place.path):
        current = _with_child(parent, old, current)
        old = parent
    return replace(func, body=current if current is not None else Seq(()))


def _with_child(parent: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None:
    if isinstance(parent, Seq):
        items = [new if item is old else item for item in parent.stmts]
        kept = [item for item in items if item is not None]
        return seq(*kept) if kept else None
    if new is None:
        if isinstance(parent, If) and parent.else_body is not None:
            raise ScheduleError("a branch of an If cannot be removed")
        return None
    for name in ("body", "then_body", "else_body"):
        if getattr(parent, name, None) is old:
            return replace(parent, **{name: new})
    raise AssertionError("the statement is not a child of its parent")


def map_blocks(stmt: Stmt, rewrite: Callable[[Block], Stmt], bare: Callable[[Stmt], Stmt] = lambda stmt: stmt) -> Stmt:
    """Rewrite every block below `stmt`, and by `bare` every other statement that does something by itself."""
    match stmt:
        case Block():
            return rewrite(stmt)
        case Seq(stmts=stmts):
            return replace(stmt, stmts=tuple(map_blocks(inner, rewrite, bare) for inner in stmts))
        case For(body=body) | Alloc(body=body) | Let(body=body) | While(body=body):
            return replace(stmt, body=map_blocks(body, rewrite, bare))  # type: ignore[type-var]
        case If(then_body=then_body, else_body=else_body):
            otherwise = None if else_body is None else map_blocks(else_body, rewrite, bare)
            return replace(stmt, then_body=map_blocks(then_body, rewrite, bare), else_body=otherwise)
    return bare(stmt)


def without_alloc(func: PrimFunc, buffer: Buffer) -> PrimFunc:
    """Drop the allocation of a buffer that is no longer used."""
    for place in statements(func.body):
        if isinstance(place.stmt, Alloc) and place.stmt.buffer is buffer:
            return replace_stmt(func, place, place.stmt.body)
    return func


@cached_by_identity(64)
def rename_loops(func: PrimFunc) -> PrimFunc:
    """Give every loop and every buffer a name of its own, so that steps can refer to it: the second `i` becomes `i_1`."""
    used: set[str] = {param.name for param in func.params if isinstance(param, Var)}
    used_buffers: set[str] = set()
    renamed: dict[Node, Node] = {}
    for param in func.buffers:
        name = _unused(param.name, used_buffers)
        if name != param.name:
            renamed[param] = Buffer(name, param.shape, param.dtype, param.scope, param.strides)
    for place in statements(func.body):
        match place.stmt:
            case For(var=var):
                name = _unused(var.name, used)
                if name != var.name:
                    renamed[var] = Var(name, var.dtype)
            case Alloc(buffer=buffer):
                name = _unused(buffer.name, used_buffers)
                if name != buffer.name:
                    renamed[buffer] = Buffer(name, buffer.shape, buffer.dtype, buffer.scope, buffer.strides)
    return substitute(func, renamed)


normalize_names = rename_loops


def _unused(base: str, used: set[str]) -> str:
    """`base`, or `base_1`, `base_2` ...: the first that is not in `used`; it is added."""
    name, count = base, 0
    while name in used:
        count += 1
        name = f"{base}_{count}"
    used.add(name)
    return name


def fresh_name(func: PrimFunc, base: str) -> str:
    """A loop name that is not in use."""
    return fresh_names(func, (base,))[0]


def fresh_names(func: PrimFunc, bases: Iterable[str]) -> list[str]:
    """Loop names that are not in use, all different."""
    used = set(_names(func.body).loops)
    used |= {param.name for param in func.params if isinstance(param, Var)}
    return [_unused(base, used) for base in bases]


def fresh_buffer_name(func: PrimFunc, base: str) -> str:
    return _unused(base, {b.name for b in func.buffers} | {stmt.buffer.name for stmt in _allocations(func)})


def fresh_block_name(func: PrimFunc, base: str) -> str:
    return _unused(base, set(_names(func.body).blocks))


def facts_at(func: PrimFunc, place: Place) -> Facts:
    """What is known at a place: the dims' promises, the ranges of the loops around it, and the conditions it stands under."""
    facts = Facts.of(func.facts)
    for stmt, inner in zip(place.path, (*place.path, place.stmt)[1:], strict=True):
        match stmt:
            case For(var=var, extent=extent):
                facts = facts.with_range(var, extent)
            case If(condition=condition, else_body=else_body):
                facts = facts.assume(condition if inner is not else_body else logical_not(condition))
    return facts


def facts_inside(func: PrimFunc, place: Place) -> Facts:
    """What is known in the body of the loop at a place."""
    return facts_at(func, place).with_range(place.loop.var, place.loop.extent)


@cached_by_identity(4096)
def variables(node: Node) -> frozenset[Var]:
    """The variables that occur below a node."""
    return frozenset(inner for inner in walk(node) if isinstance(inner, Var))


@cached_by_identity(512)
def buffers_read(block: Block) -> frozenset[Buffer]:
    """Buffers that a block loads from, its own result included for a reduction."""
    return frozenset(node.buffer for node in walk(block) if isinstance(node, Load))


@cached_by_identity(512)
def buffers_written(block: Block) -> frozenset[Buffer]:
    """Buffers that a block stores to; the operands of an intrinsic count as read and written."""
    found: set[Buffer] = set()
    for node in walk(block):
        if isinstance(node, Store):
            found.add(node.buffer)
        elif isinstance(node, IntrinsicCall):
            found.update(operand.buffer for operand in node.operands if isinstance(operand, Load))
    return frozenset(found)


@cached_by_identity(512)
def has_intrinsic(block: Block) -> bool:
    """Whether the block hands regions of buffers to an intrinsic, so that its loads do not tell all that it touches."""
    return any(isinstance(node, IntrinsicCall) for node in walk(block.body))


def writers_of(func: PrimFunc, buffer: Buffer) -> list[Block]:
    return [place.block for place in block_places(func) if buffer in buffers_written(place.block)]


def axis_loops(place: Place) -> dict[Var, AxisKind]:
    """For each loop variable around a block: SPATIAL if only spatial axes use it, else REDUCTION (or ORDERED)."""
    kinds: dict[Var, AxisKind] = {}
    for axis in place.block.axes:
        for var in variables(axis.value):
            if axis.kind is AxisKind.SPATIAL or kinds.get(var) is AxisKind.ORDERED:
                kinds.setdefault(var, axis.kind)
            else:
                kinds[var] = axis.kind
    return kinds
