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


# -- what iterations put at the end

TWO = """
    c = Constant<value = bool {1}>()
    e = SequenceEmpty()
    q, w, h = Loop(t, c, %s, e, x) <body = b (int64 i, bool ci, seq(float[?, 4]) s, seq(float[?, 4]) u, float[k, 4] v) =>
        (bool co, seq(float[?, 4]) sn, seq(float[?, 4]) un, float[k, 4] vn) {
        co = Identity(ci)
        vn = Tanh(v)
        r = Neg(vn)
        sm = SequenceInsert(s, vn)
        sn = SequenceInsert(sm, r)
        un = SequenceInsert(u, v)
    }>
    y = ConcatFromSequence<axis = 1, new_axis = 1>(q)
    z = ConcatFromSequence<axis = 1>(w)
    l = SequenceLength(q)
    o = SequenceAt(q, p)
"""
"""Two sequences, of which one gets two items in each iteration."""


@pytest.mark.parametrize("first", ["e", "f", "g"])
def test_items_of_one_size_are_scanned(first: str) -> None:
    starts = "f = SequenceConstruct(x, x)  a = Constant<value = float[1, 4] {1, 2, 3, 4}>()  g = SequenceConstruct(a)"
    head = "g (float[n, 4] x, int64 t, int64 p) => (float[a, b, d] y, float[e, f] z, int64 l, float[g, h] o) {"
    model = parsed(head + starts + TWO % first + "}")
    sizes = (1,) if first == "g" else (1, 3)

    check(model, [{"x": X[n, :n], "t": np.array(t), "p": np.array(p)} for n in sizes for t, p in ((1, 0), (2, -1), (20, 5))])


def test_a_sequence_that_is_scanned_does_not_grow() -> None:
    text = "g (float[3, 4] x, int64 p) => (float[a, b, d] y, float[e, f] z, int64 l, float[g, h] o) {t = Constant<value = int64 {40}>()"
    plan = tc.lower(parsed(text + TWO % "e" + "}"), stage="plan").as_text()

    assert "extend" not in plan and "allocate" not in plan
    assert "for iteration < 40" in plan


KEPT_APART = {
    "read in the body": "a = SequenceLength(s)  d = Cast<to = 1>(a)  v = Add(x, d)  sn = SequenceInsert(s, v)",
    "read in a branch": """m = Mod(i, two)  odd = Equal(m, one)
        v = If(odd) <then_branch = yes () => (float[n, 4] a) { d = SequenceLength(s)  f = Cast<to = 1>(d)  a = Add(x, f) },
            else_branch = no () => (float[n, 4] a2) { a2 = Neg(x) }>
        sn = SequenceInsert(s, v)""",
    "in front": "sn = SequenceInsert(s, x, zero)",
    "as it is": "sn = Identity(s)",
    "of other sizes": "f = Unsqueeze(i, zeros)  j = Add(f, ones)  v = Slice(x, zeros, j)  sn = SequenceInsert(s, v)",
    "twice the same": "a = SequenceInsert(s, x)  sn = SequenceInsert(a, x)",
}


@pytest.mark.parametrize("body", KEPT_APART)
def test_a_sequence_with_which_a_body_does_more(body: str) -> None:
    model = parsed(
        """g (float[n, 4] x, int64 t) => (float[a, b] y, int64 l) {
        c = Constant<value = bool {1}>()
        zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() two = Constant<value = int64 {2}>()
        zeros = Constant<value_ints = [0]>() ones = Constant<value_ints = [1]>()
        e = SequenceConstruct(x)
        q = Loop(t, c, e) <body = b (int64 i, bool ci, seq(float[?, 4]) s) => (bool co, seq(float[?, 4]) sn) { co = Identity(ci) """
        + KEPT_APART[body]
        + "}> y = ConcatFromSequence<axis = 0>(q)  l = SequenceLength(q) }"
    )

    check(model, [{"x": X[n, :n], "t": np.array(t)} for n in (1, 3) for t in (0, 1, 2, 7)])


def test_sequences_that_change_places() -> None:
    model = parsed(
        """g (float[n, 4] x, int64 t) => (float[a, b] y, float[d, e] z) {
        c = Constant<value = bool {1}>()
        f = SequenceConstruct(x)
        g = SequenceConstruct(x, x)
        q, w = Loop(t, c, f, g) <body = b (int64 i, bool ci, seq(float[?, 4]) s, seq(float[?, 4]) u) =>
            (bool co, seq(float[?, 4]) sn, seq(float[?, 4]) un) {
            co = Identity(ci)  k = Cast<to = 1>(i)  v = Mul(x, k)  sn = SequenceInsert(u, v)  un = SequenceInsert(s, x) }>
        y = ConcatFromSequence<axis = 0>(q)  z = ConcatFromSequence<axis = 0>(w) }"""
    )

    check(model, [{"x": X[n, :n], "t": np.array(t)} for n in (1, 3) for t in (0, 1, 2, 7)])


