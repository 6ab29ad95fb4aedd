"""Products with, and choices of rows from, weights of a few bits: MatMulNBits, MatMulBnb4 and GatherBlockQuantized of "com.microsoft".

Source: the contrib operators page of onnxruntime's documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tc.errors import NodeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.values import ModelValue, size_value
from tc.ir.arith import prove
from tc.ir.dtype import DType, bool_, f32, i8, i32, i64, u2, u4, u8, unpack
from tc.ir.expr import Const, Expr, ceildiv, equal, is_const

_DOMAIN = "com.microsoft"
UNSIGNED = {2: u2, 4: u4, 8: u8}
"""The types of weights, by their bits."""

BYTES_LEVEL = 4
"""The `accuracy_level` that asks for products of bytes."""

LARGEST_BYTE = 127.0


_FP4 = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
_NF4 = (
    -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1,
)  # fmt: skip
_BNB_TABLES = {0: np.array([*_FP4, *(-value for value in _FP4)], np.float32), 1: np.array(_NF4, np.float32)}
"""By `quant_type`."""


@dataclass(frozen=True)
class NBitsWeights:
    """Integers [n, k'], scales and zero points [n, k' / block]; `order`: which terms of the activations they belong to (k: none)."""

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    dtype: DType
    block: int
    order: np.ndarray | None = None


@onnx_op("MatMulNBits", domain=_DOMAIN)
def import_matmul_nbits(n: NodeContext) -> NodeResult:
    """A dequantize(B)' + bias. Where bytes are asked for, A is rounded to them, each block of a row of its own scale."""
    x, depth, count = n.value(0), int(n.attr("K", 0)), int(n.attr("N", 0))
    bits, block = int(n.attr("bits", 4)), int(n.attr("block_size", 0))
    if bits not in UNSIGNED:
        raise UnsupportedError(f"MatMulNBits with {bits} bits", code="TC1013", supported=", ".join(map(str, UNSIGNED)))
    if depth < 1 or count < 1 or block < 1 or block * bits % 8:
        raise NodeError(f"MatMulNBits: K = {depth}, N = {count}, blocks of {block} terms of {bits} bits")
    if n.attr("weight_prepacked", 0):
        raise UnsupportedError("MatMulNBits with weights that are packed for one processor", code="TC1013")
    x = _of_depth(n, x, depth)
    wide = n.cast(x, f32)
    result = of_blocks(n, wide, _read_weights(n, count, depth, block, UNSIGNED[bits]))
    bias = n.optional(5)
    if bias is not None:
        result = n.call("add", result, n.cast(bias, f32))
    return result if x.dtype is f32 else n.call("cast", result, dtype=x.dtype)


def of_blocks(n: NodeContext, x: ModelValue, weights: NBitsWeights) -> ModelValue:
    """The product of x [.., k] (f32) with the weights: [.., n]. Where the node asks for bytes, x is rounded to them."""
    if weights.order is not None:
        is_there = weights.order < x.shape[-1].value  # type: ignore[attr-defined]
        chosen = n.call("gather", x, n.const(np.where(is_there, weights.order, 0), i32), axis=-1)
        x = n.call("where", n.const(is_there, bool_), chosen, n.const(0, f32))
    scale = n.const(weights.scale.astype(np.float32), f32)
    zero = n.const(weights.zero, _zero_dtype(weights.zero))
    values = n.const(weights.values, weights.dtype)
    if int(n.attr("accuracy_level", 0)) == BYTES_LEVEL:
        return n.call("matmul_blocks", *_in_bytes(n, x, weights.block, values, scale, zero), columns=len(weights.values))
    made = n.call("dequantize_linear", values, scale, zero, axis=1, block_size=weights.block)
    return n.call("matmul", x, n.call("transpose", made, perm=(1, 0)))


