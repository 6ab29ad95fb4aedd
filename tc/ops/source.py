"""Operators that make tensors out of shapes and numbers: constants, ranges, positions, triangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tc import te
from tc.ir.dtype import f32, i32, i64
from tc.ir.expr import (
    Expr,
    Select,
    as_expr,
    cast,
    const,
    equal,
    maximum,
    minimum,
)
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import (
    BEYOND_ANY_DIM,
    Arrays,
    Tensors,
    exprs,
    ints,
    operand,
)
from tc.ops.registry import REQUIRED, OpDef, register
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _compute_full(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    return te.compute(types[0].shape, lambda *axes: const(attrs.value, attrs.dtype), "full")


register(
    OpDef(
        "full",
        lambda types, attrs: TensorType(exprs(attrs.shape), attrs.dtype),
        lambda arrays, attrs: np.full(ints(attrs.shape), attrs.value, attrs.dtype.numpy),
        _compute_full,
        {"shape": REQUIRED, "value": 0, "dtype": REQUIRED},
        cheap=True,
        samples=lambda rng: iter([([], {"shape": (2, 3), "value": 1.5, "dtype": f32})]),
    )
)


def _compute_shape_tensor(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    values = exprs(attrs.dims)

    def body(k: Expr) -> Expr:
        result = values[-1]
        for index in reversed(range(len(values) - 1)):
            result = Select(k < index + 1, values[index], result) if values[index] is not result else result
        return result

    if not values:
        return te.compute((0,), lambda k: const(0), "shape_tensor")
    return te.compute(types[0].shape, body, "shape_tensor")


register(
    OpDef(
        "shape_tensor",
        lambda types, attrs: TensorType((const(len(attrs.dims)),), i64),
        lambda arrays, attrs: np.array(ints(attrs.dims), np.int64),
        _compute_shape_tensor,
        {"dims": REQUIRED},
        cheap=True,
        samples=lambda rng: iter([([], {"dims": (3, 5, 5, 7)}), ([], {"dims": ()})]),
    )
)


def _compute_range(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    start, step = exprs((attrs.start, attrs.step))
    return te.compute(types[0].shape, lambda k: start + k * step, "range")


register(
    OpDef(
        "range",
        lambda types, attrs: TensorType(exprs((attrs.size,)), i64),
        lambda arrays, attrs: np.arange(int(attrs.size), dtype=np.int64) * int(attrs.step) + int(attrs.start),
        _compute_range,
        {"start": 0, "size": REQUIRED, "step": 1},
        cheap=True,
        samples=lambda rng: iter([([], {"start": 3, "size": 4, "step": -2}), ([], {"size": 0})]),
    )
)


def _compute_range_like(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    start, delta = tensors[0], tensors[1]
    assert start is not None and delta is not None
    return te.compute(
        types[0].shape, lambda k: start[()] + cast(k, start.dtype) * delta[()], "range_like"
    )


register(
    OpDef(
        "range_like",
        lambda types, attrs: TensorType(exprs((attrs.size,)), operand(types, 0, "range_like").dtype),
        lambda arrays, attrs: (
            arrays[0] + np.arange(int(attrs.size)).astype(arrays[0].dtype) * arrays[1]  # type: ignore[union-attr, operator]
        ).astype(arrays[0].dtype),  # type: ignore[union-attr]
        _compute_range_like,
        {"size": REQUIRED},
        samples=lambda rng: iter([([np.array(0.5, np.float32), np.array(0.25, np.float32)], {"size": 5})]),
    )
)


def _compute_iota(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    return te.compute(types[0].shape, lambda *axes: cast(axes[attrs.axis], attrs.dtype), "iota")


def _run_iota(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    shape = ints(attrs.shape)
    steps = np.arange(shape[attrs.axis]).reshape([-1 if d == attrs.axis else 1 for d in range(len(shape))])
    return np.ascontiguousarray(np.broadcast_to(steps, shape)).astype(attrs.dtype.numpy)


register(
    OpDef(
        "iota",
        lambda types, attrs: TensorType(exprs(attrs.shape), attrs.dtype),
        _run_iota,
        _compute_iota,
        {"shape": REQUIRED, "axis": REQUIRED, "dtype": REQUIRED},
        cheap=True,
        samples=lambda rng: iter([([], {"shape": (2, 3), "axis": 1, "dtype": i32})]),
    )
)

register(
    OpDef(
        "eye_like",
        lambda types, attrs: TensorType(exprs(attrs.shape), attrs.dtype),
        lambda arrays, attrs: np.eye(*ints(attrs.shape), k=attrs.k, dtype=attrs.dtype.numpy),
        lambda tensors, attrs, types: te.compute(
            types[0].shape, lambda i, j: cast(equal(j, i + attrs.k), attrs.dtype), "eye"
        ),
        {"shape": REQUIRED, "k": 0, "dtype": REQUIRED},
        cheap=True,
        samples=lambda rng: iter([([], {"shape": (3, 4), "k": 1, "dtype": f32})]),
    )
)


def _compute_trilu(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    given = tensors[1] if len(tensors) > 1 else None

    def body(*axes: Expr) -> Expr:
        k = as_expr(attrs.k) if given is None else given[tuple(const(0) for _ in given.shape)]
        k = minimum(maximum(k, -BEYOND_ANY_DIM), BEYOND_ANY_DIM)
        i, j = axes[-2], axes[-1]
        keep = (i + k <= j) if attrs.upper else (j <= i + k)
        return Select(keep, x[axes], const(0, x.dtype))

    return te.compute(types[0].shape, body, "trilu")


def _run_trilu(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    k = int(arrays[1].reshape(())) if len(arrays) > 1 and arrays[1] is not None else int(attrs.k)
    return (np.triu if attrs.upper else np.tril)(arrays[0], max(-BEYOND_ANY_DIM, min(k, BEYOND_ANY_DIM)))  # type: ignore[operator]


register(
    OpDef(
        "trilu",
        lambda types, attrs: operand(types, 0, "trilu"),
        _run_trilu,
        _compute_trilu,
        {"upper": True, "k": 0},
        samples=lambda rng: iter(
            [
                ([_f32(rng, 2, 4, 5)], {}),
                ([_f32(rng, 4, 3), np.array(-1, np.int64)], {"upper": False}),
                ([_f32(rng, 3, 3)], {"k": 1}),
            ]
        ),
    )
)
