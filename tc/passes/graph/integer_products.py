"""Convolutions of bytes as matrix products, of the windows of the input, side by side, and the weights; and products without zero points.

A product of bytes has instructions, which add the products of several values that follow each other in memory: unsigned ones on one side,
signed ones on the other. All sums are in i32 and wrap, so results are exact: what all terms of one side are too large by comes off the
sum at the end, as often as the other side sums up to.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tc.ir.dtype import DType, i8, i32, u8
from tc.ir.expr import const, is_const
from tc.ir.graph import Atom, Attrs, TensorConst
from tc.ir.module import IRModule
from tc.ir.types import TensorType, product, tensor_type
from tc.ops.build import GraphBuilder, full_attrs
from tc.passes.graph.rewrite import GraphRule, Match, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass


@graph_pass
def integer_products(module: IRModule) -> IRModule:
    """Make convolutions of bytes, widened to i32, products of bytes, and take zero points out of products; see INTEGER_RULES."""
    return rewrite_module(module, INTEGER_RULES)


@dataclass(frozen=True)
class _Bytes:
    """i32 numbers that are those of a tensor of bytes less one number."""

    value: Atom
    zero: int = 0

    @property
    def dtype(self) -> DType:
        assert isinstance(self.value.type, TensorType)
        return self.value.type.dtype


def _as_bytes(atom: Atom, m: Match) -> _Bytes | None:
    """The bytes that i32 numbers come from: a literal's own, or those that were cast, with or without a zero point subtracted."""
    if isinstance(atom, TensorConst):
        return _literal_bytes(atom.value)
    call, zero = m.call_of(atom), 0
    if call is not None and call.op == "sub":
        point = call.args[1]
        if not isinstance(point, TensorConst) or point.value.size != 1 or point.type.rank:
            return None
        call, zero = m.call_of(call.args[0]), int(point.value)
    if call is None or call.op != "cast" or call.args[0] is None:
        return None
    source = call.args[0]
    assert isinstance(source.type, TensorType)
    dtype = source.type.dtype
    in_range = dtype in (i8, u8) and np.iinfo(dtype.numpy).min <= zero <= np.iinfo(dtype.numpy).max
    return _Bytes(source, zero) if in_range else None


def _literal_bytes(values: np.ndarray) -> _Bytes | None:
    for dtype in (i8, u8):
        narrow = values.astype(dtype.numpy)
        if np.array_equal(narrow, values):
            return _Bytes(TensorConst(narrow))
    return None


def _is_of_bytes(m: Match) -> bool:
    x, w, attrs = m.type_of("x"), m.type_of("w"), m.attrs("conv")
    plain = x.dtype is i32 and attrs.groups == 1 and w.static_shape is not None and prod(w.static_shape) > 0
    return plain and _as_bytes(m.x, m) is not None and _as_bytes(m.w, m) is not None


def _product(b: GraphBuilder, m: Match) -> Atom:
    x, w = _as_bytes(m.x, m), _as_bytes(m.w, m)
    assert x is not None and w is not None
    call, (outputs, channels, *kernel) = m.call("conv"), m.type_of("w").static_shape  # type: ignore[misc]
    rank, depth = len(kernel), channels * prod(kernel)
    x = _unsigned(b, x)
    windows = _windows(b, x, full_attrs(call), kernel)
    assert isinstance(windows.type, TensorType)
    samples, counts = windows.type.shape[:1], windows.type.shape[2 + rank :]
    lead = () if is_const(samples[0], 1) else samples
    columns = b.call("reshape", windows, shape=(*lead, const(depth), product(counts)))
    rows = _rows(b, w.value, outputs, depth)
    total: Atom = b.call("matmul_integer", rows, columns, *_zero_points(b, x, w), span=call.span)
    shift = _shift(x, rows)
    if shift is not None:
        total = b.call("sub", total, b.const(shift))
    total = b.call("reshape", total, shape=(*samples, const(outputs), *counts))
    if len(call.args) > 2 and call.args[2] is not None:
        bias = b.call("reshape", call.args[2], shape=(const(outputs), *[const(1)] * rank))
        total = b.call("add", total, bias)
    return total


def _unsigned(b: GraphBuilder, x: _Bytes) -> _Bytes:
    """The same numbers from unsigned bytes: of the two sides of a product one is signed, the other is not."""
    if x.dtype is u8:
        return x
    raised = b.call("add", b.call("cast", x.value, dtype=u8), b.const(np.array(128, np.uint8)))
    return _Bytes(raised, x.zero + 128)


def _windows(b: GraphBuilder, x: _Bytes, attrs: Attrs, kernel: list[int]) -> Atom:
    """[n, c, *kernel, *counts]: what the convolution reads for each result, zeros of the padding as they are among the bytes."""
    geometry = {"strides": attrs.strides, "pads": attrs.pads, "dilations": attrs.dilations}
    return b.call("windows", x.value, kernel=tuple(kernel), fill=x.zero, **geometry)


