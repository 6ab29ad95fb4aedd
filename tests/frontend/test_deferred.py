"""Sequences whose length data decide, and values whose rank or size control flow decides: native, or right by ONNX's reference."""

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

OF_ANY_RANK = """
    w = Constant<value = float[1, 2] {3.0, 4.0}>()
    e = SequenceConstruct(x, w)
    t = Constant<value = bool {1}>()
    q = Loop(n, t, e) <body = b (int64 i, bool c, seq(float) s) => (bool c2, seq(float) o) {
        c2 = Identity(c)  f = Cast<to = 1>(i)  v = Add(x, f)  o = SequenceInsert(s, v)
    }>
"""
"""No operator of ours holds items of different ranks."""

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
    "the length of what holds items of any rank": (
        "g (int64 n, float[2] x) => (int64 y) {" + OF_ANY_RANK + "y = SequenceLength(q) }",
        [{"n": np.array(k), "x": X} for k in (0, 1, 4)],
    ),
    "an item chosen among items of any rank": (
        """g (int64 n, float[2] x, float[2] z) => (float y) {
            k = Constant<value_ints = [0]>()
            u = Unsqueeze(z, k)
            s = SequenceConstruct(x, u)
            a = SequenceAt(s, n)
            y = ReduceSum<keepdims = 0>(a)
        }""",
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("an item chosen at run time", "SequenceAt_1: index {} is out of range for axis 0 of size 2"),
        ("an item chosen among items of any rank", "ReduceSum_4: a position or index is out of range: .*n is {}"),
    ],
)
def test_an_index_outside_of_a_sequence_names_the_node(name: str, message: str) -> None:
    compiled = tc.compile(parsed(MODELS[name][0]))

    for k in (2, -3, 2**62):
        # It was an UnsupportedError, though the model runs with other positions.
        with pytest.raises(InputError, match=message.format(k)):
            compiled(np.array(k), X, Z)


@pytest.mark.parametrize(
    ("loop", "status", "start"), [(COLLECT, "native", []), (OF_ANY_RANK, "fallback", [X, np.array([[3, 4]], np.float32)])]
)
def test_a_sequence_whose_length_data_decide_is_a_result(loop: str, status: str, start: list[np.ndarray]) -> None:
    # It was refused: tensors only were returned.
    model = parsed("g (int64 n, float[2] x) => (seq(float[2]) q) {" + loop + "}")
    module = tc.compile(model)

    for k in (0, 1, 4):
        found = module(np.array(k), X)
        assert len(found) == len(start) + k
        for item, expected in zip(found, [*start, *(X + i for i in range(k))], strict=True):
            np.testing.assert_array_equal(item, expected)
    assert [n.status for n in tc.inspect(model).nodes if n.op_type == "Loop"] == [status]
    if status == "fallback":
        with pytest.raises(UnsupportedError, match=r"Loop_3: .* a sequence whose items are not of one dtype and rank"):
            tc.compile(model, on_unsupported="error")


def test_what_onnx_does_not_know_is_not_given_to_its_inference() -> None:
    # It ends the process at EyeLike of a value of no type.
    text = """<ir_version: 8, opset_import: ["": 22, "com.microsoft": 1]>
        g (float[l] xs, float[n, p] a, float[p, n] b, float[n] c, int64[r] k) => (float[l, n, n] y, float[l, q, t] z) {
            y, z = Scan<num_scan_inputs = 1, body = body (float x) => (float[n, n] e, float[q, t] v) {
                g = com.microsoft.FusedGemm<activation = "Relu">(a, b, c)
                e = EyeLike<dtype = 1>(g)
                v = ConstantOfShape(k)
            }>(xs)
        }"""

    with pytest.raises(UnsupportedError, match=r"ONNX does not know FusedGemm of domain 'com\.microsoft'"):
        tc.compile(parse_model(text))
