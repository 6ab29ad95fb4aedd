"""What became of a kernel's schedules inside a model: see `tc.autotune.in_model.selection`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InModelResult:
    """How the schedules of a kernel did inside the model.

    `seconds`: for each schedule's key what the kernel's launches take in a run of the model, with what they add to the launches behind
    them; DEFAULT is the default's. `alone`: the one that is best by itself; `chosen`: what the kernel gets.
    """

    workload: str
    kernel: str
    seconds: tuple[tuple[str, float], ...]
    alone: str
    chosen: str

    def of(self, schedule: str) -> float:
        """The seconds of one of the schedules."""
        return dict(self.seconds)[schedule]
