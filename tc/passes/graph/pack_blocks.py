"""Products with dequantized literals of integers, as sums over blocks of the integers themselves: `matmul_blocks`, in packed panels.

    matmul(x, dequantize_linear(q, scale, zero))   =>   matmul_blocks(x in blocks, panels of q, scale, zero - c, sums of x)

A literal of floats is never made. Weights are signed for products with floats (c is what was taken from them for that), since a zero point
in the middle of the range is none then; unsigned for bytes, as instructions want it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from tc.ir.dtype import DType, bf16, f32, from_numpy, i4, i8, i32, u4, u8
from tc.ir.graph import Atom, TensorConst
from tc.ir.types import tensor_type
from tc.ops.block_products import SHIFT, SUMS, X_SCALE, ZERO, pack_parameters, pack_weights, terms_of_word
from tc.ops.build import GraphBuilder
from tc.passes.graph.rewrite import GraphRule, Match, any_, const_, op

LEAST_COLUMNS = 8
"""With fewer columns most of a panel would be empty."""

PANEL_VECTORS = 4
"""Vectors of a panel: so many sums hide the time that each addition takes where there is one row."""

_SIGNED: dict[DType, tuple[DType, int]] = {u8: (i8, 128), u4: (i4, 8)}
_UNSIGNED: dict[DType, tuple[DType, int]] = {i8: (u8, -128), i4: (u4, -8)}
"""The type of integers less a number -> that type, and the number."""


@dataclass(frozen=True)
class BlockWeights:
    """Integers [n, k] with a scale [n, g] for each block of `block` terms, zero points [n, g] or [], and what is added, [n, g]."""

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    shift: np.ndarray | None
    block: int

    @property
    def is_packable(self) -> bool:
        """Whether blocks are whole words of 32 bits, or there is one."""
        together = terms_of_word(from_numpy(self.values.dtype))
        return len(self.scale.T) == 1 or self.block % together == 0

    def less(self, dtype: DType, number: int) -> BlockWeights:
        """The same with integers of another type, from all of which a number was taken."""
        moved = (self.values.view(np.uint8) - np.uint8(number % 256)).view(dtype.numpy)  # bytes, in which differences wrap
        zero = np.array(0, np.int8) if self.zero is None else self.zero
        if zero.dtype.kind == "f":
            zero = (zero.astype(np.float64) - number).astype(np.float32)
        else:
            zero = zero.astype(np.int16) - number
            zero = zero.astype(np.int8 if np.abs(zero).max(initial=0) < 128 else np.int16)
        return BlockWeights(moved, self.scale, zero, self.shift, self.block)

    def centred(self) -> BlockWeights:
        """The same with zero points as near to 0 as they can be while the integers are numbers of their signed type, each less one number
        for all terms of a block: x times a zero point, summed by itself, cancels the less. Most blocks are left with none."""
        zero, dtype = self.zero, from_numpy(self.values.dtype)
        if zero is None or zero.ndim != 2 or self.shift is not None:
            return self
        count, groups = self.scale.shape
        depth = self.values.shape[1]
        wide = np.zeros((count, groups * self.block), np.int16)
        wide[:, :depth] = self.values
        if depth < wide.shape[1]:  # what fills the last block up is what is there
            wide[:, depth:] = wide[:, depth - 1 : depth]
        blocks = wide.reshape(count, groups, self.block)
        most = 2 ** (dtype.bits - 1)
        nearest = np.nan_to_num(np.rint(zero.astype(np.float64)))  # what is no number is left as it is
        taken = np.clip(nearest, blocks.max(2) - (most - 1), blocks.min(2) + most).astype(np.int16)
        blocks -= taken[..., None]
        left = (zero.astype(np.float64) - taken).astype(np.float32 if zero.dtype.kind == "f" else np.int16)
        if left.dtype.kind == "i" and np.abs(left).max(initial=0) < 128:
            left = left.astype(np.int8)
        return BlockWeights(wide[:, :depth].astype(self.values.dtype), self.scale, left, None, self.block)

    def simplest(self) -> BlockWeights:
        """The same without zero points that are 0, and one zero point where all are equal."""
        zero = self.zero
        if zero is not None and zero.size and (zero == zero.reshape(-1)[0]).all():
            zero = None if zero.reshape(-1)[0] == 0 else zero.reshape(-1)[0].reshape(())
        return BlockWeights(self.values, self.scale, zero, self.shift, self.block)


def block_rules(lanes: int) -> tuple[GraphRule, ...]:
    """The rules for vectors of `lanes` columns."""

    def columns_of(weights: BlockWeights) -> int:
        count = weights.values.shape[0]
        return lanes * min(PANEL_VECTORS, int(2 ** (-(-count // lanes) - 1).bit_length()))

    def pack(find: Callable[[Match], BlockWeights | None]) -> Callable[[GraphBuilder, Match], Atom | None]:
        def result(b: GraphBuilder, m: Match) -> Atom | None:
            weights = find(m)
            if weights is None:
                return None
            x = in_blocks(b, m.x, weights)
            return packed_product(b, x if x.type.dtype is f32 else b.call("cast", x, dtype=f32), weights, columns_of(weights))  # type: ignore[union-attr]

        return result

    def rule(turned: bool, zeros: bool, rounded: bool) -> GraphRule:
        literals = (const_("q"), const_("s"), *([const_("z")] if zeros else []))
        made = op("dequantize_linear", *literals, name="dequantize")
        words = [*(["transposed "] if turned else []), "dequantized literal", *([", zero points"] if zeros else [])]
        x = op("cast", any_("x"), name="wide") if rounded else any_("x")  # what is cast is cut in blocks: kernels take the cast in

        def applies(m: Match) -> bool:
            if rounded and (m.type_of("x").dtype is not bf16 or m.attrs("wide").dtype is not f32):
                return False
            return not turned or tuple(m.attrs("transpose").perm or (1, 0)) == (1, 0)

        return GraphRule(
            f"a product{' of bf16' if rounded else ''} with a {''.join(words)}, in blocks",
            op("matmul", x, op("transpose", made, name="transpose") if turned else made, name="matmul"),
            pack(partial(_dequantized, turned=turned)),
            when=applies,
            example=partial(_example, turned=turned, has_zero=zeros, rounded=rounded),
            inexact=True,
        )

    each = product((True, False), (False, True), (False, True))
    return (*(rule(turned, zeros, rounded) for rounded, zeros, turned in each), rule_of_blocks(columns_of))


def rule_of_blocks(columns_of: Callable[[BlockWeights], int]) -> GraphRule:
    """The rule for what is a sum over blocks already, of weights that are not packed."""

    def result(b: GraphBuilder, m: Match) -> Atom | None:
        found = _of_blocks(m)
        if found is None:
            return None
        args = m.call("product").args
        sums, x_scale = (args[place] if len(args) > place else None for place in (SUMS, X_SCALE))
        return packed_product(b, m.x, found, columns_of(found), x_scale, sums)

    return GraphRule(
        "a product with a literal in blocks, packed",
        op("matmul_blocks", any_("x"), const_("w"), const_("s"), name="product", rest=True),
        result,
        example=_example_of_blocks,
        inexact=True,
    )


def _of_blocks(m: Match) -> BlockWeights | None:
    """The weights of a `matmul_blocks` of literals that is not packed; None for another, or a narrow one."""
    args = m.call("product").args
    zero, shift = (args[place] if len(args) > place else None for place in (ZERO, SHIFT))
    if m.value("w").ndim != 2 or len(m.value("w")) < LEAST_COLUMNS or m.attrs("product").columns != len(m.value("w")):
        return None
    if not all(each is None or isinstance(each, TensorConst) for each in (zero, shift)):
        return None
    block = m.type_of("x").shape[-1]
    literals = [each.value if isinstance(each, TensorConst) else None for each in (zero, shift)]
    weights = BlockWeights(m.value("w"), m.value("s"), literals[0], literals[1], int(block))
    return weights if weights.is_packable else None


def _dequantized(m: Match, turned: bool) -> BlockWeights | None:
    """The weights of a product with `dequantize_linear` of literals; `turned`: columns are their first axis. None: not in such blocks."""
    q, scale, attrs = m.value("q"), m.value("s"), m.attrs("dequantize")
    zero = m.value("z") if "z" in m.atoms else None
    x = m.type_of("x")
    if q.ndim != 2 or not q.size or x.rank == 0 or x.dtype not in (f32, bf16) or scale.dtype.name not in ("float32", "float16", "bfloat16"):
        return None
    if not from_numpy(q.dtype).is_int or from_numpy(q.dtype).bits > 8:
        return None
    axis = attrs.axis % 2
    column_axis = 0 if turned else 1
    count, depth = q.shape[column_axis], q.shape[1 - column_axis]
    if count < LEAST_COLUMNS:
        return None

    def by_columns(values: np.ndarray) -> np.ndarray | None:
        """[n, g], or [n, 1] where all terms of a column have one."""
        if attrs.block_size:
            return values if turned else values.T
        if values.size == 1:
            return np.broadcast_to(values.reshape(1, 1), (count, 1))
        return values.reshape(-1, 1) if axis == column_axis else None

    if attrs.block_size and axis == column_axis:
        return None
    scales, zeros = by_columns(scale), None if zero is None else by_columns(zero)
    if scales is None or (zero is not None and zeros is None):
        return None
    block = attrs.block_size or depth
    weights = BlockWeights(q if turned else q.T, scales, zeros, None, block)
    return weights if weights.is_packable else None


def packed_product(
    b: GraphBuilder, x: Atom, weights: BlockWeights, columns: int, x_scale: Atom | None = None, sums: Atom | None = None
) -> Atom:
    """`matmul_blocks` of x, [..., g, block], and packed weights. `x_scale`: what bytes are to be scaled by; `sums`: those of the blocks."""
    dtype, x_dtype = from_numpy(weights.values.dtype), x.type.dtype  # type: ignore[union-attr]
    wanted = (_SIGNED if x_dtype.is_float else _UNSIGNED).get(dtype)
    if x_dtype.is_float and weights.zero is None:  # unsigned ones do as well
        wanted = None
    weights = (weights if wanted is None else weights.less(*wanted)).simplest()
    if x_dtype.is_float and from_numpy(weights.values.dtype) in _UNSIGNED:  # it is signed
        weights = weights.centred().simplest()
    dtype = from_numpy(weights.values.dtype)
    count, depth = weights.values.shape
    groups, together = weights.scale.shape[1], terms_of_word(dtype)
    block = -(-weights.block // together) * together
    values = weights.values
    if depth < groups * block:
        values = np.zeros((count, groups * block), dtype.numpy)
        values[:, :depth] = weights.values
    x = _filled_up(b, x, block)
    if weights.zero is None and weights.shift is None:
        sums = None
    elif sums is None:
        sums = b.call("sum", x if x_dtype.is_float else b.call("cast", x, dtype=i32), axes=(-1,), keepdims=False)
    zero = weights.zero
    operands = (
        b.const(pack_weights(values, block, columns)),
        b.const(pack_parameters(weights.scale, columns)),
        None if zero is None else b.const(zero if zero.ndim == 0 else pack_parameters(zero, columns)),
        None if weights.shift is None else b.const(pack_parameters(weights.shift, columns)),
        sums,
        x_scale,
    )
    return b.call("matmul_blocks", x, *operands, columns=count)


def in_blocks(b: GraphBuilder, x: Atom, weights: BlockWeights) -> Atom:
    """[..., k] -> [..., g, block], filled up with zeros."""
    groups = weights.scale.shape[1]
    x = _filled_up(b, x, groups * weights.block)
    return b.call("reshape", x, shape=(*x.type.shape[:-1], groups, weights.block))  # type: ignore[union-attr]


def _filled_up(b: GraphBuilder, x: Atom, size: int) -> Atom:
    """x with zeros after the elements of the last axis, up to so many."""
    *rest, last = x.type.shape  # type: ignore[union-attr]
    missing = size - int(last)
    none = (0,) * len(rest)
    return b.call("pad", x, pads=(*none, 0, *none, missing)) if missing else x


def _example_of_blocks(b: GraphBuilder) -> Atom:
    rng = np.random.default_rng(0)
    x = b.call("cast", b.call("mul", b.param("x", tensor_type((3, 2, 8), f32)), b.const(np.float32(100))), dtype=i8)
    scales = [b.const(rng.uniform(0.1, 1, shape).astype(np.float32)) for shape in ((10, 2), (3, 2))]
    q = b.const(rng.integers(0, 16, (10, 16)).astype(u4.numpy))
    sums = b.call("sum", b.call("cast", x, dtype=i32), axes=(-1,), keepdims=False)
    return b.call("matmul_blocks", x, q, scales[0], b.const(np.uint8(8)), None, sums, scales[1], columns=10)


def _example(b: GraphBuilder, turned: bool, has_zero: bool, rounded: bool) -> Atom:
    rng = np.random.default_rng(0)
    q = rng.integers(0, 16, (10, 20)).astype(u4.numpy)
    scale = rng.uniform(0.1, 1, (10, 3)).astype(np.float32)
    zero = rng.integers(0, 16, (10, 3)).astype(u4.numpy)
    literals = [array if turned else array.T for array in (q, scale, *([zero] if has_zero else []))]
    w = b.call("dequantize_linear", *map(b.const, literals), axis=1 if turned else 0, block_size=8)
    x: Atom = b.param("x", tensor_type((3, 20), f32))
    if rounded:
        x = b.call("cast", b.call("cast", x, dtype=bf16), dtype=f32)
    return b.call("matmul", x, b.call("transpose", w, perm=(1, 0)) if turned else w)
