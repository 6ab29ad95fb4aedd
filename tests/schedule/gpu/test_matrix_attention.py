"""Attention on matrix instructions: in order, by warps, as PTX and as CUDA-C, and the machine code of a large one."""

from __future__ import annotations

import re
import shutil
from math import prod
from pathlib import Path

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.codegen.launches import launches_of
from tc.codegen.ptx.emitter import emit_ptx
from tc.interp import run_prim_func
from tc.ir.dtype import DType, bf16, bool_, f16
from tc.ir.graph import Call
from tc.ir.loop import PrimFunc
from tc.ir.types import TensorType
from tc.ir.verify import verify
from tc.ops.build import full_attrs
from tc.ops.registry import get_op
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.knobs import Decide, take_default
from tc.schedule.rules import Scheduled, apply_rules
from tc.schedule.step import Trace
from tc.target.device import occupancy
from tc.te import create_prim_func, placeholder
from tests.codegen.c.devices import cuda_text
from tests.codegen.machine_code import assembled, disassembler
from tests.draws import some_of
from tests.ptx.kernels import run_launches
from tests.ptx.launch import run
from tests.ptx.nvcc import ptx_of
from tests.schedule.gpu.attentions import AttentionProblem, attention_problem, drawn_attention
from tests.schedule.gpu.launches import DEVICE, check_launches, drawn, launches

assert DEVICE.device is not None
FEATURES = DEVICE.device.features


def scheduled(problem: AttentionProblem, decide: Decide = take_default) -> Scheduled:
    made = apply_rules(problem.func, DEVICE, decide)
    assert made.rule == "tiled attention on matrix instructions"
    assert len(launches(made.func.body)) == 1
    assert Trace.from_json(made.trace.to_json()) == made.trace
    verify(made.func)
    return made


def held(made: Scheduled) -> PrimFunc:
    """What each lane runs."""
    final = finish_loops(made.func, calls=DEVICE_FINISH_CALLS, features=FEATURES)
    verify(final)
    return final


def check(problem: AttentionProblem, got: np.ndarray) -> None:
    """Weights and results are rounded to the operands' type; scores and sums are f32."""
    values = problem.arrays[2].astype(np.float64)
    scale = float(np.max(np.abs(values), where=np.isfinite(values), initial=1))
    step = float(np.finfo(np.float16).eps) if got.dtype == np.float16 else 2.0**-7
    np.testing.assert_allclose(got.astype(np.float64), problem.expected, rtol=step, atol=2 * step * scale)


def plain(
    heads: int, rows: int, keys: int, depth: int, *masks: np.ndarray, dtype: DType = f16, steps: tuple[str, ...] = ()
) -> AttentionProblem:
    rng = np.random.default_rng([rows, keys, depth])
    arrays = [rng.standard_normal((heads, size, depth)).astype(dtype.numpy) for size in (rows, keys, keys)] + list(masks)
    dtypes = [bool_ if array.dtype == bool else dtype for array in arrays]
    return attention_problem([array.shape for array in arrays], arrays, dtypes, {}, steps=steps, rounded=True)


def test_in_order_by_warps_and_without_matrix_instructions() -> None:
    problem = plain(1, 16, 32, 16)
    made = scheduled(problem)
    plainly = finish_loops(made.func, calls=DEVICE_FINISH_CALLS)
    for func in (made.func, held(made), plainly):
        check(problem, run_prim_func(func, problem.arrays)[0])


