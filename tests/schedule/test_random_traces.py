"""Random legal schedules do not change what a program computes."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.structural import first_difference
from tc.ir.verify import verify
from tc.passes.loop.compact_buffers import compact_buffers
from tc.passes.loop.lower_blocks import lower_blocks
from tc.passes.loop.partition_loops import partition_loops
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import finish_loops
from tc.schedule.step import Trace
from tests.draws import some_of
from tests.ops.kernels import run
from tests.schedule.random_problems import CLASSES
from tests.schedule.random_traces import acceptance, random_schedule


def check_seed(name: str, seed: int) -> None:
    """One random problem, one random schedule: the same results with blocks, and, lowered, with independent
    iterations run backward."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    func, arrays, dims = CLASSES[name](rng)
    expected = run_prim_func(func, arrays, dims)
    schedule = random_schedule(func, rng, after_step=verify)

    scheduled = run_prim_func(schedule.func, arrays, dims)
    lowered = partition_loops(compact_buffers(simplify_loops(lower_blocks(schedule.func))))
    final = run_prim_func(simplify_loops(lowered), arrays, dims, backward=True)

    for want, got, last in zip(expected, scheduled, final, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=str(schedule.trace))
        np.testing.assert_allclose(last, want, rtol=1e-5, err_msg=f"lowered\n{schedule.trace}")
    replayed = Trace.from_json(schedule.trace.to_json()).apply(func)
    assert first_difference(replayed, schedule.func) is None, str(schedule.trace)


def check_compiled(name: str, seed: int) -> None:
    """One random problem, one random schedule: machine code computes what the unscheduled program means."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    func, arrays, dims = CLASSES[name](rng)
    schedule = random_schedule(func, rng)
    finished = finish_loops(schedule.func)
    verify(finished)
    results = run(finished, arrays, dims)
    expected = run_prim_func(func, arrays, dims)
    assert len(results) >= len(expected)  # and workspaces
    for want, got in zip(expected, results[: len(expected)], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=str(schedule.trace))


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("first", some_of([0, 4, 8], quick=[0]))
def test_random_schedules_keep_the_meaning(name: str, first: int) -> None:
    for seed in range(first, first + 4):
        check_seed(name, seed)


def test_a_cut_loop_of_a_row_behind_the_last_reads_no_length() -> None:
    check_seed("csr", 71)


def test_a_row_that_moves_in_the_loops_that_it_stood_in_keeps_its_own_length() -> None:
    check_seed("csr", 145)


def test_zeros_behind_what_is_read_are_made_too() -> None:
    check_seed("packed", 68)


def test_lanes_do_not_share_a_buffer_that_is_no_longer_allocated_inside_their_loop() -> None:
    check_compiled("depthwise", 161)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_many_random_schedules_keep_the_meaning(name: str) -> None:
    for seed in range(12, 220):
        check_seed(name, seed)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("first", some_of([0, 2], quick=[0]))
def test_random_schedules_compile(name: str, first: int) -> None:
    for seed in range(first, first + 2):
        check_compiled(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_many_random_schedules_compile(name: str) -> None:
    for seed in range(20, 220):
        check_compiled(name, seed)


@pytest.mark.parametrize("name", CLASSES)
def test_half_of_the_drawn_steps_are_accepted(name: str) -> None:
    drawn, accepted = acceptance(name, range(20))

    assert 2 * accepted >= drawn


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_half_of_many_drawn_steps_are_accepted(name: str) -> None:
    drawn, accepted = acceptance(name, range(200))

    assert 2 * accepted >= drawn
