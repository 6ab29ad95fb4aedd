"""Search without a clock: a made-up space whose best point is known, and models that know more or less of its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tc.autotune.search.annealing import anneal
from tc.autotune.search.diversity import Novelty, select_diverse
from tc.autotune.search.policy import EvolutionarySearch, ModelSearch, RandomSearch, SearchPolicy
from tc.errors import ScheduleError
from tests.autotune.made_up import Product, Tiled, TileSpace, best_seconds, features_of, seconds_of

PRODUCTS = (Product(), Product(64, 3136, 576), Product(1024, 1024, 1024), Product(49, 512, 2048))


class NoisyModel:
    """Knows the cost but for an error that is the same whenever a program is seen; `noise` in log2 seconds."""

    def __init__(self, product: Product, noise: float, seed: int) -> None:
        self.product, self.noise = product, noise
        self.asked = 0
        self._rng = np.random.default_rng(seed)
        self._errors: dict[str, float] = {}

    def predict(self, candidates: Sequence[Tiled]) -> tuple[np.ndarray, np.ndarray]:
        self.asked += len(candidates)
        errors = [self._errors.setdefault(c.key, float(self._rng.normal())) for c in candidates]
        spread = np.full(len(candidates), self.noise)
        return np.log2(seconds_of(candidates, self.product)) + spread * np.array(errors), spread

    def observe(self, candidates: Sequence[Tiled], seconds: np.ndarray) -> None:
        pass


class TreeModel:
    """Learns from what was measured, as cost models do: boosted trees on features, left-out errors for a spread."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self._rows: list[np.ndarray] = []
        self._logs: list[np.ndarray] = []
        self._trees: list[object] = []
        self._spread = 1.0

    def predict(self, candidates: Sequence[Tiled]) -> tuple[np.ndarray, np.ndarray]:
        if not self._trees:
            return np.zeros(len(candidates)), np.ones(len(candidates))
        rows = features_of(candidates, self.product)
        found = np.stack([tree.inplace_predict(rows) for tree in self._trees])  # type: ignore[attr-defined]
        return found.mean(axis=0).astype(np.float64), np.full(len(candidates), self._spread)

    def observe(self, candidates: Sequence[Tiled], seconds: np.ndarray) -> None:
        import xgboost

        self._rows.append(features_of(candidates, self.product))
        self._logs.append(np.log2(seconds))
        rows, logs = np.concatenate(self._rows), np.concatenate(self._logs)
        logs = np.minimum(logs - logs.min(), 4.0)
        part = np.random.default_rng(0).permutation(len(rows)) % 3
        options = {"max_depth": 5, "eta": 0.2, "nthread": 1, "verbosity": 0, "min_child_weight": 2.0, "base_score": 1.0}
        self._trees, errors = [], np.zeros(len(rows))
        for k in range(3):
            tree = xgboost.train(options, xgboost.DMatrix(rows[part != k], label=logs[part != k]), 30)
            errors[part == k] = logs[part == k] - tree.inplace_predict(rows[part == k])
            self._trees.append(tree)
        self._spread = max(float(np.quantile(np.abs(errors), 0.68)), 0.01)


def trials_to_reach(
    policy: SearchPolicy[Tiled], product: Product, share: float, *, most: int, noise: float = 0.0, seed: int = 0
) -> int:
    """Trials until `share` of the best speed is reached; most + 1 if it is not."""
    rng = np.random.default_rng(seed)
    trials = 0
    while trials < most:
        batch = policy.propose(8)
        seconds = seconds_of(batch, product)
        good = np.flatnonzero(seconds <= best_seconds(product) / share)
        if len(good):
            return trials + int(good[0]) + 1
        policy.observe(batch, seconds * np.exp(rng.normal(0, noise, len(batch))))
        trials += len(batch)
    return most + 1


POLICIES: dict[str, Callable[[TileSpace, int], SearchPolicy[Tiled]]] = {
    "random": lambda space, seed: RandomSearch(space, np.random.default_rng(seed)),
    "evolution": lambda space, seed: EvolutionarySearch(space, np.random.default_rng(seed)),
    "model": lambda space, seed: ModelSearch(space, NoisyModel(Product(), 0.3, seed), np.random.default_rng(seed)),
}
policies = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)


@policies
def test_the_default_is_proposed_first_and_nothing_twice(make: Callable[[TileSpace, int], SearchPolicy[Tiled]]) -> None:
    space = TileSpace()
    policy = make(space, 0)
    seen: list[str] = []

    for _ in range(6):
        batch = policy.propose(16)
        policy.observe(batch, seconds_of(batch))
        seen.extend(candidate.key for candidate in batch)

    assert seen[0] == space.default().key
    assert len(seen) == 96
    assert len(set(seen)) == 96


