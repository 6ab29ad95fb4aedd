"""The schedules of a tuning report: the loops of a task's best schedule beside those of its default, and the knobs that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tc.autotune.report.facts import TaskFacts, Winner
from tc.autotune.task import Task
from tc.errors import ScheduleError, TcError
from tc.ir.loop import PrimFunc
from tc.ir.printer import print_ir
from tc.records.apply import check_trace
from tc.schedule.canonical import canonical_names
from tc.schedule.knobs import Value

# What else a primitive may raise when a record makes it do what no rule does.
_UNFORESEEN = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)

Difference = tuple[str, Value | None, Value | None]
"""A knob, the default's answer and the best schedule's; None where it was not asked."""


@dataclass(frozen=True)
class ScheduleComparison:
    """A task's default schedule and its best one as text; `problem` says why one of them is None.

    `steps`: those of the best one, where they are readable.
    """

    default: str | None
    best: str | None
    knobs: tuple[Difference, ...]
    steps: tuple[str, ...]
    problem: str = ""


def compare(facts: TaskFacts) -> ScheduleComparison:
    """What the tuner changed about a task that has a winner. Never raises: what cannot be shown is said in `problem`."""
    winner, task = facts.winner, facts.task
    assert winner is not None, "a task with a verified schedule"
    answers, steps = tuple((name, None, value) for name, value in winner.point), _steps_of(winner)
    if task is None:
        return ScheduleComparison(None, None, answers, steps, "The program is not at hand, only its records are.")
    try:
        default = task.space().default()
        default_text = print_ir(default.func)
    except (TcError, *_UNFORESEEN) as error:
        return ScheduleComparison(None, None, answers, steps, f"The default schedule cannot be made: {_said(error)}")
    knobs = _differences(dict(default.point), dict(winner.point))
    try:
        best = print_ir(_replayed(task, winner))
    except (TcError, *_UNFORESEEN) as error:
        return ScheduleComparison(default_text, None, knobs, steps, f"The best schedule no longer replays: {_said(error)}")
    return ScheduleComparison(default_text, best, knobs, steps)


def _replayed(task: Task, winner: Winner) -> PrimFunc:
    """The scheduled program: by its record's trace, or, without a record, by its answers, which must lead there still."""
    if winner.record is None:
        candidate = task.space().at(dict(winner.point))
        if candidate.point != winner.point:
            raise ScheduleError("the rules ask other questions now")
        return candidate.func
    names = [name for name, variant in task.variants.items() if variant.key == winner.record.workload]
    if not names:
        raise ScheduleError(f"there is no variant '{winner.variant}' of this task")
    trace = winner.record.parse_trace()
    check_trace(trace)
    return trace.apply(canonical_names(task.variants[names[0]].func))


def _steps_of(winner: Winner) -> tuple[str, ...]:
    if winner.record is None:
        return ()
    try:
        trace = winner.record.parse_trace()
        check_trace(trace)
    except ScheduleError:
        return ()
    return tuple(map(str, trace.steps))


def _differences(default: Mapping[str, Value], best: Mapping[str, Value]) -> tuple[Difference, ...]:
    names = dict.fromkeys((*default, *best))
    return tuple((name, default.get(name), best.get(name)) for name in names if default.get(name) != best.get(name))


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
