"""Which task gets the next batch, and what more time would bring.

Each time that the number of batches of a task doubles, its speed grows by some factor, and the logarithm of that factor is taken to
halve from one doubling to the next. How large it is at first is learned from all tasks of the run; what a task itself gained in
its last doubling counts the more, the more batches it had. A task that was hardly tried is thus believed to have something left, one
that has stood still for long is not.
Source: the task schedulers of TVM's auto-scheduler (Zheng et al., 2020), with this law in the place of differences: a task that gained much
in its first batches has less left, not more, so a slope alone misleads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

UNIT = 8
"""Trials that are counted as a batch, however many are measured together."""

FADING = 0.5
"""The gain of a doubling (log2 of speed) over that of the one before."""

FIRST_GAIN = 0.2
"""What the first batch gains if nothing is known: log2 of speed."""

FIRST_GAIN_WEIGHT = 2.0
"""How many first batches of tasks it takes to outweigh FIRST_GAIN."""

OWN_WEIGHT = 0.25
"""How much each batch of a task makes its own last doubling count, beside the law, which counts 1."""


@dataclass
class Curve:
    """The tuning of one task.

    `weight_ms`: what all its calls take per run of the model, untuned. `ratios`: the best after each batch; `best`: now.
    `seconds`: of all its `trials`.
    """

    weight_ms: float
    ratios: list[float] = field(default_factory=list)
    best: float = 1.0
    trials: int = 0
    seconds: float = 0.0
    is_open: bool = True

    def add(self, best_ratio: float, seconds: float, trials: int = UNIT) -> None:
        """So many trials took so long, and after them the best schedule takes `best_ratio` of the default's time.

        A ratio above an earlier one says that the earlier one was an error of measurement.
        """
        self.trials += trials
        self.seconds += seconds
        self.best = best_ratio
        self.ratios = [max(ratio, best_ratio) for ratio in self.ratios]
        self.ratios += [best_ratio] * (self.trials // UNIT - len(self.ratios))

    @property
    def batches(self) -> int:
        return len(self.ratios)

    @property
    def batch_seconds(self) -> float:
        """What a batch takes; a second before the first."""
        return max(self.seconds * UNIT / self.trials, 1e-3) if self.trials else 1.0

    def doublings(self) -> Iterator[tuple[int, float]]:
        """(batches, gain of the doubling that ended there), for 1, 2, 4, ... batches; log2 of speed."""
        count = 1
        while count <= self.batches:
            yield count, self._gained(count)
            count *= 2

    def _gained(self, count: int) -> float:
        """What was gained from half of `count` batches to all of them; not negative, though a best that was luck is taken back."""
        before = self.ratios[count // 2 - 1] if count > 1 else 1.0
        return max(math.log2(before / self.ratios[count - 1]), 0.0)

    def gain_ms(self, more: int, first_gain: float) -> float:
        """What `more` batches are expected to save per run of the model; `first_gain` as the function of this name finds it."""
        return self.weight_ms * self.best * (1 - 2 ** -self._gain(more, first_gain))

    def _gain(self, more: int, first_gain: float) -> float:
        """The same in log2 of speed."""
        count = self.batches
        if not count:
            return first_gain * (1 + FADING * _part(more - 1, 1))
        own = OWN_WEIGHT * count
        last = (own * self._gained(count) + first_gain * FADING ** math.log2(count)) / (own + 1.0)
        return FADING * last * _part(more, count)


def _part(more: int, count: int) -> float:
    """The gain of `more` batches after `count` over that of `count` more."""
    power = -math.log2(FADING)
    return float((1 - (1 + more / count) ** -power) / (1 - FADING))


def first_gain(curves: Sequence[Curve]) -> float:
    """What the first batch of a task gains, as far as all that was done tells: log2 of speed."""
    gained, weight = FIRST_GAIN * FIRST_GAIN_WEIGHT, FIRST_GAIN_WEIGHT
    for curve in curves:
        for count, gain in curve.doublings():
            gained += gain
            weight += FADING ** math.log2(count)
    return gained / weight


def next_task(curves: Sequence[Curve]) -> int | None:
    """The task whose next batch is worth most per second; None when all are closed."""
    first = first_gain(curves)
    open_ones = [k for k, curve in enumerate(curves) if curve.is_open]
    return max(open_ones, key=lambda k: (curves[k].gain_ms(1, first) / curves[k].batch_seconds, -k), default=None)


def remaining_ms(curves: Sequence[Curve]) -> float:
    """What as many batches again, on the tasks that are open, are expected to save per run."""
    first = first_gain(curves)
    return sum(curve.gain_ms(max(curve.batches, 1), first) for curve in curves if curve.is_open)
