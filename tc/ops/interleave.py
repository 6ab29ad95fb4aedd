"""Pixels as channels and channels as pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.expr import Const, Expr, const, equal
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, operand, ravel, require_equal
from tc.ops.registry import REQUIRED, BlockedForm, Form, OpDef, register, require
from tc.te import Tensor


def _f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _parts(x: TensorType, attrs: Attrs) -> tuple[Expr, Expr]:
    """The batch and the channels of what is interleaved."""
    count = prod(attrs.strides)
    n, channels = x.shape[:2]
    return (simplify(n // count), channels) if attrs.of_batch else (n, simplify(channels // count))


def _infer_interleave(types: Types, attrs: Attrs) -> TensorType:
    x, strides = operand(types, 0, "interleave"), attrs.strides
    if len(strides) != x.rank - 2 or min(strides, default=1) < 1:
        raise ShapeError(f"interleave: the strides {strides} of {x}; there must be one for each axis behind the channels")
    phases = x.shape[0 if attrs.of_batch else 1]
    require(equal(phases % prod(strides), 0), f"interleave: {phases} is no multiple of {prod(strides)} phases of {x}")
    return TensorType((*_parts(x, attrs), *(simplify(dim * s) for dim, s in zip(x.shape[2:], strides, strict=True))), x.dtype)


def _run_interleave(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, strides = arrays[0], attrs.strides
    assert x is not None
    rank, (n, channels, *space) = len(strides), x.shape
    lead = (*strides, n // prod(strides), channels) if attrs.of_batch else (n, *strides, channels // prod(strides))
    first = 0 if attrs.of_batch else 1
    kept = [k for k in range(rank + 2) if not first <= k < first + rank]
    turned = x.reshape(*lead, *space).transpose(*kept, *(k for d in range(rank) for k in (rank + 2 + d, first + d)))
    return np.ascontiguousarray(turned.reshape(*turned.shape[:2], *(dim * s for dim, s in zip(space, strides, strict=True))))


def _compute_interleave(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, strides = tensors[0], attrs.strides
    assert x is not None
    batch, channels = types[0].shape[:2]

    def body(n: Expr, c: Expr, *space: Expr) -> Expr:
        phase = ravel([at % s for at, s in zip(space, strides, strict=True)], [const(s) for s in strides])
        position = [at // s for at, s in zip(space, strides, strict=True)]
        return x[(phase * batch + n, c, *position)] if attrs.of_batch else x[(n, phase * channels + c, *position)]

    return te.compute(types[0].shape, body, "interleave")


def _blocked_interleave(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
    """Of phases in whole blocks, whose lanes are one more axis, of one phase."""
    channels = _parts(operand(types, 0, "interleave"), attrs)[1]
    if not attrs.of_batch and not (isinstance(channels, Const) and int(channels.value) % block == 0):
        return None
    own = {"strides": (*attrs.strides, 1), "of_batch": attrs.of_batch}
    return BlockedForm("interleave", tuple(own.items()), (Form.CHANNELS,))


def _interleave_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    for of_batch in (False, True):
        yield [_f32(rng, 6, 6, 3)], {"strides": (3,), "of_batch": of_batch}
        yield [_f32(rng, 12, 12, 3, 2)], {"strides": (2, 3), "of_batch": of_batch}
        yield [_f32(rng, 4, 4, 2, 3, 2, 4)], {"strides": (1, 2, 2, 1), "of_batch": of_batch}


register(
    OpDef(
        "interleave",
        _infer_interleave,
        _run_interleave,
        _compute_interleave,
        {"strides": REQUIRED, "of_batch": False},
        blocked=_blocked_interleave,
        samples=_interleave_samples,
    )
)


def _infer_depth_to_space(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "depth_to_space")
    n, c, *space = x.shape
    b = attrs.block
    require(equal(c % (b * b), 0), f"depth_to_space: {c} channels are not a multiple of {b * b}")
    return TensorType((n, simplify(c // (b * b)), *(simplify(dim * b) for dim in space)), x.dtype)


def _run_depth_to_space(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    b = attrs.block
    n, c, h, w = x.shape
    if attrs.mode == "DCR":
        y = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return np.ascontiguousarray(y.reshape(n, c // (b * b), h * b, w * b))


def _compute_depth_to_space(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    b = attrs.block
    channels = types[0].shape[1]

    def body(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        inner = (h % b) * b + w % b
        source = inner * channels + c if attrs.mode == "DCR" else c * (b * b) + inner
        return x[n, source, h // b, w // b]

    return te.compute(types[0].shape, body, "depth_to_space")


register(
    OpDef(
        "depth_to_space",
        _infer_depth_to_space,
        _run_depth_to_space,
        _compute_depth_to_space,
        {"block": REQUIRED, "mode": "DCR"},
        samples=lambda rng: iter(
            [([_f32(rng, 1, 8, 2, 3)], {"block": 2}), ([_f32(rng, 1, 8, 2, 3)], {"block": 2, "mode": "CRD"})]
        ),
    )
)


def _infer_space_to_depth(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "space_to_depth")
    n, c, *space = x.shape
    b = attrs.block
    for dim in space:
        require_equal(simplify(dim % b), const(0), f"space_to_depth: what is left of {dim} in blocks of {b}")
    return TensorType((n, simplify(c * (b * b)), *(simplify(dim // b) for dim in space)), x.dtype)


def _run_space_to_depth(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    b = attrs.block
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return np.ascontiguousarray(y.reshape(n, c * b * b, h // b, w // b))


def _compute_space_to_depth(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    b, channels = attrs.block, x.shape[1]

    def body(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        inner = c // channels
        return x[n, c % channels, h * b + inner // b, w * b + inner % b]

    return te.compute(types[0].shape, body, "space_to_depth")


register(
    OpDef(
        "space_to_depth",
        _infer_space_to_depth,
        _run_space_to_depth,
        _compute_space_to_depth,
        {"block": REQUIRED},
        samples=lambda rng: iter([([_f32(rng, 1, 2, 4, 6)], {"block": 2})]),
    )
)
