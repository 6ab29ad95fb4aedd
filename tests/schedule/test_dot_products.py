"""Products of small integers: instructions that sum several at once, exact for every shape, type and value."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import compile_object
from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.dtype import DType, bf16, f32, i8, i16, i32, i64, int_range, u8
from tc.ir.expr import Expr, Load, Sub, Var, cast, const
from tc.ir.intrinsic import INTRINSICS
from tc.ir.loop import IntrinsicCall, PrimFunc
from tc.ir.node import substitute, walk
from tc.ops.registry import OPS
from tc.passes.loop.intrinsics import select_intrinsics
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import apply_rules
from tc.schedule.step import Schedule
from tc.target import Target, native_target
from tc.te import create_prim_func, placeholder, reduce
from tests.ops.kernels import make_prim_func, run

LEVELS = [Target.parse("x86-64-v3:cores=1"), Target.parse("x86-64-v4:cores=1")]
WITH_VNNI = dataclasses.replace(LEVELS[1], features=tuple(sorted({*LEVELS[1].features, "avx512vnni"})))


def product(m: int, n: int, k: int, lhs: DType = u8, rhs: DType = i8, zero: int | None = None) -> PrimFunc:
    """mm[i, j] = sum (A[i, k] - zero) * B[k, j], in i32."""
    a, b = placeholder((m, k), lhs, "A"), placeholder((k, n), rhs, "B")

    def body(i: Expr, j: Expr, r: Expr) -> Expr:
        x = cast(a[i, r], i32)
        return (x if zero is None else x - const(zero, i32)) * cast(b[r, j], i32)

    return create_prim_func("product", [a, b], [reduce("sum", (m, n), (k,), body, "mm")])


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Random numbers, many of them the least and the greatest there are."""
    lo, hi = int_range(dtype)
    return rng.choice([lo, lo + 1, hi, *rng.integers(lo, hi + 1, 8)], shape).astype(dtype.numpy)


def is_here(target: Target) -> bool:
    return set(target.features) <= set(native_target().features)


@pytest.mark.covering
@pytest.mark.parametrize("target", [*LEVELS, WITH_VNNI], ids=("avx2", "avx512", "vnni"))
@pytest.mark.parametrize("seed", range(12))
def test_products_of_small_integers_are_exact(target: Target, seed: int) -> None:
    if not is_here(target):
        pytest.skip("this CPU lacks the instructions")
    rng = np.random.default_rng(seed)
    m, n, k = (int(size) for size in rng.integers(1, 80, 3))
    lhs, rhs = (u8 if rng.integers(2) else i8 for _ in range(2))
    zero = int(rng.integers(-200, 300)) if rng.integers(2) else None
    func = product(m, n, k, lhs, rhs, zero)
    arrays = [numbers(rng, (m, k), lhs), numbers(rng, (k, n), rhs)]

    result, *_ = run(finish_loops(apply_rules(func, target).func, threads=2), arrays, target=target)

    expected = (arrays[0].astype(np.int64) - (zero or 0)) @ arrays[1].astype(np.int64)
    np.testing.assert_array_equal(result, expected)


def test_the_schedule_means_the_same_to_the_interpreter() -> None:
    func, rng = product(17, 19, 6, i8, u8, 5), np.random.default_rng(0)
    arrays = [numbers(rng, (17, 6), i8), numbers(rng, (6, 19), u8)]

    scheduled = apply_rules(func, LEVELS[1]).func

    assert any(isinstance(node, IntrinsicCall) for node in walk(scheduled))
    np.testing.assert_array_equal(run_prim_func(scheduled, arrays)[0], run_prim_func(func, arrays)[0])


def test_sums_that_pass_32_bits_wrap_as_they_do_one_by_one() -> None:
    func = product(16, 16, 70_000)
    arrays = [np.full((16, 70_000), 255, np.uint8), np.full((70_000, 16), -128, np.int8)]

    result, *_ = run(finish_loops(apply_rules(func, native_target()).func, threads=2), arrays, target=native_target())

    assert result[0, 0] == np.int64(255 * -128 * 70_000).astype(np.int32)


