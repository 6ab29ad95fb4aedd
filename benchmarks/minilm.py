"""all-MiniLM-L6-v2, a sentence encoder, as an ONNX graph around its published weights.

The graph is spelled as exporters spell it. The static build has its shapes folded in and uses `LayerNormalization`; the
symbolic one computes every shape from its inputs (Shape, Gather, Concat, Reshape) and writes layer normalisation as
ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add, as files of before opset 17 do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx

from benchmarks.onnx_builder import F32, I64, Dim, OnnxBuilder

VOCABULARY, LAYERS, WIDTH, HEADS, MAX_TOKENS = 30522, 6, 384, 12, 512
HEAD_WIDTH = WIDTH // HEADS
EPSILON = 1e-12
LOWEST = float(np.finfo(np.float32).min)


def make_minilm(weights: Mapping[str, np.ndarray], batch: Dim, tokens: Dim) -> onnx.ModelProto:
    """The encoder for `weights` as the checkpoint names them; a str as `batch` or `tokens` is a symbolic dim.

    Inputs input_ids, attention_mask, token_type_ids: int64[batch, tokens]. Outputs token_embeddings: float32[batch,
    tokens, 384], and sentence_embedding: float32[batch, 384], their mean over the attended tokens, of length 1.
    """
    return _Encoder(weights, batch, tokens).build()


class _Encoder:
    def __init__(self, weights: Mapping[str, np.ndarray], batch: Dim, tokens: Dim) -> None:
        self.weights = weights
        self.batch, self.tokens = batch, tokens
        self.static = isinstance(batch, int) and isinstance(tokens, int)
        self.g = OnnxBuilder("minilm_l6", opset=17 if self.static else 14)

    def build(self) -> onnx.ModelProto:
        g, shape = self.g, (self.batch, self.tokens)
        ids, mask, types = (g.input(n, I64, shape) for n in ("input_ids", "attention_mask", "token_type_ids"))

        hidden = self.embed(ids, types)
        penalty = self.penalty(mask)
        for i in range(LAYERS):
            hidden = self.layer(hidden, penalty, f"encoder.layer.{i}.")

        g.output(hidden, "token_embeddings", F32, (*shape, WIDTH))
        g.output(self.pool(hidden, mask), "sentence_embedding", F32, (self.batch, WIDTH))
        return g.model()

    def embed(self, ids: str, types: str) -> str:
        g, tables = self.g, "embeddings.{}_embeddings.weight"
        words = g.op("Gather", self.weight(tables.format("word")), ids)
        kinds = g.op("Gather", self.weight(tables.format("token_type")), types)
        places = g.op("Gather", self.weight(tables.format("position")), self.positions(ids))
        return self.layer_norm(g.op("Add", g.op("Add", words, kinds), places), "embeddings.LayerNorm.")

    def positions(self, ids: str) -> str:
        """0, 1, ..., tokens - 1 as int64[1, tokens], cut from the stored row of all positions."""
        g = self.g
        if self.static:
            return g.const(np.arange(self.tokens)[None], np.int64)
        row = g.weight("embeddings.position_ids", np.arange(MAX_TOKENS, dtype=np.int64)[None])
        end = g.op("Unsqueeze", self.dim(ids, 1), g.ints(0))
        return g.op("Slice", row, g.ints(0), end, g.ints(1), g.ints(1))

    def penalty(self, mask: str) -> str:
        """0 for attended tokens, the lowest float32 for others: float32[batch, 1, 1, tokens]."""
        g = self.g
        wide = g.op("Unsqueeze", g.op("Unsqueeze", mask, g.ints(1)), g.ints(2))
        return g.op("Mul", g.op("Sub", g.const(1.0), g.op("Cast", wide, to=F32)), g.const(LOWEST))

    def layer(self, hidden: str, penalty: str, prefix: str) -> str:
        g = self.g
        context = self.attend(hidden, penalty, prefix + "attention.self.")
        attended = self.linear(context, prefix + "attention.output.dense.")
        hidden = self.layer_norm(g.op("Add", attended, hidden), prefix + "attention.output.LayerNorm.")
        wide = self.gelu(self.linear(hidden, prefix + "intermediate.dense."))
        narrow = self.linear(wide, prefix + "output.dense.")
        return self.layer_norm(g.op("Add", narrow, hidden), prefix + "output.LayerNorm.")

    def attend(self, hidden: str, penalty: str, prefix: str) -> str:
        g = self.g
        query, key, value = (self.linear(hidden, f"{prefix}{name}.") for name in ("query", "key", "value"))
        query = g.op("Transpose", self.split_heads(query), perm=(0, 2, 1, 3))
        key = g.op("Transpose", self.split_heads(key), perm=(0, 2, 3, 1))
        value = g.op("Transpose", self.split_heads(value), perm=(0, 2, 1, 3))

        scores = g.op("Div", g.op("MatMul", query, key), g.const(math.sqrt(HEAD_WIDTH)))
        chances = g.op("Softmax", g.op("Add", scores, penalty), axis=-1)
        context = g.op("Transpose", g.op("MatMul", chances, value), perm=(0, 2, 1, 3))
        return g.op("Reshape", context, self.shape_like(context, WIDTH))

    def split_heads(self, value: str) -> str:
        return self.g.op("Reshape", value, self.shape_like(value, HEADS, HEAD_WIDTH))

    def shape_like(self, value: str, *last: int) -> str:
        """The shape (batch, tokens, *last), with the first two taken from `value` where they are symbolic."""
        g = self.g
        if self.static:
            return g.ints(self.batch, self.tokens, *last)
        leading = (g.op("Unsqueeze", self.dim(value, axis), g.ints(0)) for axis in (0, 1))
        return g.op("Concat", *leading, *(g.ints(n) for n in last), axis=0)

    def dim(self, value: str, axis: int) -> str:
        """The extent of `axis`, as a scalar."""
        return self.g.op("Gather", self.g.op("Shape", value), self.g.const(axis, np.int64), axis=0)

    def linear(self, value: str, prefix: str) -> str:
        """x @ W.T + b; exporters fold the transpose into the stored weight."""
        g = self.g
        product = g.op("MatMul", value, g.weight(prefix + "weight", self.weights[prefix + "weight"].T))
        return g.op("Add", self.weight(prefix + "bias"), product)

    def gelu(self, value: str) -> str:
        g = self.g
        bell = g.op("Add", g.op("Erf", g.op("Div", value, g.const(math.sqrt(2)))), g.const(1.0))
        return g.op("Mul", g.op("Mul", value, bell), g.const(0.5))

    def layer_norm(self, value: str, prefix: str) -> str:
        g = self.g
        scale, shift = self.weight(prefix + "weight"), self.weight(prefix + "bias")
        if self.static:
            return g.op("LayerNormalization", value, scale, shift, axis=-1, epsilon=EPSILON)
        centred = g.op("Sub", value, g.op("ReduceMean", value, axes=(-1,)))
        variance = g.op("ReduceMean", g.op("Pow", centred, g.const(2.0)), axes=(-1,))
        spread = g.op("Sqrt", g.op("Add", variance, g.const(EPSILON)))
        return g.op("Add", g.op("Mul", g.op("Div", centred, spread), scale), shift)

    def pool(self, hidden: str, mask: str) -> str:
        """The mean over attended tokens, scaled to length 1."""
        g = self.g
        keep = g.op("Expand", g.op("Unsqueeze", mask, g.ints(-1)), self.shape_like(hidden, WIDTH))
        keep = g.op("Cast", keep, to=F32)
        total = g.op("ReduceSum", g.op("Mul", hidden, keep), g.ints(1), keepdims=0)
        count = g.op("Clip", g.op("ReduceSum", keep, g.ints(1), keepdims=0), g.const(1e-9))
        mean = g.op("Div", total, count)
        length = g.op("ReduceL2", mean, axes=(1,), keepdims=1)
        return g.op("Div", mean, g.op("Clip", length, g.const(1e-12)))

    def weight(self, name: str) -> str:
        return self.g.weight(name, self.weights[name])
