"""Values of variables that satisfy what is known of them: what is negative for one of them is never proven not to be.

Most questions that are asked while loops are simplified have the answer no, and a search for a proof gives up only after many
steps; a number that refutes is found at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tc.ir.bounds import Facts, VarFact
from tc.ir.expr import Add, And, Const, Eq, Expr, FloorDiv, FloorMod, Le, Lt, Max, Min, Mul, Ne, Or, Select, Sub, Var
from tc.ir.polynomial import Polynomial

Sample = dict[Expr, int]
"""The value of every variable, and of what has been computed from them."""

WANTED = 10
LEAST = 5
ATTEMPTS = 32
HOPELESS = 12
_SMALL = (0, 1, 2, 3, 5, 8, 16, 31, 64, 100, 224, 1000)
"""How far from its bound a variable is that has but one."""


def is_refuted(poly: Polynomial, facts: Facts) -> bool:
    """Whether the polynomial is negative for values that satisfy the facts. False also where nobody looked."""
    for sample in samples_of(facts):
        value = _polynomial_value(poly, sample)
        if value is None:
            return False
        if value < 0:
            return True
    return False


def fails_somewhere(condition: Expr, facts: Facts) -> bool:
    """Whether a condition fails for values that satisfy the facts. False also where nobody looked."""
    for sample in samples_of(facts):
        value = _value(condition, sample)
        if value is None:
            return False
        if not value:
            return True
    return False


def samples_of(facts: Facts) -> Sequence[Sample]:
    """Some values that satisfy the facts, always the same; none where it is hard to find some."""
    if facts.samples is None:
        found = _inherited(facts)
        facts.samples = found if len(found) >= LEAST else (*found, *_made(facts))
    return facts.samples


def _inherited(facts: Facts) -> tuple[Sample, ...]:
    """Those of the facts that these extend, as far as they satisfy what is new, with values for new variables."""
    if facts.parent is None:
        return ()
    old = facts.parent.variables
    new = {var: fact for var, fact in facts.variables.items() if old.get(var) is not fact}
    if any(var in old and (fact.lo is None or fact.hi is not old[var].hi) for var, fact in new.items()):
        return ()
    more = facts.nonnegative[len(facts.parent.nonnegative) :]
    found = []
    for number, sample in enumerate(samples_of(facts.parent)):
        sample = dict(sample)
        if all(_assign(var, fact, sample, number) for var, fact in new.items()) and _holds(more, sample):
            found.append(sample)
    return tuple(found)


def _made(facts: Facts) -> tuple[Sample, ...]:
    """As many as are wanted, of a number of attempts: all variables low, all of them high, then mixed."""
    found: list[Sample] = []
    for number in range(ATTEMPTS):
        sample: Sample = {}
        if all(_assign(var, fact, sample, number) for var, fact in facts.variables.items()) and _holds(facts.nonnegative, sample):
            found.append(sample)
            if len(found) == WANTED:
                break
        elif number > HOPELESS and not found:
            break
    return tuple(found)


def _assign(var: Var, fact: VarFact, sample: Sample, number: int) -> bool:
    """Give a variable a value between its bounds, or see whether it has one; False when there is none, or a bound is not known."""
    lo = None if fact.lo is None else _value(fact.lo, sample)
    hi = None if fact.hi is None else _value(fact.hi, sample)
    if (lo is None) is not (fact.lo is None) or (hi is None) is not (fact.hi is None) or lo is None:
        return False
    value = sample.get(var)
    if value is None:
        mixed = (number * 2654435761 + sum(map(ord, var.name)) * 40503) % 65521
        if hi is None:
            value = lo + _SMALL[(number * 5 + sum(map(ord, var.name)) * 7) % len(_SMALL) if number > 1 else number * 4]
        else:
            value = lo if number == 0 else hi if number == 1 else lo + mixed % max(hi - lo + 1, 1)
        value -= value % fact.multiple_of
        value += fact.multiple_of if value < lo else 0
        sample[var] = value
    return value >= lo and (hi is None or value <= hi) and value % fact.multiple_of == 0


def _holds(known: Iterable[Polynomial], sample: Sample) -> bool:
    values = (_polynomial_value(poly, sample) for poly in known)
    return all(value is not None and value >= 0 for value in values)


def _polynomial_value(poly: Polynomial, sample: Sample) -> int | None:
    total = poly.constant
    for monomial, coefficient in poly.terms.items():
        for atom in monomial:
            value = _value(atom, sample)
            if value is None:
                return None
            coefficient *= value
        total += coefficient
    return total


def _value(expr: Expr, sample: Sample) -> int | None:
    """The value of an expression of integers; None for what is not arithmetic of variables that have values."""
    found = sample.get(expr)
    if found is None:
        if isinstance(expr, Const):
            return int(expr.value)
        if isinstance(expr, Select):
            condition = _value(expr.condition, sample)
            return None if condition is None else _value(expr.true_value if condition else expr.false_value, sample)
        compute = OPERATIONS.get(type(expr))
        if compute is None:
            return None
        a, b = _value(expr.lhs, sample), _value(expr.rhs, sample)  # type: ignore[attr-defined]
        if a is None or b is None:
            return None
        found = sample[expr] = compute(a, b)
    return found


OPERATIONS: dict[type[Expr], Callable[[int, int], int]] = {
    Add: lambda a, b: a + b,
    Sub: lambda a, b: a - b,
    Mul: lambda a, b: a * b,
    FloorDiv: lambda a, b: a // b if b else 0,
    FloorMod: lambda a, b: a % b if b else 0,
    Min: min,
    Max: max,
    Eq: lambda a, b: a == b,
    Ne: lambda a, b: a != b,
    Lt: lambda a, b: a < b,
    Le: lambda a, b: a <= b,
    And: lambda a, b: a and b,
    Or: lambda a, b: a or b,
}
"""Operations on integers of any size; a division by zero gives zero."""
