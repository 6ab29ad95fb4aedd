"""Convolutions of bytes as products: exact for all bytes, zero points and shapes, on every kind of CPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.ir.dtype import i32, u8
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.integer_products import integer_products
from tc.target import Target
from tests.draws import some_of
from tests.frontend.models import make_model, node, run_onnxruntime
from tests.passes.test_graph_rules import ops_of

Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, list[int]]]
CASES: list[Case] = [
    ((1, 20, 9, 28), (24, 20, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 12, 11), (7, 3, 4, 2), {"pads": [1, 0, 2, 1], "strides": [2, 3], "dilations": [1, 2]}),
    ((1, 33, 17), (5, 33, 1), {}),
    ((1, 2, 5, 6, 7), (3, 2, 2, 1, 3), {"strides": [1, 2, 1]}),
    ((3, 1, 4, 4), (1, 1, 4, 4), {}),
]


def _expected(x: np.ndarray, w: np.ndarray, attrs: dict[str, list[int]]) -> np.ndarray:
    rank = x.ndim - 2
    pads, strides = attrs.get("pads", [0] * 2 * rank), attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    x = np.pad(x.astype(np.int64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, 2 + rank)))
    windows = windows[(slice(None), slice(None), *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))]
    inside = list(range(2 + rank, 2 + 2 * rank))
    sums = np.tensordot(windows, w.astype(np.int64), ([1, *inside], list(range(1, 2 + rank))))
    return np.moveaxis(sums, -1, 1).astype(np.int32)


def _bytes(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    values.flat[:2] = info.min, info.max
    return values


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v4", "x86-64-v3"])
@pytest.mark.parametrize("weights_known", [True, False])
@pytest.mark.parametrize("dtypes", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)], ids=["u8s8", "s8s8", "u8u8"])
def test_sums_are_exact(dtypes: tuple[type, type], weights_known: bool, target: str, rng: np.random.Generator) -> None:
    for number, (x_shape, w_shape, attrs) in enumerate(CASES):
        x, w = _bytes(rng, dtypes[0], x_shape), _bytes(rng, dtypes[1], w_shape)
        zeros = [np.array(v, d) for v, d in zip((9, 3), dtypes, strict=True)] if number % 2 else []
        given = {"x": x} if weights_known else {"x": x, "w": w}
        literals = [*([numpy_helper.from_array(w, "w")] if weights_known else []), *map(numpy_helper.from_array, zeros, ("zx", "zw"))]
        node = helper.make_node("ConvInteger", ["x", "w", *["zx", "zw"][: len(zeros)]], ["y"], **attrs)
        inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()]
        graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")], literals)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

        found = tc.compile(model, target, threads=1).run(given)["y"]

        zx, zw = (int(z) for z in zeros) if zeros else (0, 0)
        assert np.array_equal(found, _expected(x.astype(np.int64) - zx, w.astype(np.int64) - zw, attrs))


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("dtypes", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.uint8)], ids=["u8u8", "u8s8", "s8u8"])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_literals_less_the_zero_point_of_their_channel_need_no_more_bits(
    groups: int, dtypes: tuple[type, type], target: str, rng: np.random.Generator
) -> None:
    x, w = _bytes(rng, dtypes[0], (2, 6, 9, 8)), _bytes(rng, dtypes[1], (12, 6 // groups, 3, 2))
    zx, zw = np.array(7, dtypes[0]), _bytes(rng, dtypes[1], (12,))
    attrs = {"pads": [1, 0, 2, 1], "strides": [2, 1]}
    node = helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["y"], group=groups, **attrs)
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["n", 6, "h", "w"])]
    literals = [numpy_helper.from_array(a, name) for name, a in (("w", w), ("zx", zx), ("zw", zw))]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")], literals)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    module = tc.compile(model, target, threads=1)

    shifted, weights = x.astype(np.int64) - int(zx), w.astype(np.int64) - zw.astype(np.int64).reshape(-1, 1, 1, 1)
    parts = zip(np.split(shifted, groups, 1), np.split(weights, groups), strict=True)
    np.testing.assert_array_equal(module.run({"x": x})["y"], np.concatenate([_expected(a, b, attrs) for a, b in parts], 1))


@pytest.mark.parametrize("weights", [np.uint8, np.int8])
@pytest.mark.parametrize("attrs", [
    {}, {"pads": [1, 2, 0, 1]}, {"pads": [1, 1, 1, 1], "strides": [2, 1], "group": 2}, {"pads": [0, 1, 1, 0], "group": 4},
    {"pads": [1, 1, 1, 1], "dilations": [2, 1]},
], ids=str)  # fmt: skip
def test_images_with_a_zero_point_that_is_data_are_bytes(attrs: dict[str, Any], weights: type, rng: np.random.Generator) -> None:
    """As `quantize_dynamic` of onnxruntime writes convolutions: they were summed in words, at a tenth of the speed."""
    limits = np.iinfo(weights)
    w = rng.integers(limits.min, limits.max + 1, (8, 4 // attrs.get("group", 1), 3, 2)).astype(weights)
    zero = np.array(77 if weights is np.uint8 else 0, weights)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["y"], **attrs),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, "h", 7])]
    results = [helper.make_tensor_value_info("y", TensorProto.INT32, None)]
    literals = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(zero, "wz")]
    graph = helper.make_graph(nodes, "g", given, results, literals)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    module = tc.compile(model, threads=1)

    for shape in ((1, 4, 6, 7), (3, 4, 9, 7)):
        x = (rng.standard_normal(shape) * 3 - 2).astype(np.float32)
        np.testing.assert_array_equal(module(x), *run_onnxruntime(model, {"x": x}))
    assert len(np.asarray(module(np.zeros((0, 4, 5, 7), np.float32)))) == 0
    assert " conv(" not in tc.lower(model, "graph").as_text()


def test_wider_weights_stay_convolutions() -> None:
    b = GraphBuilder()
    x = b.call("cast", b.param("x", tensor_type((1, 4, 5, 5), u8)), dtype=i32)
    w = b.const(np.full((4, 4, 3, 3), 300, np.int32))
    module = IRModule((b.function("main", (b.call("conv", x, w),)),))

    assert ops_of(integer_products(module)) == ops_of(module)


def _zero_points(rng: np.random.Generator, kind: str, dtype: type, size: int) -> np.ndarray | None:
    shape = {"none": None, "one": (), "each": (size,)}[kind]
    return None if shape is None else np.asarray(_bytes(rng, dtype, (max(size, 2),))[: size if shape else 1].reshape(shape))


TARGETS = ("native", "x86-64-v4", "x86-64-v3")
DRAWS = [(seed, target) for seed in range(24) for target in TARGETS]
QUICK_DRAWS = [(seed, target) for seed, target in DRAWS if seed % 3 == TARGETS.index(target)]


@pytest.mark.parametrize(("seed", "target"), some_of(DRAWS, quick=QUICK_DRAWS))
def test_products_with_literals_are_exact(seed: int, target: str) -> None:
    """Zero points known or not, of all rows or of each, rows of any number, in batches or one vector."""
    rng = np.random.default_rng(seed)
    depth, columns = int(rng.choice([1, 4, 33, 64, 130])), int(rng.choice([1, 7, 8, 33, 64, 100]))
    lead = [(5,), (), (40,), (2, 3, 7)][int(rng.integers(4))]
    dtypes = [(np.uint8, np.int8)[int(rng.integers(2))] for _ in range(2)]
    x, w = _bytes(rng, dtypes[0], (*lead, depth + 1))[..., :depth], _bytes(rng, dtypes[1], (depth, columns + 1))[:, :columns]
    kinds = rng.choice(["none", "one", "each"], 2)
    zero_x = _zero_points(rng, "one" if not lead and kinds[0] == "each" else str(kinds[0]), dtypes[0], lead[-1] if lead else 1)
    zero_w = _zero_points(rng, str(kinds[1]), dtypes[1], columns)
    is_known, is_symbolic = bool(rng.integers(2)), bool(rng.integers(2)) and lead == (40,) and kinds[0] != "each"
    values = {"x": x, "w": w, "zx": zero_x, "zw": zero_w}
    given = {name: a for name, a in values.items() if a is not None and (name == "x" or (name == "zx" and not is_known))}
    literals = [numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in values.items() if a is not None and n not in given]
    names = [name if values[name] is not None else "" for name in ("x", "w", "zx", "zw")]
    node = helper.make_node("MatMulInteger", names, ["y"])
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), ["m", depth] if n == "x" and is_symbolic else a.shape)
        for n, a in given.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")], literals)
    module = tc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), target, threads=1)

    for rows in (0, 1, 3, 16, 40) if is_symbolic else (None,):
        part = {name: a[:rows] if name == "x" else a for name, a in given.items()}
        less = 0 if zero_x is None else zero_x.astype(np.int64)[..., None] if zero_x.ndim else zero_x.astype(np.int64)
        shifted = part["x"].astype(np.int64) - less
        expected = shifted @ (w.astype(np.int64) - (0 if zero_w is None else zero_w.astype(np.int64)))
        np.testing.assert_array_equal(module.run(part)["y"], expected.astype(np.int32))


def test_literals_of_bytes_keep_their_width_where_they_are_packed() -> None:
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, (256, 200)).astype(np.int8)
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    x = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(np.uint8)), [3, 256])
    graph = helper.make_graph([node], "g", [x], [helper.make_empty_tensor_value_info("y")], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    target = dataclasses.replace(Target.parse("x86-64-v4"), features=(*Target.parse("x86-64-v4").features, "avx512vnni"))

    text = tc.lower(model, "scheduled", target).as_text()

    assert "i8[7, 64, 32, 4]" in text and "dot4.u8.i8.512" in text


RANKS = [((3, 3, 5), (3, 5, 9)), ((5,), (3, 5, 9)), ((3, 5), (5,)), ((5,), (5,)), ((2, 1, 4, 5), (3, 5, 9))]


@pytest.mark.parametrize(("x_shape", "w_shape"), RANKS)
@pytest.mark.parametrize("is_known", [True, False])
def test_products_with_literals_of_any_rank_are_exact(x_shape: tuple[int, ...], w_shape: tuple[int, ...], is_known: bool) -> None:
    """What comes off the sums is that of their own matrix."""
    rng = np.random.default_rng(0)
    values = {"x": _bytes(rng, np.int8, x_shape), "w": _bytes(rng, np.int8, w_shape), "zx": np.array(-7, np.int8)}
    given = {name: a for name, a in values.items() if name == "x" or (name == "zx" and not is_known)}
    literals = [numpy_helper.from_array(a, name) for name, a in values.items() if name not in given]
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in given.items()]
    node = helper.make_node("MatMulInteger", ["x", "w", "zx"], ["y"])
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")], literals)

    module = tc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), threads=1)

    expected = (values["x"].astype(np.int64) + 7) @ values["w"].astype(np.int64)
    np.testing.assert_array_equal(module.run(given)["y"], expected.astype(np.int32))


# Broke the speed: of one group of terms no rule knew that they lie in groups, and the sums were made one by one.
@pytest.mark.covering
@pytest.mark.parametrize("columns", [1, 3, 16, 63])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("depth", range(1, 10))
def test_products_of_few_terms_with_literals(kind: type, columns: int, depth: int) -> None:
    rng = np.random.default_rng([columns, depth])
    w = rng.integers(-128, 128, (depth, columns)).astype(np.int8)
    model = make_model([node("MatMulInteger", "x w", "y")], {"x": (kind, ["b", 37, depth])}, ["y"], {"w": w})
    module = tc.compile(model, threads=1)

    assert not any("does not fit" in note for note in module.report().notes)
    for batch in (0, 1, 3):
        x = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, (batch, 37, depth), endpoint=True).astype(kind)
        np.testing.assert_array_equal(module(x), x.astype(np.int32) @ w.astype(np.int32))
