"""OpenCL-C, run on the CPU, and CUDA-C, compiled: every operation of the IR on every dtype."""

from __future__ import annotations

import pytest

from tests.codegen.c.devices import OpenClPrograms, compile_cuda, cuda_text, needs_nvcc, opencl_context
from tests.codegen.c.programs import assert_equal, on_device, programs

SOME = 9
"""Of so many operations one is enough for every run."""


@pytest.mark.parametrize(("lanes", "every"), [(4, SOME), *(pytest.param(lanes, 1, marks=pytest.mark.slow) for lanes in (1, 4))])
def test_operations_have_the_meaning_of_the_ir_in_opencl(lanes, every):
    found = programs(lanes)[::every]
    funcs = [on_device(program) for program in found]

    compiled = OpenClPrograms(funcs, *opencl_context())

    for program, func in zip(found, funcs, strict=True):
        (actual,) = compiled.run(func, program.arrays)
        assert_equal(program, actual, program.expected())


@needs_nvcc
@pytest.mark.parametrize(
    ("arch", "lanes", "every"),
    [("sm_75", 4, SOME), *(pytest.param(arch, lanes, 1, marks=pytest.mark.slow) for arch in ("sm_80", "sm_90a") for lanes in (1, 4))],
)
def test_operations_are_cuda_without_warnings(arch, lanes, every, tmp_path):
    compile_cuda(cuda_text([on_device(program) for program in programs(lanes)[::every]]), tmp_path, arch)
