"""Run PrimFuncs through C: many in one file, one call of the compiler, one library."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tc.codegen.c.dialect import C
from tc.codegen.c.host import CUnit
from tc.ir.arith import evaluate
from tc.ir.dtype import pack, tensor_memory, unpack
from tc.ir.loop import PrimFunc
from tc.target import native_target

COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler is here")

PARALLEL_FOR = """
void tc_parallel_for(void (*body)(void *, i64, i64, i64), void *context, i64 count, i64 grain, i64 max_threads) {
    i64 first = 0, thread = 0;
    while (first < count) { /* ranges of 1, 2, 3, ... iterations, the thread with the highest number first */
        const i64 size = thread + 1 < count - first ? thread + 1 : count - first;
        body(context, first, first + size, max_threads - 1 - thread % max_threads);
        first += size;
        thread++;
    }
    (void)grain;
}
"""

WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror")
VARIANTS = {
    "vectors": ("-std=gnu11", "-O1", "-march=native"),
    "scalar": ("-std=c11", "-O1", "-DTC_SCALAR", "-Wpedantic", "-march=native"),
}


class CLibrary:
    """Compiled kernels, by their symbols."""

    def __init__(self, funcs: Sequence[PrimFunc], folder: Path, options: Sequence[str] = VARIANTS["vectors"]) -> None:
        unit = CUnit()
        for number, func in enumerate(funcs):
            unit.add(func, f"kernel{number}")
        self.text = unit.text() + ("" if "tc_parallel_for" not in unit.helpers else PARALLEL_FOR)
        source, library = folder / "kernels.c", folder / "kernels.so"
        source.write_text(self.text)
        command = [COMPILER, *options, *WARNINGS, *C.options, "-fPIC", "-shared", str(source), "-o", str(library), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        self.funcs = {id(func): number for number, func in enumerate(funcs)}
        self.library = ctypes.CDLL(str(library))

    def run(self, func: PrimFunc, arrays: Sequence[np.ndarray], dims: Sequence[int] = (), threads: int = 3) -> list[np.ndarray]:
        """The outputs of a kernel."""
        env = dict(zip(func.dims, dims, strict=True))
        shapes = [tuple(int(evaluate(dim, env)) for dim in buffer.shape) for buffer in func.outputs]
        results = [tensor_memory(buffer.dtype, shape) for buffer, shape in zip(func.outputs, shapes, strict=True)]
        inputs = [pack(np.ascontiguousarray(a)) for a in arrays]
        kernel = getattr(self.library, f"kernel{self.funcs[id(func)]}")
        kernel.restype = None
        numbers = [*(ctypes.c_int64(dim) for dim in dims), ctypes.c_int64(threads)]
        kernel(*(ctypes.c_void_p(a.ctypes.data) for a in (*inputs, *results)), *numbers)
        return [unpack(memory, buffer.dtype, shape) for memory, buffer, shape in zip(results, func.outputs, shapes, strict=True)]


def host() -> object:
    """The machine that the schedules of tests are for."""
    return native_target()
