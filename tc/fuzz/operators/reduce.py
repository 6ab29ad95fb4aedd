"""Reductions over any axes, cumulations, and normalizing functions along an axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tc.fuzz.builder import ALL, FLOATS, I32, I64, Builder, Held, Rejected
from tc.fuzz.operators.indexing import distinct
from tc.fuzz.operators.row import Row
from tc.fuzz.operators.shape import with_axes

_AMOUNTS = {
    **dict.fromkeys(("ReduceSum", "ReduceL1"), lambda x: x.sum()),
    **dict.fromkeys(("ReduceSumSquare", "ReduceL2"), lambda x: (x * x).sum()),
    "ReduceProd": lambda x: np.maximum(x, 1).prod(),
}


def _within_its_integers(op: str, held: Held) -> Held:
    """`held`, if no result leaves its integers: onnxruntime saturates there, numpy and the reference wrap."""
    x = held.array
    with np.errstate(over="ignore"):
        if op in _AMOUNTS and x.dtype.kind in "iu" and _AMOUNTS[op](np.abs(x.astype(np.float64))) > np.iinfo(x.dtype).max:
            raise Rejected("beyond the integers of its dtype")
    return held


def reducer(op: str, *, axes_since: int = 18, lo: float | None = None, within: Iterable[np.dtype] = ALL) -> Row:
    """A reduction over any axes, all of them, or, where that may be asked for, none."""

    def draw(b: Builder) -> None:
        dtypes = b.types(op, within=within)
        x = _within_its_integers(op, b.pick(dtypes)) if lo is None else b.in_range(dtypes, lo, 4.0)
        axes: list[int] | None = b.axes(x.rank, 1) if x.rank and b.chance(0.8) else None
        if axes and not b.since(11) and min(axes) < 0:
            axes = [a % x.rank for a in axes]
        attrs: dict[str, Any] = {"keepdims": b.integer(0, 1)} if b.chance(0.7) else {}
        if b.since(axes_since) and b.chance(0.2):
            attrs["noop_with_empty_axes"] = b.integer(0, 1)
            axes = [] if b.chance(0.5) else axes
        with_axes(b, op, x, axes, axes_since, **attrs)

    return Row(op, draw)


def arg_reducer(op: str) -> Row:
    def draw(b: Builder) -> None:
        x = distinct(b, b.types(op)) if b.chance(0.5) else b.pick(b.types(op), ranks=(1, 4))
        attrs: dict[str, Any] = {}
        if b.chance(0.8):
            attrs["axis"] = b.axis(x.rank, negative=b.since(11))
        if b.chance(0.6):
            attrs["keepdims"] = b.integer(0, 1)
        if b.since(12) and b.chance(0.4):
            attrs["select_last_index"] = b.integer(0, 1)
        b.emit(op, [x], **attrs)

    return Row(op, draw)


def cumulate(op: str) -> Row:
    def draw(b: Builder) -> None:
        x = b.pick(b.types(op), ranks=(1, 4))
        attrs = {name: b.integer(0, 1) for name in ("exclusive", "reverse") if b.chance(0.5)}
        b.emit(op, [x, b.parameter(b.axis(x.rank), b.choose((I64, I32)))], **attrs)

    return Row(op, draw, since=11)


def along_axis(op: str, *, since: int = 7, weight: float = 1.0, **choices: tuple[Any, ...]) -> Row:
    """Softmax and its like."""

    def draw(b: Builder) -> None:
        x = b.pick(b.types(op), ranks=(1, 4))
        attrs = {name: b.choose(values) for name, values in choices.items() if b.chance(0.6)}
        if b.chance(0.8):
            attrs["axis"] = b.axis(x.rank, negative=b.since(11))
        b.emit(op, [x], **attrs)

    return Row(op, draw, since=since, weight=weight)


ROWS = (
    reducer("ReduceSum", axes_since=13),
    *(
        reducer(op)
        for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare")
    ),
    reducer("ReduceLogSum", lo=0.25),
    reducer("ReduceLogSumExp", within=FLOATS),  # onnxruntime cuts the exponentials of integers, not their sum
    arg_reducer("ArgMax"),
    arg_reducer("ArgMin"),
    cumulate("CumSum"),
    cumulate("CumProd"),
    along_axis("Softmax", weight=1.5),
    along_axis("LogSoftmax"),
    along_axis("Hardmax"),
    along_axis("LpNormalization", p=(1, 2)),
)
