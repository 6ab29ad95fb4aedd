"""A reduction over no terms is the identity: in the interpreter, in loops without blocks, scheduled and compiled."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tc.errors import VerifyError
from tc.interp import run_prim_func
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_prim_func
from tc.ir.verify import verify
from tc.passes.loop.lower_blocks import lower_blocks
from tc.passes.pipeline import finish_loops
from tests.ops.kernels import run
from tests.schedule.random_problems import integers
from tests.schedule.random_traces import random_schedule

SIZES = (0, 0, 1, 3, 7)


def program(rng: np.random.Generator) -> tuple[PrimFunc, list[np.ndarray], tuple[int, ...], np.ndarray]:
    """Y[a, b] = sum over r, t of X[a, b, r, t], in loops of any order, each as long as a number, a dim, data, or another loop says, and
    perhaps under a condition on a loop that reduces; and what it means."""
    n, m, p, q = (int(v) for v in rng.choice(SIZES, 4))
    names = [name if rng.random() < 0.5 else str(size) for name, size in zip("nmpq", (n, m, p, q), strict=True)]
    lengths, counts = rng.integers(0, p + 1, n), rng.integers(0, q + 1, p)
    extents = {"a": names[0], "b": names[1], "r": names[2], "t": names[3]}
    if rng.random() < 0.4:
        extents["r"] = "L[a]"
    if rng.random() < 0.4:
        extents["t"] = "C[r]"
    least = int(rng.integers(0, 3))
    condition = f"{least} <= r" if rng.random() < 0.3 else ""
    order = [str(loop) for loop in rng.permutation(list("abrt"))]
    for inner, outer in (("t", "r"), ("r", "a")):
        if f"[{outer}]" in extents[inner] and order.index(inner) < order.index(outer):
            order.remove(outer)
            order.insert(order.index(inner), outer)
    lines = [f"{'    ' * depth}for {loop} in range({extents[loop]}):" for depth, loop in enumerate(order, 1)]
    kinds = {"a": "spatial", "b": "spatial", "r": "reduction", "t": "reduction"}
    axes = ", ".join(f"v{loop}={kinds[loop]}({extents[loop]}, {loop})" for loop in "abrt")
    text = "\n".join((
        "@loops",
        f"def total(X: f32[{', '.join(names)}], L: i64[{names[0]}], C: i64[{names[2]}], Y: f32[{names[0]}, {names[1]}], "
        "n: i64, m: i64, p: i64, q: i64):",
        *lines,
        f"{'    ' * 5}with block('s', {axes}):",
        *([f"{'    ' * 6}where({condition})"] if condition else []),
        f"{'    ' * 6}annotate(monoid='sum')",
        f"{'    ' * 6}with init():",
        f"{'    ' * 7}Y[va, vb] = 0.0",
        f"{'    ' * 6}Y[va, vb] = Y[va, vb] + X[va, vb, vr, vt]",
    ))
    x = integers(rng, n, m, p, q)
    result = np.zeros((n, m), np.float32)
    for a, b, r, t in product(range(n), range(m), range(p), range(q)):
        taken = "L" not in extents["r"] or r < lengths[a]
        taken &= "C" not in extents["t"] or t < counts[r]
        result[a, b] += x[a, b, r, t] if taken and (not condition or r >= least) else 0
    return parse_prim_func(text), [x, lengths, counts], (n, m, p, q), result


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_sums_of_any_number_of_terms_are_the_same_in_all_ways(first: int) -> None:
    scheduled = 0
    for seed in range(first, first + 20):
        rng = np.random.default_rng(seed)
        func, arrays, dims, want = program(rng)
        lowered = lower_blocks(func)
        verify(lowered)
        np.testing.assert_array_equal(run_prim_func(func, arrays, dims)[0], want, err_msg=str(func))
        np.testing.assert_array_equal(run_prim_func(lowered, arrays, dims)[0], want, err_msg=str(lowered))
        np.testing.assert_array_equal(run(finish_loops(func), arrays, dims)[0], want, err_msg=str(func))
        try:
            schedule = random_schedule(func, rng, 20)
        except VerifyError:  # its loops leave points of the axes out
            continue
        scheduled += 1
        np.testing.assert_array_equal(run_prim_func(schedule.func, arrays, dims)[0], want, err_msg=f"{func}\n{schedule.trace}")
        np.testing.assert_array_equal(run(finish_loops(schedule.func), arrays, dims)[0], want, err_msg=f"{func}\n{schedule.trace}")
    assert scheduled >= 10
