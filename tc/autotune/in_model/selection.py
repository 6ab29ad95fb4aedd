"""Which of a kernel's good schedules is the fastest inside its model.

Timed by itself a kernel finds its inputs and results where its last run left them. Inside a model another kernel has just written the
inputs, with other threads and other tiles, and how this one is cut into tasks matters to the next. What is fastest alone may come second.
So the last word is the model's: modules that differ in nothing but schedules, drawn at random from the best known of every kernel,
run in turns, every launch is timed, and what each schedule costs, in its own launches and in those that follow, is read off by a
linear model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from tc.autotune.in_model.modules import TimedModules
from tc.autotune.in_model.outcome import InModelResult
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import LoweredModel
from tc.records.apply import TunedSchedules
from tc.records.database import Database
from tc.records.record import DEFAULT, SCHEDULE, Choice, Record, place_of, target_key, threads_of
from tc.runtime.module import CompiledModule
from tc.schedule.canonical import workload_key
from tc.schedule.knobs import Knob, Value
from tc.schedule.rules import Scheduled
from tc.target import Target

MOST_CONTENDERS = 6
"""Schedules of a kernel that compete, the default among them."""

DRAWN_EACH = 3
"""Modules in which each schedule of a kernel takes part, beside the one with all defaults and the one with the best of each alone."""

FEWEST_ROUNDS, MOST_ROUNDS = 5, 24
"""How often every module runs: the median of what a launch takes counts."""

CLEARLY = 0.015
"""Of the kernel's time: what another schedule must save over the one that is best alone to take its place."""

OWN_RIDGE, NEXT_RIDGE = 0.05, 0.5
"""Of the effects on a launch of its own schedule and of the one before it: how many observations say that there are none."""


def select_in_model(
    lowered: LoweredModel,
    target: Target,
    database: Database,
    workloads: Sequence[str],
    inputs: Mapping[str, np.ndarray],
    seconds: float,
) -> list[InModelResult]:
    """Decide for each of the workloads that the model has which verified schedule it gets, and write the decisions down.

    lowered: the model as it is lowered with the database's answers. seconds: about what may be spent on running; FEWEST_ROUNDS
    rounds are run in any case. What is not among `workloads` is scheduled as the database says, in all modules.
    """
    known = TunedSchedules(database, target, threads_of(target))
    present = {key: name for name, key in lowered.workloads.items()}
    found = {key: database.shortlist(key, target, threads_of(target), MOST_CONTENDERS) for key in workloads if key in present}
    contenders: dict[str, list[Record | None]] = {key: [None, *records] for key, records in found.items() if records}
    if not contenders:
        return []
    run = _InModelRun(lowered, target, [_Assignment(known, contenders, dict.fromkeys(contenders, 0))])
    most = _most_contenders(run.call_seconds(inputs), seconds)
    contenders = {key: records[:most] for key, records in contenders.items()}
    counts = {key: len(records) for key, records in contenders.items()}
    names = {key: [DEFAULT if r is None else r.schedule_key for r in records] for key, records in contenders.items()}
    alone = {key: int(len(records) > 1 and records[1].ratio < 1.0) for key, records in contenders.items()}  # type: ignore[union-attr]
    draws = _draw(counts, alone)
    run.add([_Assignment(known, contenders, draw) for draw in draws[1:]])
    costs = run.costs(draws, counts, inputs, seconds)
    chosen = {key: _best(costs[key], alone[key]) for key in contenders}
    if chosen != alone and not run.is_faster(_Assignment(known, contenders, chosen), than=1, inputs=inputs):
        chosen = alone
    in_model = [
        InModelResult(key, present[key], tuple(zip(names[key], map(float, costs[key]))), names[key][alone[key]], names[key][chosen[key]])
        for key in contenders
    ]
    _write(database, target, in_model)
    return in_model


def _most_contenders(call_seconds: float, seconds: float) -> int:
    """With how many schedules of a kernel FEWEST_ROUNDS of all modules, each called twice, take about `seconds`; at least two."""
    modules = seconds / (2 * FEWEST_ROUNDS * max(call_seconds, 1e-9))
    return min(max(2, int((modules - 2) / DRAWN_EACH)), MOST_CONTENDERS)


def _draw(counts: Mapping[str, int], alone: Mapping[str, int]) -> list[dict[str, int]]:
    """Which schedule each kernel has in each module: all defaults, the best of each alone, then every one about equally often."""
    rng = np.random.default_rng(0)
    num = DRAWN_EACH * max(counts.values())
    drawn = {key: np.resize(np.concatenate([rng.permutation(count) for _ in range(num)]), num) for key, count in counts.items()}
    return [dict.fromkeys(counts, 0), dict(alone), *({key: int(drawn[key][k]) for key in counts} for k in range(num))]


def _best(costs: np.ndarray, alone: int) -> int:
    best = int(np.argmin(costs))
    return best if costs[best] < costs[alone] - CLEARLY * costs[0] else alone


