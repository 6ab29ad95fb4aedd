"""Loops that copy to shared memory ahead of what they compute: while one iteration is computed, copies of the next ones are on their way.

    for k in range(n, pipeline=3):                  S = alloc(f32[3, 64], shared)
        S = alloc(f32[64], shared)                  for p in range(2):
        for t in thread.x(64): S[t] = A[k, t]           for t in thread.x(64): if p < n: copy_async(S[p % 3, t], A[p, t])
        for t in thread.x(64): ... S[63 - t]   =>       commit_copies()
                                                    for k in range(n):
                                                        await_copies(1)
                                                        for t in thread.x(64): if k + 2 < n: copy_async(S[(k + 2) % 3, t], A[k + 2, t])
                                                        commit_copies()
                                                        for t in thread.x(64): ... S[k % 3, 63 - t]
                                                    await_copies(0)

Every iteration closes one group, an empty one where there is nothing left to copy, so the last `stages - 2` groups are those of iterations
to come. The wait stands in front of the copies: one barrier behind it, which `distribute_threads` puts there, shows all threads what has
arrived, and says that all are done with the stage that is copied to next.

Where groups of warps multiply what is copied, a thread of another group copies it, in boxes: see `pipeline_roles`.
Source: the multi-stage main loop of CUTLASS (NVIDIA).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tc.ir.arith import Facts, prove
from tc.ir.copies import copied
from tc.ir.expr import Buffer, Const, Expr, Load, Var, const, floormod
from tc.ir.launch import has_launch, is_thread_loop, launches_in
from tc.ir.loop import (
    Alloc,
    AsyncStore,
    AwaitCopies,
    CommitCopies,
    For,
    If,
    IntrinsicCall,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    While,
    in_place_inputs,
    is_statement,
    seq,
    walk_statements,
)
from tc.ir.node import Node, binders, replace, substitute, transform
from tc.ir.structural import fresh_binders
from tc.ir.uses import buffers_read, buffers_written, reads_memory, touches
from tc.passes.loop.pipeline_roles import allocated, has_groups, in_roles
from tc.passes.manager import loop_pass


@loop_pass
def pipeline_loops(func: PrimFunc) -> PrimFunc:
    """Carry out the hint `pipeline` of loops in launches, where it is proven to change nothing, and take it away everywhere.

    What is copied ahead are statements at the start of a loop's body that fill shared buffers of an iteration from memory that the loop
    does not write. Copies that are made once, in front of such a loop, are asynchronous too. Runs on launches whose loops fork and join,
    buffers compact.
    """
    body = transform(func.body, lambda node: _with_roles(node, func) if isinstance(node, Seq) else None, is_statement)
    body = transform(body, lambda node: _with_copies_in_front(node, func) if isinstance(node, Seq) else None, is_statement)
    inside = frozenset(loop for launch in launches_in(body) for loop in walk_statements(launch) if isinstance(loop, For))

    def rewrite(node: Node) -> Node | None:
        if not isinstance(node, For) or node.hints.pipeline == 1:
            return None
        plain = replace(node, hints=node.hints.without("pipeline"))
        if has_groups(node):
            return in_roles(plain, _stages(node), Facts.of(func.facts))
        parts = _parts(node, func) if node in inside or has_launch(node) else None
        return plain if parts is None else _pipelined(plain, parts, Facts.of(func.facts))

    return replace(func, body=transform(body, rewrite, is_statement))


# -- what can be copied ahead


@dataclass(frozen=True, eq=False)
class _Parts:
    """The body of a loop: what is copied ahead, to which buffers, what is done with it, and what else is allocated around both."""

    stages: int
    producers: tuple[Stmt, ...]
    staged: tuple[Buffer, ...]
    consumers: tuple[Stmt, ...]
    others: tuple[Buffer, ...]


def _parts(loop: For, func: PrimFunc) -> _Parts | None:
    """The parts of a loop whose copies may run ahead; None where nothing may."""
    stages = _stages(loop)
    if loop.kind is not LoopKind.SERIAL or stages < 2 or reads_memory(loop.extent):
        return None
    buffers, stmt = allocated(loop.body)
    stmts = stmt.stmts if isinstance(stmt, Seq) else (stmt,)
    written = buffers_written(loop.body)
    staged = tuple(buffer for buffer in buffers if _can_be_staged(buffer, stmt))
    count = 0
    while count < len(stmts) and _runs_ahead(stmts[count], frozenset(staged), written):
        count += 1
    filled = frozenset[Buffer]().union(*map(buffers_written, stmts[:count]))
    consumers = stmts[count:]
    changed = frozenset[Buffer]().union(*map(buffers_written, consumers))
    if not filled or not consumers or filled & changed or (in_place_inputs(func) and changed & {*func.buffers}):
        return None
    own = tuple(buffer for buffer in buffers if buffer not in filled)
    return _Parts(stages, stmts[:count], tuple(buffer for buffer in staged if buffer in filled), consumers, own)


def _stages(loop: For) -> int:
    """How many iterations have memory at once."""
    return loop.hints.pipeline if not isinstance(loop.extent, Const) else min(loop.hints.pipeline, int(loop.extent.value))


def _can_be_staged(buffer: Buffer, body: Stmt) -> bool:
    """Whether it is the block's, of constant size, and filled by one store."""
    if buffer.scope not in ("shared", "global") or buffer.strides is not None or not all(isinstance(dim, Const) for dim in buffer.shape):
        return False
    stores = [node for node in walk_statements(body) if isinstance(node, Store) and node.buffer is buffer]
    calls = [node for node in walk_statements(body) if isinstance(node, IntrinsicCall) and touches(node, buffer)]
    return len(stores) == 1 and not any(isinstance(call.operands[-1], Load) and call.operands[-1].buffer is buffer for call in calls)


