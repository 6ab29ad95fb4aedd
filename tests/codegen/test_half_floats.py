"""f16 and bf16: whole vectors on every CPU, and the same bits on each, with and without instructions of its own."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tc
from tc.interp import run_prim_func
from tc.ir.dtype import DType, bf16, f16, f32, f64, i32, i64, u32, u64
from tc.ir.expr import Cast
from tc.schedule.rules import apply_rules
from tc.target import Target, native_target
from tc.te import compute, create_prim_func, placeholder
from tests.golden_files import TARGETS
from tests.ops.kernels import finish, run

LEVELS = ("native", "x86-64-v3", "x86-64-v4")
CODES = {"f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def _model(code: int, nodes: list[onnx.NodeProto], width: int) -> onnx.ModelProto:
    """A model of `nodes` from x, code[64, width], to y; c is code[width]."""
    c = np.linspace(0.5, 1.5, width).astype(helper.tensor_dtype_to_np_dtype(code))
    literals = [onnx.numpy_helper.from_array(c, "c"), onnx.numpy_helper.from_array(np.array([1]), "last")]
    x = helper.make_tensor_value_info("x", code, (64, width))
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], literals)
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


_NODES = {
    "relu": [("Relu", "x", "y")],
    "add": [("Add", "x x", "y")],
    "abs": [("Abs", "x", "y")],
    "floor": [("Floor", "x", "y")],
    "ceil": [("Ceil", "x", "y")],
    "round": [("Round", "x", "y")],
    "maximum": [("Max", "x c", "y")],
    "choice": [("Less", "x c", "m"), ("Where", "m x c", "y")],
    "gelu chain": [("Mul", "x c", "a"), ("Add", "a c", "b"), ("Gelu", "b", "d"), ("Add", "d c", "y")],
    "softmax": [("Softmax", "x", "y")],
    "layernorm": [("LayerNormalization", "x c c", "y")],
    "sum": [("ReduceSum", "x last", "y")],
    "maximum of rows": [("ReduceMax", "x last", "y")],
}


def _nodes(kind: str) -> list[onnx.NodeProto]:
    return [helper.make_node(op, inputs.split(), [output]) for op, inputs, output in _NODES[kind]]


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("kind", _NODES)
def test_kernels_are_whole_vectors(kind: str, dtype: str, target: str) -> None:
    """Of bf16 every element went through a function by itself, on all CPUs without instructions for it."""
    text = tc.lower(_model(CODES[dtype], _nodes(kind), 512), "asm", TARGETS[target]).as_text()

    calls = set(re.findall(r"\bcall\w*\s+(\S+)", text))
    assert not any("trunc" in name or "extend" in name for name in calls)
    assert len(re.findall(r"\b(vpinsr\w|vpextr\w|vucomis\w|vaddss|vmulss)\b", text)) <= 12
    assert len(re.findall(r"%ymm" if target == "x86-64-v3" else r"%zmm", text)) >= 2


@pytest.mark.covering
@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("kind", _NODES)
def test_every_cpu_gives_the_same_bits(kind: str, dtype: str, rng: np.random.Generator) -> None:
    """Results, of the lengths of vectors that these have alike; sums are split by the lanes that there are, in f32."""
    model = _model(CODES[dtype], _nodes(kind), 33)
    x = rng.integers(0, 1 << 16, (64, 33), dtype=np.uint16).view(ml_dtypes.bfloat16 if dtype == "bf16" else np.float16)
    if kind in ("softmax", "layernorm", "sum"):
        x = (rng.integers(-64, 64, (64, 33)) / 16).astype(x.dtype)

    results = [tc.compile(model, target)(x) for target in LEVELS]

    numbers = [np.where(np.isnan(each.astype(np.float32)), 0, each.view(np.uint16)) for each in results]
    if kind in ("softmax", "layernorm"):  # a sum of f32 that differs in its last bit seldom shows
        assert all((one != numbers[0]).mean() < 0.01 for one in numbers)
    else:
        assert all(np.array_equal(one, numbers[0]) for one in numbers)


def _cast(x: np.ndarray, source: DType, to: DType, target: str) -> tuple[np.ndarray, np.ndarray]:
    operand = placeholder(x.shape, source, "x")
    func = create_prim_func("cast", [operand], [compute(x.shape, lambda i: Cast(operand[i], to), "y")])
    machine = native_target() if target == "native" else Target.parse(target)
    return run(finish(apply_rules(func, machine).func), [x], target=machine)[0], run_prim_func(func, [x])[0]


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("to", [f16, bf16], ids=str)
@pytest.mark.parametrize("source", [f32, f64], ids=str)
def test_casts_round_once_to_the_nearest(source: DType, to: DType, target: str) -> None:
    """Numbers below 2^-126 became zero in bf16 where the CPU has an instruction for the conversion."""
    with np.errstate(all="ignore"):
        narrow = np.arange(0, 1 << 16, 7, dtype=np.uint16).view(to.numpy).astype(np.float64)
        narrow = narrow[np.isfinite(narrow)]
        middles = (narrow + np.nextafter(narrow.astype(to.numpy), to.numpy.type(np.inf)).astype(np.float64)) / 2
        numbers = np.concatenate([narrow, middles, [np.inf, -np.inf, 1e300, 1e-300]]).astype(source.numpy)
        infinity = source.numpy.type(np.inf)
        x = np.concatenate([numbers, np.nextafter(numbers, infinity), np.nextafter(numbers, -infinity)])

    found, expected = _cast(x, source, to, target)

    assert np.array_equal(found.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("source", [i32, u32, i64, u64], ids=str)
def test_integers_become_bf16_in_one_rounding(source: DType, target: str, rng: np.random.Generator) -> None:
    """By way of f32, 2^24 + 2^16 + 1 would become the middle of two neighbours, and then the even one."""
    info = np.iinfo(source.numpy)
    middles = np.array([(257 << shift) for shift in range(8, source.bits - 10)], object)
    near = [int(m) + d for m in middles for d in (-1, 0, 1)]
    signed = near + ([-n for n in near] if source.kind == "int" else [])
    wide = rng.integers(info.min, info.max, 500, dtype=source.numpy, endpoint=True)
    x = np.concatenate([np.array(signed, source.numpy), wide, np.array([0, 1, info.min, info.max], source.numpy)])

    found, expected = _cast(x, source, bf16, target)

    assert np.array_equal(found.view(np.uint16), expected.view(np.uint16))


_ALONG = {
    "x * gelu(x) + x": (["Gelu x a", "Mul a x b", "Add b x y"], lambda x: x * x * np.vectorize(math.erfc)(-x * math.sqrt(0.5)) / 2 + x),
    "sigmoid(x) * x + x": (["Sigmoid x a", "Mul a x b", "Add b x y"], lambda x: x / (1 + np.exp(-x)) + x),
}


@pytest.mark.parametrize("chain", _ALONG)
def test_results_of_functions_along_a_chain_are_not_rounded(chain: str) -> None:
    """All numbers of f16. The result of an operator that computes in f32 was rounded even where the next one took it at once."""
    steps, formula = _ALONG[chain]
    nodes = [helper.make_node(op, inputs, [output]) for op, *inputs, output in map(str.split, steps)]
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(64, 1024)
    x = np.where(np.isfinite(x), x, np.float16(0))
    with np.errstate(all="ignore"):
        exact = formula(x.astype(np.float64)).astype(np.float16)

    found = [tc.compile(_model(TensorProto.FLOAT16, nodes, 1024), target)(x) for target in LEVELS]

    assert (found[0] == exact).mean() > 0.999
    for other in found[1:]:
        assert np.array_equal(other.view(np.uint16), found[0].view(np.uint16))


@pytest.mark.parametrize("dtype", CODES)
def test_chains_are_rounded_where_they_are_stored(dtype: str, rng: np.random.Generator) -> None:
    """Each operation was rounded: in bf16, of three products the first two digits were left."""
    nodes = [("Mul", "x c", "a"), ("Mul", "a x", "b"), ("Sub", "b c", "y")]
    model = _model(CODES[dtype], [helper.make_node(op, inputs.split(), [output]) for op, inputs, output in nodes], 33)
    x = rng.standard_normal((64, 33)).astype(helper.tensor_dtype_to_np_dtype(CODES[dtype]))
    c = np.linspace(0.5, 1.5, 33).astype(x.dtype).astype(np.float64)
    exact = x.astype(np.float64) ** 2 * c - c

    for target in LEVELS:
        found = tc.compile(model, target)(x)
        assert (found == exact.astype(np.float32).astype(x.dtype)).mean() > 0.999
        strict = tc.compile(model, target, numerics="strict")(x)
        assert np.array_equal(strict, (x * c.astype(x.dtype)) * x - c.astype(x.dtype))


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round"])
def test_whole_numbers_of_all_halves(op: str, target: str) -> None:
    """LLVM narrows a rounding in f32 to one of f16, which it makes one by one."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [None])
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", [info], [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with np.errstate(invalid="ignore"):
        want = {"Floor": np.floor, "Ceil": np.ceil, "Round": np.rint}[op](x)
    for count in (len(x), 5, 1):
        found = tc.compile(model, target=target, threads=1)(x[-count:])
        numbers = ~np.isnan(want[-count:])
        np.testing.assert_array_equal(found, want[-count:])
        np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(want[-count:][numbers]))
