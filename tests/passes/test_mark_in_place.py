"""Which kernels may work in place, and that those which may give the same bits when they do."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import tc
import tc.passes.graph.plan_memory
from tc.compiler import run_stages
from tc.demo import MODEL_PATH
from tc.ir.arith import evaluate
from tc.ir.loop import in_place_inputs
from tc.ir.parser import parse_module
from tc.passes.loop.mark_in_place import mark_in_place
from tc.target import native_target
from tests.ops.kernels import build

HEADER = """
@loops
def f(X: f32[n, 40], R: f32[n, 40], B: f32[n, 40], n: i64):
    outputs(1)
    promise(n, 1, None, 1)
"""


def marked(body: str, header: str = HEADER) -> tuple[int, ...]:
    (func,) = parse_module(header + body).prim_funcs
    return in_place_inputs(mark_in_place(func))


def test_an_input_read_where_the_output_is_written_qualifies() -> None:
    body = """
    for f in parallel(n * 40):
        B[f // 40, f % 40] = X[f // 40, f % 40] + R[f // 40, f % 40] * R[f // 40, f % 40]
"""
    assert marked(body) == (0, 1)


def test_a_guarded_tile_qualifies() -> None:
    body = """
    for i in range(n):
        for jo in range(3):
            for ji in vectorized(16):
                if jo * 16 + ji < 40:
                    B[i, jo * 16 + ji] = X[i, jo * 16 + ji] + R[0, 0]
"""
    assert marked(body) == (0,)


@pytest.mark.parametrize(
    "body",
    [
        "B[i, j] = X[i, 39 - j] + R[i, 39 - j]",
        "B[i, j] = X[i, select(0 < j, j - 1, 0)] + R[0, j]",
        "B[i, 0] = X[i, 0] + R[i, 0]",
        "B[i, min(j, 20)] = X[i, min(j, 20)] + R[i, min(j, 20)]",
        "B[i, j] = X[i, j] + R[i, j] + B[i, j]",
    ],
    ids=["reversed", "a neighbour", "stored again and again", "tiles that overlap", "the output is read"],
)
def test_what_reads_elsewhere_or_writes_twice_does_not(body: str) -> None:
    assert marked(f"\n    for i in range(n):\n        for j in range(40):\n            {body}\n") == ()


def test_two_stores_must_be_apart() -> None:
    body = """
    for i in range(n):
        for j in range(FIRST):
            B[i, j] = X[i, j] + R[i, j]
        for k in range(20):
            B[i, k + 20] = X[i, k + 20] * R[i, k + 20]
"""
    assert marked(body.replace("FIRST", "20")) == (0, 1)
    assert marked(body.replace("FIRST", "21")) == ()


def test_an_input_that_another_result_reads_does_not_qualify() -> None:
    header = HEADER.replace("B: f32[n, 40], n", "B: f32[n, 40], C: f32[n, 40], n").replace("outputs(1)", "outputs(2)")
    body = """
    for i in range(n):
        for j in range(40):
            B[i, j] = X[i, j] + R[i, j]
            C[i, j] = X[i, j] - 1.0
"""
    assert marked(body, header) == (1,)


RESIDUAL = """
@graph
def main(x: f32[53, 48], w: f32[48, 48], v: f32[48, 48]):
    a: f32[53, 48] = matmul(x, w)
    b: f32[53, 48] = matmul(a, v)
    c: f32[53, 48] = matmul(b, w)
    d: f32[53, 48] = add(c, a)
    e: f32[53, 48] = matmul(d, v)
    f: f32[53, 48] = matmul(e, w)
    return f
"""


def test_kernels_give_the_same_bits_in_place() -> None:
    kernels = run_stages(parse_module(RESIDUAL), native_target()).kernels.values()
    checked = 0
    for kernel in kernels:
        func = kernel.final
        for k in in_place_inputs(func):
            rng = np.random.default_rng(k)
            env = dict.fromkeys(func.dims, 53)
            arrays = [
                rng.standard_normal([int(evaluate(dim, env)) for dim in buffer.shape]).astype(buffer.dtype.numpy)
                for buffer in func.buffers
            ]
            native, keep = build(func)
            dims = [ctypes.c_int64(53) for _ in func.dims]
            separate = [array.copy() for array in arrays]
            native(*(array.ctypes.data for array in separate), *dims, 2)
            together = [array.copy() for array in arrays]
            together[len(func.inputs)] = together[k]
            native(*(array.ctypes.data for array in together), *dims, 2)
            del keep
            np.testing.assert_array_equal(together[k], separate[len(func.inputs)])
            checked += 1
    assert checked


@pytest.mark.parametrize("name", ["residual", "demo"])
def test_models_give_the_same_bits_with_less_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse_module(RESIDUAL) if name == "residual" else str(MODEL_PATH)
    rng = np.random.default_rng(0)
    shapes = [(53, 48), (48, 48), (48, 48)] if name == "residual" else [(7, 1, 8, 8)]
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    taken = tc.compile(model)
    monkeypatch.setattr(tc.passes.graph.plan_memory, "in_place_inputs", lambda func: ())
    apart = tc.compile(model)

    np.testing.assert_array_equal(taken(*inputs), apart(*inputs))
    dims = {str(dim): 53 for info in taken.inputs for dim in info.shape if not isinstance(dim, int)}
    assert taken.peak_bytes(**dims) <= apart.peak_bytes(**dims)
    if name == "residual":
        assert taken.peak_bytes(**dims) < apart.peak_bytes(**dims)
