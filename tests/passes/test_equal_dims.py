"""Dims that the operators of a model require to be equal are one in its kernels, and still checked before these run."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import tc
from tc.errors import UserError
from tc.ir.dtype import f32, i64
from tc.ir.expr import Var, const, equal
from tc.ir.graph import TensorVar
from tc.ir.types import tensor_type
from tc.ops.registry import Requirement
from tc.passes.graph.unify_dims import dims_as_required
from tests.frontend.models import make_model, node


def joined() -> object:
    inputs = {name: (np.float32, [f"{name}{d}" for d in range(3)]) for name in "abc"}
    return make_model([node("Concat", "a b c", "y", axis=1)], inputs, ["y"])


def test_a_kernel_knows_one_dim_where_the_model_requires_two_to_be_equal() -> None:
    text = tc.lower(joined(), "final").as_text()

    assert "b: f32[a0, b1, a2], c: f32[a0, c1, a2]" in text


def test_sizes_are_those_that_the_inputs_have_and_others_are_refused() -> None:
    module, rng = tc.compile(joined()), np.random.default_rng(0)
    for others in ((0, 3), (1, 1), (4, 0), (3, 5)):
        arrays = [rng.standard_normal((others[0], size, others[1])).astype(np.float32) for size in (2, 0, 3)]
        np.testing.assert_array_equal(module(*arrays), np.concatenate(arrays, 1))

    for shapes in (((2, 3, 4), (1, 3, 4), (2, 1, 4)), ((2, 3, 4), (2, 3, 4), (2, 1, 5)), ((2, 3, 1), (2, 3, 4), (2, 1, 4))):
        with pytest.raises(UserError, match=r"concat: dim [02] is"):
            module(*(np.zeros(shape, np.float32) for shape in shapes))


def test_all_that_are_equal_become_the_first_one_and_dims_of_no_input_stay() -> None:
    a, b, c, d, inner = (Var(name, i64) for name in ("a", "b", "c", "d", "inner"))
    params = [TensorVar("x", tensor_type((a, b), f32)), TensorVar("y", tensor_type((c, d), f32))]
    conditions = [equal(d, c), equal(c, b), equal(inner, a), equal(a, b + 1), equal(b, d), a <= d]

    assert dims_as_required(params, [Requirement(condition, "") for condition in conditions]) == {c: b, d: b}


def test_a_dim_that_must_be_a_number_is_one_and_so_are_its_equals() -> None:
    a, b, c, inner = (Var(name, i64) for name in ("a", "b", "c", "inner"))
    params = [TensorVar("x", tensor_type((a, b, c), f32))]
    conditions = [equal(c, b), equal(b, const(3)), equal(const(4), b), equal(inner, const(5)), const(2) <= a]

    assert dims_as_required(params, [Requirement(condition, "") for condition in conditions]) == {b: const(3), c: const(3)}


def channels_by_name() -> onnx.ModelProto:
    weights = {"w": np.linspace(-1, 1, 8 * 3 * 9, dtype=np.float32).reshape(8, 3, 3, 3)}
    nodes = [node("Relu", "x", "r"), node("Conv", "r w", "y", pads=[1, 1, 1, 1])]
    return make_model(nodes, {"x": (np.float32, ["b", "c", "h", "w"])}, ["y", "x"], weights)


def test_kernels_know_the_channels_that_the_weights_take() -> None:
    plan = tc.lower(channels_by_name(), "plan").as_text()

    assert "relu(input[0]: f32[b, 3, h, w]" in plan  # of the same memory
    assert "check c == 3: the_y: conv: x has c channels" in plan


def test_the_input_keeps_its_dims_and_other_channels_are_refused(rng: np.random.Generator) -> None:
    model = channels_by_name()
    module, expected = tc.compile(model), onnxruntime.InferenceSession(model.SerializeToString())
    assert str(module.inputs[0]) == "x: f32[b, c, h, w]"
    for b, h, w in ((1, 5, 7), (2, 1, 1), (0, 3, 3), (3, 9, 2)):
        x = rng.standard_normal((b, 3, h, w)).astype(np.float32)
        y, same = module(x)
        np.testing.assert_allclose(y, expected.run(["y"], {"x": x})[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(same, x)
    for channels in (0, 1, 2, 4):
        with pytest.raises(UserError, match=rf"the_y: conv: x has c channels, but the weights take 3.*c = {channels}"):
            module(np.zeros((1, channels, 4, 4), np.float32))


def test_what_is_assumed_and_fits_no_input_is_not_assumed() -> None:
    """Columns of two operands were taken to be equal, 4 then, though rows of as many could not be broadcast against none; only passes that
    looked at types again noticed, as those that choose layouts."""
    nodes = [node("Xor", "a b", "p"), node("BitShift", "c d", "q", direction="RIGHT"), node("Conv", "e w", "r")]
    inputs = {"a": (np.bool_, [1, 2, 1, "s"]), "c": (np.uint8, ["n", "v", "k", "v"]), "d": (np.uint8, ["n", 0, "n", "s"])}
    inputs["e"] = (np.float32, [1, 8, 9, 9])
    literals = {"b": np.ones((1, 2, 1, 4), np.bool_), "w": np.ones((8, 8, 1, 1), np.float32)}
    module = tc.compile(make_model(nodes, inputs, ["p", "q", "r"], literals, opset=18))

    for columns in (1, 4):
        p, q, r = module(np.ones((1, 2, 1, columns), np.bool_), np.ones((2, 1, 1, 1), np.uint8), np.ones((2, 0, 2, columns), np.uint8),
                         np.ones((1, 8, 9, 9), np.float32))  # fmt: skip
        assert p.shape == (1, 2, 1, 4) and q.shape == (2, 0, 2, columns) and r.shape == (1, 8, 9, 9)
