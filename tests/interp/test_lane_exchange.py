"""Lanes of a warp that exchange elements: in the interpreter, as PTX and as CUDA-C, and what is refused."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.ptx.emitter import emit_ptx
from tc.errors import ScheduleError, VerifyError
from tc.interp import run_prim_func
from tc.ir.bit_layout import layout
from tc.ir.dtype import DType
from tc.ir.fragments import mma_fragments
from tc.ir.lane_exchange import EXCHANGED, MASKS, masks_within
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module
from tc.ir.verify import verify
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tests.codegen.c.devices import cuda_text
from tests.ptx.kernels import run_launches
from tests.ptx.nvcc import ptx_of


def exchanging(mask: int, dtype: str = "f32", rows: int = 2, lanes: int = 32) -> PrimFunc:
    """B = A and, a row of as many threads further on, what lane xor mask has of A."""
    text = f"""@loops
def f(A: {dtype}[{rows}, {lanes}], B: {dtype}[2, {rows}, {lanes}]):
    outputs(1)
    for b in bound(1, 'block.x'):
        with alloc({dtype}[{rows}, {lanes}], scope='local') as X:
            with alloc({dtype}[{rows}, {lanes}], scope='local') as T:
                for w in bound({rows}, 'thread.y'):
                    for t in bound({lanes}, 'thread.x'):
                        X[w, t] = A[w, t]
                        warp('shuffle.xor{mask}.{dtype}', X[w, t], T[w, t])
                        B[0, w, t] = X[w, t]
                        B[1, w, t] = T[w, t]
"""
    (func,) = parse_module(text).prim_funcs
    verify(func)
    return finish_loops(func, calls=DEVICE_FINISH_CALLS)


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 1 << 30, shape).astype(dtype)


@pytest.mark.parametrize(("lanes", "mask"), [(lanes, mask) for lanes in (8, 32, 64) for mask in MASKS if 2 * mask <= lanes])
def test_each_lane_gets_its_partners_element(lanes: int, mask: int) -> None:
    func, x = exchanging(mask, rows=8, lanes=lanes), values("f4", (8, lanes))
    want = np.stack([x, x[:, np.arange(lanes) ^ mask]])

    np.testing.assert_array_equal(run_prim_func(func, [x])[0], want)
    np.testing.assert_array_equal(run_launches(func, emit_ptx(func, "k", "sm_75"), "k", [x])[0], want)


@pytest.mark.parametrize("dtype", EXCHANGED, ids=str)
def test_all_types_go_through_ptx_and_cuda(dtype: DType) -> None:
    func, x = exchanging(8, str(dtype)), values(dtype.numpy.str, (2, 32))
    want = np.stack([x, x[:, np.arange(32) ^ 8]])

    np.testing.assert_array_equal(run_launches(func, emit_ptx(func, "k", "sm_80"), "k", [x])[0], want)
    if shutil.which("nvcc") is not None:
        text = ptx_of(cuda_text([func]), "sm_80", CUDA.options)
        np.testing.assert_array_equal(run_launches(func, text, "k0", [x])[0], want)


def test_lanes_that_do_not_come_are_reported() -> None:
    text = """@loops
def f(A: f32[32], B: f32[32]):
    outputs(1)
    for t in bound(32, 'thread.x'):
        with alloc(f32[1], scope='local') as X:
            with alloc(f32[1], scope='local') as T:
                X[0] = A[t]
                T[0] = 0.0
                if t < 31:
                    warp('shuffle.xor1.f32', X[0], T[0])
                B[t] = T[0]
"""
    (func,) = parse_module(text).prim_funcs

    with pytest.raises(VerifyError, match=r"lanes of a warp do not meet at .*shuffle.xor1.f32.*thread \(t=31\) is elsewhere"):
        run_prim_func(func, [np.zeros(32, np.float32)])


@pytest.mark.parametrize(("rows", "lanes"), [(1, 16), (2, 8), (3, 32 * 3 + 4), (4, 24)])
def test_partners_in_no_warp_are_refused(rows: int, lanes: int) -> None:
    with pytest.raises(ScheduleError, match="8 lanes exchange elements in a launch of"):
        exchanging(4, rows=rows, lanes=lanes)


def test_what_is_empty_gives_nothing() -> None:
    (func,) = parse_module("""@loops
def f(A: f32[32], B: f32[32]):
    outputs(1)
    for t in bound(32, 'thread.x'):
        with alloc(f32[1], scope='local') as X:
            with alloc(f32[1], scope='local') as T:
                if t < 16:
                    X[0] = A[t]
                warp('shuffle.xor16.f32', X[0], T[0])
                if t < 16:
                    B[t] = T[0]
""").prim_funcs

    with pytest.raises(VerifyError, match=r"thread \(t=0\) reads T\[0\] .* nothing has been stored"):
        run_prim_func(func, [np.zeros(32, np.float32)])


def test_the_four_lanes_that_share_a_row_of_sums_are_a_quad() -> None:
    sums = mma_fragments(16, 16).sums

    assert masks_within(sums, "m") == (1, 2)
    assert masks_within(sums, "n") == (4, 8, 16)
    with pytest.raises(ScheduleError, match="do not differ in single bits"):
        masks_within(layout({"m": 2}, register=[], lane=[1, 1]), "m")


GUARDED = """@loops
def f(A: f32[64], B: f32[64], n: i64):
    outputs(1)
    for b in bound(1, 'block.x'):
        for w in bound({rows}, 'thread.y'):
            for t in bound({along}, 'thread.x'):
                with alloc(f32[1], scope='local') as X:
                    with alloc(f32[1], scope='local') as T:
                        X[0] = A[w * {along} + t]
                        {around}:
                            warp('shuffle.xor1.f32', X[0], T[0])
                            B[w * {along} + t] = T[0]
"""


@pytest.mark.parametrize("around", ["if t < 32", "if t // 32 < n", "if w + n < 3", "for k in range(n)", "if (t + 32) // 32 == 1"])
def test_what_all_lanes_of_a_warp_agree_on_may_stand_around_an_exchange(around: str) -> None:
    (func,) = parse_module(GUARDED.format(along=64, rows=1, around=around)).prim_funcs

    verify(func)


@pytest.mark.parametrize(
    ("along", "rows", "around"),
    [
        (64, 1, "if t < 33"), (64, 1, "if t + n < 40"), (64, 1, "if t % 2 == 0"), (64, 1, "if X[0] < 1.0"), (64, 1, "for k in range(t)"),
        (8, 8, "if w < 2"), (8, 8, "if w % 4 == n"), (64, 1, "if A[t] < 1.0"),
    ],
)  # fmt: skip
def test_an_exchange_that_some_lanes_of_a_warp_may_not_reach_is_refused(along: int, rows: int, around: str) -> None:
    (func,) = parse_module(GUARDED.format(along=along, rows=rows, around=around)).prim_funcs

    with pytest.raises(VerifyError, match="which need not be the same for them"):
        verify(func)