def test_a_search_may_begin_anywhere() -> None:
    space = TileSpace()
    policies: list[SearchPolicy[Tiled]] = [
        RandomSearch(space, np.random.default_rng(0), from_default=False),
        EvolutionarySearch(space, np.random.default_rng(0), from_default=False),
        ModelSearch(space, NoisyModel(Product(), 0.3, 0), np.random.default_rng(0), from_default=False),
    ]

    for policy in policies:
        first, second = policy.propose(8), policy.propose(8)
        assert space.default().key not in {candidate.key for candidate in first}
        assert len({candidate.key for candidate in (*first, *second)}) == 16


@policies
def test_one_seed_proposes_the_same(make: Callable[[TileSpace, int], SearchPolicy[Tiled]]) -> None:
    def proposals(seed: int) -> list[str]:
        policy, found = make(TileSpace(), seed), []
        for _ in range(5):
            batch = policy.propose(8)
            policy.observe(batch, seconds_of(batch))
            found.extend(candidate.key for candidate in batch)
        return found

    assert proposals(3) == proposals(3)
    assert proposals(3) != proposals(4)


@policies
def test_what_was_observed_elsewhere_is_not_proposed(make: Callable[[TileSpace, int], SearchPolicy[Tiled]]) -> None:
    first = make(TileSpace(), 0)
    known = [c for _ in range(3) for c in first.propose(16)]
    resumed = make(TileSpace(), 0)

    resumed.observe(known, seconds_of(known))
    batch = resumed.propose(16)

    assert len(batch) == 16
    assert not {c.key for c in known} & {c.key for c in batch}


@policies
def test_limits_are_never_broken(make: Callable[[TileSpace, int], SearchPolicy[Tiled]]) -> None:
    policy = make(TileSpace(), 0)
    policy._explored._limits = lambda c: "too deep" if dict(c.point)["depth"] > 64 else None  # type: ignore[attr-defined]

    for _ in range(4):
        batch = policy.propose(16)
        policy.observe(batch, seconds_of(batch))

        assert all(dict(candidate.point)["depth"] <= 64 for candidate in batch)


class SmallSpace(TileSpace):
    """A few points: all but three knobs stay as they are, and half of the draws are not legal."""

    FREE = ("pack_a", "pack_b", "unroll")

    def at(self, point: dict) -> Tiled:
        kept = {name: value for name, value in point.items() if name in self.FREE}
        if kept.get("pack_a") and kept.get("unroll", 1) > 2:
            raise ScheduleError("no room")
        return super().at(kept)


@policies
def test_a_small_space_is_exhausted(make: Callable[[TileSpace, int], SearchPolicy[Tiled]]) -> None:
    policy = make(SmallSpace(), 0)
    seen: list[str] = []

    while batch := policy.propose(5):
        policy.observe(batch, seconds_of(batch))
        seen.extend(candidate.key for candidate in batch)

    assert len(seen) == len(set(seen)) == 12


@policies
def test_a_space_of_one_point_gives_it_once(make: Callable[[TileSpace, int], SearchPolicy[Tiled]]) -> None:
    class OnePoint(TileSpace):
        def at(self, point: object) -> Tiled:
            return super().at({})

        def neighbours(self, candidate: Tiled) -> list:
            return []

    policy = make(OnePoint(), 0)

    assert len(policy.propose(8)) == 1
    assert policy.propose(8) == []


@policies
def test_failures_are_survived_and_never_parents(make: Callable[[TileSpace, int], SearchPolicy[Tiled]]) -> None:
    policy = make(TileSpace(), 0)

    for _ in range(4):
        batch = policy.propose(8)
        policy.observe(batch, np.full(len(batch), np.inf))

    assert len(policy.propose(8)) == 8
    assert policy._explored.parents() == []  # type: ignore[attr-defined]


@policies
def test_corrected_times_decide_what_others_are_made_from(make: Callable[[TileSpace, int], SearchPolicy[Tiled]]) -> None:
    policy = make(TileSpace(), 0)
    batch = policy.propose(8)
    policy.observe(batch, np.arange(1.0, 9.0))

    policy.correct(batch[0], np.inf)
    policy.correct(batch[1], 3.5)

    parents = [parent.key for parent in policy._explored.parents()]  # type: ignore[attr-defined]
    assert parents == [batch[k].key for k in (2, 1, 3, 4, 5, 6, 7)]
    assert not {batch[0].key, batch[1].key} & {candidate.key for candidate in policy.propose(8)}


def test_a_perfect_model_leads_to_the_best_within_a_few_batches() -> None:
    trials = [
        trials_to_reach(ModelSearch(TileSpace(), NoisyModel(product, 0.0, 0), np.random.default_rng(seed)), product, 0.95, most=96)
        for product in PRODUCTS
        for seed in range(3)
    ]

    assert np.median(trials) <= 40
    assert sum(count > 96 for count in trials) <= 1