@pytest.mark.parametrize(
    ("lhs", "rhs", "instruction"), [(u8, i8, "dot4.u8.i8.512"), (i8, i8, "dot2.i16.i16.512"), (u8, u8, "dot2.i16.i16.512")], ids=str
)
def test_the_instruction_is_the_one_whose_types_hold_all_values(lhs: DType, rhs: DType, instruction: str) -> None:
    final = finish_loops(apply_rules(product(64, 64, 64, lhs, rhs), WITH_VNNI).func, threads=1)

    names = {node.name for node in walk(select_intrinsics(final, WITH_VNNI.features)) if isinstance(node, IntrinsicCall)}

    assert instruction in names


# Two casts, of which the first loses bits, were taken for an operand in place; the schedule then failed, and a slow rule took over.
@pytest.mark.parametrize(("source", "middle"), [(i16, i8), (u8, i8), (u8, i16), (i16, u8)], ids=str)
def test_operands_that_are_cast_twice_are_products_too(source: DType, middle: DType) -> None:
    a, b = placeholder((40, 48), source, "A"), placeholder((48, 64), source, "B")
    total = reduce(
        "sum", (40, 64), (48,), lambda i, j, r: cast(cast(a[i, r], middle), i32) * cast(cast(b[r, j], middle), i32), "mm"
    )
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (40, 48), source), numbers(rng, (48, 64), source)]

    scheduled = apply_rules(create_prim_func("product", [a, b], [total]), LEVELS[0])
    result, *_ = run(finish_loops(scheduled.func, threads=2), arrays, target=LEVELS[0])

    assert "dot2.i16.i16" in str(scheduled.trace)
    lhs, rhs = (array.astype(middle.numpy).astype(np.int64) for array in arrays)
    np.testing.assert_array_equal(result, lhs @ rhs)


def test_numbers_that_do_not_fit_16_bits_are_multiplied_one_by_one() -> None:
    scheduled = apply_rules(product(64, 64, 64, u8, u8, 40_000), WITH_VNNI)

    assert scheduled.rule == "contraction"
    assert not any(isinstance(node, IntrinsicCall) for node in walk(scheduled.func))


WORKING = sorted(name for name, intrinsic in INTRINSICS.items() if not intrinsic.does_nothing and not intrinsic.layouts)
"""The instructions of this kind of processor: fragments are of others."""


def takes_memory(name: str) -> bool:
    """Whether no operand need be a register."""
    return all(buffer.scope == "global" for buffer in INTRINSICS[name].pattern.buffers)


@pytest.mark.parametrize("name", list(filter(takes_memory, WORKING)))
def test_every_instruction_is_emitted_and_assembled(name: str) -> None:
    """Also those that this machine cannot run."""
    intrinsic = INTRINSICS[name]
    features = tuple(sorted({*LEVELS[1].features, *(intrinsic.features[0] if intrinsic.features else ())}))
    target = dataclasses.replace(LEVELS[1], features=features)
    schedule = Schedule(intrinsic.pattern)
    schedule.tensorize(schedule.loops_of(name)[0], name)

    source = emit_prim_func(finish_loops(schedule.func), "kernel", features)

    assert any(word in source.ir_text for word in ("call <", "shufflevector", "itofp <", "llvm.x86.tdp", "llvm.x86.tilezero"))
    assert compile_object(source.ir_text, target)


@pytest.mark.parametrize("name", [name for name in WORKING if not takes_memory(name)])
def test_copies_in_memory_are_no_loads_and_stores_of_registers(name: str) -> None:
    pattern = INTRINSICS[name].pattern
    x, t = (dataclasses.replace(buffer, scope="global") for buffer in pattern.buffers)
    copy = substitute(pattern, dict(zip(pattern.buffers, (x, t), strict=True)))
    schedule = Schedule(copy)

    with pytest.raises(ScheduleError, match=f"{name} does not match"):
        schedule.tensorize(schedule.loops_of(name)[0], name)


def test_an_instruction_that_the_target_lacks_runs_as_loops() -> None:
    final = finish_loops(apply_rules(product(32, 32, 32), WITH_VNNI).func, threads=1)

    assert not any(isinstance(node, IntrinsicCall) for node in walk(select_intrinsics(final, LEVELS[0].features)))


# -- copies of operands


