"""What CUDA binaries say of their functions, against what ptxas says when it makes them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tc.codegen.cuda.resources import FunctionResources, resources_of

TEXT = """
extern "C" __global__ void plain(float *a) { a[threadIdx.x] *= 2.0f; }
extern "C" __global__ __launch_bounds__(64) void shared(float *a) {
    __shared__ float s[300];
    s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    a[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void stacked(float *a, int n) {
    float own[50];
    #pragma unroll 1
    for (int i = 0; i < 50; ++i) own[a[i] > 0.0f ? i : n] = a[i * n];
    a[0] = own[n];
}
"""
_SAID = re.compile(r"entry function '(\w+)'.*?(\d+) bytes stack frame.*?Used (\d+) registers([^\n]*)", re.DOTALL)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_registers_stack_and_shared_memory_are_those_that_ptxas_says(tmp_path: Path) -> None:
    Path(tmp_path, "k.cu").write_text(TEXT)
    command = ["nvcc", "-cubin", "-arch=sm_80", "-Xptxas", "-v", "-o", str(tmp_path / "k.cubin"), str(tmp_path / "k.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    found = resources_of((tmp_path / "k.cubin").read_bytes())

    said = {}
    for name, stack, registers, rest in _SAID.findall(done.stdout + done.stderr):
        shared = re.search(r"(\d+) bytes smem", rest)
        said[name] = FunctionResources(int(registers), int(stack), int(shared[1]) if shared else 0)
    assert found == said and set(said) == {"plain", "shared", "stacked"}
    assert said["shared"].shared_bytes == 1200 and said["stacked"].stack_bytes >= 200


def test_other_files_have_no_functions() -> None:
    assert resources_of(b"// PTX") == resources_of(b"") == {}
