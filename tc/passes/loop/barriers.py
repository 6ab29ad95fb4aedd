"""Barriers between the parts of a launch that conflict, and no others.

What every thread runs is a tree of statements that are the same for all threads of a block (loops, conditions, lets); its leaves are
`ThreadRegion`s, in which each thread does its own. On the way through the program all is kept that was touched since the last barrier;
where something conflicts with that, a barrier goes in front of it. What is left at the end of a loop's body meets its start again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove
from tc.ir.expr import Buffer, Expr, Var, logical_not
from tc.ir.loop import AwaitCopies, Barrier, CommitCopies, For, If, Let, Seq, Stmt, While, seq, walk_statements
from tc.ir.node import replace
from tc.ir.uses import buffers_read, variables
from tc.passes.loop.thread_conflicts import Conflicts, Touch


@dataclass(frozen=True, eq=False)
class ThreadRegion(Stmt):
    """What each thread does by itself, between two places where threads may have to wait for each other."""

    body: Stmt


Pending = dict[Touch, None]
"""What was touched since the last barrier, in order."""


@dataclass(frozen=True)
class _Around:
    """What surrounds a statement: what is known there, variables that differ from thread to thread, and a loop that not all threads run
    alike, if there is one."""

    facts: Facts
    varying: frozenset[Var]
    uneven: Stmt | None = None


@dataclass(frozen=True)
class BarrierPlacer:
    """Places barriers in the body of one launch. `private`: the buffers that are each thread's own."""

    name: str
    conflicts: Conflicts
    private: frozenset[Buffer]

    def place(self, body: Stmt, facts: Facts) -> Stmt:
        """The body with barriers, its regions replaced by what is in them. ScheduleError where not all threads would meet at a barrier."""
        placed, _ = self._statement(body, {}, _Around(facts, frozenset(self.conflicts.threads)))
        return placed

    def _statement(self, stmt: Stmt, before: Pending, around: _Around) -> tuple[Stmt, Pending]:
        match stmt:
            case CommitCopies():
                return stmt, before
            case AwaitCopies():
                return stmt, {self.conflicts.arrived(touch): None for touch in before}
            case ThreadRegion(body=body):
                return self._behind(before, body, self.conflicts.touches_of(body, self._unknown(around)), around)
            case Seq(stmts=stmts):
                placed = []
                for inner in stmts:
                    each, before = self._statement(inner, before, around)
                    placed.append(each)
                return seq(*placed), before
            case For():
                return self._with_value(stmt, stmt.extent, before, around)
            case If(condition=condition):
                return self._with_value(stmt, condition, before, around)
            case Let(value=value):
                return self._with_value(stmt, value, before, around)
            case While(condition=condition):
                return self._with_value(stmt, condition, before, around)
        raise AssertionError(f"{type(stmt).__name__} is not uniform")

    def _with_value(self, stmt: Stmt, value: Expr, before: Pending, around: _Around) -> tuple[Stmt, Pending]:
        """A statement that all threads evaluate an expression for."""
        read = self.conflicts.touches_of_value(value, self._unknown(around))
        start, before = self._behind(before, Seq(()), read, around)
        match stmt:
            case For():
                placed, after = self._for(stmt, before, around)
            case If():
                placed, after = self._if(stmt, before, around)
            case Let(var=var, body=body):
                varying = around.varying | {var} if self.varies(value, around) else around.varying
                inner, after = self._statement(body, before, _Around(around.facts, varying, around.uneven))
                placed = replace(stmt, body=inner)
            case While(body=body):
                placed, after = self._while(stmt, read, before, around)
        return seq(start, placed), after

    def _unknown(self, around: _Around) -> frozenset[Var]:
        return around.varying.difference(self.conflicts.threads)

    def varies(self, expr: Expr, around: _Around) -> bool:
        """Whether an expression may have different values in two threads."""
        return bool(variables(expr) & around.varying) or not self.private.isdisjoint(buffers_read(expr))

    def _behind(self, before: Pending, stmt: Stmt, touches: Iterable[Touch], around: _Around) -> tuple[Stmt, Pending]:
        """A statement behind what was touched before, with a barrier between them if it must be."""
        touches = dict.fromkeys(touches)
        met = next(((old, new) for new in touches for old in before if self.conflicts.meet(old, new, around.facts)), None)
        if met is None:
            return stmt, {**before, **touches}
        late = next((old for old in before if old.is_async and not old.has_arrived and self._meets(old, touches, around.facts)), None)
        if late is not None:
            raise ScheduleError(f"{self.name}: {late} may still be on its way where it is touched again: its copies have not been awaited")
        if around.uneven is not None:
            what = f"loop {around.uneven.var.name}" if isinstance(around.uneven, For) else "a condition"
            raise ScheduleError(
                f"{self.name}: a barrier is needed between {met[0]} and {met[1]} inside of {what} that is not the same for all threads"
            )
        on_their_way = {old: None for old in before if old.is_async and not old.has_arrived}
        return seq(Barrier(), stmt), {**on_their_way, **touches}

    def _meets(self, old: Touch, touches: Iterable[Touch], facts: Facts) -> bool:
        return any(self.conflicts.meet(old, new, facts) for new in touches)

    def _if(self, stmt: If, before: Pending, around: _Around) -> tuple[Stmt, Pending]:
        facts = around.facts
        uneven = stmt if self.varies(stmt.condition, around) else around.uneven
        inside = _Around(facts.assume(stmt.condition), around.varying, uneven)
        then_body, after = self._statement(stmt.then_body, before, inside)
        if stmt.else_body is None:
            return replace(stmt, then_body=then_body), {**before, **after}
        inside = _Around(facts.assume(logical_not(stmt.condition)), around.varying, uneven)
        else_body, other = self._statement(stmt.else_body, before, inside)
        return replace(stmt, then_body=then_body, else_body=else_body), {**after, **other}

    def _for(self, loop: For, before: Pending, around: _Around) -> tuple[Stmt, Pending]:
        uneven = loop if self.varies(loop.extent, around) else around.uneven
        varying = around.varying | {loop.var} if uneven is loop else around.varying
        inside = _Around(around.facts.with_range(loop.var, loop.extent), varying, uneven)
        once = prove(loop.extent <= 1, around.facts) is True

        def run(pending: Pending) -> tuple[Stmt, Pending]:
            return self._statement(loop.body, pending, inside)

        def carried(touches: Pending) -> Pending:
            touches = self._of_other_iteration(touches, loop.body)
            return {self.conflicts.older(touch, loop.var, loop.extent): None for touch in touches}

        repeated = (lambda touches: {}) if once else carried
        body, after = _settle(run, before, repeated)
        if _has(body, Barrier) and not _has(loop.body, CommitCopies, AwaitCopies):
            alone, touched = _settle(run, {}, repeated)
            if not _has(alone, Barrier):  # its iterations need none: one in front of all is enough
                return self._behind(before, replace(loop, body=alone), carried(touched), around)
        skipped = {} if prove(loop.extent >= 1, around.facts) is True else before
        return replace(loop, body=body), {**skipped, **carried(after)}

    def _of_other_iteration(self, touches: Pending, body: Stmt) -> Pending:
        """What was touched when the lets of a loop's body had other values."""
        for let in (node for node in walk_statements(body) if isinstance(node, Let)):
            touches = {self.conflicts.older(touch, let.var, None): None for touch in touches}
        return touches

    def _while(self, stmt: While, read: tuple[Touch, ...], before: Pending, around: _Around) -> tuple[Stmt, Pending]:
        inside = _Around(around.facts, around.varying, stmt if self.varies(stmt.condition, around) else around.uneven)

        def body_and_condition(before: Pending) -> tuple[Stmt, Pending]:
            body, after = self._statement(stmt.body, before, inside)
            end, after = self._behind(after, Seq(()), read, inside)
            return seq(body, end), after

        body, after = _settle(body_and_condition, before, lambda touches: self._of_other_iteration(touches, stmt.body))
        return replace(stmt, body=body), {**before, **after}


def _has(stmt: Stmt, *kinds: type[Stmt]) -> bool:
    return any(isinstance(node, kinds) for node in walk_statements(stmt))


def _settle(
    run: Callable[[Pending], tuple[Stmt, Pending]], before: Pending, carried: Callable[[Pending], Pending]
) -> tuple[Stmt, Pending]:
    """The body of a loop, what is pending at its start being also what is at its end: that grows until it does not."""
    while True:
        body, after = run(before)
        again = {**before, **carried(after)}
        if len(again) == len(before):
            return body, after
        before = again
