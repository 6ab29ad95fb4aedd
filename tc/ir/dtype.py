"""Element types: their names, widths and numpy twins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tc.errors import ShapeError
from tc.ir.cached import cached_property


@dataclass(frozen=True, eq=False)
class DType:
    """A scalar element type; one object per type.

    `kind` is one of "float", "int", "uint", "bool"; `bits` is the width in the memory of a tensor. Narrower ones than a byte lie
    several to a byte there, the first in the lowest bits, and a tensor of them ends with a whole byte; in scratch memory and in
    numpy arrays each has a byte of its own.
    """

    name: str
    kind: str
    bits: int

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def size_bytes(self) -> int:
        """Of one element that has bytes of its own; see `bytes_of` for tensors."""
        return max(self.bits // 8, 1)

    @cached_property
    def per_byte(self) -> int:
        """How many elements of a tensor share a byte; 1 for those that share none."""
        return max(8 // self.bits, 1)

    def bytes_of(self, count: int) -> int:
        """The bytes of a tensor of so many elements."""
        return -(-count // self.per_byte) * self.size_bytes

    @cached_property
    def is_storage(self) -> bool:
        """Whether elements are only stored, moved, chosen and cast; arithmetic takes place in another dtype."""
        return self.bits < 8 or (self.is_float and self.bits == 8)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        return _NUMPY[self.name]

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "float"

    @cached_property
    def is_int(self) -> bool:
        """Signed or unsigned integers; not bool."""
        return self.kind in ("int", "uint")

    @cached_property
    def is_bool(self) -> bool:
        return self.kind == "bool"


f64 = DType("f64", "float", 64)
f32 = DType("f32", "float", 32)
f16 = DType("f16", "float", 16)
bf16 = DType("bf16", "float", 16)
f8e4m3fn = DType("f8e4m3fn", "float", 8)
f8e4m3fnuz = DType("f8e4m3fnuz", "float", 8)
f8e5m2 = DType("f8e5m2", "float", 8)
f8e5m2fnuz = DType("f8e5m2fnuz", "float", 8)
f8e8m0 = DType("f8e8m0", "float", 8)
f4e2m1 = DType("f4e2m1", "float", 4)
i64 = DType("i64", "int", 64)
i32 = DType("i32", "int", 32)
i16 = DType("i16", "int", 16)
i8 = DType("i8", "int", 8)
i4 = DType("i4", "int", 4)
i2 = DType("i2", "int", 2)
u64 = DType("u64", "uint", 64)
u32 = DType("u32", "uint", 32)
u16 = DType("u16", "uint", 16)
u8 = DType("u8", "uint", 8)
u4 = DType("u4", "uint", 4)
u2 = DType("u2", "uint", 2)
bool_ = DType("bool", "bool", 8)

FLOAT8 = (f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz)
NARROW_FLOATS = (*FLOAT8, f8e8m0, f4e2m1)
"""Those of `FLOAT8` have zeros, signs and NaN; f8e8m0 has powers of two and NaN; f4e2m1 has zeros and signs."""

SUB_BYTE = (i4, i2, u4, u2)
"""Integers of less than a byte."""

ALL_DTYPES = (f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, bool_, *NARROW_FLOATS, *SUB_BYTE)

_BY_NAME = {dtype.name: dtype for dtype in ALL_DTYPES}
_NUMPY: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
    "f8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8e8m0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "f4e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
    "i4": np.dtype(ml_dtypes.int4),
    "i2": np.dtype(ml_dtypes.int2),
    "u4": np.dtype(ml_dtypes.uint4),
    "u2": np.dtype(ml_dtypes.uint2),
}
_BY_NUMPY = {numpy_dtype: _BY_NAME[name] for name, numpy_dtype in _NUMPY.items()}


def parse_dtype(name: str) -> DType:
    """The dtype called `name`, such as "f32"; ShapeError when there is none."""
    found = _BY_NAME.get(name)
    if found is None:
        raise ShapeError(f"unknown dtype {name!r}; known: {', '.join(_BY_NAME)}")
    return found


def from_numpy(dtype: np.dtype | type) -> DType:
    """The dtype whose numpy twin is `dtype`; ShapeError when there is none (complex, strings, objects)."""
    found = _BY_NUMPY.get(np.dtype(dtype))
    if found is None:
        raise ShapeError(f"numpy dtype {np.dtype(dtype)} has no counterpart in tc")
    return found


def int_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer or bool dtype."""
    if dtype.is_bool:
        return 0, 1
    if dtype.kind == "uint":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def largest_number(dtype: DType) -> float:
    """The largest finite number of a float dtype."""
    return float(ml_dtypes.finfo(dtype.numpy).max)


