"""Loops that are as long as data says: what the rules make of them is well formed, runs in vectors, and means the same."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from tc.codegen.kernels import finish_loops
from tc.codegen.llvm.emitter import emit_prim_func
from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.expr import Var
from tc.ir.loop import For, LoopKind, PrimFunc
from tc.ir.node import walk
from tc.ir.parser import parse_prim_func
from tc.ir.verify import verify
from tc.passes.loop.lift_workspace import lift_workspace
from tc.schedule.rules import apply_rules
from tc.schedule.step import Schedule
from tc.target import Target, native_target
from tests.ops.kernels import run
from tests.schedule.programs import chain
from tests.schedule.uneven import CSR_VECTOR, RAGGED_MEAN, TEXTS, expected, uneven_problem


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_the_untuned_schedule_is_well_formed_and_in_vectors(name: str, target: str) -> None:
    """The extent of a row went to where the row's number is another one: variables out of scope."""
    scheduled = apply_rules(parse_prim_func(TEXTS[name]), Target.parse(target))

    verify(scheduled.func)
    kinds = {node.kind for node in walk(scheduled.func) if isinstance(node, For)}
    assert LoopKind.VECTORIZED in kinds


@pytest.mark.parametrize("name", ["ragged_sum", "ragged_mean", "ragged_softmax", "ragged_matmul", "csr_vector", "csr_matrix", "paged_sum"])
def test_rows_of_unknown_length_run_in_parallel(name: str) -> None:
    scheduled = apply_rules(parse_prim_func(TEXTS[name]), Target.parse("x86-64-v4"))

    assert LoopKind.PARALLEL in {node.kind for node in walk(scheduled.func) if isinstance(node, For)}


@functools.cache
def scheduled_and_finished(name: str) -> tuple[PrimFunc, PrimFunc]:
    scheduled = apply_rules(parse_prim_func(TEXTS[name]), native_target()).func
    return scheduled, finish_loops(scheduled)


@pytest.mark.covering
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", TEXTS)
def test_kernels_for_rows_of_different_lengths_match_numpy(name: str, seed: int) -> None:
    """Empty rows, rows of one term, and rows of many vectors."""
    _, arrays, dims = uneven_problem(name, np.random.default_rng(seed), most=(3, 40, 300)[seed % 3])
    scheduled, finished = scheduled_and_finished(name)

    (found, *_) = run(finished, arrays, dims)

    np.testing.assert_allclose(found, expected(name, arrays), rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(run_prim_func(scheduled, arrays, dims)[0], expected(name, arrays), rtol=2e-6, atol=1e-6)


def test_extents_speak_of_the_new_loops() -> None:
    s = Schedule(parse_prim_func(RAGGED_MEAN))

    s.compute_at("s", "i_1")

    verify(s.func)
    extents = [str(node.extent) for node in walk(s.func) if isinstance(node, For)]
    assert extents == ["n", "1", "L[i_1 + it]"]


def test_an_extent_without_a_meaning_is_refused() -> None:
    """The length is that of a row, and parts of several rows are asked for in an order that fusing has changed."""
    text = RAGGED_MEAN.replace("vi=spatial(n, i), vj=reduction(L[i], j)", "vi=spatial(n, n - 1 - i), vj=reduction(L[i], j)")
    s = Schedule(parse_prim_func(text))

    with pytest.raises(ScheduleError, match=r"the extent of axis vj of block s is L\[i\], but i means nothing in loop i_1"):
        s.compute_at("s", "i_1")


def test_conditions_move_with_the_block_or_the_step_is_refused() -> None:
    guarded = """
@loops
def guarded(X: f32[n], Y: f32[n], n: i64):
    with alloc(f32[n], scope='global') as S:
        for i in range(n):
            with block('s', vi=spatial(n, i)):
                where(1 <= i)
                S[vi] = X[vi - 1]
        for i in range(n):
            with block('y', vi=spatial(n, i)):
                Y[vi] = select(1 <= vi, S[vi], 0.0)
"""
    x = np.arange(5, dtype=np.float32)
    s = Schedule(parse_prim_func(guarded))

    s.compute_at("s", "i_1")

    np.testing.assert_array_equal(run_prim_func(s.func, [x], (5,))[0], [0, 0, 1, 2, 3])
    other = Schedule(parse_prim_func(guarded.replace("where(1 <= i)", "where(1 <= n - i)")))
    other.compute_at("s", "i_1")
    verify(other.func)


LENGTHS_FIRST = """
@loops
def lengths_first(X: f32[n, m], L: i64[n], Y: f32[n], n: i64, m: i64):
    with alloc(i64[n], scope='global') as K:
        for i in range(n):
            with block('k', vi=spatial(n, i)):
                K[vi] = max(L[vi] - 1, 0)
        for i in range(n):
            for j in range(K[i]):
                with block('s', vi=spatial(n, i), vj=reduction(K[i], j)):
                    annotate(monoid='sum')
                    with init():
                        Y[vi] = 0.0
                    Y[vi] = Y[vi] + X[vi, vj]
"""


def test_what_decides_how_often_a_loop_runs_is_made_before_it() -> None:
    """The loop's extent reads it, not its block: moved into the loop it was made when it was too late."""
    s = Schedule(parse_prim_func(LENGTHS_FIRST))

    with pytest.raises(ScheduleError, match="K decides whether or how often block s runs"):
        s.compute_at("k", "j")


def test_an_extent_that_its_own_loop_changes_is_left_alone() -> None:
    text = """
@loops
def shrinking(N: i64[1], Y: i64[8], C: i64[1]):
    outputs(2)
    for a in range(2):
        with block('c', va=spatial(1, 0)):
            C[va] = 3
        for i in range(C[0]):
            with block('y', vi=spatial(C[0], i)):
                Y[vi] = 1
                C[0] = 0
"""
    s = Schedule(parse_prim_func(text))

    with pytest.raises(ScheduleError, match=r"split: loop i writes C, from which its extent C\[0\] is read"):
        s.split("i", 2)


def test_indices_in_memory_are_not_neighbours() -> None:
    """Lanes over the rows of a sparse matrix would have rows of different lengths side by side."""
    scheduled = apply_rules(parse_prim_func(CSR_VECTOR), Target.parse("x86-64-v4"))

    assert scheduled.rule == "row reduction"


def test_lengths_are_read_only_of_rows_that_are_there() -> None:
    """The rows were rounded up to tiles, the condition stood at the block: the loop around it read its extent behind the last row."""
    func, arrays, dims = uneven_problem("ragged_chain", np.random.default_rng(4))
    s = Schedule(func)
    s.split("i_1", 8)
    s.split("j_1", 3)

    assert any(str(node.extent).startswith("(select(") for node in walk(s.func) if isinstance(node, For))
    run_prim_func(s.func, arrays, dims)  # an index out of range is an error here
    (found, *_) = run(finish_loops(s.func), arrays, dims)
    lengths = arrays[1]
    np.testing.assert_array_equal(found[lengths > 0], expected("ragged_chain", arrays)[lengths > 0])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda s: s.split("j_1", (4, None, 2)), "split: loop i_1 decides the extent of loop j_1; leave its first factor open"),
        (lambda s: s.fuse("i_1", "j_1"), "fuse: the extent of loop j_1 depends on loop i_1"),
        (lambda s: s.pad_einsum("s", (4, 4)), "pad_einsum: the axes of block s are not of one extent each"),
    ],
)
def test_steps_that_rows_of_different_lengths_refuse(step: Callable[[Schedule], object], message: str) -> None:
    s = Schedule(parse_prim_func(TEXTS["ragged_chain"]))

    with pytest.raises(ScheduleError, match=message):
        step(s)


