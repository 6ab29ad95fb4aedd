"""Sequences whose length data decide, and values whose rank or size control flow decides: right by ONNX's reference, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tc
from tc.errors import InputError, UnsupportedError
from tests.frontend.models import run_onnxruntime

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
X, Z = np.array([1.0, -2.0], np.float32), np.array([5.0, 7.0], np.float32)

COLLECT = """
    e = SequenceEmpty()
    t = Constant<value = bool {1}>()
    q = Loop(n, t, e) <body = b (int64 i, bool c, seq(float[2]) s) => (bool c2, seq(float[2]) o) {
        c2 = Identity(c)  f = Cast<to = 1>(i)  v = Add(x, f)  o = SequenceInsert(s, v)
    }>
"""

MODELS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a sequence that a loop carries, joined": (
        "g (int64 n, float[2] x) => (float[k] y) {" + COLLECT + "y = ConcatFromSequence<axis = 0>(q) }",
        [{"n": np.array(k), "x": X} for k in (1, 3, 5)],
    ),
    "its length": (
        "g (int64 n, float[2] x) => (int64 y) {" + COLLECT + "y = SequenceLength(q) }",
        [{"n": np.array(k), "x": X} for k in (0, 1, 4)],
    ),
    "an item of it, and native nodes after it": (
        "g (int64 n, float[2] x) => (float[2] y) {" + COLLECT + "m = Constant<value = int64 {-1}>() a = SequenceAt(q, m) y = Exp(a) }",
        [{"n": np.array(k), "x": X} for k in (1, 4)],
    ),
    "an item chosen at run time": (
        "g (int64 n, float[2] x, float[2] z) => (float[2] y) { s = SequenceConstruct(x, z) y = SequenceAt(s, n) }",
        [{"n": np.array(k), "x": X, "z": Z} for k in (0, 1, -1)],
    ),
    "a loop that grows what it carries": (
        """g (int64 n, float[2] x) => (float[k] y) {
            t = Constant<value = bool {1}>()
            r = Loop(n, t, x) <body = b (int64 i, bool c, s) => (bool c2, o) { c2 = Identity(c) o = Concat<axis = 0>(s, x) }>
            y = Neg(r)
        }""",
        [{"n": np.array(k), "x": X} for k in (0, 1, 3)],
    ),
    "branches of different rank, of which the size is asked": (
        """g (bool c, float[2] x) => (int64 y) {
            r = If(c) <
                then_branch = a () => (o1) { o1 = Neg(x) },
                else_branch = b () => (o2) { k = Constant<value_ints = [0]>() o2 = Unsqueeze(x, k) }>
            s = Shape(r)
            y = Size(s)
        }""",
        [{"c": np.array(flag), "x": X} for flag in (True, False)],
    ),
}


def parsed(text: str) -> onnx.ModelProto:
    return parse_model(HEAD + text)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_right(name: str) -> None:
    # All of these were refused.
    text, calls = MODELS[name]
    model = parsed(text)
    compiled = tc.compile(model)

    for arrays in calls:
        (expected,) = run_onnxruntime(model, arrays)
        found = compiled.run(arrays)["y"]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_index_outside_of_a_sequence_names_the_node() -> None:
    compiled = tc.compile(parsed(MODELS["an item chosen at run time"][0]))

    for k in (2, -3, 2**62):
        # It was an UnsupportedError, though the model runs with other positions.
        with pytest.raises(InputError, match=rf"SequenceAt_1: a position or index is out of range: .*n is {k}"):
            compiled(np.array(k), X, Z)


def test_a_sequence_whose_length_data_decide_is_a_result() -> None:
    # It was refused: tensors only were returned.
    model = parsed("g (int64 n, float[2] x) => (seq(float[2]) q) {" + COLLECT + "}")
    module = tc.compile(model)

    for k in (0, 1, 4):
        np.testing.assert_array_equal(module(np.array(k), X), [X + i for i in range(k)])
    assert [n.status for n in tc.inspect(model).nodes if n.op_type == "Loop"] == ["fallback"]
    with pytest.raises(UnsupportedError, match=r"Loop_2: .* a loop carries a sequence"):
        tc.compile(model, on_unsupported="error")
