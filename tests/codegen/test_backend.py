"""Back ends are records, found by the kind of the target."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest

from tc.codegen import backends
from tc.codegen.backend import find_backend
from tc.codegen.backends import BACKENDS, backend_of
from tc.codegen.kernels import schedule_kernel
from tc.codegen.llvm.backend import CPU
from tc.errors import UnsupportedError
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_prim_func
from tc.passes.manager import Pass, PassCall
from tc.passes.pipeline import finish_loops
from tc.target import Target, native_target

SCALE = """
@loops
def scale(A: f32[8], B: f32[8]):
    for i in range(8):
        B[i] = A[i] * 2.0
"""


def test_each_kind_has_one_back_end() -> None:
    kinds = [backend.kind for backend in BACKENDS]

    assert len(set(kinds)) == len(kinds) > 0
    assert backend_of(native_target()) is CPU


def test_a_kind_without_a_back_end_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no code is generated for the kind 'cpu'; the kinds are: dsp, npu"):
        find_backend([dataclasses.replace(CPU, kind="dsp"), dataclasses.replace(CPU, kind="npu")], Target())


def test_a_record_takes_a_kernel_all_the_way() -> None:
    target = native_target()
    backend = backend_of(target)
    func = finish_loops(parse_prim_func(SCALE), calls=backend.finish)

    library = backend.load(backend.make([backend.emit(func, "scale_it", target)], True, target), target)

    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(library.address("scale_it"))
    kernel(x.ctypes.data, y.ctypes.data, 1)
    np.testing.assert_array_equal(y, 2 * x)


def test_the_finishing_passes_of_the_record_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def look(func: PrimFunc) -> PrimFunc:
        seen.append(func.name)
        return func

    finish = (*CPU.finish, PassCall(Pass("look", "loop", look), ()))
    monkeypatch.setattr(backends, "BACKENDS", (dataclasses.replace(CPU, finish=finish),))

    kernel = schedule_kernel(parse_prim_func(SCALE), native_target())

    assert seen == ["scale"] == [kernel.name]
