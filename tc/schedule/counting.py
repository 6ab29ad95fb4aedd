"""Whether iterations of a loop meet, by counting: all values of the loop, and of those inside of constant extents, are tried.

Proofs take indices one by one. Where a loop is the digits of several (lane // 4 a row, lane % 4 a column) only both together tell its
iterations apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np

from tc.ir.arith import Facts
from tc.ir.bounds import bounds
from tc.ir.columns import column, grid
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Const, Expr, Var
from tc.ir.polynomial import Polynomial, polynomial
from tc.ir.uses import buffers_read, variables
from tc.schedule.accesses import ElementAccess

MOST_POINTS = 1 << 18
"""Points of loops that are tried at most."""

_Terms = dict[tuple[Expr, ...], int]


def are_counted_apart(
    first: ElementAccess, second: ElementAccess, var: Var, facts: Facts, changed: frozenset[Buffer] = frozenset()
) -> bool:
    """Whether no element is touched by `first` and, in another iteration of the loop over `var`, by `second`. False where that cannot be
    counted: both must add the same to what the loops of constant extents say, and nothing read from the buffers `changed`."""
    last = bounds(var, facts).hi
    if last is None or bounds(var, facts).lo != 0 or not first.indices:  # what has no axes is one element
        return False
    found = []
    for access in (first, second):
        extents = {var: last + 1}
        for own, extent in access.scope.ranges:
            extents[own] = int(extent.value) if isinstance(extent, Const) else 0
        parts = [_split(index, extents.keys() | access.scope.unknown, changed) for index in access.indices]
        found.append((extents, parts))
    common = [[None if part is None else part[0] for part in parts] for _, parts in found]
    if None in common[0] or common[0] != common[1]:
        return False
    columns = [_points(extents, [part[1] for part in parts if part is not None], var) for extents, parts in found]
    if columns[0] is None or columns[1] is None:
        return False
    return not _meet(*columns[0], *columns[1])


def _split(index: Expr, moving: Iterable[Var], changed: frozenset[Buffer]) -> tuple[_Terms, Polynomial] | None:
    """What is the same in all iterations, and the rest; None where these are not two sums."""
    if index.dtype is not i64 or buffers_read(index) & changed:
        return None
    own, poly = frozenset(moving), polynomial(index)
    common: _Terms = {}
    rest: _Terms = {}
    for monomial, times in poly.terms.items():
        used = frozenset[Var]().union(*(variables(atom) for atom in monomial))
        if used & own and not used <= own:
            return None
        (rest if used & own else common)[monomial] = times
    return common, Polynomial(rest, poly.constant)


def _points(extents: dict[Var, int], rests: list[Polynomial], var: Var) -> tuple[np.ndarray, np.ndarray] | None:
    """The indices at all points, a row each, and the values of `var`; None where they cannot be tried."""
    needed = frozenset[Var]().union(*(variables(atom) for rest in rests for monomial in rest.terms for atom in monomial))
    tried = {own: extent for own, extent in extents.items() if own in needed or own is var}
    if not needed <= tried.keys() or not 0 < prod(tried.values()) <= MOST_POINTS:
        return None
    values = grid(tried)
    count = prod(tried.values())
    rows = [column(rest.to_expr(), values) for rest in rests]
    if any(row is None for row in rows):
        return None
    return np.stack([np.broadcast_to(row, count) for row in rows if row is not None]).astype(np.int64), np.asarray(values[var])


def _meet(first: np.ndarray, owners: np.ndarray, second: np.ndarray, others: np.ndarray) -> bool:
    """Whether a point of one and a point of the other are one element of two owners."""
    number = _numbered(np.concatenate((first, second), axis=1))
    mine, theirs = number[: first.shape[1]], number[first.shape[1] :]
    size = int(number.max(initial=-1)) + 1
    low, high = np.full(size, np.iinfo(np.int64).max), np.full(size, -1, np.int64)
    np.minimum.at(low, mine, owners)
    np.maximum.at(high, mine, owners)
    touched = high[theirs] >= 0
    return bool(np.any(touched & ((low[theirs] != others) | (high[theirs] != others))))


def _numbered(points: np.ndarray) -> np.ndarray:
    """A number of each column, the same for equal ones: their place in the box that holds all, where that is no large one."""
    if not points.size:
        return np.zeros(points.shape[1], np.int64)
    low = points.min(axis=1, keepdims=True)
    sizes = [int(size) for size in points.max(axis=1) - low[:, 0] + 1]
    if prod(sizes) < 1 << 62:
        points = np.ravel_multi_index(tuple(points - low), sizes)[None]
        if prod(sizes) <= 8 * MOST_POINTS:
            found: np.ndarray = points[0]
            return found
    return np.unique(points, axis=1, return_inverse=True)[1].reshape(-1)
