"""Cutting loops at their guards keeps what is not guarded."""

from __future__ import annotations

import numpy as np

from tc.interp import run_prim_func
from tc.ir.parser import parse_module, parse_prim_func
from tc.passes.loop.partition_loops import partition_loops


def test_iterations_in_which_only_a_part_is_guarded_are_kept() -> None:
    """The start values of iterations 7 to 15 were lost with them."""
    (func,) = parse_module("""
@loops
def f(X: f32[7], B: f32[16]):
    outputs(1)
    for i in range(16, partition=1):
        B[i] = 0.5
        if i < 7:
            B[i] = B[i] + X[i]
""").prim_funcs
    x = np.arange(7, dtype=np.float32)

    (want,) = run_prim_func(func, [x])

    np.testing.assert_array_equal(run_prim_func(partition_loops(func), [x])[0], want)


def test_what_is_read_under_two_conditions_is_not_read_under_one_of_them() -> None:
    func = parse_prim_func("""@loops
def rows(P: i64[1], Y: f32[4, 32], n: i64):
    for i in range(4):
        for j in range(32):
            Y[i, j] = 0.0
    for i in range(4):
        for j in range(select(0 < n, select(i < 1, (P[i] + 7) // 8, 0), 0), partition=1):
            for k in range(8):
                if i < 1 and j * 8 + k < select(0 < n, P[i], 0):
                    Y[i, j * 8 + k] = 1.0
""")
    lengths = np.array([21])

    (got,) = run_prim_func(partition_loops(func), [lengths], [1])

    assert got.sum() == 21 and got[0, :21].all()
