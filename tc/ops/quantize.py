"""Between floats and integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tc import te
from tc.ir.dtype import f32, i8, int_range, u8
from tc.ir.expr import Expr, call, cast, const, maximum, minimum
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, broadcast_index, normalize_axis, operand, require_broadcasts_to
from tc.ops.registry import REQUIRED, OpDef, register
from tc.te import Tensor


def _along(tensor: Tensor | None, axes: Sequence[Expr], axis: int, size: Expr) -> Expr | None:
    """A per-tensor (rank 0 or one element) or per-axis parameter at a place; `size` is that of the axis."""
    if tensor is None:
        return None
    if not tensor.shape:
        return tensor[()]
    return tensor[broadcast_index(axes[axis], tensor.shape[0], size)]


def _require_parameters(types: Types, attrs: Attrs, op: str) -> None:
    """Scale and zero point have one element, or one for each element of the axis."""
    x = operand(types, 0, op)
    for what, type_ in zip(("scale", "zero point"), types[1:3], strict=False):
        if type_ is not None and type_.rank == 1:
            require_broadcasts_to(type_.shape, (x.shape[_axis(attrs, x.rank)],) if x.rank else (const(1),), f"{op}: the {what}")


def _np_along(array: np.ndarray, rank: int, axis: int) -> np.ndarray:
    if array.ndim == 0 or array.size == 1:
        return array.reshape(())
    return array.reshape([-1 if d == axis else 1 for d in range(rank)])


def _axis(attrs: Attrs, rank: int) -> int:
    return normalize_axis(attrs.axis, rank, "quantize") if rank > 1 else 0


def _compute_quantize(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, scale = tensors[0], tensors[1]
    assert x is not None and scale is not None
    zero = tensors[2] if len(tensors) > 2 else None
    low, high = int_range(attrs.dtype)
    axis = _axis(attrs, len(x.shape))
    size = x.shape[axis] if x.shape else const(1)

    def body(*axes: Expr) -> Expr:
        factor = _along(scale, axes, axis, size)
        assert factor is not None
        value = call("round", cast(x[axes], f32) / cast(factor, f32))
        shift = _along(zero, axes, axis, size)
        if shift is not None:
            value = value + cast(shift, f32)
        return cast(maximum(minimum(value, const(high, f32)), const(low, f32)), attrs.dtype)

    return te.compute(x.shape, body, "quantize")


def _run_quantize(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, scale = arrays[0], arrays[1]
    assert x is not None and scale is not None
    axis = _axis(attrs, x.ndim)
    value = np.round(x.astype(np.float32) / _np_along(scale, x.ndim, axis).astype(np.float32))
    if len(arrays) > 2 and arrays[2] is not None:
        value = value + _np_along(arrays[2], x.ndim, axis).astype(np.float32)
    low, high = int_range(attrs.dtype)
    return np.nan_to_num(np.clip(value, low, high)).astype(attrs.dtype.numpy)


def _compute_dequantize(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, scale = tensors[0], tensors[1]
    assert x is not None and scale is not None
    zero = tensors[2] if len(tensors) > 2 else None
    axis = _axis(attrs, len(x.shape))
    size = x.shape[axis] if x.shape else const(1)

    def body(*axes: Expr) -> Expr:
        value = cast(x[axes], f32)
        shift, factor = _along(zero, axes, axis, size), _along(scale, axes, axis, size)
        assert factor is not None
        if shift is not None:
            value = value - cast(shift, f32)
        return cast(value * cast(factor, f32), types[0].dtype)

    return te.compute(x.shape, body, "dequantize")


def _run_dequantize(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, scale = arrays[0], arrays[1]
    assert x is not None and scale is not None
    axis = _axis(attrs, x.ndim)
    value = x.astype(np.float32)
    if len(arrays) > 2 and arrays[2] is not None:
        value = value - _np_along(arrays[2], x.ndim, axis).astype(np.float32)
    return (value * _np_along(scale, x.ndim, axis).astype(np.float32)).astype(scale.dtype)


def _infer_quantize(types: Types, attrs: Attrs) -> TensorType:
    _require_parameters(types, attrs, "quantize")
    return TensorType(operand(types, 0, "quantize").shape, attrs.dtype)


def _infer_dequantize(types: Types, attrs: Attrs) -> TensorType:
    _require_parameters(types, attrs, "dequantize")
    return TensorType(operand(types, 0, "dequantize").shape, operand(types, 1, "dequantize").dtype)


def _samples(rng: np.random.Generator) -> Any:
    x = (rng.standard_normal((2, 3, 4)) * 50).astype(np.float32)
    yield [x, np.array(0.5, np.float32), np.array(128, np.uint8)], {"dtype": u8}
    yield [x, np.array([0.5, 1.0, 2.0], np.float32), np.array([0, 1, -3], np.int8)], {"dtype": i8}


def _dequantize_samples(rng: np.random.Generator) -> Any:
    x = rng.integers(0, 255, (2, 3, 4)).astype(np.uint8)
    yield [x, np.array(0.5, np.float32), np.array(128, np.uint8)], {}
    yield [x, np.array([0.5, 1.0, 2.0], np.float32)], {}


register(
    OpDef(
        "quantize_linear",
        _infer_quantize,
        _run_quantize,
        _compute_quantize,
        {"axis": 1, "dtype": REQUIRED},
        samples=_samples,
    )
)
register(
    OpDef(
        "dequantize_linear",
        _infer_dequantize,
        _run_dequantize,
        _compute_dequantize,
        {"axis": 1},
        samples=_dequantize_samples,
    )
)
