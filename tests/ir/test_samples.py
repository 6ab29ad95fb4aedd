"""Samples satisfy the facts that they are samples of, and refute nothing that is true."""

from __future__ import annotations

import numpy as np
import pytest

from tc.ir.arith import Facts, evaluate, polynomial
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Expr, Load, Var, const, maximum, minimum
from tc.ir.prover import proves_nonnegative
from tc.ir.samples import is_refuted, samples_of
from tc.ir.types import DimFact

n, i, j, k = (Var(name, i64) for name in "nijk")


def random_facts(rng: np.random.Generator) -> Facts:
    """A dim, loops whose extents depend on it and on each other, and conditions."""
    step = int(rng.integers(1, 20))
    facts = Facts.of((DimFact(n, int(rng.integers(0, 4)), None if rng.random() < 0.5 else 500, int(rng.integers(1, 5))),))
    facts = facts.with_range(i, (n + step - 1) // step)
    if rng.random() < 0.5:
        facts = facts.assume(i * step + step <= n)
    facts = facts.with_range(j, minimum(const(step), n - i * step))
    if rng.random() < 0.5:
        facts = facts.assume(j < int(rng.integers(1, 30)))
    return facts.with_range(k, maximum(n - 3, const(0)) + 1)


@pytest.mark.parametrize("seed", range(40))
def test_samples_satisfy_the_facts(seed: int) -> None:
    facts = random_facts(np.random.default_rng(seed))

    samples = samples_of(facts)

    assert samples.count
    for values in samples.points(facts.variables):
        assert values.keys() == facts.variables.keys()
        for var, fact in facts.variables.items():
            assert fact.lo is None or evaluate(fact.lo, values) <= values[var]
            assert fact.hi is None or values[var] <= evaluate(fact.hi, values)
            assert values[var] % fact.multiple_of == 0
        assert all(evaluate(known.to_expr(), values) >= 0 for known in facts.nonnegative)


@pytest.mark.parametrize(
    "value", [n - i, n - 1 - i * 4 - j, (n + 3) // 4 - 1 - i, 3 - j, n * 2 - i - j, n // 4 * 4 - n + 3, minimum(n, j + 1)]
)
def test_what_is_true_is_not_refuted(value: Expr) -> None:
    facts = Facts.of((DimFact(n, 1),)).with_range(i, (n + 3) // 4).with_range(j, minimum(const(4), n - i * 4))

    assert not is_refuted(polynomial(value), facts)


@pytest.mark.parametrize("value", [n - 9, n - i * 4 - 4, j - 1, i - j, n % 4 - 1])
def test_what_is_false_for_some_sizes_is_refuted(value: Expr) -> None:
    facts = Facts.of((DimFact(n, 1),)).with_range(i, (n + 3) // 4).with_range(j, minimum(const(4), n - i * 4))

    assert is_refuted(polynomial(value), facts)
    assert not proves_nonnegative(polynomial(value), facts)


def test_nothing_is_refuted_that_depends_on_memory_or_on_unknown_variables() -> None:
    data = Buffer("data", (n,), i64)
    facts = Facts.of((DimFact(n, 1),))

    assert not is_refuted(polynomial(Load(data, (const(0),)) - 1), facts)
    assert not is_refuted(polynomial(i - 1), facts)


def test_contradictions_have_no_samples() -> None:
    facts = Facts.of((DimFact(n, 1),)).assume(n < 1)

    assert samples_of(facts).count == 0
    assert not is_refuted(polynomial(n - 100), facts)
