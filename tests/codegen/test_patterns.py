"""Loops that become other instructions than one would read off them: trees of lanes, squares transposed in registers, rows of padding."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tc import te
from tc.codegen.llvm.backend import emit_kernel
from tc.codegen.llvm.emitter import emit_prim_func
from tc.ir.dtype import DType, bool_, f32, f64, i8, i32, i64
from tc.ir.expr import Expr, Select, Var, const, logical_and
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import finish_loops
from tc.schedule.step import Schedule
from tc.target import Target, native_target
from tests.draws import some_of
from tests.ops.kernels import run


def transposing(rows: int, columns: int) -> PrimFunc:
    x = te.placeholder((rows, columns), f32, "x")
    return te.create_prim_func("f", (x,), (te.compute((columns, rows), lambda i, j: x[j, i], "y"),))


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("shape", [(16, 32), (23, 48), (5, 16)])
def test_squares_are_transposed_in_registers(lanes: int, shape: tuple[int, int]) -> None:
    schedule = Schedule(transposing(*shape))
    rows, row = schedule.split("i", lanes)
    columns, column = schedule.split("j", lanes)
    schedule.reorder(rows, columns, row, column)
    schedule.vectorize(column)
    schedule.unroll(row)
    schedule.annotate_loop(row, "transpose", 1)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    (result,) = run(finish_loops(schedule.func), [x])

    np.testing.assert_array_equal(result, x.T)


@pytest.mark.parametrize("monoid", ["sum", "prod", "max", "min", "max_number"])
def test_lanes_are_combined_as_a_tree(monoid: str) -> None:
    x = te.placeholder((6, 64), f32, "x")
    y = te.reduce(monoid, (6,), (64,), lambda i, k: x[i, k], "y")
    schedule = Schedule(te.create_prim_func("f", (x,), (y,)))
    schedule.decompose_reduction("y", "ri")
    schedule.unroll("ri")
    schedule.annotate_loop("ri", "tree", 1)
    values = np.random.default_rng(0).uniform(0.9, 1.1, (6, 64)).astype(np.float32)
    values[1, 7], values[2] = np.nan, -np.inf

    (result,) = run(finish_loops(schedule.func), [values])

    functions = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "max_number": np.nanmax}
    np.testing.assert_allclose(result, functions[monoid](values.astype(np.float64), axis=1), rtol=1e-6)


@pytest.mark.parametrize("rows", [64, 70])
def test_lanes_are_loaded_one_by_one_where_gathering_them_takes_longer(rows: int) -> None:
    """Vectors of which all lanes are active; those at the end of a row are gathered under their mask."""
    x, at = te.placeholder((50,), f32, "x"), te.placeholder((rows,), i64, "at")
    schedule = Schedule(te.create_prim_func("f", (x, at), (te.compute((rows,), lambda i: x[at[i]], "y"),)))
    around, inside = schedule.split("i", 16)
    schedule.vectorize(inside)
    schedule.annotate_loop(around, "partition", 1)
    func, rng = finish_loops(schedule.func), np.random.default_rng(0)
    values, places = rng.standard_normal(50).astype(np.float32), rng.integers(0, 50, rows)

    for cpu, loads in [("znver4", 16), ("sapphirerapids", 0)]:
        target = Target.parse(f"x86-64-v4:machine={cpu}")
        text = emit_kernel(func, "f", target)
        calls = [line for line in text.splitlines() if "call" in line and "masked.gather" in line]
        assert len(calls) == (rows % 16 != 0) + (loads == 0)
        assert text.count("insertelement <16 x float>") == loads
        if set(target.features) <= set(native_target().features):
            np.testing.assert_array_equal(run(func, [values, places], target=target)[0], values[places])


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", [f32, f64, i64, i8, bool_], ids=str)
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("left_over", [0, 1])
@pytest.mark.parametrize("stride", [2, 3, 4, 5, 8, 9, 16, 17])
def test_every_second_or_third_element_is_loaded_in_whole_vectors(stride: int, left_over: int, lanes: int, dtype: DType) -> None:
    """The buffer ends with the last element that is wanted; lanes of the last vector may be masked."""
    count = 3 * lanes + left_over
    x = te.placeholder((2, stride * (count - 1) + 2), dtype, "x")
    schedule = Schedule(te.create_prim_func("f", (x,), (te.compute((2, count), lambda i, j: x[i, j * stride + 1], "y"),)))
    schedule.vectorize(schedule.split("j", lanes)[1])
    func = finish_loops(schedule.func)
    values = np.random.default_rng(0).integers(0, 100, (2, stride * (count - 1) + 2)).astype(dtype.numpy)

    (result,) = run(func, [values])

    np.testing.assert_array_equal(result, values[:, 1::stride])
    text = emit_prim_func(func, "f", native_target().features).ir_text
    is_gathered = stride > (16 if dtype.bits < 32 else 4 if left_over else 8)  # lanes of the last vector alone, up to 8
    assert ("masked.gather" in text) == is_gathered
    ends = {int(place) + lanes for place in re.findall(r"getelementptr inbounds \w+, ptr %\w+, i64 (\d+)\n", text) if not is_gathered}
    assert max(ends, default=0) <= stride * (lanes - 1) + 2


def test_a_tree_adds_in_one_order_whatever_the_values() -> None:
    x = te.placeholder((1, 8), f32, "x")
    schedule = Schedule(te.create_prim_func("f", (x,), (te.reduce("sum", (1,), (8,), lambda i, k: x[i, k], "y"),)))
    schedule.decompose_reduction("y", "ri")
    schedule.unroll("ri")
    schedule.annotate_loop("ri", "tree", 1)
    values = np.random.default_rng(1).standard_normal((1, 8)).astype(np.float32)

    (result,) = run(finish_loops(schedule.func), [values])

    half = values[0, :4] + values[0, 4:]
    quarter = half[:2] + half[2:]
    assert result[0] == quarter[0] + quarter[1]


@pytest.mark.parametrize("shape", [(3, 32), (1, 16), (2, 7), (0, 16)])
def test_rows_of_padding_read_nothing_outside_of_the_buffer(shape: tuple[int, int]) -> None:
    """Masked lanes of a page that is not there are ignored, but in hundreds of cycles: such loads go to the begin of the buffer."""
    rows, columns = shape
    x = te.placeholder(shape, f32, "x")

    def padded(i: Expr, j: Expr) -> Expr:
        inside = [1 <= i, i < rows + 1, 1 <= j, j < columns + 1]
        return Select(logical_and(*inside), x[i - 1, j - 1], const(0.0, f32))

    schedule = Schedule(te.create_prim_func("f", (x,), (te.compute((rows + 2, columns + 2), padded, "y"),)))
    vectors, lane = schedule.split("j", 16)
    schedule.vectorize(lane)
    schedule.parallel(schedule.fuse("i", vectors))  # such loops are not cut where the padding ends
    final = finish_loops(schedule.func)
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    (result,) = run(final, [values])

    np.testing.assert_array_equal(result, np.pad(values, 1))
    loads, kept_inside = masked_loads(final)
    assert kept_inside == loads and (loads or not rows)


@pytest.mark.parametrize("seed", some_of(range(12), quick=range(4)))
def test_rows_of_padding_of_any_width_are_exact(seed: int) -> None:
    """Also in vectors of several registers, in one of which no lane may be active: LLVM 22 loads such a register whole."""
    rng = np.random.default_rng(seed)
    for dtype in (f32, f64, i64, i32, i8):
        for lanes in (4, 8, 16, 32, 128):
            columns, left, right = int(rng.integers(1, 40)), int(rng.integers(0, 4)), int(rng.integers(0, 6))
            values = rng.integers(1, 100, (2, columns)).astype(dtype.numpy)

            (result,) = run(padded_rows(columns, left, right, lanes, dtype), [values])

            np.testing.assert_array_equal(result, np.pad(values, ((1, 1), (left, right))))


def padded_rows(columns: int, left: int, right: int, lanes: int, dtype: DType) -> PrimFunc:
    """Two rows, one of padding above and below, some columns of it left and right, computed in vectors."""
    x = te.placeholder((2, columns), dtype, "x")

    def padded(i: Expr, j: Expr) -> Expr:
        inside = logical_and(1 <= i, i < 3, left <= j, j < columns + left)
        return Select(inside, x[i - 1, j - left], const(0, dtype))

    schedule = Schedule(te.create_prim_func("f", (x,), (te.compute((4, columns + left + right), padded, "y"),)))
    _, lane = schedule.split("j", lanes)
    schedule.vectorize(lane)
    return finish_loops(schedule.func)


def masked_loads(func: PrimFunc) -> tuple[int, int]:
    """How many masked loads a kernel has, and for how many of them the place is chosen."""
    lines = emit_prim_func(func, "f", native_target().features).ir_text.splitlines()
    loads = [line for line in lines if "@llvm.masked.load" in line and "call" in line]
    chosen = {line.split(" = ")[0].strip() for line in lines if "select i1" in line and "ptr" in line}
    return len(loads), sum(any(f" {name}," in line for name in chosen) for line in loads)


def test_rows_of_a_concatenation_read_nothing_outside_of_their_buffers() -> None:
    x, y = te.placeholder((3, 32), f32, "x"), te.placeholder((2, 32), f32, "y")
    joined = te.compute((5, 32), lambda i, j: Select(i < 3, x[i, j], y[i - 3, j]), "z")
    schedule = Schedule(te.create_prim_func("f", (x, y), (joined,)))
    vectors, lane = schedule.split("j", 16)
    schedule.vectorize(lane)
    schedule.parallel(schedule.fuse("i", vectors))
    final = finish_loops(schedule.func)
    a, b = (np.random.default_rng(k).standard_normal((rows, 32)).astype(np.float32) for k, rows in enumerate((3, 2)))

    (result,) = run(final, [a, b])

    np.testing.assert_array_equal(result, np.concatenate([a, b]))
    assert masked_loads(final) == (2, 2)


def test_rows_that_start_at_a_minimum_are_found_once() -> None:
    n = Var("n", i64)
    x = te.placeholder((n, 64), f32, "x")
    schedule = Schedule(te.create_prim_func("f", (x,), (te.compute((n, 64), lambda i, j: x[i, j] + 1.0, "y"),), (n,)))
    schedule.specialize("i", 4)
    rows, row = schedule.split_overlapped("i", 4)
    schedule.parallel(rows)
    _, column = schedule.split("j", 16)
    schedule.vectorize(column)
    schedule.unroll(row)
    schedule.unroll("jo")

    text = emit_prim_func(finish_loops(schedule.func)).ir_text

    assert text.count("load <16 x float>") == 16
    assert text.count("= call i64 @llvm.smin") == 1
