"""Candidates measured on other machines: a runner over the workers of a dask.distributed cluster.

Each worker process keeps a `LocalRunner` of its own, so a candidate that crashes or hangs takes down a child there and never the
worker. Jobs go to the workers one at a time. What a worker had when it was lost goes to another one.
Only workers on machines of the same target take part, with the same version of everything that makes the code: times of others would
mean something else.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import llvmlite
import numpy as np

from tc.autotune.measure import DEFAULT_MEMORY_BYTES, LocalRunner
from tc.autotune.runner import Job, Measurement, ReferenceClock
from tc.autotune.timing import TrialPlan
from tc.errors import MeasureError, TuningError, UserError
from tc.schedule.step import LANGUAGE_VERSION
from tc.target import Target, available_cpus, native_target
from tc.version import __version__, compiler_fingerprint

Client = Any
"""distributed.Client; the package is an extra, imported where it is used."""
Future = Any

_POLL_SECONDS = 1.0
_log = logging.getLogger("tc.tune")


@dataclass(frozen=True)
class RunnerOptions:
    """The arguments of every worker's `LocalRunner`."""

    builders: int | None = 1
    build_timeout: float = 10.0
    run_timeout: float = 10.0
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    plan: TrialPlan = TrialPlan()


@dataclass(frozen=True)
class Machine:
    """What a worker says of itself. `lacking`: what it does not have of the device that it was asked about."""

    target: str
    fingerprint: str
    cpus: int
    versions: tuple[tuple[str, str], ...]
    lacking: tuple[str, ...] = ()


def describe_machine(wanted: str = "") -> Machine:
    """The machine and the compiler of this process, and, of a target with a device, what is not here."""
    target = native_target()
    versions = {
        "tc": __version__,
        "llvmlite": llvmlite.__version__,
        "sources": compiler_fingerprint(),
        "schedule language": str(LANGUAGE_VERSION),
    }
    return Machine(str(target), target.fingerprint(), available_cpus(), tuple(versions.items()), _lacking(wanted))


def _lacking(wanted: str) -> tuple[str, ...]:
    try:
        return Target.parse(wanted).missing_here() if wanted else ()
    except UserError as error:
        return (error.text,)


