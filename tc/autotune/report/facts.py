"""What a report of a tuning run says, as plain values: events, tasks and records put together, nothing drawn yet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tc.autotune.events import (
    BatchMeasured,
    Event,
    FormTried,
    TaskStarted,
    TaskStopped,
    TuningFinished,
    TuningStarted,
    WinnerChecked,
)
from tc.autotune.task import Task
from tc.ir.cached import cached_property
from tc.records.record import WRONG, Record, target_key, threads_of
from tc.schedule.knobs import Value
from tc.schedule.step import LANGUAGE_VERSION

FROM_RECORDS = "This page is made from records alone: how long tuning took and why it stopped is not known."
UNFINISHED = "The run did not come to its end: this is what was known at its last event."


@dataclass(frozen=True)
class Winner:
    """The schedule that a task has now: it was measured again, and its results were compared.

    `ratio` and its quartiles are of its time over the default's. `record` is None when no record of it is at hand.
    """

    ratio: float
    low: float
    high: float
    variant: str
    point: tuple[tuple[str, Value], ...]
    record: Record | None

    @property
    def gain(self) -> float:
        return 1 / self.ratio


@dataclass(frozen=True)
class CurveStep:
    """The whole model at one time of the run: ms per run with the best schedules measured, and with those verified, by then."""

    seconds: float
    measured_ms: float
    verified_ms: float


@dataclass(frozen=True)
class Accuracy:
    """The part of the pairs of one batch that the cost model had put in the right order."""

    seconds: float
    value: float


@dataclass
class TaskFacts:
    """What is known of one task. Numbers that are not known are NaN.

    `ratios`: the trials in their order, time over the default's, inf for failures; the first of them is trial `first_trial`.
    `failures`: by cause. `problems`: why winners were not kept. `records`: those of its workloads, for the run's target and threads.
    """

    name: str
    task: Task | None = None
    nodes: tuple[str, ...] = ()
    calls: int = 1
    default_seconds: float = math.nan
    space_size: float = math.nan
    resumed_trials: int = 0
    trials: int = 0
    first_trial: int = 1
    ratios: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    best_ratio: float = math.inf
    winner: Winner | None = None
    problems: list[str] = field(default_factory=list)
    predicted_gain_ms: float = math.nan
    reason: str = ""
    records: list[Record] = field(default_factory=list)

    @property
    def default_ms(self) -> float:
        """Per run of the model; 0 when not known."""
        return 1e3 * self.calls * self.default_seconds if math.isfinite(self.default_seconds) else 0.0

    @property
    def saved_ms(self) -> float:
        """What its verified schedule saves per run of the model."""
        return self.default_ms * (1 - self.winner.ratio) if self.winner else 0.0

    @property
    def best_seconds(self) -> float:
        """One call of the verified schedule."""
        return self.default_seconds * self.winner.ratio if self.winner else math.nan

    @property
    def num_failures(self) -> int:
        return self.failures.total()


@dataclass
class RunFacts:
    """What is known of a run. `tasks`: the one that saved most first. `left_out`: records that were made for something else.

    `forms`: other forms of the graph that were tried.
    """

    model: str
    target: str
    threads: int
    tasks: list[TaskFacts]
    seconds: float
    budget_seconds: float | None
    default_ms: float
    tuned_ms: float
    remaining_ms: float
    reason: str
    is_from_records: bool
    steps: list[CurveStep]
    accuracies: list[Accuracy]
    left_out: int
    forms: tuple[FormTried, ...] = ()

    @property
    def gain(self) -> float:
        return self.default_ms / self.tuned_ms if self.tuned_ms > 0 else math.nan

    @property
    def trials(self) -> int:
        return sum(task.trials for task in self.tasks)

    @property
    def is_whole_model(self) -> bool:
        """Whether it is known how often a run of the model calls each task; otherwise every task counts once."""
        return all(task.task is not None for task in self.tasks)

    @cached_property
    def tasks_ms(self) -> float:
        """The default time of all tasks."""
        return sum(task.default_ms for task in self.tasks)

    def share(self, task: TaskFacts) -> float:
        """The part of the tasks' default time that a task takes."""
        return task.default_ms / self.tasks_ms if self.tasks_ms > 0 else math.nan

    @property
    def important(self) -> list[TaskFacts]:
        """The tasks by what they saved, or, where that is nothing, by what they take."""
        return sorted(self.tasks, key=lambda task: (-max(task.saved_ms, 0.0), -task.default_ms, task.name))


