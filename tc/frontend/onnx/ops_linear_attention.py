"""What recurrent language models are written with in the domain "com.microsoft": attention by a state that each token updates, the
convolution and the gates before it, and the norm behind it.

Source: the contrib operators page of onnxruntime's documentation; Yang et al. (2024), Gated Delta Networks; Gu and Dao (2023), Mamba.
"""

from __future__ import annotations

from dataclasses import dataclass

from tc.errors import NodeError, UnsupportedError
from tc.frontend.onnx.control_flow import bind_loop
from tc.frontend.onnx.node_context import Calls, NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.values import ModelValue
from tc.ir.dtype import f32
from tc.ir.expr import is_const

_DOMAIN = "com.microsoft"
_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""By `update_rule`: whether the state decays, and whether a value is written less what the state already answers."""


@dataclass(frozen=True)
class _Tokens:
    """What tokens bring, each in f32 and with the token in front: queries [t, b, kv, g, dk], keys [t, b, kv, dk], values [t, b, kv, dv],
    decay [t, b, kv, dk or 1] and rate [t, b, kv or 1, 1]."""

    queries: ModelValue
    keys: ModelValue
    values: ModelValue
    decay: ModelValue | None
    rate: ModelValue | None

    def at(self, c: Calls, i: ModelValue | None) -> _Tokens:
        """Those of one token; None: of the only one."""

        def pick(value: ModelValue | None) -> ModelValue | None:
            if value is None:
                return None
            return c.call("squeeze", value, axes=(0,)) if i is None else c.call("gather", value, i, axis=0, in_range=True)

        parts = (self.queries, self.keys, self.values, self.decay, self.rate)
        return _Tokens(*map(pick, parts))  # type: ignore[arg-type]


@onnx_op("LinearAttention", domain=_DOMAIN)
def import_linear_attention(n: NodeContext) -> NodeResult:
    """What queries [b, t, heads * dk] read from a state [b, kv heads, dk, dv] that keys and values of each token up to theirs are written
    to; and the state behind the last one. It is kept in f32."""
    rule = str(n.attr("update_rule", "gated_delta"))
    if rule not in _RULES:
        raise UnsupportedError(f"LinearAttention with update_rule {rule!r}", code="TC1013", supported=", ".join(_RULES))
    if n.attr("state_window", 0):
        raise UnsupportedError("LinearAttention that keeps the states of several tokens", code="TC1013", supported="state_window = 0")
    heads, kv_heads = int(n.attr("q_num_heads", 0)), int(n.attr("kv_num_heads", 0))
    if heads < 1 or kv_heads < 1 or (heads % kv_heads and kv_heads % heads):
        raise NodeError(f"LinearAttention: {heads} heads, {kv_heads} of keys and values")
    decays, is_delta = _RULES[rule]
    tokens = _tokens(n, heads, kv_heads, decays, is_delta)
    length, batch, _, depth = tokens.keys.shape
    width = tokens.values.shape[3]
    scale = float(n.attr("scale", 0.0)) or n.known(depth, "elements") ** -0.5
    past = n.optional(3)
    shape = (batch, kv_heads, depth, width)
    state = n.call("full", shape=shape, value=0, dtype=f32) if past is None else n.cast(n.call("reshape", past, shape=shape), f32)

    def step(c: Calls, i: ModelValue | None, states: list[ModelValue]) -> tuple[None, list[ModelValue], list[ModelValue]]:
        one = tokens.at(c, i)
        after = _updated(c, states[0], one, is_delta=is_delta)
        read = c.call("mul", c.call("matmul", one.queries, after), c.const(scale, f32))
        return None, [after], [read]

    if is_const(length, 1):
        _, (state,), (read,) = step(n, None, [state])
        reads = n.call("unsqueeze", read, axes=(0,))
    else:
        state, reads = bind_loop(n, length, None, [state], step, f"{n.place_here}/token")
    rows = n.call("transpose", reads, perm=(1, 0, 2, 3, 4))
    rows = n.call("reshape", rows, shape=(batch, length, max(heads, kv_heads) * width))
    return [n.cast(rows, n.value(0).dtype), n.cast(state, n.value(0).dtype if past is None else past.dtype)]


def _tokens(n: NodeContext, heads: int, kv_heads: int, decays: bool, is_delta: bool) -> _Tokens:
    q, k, v = n.value(0), n.value(1), n.value(2)
    if any(each.rank != 3 for each in (q, k, v)):
        raise NodeError(f"LinearAttention of {q.type}, {k.type} and {v.type}, which must be of rank 3")
    batch, length, _ = q.shape
    depth = n.known(k.shape[2], "elements") // kv_heads

    def in_heads(value: ModelValue, count: int) -> ModelValue:
        """[t, b, count, w]"""
        width = n.known(value.shape[2], "elements")
        if width % count:
            raise NodeError(f"LinearAttention: {count} heads in {value.type}")
        apart = n.call("reshape", n.cast(value, f32), shape=(batch, length, count, width // count))
        return n.call("transpose", apart, perm=(1, 0, 2, 3))

    queries = in_heads(q, heads)
    if heads < kv_heads:  # one head of queries for several
        apart = n.call("unsqueeze", queries, axes=(3,))
        queries = n.call("expand", apart, shape=(length, batch, heads, kv_heads // heads, depth))
    queries = n.call("reshape", queries, shape=(length, batch, kv_heads, max(heads // kv_heads, 1), depth))
    given: list[ModelValue | None] = []
    for place, is_used, what in ((4, decays, "decay"), (5, is_delta, "beta")):
        value = n.optional(place)
        if is_used and value is None:
            raise NodeError(f"LinearAttention: update_rule {n.attr('update_rule', 'gated_delta')!r} needs {what}")
        given.append(in_heads(value, min(kv_heads, n.known(value.shape[2], "elements"))) if is_used and value is not None else None)
    return _Tokens(queries, in_heads(k, kv_heads), in_heads(v, kv_heads), *given)


def _updated(c: Calls, state: ModelValue, one: _Tokens, *, is_delta: bool) -> ModelValue:
    """The state [b, kv, dk, dv] after a token: decayed, and with its value at its key."""
    if one.decay is not None:
        state = c.call("mul", state, c.call("unsqueeze", c.call("exp", one.decay), axes=(3,)))
    value = c.call("unsqueeze", one.values, axes=(2,))
    if is_delta:
        assert one.rate is not None, "a delta rule has a rate"
        known = c.call("matmul", c.call("unsqueeze", one.keys, axes=(2,)), state)
        value = c.call("mul", c.call("sub", value, known), c.call("unsqueeze", one.rate, axes=(3,)))
    return c.call("add", state, c.call("mul", c.call("unsqueeze", one.keys, axes=(3,)), value))


@onnx_op("LinearAttentionGate", domain=_DOMAIN)
def import_linear_attention_gate(n: NodeContext) -> NodeResult:
    """decay_scale softplus(a + dt_bias), and sigmoid(b), in f32."""
    a, b = n.value(0), n.optional(3)
    decay = n.call("mul", n.call("softplus", n.call("add", n.cast(a, f32), n.value(1))), n.value(2))
    return [n.cast(decay, a.dtype), None if b is None else n.cast(n.call("sigmoid", n.cast(b, f32)), b.dtype)]


@onnx_op("CausalConvWithState", domain=_DOMAIN)
def import_causal_conv(n: NodeContext) -> NodeResult:
    """A convolution of each channel of x [b, c, t], or [b, t, ..c], with what came before in `past_state`; and the end of both, the next
    call's. Sums in f32."""
    for name, usual in (("ndim", 1), ("state_window", 0), ("state_length", 0), ("input_channels", 0), ("input_channel_offset", 0)):
        if int(n.attr(name, usual)) != usual:
            raise UnsupportedError(f"CausalConvWithState with {name} = {n.attr(name)}", code="TC1013", supported=str(usual))
    if n.has_output(2):
        raise UnsupportedError("CausalConvWithState that returns its updates", code="TC1013")
    x, weight, bias, past = n.value(0), n.value(1), n.optional(2), n.optional(3)
    last = bool(n.attr("channels_last", 0))
    if x.rank < 3 or (x.rank != 3 and not last) or weight.rank != 3:
        raise NodeError(f"CausalConvWithState of {x.type} by {weight.type}")
    channels = n.known(weight.shape[0], "elements")
    dilation, taps = int(n.attr("dilation", 1)), n.known(weight.shape[2], "elements")
    if dilation < 1 or taps < 1:
        raise NodeError(f"CausalConvWithState: {taps} taps {dilation} apart")
    held = (taps - 1) * dilation
    before = None if past is None else _channels_first(n, past, channels, last)
    now = _channels_first(n, x, channels, last)
    batch, _, length = now.shape
    if before is None:
        before = n.call("full", shape=(batch, channels, held), value=0, dtype=now.dtype)
    before = n.call("reshape", before, shape=(batch, channels, held))
    seen = n.call("concat", before, n.cast(now, before.dtype), axis=2)
    made = n.call(
        "conv", n.cast(seen, f32), n.cast(weight, f32), None if bias is None else n.cast(bias, f32), strides=(1,), pads=(0, 0),
        dilations=(dilation,), groups=channels,
    )  # fmt: skip
    kind = str(n.attr("activation", "none")).lower()
    if kind not in ("none", "", "silu", "swish"):
        raise UnsupportedError(f"CausalConvWithState with activation {kind!r}", code="TC1013", supported="none, silu, swish")
    if kind in ("silu", "swish"):
        made = n.call("silu", made)
    after = n.part(seen, 2, length, held)
    return [_channels_back(n, n.cast(made, x.dtype), x, last), _channels_back(n, after, x, last)]


