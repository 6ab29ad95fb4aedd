"""Attention in the spellings of models: found, and computed as onnxruntime computes the model as it is written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.frontend.registry import import_model
from tc.ir.graph import Call
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY

Arrays = dict[str, np.ndarray]


class Model:
    """An ONNX model in the making; its inputs are the arrays it is tried with."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def const(self, value: object, dtype: type = np.float32) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), f"c{len(self.weights)}"))
        return self.weights[-1].name

    def op(self, kind: str, *inputs: str, **attrs: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"t{len(self.nodes)}"], **attrs))
        return self.nodes[-1].output[0]

    def finish(self, *outputs: str, symbolic: bool = False) -> bytes:
        def dims(name: str, shape: tuple[int, ...]) -> list[object]:
            if symbolic and name == "mask":
                return [*shape[:2], "m_2", "n_2"]
            return [f"{'m' if name == 'q' else 'n'}_{d}" if symbolic and d == len(shape) - 2 else n for d, n in enumerate(shape)]

        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), dims(name, a.shape))
            for name, a in self.arrays.items()
        ]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "attention", inputs, results, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return model.SerializeToString()


def qkv(batch: int, heads: int, rows: int, columns: int, width: int, kv_heads: int = 0, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    shapes = {"q": (batch, heads, rows, width), "k": (batch, kv_heads or heads, columns, width)}
    shapes["v"] = shapes["k"]
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def expected(model: bytes, arrays: Arrays) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, arrays)


def ops_of(model: bytes) -> list[str]:
    main = run_pipeline(import_model(model).module, SIMPLIFY).main
    return [binding.value.op for binding in main.bindings if isinstance(binding.value, Call)]


def check(model: bytes, arrays: Arrays, tolerance: float = 2e-6) -> None:
    """The compiled model, on one thread and on two, against onnxruntime."""
    wanted = expected(model, arrays)
    found = [list(tc.compile(model, threads=threads).run(arrays).values()) for threads in (1, 2)]
    for want, one, two in zip(wanted, *found, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), two.view(np.uint32))
        np.testing.assert_allclose(one, want, rtol=tolerance, atol=tolerance * 4)


def scores_of(m: Model) -> str:
    return m.op("MatMul", "q", m.op("Transpose", "k", perm=(0, 1, 3, 2)))


def weighed(m: Model, scores: str, value: str = "v") -> str:
    return m.op("MatMul", m.op("Softmax", scores, axis=-1), value)


