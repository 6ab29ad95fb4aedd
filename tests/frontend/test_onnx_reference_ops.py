"""Loops and sequences that run on ONNX's reference implementation, where that is corrected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tc
from tests.frontend.models import from_text, run_onnxruntime

BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 1.1], [2, 2, 3, 3]]], np.float32)
SCORES = np.array([[[0.9, 0.8, 0.7]]], np.float32)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_results_whose_size_a_body_finds_are_stacked(count: int) -> None:
    """ "variable v.0 has no value here", and by no iterations "need at least one array to concatenate"."""
    model = from_text(
        "g (float[1,m,4] boxes, float[1,1,m] scores, int64 n) => (int64[a,b,3] y, float[c] z) "
        "<float[1] t = {0.25}, int64[1] most = {3}> { y, z = Loop (n, \"\") <body = body (int64 i, bool g) => "
        "(bool h, int64[d,3] v, float e) { h = Identity(g) v = NonMaxSuppression(boxes, scores, most, t, t) e = Cast <to=1> (i) }> }"
    )
    found = tc.compile(model, threads=1).run({"boxes": BOXES, "scores": SCORES, "n": np.array(count)})

    boxes = np.reshape([[[0, 0, 0], [0, 0, 2]]] * count, (count, 2 if count else 0, 3))  # of no iterations, sizes are 0
    np.testing.assert_array_equal(found["y"], boxes)
    np.testing.assert_array_equal(found["z"], np.arange(count, dtype=np.float32))


def test_a_loop_without_a_condition_and_with_what_changes_its_size_runs() -> None:
    """ONNX's reference does not run it at all: the first value came out, without a word."""
    model = from_text(
        "g (float[m] x, int64 n) => (float[a] y) { y = Loop (n, \"\", x) <body = body (int64 i, bool g, float[p] c) => "
        "(bool h, float[q] d) { h = Identity(g) d = Concat <axis=0> (c, x) }> }"
    )
    feeds = {"x": np.array([1, 2], np.float32), "n": np.array(3)}

    found = tc.compile(model, threads=1).run(feeds)["y"]

    np.testing.assert_array_equal(found, [1, 2] * 4)


@pytest.mark.parametrize("position", [0, 1, 2, -1, -2])
def test_a_tensor_is_inserted_where_a_position_known_at_run_time_says(position: int) -> None:
    """Behind the last element was taken for before the first."""
    model = from_text(
        "g (float[1] x, float[1] z, int64 p) => (float[a] y) { s = SequenceConstruct(x, x) t = SequenceInsert(s, z, p) "
        "y = ConcatFromSequence <axis=0> (t) }"
    )
    feeds = {"x": np.ones(1, np.float32), "z": np.zeros(1, np.float32), "p": np.array(position)}

    found = tc.compile(model, threads=1).run(feeds)["y"]

    np.testing.assert_array_equal(found, run_onnxruntime(model, feeds)[0])


