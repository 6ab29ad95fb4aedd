"""Finding and replacing statements of a PrimFunc: what every primitive starts and ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, takewhile

from tc.errors import ScheduleError
from tc.ir.arith import Facts
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Expr, Var, select
from tc.ir.loop import (
    WITH_BODY,
    Alloc,
    AxisKind,
    Block,
    For,
    If,
    Let,
    PrimFunc,
    Seq,
    Stmt,
    While,
    inner_statements,
    seq,
)
from tc.ir.node import Node, cached_by_identity, cached_on_node, replace, substitute
from tc.ir.paths import facts_along
from tc.ir.uses import buffers_read, buffers_written, own_reads, reads_memory, variables


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


def statements(root: Stmt) -> Iterator[Place]:
    """Every statement, in program order, down to blocks; what is inside a block is its own affair."""
    return statements_from(Place(root, ()))


def statements_from(start: Place) -> Iterator[Place]:
    """`statements` of the statement at a place, each with its path from the top."""
    stack = [start]
    while stack:
        place = stack.pop()
        yield place
        stack += reversed(below(place))


def below(place: Place) -> list[Place]:
    """The statements directly below the one at a place."""
    inner = (*place.path, place.stmt)
    return [Place(child, inner) for child in _sub_statements(place.stmt)]


def _sub_statements(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly below one; of a block none."""
    return () if isinstance(stmt, Block) else inner_statements(stmt)


@cached_on_node
def loop_names(stmt: Stmt) -> tuple[str, ...]:
    """The names of all loops of a statement, in program order."""
    below = _sub_statements(stmt)
    names = loop_names(below[0]) if len(below) == 1 else tuple(chain.from_iterable(map(loop_names, below)))
    return (stmt.var.name, *names) if isinstance(stmt, For) else names


@cached_on_node
def nesting(stmt: Stmt) -> int:
    """How many statements are around each other, down to blocks."""
    below = _sub_statements(stmt)
    return 1 + (nesting(below[0]) if len(below) == 1 else max(map(nesting, below), default=0))


@cached_on_node
def block_names(stmt: Stmt) -> tuple[str, ...]:
    """The names of all blocks of a statement, in program order."""
    return tuple(block.name for block in blocks_in(stmt))


@cached_on_node
def allocated_in(stmt: Stmt) -> tuple[Buffer, ...]:
    """The scratch buffers of a statement, in program order."""
    below = _sub_statements(stmt)
    buffers = allocated_in(below[0]) if len(below) == 1 else tuple(chain.from_iterable(map(allocated_in, below)))
    return (stmt.buffer, *buffers) if isinstance(stmt, Alloc) else buffers


@cached_by_identity(512)
def _found(root: Stmt) -> dict[tuple[type[Stmt], str], Place]:
    """What was found below a statement, by kind and name."""
    return {}


def _descend(root: Stmt, kind: type[Stmt], name: str, names_in: Callable[[Stmt], tuple[str, ...]]) -> Place:
    """The place of the first loop or block called `name`, known to be below `root` or `root` itself."""
    found = _found(root)
    if (kind, name) not in found:
        path: list[Stmt] = []
        stmt = root
        while not (isinstance(stmt, kind) and names_in(stmt)[0] == name):
            path.append(stmt)
            below = _sub_statements(stmt)
            stmt = below[0] if len(below) == 1 else next(child for child in below if name in names_in(child))
        found[kind, name] = Place(stmt, tuple(path))
    return found[kind, name]


def find_loop(func: PrimFunc, name: str) -> Place:
    """The loop whose variable is called `name`; ScheduleError when there is none, or more than one."""
    known = loop_names(func.body)
    if known.count(name) != 1:
        what = "is not in" if name not in known else "is not unique in"
        raise ScheduleError(f"loop {name} {what} {func.name}; there are: {', '.join(known) or 'no loops'}")
    return _descend(func.body, For, name, loop_names)


