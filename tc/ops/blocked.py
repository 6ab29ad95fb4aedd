"""Operators on blocked layouts: channels are cut into blocks of `block`, and a block is the innermost axis.

An activation [n, c, *space] becomes [n, ceil(c / block), *space, block]. The lanes of the last block past c hold unspecified
values: nothing may let them reach another lane, but times zeros, where they are numbers (see `keep_channels`). Weights of a convolution
become [ceil(o / block), ceil(i / block), *kernel, block, block] and the right operand of a matmul [ceil(n / block), k, block], both with
zeros in the lanes past the end. For instructions that add several products at once the terms of a group lie side by side there:
[ceil(o / block), ceil(i / block), *kernel, block / group, block, group] and [ceil(n / block), ceil(k / group), block, group].
Source: the NCHWc layouts of "Optimizing CNN Model Inference on CPUs" (Liu et al., 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.ir.arith import simplify
from tc.ir.dtype import bf16, f16, f32, i8, i16, i32, u8
from tc.ir.expr import Expr, cast, ceildiv, const, equal, logical_and, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import contract, product_dtype, ravel, require_equal, rounded_sums, sliding_windows, unravel, wide
from tc.ops.registry import REQUIRED, OpDef, register, require
from tc.ops.window import is_pointwise, window_of
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
    room = shape[attrs.axis] * types[0].shape[-1]
    require(attrs.size <= room, f"unblock: {types[0]} holds {simplify(room)} of {attrs.size} elements along axis {attrs.axis}")
    shape[attrs.axis] = attrs.size if isinstance(attrs.size, Expr) else const(attrs.size)
    return TensorType(tuple(shape), types[0].dtype)


def reference_unblock(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    axis, size = attrs.axis, int(attrs.size)
    x = np.moveaxis(x, -1, axis + 1)
    x = x.reshape((*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))
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


def _infer_keep(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """[n, ceil(c / block), *space, block] as it is, c being `size`."""
    x = types[0]
    assert x is not None
    require(attrs.size <= x.shape[1] * x.shape[-1], f"keep_channels: {x} holds no {attrs.size} channels")
    return x


def _reference_keep(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    channel = np.arange(x.shape[1]).reshape(-1, *[1] * (x.ndim - 2)) * x.shape[-1] + np.arange(x.shape[-1])
    return np.where(channel < attrs.size, x, np.zeros((), x.dtype))


def _compute_keep(tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None

    def body(*axes: Expr) -> Expr:
        return select(axes[1] * x.shape[-1] + axes[-1] < attrs.size, x[axes], const(0, x.dtype))

    return te.compute(types[0].shape, body, "kept")


register(
    OpDef(
        "keep_channels",
        _infer_keep,
        _reference_keep,
        _compute_keep,
        {"size": REQUIRED},
        samples=lambda rng: iter(
            [
                ([rng.standard_normal((2, 2, 3, 4), dtype=np.float32)], {"size": 6}),
                ([np.full((1, 2, 2, 2, 8), np.nan, np.float32)], {"size": 11}),
                ([rng.standard_normal((1, 1, 3, 4), dtype=np.float32)], {"size": 4}),
            ]
        ),
    )
)


def _accumulator(dtype: Any) -> Any:
    return f32 if dtype in (f16, bf16) else i32 if dtype in (i8, u8, i16) else dtype


def _check_blocked_weights(x: TensorType, w: TensorType, attrs: Attrs) -> None:
    """State what the loops of `conv_blocked` read: the weights' input channels, and the input's."""
    channels, block = attrs.in_channels, attrs.in_block
    have = x.shape[1] * block if block else x.shape[1]
    require(channels <= have, f"conv_blocked: {x} holds {simplify(have)} of {channels} channels")
    if block:
        require_equal(x.shape[-1], const(block), f"conv_blocked: the block of {x}")
    lanes = _lanes(w.shape, attrs)
    if attrs.depthwise:
        require_equal(w.shape[1], const(1), f"conv_blocked: dim 1 of the depthwise weights {w}")
        require_equal(w.shape[0], ceildiv(const(channels), lanes), f"conv_blocked: dim 0 of the depthwise weights {w}")
        return
    require(equal(w.shape[0] % attrs.groups, 0), f"conv_blocked: {w.shape[0]} blocks of results in {attrs.groups} groups")
    own = channels // attrs.groups
    require_equal(w.shape[1], const(-(-own // (block or 1))), f"conv_blocked: dim 1 of the weights {w}")
    if _is_grouped(w.shape, attrs):
        require_equal(simplify(w.shape[-3] * w.shape[-1]), const(block), f"conv_blocked: the block of inputs of {w}")
    elif block:
        require_equal(w.shape[-2], const(block), f"conv_blocked: the block of inputs of {w}")


def _is_grouped(shape: Sequence[Any], attrs: Attrs) -> bool:
    """Whether terms lie side by side behind the output lanes of weights of this shape."""
    return len(shape) == len(attrs.strides) + 5


def _lanes(shape: Sequence[Any], attrs: Attrs) -> Any:
    """The output lanes of weights of this shape."""
    return shape[-2 if _is_grouped(shape, attrs) else -1]


def require_blocked_bias(types: Sequence[TensorType | None], blocks: Expr, block: Expr, op: str) -> None:
    """State that a third operand has the blocks of the result."""
    bias = types[2] if len(types) > 2 else None
    if bias is not None:
        require_equal(bias.shape[0], blocks, f"{op}: the blocks of the bias {bias}")
        require_equal(bias.shape[-1], block, f"{op}: the last dim of the bias {bias}")


def infer_conv_blocked(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """x [n, cb, *space, b] or, if `in_block` is 0, [n, c, *space] -> [n, ob, *space', b].

    w is [ob, ceil(i / b), *kernel, b, b] (input lanes before output lanes), [ob, ceil(i / b), *kernel, b / g, b, g] with g terms side by
    side, or [ob, i, *kernel, b] for a plain x; [ob, 1, *kernel, b] if `depthwise`. A third operand [ob, b] is added. i is the number of
    input channels of one group, which the blocks must not straddle. Bytes, and i16, are summed in i32; sums of floats are of `dtype`.
    Around x there is `fill`.
    """
    x, w = types[0], types[1]
    assert x is not None and w is not None
    rank = len(attrs.strides)
    _check_blocked_weights(x, w, attrs)
    lanes = _lanes(w.shape, attrs)
    require_blocked_bias(types, w.shape[0], lanes, "conv_blocked")
    space = x.shape[2 : 2 + rank]
    out = []
    for d in range(rank):
        reach = (w.shape[2 + d] - 1) * attrs.dilations[d] + 1
        out.append((space[d] + (attrs.pads[d] + attrs.pads[rank + d]) - reach) // attrs.strides[d] + 1)
    is_integer = x.dtype in (i8, u8, i16)
    return TensorType((x.shape[0], w.shape[0], *out, lanes), _accumulator(x.dtype) if is_integer else product_dtype(attrs, x.dtype))


def reference_conv_blocked(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    x, w = arrays[0], arrays[1]
    assert x is not None and w is not None
    rank, groups, block = len(attrs.strides), attrs.groups, _lanes(w.shape, attrs)
    is_integer = x.dtype.kind in "iu" and x.dtype.itemsize <= 2
    if _is_grouped(w.shape, attrs):  # [..., i / g, o, g] -> [..., i, o]
        w = np.moveaxis(w, -1, -2)
        w = w.reshape(*w.shape[: 2 + rank], -1, block)
    if attrs.in_block:
        x = reference_unblock([x], Attrs((("axis", 1), ("size", attrs.in_channels))))
    if attrs.in_block and not attrs.depthwise:  # [ob, ib, *kernel, i, o] -> [ob, i, *kernel, o]
        w = np.moveaxis(w, -2, 2).reshape(w.shape[0], -1, *w.shape[2 : 2 + rank], block)[:, : x.shape[1] // groups]
    plain = np.moveaxis(w, -1, 1).reshape(-1, *w.shape[1 : 2 + rank])  # [o, i, *kernel]
    pads = [(attrs.pads[d], attrs.pads[rank + d]) for d in range(rank)]
    sums = np.int32 if is_integer else np.promote_types(x.dtype, np.float32)
    x = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=attrs.fill).astype(sums)
    if attrs.depthwise:
        plain = plain[: x.shape[1]]
    out = _direct_conv(x, plain.astype(sums), attrs.strides, attrs.dilations, x.shape[1] if attrs.depthwise else groups)
    if len(arrays) > 2 and arrays[2] is not None:
        out = out + arrays[2].reshape(-1)[: out.shape[1]].reshape(1, -1, *(1,) * rank)
    out = reference_block([out], Attrs((("axis", 1), ("block", block))))
    return out if is_integer else rounded_sums(out, attrs, arrays[0])  # type: ignore[arg-type]


def _direct_conv(
    x: np.ndarray, w: np.ndarray, strides: Sequence[int], dilations: Sequence[int], groups: int
) -> np.ndarray:
    """x [n, c, *space], w [o, c / groups, *kernel] -> [n, o, *space'], without padding."""
    rank = len(strides)
    reach = tuple((k - 1) * dilation + 1 for k, dilation in zip(w.shape[2:], dilations, strict=True))
    windows = sliding_windows(x, reach, range(2, 2 + rank))
    steps = tuple(slice(None, None, s) for s in strides)
    taps = tuple(slice(None, None, d) for d in dilations)
    windows = windows[(slice(None), slice(None), *steps, *taps)]
    per_group, per_out = w.shape[1], w.shape[0] // groups
    contracted = list(range(2 + rank, 2 + 2 * rank))
    parts = [
        contract(
            windows[:, g * per_group : (g + 1) * per_group],
            w[g * per_out : (g + 1) * per_out],
            ([1, *contracted], list(range(1, 2 + rank))),
        )
        for g in range(groups)
    ]
    return np.ascontiguousarray(np.moveaxis(np.concatenate(parts, -1), -1, 1))


def compute_conv_blocked(tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, w = tensors[0], tensors[1]
    assert x is not None and w is not None
    rank, block = len(attrs.strides), attrs.in_block
    out_type = types[0]
    sum_dtype = _accumulator(x.dtype)
    is_plain = not block and not attrs.depthwise  # each element is read alone, for many channels: the copy has what they are multiplied in
    x = _padded(x, attrs.pads, rank, const(attrs.fill, sum_dtype if is_plain and x.dtype.is_float else x.dtype))
    per_group = attrs.in_channels // attrs.groups
    terms = int(w.shape[-1].value) if _is_grouped(w.shape, attrs) else 1  # type: ignore[attr-defined]
    depth = -(-per_group // terms) * terms  # lanes past the end of x are multiplied by zeros

    def body(*axes: Expr) -> Expr:
        n, ob, *rest = axes
        space, lane, reduce_axes = rest[:rank], rest[rank], rest[rank + 1 :]
        taps = reduce_axes[-rank:]
        where = [
            y * stride + tap * dilation
            for y, stride, tap, dilation in zip(space, attrs.strides, taps, attrs.dilations, strict=True)
        ]
        if attrs.depthwise:
            value, weight = x[(n, ob, *where, lane)], w[(ob, const(0), *taps, lane)]
            return cast(value, sum_dtype) * cast(weight, sum_dtype)
        channel = reduce_axes[0]
        group = ob // (w.shape[0] // attrs.groups)
        if block:
            first = group * (per_group // block) if attrs.groups > 1 else const(0)
            value = x[(n, first + channel // block, *where, channel % block)]
            inside = (channel % block, lane) if terms == 1 else (channel % block // terms, lane, channel % terms)
            weight = w[(ob, channel // block, *taps, *inside)]
        else:
            first = group * per_group if attrs.groups > 1 else const(0)
            value = x[(n, first + channel, *where)]
            weight = w[(ob, channel, *taps, lane)]
        return cast(value, sum_dtype) * cast(weight, sum_dtype)

    if not attrs.depthwise and is_pointwise(window_of(attrs, w.shape[2 : 2 + rank], rank, "conv")):
        return _pointwise(body, out_type, tensors, depth, rank)
    kernel = w.shape[2 : 2 + rank]
    reduce_shape = kernel if attrs.depthwise else (const(depth), *kernel)
    total = te.reduce("sum", out_type.shape, reduce_shape, body, "conv")
    bias = tensors[2] if len(tensors) > 2 else None
    if bias is None and total.dtype == out_type.dtype:
        return total
    return _finished(lambda *axes: total[axes], bias, out_type)


def _finished(total: Callable[..., Expr], bias: Tensor | None, type_: TensorType) -> Tensor:
    """The sums plus one number per channel, in the dtype of the result."""

    def finish(*axes: Expr) -> Expr:
        value = total(*axes)
        if bias is not None:
            value = value + cast(bias[axes[1], axes[-1]], value.dtype)
        return cast(value, type_.dtype)

    return te.compute(type_.shape, finish, "conv_bias")


def _pointwise(
    body: Callable[..., Expr], type_: TensorType, tensors: Sequence[Tensor | None], depth: int, rank: int
) -> Tensor:
    """A kernel of one element, without axes for its taps; all spatial axes as one, so that tiles of pixels run on across ends of rows."""
    n, blocks, *space, lanes = type_.shape

    def over_pixels(batch: Expr, ob: Expr, pixel: Expr, lane: Expr, channel: Expr) -> Expr:
        return body(batch, ob, *unravel(pixel, space), lane, channel, *(const(0) for _ in space))

    total = te.reduce("sum", (n, blocks, simplify(product(space)), lanes), (const(depth),), over_pixels, "conv")
    bias = tensors[2] if len(tensors) > 2 else None
    return _finished(lambda b, ob, *rest: total[b, ob, ravel(rest[:rank], space), rest[rank]], bias, type_)


def _padded(x: Tensor, pads: Sequence[int], rank: int, fill: Expr) -> Tensor:
    """`x` with `fill` around its spatial axes (2 .. 2 + rank), in the type of this; itself when there are none."""
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
        return select(logical_and(*inside), cast(value, fill.dtype), fill)

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
            "depthwise": False,
            "in_channels": REQUIRED,
            "in_block": REQUIRED,
            "fill": 0,
            "dtype": None,
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

    yield [normal(1, 2, 5, 6, 4), normal(3, 2, 3, 3, 4, 4)], attrs(8, 4)
    yield [normal(1, 2, 5, 6, 4), normal(3, 2, 1, 1, 4, 4)], attrs(7, 4, pads=(0, 0, 0, 0), strides=(2, 2))
    yield [normal(2, 3, 7, 5), normal(2, 3, 3, 3, 4), normal(2, 4)], attrs(3, 0, strides=(2, 1), pads=(0, 1, 2, 1))
    yield [normal(1, 2, 6, 6, 4), normal(2, 1, 3, 3, 4)], attrs(8, 4, depthwise=True)
    yield [normal(1, 2, 9, 4), normal(2, 1, 3, 4)], attrs(8, 4, depthwise=True, strides=(2,), pads=(1, 1), dilations=(2,))
    yield (
        [normal(1, 4, 6, 6, 4), normal(4, 2, 3, 3, 4, 4)],
        attrs(16, 4, groups=2, dilations=(2, 2), pads=(2, 2, 2, 2)),
    )
    yield [normal(1, 2, 5, 6, 4), normal(3, 2, 3, 3, 2, 4, 2)], attrs(8, 4)
    halves = [normal(1, 2, 5, 6, 4).astype(bf16.numpy), normal(3, 2, 3, 3, 2, 4, 2).astype(bf16.numpy)]
    yield [*halves, normal(3, 4)], attrs(8, 4, dtype=f32)

    def draw(low: int, high: int, *shape: int) -> np.ndarray:
        return rng.integers(low, high, shape).astype(np.int8 if low < 0 else np.uint8)

    def image(*shape: int) -> np.ndarray:
        return draw(0, 256, *shape)

    def weights(*shape: int) -> np.ndarray:
        return draw(-128, 128, *shape)

    yield [image(1, 2, 5, 6, 8), weights(3, 2, 3, 3, 2, 16, 4)], attrs(16, 8, fill=255)
    yield [image(1, 1, 5, 6, 4), weights(3, 1, 3, 2, 1, 16, 4)], attrs(4, 4, fill=3, strides=(2, 1), dilations=(1, 2))
    yield [image(2, 2, 5, 6, 16), weights(1, 2, 1, 1, 4, 16, 4)], attrs(32, 16, pads=(0, 0, 0, 0))
    yield [image(1, 2, 6, 6, 16), weights(2, 1, 3, 3, 16)], attrs(32, 16, depthwise=True, fill=128)
    words = weights(3, 1, 3, 2, 4, 16, 2).astype(np.int16)
    words[:, :, :, :, 3, :, 1] = 0  # the lane past the seventh channel
    yield [image(1, 1, 5, 6, 8).astype(np.int16), words], attrs(7, 8, fill=-300, strides=(2, 1), dilations=(1, 2))


def infer_matmul_packed(types: Sequence[TensorType | None], attrs: Attrs) -> TensorType:
    """lhs [..., m, k], rhs [ceil(n / b), k, b] or [ceil(n / b), ceil(k / g), b, g] -> [..., m, n]; products of bytes and i16 in i32, of
    floats in `dtype`."""
    lhs, rhs = types[0], types[1]
    assert lhs is not None and rhs is not None
    depth, group = lhs.shape[-1], rhs.shape[3] if rhs.rank == 4 else const(1)
    if rhs.rank == 4:
        terms = rhs.shape[1] * group
        require(depth <= terms, f"matmul_packed: {rhs} holds {simplify(terms)} of {depth} terms")
    else:
        require_equal(rhs.shape[1], depth, f"matmul_packed: dim 1 of {rhs}")
    room = rhs.shape[0] * rhs.shape[2]
    require(attrs.columns <= room, f"matmul_packed: {rhs} holds {simplify(room)} of {attrs.columns} columns")
    dtype = i32 if lhs.dtype in (i8, u8, i16) else product_dtype(attrs, lhs.dtype)
    return TensorType((*lhs.shape[:-1], const(attrs.columns)), dtype)


def reference_matmul_packed(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> np.ndarray:
    lhs, rhs = arrays[0], arrays[1]
    assert lhs is not None and rhs is not None
    if rhs.ndim == 4:
        rhs = np.moveaxis(rhs, 3, 2).reshape(len(rhs), -1, rhs.shape[2])[:, : lhs.shape[-1]]
    plain = np.moveaxis(rhs, 2, 1).reshape(-1, rhs.shape[1])[: attrs.columns]
    if lhs.dtype.kind in "iu":
        return np.matmul(lhs.astype(np.int32), plain.T.astype(np.int32))
    return rounded_sums(np.matmul(wide(lhs), wide(plain.T)), attrs, lhs)


def compute_matmul_packed(tensors: Sequence[Tensor | None], attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    lhs, rhs = tensors[0], tensors[1]
    assert lhs is not None and rhs is not None
    block = rhs.shape[2]
    group = rhs.shape[3] if len(rhs.shape) == 4 else None
    out_type = types[0]
    sum_dtype = _accumulator(out_type.dtype)
    rows = lhs.shape[:-1]
    joint = (simplify(product(rows)),) if len(rows) > 1 else rows  # tiles of rows run on from one batch to the next
    if group is not None:
        lhs = _filled_up(lhs, simplify(rhs.shape[1] * group), joint)

    def body(*axes: Expr) -> Expr:
        *row, j, k = axes
        places = unravel(row[0], rows) if len(lhs.shape) > len(joint) + 1 else tuple(row)
        term = (k,) if group is None else (k // group, k % group)
        weight = rhs[(j // block, *term[:1], j % block, *term[1:])]
        return cast(lhs[(*places, k)], sum_dtype) * cast(weight, sum_dtype)

    padded = simplify(rhs.shape[0] * block)  # whole panels are summed, and what lies past the end is not stored
    total = te.reduce("sum", (*joint, padded), (lhs.shape[-1],), body, "matmul")
    if total.dtype == out_type.dtype and len(rows) < 2 and padded is out_type.shape[-1]:
        return total

    def finish(*axes: Expr) -> Expr:
        row = (ravel(axes[:-1], rows),) if rows else ()
        return cast(total[(*row, axes[-1])], out_type.dtype)

    return te.compute(out_type.shape, finish, "rounded")


def _filled_up(x: Tensor, size: Expr, joint: tuple[Expr, ...]) -> Tensor:
    """Zeros after the elements of each row, up to `size` of them; x itself where there are as many. `joint`: all rows, counted through."""
    *rows, have = x.shape
    if size is have:
        return x

    def body(*axes: Expr) -> Expr:
        *row, k = axes
        places = unravel(row[0], rows) if len(rows) > 1 else tuple(row)
        return select(k < have, x[(*places, k)], const(0, x.dtype))

    return te.compute((*joint, size), body, "filled")


def _packed_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray], dict[str, Any]]]:
    yield [rng.standard_normal((3, 5), dtype=np.float32), rng.standard_normal((3, 5, 4), dtype=np.float32)], {"columns": 11}
    yield [rng.standard_normal((2, 3, 5), dtype=np.float32), rng.standard_normal((2, 5, 4), dtype=np.float32)], {"columns": 8}
    for depth in (5, 8):
        values = rng.integers(-128, 128, (3, 2, 4, 4)).astype(np.int8)
        yield [rng.integers(0, 256, (3, depth)).astype(np.uint8), values], {"columns": 11}
    halves = [rng.standard_normal((3, 7), dtype=np.float32).astype(bf16.numpy), rng.standard_normal((3, 4, 4, 2)).astype(bf16.numpy)]
    yield halves, {"columns": 11, "dtype": f32}
    words = rng.integers(-(2**15), 2**15, (3, 4, 4, 2)).astype(np.int16)
    yield [rng.integers(-(2**15), 2**15, (3, 7)).astype(np.int16), words], {"columns": 11}


register(
    OpDef(
        "matmul_packed",
        infer_matmul_packed,
        reference_matmul_packed,
        compute_matmul_packed,
        {"columns": REQUIRED, "dtype": None},
        samples=_packed_samples,
    )
)
