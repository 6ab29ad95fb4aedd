"""Kernels that differ in scales and zero points alone are one, and compute the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.frontend.imported import Imported
from tc.ir.dtype import DType, f32, i32, int_range, u8, u16
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.ops.quantize import packed_parameters
from tc.passes.graph.share_scales import share_scales
from tc.passes.pipeline import lay_out, lower_model, prepare_model
from tc.target import Target
from tests.passes.test_graph_rules import ops_of

COUNT = 3001


def values(rng: np.random.Generator, scale: float) -> np.ndarray:
    """Around the range, many between two steps, and what is no number or too large."""
    found = (rng.standard_normal(COUNT) * 150 * scale).astype(np.float32)
    found[: COUNT // 2] = (rng.integers(-300, 300, COUNT // 2) + 0.5) * np.float64(np.float32(scale))
    found[-11:] = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-45, 0.0, -0.0, 1e38, 2.0**31]
    return found


def quantized(x: np.ndarray, scale: float, zero: int, dtype: DType) -> np.ndarray:
    low, high = int_range(dtype)
    with np.errstate(all="ignore"):
        steps = np.round(x / np.float32(scale)) + np.float32(zero)
    return np.nan_to_num(np.clip(steps, low, high), nan=low).astype(dtype.numpy)


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "c"])
@pytest.mark.parametrize("dtype", [u8, u16], ids=str)
def test_quotients_by_data_are_those_of_a_division(dtype: DType, target: str, rng: np.random.Generator) -> None:
    b = GraphBuilder()
    x, parameters = b.param("x", tensor_type((COUNT,), f32)), b.param("p", tensor_type((5,), f32))
    module = IRModule((b.function("main", (b.call("quantize_by", x, parameters, dtype=dtype),)),))
    compiled = tc.compile(module, target, threads=1)
    for scale in (0.5, 0.1, 1 / 3, 7.3, 1e-8, 2.0**-59, 1e17, *rng.uniform(0.001, 1, 20)):
        numbers, zero = values(rng, scale), int(rng.choice([0, int_range(dtype)[1], 77]))

        found = np.asarray(compiled(numbers, packed_parameters(scale, zero, dtype)))

        np.testing.assert_array_equal(found, quantized(numbers, scale, zero, dtype))


def test_a_quotient_by_data_is_not_divided() -> None:
    b = GraphBuilder()
    y = b.call("quantize_linear", b.param("x", tensor_type((64,), f32)), b.const(np.float32(0.1)), b.const(np.uint8(3)), dtype=u8)

    assembly = tc.lower(IRModule((b.function("main", (y,)),)), "asm", "x86-64-v4").as_text()

    assert "vcvtps2dq" in assembly and "vdivps" not in assembly and "vrndscale" not in assembly


def test_layers_that_differ_in_scales_are_one_kernel() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor_type((8, 64), u8))
    for scale, zero in ((0.3, 7), (0.25, 99), (0.1, 0)):
        wide = b.call("dequantize_linear", x, b.const(np.float32(scale)), b.const(np.uint8(zero)))
        shares = b.call("softmax", wide, axis=1)
        x = b.call("quantize_linear", shares, b.const(np.float32(scale / 9)), b.const(np.uint8(zero)), dtype=u8)
    module = IRModule((b.function("main", (x,)),))

    model = prepare_model(Imported(module, (), ()), Target.parse("x86-64-v4:cores=1"))

    assert list(lower_model(lay_out(model)).workloads) == ["dequantize_by_softmax_quantize_by"]


def products(*zeros: tuple[int, int]) -> IRModule:
    """Of the same bytes, with these zero points of rows and columns, one product after the other."""
    b = GraphBuilder()
    x, w = b.param("x", tensor_type((24, 24), u8)), b.param("w", tensor_type((24, 24), u8))
    for pair in zeros:
        total = b.call("matmul_integer", x, w, *(b.const(np.uint8(zero)) if zero else None for zero in pair))
        x = b.call("quantize_by", b.call("cast", total, dtype=f32), b.const(packed_parameters(99.0, 128, u8)), dtype=u8)
    return IRModule((b.function("main", (x,)),))


@pytest.mark.parametrize(("zeros", "count"), [
    ([(3, 77), (128, 255), (9, 9)], 1),
    ([(3, 0), (77, 0), (0, 3)], 2),  # nothing is taken from what has no zero point
    ([(0, 0), (3, 77)], 2),
])  # fmt: skip
def test_products_that_differ_in_zero_points_are_one_kernel(zeros: list[tuple[int, int]], count: int, rng: np.random.Generator) -> None:
    module = products(*zeros)
    bytes_of = {name: rng.integers(0, 256, (24, 24), np.uint8) for name in "xw"}
    expected = bytes_of["x"]
    for left, right in zeros:
        total = (expected.astype(np.int32) - left) @ (bytes_of["w"].astype(np.int32) - right)
        expected = quantized(total.astype(np.float32), 99.0, 128, u8)

    compiled = tc.compile(module, threads=1)

    assert len(compiled.report().kernels) == count
    np.testing.assert_array_equal(np.asarray(compiled(*bytes_of.values())), expected)


def test_what_is_out_of_range_or_of_channels_stays() -> None:
    b = GraphBuilder()
    x = b.param("x", tensor_type((4, 3), f32))
    results = [
        b.call("quantize_linear", x, b.const(np.float32(2.0**-80)), b.const(np.uint8(3)), dtype=u8),
        b.call("quantize_linear", x, b.const(np.float32([1, 2, 3])), b.const(np.uint8([1, 2, 3])), dtype=u8),
        b.call("mul", b.call("cast", b.param("t", tensor_type((4, 3), i32)), dtype=f32), b.const(np.float32([1, 2, 3]))),
    ]
    module = IRModule((b.function("main", results),))

    assert ops_of(share_scales(module)) == ops_of(module)
