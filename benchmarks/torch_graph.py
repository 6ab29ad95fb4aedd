"""An ONNX graph as a torch module, node by node: what torch is given so that it runs the model that tc runs.

Only what the models of `benchmarks.half` contain. Shapes and axes that a graph has as constants are numbers here, weights are buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


@dataclass(frozen=True)
class _Node:
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


def torch_module(model: onnx.ModelProto, device: str, precise: bool = False) -> Any:
    """A `torch.nn.Module` of a model: takes its inputs in order, returns its results as a tuple. KeyError for an operator unknown here.

    `precise`: all floats are float64, those of the inputs, too: what other precisions are judged by.
    """
    import torch

    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Cast":  # what torch.compile could not trace is done here
            attributes["to"] = getattr(torch, np.dtype(helper.tensor_dtype_to_np_dtype(attributes["to"])).name)
            if precise and attributes["to"].is_floating_point:
                attributes["to"] = torch.float64
        if node.op_type == "Constant":
            constants[node.output[0]] = numpy_helper.to_array(attributes["value"])
        else:
            nodes.append(_Node(node.op_type, tuple(node.input), tuple(node.output), attributes))
    for node in nodes:
        _OPERATORS[node.kind]
    names = [value.name for value in model.graph.input]
    results = [value.name for value in model.graph.output]

    def widened(array: Any) -> Any:
        return array.double() if precise and array.is_floating_point() else array

    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places: dict[str, str] = {}
            self.numbers: dict[str, Any] = {}
            for k, (name, value) in enumerate(constants.items()):
                self.numbers[name] = value.tolist() if value.dtype.kind == "i" and value.ndim <= 1 else None
                self.places[name] = f"constant_{k}"
                self.register_buffer(f"constant_{k}", widened(torch.from_numpy(np.array(value)).to(device)))

        def forward(self, *arrays: Any) -> tuple[Any, ...]:
            values = dict(zip(names, map(widened, arrays), strict=True))

            def find(name: str) -> Any:
                return values[name] if name in values else getattr(self, self.places[name])

            for node in nodes:
                given = [find(name) if name else None for name in node.inputs]
                constant = [self.numbers.get(name) for name in node.inputs]
                made = _OPERATORS[node.kind](torch, given, constant, node.attributes)
                values.update(zip(node.outputs, made if isinstance(made, (tuple, list)) else (made,), strict=False))
            return tuple(values[name] for name in results)

    return Graph().eval()


# -- operators: torch, values, constants among them as numbers, attributes


def _unary(name: str) -> Callable[..., Any]:
    return lambda torch, x, c, a: getattr(torch, name)(x[0])


def _binary(name: str) -> Callable[..., Any]:
    return lambda torch, x, c, a: getattr(torch, name)(x[0], x[1])


def _conv(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    pads = a.get("pads", (0, 0, 0, 0))
    assert pads[0] == pads[2] and pads[1] == pads[3], "torch pads both sides alike"
    bias = x[2] if len(x) > 2 else None
    return torch.nn.functional.conv2d(x[0], x[1], bias, tuple(a.get("strides", (1, 1))), (pads[0], pads[1]), groups=a.get("group", 1))


def _max_pool(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    pads = a.get("pads", (0, 0, 0, 0))
    if pads[:2] != pads[2:]:
        x = [torch.nn.functional.pad(x[0], (pads[1], pads[3], pads[0], pads[2]), value=float("-inf"))]
        pads = (0, 0)
    return torch.nn.functional.max_pool2d(x[0], tuple(a["kernel_shape"]), tuple(a["strides"]), tuple(pads[:2]))


def _average_pool(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return torch.nn.functional.avg_pool2d(x[0], tuple(a["kernel_shape"]), tuple(a.get("strides", (1, 1))))


def _norm(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return torch.nn.functional.batch_norm(x[0], x[3], x[4], x[1], x[2], False, 0.0, a.get("epsilon", 1e-5))


def _layer_norm(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return torch.nn.functional.layer_norm(x[0], x[1].shape, x[1], x[2] if len(x) > 2 else None, a.get("epsilon", 1e-5))


def _gemm(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    assert a.get("alpha", 1.0) == a.get("beta", 1.0) == 1.0, "plain products alone are here"
    left = x[0].t() if a.get("transA") else x[0]
    right = x[1].t() if a.get("transB") else x[1]
    return torch.addmm(x[2], left, right) if len(x) > 2 else left @ right


def _cast(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return x[0].to(a["to"])


def _slice(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    axes = c[3] if len(x) > 3 and c[3] is not None else range(len(c[1]))
    steps = c[4] if len(x) > 4 and c[4] is not None else [1] * len(c[1])
    places: list[Any] = [slice(None)] * x[0].dim()
    for axis, start, end, step in zip(axes, c[1], c[2], steps, strict=True):
        places[axis] = slice(start, min(end, 2**62), step)
    return x[0][tuple(places)]


def _unsqueeze(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    found, axes = x[0], c[1] if len(x) > 1 else a["axes"]
    for axis in sorted(axes):
        found = found.unsqueeze(axis)
    return found


def _squeeze(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return x[0].squeeze(tuple(c[1] if len(x) > 1 else a["axes"]))


def _gather(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    axis = a.get("axis", 0)
    if isinstance(c[1], int):
        return x[0].select(axis, c[1])
    if axis == 0:
        return torch.nn.functional.embedding(x[1], x[0])
    return torch.index_select(x[0], axis, x[1].reshape(-1)).reshape((*x[0].shape[:axis], *x[1].shape, *x[0].shape[axis + 1 :]))


def _reshape(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return x[0].reshape([x[0].shape[k] if size == 0 else size for k, size in enumerate(c[1])])


def _split(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return torch.split(x[0], c[1], a.get("axis", 0))


def _clip(torch: Any, x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> Any:
    return torch.clamp(x[0], x[1], x[2] if len(x) > 2 else None)


def _axes(x: Sequence[Any], c: Sequence[Any], a: Mapping[str, Any]) -> tuple[tuple[int, ...], bool]:
    return tuple(c[1] if len(x) > 1 else a["axes"]), bool(a.get("keepdims", 1))


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": _binary("add"), "Sub": _binary("sub"), "Mul": _binary("mul"), "Div": _binary("div"), "Pow": _binary("pow"),
    "MatMul": _binary("matmul"), "LessOrEqual": _binary("le"), "Relu": _unary("relu"), "Sigmoid": _unary("sigmoid"), "Erf": _unary("erf"),
    "Cos": _unary("cos"), "Sin": _unary("sin"), "Neg": _unary("neg"), "Sqrt": _unary("sqrt"), "Tanh": _unary("tanh"),
    "Conv": _conv, "MaxPool": _max_pool, "AveragePool": _average_pool, "BatchNormalization": _norm, "LayerNormalization": _layer_norm,
    "Gemm": _gemm, "Cast": _cast, "Slice": _slice, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Gather": _gather, "Reshape": _reshape,
    "Split": _split, "Clip": _clip, "Max": _binary("maximum"),
    "Sum": lambda torch, x, c, a: x[0] + x[1],
    "Concat": lambda torch, x, c, a: torch.cat(list(x), a["axis"]),
    "Expand": lambda torch, x, c, a: x[0].expand(torch.broadcast_shapes(x[0].shape, tuple(c[1]))),
    "Softmax": lambda torch, x, c, a: torch.softmax(x[0], a.get("axis", -1)),
    "Transpose": lambda torch, x, c, a: x[0].permute(tuple(a["perm"])),
    "Where": lambda torch, x, c, a: torch.where(x[0], x[1], x[2]),
    "ReduceMean": lambda torch, x, c, a: torch.mean(x[0], *_axes(x, c, a)),
    "ReduceSum": lambda torch, x, c, a: torch.sum(x[0], *_axes(x, c, a)),
    "ReduceL2": lambda torch, x, c, a: torch.linalg.vector_norm(x[0], 2, *_axes(x, c, a)),
}  # fmt: skip
