"""The modes that need no calibration: activations quantized as they come, or only the weights stored in fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tc.errors import QuantizationError, UnsupportedError
from tc.quantization.description import HardwareDescription
from tc.quantization.prepare import NARROW_OPSET, attribute, drop_unused, fresh_name, opset_of, raise_opset, taken_names
from tc.quantization.thresholds import quantize_weight, weight_scales
from tc.quantization.topology import Edge, analyse, weight_arrays

_LARGEST = {8: 127, 4: 7}
_TINY = float(np.finfo(np.float32).tiny)


def quantize_dynamic(
    proto: onnx.ModelProto, hardware: HardwareDescription, keep: Sequence[str] = (), granularity: str = "tensor"
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The prepared model with integer products of literal weights, their other operand quantized when it is there, and remarks.

    granularity: "tensor" writes DynamicQuantizeLinear, one scale for all of the operand; "row" one for each row, symmetric. Gemm and
    MatMul only: a convolution has no rows, and stays in f32, and so does what has sums that 32 bits may not hold.
    """
    writer = _LiteralWriter(proto, hardware, keep, ("Gemm", "MatMul"))
    wide = [node.name for node, edge in writer.sites if _may_overflow(*_columns(writer, node, edge), granularity)]
    if len(wide) == len(writer.sites):
        raise UnsupportedError(f"nothing to quantize in this mode: sums of {', '.join(wide)} may exceed 32 bits", code="TC5001")
    for node, edge in writer.sites:
        if node.name not in wide:
            writer.replace(node, lambda n, e=edge: _dynamic_product(writer, n, e, granularity))  # type: ignore[misc]
    return writer.finish(), tuple(f"{name} stays in f32: sums of its products may exceed 32 bits" for name in wide)


def _columns(writer: _LiteralWriter, node: onnx.NodeProto, edge: Edge) -> tuple[np.ndarray, int]:
    """The weight of a product as its right operand, and the axis that has the scales."""
    array, axis = writer.arrays[edge.value], edge.axis or 0
    return (np.ascontiguousarray(array.T), 1) if node.op_type == "Gemm" and attribute(node, "transB", 0) else (array, axis)


def _may_overflow(array: np.ndarray, axis: int, granularity: str) -> bool:
    """Whether a sum of products with the quantized weight may not fit into 32 bits, whatever the other operand is."""
    most = 127 if granularity == "row" else 255
    if most * 127 * (array.shape[-2] if array.ndim > 1 else array.size) < 2**31:
        return False
    quantized = np.abs(quantize_weight(array, weight_scales(array, axis, "minmax"), axis).astype(np.int64))
    sums = quantized.sum(-2 if array.ndim > 1 else 0)
    return bool(most * sums.max(initial=0) >= 2**31)


def quantize_weights(
    proto: onnx.ModelProto, hardware: HardwareDescription, keep: Sequence[str] = (), bits: int = 8, block: int | None = None
) -> onnx.ModelProto:
    """The prepared model with its literal weights in `bits` (8 or 4), and everything computed in f32.

    block: how many numbers along the summed axis have one scale; None: all of them with 8 bits, 32 with 4. Convolutions have a scale for
    each channel, and stay in f32 where `bits` is 4.
    """
    if isinstance(bits, bool) or bits not in _LARGEST:
        raise QuantizationError(f"bits is {bits!r}, must be 8 or 4")
    if block is not None and (isinstance(block, bool) or not isinstance(block, (int, np.integer)) or block < 2):
        raise QuantizationError(f"block is {block!r}, must be a whole number, at least 2")
    block = 32 if block is None and bits == 4 else block
    writer = _LiteralWriter(proto, hardware, keep, ("Gemm", "MatMul") if bits == 4 else ("Conv", "Gemm", "MatMul"))
    for node, edge in writer.sites:
        is_blocked = block is not None and node.op_type != "Conv"
        writer.replace(node, lambda n, e=edge, b=is_blocked: _stored_weight(writer, n, e, bits, block if b else None))  # type: ignore[misc]
    model = writer.finish()
    return raise_opset(model, NARROW_OPSET) if block is not None and opset_of(model) < NARROW_OPSET else model