def scaled() -> PrimFunc:
    """mm[i, j] = sum A[i, k] * (f32(Q[k, j]) * S[j])."""
    a, q, s = placeholder((20, 30), f32, "A"), placeholder((30, 40), i8, "Q"), placeholder((40,), f32, "S")
    total = reduce("sum", (20, 40), (30,), lambda i, j, k: a[i, k] * (cast(q[k, j], f32) * s[j]), "mm")
    return create_prim_func("scaled", [a, q, s], [total])


def test_a_copy_of_an_operand_holds_what_is_multiplied() -> None:
    func, rng = scaled(), np.random.default_rng(0)
    arrays = [rng.standard_normal((20, 30)).astype(np.float32), numbers(rng, (30, 40), i8), rng.standard_normal(40).astype(np.float32)]
    schedule = Schedule(func)

    name = schedule.cache_operand("mm", "rhs", "f32")

    assert name == "Q_rhs"
    assert {load.buffer.name for load in walk(schedule.block(name)) if isinstance(load, Load)} == {"Q", "S"}
    np.testing.assert_array_equal(run_prim_func(schedule.func, arrays)[0], run_prim_func(func, arrays)[0])


def test_a_copy_may_be_narrower_where_all_values_fit() -> None:
    schedule = Schedule(product(8, 8, 8, u8, i8, 7))

    schedule.cache_operand("mm", "lhs", "i16")

    with pytest.raises(ScheduleError, match="may have values that i8 has not"):
        Schedule(product(8, 8, 8, u8, i8, 7)).cache_operand("mm", "lhs", "i8")


def test_the_difference_to_a_zero_point_is_computed_in_the_type_of_the_copy() -> None:
    a, b, zero = placeholder((8, 9), u8, "A"), placeholder((9, 8), i8, "B"), placeholder((), u8, "Z")
    total = reduce("sum", (8, 8), (9,), lambda i, j, k: (cast(a[i, k], i32) - cast(zero[()], i32)) * cast(b[k, j], i32), "mm")
    func = create_prim_func("product", [a, b, zero], [total])
    rng = np.random.default_rng(0)
    rows, columns = numbers(rng, (8, 9), u8), numbers(rng, (9, 8), i8)
    schedule = Schedule(func)

    name = schedule.cache_operand("mm", "lhs", "i16")

    assert {node.dtype for node in walk(schedule.block(name)) if isinstance(node, Sub)} == {i16}
    for point in (0, 7, 255):
        arrays = [rows, columns, np.array(point, np.uint8)]
        np.testing.assert_array_equal(run_prim_func(schedule.func, arrays)[0], run_prim_func(func, arrays)[0])


@pytest.mark.parametrize("step", [("mm", "middle", "f32"), ("mm", "lhs", "f16"), ("mm", "lhs", "no type")])
def test_copies_that_would_change_values_are_refused(step: tuple[str, str, str]) -> None:
    with pytest.raises(ScheduleError):
        Schedule(scaled()).cache_operand(*step)


def test_operands_in_half_precision_are_copied_as_they_are() -> None:
    a, b = placeholder((8, 8), bf16, "A"), placeholder((8, 8), bf16, "B")
    func = create_prim_func("half", [a, b], [reduce("sum", (8, 8), (8,), lambda i, j, k: cast(a[i, k], f32) * cast(b[k, j], f32), "mm")])
    schedule = Schedule(func)

    schedule.cache_operand("mm", "rhs", "bf16")

    assert {load.dtype for load in walk(schedule.block("mm")) if isinstance(load, Load) and load.buffer.name == "B_rhs"} == {bf16}


@functools.cache
def product_of_any_number_of_rows(n: int, k: int, target: Target) -> PrimFunc:
    m = Var("m", i64)
    a, b = placeholder((m, k), u8, "A"), placeholder((k, n), i8, "B")
    total = reduce("sum", (m, n), (k,), lambda i, j, r: cast(a[i, r], i32) * cast(b[r, j], i32), "mm")
    return finish_loops(apply_rules(create_prim_func("product", [a, b], [total], (m,)), target).func, threads=2)


