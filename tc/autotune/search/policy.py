"""Search: which candidates of a task to measure next.

A policy proposes batches and is told their times. It knows a space only by `SearchSpace`, and programs only by `key` (equal programs,
equal keys) and `point`; it reads no clock and no files, and all chance comes from the generator it is given, so equal calls propose
equal candidates. No policy proposes a program twice, or one that was observed, or one that `limits` refuses; every policy proposes
the default schedule first, so the best that was measured is never worse than it. (With `from_default=False` it is a point like any
other: so searches are compared, where a good default leaves little to find.)

`ModelSearch` scores about 200 candidates for a batch, fewer with less `effort`. Making one and its features takes 5 to 25 milliseconds,
building and timing one a hundred or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from tc.autotune.search.annealing import anneal
from tc.autotune.search.diversity import Novelty, Point, select_diverse
from tc.errors import ScheduleError
from tc.schedule.knobs import Value


class Proposed(Protocol):
    """A point of a space and the program it stands for."""

    @property
    def key(self) -> str: ...

    @property
    def point(self) -> Point: ...


C = TypeVar("C", bound=Proposed)
C_contra = TypeVar("C_contra", bound=Proposed, contravariant=True)


class SearchSpace(Protocol[C]):
    """The candidates of a task. `at` and `sample` raise ScheduleError where the point is not legal; `at_all` has None there."""

    def default(self) -> C: ...

    def at(self, point: Mapping[str, Value]) -> C: ...

    def at_all(self, points: Sequence[Mapping[str, Value]]) -> list[C | None]: ...

    def sample(self, rng: np.random.Generator) -> C: ...

    def mutation(self, candidate: C, rng: np.random.Generator) -> Mapping[str, Value]: ...

    def crossing(self, first: C, second: C, rng: np.random.Generator) -> Mapping[str, Value]: ...

    def neighbours(self, candidate: C) -> list[dict[str, Value]]: ...

    def size(self) -> float: ...


class Predictor(Protocol[C_contra]):
    """What is believed about candidates that were not measured. Lower is faster, in any unit in which differences mean something."""

    def predict(self, candidates: Sequence[C_contra]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and spread, float64[n] each, the same for the same candidates until the next `observe`."""

    def observe(self, candidates: Sequence[C_contra], seconds: np.ndarray) -> None:
        """Learn from measurements: seconds, inf for failures."""


class SearchPolicy(Protocol[C]):
    def propose(self, count: int) -> list[C]:
        """Up to `count` different candidates that were neither proposed nor observed before; fewer when no more are found."""

    def observe(self, candidates: Sequence[C], seconds: np.ndarray) -> None:
        """What was measured: float64[n] seconds, inf for failures. Candidates need not have been proposed here (a resumed search)."""

    def correct(self, candidate: C, seconds: float) -> None:
        """An observed candidate was measured again, and longer; inf if it turned out to be wrong."""


Limits = Callable[[C], "str | None"]
"""Why a candidate must not be measured (it needs too much memory, say), or None."""

ELITE = 16
"""The best measured candidates, parents of new ones. Older ones leave only their keys: programs are large."""

TRIES = 20
"""Draws of a random candidate before it is said that there is no new one."""


