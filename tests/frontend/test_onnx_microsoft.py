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
INPUTS = {"x": (F32, [2, 3, 8]), "skip": (F32, [2, 3, 8]), "w": (F32, [8]), "b": (F32, [8]), "z": (F32, [2, 4, 8])}

CASES: list[Any] = [
    node("Gelu", "x", "y", **MS),
    node("BiasGelu", "x b", "y", **MS),
    node("FastGelu", "x", "y", **MS),
    node("FastGelu", "x b", "y", **MS),
    node("QuickGelu", "x", "y", alpha=1.5, **MS),
    node("FusedMatMul", "x z", "y", alpha=0.5, transB=1, **MS),
    node("FusedMatMul", "x skip", "y", transA=1, **MS),
    node("SkipLayerNormalization", "x skip w b", "y", epsilon=1e-5, **MS),
    node("SkipLayerNormalization", "x skip w b b", "y - - s", **MS),
    node("SkipSimplifiedLayerNormalization", "x skip w b", "y - - s", **MS),
    node("SimplifiedLayerNormalization", "x w", "y", axis=-1, epsilon=1e-5),
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
