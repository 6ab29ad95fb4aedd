"""Concatenations of many parts, views at the ends of kernels, and one of the largest: what they compute, and in how many kernels."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.passes.graph.joins import MOST_JOINED
from tests.frontend.models import make_model, node


@pytest.mark.parametrize("count", [9, MOST_JOINED, MOST_JOINED + 1, 3 * MOST_JOINED + 2])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_any_number_of_parts(count: int, axis: int, dtype: type, rng: np.random.Generator) -> None:
    """Some of them are empty, some have sizes that only the run tells."""
    arrays = {f"x{k}": rng.integers(0, 9, (3, k % 5, 2) if axis else (k % 5, 3, 2)).astype(dtype) for k in range(count)}
    types = {
        name: (dtype, [f"n{k}" if k % 7 == 0 and d == axis else n for d, n in enumerate(array.shape)])
        for k, (name, array) in enumerate(arrays.items())
    }
    model = make_model([node("Concat", " ".join(arrays), "y", axis=axis)], types, ["y"])

    np.testing.assert_array_equal(tc.compile(model, threads=2)(*arrays.values()), np.concatenate(list(arrays.values()), axis))


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_views_at_both_ends_of_a_kernel_are_none_of_it(rows: int, rng: np.random.Generator) -> None:
    nodes = [node("CumSum", "x zero", "c"), node("Reshape", "c wide", "a")]
    nodes += [node("Transpose", "a", "b", perm=[1, 0, 2]), node("Reshape", "b flat", "y")]
    literals = {"zero": np.array(0), "wide": np.array([-1, 5, 2]), "flat": np.array([5, -1])}
    model = make_model(nodes, {"x": (np.float32, ["n", 2, 5])}, ["y"], literals)
    x = rng.standard_normal((rows, 2, 5)).astype(np.float32)
    expected = x.cumsum(0).reshape(rows, 5, 2).transpose(1, 0, 2).reshape(5, 2 * rows)

    if rows:  # of nothing, -1 has no size
        np.testing.assert_allclose(tc.compile(model)(x), expected, atol=1e-5)
    main, *kernels = tc.lower(model, "graph").as_text().split("@graph")[1:]
    assert main.count("reshape(") == 2 and not any("reshape(" in kernel for kernel in kernels)


@pytest.mark.parametrize("is_largest", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_one_of_the_largest(dtype: type, is_largest: int) -> None:
    """NaN is the largest; of equal numbers, both zeros among them, the first counts."""
    x = np.array([[3, 7, 7, 1], [0, -1, 0, -1], [5, 5, 5, 5]]).astype(dtype)
    if dtype is not np.int64:
        x = np.concatenate([x, np.array([[1, np.nan, 2, np.nan], [-0.0, 0.0, -1, -1], [-np.inf, np.nan, np.inf, 0]], dtype)])
    signed = [[(bool(np.isnan(v)), 0.0 if np.isnan(v) else float(v)) for v in row] for row in x]
    order = [row.index(max(row) if is_largest else min(row)) for row in signed]
    model = make_model([node("TopK", "x one", "v i", largest=is_largest)], {"x": (dtype, ["n", 4])}, ["v", "i"], {"one": np.array([1])})

    values, places = tc.compile(model)(x)

    assert places.ravel().tolist() == order
    np.testing.assert_array_equal(values, np.take_along_axis(x, np.array(order)[:, None], 1))
    assert tc.compile(model)(x[:0])[0].shape == (0, 1)
