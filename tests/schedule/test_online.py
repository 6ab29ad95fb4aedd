"""`merge_online`: one pass over what exponentials are taken of, relative to the greatest value so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.interp import run_prim_func
from tc.ir.dtype import f32
from tc.ir.expr import Var, call
from tc.ir.loop import PrimFunc
from tc.ir.printer import print_ir
from tc.ir.verify import verify
from tc.schedule.step import Schedule
from tc.te import compute, create_prim_func, placeholder, reduce

LOWEST = -np.inf


def softmax_sums(count: int | Var, *, other_reader: bool = False) -> PrimFunc:
    """sum(exp(x - max(x)) * v) / sum(exp(x - max(x)))."""
    x, v = placeholder((count,), f32, "X"), placeholder((count, 3), f32, "V")
    top = reduce("max_number", (), (count,), lambda j: x[(j,)], "top")
    powers = compute((count,), lambda j: call("exp", x[(j,)] - top[()]), "powers")
    total = reduce("sum", (), (count,), lambda j: powers[(j,)], "total")
    weighted = reduce("sum", (3,), (count,), lambda e, j: powers[(j,)] * v[(j, e)], "weighted")
    out = compute((3,), lambda e: weighted[(e,)] / total[()] + (top[()] if other_reader else 0.0), "out")
    return create_prim_func("softmax_sums", [x, v], [out], (count,) if isinstance(count, Var) else ())


def cut(func: PrimFunc, *, decomposed: bool = True) -> tuple[Schedule, list[str]]:
    """Loops over tiles of four of every stage, side by side."""
    s = Schedule(func)
    tiles = {}
    for name in ("top", "powers", "total", "weighted"):
        *rest, j = s.loops_of(name)
        tiles[name], inside = s.split(j, 4)
        s.reorder(tiles[name], *rest, inside)
    if decomposed:
        for name in ("top", "total", "weighted"):
            s.decompose_reduction(name, tiles[name])
    return s, list(tiles.values())


ROWS: dict[str, Sequence[float]] = {
    "any": np.random.default_rng(0).standard_normal(10) * 30,
    "falling": np.arange(10, 0, -1.0),
    "rising by more than exponentials span": np.arange(10) * 200.0,
    "begins with nothing": [LOWEST] * 5 + [1, 2, 3, LOWEST, 4],
    "nothing": [LOWEST] * 10,
    "infinite": [1] * 7 + [np.inf, 1, 1],
    "no number": [1] * 3 + [np.nan] + [2] * 6,
    "all alike": [-3.4e38] * 10,
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_sums_of_exponentials_in_one_pass(row: Sequence[float]) -> None:
    func = softmax_sums(10)
    s, loops = cut(func)
    arrays = [np.asarray(row, np.float32), np.random.default_rng(1).standard_normal((10, 3)).astype(np.float32)]

    s.merge_online("top", *loops)

    verify(s.func)
    (want,), (got,) = run_prim_func(func, arrays), run_prim_func(s.func, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_symbolic_number_of_terms(count: int) -> None:
    func = softmax_sums(Var("n"))
    s, loops = cut(func)
    arrays = [np.linspace(-1, 4, count).astype(np.float32), np.ones((count, 3), np.float32)]

    s.merge_online("top", *loops)

    (want,), (got,) = run_prim_func(func, arrays, (count,)), run_prim_func(s.func, arrays, (count,))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_the_loop_is_one() -> None:
    s, loops = cut(softmax_sums(10))

    s.merge_online("top", *loops)

    text = print_ir(s.func)
    assert {s.loops_of(name)[0] for name in ("top", "top_change", "powers", "total", "weighted_rescaled", "weighted")} == {loops[0]}
    assert [block for block in ("top_change", "weighted_rescaled", "total_rescaled_last") if f"'{block}'" not in text] == []
    order = [text.index(f"block('{name}'") for name in ("top", "top_change", "top_before", "powers", "weighted_rescaled", "weighted")]
    assert order == sorted(order)


def test_what_reads_the_maximum_besides_is_refused() -> None:
    s, loops = cut(softmax_sums(10, other_reader=True))
    with pytest.raises(ScheduleError, match="block out reads top"):
        s.merge_online("top", *loops)


def test_sums_that_start_inside_are_refused() -> None:
    s, loops = cut(softmax_sums(10), decomposed=False)
    with pytest.raises(ScheduleError, match="started before the loops"):
        s.merge_online("top", *loops)


def test_loops_of_other_extents_are_refused() -> None:
    s, loops = cut(softmax_sums(10))
    tiles, _ = s.split(loops[1], 2)
    with pytest.raises(ScheduleError, match="differ in extent"):
        s.merge_online("top", loops[0], tiles, *loops[2:])


def test_a_reader_of_later_iterations_is_refused() -> None:
    n = 8
    x = placeholder((n,), f32, "X")
    turned = compute((n,), lambda j: x[(j,)] * 2.0, "turned")
    top = reduce("max_number", (), (n,), lambda j: turned[(n - 1 - j,)], "top")
    powers = compute((n,), lambda j: call("exp", turned[(n - 1 - j,)] - top[()]), "powers")
    total = reduce("sum", (), (n,), lambda j: powers[(j,)], "total")
    s = Schedule(create_prim_func("backward", [x], [total]))
    loops = [s.split(s.loops_of(name)[-1], 4)[0] for name in ("turned", "top", "powers", "total")]
    s.decompose_reduction("top", loops[1])
    s.decompose_reduction("total", loops[3])
    with pytest.raises(ScheduleError, match="before later iterations have made it"):
        s.merge_online("top", *loops)


# -- in parts


def in_parts(func: PrimFunc, length: int = 4) -> Schedule:
    """Maxima and sums of parts, made by themselves."""
    s = Schedule(func)
    for name in ("top", "total", "weighted"):
        part, _ = s.split(s.loops_of(name)[-1], length)
        s.rfactor(name, part)
    s.rebase_parts("top", length)
    return s


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_sums_of_exponentials_in_parts(row: Sequence[float]) -> None:
    func = softmax_sums(10)
    arrays = [np.asarray(row, np.float32), np.random.default_rng(1).standard_normal((10, 3)).astype(np.float32)]

    s = in_parts(func)

    verify(s.func)
    (want,), (got,) = run_prim_func(func, arrays), run_prim_func(s.func, arrays)
    np.testing.assert_allclose(got, want, rtol=2e-6)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_symbolic_number_of_parts(count: int) -> None:
    func = softmax_sums(Var("n"))
    arrays = [np.linspace(-1, 4, count).astype(np.float32), np.ones((count, 3), np.float32)]

    s = in_parts(func)

    (want,), (got,) = run_prim_func(func, arrays, (count,)), run_prim_func(s.func, arrays, (count,))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_parts_of_another_length_are_refused() -> None:
    s = Schedule(softmax_sums(10))
    for name in ("top", "total", "weighted"):
        part, _ = s.split(s.loops_of(name)[-1], 4)
        s.rfactor(name, part)
    with pytest.raises(ScheduleError, match="parts of 5"):
        s.rebase_parts("top", 5)


def test_loops_side_by_side_run_as_one() -> None:
    s = in_parts(softmax_sums(10))
    part = s.loops_of("total_rf")[0]
    *rest, other, inside = s.loops_of("weighted_rf")
    s.reorder(other, *rest, inside)

    s.merge_loops(part, other)

    assert s.loops_of("total_rf")[0] == s.loops_of("weighted_rf")[0]
    arrays = [np.arange(10, dtype=np.float32), np.ones((10, 3), np.float32)]
    np.testing.assert_allclose(run_prim_func(s.func, arrays)[0], np.ones(3), rtol=1e-6)
