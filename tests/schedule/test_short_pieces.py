"""Rows of several pieces that lie apart, each shorter than a vector: a piece is a vector by itself."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node

NUMPY = {"ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceProd": np.prod}


@pytest.mark.covering
@pytest.mark.parametrize("op", NUMPY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int8], ids=lambda dtype: np.dtype(dtype).name)
def test_reductions_over_axes_apart(op: str, dtype: type, rng: np.random.Generator) -> None:
    """Of small integers and NaN, so that every order gives the same number."""
    if op in ("ReduceSum", "ReduceProd") and dtype is np.int8:
        pytest.skip("no such type in the schema")
    for outer in (1, 2, 7):
        last = int(rng.integers(1, 20))
        for shape, axes in (((outer, 9, last), (0, 2)), ((3, outer, 5, last), (1, 3)), ((outer, 4, 3, last), (0, 2, 3))):
            x = rng.integers(-1, 2, shape).astype(dtype)
            if np.dtype(dtype).kind == "f":
                x[tuple(rng.integers(0, size) for size in shape)] = np.nan
            model = make_model([node(op, "x axes", "y", keepdims=0)], {"x": (dtype, shape)}, ["y"], {"axes": np.array(axes)}, opset=18)

            np.testing.assert_array_equal(tc.compile(model, threads=1)(x), NUMPY[op](x, axis=axes))


@pytest.mark.parametrize(("shape", "lanes"), [((16, 100, 12), 12), ((16, 100, 5), 5), ((16, 100, 2), 2), ((16, 100, 16), 16)])
def test_a_piece_is_a_vector(shape: tuple[int, ...], lanes: int) -> None:
    model = make_model([node("ReduceMax", "x axes", "y")], {"x": (np.float32, shape)}, ["y"], {"axes": np.array([0, 2])}, opset=18)

    text = tc.lower(model, "scheduled", "x86-64-v4").as_text()

    assert f"vectorized({lanes})" in text
