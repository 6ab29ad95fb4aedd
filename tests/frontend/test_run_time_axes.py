"""Axes that are data: one compiled module for all of them, equal to numpy, native; axes that are none are named."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tc
from tc.errors import TcError
from tests.frontend.models import make_model, node

NUMPY = {"ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMean": np.mean, "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k))}


def is_native(model: object) -> bool:
    return all(report.status == "native" for report in tc.inspect(model).nodes)


@pytest.mark.parametrize("op", sorted(NUMPY))
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_reduction_over_any_two_axes_is_one_module(op: str, keepdims: int) -> None:
    model = make_model(
        [node(op, "x axes", "y", keepdims=keepdims)],
        {"x": (np.float32, ["a", "b", 3, "b"]), "axes": (np.int64, [2])},
        ["y"],
        opset=18,
    )
    module = tc.compile(model)
    assert is_native(model)
    rng = np.random.default_rng(0)
    for shape in [(2, 5, 3, 5), (1, 1, 3, 1)]:
        x = rng.standard_normal(shape).astype(np.float32)
        for axes in itertools.permutations(range(-4, 4), 2):
            if axes[0] % 4 != axes[1] % 4:
                expected = NUMPY[op](x, axis=axes, keepdims=bool(keepdims))
                np.testing.assert_allclose(module(x, np.array(axes)), expected, rtol=1e-5, atol=1e-6)


def test_sums_over_empty_axes_are_zero_and_over_kept_ones_empty() -> None:
    model = make_model(
        [node("ReduceSum", "x axes", "y", keepdims=1)], {"x": (np.int32, ["a", "b"]), "axes": (np.int64, [1])}, ["y"], opset=18
    )
    module = tc.compile(model)

    np.testing.assert_array_equal(module(np.zeros((0, 3), np.int32), np.array([0])), np.zeros((1, 3), np.int32))
    np.testing.assert_array_equal(module(np.zeros((0, 3), np.int32), np.array([1])), np.zeros((0, 1), np.int32))


@pytest.mark.parametrize("axes", [[0, 0], [1, -1], [2, 0], [0, -3]])
def test_axes_named_twice_or_out_of_range_are_errors(axes: list[int]) -> None:
    model = make_model(
        [node("ReduceSum", "x axes", "y", keepdims=0)], {"x": (np.float32, [2, 2]), "axes": (np.int64, [2])}, ["y"], opset=18
    )
    module = tc.compile(model)

    with pytest.raises(TcError, match="named twice|out of range"):
        module(np.ones((2, 2), np.float32), np.array(axes))


def test_squeeze_and_unsqueeze_take_axes_from_data() -> None:
    squeeze = make_model(
        [node("Squeeze", "x axes", "y")], {"x": (np.float32, ["a", "b", "c"]), "axes": (np.int64, [2])}, ["y"], opset=18
    )
    unsqueeze = make_model(
        [node("Unsqueeze", "x axes", "y")], {"x": (np.float32, ["a", "b"]), "axes": (np.int64, [2])}, ["y"], opset=18
    )
    less, more = tc.compile(squeeze), tc.compile(unsqueeze)
    assert is_native(squeeze) and is_native(unsqueeze)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for axes in itertools.permutations(range(-4, 4), 2):
        if axes[0] % 4 != axes[1] % 4:
            np.testing.assert_array_equal(more(x, np.array(axes)), np.expand_dims(x, axes))
    for axes in [(0, 1), (1, -3), (-2, -3)]:
        np.testing.assert_array_equal(less(x[:1].reshape(1, 1, 3), np.array(axes)), x[0])
    with pytest.raises(TcError):
        less(x.reshape(1, 2, 3), np.array([0, 1]))
