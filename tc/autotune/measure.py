"""Candidates built and timed in child processes of this machine.

Several children build side by side; then one child times, alone, while the others wait. A child is replaced when it crashes, hangs
or retires, and what it was doing becomes a Measurement that says so; the other jobs never notice. Children live as long as the
runner, for starting one takes as long as measuring several candidates.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from tc.autotune.build import BuildRequest, Built
from tc.autotune.child import Child, ChildOutcome
from tc.autotune.explore import ExploreRequest
from tc.autotune.runner import Job, Measurement, ReferenceClock, Workload
from tc.autotune.search.space import Candidate, Space
from tc.autotune.timing import CheckRequest, Timed, TimeRequest, TrialPlan
from tc.errors import MeasureError, TuningError
from tc.schedule.knobs import Value
from tc.target import Target, available_cpus, native_target

DEFAULT_MEMORY_BYTES = 4 << 30
DEVICE_TIMES = 12
"""Times the patience with kernels of the processor."""
_KEPT_REFERENCES = 64
_ATTEMPTS_TO_START = 3


class LocalRunner:
    """Measures on this machine; see `tc.autotune.runner.Runner`. Threads may share one: their batches take turns.

    builders: processes that build side by side, by default one for each core. build_timeout, run_timeout: seconds after which a
    child is killed, DEVICE_TIMES as many for a device, whose compilers take longer and whose drivers finish code when it is run; a run
    may take longer where the reference kernel does. memory_bytes: how much a child may take beyond what it has when it starts. binaries:
    a folder of kernels that were compiled elsewhere (`tc.codegen.cuda.compile.keep_binaries`).
    """

    worker = "tc.autotune.worker:main"
    """The program of the children: "module:function"."""

    def __init__(
        self,
        *,
        builders: int | None = None,
        build_timeout: float = 10.0,
        run_timeout: float = 10.0,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        plan: TrialPlan | None = None,
        binaries: Path | None = None,
    ) -> None:
        count = native_target().cores if builders is None else builders
        if count < 1:
            raise TuningError(f"builders is {count}, must be at least 1")
        if os.name != "posix":
            raise TuningError("candidates can be measured on Unix systems only")
        self._count = count
        self._build_timeout = build_timeout
        self._run_timeout = run_timeout
        self._memory_bytes = memory_bytes
        self._plan = plan or TrialPlan()
        self._binaries = "" if binaries is None else str(binaries)
        self._builders: list[Child] = []
        self._timers: list[Child] = []  # one, or none
        self._failed_starts = 0
        self._clock = ReferenceClock()
        self._references: OrderedDict[BuildRequest, ChildOutcome] = OrderedDict()
        self._bad_references: dict[str, ChildOutcome] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._end = weakref.finalize(self, _kill_all, self._builders, self._timers)

    # -- the protocol

    def measure(self, jobs: Sequence[Job]) -> list[Measurement]:
        """One measurement for each job, in order. MeasureError when no child can be started, UserError for a target that this
        machine cannot run."""
        with self._lock:
            self._refuse_foreign(jobs)
            built = self._build([_candidate(job) for job in jobs], [_reference(job) for job in jobs])
            self._await_starts()
            timed = {number: self._time(jobs[number], built) for number in _by_reference(jobs)}
            return [self._measurement(job, built[_candidate(job)], timed[k]) for k, job in enumerate(jobs)]

    def check(self, job: Job, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str | None:
        """What differs when the job's candidate runs on `inputs`, in a child; None when nothing does.

        Beside the results: whether it writes outside of its arrays or into its inputs, and whether one thread gives other bits.
        """
        with self._lock:
            self._refuse_foreign([job])
            outcome = self._build([_candidate(job)], [])[_candidate(job)]
            if isinstance(outcome.value, Built):
                request = CheckRequest(outcome.value, tuple(inputs), tuple(expected))
                (outcome,) = self._dispatch([request], self._timers, 1, 6 * self._run_timeout * _patience(job.workload))
        if outcome.error is not None:
            return f"{outcome.error}: {outcome.detail}"
        assert outcome.value is None or isinstance(outcome.value, str)
        return outcome.value

    def explore(self, space: Space, dims: Mapping[str, int], points: Sequence[Mapping[str, Value]]) -> list[Candidate | None]:
        """The candidates at these points, with features for `dims`, from all builders side by side; None where a point is not legal."""
        parts = np.array_split(np.arange(len(points)), min(self._count, len(points)))
        sizes, target = tuple(sorted(dims.items())), str(space.target)
        requests = [ExploreRequest(space.texts, target, sizes, tuple(tuple(points[i].items()) for i in part)) for part in parts]
        with self._lock:
            outcomes = self._dispatch(requests, self._builders, self._count, self._build_timeout * max(map(len, parts)))
        found: list[Candidate | None] = []
        for outcome, part in zip(outcomes, parts, strict=True):
            if isinstance(outcome.value, list):
                found += [None if each is None else each.candidate(space) for each in outcome.value]
            else:  # what is wrong shows here
                found += [space.legal_at(points[i]) for i in part]
        return found

    def close(self) -> None:
        """End all children."""
        self._closed = True
        self._end()

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are there now."""
        return tuple(child.pid for child in (*self._builders, *self._timers) if not child.is_gone)

    # -- the two halves of a batch

    def _build(
        self, candidates: Sequence[BuildRequest], references: Sequence[BuildRequest]
    ) -> dict[BuildRequest, ChildOutcome]:
        """Every request built once; references are kept for the next batches."""
        for request in references:
            if request in self._references:
                self._references.move_to_end(request)
        found = {request: self._references[request] for request in references if request in self._references}
        missing = [request for request in dict.fromkeys((*references, *candidates)) if request not in found]
        limit = max((self._build_timeout * _patience(request.workload) for request in missing), default=0.0)
        outcomes = self._dispatch(missing, self._builders, self._count, limit)
        found.update(zip(missing, outcomes, strict=True))
        for request in references:
            self._references[request] = found[request]
        while len(self._references) > _KEPT_REFERENCES:
            self._references.popitem(last=False)
        return found

    def _time(self, job: Job, built: dict[BuildRequest, ChildOutcome]) -> ChildOutcome:
        """The candidate timed, or why not."""
        candidate, reference = built[_candidate(job)], built[_reference(job)]
        if candidate.error is not None:
            return candidate
        key = job.reference_key
        failure = reference if reference.error is not None else self._bad_references.get(key)
        if failure is None:
            assert isinstance(candidate.value, Built) and isinstance(reference.value, Built)
            same = job.workload.identity == job.reference.identity
            request = TimeRequest(candidate.value, reference.value, job.effort, same)
            known = self._clock.seconds(key) or 0.0
            limit = self._run_timeout * _patience(job.workload) + 50 * known * max(job.effort, 1.0)
            (outcome,) = self._dispatch([request], self._timers, 1, limit)
            if isinstance(outcome.value, Timed) and outcome.value.wrong is None:
                self._clock.add(key, outcome.value.reference_seconds)
            if outcome.error is None or outcome.stage != "reference":
                return outcome
            failure = outcome
            if not outcome.killed:
                self._bad_references[key] = outcome  # it would fail every time, and take a child with it
        return ChildOutcome(None, failure.error, f"the reference kernel, which this one is timed with: {failure.detail}")

    def _measurement(self, job: Job, candidate: ChildOutcome, timed: ChildOutcome) -> Measurement:
        build_seconds = candidate.value.seconds if isinstance(candidate.value, Built) else 0.0
        if timed.error is not None:
            return Measurement.failed(timed.error, timed.detail, build_seconds)
        assert isinstance(timed.value, Timed)
        if timed.value.wrong is not None:
            return Measurement.failed("wrong", timed.value.wrong, build_seconds)
        usual = self._clock.seconds(job.reference_key)
        assert usual is not None
        return Measurement.of_ratios(timed.value.ratios, usual, build_seconds)

    def _refuse_foreign(self, jobs: Sequence[Job]) -> None:
        if self._closed:
            raise MeasureError("the runner has been closed")
        for text, threads in {(w.target, w.threads) for job in jobs for w in (job.workload, job.reference)}:
            refuse_foreign(Target.parse(text))
            if not 1 <= threads <= available_cpus():
                raise TuningError(f"cannot measure with {threads} threads: this process may use {available_cpus()} CPUs")

    # -- children

    def _dispatch(self, requests: Sequence[object], crew: list[Child], size: int, limit: float) -> list[ChildOutcome]:
        """The outcome of each request, from at most `size` children of `crew`, each with one request at a time."""
        outcomes: dict[int, ChildOutcome] = {}
        pending = deque(range(len(requests)))
        attempts: Counter[int] = Counter()
        try:
            while len(outcomes) < len(requests):
                crew[:] = [child for child in crew if not child.is_gone]
                while len(crew) < min(size, len(requests) - len(outcomes)):
                    crew.append(self._hire(crew))
                for child in crew:
                    if child.is_idle and pending and child.begin(pending[0], requests[pending[0]], limit):
                        pending.popleft()
                for child, outcome in self._hear(crew):
                    attempts[child.index] += 1
                    if outcome.killed and attempts[child.index] == 1:
                        pending.appendleft(child.index)
                    else:
                        outcomes[child.index] = outcome
        except BaseException:
            _kill_all([child for child in crew if child.is_busy])
            raise
        return [outcomes[index] for index in range(len(requests))]

    def _hear(self, crew: Sequence[Child]) -> list[tuple[Child, ChildOutcome]]:
        """Wait until something happens to one of the children at work or about to start; the requests that have ended."""
        active = {child.pipe: child for child in crew if child.is_busy or child.is_starting}
        if not active:
            return []  # all turned out to be gone
        patience = min(child.seconds_left() for child in active.values())
        ready = multiprocessing.connection.wait(list(active), patience)
        ended = []
        for pipe, child in active.items():
            was_starting = child.is_starting
            if pipe in ready:
                outcome = child.receive()
            elif child.seconds_left() <= 0:
                outcome = child.expire()
            else:
                continue
            if was_starting:
                self._note_start(outcome)
            elif outcome is not None:
                ended.append((child, outcome))
        return ended

    def _note_start(self, failure: ChildOutcome | None) -> None:
        if failure is None:
            self._failed_starts = 0
            return
        self._failed_starts += 1
        if self._failed_starts >= _ATTEMPTS_TO_START:
            self._failed_starts = 0
            raise MeasureError(f"processes to measure in do not start: {failure.error}: {failure.detail}")

    def _hire(self, crew: list[Child]) -> Child:
        """A child for the crew. A builder without work takes the place of a timer that is gone: it is there already."""
        if crew is self._timers:
            for child in self._builders:
                if child.is_idle:
                    self._builders.remove(child)
                    return child
        elif not self._timers:  # let it start while others build
            self._timers.append(self._start())
        return self._start()

    def _start(self) -> Child:
        return Child(self.worker, self._memory_bytes, self._plan, self._binaries)

    def _await_starts(self) -> None:
        """Let children that are starting come to rest, so that nothing else runs while candidates are timed."""
        crew = [*self._builders, *self._timers]
        while any(child.is_starting for child in crew):
            self._hear(crew)


def _kill_all(*crews: list[Child]) -> None:
    for crew in crews:
        for child in crew:
            child.kill()
        crew.clear()


def refuse_foreign(target: Target) -> None:
    """UserError unless this machine, and its device, run code for a target."""
    lacking = target.missing_here()
    if lacking:
        raise TuningError(f"this machine cannot run code for {target.device_text or target}: it has no {', '.join(lacking)}")


def _patience(workload: Workload) -> int:
    return DEVICE_TIMES if Target.parse(workload.target).device is not None else 1


def _candidate(job: Job) -> BuildRequest:
    return BuildRequest(job.workload, job.trace)


def _reference(job: Job) -> BuildRequest:
    return BuildRequest(job.reference, job.reference_trace)


def _by_reference(jobs: Sequence[Job]) -> list[int]:
    """The numbers of the jobs, those with the same reference one after the other: it is then at hand."""
    order: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        order.setdefault(job.reference_key, []).append(number)
    return [number for numbers in order.values() for number in numbers]
