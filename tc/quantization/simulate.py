"""The simulated graph: the model with every edge quantized and back, or not, as its inputs say.

Scales, zero points, limits and a switch for each edge are inputs of the run, so the graph is compiled once and serves every guess.

    y = conv(x, w)   =>   x8 = (clip(round(x / scale) + zero, low, high) - zero) * scale
                          y = conv(where(switch == 1, x8, x), where(switch' == 1, w8, w)) + bias

Operands that may be migrated are divided by factors before they are quantized, and the rows of their weights multiplied; 1 for none.

Source: simulated quantization of HAGO and of Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference".
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tc.quantization.description import INTEGERS
from tc.quantization.prepare import use_counts
from tc.quantization.strategy import Strategy, StrategyNumbers
from tc.quantization.thresholds import Quantizer
from tc.quantization.topology import Edge, QuantizationSite, Topology

PREFIX = "tc.quantization."
"""Of all names that are added."""

LEVELS = ("scales", "zeros", "lows", "highs")


@dataclass(frozen=True)
class SimulatedGraph:
    """`model` has the inputs of the given one and those of `controls`. `quantizers`: (scale, dtype) by place in the levels, each group with
    its own; `switches`: (site, slot) by place; `channels`: for each weight edge its part of the input of weight scales; `biases`: for each
    site with a literal weight its part of what is added to the results; `factors`: for each group its part of what operands are divided
    by."""

    model: onnx.ModelProto
    topology: Topology
    quantizers: tuple[tuple[int, str], ...]
    switches: tuple[tuple[str, int], ...]
    channels: Mapping[tuple[str, int], slice]
    weight_edges: Mapping[tuple[str, int], str]
    biases: Mapping[str, slice]
    factors: tuple[slice, ...]

    def controls(self, strategy: Strategy, numbers: StrategyNumbers) -> dict[str, np.ndarray]:
        """The added inputs that make the model compute what `strategy` says."""
        used = [self._quantizer(numbers, *key) for key in self.quantizers]
        table = [(q.scale, q.zero, *q.limits) if q else (1.0, 0, 0, 0) for q in used]
        levels = np.array(table, np.float32).reshape(-1, 4)
        arrays = {PREFIX + name: np.ascontiguousarray(levels[:, i]) for i, name in enumerate(LEVELS)}
        modes = np.zeros(len(self.switches), np.float32)
        sites = {site.name: site for site in self.topology.sites}
        for place, (name, slot) in enumerate(self.switches):
            site = sites[name]
            edge = next(edge for edge in site.edges if edge.slot == slot)
            dtype = strategy.combination(site).operand(edge.operand)
            modes[place] = 0 if dtype == "f32" else 1 + _dtypes(site, edge).index(dtype)
        arrays[PREFIX + "switches"] = modes
        total = max((part.stop for part in self.channels.values()), default=0)
        scales = np.ones(total, np.float32)
        for key, part in self.channels.items():
            scales[part] = numbers.weight_scales[self.weight_edges[key]]
        if total:
            arrays[PREFIX + "weight_scales"] = scales
            biases = np.zeros(max(part.stop for part in self.biases.values()), np.float32)
            for name, correction in numbers.corrections.items():
                biases[self.biases[name]] = correction
            arrays[PREFIX + "biases"] = biases
        if self.factors:
            factors = np.ones(self.factors[-1].stop, np.float32)
            for place, values in numbers.factors.items():
                factors[self.factors[place]] = values
            arrays |= {PREFIX + "factors": factors, PREFIX + "quotients": (1 / factors).astype(np.float32)}
        return arrays

    def _quantizer(self, numbers: StrategyNumbers, scale: int, dtype: str) -> Quantizer | None:
        """What a scale's numbers are, those of the class where a group is not migrated; None where nothing is stored so."""
        place = scale - len(self.topology.classes)
        own = numbers.quantizers.get((scale, dtype))
        return own or (None if place < 0 else numbers.quantizers.get((self.topology.groups[place].class_index, dtype)))


def _dtypes(site: QuantizationSite, edge: Edge) -> list[str]:
    """The types but f32 that an edge may have, in the order of its switch."""
    found = dict.fromkeys(choice.operand(edge.operand) for choice in site.choices)
    return [dtype for dtype in found if dtype != "f32"]


def simulate(proto: onnx.ModelProto, topology: Topology) -> SimulatedGraph:
    """The simulated graph of a prepared model."""
    return _Builder(proto, topology).build()


