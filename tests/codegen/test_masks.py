"""Register tiles under masks: lanes that nobody reads may be written, all others keep what they hold."""

from __future__ import annotations

import numpy as np
import pytest

from tc import te
from tc.codegen.kernels import finish_loops
from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.masks import has_spare_lanes
from tc.interp.loops import run_prim_func
from tc.ir.arith import Facts
from tc.ir.dtype import DType, bf16, bool_, f8e4m3fn, f8e5m2fnuz, f16, f32, i16, i32, i64, u8
from tc.ir.expr import cast
from tc.ir.loop import Alloc, PrimFunc
from tc.ir.node import walk
from tc.ir.parser import parse_module
from tc.schedule.step import Schedule
from tests.ops.kernels import run

TILE = """
@loops
def f(a: f32[3, 20], b: f32[3, 20], y: f32[20]):
    outputs(1)
    for o in range(2):
        with alloc(f32[16], scope='register') as tile:
            for l in vectorized(16):
                if FIRST:
                    tile[l] = a[0, o * 16 + l]
            for k in range(3):
                for m in vectorized(16):
                    if SUM:
                        tile[m] = tile[m] + a[k, 0] * b[k, o * 16 + m]
            for n in vectorized(16):
                if LAST:
                    y[o * 16 + n] = tile[n]
"""
WHOLE = {"FIRST": "o * 16 + l < 20", "SUM": "o * 16 + m < 20", "LAST": "o * 16 + n < 20"}


def tile_func(**guards: str) -> PrimFunc:
    text = TILE
    for place, guard in {**WHOLE, **guards}.items():
        text = text.replace(place, guard)
    (func,) = parse_module(text).prim_funcs
    return func


def spare_lanes(func: PrimFunc) -> bool:
    (alloc,) = (node for node in walk(func.body) if isinstance(node, Alloc))
    return has_spare_lanes(alloc, Facts())


def assert_runs(func: PrimFunc) -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 3, 20)).astype(np.float32)
    a[1, 0], b[2, 17], b[0, 3] = np.inf, np.nan, -np.inf

    (result,) = run(func, [a, b])

    np.testing.assert_allclose(result, run_prim_func(func, [a, b])[0], rtol=1e-6)


def test_lanes_past_the_end_are_not_blended() -> None:
    func = tile_func()

    assert spare_lanes(func)
    assert "select" not in emit_prim_func(func).ir_text
    assert_runs(func)


@pytest.mark.parametrize(
    "guards",
    [
        {"SUM": "o * 16 + m < 9"},
        {"SUM": "o * 16 + m < 20 and m < 5"},
        {"SUM": "m % 2 < 1 and o * 16 + m < 20"},
        {"SUM": "b[k, m] < 0.5 and o * 16 + m < 20"},
        {"SUM": "o * 16 + m < 20 - k"},
        {"SUM": "o * 16 + m + k < 20"},
        {"SUM": "9 < o * 16 + m and o * 16 + m < 20"},
    ],
)
def test_lanes_that_are_read_later_keep_what_they_hold(guards: dict[str, str]) -> None:
    func = tile_func(**guards)

    assert not spare_lanes(func)
    assert "select" in emit_prim_func(func).ir_text
    assert_runs(func)


PARTS = """
@loops
def f(a: f32[3, 4, 20], y: f32[20]):
    outputs(1)
    with alloc(f32[3, WIDTH], scope='local') as part:
        for p in range(3):
            for l in vectorized(16):
                if l < FIRST:
                    part[p, l] = 0.0
            for k in range(4):
                for m in vectorized(16):
                    if m < 4:
                        part[p, m] = part[p, m] + a[p, k, m + 16]
        for l_1 in vectorized(16):
            y[l_1] = a[0, 0, l_1]
        for n in vectorized(16):
            if n < 4:
                y[n + 16] = part[0, n] + (part[1, n] + part[2, n])
"""


