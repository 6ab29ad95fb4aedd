"""What rules for devices share: the nests of a program that become launches, and loops bound to blocks and threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tc.errors import ScheduleError
from tc.ir.loop import Alloc, Block, For, If, Let, LoopKind, PrimFunc, Seq, Stmt
from tc.ir.uses import own_reads, reads_memory, variables
from tc.schedule.loops import set_kind
from tc.schedule.rules.common import extent_value
from tc.schedule.step import Schedule
from tc.schedule.tree import Place, find_loop

THREADS = 256
"""Threads of a block, where nothing asks for another number: several warps for each scheduler, and room for a few blocks at once."""

THREAD_COUNTS = (32, 64, 128, 256, 512, 1024)


# -- nests


def host_statements(func: PrimFunc) -> Iterator[Place]:
    """The statements that the host would run: outermost first, none below another; what the host can decide by dims it descends into."""
    stack = [Place(func.body, ())]
    while stack:
        place = stack.pop()
        inside = _decided_by_host(place.stmt)
        if inside is None:
            yield place
        else:
            stack += [Place(child, (*place.path, place.stmt)) for child in reversed(inside)]


def _decided_by_host(stmt: Stmt) -> tuple[Stmt, ...] | None:
    """The statements below one that the host can run by itself; None for one that belongs to a device."""
    match stmt:
        case Seq(stmts=stmts):
            return stmts
        case Alloc(body=body):
            return (body,)
        case Let(value=value, body=body) if not reads_memory(value):
            return (body,)
        case If(then_body=first, else_body=second) if not own_reads(stmt):
            return (first,) if second is None else (first, second)
    return None


def name_of(place: Place) -> str | None:
    """What steps call the statement at a place; None for one that they cannot name."""
    match place.stmt:
        case For(var=var):
            return var.name
        case Block(name=name):
            return name
    return None


def perfect_loops(schedule: Schedule, loop: str) -> list[str]:
    """The loops nested directly in each other from one on, outermost first."""
    stmt: Stmt = find_loop(schedule.func, loop).loop
    names = []
    while isinstance(stmt, For):
        names.append(stmt.var.name)
        stmt = stmt.body
    return names


def can_run_at_once(schedule: Schedule, loop: str) -> bool:
    """Whether a loop may be bound, and its extent is known before the nest runs."""
    try:
        set_kind(schedule.func, loop, LoopKind.BOUND, "block.x")
    except ScheduleError:
        return False
    return _is_known_to_host(schedule, loop)


def _is_known_to_host(schedule: Schedule, loop: str) -> bool:
    place = find_loop(schedule.func, loop)
    known = {*schedule.func.dims, *(stmt.var for stmt in place.path if isinstance(stmt, Let))}
    return not reads_memory(place.loop.extent) and variables(place.loop.extent) <= known


# -- loops on the axes of a launch


def bind_all(schedule: Schedule, loops: Sequence[str], threads: int) -> str:
    """Run neighbouring loops, outermost first, as one: cut in blocks of so many threads. The loop over threads.

    ScheduleError where they are not independent, or only data or other loops say how many iterations there are.
    """
    fused = schedule.fuse(*loops)
    if not _is_known_to_host(schedule, fused):
        raise ScheduleError(f"the host does not know the extent of loop {fused}")
    extent = extent_value(schedule, fused)
    if extent is not None and 0 < extent <= threads:
        schedule.bind(fused, "thread.x")
        return fused
    block, thread = schedule.split(fused, threads)
    schedule.bind(block, "block.x")
    schedule.bind(thread, "thread.x")
    return thread


def bind_one_thread(schedule: Schedule, name: str) -> None:
    """Let one thread run a loop, a block, or, by its name, the whole function."""
    schedule.bind(schedule.add_unit_loop(name), "thread.x")
