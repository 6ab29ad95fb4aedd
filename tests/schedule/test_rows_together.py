"""Rows that stay in a cache while tiles of columns come from behind it, where neither all rows nor all columns fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tc.ir.loop import PrimFunc
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target, native_target
from tests.ops.kernels import make_prim_func, run

SMALL = replace(native_target(), l2_bytes=96 << 10, cores=2)
"""A machine on which small products are large ones."""


def together(op: str, arrays: list[np.ndarray], target: Target, **attrs: Any) -> tuple[PrimFunc, int]:
    """The scheduled kernel, and how many tiles of rows share a tile of columns."""
    made = apply_rules(simplify_loops(make_prim_func(OPS[op], [*arrays], attrs)), target)
    point = {choice.knob.name.rpartition("/")[2]: choice.value for choice in made.choices}
    assert made.rule == "contraction"
    return finish_loops(made.func), int(str(point.get("rows_together", 1)))


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_products_are_those_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, depth, blocks = map(int, rng.integers((400, 40, 12), (900, 60, 16)))
    a, b = normal(rng, rows, depth), normal(rng, blocks, depth, 32)

    func, size = together("matmul_packed", [a, b], SMALL, columns=blocks * 32)

    assert size > 1
    one, two = (run(func, [a, b], threads=threads)[0] for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, a.astype(float) @ np.hstack(list(b)), rtol=0, atol=1e-6 * (4 + depth))


def test_there_may_be_no_rows() -> None:
    a, b = np.zeros((0, 40), np.float32), np.zeros((40, 64), np.float32)

    made = apply_rules(simplify_loops(make_prim_func(OPS["matmul"], [a, b], {})), SMALL)

    assert run(finish_loops(made.func), [a, b])[0].shape == (0, 64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("images", [1, 3])
def test_drawn_convolutions_of_pixels_are_those_of_the_reference(images: int, seed: int) -> None:
    """Their last tile of pixels is cut short, or so is the last part of them."""
    rng = np.random.default_rng(seed)
    lanes, op = SMALL.lanes(32), OPS["conv_blocked"]
    blocks = 48 // lanes
    outputs, height, width = map(int, rng.integers((18, 20, 17), (24, 30, 30)) * (16 // lanes, 1, 1))
    x = normal(rng, images, blocks, height, width, lanes)
    w, bias = normal(rng, outputs, blocks, 1, 1, lanes, lanes), normal(rng, outputs, lanes)
    window = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    sizes: dict[str, Any] = {**window, "in_channels": blocks * lanes, "in_block": lanes}

    func, size = together("conv_blocked", [x, w, bias], SMALL, **sizes)

    assert size > 1
    expected = op.run_reference([each.astype(np.float64) for each in (x, w, bias)], op.attrs(sizes))[0]
    one, two = (run(func, [x, w, bias], threads=threads)[0] for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, expected, rtol=0, atol=1e-6 * (4 + blocks * lanes))


@pytest.mark.parametrize(("rows", "depth", "columns", "shares"), [
    (1024, 768, 768, True), (4096, 512, 1024, True), (100, 768, 3072, False), (8192, 64, 64, False), (2048, 2048, 2048, False),
])  # fmt: skip
def test_rows_share_columns_where_both_are_large_and_sums_are_not(rows: int, depth: int, columns: int, shares: bool) -> None:
    target = replace(Target.parse("x86-64-v4"), l2_bytes=2 << 20, cores=2)
    a, b = np.zeros((rows, depth), np.float32), np.zeros((columns // 32, depth, 32), np.float32)

    _, size = together("matmul_packed", [a, b], target, columns=columns)

    assert (size > 1) is shares
