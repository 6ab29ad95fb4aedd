"""The simplifier and the prover for integer expressions.

Integer arithmetic (i64) is brought to a canonical polynomial: a sum of integer multiples of products of *atoms*, where an atom is
anything that is not a sum or a product (a variable, a floor division, a load ...). Two expressions that are equal as polynomials
become the same object. Division, remainder, minimum and comparisons use what is known of their operands: intervals, and the
symbolic ranges of loop variables. Everything here reads integers as unbounded; kernel values of other dtypes are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tc.errors import TcError
from tc.ir.dtype import i64, int_range
from tc.ir.expr import (
    Add,
    And,
    BinaryExpr,
    Cast,
    CompareExpr,
    Const,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Load,
    Lt,
    MathCall,
    Max,
    Min,
    Mul,
    Ne,
    Not,
    Or,
    Select,
    Sub,
    Var,
    cast,
    const,
    logical_and,
    logical_not,
    logical_or,
    select,
)
from tc.ir.node import map_children, walk
from tc.ir.types import DimFact

Monomial = tuple[Expr, ...]
_MAX_TERMS = 64


@dataclass(frozen=True)
class Bounds:
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
        self, variables: Mapping[Var, VarFact] | None = None, nonnegative: tuple[Polynomial, ...] = ()
    ) -> None:
        self.variables = dict(variables or {})
        self.nonnegative = nonnegative
        self._simplified: dict[Expr, Expr] = {}
        self._bounds: dict[Expr, Bounds] = {}

    @staticmethod
    def of(dim_facts: Iterable[DimFact]) -> Facts:
        """The promises made about symbolic dims."""
        return Facts(
            {
                fact.var: VarFact(const(fact.lo), None if fact.hi is None else const(fact.hi), fact.multiple_of)
                for fact in dim_facts
            }
        )

    def with_range(self, var: Var, extent: Expr) -> Facts:
        """Also 0 <= var < extent."""
        return Facts({**self.variables, var: VarFact(const(0), simplify(extent - 1, self))}, self.nonnegative)

    def with_bounds(self, var: Var, lo: int | None, hi: int | None, multiple_of: int = 1) -> Facts:
        fact = VarFact(None if lo is None else const(lo), None if hi is None else const(hi), multiple_of)
        return Facts({**self.variables, var: fact}, self.nonnegative)

    def assume(self, condition: Expr) -> Facts:
        """Also `condition`. Conditions over integers are used; others are ignored."""
        found = tuple(_nonnegative_parts(condition))
        return Facts(self.variables, self.nonnegative + found) if found else self


def _nonnegative_parts(condition: Expr) -> Iterable[Polynomial]:
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


@dataclass(frozen=True)
class Polynomial:
    """terms: product of atoms -> coefficient (never 0); plus a constant."""

    terms: Mapping[Monomial, int] = field(default_factory=dict)
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

    def to_expr(self) -> Expr:
        """The canonical expression: terms in a fixed order, negative ones subtracted, the constant last."""
        result: Expr | None = None
        ordered = sorted(self.terms.items(), key=lambda item: (item[1] < 0, _monomial_order(item[0])))
        for monomial, coefficient in ordered:
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


def _product(monomial: Monomial) -> Expr:
    result = monomial[0]
    for atom in monomial[1:]:
        result = Mul(result, atom)
    return result


_ORDER: dict[str, int] = {}


def _atom_order(atom: Expr) -> tuple[int, str, int]:
    """A fixed order of atoms: variables by name first, then the rest by text; objects of one text by identity."""
    return (0 if isinstance(atom, Var) else 1, str(atom), id(atom) if isinstance(atom, Var) else 0)


def _monomial_order(monomial: Monomial) -> tuple[int, tuple[tuple[int, str, int], ...]]:
    return -len(monomial), tuple(map(_atom_order, monomial))


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


# -- simplify


def simplify(expr: Expr, facts: Facts | None = None) -> Expr:
    """An equal expression in canonical form. Floats are rewritten by exact identities only."""
    facts = facts if facts is not None else EMPTY
    if isinstance(expr, (Const, Var)):
        return expr
    found = facts._simplified.get(expr)
    if found is None:
        found = _simplify(expr, facts)
        facts._simplified[expr] = found
        facts._simplified[found] = found
    return found


def _simplify(expr: Expr, facts: Facts) -> Expr:
    if expr.dtype == i64 and isinstance(expr, (Add, Sub, Mul)):
        return _recombine(_simplified_polynomial(expr, facts), facts).to_expr()
    match expr:
        case FloorDiv(lhs=a, rhs=b) if expr.dtype == i64:
            return _simplify_floordiv(simplify(a, facts), simplify(b, facts), facts)
        case FloorMod(lhs=a, rhs=b) if expr.dtype == i64:
            return _simplify_floormod(simplify(a, facts), simplify(b, facts), facts)
        case Min(lhs=a, rhs=b) | Max(lhs=a, rhs=b):
            return _simplify_minmax(type(expr), simplify(a, facts), simplify(b, facts), facts)
        case Eq() | Ne() | Lt() | Le():
            return _simplify_compare(expr, facts)
        case And(lhs=a, rhs=b):
            first = simplify(a, facts)
            return logical_and(first, simplify(b, facts.assume(first)))
        case Or(lhs=a, rhs=b):
            return logical_or(simplify(a, facts), simplify(b, facts))
        case Not(operand=a):
            return _simplify_not(simplify(a, facts))
        case Select(condition=c, true_value=a, false_value=b):
            condition = simplify(c, facts)
            if isinstance(condition, Const):
                return simplify(a if condition.value else b, facts)
            yes = simplify(a, facts.assume(condition))
            return select(condition, yes, simplify(b, facts.assume(logical_not(condition))))
        case Cast(operand=a, dtype=dtype):
            return cast(simplify(a, facts), dtype)
        case Load(buffer=buffer, indices=indices):
            return Load(buffer, tuple(simplify(index, facts) for index in indices))
        case MathCall(name=name, args=args, dtype=dtype):
            return MathCall(name, tuple(simplify(arg, facts) for arg in args), dtype)
        case Div(lhs=a, rhs=b) if expr.dtype == i64:
            return _simplify_truncdiv(simplify(a, facts), simplify(b, facts), facts)
        case BinaryExpr(lhs=a, rhs=b):
            return _simplify_value(type(expr), simplify(a, facts), simplify(b, facts))
    return map_children(expr, lambda child: simplify(child, facts) if isinstance(child, Expr) else child)


def _simplify_value(cls: type[BinaryExpr], a: Expr, b: Expr) -> Expr:
    """Exact identities of wrapping integers and IEEE floats."""
    if cls is Mul and isinstance(b, Const) and b.value == 1:
        return a
    if cls is Mul and isinstance(a, Const) and a.value == 1:
        return b
    if cls is Div and isinstance(b, Const) and b.value == 1:
        return a
    if a.dtype.is_int and isinstance(b, Const) and b.value == 0 and cls in (Add, Sub):
        return a
    if a.dtype.is_int and isinstance(a, Const) and a.value == 0 and cls is Add:
        return b
    if cls is Sub and isinstance(b, Const) and b.value == 0.0 and math.copysign(1.0, b.value) > 0:
        return a
    return cls(a, b)


def _simplified_polynomial(expr: Expr, facts: Facts) -> Polynomial:
    """The polynomial of an i64 expression, its atoms simplified."""
    match expr:
        case Const(value=value):
            return Polynomial({}, int(value))
        case Add(lhs=a, rhs=b):
            return _simplified_polynomial(a, facts).plus(_simplified_polynomial(b, facts))
        case Sub(lhs=a, rhs=b):
            return _simplified_polynomial(a, facts).minus(_simplified_polynomial(b, facts))
        case Mul(lhs=a, rhs=b):
            left, right = _simplified_polynomial(a, facts), _simplified_polynomial(b, facts)
            product = left.times(right)
            if product is not None:
                return product
            return Polynomial({(Mul(left.to_expr(), right.to_expr()),): 1})
        case Var():
            return Polynomial({(expr,): 1})
    return polynomial(simplify(expr, facts))


def _recombine(poly: Polynomial, facts: Facts) -> Polynomial:
    """Join the parts of numbers taken apart: (x // c) * c + x % c = x, also one level at a time."""
    while True:
        joined = _recombine_once(poly, facts)
        if joined is None:
            return poly
        poly = joined


def _recombine_once(poly: Polynomial, facts: Facts) -> Polynomial | None:
    for monomial, k in poly.terms.items():
        for position, atom in enumerate(monomial):
            if not isinstance(atom, FloorMod):
                continue
            others = monomial[:position] + monomial[position + 1 :]
            joined = _join_remainder(poly, monomial, others, atom, k, facts)
            if joined is not None:
                return joined
    return None


def _join_remainder(
    poly: Polynomial, monomial: Monomial, others: Monomial, atom: FloorMod, k: int, facts: Facts
) -> Polynomial | None:
    """k*others*(x % c) plus k*c*others*(x // c), or plus k*c*others*((x // c) % d).

    The quotient may also be of another number with the same remainder: multiples of c have been dropped from x.
    """
    c = atom.rhs
    divisor = polynomial(c)
    for partner, coefficient in poly.terms.items():
        for position, quotient in enumerate(partner):
            inner = quotient.lhs if isinstance(quotient, FloorMod) else quotient
            x = atom.lhs
            if inner is quotient and isinstance(inner, FloorDiv) and inner.rhs is c and inner.lhs is not x:
                if _simplify_floormod(inner.lhs, c, facts) is atom:
                    x = inner.lhs
            if not _is_quotient(inner, x, c):
                continue
            rest = partner[:position] + partner[position + 1 :]
            expected = divisor.times(Polynomial({others: k}) if others else Polynomial({}, k))
            if expected != (Polynomial({rest: coefficient}) if rest else Polynomial({}, coefficient)):
                continue
            whole = x if not isinstance(quotient, FloorMod) else FloorMod(x, simplify(c * quotient.rhs))
            terms = {m: v for m, v in poly.terms.items() if m not in (monomial, partner)}
            tail = polynomial(whole).times(Polynomial({others: k}) if others else Polynomial({}, k))
            return None if tail is None else Polynomial(terms, poly.constant).plus(tail)
    return None


def _is_quotient(atom: Expr, x: Expr, c: Expr) -> bool:
    """Whether `atom` is x // c, perhaps written as (y // d) // ... merged into y // (d * c)."""
    if isinstance(atom, FloorDiv):
        if atom.lhs is x and atom.rhs is c:
            return True
        if isinstance(x, FloorDiv) and atom.lhs is x.lhs:
            return atom.rhs is simplify(x.rhs * c)
    return False


def _exact_quotient(poly: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial] | None:
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


def _simplify_floordiv(a: Expr, b: Expr, facts: Facts) -> Expr:
    if isinstance(b, Const) and b.value == 0:
        return const(0)
    if isinstance(b, Const) and b.value == 1:
        return a
    if isinstance(b, Const) and b.value < 0:
        return FloorDiv(a, b) if not isinstance(a, Const) else const(a.value // b.value)
    if not _is_positive(b, facts):
        return a if isinstance(a, Const) and a.value == 0 else FloorDiv(a, b)
    if isinstance(a, FloorDiv) and isinstance(a.rhs, Const) and a.rhs.value > 0:
        return _simplify_floordiv(a.lhs, simplify(a.rhs * b, facts), facts)
    split = _exact_quotient(polynomial(a), polynomial(b))
    if split is None:
        return const(1) if polynomial(a) == polynomial(b) else _in_range_div(a, b, facts)
    quotient, rest = split
    tail = _divide_rest(rest, b, facts)
    return _recombine(quotient.plus(polynomial(tail)), facts).to_expr()


def _in_range_div(a: Expr, b: Expr, facts: Facts) -> Expr:
    if _lies_within(polynomial(a), b, facts):
        return const(0)
    return FloorDiv(a, b)


def _divide_rest(rest: Polynomial, b: Expr, facts: Facts) -> Expr:
    """rest // b, where no term of rest is a multiple of b."""
    if _lies_within(rest, b, facts):
        return const(0)
    if isinstance(b, Const) and rest.terms:
        shared = math.gcd(b.value, *rest.terms.values())
        if shared > 1:
            smaller = Polynomial({m: v // shared for m, v in rest.terms.items()}, rest.constant // shared)
            return _simplify_floordiv(smaller.to_expr(), const(b.value // shared), facts)
        low = _carry(rest, b, facts)
        if low is not None:
            return low
    return FloorDiv(rest.to_expr(), b)


def _carry(rest: Polynomial, b: Const, facts: Facts) -> Expr | None:
    """rest // b when every value of rest lies in one interval [q*b, (q+1)*b)."""
    span = _poly_bounds(rest, facts)
    if span.lo is not None and span.hi is not None and span.lo // b.value == span.hi // b.value:
        return const(span.lo // b.value)
    return None


def _simplify_floormod(a: Expr, b: Expr, facts: Facts) -> Expr:
    if isinstance(b, Const) and b.value in (0, 1):
        return const(0)
    if not _is_positive(b, facts):
        return a if isinstance(a, Const) and a.value == 0 else FloorMod(a, b)
    split = _exact_quotient(polynomial(a), polynomial(b))
    rest = split[1] if split is not None else polynomial(a)
    if isinstance(b, Const):
        rest = _reduce_mod(rest, int(b.value))
        if rest.is_constant:
            return const(rest.constant % b.value)
    elif rest.is_constant and rest.constant == 0:
        return const(0)
    if _lies_within(rest, b, facts):
        return rest.to_expr()
    if isinstance(b, Const) and rest.terms:
        quotient = _carry(rest, b, facts)
        if quotient is not None:
            return rest.plus_const(-quotient.value * b.value).to_expr()
    return FloorMod(rest.to_expr(), b)


def _reduce_mod(rest: Polynomial, c: int) -> Polynomial:
    """Drop multiples of c: inside coefficients only whole multiples go; (x % (c*k)) becomes x."""
    result = Polynomial({}, rest.constant)
    for monomial, v in rest.terms.items():
        if len(monomial) == 1 and isinstance(monomial[0], FloorMod):
            inner = monomial[0]
            if isinstance(inner.rhs, Const) and inner.rhs.value and (inner.rhs.value * v) % c == 0:
                result = result.plus(polynomial(inner.lhs), v)
                continue
        result = result.plus(Polynomial({monomial: v}))
    terms = {m: v for m, v in result.terms.items() if v % c}
    return Polynomial(terms, result.constant % c)


def _lies_within(poly: Polynomial, b: Expr, facts: Facts) -> bool:
    """0 <= poly < b, proven."""
    return _proves_nonnegative(poly, facts) and _proves_nonnegative(
        polynomial(b).minus(poly).plus_const(-1), facts
    )


def _simplify_truncdiv(a: Expr, b: Expr, facts: Facts) -> Expr:
    """Division toward zero is floor division where both operands are not negative."""
    if isinstance(a, Const) and isinstance(b, Const):
        if b.value == 0:
            return const(0)
        magnitude = abs(a.value) // abs(b.value)
        return const(magnitude if (a.value >= 0) == (b.value > 0) else -magnitude)
    if _is_positive(b, facts) and _proves_nonnegative(polynomial(a), facts):
        return _simplify_floordiv(a, b, facts)
    return Div(a, b)


def _simplify_minmax(cls: type[BinaryExpr], a: Expr, b: Expr, facts: Facts) -> Expr:
    if a is b:
        return a
    if a.dtype != i64:
        return cls(a, b)
    difference = polynomial(b).minus(polynomial(a))
    if _proves_nonnegative(difference, facts):
        return a if cls is Min else b
    if _proves_nonnegative(difference.scaled(-1), facts):
        return b if cls is Min else a
    return cls(a, b)


def _simplify_compare(expr: CompareExpr, facts: Facts) -> Expr:
    a, b = simplify(expr.lhs, facts), simplify(expr.rhs, facts)
    rebuilt = type(expr)(a, b)
    known = _prove_compare(rebuilt, facts)
    if known is not None:
        return Const(known, rebuilt.dtype)
    if a.dtype == i64:
        return _normal_compare(rebuilt)
    return rebuilt


def _normal_compare(expr: CompareExpr) -> Expr:
    """Move everything but the constant to one side when that shortens it, and divide by the common factor."""
    difference = polynomial(expr.lhs).minus(polynomial(expr.rhs))
    if not difference.terms:
        return expr
    shared = math.gcd(*difference.terms.values())
    positive = Polynomial({m: v // shared for m, v in difference.terms.items() if v > 0})
    negative = Polynomial({m: -v // shared for m, v in difference.terms.items() if v < 0})
    c = difference.constant
    if isinstance(expr, (Eq, Ne)):
        if c % shared:
            return Const(isinstance(expr, Ne), expr.dtype)
        c //= shared
    elif isinstance(expr, Lt):  # p + c/shared < n  <=>  p <= n - floor(c/shared) - 1
        c = c // shared
    else:
        c = -((-c) // shared)
    left = positive.plus_const(max(c, 0))
    right = negative.plus_const(max(-c, 0))
    return type(expr)(left.to_expr(), right.to_expr())


def _simplify_not(a: Expr) -> Expr:
    match a:
        case Lt(lhs=x, rhs=y) if not x.dtype.is_float:
            return Le(y, x)
        case Le(lhs=x, rhs=y) if not x.dtype.is_float:
            return Lt(y, x)
        case Eq(lhs=x, rhs=y):
            return Ne(x, y)
        case Ne(lhs=x, rhs=y):
            return Eq(x, y)
    return logical_not(a)


# -- bounds


def bounds(expr: Expr, facts: Facts | None = None) -> Bounds:
    """Numbers between which an integer expression lies."""
    facts = facts if facts is not None else EMPTY
    found = facts._bounds.get(expr)
    if found is None:
        found = _bounds(expr, facts)
        facts._bounds[expr] = found
    return found


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


def _poly_bounds(poly: Polynomial, facts: Facts) -> Bounds:
    total = Bounds(poly.constant, poly.constant)
    for monomial, coefficient in poly.terms.items():
        part = Bounds(coefficient, coefficient)
        for atom in monomial:
            part = _product_bounds(part, bounds(atom, facts))
        total = _sum_bounds(total, part)
    return total


# -- prove


def prove(condition: Expr, facts: Facts | None = None) -> bool | None:
    """True or False when `condition` is known to hold or to fail, else None."""
    facts = facts if facts is not None else EMPTY
    result = simplify(condition, facts)
    return bool(result.value) if isinstance(result, Const) else None


def _prove_compare(expr: CompareExpr, facts: Facts) -> bool | None:
    a, b = expr.lhs, expr.rhs
    if isinstance(a, Const) and isinstance(b, Const):
        x, y = a.value, b.value
        return {Eq: x == y, Ne: x != y, Lt: x < y, Le: x <= y}[type(expr)]
    if a is b and not a.dtype.is_float:
        return isinstance(expr, (Eq, Le))
    if a.dtype != i64:
        return None
    difference = polynomial(b).minus(polynomial(a))
    match expr:
        case Lt():
            return _sign_test(difference.plus_const(-1), facts)
        case Le():
            return _sign_test(difference, facts)
    if not difference.terms:
        return (difference.constant == 0) == isinstance(expr, Eq)
    if _proves_nonnegative(difference.plus_const(-1), facts) or _proves_nonnegative(
        difference.scaled(-1).plus_const(-1), facts
    ):
        return isinstance(expr, Ne)
    if _proves_nonnegative(difference, facts) and _proves_nonnegative(difference.scaled(-1), facts):
        return isinstance(expr, Eq)
    return None


def _sign_test(poly: Polynomial, facts: Facts) -> bool | None:
    """Whether poly >= 0."""
    if _proves_nonnegative(poly, facts):
        return True
    return False if _proves_nonnegative(poly.scaled(-1).plus_const(-1), facts) else None


_MAX_DEPTH = 12
_MAX_STEPS = 60


def _proves_nonnegative(poly: Polynomial, facts: Facts, depth: int = 0) -> bool:
    """poly >= 0, by intervals, by assumed conditions, or by replacing one atom after the other by a bound of it.

    Gives up after a fixed number of replacements: a fact that is not found becomes a check at run time.
    """
    return _search_nonnegative(poly, facts, depth, [_MAX_STEPS])


def _search_nonnegative(poly: Polynomial, facts: Facts, depth: int, steps: list[int]) -> bool:
    if poly.is_constant:
        return poly.constant >= 0
    low = _poly_bounds(poly, facts).lo
    if low is not None and low >= 0:
        return True
    steps[0] -= 1
    if depth >= _MAX_DEPTH or steps[0] < 0:
        return False
    if depth == 0:
        for known in facts.nonnegative:
            if _search_nonnegative(poly.minus(known), facts, _MAX_DEPTH - 3, steps):
                return True
    for atom in _elimination_order(poly, facts):
        for smaller in _lower_replacements(poly, atom, facts):
            if _search_nonnegative(smaller, facts, depth + 1, steps):
                return True
        if isinstance(atom, Var) or steps[0] < 0:
            return False
    return False


def _elimination_order(poly: Polynomial, facts: Facts) -> list[Expr]:
    """Atoms that a bound may replace: variables whose bounds mention other variables, then divisions, min and max."""
    atoms = dict.fromkeys(atom for monomial in poly.terms for atom in monomial)
    symbolic = [atom for atom in atoms if isinstance(atom, Var) and _has_symbolic_range(atom, facts)]
    others = [atom for atom in atoms if isinstance(atom, (FloorDiv, FloorMod, Min, Max))]
    return [*others, *symbolic[:1]]


def _has_symbolic_range(var: Var, facts: Facts) -> bool:
    fact = facts.variables.get(var)
    return fact is not None and any(end is not None and not isinstance(end, Const) for end in (fact.lo, fact.hi))


def _lower_replacements(poly: Polynomial, atom: Expr, facts: Facts) -> Iterable[Polynomial]:
    """Polynomials that are <= poly, with `atom` (occurring linearly) replaced by one of its bounds."""
    factor: dict[Monomial, int] = {}
    constant = 0
    rest: dict[Monomial, int] = {}
    for monomial, v in poly.terms.items():
        count = sum(1 for part in monomial if part is atom)
        if count > 1:
            return
        if count == 0:
            rest[monomial] = v
            continue
        left = tuple(part for part in monomial if part is not atom)
        if left:
            factor[left] = v
        else:
            constant = v
    coefficient = Polynomial(factor, constant)
    remainder = Polynomial(rest, poly.constant)
    sign = _poly_bounds(coefficient, facts)
    if sign.lo is not None and sign.lo >= 0:
        candidates = _lower_bounds(atom, facts)
    elif sign.hi is not None and sign.hi <= 0:
        candidates = _upper_bounds(atom, facts)
    else:
        return
    if isinstance(atom, FloorDiv) and coefficient.is_constant and isinstance(atom.rhs, Const) and atom.rhs.value > 0:
        yield from _scaled_quotient(remainder, coefficient.constant, atom)
    for candidate in candidates:
        product = coefficient.times(polynomial(candidate))
        if product is not None:
            yield remainder.plus(product)


def _scaled_quotient(remainder: Polynomial, k: int, atom: FloorDiv) -> Iterable[Polynomial]:
    """k * (x // c) with k a multiple of c: c * (x // c) lies in [x - c + 1, x]."""
    c = atom.rhs.value  # type: ignore[attr-defined]
    if k % c == 0:
        x = polynomial(atom.lhs)
        yield remainder.plus(x.plus_const(1 - c) if k > 0 else x, k // c)


def _lower_bounds(atom: Expr, facts: Facts) -> list[Expr]:
    match atom:
        case Var():
            fact = facts.variables.get(atom)
            return [fact.lo] if fact is not None and fact.lo is not None else []
        case Max(lhs=a, rhs=b):
            return [a, b]
        case FloorMod(rhs=b) if _is_positive(b, facts):
            return [const(0)]
        case FloorDiv(lhs=a, rhs=b) if _is_positive(b, facts) and _proves_nonnegative(polynomial(a), facts, _MAX_DEPTH - 2):
            return [const(0)]
    return []


def _upper_bounds(atom: Expr, facts: Facts) -> list[Expr]:
    match atom:
        case Var():
            fact = facts.variables.get(atom)
            return [fact.hi] if fact is not None and fact.hi is not None else []
        case Min(lhs=a, rhs=b):
            return [a, b]
        case FloorMod(lhs=a, rhs=b) if _is_positive(b, facts):
            upper = [b - 1]
            return [*upper, a] if _proves_nonnegative(polynomial(a), facts, _MAX_DEPTH - 2) else upper
        case FloorDiv(lhs=a, rhs=b) if _is_positive(b, facts) and _proves_nonnegative(polynomial(a), facts, _MAX_DEPTH - 2):
            return [a]
    return []


def _is_positive(expr: Expr, facts: Facts) -> bool:
    low = bounds(expr, facts).lo
    return low is not None and low > 0


def equal_shapes(a: Sequence[Expr], b: Sequence[Expr], facts: Facts | None = None) -> bool | None:
    """Whether two shapes are the same; None when that depends on the dims."""
    if len(a) != len(b):
        return False
    results = [True if x is y else prove(Eq(x, y), facts) for x, y in zip(a, b, strict=True)]
    if False in results:
        return False
    return None if None in results else True


EMPTY = Facts()


# -- evaluation and linear forms


def evaluate(expr: Expr, env: Mapping[Var, int]) -> int:
    """The value of an integer or bool expression without loads, given its variables."""
    match expr:
        case Const(value=value):
            return value  # type: ignore[return-value]
        case Var():
            if expr not in env:
                raise TcError(f"no value for {expr.name}")
            return env[expr]
        case FloorDiv(lhs=a, rhs=b):
            x, y = evaluate(a, env), evaluate(b, env)
            return x // y if y else 0
        case FloorMod(lhs=a, rhs=b):
            x, y = evaluate(a, env), evaluate(b, env)
            return x % y if y else 0
        case Div(lhs=a, rhs=b):
            x, y = evaluate(a, env), evaluate(b, env)
            return 0 if y == 0 else abs(x) // abs(y) * (1 if (x >= 0) == (y > 0) else -1)
        case Select(condition=c, true_value=a, false_value=b):
            return evaluate(a if evaluate(c, env) else b, env)
        case Not(operand=a):
            return not evaluate(a, env)
        case Cast(operand=a):
            return int(evaluate(a, env))
        case BinaryExpr(lhs=a, rhs=b) | CompareExpr(lhs=a, rhs=b):
            return _EVALUATE[type(expr)](evaluate(a, env), evaluate(b, env))
    raise TcError(f"cannot evaluate {expr}")


_EVALUATE = {
    Add: lambda a, b: a + b,
    Sub: lambda a, b: a - b,
    Mul: lambda a, b: a * b,
    Min: min,
    Max: max,
    Eq: lambda a, b: a == b,
    Ne: lambda a, b: a != b,
    Lt: lambda a, b: a < b,
    Le: lambda a, b: a <= b,
    And: lambda a, b: a and b,
    Or: lambda a, b: a or b,
}


def linear_coefficients(expr: Expr, variables: Iterable[Var]) -> tuple[dict[Var, Expr], Expr] | None:
    """`expr` as sum(coefficient * var) + rest, with coefficients and rest free of `variables`; None when it is not linear."""
    wanted = set(variables)
    coefficients: dict[Var, Polynomial] = {}
    rest: dict[Monomial, int] = {}
    poly = polynomial(expr)
    for monomial, v in poly.terms.items():
        chosen = [atom for atom in monomial if atom in wanted]
        others = tuple(atom for atom in monomial if atom not in wanted)
        if len(chosen) > 1 or any(node in wanted for atom in others for node in walk(atom)):
            return None
        if not chosen:
            rest[monomial] = v
            continue
        term = Polynomial({others: v}) if others else Polynomial({}, v)
        var = chosen[0]
        coefficients[var] = coefficients[var].plus(term) if var in coefficients else term  # type: ignore[index]
    return {var: poly.to_expr() for var, poly in coefficients.items()}, Polynomial(rest, poly.constant).to_expr()