def test_a_batch_costs_some_two_hundred_scored_candidates() -> None:
    space, model = TileSpace(), NoisyModel(Product(), 0.3, 0)
    policy = ModelSearch(space, model, np.random.default_rng(0))

    for _ in range(5):
        batch = policy.propose(8)
        policy.observe(batch, seconds_of(batch))

    assert model.asked / 5 <= 220
    assert space.made / 5 <= 320  # beside those scored: illegal ones, and programs met again


@pytest.mark.slow
def test_a_learning_model_needs_fewer_trials_than_evolution_and_random_draws() -> None:
    def median(make: Callable[[Product, int], SearchPolicy[Tiled]]) -> float:
        cases = [(product, seed) for product in PRODUCTS[:3] for seed in range(3)]
        return float(np.median([trials_to_reach(make(p, s), p, 0.9, most=256, noise=0.02, seed=s) for p, s in cases]))

    learned = median(lambda p, s: ModelSearch(TileSpace(), TreeModel(p), np.random.default_rng(s)))
    evolved = median(lambda p, s: EvolutionarySearch(TileSpace(), np.random.default_rng(s)))
    drawn = median(lambda p, s: RandomSearch(TileSpace(), np.random.default_rng(s)))

    assert learned <= 0.7 * evolved
    assert learned <= 0.5 * drawn


def test_seeds_are_tried_in_the_first_batches() -> None:
    seeds = [{"rows": 14, "vectors": 2, "order": "kmn"}, {"rows": 24, "vectors": 4}, {"rows": 6, "vectors": 4, "depth": 256}]
    space = TileSpace()
    legal = [space.at(seeds[0]).key, space.at(seeds[2]).key]  # 24 x 4 accumulators are not

    policy = ModelSearch(space, NoisyModel(Product(), 0.3, 0), np.random.default_rng(0))
    policy.suggest(seeds)

    first = [candidate.key for candidate in policy.propose(8)]
    assert first[0] == space.default().key
    assert set(legal) <= set(first)


def test_a_batch_is_in_the_order_of_the_model() -> None:
    space, product = TileSpace(), Product()
    model = NoisyModel(product, 0.3, 0)
    policy = ModelSearch(space, model, np.random.default_rng(0))

    for _ in range(3):
        batch = policy.propose(8)
        later = [candidate for candidate in batch if candidate.key != space.default().key]
        mean, _ = model.predict(later)
        assert list(mean) == sorted(mean)
        policy.observe(batch, seconds_of(batch))


def test_diverse_choice_covers_values_before_it_repeats_them() -> None:
    points = [(("a", 1), ("b", 1)), (("a", 1), ("b", 1), ("c", 9)), (("a", 2), ("b", 2)), (("a", 1), ("b", 2))]

    assert select_diverse(points, np.array([0.0, 0.1, 0.2, 0.3]), 2, weight=0.0) == [0, 1]
    assert select_diverse(points, np.array([0.0, 0.1, 0.2, 0.3]), 2, weight=10.0)[1] == 2
    assert select_diverse(points, np.zeros(4), 9, weight=1.0)[0] == 0
    assert select_diverse([], np.zeros(0), 3, weight=1.0) == []


def test_novelty_is_the_distance_to_what_was_measured_in_units_of_its_own() -> None:
    novelty = Novelty()
    base = tuple((name, 0) for name in "abcdef")

    assert novelty.of([base]).tolist() == [1.0]
    novelty.add([base, (("a", 1), *base[1:])])

    assert novelty.of([base])[0] == 0.0
    assert novelty.of([(("a", 2), *base[1:])])[0] < novelty.of([(("a", 2), ("b", 2), ("c", 2), *base[3:])])[0]
    assert novelty.of([tuple((name, 9) for name in "abcdef")])[0] <= Novelty.MOST


def test_annealed_chains_end_low() -> None:
    rng = np.random.default_rng(0)

    def cost(xs: Sequence[int]) -> np.ndarray:
        return np.abs(np.array(xs, np.float64) - 700.0) / 100

    def move(pairs: Sequence[tuple[int, int]]) -> list[int]:
        return [x + int(rng.integers(-40, 41)) for x, _ in pairs]

    visited = anneal([int(x) for x in rng.integers(0, 1000, 16)], cost, move, 20, rng)

    assert len(visited) == 16 * 21
    assert cost(visited[-16:]).mean() < 0.3 < cost(visited[:16]).mean()


def test_annealing_rests_where_there_is_no_move() -> None:
    visited = anneal([1, 2, 3], lambda xs: np.array(xs, np.float64), lambda pairs: [None] * len(pairs), 5, np.random.default_rng(0))

    assert visited == [1, 2, 3]
    assert anneal([], lambda xs: np.zeros(0), lambda pairs: [x for x, _ in pairs], 5, np.random.default_rng(0)) == []
