"""Models of one operator, or of the few that should become one kernel: what a compiler is measured by in detail."""

from __future__ import annotations

import math

import numpy as np
import onnx

from benchmarks.onnx_builder import F32, OnnxBuilder


def make_matmul(rng: np.random.Generator, m: int, k: int, n: int, *, constant: bool = True) -> onnx.ModelProto:
    """y = x @ w for x: float32[m, k]; w is a constant, or the second input."""
    g = OnnxBuilder(f"matmul_{m}x{k}x{n}")
    x = g.input("x", F32, (m, k))
    w = g.weight("w", _normal(rng, (k, n), k**-0.5)) if constant else g.input("w", F32, (k, n))
    g.output(g.op("MatMul", x, w), "y", F32, (m, n))
    return g.model()


def make_conv(
    rng: np.random.Generator,
    channels: int,
    size: int,
    *,
    filters: int | None = None,
    kernel: int = 3,
    stride: int = 1,
    depthwise: bool = False,
) -> onnx.ModelProto:
    """A convolution with bias over `size` by `size` pixels, padded by half its kernel: 3x3, stride 1, as many channels out as in."""
    group = channels if depthwise else 1
    filters = filters or channels
    out = -(-size // stride)
    g = OnnxBuilder(f"conv{kernel}x{kernel}_{channels}_{size}")
    taps = (filters, channels // group, kernel, kernel)
    weights = _normal(rng, taps, (channels // group * kernel**2) ** -0.5)
    weight, bias = g.weight("w", weights), g.weight("b", _normal(rng, (filters,), 0.1))
    x = g.input("x", F32, (1, channels, size, size))
    attrs = {"kernel_shape": (kernel, kernel), "pads": (kernel // 2,) * 4, "group": group}
    attrs |= {"strides": (stride, stride)} if stride > 1 else {}
    g.output(g.op("Conv", x, weight, bias, **attrs), "y", F32, (1, filters, out, out))
    return g.model()


def make_elementwise(op: str, operands: int, *shape: int) -> onnx.ModelProto:
    """One elementwise operator of `operands` inputs: every element is read once and written once."""
    g = OnnxBuilder(op.lower())
    g.output(g.op(op, *(g.input(f"x{k}", F32, shape) for k in range(operands))), "y", F32, shape)
    return g.model()


def make_softmax(*shape: int) -> onnx.ModelProto:
    """Softmax over the last axis."""
    g = OnnxBuilder("softmax")
    g.output(g.op("Softmax", g.input("x", F32, shape), axis=-1), "y", F32, shape)
    return g.model()


def make_layernorm(rng: np.random.Generator, rows: int, width: int) -> onnx.ModelProto:
    """Layer normalisation of float32[rows, width] over its last axis, with scale and shift."""
    g = OnnxBuilder("layernorm")
    scale = g.weight("scale", rng.uniform(0.8, 1.2, width).astype(np.float32))
    shift = g.weight("shift", _normal(rng, (width,), 0.1))
    x = g.input("x", F32, (rows, width))
    g.output(g.op("LayerNormalization", x, scale, shift, axis=-1), "y", F32, (rows, width))
    return g.model()


def make_gelu_chain(*shape: int) -> onnx.ModelProto:
    """y = gelu(x * a + b) + c, the gelu spelled with Erf: one pass over memory if fused."""
    g = OnnxBuilder("gelu_chain")
    x = g.input("x", F32, shape)
    z = g.op("Add", g.op("Mul", x, g.const(1.5)), g.const(0.25))
    bell = g.op("Add", g.op("Erf", g.op("Div", z, g.const(math.sqrt(2)))), g.const(1.0))
    gelu = g.op("Mul", g.op("Mul", z, bell), g.const(0.5))
    g.output(g.op("Add", gelu, g.const(-0.5)), "y", F32, shape)
    return g.model()


def make_attention(heads: int, tokens: int, width: int) -> onnx.ModelProto:
    """softmax(q @ k.T / sqrt(width)) @ v for q, k, v: float32[1, heads, tokens, width], without a mask."""
    g = OnnxBuilder("attention")
    shape = (1, heads, tokens, width)
    query, key, value = (g.input(name, F32, shape) for name in "qkv")
    scores = g.op("MatMul", query, g.op("Transpose", key, perm=(0, 1, 3, 2)))
    chances = g.op("Softmax", g.op("Mul", scores, g.const(width**-0.5)), axis=-1)
    g.output(g.op("MatMul", chances, value), "y", F32, shape)
    return g.model()


def _normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
