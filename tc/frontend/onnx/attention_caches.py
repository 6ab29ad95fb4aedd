"""Caches of keys and values that GroupQueryAttention reads and leaves: as floats or as integers, of all places or of the last ones alone.

Source: the contrib operators page of onnxruntime's documentation, and, for what it leaves open, what onnxruntime's CPU kernels give.
"""

from __future__ import annotations

from dataclasses import dataclass

from tc.errors import NodeError
from tc.frontend.onnx.node_context import NodeContext
from tc.frontend.onnx.values import ModelValue, size_value
from tc.ir.arith import prove
from tc.ir.dtype import DType, f32, i8, i32, i64, u8
from tc.ir.expr import Expr, const, equal, maximum
from tc.ops.registry import require

# -- how numbers are kept


@dataclass(frozen=True)
class CacheFormat:
    """As floats where `bits` is 0; else as numbers over a scale, rounded to i8, or to four bits, two in a u8, to which 8 is added."""

    bits: int
    scale: ModelValue | None

    def kept(self, n: NodeContext, x: ModelValue) -> ModelValue:
        """x [b, heads, s, w] as it is kept: the last dim is w / 2 with four bits."""
        if self.scale is None:
            return x
        most = 2 ** (self.bits - 1)
        whole = n.call("round", n.call("div", n.cast(x, f32), self.scale))
        whole = n.call("clip", whole, n.const(-most, f32), n.const(most - 1, f32))
        if self.bits == 8:
            return n.call("cast", whole, dtype=i8)
        pairs = n.call("cast", n.call("add", whole, n.const(8, f32)), dtype=u8)
        *outer, width = pairs.shape
        pairs = n.call("reshape", pairs, shape=(*outer, width // 2, 2))
        low, high = (n.call("squeeze", n.part(pairs, -1, at, 1), axes=(4,)) for at in (0, 1))
        return n.call("bit_or", low, n.call("shift_left", high, n.const(4, u8)))

    def read(self, n: NodeContext, x: ModelValue, dtype: DType) -> ModelValue:
        """What was kept, in `dtype`."""
        if self.scale is None:
            return x
        if self.bits == 4:
            halves = n.call("bit_and", x, n.const(15, u8)), n.call("shift_right", x, n.const(4, u8))
            *outer, width = x.shape
            pairs = n.call("concat", *(n.call("unsqueeze", half, axes=(4,)) for half in halves), axis=4)
            x = n.call("sub", n.call("cast", n.call("reshape", pairs, shape=(*outer, 2 * width)), dtype=i32), n.const(8, i32))
        return n.cast(n.call("mul", n.cast(x, f32), self.scale), dtype)


def cache_format(n: NodeContext, of: str, scale: int) -> CacheFormat:
    """That of keys or values, `of` being k or v; input `scale` holds a number for all, or one for each of [1, heads, 1, w]."""
    kind = n.attr(f"{of}_quant_type", "NONE")
    if kind == "NONE":
        return CacheFormat(0, None)
    bits, given = n.attr("kv_cache_bit_width", 0), n.optional(scale)
    if kind not in ("PER_TENSOR", "PER_CHANNEL") or bits not in (4, 8) or given is None:
        raise NodeError(f"{n.op_type}: a cache of {bits} bits, {kind}, {'without' if given is None else 'with'} a scale")
    return CacheFormat(bits, given)


def written(n: NodeContext, past: ModelValue | None, new: ModelValue, held: ModelValue, places: Expr) -> ModelValue:
    """The cache of `places`, with what is new behind what a sentence has held."""
    batch, heads, length, width = new.shape
    if past is None:
        if prove(equal(places, length), n.facts) is True:
            return new
        past = n.call("full", shape=(batch, heads, places, width), value=0, dtype=new.dtype)
    elif prove(equal(past.shape[2], places), n.facts) is not True:
        past = n.call("pad", past, None, pads=(0, 0, 0, 0, const(0), const(0), places - past.shape[2], const(0)))
    return n.call("write_along", past, new, held, axis=2, circular=False)


# -- caches of the last places alone


@dataclass(frozen=True)
class LastPlaces:
    """The places of sentences that a cache holds: of t in all the last t - g * (max(t - window, 0) // g), g = capacity - window + 1, in
    their order from the front. Some are dropped with the place for which there is no room."""

    window: int
    capacity: Expr

    def count(self, n: NodeContext, totals: ModelValue) -> ModelValue:
        """How many of a sentence of so many places there are, i64[b]."""
        group = size_value(self.capacity - (self.window - 1))
        beyond = n.call("maximum", n.call("sub", totals, n.const(self.window, i64)), n.const(0, i64))
        return n.call("sub", totals, n.call("mul", n.call("div", beyond, group), group))

    def kept(self, n: NodeContext, staged: ModelValue, starts: ModelValue) -> ModelValue:
        """Of [b, heads, places, w] a cache [b, heads, capacity, w], from a place of each sentence on; behind it lies what is not read."""
        return from_places(n, staged, starts, self.capacity, axis=2)


def last_places(n: NodeContext, past: ModelValue | None) -> LastPlaces | None:
    """What a node keeps, or None where that is all."""
    if not n.attr("sliding_window_cache", 0):
        return None
    window = n.attr("local_window_size", -1)
    if past is None or window <= 0:
        raise NodeError(f"{n.op_type}: a cache of the last places alone needs local_window_size, and a cache")
    capacity = past.shape[2]
    n.graph.state(lambda: require(capacity >= window, f"{n.op_type}: a window of {window} in a cache {past.type}"), n.span)
    return LastPlaces(window, capacity)


def from_places(n: NodeContext, x: ModelValue, starts: ModelValue, size: Expr, *, axis: int) -> ModelValue:
    """`size` elements of one axis, from a start of each batch on, i64[b]; the first or the last one again where there is none."""
    batch = starts.shape[0]
    places = n.call("add", n.call("reshape", starts, shape=(batch, 1)), n.call("range", size=size))
    last = size_value(maximum(x.shape[axis] - 1, const(0)))
    places = n.call("minimum", n.call("maximum", places, n.const(0, i64)), last)
    there = (0, axis, *(d for d in range(1, x.rank) if d != axis))
    found = n.call("transpose", x, perm=there)
    found = n.call("gather_nd", found, n.call("unsqueeze", places, axes=(2,)), batch_dims=1)
    return n.call("transpose", found, perm=tuple(there.index(d) for d in range(x.rank)))