def find_block(func: PrimFunc, name: str) -> Place:
    """The block called `name`, the first one; ScheduleError when there is none."""
    known = block_names(func.body)
    if name not in known:
        raise ScheduleError(f"block {name} is not in {func.name}; there are: {', '.join(known) or 'no blocks'}")
    return _descend(func.body, Block, name, block_names)


def find_buffer(func: PrimFunc, name: str) -> Buffer:
    """The parameter or scratch buffer called `name`; ScheduleError when there is not exactly one."""
    known = [*func.buffers, *allocated_in(func.body)]
    found = [buffer for buffer in known if buffer.name == name]
    if len(found) != 1:
        what = "is not in" if not found else "is not unique in"
        raise ScheduleError(f"buffer {name} {what} {func.name}; there are: {', '.join(b.name for b in known)}")
    return found[0]


def block_places(func: PrimFunc) -> tuple[Place, ...]:
    """The places of all blocks, in program order."""
    return block_places_in(func.body)


@cached_by_identity(512)
def block_places_in(root: Stmt) -> tuple[Place, ...]:
    """The places of all blocks at or below a statement, in program order."""
    return tuple(place for place in statements(root) if isinstance(place.stmt, Block))


def place_of(func: PrimFunc, block: Block) -> Place:
    """The place of a block, known to be in `func`; another one may have its name."""
    path: list[Stmt] = []
    stmt = func.body
    while stmt is not block:
        path.append(stmt)
        stmt = next(child for child in _sub_statements(stmt) if block in blocks_in(child))
    return Place(stmt, tuple(path))


def blocks_in(stmt: Stmt) -> tuple[Block, ...]:
    """The blocks below a statement, in program order."""
    return (stmt,) if isinstance(stmt, Block) else _blocks_below(stmt)


@cached_on_node
def _blocks_below(stmt: Stmt) -> tuple[Block, ...]:
    below = _sub_statements(stmt)
    return blocks_in(below[0]) if len(below) == 1 else tuple(chain.from_iterable(map(blocks_in, below)))


def own_root(place: Place) -> Place:
    """The outermost loop (or the block itself) that contains no block but this one, with the path to it."""
    for depth, stmt in enumerate(place.path):
        if isinstance(stmt, For) and len(block_names(stmt)) == 1:
            return Place(stmt, place.path[:depth])
    return place


def replace_stmt(func: PrimFunc, place: Place, new: Stmt | None) -> PrimFunc:
    """`func` with the statement at `place` replaced, or removed along with loops that become empty."""
    current: Stmt | None = new
    old = place.stmt
    for parent in reversed(place.path):
        if type(parent) in WITH_BODY and current is not None:
            current = replace(parent, body=current)
        else:
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
            return replace(stmt, body=map_blocks(body, rewrite, bare))
        case If(then_body=then_body, else_body=else_body):
            otherwise = None if else_body is None else map_blocks(else_body, rewrite, bare)
            return replace(stmt, then_body=map_blocks(then_body, rewrite, bare), else_body=otherwise)
    return bare(stmt)


def with_scratch(func: PrimFunc, place: Place, buffer: Buffer) -> PrimFunc:
    """Allocate a buffer for a block and for what precedes its loops: in its version of the program, if there are several."""
    path = (*place.path, place.stmt)
    versions = [depth for depth, stmt in enumerate(takewhile(lambda stmt: not isinstance(stmt, For), path)) if isinstance(stmt, If)]
    depth = versions[-1] + 1 if versions else 0
    return replace_stmt(func, Place(path[depth], path[:depth]), Alloc(buffer, path[depth]))


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


@lru_cache(8192)
def loop_var(name: str) -> Var:
    """The variable of a new loop, whose name is not in use in its function: one object for each name.

    Candidates that are alike in a part then share the expressions there, and what was found out about them.
    """
    return Var(name, i64)