@pytest.mark.parametrize(("width", "first"), [(16, 4), (24, 4), (16, 16), (16, 3), (5, 4), (4, 4)])
def test_lanes_of_scratch_are_stored_where_there_is_room_for_them(width: int, first: int) -> None:
    """A load waits for what was stored under a mask until it is in the cache: sums of the last columns took seven times as long."""
    (func,) = parse_module(PARTS.replace("WIDTH", str(width)).replace("FIRST", str(first))).prim_funcs
    a = np.random.default_rng(0).standard_normal((3, 4, 20)).astype(np.float32)

    assert spare_lanes(func) == (width >= 16 and first == 4)
    assert (emit_prim_func(func).ir_text.count("call void @llvm.masked.store") == 1) == spare_lanes(func)
    if first >= 4 and width >= first:
        (result,) = run(func, [a])
        np.testing.assert_allclose(result, [*a[0, 0, :16], *a[:, :, 16:].sum((0, 1))], rtol=1e-5)


SHARED = """
@loops
def f(a: f32[n], w: f32[6, 2], i: i64[2], y: f32[6, n], n: i64):
    outputs(1)
    for o in range((n + 15) // 16):
        for q in range(3):
            for r in unrolled(2):
                for l in vectorized(16):
                    if o * 16 + l < n:
                        y[q * 2 + r, o * 16 + l] = a[o * 16 + l] * SHARED
"""


def shared_func(shared: str) -> PrimFunc:
    (func,) = parse_module(SHARED.replace("SHARED", shared)).prim_funcs
    return func


def test_a_number_that_lanes_share_is_loaded_without_a_branch_where_it_is_known_to_be_there() -> None:
    func = shared_func("w[q * 2 + r, 1]")  # one branch for each broadcast took several times as long as the sum it fed
    a, w = np.arange(37, dtype=np.float32), np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)

    (result,) = run(func, [a, w, np.zeros(2, np.int64)], (37,))

    assert "masked.load.v1f32" not in emit_prim_func(func).ir_text
    np.testing.assert_array_equal(result, w[:, 1:] * a)


@pytest.mark.parametrize("shared", ["a[o * 16 + 15]", "w[q * 2 + r + o, 0]", "w[i[o], 0]"])
def test_a_number_that_lanes_share_is_loaded_for_active_lanes_only_where_it_may_not_be_there(shared: str) -> None:
    assert "masked.load.v1f32" in emit_prim_func(shared_func(shared)).ir_text


NARROWER = [
    *((wide, narrow) for wide in (i64, i32, i16) for narrow in (i32, i16, u8, bool_) if narrow.bits < wide.bits),
    *((f32, narrow) for narrow in (f16, bf16, f8e4m3fn, f8e5m2fnuz)),  # most are held as integers
]


@pytest.mark.parametrize(("wide", "narrow"), NARROWER, ids=str)
@pytest.mark.parametrize("rest", [1, 2, 15])
def test_a_tail_of_few_lanes_writes_nothing_behind_it(wide: DType, narrow: DType, rest: int) -> None:
    """LLVM 22 stores the wide number where it knows that one lane of a narrow vector is stored."""
    rows, columns = 6, 32 + rest
    x = te.placeholder((rows, columns), wide, "x")
    schedule = Schedule(te.create_prim_func("narrow", [x], [te.compute((rows, columns), lambda i, j: cast(x[i, j], narrow), "y")]))
    outer, lanes = schedule.split("j", 16)
    schedule.reorder(outer, "i", lanes)  # the tails come after the rows that they could spoil
    schedule.vectorize(lanes)
    schedule.unroll(outer)
    numbers = np.random.default_rng(rest).integers(0, 100, (rows, columns)).astype(wide.numpy)

    (result,) = run(finish_loops(schedule.func), [numbers])

    np.testing.assert_array_equal(result, numbers.astype(narrow.numpy))