def _channels_first(n: NodeContext, x: ModelValue, channels: int, last: bool) -> ModelValue:
    """[b, c, t] of that, or of [b, t, ..c]."""
    if not last:
        return n.call("reshape", x, shape=(x.shape[0], channels, x.shape[2]))
    return n.call("transpose", n.call("reshape", x, shape=(*x.shape[:2], channels)), perm=(0, 2, 1))


def _channels_back(n: NodeContext, made: ModelValue, x: ModelValue, last: bool) -> ModelValue:
    """The layout of x for [b, c, t]."""
    if not last:
        return made
    batch, _, length = made.shape
    return n.call("reshape", n.call("transpose", made, perm=(0, 2, 1)), shape=(batch, length, *x.shape[2:]))


@onnx_op("GatedRMSNorm", domain=_DOMAIN)
def import_gated_rms_norm(n: NodeContext) -> NodeResult:
    """rms_norm of each run of as many elements as `scale` has, times an activation of the gate; in f32."""
    x, scale, gate = n.value(0), n.value(1), n.value(2)
    kind = str(n.attr("activation", "silu"))
    if kind not in ("silu", "swish", "sigmoid"):
        raise UnsupportedError(f"GatedRMSNorm with activation {kind!r}", code="TC1013", supported="silu, swish, sigmoid")
    normal = _rms_norm_of_runs(n, x, scale)
    wide = n.cast(gate, f32)
    opened = n.call("sigmoid" if kind == "sigmoid" else "silu", wide)
    return n.cast(n.call("mul", normal, opened), x.dtype)


def _rms_norm_of_runs(n: NodeContext, x: ModelValue, scale: ModelValue) -> ModelValue:
    """Each run of the last axis, of as many elements as `scale` [c] has, over the root of the mean of its squares; in f32."""
    *rows, total = x.shape
    size, width = n.known(scale.shape[-1], "elements"), n.known(total, "elements")
    if size < 1 or width % size:
        raise NodeError(f"{n.op_type} of {x.type} in runs of {size} elements")
    apart = n.call("reshape", n.cast(x, f32), shape=(*rows, width // size, size))
    normal = n.call("rms_norm", apart, n.cast(scale, f32), axis=-1, epsilon=n.attr("epsilon", 1e-5))
    return n.call("reshape", normal, shape=x.shape)
