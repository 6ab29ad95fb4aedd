"""Damaged, unsafe and unsupported models: which error, in which words, with which place."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, TypeProto, helper, numpy_helper

import tc
from tc.errors import LimitError, ModelError, ShapeError, TcError, UnsupportedError, UserError
from tc.frontend.onnx import inspect_model, load_model
from tc.frontend.onnx.reading import data_files
from tests.frontend.models import forget_adapter, make_model, node, run, value

F32 = np.float32
X = {"x": (F32, ["n", 4])}


def relu_model() -> onnx.ModelProto:
    return make_model([node("Relu", "x", "y")], X, ["y"])


def with_weights() -> onnx.ModelProto:
    """A model with a large constant, kept in the file and not in the message."""
    weights = np.random.default_rng(0).standard_normal((4, 64)).astype(F32)
    return make_model([node("MatMul", "x w", "y")], X, ["y"], {"w": weights})


def changed(change: Callable[[Any], None], model: onnx.ModelProto | None = None) -> onnx.ModelProto:
    made = relu_model() if model is None else model
    change(made)
    return made


def set_dtype(model: onnx.ModelProto, code: int) -> None:
    model.graph.input[0].type.tensor_type.elem_type = code


def declare_output(model: onnx.ModelProto, code: int, shape: list[Any]) -> None:
    model.graph.output[0].CopyFrom(value("y", code, shape))


def twice() -> onnx.ModelProto:
    return make_model([node("Relu", "x", "a"), node("Neg", "a", "y")], X, ["y"])


def raw(dims: list[int], data: bytes, code: int = TensorProto.FLOAT) -> onnx.TensorProto:
    tensor = TensorProto(name="w", data_type=code, raw_data=data)
    tensor.dims.extend(dims)
    return tensor


def with_tensor(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = make_model([node("Add", "x w", "y")], X, ["y"])
    model.graph.initializer.append(tensor)
    return model


def with_sparse(values: np.ndarray, indices: np.ndarray, dims: list[int]) -> onnx.ModelProto:
    model = make_model([node("Add", "x w", "y")], X, ["y"])
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"), numpy_helper.from_array(indices, "i"), dims
    )
    model.graph.sparse_initializer.append(sparse)
    return model


def cyclic() -> onnx.ModelProto:
    return make_model([node("Add", "x b", "a"), node("Relu", "a", "c"), node("Neg", "c", "b")], X, ["b"])


def big(dims: list[int]) -> onnx.ModelProto:
    return make_model([node("ConstantOfShape", "s", "y")], {}, ["y"], {"s": np.array(dims, np.int64)})


def drop_shape(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.ClearField("shape")


CASES: dict[str, tuple[Callable[[], Any], type[TcError], str]] = {
    "no file": (lambda: "/nowhere/model.onnx", ModelError, "there is no file"),
    "empty": (lambda: b"", ModelError, "empty"),
    "text": (lambda: b"this is no model at all, only text", ModelError, "not an ONNX model"),
    "no graph": (lambda: onnx.ModelProto(ir_version=8), ModelError, "no graph"),
    "no outputs": (lambda: changed(lambda m: m.graph.ClearField("output")), ModelError, "no outputs"),
    "output of nothing": (
        lambda: changed(lambda m: setattr(m.graph.output[0], "name", "z")),
        ModelError,
        "output 'z' is defined by no node",
    ),
    "cycle": (cyclic, ModelError, "cycle: the_a -> "),
    "missing name": (
        lambda: make_model([node("Add", "x lost", "y")], X, ["y"]),
        ModelError,
        "the_y: Add reads 'lost', which nothing",
    ),
    "defined twice": (
        lambda: make_model([node("Relu", "x", "y"), node("Neg", "x", "y")], X, ["y"]),
        ModelError,
        "'y' is defined twice",
    ),
    "defines an input": (
        lambda: make_model([node("Relu", "x", "x")], X, ["x"]),
        ModelError,
        "'x' is defined by the_x, and once more",
    ),
    "two inputs of a name": (
        lambda: changed(lambda m: m.graph.input.append(m.graph.input[0])),
        ModelError,
        "two inputs are called 'x'",
    ),
    "unknown operator": (
        lambda: make_model([node("Frobnicate", "x", "y")], X, ["y"]),
        UnsupportedError,
        "the_y: Frobnicate of ONNX, opset 17, is not supported.*check the operator's name",
    ),
    "unknown domain": (
        lambda: make_model([node("Relu", "x", "y", domain="com.acme")], X, ["y"], domains=[("com.acme", 3)]),
        UnsupportedError,
        "the_y: Relu of domain 'com.acme', opset 3",
    ),
    "domain without opset": (
        lambda: make_model([node("Relu", "x", "y", domain="com.acme")], X, ["y"]),
        ModelError,
        "'com.acme', but the model states no opset",
    ),
    "future opset": (lambda: make_model([node("Relu", "x", "y")], X, ["y"], opset=999), UnsupportedError, "upgrade"),
    "removed operator": (
        lambda: make_model([node("Upsample", "x s", "y")], X, ["y"], {"s": np.ones(2, F32)}),
        ModelError,
        "was removed",
    ),
    "too many inputs": (lambda: make_model([node("Relu", "x x", "y")], X, ["y"]), ModelError, "takes 1 inputs, but"),
    "too many outputs": (lambda: make_model([node("Relu", "x", "y z")], X, ["y"]), ModelError, "has 1 outputs, not 2"),
    "missing input": (
        lambda: make_model([node("Add", "x -", "y")], X, ["y"]),
        ModelError,
        "the_y: Add: input 1 is missing",
    ),
    "missing attribute": (
        lambda: make_model([node("Concat", "x x", "y")], X, ["y"]),
        ModelError,
        "attribute 'axis' is required",
    ),
    "attribute of a wrong type": (
        lambda: make_model([node("Concat", "x x", "y", axis=1.5)], X, ["y"]),
        ModelError,
        "attribute 'axis' has the wrong type",
    ),
    "unknown attribute": (
        lambda: make_model([node("Neg", "x", "y", foo=3)], X, ["y"]),
        ModelError,
        "the_y: Neg of opset 17 has no attribute 'foo'",
    ),
    "output of another dtype": (
        lambda: changed(lambda m: declare_output(m, TensorProto.INT64, ["n", 4])),
        ModelError,
        r"the_y: the output 'y' is declared as i64, but is f32\[n, 4\]",
    ),
    "value of another dtype": (
        lambda: changed(lambda m: m.graph.value_info.append(value("a", TensorProto.INT64, ["n", 4])), twice()),
        ModelError,
        "the_a: the value 'a' is declared as i64, but is f32",
    ),
    "range by nothing": (
        lambda: make_model([node("Range", "a b c", "y")], {}, ["y"], {"a": np.array(0), "b": np.array(9), "c": np.array(0)}),
        ModelError,
        "the_y: Range: delta is 0",
    ),
    "range without an end": (
        lambda: make_model([node("Range", "a b c", "y")], {}, ["y"], {"a": F32(0), "b": F32(np.inf), "c": F32(1)}),
        ModelError,
        "the_y: Range from 0.0 to inf by 1.0 has no number of elements",
    ),
    "complex input": (
        lambda: changed(lambda m: set_dtype(m, TensorProto.COMPLEX64)),
        UnsupportedError,
        "element type complex64",
    ),
    "input without dtype": (lambda: changed(lambda m: set_dtype(m, 0)), ModelError, "undefined"),
    "input of no such dtype": (lambda: changed(lambda m: set_dtype(m, 77)), ModelError, "number 77"),
    "input without rank": (lambda: changed(drop_shape), UnsupportedError, "'x' has no shape, not even a rank"),
    "map input": (
        lambda: changed(lambda m: m.graph.input[0].type.map_type.CopyFrom(TypeProto.Map(key_type=TensorProto.INT64))),
        UnsupportedError,
        "kind map",
    ),
    "tensor too short": (lambda: with_tensor(raw([4], b"\0" * 12)), ModelError, "needs 16 bytes, not 12"),
    "tensor too long": (lambda: with_tensor(raw([2], b"\0" * 12)), ModelError, "needs 8 bytes, not 12"),
    "negative dim": (lambda: with_tensor(raw([-4], b"\0" * 16)), ModelError, "a dim is negative"),
    "tensor without values": (
        lambda: with_tensor(TensorProto(name="w", data_type=1, dims=[4])),
        ModelError,
        "needs 4 elements, but has 0",
    ),
    "tensor of 2^40 elements": (lambda: with_tensor(raw([1 << 40], b"")), LimitError, "the limit is"),
    "fill of 2^40 elements": (lambda: big([1 << 20, 1 << 20]), LimitError, "the_y: .*the limit is"),
    "overflowing dims": (lambda: big([1 << 62, 1 << 62]), LimitError, "the limit is"),
    "tensor of overflowing dims and no elements": (lambda: with_tensor(raw([1 << 40, 1 << 40, 0], b"")), LimitError, "holds nothing, but"),
    "fill of overflowing dims and no elements": (lambda: big([1 << 40, 1 << 40, 0]), LimitError, "holds nothing, but"),
    "input of 2^40 elements": (
        lambda: make_model([node("Relu", "x", "y")], {"x": (F32, [1 << 40])}, ["y"]),
        LimitError,
        "x: .*the limit is",
    ),
    "sparse index outside": (
        lambda: with_sparse(np.ones(1, F32), np.array([7], np.int64), [4]),
        ModelError,
        "lies outside of shape",
    ),
    "sparse counts": (
        lambda: with_sparse(np.ones(2, F32), np.array([1], np.int64), [4]),
        ModelError,
        "do not fit",
    ),
    "shapes that do not fit": (
        lambda: make_model([node("MatMul", "x w", "y")], X, ["y"], {"w": np.ones((5, 2), F32)}),
        ShapeError,
        "the_y: matmul: the last dim of f32.n, 4. is 4",
    ),
    "dtypes that do not fit": (
        lambda: make_model([node("Add", "x w", "y")], X, ["y"], {"w": np.ones(4)}),
        ShapeError,
        "the_y: add: ",
    ),
    "axis out of range": (
        lambda: make_model([node("Softmax", "x", "y", axis=5)], X, ["y"]),
        ShapeError,
        "the_y: Softmax: axis 5",
    ),
    "branch with inputs": (
        lambda: make_model(
            [
                node(
                    "If",
                    "c",
                    "y",
                    then_branch=helper.make_graph([], "t", [value("q")], [value("x")]),
                    else_branch=helper.make_graph([], "e", [], [value("x")]),
                )
            ],
            X,
            ["y"],
            {"c": np.array(True)},
        ),
        ModelError,
        "takes 1 inputs, not 0",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_said(name: str) -> None:
    make, error, words = CASES[name]

    with pytest.raises(error, match=words):
        load_model(make())


def test_a_choice_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match="on_unsupported"):
        load_model(relu_model(), on_unsupported="ignore")


@pytest.mark.parametrize("part", [0.01, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_an_error(part: float, tmp_path: Path) -> None:
    data = with_weights().SerializeToString() * 1 + make_large().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * part)])

    with pytest.raises(ModelError):
        load_model(path)


def make_large() -> onnx.ModelProto:
    return make_model([node("MatMul", "x w", "y")], X, ["y"], {"w": np.ones((4, 1 << 15), F32)})


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_random_bytes_never_do_more_than_raise(data: bytes) -> None:
    try:
        load_model(data)
    except TcError:
        pass


@settings(max_examples=150)
@given(st.data())
def test_flipped_bytes_never_do_more_than_raise(data: st.DataObject) -> None:
    good = bytearray(make_large().SerializeToString()[: 1 << 17])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.one_of(st.integers(0, 200), st.integers(0, len(good) - 1)))
        good[place] = data.draw(st.integers(0, 255))
    try:
        load_model(bytes(good))
    except TcError:
        pass


# -- external data


def external_model(path: Path, location: str, *, offset: str = "0", length: str | None = None) -> Path:
    model = make_model([node("MatMul", "x w", "y")], X, ["y"], {"w": np.ones((4, 64), F32)})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": offset, **({} if length is None else {"length": length})}
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_is_mapped_and_not_read(tmp_path: Path) -> None:
    weights = np.arange(256, dtype=F32).reshape(4, 64)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"\0" * 64 + weights.tobytes())

    imported = load_model(external_model(tmp_path / "m.onnx", "data/w.bin", offset="64", length="1024"))

    constant = imported.module.main.bindings[0].value.args[1]  # type: ignore[union-attr]
    np.testing.assert_array_equal(constant.value, weights)
    assert not constant.value.flags.owndata and not constant.value.flags.writeable


@pytest.mark.parametrize(
    ("location", "options", "words"),
    [
        ("../w.bin", {}, "that stays in the model's folder"),
        ("a/../../model/w.bin", {}, "that stays in the model's folder"),
        ("folder/..", {}, "that stays in the model's folder"),
        ("a/../../w.bin", {}, "that stays in the model's folder"),
        ("/etc/passwd", {}, "that stays in the model's folder"),
        ("C:\\w.bin", {}, "that stays in the model's folder"),
        ("..\\w.bin", {}, "that stays in the model's folder"),
        ("", {}, "that stays in the model's folder"),
        ("link.bin", {}, "a link that leaves"),
        ("folder", {}, "is not a file"),
        ("gone.bin", {}, "there is no external data file"),
        ("w.bin", {"length": "1000"}, "says length 1000"),
        ("w.bin", {"offset": "8"}, "bytes 8..1032"),
        ("w.bin", {"offset": "-8"}, "bytes -8"),
        ("w.bin", {"offset": "many"}, "must be integers"),
    ],
)
def test_external_data_stays_in_the_folder_and_in_the_file(
    location: str, options: dict[str, str], words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(b"\0" * 1024)
    (folder / "w.bin").write_bytes(b"\0" * 1024)
    os.symlink(tmp_path / "w.bin", folder / "link.bin")

    with pytest.raises(ModelError, match=words):
        load_model(external_model(folder / "m.onnx", location, **options))


def test_a_model_that_is_a_link_has_its_data_beside_the_file_that_it_is_a_link_to(tmp_path: Path) -> None:
    """As caches of models keep them. A file elsewhere is refused."""
    weights = np.arange(256, dtype=F32).reshape(4, 64)
    for folder in ("blobs", "snapshot", "other"):
        (tmp_path / folder).mkdir()
    external_model(tmp_path / "blobs" / "1", "w.bin", length="1024")
    for folder in ("blobs", "other"):
        (tmp_path / folder / "2").write_bytes(weights.tobytes())
    model = tmp_path / "snapshot" / "m.onnx"
    os.symlink(Path("..", "blobs", "1"), model)
    os.symlink(Path("..", "blobs", "2"), model.with_name("w.bin"))

    found = run(load_model(model), {"x": np.ones((1, 4), F32)})

    np.testing.assert_allclose(found[0], weights.sum(0, keepdims=True))
    model.with_name("w.bin").unlink()
    os.symlink(Path("..", "other", "2"), model.with_name("w.bin"))
    with pytest.raises(ModelError, match="a link that leaves"):
        load_model(model)


# Every ".." was refused, also where onnx's checker and onnxruntime take it.
@pytest.mark.parametrize("location", ["data/../w.bin", "./data/./../w.bin", "gone/../w.bin", "link/../w.bin", "data/../data/w.bin"])
def test_external_data_may_leave_a_folder_within_that_of_the_model_as_in_the_checker_of_onnx(location: str, tmp_path: Path) -> None:
    weights = np.arange(256, dtype=F32).reshape(4, 64)
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    os.symlink(tmp_path, folder / "link")
    for inside in ("w.bin", "data/w.bin"):
        (folder / inside).write_bytes(weights.tobytes())
    path = external_model(folder / "m.onnx", location, length="1024")

    onnx.load(path)  # which refuses what its checker refuses
    found = run(load_model(path), {"x": np.ones((1, 4), F32)})

    np.testing.assert_allclose(found[0], weights.sum(0, keepdims=True))
    assert data_files(path) == {folder / ("data/w.bin" if location.endswith("data/w.bin") else "w.bin")}


def test_external_data_of_bytes_has_no_folder(tmp_path: Path) -> None:
    data = external_model(tmp_path / "m.onnx", "w.bin").read_bytes()

    with pytest.raises(ModelError, match="give the model's path"):
        load_model(data)


# -- inspection


def test_inspection_reports_what_cannot_run_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_adapter(monkeypatch, "Det")
    nodes = [
        node("Relu", "x", "a"),
        node("Frobnicate", "a", "b"),
        node("Exp", "b", "c"),
        node("Det", "sq", "d"),
        node("Add", "c d", "y"),
    ]
    model = make_model(nodes, {**X, "sq": (F32, [3, 3])}, ["y"])

    inspection = inspect_model(model)

    assert {n.name: n.status for n in inspection.nodes} == {
        "the_a": "native",
        "the_b": "refused",
        "the_c": "native",
        "the_d": "fallback",
        "the_y": "native",
    }
    assert "Frobnicate" in inspection.nodes[1].reason
    assert inspection.dims == ("n",)
    assert [(i.name, i.shape, str(i.dtype)) for i in inspection.inputs] == [
        ("x", ("n", 4), "f32"),
        ("sq", (3, 3), "f32"),
    ]


def test_inspection_reports_nodes_of_branches_and_unused_nodes() -> None:
    branch = helper.make_graph([node("Neg", "x", "t")], "t", [], [value("t")])
    other = helper.make_graph([node("Frobnicate", "x", "e")], "e", [], [value("e")])
    nodes = [node("If", "c", "y", then_branch=branch, else_branch=other), node("Exp", "x", "unused")]
    model = make_model(nodes, {**X, "c": (np.bool_, [])}, ["y"])

    statuses = {n.name: n.status for n in inspect_model(model).nodes}

    assert statuses["the_t"] == "native" and statuses["the_e"] == "refused" and statuses["the_unused"] == "native"


def calls_to_import(num_nodes: int) -> int:
    """How many Python functions are called to import a chain of nodes, written last node first."""
    nodes = [node("Relu", "x0", "x1")] + [node("Add", f"x{k} x{k}", f"x{k + 1}") for k in range(1, num_nodes)]
    model = make_model(list(reversed(nodes)), {"x0": (F32, ["n"])}, [f"x{num_nodes}"])
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        imported = load_model(model)
    finally:
        sys.setprofile(before)
    assert len(imported.module.main.bindings) == num_nodes
    return calls


def test_import_of_many_nodes_is_linear() -> None:
    assert calls_to_import(1200) < 3.3 * calls_to_import(400)


@pytest.mark.parametrize("declared", [["n", 5], ["n", 4, 1], ["n"], [4]])
def test_an_output_has_the_shape_that_its_node_gives_it(declared: list[int | str]) -> None:
    # It was refused. Exporters write such shapes (scatter_reduce of torch, regressions of sklearn), and runtimes do not mind.
    model = changed(lambda m: declare_output(m, TensorProto.FLOAT, declared))

    with pytest.warns(UserWarning, match=r"the_y: the output 'y' is declared with shape \[.*\], but is f32\[n, 4\], as its node says"):
        module = tc.compile(model)

    assert module(np.ones((3, 4), F32)).shape == (3, 4)