class _LiteralWriter:
    """Replaces nodes of a copy of the model, one by one; literals that several of them share are stored once."""

    def __init__(self, proto: onnx.ModelProto, hardware: HardwareDescription, keep: Sequence[str], ops: Sequence[str]) -> None:
        topology = analyse(proto, hardware, keep)
        self.model = onnx.ModelProto()
        self.model.CopyFrom(proto)
        self.arrays = weight_arrays(proto, topology)
        by_name = {node.name: node for node in self.model.graph.node}
        self.sites: list[tuple[onnx.NodeProto, Edge]] = []
        for site in topology.sites:
            weight = next((edge for edge in site.edges if edge.is_weight), None)
            if weight is not None and site.op_type in ops:
                self.sites.append((by_name[site.name], weight))
        if not self.sites:
            raise UnsupportedError(f"nothing to quantize in this mode: no {' or '.join(ops)} with literal weights", code="TC5001")
        self.taken = taken_names(self.model.graph)
        self.new: dict[str, list[onnx.NodeProto]] = {}
        self.made: dict[tuple[object, ...], str] = {}
        self.before: list[onnx.NodeProto] = []
        self._pending: list[onnx.NodeProto] = []

    def replace(self, node: onnx.NodeProto, make: Callable[[onnx.NodeProto], None]) -> None:
        """Have `make` write the nodes that stand for this one."""
        self._pending = []
        make(node)
        self.new[node.name] = self._pending

    def op(self, op_type: str, *inputs: str, name: str, outputs: Sequence[str] = (), **attrs: Any) -> str:
        """The first result of a new node; without `outputs` it is called like the node, or as nearly so as it can be."""
        node = helper.make_node(op_type, inputs, list(outputs) or [self.fresh(name)], name=name, **attrs)
        self._pending.append(node)
        return str(node.output[0])

    def fresh(self, name: str) -> str:
        return fresh_name(name, self.taken)

    def keep(self, node: onnx.NodeProto) -> None:
        self._pending.append(node)

    def literal(self, name: str, value: np.ndarray) -> str:
        if (name, "literal") not in self.made:
            self.made[name, "literal"] = self.fresh(name)
            self.model.graph.initializer.append(numpy_helper.from_array(value, self.made[name, "literal"]))
        return self.made[name, "literal"]

    def finish(self) -> onnx.ModelProto:
        nodes = [new for node in self.model.graph.node for new in self.new.get(node.name, [node])]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (*self.before, *nodes)]
        del self.model.graph.node[:]
        self.model.graph.node.extend(copies)
        del self.model.graph.value_info[:]
        drop_unused(self.model.graph)
        return self.model


