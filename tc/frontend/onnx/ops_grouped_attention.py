"""What language models are written with in the domain "com.microsoft": rotary embeddings, and attention of heads that share keys, with a
cache of keys and values.

Source: the contrib operators page of onnxruntime's documentation, and, for what it leaves open, what onnxruntime's CPU kernels give.
"""

from __future__ import annotations

import numpy as np

from tc.errors import NodeError, UnsupportedError
from tc.frontend.onnx.attention_caches import cache_format, from_places, last_places, written
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.operand_sizes import require_divides
from tc.frontend.onnx.ops_attention import in_heads, in_rows
from tc.frontend.onnx.quantized import with_term
from tc.frontend.onnx.values import ModelValue, size_value
from tc.ir.arith import prove, simplify
from tc.ir.dtype import bool_, i64, largest_number
from tc.ir.expr import Expr, Select, const, equal, maximum
from tc.ops.common import require_equal

_DOMAIN = "com.microsoft"


@onnx_op("RotaryEmbedding", domain=_DOMAIN)
def import_rotary_embedding(n: NodeContext) -> NodeResult:
    """Of x [b, s, heads * w] or [b, heads, s, w]; the places are given for each of [b, s], or as [1], the first one's."""
    x, places, cos, sin = (n.value(k) for k in range(4))
    apart = _whose_heads_turn(n, x, cos)
    if places.rank == 1:
        first = n.call("reshape", places, shape=(1, 1))
        places = n.call("add", first, n.call("cast", n.call("range", size=apart.shape[2]), dtype=places.dtype))
    angles = [n.call("gather", table, places, axis=0) for table in (cos, sin)]
    found = _rotated(n, apart, *angles, interleaved=bool(n.attr("interleaved", 0)))
    return found if x.rank == 4 else in_rows(n, found)


@onnx_op("MRotaryEmbedding", domain=_DOMAIN)
def import_multimodal_rotary_embedding(n: NodeContext) -> NodeResult:
    """The same with three places of each token [3, b, s], in time, height and width; each is for a section of the angles, one behind the
    other or, from the second on, every third one. Source: Wang et al. (2024), Qwen2-VL."""
    x, places, cos, sin = (n.value(k) for k in range(4))
    half, sections = n.known(cos.shape[1], "elements of a head"), list(n.attr("mrope_section") or [])
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != half:
        raise NodeError(f"MRotaryEmbedding: sections of {sections} angles, which must be three of {half}")
    if places.rank != 3:
        raise NodeError(f"MRotaryEmbedding: places of {places.type}, which must be [3, b, s]")
    apart = _whose_heads_turn(n, x, cos)
    places = n.call("reshape", places, shape=(3, *places.shape[1:]))
    if n.attr("mrope_layout", 0):
        column = np.arange(half)
        whose = sum(np.where((column % 3 == each) & (column < 3 * sections[each]), each, 0) for each in (1, 2))
    else:
        whose = np.repeat(np.arange(3), sections)
    angles = [_of_sections(n, table, places, np.asarray(whose)) for table in (cos, sin)]
    found = _rotated(n, apart, *angles, interleaved=bool(n.attr("interleaved", 0)))
    return found if x.rank == 4 else in_rows(n, found)


def _of_sections(n: NodeContext, table: ModelValue, places: ModelValue, whose: np.ndarray) -> ModelValue:
    """[b, s, r]: in each column the row of the place that it is whose."""
    rows = n.call("gather", table, places, axis=0)
    found, *others = (n.call("gather", rows, n.const(each, i64), axis=0) for each in range(3))
    for each, other in enumerate(others, 1):
        found = n.call("where", n.const(whose == each, bool_), other, found)
    return found


