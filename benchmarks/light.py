"""The `light_*` networks of the onnx package with seeded random weights instead of their constant ones.

Those files hold real architectures whose weights were taken out: each is a `ConstantOfShape` node that fills it with
0.02, which drives every activation to one value and hides almost any mistake. Here each weight gets values by its role.
Convolutions are standardised per filter (mean 0 over the fan-in, variance 1/fan-in) and scaled by what ReLU takes away,
so that activations keep their size and inputs stay distinguishable through any depth; see Brock, De, Smith,
"Characterizing signal propagation to close the performance gap in unnormalized ResNets", 2021.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

FILES = {
    "resnet50": "light_resnet50",
    "densenet121": "light_densenet121",
    "inception_v1": "light_inception_v1",
    "inception_v2": "light_inception_v2",
    "shufflenet": "light_shufflenet",
    "squeezenet": "light_squeezenet",
    "vgg19": "light_vgg19",
    "zfnet512": "light_zfnet512",
    "alexnet": "light_bvlc_alexnet",
}

# The standard deviation of relu(z) for z ~ N(0, 1) is sqrt((1 - 1/pi) / 2); this undoes it.
RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
# What the classifier's weights are multiplied by, so that its outputs vary by about 1.5 over the classes. Measured.
CLASSIFIER_GAIN = {
    "resnet50": 3.0,
    "densenet121": 1.8,
    "inception_v1": 13.0,
    "inception_v2": 0.8,
    "shufflenet": 0.45,
    "squeezenet": 11.0,
    "vgg19": 0.7,
    "zfnet512": 2.7,
    "alexnet": 1.0,
}
# Operators that pass the distribution of their first input on, more or less.
TRANSPARENT = {"MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Dropout", "Reshape", "Transpose", "LRN"}
RENAMED = {"Reshape", "Unsqueeze"}


def make_light(name: str, rng: np.random.Generator) -> onnx.ModelProto:
    """The network `name` of `FILES` with weights drawn from `rng`; batch 1, as in the file."""
    source = Path(onnx.__file__).parent / "backend/test/data/light" / f"{FILES[name]}.onnx"
    model = onnx.load(source)
    graph = model.graph

    facts = _Facts(graph, CLASSIFIER_GAIN[name])
    weights = [facts.draw(weight, shape, rng) for weight, shape in _weights(graph)]
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    used = {value for node in kept for value in node.input}
    integers = [t for t in graph.initializer if t.data_type == onnx.TensorProto.INT64 and t.name in used]

    names = {tensor.name for tensor in weights + integers}
    inputs = [value for value in graph.input if value.name in used - names]
    for field, values in (("node", kept), ("initializer", integers + weights), ("input", inputs), ("value_info", [])):
        graph.ClearField(field)
        getattr(graph, field).extend(values)
    model.ir_version = 7  # older formats would make every weight an input that a caller may replace
    return model


def make_batch_symbolic(model: onnx.ModelProto, dim: str = "N") -> onnx.ModelProto:
    """`model` with its leading dim named `dim`; flattening before the classifier then infers the batch, as [-1, k]."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = dim
    targets = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        if tensor.name in targets:
            shape = numpy_helper.to_array(tensor).copy()
            shape[0] = -1
            tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))
    return model


def _weights(graph: onnx.GraphProto) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every float constant that some node reads."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    used = {value for node in graph.node for value in node.input}
    found = [(t.name, tuple(t.dims)) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            found.append((node.output[0], tuple(numpy_helper.to_array(tensors[node.input[0]]).tolist())))
    return [(name, shape) for name, shape in found if name in used]


class _Facts:
    """Who makes and who reads each value of a graph, and so what a weight is for."""

    def __init__(self, graph: onnx.GraphProto, classifier_gain: float) -> None:
        self.classifier = [node for node in graph.node if node.op_type in ("Conv", "Gemm")][-1]
        self.classifier_gain = classifier_gain
        self.maker = {value: node for node in graph.node for value in node.output}
        self.readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in graph.node:
            for index, value in enumerate(node.input):
                self.readers.setdefault(value, []).append((node, index))

    def draw(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> onnx.TensorProto:
        """Values for the weight `name`, by the operand of the operator that it is."""
        node, index = self.readers[name][0]
        if node.op_type in RENAMED:
            node, index = self.readers[node.output[0]][0]
        match node.op_type, index:
            case ("Conv" | "Gemm"), 1:
                array = self._filters(node, shape, rng)
                if node is self.classifier:
                    array *= self.classifier_gain
            case ("BatchNormalization", 1) | ("Mul", _):
                array = rng.uniform(0.8, 1.2, shape) * self._branch_scale(node)
            case "BatchNormalization", 4:
                array = rng.uniform(0.8, 1.2, shape)
            case ("BatchNormalization" | "Add" | "Conv" | "Gemm"), _:
                array = rng.normal(0, 0.1, shape)
            case other:
                raise AssertionError(f"weight {name}: no rule for operand {other}")
        return numpy_helper.from_array(array.astype(np.float32), name)

    def _filters(self, node: onnx.NodeProto, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Filters of shape (out, fan-in...): standardised, unless the fan-in is one channel, then He's variance."""
        fan_in = math.prod(shape[1:])
        after_relu = self._is_after_relu(node.input[0])
        filters = rng.standard_normal((shape[0], fan_in), dtype=np.float32)
        if after_relu and (len(shape) == 2 or shape[1] > 1):
            filters -= filters.mean(axis=1, keepdims=True)
            filters *= RELU_GAIN / math.sqrt(fan_in)
        else:
            filters *= math.sqrt((2 if after_relu else 1) / fan_in)
        return filters.reshape(shape)

    def _is_after_relu(self, value: str) -> bool:
        node = self.maker.get(value)
        while node is not None and node.op_type in TRANSPARENT:
            node = self.maker.get(node.input[0])
        return node is not None and node.op_type == "Relu"

    def _branch_scale(self, node: onnx.NodeProto) -> float:
        """Half for what ends a residual branch, so that sums over many blocks stay of one size."""
        readers = self.readers.get(node.output[0], [])
        return 0.5 if any(reader.op_type == "Sum" for reader, _ in readers) else 1.0
