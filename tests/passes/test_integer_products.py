"""Convolutions of bytes as products: exact for all bytes, zero points and shapes, on every kind of CPU."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tc
from tc.ir.dtype import i32, u8
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.integer_products import integer_products
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


@pytest.mark.parametrize(("groups", "largest"), [(2, 127), (1, 300)])
def test_groups_and_wider_weights_stay_convolutions(groups: int, largest: int) -> None:
    b = GraphBuilder()
    x = b.call("cast", b.param("x", tensor_type((1, 4, 5, 5), u8)), dtype=i32)
    w = b.const(np.full((4, 4 // groups, 3, 3), largest, np.int32))
    module = IRModule((b.function("main", (b.call("conv", x, w, groups=groups),)),))

    assert ops_of(integer_products(module)) == ops_of(module)
