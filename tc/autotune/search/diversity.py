"""How candidates differ: a batch that is good and also diverse, and how far a candidate is from all that was measured.

Source of the first: "Learning to Optimize Tensor Programs" (Chen et al., 2018), section 3.3. Of the best candidates by the model the
batch S maximizes

    L(S) = sum of quality(s) over s in S  +  weight * number of distinct (knob, value) pairs in S / number of knobs

by the greedy algorithm, which is within 1 - 1/e of the best, since L is submodular. What we changed: quality is scaled to 0..1 over the
candidates to choose from, so that `weight` means the same for every cost model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tc.schedule.knobs import Value

Point = tuple[tuple[str, Value], ...]
"""The answers of a candidate, by knob."""


def select_diverse(points: Sequence[Point], cost: np.ndarray, count: int, *, weight: float) -> list[int]:
    """Indices of `count` points (all, if there are fewer), in the order they were taken.

    `cost`: float64[n], lower is better. Weight 0 takes the best; large weights cover as many values of knobs as possible. Ties go to
    the point that stands first.
    """
    if not points:
        return []
    quality = _scaled(-cost)
    gains = [{(name, value) for name, value in point} for point in points]
    scale = [weight / max(len(point), 1) for point in points]
    covered: set[tuple[str, Value]] = set()
    left = list(range(len(points)))
    taken: list[int] = []
    while left and len(taken) < count:
        best = max(left, key=lambda i: (quality[i] + scale[i] * len(gains[i] - covered), -i))
        left.remove(best)
        taken.append(best)
        covered |= gains[best]
    return taken


def _scaled(values: np.ndarray) -> np.ndarray:
    """Moved and stretched to 0..1; all 0 where they are equal."""
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


class Novelty:
    """How far points are from the measured ones, compared with how far these are from each other.

    A model's error, estimated by leaving out measured points, holds for points as far from the rest as those were. Farther ones are
    known less. Distance is the number of answers that differ.
    """

    MOST = 4.0
    """Novelty beyond which a point is not taken to be less known."""

    def __init__(self) -> None:
        self._measured: list[frozenset[tuple[str, Value]]] = []
        self._nearest: list[int] = []

    def add(self, points: Sequence[Point]) -> None:
        """These are measured."""
        for point in points:
            answers = frozenset(point)
            distances = [len(answers - known) for known in self._measured]
            self._nearest = [min(old, new) for old, new in zip(self._nearest, distances)]
            self._measured.append(answers)
            self._nearest.append(min(distances, default=len(answers)))

    def of(self, points: Sequence[Point]) -> np.ndarray:
        """float64[n], 1 where a point is as far from the measured ones as these from their nearest, on average; at most MOST."""
        if not self._measured:
            return np.ones(len(points))
        usual = max(float(np.mean(self._nearest)), 0.5)
        distances = [min(len(answers - known) for known in self._measured) for answers in map(frozenset, points)]
        return np.minimum(np.array(distances, np.float64) / usual, self.MOST)
