"""Which point of a front is taken: by default, and where none keeps what it should."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

from tc.quantization.evaluate import AGREEMENT_SHARE, Quality, worst_error
from tc.quantization.result import FrontPoint, usual_choice
from tc.quantization.strategy import Strategy


def agreement(error: float, worst: float | None = None) -> Quality:
    return Quality(error, 1 - error**2 / 2, math.nan, error, error if worst is None else worst)


def measured(metric: float, reference: float, error: float = 0.5) -> Quality:
    """As `Evaluator.quality_on` gives it where there is a metric."""
    return Quality(error, 0.9, metric, max(reference - metric, 0.0) + AGREEMENT_SHARE * error, 1.0)


def point(ratio: float, quality: Quality) -> FrontPoint:
    return FrontPoint(f"at {ratio}", Strategy((), ()), onnx.ModelProto(), quality, predicted=ratio, seconds=ratio, ratio=ratio)


def chosen(*points: FrontPoint) -> str:
    return usual_choice(points).label


def test_the_fastest_that_is_near_enough_is_chosen() -> None:
    points = [point(ratio, agreement(error)) for ratio, error in ((0.3, 0.2), (0.5, 0.09), (0.6, 0.02), (1.0, 0.0))]

    assert chosen(*points) == "at 0.5"


def test_a_more_accurate_one_may_take_a_little_longer() -> None:
    assert chosen(point(0.50, agreement(0.09)), point(0.52, agreement(0.03)), point(0.54, agreement(0.01))) == "at 0.52"


def test_where_all_are_too_far_the_most_accurate_is_chosen() -> None:
    assert chosen(point(0.3, agreement(0.9)), point(0.5, agreement(0.2)), point(0.6, agreement(math.inf))) == "at 0.5"


def test_one_input_that_is_far_off_is_too_many() -> None:
    assert chosen(point(0.3, agreement(0.05, worst=0.21)), point(0.5, agreement(0.09, worst=0.19)), point(1.0, agreement(0.0))) == "at 0.5"


def test_the_worst_input_is_that_of_the_largest_error() -> None:
    rng = np.random.default_rng(0)
    expected = [{"y": rng.standard_normal((2, 50)), "z": rng.standard_normal(9)} for _ in range(4)]
    found = [{name: value.copy() for name, value in outputs.items()} for outputs in expected]
    found[2]["y"] *= 1.5
    found[3]["z"] += 0.01

    power = np.mean([np.square(outputs["y"]) for outputs in expected])
    noise = np.mean(np.square(found[2]["y"] - expected[2]["y"]))

    assert worst_error(expected, expected) == 0.0
    assert worst_error(expected, found) == pytest.approx(np.sqrt(noise / power) / 2)


def test_noise_where_an_output_is_almost_nothing_is_no_large_error() -> None:
    expected = [{"y": np.full(8, value)} for value in (1.0, 1e-6, 1.0)]
    found = [{"y": outputs["y"] + 0.01} for outputs in expected]

    assert worst_error(expected, found) == pytest.approx(0.01 * np.sqrt(1.5))
    assert worst_error([{"y": np.zeros(3)}], [{"y": np.full(3, 1e-9)}]) == 1.0
    assert worst_error(expected, [{"y": np.full(8, np.nan)}, *found[1:]]) == math.inf
    assert worst_error([{"n": np.array([1, 2])}, {"n": np.array([3, 4])}], [{"n": np.array([1, 2])}, {"n": np.array([3, 5])}]) == 0.5


def test_f32_is_chosen_where_nothing_else_is_near() -> None:
    assert chosen(point(0.3, agreement(0.9)), point(1.0, agreement(0.0))) == "at 1.0"


def test_without_times_predictions_count() -> None:
    slow, fast = (FrontPoint("", Strategy((), ()), onnx.ModelProto(), agreement(0.05), seconds) for seconds in (2.0, 1.0))

    assert usual_choice((slow, fast)) is fast


@pytest.mark.parametrize(
    ("metric", "reference", "is_within"),
    [
        (0.975, 0.98, True), (0.97, 0.98, False), (0.99, 0.98, True),  # top-1, from 0 to 1: lost 0.005, 0.01, nothing
        (97.5, 98.0, True), (97.0, 98.0, False),  # the same in points
        (-2.01, -2.0, True), (-2.1, -2.0, False),  # a likelihood
        (0.0, 0.0, True), (-0.001, 0.0, False),
    ],
)  # fmt: skip
def test_a_metric_may_lose_a_hundredth(metric: float, reference: float, is_within: bool) -> None:
    assert measured(metric, reference).is_within_limits == is_within


@pytest.mark.parametrize(("error", "is_within"), [(0.0, True), (0.1, True), (0.101, False), (math.inf, False)])
def test_without_a_metric_the_error_counts(error: float, is_within: bool) -> None:
    assert agreement(error).is_within_limits == is_within
