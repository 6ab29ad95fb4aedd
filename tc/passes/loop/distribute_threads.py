"""Launches as what each thread runs: loops over threads that fork and join become one nest of threads that meet at barriers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from tc.errors import ScheduleError
from tc.ir.access import report_buffer
from tc.ir.arith import Facts, simplify
from tc.ir.bounds import bounds
from tc.ir.box_copies import CopyBox
from tc.ir.copies import counts_copies
from tc.ir.dtype import bool_, i64
from tc.ir.expr import TRUE, Buffer, Const, Expr, Load, Lt, Var, const, equal, logical_and, logical_not, select
from tc.ir.intrinsic import INTRINSICS, lanes_of
from tc.ir.lane_exchange import can_exchange, is_exchange, mask_of
from tc.ir.launch import BLOCK_AXES, THREAD_AXES, block_loops, finished, has_launch, is_thread_loop, thread_extents
from tc.ir.loop import (
    Alloc,
    AwaitCopies,
    Barrier,
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
    walk_statements,
)
from tc.ir.node import Node, binders, children, replace, substitute, transform
from tc.ir.uses import buffers_read, buffers_written, reads_memory, variables
from tc.passes.loop.barriers import BarrierPlacer, ThreadRegion
from tc.passes.loop.thread_conflicts import Conflicts
from tc.passes.loop.thread_digits import keep_apart
from tc.passes.manager import loop_pass

PRIVATE = ("local", "register")
"""Scopes of what is each thread's own."""


@loop_pass
def distribute_threads(func: PrimFunc) -> PrimFunc:
    """Bring every launch into its finished form (see `For`), and what else touches memory into launches of one thread.

        for b in block.x(n):                              for b in block.x(n):
            S = alloc(f32[64], shared)                        S = alloc(f32[64], shared)
            for ko in range(4):                               for t in thread.x(64):
                for t in thread.x(64): S[t] = ...     =>          for ko in range(4):
                for t in thread.x(32): ... S[t * 2]                   barrier()
                                                                      S[t] = ...
                                                                      barrier()
                                                                      if t < 32: ... S[t * 2]

    What is outside of thread loops is run by all threads where it decides what happens (loops, conditions, lets), and else by the first.
    A barrier stands where threads touch what others do, as far as that is not ruled out. Of a block's buffers those of scope "local" become
    each thread's own part; all others become "shared". ScheduleError when a buffer of scope "local" has elements that several threads
    touch, one of a block or of a thread has no constant size, a barrier would be needed where not all threads come by, or code outside of
    launches that decides about one reads memory.
    """
    return replace(func, body=_host(func.body, _Host(func.name, Facts.of(func.facts), report_buffer(func))))


@dataclass(frozen=True)
class _Host:
    """Code outside of launches: the function's name, what is known, and where checks report, which needs no order (`report_in_order`)."""

    name: str
    facts: Facts
    report: Buffer | None = None


def _host(stmt: Stmt, host: _Host) -> Stmt:
    if isinstance(stmt, For) and stmt.kind is LoopKind.BOUND:
        return _launch(stmt, host)
    if not has_launch(stmt):
        return _launch(_by_one_thread(stmt), host) if _touches_memory(stmt) else stmt
    if isinstance(stmt, Seq):
        return seq(*(_host(part, host) for part in _parts(stmt)))
    read = next((node for node in _values(stmt) if reads_memory(node)), None)
    if read is not None:
        raise ScheduleError(f"{host.name}: {read} is read from memory outside of a launch, and decides about one")
    match stmt:
        case For(var=var, extent=extent, body=body):
            return replace(stmt, body=_host(body, _Host(host.name, host.facts.with_range(var, extent), host.report)))
        case If(condition=condition, then_body=then_body, else_body=else_body):
            inside = _Host(host.name, host.facts.assume(condition), host.report)
            otherwise = None if else_body is None else _host(else_body, host)
            return replace(stmt, then_body=_host(then_body, inside), else_body=otherwise)
        case Let(body=body) | Alloc(body=body) | While(body=body):
            return replace(stmt, body=_host(body, host))
    raise AssertionError(f"{type(stmt).__name__} is not around a launch")


def _parts(stmt: Seq) -> Iterator[Stmt]:
    """The statements of a sequence, neighbours without launches as one."""
    group: list[Stmt] = []
    for part in stmt.stmts:
        if has_launch(part):
            yield from [seq(*group)] if group else []
            group = []
            yield part
        else:
            group.append(part)
    yield from [seq(*group)] if group else []


def _by_one_thread(stmt: Stmt) -> For:
    return For(Var("t", i64), const(1), stmt, LoopKind.BOUND, THREAD_AXES[0])


def _touches_memory(stmt: Stmt) -> bool:
    return any(isinstance(node, (Store, IntrinsicCall, WarpCall)) for node in walk_statements(stmt))


def _values(stmt: Stmt) -> list[Expr]:
    """The expressions that a statement itself holds."""
    return [child for child in children(stmt) if isinstance(child, Expr)]


# -- one launch


