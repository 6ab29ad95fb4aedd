"""What other tasks teach a task: points that were good for similar ones, and rows from which the shared model learns.

Tasks are similar when their rules, asked the same questions, give the same answers of their own: the default is an estimate of what
suits a task, so where the defaults agree, what is better than them is likely to agree too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tc.autotune.cost_model.learned import SharedModel
from tc.autotune.cost_model.models import Program
from tc.autotune.search.diversity import Point
from tc.errors import TcError
from tc.records.record import Record
from tc.records.workloads import WorkloadStore
from tc.schedule.step import Trace
from tc.target import Target

SUGGESTED = 8
"""Points of other tasks that a task is told of at a time."""

LEARNED_ROWS = 1500
"""Measurements of other models from which the shared model learns, at most; each takes some milliseconds."""

LEAST_ROWS = 24
"""Of each workload, as far as there are so many."""


@dataclass(frozen=True)
class Precedent:
    """A task that was tuned: the answers that its rules gave by themselves, and the best ones found."""

    rule: str
    default: Point
    best: Point
    ratio: float


def similarity(first: Point, second: Point) -> float:
    """How many of the answers of two points are the same: 0..1."""
    answers = set(first) | set(second)
    return len(set(first) & set(second)) / len(answers) if answers else 1.0


def suggestions(rule: str, default: Point, precedents: Iterable[Precedent]) -> list[Point]:
    """The best points of tasks of the same rule, of the most similar ones first, each once."""
    fitting = [carried_over(each, default) for each in precedents if each.rule == rule]
    fitting = [each for each in fitting if each.best != default]
    fitting.sort(key=lambda each: (-similarity(default, each.default), each.ratio))
    return list(dict.fromkeys(each.best for each in fitting))[:SUGGESTED]


def carried_over(precedent: Precedent, default: Point) -> Precedent:
    """The precedent with its knobs named after the blocks of another task, whose default is at `default`.

    Each block is taken for that one of which most of the same things are left open, each once; blocks that are like none keep their names.
    """
    theirs, ours = _knobs_by_block(precedent.default), _knobs_by_block(default)
    pairs = [(len(asked & ours[own]), block, own) for block, asked in theirs.items() for own in ours]
    names: dict[str, str] = {}
    for shared, block, own in sorted(pairs, key=lambda pair: -pair[0]):  # of those that are as alike, in the order of the rules
        if shared and block not in names and own not in names.values():
            names[block] = own

    def renamed(point: Point) -> Point:
        parts = [(knob.partition("/"), value) for knob, value in point]
        return tuple((f"{names.get(block, block)}{slash}{what}", value) for (block, slash, what), value in parts)

    return replace(precedent, default=renamed(precedent.default), best=renamed(precedent.best))


def _knobs_by_block(point: Point) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for knob, _ in point:
        block, _, what = knob.partition("/")
        if what:
            found.setdefault(block, set()).add(what)
    return found


def precedents_of(known: Mapping[str, Sequence[Record]]) -> list[Precedent]:
    """What the records of some workloads say, one precedent for each of which something better than the default is known."""
    found = []
    for records in known.values():
        last = {record.schedule_key: record for record in records if record.error is None}  # checks come after trials
        verified = [record for record in last.values() if record.verified]
        best = min(verified or last.values(), key=lambda record: record.ratio, default=None)
        first = min(last.values(), key=lambda record: record.trial, default=None)
        if best is not None and first is not None and best.ratio < 1.0:
            found.append(Precedent(best.rule, first.point, best.point, best.ratio))
    return found


def teach(
    shared: SharedModel,
    known: Mapping[str, Sequence[Record]],
    store: WorkloadStore,
    target: Target,
    rules: Iterable[str],
    is_late: Callable[[], bool],
) -> None:
    """Let the shared model know the records of some workloads, first of those that were scheduled by one of `rules`.

    Workloads that the store does not have are left out, and records that do not say the sizes of symbolic dims.
    """
    wanted = set(rules)
    keys = sorted(known, key=lambda key: not any(record.rule in wanted for record in known[key]))
    each = max(LEAST_ROWS, LEARNED_ROWS // max(len(keys), 1))
    rows = 0
    for key in keys:
        func = None if rows >= LEARNED_ROWS or is_late() else store.get(key)
        if func is None:
            continue
        names = {dim.name for dim in func.dims}
        features, ratios = [], []
        for record in telling(known[key], each):
            sizes = dict(record.dims)
            if not names <= sizes.keys():
                continue
            try:
                row = Program(Trace.from_json(record.trace).apply(func), target, sizes).features
            except TcError:
                continue
            features.append(row)
            ratios.append(record.ratio)
        if len(features) > 1:
            shared.add(key, np.stack(features), np.array(ratios), is_foreign=True)
            rows += len(features)


def telling(records: Sequence[Record], count: int) -> list[Record]:
    """At most `count` records, of different schedules: half of them the fastest, the others spread over the rest."""
    ranked = sorted({record.schedule_key: record for record in records}.values(), key=lambda record: record.ratio)
    if len(ranked) <= count:
        return ranked
    best, rest = ranked[: count // 2], ranked[count // 2 :]
    return best + [rest[int(place)] for place in np.linspace(0, len(rest) - 1, count - len(best))]
