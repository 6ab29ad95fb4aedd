"""Whether each asynchronous copy of a launch has been waited for, and has met a barrier, before anything touches what it stores.

All threads of a block commit and await alike, so the groups of one thread are counted along the program: which of them are on their way,
and where they store. A loop is counted until its groups are those of the iteration before, one older; the iterations up to there
are looked at one by one, and all later ones at once. Of an element its *stage* is looked at, the indices that are the same for all threads:
`S[k % 3, t]` and `S[(k + 2) % 3, t]` never meet. What is not seen to be right is a complaint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, replace

from tc.ir.arith import Facts, simplify
from tc.ir.dtype import i64
from tc.ir.expr import TRUE, Buffer, Const, Expr, FloorMod, Load, Select, Var, const, logical_and
from tc.ir.launch import FinishedLaunch
from tc.ir.loop import (
    AsyncStore,
    AwaitCopies,
    Barrier,
    CommitCopies,
    For,
    If,
    IntrinsicCall,
    Let,
    Seq,
    Stmt,
    Store,
    WarpCall,
    While,
    inner_statements,
    walk_statements,
)
from tc.ir.node import Node, cached_on_node, children, substitute
from tc.ir.polynomial import polynomial
from tc.ir.uses import variables

MOST_ITERATIONS = 16
"""Iterations after which the groups of a loop must be those of the one before."""

_NO_FACTS = Facts()


# -- stages


def stages_apart(first: tuple[Expr, ...], second: tuple[Expr, ...], own: Set[Var]) -> bool:
    """Whether two accesses are of different stages of a buffer. `own`: variables that may have other values in the other access."""
    return any(_are_different(a, b) for a, b in zip(first, second, strict=True) if not (variables(a) | variables(b)) & own)


def _are_different(a: Expr, b: Expr) -> bool:
    """Whether two numbers, of the same variables, never are one."""
    match a, b:
        case FloorMod(lhs=x, rhs=Const(value=count)), FloorMod(lhs=y, rhs=Const(value=other)) if count == other:
            apart = _difference(x, y)
            return apart is not None and apart % int(count) != 0
    apart = _difference(a, b)
    return apart is not None and apart != 0


def _difference(a: Expr, b: Expr) -> int | None:
    poly = polynomial(a).minus(polynomial(b))
    return None if any(poly.terms.values()) else poly.constant


# -- what a program does


def copied(value: Expr) -> tuple[Expr, Load] | None:
    """A value as an element of global memory, and the condition under which it is that, and else zero; None for what is computed."""
    match value:
        case Load(buffer=buffer) if buffer.scope == "global":
            return TRUE, value
        case Select(condition=condition, true_value=inner, false_value=Const() as other) if other == const(0, other.dtype):
            found = copied(inner)
            return None if found is None else (logical_and(condition, found[0]), found[1])
    return None


@cached_on_node
def counts_copies(stmt: Stmt) -> bool:
    """Whether a group of copies is closed or awaited at or below a statement."""
    return isinstance(stmt, (CommitCopies, AwaitCopies)) or any(map(counts_copies, inner_statements(stmt)))


@cached_on_node
def _waits(stmt: Stmt) -> bool:
    return isinstance(stmt, Barrier) or counts_copies(stmt) or any(map(_waits, inner_statements(stmt)))


def copied_buffers(stmt: Stmt) -> frozenset[Buffer]:
    """What is copied to asynchronously."""
    return frozenset(node.buffer for node in walk_statements(stmt) if isinstance(node, AsyncStore))


@dataclass(frozen=True)
class _Touched:
    """A part of a buffer, and the statement that touches it. `own`: variables of which other values may be meant."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    stmt: Stmt
    own: frozenset[Var]

    def meets(self, other: _Touched) -> bool:
        return self.buffer is other.buffer and not stages_apart(self.indices, other.indices, self.own | other.own)

    def having(self, values: dict[Node, Node]) -> _Touched:
        return replace(self, indices=tuple(simplify(substitute(index, values), _NO_FACTS) for index in self.indices))

    def __str__(self) -> str:
        stage = next((str(index) for index in self.indices if not variables(index) & self.own), None)
        return f"stage {stage} of {self.buffer.name}" if stage is not None else self.buffer.name


Group = frozenset[_Touched]


