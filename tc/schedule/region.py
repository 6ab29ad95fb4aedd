"""Which part of a buffer blocks touch during one iteration of a loop: intervals of indices with symbolic ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tc.ir.arith import Facts, linear_coefficients, prove, simplify
from tc.ir.expr import (
    Add,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    ceildiv,
    const,
    is_const,
    logical_and,
    maximum,
    minimum,
)
from tc.ir.loop import For
from tc.ir.node import substitute
from tc.ir.uses import variables


@dataclass(frozen=True)
class Interval:
    """Indices `low` .. `low + extent - 1` along one dimension of a buffer."""

    low: Expr
    extent: Expr


def whole(dim: Expr) -> Interval:
    """All of a dimension."""
    return Interval(const(0), dim)


def interval_of(index: Expr, inner: Sequence[For], facts: Facts) -> Interval | None:
    """An interval around the values of an index while the `inner` loops run; None when none is found.

    `facts` hold inside the inner loops.
    """
    once = {loop.var: const(0) for loop in inner if is_const(loop.extent, 1)}
    found = _interval(substitute(index, once) if once else index, inner, facts)
    if found is None:
        return None
    own = {loop.var for loop in inner}
    low, extent = simplify(found.low, facts), simplify(found.extent, facts)
    if (variables(low) | variables(extent)) & own:
        return None
    return Interval(low, extent)


def leaves_no_gaps(index: Expr, inner: Sequence[For], facts: Facts) -> bool:
    """Whether an index is known to take every value of its interval while the `inner` loops run."""
    if not any(loop.var in variables(index) for loop in inner):
        return True
    form = linear_coefficients(index, [loop.var for loop in inner])
    if form is None:
        return False
    coefficients, _ = form
    return _is_dense([(coefficients[loop.var], loop.extent) for loop in inner if loop.var in coefficients], facts)


def _interval(index: Expr, inner: Sequence[For], facts: Facts) -> Interval | None:
    used = variables(index)
    if not any(loop.var in used for loop in inner):
        return Interval(index, const(1))
    linear = _linear_interval(index, inner, facts)
    if linear is not None:
        return linear
    match index:
        case Add(lhs=a, rhs=b):
            return _sum(_interval(a, inner, facts), _interval(b, inner, facts))
        case Sub(lhs=a, rhs=b):
            return _sum(_interval(a, inner, facts), _scaled(_interval(b, inner, facts), -1))
        case Mul(lhs=a, rhs=Const(value=c)):
            return _scaled(_interval(a, inner, facts), int(c))
        case FloorDiv(lhs=a, rhs=Const() as c) if c.value > 0:
            return _quotient(_interval(a, inner, facts), c, facts)
        case FloorMod(lhs=a, rhs=b) if prove(b > 0, facts) is True:
            return _remainder(_interval(a, inner, facts), b, facts)
        case Min(lhs=a, rhs=b):
            return _extreme(minimum, _interval(a, inner, facts), _interval(b, inner, facts))
        case Max(lhs=a, rhs=b):
            return _extreme(maximum, _interval(a, inner, facts), _interval(b, inner, facts))
        case Select(true_value=a, false_value=b):
            first, second = _interval(a, inner, facts), _interval(b, inner, facts)
            return None if first is None or second is None else union(first, second, facts)
    return None


def _linear_interval(index: Expr, inner: Sequence[For], facts: Facts) -> Interval | None:
    form = linear_coefficients(index, [loop.var for loop in inner])
    if form is None:
        return None
    coefficients, low = form
    extent: Expr = const(1)
    for loop in inner:
        coefficient = coefficients.get(loop.var)
        if coefficient is None:
            continue
        reach = coefficient * (loop.extent - 1)
        if prove(coefficient >= 0, facts) is True:
            extent = extent + reach
        elif prove(coefficient <= 0, facts) is True:
            low, extent = low + reach, extent - reach
        else:
            return None
    return Interval(low, extent)


def _is_dense(steps: list[tuple[Expr, Expr]], facts: Facts) -> bool:
    """Whether sums of coefficient * i leave no gap: each coefficient is at most the reach of the smaller ones."""
    covered: Expr = const(1)
    rest = list(steps)
    while rest:
        found = next(
            (step for step in rest if prove(logical_and(step[0] >= 0, step[0] <= covered), facts) is True), None
        )
        if found is None:
            return False
        rest.remove(found)
        covered = simplify(covered + found[0] * (found[1] - 1), facts)
    return True


def _sum(a: Interval | None, b: Interval | None) -> Interval | None:
    return None if a is None or b is None else Interval(a.low + b.low, a.extent + b.extent - 1)


def _scaled(a: Interval | None, factor: int) -> Interval | None:
    if a is None:
        return None
    if factor < 0:
        return Interval((a.low + a.extent - 1) * factor, (a.extent - 1) * -factor + 1)
    return Interval(a.low * factor, (a.extent - 1) * factor + 1)


def _quotient(a: Interval | None, c: Const, facts: Facts) -> Interval | None:
    """(low + 0..extent-1) // c: as many quotients as multiples of c are met."""
    if a is None:
        return None
    low = simplify(a.low // c, facts)
    if prove((a.low % c) + a.extent <= c, facts) is True:
        return Interval(low, const(1))
    if simplify(a.low % c, facts) is const(0):
        return Interval(low, ceildiv(a.extent, c))
    return Interval(low, ceildiv(a.extent - 1, c) + 1)


def _remainder(a: Interval | None, c: Expr, facts: Facts) -> Interval:
    if a is not None and prove((a.low % c) + a.extent <= c, facts) is True:
        return Interval(simplify(a.low % c, facts), a.extent)
    return Interval(const(0), c)


def _extreme(pick: Callable[[Expr, Expr], Expr], a: Interval | None, b: Interval | None) -> Interval | None:
    if a is None or b is None:
        return None
    low = pick(a.low, b.low)
    high = pick(a.low + a.extent, b.low + b.extent)
    return Interval(low, high - low)


def union(a: Interval, b: Interval, facts: Facts) -> Interval:
    """The smallest interval around two; falls back to symbolic min and max."""
    if a.low is b.low:
        return Interval(a.low, simplify(maximum(a.extent, b.extent), facts))
    low = simplify(minimum(a.low, b.low), facts)
    high = simplify(maximum(a.low + a.extent, b.low + b.extent), facts)
    return Interval(low, simplify(high - low, facts))
