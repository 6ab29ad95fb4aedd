"""A model file made ready to be quantized: one opset, constants as initializers, normalization and scales folded into convolutions.

Everything here keeps the meaning of the model in f32, up to the rounding of the folded weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, version_converter

from tc.errors import ModelError, QuantizationError, TcError, UnsupportedError
from tc.frontend.onnx.reading import whole_proto
from tc.frontend.registry import Model, check_model
from tc.ir.module import IRModule
from tc.stages import interpret

PER_CHANNEL_OPSET = 13
"""The first opset whose QuantizeLinear takes a scale for each channel."""

NARROW_OPSET = 21
"""The first opset with 16 and 4 bits, and blocks, in QuantizeLinear."""

LARGEST_FOLDED_BYTES = 1 << 26
"""A constant that a node computes from constants stays a node if it is larger."""

_IR_VERSIONS = {13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}
_QUANTIZED = {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger",
    "MatMulNBits", "QGemm", "QAttention", "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearGlobalAveragePool", "DynamicQuantizeMatMul",
}  # fmt: skip
_NOT_CONSTANT = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}


def prepare(model: Model, opset: int = PER_CHANNEL_OPSET) -> onnx.ModelProto:
    """A copy of the model, of at least this opset, simplified; ModelError or UserError for what cannot be quantized."""
    proto = read(model)
    found = next((n for n in walk_nodes(proto.graph) if n.op_type in _QUANTIZED), None)
    if found is not None:
        raise QuantizationError(f"the model is quantized already: {found.name or found.output[0]!r} is a {found.op_type}")
    if proto.functions:  # the converter would lose them
        proto = inliner.inline_local_functions(proto, convert_version=True)
    proto = raise_opset(proto, opset)
    name_nodes(proto.graph)
    constants_to_initializers(proto.graph)
    fold_constants(proto)
    fold_affine(proto.graph)
    drop_unused(proto.graph)
    separate_weights(proto.graph)
    return proto


def read(model: Model) -> onnx.ModelProto:
    """A copy of the model with all its weights inside."""
    check_model(model)
    if isinstance(model, IRModule):
        raise QuantizationError("the model is a tc IRModule; quantization reads and writes ONNX models")
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy
    proto = whole_proto(bytes(model) if isinstance(model, (bytearray, memoryview)) else model)
    if not proto.graph.output:
        raise ModelError("the model holds no graph with outputs", code="TC1001")
    return proto


def raise_opset(proto: onnx.ModelProto, least: int) -> onnx.ModelProto:
    """The model in at least the opset `least` of ONNX's own operators."""
    found = next((entry for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), None)
    if found is None:
        raise UnsupportedError("the model imports no operators of ONNX's own: there is nothing to quantize", code="TC5001")
    if found.version < least:
        before = found.version
        resized = {node.output[0] for node in walk_nodes(proto.graph) if node.op_type == "Resize"}
        try:
            proto = version_converter.convert_version(proto, least)
        except Exception as error:  # the converter raises RuntimeError and others
            why = str(error).splitlines()[0]
            raise UnsupportedError(
                f"the model's opset is {before}, {least} is needed, and onnx cannot convert it: {why}",
                code="TC5001",
            ) from error
        _keep_meaning(proto.graph, before, least, resized)
    proto.ir_version = max(proto.ir_version, _IR_VERSIONS.get(least, 10))
    return proto


def _keep_meaning(graph: onnx.GraphProto, before: int, now: int, resized: Collection[str]) -> None:
    """Write out what operators meant before, where the converter leaves that out. resized: the results of what was a Resize before."""
    taken = taken_names(graph)

    def rewritten(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        new = _NewNodes(taken)
        match node.op_type:
            case "Resize" if before < 11:
                _look_as_before(new, node, _literal_of(graph, node.input[2]), node.output[0] in resized)
            case "Hardmax" if before < 13:
                sizes, rows = new.op("Shape", node.input[0]), new.op("Flatten", node.input[0], axis=attribute(node, "axis", 1))
                new.op("Reshape", new.op("Hardmax", rows, axis=-1), sizes, result=node.output[0])
            case "GroupNormalization" if before < 21 <= now:
                _repeat_for_channels(new, node)
            case _:
                return [node]
        return new.nodes

    _rewrite_nodes(graph, rewritten)


class _NewNodes:
    """Nodes in order, whose results have names of their own."""

    def __init__(self, taken: set[str]) -> None:
        self.taken, self.nodes = taken, list[onnx.NodeProto]()

    def op(self, op_type: str, *inputs: str, result: str = "", **attrs: Any) -> str:
        """The name of the result."""
        name = result or fresh_name(f"converted.{op_type}", self.taken)
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attrs))
        return name

    def literal(self, value: np.ndarray) -> str:
        return self.op("Constant", value=numpy_helper.from_array(value))


