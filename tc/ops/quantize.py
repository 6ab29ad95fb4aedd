"""Between floats and integers with a scale and a zero point.

A float becomes the integer nearest to it in steps of the scale, of two as near ones the even one; then the zero point is added, then what
is out of range becomes the nearest end of the range, as infinities do. NaN becomes the least number, as in onnxruntime.
The attribute `bounded` promises that no quotient is NaN, or beyond MOST_STEPS either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.dtype import (
    FLOAT8,
    NARROW_FLOATS,
    SUB_BYTE,
    DType,
    f4e2m1,
    f32,
    from_numpy,
    i8,
    i16,
    i32,
    int_range,
    largest_number,
    round_to,
    u8,
    u16,
)
from tc.ir.expr import Expr, call, cast, ceildiv, const, equal, floordiv, maximum, minimum
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import (
    Arrays,
    Tensors,
    Types,
    blocked_elementwise,
    broadcast_index,
    normalize_axis,
    operand,
    require_broadcasts_to,
)
from tc.ops.registry import REQUIRED, BlockedForm, OpDef, register, require
from tc.te import Tensor

MOST_STEPS = 2.0**30


def _along(tensor: Tensor | None, axes: Sequence[Expr], axis: int, size: Expr, block: int) -> Expr | None:
    """A per-tensor (rank 0 or one element), per-axis or per-block parameter at a place; `size` is that of the axis."""
    if tensor is None:
        return None
    if block:
        return tensor[tuple(floordiv(index, block) if d == axis else index for d, index in enumerate(axes))]
    if not tensor.shape or not axes:  # of a number the parameter is one, too
        return tensor[(const(0),) * len(tensor.shape)]
    return tensor[broadcast_index(axes[axis], tensor.shape[0], size)]


def _require_parameters(types: Types, attrs: Attrs, op: str) -> None:
    """Scale and zero point have one element, or one for each element of the axis; or one for each block of it and place elsewhere."""
    x = operand(types, 0, op)
    axis, block = _axis(attrs, x.rank), attrs.block_size
    if block < 0 or (block and not x.rank):
        raise ShapeError(f"{op}: blocks of {block} of {x}")
    for what, type_ in zip(("scale", "zero point"), types[1:3], strict=False):
        if type_ is not None and block:
            wanted = tuple(ceildiv(dim, block) if d == axis else dim for d, dim in enumerate(x.shape))
            if type_.rank != x.rank:
                raise ShapeError(f"{op}: the {what} is {type_}, but blocks of {block} along axis {axis} of {x} need rank {x.rank}")
            for found, needed in zip(type_.shape, wanted, strict=True):
                why = f"{op}: the {what} is {type_}, but blocks of {block} along axis {axis} of {x} need {list(wanted)}"
                require(equal(found, needed), why)
            continue
        if type_ is not None and type_.rank == 1:
            require_broadcasts_to(type_.shape, (x.shape[_axis(attrs, x.rank)],) if x.rank else (const(1),), f"{op}: the {what}")


def _np_along(array: np.ndarray, shape: tuple[int, ...], axis: int, block: int) -> np.ndarray:
    rank = len(shape)
    if block:
        return np.take(array, np.arange(shape[axis]) // block, axis)
    if array.ndim == 0 or array.size == 1:
        return array.reshape(())
    return array.reshape([-1 if d == axis else 1 for d in range(rank)])


def _axis(attrs: Attrs, rank: int) -> int:
    return normalize_axis(attrs.axis, rank, "quantize") if rank > 1 else 0


def _compute_quantize(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, scale = tensors[0], tensors[1]
    assert x is not None and scale is not None
    zero = tensors[2] if len(tensors) > 2 else None
    axis = _axis(attrs, len(x.shape))
    size = x.shape[axis] if x.shape else const(1)

    def body(*axes: Expr) -> Expr:
        factor = _along(scale, axes, axis, size, attrs.block_size)
        assert factor is not None
        quotient = cast(x[axes], f32) / cast(factor, f32)
        if attrs.dtype.is_float:  # its zero point is 0
            return cast(_clipped(quotient, largest_number(attrs.dtype)) if attrs.saturate else quotient, attrs.dtype)
        value: Expr = call("round", quotient)
        if attrs.bounded:  # what is cast is in range
            value = cast(cast(value, i32), f32)
        shift = _along(zero, axes, axis, size, attrs.block_size)
        if shift is not None:
            value = value + cast(shift, f32)
        low, high = int_range(attrs.dtype)
        if low == 0:
            return cast(_clipped(value, high, low), attrs.dtype)
        from_low = cast(_clipped(value - const(low, f32), high - low, 0), i32)  # NaN as an integer is 0
        return cast(from_low + const(low, i32), attrs.dtype)

    return te.compute(x.shape, body, "quantize")


def _clipped(value: Expr, high: float, low: float | None = None) -> Expr:
    return maximum(minimum(value, const(high, f32)), const(-high if low is None else low, f32))


def _run_quantize(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, scale = arrays[0], arrays[1]
    assert x is not None and scale is not None
    axis = _axis(attrs, x.ndim)
    quotient = x.astype(np.float32) / _np_along(scale, x.shape, axis, attrs.block_size).astype(np.float32)
    if attrs.dtype.is_float:
        largest = largest_number(attrs.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            return round_to(np.clip(quotient, -largest, largest) if attrs.saturate else quotient, attrs.dtype)
    value = np.round(quotient)
    if len(arrays) > 2 and arrays[2] is not None:
        value = value + _np_along(arrays[2], x.shape, axis, attrs.block_size).astype(np.float32)
    low, high = int_range(attrs.dtype)
    return np.nan_to_num(np.clip(value, low, high), nan=low).astype(attrs.dtype.numpy)


def _compute_dequantize(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, scale = tensors[0], tensors[1]
    assert x is not None and scale is not None
    zero = tensors[2] if len(tensors) > 2 else None
    axis = _axis(attrs, len(x.shape))
    size = x.shape[axis] if x.shape else const(1)

    def body(*axes: Expr) -> Expr:
        value = cast(x[axes], f32)
        shift, factor = _along(zero, axes, axis, size, attrs.block_size), _along(scale, axes, axis, size, attrs.block_size)
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
        value = value - _np_along(arrays[2], x.shape, axis, attrs.block_size).astype(np.float32)
    return round_to(value * _np_along(scale, x.shape, axis, attrs.block_size).astype(np.float32), from_numpy(scale.dtype))


def _infer_quantize(types: Types, attrs: Attrs) -> TensorType:
    _require_parameters(types, attrs, "quantize")
    return TensorType(operand(types, 0, "quantize").shape, attrs.dtype)


def _infer_dequantize(types: Types, attrs: Attrs) -> TensorType:
    _require_parameters(types, attrs, "dequantize")
    return TensorType(operand(types, 0, "dequantize").shape, operand(types, 1, "dequantize").dtype)


def _blocked(name: str) -> Callable[[Types, Attrs, int], BlockedForm | None]:
    """On blocks of channels where scale and zero point are one number each."""
    elementwise = blocked_elementwise(name)

    def rule(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
        is_one = all(type_ is None or type_.rank == 0 for type_ in types[1:])
        return elementwise(types, attrs, block) if is_one else None

    return rule


def _samples(rng: np.random.Generator) -> Any:
    x = (rng.standard_normal((2, 3, 4)) * 50).astype(np.float32)
    yield [x, np.array(0.5, np.float32), np.array(128, np.uint8)], {"dtype": u8}
    yield [x, np.array([0.5, 1.0, 2.0], np.float32), np.array([0, 1, -3], np.int8)], {"dtype": i8}
    many = np.array([MOST_STEPS, -MOST_STEPS, 127.5, 128.5, -0.5, -128.5, 32768, -32769, 0], np.float32)
    for zero in (np.uint8(0), np.uint8(128), np.int8(-3), np.uint16(7), np.int16(-9)):
        yield [many, np.array(1.0, np.float32), np.array(zero)], {"dtype": from_numpy(zero.dtype), "bounded": True}
    ends = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.5, 1.5, -2.5], np.float32)
    for dtype in (u8, i8, u16, i16):
        yield [ends, np.array(0.5, np.float32), np.array(int_range(dtype)[1], dtype.numpy)], {"dtype": dtype}
    for dtype in SUB_BYTE:
        low, high = int_range(dtype)
        zero = rng.integers(low, high + 1, (2, 3, 2)).astype(dtype.numpy)
        yield [x, rng.uniform(5, 20, (2, 3, 2)).astype(np.float32), zero], {"dtype": dtype, "axis": -1, "block_size": 3}
        yield [x, np.array(7.5, np.float32), zero[0, 0, 0]], {"dtype": dtype}
    huge = np.array([1e3, -1e3, np.inf, -np.inf, np.nan, 1e6, -0.0, 3.3, 447.0], np.float32)
    for dtype in (*FLOAT8, f4e2m1):
        yield [huge, np.array(1.0, np.float32), np.zeros((), dtype.numpy)], {"dtype": dtype}
        yield [huge, np.array(0.5, np.float32)], {"dtype": dtype, "saturate": False}


def _dequantize_samples(rng: np.random.Generator) -> Any:
    x = rng.integers(0, 255, (2, 3, 4)).astype(np.uint8)
    yield [x, np.array(0.5, np.float32), np.array(128, np.uint8)], {}
    yield [x, np.array([0.5, 1.0, 2.0], np.float32)], {}
    scale = rng.uniform(0.1, 2, (2, 2, 4)).astype(np.float32)
    for dtype in (*SUB_BYTE, *NARROW_FLOATS):
        low, high = (-200, 200) if dtype.is_float else int_range(dtype)
        narrow = rng.integers(low, high + 1, (2, 3, 4)).astype(dtype.numpy)
        zero = np.zeros((2, 2, 4)) if dtype.is_float else rng.integers(low, high + 1, (2, 2, 4))
        yield [narrow, scale, zero.astype(dtype.numpy)], {"block_size": 2}
        yield [narrow, np.array([0.5, 1.0, 2.0], np.float32)], {}


register(
    OpDef(
        "quantize_linear",
        _infer_quantize,
        _run_quantize,
        _compute_quantize,
        {"axis": 1, "dtype": REQUIRED, "block_size": 0, "saturate": True, "bounded": False},
        data=lambda operands, attrs: (2,) if attrs.bounded else (),  # else what the zero point is says what is clipped to
        blocked=_blocked("quantize_linear"),
        samples=_samples,
    )
)
register(
    OpDef(
        "dequantize_linear",
        _infer_dequantize,
        _run_dequantize,
        _compute_dequantize,
        {"axis": 1, "block_size": 0},
        blocked=_blocked("dequantize_linear"),
        samples=_dequantize_samples,
    )
)


# -- with parameters that are data of a kernel, so that kernels that differ in nothing else are one

LEAST_SCALE, MOST_SCALE = 2.0**-60, 2.0**60
"""Between these, and of integers of 16 bits at most, quotients are found by products."""


def packed_parameters(scale: float, zero: int, dtype: DType) -> np.ndarray:
    """f32[5]: scale, its inverse, what the least and the greatest number mean, and the zero point, for `quantize_by`."""
    low, high = int_range(dtype)
    step = np.float32(scale)
    return np.array([step, np.float32(1) / step, np.float32(low - zero) * step, np.float32(high - zero) * step, zero], np.float32)


def _infer_quantize_by(types: Types, attrs: Attrs) -> TensorType:
    """x f32, parameters f32[5] (`packed_parameters`) -> u8 or u16: what `quantize_linear` makes of x with this scale and zero point."""
    _require_packed(types, 5, "quantize_by")
    return TensorType(operand(types, 0, "quantize_by").shape, attrs.dtype)


def _require_packed(types: Types, count: int, op: str) -> None:
    parameters = operand(types, 1, op)
    if parameters.static_shape != (count,) or parameters.dtype is not f32:
        raise ShapeError(f"{op}: the parameters are {parameters}, but must be f32[{count}]")


def _run_quantize_by(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, parameters = arrays[0], arrays[1]
    assert x is not None and parameters is not None
    zero = np.asarray(parameters[4]).astype(attrs.dtype.numpy)
    return _run_quantize([x, parameters[0], zero], Attrs((*attrs.items(), ("block_size", 0), ("axis", 0))))


def _compute_quantize_by(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, parameters = tensors[0], tensors[1]
    assert x is not None and parameters is not None

    def body(*axes: Expr) -> Expr:
        scale, inverse, low, high, zero = (parameters[place] for place in range(5))
        value = call("round", call("bounded_quotient", x[axes], scale, inverse, low, high)) + zero
        return cast(_clipped(value, int_range(attrs.dtype)[1], 0), attrs.dtype)

    return te.compute(x.shape, body, "quantize")


def _infer_dequantize_by(types: Types, attrs: Attrs) -> TensorType:
    """x of integers, parameters f32[2]: scale and zero point, or f32[5]: those of the `quantize_by` that x is of, or f32[1]: a scale, and
    the zero point, one of x's type, as the third operand, if it is not 0 -> f32: (x - zero) * scale."""
    x, shape = operand(types, 0, "dequantize_by"), operand(types, 1, "dequantize_by").static_shape
    _require_packed(types, shape[0] if shape in ((1,), (5,)) else 2, "dequantize_by")
    zero = types[2] if len(types) > 2 else None
    if zero is not None and (shape != (1,) or zero.dtype is not x.dtype or zero.static_shape not in ((), (1,))):
        raise ShapeError(f"dequantize_by: the zero point is {zero} beside {types[1]}, but must be one {x.dtype} beside f32[1]")
    return TensorType(x.shape, f32)


