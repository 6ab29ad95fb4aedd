"""The largest and the smallest of many: the same places as a stable sort of all gives."""

from __future__ import annotations

import numpy as np
import pytest

from tc.ir.graph import Call
from tc.ops.build import full_attrs
from tc.ops.registry import get_op

SHAPES = [((3, 50), -1), ((4, 7, 5), 1), ((60, 2), 0), ((1, 1), 0), ((2, 9), 1), ((0, 4), 1)]


def sorted_places(x: np.ndarray, axis: int, largest: bool) -> np.ndarray:
    """All places, of equal elements the first one first; NaN is the largest."""
    if largest:
        return np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return np.argsort(x, axis, kind="stable")


def elements(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Few different ones, with the extremes of the type among them."""
    x = rng.integers(0, 6, shape).astype(dtype)
    if x.dtype.kind == "f":
        x.flat[::4] = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], x.flat[::4].shape)
    else:
        x.flat[::4] = rng.choice([np.iinfo(dtype).min, np.iinfo(dtype).max], x.flat[::4].shape)
    return x


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_places_are_those_of_a_stable_sort(shape: tuple[int, ...], axis: int, largest: bool, dtype: str) -> None:
    x = elements(np.random.default_rng(0), shape, dtype)

    for k in {0, 1, 2, shape[axis] - 1, shape[axis]} & set(range(shape[axis] + 1)):
        attrs = full_attrs(Call("topk", (), (("k", k), ("axis", axis), ("largest", largest))))
        values, places = get_op("topk").run_reference([x], attrs)

        expected = np.take(sorted_places(x, axis, largest), np.arange(k), axis)
        np.testing.assert_array_equal(places, expected, strict=True)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis), strict=True)
