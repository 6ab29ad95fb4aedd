"""Random networks in 16 bits against float64, element by element, within a bound that is computed beside them.

Each value carries what its element may be off by. With u the unit of the 16-bit float (2^-8 for bf16, 2^-11 for f16: half the distance of
neighbours) and v = 2^-24 that of f32, an operand a that may be off by A enters a product off by A' = A + u (|a| + A); a sum of k products
is off by sum (|a| B' + A' |b| + A' B') + (k + 2) v sum (|a| + A') (|b| + B'); functions pass on their steepest slope times A; and each
value that may be stored in 16 bits is off by u of itself more. What is smaller than a normal number may be flushed to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tests.draws import some_of

UNITS = {"bf16": 2.0**-8, "f16": 2.0**-11}
TINY = {"bf16": 2.0**-126, "f16": 2.0**-14}
V = 2.0**-24


@dataclass
class Value:
    """The name of a tensor, its elements in float64, and what each may be off by."""

    name: str
    exact: np.ndarray
    off: np.ndarray


class Net:
    def __init__(self, seed: int, precision: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.unit, self.tiny = UNITS[precision], TINY[precision]
        self.nodes: list[onnx.NodeProto] = []
        self.literals: list[onnx.TensorProto] = []
        self.inputs: dict[str, np.ndarray] = {}

    def input(self, *shape: int) -> Value:
        array = self.rng.standard_normal(shape).astype(np.float32)
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array
        return Value(name, array.astype(np.float64), np.zeros(shape))

    def literal(self, *shape: int, scale: float = 1.0) -> Value:
        array = (scale * self.rng.standard_normal(shape)).astype(np.float32)
        name = f"w{len(self.literals)}"
        self.literals.append(numpy_helper.from_array(array, name))
        return Value(name, array.astype(np.float64), np.zeros(shape))

    def op(self, kind: str, *args: Value, exact: np.ndarray, off: np.ndarray, **attrs: object) -> Value:
        """A node; its result may be stored in 16 bits."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [a.name for a in args], [name], name=name, **attrs))
        off = off + 8 * V * (np.abs(exact) + off)
        return Value(name, exact, off + self.unit * (np.abs(exact) + off) + self.tiny)

    def rounded(self, a: Value) -> np.ndarray:
        """What an operand of a product may be off by."""
        return a.off + self.unit * (np.abs(a.exact) + a.off) + self.tiny

    def matmul(self, a: Value, b: Value) -> Value:
        da, db, terms = self.rounded(a), self.rounded(b), a.exact.shape[-1]
        off = np.abs(a.exact) @ db + da @ np.abs(b.exact) + da @ db
        off = off + (terms + 2) * V * ((np.abs(a.exact) + da) @ (np.abs(b.exact) + db))
        return self.op("MatMul", a, b, exact=a.exact @ b.exact, off=off)

    def conv(self, x: Value, w: Value, groups: int) -> Value:
        dx, dw = self.rounded(x), self.rounded(w)
        ax, aw = np.abs(x.exact), np.abs(w.exact)
        terms = int(np.prod(w.exact.shape[1:]))
        off = convolve(ax, dw, groups) + convolve(dx, aw + dw, groups)
        off = off + (terms + 2) * V * convolve(ax + dx, aw + dw, groups)
        return self.op("Conv", x, w, exact=convolve(x.exact, w.exact, groups), off=off, pads=[1, 1, 1, 1], group=groups)

    def add(self, a: Value, b: Value) -> Value:
        return self.op("Add", a, b, exact=a.exact + b.exact, off=a.off + b.off)

    def mul(self, a: Value, b: Value) -> Value:
        off = np.abs(a.exact) * b.off + a.off * np.abs(b.exact) + a.off * b.off
        return self.op("Mul", a, b, exact=a.exact * b.exact, off=off)

    def unary(self, kind: str, a: Value) -> Value:
        exact, steepest = UNARY[kind](a.exact)
        return self.op(kind, a, exact=exact, off=steepest * a.off)

    def softmax(self, a: Value) -> Value:
        powers = np.exp(a.exact - a.exact.max(-1, keepdims=True))
        exact = powers / powers.sum(-1, keepdims=True)
        spread = np.minimum(2 * a.off.max(-1, keepdims=True), 50.0)
        return self.op("Softmax", a, exact=exact, off=np.minimum(exact * np.expm1(spread + 64 * V), 1.0), axis=-1)

    def transpose(self, a: Value) -> Value:
        perm = [*range(a.exact.ndim - 2), a.exact.ndim - 1, a.exact.ndim - 2]
        return self.op("Transpose", a, exact=a.exact.transpose(perm), off=a.off.transpose(perm), perm=perm)

    def check(self, result: Value, precision: str) -> float:
        """Compile and compare; the largest part of the bound that an element uses."""
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in self.inputs.items()]
        output = helper.make_tensor_value_info(result.name, TensorProto.FLOAT, result.exact.shape)
        graph = helper.make_graph(self.nodes, "net", values, [output], self.literals)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
        module = tc.compile(model, threads=1, precision=precision, calibration=self.inputs)
        assert any(each.computed == precision for each in module.report().precisions)
        found = module.run(self.inputs)[result.name].astype(np.float64)
        return float(np.max(np.abs(found - result.exact) / result.off))