class _Explored(Generic[C]):
    """A space, what was taken from it, and the best of what was measured."""

    def __init__(self, space: SearchSpace[C], limits: Limits[C] | None, from_default: bool) -> None:
        self.space = space
        self.starts = [space.default()] if from_default else []
        self.taken: set[str] = set()
        self.elite: list[tuple[float, C]] = []
        self.refused = 0
        self._limits = limits

    def make(self, draw: Callable[[], C]) -> C | None:
        """A candidate, seen before or not; None, and counted, if it is not legal or beyond the limits."""
        try:
            return self._within(draw())
        except ScheduleError:
            return self._within(None)

    def _within(self, candidate: C | None) -> C | None:
        if candidate is None or (self._limits is not None and self._limits(candidate) is not None):
            self.refused += 1
            return None
        return candidate

    def at(self, point: Mapping[str, Value]) -> C | None:
        return self.make(partial(self.space.at, point))

    def at_all(self, points: Sequence[Mapping[str, Value]]) -> list[C | None]:
        """`at` of several points."""
        return [self._within(candidate) for candidate in self.space.at_all(points)]

    def sample(self, rng: np.random.Generator) -> C | None:
        return self.make(partial(self.space.sample, rng))

    def child(self, first: C, second: C, rng: np.random.Generator) -> Mapping[str, Value]:
        """A point near `first`, now and then with traits of `second`."""
        if first.key != second.key and rng.random() < CROSSED:
            return self.space.crossing(first, second, rng)
        return self.space.mutation(first, rng)

    def is_new(self, candidate: C) -> bool:
        return candidate.key not in self.taken

    def take(self, candidates: Sequence[C]) -> list[C]:
        """Those that are new, once each; from now on they are not."""
        new = []
        for candidate in candidates:
            if candidate.key not in self.taken:
                self.taken.add(candidate.key)
                new.append(candidate)
        return new

    def observe(self, candidates: Sequence[C], seconds: np.ndarray) -> None:
        self.taken.update(candidate.key for candidate in candidates)
        measured = [(float(s), c) for s, c in zip(seconds, candidates, strict=True) if math.isfinite(s)]
        self.elite = sorted(self.elite + measured, key=lambda pair: pair[0])[:ELITE]

    def correct(self, candidate: C, seconds: float) -> None:
        self.elite = [pair for pair in self.elite if pair[1].key != candidate.key]
        self.observe([candidate], np.array([seconds]))

    def parents(self) -> list[C]:
        """The best measured candidates, the best first."""
        return [candidate for _, candidate in self.elite]

    def fill(self, found: Sequence[C], count: int, rng: np.random.Generator) -> list[C]:
        """`found`, cut or filled up to `count` with random new candidates, with all that is near the best once those get rare."""
        taken = self.take(found[:count])
        for draw in (self._random(rng), self._walk()):
            while len(taken) < count:
                candidate = next(draw, None)
                if candidate is None:
                    break
                taken.extend(self.take([candidate]))
        return taken

    def _random(self, rng: np.random.Generator) -> Iterator[C]:
        while (candidate := self.draw_new(rng)) is not None:
            yield candidate

    def draw_new(self, rng: np.random.Generator) -> C | None:
        """A random new candidate; None after `TRIES` that were not."""
        for _ in range(TRIES):
            candidate = self.sample(rng)
            if candidate is not None and self.is_new(candidate):
                return candidate
        return None

    def _walk(self) -> Iterator[C]:
        """What is reached from the best one by steps of one knob, near ones first: all of a small space."""
        front = self.parents() or list(self.starts)
        reached = {candidate.key for candidate in front}
        while front and len(reached) < WALKED:
            candidate = front.pop(0)
            for near in self.near(candidate):
                if near.key not in reached:
                    reached.add(near.key)
                    front.append(near)
                    yield near

    def near(self, candidate: C) -> Iterator[C]:
        """The legal neighbours."""
        yield from (made for made in self.at_all(self.space.neighbours(candidate)) if made is not None)


WALKED = 256
"""Candidates looked at before a space in which random draws find nothing new is said to be exhausted."""


class _Search(Generic[C]):
    """A search of a space that remembers what it has explored."""

    def __init__(
        self, space: SearchSpace[C], rng: np.random.Generator, limits: Limits[C] | None = None, *, from_default: bool = True
    ) -> None:
        self._explored = _Explored(space, limits, from_default)
        self._rng = rng

    def observe(self, candidates: Sequence[C], seconds: np.ndarray) -> None:
        self._explored.observe(candidates, seconds)

    def correct(self, candidate: C, seconds: float) -> None:
        self._explored.correct(candidate, seconds)


class RandomSearch(_Search[C]):
    """The default, then random candidates."""

    def propose(self, count: int) -> list[C]:
        return self._explored.fill(self._explored.starts, count, self._rng)


CROSSED = 0.3
"""Children and moves that join two candidates instead of changing one."""

WILD = 0.1
"""Children of evolution that are random candidates instead."""


class EvolutionarySearch(_Search[C]):
    """A population of the best measured candidates has children by crossover and mutation; no model.

    Parents are drawn with probability falling with rank.
    Source: the evolutionary search of Zheng et al. (2020, "Ansor"), measured times in the place of predicted ones.
    """

    def propose(self, count: int) -> list[C]:
        explored, rng = self._explored, self._rng
        batch: _Batch[C] = _Batch(explored.taken, count)
        batch.add(explored.starts)
        parents = explored.parents()
        for _ in range(TRIES * count if parents else 0):
            if not batch.left:
                break
            child = explored.draw_new(rng) if rng.random() < WILD else self._child(parents)
            batch.add([] if child is None else [child])
        return explored.fill(batch.chosen, count, rng)

    def _child(self, parents: Sequence[C]) -> C | None:
        """Of one parent by mutation or of two by crossover."""
        weights = 1.0 / np.arange(1, len(parents) + 1)
        pick = self._rng.choice(len(parents), size=2, p=weights / weights.sum())
        return self._explored.at(self._explored.child(parents[pick[0]], parents[pick[1]], self._rng))


