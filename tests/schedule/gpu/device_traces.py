"""Random legal schedules for devices: steps that people write for them, loops bound at random, and all that is left as plain launches.

A step that a primitive takes makes a program that verifies. A schedule made of such steps can be brought into its finished form, or says
why no device runs it (`NO_DEVICE_RUNS`); others are drawn instead of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tc.errors import ScheduleError
from tc.ir.expr import Const
from tc.ir.launch import has_launch
from tc.ir.loop import For, LoopKind, PrimFunc
from tc.ir.uses import buffers_read
from tc.ir.verify import verify
from tc.schedule.rules.gpu.fallback import schedule_nest
from tc.schedule.rules.gpu.launch import host_statements, name_of
from tc.schedule.step import Schedule
from tc.schedule.tree import statements
from tests.schedule.gpu.launches import finished
from tests.schedule.random_traces import AIMED, Proposer

THREADS = (2, 3, 4, 8, 16, 32)
"""Sizes of parts of loops that threads run: few, so that blocks have tails."""

NO_DEVICE_RUNS = (
    "which each thread has, is of no constant size",
    "is allocated in a launch, but .* has no constant bound",
    "is read from memory outside of a launch, and decides about one",  # the host, which launches, does not see memory of the device
    "is each thread's own, but",  # a buffer that was said to be of threads, filled by one and read by another
    "a barrier is needed between .* inside of .* that is not the same for all threads",
)
"""What a schedule may ask that no device does. Nothing else is refused once all steps were taken."""


class DeviceProposer(Proposer):
    """Proposes steps for a device: tiles in shared memory, partial results of threads, loops on the axes of launches."""

    def propose_shape(self) -> None:
        """A step that changes what is computed where."""
        moves = ((self.split, 5), (self.fuse, 2), (self.reorder, 4), (self.inline, 1), (self.reverse_inline, 1), (self.move, 5))
        moves += ((self.reverse_move, 3), (self.decompose, 1), (self.rfactor, 4), (self.stage_shared, 4), (self.layout, 1))
        weights = np.array([weight for _, weight in moves])
        moves[self.rng.choice(len(moves), p=weights / weights.sum())][0]()

    def stage_shared(self) -> None:
        """A copy of an operand or of a result in memory of a block or of a thread."""
        block = self.block()
        scope = str(self.one(["shared", "shared", "local", "global"]))
        if self.rng.random() < 0.3:
            self.schedule.cache_write(block, scope)
            return
        read = sorted(buffer.name for buffer in buffers_read(self.schedule.block(block)))
        name = self.schedule.cache_read(block, str(self.one(read)), scope)
        if self.rng.random() < 0.8:
            self.schedule.compute_at(name, str(self.one(list(self.schedule.loops_of(block)))))

    def bind(self) -> None:
        """A loop on an axis: blocks outside, parts of known size as threads."""
        places = [p for p in statements(self.schedule.func.body) if isinstance(p.stmt, For) and p.loop.kind is LoopKind.SERIAL]
        place = places[int(self.rng.integers(len(places)))] if places else None
        if place is None:
            raise ScheduleError("no loops are left")
        name, extent = place.loop.var.name, place.loop.extent
        outside = not any(isinstance(stmt, For) and stmt.kind is not LoopKind.BOUND for stmt in place.path)
        if outside and not has_launch(place.loop.body) and self.rng.random() < 0.6:
            if self.rng.random() < 0.7 or not isinstance(extent, Const):
                outer, inner = self.schedule.split(name, int(self.one(list(THREADS))))  # type: ignore[call-overload]
                self.schedule.bind(outer, str(self.one(["block.x", "block.x", "block.y"])))
                if self.rng.random() < 0.6:
                    self.schedule.bind(inner, str(self.one(["thread.x", "thread.y"])))
            else:
                self.schedule.bind(name, str(self.one(["block.x", "thread.x"])))
            return
        if not isinstance(extent, Const) or extent.value > 64:
            _, name = self.schedule.split(name, int(self.one(list(THREADS))))  # type: ignore[call-overload]
        self.schedule.bind(name, str(self.one(["thread.x", "thread.x", "thread.y"])))

    def hint(self) -> None:
        getattr(self.schedule, str(self.one(["vectorize", "unroll"])))(self.loop())


def _verified(schedule: Schedule, step: Callable[[], None]) -> str:
    step()
    verify(schedule.func)
    return "legal"


def random_device_schedule(func: PrimFunc, rng: np.random.Generator, shapes: int = 14, binds: int = 10) -> Schedule | None:
    """A random schedule whose launches can be finished, or None: the draw was none."""
    schedule = Schedule(func)
    proposer = DeviceProposer(schedule, rng, func.name in AIMED)
    for _ in range(int(rng.integers(0, shapes + 1))):
        schedule.attempt(lambda: _verified(schedule, proposer.propose_shape))
    for _ in range(int(rng.integers(1, binds + 1))):
        schedule.attempt(lambda: _verified(schedule, proposer.bind))
    for _ in range(int(rng.integers(0, 3))):
        schedule.attempt(lambda: _verified(schedule, proposer.hint))
    for place in list(host_statements(schedule.func)):
        name = name_of(place)
        if not has_launch(place.stmt) and name is not None and rng.random() < 0.8:  # the rest becomes launches of one thread
            schedule.attempt(lambda name=name: _verified(schedule, lambda: schedule_nest(schedule, name)))  # type: ignore[misc]
    try:
        finished(schedule.func)
    except ScheduleError as error:
        if any(re.search(reason, str(error)) for reason in NO_DEVICE_RUNS):
            return None
        raise
    return schedule


