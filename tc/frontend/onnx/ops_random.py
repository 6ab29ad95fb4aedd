"""Random operators: numbers by a counter, of the run's key, the node and, in a loop, the iteration.

A node with a `seed` has the numbers of that seed, whatever else is in the model; one without has those of its place in the model. The
key is an input of the model, `tc.random_key`, that need not be given: each run of a module then has the next one.
"""

from __future__ import annotations

import math
import struct
import zlib

from tc.errors import NodeError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.values import ModelValue
from tc.ir.dtype import DType, f32, f64, i32, i64
from tc.ir.expr import ExprLike

_SEEDED = 1 << 32
"""What streams of seeds have and those of places have not."""


def _stream(n: NodeContext) -> int:
    seed = n.attr("seed")
    if seed is None:
        return zlib.crc32(n.place.encode())
    return _SEEDED | int.from_bytes(struct.pack("<f", seed), "little")


def _bits(n: NodeContext, shape: tuple[ExprLike, ...], word: int = 0) -> ModelValue:
    return n.call("random_bits", n.graph.random_key(), shape=shape, stream=_stream(n), word=word)


def _fractions(n: NodeContext, shape: tuple[ExprLike, ...], dtype: DType = f32) -> ModelValue:
    """Evenly from [0, 1), all multiples of 2^-24, or of 2^-53."""
    upper = _bits(n, shape)
    if dtype is not f64:
        whole = n.call("cast", n.call("shift_right", upper, n.const(8, upper.dtype)), dtype=f32)
        return n.call("mul", whole, n.const(2.0**-24, f32))
    high = n.call("mul", n.call("cast", upper, dtype=f64), n.const(2.0**21, f64))
    low = n.call("cast", n.call("shift_right", _bits(n, shape, 1), n.const(11, upper.dtype)), dtype=f64)
    return n.call("mul", n.call("add", high, low), n.const(2.0**-53, f64))


def _normal(n: NodeContext, shape: tuple[ExprLike, ...], dtype: DType) -> ModelValue:
    """By the method of Box and Muller (1958), the cosine alone; nothing is further out than 6.8 (f64: 8.6)."""
    wide = f64 if dtype is f64 else f32
    if wide is f64:
        above = n.call("sub", n.const(1.0, f64), _fractions(n, shape, f64))
    else:
        above = n.call("mul", n.call("add", n.call("cast", _bits(n, shape), dtype=f32), n.const(0.5, f32)), n.const(2.0**-32, f32))
    turns = n.call("cast", _bits(n, shape, 2), dtype=wide)
    angle = n.call("mul", turns, n.const(2 * math.pi * 2.0**-32, wide))
    radius = n.call("sqrt", n.call("mul", n.call("log", above), n.const(-2.0, wide)))
    return n.call("mul", radius, n.call("cos", angle))


def _scaled(n: NodeContext, value: ModelValue, by: float, plus: float, dtype: DType) -> ModelValue:
    value = n.call("add", n.call("mul", value, n.const(by, value.dtype)), n.const(plus, value.dtype))
    return n.call("cast", value, dtype=dtype)


def _distributed(n: NodeContext, shape: tuple[ExprLike, ...], dtype: DType) -> ModelValue:
    if not dtype.is_float:
        raise NodeError(f"{n.op_type} of {dtype}; it makes floats")
    if n.op_type.startswith("RandomNormal"):
        return _scaled(n, _normal(n, shape, dtype), n.attr("scale", 1.0), n.attr("mean", 0.0), dtype)
    low, high = n.attr("low", 0.0), n.attr("high", 1.0)
    return _scaled(n, _fractions(n, shape, dtype), high - low, low, dtype)


@onnx_op("RandomNormal", "RandomUniform")
def import_random(n: NodeContext) -> NodeResult:
    shape = n.attr("shape")
    if shape is None or any(size < 0 for size in shape):
        raise NodeError(f"{n.op_type}: the attribute shape is {shape}, must be sizes")
    return _distributed(n, tuple(shape), n.dtype_attr("dtype", 1) or f32)


@onnx_op("RandomNormalLike", "RandomUniformLike")
def import_random_like(n: NodeContext) -> NodeResult:
    x = n.value(0)
    return _distributed(n, x.shape, n.dtype_attr("dtype") or x.dtype)


@onnx_op("Bernoulli")
def import_bernoulli(n: NodeContext) -> NodeResult:
    """True with the probability that the input is."""
    x = n.value(0)
    wide = f64 if x.dtype is f64 else f32
    hit = n.call("less", _fractions(n, x.shape, wide), n.call("cast", x, dtype=wide))
    return n.call("cast", hit, dtype=n.dtype_attr("dtype") or x.dtype)


@onnx_op("Multinomial")
def import_multinomial(n: NodeContext) -> NodeResult:
    """Places by their unnormalized log-probabilities: where these are largest once Gumbel's noise is added, which has that distribution.

    Source: Gumbel, "Statistical theory of extreme values" (1954), the "Gumbel-max trick".
    """
    x, count = n.value(0), n.attr("sample_size", 1)
    dtype = n.dtype_attr("dtype", 6) or i32
    if x.rank != 2 or dtype not in (i32, i64):
        raise NodeError(f"Multinomial of {x.type} as {dtype}; it takes a matrix and makes i32 or i64")
    batch, classes = x.shape
    bits = _bits(n, (batch, count, classes))
    whole = n.call("cast", n.call("shift_right", bits, n.const(9, bits.dtype)), dtype=f32)
    fractions = n.call("mul", n.call("add", whole, n.const(0.5, f32)), n.const(2.0**-23, f32))  # exact, and neither 0 nor 1
    noise = n.call("neg", n.call("log", n.call("neg", n.call("log", fractions))))
    logits = n.call("reshape", n.call("cast", x, dtype=f32), shape=(batch, 1, classes))
    return n.call("cast", n.call("argmax", n.call("add", logits, noise), axis=2, keepdims=False, select_last_index=False), dtype=dtype)
