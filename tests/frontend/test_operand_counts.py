"""Operands with more or fewer elements than an operator takes: refused in words, and nothing beside them is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tc
from tc.errors import UserError
from tests.frontend.models import make_model, node

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


def model(op: str, operands: dict[str, tuple[type, list[Any]]], results: int = 1, opset: int = 20, **attrs: Any) -> onnx.ModelProto:
    names = [f"y{k}" for k in range(results)]
    read = " ".join("-" if name.startswith("none") else name for name in operands)
    inputs = {name: given for name, given in operands.items() if not name.startswith("none")}
    return make_model([node(op, read, " ".join(names), **attrs)], inputs, names, opset=opset)


SINGLE = [
    ("Trilu", {"x": (np.float32, ["a", "b"]), "n": (np.int64, ["q"])}, {}, 1),
    ("TopK", {"x": (np.float32, ["a", "b"]), "n": (np.int64, ["q"])}, {}, 2),
    ("OneHot", {"i": (np.int64, ["a"]), "n": (np.int64, ["q"]), "v": (np.float32, [2])}, {}, 1),
    ("CumSum", {"x": (np.float32, ["a", "b"]), "n": (np.int64, ["q"])}, {}, 1),
    ("HannWindow", {"n": (np.int64, ["q"])}, {}, 1),
    ("DFT", {"x": (np.float32, ["a", "b", 1]), "n": (np.int64, ["q"])}, {}, 1),
]


@pytest.mark.parametrize("op, operands, attrs, results", SINGLE, ids=[case[0] for case in SINGLE])
def test_what_is_one_number_is_no_other_count(op: str, operands: dict[str, Any], attrs: dict[str, Any], results: int) -> None:
    """A diagonal of no elements was read from whatever lay there."""
    room = np.array([1, 1, 1, 1])
    feed = {"x": X if op != "DFT" else X[..., None], "i": np.array([0, 1]), "v": np.array([0, 1], np.float32)}
    feed = {name: value for name, value in feed.items() if name in operands}
    module = tc.compile(model(op, operands, results, **attrs))
    module.run({**feed, "n": room[:1]})
    for count in (0, 2):
        with pytest.raises(UserError):
            module.run({**feed, "n": room[1 : 1 + count]})
        with pytest.raises(UserError):
            tc.compile(model(op, {**operands, "n": (np.int64, [count])}, results, **attrs))


@pytest.mark.parametrize("sizes", [[3], [2], [-9], [100], [1, 2], []])
def test_sizes_of_a_split_are_looked_at(sizes: list[int]) -> None:
    module = tc.compile(model("Split", {"x": (np.float32, [2, 3]), "s": (np.int64, ["q"])}, axis=1))
    if sizes == [3]:
        np.testing.assert_array_equal(module(X, np.array(sizes)), X)
        return
    with pytest.raises(UserError):
        module(X, np.array(sizes, np.int64))


@pytest.mark.parametrize("axes", [[5], [-3], [0, 0]])
def test_axes_in_attributes_are_different_ones_that_there_are(axes: list[int]) -> None:
    for op, operands in (("Resize", {"x": (np.float32, [2, 3]), "none1": (), "none2": (), "s": (np.int64, [len(axes)])}),
                         ("CenterCropPad", {"x": (np.float32, [2, 3]), "s": (np.int64, [len(axes)])})):  # fmt: skip
        with pytest.raises(UserError, match="axis"):
            tc.compile(model(op, operands, axes=axes))  # type: ignore[arg-type]


@pytest.mark.parametrize("op, shape", [("Unsqueeze", []), ("Squeeze", [1])])
def test_an_axis_that_decides_no_size_is_looked_at(op: str, shape: list[int]) -> None:
    module = tc.compile(model(op, {"x": (np.float32, shape), "a": (np.int64, [1])}))
    x = np.ones(shape, np.float32)
    assert module(x, np.array([-1])).size == 1
    for axis in (1, 7, -2, 2**63 - 1, -(2**63)):
        with pytest.raises(UserError):
            module(x, np.array([axis]))


def test_no_axes_are_no_change() -> None:
    for op in ("Squeeze", "Unsqueeze"):
        np.testing.assert_array_equal(tc.compile(model(op, {"x": (np.float32, [2, 3]), "a": (np.int64, [0])}))(X, np.zeros(0, np.int64)), X)


@pytest.mark.parametrize(
    "op, operands, attrs",
    [
        ("Resize", {"x": (np.float32, ["a", "b"]), "none1": (), "none2": (), "s": (np.int64, [3])}, {}),
        ("Resize", {"x": (np.float32, ["a", "b"]), "none1": (), "none2": (), "s": (np.int64, [1])}, {}),
        ("Compress", {"x": (np.float32, [3]), "s": (np.bool_, [])}, {}),
        ("GatherND", {"x": (np.float32, [2, 3]), "s": (np.int64, [])}, {}),
        ("GatherND", {"x": (np.float32, [2, 3]), "s": (np.int64, [1])}, {"batch_dims": 1}),
        ("ScatterND", {"x": (np.float32, [2, 3]), "s": (np.int64, []), "u": (np.float32, [2, 3])}, {}),
        ("Pad", {"x": (np.float32, [2, 3]), "p": (np.int64, [4]), "s": (np.int64, [])}, {}),
    ],
)
def test_other_shapes_are_refused_in_words(op: str, operands: dict[str, Any], attrs: dict[str, Any]) -> None:
    """They had been internal errors."""
    with pytest.raises(UserError) as caught:
        tc.compile(model(op, operands, **attrs))
    assert caught.value.code != "TC3900"


def test_circular_updates_begin_anywhere() -> None:
    operands = {"x": (np.float32, ["b", 4, 1]), "u": (np.float32, ["b", 2, 1]), "w": (np.int64, ["b"])}
    module = tc.compile(model("TensorScatter", operands, opset=24, mode="circular", axis=1))
    x, u = np.zeros((2, 4, 1), np.float32), np.arange(1, 5, dtype=np.float32).reshape(2, 2, 1)

    np.testing.assert_array_equal(module(x, u, np.array([5, 4]))[..., 0], [[0, 1, 2, 0], [3, 4, 0, 0]])
    np.testing.assert_array_equal(module(x, u, np.array([2**62 + 3, 1]))[..., 0], [[2, 0, 0, 1], [0, 3, 4, 0]])
    with pytest.raises(UserError):
        module(x, u, np.array([-1, 0]))


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction, expected", [("add", [True, True, True]), ("mul", [True, True, False])])
def test_sums_of_truths_are_true(op: str, reduction: str, expected: list[bool]) -> None:
    shape = [2] if op == "ScatterElements" else [2, 1]
    operands = {"x": (np.bool_, ["n"]), "i": (np.int64, shape), "u": (np.bool_, [2])}
    module = tc.compile(model(op, operands, opset=18, reduction=reduction))

    for places in ([0, 2], [2, 2]):
        found = module(np.array([True, True, False]), np.array(places).reshape(shape), np.array([True, True]))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_doubles_are_resized_as_doubles(mode: str) -> None:
    inputs = {"x": (np.float64, ["n", 5]), "none": (), "s": (np.float32, [2])}
    x = np.random.default_rng(0).standard_normal((3, 5)) * 1e300
    wide = tc.compile(model("Resize", inputs, mode=mode))
    narrow = tc.compile(model("Resize", {**inputs, "x": (np.float32, ["n", 5])}, mode=mode))
    scales = np.array([1, 1.5], np.float32)

    found = wide(x, scales)
    np.testing.assert_allclose(found / 1e300, narrow((x / 1e300).astype(np.float32), scales), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(wide(x / 1e300, scales) * 1e300, found, rtol=1e-13)


def test_a_position_in_an_empty_sequence() -> None:
    nodes = [node("SequenceEmpty", "", "s", dtype=1), node("SequenceInsert", "s x p", "q"), node("ConcatFromSequence", "q", "y", axis=0)]
    module = tc.compile(make_model(nodes, {"x": (np.float32, ["n"]), "p": (np.int64, [])}, ["y"]))

    np.testing.assert_array_equal(module(X[0], np.array(0)), X[0])
    for place in (1, -1):
        with pytest.raises(UserError):
            module(X[0], np.array(place))


def test_a_loop_that_runs_no_time_and_does_not_say_what_it_stacks() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Max", ["lim", "one"], ["top"]), helper.make_node("Range", ["zero", "top", "one"], ["r"]),
            helper.make_node("Identity", ["ci"], ["co"]),
        ],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("ci", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("co", TensorProto.BOOL, []), helper.make_tensor_value_info("r", TensorProto.INT64, None)],
    )  # fmt: skip
    literals = {"zero": np.array(0), "one": np.array(1)}
    inputs = {"m": (np.int64, []), "lim": (np.int64, [])}
    loop = make_model([helper.make_node("Loop", ["m", ""], ["y"], body=body)], inputs, ["y"], literals, opset=18)
    session = onnxruntime.InferenceSession(loop.SerializeToString(), providers=["CPUExecutionProvider"])
    module = tc.compile(loop)

    for trips in (2, 0, 1):
        feed = {"m": np.array(trips), "lim": np.array(3)}
        (expected,) = session.run(None, feed)
        found = module.run(feed)["y"]
        assert found.ndim == expected.ndim and len(found) == trips
        np.testing.assert_array_equal(found.reshape(-1), expected.reshape(-1))


@pytest.mark.parametrize("axes, pads", [([5], 2), ([-3], 2), ([0, 0], 4), ([0, 1], 2), ([1], 4)])
def test_literal_axes_of_pads_are_different_ones_that_there_are(axes: list[int], pads: int) -> None:
    """Axis 5 of a matrix had been its columns, and one named twice got the last of its pads."""
    literals = {"p": np.ones(pads, np.int64), "a": np.array(axes)}
    with pytest.raises(UserError) as caught:
        tc.compile(make_model([node("Pad", "x p - a", "y")], {"x": (np.float32, [2, 3])}, ["y"], literals, opset=18))
    assert caught.value.code != "TC3900"


def test_an_axis_of_a_norm_is_one_that_there_is() -> None:
    for axis in (5, -3):
        with pytest.raises(UserError, match="axis"):
            tc.compile(model("LpNormalization", {"x": (np.float32, [2, 3])}, axis=axis))
