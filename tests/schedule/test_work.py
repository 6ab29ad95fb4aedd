"""Operations and bytes, counted from loops and compared with what the operator is known to take."""

from __future__ import annotations

import pytest

from tc.ir.dtype import f32, i64
from tc.ir.expr import Var, const, select
from tc.ir.parser import parse_prim_func
from tc.schedule.work import Work, bind_dims, count_work
from tc.te import compute, create_prim_func, placeholder
from tests.schedule import programs


def test_a_multiply_add_counts_two_and_every_operand_moves_once() -> None:
    work = count_work(programs.matmul(m=6, n=8, k=5))

    assert work == Work(flops=2 * 6 * 8 * 5, size_bytes=4 * (6 * 5 + 5 * 8 + 6 * 8))


def test_an_epilogue_counts_but_values_in_between_do_not_move() -> None:
    work = count_work(programs.biased(m=6, n=8, k=5))

    assert work == Work(flops=2 * 6 * 8 * 5 + 2 * 6 * 8, size_bytes=4 * (6 * 5 + 5 * 8 + 8 + 6 * 8))


def test_functions_count_one_each() -> None:
    maximum, difference, exp, total, quotient = (4 * 6,) * 5

    assert count_work(programs.softmax(m=4, n=6)) == Work(maximum + difference + exp + total + quotient, 4 * 2 * 4 * 6)


def test_symbolic_dims_take_the_values_they_are_given() -> None:
    n = Var("n", i64)
    func = programs.chain(n)

    assert count_work(func, bind_dims(func, (7,))) == Work(2 * 7, 4 * 2 * 7)
    assert count_work(func, bind_dims(func, (0,))) == Work(0, 0)
    assert count_work(func) is None


def test_of_a_table_only_the_rows_that_are_looked_up_move() -> None:
    table, ids = placeholder((1000, 4), f32, "T"), placeholder((5,), i64, "ids")
    rows = compute((5, 4), lambda i, j: table[ids[i], j], "rows")

    work = count_work(create_prim_func("gather", [table, ids], [rows]))

    assert work == Work(0, 4 * 5 * 4 + 8 * 5 + 4 * 5 * 4)


def test_index_arithmetic_and_padding_count_nothing() -> None:
    x = placeholder((8,), f32, "X")
    padded = compute((10,), lambda i: select(i < 8, x[(i * 3 + 1) % 8], const(0.0, f32)), "p")

    assert count_work(create_prim_func("pad", [x], [padded])) == Work(0, 4 * 8 + 4 * 10)


def test_a_value_used_twice_is_computed_once() -> None:
    x = placeholder((8,), f32, "X")
    y = compute((8,), lambda i: (x[i] + 1.0) * (x[i] + 1.0), "y")

    assert count_work(create_prim_func("square", [x], [y])) == Work(2 * 8, 4 * 2 * 8)


@pytest.mark.parametrize(
    ("work", "seconds", "bound"), [(Work(100, 10), 10.0, "compute"), (Work(10, 100), 20.0, "memory"), (Work(), 0.0, "memory")]
)
def test_the_roofline_is_the_longer_of_computing_and_moving(work: Work, seconds: float, bound: str) -> None:
    assert work.seconds_at(10.0, 5.0) == seconds
    assert work.bound_by(10.0, 5.0) == bound


def test_an_extent_that_is_loaded_makes_the_work_unknown() -> None:
    func = parse_prim_func(
        "@loops\n"
        "def ragged(N: i64[1], A: f32[8], B: f32[8]):\n"
        "    outputs(1)\n"
        "    for i in range(N[0]):\n"
        "        B[i] = A[i] * 2.0\n"
    )

    assert count_work(func) is None
