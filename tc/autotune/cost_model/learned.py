"""What a search believes about the candidates of one task: a cost model, and the measurements it has learned from."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tc.autotune.cost_model.accuracy import Measured, evaluate
from tc.autotune.cost_model.models import Cost, Program, TransferCost
from tc.autotune.search.space import Candidate
from tc.target import Target

KEPT_FEATURES = 4096
"""Candidates whose features are remembered."""


def features_of(candidate: Candidate, target: Target, dims: Mapping[str, int]) -> np.ndarray:
    """float32[n_features]"""
    final = candidate.final if target.device is not None and candidate.target is not None else None
    return Program(candidate.func, target, dims, final).features


class SharedModel:
    """What all tasks teach each other. Its models learn when they are asked to, from what was measured of any task.

    A task gets a model that has not learned from the task itself: on top of one that has, its own measurements would seem to
    leave nothing to learn. Tasks are dealt to `FOLDS` folds, and for each fold there is a model of the others. Foreign ones, measurements
    of tasks that are not being tuned, are for all folds.
    """

    FOLDS = 3

    def __init__(self, make: Callable[[], Cost]) -> None:
        self.groups: dict[str, Measured] = {}
        self._foreign: set[str] = set()
        self._costs = [make() for _ in range(self.FOLDS)]
        self._fitted_rows = [0] * self.FOLDS

    def cost_for(self, key: str) -> Cost:
        """The model for the task called `key`. It goes on learning."""
        return self._costs[self._fold(key)]

    def _fold(self, key: str) -> int:
        return zlib.crc32(key.encode()) % self.FOLDS

    def add(self, key: str, features: np.ndarray, seconds: np.ndarray, *, is_foreign: bool = False) -> None:
        """More measurements of a task."""
        if is_foreign:
            self._foreign.add(key)
        known = self.groups.get(key)
        if known is not None:
            features = np.concatenate([known.features, features])
            seconds = np.concatenate([known.seconds, seconds])
        self.groups[key] = Measured(key, features, seconds)

    def refit(self, key: str, grown: float = 1.3) -> None:
        """Let the model for `key` learn anew, if there is so much more than last time."""
        fold = self._fold(key)
        others = [group for group in self.groups.values() if group.key in self._foreign or self._fold(group.key) != fold]
        rows = sum(len(group.seconds) for group in others)
        if rows > max(grown * self._fitted_rows[fold], 8):
            self._costs[fold].fit(others)
            self._fitted_rows[fold] = rows

    @property
    def importance(self) -> tuple[tuple[str, float], ...]:
        """Feature names and their part of what was gained from features, of the model that has learned most."""
        most = int(np.argmax(self._fitted_rows))
        return tuple(getattr(self._costs[most], "importance", tuple)())


class TaskModel:
    """Predicts candidates of a task: the shared model, and on top of it what the task's own measurements say. See `search.Model`."""

    def __init__(self, key: str, target: Target, dims: Mapping[str, int], shared: SharedModel, seed: int) -> None:
        self._key, self._target, self._dims, self._shared = key, target, dims, shared
        self._cost = TransferCost(key, shared.cost_for(key), seed)
        self._features: OrderedDict[str, np.ndarray] = OrderedDict()
        self._rows: list[np.ndarray] = []
        self._seconds: list[float] = []
        self.accuracy = float("nan")
        """The part of the last batch's pairs that were in the right order before they were measured; NaN when nothing was known."""

    @property
    def importance(self) -> tuple[tuple[str, float], ...]:
        return self._cost.importance()

    def predict(self, candidates: Sequence[Candidate]) -> tuple[np.ndarray, np.ndarray]:
        if not candidates:
            return np.zeros(0), np.zeros(0)
        return self._cost.predict_rows(np.stack([self.features(candidate) for candidate in candidates]))

    def observe(self, candidates: Sequence[Candidate], seconds: np.ndarray) -> None:
        if not candidates:
            return
        rows = np.stack([self.features(candidate) for candidate in candidates])
        if self._rows:
            batch = Measured(self._key, rows, seconds)
            self.accuracy = evaluate([batch], [self._cost.predict_rows(rows)], predicts_time=False, importance=()).rank_accuracy
        self._rows.extend(rows)
        self._seconds.extend(map(float, seconds))
        self._shared.add(self._key, rows, seconds)
        self._cost.fit([Measured(self._key, np.stack(self._rows), np.array(self._seconds))])

    def features(self, candidate: Candidate) -> np.ndarray:
        """float32[n_features]"""
        known = self._features.pop(candidate.key, candidate.features)
        if known is None:
            known = features_of(candidate, self._target, self._dims)
        self._features[candidate.key] = known
        if len(self._features) > KEPT_FEATURES:
            self._features.popitem(last=False)
        return known
