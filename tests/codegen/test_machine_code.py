"""The main loop of a large product on sm_80, as the device runs it: multiplying, fed by wide copies and loads without conflicts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

import numpy as np
import pytest

from benchmarks.device_text import check_model
from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.codegen.launches import launches_of
from tc.codegen.ptx.emitter import emit_ptx
from tc.ir.arith import evaluate
from tc.ir.dtype import f16, f32
from tc.ir.expr import Const, Load, Var, cast
from tc.ir.loop import AsyncStore, For, PrimFunc, WarpCall, walk_statements
from tc.ir.module import IRModule
from tc.ir.shared_memory import least_wavefronts_of, wavefronts_of
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target, occupancy
from tc.te import compute, create_prim_func, placeholder, reduce
from tests.codegen.machine_code import assembled, disassembler, share

TARGET = Target.parse("cuda:sm_80@x86-64-v3:cores=1")
FLOPS = 2 * 16 * 8 * 16
"""Of one HMMA of f16 with sums in f32."""


def product(size: int) -> PrimFunc:
    """A square product of f16, summed in f32, scheduled by default."""
    x, w = placeholder((size, size), f16, "x"), placeholder((size, size), f16, "w")
    sums = reduce("sum", (size, size), (size,), lambda i, j, k: cast(x[i, k], f32) * cast(w[k, j], f32), "sums")
    out = compute((size, size), lambda i, j: cast(sums[i, j], f16), "out")
    scheduled = apply_rules(create_prim_func("product", [x, w], [out], ()), TARGET)
    assert scheduled.rule == "matrix contraction" and TARGET.device is not None
    return finish_loops(scheduled.func, calls=DEVICE_FINISH_CALLS, features=TARGET.device.features)


@pytest.fixture(scope="module")
def large() -> PrimFunc:
    return product(4096)


@pytest.mark.parametrize("language", ["cuda", "ptx"])
def test_a_large_product_multiplies_in_its_main_loop(large: PrimFunc, language: str, tmp_path: Path, record_property) -> None:
    (launch,) = launches_of(large)
    device, threads = TARGET.device, prod(launch.threads)
    assert device is not None
    text = emit_launches(large, "kernel", CUDA) if language == "cuda" else emit_ptx(large, "kernel", device.arch)

    code = assembled(text, language, device.arch, tmp_path)

    mix = code.main_loop("HMMA")
    assert share(mix, "HMMA") >= 0.55, mix
    assert {name for name in mix if name.startswith("LDS")} == {"LDSM.16.M88.4", "LDSM.16.MT88.4"}
    assert {name for name in mix if name.startswith("LDG") and name != "LDGDEPBAR"} == {"LDGSTS.E.BYPASS.128"}
    assert not any(text.split()[0].startswith(("LDL", "STL")) for text in code.instructions)
    (function,) = code.functions(device, threads)
    assert function.spill_bytes == function.stack_bytes == 0
    products = sum(count for name, count in mix.items() if name.startswith("HMMA"))
    fetched = 16 * threads * mix["LDGSTS.E.BYPASS.128"] / (FLOPS * threads // 32 * products)
    blocks = occupancy(threads, function.registers, launch.shared_bytes, device)
    record_property("figures", f"{share(mix, 'HMMA'):.3f} HMMA, {fetched:.5f} bytes a FLOP, {blocks} blocks of {threads} threads")
    assert fetched < 1 / 80 and blocks * threads >= 256


def offset_of(load: Load, env: dict[Var, int]) -> int:
    """Of an element in its buffer, in bytes."""
    offset = 0
    for index, dim in zip(load.indices, load.buffer.shape, strict=True):
        assert isinstance(dim, Const)
        offset = offset * int(dim.value) + int(evaluate(index, env))
    return offset * load.buffer.dtype.size_bytes


def rows_in_shared_memory(func: PrimFunc) -> Iterator[Load]:
    """What each lane names of shared memory: rows that it loads fragments from, and where it copies 16 bytes to."""
    for node in walk_statements(func.body):
        if isinstance(node, WarpCall) and node.name.startswith("ldmatrix"):
            yield node.operands[0]
        if isinstance(node, AsyncStore):
            yield Load(node.buffer, node.indices)


def test_no_bank_is_asked_twice_wherever_the_loops_are(large: PrimFunc) -> None:
    loops = {node.var: node for node in walk_statements(large.body) if isinstance(node, For)}
    (lane,) = [var for var, loop in loops.items() if loop.thread == "thread.x"]
    rng, accesses = np.random.default_rng(0), list(rows_in_shared_memory(large))
    assert len(accesses) >= 6

    for access in accesses:
        for _ in range(10):
            env = {var: int(rng.integers(max(int(evaluate(loop.extent, {})), 1))) for var, loop in loops.items()}
            env |= {var: 0 for var, loop in loops.items() if loop.kind.name == "VECTORIZED"}
            addresses = [offset_of(access, env | {lane: number}) for number in range(32)]
            assert wavefronts_of(addresses, 16) == least_wavefronts_of(addresses, 16) == 4


CONVOLUTIONS = {
    "images": ((1, 64, 56, 56), (64, 64, 3, 3)),
    "series": ((4, 40, 300), (64, 40, 5)),
    "few channels": ((1, 3, 64, 64), (32, 3, 7, 7)),
    "few threads": ((1, 3, 226, 226), (32, 3, 3, 3)),
}


@pytest.mark.covering
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("shapes", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions_have_their_sums_in_registers(shapes: tuple[tuple[int, ...], ...], arch: str, tmp_path: Path) -> None:
    disassembler()  # and the compilers, or the test is skipped
    builder = GraphBuilder()
    image, weights = (builder.param(name, tensor_type(shape, f32)) for name, shape in zip("xw", shapes, strict=True))
    module = IRModule((builder.function("main", [builder.call("conv", image, weights, pads=(1, 1) * (len(shapes[0]) - 2))]),))

    with ThreadPoolExecutor(1) as pool:
        found = [check_model("conv", module, Target.parse(f"cuda:{arch}"), language, tmp_path, pool) for language in ("cuda", "ptx")]

    for (result,) in found:
        assert not result.problem
        assert all(each.spill_bytes == each.stack_bytes == 0 and each.registers <= 224 for each in result.functions), result
