"""Wavefronts of the accesses of launches, against running every iteration of the loops around."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tc.cost.shared_accesses import shared_accesses
from tc.ir.arith import evaluate
from tc.ir.bit_layout import BitLayout, row_major
from tc.ir.bits import bit_xor
from tc.ir.dtype import DType, f16, f32, f64, i8
from tc.ir.expr import Buffer, Expr, Load, Lt, Var, const
from tc.ir.intrinsic import sizes
from tc.ir.loop import Alloc, For, If, LoopKind, PrimFunc, Stmt, Store
from tc.ir.shared_memory import least_wavefronts_of, swizzle_mode, wavefronts_of
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target
from tc.te import compute, create_prim_func, placeholder

X, Y, LANE, K = Var("x"), Var("y"), Var("lane"), Var("k")


def thread(var: Var, extent: int, body: Stmt) -> For:
    return For(var, const(extent), body, LoopKind.BOUND, f"thread.{'y' if var is Y else 'x'}")


def launch(body: Stmt, *shared: Buffer) -> PrimFunc:
    """One block that runs `body` with these buffers."""
    inside = body
    for buffer in shared:
        inside = Alloc(buffer, inside)
    return PrimFunc("kernel", (Buffer("out", sizes(1), f32),), For(Var("b"), const(1), inside, LoopKind.BOUND, "block.x"))


def zero(buffer: Buffer, *indices: Expr) -> Store:
    return Store(buffer, indices, const(0, buffer.dtype))


def tile(rows: int, columns: int, dtype: DType = f32) -> Buffer:
    return Buffer("tile", sizes(rows, columns), dtype, "shared")


def wavefronts_in(func: PrimFunc) -> list[int | None]:
    return [access.wavefronts for access in shared_accesses(func)]


def test_a_column_is_read_from_one_bank_and_padded_from_all() -> None:
    for columns, expected in ((32, 32), (33, 1), (34, 2), (36, 4)):
        buffer = tile(32, columns)
        row, column = thread(X, 32, zero(buffer, const(0), X)), thread(X, 32, zero(buffer, X, K))

        assert wavefronts_in(launch(row, buffer)) == [1]
        assert wavefronts_in(launch(For(K, const(32), column), buffer)) == [expected]


def test_what_all_lanes_read_is_read_once() -> None:
    buffer = tile(32, 32)

    (access,) = shared_accesses(launch(thread(X, 256, zero(buffer, K, X // 32)), buffer))

    assert (access.wavefronts, access.least, access.conflicts) == (1, 1, 0)


def test_vectors_are_served_by_parts_of_a_warp() -> None:
    """8 bytes: by halves; 16: by quarters; more in several instructions."""
    for lanes, width_bytes, expected in ((2, 8, 2), (4, 16, 4), (8, 16, 4 * 2)):
        buffer = tile(8, 1024)
        vector = For(LANE, const(lanes), zero(buffer, Y, X * lanes + LANE), LoopKind.VECTORIZED)

        (access,) = shared_accesses(launch(thread(Y, 8, thread(X, 32, vector)), buffer))

        assert (access.width_bytes, access.wavefronts) == (width_bytes, expected)
        assert access.conflicts == (4 if lanes == 8 else 0)


def test_threads_beyond_a_region_and_behind_a_condition_take_no_part() -> None:
    buffer = tile(32, 32)
    region, other = thread(X, 4, zero(buffer, X, const(0))), thread(X, 64, zero(buffer, const(0), X % 32))
    guarded = thread(X, 64, If(Lt(X, const(2)), zero(buffer, X % 32, const(0)), zero(buffer, X % 32, const(1))))

    assert wavefronts_in(launch(thread(X, 4, region.body), buffer)) == [4]
    assert wavefronts_in(launch(other, buffer)) == [1]
    assert wavefronts_in(launch(guarded, buffer)) == [2, 32]


@pytest.mark.parametrize("mode_bytes", [32, 64, 128])
def test_swizzled_rows_are_copied_and_read_without_conflicts(mode_bytes: int) -> None:
    columns = mode_bytes // 2
    buffer = Buffer("tile", sizes(64 * columns), f16, "shared")
    plain, swizzled = row_major("offset", row=64, column=columns), swizzle_mode(mode_bytes, 64, columns, 2)

    def places(laid_out: BitLayout, row: Expr, column: Expr) -> PrimFunc:
        """Eight neighbours of each row and column."""
        (offset,) = laid_out.exprs(row=row, column=column)
        vector = For(LANE, const(8), zero(buffer, offset + LANE), LoopKind.VECTORIZED)
        return launch(For(K, const(columns // 8), thread(X, 32, vector)), buffer)

    by_rows, by_columns = (X * 8 // columns, X * 8 % columns), (X, K * 8)

    assert wavefronts_in(places(swizzled, *by_rows)) == wavefronts_in(places(swizzled, *by_columns)) == [4]
    assert wavefronts_in(places(plain, *by_columns)) == [4 * mode_bytes // 16]


def test_what_data_decides_is_not_known() -> None:
    buffer, index = tile(32, 32), Buffer("index", sizes(32), f32)
    where = Load(Buffer("where", sizes(32), X.dtype), (X,))

    (access,) = shared_accesses(launch(thread(X, 32, zero(buffer, where, X)), buffer))

    assert (access.wavefronts, access.least, access.conflicts) == (None, None, None)
    assert shared_accesses(launch(thread(X, 32, zero(index, X)))) == ()


# -- against all iterations


def random_index(rng: random.Random, variables: list[Var], limit: int) -> Expr:
    """Any index from 0 to `limit` - 1."""
    total: Expr = const(rng.randrange(4))
    for var in variables:
        part = rng.choice([var, var, var // rng.choice([2, 4, 8]), var % rng.choice([4, 8])])
        total = total + part * rng.choice([1, 1, 2, 3, 4, 8, 32, 33])
    if rng.random() < 0.4:
        total = bit_xor(total, variables[0] * rng.choice([1, 4]))
    return total % limit if rng.random() < 0.5 else total


@pytest.mark.parametrize("seed", range(60))
def test_wavefronts_are_those_of_the_worst_iteration(seed: int) -> None:
    rng = random.Random(seed)
    x, y, k = rng.choice([(32, 1, 4), (16, 4, 3), (8, 8, 2), (64, 1, 5), (24, 2, 3)])
    dtype = rng.choice([f32, f16, i8])
    buffer = Buffer("tile", sizes(64, 1 << 12), dtype, "shared")
    first, second = random_index(rng, rng.sample([X, Y, K], 2), 64), random_index(rng, [X, Y, K], 512)
    offset = first * 4096 + second
    (access,) = shared_accesses(launch(For(K, const(k), thread(Y, y, thread(X, x, zero(buffer, first, second)))), buffer))

    worst = (0, 0)
    for iteration, warp in product(range(k), range(0, x * y, 32)):
        lanes = range(warp, min(warp + 32, x * y))
        addresses = [evaluate(offset, {X: lane % x, Y: lane // x, K: iteration}) * dtype.size_bytes for lane in lanes]
        found = wavefronts_of(addresses, dtype.size_bytes), least_wavefronts_of(addresses, dtype.size_bytes)
        worst = max(worst, found, key=lambda each: (each[0] - each[1], each[0]))

    assert access.wavefronts is not None and access.least is not None
    assert access.wavefronts - access.least >= worst[0] - worst[1]
    if dtype is f32:  # of narrower ones, places in a word are tried that no iteration may have
        assert access.wavefronts - access.least == worst[0] - worst[1]


@pytest.mark.parametrize("dtype", [f64, f32, f16, i8], ids=str)
def test_tiles_that_are_turned_are_read_and_written_without_conflicts(dtype: DType) -> None:
    x = placeholder((96, 160), dtype, "x")
    turned = create_prim_func("turned", [x], [compute((160, 96), lambda i, j: x[j, i], "y")])

    scheduled = apply_rules(turned, Target.parse("cuda:sm_80"))
    accesses = shared_accesses(finish_loops(scheduled.func))

    assert [type(each.access) for each in accesses] == [Store, Load]
    assert [each.conflicts for each in accesses] == [0, 0]
