"""The search among forms of a model's graph: what is tried, what is kept, what is written down, what is compiled then."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import tc
from tc.autotune.events import FormTried
from tc.autotune.in_model import graph_search
from tc.autotune.in_model.graph_search import search_forms
from tc.autotune.tasks import tasks_of
from tc.frontend.registry import import_model
from tc.ir.parser import parse_module
from tc.measure.harness import Plan, Timings
from tc.passes.pipeline import PreparedModel, prepare_model
from tc.records.database import Database
from tc.runtime.module import CompiledModule
from tc.target import Target, native_target

TARGET = dataclasses.replace(native_target(), cores=1)

NET = """
@graph
def main(x: f32[1, 3, 24, 24], w: f32[40, 64], v: f32[64, 96]):
    a: f32[1, 32, 24, 24] = conv(x, const('random 32x3x3x3', f32[32, 3, 3, 3]), pads=(1, 1, 1, 1,))  # first
    b: f32[1, 32, 24, 24] = relu(a)  # clamp
    c: f32[40, 96] = matmul(w, v)  # product
    d: f32[40, 96] = tanh(c)  # squash
    return b, d
"""

INPUTS = {
    name: np.random.default_rng(0).standard_normal(shape, np.float32)
    for name, shape in (("x", (1, 3, 24, 24)), ("w", (40, 64)), ("v", (64, 96)))
}

CONSTANTS = {"random 32x3x3x3": np.random.default_rng(1).standard_normal((32, 3, 3, 3), np.float32)}

Cost = Callable[[CompiledModule], float]


def prepared(target: Target = TARGET) -> PreparedModel:
    return prepare_model(import_model(parse_module(NET, CONSTANTS)), target)


def kernels(module: CompiledModule) -> list[str]:
    return [launch.kernel for launch in module.launches]


def search(database: Database, cost: Cost, seconds: float = 100.0) -> list[FormTried]:
    """All trials, where a module takes what `cost` says, on a clock that a comparison moves by a second."""
    now = [0.0]

    def compare(best: CompiledModule, other: CompiledModule, inputs: Mapping[str, np.ndarray], plan: Plan) -> Timings:
        now[0] += 1.0
        taken = np.array([[cost(best), cost(other)]] * 4)
        return Timings(("best", "other"), taken, taken.min(axis=0))

    return list(search_forms(prepared(), database, INPUTS, seconds, clock=lambda: now[0], compare=compare))


def test_every_other_answer_is_tried_once_and_only_what_is_faster_is_kept(tmp_path: Path) -> None:
    database = Database(tmp_path / "t.db")

    found = search(database, cost=lambda module: 2.0 - ("tanh" in kernels(module)))

    tried = [(form.question, form.node, form.answer) for form in found]
    assert len(set(tried)) == len(tried)
    assert {name.split("/")[0] for name, _, _ in tried} == {"convert_layout", "fuse_ops"}
    (kept,) = [form for form in found if form.is_kept]
    assert (kept.question, kept.node, kept.answer) == ("fuse_ops", "squash", False)
    assert kept.ratio is not None and kept.ratio.median == 0.5


def test_what_was_kept_is_compiled(tmp_path: Path) -> None:
    database = Database(tmp_path / "t.db")
    search(database, cost=lambda module: 2.0 - ("tanh" in kernels(module)))

    plain = tc.compile(parse_module(NET, CONSTANTS), target=TARGET)
    tuned = tc.compile(parse_module(NET, CONSTANTS), target=TARGET, tune=database.path)

    assert len(tuned.report().kernels) == len(plain.report().kernels) + 1
    assert any(kernel.name == "tanh" for kernel in tuned.report().kernels)
    for found, wanted in zip(tuned.run(INPUTS).values(), plain.run(INPUTS).values(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_the_kernels_of_the_chosen_form_are_tuned(tmp_path: Path) -> None:
    database = Database(tmp_path / "t.db")
    search(database, cost=lambda module: 2.0 - ("tanh" in kernels(module)))
    decide = graph_search.TunedSchedules(database, TARGET, 1).decide

    names = {task.name for task in tasks_of(prepared(), decide=decide).tasks}

    assert "tanh" in names and "tanh" not in {task.name for task in tasks_of(prepared()).tasks}


def test_what_was_decided_is_not_tried_again(tmp_path: Path) -> None:
    database = Database(tmp_path / "t.db")
    first = search(database, cost=lambda module: 2.0 - ("tanh" in kernels(module)))

    again = search(Database(tmp_path / "t.db"), cost=lambda module: 1.0)

    assert first and not again


def test_a_search_that_ran_out_of_time_is_gone_on_with(tmp_path: Path) -> None:
    def cost(module: CompiledModule) -> float:
        return 2.0 - ("tanh" in kernels(module))

    whole = search(Database(tmp_path / "whole.db"), cost)
    parts = [search(Database(tmp_path / "parts.db"), cost, seconds=0.5) for _ in range(30)]

    trials = [trial for part in parts for trial in part]
    assert all(len(part) <= 1 for part in parts) and not parts[-1]
    assert len({(trial.question, trial.node, trial.answer) for trial in trials}) == len(trials) >= len(whole)
    assert [trial for trial in trials if trial.is_kept] == [trial for trial in whole if trial.is_kept]


def test_a_form_with_other_results_is_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_search, "differing_result", lambda expected, found: "y: off by one")

    found = search(Database(tmp_path / "t.db"), cost=lambda module: 2.0 - ("tanh" in kernels(module)))

    assert found and not any(form.is_kept for form in found)
    assert all(form.ratio is None and form.problem == "y: off by one" for form in found)


def test_the_search_ends_with_its_time(tmp_path: Path) -> None:
    def trials(seconds: float) -> int:
        return len(search(Database(tmp_path / f"{seconds}.db"), cost=lambda module: 1.0, seconds=seconds))

    assert trials(-1.0) == 0
    assert trials(1.5) == 2 < trials(100.0)


def test_a_model_without_questions_is_not_even_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "@graph\ndef main(x: f32[4, 8]):\n    y: f32[4, 8] = relu(x)\n    return y\n"
    monkeypatch.setattr(graph_search.TimedModules, "build", lambda *args: pytest.fail("a module was built"))

    assert not list(search_forms(prepare_model(import_model(parse_module(text)), TARGET), Database(tmp_path / "t.db"), {}, 100.0))
