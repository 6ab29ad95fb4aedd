"""Pools over wide windows in two: the same numbers, for any geometry; and only where that is less to do."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.interp.graph import run_function
from tc.ir.dtype import f32, from_numpy, i64
from tc.ir.expr import Var
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.dce import remove_dead_code
from tc.passes.graph.separate_windows import separate_windows
from tests.frontend.models import make_model, node


def _pools(shape: tuple[object, ...], dtype: np.dtype, attrs: dict[str, object]) -> tuple[IRModule, IRModule]:
    b = GraphBuilder()
    pooled = b.call("max_pool", b.param("x", tensor_type(shape, from_numpy(dtype))), **attrs)
    before = IRModule((b.function("main", (pooled,)),))
    return before, remove_dead_code(separate_windows(before))


def _count(module: IRModule) -> int:
    return len(module.main.bindings)


def test_windows_of_any_geometry_give_the_same_numbers() -> None:
    rng, cut = np.random.default_rng(3), 0
    for _ in range(120):
        rank = int(rng.integers(2, 4))
        kernel = rng.integers(1, 7, rank).tolist()
        attrs = {
            "kernel": tuple(kernel),
            "strides": tuple(rng.integers(1, 5, rank).tolist()),
            "dilations": tuple(rng.integers(1, 3, rank).tolist()),
            "pads": tuple(int(rng.integers(0, k)) for k in kernel * 2),
            "ceil_mode": bool(rng.random() < 0.3),
            "clip": bool(rng.random() < 0.3),
        }
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
        shape = (2, 1, *(int(rng.integers(r, r + 9)) for r in reach))
        dtype = np.dtype(rng.choice(["f4", "f8", "u1", "i1", "f2"]))
        values = rng.integers(0, 200, shape) if dtype.kind in "iu" else rng.standard_normal(shape)
        x = values.astype(dtype)
        if dtype.kind == "f":
            x = np.where(rng.random(shape) < 0.03, rng.choice([np.nan, np.inf, -np.inf], shape), x).astype(dtype)
        before, after = _pools(shape, dtype, attrs)
        cut += _count(after) - _count(before)

        (expected,) = run_function(before, "main", [x])
        (found,) = run_function(after, "main", [x])

        np.testing.assert_array_equal(found, expected)
    assert cut > 20


@pytest.mark.parametrize("kernel, stride", [((3, 3), 1), ((2, 2), 2), ((3, 3), 2), ((1, 9), 1), ((9, 1), 1)])
def test_small_windows_and_lines_stay(kernel: tuple[int, int], stride: int) -> None:
    before, after = _pools((1, 2, 20, 20), np.dtype("f4"), {"kernel": kernel, "strides": (stride, stride)})

    assert after is before or _count(after) == _count(before)


def test_a_pool_that_was_cut_is_compiled_for_any_size() -> None:
    pool = node("MaxPool", "x", "y", kernel_shape=[5, 7], strides=[1, 3], pads=[2, 3, 2, 3])
    model = make_model([pool], {"x": (np.float32, ["n", "c", "h", "w"])}, ["y"])
    compiled, rng = tc.compile(model), np.random.default_rng(4)

    for shape in ((1, 1, 1, 1), (2, 3, 9, 41), (1, 17, 5, 5), (3, 1, 40, 8), (0, 2, 6, 6)):
        x = rng.standard_normal(shape).astype(np.float32)
        found = compiled(x)
        if x.size:
            padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (3, 3)), constant_values=-np.inf)
            windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 7), (2, 3))
            wanted = windows[:, :, :, ::3].max((4, 5))
            np.testing.assert_array_equal(found, wanted)
        else:
            assert found.shape == (0, 2, 6, 2)


def test_sizes_that_are_not_known_stay_those_of_the_pool() -> None:
    h, w = Var("h", i64), Var("w", i64)
    before, after = _pools((1, 2, h, w), np.dtype("f4"), {"kernel": (5, 5), "strides": (2, 1), "ceil_mode": True})

    assert _count(after) == 2
    assert str(after.main.results[0].type) == str(before.main.results[0].type)
    assert after.main.results[0].type.dtype is f32