def _look_as_before(new: _NewNodes, node: onnx.NodeProto, scales: np.ndarray | None, may_shrink: bool) -> None:
    """A resize that looks where it did before opset 11: what is nearest was the last element before a place along an axis that grows, and
    the first one behind it along an axis that shrinks. The converter leaves that out, and the default is another place."""
    x, roi, factors = node.input
    attrs = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    attrs["coordinate_transformation_mode"] = "asymmetric"
    is_nearest = attribute(node, "mode", b"nearest") == b"nearest"
    if not (is_nearest and may_shrink and (scales is None or np.any(scales < 1))):
        new.op("Resize", x, roi, factors, result=node.output[0], nearest_mode="floor", **attrs)
        return
    if scales is None or np.any(scales > 1):
        one = new.literal(np.ones(1, np.float32))
        x = new.op("Resize", x, roi, new.op("Max", factors, one), nearest_mode="floor", **attrs)
        factors = new.op("Min", factors, one)
    new.op("Resize", x, roi, factors, result=node.output[0], nearest_mode="ceil", **attrs)


def _repeat_for_channels(new: _NewNodes, node: onnx.NodeProto) -> None:
    """A normalization of groups with numbers for each channel, where there was one for each group before opset 21."""
    x, *numbers = node.input
    attrs = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    groups, second, whole = (new.literal(np.array([number], np.int64)) for number in (attrs["num_groups"], 1, -1))
    grid = new.op("Concat", groups, new.op("Div", new.op("Shape", x, start=1, end=2), groups), axis=0)
    repeated = [new.op("Reshape", new.op("Expand", new.op("Unsqueeze", each, second), grid), whole) for each in numbers]
    new.op(node.op_type, x, *repeated, result=node.output[0], **attrs)


def _rewrite_nodes(graph: onnx.GraphProto, rewritten: Callable[[onnx.NodeProto], list[onnx.NodeProto]]) -> None:
    """Put what `rewritten` says in the place of each node, those of subgraphs included."""
    for node in graph.node:
        for inner in subgraphs(node):
            _rewrite_nodes(inner, rewritten)
    _set_nodes(graph, [new for node in graph.node for new in rewritten(node)])


def _literal_of(graph: onnx.GraphProto, name: str) -> np.ndarray | None:
    """The numbers of a value that is a literal of the model."""
    made = next((node for node in walk_nodes(graph) if name in node.output), None)
    if made is not None:
        return _constant_value(made) if made.op_type == "Constant" else None
    tensor = next((each for each in graph.initializer if each.name == name), None)
    return None if tensor is None else numpy_helper.to_array(tensor)


def opset_of(proto: onnx.ModelProto) -> int:
    """The version of ONNX's own operators."""
    return next(int(entry.version) for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))


def walk_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of subgraphs included."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from walk_nodes(inner)


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The bodies of an If, Loop or Scan."""
    return [g for a in node.attribute for g in (([a.g] if a.type == onnx.AttributeProto.GRAPH else []) + list(a.graphs))]


def reads_of(node: onnx.NodeProto) -> list[str]:
    """Names of the values that a node reads, those that its subgraphs take from around included."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        for inner in graph.node:
            names += [name for name in reads_of(inner) if name not in own]
            own.update(inner.output)
        names += [value.name for value in graph.output if value.name not in own]
    return names


def use_counts(graph: onnx.GraphProto) -> Counter[str]:
    """How often each value is read; being an output of the graph is a use."""
    counts = Counter(name for node in graph.node for name in reads_of(node))
    counts.update(value.name for value in graph.output)
    return counts