@onnx_op("MatMulBnb4", domain=_DOMAIN)
def import_matmul_bnb4(n: NodeContext) -> NodeResult:
    """A B', of weights that are numbers of a table of 16, times the largest magnitude of their block; widened to f32 when they are read.

    Blocks run through all of B, row by row. Source of the tables: bitsandbytes; Dettmers et al. (2023), QLoRA.
    """
    x, depth, count, block = n.value(0), int(n.attr("K", 0)), int(n.attr("N", 0)), int(n.attr("block_size", 0))
    kind = int(n.attr("quant_type", 1))
    if kind not in _BNB_TABLES:
        raise UnsupportedError(f"MatMulBnb4 with quant_type {kind}", code="TC1013", supported="0 (FP4), 1 (NF4)")
    if not n.attr("transB", 1):
        raise UnsupportedError("MatMulBnb4 with transB = 0", code="TC1013", supported="1")
    packed, largest = n.array(1, "B"), n.array(2, "absmax")
    if depth < 1 or count < 1 or block < 1:
        raise NodeError(f"MatMulBnb4: K = {depth}, N = {count}, blocks of {block} terms")
    size = depth * count
    if packed is None or packed.dtype != np.uint8 or packed.size != -(-size // 2):
        raise NodeError(f"MatMulBnb4: B must have {-(-size // 2)} bytes")
    if largest is None or largest.size != -(-size // block):
        raise NodeError(f"MatMulBnb4: absmax must have {-(-size // block)} numbers")
    x = _of_depth(n, x, depth)
    codes = np.stack([packed.reshape(-1) >> 4, packed.reshape(-1) & 15], 1).reshape(-1)[:size]
    weights = _BNB_TABLES[kind][codes] * np.repeat(largest.reshape(-1).astype(np.float32), block)[:size]
    wide = n.cast(x, f32)
    result = n.call("matmul", wide, n.const(np.ascontiguousarray(weights.reshape(count, depth).T), f32))
    return result if x.dtype is f32 else n.call("cast", result, dtype=x.dtype)


def _of_depth(n: NodeContext, x: ModelValue, depth: int) -> ModelValue:
    """Rows of K numbers; where only the run tells how many, it is checked then."""
    if not x.rank or (isinstance(x.shape[-1], Const) and not is_const(x.shape[-1], depth)):
        raise NodeError(f"{n.op_type}: A is {x.type}, but K is {depth}")
    return x if isinstance(x.shape[-1], Const) else n.call("reshape", x, shape=(*x.shape[:-1], depth))


def _zero_dtype(zero: np.ndarray) -> DType:
    return f32 if zero.dtype.kind == "f" else u8


def _in_bytes(
    n: NodeContext, x: ModelValue, block: int, values: ModelValue, scale: ModelValue, zero: ModelValue
) -> tuple[ModelValue | None, ...]:
    """The operands of `matmul_blocks`: each block of a row of x divided by its scale, its largest magnitude over 127, and rounded, half to
    even; a block of zeros has the scale 1. One that has a NaN or an infinity gives nothing finite."""
    *rows, depth = x.shape
    missing = -int(depth) % block  # type: ignore[call-overload]
    if missing:
        x = n.call("pad", x, None, pads=(*(0 for _ in rows), 0, *(0 for _ in rows), missing))
    groups = x.shape[-1] // block
    blocks = n.call("reshape", x, shape=(*rows, groups, block))
    largest = n.call("max", n.call("abs", blocks), axes=(-1,), keepdims=True)
    is_zero = n.call("equal", largest, n.const(0, f32))
    x_scale = n.call("where", is_zero, n.const(1, f32), n.call("div", largest, n.const(LARGEST_BYTE, f32)))
    whole = n.call("quantize_linear", blocks, x_scale, None, dtype=i8, axis=-1, block_size=block)
    sums = n.call("sum", n.call("cast", whole, dtype=i32), axes=(-1,), keepdims=False)
    return whole, values, scale, zero, None, sums, n.call("reshape", x_scale, shape=(*rows, groups))


def _read_weights(n: NodeContext, count: int, depth: int, block: int, dtype: DType) -> NBitsWeights:
    """What inputs 1 to 4 say. NodeError where they have not the bytes that the attributes ask for."""
    groups = -(-depth // block)
    packed, scale, zero = n.array(1, "B"), n.array(2, "scales"), n.array(3, "zero_points")
    if packed is None or scale is None:
        raise NodeError("MatMulNBits: B or its scales are missing")
    wanted = count * groups * block // dtype.per_byte
    if packed.dtype != np.uint8 or packed.size != wanted:
        raise NodeError(f"MatMulNBits: B has {packed.size} elements of {packed.dtype}, but must have {wanted} bytes")
    if scale.size != count * groups:
        raise NodeError(f"MatMulNBits: {scale.size} scales, but {count} columns have {groups} blocks each")
    values = unpack(packed.reshape(-1), dtype, (count, groups * block))[:, :depth]
    scale = scale.reshape(count, groups)
    zero = zero_points(n, zero, count, groups, dtype)
    index, weights = n.array(4, "g_idx"), NBitsWeights(values, scale, zero, dtype, block)
    if index is None:
        return weights
    index = index.reshape(-1)
    if index.size == groups * block:  # with those that fill the last block up
        index = index[:depth]
    return weights if np.array_equal(index, np.arange(depth) // block) else _regrouped(weights, index)


def zero_points(n: NodeContext, zero: np.ndarray | None, count: int, groups: int, dtype: DType) -> np.ndarray:
    """Zero points [n, g]: of whole bytes, several to a byte, or floats; the middle of the range where there are none."""
    if zero is None:
        return np.full((count, groups), 2 ** (dtype.bits - 1), np.uint8)
    if zero.dtype != np.uint8:
        if zero.size != count * groups:
            raise NodeError(f"{n.op_type}: {zero.size} zero points, but {count} columns have {groups} blocks each")
        return zero.reshape(count, groups).astype(np.float32)
    row = dtype.bytes_of(groups)
    if zero.size != count * row:
        raise NodeError(f"{n.op_type}: zero points of {zero.size} bytes, but {count} columns of {groups} blocks take {count * row}")
    return np.stack([unpack(each, dtype, (groups,)) for each in zero.reshape(count, row)]).astype(np.uint8)


def _regrouped(weights: NBitsWeights, index: np.ndarray) -> NBitsWeights:
    """Weights whose term k belongs to block `index[k]`, ordered by blocks that are filled up to whole ones."""
    count, depth = weights.values.shape
    groups, block = weights.scale.shape[1], weights.block
    if index.shape != (depth,) or index.min(initial=0) < 0 or index.max(initial=0) >= groups:
        raise NodeError(f"MatMulNBits: g_idx must have {depth} numbers of {groups} blocks")
    order: list[np.ndarray] = []
    chosen: list[int] = []
    for group in range(groups):
        terms = np.flatnonzero(index == group)
        for first in range(0, len(terms), block):
            part = terms[first : first + block]
            order.append(np.pad(part, (0, block - len(part)), constant_values=depth))
            chosen.append(group)
    places = np.concatenate(order)
    filled = np.concatenate([weights.values, np.zeros((count, 1), weights.values.dtype)], 1)
    return replace(weights, values=filled[:, places], scale=weights.scale[:, chosen], zero=weights.zero[:, chosen], order=places)


@onnx_op("GatherBlockQuantized", domain=_DOMAIN)
def import_gather_block_quantized(n: NodeContext) -> NodeResult:
    """Elements of quantized weights, dequantized when they are chosen; along the axis of the blocks, each by the parameters of its own."""
    data, indices, scale, zero = n.value(0), n.value(1), n.value(2), n.optional(3)
    axis, along = (_axis_of(n, name, default, data.rank) for name, default in (("gather_axis", 0), ("quantize_axis", 1)))
    if data.dtype is u8:
        data, zero = _unpacked(n, along)
    block, size = int(n.attr("block_size", 128)), data.shape[along]
    if data.dtype.is_float and block == 0 and isinstance(size, Const):  # one of all
        block = max(int(size.value), 1)
    if block < 1:
        raise NodeError(f"GatherBlockQuantized: blocks of {block} elements of {data.type}")
    parameters = [None if each is None else _of_blocks(n, each, data, along, block) for each in (scale, zero)]
    chosen = n.call("gather", data, indices, axis=axis)
    if axis != along:
        place = along if along < axis else along + indices.rank - 1
        own = [None if each is None else n.call("gather", each, indices, axis=axis) for each in parameters]
        return n.call("dequantize_linear", chosen, *own, axis=place, block_size=block)
    blocks = _blocks_of(n, indices, data.shape[axis], block)
    own = [None if each is None else n.call("gather", each, blocks, axis=axis) for each in parameters]
    return n.call("dequantize_linear", chosen, *own, axis=0, block_size=int(chosen.rank > 0))


def _axis_of(n: NodeContext, name: str, default: int, rank: int) -> int:
    axis = int(n.attr(name, default))
    if not -rank <= axis < rank:
        raise NodeError(f"GatherBlockQuantized: {name} is {axis}, but the data have rank {rank}")
    return axis % rank


def _unpacked(n: NodeContext, along: int) -> tuple[ModelValue, ModelValue]:
    """Data of bytes that hold several numbers of the last axis, and zero points of bytes that hold several of the last blocks, apart."""
    packed, zeros, bits = n.array(0, "data"), n.array(3, "zero_points"), int(n.attr("bits", 4))
    if packed is None:
        raise NodeError("GatherBlockQuantized: data are missing")
    if bits not in UNSIGNED or (bits < 8 and along != packed.ndim - 1):
        supported = ", ".join(map(str, UNSIGNED))
        message = f"GatherBlockQuantized of {bits} bits along axis {along} of {n.value(0).type}"
        raise UnsupportedError(message, code="TC1013", supported=supported)
    dtype, block = UNSIGNED[bits], int(n.attr("block_size", 128))
    shape = (*packed.shape[:-1], packed.shape[-1] * dtype.per_byte)
    counts = tuple(-(-size // max(block, 1)) if d == along else size for d, size in enumerate(shape))
    flat = zero_points(n, zeros, int(np.prod(counts[:-1])), counts[-1], dtype)
    values = unpack(packed.reshape(-1), dtype, shape)
    return n.const(values, dtype), n.const(flat.reshape(counts).astype(dtype.numpy), dtype)


def _of_blocks(n: NodeContext, value: ModelValue, data: ModelValue, along: int, block: int) -> ModelValue:
    """Scales or zero points: one for each block of the axis and place elsewhere, or of floats one for all places of another axis.
    NodeError where there are not so many."""
    wanted = tuple(ceildiv(dim, block) if d == along else dim for d, dim in enumerate(data.shape))
    may_widen = [data.dtype.is_float and d != along for d in range(data.rank)]
    fits = value.rank == data.rank and all(
        prove(equal(own, dim), n.facts) is not False or (widens and is_const(own, 1))
        for own, dim, widens in zip(value.shape, wanted, may_widen, strict=True)
    )
    if not fits:
        needed = f"blocks of {block} along axis {along} of {data.type} need {list(map(str, wanted))}"
        raise NodeError(f"GatherBlockQuantized: scales or zero points are {value.type}, but {needed}")
    return n.call("expand", value, shape=wanted) if any(may_widen) and value.shape != wanted else value


def _blocks_of(n: NodeContext, indices: ModelValue, size: Expr, block: int) -> ModelValue:
    """Which blocks of an axis of this size its elements are in; those below 0 count from the end."""
    wide = n.call("cast", indices, dtype=i64)
    from_end = n.call("add", wide, size_value(size))
    places = n.call("where", n.call("less", wide, n.const(0, i64)), from_end, wide)
    return n.call("div", places, n.const(block, i64))
