"""What LLVM and the linker allocate goes back when nothing needs it any more."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest

import tc
from tc.runtime.jit import compile_object, compile_objects, link
from tc.target import native_target
from tests.runtime.test_module_cache import model

STATM = Path("/proc/self/statm")
SOURCE = "define i64 @f{0}(i64 %x) {{\n  %y = add i64 %x, {0}\n  ret i64 %y\n}}"


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def work(rounds: range) -> None:
    for k in rounds:
        one = compile_object(SOURCE.format(k))
        two = compile_objects([SOURCE.format(j) for j in (k, k + 1)], native_target())
        assert link([one]).address(f"f{k}") and link(two).address(f"f{k + 1}")


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
def test_compiling_and_linking_leave_no_memory_behind() -> None:
    """llvmlite never freed a pass pipeline: 56 KB for every kernel."""
    work(range(50))
    before = resident_bytes()

    work(range(50, 150))

    assert resident_bytes() - before < 300 * 10_000


@pytest.mark.parametrize("nodes", [("Tanh", "Softmax"), ("Tanh", "NonZero")])
def test_a_module_that_is_dropped_frees_its_code_at_once(nodes: tuple[str, ...]) -> None:
    """One with a node on a reference kernel, as NonZero, was part of a cycle, and stayed until Python looked for cycles."""
    compiled = tc.compile(_model(nodes), threads=1)
    compiled(np.zeros((2, 24), np.float32))
    library = weakref.ref(compiled._library)
    gc.disable()
    try:
        del compiled
        assert library() is None
    finally:
        gc.enable()


def _model(nodes: tuple[str, ...]) -> onnx.ModelProto:
    made = onnx.load_from_string(model(nodes=nodes))
    if "NonZero" in nodes:
        made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return made
