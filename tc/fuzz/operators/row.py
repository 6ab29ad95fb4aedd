"""A row of the operator tables, and draws that many rows share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tc.fuzz.builder import ALL, Builder

Draw = Callable[[Builder], object]


@dataclass(frozen=True)
class Row:
    """How to draw one use of an operator: `draw` picks operands and attributes and emits the node.

    `since` and `until`: the opsets that have this form of it. `weight`: how often it is drawn. `simple`: allowed in bodies.
    """

    op: str
    draw: Draw
    since: int = 7
    until: int = 10**6
    weight: float = 1.0
    simple: bool = True

    def exists(self, opset: int) -> bool:
        """Whether models of this opset may hold it."""
        return self.since <= opset <= self.until


Attrs = Callable[[Builder], dict[str, Any]]


def no_attrs(b: Builder) -> dict[str, Any]:
    """An operator without attributes, or with none given."""
    return {}


def some(**choices: tuple[Any, ...]) -> Attrs:
    """Attributes, each left out half of the time, else one of its choices."""

    def draw(b: Builder) -> dict[str, Any]:
        return {name: b.choose(values) for name, values in choices.items() if b.chance(0.5)}

    return draw


def unary(
    op: str,
    attrs: Attrs = no_attrs,
    *,
    lo: float = -np.inf,
    hi: float = np.inf,
    within: Iterable[np.dtype] = ALL,
    parameter: str = "T",
    since: int = 7,
    weight: float = 1.0,
) -> Row:
    """An operator of one tensor, of any dtype its schema has, with numbers in [lo, hi]."""

    def draw(b: Builder) -> None:
        dtypes = b.types(op, parameter, within)
        bounded = np.isfinite(lo) or np.isfinite(hi)
        x = b.in_range(dtypes, lo, hi) if bounded else b.pick(dtypes)
        b.emit(op, [x], **attrs(b))

    return Row(op, draw, since=since, weight=weight)
