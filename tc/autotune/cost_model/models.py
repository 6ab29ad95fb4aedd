"""Cost models: which of several scheduled programs will be fastest.

All answer the same question from the same features: `predict` gives a mean, lower for faster programs, and a spread, the error to
expect of it; both in log2 of seconds, up to a constant that is the same for all programs of one task. Models that learn start
from a roofline's estimate and learn by how much it is wrong, from measurements of any tasks.
Source: Chen et al., "Learning to Optimize Tensor Programs" (2018): boosted trees on a rank loss, and section 4, transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tc.autotune.cost_model.accuracy import CostReport, Measured, evaluate
from tc.codegen.kernels import finish_scheduled
from tc.cost.device_features import DEVICE_FEATURE_NAMES, extract_device
from tc.cost.features import ESTIMATE_COLUMN, FEATURE_NAMES, extract
from tc.ir.cached import cached_property
from tc.ir.loop import PrimFunc
from tc.target import Target

Prediction = tuple[np.ndarray, np.ndarray]
"""Mean and spread, float64[n] each."""

LOG2_CYCLES_PER_SECOND = 31.5
"""About 3 GHz."""

UNTAUGHT_SPREAD = 1.0
"""The spread of a model that has seen no measurement: a factor of two."""

MOST_LOG2 = 4.0
"""Programs that are slower than the fastest by more than this (log2) are told apart no more."""

LEAST_LOCAL_ROWS = 8
"""Measurements of a task from which on they say more about it than those of other tasks."""

MEMBERS = 4
"""Boosters of an ensemble, each fitted to another part of the measurements."""


@dataclass(frozen=True, eq=False)
class Program:
    """A scheduled PrimFunc, the machine it is for, and the sizes of its symbolic dims. `final`: the same finished, if that is known."""

    func: PrimFunc
    target: Target
    dims: Mapping[str, int]
    final: PrimFunc | None = None

    @cached_property
    def features(self) -> np.ndarray:
        """float32[n_features]. ScheduleError where the target's passes decline the program."""
        if self.target.device is None:
            return extract(self.func, self.target, self.dims)
        return extract_device(self.final or finish_scheduled(self.func, self.target), self.target.device, self.dims)


def column_names(count: int) -> tuple[str, ...]:
    """What the columns of a row of so many features are called: rows of processors and of devices have different lengths."""
    names = {len(each): each for each in (FEATURE_NAMES, DEVICE_FEATURE_NAMES)}
    return names[count]


assert len(FEATURE_NAMES) != len(DEVICE_FEATURE_NAMES) and ESTIMATE_COLUMN == 0, "rows are told apart, and begin with the estimate"


class Cost(Protocol):
    """Predicts which programs are fast."""

    def predict(self, programs: Sequence[Program]) -> Prediction:
        """Mean and spread for each program."""
        ...

    def predict_rows(self, features: np.ndarray) -> Prediction:
        """The same from float32[n, n_features]."""
        ...

    def fit(self, groups: Sequence[Measured]) -> None:
        """Forget what was learned before, and learn from these measurements."""
        ...

    def report(self, groups: Sequence[Measured]) -> CostReport:
        """How good the model is on measurements; an honest report needs ones that it was not fitted to."""
        ...


class _RowCost:
    """What all models share: programs are rows of features."""

    predicts_time = True

    def predict_rows(self, features: np.ndarray) -> Prediction:
        raise NotImplementedError

    def importance(self) -> tuple[tuple[str, float], ...]:
        """Feature names and their part of what the model gained from features, largest first."""
        return ()

    def predict(self, programs: Sequence[Program]) -> Prediction:
        if not programs:
            return np.zeros(0), np.zeros(0)
        return self.predict_rows(np.stack([program.features for program in programs]))

    def report(self, groups: Sequence[Measured]) -> CostReport:
        predictions = [self.predict_rows(group.features) for group in groups]
        return evaluate(groups, predictions, predicts_time=self.predicts_time, importance=self.importance())


class RandomCost(_RowCost):
    """Knows nothing: the model to beat."""

    predicts_time = False

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def predict_rows(self, features: np.ndarray) -> Prediction:
        return self._rng.standard_normal(len(features)), np.full(len(features), UNTAUGHT_SPREAD)

    def fit(self, groups: Sequence[Measured]) -> None:
        """Nothing to learn."""


class AnalyticCost(_RowCost):
    """The estimate that is one of the features: cycles from operations, loads, cache lines and tasks. Learns only how far off it is."""

    def __init__(self) -> None:
        self._spread = UNTAUGHT_SPREAD

    def predict_rows(self, features: np.ndarray) -> Prediction:
        mean = features[:, ESTIMATE_COLUMN].astype(np.float64) - LOG2_CYCLES_PER_SECOND
        return mean, np.full(len(features), self._spread)

    def importance(self) -> tuple[tuple[str, float], ...]:
        return ((FEATURE_NAMES[ESTIMATE_COLUMN], 1.0),)

    def fit(self, groups: Sequence[Measured]) -> None:
        errors = [_centered(group.log2_seconds - self.predict_rows(group.features)[0]) for group in groups if _is_telling(group)]
        self._spread = _spread_of(np.concatenate(errors)) if errors else UNTAUGHT_SPREAD