class DaskRunner:
    """Measures on the workers of `client`; see `tc.autotune.runner.Runner`. Workers may come and go meanwhile.

    target: of the machines that are wanted, by default this one; with a device, machines that have it. `refused` says why workers take
    no part, by address.
    patience_seconds: how long there may be no worker at all before that is a MeasureError. max_losses: after a job has been
    lost with so many workers, it is given up as a crash.
    Closing the runner ends what it started on the workers, not the client.
    """

    local_runner: type[LocalRunner] = LocalRunner
    """What workers measure with; it is imported there."""

    def __init__(
        self,
        client: Client,
        *,
        target: Target | None = None,
        options: RunnerOptions | None = None,
        patience_seconds: float = 60.0,
        max_losses: int = 3,
    ) -> None:
        self._client = client
        self._target = target or native_target()
        self._options = options or RunnerOptions()
        self._patience_seconds = patience_seconds
        self._max_losses = max_losses
        self._asked = "" if self._target.device is None else str(self._target)
        self._wanted = dict(describe_machine().versions)
        self._accepted: dict[str, Machine] = {}
        self.refused: dict[str, str] = {}
        self._clock = ReferenceClock()
        self._lock = threading.Lock()
        self._closed = False

    # -- the protocol

    def measure(self, jobs: Sequence[Job]) -> list[Measurement]:
        """One measurement for each job, in order. MeasureError when no suitable worker is there."""
        tasks = [_Task(job, _measure, (job,)) for job in jobs]
        self._run(tasks)
        for task in tasks:
            if task.result.error is None:
                self._clock.add(task.job.reference_key, task.result.reference_seconds)
        return [self._on_common_reference(task.job, task.result) for task in tasks]

    def check(self, job: Job, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str | None:
        """What differs when the job's candidate runs on `inputs` on one of the workers; None when nothing does."""
        task = _Task(job, _check, (job, tuple(inputs), tuple(expected)))
        self._run([task])
        found = task.result
        return f"{found.error}: {found.detail}" if isinstance(found, Measurement) else found

    def close(self) -> None:
        """End the children of all workers."""
        if self._closed:
            return
        self._closed = True
        present = self._client.nthreads() if self._client.status == "running" else {}
        workers = [address for address in self._accepted if address in present]
        if workers:
            self._client.run(_close_runners, workers=workers, on_error="ignore")

    def __enter__(self) -> DaskRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- workers

    @property
    def workers(self) -> dict[str, Machine]:
        """The workers that take part, by address, as they are now."""
        present = self._client.nthreads()
        for address in [a for a in self._accepted if a not in present]:
            _log.warning("worker %s is gone", address)
            del self._accepted[address]
        fresh = [address for address in present if address not in self._accepted and address not in self.refused]
        found = self._client.run(describe_machine, self._asked, workers=fresh, on_error="return") if fresh else {}
        for address, machine in found.items():
            problem = self._problem(machine)
            if problem is None:
                self._accepted[address] = machine
            else:
                self.refused[address] = problem
                _log.warning("worker %s takes no part: %s", address, problem)
        return dict(self._accepted)

    def _problem(self, machine: object) -> str | None:
        """Why a worker cannot take part; None when it can."""
        if not isinstance(machine, Machine):
            return f"it cannot say what machine it is: {type(machine).__name__}: {machine}"
        for name, version in machine.versions:
            if version != self._wanted.get(name):
                return f"its version of {name} is {version}, here it is {self._wanted.get(name)}"
        if machine.lacking:
            return f"it cannot run code for {self._target.device_text}: {', '.join(machine.lacking)}"
        if self._target.device is None and machine.fingerprint != self._target.fingerprint():
            return f"it is another target: {machine.target}; wanted is {self._target}"
        return None

    # -- jobs

    def _run(self, tasks: Sequence[_Task]) -> None:
        """Give every task its result."""
        with self._lock:
            if self._closed:
                raise MeasureError("the runner has been closed")
            self._distribute(tasks)

    def _distribute(self, tasks: Sequence[_Task]) -> None:
        pending = deque(tasks)
        running: dict[Future, tuple[str, _Task]] = {}
        waited = 0.0
        try:
            while pending or running:
                workers = self.workers
                self._take_lost(running, workers, pending)
                busy = {address for address, _ in running.values()}
                for address, machine in workers.items():
                    task = None if address in busy else _next_for(machine, pending)
                    if task is not None:
                        running[self._submit(task, address)] = (address, task)
                if running:
                    waited = 0.0
                    self._take_finished(running, pending)
                else:
                    waited = self._wait_for_workers(workers, pending, waited)
        finally:
            if running:
                self._client.cancel(list(running), force=True)

    def _submit(self, task: _Task, address: str) -> Future:
        return self._client.submit(
            task.function,
            self.local_runner,
            self._options,
            *task.arguments,
            workers=[address],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    def _take_lost(
        self, running: dict[Future, tuple[str, _Task]], workers: Mapping[str, Machine], pending: deque[_Task]
    ) -> None:
        """What workers had that are gone is to be done again, first of all."""
        for future, (address, task) in list(running.items()):
            if address not in workers and not future.done():
                del running[future]
                future.cancel(force=True)
                self._lose(task, address, pending)

    def _take_finished(self, running: dict[Future, tuple[str, _Task]], pending: deque[_Task]) -> None:
        """Wait until some task has ended, or a moment."""
        from distributed import wait

        try:
            ended = wait(list(running), timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED").done
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            return
        for future in ended:
            address, task = running.pop(future)
            if future.status == "finished":
                task.result = future.result()
                future.release()
            elif future.status == "error" and isinstance(error := future.exception(), UserError | MeasureError):
                raise error
            else:
                self._lose(task, address, pending)

    def _lose(self, task: _Task, address: str, pending: deque[_Task]) -> None:
        task.losses += 1
        if task.losses < self._max_losses:
            _log.warning("a candidate was lost with worker %s and is measured again", address)
            pending.appendleft(task)
        else:
            task.result = Measurement.failed("crash", f"{task.losses} workers were lost while they had it")

    def _wait_for_workers(self, workers: Mapping[str, Machine], pending: Sequence[_Task], waited: float) -> float:
        """No worker can take what is left: pause a moment. Returns for how long there was none; MeasureError at some point."""
        if workers:
            threads = min(task.threads for task in pending)
            most = max(machine.cpus for machine in workers.values())
            raise MeasureError(f"no worker can measure with {threads} threads: they may use {most} CPUs at most")
        if waited >= self._patience_seconds:
            reasons = "".join(f"; {address}: {why}" for address, why in self.refused.items())
            raise MeasureError(f"there is no worker to measure on for {self._target}{reasons}")
        threading.Event().wait(_POLL_SECONDS)
        return waited + _POLL_SECONDS

    def _on_common_reference(self, job: Job, found: Measurement) -> Measurement:
        """Workers know only their own trials of the reference; seconds are to be comparable between them."""
        usual = self._clock.seconds(job.reference_key)
        return found if usual is None else found.with_reference(usual)


@dataclass(eq=False)
class _Task:
    """A job on its way: what to call on a worker, and then what it gave."""

    job: Job
    function: Any
    arguments: tuple[Any, ...]
    losses: int = 0
    result: Any = None

    @property
    def threads(self) -> int:
        return max(self.job.workload.threads, self.job.reference.threads)


def _next_for(machine: Machine, pending: deque[_Task]) -> _Task | None:
    """The first task that the worker has enough CPUs for, taken from the queue."""
    for task in pending:
        if task.threads <= machine.cpus:
            pending.remove(task)
            return task
    return None


# -- what runs on workers

_runners: dict[tuple[type[LocalRunner], RunnerOptions], LocalRunner] = {}
_worker_lock = threading.Lock()


def _measure(kind: type[LocalRunner], options: RunnerOptions, job: Job) -> Measurement:
    """Runs on a worker; one job at a time, even where dask gives it more threads."""
    with _worker_lock:
        return _runner(kind, options).measure([job])[0]


def _check(
    kind: type[LocalRunner],
    options: RunnerOptions,
    job: Job,
    inputs: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
) -> str | None:
    with _worker_lock:
        return _runner(kind, options).check(job, inputs, expected)


def _runner(kind: type[LocalRunner], options: RunnerOptions) -> LocalRunner:
    runner = _runners.get((kind, options))
    if runner is None:
        runner = kind(
            builders=options.builders,
            build_timeout=options.build_timeout,
            run_timeout=options.run_timeout,
            memory_bytes=options.memory_bytes,
            plan=options.plan,
        )
        _runners[kind, options] = runner
    return runner


def _close_runners() -> None:
    with _worker_lock:
        for runner in _runners.values():
            runner.close()
        _runners.clear()


atexit.register(_close_runners)


# -- workers on this machine


@contextmanager
def local_cluster(cores: Sequence[int]) -> Iterator[Client]:
    """A client of new worker processes on this machine, one for each of the CPU numbers `cores`, which it may use and no other.

    A worker that dies is replaced by one on the same CPU. UserError where processes cannot be tied to CPUs.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise TuningError("this system does not tie processes to CPUs")
    missing = sorted(set(cores) - os.sched_getaffinity(0))
    if missing or len(set(cores)) != len(cores) or not cores:
        allowed = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise TuningError(f"cores is {list(cores)}; they must be different CPUs of these: {allowed}")
    from distributed import Client, LocalCluster

    with (
        _same_environment(),
        LocalCluster(
            n_workers=len(cores),
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            memory_limit=0,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(_pinning(tuple(cores)))
        yield client


@contextmanager
def _same_environment() -> Iterator[None]:
    """Take back what starting workers does to the environment of this process: OMP_NUM_THREADS, which later calls here would heed."""
    from dask import config

    before = {name: os.environ.get(name) for name in config.get("distributed.nanny.pre-spawn-environ", {})}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _pinning(cores: tuple[int, ...]) -> Any:
    """A plugin that ties every worker to the CPU of its number. Workers that come later, in place of others, get it too."""
    from distributed import WorkerPlugin

    class Pinning(WorkerPlugin):
        def setup(self, worker: Any) -> None:
            pin_process(cores[int(worker.name) % len(cores)])

    return Pinning()


def pin_process(core: int) -> None:
    """Tie all threads of this process, and those that they start, to one CPU."""
    threads = os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ["0"]
    for thread in threads:
        os.sched_setaffinity(int(thread), {core})
