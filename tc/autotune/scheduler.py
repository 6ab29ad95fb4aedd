"""Which task gets the next batch, and what more time would bring.

The best ratio of a task to its default, after n batches, is taken to fall like c + a * n**-FADING. The amplitude a is fitted to what
was seen, together with a guess that counts like one batch, so a task that was hardly tried is believed to have something left.
From it come both the gain of the next batch, which decides where time goes, and the gain of as many batches again.
Source: the task schedulers of TVM's auto-scheduler (Zheng et al., 2020), with a curve in the place of differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

FADING = 0.7
"""How fast the gain of batches fades."""

GUESSED_AMPLITUDE = 0.12
"""What a task gains from many batches if nothing is known: the part of its default time."""

GUESS_WEIGHT = 1.0


@dataclass
class Curve:
    """The tuning of one task. `weight_ms`: what all its calls take per run of the model, untuned. `cost_seconds`: of a batch."""

    weight_ms: float
    ratios: list[float] = field(default_factory=list)
    seconds: float = 0.0
    is_open: bool = True

    def add(self, best_ratio: float, seconds: float) -> None:
        """A batch took so long, and after it the best schedule takes `best_ratio` of the default's time."""
        self.ratios.append(best_ratio)
        self.seconds += seconds

    @property
    def batches(self) -> int:
        return len(self.ratios)

    def amplitude(self) -> float:
        """a of c + a * n**-FADING, not negative."""
        ratios = np.array([1.0, *self.ratios])
        places = np.arange(1, len(ratios) + 1, dtype=np.float64) ** -FADING
        x, y = places - places.mean(), ratios - ratios.mean()
        explained = float(x @ y) + GUESS_WEIGHT * GUESSED_AMPLITUDE
        return max(explained / (float(x @ x) + GUESS_WEIGHT), 0.0)

    def gain_ms(self, more: float) -> float:
        """What `more` batches are expected to save per run of the model."""
        done = self.batches + 1.0
        return self.weight_ms * self.amplitude() * (done**-FADING - (done + more) ** -FADING)

    def gain_per_second(self) -> float:
        """Of the next batch: ms per run, per second of tuning."""
        seconds = self.seconds / self.batches if self.batches else 1.0
        return self.gain_ms(1.0) / max(seconds, 1e-3)


def next_task(curves: Sequence[Curve]) -> int | None:
    """The task whose next batch is worth most per second; None when all are closed."""
    open_ones = [k for k, curve in enumerate(curves) if curve.is_open]
    return max(open_ones, key=lambda k: (curves[k].gain_per_second(), -k), default=None)


def remaining_ms(curves: Sequence[Curve]) -> float:
    """What as many batches again, on the tasks that are open, are expected to save per run."""
    return sum(curve.gain_ms(max(curve.batches, 1)) for curve in curves if curve.is_open)