@pytest.mark.parametrize("seed", some_of(range(4), quick=range(2)))
def test_any_attention_of_halves_as_ptx(seed: int) -> None:
    rng = np.random.default_rng([9, seed])
    problem = drawn_attention(rng, f16 if seed % 2 else bf16)
    func = held(scheduled(problem, drawn(rng)))  # sizes of tiles and numbers of stages are any that may be asked for
    check(problem, run_launches(func, emit_ptx(func, "k", "sm_80"), "k", problem.arrays, problem.dims)[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_attentions_of_halves_as_ptx(seed: int) -> None:
    test_any_attention_of_halves_as_ptx(seed)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")
def test_attentions_of_halves_as_cuda() -> None:
    causal = np.tril(np.ones((20, 36), bool), 16)
    problems = [plain(2, 16, 32, 24), plain(1, 20, 36, 16, causal, np.asarray(-np.inf, np.float16), steps=("keep",))]
    funcs = [held(scheduled(problem)) for problem in problems]
    text = ptx_of(cuda_text(funcs), "sm_80", CUDA.options)
    for number, (problem, func) in enumerate(zip(problems, funcs, strict=True)):
        check(problem, run_launches(func, text, f"k{number}", problem.arrays)[0])


def test_rows_without_any_key_are_nan_and_others_are_not() -> None:
    mask = np.zeros((18, 70), bool)
    mask[:, 40:] = True
    mask[3, :] = False
    problem = plain(1, 18, 70, 16, mask, np.asarray(-np.inf, np.float16), steps=("keep",))
    func = held(scheduled(problem))
    got = run_launches(func, emit_ptx(func, "k", "sm_80"), "k", problem.arrays)[0]
    assert np.isnan(problem.expected[:, 3]).all() and np.isfinite(problem.expected[:, 4:]).all()
    check(problem, got)


@pytest.mark.parametrize("depth", [40, 72])
def test_heads_of_sizes_that_are_no_powers_of_two(depth: int) -> None:
    problem = plain(1, 17, 33, depth)
    func = held(scheduled(problem))
    check(problem, run_launches(func, emit_ptx(func, "k", "sm_80"), "k", problem.arrays)[0])


def test_shared_memory_fits_the_device() -> None:
    check_launches(plain(1, 32, 64, 16).func, scheduled(plain(1, 32, 64, 16)).func)


# -- machine code


def large(heads: int, rows: int, keys: int, depth: int) -> PrimFunc:
    """Of arrays that nobody needs."""
    shapes = [(heads, rows, depth), (heads, keys, depth), (heads, keys, depth)]
    op, attrs = get_op("attention"), full_attrs(Call("attention", (), (("rounded", True),)))
    tensors = [placeholder(shape, f16, f"A{k}") for k, shape in enumerate(shapes)]
    result = op.compute(tensors, attrs, [op.infer([TensorType(x.shape, x.dtype) for x in tensors], attrs)])
    return held(apply_rules(create_prim_func("attention", tensors, [result], ()), DEVICE))


@pytest.mark.parametrize("language", ["ptx", "cuda"])
def test_machine_code_of_a_large_attention(language: str, tmp_path: Path) -> None:
    disassembler()  # and the compilers, or the test is skipped
    func = large(32, 4096, 4096, 128)
    text = emit_ptx(func, "attention", "sm_80") if language == "ptx" else emit_launches(func, "attention", CUDA)

    code = assembled(text, language, "sm_80", tmp_path)

    counts, full = code.kinds(), code.names()
    assert counts["HMMA"] == 128  # 16 x 64 scores and 16 x 128 results of 64 keys, both in steps of 16 x 8 x 16
    assert all(name.endswith("88.4") for name in full if name.startswith("LDSM"))
    assert full["LDSM.16.M88.4"] == 40 and full["LDSM.16.MT88.4"] == 32  # queries once, keys; values turned
    assert all(".128" in name for name in full if name.startswith("LDGSTS")) and counts["LDGSTS"]
    assert not any(counts[name] for name in ("LDG", "LDL", "STL", "LDS", "STS"))
    code.assert_clean()
    registers = int(re.search(r"Used (\d+) registers", code.said).group(1))  # type: ignore[union-attr]
    (launch,) = launches_of(func)
    assert DEVICE.device is not None
    assert occupancy(prod(launch.threads), registers, launch.shared_bytes, DEVICE.device) >= 1


def test_no_access_to_shared_memory_meets_another_in_a_bank() -> None:
    func = large(1, 32, 32, 64)
    (launch,) = launches_of(func)
    rng = np.random.default_rng(0)
    arrays = {b: rng.standard_normal([int(str(dim)) for dim in b.shape]).astype(np.float16) for b in func.buffers}

    x, y, z = (int(str(size)) for size in launch.grid)
    grid = (x, y, z)

    report = run(emit_ptx(func, "k", "sm_80"), "k_0", grid, launch.threads, [arrays[buffer] for buffer in launch.buffers])

    assert report.count("ldmatrix") > 0 and report.bank_conflicts() == 0
