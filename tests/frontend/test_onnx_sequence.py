"""Sequences while a model is imported: positions and parts that cannot be are refused in words."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tc
from tc.errors import ModelError, ShapeError
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
