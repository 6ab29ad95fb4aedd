"""Simplify every expression of a PrimFunc under what its loops, block axes, conditions and dims imply."""

from __future__ import annotations

from operator import is_

from tc.ir.arith import Facts, prove, proves, simplify
from tc.ir.box_copies import Arrive, AwaitPhase, AwaitProducts, BeginProducts, CommitProducts, CopyBox, SetUpBarrier
from tc.ir.empty_reductions import has_start
from tc.ir.expr import Expr, const, equal, logical_not
from tc.ir.launch import is_block_loop
from tc.ir.loop import (
    Alloc,
    AwaitCopies,
    Barrier,
    Block,
    CommitCopies,
    For,
    If,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    WarpCall,
    While,
    seq,
)
from tc.ir.node import Node, Substitution, map_children, replace
from tc.passes.manager import loop_pass


@loop_pass
def simplify_loops(func: PrimFunc) -> PrimFunc:
    """Simplify indices, bounds, conditions and values; drop branches that are never taken and loops that never run.

    A loop of one iteration is replaced by its body, unless it is bound to a GPU axis; one over a single thread block stays, its number
    being 0.
    """
    body = _simplify(func.body, Facts.of(func.facts), _NOTHING)
    return replace(func, body=body)


def simplify_statement(stmt: Stmt, facts: Facts) -> Stmt:
    """`simplify_loops` for one statement, under what is known where it stands."""
    return _simplify(stmt, facts, _NOTHING)


_NOTHING = Substitution({})
"""No loop of one iteration is around a statement."""


def _simplify(stmt: Stmt, facts: Facts, once: Substitution) -> Stmt:
    """A statement simplified, inside of loops of one iteration whose variables are replaced."""
    match stmt:
        case For():
            return _simplify_for(stmt, facts, once)
        case Block():
            return _simplify_block(stmt, facts, once)
        case If():
            return _simplify_if(stmt, facts, once)
        case Seq(stmts=stmts):
            new = tuple([_simplify(inner, facts, once) for inner in stmts])
            nested = any(isinstance(inner, Seq) for inner in new)
            if not nested and all(map(is_, new, stmts)):
                return stmt
            return seq(*new)
        case Store(buffer=buffer, indices=indices, value=value):
            return replace(stmt, buffer=once(buffer), indices=_all(indices, facts, once), value=_expr(value, facts, once))
        case Let(value=value, body=body):
            return replace(stmt, value=_expr(value, facts, once), body=_simplify(body, facts, once))
        case Alloc():
            return _simplify_alloc(stmt, facts, once)
        case While(condition=condition, body=body):
            return replace(stmt, condition=_expr(condition, facts, once), body=_simplify(body, facts, once))
        case IntrinsicCall(operands=operands) | WarpCall(operands=operands):
            return replace(stmt, operands=_all(operands, facts, once))
        case Barrier() | CommitCopies() | AwaitCopies() | CommitProducts():
            return stmt
        case CopyBox() | SetUpBarrier() | Arrive() | AwaitPhase() | BeginProducts() | AwaitProducts():
            return _simplify_parts(stmt, facts, once)
    raise AssertionError(f"unknown statement {type(stmt).__name__}")


def _simplify_parts(stmt: Stmt, facts: Facts, once: Substitution) -> Stmt:
    """A statement that holds expressions and buffers alone."""

    def visit(child: Node) -> Node:
        return _expr(child, facts, once) if isinstance(child, Expr) else once(child)

    simplified = map_children(stmt, visit)
    assert isinstance(simplified, Stmt)
    return simplified


def _expr(expr: Expr, facts: Facts, once: Substitution) -> Expr:
    return simplify(once(expr), facts)


def _all(exprs: tuple[Expr, ...], facts: Facts, once: Substitution) -> tuple[Expr, ...]:
    new = tuple([_expr(expr, facts, once) for expr in exprs])
    return exprs if all(map(is_, new, exprs)) else new


def _simplify_for(loop: For, facts: Facts, once: Substitution) -> Stmt:
    extent = _expr(loop.extent, facts, once)
    if proves(extent <= 0, facts) and not has_start(loop.body):  # a reduction over no terms is still something
        return Seq(())
    if loop.kind is not LoopKind.BOUND and proves(equal(extent, 1), facts):
        return _simplify(loop.body, facts, once.and_also({loop.var: const(0, loop.var.dtype)}))
    if is_block_loop(loop) and proves(equal(extent, 1), facts):
        once = once.and_also({loop.var: const(0, loop.var.dtype)})
    return replace(loop, extent=extent, body=_simplify(loop.body, facts.with_range(loop.var, extent), once))


def _simplify_alloc(stmt: Alloc, facts: Facts, once: Substitution) -> Stmt:
    buffer = once(stmt.buffer)
    inside = once if buffer is stmt.buffer else once.and_also({stmt.buffer: buffer})  # the same one in all of the body
    return replace(stmt, buffer=buffer, body=_simplify(stmt.body, facts, inside))


def _simplify_block(block: Block, facts: Facts, once: Substitution) -> Block:
    axes = tuple(
        [replace(axis, extent=_expr(axis.extent, facts, once), value=_expr(axis.value, facts, once)) for axis in block.axes]
    )
    inside = facts
    for axis in axes:
        inside = inside.with_range(axis.var, axis.extent)
    return replace(
        block,
        axes=block.axes if all(map(is_, axes, block.axes)) else axes,
        where=_expr(block.where, facts, once),
        init=None if block.init is None else _simplify(block.init, inside, once),
        body=_simplify(block.body, inside, once),
    )


def _simplify_if(stmt: If, facts: Facts, once: Substitution) -> Stmt:
    condition = _expr(stmt.condition, facts, once)
    known = prove(condition, facts)
    if known is True:
        return _simplify(stmt.then_body, facts, once)
    if known is False:
        return Seq(()) if stmt.else_body is None else _simplify(stmt.else_body, facts, once)
    otherwise = None if stmt.else_body is None else _simplify(stmt.else_body, facts.assume(logical_not(condition)), once)
    return replace(
        stmt, condition=condition, then_body=_simplify(stmt.then_body, facts.assume(condition), once), else_body=otherwise
    )
