"""Finding and replacing statements of a PrimFunc: what every primitive starts and ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.expr import Buffer, Load, Var
from tc.ir.loop import Alloc, AxisKind, Block, For, If, Let, PrimFunc, Seq, Stmt, Store, While, seq
from tc.ir.node import Node, children, replace, substitute, walk


@dataclass(frozen=True, eq=False)
class Place:
    """A statement and those around it, outermost first."""

    stmt: Stmt
    path: tuple[Stmt, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        return tuple(stmt for stmt in self.path if isinstance(stmt, For))


def statements(root: Stmt, path: tuple[Stmt, ...] = ()) -> Iterable[Place]:
    """Every statement, in program order, down to blocks; what is inside a block is its own affair."""
    yield Place(root, path)
    if isinstance(root, Block):
        return
    inner = (*path, root)
    for child in children(root):
        if isinstance(child, Stmt):
            yield from statements(child, inner)


def find_loop(func: PrimFunc, name: str) -> Place:
    """The loop whose variable is called `name`; ScheduleError when there is none, or more than one."""
    found = [place for place in statements(func.body) if isinstance(place.stmt, For) and place.stmt.var.name == name]
    if len(found) != 1:
        known = [p.stmt.var.name for p in statements(func.body) if isinstance(p.stmt, For)]
        what = "is not in" if not found else "is not unique in"
        raise ScheduleError(f"loop {name} {what} {func.name}; there are: {', '.join(known) or 'no loops'}")
    return found[0]


def find_block(func: PrimFunc, name: str) -> Place:
    """The block called `name`; ScheduleError when there is none."""
    for place in statements(func.body):
        if isinstance(place.stmt, Block) and place.stmt.name == name:
            return place
    known = [p.stmt.name for p in statements(func.body) if isinstance(p.stmt, Block)]
    raise ScheduleError(f"block {name} is not in {func.name}; there are: {', '.join(known) or 'no blocks'}")


def blocks_in(stmt: Stmt) -> list[Block]:
    """The blocks below a statement, in program order."""
    return [place.stmt for place in statements(stmt) if isinstance(place.stmt, Block)]


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


def map_blocks(stmt: Stmt, rewrite: Callable[[Block], Block]) -> Stmt:
    """Rewrite every block below `stmt`."""
    match stmt:
        case Block():
            return rewrite(stmt)
        case Seq(stmts=stmts):
            return replace(stmt, stmts=tuple(map_blocks(inner, rewrite) for inner in stmts))
        case For(body=body) | Alloc(body=body) | Let(body=body) | While(body=body):
            return replace(stmt, body=map_blocks(body, rewrite))  # type: ignore[type-var]
        case If(then_body=then_body, else_body=else_body):
            otherwise = None if else_body is None else map_blocks(else_body, rewrite)
            return replace(stmt, then_body=map_blocks(then_body, rewrite), else_body=otherwise)
    return stmt


def rename_loops(func: PrimFunc) -> PrimFunc:
    """Give every loop a name of its own, so that steps can refer to it: the second `i` becomes `i_1`."""
    used: set[str] = {param.name for param in func.params if isinstance(param, Var)}
    renamed: dict[Node, Node] = {}
    for place in statements(func.body):
        if isinstance(place.stmt, For):
            name, count = place.stmt.var.name, 0
            while name in used:
                count += 1
                name = f"{place.stmt.var.name}_{count}"
            used.add(name)
            if name != place.stmt.var.name:
                renamed[place.stmt.var] = Var(name, place.stmt.var.dtype)
    return substitute(func, renamed)


def fresh_name(func: PrimFunc, base: str) -> str:
    """A loop name that is not in use."""
    used = {place.stmt.var.name for place in statements(func.body) if isinstance(place.stmt, For)}
    used |= {param.name for param in func.params if isinstance(param, Var)}
    name, count = base, 0
    while name in used:
        count += 1
        name = f"{base}_{count}"
    return name


def buffers_read(block: Block) -> set[Buffer]:
    """Buffers that a block loads from, its own result included for a reduction."""
    return {node.buffer for node in walk(block.body) if isinstance(node, Load)}


def buffers_written(block: Block) -> set[Buffer]:
    return {node.buffer for node in walk(block.body) if isinstance(node, Store)}


def axis_loops(place: Place) -> dict[Var, AxisKind]:
    """For each loop variable around a block: SPATIAL if only spatial axes use it, else REDUCTION (or ORDERED)."""
    block = place.stmt
    assert isinstance(block, Block)
    kinds: dict[Var, AxisKind] = {}
    for axis in block.axes:
        for node in walk(axis.value):
            if isinstance(node, Var):
                worse = axis.kind if axis.kind is not AxisKind.SPATIAL else kinds.get(node, AxisKind.SPATIAL)
                kinds[node] = worse
    return kinds


def is_inside(stmt: Stmt, root: Stmt) -> bool:
    return any(place.stmt is stmt for place in statements(root))


