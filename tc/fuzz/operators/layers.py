"""Layers of networks, of the widths that networks have: what runs in blocks of channels, on dot products and on matrix units.

The other tables draw every form of an operator on a few numbers; these draw the usual forms on enough of them that the schedules of large
sums apply, float or between the pairs of a QDQ model. Numbers are of about unit size, so that a few lost terms are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tc.fuzz.builder import F32, I8, I32, I64, U8, Builder, Held, Rejected
from tc.fuzz.operators.row import Row

WIDTHS = (1, 2, 3, 4, 7, 8, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65, 72, 96, 112, 128, 130, 144)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 19, 20, 24, 28)


# -- values


def width(b: Builder) -> int:
    return b.integer(1, 144) if b.chance(0.3) else int(b.choose(WIDTHS))


def fits(b: Builder, *dims: int) -> None:
    if np.prod(dims) > b.style.most_elements:
        raise Rejected("too many elements")


def normal(b: Builder, shape: Sequence[int], spread: float = 1.0) -> np.ndarray:
    return np.asarray(b.rng.standard_normal(tuple(shape)) * spread, np.float32)


def known_or_fresh(b: Builder, ranks: Sequence[int], shape_of: Callable[[], tuple[int, ...]]) -> Held:
    known = [h for h in b.pool if h.dtype == F32 and h.rank in ranks and h.array.size and not h.constant]
    if known and not b.chance(0.1):
        return b.recent(known)
    shape = shape_of()
    fits(b, *shape)
    return b.fresh(normal(b, shape), "data", 0.0)


def image(b: Builder) -> Held:
    """A value of shape (batch, channels, height, width)."""
    return known_or_fresh(b, (4,), lambda: (int(b.choose((1, 1, 1, 2, 3))), width(b), int(b.choose(SIZES)), int(b.choose(SIZES))))


def tokens(b: Builder) -> Held:
    """A value of shape (batch, length, features), or without a batch."""
    return known_or_fresh(b, (2, 3), lambda: (int(b.choose((1, 1, 2, 3))), b.integer(1, 40), width(b))[b.integer(0, 1) :])


def weights(b: Builder, shape: Sequence[int], terms: int) -> Held:
    """Such that a sum of `terms` products is as large as its input."""
    fits(b, *shape)
    return b.fresh(normal(b, shape, 1 / np.sqrt(max(1, terms))), "weights", b.style.p_initializer)


def vector(b: Builder, size: int, offset: float = 0.0) -> Held:
    return b.fresh(normal(b, (size,), 0.3) + np.float32(offset), "weights", b.style.p_initializer)


def per_channel(b: Builder, x: Held, offset: float) -> Held:
    shape = (x.shape[1], 1, 1) if b.chance(0.7) else (1, x.shape[1], 1, 1)
    return b.fresh(normal(b, shape, 0.2) + np.float32(offset), "weights", b.style.p_initializer)


def ints(b: Builder, *values: int) -> Held:
    return b.constant(np.array(values, I64))


# -- quantized values


def steps_of(x: Held, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """A scale, not a power of two, and a zero point with which a value fills the range of bytes but for its largest numbers."""
    lo, hi = min(0.0, float(x.array.min())), max(0.1, float(x.array.max()))
    scale = np.float32(0.9 * (hi - lo) / 255)
    return np.asarray(scale), np.asarray(np.clip(np.rint(np.iinfo(dtype).min - 0.9 * lo / scale), -100, 200)).astype(dtype)


def there_and_back(b: Builder, x: Held) -> Held:
    """The pair of a QDQ model."""
    scale, zero = (b.constant(part) for part in steps_of(b.finite(x), b.choose((U8, U8, I8))))
    return b.emit("DequantizeLinear", [b.emit("QuantizeLinear", [x, scale, zero])[0], scale, zero])[0]


def byte_weights(b: Builder, shape: Sequence[int], terms: int, axis: int) -> tuple[Held, np.ndarray]:
    """Dequantized weights, and their scales."""
    fits(b, *shape)
    dtype = b.choose((I8, I8, I8, U8))
    by_channel = b.chance(0.7)
    size = (shape[axis],) if by_channel else ()
    scales = np.asarray((1 + b.rng.random(size)) / 60 / np.sqrt(max(1, terms)), np.float32)
    zeros = np.zeros(size, dtype) if dtype == I8 else b.rng.integers(110, 140, size).astype(dtype)
    info = np.iinfo(dtype)
    own = [b.rng.integers(info.min, info.max + 1, tuple(shape)).astype(dtype), scales, np.asarray(zeros)]
    return b.emit("DequantizeLinear", [b.constant(v) for v in own], **({"axis": axis} if by_channel else {}))[0], scales


# -- on images


def sliding(b: Builder, sizes: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
    """Kernel and attributes of a convolution."""
    kernel = list(b.choose(((1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (1, 3), (3, 1), (2, 2), (7, 7))))
    dilation = int(b.choose((1, 1, 1, 1, 2, 3)))
    stride = int(b.choose((1, 1, 1, 2, 2, 3)))
    strides = [stride, stride if b.chance(0.9) else 1]
    reach = [(k - 1) * dilation + 1 for k in kernel]
    pads = [r // 2 for r in reach] * 2 if b.chance(0.7) else [b.integer(0, r - 1) for r in (*reach, *reach)]
    if any(n + pads[i] + pads[i + 2] < r for i, (n, r) in enumerate(zip(sizes, reach))):
        raise Rejected("no kernel fits")
    return kernel, {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": [dilation] * 2}


def conv(b: Builder) -> None:
    """A convolution, whole, in groups or of each channel; quantized every third time."""
    x = b.finite(image(b))
    channels = x.shape[1]
    group = channels if b.chance(0.2) else int(b.choose([1, 1, 1, *(g for g in (2, 4, 8) if channels % g == 0)]))
    outputs = group * int(b.choose((1, 1, 1, 2))) if group == channels else group * max(1, width(b) // group)
    kernel, attrs = sliding(b, x.shape[2:])
    shape, terms = (outputs, channels // group, *kernel), channels // group * kernel[0] * kernel[1]
    is_quantized = b.chance(0.35)
    bias: Held | None = None
    if is_quantized:
        x = there_and_back(b, x)
        w, scales = byte_weights(b, shape, terms, 0)
        if b.chance(0.6):
            unit = np.broadcast_to(np.float32(0.01) * scales, (outputs,)).astype(np.float32)
            own = [np.rint(normal(b, (outputs,), 0.3) / unit).astype(I32), unit, np.zeros(outputs, I32)]
            bias = b.emit("DequantizeLinear", [b.constant(v) for v in own], axis=0)[0]
    else:
        w = weights(b, shape, terms)
        bias = vector(b, outputs) if b.chance(0.6) else None
    y = b.emit("Conv", [x, w, bias], **attrs, **({"group": group} if group > 1 else {}))[0]
    if b.chance(0.4):
        y = b.emit("Relu", [y])[0]
    if is_quantized and b.chance(0.8):
        there_and_back(b, y)


def conv_transpose(b: Builder) -> None:
    x = b.finite(image(b))
    size, stride = b.choose(((2, 2), (3, 2), (4, 2), (3, 1)))
    outputs = width(b)
    fits(b, x.shape[0], outputs, x.shape[2] * stride + 2, x.shape[3] * stride + 2)
    attrs = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [b.integer(0, 1) if size > 2 else 0] * 4}
    bias = vector(b, outputs) if b.chance(0.5) else None
    b.emit("ConvTranspose", [x, weights(b, (x.shape[1], outputs, size, size), x.shape[1] * size), bias], **attrs)


def pool(op: str) -> Row:
    def draw(b: Builder) -> None:
        x = b.finite(image(b))
        size = int(b.choose((2, 3, 3, 5)))
        pads = [size // 2] * 4 if b.chance(0.6) else [0] * 4
        if min(x.shape[2:]) + pads[0] * 2 < size:
            raise Rejected("no kernel fits")
        attrs: dict[str, Any] = {"count_include_pad": b.integer(0, 1)} if op == "AveragePool" else {}
        y = b.emit(op, [x], kernel_shape=[size] * 2, strides=[int(b.choose((1, 2, 2)))] * 2, pads=pads, **attrs)[0]
        if b.chance(0.2):
            there_and_back(b, y)

    return Row(op, draw)


def global_pool(b: Builder) -> None:
    b.emit("GlobalAveragePool", [image(b)])


def batch_norm(b: Builder) -> None:
    x = image(b)
    variance = b.fresh((0.5 + b.rng.random(x.shape[1])).astype(np.float32), "fixed", b.style.p_initializer)
    own = [vector(b, x.shape[1], 1.0), vector(b, x.shape[1]), vector(b, x.shape[1]), variance]
    b.emit("BatchNormalization", [x, *own], epsilon=1e-3)


def channelwise(b: Builder) -> None:
    """Arithmetic with a number for each channel, none of them near 0."""
    x = image(b)
    op = b.choose(("Mul", "Add", "Sub", "Div", "PRelu"))
    b.emit(op, [x, per_channel(b, x, 1.5 if op in ("Mul", "Div") else 0.2)])


def residual(b: Builder) -> None:
    """The sum or product of two images, quantized every fourth time."""
    x = image(b)
    same = [h for h in b.pool if h.dtype == F32 and h.shape == x.shape and h is not x and not h.constant]
    y = b.choose(same) if same else b.fresh(normal(b, x.shape), "data", 0.2)
    if b.chance(0.25):
        there_and_back(b, b.emit("Add", [there_and_back(b, x), there_and_back(b, y)])[0])
    else:
        b.emit(b.choose(("Add", "Add", "Mul")), [x, y])


def gate(b: Builder) -> None:
    """Squeeze and excitation."""
    x = b.finite(image(b))
    channels, few = x.shape[1], max(1, x.shape[1] // int(b.choose((2, 4))))
    average = b.emit("GlobalAveragePool", [x])[0] if b.chance(0.5) else mean_over(b, x, [2, 3], 1)
    y = b.emit("Relu", [b.emit("Conv", [average, weights(b, (few, channels, 1, 1), channels), vector(b, few)])[0]])[0]
    y = b.emit("Conv", [y, weights(b, (channels, few, 1, 1), few), vector(b, channels)])[0]
    b.emit("Mul", [x, b.emit(b.choose(("Sigmoid", "HardSigmoid")), [y])[0]])


def concat(b: Builder) -> None:
    x = image(b)
    alike = [h for h in b.pool if h.dtype == F32 and h.rank == 4 and (h.shape[0], *h.shape[2:]) == (x.shape[0], *x.shape[2:])]
    parts = [x, *(b.choose(alike) for _ in range(b.integer(1, 2)))]
    fits(b, x.shape[0], sum(p.shape[1] for p in parts), *x.shape[2:])
    b.emit("Concat", [parts[int(i)] for i in b.rng.permutation(len(parts))], axis=1)


def cut(b: Builder) -> None:
    """Some channels, some rows, or two parts."""
    x = image(b)
    axis = int(b.choose((1, 1, 2, 3)))
    size = x.shape[axis]
    if size < 2:
        raise Rejected("too short")
    first = b.integer(1, size - 1)
    if b.since(13) and b.chance(0.5):
        b.emit("Split", [x, ints(b, first, size - first)], 2, axis=axis)
    else:
        b.emit("Slice", [x, ints(b, b.integer(0, first - 1)), ints(b, first), ints(b, axis)])


def shuffle(b: Builder) -> None:
    x = image(b)
    n, c, h, w = x.shape
    groups = b.choose([g for g in (2, 3, 4, 8) if c % g == 0])
    y = b.emit("Transpose", [b.emit("Reshape", [x, ints(b, n, groups, c // groups, h, w)])[0]], perm=[0, 2, 1, 3, 4])[0]
    b.emit("Reshape", [y, ints(b, n, c, h, w)])


def resize(b: Builder) -> None:
    x = image(b)
    fits(b, 4, *x.shape)
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    form = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    b.emit("Resize", [x, None, scales], **({"mode": "nearest", **form} if b.chance(0.6) else {"mode": "linear"}))


# -- on tokens


def to_tokens(b: Builder) -> None:
    x = image(b)
    n, c, h, w = x.shape
    b.emit("Transpose", [b.emit("Reshape", [x, ints(b, n, c, h * w)])[0]], perm=[0, 2, 1])


def to_image(b: Builder) -> None:
    x = tokens(b)
    n, length, c = (1,) * (3 - x.rank) + x.shape
    h = b.choose([k for k in range(1, length + 1) if length % k == 0])
    b.emit("Reshape", [b.emit("Transpose", [x], perm=[0, 2, 1] if x.rank == 3 else [1, 0])[0], ints(b, n, c, h, length // h)])


def dense(b: Builder) -> None:
    """A product with weights and a bias; Gemm for matrices, at times; quantized every third time."""
    x = b.finite(tokens(b))
    k, n = x.shape[-1], width(b)
    fits(b, *x.shape[:-1], n)
    if b.chance(0.35):
        y = b.emit("MatMul", [there_and_back(b, x), byte_weights(b, (k, n), k, 1)[0]])[0]
        there_and_back(b, b.emit("Add", [y, vector(b, n)])[0] if b.chance(0.6) else y)
    elif x.rank == 2 and b.chance(0.5):
        b.emit("Gemm", [x, weights(b, (n, k), k), vector(b, n)], transB=1)
    else:
        b.emit("Add", [b.emit("MatMul", [x, weights(b, (k, n), k)])[0], vector(b, n)])


def dynamic_dense(b: Builder) -> None:
    """As onnxruntime's dynamic quantization writes it."""
    x = b.finite(tokens(b))
    k, n = x.shape[-1], width(b)
    fits(b, k, n)
    own, scale, zero = b.emit("DynamicQuantizeLinear", [x], 3)
    w = b.constant(b.rng.integers(-128, 128, (k, n)).astype(I8))
    total = b.emit("Cast", [b.emit("MatMulInteger", [own, w, zero])[0]], to=1)[0]
    by = b.emit("Mul", [scale, b.constant(np.asarray(1 / 70 / np.sqrt(k), np.float32))])[0]
    b.emit("Mul", [total, by])


