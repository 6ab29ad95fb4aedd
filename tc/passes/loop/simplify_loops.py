"""Simplify every expression of a PrimFunc under what its loops, block axes, conditions and dims imply."""

from __future__ import annotations

from tc.ir.arith import Facts, prove, proves, simplify
from tc.ir.expr import Expr, const, equal, is_const, logical_not
from tc.ir.loop import (
    Alloc,
    Block,
    For,
    If,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    While,
    seq,
)
from tc.ir.node import Node, replace, substitute
from tc.passes.manager import loop_pass


@loop_pass
def simplify_loops(func: PrimFunc) -> PrimFunc:
    """Simplify indices, bounds, conditions and values; drop branches that are never taken and loops that never run.

    A loop of one iteration is replaced by its body, unless it is bound to a GPU axis.
    """
    body = _simplify(func.body, Facts.of(func.facts))
    return replace(func, body=body)


def simplify_statement(stmt: Stmt, facts: Facts) -> Stmt:
    """`simplify_loops` for one statement, under what is known where it stands."""
    return _simplify(stmt, facts)


def _simplify(stmt: Stmt, facts: Facts) -> Stmt:
    match stmt:
        case For():
            return _simplify_for(stmt, facts)
        case Block():
            return _simplify_block(stmt, facts)
        case If():
            return _simplify_if(stmt, facts)
        case Seq(stmts=stmts):
            new = tuple(_simplify(inner, facts) for inner in stmts)
            nested = any(isinstance(inner, Seq) for inner in new)
            if not nested and all(a is b for a, b in zip(new, stmts, strict=True)):
                return stmt
            return seq(*new)
        case Store(indices=indices, value=value):
            return replace(stmt, indices=_all(indices, facts), value=simplify(value, facts))
        case Let(value=value, body=body):
            return replace(stmt, value=simplify(value, facts), body=_simplify(body, facts))
        case Alloc(body=body):
            return replace(stmt, body=_simplify(body, facts))
        case While(condition=condition, body=body):
            return replace(stmt, condition=simplify(condition, facts), body=_simplify(body, facts))
        case IntrinsicCall(operands=operands):
            return replace(stmt, operands=_all(operands, facts))
    raise AssertionError(f"unknown statement {type(stmt).__name__}")


def _all(exprs: tuple[Expr, ...], facts: Facts) -> tuple[Expr, ...]:
    new = tuple(simplify(expr, facts) for expr in exprs)
    return exprs if all(a is b for a, b in zip(new, exprs, strict=True)) else new


def _simplify_for(loop: For, facts: Facts) -> Stmt:
    extent = simplify(loop.extent, facts)
    if proves(extent <= 0, facts):
        return Seq(())
    if loop.kind is not LoopKind.BOUND and proves(equal(extent, 1), facts):
        return _simplify(_once(loop), facts)
    return replace(loop, extent=extent, body=_simplify(loop.body, facts.with_range(loop.var, extent)))


def _once(loop: For) -> Stmt:
    """The body of a loop of one iteration, and of further ones that are its whole body and say that they have one."""
    first: dict[Node, Node] = {loop.var: const(0, loop.var.dtype)}
    body = loop.body
    while isinstance(body, For) and body.kind is not LoopKind.BOUND and is_const(body.extent, 1):
        first[body.var] = const(0, body.var.dtype)
        body = body.body
    return substitute(body, first)


def _simplify_block(block: Block, facts: Facts) -> Block:
    axes = tuple(
        replace(axis, extent=simplify(axis.extent, facts), value=simplify(axis.value, facts)) for axis in block.axes
    )
    inside = facts
    for axis in axes:
        inside = inside.with_range(axis.var, axis.extent)
    return replace(
        block,
        axes=block.axes if all(a is b for a, b in zip(axes, block.axes, strict=True)) else axes,
        where=simplify(block.where, facts),
        init=None if block.init is None else _simplify(block.init, inside),
        body=_simplify(block.body, inside),
    )


def _simplify_if(stmt: If, facts: Facts) -> Stmt:
    condition = simplify(stmt.condition, facts)
    known = prove(condition, facts)
    if known is True:
        return _simplify(stmt.then_body, facts)
    if known is False:
        return Seq(()) if stmt.else_body is None else _simplify(stmt.else_body, facts)
    otherwise = None if stmt.else_body is None else _simplify(stmt.else_body, facts.assume(logical_not(condition)))
    return replace(
        stmt, condition=condition, then_body=_simplify(stmt.then_body, facts.assume(condition)), else_body=otherwise
    )
