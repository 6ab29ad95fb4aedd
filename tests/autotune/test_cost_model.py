"""Cost models on made-up measurements: seconds are a hidden function of program features."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from tc.autotune.cost_model.accuracy import Measured, evaluate, ordered_pairs
from tc.autotune.cost_model.models import (
    AnalyticCost,
    Cost,
    Program,
    RandomCost,
    RankCost,
    RegressionCost,
    TransferCost,
    cross_validate,
)
from tc.cost.features import ESTIMATE_COLUMN, FEATURE_NAMES
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.schedule import programs

LEARNERS: tuple[Callable[[int], Cost], ...] = (RankCost, RegressionCost)
SPILL = FEATURE_NAMES.index("spilling / least")
LANES = FEATURE_NAMES.index("main: log lanes")


def made_up_task(key: str, rng: np.random.Generator, rows: int = 40, failures: int = 0, local: float = 0.0) -> Measured:
    """Time is the estimate, doubled by spilling and by half-empty vectors together; tasks differ in size. Nearly no noise.

    `local` is the weight of a term that only this task knows.
    """
    features = rng.normal(size=(rows, len(FEATURE_NAMES))).astype(np.float32)
    features[:, ESTIMATE_COLUMN] = rng.uniform(10, 25) + 0.3 * rng.normal(size=rows)
    logs = features[:, ESTIMATE_COLUMN] + (features[:, SPILL] > 0) * (1.0 + 0.5 * (features[:, LANES] > 0))
    logs = logs + local * (features[:, 3] > 0) + 0.01 * rng.normal(size=rows)
    seconds = 2.0 ** (logs - 31)
    seconds[rng.permutation(rows)[:failures]] = np.inf
    return Measured(key, features, seconds)


def made_up_tasks(count: int, seed: int = 0, failures: int = 0) -> list[Measured]:
    rng = np.random.default_rng(seed)
    return [made_up_task(f"task {k}", rng, failures=failures) for k in range(count)]


def group(seconds: list[float]) -> Measured:
    rng = np.random.default_rng(0)
    return Measured("one", rng.normal(size=(len(seconds), len(FEATURE_NAMES))).astype(np.float32), np.array(seconds))


def test_learning_orders_unseen_tasks_better_than_the_estimate_and_that_better_than_chance() -> None:
    tasks = made_up_tasks(16)

    chance = cross_validate(lambda: RandomCost(np.random.default_rng(0)), tasks).rank_accuracy
    analytic = cross_validate(AnalyticCost, tasks).rank_accuracy
    learned = [cross_validate(learner, tasks).rank_accuracy for learner in LEARNERS]

    assert chance == pytest.approx(0.5, abs=0.03)
    assert 0.55 < analytic < 0.8
    assert min(learned) > 0.85


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_columns_that_time_depends_on_are_the_important_ones(learner: Callable[[int], Cost]) -> None:
    model = learner(0)
    model.fit(made_up_tasks(16))

    importance = model.report(made_up_tasks(2, seed=1)).importance

    assert importance[0][0] == FEATURE_NAMES[SPILL]
    assert sum(part for _, part in importance) == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_the_spread_covers_about_two_thirds_of_the_errors_on_unseen_tasks(learner: Callable[[int], Cost]) -> None:
    report = cross_validate(lambda: learner(0), made_up_tasks(24))

    assert 0.55 < report.within_spread < 0.85


def test_a_regression_predicts_time_up_to_a_constant_of_the_task() -> None:
    report = cross_validate(RegressionCost, made_up_tasks(16))

    assert report.rmse is not None and report.rmse < 0.35
    assert cross_validate(RankCost, made_up_tasks(8)).rmse is None


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_same_seed_gives_the_same_model_and_another_seed_another(learner: Callable[[int], Cost]) -> None:
    tasks, rows = made_up_tasks(12), made_up_task("new", np.random.default_rng(9)).features
    predictions = []
    for seed in (3, 3, 4):
        model = learner(seed)
        model.fit(tasks)
        predictions.append(np.concatenate(model.predict_rows(rows)))

    np.testing.assert_array_equal(predictions[0], predictions[1])
    assert not np.array_equal(predictions[0], predictions[2])


@pytest.mark.parametrize("learner", LEARNERS)
def test_programs_that_fail_are_ranked_behind_those_that_run(learner: Callable[[int], Cost]) -> None:
    rng = np.random.default_rng(0)
    tasks = []
    for k in range(12):
        task = made_up_task(f"task {k}", rng)
        tasks.append(Measured(task.key, task.features, np.where(task.features[:, 20] > 0.8, np.inf, task.seconds)))
    model = learner(0)
    model.fit(tasks)

    unseen = made_up_task("unseen", rng, rows=200)
    mean, _ = model.predict_rows(unseen.features)
    fails = unseen.features[:, 20] > 0.8

    assert mean[fails].mean() > mean[~fails].mean() + 1.0


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize(
    "groups",
    [[], [group([])], [group([1e-3])], [group([math.inf] * 5)], [group([1e-3] * 5)], [group([math.inf]), group([2e-3, 2e-3])]],
    ids=["no groups", "no rows", "one row", "all failed", "all equal", "one failed, two equal"],
)
def test_measurements_that_say_nothing_leave_the_estimate(learner: Callable[[int], Cost], groups: list[Measured]) -> None:
    rows = made_up_task("new", np.random.default_rng(0)).features
    model = learner(0)

    model.fit(groups)

    mean, spread = model.predict_rows(rows)
    np.testing.assert_array_equal(mean, AnalyticCost().predict_rows(rows)[0])
    assert np.all(spread == 1.0)
    assert math.isnan(model.report([]).rank_accuracy)


@pytest.mark.parametrize("learner", LEARNERS)
def test_two_programs_are_enough_to_learn_from(learner: Callable[[int], Cost]) -> None:
    model = learner(0)

    model.fit([group([1e-3, 2e-3])])
    mean, spread = model.predict_rows(group([1.0] * 4).features)

    assert np.isfinite(mean).all() and (spread > 0).all()


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_failure_beside_a_success_is_something_to_learn(learner: Callable[[int], Cost]) -> None:
    model = learner(0)

    model.fit([group([1e-3, math.inf, 1e-3, math.inf])])

    assert np.isfinite(model.predict_rows(group([1.0] * 4).features)[0]).all()


@pytest.mark.parametrize("learner", LEARNERS)
def test_fitting_again_forgets_what_was_learned_before(learner: Callable[[int], Cost]) -> None:
    tasks, rows = made_up_tasks(6), made_up_task("new", np.random.default_rng(9)).features
    fresh, used = learner(0), learner(0)
    used.fit(made_up_tasks(6, seed=5))

    fresh.fit(tasks)
    used.fit(tasks)

    np.testing.assert_array_equal(fresh.predict_rows(rows)[0], used.predict_rows(rows)[0])


def test_a_local_model_adds_what_the_shared_one_does_not_know() -> None:
    rng = np.random.default_rng(0)
    shared = RankCost()
    shared.fit([made_up_task(f"task {k}", rng) for k in range(16)])
    own, unseen = (made_up_task("own", rng, rows=n, local=1.5) for n in (96, 200))
    model = TransferCost("own", shared)

    before = accuracy(model, unseen)
    model.fit([own])
    after, alone = accuracy(model, unseen), RankCost()
    alone.fit([own])

    assert before == pytest.approx(accuracy(shared, unseen))
    assert after > before + 0.02
    assert after > accuracy(alone, unseen)


def test_transfer_fits_the_shared_model_to_the_other_tasks_only() -> None:
    rng = np.random.default_rng(0)
    others, own = [made_up_task(f"task {k}", rng) for k in range(12)], made_up_task("own", rng, rows=4)
    shared, expected = RankCost(), RankCost()
    expected.fit(others)

    TransferCost("own", shared).fit([*others, own])

    np.testing.assert_array_equal(shared.predict_rows(own.features)[0], expected.predict_rows(own.features)[0])


def accuracy(model: Cost, task: Measured) -> float:
    right, pairs = ordered_pairs(task.log2_seconds, model.predict_rows(task.features)[0])
    return right / pairs


@pytest.mark.clock
def test_thousands_of_measurements_are_learned_in_about_a_second() -> None:
    tasks = [made_up_task(f"task {k}", np.random.default_rng(k), rows=64) for k in range(50)]
    model = RankCost()

    start = time.process_time()
    model.fit(tasks)

    assert time.process_time() - start < 2.0


def test_programs_are_predicted_by_their_features() -> None:
    target = Target()
    scheduled = [apply_rules(programs.matmul(m, 32, 16), target).func for m in (8, 64)]
    candidates = [Program(func, target, {}) for func in scheduled]
    model = AnalyticCost()

    mean, spread = model.predict(candidates)

    assert mean[0] < mean[1]
    assert spread.shape == (2,)
    np.testing.assert_array_equal(mean, model.predict_rows(np.stack([c.features for c in candidates]))[0])
    assert model.predict([])[0].shape == (0,)


def test_failures_stand_behind_the_slowest_in_log_seconds() -> None:
    logs = group([1e-3, math.inf, 4e-3]).log2_seconds

    assert logs[1] == pytest.approx(logs[2] + 2)


def test_a_report_counts_pairs_that_measuring_can_tell_apart() -> None:
    task = group([1.0, 1.01, 2.0, math.inf])
    right_order, wrong_order = np.array([0.0, 0.1, 1.0, 2.0]), np.array([2.0, 1.0, 0.1, 0.0])
    spread = np.full(4, 10.0)

    best = evaluate([task], [(right_order, spread)], predicts_time=True)
    worst = evaluate([task], [(wrong_order, spread)], predicts_time=False)
    undecided = evaluate([task], [(np.zeros(4), spread)], predicts_time=False)

    assert (best.pairs, best.rank_accuracy, worst.rank_accuracy, undecided.rank_accuracy) == (5, 1.0, 0.0, 0.5)
    assert best.within_spread == 1.0
    assert best.rmse is not None and worst.rmse is None


def test_a_report_says_what_measuring_the_best_liked_programs_would_find() -> None:
    seconds = np.arange(1.0, 33.0)
    task = group(list(seconds))
    reversed_halves = np.concatenate([seconds[4:], seconds[:4]])

    good = evaluate([task], [(seconds, np.ones(32))], predicts_time=False)
    poor = evaluate([task], [(-reversed_halves, np.ones(32))], predicts_time=False)

    assert (good.top_recall, good.top_loss) == (1.0, 1.0)
    assert poor.top_recall == 0.0 and poor.top_loss > 10
    assert "100.0% of 496 pairs" in str(good)
