"""Attention of the domain "com.microsoft", of floats and of integers, and the embeddings before it.

Scores are [b, heads, s, t]: b sentences, s places that ask, t places that are asked, those of a past before those of the input.
Source: the contrib operators page of onnxruntime's documentation.
"""

from __future__ import annotations

from functools import reduce
from itertools import accumulate

from tc.errors import NodeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.operand_sizes import require_divides
from tc.frontend.onnx.quantized import dequantized, integer_product, with_term
from tc.frontend.onnx.values import ModelValue, size_value
from tc.ir.arith import prove
from tc.ir.dtype import DType, bool_, i32, largest_number
from tc.ir.expr import Const, Expr, as_expr, const, equal, logical_or, minimum
from tc.ops.common import require_equal
from tc.ops.registry import require

_DOMAIN = "com.microsoft"


@onnx_op("Attention", domain=_DOMAIN)
def import_attention(n: NodeContext) -> NodeResult:
    """Self-attention of x [b, s, h], whose queries, keys and values one product makes."""
    made = with_term(n, n.call("matmul", n.value(0), n.value(1)), n.optional(2))
    return _self_attention(n, made, n.attr("qkv_hidden_sizes"), n.optional(3), n.optional(4), n.optional(5))


@onnx_op("QAttention", domain=_DOMAIN)
def import_qattention(n: NodeContext) -> NodeResult:
    """The same, of a product of integers; in f32 from there."""
    x, w, term, x_scale, w_scale = (n.value(k) for k in range(5))
    made = with_term(n, integer_product(n, x, x_scale, n.optional(6), w, w_scale, n.optional(7)), term)
    return _self_attention(n, made, None, n.optional(5), n.optional(8), None)


