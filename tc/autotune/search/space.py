"""The schedules of one task: everything that the rules can be led to by answering their questions.

A point is a set of answers by name. Building a point runs the rules with these answers; questions that it does not answer, or not
with a legal value, get the rule's own answer, so every point leads somewhere, and what was really asked and answered is noted in
the candidate.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tc.codegen.kernels import finish_scheduled, schedule_that_fits
from tc.errors import ScheduleError
from tc.ir.cached import cached_property
from tc.ir.loop import PrimFunc
from tc.ir.printer import print_ir
from tc.schedule.knobs import Decide, Knob, Value, follow, take_default
from tc.schedule.rules import apply_rules
from tc.schedule.step import Trace
from tc.target import Target

VARIANT = "variant"
"""The first knob of a task that can be lowered in several ways."""

SIZE_SAMPLES = 64
"""Ways through the rules from which the number of points is estimated."""


Point = tuple[tuple[str, Value], ...]
"""The answers on one way through the rules, by name."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One schedule of a task. `trace` replays on the variant's PrimFunc; `made` is the result, or makes it.

    `operations`, `features`: what `limits` and the cost model ask of the program, if that is known without it. `target`: what it is for.
    """

    variant: str
    knobs: tuple[Knob, ...]
    point: Point
    rule: str
    trace: Trace
    made: PrimFunc | Callable[[], PrimFunc]
    operations: int | None = None
    features: np.ndarray | None = None
    target: Target | None = None

    @cached_property
    def final(self) -> PrimFunc:
        """The program as code is made of it. ScheduleError where the target's passes find that it cannot be."""
        assert self.target is not None, "candidates of a space know what they are for"
        return finish_scheduled(self.func, self.target)

    @cached_property
    def func(self) -> PrimFunc:
        """The program: scheduled, still with blocks."""
        return self.made if isinstance(self.made, PrimFunc) else self.made()

    @cached_property
    def key(self) -> str:
        """20 hex digits; candidates of one task with equal keys are one program."""
        text = json.dumps([self.variant, self.trace.to_json()])
        return hashlib.sha256(text.encode()).hexdigest()[:20]


class Space:
    """The candidates of one task, which may be lowered in several ways (`variants`, the first being what compiles untuned)."""

    def __init__(self, variants: Mapping[str, PrimFunc], target: Target) -> None:
        assert variants, "a task has at least one variant"
        self.variants = dict(variants)
        self.target = target
        self._unfit: dict[str, Mapping[str, str]] = {}
        self.helper: Callable[[Sequence[Mapping[str, Value]]], list[Candidate | None]] | None = None
        """Makes candidates elsewhere, several at a time."""

    @cached_property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """The variants as text, for other processes."""
        return tuple((name, print_ir(func)) for name, func in self.variants.items())

    def default(self) -> Candidate:
        """What compiles without tuning."""
        return self.build(take_default)

    def at(self, point: Mapping[str, Value]) -> Candidate:
        """The candidate at a point; ScheduleError when the answers together are not legal."""
        return self.build(follow(point))

    def sample(self, rng: np.random.Generator) -> Candidate:
        """A candidate whose every answer is drawn evenly. ScheduleError as for `at`, here and below."""
        return self.build(lambda knob: _draw(rng, knob.options))

    def at_all(self, points: Sequence[Mapping[str, Value]]) -> list[Candidate | None]:
        """The candidates at several points, None where the answers are not legal. A helper makes them, if there is one."""
        if self.helper is not None and len(points) > 1:
            return self.helper(points)
        return [self.legal_at(point) for point in points]

    def legal_at(self, point: Mapping[str, Value]) -> Candidate | None:
        """The candidate at a point; None when the answers together are not legal."""
        try:
            return self.at(point)
        except ScheduleError:
            return None

    def mutation(self, candidate: Candidate, rng: np.random.Generator) -> dict[str, Value]:
        """The point with one answer changed, now and then more: to a neighbour half of the time where answers are ordered, else to any."""
        point = dict(candidate.point)
        while candidate.knobs:
            knob = candidate.knobs[int(rng.integers(len(candidate.knobs)))]
            point[knob.name] = _another(knob, point[knob.name], rng)
            if rng.random() < 0.6:
                break
        return point

    def crossing(self, first: Candidate, second: Candidate, rng: np.random.Generator) -> dict[str, Value]:
        """A point with every answer from one of the two."""
        point = dict(first.point)
        for name, value in second.point:
            if name not in point or rng.random() < 0.5:
                point[name] = value
        return point

    def mutate(self, candidate: Candidate, rng: np.random.Generator) -> Candidate:
        """The candidate at a mutation."""
        return self.at(self.mutation(candidate, rng))

    def neighbours(self, candidate: Candidate) -> list[dict[str, Value]]:
        """The points that differ in one answer: by one step where answers are ordered, in any way where not."""
        point = dict(candidate.point)
        return [{**point, knob.name: value} for knob in candidate.knobs for value in _steps(knob, point[knob.name])]

    def size(self, samples: int = SIZE_SAMPLES) -> float:
        """About how many points there are, from so many ways through the rules.

        The mean, over random ways through the rules, of the product of the numbers of options met.
        Source: Knuth (1975), estimating the size of a search tree.
        """
        rng = np.random.default_rng(0)
        return float(np.mean([self._product_of_options(rng) for _ in range(samples)]))

    def _product_of_options(self, rng: np.random.Generator) -> float:
        try:
            candidate = self.sample(rng)
        except ScheduleError:
            return 0.0
        return math.prod(float(len(knob.options)) for knob in candidate.knobs)

    def _without(self, variant: str) -> Mapping[str, str]:
        """The rules whose schedules of a variant have no form for code generation: what compiles untuned leaves them, too."""
        if variant not in self._unfit:
            try:
                self._unfit[variant] = schedule_that_fits(self.variants[variant], self.target)[2]
            except ScheduleError:  # which every candidate says
                self._unfit[variant] = {}
        return self._unfit[variant]

    def build(self, decide: Decide) -> Candidate:
        """Run the rules with these answers."""
        names = tuple(self.variants)
        knobs: list[Knob] = []
        variant = names[0]
        if len(names) > 1:
            knobs.append(Knob(VARIANT, names, names[0], ordered=False))
            variant = str(decide(knobs[0]))
        made = apply_rules(self.variants[variant], self.target, decide, self._without(variant))
        chosen = ((VARIANT, variant),) if knobs else ()
        knobs += [choice.knob for choice in made.choices]
        point = (*chosen, *((choice.knob.name, choice.value) for choice in made.choices))
        return Candidate(variant, tuple(knobs), point, made.rule, made.trace, made.func, target=self.target)


def _draw(rng: np.random.Generator, options: tuple[Value, ...]) -> Value:
    return options[int(rng.integers(len(options)))]


def _another(knob: Knob, value: Value, rng: np.random.Generator) -> Value:
    if knob.ordered and rng.random() < 0.5:
        return _draw(rng, tuple(_steps(knob, value)))
    return _draw(rng, tuple(option for option in knob.options if option != value))


def _steps(knob: Knob, value: Value) -> list[Value]:
    """The answers next to `value`; all others where there is no order."""
    if not knob.ordered:
        return [option for option in knob.options if option != value]
    place = knob.options.index(value)
    return [knob.options[near] for near in (place - 1, place + 1) if 0 <= near < len(knob.options)]
