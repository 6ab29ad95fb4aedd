"""The bits of elements as those of another type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tc.errors import ShapeError
from tc.ir.dtype import DType, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from tc.ir.expr import Expr, call, cast
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Types, map_elements, operand
from tc.ops.registry import REQUIRED, OpDef, register

_WORDS = {f32: u32, f64: u64}


def has_bitcast(source: DType, target: DType) -> bool:
    """Whether `bitcast` takes the types: integers of whole bytes, f32, f64 and, to be read, bool; of equally many bits."""
    taken = (i8, i16, i32, i64, u8, u16, u32, u64, f32, f64)
    stored = u8 if source.is_bool else source
    return stored in taken and target in taken and stored.bits == target.bits


def _infer(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "bitcast")
    if not has_bitcast(x.dtype, attrs.dtype):
        raise ShapeError(f"bitcast: {x} has no bits of {attrs.dtype}")
    return TensorType(x.shape, attrs.dtype)


def _element(x: Expr, target: DType) -> Expr:
    word = call("float_bits", x) if x.dtype in _WORDS else x
    return call("float_of_bits", cast(word, _WORDS[target])) if target in _WORDS else cast(word, target)


def _samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    floats = np.array([0.0, -0.0, 1.5, -1e-40, np.inf, np.nan], np.float32)
    yield [floats], {"dtype": i32}
    yield [floats.view(np.int32).reshape(2, 3)], {"dtype": f32}
    yield [floats.astype(np.float64)], {"dtype": u64}
    yield [rng.integers(-(2**63), 2**63, (5,))], {"dtype": f64}
    yield [np.array([-128, -1, 0, 127], np.int8)], {"dtype": u8}
    yield [np.array([65535, 0, 32768], np.uint16)], {"dtype": i16}
    yield [np.array(True)], {"dtype": i8}
    yield [np.zeros((0, 3), np.uint32)], {"dtype": f32}


register(
    OpDef(
        "bitcast",
        _infer,
        lambda arrays, attrs: arrays[0].view(attrs.dtype.numpy),  # type: ignore[union-attr]
        lambda tensors, attrs, types: map_elements(lambda x: _element(x, attrs.dtype), tensors, types, "bitcast"),
        {"dtype": REQUIRED},
        samples=_samples,
    )
)
