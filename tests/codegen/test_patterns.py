"""Loops that become other instructions than one would read off them: trees of lanes, squares transposed in registers."""

from __future__ import annotations

import numpy as np
import pytest

from tc import te
from tc.ir.dtype import f32
from tc.ir.loop import PrimFunc
from tc.kernels import finish_loops
from tc.schedule.step import Schedule
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
