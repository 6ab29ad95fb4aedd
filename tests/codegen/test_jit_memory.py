"""What LLVM and the linker allocate goes back when nothing needs it any more."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import tc
from benchmarks.soak import heap_bytes
from tc.codegen.llvm import jit
from tc.codegen.llvm.jit import GROUPED_BYTES, compile_object, link
from tc.runtime.object_queue import ObjectQueue
from tc.target import native_target
from tests.runtime.test_module_cache import model

STATM = Path("/proc/self/statm")
SOURCE = "define i64 @f{0}(i64 %x) {{\n  %y = add i64 %x, {0}\n  ret i64 %y\n}}"


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def compile_objects(kernels: Sequence[str], entries: Sequence[str] = ()) -> list[bytes]:
    queue = ObjectQueue(native_target())
    for text in kernels:
        queue.put(text)
    for text in entries:
        queue.put(text, optimized=False)
    return queue.objects()


def work(rounds: range) -> None:
    for k in rounds:
        one = compile_object(SOURCE.format(k))
        two = compile_objects([SOURCE.format(j) for j in (k, k + 1)])
        assert link([one]).address(f"f{k}") and link(two).address(f"f{k + 1}")


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
def test_compiling_and_linking_leave_no_memory_behind() -> None:
    """llvmlite never freed a pass pipeline: 56 KB for every kernel."""
    work(range(50))
    grown = []
    for first in (50, 150, 250):  # what the process sets aside once is no leak
        before = resident_bytes()
        work(range(first, first + 100))
        grown.append(resident_bytes() - before)

    assert min(grown) < 300 * 10_000


@pytest.mark.skipif(heap_bytes() == 0, reason="the C library does not say what is allocated")
def test_what_llvm_keeps_of_a_kernel_and_its_entry_is_one_table_of_callbacks() -> None:
    """llvmlite frees no `PassInstrumentationCallbacks`, 1,472 bytes for every run of the passes: the entry had a run of its own."""
    kernel, entry = SOURCE.format(0), SOURCE.format(1)

    def compile_often() -> None:
        for _ in range(100):
            compile_objects([kernel], [entry])

    compile_often()
    before = heap_bytes()

    compile_often()

    assert heap_bytes() - before < 2000 * 100


def test_small_kernels_share_a_run_of_the_passes_and_their_code_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel had a run of its own."""
    runs: list[str] = []
    for name in ("_optimize", "_optimize_functions"):
        optimize = getattr(jit, name)
        monkeypatch.setattr(jit, name, lambda module, machine, run=optimize: runs.append(str(module)) or run(module, machine))
    texts = [SOURCE.format(k) for k in range(3)]
    large = SOURCE.format(3) + ";" * GROUPED_BYTES

    together = compile_objects([*texts, large])

    assert sorted(sum(f"@f{k}" in run for k in range(4)) for run in runs) == [1, 3]
    assert together == [compile_object(text) for text in [*texts, large]]


def test_passes_run_for_what_is_to_be_optimized_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ran for every entry, which took as long as its code generation."""
    runs: list[str] = []
    optimize = jit._optimize
    monkeypatch.setattr(jit, "_optimize", lambda module, machine: runs.append(str(module)) or optimize(module, machine))
    kernel, entry = SOURCE.format(0), SOURCE.format(1)

    objects = compile_objects([kernel], [entry])
    alone = compile_objects([], [entry])

    assert len(runs) == 1 and "@f0" in runs[0] and "@f1" not in runs[0]
    library = link([*objects, *compile_objects([])])
    assert [ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address(f"f{k}"))(40) for k in range(2)] == [40, 41]
    assert alone == [objects[1]]


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


# Broke: the collector freed LLVM's context before its modules, and the process died at the next collection after Ctrl-C.
def test_an_exception_that_is_kept_holds_nothing_that_cannot_be_freed_in_any_order(tmp_path: Path) -> None:
    script = """
        import gc
        from tc.codegen.llvm import jit
        from tc.target import native_target

        def interrupted(machine, context, module):
            raise KeyboardInterrupt

        texts = ["define i64 @f%d(i64 %%x) { %%y = add i64 %%x, 1 ret i64 %%y }" % k for k in range(4)]
        emit, jit._emit = jit._emit, interrupted
        for optimized in (True, False) * 5:
            try:
                jit.compile_group(texts, optimized, native_target())
            except KeyboardInterrupt as error:
                kept = error
            kept = [kept, kept.__traceback__]
            kept.append(kept)  # garbage that only the collector finds
            del kept
            gc.collect()
        jit._emit = emit
        print(len(jit.compile_group(texts, True, native_target())))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.split()) == (0, ["4"]), done.stderr
