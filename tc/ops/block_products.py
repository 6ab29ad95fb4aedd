"""Products with quantized weights that have a scale, and perhaps a zero point or a shift, for each block of the terms of each column.

A sum runs over one block of integers and is scaled then, so that weights are used as they are stored.
Source: the block formats of ggml (GGUF), and `MatMulNBits` of onnxruntime.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.dtype import DType, f32, from_numpy, i32, int_range, parse_dtype, u4
from tc.ir.expr import Expr, cast, const, floordiv, floormod, is_const, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import Arrays, Tensors, Types, operand, ravel, require_equal, sum_dtype, unravel
from tc.ops.registry import REQUIRED, OpDef, register, require
from tc.te import Tensor

TOGETHER = 4
"""Terms that begin at the same bit of neighbouring bytes: instructions add the products of so many bytes at once."""

X, W, SCALE, ZERO, SHIFT, SUMS, X_SCALE = range(7)
"""The operands."""

# -- packed literals


def terms_of_word(dtype: DType) -> int:
    """How many weights of one column lie side by side in 32 bits."""
    return 32 // dtype.bits


def pack_weights(values: np.ndarray, block: int, columns: int) -> np.ndarray:
    """[n, g * block] -> panels of so many columns, [ceil(n / columns), g, block / t, columns, 4, p], t = 4 p terms to a word of 32 bits.

    Term k of a word is at [k % 4, k // 4]; where p is 1 the last axis is not there. Zeros stand in the columns past the end.
    """
    together = terms_of_word(from_numpy(values.dtype))
    _, depth = values.shape
    assert depth % block == 0 and block % together == 0, "whole words of whole blocks"
    plain = _with_columns(values, columns).view(np.uint8)  # numpy moves bytes faster than types it does not know
    cut = plain.reshape(-1, columns, depth // block, block // together, together // TOGETHER, TOGETHER)
    packed = np.ascontiguousarray(cut.transpose(0, 2, 3, 1, 5, 4)).view(values.dtype)
    return packed if together > TOGETHER else packed[..., 0]


def pack_parameters(values: np.ndarray, columns: int) -> np.ndarray:
    """Scales and the like, [n, g] -> [ceil(n / columns), g, columns], zeros in the columns past the end."""
    cut = _with_columns(values, columns).reshape(-1, columns, values.shape[1])
    return np.ascontiguousarray(cut.transpose(0, 2, 1))


def _with_columns(values: np.ndarray, multiple: int) -> np.ndarray:
    count, rest = values.shape
    if count % multiple == 0:
        return np.ascontiguousarray(values)
    padded = np.zeros((-(-count // multiple) * multiple, rest), values.dtype)
    padded[:count] = values
    return padded


def _unpack_weights(packed: np.ndarray) -> np.ndarray:
    """[n, g, block] of packed weights, n being what all panels hold."""
    full = packed if packed.ndim == 6 else packed[..., None]
    panels, groups, words, columns, *word = full.shape
    return full.transpose(0, 3, 1, 2, 5, 4).reshape(panels * columns, groups, words * word[0] * word[1])


# -- the operator


def _given(items: Sequence[Any], index: int) -> Any:
    return items[index] if len(items) > index else None


def _infer(types: Types, attrs: Attrs) -> TensorType:
    op = "matmul_blocks"
    x, w, scale = (operand(types, k, op) for k in (X, W, SCALE))
    if not scale.dtype.is_float:
        raise ShapeError(f"{op}: the scales are {scale}, but must be floats")
    if x.rank < 2 or w.rank not in (2, 5, 6) or not w.dtype.is_int:
        raise ShapeError(f"{op}: {x} times {w}; needed are [..., blocks, terms] and integers [columns, terms], or panels of them")
    if not (x.dtype.is_float or x.dtype.is_int) or x.dtype.is_storage:
        raise ShapeError(f"{op}: the operand {x} is of no type to compute with")
    groups, block = x.shape[-2:]
    if w.rank == 2:
        parameters: tuple[Expr, ...] = (w.shape[0], groups)
        require(w.shape[1] <= groups * block, f"{op}: {w} has more terms than {x}")
        require(attrs.columns <= w.shape[0], f"{op}: {w} holds {w.shape[0]} of {attrs.columns} columns")
    else:
        parameters = (w.shape[0], groups, w.shape[3])
        together = terms_of_word(w.dtype)
        word = (TOGETHER, *([together // TOGETHER] if together > TOGETHER else []))
        if w.rank != 4 + len(word):
            raise ShapeError(f"{op}: {w} must have rank {4 + len(word)}")
        for found, size in zip(w.shape[4:], word, strict=True):
            require_equal(found, const(size), f"{op}: the words of {w}")
        require_equal(w.shape[1], groups, f"{op}: the blocks of {w}")
        require_equal(simplify(w.shape[2] * terms_of_word(w.dtype)), block, f"{op}: the terms of a block of {w}")
        require(attrs.columns <= w.shape[0] * w.shape[3], f"{op}: {w} holds fewer than {attrs.columns} columns")
    wanted = {SCALE: parameters, ZERO: parameters, SHIFT: parameters, SUMS: x.shape[:-1], X_SCALE: x.shape[:-1]}
    for place, shape in wanted.items():
        type_ = _given(types, place)
        if type_ is None or (place == ZERO and type_.rank == 0):
            continue
        if type_.rank != len(shape):
            raise ShapeError(f"{op}: operand {place} is {type_}, but must be {[str(dim) for dim in shape]}")
        for found, needed in zip(type_.shape, shape, strict=True):
            require_equal(found, needed, f"{op}: operand {place}, {type_}")
    if _given(types, SUMS) is None and (_given(types, ZERO) is not None or _given(types, SHIFT) is not None):
        raise ShapeError(f"{op}: zero points and shifts need the sums of the blocks")
    return TensorType((*x.shape[:-2], const(attrs.columns)), f32 if x.dtype.is_int else x.dtype)


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, w, scale = tensors[X], tensors[W], tensors[SCALE]
    assert x is not None and w is not None and scale is not None
    zero, shift, sums, x_scale = (_given(tensors, place) for place in (ZERO, SHIFT, SUMS, X_SCALE))
    rows, groups, block = x.shape[:-2], x.shape[-2], x.shape[-1]
    panel = None if len(w.shape) == 2 else w.shape[3]
    columns = simplify(w.shape[0] if panel is None else w.shape[0] * panel)  # whole panels are summed, what lies past the end is not stored
    joint = (simplify(product(rows)),) if len(rows) > 1 else rows
    exact = x.dtype.is_int
    dtype = i32 if exact else sum_dtype(x.dtype)
    parts = () if is_const(groups, 1) else (groups,)

    def at_row(tensor: Tensor, row: Sequence[Expr], *rest: Expr) -> Expr:
        return tensor[(*(unravel(row[0], rows) if len(rows) > 1 else row), *rest)]

    def weight(group: Expr, column: Expr, k: Expr) -> Expr:
        if panel is None:
            place, have = group * block + k, w.shape[1]
            value = cast(w[column, place], dtype)
            return value if simplify(groups * block) is have else select(place < have, value, const(0, dtype))
        together = terms_of_word(w.dtype)
        word = (floormod(k, TOGETHER), *([floormod(floordiv(k, TOGETHER), together // TOGETHER)] if together > TOGETHER else []))
        return cast(w[(floordiv(column, panel), group, floordiv(k, together), floormod(column, panel), *word)], dtype)

    def parameter(tensor: Tensor, group: Expr, column: Expr) -> Expr:
        if not tensor.shape:
            return tensor[()]
        return tensor[column, group] if panel is None else tensor[floordiv(column, panel), group, floormod(column, panel)]

    def term(*axes: Expr) -> Expr:
        *row, column, k = axes
        group = row.pop() if parts else const(0)
        return cast(at_row(x, row, group, k), dtype) * weight(group, column, k)

    inner = te.reduce("sum", (*joint, *parts, columns), (block,), term, "block_sums")

    def scaled(row: Sequence[Expr], group: Expr, column: Expr) -> Expr:
        """What a block adds to the result."""
        value: Expr = inner[(*row, *([group] if parts else []), column)]
        offset = None if zero is None else parameter(zero, group, column)
        is_whole = exact and offset is not None and offset.dtype.is_int
        if offset is not None and is_whole:
            value = value - cast(offset, i32) * cast(at_row(sums, row, group), i32)
        value = cast(value, f32) if exact else value
        if offset is not None and not is_whole:
            value = value - cast(offset, value.dtype) * cast(at_row(sums, row, group), value.dtype)
        value = value * cast(parameter(scale, group, column), value.dtype)
        if shift is not None:
            value = value + cast(parameter(shift, group, column), value.dtype) * cast(at_row(sums, row, group), value.dtype)
        return value if x_scale is None else value * cast(at_row(x_scale, row, group), value.dtype)

    if parts:
        total = te.reduce("sum", (*joint, columns), parts, lambda *axes: scaled(axes[:-2], axes[-1], axes[-2]), "sum_of_blocks")

    def finish(*axes: Expr) -> Expr:
        row = (ravel(axes[:-1], rows),) if rows else ()
        value = total[(*row, axes[-1])] if parts else scaled(row, const(0), axes[-1])
        return cast(value, types[0].dtype)

    return te.compute(types[0].shape, finish, "scaled")


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, w, scale = arrays[X], arrays[W], arrays[SCALE]
    assert x is not None and w is not None and scale is not None
    zero, shift, sums, x_scale = (_given(arrays, place) for place in (ZERO, SHIFT, SUMS, X_SCALE))
    groups, block = x.shape[-2:]
    number = np.dtype(np.int64 if x.dtype.kind in "iu" else np.float64)

    def parameter(values: np.ndarray, dtype: str = "f8") -> np.ndarray:
        plain = values if values.ndim < 3 else values.transpose(0, 2, 1).reshape(-1, values.shape[1])
        return plain.astype(dtype)

    if w.ndim == 2:
        flat = np.zeros((w.shape[0], groups * block), number)
        flat[:, : w.shape[1]] = w.astype(number)
        weights = flat.reshape(-1, groups, block)
    else:
        weights = _unpack_weights(w.astype(number))
    value = np.einsum("...gk,ngk->...ng", x.astype(number), weights)
    if zero is not None:
        offset = parameter(zero, "f8" if zero.dtype.kind == "f" else number.str)
        value = value - offset * sums.astype(offset.dtype)[..., None, :]
    value = value.astype(np.float64) * parameter(scale)
    if shift is not None:
        value = value + parameter(shift) * sums.astype(np.float64)[..., None, :]
    if x_scale is not None:
        value = value * x_scale.astype(np.float64)[..., None, :]
    return value.sum(-1)[..., : attrs.columns].astype(np.float32 if x.dtype.kind in "iu" else x.dtype)


def _samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    def packed(dtype: str, groups: int, block: int, count: int, width: int) -> np.ndarray:
        low, high = int_range(parse_dtype(dtype))
        return pack_weights(rng.integers(low, high + 1, (count, groups * block)).astype(parse_dtype(dtype).numpy), block, width)

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def scales(count: int, groups: int, width: int) -> np.ndarray:
        return pack_parameters(rng.uniform(0.01, 0.1, (count, groups)).astype(np.float32), width)

    attrs = {"columns": 7}
    yield [numbers(3, 2, 16), packed("i4", 2, 16, 7, 4), scales(7, 2, 4)], attrs
    yield [numbers(2, 3, 1, 8), packed("i8", 1, 8, 7, 8), scales(7, 1, 8)], attrs
    yield [numbers(2, 16), packed("i2", 2, 16, 7, 4), scales(7, 2, 4)], attrs
    x = numbers(2, 3, 8)
    zero = pack_parameters(rng.integers(-8, 8, (7, 3)).astype(np.int8), 4)
    yield [x, packed("i4", 3, 8, 7, 4), scales(7, 3, 4), zero, scales(7, 3, 4), x.sum(-1)], attrs
    plain = rng.integers(0, 16, (7, 11)).astype(u4.numpy)
    yield [x[:, :2], plain, rng.uniform(0.1, 1, (7, 2)).astype(np.float32)], attrs
    for dtype, block in (("u4", 16), ("u8", 8)):
        whole = rng.integers(-127, 128, (3, 2, block)).astype(np.int8)
        rest = [whole.astype(np.int32).sum(-1, dtype=np.int32), rng.uniform(0.1, 1, (3, 2)).astype(np.float32)]
        yield [whole, packed(dtype, 2, block, 7, 4), scales(7, 2, 4), np.array(8, np.int32), None, *rest], attrs
        yield [whole[:, :1], packed(dtype, 1, block, 7, 4), scales(7, 1, 4), None, None, None, rest[1][:, :1]], attrs


register(
    OpDef(
        "matmul_blocks",
        _infer,
        _run,
        _compute,
        {"columns": REQUIRED},
        samples=_samples,
        factors=2,
    )
)
