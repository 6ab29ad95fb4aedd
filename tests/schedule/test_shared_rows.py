"""Rows of which several share what is reduced, as channels of a group do: it is reduced once for all of them."""

from __future__ import annotations

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.loop import PrimFunc
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import apply_rules
from tc.schedule.work import count_work
from tc.target import Target, native_target
from tests.draws import some_of
from tests.ops.kernels import make_prim_func, run

SHAPES = [(2, 24, 15, 11), (1, 6, 38, 28), (3, 8, 3, 5), (1, 12, 1, 1), (1, 10, 7, 16), (1, 6, 33)]


def group_norm(shape: tuple[int, ...], groups: int, seed: int = 0) -> tuple[PrimFunc, list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(each, dtype=np.float32) for each in (shape, shape[1:2], shape[1:2])]
    op = OPS["group_norm"]
    expected = op.run_reference([array.astype(np.float64) for array in arrays], op.attrs({"groups": groups}))[0]
    return simplify_loops(make_prim_func(op, arrays, {"groups": groups})), arrays, expected


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_a_group_of_channels_is_reduced_once(target: str) -> None:
    """Each of its channels reduced all of the group: with twenty channels a group it took eleven times as long."""
    func, _, _ = group_norm((1, 32, 15, 11), groups=4)
    work = count_work(func)

    made = count_work(apply_rules(func, Target.parse(target)).func)

    assert work is not None and made is not None
    assert made.flops < 2 * work.flops  # with what rows that are no whole vectors add


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("target", [Target.parse("x86-64-v3"), Target.parse("x86-64-v4")], ids=str)
def test_schedules_of_group_norms_mean_the_same(shape: tuple[int, ...], target: Target) -> None:
    for groups in {1, 2, shape[1] // 2, shape[1]}:
        func, arrays, expected = group_norm(shape, groups)

        found = run_prim_func(apply_rules(func, target).func, arrays)[0]

        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", some_of(((shape,) for shape in SHAPES), quick=[(shape,) for shape in SHAPES[1:]]), ids=str)
def test_group_norms_of_drawn_groups_match_numpy(shape: tuple[int, ...]) -> None:
    for groups in [each for each in range(1, shape[1] + 1) if shape[1] % each == 0]:
        func, arrays, expected = group_norm(shape, groups, seed=groups)

        one, two = (run(finish_loops(apply_rules(func, native_target()).func), arrays, threads=threads)[0] for threads in (1, 2))

        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5)
