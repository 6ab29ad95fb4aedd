"""What can be seen to be wrong with a launch in its finished form: barriers that not all threads reach, instructions of warps that not all
lanes reach, and memory of no known size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from tc.ir.arith import Facts, evaluate, simplify
from tc.ir.box_copies import CopyBox
from tc.ir.copies import first_copy_complaint
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Const, Expr, Var, const
from tc.ir.intrinsic import is_of_group
from tc.ir.launch import Complaint, FinishedLaunch, finished, launches_in
from tc.ir.loop import (
    Alloc,
    AwaitCopies,
    Barrier,
    CommitCopies,
    For,
    If,
    Let,
    Stmt,
    WarpCall,
    While,
    inner_statements,
    walk_statements,
)
from tc.ir.node import Node, substitute
from tc.ir.uses import buffers_read, variables
from tc.ir.verify_phases import first_phase_complaint

MOST_SHARED_BYTES = 232448
"""Bytes of shared memory that a block has on any device: those of an NVIDIA H100."""

WARP_LANES, GROUP_LANES = 32, 128
"""Threads of a warp, and of the four that carry out an instruction of a group."""

THREAD_SCOPES = ("local", "register", "fragment")
"""Scopes of what each thread holds by itself."""


def first_launch_complaint(stmt: Stmt) -> tuple[Node, str] | None:
    """What is wrong with a launch that has barriers, or is in the finished form otherwise; None when nothing is seen."""
    for launch in launches_in(stmt):
        found = finished(launch)
        if found is None:
            barrier = next((node for node in walk_statements(launch) if isinstance(node, Barrier)), None)
            if barrier is not None:
                return barrier, "a barrier stands in a launch that is not in its finished form: one nest of thread loops around it"
            continue
        complaint = next(_complaints(launch, found), None) or first_copy_complaint(found) or first_phase_complaint(found)
        if complaint is not None:
            return complaint
    return None


def _complaints(launch: For, parts: FinishedLaunch) -> Iterator[Complaint | tuple[Node, str]]:
    yield from _lanes_that_stay_away(parts)
    if not any(isinstance(node, (Barrier, CommitCopies, AwaitCopies, CopyBox)) for node in walk_statements(parts.body)):
        return
    total = 0
    for buffer in parts.shared:
        if buffer.scope != "shared":
            yield launch, f"{buffer} is allocated for the whole block, but its scope is {buffer.scope!r}"
        if not _is_constant(buffer):
            yield launch, f"{buffer} has no constant size, which memory of a block must have"
        total += buffer.dtype.bytes_of(prod(int(dim.value) for dim in buffer.shape if isinstance(dim, Const)))
    if total > MOST_SHARED_BYTES:
        yield launch, f"the shared buffers of the launch have {total} bytes; no device has more than {MOST_SHARED_BYTES} for a block"
    for node in walk_statements(parts.body):
        if isinstance(node, Alloc) and (node.buffer.scope not in THREAD_SCOPES or not _is_constant(node.buffer)):
            yield launch, f"{node.buffer} is a thread's own, but is of scope {node.buffer.scope!r} or has no constant size"
    yield from _uneven_barriers(parts.body, frozenset(loop.var for loop in parts.threads), None)


def _is_constant(buffer: Buffer) -> bool:
    return all(isinstance(dim, Const) for dim in buffer.shape)


def _uneven_barriers(stmt: Node, varying: frozenset[Var], under: str | None) -> Iterator[tuple[Node, str]]:
    """Barriers under what may differ from thread to thread. `varying`: variables that do."""
    match stmt:
        case Barrier():
            if under is not None:
                yield stmt, f"a barrier stands {under}, which need not be the same for all threads"
            return
        case CommitCopies() | AwaitCopies():
            if under is not None:
                yield stmt, f"groups of copies are counted {under}, which need not be the same for all threads"
            return
        case For(var=var, extent=extent) if _varies(extent, varying):
            varying, under = varying | {var}, f"in loop {var.name} of {extent} iterations"
        case If(condition=condition) | While(condition=condition) if _varies(condition, varying):
            under = f"under the condition {condition}"
        case Let(var=var, value=value) if _varies(value, varying):
            varying = varying | {var}
    for child in inner_statements(stmt):
        yield from _uneven_barriers(child, varying, under)


def _lanes_that_stay_away(parts: FinishedLaunch) -> Iterator[tuple[Node, str]]:
    """Instructions of warps, or of groups of four, under what may differ from lane to lane of one."""
    calls = [node for node in walk_statements(parts.body) if isinstance(node, WarpCall)]
    for lanes, kind in ((WARP_LANES, False), (GROUP_LANES, True)):
        if any(is_of_group(call.name) is kind for call in calls):
            among = _Lanes(parts.threads, lanes)
            yield from _divided_calls(parts.body, among, frozenset(), None, kind)


def _divided_calls(stmt: Node, lanes: _Lanes, own: frozenset[Var], under: str | None, kind: bool) -> Iterator[tuple[Node, str]]:
    """`own`: variables that differ from lane to lane."""
    match stmt:
        case WarpCall(name=name) if under is not None and is_of_group(name) is kind:
            yield stmt, f"{name} is of all {lanes.count} lanes, but stands {under}, which need not be the same for them"
            return
        case For(var=var, extent=extent) if lanes.differ(extent, own):
            own, under = own | {var}, f"in loop {var.name} of {extent} iterations"
        case If(condition=condition) | While(condition=condition) if lanes.differ(condition, own):
            under = f"under the condition {condition}"
        case Let(var=var, value=value) if lanes.differ(value, own):
            own = own | {var}
    for child in inner_statements(stmt):
        yield from _divided_calls(child, lanes, own, under, kind)


class _Lanes:
    """Threads that follow each other, `count` of them, along x, then along y, then along z: what differs among them.

    `values` gives threads' numbers by those of warps and lanes; `differing` are variables that differ, `ranges` how many values each has.
    """

    def __init__(self, threads: tuple[For, ...], count: int) -> None:
        self.count = count
        self.values: dict[Node, Node] = {}
        self.differing: set[Var] = set()
        self.ranges: dict[Var, int] = {}
        left = count
        for loop in sorted(threads, key=lambda loop: loop.thread):
            size = int(loop.extent.value) if isinstance(loop.extent, Const) else 0
            if left > 1 and size and size % left == 0:
                lane, warp = Var("lane", i64), Var("warp", i64)
                self.values[loop.var] = warp * left + lane
                self.ranges |= {lane: left, warp: size // left}
                self.differing.add(lane)
                left = 1
            else:
                self.ranges[loop.var] = size
                if left > 1:
                    self.differing.add(loop.var)
                    left = left // size if size and left % size == 0 else left
        self.facts = Facts.of(())
        for var, size in self.ranges.items():
            self.facts = self.facts.with_range(var, const(size))

    def differ(self, expr: Expr, own: frozenset[Var]) -> bool:
        """Whether a value may differ among them. `own`: variables that do."""
        if any(buffer.scope in THREAD_SCOPES for buffer in buffers_read(expr)) or variables(expr) & own:
            return True
        plain = simplify(substitute(expr, self.values), self.facts)
        if not variables(plain) & self.differing:
            return False
        return not (variables(plain) <= self.ranges.keys() and not buffers_read(plain) and self.is_seen_to_be_alike(plain))

    def is_seen_to_be_alike(self, expr: Expr) -> bool:
        """Whether a value of the threads' numbers alone is the same for all of each warp, tried for each thread."""
        among = [var for var in variables(expr) if var in self.differing]
        others = [var for var in variables(expr) if var not in self.differing]
        return all(
            len({evaluate(expr, dict(zip(others + among, (*fixed, *point), strict=True))) for point in self.points(among)}) == 1
            for fixed in self.points(others)
        )

    def points(self, variables_: list[Var]) -> Iterator[tuple[int, ...]]:
        return product(*(range(self.ranges[var]) for var in variables_))


def _varies(expr: Expr, varying: frozenset[Var]) -> bool:
    return bool(variables(expr) & varying) or any(buffer.scope in THREAD_SCOPES for buffer in buffers_read(expr))
