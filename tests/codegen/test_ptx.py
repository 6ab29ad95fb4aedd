"""PTX of launches: assembled by ptxas, and run in an interpreter against the loops' own meaning."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ptx.launch import run

from tc.codegen.c.dialect import CUDA
from tc.codegen.c.launch import emit_launches
from tc.codegen.launches import launches_of
from tc.codegen.ptx.emitter import emit_launches_ir, emit_ptx
from tc.compiler import run_stages
from tc.ir.arith import evaluate
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module, parse_prim_func
from tc.passes.loop.mark_numerics import mark_numerics
from tc.stages import interpret
from tc.target import Target

ARCHS = ("sm_75", "sm_80", "sm_90a")
ROWS = """
@loops
def f(A: f32[n, 64], B: f32[n, 64], n: i64):
    outputs(1)
    promise(n, 0, None, 1)
    for b in bound(n, 'block.x'):
        with alloc(f32[64], scope='shared') as S:
            for t in bound(16, 'thread.x'):
                for v in vectorized(4):
                    S[t * 4 + v] = A[b, t * 4 + v]
                barrier()
                for v in vectorized(4):
                    B[b, t * 4 + v] = S[60 - t * 4 + v] * 2.0 + A[b, t * 4 + v]
"""
MODELS = {
    "elementwise": "(x: f32[n, 40], y: f32[40]):\n    a: f32[n, 40] = mul(x, y)\n    r: f32[n, 40] = exp(a)",
    "angles": "(x: f32[50]):\n    r: f32[50] = sin(x)",
    "rows": "(x: f32[n, 40]):\n    r: f32[n] = sum(x, axes=(1, ), keepdims=False)",
    "softmax": "(x: f32[6, 33]):\n    r: f32[6, 33] = softmax(x, axis=-1)",
    "products": "(x: f32[20, 24], y: f32[24, 36]):\n    r: f32[20, 36] = matmul(x, y)",
    "halves": "(x: f16[20, 24], y: f16[24, 36]):\n    r: f16[20, 36] = matmul(x, y)",
    "fragments": "(x: f16[64, 64], y: f16[64, 64]):\n    r: f16[64, 64] = matmul(x, y)",
    "transposed": "(x: f32[n, 40]):\n    r: f32[40, n] = transpose(x, perm=(1, 0))",
    "bytes": "(x: i8[n, 40]):\n    r: i8[n, 40] = add(x, x)",
}
DTYPES = {"f32": np.float32, "f16": np.float16, "i8": np.int8}


def finished(name: str, arch: str = "sm_80") -> PrimFunc:
    """The only kernel of a graph, for a device."""
    module = parse_module(f"@graph\ndef main{MODELS[name]}\n    return r\n")
    (kernel,) = run_stages(module, Target.parse(f"cuda:{arch}@x86-64-v3")).kernels.values()
    return kernel.final


def assembled(text: str, arch: str, folder: Path) -> str:
    """What ptxas says of a text."""
    if shutil.which("ptxas") is None:
        pytest.skip("needs ptxas")
    (folder / "kernel.ptx").write_text(text)
    command = ["ptxas", f"-arch={arch}", "-v", "--warning-as-error", "-o", str(folder / "kernel.cubin"), str(folder / "kernel.ptx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + text
    return done.stderr


def interpreted(func: PrimFunc, symbol: str, arrays: list[np.ndarray], n: int, arch: str = "sm_80") -> list[np.ndarray]:
    """The outputs of a PrimFunc without loops on the host, its PTX interpreted."""
    env = dict.fromkeys(func.dims, n)
    results = [np.empty([int(evaluate(dim, env)) for dim in buffer.shape], buffer.dtype.numpy) for buffer in func.outputs]
    memory = dict(zip(func.buffers, [*arrays, *results], strict=True))
    text = emit_ptx(func, symbol, arch)
    for launch in launches_of(func):
        grid = tuple(int(evaluate(size, env)) for size in launch.grid)
        arguments = [*(memory[buffer] for buffer in launch.buffers), *(env[var] for var in launch.scalars)]
        if min(grid) > 0:
            run(text, f"{symbol}_{launch.index}", grid, launch.threads, arguments)
    return results


def drawn(name: str, n: int) -> dict[str, np.ndarray]:
    """Inputs for a model."""
    rng, found = np.random.default_rng(0), {}
    for word, dtype, sizes in re.findall(r"(\w): (\w+)\[([^\]]*)\]", MODELS[name].partition("):")[0]):
        shape = [n if size == "n" else int(size) for size in sizes.split(", ")]
        found[word] = (rng.standard_normal(shape) * 3).astype(DTYPES[dtype])
    return found


@pytest.mark.covering
@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("name", MODELS)
def test_a_kernel_computes_what_the_graph_means(name: str, n: int) -> None:
    inputs = drawn(name, n)
    module = parse_module(f"@graph\ndef main{MODELS[name]}\n    return r\n")

    found = interpreted(finished(name), "f", list(inputs.values()), n)[0]
    (expected,) = interpret(module, inputs).values()

    if expected.dtype.kind == "f":
        tolerance = 1e-2 if expected.dtype.itemsize == 2 else 1e-5
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_are_assembled_without_a_warning_or_a_spill(arch: str, tmp_path: Path) -> None:
    for name in MODELS:
        said = assembled(emit_ptx(finished(name, arch), "f", arch), arch, tmp_path)

        spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
        assert spills and set(spills) == {("0", "0")}, said


def test_aligned_vectors_are_one_access_and_barriers_are_kept() -> None:
    func = parse_prim_func(ROWS)
    text = emit_ptx(func, "f", "sm_80")
    x = np.random.default_rng(0).random((3, 64), np.float32)

    (found,) = interpreted(func, "f", [x], 3)

    assert "ld.global.nc.v4" in text and "st.global.v4" in text
    assert "ld.shared.v4" in text and "st.shared.v4" in text
    assert text.count("bar.sync") == 1 and ".reqntid 16, 1, 1" in text
    np.testing.assert_allclose(found, x.reshape(3, 16, 4)[:, ::-1].reshape(3, 64) * 2 + x, rtol=1e-6)


def test_products_of_halves_are_instructions_of_warps() -> None:
    text = emit_ptx(finished("fragments"), "f", "sm_80")

    assert "mma.sync.aligned.m16n8k16" in text and "ldmatrix.sync.aligned" in text
    assert ".local" not in text  # fragments are registers


def test_vectors_at_unknown_places_are_read_one_by_one() -> None:
    text = emit_ptx(parse_prim_func(ROWS.replace("A: f32[n, 64]", "A: f32[n, 65]")), "f", "sm_80")

    assert "ld.global.nc.v4" not in text and "ld.global.nc.v2" not in text
    assert "st.global.v4" in text


def test_nothing_is_contracted_unless_the_loops_say_so() -> None:
    func = parse_prim_func(ROWS)
    usual, strict = (emit_ptx(each, "f", "sm_80") for each in (func, mark_numerics(func, numerics="strict")))

    assert "fma.rn.f32" in usual and "fma" not in strict
    for text in (usual, strict):
        assert not re.search(r"\b(add|mul|sub)\.f(32|64)\b", text)  # without a rounding they may be


def test_what_is_written_and_read_behind_a_barrier_is_not_promised_to_be_alone() -> None:
    text = emit_launches_ir(parse_prim_func(ROWS), "f")

    assert "noalias readonly align 16 %p0" in text
    assert "ptr addrspace(1) align 16 %p1" in text


def test_cuda_c_promises_the_same() -> None:
    text = emit_launches(parse_prim_func(ROWS.replace("+ A[b, t * 4 + v]", "+ B[b, t * 4 + v]")), "f", CUDA)

    assert "const float *__restrict__ A" in text.replace("f32", "float")
    assert "__restrict__ B" not in text and "__restrict__ B" in emit_launches(parse_prim_func(ROWS), "f", CUDA)


def test_no_instruction_of_a_cpu_is_in_the_text() -> None:
    for name in MODELS:
        text = emit_launches_ir(finished(name), "f")

        assert "x86" not in text and not re.search(r" asm (sideeffect )?\"(?!mma|ldmatrix|shfl)", text), name
