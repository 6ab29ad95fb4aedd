"""Attention by warpgroups on boxes that are copied: by threads with roles, as PTX and as CUDA-C through nvcc, and as machine code."""

from __future__ import annotations

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.codegen.ptx.emitter import emit_ptx
from tc.interp import run_prim_func
from tc.ir.dtype import DType, bf16, f16
from tc.ir.loop import PrimFunc
from tc.ir.verify import verify
from tc.schedule.knobs import Decide, take_default
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.ptx.kernels import run_launches
from tests.ptx.launch import Report
from tests.ptx.nvcc import ptx_of
from tests.schedule.gpu.attentions import AttentionProblem
from tests.schedule.gpu.test_matrix_attention import check, plain
from tests.schedule.gpu.test_matrix_product import finish

HOPPER = Target.parse("cuda:sm_90a@x86-64-v3:cores=1")
FEATURES = HOPPER.device.features if HOPPER.device is not None else ()
RULE = "tiled attention on warpgroups"


def finished(problem: AttentionProblem, decide: Decide = take_default) -> PrimFunc:
    """What the threads run."""
    scheduled = apply_rules(problem.func, HOPPER, decide)
    assert scheduled.rule == RULE
    held = finish(scheduled.func, FEATURES)
    verify(held)
    return held


def texts_of(held: PrimFunc) -> dict[str, str]:
    """The kernel as PTX: ours, and nvcc's of our CUDA-C."""
    return {"ptx": emit_ptx(held, "attention", "sm_90a"), "cuda": ptx_of(emit_launches(held, "attention", CUDA), "sm_90a")}


def check_texts(problem: AttentionProblem, decide: Decide = take_default) -> list[Report]:
    """Both texts, run, give what the attention is."""
    held = finished(problem, decide)
    reports: list[Report] = []
    for text in texts_of(held).values():
        check(problem, run_launches(held, text, "attention", problem.arrays, problem.dims, reports)[0])
    return reports


def test_threads_with_roles_do_what_the_loops_say() -> None:
    problem = plain(1, 70, 130, 64)

    for func in (apply_rules(problem.func, HOPPER).func, finished(problem)):
        check(problem, run_prim_func(func, problem.arrays)[0])


def test_both_texts() -> None:
    reports = check_texts(plain(2, 128, 192, 128))
    for report in reports:
        assert report.count("wgmma.mma_async") > 0 and report.count("cp.async.bulk.tensor") > 0
        assert report.bank_conflicts() == 0