def _runs_ahead(stmt: Stmt, staged: frozenset[Buffer], written: frozenset[Buffer]) -> bool:
    """Whether a statement only fills buffers, by threads, from what the loop does not change."""
    if any(isinstance(node, (While, IntrinsicCall, CommitCopies, AwaitCopies)) for node in walk_statements(stmt)):
        return False
    own = frozenset(node.buffer for node in walk_statements(stmt) if isinstance(node, Alloc))
    filled = buffers_written(stmt) - own
    return has_launch(stmt) and bool(filled) and filled <= staged and buffers_read(stmt).isdisjoint(written - own)


def _with_copies_in_front(sequence: Seq, func: PrimFunc) -> Stmt | None:
    """A sequence in which what is copied to shared memory once, before a loop that copies ahead, is copied in the same way."""
    stmts = sequence.stmts
    last = max((k for k, stmt in enumerate(stmts) if isinstance(stmt, For) and not has_groups(stmt) and _parts(stmt, func)), default=0)
    written = frozenset[Buffer]().union(*map(buffers_written, stmts))
    found: list[Stmt] = []
    for k, stmt in enumerate(stmts):
        filled = frozenset(buffer for buffer in buffers_written(stmt) if buffer.scope == "shared")
        alone = not any(buffers_written(other) & filled for other in stmts if other is not stmt)
        copying = _copying(stmt, filled) if k < last and alone and _runs_ahead(stmt, filled, written) else stmt
        found += [stmt] if copying is stmt else [copying, CommitCopies(), AwaitCopies()]
    return seq(*found) if len(found) > len(stmts) else None


def _with_roles(sequence: Seq, func: PrimFunc) -> Stmt | None:
    """A sequence in which a loop with products of groups, and what is copied once for it in front of it, is done in roles."""
    stmts = sequence.stmts
    for k, stmt in enumerate(stmts):
        if isinstance(stmt, For) and stmt.hints.pipeline != 1 and has_groups(stmt):
            once = tuple(other for other in stmts[:k] if _is_copied_for(other, stmt, stmts))
            plain = replace(stmt, hints=stmt.hints.without("pipeline"))
            roles = in_roles(plain, _stages(stmt), Facts.of(func.facts), once)
            return seq(*(other for other in stmts[:k] if other not in once), roles, *stmts[k + 1 :])
    return None


