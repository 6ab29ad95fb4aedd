"""Which edges of a graph may be quantized, and which of them have one scale.

A *site* is a node that chooses among the combinations of types that the hardware has for its operator; the choice gives each of its
operand edges a type. Operators that only move numbers (reshape, concat, maximum over a window ...) choose nothing: what they read and
what they make are one *class* with one scale, so that they run on whichever type goes through them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import onnx
from onnx import numpy_helper

from tc.errors import QuantizationError, UnsupportedError
from tc.quantization.description import INTEGERS, Combination, HardwareDescription
from tc.quantization.prepare import attribute, reads_of, weight_axis

MOVEMENT = {
    "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Split", "Identity", "Dropout", "MaxPool", "Expand",
    "Tile", "DepthToSpace", "SpaceToDepth", "Concat", "Resize", "GlobalMaxPool", "GatherElements", "GatherND",
}  # fmt: skip
"""Their results hold numbers of the first operand (of all operands: Concat) and no others. Resize only where it takes the nearest."""

ELEMENTWISE = {
    "Add", "Sub", "Mul", "Div", "Sum", "BatchNormalization", "Relu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "LeakyRelu", "Tanh",
    "Erf", "Gelu", "Elu", "Softmax", "LayerNormalization", "GlobalAveragePool", "AveragePool", "ReduceMean", "Pow", "Sqrt", "Max", "Min",
}  # fmt: skip
"""They may read 8 bits where a value has them anyway; what they compute is f32."""

LARGEST_SHAPE = 1 << 10
"""A literal of more numbers is none that shapes are made of."""

_BLIND = {"Shape", "Size"}
"""They look at no number."""


@dataclass(frozen=True)
class Edge:
    """An operand of a site. `operand`: its place among the types of a combination. `axis`: that of a weight's channels, None for what
    is computed. `class_index`: of the value's scale, -1 for a weight."""

    slot: int
    value: str
    operand: int
    axis: int | None
    class_index: int

    @property
    def is_weight(self) -> bool:
        """Whether the operand is a literal, with a scale for each channel."""
        return self.axis is not None


@dataclass(frozen=True)
class QuantizationSite:
    """A node with something to choose. `choices` is not empty; the last is f32."""

    name: str
    op_type: str
    is_contraction: bool
    choices: tuple[Combination, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True)
class ScaleClass:
    """Values with one scale. `origins`: those that something else than a movement makes; their numbers are all there are."""

    values: tuple[str, ...]
    origins: tuple[str, ...]

    @property
    def name(self) -> str:
        """That of the first value."""
        return self.origins[0] if self.origins else self.values[0]


@dataclass(frozen=True)
class OperandGroup:
    """A value and the products that multiply it with literal matrices, which nothing else reads: its channels and their rows may be scaled.

    `weights`: the name of each matrix, and the axis of its columns.
    """

    value: str
    class_index: int
    sites: tuple[str, ...]
    weights: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Topology:
    """`sites` in the order of the graph; `classes` that an edge of a site belongs to; `groups` of products of one operand.

    Scales are numbered: those of classes first, then those of the groups' operands where these are scaled by channel.
    """

    sites: tuple[QuantizationSite, ...]
    classes: tuple[ScaleClass, ...]
    groups: tuple[OperandGroup, ...] = ()

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the literal operands, each once."""
        return tuple(dict.fromkeys(edge.value for site in self.sites for edge in site.edges if edge.is_weight))

    def group_of(self, site: str) -> int | None:
        """The place of the group that a site's operand is scaled with."""
        return next((i for i, group in enumerate(self.groups) if site in group.sites), None)


