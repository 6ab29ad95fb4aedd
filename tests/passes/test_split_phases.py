"""Transposed convolutions of floats are ordinary ones, in groups and with taps apart too, and compute what they did."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.frontend.onnx import load_model
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY, SPLIT, STRICT_SIMPLIFY, STRICT_SPLIT
from tests.frontend.models import make_model, node
from tests.passes.test_graph_rules import ops_of
from tests.passes.test_integer_phases import CASES, transposed


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("has_bias", [False, True])
def test_phases_of_floats(case: int, has_bias: bool) -> None:
    x_shape, w_shape, attrs = CASES[case]
    rng = np.random.default_rng(case)
    x, w = rng.standard_normal(x_shape).astype(np.float32), rng.standard_normal(w_shape).astype(np.float32)
    bias = rng.standard_normal(w_shape[1] * attrs.get("group", 1)).astype(np.float32)
    literals = {"w": w, **({"b": bias} if has_bias else {})}
    names = ["n", x_shape[1], *(f"s{d}" for d in range(len(x_shape) - 2))]
    model = make_model([node("ConvTranspose", "x w b" if has_bias else "x w", "y", **attrs)], {"x": (np.float32, names)}, ["y"], literals)
    module = load_model(model).module

    assert "conv_transpose" not in ops_of(run_pipeline(module, SIMPLIFY + SPLIT, {"block": 8}))
    found = tc.compile(model, threads=1)(x)

    expected = transposed(x.astype(np.float64), w.astype(np.float64), attrs)
    expected = expected + bias.reshape(1, -1, *[1] * (x.ndim - 2)) if has_bias else expected
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * w[:, 0].size)


def test_taps_that_no_phase_lacks_are_strict_too() -> None:
    """Zeros in place of taps that are not there would make NaN of infinities."""
    strict = STRICT_SIMPLIFY + STRICT_SPLIT
    for attrs, is_split in (({"dilations": [3, 2]}, True), ({"strides": [2, 2]}, True), ({"strides": [3, 1]}, False)):
        w, x = np.ones((4, 1, 2, 2), np.float32), np.full((1, 4, 3, 3), np.inf, np.float32)
        model = make_model([node("ConvTranspose", "x w", "y", group=2, **attrs)], {"x": (np.float32, x.shape)}, ["y"], {"w": w})

        made = ops_of(run_pipeline(load_model(model).module, strict, {"block": 8}))

        assert ("conv_transpose" not in made) == is_split
        assert not np.isnan(tc.compile(model, threads=1, numerics="strict")(x)).any()
