"""Small ONNX models that tests quantize, and onnxruntime in the place of the compiler: quick, and another opinion."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.draws import HAS_BYTE_DOTS


class OrtModule:
    """A model in onnxruntime, its optimizations off, called as a compiled module is."""

    def __init__(self, model: onnx.ModelProto, optimize: bool = False) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        if not optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        self.names = [value.name for value in self.session.get_outputs()]

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(self.names, self.session.run(None, dict(feed)), strict=True))


class ReferenceModule:
    """A model in the evaluator of the onnx package: slow, and exact on every CPU."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.evaluator = ReferenceEvaluator(model)

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(self.evaluator.output_names, self.evaluator.run(None, dict(feed)), strict=True))


def exact_module(model: onnx.ModelProto) -> OrtModule | ReferenceModule:
    """The peer that sums products of bytes exactly on this CPU."""
    return OrtModule(model) if HAS_BYTE_DOTS else ReferenceModule(model)


def make_model(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[object, ...]],
    outputs: list[str],
    weights: Mapping[str, np.ndarray],
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    return model


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(max(1, int(np.prod(shape[1:]))))).astype(np.float32)


def conv_net(rng: np.random.Generator, opset: int = 17) -> onnx.ModelProto:
    """Every kind of edge: a normalization to fold, a residual sum, a pool, a concatenation, a reshape, a product at the end."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c0", "s0", "b0", "m0", "v0"], ["n0"]),
        node("Relu", ["n0"], ["r0"]),
        node("Conv", ["r0", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Add", ["c1", "r0"], ["a1"]),
        node("Relu", ["a1"], ["r1"]),
        node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2"], ["c2"], name="left"),
        node("Conv", ["p1", "w3", "b3"], ["c3"], name="right"),
        node("Relu", ["c3"], ["r3"]),
        node("Concat", ["c2", "r3"], ["k"], axis=1),
        node("Flatten", ["k"], ["f"]),
        node("Gemm", ["f", "w4", "b4"], ["y"], transB=1, name="head"),
    ]
    weights = {
        "w0": floats(rng, 8, 3, 3, 3), "s0": rng.uniform(0.5, 1.5, 8).astype(np.float32), "b0": floats(rng, 8), "m0": floats(rng, 8),
        "v0": rng.uniform(0.5, 1.5, 8).astype(np.float32), "w1": floats(rng, 8, 8, 3, 3), "b1": floats(rng, 8),
        "w2": floats(rng, 4, 8, 1, 1), "w3": floats(rng, 6, 8, 1, 1), "b3": floats(rng, 6), "w4": floats(rng, 5, 160), "b4": floats(rng, 5),
    }  # fmt: skip
    return make_model(nodes, {"x": ("n", 3, 8, 8)}, ["y"], weights, opset)


def mlp(rng: np.random.Generator, opset: int = 17) -> onnx.ModelProto:
    """Two products and a relu."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w1", "b1"], ["y"], name="second"),
    ]
    weights = {"w0": floats(rng, 16, 24), "w1": floats(rng, 24, 10), "b1": floats(rng, 10)}
    return make_model(nodes, {"x": ("n", 16)}, ["y"], weights, opset)


def attention(rng: np.random.Generator) -> onnx.ModelProto:
    """Products of two computed operands, with transposes between them."""
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"]),
        helper.make_node("MatMul", ["x", "wk"], ["k"]),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["s"], name="scores"),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "q"], ["y"], name="mix"),
    ]
    return make_model(nodes, {"x": ("n", 6, 16)}, ["y"], {"wq": floats(rng, 16, 16), "wk": floats(rng, 16, 16)})


def tied(rng: np.random.Generator) -> onnx.ModelProto:
    """One weight that is multiplied along either axis, as that of an embedding is."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="into"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w"], ["y"], transB=1, name="out of"),
    ]
    rows = np.logspace(-2, 0, 16, dtype=np.float32)[:, None]
    return make_model(nodes, {"x": ("n", 16)}, ["y"], {"w": floats(rng, 16, 16) * rows})


def feeds_of(model: onnx.ModelProto, rng: np.random.Generator, calls: int = 4, batch: int = 3) -> list[dict[str, np.ndarray]]:
    (value,) = model.graph.input
    shape = [d.dim_value or batch for d in value.type.tensor_type.shape.dim]
    return [{value.name: rng.standard_normal(shape).astype(np.float32)} for _ in range(calls)]


NETS: dict[str, Callable[[np.random.Generator], onnx.ModelProto]] = {
    "conv_net": conv_net, "mlp": mlp, "attention": attention, "tied": tied,
}  # fmt: skip
