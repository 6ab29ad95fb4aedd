"""What a search believes about the candidates of one task: a cost model, and the measurements it has learned from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from tc.autotune.accuracy import Measured, evaluate
from tc.autotune.cost_model import Cost, Program, TransferCost
from tc.autotune.space import Candidate
from tc.target import Target

KEPT_FEATURES = 4096
"""Candidates whose features are remembered."""


class Shared:
    """A cost model of all tasks. It learns when it is asked to, from what was measured of any of them."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.groups: dict[str, Measured] = {}
        self._fitted_rows = 0

    def add(self, key: str, features: np.ndarray, seconds: np.ndarray) -> None:
        """More measurements of a task."""
        known = self.groups.get(key)
        if known is not None:
            features = np.concatenate([known.features, features])
            seconds = np.concatenate([known.seconds, seconds])
        self.groups[key] = Measured(key, features, seconds)

    def refit(self, grown: float = 1.3) -> None:
        """Learn anew, if there is so much more than last time."""
        rows = sum(len(group.seconds) for group in self.groups.values())
        if rows > max(grown * self._fitted_rows, 8):
            self.cost.fit(list(self.groups.values()))
            self._fitted_rows = rows


class TaskModel:
    """Predicts candidates of a task: the shared model, and on top of it what the task's own measurements say. See `search.Model`."""

    def __init__(self, key: str, target: Target, dims: Mapping[str, int], shared: Shared, seed: int) -> None:
        self._key, self._target, self._dims, self._shared = key, target, dims, shared
        self._cost = TransferCost(key, shared.cost, seed)
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
        self._cost.local.fit([Measured(self._key, np.stack(self._rows), np.array(self._seconds))])

    def features(self, candidate: Candidate) -> np.ndarray:
        """float32[n_features]"""
        known = self._features.pop(candidate.key, None)
        if known is None:
            known = Program(candidate.func, self._target, self._dims).features
        self._features[candidate.key] = known
        if len(self._features) > KEPT_FEATURES:
            self._features.popitem(last=False)
        return known
