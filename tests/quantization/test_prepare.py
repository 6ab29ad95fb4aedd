"""A prepared model is the same model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tc
from tc.errors import ModelError, UnsupportedError, UserError
from tc.quantization.prepare import NARROW_OPSET, opset_of, prepare
from tests.quantization.small_nets import OrtModule, conv_net, feeds_of, floats, make_model, mlp


def same(a: onnx.ModelProto, b: onnx.ModelProto, feed: dict[str, np.ndarray]) -> None:
    for x, y in zip(OrtModule(a).run(feed).values(), OrtModule(b).run(feed).values(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [9, 11, 13, 17])
def test_opsets_are_raised_and_normalizations_folded(rng: np.random.Generator, opset: int) -> None:
    model = conv_net(rng, opset)

    prepared = prepare(model)

    assert opset_of(prepared) == max(opset, 13)
    assert "BatchNormalization" not in {node.op_type for node in prepared.graph.node}
    same(model, prepared, feeds_of(model, rng)[0])


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Div"])
@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (4, 1, 1), (1,), (1, 1, 1, 1), ()])
def test_a_number_for_each_channel_goes_into_the_convolution(rng: np.random.Generator, op: str, shape: tuple[int, ...]) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node(op, ["c", "k"], ["y"])]
    number = rng.uniform(0.5, 2, shape).astype(np.float32)
    model = make_model(nodes, {"x": (1, 3, 5, 5)}, ["y"], {"w": floats(rng, 4, 3, 3, 3), "k": number})

    prepared = prepare(model)

    assert [node.op_type for node in prepared.graph.node] == ["Conv"]
    same(model, prepared, feeds_of(model, rng)[0])


@pytest.mark.parametrize("case", ["two readers", "output", "along the rows", "reversed difference", "shared weight"])
def test_what_is_no_affine_map_of_channels_stays(rng: np.random.Generator, case: str) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Add", ["c", "k"], ["y"])]
    weights = {"w": floats(rng, 3, 3, 1, 1), "k": floats(rng, 3, 1, 1)}
    outputs = ["y"]
    match case:
        case "two readers":
            nodes += [helper.make_node("Relu", ["c"], ["r"]), helper.make_node("Add", ["y", "r"], ["z"])]
            outputs = ["z"]
        case "output":
            outputs = ["y", "c"]
        case "along the rows":
            weights["k"] = floats(rng, 1, 3)
        case "reversed difference":
            nodes[1] = helper.make_node("Sub", ["k", "c"], ["y"])
        case "shared weight":
            nodes += [helper.make_node("Conv", ["y", "w"], ["z"])]
            outputs = ["z"]
    inputs = {"x": (1, 3, 3, 3)}
    model = make_model(nodes, inputs, outputs[:1], weights)
    for name in outputs[1:]:
        model.graph.output.append(helper.make_tensor_value_info(name, 1, [1, 3, 3, 3]))

    prepared = prepare(model)

    assert Counter(n.op_type for n in prepared.graph.node) == Counter(n.op_type for n in model.graph.node)
    same(model, prepared, feeds_of(model, rng)[0])


def test_weights_that_are_computed_from_constants_become_weights(rng: np.random.Generator) -> None:
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(floats(rng, 8, 4), "w"))
    nodes = [
        constant,
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("Identity", ["wt"], ["v"]),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    model = make_model(nodes, {"x": ("n", 4)}, ["y"], {})

    prepared = prepare(model)

    assert [node.op_type for node in prepared.graph.node] == ["MatMul"]
    same(model, prepared, feeds_of(model, rng)[0])


def test_nodes_get_names_of_their_own(rng: np.random.Generator) -> None:
    model = mlp(rng)
    for node in model.graph.node:
        node.name = "same"

    names = [node.name for node in prepare(model).graph.node]

    assert len(set(names)) == len(names) == 3


def test_a_quantized_model_is_refused(rng: np.random.Generator) -> None:
    model = mlp(rng)
    model.graph.node.insert(0, helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="first_step"))

    with pytest.raises(UserError, match="quantized already: 'first_step' is a DynamicQuantizeLinear"):
        prepare(model)


def test_what_is_no_onnx_model_is_refused(tmp_path: object) -> None:
    with pytest.raises(ModelError, match=r"there is no file 'no/such/file.onnx'"):
        prepare("no/such/file.onnx")
    with pytest.raises(ModelError):
        prepare(b"nonsense that is no model")
    with pytest.raises(UserError, match="the model is a int"):
        prepare(3)  # type: ignore[arg-type]
    module = tc.lower(prepare(mlp(np.random.default_rng(0))))
    assert module is not None


def test_a_model_without_products_is_refused(rng: np.random.Generator) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": (2, 3)}, ["y"], {})

    for mode, data in (("static", [np.zeros((2, 3), np.float32)]), ("dynamic", None), ("weights", None)):
        with pytest.raises(UnsupportedError, match="nothing to quantize"):
            tc.quantize(model, data, mode)


@pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_resizes_of_old_opsets_look_where_they_did(rng: np.random.Generator, op: str, opset: int, mode: str) -> None:
    nodes = [helper.make_node(op, ["x", "scales"], ["r"], mode=mode), helper.make_node("Conv", ["r", "w"], ["y"])]
    weights = {"w": floats(rng, 4, 3, 3, 3), "scales": np.array([1, 1, 2, 1.5], np.float32)}
    model = make_model(nodes, {"x": (1, 3, 5, 6)}, ["y"], weights, opset=opset)

    same(model, prepare(model), feeds_of(model, rng)[0])


@pytest.mark.parametrize("factors", [(0.5, 0.6), (1.5, 0.6), (0.5, 1)])
@pytest.mark.parametrize("is_literal", [True, False])
def test_resizes_of_opset_10_that_shrink_look_where_they_did(
    rng: np.random.Generator, factors: tuple[float, float], is_literal: bool
) -> None:
    """Behind the place, not before it as where an axis grows: they looked elsewhere once converted."""
    scales = np.array([1, 1, *factors], np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Resize", ["c", "s"], ["y"], mode="nearest")]
    inputs = {"x": (1, 3, 9, 7)} | ({} if is_literal else {"s": (4,)})
    model = make_model(nodes, inputs, ["y"], {"w": floats(rng, 4, 3, 1, 1)} | ({"s": scales} if is_literal else {}), opset=10)

    prepared = prepare(model)

    resizes = [node for node in prepared.graph.node if node.op_type == "Resize"]
    assert len(resizes) == (2 if not is_literal or max(factors) > 1 else 1)
    feed = {"x": floats(rng, 1, 3, 9, 7)} | ({} if is_literal else {"s": scales})
    same(model, prepared, feed)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_what_went_over_all_axes_from_one_on_still_does(rng: np.random.Generator, op: str) -> None:
    """onnx converts all of them but Hardmax, which went over one axis then."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node(op, ["c"], ["y"], axis=2)]
    model = make_model(nodes, {"x": (2, 3, 5, 6)}, ["y"], {"w": floats(rng, 4, 3, 3, 3)}, opset=11)

    same(model, prepare(model), feeds_of(model, rng)[0])


