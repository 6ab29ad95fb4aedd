"""Proof that a polynomial is never negative: the one question that every comparison comes down to.

By intervals, by conditions assumed to hold, or by replacing one atom after the other by a bound of it. A fact that is not
found is not false: it becomes a check at run time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tc.ir.bounds import Facts, bounds, lower_bound, poly_bounds
from tc.ir.expr import Const, Expr, FloorDiv, FloorMod, Max, Min, Var, const
from tc.ir.polynomial import Monomial, Polynomial, exact_quotient, polynomial
from tc.ir.samples import is_refuted

_MAX_DEPTH = 12
_MAX_STEPS = 60


def proves_nonnegative(poly: Polynomial, facts: Facts, depth: int = 0) -> bool:
    """poly >= 0, by intervals, by assumed conditions, or by replacing one atom after the other by a bound of it.

    Gives up after a fixed number of replacements: a fact that is not found becomes a check at run time.
    """
    if not poly.terms:
        return poly.constant >= 0
    key = (*poly.terms.items(), poly.constant, depth)  # in their order, which is the order of the search
    found = facts.proofs.get(key)
    if found is None:
        found = facts.proofs[key] = _is_nonnegative(poly, facts, depth)
    return found


def _is_nonnegative(poly: Polynomial, facts: Facts, depth: int) -> bool:
    low = lower_bound(poly, facts)
    if low is not None and low >= 0:
        return True
    if not (facts.nonnegative or _elimination_order(poly, facts)):
        return False  # there is nothing to search
    if is_refuted(poly, facts):
        return False
    steps = [_MAX_STEPS]
    if _search_nonnegative(poly, facts, depth, steps):
        return True
    # Conditions that did not help may have used up the steps before any bound was tried.
    return steps[0] < 0 and depth == 0 and bool(facts.nonnegative) and _search_by_bounds(poly, facts, 0, [_MAX_STEPS])


def _search_nonnegative(poly: Polynomial, facts: Facts, depth: int, steps: list[int]) -> bool:
    if poly.is_constant:
        return poly.constant >= 0
    low = lower_bound(poly, facts)
    if low is not None and low >= 0:
        return True
    steps[0] -= 1
    if depth >= _MAX_DEPTH or steps[0] < 0:
        return False
    known = facts.nonnegative if depth == 0 else ()
    if not known:
        return _search_by_bounds(poly, facts, depth, steps)
    related: list[Polynomial] = []
    others: list[Polynomial] = []
    for each in known:
        (others if each.terms.keys().isdisjoint(poly.terms) else related).append(each)
    return (
        _follows_from(related, poly, facts, steps)
        or _search_by_bounds(poly, facts, depth, steps)
        or _follows_from(others, poly, facts, steps)
    )


def _follows_from(known: Iterable[Polynomial], poly: Polynomial, facts: Facts, steps: list[int]) -> bool:
    """Whether the polynomial is at least one of those that are known not to be negative, or a multiple of one."""
    return any(
        _search_nonnegative(poly.plus(each, -scale), facts, _MAX_DEPTH - 3, steps)
        for each in known
        for scale in _scales(poly, each)
    )


def _scales(poly: Polynomial, known: Polynomial) -> Iterable[int]:
    """Numbers of times that one may be taken from the other: once, and as often as makes a term vanish."""
    common = [(poly.terms[monomial], factor) for monomial, factor in known.terms.items() if monomial in poly.terms]
    return dict.fromkeys([1, *(a // b for a, b in common if a % b == 0 and a // b > 1)])


def _search_by_bounds(poly: Polynomial, facts: Facts, depth: int, steps: list[int]) -> bool:
    for atom in _elimination_order(poly, facts):
        cases = _cases(poly, atom, facts)
        if cases and all(_search_nonnegative(case, facts, depth, steps) for case in cases):
            return True
        for smaller in _lower_replacements(poly, atom, facts):
            if _search_nonnegative(smaller, facts, depth + 1, steps):
                return True
        if isinstance(atom, Var) or steps[0] < 0:
            return False
    return False


def _elimination_order(poly: Polynomial, facts: Facts) -> list[Expr]:
    """Atoms that a bound may replace: variables whose bounds mention other variables, then divisions, min and max."""
    others: dict[Expr, None] = {}
    symbolic: Var | None = None
    for monomial in poly.terms:
        for atom in monomial:
            if type(atom) in _WITH_BOUNDS:
                others[atom] = None
            elif symbolic is None and isinstance(atom, Var) and _has_symbolic_range(atom, facts):
                symbolic = atom
    return list(others) if symbolic is None else [*others, symbolic]


_WITH_BOUNDS = frozenset((FloorDiv, FloorMod, Min, Max))


def _has_symbolic_range(var: Var, facts: Facts) -> bool:
    fact = facts.variables.get(var)
    return fact is not None and not (
        (fact.lo is None or isinstance(fact.lo, Const)) and (fact.hi is None or isinstance(fact.hi, Const))
    )


def _cases(poly: Polynomial, atom: Expr, facts: Facts) -> list[Polynomial]:
    """Polynomials of which one equals poly: for a min that is added or a max that is subtracted, with either side of it."""
    parts = _linear_parts(poly, atom) if isinstance(atom, (Min, Max)) else None
    if parts is None:
        return []
    coefficient, remainder = parts
    sign = poly_bounds(coefficient, facts)
    added, taken = sign.lo is not None and sign.lo >= 0, sign.hi is not None and sign.hi <= 0
    if not (added if isinstance(atom, Min) else taken):
        return []
    products = [coefficient.times(polynomial(side)) for side in (atom.lhs, atom.rhs)]  # type: ignore[attr-defined]
    return [remainder.plus(product) for product in products if product is not None] if None not in products else []


def _linear_parts(poly: Polynomial, atom: Expr) -> tuple[Polynomial, Polynomial] | None:
    """(c, r) with poly = c * atom + r and no `atom` in c; None when it is not linear in `atom`."""
    factor: dict[Monomial, int] = {}
    constant = 0
    rest: dict[Monomial, int] = {}
    for monomial, v in poly.terms.items():
        if atom not in monomial:
            rest[monomial] = v
            continue
        left = tuple(part for part in monomial if part is not atom)
        if len(left) + 1 < len(monomial):
            return None
        if left:
            factor[left] = v
        else:
            constant = v
    return Polynomial(factor, constant), Polynomial(rest, poly.constant)


def _lower_replacements(poly: Polynomial, atom: Expr, facts: Facts) -> Iterable[Polynomial]:
    """Polynomials that are <= poly or a multiple of it, with `atom` (occurring linearly) replaced by one of its bounds."""
    parts = _linear_parts(poly, atom)
    if parts is None:
        return
    coefficient, remainder = parts
    sign = poly_bounds(coefficient, facts)
    if sign.lo is not None and sign.lo >= 0:
        candidates = _lower_bounds(atom, facts)
    elif sign.hi is not None and sign.hi <= 0:
        candidates = _upper_bounds(atom, facts)
    else:
        return
    if isinstance(atom, FloorDiv) and coefficient.is_constant and isinstance(atom.rhs, Const) and atom.rhs.value > 0:
        yield _scaled_quotient(remainder, coefficient.constant, atom)
    for candidate in candidates:
        product = coefficient.times(polynomial(candidate))
        if product is not None:
            yield remainder.plus(product)


def _scaled_quotient(remainder: Polynomial, k: int, atom: FloorDiv) -> Polynomial:
    """A polynomial that is negative where remainder + k * (x // c) is: that times a number, by c * (x // c) in [x - c + 1, x]."""
    c = atom.rhs.value  # type: ignore[attr-defined]
    scale = c // math.gcd(k, c)
    x = polynomial(atom.lhs)
    return remainder.scaled(scale).plus(x.plus_const(1 - c) if k > 0 else x, k * scale // c)


def _lower_bounds(atom: Expr, facts: Facts) -> list[Expr]:
    match atom:
        case Var():
            fact = facts.variables.get(atom)
            return [fact.lo] if fact is not None and fact.lo is not None else []
        case Max(lhs=a, rhs=b):
            return [a, b]
        case FloorMod(rhs=b) if is_positive(b, facts):
            return [const(0)]
        case FloorDiv(lhs=a, rhs=b) if is_positive(b, facts) and proves_nonnegative(polynomial(a), facts, _MAX_DEPTH - 2):
            return [const(0)]
    return []


def _upper_bounds(atom: Expr, facts: Facts) -> list[Expr]:
    match atom:
        case Var():
            fact = facts.variables.get(atom)
            return [fact.hi] if fact is not None and fact.hi is not None else []
        case Min(lhs=a, rhs=b):
            return [a, b]
        case FloorMod(lhs=a, rhs=b) if is_positive(b, facts):
            upper = [b - 1]
            return [*upper, a] if proves_nonnegative(polynomial(a), facts, _MAX_DEPTH - 2) else upper
        case FloorDiv(lhs=a, rhs=b) if is_positive(b, facts):
            upper = _upper_quotients(a, b, facts)
            return [*upper, a] if proves_nonnegative(polynomial(a), facts, _MAX_DEPTH - 2) else upper
    return []


def _upper_quotients(a: Expr, b: Expr, facts: Facts) -> list[Expr]:
    """hi // b for a variable that is at most hi, where that is a multiple of b but for a constant: of a number b for any, else for -1."""
    fact = facts.variables.get(a) if isinstance(a, Var) else None
    if fact is None or fact.hi is None:
        return []
    found = exact_quotient(polynomial(fact.hi), polynomial(b))
    if found is None or not found[1].is_constant:
        return []
    quotient, rest = found
    if isinstance(b, Const):
        return [quotient.to_expr()]
    return [quotient.plus_const(-1).to_expr()] if rest.constant == -1 else []


def is_positive(expr: Expr, facts: Facts) -> bool:
    """Whether it is proven by its interval, or, of one that may be 0 by that, by one condition that holds and intervals."""
    low = bounds(expr, facts).lo
    if low is None or low > 0:
        return low is not None
    if low < 0 or not facts.nonnegative:
        return False
    poly = polynomial(expr).plus_const(-1)
    lows = (lower_bound(poly.plus(each, -scale), facts) for each in facts.nonnegative for scale in _scales(poly, each))
    return any(found is not None and found >= 0 for found in lows)
