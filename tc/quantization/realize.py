"""A strategy as a standard ONNX file: QuantizeLinear and DequantizeLinear around what runs in integers.

    y = conv(x, w, b)   =>   y = conv(dq(q(x)), dq(w8), dq(b32))

Weights are stored in 8 bits with a scale for each channel, biases in 32 bits with the product of the scales of operand and weight; what
is added to a MatMul's results goes into the sum after it, where that adds a literal. A migrated operand is divided by its factors by a Mul.
Where all that read the result of a movement read it in one integer type, what it moves is quantized before it, and its result again
with the same scale: so it moves bytes. An edge in bf16 is a pair of casts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tc.quantization.description import INTEGERS
from tc.quantization.prepare import NARROW_OPSET, drop_unused, fresh_name, opset_of, raise_opset, taken_names
from tc.quantization.scales import times_rows
from tc.quantization.strategy import Strategy, StrategyNumbers, scale_of
from tc.quantization.thresholds import Quantizer, quantize_weight
from tc.quantization.topology import (
    Edge,
    QuantizationSite,
    Topology,
    captured,
    is_blind,
    is_movement,
    moved_operands,
    weight_arrays,
)

_STORED = {"u8": np.uint8, "s8": np.int8, "s16": np.int16}
_LARGEST_BIAS = 2**30


def realize(
    proto: onnx.ModelProto,
    topology: Topology,
    strategy: Strategy,
    numbers: StrategyNumbers,
) -> onnx.ModelProto:
    """The prepared model with what `strategy` says in it; its inputs and outputs are those of the model."""
    model = _Writer(proto, topology, strategy, numbers).write()
    is_narrow = any(dtype == "s16" for dtype in _dtypes_used(topology, strategy))
    return raise_opset(model, NARROW_OPSET) if is_narrow and opset_of(model) < NARROW_OPSET else model


def _dtypes_used(topology: Topology, strategy: Strategy) -> set[str]:
    return {strategy.combination(site).operand(edge.operand) for site in topology.sites for edge in site.edges}


@dataclass(frozen=True)
class _Plan:
    """What each edge is read as: (node, slot) -> the scale and integer type; what is f32 or bf16 is not there. `migrated`: the same of
    operands that are divided by factors first."""

    integers: Mapping[tuple[str, int], tuple[int, str]]
    migrated: Mapping[tuple[str, int], tuple[int, str]]


class _Writer:
    def __init__(
        self,
        proto: onnx.ModelProto,
        topology: Topology,
        strategy: Strategy,
        numbers: StrategyNumbers,
    ) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(proto)
        self.graph = self.model.graph
        self.topology, self.strategy, self.numbers = topology, strategy, numbers
        self.nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self.graph.node]
        self.by_name = {node.name: node for node in self.nodes}
        self.producers = {name: node for node in self.nodes for name in node.output if name}
        self.readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in self.nodes:
            for slot, name in enumerate(node.input):
                self.readers.setdefault(name, []).append((node, slot))
        self.fixed = {value.name for value in self.graph.output} | captured(proto)
        self.tensors = {tensor.name: tensor for tensor in self.graph.initializer}
        self.arrays = weight_arrays(proto, topology)
        self.taken = taken_names(self.graph)
        self.plan = self._plan()
        self.moves: dict[str, tuple[int, str] | None] = {}
        self.out: list[onnx.NodeProto] = []
        self.made: dict[tuple[str, object], str] = {}
        self.added: dict[str, onnx.NodeProto] = {}

    def write(self) -> onnx.ModelProto:
        sites = {site.name: site for site in self.topology.sites}
        moved: dict[str, tuple[int, str]] = {}
        for node in self.nodes:
            key = self._moved_as(node)
            if key is not None:
                moved[node.name] = key
        for node in self.nodes:
            reads = list(node.input)
            if node.name in moved:
                for slot, name in enumerate(reads):
                    if name in moved_operands(node):
                        reads[slot] = self._dequantized(name, moved[node.name])
            elif node.name in sites:
                self._corrected(node, reads)
                self._operands(sites[node.name], node, reads)
            del node.input[:]
            node.input.extend(reads)
            self.out.append(node)
            if node.name in self.added:
                self.out.append(self.added[node.name])
        del self.graph.node[:]
        self.graph.node.extend(self.out)
        del self.graph.value_info[:]
        drop_unused(self.graph)
        return self.model

    # -- what is read as what

    def _plan(self) -> _Plan:
        integers: dict[tuple[str, int], tuple[int, str]] = {}
        migrated: dict[tuple[str, int], tuple[int, str]] = {}
        for site in self.topology.sites:
            combination = self.strategy.combination(site)
            for edge in site.edges:
                dtype = combination.operand(edge.operand)
                if dtype in INTEGERS and not edge.is_weight:
                    scale = scale_of(self.topology, self.strategy, site, edge)
                    (integers if scale == edge.class_index else migrated)[site.name, edge.slot] = (scale, dtype)
        return _Plan(integers, migrated)

    def _moved_as(self, node: onnx.NodeProto) -> tuple[int, str] | None:
        """The class and type in which a movement moves, where all that read its results read them so."""
        if not is_movement(node):
            return None
        if node.name not in self.moves:
            self.moves[node.name] = self._find_move(node)
        return self.moves[node.name]

    def _find_move(self, node: onnx.NodeProto) -> tuple[int, str] | None:
        keys = {self._read_as(name) for name in node.output if name}
        key = next(iter(keys)) if len(keys) == 1 else None
        if key is None or any(name in self.tensors for name in moved_operands(node)):
            return None
        return key

    def _read_as(self, name: str) -> tuple[int, str] | None:
        """The class and type that everything reads the value in; None if they differ, or one reads it in f32."""
        if name in self.fixed:
            return None
        found: set[tuple[int, str] | None] = set()
        for node, slot in self.readers.get(name, []):
            if is_blind(node):
                continue
            if is_movement(node) and name in moved_operands(node):
                found.add(self._moved_as(node))
            else:
                found.add(self.plan.integers.get((node.name, slot)))
        return next(iter(found)) if len(found) == 1 else None

    # -- what is written

    def _operands(self, site: QuantizationSite, node: onnx.NodeProto, reads: list[str]) -> None:
        combination = self.strategy.combination(site)
        for edge in site.edges:
            dtype = combination.operand(edge.operand)
            if dtype == "bf16":
                reads[edge.slot] = self._rounded(edge.value)
            elif dtype in INTEGERS and edge.is_weight:
                reads[edge.slot] = self._weight(edge, self.plan.migrated.get((site.name, 0)))
            elif (site.name, edge.slot) in self.plan.migrated:
                key = self.plan.migrated[site.name, edge.slot]
                reads[edge.slot] = self._dequantized(self._divided(edge.value, key[0]), key)
            elif dtype in INTEGERS:
                reads[edge.slot] = self._dequantized(edge.value, (edge.class_index, dtype))
        weight = next((edge for edge in site.edges if edge.is_weight), None)
        operand = self.plan.integers.get((site.name, 0)) or self.plan.migrated.get((site.name, 0))
        if weight is not None and operand is not None and node.op_type in ("Conv", "Gemm") and len(reads) > 2 and reads[2]:
            reads[2] = self._bias(reads[2], weight, self.numbers.quantizers[operand])

    def _corrected(self, node: onnx.NodeProto, reads: list[str]) -> None:
        """Have the node's bias, the sum after it, or a sum that is added, add its correction too."""
        shift = self.numbers.corrections.get(node.name)
        if shift is None:
            return
        bias = reads[2] if len(reads) > 2 else ""
        if node.op_type != "MatMul" and (not bias or bias in self.tensors):
            reads[2:] = [self._shifted(bias, shift, node.output[0])]
            return
        (reader, slot), *others = self.readers.get(node.output[0], [(node, -1)])
        follows = not others and reader.op_type == "Add" and node.output[0] not in self.fixed
        if follows and reader.input[1 - slot] in self.tensors and self._is_row(reader.input[1 - slot], len(shift)):
            reader.input[1 - slot] = self._shifted(reader.input[1 - slot], shift, node.output[0])
            return
        shape = (len(shift), *[1] * (self._rank_of_results(node) - 2)) if node.op_type == "Conv" else shift.shape
        added = self._literal(f"{node.output[0]}.correction", shift.reshape(shape).astype(np.float32))
        name, node.output[0] = node.output[0], self._fresh(f"{node.output[0]}.uncorrected")
        self.added[node.name] = helper.make_node("Add", [node.output[0], added], [name], name=self._fresh(f"{name}.corrected"))

    def _rank_of_results(self, node: onnx.NodeProto) -> int:
        return len(self.tensors[node.input[1]].dims)

    def _is_row(self, name: str, count: int) -> bool:
        """Whether a literal is one number for each channel of a product's results, or one for all."""
        dims = self.tensors[name].dims
        return all(size == 1 for size in dims[:-1]) and (not dims or dims[-1] in (1, count))

    def _shifted(self, bias: str, shift: np.ndarray, base: str) -> str:
        """A literal: the bias, if there is one, and the shift."""
        given = numpy_helper.to_array(self.tensors[bias]).astype(np.float64) if bias else np.zeros(())
        name = self._literal(f"{bias or base}.corrected", (given + shift).astype(np.float32))
        self.tensors[name] = self.graph.initializer[-1]
        return name

    def _dequantized(self, name: str, key: tuple[int, str]) -> str:
        """The value, quantized and back."""
        if (name, key) in self.made:
            return self.made[name, key]
        quantizer = self.numbers.quantizers[key]
        scale = self._literal(f"{name}.scale", np.array(quantizer.scale, np.float32))
        zero = self._literal(f"{name}.zero", np.array(quantizer.zero, _STORED[quantizer.dtype]))
        stored, back = self._fresh(f"{name}.quantized"), self._fresh(f"{name}.dequantized")
        self.out.append(helper.make_node("QuantizeLinear", [name, scale, zero], [stored], name=stored))
        self.out.append(helper.make_node("DequantizeLinear", [stored, scale, zero], [back], name=back))
        self.made[name, key] = back
        return back

    def _factors(self, scale: int) -> np.ndarray:
        return self.numbers.factors[scale - len(self.topology.classes)]

    def _divided(self, name: str, scale: int) -> str:
        """The value, each channel over its factor."""
        if (name, scale) not in self.made:
            factors = self._literal(f"{name}.factors", (1 / self._factors(scale)).astype(np.float32))
            self.made[name, scale] = self._fresh(f"{name}.migrated")
            self.out.append(helper.make_node("Mul", [name, factors], [self.made[name, scale]], name=self.made[name, scale]))
        return self.made[name, scale]

    def _weight(self, edge: Edge, migrated: tuple[int, str] | None) -> str:
        if (edge.value, "weight") in self.made:
            return self.made[edge.value, "weight"]
        assert edge.axis is not None
        scales, array = self.numbers.weight_scales[edge.value], self.arrays[edge.value]
        if migrated is not None:
            array = times_rows(array, self._factors(migrated[0]), edge.axis)
        stored = self._literal(f"{edge.value}.quantized", quantize_weight(array, scales, edge.axis))
        scale = self._literal(f"{edge.value}.scale", scales)
        zero = self._literal(f"{edge.value}.zero", np.zeros(scales.shape, np.int8))
        back = self._fresh(f"{edge.value}.dequantized")
        self.out.append(helper.make_node("DequantizeLinear", [stored, scale, zero], [back], name=back, axis=edge.axis))
        self.made[edge.value, "weight"] = back
        return back

    def _bias(self, name: str, weight: Edge, operand: Quantizer) -> str:
        """The bias in 32 bits; as it is where it is computed, has another shape or does not fit."""
        scales = self.numbers.weight_scales[weight.value]
        if name not in self.tensors or tuple(self.tensors[name].dims) != scales.shape:
            return name
        key = (name, (weight.value, operand))
        if key in self.made:
            return self.made[key]
        product = (np.float32(operand.scale) * scales).astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            exact = numpy_helper.to_array(self.tensors[name]).astype(np.float64) / product.astype(np.float64)
        if not np.all(np.abs(exact) < _LARGEST_BIAS):
            return name
        stored = self._literal(f"{name}.quantized", np.rint(exact).astype(np.int32))
        scale = self._literal(f"{name}.scale", product)
        back = self._fresh(f"{name}.dequantized")
        self.out.append(helper.make_node("DequantizeLinear", [stored, scale], [back], name=back, axis=0))
        self.made[key] = back
        return back

    def _rounded(self, name: str) -> str:
        """The value rounded to bf16; a literal is stored so."""
        if (name, "bf16") in self.made:
            return self.made[name, "bf16"]
        narrow, back = self._fresh(f"{name}.bf16"), self._fresh(f"{name}.rounded")
        if name in self.tensors:
            array = numpy_helper.to_array(self.tensors[name])
            values = array.astype(ml_dtypes.bfloat16).tobytes()
            self.graph.initializer.append(helper.make_tensor(narrow, TensorProto.BFLOAT16, array.shape, values, raw=True))
        else:
            self.out.append(helper.make_node("Cast", [name], [narrow], name=narrow, to=TensorProto.BFLOAT16))
        self.out.append(helper.make_node("Cast", [narrow], [back], name=back, to=TensorProto.FLOAT))
        self.made[name, "bf16"] = back
        return back

    def _literal(self, name: str, value: np.ndarray) -> str:
        name = self._fresh(name)
        self.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def _fresh(self, name: str) -> str:
        return fresh_name(name, self.taken)
