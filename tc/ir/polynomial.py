"""Integer expressions as polynomials: sums of integer multiples of products of *atoms*.

An atom is anything that is not a sum, a difference or a product: a variable, a floor division, a load ... Two expressions that are
equal as polynomials over the same atoms become the same object.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import NamedTuple

from tc.ir.expr import Add, Const, Expr, FloorDiv, FloorMod, Le, Lt, Mul, Sub, Var, const
from tc.ir.node import binders, cached_on_node

Monomial = tuple[Expr, ...]
_MAX_TERMS = 64


class Polynomial(NamedTuple):
    """terms: product of atoms -> coefficient (never 0), not to be changed; plus a constant."""

    terms: Mapping[Monomial, int] = {}
    constant: int = 0

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def plus(self, other: Polynomial, factor: int = 1) -> Polynomial:
        if not factor:
            return self
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total = terms.get(monomial, 0) + coefficient * factor
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Polynomial(terms, self.constant + other.constant * factor)

    def minus(self, other: Polynomial) -> Polynomial:
        return self.plus(other, -1)

    def plus_const(self, value: int) -> Polynomial:
        return Polynomial(self.terms, self.constant + value) if value else self

    def scaled(self, factor: int) -> Polynomial:
        if factor == 0:
            return Polynomial()
        return Polynomial({m: c * factor for m, c in self.terms.items()}, self.constant * factor)

    def times(self, other: Polynomial) -> Polynomial | None:
        """The product; None when it would have too many terms."""
        if other.is_constant:
            return self.scaled(other.constant)
        if self.is_constant:
            return other.scaled(self.constant)
        if (len(self.terms) + 1) * (len(other.terms) + 1) > _MAX_TERMS:
            return None
        result = self.scaled(other.constant).plus(Polynomial(other.terms).scaled(self.constant))
        terms = dict(result.terms)
        for m1, c1 in self.terms.items():
            for m2, c2 in other.terms.items():
                monomial = tuple(sorted((*m1, *m2), key=_atom_order))
                total = terms.get(monomial, 0) + c1 * c2
                if total:
                    terms[monomial] = total
                else:
                    terms.pop(monomial, None)
        return Polynomial(terms, result.constant)

    def rejoined(self, nonzero: Collection[Expr]) -> Polynomial:
        """The same with k * x for k // d * (d * x) + k % d * x, where d is one of these atoms, which are not 0."""
        for monomial, coefficient in self.terms.items():
            for place, atom in enumerate(monomial):
                if not isinstance(atom, FloorMod) or atom.rhs not in nonzero:
                    continue
                rest = (*monomial[:place], *monomial[place + 1 :])
                other = tuple(sorted((*rest, atom.rhs, FloorDiv(atom.lhs, atom.rhs)), key=_atom_order))
                factor = Polynomial({rest: coefficient}) if rest else Polynomial({}, coefficient)
                if self.terms.get(other) == coefficient and (whole := polynomial(atom.lhs).times(factor)) is not None:
                    terms = {each: count for each, count in self.terms.items() if each not in (monomial, other)}
                    return Polynomial(terms, self.constant).plus(whole).rejoined(nonzero)
        return self

    def with_atom(self, atom: Expr, value: Polynomial) -> Polynomial | None:
        """The polynomial in which `value` stands for an atom; None when it would have too many terms."""
        result: Polynomial | None = Polynomial({}, self.constant)
        for monomial, coefficient in self.terms.items():
            term: Polynomial | None = Polynomial({}, coefficient)
            for factor in monomial:
                term = None if term is None else term.times(value if factor is atom else Polynomial({(factor,): 1}))
            result = None if result is None or term is None else result.plus(term)
        return result

    def ordered(self) -> Polynomial:
        """The same, its terms in the order of `to_expr`."""
        terms = sorted(self.terms.items(), key=lambda item: (item[1] < 0, _monomial_order(item[0])))
        return Polynomial(dict(terms), self.constant)

    def to_expr(self) -> Expr:
        """The canonical expression: terms in a fixed order, negative ones subtracted, the constant last."""
        result: Expr | None = None
        for monomial, coefficient in self.ordered().terms.items():
            factor = _product(monomial)
            magnitude = abs(coefficient)
            term = factor if magnitude == 1 else Mul(factor, const(magnitude))
            if result is None:
                result = term if coefficient > 0 else (Mul(factor, const(coefficient)))
            else:
                result = Add(result, term) if coefficient > 0 else Sub(result, term)
        if result is None:
            return const(self.constant)
        if self.constant > 0:
            return Add(result, const(self.constant))
        return Sub(result, const(-self.constant)) if self.constant < 0 else result


def product_of(*atoms: Expr) -> Monomial:
    """The monomial of these atoms."""
    return tuple(sorted(atoms, key=_atom_order))


