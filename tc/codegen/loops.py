"""What every emitter asks of loops: which parallel ones are one, and which vectorized ones run in lockstep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tc.ir.expr import Buffer, Var
from tc.ir.loop import Alloc, For, If, IntrinsicCall, Let, LoopKind, Seq, Stmt, Store, While
from tc.ir.node import walk
from tc.ir.uses import reads_memory, variables


def parallel_nest(loop: For) -> tuple[For, ...]:
    """The loop, and the parallel loops inside of it that are each the whole body of the one before and of independent extent."""
    nest = [loop]
    while isinstance(inner := nest[-1].body, For) and inner.kind is LoopKind.PARALLEL:
        if any(node is outer.var for outer in nest for node in walk(inner.extent)):
            break
        nest.append(inner)
    return tuple(nest)


def joined_branches(stmts: Iterable[Stmt]) -> Iterator[Stmt]:
    """Statements, of which those that follow each other under one condition, which memory does not change, are one."""
    waiting: Stmt | None = None
    for stmt in stmts:
        match waiting, stmt:
            case If(condition=first, then_body=a, else_body=None), If(condition=second, then_body=b, else_body=None) if (
                first == second and not reads_memory(first)
            ):
                waiting = If(first, Seq((a, b)))
                continue
        if waiting is not None:
            yield waiting
        waiting = stmt
    if waiting is not None:
        yield waiting


def can_vectorize(loop: For, report: Buffer | None) -> bool:
    """Whether every lane may run in lockstep: no loop inside with a bound that depends on the lane, no While, and every store
    goes to a place of its own for each lane, except to the report of failed checks, where any lane may be the last."""
    return _in_lockstep(loop.body, {loop.var}, report)


def _in_lockstep(stmt: Stmt, varying: set[Var], report: Buffer | None) -> bool:
    """The same of a statement, where the variables that differ between lanes are known; those that it binds join them."""
    match stmt:
        case Seq(stmts=stmts):
            return all(_in_lockstep(inner, varying, report) for inner in stmts)
        case For(kind=LoopKind.PARALLEL) | While() | IntrinsicCall():
            return False
        case For(extent=extent, body=body):
            return varying.isdisjoint(variables(extent)) and _in_lockstep(body, varying, report)
        case Let(var=var, value=value, body=body):
            if not varying.isdisjoint(variables(value)):
                varying.add(var)
            return _in_lockstep(body, varying, report)
        case If(then_body=then_body, else_body=else_body):
            return _in_lockstep(then_body, varying, report) and (else_body is None or _in_lockstep(else_body, varying, report))
        case Store(buffer=buffer, indices=indices):
            return buffer is report or not all(varying.isdisjoint(variables(index)) for index in indices)
        case Alloc():
            return False
    return False
