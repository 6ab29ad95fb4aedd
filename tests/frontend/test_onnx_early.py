"""Models of opsets 1 to 6: what their operators meant then, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import tc
from tc.errors import TcError
from tests.frontend.models import make_model, node

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)


def run(op: str, opset: int, *inputs: np.ndarray, outputs: int = 1, **attrs: Any) -> list[np.ndarray]:
    """The results of one node, compiled."""
    names = [f"x{k}" for k in range(len(inputs))]
    results = [f"y{k}" for k in range(outputs)]
    model = make_model(
        [node(op, " ".join(names), " ".join(results), **attrs)],
        {name: (array.dtype.type, array.shape) for name, array in zip(names, inputs, strict=True)},
        results,
        opset=opset,
    )
    found = list(tc.compile(model).run(dict(zip(names, inputs, strict=True))).values())
    assert op == "TopK" or all(report.status == "native" for report in tc.inspect(model).nodes)
    return found


@pytest.mark.parametrize("axis, shape", [(None, (5,)), (None, (4, 5)), (1, (3,)), (1, (3, 4)), (0, (2,)), (-2, (4,)), (None, ())])
def test_the_second_operand_broadcasts_from_an_axis_on(axis: int | None, shape: tuple[int, ...]) -> None:
    b = np.asarray(RNG.uniform(0.5, 2, shape), np.float32)
    first = 4 - np.ndim(b) if axis is None else axis % 4
    wide = np.reshape(b, (*np.shape(b), *[1] * (4 - first - np.ndim(b))))
    attrs = {"broadcast": 1, **({} if axis is None else {"axis": axis})}
    for op, meaning in {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Greater": np.greater}.items():
        np.testing.assert_allclose(run(op, 6, X, b, **attrs)[0], meaning(X, wide), rtol=1e-6)


def test_operands_do_not_broadcast_unless_they_say_so() -> None:
    with pytest.raises(TcError, match="without broadcasting"):
        run("Add", 6, X, X[0, 0, 0])


def test_an_axis_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(TcError, match="from axis 3 on"):
        run("Add", 6, X, X[0, 0], broadcast=1, axis=3)


@pytest.mark.parametrize("slopes", [1, 3])
def test_slopes_are_those_of_channels(slopes: int) -> None:
    slope = RNG.standard_normal(slopes).astype(np.float32)
    np.testing.assert_allclose(run("PRelu", 6, X, slope)[0], np.where(X < 0, X * slope.reshape(-1, 1, 1), X), rtol=1e-6)


def test_casts_name_their_type() -> None:
    assert run("Cast", 1, X, to="INT32")[0].dtype == np.int32
    with pytest.raises(TcError, match="no type is called"):
        run("Cast", 1, X, to="INT33")


def test_operands_that_were_attributes() -> None:
    np.testing.assert_array_equal(run("Reshape", 1, X, shape=[2, -1, 5])[0], X.reshape(2, 12, 5))
    np.testing.assert_array_equal(run("Pad", 1, X, paddings=[0, 0, 1, 0, 0, 0, 0, 2])[0], np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2))))
    np.testing.assert_array_equal(run("TopK", 1, X, outputs=2, k=2)[0], np.sort(X, -1)[..., :-3:-1])
    np.testing.assert_array_equal(run("Upsample", 1, X, height_scale=2.0, width_scale=3.0)[0], X.repeat(2, 2).repeat(3, 3))


def test_batch_normalization_in_tests_ignores_what_frameworks_add() -> None:
    scale, bias, mean, variance = (RNG.uniform(0.5, 1, 3).astype(np.float32) for _ in range(4))
    column = (slice(None), None, None)
    expected = (X - mean[column]) / np.sqrt(variance[column] + 1e-5) * scale[column] + bias[column]
    found = run("BatchNormalization", 1, X, scale, bias, mean, variance, is_test=1, consumed_inputs=[0, 0, 0, 1, 1])
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)


def test_parts_and_copies_along_one_axis() -> None:
    model = make_model(
        [node("Split", "x sizes", "a b", axis=2), node("Tile", "b count axis", "y")],
        {"x": (np.float32, X.shape)},
        ["a", "y"],
        {"sizes": np.array([1, 3], np.float32), "count": np.array(2, np.float32), "axis": np.array(1, np.float32)},
        opset=1,
    )
    a, y = tc.compile(model).run({"x": X}).values()

    np.testing.assert_array_equal(a, X[:, :, :1])
    np.testing.assert_array_equal(y, np.tile(X[:, :, 1:], (1, 2, 1, 1)))


def test_opset_zero_is_none() -> None:
    model = make_model([node("Relu", "x", "y")], {"x": (np.float32, [2])}, ["y"], opset=6)
    model.opset_import[0].CopyFrom(helper.make_opsetid("", 0))

    with pytest.raises(TcError, match="first one is 1"):
        tc.compile(model)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize(("axis", "shape"), [(0, (2,)), (1, (3,)), (0, (2, 3)), (-2, (2,)), (None, (3,)), (None, ())])
def test_constants_that_may_be_sizes_broadcast_from_an_axis_on(op: str, axis: int | None, shape: tuple[int, ...]) -> None:
    """Broke: what is known when a model is read followed numpy's rules."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(1, 90, (2, 3)), np.asarray(rng.integers(1, 9, shape))
    first = 2 - b.ndim if axis is None else axis % 2
    attrs = {"broadcast": 1, **({} if axis is None else {"axis": axis})}
    nodes = [node("Identity", "c", "a"), node(op, "a b", "y", **attrs)]
    meaning = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.floor_divide}[op]

    (y,) = tc.compile(make_model(nodes, {}, ["y"], {"c": a, "b": b}, opset=6)).run({}).values()

    np.testing.assert_array_equal(y, meaning(a, b.reshape((*b.shape, *[1] * (2 - first - b.ndim)))))


