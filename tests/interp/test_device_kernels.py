"""Every operator's kernel for a device, in the form that it is emitted of, run by the interpreter: no races, nothing unwritten is read, the
same numbers as the loops in order."""

from __future__ import annotations

import numpy as np
import pytest

from tc.interp import run_prim_func
from tc.ir.verify import verify
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.ops.kernels import make_prim_func

NAMES = sorted(name for name in OPS if OPS[name].compute is not None)
TARGET = Target.parse("cuda:sm_80")


def check(name: str, samples: slice) -> None:
    op = OPS[name]
    found = list(op.samples(np.random.default_rng(8)))[samples]
    assert found or samples.start
    for arrays, attrs in found:
        prim = simplify_loops(make_prim_func(op, arrays, attrs))
        func = finish_loops(apply_rules(prim, TARGET).func, calls=DEVICE_FINISH_CALLS)
        verify(func)
        dims = [5] * len(func.dims)
        given = [array for array in arrays if array is not None]
        for want, got in zip(run_prim_func(prim, given, dims), run_prim_func(func, given, dims), strict=False):
            np.testing.assert_allclose(_numbers(got), _numbers(want), rtol=1e-3, atol=1e-4)


def _numbers(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int8 if array.dtype == bool else np.float64)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_devices_have_no_races(name: str) -> None:
    check(name, slice(0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_devices_have_no_races_in_any_sample(name: str) -> None:
    check(name, slice(1, None))
