"""Operators on blocked layouts: channels are cut into blocks of `block`, and a block is the innermost axis.

An activation [n, c, *space] becomes [n, ceil(c / block), *space, block]. The lanes of the last block past c hold unspecified
values: nothing may let them reach another lane. Weights of a convolution become [ceil(o / block), i, *kernel, block] and
the right operand of a matmul [ceil(n / block), k, block], both with zeros in the lanes past the end.
Source: the NCHWc layouts of "Optimizing CNN Model Inference on CPUs" (Liu et al., 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tc import te
from tc.ir.dtype import bf16, f16, f32
from tc.ir.expr import Expr, cast, ceildiv, const, logical_and, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.registry import REQUIRED, OpDef, register
from tc.te import Tensor


def _block_type(type_: TensorType, axis: int, block: int) -> TensorType:
    shape = list(type_.shape)
    shape[axis] = ceildiv(shape[axis], block)
    return TensorType((*shape, const(block)), type_.dtype)


def infer_block(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """[..., c, ...] -> [..., ceil(c / block), ..., block]."""
    assert types[0] is not None
    return _block_type(types[0], attrs.axis, attrs.block)


def reference_block(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    axis, block = attrs.axis, attrs.block
    size = x.shape[axis]
    padded = -(-size // block) * block
    pads = [(0, padded - size if d == axis else 0) for d in range(x.ndim)]
    x = np.pad(x, pads)
    x = x.reshape((*x.shape[:axis], padded // block, block, *x.shape[axis + 1 :]))
    return np.ascontiguousarray(np.moveaxis(x, axis + 1, -1))


def compute_block(tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    axis, block = attrs.axis, attrs.block

    def body(*axes: Expr) -> Expr:
        channel = axes[axis] * block + axes[-1]
        value = x[(*axes[:axis], channel, *axes[axis + 1 : -1])]
        size = x.shape[axis]
        if (size % block) is const(0):
            return value
        return select(channel < size, value, const(0, x.dtype))

    return te.compute(types[0].shape, body, "blocked")


register(
    OpDef(
        "block",
        infer_block,
        reference_block,
        compute_block,
        {"axis": REQUIRED, "block": REQUIRED},
        samples=lambda rng: iter(
            [
                ([rng.standard_normal((2, 32, 3), dtype=np.float32)], {"axis": 1, "block": 16}),
                ([rng.standard_normal((2, 5, 3, 2), dtype=np.float32)], {"axis": 1, "block": 4}),
                ([rng.standard_normal((7, 3), dtype=np.float32)], {"axis": 0, "block": 8}),
            ]
        ),
    )
)


def infer_unblock(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """[..., ceil(c / block), ..., block] -> [..., c, ...], c being `size`."""
    assert types[0] is not None
    shape = list(types[0].shape[:-1])
    shape[attrs.axis] = attrs.size if isinstance(attrs.size, Expr) else const(attrs.size)
    return TensorType(tuple(shape), types[0].dtype)


def reference_unblock(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    axis, size = attrs.axis, int(attrs.size)
    x = np.moveaxis(x, -1, axis + 1)
    x = x.reshape((*x.shape[:axis], -1, *x.shape[axis + 2 :]))
    return np.ascontiguousarray(x[(slice(None),) * axis + (slice(0, size),)])


def compute_unblock(tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    axis, block = attrs.axis, x.shape[-1]

    def body(*axes: Expr) -> Expr:
        return x[(*axes[:axis], axes[axis] // block, *axes[axis + 1 :], axes[axis] % block)]

    return te.compute(types[0].shape, body, "unblocked")


register(
    OpDef(
        "unblock",
        infer_unblock,
        reference_unblock,
        compute_unblock,
        {"axis": REQUIRED, "size": REQUIRED},
        samples=lambda rng: iter(
            [
                ([rng.standard_normal((2, 2, 3, 16), dtype=np.float32)], {"axis": 1, "size": 32}),
                ([rng.standard_normal((2, 2, 3, 2, 4), dtype=np.float32)], {"axis": 1, "size": 5}),
            ]
        ),
    )
)


def _accumulator(dtype: Any) -> Any:
    return f32 if dtype in (f16, bf16) else dtype


def infer_conv_blocked(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """x [n, cb, *space, b] or, if `in_block` is 0, [n, c, *space]; w [ob, i, *kernel, b] -> [n, ob, *space', b]."""
    x, w = types[0], types[1]
    assert x is not None and w is not None
    rank = len(attrs.strides)
    space = x.shape[2 : 2 + rank]
    out = []
    for d in range(rank):
        reach = (w.shape[2 + d] - 1) * attrs.dilations[d] + 1
        out.append((space[d] + (attrs.pads[d] + attrs.pads[rank + d]) - reach) // attrs.strides[d] + 1)
    return TensorType((x.shape[0], w.shape[0], *out, w.shape[-1]), x.dtype)


def reference_conv_blocked(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    x, w = arrays[0], arrays[1]
    assert x is not None and w is not None
    rank = len(attrs.strides)
    block = w.shape[-1]
    if attrs.in_block:
        x = reference_unblock([x], Attrs((("axis", 1), ("size", attrs.in_channels))))
    pads = [(attrs.pads[d], attrs.pads[rank + d]) for d in range(rank)]
    x = np.pad(x, [(0, 0), (0, 0), *pads]).astype(np.promote_types(x.dtype, np.float32))
    windows = np.lib.stride_tricks.sliding_window_view(
        x,
        tuple((k - 1) * dil + 1 for k, dil in zip(w.shape[2:-1], attrs.dilations, strict=True)),
        axis=tuple(range(2, 2 + rank)),
    )
    steps = tuple(slice(None, None, s) for s in attrs.strides)
    taps = tuple(slice(None, None, d) for d in attrs.dilations)
    windows = windows[(slice(None), slice(None), *steps, *taps)]
    kernel_axes = list(range(2 + rank, 2 + 2 * rank))
    groups, per_group = attrs.groups, w.shape[1]
    blocks = w.shape[0]
    out = np.zeros((x.shape[0], *windows.shape[2 : 2 + rank], blocks, block), x.dtype)
    if groups > 1 and per_group == 1:  # depthwise
        for ob in range(blocks):
            channels = range(ob * block, min((ob + 1) * block, attrs.in_channels))
            for lane, c in enumerate(channels):
                out[..., ob, lane] = np.tensordot(
                    windows[:, c], w[ob, 0, ..., lane].astype(x.dtype), (kernel_axes_of(windows[:, c], rank), range(rank))
                )
    else:
        for ob in range(blocks):
            group = ob // (blocks // groups)
            chosen = windows[:, group * per_group : (group + 1) * per_group]
            out[..., ob, :] = np.tensordot(
                chosen, w[ob].astype(x.dtype), ([1, *kernel_axes], list(range(1 + rank)))
            )
    return np.ascontiguousarray(np.moveaxis(out, -2, 1)).astype(arrays[0].dtype)  # type: ignore[union-attr]


def kernel_axes_of(windows: np.ndarray, rank: int) -> list[int]:
    """The window axes of a sliding-window view: the last `rank` ones."""
    return list(range(windows.ndim - rank, windows.ndim))


def compute_conv_blocked(tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, w = tensors[0], tensors[1]
    assert x is not None and w is not None
    rank = len(attrs.strides)
    x = _padded(x, attrs.pads, rank)
    depthwise = attrs.groups > 1 and w.shape[1] is const(1)
    out_type = types[0]
    sum_dtype = _accumulator(x.dtype)

    def element(tensor: Tensor, n: Expr, channel: Expr, space: Sequence[Expr]) -> Expr:
        if attrs.in_block:
            return tensor[(n, channel // attrs.in_block, *space, channel % attrs.in_block)]
        return tensor[(n, channel, *space)]

    def body(*axes: Expr) -> Expr:
        n, ob, *rest = axes
        space, lane = rest[:rank], rest[rank]
        reduce_axes = rest[rank + 1 :]
        taps = reduce_axes[-rank:]
        where = [
            y * stride + tap * dilation
            for y, stride, tap, dilation in zip(space, attrs.strides, taps, attrs.dilations, strict=True)
        ]
        if depthwise:
            value = x[(n, ob, *where, lane)]
            weight = w[(ob, const(0), *taps, lane)]
        else:
            channel = reduce_axes[0]
            if attrs.groups > 1:
                first = ob // (w.shape[0] // attrs.groups) * w.shape[1]
                value = element(x, n, first + channel, where)
            else:
                value = element(x, n, channel, where)
            weight = w[(ob, channel, *taps, lane)]
        return cast(value, sum_dtype) * cast(weight, sum_dtype)

    reduce_shape = w.shape[2:-1] if depthwise else w.shape[1:-1]
    total = te.reduce("sum", out_type.shape, reduce_shape, body, "conv")
    if total.dtype == out_type.dtype:
        return total
    return te.compute(out_type.shape, lambda *axes: cast(total[axes], out_type.dtype), "rounded")


def _padded(x: Tensor, pads: Sequence[int], rank: int) -> Tensor:
    """`x` with zeros around its spatial axes (2 .. 2 + rank); itself when there are none."""
    if not any(pads):
        return x
    begin, end = pads[:rank], pads[rank:]
    space = [x.shape[2 + d] + (begin[d] + end[d]) for d in range(rank)]

    def body(*axes: Expr) -> Expr:
        inner = [axes[2 + d] - begin[d] for d in range(rank)]
        inside = [
            condition
            for d in range(rank)
            for condition in ((inner[d] >= 0) if begin[d] else None, (inner[d] < x.shape[2 + d]) if end[d] else None)
            if condition is not None
        ]
        value = x[(*axes[:2], *inner, *axes[2 + rank :])]
        return select(logical_and(*inside), value, const(0, x.dtype))

    return te.compute((*x.shape[:2], *space, *x.shape[2 + rank :]), body, "conv_pad")


register(
    OpDef(
        "conv_blocked",
        infer_conv_blocked,
        reference_conv_blocked,
        compute_conv_blocked,
        {
            "strides": REQUIRED,
            "pads": REQUIRED,
            "dilations": REQUIRED,
            "groups": 1,
            "in_channels": REQUIRED,
            "in_block": REQUIRED,
        },
        samples=lambda rng: _conv_samples(rng),
    )
)


def _conv_samples(rng: np.random.Generator) -> Any:
    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    def attrs(in_channels: int, in_block: int, **changes: Any) -> dict[str, Any]:
        base = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
        return {**base, "in_channels": in_channels, "in_block": in_block, **changes}

    yield [normal(1, 2, 5, 6, 4), normal(3, 8, 3, 3, 4)], attrs(8, 4)
    yield [normal(1, 2, 5, 6, 4), normal(3, 7, 1, 1, 4)], attrs(7, 4, pads=(0, 0, 0, 0), strides=(2, 2))
    yield [normal(2, 3, 7, 5), normal(2, 3, 3, 3, 4)], attrs(3, 0, strides=(2, 1), pads=(0, 1, 2, 1))
    yield [normal(1, 2, 6, 6, 4), normal(2, 1, 3, 3, 4)], attrs(8, 4, groups=8)
    yield [normal(1, 4, 6, 6, 4), normal(4, 8, 3, 3, 4)], attrs(16, 4, groups=2, dilations=(2, 2), pads=(2, 2, 2, 2))


def infer_matmul_packed(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """lhs [..., m, k], rhs [ceil(n / b), k, b] -> [..., m, n]."""
    lhs, _ = types[0], types[1]
    assert lhs is not None
    return TensorType((*lhs.shape[:-1], const(attrs.columns)), lhs.dtype)


def reference_matmul_packed(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    lhs, rhs = arrays[0], arrays[1]
    assert lhs is not None and rhs is not None
    plain = np.moveaxis(rhs, 2, 1).reshape(-1, rhs.shape[1])[: attrs.columns]
    return np.matmul(lhs, plain.T)


def compute_matmul_packed(tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    lhs, rhs = tensors[0], tensors[1]
    assert lhs is not None and rhs is not None
    block = rhs.shape[2]
    out_type = types[0]
    sum_dtype = _accumulator(out_type.dtype)

    def body(*axes: Expr) -> Expr:
        *rows, j, k = axes
        return cast(lhs[(*rows, k)], sum_dtype) * cast(rhs[j // block, k, j % block], sum_dtype)

    total = te.reduce("sum", out_type.shape, (lhs.shape[-1],), body, "matmul")
    if total.dtype == out_type.dtype:
        return total
    return te.compute(out_type.shape, lambda *axes: cast(total[axes], out_type.dtype), "rounded")


register(
    OpDef(
        "matmul_packed",
        infer_matmul_packed,
        reference_matmul_packed,
        compute_matmul_packed,
        {"columns": REQUIRED},
        samples=lambda rng: iter(
            [
                (
                    [rng.standard_normal((3, 5), dtype=np.float32), rng.standard_normal((3, 5, 4), dtype=np.float32)],
                    {"columns": 11},
                ),
                (
                    [rng.standard_normal((2, 3, 5), dtype=np.float32), rng.standard_normal((2, 5, 4), dtype=np.float32)],
                    {"columns": 8},
                ),
            ]
        ),
    )
)