SIZES = [(1, 1, 1, 1, 4), (1, 2, 1, 40, 16), (2, 3, 5, 7, 8), (1, 2, 33, 47, 20), (1, 1, 64, 64, 32), (1, 3, 130, 97, 64)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_scale_and_mask_added(size: tuple[int, ...]) -> None:
    arrays = qkv(*size)
    batch, _, _, columns, _ = size
    mask = np.where(np.random.default_rng(1).random((batch, 1, 1, columns)) < 0.3, np.float32(-1e4), np.float32(0))
    m = Model(**arrays, mask=mask.astype(np.float32))
    model = m.finish(weighed(m, m.op("Add", m.op("Div", scores_of(m), m.const(3.0)), "mask")))

    assert ops_of(model) == ["attention"]
    check(model, m.arrays)


@pytest.mark.covering
@pytest.mark.parametrize("fill", [float("-inf"), -1e9, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("rows", [3, 40])
def test_masks_by_selection_and_rows_without_any_key(fill: float, rows: int) -> None:
    arrays = qkv(2, 2, rows, 21, 16)
    keep = np.random.default_rng(2).random((2, 1, rows, 21)) < 0.6
    keep[0, :, 1] = False
    m = Model(**arrays, keep=keep)
    scores = m.op("Where", "keep", m.op("Mul", m.const(0.25), scores_of(m)), m.const(fill))
    model = m.finish(weighed(m, scores))

    assert ops_of(model) == ["attention"]
    check(model, m.arrays)


def without_nan(m: Model, chances: str) -> str:
    """As torch exports what may be masked as a whole."""
    return m.op("Where", m.op("IsNaN", chances), m.const(0.0), chances)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf"), float("-inf")])
def test_rows_without_any_key_are_zeros_where_the_model_says_so(bad: float, rows: int, symbolic: bool) -> None:
    """So are those of which a score is no number, but for what is none of the values."""
    arrays, rng = qkv(2, 2, rows, 21, 16), np.random.default_rng(3)
    arrays["q"][0, 1, -1, 2], arrays["k"][1, 0, 5, 3] = bad, bad
    mask = np.where(rng.random((2, 1, rows, 21)) < 0.4, -np.inf, 0).astype(np.float32)
    mask[0, :, 0] = -np.inf
    for value in (1.0, bad):
        arrays["v"][1, 1, 4, 2] = value
        m = Model(**arrays, mask=mask)
        chances = m.op("Softmax", m.op("Add", m.op("Mul", scores_of(m), m.const(0.25)), "mask"), axis=-1)
        model = m.finish(m.op("MatMul", without_nan(m, chances), "v"), symbolic=symbolic)

        assert ops_of(model) == ["attention"]
        check(model, m.arrays)


def test_chances_that_are_read_elsewhere_are_not_made_twice() -> None:
    m = Model(**qkv(1, 2, 9, 17, 8))
    chances = m.op("Softmax", scores_of(m), axis=-1)
    model = m.finish(m.op("MatMul", without_nan(m, chances), "v"), m.op("Relu", chances))

    assert "attention" not in ops_of(model)
    check(model, m.arrays)


def test_a_mask_that_drops_and_a_second_that_is_added() -> None:
    m = Model(**qkv(1, 2, 9, 17, 8), drop=np.tri(9, 17, 0) == 0, bias=np.random.rand(2, 9, 17).astype(np.float32))
    scores = m.op("Add", m.op("Where", "drop", m.const(-1e4), scores_of(m)), "bias")
    model = m.finish(weighed(m, scores))

    assert ops_of(model) == ["attention"]
    check(model, m.arrays)


def test_scales_on_both_operands_and_transposed_heads() -> None:
    rng = np.random.default_rng(4)
    m = Model(**{name: rng.standard_normal((2, 19, 3, 16)).astype(np.float32) for name in "qkv"})
    q = m.op("Mul", m.op("Transpose", "q", perm=(0, 2, 1, 3)), m.const(0.5))
    k = m.op("Transpose", m.op("Mul", "k", m.const([0.7])), perm=(0, 2, 3, 1))
    y = weighed(m, m.op("MatMul", q, k), m.op("Transpose", "v", perm=(0, 2, 1, 3)))
    model = m.finish(m.op("Reshape", m.op("Transpose", y, perm=(0, 2, 1, 3)), m.const([2, 19, 48], np.int64)))

    assert ops_of(model) == ["attention", "reshape"]
    check(model, m.arrays)


def test_batch_and_heads_as_one_axis() -> None:
    rng = np.random.default_rng(5)
    shapes = {"q": (6, 11, 8), "k": (6, 13, 8), "v": (6, 13, 8)}
    m = Model(**{n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}, mask=np.zeros((2, 1, 1, 13), np.float32))
    m.arrays["mask"][0, ..., 5:] = -1e9
    scores = m.op("MatMul", "q", m.op("Transpose", "k", perm=(0, 2, 1)))
    scores = m.op("Add", m.op("Reshape", scores, m.const([2, 3, 11, 13], np.int64)), "mask")
    model = m.finish(weighed(m, m.op("Reshape", scores, m.const([6, 11, 13], np.int64))))

    assert "attention" in ops_of(model) and "softmax" not in ops_of(model)
    check(model, m.arrays)


@pytest.mark.covering
@pytest.mark.parametrize("rows", [1, 2, 24])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_that_share_keys(rows: int, kv_heads: int) -> None:
    m = Model(**qkv(1, 4, rows, 35, 16, kv_heads=kv_heads))

    def repeated(name: str) -> str:
        wide = m.op("Unsqueeze", name, m.const([2], np.int64))
        wide = m.op("Expand", wide, m.const([1, kv_heads, 4 // kv_heads, 35, 16], np.int64))
        return m.op("Reshape", wide, m.const([1, 4, 35, 16], np.int64))

    scores = m.op("MatMul", "q", m.op("Transpose", repeated("k"), perm=(0, 1, 3, 2)))
    model = m.finish(weighed(m, scores, repeated("v")))

    assert ops_of(model) == ["attention"]
    check(model, m.arrays)


def test_infinities_and_nan_spread_as_in_the_model() -> None:
    m = Model(**qkv(1, 1, 20, 20, 16))
    m.arrays["q"][0, 0, 3, 0] = np.nan
    m.arrays["k"][0, 0, 5] = np.inf
    m.arrays["v"][0, 0, 7, 2] = -np.inf
    model = m.finish(weighed(m, scores_of(m)))

    assert ops_of(model) == ["attention"]
    check(model, m.arrays)


def test_no_keys_give_zeros() -> None:
    m = Model(**qkv(1, 2, 6, 0, 8))
    model = m.finish(weighed(m, scores_of(m)))

    result = next(iter(tc.compile(model).run(m.arrays).values()))

    np.testing.assert_array_equal(result, np.zeros((1, 2, 6, 8), np.float32))


@pytest.mark.parametrize("sizes", [[(1, 1), (1, 9), (3, 5), (17, 16), (16, 40), (70, 70), (13, 200)]], ids=["many"])
def test_symbolic_lengths(sizes: list[tuple[int, int]]) -> None:
    m = Model(**qkv(2, 2, 5, 7, 16))
    model = m.finish(weighed(m, m.op("Mul", scores_of(m), m.const(0.25))), symbolic=True)
    compiled = [tc.compile(model, threads=threads) for threads in (1, 2)]

    assert ops_of(model) == ["attention"]
    for rows, columns in sizes:
        arrays = qkv(2, 2, rows, columns, 16, seed=rows)
        one, two = (next(iter(c.run(arrays).values())) for c in compiled)
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(one, expected(model, arrays)[0], rtol=2e-6, atol=4e-6)


def _returned_chances(m: Model) -> tuple[str, ...]:
    chances = m.op("Softmax", scores_of(m), axis=-1)
    return m.op("MatMul", chances, "v"), chances


def _other_axis(m: Model) -> tuple[str, ...]:
    return (m.op("MatMul", m.op("Softmax", scores_of(m), axis=2), "v"),)


def _returned_scores(m: Model) -> tuple[str, ...]:
    scores = scores_of(m)
    return weighed(m, scores), scores


def _divided_anew(m: Model) -> tuple[str, ...]:
    scores = m.op("Reshape", scores_of(m), m.const([2, 1, 6, 10], np.int64))
    scores = m.op("Add", scores, m.const(np.random.default_rng(6).random((2, 1, 1, 10))))
    return (weighed(m, m.op("Reshape", scores, m.const([1, 2, 6, 10], np.int64))),)


@pytest.mark.parametrize("build", [_returned_chances, _other_axis, _returned_scores, _divided_anew])
def test_what_is_used_elsewhere_or_is_no_attention_stays(build: Callable[[Model], tuple[str, ...]]) -> None:
    m = Model(**qkv(1, 2, 6, 10, 8))
    model = m.finish(*build(m))

    assert "attention" not in ops_of(model)
    check(model, m.arrays)


def test_a_kernel_names_all_nodes_of_an_attention_and_explains_each() -> None:
    """It named the last one, and the others were no nodes to `explain`."""
    m = Model(**qkv(1, 2, 6, 10, 8))
    keys = m.op("Transpose", "k", perm=[0, 1, 3, 2])
    m.op("MatMul", m.op("Softmax", m.op("Mul", m.op("MatMul", "q", keys), m.const(0.25)), axis=-1), "v")
    names = ("turned", "scores", "scaled", "chances", "weighed")
    for node, name in zip(m.nodes, names, strict=True):
        node.name = name
    model = m.finish(m.nodes[-1].output[0])

    compiled = tc.compile(model)

    assert [kernel.nodes for kernel in compiled.report().kernels] == [names]
    assert all(f"together with: {', '.join(names)}" in compiled.explain(name) for name in names)
    assert f"computes {'; '.join(names)}" in tc.lower(model, "asm", "x86-64-v3").as_text().splitlines()[0]
