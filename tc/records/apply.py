"""What a tuning database says about the kernels of a model that is being compiled.

A record is advice: one that does not replay on the kernel at hand, whatever the reason, leaves a note, and the kernel gets its default.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tc.errors import ScheduleError, TcError, UserError
from tc.ir.loop import PrimFunc
from tc.records.database import Database
from tc.records.record import DEFAULT, SCHEDULE, Record, target_key, threads_of
from tc.schedule.canonical import canonical_names, workload_key
from tc.schedule.knobs import Knob, Value
from tc.schedule.rules import Scheduled
from tc.schedule.step import PRIMITIVES, Step, Trace
from tc.target import Target

STEP_LIMIT = 4096
"""No schedule has more steps; one from a file that does is not tried."""
_NUMBER_LIMIT = 1 << 31
_TEXT_LIMIT = 256
# What a primitive may still raise beside its own errors, when a file makes it do what no rule does.
_UNFORESEEN = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)


class TunedSchedules:
    """The best known schedules and choices for a target and a number of threads: a `tc.codegen.kernels.TunedDecisions`.

    `notes` says, one line each, which kernels have records that could not be used, and why. `applied` are the workloads that were
    scheduled by a record.
    """

    def __init__(self, database: Database, target: Target, threads: int) -> None:
        self.database = database
        self.notes: list[str] = []
        self.applied: set[str] = set()
        self._target = target_key(target)
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
            return knob.default
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
            return Scheduled(trace.apply(canonical_names(func)), record.rule, trace)
        except (TcError, *_UNFORESEEN) as error:
            self._note(func.name, error)
            return None

    def summary(self) -> list[str]:
        """`notes`, and a line on records that were made for other machines, threads or versions, if there are any."""
        ignored = str(self.database.ignored(self._target, self._threads))
        return [*self.notes, *([f"{self.database.path}: records that do not count here: {ignored}"] if ignored else [])]

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


def open_tuned(path: object, target: Target) -> TunedSchedules:
    """What a tuning database knows for this target and its number of threads. UserError when there is none at `path`."""
    if not isinstance(path, (str, os.PathLike)):
        raise UserError(f"tune is a {type(path).__name__}, must be a time budget such as '10m' or the path of a tuning database")
    if not Path(path).is_file():
        raise UserError(f"tune: there is no tuning database {os.fspath(path)!r}; tc tune makes one")
    return TunedSchedules(Database(Path(path), create=False), target, threads_of(target))


def state_of(path: str | os.PathLike[str]) -> tuple[str, int, int]:
    """What changes when a database does: a module that was compiled with other records is another module."""
    found = Path(path).stat()
    return str(Path(path).resolve()), found.st_size, found.st_mtime_ns


def check_trace(trace: Trace) -> None:
    """ScheduleError unless every step has arguments of the types that its primitive takes, of sizes that a schedule may have."""
    if len(trace.steps) > STEP_LIMIT:
        raise ScheduleError(f"it has {len(trace.steps)} steps, {STEP_LIMIT} are allowed")
    for step in trace.steps:
        _check_step(step)


def _check_step(step: Step) -> None:
    signature, types = _signature_of(step.primitive)
    try:
        given = signature.bind(None, *step.arguments).arguments
    except TypeError as error:
        raise ScheduleError(f"{step.primitive}: {error}") from None
    for name, value in list(given.items())[1:]:
        if not _is_of_type(value, types[name]):
            raise ScheduleError(f"{step.primitive}: {name} is {str(value)[:60]!r}, which it does not take")


@cache
def _signature_of(primitive: str) -> tuple[inspect.Signature, dict[str, Any]]:
    if primitive not in PRIMITIVES:
        raise ScheduleError(f"there is no primitive {primitive[:60]!r}")
    run = PRIMITIVES[primitive]
    return inspect.signature(run), get_type_hints(run)


def _is_of_type(value: object, type_: Any) -> bool:
    """Whether `value`, from a step, is a `type_`: a plain type, a union, or a sequence. True is no number here."""
    if get_origin(type_) in (Union, UnionType):
        return any(_is_of_type(value, each) for each in get_args(type_))
    if get_origin(type_) is Sequence:
        (of,) = get_args(type_)
        return isinstance(value, tuple) and all(_is_of_type(item, of) for item in value)
    match value:
        case str():
            return type_ is str and len(value) <= _TEXT_LIMIT and value.isprintable()
        case bool() | None:
            return type_ is type(value)
        case int() | float():
            return type_ is type(value) and abs(value) < _NUMBER_LIMIT
    return False
