"""Schedules ordered by what a model says of them: a search without a device, which measures nothing and writes nothing down.

The search is the tuner's, over the same space and with the same limits; in the place of measurements stands the analytic model. The best
are compiled where there is a compiler for their target, since what registers they really take is known then. All of it is predicted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tc.autotune.cost_model.learned import features_of
from tc.autotune.cost_model.models import AnalyticCost
from tc.autotune.search.limits import refuse
from tc.autotune.search.policy import ModelSearch
from tc.autotune.search.space import Candidate
from tc.autotune.task import Task
from tc.autotune.tasks import tasks_of
from tc.codegen.backends import backend_of
from tc.codegen.c.dialect import CUDA
from tc.codegen.cuda.compile import compile_cuda, compiler
from tc.codegen.cuda.resources import FunctionResources, resources_of
from tc.cost.device_estimate import DeviceLaunchEstimate, estimate_launches, total_seconds
from tc.errors import TcError, TuningError
from tc.frontend.dims import Dim
from tc.frontend.registry import Model, import_model
from tc.passes.pipeline import prepare_model
from tc.target import Target

BATCH = 16
"""Candidates of a round of the search."""

ROUNDS_WITHOUT_GAIN = 3
"""After so many a task is done."""

FULL_SECONDS, LEAST_EFFORT = 60.0, 0.1
"""Of a task, with which the search's rounds are as thorough as it can make them, and how thorough they are at least."""

COMPILED = 3
"""Of a task's best, those that a compiler is asked about."""


@dataclass(frozen=True)
class RankedSchedule:
    """A schedule and what is predicted of it. `resources`: of its functions, by a compiler; None where none was asked."""

    candidate: Candidate
    seconds: float
    launches: tuple[DeviceLaunchEstimate, ...]
    resources: tuple[FunctionResources, ...] | None = None

    @property
    def spills(self) -> bool:
        """Whether a compiler keeps values of a thread in memory."""
        return any(each.stack_bytes > 0 for each in self.resources or ())

    def as_data(self) -> dict[str, object]:
        """For reports. Nothing here was measured."""
        return {
            "predicted_seconds": self.seconds,
            "point": dict(self.candidate.point),
            "rule": self.candidate.rule,
            "trace": self.candidate.trace.to_json(),
            "launches": [_launch_data(launch) for launch in self.launches],
            "compiled": None if self.resources is None else [vars(each) for each in self.resources],
        }


def _launch_data(launch: DeviceLaunchEstimate) -> dict[str, object]:
    work = launch.work
    return {
        "bound": launch.bound,
        "blocks": work.blocks,
        "threads": work.threads,
        "shared_bytes": work.shared_bytes,
        "registers_estimated": work.registers,
        "resident_blocks": launch.resident,
        "waves": launch.waves,
        "moved_over_asked": work.sectors * 32 / work.asked_bytes if work.asked_bytes else None,
        "bank_conflicts": work.wavefronts / work.least_wavefronts if work.least_wavefronts else None,
    }


@dataclass(frozen=True)
class RankedTask:
    """A task's default schedule and those predicted to be the fastest, best first; the default may be among them. `scored`: how many
    schedules the model was asked about."""

    task: Task
    default: RankedSchedule
    best: tuple[RankedSchedule, ...]
    scored: int


def rank_model(
    model: Model,
    target: Target,
    seconds: float,
    *,
    dims: Mapping[str, Dim | int] | None = None,
    sizes: Mapping[str, int] | None = None,
    select: Callable[[Sequence[Task]], Sequence[Task]] = lambda tasks: tasks,
    trials: int | None = None,
    most: int = 4,
    seed: int = 0,
) -> list[RankedTask]:
    """Rank the schedules of a model's kernels for a device, in about so many seconds; `trials`: at most so many rounds' candidates a task.

    UserError for a target without a device: schedules for processors are measured.
    """
    if target.device is None:
        raise TuningError("schedules are ranked for devices; this machine measures those for its processor")
    tasks = select(tasks_of(prepare_model(import_model(model, dims), target), sizes).tasks)
    if not tasks:
        raise TuningError("nothing to rank: the model has no kernels")
    end = time.monotonic() + seconds
    ranked = []
    for number, task in enumerate(tasks):
        share = (end - time.monotonic()) / (len(tasks) - number)
        ranked.append(rank_task(task, share, trials=trials, most=most, seed=seed + number))
    return ranked