def _is_copied_for(stmt: Stmt, loop: For, stmts: Sequence[Stmt]) -> bool:
    """Whether a statement makes, for the block as a whole, what a loop alone reads, of what none of the statements changes."""
    filled = buffers_written(stmt)
    others = [other for other in stmts if other is not stmt]
    return (
        bool(filled)
        and not has_launch(stmt)
        and all(buffer.scope == "shared" for buffer in filled)
        and filled <= buffers_read(loop)
        and not any(filled & (buffers_written(other) | (buffers_read(other) if other is not loop else frozenset())) for other in others)
        and not any(buffers_read(stmt) & buffers_written(other) for other in others)
    )


# -- the loop


def _pipelined(loop: For, parts: _Parts, facts: Facts) -> Stmt:
    count = parts.stages
    staged = {buffer: replace(buffer, shape=(const(count), *buffer.shape)) for buffer in parts.staged}
    first = Var(f"{loop.var.name}p", loop.var.dtype)
    prologue = For(first, const(count - 1), seq(*_produced(loop, parts, staged, first, facts.with_range(first, const(count - 1)))))
    inside = facts.with_range(loop.var, loop.extent)
    used = [_in_stage(stmt, staged, floormod(loop.var, count)) for stmt in parts.consumers]
    body = seq(AwaitCopies(count - 2), *_produced(loop, parts, staged, loop.var + (count - 1), inside), *used)
    for buffer in reversed(parts.others):
        body = Alloc(buffer, body)
    whole = seq(prologue, replace(loop, body=body), AwaitCopies(0))
    for buffer in reversed(parts.staged):
        whole = Alloc(staged[buffer], whole)
    return whole


def _produced(loop: For, parts: _Parts, staged: dict[Buffer, Buffer], number: Expr, facts: Facts) -> list[Stmt]:
    """The copies of an iteration, if there is one of that number, as a group."""
    exists = number < loop.extent
    stmts = []
    for stmt in parts.producers:
        moved = fresh_binders(substitute(_copying(stmt, frozenset(staged)), {loop.var: number}))
        stmt = _in_stage(moved, staged, floormod(number, parts.stages))
        stmts.append(stmt if prove(exists, facts) is True else _by_threads_if(exists, stmt))
    return [*stmts, CommitCopies()]


def _copying(stmt: Stmt, staged: frozenset[Buffer]) -> Stmt:
    """A statement whose copies from global memory are asynchronous."""
    own = frozenset(node.buffer for node in walk_statements(stmt) if isinstance(node, Alloc))

    def rewrite(node: Node) -> Node | None:
        if isinstance(node, Store) and node.buffer in staged and (found := copied(node.value)) is not None and found[1].buffer not in own:
            return AsyncStore(node.buffer, node.indices, node.value, span=node.span)
        return None

    return transform(stmt, rewrite, is_statement)


def _in_stage(stmt: Stmt, staged: dict[Buffer, Buffer], stage: Expr) -> Stmt:
    def rewrite(node: Node) -> Node | None:
        if isinstance(node, (Load, Store)) and node.buffer in staged:
            return replace(node, buffer=staged[node.buffer], indices=(stage, *node.indices))
        return None

    return transform(stmt, rewrite, lambda node: not binders(node).isdisjoint(staged))


def _by_threads_if(condition: Expr, stmt: Stmt) -> Stmt:
    """A statement whose threads do nothing unless a condition holds; all of them come by the same loops all the same."""
    if isinstance(stmt, Seq):
        return seq(*(_by_threads_if(condition, part) for part in stmt.stmts))
    if isinstance(stmt, For) and (is_thread_loop(stmt) or has_launch(stmt)):
        return replace(stmt, body=_by_threads_if(condition, stmt.body))
    return If(condition, stmt)