def _launch(launch: For, host: _Host) -> Stmt:
    blocks, body = block_loops(launch)
    if any(isinstance(node, Barrier) for node in walk_statements(body)):
        if finished(launch) is None:
            raise ScheduleError(f"{host.name}: a barrier stands in a launch that is not in its finished form")
        return launch
    facts = host.facts
    for loop in blocks:
        facts = facts.with_range(loop.var, loop.extent)
    extents = thread_extents(body) or {THREAD_AXES[0]: 1}
    _check_warps(host.name, body, extents)
    axes = [axis for axis in reversed(THREAD_AXES) if axis in extents]
    threads = {axis: Var(f"t{axis[-1]}", i64) for axis in axes}
    for axis in axes:
        facts = facts.with_range(threads[axis], const(extents[axis]))
    replica = _Replica(host.name, {axis: (threads[axis], extents[axis]) for axis in axes}, facts)
    done = _own_parts(replica, replica.statement(body, _Active()), facts, host.report)
    for node in walk_statements(done):
        if isinstance(node, Alloc) and not all(isinstance(dim, Const) for dim in node.buffer.shape):
            raise ScheduleError(f"{host.name}: {node.buffer}, which each thread has, is of no constant size")
    for axis in reversed(axes):
        done = For(threads[axis], const(extents[axis]), done, LoopKind.BOUND, axis)
    for buffer in reversed(replica.shared):
        done = Alloc(buffer, done)
    if replica.shared and not blocks:  # what a block shares is allocated inside of a loop over blocks
        done = For(Var("bx", i64), const(1), done, LoopKind.BOUND, BLOCK_AXES[0])
    for loop in reversed(blocks):
        done = replace(loop, body=done)
    return done


def _check_warps(name: str, body: Stmt, extents: Mapping[str, int]) -> None:
    """Warps that do something together are those that the instruction means: all lanes are there, partners in one row of threads."""
    calls = [node.name for node in walk_statements(body) if isinstance(node, WarpCall)]
    along = extents.get(THREAD_AXES[0], 1)
    for call in calls:
        if not is_exchange(call) and along != (wanted := lanes_of(INTRINSICS[call])):
            what = f"a launch in which warps do something together has {wanted} threads along {THREAD_AXES[0]}"
            raise ScheduleError(f"{name}: {what}, for {call}")
    lanes = 2 * max(map(mask_of, filter(is_exchange, calls)), default=0)
    if lanes and not can_exchange(lanes, along, prod(extents.values())):
        raise ScheduleError(f"{name}: {lanes} lanes exchange elements in a launch of {along} threads along {THREAD_AXES[0]}")


def _own_parts(replica: _Replica, body: Stmt, facts: Facts, report: Buffer | None) -> Stmt:
    """What each thread runs, with barriers, inside of what is its own of the block's buffers."""
    counts = dict(replica.threads.values())
    private: list[Buffer] = []
    for buffer in replica.private:
        small, body = keep_apart(replica.name, body, buffer, counts, facts)
        private.append(small)
    own = frozenset((*private, *(node.buffer for node in walk_statements(body) if isinstance(node, Alloc))))
    changed = buffers_written(body)
    placer = BarrierPlacer(replica.name, Conflicts(counts, changed - own - {report}, changed), own)
    body = placer.place(body, facts)
    for buffer in reversed(private):
        body = Alloc(buffer, body)
    return body


@dataclass(frozen=True)
class _Active:
    """Which threads run a statement: `axes` are those of the thread loops around it, `guards` what must hold."""

    axes: tuple[str, ...] = ()
    guards: tuple[Expr, ...] = ()
    varying: frozenset[Var] = frozenset()

    def under(self, condition: Expr) -> _Active:
        return _Active(self.axes, (*self.guards, condition), self.varying)