def norm(b: Builder) -> None:
    x = tokens(b)
    n = x.shape[-1]
    b.emit("LayerNormalization", [x, vector(b, n, 1.0), vector(b, n) if b.chance(0.7) else None], axis=-1, epsilon=1e-2)


def attention(b: Builder) -> None:
    """Heads of products and a softmax, as exporters write it; over the tokens themselves, or others."""
    x = b.finite(tokens(b))
    if x.rank == 2:
        x = b.emit("Reshape", [x, ints(b, 1, *x.shape)])[0]
    batch, length, features = x.shape
    heads = b.choose([h for h in (1, 2, 3, 4, 8) if features % h == 0])
    each = features // heads
    fits(b, batch, heads, length, length)

    def projected(perm: list[int]) -> Held:
        y = b.emit("MatMul", [x, weights(b, (features, features), features)])[0] if b.chance(0.7) else x
        return b.emit("Transpose", [b.emit("Reshape", [y, ints(b, batch, length, heads, each)])[0]], perm=perm)[0]

    q, k, v = projected([0, 2, 1, 3]), projected([0, 2, 3, 1]), projected([0, 2, 1, 3])
    scores = b.emit("Mul", [b.emit("MatMul", [q, k])[0], b.constant(np.array(1 / np.sqrt(each), np.float32))])[0]
    if b.chance(0.4):
        mask = np.where(b.rng.random((length, length)) < 0.3, -1e4, 0) * (1 - np.eye(length))
        scores = b.emit("Add", [scores, b.fresh(np.asarray(mask, np.float32), "weights", 0.5)])[0]
    y = b.emit("MatMul", [b.emit("Softmax", [scores], axis=-1)[0], v])[0]
    b.emit("Reshape", [b.emit("Transpose", [y], perm=[0, 2, 1, 3])[0], ints(b, batch, length, features)])


