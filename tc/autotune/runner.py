"""What the search says to those that measure: programs to build and time, and what came of it.

All of it is plain data, so that a runner may live in this process, in its children or on other machines.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol

import numpy as np

from tc.ir.loop import PrimFunc
from tc.ir.printer import print_ir
from tc.records.record import threads_of
from tc.target import Target

ERROR_KINDS = ("illegal", "build", "timeout", "crash", "memory", "wrong")
"""Why there is no time: a step of the trace is not legal; no code could be made; building or running took too long; the process
died; it wanted more memory than it may have; the results are not those of the reference kernel."""


@dataclass(frozen=True)
class Workload:
    """A lowered, unscheduled PrimFunc as text, the sizes of its symbolic dims, and what it is compiled for and run on.

    `key` is the caller's name for it in records; two workloads are the same here when all other fields are. Inputs with the numbers
    `constants` are literals of a model: in a run of it each was last read when `apart_bytes` of others have been read since, and
    so it is in the timing. 0: they are found where the last call left them.
    """

    key: str
    text: str
    dims: tuple[tuple[str, int], ...]
    target: str
    threads: int
    constants: tuple[int, ...] = ()
    apart_bytes: int = 0

    @staticmethod
    def of(
        key: str,
        func: PrimFunc,
        dims: Mapping[str, int],
        target: Target,
        threads: int | None = None,
        constants: tuple[int, ...] = (),
        apart_bytes: int = 0,
    ) -> Workload:
        """The workload of a PrimFunc; `threads` are the target's cores if not said, 1 on a device."""
        sizes = tuple(sorted((name, int(size)) for name, size in dims.items()))
        count = threads_of(target) if threads is None else threads
        return Workload(key, print_ir(func), sizes, str(target), count, constants, apart_bytes)

    @property
    def identity(self) -> tuple[object, ...]:
        return (self.text, self.dims, self.target, self.threads, self.constants, self.apart_bytes)


@dataclass(frozen=True)
class Job:
    """Time `trace` on `workload`, in turns with a reference kernel: `reference_trace` on `reference_workload`, or on `workload`.

    Traces are JSON texts of `tc.schedule.step.Trace`. `effort` multiplies the time that is spent on rounds.
    """

    workload: Workload
    trace: str
    reference_trace: str
    reference_workload: Workload | None = None
    effort: float = 1.0

    @property
    def reference(self) -> Workload:
        return self.reference_workload or self.workload

    @property
    def reference_key(self) -> str:
        """Equal for jobs with the same reference kernel."""
        return hashlib.sha256(repr((self.reference.identity, self.reference_trace)).encode()).hexdigest()


@dataclass(frozen=True)
class Measurement:
    """What became of a job.

    `ratio` is the candidate's time over the reference's: the median over `rounds` pairs of slots that followed each other, which
    drift of the machine leaves alone. `seconds` is that ratio times `reference_seconds`, what the reference takes when the
    machine is at its usual speed (perf_counter; the same number for all jobs of a batch, but more trials make it better known:
    to compare batches, compare ratios); `low` and `high` the same for the quartiles of the ratios. All are inf, without rounds,
    where `error` names one of `ERROR_KINDS`; `detail` then says what happened.
    """

    seconds: float
    low: float
    high: float
    ratio: float
    reference_seconds: float
    rounds: int
    build_seconds: float
    error: str | None = None
    detail: str = ""

    @staticmethod
    def failed(error: str, detail: str, build_seconds: float = 0.0) -> Measurement:
        assert error in ERROR_KINDS, error
        return Measurement(math.inf, math.inf, math.inf, math.inf, math.inf, 0, build_seconds, error, detail)

    @staticmethod
    def of_ratios(ratios: Sequence[float], reference_seconds: float, build_seconds: float) -> Measurement:
        """`ratios`: candidate over reference, pair by pair; at least one."""
        low, median, high = (float(q) for q in np.percentile(ratios, (25, 50, 75)))
        seconds = reference_seconds
        return Measurement(
            median * seconds, low * seconds, high * seconds, median, seconds, len(ratios), build_seconds
        )

    def with_reference(self, reference_seconds: float) -> Measurement:
        """The same ratios of a reference that takes `reference_seconds`."""
        if self.error is not None:
            return self
        scale = reference_seconds / self.reference_seconds
        return replace(
            self,
            seconds=self.seconds * scale,
            low=self.low * scale,
            high=self.high * scale,
            reference_seconds=reference_seconds,
        )


class Runner(Protocol):
    """Builds and times candidates. A candidate that cannot be built or run is a Measurement too; MeasureError means that nothing
    can be measured at all."""

    def measure(self, jobs: Sequence[Job]) -> list[Measurement]:
        """One measurement for each job, in order."""

    def check(self, job: Job, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str | None:
        """What differs when the job's candidate runs on `inputs`, or why it cannot; None when all is well.

        `expected`: the first results, as many as are to be compared. The reference kernel takes no part.
        """

    def close(self) -> None:
        """End all processes. The runner is of no use afterwards; closing twice is allowed."""

    def __enter__(self) -> Runner: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ReferenceClock:
    """What each reference kernel takes at the usual speed of the machine: the lower quartile of all its trials.

    On a shared machine slow phases last for seconds; the quartile is the same as long as they are less than half of the time, and
    one trial that happened to be quick does not move it.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._seconds: dict[str, list[float]] = {}

    def add(self, key: str, seconds: float) -> None:
        trials = self._seconds.setdefault(key, [])
        if len(trials) < self._limit:  # afterwards the number is known well enough
            trials.append(seconds)

    def seconds(self, key: str) -> float | None:
        """None before the first trial."""
        trials = self._seconds.get(key)
        return None if not trials else float(np.percentile(trials, 25))
