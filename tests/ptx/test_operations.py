"""Every operation of the loop IR on every dtype: CUDA-C through nvcc's PTX, and our own PTX, run by the interpreter of PTX."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tc.codegen.c.dialect import CUDA
from tc.codegen.launches import launches_of
from tc.codegen.ptx.emitter import emit_ptx
from tc.ir.dtype import pack, tensor_memory, unpack
from tc.ir.loop import PrimFunc
from tests.codegen.c.devices import cuda_text
from tests.codegen.c.programs import COUNT, Program, assert_equal, casts, functions, on_device, operators, programs
from tests.ptx.launch import run
from tests.ptx.nvcc import ptx_of

LANES = 4
"""Elements a thread: numbers of 4 and of 2 bits share bytes, and those of a byte must be one thread's."""


def interpreted(program: Program, func: PrimFunc, text: str, name: str) -> np.ndarray:
    """The result of a program's only launch."""
    (launch,) = launches_of(func)
    (output,) = func.outputs
    memory = tensor_memory(output.dtype, (COUNT,))
    arrays = dict(zip(func.buffers, [*(pack(np.ascontiguousarray(a)) for a in program.arrays), memory], strict=True))
    grid = tuple(int(size.value) for size in launch.grid)  # type: ignore[attr-defined]
    run(text, name, grid, launch.threads, [arrays[buffer] for buffer in launch.buffers])
    return unpack(memory, output.dtype, (COUNT,))


def check_cuda(some: list[Program], arch: str) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc on this machine")
    funcs = [on_device(program) for program in some]
    text = ptx_of(cuda_text(funcs), arch, CUDA.options)
    for n, (program, func) in enumerate(zip(some, funcs, strict=True)):
        assert_equal(program, interpreted(program, func, text, f"k{n}_0"), program.expected())


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_some_operations_as_cuda(arch: str) -> None:
    first = 0 if arch == "sm_75" else 20
    check_cuda(programs(LANES)[first::40], arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_all_operations_as_cuda(arch: str) -> None:
    check_cuda(programs(LANES), arch)


def check_ptx(some: list[Program], arch: str) -> None:
    for program in some:
        func = on_device(program)
        assert_equal(program, interpreted(program, func, emit_ptx(func, "k", arch), "k_0"), program.expected())


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_some_operations_as_ptx(arch: str) -> None:
    first = 0 if arch == "sm_75" else 20
    check_ptx([*casts(LANES), *operators(LANES)][first::40], arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_all_operations_as_ptx(arch: str) -> None:
    check_ptx([*casts(LANES), *operators(LANES), *functions(LANES)], arch)


def test_f16_as_cuda_is_converted_by_instructions() -> None:
    some = [program for program in programs(LANES) if "f16" in program.name and "bf16" not in program.name][::5]

    check_cuda(some, "sm_80")

    text = cuda_text([on_device(program) for program in some])
    assert "cvt.rn.f16.f32" in text and "cvt.f32.f16" in text