def test_a_part_of_a_buffer_does_not_take_its_readers_along() -> None:
    """Rows of scores are as long as data says, the result is whole: what was read behind their ends stayed unwritten."""
    s = Schedule(parse_prim_func(TEXTS["paged_chain"]))

    with pytest.raises(ScheduleError, match="reverse_compute_at: block s may make a part of what block y reads only"):
        s.reverse_compute_at("y", "t")


def test_the_second_part_of_a_condition_reads_nothing_where_the_first_does_not_hold() -> None:
    """Both parts were evaluated: a length behind the last one was read."""
    text = """
@loops
def conditional(L: i64[n], Y: f32[m], n: i64, m: i64):
    for i in range(m):
        Y[i] = 0.0
        if i < n and L[i] < 3:
            Y[i] = 1.0
"""
    func = parse_prim_func(text)
    source = emit_prim_func(func).ir_text
    before_branch = source.partition("br i1 %")[2].partition("br i1 %")[0]

    assert "load i64" not in before_branch
    (found,) = run(func, [np.array([1, 5, 2], np.int64)], (3, 7))
    np.testing.assert_array_equal(found, [1, 0, 1, 0, 0, 0, 0])


def test_vectorized_loops_are_not_cut_in_two() -> None:
    """Marked before it was vectorized, a loop got an extent that is not constant."""
    s = Schedule(chain(Var("n")))
    _, inner = s.split("i", 4)
    s.loop_partition(inner)
    s.vectorize(inner)

    verify(finish_loops(s.func))


def test_a_check_stays_where_the_one_that_it_needs_stays() -> None:
    """It left the loop alone, and spoke of an index that was not there."""
    s = Schedule(parse_prim_func(TEXTS["csr_chain"]))
    *_, last = s.split("i", (None, 2, 3))
    s.split(last, (None, 5))
    s.reorder("j_1", "c_1")

    verify(finish_loops(s.func))


def test_scratch_of_a_parallel_loop_of_unknown_length_is_no_parameter_of_that_size() -> None:
    """Its parameter had the extent of the loop, which meant nothing there."""
    text = """
@loops
def scratch(X: f32[n, m], L: i64[n], Y: f32[n, m], n: i64, m: i64):
    for i in parallel(n):
        for j in parallel(L[i]):
            with alloc(f32[m], scope='global') as A:
                for k in range(m):
                    A[k] = X[i, k] * 2.0
                Y[i, j] = A[j]
"""
    x, lengths = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([4, 0, 2], np.int64)
    func = lift_workspace(parse_prim_func(text))

    verify(func)
    (found, *_) = run_prim_func(func, [x, lengths], (3, 4), backward=True)
    np.testing.assert_array_equal(found[0], x[0] * 2)
    np.testing.assert_array_equal(found[2, :2], x[2, :2] * 2)


def test_registers_of_unknown_number_become_memory() -> None:
    """What no pass could place inside of the loop had no constant size, and code generation refused it."""
    text = """
@loops
def reversed_rows(X: f32[n, 4], Y: f32[n, 4], n: i64):
    with alloc(f32[n, 4], scope='register') as R:
        for i in range(n):
            for j in range(4):
                R[i, j] = X[i, j] * 2.0
        for i in range(n):
            for j in range(4):
                Y[i, j] = R[n - 1 - i, j]
"""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)

    (found, *_) = run(lift_workspace(parse_prim_func(text)), [x], (3,))

    np.testing.assert_array_equal(found, x[::-1] * 2)