CHAINS = 12
"""Chains of annealing side by side, scored together."""

STEPS = 7
"""Moves of every chain in each of the two walks of a batch."""

LEAST_STEPS = 2
"""The same with the least effort."""

ROUNDS = 3
"""Walks of the first batch after each other, at most: from random places the first leads to where good ones can be seen from."""

WORTHWHILE = 0.03
"""Of the best cost in log2, what a walk must gain for another to follow it."""

OPTIMISM = (0.0, 2.0)
"""Spreads of the prediction by which a candidate is taken to be better than its mean: in one half of a batch, and in the other."""

SEED_SHARE = 0.25
"""Of a batch, as long as there are any: points that were good elsewhere."""

BLIND_SHARE = 0.125
"""Of a first batch: steps from the default, and again random candidates, both as different as can be, about which no model is asked."""

NEAR_SHARE = 0.15
"""Of a batch: the best by the model of those one step from the best measured ones, whatever the model thinks of others."""

RANDOM_SHARE = 0.05
"""Of a batch, on average: candidates about which the model is not asked."""

DIVERSITY = 0.3
"""Weight of covering all knobs anew, in units of the gap between the best and the worst candidate that can be chosen."""

CHOICE = 3
"""Candidates to choose from, per place: the best by the model."""

KEPT = 48
"""The best scored candidates that wait for the next batch."""


