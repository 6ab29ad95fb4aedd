"""Asynchronous copies as CUDA-C and as PTX, run by the interpreter of PTX: it knows what is on its way."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.codegen.launches import launches_of
from tc.codegen.ptx.emitter import emit_ptx
from tc.compiler import run_stages
from tc.interp import run_prim_func
from tc.ir.arith import evaluate
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module, parse_prim_func
from tc.ir.printer import print_ir
from tc.passes.loop.distribute_threads import distribute_threads
from tc.passes.loop.pipeline_loops import pipeline_loops
from tc.passes.loop.simplify_loops import simplify_loops
from tc.target import Target
from tests.codegen.c.devices import OpenClPrograms, opencl_context
from tests.ptx.errors import KernelFault
from tests.ptx.launch import run
from tests.ptx.nvcc import ptx_of

ROWS = """
@loops
def f(A: {dtype}[n, {columns}], B: {dtype}[256], n: i64):
    outputs(1)
    promise(n, 0, None, 1)
    for b in bound(1, 'block.x'):
        with alloc({dtype}[256], scope='local') as C:
            for t in bound(64, 'thread.x'):
                for j in range(4):
                    C[t * 4 + j] = {zero}
            for k in range(n, pipeline=3):
                with alloc({dtype}[256], scope='shared') as S:
                    for t2 in bound(64, 'thread.x'):
                        for v in vectorized(4):
                            S[t2 * 4 + v] = {value}
                    for t3 in bound(64, 'thread.x'):
                        for j3 in range(4):
                            C[t3 * 4 + j3] = C[t3 * 4 + j3] + S[255 - t3 * 4 - j3]
            for t4 in bound(64, 'thread.x'):
                for j4 in range(4):
                    B[t4 * 4 + j4] = C[t4 * 4 + j4]
