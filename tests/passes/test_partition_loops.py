"""Cutting loops at their guards keeps what is not guarded."""

from __future__ import annotations

import numpy as np

from tc.interp import run_prim_func
from tc.ir.parser import parse_module
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
