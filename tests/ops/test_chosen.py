"""What is left of a tensor when data choose: machine code alone, whatever the sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tc
from tc.ir.dtype import ALL_DTYPES, f16, f32, f64
from tc.ops.chosen import BLOCK
from tests.codegen.c.programs import edges


def compiled(op: str, inputs: dict[str, np.ndarray], dims: list[list[Any]] | None = None, **attrs: Any) -> Any:
    element = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
    shapes = dims or [list(x.shape) for x in inputs.values()]
    made = element["x"] if op == "Compress" else TensorProto.INT64
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), ["y"], **attrs)],
        op,
        [helper.make_tensor_value_info(name, element[name], shape) for name, shape in zip(inputs, shapes, strict=True)],
        [helper.make_tensor_value_info("y", made, None)],
    )
    return tc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), on_unsupported="error")


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(1,), (17,), (3, 5), (0, 4), (2 * BLOCK + 33,), (7, 1, BLOCK), (40, 9, 70)])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
def test_places_that_are_not_zero(shape: tuple[int, ...], density: float) -> None:
    x = (np.random.default_rng(3).random(shape) < density).astype(np.float32)
    x[x != 0] = np.nan

    found = compiled("NonZero", {"x": x})(x)

    np.testing.assert_array_equal(found, np.array(np.nonzero(x)), strict=True)


@pytest.mark.parametrize("dtype", [f64, f32, f16, *(d for d in ALL_DTYPES if d.is_int and d.bits >= 8)])
def test_numbers_at_the_ends_of_their_types_are_not_zero(dtype: Any) -> None:
    x = edges(dtype, 1)

    np.testing.assert_array_equal(compiled("NonZero", {"x": x})(x), np.array(np.nonzero(x)))


def test_one_module_takes_all_sizes() -> None:
    rng = np.random.default_rng(4)
    module = compiled("NonZero", {"x": np.zeros((1, 1), bool)}, [["n", "m"]])

    for shape in ((3, 4), (0, 2), (200, 301), (1, 1), (5000, 3)):
        x = rng.random(shape) < 0.3
        np.testing.assert_array_equal(module(x), np.array(np.nonzero(x)))


@pytest.mark.covering
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("is_known", [True, False])
def test_compress_keeps_what_the_condition_names(axis: int | None, is_known: bool) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4, 6, 30)).astype(np.float32)
    size = x.size if axis is None else x.shape[axis]
    attrs = {} if axis is None else {"axis": axis}
    for count in (size, size // 2, 0):
        condition = rng.random(count) < 0.5
        inputs = {"x": x, "condition": condition}
        module = compiled("Compress", inputs, None if is_known else [["a", "b", "c"], ["n"]], **attrs)

        np.testing.assert_array_equal(module(x, condition), np.compress(condition, x, axis), strict=True)


def test_equal_results_on_all_threads() -> None:
    x = np.random.default_rng(6).random(100 * BLOCK + 1) < 0.5
    module = compiled("NonZero", {"x": x})

    for _ in range(5):
        np.testing.assert_array_equal(module(x), np.array(np.nonzero(x)))
