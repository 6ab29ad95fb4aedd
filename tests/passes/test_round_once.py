"""Chains on halves in f32: by text, as the results differ from those of single steps in what was rounded in between."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import tc
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_prim_func
from tc.ir.structural import structural_equal
from tc.passes.loop.round_once import round_once

_HEAD = "@loops\ndef chain(x: f16[8], c: f16[8], y: {result}[8]):\n    outputs(1)\n    for i in range(8):\n        y[i] = {value}\n"


def _func(value: str, result: str = "f16") -> PrimFunc:
    return parse_prim_func(_HEAD.format(value=value, result=result))


X, C = "cast(x[i], f32)", "cast(c[i], f32)"


@pytest.mark.parametrize(
    ("value", "result", "expected"),
    [
        ("x[i] * c[i] + x[i]", "f16", f"cast({X} * {C} + {X}, f16)"),
        ("cast(max(x[i] - c[i], f16(0.0)), f32) * 2.0", "f32", f"max({X} - {C}, 0.0) * 2.0"),
        ("cast(cast(x[i], f32) + 1.0, f16) * c[i] * c[i]", "f16", f"cast(cast(cast({X} + 1.0, f16), f32) * {C} * {C}, f16)"),
        (f"narrow(exp({X}), f16) * c[i]", "f16", f"cast(exp({X}) * {C}, f16)"),
        (f"cast(narrow(exp({X}), f16), f32) + 1.0", "f32", f"exp({X}) + 1.0"),
        ("narrow(cast(x[i] * c[i], f32) + 1.0, f16)", "f16", f"narrow({X} * {C} + 1.0, f16)"),
        ("select(x[i] < c[i], x[i] * c[i], c[i]) - x[i]", "f16", f"cast(select(x[i] < c[i], {X} * {C}, {C}) - {X}, f16)"),
    ],
)
def test_what_is_rounded_twice_or_more_is_rounded_once(value: str, result: str, expected: str) -> None:
    assert structural_equal(round_once(_func(value, result)), _func(expected, result))


def test_sums_in_f32_are_of_what_is_not_rounded_either() -> None:
    value = "y[i] + cast(x[i] * c[i], f32)"

    assert structural_equal(round_once(_func(value, "f32")), _func(f"y[i] + {X} * {C}", "f32"))


def test_rows_of_equal_halves_are_as_far_from_their_mean_as_they_are() -> None:
    # The mean was of sums rounded to f16, and what it was taken from was not: up to 427 instead of 0.
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float16[n, 24] x, float16[n, 24] s, float16[24] g) => (float16[n, 24] y) {
        t = Add(x, s)
        y = LayerNormalization<epsilon = 1e-5>(t, g)
        }"""
    )
    rng = np.random.default_rng(0)
    x, s = (np.repeat(rng.standard_normal((50, 1)), 24, 1).astype(np.float16) for _ in range(2))

    assert not tc.compile(model)(x, s, np.ones(24, np.float16)).any()


@pytest.mark.parametrize(
    "value",
    [
        "x[i] * c[i]",
        "max(min(x[i], c[i]), f16(0.0))",
        "cast(cast(x[i], f32) + 1.0, f16)",
        "max(y[i], x[i] * c[i] * c[i])",
    ],
)
def test_single_steps_casts_and_what_reads_its_own_result_stay(value: str) -> None:
    func = _func(value)

    assert round_once(func) is func
