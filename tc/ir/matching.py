"""Applies the rules of `arith_rules`: each is compiled, once, to closures that match, check and build.

`make(cls, operands, facts)` is a node of simplified operands, brought to its simplest form by the first rule that fits;
`recombine` does the same for the sums that polynomials are. Rules are looked up by the class of the node and by whether it speaks of i64.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Union

from tc.ir.arith_rules import (
    ANY_FLOAT,
    ANY_INTEGER,
    ANY_VALUE,
    LITERALS,
    MULTIPLES,
    REMAINDER_TERM,
    RULES,
    SCALED_AND_LESS,
    SCALED_DIVISOR,
    SCALED_SIDE,
    SCALED_SUM,
    SUMS,
    Rule,
    b,
    c,
    d,
    e,
    g,
    k,
    m,
    q,
    r,
    x,
    y,
)
from tc.ir.bits import bit_xor, is_xor
from tc.ir.bounds import Facts, bounds, nonnegative_sums, poly_bounds
from tc.ir.dtype import bool_, i64
from tc.ir.expr import (
    Add,
    BinaryExpr,
    CompareExpr,
    Const,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    MathCall,
    Mul,
    Ne,
    Not,
    Select,
    Sub,
    Var,
    const,
    floordiv,
    floormod,
)
from tc.ir.node import children, walk
from tc.ir.polynomial import Monomial, Polynomial, exact_quotient, polynomial, product_of, remainder
from tc.ir.prover import is_positive, proves_nonnegative

Operands = tuple[Expr, ...]
Bindings = dict[Var, Union[Expr, Polynomial, int]]
Match = Callable[[Expr, Bindings], bool]
Condition = Callable[[Bindings, Facts], bool]
Build = Callable[[Bindings, Facts], Expr]
BuildPolynomial = Callable[[Bindings, Facts], Polynomial]


@dataclass(frozen=True)
class CompiledRule:
    """`match` binds variables to parts of the operands, or says no; `build` makes the right side, simplified."""

    rule: Rule
    match: Callable[[Operands, Bindings, Facts], bool]
    conditions: tuple[Condition, ...]
    build: Build

    def apply(self, operands: Operands, facts: Facts) -> Expr | None:
        """The right side; None when the rule does not fit."""
        bindings: Bindings = {}
        if not self.match(operands, bindings, facts):
            return None
        for condition in self.conditions:
            if not condition(bindings, facts):
                return None
        return self.build(bindings, facts)


def make(cls: type[Expr], operands: Operands, facts: Facts) -> Expr:
    """A node of class `cls` on simplified operands, in its simplest form."""
    folded = _fold(cls, operands)
    if folded is not None:
        return folded
    found = first_rule(cls, operands, facts)
    return cls(*operands) if found is None else found[1]


def first_rule(cls: type[Expr], operands: Operands, facts: Facts) -> tuple[Rule, Expr] | None:
    """The first rule that fits, and what it makes of the node."""
    for compiled in _rules_for(cls, operands[-1].dtype == i64):
        result = compiled.apply(operands, facts)
        if result is not None:
            return compiled.rule, result
    return None


_COMPARE = {
    Eq: lambda a, b: a == b,
    Ne: lambda a, b: a != b,
    Lt: lambda a, b: a < b,
    Le: lambda a, b: a <= b,
}
_FOLD = {FloorDiv: floordiv, FloorMod: floormod}


def _fold(cls: type[Expr], operands: Operands) -> Expr | None:
    """The node as a literal, when its operands are."""
    first, second = operands[0], operands[-1]
    if len(operands) != 2 or not isinstance(first, Const) or not isinstance(second, Const):
        return None
    if cls in _COMPARE:
        return Const(_COMPARE[cls](first.value, second.value), bool_)
    if cls in _FOLD and first.dtype == i64:
        return _FOLD[cls](first, second)
    return None


# -- matching


def _match_pattern(pattern: Expr, bound: set[Var]) -> Match:
    """Match one operand; `bound` are the variables that have a value by then, and grows."""
    if isinstance(pattern, Var):
        return _match_bound(pattern) if pattern in bound else _match_new(pattern, bound)
    if isinstance(pattern, Const):
        return _match_literal(pattern)
    if isinstance(pattern, (Add, Sub, Mul)):
        return _match_sum(pattern, bound)
    inner = [part for part in children(pattern) if isinstance(part, Expr)]
    order = list(reversed(range(len(inner))))  # the divisor first: sums in the dividend are matched by it
    parts = [(index, _match_pattern(inner[index], bound)) for index in order]
    cls = type(pattern)

    def match(expr: Expr, bindings: Bindings) -> bool:
        if type(expr) is not cls or (cls is MathCall and not is_xor(expr)):
            return False
        operands = operands_of(expr)
        return all(part(operands[index], bindings) for index, part in parts)

    return match


def operands_of(expr: Expr) -> Operands:
    """The operands of a node with rules."""
    if isinstance(expr, (BinaryExpr, CompareExpr)):
        return expr.lhs, expr.rhs
    if isinstance(expr, Not):
        return (expr.operand,)
    if isinstance(expr, MathCall):
        return expr.args
    assert isinstance(expr, Select)
    return expr.condition, expr.true_value, expr.false_value


def _match_new(var: Var, bound: set[Var]) -> Match:
    bound.add(var)
    if var in LITERALS:

        def literal(expr: Expr, bindings: Bindings) -> bool:
            if isinstance(expr, Const) and expr.dtype == i64:
                bindings[var] = int(expr.value)
                return True
            return False

        return literal

    def anything(expr: Expr, bindings: Bindings) -> bool:
        if not _fits(var, expr):
            return False
        bindings[var] = expr
        return True

    return anything


def _fits(var: Var, expr: Expr) -> bool:
    """Whether a variable of this kind may stand for `expr`."""
    if var in ANY_VALUE:
        return True
    if var in ANY_INTEGER:
        return not expr.dtype.is_float
    if var in ANY_FLOAT:
        return expr.dtype.is_float
    return expr.dtype == var.dtype


def _match_bound(var: Var) -> Match:
    return lambda expr, bindings: bindings[var] is expr


def _match_literal(pattern: Const) -> Match:
    """The same number (and sign of zero) in any dtype of the same kind."""
    sign = math.copysign(1.0, pattern.value)

    def match(expr: Expr, bindings: Bindings) -> bool:
        if expr is pattern:
            return True
        if not isinstance(expr, Const) or expr.value != pattern.value or expr.dtype.is_float != pattern.dtype.is_float:
            return False
        return math.copysign(1.0, expr.value) == sign and expr.dtype.is_bool == pattern.dtype.is_bool

    return match


def _match_sum(pattern: Expr, bound: set[Var]) -> Match:
    if pattern is MULTIPLES and b in bound:
        bound.update((q, r))
        return _match_multiples
    if pattern is REMAINDER_TERM:
        bound.update((x, c, d, r))
        return _match_remainder_term
    free = [node for node in walk(pattern) if isinstance(node, Var) and node not in bound]
    assert not free, f"there is no way to match {pattern} without {free}"
    product = _build_polynomial(pattern)
    return lambda expr, bindings: product(bindings, _NO_FACTS).to_expr() is expr


def _match_multiples(expr: Expr, bindings: Bindings) -> bool:
    """q * b + r."""
    split = exact_quotient(polynomial(expr), _as_polynomial(bindings[b]))
    if split is None or (split[0].is_constant and split[0].constant == 0):
        return False
    bindings[q], bindings[r] = split
    return True


def _match_remainder_term(expr: Expr, bindings: Bindings) -> bool:
    """x % c * d + r, with the divisor of the whole, e, matched before: the first term that it allows to drop `% c`."""
    poly = polynomial(expr)
    divisor = bindings[e]
    assert isinstance(divisor, int)
    for monomial, factor in poly.terms.items():
        atom = monomial[0]
        if len(monomial) == 1 and isinstance(atom, FloorMod) and isinstance(atom.rhs, Const):
            modulus = int(atom.rhs.value)
            if divisor and modulus * factor % divisor == 0:
                bindings[x], bindings[c], bindings[d] = atom.lhs, modulus, factor
                bindings[r] = poly.plus(Polynomial({monomial: -factor}))
                return True
    return False


def _match_common_factor(operands: Operands, bindings: Bindings, facts: Facts) -> bool:
    """x * g + k over c * g."""
    sum_, divisor = operands
    if not isinstance(divisor, Const) or divisor.dtype != i64 or divisor.value <= 0:
        return False
    poly = polynomial(sum_)
    common = math.gcd(int(divisor.value), *poly.terms.values())
    if common == 1 or not poly.terms:
        return False
    bindings[x] = Polynomial({monomial: factor // common for monomial, factor in poly.terms.items()})
    bindings[c], bindings[g], bindings[k] = int(divisor.value) // common, common, poly.constant
    return True


def _match_less(operands: Operands, bindings: Bindings, facts: Facts) -> bool:
    """x * g + y over c * g, y between 0 and g."""
    sum_, divisor = operands
    if not isinstance(divisor, Const) or divisor.dtype != i64 or divisor.value <= 0:
        return False
    poly = polynomial(sum_)
    for factor in sorted({math.gcd(int(divisor.value), each) for each in poly.terms.values()} - {1}, reverse=True):
        less = {monomial: each for monomial, each in poly.terms.items() if each % factor}
        rest = Polynomial(less, poly.constant % factor)
        interval = poly_bounds(rest, facts)
        if interval.lo is not None and interval.hi is not None and 0 <= interval.lo and interval.hi < factor:
            scaled = {monomial: each // factor for monomial, each in poly.terms.items() if monomial not in less}
            bindings[x], bindings[y] = Polynomial(scaled, poly.constant // factor), rest
            bindings[c], bindings[g] = int(divisor.value) // factor, factor
            return True
    return False


def _match_sides(operands: Operands, bindings: Bindings, facts: Facts) -> bool:
    """x * g + k beside y * g."""
    first, second = operands
    if first.dtype != i64:
        return False
    poly = polynomial(first).minus(polynomial(second))
    if not poly.terms:
        return False
    common = math.gcd(*poly.terms.values())
    bindings[x] = Polynomial({monomial: factor // common for monomial, factor in poly.terms.items() if factor > 0})
    bindings[y] = Polynomial({monomial: -factor // common for monomial, factor in poly.terms.items() if factor < 0})
    bindings[g], bindings[k] = common, poly.constant
    return True


_PAIRS: dict[tuple[Expr, ...], Callable[[Operands, Bindings, Facts], bool]] = {
    (SCALED_SUM, SCALED_DIVISOR): _match_common_factor,
    (SCALED_AND_LESS, SCALED_DIVISOR): _match_less,
    (SCALED_SUM, SCALED_SIDE): _match_sides,
}


def _match_operands(pattern: Expr) -> tuple[Callable[[Operands, Bindings, Facts], bool], set[Var]]:
    """Match all operands of the root; the variables that then have a value."""
    patterns = operands_of(pattern)
    if patterns in _PAIRS:
        return _PAIRS[patterns], {x, y, c, g, k}
    bound: set[Var] = set()
    parts = [(index, _match_pattern(patterns[index], bound)) for index in reversed(range(len(patterns)))]
    if len(parts) == 2:
        (_, second), (_, first) = parts
        return (lambda operands, bindings, facts: second(operands[1], bindings) and first(operands[0], bindings)), bound
    return (lambda operands, bindings, facts: all(part(operands[index], bindings) for index, part in parts)), bound


def _with_quotient(match: Callable[[Operands, Bindings, Facts], bool]) -> Callable[[Operands, Bindings, Facts], bool]:
    """Also bind m, the quotient of x by c, from the interval of x."""

    def guess(operands: Operands, bindings: Bindings, facts: Facts) -> bool:
        if not match(operands, bindings, facts):
            return False
        divisor = bindings[c]
        assert isinstance(divisor, int)
        interval = poly_bounds(_as_polynomial(bindings[x]), facts)
        if divisor == 0 or interval.lo is None or interval.hi is None:
            return False
        bindings[m] = interval.lo // divisor
        return interval.lo // divisor == interval.hi // divisor

    return guess


# -- conditions


def _condition(condition: Expr) -> Condition:
    variables = {node for node in walk(condition) if isinstance(node, Var)}
    if variables <= LITERALS:
        return _numeric_condition(condition)
    match condition:
        case Lt(lhs=Const(value=0), rhs=Var() as var):
            return lambda bindings, facts: is_positive(_as_expr(bindings[var]), facts)
        case Ne(lhs=Var() as var, rhs=Const(value=0)):
            return lambda bindings, facts: _is_nonzero(_as_expr(bindings[var]), facts)
        case Lt(lhs=low, rhs=high):
            difference = _build_polynomial(high - low)
            return lambda bindings, facts: proves_nonnegative(difference(bindings, facts).plus_const(-1), facts)
        case Le(lhs=low, rhs=high):
            difference = _build_polynomial(high - low)
            return lambda bindings, facts: proves_nonnegative(difference(bindings, facts), facts)
        case Eq(lhs=first, rhs=second):
            one, other = _build(first), _build(second)
            return lambda bindings, facts: one(bindings, facts) is other(bindings, facts)
    raise AssertionError(f"no way to check {condition}")


def _is_nonzero(expr: Expr, facts: Facts) -> bool:
    interval = bounds(expr, facts)
    if (interval.lo is not None and interval.lo > 0) or (interval.hi is not None and interval.hi < 0):
        return True
    poly = _as_polynomial(expr)
    if len(poly.terms) > (not poly.constant):  # a sum, as h - 2: it is a factor of what has elements
        left = (remainder(known, poly) for known in nonnegative_sums(facts))
        if any(rest is not None and rest.is_constant and rest.constant < 0 for rest in left):
            return True
    return bool(facts.nonnegative) and proves_nonnegative(poly.plus_const(-1), facts)


def _numeric_condition(condition: Expr) -> Condition:
    assert isinstance(condition, CompareExpr)
    compare, first, second = _COMPARE[type(condition)], _number(condition.lhs), _number(condition.rhs)
    return lambda bindings, facts: bool(compare(first(bindings), second(bindings)))


_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    Add: lambda a, b: a + b,
    Sub: lambda a, b: a - b,
    Mul: lambda a, b: a * b,
    FloorDiv: lambda a, b: a // b if b else 0,
    FloorMod: lambda a, b: a % b if b else 0,
}


def _number(template: Expr) -> Callable[[Bindings], int]:
    """The value of a template on literals alone."""
    if isinstance(template, Const):
        value = int(template.value)
        return lambda bindings: value
    if isinstance(template, Var):
        return lambda bindings: bindings[template]  # type: ignore[return-value]
    assert isinstance(template, BinaryExpr) or is_xor(template)
    operate = operator.xor if is_xor(template) else _ARITHMETIC[type(template)]
    first, second = map(_number, operands_of(template))
    return lambda bindings: operate(first(bindings), second(bindings))


# -- building


def _as_expr(value: Expr | Polynomial | int) -> Expr:
    if isinstance(value, Expr):
        return value
    return const(value) if isinstance(value, int) else value.to_expr()


def _as_polynomial(value: Expr | Polynomial | int) -> Polynomial:
    if isinstance(value, Polynomial):
        return value
    return Polynomial({}, value) if isinstance(value, int) else polynomial(value)


def _build(template: Expr) -> Build:
    """A template with its variables replaced, simplified from the leaves up."""
    if isinstance(template, Const):
        return lambda bindings, facts: template
    if isinstance(template, Var):
        return lambda bindings, facts: _as_expr(bindings[template])
    if isinstance(template, (Add, Sub, Mul)):
        total = _build_polynomial(template)
        return lambda bindings, facts: recombine(total(bindings, facts), facts).to_expr()
    if isinstance(template, CompareExpr) and template.lhs.dtype == i64 and not ({template.lhs, template.rhs} & ANY_VALUE):
        return _build_comparison(template)
    cls, parts = type(template), [_build(part) for part in operands_of(template)]
    if is_xor(template):
        return lambda bindings, facts: bit_xor(*(part(bindings, facts) for part in parts))
    return lambda bindings, facts: make(cls, tuple(part(bindings, facts) for part in parts), facts)


def _build_comparison(template: CompareExpr) -> Build:
    """The constant goes to the side where it is positive. No rules: what they say has been tried."""
    cls, first, second = type(template), _build_polynomial(template.lhs), _build_polynomial(template.rhs)

    def build(bindings: Bindings, facts: Facts) -> Expr:
        left, right = first(bindings, facts), second(bindings, facts)
        rest = left.constant - right.constant
        left, right = Polynomial(left.terms, max(rest, 0)), Polynomial(right.terms, max(-rest, 0))
        return cls(left.to_expr(), right.to_expr())

    return build


def _build_polynomial(template: Expr) -> BuildPolynomial:
    if not any(isinstance(node, Var) and node not in LITERALS for node in walk(template)):
        number = _number(template)
        return lambda bindings, facts: Polynomial({}, number(bindings))
    if isinstance(template, Var):
        return lambda bindings, facts: _as_polynomial(bindings[template])
    if not isinstance(template, (Add, Sub, Mul)):
        node = _build(template)
        return lambda bindings, facts: polynomial(node(bindings, facts))
    first, second = _build_polynomial(template.lhs), _build_polynomial(template.rhs)
    if isinstance(template, Mul):
        return lambda bindings, facts: multiply(first(bindings, facts), second(bindings, facts))
    factor = 1 if isinstance(template, Add) else -1
    return lambda bindings, facts: first(bindings, facts).plus(second(bindings, facts), factor)


def multiply(first: Polynomial, second: Polynomial) -> Polynomial:
    """The product; one atom when it would have too many terms."""
    product = first.times(second)
    return Polynomial({(Mul(first.to_expr(), second.to_expr()),): 1}) if product is None else product


_NO_FACTS = Facts()


def compile_rule(rule: Rule) -> CompiledRule:
    """The closures of a rule. AssertionError for a rule that this engine has no way to match."""
    match, bound = _match_operands(rule.lhs)
    used = {node for part in (rule.rhs, *rule.when) for node in walk(part) if isinstance(node, Var)}
    if m in used - bound:
        match = _with_quotient(match)
        bound = bound | {m}
    assert used <= bound, f"{rule}: {used - bound} occur on the right side only"
    return CompiledRule(rule, match, tuple(map(_condition, rule.when)), _build(rule.rhs))


@functools.cache
def _rules_for(cls: type, is_i64: bool) -> tuple[CompiledRule, ...]:
    """The rules for nodes of a class whose last operand is, or is not, an i64."""
    chosen = [rule for rule in RULES if type(rule.lhs) is cls]
    fitting = [rule for rule in chosen if any(_may_be(part, is_i64) for part in operands_of(rule.lhs)[-1:])]
    return tuple(map(compile_rule, fitting))


def _may_be(pattern: Expr, is_i64: bool) -> bool:
    """Whether the last operand of a pattern fits operands that are, or are not, i64."""
    if isinstance(pattern, Var) and pattern in ANY_VALUE | ANY_INTEGER:
        return True
    return (pattern.dtype == i64) == is_i64


# -- sums


@dataclass(frozen=True)
class _SumRule:
    """Two terms of a sum, remainder * y and quotient * (b * y), that are one: result * y."""

    rule: Rule
    remainder: Match
    quotient: Match
    conditions: tuple[Condition, ...]
    result: BuildPolynomial


def _compile_sum_rule(rule: Rule) -> _SumRule:
    match rule.lhs, rule.rhs:
        case Add(lhs=Mul(lhs=remainder), rhs=Mul(lhs=quotient)), Mul(lhs=result):
            bound = {b}
            first = _match_pattern(remainder, bound)
            second = _match_pattern(quotient, bound)
            return _SumRule(rule, first, second, tuple(map(_condition, rule.when)), _build_polynomial(result))
    raise AssertionError(f"{rule}: not a sum of a remainder and a quotient")


_SUM_RULES = tuple(map(_compile_sum_rule, SUMS))


def recombine(poly: Polynomial, facts: Facts) -> Polynomial:
    """Join the parts of numbers taken apart: (x // c) * c + x % c = x, also one level at a time."""
    while True:
        joined = first_sum_rule(poly, facts)
        if joined is None:
            return poly
        poly = joined[1]


def first_sum_rule(poly: Polynomial, facts: Facts) -> tuple[Rule, Polynomial] | None:
    """The first rule that joins two terms, and the sum then."""
    for monomial, factor in poly.terms.items():
        for position, atom in enumerate(monomial):
            if isinstance(atom, FloorMod):
                others = monomial[:position] + monomial[position + 1 :]
                scale = Polynomial({others: factor}) if others else Polynomial({}, factor)
                joined = _join(poly, monomial, atom, scale, facts)
                if joined is not None:
                    return joined
    return None


def _join(
    poly: Polynomial, monomial: Monomial, remainder: FloorMod, scale: Polynomial, facts: Facts
) -> tuple[Rule, Polynomial] | None:
    """Join `remainder * scale` with a term of the sum that is the quotient times the divisor times `scale`."""
    wanted = polynomial(remainder.rhs).times(scale)
    if wanted is None or wanted == Polynomial():
        return None
    for partners, quotient in _quotients(poly, wanted):
        for rule in _SUM_RULES:
            bindings: Bindings = {b: remainder.rhs}
            fits = rule.remainder(remainder, bindings) and rule.quotient(quotient, bindings)
            if fits and all(condition(bindings, facts) for condition in rule.conditions):
                joined = rule.result(bindings, facts).times(scale)
                if joined is not None:
                    terms = {key: value for key, value in poly.terms.items() if key != monomial and key not in partners}
                    return rule.rule, Polynomial(terms, poly.constant).plus(joined)
    return None


def _quotients(poly: Polynomial, wanted: Polynomial) -> Iterator[tuple[tuple[Monomial, ...], Expr]]:
    """The terms that are those of `wanted` times a quotient, or times the remainder of a quotient, and that."""
    parts = [*wanted.terms.items(), *([((), wanted.constant)] if wanted.constant else [])]
    (rest, factor), *others = parts
    for monomial, coefficient in poly.terms.items():
        if coefficient != factor or len(monomial) != len(rest) + 1:
            continue
        for position, atom in enumerate(monomial):
            if isinstance(atom, (FloorDiv, FloorMod)) and monomial[:position] + monomial[position + 1 :] == rest:
                partners = (monomial, *(product_of(*other, atom) for other, _ in others))
                if all(poly.terms.get(partner) == count for partner, (_, count) in zip(partners, parts, strict=True)):
                    yield partners, atom