def round_to(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Numbers as those of a float dtype that are nearest.

    f8e8m0: of two as near ones the larger; what is below the least one becomes the least, and zero, negative and too large numbers
    become NaN. f4e2m1: what is too large becomes the largest number, and NaN negative zero. (`ml_dtypes` rounds numbers just above the
    least of f8e8m0 up, and gives NaN the opposite of its sign in f4e2m1.)
    """
    if dtype is f4e2m1:
        wide = array.astype(np.float64)
        size = np.minimum(np.abs(wide), 6)
        step = np.where(size < 2, 0.5, np.where(size < 4, 1.0, 2.0))
        rounded: np.ndarray = np.copysign(np.rint(size / step) * step, wide)
        return np.where(np.isnan(wide), -0.0, rounded).astype(dtype.numpy)
    if dtype is not f8e8m0:
        return array.astype(dtype.numpy)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:  # what is beyond f64 shows in a bit that it has
        sticky = np.where(array % 4096 == 0, 0, 2048).astype(array.dtype)
        array = np.where(array < 1 << 53, array, array - array % 4096 + sticky)
    values = array.astype(np.float64)
    fraction, exponent = np.frexp(values)
    code = np.maximum(exponent + 126 + (fraction >= 0.75), 0)
    is_number = (values > 0) & (values < np.inf) & (code < 255)
    found: np.ndarray = np.where(is_number, code, 255).astype(np.uint8)
    return found.view(dtype.numpy)


def promote(lhs: DType, rhs: DType) -> DType:
    """The smallest dtype that holds both, as numpy's `promote_types`. Used by the front ends; the IR never promotes."""
    return from_numpy(np.promote_types(lhs.numpy, rhs.numpy))


def pack(array: np.ndarray) -> np.ndarray:
    """The elements of an array as they lie in the memory of a tensor: itself, or uint8[bytes] where several share a byte."""
    dtype = from_numpy(array.dtype)
    if dtype.per_byte == 1:
        return array
    parts = np.zeros((dtype.bytes_of(array.size), dtype.per_byte), np.uint8)
    parts.reshape(-1)[: array.size] = array.reshape(-1).view(np.uint8) & (2**dtype.bits - 1)
    shifted = parts << (np.arange(dtype.per_byte, dtype=np.uint8) * dtype.bits).astype(np.uint8)
    packed: np.ndarray = np.bitwise_or.reduce(shifted, axis=1, dtype=np.uint8)
    return packed


def tensor_memory(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Memory for a tensor, not set: what `unpack` reads."""
    if dtype.per_byte == 1:
        return np.empty(shape, dtype.numpy)
    return np.empty(dtype.bytes_of(math.prod(shape)), np.uint8)


def unpack(memory: np.ndarray, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """The array that lies in the memory of a tensor, uint8[bytes] or more: on the same memory unless several share a byte."""
    count = math.prod(shape)
    if dtype.per_byte == 1:
        return memory.reshape(-1).view(dtype.numpy)[:count].reshape(shape)
    shifts = (np.arange(dtype.per_byte, dtype=np.uint8) * dtype.bits).astype(np.uint8)
    parts = (memory.reshape(-1, 1)[: dtype.bytes_of(count)] >> shifts) & np.uint8(2**dtype.bits - 1)
    bits: np.ndarray = parts.reshape(-1)[:count]
    if dtype.kind == "int":
        sign = np.uint8(2 ** (dtype.bits - 1))
        bits = (bits ^ sign) - sign
    return bits.view(dtype.numpy).reshape(shape)
