"""Which form of its graph a model is fastest in: how its tensors lie in memory, and which operators share a kernel.

A pass answers such questions by an estimate. What an answer is worth shows neither in one kernel nor in the sum of those that change,
so models that differ in one answer run in turns. One that is clearly faster, with the same results, becomes the one that the others
have to beat. Questions about the whole graph come first, then those about the kernels that take longest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tc.autotune.apply import TunedSchedules
from tc.autotune.database import Database
from tc.autotune.events import FormTried
from tc.autotune.record import DEFAULT, Choice, target_key
from tc.compiler import LoweredModel, PreparedModel, lay_out, lower_model, nodes_by_result
from tc.ir.graph import Binding, Call, Function, all_bindings, tir_calls
from tc.kernels import workload_key
from tc.measure.harness import Plan, Timings, time_interleaved
from tc.passes.graph.questions import Option, Question
from tc.runtime.module import CompiledModule
from tc.verification import differing_result
from tc.workshop import Workshop

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
    """Try other answers to the questions that only the whole model can decide, and write down what was found.

    seconds: no form is built when it is not expected to be ready by then. Kernels have the schedules that the database knows, else their
    defaults. What the database has an answer to is not tried again.
    """
    return _Search(model, database, inputs, clock, compare).run(clock() + seconds)


Answers = Mapping[tuple[str, str], Option]
"""By the places of questions."""


@dataclass
class _Form:
    """A model lowered with some answers, and what it was asked that concerns the whole of it: by layouts, and later.

    `layout`, `kernels`: what tells two forms apart.
    """

    answers: Answers
    lowered: LoweredModel
    asked: tuple[list[Question], list[Question]]
    layout: tuple[str, ...]
    kernels: tuple[str, ...]
    module: CompiledModule | None = None
    weights: dict[str, float] = field(default_factory=dict)  # seconds of a run by node

    def answer(self, question: Question) -> Option:
        return self.answers.get(question.place, question.default)

    def questions(self) -> list[Question]:
        """Those about the whole graph first, then those about the nodes that take longest."""
        layouts, others = self.asked
        return [*layouts, *sorted(others, key=lambda question: -self.weights.get(question.node, 0.0))]


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
        self._known = TunedSchedules(database, model.target, model.target.cores)
        self._workshop = Workshop(model.target)
        self._decided: dict[tuple[str, str], bool] = {}  # whether a question had an answer before the search
        self._tried: set[tuple[tuple[str, str], Option]] = set()
        self._seen: set[tuple[str, ...]] = set()  # layouts, and kernels
        self._built: set[str] = set()  # workloads
        self._seconds: dict[tuple[str, str], dict[Option, float]] = {}

    def run(self, end: float) -> Iterator[FormTried]:
        """The trials, until the clock shows `end` or there is nothing more to try."""
        best = self._lower({})
        assert best is not None, "nothing was seen before"
        start = self._clock()
        if start > end or self._next_move(best) is None:
            return
        self._build(best)
        kernel_seconds = (self._clock() - start) / len(self._built)
        while self._clock() < end:
            move = self._next_move(best)
            if move is None:
                return
            question, option = move
            self._tried.add((question.place, option))
            form = self._lower({**best.answers, question.place: option}, is_layout=question in best.asked[0])
            if form is None:
                self._write(question, best.answer(question))
                continue
            if self._clock() + len(set(form.kernels) - self._built) * kernel_seconds > end:
                continue
            trial = self._try(best, form, question, option)
            best = form if trial.is_kept else best
            self._write(question, best.answer(question))
            yield trial

    def _next_move(self, best: _Form) -> tuple[Question, Option] | None:
        """A question and another answer than the best form's."""
        for question in best.questions():
            if question.place not in self._decided:
                self._decided[question.place] = self._known.choice(*question.place) not in (None, DEFAULT)
            if self._decided[question.place]:
                continue
            for option in question.options:
                if option != best.answer(question) and (question.place, option) not in self._tried:
                    return question, option
        return None

    def _lower(self, answers: Answers, *, is_layout: bool = True) -> _Form | None:
        """The form with these answers; None for one that was seen before. `is_layout`: whether another layout is wanted."""
        asked: dict[tuple[str, str], Question] = {}

        def answer(question: Question) -> Option:
            if not question.alone:
                asked[question.place] = question
            return answers[question.place] if question.place in answers else self._known.answer(question)

        laid_out = lay_out(self._model, answer)
        layouts, layout = list(asked.values()), _shape_of(laid_out.graph.main)
        if is_layout and layout in self._seen:
            return None
        lowered = lower_model(laid_out, answer)
        keys = {func.name: workload_key(func) for func in lowered.lowered.prim_funcs}
        kernels = tuple(keys[call.callee] for _, call in tir_calls(lowered.lowered.main))
        if kernels in self._seen:
            return None
        self._seen |= {layout, kernels}
        return _Form(answers, lowered, (layouts, list(asked.values())[len(layouts) :]), layout, kernels)

    def _build(self, form: _Form) -> None:
        (form.module,) = self._workshop.build(form.lowered, [self._known])
        self._built.update(form.kernels)
        arguments = [self._inputs[info.name] for info in form.module.inputs]
        form.module(*arguments)
        sources = nodes_by_result(form.lowered.fused)
        nodes: dict[str, set[str]] = {}
        for target, call in tir_calls(form.lowered.lowered.main):
            nodes.setdefault(call.callee, set()).update(sources[target])
        for launch, seconds in zip(form.module.launches, form.module.launch_seconds(*arguments), strict=True):
            for node in nodes[launch.kernel]:
                form.weights[node] = form.weights.get(node, 0.0) + float(seconds)

    def _try(self, best: _Form, form: _Form, question: Question, option: Option) -> FormTried:
        self._build(form)
        assert best.module is not None and form.module is not None
        facts = (question.pass_name, question.key, question.node, option)
        problem = differing_result(best.module.run(self._inputs), form.module.run(self._inputs))
        if problem is not None:
            return FormTried(*facts, None, False, problem)
        timings = self._compare(best.module, form.module, self._inputs, GLANCE)
        if timings.ratio("other", "best").median < CLEARLY:
            timings = self._compare(best.module, form.module, self._inputs, LOOK)
        ratio = timings.ratio("other", "best")
        found = self._seconds.setdefault(question.place, {})
        found.update({best.answer(question): timings.median("best"), option: timings.median("other")})
        return FormTried(*facts, ratio, ratio.median < CLEARLY and ratio.high < 1.0)

    def _write(self, question: Question, value: Option) -> None:
        name, key = question.place
        target, seconds = self._model.target, tuple(self._seconds.get(question.place, {}).items())
        before = self._database.choice(name, key, target, target.cores)
        if before is not None and (before.value, before.seconds) == (value, seconds):
            return
        choice = Choice(
            pass_name=name, key=key, target=target_key(target), threads=target.cores, value=value, seconds=seconds
        )
        self._database.append([choice])


def _shape_of(func: Function) -> tuple[str, ...]:
    """Which operators a graph function has, and what comes out of them."""
    def describe(binding: Binding) -> str:
        kind = binding.value.op if isinstance(binding.value, Call) else type(binding.value).__name__
        return f"{kind} {', '.join(str(target.type) for target in binding.targets)}"

    return tuple(map(describe, all_bindings(func)))