@dataclass
class _Replica:
    """The body of a launch, for every thread to run. `threads`: the variable and the number of the threads of an axis; `shared` and
    `private` are the block's buffers, found on the way."""

    name: str
    threads: Mapping[str, tuple[Var, int]]
    facts: Facts
    shared: list[Buffer] = field(default_factory=list)
    private: list[Buffer] = field(default_factory=list)

    def statement(self, stmt: Stmt, active: _Active) -> Stmt:
        if isinstance(stmt, (CommitCopies, AwaitCopies)):
            if active.axes or active.guards:
                raise ScheduleError(f"{self.name}: groups of copies are counted where only some of the threads come by")
            return stmt
        if not has_launch(stmt) and not counts_copies(stmt):
            return self.region(stmt, active)
        match stmt:
            case Seq(stmts=stmts):
                return Seq(tuple(self.statement(part, active) for part in stmts))
            case For() if is_thread_loop(stmt):
                return self.thread_loop(stmt, active)
            case For(var=var, extent=extent, body=body, kind=kind):
                if kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
                    raise ScheduleError(f"{self.name}: loop {var.name} is {kind.name.lower()} around loops over threads")
                return replace(stmt, extent=self.readable(extent, active), body=self.statement(body, active))
            case If():
                return self.branch(stmt, active)
            case Let():
                return self.let(stmt, active)
            case While(condition=condition, body=body):
                if self.varies(self.readable(condition, active), active):
                    raise ScheduleError(f"{self.name}: a while loop around loops over threads depends on the thread: {condition}")
                return replace(stmt, body=self.statement(body, active))
            case Alloc():
                return self.alloc(stmt, active)
        raise AssertionError(f"{type(stmt).__name__} is not around threads")

    def region(self, stmt: Stmt, active: _Active) -> Stmt:
        """What has no thread loops inside: by the threads that are meant, of the axes without a loop by the first."""
        if isinstance(stmt, Seq) and not stmt.stmts:
            return stmt
        others = (equal(var, 0) for axis, (var, extent) in self.threads.items() if axis not in active.axes and extent > 1)
        guard = logical_and(*active.guards, *others)
        body = _with_own_buffers(stmt)
        return ThreadRegion(body if guard is TRUE else If(guard, body))

    def varies(self, expr: Expr, active: _Active) -> bool:
        return bool(variables(expr) & (active.varying | {var for var, _ in self.threads.values()}))

    def readable(self, expr: Expr, active: _Active) -> Expr:
        """An expression that all threads evaluate, also those that its guards keep away from it: these read nothing, it is 0.

        What is the same for all threads is read by one of them in any case if the guards only count threads.
        """
        guards = active.guards if self.varies(expr, active) else [guard for guard in active.guards if not self.counts(guard)]
        return select(logical_and(*guards), expr, const(0, expr.dtype)) if guards and reads_memory(expr) else expr

    def counts(self, guard: Expr) -> bool:
        """Whether a guard holds for the first thread, as a loop over threads is never empty."""
        return isinstance(guard, Lt) and isinstance(guard.rhs, Const) and any(guard.lhs is var for var, _ in self.threads.values())

    def thread_loop(self, loop: For, active: _Active) -> Stmt:
        var, count = self.threads[loop.thread]
        inside = _Active((*active.axes, loop.thread), active.guards, active.varying)
        assert isinstance(loop.extent, Const), "thread loops are of constant extents"
        if loop.extent.value < count:
            inside = inside.under(var < loop.extent)
        return self.statement(substitute(loop.body, {loop.var: const(0) if count == 1 else var}), inside)

    def branch(self, stmt: If, active: _Active) -> Stmt:
        """A condition that is the same for all threads stays; any other goes to the parts inside, as these may have to wait."""
        condition = stmt.condition
        if not self.varies(self.readable(condition, active), active):
            otherwise = None if stmt.else_body is None else self.statement(stmt.else_body, active)
            return replace(stmt, then_body=self.statement(stmt.then_body, active), else_body=otherwise)
        if buffers_read(condition) & buffers_written(stmt):
            flag = Var("holds", bool_)
            named = replace(stmt, condition=flag)
            return self.let(Let(flag, condition, named), active)
        parts = [self.statement(stmt.then_body, active.under(condition))]
        if stmt.else_body is not None:
            parts.append(self.statement(stmt.else_body, active.under(logical_not(condition))))
        return seq(*parts)

    def let(self, stmt: Let, active: _Active) -> Stmt:
        """A let around threads: read only by those that may."""
        value, varying = self.readable(stmt.value, active), active.varying
        if self.varies(value, active):
            varying = varying | {stmt.var}
        return replace(stmt, value=value, body=self.statement(stmt.body, _Active(active.axes, active.guards, varying)))

    def alloc(self, stmt: Alloc, active: _Active) -> Stmt:
        """A buffer of the block; of a part of its threads, one for each of the others."""
        prefix = [self.threads[axis] for axis in active.axes]
        old = stmt.buffer
        scope = "local" if old.scope in PRIVATE else "shared"
        shape = (*(const(extent) for _, extent in prefix), *(self.constant(old, dim) for dim in old.shape))
        buffer = replace(old, shape=shape, scope=scope, strides=None)
        (self.private if scope == "local" else self.shared).append(buffer)
        return self.statement(_moved(stmt.body, old, buffer, tuple(var for var, _ in prefix)), active)

    def constant(self, buffer: Buffer, dim: Expr) -> Expr:
        """What a dim is at most."""
        last = bounds(simplify(dim, self.facts), self.facts).hi
        if last is None:
            raise ScheduleError(f"{self.name}: {buffer} is allocated in a launch, but {dim} has no constant bound")
        return const(last)


def _moved(body: Stmt, old: Buffer, new: Buffer, prefix: tuple[Var, ...]) -> Stmt:
    def rewrite(node: Node) -> Node | None:
        if isinstance(node, (Load, Store, CopyBox)) and node.buffer is old:
            return replace(node, buffer=new, indices=(*prefix, *node.indices))
        return None

    return transform(body, rewrite, lambda node: old in binders(node))


def _with_own_buffers(stmt: Stmt) -> Stmt:
    """A part without thread loops: what it allocates is the thread's own."""
    buffers = [node.buffer for node in walk_statements(stmt) if isinstance(node, Alloc)]
    others = [buffer for buffer in buffers if buffer.scope in ("global", "shared", "register")]
    return substitute(stmt, {buffer: replace(buffer, scope="local") for buffer in others})