def test_nodes_of_old_opsets_in_a_loop_of_changing_sizes_mean_what_they_meant() -> None:
    """ONNX's reference trains a BatchNormalization, takes an axis of Softmax for the only one and drops one of GlobalMaxPool's."""
    model = onnx.parser.parse_model(
        '<ir_version: 7, opset_import: ["" : 11]> g (float[2,3,m] x, float[3] s, int64 n) => (float[a,b,c] y, float[d,e,f] p) '
        '{ y = Loop (n, "", x) <body = body (int64 i, bool g, float[2,3,q] c) => (bool h, float[2,3,r] z) { h = Identity(g) '
        "v = BatchNormalization(c, s, s, s, s) w = Softmax <axis=1> (v) z = Concat <axis=2> (w, x) }> p = GlobalMaxPool(y) }"
    )
    rng = np.random.default_rng(0)
    feeds = {"x": rng.random((2, 3, 4)).astype(np.float32), "s": rng.random(3).astype(np.float32) + 1, "n": np.array(3)}

    found = tc.compile(model, threads=1).run(feeds)

    for mine, theirs in zip(found.values(), run_onnxruntime(model, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_a_recurrent_net_in_a_loop_of_changing_sizes_runs_in_both_directions() -> None:
    """ONNX's reference runs both forward."""
    model = from_text(
        "g (float[m,1,3] x, float[2,2,3] w, float[2,2,2] r, int64 n) => (float[a,b,c] y) "
        '{ y = Loop (n, "", x) <body = body (int64 i, bool g, float[q,1,3] c) => (bool h, float[s,1,3] z) { h = Identity(g) '
        'e = RNN <hidden_size=2, direction="bidirectional"> (c, w, r) f = Constant <value_ints=[-1,1,1]> () k = Reshape(e, f) '
        "o = Concat <axis=2> (k, k, k) z = Concat <axis=0> (o, c) }> }"
    )
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 1, 3), "w": (2, 2, 3), "r": (2, 2, 2)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    found = tc.compile(model, threads=1).run({**feeds, "n": np.array(2)})["y"]

    np.testing.assert_allclose(found, run_onnxruntime(model, {**feeds, "n": np.array(2)})[0], rtol=1e-5, atol=1e-6)


def test_a_transform_of_a_length_known_at_run_time_is_as_long_as_that() -> None:
    """ONNX's inference gives it the signal's length: "a reference kernel returned shape"."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[1,n,1] x, int64 s) => (float[a,b,2] y) <int64 axis = {1}> '
        "{ y = DFT <onesided=1> (x, s, axis) }"
    )
    feeds = {"x": np.arange(7, dtype=np.float32).reshape(1, 7, 1), "s": np.array(4)}

    found = tc.compile(model, threads=1).run(feeds)["y"]

    np.testing.assert_allclose(found, run_onnxruntime(model, feeds)[0], atol=1e-5)


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize("axis", ["", "axis=0, ", "axis=1, "])
def test_strings_that_differ_are_found_along_each_axis_in_both_orders(axis: str, is_sorted: int) -> None:
    """ONNX's reference sorts no rows of strings, and of what is not sorted it took the rows of the tensor for its elements."""
    model = from_text(
        f"g (string[n,m] x) => (string[a,b] y, int64[c] i, int64[d] j, int64[e] k) {{ y, i, j, k = Unique <{axis}sorted={is_sorted}> (x) }}"
        if axis
        else f"g (string[n,m] x) => (string[a] y, int64[c] i, int64[d] j, int64[e] k) {{ y, i, j, k = Unique <sorted={is_sorted}> (x) }}"
    )
    x = np.array([["b", "", "b"], ["a", "b", "a"], ["b", "", "b"]], object)

    found = tc.compile(model, threads=1).run({"x": x})

    for array, expected in zip(found.values(), run_onnxruntime(model, {"x": x}), strict=True):
        if expected.dtype != object or not axis:  # onnxruntime copies the first element alone of rows of strings
            np.testing.assert_array_equal(array, expected)
    along = int(axis[5]) if axis else 0
    np.testing.assert_array_equal(found["y"], np.take(x if axis else x.reshape(-1), found["i"], along))


@pytest.mark.parametrize("count", [0, 2])
def test_what_is_mapped_over_a_sequence_sees_values_around_it(count: int) -> None:
    """ "Unable to find input 't'"; of no items "'NoneType' object is not iterable"."""
    model = from_text(
        "g (string[n] x, int64[p] sizes, string[1] t) => (seq(string[]) y) { s = SplitToSequence(x, sizes) "
        "y = SequenceMap (s) <body = body (string[] a) => (string[] b) { b = Concat <axis=0> (a, t) }> }"
    )
    sizes = np.arange(1, count + 1)
    feeds = {"x": np.array(["a", "b", "c"][: sizes.sum()], object), "sizes": sizes, "t": np.array(["z"], object)}

    found = tc.compile(model, threads=1).run(feeds)["y"]

    assert [item.tolist() for item in found] == [["a", "z"], ["b", "c", "z"]][:count]


@pytest.mark.parametrize("count", [0, 2])
def test_strings_that_a_loop_stacks_are_as_wide_as_they_are_known_to_be(count: int) -> None:
    """ "A reference kernel returned shape (0, 0), expected (0, 2)"."""
    model = from_text(
        'g (string[n] x, int64 m) => (string[a] y, string[b,n] z) { y, z = Loop (m, "", x) <body = body (int64 i, bool g, string[p] c) => '
        "(bool h, string[q] d, string[] e) { h = Identity(g) d = Concat <axis=0> (c, x) e = Identity(x) }> }"
    )

    found = tc.compile(model, threads=1).run({"x": np.array(["a", "b"], object), "m": np.array(count)})

    assert found["y"].tolist() == ["a", "b"] * (count + 1)
    assert found["z"].shape == (count, 2) and found["z"].tolist() == [["a", "b"]] * count


def test_scalars_of_a_branch_that_is_not_taken_are_not_joined() -> None:
    """ "IndexError: tuple index out of range"."""
    model = from_text(
        "g (bool c, int64[n] x, int64 z) => (int64[] y) { v = If (c) <then_branch = a () => (int64[n] p) { p = Identity(x) }, "
        "else_branch = b () => (int64 q) { q = Identity(z) }> y = Concat <axis=0> (v, v) }"
    )

    found = tc.compile(model, threads=1).run({"c": np.array(True), "x": np.array([1, 2]), "z": np.array(3)})["y"]

    assert found.tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("count", [0, 3])
def test_strings_are_scanned_from_the_back(count: int) -> None:
    """ "'str' object has no attribute 'copy'", and of no iterations "not supported"."""
    model = from_text(
        "g (string[n] x, string start) => (string last, string[n] y) { last, y = Scan <num_scan_inputs=1, scan_input_directions=[1], "
        "body = body (string[] c, string[] a) => (string[] d, string[] b) { d = Identity(a) b = Identity(c) }> (start, x) }"
    )
    x = np.array(["a", "b", "c"][:count], object)

    found = tc.compile(model, threads=1).run({"x": x, "start": np.array("z", object)})

    assert found["last"].tolist() == ("a" if count else "z")
    assert found["y"].tolist() == ["z", "c", "b"][:count]


def test_one_string_is_split() -> None:
    """ "AssertionError"."""
    model = from_text('g (string x) => (string[n] y, int64 k) { y, k = StringSplit <delimiter=","> (x) }', opset=20)

    found = tc.compile(model, threads=1).run({"x": np.array("a,b", object)})

    assert found["y"].tolist() == ["a", "b"] and found["k"].tolist() == 2


def test_strings_may_be_in_between_alone(tmp_path: Path) -> None:
    """ "Strings are known only while a compiled module runs that takes or returns them"."""
    model = from_text(
        'g (int64[n] x) => (float[n] y, bool[n] z) <string[1] w = {"3"}> '
        "{ s = Cast <to=8> (x) y = Cast <to=1> (s) z = Equal(s, w) }",
        opset=19,
    )
    module = tc.compile(model, threads=1)
    module.save(tmp_path / "m.tcm")

    for each in (module, tc.load(tmp_path / "m.tcm")):
        y, z = each(np.array([3, -4]))
        assert y.tolist() == [3, -4] and z.tolist() == [True, False]
