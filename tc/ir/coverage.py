"""Whether the loops around a block visit the whole space of its axes: what schedules take for granted when they run it in other loops."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tc.errors import VerifyError
from tc.ir.arith import prove
from tc.ir.expr import Const, Expr, const, is_const
from tc.ir.loop import AxisKind, Block, BlockAxis, For, PrimFunc, Stmt, inner_statements
from tc.ir.node import Node
from tc.ir.paths import facts_along
from tc.ir.uses import buffers_written, reads_memory, variables

Path = tuple[Stmt, ...]


def check_covered(func: PrimFunc) -> None:
    """VerifyError when `first_uncovered` finds a block."""
    found = first_uncovered(func)
    if found is not None:
        raise VerifyError(f"{func.name}: {found[1]}")


def first_uncovered(func: PrimFunc) -> tuple[Block, str] | None:
    """A block whose loops leave points of its axes out, and how; None when there is none that is easily seen.

    An axis that is a loop's variable alone needs as many iterations, and no two axes are the same variable. Other axes are counted:
    constant loops must make as many iterations as the axes have points. A condition of the block may leave points out, and so may loops
    over spatial axes of a block that writes scratch memory alone: schedules make the part of it that is needed. Two numbers that are
    both read from memory are taken for the same, as one may be read from a copy.
    """
    for block, path in _blocks(func.body, ()):
        message = _complaint(func, block, path)
        if message is not None:
            return block, message
    return None


def _blocks(stmt: Stmt, path: Path) -> Iterator[tuple[Block, Path]]:
    """Every block with the statements around it, outermost first."""
    if isinstance(stmt, Block):
        yield stmt, path
    for child in inner_statements(stmt):
        yield from _blocks(child, (*path, stmt))


def _complaint(func: PrimFunc, block: Block, path: Path) -> str | None:
    loops: dict[Node, For] = {stmt.var: stmt for stmt in path if isinstance(stmt, For)}
    writes_result = not buffers_written(block).isdisjoint(func.buffers)
    axes = [axis for axis in block.axes if axis.kind is not AxisKind.SPATIAL or writes_result]
    taken: dict[Node, BlockAxis] = {}
    for axis in axes:
        loop = loops.get(axis.value)
        if loop is None:
            continue
        if loop.extent is not axis.extent and not _is_no_less(func, block, path, loop.extent, axis.extent):
            return (
                f"loop {loop.var.name} makes {loop.extent} iterations, but axis {axis.var.name} of block {block.name} "
                f"has the extent {axis.extent}"
            )
        other = taken.setdefault(loop.var, axis)
        if other is not axis and not any(_is_no_less(func, block, path, const(1), each.extent) for each in (axis, other)):
            return f"loop {loop.var.name} is both axis {other.var.name} and axis {axis.var.name} of block {block.name}"
    return _counted(block, axes, loops, writes_result)


def _counted(block: Block, axes: list[BlockAxis], loops: dict[Node, For], writes_result: bool) -> str | None:
    """The complaint when constant loops make fewer iterations than the axes have points.

    What is no result may stand in a loop of no iterations, where nobody needs it.
    """
    used = frozenset[Node]().union(*(variables(axis.value) for axis in block.axes))
    extents = [loop.extent for var, loop in loops.items() if var in used]
    sizes = [axis.extent for axis in axes]
    if not all(isinstance(extent, Const) for extent in (*extents, *sizes)) or not used <= loops.keys():
        return None
    if any(is_const(axis.extent, 0) for axis in block.axes):
        return None
    visits, points = (prod(int(each.value) for each in some if isinstance(each, Const)) for some in (extents, sizes))
    if visits >= points or not (visits or writes_result):
        return None
    return f"the loops around block {block.name} make {visits} iterations, but its axes have {points} points"


def _is_no_less(func: PrimFunc, block: Block, path: Path, extent: Expr, other: Expr) -> bool:
    """Whether it is proven where the block runs, or cannot be decided as both are read from memory."""
    if reads_memory(extent) and reads_memory(other):
        return True
    facts = facts_along(func, path, block).assume(block.where)
    return prove(extent >= other, facts) is True
