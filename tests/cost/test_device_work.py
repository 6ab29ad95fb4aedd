"""What launches ask of a device, counted, against numbers worked out by hand; and what is predicted and refused by these counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tc.autotune.tasks import extract_tasks
from tc.codegen.kernels import finish_scheduled
from tc.cost.device_estimate import estimate_launch, exceeded
from tc.cost.device_features import DEVICE_FEATURE_NAMES, extract_device
from tc.cost.device_work import DeviceWork, device_work
from tc.cost.lifetimes import most_at_once
from tc.ir.expr import Buffer
from tc.ir.parser import parse_module, parse_prim_func
from tc.target import Target
from tc.target.device import most_registers

A100 = Target.parse("cuda:sm_80@x86-64-v3")


PRODUCT = """
@graph
def main(x: f16[256, 512], w: f16[512, 128]):
    y: f16[256, 128] = matmul(x, w)
    return y
"""


def work_of(text: str, **dims: int) -> DeviceWork:
    """The one launch of a program that is in the form that rules make."""
    (found,) = device_work(finish_scheduled(parse_prim_func(text), A100), dims)
    return found


def copies(source: str, target: str = "b * 128 + t", size: int = 4096) -> str:
    return f"""
@loops
def copies(A: f32[{size}], B: f32[4096]):
    outputs(1)
    for b in bound(32, 'block.x'):
        for t in bound(128, 'thread.x'):
            B[{target}] = A[{source}] + 1.0
"""


@pytest.mark.parametrize(
    ("source", "sectors"),
    [("b * 128 + t", 16), ("b * 128 + t // 2", 8), ("b", 4), ("t * 32 + b", 128), ("t * 2 + b * 128", 32), ("b * 128 + (127 - t)", 16)],
)
def test_sectors_follow_from_the_addresses_of_each_warp(source: str, sectors: int) -> None:
    """Of the loads of a block of four warps; its stores take 16 more."""
    found = work_of(copies(source, size=8192))

    assert (found.blocks, found.threads, found.requests) == (32, 128, 8)
    assert found.sectors == sectors + 16 and found.asked_bytes == 2 * 128 * 4


def test_a_symbolic_number_of_blocks_is_the_one_that_it_is_measured_with() -> None:
    text = copies("b * 128 + t").replace("bound(32, ", "bound(n // 128, ").replace("4096]", "n]").replace("f32[n])", "f32[n], n: i64)")

    assert work_of(text, n=1280).blocks == 10


@pytest.mark.parametrize(("index", "wavefronts"), [("t", 4), ("t * 2", 8), ("t * 32", 128), ("t * 33", 4), ("t // 32", 4)])
def test_wavefronts_of_shared_memory_are_those_of_its_banks(index: str, wavefronts: int) -> None:
    found = work_of(f"""
@loops
def turned(A: f32[4096], B: f32[4096]):
    outputs(1)
    for b in bound(32, 'block.x'):
        with alloc(f32[4224], scope='shared') as S:
            for t in bound(128, 'thread.x'):
                S[t] = A[b * 128 + t]
            for t in bound(128, 'thread.x'):
                B[b * 128 + t] = S[{index}]
""")

    assert found.wavefronts == wavefronts + 4 and found.barriers == (index != "t")
    assert found.shared_bytes >= 512


def test_threads_that_a_guard_keeps_away_ask_for_nothing() -> None:
    found = work_of("""
@loops
def some(A: f32[4096], B: f32[4096]):
    outputs(1)
    for b in bound(32, 'block.x'):
        for t in bound(128, 'thread.x'):
            if t < 32:
                B[b * 128 + t] = A[b * 128 + t]
""")

    assert found.sectors == 8 and found.idle == 0.75


def test_what_a_loop_does_not_change_is_read_once() -> None:
    found = work_of("""
@loops
def sums(A: f32[128], C: f32[64, 128], B: f32[128]):
    outputs(1)
    for t in bound(128, 'thread.x'):
        with alloc(f32[1], scope='local') as total:
            total[0] = 0.0
            for k in range(64):
                total[0] = total[0] + A[t] * C[k, t]
            B[t] = total[0]
""")

    assert found.sectors == 16 + 64 * 16 + 16
    assert found.multiply_adds == 64 * 128


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_products_of_matrix_instructions_are_all_of_the_product(dtype: str) -> None:
    (task,) = extract_tasks(parse_module(PRODUCT.replace("f16", dtype)), A100).tasks
    default = task.space().default()

    works = device_work(default.final, {})

    assert default.rule.startswith("matrix contraction")
    assert sum(work.blocks * sum(work.matrix_flops.values()) for work in works) == 2 * 256 * 128 * 512
    assert {kind for work in works for kind in work.matrix_flops} == {dtype}


def test_boxes_that_are_copied_and_products_of_warpgroups_are_counted() -> None:
    target = Target.parse("cuda:sm_90a@x86-64-v3")
    (task,) = extract_tasks(parse_module(PRODUCT.replace("256", "1024").replace("128", "1024").replace("512", "256")), target).tasks
    default = task.space().default()

    (work,) = device_work(default.final, {})

    rows, columns = dict(default.point)["s0/tile"]
    assert default.rule == "warpgroup contraction"
    assert work.blocks * work.matrix_flops["f16"] == 2 * 1024 * 1024 * 256
    copied = sum(amount for buffer, (amount, _) in work.traffic.items() if buffer.name != "b2")
    assert copied == 2 * 256 * (rows + columns)


# -- predictions


def some_work(**facts: object) -> DeviceWork:
    return replace(DeviceWork(blocks=1000.0, threads=256, registers=64, multiply_adds=1e6, sectors=100.0, asked_bytes=3200.0), **facts)


def test_what_is_read_for_the_last_time_makes_room_for_what_is_written_next() -> None:
    text = """
