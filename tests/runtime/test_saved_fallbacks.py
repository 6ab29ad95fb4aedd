"""Modules with nodes that run in Python, as files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tc
from tc.errors import UnsupportedError
from tc.ops.registry import PYTHON_FUNCTIONS
from tests.frontend.models import forget_adapter, make_model, node

F32 = np.float32


@pytest.fixture(autouse=True)
def _nodes_on_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    for op in ("Det", "Unique"):
        forget_adapter(monkeypatch, op)


def callbacks_model() -> onnx.ModelProto:
    """Two nodes without machine code: one on a symbolic number of matrices, one finds its own number of results."""
    nodes = [
        node("Mul", "b two", "wide"),
        node("Det", "wide", "chosen"),
        node("Unique", "v", "values", sorted=1),
        node("Cast", "values", "y", to=TensorProto.FLOAT),
    ]
    inputs = {"b": (F32, ["n", 3, 3]), "v": (np.int64, ["k"])}
    constants = {"two": F32(2)}
    return make_model(nodes, inputs, ["chosen", "y"], constants)


def arrays_of_it() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"b": rng.uniform(0, 1, (6, 3, 3)).astype(F32), "v": np.array([3, 1, 3, 2])}


def test_a_module_with_reference_kernels_is_the_same_from_a_file(tmp_path: Path) -> None:
    # "runs on a reference kernel, which a file cannot hold"
    compiled, arrays = tc.compile(callbacks_model()), arrays_of_it()
    expected = compiled.run(arrays)

    compiled.save(tmp_path / "m.tcm")
    loaded = tc.load(tmp_path / "m.tcm")

    for _ in range(2):
        found = loaded.run(arrays)
        assert {name: (a.dtype, a.shape) for name, a in found.items()} == {name: (a.dtype, a.shape) for name, a in expected.items()}
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
    assert loaded.report().fallbacks == compiled.report().fallbacks
    assert len(loaded.report().fallbacks) == 2


def test_another_process_runs_it(tmp_path: Path) -> None:
    tc.compile(callbacks_model()).save(tmp_path / "m.tcm")
    np.savez(tmp_path / "in.npz", **arrays_of_it())
    script = "import sys, numpy as np, tc; m = tc.load(sys.argv[1]); print(m.run(dict(np.load(sys.argv[2])))['y'].tolist())"

    found = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "m.tcm", tmp_path / "in.npz"], capture_output=True, text=True, check=True
    )

    assert json.loads(found.stdout) == [1.0, 2.0, 3.0]


def test_attributes_that_are_dims_and_dtypes_come_back(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "places"), node("Transpose", "places", "rows", perm=[1, 0]), node("GatherND", "x rows", "y")]
    model = make_model(nodes, {"x": (F32, ["a", "b"])}, ["y", "rows"])
    compiled = tc.compile(model)

    compiled.save(tmp_path / "m.tcm")
    loaded = tc.load(tmp_path / "m.tcm")

    for shape in ((2, 3), (0, 4), (5, 5)):
        x = np.random.default_rng(1).integers(0, 2, shape).astype(F32)
        for found, expected in zip(loaded(x), compiled(x), strict=True):
            np.testing.assert_array_equal(found, expected)
        assert loaded(x)[1].shape == (int(x.sum()), 2)


def test_a_function_that_this_process_does_not_know_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tc.compile(callbacks_model()).save(tmp_path / "m.tcm")
    monkeypatch.delitem(PYTHON_FUNCTIONS, "onnx_reference")

    with pytest.raises(UnsupportedError, match="the module calls 'py:onnx_reference', which is not registered"):
        tc.load(tmp_path / "m.tcm")


def test_a_reference_kernel_that_fails_names_the_node() -> None:
    model = make_model([node("Det", "x", "y")], {"x": (F32, ["n", 3])}, ["y"])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, []))
    compiled = tc.compile(model)

    assert compiled(np.eye(3, dtype=F32)) == 1
    with pytest.raises(UnsupportedError, match=r"the_y: ONNX's reference implementation fails on x \(2, 3\)"):
        compiled(np.ones((2, 3), F32))
