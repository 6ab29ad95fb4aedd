"""The primitive that makes a second version of a program for some values of a dim."""

from __future__ import annotations

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove
from tc.ir.expr import Buffer, Expr, Var, const
from tc.ir.loop import Alloc, Block, For, If, PrimFunc
from tc.ir.node import Node, replace, substitute, transform
from tc.ir.structural import fresh_binders
from tc.schedule.tree import (
    fresh_block_name,
    fresh_buffer_name,
    fresh_names,
    statements,
    variables,
)


def specialize(func: PrimFunc, dim: str, at_least: int) -> PrimFunc:
    """Two versions of the whole program, to be scheduled apart: one for a dim, or a loop, that is large enough, one for others.

        S          =>      if n >= 16: S
                           else: S'

    Loops, blocks and scratch buffers of the second version get new names. Raises ScheduleError unless `dim` is a symbolic dim of
    the function, or a loop whose extent dims decide, for which the question is open. Source: `specialize` of Halide.
    """
    found: Expr | None = next((var for var in func.dims if var.name == dim), None)
    if found is None:
        loops = (place.stmt for place in statements(func.body) if isinstance(place.stmt, For))
        found = next((loop.extent for loop in loops if loop.var.name == dim and variables(loop.extent) <= set(func.dims)), None)
    if found is None:
        known = ", ".join(var.name for var in func.dims) or "none"
        raise ScheduleError(f"specialize: {func.name} has no dim {dim}; there are: {known}")
    condition = const(at_least) <= found
    answer = prove(condition, Facts.of(func.facts))
    if answer is not None:
        raise ScheduleError(f"specialize: {dim} is {'always' if answer else 'never'} at least {at_least}")
    return replace(func, body=If(condition, func.body, _renamed_copy(func)))


def _renamed_copy(func: PrimFunc) -> For | Alloc:
    """The body again, with binders and names of its own."""
    copy = fresh_binders(func.body)
    places = list(statements(copy))
    loops = [place.stmt.var for place in places if isinstance(place.stmt, For)]
    buffers = [place.stmt.buffer for place in places if isinstance(place.stmt, Alloc)]
    renamed: dict[Node, Node] = {
        var: Var(name, var.dtype) for var, name in zip(loops, fresh_names(func, [v.name for v in loops]), strict=True)
    }
    for buffer in buffers:
        name = fresh_buffer_name(func, buffer.name)
        renamed[buffer] = Buffer(name, buffer.shape, buffer.dtype, buffer.scope, buffer.strides)

    def rename(node: Node) -> Node | None:
        return replace(node, name=fresh_block_name(func, node.name)) if isinstance(node, Block) else None

    return transform(substitute(copy, renamed), rename)  # type: ignore[return-value]
