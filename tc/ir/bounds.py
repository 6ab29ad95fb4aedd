"""What is known of integer expressions: promises about variables, conditions that hold, and the intervals that follow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from tc.ir.bits import is_xor, xor_limit
from tc.ir.dtype import i64, int_range
from tc.ir.expr import (
    Add,
    And,
    Cast,
    Checked,
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
    Not,
    Select,
    Sub,
    Var,
    const,
)
from tc.ir.polynomial import Monomial, Polynomial, polynomial
from tc.ir.types import DimFact


class Bounds(NamedTuple):
    """lo <= value <= hi; None means unbounded."""

    lo: int | None = None
    hi: int | None = None


UNBOUNDED = Bounds()


@dataclass(frozen=True, eq=False)
class VarFact:
    """lo <= var <= hi (expressions or None), and var % multiple_of == 0."""

    lo: Expr | None = None
    hi: Expr | None = None
    multiple_of: int = 1


class Facts:
    """What is known about variables, and conditions known to hold. Immutable; extending makes a new one."""

    def __init__(
        self,
        variables: Mapping[Var, VarFact] | None = None,
        nonnegative: tuple[Polynomial, ...] = (),
        parent: Facts | None = None,
        ranges: Facts | None = None,
    ) -> None:
        self.variables = dict(variables or {})
        self.nonnegative = nonnegative
        self.parent = parent  # facts that these extend
        self.ranges = ranges  # the variables alone, where conditions cut intervals short
        self.simplified: dict[Expr, Expr] = {}  # filled by arith.simplify
        self.intervals: dict[Expr, Bounds] = {}  # filled by bounds
        self.proofs: dict[tuple[object, ...], bool] = {}  # filled by prover.proves_nonnegative
        self.sums: tuple[Polynomial, ...] | None = None  # found by nonnegative_sums
        self.samples: Any = None  # made by samples.samples_of, which knows their type

    @staticmethod
    def of(dim_facts: Iterable[DimFact]) -> Facts:
        """The promises made about symbolic dims. Asked again, the same object, which remembers what was found out with it."""
        return _promised(tuple(dim_facts))

    def with_range(self, var: Var, extent: Expr) -> Facts:
        """Also 0 <= var < extent. Where there is such a number, no factor of the extent is 0. Asked again, the same object."""
        return _with_range(self, var, extent)

    def with_bounds(self, var: Var, lo: int | None, hi: int | None, multiple_of: int = 1) -> Facts:
        fact = VarFact(None if lo is None else const(lo), None if hi is None else const(hi), multiple_of)
        known = {**self.variables, var: fact}
        return Facts(known, self.nonnegative, None, None if self.ranges is None else Facts(known))

    def assume(self, condition: Expr) -> Facts:
        """Also `condition`. Conditions over integers are used; others are ignored. Asked again, the same object."""
        return _assume(self, condition)

    def counting_guards(self) -> Facts:
        """The same, and intervals are cut short by the conditions: iterations that a guard leaves out do not count.

        For proofs about what happens under the conditions. Code that is made by them may run where these do not hold, before a select.
        """
        return Facts(self.variables, self.nonnegative, self, Facts(self.variables))


@lru_cache(256)
def _promised(dim_facts: tuple[DimFact, ...]) -> Facts:
    return Facts(
        {
            fact.var: VarFact(const(fact.lo), None if fact.hi is None else const(fact.hi), fact.multiple_of)
            for fact in dim_facts
        }
    )


@lru_cache(1024)
def _with_range(facts: Facts, var: Var, extent: Expr) -> Facts:
    last = polynomial(extent).plus_const(-1)
    known = {**facts.variables, var: VarFact(const(0), last.to_expr())}
    for factor in _nonzero_factors(last):
        fact = known.get(factor)
        if fact is not None and isinstance(fact.lo, Const) and fact.lo.value == 0 and factor is not var:
            known[factor] = VarFact(const(1), fact.hi, fact.multiple_of)
    return Facts(known, facts.nonnegative, facts, None if facts.ranges is None else Facts(known))


@lru_cache(1024)
def _assume(facts: Facts, condition: Expr) -> Facts:
    found = tuple(_nonnegative_parts(condition))
    return Facts(facts.variables, facts.nonnegative + found, facts, facts.ranges) if found else facts


def nonnegative_sums(facts: Facts) -> tuple[Polynomial, ...]:
    """Sums that are not negative, as there is a number in a range that ends there, or as a condition says."""
    if facts.sums is None:
        ends = [fact.hi for fact in facts.variables.values() if fact.hi is not None and isinstance(fact.lo, Const) and fact.lo.value >= 0]
        known = (*(polynomial(end) for end in ends if not isinstance(end, Const)), *facts.nonnegative)
        facts.sums = tuple(poly for poly in map(_of_quotient, known) if len(poly.terms) > 1 or poly.constant)
    return facts.sums


def _of_quotient(poly: Polynomial) -> Polynomial:
    """A sum that is not negative where `poly` is not: of x // d + y that is x + d * y."""
    for monomial, coefficient in poly.terms.items():
        match monomial:
            case (FloorDiv(lhs=inner, rhs=Const(value=int(divisor))),) if divisor > 0 and coefficient == 1:
                return polynomial(inner).plus(poly.minus(Polynomial({monomial: 1})), divisor)
    return poly


