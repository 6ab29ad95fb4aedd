"""Mixtures of experts of "com.microsoft": MoE, QMoE and MoEGroupRouter.

Tokens are put in the order of the experts that they chose, each expert gets its part, of a size that the run tells, and what they make is
put back and added by the shares of the router: no expert sees a token that did not choose it, and the weights of one that nobody chose
are not read.

Source: the contrib operators page of onnxruntime's documentation, and, for what it leaves open, what onnxruntime's CPU kernels give;
Shazeer et al. (2017), Outrageously large neural networks; DeepSeek-V3 (2024) for routes by groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from tc.errors import NodeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.ops_math import swish
from tc.frontend.onnx.ops_weights import UNSIGNED, NBitsWeights, of_blocks, zero_points
from tc.frontend.onnx.values import ModelValue
from tc.ir.dtype import DType, f32, i64, unpack
from tc.ir.expr import Expr
from tc.ir.types import product
from tc.ops.common import require_equal

_DOMAIN = "com.microsoft"
_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
_FIRST, _SECOND, _GATE = range(3)

_Product = Callable[[int, int, ModelValue], ModelValue]
"""Of a matrix (`_FIRST`, `_SECOND`, `_GATE`) of an expert with rows [t, k], bias included: [t, n]."""


@dataclass(frozen=True)
class _Route:
    """The experts [t, k] of each token, and the share of what each of them makes [t, k] (f32)."""

    chosen: ModelValue
    share: ModelValue


@onnx_op("MoE", domain=_DOMAIN)
def import_moe(n: NodeContext) -> NodeResult:
    """Tokens x [t, h] or [b, s, h] through the k experts of the largest logits [t, e]; a share is the softmax over all of them."""
    weights = {_FIRST: n.value(2), _SECOND: n.value(4)}
    if n.optional(6) is not None:
        weights[_GATE] = n.value(6)
    for each in weights.values():
        if each.rank != 3:
            raise NodeError(f"MoE: weights of {each.type}, which must be [experts, n, k]")
    count = n.known(weights[_FIRST].shape[0], "experts")
    biases = {which: n.optional(place) for which, place in ((_FIRST, 3), (_SECOND, 5), (_GATE, 7))}

    def through(which: int, expert: int, rows: ModelValue) -> ModelValue:
        matrix = n.call("squeeze", n.part(weights[which], 0, expert, 1), axes=(0,))
        made = n.call("matmul", rows, n.call("transpose", matrix, perm=(1, 0)))
        return _biased(n, made, biases[which], expert)

    logits = _logits(n, count)
    shares, k = n.call("softmax", logits, axis=-1), _k_of(n, count)
    share, chosen = n.graph.call("topk", shares, span=n.span, names=[n.label] * 2, k=k)
    made = _mixed(n, _tokens(n), _Route(chosen, _normal(n, share)), count, through, has_gate=_GATE in weights)
    return n.call("reshape", made, shape=n.value(0).shape)


@onnx_op("QMoE", domain=_DOMAIN)
def import_qmoe(n: NodeContext) -> NodeResult:
    """The same of weights of 2, 4 or 8 bits, each row or each block of one with a scale; a share is the softmax over the k experts, or
    what `router_weights` says."""
    if n.attr("quant_type", "int") != "int":
        raise UnsupportedError(f"QMoE with quant_type {n.attr('quant_type')!r}", code="TC1013", supported="int")
    if n.attr("weights_prepacked", -1) > 0:
        raise UnsupportedError("QMoE with weights that are packed for one processor", code="TC1013")
    parts = {_FIRST: _read(n, 2, 1, 11), _SECOND: _read(n, 5, 2, 12)}
    if n.optional(8) is not None:
        parts[_GATE] = _read(n, 8, 3, 13)
    count = len(parts[_FIRST])
    if any(len(each) != count for each in parts.values()):
        raise NodeError(f"QMoE: weights of {', '.join(str(len(each)) for each in parts.values())} experts")
    biases = {which: n.optional(place) for which, place in ((_FIRST, 4), (_SECOND, 7), (_GATE, 10))}

    def through(which: int, expert: int, rows: ModelValue) -> ModelValue:
        bias = biases[which]
        wide = None if bias is None or bias.dtype is f32 else n.call("cast", bias, dtype=f32)
        return _biased(n, of_blocks(n, rows, parts[which][expert]), wide or bias, expert)

    logits, k = _logits(n, count), _k_of(n, count)
    largest, chosen = n.graph.call("topk", logits, span=n.span, names=[n.label] * 2, k=k)
    given = n.optional(14)
    if given is None:
        share = n.call("softmax", largest, axis=-1)
    else:
        share = n.call("cast", n.call("gather_elements", given, chosen, axis=1), dtype=f32)
        share = _normal(n, share)
    x = _tokens(n)
    wide_x = n.cast(x, f32)
    made = _mixed(n, wide_x, _Route(chosen, share), count, through, has_gate=_GATE in parts)
    made = n.call("reshape", made, shape=n.value(0).shape)
    return made if x.dtype is f32 else n.call("cast", made, dtype=x.dtype)


@onnx_op("MoEGroupRouter", domain=_DOMAIN)
def import_moe_group_router(n: NodeContext) -> NodeResult:
    """The logarithm of sigmoid(logits) [t, e] at the experts that are chosen, a sentinel elsewhere; or all of it, with and without the
    bias. Experts are those of the largest biased values in the groups whose largest ones have the largest sums."""
    logits, bias = n.value(0), n.value(1)
    if n.optional(2) is not None:
        raise UnsupportedError("MoEGroupRouter that projects", code="TC1013")
    count = n.known(logits.shape[-1], "experts")
    rows = n.call("reshape", logits, shape=(product(logits.shape[:-1]), count))
    likely = n.call("sigmoid", n.cast(rows, f32))
    biased = n.call("add", likely, bias)
    groups, k = int(n.attr("n_group", 1)), int(n.attr("top_k", 0))
    if groups < 1 or count % groups or not 0 < k <= count:
        raise NodeError(f"MoEGroupRouter: {k} of {count} experts in {groups} groups")
    if not n.has_output(0):
        return [None, biased, likely]
    tokens, size = rows.shape[0], count // groups
    open_to = _best_groups(n, biased, groups, size)
    candidates = n.call("where", open_to, biased, n.const(-np.inf, f32))
    _, chosen = n.graph.call("topk", candidates, span=n.span, names=[n.label] * 2, k=k)
    blank = n.call("full", shape=(tokens, count), value=n.attr("router_sentinel", -10000.0), dtype=f32)
    logs = n.call("log", n.call("maximum", likely, n.const(1e-20, f32)))
    found = n.call("scatter_elements", blank, chosen, n.call("gather_elements", logs, chosen, axis=1), axis=1)
    return found if logits.dtype is f32 else n.call("cast", found, dtype=logits.dtype)


def _best_groups(n: NodeContext, biased: ModelValue, groups: int, size: int) -> ModelValue:
    """[t, e] (bool): whether an expert is in one of the groups with the largest sums of their `group_topk` largest values."""
    tokens = biased.shape[0]
    active, of_each = int(n.attr("topk_group", 1)), min(int(n.attr("group_topk", 2)), size)
    if not 0 < active <= groups or of_each < 1:
        raise NodeError(f"MoEGroupRouter: the best {active} of {groups} groups, by {of_each} values of each")
    apart = n.call("reshape", biased, shape=(tokens, groups, size))
    largest, _ = n.graph.call("topk", apart, span=n.span, names=[n.label] * 2, k=of_each)
    sums = n.call("sum", largest, axes=(2,), keepdims=False)
    _, best = n.graph.call("topk", sums, span=n.span, names=[n.label] * 2, k=active)
    is_best = n.call("equal", n.call("unsqueeze", best, axes=(2,)), n.const(np.arange(groups), i64))
    is_open = n.call("max", n.call("cast", is_best, dtype=i64), axes=(1,), keepdims=False)
    wide = n.call("expand", n.call("unsqueeze", is_open, axes=(2,)), shape=(tokens, groups, size))
    return n.call("equal", n.call("reshape", wide, shape=(tokens, groups * size)), n.const(1, i64))


# -- the route


def _k_of(n: NodeContext, count: int) -> int:
    if n.attr("use_sparse_mixer", 0):
        raise UnsupportedError(f"{n.op_type} with use_sparse_mixer", code="TC1013", supported="0")
    k = int(n.attr("k", 1))
    if not 0 < k <= count:
        raise NodeError(f"{n.op_type}: the best {k} of {count} experts")
    return k


def _tokens(n: NodeContext) -> ModelValue:
    x = n.value(0)
    if x.rank not in (2, 3):
        raise NodeError(f"{n.op_type} of {x.type}, which must be of rank 2 or 3")
    return x if x.rank == 2 else n.call("reshape", x, shape=(x.shape[0] * x.shape[1], x.shape[2]))


def _logits(n: NodeContext, count: int) -> ModelValue:
    """[t, e] in f32, one row for each token."""
    logits, rows = n.value(1), n.value(0).shape[:-1]
    if logits.rank != 2:
        raise NodeError(f"{n.op_type}: router_probs is {logits.type}, which must be [tokens, experts]")
    tokens = rows[0] if len(rows) == 1 else rows[0] * rows[1]
    logits = n.call("reshape", logits, shape=(tokens, count))
    return n.cast(logits, f32)


def _normal(n: NodeContext, share: ModelValue) -> ModelValue:
    """Shares that sum to 1 where the node asks for it."""
    if not n.attr("normalize_routing_weights", 0):
        return share
    return n.call("div", share, n.call("sum", share, axes=(1,), keepdims=True))


# -- the experts


def _mixed(n: NodeContext, x: ModelValue, route: _Route, count: int, through: _Product, *, has_gate: bool) -> ModelValue:
    """The sum [t, h] of what the experts of each token make of it, by their shares."""
    tokens, k = route.chosen.shape
    slots = tokens * k
    flat = n.call("reshape", n.call("cast", route.chosen, dtype=i64), shape=(slots,))
    is_of = n.call("equal", n.call("unsqueeze", flat, axes=(1,)), n.const(np.arange(count), i64))
    sizes = n.graph.dims(n.call("sum", n.call("cast", is_of, dtype=i64), axes=(0,), keepdims=False), f"{n.label}.tokens", n.span)
    order = _order(n, flat, slots)
    rows = n.call("gather", x, n.call("div", order, n.const(int(k), i64)), axis=0)  # type: ignore[call-overload]
    parts = n.graph.call("split", rows, span=n.span, names=[n.label] * count, axis=0, sizes=sizes) if count > 1 else (rows,)
    activate = _activation(n, has_gate)

    def of_expert(expert: int, part: ModelValue) -> ModelValue:
        first = through(_FIRST, expert, part)
        gate = through(_GATE, expert, part) if has_gate else None
        return through(_SECOND, expert, activate(first, gate))

    made = [of_expert(expert, part) for expert, part in enumerate(parts)]
    together = n.call("concat", *made, axis=0) if count > 1 else made[0]
    together = n.call("reshape", together, shape=(slots, together.shape[1]))
    back = n.call("gather", together, _order(n, order, slots), axis=0)
    apart = n.call("reshape", back, shape=(tokens, k, back.shape[1]))
    share = route.share if x.dtype is f32 else n.call("cast", route.share, dtype=x.dtype)
    return n.call("sum", n.call("mul", apart, n.call("unsqueeze", share, axes=(2,))), axes=(1,), keepdims=False)


def _order(n: NodeContext, keys: ModelValue, size: Expr) -> ModelValue:
    """The places of keys from the smallest on, equal ones as they stand."""
    return n.graph.call("topk", keys, span=n.span, names=[n.label] * 2, k=size, largest=False)[1]


def _biased(n: NodeContext, x: ModelValue, bias: ModelValue | None, expert: int) -> ModelValue:
    return x if bias is None else n.call("add", x, n.part(bias, 0, expert, 1))


def _activation(n: NodeContext, has_gate: bool) -> Callable[[ModelValue, ModelValue | None], ModelValue]:
    """What an expert makes of its first product, and of that of its gate where it has one."""
    kind, fusion = str(n.attr("activation_type", "relu")), int(n.attr("swiglu_fusion", 0))
    if kind not in _ACTIVATIONS:
        raise UnsupportedError(f"{n.op_type} with activation_type {kind!r}", code="TC1013", supported=", ".join(_ACTIVATIONS))
    if n.attr("swiglu_limit_after_activation", 0):
        raise UnsupportedError(f"{n.op_type} with swiglu_limit_after_activation", code="TC1013", supported="0")
    if kind == "swiglu":
        if has_gate != (fusion == 0) or fusion not in (0, 1, 2):
            raise NodeError(f"{n.op_type}: swiglu with swiglu_fusion = {fusion} and {'a' if has_gate else 'no'} third product")
        return lambda first, gate: _swiglu(n, *((first, gate) if gate is not None else _halves(n, first, neighbours=fusion == 1)))
    return lambda first, gate: _gated(n, _simple(n, kind, first), gate)


def _gated(n: NodeContext, x: ModelValue, gate: ModelValue | None) -> ModelValue:
    return x if gate is None else n.call("mul", x, gate)


def _simple(n: NodeContext, kind: str, x: ModelValue) -> ModelValue:
    if kind == "silu":
        return n.call("silu", x)
    if kind == "gelu":
        return n.call("gelu", x, approximate="tanh")
    return n.call("relu", x) if kind == "relu" else x


def _halves(n: NodeContext, x: ModelValue, *, neighbours: bool) -> tuple[ModelValue, ModelValue]:
    """Even and odd columns, or the first and the last half of them."""
    half = x.shape[1] // 2
    n.graph.state(lambda: require_equal(x.shape[1], 2 * half, f"{n.op_type}: the columns of the fused products"), n.span)
    step, second = (2, 1) if neighbours else (1, half)
    sizes = (x.shape[0], half)
    first, last = (n.call("slice", x, starts=(0, at), sizes=sizes, steps=(1, step)) for at in (0, second))
    return first, last


def _swiglu(n: NodeContext, gate: ModelValue, linear: ModelValue) -> ModelValue:
    """g sigmoid(alpha g) (l + beta), of g at most a limit and l between it and its negative."""
    limit = float(n.attr("swiglu_limit", inf))
    if limit < inf:
        bound, low = n.const(limit, gate.dtype), n.const(-limit, gate.dtype)
        gate, linear = n.call("minimum", gate, bound), n.call("clip", linear, low, bound)
    beta = n.const(n.attr("activation_beta", 0.0), gate.dtype)
    return n.call("mul", swish(n, gate, n.attr("activation_alpha", 1.0)), n.call("add", linear, beta))


# -- weights of a few bits


def _read(n: NodeContext, place: int, number: int, zeros_at: int) -> list[NBitsWeights]:
    """The weights of each expert, of the operand at `place`, with the scales behind it and the zero points at `zeros_at`."""
    name = f"fc{number}"
    bits = int(n.attr(f"{name}_expert_weight_bits", n.attr("expert_weight_bits", 4)))
    if bits not in UNSIGNED:
        raise UnsupportedError(f"QMoE with {bits} bits", code="TC1013", supported=", ".join(map(str, UNSIGNED)))
    dtype = UNSIGNED[bits]
    packed, scale = n.array(place, f"{name}_experts_weights"), n.array(place + 1, f"{name}_scales")
    if packed is None or scale is None:
        raise NodeError(f"QMoE: {name} has no weights or no scales")
    if packed.dtype != np.uint8 or packed.ndim != 3:
        raise NodeError(f"QMoE: {name}_experts_weights has {packed.dtype} {list(packed.shape)}, must be bytes [experts, n, bytes of k]")
    experts, rows = packed.shape[:2]
    depth = packed.shape[2] * dtype.per_byte
    block = int(n.attr("block_size", 0)) or depth
    if block < 1 or depth % block:
        raise NodeError(f"QMoE: {name} has {depth} terms, which are no whole blocks of {block}")
    groups = depth // block
    if scale.size != experts * rows * groups:
        raise NodeError(f"QMoE: {name}_scales has {scale.size} numbers, but {experts} experts of {rows} rows have {groups} blocks each")
    scales = scale.reshape(experts, rows, groups).astype(np.float32)
    zeros = _zeros(n, n.array(zeros_at, f"{name}_zero_points"), scales.shape, dtype, is_blocked=bool(n.attr("block_size", 0)))
    return [
        NBitsWeights(unpack(packed[e].reshape(-1), dtype, (rows, depth)), scales[e], zeros[e], dtype, block) for e in range(experts)
    ]


def _zeros(n: NodeContext, zero: np.ndarray | None, shape: tuple[int, ...], dtype: DType, *, is_blocked: bool) -> np.ndarray:
    """Zero points [e, n, g]; of whole rows they are packed along n, of blocks along g."""
    experts, rows, groups = shape
    lines, each = (experts * rows, groups) if is_blocked else (experts, rows)
    return zero_points(n, zero, lines, each, dtype).reshape(shape)
