"""Tiles as single instructions: what matches, what does not, and what an instruction means."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tc.errors import ScheduleError
from tc.ir.dtype import f32
from tc.ir.hints import NO_HINTS
from tc.ir.intrinsic import INTRINSICS, Intrinsic, register_intrinsic
from tc.ir.loop import For, IntrinsicCall, PrimFunc
from tc.ir.node import walk
from tc.ir.parser import parse_prim_func
from tc.passes.loop.intrinsics import expand_intrinsics, select_intrinsics
from tc.schedule.step import Schedule
from tc.te import create_prim_func, placeholder, reduce
from tests.schedule.programs import assert_same, matmul


def tile(m: int, n: int, k: int) -> PrimFunc:
    """C[m, n] += A[m, k] * B[k, n], in one instruction."""
    a, b = placeholder((m, k), f32, "a"), placeholder((k, n), f32, "b")
    return create_prim_func("tile", [a, b], [reduce("sum", (m, n), (k,), lambda i, j, r: a[i, r] * b[r, j], "c")])


@pytest.fixture(autouse=True)
def _intrinsic() -> Iterator[None]:
    register_intrinsic(Intrinsic("mma_2x4x4", tile(2, 4, 4), apart=frozenset((0, 1, 2))))
    yield
    del INTRINSICS["mma_2x4x4"]


def tiled(m: int, n: int, k: int, sizes: tuple[int, int, int]) -> tuple[PrimFunc, Schedule, str]:
    func = matmul(m, n, k)
    s = Schedule(func)
    outer, inner = [], []
    for loop, size in zip(("i", "j", "ri"), sizes, strict=True):
        o, i = s.split(loop, size)
        outer.append(o)
        inner.append(i)
    s.reorder(*outer, *inner)
    s.decompose_reduction("mm", outer[2])
    return func, s, inner[0]


def test_a_tile_becomes_an_instruction() -> None:
    func, s, loop = tiled(4, 8, 12, (2, 4, 4))

    name = s.tensorize(loop, "mma_2x4x4")

    call = s.block(name).body
    assert isinstance(call, IntrinsicCall)
    assert [str(operand) for operand in call.operands] == [
        "A[vio * 2, vrio * 4]",
        "B[vrio * 4, vjo * 4]",
        "mm[vio * 2, vjo * 4]",
    ]
    assert_same(func, s)


def test_instructions_expand_to_their_loops() -> None:
    func, s, loop = tiled(4, 8, 12, (2, 4, 4))
    s.tensorize(loop, "mma_2x4x4")

    expanded = Schedule(expand_intrinsics(s.func))

    assert not any(isinstance(node, IntrinsicCall) for node in walk(expanded.func))
    assert_same(func, expanded)


def test_the_start_of_a_sum_stays_outside_the_instruction() -> None:
    func = matmul(4, 8, 4)
    s = Schedule(func)
    io, ii = s.split("i", 2)
    jo, ji = s.split("j", 4)
    s.reorder(io, jo, ii, ji)

    name = s.tensorize(ii, "mma_2x4x4")

    assert s.block(name).init is not None
    assert_same(func, s)


def test_bounds_between_tiles_stay_outside_the_instruction() -> None:
    func = matmul(6, 8, 4)
    s = Schedule(func)
    i_blocks, _, ii = s.split("i", (None, 2, 2))  # of three tiles of rows, two a block
    jo, ji = s.split("j", 4)
    s.reorder(i_blocks, jo, ii, ji)

    name = s.tensorize(ii, "mma_2x4x4")

    assert str(s.block(name).where) == "i_0 * 4 + i_1 * 2 < 6"
    assert_same(func, s)


def test_bounds_inside_tiles_are_in_the_way() -> None:
    s = Schedule(matmul(5, 8, 4))
    io, ii = s.split("i", 2)
    jo, ji = s.split("j", 4)
    s.reorder(io, jo, ii, ji)

    with pytest.raises(ScheduleError, match="the condition io \\* 2 \\+ ii < 5 of block mm differs inside the tile"):
        s.tensorize(ii, "mma_2x4x4")


@pytest.mark.parametrize("sizes", [(4, 2, 4), (2, 4, 2)])
def test_tiles_of_another_size_do_not_match(sizes: tuple[int, int, int]) -> None:
    _, s, loop = tiled(4, 8, 12, sizes)

    with pytest.raises(ScheduleError, match="does not match block mm: its loops are 2 x 4 x 4"):
        s.tensorize(loop, "mma_2x4x4")


def test_operands_that_move_differently_do_not_match() -> None:
    a, b = placeholder((4, 4), f32, "A"), placeholder((8, 4), f32, "B")
    c = reduce("sum", (4, 8), (4,), lambda i, j, r: a[i, r] * b[j, r], "mm")
    s = Schedule(create_prim_func("transposed", [a, b], [c]))
    io, ii = s.split("i", 2)
    jo, ji = s.split("j", 4)
    s.reorder(io, jo, ii, ji)

    with pytest.raises(ScheduleError, match="the way operands move with the loops differs"):
        s.tensorize(ii, "mma_2x4x4")


def test_names_of_instructions_are_unique() -> None:
    with pytest.raises(ScheduleError, match="intrinsic mma_2x4x4 is registered twice"):
        register_intrinsic(Intrinsic("mma_2x4x4", tile(2, 4, 4), apart=frozenset((0, 1, 2))))


def test_no_loops_are_those_of_an_instruction_that_does_nothing() -> None:
    _, s, loop = tiled(4, 8, 12, (2, 4, 4))

    with pytest.raises(ScheduleError, match="prefetch does not match"):
        s.tensorize(loop, "prefetch")


_HINTED = """@loops
def hinted(A: f32[4, 4], B: f32[4, 4], S: f32[1]):
    outputs(2)
    for i in unrolled(4, {first}=1):
        for j in vectorized(4):
            B[j, i] = A[i, j]
    for k in unrolled(4, {second}=1):
        S[0] = S[0] + A[0, k]
"""


def test_hints_that_ask_for_instructions_stay_on_the_loops_that_they_are_for() -> None:
    fitting = parse_prim_func(_HINTED.format(first="transpose", second="tree"))
    exchanged = parse_prim_func(_HINTED.format(first="tree", second="transpose"))

    assert select_intrinsics(fitting, ()) is fitting
    assert not any(isinstance(node, For) and node.hints != NO_HINTS for node in walk(select_intrinsics(exchanged, ())))