def analyse(proto: onnx.ModelProto, hardware: HardwareDescription, keep: Sequence[str] = ()) -> Topology:
    """The sites and scale classes of a prepared model.

    keep: patterns of names or operators of nodes that stay in f32. UserError for a pattern that fits nothing, UnsupportedError where the
    model has nothing to quantize.
    """
    graph = proto.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    floats = float_values(proto)
    _check_keep(graph.node, keep)
    groups = _Groups()
    for node in graph.node:
        if is_movement(node):
            moved = [name for name in moved_operands(node) if name in floats]
            groups.join([*moved, *(name for name in node.output if name in floats)])
        elif node.op_type in hardware.shared:
            groups.join([name for name in node.input if name in floats and name not in weights])
    drafts = []
    for node in graph.node:
        combinations = hardware.combinations(node.op_type)
        if not combinations or any(fnmatchcase(node.name, p) or fnmatchcase(node.op_type, p) for p in keep):
            continue
        edges = _contraction_edges(node, weights, floats)
        if edges:
            drafts.append((node, True, combinations, edges))
        elif node.op_type in ELEMENTWISE:
            found = [(i, name) for i, name in enumerate(node.input) if name in floats and name not in weights]
            first = found[:1] if node.op_type in ("BatchNormalization", "LayerNormalization", "Clip", "Pow") else found
            drafts.append((node, False, combinations, tuple((i, name, 0, None) for i, name in first)))
    worth = {groups.root(name) for _, is_contraction, _, edges in drafts for _, name, _, axis in edges if is_contraction and axis is None}
    worth |= {groups.root(node.output[0]) for node in graph.node if node.op_type == "Concat"}
    worth |= {groups.root(name) for node in graph.node if node.op_type in hardware.shared for name in node.input if name in floats}
    sites: list[QuantizationSite] = []
    numbers: dict[str, int] = {}
    for node, is_contraction, combinations, edges in drafts:
        kept = []
        for slot, name, operand, axis in edges:
            root = groups.root(name)
            if axis is None and root in worth:
                kept.append(Edge(slot, name, operand, None, numbers.setdefault(root, len(numbers))))
            elif axis is not None:
                kept.append(Edge(slot, name, operand, axis, -1))
        if kept:
            sites.append(QuantizationSite(node.name, node.op_type, is_contraction, combinations, tuple(kept)))
    if not any(site.is_contraction for site in sites):
        raise UnsupportedError("nothing to quantize: the model has no Conv, Gemm or MatMul of f32 that may be", code="TC5001")
    operands = () if hardware.is_power_of_two else operand_groups(sites)
    return Topology(tuple(sites), _classes(graph, groups, numbers), operands)


def operand_groups(sites: Sequence[QuantizationSite]) -> tuple[OperandGroup, ...]:
    """Products with literal matrices by their operand; those whose matrix others read too belong to no group.

    A factor is a multiplication in f32 before the product: not for hardware that has powers of two alone.
    """
    readers = Counter(edge.value for site in sites for edge in site.edges if edge.is_weight)
    found: dict[str, list[QuantizationSite]] = {}
    for site in sites:
        if site.op_type in ("Gemm", "MatMul") and [edge.axis in (0, 1) for edge in site.edges] == [False, True]:
            both = all((choice.operand(0) in INTEGERS) == (choice.operand(1) in INTEGERS) for choice in site.choices)
            if both and readers[site.edges[1].value] == 1:
                found.setdefault(site.edges[0].value, []).append(site)
    return tuple(
        OperandGroup(
            value, same[0].edges[0].class_index, tuple(s.name for s in same), tuple((s.edges[1].value, s.edges[1].axis or 0) for s in same)
        )
        for value, same in found.items()
    )


def _check_keep(nodes: Iterable[onnx.NodeProto], keep: Sequence[str]) -> None:
    for pattern in keep:
        if not any(fnmatchcase(node.name, pattern) or fnmatchcase(node.op_type, pattern) for node in nodes):
            raise QuantizationError(f"keep: no node's name or operator fits {pattern!r}")


def _classes(graph: onnx.GraphProto, groups: _Groups, numbers: Mapping[str, int]) -> tuple[ScaleClass, ...]:
    moved = {name for node in graph.node if is_movement(node) for name in node.output}
    order = [value.name for value in graph.input] + [t.name for t in graph.initializer]
    order += [name for node in graph.node for name in node.output]
    members: dict[str, list[str]] = {root: [] for root in numbers}
    for name in dict.fromkeys(order):
        if groups.root(name) in members:
            members[groups.root(name)].append(name)
    return tuple(ScaleClass(tuple(values), tuple(v for v in values if v not in moved)) for values in members.values())


