"""Launches: outermost nests of bound loops, carried out as blocks of threads. Whether they are well formed, and their parts.

`For` and `Alloc` say what bound loops and allocations in a launch mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tc.ir.expr import Buffer, Const
from tc.ir.loop import Alloc, For, LoopKind, Stmt, inner_statements
from tc.ir.node import cached_on_node, children
from tc.ir.uses import reads_memory, variables

BLOCK_AXES = tuple(f"block.{axis}" for axis in "xyz")
THREAD_AXES = tuple(f"thread.{axis}" for axis in "xyz")
AXES = (*BLOCK_AXES, *THREAD_AXES)

MAX_BLOCK_THREADS = 1024
"""Threads of a block at most, on any device."""


def is_block_loop(stmt: object) -> bool:
    """Whether its iterations are thread blocks."""
    return isinstance(stmt, For) and stmt.thread in BLOCK_AXES


def is_thread_loop(stmt: object) -> bool:
    """Whether its iterations are threads of a block."""
    return isinstance(stmt, For) and stmt.thread in THREAD_AXES


@cached_on_node
def has_launch(stmt: Stmt) -> bool:
    """Whether a loop at or below a statement is bound."""
    is_bound = isinstance(stmt, For) and stmt.kind is LoopKind.BOUND
    return is_bound or any(map(has_launch, inner_statements(stmt)))


def launches_in(stmt: Stmt) -> Iterator[For]:
    """The outermost bound loops, in program order."""
    if isinstance(stmt, For) and stmt.kind is LoopKind.BOUND:
        yield stmt
    elif has_launch(stmt):
        for child in inner_statements(stmt):
            yield from launches_in(child)


def block_loops(launch: For) -> tuple[tuple[For, ...], Stmt]:
    """The loops over the thread blocks of a launch, outermost first, and what each block does."""
    found: list[For] = []
    stmt: Stmt = launch
    while isinstance(stmt, For) and is_block_loop(stmt):
        found.append(stmt)
        stmt = stmt.body
    return tuple(found), stmt


@cached_on_node
def thread_extents(stmt: Stmt) -> dict[str, int]:
    """How many threads a statement needs along each axis that it has thread loops of: the most that one of them has."""
    found: dict[str, int] = {}
    if isinstance(stmt, For) and is_thread_loop(stmt) and isinstance(stmt.extent, Const):
        found[stmt.thread] = int(stmt.extent.value)
    for child in children(stmt):
        for axis, extent in thread_extents(child).items() if isinstance(child, Stmt) and has_launch(child) else ():
            found[axis] = max(found.get(axis, 0), extent)
    return found


@dataclass(frozen=True)
class FinishedLaunch:
    """A launch in its finished form: its loops over blocks and threads, outermost first, the blocks' buffers, what a thread runs."""

    blocks: tuple[For, ...]
    shared: tuple[Buffer, ...]
    threads: tuple[For, ...]
    body: Stmt


def finished(launch: For) -> FinishedLaunch | None:
    """The parts of a launch; None when it is not in the finished form."""
    blocks, stmt = block_loops(launch)
    shared: list[Buffer] = []
    while isinstance(stmt, Alloc):
        shared.append(stmt.buffer)
        stmt = stmt.body
    threads: list[For] = []
    while isinstance(stmt, For) and is_thread_loop(stmt):
        threads.append(stmt)
        stmt = stmt.body
    return FinishedLaunch(blocks, tuple(shared), tuple(threads), stmt) if threads and not has_launch(stmt) else None


Complaint = tuple[For, str]
"""A loop, and what is wrong with it."""


def first_complaint(stmt: Stmt) -> Complaint | None:
    """What is wrong with a bound loop of a program; None when all of them make launches.

    No two loops of one axis are nested. The block loops are each other's whole body, at the outside, and as long as can be told before the
    launch. Thread loops are of constant extents, whose product over the axes is at most `MAX_BLOCK_THREADS`. No loop around a bound one is
    vectorized, and none in or around a launch is parallel.
    """
    return next(_complaints(stmt, ()), None) if has_launch(stmt) else None


def _complaints(stmt: Stmt, path: tuple[Stmt, ...]) -> Iterator[Complaint]:
    """`path`: the statements around, outermost first."""
    if isinstance(stmt, For):
        loops = tuple(outer for outer in path if isinstance(outer, For))
        message = _complaint(stmt, path, loops)
        if message is not None:
            yield stmt, message
    inner = (*path, stmt)
    for child in inner_statements(stmt):
        yield from _complaints(child, inner)


def _complaint(loop: For, path: tuple[Stmt, ...], loops: tuple[For, ...]) -> str | None:
    name = loop.var.name
    bound = next((outer for outer in loops if outer.kind is LoopKind.BOUND), None)
    if loop.kind is LoopKind.PARALLEL and (bound is not None or has_launch(loop.body)):
        other = bound or next(launches_in(loop.body))
        return f"loop {name} is parallel and nested with loop {other.var.name}, which is bound to {other.thread}"
    if loop.kind is LoopKind.VECTORIZED and has_launch(loop.body):
        return f"loop {name} is vectorized around loop {next(launches_in(loop.body)).var.name}, which is bound"
    if loop.kind is not LoopKind.BOUND:
        return None
    if not loop.thread:
        return f"loop {name} is bound to no GPU axis"
    if loop.thread not in AXES:
        return f"loop {name} is bound to {loop.thread!r}; there are: {', '.join(AXES)}"
    for outer in loops:
        if outer.thread == loop.thread:
            return f"loop {outer.var.name} around loop {name} has {loop.thread} already"
    if loop.thread in BLOCK_AXES:
        return _complaint_of_blocks(loop, path, loops)
    if not isinstance(loop.extent, Const):
        return f"the extent of loop {name} is {loop.extent}; that of {loop.thread} is constant: split the loop by a number of threads first"
    extents = thread_extents(bound or loop)
    if prod(extents.values()) > MAX_BLOCK_THREADS:
        sizes = " x ".join(f"{extent} of {axis}" for axis, extent in extents.items())
        return f"loop {name} is of a launch of {sizes} threads, more than {MAX_BLOCK_THREADS}"
    return None


def _complaint_of_blocks(loop: For, path: tuple[Stmt, ...], loops: tuple[For, ...]) -> str | None:
    name = loop.var.name
    around = [outer for outer in loops if outer.kind is LoopKind.BOUND]
    for outer in around:
        if outer.thread in THREAD_AXES:
            return f"loop {name} has {loop.thread} inside of loop {outer.var.name}, which has {outer.thread}: a block has threads"
    if around and path[-1] is not around[-1]:
        return f"loop {name} has {loop.thread} inside of a launch, but is not all of what loop {around[-1].var.name} does"
    if variables(loop.extent) & {outer.var for outer in around}:
        return f"the extent of loop {name} is {loop.extent}, which depends on the block: {loop.thread} is as long for all of them"
    if reads_memory(loop.extent):
        return f"the extent of loop {name} is {loop.extent}, which is read from memory: it must be known before the launch"
    return None
