"""Random legal schedules for devices keep what a program computes: in the interpreter, which finds races, and on an OpenCL device."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.loop import Alloc, PrimFunc
from tc.ir.parser import parse_prim_func
from tc.ir.structural import first_difference
from tc.ir.verify import verify
from tc.passes.loop.distribute_threads import distribute_threads
from tc.passes.pipeline import FINISH_CALLS, run_pipeline
from tc.schedule.independence import CONCURRENT
from tc.schedule.step import Schedule, Trace
from tc.schedule.tree import statements
from tc.target import Target
from tests.opencl_driver import need_opencl
from tests.schedule.gpu.device_traces import random_device_schedule
from tests.schedule.gpu.launches import finished
from tests.schedule.gpu.operator_problems import OPERATOR_CLASSES
from tests.schedule.gpu.problems import DEVICE_CLASSES, Problem
from tests.schedule.random_problems import CLASSES

PROBLEMS = {**CLASSES, **DEVICE_CLASSES, **OPERATOR_CLASSES}
MOST_ELEMENTS = 4000
"""Numbers that a problem is given at most: the interpreter takes them one at a time."""


def drawn_schedule(name: str, seed: int) -> tuple[Problem, Schedule]:
    """A random problem of a class and a legal schedule of it: the first of the draws that begin with a seed."""
    for draw in range(20):
        rng = np.random.default_rng([zlib.crc32(name.encode()), seed, draw])
        problem = PROBLEMS[name](rng)
        schedule = random_device_schedule(problem[0], rng) if sum(array.size for array in problem[1]) <= MOST_ELEMENTS else None
        if schedule is not None:
            return problem, schedule
    raise AssertionError(f"no draw of {name} with seed {seed} is legal")


def check(final: PrimFunc, problem: Problem, schedule: Schedule, results: list[np.ndarray]) -> None:
    expected = run_prim_func(*problem)
    for want, got in zip(expected, results[: len(expected)], strict=True):  # workspaces follow
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=f"{final.name}\n{schedule.trace}")


def check_seed(name: str, seed: int) -> None:
    problem, schedule = drawn_schedule(name, seed)
    func, arrays, dims = problem
    final = finished(schedule.func)
    verify(final)

    check(schedule.func, problem, schedule, run_prim_func(schedule.func, arrays, dims, backward=True))
    check(final, problem, schedule, run_prim_func(final, arrays, dims))
    replayed = Trace.from_json(schedule.trace.to_json()).apply(func)
    assert first_difference(replayed, schedule.func) is None, str(schedule.trace)


def check_on_device(name: str, seed: int, target: Target) -> None:
    from tests.codegen.opencl.kernels import run_on

    problem, schedule = drawn_schedule(name, seed)
    final = finished(schedule.func)
    check(final, problem, schedule, run_on(target, final, problem[1], problem[2]))


@pytest.fixture(scope="module")
def opencl() -> Target:
    need_opencl()
    return Target.of("opencl")


@pytest.mark.parametrize("name", PROBLEMS)
def test_random_launches_keep_the_meaning(name: str) -> None:
    check_seed(name, 0)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", PROBLEMS)
def test_many_random_launches_keep_the_meaning(name: str, seeds: range) -> None:
    for seed in seeds:
        check_seed(name, seed)


@pytest.mark.parametrize("name", ["softmax", "chain", "product", "reduced"])
def test_random_launches_run_on_a_device(name: str, opencl: Target) -> None:
    check_on_device(name, 1, opencl)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", PROBLEMS)
def test_many_random_launches_run_on_a_device(name: str, opencl: Target, seeds: range) -> None:
    for seed in seeds:
        check_on_device(name, seed, opencl)


def test_scratch_memory_of_a_thread_has_a_known_size() -> None:
    func = parse_prim_func(
        """
@loops
def rows(X: f32[4, n], Y: f32[4, n], n: i64):
    for t in bound(4, 'thread.x'):
        with alloc(f32[n], scope='global') as row:
            for i in range(n):
                row[i] = X[t, n - 1 - i]
            for j in range(n):
                Y[t, j] = row[j] + row[n - 1 - j]
"""
    )
    with pytest.raises(ScheduleError, match="which each thread has, is of no constant size"):
        distribute_threads(func)


@pytest.mark.parametrize("kind", ["thread.x", "parallel"])
def test_scratch_that_iterations_make_for_themselves_is_not_shared(kind: str) -> None:
    """Once blocks were gone it was not seen that no iteration of k hands `row` on: all threads wrote to one."""
    func = parse_prim_func(
        """
@loops
def rows(A: f32[31, 31], C: f32[44, 6]):
    outputs(1)
    with alloc(f32[31, 31], scope='global') as row:
        for k in range(11):
            for t in range(4):
                for i in range(2):
                    for j in range(31):
                        with block('copy', vi=spatial(31, i + (k * 4 + t) * 6 // 31), vj=spatial(31, j)):
                            where(i + (k * 4 + t) * 6 // 31 < 31)
                            row[vi, vj] = A[vi, vj] + cast(k * 4 + t, f32)
                for n in range(6):
                    with block('part', vm=spatial(44, k * 4 + t), vo=spatial(6, n)):
                        C[vm, vo] = row[(vm * 6 + vo) // 31, (vm * 6 + vo) % 31]
"""
    )
    schedule = Schedule(func)
    schedule.parallel("t") if kind == "parallel" else schedule.bind("t", kind)
    final = run_pipeline(schedule.func, FINISH_CALLS, {"threads": 2}) if kind == "parallel" else finished(schedule.func)
    arrays = [np.arange(961, dtype=np.float32).reshape(31, 31), np.zeros((44, 6), np.float32)]

    (alloc,) = (place for place in statements(final.body) if isinstance(place.stmt, Alloc))
    assert any(loop.kind in CONCURRENT for loop in alloc.loops)
    np.testing.assert_array_equal(run_prim_func(final, arrays)[0], run_prim_func(func, arrays)[0])
