"""Element types: their names, widths and numpy twins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tc.errors import ShapeError


@dataclass(frozen=True, eq=False)
class DType:
    """A scalar element type; one object per type.

    `kind` is one of "float", "int", "uint", "bool"; `bits` is the width in memory.
    """

    name: str
    kind: str
    bits: int

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @property
    def size_bytes(self) -> int:
        return self.bits // 8

    @property
    def numpy(self) -> np.dtype[Any]:
        return _NUMPY[self.name]

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integers; not bool."""
        return self.kind in ("int", "uint")

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"


f64 = DType("f64", "float", 64)
f32 = DType("f32", "float", 32)
f16 = DType("f16", "float", 16)
bf16 = DType("bf16", "float", 16)
i64 = DType("i64", "int", 64)
i32 = DType("i32", "int", 32)
i16 = DType("i16", "int", 16)
i8 = DType("i8", "int", 8)
u64 = DType("u64", "uint", 64)
u32 = DType("u32", "uint", 32)
u16 = DType("u16", "uint", 16)
u8 = DType("u8", "uint", 8)
bool_ = DType("bool", "bool", 8)

ALL_DTYPES = (f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, bool_)

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


def promote(lhs: DType, rhs: DType) -> DType:
    """The smallest dtype that holds both, as numpy's `promote_types`. Used by the front ends; the IR never promotes."""
    return from_numpy(np.promote_types(lhs.numpy, rhs.numpy))