def gather_facts(model: str, events: Sequence[Event], tasks: Sequence[Task], records: Sequence[Record]) -> RunFacts:
    """Put together what is known. Events say what happened; what they leave open is taken from the records."""
    forms = tuple(event for event in events if isinstance(event, FormTried))
    events = [event for event in events if not isinstance(event, FormTried)]
    target, threads = _where(tasks, records)
    place = (target, threads, LANGUAGE_VERSION)
    usable = [record for record in records if (record.target, record.threads, record.language) == place]
    found = _named_tasks(events, tasks)
    _hand_out(found, usable)
    _follow(found, events)
    for task in found.values():
        _complete(task)
    ends = [event for event in events if isinstance(event, TuningFinished)]
    starts = [event for event in events if isinstance(event, TuningStarted)]
    facts = RunFacts(
        model=model,
        target=target,
        threads=threads,
        tasks=list(found.values()),
        seconds=max((event.seconds for event in events if not isinstance(event, TuningStarted)), default=math.nan),
        budget_seconds=starts[-1].budget_seconds if starts else None,
        default_ms=sum(task.default_ms for task in found.values()),
        tuned_ms=sum(task.default_ms - task.saved_ms for task in found.values()),
        remaining_ms=_finite_sum(task.predicted_gain_ms for task in found.values()),
        reason=UNFINISHED if events else FROM_RECORDS,
        is_from_records=not events,
        steps=[],
        accuracies=_accuracies(events),
        left_out=len(records) - len(usable),
        forms=forms,
    )
    if ends:
        end = ends[-1]
        facts.default_ms, facts.tuned_ms = end.default_ms, end.tuned_ms
        facts.remaining_ms, facts.reason = end.remaining_ms, end.reason
    facts.steps = _steps(facts, events)
    facts.tasks = facts.important
    return facts


def _where(tasks: Sequence[Task], records: Sequence[Record]) -> tuple[str, int]:
    """The key of the target, and threads: those of the tasks; without tasks, those that most records are for."""
    if tasks:
        return target_key(tasks[0].target), threads_of(tasks[0].target)
    places = Counter((record.target, record.threads) for record in records)
    return places.most_common(1)[0][0] if places else ("", 0)


def _named_tasks(events: Sequence[Event], tasks: Sequence[Task]) -> dict[str, TaskFacts]:
    found = {task.name: TaskFacts(task.name, task, task.nodes, task.calls) for task in tasks}
    for event in events:
        match event:
            case TuningStarted(tasks=names):
                pass
            case TuningFinished():
                names = ()
            case _:
                names = (event.task,)
        for name in names:
            found.setdefault(name, TaskFacts(name))
    return found


def _hand_out(found: dict[str, TaskFacts], records: Iterable[Record]) -> None:
    """Give each task its records: those of its workloads, or, where only names are known, those with its name.

    Records of no task make one of their own, unless there are tasks: then they are about another model.
    """
    by_workload = {
        variant.key: task for task in found.values() if task.task is not None for variant in task.task.variants.values()
    }
    is_open = not found
    for record in records:
        task = by_workload.get(record.workload)
        if task is None:
            name = record.task or record.workload
            task = found.setdefault(name, TaskFacts(name)) if is_open else found.get(name)
            if task is None or task.task is not None:
                continue
        task.records.append(record)


