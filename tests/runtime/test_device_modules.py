"""Modules on an OpenCL device as callers see them: errors, arrays, files, threads."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tc
from tc.errors import InputError

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    pytest.importorskip("pyopencl", reason="needs the extra 'opencl'")


def onnx_model(nodes: list, inputs: list, outputs: list, initializers: tuple = ()) -> ModelProto:
    values = [[helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in some] for some in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *values, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def message_of(module: object, *arrays: np.ndarray) -> str:
    with pytest.raises(InputError) as caught:
        module(*arrays)  # type: ignore[operator]
    return str(caught.value)


def test_the_first_index_out_of_range_is_named_whichever_kernel_found_it() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["a"], name="first"), helper.make_node("Softmax", ["a"], ["s"], axis=0)]
    nodes.append(helper.make_node("Gather", ["s", "j"], ["y"], name="second"))
    model = onnx_model(nodes, [("x", F32, ["n", 4]), ("i", I64, ["k"]), ("j", I64, ["m"])], [("y", F32, ["m", 4])])
    module, host = tc.compile(model, target="opencl"), tc.compile(model)
    x, good, first, second = RNG.random((3, 4), np.float32), np.array([2, 0]), np.array([0, 9, -7]), np.array([-3, 1])

    for wrong in ((x, first, good), (x, good, second), (x, first, second)):
        assert message_of(module, *wrong) == message_of(host, *wrong)
        np.testing.assert_allclose(module(x, good, good * 0), host(x, good, good * 0), rtol=1e-6)


def test_an_index_out_of_range_in_an_iteration_is_that_of_the_host() -> None:
    body = helper.make_graph(
        [helper.make_node("Gather", ["i", "k"], ["w"]), helper.make_node("Gather", ["v", "w"], ["r"], name="pick"),
         helper.make_node("Add", ["r", "v"], ["next"])],
        "body", [helper.make_tensor_value_info(*each) for each in (("k", I64, []), ("c", BOOL, []), ("v", F32, [5]))],
        [helper.make_tensor_value_info(*each) for each in (("c", BOOL, []), ("next", F32, [5]))],
    )  # fmt: skip
    constants = (numpy_helper.from_array(np.array(6), "most"), numpy_helper.from_array(np.array(True), "yes"))
    model = onnx_model(
        [helper.make_node("Loop", ["most", "yes", "x"], ["y"], body=body)], [("x", F32, [5]), ("i", I64, [6])], [("y", F32, [5])], constants
    )
    module, host = tc.compile(model, target="opencl"), tc.compile(model)
    x = RNG.random(5, np.float32)

    for places in ([0, 7, 1, -9, 2, 3], [4, 3, 2, 1, 0, 5]):
        assert message_of(module, x, np.array(places)) == message_of(host, x, np.array(places))
        np.testing.assert_allclose(module(x, np.arange(6) % 5), host(x, np.arange(6) % 5), rtol=1e-6)