def remainder(poly: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """What is left of a polynomial where the divisor is nothing; the rest is a multiple of it. None for a divisor without an atom that
    stands alone."""
    for monomial, coefficient in divisor.terms.items():
        if len(monomial) == 1 and abs(coefficient) == 1 and sum(monomial[0] in other for other in divisor.terms) == 1:
            rest = divisor.minus(Polynomial({monomial: coefficient})).scaled(-coefficient)
            return poly.with_atom(monomial[0], rest)
    return None


def _product(monomial: Monomial) -> Expr:
    result = monomial[0]
    for atom in monomial[1:]:
        result = Mul(result, atom)
    return result


_TURNS = count()


@cached_on_node
def _atom_order(atom: Expr) -> tuple[int, str, int]:
    """A fixed order of atoms: variables by name first, then the rest by text; variables of one name as they were first seen here, which,
    unlike where they are in memory, is the same in each run."""
    return (0, atom.name, next(_TURNS)) if isinstance(atom, Var) else (1, str(atom), 0)


def _monomial_order(monomial: Monomial) -> tuple[int, tuple[tuple[int, str, int], ...]]:
    return -len(monomial), tuple(map(_atom_order, monomial))


@functools.lru_cache(maxsize=1 << 14)
def polynomial(expr: Expr) -> Polynomial:
    """`expr` (i64) as a polynomial over its atoms, without simplifying the atoms."""
    match expr:
        case Const(value=value):
            return Polynomial({}, int(value))
        case Add(lhs=a, rhs=b):
            return polynomial(a).plus(polynomial(b))
        case Sub(lhs=a, rhs=b):
            return polynomial(a).minus(polynomial(b))
        case Mul(lhs=a, rhs=b):
            product = polynomial(a).times(polynomial(b))
            if product is not None:
                return product
    return Polynomial({(expr,): 1})


def atoms_of_polynomial(expr: Expr) -> list[Expr]:
    """The variables and other indivisible parts of an i64 expression, in order of appearance."""
    return list(dict.fromkeys(atom for monomial in polynomial(expr).terms for atom in monomial))


def exact_quotient(poly: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial] | None:
    """(q, r) with poly = q * divisor + r, for a divisor of one term; r holds the terms that do not divide."""
    if divisor.is_constant:
        c = divisor.constant
        terms = {m: v // c for m, v in poly.terms.items() if v % c == 0}
        rest = {m: v for m, v in poly.terms.items() if v % c}
        whole = poly.constant // c
        return Polynomial(terms, whole), Polynomial(rest, poly.constant - whole * c)
    if len(divisor.terms) != 1 or divisor.constant:
        return None
    ((atoms, c),) = divisor.terms.items()
    quotient: dict[Monomial, int] = {}
    constant = 0
    rest = {}
    for monomial, v in poly.terms.items():
        left = list(monomial)
        if v % c == 0 and all(_take(left, atom) for atom in atoms):
            if left:
                quotient[tuple(left)] = v // c
            else:
                constant += v // c
        else:
            rest[monomial] = v
    return Polynomial(quotient, constant), Polynomial(rest, poly.constant)


def _take(items: list[Expr], item: Expr) -> bool:
    for k, other in enumerate(items):
        if other is item:
            del items[k]
            return True
    return False


def slack_of(condition: Lt | Le) -> Expr:
    """What is not negative where a comparison of integers holds, and only there."""
    slack = condition.rhs - condition.lhs
    return slack if isinstance(condition, Le) else slack - 1


@functools.lru_cache(maxsize=1 << 14)
def _canonical(expr: Expr) -> Expr:
    """The canonical expression of its polynomial."""
    return polynomial(expr).to_expr()


def linear_coefficients(expr: Expr, variables: Iterable[Var]) -> tuple[dict[Var, Expr], Expr] | None:
    """`expr` as sum(coefficient * var) + rest, with coefficients and rest free of `variables`; None when it is not linear."""
    wanted = frozenset(variables)
    if wanted.isdisjoint(binders(expr)):
        return {}, _canonical(expr)
    if isinstance(expr, Var):
        return {expr: const(1)}, const(0)
    coefficients: dict[Var, Polynomial] = {}
    rest: dict[Monomial, int] = {}
    poly = polynomial(expr)
    for monomial, v in poly.terms.items():
        chosen = [atom for atom in monomial if atom in wanted]
        others = tuple(atom for atom in monomial if atom not in wanted)
        if len(chosen) > 1 or not all(wanted.isdisjoint(binders(atom)) for atom in others):
            return None
        if not chosen:
            rest[monomial] = v
            continue
        term = Polynomial({others: v}) if others else Polynomial({}, v)
        var = chosen[0]
        coefficients[var] = coefficients[var].plus(term) if var in coefficients else term
    return {var: poly.to_expr() for var, poly in coefficients.items()}, Polynomial(rest, poly.constant).to_expr()
