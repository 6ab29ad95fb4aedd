"""Train the convolutional network that `tc demo` reads digits with, and write it as an ONNX file.

    python scripts/train_digits.py            writes tc/demo/digits.onnx and tc/demo/digits_heldout.npz

Data: the 1,797 handwritten 8x8 digits that scikit-learn ships. A seeded permutation puts 360 of them (20%) aside; they
take no part in training, and nothing is chosen by looking at them: the number of epochs is fixed beforehand and the
last weights are the ones that are kept. The script fails if fewer than 98% of the held-out digits are read right.

Everything is numpy and seeded, so a second run on the same machine writes the same files. It takes some ten seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

SEED = 7
HELD_OUT = 360
EPOCHS = 30
BATCH = 64
LEARNING_RATE = 4e-3
WEIGHT_DECAY = 1e-3
EPSILON = 1e-5
REQUIRED_ACCURACY = 0.98
OPSET = 17
FOLDER = Path(__file__).parent.parent / "tc" / "demo"

Array = np.ndarray


@dataclass
class Parameter:
    """A trained array, its gradient, and the two running moments of Adam."""

    value: Array
    decays: bool = False
    gradient: Array = field(init=False)
    mean: Array = field(init=False)
    square: Array = field(init=False)

    def __post_init__(self) -> None:
        self.value = self.value.astype(np.float32)
        self.gradient = np.zeros_like(self.value)
        self.mean = np.zeros_like(self.value)
        self.square = np.zeros_like(self.value)


class Conv:
    """3x3 convolution without bias, stride 1, padding 1, on float32[n, c, h, w]."""

    def __init__(self, channels_in: int, channels_out: int, rng: np.random.Generator) -> None:
        scale = np.sqrt(2 / (channels_in * 9))
        self.weight = Parameter(rng.normal(0, scale, (channels_out, channels_in, 3, 3)), decays=True)
        self.parameters = [self.weight]

    def forward(self, x: Array, training: bool) -> Array:
        windows = np.lib.stride_tricks.sliding_window_view(pad(x), (3, 3), axis=(2, 3))
        n, c, h, w = x.shape
        self.columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c * 9)
        self.shape = x.shape
        y = self.columns @ self.weight.value.reshape(-1, c * 9).T
        return y.reshape(n, h, w, -1).transpose(0, 3, 1, 2)

    def backward(self, dy: Array) -> Array:
        n, c, h, w = self.shape
        rows = dy.transpose(0, 2, 3, 1).reshape(n * h * w, -1)
        self.weight.gradient = (rows.T @ self.columns).reshape(self.weight.value.shape)
        columns = (rows @ self.weight.value.reshape(-1, c * 9)).reshape(n, h, w, c, 3, 3)
        dx = np.zeros((n, c, h + 2, w + 2), np.float32)
        for i in range(3):
            for j in range(3):
                dx[:, :, i : i + h, j : j + w] += columns[..., i, j].transpose(0, 3, 1, 2)
        return dx[:, :, 1:-1, 1:-1]


class BatchNorm:
    """Normalise each channel over batch and space; running statistics for use after training."""

    def __init__(self, channels: int) -> None:
        self.scale, self.shift = Parameter(np.ones(channels)), Parameter(np.zeros(channels))
        self.parameters = [self.scale, self.shift]
        self.mean = np.zeros(channels, np.float32)
        self.variance = np.ones(channels, np.float32)

    def forward(self, x: Array, training: bool) -> Array:
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
            self.mean += 0.1 * (mean - self.mean)
            self.variance += 0.1 * (variance - self.variance)
        self.deviation = np.sqrt(variance + EPSILON)
        self.normal = (x - per_channel(mean)) / per_channel(self.deviation)
        return self.normal * per_channel(self.scale.value) + per_channel(self.shift.value)

    def backward(self, dy: Array) -> Array:
        self.shift.gradient = dy.sum((0, 2, 3))
        self.scale.gradient = (dy * self.normal).sum((0, 2, 3))
        count = dy.size / dy.shape[1]
        centred = dy - per_channel(self.shift.gradient) / count - self.normal * per_channel(self.scale.gradient) / count
        return centred * per_channel(self.scale.value / self.deviation)


class Relu:
    parameters: tuple[Parameter, ...] = ()

    def forward(self, x: Array, training: bool) -> Array:
        self.positive = x > 0
        return x * self.positive

    def backward(self, dy: Array) -> Array:
        return dy * self.positive


class MaxPool:
    """2x2 maximum with stride 2. Equal maxima share the gradient."""

    parameters: tuple[Parameter, ...] = ()

    def forward(self, x: Array, training: bool) -> Array:
        n, c, h, w = x.shape
        tiles = x.reshape(n, c, h // 2, 2, w // 2, 2)
        y = tiles.max((3, 5))
        chosen = tiles == y[:, :, :, None, :, None]
        self.share = chosen / chosen.sum((3, 5), keepdims=True)
        return y

    def backward(self, dy: Array) -> Array:
        n, c, h, w = dy.shape
        return (self.share * dy[:, :, :, None, :, None]).reshape(n, c, h * 2, w * 2).astype(np.float32)


class Dense:
    """y = flatten(x) W + b."""

    def __init__(self, features_in: int, features_out: int, rng: np.random.Generator) -> None:
        weight = rng.normal(0, np.sqrt(1 / features_in), (features_in, features_out))
        self.weight, self.bias = Parameter(weight, decays=True), Parameter(np.zeros(features_out))
        self.parameters = [self.weight, self.bias]

    def forward(self, x: Array, training: bool) -> Array:
        self.shape, self.rows = x.shape, x.reshape(len(x), -1)
        return self.rows @ self.weight.value + self.bias.value

    def backward(self, dy: Array) -> Array:
        self.weight.gradient, self.bias.gradient = self.rows.T @ dy, dy.sum(0)
        return (dy @ self.weight.value.T).reshape(self.shape)


class Residual:
    """x + inner(x)."""

    def __init__(self, *inner: Conv | BatchNorm | Relu) -> None:
        self.inner = inner
        self.parameters = [parameter for layer in inner for parameter in layer.parameters]

    def forward(self, x: Array, training: bool) -> Array:
        y = x
        for layer in self.inner:
            y = layer.forward(y, training)
        return x + y

    def backward(self, dy: Array) -> Array:
        dx = dy
        for layer in reversed(self.inner):
            dx = layer.backward(dx)
        return dy + dx


Layer = Conv | BatchNorm | Relu | MaxPool | Dense | Residual


def make_network(rng: np.random.Generator) -> list[Layer]:
    """1x8x8 -> 16x8x8 -> residual block -> pooled 16x4x4 -> 32x4x4 -> 10 scores."""
    return [
        Conv(1, 16, rng), BatchNorm(16), Relu(),
        Residual(Conv(16, 16, rng), BatchNorm(16), Relu(), Conv(16, 16, rng), BatchNorm(16)), Relu(),
        MaxPool(),
        Conv(16, 32, rng), BatchNorm(32), Relu(),
        Dense(32 * 4 * 4, 10, rng),
    ]  # fmt: skip


def pad(x: Array) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))


def per_channel(vector: Array) -> Array:
    return vector.astype(np.float32)[None, :, None, None]


def forward(network: list[Layer], x: Array, *, training: bool = False) -> Array:
    for layer in network:
        x = layer.forward(x, training)
    return x


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def accuracy(network: list[Layer], images: Array, labels: Array) -> float:
    return float((forward(network, images).argmax(1) == labels).mean())


def shifted(images: Array, rng: np.random.Generator) -> Array:
    """Each image moved by -1, 0 or 1 pixels along each axis; what comes in is background."""
    padded = pad(images)
    offsets = rng.integers(0, 3, (len(images), 2))
    return np.stack([image[:, i : i + 8, j : j + 8] for image, (i, j) in zip(padded, offsets)])


def batches(count: int, rng: np.random.Generator) -> Iterator[Array]:
    order = rng.permutation(count)
    return (order[start : start + BATCH] for start in range(0, count, BATCH))


def adam_step(parameters: list[Parameter], step: int, learning_rate: float) -> None:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
    for p in parameters:
        p.mean = 0.9 * p.mean + 0.1 * p.gradient
        p.square = 0.99 * p.square + 0.01 * p.gradient**2
        mean, square = p.mean / (1 - 0.9**step), p.square / (1 - 0.99**step)
        decay = WEIGHT_DECAY * p.value if p.decays else 0
        p.value = (p.value - learning_rate * (mean / (np.sqrt(square) + 1e-8) + decay)).astype(np.float32)


def train(network: list[Layer], images: Array, labels: Array, rng: np.random.Generator) -> None:
    parameters = [parameter for layer in network for parameter in layer.parameters]
    steps = EPOCHS * -(-len(images) // BATCH)
    step = 0
    for epoch in range(EPOCHS):
        losses = []
        for chosen in batches(len(images), rng):
            x, y = shifted(images[chosen], rng), labels[chosen]
            probability = softmax(forward(network, x, training=True))
            losses.append(-np.log(probability[np.arange(len(y)), y] + 1e-12).mean())
            gradient = (probability - np.eye(10, dtype=np.float32)[y]) / len(y)
            for layer in reversed(network):
                gradient = layer.backward(gradient)
            step += 1
            adam_step(parameters, step, LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * step / steps)))
        print(f"epoch {epoch + 1:2}/{EPOCHS}  loss {np.mean(losses):.4f}", flush=True)


class Exporter:
    """Collects ONNX nodes and weights, one chain of layers at a time."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, name: str, value: Array) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))
        return name

    def node(self, op_type: str, *inputs: str, **attributes: object) -> str:
        name = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name=name, **attributes))
        return name

    def layer(self, layer: Layer, x: str) -> str:
        at = len(self.nodes)
        match layer:
            case Conv(weight=weight):
                return self.node("Conv", x, self.constant(f"w_{at}", weight.value), kernel_shape=[3, 3], pads=[1] * 4)
            case BatchNorm(scale=scale, shift=shift, mean=mean, variance=variance):
                facts = {"scale": scale.value, "shift": shift.value, "mean": mean, "variance": variance}
                names = [self.constant(f"{name}_{at}", value) for name, value in facts.items()]
                return self.node("BatchNormalization", x, *names, epsilon=EPSILON)
            case Relu():
                return self.node("Relu", x)
            case MaxPool():
                return self.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
            case Dense(weight=weight, bias=bias):
                parameters = self.constant(f"w_{at}", weight.value), self.constant(f"b_{at}", bias.value)
                return self.node("Gemm", self.node("Flatten", x), *parameters)
            case Residual(inner=inner):
                y = x
                for part in inner:
                    y = self.layer(part, y)
                return self.node("Add", x, y)
        raise TypeError(f"no ONNX form of {layer}")


