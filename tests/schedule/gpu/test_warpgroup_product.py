"""Products of warpgroups on boxes that are copied: by threads with roles, as PTX and as CUDA-C through nvcc, and as machine code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.codegen.launches import launches_of
from tc.codegen.ptx.emitter import emit_ptx
from tc.interp import run_prim_func
from tc.ir.box_copies import CopyBox
from tc.ir.dtype import DType, bf16, f16, f32, i8
from tc.ir.expr import cast
from tc.ir.loop import PrimFunc, WarpCall, walk_statements
from tc.ir.parser import parse_prim_func
from tc.ir.printer import print_ir
from tc.ir.verify import verify
from tc.schedule.knobs import Decide, take_default
from tc.schedule.rules import apply_rules
from tc.target import Target
from tc.te import create_prim_func, placeholder, reduce
from tests.codegen.machine_code import assembled, disassembler
from tests.ptx.kernels import run_launches
from tests.ptx.launch import Report
from tests.ptx.nvcc import ptx_of
from tests.schedule.gpu.test_matrix_product import Product, finish

HOPPER = Target.parse("cuda:sm_90a@x86-64-v3:cores=1")
FEATURES = HOPPER.device.features if HOPPER.device is not None else ()
RULE = "warpgroup contraction"


def tiles_of(rows: int, columns: int, stages: int = 4) -> Decide:
    """Answers that take these tiles."""
    answers = {"tile": (rows, columns), "stages_at_once": stages}
    return lambda knob: answers.get(knob.name.rpartition("/")[2], knob.default)  # type: ignore[return-value]


def finished(product: Product, decide: Decide = take_default) -> PrimFunc:
    """What the threads run."""
    scheduled = apply_rules(product.func, HOPPER, decide)
    assert scheduled.rule == RULE
    held = finish(scheduled.func, FEATURES)
    verify(held)
    return held


def texts_of(held: PrimFunc) -> dict[str, str]:
    """The kernel as PTX: ours, and nvcc's of our CUDA-C."""
    return {"ptx": emit_ptx(held, "product", "sm_90a"), "cuda": ptx_of(emit_launches(held, "product", CUDA), "sm_90a")}


def check(product: Product, decide: Decide = take_default) -> list[Report]:
    """Both texts, run, give what the product is."""
    held = finished(product, decide)
    reports: list[Report] = []
    for name, text in texts_of(held).items():
        (found,) = run_launches(held, text, "product", product.arrays, product.dims, reports)
        np.testing.assert_array_equal(found, product.expected.astype(found.dtype), err_msg=name)
    return reports


# -- threads with roles


def test_threads_with_roles_do_what_the_loops_say() -> None:
    product = Product(70, 64, 136, f16, turned=(False, True), has_bias=True, result=f16)
    scheduled = apply_rules(product.func, HOPPER, tiles_of(64, 64, 2))
    held = finished(product, tiles_of(64, 64, 2))

    (by_threads,) = run_prim_func(held, product.arrays)

    np.testing.assert_array_equal(by_threads.astype(np.float64), product.expected)
    assert "pipeline=2" in print_ir(scheduled.func)
    assert print_ir(parse_prim_func(print_ir(held))) == print_ir(held)


def test_one_group_copies_what_the_others_multiply() -> None:
    held = finished(Product(256, 256, 256, f16), tiles_of(128, 128))

    (launch,) = launches_of(held)
    copies = [node for node in walk_statements(held.body) if isinstance(node, CopyBox)]
    calls = [node for node in walk_statements(held.body) if isinstance(node, WarpCall)]
    assert launch.threads == (128, 3, 1)
    assert [copy.extents for copy in copies] == [(64, 64), (128, 64)]
    assert [call.name for call in calls] == ["wgmma.m64n128k16.f16.shared.nn"]
    assert launch.shared_bytes == 4 * 2 * 128 * 128 + 2 * 4 * 8
    assert not launch.buffers or all(buffer.name not in ("X", "W") for buffer in launch.buffers)


# -- texts

PRODUCTS = {
    "plain": (Product(128, 128, 128, f16), (128, 128)),
    "wide": (Product(72, 264, 136, bf16, has_bias=True, result=bf16), (64, 256)),
    "turned right": (Product(100, 128, 200, f16, turned=(False, True), has_bias=True, result=f16), (64, 128)),
    "turned left": (Product(136, 72, 128, f16, turned=(True, False)), (64, 64)),
    "both": (Product(192, 144, 136, bf16, turned=(True, True), result=bf16), (64, 64)),
    "large": (Product(128, 256, 328, f16, turned=(True, False), has_bias=True, result=f16), (128, 256)),
    "batch": (Product(64, 64, 128, f16, batch=(3,)), (64, 64)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_warpgroups_in_both_texts(name: str) -> None:
    product, tile = PRODUCTS[name]

    reports = check(product, tiles_of(*tile))

    for report in reports:
        assert report.count("wgmma.mma_async") > 0 and report.count("cp.async.bulk.tensor") > 0
        assert report.bank_conflicts() == 0


def drawn(seed: int) -> tuple[Product, Decide]:
    """A product whose rows lie at multiples of 16 bytes, and some tile for it."""
    rng = np.random.default_rng(seed)
    turned = (bool(rng.integers(2)), bool(rng.integers(2)))
    rows, columns, depth = int(rng.integers(48, 150)), int(rng.integers(48, 150)), int(rng.integers(128, 300))
    rows = rows // 8 * 8 if turned[0] else rows
    columns = columns if turned[1] else columns // 8 * 8
    depth = depth if turned[0] and not turned[1] else depth // 8 * 8
    dtype = (f16, bf16)[int(rng.integers(2))]
    result = (None, dtype)[int(rng.integers(2))]
    batch = (2,) if rng.integers(4) == 0 else ()
    product = Product(rows, columns, depth, dtype, turned=turned, batch=batch, has_bias=bool(rng.integers(2)), result=result)
    return product, lambda knob: knob.options[int(rng.integers(len(knob.options)))]


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60))])
def test_random_products_in_both_texts(seed: int) -> None:
    check(*drawn(seed))