@pytest.mark.covering(2)
@pytest.mark.parametrize("opset", [1, 3, 6])
@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("attrs", [{}, {"direction": "reverse"}, {"direction": "bidirectional"}, {"activations": "Relu"}, {"clip": 0.1}])
def test_recurrent_nodes_are_those_of_opset_7(opset: int, op: str, gates: int, attrs: dict[str, Any]) -> None:
    """Broke: they ran in ONNX's reference, which takes none of these attributes."""
    rng, hidden = np.random.default_rng(2), 5
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    if "activations" in attrs:
        attrs = {"activations": {"RNN": ["Relu"], "GRU": ["Relu", "Softsign"], "LSTM": ["Sigmoid", "Relu", "Softsign"]}[op]}
    feeds = {
        "x": rng.standard_normal((4, 2, 3)).astype(np.float32),
        "w": rng.standard_normal((directions, gates * hidden, 3)).astype(np.float32),
        "r": rng.standard_normal((directions, gates * hidden, hidden)).astype(np.float32),
    }
    types = {name: (np.float32, array.shape) for name, array in feeds.items()}
    models = [make_model([node(op, "x w r", "y h", hidden_size=hidden, **attrs)], types, ["y", "h"], opset=n) for n in (opset, 7)]
    expected = onnxruntime.InferenceSession(models[1].SerializeToString()).run(None, feeds)

    for result, want in zip(tc.compile(models[0], on_unsupported="error").run(feeds).values(), expected, strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [6, 7, 8])
def test_a_mean_and_a_variance_for_each_place(opset: int) -> None:
    rng = np.random.default_rng(3)
    scale, bias, mean, variance = (rng.uniform(0.5, 2, (3, 4, 5)).astype(np.float32) for _ in range(4))
    attrs = {"spatial": 0, **({"is_test": 1} if opset < 7 else {})}

    (y,) = run("BatchNormalization", opset, X, scale, bias, mean, variance, **attrs)

    np.testing.assert_allclose(y, (X - mean) / np.sqrt(variance + 1e-5) * scale + bias, rtol=1e-5, atol=1e-6)
    with pytest.raises(TcError, match="must have the axes of"):
        run("BatchNormalization", opset, X, scale[0], bias, mean, variance, **attrs)


@pytest.mark.parametrize("axis", [2, -3, 5])
def test_constants_too_lie_within_the_first_operand(axis: int) -> None:
    constants = {"a": np.array([[1, 2], [3, 4]]), "b": np.array([10, 20])}
    with pytest.raises(TcError, match=f"from axis {axis + 2 if axis < 0 else axis} on"):
        tc.compile(make_model([node("Add", "a b", "y", broadcast=1, axis=axis)], {}, ["y"], constants, opset=6))


@pytest.mark.parametrize(
    ("op", "attrs", "meaning"),
    [
        ("Affine", {"alpha": 2.0, "beta": 1.0}, lambda x: x * 2 + 1),
        ("Scale", {"scale": 3.0}, lambda x: x * 3),
        ("ImageScaler", {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}, lambda x: x * 2 + np.reshape([1, 2, 3], (3, 1, 1))),
        ("ScaledTanh", {"alpha": 4.0, "beta": 0.25}, lambda x: 4 * np.tanh(x / 4)),
        ("ParametricSoftplus", {"alpha": 4.0, "beta": 0.25}, lambda x: 4 * np.log1p(np.exp(x / 4))),
        ("Crop", {"border": [1, 2, 1, 0]}, lambda x: x[:, :, 2:, 1:-1]),
        ("Crop", {"border": [1, 2, 0, 0], "scale": [2, 3]}, lambda x: x[:, :, 2:4, 1:4]),
    ],
)
def test_what_opset_1_tried_out(op: str, attrs: dict[str, Any], meaning: Any) -> None:
    np.testing.assert_allclose(run(op, 1, X, **attrs)[0], meaning(X.astype(np.float64)), rtol=1e-5, atol=1e-6)


def test_a_slice_by_operands_that_opset_1_tried_out() -> None:
    places = {"starts": np.array([1, -3]), "ends": np.array([9, -1]), "axes": np.array([1, 3])}
    model = make_model([node("DynamicSlice", "x starts ends axes", "y")], {"x": (np.float32, X.shape)}, ["y"], places, opset=1)

    np.testing.assert_array_equal(tc.compile(model)(X), X[:, 1:, :, -3:-1])
