"""What schedules of tiles are made of: which loops a cut gives, what is peeled, and versions for fewer rows."""

from __future__ import annotations

import pytest

from tc.ir.dtype import f32, i64
from tc.ir.expr import Const, Var
from tc.ir.loop import PrimFunc
from tc.ir.types import DimFact
from tc.schedule.rules.tile import (
    cut_and_peel,
    cut_overlapped,
    cut_tiles,
    is_moved,
    is_peeled,
    loops_of_sum,
    lower_versions,
    up_to_peeled,
)
from tc.schedule.step import Schedule
from tc.te import compute, create_prim_func, placeholder
from tests.schedule.programs import assert_same, chain, matmul


def scheduled(m: int | Var) -> Schedule:
    return Schedule(matmul(m, 8, 4))


@pytest.mark.parametrize(("rows", "is_whole"), [(12, True), (13, False), (Var("m", i64), False)], ids=["12", "13", "m"])
def test_what_may_be_cut_short_is_peeled(rows: int | Var, is_whole: bool) -> None:
    s = scheduled(rows)

    made = cut_and_peel(s, "i", 4)

    assert made.is_whole is is_whole
    assert is_peeled(s, made.around) is not is_whole
    assert not is_peeled(s, made.inside)


@pytest.mark.parametrize(("rows", "is_whole"), [(13, True), (3, False)])
def test_tiles_overlap_where_there_are_enough_rows(rows: int, is_whole: bool) -> None:
    func = chain(rows)
    s = Schedule(func)

    made = cut_overlapped(s, s.loops_of("b")[0], 4)

    assert made.is_whole is is_whole
    assert_same(func, s)


@pytest.mark.parametrize(("rows", "size", "peeled"), [(24, 3, False), (24, 4, True), (23, 3, True)])
def test_groups_of_tiles_are_peeled_where_a_group_or_a_tile_is_short(rows: int, size: int, peeled: bool) -> None:
    s = scheduled(rows)
    tiles = cut_and_peel(s, "i", 4)

    groups = cut_tiles(s, tiles.around, size)

    assert [is_peeled(s, loop) for loop in (groups.around, groups.inside)] == [peeled, peeled]
    assert up_to_peeled(s, ["j", groups.around, groups.inside]) == (["j"] if peeled else ["j", groups.around, groups.inside])
    assert_same(matmul(rows, 8, 4), s)


def test_loops_of_a_sum_by_what_they_do() -> None:
    s = scheduled(12)
    made = cut_and_peel(s, "i", 4)
    _, one = s.split("j", 1)

    loops = loops_of_sum(s, "mm", made.around)

    assert (loops.depth, loops.tiled, loops.single) == (["ri"], [made.inside, "jo"], [one])


def test_each_version_is_for_fewer_rows_than_the_one_before() -> None:
    s = scheduled(Var("m", i64))

    versions = lower_versions(s, ["mm"], lambda names: s.loops_of(names["mm"])[0], [8, 3])

    assert [list(names) for names in versions] == [["mm"], ["mm"]]
    assert len({"mm", *(names["mm"] for names in versions)}) == 3
    assert all(isinstance(s.extent_of(s.loops_of(names["mm"])[1]), Const) for names in versions)


def test_there_are_no_versions_for_a_known_number_of_rows() -> None:
    s = scheduled(12)

    assert lower_versions(s, ["mm"], lambda names: s.loops_of(names["mm"])[0], [8, 3]) == []


def rolled(m: int | Var, is_whole: bool) -> PrimFunc:
    """Rows of a copy, or the sum of two of them that may lie anywhere: of each all of it is made."""
    x = placeholder((m, 8), f32, "x")
    b = compute((m, 8), lambda i, j: x[i, j] * 2.0, "b")
    c = compute((m, 8), lambda i, j: b[i * i % m, j] + b[i, j] if is_whole else b[i, j] + 1.0, "c")
    return create_prim_func("f", [x], [c], [m] if isinstance(m, Var) else [], (DimFact(m, 1),) if isinstance(m, Var) else ())


@pytest.mark.parametrize("is_whole", [False, True])
def test_nothing_is_made_in_each_iteration_that_grows_with_the_dims(is_whole: bool) -> None:
    func = rolled(Var("m", i64), is_whole)
    s = Schedule(func)

    assert is_moved(s, "b", s.loops_of("c")[0]) is not is_whole
    assert (len(s.trace.steps) == 0) is is_whole
    assert_same(func, s, (5,))