def _follow(found: Mapping[str, TaskFacts], events: Iterable[Event]) -> None:
    """Let the events happen."""
    for event in events:
        match event:
            case TaskStarted():
                task = found[event.task]
                task.default_seconds, task.space_size = event.default_seconds, event.space_size
                task.resumed_trials = event.resumed_trials
                task.trials = max(task.trials, event.resumed_trials)
            case BatchMeasured():
                task = found[event.task]
                if not task.ratios:
                    task.first_trial = max(1, event.trials - len(event.ratios) + 1)
                task.ratios += event.ratios
                task.trials = event.trials
                task.failures.update(dict(event.errors))
                task.best_ratio, task.predicted_gain_ms = event.best_ratio, event.predicted_gain_ms
            case WinnerChecked(problem=None) if 0 < event.ratio < math.inf:
                task = found[event.task]
                record = _record_of(task, event)
                task.winner = Winner(event.ratio, event.low, event.high, event.variant, event.point, record)
            case WinnerChecked():
                found[event.task].problems.append(event.problem or "no time was measured")
            case TaskStopped():
                found[event.task].reason = event.reason


def _record_of(task: TaskFacts, event: WinnerChecked) -> Record | None:
    """The best record of the schedule that an event is about."""
    same = [r for r in task.records if r.error is None and (r.variant, r.point) == (event.variant, event.point)]
    return min(same, key=lambda record: (not record.verified, record.seconds), default=None)


def _complete(task: TaskFacts) -> None:
    """Take from the records what no event said."""
    if task.winner is None:
        task.winner = _verified_winner(task)
    if not math.isfinite(task.default_seconds):
        default = [r.seconds / r.ratio for r in task.records if r.error is None]
        task.default_seconds = sorted(default)[len(default) // 2] if default else math.nan
    if task.trials:
        return
    first: dict[str, Record] = {}
    for record in sorted(task.records, key=lambda record: record.trial):
        first.setdefault(record.schedule_key, record)
    task.ratios = [record.ratio for record in first.values()]
    task.trials = len(first)
    task.failures.update(record.error for record in first.values() if record.error is not None)
    task.best_ratio = min(task.ratios, default=math.inf)


def _verified_winner(task: TaskFacts) -> Winner | None:
    """The fastest verified record, unless it was found wrong at another time."""
    wrong = {record.schedule_key for record in task.records if record.error == WRONG}
    good = [r for r in task.records if r.verified and r.error is None and r.schedule_key not in wrong]
    best = min(good, key=lambda record: record.ratio, default=None)
    if best is None or not 0 < best.ratio < math.inf:
        return None
    scale = best.ratio / best.seconds
    return Winner(best.ratio, best.low * scale, best.high * scale, best.variant, best.point, best)


def _accuracies(events: Iterable[Event]) -> list[Accuracy]:
    batches = [event for event in events if isinstance(event, BatchMeasured)]
    return [Accuracy(batch.seconds, batch.model_accuracy) for batch in batches if math.isfinite(batch.model_accuracy)]


def _steps(facts: RunFacts, events: Sequence[Event]) -> list[CurveStep]:
    """The model's time after each event, what is not tuned included; empty when nothing was measured."""
    default_ms = {task.name: task.default_ms for task in facts.tasks}
    measured = dict(default_ms)
    verified = dict(default_ms)
    rest_ms = facts.default_ms - sum(default_ms.values())
    steps = [CurveStep(0.0, facts.default_ms, facts.default_ms)]
    for event in events:
        match event:
            case BatchMeasured():
                if event.best_ratio < 1:
                    measured[event.task] = default_ms[event.task] * event.best_ratio
            case WinnerChecked(problem=None) if 0 < event.ratio < math.inf:
                verified[event.task] = default_ms[event.task] * event.ratio
            case TuningFinished() if math.isfinite(facts.tuned_ms):  # schedules of earlier runs count, too
                last_ms = min(rest_ms + sum(measured.values()), facts.tuned_ms)
                steps.append(CurveStep(event.seconds, last_ms, facts.tuned_ms))
                continue
            case _:
                continue
        best_ms, kept_ms = sum(measured.values()), sum(verified.values())
        steps.append(CurveStep(event.seconds, rest_ms + best_ms, rest_ms + kept_ms))
    is_known = 0 < facts.default_ms < math.inf and steps[-1].seconds > 0
    return steps if is_known and any(isinstance(event, BatchMeasured) for event in events) else []


def _finite_sum(values: Iterable[float]) -> float:
    """The sum of the numbers that are known; NaN when none is."""
    known = [value for value in values if math.isfinite(value)]
    return sum(known) if known else math.nan
