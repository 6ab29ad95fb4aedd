"""Inputs with a default: an initializer of the same name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tc
from tc.errors import InputError, ModelError
from tests.frontend.models import make_model, node, run_onnxruntime

F32 = np.float32
X = np.random.default_rng(0).standard_normal((3, 4)).astype(F32)
W = np.random.default_rng(1).standard_normal((4, 5)).astype(F32)
B = np.random.default_rng(2).standard_normal(5).astype(F32)


def model() -> onnx.ModelProto:
    nodes = [node("MatMul", "x w", "p"), node("Add", "p b", "y")]
    inputs = {"x": (F32, ["n", 4]), "w": (F32, [4, 5]), "b": (F32, ["m"])}
    return make_model(nodes, inputs, ["y"], {"w": W, "b": B})


@pytest.mark.parametrize("given", [{}, {"w": 2 * W}, {"b": -B}, {"w": W + 1, "b": B * 3}, {"b": B[:1]}], ids=lambda given: " ".join(given))
def test_a_default_is_replaced_by_what_is_given(given: dict[str, np.ndarray], tmp_path: Path) -> None:
    # "there is no input"
    onnx.save(model(), tmp_path / "m.onnx")
    for source in (model(), tmp_path / "m.onnx", tmp_path / "m.onnx"):  # the second time from the cache
        compiled = tc.compile(source)

        assert [info.name for info in compiled.inputs] == ["x"]
        assert compiled.overridable == ("w", "b")
        for _ in range(2):
            (expected,) = run_onnxruntime(model(), {"x": X, **given})
            np.testing.assert_allclose(compiled.run({"x": X, **given})["y"], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(compiled({"x": X, **given}), expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(compiled(X), X @ W + B, rtol=1e-5, atol=1e-6)


def test_a_default_is_replaced_by_what_changes_the_rank_of_a_result() -> None:
    # A ValueError of zip: the other program's result is a tensor of a rank that only the run tells.
    nodes = [node("Reshape", "x s", "z"), node("Transpose", "z", "y")]
    made = make_model(nodes, {"x": (F32, ["n", 4]), "s": (np.int64, ["k"])}, ["y"], {"s": np.array([2, -1])})
    compiled = tc.compile(made)

    for shape in ([2, 2, -1], [-1], [4, 3]):
        (expected,) = run_onnxruntime(made, {"x": X, "s": np.array(shape)})
        np.testing.assert_array_equal(compiled.run({"x": X, "s": np.array(shape)})["y"], expected)
    np.testing.assert_array_equal(compiled.run({"x": X})["y"], X.reshape(2, -1).T)


def test_what_is_given_is_checked_as_any_input() -> None:
    compiled = tc.compile(model())

    with pytest.raises(InputError, match='input "w": dim 1 is 4, but must be 5'):
        compiled.run({"x": X, "w": W[:, :4].copy()})
    with pytest.raises(InputError, match='there is no input "c"'):
        compiled.run({"x": X, "w": W, "c": W})
    with pytest.raises(InputError, match='input "x" is missing'):
        compiled.run({"w": W})


def test_a_file_says_how_to_get_what_it_cannot_do(tmp_path: Path) -> None:
    tc.compile(model()).save(tmp_path / "m.tcm")
    tc.compile(model(), overridden=["w"]).save(tmp_path / "w.tcm")

    with pytest.raises(InputError, match=r'input "w" has a default.* compile the model with overridden=\[\'w\'\]'):
        tc.load(tmp_path / "m.tcm").run({"x": X, "w": W})
    np.testing.assert_allclose(tc.load(tmp_path / "w.tcm").run({"x": X, "w": 2 * W})["y"], X @ (2 * W) + B, rtol=1e-5, atol=1e-6)


def test_a_default_that_contradicts_its_declaration_is_refused() -> None:
    made = model()
    made.graph.input[1].CopyFrom(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 6]))

    with pytest.raises(ModelError, match=r"the input 'w' is declared with shape \[4, 6\], but is f32\[4, 5\]"):
        tc.compile(made)
