"""Values of variables that satisfy what is known of them: what is negative for one of them is never proven not to be.

Most questions that are asked while loops are simplified have the answer no, and a search for a proof gives up only after many
steps; a number that refutes is found at once. All samples are asked at once: an expression has a value in each, which is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import compress, repeat

from tc.ir.bits import is_xor
from tc.ir.bounds import Facts, VarFact
from tc.ir.expr import (
    Add,
    And,
    Const,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    MathCall,
    Max,
    Min,
    Mul,
    Ne,
    Or,
    Select,
    Sub,
    Var,
)
from tc.ir.polynomial import Polynomial

Column = Sequence[int]
"""The values of an expression, one in each sample."""

WANTED = 10
LEAST = 5
ATTEMPTS = 32
HOPELESS = 14
_SMALL = (0, 1, 2, 3, 5, 8, 16, 31, 64, 100, 224, 1000)
"""How far from its bound a variable is that has but one."""


class Samples:
    """A number of samples: the values of every variable, and of what has been computed from them (None: has no values)."""

    __slots__ = ("_columns", "count")

    def __init__(self, count: int, columns: dict[Expr, Column | None]) -> None:
        self.count = count
        self._columns = columns

    def points(self, variables: Iterable[Var]) -> Iterator[dict[Var, int]]:
        """The values of variables, sample by sample."""
        columns = {var: self.column(var) for var in variables}
        return ({var: column[k] for var, column in columns.items() if column is not None} for k in range(self.count))

    def column(self, expr: Expr) -> Column | None:
        """The values of an expression of integers; None for what is not arithmetic of variables that have values."""
        if expr in self._columns:
            return self._columns[expr]
        found = self._columns[expr] = self._computed(expr)
        return found

    def _computed(self, expr: Expr) -> Column | None:
        if isinstance(expr, Const):
            return [int(expr.value)] * self.count
        if isinstance(expr, Select):
            condition, yes, no = (self.column(part) for part in (expr.condition, expr.true_value, expr.false_value))
            if condition is None or yes is None or no is None:
                return None
            return [a if holds else b for holds, a, b in zip(condition, yes, no, strict=True)]
        compute = operator.xor if is_xor(expr) else OPERATIONS.get(type(expr))
        if compute is None:
            return None
        lhs, rhs = expr.args if isinstance(expr, MathCall) else (expr.lhs, expr.rhs)  # type: ignore[attr-defined]
        first = self.column(lhs)
        second = None if first is None else self.column(rhs)
        return None if first is None or second is None else list(map(compute, first, second))

    def polynomial(self, poly: Polynomial) -> Column | None:
        """The values of a polynomial."""
        total: Column = [poly.constant] * self.count
        for monomial, coefficient in poly.terms.items():
            term: Iterable[int] = repeat(coefficient, self.count)
            for atom in monomial:
                values = self.column(atom)
                if values is None:
                    return None
                term = map(operator.mul, term, values)
            total = list(map(operator.add, total, term))
        return total

    def where(self, holds: Sequence[bool]) -> Samples:
        """Those of which it holds."""
        if all(holds):
            return self
        variables = {var: column for var, column in tuple(self._columns.items()) if isinstance(var, Var) and column is not None}
        return Samples(sum(holds), {var: list(compress(column, holds)) for var, column in variables.items()})

    def copy(self) -> Samples:
        """The same samples, to which variables can be added."""
        return Samples(self.count, dict(self._columns))

    def assign(self, var: Var, fact: VarFact, numbers: Sequence[int]) -> list[bool] | None:
        """Give a variable a value between its bounds, or see whether it has one: in which samples there is one; None when a bound is
        not known. `numbers` are those of the samples, of which the values are made.
        """
        low = None if fact.lo is None else self.column(fact.lo)
        high = None if fact.hi is None else self.column(fact.hi)
        if low is None or (high is None) is not (fact.hi is None):
            return None
        values = self._columns.get(var)
        step = fact.multiple_of
        if values is None:
            ends = repeat(None, self.count) if high is None else high
            values = self._columns[var] = [_value(var, lo, hi, step, number) for lo, hi, number in zip(low, ends, numbers, strict=True)]
        holds = list(map(operator.ge, values, low))
        if high is not None:
            holds = [a <= b and fits for a, b, fits in zip(values, high, holds, strict=True)]
        return holds if step == 1 else [fits and a % step == 0 for a, fits in zip(values, holds, strict=True)]


_NONE = Samples(0, {})


def is_refuted(poly: Polynomial, facts: Facts) -> bool:
    """Whether the polynomial is negative for values that satisfy the facts. False also where nobody looked."""
    samples = samples_of(facts)
    values = samples.polynomial(poly) if samples.count else None
    return values is not None and min(values) < 0


def fails_somewhere(condition: Expr, facts: Facts) -> bool:
    """Whether a condition fails for values that satisfy the facts. False also where nobody looked."""
    samples = samples_of(facts)
    values = samples.column(condition) if samples.count else None
    return values is not None and not all(values)


def samples_of(facts: Facts) -> Samples:
    """Some values that satisfy the facts, always the same; none where it is hard to find some."""
    known: Samples | None = facts.samples
    if known is None:
        found = _inherited(facts)
        known = facts.samples = found if found.count >= LEAST else _joined((found, _made(facts)), facts)
    return known


def _inherited(facts: Facts) -> Samples:
    """Those of the facts that these extend, as far as they satisfy what is new, with values for new variables."""
    if facts.parent is None:
        return _NONE
    old = facts.parent.variables
    new = {var: fact for var, fact in facts.variables.items() if old.get(var) is not fact}
    if any(var in old and (fact.lo is None or fact.hi is not old[var].hi) for var, fact in new.items()):
        return _NONE
    samples = samples_of(facts.parent)
    return _extended(samples, new, facts.nonnegative[len(facts.parent.nonnegative) :], range(samples.count))


def _extended(samples: Samples, new: dict[Var, VarFact], known: Iterable[Polynomial], numbers: Sequence[int]) -> Samples:
    """The samples that satisfy what is new, with values for new variables."""
    if new and samples.count:
        samples = samples.copy()
    for var, fact in new.items():
        holds = samples.assign(var, fact, numbers) if samples.count else None
        if holds is None:
            return _NONE
        numbers = list(compress(numbers, holds))
        samples = samples.where(holds)
    for poly in known:
        values = samples.polynomial(poly) if samples.count else None
        if values is None:
            return _NONE
        samples = samples.where([value >= 0 for value in values])
    return samples


def _made(facts: Facts) -> Samples:
    """As many as are wanted, of a number of attempts: all variables low, all of them high, then mixed."""
    first = _attempted(facts, range(HOPELESS))
    if not 0 < first.count < WANTED:
        return first.where([k < WANTED for k in range(first.count)])
    both = _joined((first, _attempted(facts, range(HOPELESS, ATTEMPTS))), facts)
    return both.where([k < WANTED for k in range(both.count)])


def _attempted(facts: Facts, numbers: range) -> Samples:
    return _extended(Samples(len(numbers), {}), dict(facts.variables), facts.nonnegative, numbers)


def _joined(parts: Sequence[Samples], facts: Facts) -> Samples:
    """The samples of several, all of which have values for the variables of the facts."""
    some = [part for part in parts if part.count]
    if len(some) < 2:
        return some[0] if some else _NONE
    columns = {var: [value for part in some for value in part.column(var) or ()] for var in facts.variables}
    return Samples(sum(part.count for part in some), columns)  # type: ignore[arg-type]  # an Expr is a key as good as a Var


def _value(var: Var, lo: int, hi: int | None, step: int, number: int) -> int:
    """The value of a variable between two bounds in the sample of a number, a multiple of `step` if there is one."""
    letters = _letters(var.name)
    if hi is None:
        value = lo + _SMALL[(number * 5 + letters * 7) % len(_SMALL) if number > 1 else number * 4]
    else:
        mixed = (number * 2654435761 + letters * 40503) % 65521
        value = lo if number == 0 else hi if number == 1 else lo + mixed % max(hi - lo + 1, 1)
    value -= value % step
    return value + step if value < lo else value


@lru_cache(4096)
def _letters(name: str) -> int:
    return sum(map(ord, name))


OPERATIONS: dict[type[Expr], Callable[[int, int], int]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    FloorDiv: lambda a, b: a // b if b else 0,
    FloorMod: lambda a, b: a % b if b else 0,
    Min: min,
    Max: max,
    Eq: operator.eq,
    Ne: operator.ne,
    Lt: operator.lt,
    Le: operator.le,
    And: lambda a, b: a and b,
    Or: lambda a, b: a or b,
}
"""Operations on integers of any size; a division by zero gives zero."""