def to_onnx(network: list[Layer]) -> onnx.ModelProto:
    """The trained network from raw pixels, float32[batch, 1, 8, 8] in 0..16, to probabilities, float32[batch, 10]."""
    exporter = Exporter()
    value = exporter.node("Mul", "image", exporter.constant("pixel_scale", np.array(1 / 16)))
    for layer in network:
        value = exporter.layer(layer, value)
    exporter.nodes.append(helper.make_node("Softmax", [value], ["probability"], name="softmax", axis=1))
    graph = helper.make_graph(
        exporter.nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["batch", 10])],
        exporter.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="tc")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the network of `tc demo` and write it as ONNX.")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder to write to (default: tc/demo)")
    output = parser.parse_args().output

    rng = np.random.default_rng(SEED)
    digits = load_digits()
    order = rng.permutation(len(digits.images))
    pixels, labels = digits.images[order].astype(np.uint8), digits.target[order].astype(np.uint8)
    images = pixels[:, None].astype(np.float32) / 16

    network = make_network(rng)
    train(network, images[:-HELD_OUT], labels[:-HELD_OUT], rng)
    reached = accuracy(network, images[-HELD_OUT:], labels[-HELD_OUT:])
    print(f"held-out accuracy {reached:.2%} on {HELD_OUT} digits")
    if reached < REQUIRED_ACCURACY:
        raise SystemExit(f"held-out accuracy is below {REQUIRED_ACCURACY:.0%}; nothing written")

    output.mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(network), output / "digits.onnx")
    np.savez_compressed(output / "digits_heldout.npz", images=pixels[-HELD_OUT:], labels=labels[-HELD_OUT:])


if __name__ == "__main__":
    main()
