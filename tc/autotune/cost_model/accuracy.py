"""How good a cost model is: whether it orders measured programs rightly, and whether it knows how wrong it may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NOISE = 0.02
"""Two measurements nearer than this part of each other are not told apart by measuring, so no order is asked of them."""

TOP = 8
"""Programs that a batch of measurements takes."""

FAILURE_LOG2 = 2.0
"""How much slower than the slowest program of its task one that failed is taken to be: log2 of seconds."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured of one task. features: float32[n, n_features]; seconds: float64[n], inf for programs that failed."""

    key: str
    features: np.ndarray
    seconds: np.ndarray

    def __post_init__(self) -> None:
        assert self.features.ndim == 2 and len(self.features) == len(self.seconds), "a row of features for every measurement"

    @property
    def log2_seconds(self) -> np.ndarray:
        """float64[n]: log2 of seconds; failures stand behind the slowest. All zero when nothing ran."""
        finite = np.isfinite(self.seconds)
        if not finite.any():
            return np.zeros(len(self.seconds))
        logs = np.log2(np.maximum(self.seconds, 1e-12), where=finite, out=np.zeros(len(self.seconds)))
        found: np.ndarray = np.where(finite, logs, logs[finite].max() + FAILURE_LOG2)
        return found


@dataclass(frozen=True)
class CostReport:
    """A model against measurements that it was not fitted to.

    rank_accuracy: the part of `pairs`, programs of one task whose times differ by more than NOISE, that it orders rightly (half
    for those that it gives the same score); nan without pairs.
    top_recall: how many of the TOP fastest of a task are among the TOP that it likes best, where a task has more; the mean.
    top_loss: time of the fastest among the TOP it likes best over the fastest of all; geometric mean.
    rmse: of log2 seconds, apart from a constant of each task; None for scores that are no times.
    within_spread: the part of the errors not larger than the spread that it gave; 0.68 if the spread is a standard deviation.
    importance: feature names and their part of the model's gain, largest first.
    """

    tasks: int
    rows: int
    pairs: int
    rank_accuracy: float
    top_recall: float
    top_loss: float
    rmse: float | None
    within_spread: float
    importance: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        rmse = "" if self.rmse is None else f", rmse {self.rmse:.2f} (log2 s)"
        return (
            f"{self.rank_accuracy:.1%} of {self.pairs} pairs in order, top-{TOP} recall {self.top_recall:.0%}, "
            f"{self.top_loss:.2f}x of the best{rmse}, {self.within_spread:.0%} of errors within the spread"
        )


def ordered_pairs(log2_seconds: np.ndarray, mean: np.ndarray, noise: float = NOISE) -> tuple[float, int]:
    """How many pairs are ordered rightly, ties counting one half, and how many there are that differ by more than `noise`."""
    slower = log2_seconds[:, None] - log2_seconds[None, :] > math.log2(1 + noise)
    apart = np.sign(mean[:, None] - mean[None, :])[slower]
    return float((apart > 0).sum() + 0.5 * (apart == 0).sum()), int(slower.sum())


def evaluate(
    groups: Sequence[Measured],
    predictions: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    predicts_time: bool,
    importance: tuple[tuple[str, float], ...] = (),
) -> CostReport:
    """Compare what a model predicted for each group, (mean, spread), with what was measured."""
    right, pairs = 0.0, 0
    recalls: list[float] = []
    losses: list[float] = []
    errors: list[np.ndarray] = []
    spreads: list[np.ndarray] = []
    for group, (mean, spread) in zip(groups, predictions, strict=True):
        logs = group.log2_seconds
        found, count = ordered_pairs(logs, mean)
        right, pairs = right + found, pairs + count
        if not np.isfinite(group.seconds).any():
            continue
        if len(logs) > TOP:
            liked, fastest = (np.argsort(values, kind="stable")[:TOP] for values in (mean, logs))
            recalls.append(len(np.intersect1d(liked, fastest)) / TOP)
            losses.append(float(logs[liked].min() - logs.min()))
        finite = np.isfinite(group.seconds)
        error = (logs - mean)[finite]
        errors.append(error - error.mean())
        spreads.append(spread[finite])
    error, spread = (np.concatenate(parts) if parts else np.zeros(0) for parts in (errors, spreads))
    return CostReport(
        tasks=len(groups),
        rows=sum(len(group.seconds) for group in groups),
        pairs=pairs,
        rank_accuracy=right / pairs if pairs else math.nan,
        top_recall=float(np.mean(recalls)) if recalls else math.nan,
        top_loss=float(2 ** np.mean(losses)) if losses else math.nan,
        rmse=float(np.sqrt(np.mean(error**2))) if predicts_time and len(error) else None,
        within_spread=float(np.mean(np.abs(error) <= spread)) if len(error) else math.nan,
        importance=importance,
    )
