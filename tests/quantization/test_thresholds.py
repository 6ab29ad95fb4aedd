"""Scales against formulas written another way, on the numbers themselves where the code has a histogram."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tc.errors import UserError
from tc.quantization.statistics import BINS, Statistics
from tc.quantization.thresholds import (
    METHODS,
    QUANTILE,
    Quantizer,
    choose_quantizer,
    clipping_divergence,
    make_quantizer,
    mean_squared_error,
    quantize_weight,
    weight_scales,
)


def statistics_of(*arrays: np.ndarray) -> Statistics:
    found = Statistics()
    for array in arrays:
        found.update([array.astype(np.float32)])
    return found


def onnx_quantize(x: np.ndarray, quantizer: Quantizer) -> np.ndarray:
    """QuantizeLinear and back, an element at a time."""
    low, high = quantizer.limits
    out = []
    for value in x.reshape(-1).tolist():
        stored = min(max(round(float(np.float32(value) / np.float32(quantizer.scale))) + quantizer.zero, low), high)
        out.append((stored - quantizer.zero) * np.float32(quantizer.scale))
    return np.array(out, np.float32).reshape(x.shape)


@pytest.mark.parametrize("dtype", ["u8", "s8", "s16"])
def test_a_quantizer_is_what_onnx_says(rng: np.random.Generator, dtype: str) -> None:
    x = rng.uniform(-3, 5, 200).astype(np.float32)
    quantizer = make_quantizer(-2.0, 4.0, dtype)

    np.testing.assert_array_equal(quantizer.fake(x), onnx_quantize(x, quantizer))
    assert quantizer.fake(np.zeros(1, np.float32))[0] == 0.0


@pytest.mark.parametrize("dtype", ["u8", "s8", "s16"])
def test_minmax_clips_nothing(rng: np.random.Generator, dtype: str) -> None:
    x = rng.standard_normal(1000).astype(np.float32) - 0.3

    quantizer = choose_quantizer("minmax", statistics_of(x), dtype)

    assert np.abs(quantizer.fake(x) - x).max() <= quantizer.scale * 1.01


def test_ranges_over_calls_are_averaged() -> None:
    calls = np.array([-1.0, 2.0]), np.array([-3.0, 6.0])

    quantizer = choose_quantizer("average", statistics_of(*calls), "u8")

    assert quantizer.scale == pytest.approx((4.0 + 2.0) / 255)
    assert quantizer.zero == round(2.0 / ((4.0 + 2.0) / 255))


def test_quantile_is_that_of_the_numbers(rng: np.random.Generator) -> None:
    x = rng.standard_normal(60_000).astype(np.float32)
    statistics = statistics_of(x)

    low, high = METHODS["quantile"](statistics, "u8")

    width = 2 * statistics.reach / BINS
    assert low == pytest.approx(np.quantile(x, 1 - QUANTILE), abs=0.15)
    assert high == pytest.approx(np.quantile(x, QUANTILE), abs=0.15)
    assert np.count_nonzero(x > high + width) <= 6 and np.count_nonzero(x < low - width) <= 6


def test_least_squares_beats_every_range_of_a_grid(rng: np.random.Generator) -> None:
    x = np.concatenate([rng.standard_normal(5000), [40.0]]).astype(np.float32)
    statistics = statistics_of(x)

    chosen = choose_quantizer("mse", statistics, "u8")

    def error(quantizer: Quantizer) -> float:
        return float(np.mean((quantizer.fake(x).astype(np.float64) - x) ** 2))

    grid = [make_quantizer(float(x.min()) * part, float(x.max()) * part, "u8") for part in np.linspace(0.05, 1, 20)]
    assert error(chosen) <= 1.02 * min(map(error, grid))
    assert error(chosen) < error(choose_quantizer("minmax", statistics, "u8"))


def brute_divergence(counts: np.ndarray, kept: int, levels: int) -> float:
    """Relative entropy by loops over levels, as the paper tells it."""
    p = [float(c) for c in counts[:kept]]
    p[-1] += float(sum(counts[kept:]))
    q = [0.0] * kept
    for level in range(levels):
        inside = [i for i in range(kept) if i * levels // kept == level]
        filled = [i for i in inside if counts[i] > 0]
        for i in filled:
            q[i] = float(sum(counts[j] for j in inside)) / len(filled)
    total_p, total_q = sum(p), sum(q)
    return sum(a / total_p * math.log((a / total_p) / max(b / total_q, 1e-12)) for a, b in zip(p, q, strict=True) if a > 0)


def test_divergence_is_that_of_the_definition(rng: np.random.Generator) -> None:
    counts = rng.integers(0, 50, 96).astype(np.float64)
    counts[10:14] = 0

    for kept in (16, 40, 77, 96):
        assert clipping_divergence(counts, kept, levels=16) == pytest.approx(brute_divergence(counts, kept, 16))


def test_relative_entropy_clips_outliers(rng: np.random.Generator) -> None:
    x = np.concatenate([rng.laplace(size=50_000), [100.0]])

    low, high = METHODS["kl"](statistics_of(x), "u8")

    assert 3.0 < high < 50.0
    assert low >= x.min()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_powers_of_two_are_the_better_of_both_neighbours(rng: np.random.Generator, method: str) -> None:
    statistics = statistics_of(rng.standard_normal(4000) * 3)

    quantizer = choose_quantizer(method, statistics, "s8", is_power_of_two=True)

    exact = choose_quantizer(method, statistics, "s8").scale
    neighbours = [Quantizer("s8", 2.0 ** step(math.log2(exact)), 0) for step in (math.floor, math.ceil)]
    assert math.log2(quantizer.scale).is_integer()
    assert mean_squared_error(statistics, quantizer) == min(mean_squared_error(statistics, q) for q in neighbours)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("value", [0.0, 2.5, -2.5, 1e-42, 3e38])
def test_a_constant_is_kept(method: str, value: float) -> None:
    """A range of nothing divided by 255 was a scale of 0."""
    x = np.full(8, value, np.float32)

    quantizer = choose_quantizer(method, statistics_of(x, x), "u8")

    assert quantizer.scale > 0 and math.isfinite(quantizer.scale)
    assert np.abs(quantizer.fake(x) - x).max() <= max(quantizer.scale, abs(value) * 0.02)


def test_a_histogram_grows_and_counts_all() -> None:
    statistics = statistics_of(np.zeros(5), np.array([0.5, -0.25]), np.array([100.0, -3.0, 7.0]))

    assert statistics.counts.sum() == 10
    assert (statistics.low, statistics.high) == (-3.0, 100.0)
    assert statistics.reach >= 100
    assert statistics.counts[BINS // 2 :].sum() == 8


def test_what_is_not_finite_is_noticed() -> None:
    assert not statistics_of(np.array([1.0, np.inf])).is_finite
    assert not statistics_of(np.array([np.nan])).is_finite


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_weights_have_a_scale_for_each_channel(rng: np.random.Generator, axis: int) -> None:
    weight = rng.standard_normal((4, 5, 6)).astype(np.float32)
    weight[0, 0, 0] = 0

    scales = weight_scales(weight, axis, "minmax")

    for channel in range(weight.shape[axis]):
        one = np.take(weight, channel, axis)
        assert scales[channel] == np.float32(np.abs(one).max() / 127)
        stored = np.take(quantize_weight(weight, scales, axis), channel, axis)
        assert np.abs(stored).max() == 127
        assert np.abs(stored * scales[channel] - one).max() <= scales[channel] * 0.501


def test_clipped_weights_are_no_worse_in_any_channel(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((4, 4096)).astype(np.float32)

    def errors(method: str) -> np.ndarray:
        scales = weight_scales(weight, 0, method)
        return ((quantize_weight(weight, scales, 0) * scales[:, None] - weight) ** 2).sum(axis=1)

    assert np.all(errors("mse") <= errors("minmax") * (1 + 1e-6))
    assert errors("mse").sum() < errors("minmax").sum()


def test_a_channel_of_zeros_stays_zero() -> None:
    weight = np.zeros((2, 3), np.float32)

    for method in ("minmax", "mse"):
        scales = weight_scales(weight, 0, method)
        assert np.all(scales == 1) and not quantize_weight(weight, scales, 0).any()


def test_a_method_that_is_not_known_is_refused() -> None:
    with pytest.raises(UserError, match="threshold is 'best'"):
        choose_quantizer("best", statistics_of(np.ones(3)), "u8")


def drawn_rows(rng: np.random.Generator, kind: str, rows: int, count: int) -> np.ndarray:
    """float32[rows, count] of a kind on which scales are hard to tell apart."""
    match kind:
        case "normal":
            return rng.standard_normal((rows, count)).astype(np.float32)
        case "heavy tails":
            return rng.standard_t(2, (rows, count)).astype(np.float32)
        case "whole numbers":  # exact in many scales: errors are 0, or ties
            return rng.integers(-7, 8, (rows, count)).astype(np.float32)
        case "halves":
            return (rng.integers(-15, 16, (rows, count)) / 2).astype(np.float32)
        case "equal":
            return np.repeat(rng.standard_normal((rows, 1)), count, axis=1).astype(np.float32)
        case "tiny":  # scales reach the smallest normal number
            return (rng.standard_normal((rows, count)) * 10.0 ** rng.uniform(-44, -34, (rows, 1))).astype(np.float32)
        case "huge":
            return np.clip(rng.standard_normal((rows, count)) * 1e38, -3e38, 3e38).astype(np.float32)
    return np.where(rng.random((rows, count)) < 0.1, rng.standard_normal((rows, count)), 0).astype(np.float32)


@pytest.mark.parametrize("largest", [127, 7])
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "whole numbers", "halves", "equal", "tiny", "huge", "sparse"])
def test_the_scale_of_a_weight_is_the_first_with_the_least_error_in_double(kind: str, largest: int) -> None:
    """What is told apart in f32 first, by blocks and by threads, is what all scales in double precision say."""
    for count, rows in ((1, 40), (2, 40), (32, 300), (333, 40), (5000, 30)):
        array = drawn_rows(np.random.default_rng(count), kind, rows, count)
        wide = array.astype(np.float64)
        full = np.abs(wide).max(axis=1)
        tiny = float(np.finfo(np.float32).tiny)
        tried = [np.where(full > 0, np.maximum(full * part / largest, tiny), 1.0).astype(np.float32) for part in np.linspace(1, 0.6, 17)]
        fakes = [np.clip(np.rint(wide / s[:, None]), -largest, largest) * s[:, None].astype(np.float64) for s in tried]
        errors = np.array([((fake - wide) ** 2).sum(axis=1) for fake in fakes])
        expected = np.array(tried)[errors.argmin(axis=0), np.arange(rows)]

        np.testing.assert_array_equal(weight_scales(array, 0, "mse", largest=largest), expected)
        np.testing.assert_array_equal(weight_scales(array.T, 1, "mse", largest=largest), expected)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3, 5), (70_000, 2), (2, 70_000), (3, 4, 5, 6)])
def test_weights_are_stored_in_blocks_as_at_once(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    array = rng.standard_normal(shape).astype(np.float32)
    for axis in range(array.ndim):
        scales = weight_scales(array, axis, "mse", largest=7)
        along = [1] * array.ndim
        along[axis] = -1

        stored = quantize_weight(array, scales, axis, 7)

        assert scales.shape == (shape[axis],) and stored.dtype == np.int8
        np.testing.assert_array_equal(stored, np.clip(np.rint(array / scales.reshape(along)), -7, 7))
