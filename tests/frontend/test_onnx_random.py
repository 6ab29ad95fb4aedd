"""Random operators: the distributions that ONNX asks for, the same numbers for the same key, seed and place, others for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy import stats

import tc
from tc.errors import InputError, ModelError
from tc.ops.random import random_bits
from tests.frontend.models import make_model, node

COUNT = 40_000
F32 = np.float32


def run(nodes: list[onnx.NodeProto], inputs: dict[str, np.ndarray] | None = None, **options: Any) -> Any:
    return compiled(nodes, inputs, **options)(*(inputs or {}).values())


def compiled(nodes: list[onnx.NodeProto], inputs: dict[str, np.ndarray] | None = None, **options: Any) -> tc.CompiledModule:
    given = {name: (array.dtype, list(array.shape)) for name, array in (inputs or {}).items()}
    return tc.compile(make_model(nodes, given, [nodes[-1].output[0]], opset=22), on_unsupported="error", **options)


def test_words_are_those_of_philox() -> None:
    """Known answers of the authors' test suite (Random123, kat_vectors): the counter 0 and the key 0."""
    assert [int(random_bits(0, (1,), 0, word)[0]) for word in range(4)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("dtype", [F32, np.float64, np.float16])
def test_normal_numbers_are_distributed_so(dtype: type) -> None:
    found = run([node("RandomNormal", "", "y", shape=[COUNT], mean=3.0, scale=2.0, dtype=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))])

    assert found.dtype == dtype and len(np.unique(found)) > (COUNT * 0.99 if dtype != np.float16 else 4000)
    assert stats.kstest(found.astype(np.float64), stats.norm(3, 2).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(found[1:].astype(F32), found[:-1].astype(F32))[0, 1]) < 0.02


