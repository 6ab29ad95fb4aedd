"""A small image network with one of each block that quantized networks have, in sizes that tests get through at once."""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.onnx_builder import F32, OnnxBuilder


def make_blocks(rng: np.random.Generator, size: int = 24) -> onnx.ModelProto:
    """A network for x: float32[1, 3, size, size]: three channels, a depthwise and a grouped convolution, a residual sum, channels put
    together and cut apart, pools, resizing, swish, gates, a transposed convolution, and a product at the end. Channels are no
    multiples of a vector. `size` is a multiple of 8."""
    return _Blocks(rng).build(size)


class _Blocks:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.g = OnnxBuilder("blocks")
        self.convolutions = 0

    def build(self, size: int) -> onnx.ModelProto:
        g = self.g
        value = g.op("Relu", self.conv(g.input("x", F32, (1, 3, size, size)), 3, 18, kernel=3, stride=2))
        inner = g.op("Clip", self.conv(value, 18, 18, kernel=3, group=18), g.const(0.0), g.const(6.0))
        value = g.op("Add", value, self.conv(inner, 18, 18))
        value = g.op("Concat", value, self.swish(self.conv(value, 18, 10, kernel=5)), axis=1)
        pooled = g.op("MaxPool", value, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
        averaged = g.op("AveragePool", value, kernel_shape=(2, 2), strides=(2, 2))
        value = self.conv(g.op("Add", pooled, averaged), 28, 24, kernel=3, group=4)
        gates = self.conv(g.op("GlobalAveragePool", value), 24, 24)
        value = g.op("Mul", value, g.op("HardSigmoid", gates, alpha=0.2, beta=0.5))
        left, right = g.ops("Split", 2, value, g.ints(8, 16), axis=1)
        wide = g.op(
            "Resize",
            left,
            "",
            g.const((1.0, 1.0, 2.0, 2.0)),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        weight = g.weight("transposed.weight", self.normal((16, 12, 2, 2), 0.15))
        right = g.op("ConvTranspose", right, weight, kernel_shape=(2, 2), strides=(2, 2))
        value = g.op("Concat", wide, g.op("LeakyRelu", right, alpha=0.1), axis=1)
        rows = g.op("Transpose", g.op("Reshape", value, g.ints(1, 20, -1)), perm=(0, 2, 1))
        rows = g.op(
            "Add",
            g.op("MatMul", rows, g.weight("rows.weight", self.normal((20, 7), 0.2))),
            g.weight("rows.bias", self.normal((7,), 0.1)),
        )
        scores = g.op("MatMul", rows, g.op("Transpose", rows, perm=(0, 2, 1)))
        value = g.op("MatMul", g.op("Softmax", scores, axis=-1), rows)
        flat = g.op("Flatten", value, axis=1)
        weight = g.weight("classifier.weight", self.normal((10, size * size // 4 * 7), 0.05))
        g.output(
            g.op("Gemm", flat, weight, g.weight("classifier.bias", self.normal((10,), 0.1)), transB=1),
            "y",
            F32,
            (1, 10),
        )
        return g.model()

    def conv(self, value: str, channels: int, width: int, kernel: int = 1, stride: int = 1, group: int = 1) -> str:
        self.convolutions += 1
        name = f"conv{self.convolutions}"
        fan_in = channels // group * kernel * kernel
        weight = self.g.weight(
            f"{name}.weight", self.normal((width, channels // group, kernel, kernel), 1.2 * fan_in**-0.5)
        )
        bias = self.g.weight(f"{name}.bias", self.normal((width,), 0.1))
        pads = ((kernel - 1) // 2,) * 4
        return self.g.op(
            "Conv", value, weight, bias, kernel_shape=(kernel, kernel), strides=(stride, stride), pads=pads, group=group
        )

    def swish(self, value: str) -> str:
        return self.g.op("Mul", value, self.g.op("Sigmoid", value))

    def normal(self, shape: tuple[int, ...], deviation: float) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
