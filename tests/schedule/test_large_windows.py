"""Sums over windows that are too large to be added one after the other: trees over even parts, of padding that is copied once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tc
from tc.ir.expr import Const
from tc.ir.loop import PrimFunc
from tc.ops.registry import OPS
from tc.schedule.rules import apply_rules
from tc.schedule.tree import block_places
from tc.target import Target
from tests.frontend.models import make_model, node
from tests.ops.kernels import make_prim_func

WIDE = Target.parse("x86-64-v4")


def averages(x: np.ndarray, kernel: list[int], strides: list[int], pads: list[int]) -> np.ndarray:
    """Of what lies inside of the image."""
    rank = len(kernel)
    around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]

    def sums(values: np.ndarray) -> np.ndarray:
        windows = sliding_window_view(np.pad(values, around), kernel, tuple(range(2, 2 + rank)))
        return np.asarray(windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))].sum(tuple(range(-rank, 0))))

    return sums(x.astype(np.float64)) / sums(np.ones_like(x, np.float64))


@pytest.mark.covering
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("number", range(6))
def test_averages_are_those_of_float64(rank: int, number: int, rng: np.random.Generator) -> None:
    kernel = [int(size) for size in rng.integers(1, (60, 14, 7)[rank - 1], rank)]
    strides = [int(size) for size in rng.integers(1, 4, rank)]
    pads = [int(rng.integers(0, (size + 1) // 2 + 1)) % size for size in kernel * 2]
    x = (rng.standard_normal((2, 3, *(size + int(rng.integers(0, 40 if rank < 3 else 12)) for size in kernel))) + 3).astype(np.float32)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    model = make_model([node("AveragePool", "x", "y", **attributes)], {"x": (np.float32, list(x.shape))}, ["y"], opset=19)

    found = np.asarray(tc.compile(model, threads=1)(x))

    np.testing.assert_allclose(found, averages(x, kernel, strides, pads), rtol=2e-5)


def iterations(func: PrimFunc, block: str) -> int:
    found = 0
    for place in block_places(func):
        if place.block.name.startswith(block):
            product = 1
            for loop in place.loops:
                assert isinstance(loop.extent, Const)
                product *= int(loop.extent.value)
            found += product
    return found


@pytest.mark.parametrize("kernel", [(9, 9), (5, 5, 5), (13, 3)])
def test_padding_is_not_copied_for_each_result(kernel: tuple[int, ...]) -> None:
    rank = len(kernel)
    attributes = {"kernel": kernel, "strides": (1,) * rank, "pads": tuple(size // 2 for size in kernel * 2), "count_include_pad": True}
    x = np.zeros((1, 4, *(24,) * rank), np.float32)

    func = apply_rules(make_prim_func(OPS["avg_pool"], [x], attributes), WIDE).func

    assert iterations(func, "avg_pool_pad") < 8 * x.size
