"""What a schedule rule leaves open: knobs, and the answers of a point of its space.

A rule is a program that asks. Whenever it could go one way or another it calls `Schedule.choose` with the values that are legal
at that place and the one that its own estimate prefers. The space of a kernel is everything that its rules ask on any way through
them; a point is the answers on one way. Without search every answer is the rule's own, so the untuned schedule is a point as
any other.
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
    """One question of a rule.

    `name` says which block it is about and what of it ("C/rows"), and is unique on one way through the rules. `options`: the values that
    are legal here, at least two; neighbours differ little if `ordered`. `default`: the rule's own answer, one of them.
    """

    name: str
    options: tuple[Value, ...]
    default: Value
    ordered: bool = True


@dataclass(frozen=True)
class Choice:
    """A knob and the answer that was taken."""

    knob: Knob
    value: Value


Decide = Callable[[Knob], Value]
"""Answers a knob; the answer is one of its options."""


def take_default(knob: Knob) -> Value:
    """The rule's own answer."""
    return knob.default


def follow(point: Mapping[str, Value]) -> Decide:
    """Answers from `point`, and the rule's own where the point has none or none that is legal."""

    def decide(knob: Knob) -> Value:
        value = point.get(knob.name, knob.default)
        return value if value in knob.options else knob.default

    return decide
