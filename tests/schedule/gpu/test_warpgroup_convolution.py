"""Convolutions of f16 on the instructions of warpgroups: each tap of a window is a box of the image, zeros beyond its borders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.codegen.ptx.emitter import emit_ptx
from tc.interp import run_prim_func
from tc.ir.box_copies import CopyBox
from tc.ir.dtype import bf16
from tc.ir.loop import PrimFunc, WarpCall, walk_statements
from tc.ir.parser import parse_prim_func
from tc.ir.printer import print_ir
from tc.ir.verify import verify
from tc.schedule.knobs import Decide, take_default
from tc.schedule.rules import apply_rules
from tests.codegen.machine_code import assembled, disassembler
from tests.ptx.kernels import run_launches
from tests.ptx.launch import Report
from tests.schedule.gpu.test_matrix_convolution import Convolution
from tests.schedule.gpu.test_matrix_product import finish
from tests.schedule.gpu.test_warpgroup_product import FEATURES, HOPPER, RULE, texts_of, tiles_of

SAME = (1, 1, 1, 1)


def finished(case: Convolution, decide: Decide = take_default) -> PrimFunc:
    """What the threads run."""
    scheduled = apply_rules(case.func, HOPPER, decide)
    assert scheduled.rule.startswith(RULE)
    held = finish(scheduled.func, FEATURES)
    verify(held)
    return held


def check(case: Convolution, decide: Decide = take_default) -> None:
    """Both texts, run, give what the convolution is."""
    held = finished(case, decide)
    for name, text in texts_of(held).items():
        reports: list[Report] = []
        (found,) = run_launches(held, text, "product", case.arrays, case.dims, reports)
        np.testing.assert_array_equal(found.astype(np.float32), case.expected, err_msg=name)
        assert all(report.bank_conflicts() == 0 for report in reports)


def boxes_of(held: PrimFunc) -> list[tuple[int, ...]]:
    return [node.extents for node in walk_statements(held.body) if isinstance(node, CopyBox)]


def test_threads_do_what_the_loops_say() -> None:
    case = Convolution(1, 64, 128, (7, 8), (2, 1), pads=(1, 0, 0, 0), block=64)
    held = finished(case, tiles_of(64, 128, 2))

    (by_threads,) = run_prim_func(held, case.arrays)

    np.testing.assert_array_equal(by_threads.astype(np.float32), case.expected)
    assert boxes_of(held) == [(2, 1, 1, 64, 64), (1, 1, 8, 8, 64)]
    assert [node.name for node in walk_statements(held.body) if isinstance(node, WarpCall)] == ["wgmma.m64n128k16.f16.shared.nn"]
    assert print_ir(parse_prim_func(print_ir(held))) == print_ir(held)


def test_pixels_of_pointwise_convolutions_are_rows_as_those_of_a_matrix() -> None:
    held = finished(Convolution(2, 128, 64, (9, 7), (1, 1), block=64))

    copies = [node for node in walk_statements(held.body) if isinstance(node, CopyBox)]

    assert [[str(dim) for dim in copy.view] for copy in copies] == [["2", "1", "1", "64", "64"], ["2", "2", "63", "64"]]


CONVOLUTIONS = {
    "window": (Convolution(1, 64, 64, (7, 7), (3, 3), pads=SAME, block=64), take_default),
    "wide": (Convolution(2, 128, 128, (6, 8), (2, 3), pads=(1, 0, 0, 1), block=64, dtype=bf16), tiles_of(64, 128)),
    "two groups": (Convolution(1, 64, 256, (16, 8), (3, 1), pads=(1, 0, 1, 0), block=64), tiles_of(128, 256)),
    "dilated": (Convolution(1, 64, 64, (9, 8), (2, 2), dilations=(2, 3), pads=(1, 2, 0, 1), block=64, is_finished=False), take_default),
    "any batch": (Convolution(3, 64, 64, (7, 8), (2, 1), block=64, symbolic=True), take_default),
    "any size": (Convolution(2, 64, 64, (5, 9), (3, 3), pads=SAME, block=64, symbolic=True, any_size=True), take_default),
    "pixels": (Convolution(2, 128, 128, (7, 9), (1, 1), block=64), tiles_of(64, 128)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_warpgroups_in_both_texts(name: str) -> None:
    check(*CONVOLUTIONS[name])


def drawn(seed: int) -> tuple[Convolution, Decide]:
    """A convolution and some tile for it."""
    rng = np.random.default_rng(seed)
    channels, filters = (64 * int(count) for count in rng.integers(1, 4, 2))
    kernel = tuple(int(size) for size in (rng.integers(1, 4, 2) if channels == 64 else rng.integers(1, 3, 2)))
    any_size, symbolic = bool(rng.random() < 0.3), bool(rng.random() < 0.4)
    case = Convolution(
        int(rng.integers(1, 4)), channels, filters, tuple(map(int, rng.integers(6, 12, 2))), kernel,
        dilations=tuple(map(int, rng.integers(1, 3, 2))), pads=tuple(map(int, rng.integers(0, 3, 4))), symbolic=symbolic,
        any_size=any_size, is_finished=bool(rng.random() < 0.6), block=64,
    )  # fmt: skip
    return case, lambda knob: knob.options[int(rng.integers(len(knob.options)))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_convolutions_in_both_texts(seed: int) -> None:
    case, decide = drawn(seed)
    scheduled = apply_rules(case.func, HOPPER, decide)
    if scheduled.rule != RULE:
        pytest.skip("too small for warpgroups")
    held = finish(scheduled.func, FEATURES)
    for name, text in texts_of(held).items():
        (found, *_) = run_launches(held, text, "product", case.arrays, case.dims)
        np.testing.assert_array_equal(found.astype(np.float32), case.expected, err_msg=name)


def test_what_is_beyond_a_border_is_no_number_of_another_row() -> None:
    case = Convolution(1, 64, 64, (7, 7), (3, 3), pads=SAME, block=64, is_finished=False)
    case.arrays[0][0, 0, 0, 6, 5] = np.nan
    held = finished(case)

    (found,) = run_launches(held, emit_ptx(held, "product", "sm_90a"), "product", case.arrays)

    seen = np.zeros((7, 7), bool)
    seen[:2, 5:] = True
    np.testing.assert_array_equal(np.isnan(found[0, 0]).any(-1), seen)


def test_images_that_may_have_no_tiles_are_left_to_single_warps() -> None:
    case = Convolution(1, 64, 64, (6, 9), (2, 2), dilations=(2, 2), block=64, symbolic=True, any_size=True)

    assert apply_rules(case.func, HOPPER).rule == "matrix contraction"


@pytest.mark.parametrize("steps", [(2, 2), (1, 2)], ids=str)
def test_pixels_that_are_apart_are_left_to_single_warps(steps: tuple[int, int]) -> None:
    case = Convolution(1, 64, 64, (16, 16), (3, 3), pads=SAME, strides=steps, block=64)

    assert apply_rules(case.func, HOPPER).rule == "matrix contraction"


@pytest.mark.parametrize("language", ["ptx", "cuda"])
def test_machine_code_multiplies_windows_that_boxes_bring(language: str, tmp_path: Path) -> None:
    disassembler()  # and the compilers, or the test is skipped
    held = finished(Convolution(8, 256, 256, (14, 14), (3, 3), pads=SAME, block=64))
    text = emit_ptx(held, "product", "sm_90a") if language == "ptx" else emit_launches(held, "product", CUDA)

    code = assembled(text, language, "sm_90a", tmp_path)
    counts = code.kinds()

    assert counts["HGMMA"] >= 4 and counts["UTMALDG"] >= 2
    assert not counts["HMMA"] and not counts["LDGSTS"] and not counts["LDL"] and not counts["STL"] and not counts["LDS"]
    code.assert_clean()
