"""What is known at one place simplifies addresses there, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.parser import parse_prim_func
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


@pytest.mark.parametrize(("text", "dims"), [(BRANCH, (3,)), (BRANCH, (1,)), (LOOP, (0,)), (LOOP, (3,))])
def test_what_holds_in_a_part_is_not_taken_for_granted_outside(text: str, dims: tuple[int, ...]) -> None:
    func = parse_prim_func(text)
    shape = (3, dims[0]) if text is BRANCH else (3, 4)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    (found,), (expected,) = run(func, [x], dims), run_prim_func(func, [x], dims)

    written = ~np.isnan(expected)
    np.testing.assert_array_equal(found[written], expected[written])
