"""Stages that stand where they are read: what every schedule would inline is no block of its own, and computes the same."""

from __future__ import annotations

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.dtype import f32, i64
from tc.ir.expr import Var, as_expr, call, const, maximum, select
from tc.ir.loop import Block, PrimFunc, walk_statements
from tc.ir.types import DimFact
from tc.ir.verify import verify
from tc.te import Tensor, checked, compute, create_prim_func, placeholder, reduce

N, M = 3, 5
SHAPE = (N, M)


def blocks(func: PrimFunc) -> list[str]:
    return [stmt.name for stmt in walk_statements(func.body) if isinstance(stmt, Block)]


def composed(inputs: list[Tensor], outputs: list[Tensor], n: Var | None = None) -> PrimFunc:
    """The composed function, which computes what the one of a block for each stage does."""
    dims = () if n is None else (n,)
    made = [create_prim_func("f", inputs, outputs, dims, tuple(map(DimFact, dims)), compose=c) for c in (False, True)]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(SHAPE).astype(np.float32) if x.dtype is f32 else rng.integers(0, N, SHAPE) for x in inputs]
    for func in made:
        verify(func)
    plain, found = (run_prim_func(func, arrays, [N] * len(dims)) for func in made)
    for one, other in zip(plain, found, strict=True):
        np.testing.assert_array_equal(one, other)
    return made[1]


def test_a_chain_of_elementwise_stages_is_one_block() -> None:
    n = Var("n", i64)
    x = placeholder((n, M), f32, "x")
    y = compute((n, M), lambda i, j: x[i, j] * 2.0, "double")
    z = compute((n, M), lambda i, j: call("exp", y[i, j]), "exp")
    assert blocks(composed([x], [compute((n, M), lambda i, j: z[i, j] + z[i, j], "sum")], n)) == ["sum"]


def test_literals_stand_wherever_they_are_read() -> None:
    x = placeholder(SHAPE, f32, "x")
    two = compute((), lambda: const(2.0, f32), "literal")
    total = reduce("sum", (N,), (M,), lambda i, k: x[i, k] * two[()], "total")
    assert blocks(composed([x], [compute((N,), lambda i: total[i] + two[()], "sum")])) == ["total", "sum"]


def test_what_several_read_is_computed_once() -> None:
    x = placeholder(SHAPE, f32, "x")
    y = compute(SHAPE, lambda i, j: x[i, j] * 2.0, "shared")
    outputs = [compute(SHAPE, lambda i, j, k=k: y[i, j] + float(k), f"y{k}") for k in range(2)]
    assert blocks(composed([x], outputs)) == ["shared", "y0", "y1"]


def test_what_is_read_elsewhere_or_by_a_reduction_stays_a_block() -> None:
    x = placeholder(SHAPE, f32, "x")
    y = compute(SHAPE, lambda i, j: x[i, j] * 2.0, "double")
    assert blocks(composed([x], [compute((M, N), lambda i, j: y[j, i], "transposed")])) == ["double", "transposed"]
    assert blocks(composed([x], [compute((N, 1), lambda i, j: y[i, j], "column")])) == ["double", "column"]
    assert blocks(composed([x], [compute(SHAPE, lambda i, j: y[i, j] + y[i, 0], "both")])) == ["double", "both"]
    assert blocks(composed([x], [reduce("sum", (N,), (M,), lambda i, k: y[i, k], "total")])) == ["double", "total"]


def test_results_are_stored_also_where_they_are_read_further() -> None:
    x = placeholder(SHAPE, f32, "x")
    y = compute(SHAPE, lambda i, j: x[i, j] * 2.0, "double")
    assert blocks(composed([x], [y, compute(SHAPE, lambda i, j: y[i, j] + 1.0, "more")])) == ["double", "more"]


def test_indices_that_are_read_are_composed_too_and_checked() -> None:
    x, at = placeholder(SHAPE, f32, "x"), placeholder(SHAPE, i64, "at")
    moved = compute(SHAPE, lambda i, j: (at[i, j] + 1) % N, "moved")
    taken = compute(SHAPE, lambda i, j: checked(x[moved[i, j], j], moved[i, j], as_expr(N), "{index} of {size}"), "taken")
    assert blocks(composed([x, at], [compute(SHAPE, lambda i, j: -taken[i, j], "negative")])) == ["negative"]


def test_axes_of_one_place_may_be_read_at_zero() -> None:
    x = placeholder(SHAPE, f32, "x")
    y = compute((1, N, M), lambda b, i, j: x[i, j] * 2.0, "double")
    assert blocks(composed([x], [compute((1, N, M), lambda b, i, j: y[0, i, j] + 1.0, "more")])) == ["more"]
    assert blocks(composed([x], [compute((2, N, M), lambda b, i, j: y[0, i, j] + 1.0, "more")])) == ["double", "more"]


@pytest.mark.parametrize("seed", range(40))
def test_random_stages_compute_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = placeholder(SHAPE, f32, "x")
    known: list[Tensor] = [x, compute(SHAPE, lambda i, j: const(float(rng.integers(-3, 3)), f32), "literal")]
    for number in range(int(rng.integers(2, 12))):
        a, b = (known[int(k)] for k in rng.integers(max(0, len(known) - 3), len(known), 2))
        name = f"s{number}"
        made = [
            lambda a=a, name=name: compute(SHAPE, lambda i, j: a[i, j] * 0.5 + 1.0, name),
            lambda a=a, b=b, name=name: compute(SHAPE, lambda i, j: maximum(a[i, j], b[i, j]), name),
            lambda a=a, b=b, name=name: compute(SHAPE, lambda i, j: select(i < 1, a[i, j], b[N - 1 - i, j]), name),
            lambda a=a, b=b, name=name: compute(SHAPE, lambda i, j: a[i, M - 1 - j] - b[i, j], name),
            lambda a=a, name=name: _centred(a, name),
        ]
        known.append(made[int(rng.choice(len(made), p=[0.35, 0.25, 0.15, 0.15, 0.1]))]())
    outputs = list(dict.fromkeys([known[-1], *(known[int(k)] for k in rng.integers(1, len(known), int(rng.integers(0, 3))))]))
    composed([x], outputs)


def _centred(x: Tensor, name: str) -> Tensor:
    total = reduce("sum", (N,), (M,), lambda i, k: x[i, k], f"{name}_sum")
    return compute(SHAPE, lambda i, j: x[i, j] - total[i], name)
