"""A decoder in the style of Llama with seeded weights: RMSNorm, rotary positions, grouped queries, SwiGLU, KV cache.

Spelled as exporters spell it: RMSNorm as Pow, ReduceMean, Add, Sqrt, Div, Mul; the rotation as Slice, Neg, Concat; keys
and values of a group repeated by Unsqueeze, Expand, Reshape; a causal mask made by comparing positions.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from benchmarks.onnx_builder import F32, I64, Dim, OnnxBuilder

VOCABULARY, LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN = 8000, 8, 512, 8, 4, 1376
HEAD_WIDTH = WIDTH // HEADS
KV_WIDTH = KV_HEADS * HEAD_WIDTH
ROPE_BASE = 10000.0
EPSILON = 1e-5
LOWEST = float(np.finfo(np.float32).min)


def make_llama(rng: np.random.Generator, tokens: Dim, past: Dim, batch: int = 1) -> onnx.ModelProto:
    """The decoder for `batch` sequences: `tokens` new tokens after `past` cached ones; a str is a symbolic dim.

    Inputs input_ids, position_ids: int64[batch, tokens], and past_k_i, past_v_i: float32[batch, KV_HEADS, past, HEAD_WIDTH] for
    each layer i (none when `past` is 0). Outputs logits: float32[batch, tokens, VOCABULARY], and present_k_i, present_v_i:
    the cache with the new tokens appended.
    """
    return _Decoder(rng, tokens, past, batch).build()


class _Decoder:
    def __init__(self, rng: np.random.Generator, tokens: Dim, past: Dim, batch: int) -> None:
        self.rng = rng
        self.batch = batch
        self.tokens, self.past = tokens, past
        self.static = isinstance(tokens, int) and isinstance(past, int)
        self.total: Dim = tokens + past if self.static else "total"
        self.g = OnnxBuilder("llama_style", opset=17)
        self.presents: list[tuple[str, str]] = []

    def build(self) -> onnx.ModelProto:
        g = self.g
        ids = g.input("input_ids", I64, (self.batch, self.tokens))
        positions = g.input("position_ids", I64, (self.batch, self.tokens))
        caches = [self.cache_inputs(i) for i in range(LAYERS)]

        hidden = g.op("Gather", self.normal("embed_tokens.weight", (VOCABULARY, WIDTH), 1.0), ids)
        cos, sin = self.rotation(positions)
        mask = self.causal_mask(positions, caches[0])
        for i, cache in enumerate(caches):
            hidden = self.layer(i, hidden, cache, cos, sin, mask)
        logits = self.linear(self.rms_norm(hidden, "norm"), "lm_head", WIDTH, VOCABULARY)

        g.output(logits, "logits", F32, (self.batch, self.tokens, VOCABULARY))
        for name, value in self.presents:
            g.output(value, name, F32, (self.batch, KV_HEADS, self.total, HEAD_WIDTH))
        return g.model()

    def cache_inputs(self, layer: int) -> tuple[str, str] | None:
        if self.past == 0:
            return None
        shape = (self.batch, KV_HEADS, self.past, HEAD_WIDTH)
        return self.g.input(f"past_k_{layer}", F32, shape), self.g.input(f"past_v_{layer}", F32, shape)

    def rotation(self, positions: str) -> tuple[str, str]:
        """Cosine and sine of position * base^(-2i / head width), each half of the head alike: [1, 1, tokens, head]."""
        g = self.g
        rates = ROPE_BASE ** (-np.arange(0, HEAD_WIDTH, 2, dtype=np.float64) / HEAD_WIDTH)
        rates_row = g.weight("rotary.inv_freq", rates.astype(np.float32)[None, None])
        column = g.op("Unsqueeze", g.op("Cast", positions, to=F32), g.ints(2))
        angles = g.op("MatMul", column, rates_row)
        angles = g.op("Unsqueeze", g.op("Concat", angles, angles, axis=-1), g.ints(1))
        return g.op("Cos", angles), g.op("Sin", angles)

    def causal_mask(self, positions: str, cache: tuple[str, str] | None) -> str:
        """0 where a key is not later than the query, else the lowest float32: [1, 1, tokens, total]."""
        g = self.g
        rows = g.op("Unsqueeze", positions, g.ints(1, 3))
        if self.static:
            keys = g.const(np.arange(self.total), np.int64)
        else:
            assert cache is not None, "a symbolic build reads a cache, of length 0 at first"
            total = g.op("Add", self.dim(cache[0], 2), self.dim(positions, 1))
            keys = g.op("Range", g.const(0, np.int64), total, g.const(1, np.int64))
        visible = g.op("LessOrEqual", keys, rows)
        return g.op("Where", visible, g.const(0.0), g.const(LOWEST))

    def layer(self, i: int, hidden: str, cache: tuple[str, str] | None, cos: str, sin: str, mask: str) -> str:
        g, prefix = self.g, f"layers.{i}."
        normed = self.rms_norm(hidden, prefix + "input_norm")
        query = self.rotate(self.heads(normed, prefix + "q_proj", HEADS), cos, sin)
        key = self.rotate(self.heads(normed, prefix + "k_proj", KV_HEADS), cos, sin)
        value = self.heads(normed, prefix + "v_proj", KV_HEADS)
        if cache is not None:
            key, value = (g.op("Concat", old, new, axis=2) for old, new in zip(cache, (key, value)))
        self.presents += [(f"present_k_{i}", key), (f"present_v_{i}", value)]

        context = self.attend(query, self.repeat_group(key), self.repeat_group(value), mask)
        hidden = g.op("Add", hidden, self.linear(context, prefix + "o_proj", WIDTH, WIDTH, branch=True))
        return g.op("Add", hidden, self.swiglu(self.rms_norm(hidden, prefix + "post_norm"), prefix))

    def heads(self, value: str, name: str, count: int) -> str:
        """Project to `count` heads: [1, count, tokens, head width]."""
        g = self.g
        projected = self.linear(value, name, WIDTH, count * HEAD_WIDTH)
        split = g.op("Reshape", projected, self.shape_of_new(count, HEAD_WIDTH))
        return g.op("Transpose", split, perm=(0, 2, 1, 3))

    def rotate(self, value: str, cos: str, sin: str) -> str:
        """x * cos + rotate_half(x) * sin, where rotate_half((a, b)) = (-b, a)."""
        g, half = self.g, HEAD_WIDTH // 2
        front = g.op("Slice", value, g.ints(0), g.ints(half), g.ints(3), g.ints(1))
        back = g.op("Slice", value, g.ints(half), g.ints(np.iinfo(np.int64).max), g.ints(3), g.ints(1))
        turned = g.op("Concat", g.op("Neg", back), front, axis=-1)
        return g.op("Add", g.op("Mul", value, cos), g.op("Mul", turned, sin))

    def repeat_group(self, value: str) -> str:
        """[1, KV_HEADS, total, head] to [1, HEADS, total, head], each head repeated for the queries that share it."""
        g, group = self.g, HEADS // KV_HEADS
        wide = g.op("Unsqueeze", value, g.ints(2))
        if self.static:
            expanded = g.ints(self.batch, KV_HEADS, group, self.total, HEAD_WIDTH)
            merged = g.ints(self.batch, HEADS, self.total, HEAD_WIDTH)
        else:
            total = g.op("Unsqueeze", self.dim(value, 2), g.ints(0))
            expanded = g.op("Concat", g.ints(self.batch, KV_HEADS, group), total, g.ints(HEAD_WIDTH), axis=0)
            merged = g.op("Concat", g.ints(self.batch, HEADS), total, g.ints(HEAD_WIDTH), axis=0)
        return g.op("Reshape", g.op("Expand", wide, expanded), merged)

    def attend(self, query: str, key: str, value: str, mask: str) -> str:
        g = self.g
        scores = g.op("MatMul", query, g.op("Transpose", key, perm=(0, 1, 3, 2)))
        scores = g.op("Mul", scores, g.const(1 / math.sqrt(HEAD_WIDTH)))
        chances = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
        context = g.op("Transpose", g.op("MatMul", chances, value), perm=(0, 2, 1, 3))
        return g.op("Reshape", context, self.shape_of_new(WIDTH))

    def swiglu(self, value: str, prefix: str) -> str:
        g = self.g
        gate = self.linear(value, prefix + "gate_proj", WIDTH, HIDDEN)
        gate = g.op("Mul", gate, g.op("Sigmoid", gate))
        up = self.linear(value, prefix + "up_proj", WIDTH, HIDDEN)
        return self.linear(g.op("Mul", gate, up), prefix + "down_proj", HIDDEN, WIDTH, branch=True)

    def rms_norm(self, value: str, name: str) -> str:
        g = self.g
        scale = g.weight(f"{name}.weight", self.rng.uniform(0.8, 1.2, WIDTH).astype(np.float32))
        mean_square = g.op("ReduceMean", g.op("Pow", value, g.const(2.0)), axes=(-1,))
        inverse = g.op("Div", g.const(1.0), g.op("Sqrt", g.op("Add", mean_square, g.const(EPSILON))))
        return g.op("Mul", scale, g.op("Mul", value, inverse))

    def linear(self, value: str, name: str, n_in: int, n_out: int, *, branch: bool = False) -> str:
        """x @ W; the last product of a residual branch is scaled down, so that sums over layers stay of one size."""
        deviation = 1 / math.sqrt(n_in * (2 * LAYERS if branch else 1))
        return self.g.op("MatMul", value, self.normal(f"{name}.weight", (n_in, n_out), deviation))

    def shape_of_new(self, *last: int) -> str:
        """The shape (batch, tokens, *last); a symbolic count of tokens is inferred."""
        return self.g.ints(self.batch, self.tokens if self.static else -1, *last)

    def dim(self, value: str, axis: int) -> str:
        """The extent of `axis`, as a scalar."""
        return self.g.op("Gather", self.g.op("Shape", value), self.g.const(axis, np.int64), axis=0)

    def normal(self, name: str, shape: tuple[int, ...], deviation: float) -> str:
        return self.g.weight(name, self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation))
