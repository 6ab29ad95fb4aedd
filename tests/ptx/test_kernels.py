"""Operators scheduled for devices, from both emitters' texts, run by the interpreter of PTX: equal the reference, without races."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.ptx.emitter import emit_ptx
from tc.ir.loop import PrimFunc
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.codegen.c.devices import cuda_text
from tests.ops.kernels import make_prim_func
from tests.ops.test_registry import WITH_LOOPS, assert_same, samples_of
from tests.ptx.kernels import run_launches
from tests.ptx.nvcc import ptx_of

Sample = tuple[str, list[np.ndarray | None], dict[str, Any]]

SOME = 12
"""Of so many operators one is enough for every run."""

ARCHS = ("sm_75", "sm_80", "sm_90a")


def samples(names: Sequence[str], which: slice) -> list[Sample]:
    return [(name, arrays, attrs) for name in names for arrays, attrs in samples_of(OPS[name])[which]]


def scheduled(sample: Sample, arch: str) -> PrimFunc:
    """The sample's kernel as the rules for a device make it, in the form that is emitted."""
    name, arrays, attrs = sample
    func = simplify_loops(make_prim_func(OPS[name], arrays, attrs))
    target = Target.parse(f"cuda:{arch}")
    assert target.device is not None
    return finish_loops(apply_rules(func, target).func, calls=DEVICE_FINISH_CALLS, features=target.device.features)


def check(sample: Sample, func: PrimFunc, text: str, symbol: str) -> None:
    name, arrays, attrs = sample
    expected = OPS[name].run_reference(arrays, OPS[name].attrs(attrs))
    actual = run_launches(func, text, symbol, [array for array in arrays if array is not None])
    for got, want in zip(actual[: len(expected)], expected, strict=True):  # workspaces follow
        assert_same(got, want)


def check_ptx(found: list[Sample], arch: str) -> None:
    for sample in found:
        func = scheduled(sample, arch)
        check(sample, func, emit_ptx(func, "k", arch), "k")


def check_cuda(found: list[Sample], arch: str) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc on this machine")
    funcs = [scheduled(sample, arch) for sample in found]
    text = ptx_of(cuda_text(funcs), arch, CUDA.options)
    for n, (sample, func) in enumerate(zip(found, funcs, strict=True)):
        check(sample, func, text, f"k{n}")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_some_operators_as_ptx(arch: str) -> None:
    check_ptx(samples(WITH_LOOPS[ARCHS.index(arch) :: SOME], slice(0, 1)), arch)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_some_operators_as_cuda(arch: str) -> None:
    check_cuda(samples(WITH_LOOPS[ARCHS.index(arch) + 3 :: SOME], slice(0, 1)), arch)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_quantization_as_ptx() -> None:
    """It rounds and clips by code of its own on CPUs."""
    names = [name for name in WITH_LOOPS if "quantize" in name]
    assert "quantize_linear" in names
    check_ptx(samples(names, slice(None)), "sm_80")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_all_samples_of_operators_as_ptx(arch: str) -> None:
    check_ptx(samples(WITH_LOOPS, slice(None)), arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_all_samples_of_operators_as_cuda(arch: str) -> None:
    check_cuda(samples(WITH_LOOPS, slice(None)), arch)
