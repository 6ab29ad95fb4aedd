"""`numerics="strict"`: the bits that the loop interpreter computes, operation by operation."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.codegen.kernels import Kernel
from tc.compiler import run_stages
from tc.interp import run_function, run_prim_func
from tc.ir.arith import evaluate
from tc.ir.parser import parse_module
from tc.target import native_target
from tests.ops.kernels import run

MATMUL = """
@graph
def main(x: f32[n, 37], w: f32[37, 19], r: f32[n, 19]):
    a: f32[n, 19] = matmul(x, w)
    b: f32[n, 19] = mul(a, r)
    c: f32[n, 19] = add(b, r)
    return c
"""
NORM = """
@graph
def main(x: f32[n, 70]):
    s: f32[n, 1] = sum(x, axes=(1,), keepdims=True)
    d: f32[n, 70] = sub(x, s)
    q: f32[n, 70] = mul(d, d)
    v: f32[n, 1] = mean(q, axes=(1,), keepdims=True)
    e: f32[n, 1] = sqrt(v)
    y: f32[n, 70] = div(d, e)
    return y
"""
CONV = """
@graph
def main(x: f32[1, 5, 9, 9], w: f32[18, 5, 3, 3], k: f32[18, 1, 1]):
    y: f32[1, 18, 9, 9] = conv(x, w, pads=(1, 1, 1, 1))
    z: f32[1, 18, 9, 9] = mul(y, k)
    u: f32[1, 18, 9, 9] = sub(z, k)
    return u
"""
POLYNOMIAL = """
@graph
def main(x: TYPE[n], y: TYPE[n]):
    a: TYPE[n] = mul(x, y)
    b: TYPE[n] = add(a, x)
    c: TYPE[n] = mul(b, x)
    d: TYPE[n] = sub(y, c)
    e: TYPE[n] = div(d, x)
    return e
"""
PROGRAMS = {
    "matmul": MATMUL,
    "norm": NORM,
    "conv": CONV,
    **{f"polynomial-{name}": POLYNOMIAL.replace("TYPE", name) for name in ("f32", "f64", "f16", "bf16")},
}
N = 13


def kernels_of(text: str, numerics: str) -> list[Kernel]:
    return list(run_stages(parse_module(text), native_target(), numerics=numerics).kernels.values())


def both(kernel: Kernel, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every result of a kernel: as its loops say, and as machine code computes it."""
    rng = np.random.default_rng(seed)
    dims = tuple(N for _ in kernel.final.dims)
    env = dict(zip(kernel.scheduled.dims, dims, strict=True))
    shapes = [tuple(int(evaluate(dim, env)) for dim in buffer.shape) for buffer in kernel.scheduled.inputs]
    arrays = [
        (1 + rng.random(shape)).astype(b.dtype.numpy) for shape, b in zip(shapes, kernel.scheduled.inputs, strict=True)
    ]
    count = len(kernel.lowered.outputs)  # workspaces follow
    return list(zip(run_prim_func(kernel.final, arrays, dims)[:count], run(kernel.final, arrays, dims)[:count], strict=True))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")).all())


@pytest.mark.parametrize("name", PROGRAMS)
def test_strict_kernels_compute_the_bits_of_their_loops(name: str) -> None:
    for kernel in kernels_of(PROGRAMS[name], "strict"):
        for seed in range(3):
            assert all(same_bits(want, got) for want, got in both(kernel, seed)), kernel.name


@pytest.mark.parametrize("name", ["matmul", "conv", "polynomial-f32"])
def test_by_default_a_product_and_a_sum_are_rounded_once(name: str) -> None:
    found = [pair for kernel in kernels_of(PROGRAMS[name], "default") for seed in range(3) for pair in both(kernel, seed)]

    assert not all(same_bits(want, got) for want, got in found)
    for want, got in found:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6 * np.abs(want).max())  # terms of that size may cancel


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_strict_elementwise_models_give_the_bits_of_the_references(dtype: str) -> None:
    module = parse_module(POLYNOMIAL.replace("TYPE", dtype))
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(501).astype({"f32": np.float32, "f16": np.float16}[dtype]) for _ in range(2))

    (want,) = run_function(module, "main", [x, y])

    assert same_bits(tc.compile(module, numerics="strict")(x, y), want)


def test_strict_models_keep_normalizations_apart() -> None:
    literal = "const([1.5, 0.5], f32[2])"
    text = f"""
@graph
def main(x: f32[1, 2, 6, 6]):
    y: f32[1, 2, 6, 6] = batch_norm(x, {literal}, {literal}, {literal}, {literal})
    return y
"""
    strict, default = (run_stages(parse_module(text), native_target(), numerics=n) for n in ("strict", "default"))

    assert any("batch_norm" in name for name in strict.kernels)
    assert not any("batch_norm" in name for name in default.kernels)
