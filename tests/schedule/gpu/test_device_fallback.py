"""Every program becomes launches that do the same."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.expr import Var
from tc.ir.loop import For, LoopKind
from tc.ir.parser import parse_prim_func
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.schedule.rules.gpu.fallback import schedule_launches
from tc.schedule.step import Schedule
from tc.schedule.tree import find_loop, statements
from tests.ops.kernels import make_prim_func
from tests.ops.test_registry import WITH_LOOPS, assert_same, samples_of
from tests.schedule.gpu.launches import DEVICE, check_launches, check_schedule, device_schedule, finished
from tests.schedule.programs import chain, matmul, row_sum
from tests.schedule.random_problems import CLASSES


def check_operator(name: str, most: int | None) -> None:
    op = OPS[name]
    for arrays, attrs in samples_of(op)[:most]:
        expected = op.run_reference(arrays, op.attrs(attrs))
        prim = simplify_loops(make_prim_func(op, arrays, attrs))

        schedule = device_schedule(prim)
        check_launches(prim, schedule.func)
        actual = run_prim_func(finished(schedule.func), [a for a in arrays if a is not None])

        for a, e in zip(actual[: len(expected)], expected, strict=True):  # workspaces follow
            assert_same(a, e)


@pytest.mark.parametrize("name", WITH_LOOPS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_operators_become_launches_that_compute_the_reference(name: str) -> None:
    check_operator(name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_LOOPS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_all_samples_of_operators_become_launches_that_compute_the_reference(name: str) -> None:
    check_operator(name, None)


@pytest.mark.parametrize("name", CLASSES)
def test_random_problems_of_every_class_become_launches(name: str) -> None:
    for seed in range(2):
        func, arrays, dims = CLASSES[name](np.random.default_rng([zlib.crc32(name.encode()), seed]))
        check_schedule(func, arrays, dims)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 255, 256, 257, 1023, 1024, 1025])
def test_a_symbolic_size_has_a_guarded_last_block_of_threads_with_whole_vectors(n: int) -> None:
    schedule = check_schedule(chain(Var("n")), [np.arange(n, dtype=np.float32)], (n,))

    axes = [(p.loop.thread, str(p.loop.extent)) for p in statements(schedule.func.body) if isinstance(p.stmt, For)]
    assert axes == [("block.x", "((n + 3) // 4 + 255) // 256"), ("thread.x", "256"), ("", "4")]


def test_rows_are_threads_and_their_terms_stay_in_order() -> None:
    func = row_sum(3, 10)
    schedule = Schedule(func)

    schedule_launches(schedule, DEVICE)

    kinds = [(p.loop.kind, p.loop.thread) for p in statements(schedule.func.body) if isinstance(p.stmt, For)]
    assert kinds == [(LoopKind.BOUND, "thread.x"), (LoopKind.SERIAL, "")]


def test_a_loop_whose_length_data_decide_is_inside_of_a_launch() -> None:
    func = parse_prim_func(
        """
@loops
def lengths(L: i64[1], X: f32[9], Y: f32[9]):
    for i in range(L[0]):
        with block('b', vi=spatial(L[0], i)):
            Y[vi] = X[vi] + 1.0
"""
    )
    scheduled = device_schedule(func)

    check_launches(func, scheduled.func)
    outer = next(p.loop for p in statements(scheduled.func.body) if isinstance(p.stmt, For))
    assert (outer.thread, str(outer.extent)) == ("thread.x", "1")


def test_statements_without_names_run_in_one_thread() -> None:
    func = parse_prim_func(
        """
@loops
def plain(X: f32[4], Y: f32[4]):
    Y[0] = X[3]
    for i in range(3):
        Y[i + 1] = Y[i] + X[i]
"""
    )
    check_schedule(func, [np.arange(4, dtype=np.float32)])


def test_plain_loops_that_are_independent_are_bound_and_others_are_not() -> None:
    func = parse_prim_func(
        """
@loops
def plain(X: f32[300], Y: f32[300], Z: f32[300]):
    for i in range(300):
        Y[i] = X[i] + 1.0
    for j in range(299):
        Z[j + 1] = Z[j] + X[j]
"""
    )
    scheduled = device_schedule(func)

    check_launches(func, scheduled.func)
    kinds = [(p.loop.thread, str(p.loop.extent)) for p in statements(scheduled.func.body) if isinstance(p.stmt, For)]
    assert kinds == [("block.x", "2"), ("thread.x", "256"), ("thread.x", "1"), ("", "299")]


def test_a_unit_loop_goes_around_a_block_a_loop_or_all() -> None:
    for name, outermost in (("mm", "mmu"), ("k", "i"), ("matmul", "matmulu")):
        schedule = Schedule(matmul())
        loop = schedule.add_unit_loop({"k": schedule.loops_of("mm")[-1]}.get(name, name))

        assert str(find_loop(schedule.func, loop).loop.extent) == "1"
        if name == "matmul":
            assert schedule.loops_of("mm")[0] == outermost


def test_a_unit_loop_goes_around_nothing_unknown() -> None:
    with pytest.raises(ScheduleError, match="block nothing is not in matmul"):
        Schedule(matmul()).add_unit_loop("nothing")
