"""What is quantized and dequantized at once stays f32, bit for bit the same: by text, and by numbers on several targets."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.ir.dtype import DType, f32, i8, i16, int_range, u8, u16
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.parser import parse_prim_func
from tc.ir.structural import structural_equal
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.loop.fake_quantize import fake_quantize
from tests.passes.test_share_scales import COUNT, quantized, values

_HEAD = "@loops\ndef f(x: f32[8], c: f32[5], z: u8[2], y: f32[8]):\n    outputs(1)\n    for i in range(8):\n        y[i] = {value}\n"

QUOTIENT = "bounded_quotient(x[i], c[0], c[1], c[2], c[3])"
DATA = f"cast(cast(max(min(round({QUOTIENT}) + c[4], 255.0), 0.0), u8), f32)"


def _func(value: str) -> PrimFunc:
    return parse_prim_func(_HEAD.format(value=value))


def _quantized(value: str, shift: str = "", high: str = "255.0", dtype: str = "u8") -> str:
    return f"cast(cast(max(min(round({value}){shift}, {high}), 0.0), {dtype}), f32)"


def _steps(*quotient: str) -> str:
    return f"cast(cast(round(bounded_quotient({', '.join(quotient)})), i32), f32)"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (_quantized("x[i]", " + 7.0") + " - 7.0", _steps("x[i]", "1.0", "1.0", "-7.0", "248.0")),
        (_quantized("x[i]", " + 7.0"), _steps("x[i]", "1.0", "1.0", "-7.0", "248.0") + " + 7.0"),
        (_quantized("x[i]", " + 7.0") + " - 9.0", _steps("x[i]", "1.0", "1.0", "-7.0", "248.0") + " + -2.0"),
        (_quantized("x[i]"), _steps("x[i]", "1.0", "1.0", "0.0", "255.0")),
        (_quantized("x[i] / 0.5", " + 3.0", "65535.0", "u16") + " - 3.0", _steps("x[i]", "0.5", "2.0", "-1.5", "32766.0")),
        (f"({DATA} - c[4]) * c[0]", _steps("x[i]", "c[0]", "c[1]", "c[2]", "c[3]") + " * c[0]"),
        (f"{DATA} - c[1]", _steps("x[i]", "c[0]", "c[1]", "c[2]", "c[3]") + " + c[4] - c[1]"),
    ],
)
def test_steps_stay_floats_between_two_bounds(value: str, expected: str) -> None:
    assert structural_equal(fake_quantize(_func(value)), _func(expected))


def test_what_stays_an_integer_is_clipped_before_it_is_rounded() -> None:
    head = _HEAD.replace("y: f32", "y: u8")
    written = "cast(max(min(round({value}) + 7.0, 255.0), 0.0), u8)"
    func = parse_prim_func(head.format(value=written.format(value="x[i] / 0.5")))
    expected = parse_prim_func(head.format(value=written.format(value="bounded_quotient(x[i], 0.5, 2.0, -3.5, 124.0)")))

    assert structural_equal(fake_quantize(func), expected)
    assert fake_quantize(expected) is expected


def test_a_zero_point_that_is_data_is_in_the_bounds() -> None:
    pair = _quantized("x[i] / c[0]", " + cast(z[0], f32)")

    found, other = (str(fake_quantize(_func(f"{pair} - cast(z[{place}], f32)"))) for place in (0, 1))

    assert "u8)" not in found and "- cast(z[1], f32)" in other
    assert found.count("cast(z[0], f32)") == 2  # in the bounds alone


@pytest.mark.parametrize(
    "value",
    [
        "cast(cast(max(min(round(x[i]), 127.0), -128.0), i8), f32)",  # NaN is 0 there
        "cast(cast(max(min(x[i], 255.0), 0.0), u8), f32)",
        _quantized("x[i]", " + 0.5"),
        _quantized("x[i]", " + c[4]") + " - c[4]",  # which may be no whole number
    ],
)
def test_what_is_no_such_pair_stays(value: str) -> None:
    func = _func(value)

    assert fake_quantize(func) is func


@pytest.mark.covering
@pytest.mark.parametrize("target", ["native", "x86-64-v2", "x86-64-v3", "c"])
@pytest.mark.parametrize("dtype", [u8, i8, u16, i16], ids=str)
def test_numbers_are_those_of_two_conversions(dtype: DType, target: str, rng: np.random.Generator) -> None:
    low, high = int_range(dtype)
    drawn = float(rng.uniform(0.001, 1)), int(rng.integers(low, high))
    for scale, zero in ((1.0, 3), (0.5, low), (0.1, high), (7.3, 0), (2.0**-70, 1), drawn):
        numbers = values(rng, scale)
        b = GraphBuilder()
        same, factor = b.const(np.array(zero, dtype.numpy)), b.const(np.float32(scale))
        twice = b.call("add", b.param("x", tensor_type((COUNT,), f32)), b.const(np.float32(0)))
        steps = b.call("quantize_linear", twice, factor, same, dtype=dtype)
        y = b.call("mul", b.call("dequantize_linear", steps, factor, same), b.const(np.float32(3)))
        compiled = tc.compile(IRModule((b.function("main", (y,)),)), target, threads=1)

        found = np.asarray(compiled(numbers))

        whole = quantized(numbers + np.float32(0), scale, zero, dtype).astype(np.float32) - np.float32(zero)
        np.testing.assert_array_equal(found.view(np.uint32), (whole * np.float32(scale) * np.float32(3)).view(np.uint32))


def test_one_integer_is_made_of_a_chain_of_layers() -> None:
    b = GraphBuilder()
    y, z = (b.param(name, tensor_type((64,), f32)) for name in "yz")
    for scale, zero in ((0.3, 7), (0.25, 99), (0.1, 0)):
        parameters = b.const(np.float32(scale)), b.const(np.uint8(zero))
        result = b.call("quantize_linear", b.call("add", y, z), *parameters, dtype=u8)
        y = b.call("dequantize_linear", result, *parameters)

    files = tc.lower(IRModule((b.function("main", (result,)),)), "loops", "x86-64-v4").files()
    (kernel,) = (text for name, text in files.items() if name != "plan.txt")

    assert kernel.count("bounded_quotient") == 3 and kernel.count(", u8)") == 1
