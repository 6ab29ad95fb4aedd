"""The search: which types and thresholds give the least error for their time.

Every trial is one run of the simulated graph and a predicted latency; all trials together have a Pareto front, of which a few are then
compiled and measured. Deterministic: the same seed, data and predictions try the same strategies in the same order, so a search that was
stopped goes on by reading its trials from the state file.

    greedy     thresholds first, with corrected biases and migrated operands; then each product alone, then products widened one after
               the other, those first that lose the least time for the most error; then small changes to what is on the front
    annealing  small changes, taken when they are better, or by chance that gets smaller
    random     drawn strategies, every other one with corrected biases, half of them with migrated operands

Source: the three searches of HAGO; the order of widening follows HAWQ, with measured instead of second-order sensitivities.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from tc.errors import check_word
from tc.quantization.evaluate import Quality
from tc.quantization.journal import Journal, is_error, is_trial
from tc.quantization.migration import STRENGTHS
from tc.quantization.strategy import Strategy, all_float, all_small
from tc.quantization.thresholds import METHODS, WEIGHT_METHODS
from tc.quantization.topology import Topology

ALGORITHMS = ("greedy", "annealing", "random")
WIDENED_STEPS = 24
"""How many prefixes of the order of widening are tried at most."""

CORRECTED_METHODS = 3
"""The best methods for thresholds are tried with corrected biases, too: what clips more shifts results more."""

_LEAST_LOSS = 1e-3
"""Below it, points of a front are as good as f32."""

_COOLING = 60
"""Trials in which annealing's temperature falls to a tenth."""


@dataclass(frozen=True)
class Trial:
    """A guess and what came of it. `stage`: what the search was doing. `predicted`: seconds of a call."""

    strategy: Strategy
    stage: str
    quality: Quality
    predicted: float


class _OverError(Exception):
    """The budget of trials or time is used up."""


