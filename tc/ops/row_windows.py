"""What a row of a kernel reads of an image of few channels, side by side: a convolution then multiplies it as if it were channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.expr import Expr, Select, const, equal, is_const
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, operand
from tc.ops.registry import REQUIRED, OpDef, register, require
from tc.ops.window import Window, output_dim
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def row_channels(taps: int, pixel: int, row_elements: int) -> int:
    """How many channels `taps` pixels of `pixel` elements are made: a power of two up to `row_elements`, then a multiple of it."""
    count = taps * pixel
    return 1 << (count - 1).bit_length() if count <= row_elements else -(-count // row_elements) * row_elements


def _infer(types: Types, attrs: Attrs) -> TensorType:
    """x [n, 1, h, w * pixel] -> [n, 1, h, ow, channels]: for each pixel of the result the `kernel` pixels, of so many elements, that it
    reads in a row, and behind them zeros, or what integers lie there."""
    x = operand(types, 0, "row_windows")
    if x.rank != 4 or not is_const(x.shape[1], 1):
        raise ShapeError(f"row_windows: {x} must be an image [n, 1, h, elements of a row]")
    if min(attrs.kernel, attrs.stride, attrs.dilation) < 1 or attrs.channels % attrs.pixel or attrs.channels < attrs.kernel * attrs.pixel:
        raise ShapeError(f"row_windows: {attrs.kernel} pixels of {attrs.pixel} elements, {attrs.stride} apart, are not {attrs.channels}")
    require(equal(x.shape[3] % attrs.pixel, 0), f"row_windows: rows of {x.shape[3]} elements are no pixels of {attrs.pixel}")
    window = Window((attrs.channels // attrs.pixel,), (attrs.stride,), (0,), (0,), (attrs.dilation,))
    width = output_dim(simplify(x.shape[3] // attrs.pixel), window, 0)
    return TensorType((*x.shape[:3], width, const(attrs.channels)), x.dtype)


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    taps, pixel = attrs.channels // attrs.pixel, attrs.pixel
    pixels = x.reshape(*x.shape[:3], x.shape[3] // pixel, pixel)
    count = max((pixels.shape[3] - (taps - 1) * attrs.dilation - 1) // attrs.stride + 1, 0)
    parts = [pixels[:, :, :, tap * attrs.dilation :: attrs.stride][:, :, :, :count] for tap in range(taps)]
    result = np.concatenate(parts, -1)
    if x.dtype.kind not in "iu":
        result[..., attrs.kernel * pixel :] = 0
    return result


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, pixel, used = tensors[0], attrs.pixel, attrs.kernel * attrs.pixel
    assert x is not None

    def body(n: Expr, one: Expr, row: Expr, column: Expr, channel: Expr) -> Expr:
        place = channel  # what it reads follows each other, unless pixels are left out
        if attrs.dilation > 1:
            place = channel // pixel * (attrs.dilation * pixel) + channel % pixel
        value: Expr = x[(n, one, row, column * (attrs.stride * pixel) + place)]
        if used == attrs.channels or not x.dtype.is_float:
            return value
        return Select(channel < used, value, const(0, x.dtype))  # a NaN there is none of the kernel's

    return te.compute(tuple(map(simplify, types[0].shape)), body, "row_windows")


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    floats = rng.standard_normal((2, 1, 5, 36)).astype(np.float32)
    floats[0, 0, 1, 17] = np.nan
    yield [floats], {"kernel": 3, "stride": 2, "channels": 16, "pixel": 4}
    yield [rng.integers(0, 256, (1, 1, 3, 88)).astype(np.uint8)], {"kernel": 7, "stride": 2, "channels": 32, "pixel": 4}
    yield [rng.integers(-9, 9, (1, 1, 3, 24)).astype(np.int8)], {"kernel": 4, "channels": 8, "dilation": 3, "pixel": 2}
    yield [floats[:, :, :, :12]], {"kernel": 3, "channels": 12, "pixel": 4}
    yield [floats[:0]], {"kernel": 3, "channels": 12, "pixel": 4}


register(
    OpDef(
        "row_windows",
        _infer,
        _run,
        _compute,
        {"kernel": REQUIRED, "stride": 1, "dilation": 1, "channels": REQUIRED, "pixel": REQUIRED},
        apart=True,
        samples=_samples,
    )
)
