"""What the records of a database add up to, task by task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tc.records.record import WRONG, Record


@dataclass(frozen=True, order=True)
class Timing:
    """How fast a schedule was, as in `Record`. The smaller one is the better known: verified before not, then the faster."""

    unverified: bool
    seconds: float
    low: float
    high: float
    ratio: float


@dataclass
class TaskSummary:
    """The trials of one workload on one target, with one number of threads, in one version of the schedule language.

    A schedule that was tried several times counts once, by its best record. `failures` are the schedules that never ran well, by
    the cause of the first time; `wrong` those that gave wrong results at any time, which count as failures whatever else is known.
    """

    task: str
    workload: str
    target: str
    threads: int
    language: int
    timings: dict[str, Timing] = field(default_factory=dict)
    first_errors: dict[str, str] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)

    def add(self, record: Record) -> None:
        self.task = record.task or self.task
        schedule = record.schedule_key
        if record.error is not None:
            self.first_errors.setdefault(schedule, record.error)
            if record.error == WRONG:
                self.wrong.add(schedule)
            return
        timing = Timing(not record.verified, record.seconds, record.low, record.high, record.ratio)
        self.timings[schedule] = min(timing, self.timings.get(schedule, timing))

    @property
    def trials(self) -> int:
        return len(self.timings.keys() | self.first_errors.keys())

    @property
    def ranking(self) -> list[tuple[Timing, str]]:
        """The schedules that ran well, by their keys, best first."""
        return sorted((timing, schedule) for schedule, timing in self.timings.items() if schedule not in self.wrong)

    @property
    def best(self) -> Timing | None:
        return min((timing for schedule, timing in self.timings.items() if schedule not in self.wrong), default=None)

    @property
    def failures(self) -> Counter[str]:
        causes = {s: cause for s, cause in self.first_errors.items() if s not in self.timings}
        return Counter({**causes, **dict.fromkeys(self.wrong, WRONG)}.values())


def summarize(records: Iterable[Record]) -> list[TaskSummary]:
    """A summary for each workload, target, number of threads and schedule language, ordered by the task's name, then by these."""
    found: dict[tuple[str, str, int, int], TaskSummary] = {}
    for record in records:
        place = (record.workload, record.target, record.threads, record.language)
        if place not in found:
            found[place] = TaskSummary(record.task, *place)
        found[place].add(record)
    return sorted(found.values(), key=lambda s: (s.task, s.workload, s.target, s.threads, s.language))
