"""Floats that are rounded and clipped to small integers: the same as by a division and two roundings, in fewer instructions."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc import te
from tc.ir.clipped_round import as_clipped_round
from tc.ir.dtype import DType, f32, i8, i16, int_range, u8, u16
from tc.ir.expr import Cast, Expr, Var, call, cast, const, maximum, minimum
from tc.ir.loop import PrimFunc
from tc.ops.quantize import packed_parameters
from tc.ops.registry import get_op
from tc.schedule.analysis import block_infos
from tc.schedule.step import Schedule
from tc.target import Target
from tests.ops.kernels import finish, make_prim_func, run

COUNT = 4099


def quantized(x: Expr, scale: float, zero: int, dtype: DType, bounds: tuple[int, int] | None = None) -> Expr:
    low, high = bounds or int_range(dtype)
    value = call("round", x / const(scale, f32)) + const(zero, f32)
    return cast(maximum(minimum(value, const(high, f32)), const(low, f32)), dtype)


def function(scale: float, zero: int, dtype: DType, bounds: tuple[int, int] | None = None) -> PrimFunc:
    x = te.placeholder((COUNT,), f32, "x")
    return te.create_prim_func("f", (x,), (te.compute((COUNT,), lambda i: quantized(x[i], scale, zero, dtype, bounds), "y"),))


def values(rng: np.random.Generator, scale: float) -> np.ndarray:
    """Around the range, many between two steps, and what is no number or too large."""
    found = (rng.standard_normal(COUNT) * 150 * scale).astype(np.float32)
    halves = (rng.integers(-300, 300, COUNT // 2) + 0.5) * np.float64(np.float32(scale))
    found[: len(halves)] = halves
    found[-11:] = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-45, 0.0, -0.0, 1e38, 2.0**31]
    return found


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [u8, i8, u16, i16], ids=str)
@pytest.mark.parametrize("scale", [0.5, 0.1, 1 / 3, 7.3, 1e-8, 2.0**-70, 1e30])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_nearest_integer_is_that_of_a_division(scale: float, dtype: DType, rng: np.random.Generator) -> None:
    low, high = int_range(dtype)
    x = values(rng, scale)
    for zero in (0, 3, low, high):
        (found,) = run(finish(function(scale, zero, dtype)), [x])

        wanted = np.round(x / np.float32(scale)) + np.float32(zero)
        np.testing.assert_array_equal(found, np.nan_to_num(np.clip(wanted, low, high)).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", [u8, i8], ids=str)
@pytest.mark.parametrize("less", [0, 3, 100])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_dequantized_at_once_is_the_same_number(less: int, dtype: DType, rng: np.random.Generator) -> None:
    x, scale, (low, high) = values(rng, 0.1), 0.1, int_range(dtype)
    for zero in (0, 3, high):
        wide = te.placeholder((COUNT,), f32, "x")
        steps = te.compute((COUNT,), lambda i, z=zero, w=wide: cast(quantized(w[i], scale, z, dtype), f32) - const(less, f32), "y")

        (found,) = run(finish(te.create_prim_func("f", (wide,), (steps,))), [x])

        numbers = np.nan_to_num(np.clip(np.round(x / np.float32(scale)) + np.float32(zero), low, high)).astype(dtype.numpy)
        wanted = numbers.astype(np.float32) - np.float32(less)
        np.testing.assert_array_equal(found.view(np.uint32), (wanted + np.float32(0)).view(np.uint32))


LANES = {"x86-64-v2": (8, 16), "x86-64-v3": (16, 32), "x86-64-v4": (32, 64)}
"""Of two and of four vectors of f32."""


@pytest.mark.covering(2)
@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("dtype", [u8, i8], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-8, 1e30])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_vectors_that_are_narrowed_together_give_the_same_bytes(scale: float, dtype: DType, name: str, rng: np.random.Generator) -> None:
    target, (low, high), x = target_named(name), int_range(dtype), values(rng, scale)
    for zero, lanes in ((0, LANES[name][0]), (3, LANES[name][1]), (low, LANES[name][1]), (high, LANES[name][0])):
        (found,) = run(finish(in_vectors(function(scale, zero, dtype), lanes)), [x], target=target)

        wanted = np.round(x / np.float32(scale)) + np.float32(zero)
        np.testing.assert_array_equal(found, np.nan_to_num(np.clip(wanted, low, high)).astype(dtype.numpy))


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize(("dtype", "low", "high"), [(i8, -127, 127), (i8, -8, 7), (u8, 0, 127), (u8, 0, 15)], ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bounds_narrower_than_the_type_hold(dtype: DType, low: int, high: int, name: str, rng: np.random.Generator) -> None:
    target, x = target_named(name), values(rng, 0.1)
    for zero, lanes in ((0, LANES[name][0]), (3, LANES[name][1])):
        (found,) = run(finish(in_vectors(function(0.1, zero, dtype, (low, high)), lanes)), [x], target=target)

        wanted = np.round(x / np.float32(0.1)) + np.float32(zero)
        np.testing.assert_array_equal(found, np.nan_to_num(np.clip(wanted, low, high)).astype(dtype.numpy))


@pytest.mark.parametrize("name", LANES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_so_do_those_whose_scale_is_data(name: str, rng: np.random.Generator) -> None:
    target = target_named(name)
    quantize = get_op("quantize_by")
    for scale, zero in ((0.1, 128), (1 / 3, 0), (7.3, 255), (2.0**-50, 3)):
        arrays = [values(rng, scale), packed_parameters(scale, zero, u8)]
        for lanes in LANES[name]:
            (found,) = run(finish(in_vectors(make_prim_func(quantize, arrays, {"dtype": u8}), lanes)), arrays, target=target)

            wanted = np.clip(np.round(arrays[0] / np.float32(scale)) + np.float32(zero), 0, 255)
            np.testing.assert_array_equal(found, np.nan_to_num(wanted).astype(np.uint8))


def target_named(name: str) -> Target:
    target = Target.parse(name)
    if target.missing_here():
        pytest.skip(f"this CPU lacks {', '.join(target.missing_here())}")
    return target


def in_vectors(func: PrimFunc, lanes: int) -> PrimFunc:
    schedule = Schedule(func)
    (name,) = (info.name for info in block_infos(func))
    around, inside = schedule.split(schedule.loops_of(name)[-1], lanes)
    schedule.vectorize(inside)
    schedule.loop_partition(around)
    return schedule.func


def test_one_conversion_rounds_and_nothing_divides() -> None:
    x = tc.ir.types.tensor_type((64,), f32)
    b = tc.ops.build.GraphBuilder()
    y = b.call("quantize_linear", b.param("x", x), b.const(np.float32(0.1)), b.const(np.uint8(3)), dtype=u8)
    module = tc.ir.module.IRModule((b.function("main", (y,)),))

    assembly = tc.lower(module, "asm", "x86-64-v4").as_text()

    assert "vcvtps2dq" in assembly and "vdivps" not in assembly and "vrndscale" not in assembly
    assert "vpackuswb" in assembly and "vpmovusdb" not in assembly


@pytest.mark.parametrize(("low", "high", "shift"), [(-1, 256, 0), (1, 255, 0), (0, 255, 0.5), (0.5, 255, 0)])
def test_other_bounds_and_shifts_are_left(low: float, high: float, shift: float) -> None:
    value = call("round", Var("x", f32)) + const(shift, f32)
    expr = cast(maximum(minimum(value, const(high, f32)), const(low, f32)), u8)

    assert isinstance(expr, Cast) and as_clipped_round(expr) is None
