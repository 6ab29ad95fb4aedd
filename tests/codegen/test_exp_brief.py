"""Exponentials that are rounded to 16 bits: by an instruction where there is one, and right to what is stated everywhere."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tc.codegen.ptx.emitter import emit_ptx
from tc.interp import run_prim_func
from tc.ir.dtype import f32
from tc.ir.expr import call
from tc.ir.loop import PrimFunc
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target
from tc.te import compute, create_prim_func, placeholder
from tests.codegen.c.devices import cuda_text
from tests.ptx.kernels import run_launches
from tests.ptx.nvcc import ptx_of
from tests.schedule.gpu.launches import DEVICE

ENDS = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.7, 89.0, 1e30, -1e30, -87.3, -87.5, -100.0, -104.0, 1e-30]
COUNT = 4096


@pytest.fixture(scope="module")
def numbers() -> np.ndarray:
    rng = np.random.default_rng(0)
    found = np.concatenate([ENDS, -rng.exponential(1, 2000), rng.uniform(-90, 89, COUNT)]).astype(np.float32)
    return found[:COUNT]


def exponentials(target: Target) -> PrimFunc:
    x = placeholder((COUNT,), f32, "X")
    func = create_prim_func("exponentials", [x], [compute((COUNT,), lambda i: call("exp_brief", x[i]), "Y")], ())
    return apply_rules(func, target).func


def check(x: np.ndarray, found: np.ndarray, most: float) -> None:
    """Within the stated part of exact values where these are normal numbers, and near 0 below."""
    with np.errstate(over="ignore"):
        exact = np.exp(x.astype(np.float64))
        rounded = exact.astype(np.float32)
    normal = np.isfinite(rounded) & (rounded >= np.finfo(np.float32).smallest_normal * 2)
    assert normal.sum() > COUNT // 2
    assert (np.abs(found[normal] - exact[normal]) <= most * (1 + np.abs(x[normal])) * exact[normal]).all()
    small = rounded < np.finfo(np.float32).smallest_normal * 2
    assert (np.abs(found[small] - exact[small]) <= np.finfo(np.float32).smallest_normal * 2).all()
    ends = ~np.isfinite(rounded)
    np.testing.assert_array_equal(found[ends], rounded[ends])


def test_interpreted_they_are_exponentials(numbers: np.ndarray) -> None:
    func = exponentials(Target.parse("x86-64-v3:cores=1"))

    check(numbers, run_prim_func(func, [numbers])[0], 2.0**-24)


def test_ptx_has_one_instruction_for_them(numbers: np.ndarray) -> None:
    func = finish_loops(exponentials(DEVICE), calls=DEVICE_FINISH_CALLS)
    text = emit_ptx(func, "k", "sm_80")

    (found,) = run_launches(func, text, "k", [numbers])

    assert "ex2.approx.ftz.f32" in text and "fma" not in text
    check(numbers, found, 2.0**-22)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")
def test_cuda_has_one_instruction_for_them(numbers: np.ndarray) -> None:
    func = finish_loops(exponentials(DEVICE), calls=DEVICE_FINISH_CALLS)
    text = ptx_of(cuda_text([func]), "sm_80")

    (found,) = run_launches(func, text, "k0", [numbers])

    assert "ex2.approx.ftz.f32" in text and "fma" not in text
    check(numbers, found, 2.0**-22)
