"""Operators of quantized networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tc.fuzz.builder import F32, I8, I32, U8, Builder, Held, Rejected
from tc.fuzz.operators.row import Row
from tc.fuzz.operators.window import window


def scale(b: Builder, shape: tuple[int, ...] = ()) -> Held:
    """Powers of two: what is divided by them is exact, so that no tie depends on how."""
    return b.fresh(b.rng.choice(np.array([0.25, 0.5, 1.0, 2.0], np.float32), shape), "fixed", 0.8)


def zero_point(b: Builder, dtype: np.dtype, shape: tuple[int, ...] = ()) -> Held:
    return b.fresh(b.rng.integers(0, 5, shape).astype(dtype), "fixed", 0.8)


def bytes_like(b: Builder, dtype: np.dtype, shape: tuple[int, ...], kind: str = "data") -> Held:
    known = [h for h in b.pool if h.dtype == dtype and h.shape == shape]
    info = np.iinfo(dtype)
    return (
        b.choose(known)
        if known and b.chance(0.6)
        else b.fresh(b.rng.integers(info.min, info.max + 1, shape).astype(dtype), kind, 0.3)
    )


def quantize(b: Builder) -> None:
    x = b.pick((F32,))
    dtype = b.choose((U8, I8))
    if x.rank and b.since(13) and b.chance(0.4):
        axis = b.axis(x.rank)
        size = (x.shape[axis],)
        b.emit("QuantizeLinear", [x, scale(b, size), zero_point(b, dtype, size)], axis=axis)
    else:
        b.emit("QuantizeLinear", [x, scale(b), zero_point(b, dtype) if b.chance(0.8) else None])


def dequantize(b: Builder) -> None:
    x = b.pick((U8, I8, I32))
    zero = None if x.dtype == I32 or b.chance(0.2) else x.dtype
    if x.rank and b.since(13) and b.chance(0.4):
        axis = b.axis(x.rank)
        size = (x.shape[axis],)
        b.emit("DequantizeLinear", [x, scale(b, size), None if zero is None else zero_point(b, zero, size)], axis=axis)
    else:
        b.emit("DequantizeLinear", [x, scale(b), None if zero is None else zero_point(b, zero)])


def quantize_and_back(b: Builder) -> None:
    """The pair that a QDQ model puts on every edge."""
    x = b.pick((F32,), ranks=(1, 4))
    dtype = b.choose((U8, I8))
    s, z = scale(b), zero_point(b, dtype)
    b.emit("DequantizeLinear", [b.emit("QuantizeLinear", [x, s, z])[0], s, z])


def dynamic_quantize(b: Builder) -> None:
    b.emit("DynamicQuantizeLinear", [b.finite(b.pick((F32,), where=lambda h: h.array.size > 0))], 3)


def matmul_integer(b: Builder) -> None:
    left, right = b.choose((U8, I8)), b.choose((U8, I8))
    m, k, n = (b.dim() for _ in range(3))
    batch = b.shape(b.integer(0, 1), most=3)
    x, y = bytes_like(b, left, (*batch, m, k)), bytes_like(b, right, (k, n))
    zeros = [
        zero_point(b, left) if b.chance(0.6) else None,
        zero_point(b, right, b.choose(((), (n,)))) if b.chance(0.5) else None,
    ]
    b.emit("MatMulInteger", [x, y, *zeros])


def qlinear_matmul(b: Builder) -> None:
    left, right = b.choose((U8, I8)), b.choose((U8, I8))
    m, k, n = (max(1, b.dim()) for _ in range(3))
    x, y = bytes_like(b, left, (m, k)), bytes_like(b, right, (k, n))
    inputs = [
        x,
        scale(b),
        zero_point(b, left),
        y,
        scale(b),
        zero_point(b, right),
        b.constant(np.array(64.0, np.float32)),
        zero_point(b, left),
    ]
    b.emit("QLinearMatMul", inputs)


def conv_shapes(b: Builder) -> tuple[Held, Held, dict[str, Any], int]:
    n, h, w = b.integer(1, 2), b.extent(1, 7), b.extent(1, 7)
    group = b.choose((1, 1, 2))
    c, m = group * b.extent(1, 3), group * b.extent(1, 3)
    kernel, attrs = window(b, (h, w), auto=False)
    x = bytes_like(b, b.choose((U8, I8)), (n, c, h, w))
    weights = bytes_like(b, x.dtype if x.dtype == I8 else b.choose((U8, I8)), (m, c // group, *kernel), "weights")
    return x, weights, attrs | ({"group": group} if group > 1 else {}), m


def conv_integer(b: Builder) -> None:
    x, w, attrs, _ = conv_shapes(b)
    zeros = [zero_point(b, x.dtype) if b.chance(0.6) else None, zero_point(b, w.dtype) if b.chance(0.4) else None]
    b.emit("ConvInteger", [x, w, *zeros], **attrs)


def qlinear_conv(b: Builder) -> None:
    x, w, attrs, m = conv_shapes(b)
    bias = b.fresh(b.rng.integers(-50, 50, m).astype(np.int32), "fixed", 0.8) if b.chance(0.5) else None
    per_channel = b.chance(0.4)
    ws = scale(b, (m,) if per_channel else ())
    wz = b.constant(np.zeros((m,) if per_channel else (), w.dtype)) if per_channel else zero_point(b, w.dtype)
    if not b.since(10):
        raise Rejected("not yet")
    b.emit(
        "QLinearConv",
        [
            x,
            scale(b),
            zero_point(b, x.dtype),
            w,
            ws,
            wz,
            b.constant(np.array(64.0, np.float32)),
            zero_point(b, x.dtype),
            bias,
        ],
        **attrs,
    )


# -- operators between the pairs of a QDQ model


def wide(b: Builder, x: Held, axis: int | None = None) -> Held:
    """What bytes mean, with a scale and a zero point for all or, with `axis`, for each of its places."""
    size = () if axis is None or not b.since(13) or b.chance(0.5) else (x.shape[axis],)
    zero = zero_point(b, x.dtype, size) if b.chance(0.8) else None
    attrs: dict[str, Any] = {"axis": axis} if size else {}
    return b.emit("DequantizeLinear", [x, scale(b, size), zero], **attrs)[0]


def narrow(b: Builder, x: Held, dtype: np.dtype) -> None:
    b.emit("QuantizeLinear", [x, b.constant(np.array(b.choose((2.0, 16.0, 64.0)), np.float32)), zero_point(b, dtype)])


def literal(b: Builder, dtype: np.dtype, shape: tuple[int, ...]) -> Held:
    info = np.iinfo(dtype)
    return b.constant(b.rng.integers(info.min, info.max + 1, shape).astype(dtype))


def qdq_conv(b: Builder) -> None:
    x, w, attrs, m = conv_shapes(b)
    own = literal(b, b.choose((U8, I8)), w.shape) if b.chance(0.8) else w
    bias = wide(b, b.constant(b.rng.integers(-50, 50, m).astype(np.int32)), 0) if b.chance(0.4) else None
    y = b.emit("Conv", [wide(b, x), wide(b, own, 0), bias], **attrs)[0]
    if b.chance(0.8):
        narrow(b, y, b.choose((U8, I8)))


def qdq_matmul(b: Builder) -> None:
    m, k, n = (b.dim() for _ in range(3))
    batch = b.shape(b.integer(0, 1), most=3)
    x = bytes_like(b, b.choose((U8, I8)), (*batch, m, k))
    dtype = b.choose((U8, I8))
    w = literal(b, dtype, (k, n)) if b.chance(0.6) else bytes_like(b, dtype, (k, n))
    y = b.emit("MatMul", [wide(b, x), wide(b, w, 1)])[0]
    if b.chance(0.8):
        narrow(b, y, b.choose((U8, I8)))


def qdq_movement(b: Builder) -> None:
    """A few operators that move elements, or clip them, between a pair with equal parameters or others."""
    x = b.pick((U8, I8), ranks=(1, 4))
    s, z = scale(b), zero_point(b, x.dtype)
    y = b.emit("DequantizeLinear", [x, s, z])[0]
    for _ in range(b.integer(1, 3)):
        rank = len(y.shape)
        match b.integer(0, 4):
            case 0:
                y = b.emit("Transpose", [y], perm=[int(axis) for axis in b.rng.permutation(rank)])[0]
            case 1:
                y = b.emit("Relu", [y])[0]
            case 2:
                y = b.emit("Concat", [y, y], axis=b.integer(0, rank - 1))[0]
            case 3:
                y = b.emit("Reshape", [y, b.constant(np.array([-1] if y.array.size else [0], np.int64))])[0]
            case _:
                y = b.emit("Flatten", [y], axis=b.integer(0, rank))[0]
    if b.chance(0.6):
        b.emit("QuantizeLinear", [y, s, z])
    else:
        narrow(b, y, b.choose((U8, I8)))


ROWS = (
    Row("QuantizeLinear", quantize, since=10, weight=1.5),
    Row("DequantizeLinear", dequantize, since=10, weight=1.5),
    Row("QuantizeLinear", quantize_and_back, since=10),
    Row("DynamicQuantizeLinear", dynamic_quantize, since=11),
    Row("MatMulInteger", matmul_integer, since=10, weight=1.5),
    Row("QLinearMatMul", qlinear_matmul, since=10),
    Row("ConvInteger", conv_integer, since=10),
    Row("QLinearConv", qlinear_conv, since=10),
    Row("Conv", qdq_conv, since=10, weight=1.5),
    Row("MatMul", qdq_matmul, since=10, weight=1.5),
    Row("Concat", qdq_movement, since=10, weight=1.5),
)