@pytest.mark.parametrize("dtype", [F32, np.float64, np.float16])
def test_uniform_numbers_are_distributed_so(dtype: type) -> None:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    found = run([node("RandomUniform", "", "y", shape=[200, COUNT // 200], low=-1.0, high=3.0, dtype=code)])

    assert found.dtype == dtype and found.min() >= -1 and found.max() <= 3
    assert stats.kstest(found.reshape(-1).astype(np.float64), stats.uniform(-1, 4).cdf).pvalue > 1e-3


def test_shapes_and_types_are_those_of_another_tensor() -> None:
    x = np.zeros((3, 0, 5), np.float16)

    assert run([node("RandomNormalLike", "x", "y")], {"x": x}).dtype == np.float16
    assert run([node("RandomUniformLike", "x", "y", dtype=TensorProto.DOUBLE)], {"x": x}).shape == x.shape
    symbolic = tc.compile(make_model([node("RandomUniformLike", "x", "y")], {"x": (F32, ["n", "m"])}, ["y"], opset=22))
    for shape in ((1, 1), (0, 7), (5, 300)):
        assert symbolic(np.zeros(shape, F32)).shape == shape
    with pytest.raises(ModelError, match="RandomNormalLike of i64; it makes floats"):
        run([node("RandomNormalLike", "x", "y")], {"x": np.zeros(3, np.int64)})


def test_bernoulli_is_true_as_often_as_asked() -> None:
    p = np.repeat(np.array([0.0, 0.25, 0.9, 1.0, np.nan], F32), COUNT).reshape(5, COUNT)

    found = run([node("Bernoulli", "x", "y", dtype=TensorProto.BOOL)], {"x": p}).mean(1)

    assert found[0] == 0 and found[3] == 1 and found[4] == 0
    np.testing.assert_allclose(found[1:3], [0.25, 0.9], atol=0.01)


def test_multinomial_draws_by_log_probabilities() -> None:
    p = np.array([[0.1, 0.2, 0.7, 0], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        logits = (np.log(p) + 5).astype(F32)

    found = run([node("Multinomial", "x", "y", sample_size=COUNT, dtype=TensorProto.INT64)], {"x": logits})

    assert found.shape == (2, COUNT) and found.dtype == np.int64
    for row, wanted in zip(found, p, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=4) / COUNT, wanted, atol=0.01)
        assert np.bincount(row, minlength=4)[wanted == 0].sum() == 0


def test_numbers_depend_on_the_run_and_not_on_threads(tmp_path: Path) -> None:
    nodes = [node("RandomNormal", "", "y", shape=[64, 1000])]
    one, two = compiled(nodes, threads=1), compiled(nodes, threads=2)
    runs = [one() for _ in range(3)]

    for first in runs:
        np.testing.assert_array_equal(first, two())
    assert len({array.tobytes() for array in runs}) == 3
    np.testing.assert_array_equal(one(np.array(1, np.uint64)), runs[1])
    np.testing.assert_array_equal(one.run({"tc.random_key": np.array(2, np.uint64)})["y"], runs[2])
    assert one.run({})["y"].tobytes() not in {array.tobytes() for array in runs}
    one.save(tmp_path / "m.tcm")
    np.testing.assert_array_equal(tc.load(tmp_path / "m.tcm")(), runs[0])
    with pytest.raises(InputError, match=r'input "tc\.random_key": dtype is i64'):
        one(np.array(1))


def test_modules_for_other_shapes_and_defaults_go_on_with_the_keys() -> None:
    """Each counted its own runs, and repeated the numbers of the first."""
    shapes = {"x": (F32, ["n"]), "z": (F32, ["m"]), "w": (F32, [1])}
    nodes = [node("Add", "x z", "s"), node("RandomNormalLike", "s", "r"), node("Mul", "r w", "y")]
    module = tc.compile(make_model(nodes, shapes, ["y"], {"w": np.ones(1, F32)}, opset=22))
    long, short = np.zeros(50, F32), np.zeros(1, F32)

    runs = [module(long, long), module(long, short), module({"x": long, "z": long, "w": np.ones(1, F32)}), module(long, short)]

    assert all(array.shape == (50,) for array in runs) and len({array.tobytes() for array in runs}) == 4


def test_a_seed_says_which_numbers_whatever_the_place() -> None:
    nodes = [
        node("RandomNormal", "", "a", shape=[100], seed=3.0),
        node("RandomNormal", "", "b", shape=[100], seed=3.0),
        node("RandomNormal", "", "c", shape=[100], seed=4.0),
        node("RandomNormal", "", "d", shape=[100]),
        node("RandomNormal", "", "e", shape=[100]),
        node("Concat", "a b c d e", "y", axis=0),
    ]
    a, b, *others = run(nodes).reshape(5, 100)

    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, run(nodes[:1]))
    assert len({array.tobytes() for array in (a, *others)}) == 4


def model_of(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def loop(body: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any], name: str = "body") -> onnx.GraphProto:
    value = helper.make_tensor_value_info
    given = [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), *inputs]
    return helper.make_graph(body, name, given, [value("go", TensorProto.BOOL, []), *outputs])


@pytest.mark.parametrize("bound", [3, "trips"], ids=["known", "run time"])
def test_each_iteration_of_loops_in_loops_has_its_own(bound: int | str) -> None:
    value = helper.make_tensor_value_info
    rows, result = value("rows", TensorProto.FLOAT, [4, 50]), value("y", TensorProto.FLOAT, None)
    inner = loop([node("Identity", "c", "go"), node("RandomUniform", "", "r", shape=[50])], [], [value("r", TensorProto.FLOAT, [50])])
    inner.input[0].name, inner.input[1].name, inner.node[0].input[0] = "j", "d", "d"
    inner.node[0].output[0] = inner.output[0].name = "on"
    outer = loop([node("Identity", "c", "go"), helper.make_node("Loop", ["four", ""], ["rows"], body=inner)], [], [rows])
    constants = [numpy_helper.from_array(np.array(4), "four")]
    given = [] if bound != "trips" else [value("trips", TensorProto.INT64, [])]
    if bound != "trips":
        constants.append(numpy_helper.from_array(np.array(bound), "trips"))
    graph = helper.make_graph([helper.make_node("Loop", ["trips", ""], ["y"], body=outer)], "g", given, [result], constants)

    found = tc.compile(model_of(graph))(*([np.array(3)] if given else []))

    assert found.shape == (3, 4, 50) and len({row.tobytes() for row in found.reshape(12, 50)}) == 12


def test_a_loop_that_counts_its_iterations_first_draws_the_same_again() -> None:
    """Stacks numbers until one is above 0.9."""
    value = helper.make_tensor_value_info
    nodes = [node("RandomUniform", "", "one", shape=[1]), node("Squeeze", "one", "r"), node("Less", "r limit", "go")]
    body = loop(nodes, [], [value("r", TensorProto.FLOAT, [])])
    constants = [numpy_helper.from_array(np.array(0.9, F32), "limit"), numpy_helper.from_array(np.array(1000), "most")]
    result = value("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([helper.make_node("Loop", ["most", ""], ["y"], body=body)], "g", [], [result], constants)
    module = tc.compile(model_of(graph))

    for _ in range(20):
        found = module()
        assert (found[:-1] < 0.9).all() and found[-1] >= 0.9