class ModelSearch(_Search[C]):
    """Candidates that a cost model finds good, different from each other.

    For every batch annealed chains move over the space by mutation and crossover, from the best measured candidates, from what
    the model liked before, and from random places: one walk seeks what the model finds best, another what may be best for all it
    knows, in the first batch each as often as it still gets better. Of all they meet, of the steps of one knob from the best
    measured candidates and of what was kept, good and diverse ones are taken, half by each view; some 200 are scored, some 400 at
    first. Suggestions go into a batch before all others; its order is the model's.
    Source: "Learning to Optimize Tensor Programs" (Chen et al., 2018), section 3.3, and the evolutionary search of "Ansor" (Zheng et
    al., 2020). What we changed: few candidates are scored, so chains are short, start at good places, and are a population
    (`annealing`); what is uncertain is preferred as in bandits, and trees do not know where they know nothing, so a prediction is
    taken to be the less certain the farther it is from all measurements.

    `effort`, 0..1: how much of this is done; less where measuring takes less time than proposing.
    """

    def __init__(
        self,
        space: SearchSpace[C],
        model: Predictor[C],
        rng: np.random.Generator,
        limits: Limits[C] | None = None,
        *,
        from_default: bool = True,
    ) -> None:
        super().__init__(space, rng, limits, from_default=from_default)
        self._model = model
        self._seeds: list[Mapping[str, Value]] = []
        self._kept: list[C] = []
        self._novelty = Novelty()
        self.effort = 1.0

    def observe(self, candidates: Sequence[C], seconds: np.ndarray) -> None:
        super().observe(candidates, seconds)
        self._novelty.add([c.point for c in candidates])
        self._model.observe(candidates, seconds)

    def suggest(self, points: Iterable[Mapping[str, Value]]) -> None:
        """Points that were good elsewhere, the most promising first: they go before those suggested earlier."""
        self._seeds = [*points, *self._seeds]

    def propose(self, count: int) -> list[C]:
        explored, views = self._explored, _Views(self._model, self._novelty)
        batch: _Batch[C] = _Batch(explored.taken, count)
        batch.add(explored.starts)
        batch.add(self._planted(math.ceil(SEED_SHARE * count)))
        near = self._neighbours(max(count, round(3 * self.effort * count)))
        if explored.elite:
            batch.add(views.ranked(near, OPTIMISM[0])[: max(1, round(NEAR_SHARE * count))])
            batch.add(self._random(int(self._rng.binomial(count, RANDOM_SHARE))))
        else:
            for group in (near, self._random(2 * count)):
                batch.add(self._diverse(group, np.zeros(len(group)), round(BLIND_SHARE * count)))
        met = [*near, *self._kept]
        for places, optimism in zip((batch.left // 2, count), OPTIMISM, strict=True):
            met += self._walked(views, optimism)
            choice = views.ranked([c for c in met if batch.wants(c)], optimism)[: CHOICE * places]
            batch.add(self._diverse(choice, views.cost(choice, optimism), places))
        self._kept = views.ranked([c for c in met if batch.wants(c)], OPTIMISM[0])[:KEPT]
        taken = explored.fill(batch.chosen, count, self._rng)
        starts = {start.key for start in explored.starts}
        return sorted(views.ranked(taken, OPTIMISM[0]), key=lambda c: c.key not in starts)  # what is promising is known early

    def _planted(self, count: int) -> list[C]:
        """The next seeds that are legal and new here."""
        planted: list[C] = []
        while self._seeds and len(planted) < count:
            point = self._seeds.pop(0)
            candidate = self._explored.at(point)
            if candidate is not None and self._explored.is_new(candidate):
                planted.append(candidate)
        return planted

    def _walked(self, views: _Views[C], optimism: float) -> list[C]:
        """What chains meet. As long as nothing was measured they go on from the best of it while that gets better."""
        met: list[C] = []
        least = math.inf
        steps, rounds = max(LEAST_STEPS, round(self.effort * STEPS)), math.ceil(self.effort * ROUNDS)
        for _ in range(1 if self._explored.elite else rounds):
            good = views.ranked([c for c in [*met, *self._kept] if self._explored.is_new(c)], optimism)
            met += anneal(self._starts(good), partial(views.cost, optimism=optimism), self._moved, steps, self._rng)
            before, least = least, float(np.min(views.cost(met, optimism), initial=math.inf))
            if not least < before - WORTHWHILE:
                break
        return met

    def _starts(self, good: Sequence[C]) -> list[C]:
        """Where chains begin: at the best measured and the best scored candidates, and a quarter anywhere."""
        known = self._explored.parents()[: CHAINS // 2] or self._explored.starts
        starts = [*known, *good][: CHAINS - CHAINS // 4]
        return [*starts, *self._random(CHAINS - len(starts))]

    def _moved(self, pairs: Sequence[tuple[C, C]]) -> list[C | None]:
        return self._explored.at_all([self._explored.child(candidate, other, self._rng) for candidate, other in pairs])

    def _neighbours(self, count: int) -> list[C]:
        """Up to `count` legal new candidates one step from the two best ones, or from the default; of all knobs alike."""
        explored = self._explored
        centres = explored.parents()[:2] or explored.starts
        points = [point for centre in centres for point in explored.space.neighbours(centre)]
        order = list(self._rng.permutation(len(points)))
        found: list[C] = []
        while order and len(found) < count:
            next_ones = [points[i] for i in order[: count - len(found)]]
            order = order[len(next_ones) :]
            found += [made for made in explored.at_all(next_ones) if made is not None and explored.is_new(made)]
        return found

    def _random(self, count: int) -> list[C]:
        """What `count` draws find."""
        draws = (self._explored.sample(self._rng) for _ in range(count))
        return [candidate for candidate in draws if candidate is not None]

    def _diverse(self, candidates: Sequence[C], cost: np.ndarray, count: int) -> list[C]:
        taken = select_diverse([c.point for c in candidates], cost, count, weight=DIVERSITY)
        return [candidates[i] for i in taken]


class _Views(Generic[C]):
    """What is thought of candidates as long as nothing new is learned; of each program the model is asked once."""

    def __init__(self, model: Predictor[C], novelty: Novelty) -> None:
        self._model, self._novelty = model, novelty
        self._known: dict[str, tuple[float, float]] = {}

    def cost(self, candidates: Sequence[C], optimism: float) -> np.ndarray:
        """float64[n], lower is better: the mean, less `optimism` times what is not known."""
        unknown = list({c.key: c for c in candidates if c.key not in self._known}.values())
        if unknown:
            mean, spread = self._model.predict(unknown)
            deviation = spread * self._novelty.of([c.point for c in unknown])
            self._known.update(zip((c.key for c in unknown), zip(mean.tolist(), deviation.tolist())))
        means, deviations = np.array([self._known[c.key] for c in candidates], np.float64).reshape(-1, 2).T
        return np.asarray(means - optimism * deviations)

    def ranked(self, candidates: Sequence[C], optimism: float) -> list[C]:
        """The best first, each program once."""
        unique = list({c.key: c for c in candidates}.values())
        return [unique[i] for i in np.argsort(self.cost(unique, optimism), kind="stable")]


class _Batch(Generic[C]):
    """Candidates chosen so far: new ones, each once, at most `count`."""

    def __init__(self, taken: Set[str], count: int) -> None:
        self._taken, self._count = taken, count
        self._chosen: dict[str, C] = {}

    @property
    def chosen(self) -> list[C]:
        return list(self._chosen.values())

    @property
    def left(self) -> int:
        return max(self._count - len(self._chosen), 0)

    def wants(self, candidate: C) -> bool:
        return candidate.key not in self._taken and candidate.key not in self._chosen

    def add(self, candidates: Iterable[C]) -> None:
        for candidate in candidates:
            if self.left and self.wants(candidate):
                self._chosen[candidate.key] = candidate