class _BoostedCost(_RowCost):
    """Boosted trees that correct a prior. Each member of an ensemble leaves out a part of the measurements; how wrong it is there
    says how far to trust it."""

    objective = ""
    options: Mapping[str, Any] = {}

    def __init__(self, seed: int = 0, *, prior: Cost | None = None, rounds: int = 64) -> None:
        self.seed, self.rounds = seed, rounds
        self.prior: Cost = AnalyticCost() if prior is None else prior
        self._members: list[Any] = []
        self._scale, self._spread, self._scatter = 1.0, UNTAUGHT_SPREAD, 1.0
        self._width = 0

    @property
    def is_fitted(self) -> bool:
        """Whether it has learned anything."""
        return bool(self._members)

    def _labels(self, logs: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """What the trees are to learn of one task, from log2 seconds and the prior's mean."""
        raise NotImplementedError

    def _margin(self, prior: np.ndarray) -> np.ndarray:
        """What the trees add to."""
        raise NotImplementedError

    def _mean(self, output: np.ndarray) -> np.ndarray:
        """log2 seconds from what the trees give."""
        raise NotImplementedError

    def fit(self, groups: Sequence[Measured]) -> None:
        self._members, self._scale, self._spread, self._scatter = [], 1.0, UNTAUGHT_SPREAD, 1.0
        telling = [group for group in groups if _is_telling(group)]
        if not telling:
            return
        features = np.concatenate([group.features for group in telling])
        self._width = features.shape[1]
        priors = [_centered(self.prior.predict_rows(group.features)[0]) for group in telling]
        logs = [_capped(group.log2_seconds) for group in telling]
        labels = np.concatenate([self._labels(y, prior) for y, prior in zip(logs, priors, strict=True)])
        task = np.repeat(np.arange(len(telling)), [len(group.seconds) for group in telling])
        margin = self._margin(np.concatenate(priors))
        left_out = _parts(task, len(telling), self.seed)
        found = np.zeros(len(task))
        for member, part in enumerate(left_out):
            booster = self._train(features[~part], labels[~part], margin[~part], task[~part], member)
            self._members.append(booster)
            found[part] = _outputs(booster, features[part], margin[part])
        self._calibrate(self._mean(found), np.concatenate(logs), task, features, margin)

    def _train(self, features: np.ndarray, labels: np.ndarray, margin: np.ndarray, task: np.ndarray, member: int) -> Any:
        import xgboost

        data = xgboost.DMatrix(features, label=labels, base_margin=margin, nthread=1)
        if self.objective.startswith("rank"):
            data.set_group(np.bincount(task)[np.unique(task)])
        options = {
            "objective": self.objective, "seed": self.seed * MEMBERS + member, "nthread": 1, "tree_method": "hist", "max_bin": 32,
            "max_depth": 5, "eta": 0.1, "colsample_bytree": 0.4, "min_child_weight": 2.0, "verbosity": 0, **self.options,
        }  # fmt: skip
        return xgboost.train(options, data, self.rounds)

    def _calibrate(
        self, mean: np.ndarray, logs: np.ndarray, task: np.ndarray, features: np.ndarray, margin: np.ndarray
    ) -> None:
        """Bring means to the scale of log2 seconds, and the spread to the errors made on what was left out."""
        mean, logs = _centered_by(mean, task), _centered_by(logs, task)
        power = float(mean @ mean)
        self._scale = float(np.clip(mean @ logs / power, 0.1, 10.0)) if power > 0 else 1.0
        self._spread = _spread_of(logs - self._scale * mean)
        self._scatter = float(np.mean(np.std(self._all_means(features, margin), axis=0))) or 1.0

    def _all_means(self, features: np.ndarray, margin: np.ndarray) -> np.ndarray:
        """float64[members, n]"""
        return np.stack([self._mean(_outputs(booster, features, margin)) for booster in self._members])

    def predict_rows(self, features: np.ndarray) -> Prediction:
        prior = self.prior.predict_rows(features)[0]
        if not self._members:
            return prior, np.full(len(features), UNTAUGHT_SPREAD)
        if not len(features):
            return np.zeros(0), np.zeros(0)
        means = self._all_means(features, self._margin(prior))
        scatter = np.std(means, axis=0) / self._scatter
        return self._scale * means.mean(axis=0), self._spread * (0.75 + 0.25 * np.minimum(scatter, 4.0))

    def importance(self) -> tuple[tuple[str, float], ...]:
        gains: dict[str, float] = {}
        names = column_names(self._width) if self._members else ()
        for booster in self._members:
            for column, gain in booster.get_score(importance_type="total_gain").items():
                name = names[int(column[1:])]
                gains[name] = gains.get(name, 0.0) + float(gain)
        total = sum(gains.values()) or 1.0
        return tuple(sorted(((name, gain / total) for name, gain in gains.items()), key=lambda item: (-item[1], item[0])))


class RankCost(_BoostedCost):
    """Learns the order of the programs of each task, by a logistic loss on pairs: the default."""

    predicts_time = False
    objective = "rank:pairwise"
    options = {"lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": 8}
    SHARPNESS = 4.0
    """Log-odds by which the prior orders two programs of which it takes one to be twice as fast."""

    def _labels(self, logs: np.ndarray, prior: np.ndarray) -> np.ndarray:
        return np.asarray(logs.max() - logs)

    def _margin(self, prior: np.ndarray) -> np.ndarray:
        return -self.SHARPNESS * prior

    def _mean(self, output: np.ndarray) -> np.ndarray:
        return -output / self.SHARPNESS


class RegressionCost(_BoostedCost):
    """Learns log2 seconds apart from a constant of each task, by squared errors."""

    objective = "reg:squarederror"

    def _labels(self, logs: np.ndarray, prior: np.ndarray) -> np.ndarray:
        return np.asarray(logs + np.mean(prior - logs))

    def _margin(self, prior: np.ndarray) -> np.ndarray:
        return prior

    def _mean(self, output: np.ndarray) -> np.ndarray:
        return output


class TransferCost(_RowCost):
    """Two models for one task: `shared`, of all tasks, says where to begin; a local one learns on top what this task adds.

    `fit` gives measurements of the task called `key`, once there are LEAST_LOCAL_ROWS, to the local model and, if there are others,
    fits the shared one to those. A shared model that was fitted elsewhere is used as it is.
    """

    predicts_time = False

    def __init__(self, key: str, shared: Cost, seed: int = 0) -> None:
        self.key, self.shared = key, shared
        self.local = RankCost(seed, prior=shared)

    def fit(self, groups: Sequence[Measured]) -> None:
        others = [group for group in groups if group.key != self.key]
        if others:
            self.shared.fit(others)
        own = [group for group in groups if group.key == self.key]
        self.local.fit(own if sum(len(group.seconds) for group in own) >= LEAST_LOCAL_ROWS else [])

    def predict_rows(self, features: np.ndarray) -> Prediction:
        return self.local.predict_rows(features) if self.local.is_fitted else self.shared.predict_rows(features)

    def importance(self) -> tuple[tuple[str, float], ...]:
        model = self.local if self.local.is_fitted else self.shared
        return model.importance() if isinstance(model, _RowCost) else ()


def cross_validate(make: Callable[[], Any], groups: Sequence[Measured], folds: int = 5) -> CostReport:
    """The report of models from `make()`, each fitted to some of the tasks, on the tasks that it has not seen."""
    folds = max(2, min(folds, len(groups)))
    predictions: list[Prediction] = [(np.zeros(0), np.zeros(0))] * len(groups)
    model = make()
    for fold in range(folds):
        model = make()
        model.fit([group for k, group in enumerate(groups) if k % folds != fold])
        for k in range(fold, len(groups), folds):
            predictions[k] = model.predict_rows(groups[k].features)
    return evaluate(groups, predictions, predicts_time=model.predicts_time, importance=model.importance())


def _is_telling(group: Measured) -> bool:
    """Whether a group says anything about order: two programs that did not take the same time."""
    logs = group.log2_seconds
    return len(logs) > 1 and float(np.ptp(logs)) > 0


def _capped(logs: np.ndarray) -> np.ndarray:
    """log2 of seconds over those of the fastest; what is far behind is not told apart."""
    return np.asarray(np.minimum(logs - logs.min(), MOST_LOG2))


def _centered(values: np.ndarray) -> np.ndarray:
    return np.asarray(values - values.mean())


def _centered_by(values: np.ndarray, task: np.ndarray) -> np.ndarray:
    sizes = np.maximum(np.bincount(task), 1)
    return np.asarray(values - (np.bincount(task, weights=values) / sizes)[task])


def _spread_of(errors: np.ndarray) -> float:
    """What 68% of the errors do not exceed; at least a hundredth."""
    return max(0.01, float(np.quantile(np.abs(errors), 0.68))) if len(errors) else UNTAUGHT_SPREAD


def _parts(task: np.ndarray, tasks: int, seed: int) -> list[np.ndarray]:
    """For each member, bool[n]: the rows that it leaves out. Whole tasks where there are many, else rows of each task."""
    order = np.random.default_rng(seed).permutation(tasks if tasks >= 2 * MEMBERS else len(task))
    place = np.argsort(order)
    number = place[task] if tasks >= 2 * MEMBERS else place
    return [number % MEMBERS == member for member in range(MEMBERS)]


def _outputs(booster: Any, features: np.ndarray, margin: np.ndarray) -> np.ndarray:
    """The booster's raw output: float64[n]"""
    import xgboost

    if not len(features):
        return np.zeros(0)
    data = xgboost.DMatrix(features, base_margin=margin, nthread=1)
    return np.asarray(booster.predict(data, output_margin=True), np.float64)