def of_halves(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(-2, 3, shape).astype(np.float16)


def run_text(func: PrimFunc, arrays: list[np.ndarray]) -> tuple[str | None, np.ndarray]:
    """The rule that schedules a function, and what its PTX gives."""
    scheduled = apply_rules(func, HOPPER)
    found, *_ = run_launches(held := finish(scheduled.func, FEATURES), emit_ptx(held, "product", "sm_90a"), "product", arrays)
    return scheduled.rule, found


def test_batches_may_lie_between_rows_and_terms() -> None:
    x, w = placeholder((70, 3, 128), f16, "X"), placeholder((64, 3, 128), f16, "W")
    out = reduce("sum", (3, 70, 64), (128,), lambda h, i, j, k: cast(x[i, h, k], f32) * cast(w[j, h, k], f32), "mm")
    arrays = [of_halves(70, 3, 128), of_halves(64, 3, 128)]

    rule, found = run_text(create_prim_func("product", [x, w], [out], ()), arrays)

    assert rule == RULE
    np.testing.assert_array_equal(found, np.einsum("ihk,jhk->hij", *(each.astype(np.float32) for each in arrays)))


@pytest.mark.parametrize(("rows", "expected"), [(128, RULE), (70, "matrix contraction")])
def test_boxes_do_not_bring_rows_behind_a_slice_in_place_of_zeros(rows: int, expected: str) -> None:
    x, w = placeholder((200, 128), f16, "X"), placeholder((128, 64), f16, "W")
    out = reduce("sum", (rows, 64), (128,), lambda i, j, k: cast(x[i + 13, k], f32) * cast(w[k, j], f32), "mm")
    arrays = [of_halves(200, 128), of_halves(128, 64)]

    rule, found = run_text(create_prim_func("product", [x, w], [out], ()), arrays)

    assert rule == expected
    np.testing.assert_array_equal(found, arrays[0][13 : 13 + rows].astype(np.float32) @ arrays[1].astype(np.float32))


def test_what_is_no_number_stays_in_its_row_and_column() -> None:
    x, w = of_halves(70, 136), of_halves(136, 72)
    x[3, 5], w[7, 9] = np.nan, np.inf
    with np.errstate(all="ignore"):
        expected = x.astype(np.float32) @ w.astype(np.float32)

    rule, found = run_text(Product(70, 72, 136, f16).func, [x, w])

    assert rule == RULE
    np.testing.assert_array_equal(found, expected)


def test_parts_of_long_sums_are_made_by_warpgroups_too() -> None:
    product = Product(64, 64, 2048, f16, turned=(False, True), has_bias=True, result=f16)
    scheduled = apply_rules(product.func, HOPPER)
    held = finish(scheduled.func, FEATURES)

    found, *_ = run_launches(held, emit_ptx(held, "product", "sm_90a"), "product", product.arrays)

    assert scheduled.rule == "warpgroup contraction in parts"
    np.testing.assert_array_equal(found.astype(np.float64), product.expected)


# -- where warpgroups do not fit

OTHERS = {
    "rows that do not lie at multiples of 16 bytes": Product(128, 128, 132, f16),
    "integers": Product(128, 128, 128, i8),
    "few rows": Product(16, 128, 128, f16),
    "a short sum": Product(128, 128, 64, f16),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_are_left_to_single_warps(name: str) -> None:
    assert apply_rules(OTHERS[name].func, HOPPER).rule == "matrix contraction"


def test_devices_without_them_have_products_of_single_warps() -> None:
    plain = Target.parse("cuda:sm_90@x86-64-v3:cores=1")

    assert apply_rules(PRODUCTS["plain"][0].func, plain).rule == "matrix contraction"


# -- machine code


def large(dtype: DType, turned: tuple[bool, bool]) -> Product:
    product = Product(64, 64, 128, dtype, turned=turned)  # of the arrays only the types matter
    text = print_ir(Product(8, 8, 8, dtype, turned=turned, has_bias=True, result=dtype).func).replace("8", "4096")
    product.func = parse_prim_func(text.replace("f4096", "f8").replace("i4096", "i8"))
    return product


@pytest.mark.covering
@pytest.mark.parametrize("language", ["ptx", "cuda"])
@pytest.mark.parametrize("turned", [(False, False), (False, True)], ids=str)
def test_machine_code_multiplies_by_warpgroups_what_boxes_bring(language: str, turned: tuple[bool, bool], tmp_path: Path) -> None:
    disassembler()  # and the compilers, or the test is skipped
    held = finished(large(f16, turned))
    text = emit_ptx(held, "product", "sm_90a") if language == "ptx" else emit_launches(held, "product", CUDA)

    code = assembled(text, language, "sm_90a", tmp_path)
    counts = code.kinds()

    assert counts["HGMMA"] >= 4 and counts["UTMALDG"] >= 2
    assert not counts["HMMA"] and not counts["LDGSTS"] and not counts["LDSM"]
    assert not counts["LDL"] and not counts["STL"] and not counts["LDS"]
    code.assert_clean()
