"""What happens while a tuner works, for those who show it or write it down."""

from __future__ import annotations

from dataclasses import dataclass

from tc.measure.harness import Ratio
from tc.schedule.knobs import Value


@dataclass(frozen=True)
class FormTried:
    """Another answer to a question of a graph pass that concerns more than one kernel, and what came of it.

    `question`: the pass, and what it asks, kept by `key`; `node`: about what. `ratio`: the model's seconds with this answer over those
    with the best ones before it; None where the results differ, and `problem` says how.
    """

    question: str
    key: str
    node: str
    answer: Value
    ratio: Ratio | None
    is_kept: bool
    problem: str | None = None


@dataclass(frozen=True)
class TuningStarted:
    """`tasks` by name in the order of the tuner; `budget_seconds` of wall time, None for no bound."""

    tasks: tuple[str, ...]
    budget_seconds: float | None


@dataclass(frozen=True)
class TaskStarted:
    """The first batch of a task was measured. `default_seconds`: one call untuned. `space_size`: about how many points there are.

    `resumed_trials`: trials of earlier runs that count.
    """

    task: str
    seconds: float
    default_seconds: float
    space_size: float
    resumed_trials: int


@dataclass(frozen=True)
class BatchMeasured:
    """`trials` of the task so far; `ratios` of this batch (candidate over default, inf for failures), `errors` by kind in it.

    `best_ratio` so far. `model_accuracy`: how many pairs of this batch the cost model had put in the right order, NaN before it
    was trained. `predicted_gain_ms`: what the scheduler expects that more time on this task would still save per run of the model.
    """

    task: str
    seconds: float
    trials: int
    ratios: tuple[float, ...]
    errors: tuple[tuple[str, int], ...]
    best_ratio: float
    model_accuracy: float
    predicted_gain_ms: float


@dataclass(frozen=True)
class WinnerChecked:
    """The best of a task was measured again beside the one before it, and its results compared. `problem`: why it is not kept."""

    task: str
    seconds: float
    ratio: float
    low: float
    high: float
    problem: str | None
    variant: str
    point: tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class TaskStopped:
    """No more time goes to a task. `reason` in words."""

    task: str
    seconds: float
    reason: str


@dataclass(frozen=True)
class TuningFinished:
    """`gain_ms`: what verified schedules save per run of the model; `remaining_ms`: what is expected that as much time again would save."""

    seconds: float
    reason: str
    default_ms: float
    tuned_ms: float
    remaining_ms: float


Event = FormTried | TuningStarted | TaskStarted | BatchMeasured | WinnerChecked | TaskStopped | TuningFinished