def _whose_heads_turn(n: NodeContext, x: ModelValue, cos: ModelValue) -> ModelValue:
    """x [b, s, heads * w] or [b, heads, s, w] in heads."""
    if n.attr("is_packed_batching", 0):
        raise UnsupportedError(f"{n.op_type} of batches that are packed", code="TC1013")
    if x.rank not in (3, 4):
        raise NodeError(f"{n.op_type} of {x.type}, which must be of rank 3 or 4")
    if x.rank == 4:
        return x
    rotated, heads = n.attr("rotary_embedding_dim", 0), n.attr("num_heads", 0)
    if rotated and not heads:
        raise NodeError(f"{n.op_type} of a part of each head needs num_heads")
    return in_heads(n, x, heads or x.shape[2] // (cos.shape[1] * 2))


@onnx_op("GroupQueryAttention", domain=_DOMAIN)
def import_group_query_attention(n: NodeContext) -> NodeResult:
    """Queries [b, s, heads * w], keys and values [b, s, kv heads * w], or all side by side in the first operand; the cache of keys and
    values [b, kv heads, places, w]; how many places each sentence has in all, less one [b], and the most that any has.

    What is new in a sentence goes behind what its cache holds: at 0 where all places are new. How many are new may be given [b]; what the
    operands have behind those is nothing. A place sees those before it and itself, of these the last `local_window_size`; without `causal`
    all of the sentence.
    """
    heads, kv_heads = n.attr("num_heads", 0), n.attr("kv_num_heads", 0)
    if not heads or not kv_heads or heads % kv_heads:
        raise NodeError(f"GroupQueryAttention: {heads} heads, {kv_heads} of keys and values")
    _refuse_what_is_not_there(n)
    q, k, v = _heads_of(n, heads, kv_heads)
    batch, _, length, _ = q.shape
    if n.optional(5) is None or n.optional(6) is None:
        raise NodeError("GroupQueryAttention needs the number of places of each sentence, and the most of them")
    totals = n.call("cast", n.call("reshape", n.value(5), shape=(batch,)), dtype=i64)
    most = n.graph.dims(n.call("reshape", n.value(6), shape=(1,)), f"{n.label}.total_sequence_length", n.span)[0]
    before = _places_before(n, totals, length, most)
    if n.attr("do_rotary", 0):
        q, k = _placed(n, q, k, totals, before)
    k_past, v_past = n.optional(3), n.optional(4)
    formats, last = (cache_format(n, "k", 12), cache_format(n, "v", 13)), last_places(n, k_past)
    held = before if last is None else last.count(n, before)  # places of the cache that a sentence has
    if last is not None:
        places = last.capacity + length
    else:
        places = most if k_past is None else simplify(maximum(most, k_past.shape[2]), n.facts)
    held = n.call("check_range", held, limit=places - length + 1, what="number of places of the cache")
    k, v = (
        written(n, past, form.kept(n, new), held, places)
        for past, new, form in zip((k_past, v_past), (k, v), formats, strict=True)
    )
    wide = [_repeated(n, form.read(n, each, q.dtype), heads // kv_heads) for each, form in zip((k, v), formats, strict=True)]
    bias = _bias(n, places) if last is None else _bias_of_last(n, n.call("sub", before, held), places)
    seen = _is_seen(n, held, length, places) if n.attr("causal", 1) else _is_there(n, totals, places)
    scores = _scores(n, q, wide[0], bias)
    lowest = n.const(-largest_number(q.dtype), q.dtype)
    weights = _weights(n, n.call("where", seen, scores, lowest), heads)
    made = in_rows(n, n.call("matmul", weights, wide[1]))
    if last is not None:
        new = n.call("sub", n.call("add", totals, n.const(1, i64)), before)
        starts = n.call("sub", n.call("add", held, new), last.count(n, n.call("add", totals, n.const(1, i64))))
        k, v = (last.kept(n, each, starts) for each in (k, v))
    if not n.attr("qk_output", 0):
        return [made, k, v]
    shown = weights if n.attr("qk_output", 0) == 2 else n.call("where", seen, scores, n.const(0, q.dtype))
    return [made, k, v, n.part(shown, -1, const(0), most)]


def _refuse_what_is_not_there(n: NodeContext) -> None:
    has = [n.optional(k) is not None for k in range(len(n.inputs))]
    if any(has[14:16]):
        raise UnsupportedError("GroupQueryAttention that normalizes heads", code="TC1013")
    if n.attr("qk_output", 0) not in (0, 1, 2) or bool(n.attr("qk_output", 0)) != n.has_output(3):
        raise NodeError(f"GroupQueryAttention: qk_output is {n.attr('qk_output', 0)}, with {n.num_outputs} outputs")
    if n.attr("qk_output", 0) and n.attr("sliding_window_cache", 0):
        raise UnsupportedError("GroupQueryAttention that returns scores, with a cache of the last places alone", code="TC1013")
    if any(has[16:]) and (not n.attr("causal", 1) or not all(has[3:5])):
        raise NodeError("GroupQueryAttention: numbers of what is new need a cache, and are of causal attention alone")
    if not n.attr("causal", 1) and n.attr("local_window_size", -1) > 0:
        raise NodeError("GroupQueryAttention: local_window_size is of causal attention alone")


def _places_before(n: NodeContext, totals: ModelValue, length: Expr, most: Expr) -> ModelValue:
    """How many places of each sentence are not new, i64[b]; totals: how many there are in all, less one."""
    given = n.optional(16)
    if given is not None:
        new = n.call("cast", n.call("reshape", given, shape=(totals.shape[0],)), dtype=i64)
        new = n.call("check_range", new, limit=length + 1, what="number of new places")
        return n.call("sub", n.call("add", totals, n.const(1, i64)), new)
    before = n.call("sub", totals, size_value(length - 1))
    return n.call("where", _flag(n, equal(most, length)), n.const(0, i64), before)


# -- heads


def _heads_of(n: NodeContext, heads: int, kv_heads: int) -> list[ModelValue]:
    """Queries, keys and values in heads."""
    first, k, v = n.value(0), n.optional(1), n.optional(2)
    if first.rank != 3 or (k is None) != (v is None):
        raise NodeError(f"GroupQueryAttention of {first.type}, with keys or values alone")
    if k is None or v is None:
        total = heads + 2 * kv_heads
        width = n.known(first.shape[2], "elements of a head") // total
        parts = [part * width for part in (heads, kv_heads, kv_heads)]
        if sum(parts) != n.known(first.shape[2], "elements of a head"):
            raise NodeError(f"GroupQueryAttention: {total} heads of queries, keys and values in {first.type}")
        made = n.graph.call("split", first, span=n.span, names=[n.label] * 3, axis=2, sizes=tuple(parts))
        return [in_heads(n, part, count) for part, count in zip(made, (heads, kv_heads, kv_heads), strict=True)]
    n.graph.state(lambda: require_divides(const(heads), first.shape[2], f"{n.op_type}: the last dim of {first.type}"), n.span)
    width = n.known(first.shape[2], "elements of a head") // heads
    for new in (k, v):
        text = f"{n.op_type}: the last dim of {new.type}, of {kv_heads} heads"
        n.graph.state(lambda new=new, text=text: require_equal(new.shape[2], const(kv_heads * width), text), n.span)  # type: ignore[misc]
    return [in_heads(n, x, count) for x, count in ((first, heads), (k, kv_heads), (v, kv_heads))]


def _repeated(n: NodeContext, x: ModelValue, times: int) -> ModelValue:
    """Each head of keys or values for the heads of queries that share it."""
    if times == 1:
        return x
    batch, heads, places, width = x.shape
    apart = n.call("reshape", x, shape=(batch, heads, 1, places, width))
    wide = n.call("expand", apart, shape=(batch, heads, times, places, width))
    return n.call("reshape", wide, shape=(batch, heads * times, places, width))


# -- places


def _flag(n: NodeContext, condition: Expr) -> ModelValue:
    return n.call("cast", size_value(Select(condition, const(1), const(0))), dtype=bool_)


def _placed(n: NodeContext, q: ModelValue, k: ModelValue, totals: ModelValue, held: ModelValue) -> tuple[ModelValue, ModelValue]:
    """Queries and keys, rotated for their places: those given, or those behind what the cache holds."""
    cos, sin, given = n.value(7), n.value(8), n.optional(9)
    batch, _, length, _ = q.shape
    if given is not None:
        places = n.call("reshape", given, shape=(batch, length))
    else:
        after = n.call("add", n.call("reshape", held, shape=(batch, 1)), n.call("range", size=length))
        is_there = n.call("less", after, n.call("add", n.call("reshape", totals, shape=(batch, 1)), n.const(1, i64)))
        places = n.call("where", is_there, after, n.const(1 if prove(cos.shape[0] >= 2, n.facts) is True else 0, i64))  # of no token
    interleaved = bool(n.attr("rotary_interleaved", 0))
    angles = [n.call("gather", table, places, axis=0) for table in (cos, sin)]
    return tuple(_rotated(n, x, *angles, interleaved=interleaved) for x in (q, k))  # type: ignore[return-value]


def _rotated(n: NodeContext, x: ModelValue, cos: ModelValue, sin: ModelValue, *, interleaved: bool) -> ModelValue:
    """x [b, heads, s, w] by the angles [b or 1, s, r]: pairs are halves of the first 2 * r elements, or neighbours."""
    half = n.known(cos.shape[2], "elements of a head")
    text = f"{n.op_type}: the caches of cosines and sines"
    n.graph.state(lambda: require_equal(sin.shape[2], cos.shape[2], text), n.span)
    batch, heads, length, width = x.shape
    c, s = (n.cast(n.call("unsqueeze", table, axes=(1,)), x.dtype) for table in (cos, sin))
    rest = None
    if prove(equal(width, 2 * half), n.facts) is not True:
        rest = n.part(x, -1, const(2 * half), width - 2 * half)
        x = n.part(x, -1, const(0), const(2 * half))
    if interleaved:
        pairs = n.call("reshape", x, shape=(batch, heads, length, half, 2))
        a, b = (n.call("squeeze", n.part(pairs, -1, const(at), const(1)), axes=(4,)) for at in (0, 1))
    else:
        a, b = n.part(x, -1, const(0), const(half)), n.part(x, -1, const(half), const(half))
    turned = [
        n.call("sub", n.call("mul", c, a), n.call("mul", s, b)),
        n.call("add", n.call("mul", s, a), n.call("mul", c, b)),
    ]
    if interleaved:
        columns = [n.call("unsqueeze", part, axes=(4,)) for part in turned]
        turned = [n.call("reshape", n.call("concat", *columns, axis=4), shape=(batch, heads, length, 2 * half))]
    parts = turned if rest is None else [*turned, rest]
    return parts[0] if len(parts) == 1 else n.call("concat", *parts, axis=3)


# -- what is seen of the cache


def _is_seen(n: NodeContext, held: ModelValue, length: Expr, places: Expr) -> ModelValue:
    """[b, 1, s, t]: whether a place that asks sees another one."""
    batch = held.shape[0]
    row = n.call("reshape", n.call("range", size=length), shape=(length, 1))
    asking = n.call("add", n.call("reshape", held, shape=(batch, 1, 1, 1)), row)
    asked = n.call("range", size=places)
    seen = n.call("logical_not", n.call("less", asking, asked))
    window = n.attr("local_window_size", -1)
    if window <= 0:
        return seen
    return n.call("logical_and", seen, n.call("less", n.call("sub", asking, n.const(window, i64)), asked))


def _is_there(n: NodeContext, totals: ModelValue, places: Expr) -> ModelValue:
    """[b, 1, 1, t]: whether a place of the cache is one of the sentence."""
    last = n.call("reshape", totals, shape=(totals.shape[0], 1, 1, 1))
    return n.call("logical_not", n.call("less", last, n.call("range", size=places)))


def _scores(n: NodeContext, q: ModelValue, k: ModelValue, bias: ModelValue | None) -> ModelValue:
    """Those of each query with all keys, scaled, capped and with a bias."""
    scores = n.call("matmul", q, n.call("transpose", k, perm=(0, 1, 3, 2)))
    scores = n.call("mul", scores, n.const(n.attr("scale", 0.0) or float(n.known(q.shape[3], "elements of a head")) ** -0.5, q.dtype))
    softcap = n.attr("softcap", 0.0)
    if softcap:
        cap = n.const(softcap, q.dtype)
        scores = n.call("mul", n.call("tanh", n.call("div", scores, cap)), cap)
    return with_term(n, scores, bias)


def _bias(n: NodeContext, places: Expr) -> ModelValue | None:
    """What is added to the scores: nothing where the cache has more places than it has columns."""
    bias = n.optional(10)
    if bias is None or prove(equal(bias.shape[3], places), n.facts) is True:
        return bias
    ends = (const(0), const(0), const(0), places - bias.shape[3])
    return n.call("pad", bias, None, pads=(0, 0, 0, 0, *ends))


def _bias_of_last(n: NodeContext, dropped: ModelValue, places: Expr) -> ModelValue | None:
    """The columns of places that are there: those behind what each sentence has dropped, i64[b]."""
    bias = n.optional(10)
    if bias is None:
        return None
    every = n.call("expand", bias, shape=(dropped.shape[0], *bias.shape[1:]))
    return from_places(n, every, dropped, places, axis=3)


def _weights(n: NodeContext, scores: ModelValue, heads: int) -> ModelValue:
    """The softmax of scores, beside a score of each head's that nothing is taken from, where there is one."""
    sink = n.optional(11)
    if sink is None and not n.attr("smooth_softmax", 0):
        return n.call("softmax", scores, axis=-1)
    batch, _, length, places = scores.shape
    shape = (batch, heads, length, 1)
    if sink is None:
        column = n.call("full", shape=shape, value=0, dtype=scores.dtype)
    else:
        column = n.call("expand", n.call("reshape", sink, shape=(1, heads, 1, 1)), shape=shape)
    return n.part(n.call("softmax", n.call("concat", scores, column, axis=3), axis=-1), -1, const(0), places)
