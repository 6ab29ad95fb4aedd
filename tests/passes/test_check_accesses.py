"""Indices from data in loops that somebody wrote: each access is proved in range or reported, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tc.errors import CodegenError
from tc.ir.access import access_checks
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import apply_rules
from tc.target import native_target
from tests.ops.kernels import run
from tests.runtime.guarded import guarded_copy

CSR = """
@loops
def multiply(values: f32[nnz], columns: i64[nnz], begins: i64[rows + 1], X: f32[k, 16], Y: f32[rows, 16], nnz: i64, rows: i64, k: i64):
    outputs(1)
    promise(rows, 1, None, 1)
    for i in parallel(rows):
        for j in vectorized(16):
            Y[i, j] = 0.0
        for t in range(begins[i + 1] - begins[i]):
            for j_1 in vectorized(16):
                Y[i, j_1] = Y[i, j_1] + values[begins[i] + t] * X[columns[begins[i] + t], j_1]
"""


def checked(text: str) -> PrimFunc:
    (func,) = parse_module(text).prim_funcs
    return finish_loops(func)


def csr_inputs(rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
    counts = np.array([3, 0, 2, 4])
    begins = np.concatenate([[0], np.cumsum(counts)])
    values, columns = rng.standard_normal(9).astype(np.float32), rng.integers(0, 7, 9)
    x = rng.standard_normal((7, 16)).astype(np.float32)
    dense = np.zeros((4, 7), np.float32)
    for row in range(4):
        for place in range(begins[row], begins[row + 1]):
            dense[row, columns[place]] += values[place]
    return [values, columns, begins, x], dense @ x


def reports(func: PrimFunc, arrays: list[np.ndarray], dims: tuple[int, ...]) -> list[tuple[int, int, str]]:
    """The index, the size and the words of each check that failed."""
    *_, faults = run(func, [guarded_copy(array) for array in arrays], dims)
    rows = zip(faults.tolist(), access_checks(func), strict=True)
    return [(index, size, check.message) for (failed, index, size), check in rows if failed]


def test_a_sparse_product_that_a_user_wrote_is_right_and_reports_nothing() -> None:
    func = checked(CSR)
    arrays, expected = csr_inputs(np.random.default_rng(0))

    result, faults = run(func, [guarded_copy(array) for array in arrays], (9, 4, 7))

    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert not faults.any()


@pytest.mark.parametrize(
    ("operand", "place", "value", "buffer"),
    [(1, 4, 7, "X"), (1, 0, -1, "X"), (1, 8, 10**12, "X"), (2, 4, 10, "values"), (2, 0, -3, "values"), (2, 2, 10**15, "values")],
)
def test_each_wrong_index_of_a_sparse_product_is_reported(operand: int, place: int, value: int, buffer: str) -> None:
    func = checked(CSR)
    arrays, _ = csr_inputs(np.random.default_rng(0))
    if value == 10**15:
        arrays[operand] += value  # as many steps, all of them far away
    else:
        arrays[operand][place] = value

    found = reports(func, arrays, (9, 4, 7))

    assert any(f"of {buffer}" in message and not 0 <= index < size for index, size, message in found)


def store_through(index: str) -> str:
    return f"""
@loops
def scatter(T: i64[20], X: f32[20], Y: f32[8]):
    outputs(1)
    for z in range(8):
        Y[z] = 0.0
    for i in range(20):
        Y[{index}] = X[i]
"""


@pytest.mark.parametrize("bad", [8, -1, 10**11, -(2**63)])
def test_a_store_through_data_does_not_happen_out_of_range(bad: int) -> None:
    func = checked(store_through("T[i]"))
    places = np.arange(20) % 8
    places[13] = bad

    *_, faults = run(func, [places, np.ones(20, np.float32)])

    assert faults.tolist() == [[1, bad, 8]]


@pytest.mark.parametrize(
    "index", ["min(max(T[i], 0), 7)", "T[i] % 8", "cast(cast(T[i], u8), i64) // 32"]
)
def test_what_is_proved_costs_no_check(index: str) -> None:
    func = checked(store_through(index))

    assert access_checks(func) == ()


def test_a_condition_that_loads_proves_nothing_of_what_is_loaded_again() -> None:
    func = checked(store_through("select(0 <= T[i] and T[i] < 8, T[i], 0)"))

    assert len(access_checks(func)) == 1
    assert not run(func, [np.arange(20) - 6, np.ones(20, np.float32)])[-1].any()


def test_a_place_that_is_held_in_range_stays_so_behind_a_condition_that_loads() -> None:
    """The first half of a conjunction took the bound off the second, then checked for data that the first does not let through."""
    func = checked("""
@loops
def f(T: i64[20], X: f32[8], Y: f32[20]):
    outputs(1)
    for i in range(20):
        Y[i] = select(T[i] < 8 and 0.0 < X[max(min(T[i], 7), 0)], 1.0, 2.0)
""")

    (found,) = run(func, [np.arange(20) - 4, np.ones(8, np.float32)])

    assert found.tolist() == [1.0] * 12 + [2.0] * 8


def test_a_while_loop_that_reads_where_data_say_is_refused() -> None:
    text = """
@loops
def chase(T: i64[8], Y: i64[1]):
    outputs(1)
    Y[0] = 0
    while 0 < T[Y[0]]:
        Y[0] = Y[0] + 1
"""
    with pytest.raises(CodegenError, match="condition of a while loop"):
        checked(text)


@pytest.mark.parametrize("lanes", ["range", "vectorized"])
def test_lanes_are_checked_one_by_one(lanes: str) -> None:
    func = checked(f"""
@loops
def pick(T: i32[16], X: f32[5], Y: f32[16]):
    outputs(1)
    for i in {lanes}(16):
        Y[i] = X[cast(T[i], i64)]
""")
    x = np.arange(5, dtype=np.float32)
    good = np.arange(16, dtype=np.int32) % 5
    for lane in range(16):
        bad = good.copy()
        bad[lane] = 5 + lane
        assert reports(func, [bad, x], ()) == [(5 + lane, 5, access_checks(func)[0].message)]

    result, faults = run(func, [good, x])
    np.testing.assert_array_equal(result, x[good])
    assert not faults.any()


def test_the_default_schedule_of_a_gathered_sum_keeps_its_checks() -> None:
    (func,) = parse_module("""
@loops
def bag(T: i64[30, 4], X: f32[n, 32], Y: f32[30, 32], n: i64):
    outputs(1)
    for i in range(30):
        for j in range(32):
            for r in range(4):
                with block('bag', vi=spatial(30, i), vj=spatial(32, j), vr=reduction(4, r)):
                    with init():
                        Y[vi, vj] = 0.0
                    Y[vi, vj] = Y[vi, vj] + X[T[vi, vr], vj]
""").prim_funcs
    final = finish_loops(apply_rules(func, native_target()).func, threads=2)
    rng: Any = np.random.default_rng(3)
    places, x = rng.integers(0, 11, (30, 4)), rng.standard_normal((11, 32)).astype(np.float32)

    result, *_ = run(final, [guarded_copy(places), guarded_copy(x)], (11,))
    np.testing.assert_allclose(result, x[places].sum(1), rtol=1e-5, atol=1e-5)

    places[17, 2] = 11
    assert [(index, size) for index, size, _ in reports(final, [places, x], (11,))] == [(11, 11)]
