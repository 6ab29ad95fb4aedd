"""What is known at one place simplifies addresses there, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from tc.codegen.llvm.emitter import emit_prim_func
from tc.interp import run_prim_func
from tc.ir.node import replace
from tc.ir.parser import parse_prim_func
from tc.target import Target
from tests.ops.kernels import run

BRANCH = """
@loops
def f(X: f32[3, n], Y: f32[2, n, 2], n: i64):
    for i in range(3):
        for j in range(n):
            if n <= 0:
                Y[i // 2, j, i % 2] = 0.0
            Y[i // 2, j, i % 2] = X[i, j] + 1.0
"""
LOOP = """
@loops
def f(X: f32[3, 4], Y: f32[6], n: i64):
    for i in range(3):
        Y[i] = 0.0
        for j in range(n):
            Y[max(n, 1) // (i + n) + i] = Y[max(n, 1) // (i + n) + i] + 2.0
        Y[max(n, 1) // (i + max(n, 1)) + i] = 1.0
"""
PARAMETERS = """
@loops
def f(X: f32[8], P: f32[3], Y: f32[9], n: i64):
    Y[8] = 0.0
    if 3 < n:
        Y[8] = P[0]
    for i in unrolled(4):
        for j in vectorized(2):
            Y[i * 2 + j] = X[i * 2 + j] * P[0] + P[2]
"""


@pytest.mark.parametrize(("text", "dims"), [(BRANCH, (3,)), (BRANCH, (1,)), (LOOP, (0,)), (LOOP, (3,))])
def test_what_holds_in_a_part_is_not_taken_for_granted_outside(text: str, dims: tuple[int, ...]) -> None:
    func = parse_prim_func(text)
    shape = (3, dims[0]) if text is BRANCH else (3, 4)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    (found,), (expected,) = run(func, [x], dims), run_prim_func(func, [x], dims)

    written = ~np.isnan(expected)
    np.testing.assert_array_equal(found[written], expected[written])


@pytest.mark.parametrize(("in_place", "loads"), [((), 1 + 2), ((0,), 1 + 2), ((1,), 1 + 8)])
@pytest.mark.parametrize("n", [3, 4])
def test_numbers_of_inputs_are_loaded_once_unless_a_result_may_be_in_their_place(
    in_place: tuple[int, ...], loads: int, n: int
) -> None:
    func = replace(parse_prim_func(PARAMETERS), attrs=(("in_place", in_place),))
    x, p = np.linspace(-1, 1, 8, dtype=np.float32), np.array([3, 5, 7], np.float32)

    text = emit_prim_func(func, "f", Target.of("x86-64-v3").features).ir_text
    (found,) = run(func, [x, p], (n,))

    assert text.count("load float,") == loads
    np.testing.assert_allclose(found, [*(x * 3 + 7), 3 if n > 3 else 0], rtol=1e-6)
