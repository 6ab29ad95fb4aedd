"""Pixels as channels and channels as pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tc import te
from tc.ir.arith import simplify
from tc.ir.expr import Expr, const, equal
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, operand, require_equal
from tc.ops.registry import REQUIRED, OpDef, register, require
from tc.te import Tensor


def _f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


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
