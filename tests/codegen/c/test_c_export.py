"""Models as C programs without Python: what they compute, under sanitizers, and what they say when a call is wrong."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from benchmarks import zoo
from tc.errors import UnsupportedError
from tc.target import Target
from tests.codegen.c.kernels import needs_compiler
from tests.frontend import test_changing_sizes as changing_sizes
from tests.frontend.models import forget_adapter

pytestmark = needs_compiler
TARGET = replace(Target.parse("c"), cores=2)
STRICT = "-Wall -Wextra -Wno-unused-parameter -Werror"
SANITIZED = f"-O1 -g1 {STRICT} -fsanitize=address,undefined -fno-sanitize-recover"
SCALAR = "-O1 -DTC_SCALAR -std=c11 -Wall -Werror"


def export(model, folder: Path, flags: str) -> Path:
    """The program, built."""
    for name, text in tc.lower(model, stage="c", target=TARGET).files().items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    done = subprocess.run(["sh", "build.sh"], cwd=folder, env={**os.environ, "CFLAGS": flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    return folder


def call(folder: Path, inputs: list[np.ndarray], weights: str = "weights.bin") -> subprocess.CompletedProcess[str]:
    """Run the program on arrays, twice."""
    words = []
    for number, array in enumerate(inputs):
        np.ascontiguousarray(array).tofile(folder / f"in{number}.bin")
        words.append(f"in{number}.bin:{'x'.join(map(str, array.shape))}")
    return subprocess.run(["./model", weights, "2", "2", *words], cwd=folder, capture_output=True, text=True)


def compare(model, inputs: dict[str, np.ndarray], folder: Path) -> None:
    """The exported program computes what the compiled module does, and no sanitizer says anything."""
    expected = tc.compile(model, threads=2).run(inputs)

    done = call(folder, list(inputs.values()))

    assert done.returncode == 0 and not done.stderr, done.stderr[:3000]
    for number, (line, want) in enumerate(zip(done.stdout.splitlines(), expected.values(), strict=False)):
        assert [int(word) for word in line.split()[2:]] == list(want.shape)
        found = np.fromfile(folder / f"output{number}.bin", want.dtype).reshape(want.shape)
        np.testing.assert_allclose(found.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-6)


def model_of(nodes, inputs, outputs, weights=()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def value(name: str, shape, dtype=TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def steps_of_all_kinds() -> onnx.ModelProto:
    """A loop with a branch in it over a state, a result whose size the data decide, a gather that may fail, a dim of many sizes."""
    then = helper.make_graph([helper.make_node("Relu", ["acc"], ["a"])], "then", [], [value("a", None)])
    other = helper.make_graph([helper.make_node("Neg", ["acc"], ["b"])], "else", [], [value("b", None)])
    body = helper.make_graph(
        [
            helper.make_node("ReduceSum", ["acc"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "zero"], ["negative"]),
            helper.make_node("If", ["negative"], ["turned"], then_branch=then, else_branch=other),
            helper.make_node("Add", ["turned", "one"], ["next"]),
            helper.make_node("Identity", ["go"], ["still"]),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("acc", None)],
        [value("still", [], TensorProto.BOOL), value("next", None)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Loop", ["three", "", "h"], ["looped"], body=body),
        helper.make_node("Expand", ["one", "size"], ["grown"]),
        helper.make_node("Gather", ["h", "index"], ["row"], name="lookup", axis=0),
        helper.make_node("Softmax", ["looped"], ["y"], axis=-1),
    ]
    rng = np.random.default_rng(0)
    weights = [
        ("w", rng.normal(size=(24, 20)).astype(np.float32)),
        ("three", np.array(3)),
        ("zero", np.array(0, np.float32)),
        ("one", np.array(1, np.float32)),
    ]
    inputs = [value("x", ["n", 24]), value("index", [2], TensorProto.INT64), value("size", [2], TensorProto.INT64)]
    outputs = [value("y", ["n", 20]), value("grown", ["p", "q"]), value("row", [2, 20])]
    return model_of(nodes, inputs, outputs, weights)


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"x": np.maximum(rng.normal(size=(7, 24)), 0).astype(np.float32), "index": np.array([0, -1]), "size": np.array([3, 5])}


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return export(steps_of_all_kinds(), tmp_path_factory.mktemp("program"), SANITIZED.replace("-O1", "-O0"))


def test_loops_branches_and_sizes_from_data_run_without_python(program):
    compare(steps_of_all_kinds(), arrays(), program)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("rows put behind a value that others read before and after", marks=pytest.mark.slow),
        "values that take each other's place, and views of them",
    ],
)
def test_blocks_of_changing_sizes_hold_what_they_must(name, tmp_path):
    made = changing_sizes.parsed(name)
    folder = export(made, tmp_path, SANITIZED.replace("-O1", "-O0"))

    for inputs in changing_sizes.MODELS[name][1]:
        compare(made, inputs, folder)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [SANITIZED, SCALAR], ids=["sanitized", "scalar"])
def test_the_same_under_other_options(flags, tmp_path):
    compare(steps_of_all_kinds(), arrays(), export(steps_of_all_kinds(), tmp_path, flags))


def test_wrong_calls_are_refused_in_words(program):
    folder, good = program, arrays()

    wrong_size = call(folder, [good["x"][:, :23], good["index"], good["size"]])
    wrong_index = call(folder, [good["x"], np.array([0, 7]), good["size"]])
    negative = call(folder, [good["x"], good["index"], np.array([3, -5])])
    wrong_file = call(folder, list(good.values()), "model.h")

    assert wrong_size.stderr.strip() == 'input "x": dim 1 is 23, but must be 24'
    assert "lookup" in wrong_index.stderr and "7" in wrong_index.stderr
    assert "-5" in negative.stderr
    assert wrong_file.stderr.strip() == "model.h cannot be read, or is not of this model"
    assert {each.returncode for each in (wrong_size, wrong_index, negative)} == {1}


def test_nodes_that_run_in_python_are_named(monkeypatch):
    forget_adapter(monkeypatch, "Unique")
    nodes = [helper.make_node("Unique", ["x"], ["y"], name="no_kernel_for_this")]

    with pytest.raises(UnsupportedError, match="no_kernel_for_this"):
        tc.lower(model_of(nodes, [value("x", [9])], [value("y", ["m"])]), stage="c", target=TARGET).files()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [SANITIZED, SCALAR, "-Wall -Werror"], ids=["sanitized", "scalar", "optimized"])
@pytest.mark.parametrize("name", ["resnet50", "minilm"])
def test_real_models_run_without_python(name, flags, tmp_path):
    path = str(zoo.path(name))

    compare(path, zoo.random_inputs(name, np.random.default_rng(0)), export(path, tmp_path, flags))
