"""Attention of few rows in parts of the keys: without races, on an OpenCL device, as PTX and as CUDA-C."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.ptx.emitter import emit_ptx
from tc.interp import run_prim_func
from tc.ir.dtype import f16, f32
from tc.ir.loop import PrimFunc
from tc.ir.verify import verify
from tc.schedule.rules import apply_rules
from tc.schedule.step import Trace
from tc.target import Target
from tests.codegen.c.devices import cuda_text
from tests.codegen.opencl import kernels as opencl
from tests.draws import some_of
from tests.opencl_driver import need_opencl
from tests.ptx.kernels import run_launches
from tests.ptx.nvcc import ptx_of
from tests.schedule.gpu.attentions import AttentionProblem, drawn_attention
from tests.schedule.gpu.launches import DEVICE, check_launches, finished, launches


def drawn(seed: int) -> AttentionProblem:
    return drawn_attention(np.random.default_rng([7, seed]), f32 if seed % 3 else f16, few=True)


def kernel(problem: AttentionProblem) -> PrimFunc:
    made = apply_rules(problem.func, DEVICE)
    assert made.rule == "attention split over keys"
    assert len(launches(made.func.body)) == 2  # the parts, and what becomes of them
    assert Trace.from_json(made.trace.to_json()) == made.trace
    check_launches(problem.func, made.func)
    final = finished(made.func)
    verify(final)
    return final


def check(problem: AttentionProblem, got: np.ndarray) -> None:
    close = 2e-3 if got.dtype == np.float16 else 3e-5
    values = problem.arrays[2].astype(np.float64)
    scale = float(np.max(np.abs(values), where=np.isfinite(values), initial=1))
    np.testing.assert_allclose(got.astype(np.float64), problem.expected, rtol=close, atol=close * scale)


@pytest.mark.parametrize("seed", range(3))
def test_few_rows_by_threads(seed: int) -> None:
    problem = drawn(seed)
    check(problem, run_prim_func(kernel(problem), problem.arrays, problem.dims)[0])


@pytest.mark.parametrize("seed", some_of(range(3, 9), quick=range(3, 6)))
def test_few_rows_as_ptx(seed: int) -> None:
    problem = drawn(seed)
    func = kernel(problem)
    check(problem, run_launches(func, emit_ptx(func, "k", "sm_80"), "k", problem.arrays, problem.dims)[0])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")
def test_few_rows_as_cuda() -> None:
    problems = [drawn(seed) for seed in (9, 10)]
    funcs = [kernel(problem) for problem in problems]
    text = ptx_of(cuda_text(funcs), "sm_80", CUDA.options)
    for number, (problem, func) in enumerate(zip(problems, funcs, strict=True)):
        check(problem, run_launches(func, text, f"k{number}", problem.arrays, problem.dims)[0])


@pytest.mark.parametrize("seed", [11, 13, 14])
def test_few_rows_on_an_opencl_device(seed: int) -> None:
    need_opencl()
    target, problem = Target.parse("opencl"), drawn(seed)
    check(problem, opencl.run_on(target, opencl.finished(problem.func, target), problem.arrays, problem.dims)[0])
