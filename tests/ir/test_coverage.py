"""A block's loops visit every point of its axes; else schedules, which may run the whole axes, would compute something else."""

from __future__ import annotations

import pytest

from tc.errors import VerifyError
from tc.ir.coverage import check_covered
from tc.ir.dtype import f32
from tc.ir.parser import parse_prim_func
from tc.ir.verify import verify
from tc.schedule.rules import apply_rules
from tc.schedule.step import Schedule
from tc.target import Target
from tc.te import compute, create_prim_func, placeholder, reduce


def program(loops: str, axes: str) -> str:
    """Sums of a matrix's rows, over the given two loops and axes."""
    first, second = loops.split("; ")
    return f"""@loops
def sums(A: f32[n, 512], L: i64[n], S: f32[n], n: i64):
    for i in range({first}):
        for j in range({second}):
            with block('s', {axes}):
                annotate(monoid='sum')
                with init():
                    S[vi] = 0.0
                S[vi] = S[vi] + A[vi, vj]
"""


UNCOVERED = [
    ("n; L[i]", "vi=spatial(n, i), vj=reduction(512, j)", r"loop j makes L\[i\] iterations, but axis vj of block s has the extent 512"),
    ("n; 511", "vi=spatial(n, i), vj=reduction(512, j)", r"loop j makes 511 iterations, but axis vj"),
    ("n - 1; 512", "vi=spatial(n, i), vj=reduction(512, j)", r"loop i makes n - 1 iterations, but axis vi"),
    ("n; i + 1", "vi=spatial(n, i), vj=reduction(n, j)", r"loop j makes i \+ 1 iterations, but axis vj"),
    ("n; 512", "vi=spatial(n, i), vj=reduction(n, i)", r"loop i is both axis vi and axis vj of block s"),
    ("4; 8", "vi=spatial(4, i), vj=reduction(16, j * 2)", r"make 32 iterations, but its axes have 64 points"),
]


@pytest.mark.parametrize(("loops", "axes", "words"), UNCOVERED)
def test_axes_longer_than_their_loops_are_refused(loops: str, axes: str, words: str) -> None:
    func = parse_prim_func(program(loops, axes))

    with pytest.raises(VerifyError, match=words):
        verify(func)
    with pytest.raises(VerifyError, match=words):
        Schedule(func)
    with pytest.raises(VerifyError, match=words):
        apply_rules(func, Target.parse("x86-64-v3:cores=1"))


COVERED = [
    ("n; 512", "vi=spatial(n, i), vj=reduction(512, j)"),
    ("n; L[i]", "vi=spatial(n, i), vj=reduction(L[i], j)"),
    ("n; i + 1", "vi=spatial(n, i), vj=reduction(i + 1, j)"),
    ("n; 512", "vi=spatial(n, i), vj=reduction(512, 511 - j)"),
]


@pytest.mark.parametrize(("loops", "axes"), COVERED)
def test_axes_as_long_as_their_loops_are_well_formed(loops: str, axes: str) -> None:
    verify(parse_prim_func(program(loops, axes)))


def test_of_no_points_none_are_left_out() -> None:
    x = placeholder((0, 2), f32, "X")
    doubled = compute((0, 2), lambda i, j: x[i, j] * 2.0, "doubled")
    total = reduce("sum", (0,), (2,), lambda i, k: doubled[i, k], "total")

    check_covered(create_prim_func("empty", [x], [compute((0,), lambda i: total[i] + 1.0, "one_more")]))


def test_what_nobody_needs_may_stand_in_a_loop_of_no_iterations() -> None:
    """Fused with the loops around it, one of no iterations was taken for a loop that leaves points out."""
    x = placeholder((4, 3), f32, "X")
    total = reduce("sum", (4,), (3,), lambda i, k: x[i, k], "total")
    func = create_prim_func("unused", [x], [compute((4, 0), lambda i, j: total[i] + 1.0, "y")])
    schedule = Schedule(func)

    schedule.compute_at("total", list(schedule.loops_of("y"))[1])
    first, second, *_ = schedule.loops_of("total")
    schedule.fuse(first, second)

    verify(schedule.func)
