"""What a tuning database says about the kernels of a model that is being compiled.

A record is advice: one that does not replay on the kernel at hand, whatever the reason, leaves a note, and the kernel gets its default.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from tc.codegen.kernels import finish_scheduled
from tc.cost.device_estimate import exceeded
from tc.cost.device_work import device_work
from tc.errors import DatabaseError, ScheduleError, TcError
from tc.ir.loop import PrimFunc
from tc.records.database import Database
from tc.records.record import DEFAULT, SCHEDULE, Record, target_key, threads_of
from tc.schedule.canonical import canonical_names, workload_key
from tc.schedule.knobs import Knob, Value
from tc.schedule.rules import Scheduled
from tc.schedule.step import Trace
from tc.target import Target

STEP_LIMIT = 4096
"""No schedule has more steps; one from a file that does is not tried."""
# What a primitive may still raise beside its own errors, when a file makes it do what no rule does.
_UNFORESEEN = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)


class TunedSchedules:
    """The best known schedules and choices for a target and a number of threads: a `tc.codegen.kernels.TunedDecisions`.

    `notes` says, one line each, which kernels have records that could not be used, and why. `applied` are the workloads that were
    scheduled by a record. `key`: of the target that the records were made for, by default that of `target`. `others`: asked about what
    this database does not know.
    """

    def __init__(
        self, database: Database, target: Target, threads: int, *, key: str | None = None, others: TunedSchedules | None = None
    ) -> None:
        self.database = database
        self.notes: list[str] = []
        self.applied: set[str] = set()
        self.others = others
        self._for = target
        self._target = target_key(target) if key is None else key
        self._threads = threads

    def record(self, workload: str, variant: str | None = None) -> Record | None:
        """What was decided for a workload inside a model, else its fastest verified record, of any variant if none is given.

        None when there is no record, or the default schedule was decided for.
        """
        decided = self.choice(SCHEDULE, workload)
        if decided == DEFAULT:
            return None
        if decided is not None:
            record = self.database.verified(workload, self._target, self._threads, variant, str(decided))
            if record is not None:
                return record
        return self.database.best(workload, self._target, self._threads, variant)

    def find(self, workload: str, variant: str | None = None) -> Trace | None:
        """The schedule of that record; None when there is none, or it is not one of this schedule language (and then a note)."""
        record = self.record(workload, variant)
        return None if record is None else self._trace(record, record.task or workload)

    def choice(self, pass_name: str, key: str) -> Value | None:
        """What was decided for the node with workload `key`."""
        found = self.database.choice(pass_name, key, self._target, self._threads)
        return None if found is None else found.value

    def decide(self, knob: Knob) -> Value:
        """What was decided for the knob's node; the pass's own answer when nothing was, or, with a note, nothing that it can do."""
        value = self.choice(knob.name, knob.key)
        if value is None or value == DEFAULT:
            return knob.default if self.others is None else self.others.decide(knob)
        for option in knob.options:
            if option == value and type(option) is type(value):
                return option
        options = ", ".join(map(str, knob.options))
        self.notes.append(f"{knob.node}: {knob.name} shall be {value}, but can be {options}; it is {knob.default}")
        return knob.default

    def schedule(self, func: PrimFunc, workload: str | None = None, variant: str | None = None) -> Scheduled | None:
        """`func`, its names made canonical, scheduled as in the best record of its workload; `workload_key(func)` if none is given.

        None when there is no record, or, with a note, when it does not replay.
        """
        workload = workload_key(func) if workload is None else workload
        record = self.record(workload, variant)
        if record is None and self.others is not None:
            return self.others.schedule(func, workload, variant)
        scheduled = None if record is None else self.replay(func, record)
        if scheduled is not None:
            self.applied.add(workload)
        return scheduled

    def replay(self, func: PrimFunc, record: Record) -> Scheduled | None:
        """`func`, its names made canonical, scheduled as in a record of its workload; None, with a note, when that does not replay."""
        trace = self._trace(record, func.name)
        if trace is None:
            return None
        try:
            made = Scheduled(trace.apply(canonical_names(func)), record.rule, trace)
            problem = self._misfit(made.func)
        except (TcError, *_UNFORESEEN) as error:
            self._note(func.name, error)
            return None
        if problem is not None:
            self._note(func.name, problem)
            return None
        return made

    def _misfit(self, func: PrimFunc) -> str | None:
        """Why a device cannot run a schedule, which may be one of a larger device; None when it can."""
        device = self._for.device
        if device is None:
            return None
        problems = (exceeded(launch, device) for launch in device_work(finish_scheduled(func, self._for), {}))
        return next((problem for problem in problems if problem is not None), None)

    def summary(self) -> list[str]:
        """`notes`, and a line on records that were made for other machines, threads or versions, if there are any."""
        ignored = str(self.database.ignored(self._target, self._threads))
        others = [] if self.others is None else self.others.notes
        return [*self.notes, *others, *([f"{self.database.path}: records that do not count here: {ignored}"] if ignored else [])]

    def _trace(self, record: Record, name: str) -> Trace | None:
        try:
            trace = record.parse_trace()
            check_trace(trace)
        except TcError as error:
            self._note(name, error)
            return None
        return trace

    def _note(self, name: str, why: object) -> None:
        text = str(why).strip() or type(why).__name__
        self.notes.append(f"{name}: its tuned schedule does not replay, so it has the default one: {' '.join(text.split())}")


SHIPPED = Path(__file__).with_name("shipped")
"""Records that come with tc: a database for each architecture, KIND-ARCH.jsonl, made by `tc tune` on a device of it, joined and made
smaller by `tc db merge` and `tc db prune`."""


def shipped_schedules(target: Target) -> TunedSchedules | None:
    """What comes with tc for devices of the target's architecture; None where nothing does.

    Of several products those records count that were made on the target's own, else those of the product with most.
    """
    path = shipped_path(target)
    if path is None:
        return None
    database = Database(path, create=False)
    made_on = Counter(record.target for record in database.records(threads=threads_of(target)) if record.verified)
    key = target_key(target)
    if key not in made_on and made_on:
        key = max(sorted(made_on), key=made_on.__getitem__)
    return TunedSchedules(database, target, threads_of(target), key=key)


def shipped_path(target: Target) -> Path | None:
    """The database that comes with tc for a target; None where there is none."""
    if target.device is None:
        return None
    path = SHIPPED / f"{target.device.kind}-{target.device.arch}.jsonl"
    return path if path.is_file() else None


def tuned_for(path: object, target: Target) -> TunedSchedules | None:
    """What is known for a target by the database at `path`, if one is given, and by what comes with tc."""
    return shipped_schedules(target) if path is None else open_tuned(path, target)


def open_tuned(path: object, target: Target) -> TunedSchedules:
    """What a tuning database knows for this target and its number of threads, and what comes with tc for what it does not know.

    UserError when there is none at `path`.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise DatabaseError(f"tune is a {type(path).__name__}, must be a time budget such as '10m' or the path of a tuning database")
    if not Path(path).is_file():
        raise DatabaseError(f"tune: there is no tuning database {os.fspath(path)!r}; tc tune makes one")
    return TunedSchedules(Database(Path(path), create=False), target, threads_of(target), others=shipped_schedules(target))


def states_of(path: str | os.PathLike[str] | None, target: Target) -> list[tuple[str, int, int]]:
    """What changes when a database does that `tuned_for` asks: a module that was compiled with other records is another module."""
    found = [(each, Path(each).stat()) for each in (path, shipped_path(target)) if each is not None]
    return [(str(Path(each).resolve()), stat.st_size, stat.st_mtime_ns) for each, stat in found]


def check_trace(trace: Trace) -> None:
    """ScheduleError unless every step has arguments that its primitive takes, and there are no more steps than a schedule may have."""
    if len(trace.steps) > STEP_LIMIT:
        raise ScheduleError(f"it has {len(trace.steps)} steps, {STEP_LIMIT} are allowed")
    for step in trace.steps:
        step.check()