"""
WHOLE = "A[k, t2 * 4 + v]"
TAIL = "select(t2 * 4 + v < {columns}, A[k, t2 * 4 + v], {zero})"
CASES = {
    "16 bytes": ("f32", 256, WHOLE, 16),
    "8 bytes": ("f32", 258, WHOLE, 8),
    "4 bytes": ("f32", 259, WHOLE, 4),
    "zeros behind rows": ("f32", 252, TAIL, 16),
    "zeros behind rows of any length": ("f32", 203, TAIL, 4),
    "every other element": ("f32", 512, "A[k, t2 * 8 + v * 2]", 4),
    "rows from the end": ("f32", 256, "A[k, 255 - t2 * 4 - v]", 4),
    "halves": ("f16", 256, WHOLE, 8),
    "halves in pairs": ("f16", 258, WHOLE, 4),
    "halves by themselves": ("f16", 259, WHOLE, None),
    "bytes": ("i8", 256, WHOLE, 4),
    "bytes by themselves": ("i8", 257, WHOLE, None),
}
ZEROS = {"f32": "0.0", "f16": "f16(0.0)", "i8": "i8(0)"}
N = 5


def kernel(case: str) -> PrimFunc:
    dtype, columns, value, _ = CASES[case]
    zero = ZEROS[dtype]
    text = ROWS.format(dtype=dtype, columns=columns, zero=zero, value=value.format(columns=columns, zero=zero))
    return simplify_loops(distribute_threads(pipeline_loops(parse_prim_func(text))))


def texts(func: PrimFunc, arch: str = "sm_80") -> dict[str, str]:
    """The launch as nvcc and as LLVM write it."""
    return {"LLVM": emit_ptx(func, "f", arch), "nvcc": ptx_of(emit_launches(func, "f", CUDA), arch)}


def drawn(func: PrimFunc, n: int) -> np.ndarray:
    shape = tuple(int(evaluate(dim, {func.dims[0]: n})) for dim in func.inputs[0].shape)
    return (np.random.default_rng(n).standard_normal(shape) * 10).astype(func.inputs[0].dtype.numpy)


def interpreted(func: PrimFunc, text: str, array: np.ndarray) -> np.ndarray:
    (launch,) = launches_of(func)
    result = np.zeros(256, array.dtype)
    run(text, "f_0", (1, 1, 1), launch.threads, [array, result, len(array)])
    return result


@pytest.mark.parametrize("case", CASES)
def test_copies_are_as_wide_as_places_are_aligned(case: str) -> None:
    func = kernel(case)

    for name, text in texts(func).items():
        found = set(re.findall(r"cp\.async\.(?:ca|cg)\.shared\.global \[[^\]]*\], \[[^\]]*\], (\w+)", text))
        wanted = CASES[case][3]
        assert found == (set() if wanted is None else {f"{wanted}"}) or found == {hex(wanted or 0)}, (name, text)
        for n in (0, 1, N):
            array = drawn(func, n)
            np.testing.assert_array_equal(interpreted(func, text, array), run_prim_func(func, [array], [n])[0])


FAULTS = {
    "a dropped wait": ("await_copies(1)", "pass"),
    "a wait for one group less": ("await_copies(1)", "await_copies(2)"),
    "a dropped commit": ("commit_copies()\n                        for j3", "for j3"),
    "a dropped barrier": ("barrier()", "pass"),
    "a copy to the next stage": ("(k + 2) % 3", "(k + 1) % 3"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen_in_the_texts_too(fault: str) -> None:
    old, new = FAULTS[fault]
    whole = print_ir(kernel("16 bytes"))
    assert old in whole
    func = parse_prim_func(whole.replace(old, new, 1))
    array = drawn(func, N)

    for text in texts(func).values():
        with pytest.raises(KernelFault):
            interpreted(func, text, array)


def test_architectures_without_such_copies_store_at_once() -> None:
    func = kernel("zeros behind rows")
    array = drawn(func, N)

    for text in texts(func, "sm_75").values():
        assert "cp.async" not in text
        np.testing.assert_array_equal(interpreted(func, text, array), run_prim_func(func, [array], [N])[0])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_texts_have_one_barrier_behind_each_wait_of_a_loop(arch: str) -> None:
    for text in texts(kernel("16 bytes"), arch).values():
        waits = [int(n) for n in re.findall(r"cp\.async\.wait_group\s+(\d+)", text)]
        assert set(waits) == {0, 1} and text.count("cp.async.commit_group") >= 2
        assert waits.count(1) == len(re.findall(r"bar(?:rier)?\.(?:cta\.)?sync", text))  # nvcc unrolls the loop


def test_devices_of_opencl_store_at_once() -> None:
    func = kernel("zeros behind rows")
    array = drawn(func, N)

    (found,) = OpenClPrograms([func], *opencl_context()).run(func, [array], [N])

    np.testing.assert_array_equal(found, run_prim_func(func, [array], [N])[0])


def product(k: str) -> PrimFunc:
    """The kernel of a product by the rules for a device that copies asynchronously."""
    text = f"@graph\ndef main(x: f32[40, {k}], y: f32[{k}, 36]):\n    r: f32[40, 36] = matmul(x, y)\n    return r\n"
    (made,) = run_stages(parse_module(text), Target.parse("cuda:sm_80@x86-64-v3")).kernels.values()
    return made.final


@pytest.mark.parametrize("k", [96, "n"])
def test_products_copy_the_next_stages_while_one_is_multiplied(k: int | str) -> None:
    func, size = product(str(k)), 70 if k == "n" else k
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((40, size), (size, 36))]
    (launch,) = launches_of(func)

    for name, text in texts(func).items():
        result = np.zeros((40, 36), np.float32)
        grid = tuple(int(evaluate(extent, dict.fromkeys(func.dims, size))) for extent in launch.grid)
        run(text, "f_0", grid, launch.threads, [*arrays, result, *([size] if k == "n" else [])])
        assert "cp.async.cg.shared.global" in text and text.count("cp.async.wait_group") >= 2, name
        np.testing.assert_allclose(result, arrays[0].astype(np.float64) @ arrays[1], rtol=1e-5, atol=1e-5)