def attribute(node: onnx.NodeProto, name: str, default: object = None) -> object:
    """An attribute's value."""
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every node a name of its own: reports and kept nodes go by names."""
    seen: set[str] = set()
    for node in graph.node:
        name = node.name or next((output for output in node.output if output), node.op_type)
        while name in seen:
            name += "_"
        seen.add(name)
        node.name = name


def constants_to_initializers(graph: onnx.GraphProto) -> None:
    """Constant nodes that hold a tensor become initializers."""
    kept = []
    for node in graph.node:
        value = _constant_value(node) if node.op_type == "Constant" and node.domain in ("", "ai.onnx") else None
        if value is None:
            kept.append(node)
        else:
            graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
    _set_nodes(graph, kept)


def _constant_value(node: onnx.NodeProto) -> np.ndarray | None:
    (held,) = node.attribute
    match held.name:
        case "value":
            return numpy_helper.to_array(held.t)
        case "value_float" | "value_floats":
            return np.array(helper.get_attribute_value(held), np.float32)
        case "value_int" | "value_ints":
            return np.array(helper.get_attribute_value(held), np.int64)
    return None


def fold_constants(proto: onnx.ModelProto) -> None:
    """Nodes that read constants only, and make no large ones, become constants."""
    graph = proto.graph
    known = {tensor.name: tensor for tensor in graph.initializer}
    defaults = {value.name for value in graph.input}
    kept = []
    for node in graph.node:
        is_known = bool(node.input) and all(not name or (name in known and name not in defaults) for name in node.input)
        if not is_known or node.op_type in _NOT_CONSTANT or node.domain not in ("", "ai.onnx") or subgraphs(node):
            kept.append(node)
            continue
        values = _evaluate(proto, node, known)
        if values is None:
            kept.append(node)
            continue
        for name, value in values.items():
            known[name] = numpy_helper.from_array(value, name)
            graph.initializer.append(known[name])
    _set_nodes(graph, kept)


def _evaluate(proto: onnx.ModelProto, node: onnx.NodeProto, known: dict[str, onnx.TensorProto]) -> dict[str, np.ndarray] | None:
    """The node's results, as the model itself computes them; None where that fails or they are large."""
    names = [name for name in node.output if name]
    read_bytes = sum(len(known[name].raw_data) for name in node.input if name)
    if read_bytes > LARGEST_FOLDED_BYTES:
        return None
    graph = helper.make_graph([node], "constant", [], [helper.make_empty_tensor_value_info(name) for name in names])
    graph.initializer.extend(known[name] for name in dict.fromkeys(node.input) if name)
    single = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    try:
        found = interpret(single, {})
    except TcError:  # whatever it cannot do stays a node
        return None
    for value in found.values():
        if not isinstance(value, np.ndarray) or value.dtype == object or value.nbytes > LARGEST_FOLDED_BYTES:
            return None
    return {name: found[name] for name in names}


# -- scales and shifts of channels after a convolution


def fold_affine(graph: onnx.GraphProto) -> None:
    """Batch normalization, and products and sums with one number a channel, go into the convolution before them."""
    while True:
        known = {tensor.name: tensor for tensor in graph.initializer}
        uses, convolutions = use_counts(graph), {n.output[0]: n for n in graph.node if n.op_type == "Conv"}
        for node in graph.node:
            source = next((name for name in node.input if name in convolutions and uses[name] == 1), None)
            if source is None:
                continue
            convolution = convolutions[source]
            weight = _array(known, convolution.input[1])
            if weight is None or weight.dtype != np.float32 or uses[convolution.input[1]] != 1:
                continue
            if len(convolution.input) > 2 and convolution.input[2] and convolution.input[2] not in known:
                continue  # its bias is computed
            affine = _affine_of(node, source, known, weight.shape[0], weight.ndim)
            if affine is not None:
                _fold_into(graph, convolution, node, affine, known, weight)
                break
        else:
            return