def fresh_names(func: PrimFunc, bases: Iterable[str]) -> list[str]:
    """Loop names that are not in use, all different."""
    used = {name for kind, name in _taken_names(func.body) if kind is For}
    used |= {param.name for param in func.params if isinstance(param, Var)}
    return [_unused(base, used) for base in bases]


def fresh_buffer_name(func: PrimFunc, base: str) -> str:
    return _unused(base, {buffer.name for buffer in (*func.buffers, *allocated_in(func.body))})


def fresh_block_name(func: PrimFunc, base: str) -> str:
    return _unused(base, {name for kind, name in _taken_names(func.body) if kind is Block})


@cached_on_node
def _taken_names(stmt: Stmt) -> frozenset[tuple[type[Stmt], str]]:
    """The names of all loops and blocks, those inside blocks too: each is another, though only those outside can be named."""
    own: tuple[tuple[type[Stmt], str], ...] = ()
    if isinstance(stmt, For):
        own = ((For, stmt.var.name),)
    elif isinstance(stmt, Block):
        own = ((Block, stmt.name),)
    return frozenset(own).union(*map(_taken_names, inner_statements(stmt)))


def facts_at(func: PrimFunc, place: Place) -> Facts:
    """What is known at a place: the dims' promises, the ranges of the loops around it, and the conditions it stands under."""
    return facts_along(func, place.path, place.stmt)


def facts_inside(func: PrimFunc, place: Place) -> Facts:
    """What is known in the body of the loop at a place."""
    return facts_at(func, place).with_range(place.loop.var, place.loop.extent)


def writers_of(func: PrimFunc, buffer: Buffer) -> list[Block]:
    return [place.block for place in block_places(func) if buffer in buffers_written(place.block)]


def reads_at(place: Place) -> frozenset[Buffer]:
    """What a block reads, and what the loops and conditions around it read to know whether and how often it runs."""
    return buffers_read(place.block).union(*map(own_reads, place.path))


def in_scope_at(func: PrimFunc, place: Place) -> frozenset[Node]:
    """The variables and buffers that may be used in place of the statement at a place."""
    bound = (stmt.buffer if isinstance(stmt, Alloc) else stmt.var for stmt in place.path if isinstance(stmt, (Alloc, For, Let)))
    return frozenset((*func.params, *bound))


def check_extent_stays(what: str, *loops: For) -> None:
    """ScheduleError when the body of a loop writes what its extent is read from: then it matters when that is evaluated."""
    for loop in loops:
        changed = buffers_read(loop.extent) & buffers_written(loop.body)
        if changed:
            name = min(buffer.name for buffer in changed)
            raise ScheduleError(f"{what}: loop {loop.var.name} writes {name}, from which its extent {loop.extent} is read")


def is_uneven(func: PrimFunc, block: Block) -> bool:
    """Whether data or other loops decide how far a spatial axis of a block goes: it may make a part of a buffer only."""
    extents = [axis.extent for axis in block.axes if axis.kind is AxisKind.SPATIAL]
    return any(reads_memory(extent) or not variables(extent) <= set(func.dims) for extent in extents)


def guarded_read(expr: Expr, condition: Expr, other: Expr) -> Expr:
    """An expression that is read from memory at places which a condition keeps in range: `other` where it does not hold.

    Any other expression is itself: what stands under the condition makes it harmless.
    """
    return select(condition, expr, other) if reads_memory(expr) and variables(expr) & variables(condition) else expr


def axis_loops(place: Place) -> dict[Var, AxisKind]:
    """For each loop variable around a block: SPATIAL if only spatial axes use it, else REDUCTION (or ORDERED).

    Dims are none of them: the value of an axis mentions those by which loops were fused.
    """
    kinds: dict[Var, AxisKind] = {}
    loops = {loop.var for loop in place.loops}
    for axis in place.block.axes:
        for var in variables(axis.value) & loops:
            if axis.kind is AxisKind.SPATIAL or kinds.get(var) is AxisKind.ORDERED:
                kinds.setdefault(var, axis.kind)
            else:
                kinds[var] = axis.kind
    return kinds
