"""Operators that change the dtype of floats and integers: casts, and the ways in which products of 16-bit operands round theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.dtype import (
    NARROW_FLOATS,
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    from_numpy,
    i8,
    i32,
    i64,
    int_range,
    round_to,
    u8,
)
from tc.ir.expr import cast, is_const, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, blocked_elementwise, map_elements, operand
from tc.ops.registry import REQUIRED, OpDef, register


def cast_array(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Convert as `expr.Cast` says: floats to integers truncate and saturate (NaN is 0), integers wrap, to bool is != 0."""
    if dtype.is_bool:
        return x != 0
    source = from_numpy(x.dtype)
    if source.is_float and dtype.is_int:
        low, high = int_range(dtype)
        values = np.trunc(x.astype(np.float64))
        clipped = np.where(np.isnan(values), 0.0, values)
        inside = np.clip(clipped, float(low), float(high))
        is_over = (clipped >= float(high)) & (dtype.bits == 64)  # the largest number of 64 bits is no f64
        result = np.where(is_over, 0, inside).astype(np.int64 if dtype.kind == "int" else np.uint64)
        return np.where(is_over, high, result).astype(dtype.numpy)
    return round_to(x, dtype) if dtype.is_float else x.astype(dtype.numpy)


register(
    OpDef(
        "cast",
        lambda types, attrs: TensorType(operand(types, 0, "cast").shape, attrs.dtype),
        lambda arrays, attrs: cast_array(arrays[0], attrs.dtype),  # type: ignore[arg-type]
        lambda tensors, attrs, types: map_elements(lambda x: cast(x, attrs.dtype), tensors, types, "cast"),
        {"dtype": REQUIRED},
        blocked=blocked_elementwise("cast"),
        rounds=True,
        samples=lambda rng: _cast_samples(rng),
    )
)


def _cast_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    edges = np.array([0.0, -0.0, 1.5, -1.5, 1e10, -1e10, np.inf, -np.inf, np.nan, 255.9, -128.7, 3e38], np.float32)
    for target in (i8, u8, i32, i64, bool_, f64, f16, bf16, *NARROW_FLOATS):
        yield [edges], {"dtype": target}
    yield [np.array([-1, 0, 127, 128, 255, 256, 2**31 - 1], np.int32)], {"dtype": u8}
    yield [np.array([True, False])], {"dtype": f32}
    yield [rng.standard_normal((3, 4)).astype(np.float16)], {"dtype": f32}


def _infer_narrow(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "narrow")
    if not (x.dtype.is_float and attrs.dtype.is_float and attrs.dtype.bits < x.dtype.bits):
        raise ShapeError(f"narrow: {x} cannot be stored as the narrower float {attrs.dtype}")
    return TensorType(x.shape, attrs.dtype)


register(
    OpDef(
        "narrow",
        _infer_narrow,
        lambda arrays, attrs: cast_array(arrays[0], attrs.dtype),  # type: ignore[arg-type]
        lambda tensors, attrs, types: map_elements(lambda x: cast(x, attrs.dtype), tensors, types, "narrow"),
        {"dtype": REQUIRED},
        blocked=blocked_elementwise("narrow"),
        samples=lambda rng: iter([([rng.standard_normal((3, 4), dtype=np.float32)], {"dtype": dtype}) for dtype in (f16, bf16)]),
    )
)
"""A `cast` to a narrower float that says how a value is stored: what a kernel computes with further is not rounded."""


def _infer_round_where(types: Types, attrs: Attrs) -> TensorType:
    condition, x = operand(types, 0, "round_where"), operand(types, 1, "round_where")
    if not condition.dtype.is_bool or not all(is_const(dim, 1) for dim in condition.shape):
        raise ShapeError(f"round_where: the condition must be one bool, found {condition}")
    if not (x.dtype.is_float and attrs.dtype.is_float and attrs.dtype.bits < x.dtype.bits):
        raise ShapeError(f"round_where: {x} cannot be rounded to the narrower float {attrs.dtype}")
    return x


def _round_where_reference(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    condition, x = arrays
    assert condition is not None and x is not None
    return cast_array(cast_array(x, attrs.dtype), from_numpy(x.dtype)) if condition.all() else x


def _round_where_te(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> te.Tensor:
    condition, x = tensors
    assert condition is not None and x is not None
    is_on = condition[(0,) * len(condition.shape)]
    return te.compute(x.shape, lambda *i: select(is_on, cast(cast(x[i], attrs.dtype), x.dtype), x[i]), "round_where")


def _round_where_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    edges = np.array([0.0, -0.0, 1.00390625, -1.01171875, 1e38, -3.4e38, np.inf, -np.inf, np.nan, 1e-40], np.float32)
    for x in (edges, rng.standard_normal((3, 4)).astype(np.float32), np.zeros((0, 2), np.float32), np.float32(1 / 3)):
        for dtype in (bf16, f16):
            yield [np.array([True]), np.asarray(x)], {"dtype": dtype}
            yield [np.array([False]), np.asarray(x)], {"dtype": dtype}


register(
    OpDef(
        "round_where",  # one condition for all elements: they are rounded to `dtype`, or as they are
        _infer_round_where,
        _round_where_reference,
        _round_where_te,
        {"dtype": REQUIRED},
        blocked=blocked_elementwise("round_where"),
        apart=True,
        samples=_round_where_samples,
    )
)