def _affine_of(
    node: onnx.NodeProto, source: str, known: dict[str, onnx.TensorProto], channels: int, rank: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and shift of each channel, float64[channels], if the node is that: y = x * factor + shift."""
    ones, zeros = np.ones(channels), np.zeros(channels)
    if node.op_type == "BatchNormalization":
        if node.input[0] != source or attribute(node, "training_mode", 0) or len([name for name in node.output if name]) > 1:
            return None
        parts = [_array(known, name) for name in node.input[1:5]]
        if any(part is None for part in parts):
            return None
        scale, bias, mean, variance = (np.asarray(part, np.float64) for part in parts)
        factor = scale / np.sqrt(variance + float(attribute(node, "epsilon", 1e-5)))  # type: ignore[arg-type]
        return factor, bias - mean * factor
    if node.op_type not in ("Add", "Mul", "Sub", "Div") or list(node.input).count(source) != 1:
        return None
    is_left = node.input[0] == source
    other = _array(known, node.input[1 if is_left else 0])
    if other is None or other.ndim > rank or (not is_left and node.op_type in ("Sub", "Div")):
        return None
    shape = (1,) * (rank - other.ndim) + other.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
        return None
    values = np.broadcast_to(other.reshape(-1).astype(np.float64), (channels,))
    match node.op_type:
        case "Add":
            return ones, values
        case "Sub":
            return ones, -values
        case "Mul":
            return values, zeros
    return (1.0 / values, zeros) if np.all(values != 0) else None


def _fold_into(
    graph: onnx.GraphProto,
    convolution: onnx.NodeProto,
    node: onnx.NodeProto,
    affine: tuple[np.ndarray, np.ndarray],
    known: dict[str, onnx.TensorProto],
    weight: np.ndarray,
) -> None:
    factor, shift = affine
    bias = np.zeros(weight.shape[0])
    if len(convolution.input) > 2 and convolution.input[2]:
        bias = numpy_helper.to_array(known[convolution.input[2]]).astype(np.float64)
    folded = (weight.astype(np.float64) * factor.reshape(-1, *[1] * (weight.ndim - 1))).astype(np.float32)
    name = f"{convolution.output[0]}.folded_bias"
    while name in known:
        name += "_"
    known[convolution.input[1]].CopyFrom(numpy_helper.from_array(folded, convolution.input[1]))
    graph.initializer.append(numpy_helper.from_array((bias * factor + shift).astype(np.float32), name))
    inputs = [convolution.input[0], convolution.input[1], name]
    del convolution.input[:]
    convolution.input.extend(inputs)
    convolution.output[0] = node.output[0]
    graph.node.remove(node)


def _array(known: dict[str, onnx.TensorProto], name: str) -> np.ndarray | None:
    return numpy_helper.to_array(known[name]) if name in known else None


# -- weights


def weight_axis(node: onnx.NodeProto, rank: int) -> int | None:
    """The axis of a product's weight along which its channels lie; None where it has none."""
    if node.op_type == "Conv" or (node.op_type == "Gemm" and attribute(node, "transB", 0)):
        return 0
    return rank - 1 if node.op_type in ("Gemm", "MatMul") and rank >= 2 else None


def separate_weights(graph: onnx.GraphProto) -> None:
    """Give a weight that products read along several axes, as tied ones are, a name for each: it has scales of its own along each."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    taken = taken_names(graph)
    names: dict[tuple[str, int], str] = {}
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or len(node.input) < 2 or node.input[1] not in known:
            continue
        name = node.input[1]
        axis = weight_axis(node, len(known[name].dims))
        if axis is None:
            continue
        if (name, axis) not in names:
            is_first = all(first != name for first, _ in names)
            names[name, axis] = name if is_first else fresh_name(f"{name}.along_{axis}", taken)
            if not is_first:
                graph.initializer.add().CopyFrom(known[name])
                graph.initializer[-1].name = names[name, axis]
        node.input[1] = names[name, axis]


def taken_names(graph: onnx.GraphProto) -> set[str]:
    """The names of all values, those of subgraphs included."""
    given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return given | {name for node in walk_nodes(graph) for name in node.output}


def fresh_name(name: str, taken: set[str]) -> str:
    """A name that is not taken; it is from now on."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def drop_unused(graph: onnx.GraphProto) -> None:
    """Remove nodes and initializers that nothing reads."""
    while True:
        uses = use_counts(graph)
        kept = [node for node in graph.node if any(uses[name] for name in node.output if name)]
        if len(kept) == len(graph.node):
            break
        _set_nodes(graph, kept)
    tensors = [tensor for tensor in graph.initializer if uses[tensor.name]]
    names = {tensor.name for tensor in graph.initializer} - {tensor.name for tensor in tensors}
    inputs = [value for value in graph.input if value.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(tensors)
    if len(inputs) != len(graph.input):
        del graph.input[:]
        graph.input.extend(inputs)


def _set_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def check_prepared(error: float) -> None:
    """TcError where the prepared model is not the one that was given."""
    if not error < 1e-3:
        raise TcError(f"converting the model to a newer opset changed its results by {error:.2g}; convert it with its exporter")
