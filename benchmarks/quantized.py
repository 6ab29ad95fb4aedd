"""QDQ twins of float networks, made by onnxruntime's own quantizer: u8 activations, s8 weights with a scale for each channel.

A twin is what people get who follow the quantizer's documentation: shapes inferred and the graph tidied first (batch norms go into
convolutions, activations into ranges), ranges from the least and the largest value of every tensor on calibration data, QuantizeLinear
and DequantizeLinear around every operator that the quantizer knows. The same model and samples give the same bytes.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import version_converter

from benchmarks.inputs import Arrays

LEAST_OPSET = 17
"""Scales for each channel came with 13, LayerNormalization as one operator with 17."""

PRODUCTS = ("MatMul", "Gemm")
"""What is quantized of an encoder whose sums hold a mask of -1e38, which would be the range of all."""

RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")


def make_qdq(model: onnx.ModelProto, samples: Sequence[Arrays], op_types: Sequence[str] = ()) -> onnx.ModelProto:
    """The QDQ twin of `model`, calibrated on `samples`; `op_types`: the operators to be quantized (default: all the quantizer knows).

    A softmax that makes an output stays float: its shares of one would fall on a handful of numbers.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder, _without_remarks():
        tidy, twin = Path(folder) / "tidy.onnx", Path(folder) / "twin.onnx"
        quant_pre_process(modern(model), str(tidy), auto_merge=True)
        quantization.quantize_static(
            str(tidy),
            str(twin),
            _Samples(samples),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=list(op_types) or None,
            nodes_to_exclude=final_softmaxes(onnx.load(tidy)),
        )
        made = onnx.load(twin)
    domains = {node.domain for node in made.graph.node} | {""}
    opsets = [opset for opset in made.opset_import if opset.domain in domains]
    made.ClearField("opset_import")
    made.opset_import.extend(opsets)
    made.graph.ClearField("value_info")
    onnx.checker.check_model(made)
    return made


def modern(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` in an opset that has quantization for each channel; a Sum of two values as Add, which quantizers and runtimes know."""
    if next(opset.version for opset in model.opset_import if not opset.domain) < LEAST_OPSET:
        model = version_converter.convert_version(model, LEAST_OPSET)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in made.graph.node:
        if node.op_type == "Sum" and len(node.input) == 2:
            node.op_type = "Add"
    return made


def final_softmaxes(model: onnx.ModelProto) -> list[str]:
    """The names of the Softmax nodes that make an output of `model`, which may take another shape on its way out."""
    makers = {value: node for node in model.graph.node for value in node.output}
    found = []
    for value in model.graph.output:
        node = makers.get(value.name)
        while node is not None and node.op_type in RESHAPES:
            node = makers.get(node.input[0])
        if node is not None and node.op_type == "Softmax":
            found.append(node.name)
    return found


class _Samples:
    """Calibration data as the quantizer asks for them: one set of inputs after the other, then None."""

    def __init__(self, samples: Iterable[Arrays]) -> None:
        self._left = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


@contextmanager
def _without_remarks() -> Iterator[None]:
    """The quantizer remarks on every bias whose scale it had to mend, and on its own temporary files."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