def _self_attention(
    n: NodeContext, made: ModelValue, sizes: list[int] | None, mask: ModelValue | None, past: ModelValue | None, bias: ModelValue | None
) -> NodeResult:
    """made: queries, keys and values side by side, each of `sizes`, of thirds where None, in heads side by side."""
    if n.attr("do_rotary", 0) or n.attr("past_present_share_buffer", 0):
        raise UnsupportedError(f"{n.op_type} with rotations or a past that is written in place", code="TC1013")
    heads, total = n.attr("num_heads"), made.shape[-1]
    if made.rank != 3 or not heads or not isinstance(total, Const):
        raise NodeError(f"{n.op_type}: {heads} heads of {made.type}")
    sizes = sizes or [int(total.value) // 3] * 3
    if len(sizes) != 3 or sum(sizes) != int(total.value) or any(size % heads for size in sizes) or sizes[0] != sizes[1]:
        raise NodeError(f"{n.op_type}: {heads} heads of {made.type}, of which queries, keys and values are {sizes}")
    q, k, v = (in_heads(n, part, heads) for part in _split(n, made, 2, sizes))
    if past is not None:
        if past.rank != 5 or sizes[2] != sizes[1]:
            raise NodeError(f"{n.op_type}: a past {past.type}, which must be [2, b, heads, places, {sizes[1] // heads}]")
        k_past, v_past = (_without_axis(n, old, 0) for old in _split(n, past, 0, [1, 1]))
        k, v = n.call("concat", k_past, k, axis=2), n.call("concat", v_past, v, axis=2)
    result = _attend(n, q, k, v, mask, bias, const(0) if past is None else past.shape[3])
    if not n.has_output(1):
        return result
    return [result, n.call("concat", n.call("unsqueeze", k, axes=(0,)), n.call("unsqueeze", v, axes=(0,)), axis=0)]


@onnx_op("MultiHeadAttention", domain=_DOMAIN)
def import_multi_head_attention(n: NodeContext) -> NodeResult:
    """Of queries, keys and values that are apart, or packed as [b, s, heads, 3, w], or as [b, t, heads, 2, w] without the queries."""
    heads, q, bias = n.attr("num_heads"), n.value(0), n.optional(3)
    if n.optional(8) is not None or n.optional(9) is not None or n.has_output(3):
        raise UnsupportedError("MultiHeadAttention with a past that is written in place, or that returns scores", code="TC1013")
    apart = _unpacked(n, q, n.optional(1), n.optional(2))
    if bias is not None:
        terms, widths = bias, [x.shape[2] if x.rank == 3 else x.shape[1] * x.shape[3] for x in apart]
        ends = [const(0), *accumulate(widths)]
        n.graph.state(lambda: require_equal(terms.shape[0], ends[-1], "MultiHeadAttention: the bias' size"), n.span)
        parts = [n.call("slice", terms, starts=(at,), sizes=(width,), steps=(1,)) for at, width in zip(ends, widths, strict=False)]
        # Keys and values that come in heads are those of another step, which have got it.
        apart = [n.call("add", x, part) if x.rank == 3 else x for x, part in zip(apart, parts, strict=True)]
    q, k, v = (in_heads(n, each, heads) for each in apart)
    k_past, v_past, held = n.optional(6), n.optional(7), const(0)
    if k_past is not None and v_past is not None:
        k, v, held = n.call("concat", k_past, k, axis=2), n.call("concat", v_past, v, axis=2), k_past.shape[2]
    return [_attend(n, q, k, v, n.optional(4), n.optional(5), held), k, v]


def _unpacked(n: NodeContext, q: ModelValue, k: ModelValue | None, v: ModelValue | None) -> list[ModelValue]:
    """Queries, keys and values, each [b, s, h] or, in heads, [b, heads, s, w]."""
    if k is None:
        if q.rank != 5:
            raise NodeError(f"MultiHeadAttention: queries {q.type} without keys")
        return [_heads_first(n, part) for part in _split(n, q, 3, [1, 1, 1])]
    if v is None:
        if k.rank != 5:
            raise NodeError(f"MultiHeadAttention: keys {k.type} without values")
        return [q, *(_heads_first(n, part) for part in _split(n, k, 3, [1, 1]))]
    return [q, k, v]


def _heads_first(n: NodeContext, x: ModelValue) -> ModelValue:
    """[b, s, heads, 1, w] as [b, heads, s, w]."""
    return n.call("transpose", _without_axis(n, x, 3), perm=(0, 2, 1, 3))


def _split(n: NodeContext, x: ModelValue, axis: int, sizes: list[int]) -> tuple[ModelValue, ...]:
    return n.graph.call("split", x, span=n.span, names=[n.label] * len(sizes), axis=axis, sizes=tuple(sizes))


def _without_axis(n: NodeContext, x: ModelValue, axis: int) -> ModelValue:
    return n.call("squeeze", x, axes=(axis,))


def in_heads(n: NodeContext, x: ModelValue, heads: Expr | int) -> ModelValue:
    """[b, s, heads * w] as [b, heads, s, w]."""
    if x.rank == 4:
        return x
    heads = as_expr(heads)
    if x.rank != 3 or prove(equal(heads, 0), n.facts) is True:
        raise NodeError(f"{n.op_type}: {heads} heads of {x.type}")
    n.graph.state(lambda: require_divides(heads, x.shape[2], f"{n.op_type}: the last dim of {x.type}"), n.span)
    apart = n.call("reshape", x, shape=(*x.shape[:2], heads, x.shape[2] // heads))
    return n.call("transpose", apart, perm=(0, 2, 1, 3))


def in_rows(n: NodeContext, x: ModelValue) -> ModelValue:
    """[b, heads, s, w] as [b, s, heads * w]."""
    batch, heads, length, width = x.shape
    return n.call("reshape", n.call("transpose", x, perm=(0, 2, 1, 3)), shape=(batch, length, heads * width))


def _attend(
    n: NodeContext, q: ModelValue, k: ModelValue, v: ModelValue, mask: ModelValue | None, bias: ModelValue | None, held: Expr
) -> ModelValue:
    """[b, s, heads * w] of q [b, heads, s, w] and of keys and values of t places, the first `held` of which are a past's."""
    batch, _, length, width = q.shape
    scores = n.call("matmul", q, n.call("transpose", k, perm=(0, 1, 3, 2)))
    scores = with_term(n, n.call("mul", scores, _scale(n, width, q.dtype)), bias)
    if mask is not None:
        low = n.const(n.attr("mask_filter_value", -10000.0), q.dtype)
        is_seen = _is_seen(n, mask, batch, length, k.shape[2])
        scores = n.call("add", scores, n.call("where", is_seen, n.const(0, q.dtype), low))
    if n.attr("unidirectional", 0):
        scores = n.call("where", _is_later(n, length, k.shape[2], held), n.const(-largest_number(q.dtype), q.dtype), scores)
    return in_rows(n, n.call("matmul", n.call("softmax", scores, axis=-1), v))


def _scale(n: NodeContext, width: Expr, dtype: DType) -> ModelValue:
    """What scores are multiplied by: the attribute, or 1 / sqrt(width)."""
    given = n.attr("scale", 0.0)
    if given or isinstance(width, Const):
        return n.const(given or float(int(width)) ** -0.5, dtype)
    size = n.call("cast", n.call("reshape", n.call("shape_tensor", dims=(width,)), shape=()), dtype=dtype)
    return n.call("div", n.const(1, dtype), n.call("sqrt", size))


def _is_later(n: NodeContext, length: Expr, places: Expr, held: Expr) -> ModelValue:
    """[s, t]: whether a place comes after the one that asks. Those that ask are the ones behind the `held` of a past; the last of them
    sees all, also where there are more than these, as onnxruntime has it."""
    row = n.call("range", size=length)
    asking = n.call("where", n.call("less", row, size_value(length - 1)), n.call("add", row, size_value(held)), size_value(places - 1))
    return n.call("less", n.call("reshape", asking, shape=(length, const(1))), n.call("range", size=places))


def _is_seen(n: NodeContext, mask: ModelValue, batch: Expr, length: Expr, places: Expr) -> ModelValue:
    """Whether places may be asked, as [b, 1, 1 or s, t]: of ones and zeros [b, t] or [b, s, t], or of the numbers of places [b], behind
    which [2 * b] has where they begin."""
    if mask.rank in (2, 3):
        rows = (const(1),) if mask.rank == 2 else (length,)
        return n.call("reshape", n.call("less", n.const(0, mask.dtype), mask), shape=(batch, const(1), *rows, places))
    if mask.rank != 1:
        raise UnsupportedError(f"{n.op_type} with a mask of rank {mask.rank}", code="TC1014", supported="ranks 1 to 3")
    asked = n.call("cast", n.call("range", size=places), dtype=mask.dtype)

    def before(start: Expr) -> ModelValue:
        part = n.call("slice", mask, starts=(start,), sizes=(batch,), steps=(1,))
        return n.call("less", asked, n.call("reshape", part, shape=(batch, const(1), const(1), const(1))))

    size, both, packed = mask.shape[0], batch * 2, batch * 3 + 2  # packed: with where sentences begin behind their lengths, were they so
    text = f"{n.op_type}: the mask has {size} numbers, for a batch of {batch}"
    if prove(equal(size, both), n.facts) is not True:
        n.graph.state(lambda: require(reduce(logical_or, (equal(size, known) for known in (batch, both, packed))), text), n.span)
    if any(prove(equal(size, known), n.facts) is True for known in (batch, packed)):
        return before(const(0))
    is_begun = n.call("logical_not", before(minimum(batch, size - batch)))
    if prove(equal(size, both), n.facts) is not True:
        is_begun = n.call("logical_or", is_begun, n.call("not_equal", size_value(size), size_value(both)))
    return n.call("logical_and", before(const(0)), is_begun)


# -- embeddings


@onnx_op("EmbedLayerNormalization", domain=_DOMAIN)
def import_embed_layer_norm(n: NodeContext) -> NodeResult:
    """The normal form of word + place + segment, the numbers of ones of the mask's rows, and that sum."""
    tables = [n.value(2), n.value(3), n.optional(4)]
    total = _embedding(n, [(tables[0], n.value(0)), (tables[1], n.optional(8)), (tables[2], n.optional(1))])
    normal = n.call("layer_norm", total, n.value(5), n.value(6), axis=-1, epsilon=n.attr("epsilon", 1e-12))
    return [normal, _lengths(n), total]


@onnx_op("QEmbedLayerNormalization", domain=_DOMAIN)
def import_qembed_layer_norm(n: NodeContext) -> NodeResult:
    """The same of tables of integers: scales are the inputs 8 to 12, zero points 13 to 17."""

    def real(place: int, which: int) -> ModelValue | None:
        table = n.optional(place)
        return None if table is None else dequantized(n, table, n.value(8 + which), n.optional(13 + which))

    words, places, segments, gamma, beta = (real(2 + k, k) for k in range(5))
    total = _embedding(n, [(words, n.value(0)), (places, None), (segments, n.optional(1))])
    return [n.call("layer_norm", total, gamma, beta, axis=-1, epsilon=n.attr("epsilon", 1e-12)), _lengths(n)]


def _embedding(n: NodeContext, parts: list[tuple[ModelValue | None, ModelValue | None]]) -> ModelValue:
    """The sum of the rows that ids choose of tables: words [b, s], places (0, 1, ... where there are no ids), segments if there are ids."""
    (words, ids), (places, place_ids), (segments, segment_ids) = parts
    assert words is not None and ids is not None and places is not None
    if place_ids is None:
        place_ids = n.call("range", size=ids.shape[1])
    total = n.call("add", n.call("gather", words, ids, axis=0), n.call("gather", places, place_ids, axis=0))
    if segments is None or segment_ids is None:
        return total
    return n.call("add", total, n.call("gather", segments, segment_ids, axis=0))


def _lengths(n: NodeContext) -> ModelValue:
    """How many ones each row of the mask has; 0 without one."""
    mask, batch = n.optional(7), n.value(0).shape[0]
    if mask is None:
        return n.call("full", shape=(batch,), value=0, dtype=i32)
    is_one = n.call("equal", mask, n.const(1, mask.dtype))
    assert is_one.dtype is bool_
    return n.call("sum", n.call("cast", is_one, dtype=i32), axes=(1,), keepdims=False)
