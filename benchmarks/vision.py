"""Two image classifiers of usual make with seeded weights: one in the style of MobileNetV2, one of ViT-Tiny."""

from __future__ import annotations

import math

import numpy as np
import onnx

from benchmarks.light import RELU_GAIN
from benchmarks.onnx_builder import F32, OnnxBuilder

CLASSES = 1000

# Expansion of the width, output channels, number of blocks, stride of the first block: Sandler et al. 2018, table 2.
MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

PATCH, VIT_WIDTH, VIT_LAYERS, VIT_HEADS = 16, 192, 12, 3


def make_mobilenet_v2(rng: np.random.Generator, size: int = 224) -> onnx.ModelProto:
    """MobileNetV2 for x: float32[1, 3, size, size]: inverted residuals, batch norm folded away, ReLU6 as Clip."""
    return _MobileNet(rng).build(size)


class _MobileNet:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.g = OnnxBuilder("mobilenet_v2", opset=13)

    def build(self, size: int) -> onnx.ModelProto:
        g = self.g
        value = g.input("x", F32, (1, 3, size, size))
        value = self.relu6(self.conv(value, "stem", 3, 32, kernel=3, stride=2))
        channels, number = 32, 0
        for expansion, width, blocks, stride in MOBILENET_STAGES:
            for block in range(blocks):
                value = self.block(value, f"block{number}", channels, expansion, width, stride if block == 0 else 1)
                channels, number = width, number + 1
        value = self.relu6(self.conv(value, "head", channels, 1280))

        pooled = g.op("Flatten", g.op("GlobalAveragePool", value), axis=1)
        weight = g.weight("classifier.weight", centred(self.normal((CLASSES, 1280), 2 / math.sqrt(1280))))
        bias = g.weight("classifier.bias", self.normal((CLASSES,), 0.1))
        g.output(g.op("Gemm", pooled, weight, bias, transB=1), "logits", F32, (1, CLASSES))
        return g.model()

    def block(self, value: str, name: str, channels: int, expansion: int, width: int, stride: int) -> str:
        hidden, inner = channels * expansion, value
        if expansion > 1:
            inner = self.relu6(self.conv(inner, f"{name}.expand", channels, hidden))
        inner = self.relu6(self.conv(inner, f"{name}.depthwise", hidden, hidden, 3, stride, group=hidden))
        inner = self.conv(inner, f"{name}.project", hidden, width)
        keeps_shape = stride == 1 and channels == width
        return self.g.op("Add", value, inner) if keeps_shape else inner

    def conv(
        self, value: str, name: str, channels: int, width: int, kernel: int = 1, stride: int = 1, group: int = 1
    ) -> str:
        """A convolution with bias. Weights keep the variance, of rectified values where it follows a ReLU6."""
        fan_in = channels // group * kernel * kernel
        gain = RELU_GAIN if name.endswith(("depthwise", "project")) else 1.0
        filters = self.normal((width, channels // group, kernel, kernel), gain * fan_in**-0.5)
        if name.endswith("project"):
            filters = centred(filters)
        weight = self.g.weight(f"{name}.weight", filters)
        bias = self.g.weight(f"{name}.bias", self.normal((width,), 0.1))
        pad = (kernel - 1) // 2
        return self.g.op(
            "Conv", value, weight, bias, kernel_shape=(kernel, kernel), strides=(stride, stride), pads=(pad,) * 4,
            dilations=(1, 1), group=group,
        )  # fmt: skip

    def relu6(self, value: str) -> str:
        return self.g.op("Clip", value, self.g.const(0.0), self.g.const(6.0))

    def normal(self, shape: tuple[int, ...], deviation: float) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)


def centred(filters: np.ndarray) -> np.ndarray:
    """Filters whose weights sum to 0: they take the mean out of rectified values, so that inputs stay apart."""
    return filters - filters.mean(axis=1, keepdims=True)


def make_vit_tiny(rng: np.random.Generator, size: int = 224, batch: int = 1) -> onnx.ModelProto:
    """A vision transformer for x: float32[batch, 3, size, size]: 16² patches, a class token, 12 layers, a classifier."""
    return _VisionTransformer(rng, size, batch).build()


class _VisionTransformer:
    def __init__(self, rng: np.random.Generator, size: int, batch: int) -> None:
        self.rng = rng
        self.size = size
        self.batch = batch
        self.tokens = (size // PATCH) ** 2 + 1
        self.g = OnnxBuilder("vit_tiny", opset=17)

    def build(self) -> onnx.ModelProto:
        g = self.g
        hidden = self.embed(g.input("x", F32, (self.batch, 3, self.size, self.size)))
        for i in range(VIT_LAYERS):
            hidden = self.layer(hidden, f"blocks.{i}.")
        hidden = self.layer_norm(hidden, "norm")

        token = g.op("Gather", hidden, g.const(0, np.int64), axis=1)
        weight = self.weight("head.weight", (CLASSES, VIT_WIDTH), VIT_WIDTH**-0.5)
        logits = g.op("Gemm", token, weight, self.weight("head.bias", (CLASSES,), 0.1), transB=1)
        g.output(logits, "logits", F32, (self.batch, CLASSES))
        return g.model()

    def embed(self, image: str) -> str:
        g = self.g
        weight = self.weight("patch.weight", (VIT_WIDTH, 3, PATCH, PATCH), (3 * PATCH * PATCH) ** -0.5)
        bias = self.weight("patch.bias", (VIT_WIDTH,), 0.1)
        patches = g.op("Conv", image, weight, bias, kernel_shape=(PATCH, PATCH), strides=(PATCH, PATCH))
        patches = g.op("Transpose", g.op("Reshape", patches, g.ints(self.batch, VIT_WIDTH, -1)), perm=(0, 2, 1))
        token = self.rng.standard_normal((1, 1, VIT_WIDTH), dtype=np.float32) * np.float32(0.3)
        tokens = g.op("Concat", g.weight("class_token", np.repeat(token, self.batch, axis=0)), patches, axis=1)
        return g.op("Add", tokens, self.weight("positions", (1, self.tokens, VIT_WIDTH), 0.3))

    def layer(self, hidden: str, prefix: str) -> str:
        g = self.g
        hidden = g.op("Add", hidden, self.attend(self.layer_norm(hidden, prefix + "norm1"), prefix + "attn."))
        wide = self.linear(self.layer_norm(hidden, prefix + "norm2"), prefix + "mlp.fc1", VIT_WIDTH, 4 * VIT_WIDTH)
        bell = g.op("Add", g.op("Erf", g.op("Div", wide, g.const(math.sqrt(2)))), g.const(1.0))
        wide = g.op("Mul", g.op("Mul", wide, bell), g.const(0.5))
        return g.op("Add", hidden, self.linear(wide, prefix + "mlp.fc2", 4 * VIT_WIDTH, VIT_WIDTH))

    def attend(self, value: str, prefix: str) -> str:
        """Self-attention with one product for queries, keys and values: [1, tokens, 3, heads, head width], split."""
        g, head = self.g, VIT_WIDTH // VIT_HEADS
        joint = self.linear(value, prefix + "qkv", VIT_WIDTH, 3 * VIT_WIDTH, gain=2.0)
        joint = g.op("Reshape", joint, g.ints(self.batch, self.tokens, 3, VIT_HEADS, head))
        parts = g.ops("Split", 3, g.op("Transpose", joint, perm=(2, 0, 3, 1, 4)), g.ints(1, 1, 1), axis=0)
        query, key, values = (g.op("Squeeze", part, g.ints(0)) for part in parts)

        query = g.op("Mul", query, g.const(head**-0.5))
        chances = g.op("Softmax", g.op("MatMul", query, g.op("Transpose", key, perm=(0, 1, 3, 2))), axis=-1)
        context = g.op("Transpose", g.op("MatMul", chances, values), perm=(0, 2, 1, 3))
        merged = g.op("Reshape", context, g.ints(self.batch, self.tokens, VIT_WIDTH))
        return self.linear(merged, prefix + "proj", VIT_WIDTH, VIT_WIDTH)

    def linear(self, value: str, name: str, n_in: int, n_out: int, gain: float = 1.0) -> str:
        product = self.g.op("MatMul", value, self.weight(f"{name}.weight", (n_in, n_out), gain * n_in**-0.5))
        return self.g.op("Add", product, self.weight(f"{name}.bias", (n_out,), 0.1))

    def layer_norm(self, value: str, name: str) -> str:
        scale = self.g.weight(f"{name}.weight", self.rng.uniform(0.8, 1.2, VIT_WIDTH).astype(np.float32))
        shift = self.weight(f"{name}.bias", (VIT_WIDTH,), 0.1)
        return self.g.op("LayerNormalization", value, scale, shift, axis=-1, epsilon=1e-6)

    def weight(self, name: str, shape: tuple[int, ...], deviation: float) -> str:
        return self.g.weight(name, self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation))