def _dynamic_product(writer: _LiteralWriter, node: onnx.NodeProto, edge: Edge, granularity: str) -> None:
    """Nodes: quantize, multiply in integers, scale, add the bias."""
    array, axis = _columns(writer, node, edge)
    base = node.output[0]
    scales = weight_scales(array, axis, "minmax")
    weight = writer.literal(f"{edge.value}.quantized", quantize_weight(array, scales, axis))
    steps = writer.literal(f"{edge.value}.scale", scales)
    x = node.input[0]
    if granularity == "row":
        largest = _row_maximum(writer, x, base)
        scale = writer.op("Max", writer.op("Div", largest, writer.literal("tc.127", np.float32(127)), name=f"{base}.step"),
                          writer.literal("tc.tiny", np.float32(_TINY)), name=f"{base}.row_scale")  # fmt: skip
        rounded = writer.op("Round", writer.op("Div", x, scale, name=f"{base}.quotient"), name=f"{base}.rounded")
        stored = writer.op("Cast", rounded, name=f"{base}.stored", to=TensorProto.INT8)
        product = writer.op("MatMulInteger", stored, weight, name=f"{base}.integers")
    else:
        stored, scale, zero = (writer.fresh(f"{base}.{part}") for part in ("stored", "x_scale", "x_zero"))
        writer.op("DynamicQuantizeLinear", x, name=f"{base}.quantize", outputs=[stored, scale, zero])
        product = writer.op("MatMulInteger", stored, weight, zero, name=f"{base}.integers")
    wide = writer.op("Cast", product, name=f"{base}.wide", to=TensorProto.FLOAT)
    if granularity == "row":  # one by one: by a product of both onnxruntime knows its MatMulIntegerToFloat, which has no scales of rows
        wide, factor = writer.op("Mul", wide, scale, name=f"{base}.of_rows"), steps
    else:
        factor = writer.op("Mul", scale, steps, name=f"{base}.factor")
    has_bias = node.op_type == "Gemm" and len(node.input) > 2 and node.input[2]
    if has_bias:
        scaled = writer.op("Mul", wide, factor, name=f"{base}.scaled")
        writer.op("Add", scaled, node.input[2], name=node.name, outputs=[base])
    else:
        writer.op("Mul", wide, factor, name=node.name, outputs=[base])


def _row_maximum(writer: _LiteralWriter, x: str, base: str) -> str:
    magnitude = writer.op("Abs", x, name=f"{base}.magnitude")
    if opset_of(writer.model) >= 18:
        return writer.op("ReduceMax", magnitude, writer.literal("tc.last", np.array([-1], np.int64)), name=f"{base}.largest", keepdims=1)
    return writer.op("ReduceMax", magnitude, name=f"{base}.largest", axes=[-1], keepdims=1)


def _stored_weight(writer: _LiteralWriter, node: onnx.NodeProto, edge: Edge, bits: int, block: int | None) -> None:
    """The node, its weight read through a DequantizeLinear."""
    key = (edge.value, edge.axis, bits, block)
    if key not in writer.made:
        array, axis, largest = writer.arrays[edge.value], edge.axis or 0, _LARGEST[bits]
        name = f"{edge.value}.dequantized"
        attrs: dict[str, Any] = {}
        if block is None:
            scales, attrs["axis"] = weight_scales(array, axis, "mse", largest=largest), axis
            stored = quantize_weight(array, scales, axis, largest)
        else:
            summed = array.ndim - 1 if axis == 0 else array.ndim - 2
            block = min(block, array.shape[summed])
            stored, scales = quantize_blocks(array, summed, block, largest)
            attrs |= {"axis": summed, "block_size": block}
        kind = ml_dtypes.int4 if bits == 4 else np.int8
        parts = (writer.literal(f"{name}.stored", stored.astype(kind)), writer.literal(f"{name}.scale", scales))
        writer.made[key] = writer.fresh(name)
        writer.before.append(helper.make_node("DequantizeLinear", parts, [writer.made[key]], name=name, **attrs))
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[edge.slot] = writer.made[key]
    writer.keep(copy)


def quantize_blocks(array: np.ndarray, axis: int, block: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """int8[...] and float32[..., ceil(n / block), ...]: numbers with one scale for each block along `axis`, the last one shorter."""
    moved = np.moveaxis(array, axis, -1)
    size, count = moved.shape[-1], -(-moved.shape[-1] // block)
    if size % block:
        moved = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, count * block - size)])
    flat = moved.reshape(-1, block)
    scales = weight_scales(flat, 0, "mse", largest=largest)
    stored = quantize_weight(flat, scales, 0, largest).reshape(moved.shape)[..., :size]
    grid = scales.reshape(*moved.shape[:-1], count)
    return np.ascontiguousarray(np.moveaxis(stored, -1, axis)), np.ascontiguousarray(np.moveaxis(grid, -1, axis))
