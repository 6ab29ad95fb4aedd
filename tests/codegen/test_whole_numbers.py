"""Floats that become whole numbers are rounded operation by operation: places half way between two pixels are as users compute them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tests.codegen.c.kernels import needs_compiler


def whole_of_affine(operator: str, factor: float, addend: float, to: int | None = None) -> onnx.ModelProto:
    """x * factor + addend, made whole by an operator."""
    constants = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in (("a", factor), ("b", addend))]
    attributes = {} if to is None else {"to": to}
    nodes = [helper.make_node("Mul", ["x", "a"], ["xa"]), helper.make_node("Add", ["xa", "b"], ["xab"])]
    nodes.append(helper.make_node(operator, ["xab"], ["y"], **attributes))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])
    y = helper.make_tensor_value_info("y", to or TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("target", ["native", pytest.param("c", marks=needs_compiler)])
@pytest.mark.parametrize(
    ("operator", "to"),
    [("Floor", None), ("Ceil", None), ("Round", None), *(("Cast", to) for to in (TensorProto.INT8, TensorProto.INT32, TensorProto.INT64))],
)
def test_whole_numbers_of_products_are_those_of_rounded_products(operator: str, to: int | None, target: str) -> None:
    rng = np.random.default_rng(3)
    differs = 0
    for factor in (1 / 3, 0.1, 0.7, 1.4, 2.2):
        x = (np.arange(-300, 300) / rng.choice([2, 8, 10, 20])).astype(np.float32)
        for addend in (0.5, 1.0, -7.0):
            product = x * np.float32(factor)
            exact = x.astype(np.float64) * np.float32(factor)
            rounded = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.rint, "Cast": np.trunc}[operator]
            want = rounded(product + np.float32(addend))
            differs += int((rounded((exact + addend).astype(np.float32)) != want).sum())
            model = whole_of_affine(operator, factor, addend, to)
            (got,) = tc.compile(model, target=target, threads=1).run({"x": x}).values()
            kept = slice(None) if to != TensorProto.INT8 else np.abs(want) < 128
            np.testing.assert_array_equal(np.asarray(got)[kept], want[kept].astype(got.dtype))
    assert differs > 0, "fused products would have given the same"


@pytest.mark.parametrize("seed", range(6))
def test_samples_between_two_pixels_after_a_product(seed: int) -> None:
    rng = np.random.default_rng(seed)
    height, width = (int(v) for v in rng.integers(2, 40, 2))
    factor = float(rng.choice([1 / 3, 2 / 3, 4 / 3, 0.2, 1.4]))
    padding, corners = str(rng.choice(["zeros", "border", "reflection"])), int(rng.integers(2))
    sample = helper.make_node("GridSample", ["x", "scaled"], ["y"], mode="nearest", padding_mode=padding, align_corners=corners)
    nodes = [helper.make_node("Mul", ["grid", "k"], ["scaled"]), sample]
    shapes = {"x": [1, 3, height, width], "grid": [1, 40, 40, 2]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(np.array(factor, np.float32), "k")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    grid = rng.integers(-40, 41, shapes["grid"]) / rng.choice([8, 20])
    feeds = {"x": rng.standard_normal(shapes["x"]).astype(np.float32), "grid": grid.astype(np.float32)}
    (want,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    (got,) = tc.compile(model, threads=1).run(feeds).values()
    np.testing.assert_array_equal(got, want)
