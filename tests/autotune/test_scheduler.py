"""Where the next batch goes, and what more time is expected to bring, on curves that are known."""

from __future__ import annotations

import numpy as np
import pytest

from tc.autotune.search.scheduler import FIRST_GAIN, Curve, first_gain, next_task, remaining_ms


def curve(ratios: list[float], weight_ms: float = 1.0, batch_seconds: float = 2.0) -> Curve:
    made = Curve(weight_ms)
    for ratio in ratios:
        made.add(ratio, batch_seconds)
    return made


def fading(batches: int, first: float, fading: float = 0.5) -> list[float]:
    """Ratios after 1, 2, ... batches of a task whose doublings gain `first`, then `fading` of it, and so on (log2)."""
    power = -np.log2(fading)
    counts = np.arange(1, batches + 1)
    gained = first * (1 + (1 - counts**-power) * fading / (1 - fading))
    return [float(2**-gain) for gain in gained]


def test_a_closed_task_gets_no_more() -> None:
    curves = [curve([0.9]), curve([0.9])]
    curves[0].is_open = False

    assert next_task(curves) == 1
    curves[1].is_open = False
    assert next_task(curves) is None
    assert remaining_ms(curves) == 0.0


def test_the_heavier_task_comes_first() -> None:
    assert next_task([Curve(1.0), Curve(5.0), Curve(2.0)]) == 1


def test_the_cheaper_batch_comes_first() -> None:
    assert next_task([curve([0.9, 0.85], batch_seconds=9.0), curve([0.9, 0.85], batch_seconds=3.0)]) == 1


def test_a_task_hardly_tried_is_believed_to_have_something_left() -> None:
    assert next_task([curve([0.8] * 8, weight_ms=2.0), Curve(1.0)]) == 1


def test_a_light_task_waits_until_the_heavy_one_stands_still() -> None:
    curves = [Curve(10.0), Curve(1.0)]
    order = []
    for _ in range(24):
        chosen = next_task(curves)
        assert chosen is not None
        order.append(chosen)
        curves[chosen].add(fading(24, 0.2)[curves[chosen].batches], 2.0)

    assert order[0] == 0
    assert 1 in order
    assert order.count(0) >= 2 * order.count(1)


def test_standing_still_lowers_what_is_expected() -> None:
    gaining, still = curve(fading(8, 0.3)), curve([fading(8, 0.3)[-1]] * 8)

    assert still.gain_ms(8, 0.2) < gaining.gain_ms(8, 0.2)
    assert curve([0.8] * 32).gain_ms(32, 0.2) < 0.2 * curve([0.8] * 8).gain_ms(8, 0.2)


def test_a_best_that_was_none_is_taken_back() -> None:
    corrected, still = curve([0.5, 0.8]), curve([0.8, 0.8])

    assert corrected.ratios == [0.8, 0.8]
    assert corrected.gain_ms(2, 0.2) == still.gain_ms(2, 0.2) > 0


def test_batches_count_by_their_trials() -> None:
    made = Curve(1.0)
    for trials, ratio in ((3, 0.95), (5, 0.9), (16, 0.8), (4, 0.7)):
        made.add(ratio, 0.25 * trials, trials)

    assert made.ratios == [0.9, 0.8, 0.8]
    assert made.best == 0.7
    assert made.batch_seconds == pytest.approx(2.0)


def test_more_batches_are_expected_to_gain_more_but_each_less() -> None:
    made = curve(fading(4, 0.3))
    gains = [made.gain_ms(more, 0.3) for more in (1, 2, 4, 8)]

    assert gains == sorted(gains)
    assert gains[1] < 2 * gains[0]
    assert Curve(1.0).gain_ms(2, 0.2) > Curve(1.0).gain_ms(1, 0.2) == pytest.approx(1 - 2**-0.2)


def test_the_first_gain_is_learned_from_all_tasks() -> None:
    assert first_gain([Curve(1.0)]) == FIRST_GAIN
    assert first_gain([curve(fading(4, 0.6)) for _ in range(20)]) == pytest.approx(0.6, rel=0.15)
    assert first_gain([curve([1.0] * 4) for _ in range(20)]) < 0.25 * FIRST_GAIN


@pytest.mark.parametrize("first", [0.05, 0.2, 0.6])
@pytest.mark.parametrize("batches", [2, 4, 8])
def test_the_gain_of_doubling_is_foreseen_within_a_factor_of_two_on_average(first: float, batches: int) -> None:
    rng = np.random.default_rng(batches)
    known, later = [], []
    for _ in range(30):  # steps instead of smooth curves: a batch finds something or it does not
        smooth = np.array(fading(2 * batches, first * rng.lognormal(0, 0.5)))
        late = np.concatenate([[1.0], smooth[:-1]])
        steps = np.minimum.accumulate(np.where(rng.random(2 * batches) < 0.7, smooth, late))
        known.append(curve(steps[:batches].tolist()))
        later.append(float(steps[batches - 1] - steps[-1]))

    expected = remaining_ms(known)

    assert 0.5 <= expected / sum(later) <= 2.0


def test_a_best_that_was_luck_leaves_no_negative_expectation() -> None:
    curve = Curve(10.0)
    for ratio in (0.5, 0.5, 0.9, 0.9):
        curve.add(ratio, 1.0)

    assert remaining_ms([curve]) >= 0.0
