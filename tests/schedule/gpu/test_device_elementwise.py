"""Elementwise programs on devices: vectors where memory is aligned, tiles where axes change places."""

from __future__ import annotations

import numpy as np
import pytest

from tc.errors import ScheduleError
from tc.ir.dtype import ALL_DTYPES, DType, f16, f32, i8, i64
from tc.ir.expr import Expr, Var, cast
from tc.ir.loop import Alloc, For, If, LoopKind, PrimFunc, walk_statements
from tc.passes.loop.compact_buffers import compact_buffers
from tc.passes.loop.lower_blocks import lower_blocks
from tc.schedule.step import Schedule
from tc.schedule.tree import statements
from tc.te import compute, create_prim_func, placeholder
from tests.schedule.gpu.launches import check_schedule, device_schedule, finished
from tests.schedule.programs import chain


def lanes_of(func: PrimFunc) -> list[str]:
    schedule = device_schedule(func)
    loops = [p.loop for p in statements(schedule.func.body) if isinstance(p.stmt, For)]
    return [str(loop.extent) for loop in loops if loop.kind is LoopKind.VECTORIZED]


def moved(shape: tuple[Expr | int, ...], dtype: DType, result: DType, shift: int = 0) -> PrimFunc:
    """A cast of a part of X that begins `shift` elements behind the start of each row."""
    source = (*shape[:-1], shape[-1] + shift)
    x = placeholder(source, dtype, "X")
    y = compute(shape, lambda *at: cast(x[(*at[:-1], at[-1] + shift)], result), "y")
    return create_prim_func("moved", [x], [y], tuple(dim for dim in shape if isinstance(dim, Var)))


@pytest.mark.parametrize(
    ("func", "lanes"),
    [
        (moved((6, 64), f32, f32), ["4"]),
        (moved((6, 64), f16, f16), ["8"]),
        (moved((6, 64), i8, i8), ["16"]),
        (moved((6, 64), i8, f32), ["4"]),
        (moved((6, 64), f32, i64), ["2"]),
        (moved((Var("n"), 64), f32, f32), ["4"]),
        (moved((6, 64), f32, f32, shift=4), ["4"]),
        (moved((6, 64), f32, f32, shift=2), ["2"]),
        (moved((6, 64), f32, f32, shift=1), []),
        (moved((8, 3), f32, f32), ["4"]),
        (moved((7, 3), f32, f32), ["4"]),
        (moved((1, 3), f32, f32), []),
        (moved((Var("n"),), f32, f32), ["4"]),
        (moved((5, Var("n")), f16, f16), ["8"]),
        (moved((5, Var("n")), f32, f32, shift=4), []),
    ],
)
def test_vectors_are_no_wider_than_what_is_known_to_be_aligned(func: PrimFunc, lanes: list[str]) -> None:
    assert lanes_of(func) == lanes


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 255, 2049])
def test_elements_behind_the_last_whole_vector_are_moved_one_by_one(size: int) -> None:
    func = moved((1, Var("n")), f16, f16)

    scheduled = check_schedule(func, [np.arange(size, dtype=np.float16).reshape(1, size)], (size,))

    loops = [stmt for stmt in walk_statements(finished(scheduled.func).body) if isinstance(stmt, For) and not stmt.thread]
    (vector,) = (loop for loop in loops if loop.kind is LoopKind.VECTORIZED)
    assert not any(isinstance(stmt, If) for stmt in walk_statements(vector))  # it is one access, under one condition


def test_what_all_lanes_of_a_vector_share_does_not_make_it_narrower() -> None:
    x, row = placeholder((6, 64), f32, "X"), placeholder((6,), i64, "R")
    func = create_prim_func("shifted", [x, row], [compute((6, 64), lambda i, j: x[i, j] + cast(row[i], f32), "y")])

    assert lanes_of(func) == ["4"]
    check_schedule(func, [np.ones((6, 64), np.float32), np.arange(6)])


def turned(m: int | Var, n: int | Var, dtype: DType = f32) -> PrimFunc:
    x = placeholder((2, m, n), dtype, "X")
    y = compute((n, 2, m), lambda j, b, i: x[b, i, j], "y")
    return create_prim_func("turned", [x], [y], tuple(dim for dim in (m, n) if isinstance(dim, Var)))


@pytest.mark.parametrize("sizes", [(32, 32), (33, 31), (100, 17), (3, 200), (1, 5)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_a_transposition_reads_rows_and_writes_rows(sizes: tuple[int, int], symbolic: bool) -> None:
    dims = (Var("m"), Var("n")) if symbolic else sizes
    check_schedule(turned(*dims), [np.arange(2 * sizes[0] * sizes[1], dtype=np.float32).reshape(2, *sizes)], sizes if symbolic else ())


@pytest.mark.parametrize(("dtype", "width"), [(f32, 33), (f16, 34), (i8, 36), (i64, 33)])
def test_rows_of_a_turned_tile_begin_in_different_banks(dtype: DType, width: int) -> None:
    schedule = device_schedule(turned(64, 64, dtype))
    final = compact_buffers(lower_blocks(schedule.func))

    (tile,) = (p.stmt.buffer for p in statements(final.body) if isinstance(p.stmt, Alloc))

    assert (schedule.rule, tile.scope, [str(dim) for dim in tile.shape][-2:]) == ("elementwise", "shared", ["32", str(width)])
    assert not final.attrs


def test_random_shapes_and_types_keep_their_meaning() -> None:
    rng = np.random.default_rng(3)
    plain = [dtype for dtype in ALL_DTYPES if not dtype.is_storage]
    for _ in range(40):
        shape = tuple(int(v) for v in rng.choice([0, 1, 2, 3, 5, 8, 16, 33, 64], int(rng.integers(1, 4))))
        dtype, result = (plain[int(v)] for v in rng.integers(len(plain), size=2))
        shift = int(rng.integers(0, 5))
        data = rng.integers(0, 2, (*shape[:-1], shape[-1] + shift)).astype(dtype.numpy)
        check_schedule(moved(shape, dtype, result, shift), [data])


def test_only_rows_of_scratch_memory_are_padded() -> None:
    with pytest.raises(ScheduleError, match="X is a parameter of chain"):
        Schedule(chain()).pad_rows("X", 1)
    with pytest.raises(ScheduleError, match="cannot have -1 elements more"):
        Schedule(chain()).pad_rows("a", -1)
