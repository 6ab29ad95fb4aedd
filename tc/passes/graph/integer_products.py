"""Convolutions and products of bytes without zero points; and such convolutions as products of windows, side by side, and the weights.

A product of bytes has instructions, which add the products of several values that follow each other in memory: unsigned ones on one side,
signed ones on the other. All sums are in i32 and wrap, so results are exact: what all terms of one side are too large by comes off the
sum at the end, as often as the other side sums up to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tc.ir.dtype import DType, f32, i8, i32, u8
from tc.ir.expr import const, is_const
from tc.ir.graph import Atom, Attrs, Call, TensorConst, TensorVar
from tc.ir.module import IRModule
from tc.ir.types import TensorType, product, tensor_type
from tc.ops.build import GraphBuilder, full_attrs
from tc.passes.graph.integer_movement import SIGN_RULES
from tc.passes.graph.rewrite import GraphRule, Match, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass


@graph_pass
def integer_products(module: IRModule) -> IRModule:
    """Make convolutions of bytes, widened to i32, such of bytes, and take zero points out of products; see INTEGER_RULES, SIGN_RULES."""
    return rewrite_module(module, (*INTEGER_RULES, *SIGN_RULES))


@graph_pass
def integer_windows(module: IRModule) -> IRModule:
    """Make convolutions of bytes that no layout took products of bytes; see WINDOWS_RULES."""
    return rewrite_module(module, WINDOWS_RULES)


@graph_pass
def merge_scales(module: IRModule) -> IRModule:
    """Let one factor take sums of integers to steps of a quantized tensor, where a factor and a divisor did; see MERGED_SCALE_RULES."""
    return rewrite_module(module, MERGED_SCALE_RULES)


@dataclass(frozen=True)
class _Bytes:
    """i32 numbers that are those of a tensor of bytes less one number, or one byte that is data."""

    value: Atom
    zero: int = 0
    point: Atom | None = None

    @property
    def dtype(self) -> DType:
        assert isinstance(self.value.type, TensorType)
        return self.value.type.dtype


def _as_bytes(atom: Atom, m: Match) -> _Bytes | None:
    """The bytes that i32 numbers come from: a literal's own, or those that were cast, with or without a zero point subtracted."""
    if isinstance(atom, TensorConst):
        return _literal_bytes(atom.value)
    call, zero, byte = m.call_of(atom), 0, None
    if call is not None and call.op == "sub":
        point = call.args[1]
        if point is None or not isinstance(point.type, TensorType) or point.type.rank:
            return None
        if isinstance(point, TensorConst):
            zero = int(point.value)
        elif (byte := _widened(point, m)) is None:
            return None
        call = m.call_of(call.args[0])
    source = None if call is None or call.op != "cast" else call.args[0]
    if source is None or not isinstance(source.type, TensorType):
        return None
    dtype = source.type.dtype
    if byte is not None:
        assert isinstance(byte.type, TensorType)
        return _Bytes(source, point=byte) if dtype is u8 and byte.type.dtype is u8 else None
    in_range = dtype in (i8, u8) and np.iinfo(dtype.numpy).min <= zero <= np.iinfo(dtype.numpy).max
    return _Bytes(source, zero) if in_range else None


def _widened(atom: Atom, m: Match) -> Atom | None:
    """What a number was before it was cast to i32."""
    call = m.call_of(atom)
    return call.args[0] if call is not None and call.op == "cast" else None


def _literal_bytes(values: np.ndarray) -> _Bytes | None:
    for dtype in (i8, u8):
        narrow = values.astype(dtype.numpy)
        if np.array_equal(narrow, values):
            return _Bytes(TensorConst(narrow))
    return None


