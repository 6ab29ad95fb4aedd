"""Models on which random search found `tc` wrong, as ONNX text, each with a line on what broke."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tc
from tests.frontend.models import run_onnxruntime

SMALL = np.array([[-2, 3], [4, 0]])
CASES = {
    # of integers, roots and logarithms had no code: "no code for sqrt of i32"
    "ReduceL2 of integers": ("g (int32[2,2] x) => (int32[a,b] y) { y = ReduceL2(x) }", 17, SMALL.astype(np.int32)),
    "ReduceLogSum of integers": ("g (int32[2,2] x) => (int32[a,b] y) { y = ReduceLogSum(x) }", 17, np.abs(SMALL).astype(np.int32)),
    # Shrink wanted floats
    "Shrink of integers": ("g (int32[2,2] x) => (int32[a,b] y) { y = Shrink <bias=1.5, lambd=2.5> (x) }", 9, SMALL.astype(np.int32)),
    # what numpy makes contiguous has at least one dim
    "Transpose of a folded scalar": (
        "g (float[n] x) => (float y, float[m] z) <float w = {3}> { y = Transpose(w) z = Add(x, y) }",
        13,
        np.ones(2, np.float32),
    ),
    "Expand of a scalar to no dims": ("g (int64[0] s) => (float y) <float w = {3}> { y = Expand(w, s) }", 13, np.zeros(0, np.int64)),
}  # fmt: skip


def from_text(text: str, opset: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_random_search_found_agrees_with_onnxruntime(name: str) -> None:
    text, opset, x = CASES[name]
    model = from_text(text, opset)
    feeds = {model.graph.input[0].name: x}

    found = tc.compile(model, threads=1).run(feeds)

    expected = run_onnxruntime(model, feeds)
    assert [v.shape for v in found.values()] == [np.shape(v) for v in expected]
    for mine, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
