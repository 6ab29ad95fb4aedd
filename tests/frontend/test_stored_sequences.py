"""Sequences whose length data decide, natively, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tc
from tc.errors import InputError
from tests.frontend.models import check_against_onnxruntime, run_onnxruntime

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
X = np.random.default_rng(3).standard_normal((7, 5, 4)).astype(np.float32)

COLLECT = """
    c = Constant<value = bool {1}>()
    e = SequenceEmpty()
    q = Loop(t, c, e) <body = b (int64 i, bool ci, seq(float[?, 4]) s) => (bool co, seq(float[?, 4]) sn) {
        co = Identity(ci)
        f = Cast<to = 1>(i)
        v = Mul(x, f)
        sn = SequenceInsert(s, v)
    }>
"""
"""`t` times `x`, each of one size."""

GROW = """
    c = Constant<value = bool {1}>()
    e = SequenceConstruct(x)
    q, w = Loop(t, c, e, x) <body = b (int64 i, bool ci, seq(float[?, 4]) s, float[k, 4] w) =>
        (bool co, seq(float[?, 4]) sn, float[kk, 4] wn) {
        co = Identity(ci)
        two = Constant<value = int64 {2}>()
        one = Constant<value = int64 {1}>()
        m = Mod(i, two)
        odd = Equal(m, one)
        wn = Concat<axis = 0>(w, x)
        sn = If(odd) <then_branch = yes () => (seq(float) u) { u = SequenceInsert(s, wn) },
            else_branch = no () => (seq(float) v) { front = Constant<value = int64 {0}>()  v = SequenceInsert(s, w, front) }>
    }>
