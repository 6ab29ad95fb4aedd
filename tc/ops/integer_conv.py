"""Convolutions of bytes, and of words, summed in i32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tc.errors import ShapeError
from tc.ir.dtype import i8, i16, i32, int_range, u8
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, operand
from tc.ops.registry import BlockedForm, OpDef, register
from tc.ops.window import CONV_DEFAULTS, Sample, blocked_conv, compute_sums, conv_shape, numpy_conv
from tc.te import Tensor


def _infer(types: Types, attrs: Attrs) -> TensorType:
    """x u8|i8|i16 [n, c, *space], w u8|i8|i16 [o, c / groups, *kernel] -> i32 [n, o, *space']; `fill`, in x's type, is what pads hold."""
    x, w = operand(types, 0, "conv_integer"), operand(types, 1, "conv_integer")
    if not {x.dtype, w.dtype} <= {i8, u8, i16}:
        raise ShapeError(f"conv_integer: operands must be i8, u8 or i16, found {x} and {w}")
    low, high = int_range(x.dtype)
    if not low <= attrs.fill <= high:
        raise ShapeError(f"conv_integer: a fill of {attrs.fill} is no number of {x}")
    return TensorType(conv_shape(x, w, attrs, "conv_integer"), i32)


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, w = arrays[0], arrays[1]
    assert x is not None and w is not None
    return numpy_conv(x.astype(np.int32), w.astype(np.int32), attrs, attrs.fill)  # sums wrap, as those of loops do


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, w = tensors[0], tensors[1]
    assert x is not None and w is not None
    return compute_sums(x, w, None, attrs, types[0], i32, attrs.fill)


def _blocked(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
    """Of unsigned and signed bytes, of whose products instructions add four, or of words, of which they add two."""
    x, w = operand(types, 0, "conv_integer"), operand(types, 1, "conv_integer")
    if x.dtype is not i16 and (x.dtype, w.dtype) != (u8, i8):
        return None
    form = blocked_conv(types, attrs, block, "conv_integer")
    return None if form is None else replace(form, as_words=x.dtype is i16)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    def draw(dtype: type, *shape: int) -> Any:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)

    x, w, s = np.uint8, np.int8, np.int8
    yield [draw(x, 1, 3, 7, 6), draw(w, 4, 3, 3, 3)], {"pads": (1, 1, 1, 1), "fill": 255}
    yield [draw(s, 2, 4, 5, 5), draw(w, 6, 2, 3, 2)], {"groups": 2, "strides": (2, 1), "pads": (0, 1, 2, 0), "fill": -128}
    yield [draw(x, 1, 4, 8, 8), draw(x, 4, 1, 3, 3)], {"groups": 4, "dilations": (2, 2)}
    yield [draw(x, 1, 3, 6, 5), draw(w, 6, 1, 3, 3)], {"groups": 3, "pads": (1, 1, 1, 1), "fill": 7}
    yield [draw(x, 2, 6, 5, 7), draw(w, 10, 3, 1, 1)], {"groups": 2}
    yield [draw(x, 1, 20, 5, 7), draw(w, 17, 20, 1, 1)], {}
    yield [draw(s, 1, 5, 9), draw(x, 3, 5, 4)], {"strides": (3,), "pads": (1, 0)}
    yield [draw(x, 1, 2, 3, 4, 3), draw(w, 2, 2, 2, 2, 2)], {"pads": (1,) * 6, "fill": 128}
    yield [draw(x, 0, 2, 4, 4), draw(w, 2, 2, 1, 1)], {}
    long = np.int16
    yield [draw(long, 1, 3, 7, 6), draw(w, 4, 3, 3, 3)], {"pads": (1, 1, 1, 1), "fill": -(2**15)}
    yield [draw(long, 2, 20, 5, 7), draw(long, 17, 20, 1, 1)], {}
    yield [draw(long, 1, 6, 6, 5), draw(long, 6, 1, 3, 3)], {"groups": 6, "strides": (2, 1)}


register(OpDef("conv_integer", _infer, _run, _compute, {**CONV_DEFAULTS, "fill": 0}, blocked=_blocked, samples=_samples))
