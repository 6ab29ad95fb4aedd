"""What evaluating nodes at compile time may cost."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tc.errors import LimitError
from tc.frontend.onnx import load_model
from tc.ir.dtype import f32
from tc.ir.graph import Call, all_bindings
from tc.ir.types import tensor_type
from tc.ops import window
from tc.ops.folding import FLOOR_BYTES, FoldBudget, num_terms
from tc.ops.registry import get_op
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY
from tests.frontend.models import make_model, node
from tests.frontend.test_onnx_errors import with_sparse

F32 = np.float32


def test_terms_are_counted_from_the_loops() -> None:
    a, b = np.zeros((4, 5), F32), np.zeros((5, 6), F32)
    matmul, conv = get_op("matmul"), get_op("conv")
    x, w = np.zeros((1, 2, 9, 9), F32), np.zeros((3, 2, 3, 3), F32)

    assert num_terms(matmul, [a, b], matmul.attrs({}), [tensor_type((4, 6), f32)]) == 4 * 5 * 6
    assert num_terms(conv, [x, w], conv.attrs({}), [tensor_type((1, 3, 7, 7), f32)]) == 3 * 7 * 7 * 2 * 9


def test_a_budget_is_spent_by_bytes_and_by_seconds() -> None:
    add = get_op("add")
    arrays = [np.ones(1 << 20, F32), np.ones(1 << 20, F32)]
    results = [tensor_type((1 << 20,), f32)]
    budget = FoldBudget.for_model(0)

    folded = [budget.evaluate(add, arrays, add.attrs({}), results) is not None for _ in range(6)]

    assert folded == [True] * (FLOOR_BYTES >> 22) + [False] * (6 - (FLOOR_BYTES >> 22))
    spent = FoldBudget.for_model(1 << 30, max_seconds=0)
    assert spent.evaluate(add, arrays, add.attrs({}), results) is None


def test_a_long_convolution_of_two_constants_is_not_for_the_compiler() -> None:
    conv = get_op("conv")
    x, w = np.zeros((1, 1, 1 << 20), F32), np.zeros((1, 1, 1 << 19), F32)

    assert FoldBudget.for_model(1 << 30).evaluate(conv, [x, w], conv.attrs({}), [tensor_type((1, 1, (1 << 19) + 1), f32)]) is None


TILE = [node("Tile", "c r", "t")]
BOMBS: dict[str, tuple[list[Any], dict[str, np.ndarray]]] = {
    "tile": (TILE, {"c": np.ones(1, F32), "r": np.array([1 << 31])}),
    "tile of integers": ([*TILE, node("Gather", "t z", "u")], {"c": np.ones(1, np.int64), "r": np.array([1 << 30]), "z": np.array(0)}),
    "tile to nothing": (TILE, {"c": np.ones((1, 1), np.int64), "r": np.array([1 << 31, 0])}),
    "tile of floats to nothing": (TILE, {"c": np.full((1, 1), 0.1, F32), "r": np.array([1 << 31, 0])}),
    "fill": ([node("ConstantOfShape", "r", "t")], {"r": np.array([1 << 31])}),
    "expand": ([node("Expand", "c r", "t")], {"c": np.ones(1, F32), "r": np.array([1 << 31])}),
    "pad": ([node("Pad", "c r", "t")], {"c": np.ones(1, F32), "r": np.array([0, 1 << 31])}),
    "four times, again and again": (
        [node("Tile", f"t{k} four", f"t{k + 1}") for k in range(9)],
        {"t0": np.ones(1 << 12, F32), "four": np.array([4])},
    ),
    "resize": ([node("Resize", "c - - r", "t", mode="linear")], {"c": np.ones(60000, F32), "r": np.array([50000])}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_small_models_do_not_become_large_while_they_are_compiled(name: str) -> None:
    # 23 GiB for 200 bytes. Resizing made a matrix of all places by all places, tiling to nothing repeated axis by axis.
    nodes, constants = BOMBS[name]
    model = make_model([*nodes, node("Identity", nodes[-1].output[0], "y")], {}, ["y"], constants)

    tracemalloc.start()
    try:
        run_pipeline(load_model(model).module, SIMPLIFY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 96 << 20, peak


def test_weights_are_folded_as_far_as_the_file_is_large() -> None:
    w = np.random.default_rng(0).standard_normal((1 << 11, 1 << 11)).astype(F32)
    model = make_model(
        [node("Transpose", "w", "t"), node("Relu", "t", "r"), node("MatMul", "x r", "y")], {"x": (F32, ["n", 1 << 11])}, ["y"], {"w": w}
    )

    found = run_pipeline(load_model(model).module, SIMPLIFY)

    assert [b.value.op for b in all_bindings(found.main) if isinstance(b.value, Call)] == ["matmul"]


def test_a_sparse_tensor_of_nothing_does_not_fill_memory() -> None:
    with pytest.raises(LimitError, match=r"sparse tensor 'w' of shape .* would take 17179869184 bytes, more than 64 times what it holds"):
        load_model(with_sparse(np.ones(1, F32), np.array([7], np.int64), [1 << 32]))


def test_the_reference_of_a_convolution_is_the_same_tap_by_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, conv = np.random.default_rng(0), get_op("conv")
    x, w = rng.standard_normal((2, 4, 7, 6)).astype(F32), rng.standard_normal((6, 2, 3, 2)).astype(F32)
    attrs = conv.attrs({"groups": 2, "strides": (2, 1), "pads": (0, 1, 2, 0)})
    (expected,) = conv.run_reference([x, w], attrs)

    monkeypatch.setattr(window, "_MOST_COPIED", 10)

    np.testing.assert_allclose(conv.run_reference([x, w], attrs)[0], expected, rtol=1e-5, atol=1e-6)
