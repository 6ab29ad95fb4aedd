"""The caller's floating-point mode: no bit of a result depends on it, and it is afterwards what it was."""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import tc
from tc.codegen.llvm.jit import compile_object, link
from tc.ir.parser import parse_module
from tc.runtime import pool
from tc.runtime.float_mode import usual_float_mode
from tc.target import available_cpus

Words = tuple[Callable[[], int], Callable[[int], None]]
"""Read and write MXCSR."""

MODES = {"flush to zero": 0x9FC0, "upwards": 0x5F80, "to zero": 0x7F80, "down, subnormal inputs as zero": 0x3FC0}
"""MXCSR: with nothing trapped (0x1F80), flush to zero (0x8000), subnormal inputs as zero (0x40), rounding (0x6000)."""

IR = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @get(ptr %p) {
  call void @llvm.x86.sse.stmxcsr(ptr %p)
  ret void
}
define void @set(ptr %p) {
  call void @llvm.x86.sse.ldmxcsr(ptr %p)
  ret void
}
"""

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="sets MXCSR")

TEXT = """
@graph
def main(x: f32[300, 200], w: f32[200, 300]):
    a: f32[300, 300] = matmul(x, w)
    b: f32[300, 300] = exp(a)
    c: f32[300] = sum(b, axes=(1,), keepdims=False)
    return a, c
"""


@pytest.fixture(scope="module")
def mode_words() -> Words:
    library = link([compile_object(IR)])
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    get, put = kind(library.address("get")), kind(library.address("set"))

    def read(_: object = library) -> int:
        word = ctypes.c_uint32()
        get(ctypes.addressof(word))
        return word.value & 0xFFC0

    def write(mode: int, _: object = library) -> None:
        word = ctypes.c_uint32(mode)
        put(ctypes.addressof(word))

    return read, write


@contextmanager
def in_mode(words: Words, mode: int) -> Iterator[None]:
    read, write = words
    before = read()
    write(mode)
    try:
        yield
        assert read() == mode
    finally:
        write(before)


def tiny_inputs() -> tuple[np.ndarray, np.ndarray]:
    """Whose products are subnormal, and whose sums are rounded."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((300, 200)) * 1e-20).astype(np.float32), (rng.standard_normal((200, 300)) * 1e-21).astype(np.float32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_the_same_in_any_mode_of_the_caller(mode_words: Words, mode: str, threads: int) -> None:
    """Broke: a library that sets flush-to-zero changed what a model computes."""
    module = tc.compile(parse_module(TEXT), threads=threads)
    x, w = tiny_inputs()
    ordinary = (x * np.float32(1e20), w * np.float32(1e21))
    expected = [np.array(r) for pair in ((x, w), ordinary) for r in module(*pair)]

    with in_mode(mode_words, MODES[mode]):
        found = [np.array(r) for pair in ((x, w), ordinary) for r in module(*pair)]

    assert np.any(np.abs(expected[0][expected[0] != 0]) < np.finfo(np.float32).tiny)
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.view(np.int32), right.view(np.int32))


@pytest.mark.skipif(available_cpus() < 2, reason="needs two processors")
def test_workers_made_in_another_mode_compute_in_the_usual_one(mode_words: Words) -> None:
    """Broke: a thread inherits the mode of the thread that makes it."""
    read, _ = mode_words
    with in_mode(mode_words, MODES["flush to zero"]):
        workers = pool.ThreadPool()
        workers.start(2)
    KEPT.append(workers)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    loop = ctypes.CFUNCTYPE(None, kind, ctypes.c_void_p, *[ctypes.c_int64] * 3)(workers.address())
    both, found = threading.Barrier(2, timeout=30), {}

    def look(_: int, begin: int, end: int, thread: int) -> None:
        both.wait()
        found[thread] = read()

    loop(kind(look), None, 2, 1, 2)

    assert found == {0: 0x1F80, 1: 0x1F80}


KEPT: list[pool.ThreadPool] = []  # their threads never end


def test_a_call_that_fails_puts_the_mode_back(mode_words: Words) -> None:
    text = "@graph\ndef main(x: f32[9]):\n    a: i64[1, k] = nonzero(x)\n    b: i64[1] = sum(a, axes=(1,), keepdims=False)\n    return b\n"
    module = tc.compile(parse_module(text), threads=1)
    seen: list[int] = []

    def fail(*_: object) -> object:
        seen.append(mode_words[0]())
        raise ValueError("no")

    module._callback = fail  # type: ignore[assignment]
    with in_mode(mode_words, MODES["upwards"]), pytest.raises(ValueError, match="no"):
        module(np.ones(9, np.float32))
    assert seen == [0x1F80]


def test_constants_are_folded_in_the_usual_mode(mode_words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import TensorProto, helper, numpy_helper

    monkeypatch.setenv("TC_CACHE_DIR", "off")
    values = [numpy_helper.from_array(np.array([v, 1.0], np.float32), name) for v, name in ((1e-20, "a"), (1e-20, "b"))]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["a", "b"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])], values,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    with in_mode(mode_words, MODES["flush to zero"]):
        module = tc.compile(model)

    assert module(np.zeros(2, np.float32))[0] == np.float32(1e-20) * np.float32(1e-20) != 0


def test_the_interpreter_computes_in_the_usual_mode_and_the_callers_comes_back(mode_words: Words) -> None:
    read, _ = mode_words
    for mode in MODES.values():
        with in_mode(mode_words, mode):
            with usual_float_mode():
                assert read() == 0x1F80
            assert read() == mode
