"""Networks that a seed draws: image networks of the blocks that people build them of, in sizes that nothing was tuned for.

    python -m benchmarks.precision --models drawn_1 drawn_2 drawn_3
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx

from benchmarks.onnx_builder import F32, OnnxBuilder


class _Network:
    """A network on its way. A value is its name, its channels and its sides, height first; sides are those of the whole image at first."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.b = OnnxBuilder("drawn")
        self.count = 0
        self.activation: Callable[[str], str] = {
            "relu": lambda x: self.b.op("Relu", x),
            "relu6": lambda x: self.b.op("Clip", x, self.b.const(0.0), self.b.const(6.0)),
            "leaky": lambda x: self.b.op("LeakyRelu", x, alpha=0.1),
            "hard swish": lambda x: self.b.op("HardSwish", x),
            "swish": lambda x: self.b.op("Mul", x, self.b.op("Sigmoid", x)),
        }[rng.choice(["relu", "relu", "relu6", "leaky", "hard swish", "swish"])]

    def weights(self, *shape: int, gain: float = 1.4) -> str:
        """Drawn so that what is summed keeps its size."""
        self.count += 1
        fan_in = math.prod(shape[1:])
        return self.b.weight(f"w{self.count}", self.rng.normal(0, gain / math.sqrt(fan_in), shape).astype(np.float32))

    def conv(self, x: str, into: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, active: bool = True) -> str:
        """A convolution of what halves images to the even half, with a bias and, if it is active, a function."""
        weights = self.weights(out, into // groups, kernel, kernel, gain=1.4 if active else 0.7)
        bias = self.b.weight(f"b{self.count}", self.rng.normal(0, 0.1, out).astype(np.float32))
        pads = [kernel // 2] * 4
        y = self.b.op("Conv", x, weights, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=groups)
        return self.activation(y) if active else y

    def scaled(self, x: str, channels: int) -> str:
        """Squeeze and excitation."""
        few = max(8, channels // 8 // 4 * 4)
        mean = self.conv(self.b.op("GlobalAveragePool", x), channels, few)
        return self.b.op("Mul", x, self.b.op("HardSigmoid", self.conv(mean, few, channels, active=False)))

    # -- blocks: from `into` to `out` channels

    def residual(self, x: str, into: int, out: int, stride: int, inside: Callable[[], str]) -> str:
        y = inside()
        if into != out or stride > 1:
            x = self.conv(x, into, out, stride=stride, active=False)
        return self.activation(self.b.op("Add", x, y))

    def basic(self, x: str, into: int, out: int, stride: int) -> str:
        return self.residual(x, into, out, stride, lambda: self.conv(self.conv(x, into, out, 3, stride), out, out, 3, active=False))

    def bottleneck(self, x: str, into: int, out: int, stride: int, groups: int = 1) -> str:
        narrow = out // 2 if groups > 1 else max(8, out // 4)
        inside = lambda: self.conv(  # noqa: E731
            self.conv(self.conv(x, into, narrow), narrow, narrow, 3, stride, groups), narrow, out, active=False
        )
        return self.residual(x, into, out, stride, inside)

    def grouped(self, x: str, into: int, out: int, stride: int) -> str:
        return self.bottleneck(x, into, out, stride, groups=out // 2 // 8 if out % 16 == 0 else 1)

    def inverted(self, x: str, into: int, out: int, stride: int, kernel: int = 3, scales: bool = False) -> str:
        wide = 4 * into
        y = self.conv(self.conv(x, into, wide), wide, wide, kernel, stride, wide)
        y = self.conv(self.scaled(y, wide) if scales else y, wide, out, active=False)
        return self.b.op("Add", x, y) if into == out and stride == 1 else y

    def excited(self, x: str, into: int, out: int, stride: int) -> str:
        return self.inverted(x, into, out, stride, 5, scales=True)

    def large(self, x: str, into: int, out: int, stride: int) -> str:
        """A large depthwise kernel, and products of each pixel."""
        y = self.conv(x, into, into, 7, stride, into, active=False)
        y = self.conv(self.conv(y, into, 3 * out), 3 * out, out, active=False)
        return self.b.op("Add", x, y) if into == out and stride == 1 else y

    def joined(self, x: str, into: int, out: int, stride: int) -> str:
        """Kernels of several sizes and a pool side by side."""
        part = out // 4 // 4 * 4  # out is at least 16
        pool = self.b.op("MaxPool", x, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4)
        parts = [self.conv(x, into, part, stride=stride), self.conv(pool, into, part)]
        parts.append(self.conv(self.conv(x, into, part), part, part, 3, stride))
        parts.append(self.conv(self.conv(x, into, part // 2), part // 2, out - 3 * part, 5, stride))
        return self.b.op("Concat", *parts, axis=1)

    def split(self, x: str, into: int, out: int, stride: int) -> str:
        """Half of the channels pass by."""
        if stride > 1 or into != out:
            x = self.conv(x, into, out, 3, stride)
        left, right = self.b.ops("Split", 2, x, self.b.ints(out // 2, out - out // 2), axis=1)
        half = out - out // 2
        for _ in range(2):
            right = self.b.op("Add", right, self.conv(self.conv(right, half, half, 3), half, half, 3))
        return self.conv(self.b.op("Concat", left, right, axis=1), out, out)


BLOCKS = ("basic", "bottleneck", "grouped", "inverted", "excited", "large", "joined", "split")
"""The blocks, by their methods."""


def make_drawn(rng: np.random.Generator) -> onnx.ModelProto:
    """A network of three to five stages of one or two kinds of blocks, and a head: classes, an image, or a map of few channels."""
    n = _Network(rng)
    stages = int(rng.integers(3, 6))
    side = int(rng.choice([96, 128, 160, 192, 224]))
    kinds = list(rng.choice(BLOCKS, 2, replace=False))
    width = 8 * int(rng.integers(2, 6))
    image = n.b.input("image", F32, [1, 3, side, side])
    x, channels = n.conv(image, 3, width, int(rng.choice([3, 3, 7])), 2), width
    kept = [(x, channels)]
    for stage in range(stages):
        out = width + 8 * int(rng.integers(0, 2 + 2 * stage)) * (stage + 1)
        for number in range(int(rng.integers(1, 4))):
            stride = 2 if number == 0 and 0 < stage < 5 else 1
            x, channels = getattr(n, str(rng.choice(kinds)))(x, channels, out, stride), out
        kept.append((x, channels))
    head = str(rng.choice(["classes", "image", "map"]))
    if head == "classes":
        classes = int(rng.integers(10, 1200))
        pooled = n.b.op("Flatten", n.b.op("GlobalAveragePool", x))
        bias = n.b.weight("classes_bias", rng.normal(0, 0.1, classes).astype(np.float32))
        n.b.output(n.b.op("Gemm", pooled, n.weights(classes, channels), bias, transB=1), "classes", F32, [1, classes])
        return n.b.model()
    learned = bool(rng.integers(0, 2))
    for before, own in kept[-2:1:-1]:  # up to where the second stage halved the image
        if learned:
            up = n.b.op("ConvTranspose", x, n.b.weight(f"up_{own}_{before}", _upwards(rng, channels, own)), strides=[2, 2])
            channels = own
        else:
            exactly = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
            up = n.b.op("Resize", x, "", n.b.const([1.0, 1.0, 2.0, 2.0]), mode="nearest", **exactly)
        x, channels = n.conv(n.b.op("Concat", before, up, axis=1), own + channels, own, 3), own
    outputs = 1 if head == "image" else int(rng.integers(2, 30))
    n.b.output(n.conv(x, channels, outputs, active=False), "map", F32, [1, outputs, "h", "w"])
    return n.b.model()


def _upwards(rng: np.random.Generator, into: int, out: int) -> np.ndarray:
    return rng.normal(0, 1 / math.sqrt(into), (into, out, 2, 2)).astype(np.float32)
