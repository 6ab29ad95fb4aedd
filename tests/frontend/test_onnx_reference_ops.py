"""Loops and sequences that run on ONNX's reference implementation, where that is corrected."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tc
from tests.frontend.models import run_onnxruntime


def from_text(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


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