class _Assignment:
    """`tc.autotune.in_model.modules.Schedules`: one of its contenders for each kernel; None is the default."""

    def __init__(self, known: TunedSchedules, contenders: Mapping[str, Sequence[Record | None]], draw: Mapping[str, int]) -> None:
        self._known, self._contenders, self._draw = known, contenders, draw

    def schedule(self, func: PrimFunc) -> Scheduled | None:
        key = workload_key(func)
        if key not in self._contenders:
            return self._known.schedule(func)
        record = self.record(key)
        return None if record is None else self._known.replay(func, record)

    def record(self, workload: str) -> Record | None:
        """What the assignment has for a workload that has contenders; None for the default, and for all others."""
        return self._contenders[workload][self._draw[workload]] if workload in self._contenders else None

    def decide(self, knob: Knob) -> Value:
        return self._known.decide(knob)


class _InModelRun:
    """Modules of one model, with a clock around every launch, that differ in the schedules of their kernels."""

    def __init__(self, lowered: LoweredModel, target: Target, assignments: Sequence[_Assignment]) -> None:
        self._lowered, self._timed = lowered, TimedModules(target)
        self._modules = self._timed.build(lowered, assignments)

    def add(self, assignments: Sequence[_Assignment]) -> None:
        """More modules."""
        self._modules += self._timed.build(self._lowered, assignments)

    def call_seconds(self, inputs: Mapping[str, np.ndarray]) -> float:
        """What the launches of the first module take."""
        return float(_run_in_turns(self._modules[:1], inputs, 0.0, rounds=1).sum())

    def costs(
        self, draws: Sequence[Mapping[str, int]], counts: Mapping[str, int], inputs: Mapping[str, np.ndarray], seconds: float
    ) -> dict[str, np.ndarray]:
        """float64[contenders] for every kernel: seconds per run of the model."""
        times = _run_in_turns(self._modules, inputs, seconds)
        keys = [self._lowered.workloads[launch.kernel] for launch in self._modules[0].launches]
        costs = {key: np.zeros(count) for key, count in counts.items()}
        for seconds_of_launch, key, before in zip(times, keys, [None, *keys]):
            parts = [(part, ridge) for part, ridge in ((key, OWN_RIDGE), (before, NEXT_RIDGE)) if part in counts]
            factors = [(np.eye(counts[part])[[draw[part] for draw in draws]], ridge) for part, ridge in parts]
            for (part, _), effects in zip(parts, _effects(seconds_of_launch, factors), strict=True):
                costs[part] += effects
            if key in counts:
                costs[key] += seconds_of_launch.mean()
        return costs

    def is_faster(self, assignment: _Assignment, *, than: int, inputs: Mapping[str, np.ndarray]) -> bool:
        """Whether a module with this assignment takes less time than one of the others, all launches together."""
        pair = [self._modules[than], *self._timed.build(self._lowered, [assignment])]
        first, second = _run_in_turns(pair, inputs, 0.0, rounds=MOST_ROUNDS).sum(axis=0)
        return bool(second < first)


def _run_in_turns(
    modules: Sequence[CompiledModule], inputs: Mapping[str, np.ndarray], seconds: float, rounds: int = FEWEST_ROUNDS
) -> np.ndarray:
    """float64[launches, modules]: seconds of each launch, the median over rounds, the machine's drift between rounds taken out."""
    arguments = [inputs[info.name] for info in modules[0].inputs]
    for module in modules:
        module(*arguments)
    found: list[np.ndarray] = []
    start = time.perf_counter()
    while len(found) < rounds or (len(found) < MOST_ROUNDS and time.perf_counter() - start < seconds):
        table = np.zeros((len(modules[0].launches), len(modules)))
        for place in np.roll(np.arange(len(modules)), len(found)):
            modules[place](*arguments)  # what the caches hold is then the module's own
            table[:, place] = modules[place].launch_seconds(*arguments)
        found.append(table)
    drift = np.array([table.sum() for table in found])
    return np.asarray(np.median(np.stack(found) * (np.median(drift) / drift)[:, None, None], axis=0))


def _effects(seconds: np.ndarray, factors: Sequence[tuple[np.ndarray, float]]) -> list[np.ndarray]:
    """What each level of each factor adds to the mean of `seconds`, float64[modules]: least squares with a ridge.

    factors: float64[modules, levels], 1 where a module has the level, and the ridge.
    """
    if not factors:
        return []
    design = np.concatenate([levels for levels, _ in factors], axis=1)
    ridge = np.concatenate([np.full(levels.shape[1], ridge) for levels, ridge in factors])
    effects = np.linalg.solve(design.T @ design + np.diag(ridge), design.T @ (seconds - seconds.mean()))
    return list(np.split(effects, np.cumsum([levels.shape[1] for levels, _ in factors])[:-1]))


def _write(database: Database, target: Target, in_model: Sequence[InModelResult]) -> None:
    """A choice for every kernel that gets another schedule than the one that is best alone, or got one before."""
    key, choices = target_key(target), []
    for result in in_model:
        before = database.choice(SCHEDULE, result.workload, key, threads_of(target))
        if result.chosen != (result.alone if before is None else before.value):
            facts = {"pass_name": SCHEDULE, "key": result.workload, **place_of(target)}
            choices.append(Choice(**facts, value=result.chosen, seconds=result.seconds))
    database.append(choices)
