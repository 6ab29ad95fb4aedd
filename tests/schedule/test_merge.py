"""Axes of a block, and dims of a buffer, as one: what is computed stays the same, and digits fall away where they make a number again."""

from __future__ import annotations

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.dtype import f32
from tc.ir.expr import Var
from tc.ir.loop import PrimFunc
from tc.ir.verify import verify
from tc.schedule.analysis import block_infos
from tc.schedule.step import Schedule, Trace
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.schedule.programs import matmul


def summed(n: object = 3) -> PrimFunc:
    """b[i, j, k] = sum of a[i, j, k, r]; c[k, i, j] = b[i, j, k] * 2."""
    a = placeholder((n, 4, 5, 6), f32, "a")
    b = reduce("sum", (n, 4, 5), (6,), lambda i, j, k, r: a[i, j, k, r], "b")
    c = compute((5, n, 4), lambda k, i, j: b[i, j, k] * 2.0, "c")
    return create_prim_func("summed", [a], [c], (n,) if isinstance(n, Var) else ())


def check(func: PrimFunc, schedule: Schedule, *dims: int) -> None:
    verify(schedule.func)
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-4, 5, (*dims, *[int(str(d)) for d in buffer.shape[len(dims) :]])).astype(np.float32) for buffer in func.inputs]
    for got, want in zip(run_prim_func(schedule.func, arrays, dims), run_prim_func(func, arrays, dims), strict=True):
        np.testing.assert_array_equal(got, want)
    assert Trace.from_json(schedule.trace.to_json()) == schedule.trace


def test_digits_of_one_axis_make_the_number_again_that_they_came_of() -> None:
    schedule = Schedule(summed())

    schedule.fuse_axes("b", (0, 1))
    schedule.merge_dims("b", (0, 1))
    schedule.fuse_axes("c", (1, 2))

    check(summed(), schedule)
    sums, scaled = block_infos(schedule.func)
    assert [str(axis.extent) for axis in sums.block.axes] == ["12", "5", "6"]
    assert [str(dim) for dim in sums.writes[0].buffer.shape] == ["12", "5"]
    assert sums.writes[0].indices[0] is sums.block.axes[0].var
    assert scaled.reads[0].indices[0] is scaled.block.axes[0].var


def test_a_first_axis_may_be_symbolic() -> None:
    func = summed(Var("n"))
    schedule = Schedule(func)

    schedule.fuse_axes("b", (0, 2, 1))
    schedule.merge_dims("b", (0, 2, 1))

    for n in (0, 1, 3):
        check(func, schedule, n)


def test_elements_of_tiles_over_several_axes_are_one_axis_behind_those_that_number_tiles() -> None:
    schedule = Schedule(summed(8))

    schedule.tile_axes("b", (0, 1), (4, 2))
    schedule.transform_layout("b", "i, j, k -> i // 4, j // 2, k, i % 4, j % 2")
    schedule.merge_dims("b", (3, 4))

    check(summed(8), schedule)
    sums, _ = block_infos(schedule.func)
    assert [str(axis.extent) for axis in sums.block.axes] == ["2", "2", "8", "5", "6"]
    first, second, inside, other, _ = (axis.var for axis in sums.block.axes)
    assert sums.writes[0].indices == (inside, first, second, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.tile_axes("mm", (0, 1), (3, 1)), r"tile_axes: axes of block mm are no multiples of \(3, 1\)"),
        (lambda s: s.tile_axes("mm", (0, 1), (2,)), r"no multiples of \(2,\)"),
        (lambda s: s.tile_axes("mm", (0, 2), (1, 1)), r"axis .* of block mm is not spatial"),
        (lambda s: s.fuse_axes("mm", (0,)), r"fuse_axes: block mm has no two or more axes \(0,\), it has 3"),
        (lambda s: s.fuse_axes("mm", (0, 3)), r"has no two or more axes"),
        (lambda s: s.fuse_axes("mm", (0, 2)), r"axis .* of block mm is not spatial"),
        (lambda s: (s.split("i", 2), s.fuse_axes("mm", (0, 1))), r"axis .* of block mm is not spatial, and driven by a serial loop"),
        (lambda s: s.merge_dims("A", (0, 1)), r"merge_dims: A is a parameter"),
    ],
)
def test_what_is_not_legal_is_refused_in_words(change, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        change(Schedule(matmul(4, 4, 4)))
