"""The search of `mixed`: what a budget of errors chooses, how few choices are tried, and what is guaranteed of the one that is taken."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tc
from tc.frontend.registry import import_model
from tc.ir.dtype import bf16
from tc.passes.graph.narrowing import Precision, choose_narrowing
from tc.passes.pipeline import narrow_model, simplify_model
from tc.precision import calibrate, choose
from tc.precision.calibrate import Simulation, relative_error
from tc.precision.choose import MARGIN, MOST_TRIED, _candidates, _fitting, _most_within
from tc.runtime.finish import build_prepared
from tc.target import native_target
from tests.test_precision import inputs_of, off, perceptron


def test_a_budget_is_spent_on_what_saves_most_for_its_error() -> None:
    costs, saved = [4.0, 1.0, 0.0, math.inf, 1.0], [8.0, 1.0, 0.0, 9.0, 3.0]

    assert _fitting(costs, saved, 0.0) == [2]
    assert _fitting(costs, saved, 1.5) == [2, 4]
    assert _fitting(costs, saved, 5.5) == [2, 4, 0]
    assert sorted(_fitting(costs, saved, 6.0)) == [0, 1, 2, 4]


@pytest.mark.parametrize("factor", [0.2, 1.0, 7.0])
@pytest.mark.parametrize("seed", range(4))
def test_few_choices_are_tried_and_the_best_is_near_what_is_allowed(factor: float, seed: int) -> None:
    """Errors that add up in squares, but for a factor that nobody knows."""
    rng = np.random.default_rng(seed)
    costs, saved = list(rng.lognormal(0, 2, 120) * 1e-6), list(rng.lognormal(0, 1, 120))
    allowed, tried = math.sqrt(factor * sum(costs) * rng.uniform(0.1, 0.8)), []

    def error_of(chosen: list[int]) -> float:
        tried.append(chosen)
        return math.sqrt(factor * sum(costs[k] for k in chosen))

    found, budget = _most_within(error_of, costs, saved, allowed, math.sqrt(factor * sum(costs)))

    assert error_of(found) <= allowed and found == _fitting(costs, saved, budget)
    assert 2 <= len(tried) <= MOST_TRIED + 1
    assert math.sqrt(factor * sum(costs[k] for k in found)) >= 0.7 * allowed


@pytest.mark.parametrize("error", [1e-2, math.inf])
def test_where_no_rounding_is_allowed_nothing_is_rounded(error: float) -> None:
    found, budget = _most_within(lambda chosen: error, [1.0, 2.0], [1.0, 1.0], 1e-3, error)

    assert (found, budget) == ([], 0.0)


@pytest.fixture(scope="module")
def simulation() -> tuple[object, object, list, list, list]:
    """A model, its candidates, inputs, and what it gives in f32."""
    model = simplify_model(import_model(perceptron(128)), native_target())
    narrowing = choose_narrowing(model.graph, Precision(bf16))
    batches = [inputs_of((8, 128), seed) for seed in range(2)]
    return model, narrowing, _candidates(model, narrowing), batches, choose._results(build_prepared(model), batches)


def test_a_simulated_choice_has_the_error_of_its_program(simulation) -> None:
    model, narrowing, candidates, batches, exact = simulation
    simulated = Simulation(model, narrowing, [b for _, b in candidates], batches, exact, build_prepared)
    everything = set(range(len(candidates)))
    errors = []

    assert simulated.error((), 0) < 1e-6
    for rounded in (everything, {0}, everything - {0}, {len(candidates) - 1}):
        kept = tuple((candidates[k][0], "kept") for k in sorted(everything - rounded))
        program = choose._results(build_prepared(narrow_model(model, Precision(bf16, kept))), batches)
        errors.append((simulated.error(rounded, 1), relative_error(program[1], exact[1])))

    assert all(found == pytest.approx(real, rel=0.25) for found, real in errors)
    assert all(real > 1e-4 for _, real in errors)


def test_checking_ends_at_the_first_input_that_is_over(simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    model, narrowing, candidates, batches, exact = simulation
    simulated = Simulation(model, narrowing, [b for _, b in candidates], batches, exact, build_prepared)
    asked: list[int] = []
    errors = {0: 0.5, 1: 2.0, 2: 3.0}
    monkeypatch.setattr(simulated, "error", lambda rounded, place: (asked.append(place), errors[place])[1])

    assert simulated.first_above((), (0, 1, 2), 1.0) == 2.0 and asked == [0, 1]
    assert simulated.first_above((), (0, 1, 2), 9.0) == 3.0


def test_every_calibration_input_is_within_nine_tenths_after_few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = perceptron(128), [inputs_of((8, 128), seed) for seed in range(5)]
    exact = [tc.interpret(model, x)["y"] for x in batches]
    wholly = tc.compile(model, threads=1, precision="bf16")
    tolerance = 0.8 * max(off(wholly.run(x)["y"], y) for x, y in zip(batches, exact, strict=True)) / MARGIN
    runs: list[int] = []
    real = calibrate.Simulation.error
    monkeypatch.setattr(calibrate.Simulation, "error", lambda self, rounded, place: (runs.append(place), real(self, rounded, place))[1])

    module = tc.compile(model, threads=1, precision=f"mixed:{tolerance}", calibration=batches)

    operations = sum(each.why == "" or "tolerance" in each.why for each in module.report().precisions)
    assert max(off(module.run(x)["y"], y) for x, y in zip(batches, exact, strict=True)) <= MARGIN * tolerance
    assert any(each.computed == "bf16" for each in module.report().precisions)
    assert operations < len(runs) <= operations + (1 + MOST_TRIED) * len(batches)