@pytest.mark.covering(2)
@pytest.mark.parametrize("rows", [0, 1, 2, 4, 7, 15, 16, 17, 40, 100])
@pytest.mark.parametrize("sizes", [(64, 64), (19, 7), (100, 70), (33, 65), (65, 33)], ids=str)
@pytest.mark.parametrize("target", [*LEVELS, native_target()], ids=("avx2", "avx512", "native"))
def test_products_of_any_number_of_rows_are_exact(rows: int, sizes: tuple[int, int], target: Target) -> None:
    if not is_here(target):
        pytest.skip("this CPU lacks instructions of the target")
    rng, (n, k) = np.random.default_rng(rows), sizes
    arrays = [numbers(rng, (rows, k), u8), numbers(rng, (k, n), i8)]

    result, *_ = run(product_of_any_number_of_rows(n, k, target), arrays, (rows,), target=target)

    np.testing.assert_array_equal(result, arrays[0].astype(np.int64) @ arrays[1].astype(np.int64))


BATCHES = [((3, 20, 30), (30, 40)), ((3, 20, 30), (3, 30, 40)), ((2, 2, 17, 9), (2, 2, 9, 33)), ((40,), (40, 50))]


@pytest.mark.parametrize("shapes", BATCHES, ids=str)
def test_products_of_batches_are_exact(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, shapes[0], u8), numbers(rng, shapes[1], i8)]
    func = simplify_loops(make_prim_func(OPS["matmul_integer"], arrays, {}))

    result, *_ = run(finish_loops(apply_rules(func, native_target()).func, threads=2), arrays, target=native_target())

    np.testing.assert_array_equal(result, np.matmul(*(array.astype(np.int64) for array in arrays)))


@pytest.mark.parametrize("sizes", [(64, 128, 96), (33, 70, 67), (65, 130, 9), (17, 16, 1)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e15])
def test_products_of_bf16_by_instructions_that_sum_two(sizes: tuple[int, int, int], scale: float) -> None:
    target = dataclasses.replace(native_target(), cpu="znver4", cores=1)
    if not target.has("avx512bf16"):
        pytest.skip("this CPU lacks avx512bf16")
    m, n, k = sizes
    rng = np.random.default_rng(m)
    a, b = placeholder((m, k), bf16, "A"), placeholder((k, n), bf16, "B")
    total = reduce("sum", (m, n), (k,), lambda i, j, r: cast(a[i, r], f32) * cast(b[r, j], f32), "mm")
    scheduled = apply_rules(create_prim_func("half", [a, b], [total]), target)
    arrays = [(rng.standard_normal(shape) * scale).astype(bf16.numpy) for shape in ((m, k), (k, n))]
    arrays[0][0, 0], arrays[1][0, 0] = np.inf, np.nan

    result, *_ = run(finish_loops(scheduled.func, threads=2), arrays, target=target)

    wide = [array.astype(np.float64) for array in arrays]
    with np.errstate(all="ignore"):
        expected = np.matmul(*wide).astype(np.float32)
        largest = float(np.nanmax(np.where(np.isfinite(wide[0]), np.abs(wide[0]), 0))) * float(np.nanmax(np.abs(wide[1])))
    assert "dot2.bf16" in str(scheduled.trace)
    np.testing.assert_allclose(result, expected, rtol=0, atol=k * 2.0**-22 * largest, equal_nan=True)


def test_machines_that_gain_nothing_by_it_and_strict_numerics_widen_bf16() -> None:
    a, b = placeholder((64, 64), bf16, "A"), placeholder((64, 64), bf16, "B")
    total = reduce("sum", (64, 64), (64,), lambda i, j, r: cast(a[i, r], f32) * cast(b[r, j], f32), "mm")
    func = create_prim_func("half", [a, b], [total])
    bf16_features = tuple(sorted({*LEVELS[1].features, "avx512bf16"}))
    zen, xeon = (dataclasses.replace(LEVELS[1], machine=name, features=bf16_features) for name in ("znver4", "sapphirerapids"))
    strict = dataclasses.replace(func, attrs=(("numerics", "strict"),))

    traces = [str(apply_rules(each, target).trace) for each, target in ((func, zen), (func, xeon), (strict, zen))]

    assert ["dot2.bf16" in trace for trace in traces] == [True, False, False]
