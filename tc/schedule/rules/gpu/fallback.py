"""What no other rule for devices fits: each nest is a launch over what is independent of it, the rest in order in each thread."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tc.ir.loop import AxisKind, For
from tc.schedule.analysis import block_infos
from tc.schedule.rules.gpu.launch import (
    THREAD_COUNTS,
    THREADS,
    bind_all,
    bind_one_thread,
    can_run_at_once,
    host_statements,
    name_of,
    perfect_loops,
)
from tc.schedule.step import Schedule
from tc.target import Target


def schedule_launches(schedule: Schedule, target: Target) -> str:
    """Every nest as a launch; takes any program.

        for i: for k: C[i] += A[i, k]      =>      for b in block.x: for t in thread.x(256): for k: C[b * 256 + t] += A[b * 256 + t, k]
    """
    names = [name_of(place) for place in host_statements(schedule.func)]
    if None in names:  # a statement that no step can name: all of them run in one thread
        bind_one_thread(schedule, schedule.func.name)
        return "one thread"
    for name in names:
        assert name is not None
        schedule_nest(schedule, name)
    return "launches"


def schedule_nest(schedule: Schedule, name: str) -> None:
    """Make one nest, by its outermost loop or its block, a launch of whatever of its loops can run at once."""
    orders = list(_orders(schedule, name))
    threads = schedule.choose(name, "threads", THREAD_COUNTS, THREADS) if orders else 1
    folds = _folding_block(schedule, name)
    if folds is not None and schedule.attempt(partial(_in_registers, schedule, folds, threads)) is not None:
        return
    for loops, order in orders:
        if schedule.attempt(partial(_bound, schedule, name, loops, order, threads)) is not None:
            return
    bind_one_thread(schedule, name)


def _folding_block(schedule: Schedule, name: str) -> str | None:
    """The block of a nest that goes through something in order, each of its results by itself."""
    inside = [info for info in block_infos(schedule.func) if info.loops and info.loops[0].var.name == name]
    if len(inside) != 1 or not any(axis.kind is AxisKind.ORDERED for axis in inside[0].block.axes):
        return None
    return inside[0].name


def _in_registers(schedule: Schedule, block: str, threads: int) -> str:
    """A thread for each result, which stores it when it is complete.

        for i: for k: y[i] = f(y[i], k)      =>      for b in block.x: for t in thread.x(256): { for k: T = f(T, k); y[b * 256 + t] = T }
    """
    schedule.cache_write(block, "local")
    thread = bind_all(schedule, schedule.loops_of(f"{block}_copy"), threads)
    schedule.compute_at(block, thread)
    return block


def _orders(schedule: Schedule, name: str) -> Iterator[tuple[list[str], list[str]]]:
    """Loops to run at once, and the nest with these outermost, the most promising first."""
    if not any(isinstance(place.stmt, For) and name_of(place) == name for place in host_statements(schedule.func)):
        return
    nest = perfect_loops(schedule, name)
    free = [loop for loop in nest if can_run_at_once(schedule, loop)]
    leading = next((k for k, loop in enumerate(nest) if loop not in free), len(nest))
    choices = [free, free[:leading], *([loop] for loop in free)]
    for loops in (loops for k, loops in enumerate(choices) if loops and loops not in choices[:k]):
        yield loops, [*loops, *(loop for loop in nest if loop not in loops)]


def _bound(schedule: Schedule, name: str, loops: list[str], order: list[str], threads: int) -> str:
    if order != perfect_loops(schedule, name):
        schedule.reorder(*order)
    bind_all(schedule, loops, threads)
    return name
