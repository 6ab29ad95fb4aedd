"""What is left open, so that measurements may decide: knobs, and the answers of a point of their space.

A rule of schedules, or a pass over the graph, is a program that asks. Whenever it could go one way or another it asks about a knob, with
the values that are legal at that place and the one that its own estimate prefers. The space of a kernel is everything that its rules ask
on any way through them; a point is the answers on one way. Without search every answer is the asker's own, so the untuned program
is a point as any other.
Source: the generated spaces of Zheng et al. (2020) and Shao et al. (2022), where a space is a program that samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Union

Value = Union[int, str, bool, tuple["Value", ...]]
"""An answer; tuples are tile factors and orders."""


@dataclass(frozen=True)
class Knob:
    """One decision that is left open.

    `name`: of a schedule which block it is about and what of it ("C/rows"), unique on one way through the rules; of a graph pass the
    pass, and what it asks where it asks several things. `options`: the values that are legal here, at least two; neighbours differ little
    if `ordered`. `default`: the asker's own answer, one of them.

    What a graph pass asks is about a `node` (the last of several), and has a `key` that is the same for nodes that compute the same.
    `alone`: whether the kernel that holds the node tells by itself which option is best. Otherwise other kernels change as well, and
    only the whole model tells.
    """

    name: str
    options: tuple[Value, ...]
    default: Value
    ordered: bool = True
    node: str = ""
    key: str = ""
    alone: bool = True

    @property
    def place(self) -> tuple[str, str]:
        """What an answer to a graph pass is kept by."""
        return self.name, self.key


@dataclass(frozen=True)
class Decision:
    """A knob and the answer that was taken."""

    knob: Knob
    value: Value


Decide = Callable[[Knob], Value]
"""Answers a knob; the answer is one of its options."""


def take_default(knob: Knob) -> Value:
    """The asker's own answer."""
    return knob.default


def follow(point: Mapping[str, Value]) -> Decide:
    """Answers from `point`, and the asker's own where the point has none or none that is legal."""

    def decide(knob: Knob) -> Value:
        value = point.get(knob.name, knob.default)
        return value if value in knob.options else knob.default

    return decide


def decide_number(decide: Decide, knob: Knob) -> int:
    """The answer to a knob whose options are whole numbers."""
    value = decide(knob)
    assert isinstance(value, int), f"{knob.name}: {value!r} is no number"
    return value