"""
"""Items of sizes that differ, put at both ends by turns."""

ENDS = {
    "joined": "y = ConcatFromSequence<axis = 0>(q)",
    "stacked": "z = ConcatFromSequence<axis = 0, new_axis = 1>(q)  y = Flatten(z)",
    "the last one": "k = Constant<value = int64 {-1}>()  y = SequenceAt(q, k)",
    "one that data choose": "y = SequenceAt(q, p)",
    "without one": """r = SequenceErase(q, p)
        xx = Concat<axis = 0>(x, x)
        s = SequenceInsert(r, xx, p)
        y = ConcatFromSequence<axis = 0>(s)""",
    "read back in a loop": """l = SequenceLength(q)
        zero = Constant<value = float[1, 4] {0, 0, 0, 0}>()
        axis = Constant<value = int64[1] {0}>()
        y = Loop(l, c, zero) <body = read (int64 j, bool cj, float[1, 4] a) => (bool cc, float[1, 4] an) {
            cc = Identity(cj)
            v = SequenceAt(q, j)
            r = ReduceSum<keepdims = 1>(v, axis)
            an = Add(a, r)
        }>""",
}

CASES = [*(("collected", COLLECT, end) for end in ENDS), *(("of all sizes", GROW, end) for end in ENDS if end != "stacked")]


def parsed(text: str) -> onnx.ModelProto:
    return parse_model(HEAD + text)


def check(model: onnx.ModelProto, calls: list[dict[str, np.ndarray]]) -> None:
    module = tc.compile(model, on_unsupported="error")
    for arrays in calls:
        check_against_onnxruntime(model, arrays)
        for found, expected in zip(module.run(arrays).values(), run_onnxruntime(model, arrays), strict=True):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "loop", "end"), CASES)
def test_a_sequence_that_a_loop_makes(name: str, loop: str, end: str) -> None:
    # ONNX's reference ran the loop and all that used its sequence, in Python.
    model = parsed("g (float[n, 4] x, int64 t, int64 p) => (float[a, b] y) {" + loop + ENDS[end] + "}")

    check(model, [{"x": X[n, :n], "t": np.array(t), "p": np.array(p)} for n in (1, 3) for t, p in ((1, 0), (2, -1), (9, 3))])


def test_items_of_different_sizes_are_joined_behind_the_first_axis() -> None:
    text = GROW.replace("float[k, 4]", "float[4, k]").replace("wn = Concat<axis = 0>", "wn = Concat<axis = 1>")
    model = parsed("g (float[4, n] x, int64 t) => (float[a, b] y) {" + text + "y = ConcatFromSequence<axis = -1>(q) }")

    check(model, [{"x": np.ascontiguousarray(X[n, :n].T), "t": np.array(t)} for n in (1, 3) for t in (0, 1, 9)])


@pytest.mark.parametrize(("split", "axis"), [("", 0), ("", 1), ("three", 0), ("one", 1), ("one", 2)])
def test_parts_of_which_nobody_knows_how_many_there_are(split: str, axis: int) -> None:
    # The number of parts had to be known.
    given = f"x, {split}" if split else "x"
    model = parsed(
        f"""g (float[n, m, 4] x, int64 p) => (float[a, b, d] y, float[e, f, h] z, int64 l) {{
            three = Constant<value = int64 {{3}}>()
            one = Constant<value = int64 {{1}}>()
            q = SplitToSequence<axis = {axis}>({given})
            y = ConcatFromSequence<axis = {axis}>(q)
            z = SequenceAt(q, p)
            l = SequenceLength(q)
        }}"""
    )

    check(model, [{"x": X[:n, :m], "p": np.array(p)} for n in (1, 3, 7) for m in (1, 2, 5) for p in (0, -1)])


def test_parts_without_their_axis() -> None:
    model = parsed(
        """g (float[n, m, 4] x, int64 p) => (float[a, b] z) {
            q = SplitToSequence<axis = 1, keepdims = 0>(x)
            z = SequenceAt(q, p)
        }"""
    )

    check(model, [{"x": X[:n, :m], "p": np.array(p)} for n in (1, 7) for m in (1, 5) for p in (0, -1)])


def test_numbers_in_a_sequence() -> None:
    text = COLLECT.replace("seq(float[?, 4])", "seq(float)").replace("v = Mul(x, f)", "r = ReduceSum<keepdims = 0>(x)  v = Mul(r, f)")
    model = parsed(
        "g (float[n, 4] x, int64 t) => (float[a] y, float z) {"
        + text
        + "y = ConcatFromSequence<axis = 0, new_axis = 1>(q)  k = Constant<value = int64 {-1}>()  z = SequenceAt(q, k) }"
    )

    check(model, [{"x": X[0, :n], "t": np.array(t)} for n in (1, 3) for t in (1, 2, 9)])


@pytest.mark.parametrize(
    ("end", "t", "p", "message"),
    [
        ("one that data choose", 3, 3, "SequenceAt_3: index 3 is out of range for axis 0 of size 3"),
        ("one that data choose", 3, -4, "SequenceAt_3: index -4 is out of range for axis 0 of size 3"),
        ("one that data choose", 0, 0, "SequenceAt_3: index 0 is out of range for axis 0 of size 0"),
        ("without one", 3, 5, "SequenceErase_3: index 5 is out of range for axis 0 of size 3"),
        ("joined", 0, 0, "ConcatFromSequence_3: the sequence is empty"),
    ],
)
def test_what_is_not_there_is_told(end: str, t: int, p: int, message: str) -> None:
    module = tc.compile(parsed("g (float[n, 4] x, int64 t, int64 p) => (float[a, b] y) {" + COLLECT + ENDS[end] + "}"))

    with pytest.raises(InputError, match=message):
        module(X[0], np.array(t), np.array(p))


def test_items_that_do_not_fit_are_told() -> None:
    module = tc.compile(parsed("g (float[n, 4] x, int64 t) => (float[a, b] y) {" + GROW + ENDS["stacked"] + "}"))

    module(X[0], np.array(0))
    with pytest.raises(InputError, match="ConcatFromSequence_3: the items of the sequence differ along axis 0"):
        module(X[0], np.array(2))
