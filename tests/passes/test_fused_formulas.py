"""Groups end where the formula of an element would grow without bound, and where indices would not be looked at any more."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

import tc
from tc.errors import TcError
from tc.ir.arith import Facts
from tc.ir.dtype import f32, i64
from tc.ir.expr import const
from tc.ir.types import TensorType
from tc.ops.registry import get_op, inference
from tc.passes.graph.fusion_kind import LoopShape, infer_loop_shape
from tests.frontend.models import run_onnxruntime

HEAD = '<ir_version: 10, opset_import: ["" : 20]>'


def chain(node: str, length: int, dtype: str = "float") -> ModelProto:
    """A model of one operator again and again; `node` has {x} where the last result goes."""
    body = " ".join(f"v{i + 1} = {node.format(x=f'v{i}')}" for i in range(length))
    table = f", {dtype}[50] t" if "t," in node else ""
    return parse_model(f"{HEAD} g ({dtype}[50] v0{table}) => ({dtype}[50] v{length}) {{ {body} }}")


@pytest.mark.parametrize("node", ['Gelu <approximate="tanh"> ({x})', "Softplus ({x})", "Celu <alpha = 0.5> ({x})"])
def test_a_chain_that_doubles_with_each_operator_is_cut(node: str) -> None:
    module = tc.compile(chain(node, 9))
    x = np.random.default_rng(0).standard_normal(50, dtype=np.float32)

    assert 1 < len(module.report().kernels) < 9
    np.testing.assert_allclose(module.run({"v0": x})["v9"], run_onnxruntime(chain(node, 9), {"v0": x})[0], rtol=2e-5, atol=1e-5)


def test_a_chain_that_does_not_grow_is_one_kernel() -> None:
    assert len(tc.compile(chain("Neg ({x})", 24)).report().kernels) == 1


def test_a_chain_of_what_is_used_again_but_computed_once_is_one_kernel() -> None:
    module, x = tc.compile(chain("Mish ({x})", 9)), np.random.default_rng(0).standard_normal(50, dtype=np.float32)

    assert len(module.report().kernels) == 1
    np.testing.assert_allclose(
        module.run({"v0": x})["v9"], run_onnxruntime(chain("Mish ({x})", 9), {"v0": x})[0], rtol=2e-5, atol=1e-5
    )


def test_indices_within_indices_within_indices() -> None:
    model, rng = chain("Gather (t, {x})", 12, "int64"), np.random.default_rng(0)
    arrays = {"v0": rng.integers(-50, 50, 50), "t": rng.permutation(50)}

    np.testing.assert_array_equal(tc.compile(model).run(arrays)["v12"], run_onnxruntime(model, arrays)[0])


INDEXED = """g (float[7, 5] t, int64[6] i, bool[6] c, int64[2] j) => (float[a, b] y)
    <int64[1] s = {0}, int64[1] e = {2}, int64[4] p = {1, 1, 1, 1}, int64[4] cut = {0, 0, -4, 0}> { %s }"""


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Gather (t, i) b = Slice (a, s, e) y = Relu (b)",
        "a = Exp (t) b = Gather (a, i) d = Neg (b) f = Slice (d, s, e) y = Relu (f)",
        "a = Gather (t, s) p0 = Exp (a) b = Gather (t, i) d = Add (p0, b) f = Slice (d, s, e) y = Relu (f)",
        "a = Gather (t, i) y = Compress <axis = 0> (a, c)",
        "a = Gather (t, i) y = Gather (a, j)",
        "a = Gather (t, i) b = Neg (a) d, f, h = Split <num_outputs = 3> (b) y = Exp (d)",
        "a = Gather (t, i) b = Neg (a) y = Pad (b, cut)",
        "a = Gather (t, i) b = Transpose (a) d = Gather <axis = 1> (b, j) y = Exp (d)",
    ],
)
def test_an_index_is_looked_at_though_nobody_reads_what_it_leads_to(nodes: str) -> None:
    model = parse_model(f"{HEAD} {INDEXED % nodes}")
    module, rng = tc.compile(model), np.random.default_rng(0)
    arrays = {
        "t": rng.standard_normal((7, 5), dtype=np.float32),
        "i": np.array([0, -7, 6, 3, 4, -1]),
        "c": np.array([True, True, False, True, True, False]),
        "j": np.array([1, -6]),
    }
    arrays = {info.name: arrays[info.name] for info in model.graph.input}

    np.testing.assert_allclose(module.run(arrays)["y"], run_onnxruntime(model, arrays)[0], rtol=1e-6)
    for bad in (7, -8):
        arrays["i"][5] = bad
        with pytest.raises(TcError, match=f"index {bad} is out of range for axis 0 of size 7"):
            module.run(arrays)


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Gather (t, i) b = Transpose (a) y = Neg (b)",
        "a = Gather (t, i) b = Neg (a) y = Pad (b, p)",
        "a = Gather (t, i) b = Neg (a) y = Concat <axis = 0> (b, t)",
        "a = Gather (t, i) y = Softmax (a)",
        "a = Gather (t, i) y = Trilu (a)",
    ],
)
def test_what_reads_all_of_a_gathered_tensor_makes_it(nodes: str) -> None:
    model = parse_model(f"{HEAD} {INDEXED % nodes}".replace(", bool[6] c, int64[2] j", ""))

    assert len(tc.compile(model).report().kernels) == 1


def shape_of(op: str, *types: TensorType, results: tuple[TensorType, ...], **attrs: object) -> LoopShape:
    with inference(Facts()):
        return infer_loop_shape(get_op(op), types, get_op(op).attrs(tuple(attrs.items())), results)  # type: ignore[arg-type]


def test_the_formula_of_an_operator() -> None:
    row = TensorType((const(8),), f32)
    twice = shape_of("mul", row, row, results=(row,))
    table, where = TensorType((const(9),), f32), TensorType((const(8),), i64)
    gathered = shape_of("gather", table, where, results=(row,), axis=0)

    assert twice.times == (1, 1) and not twice.checks
    assert gathered.checks and gathered.times[0] == 1 and gathered.times[1] > 1 and gathered.terms > 4
    assert gathered.reads_all(1, Facts()) and not gathered.reads_all(0, Facts())
