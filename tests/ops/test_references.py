"""What operators mean in numpy, where numpy has its own idea."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.ops import window
from tc.ops.common import contract
from tc.ops.registry import get_op
from tests.frontend.models import make_model, node

F32 = np.float32


@pytest.mark.parametrize("op, onnx_op", [("conv", "Conv"), ("conv_transpose", "ConvTranspose")])
def test_zero_times_infinity_is_no_number_in_sums_of_one_term(op: str, onnx_op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`np.dot` scales a column by a single number with BLAS, which does not look at what it scales by 0."""
    x = np.array([np.inf, np.nan, 1, 0, -np.inf, 2], F32).reshape(1, 1, 6, 1) * np.ones((1, 3, 6, 2), F32)
    w = np.array([0, 2, -0.0], F32).reshape(3, 1, 1, 1)
    attrs = get_op(op).attrs({"groups": 3})

    with np.errstate(invalid="ignore"):
        expected = x * w.reshape(1, 3, 1, 1)
        (at_once,) = get_op(op).run_reference([x, w], attrs)
        monkeypatch.setattr(window, "_MOST_COPIED", 0)
        (by_taps,) = get_op(op).run_reference([x, w], attrs)
    module = tc.compile(make_model([node(onnx_op, "x w", "y", group=3)], {"x": (F32, x.shape)}, ["y"], {"w": w}), threads=1)

    for found in (at_once, by_taps, module.run({"x": x})["y"]):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0), (1, 1, 1), (2, 3, 4)])
def test_contractions_are_those_of_numpy(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((rows, 2, depth, 3)), rng.standard_normal((depth, columns, 3, 5))

    np.testing.assert_allclose(contract(x, w, ([2, 3], [0, 2])), np.tensordot(x, w, ([2, 3], [0, 2])), rtol=1e-12)