def rank_task(task: Task, seconds: float, *, trials: int | None = None, most: int = 4, seed: int = 0) -> RankedTask:
    """Rank the schedules of one task."""
    space, model = task.space(), _Analytic(task)
    default = space.default()
    search: ModelSearch[Candidate] = ModelSearch(space, model, np.random.default_rng(seed), partial(refuse, dims=task.dims))
    search.effort = min(max(seconds / FULL_SECONDS, LEAST_EFFORT), 1.0)
    found = {default.key: default}
    end, least, idle = time.monotonic() + seconds, math.inf, 0
    while idle < ROUNDS_WITHOUT_GAIN and time.monotonic() < end and (trials is None or len(found) < trials):
        batch = search.propose(BATCH if trials is None else min(BATCH, trials - len(found)))
        if not batch:
            break
        found.update((candidate.key, candidate) for candidate in batch)
        predicted = model.seconds(batch)
        search.observe(batch, predicted)  # the search's own memory; no cost model learns, and nothing is kept
        idle = 0 if predicted.min() < 0.99 * least else idle + 1
        least = min(least, float(predicted.min()))
    candidates = list(found.values())
    order = np.argsort(model.seconds(candidates), kind="stable")
    best = list(_unspilt((candidates[k] for k in order), task, most))
    return RankedTask(task, _ranked(default, task, compiled=True), tuple(best), len(model.known))


class _Analytic:
    """The analytic model of a task's candidates; what it is told it forgets."""

    def __init__(self, task: Task) -> None:
        self._task, self._cost = task, AnalyticCost()
        self.known: dict[str, np.ndarray] = {}

    def _rows(self, candidates: Sequence[Candidate]) -> np.ndarray:
        for candidate in candidates:
            if candidate.key not in self.known:
                self.known[candidate.key] = features_of(candidate, self._task.target, self._task.dims)
        return np.stack([self.known[candidate.key] for candidate in candidates])

    def predict(self, candidates: Sequence[Candidate]) -> tuple[np.ndarray, np.ndarray]:
        """See `Predictor`."""
        return self._cost.predict_rows(self._rows(candidates)) if candidates else (np.zeros(0), np.zeros(0))

    def observe(self, candidates: Sequence[Candidate], seconds: np.ndarray) -> None:
        """See `Predictor`."""

    def seconds(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """float64[n]"""
        return np.asarray(2.0 ** self.predict(candidates)[0])


def _unspilt(candidates: Iterator[Candidate], task: Task, most: int) -> Iterator[RankedSchedule]:
    """The first of them that compile and, of those that a compiler is asked about, keep all values in registers."""
    asked = taken = 0
    for candidate in candidates:
        if taken == most:
            return
        is_asked = asked < 2 * COMPILED and taken < COMPILED
        asked += is_asked
        try:
            found = _ranked(candidate, task, is_asked)
        except TcError:  # of a compiler
            continue
        if not found.spills:
            taken += 1
            yield found


def _ranked(candidate: Candidate, task: Task, compiled: bool) -> RankedSchedule:
    target = task.target
    assert target.device is not None
    launches = tuple(estimate_launches(candidate.final, target.device, task.dims))
    return RankedSchedule(candidate, total_seconds(launches), launches, _compiled(candidate, target) if compiled else None)


def _compiled(candidate: Candidate, target: Target) -> tuple[FunctionResources, ...] | None:
    """What the compiler of CUDA-C says; None for other targets, and without one."""
    language = backend_of(target).languages.get("cuda")
    if language is None or not compiler():
        return None
    assert target.device is not None
    text = language.write(candidate.final, "candidate", target)
    found = resources_of(compile_cuda(text, " ".join((f"--gpu-architecture={target.device.arch}", *CUDA.options))))
    return tuple(found.values())

