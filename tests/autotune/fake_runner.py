"""Tasks with a made-up space, and a runner without a machine: times from the made-up cost, faults on demand, a clock of its own."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tc.autotune.runner import Job, Measurement
from tc.autotune.search.space import Candidate
from tc.autotune.task import Task
from tc.autotune.tasks import extract_tasks
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module
from tc.schedule.knobs import Value
from tc.schedule.step import Step, Trace
from tc.target import Target
from tests.autotune.made_up import KNOBS, NAMES, Product, Tiled, TileSpace, seconds_of

TARGET = Target.parse("x86-64-v3:cores=2")
_GRAPH = """
@graph
def main(x: f32[{rows}, 8]):
    y: f32[{rows}, 8] = relu(x)
    return y
"""


class MadeUpSpace:
    """`TileSpace` with real candidates, all of one program: only their traces differ."""

    def __init__(self, func: PrimFunc, default: Mapping[str, Value] | None = None, fixed: Mapping[str, Value] | None = None) -> None:
        self.func, self.fixed = func, dict(fixed or {})
        self.tiles = TileSpace(default)

    def _candidate(self, tiled: Tiled) -> Candidate:
        if self.fixed:
            tiled = self.tiles.at({**dict(tiled.point), **self.fixed})
        values = tuple(value for _, value in tiled.point)
        knobs = tuple(knob for knob in KNOBS if knob.name not in self.fixed)
        return Candidate("default", knobs, tiled.point, "tiles", Trace((Step("tile", values),)), self.func)

    def default(self) -> Candidate:
        return self._candidate(self.tiles.default())

    def at(self, point: Mapping[str, Value]) -> Candidate:
        return self._candidate(self.tiles.at(point))

    def sample(self, rng: np.random.Generator) -> Candidate:
        return self._candidate(self.tiles.sample(rng))

    def at_all(self, points: Sequence[Mapping[str, Value]]) -> list[Candidate | None]:
        return [None if made is None else self._candidate(made) for made in self.tiles.at_all(points)]

    def mutation(self, candidate: Candidate, rng: np.random.Generator) -> Mapping[str, Value]:
        return self.tiles.mutation(Tiled(candidate.point), rng)

    def crossing(self, first: Candidate, second: Candidate, rng: np.random.Generator) -> Mapping[str, Value]:
        return self.tiles.crossing(Tiled(first.point), Tiled(second.point), rng)

    def neighbours(self, candidate: Candidate) -> list[dict[str, Value]]:
        points = self.tiles.neighbours(Tiled(candidate.point))
        return [point for point in points if all(point[name] == value for name, value in self.fixed.items())]

    def size(self, samples: int = 1) -> float:
        return self.tiles.size()


@dataclass(frozen=True, eq=False)
class MadeUpTask(Task):
    """A task whose space is made up. `start`: its default; `fixed`: what cannot be chosen."""

    start: Mapping[str, Value] | None = None
    fixed: Mapping[str, Value] | None = None

    def space(self) -> MadeUpSpace:  # type: ignore[override]
        func = next(iter(self.variants.values())).func
        return MadeUpSpace(func, self.start, self.fixed)


def made_up_task(
    rows: int = 4, *, calls: int = 1, start: Mapping[str, Value] | None = None, fixed: Mapping[str, Value] | None = None
) -> MadeUpTask:
    """A task called after its number of rows, by which the runner knows it."""
    (real,) = extract_tasks(parse_module(_GRAPH.format(rows=rows)), TARGET).tasks
    return MadeUpTask(f"task_{rows}", real.variants, TARGET, real.dims, calls, real.nodes, 0, start, fixed)


PRODUCT = Product()


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeRunner:
    """Ratios of made-up times, with an error that is smaller the longer is measured; equal jobs in equal order measure the same.

    noise: relative error of a trial. lucky: the part of the candidates whose first trial looks 30% faster than it is.
    slowness: of the whole machine. fails, is_wrong: by the point.
    stop_at, stop: before batch number `stop_at` the exception `stop` is raised.
    """

    def __init__(
        self,
        clock: FakeClock,
        *,
        product: Product = PRODUCT,
        noise: float = 0.02,
        lucky: float = 0.0,
        fails: Callable[[Mapping[str, Value]], str | None] = lambda point: None,
        is_wrong: Callable[[Mapping[str, Value]], bool] = lambda point: False,
        stop_at: int | None = None,
        stop: BaseException | None = None,
        trial_seconds: float = 0.25,
        slowness: float = 1.0,
    ) -> None:
        self.clock, self.product, self.slowness = clock, product, slowness
        self.noise, self.lucky, self.fails, self.is_wrong = noise, lucky, fails, is_wrong
        self.stop_at, self.stop, self.trial_seconds = stop_at, stop, trial_seconds
        self.batches: list[list[Job]] = []
        self.checked: list[Job] = []
        self._times: Counter[str] = Counter()

    def measure(self, jobs: Sequence[Job]) -> list[Measurement]:
        if self.stop_at is not None and len(self.batches) >= self.stop_at:
            assert self.stop is not None
            raise self.stop
        self.batches.append(list(jobs))
        return [self._measured(job) for job in jobs]

    def _measured(self, job: Job) -> Measurement:
        self.clock.now += self.trial_seconds * max(job.effort / 4, 1.0)
        point = point_of(job.trace)
        for who, its_point in (("", point), ("the reference kernel: ", point_of(job.reference_trace))):
            kind = self.fails(its_point)
            if kind is not None:
                return Measurement.failed(kind, f"{who}made to fail")
        rng = np.random.default_rng(list(hashlib.sha256(f"{job.workload.key} {job.trace} {self._times[job.trace]}".encode()).digest()))
        is_first = not self._times[job.trace]
        self._times[job.trace] += 1
        ratio = true_ratio(job, self.product)
        if is_first and job.trace != job.reference_trace and rng.random() < self.lucky:
            ratio *= 0.7
        ratios = ratio * np.exp(rng.normal(0, self.noise, 9) / np.sqrt(job.effort))
        seconds = float(seconds_of([Tiled(tuple(point_of(job.reference_trace).items()))], self.product)[0])
        return Measurement.of_ratios(ratios.tolist(), self.slowness * seconds, 0.1)

    def check(self, job: Job, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str | None:
        self.checked.append(job)
        self.clock.now += 0.1
        np.testing.assert_array_equal(np.maximum(inputs[0], 0), expected[0])
        return "the largest error is 1" if self.is_wrong(point_of(job.trace)) else None

    def close(self) -> None:
        pass

    def __enter__(self) -> FakeRunner:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    @property
    def trials(self) -> list[tuple[str, str]]:
        """(workload, trace) of all candidates that were measured for the first time, in order."""
        return list(dict.fromkeys((job.workload.key, job.trace) for batch in self.batches for job in batch))


def point_of(trace: str) -> dict[str, Value]:
    """The point of a made-up candidate."""
    return dict(zip(NAMES, json.loads(trace)["steps"][0][1:], strict=True))


def true_ratio(job: Job, product: Product) -> float:
    pair = [Tiled(tuple(point_of(trace).items())) for trace in (job.trace, job.reference_trace)]
    seconds = seconds_of(pair, product)
    return float(seconds[0] / seconds[1])
