"""When a sum leaves padding out."""

from __future__ import annotations

import math

import numpy as np

from tc.cost.typical import typical, typical_dims
from tc.ir.arith import Facts, evaluate, linear_coefficients, slack_of
from tc.ir.expr import Const, Expr, Le, Lt, Var, is_const
from tc.ir.loop import For, LoopKind, is_strict
from tc.ir.uses import variables
from tc.schedule.analysis import Contraction
from tc.schedule.padding import parts_inside
from tc.schedule.step import Schedule
from tc.schedule.tree import find_block

LEAST_PADDING = 0.02
"""The part of a sum from which on it is left out. Measured on 12 convolutions with 1 to 60 % of such padding: none took longer, most 0.9
of the share less time."""

LEAST_SPARED = 8
"""Products of vectors spared for each time that it is asked: a question takes some cycles itself (0.05 of 84 products, measured)."""

LEAST_PADDING_OF_ROWS = 0.1
"""The part of the pixels along rows from which on tiles are cut so that many of them are padding alone."""

MOST_COUNTED = 1 << 16
"""Iterations over which the share is counted: of longer loops little is padding."""


def skip_padding(schedule: Schedule, block: str) -> None:
    """Leave padding out of a sum in tiles, where a part of it that is worth a question is known to be padding."""
    place, facts = find_block(schedule.func, block), Facts.of(schedule.func.facts)
    parts, left = parts_inside(schedule.func, place), 1.0
    for group in _by_variables(parts).values():
        left *= _share(group, place.loops, facts)
    used = frozenset[Var]().union(*map(variables, parts))
    last = max((k for k, loop in enumerate(place.loops) if loop.var in used), default=0)
    inside = math.prod(typical(loop.extent, facts) for loop in place.loops[last + 1 :] if loop.kind is not LoopKind.VECTORIZED)
    if left <= 1 - LEAST_PADDING and (1 - left) * inside >= LEAST_SPARED:
        schedule.skip_padding(block)


def _by_variables(parts: list[Expr]) -> dict[frozenset[Var], list[Expr]]:
    """Conditions about the same variables, each group of which is taken to hold no matter whether others do."""
    groups: dict[frozenset[Var], list[Expr]] = {}
    for part in parts:
        groups.setdefault(variables(part), []).append(part)
    return groups


def _share(parts: list[Expr], loops: tuple[For, ...], facts: Facts) -> float:
    """The share of iterations in which all of some conditions of the same variables hold; 1 where that is not counted."""
    extents = {loop.var: typical(loop.extent, facts) for loop in loops if loop.var in variables(parts[0])}
    holds = _where_hold(parts, extents, facts)
    return 1.0 if holds is None else float(holds.mean())


def _where_hold(parts: list[Expr], extents: dict[Var, int], facts: Facts) -> np.ndarray | None:
    """In which iterations of loops linear comparisons hold, dims being of usual sizes; None where that is not counted."""
    if not 0 < math.prod(extents.values()) <= MOST_COUNTED:
        return None
    sizes = {var: size for var, size in typical_dims(parts, facts).items() if var not in extents}
    steps = dict(zip(extents, np.ogrid[tuple(slice(extent) for extent in extents.values())], strict=True))  # sizes may be any: in floats
    holds = np.ones(tuple(extents.values()), bool)
    for part in parts:
        form = linear_coefficients(slack_of(part), extents) if isinstance(part, (Lt, Le)) else None
        if form is not None:
            terms = [float(evaluate(number, sizes)) * steps[var] for var, number in form[0].items()]
            holds &= sum(terms, float(evaluate(form[1], sizes))) >= 0
    return holds


def rows_of_taps(schedule: Schedule, contraction: Contraction, count: int | None) -> tuple[tuple[int, int], ...]:
    """For each place of a window along the last axis of so many rows, before it is cut: the first row and the one after the last whose
    pixel there is no padding. None where nearly all are, sizes are symbolic, or padding is added."""
    block = contraction.info.block
    values = [axis.value for axis in block.axes if axis.var in contraction.rows and is_const(axis.extent, count)]
    row = values[-1] if values and isinstance(values[-1], Var) else None
    if row is None or count is None or is_strict(schedule.func):
        return ()
    place = find_block(schedule.func, block.name)
    parts = [part for part in parts_inside(schedule.func, place) if row in variables(part)]
    extents = {loop.var: loop.extent.value for loop in place.loops if isinstance(loop.extent, Const)}
    taps = frozenset[Var]().union(*map(variables, parts)) - {row}
    if not taps or not taps <= extents.keys():
        return ()
    holds = _where_hold(parts, {row: count, **{var: int(extents[var]) for var in extents if var in taps}}, Facts.of(()))
    if holds is None or holds.mean() > 1 - LEAST_PADDING_OF_ROWS:
        return ()
    found = [np.flatnonzero(rows) for rows in holds.reshape(count, -1).T]
    return tuple((int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0) for rows in found)