def _nonzero_factors(poly: Polynomial) -> list[Var]:
    """Variables that cannot be 0 if poly >= 0: for k * x * y - c with positive k and c, or with (x * y + d) // e instead of x * y."""
    if len(poly.terms) != 1 or poly.constant >= 0:
        return []
    ((monomial, coefficient),) = poly.terms.items()
    if coefficient <= 0:
        return []
    match monomial:
        case (FloorDiv(lhs=inner, rhs=Const(value=int(divisor))),) if divisor > 0:
            least = -(poly.constant // coefficient)  # the quotient is at least this
            return _nonzero_factors(polynomial(inner).plus_const(-divisor * least))
    return list(_factors_of_nonzero(monomial))


def _factors_of_nonzero(monomial: Monomial) -> Iterator[Var]:
    """Variables that cannot be 0 if a product is not: its own, and those of x * y where (x * y + d) // e with 0 <= d < e is a factor."""
    for atom in monomial:
        match atom:
            case Var():
                yield atom
            case FloorDiv(lhs=inner, rhs=Const(value=int(divisor))) if divisor > 0:
                poly = polynomial(inner)
                if len(poly.terms) == 1 and 0 <= poly.constant < divisor:
                    yield from _factors_of_nonzero(next(iter(poly.terms)))


def _nonnegative_parts(condition: Expr) -> Iterator[Polynomial]:
    match condition:
        case And(lhs=a, rhs=b):
            yield from _nonnegative_parts(a)
            yield from _nonnegative_parts(b)
        case Lt(lhs=a, rhs=b) if a.dtype == i64:
            yield polynomial(b).minus(polynomial(a)).plus_const(-1)
        case Le(lhs=a, rhs=b) if a.dtype == i64:
            yield polynomial(b).minus(polynomial(a))
        case Eq(lhs=a, rhs=b) if a.dtype == i64:
            yield polynomial(b).minus(polynomial(a))
            yield polynomial(a).minus(polynomial(b))
        case Not(operand=Lt(lhs=a, rhs=b)) if a.dtype == i64:
            yield polynomial(a).minus(polynomial(b))
        case Not(operand=Le(lhs=a, rhs=b)) if a.dtype == i64:
            yield polynomial(a).minus(polynomial(b)).plus_const(-1)


EMPTY = Facts()


def bounds(expr: Expr, facts: Facts | None = None) -> Bounds:
    """Numbers between which an integer expression lies."""
    facts = facts if facts is not None else EMPTY
    found = facts.intervals.get(expr)
    if found is None:
        found = _bounds(expr, facts)
        if facts.ranges is not None and expr.dtype is i64 and isinstance(expr, (Var, Add, Sub, Mul)):
            found = _cut_short(found, polynomial(expr), facts, facts.ranges)
        facts.intervals[expr] = found
    return found


def _cut_short(found: Bounds, poly: Polynomial, facts: Facts, ranges: Facts) -> Bounds:
    """The interval of a polynomial, cut short by each condition that has a term in common with it.

    Of loops over i, j and k under 32 * i + 16 * j + k < 432 those iterations count in which 16 * (2 * i + j) <= 431 - k: 2 * i + j is at
    most 26, whatever the loops' extents say.
    """
    lo, hi = found
    for known in facts.nonnegative:
        for monomial, factor in known.terms.items():
            times = poly.terms.get(monomial)
            if times is None:
                continue
            common = math.gcd(times, factor)
            scale, taken = abs(factor) // common, abs(times) // common
            rest = poly.scaled(scale).plus(known, -taken if (times > 0) == (factor > 0) else taken)  # the term is gone
            ends = poly_bounds(rest, ranges)
            if (times > 0) == (factor > 0) and ends.lo is not None:  # scale * poly >= rest
                lo = _either(max, lo, -(-ends.lo // scale))
            if (times > 0) != (factor > 0) and ends.hi is not None:  # scale * poly <= rest
                hi = _either(min, hi, ends.hi // scale)
    return found if lo is not None and hi is not None and lo > hi else Bounds(lo, hi)  # where no iteration counts, nothing is cut


def _bounds(expr: Expr, facts: Facts) -> Bounds:
    match expr:
        case Const(value=value):
            return Bounds(int(value), int(value)) if not expr.dtype.is_float else UNBOUNDED
        case Var():
            return _var_bounds(expr, facts)
        case Add(lhs=a, rhs=b):
            return _within(expr, _sum_bounds(bounds(a, facts), bounds(b, facts)))
        case Sub(lhs=a, rhs=b):
            return _within(expr, _sum_bounds(bounds(a, facts), _negated(bounds(b, facts))))
        case Mul(lhs=a, rhs=b):
            return _within(expr, _product_bounds(bounds(a, facts), bounds(b, facts)))
        case FloorDiv(lhs=a, rhs=b):
            return _quotient_bounds(bounds(a, facts), bounds(b, facts))
        case FloorMod(lhs=a, rhs=b):
            return _remainder_bounds(bounds(a, facts), bounds(b, facts))
        case Min(lhs=a, rhs=b):
            x, y = bounds(a, facts), bounds(b, facts)
            return Bounds(_both(min, x.lo, y.lo), _either(min, x.hi, y.hi))
        case Max(lhs=a, rhs=b):
            x, y = bounds(a, facts), bounds(b, facts)
            return Bounds(_either(max, x.lo, y.lo), _both(max, x.hi, y.hi))
        case MathCall(args=(a, b)) if is_xor(expr):
            return _xor_bounds(bounds(a, facts), bounds(b, facts))
        case Checked(value=a):
            return bounds(a, facts)
        case Select(true_value=a, false_value=b):
            x, y = bounds(a, facts), bounds(b, facts)
            return Bounds(_both(min, x.lo, y.lo), _both(max, x.hi, y.hi))
        case Cast(operand=a, dtype=dtype) if dtype.is_int and not a.dtype.is_float:
            inner = bounds(a, facts)
            lo, hi = int_range(dtype)
            fits = inner.lo is not None and inner.hi is not None and lo <= inner.lo and inner.hi <= hi
            return inner if fits or (dtype == i64 and a.dtype.bits < 64) else _type_bounds(expr)
    return _type_bounds(expr)


def _var_bounds(var: Var, facts: Facts) -> Bounds:
    fact = facts.variables.get(var)
    if fact is None:
        return _type_bounds(var)
    lo = None if fact.lo is None else bounds(fact.lo, facts).lo
    hi = None if fact.hi is None else bounds(fact.hi, facts).hi
    return Bounds(lo, hi)


def _type_bounds(expr: Expr) -> Bounds:
    if expr.dtype == i64 or expr.dtype.is_float:
        return UNBOUNDED
    return Bounds(*int_range(expr.dtype))


def _within(expr: Expr, found: Bounds) -> Bounds:
    """Arithmetic of narrow types wraps: when the exact result may leave the type, only the type's range is known."""
    if expr.dtype == i64:
        return found
    limit = _type_bounds(expr)
    if found.lo is None or found.hi is None or limit.lo is None or limit.hi is None:
        return limit
    return found if limit.lo <= found.lo and found.hi <= limit.hi else limit


def _both(pick: object, a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else pick(a, b)  # type: ignore[operator]


def _either(pick: object, a: int | None, b: int | None) -> int | None:
    if a is None:
        return b
    return a if b is None else pick(a, b)  # type: ignore[operator]


def _sum_bounds(a: Bounds, b: Bounds) -> Bounds:
    return Bounds(
        None if a.lo is None or b.lo is None else a.lo + b.lo, None if a.hi is None or b.hi is None else a.hi + b.hi
    )


def _negated(a: Bounds) -> Bounds:
    return Bounds(None if a.hi is None else -a.hi, None if a.lo is None else -a.lo)


def _product_bounds(a: Bounds, b: Bounds) -> Bounds:
    """Interval product; infinities are handled as in the extended reals with 0 * inf = 0."""
    if a.lo is not None and a.lo >= 0 and b.lo is not None and b.lo >= 0:  # by far the most common
        if a.hi is None or b.hi is None:
            return Bounds(a.lo * b.lo, 0 if a.hi == 0 or b.hi == 0 else None)
        return Bounds(a.lo * b.lo, a.hi * b.hi)
    infinity = math.inf
    corners = [
        0 if x == 0 or y == 0 else x * y
        for x in (-infinity if a.lo is None else a.lo, infinity if a.hi is None else a.hi)
        for y in (-infinity if b.lo is None else b.lo, infinity if b.hi is None else b.hi)
    ]
    lo, hi = min(corners), max(corners)
    return Bounds(None if lo == -infinity else int(lo), None if hi == infinity else int(hi))


def _quotient_bounds(a: Bounds, b: Bounds) -> Bounds:
    if b.lo is None or b.lo <= 0:
        return UNBOUNDED
    lows = [] if a.lo is None else [a.lo // b.lo, (a.lo // b.hi) if b.hi is not None else (0 if a.lo >= 0 else -1)]
    highs = [] if a.hi is None else [a.hi // b.lo, (a.hi // b.hi) if b.hi is not None else (0 if a.hi >= 0 else -1)]
    return Bounds(min(lows) if lows else None, max(highs) if highs else None)


def _remainder_bounds(a: Bounds, b: Bounds) -> Bounds:
    if b.lo is None or b.lo < 0:
        return UNBOUNDED
    hi = None if b.hi is None else max(b.hi - 1, 0)
    if a.lo is not None and a.lo >= 0 and a.hi is not None:
        if a.hi < b.lo:
            return a
        hi = a.hi if hi is None else min(a.hi, hi)
    return Bounds(0, hi)


def _xor_bounds(a: Bounds, b: Bounds) -> Bounds:
    if a.lo is None or a.lo < 0 or b.lo is None or b.lo < 0:
        return UNBOUNDED
    return Bounds(0, None if a.hi is None or b.hi is None else xor_limit(a.hi, b.hi))


def poly_bounds(poly: Polynomial, facts: Facts) -> Bounds:
    """Numbers between which a polynomial lies."""
    lo: int | None = poly.constant
    hi: int | None = poly.constant
    for monomial, factor in poly.terms.items():
        part = _monomial_bounds(monomial, facts)
        low, high = (part.lo, part.hi) if factor > 0 else (part.hi, part.lo)
        lo = None if lo is None or low is None else lo + low * factor
        hi = None if hi is None or high is None else hi + high * factor
        if lo is None and hi is None and facts.ranges is None:
            return UNBOUNDED
    return Bounds(lo, hi) if facts.ranges is None else _cut_short(Bounds(lo, hi), poly, facts, facts.ranges)


def lower_bound(poly: Polynomial, facts: Facts) -> int | None:
    """A number that a polynomial is never below."""
    total = poly.constant
    known = facts.intervals
    for monomial, factor in poly.terms.items():
        part = known.get(monomial[0]) if len(monomial) == 1 else None
        low, high = part or _monomial_bounds(monomial, facts)
        if factor < 0:
            low = high
        if low is None:
            return None
        total += low * factor
    return total


def _monomial_bounds(monomial: Monomial, facts: Facts) -> Bounds:
    result = bounds(monomial[0], facts)
    for atom in monomial[1:]:
        result = _product_bounds(result, bounds(atom, facts))
    return result