@dataclass(frozen=True)
class _Copies:
    """What is on its way: groups, oldest first, and what is in none yet. `arrived`: awaited, but no barrier has been since; `read`: since
    the last barrier."""

    groups: tuple[Group, ...] = ()
    begun: Group = frozenset()
    arrived: Group = frozenset()
    read: Group = frozenset()

    def committed(self) -> _Copies:
        return replace(self, groups=(*self.groups, self.begun), begun=frozenset())

    def awaited(self, pending: int) -> _Copies:
        done = max(len(self.groups) - pending, 0)
        return replace(self, groups=self.groups[done:], arrived=self.arrived.union(*self.groups[:done]))

    def behind_barrier(self) -> _Copies:
        return replace(self, arrived=frozenset(), read=frozenset())

    def having(self, values: dict[Node, Node]) -> _Copies:
        return self.each(lambda touched: touched.having(values))

    def each(self, change: Callable[[_Touched], _Touched]) -> _Copies:
        def of(group: Group) -> Group:
            return frozenset(map(change, group))

        return _Copies(tuple(map(of, self.groups)), of(self.begun), of(self.arrived), of(self.read))

    def joined(self, other: _Copies) -> _Copies:
        """What may be where two ways meet: the last groups are the last ones of both."""
        longer, shorter = (self, other) if len(self.groups) >= len(other.groups) else (other, self)
        lead = len(longer.groups) - len(shorter.groups)
        groups = (*longer.groups[:lead], *(a | b for a, b in zip(longer.groups[lead:], shorter.groups, strict=True)))
        return _Copies(groups, self.begun | other.begun, self.arrived | other.arrived, self.read | other.read)


# -- counting


CopyComplaint = tuple[Node, str]


def first_copy_complaint(launch: FinishedLaunch) -> CopyComplaint | None:
    """What is wrong with the asynchronous copies of a launch in its finished form; None when each is proven to be awaited in time."""
    buffers = copied_buffers(launch.body)
    if not buffers:
        return None
    counter = _Counter(buffers)
    counter.run(launch.body, _Copies(), {})
    return counter.complaints[0] if counter.complaints else None


@dataclass
class _Counter:
    """Runs a program on what is on its way. `buffers`: those that are copied to; `quiet`: nothing is complained about."""

    buffers: frozenset[Buffer]
    complaints: list[CopyComplaint] = field(default_factory=list)
    quiet: int = 0

    def run(self, stmt: Stmt, state: _Copies, values: dict[Node, Node]) -> _Copies:
        """What is on its way behind a statement, given what is before. `values`: of variables around it."""
        if self.complaints:
            return state
        match stmt:
            case Barrier():
                return state.behind_barrier()
            case CommitCopies():
                return state.committed()
            case AwaitCopies(pending=pending):
                return state.awaited(pending)
            case Seq(stmts=stmts):
                for part in stmts:
                    state = self.run(part, state, values)
                return state
            case _ if not _waits(stmt):
                return self.region(stmt, state, values)
            case For():
                return self.loop(self.reading(stmt.extent, stmt, state, values), stmt, values)
            case If(condition=condition, then_body=then_body, else_body=else_body):
                state = self.reading(condition, stmt, state, values)
                otherwise = state if else_body is None else self.run(else_body, state, values)
                return self.run(then_body, state, values).joined(otherwise)
            case Let(var=var, value=value, body=body):
                state = self.reading(value, stmt, state, values)
                return self.run(body, state, {**values, var: substitute(value, values)})
            case While():
                self.complain(stmt, "copies are awaited in a while loop, in which their groups cannot be counted")
                return state
        for child in inner_statements(stmt):
            state = self.run(child, state, values)
        return state

    def complain(self, stmt: Node, message: str) -> None:
        if not self.quiet:
            self.complaints.append((stmt, message))

    # -- loops

    def loop(self, before: _Copies, loop: For, values: dict[Node, Node]) -> _Copies:
        """The first iterations by their numbers; then one that stands for all others, behind one that left the same."""
        count = int(loop.extent.value) if isinstance(loop.extent, Const) else None
        is_short = count is not None and count <= MOST_ITERATIONS
        settled = None if is_short else self.settled(before, loop, values)
        if settled is None and not is_short:
            self.complain(loop, f"the groups of copies that loop {loop.var.name} begins and awaits never are those of the iteration before")
            return before
        steady, first = (before, count or 0) if settled is None else settled
        state = left = before
        for number in range(first):
            state = self.run(loop.body, state, {**values, loop.var: const(number)})
            left = state if count is not None else left.joined(state)
        if is_short:
            return left
        last = self.run(loop.body, steady, {**values, loop.var: loop.var})
        other = Var(loop.var.name, loop.var.dtype)
        last = last.each(lambda touched: replace(touched.having({loop.var: other}), own=touched.own | {other}))
        return last if count is not None else left.joined(last)

    def settled(self, before: _Copies, loop: For, values: dict[Node, Node]) -> tuple[_Copies, int] | None:
        """What is on its way at the start of an iteration and of all later ones, in terms of its number; and the first of these."""
        self.quiet += 1
        state, found = before, None
        for number in range(MOST_ITERATIONS):
            after = self.run(loop.body, state, {**values, loop.var: loop.var}).having({loop.var: loop.var - 1})
            if after == state:
                found = state, number
                break
            state = after
        self.quiet -= 1
        return found

    # -- accesses

    def reading(self, expr: Expr, stmt: Stmt, state: _Copies, values: dict[Node, Node]) -> _Copies:
        for load in _loads(expr):
            if load.buffer in self.buffers:
                state = self.read(_touched(load, stmt, values, frozenset()), state)
        return state

    def region(self, stmt: Stmt, state: _Copies, values: dict[Node, Node]) -> _Copies:
        """What threads do by themselves, twice: one may be behind another one."""
        found = [(node, at, own) for node, at, own in _accesses(stmt) if node.buffer in self.buffers]
        for node, at, own in (*found, *found):
            touched = _touched(node, at, values, own)
            state = self.read(touched, state) if isinstance(node, Load) else self.written(touched, state)
        return state

    def read(self, touched: _Touched, state: _Copies) -> _Copies:
        for late, what in (
            (frozenset[_Touched]().union(state.begun, *state.groups), "may still be on its way: its group of copies has not been awaited"),
            (state.arrived, "may not be there for all threads: no barrier is behind the wait for it"),
        ):
            if any(touched.meets(copy) for copy in late):
                self.complain(touched.stmt, f"{touched} is read, but {what}")
        return replace(state, read=state.read | {touched})

    def written(self, touched: _Touched, state: _Copies) -> _Copies:
        if any(touched.meets(copy) for group in state.groups for copy in group):
            self.complain(touched.stmt, f"{touched} is written, but may still be on its way: its group of copies has not been awaited")
        if not isinstance(touched.stmt, AsyncStore):
            return state
        if any(touched.meets(read) for read in state.read):
            self.complain(touched.stmt, f"{touched} is copied to, but other threads may still read it: no barrier is behind that")
        return replace(state, begun=state.begun | {touched})


