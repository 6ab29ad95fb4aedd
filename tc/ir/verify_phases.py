"""Whether the roles of a launch wait for each other: its threads, run by what they copy, arrive at, wait for and multiply, without values.

Loops are run as often as the stages of their barriers come around twice, and a little more: what happens then has happened. The same
things are reported as by the interpreter, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from tc.errors import TcError, VerifyError
from tc.ir.arith import evaluate
from tc.ir.box_copies import (
    Arrive,
    AwaitPhase,
    AwaitProducts,
    BeginProducts,
    CommitProducts,
    CopyBox,
    SetUpBarrier,
    barrier_buffers,
    box_buffers,
)
from tc.ir.expr import Buffer, Const, Expr, Load, Var
from tc.ir.intrinsic import GROUP_THREADS, INTRINSICS, is_of_group
from tc.ir.launch import FinishedLaunch
from tc.ir.loop import Alloc, Barrier, For, If, Let, Seq, Stmt, WarpCall, While, inner_statements
from tc.ir.node import Node, cached_on_node
from tc.ir.phases import BoxMemory, Phases, PhaseStop
from tc.ir.printer import print_ir
from tc.ir.uses import variables

PhaseComplaint = tuple[Node, str]


def first_phase_complaint(launch: FinishedLaunch) -> PhaseComplaint | None:
    """What is wrong with the phases of a launch in its finished form; None when all who must wait do."""
    if not barrier_buffers(launch.body):
        return None
    run = _Run(launch)
    try:
        run.run()
    except VerifyError as error:
        stmt = run.sites[run.site] if run.sites else launch.body
        return stmt, error.text.removeprefix(f"{run.name}: ")
    return None


@cached_on_node
def _has_phases(stmt: Stmt) -> bool:
    """Whether a thread does something at or below a statement that matters here."""
    own = isinstance(stmt, (CopyBox, SetUpBarrier, Arrive, AwaitPhase, BeginProducts, CommitProducts, AwaitProducts, Barrier))
    own = own or (isinstance(stmt, WarpCall) and is_of_group(stmt.name))
    return own or any(map(_has_phases, inner_statements(stmt)))


@dataclass(frozen=True)
class _GroupStop:
    """A thread at a product: the statement, and where it is by the loops around."""

    call: WarpCall
    env: tuple[int, ...]
    places: tuple[int, ...]


class _Barriers:
    """The elements of a buffer of barriers: written by one thread, seen by others behind a barrier of the block."""

    def __init__(self, run: _Run, buffer: Buffer) -> None:
        self.run, self.buffer = run, buffer
        self.written: dict[int, tuple[int, int]] = {}

    def store(self, place: int, value: Any, site: int) -> None:
        self.written[place] = self.run.thread, self.run.interval

    def load(self, place: int, site: int) -> None:
        found = self.written.get(place)
        if found is None or (found[0] != self.run.thread and found[1] == self.run.interval):
            self.run.phases.fail(site, f"uses {self.buffer.name}[{place}], which has not been set up before a barrier")


Stop = PhaseStop | _GroupStop | Barrier | None
Coroutine = Generator[Stop, None, None]
Env = dict[Var, int]


@dataclass
class _Run:
    """One block. `site`: the statement that is being run, by its number in `sites`."""

    launch: FinishedLaunch
    name: str = "the launch"
    thread: int = 0
    interval: int = 0
    sites: list[Stmt] = field(default_factory=list)
    site: int = 0

    def __post_init__(self) -> None:
        self.threads = list(product(*(range(_constant(loop.extent)) for loop in self.launch.threads)))
        self.phases = Phases(self, len(self.threads))
        boxes = box_buffers(self.launch.body)
        self.boxes = {buffer: BoxMemory(self, buffer, tuple(map(_constant, buffer.shape)), []) for buffer in boxes}
        self.barriers = {buffer: _Barriers(self, buffer) for buffer in barrier_buffers(self.launch.body)}
        self.most = 2 * max(_constant(buffer.shape[0]) for buffer in self.barriers) + 2
        self.numbers: dict[Stmt, int] = {}
        self.used: dict[tuple[Expr, ...], tuple[Var, ...]] = {}
        self.places: dict[object, int] = {}
        self.thread_vars = frozenset(loop.var for loop in self.launch.threads)

    def who(self, thread: int) -> str:
        names = (loop.var.name for loop in self.launch.threads)
        return f"thread ({', '.join(f'{name}={k}' for name, k in zip(names, self.threads[thread], strict=True))})"

    def text(self, code: int) -> str:
        return print_ir(self.sites[code]).splitlines()[0]

    # -- threads

    def run(self) -> None:
        alive = {k: self.statement(self.launch.body, self.env(k)) for k in range(len(self.threads))}
        while alive:
            self.interval += 1
            ended = self.run_interval(alive)
            self.phases.meet()
            alive = {k: coroutine for k, coroutine in alive.items() if k not in ended}
        self.phases.check_over()

    def env(self, thread: int) -> Env:
        env: Env = {loop.var: 0 for loop in self.launch.blocks}
        env.update(zip((loop.var for loop in self.launch.threads), self.threads[thread], strict=True))
        return env

    def run_interval(self, alive: Mapping[int, Coroutine]) -> set[int]:
        """All threads up to a barrier of the block; those that have ended."""
        running, ended = list(alive), set[int]()
        waiting: dict[int, PhaseStop] = {}
        groups: dict[int, _GroupStop] = {}
        while True:
            for self.thread in running:
                stop = next(alive[self.thread], None)
                if stop is None:
                    ended.add(self.thread)
                elif isinstance(stop, PhaseStop):
                    waiting[self.thread] = stop
                elif isinstance(stop, _GroupStop):
                    groups[self.thread] = stop
            running = [*self.multiply(groups, waiting), *self.passed(waiting)]
            if running:
                continue
            if not waiting and not groups:
                return ended
            if not self.phases.deliver(waiting.values()):
                self.phases.stuck(waiting)

    def passed(self, waiting: dict[int, PhaseStop]) -> list[int]:
        done = [thread for thread, stop in waiting.items() if self.phases.has_passed(stop)]
        for thread in done:
            self.phases.passed(thread, waiting.pop(thread))
        return done

    def multiply(self, groups: dict[int, _GroupStop], waiting: Mapping[int, PhaseStop]) -> list[int]:
        """The products of groups all of whose threads have come."""
        released: list[int] = []
        for first in sorted({thread // GROUP_THREADS * GROUP_THREADS for thread in groups}):
            threads = range(first, first + GROUP_THREADS)
            if any(thread in waiting for thread in threads):
                continue
            stop = next(groups[thread] for thread in threads if thread in groups)
            self.at(stop.call)
            apart = next((thread for thread in threads if groups.get(thread) != stop), None)
            if apart is not None:
                who = self.who(apart) if apart < len(self.threads) else "a thread that there is not"
                raise VerifyError(f"{self.name}: threads of a group do not meet at {stop.call.name}: {who} is elsewhere")
            self.product(stop, threads)
            for thread in threads:
                del groups[thread]
            released += threads
        return released

    def product(self, stop: _GroupStop, threads: range) -> None:
        read: set[int] = set()
        parts = INTRINSICS[stop.call.name].pattern.buffers
        for part, operand, place in zip(parts[:-1], stop.call.operands, stop.places, strict=False):
            if part.scope == "shared":
                buffer = operand.buffer
                if buffer not in self.boxes:
                    raise VerifyError(f"{self.name}: {stop.call.name} reads {buffer.name}, to which no boxes are copied")
                read |= self.phases.read(self.boxes[buffer], place, [_constant(dim) for dim in part.shape], threads, self.site)[1]
        for thread in threads:
            self.phases.check_begun(thread, self.site)
        self.phases.issue(threads, read, {thread: ([], 0, []) for thread in threads}, {}, self.site)

    # -- statements

    def at(self, stmt: Stmt) -> None:
        if stmt not in self.numbers:
            self.numbers[stmt] = len(self.sites)
            self.sites.append(stmt)
        self.site = self.numbers[stmt]

    def statement(self, stmt: Stmt, env: Env) -> Coroutine:
        """What a thread does, given the values of variables; it yields where it has to wait."""
        if not _has_phases(stmt):
            return
        match stmt:
            case Seq(stmts=stmts):
                for part in stmts:
                    yield from self.statement(part, env)
            case For(var=var, extent=extent, body=body):
                for number in range(self.iterations(extent, env)):
                    yield from self.statement(body, {**env, var: number})
            case If(condition=condition, then_body=then_body, else_body=else_body):
                if self.value(condition, env, stmt):
                    yield from self.statement(then_body, env)
                elif else_body is not None:
                    yield from self.statement(else_body, env)
            case Let(var=var, value=value, body=body):
                known = {} if variables(value) - env.keys() else {var: self.value(value, env, stmt)}
                yield from self.statement(body, {**env, **known})
            case Alloc(body=body):
                yield from self.statement(body, env)
            case While():
                self.at(stmt)
                raise VerifyError(f"{self.name}: phases are awaited in a while loop, in which they cannot be counted")
            case Barrier():
                yield stmt
            case _:
                self.at(stmt)
                yield from self.event(stmt, env)

    def iterations(self, extent: Expr, env: Env) -> int:
        known = None if variables(extent) - env.keys() else int(evaluate(extent, env))
        return self.most if known is None else min(known, self.most)

    def value(self, expr: Expr, env: Env, stmt: Stmt) -> int:
        try:
            return int(evaluate(expr, env))
        except (TcError, KeyError, AssertionError):
            self.at(stmt)
            raise VerifyError(f"{self.name}: who waits for whom depends on {expr}") from None

    def event(self, stmt: Stmt, env: Env) -> Coroutine:
        phases = self.phases
        match stmt:
            case SetUpBarrier(barrier=barrier, arrivals=arrivals):
                phases.set_up(*self.barrier(barrier, env, stmt), arrivals, self.site)
            case Arrive(barrier=barrier, expected_bytes=count):
                phases.arrive(*self.barrier(barrier, env, stmt), count, self.site)
            case AwaitPhase(barrier=barrier, parity=parity):
                yield phases.stop(*self.barrier(barrier, env, stmt), self.value(parity, env, stmt), self.site)
            case CopyBox(buffer=buffer, indices=indices, barrier=barrier):
                place = self.place(buffer, indices, env, stmt)
                phases.copy(self.boxes[buffer], place, stmt.filled or (), None, *self.barrier(barrier, env, stmt), self.site)
            case BeginProducts():
                phases.begin()
            case CommitProducts():
                phases.commit()
            case AwaitProducts(pending=pending, sums=sums):
                phases.wait(pending, bool(sums), self.site)
            case WarpCall(operands=operands):
                shared = [each if each.buffer in self.boxes else None for each in operands[:-1]]
                places = tuple(0 if each is None else self.place(each.buffer, each.indices, env, stmt) for each in shared)
                yield _GroupStop(stmt, tuple(value for var, value in env.items() if var not in self.thread_vars), places)

    def barrier(self, barrier: Load, env: Env, stmt: Stmt) -> tuple[_Barriers, int]:
        return self.barriers[barrier.buffer], self.place(barrier.buffer, barrier.indices, env, stmt)

    def place(self, buffer: Buffer, indices: tuple[Expr, ...], env: Env, stmt: Stmt) -> int:
        """The number of an element."""
        if indices not in self.used:
            self.used[indices] = tuple(frozenset[Var]().union(*map(variables, indices)))
        key = buffer, indices, tuple(env.get(var) for var in self.used[indices])
        if key not in self.places:
            self.places[key] = self._place(buffer, indices, env, stmt)
        return self.places[key]

    def _place(self, buffer: Buffer, indices: tuple[Expr, ...], env: Env, stmt: Stmt) -> int:
        found = [self.value(index, env, stmt) for index in indices]
        sizes = [_constant(dim) for dim in buffer.shape]
        if any(not 0 <= index < size for index, size in zip(found, sizes, strict=True)):
            raise VerifyError(f"{self.name}: {buffer.name}[{', '.join(map(str, found))}] is outside of {buffer}")
        return int(np.ravel_multi_index(found, sizes))


def _constant(extent: Expr) -> int:
    assert isinstance(extent, Const), "threads and shared memory are of constant size"
    return int(extent.value)

