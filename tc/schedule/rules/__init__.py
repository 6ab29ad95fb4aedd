"""Schedule rules: which kind of computation a PrimFunc is, and how its kind is scheduled on a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from tc.errors import ScheduleError
from tc.ir.loop import PrimFunc
from tc.schedule.knobs import Decide, Decision, take_default
from tc.schedule.rules.attention import schedule_attention
from tc.schedule.rules.common import inline_elementwise
from tc.schedule.rules.contraction import schedule_contraction, schedule_convolution
from tc.schedule.rules.gpu import DEVICE_BEFORE_INLINING, DEVICE_RULES
from tc.schedule.rules.reduction import schedule_reduction, schedule_stages
from tc.schedule.rules.scan import schedule_scan
from tc.schedule.rules.spatial import schedule_spatial
from tc.schedule.rules.window import schedule_window
from tc.schedule.rules.winograd import schedule_winograd
from tc.schedule.step import Schedule, Trace
from tc.target import Target

ScheduleRule = Callable[[Schedule, Target], "str | None"]

BEFORE_INLINING = (schedule_attention, schedule_winograd)
"""Tried before anything is inlined into the stages that these rules look for."""

RULES = (schedule_scan, schedule_convolution, schedule_contraction, schedule_window, schedule_reduction, schedule_spatial, schedule_stages)
"""Tried in this order. A rule returns its name when it applies, else None, and then has not changed the schedule. One that finds
on its way that a step is not legal has not applied either."""


@dataclass(frozen=True)
class Scheduled:
    """A scheduled PrimFunc, the rule that made the schedule, the schedule, and what the rule left open and how that was decided. `unfit`:
    rules before it that began and met a step that is not legal, and which: each may be a kernel that is slower than it should be."""

    func: PrimFunc
    rule: str
    trace: Trace
    choices: tuple[Decision, ...] = ()
    unfit: tuple[str, ...] = ()


def apply_rules(
    func: PrimFunc, target: Target, decide: Decide = take_default, without: Mapping[str, str] = MappingProxyType({})
) -> Scheduled:
    """Schedule by the first rule that applies, open questions answered by `decide`; by default the schedule without search. `without`: the
    names of rules that do not, and why.

    ScheduleError when the answers make a schedule that is not legal; the rules' own never do.
    """
    schedule = Schedule(func, decide, target.cores)
    name = _apply(schedule, target, without) or "as written"
    return Scheduled(schedule.func, name, schedule.trace, schedule.choices, tuple(schedule.unfit))


def _apply(schedule: Schedule, target: Target, without: Mapping[str, str]) -> str | None:
    before, after = (BEFORE_INLINING, RULES) if target.device is None else (DEVICE_BEFORE_INLINING, DEVICE_RULES)
    return _first(before, schedule, target, without) or _after_inlining(schedule, target, after, without)


def _after_inlining(schedule: Schedule, target: Target, rules: Iterable[ScheduleRule], without: Mapping[str, str]) -> str | None:
    inline_elementwise(schedule, keeps_tables=target.device is None)
    return _first(rules, schedule, target, without)


def _first(rules: Iterable[ScheduleRule], schedule: Schedule, target: Target, without: Mapping[str, str]) -> str | None:
    """The name of the first of the rules that applies."""

    def apply(rule: ScheduleRule) -> str | None:
        name = rule(schedule, target)
        if name is not None and name in without:
            raise ScheduleError(without[name])
        return name

    made = (schedule.attempt(partial(apply, rule), rule.__name__.removeprefix("schedule_")) for rule in rules)
    return next((name for name in made if name is not None), None)
