"""The clock: several programs timed side by side in one process, on a machine that is never quiet.

On a shared machine speed drifts by a factor of two for seconds at a time, so an absolute time means little. Programs
take turns in short slots, round by round, each round in the reverse order of the one before; what counts is the ratio
of two programs within a round, and over the rounds its median and quartiles. A slot begins when the threads that
earlier slots left spinning have gone to sleep, and after calls that are not counted, which bring the program's own
threads and caches back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Step = Callable[[], object]

QUIET_SECONDS = 0.012
"""How long a process must have been quiet."""

QUIET_SHARE = 0.1
"""Less than this part of a processor is quiet."""


@dataclass(frozen=True)
class Plan:
    """How long to measure. A slot lasts `slot_seconds` or one call; rounds end with the budget, within their bounds."""

    slot_seconds: float = 0.03
    settle_seconds: float = 0.005
    budget_seconds: float = 20.0
    min_rounds: int = 8
    max_rounds: int = 40


@dataclass(frozen=True)
class Ratio:
    """Quartiles, over the rounds, of one program's seconds over another's."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, eq=False)
class Timings:
    """`seconds`: float64[rounds, names], the median call of each slot; `minimum`: the shortest call of all."""

    names: tuple[str, ...]
    seconds: np.ndarray
    minimum: np.ndarray

    def median(self, name: str) -> float:
        return float(np.median(self.of(name)))

    def shortest(self, name: str) -> float:
        return float(self.minimum[self.names.index(name)])

    def ratio(self, over: str, under: str) -> Ratio:
        """Seconds of `over` divided by seconds of `under`, pair by pair: above 1 means that `under` is faster."""
        low, median, high = np.percentile(self.of(over) / self.of(under), (25, 50, 75))
        return Ratio(float(median), float(low), float(high))

    def of(self, name: str) -> np.ndarray:
        """float64[rounds]: the seconds of one program, round by round."""
        return self.seconds[:, self.names.index(name)]


def time_interleaved(
    steps: Mapping[str, Step],
    plan: Plan | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[], None] | None = None,
) -> Timings:
    """Time each step, warm, in turns with the others. `wait` is called before each slot, `wait_until_quiet` by default.

    The affinity of this thread is watched: a step that changes it would slow or speed up the others, and is refused.
    """
    plan = plan or Plan()
    wait = wait or wait_until_quiet
    names = tuple(steps)
    cores = _allowed_cores()
    settle = {name: _settling_calls(steps[name], plan, clock) for name in names}
    rounds: list[list[float]] = []
    minimum = np.full(len(names), np.inf)

    start = clock()
    while len(rounds) < plan.min_rounds or (len(rounds) < plan.max_rounds and clock() - start < plan.budget_seconds):
        row = [0.0] * len(names)
        order = range(len(names)) if len(rounds) % 2 == 0 else reversed(range(len(names)))
        for index in order:
            wait()
            calls = _time_slot(steps[names[index]], settle[names[index]], plan.slot_seconds, clock)
            row[index] = float(np.median(calls))
            minimum[index] = min(minimum[index], min(calls))
            if _allowed_cores() != cores:
                raise RuntimeError(f"{names[index]} changed the affinity of the calling thread")
        rounds.append(row)
    return Timings(names, np.array(rounds), minimum)


def wait_until_quiet(limit_seconds: float = 0.25) -> None:
    """Sleep until this process uses next to no processor time any more, or the limit is over.

    Thread pools spin for some time after a call (onnxruntime's for about 30 ms) and would compete with what comes next. The time
    of other threads is brought up to date when the kernel ticks, every 4 ms or 10: a look at less than that sees nothing.
    """
    deadline = time.perf_counter() + limit_seconds
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(QUIET_SECONDS)
        if time.process_time() - before < QUIET_SHARE * QUIET_SECONDS:
            return


def _settling_calls(step: Step, plan: Plan, clock: Callable[[], float]) -> int:
    """Warm the step up, and say how many of its calls fill `settle_seconds`; none when one takes ten times as long."""
    step()
    seconds = min(_time_slot(step, 1, plan.settle_seconds, clock))
    if seconds > 10 * plan.settle_seconds:
        return 0
    return max(1, round(plan.settle_seconds / max(seconds, 1e-7)))


def _time_slot(step: Step, settling_calls: int, slot_seconds: float, clock: Callable[[], float]) -> list[float]:
    """Seconds of each counted call; at least one."""
    for _ in range(settling_calls):
        step()
    calls: list[float] = []
    end = clock() + slot_seconds
    before = clock()
    while not calls or before < end:
        step()
        after = clock()
        calls.append(after - before)
        before = after
    return calls


def _allowed_cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
