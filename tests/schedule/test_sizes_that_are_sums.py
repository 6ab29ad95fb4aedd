"""Kernels over sizes such as h - 2, behind convolutions without padding: no more is computed than of plain sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tests.frontend.models import run_onnxruntime

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 3, 21, 19)).astype(np.float32)


def model(dims: list[int | str], op: str, **attributes: object) -> onnx.ModelProto:
    weights = [RNG.standard_normal((22, 3, 3, 3)).astype(np.float32), RNG.standard_normal((22, 22, 1, 1)).astype(np.float32)]
    nodes = [helper.make_node("Conv", ["x", "w0"], ["c"], **attributes), helper.make_node(op, ["c", "w1"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, *dims])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, f"w{k}") for k, array in enumerate(weights)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.covering
@pytest.mark.parametrize("dims", [["h", "w"], [21, "w"], ["h", 19]])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 2]}, {"dilations": [2, 1]}], ids=["", "strides", "dilations"])
def test_a_product_over_places_computes_each_once(dims: list[int | str], op: str, attributes: dict[str, object]) -> None:
    # Each tile computed all rows, into memory of the size of the whole result: 40 to 300 times the time.
    made = model(dims, op, **attributes)

    scheduled = "".join(text for name, text in tc.lower(made, stage="scheduled").files().items() if "conv" in name)

    assert "conv" in scheduled and "scope='global'" not in scheduled
    (expected,) = run_onnxruntime(made, {"x": X})
    np.testing.assert_allclose(tc.compile(made, threads=1)(X), expected, rtol=1e-4, atol=1e-4)
