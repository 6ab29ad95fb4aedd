"""What is known of a task while it is tuned."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tc.autotune.cost_model.learned import TaskModel
from tc.autotune.runner import Job, Measurement
from tc.autotune.search.diversity import Point
from tc.autotune.search.policy import SearchPolicy
from tc.autotune.search.scheduler import Curve
from tc.autotune.search.space import Candidate, Space
from tc.autotune.task import Task
from tc.records.record import Record, place_of
from tc.schedule.knobs import Value


@dataclass
class TaskState:
    """A task at work. `measured`: ratios by key; `best`: the verified one; `best_ratio`: of any trial."""

    task: Task
    space: Space
    default: Candidate
    policy: SearchPolicy[Candidate]
    model: TaskModel | None
    curve: Curve
    default_seconds: float = math.nan
    measured: dict[str, float] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    best: Candidate | None = None
    best_verified: float = 1.0
    verified: dict[str, float] = field(default_factory=dict)  # best verified ratio by variant
    scale: dict[str, float] = field(default_factory=dict)  # what the default takes, in seconds of the verified records of a variant
    rejected: set[str] = field(default_factory=set)  # failed, wrong, or measured again and not better
    failed: set[str] = field(default_factory=set)  # failed or wrong when they were checked
    kept: set[str] = field(default_factory=set)  # verified
    best_ratio: float = 1.0
    failures: Counter[str] = field(default_factory=Counter)
    trials: int = 0
    resumed: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)
    since_check: int = 0
    paces: list[tuple[float, float, float]] = field(default_factory=list)  # seconds of proposing and measuring, effort, by batch
    reference: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = field(default_factory=dict)
    past: list[tuple[Record, dict[str, Value]]] = field(default_factory=list)  # of earlier runs, with the points
    suggested: set[Point] = field(default_factory=set)
    is_begun: bool = False
    reason: str = ""

    def job(self, candidate: Candidate, effort: float = 1.0) -> Job:
        """To time a candidate in turns with the default."""
        workload, reference = self.task.workload(candidate.variant), self.task.workload(self.default.variant)
        return Job(workload, candidate.trace.to_json(), self.default.trace.to_json(), reference, effort)

    def record(self, candidate: Candidate, found: Measurement, trial: int, *, verified: bool = False) -> Record:
        """What the database keeps of a measurement."""
        return Record(
            workload=self.task.variants[candidate.variant].key,
            variant=candidate.variant,
            **place_of(self.task.target),
            task=self.task.name,
            rule=candidate.rule,
            point=candidate.point,
            dims=tuple(self.task.dims.items()),
            trace=candidate.trace.to_json(),
            seconds=found.seconds,
            low=found.low,
            high=found.high,
            ratio=found.ratio,
            error=found.error,
            detail=found.detail,
            verified=verified,
            trial=trial,
        )