def convolve(x: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    """[n, c, h, w] with [o, c / groups, 3, 3], one zero around."""
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    inner, outer = x.shape[1] // groups, w.shape[0] // groups
    parts = [
        np.einsum("nchwij,ocij->nohw", windows[:, g * inner : (g + 1) * inner], w[g * outer : (g + 1) * outer]) for g in range(groups)
    ]
    return np.concatenate(parts, 1)


UNARY = {
    "Relu": lambda x: (np.maximum(x, 0), 1.0),
    "Tanh": lambda x: (np.tanh(x), 1.0),
    "Sigmoid": lambda x: (0.5 + 0.5 * np.tanh(0.5 * x), 0.25),
    "Abs": lambda x: (np.abs(x), 1.0),
}
"""Functions with their steepest slopes."""


def random_matrices(net: Net) -> Value:
    rows, width = int(net.rng.integers(1, 20)), int(net.rng.integers(3, 70))
    kept = [net.input(rows, width)]
    for _ in range(int(net.rng.integers(4, 9))):
        x = kept[-1]
        step = net.rng.integers(7)
        if step < 3:
            columns = int(net.rng.integers(1, 70))
            x = net.matmul(x, net.literal(x.exact.shape[-1], columns, scale=x.exact.shape[-1] ** -0.5))
            x = net.add(x, net.literal(columns)) if net.rng.integers(2) else x
        elif step == 3:
            x = net.unary(str(net.rng.choice(list(UNARY))), x)
        elif step == 4:
            other = next((o for o in kept if o.exact.shape == x.exact.shape), x)
            x = net.add(x, other) if net.rng.integers(2) else net.mul(x, other)
        elif step == 5:
            x = net.softmax(x)
        else:
            x = net.matmul(net.transpose(x), x)
        kept.append(x)
    x = kept[-1]
    return net.matmul(x, net.literal(x.exact.shape[-1], 9, scale=0.1))


def random_images(net: Net) -> Value:
    channels = int(net.rng.integers(1, 40))
    kept = [net.input(1, channels, int(net.rng.integers(1, 9)), int(net.rng.integers(1, 9)))]
    for _ in range(int(net.rng.integers(2, 6))):
        x = kept[-1]
        channels = x.exact.shape[1]
        step = net.rng.integers(4)
        if step == 0:
            x = net.conv(x, net.literal(channels, 1, 3, 3, scale=0.3), channels)
        elif step == 1:
            other = next(o for o in kept if o.exact.shape == x.exact.shape)
            x = net.add(x, other)
        elif step == 2:
            x = net.unary(str(net.rng.choice(list(UNARY))), x)
        else:
            x = net.conv(x, net.literal(int(net.rng.integers(1, 40)), channels, 3, 3, scale=(9 * channels) ** -0.5), 1)
        kept.append(x)
    return net.conv(kept[-1], net.literal(7, kept[-1].exact.shape[1], 3, 3, scale=0.1), 1)


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["bf16", "f16"])
@pytest.mark.parametrize("seed", some_of(range(6), quick=range(3)))
def test_networks_of_matrices_are_within_their_bounds(seed: int, precision: str) -> None:
    net = Net(seed, precision)

    assert net.check(random_matrices(net), precision) <= 1.0


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["bf16", "f16"])
@pytest.mark.parametrize("seed", some_of(range(6), quick=range(3)))
def test_networks_of_images_are_within_their_bounds(seed: int, precision: str) -> None:
    net = Net(seed + 100, precision)

    assert net.check(random_images(net), precision) <= 1.0


def product_of(w: np.ndarray, rows: int) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, w.shape[0]))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (rows, w.shape[1]))],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_infinities_nan_zeros_and_denormals_have_a_meaning(rows: int) -> None:
    """Infinities and NaN as in f32; -0 stays; what is below the normal numbers counts as it is or as zero."""
    w = np.zeros((32, 32), np.float32)
    np.fill_diagonal(w, 1.0)
    x = np.zeros((rows, 32), np.float32)
    x[0, :4] = [1.0, -2.0, 3.0, 2.0**-130]

    result = tc.compile(product_of(w, rows), threads=1, precision="bf16").run({"x": x})["y"]

    assert result[0, :3].tolist() == [1.0, -2.0, 3.0] and result[0, 3] in (0.0, np.float32(2.0**-130))
    assert not result[0, 4:].any()

    x[0, :2] = [np.inf, np.nan]
    spoiled = tc.compile(product_of(w, rows), threads=1, precision="bf16").run({"x": x})["y"]

    assert np.isnan(spoiled[0]).all() and (rows == 1 or not spoiled[1:].any())


def test_numbers_that_round_to_infinity_do_so_as_the_format_says() -> None:
    """The largest f32 is none of bf16: as an input it becomes infinite, as in every conversion to it."""
    w = np.eye(16, dtype=np.float32)[:, :16]
    x = np.zeros((2, 16), np.float32)
    x[0, 0], x[1, 0] = np.finfo(np.float32).max, 3.0e38

    result = tc.compile(product_of(w, 2), threads=1, precision="bf16").run({"x": x})["y"]

    assert result[0, 0] == np.inf and abs(result[1, 0] / 3.0e38 - 1) < 2.0**-8
