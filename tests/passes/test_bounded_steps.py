"""What is quantized and known to be bounded is not clipped before it is rounded, and has the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.ir.dtype import DType, f32, i8, i16, i32, i64, u8, u16
from tc.ir.expr import Var, const
from tc.ir.graph import Call
from tc.ir.module import IRModule
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import GraphBuilder, full_attrs
from tc.passes.graph.bounded_steps import bound_steps
from tests.passes.test_share_scales import quantized

EXTREMES = np.array([0, 1, -1, 127, 128, 255, 256, 32767, 32768, -32768, 65536, 2**24 + 1, 2**31 - 1, -(2**31), -(2**31) + 1], np.int32)


def scaled(factor: object, dtype: DType = u8, zero: int = 3, op: str = "mul", step: float = 1.0) -> IRModule:
    """u8(clip(round(x * factor) + zero)), or with another operation, of i32 numbers."""
    b = GraphBuilder()
    wide = b.call("cast", b.param("x", tensor_type((4, 33), i32)), dtype=f32)
    product = b.call(op, wide, b.const(np.asarray(factor, np.float32)))
    made = b.call("quantize_linear", product, b.const(np.float32(step)), b.const(np.array(zero, dtype.numpy)), dtype=dtype)
    return IRModule((b.function("main", (made,)),))


def is_bounded(module: IRModule) -> bool:
    (call,) = [
        binding.value
        for func in bound_steps(module).graph_functions
        for binding in func.bindings
        if isinstance(binding.value, Call) and binding.value.op == "quantize_linear"
    ]
    return bool(full_attrs(call).bounded)


@pytest.mark.parametrize(
    ("factor", "op", "step", "expected"),
    [
        (0.5, "mul", 1.0, True),
        (-0.5, "mul", 1.0, True),
        (0.51, "mul", 1.0, False),
        (0.4, "mul", 0.5, False),
        ([0.1] * 32 + [0.6], "mul", 1.0, False),
        (np.nan, "mul", 1.0, False),
        (np.inf, "mul", 1.0, False),
        (0.1, "add", 1.0, False),
        (0.1, "div", 1.0, False),
    ],
)
def test_what_is_known_to_be_bounded(factor: object, op: str, step: float, expected: bool) -> None:
    assert is_bounded(scaled(factor, op=op, step=step)) is expected


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64-v2", "c"])
@pytest.mark.parametrize(("dtype", "zero"), [(u8, 0), (u8, 128), (u8, 255), (i8, -128), (i8, 7), (u16, 65535), (i16, -5)], ids=str)
def test_the_largest_integers_are_clipped(dtype: DType, zero: int, target: str, rng: np.random.Generator) -> None:
    factor = rng.choice([0.5, -0.5, 1e-4, 0.3, 0.0, -2e-7], 33).astype(np.float32)
    x = rng.choice(np.append(EXTREMES, rng.integers(-(2**31), 2**31, 40)), (4, 33)).astype(np.int32)

    found = np.asarray(tc.compile(scaled(factor, dtype, zero), target, threads=1)(x))

    np.testing.assert_array_equal(found, quantized(x.astype(np.float32) * factor, 1.0, zero, dtype))


@pytest.mark.parametrize("target", ["native", "c"])
@pytest.mark.parametrize("dtype", [u8, u16], ids=str)
@pytest.mark.parametrize(("zero", "less"), [(0, 0), (131, 131), (131, 9), (7, 0), (0, 200)])
def test_what_is_dequantized_at_once_is_clipped(dtype: DType, zero: int, less: int, target: str, rng: np.random.Generator) -> None:
    factor = rng.choice([0.5, -0.5, 1e-4, 0.3, 0.0, -2e-7], 33).astype(np.float32)
    x = rng.choice(np.append(EXTREMES, rng.integers(-(2**31), 2**31, 40)), (4, 33)).astype(np.int32)
    b = GraphBuilder()
    product = b.call("mul", b.call("cast", b.param("x", tensor_type((4, 33), i32)), dtype=f32), b.const(factor))
    made = b.call("quantize_linear", product, b.const(np.float32(1)), b.const(np.array(zero, dtype.numpy)), dtype=dtype)
    result = b.call("dequantize_linear", made, b.const(np.float32(0.5)), b.const(np.array(less, dtype.numpy)))

    found = np.asarray(tc.compile(IRModule((b.function("main", (result,)),)), target, threads=1)(x))

    steps = quantized(x.astype(np.float32) * factor, 1.0, zero, dtype).astype(np.float32)
    np.testing.assert_array_equal(found, (steps - less) * np.float32(0.5))


@pytest.mark.parametrize(("factor", "clips"), [(0.25, False), (0.75, True)])
def test_nothing_is_clipped_that_is_bounded(factor: float, clips: bool) -> None:
    assembly = tc.lower(scaled(factor), "asm", "x86-64-v4").as_text()

    assert ("vminps" in assembly) is clips
    assert "vpackuswb" in assembly and "vmaxps" not in assembly


@pytest.mark.parametrize("op", ["full", "range"])
def test_what_is_made_of_nothing_has_no_bounds(op: str) -> None:
    """`onnxruntime` quantizes states that begin as zeros with a step of 1; their operators have no operands to look at."""
    n, b = Var("n", i64), GraphBuilder()
    b.param("x", TensorType((n,), f32))
    made = b.call("full", shape=(n, const(6)), value=0.0, dtype=f32)
    if op == "range":
        made = b.call("cast", b.call("range", start=0, size=n, step=1), dtype=f32)
    y = b.call("quantize_linear", made, b.const(np.float32(1)), b.const(np.array(2, np.uint8)), dtype=u8)
    module = IRModule((b.function("main", (y,)),))

    found = np.asarray(tc.compile(module)(np.zeros(3, np.float32)))

    assert found.tolist() == ([2, 3, 4] if op == "range" else [[2] * 6] * 3)
