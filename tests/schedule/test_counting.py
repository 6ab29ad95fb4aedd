"""Iterations that only two indices together tell apart."""

from __future__ import annotations

import pytest

from tc.errors import ScheduleError
from tc.ir.parser import parse_prim_func
from tc.schedule.step import Schedule

LANES = """@loops
def spread(A: f32[8, 8], B: f32[8, 8]):
    for lane in range(32):
        for k in range(2):
            with block('copy', vi=spatial(8, {row}), vj=spatial(8, {column})):
                B[vi, vj] = A[vi, vj]
"""


def bind_lanes(row: str, column: str) -> None:
    Schedule(parse_prim_func(LANES.format(row=row, column=column))).bind("lane", "thread.x")


DIGITS = [("lane // 4", "lane % 4 * 2 + k"), ("lane % 8", "lane // 8 * 2 + k"), ("lane // 8 * 2 + k", "lane % 8")]


@pytest.mark.parametrize("row, column", DIGITS)
def test_lanes_whose_digits_are_in_two_indices_are_told_apart(row: str, column: str) -> None:
    bind_lanes(row, column)


def test_an_element_of_two_lanes_that_sum_into_it_is_found() -> None:
    text = LANES.format(row="lane // 4", column="lane % 2 * 2 + k + lane // 2 % 2 * 4").replace("= A[vi, vj]", "= B[vi, vj] + A[vi, vj]")
    Schedule(parse_prim_func(text)).bind("lane", "thread.x")

    with pytest.raises(ScheduleError, match="bind"):
        Schedule(parse_prim_func(text.replace("+ lane // 2 % 2 * 4", "+ lane % 2 * 4"))).bind("lane", "thread.x")


def test_iterations_that_write_one_number_of_no_axes_are_not_apart() -> None:
    """Counting its places failed."""
    text = """@loops
def last(A: f32[8], B: f32[()]):
    for i in range(8):
        with block('last', v=spatial(8, i)):
            B[()] = A[v]
"""
    with pytest.raises(ScheduleError, match="writes B where another one writes it"):
        Schedule(parse_prim_func(text)).bind("i", "thread.x")
