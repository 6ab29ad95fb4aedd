"""The loop: batches of candidates, measured, learned from and written down, task by task, until time is over or nothing is left to gain."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tc.autotune.cost_model.learned import SharedModel, TaskModel
from tc.autotune.cost_model.models import AnalyticCost, Cost, RandomCost, RankCost, RegressionCost
from tc.autotune.cost_model.transfer import Precedent, precedents_of, suggestions, teach
from tc.autotune.events import (
    BatchMeasured,
    Event,
    TaskStarted,
    TaskStopped,
    TuningFinished,
    TuningStarted,
)
from tc.autotune.runner import Measurement, Runner
from tc.autotune.search.diversity import Point
from tc.autotune.search.limits import refuse
from tc.autotune.search.policy import EvolutionarySearch, ModelSearch, RandomSearch, SearchPolicy
from tc.autotune.search.scheduler import Curve, first_gain, next_task, remaining_ms
from tc.autotune.search.space import VARIANT, Candidate
from tc.autotune.state import TaskState
from tc.autotune.task import Task
from tc.autotune.verification import MOST_REJECTED, WORTH_CHECKING, Verifier
from tc.errors import MeasureError, ScheduleError, TuningError
from tc.records.database import Database
from tc.records.record import Choice, Record, place_of, target_key, threads_of
from tc.records.workloads import WorkloadStore
from tc.runtime.collector import rare_collections
from tc.schedule.knobs import Value

BATCH = 16
"""Candidates that are measured together."""

SMALL_BATCH = 8
"""The same while every batch teaches much."""

SMALL_BATCHES_UNTIL = 32
"""Trials of a task with small batches."""

CHECK_SECONDS = 0.5
"""About what a check takes."""

TRIAL_SECONDS = 0.3
"""About what a trial takes, before any was made."""

FIRST_EFFORT, LEAST_EFFORT = 0.5, 0.2
"""Of a search under a budget of time: in the first batch, and where candidates take long to make and little to measure."""

CHECK_EVERY = 2
"""Batches of a task between two checks of its best."""

RUNNERS_UP_SHARE = 0.05
"""The part of the budget that is kept for them."""

SIZE_SAMPLES = 6
"""Ways through the rules from which the number of points is guessed: for people to read, so it may be rough."""

LEARNING_SHARE = 0.03
"""The part of the budget that may go to learning from records of other models."""

THRESHOLD = 0.005
"""Stop when all batches done once more are expected to save less than this part of the model's time."""

COSTS: dict[str, Callable[[int], Cost]] = {
    "rank": RankCost,
    "regression": RegressionCost,
    "analytic": lambda seed: AnalyticCost(),
    "random": lambda seed: RandomCost(np.random.default_rng(seed)),
}
POLICIES = ("model", "evolutionary", "random")


@dataclass(frozen=True)
class TaskResult:
    """What came of a task. `ratio`: of the verified best to the default; 1 where the default stays. `curve`: (trials, best ratio)."""

    name: str
    calls: int
    default_seconds: float
    best_seconds: float
    ratio: float
    trials: int
    failures: tuple[tuple[str, int], ...]
    variant: str
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class TuningResult:
    """What came of a run. ms: kernels of one run of the model, added up. `remaining_ms`: what as much time again would save."""

    tasks: tuple[TaskResult, ...]
    default_ms: float
    tuned_ms: float
    remaining_ms: float
    reason: str
    seconds: float
    importance: tuple[tuple[str, float], ...] = ()