def _rows(b: GraphBuilder, w: Atom, outputs: int, depth: int) -> Atom:
    """The weights [o, c, *kernel] as the left operand [o, depth]."""
    if isinstance(w, TensorConst):
        return b.const(w.value.reshape(outputs, depth))
    return b.call("reshape", w, shape=(const(outputs), const(depth)))


def _zero_points(b: GraphBuilder, x: _Bytes, w: _Bytes) -> tuple[Atom | None, ...]:
    """Those that the product has to subtract: of weights that are not known now."""
    if isinstance(w.value, TensorConst) or not (x.zero or w.zero):
        return ()
    return b.const(np.array(w.zero, w.dtype.numpy)), b.const(np.array(x.zero, np.uint8))


def _shift(x: _Bytes, rows: Atom) -> np.ndarray | None:
    """What the sums are too large by where the zero point of the input stayed in: as much for all sums of a row."""
    if not x.zero or not isinstance(rows, TensorConst):
        return None
    sums: np.ndarray = rows.value.astype(np.int64).sum(1, keepdims=True)
    return (sums * x.zero).astype(np.int32)


def _example(b: GraphBuilder) -> Atom:
    rng = np.random.default_rng(0)
    x = b.call("cast", b.param("x", tensor_type((2, 3, 6, 5), i8)), dtype=i32)
    shifted = b.call("sub", x, b.const(np.array(-7, np.int32)))
    w, bias = rng.integers(-128, 128, (4, 3, 3, 2)).astype(np.int32), rng.integers(-99, 99, 4).astype(np.int32)
    return b.call("conv", shifted, b.const(w), b.const(bias), pads=(1, 0, 2, 1), strides=(2, 1))


# -- products with literals


def _product_of_bytes(b: GraphBuilder, m: Match) -> Atom | None:
    """The product with a literal, without zero points: rows unsigned, columns as they are less their own, if that is a byte."""
    call, x, zero = m.call("matmul"), m.x, _argument(m, 2)
    columns = _own_bytes(m.value("w"), _argument(m, 3))
    is_one = zero is None or (isinstance(zero.type, TensorType) and (not zero.type.rank or is_const(zero.type.shape[0], 1)))
    if columns is None or not is_one or (columns.dtype == np.uint8 and zero is None):
        return None
    is_signed = m.type_of("x").dtype is i8 and columns.dtype == np.int8
    if zero is None and not is_signed and _argument(m, 3) is None:
        return None
    rows = _unsigned(b, _Bytes(x)) if is_signed else _Bytes(x)
    total = b.call("matmul_integer", rows.value, b.const(columns), span=call.span)
    ones = np.ones((*(1,) * min(m.type_of("x").rank - 1, 1), columns.shape[max(columns.ndim - 2, 0)]), np.int64)
    sums = np.asarray(ones @ columns.astype(np.int64))  # the product of a row of ones, which has the shape that a row's product has
    if zero is None or isinstance(zero, TensorConst):
        shift = rows.zero + (0 if zero is None else int(zero.value.reshape(())))
        return b.call("sub", total, b.const(np.asarray(sums * shift).astype(np.int32))) if shift else total
    by = b.call("reshape", b.call("cast", zero, dtype=i32), shape=())
    if rows.zero:
        by = b.call("add", by, b.const(np.array(rows.zero, np.int32)))
    return b.call("sub", total, b.call("mul", by, b.const(sums.astype(np.int32))))


def _argument(m: Match, place: int) -> Atom | None:
    args = m.call("matmul").args
    return args[place] if place < len(args) else None


def _own_bytes(values: np.ndarray, zero: Atom | None) -> np.ndarray | None:
    """The numbers less their zero points, as signed or unsigned bytes; None where they do not fit, or are not known."""
    if zero is not None and not isinstance(zero, TensorConst):
        return None
    wide = values.astype(np.int32) - (0 if zero is None else zero.value.astype(np.int32))
    found = _literal_bytes(wide)
    return None if found is None else found.value.value  # type: ignore[union-attr]


def _product_example(b: GraphBuilder) -> Atom:
    rng = np.random.default_rng(0)
    w = rng.integers(0, 100, (5, 3)).astype(np.uint8)
    zeros = np.array([7, 0, 100], np.uint8)
    return b.call("matmul_integer", b.param("x", tensor_type((2, 4, 5), i8)), b.const(w), b.const(np.array(-128, np.int8)), b.const(zeros))


INTEGER_RULES = (
    GraphRule(
        "a convolution of bytes is a product of its windows",
        op("conv", any_("x"), any_("w"), name="conv", rest=True),
        _product,
        when=_is_of_bytes,
        example=_example,
    ),
    GraphRule(
        "a product with literal bytes needs no zero points",
        op("matmul_integer", any_("x"), const_("w"), name="matmul", rest=True),
        _product_of_bytes,
        when=lambda m: m.type_of("x").dtype in (i8, u8) and m.type_of("x").rank > 0,
        example=_product_example,
    ),
)
