"""Products of matrices, normalizations, recurrent nets, attention, losses and transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from tc.fuzz.builder import F16, F32, F64, FLOATS, I32, I64, Builder, Rejected
from tc.fuzz.operators.row import Row


def matmul(b: Builder) -> None:
    x = b.pick(b.types("MatMul"), ranks=(1, 4))
    k = x.shape[-1]
    n = b.dim()
    batch = [1 if b.chance(0.3) else m for m in x.shape[:-2]]
    batch = batch[b.integer(0, len(batch)) :] if b.chance(0.5) else batch
    if batch and b.chance(0.2):
        batch = [b.dim() if m == 1 and x.shape[i - len(batch) - 2] == 1 else m for i, m in enumerate(batch)]
    shape = (k,) if b.chance(0.1) else (*batch, k, n)
    known = [
        h
        for h in b.pool
        if h.dtype == x.dtype and h.rank >= 2 and h.shape[-2] == k and h.shape[:-2] in ((), x.shape[:-2])
    ]
    y = b.choose(known) if known and b.chance(0.5) else b.data(x.dtype, shape)
    b.emit("MatMul", [x, y])


def gemm(b: Builder) -> None:
    dtypes = b.types("Gemm", within=FLOATS)
    x = b.pick(dtypes, rank=2)
    left, right = b.integer(0, 1), b.integer(0, 1)
    m, k = x.shape[::-1] if left else x.shape
    n = b.dim()
    y = b.data(x.dtype, (n, k) if right else (k, n))
    c = (
        b.data(x.dtype, b.choose(((m, n), (n,), (1, n), (m, 1), (), (1,))))
        if b.chance(0.7) or not b.since(11)
        else None
    )
    attrs: dict[str, Any] = {
        name: value for name, value in (("transA", left), ("transB", right)) if value or b.chance(0.3)
    }
    attrs |= {name: b.choose((0.5, 2.0, -1.0, 0.0)) for name in ("alpha", "beta") if b.chance(0.3)}
    b.emit("Gemm", [x, y, c], **attrs)


def einsum(b: Builder) -> None:
    equation = str(b.choose((
        "ij,jk->ik", "bij,bjk->bik", "bij,bkj->bik", "bhqd,bhkd->bhqk", "ij->ji", "ij->i", "ii->i", "ii->", "i,j->ij", "ij,ij->", "bij,jk",
        "...ij,...jk->...ik", "ij,jk,kl->il", "b i j, j -> b i", "ijk->k", "i,i->", "bqhd,bkhd->bhqk",
    )))  # fmt: skip
    sizes = {letter: b.dim() for letter in equation if letter.isalpha()}
    dtype = b.dtype(b.types("Einsum", within=(F32, F64, I64, I32, F16)))
    operands = []
    for term in equation.split("->")[0].replace(" ", "").split(","):
        dims = [sizes[letter] for letter in term.replace("...", "")]
        operands.append(b.reshaped((dtype,), ([2] if term.startswith("...") and b.chance(0.5) else []) + dims))
    b.emit("Einsum", operands, equation=equation)


def det(b: Builder) -> None:
    n = b.integer(1, 4)
    b.emit("Det", [b.data(F32, (*b.shape(b.integer(0, 2), most=10), n, n))])


def batch_norm(b: Builder) -> None:
    x = b.image(b.types("BatchNormalization"), b.choose((2, 3, 4, 4, 5)))
    c = x.shape[1]
    scale, bias, mean = (b.weights(x.dtype, (c,)) for _ in range(3))
    variance = b.fresh((b.rng.integers(1, 9, c) / 4).astype(x.dtype), "fixed", 0.7)
    b.emit(
        "BatchNormalization",
        [x, scale, bias, mean, variance],
        **({"epsilon": b.choose((1e-5, 1e-3))} if b.chance(0.5) else {}),
    )


def instance_norm(b: Builder) -> None:
    x = b.image(b.types("InstanceNormalization"), b.choose((3, 4, 4, 5)))
    scale, bias = (b.weights(x.dtype, (x.shape[1],)) for _ in range(2))
    b.emit("InstanceNormalization", [x, scale, bias], **({"epsilon": 1e-2} if b.chance(0.7) else {}))


def layer_norm(op: str) -> Row:
    def draw(b: Builder) -> None:
        x = b.pick(b.types(op), ranks=(1, 4))
        axis = b.axis(x.rank)
        shape = x.shape[axis:]
        scale = b.data(x.dtype, shape if b.chance(0.8) else shape[-1:])
        bias = b.data(x.dtype, shape) if op == "LayerNormalization" and b.chance(0.6) else None
        b.emit(op, [x, scale, bias], axis=axis, **({"epsilon": 1e-2} if b.chance(0.7) else {}))

    return Row(op, draw, since=17 if op == "LayerNormalization" else 23, weight=1.5)


def group_norm(b: Builder) -> None:
    x = b.image(b.types("GroupNormalization"), b.choose((3, 4, 5)))
    groups = b.choose([g for g in (1, 2, 3, 4, 8) if x.shape[1] and x.shape[1] % g == 0])
    size = x.shape[1] if b.since(21) else groups
    b.emit(
        "GroupNormalization", [x, b.weights(x.dtype, (size,)), b.weights(x.dtype, (size,))], num_groups=groups, epsilon=1e-2
    )


def mean_variance(b: Builder) -> None:
    x = b.image(b.types("MeanVarianceNormalization"), 4)
    b.emit("MeanVarianceNormalization", [x], **({"axes": sorted(a % 4 for a in b.axes(4, 1))} if b.chance(0.6) else {}))


def lrn(b: Builder) -> None:
    x = b.image(b.types("LRN"), b.choose((4, 4, 3)))
    b.emit(
        "LRN", [x], size=b.choose((1, 3, 5)), **({"alpha": 0.5, "beta": 0.5, "bias": 2.0} if b.chance(0.5) else {})
    )


def recurrent(op: str, gates: int) -> Row:
    def draw(b: Builder) -> None:
        length, batch, width, hidden = b.extent(1, 5), b.choose((1, 2, 3)), b.extent(1, 6), b.extent_of((1, 2, 4, 5, 8))
        direction = b.choose(("forward", "reverse", "bidirectional"))
        ways = 2 if direction == "bidirectional" else 1
        x = b.reshaped((F32,), (length, batch, width))
        w, r = b.weights(F32, (ways, gates * hidden, width)), b.weights(F32, (ways, gates * hidden, hidden))
        bias = b.data(F32, (ways, 2 * gates * hidden)) if b.chance(0.6) else None
        lengths = b.parameter(b.rng.integers(1, length + 1, batch), I32, kind="index") if b.chance(0.4) else None
        start = b.data(F32, (ways, batch, hidden)) if b.chance(0.4) else None
        inputs = [x, w, r, bias, lengths, start]
        if op == "LSTM":
            inputs.append(b.data(F32, (ways, batch, hidden)) if b.chance(0.4) else None)
            inputs.append(b.data(F32, (ways, 3 * hidden)) if b.chance(0.2) else None)
        for held in inputs:
            if held is not None:
                b.finite(held)  # onnxruntime's sigmoid makes a number of NaN
        attrs: dict[str, Any] = {"direction": direction} if ways == 2 or direction == "reverse" or b.chance(0.3) else {}
        if op == "GRU" and b.chance(0.5):
            attrs["linear_before_reset"] = 1
        if op != "LSTM" and b.chance(0.15):  # whether the cell state is clipped before its last activation is read in two ways
            attrs["clip"] = 1.0
        b.emit(op, inputs, b.integer(1, 3 if op == "LSTM" else 2), hidden_size=hidden, **attrs)

    return Row(op, draw)


def attention(b: Builder) -> None:
    batch, heads, length, width = b.integer(1, 2), b.choose((1, 2, 4)), b.extent(1, 5), b.extent_of((2, 4, 8))
    kv_heads = b.choose([g for g in (1, 2, 4) if heads % g == 0])
    past = b.integer(1, 3) if b.chance(0.3) else 0
    keys = b.extent(1, 6)
    dtype = b.choose((F32, F32, F16))
    attrs: dict[str, Any] = {}
    if b.chance(0.5):
        shapes = [(batch, heads, length, width), (batch, kv_heads, keys, width), (batch, kv_heads, keys, width)]
    else:
        shapes = [(batch, length, heads * width), (batch, keys, kv_heads * width), (batch, keys, kv_heads * width)]
        attrs = {"q_num_heads": heads, "kv_num_heads": kv_heads}
    inputs = [b.data(dtype, shape) for shape in shapes]
    mask = b.data(dtype, (length, keys + past)) if b.chance(0.3) else None
    states = [b.data(dtype, (batch, kv_heads, past, width)) for _ in range(2)] if past else []
    if b.chance(0.3):
        attrs["is_causal"] = 1
    if b.chance(0.2):
        attrs["softcap"] = 2.0
    if b.chance(0.3):
        attrs["scale"] = 0.5
    b.emit("Attention", [*inputs, mask, *states], 3 if past else 1, **attrs)


def attention_by_hand(b: Builder) -> None:
    """Softmax(Q K^T * s) V as exporters write it."""
    batch, q, k, d = b.integer(1, 3), b.extent_of((1, 3, 16, 17)), b.extent_of((1, 4, 17)), b.extent_of((1, 4, 8))
    query, key, value = b.data(F32, (batch, q, d)), b.data(F32, (batch, k, d)), b.data(F32, (batch, k, d))
    scores = b.emit("MatMul", [query, b.emit("Transpose", [key], perm=[0, 2, 1])[0]])[0]
    scaled = b.emit("Mul", [scores, b.constant(np.array(0.5, np.float32))])[0]
    if b.chance(0.4):
        scaled = b.emit("Add", [scaled, b.partner(scaled, grow=False)])[0]
    weights = b.emit("Softmax", [scaled], axis=2)[0]
    b.emit("MatMul", [weights, value])


def rotary(b: Builder) -> None:
    batch, heads, length, width = b.integer(1, 2), b.extent(1, 3), b.extent(1, 5), b.extent_of((2, 4, 8))
    cached = b.integer(length, 8)
    caches = [b.data(F32, (cached, width // 2)) for _ in range(2)]
    positions = b.parameter(b.rng.integers(0, cached, (batch, length)), kind="index")
    attrs = {"interleaved": b.integer(0, 1)} if b.chance(0.6) else {}
    b.emit("RotaryEmbedding", [b.data(F32, (batch, heads, length, width)), *caches, positions], **attrs)


def loss(op: str) -> Row:
    def draw(b: Builder) -> None:
        shape = (b.extent(1, 3), b.extent(2, 5), *b.shape(b.integer(0, 2), most=12))
        if 0 in shape:
            raise Rejected("no samples")
        x = b.reshaped((F32,), shape)
        target = b.parameter(b.rng.integers(0, shape[1], (shape[0], *shape[2:])), b.choose((I64, I32)), kind="index")
        weight = (
            b.fresh((b.rng.integers(1, 8, shape[1]) / 4).astype(np.float32), "fixed", 0.3) if b.chance(0.4) else None
        )
        attrs: dict[str, Any] = {"reduction": b.choose(("mean", "sum", "none"))} if b.chance(0.8) else {}
        if b.chance(0.3):
            attrs["ignore_index"] = b.integer(0, shape[1] - 1)
        b.emit(op, [x, target, weight], b.integer(1, 2) if op.startswith("Softmax") else 1, **attrs)

    return Row(op, draw, since=12)


def dft(b: Builder) -> None:
    shape = (b.integer(1, 2), b.extent(2, 9), b.extent(1, 4), b.choose((1, 2)))
    x = b.reshaped((F32,), shape)
    axis = b.integer(1, 2)
    attrs: dict[str, Any] = {}
    if b.chance(0.3):
        attrs["inverse"] = 1
    elif shape[3] == 1 and b.chance(0.4):
        attrs["onesided"] = 1
    length = b.parameter(b.integer(2, 9)) if b.chance(0.3) else None
    if b.since(20):
        b.emit("DFT", [x, length, b.constant(np.array(axis, np.int64))], **attrs)
    else:
        b.emit("DFT", [x, length], axis=axis, **attrs)


def stft(b: Builder) -> None:
    frame, step = b.integer(2, 8), b.integer(1, 4)
    x = b.reshaped((F32,), (b.integer(1, 2), b.extent(frame, 24), 1))
    tail = b.data(F32, (frame,))
    b.emit(
        "STFT",
        [x, b.constant(np.array(step, np.int64)), tail, b.constant(np.array(frame, np.int64))],
        onesided=b.integer(0, 1),
    )


def window_function(op: str) -> Row:
    def draw(b: Builder) -> None:
        b.emit(
            op,
            [b.parameter(b.integer(1, 12), b.choose((I64, I32)))],
            **({"periodic": b.integer(0, 1)} if b.chance(0.6) else {}),
        )

    return Row(op, draw, since=17, weight=0.4)


def mel_weights(b: Builder) -> None:
    numbers = [
        b.constant(np.array(v, t))
        for v, t in ((b.integer(1, 8), I64), (b.choose((8, 16)), I64), (8000, I64), (0.0, F32), (4000.0, F32))
    ]
    b.emit("MelWeightMatrix", numbers)


ROWS = (
    Row("MatMul", matmul, weight=3.0),
    Row("Gemm", gemm, weight=2.0),
    Row("Einsum", einsum, since=12, weight=1.5),
    Row("Det", det, since=11),
    Row("BatchNormalization", batch_norm, weight=1.5),
    Row("InstanceNormalization", instance_norm),
    layer_norm("LayerNormalization"),
    layer_norm("RMSNormalization"),
    Row("GroupNormalization", group_norm, since=18),
    Row("MeanVarianceNormalization", mean_variance, since=9),
    Row("LRN", lrn),
    recurrent("LSTM", 4),
    recurrent("GRU", 3),
    recurrent("RNN", 1),
    Row("Attention", attention, since=23, weight=1.5),
    Row("Attention", attention_by_hand, weight=1.0),
    Row("RotaryEmbedding", rotary, since=23),
    loss("NegativeLogLikelihoodLoss"),
    loss("SoftmaxCrossEntropyLoss"),
    Row("DFT", dft, since=17, weight=0.5),
    Row("STFT", stft, since=17, weight=0.5),
    *(window_function(op) for op in ("HannWindow", "HammingWindow", "BlackmanWindow")),
    Row("MelWeightMatrix", mel_weights, since=17, weight=0.3),
)
