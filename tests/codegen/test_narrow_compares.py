"""Masks of vectors: steps of lanes against one number for all, whatever steps, numbers and comparisons are."""

from __future__ import annotations

import numpy as np
import pytest

from tc.codegen.llvm.emitter import emit_prim_func
from tc.interp.loops import run_prim_func
from tc.ir.parser import parse_module
from tests.ops.kernels import run

TEXT = """
@loops
def f(a: f32[7, 40], y: f32[7, 40]):
    outputs(1)
    for i in range(7):
        for jo in range(5):
            for ji in vectorized(8):
                y[i, jo * 8 + ji] = select(CONDITION, a[i, jo * 8 + ji], -2.0)
"""


def _condition(rng: np.random.Generator) -> str:
    big = int(rng.choice([1, 40, 1 << 20, (1 << 30) - 8, 1 << 31, 1 << 40, 1 << 52]))
    a, b, c, d = (int(rng.integers(-9, 10)) for _ in range(4))
    number = int(rng.integers(-30, 60)) * int(rng.choice([1, 1, big]))
    lhs, rhs = f"ji * {a} + jo * {b * int(rng.choice([1, big]))}", f"i * {c * big} + jo * {d} + {number}"
    return f"{lhs} {rng.choice(['<', '<=', '==', '!='])} {rhs}"


def test_drawn_comparisons_of_lanes_are_those_of_the_interpreter(rng: np.random.Generator) -> None:
    a, narrow = rng.standard_normal((7, 40)).astype(np.float32), 0
    conditions = [_condition(rng) for _ in range(60)] + [f"ji + {1 << 61} < i * {1 << 60}", f"ji * {1 << 31} < i * {1 << 32}"]
    for condition in conditions:
        (func,) = parse_module(TEXT.replace("CONDITION", condition)).prim_funcs

        narrow += "x i32> <i32" in str(emit_prim_func(func))
        np.testing.assert_array_equal(run(func, [a])[0], run_prim_func(func, [a])[0], err_msg=condition)
    assert narrow > 20


@pytest.mark.parametrize("index", [2**63 - 1, -(2**63), 0, 17])
def test_what_comes_from_data_is_compared_in_its_own_width(index: int) -> None:
    text = TEXT.replace("a: f32[7, 40]", "a: f32[7, 40], k: i64[1]").replace("CONDITION", "k[0] <= jo * 8 + ji")
    (func,) = parse_module(text).prim_funcs
    inputs = [np.ones((7, 40), np.float32), np.array([index])]

    np.testing.assert_array_equal(run(func, inputs)[0], run_prim_func(func, inputs)[0])
