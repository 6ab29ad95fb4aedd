"""Loops of threads written out where that lets loads be on their way together, and indices be constants.

    for k in range(32): B[k] = A[k]          =>     for k in range(4): for u in unrolled(8): B[k * 8 + u] = A[k * 8 + u]

    for k in range(n): ... S[k % 3, i]       =>     for k in range(n // 3): for s in unrolled(3): ... S[s, i]
                                                    for k in range(n - n // 3 * 3): ... S[k, i]

Compilers of device code are told to leave other loops as they are: what they unroll by themselves takes registers that are not there.
"""

from __future__ import annotations

from tc.ir.arith import linear_coefficients
from tc.ir.expr import Const, Expr, FloorMod, Load, MathCall, Var, const, is_const
from tc.ir.hints import NO_HINTS
from tc.ir.launch import launches_in
from tc.ir.loop import (
    Barrier,
    CommitCopies,
    For,
    LoopKind,
    PrimFunc,
    Stmt,
    Store,
    WarpCall,
    While,
    inner_statements,
    is_statement,
    seq,
    walk_statements,
)
from tc.ir.node import Node, replace, substitute, transform, walk
from tc.ir.structural import fresh_binders
from tc.passes.manager import loop_pass

MOST_COPIES = 8
"""Iterations of a loop that are written out: as many 128-bit loads as a thread has registers for beside its sums."""

MOST_STATEMENTS = 320
"""Statements of the loops that are written out: a few steps of a product of 8 x 8 sums, and far less than caches of instructions hold."""

FUNCTION_STATEMENTS = 10
"""What the call of a function counts: as many instructions, or more."""


@loop_pass
def unroll_launches(func: PrimFunc) -> PrimFunc:
    """Write out short loops of launches, parts of longer ones, and those in which the stages of a pipeline take turns.

    Loops of constant extent that have no loop, and no barrier, inside that stays one. Runs on launches in the finished form; indices are
    simplified by `simplify_loops`.
    """
    launches = [loop for launch in launches_in(func.body) for loop in walk_statements(launch) if isinstance(loop, For)]
    inside = frozenset(loop.var for loop in launches)

    def rewrite(node: Node) -> Node | None:
        if not isinstance(node, For) or node.var not in inside or node.kind is not LoopKind.SERIAL or node.hints != NO_HINTS:
            return None
        return _in_turns(node) if _waits(node.body) else _written_out(node)

    return replace(func, body=transform(func.body, rewrite, is_statement))


def _waits(stmt: Stmt) -> bool:
    """Whether threads meet in it, or loop as long as data say."""
    return any(isinstance(node, (Barrier, CommitCopies, While)) for node in walk_statements(stmt))


def _written_out(loop: For) -> Stmt | None:
    """A short loop unrolled, or a long one by as many iterations as there may be; None where that is one."""
    if not isinstance(loop.extent, Const) or any(_is_loop(node) for node in walk_statements(loop.body)):
        return None
    extent = int(loop.extent.value)
    most = min(MOST_COPIES, MOST_STATEMENTS // max(_statements(loop.body), 1))
    copies = max((count for count in range(1, most + 1) if extent % count == 0), default=1)
    if copies < 2:
        return None
    return replace(loop, kind=LoopKind.UNROLLED) if copies == extent else _split(loop, loop.extent // copies, copies)


def _is_loop(node: Node) -> bool:
    return isinstance(node, For) and node.kind is LoopKind.SERIAL


def _statements(stmt: Node) -> int:
    """How many statements are left of one when its loops are written out."""
    if isinstance(stmt, (Store, WarpCall)):
        return 1 + FUNCTION_STATEMENTS * sum(isinstance(node, MathCall) for node in walk(stmt))
    inside = sum(map(_statements, inner_statements(stmt)))
    is_copied = isinstance(stmt, For) and stmt.kind is LoopKind.UNROLLED and isinstance(stmt.extent, Const)
    return inside * int(stmt.extent.value) if is_copied else inside  # type: ignore[attr-defined]


def _split(loop: For, extent: Expr, copies: int) -> For:
    """The first `extent * copies` iterations of a loop, so many written out."""
    copy = Var(f"{loop.var.name}_u", loop.var.dtype)
    body = substitute(loop.body, {loop.var: loop.var * copies + copy})
    return replace(loop, extent=extent, body=For(copy, const(copies), body, LoopKind.UNROLLED))


# -- stages that take turns


def _in_turns(loop: For) -> Stmt | None:
    """A loop whose iterations use the stages of buffers in turn, a copy for each stage; None for others."""
    stages = {found for node in walk(loop.body) if (found := _stage(node, loop.var)) > 1}
    if len(stages) != 1 or (count := max(stages)) * _statements(loop.body) > MOST_STATEMENTS:
        return None
    rounds = loop.extent // count
    last = fresh_binders(replace(loop, extent=loop.extent - rounds * count))
    rest = replace(last, body=substitute(last.body, {last.var: last.var + rounds * count}))
    return seq(_split(loop, rounds, count), rest)


def _stage(node: Node, var: Var) -> int:
    """Of how many stages of a buffer an iteration of the loop over `var` uses one; 0 where `node` does not choose one."""
    if not isinstance(node, (Load, Store)) or node.buffer.scope != "shared" or not node.indices:
        return 0
    match node.indices[0], node.buffer.shape[0]:
        case FloorMod(lhs=number, rhs=Const(value=count)), Const(value=stages) if count == stages:
            form = linear_coefficients(number, [var])
            return int(stages) if form is not None and is_const(form[0].get(var, const(0)), 1) else 0
    return 0
