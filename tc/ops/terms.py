"""Floats as sums of two terms of 16 bits, side by side: one deep product of them is nearly the product of the floats.

A finite x is nearly the sum of x rounded, and of the rest, rounded. Of x times w three of the four products of terms matter; they are one
sum along an axis that holds the terms of x in the order ("rounded", "rest", "finite") and those of w in the order ("rounded", "finite",
"rest"). `finite` is `rounded` but for infinities, which are 0 there: what they are multiplied with counts once. Instructions that take
subnormal numbers as zero lose the rests of numbers below 2^-117.
Source: "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations" (Henry, Tang and Heinecke, 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.dtype import DType, bf16, f32
from tc.ir.expr import Expr, Select, Sub, call, cast, ceildiv, const, is_const, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.casts import cast_array
from tc.ops.common import Arrays, Tensors, Types, operand, require_equal
from tc.ops.registry import REQUIRED, BlockedForm, Form, OpDef, register

ROUNDED, FINITE, REST = "rounded", "finite", "rest"

TERMS_OF_ROW = 32
"""Each term is filled up with zeros to a multiple of so many elements: those of 16 bits in a row of a tile register."""


def length_of_term(size: Expr | int) -> Expr:
    """How long a term of so many elements is along the axis of terms."""
    return simplify(ceildiv(size, const(TERMS_OF_ROW)) * TERMS_OF_ROW)


def join_terms(x: np.ndarray, dtype: DType, axis: int, terms: Sequence[str]) -> np.ndarray:
    """What the operator makes of an array, and compilers of a literal."""
    fill = [(0, -x.shape[axis] % TERMS_OF_ROW if d == axis % x.ndim else 0) for d in range(x.ndim)]
    return np.concatenate([np.pad(_term_of_array(x, dtype, term), fill) for term in terms], axis)


def _term_of_array(x: np.ndarray, dtype: DType, term: str) -> np.ndarray:
    wide = x.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        first = cast_array(cast_array(wide, dtype), f32)
        value = wide - first if term == REST else first
        return cast_array(value if term == ROUNDED else np.where(np.isinf(first), np.float32(0), value), dtype)


def _infer(types: Types, attrs: Attrs) -> TensorType:
    """[..., c, ...] -> [..., terms * (c up to a multiple of 32), ...] of `dtype`; in blocks of b lanes, [n, ceil(c / b), *space, b] ->
    [n, terms * (c up to a multiple of 32) / b, *space, b]."""
    x = operand(types, 0, "join_terms")
    if not (x.dtype is attrs.dtype or (x.dtype is f32 and attrs.dtype.is_float and attrs.dtype.bits == 16)):
        raise ShapeError(f"join_terms: {x} is no sum of terms of {attrs.dtype}")
    if not set(attrs.terms) <= {ROUNDED, FINITE, REST}:
        raise ShapeError(f"join_terms: terms are {ROUNDED}, {FINITE} and {REST}, not {', '.join(map(str, attrs.terms))}")
    axis = attrs.axis % x.rank
    if attrs.channels:
        lanes = x.shape[-1]
        require_equal(x.shape[axis], ceildiv(attrs.channels, lanes), f"join_terms: the blocks of {x}, of {attrs.channels} channels")
        require_equal(length_of_term(attrs.channels) % lanes, const(0), f"join_terms: a term of {attrs.channels} channels in blocks of {x}")
    length = _length(x.shape, attrs)
    return TensorType((*x.shape[:axis], simplify(length * len(attrs.terms)), *x.shape[axis + 1 :]), attrs.dtype)


def _length(shape: Sequence[Expr], attrs: Attrs) -> Expr:
    """Of one term along its axis: in elements, or in blocks."""
    if not attrs.channels:
        return length_of_term(shape[attrs.axis])
    return simplify(length_of_term(const(attrs.channels)) // shape[-1])


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    if not attrs.channels:
        return join_terms(x, attrs.dtype, attrs.axis, attrs.terms)
    n, _, *space, lanes = x.shape
    plain = np.moveaxis(x, -1, 2).reshape(n, -1, *space)[:, : attrs.channels]
    joined = join_terms(plain, attrs.dtype, 1, attrs.terms)
    return np.ascontiguousarray(np.moveaxis(joined.reshape(n, -1, lanes, *space), 2, -1))


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> te.Tensor:
    (x,) = tensors
    assert x is not None
    axis, lanes = attrs.axis % len(x.shape), x.shape[-1] if attrs.channels else const(1)
    size = const(attrs.channels) if attrs.channels else x.shape[axis]
    length = _length(x.shape, attrs)
    is_whole = simplify(length * lanes) is size

    def term(which: str, axes: Sequence[Expr], place: Expr) -> Expr:
        value = x[(*axes[:axis], place, *axes[axis + 1 :])]
        first = cast(value, attrs.dtype)
        if which != ROUNDED:
            wide = cast(first, f32)
            kept = cast(Sub(cast(value, f32), wide), attrs.dtype) if which == REST else first
            first = select(call("isinf", wide), const(0, attrs.dtype), kept)
        if is_whole:
            return first
        element = place * lanes + axes[-1] if attrs.channels else place
        return Select(element < size, first, const(0, attrs.dtype))

    def body(*axes: Expr) -> Expr:
        *before, last = enumerate(attrs.terms)
        result = term(last[1], axes, axes[axis] - length * last[0])
        for k, which in reversed(before):
            result = Select(axes[axis] < length * (k + 1), term(which, axes, axes[axis] - length * k), result)
        return result

    return te.compute(types[0].shape, body, "join_terms")


def _blocked(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
    """Terms of whole blocks, along the channels."""
    x = operand(types, 0, "join_terms")
    if attrs.axis % x.rank != 1 or not is_const(x.shape[1]) or not is_const(simplify(length_of_term(x.shape[1]) % block), 0):
        return None
    channels = int(x.shape[1])  # type: ignore[call-overload]
    own = {"dtype": attrs.dtype, "axis": 1, "terms": attrs.terms, "channels": channels}
    return BlockedForm("join_terms", tuple(own.items()), (Form.CHANNELS,))


def _samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    edges = np.array([0.0, -0.0, 1.00390625, -1.01171875, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1e-30], np.float32)
    three = {"dtype": bf16, "terms": (ROUNDED, REST, FINITE)}
    yield [edges], {**three, "axis": -1}
    yield [rng.standard_normal((2, 32, 3), dtype=np.float32)], {**three, "axis": 1}
    yield [rng.standard_normal((40, 3), dtype=np.float32)], {"dtype": bf16, "terms": (ROUNDED, FINITE, REST), "axis": -2}
    yield [np.tile(edges, (2, 1)).astype(bf16.numpy)], {"dtype": bf16, "terms": (ROUNDED, FINITE), "axis": 1}
    yield [np.zeros((0, 2), np.float32)], {**three, "axis": 1}
    yield [rng.standard_normal((2, 3, 5, 16), dtype=np.float32)], {**three, "axis": 1, "channels": 40}
    yield [rng.standard_normal((1, 2, 3, 2, 32), dtype=np.float32)], {**three, "axis": 1, "channels": 64}


register(
    OpDef(
        "join_terms",
        _infer,
        _run,
        _compute,
        {"dtype": REQUIRED, "axis": REQUIRED, "terms": REQUIRED, "channels": 0},
        blocked=_blocked,
        rounds=True,
        apart=True,
        samples=_samples,
    )
)
"""`channels`: how many there are, of an operand in blocks of lanes; 0 of one that is not. Its operand is in memory: as it is read for every
term, its kernel takes in nothing that would be computed again for each."""
