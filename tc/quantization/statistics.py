"""What calibration remembers of a value: its range, call by call, and a histogram of its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BINS = 8192
"""Of a histogram: half of them on each side of 0."""

SAMPLED = 1 << 16
"""Numbers of an array that the histogram counts, evenly spaced, if there are more; the range counts all."""


class Statistics:
    """The numbers that a scale class took.

    `low`, `high`: over all calls. `ranges`: (low, high) of each call. `counts`: float64[BINS], how many numbers lie in each bin of
    [-reach, reach]; `reach` doubles when a number lies outside, and pairs of bins become one.
    """

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.ranges: list[tuple[float, float]] = []
        self.counts = np.zeros(BINS)
        self.reach = 0.0
        self.is_finite = True

    @staticmethod
    def of(ranges: Sequence[tuple[float, float]], numbers: np.ndarray) -> Statistics:
        """From the range of each call and some of the numbers of all calls."""
        found = Statistics()
        for low, high in ranges:
            found._widen(low, high)
        found._count_some(numbers)
        return found

    def update(self, arrays: list[np.ndarray]) -> None:
        """Take note of what one call gave the values of the class."""
        arrays = [array for array in arrays if array.size]
        if not all(np.isfinite(array).all() for array in arrays):
            self.is_finite = False
        if not arrays or not self.is_finite:
            return
        low, high = float(min(a.min() for a in arrays)), float(max(a.max() for a in arrays))
        self._widen(low, high)
        for array in arrays:
            self._count_some(array)

    def _widen(self, low: float, high: float) -> None:
        self.ranges.append((low, high))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._grow(max(-low, high))

    def _count_some(self, array: np.ndarray) -> None:
        flat, stride = array.reshape(-1), -(-array.size // SAMPLED) | 1  # odd: not in step with the channels
        self._count(flat[::stride].astype(np.float64))

    def _grow(self, largest: float) -> None:
        if self.reach == 0.0:
            zeros = self.counts.sum()
            self.counts[:] = 0.0
            self.counts[BINS // 2] = zeros
            self.reach = largest
        while largest > self.reach:
            pairs = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([np.zeros(BINS // 4), pairs, np.zeros(BINS // 4)])
            self.reach *= 2

    def _count(self, numbers: np.ndarray) -> None:
        if self.reach == 0.0:
            self.counts[BINS // 2] += numbers.size
            return
        places = np.floor(numbers * (BINS / 2 / self.reach)).astype(np.int64) + BINS // 2
        self.counts += np.bincount(places.clip(0, BINS - 1), minlength=BINS)

    @property
    def is_constant_zero(self) -> bool:
        """Whether no number but 0 was seen."""
        return self.reach == 0.0

    @property
    def centers(self) -> np.ndarray:
        """float64[BINS]: the number that stands for a bin."""
        return (np.arange(BINS) + 0.5 - BINS / 2) * (2 * self.reach / BINS)