def test_items_until_data_say_that_it_is_enough() -> None:
    model = parsed(
        """g (float[n, 4] x, float s, int64 t) => (float[a, b, d] y, int64 l) {
        c = Constant<value = bool {1}>()
        e = SequenceEmpty()
        q, w = Loop(t, c, e, x) <body = b (int64 i, bool ci, seq(float[?, 4]) u, float[n, 4] v) =>
            (bool co, seq(float[?, 4]) un, float[n, 4] vn) {
            vn = Add(v, v)  m = ReduceMax<keepdims = 0>(vn)  co = Less(m, s)  un = SequenceInsert(u, vn) }>
        y = ConcatFromSequence<axis = 0, new_axis = 1>(q)  l = SequenceLength(q) }"""
    )

    one = np.ones((3, 4), np.float32)
    check(model, [{"x": one[:n], "s": np.array(s, np.float32), "t": np.array(t)} for n in (1, 3) for s in (0, 5, 500) for t in (1, 4, 20)])


def test_numbers_behind_numbers() -> None:
    model = parsed(
        """g (float x, int64 t) => (float[a] y) {
        c = Constant<value = bool {1}>()
        e = SequenceConstruct(x)
        q = Loop(t, c, e) <body = b (int64 i, bool ci, seq(float) s) => (bool co, seq(float) sn) {
            co = Identity(ci)  k = Cast<to = 1>(i)  sn = SequenceInsert(s, k) }>
        y = ConcatFromSequence<axis = 0, new_axis = 1>(q) }"""
    )

    check(model, [{"x": np.array(3, np.float32), "t": np.array(t)} for t in (0, 1, 9)])


SPLITS = [("", 0), ("", 1), ("one", 0), ("one", 1), ("three", 1)]


@pytest.mark.parametrize(
    ("dims", "axis", "split", "keepdims"),
    [
        *((dims, axis, *split) for dims in ("30, m, 4", "n, 30, 4") for axis in (0, 1) for split in SPLITS),
        ("n, 30, 4", 1, "six", 0),
        ("n, 30, 4", 1, "six", 1),
    ],
)
def test_parts_read_in_a_loop(dims: str, axis: int, split: str, keepdims: int) -> None:
    given = f"x, {split}" if split else "x"
    model = parsed(
        f"""g (float[{dims}] x) => (float[a, b] y) {{
        c = Constant<value = bool {{1}}>()
        one = Constant<value = int64 {{1}}>() three = Constant<value = int64 {{3}}>() six = Constant<value_ints = [5, 5, 5, 5, 5, 5]>()
        minus = Constant<value_ints = [-1]>()
        s = SplitToSequence<axis = {axis}, keepdims = {keepdims}>({given})
        t = SequenceLength(s)
        e = SequenceEmpty()
        q = Loop(t, c, e) <body = b (int64 i, bool ci, seq(float[?]) u) => (bool co, seq(float[?]) un) {{
            co = Identity(ci)  k = Cast<to = 1>(i)  p = SequenceAt(s, i)
            f = Reshape(p, minus)  v = Mul(f, k)  un = SequenceInsert(u, v) }}>
        z = ConcatFromSequence<axis = 0>(q)  y = Unsqueeze(z, minus) }}"""
    )
    shapes = [[int(d) if d.isdigit() else size for d in dims.split(", ")] for size in (1, 5, 6)]

    check(model, [{"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)} for shape in shapes])


def test_parts_of_one_lose_their_axis_as_in_onnxruntime() -> None:
    # PyTorch's `unbind` gives the size of the parts and asks for no axis; ONNX's text has such parts keep it.
    model = parsed(
        """g (float[3, 4] x) => (float[a] y, float[b, d] z) {
        one = Constant<value = int64 {1}>() ones = Constant<value_ints = [1, 1, 1]>() zero = Constant<value = int64 {0}>()
        s = SplitToSequence<axis = 0, keepdims = 0>(x, one)  y = SequenceAt(s, zero)
        t = SplitToSequence<axis = 0, keepdims = 0>(x, ones)  z = SequenceAt(t, zero) }"""
    )

    check(model, [{"x": X[0, :3]}])


@pytest.mark.parametrize("p", [3, -4])
def test_a_position_counts_though_items_are_empty(p: int) -> None:
    module = tc.compile(parsed("g (float[n, 4] x, int64 t, int64 p) => (float[a, b] y) {" + COLLECT + ENDS["one that data choose"] + "}"))
    nothing = np.zeros((0, 4), np.float32)

    assert module(nothing, np.array(3), np.array(2)).shape == (0, 4)
    with pytest.raises(InputError, match=f"index {p} is out of range for axis 0 of size 3"):
        module(nothing, np.array(3), np.array(p))