def pair(b: Builder) -> None:
    """The product of two activations, one of them transposed."""
    x = b.finite(tokens(b))
    if x.rank == 3:
        b.emit("MatMul", [b.emit("Mul", [x, b.constant(np.array(1 / np.sqrt(x.shape[2]), np.float32))])[0],
                          b.emit("Transpose", [x], perm=[0, 2, 1])[0]])  # fmt: skip
    else:
        k = x.shape[1]
        b.emit("MatMul", [x, b.fresh(normal(b, (k, b.integer(1, 70)), 1 / np.sqrt(k)), "data", 0.0)])


# -- on both


def mean_over(b: Builder, x: Held, axes: list[int], keepdims: int) -> Held:
    if b.since(18):
        return b.emit("ReduceMean", [x, ints(b, *axes)], keepdims=keepdims)[0]
    return b.emit("ReduceMean", [x], axes=axes, keepdims=keepdims)[0]


def any_of(b: Builder) -> Held:
    return image(b) if b.chance(0.7) else tokens(b)


def activation(b: Builder) -> None:
    x = any_of(b)
    op = b.choose(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Softplus", "HardSwish", "HardSigmoid", "Clip", "Swish", "Gelu", "Erf"))
    match op:
        case "HardSwish" if not b.since(14):
            raise Rejected("not yet")
        case "Clip":
            b.emit("Clip", [x, b.constant(np.array(-0.7, np.float32)), b.constant(np.array(6, np.float32))])
        case "Swish":
            b.emit("Mul", [x, b.emit("Sigmoid", [x])[0]])
        case "Gelu":
            half, one, root = (b.constant(np.array(v, np.float32)) for v in (0.5, 1, 2**-0.5))
            inner = b.emit("Add", [b.emit("Erf", [b.emit("Mul", [x, root])[0]])[0], one])[0]
            b.emit("Mul", [b.emit("Mul", [x, half])[0], inner])
        case _:
            b.emit(op, [x])


def bytes_between(b: Builder) -> None:
    there_and_back(b, any_of(b))


def softmax(b: Builder) -> None:
    x = any_of(b)
    b.emit("Softmax", [x], axis=b.integer(1, x.rank - 1))


def mean(b: Builder) -> None:
    x = any_of(b)
    mean_over(b, x, [2, 3] if x.rank == 4 else [x.rank - 2], b.integer(0, 1))


ROWS = (
    Row("Conv", conv, weight=8.0),
    Row("ConvTranspose", conv_transpose, weight=0.7),
    pool("MaxPool"),
    pool("AveragePool"),
    Row("GlobalAveragePool", global_pool, weight=0.5),
    Row("BatchNormalization", batch_norm),
    Row("Mul", channelwise, weight=1.5),
    Row("Add", residual, weight=2.0),
    Row("Mul", gate, weight=0.7),
    Row("Concat", concat, weight=1.5),
    Row("Split", cut, weight=1.5),
    Row("Reshape", shuffle, weight=0.5),
    Row("Resize", resize, weight=0.5),
    Row("Transpose", to_tokens, weight=0.8),
    Row("Reshape", to_image, weight=0.5),
    Row("MatMul", dense, weight=4.0),
    Row("MatMulInteger", dynamic_dense, weight=0.7),
    Row("LayerNormalization", norm, since=17),
    Row("Softmax", attention, weight=1.5),
    Row("MatMul", pair, weight=0.7),
    Row("Relu", activation, weight=3.0),
    Row("QuantizeLinear", bytes_between),
    Row("Softmax", softmax, weight=0.4),
    Row("ReduceMean", mean, weight=0.5),
)