def is_movement(node: onnx.NodeProto) -> bool:
    """Whether the node's results hold numbers of its operand and no others."""
    if node.op_type == "Resize":
        return attribute(node, "mode", b"nearest") == b"nearest"
    return node.op_type in MOVEMENT and node.domain in ("", "ai.onnx")


def moved_operands(node: onnx.NodeProto) -> list[str]:
    """The operands of a movement whose numbers it moves."""
    return list(node.input) if node.op_type == "Concat" else list(node.input[:1])


def is_blind(node: onnx.NodeProto) -> bool:
    """Whether the node only looks at shapes."""
    return node.op_type in _BLIND


def _contraction_edges(
    node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto], floats: set[str]
) -> tuple[tuple[int, str, int, int | None], ...]:
    """Slot, value, operand and weight axis of the operands of a product; () where it cannot run in integers."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.domain not in ("", "ai.onnx"):
        return ()
    left, right = node.input[0], node.input[1]
    if left not in floats or right not in floats or left in weights:
        return ()
    if node.op_type == "Gemm" and {attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)} != {1.0}:
        return ()
    if node.op_type == "Gemm" and attribute(node, "transA", 0):
        return ()
    if right not in weights:
        return ((0, left, 0, None), (1, right, 1, None)) if node.op_type == "MatMul" else ()
    axis = weight_axis(node, len(weights[right].dims))
    return () if axis is None or 0 in weights[right].dims else ((0, left, 0, None), (1, right, 1, axis))


def float_values(proto: onnx.ModelProto) -> set[str]:
    """Names of the values of the main graph that are f32, as far as shape inference says so."""
    graph = proto.graph
    inferred = onnx.shape_inference.infer_shapes(_without_weights(proto)).graph
    typed = [*inferred.value_info, *inferred.input, *inferred.output]
    found = {v.name for v in typed if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    known = {v.name for v in typed if v.type.tensor_type.elem_type}
    found |= {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    known |= {t.name for t in graph.initializer}
    for node in graph.node:  # where inference fails, a result of these has the type of what they read
        if (node.op_type in MOVEMENT or node.op_type in ELEMENTWISE) and node.input[0] in found:
            found |= {name for name in node.output[:1] if name not in known}
    return found


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same with large literals as inputs: no type depends on their numbers, which inference would copy several times."""
    bare = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph, given = proto.graph, {value.name for value in proto.graph.input}
    bare.graph.name = graph.name
    for name in ("node", "input", "output", "value_info"):
        getattr(bare.graph, name).extend(getattr(graph, name))
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= LARGEST_SHAPE:
            bare.graph.initializer.append(tensor)
        elif tensor.name not in given:
            bare.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return bare


def weight_arrays(proto: onnx.ModelProto, topology: Topology) -> dict[str, np.ndarray]:
    """The literal operands by name. UserError for one that is not finite."""
    wanted = set(topology.weights)
    found = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer if t.name in wanted}
    for name, array in found.items():
        if not (math.isfinite(array.max(initial=0.0)) and math.isfinite(array.min(initial=0.0))):
            raise QuantizationError(f"the weight {name!r} holds NaN or infinity: it has no scale; --keep leaves a node as it is")
    return found


def captured(proto: onnx.ModelProto) -> set[str]:
    """Values that subgraphs read from around."""
    return {name for node in proto.graph.node for name in reads_of(node) if name not in node.input}


class _Groups:
    """Disjoint sets of names."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def root(self, name: str) -> str:
        while name in self._above:
            name = self._above[name]
        return name

    def join(self, names: Sequence[str]) -> None:
        for name in names[1:]:
            first, second = self.root(names[0]), self.root(name)
            if first != second:
                self._above[second] = first