class Tuner:
    """Tunes tasks. See `run`.

    budget_seconds, trials_per_task: bounds; at least one must be given. `clock` tells seconds. `on_event` is called in this thread.
    cost: "rank", "regression", "analytic" or "random"; policy: "model", "evolutionary" or "random". `from_default`: whether
    searches begin at the default schedules, which are measured in any case.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        runner: Runner,
        database: Database,
        *,
        budget_seconds: float | None = None,
        trials_per_task: int | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        on_event: Callable[[Event], None] | None = None,
        cost: str = "rank",
        policy: str = "model",
        threshold: float = THRESHOLD,
        transfer: bool = True,
        from_default: bool = True,
    ) -> None:
        if not tasks:
            raise TuningError("nothing to tune: there are no tasks")
        if budget_seconds is None and trials_per_task is None:
            raise TuningError("tuning needs a bound: a budget of time, or a number of trials")
        if budget_seconds is not None and budget_seconds <= 0:
            raise TuningError(f"a budget of {budget_seconds:g} seconds leaves no time to measure anything")
        if trials_per_task is not None and trials_per_task < 1:
            raise TuningError(f"trials per task is {trials_per_task}, must be at least 1")
        if cost not in COSTS or policy not in POLICIES:
            raise TuningError(f"cost is one of {', '.join(COSTS)}, policy one of {', '.join(POLICIES)}; found {cost!r} and {policy!r}")
        self._runner, self._database, self._clock = runner, database, clock
        self._budget, self._trials, self._seed = budget_seconds, trials_per_task, seed
        self._emit = on_event or (lambda event: None)
        self._threshold, self._transfer, self._policy, self._from_default = threshold, transfer, policy, from_default
        self._shared = SharedModel(partial(COSTS[cost], seed))
        self._store = WorkloadStore(database.path)
        self._verifier = Verifier(runner, database, self._emit, self._now)
        self._precedents: list[Precedent] = []  # of other models
        self._tasks = list(tasks)
        self._states: list[TaskState] = []
        self._start = 0.0
        self._spent, self._measured = 0.0, 0  # seconds of all batches, and their candidates

    # -- the loop

    @rare_collections()
    def run(self) -> TuningResult:
        """Tune until the budget is over, every task has had its trials, or little is left to gain.

        Ctrl-C ends it with what was found, and so does a runner that can measure no more. MeasureError when it never could.
        """
        self._start = self._clock()
        self._emit(TuningStarted(tuple(task.name for task in self._tasks), self._budget))
        try:
            self._prepare()
            reason = self._loop()
            self._check_all()
        except KeyboardInterrupt:
            reason = "interrupted"
        except MeasureError as error:
            if not self._states:
                raise
            reason = f"nothing can be measured any more: {error.text}"
        self._decide_variants()
        return self._finish(reason)

    def _loop(self) -> str:
        while True:
            if self._is_over():
                return "the time is over"
            curves = [state.curve for state in self._states]
            chosen = next_task(curves)
            if chosen is None:
                return "every task is done"
            total = sum(state.best_verified * state.curve.weight_ms for state in self._states)
            expected = remaining_ms(curves)
            if all(curve.trials for curve in curves if curve.is_open) and expected < self._threshold * total:
                return f"as many batches again are expected to save {expected:.3f} ms of {total:.2f} ms, less than {self._threshold:.1%}"
            self._step(self._states[chosen])

    def _is_over(self) -> bool:
        return self._room() < 1

    def _room(self) -> int:
        """How many candidates there is time for, with a last look at what seems best; at most a batch."""
        if self._budget is None:
            return BATCH
        waiting = sum(state.since_check > 0 for state in self._states)
        left = (1 - RUNNERS_UP_SHARE) * self._budget - self._now() - waiting * CHECK_SECONDS
        trial_seconds = self._spent / self._measured if self._measured else TRIAL_SECONDS
        return min(BATCH, int(left / trial_seconds))

    def _now(self) -> float:
        return self._clock() - self._start

    def _prepare(self) -> None:
        """Time the defaults, read what the database knows, and teach the shared model."""
        rng = np.random.default_rng(self._seed)
        streams = [np.random.default_rng(rng.integers(1 << 62)) for _ in self._tasks]
        known = self._known_records()
        all_defaults = [task.space().default() for task in self._tasks]
        if self._transfer:
            self._learn_from_others(known, {default.rule for default in all_defaults})
        for start in range(0, len(self._tasks), BATCH):
            tasks, defaults = self._tasks[start : start + BATCH], all_defaults[start : start + BATCH]
            numbers = range(start, start + len(tasks))
            states = [self._make_state(*each) for each in zip(tasks, defaults, streams[start:], numbers)]
            in_time = self._budget is None or self._now() < self._budget / 2
            found = self._runner.measure([state.job(state.default) for state in states]) if in_time else [None] * len(states)
            for state, measurement in zip(states, found, strict=True):
                self._states.append(state)
                self._start_task(state, measurement, known)

    def _learn_from_others(self, known: dict[str, list[Record]], rules: set[str]) -> None:
        """What the database knows of other workloads: points to begin with, and a shared model that has seen them."""
        own = {variant.key for task in self._tasks for variant in task.variants.values()}
        others = {key: records for key, records in known.items() if key not in own}
        self._precedents = precedents_of(others)
        if self._policy == "model":
            latest = math.inf if self._budget is None else self._now() + LEARNING_SHARE * self._budget
            teach(self._shared, others, self._store, self._tasks[0].target, rules, lambda: self._now() > latest)

    def _start_task(self, state: TaskState, found: Measurement | None, known: dict[str, list[Record]]) -> None:
        """Begin with what measuring its default has given; None if there was no time to."""
        if found is None:
            self._stop(state, "there was no time to measure it")
            return
        if found.error is not None:
            self._stop(state, f"its default cannot be measured: {found.error}: {found.detail}")
            return
        state.default_seconds = found.reference_seconds
        state.curve.weight_ms = 1e3 * state.task.calls * found.reference_seconds
        for variant in state.task.variants.values():
            self._store.put(variant.key, variant.func)
        self._resume(state, known)

    def _make_state(self, task: Task, default: Candidate, rng: np.random.Generator, number: int) -> TaskState:
        space = task.space()
        explore = getattr(self._runner, "explore", None)
        if explore is not None and self._policy == "model":
            space.helper = partial(explore, space, task.dims)
        model = TaskModel(task.key, task.target, task.dims, self._shared, self._seed + number)
        unfit = partial(refuse, dims=task.dims)
        policy: SearchPolicy[Candidate]
        if self._policy == "random":
            policy = RandomSearch(space, rng, unfit, from_default=self._from_default)
        elif self._policy == "evolutionary":
            policy = EvolutionarySearch(space, rng, unfit, from_default=self._from_default)
        else:
            policy = ModelSearch(space, model, rng, unfit, from_default=self._from_default)
        return TaskState(task, space, default, policy, model if self._policy == "model" else None, Curve(0.0))

    def _step(self, state: TaskState) -> None:
        """One batch of a task."""
        before = self._now()
        if self._trials is not None and state.trials >= self._trials:
            self._stop(state, f"{state.trials} trials are done")
            return
        if not state.is_begun:
            self._begin(state)
        if isinstance(state.policy, ModelSearch) and self._transfer:
            self._shared.refit(state.task.key)
            state.policy.suggest(dict(point) for point in self._suggestions(state))
        most = min(self._room(), SMALL_BATCH if state.trials < SMALL_BATCHES_UNTIL else BATCH)
        if isinstance(state.policy, ModelSearch) and self._budget is not None:
            state.policy.effort = self._effort(state)
        start = self._now()
        batch = state.policy.propose(most if self._trials is None else min(most, self._trials - state.trials))
        proposing = self._now() - start
        if not batch:
            self._stop(state, "there are no more schedules" if state.trials > 1 else "it has one schedule")
            return
        found = self._runner.measure([state.job(candidate) for candidate in batch])
        state.paces.append((proposing, self._now() - start - proposing, getattr(state.policy, "effort", 1.0)))
        self._take(state, batch, found)
        state.since_check += 1
        if state.since_check >= CHECK_EVERY:
            self._check(state)
        seconds = self._now() - before
        self._spent, self._measured = self._spent + seconds, self._measured + len(batch)
        state.curve.add(min(state.best_verified, state.best_ratio), seconds, len(batch))
        ratios = tuple(m.ratio for m in found)
        errors = Counter(m.error for m in found if m.error is not None)
        accuracy = state.model.accuracy if state.model is not None else math.nan
        gain = state.curve.gain_ms(max(state.curve.batches, 1), first_gain([each.curve for each in self._states]))
        name, now, kinds = state.task.name, self._now(), tuple(errors.items())
        self._emit(BatchMeasured(name, now, state.trials, ratios, kinds, state.best_ratio, accuracy, gain))
        failed = next((m for m in found if m.error is not None), None)
        if failed is not None and state.failures.total() >= max(state.trials - 1, MOST_REJECTED):  # all but the default
            self._stop(state, f"no candidate of {state.trials} can be measured: {failed.error}: {failed.detail}")
        elif self._trials is not None and state.trials >= self._trials:
            self._stop(state, f"{state.trials} trials are done")

    def _effort(self, state: TaskState) -> float:
        """With how much effort proposing is expected to take as long as measuring: as with this task's last batches, or with all tasks'."""
        paces = state.paces[-3:] or [pace for other in self._states for pace in other.paces]
        if not paces:
            return FIRST_EFFORT
        proposing = sum(seconds / effort for seconds, _, effort in paces)
        measuring = sum(seconds for _, seconds, _ in paces)
        return min(max(measuring / max(proposing, 1e-9), LEAST_EFFORT), 1.0)

    def _suggestions(self, state: TaskState) -> list[Point]:
        """What was found for similar tasks since the task had its last batch."""
        mates = [
            Precedent(other.best.rule, other.default.point, other.best.point, other.best_verified)
            for other in self._states
            if other is not state and other.best is not None
        ]
        found = suggestions(state.default.rule, state.default.point, [*mates, *self._precedents])
        fresh = [point for point in found if point not in state.suggested]
        state.suggested.update(fresh)
        return fresh

    def _begin(self, state: TaskState) -> None:
        """What takes long, and only for tasks that get time: their size, and the candidates of earlier runs."""
        state.is_begun = True
        self._emit(TaskStarted(state.task.name, self._now(), state.default_seconds, state.space.size(SIZE_SAMPLES), state.resumed))
        known: dict[str, tuple[Candidate, float]] = {}
        for record, point in state.past:
            try:
                candidate = state.space.at(point)
            except ScheduleError:
                continue
            if candidate.trace.to_json() == record.trace:
                known[candidate.key] = candidate, record.ratio
                if record.verified:
                    state.kept.add(candidate.key)
        for candidate, ratio in known.values():
            state.candidates[candidate.key] = candidate
            state.measured[candidate.key] = ratio
        if known:
            ratios = np.array([ratio for _, ratio in known.values()])
            state.policy.observe([candidate for candidate, _ in known.values()], ratios * state.default_seconds)

    def _take(self, state: TaskState, batch: Sequence[Candidate], found: Sequence[Measurement]) -> None:
        """Write down and learn what was measured."""
        self._database.append([state.record(c, m, state.trials + k + 1) for k, (c, m) in enumerate(zip(batch, found, strict=True))])
        state.trials += len(batch)
        state.failures.update(m.error for m in found if m.error is not None)
        for candidate, measurement in zip(batch, found, strict=True):
            state.measured[candidate.key] = measurement.ratio
            state.candidates[candidate.key] = candidate
            if measurement.ratio < state.best_ratio and candidate.key not in state.rejected:
                state.best_ratio = measurement.ratio
        seconds = np.array([m.ratio for m in found]) * (state.default_seconds if math.isfinite(state.default_seconds) else 1.0)
        state.policy.observe(batch, seconds)
        state.history.append((state.trials, state.best_ratio))

    def _stop(self, state: TaskState, reason: str) -> None:
        state.curve.is_open = False
        state.reason = reason
        self._emit(TaskStopped(state.task.name, self._now(), reason))

    # -- what is kept

    def _check_all(self) -> None:
        for state in self._states:
            if math.isfinite(state.default_seconds) and state.since_check:
                self._check(state)
        latest = math.inf if self._budget is None else self._now() + RUNNERS_UP_SHARE * self._budget
        self._verifier.check_runners_up(self._states, latest)

    def _check(self, state: TaskState) -> None:
        if not state.is_begun:
            self._begin(state)
        self._verifier.check(state)

    def _decide_variants(self) -> None:
        """Tell graph passes which way of lowering each node was fastest: what all tasks with the same knob take together."""
        totals: dict[tuple[str, str], dict[Value, float]] = {}
        for state in self._states:
            knobs = [v.knob for v in state.task.variants.values() if v.knob is not None]
            if not knobs or not math.isfinite(state.default_seconds):
                continue
            own = totals.setdefault(knobs[0].place, {})
            for name, variant in state.task.variants.items():
                answer: Value = knobs[0].default if variant.knob is None else variant.answer  # type: ignore[assignment]
                ratio = min(state.verified.get(name, math.inf), 1.0 if variant.knob is None else math.inf)
                own[answer] = own.get(answer, 0.0) + ratio * state.curve.weight_ms * 1e-3
        target, entries = target_key(self._tasks[0].target), []
        for (pass_name, key), seconds in totals.items():
            value = min(seconds, key=seconds.__getitem__)
            threads = threads_of(self._tasks[0].target)
            known = self._database.choice(pass_name, key, target, threads)
            if known is None or known.value != value:
                place = place_of(self._tasks[0].target)
                entries.append(Choice(pass_name=pass_name, key=key, **place, value=value, seconds=tuple(seconds.items())))
        self._database.append(entries)

    def _known_records(self) -> dict[str, list[Record]]:
        """What the database holds for this target and number of threads, by workload."""
        known: dict[str, list[Record]] = {}
        target = self._tasks[0].target
        for record in self._database.records(target=target_key(target), threads=threads_of(target)):
            known.setdefault(record.workload, []).append(record)
        return known

    def _resume(self, state: TaskState, known: dict[str, list[Record]]) -> None:
        """Go on where earlier runs have stopped: the curve, and the verified best."""
        best = math.inf
        ratios: dict[str, float] = {}
        for name, variant in state.task.variants.items():
            for record in known.get(variant.key, ()):
                point = {**dict(record.point), **({VARIANT: name} if len(state.task.variants) > 1 else {})}
                state.past.append((record, point))
                ratios[record.schedule_key] = record.ratio  # the last word on a schedule: checks take longer than trials
                if record.verified and record.ratio < state.verified.get(name, math.inf):
                    state.verified[name] = record.ratio
                    state.scale[name] = record.seconds / record.ratio
                if record.verified and record.ratio < min(best, state.best_verified):
                    with contextlib.suppress(ScheduleError):
                        candidate = state.space.at(point)
                        if candidate.trace.to_json() == record.trace:
                            state.best, best = candidate, record.ratio
        if not ratios:
            return
        state.best_verified = min(state.best_verified, best)
        state.trials = state.resumed = len(ratios)
        state.best_ratio = min(1.0, *ratios.values())
        for ratio in np.minimum.accumulate([1.0, *ratios.values()])[1:]:
            state.curve.add(max(float(ratio), state.best_verified), TRIAL_SECONDS, 1)
        state.history.append((state.trials, state.best_ratio))
        state.since_check = int(state.best_ratio <= WORTH_CHECKING * state.best_verified)

    # -- the end

    def _finish(self, reason: str) -> TuningResult:
        results = []
        for state in self._states:
            seconds = state.default_seconds
            best = seconds * state.best_verified
            variant = state.best.variant if state.best is not None else state.default.variant
            failures = tuple(state.failures.most_common())
            task, history = state.task, tuple(state.history)
            result = TaskResult(task.name, task.calls, seconds, best, state.best_verified, state.trials, failures, variant, history)
            results.append(result)
        measured = [state for state in self._states if math.isfinite(state.default_seconds)]
        default_ms = sum(state.curve.weight_ms for state in measured)
        tuned_ms = sum(state.curve.weight_ms * state.best_verified for state in measured)
        left = remaining_ms([state.curve for state in measured])
        seconds = self._now()
        self._emit(TuningFinished(seconds, reason, default_ms, tuned_ms, left))
        return TuningResult(tuple(results), default_ms, tuned_ms, left, reason, seconds, self._shared.importance)