def _touched(node: Load | Store, stmt: Stmt, values: dict[Node, Node], own: frozenset[Var]) -> _Touched:
    """`own`: the variables of the region's loops; the threads' are no part of the values either."""
    indices = tuple(simplify(substitute(index, values), _NO_FACTS) for index in node.indices)
    known = frozenset[Var]().union(*(variables(value) for value in values.values()))
    free = frozenset[Var]().union(*(variables(index) for index in indices))
    return _Touched(node.buffer, indices, stmt, own | (free - known))


Accesses = tuple[tuple[Load | Store, Stmt, frozenset[Var]], ...]


@cached_on_node
def _accesses(stmt: Stmt) -> Accesses:
    """Loads and stores at or below a statement, in order, each with its statement and the variables bound in between."""
    found: list[tuple[Load | Store, Stmt, frozenset[Var]]] = []
    own = frozenset((stmt.var,)) if isinstance(stmt, (For, Let)) else frozenset[Var]()
    if isinstance(stmt, (IntrinsicCall, WarpCall)):
        dims = 1 if isinstance(stmt, WarpCall) else 2
        return tuple((_tile(operand, dims), stmt, variables(_ANY)) for operand in stmt.operands if isinstance(operand, Load))
    for child in children(stmt):
        if isinstance(child, Expr):
            found += [(load, stmt, frozenset()) for load in _loads(child)]
        elif isinstance(child, Stmt):
            found += [(node, at, names | own) for node, at, names in _accesses(child)]
    return (*found, (stmt, stmt, frozenset())) if isinstance(stmt, Store) else tuple(found)


_ANY = Var("any", i64)


def _tile(first: Load, dims: int) -> Load:
    """What a call touches from an element on: rows and columns of one stage, or, of a lane, part of a row."""
    return Load(first.buffer, (*first.indices[:-dims], *[_ANY] * len(first.indices[-dims:])))


def _loads(expr: Expr) -> Iterator[Load]:
    if isinstance(expr, Load):
        yield expr
    for child in children(expr):
        if isinstance(child, Expr):
            yield from _loads(child)
