"""Reductions on devices: all threads of a block do a part, in an order that the schedule alone decides."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.dtype import DType, f16, f32, i64
from tc.ir.expr import Load, Var, cast
from tc.ir.loop import Alloc, Barrier, For, LoopKind, WarpCall, walk_statements
from tc.ir.node import walk
from tc.schedule.knobs import Decide, take_default
from tc.te import compute, create_prim_func, placeholder, reduce, reduce_many
from tests.draws import some_of
from tests.schedule.gpu.launches import check_schedule, device_schedule, drawn, finished, launches
from tests.schedule.gpu.problems import DEVICE_CLASSES
from tests.schedule.programs import row_sum, softmax

REDUCTIONS = ("reduced", "normalised")


def check_seed(name: str, seed: int, decide: Decide = take_default) -> str:
    func, arrays, dims = DEVICE_CLASSES[name](np.random.default_rng([zlib.crc32(name.encode()), seed]))
    return check_schedule(func, arrays, dims, decide=decide).rule


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_keep_their_meaning(name: str) -> None:
    rules = [check_seed(name, seed) for seed in range(8)]

    assert rules.count("row reduction") >= 2


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_keep_their_meaning_with_any_answers(name: str) -> None:
    for seed in range(4):
        check_seed(name, seed, drawn(np.random.default_rng(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("name", REDUCTIONS)
def test_many_reductions_keep_their_meaning(name: str) -> None:
    for seed in range(8, 108):
        check_seed(name, seed)


def test_a_softmax_is_one_launch_that_keeps_its_exponentials_in_shared_memory() -> None:
    scheduled = device_schedule(softmax(300, 512))

    assert (scheduled.rule, len(launches(scheduled.func.body))) == ("row reduction", 1)
    buffers = [stmt.buffer for stmt in walk_statements(scheduled.func.body) if isinstance(stmt, Alloc)]
    assert {"e", "top", "s"} <= {buffer.name for buffer in buffers if buffer.scope == "shared"}


def test_a_row_that_shared_memory_does_not_hold_is_computed_twice() -> None:
    scheduled = device_schedule(softmax(300, 60000))

    assert scheduled.rule == "row reduction"
    assert "compute_inline('e')" in str(scheduled.trace)


def test_rows_are_read_in_vectors_by_neighbouring_threads() -> None:
    func = finished(device_schedule(row_sum(500, 4096)).func)

    vectors = [stmt for stmt in walk_statements(func.body) if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED]
    assert [str(loop.extent) for loop in vectors] == ["4", "4"]  # where they start, and where they add up
    assert sum(isinstance(stmt, Barrier) for stmt in walk_statements(func.body)) == 1


def test_the_lanes_of_a_warp_combine_rows_by_exchanges() -> None:
    func = finished(device_schedule(softmax(300, 512)).func)

    statements = list(walk_statements(func.body))
    names = [stmt.name for stmt in statements if isinstance(stmt, WarpCall)]
    assert names == [f"shuffle.xor{mask}.f32" for mask in (16, 8, 4, 2, 1)] * 2
    assert sum(isinstance(stmt, Barrier) for stmt in statements) == 2, "one in front of what a warp combines, for each of two reductions"


def test_nothing_is_asked_about_no_rows() -> None:
    """An answer that a row of another length would have had was no schedule at all."""
    x = placeholder((0, 2, 118), f32, "X")
    top = reduce("max", (0, 2), (118,), lambda i, j, k: x[i, j, k], "top")
    less = compute((0, 2, 118), lambda i, j, k: x[i, j, k] - top[i, j], "less")
    total = reduce("sum", (0, 2), (118,), lambda i, j, k: less[i, j, k], "total")
    func = create_prim_func("empty", [x], [compute((0, 2, 118), lambda i, j, k: less[i, j, k] / total[i, j], "y")])

    for seed in range(3):
        check_schedule(func, [np.zeros((0, 2, 118), np.float32)], decide=drawn(np.random.default_rng(seed)))


def test_columns_are_reduced_by_threads_side_by_side() -> None:
    x = placeholder((512, 640), f32, "X")
    func = create_prim_func("columns", [x], [reduce("sum", (640,), (512,), lambda j, i: x[i, j], "s")])

    (launch,) = launches(device_schedule(func).func.body)

    across = [stmt for stmt in walk_statements(launch) if isinstance(stmt, For) and stmt.thread == "thread.x"]
    assert {str(loop.extent) for loop in across} == {"8"}  # a warp reads four rows of 128 bytes, 128 bits a thread


@pytest.mark.covering
@pytest.mark.parametrize(("dtype", "lanes"), [(f32, 4), (f16, 8)])
@pytest.mark.parametrize("sizes", [(1, 256, 300), (3, 64, 2000), (2, 96, 33)])
def test_a_product_of_few_rows_reads_vectors_of_columns(dtype: DType, lanes: int, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    x, w = placeholder((m, k), dtype, "X"), placeholder((k, n), dtype, "W")
    total = reduce("sum", (m, n), (k,), lambda i, j, r: cast(x[i, r], f32) * cast(w[r, j], f32), "total")
    func = create_prim_func("gemv", [x, w], [compute((m, n), lambda i, j: cast(total[i, j], dtype), "y")])
    rng = np.random.default_rng(n)

    scheduled = check_schedule(func, [rng.integers(-2, 3, shape).astype(dtype.numpy) for shape in ((m, k), (k, n))])

    vectors = [stmt for stmt in walk_statements(scheduled.func.body) if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED]
    assert {int(str(loop.extent)) for loop in vectors} == {lanes}
    assert any(load.buffer.name == "W" for loop in vectors for load in walk(loop) if isinstance(load, Load))


def test_rows_that_indices_choose_are_read_by_threads_side_by_side() -> None:
    table, chosen = placeholder((1000, 512), f32, "T"), placeholder((300,), i64, "I")
    func = create_prim_func("picked", [table, chosen], [reduce("sum", (300,), (512,), lambda i, k: table[chosen[i], k], "s")])

    scheduled = check_schedule(func, [np.arange(512000, dtype=np.float32).reshape(1000, 512) % 7, np.arange(300) * 3 % 1000])

    lanes = {str(p.extent) for p in walk_statements(scheduled.func.body) if isinstance(p, For) and p.kind is LoopKind.VECTORIZED}
    threads = {(p.thread, str(p.extent)) for p in walk_statements(scheduled.func.body) if isinstance(p, For) and p.thread}
    assert lanes == {"4"}  # as wide as rows of the table allow, not as the indices do
    assert ("thread.x", "64") in threads


def test_few_long_rows_are_cut_in_parts_by_the_size_of_the_device() -> None:
    func = row_sum(2, 65536)

    scheduled = check_schedule(func, [np.random.default_rng(0).integers(-3, 4, (2, 65536)).astype(np.float32)])

    assert len(launches(scheduled.func.body)) == 2
    assert any(choice.knob.name == "s/parts" and choice.value == 16 for choice in scheduled.choices)


def test_sums_of_threads_are_close_to_the_exact_sum() -> None:
    """Errors grow with the depth of the tree: one after the other they would be hundreds of times as large."""
    x = np.random.default_rng(1).random((1, 30000), np.float32)
    func = row_sum(1, 30000)

    (found,) = run_prim_func(device_schedule(func).func, [x])
    exact = x.astype(np.float64).sum()

    assert abs(float(found[0]) - exact) < 40 * 2.0**-24 * exact


def test_the_first_of_equal_elements_is_the_greatest_whatever_the_threads() -> None:
    x = placeholder((4, 500), f32, "X")
    func = create_prim_func("first", [x], list(reduce_many("argmax", (4,), (500,), lambda i, k: (x[i, k], k), ("best", "where"))))
    data = np.zeros((4, 500), np.float32)
    data[1, 400:] = 1.0
    data[2, [77, 78, 300]] = 5.0
    data[3, 250] = np.nan

    best, where = run_prim_func(finished(device_schedule(func).func), [data])[:2]

    assert where.tolist() == [0, 400, 77, 250]
    assert best[:3].tolist() == [0.0, 1.0, 5.0] and np.isnan(best[3])


@pytest.mark.parametrize("n", some_of([0, 1, 31, 33], quick=[0, 33]))
def test_an_empty_sum_is_nothing_and_a_short_one_is_complete(n: int) -> None:
    size = Var("n")
    x = placeholder((3, size), f32, "X")
    total = reduce("sum", (3,), (size,), lambda i, k: x[i, k], "total")
    func = create_prim_func("short", [x], [compute((3,), lambda i: total[i] + 1.0, "y")], (size,))

    check_schedule(func, [np.arange(3 * n, dtype=np.float32).reshape(3, n)], (n,))
