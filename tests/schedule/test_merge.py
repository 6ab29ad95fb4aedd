"""Axes of a block, and dims of a buffer, as one: what is computed stays the same, and digits fall away where they make a number again."""

from __future__ import annotations

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.dtype import f32
from tc.ir.expr import Var, const, logical_and, minimum, select
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


def windows(height: int, width: int, taps: int) -> PrimFunc:
    """A sum over windows of a padded image, and its double."""
    a = placeholder((2, height, width), f32, "a")
    padded = compute(
        (2, height + 3, width + taps - 1),
        lambda n, i, j: select(logical_and(i < height, j < width), a[n, minimum(i, height - 1), minimum(j, width - 1)], const(0.0, f32)),
        "padded",
    )
    sums = reduce("sum", (2, height, width), (taps, taps), lambda n, i, j, r, s: padded[n, i + r, j + s], "sums")
    return create_prim_func("windows", [a], [compute((2, height, width), lambda n, i, j: sums[n, i, j] * 2.0, "twice")])


@pytest.mark.parametrize("sizes", [(3, 4, 2), (1, 5, 3), (4, 1, 1)])
@pytest.mark.parametrize("inside", [False, True])
def test_an_axis_runs_on_from_row_to_row(sizes: tuple[int, int, int], inside: bool) -> None:
    (height, width, taps), func = sizes, windows(*sizes)
    pitch = width + taps - 1
    schedule = Schedule(func)
    _merge(schedule)
    if inside:
        schedule.compute_at("sums", schedule.loops_of("twice")[0])

    schedule.run_on("sums", (1, 2), pitch, height * pitch)

    check(func, schedule)
    sums = next(info for info in block_infos(schedule.func) if info.name == "sums")
    assert str(sums.writes[0].buffer.shape[1]) == str(height * pitch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.run_on("sums", (1, 2), 5, 24), r"reads what does not lie at"),
        (lambda s: (_merge(s), s.run_on("sums", (1, 2), 4, 24)), r"reads what does not lie at"),
        (lambda s: (_merge(s), s.run_on("sums", (1, 2), 5, 12)), r"rows of 4 do not fit, 3 of them 5 apart in 12"),
        (lambda s: (_merge(s), s.run_on("sums", (1, 2), 5, 99)), r"would read padded"),
        (lambda s: (_merge(s), s.run_on("sums", (2, 1), 5, 15)), r"is not directly inside loop"),
        (lambda s: (_merge(s), s.run_on("sums", (0, 1, 2), 5, 15)), r"are not two axes"),
        (lambda s: (_merge(s), s.run_on("sums", (1, 3), 5, 15)), r"is not spatial"),
        (lambda s: s.run_on("twice", (1, 2), 5, 15), r"does not write a scratch buffer at these axes, alone"),
        (lambda s: (_merge(s), s.split(s.loops_of("sums")[2], 2), s.run_on("sums", (1, 2), 5, 15)), r"driven by a serial loop of its own"),
    ],
)
def test_an_axis_that_cannot_run_on_is_refused_in_words(change, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        change(Schedule(windows(3, 4, 2)))


def _merge(schedule: Schedule) -> None:
    schedule.merge_dims("padded", (1, 2))
    schedule.transform_layout("padded", "p, n -> n, p")


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
