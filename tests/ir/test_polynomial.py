"""Polynomials over atoms: the same numbers in other words."""

from __future__ import annotations

import itertools

import pytest

from tc.ir.arith import EMPTY, Facts, evaluate, polynomial, prove, simplify
from tc.ir.dtype import i64
from tc.ir.expr import Expr, Var, ceildiv, const, not_equal
from tc.ir.polynomial import remainder

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


# A convolution behind another one computed all rows for each tile: that the sums below are one was not seen, as h - 2 is no variable.
COUNTS = {
    "of two sums": ((i - 2) * (j - 2), j - 2),
    "of a number and a sum": ((j - 2) * 43, j - 2),
    "of three": ((i + 1) * (j - k + 3) * d, j - k + 3),
    "of a sum of two": ((i + j) * (k - 1), i + j),
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("block", [0, 1, 2, 14])
def test_places_in_what_has_sums_for_sizes_are_joined(name: str, block: int) -> None:
    count, size = COUNTS[name]
    place, tile = Var("place", i64), Var("tile", i64)
    facts = Facts().with_range(tile, ceildiv(count, block)) if block else Facts().with_range(place, count)

    assert simplify(place // size * size + place % size, facts) is place
    assert simplify(place // size * (size * d) * 3 + place % size * d * 3 + e, facts) is simplify(place * d * 3 + e)
    assert simplify(place // size * size + place % size) is not place  # the size may be 0


def test_sizes_that_are_no_factors_may_be_nothing() -> None:
    place = Var("place", i64)
    facts = Facts().with_range(place, (i - 2) * (j - 2) + 1)

    assert simplify(place // (j - 2) * (j - 2) + place % (j - 2), facts) is not place
    assert prove(not_equal(j - 2, 0), facts) is None


def test_conditions_say_that_there_are_places_too() -> None:
    place, count = Var("place", i64), (i - 2) * (j - 2)

    for condition, is_known in ((3 <= count, True), (count > 0, True), (count >= 0, False), (count <= 3, False)):
        found = simplify(place // (j - 2) * (j - 2) + place % (j - 2), EMPTY.assume(condition))
        assert (found is place) == is_known


def test_what_is_left_of_a_sum_is_right_on_numbers() -> None:
    sums: tuple[Expr, ...] = (i - 2, j - 2, i + j, i * j - 2, 2 - k, i - j * k, const(1) - i)
    found = [(a, b, left) for a in sums for b in (*sums, *(a * c - 3 for c in sums)) if (left := remainder(polynomial(b), polynomial(a)))]

    assert sum(left == polynomial(const(-3)) for _, _, left in found) == 6 * len(sums)
    for divisor, whole, left in found:
        for numbers in itertools.product((-3, 0, 1, 2, 5), repeat=3):
            values = dict(zip((i, j, k), numbers, strict=True))
            at, rest = evaluate(divisor, values), evaluate(whole - left.to_expr(), values)
            assert rest == 0 if at == 0 else rest % at == 0


def test_terms_of_one_name_are_in_the_order_in_which_they_were_seen() -> None:
    """That of their addresses made other code of the same model in each run, and other entries of the cache."""
    made = [Var("x", i64) for _ in range(40)]

    for first, second in itertools.pairwise([*made, *made[::-2]]):
        seen = polynomial(first + second).ordered().terms
        again = polynomial(second + first).ordered().terms
        assert list(seen) == list(again)
    forward = [list(polynomial(first + second).ordered().terms) for first, second in itertools.pairwise(made)]
    assert forward == [[(first,), (second,)] for first, second in itertools.pairwise(made)]
