"""Names by position, so that a trace found for one program replays on every equal one, whatever its model calls things."""

from __future__ import annotations

from itertools import count

from tc.ir.expr import Buffer, Var
from tc.ir.loop import Alloc, Block, For, Let, PrimFunc, Stmt
from tc.ir.node import Node, cached_by_identity, map_children, replace, substitute
from tc.ir.structural import structural_hash


@cached_by_identity(256)
def canonical_names(func: PrimFunc) -> PrimFunc:
    """The same program with dims n0, n1 ..., buffers b0 ..., loops l0 ..., axes vi0 ... and blocks s0 ..., in the order of the text.

    Structurally equal programs become textually equal, but for the name of the PrimFunc, which stays. Every variable is bound once.
    """
    params: dict[Node, Node] = {dim: Var(f"n{place}", dim.dtype) for place, dim in enumerate(func.dims)}
    for place, buffer in enumerate(func.buffers):
        params[buffer] = _renamed(buffer, f"b{place}", params)
    named = substitute(func, params)
    return replace(named, body=_Renamer(len(func.buffers)).statement(named.body))


def _renamed(buffer: Buffer, name: str, dims: dict[Node, Node]) -> Buffer:
    shape = tuple(substitute(dim, dims) for dim in buffer.shape)
    strides = None if buffer.strides is None else tuple(substitute(stride, dims) for stride in buffer.strides)
    return Buffer(name, shape, buffer.dtype, buffer.scope, strides)


class _Renamer:
    """Gives every binder of a statement a new name, outer ones first; a variable bound in two places becomes two."""

    def __init__(self, buffers: int) -> None:
        self.loops, self.axes, self.blocks, self.buffers = count(), count(), count(), count(buffers)

    def statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case For() | Let():
                var = Var(f"l{next(self.loops)}", stmt.var.dtype)
                return replace(stmt, var=var, body=self.statement(substitute(stmt.body, {stmt.var: var})))
            case Alloc(buffer=buffer):
                own = _renamed(buffer, f"b{next(self.buffers)}", {})
                return replace(stmt, buffer=own, body=self.statement(substitute(stmt.body, {buffer: own})))
            case Block():
                return self._block(stmt)
        return map_children(stmt, lambda child: self.statement(child) if isinstance(child, Stmt) else child)

    def _block(self, block: Block) -> Block:
        own: dict[Node, Node] = {axis.var: Var(f"vi{next(self.axes)}", axis.var.dtype) for axis in block.axes}
        name = f"s{next(self.blocks)}"
        axes = tuple(replace(axis, var=own[axis.var]) for axis in block.axes)
        init = None if block.init is None else self.statement(substitute(block.init, own))
        return replace(block, name=name, axes=axes, init=init, body=self.statement(substitute(block.body, own)))


def workload_key(prim: PrimFunc) -> str:
    """What tuning records know a PrimFunc by: equal for equal programs, whatever they are called."""
    return structural_hash(canonical_names(prim))[:20]