@loops
def f(A: f32[64, 4096], B: f32[4096]):
    outputs(1)
    for t in bound(128, 'thread.x'):
        with alloc(f32[1], scope='local') as total:
            with alloc(f32[64], scope='local') as x:
                with alloc(f32[64], scope='local') as y:
                    with alloc(f32[64], scope='local') as z:
                        total[0] = 0.0
                        for k in range(32):
                            for j in unrolled(64):
                                x[j] = A[j, k * 128 + t]
                            for j in unrolled(64):
                                y[j] = x[j] * 2.0
                            for j in unrolled(64):
                                z[j] = y[j] + 1.0
                            for j in unrolled(64):
                                total[0] = total[0] + z[j]
                        B[t] = total[0]
"""
    func = parse_prim_func(text)
    carried = parse_prim_func(text.replace("y[j] = x[j] * 2.0", "y[j] = y[j] + x[j]"))
    sizes = {"x": 64.0, "y": 64.0, "z": 64.0, "total": 1.0}

    def size_of(buffer: Buffer) -> float:
        return sizes[buffer.name]

    assert most_at_once(func.body, size_of) == 129  # two of the three, and the total, which all iterations add to
    assert most_at_once(carried.body, size_of) == 193 - 64  # y is there all the time, x or z beside it


def test_more_of_anything_is_never_predicted_to_be_faster() -> None:
    device = A100.device
    assert device is not None
    usual = estimate_launch(some_work(), device).seconds

    more = {"multiply_adds": 3e6, "blocks": 3000.0, "wavefronts": 1e6, "rounds": 1e4, "barriers": 1e5, "other": 1e8, "times": 2.0}
    for name, value in more.items():
        assert estimate_launch(some_work(**{name: value}), device).seconds > usual


def test_blocks_beyond_a_whole_number_of_waves_take_another_wave() -> None:
    device = A100.device
    assert device is not None
    per_wave = estimate_launch(some_work(), device).resident * device.processors

    counts = float(per_wave), float(per_wave + 1)
    full, more = (estimate_launch(some_work(blocks=count, multiply_adds=0.0, rounds=1e4), device) for count in counts)

    assert (full.waves, more.bound) == (1.0, "waiting")
    assert more.parts[-1] == pytest.approx(2 * full.parts[-1])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"threads": 2048}, "a block has 2048 threads, sm_80 takes 1024"),
        ({"shared_bytes": 200 << 10}, "a block takes 204800 bytes of shared memory, sm_80 has 166912"),
        ({"registers": 400}, "a thread takes about 400 registers, sm_80 has 255"),
        ({"threads": 384, "registers": 224}, "a block of 384 threads with about 224 registers each is more than sm_80 holds"),
        ({"threads": 1024, "registers": 128}, "a block of 1024 threads with about 128 registers each is more than sm_80 holds"),
    ],
)
def test_what_a_device_cannot_hold_is_refused_with_the_limit(facts: dict[str, int], words: str) -> None:
    device = A100.device
    assert device is not None

    assert exceeded(some_work(**facts), device) == words
    assert exceeded(some_work(), device) is None
    assert math.isinf(estimate_launch(some_work(**facts), device).seconds) or "registers" in words


def test_registers_are_shared_by_the_threads_of_a_block() -> None:
    device = A100.device
    assert device is not None

    assert [most_registers(count, device) for count in (32, 128, 256, 384, 1024)] == [255, 255, 255, 168, 64]
    assert exceeded(some_work(threads=384, registers=200), device) is None  # of which compilers keep some in memory


def test_rows_of_features_are_finite_and_have_a_name_for_each_column() -> None:
    device = A100.device
    assert device is not None
    row = extract_device(finish_scheduled(parse_prim_func(copies("t * 32 + b")), A100), device, {})

    assert row.dtype == np.float32 and row.shape == (len(DEVICE_FEATURE_NAMES),) == (len(set(DEVICE_FEATURE_NAMES)),)
    assert np.isfinite(row).all()
    named = dict(zip(DEVICE_FEATURE_NAMES, row.tolist(), strict=True))
    assert named["moved / asked"] == pytest.approx((128 + 16) * 32 / 1024)