def _run_dequantize_by(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, parameters = arrays[0], arrays[1]
    assert x is not None and parameters is not None
    zero: Any = parameters[-1] if len(parameters) > 1 else np.float32(0)
    if len(arrays) > 2 and arrays[2] is not None:
        zero = arrays[2].reshape(()).astype(np.float32)
    return np.asarray((x.astype(np.float32) - zero) * parameters[0])


def _compute_dequantize_by(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, parameters = tensors[0], tensors[1]
    assert x is not None and parameters is not None
    zero: Expr = const(0, f32)
    if parameters.shape != (const(1),):
        zero = parameters[4 if parameters.shape == (const(5),) else 1]
    elif len(tensors) > 2 and tensors[2] is not None:  # in its type, as what quantizes to it says it
        zero = cast(tensors[2][(const(0),) * len(tensors[2].shape)], f32)
    return te.compute(x.shape, lambda *axes: (cast(x[axes], f32) - zero) * parameters[0], "dequantize")


def _samples_by(rng: np.random.Generator) -> Any:
    x = np.append(rng.standard_normal(30) * 50, [np.nan, np.inf, -np.inf, 1e38, -1e38, 0.75]).astype(np.float32)
    for dtype, scale, zero in ((u8, 0.5, 128), (u8, 0.3, 0), (u16, 0.01, 255), (u8, 1e-9, 255)):
        yield [x, packed_parameters(scale, zero, dtype)], {"dtype": dtype}


def _dequantize_samples_by(rng: np.random.Generator) -> Any:
    for dtype in (np.uint8, np.int8, np.uint16, np.int32):
        yield [rng.integers(-100, 100, (3, 4)).astype(dtype), np.array([0.3, 7], np.float32)], {}
        yield [rng.integers(-100, 100, (3, 4)).astype(dtype), np.array([0.3], np.float32)], {}
        yield [rng.integers(-100, 100, (3, 4)).astype(dtype), np.array([0.3], np.float32), np.array(7, dtype)], {}
        yield [rng.integers(-100, 100, (3, 4)).astype(dtype), np.array([0.3], np.float32), np.array([9], dtype)], {}
        yield [rng.integers(-100, 100, (3, 4)).astype(dtype), packed_parameters(0.3, 7, u8)], {}


register(
    OpDef(
        "quantize_by",
        _infer_quantize_by,
        _run_quantize_by,
        _compute_quantize_by,
        {"dtype": REQUIRED},
        data=lambda operands, attrs: (1,),
        samples=_samples_by,
    )
)
register(
    OpDef(
        "dequantize_by",
        _infer_dequantize_by,
        _run_dequantize_by,
        _compute_dequantize_by,
        data=lambda operands, attrs: (1, 2),
        samples=_dequantize_samples_by,
    )
)
