"""Polynomials over atoms: the same numbers in other words."""

from __future__ import annotations

import itertools

from tc.ir.arith import evaluate, polynomial
from tc.ir.dtype import i64
from tc.ir.expr import Expr, Var, const

i, j, k, d, e = (Var(name, i64) for name in "ijkde")


def test_a_quotient_and_its_rest_are_joined_where_the_divisor_is_not_zero() -> None:
    whole = k + i * 3
    split = j * (d * e) + whole // d * (d * e * 4) + whole % d * (e * 4) + 7

    joined = polynomial(split).rejoined({d})

    assert joined == polynomial(j * (d * e) + whole * (e * 4) + 7)


def test_only_what_belongs_together_is_joined() -> None:
    kept: tuple[tuple[Expr, set[Expr]], ...] = (
        (k // d * d + k % d, set()),  # d may be 0
        (k // d * d + k % d, {e}),
        (k // d * d + (k + 1) % d, {d}),
        (k // d * d * 2 + k % d * 4, {d}),
        (k // d * e + k % d, {d, e}),
        (k // d + k % d, {d}),
    )

    assert len(kept) == 6
    for expr, nonzero in kept:
        assert polynomial(expr).rejoined(nonzero) == polynomial(expr)


def test_what_is_joined_has_the_same_value() -> None:
    expr = (k - 5) // d * (d * 16) + (k - 5) % d * 16 + k // e * e * j + k % e * j - i
    joined = polynomial(expr).rejoined({d, e}).to_expr()

    assert joined is not expr
    for numbers in itertools.product((-7, 0, 9), (-3, -1, 2, 5), (1, 4, -6)):
        values = {k: numbers[0], d: numbers[1], e: numbers[2], i: 11, j: 13}
        assert evaluate(joined, values) == evaluate(expr, values)


def test_terms_are_in_the_order_of_the_expression() -> None:
    poly = polynomial(const(4) - i * 2 + d * k + j)

    assert list(poly.ordered().terms.items()) == list(polynomial(poly.to_expr()).terms.items())
    assert poly.ordered() == poly and list(poly.ordered().terms) != list(poly.terms)
