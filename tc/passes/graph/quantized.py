"""Values that a quantized graph keeps in integers: what rules ask of dequantize_linear and quantize_linear."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tc.ir.dtype import DType, f32, i8, i16, u8, u16
from tc.ir.graph import Atom, Call, TensorConst
from tc.ir.node import cached_on_node
from tc.ir.types import TensorType
from tc.ops.build import GraphBuilder, full_attrs
from tc.passes.graph.rewrite import Match

SMALLEST_SCALE, LARGEST_SCALE = 2.0**-100, 2.0**50
"""Between these no product of a scale and an integer leaves the normal numbers of f32, and no sum of products is too large for it."""

BYTES = (u8, i8)
NARROW = (*BYTES, u16, i16)


@dataclass(frozen=True)
class Quantized:
    """The numbers (value - zero) * scale of f32, where scale and zero are known: one each, or one for each element of `axis`.

    value: a tensor of small integers. scale: f32[] or f32[n], from 0 to LARGEST_SCALE. zero: i64 of the same shape.
    """

    value: Atom
    scale: np.ndarray
    zero: np.ndarray
    axis: int | None = None

    @property
    def type(self) -> TensorType:
        assert isinstance(self.value.type, TensorType)
        return self.value.type

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def is_literal(self) -> bool:
        return isinstance(self.value, TensorConst)

    @property
    def is_one_to_one(self) -> bool:
        """Whether different integers are different numbers, far enough apart to be told from each other."""
        return bool(self.scale.min() >= SMALLEST_SCALE)

    def along(self, values: np.ndarray) -> np.ndarray:
        """Scale or zero point, to broadcast with the value."""
        return values if self.axis is None else values.reshape([-1 if d == self.axis else 1 for d in range(self.type.rank)])

    def has_parameters_of(self, other: Quantized) -> bool:
        """Whether the same integers mean the same numbers in both."""
        same = self.dtype is other.dtype and self.scale.shape == other.scale.shape and self.axis == other.axis
        return same and np.array_equal(self.scale, other.scale) and np.array_equal(self.zero, other.zero)

    def dequantized(self, b: GraphBuilder, value: Atom, axis: int | None = None) -> Atom:
        """Other integers with the same parameters as floats; `axis`: where their parameters belong to, if it has changed."""
        assert isinstance(value.type, TensorType)
        parameters = self.parameters(b, value.type.dtype)
        if self.axis is None:
            return b.call("dequantize_linear", value, *parameters)
        return b.call("dequantize_linear", value, *parameters, axis=self.axis if axis is None else axis)

    def parameters(self, b: GraphBuilder, dtype: DType) -> tuple[Atom, ...]:
        """Scale and zero point as operands; no zero point where it is 0."""
        scale = b.const(self.scale)
        return (scale, b.const(self.zero.astype(dtype.numpy))) if self.zero.any() else (scale,)


def dequantized_from(m: Match, atom: Atom | None) -> Quantized | None:
    """The integers that an f32 tensor was dequantized from, with literal parameters; None where it was not."""
    call = m.call_of(atom)
    return None if call is None or call.op != "dequantize_linear" else _quantized(call, call.args[0])


def quantized_to(call: Call, result: Atom) -> Quantized | None:
    """The integers that a call of quantize_linear makes of an f32 tensor."""
    source = call.args[0]
    assert source is not None and isinstance(source.type, TensorType)
    return _quantized(call, result) if source.type.dtype is f32 else None


def _quantized(call: Call, value: Atom | None) -> Quantized | None:
    assert value is not None and isinstance(value.type, TensorType)
    parameters = _parameters(call) if value.type.dtype in NARROW else None
    return None if parameters is None else Quantized(value, *parameters)


@cached_on_node
def _parameters(call: Call) -> tuple[np.ndarray, np.ndarray, int | None] | None:
    """Scale, zero point and axis of a call that quantizes or dequantizes, where these are known and no others than `Quantized` has."""
    attrs = full_attrs(call)
    value, scale, zero = (*call.args, None)[:3]
    assert value is not None and isinstance(value.type, TensorType)
    if attrs.block_size or not isinstance(scale, TensorConst):
        return None
    if scale.value.dtype != np.float32 or scale.value.ndim > 1 or not (zero is None or isinstance(zero, TensorConst)):
        return None
    if not scale.value.size or not (scale.value.min() >= 0 and scale.value.max() <= LARGEST_SCALE):  # NaN is neither
        return None
    zeros = np.zeros((), np.int64) if zero is None else zero.value.astype(np.int64)
    sizes = {array.size for array in (scale.value, zeros)} - {1}
    if not sizes:
        return scale.value.reshape(()), zeros.reshape(()), None
    if len(sizes) > 1 or not value.type.rank:
        return None
    (size,) = sizes
    axis = int(attrs.axis) % value.type.rank if value.type.rank > 1 else 0
    scales, points = (np.broadcast_to(array.reshape(-1), (size,)) for array in (scale.value, zeros))
    return scales, points, axis
