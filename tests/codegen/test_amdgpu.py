"""Launches as AMDGPU assembly: assembled by LLVM, what each takes read from its metadata. Nothing here runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from llvmlite import binding as llvm

import tc
from tc.codegen.amdgpu.backend import write_amdgpu
from tc.codegen.amdgpu.resources import WaveResources, wave_resources
from tc.codegen.llvm.jit import foreign_assembly
from tc.codegen.ptx.dialect import AMDGPU
from tc.codegen.ptx.emitter import emit_launches_ir
from tc.compiler import run_stages
from tc.demo import MODEL_PATH
from tc.errors import CodegenError, UnsupportedError
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_module, parse_prim_func
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.target import Target
from tests.codegen.opencl.kernels import finished
from tests.ops.kernels import make_prim_func
from tests.ops.test_registry import WITH_LOOPS, samples_of

ARCHS = ("gfx90a", "gfx942")
MATMUL = "(x: {0}[256, 256], y: {0}[256, 256]):\n    r: {0}[256, 256] = matmul(x, y)"
SOFTMAX = "(x: f32[64, 1024]):\n    r: f32[64, 1024] = softmax(x, axis=-1)"
ADDED = """
@loops
def f(A: f32[n, 4], B: f32[n, 4], n: i64):
    outputs(1)
    promise(n, 0, None, 1)
    for b in bound(n, 'block.x'):
        for t in bound(4, 'thread.x'):
            B[b, t] = A[b, t] * 3.0 + A[b, 3 - t] * A[b, t]
"""


def target_of(arch: str) -> Target:
    return Target.parse(f"rocm:{arch}@x86-64-v3")


def kernel_of(graph: str, arch: str) -> PrimFunc:
    """The only kernel of a graph, finished for an architecture."""
    (kernel,) = run_stages(parse_module(f"@graph\ndef main{graph}\n    return r\n"), target_of(arch)).kernels.values()
    return kernel.final


def assembled(func: PrimFunc, arch: str) -> list[WaveResources]:
    """What the functions of a kernel take. The code that the assembly is the text of becomes an object as well."""
    ir = emit_launches_ir(func, "f", dialect=AMDGPU)
    found = list(wave_resources(foreign_assembly(ir, AMDGPU.triple, arch, "")))
    machine = llvm.Target.from_triple(AMDGPU.triple).create_target_machine(cpu=arch)
    head = f'target datalayout = "{machine.target_data}"\ntarget triple = "{AMDGPU.triple}"\n'
    module = llvm.parse_assembly(head + ir, llvm.create_context())

    assert machine.emit_object(module).startswith(b"\x7fELF")
    assert [each.name for each in found] == [f"f_{k}" for k in range(len(found))] and found
    return found


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", WITH_LOOPS[::16])
def test_some_operators_are_assembled(name: str, arch: str) -> None:
    arrays, attrs = samples_of(OPS[name])[0]

    assembled(finished(simplify_loops(make_prim_func(OPS[name], arrays, attrs)), target_of(arch)), arch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", WITH_LOOPS)
def test_every_operator_is_assembled_without_a_spill(name: str, arch: str) -> None:
    arrays, attrs = samples_of(OPS[name])[0]

    found = assembled(finished(simplify_loops(make_prim_func(OPS[name], arrays, attrs)), target_of(arch)), arch)

    assert [each for each in found if each.spilled] == []


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_matmul_keeps_its_sums_in_registers(dtype: str, arch: str) -> None:
    (found,) = assembled(kernel_of(MATMUL.format(dtype), arch), arch)

    assert (found.spilled, found.scratch_bytes) == (0, 0)
    assert found.shared_bytes > 0 and found.vector <= 128
    assert found.blocks(target_of(arch).device) >= 2


def test_memory_is_reached_by_instructions_of_its_own_space_and_blocks_of_several_waves_wait() -> None:
    text = write_amdgpu(kernel_of(SOFTMAX, "gfx942"), "f", target_of("gfx942"))

    (found,) = wave_resources(text)
    assert found.threads > 64 and re.search(r"^\ts_barrier$", text, re.MULTILINE)
    assert "global_load_dword" in text and "ds_read" in text
    assert re.search(r"^\tflat_", text, re.MULTILINE) is None


def test_products_and_sums_are_not_contracted() -> None:
    text = write_amdgpu(parse_prim_func(ADDED.replace("* 3.0 +", "* 3.0 -")), "f", target_of("gfx90a"))

    assert "v_mul_f32" in text and "v_fma" not in text


def test_a_file_says_what_each_function_takes_and_which_blocks_it_has() -> None:
    text = write_amdgpu(parse_prim_func(ADDED), "f", target_of("gfx90a"))

    first = text.splitlines()[0]
    assert re.fullmatch(
        r"; f_0: blocks of 4 threads, \d+ vector and \d+ scalar registers, none spilled, 0 bytes of shared memory, "
        r"16 blocks at a time on a processor",
        first,
    )
    assert re.search(r"\.reqd_workgroup_size:\n +- 4\n +- 1\n +- 1\n", text)
    assert '.amdgcn_target "amdgcn-amd-amdhsa--gfx90a"' in text


def test_spills_and_scratch_are_told() -> None:
    text = "amdhsa.kernels:\n  - .agpr_count:     0\n    .args:\n      - .name:           p0\n"
    facts = {"group_segment_fixed_size": 64, "max_flat_workgroup_size": 256, "private_segment_fixed_size": 12, "sgpr_count": 30,
             "sgpr_spill_count": 1, "symbol": "f_0.kd", "vgpr_count": 256, "vgpr_spill_count": 2}  # fmt: skip
    text += "".join(f"    .{name}: {value}\n" for name, value in facts.items()) + "amdhsa.target:   t\n"

    (found,) = wave_resources(text)

    assert found == WaveResources("f_0", 256, 30, 3, 12, 64, 256)
    assert str(found).endswith("3 of them spilled, 64 bytes of shared memory, 12 bytes of scratch for a thread")


def test_instructions_of_nvidias_warps_are_refused_in_words() -> None:
    func = parse_module("@graph\ndef main(x: f16[64, 64], y: f16[64, 64]):\n    r: f16[64, 64] = matmul(x, y)\n    return r\n")
    (kernel,) = run_stages(func, Target.parse("cuda:sm_80@x86-64-v3")).kernels.values()

    with pytest.raises(CodegenError, match="is an instruction of CUDA devices, and not of AMDGPU"):
        emit_launches_ir(kernel.final, "f", dialect=AMDGPU)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_model_is_written_and_not_loaded(arch: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"for rocm:{arch} are written as text, .* --target rocm:{arch} --emit amdgpu -o FOLDER"):
        tc.compile(str(MODEL_PATH), target=f"rocm:{arch}")

    files = tc.lower(str(MODEL_PATH), "amdgpu", f"rocm:{arch}").files()

    assert {"softmax.s", "plan.txt", "build.sh"} < set(files)
    assert f"clang --target=amdgcn-amd-amdhsa -mcpu={arch}" in str(files["build.sh"])
