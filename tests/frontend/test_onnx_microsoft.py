"""Operators that onnxruntime's optimizer writes, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from tc.frontend.onnx import load_model
from tests.frontend.models import make_model, node, run

F32 = np.float32
MS = {"domain": "com.microsoft"}
INPUTS = {
    "x": (F32, [2, 3, 8]), "skip": (F32, [2, 3, 8]), "w": (F32, [8]), "b": (F32, [8]), "z": (F32, [2, 4, 8]),
    "image": (F32, [2, 4, 6, 5]), "kernels": (F32, [6, 2, 3, 3]), "channels": (F32, [6]), "other": (F32, [2, 6, 3, 5]),
    "rows": (F32, [7, 3]), "grid": (F32, [2, 3, 2, 2]),
    "left": (F32, [5, 3]), "right": (F32, [4, 5]), "sum": (F32, [4]), "turned": (F32, [3, 2, 8]),
}  # fmt: skip
CONV = {"pads": [1, 1, 1, 1], "strides": [2, 1], "group": 2, "kernel_shape": [3, 3], **MS}
GEMM = {"transA": 1, "transB": 1, "alpha": 0.7, "beta": 0.3, **MS}

CASES: list[Any] = [
    node("Gelu", "x", "y", **MS),
    node("BiasGelu", "x b", "y", **MS),
    node("FastGelu", "x", "y", **MS),
    node("FastGelu", "x b", "y", **MS),
    node("QuickGelu", "x", "y", alpha=1.5, **MS),
    node("FusedMatMul", "x z", "y", alpha=0.5, transB=1, **MS),
    node("FusedMatMul", "x skip", "y", transA=1, **MS),
    node("FusedMatMul", "turned z", "y", transBatchA=1, transB=1, **MS),
    node("FusedMatMul", "turned x", "y", transBatchA=1, transA=1, **MS),
    node("FusedMatMul", "x turned", "y", transBatchB=1, transB=1, alpha=2.0, **MS),
    node("TransposeMatMul", "x z", "y", transB=1, **MS),
    node("FusedConv", "image kernels channels", "y", activation="Relu", **CONV),
    node("FusedConv", "image kernels channels other", "y", activation="Relu", **CONV),
    node("FusedConv", "image kernels", "y", activation="LeakyRelu", activation_params=[0.3], **CONV),
    node("FusedConv", "image kernels", "y", activation="Clip", activation_params=[-0.5, 0.7], **CONV),
    node("FusedConv", "image kernels", "y", activation="HardSigmoid", activation_params=[0.3, 0.4], **CONV),
    node("FusedConv", "image kernels", "y", activation="Tanh", **CONV),
    node("FusedConv", "image kernels", "y", activation="Sigmoid", **CONV),
    node("FusedGemm", "left right sum", "y", activation="Relu", **GEMM),
    node("FusedGemm", "left right sum", "y", activation="LeakyRelu", activation_alpha=0.3, **GEMM),
    node("FusedGemm", "left right sum", "y", activation="Elu", activation_alpha=0.5, **GEMM),
    node("FusedGemm", "left right sum", "y", activation="Selu", activation_alpha=1.5, activation_gamma=1.25, **GEMM),
    node("FusedGemm", "left right", "y", activation="HardSigmoid", activation_alpha=0.3, activation_beta=0.4, **GEMM),
    node("SkipLayerNormalization", "x skip w b", "y", epsilon=1e-5, **MS),
    node("SkipLayerNormalization", "x skip w b b", "y - - s", **MS),
    node("SkipSimplifiedLayerNormalization", "x skip w b", "y - - s", **MS),
    node("SimplifiedLayerNormalization", "x w", "y", axis=-1, epsilon=1e-5),
    node("Trilu", "x", "y", upper=0, **MS),
    node("GridSample", "image grid", "y", mode="bicubic", padding_mode="border", align_corners=1, **MS),
    node("CDist", "left rows", "y", metric="euclidean", **MS),
    node("CDist", "left rows", "y", metric="sqeuclidean", **MS),
]


@pytest.mark.parametrize("made", CASES, ids=lambda made: made.op_type)
def test_an_operator_of_microsoft(made: Any, rng: np.random.Generator) -> None:
    outputs = [name for name in made.output if name]
    inputs = {name: INPUTS[name] for name in dict.fromkeys(made.input)}
    model = make_model([made], inputs, outputs, domains=[("com.microsoft", 1)])
    for info in model.graph.output:
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    arrays = {name: rng.standard_normal(shape).astype(F32) for name, (_, shape) in inputs.items()}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    imported = load_model(model, on_unsupported="error")

    for found, expected in zip(run(imported, arrays), session.run(None, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


WITH_OPERANDS: dict[str, tuple[list[Any], dict[str, np.ndarray], dict[str, Any]]] = {
    "Pad": ([np.ones((3, 4), F32)], {"pads": np.array([1, 0, 2, 1])}, {"mode": "reflect"}),
    "ExpandDims": ([np.ones((3, 4), F32)], {"axis": np.array(-1, np.int32)}, {}),
    "GatherND": ([np.arange(9, dtype=F32).reshape(3, 3)], {"places": np.array([[2], [0]])}, {}),
    "Range": ([np.array(1, F32), np.array(6, F32)], {}, {}),
    "Unique": ([np.array([3, 1, np.nan, 2, 1, np.nan, 3, 5], F32)], {}, {}),
    "MatMulInteger16": ([np.array([[-32768, 7]], np.int16), np.array([[32767], [-9]], np.int16)], {}, {}),
}


@pytest.mark.parametrize("op", WITH_OPERANDS)
def test_an_operator_that_onnx_has_too(op: str) -> None:
    arrays, literals, attrs = WITH_OPERANDS[op]
    names = [f"x{k}" for k in range(len(arrays))]
    outputs = "y numbers counts" if op == "Unique" else "y"
    inputs = {name: (array.dtype, array.shape) for name, array in zip(names, arrays, strict=True)}
    made = node(op, " ".join([*names, *literals]), outputs, **attrs, **MS)
    model = make_model([made], inputs, outputs.split(), literals, domains=[("com.microsoft", 1)])
    for info in model.graph.output:
        is_int = info.name in ("numbers", "counts")
        info.type.tensor_type.elem_type = (
            TensorProto.INT64 if is_int else TensorProto.INT32 if op == "MatMulInteger16" else TensorProto.FLOAT
        )
    given = dict(zip(names, arrays, strict=True))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    found = run(load_model(model, on_unsupported="error"), given)

    for a, b in zip(found, session.run(None, given), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
