"""Small networks of real shapes, and the files that onnxruntime's quantizers and its optimizer make of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

F32 = np.float32
SIZES = {"n": 2, "t": 5}
"""Of dims that have names."""


class Builder:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def const(self, value: Any, dtype: type = F32) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(value, dtype), f"c{len(self.tensors)}"))
        return self.tensors[-1].name

    def weights(self, *shape: int, scale: float | None = None) -> str:
        return self.const(self.rng.standard_normal(shape) * (scale or np.prod(shape[1:]) ** -0.5))

    def many(self, op: str, *inputs: str, count: int, **attrs: Any) -> list[str]:
        name = f"{op.lower()}_{len(self.nodes)}"
        outputs = [f"{name}_{k}" for k in range(count)]
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, **attrs))
        return outputs

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        return self.many(op, *inputs, count=1, **attrs)[0]

    def conv(self, x: str, inputs: int, outputs: int, size: int = 3, stride: int = 1, pad: int | None = None, group: int = 1) -> str:
        pads = [size // 2 if pad is None else pad] * 4
        w, term = self.weights(outputs, inputs // group, size, size), self.weights(outputs, scale=0.1)
        return self.op("Conv", x, w, term, kernel_shape=[size, size], strides=[stride, stride], pads=pads, group=group)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        made = self.op("MatMul", x, self.weights(inputs, outputs, scale=inputs**-0.5))
        return self.op("Add", made, self.weights(outputs, scale=0.1))

    def gemm(self, x: str, inputs: int, outputs: int) -> str:
        return self.op("Gemm", x, self.weights(outputs, inputs), self.weights(outputs, scale=0.1), transB=1)

    def normal(self, x: str, size: int) -> str:
        return self.op("LayerNormalization", x, self.weights(size, scale=1.0), self.weights(size, scale=0.1), axis=-1, epsilon=1e-5)

    def model(self, inputs: dict[str, tuple[type, list[int | str]]], outputs: list[str], opset: int = 17) -> onnx.ModelProto:
        declared = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(np.dtype(d)), s) for k, (d, s) in inputs.items()]
        integers = {name for node in self.nodes if node.op_type == "ArgMax" for name in node.output}
        results = [helper.make_tensor_value_info(o, TensorProto.INT64 if o in integers else TensorProto.FLOAT, None) for o in outputs]
        graph = helper.make_graph(self.nodes, "network", declared, results, self.tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model)


def residual() -> onnx.ModelProto:
    b = Builder(1)
    x = b.op("MaxPool", b.op("Relu", b.conv("x", 3, 16, stride=2)), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = b.op("Relu", b.op("Add", x, b.conv(b.op("Relu", b.conv(x, 16, 16)), 16, 16)))
    y = b.conv(b.op("Relu", b.conv(x, 16, 24, stride=2)), 24, 24)
    x = b.op("Relu", b.op("Add", y, b.conv(x, 16, 24, 1, 2, 0)))
    return b.model({"x": (F32, ["n", 3, 32, 32])}, [b.gemm(b.op("Flatten", b.op("GlobalAveragePool", x)), 24, 10)])


def depthwise() -> onnx.ModelProto:
    b = Builder(2)
    low, high = b.const(0.0), b.const(6.0)
    x = b.op("Clip", b.conv("x", 3, 16, stride=2), low, high)
    y = b.op("Clip", b.conv(b.op("Clip", b.conv(x, 16, 32, 1), low, high), 32, 32, group=32), low, high)
    x = b.op("Add", x, b.conv(y, 32, 16, 1))
    x = b.op("Mul", x, b.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))
    squeezed = b.op("Relu", b.conv(b.op("GlobalAveragePool", x), 16, 8, 1))
    x = b.op("Mul", x, b.op("Sigmoid", b.conv(squeezed, 8, 16, 1)))
    y = b.op("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    x = b.op("LeakyRelu", b.conv(b.op("Concat", x, y, axis=1), 32, 16, 1), alpha=0.1)
    x = b.gemm(b.op("ReduceMean", x, b.const([2, 3], np.int64), keepdims=0), 16, 10)
    return b.model({"x": (F32, ["n", 3, 24, 24])}, [b.op("Softmax", x, axis=-1)], opset=18)


def segmenter() -> onnx.ModelProto:
    b = Builder(3)
    x = b.op("Relu", b.conv("x", 3, 12))
    y = b.op("Relu", b.conv(b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 12, 16))
    y = b.op("InstanceNormalization", y, b.weights(16, scale=1.0), b.weights(16, scale=1.0))
    y = b.op("ConvTranspose", y, b.weights(16, 12, 2, 2, scale=0.2), b.weights(12, scale=0.1), kernel_shape=[2, 2], strides=[2, 2])
    y = b.op("Pad", b.op("Concat", y, x, axis=1), b.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64), b.const(0.0))
    y = b.op("PRelu", b.conv(y, 24, 12, pad=0), b.weights(12, 1, 1, scale=0.1))
    y = b.op("Tanh", b.conv(b.op("Resize", y, "", b.const([1, 1, 2, 2]), mode="nearest"), 12, 4))
    first, rest = b.many("Split", y, b.const([1, 3], np.int64), count=2, axis=1)
    return b.model(
        {"x": (F32, ["n", 3, 16, 16])}, [first, b.op("ArgMax", rest, axis=1, keepdims=0), b.op("DepthToSpace", y, blocksize=2)]
    )


def transformer() -> onnx.ModelProto:
    b, size, heads = Builder(4), 32, 4
    apart = b.const([0, 0, heads, size // heads], np.int64)
    x = b.op("Add", b.op("Gather", b.weights(50, size, scale=1.0), "ids"), b.weights(8, size, scale=0.3))
    x = b.normal(x, size)
    hidden = b.op("Sub", b.const(1.0), b.op("Cast", b.op("Unsqueeze", "mask", b.const([1, 2], np.int64)), to=TensorProto.FLOAT))
    hidden = b.op("Mul", hidden, b.const(-20.0))
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    q, k, v = (b.op("Transpose", b.op("Reshape", b.linear(x, size, size), apart), perm=order) for order in orders)
    scores = b.op("Add", b.op("Div", b.op("MatMul", q, k), b.const((size / heads) ** 0.5)), hidden)
    y = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    y = b.linear(b.op("Reshape", y, b.const([0, 0, size], np.int64)), size, size)
    x = b.normal(b.op("Add", y, x), size)
    y = b.linear(x, size, 64)
    bell = b.op("Add", b.op("Erf", b.op("Div", y, b.const(2**0.5))), b.const(1.0))
    y = b.op("Mul", b.op("Mul", y, bell), b.const(0.5))
    x = b.normal(b.op("Add", b.linear(y, 64, size), x), size)
    pooled = b.op("Tanh", b.gemm(b.op("Gather", x, b.const(0, np.int64), axis=1), size, size))
    return b.model({"ids": (np.int64, ["n", 8]), "mask": (np.int64, ["n", 8])}, [x, pooled])


def recurrent(op: str) -> onnx.ModelProto:
    b, terms, hidden, gates = Builder(5), 12, 16, 4 if op == "LSTM" else 3
    attrs = {"linear_before_reset": 1} if op == "GRU" else {}
    weights = [b.weights(2, gates * hidden, size, scale=0.3) for size in (terms, hidden)]
    term = b.weights(2, 2 * gates * hidden, scale=0.1)
    y = b.many(op, b.linear("x", 8, terms), *weights, term, count=2, hidden_size=hidden, direction="bidirectional", **attrs)[0]
    y = b.op("Reshape", b.op("Transpose", y, perm=[0, 2, 1, 3]), b.const([0, 0, -1], np.int64))
    return b.model({"x": (F32, ["t", "n", 8])}, [b.op("Sigmoid", b.linear(y, 2 * hidden, 6))])


def elementwise() -> onnx.ModelProto:
    b = Builder(6)
    y = b.op("MatMul", "a", "b")
    y = b.op("Where", b.op("Greater", y, b.const(0.0)), y, b.op("Mul", y, b.const(0.3)))
    y = b.op("Slice", y, b.const([1], np.int64), b.const([5], np.int64), b.const([2], np.int64))
    y = b.op("Transpose", b.op("Max", y, b.op("Min", y, b.const(0.1))), perm=[0, 2, 1])
    y = b.op("Sub", y, b.op("Exp", b.op("Neg", b.op("Abs", y))))
    y = b.op("Div", y, b.op("Sqrt", b.op("Add", b.op("Pow", y, b.const(2.0)), b.const(1.0))))
    top = b.op("Softplus", b.many("TopK", y, b.const([3], np.int64), count=2, axis=-1)[0])
    return b.model({"a": (F32, [2, 6, 5]), "b": (F32, [2, 5, 7])}, [top, b.op("Tile", y, b.const([1, 2, 1], np.int64))])


def normalized() -> onnx.ModelProto:
    b = Builder(7)
    parameters = [b.weights(8, scale=scale) for scale in (1.0, 0.1, 0.1)]
    x = b.op("BatchNormalization", b.conv("x", 4, 8), *parameters, b.const(np.arange(8) / 8 + 0.5))
    x = b.op("Elu", x)
    y = b.conv(x, 8, 8)
    x = b.op("SpaceToDepth", b.op("Mul", y, b.op("Sigmoid", y)), blocksize=2)
    x = b.op("Flatten", b.op("GlobalMaxPool", b.op("LpNormalization", x, axis=1, p=2)))
    return b.model({"x": (F32, ["n", 4, 8, 8])}, [b.op("LogSoftmax", b.linear(x, 32, 8), axis=-1)])


def sequence() -> onnx.ModelProto:
    b = Builder(8)
    x = b.op("Relu", b.op("Conv", "x", b.weights(8, 4, 3), b.weights(8, scale=0.1), kernel_shape=[3], pads=[1, 1]))
    x = b.op("Conv", x, b.weights(8, 8, 5), kernel_shape=[5], dilations=[2], pads=[4, 4])
    x = b.op("Transpose", b.op("MaxPool", x, kernel_shape=[2], strides=[2]), perm=[0, 2, 1])
    return b.model({"x": (F32, ["n", 4, 20])}, [b.linear(x, 8, 5)])


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual": residual,
    "depthwise": depthwise,
    "segmenter": segmenter,
    "transformer": transformer,
    "lstm": lambda: recurrent("LSTM"),
    "gru": lambda: recurrent("GRU"),
    "elementwise": elementwise,
    "normalized": normalized,
    "sequence": sequence,
}


def inputs_of(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    rng, found = np.random.default_rng(seed), {}
    for each in model.graph.input:
        shape = [SIZES[dim.dim_param] if dim.dim_param else dim.dim_value for dim in each.type.tensor_type.shape.dim]
        integers = each.type.tensor_type.elem_type == TensorProto.INT64
        found[each.name] = rng.integers(0, 2 if each.name == "mask" else 50, shape) if integers else rng.standard_normal(shape).astype(F32)
    return found


class _Calibration(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, model: onnx.ModelProto) -> None:
        self.inputs: Iterator[dict[str, np.ndarray]] = iter([inputs_of(model, seed) for seed in range(100, 103)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.inputs, None)


U8, S8, U16, S16 = QuantType.QUInt8, QuantType.QInt8, QuantType.QUInt16, QuantType.QInt16

STATIC: dict[str, dict[str, Any]] = {
    "u8s8": {"activation_type": U8, "weight_type": S8},
    "u8s8 channels": {"activation_type": U8, "weight_type": S8, "per_channel": True},
    "u8u8": {"activation_type": U8, "weight_type": U8, "extra_options": {"WeightSymmetric": False}},
    "s8s8": {"activation_type": S8, "weight_type": S8, "per_channel": True, "extra_options": {"ActivationSymmetric": True}},
    "all edges": {
        "activation_type": U8,
        "weight_type": S8,
        "extra_options": {"MatMulConstBOnly": False, "ForceQuantizeNoInputCheck": True, "DedicatedQDQPair": True},
    },
    "s16s8": {"activation_type": S16, "weight_type": S8, "extra_options": {"ActivationSymmetric": True}},
    "u16u8": {"activation_type": U16, "weight_type": U8, "per_channel": True},
    "s16s16": {"activation_type": S16, "weight_type": S16},
    "u8s4": {"activation_type": U8, "weight_type": QuantType.QInt4},
}
"""Options of quantize_static; those of bytes with `reduce_range`: sums of onnxruntime saturate beyond it on some CPUs."""

WIDE = ("s16s8", "u16u8", "s16s16", "u8s4")
DYNAMIC: dict[str, dict[str, Any]] = {
    "s8": {"weight_type": S8, "reduce_range": True},
    "s8 channels": {"weight_type": S8, "reduce_range": True, "per_channel": True, "extra_options": {"MatMulConstBOnly": False}},
    "u8": {"weight_type": U8, "reduce_range": True},
}
KINDS = (
    "float",
    *(f"QDQ {name}" for name in STATIC),
    *(f"QOperator {name}" for name in STATIC if name not in WIDE),
    *(f"dynamic {name}" for name in DYNAMIC),
)


def write(network: str, kind: str, folder: Path) -> Path | None:
    """The file of a network that the quantizer makes; None where it cannot."""
    source, made = folder / "float.onnx", folder / "made.onnx"
    model = NETWORKS[network]()
    onnx.save(model, source)
    form, _, options = kind.partition(" ")
    if form == "float":
        return source
    logging.disable(logging.WARNING)
    try:
        if form == "dynamic":
            quantize_dynamic(source, made, **DYNAMIC[options])
        else:
            limits = {} if options in WIDE else {"reduce_range": True}
            quantize_static(source, made, _Calibration(model), quant_format=QuantFormat[form], **limits, **STATIC[options])
    except RuntimeError as problem:
        if "unknown initializers" not in str(problem):
            raise
        return None  # it makes a node whose input it has removed, and says so
    finally:
        logging.disable(logging.NOTSET)
    return made


def optimize(source: Path, level: str = "ORT_ENABLE_EXTENDED") -> Path:
    """The file that the optimizer makes."""
    options, made = _options(level), source.with_name(f"{source.stem}_{level}.onnx")
    options.optimized_model_filepath = str(made)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return made


def peer(source: Path, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What onnxruntime computes, node by node."""
    session = onnxruntime.InferenceSession(str(source), _options("ORT_DISABLE_ALL"), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, arrays)
    return found


def _options(level: str) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return options
