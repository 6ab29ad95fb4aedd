"""Attention by warpgroups on boxes that are copied: by threads with roles, as PTX and as CUDA-C through nvcc, and as machine code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.codegen.ptx.emitter import emit_ptx
from tc.cost.device_estimate import exceeded
from tc.cost.device_work import device_work
from tc.errors import ScheduleError, VerifyError
from tc.interp import run_prim_func
from tc.ir.dtype import bf16, f16
from tc.ir.expr import Var
from tc.ir.graph import Call
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_prim_func
from tc.ir.printer import print_ir
from tc.ir.types import TensorType
from tc.ir.verify import verify
from tc.ops.build import full_attrs
from tc.ops.registry import get_op
from tc.passes.loop.pipeline_loops import pipeline_loops
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import DEVICE_FINISH_CALLS
from tc.schedule.knobs import Decide, take_default
from tc.schedule.rules import apply_rules
from tc.target import Target
from tc.te import create_prim_func, placeholder
from tests.codegen.machine_code import assembled, disassembler
from tests.draws import some_of
from tests.ptx.kernels import run_launches
from tests.ptx.launch import Report
from tests.ptx.nvcc import ptx_of
from tests.schedule.gpu.attentions import AttentionProblem, attention_problem, drawn_attention
from tests.schedule.gpu.launches import drawn
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
    problem = plain(1, 60, 66, 64)

    for func in (apply_rules(problem.func, HOPPER).func, finished(problem)):
        check(problem, run_prim_func(func, problem.arrays)[0])


# -- texts


@pytest.mark.parametrize("depth", [64, 128])
def test_both_texts_multiply_by_warpgroups_what_boxes_bring(depth: int) -> None:
    reports = check_texts(plain(1, 128, 192, depth))

    for report in reports:
        assert report.count("wgmma.mma_async") > 0 and report.count("cp.async.bulk.tensor") > 0
        assert report.count("mma.sync") == report.count("ldmatrix") == report.count("cp.async.cg") == 0
        assert report.bank_conflicts() == 0


@pytest.mark.parametrize("seed", some_of(range(80), quick=[1]))
def test_any_attention_of_warpgroups_in_both_texts(seed: int) -> None:
    rng = np.random.default_rng([90, seed])
    problem = drawn_attention(rng, (f16, bf16)[seed % 2], groups=True)
    check_texts(problem, drawn(rng))  # sizes of tiles and numbers of stages are any that may be asked for


def run_ptx(problem: AttentionProblem, decide: Decide = take_default) -> np.ndarray:
    held = finished(problem, decide)
    return run_launches(held, emit_ptx(held, "attention", "sm_90a"), "attention", problem.arrays, problem.dims)[0]


def test_rows_without_any_key_are_nan_and_others_are_not() -> None:
    mask = np.zeros((70, 200), bool)
    mask[:, 140:] = True  # whole tiles of keys are left out before any is known
    mask[3, :] = False
    problem = plain(1, 70, 200, 64, mask, np.asarray(-np.inf, np.float16), steps=("keep",))

    found = run_ptx(problem)

    assert np.isnan(problem.expected[:, 3]).all() and np.isfinite(problem.expected[:, 4:]).all()
    check(problem, found)


def test_what_is_no_number_stays_in_its_row() -> None:
    problem = plain(1, 70, 130, 64)
    problem.arrays[0][0, 5, 3] = np.nan

    (found,) = run_ptx(problem)

    assert np.isnan(found[5]).all() and np.isfinite(np.delete(found, 5, 0)).all()


def test_any_number_of_rows_and_of_keys() -> None:
    m, n = Var("m"), Var("n")
    rng = np.random.default_rng(7)
    text = held = None
    for rows, keys in ((0, 3), (1, 1), (63, 64), (64, 129), (65, 63), (130, 200), (128, 128), (5, 0)):
        arrays = [rng.standard_normal((1, size, 64)).astype(np.float16) for size in (rows, keys, keys)]
        problem = attention_problem([(1, m, 64), (1, n, 64), (1, n, 64)], arrays, [f16] * 3, {m: rows, n: keys}, rounded=True)
        if held is None or text is None:
            held = finished(problem)
            text = emit_ptx(held, "attention", "sm_90a")

        check(problem, run_launches(held, text, "attention", arrays, (rows, keys))[0])


# -- where warpgroups do not fit

OTHERS = {
    "rows that do not lie at multiples of 16 bytes": (128, 128, 68),
    "few rows": (40, 128, 64),
    "one tile of keys": (128, 64, 64),
    "short rows, most of tiles empty": (128, 128, 32),
    "rows of a length between those of tiles": (128, 128, 72),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_attentions_are_left_to_single_warps(name: str) -> None:
    assert apply_rules(plain(1, *OTHERS[name]).func, HOPPER).rule == "tiled attention on matrix instructions"


def test_devices_without_them_have_attention_of_single_warps() -> None:
    target = Target.parse("cuda:sm_90@x86-64-v3:cores=1")

    assert apply_rules(plain(1, 128, 128, 64).func, target).rule == "tiled attention on matrix instructions"


# -- faults

FAULTS = {
    "queries are not awaited": (r"await_phase\(held.*", None),
    "keys are not awaited": (r"await_phase\(full\[.*", None),
    "stages are not awaited to be empty": (r"await_phase\(empty\[.*", None),
    "stages are not given back": (r"arrive\(empty\[.*", None),
    "scores are not awaited": (r"await_products\(0, scores.*", None),
    "results are not awaited": (r"await_products\(0, powers.*", None),
    "scores are not handed over": (r"begin_products\(scores.*", None),
    "weights are not handed over": (r"begin_products\(powers.*", None),
    "too few bytes": (r"(arrive\(held\[0\]), \d+", r"\1, 64"),
    "weights are changed on their way": (r"( +)await_products\(0, (powers_lhs\w*\[[^]]*\]).*", r"\1\2 = f16(0.0)\n\g<0>"),
    "the barriers are not met": (r"barrier\(\)", None),
}


@pytest.fixture(scope="module")
def small() -> tuple[AttentionProblem, str]:
    problem = plain(1, 64, 130, 64)
    return problem, print_ir(finished(problem))


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_phases_are_caught(name: str, small: tuple[AttentionProblem, str]) -> None:
    problem, text = small
    wanted, other = FAULTS[name]
    changed, count = re.subn(wanted, "pass" if other is None else other, text)
    assert count

    with pytest.raises(VerifyError):
        func = parse_prim_func(changed)
        verify(func)
        run_prim_func(func, problem.arrays)


WRONG = {
    "memory of the block": (r"alloc\(f32\[1, 64, 64\], scope='local'", "alloc(f32[1, 64, 64], scope='shared'", "does something else"),
    "other threads": (r"for fused_3 in bound\(128", "for fused_3 in bound(64", "has 64 threads along thread.x"),
    "one thread": (r"for fused_3 in bound\(128, 'thread.x'\)", "for fused_3 in range(128)", "does something else"),
    "results": (r"(\n +)top_rf\[0, jt_3_0, 0, fused_3", r"\1attention[0, fused_3, 0] = f16(0.0)\g<0>", "does something else"),
}
"""What roles do not do beside products."""


@pytest.mark.parametrize("name", WRONG)
def test_roles_do_nothing_beside_products_but_on_registers(name: str) -> None:
    made = apply_rules(plain(1, 64, 192, 64).func, HOPPER).func
    names = [call.target.name for call in DEVICE_FINISH_CALLS]
    settings = {"threads": 0, "features": FEATURES}
    text = print_ir(run_pipeline(made, DEVICE_FINISH_CALLS[: names.index("pipeline_loops")], settings))
    old, new, words = WRONG[name]
    changed, count = re.subn(old, new, text)
    assert count

    with pytest.raises(ScheduleError, match=words):
        pipeline_loops(parse_prim_func(changed))


# -- machine code


def large(depth: int) -> PrimFunc:
    """Of arrays that nobody needs."""
    shapes = [(32, 4096, depth)] * 3
    op, attrs = get_op("attention"), full_attrs(Call("attention", (), (("rounded", True),)))
    tensors = [placeholder(shape, f16, f"A{k}") for k, shape in enumerate(shapes)]
    result = op.compute(tensors, attrs, [op.infer([TensorType(x.shape, x.dtype) for x in tensors], attrs)])
    return create_prim_func("attention", tensors, [result], ())


@pytest.mark.parametrize("depth", [64, 128, 256])
def test_tuners_take_the_default_for_what_a_device_holds(depth: int) -> None:
    held = finish(apply_rules(large(depth), HOPPER).func, FEATURES)

    (work,) = device_work(held, {})

    assert HOPPER.device is not None
    assert exceeded(work, HOPPER.device) is None
    assert work.matrix_flops == {"f16": 4 * (work.threads // 128 - 1) * 64 * 4096 * depth}  # one group copies


@pytest.mark.covering
@pytest.mark.parametrize("language", ["ptx", "cuda"])
@pytest.mark.parametrize("depth", [64, 128])
def test_machine_code_multiplies_by_warpgroups_what_boxes_bring(language: str, depth: int, tmp_path: Path) -> None:
    disassembler()  # and the compilers, or the test is skipped
    held = finish(apply_rules(large(depth), HOPPER).func, FEATURES)
    text = emit_ptx(held, "attention", "sm_90a") if language == "ptx" else emit_launches(held, "attention", CUDA)

    code = assembled(text, language, "sm_90a", tmp_path)
    counts = code.kinds()

    assert counts["HGMMA"] == depth // 16 + 4  # 64 x 64 scores in steps of 16, and 64 x `depth` results of 64 keys in four
    assert counts["UTMALDG"] >= 3
    assert not any(counts[name] for name in ("HMMA", "LDGSTS", "LDSM", "LDL", "STL", "LDS", "STS", "LDG"))
    code.assert_clean()