def _split_literal(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Signed bytes [o, ...] and int64[o], which the numbers of a channel are larger by; None for what is no byte less a zero point."""
    wide = values.astype(np.int64)
    if abs(wide).max(initial=0) > 255:
        return None
    rows = wide.reshape(len(wide), -1)
    left = np.maximum(rows.max(1) - 127, 0) + np.minimum(rows.min(1) + 128, 0)
    stored = wide - left.reshape(-1, *[1] * (wide.ndim - 1))
    return (stored.astype(np.int8), left) if stored.min() >= -128 and stored.max() <= 127 else None


def _is_of_bytes(m: Match) -> bool:
    x, w, attrs = m.type_of("x"), m.type_of("w"), m.attrs("conv")
    if x.dtype is not i32 or w.static_shape is None or not prod(w.static_shape):
        return False
    image, weights = _as_bytes(m.x, m), _as_bytes(m.w, m)
    if any(side is not None and side.point is not None for side in (image, weights)):
        has_known_pads = all(isinstance(pad, int) and pad >= 0 for pad in attrs.pads or ())
        if not has_known_pads or not isinstance(m.w, TensorConst):
            return False
    if image is not None and isinstance(m.w, TensorConst):
        return weights is not None or _split_literal(m.w.value) is not None
    return image is not None and weights is not None and (not (image.zero or weights.zero) or attrs.groups == 1)


def _conv_of_bytes(b: GraphBuilder, m: Match) -> Atom:
    x, w = _as_bytes(m.x, m), _as_bytes(m.w, m)
    assert x is not None
    call = m.call("conv")
    split = _split_literal(m.w.value) if isinstance(m.w, TensorConst) and (w is None or w.dtype is u8) else None
    if split is not None:
        stored, left = split
        total = _sums(b, x, _Bytes(TensorConst(stored)), call)
        ones = np.ones((1 if m.attrs("conv").groups == 1 else len(stored), *stored.shape[1:]), np.int8)
        own = _sums(b, x, _Bytes(TensorConst(ones)), call)
        total = b.call("add", total, b.call("mul", own, _per_channel(b, b.const(left.astype(np.int32)), stored.ndim - 2)))
    else:
        assert w is not None
        is_plain = isinstance(w.value, TensorConst) or not (x.zero or w.zero)
        total = _sums(b, x, w, call) if is_plain else _product(b, x, w, call)
    if len(call.args) > 2 and call.args[2] is not None:
        total = b.call("add", total, _per_channel(b, call.args[2], m.type_of("w").rank - 2))
    return total


def _sums(b: GraphBuilder, x: _Bytes, w: _Bytes, call: Call, fill: int = 0) -> Atom:
    """A convolution of bytes, less what its sums are too large by; `fill`: the number around x."""
    x, geometry = _unsigned(b, x) if isinstance(w.value, TensorConst) else x, _geometry(full_attrs(call))
    if x.point is not None and any(geometry["pads"] or ()):
        x, geometry = _padded(b, x, geometry["pads"]), {**geometry, "pads": (0,) * len(geometry["pads"])}
    total = b.call("conv_integer", x.value, w.value, **geometry, fill=fill + x.zero, span=call.span)
    if not (x.zero or x.point is not None) or not isinstance(w.value, TensorConst):
        return total
    sums = w.value.value.astype(np.int64).reshape(len(w.value.value), -1).sum(1)
    shift: Atom = b.const((sums * (x.zero if x.point is None else 1)).astype(np.int32))
    if x.point is not None:
        shift = b.call("mul", b.call("cast", x.point, dtype=i32), shift)
    return b.call("sub", total, _per_channel(b, shift, w.value.value.ndim - 2))


def _padded(b: GraphBuilder, x: _Bytes, pads: Sequence[int]) -> _Bytes:
    """The same with its zero point around it."""
    rank = len(pads) // 2
    return _Bytes(b.call("pad", x.value, x.point, pads=(0, 0, *pads[:rank], 0, 0, *pads[rank:])), point=x.point)


def _conv_of_unsigned(b: GraphBuilder, m: Match) -> Atom:
    w = _literal_bytes(m.value("w"))
    assert w is not None
    return _sums(b, _Bytes(m.x), w, m.call("conv"), m.attrs("conv").fill)


def _has_wrong_signs(m: Match) -> bool:
    x, w = m.type_of("x").dtype, m.type_of("w").dtype
    if x not in (i8, u8):
        return False
    found = _literal_bytes(m.value("w"))
    return found is not None and found.dtype is i8 and (x, w) != (u8, i8)


def _signed_example(b: GraphBuilder) -> Atom:
    w = np.random.default_rng(0).integers(0, 128, (4, 2, 3, 2)).astype(np.uint8)
    x = b.param("x", tensor_type((2, 4, 6, 5), i8))
    return b.call("conv_integer", x, b.const(w), pads=(1, 0, 2, 1), groups=2, fill=-128)


def _per_channel(b: GraphBuilder, numbers: Atom, rank: int) -> Atom:
    """[o] -> [o, 1, ...], for results with `rank` spatial axes."""
    if isinstance(numbers, TensorConst):
        return b.const(numbers.value.reshape(-1, *(1,) * rank))
    assert isinstance(numbers.type, TensorType)
    return b.call("reshape", numbers, shape=(numbers.type.shape[0], *[const(1)] * rank))


def _geometry(attrs: Attrs) -> dict[str, Any]:
    return {name: attrs[name] for name in ("strides", "pads", "dilations", "groups")}


def _product(b: GraphBuilder, x: _Bytes, w: _Bytes, call: Call, fill: int = 0) -> Atom:
    """The product of the windows and the weights; `fill`: the number around x."""
    assert isinstance(w.value.type, TensorType)
    outputs, channels, *kernel = w.value.type.static_shape  # type: ignore[misc]
    rank, depth = len(kernel), channels * prod(kernel)
    windows = _windows(b, x, full_attrs(call), kernel, fill)
    assert isinstance(windows.type, TensorType)
    samples, counts = windows.type.shape[:1], windows.type.shape[2 + rank :]
    lead = () if is_const(samples[0], 1) else samples
    columns = b.call("reshape", windows, shape=(*lead, const(depth), product(counts)))
    rows = _rows(b, w.value, outputs, depth)
    total = b.call("matmul_integer", rows, columns, *_zero_points(b, x, w), span=call.span)
    return b.call("reshape", total, shape=(*samples, const(outputs), *counts))


def _unsigned(b: GraphBuilder, x: _Bytes) -> _Bytes:
    """The same numbers from unsigned bytes: of the two sides of a product one is signed, the other is not."""
    if x.dtype is u8:
        return x
    raised = b.call("add", b.call("cast", x.value, dtype=u8), b.const(np.array(128, np.uint8)))
    return _Bytes(raised, x.zero + 128)


def _windows(b: GraphBuilder, x: _Bytes, attrs: Attrs, kernel: list[int], fill: int) -> Atom:
    """[n, c, *kernel, *counts]: what the convolution reads for each result."""
    geometry = {"strides": attrs.strides, "pads": attrs.pads, "dilations": attrs.dilations}
    return b.call("windows", x.value, kernel=tuple(kernel), fill=fill + x.zero, **geometry)


def _rows(b: GraphBuilder, w: Atom, outputs: int, depth: int) -> Atom:
    """The weights [o, c, *kernel] as the left operand [o, depth]."""
    if isinstance(w, TensorConst):
        return b.const(w.value.reshape(outputs, depth))
    return b.call("reshape", w, shape=(const(outputs), const(depth)))


def _zero_points(b: GraphBuilder, x: _Bytes, w: _Bytes) -> tuple[Atom | None, ...]:
    """Those that the product has to subtract."""
    assert isinstance(w.value, TensorVar) or not (x.zero or w.zero)
    if not (x.zero or w.zero):
        return ()
    return b.const(np.array(w.zero, w.dtype.numpy)), b.const(np.array(x.zero, x.dtype.numpy))


def _example(b: GraphBuilder) -> Atom:
    rng = np.random.default_rng(0)
    x = b.call("cast", b.param("x", tensor_type((2, 3, 6, 5), i8)), dtype=i32)
    shifted = b.call("sub", x, b.const(np.array(-7, np.int32)))
    w, bias = rng.integers(-128, 128, (4, 3, 3, 2)).astype(np.int32), rng.integers(-99, 99, 4).astype(np.int32)
    return b.call("conv", shifted, b.const(w), b.const(bias), pads=(1, 0, 2, 1), strides=(2, 1))


# -- products with literals


def _product_of_bytes(b: GraphBuilder, m: Match) -> Atom | None:
    """The product with a literal, without zero points: rows unsigned, columns as they are less their own, if that is a byte, or signed."""
    call, x, zero, point = m.call("matmul"), m.x, _argument(m, 2), _argument(m, 3)
    found = _own_bytes(m.value("w"), point, m.type_of("x").dtype)
    is_one = zero is None or (isinstance(zero.type, TensorType) and (not zero.type.rank or is_const(zero.type.shape[0], 1)))
    if found is None or not is_one or (found[0].dtype == np.uint8 and zero is None):
        return None
    columns, left = found
    is_signed = m.type_of("x").dtype is i8 and columns.dtype == np.int8
    if zero is None and not is_signed and point is None and left is None:
        return None
    rows = _unsigned(b, _Bytes(x)) if is_signed else _Bytes(x)
    total = b.call("matmul_integer", rows.value, b.const(columns), span=call.span)
    axis, is_row = max(columns.ndim - 2, 0), m.type_of("x").rank > 1
    sums = np.asarray(columns.sum(axis, dtype=np.int64, keepdims=is_row))  # of the shape that a row's product has
    if left is not None:  # (x - z) (w - l) = x w - z w - l (x - z)
        own = b.call("sum", b.call("cast", rows.value, dtype=i32), axes=(-1,), keepdims=is_row and columns.ndim > 1)
        total = b.call("sub", total, b.call("mul", own, b.const(left.astype(np.int32))))
        sums = sums - columns.shape[axis] * left
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


def _own_bytes(values: np.ndarray, zero: Atom | None, rows: DType) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Bytes, and what they are too large by: the numbers less their zero points; where those are no bytes, or unsigned ones as `rows` are,
    signed ones. None where zero points are not known, or numbers have more bits."""
    if zero is not None and not isinstance(zero, TensorConst):
        return None
    points = np.zeros((), np.int64) if zero is None else zero.value.astype(np.int64)
    points = points.reshape(()) if points.size == 1 else points
    found = _literal_bytes(values.astype(np.int64) - points)
    if found is not None and not (found.dtype is u8 and rows is u8):
        return found.value.value, None  # type: ignore[union-attr]
    if values.dtype.itemsize > 1:
        return None
    middle = 128 if values.dtype == np.uint8 else 0
    return (values.astype(np.int32) - middle).astype(np.int8), points - middle


def _product_example(b: GraphBuilder) -> Atom:
    rng = np.random.default_rng(0)
    w = rng.integers(0, 100, (5, 3)).astype(np.uint8)
    zeros = np.array([7, 0, 100], np.uint8)
    return b.call("matmul_integer", b.param("x", tensor_type((2, 4, 5), i8)), b.const(w), b.const(np.array(-128, np.int8)), b.const(zeros))


def _window_product(b: GraphBuilder, m: Match) -> Atom:
    return _product(b, _Bytes(m.x), _Bytes(m.w), m.call("conv"), m.attrs("conv").fill)


def _is_one_product(m: Match) -> bool:
    shape = m.type_of("w").static_shape
    return m.attrs("conv").groups == 1 and shape is not None and prod(shape) > 0


def _windows_example(b: GraphBuilder) -> Atom:
    w = np.random.default_rng(0).integers(-128, 128, (4, 3, 3, 2)).astype(np.int8)
    x = b.param("x", tensor_type((2, 3, 6, 5), u8))
    return b.call("conv_integer", x, b.const(w), pads=(1, 0, 2, 1), strides=(2, 1), fill=3)


INTEGER_RULES = (
    GraphRule(
        "a convolution of widened bytes is one of bytes",
        op("conv", any_("x"), any_("w"), name="conv", rest=True),
        _conv_of_bytes,
        when=_is_of_bytes,
        example=_example,
    ),
    GraphRule(
        "a convolution of signed bytes and literals is one of unsigned and signed bytes",
        op("conv_integer", any_("x"), const_("w"), name="conv"),
        _conv_of_unsigned,
        when=_has_wrong_signs,
        example=_signed_example,
    ),
    GraphRule(
        "a product with literal bytes needs no zero points",
        op("matmul_integer", any_("x"), const_("w"), name="matmul", rest=True),
        _product_of_bytes,
        when=lambda m: m.type_of("x").dtype in (i8, u8) and m.type_of("x").rank > 0,
        example=_product_example,
    ),
)

WINDOWS_RULES = (
    GraphRule(
        "a convolution of bytes is a product of its windows",
        op("conv_integer", any_("x"), any_("w"), name="conv"),
        _window_product,
        when=_is_one_product,
        example=_windows_example,
    ),
)


def _scaled_once(b: GraphBuilder, m: Match) -> Atom:
    quantize = m.call("quantize")
    factor = m.value("factor") / m.value("step")
    product = b.call("mul", b.call("cast", m.sums, dtype=f32), b.const(factor.astype(np.float32)))
    attrs: dict[str, Any] = dict(m.attrs("quantize"))
    return b.call("quantize_linear", product, b.const(np.ones((), np.float32)), *quantize.args[2:], **attrs, span=quantize.span)


def _is_scaled_twice(m: Match) -> bool:
    factor, step = m.value("factor"), m.value("step")
    is_of_floats = m.type_of("factor").dtype is f32 and not m.attrs("quantize").dtype.is_float
    if m.type_of("sums").dtype is not i32 or not is_of_floats or step.ndim or step == 1:
        return False
    with np.errstate(all="ignore"):
        merged = np.abs(factor / step)[factor != 0]
    return bool(np.all((merged >= np.finfo(np.float32).tiny) & (merged <= np.finfo(np.float32).max)))


def _scales_example(b: GraphBuilder) -> Atom:
    factor = np.random.default_rng(0).random((4, 1, 1)).astype(np.float32)
    scaled = b.call("mul", b.call("cast", b.param("x", tensor_type((2, 4, 3, 5), i32)), dtype=f32), b.const(factor))
    return b.call("quantize_linear", scaled, b.const(np.array(0.25, np.float32)), b.const(np.array(3, np.uint8)), dtype=u8)


MERGED_SCALE_RULES = (
    GraphRule(
        "a factor of integers and the step of a quantization are one factor",
        op(
            "quantize_linear",
            op("mul", op("cast", any_("sums"), single_use=True), const_("factor"), single_use=True),
            const_("step"),
            name="quantize",
            rest=True,
        ),
        _scaled_once,
        when=_is_scaled_twice,
        example=_scales_example,
    ),
)
