"""Sequences while a model is imported: positions and parts that cannot be are refused in words."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tc
from tc.errors import ModelError, ShapeError, TcError
from tests.frontend.models import run_onnxruntime

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
X, Z = np.array([1.0, -2.0], np.float32), np.array([5.0, 7.0], np.float32)
PAIR = "p = Constant<value = int64 {%d}>() s = SequenceConstruct(x, z) "


def parsed(text: str) -> onnx.ModelProto:
    return parse_model(HEAD + text)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (PAIR % 2 + "t = SequenceErase(s, p) y = SequenceLength(t)", "SequenceErase: position 2 in a sequence of 2"),
        (PAIR % -3 + "t = SequenceErase(s, p) y = SequenceLength(t)", "SequenceErase: position -3 in a sequence of 2"),
        ("s = SequenceEmpty() t = SequenceErase(s) y = SequenceLength(t)", "SequenceErase: the sequence is empty"),
        (PAIR % 2 + "t = SequenceAt(s, p) y = Size(t)", "SequenceAt: position 2 in a sequence of 2"),
        (PAIR % 3 + "t = SequenceInsert(s, z, p) y = SequenceLength(t)", "SequenceInsert: position 3 in a sequence of 2"),
    ],
)
def test_a_position_outside_of_a_sequence_is_refused(body: str, words: str) -> None:
    # SequenceErase at the length was an IndexError.
    with pytest.raises(ModelError, match=words):
        tc.compile(parsed("g (float[2] x, float[2] z) => (int64 y) {" + body + "}"))


@pytest.mark.parametrize("part", ["int64 {0}", "int64 {-2}", "int64[2] {3, -1}"])
def test_parts_that_are_not_positive_are_refused(part: str) -> None:
    # A scalar 0 was a ZeroDivisionError.
    text = f"g (float[2] x) => (int64 y) {{ k = Constant<value = {part}>() s = SplitToSequence(x, k) y = SequenceLength(s) }}"

    with pytest.raises(ShapeError, match=r"SplitToSequence: (parts of|the parts)"):
        tc.compile(parsed(text))


@pytest.mark.parametrize(("position", "left"), [(0, Z), (1, X), (-1, X), (-2, Z)])
def test_positions_count_from_either_end(position: int, left: np.ndarray) -> None:
    body = PAIR % position + "t = SequenceErase(s, p) q = Constant<value = int64 {0}>() y = SequenceAt(t, q)"
    model = parsed("g (float[2] x, float[2] z) => (float[2] y) {" + body + "}")

    found = tc.compile(model)(X, Z)

    np.testing.assert_array_equal(found, left)
    np.testing.assert_array_equal(found, run_onnxruntime(model, {"x": X, "z": Z})[0])


def mapped(count: int, dims: list[object], more: bool) -> onnx.ModelProto:
    """A sequence of inputs, each item of which goes through a function."""
    names = [f"x{k}" for k in range(count)]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name in names]
    items = ["e", "other"] if more else ["e"]
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Add" if more else "Neg", items, ["f"])], "item",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in items],
        [onnx.helper.make_tensor_value_info("f", onnx.TensorProto.FLOAT, None)],
    )  # fmt: skip
    nodes = [
        onnx.helper.make_node("SequenceConstruct", names, ["s"]),
        onnx.helper.make_node("SequenceMap", ["s", *(["x0"] if more else [])], ["t"], body=body),
        onnx.helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    graph = onnx.helper.make_graph(nodes, "g", values, [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("dims", [[2, 3], ["n", 3]])
@pytest.mark.parametrize("more", [False, True])
def test_a_function_of_each_item_of_a_sequence_that_was_made(count: int, dims: list[object], more: bool) -> None:
    # What builds the function in onnx ended the process: the sequence was given no type.
    arrays = {f"x{k}": np.full((2, 3), k + 1, np.float32) for k in range(count)}

    found = tc.compile(mapped(count, dims, more), threads=1, on_unsupported="error").run(arrays)["y"]

    np.testing.assert_array_equal(found, np.concatenate([each + arrays["x0"] if more else -each for each in arrays.values()]))


@pytest.mark.parametrize("known", [True, False])
def test_the_bounds_of_a_slice_may_be_numbers(known: bool) -> None:
    # As torch writes tensor_split; onnxruntime takes them.
    bounds = "a = Constant<value = int64 {1}>() b = Constant<value = int64 {3}>() " if known else ""
    given = "" if known else ", int64 a, int64 b"
    text = f"g (float[n,4] x{given}) => (float[m,k] y) {{ {bounds} c = Constant<value = int64[1] {{1}}>() y = Slice(x, a, b, c) }}"
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {"x": x} if known else {"x": x, "a": np.array(1), "b": np.array(3)}

    np.testing.assert_array_equal(tc.compile(parsed(text), threads=1).run(arrays)["y"], x[:, 1:3])


# -- where the run does not come to them


@pytest.mark.parametrize(
    "body",
    [
        "s = SequenceEmpty() p = Constant<value = int64 {0}>() a = SequenceAt(s, p)",
        "s = SequenceConstruct(x) p = Constant<value = int64 {4}>() a = SequenceAt(s, p)",
        "s = SequenceConstruct(x) p = Constant<value = int64 {4}>() t = SequenceErase(s, p) a = ConcatFromSequence<axis=0>(t)",
        "s = SequenceConstruct(x) p = Constant<value = int64 {4}>() t = SequenceInsert(s, x, p) a = ConcatFromSequence<axis=0>(t)",
        "o = Optional<type = float[2]>() a = OptionalGetElement(o)",
        "p = Constant<value = int64 {4}>() q = Constant<value = int64 {0}>() r = Range(p, p, q) a = Cast<to=1>(r)",
    ],
)
def test_a_branch_that_cannot_work_may_not_be_taken(body: str) -> None:
    text = f"y = If(c) <then_branch = t () => (float[q] a) {{{body}}}, else_branch = e () => (float[q] b) {{b = Neg(x)}}>"
    module = tc.compile(parse_model(HEAD.replace("17", "18") + "g (float[2] x, bool c) => (float[q] y) {" + text + "}"))

    np.testing.assert_array_equal(module(X, np.array(False)), -X)
    with pytest.raises(TcError, match="the model works only where"):
        module(X, np.array(True))


GROW = """t = Loop (%s, , s) <body = b (int64 i, bool c, seq(float[q]) v) => (bool d, seq(float[q]) u) {
e = SequenceAt(v, i) f = Neg(e) u = SequenceInsert(v, f) d = Identity(c)}> n = SequenceLength(t)"""


def test_a_loop_over_an_empty_sequence_has_no_iterations() -> None:
    known = parsed("g (float[2] x) => (int64 n) {s = SequenceEmpty() k = SequenceLength(s) " + GROW % "k" + "}")
    told = parsed("g (int64 k) => (int64 n) {s = SequenceEmpty() " + GROW % "k" + "}")
    mapped = "s = SequenceEmpty() t = SequenceMap <body = b (float[k] e) => (float[k] o) {o = Neg(e)}> (s) n = SequenceLength(t)"

    assert tc.compile(known)(X) == 0
    assert tc.compile(parsed("g (float[2] x) => (int64 n) {" + mapped + "}"))(X) == 0
    assert tc.compile(told)(np.array(0)) == 0
    with pytest.raises(TcError, match="the loop must have no iterations"):
        tc.compile(told)(np.array(1))


def test_the_body_of_a_map_reads_what_is_around_it() -> None:
    mapped = "s = SequenceConstruct(x, z) t = SequenceMap <body = b (float[k] e) => (float[k] o) {o = Mul(e, c)}> (s)"
    text = "g (float[2] x, float[2] z, float c) => (float[q] y) {" + mapped + " y = ConcatFromSequence<axis=0>(t)}"

    np.testing.assert_array_equal(tc.compile(parsed(text))(X, Z, np.float32(3)), np.concatenate([X, Z]) * 3)


def test_a_sequence_that_is_empty_after_an_iteration_had_items_before_it() -> None:
    text = """z, s, e = If (c) <then_branch = t () => (float[q] z1, seq(float[q]) s1, seq(float[q]) e1) {
    z1 = Neg(x) s1 = SequenceConstruct(x) e1 = SequenceEmpty()},
    else_branch = f () => (float[q] z2, seq(float[q]) s2, seq(float[q]) e2) {
    z2 = Abs(x) s2 = SequenceConstruct(x, x) e2 = SequenceConstruct(x, x)}>
    a, b = Loop (k, , s, e) <body = g1 (int64 i, bool d, seq(float[q]) u, seq(float[q]) v) =>
    (bool d2, seq(float[q]) u2, seq(float[q]) v2) {
    d2 = Identity(d) u2 = Identity(v) w = Add(z, z) v2 = SequenceInsert(v, w)}>
    n = SequenceLength(a) m = SequenceLength(b)"""
    model = parsed("g (float[2] x, bool c, int64 k) => (int64 n, int64 m) {" + text + "}")
    module = tc.compile(model)

    for c in (True, False):
        for k in (1, 2, 3):
            arrays = {"x": X, "c": np.array(c), "k": np.array(k)}
            for ours, other in zip(module(*arrays.values()), run_onnxruntime(model, arrays), strict=True):
                np.testing.assert_array_equal(ours, other)


@pytest.mark.covering
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(("axis", "rank"), [(0, 2), (1, 3), (2, 3), (-1, 2)])
def test_parts_of_a_size_along_a_dim_that_the_run_tells(axis: int, rank: int, size: int, rng: np.random.Generator) -> None:
    dims = ",".join("abc"[:rank])
    text = f"""k = Constant<value = int64 {{{size}}}>() s = SplitToSequence<axis={axis}>(x, k) n = SequenceLength(s) i = SequenceAt(s, p)
    m = Constant<value_ints = [-1]>() y = Reshape(i, m) z = ConcatFromSequence<axis={axis}>(s)"""
    model = parsed(f"g (float[{dims}] x, int64 p) => (float[q] y, int64 n, float[{dims.upper()}] z) {{{text}}}")
    assert all(node.status == "native" for node in tc.inspect(model).nodes)
    module = tc.compile(model, threads=2)

    for dim in (1, 4, 5, 6, 7):
        shape = [3, 4, 2][:rank]
        shape[axis] = dim
        for place in (0, -1):
            arrays = {"x": rng.standard_normal(shape).astype(np.float32), "p": np.array(place)}
            for ours, other in zip(module(*arrays.values()), run_onnxruntime(model, arrays), strict=True):
                np.testing.assert_array_equal(ours, other)
