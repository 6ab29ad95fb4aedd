"""Intervals of indices where only the iterations count that a guard lets through."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tc.ir.arith import Facts, evaluate, simplify
from tc.ir.bounds import Bounds, bounds, poly_bounds
from tc.ir.dtype import i64, u64
from tc.ir.expr import Buffer, Cast, Expr, Load, Var, const, equal, logical_and, logical_not
from tc.ir.polynomial import polynomial

M, J, K, N = (Var(name, i64) for name in "mjkn")


def loops(*extents: int) -> Facts:
    facts = Facts()
    for var, extent in zip((M, J, K), extents, strict=False):
        facts = facts.with_range(var, const(extent))
    return facts


def test_a_guard_on_a_sum_cuts_its_parts_and_quotients_of_them() -> None:
    facts = loops(14, 2, 16).assume(M * 32 + J * 16 + K < 432)

    counting = facts.counting_guards()

    assert bounds(M * 2 + J, counting) == Bounds(0, 26)
    assert bounds((M * 2 + J) // 9, counting) == Bounds(0, 2)
    assert poly_bounds(polynomial(M * 4 + J * 2), counting) == Bounds(0, 53)
    assert bounds((M * 2 + J) // 9, facts) == Bounds(0, 3)  # where it may run for all


def test_a_guard_by_a_size_cuts_what_is_less_than_it() -> None:
    facts = loops(8, 32).with_bounds(N, 0, 20).assume(M * 32 + J < N).counting_guards()

    assert bounds(M * 32 + J, facts) == Bounds(0, 19)
    assert bounds(M, facts) == Bounds(0, 0)
    assert bounds(N, facts) == Bounds(1, 20)


def test_conditions_and_loops_that_come_later_count_too() -> None:
    facts = Facts().with_range(M, const(14)).counting_guards().with_range(J, const(2)).assume(M * 2 + J <= 26)

    assert bounds((M * 2 + J) // 9, facts) == Bounds(0, 2)


def test_nothing_is_cut_where_no_iteration_counts() -> None:
    facts = loops(4).assume(logical_and(M < 2, M > 2)).counting_guards()

    found = bounds(M, facts)

    assert found.lo is not None and found.hi is not None and found.lo <= found.hi


def test_a_condition_on_a_sum_does_not_say_that_it_never_wraps() -> None:
    table = Buffer("T", (const(2),), i64)
    first, second = (Load(table, (const(k),)) for k in range(2))
    wraps = Cast(Cast(first, u64) + Cast(second, u64), i64)
    facts = Facts().assume(logical_and(first + second >= 0, first + second < 10))

    assert bounds(first + second, facts.counting_guards()) == Bounds(0, 9)
    assert simplify(wraps, facts.counting_guards()) is simplify(wraps, facts) is not first + second


def index(rng: np.random.Generator) -> Expr:
    a, b, c = (int(each) for each in rng.integers(-4, 9, 3))
    total = M * a + J * b + K * c + int(rng.integers(-5, 6))
    form = rng.integers(4)
    if form == 0:
        return total
    divisor = int(rng.integers(2, 9))
    return total // divisor if form == 1 else total % divisor if form == 2 else total // divisor * 3 - J


def guard(rng: np.random.Generator) -> Expr:
    a, b, c = (int(each) for each in rng.choice([0, 1, 2, 3, 8, 16, -1, -2], 3))
    total, limit = M * a + J * b + K * c, const(int(rng.integers(-5, 60))) if rng.random() < 0.6 else N + int(rng.integers(-2, 3))
    return [total < limit, total <= limit, logical_not(total < limit), limit < total, equal(total, limit)][int(rng.integers(5))]


@pytest.mark.parametrize("seed", range(4))
def test_intervals_hold_all_values_that_count(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cut = ran = 0
    for _ in range(60):
        extents = [int(each) for each in rng.integers(1, 9, 3)]
        guards = [guard(rng) for _ in range(int(rng.integers(1, 3)))]
        plain = loops(*extents).with_bounds(N, 0, 12).assume(logical_and(*guards))
        facts, asked = plain.counting_guards(), index(rng)
        found, terms = bounds(asked, facts), poly_bounds(polynomial(asked), facts)
        intervals = [(-np.inf if each.lo is None else each.lo, np.inf if each.hi is None else each.hi) for each in (found, terms)]
        simple = simplify(asked, facts)

        for i, j, k, n in product(*map(range, extents), range(0, 13, 3)):
            env = {M: i, J: j, K: k, N: n}
            if all(evaluate(each, env) for each in guards):
                value = evaluate(asked, env)
                ran += 1
                assert evaluate(simple, env) == value, (str(asked), str(simple), [*map(str, guards)])
                assert all(lo <= value <= hi for lo, hi in intervals), (str(asked), [*map(str, guards)])
        cut += found != bounds(asked, plain)

    assert cut >= 10 and ran >= 500
