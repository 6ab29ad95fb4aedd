"""The oracles on single nodes, and how far another correct answer may be from theirs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tc.fuzz.evaluate import Failed, Unstable, agrees, disagreement, node_reads, step, trace

OPSET = [helper.make_opsetid("", 18)]


def bound(op: str, arrays: dict[str, np.ndarray], errors: dict[str, float] | None = None, **attrs: object) -> float:
    node = helper.make_node(op, list(arrays), ["y"], **attrs)
    return step(node, arrays, errors or {}, OPSET, 8).errors[0]


def test_sums_and_products_of_quarters_are_exact() -> None:
    x = np.array([[0.25, -1.5], [3.0, 2.75]], np.float32)

    assert bound("MatMul", {"a": x, "b": x}) == 0.0
    assert bound("ReduceSum", {"a": x}) == 0.0


def test_a_function_that_rounds_is_allowed_a_few_roundings_of_its_largest_value() -> None:
    x = np.array([0.25, 2.0], np.float32)

    assert 2.0**-24 < bound("Exp", {"a": x}) < 1e-4


def test_what_is_uncertain_about_an_input_is_carried_over() -> None:
    x = np.array([1.0, 2.0], np.float64)

    carried = bound("Mul", {"a": x, "b": np.array(100.0)}, {"a": 1e-3})

    assert 0.1 <= carried <= 0.5


def test_a_result_that_jumps_with_a_rounding_has_no_answer() -> None:
    with pytest.raises(Unstable):
        step(helper.make_node("Greater", ["a", "b"], ["y"]), {"a": np.ones(8), "b": np.ones(8)}, {"a": 1e-6}, OPSET, 8)


def test_numbers_that_may_be_equal_are_not_compared() -> None:
    """A sum that is -2.25 here and -2.2499998 there was to be unequal to -2.25."""
    node = helper.make_node("Equal", ["a", "b"], ["y"])
    values = {"a": np.array([-2.2499998, 1.0], np.float32), "b": np.array([-2.25, 2.0], np.float32)}

    with pytest.raises(Unstable):
        step(node, values, {"a": 1e-6}, OPSET, 8)
    assert step(node, values, {"a": 1e-8}, OPSET, 8).errors == [0.0]


def test_what_a_node_does_where_nothing_is_said_is_not_asked() -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[3])
    ones = np.ones((1, 1, 3), np.float32)

    with pytest.raises(Failed, match="not said"):
        step(node, {"x": ones, "w": ones[..., :2]}, {}, OPSET, 8)
    assert step(node, {"x": ones, "w": ones}, {}, OPSET, 8).by_onnxruntime


def test_a_node_that_nobody_runs_fails_with_the_words_of_the_oracle() -> None:
    node = helper.make_node("Reshape", ["a", "s"], ["y"])

    with pytest.raises(Failed, match="onnxruntime"):
        step(node, {"a": np.ones(3, np.float32), "s": np.array([2, 2])}, {}, OPSET, 8)


def test_disagreement_is_said_in_words() -> None:
    x = np.ones(3, np.float32)

    assert agrees(x, x + 1e-6, 1e-5)
    assert "instead of" in disagreement(x, x + 1, 0.5)
    assert "shape (3,) instead of (1, 3)" == disagreement(x, x[None], 1.0)
    assert "dtype" in disagreement(x, x.astype(np.float64), 1.0)
    assert "NaN or infinity elsewhere" == disagreement(x, x * np.nan, 1.0)


def test_names_that_bodies_take_from_outside_are_reads() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (bool c, float[2] x) => (float[2] y) '
        "{ y = If(c) <then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = e () => (float[2] b) { b = Abs(x) }> }"
    )

    assert node_reads(model.graph.node[0]) == {"c", "x"}
    assert trace(model, {"c": np.array(True), "x": np.ones(2, np.float32)}).values["y"].tolist() == [-1.0, -1.0]


def test_what_is_unique_beside_nan_is_not_said() -> None:
    node = helper.make_node("Unique", ["x"], ["y"])

    with pytest.raises(Failed, match="not said"):
        step(node, {"x": np.array([1.5, np.nan, 1.5], np.float32)}, {}, OPSET, 8)
    assert step(node, {"x": np.array([1.5, 0, 1.5], np.float32)}, {}, OPSET, 8).outputs[0].tolist() == [0, 1.5]


@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_one_element_of_cubic_resizing_is_not_asked(by: str) -> None:
    attrs = {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"}
    node = helper.make_node("Resize", ["x", "", *(["", "s"] if by == "sizes" else ["s"])], ["y"], **attrs)
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)

    def size(rows: int) -> dict[str, np.ndarray]:
        return {"s": np.array([1, 1, rows, 4]) if by == "sizes" else np.array([1, 1, rows / 3, 1], np.float32)}

    with pytest.raises(Failed, match="not said"):
        step(node, {"x": x, **size(1)}, {}, OPSET, 8)
    assert step(node, {"x": x, **size(2)}, {}, OPSET, 8).outputs[0].shape == (1, 1, 2, 4)


def test_one_element_that_the_aspect_ratio_leaves_of_cubic_resizing_is_not_asked() -> None:
    """The sizes that are asked for were taken for those that are made."""
    attrs = {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel", "axes": [2, 3]}

    def resized(policy: str, shape: tuple[int, int], sizes: list[int]) -> tuple[int, ...]:
        node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], keep_aspect_ratio_policy=policy, **attrs)
        values = {"x": np.ones((1, 1, *shape), np.float32), "s": np.array(sizes)}
        return step(node, values, {}, OPSET, 8).outputs[0].shape[2:]

    assert resized("not_smaller", (3, 4), [1, 4]) == (3, 4)
    with pytest.raises(Failed, match="not said"):
        resized("not_larger", (2, 12), [2, 4])
