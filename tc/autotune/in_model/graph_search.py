"""Which form of its graph a model is fastest in: how its tensors lie in memory, and which operators share a kernel.

A pass answers such knobs by an estimate. What an answer is worth shows neither in one kernel nor in the sum of those that change,
so models that differ in one answer run in turns. One that is clearly faster, with the same results, becomes the one that the others
have to beat. Questions about the whole graph come first, then those about the kernels that take longest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tc.autotune.events import FormTried
from tc.autotune.in_model.modules import TimedModules
from tc.check.compare import differing_result
from tc.ir.graph import Binding, Call, Function, all_bindings, tir_calls
from tc.measure.harness import Plan, Timings, time_interleaved
from tc.passes.lower import nodes_by_result
from tc.passes.pipeline import LoweredModel, PreparedModel, lay_out, lower_model
from tc.records.apply import TunedSchedules
from tc.records.database import Database
from tc.records.record import DEFAULT, Choice, place_of, threads_of
from tc.runtime.module import CompiledModule
from tc.schedule.knobs import Knob, Value

GLANCE = Plan(budget_seconds=0.0, min_rounds=5)
"""How a form is compared at first."""

LOOK = Plan(budget_seconds=3.0, min_rounds=12, max_rounds=24)
"""How one that seems faster is compared again."""

CLEARLY = 0.985
"""Times of the best form before it that a better one may take, by the median; three in four rounds must agree that it is better."""

Compare = Callable[[CompiledModule, CompiledModule, Mapping[str, np.ndarray], Plan], Timings]


def compare_modules(best: CompiledModule, other: CompiledModule, inputs: Mapping[str, np.ndarray], plan: Plan) -> Timings:
    """Two modules in turns, as "best" and "other"."""
    return time_interleaved({"best": lambda: best.run(inputs), "other": lambda: other.run(inputs)}, plan)


def search_forms(
    model: PreparedModel,
    database: Database,
    inputs: Mapping[str, np.ndarray],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    compare: Compare = compare_modules,
) -> Iterator[FormTried]:
    """Try other answers to the knobs that only the whole model can decide, and write down what was found.

    seconds: no form is built when it is not expected to be ready by then. Kernels have the schedules that the database knows, else their
    defaults. Options that the database has times of are not tried again.
    """
    return _Search(model, database, inputs, clock, compare).run(clock() + seconds)


Answers = Mapping[tuple[str, str], Value]
"""By the places of knobs."""


@dataclass
class _Form:
    """A model lowered with some answers, and what it was asked that concerns the whole of it: by layouts, and later.

    `layout`, `kernels`: what tells two forms apart.
    """

    answers: Answers
    lowered: LoweredModel
    asked: tuple[list[Knob], list[Knob]]
    layout: tuple[str, ...]
    kernels: tuple[str, ...]
    module: CompiledModule | None = None
    weights: dict[str, float] = field(default_factory=dict)  # seconds of a run by node

    def knobs(self) -> list[Knob]:
        """Those about the whole graph first, then those about the nodes that take longest."""
        layouts, others = self.asked
        return [*layouts, *sorted(others, key=lambda knob: -self.weights.get(knob.node, 0.0))]


class _Search:
    def __init__(
        self,
        model: PreparedModel,
        database: Database,
        inputs: Mapping[str, np.ndarray],
        clock: Callable[[], float],
        compare: Compare,
    ) -> None:
        self._model, self._database, self._inputs, self._clock, self._compare = model, database, inputs, clock, compare
        self._known = TunedSchedules(database, model.target, threads_of(model.target))
        self._timed = TimedModules(model.target)
        self._tried: set[tuple[tuple[str, str], Value]] = set()
        self._seen: dict[tuple[str, ...], float] = {}  # by layout and by kernels: seconds of a run
        self._built: set[str] = set()  # workloads

    def run(self, end: float) -> Iterator[FormTried]:
        """The trials, until the clock shows `end` or there is nothing more to try."""
        best = self._lower({})
        assert isinstance(best, _Form), "nothing was seen before"
        start = self._clock()
        if start > end or self._next_move(best) is None:
            return
        self._build(best)
        kernel_seconds = (self._clock() - start) / len(self._built)
        while self._clock() < end:
            move = self._next_move(best)
            if move is None:
                return
            knob, option = move
            self._tried.add((knob.place, option))
            form = self._lower({**best.answers, knob.place: option}, is_layout=knob in best.asked[0])
            before = self._answer(best, knob)
            if not isinstance(form, _Form):
                self._write(knob, before, {option: form})
                continue
            if self._clock() + len(set(form.kernels) - self._built) * kernel_seconds > end:
                continue
            trial, (best_seconds, seconds) = self._try(best, form, knob, option)
            best = form if trial.is_kept else best
            self._write(knob, option if trial.is_kept else before, {before: best_seconds, option: seconds})
            yield trial

    def _next_move(self, best: _Form) -> tuple[Knob, Value] | None:
        """A knob and another answer than the best form's, that was not tried yet, by earlier searches neither."""
        for knob in best.knobs():
            known = self._choice(knob)
            measured = {} if known is None or known.value == DEFAULT else dict(known.seconds)
            for option in knob.options:
                is_new = option not in measured and (knob.place, option) not in self._tried
                if is_new and option != self._answer(best, knob):
                    return knob, option
        return None

    def _choice(self, knob: Knob) -> Choice | None:
        return self._database.choice(*knob.place, self._model.target, threads_of(self._model.target))

    def _answer(self, form: _Form, knob: Knob) -> Value:
        return form.answers[knob.place] if knob.place in form.answers else self._known.decide(knob)

    def _lower(self, answers: Answers, *, is_layout: bool = True) -> _Form | float:
        """The form with these answers; only its seconds if it was built before. `is_layout`: whether another layout is wanted."""
        asked: dict[tuple[str, str], Knob] = {}

        def decide(knob: Knob) -> Value:
            if not knob.alone:
                asked[knob.place] = knob
            return answers[knob.place] if knob.place in answers else self._known.decide(knob)

        laid_out = lay_out(self._model, decide)
        layouts, layout = list(asked.values()), _shape_of(laid_out.graph.main)
        if is_layout and layout in self._seen:
            return self._seen[layout]
        lowered = lower_model(laid_out, decide)
        kernels = tuple(lowered.workloads[call.callee] for _, call in tir_calls(lowered.lowered.main))
        if kernels in self._seen:
            return self._seen[kernels]
        return _Form(answers, lowered, (layouts, list(asked.values())[len(layouts) :]), layout, kernels)

    def _build(self, form: _Form) -> None:
        (form.module,) = self._timed.build(form.lowered, [self._known])
        self._built.update(form.kernels)
        arguments = [self._inputs[info.name] for info in form.module.inputs]
        form.module(*arguments)
        sources = nodes_by_result(form.lowered.fused)
        nodes: dict[str, set[str]] = {}
        for target, call in tir_calls(form.lowered.lowered.main):
            nodes.setdefault(call.callee, set()).update(sources[target])
        taken = form.module.launch_seconds(*arguments)
        self._seen.update(dict.fromkeys((form.layout, form.kernels), float(taken.sum())))
        for launch, seconds in zip(form.module.launches, taken, strict=True):
            for node in nodes[launch.kernel]:
                form.weights[node] = form.weights.get(node, 0.0) + float(seconds)

    def _try(self, best: _Form, form: _Form, knob: Knob, option: Value) -> tuple[FormTried, tuple[float, float]]:
        """What came of a form, and the seconds of the best one and of this."""
        self._build(form)
        assert best.module is not None and form.module is not None
        facts = (knob.name, knob.key, knob.node, option)
        problem = differing_result(best.module.run(self._inputs), form.module.run(self._inputs))
        if problem is not None:
            return FormTried(*facts, None, False, problem), (self._seen[best.kernels], math.inf)
        timings = self._compare(best.module, form.module, self._inputs, GLANCE)
        if timings.ratio("other", "best").median < CLEARLY:
            timings = self._compare(best.module, form.module, self._inputs, LOOK)
        ratio = timings.ratio("other", "best")
        trial = FormTried(*facts, ratio, ratio.median < CLEARLY and ratio.high < 1.0)
        return trial, (timings.median("best"), timings.median("other"))

    def _write(self, knob: Knob, value: Value, seconds: Mapping[Value, float]) -> None:
        """Keep an answer, and what the model took with it and with others."""
        name, key = knob.place
        target, before = self._model.target, self._choice(knob)
        measured = {**({} if before is None else dict(before.seconds)), **seconds}
        facts = {"pass_name": name, "key": key, **place_of(target)}
        self._database.append([Choice(**facts, value=value, seconds=tuple(measured.items()))])


def _shape_of(func: Function) -> tuple[str, ...]:
    """Which operators a graph function has, and what comes out of them."""
    def describe(binding: Binding) -> str:
        kind = binding.value.op if isinstance(binding.value, Call) else type(binding.value).__name__
        return f"{kind} {', '.join(str(target.type) for target in binding.targets)}"

    return tuple(map(describe, all_bindings(func)))