class Search:
    """Trials until the budget is used up. `trials` grows; an interruption leaves it as far as it came.

    evaluate, predict: quality and seconds of a guess. error_of: its error, roughly: what products are ranked by. `errors`: of each product
    alone in its smallest type, where the search asked.
    """

    def __init__(
        self,
        topology: Topology,
        evaluate: Callable[[Strategy], Quality],
        predict: Callable[[Strategy], float],
        journal: Journal,
        *,
        error_of: Callable[[Strategy], float] | None = None,
        seed: int = 0,
        max_trials: int | None = None,
        budget_seconds: float | None = None,
        on_trial: Callable[[Trial, int], None] | None = None,
        on_layer: Callable[[int, int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topology, self.journal = topology, journal
        self.trials: list[Trial] = []
        self.errors: dict[str, float] = {}
        self._evaluate, self._predict, self._on_trial, self._on_layer = evaluate, predict, on_trial, on_layer
        self._error_of = error_of or (lambda strategy: evaluate(strategy).error)
        self._rng = np.random.default_rng(seed)
        self._max_trials, self._clock = max_trials, clock
        self._end = math.inf if budget_seconds is None else clock() + budget_seconds
        self._by_key: dict[str, Trial] = {}

    def run(self, algorithm: str = "greedy") -> str:
        """Search; returns why it ended: "budget", "finished" or "interrupted"."""
        check_word("search", algorithm, ALGORITHMS)
        try:
            for strategy, stage in ((all_float(self.topology), "start"), (all_small(self.topology), "start")):
                self._try(strategy, stage, is_needed=True)
            {"greedy": self._greedy, "annealing": self._anneal, "random": self._random}[algorithm]()
        except _OverError:
            return "budget"
        except KeyboardInterrupt:
            if len(self.trials) < 2:
                raise
            return "interrupted"
        return "finished"

    def _try(self, strategy: Strategy, stage: str, is_needed: bool = False) -> Trial:
        key = strategy.key
        if key in self._by_key:
            return self._by_key[key]
        if not is_needed:
            if self._max_trials is not None and len(self.trials) >= self._max_trials:
                raise _OverError
            if self._clock() >= self._end and key not in self.journal.known:
                raise _OverError
        made = lambda: {"strategy": strategy.to_json(), "quality": asdict(self._evaluate(strategy))}  # noqa: E731
        entry = self.journal.remember(key, made, is_trial)
        trial = Trial(strategy, stage, Quality(**entry["quality"]), self._predict(strategy))
        self.trials.append(trial)
        self._by_key[key] = trial
        if self._on_trial is not None:
            self._on_trial(trial, len(self.trials))
        return trial

    # -- greedy

    def _greedy(self) -> None:
        base = self._best_thresholds()
        self._measure_sites(base)
        order = self._order(base)
        for count in coarse_first(widening_steps(len(order))):
            self._try(base.with_choice(dict(order[:count])), "widening")
        self._improve()

    def _best_thresholds(self) -> Strategy:
        tried = self._ranked((all_small(self.topology, method) for method in METHODS), "thresholds")
        corrected = (replace(strategy, is_corrected=True) for strategy in tried[:CORRECTED_METHODS])
        best = self._ranked((tried[0], *corrected), "thresholds")[0]
        best = self._ranked((replace(best, weights=method) for method in WEIGHT_METHODS), "thresholds")[0]
        if not self.topology.groups:
            return best
        flags = sorted({True, best.is_corrected})
        migrated = (migrate(self.topology, replace(best, is_corrected=flag), s) for s in STRENGTHS for flag in flags)
        return self._ranked((best, *migrated), "migration")[0]

    def _ranked(self, strategies: Iterable[Strategy], stage: str) -> list[Strategy]:
        """All of them tried, the most accurate first."""
        return [trial.strategy for trial in sorted((self._try(s, stage) for s in strategies), key=lambda trial: trial.quality.loss)]

    def _measure_sites(self, base: Strategy) -> None:
        """The error of each site alone in its smallest type: no trials, but lines in the journal as they are."""
        floats = dict(all_float(self.topology).choices)
        sites = [site for site in self.topology.sites if len(site.choices) > 1]
        for number, site in enumerate(sites, start=1):
            alone = base.with_choice({**floats, site.name: 0})
            key = f"alone {alone.key}"
            if self._clock() >= self._end and key not in self.journal.known:
                raise _OverError
            self.errors[site.name] = self.journal.remember(key, lambda s=alone: {"error": self._error_of(s)}, is_error)["error"]  # type: ignore[misc]
            if self._on_layer is not None:
                self._on_layer(number, len(sites))

    def _order(self, base: Strategy) -> list[tuple[str, int]]:
        """Sites with the wider choice that each should get, those first that gain most accuracy for the time they lose."""
        ranked = []
        small = self._predict(base)
        for site in self.topology.sites:
            if site.name not in self.errors:
                continue
            options = []
            for choice in range(1, len(site.choices)):
                lost = self._predict(base.with_choice({site.name: choice})) - small
                options.append((lost, -choice, choice))
            lost, _, choice = min(options)
            power = self.errors[site.name] ** 2
            ranked.append((0 if lost <= 0 else 1, -power / max(lost, 1e-9), site.name, choice))
        return [(name, choice) for _, _, name, choice in sorted(ranked)]

    def _improve(self) -> None:
        """Small changes to strategies of the front, those kept that are better than what they were made of."""
        stale = 0
        while stale < 200:
            front = pareto(self.trials)
            parent = front[int(self._rng.integers(len(front)))]
            before = len(self.trials)
            child = self._try(self._change(parent.strategy), "refining")
            is_new = len(self.trials) > before
            stale = 0 if is_new and child in pareto([*front, child]) else stale + 1

    def _change(self, strategy: Strategy) -> Strategy:
        """Another method for a class, strength for a group, choice for a site, or biases corrected or not, drawn; three changes at most."""
        for _ in range(int(self._rng.integers(1, 4))):
            kind = self._rng.random()
            if kind < 0.05:
                strategy = replace(strategy, is_corrected=not strategy.is_corrected)
            elif kind < 0.2 and strategy.strengths:
                index = int(self._rng.integers(len(strategy.strengths)))
                strategy = strategy.with_strength(index, float(self._rng.choice((0.0, *STRENGTHS))))
            elif kind < 0.5 and strategy.methods:
                index = int(self._rng.integers(len(strategy.methods)))
                strategy = strategy.with_method(index, str(self._rng.choice(list(METHODS))))
            else:
                site = self.topology.sites[int(self._rng.integers(len(self.topology.sites)))]
                strategy = strategy.with_choice({site.name: int(self._rng.integers(len(site.choices)))})
        return strategy

    # -- the others

    def _anneal(self) -> None:
        current = self._try(all_small(self.topology, "mse"), "annealing")
        step = 0
        while True:
            child = self._try_changed(current.strategy, "annealing")
            heat = 0.5 * 10 ** (-step / _COOLING)
            worse = _score(child) - _score(current)
            if worse <= 0 or self._rng.random() < math.exp(-worse / max(heat, 1e-9)):
                current = child
            step += 1
            if step > 20 * _COOLING:
                return

    def _try_changed(self, strategy: Strategy, stage: str) -> Trial:
        return self._try(self._change(strategy), stage)

    def _random(self) -> None:
        for number in range(10_000):
            share = float(self._rng.random())
            names = {}
            for site in self.topology.sites:
                is_wide = self._rng.random() < share
                names[site.name] = int(self._rng.integers(1, len(site.choices))) if is_wide and len(site.choices) > 1 else 0
            methods = tuple(str(m) for m in self._rng.choice(list(METHODS), len(self.topology.classes)))
            drawn = all_small(self.topology).with_choice(names)
            weights = str(self._rng.choice(WEIGHT_METHODS))
            drawn = replace(drawn, methods=methods, weights=weights, is_corrected=number % 2 == 1)
            if number % 4 >= 2 and self.topology.groups:
                drawn = migrate(self.topology, drawn, float(self._rng.choice(STRENGTHS)))
            self._try(drawn, "random")


def migrate(topology: Topology, strategy: Strategy, strength: float) -> Strategy:
    """All operands migrated; what else reads one, such as a residual sum, reads it in f32: it would be stored a second time for that."""
    values = {group.value for group in topology.groups}
    others = (site for site in topology.sites if not site.is_contraction and any(edge.value in values for edge in site.edges))
    return strategy.with_choice({site.name: len(site.choices) - 1 for site in others}).with_strengths(strength)


def _score(trial: Trial) -> float:
    return math.log(trial.quality.loss + 1e-9) + 2 * math.log(max(trial.predicted, 1e-12))


def widening_steps(count: int) -> list[int]:
    """1 to `count`, all of them or WIDENED_STEPS, closer at the beginning."""
    if count <= WIDENED_STEPS:
        return list(range(1, count + 1))
    return sorted({max(1, round(count * (i / WIDENED_STEPS) ** 1.5)) for i in range(1, WIDENED_STEPS + 1)})


def coarse_first(steps: Sequence[int]) -> list[int]:
    """The same, the middle first, then the middles of both halves and so on: a search that ends early has seen all of the range."""
    found, parts = [], [list(steps)]
    while parts:
        part = parts.pop(0)
        if part:
            middle = len(part) // 2
            found.append(part[middle])
            parts += [part[:middle], part[middle + 1 :]]
    return found


def pareto(trials: Iterable[Trial]) -> list[Trial]:
    """Those that no other beats in loss and predicted time, fastest first; of equals the first."""
    best, found = math.inf, []
    for trial in sorted(trials, key=lambda t: (t.predicted, t.quality.loss)):
        if trial.quality.loss < best:
            best = trial.quality.loss
            found.append(trial)
    return found


def _spread(front: Sequence[Trial], count: int) -> list[Trial]:
    """Points of a front at even distances along it, time and the logarithm of loss both counted from 0 to 1."""
    seconds = np.array([trial.predicted for trial in front])
    losses = np.log(np.array([trial.quality.loss for trial in front]) + _LEAST_LOSS)
    steps = sum(np.abs(np.diff(each)) / max(float(np.ptp(each)), 1e-12) for each in (seconds, losses))
    along = np.concatenate([[0.0], np.cumsum(steps)])
    return [front[int(np.abs(along - place).argmin())] for place in np.linspace(0.0, along[-1], count + 1)[:-1]]  # the last is f32


def worth_measuring(topology: Topology, trials: list[Trial], count: int) -> Iterator[Trial]:
    """f32, everything in 8 bits by default, all products in 8 bits with the best thresholds, `count` of the front, spread over it, and the
    two of it that are just within the limits of what is chosen by default; none twice."""
    front, seen = pareto(trials), set()
    products = [site.name for site in topology.sites if site.is_contraction]
    same = [t for t in trials if not any(dict(t.strategy.choices)[name] for name in products)]
    best_small = min(same, key=lambda t: t.quality.loss)
    plain = [t for t in same if len(set(t.strategy.methods)) <= 1]  # one method for all fits the inputs of the search less closely
    best_plain = min(plain, key=lambda t: t.quality.loss)
    usual = [t for t in front if t.quality.is_within_limits][:2]  # the second: other inputs may put the first over them
    for trial in (trials[0], trials[1], best_plain, best_small, *_spread(front, count), *usual):
        if trial.strategy.key not in seen:
            seen.add(trial.strategy.key)
            yield trial
