"""Attention on devices as one launch: by threads that meet at barriers without races, on an OpenCL device, and as PTX."""

from __future__ import annotations

import numpy as np
import pytest

from tc.codegen.ptx.emitter import emit_ptx
from tc.interp import run_prim_func
from tc.ir.dtype import bool_, f32
from tc.ir.expr import Var
from tc.ir.verify import verify
from tc.schedule.knobs import Decide, take_default
from tc.schedule.rules import Scheduled, apply_rules
from tc.schedule.step import Trace
from tc.target import Target
from tests.codegen.opencl import kernels as opencl
from tests.draws import some_of
from tests.opencl_driver import need_opencl
from tests.ptx.kernels import run_launches
from tests.schedule.gpu.attentions import AttentionProblem, attention_problem, drawn_attention
from tests.schedule.gpu.launches import DEVICE, check_launches, drawn, finished, launches

CLOSE = {"rtol": 3e-5, "atol": 3e-5}
"""Sums of up to a hundred products of numbers around 1, in f32."""


def scheduled(problem: AttentionProblem, decide: Decide = take_default) -> Scheduled:
    """By the rule for attention, in one launch, with a trace that can be kept."""
    made = apply_rules(problem.func, DEVICE, decide)
    assert made.rule == "tiled attention"
    assert len(launches(made.func.body)) == 1
    assert Trace.from_json(made.trace.to_json()) == made.trace
    check_launches(problem.func, made.func)
    return made


def check(problem: AttentionProblem) -> None:
    """By threads, which the interpreter watches for races."""
    final = finished(scheduled(problem).func)
    verify(final)
    got = run_prim_func(final, problem.arrays, problem.dims)[0]
    np.testing.assert_allclose(got, problem.expected, **CLOSE)


def plain(rows: int, keys: int, depth: int, width: int, *masks: np.ndarray, steps: tuple[str, ...] = ()) -> AttentionProblem:
    rng = np.random.default_rng([rows, keys, depth, width])
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((rows, depth), (keys, depth), (keys, width))]
    arrays += masks
    dtypes = [bool_ if array.dtype == bool else f32 for array in arrays]
    return attention_problem([array.shape for array in arrays], arrays, dtypes, {}, steps=steps)


@pytest.mark.parametrize("seed", some_of(range(6), quick=range(3)))
def test_any_attention_by_threads(seed: int) -> None:
    check(drawn_attention(np.random.default_rng([1, seed])))


def test_in_order_and_backward() -> None:
    problem = plain(20, 37, 24, 20)
    made = scheduled(problem)
    for backward in (False, True):
        got = run_prim_func(made.func, problem.arrays, backward=backward)[0]
        np.testing.assert_allclose(got, problem.expected, **CLOSE)


def test_rows_of_which_a_tile_of_keys_is_masked_away_keep_what_others_give() -> None:
    mask = np.zeros((18, 70), bool)
    mask[:, 40:] = True
    mask[3, :] = False  # a row without any key is NaN, as it is where the whole row is seen at once
    mask[4, :2] = True

    problem = plain(18, 70, 8, 8, mask, np.asarray(-np.inf, np.float32), steps=("keep",))

    assert np.isnan(problem.expected[3]).all() and np.isfinite(problem.expected[4:]).all()
    check(problem)


def test_scores_too_large_for_exponentials() -> None:
    problem = plain(17, 40, 8, 8, np.asarray(300, np.float32), steps=("mul",))

    got = run_prim_func(finished(scheduled(problem).func), problem.arrays)[0]

    np.testing.assert_allclose(got, problem.expected, rtol=3e-3, atol=3e-3)


def test_without_keys_the_result_is_zero() -> None:
    n = Var("n")
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((17, 8)).astype(np.float32), np.zeros((0, 8), np.float32), np.zeros((0, 4), np.float32)]

    problem = attention_problem([(17, 8), (n, 8), (n, 4)], arrays, [f32] * 3, {n: 0})

    assert not problem.expected.any()
    check(problem)


def test_no_rows_no_batch() -> None:
    b, m = Var("b"), Var("m")
    arrays = [np.zeros((0, 0, 8), np.float32), np.zeros((0, 9, 8), np.float32), np.zeros((0, 9, 4), np.float32)]
    check(attention_problem([(b, m, 8), (b, 9, 8), (b, 9, 4)], arrays, [f32] * 3, {b: 0, m: 0}))


@pytest.mark.parametrize("seed", some_of(range(8), quick=range(3)))
def test_any_attention_on_an_opencl_device(seed: int) -> None:
    need_opencl()
    target = Target.parse("opencl")
    problem = drawn_attention(np.random.default_rng([2, seed]), large=True)
    got = opencl.run_on(target, opencl.finished(problem.func, target), problem.arrays, problem.dims)[0]
    np.testing.assert_allclose(got, problem.expected, **CLOSE)


@pytest.mark.parametrize("seed", range(4))
def test_any_attention_as_ptx(seed: int) -> None:
    rng = np.random.default_rng([3, seed])
    problem = drawn_attention(rng)
    final = finished(scheduled(problem, drawn(rng)).func)
    got = run_launches(final, emit_ptx(final, "k", "sm_80"), "k", problem.arrays, problem.dims)[0]
    np.testing.assert_allclose(got, problem.expected, **CLOSE)