@pytest.mark.parametrize("opset", [18, 20])
def test_numbers_of_groups_are_those_of_their_channels(rng: np.random.Generator, opset: int) -> None:
    """As opset 21 has it, which blocks of weights need: what onnx converts to could not be compiled."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("GroupNormalization", ["c", "s", "b"], ["y"], num_groups=2)]
    weights = {"w": floats(rng, 6, 3, 3, 3), "s": floats(rng, 2), "b": floats(rng, 2)}
    model = make_model(nodes, {"x": (2, 3, 5, 6)}, ["y"], weights, opset=opset)

    converted = prepare(model, NARROW_OPSET)

    assert opset_of(converted) == NARROW_OPSET
    same(model, converted, feeds_of(model, rng)[0])


def test_constants_are_what_the_model_computes(rng: np.random.Generator) -> None:
    """Not what onnx's reference does: that of LpNormalization takes 1-norms without absolute values."""
    nodes = [helper.make_node("LpNormalization", ["k"], ["n"], axis=0, p=1), helper.make_node("MatMul", ["x", "n"], ["y"])]
    model = make_model(nodes, {"x": (2, 4)}, ["y"], {"k": floats(rng, 4, 3)})

    prepared = prepare(model)

    assert [node.op_type for node in prepared.graph.node] == ["MatMul"]
    same(model, prepared, feeds_of(model, rng)[0])


def test_functions_of_a_model_of_an_old_opset_are_there(rng: np.random.Generator) -> None:
    product = helper.make_node("MatMul", ["a", "b"], ["c"])
    block = helper.make_function("my", "Block", ["a", "b"], ["c"], [product], [helper.make_opsetid("", 11)])
    weights = {"w": floats(rng, 4, 3)}
    model = make_model([product], {"a": (2, 4)}, ["c"], {"b": weights["w"]}, opset=11)
    model.graph.node[0].CopyFrom(helper.make_node("Block", ["a", "b"], ["c"], domain="my"))
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.append(block)

    prepared = prepare(model)

    assert [node.op_type for node in prepared.graph.node] == ["MatMul"] and not prepared.functions
    feed = feeds_of(model, rng)[0]
    np.testing.assert_allclose(OrtModule(prepared).run(feed)["c"], feed["a"] @ weights["w"], rtol=1e-5)


def test_a_convolution_whose_bias_is_computed_stays_as_it_is(rng: np.random.Generator) -> None:
    nodes = [helper.make_node("Relu", ["b"], ["c"]), helper.make_node("Conv", ["x", "w", "c"], ["d"])]
    nodes.append(helper.make_node("Mul", ["d", "k"], ["y"]))
    model = make_model(nodes, {"x": (1, 3, 5, 5), "b": (4,)}, ["y"], {"w": floats(rng, 4, 3, 3, 3), "k": floats(rng, 4, 1, 1)})

    prepared = prepare(model)

    assert [node.op_type for node in prepared.graph.node] == ["Relu", "Conv", "Mul"]
    same(model, prepared, {"x": floats(rng, 1, 3, 5, 5), "b": floats(rng, 4)})


def test_a_weight_that_is_read_along_two_axes_has_two_names(rng: np.random.Generator) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Gemm", ["a", "w"], ["b"], transB=1)]
    nodes.append(helper.make_node("MatMul", ["b", "w"], ["y"]))
    model = make_model(nodes, {"x": (2, 4)}, ["y"], {"w": floats(rng, 4, 4)})

    prepared = prepare(model)

    first, second, third = (node.input[1] for node in prepared.graph.node)
    assert first == third != second
    same(model, prepared, feeds_of(model, rng)[0])