class _Builder:
    def __init__(self, proto: onnx.ModelProto, topology: Topology) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(proto)
        self.topology = topology
        self.graph = self.model.graph
        self.uses = use_counts(self.graph)
        self.weights = {t.name: tuple(t.dims) for t in self.graph.initializer}
        self.quantizers: list[tuple[int, str]] = []
        self.switches: list[tuple[str, int]] = []
        self.channels: dict[tuple[str, int], slice] = {}
        self.weight_edges: dict[tuple[str, int], str] = {}
        self.made: dict[tuple[str, str], str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: set[str] = set()
        self.total = 0
        self.biases: dict[str, slice] = {}
        self.biased = 0
        sizes = [self.weights[group.weights[0][0]][1 - group.weights[0][1]] for group in topology.groups]
        ends = np.cumsum([0, *sizes]).tolist()
        self.factors = tuple(slice(start, end) for start, end in itertools.pairwise(ends))

    def build(self) -> SimulatedGraph:
        sites = {site.name: site for site in self.topology.sites}
        originals = list(self.graph.node)
        for node in originals:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for edge in sites[node.name].edges if node.name in sites else ():
                copy.input[edge.slot] = self._edge(sites[node.name], edge)
            self.nodes.append(copy)
            if node.name in sites:
                self._biased(sites[node.name], copy)
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        for name in LEVELS:
            self._input(name, len(self.quantizers))
        self._input("switches", len(self.switches))
        if self.total:
            self._input("weight_scales", self.total)
            self._input("biases", self.biased)
        if self.factors:
            self._input("factors", self.factors[-1].stop)
            self._input("quotients", self.factors[-1].stop)
        return SimulatedGraph(
            self.model, self.topology, tuple(self.quantizers), tuple(self.switches), self.channels, self.weight_edges, self.biases,
            self.factors,
        )  # fmt: skip

    def _biased(self, site: QuantizationSite, node: onnx.NodeProto) -> None:
        """Add an input to the results of a product with a literal weight, channel by channel."""
        weight = next((edge for edge in site.edges if edge.is_weight), None)
        if weight is None:
            return
        shape = self.weights[weight.value]
        count = shape[weight.axis or 0]
        self.biases[site.name] = slice(self.biased, self.biased + count)
        added = self._part("biases", self.biased, self.biased + count)
        self.biased += count
        if site.op_type == "Conv":
            added = self._op("Reshape", added, self._constant(np.array([count, *[1] * (len(shape) - 2)], np.int64)))
        name, node.output[0] = node.output[0], f"{PREFIX}sums.{node.output[0]}"
        self.nodes.append(helper.make_node("Add", [node.output[0], added], [name], name=f"{PREFIX}add.{name}"))

    def _edge(self, site: QuantizationSite, edge: Edge) -> str:
        """The value that the site reads there."""
        place = len(self.switches)
        self.switches.append((site.name, edge.slot))
        switch = self._element("switches", place)
        value = edge.value
        for number, dtype in enumerate(_dtypes(site, edge), start=1):
            if dtype == "bf16":
                other = self._rounded(edge.value)
            elif edge.is_weight:
                other = self._weight(site, edge, dtype)
            else:
                other = self._fake(site, edge, dtype)
            is_on = self._op("Equal", switch, self._constant(np.array(number, np.float32)))
            value = self._op("Where", is_on, other, value)
        return value

    def _rounded(self, value: str) -> str:
        if (value, "bf16") not in self.made:
            narrow = self._op("Cast", value, to=TensorProto.BFLOAT16)
            self.made[value, "bf16"] = self._op("Cast", narrow, to=TensorProto.FLOAT)
        return self.made[value, "bf16"]

    def _fake(self, site: QuantizationSite, edge: Edge, dtype: str) -> str:
        place = self.topology.group_of(site.name)
        key = (edge.class_index if place is None else len(self.topology.classes) + place, dtype)
        if (edge.value, str(key)) in self.made:
            return self.made[edge.value, str(key)]
        if key not in self.quantizers:
            self.quantizers.append(key)
        value = edge.value if place is None else self._op("Mul", edge.value, self._factors("quotients", place))
        scale, zero, low, high = (self._element(name, self.quantizers.index(key)) for name in LEVELS)
        stored = self._op("Add", self._op("Round", self._op("Div", value, scale)), zero)
        clipped = self._op("Min", self._op("Max", stored, low), high)
        self.made[edge.value, str(key)] = self._op("Mul", self._op("Sub", clipped, zero), scale)
        return self.made[edge.value, str(key)]

    def _factors(self, name: str, place: int) -> str:
        return self._part(name, self.factors[place].start, self.factors[place].stop)

    def _weight(self, site: QuantizationSite, edge: Edge, dtype: str) -> str:
        assert edge.axis is not None
        shape = self.weights[edge.value]
        count = shape[edge.axis]
        self.channels[site.name, edge.slot] = slice(self.total, self.total + count)
        self.weight_edges[site.name, edge.slot] = edge.value
        flat = self._part("weight_scales", self.total, self.total + count)
        self.total += count
        wanted = [1] * len(shape)
        wanted[edge.axis] = count
        scale = self._op("Reshape", flat, self._constant(np.array(wanted, np.int64)))
        largest, value, place = float(INTEGERS[dtype][1]), edge.value, self.topology.group_of(site.name)
        if place is not None:
            along = [1, 1]
            along[1 - edge.axis] = -1
            value = self._op("Mul", value, self._op("Reshape", self._factors("factors", place), self._constant(np.array(along, np.int64))))
        stored = self._op("Round", self._op("Div", value, scale))
        clipped = self._op("Min", self._op("Max", stored, self._constant(np.float32(-largest))), self._constant(np.float32(largest)))
        return self._op("Mul", clipped, scale)

    def _element(self, name: str, place: int) -> str:
        return self._part(name, place, place + 1)

    def _part(self, name: str, start: int, end: int) -> str:
        """Elements of an added input. By a slice: what is gathered is read again inside every product."""
        bounds = (self._constant(np.array([bound], np.int64)) for bound in (start, end))
        return self._op("Slice", PREFIX + name, *bounds)

    def _op(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        name = f"{PREFIX}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attrs))
        return name

    def _constant(self, value: np.ndarray | np.generic) -> str:
        array = np.asarray(value)
        name = f"{PREFIX}{array.dtype}.{'_'.join(map(str, array.shape))}.{array.reshape(-1).tolist()}"
        if name not in self.constants:
            self.constants.add(name)
            self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _input(self, name: str, size: int) -> None:
        self.graph.input.append(helper.make_tensor_value_info(PREFIX + name, TensorProto.FLOAT, [size]))
