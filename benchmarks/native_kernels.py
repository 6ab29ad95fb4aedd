"""Operators beyond products and convolutions, three sizes of each: what `kernel_tables native` measures beside the peers.

A seed draws sizes around those three, so that nothing can be made for them. Attributes and what must be small stay.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.products import node

Arrays = dict[str, np.ndarray]
Outputs = Callable[[], Sequence[np.ndarray]]
Random = np.random.Generator


@dataclass(frozen=True)
class Graph:
    """Nodes whose last has the result y, inputs, literals. `touched`: bytes that must move at least, where memory is the limit."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Arrays
    literals: Arrays
    opset: int = 20
    touched: int = 0


Builder = Callable[..., Graph]


@dataclass(frozen=True)
class Kernel:
    """An operator: how a graph is made of sizes, three tuples of sizes; `library`: calls of numpy or torch that do the same.

    `exact`: what it should give, where onnxruntime gives something else.
    """

    name: str
    build: Builder
    sizes: Sequence[tuple[int, ...]]
    library: Callable[[Arrays], Mapping[str, Outputs]] | None = None
    exact: Callable[[Graph], Sequence[np.ndarray]] | None = None


def _floats(rng: Random, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _one(op: str, inputs: Arrays, literals: Arrays | None = None, *, opset: int = 20, touched: int = 0, **attrs: object) -> Graph:
    """A single node of all inputs and literals, in that order."""
    literals = literals or {}
    return Graph([node(op, [*inputs, *literals], "y", **attrs)], inputs, literals, opset, touched)


# -- order and selection


def topk(k: int, axis: int) -> Builder:
    return lambda rng, *shape: Graph(
        [helper.make_node("TopK", ["x", "k"], ["y", "places"], axis=axis)],
        {"x": _floats(rng, *shape)},
        {"k": _ints(min(k, shape[axis]))},
    )


def _topk_libraries(k: int, axis: int) -> Callable[[Arrays], Mapping[str, Outputs]]:
    def libraries(arrays: Arrays) -> Mapping[str, Outputs]:
        import torch

        x = torch.from_numpy(arrays["x"])
        return {"torch": lambda: [each.numpy() for each in torch.topk(x, min(k, x.shape[axis]), axis)]}

    return libraries


def sort(rng: Random, *shape: int) -> Graph:
    """All of a row in order: numbers without their places."""
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "places"], largest=0)]
    return Graph(nodes, {"x": _floats(rng, *shape)}, {"k": _ints(shape[-1])})


def _sort_libraries(arrays: Arrays) -> Mapping[str, Outputs]:
    import torch

    x = torch.from_numpy(arrays["x"])

    def by_numpy() -> list[np.ndarray]:
        places = np.argsort(arrays["x"], axis=-1)
        return [np.take_along_axis(arrays["x"], places, -1), places]

    return {"numpy": by_numpy, "torch": lambda: [each.numpy() for each in torch.sort(x)]}


def nonzero(rng: Random, *shape: int) -> Graph:
    x = (rng.random(shape) < 0.3).astype(np.float32)
    return _one("NonZero", {"x": x}, touched=x.nbytes + 8 * x.ndim * int(x.sum()))


def compress(rng: Random, rows: int, columns: int) -> Graph:
    x, kept = _floats(rng, rows, columns), rng.random(rows) < 0.5
    return _one("Compress", {"x": x, "kept": kept}, axis=0, touched=x.nbytes // 2 * 2)


def unique(rng: Random, count: int) -> Graph:
    return _one("Unique", {"x": rng.integers(0, count // 4, count)})


def suppression(rng: Random, boxes: int) -> Graph:
    corners = rng.uniform(0, 600, (1, boxes, 2))
    sides = rng.uniform(8, 120, (1, boxes, 2))
    inputs = {"boxes": np.concatenate([corners, corners + sides], 2).astype(np.float32)}
    inputs |= {"scores": rng.random((1, 1, boxes), dtype=np.float32)}
    literals = {"most": _ints(300), "overlap": np.array([0.45], np.float32), "least": np.array([0.25], np.float32)}
    return _one("NonMaxSuppression", inputs, literals)


def arg(op: str, axis: int = -1) -> Builder:
    def build(rng: Random, *shape: int) -> Graph:
        x = _floats(rng, *shape)
        return _one(op, {"x": x}, axis=axis, keepdims=0, touched=x.nbytes)

    return build


# -- places that data tell


def gather_elements(rng: Random, rows: int, columns: int) -> Graph:
    x, places = _floats(rng, rows, columns), rng.integers(0, columns, (rows, columns))
    return _one("GatherElements", {"x": x, "i": places}, axis=1, touched=2 * x.nbytes + places.nbytes)


def scatter(reduction: str) -> Builder:
    def build(rng: Random, rows: int, width: int) -> Graph:
        inputs = {"x": _floats(rng, rows, width), "i": rng.integers(0, rows, (rows // 2, 1)), "v": _floats(rng, rows // 2, width)}
        return _one("ScatterND", inputs, reduction=reduction, touched=2 * inputs["x"].nbytes + 3 * inputs["v"].nbytes)

    return build


def tensor_scatter(rng: Random, batch: int, length: int, width: int) -> Graph:
    inputs = {"past": _floats(rng, batch, 8, length, width), "new": _floats(rng, batch, 8, 4, width)}
    inputs["at"] = rng.integers(0, length - 4, batch)
    return _one("TensorScatter", inputs, opset=24, touched=2 * inputs["past"].nbytes)


def reverse_sequence(rng: Random, length: int, batch: int, width: int) -> Graph:
    x = _floats(rng, length, batch, width)
    inputs = {"x": x, "lengths": rng.integers(1, length + 1, batch)}
    return _one("ReverseSequence", inputs, time_axis=0, batch_axis=1, touched=2 * x.nbytes)


def sequence(rng: Random, *shape: int) -> Graph:
    """Split, one part taken out, and joined again."""
    x = _floats(rng, *shape)
    nodes = [node("SplitToSequence", ["x"], "parts", axis=0), node("SequenceErase", ["parts", "first"], "others")]
    nodes.append(node("ConcatFromSequence", ["others"], "y", axis=0))
    return Graph(nodes, {"x": x}, {"first": np.array(0, np.int64)}, touched=2 * x.nbytes)


def _loop(carried: Mapping[str, onnx.TypeProto], nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    """The body of a Loop without a condition; of what it carries, `next_name` is the value after an iteration."""
    counts = [("i", helper.make_tensor_type_proto(TensorProto.INT64, [])), ("go", helper.make_tensor_type_proto(TensorProto.BOOL, []))]
    inputs = [helper.make_value_info(name, type_) for name, type_ in (*counts, *carried.items())]
    outputs = [helper.make_value_info(f"next_{name}", type_) for name, type_ in (counts[1], *carried.items())]
    return helper.make_graph([node("Identity", ["go"], "next_go"), *nodes], "body", inputs, outputs)


def growing_cache(rng: Random, iterations: int, width: int) -> Graph:
    """A decoder's attention: each iteration adds a row to what it has seen, and looks at all of it."""
    rows = helper.make_tensor_type_proto(TensorProto.FLOAT, [None, width])
    nodes = [node("Slice", ["seen", "last", "end", "zero"], "row"), node("MatMul", ["row", "w"], "asked")]
    nodes += [node("Transpose", ["seen"], "turned", perm=[1, 0]), node("MatMul", ["asked", "turned"], "scores")]
    nodes += [node("Softmax", ["scores"], "shares", axis=-1), node("MatMul", ["shares", "seen"], "mixed")]
    nodes += [node("Concat", ["seen", "mixed"], "next_seen", axis=0)]
    loop = node("Loop", ["iterations", "", "x"], "y", body=_loop({"seen": rows}, nodes))
    literals = {"w": _floats(rng, width, width) / np.float32(width), "last": _ints(-1), "end": _ints(2**31), "zero": _ints(0)}
    return Graph([loop], {"x": _floats(rng, 1, width), "iterations": _ints(iterations)}, literals, 17)


def collected(rng: Random, iterations: int, width: int) -> Graph:
    """A list that a loop makes, joined."""
    item = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, width])
    carried = {"items": helper.make_sequence_type_proto(item), "state": item}
    nodes = [node("MatMul", ["state", "w"], "product"), node("Tanh", ["product"], "next_state")]
    nodes += [node("SequenceInsert", ["items", "next_state"], "next_items")]
    loop = helper.make_node("Loop", ["iterations", "", "none", "x"], ["all", "end"], body=_loop(carried, nodes))
    inputs = {"x": _floats(rng, 1, width), "iterations": _ints(iterations)}
    joined = node("ConcatFromSequence", ["all"], "y", axis=0)
    return Graph([node("SequenceEmpty", [], "none"), loop, joined], inputs, {"w": _floats(rng, width, width) / np.float32(width)}, 17)


# -- images and regions


def grid_sample(mode: str) -> Builder:
    def build(rng: Random, channels: int, height: int, width: int) -> Graph:
        inputs = {"x": _floats(rng, 1, channels, height, width)}
        inputs["grid"] = rng.uniform(-1.1, 1.1, (1, height, width, 2)).astype(np.float32)
        return _one("GridSample", inputs, mode=mode)

    return build


def warp(rng: Random, channels: int, height: int, width: int) -> Graph:
    """A grid that is a turned and moved image, as networks have them: neighbours read neighbours."""
    ys, xs = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    grid = np.stack([0.95 * xs - 0.1 * ys + 0.03, 0.1 * xs + 0.95 * ys], -1)[None]
    return _one("GridSample", {"x": _floats(rng, 1, channels, height, width), "grid": grid.astype(np.float32)})


def _regions(rng: Random, count: int, side: float) -> np.ndarray:
    corners = rng.uniform(0, 0.6 * side, (count, 2))
    return np.concatenate([corners, corners + rng.uniform(0.1 * side, 0.4 * side, (count, 2))], 1).astype(np.float32)


def roi_align(rng: Random, channels: int, side: int, count: int) -> Graph:
    inputs = {"x": _floats(rng, 1, channels, side, side), "rois": _regions(rng, count, side), "batch": np.zeros(count, np.int64)}
    return _one("RoiAlign", inputs, output_height=7, output_width=7, sampling_ratio=2)


def roi_pool(rng: Random, channels: int, side: int, count: int) -> Graph:
    rois = np.concatenate([np.zeros((count, 1), np.float32), np.round(_regions(rng, count, side))], 1)
    return _one("MaxRoiPool", {"x": _floats(rng, 1, channels, side, side), "rois": rois}, pooled_shape=[7, 7])


def deform_conv(rng: Random, channels: int, side: int) -> Graph:
    inputs = {"x": _floats(rng, 1, channels, side, side)}
    literals = {"w": _floats(rng, channels, channels, 3, 3)}
    inputs |= {"offset": 0.5 * _floats(rng, 1, 18, side, side)}
    nodes = [node("DeformConv", ["x", "w", "offset"], "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    return Graph(nodes, inputs, literals)


def unpool(rng: Random, channels: int, side: int) -> Graph:
    x = _floats(rng, 1, channels, 2 * side, 2 * side)
    nodes = [
        helper.make_node("MaxPool", ["x"], ["most", "places"], kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxUnpool", ["most", "places"], "y", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    return Graph(nodes, {"x": x}, {}, touched=2 * x.nbytes)


def pool(op: str, kernel: int, stride: int) -> Builder:
    def build(rng: Random, channels: int, height: int, width: int) -> Graph:
        x = _floats(rng, 1, channels, height, width)
        moved, window = x.nbytes + x.nbytes // stride**2, [kernel] * 2
        return _one(op, {"x": x}, touched=moved, kernel_shape=window, strides=[stride] * 2, pads=[kernel // 2] * 4)

    return build


def resize(scale: float, **attrs: object) -> Builder:
    def build(rng: Random, channels: int, height: int, width: int) -> Graph:
        x = _floats(rng, 1, channels, height, width)
        sizes = _ints(1, channels, round(height * scale), round(width * scale))
        resized = node("Resize", ["x", "", "", "sizes"], "y", **attrs)
        return Graph([resized], {"x": x}, {"sizes": sizes}, touched=x.nbytes + 4 * math.prod(map(int, sizes)))

    return build


def resize_run_time(rng: Random, channels: int, height: int, width: int) -> Graph:
    x = _floats(rng, 1, channels, height, width)
    inputs = {"x": x, "scales": np.array([1, 1, 2, 2], np.float32)}
    return Graph([node("Resize", ["x", "", "scales"], "y", mode="linear")], inputs, {}, touched=5 * x.nbytes)


def tf_crop(rng: Random, channels: int, height: int, width: int) -> Graph:
    literals = {"roi": np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], np.float32), "sizes": _ints(1, channels, height + height // 2, width)}
    attrs = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    resized = node("Resize", ["x", "roi", "", "sizes"], "y", **attrs)
    return Graph([resized], {"x": _floats(rng, 1, channels, height, width)}, literals)


def _tf_cropped(graph: Graph) -> Sequence[np.ndarray]:
    """By the formula of the specification, in f64."""
    result, roi, sizes = graph.inputs["x"].astype(np.float64), graph.literals["roi"].astype(np.float64), graph.literals["sizes"]
    for axis in (2, 3):
        last, count = result.shape[axis] - 1, int(sizes[axis])
        places = last * np.linspace(roi[axis], roi[4 + axis], count)
        base = np.floor(places).astype(int)
        share = np.expand_dims(places - base, tuple(range(1, 4 - axis)))
        result = np.take(result, base, axis) * (1 - share) + np.take(result, np.minimum(base + 1, last), axis) * share
    return [result.astype(np.float32)]


def col2im(rng: Random, channels: int, side: int) -> Graph:
    x = _floats(rng, 1, 9 * channels, side * side)
    literals = {"image": _ints(side, side), "block": _ints(3, 3)}
    return _one("Col2Im", {"x": x}, literals, pads=[1, 1, 1, 1], touched=x.nbytes + x.nbytes // 9)


def pad(mode: str) -> Builder:
    def build(rng: Random, channels: int, height: int, width: int) -> Graph:
        x = _floats(rng, 1, channels, height, width)
        return _one("Pad", {"x": x}, {"ends": _ints(0, 0, 3, 3, 0, 0, 3, 3)}, mode=mode, touched=2 * x.nbytes)

    return build


# -- sound


def stft(rng: Random, samples: int) -> Graph:
    window = np.hanning(400).astype(np.float32)
    inputs = {"x": _floats(rng, 1, samples, 1)}
    return _one("STFT", inputs, {"step": np.array(160, np.int64), "window": window}, onesided=1)


def _stft_libraries(arrays: Arrays) -> Mapping[str, Outputs]:
    import torch

    x, window = torch.from_numpy(arrays["x"][..., 0]), torch.from_numpy(np.hanning(400).astype(np.float32))

    def transform() -> list[np.ndarray]:
        frames = torch.stft(x, 400, 160, window=window, center=False, return_complex=True)
        return [torch.view_as_real(frames.transpose(1, 2)).numpy()]

    return {"torch": transform}


def dft(rng: Random, rows: int, length: int) -> Graph:
    return _one("DFT", {"x": _floats(rng, rows, length, 1)}, {"length": np.array(length, np.int64), "axis": np.array(1, np.int64)})


# -- running and along axes


def running(op: str, axis: int, opset: int = 20) -> Builder:
    def build(rng: Random, *shape: int) -> Graph:
        x = _floats(rng, *shape) if op == "CumSum" else rng.uniform(0.99, 1.01, shape).astype(np.float32)
        return _one(op, {"x": x}, {"axis": np.array(axis, np.int64)}, opset=opset, touched=2 * x.nbytes)

    return build


def softmax(rng: Random, *shape: int) -> Graph:
    return _one("Softmax", {"x": _floats(rng, *shape)}, axis=-1)


def trilu(rng: Random, *shape: int) -> Graph:
    x = _floats(rng, *shape)
    return _one("Trilu", {"x": x}, upper=0, touched=3 * x.nbytes // 2)


def det(rng: Random, batch: int, size: int) -> Graph:
    return _one("Det", {"x": _floats(rng, batch, size, size) * np.float32(size**-0.5)})


# -- elements


def unary(op: str, low: float = -4.0, high: float = 4.0) -> Builder:
    def build(rng: Random, *shape: int) -> Graph:
        return _one(op, {"x": rng.uniform(low, high, shape).astype(np.float32)})

    return build


def bits(op: str) -> Builder:
    def build(rng: Random, *shape: int) -> Graph:
        x, z = rng.integers(-(2**31), 2**31, (2, *shape)).astype(np.int32)
        return _one(op, {"x": x, "z": z}, touched=3 * x.nbytes)

    return build


def quantize(rng: Random, rows: int, columns: int) -> Graph:
    x, scale = _floats(rng, rows, 32 * columns), rng.uniform(0.01, 0.02, (rows, columns)).astype(np.float32)
    literals = {"scale": scale, "zero": np.zeros((rows, columns), np.int8)}
    return _one("QuantizeLinear", {"x": x}, literals, axis=1, block_size=32, opset=21, touched=5 * x.size)


def dequantize(rng: Random, rows: int, columns: int) -> Graph:
    x = rng.integers(-128, 128, (rows, 32 * columns)).astype(np.int8)
    scale = rng.uniform(0.01, 0.02, (rows, columns)).astype(np.float32)
    return _one("DequantizeLinear", {"x": x}, {"scale": scale}, axis=1, block_size=32, opset=21, touched=5 * x.size)


# -- products


def matmul(columns: int | None = None) -> Builder:
    def build(rng: Random, m: int, k: int, n: int = 0) -> Graph:
        n = columns or n
        return _one("MatMul", {"x": _floats(rng, m, k)}, {"w": _floats(rng, k, n)}, touched=4 * (m * k + k * n + m * n))

    return build


def einsum(equation: str, **letters: int) -> Builder:
    """`letters`: which of the sizes each letter has."""

    def build(rng: Random, *sizes: int) -> Graph:
        terms = equation.split("->")[0].split(",")
        shapes = [[sizes[letters[letter]] for letter in term] for term in terms]
        return _one("Einsum", {f"x{k}": _floats(rng, *shape) for k, shape in enumerate(shapes)}, equation=equation)

    return build


def quantized_vectors(rng: Random, rows: int, codes: int, width: int) -> Graph:
    """The code nearest to each row, and its row of the table."""
    table = _floats(rng, codes, width)
    nodes = [node("MatMul", ["x", "turned"], "products"), node("Mul", ["products", "two"], "twice")]
    nodes += [node("Sub", ["squares", "twice"], "distances"), node("ArgMin", ["distances"], "places", axis=1, keepdims=0)]
    nodes += [node("Gather", ["table", "places"], "y")]
    literals = {"turned": np.ascontiguousarray(table.T), "two": np.array(2, np.float32), "squares": (table**2).sum(1), "table": table}
    return Graph(nodes, {"x": _floats(rng, rows, width)}, literals)


# -- trees


def trees(rng: Random, rows: int, count: int, depth: int) -> Graph:
    """Full trees over 20 features, one target."""
    inner, nodes = 2**depth - 1, 2 ** (depth + 1) - 1
    index = np.arange(nodes)
    leaf = index >= inner
    attrs = {
        "nodes_treeids": np.repeat(np.arange(count), nodes),
        "nodes_nodeids": np.tile(index, count),
        "nodes_featureids": np.where(np.tile(leaf, count), 0, rng.integers(0, 20, count * nodes)),
        "nodes_truenodeids": np.tile(np.where(leaf, 0, 2 * index + 1), count),
        "nodes_falsenodeids": np.tile(np.where(leaf, 0, 2 * index + 2), count),
        "target_treeids": np.repeat(np.arange(count), nodes - inner),
        "target_nodeids": np.tile(index[leaf], count),
        "target_ids": np.zeros(count * (nodes - inner), int),
    }
    lists: dict[str, Any] = {name: [int(each) for each in values] for name, values in attrs.items()}
    lists["nodes_modes"] = [("LEAF" if each else "BRANCH_LEQ") for each in np.tile(leaf, count)]
    lists["nodes_values"] = [float(each) for each in rng.standard_normal(count * nodes).astype(np.float32)]
    lists["target_weights"] = [float(each) for each in rng.standard_normal(count * (nodes - inner)).astype(np.float32)]
    ensemble = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **lists)
    return Graph([ensemble], {"x": _floats(rng, rows, 20)}, {})


KERNELS: Sequence[Kernel] = (
    Kernel("TopK 50", topk(50, -1), [(1, 5000), (1, 50000), (16, 30000)], _topk_libraries(50, -1)),
    Kernel("TopK 5 of the middle axis", topk(5, 1), [(1, 84, 500), (2, 84, 2000), (4, 200, 3000)], _topk_libraries(5, 1)),
    Kernel("sort", sort, [(1, 1000), (1, 10000), (20, 5000)], _sort_libraries),
    Kernel("NonZero", nonzero, [(100,), (200, 300), (1000, 1000)]),
    Kernel("Compress", compress, [(100, 30), (1000, 200), (4000, 1000)]),
    Kernel("Unique", unique, [(500,), (20000,), (300000,)]),
    Kernel("NonMaxSuppression", suppression, [(500,), (5000,), (25200,)]),
    Kernel("ArgMax", arg("ArgMax"), [(50, 80), (1, 50257), (1000, 1000)]),
    Kernel("ArgMin", arg("ArgMin"), [(50, 80), (64, 3000), (2000, 700)]),
    Kernel("GatherElements", gather_elements, [(50, 80), (500, 400), (2000, 1500)]),
    Kernel("ScatterND", scatter("none"), [(100, 16), (2000, 64), (20000, 128)]),
    Kernel("ScatterND add", scatter("add"), [(100, 16), (2000, 64), (20000, 128)]),
    Kernel("TensorScatter", tensor_scatter, [(1, 128, 64), (2, 1024, 64), (4, 2048, 128)]),
    Kernel("ReverseSequence", reverse_sequence, [(10, 4, 30), (100, 16, 128), (500, 32, 256)]),
    Kernel("sequences", sequence, [(4, 1000), (16, 20000), (32, 200000)]),
    Kernel("Loop of a growing cache", growing_cache, [(20, 64), (200, 64), (500, 256)]),
    Kernel("Loop that collects", collected, [(20, 64), (200, 128), (1000, 256)]),
    Kernel("GridSample", grid_sample("linear"), [(3, 32, 32), (16, 100, 120), (64, 128, 128)]),
    Kernel("GridSample, a warp", warp, [(3, 224, 224), (32, 60, 80), (64, 128, 128)]),
    Kernel("GridSample, nearest", grid_sample("nearest"), [(3, 32, 32), (16, 100, 120), (64, 128, 128)]),
    Kernel("RoiAlign", roi_align, [(16, 20, 10), (64, 50, 100), (256, 50, 300)]),
    Kernel("MaxRoiPool", roi_pool, [(16, 20, 10), (64, 50, 100), (256, 50, 300)]),
    Kernel("DeformConv", deform_conv, [(8, 16), (32, 40), (64, 64)]),
    Kernel("MaxPool and MaxUnpool", unpool, [(8, 16), (64, 32), (64, 112)]),
    Kernel("MaxPool 3x3 /2", pool("MaxPool", 3, 2), [(16, 20, 20), (64, 112, 112), (192, 56, 56)]),
    Kernel("MaxPool 3x3 /1", pool("MaxPool", 3, 1), [(16, 20, 20), (64, 56, 56), (256, 40, 40)]),
    Kernel("MaxPool 5x5 /1", pool("MaxPool", 5, 1), [(16, 20, 20), (64, 56, 56), (256, 20, 20)]),
    Kernel("AveragePool 3x3 /1", pool("AveragePool", 3, 1), [(16, 20, 20), (64, 56, 56), (256, 40, 40)]),
    Kernel("Resize linear", resize(2, mode="linear"), [(3, 32, 32), (32, 60, 80), (64, 128, 128)]),
    Kernel(
        "Resize linear, corners",
        resize(2, mode="linear", coordinate_transformation_mode="align_corners"),
        [(3, 32, 32), (32, 60, 80), (64, 128, 128)],
    ),
    Kernel("Resize linear, smaller", resize(0.4, mode="linear"), [(3, 80, 80), (3, 480, 640), (64, 128, 128)]),
    Kernel("Resize linear, antialias", resize(0.4, mode="linear", antialias=1), [(3, 80, 80), (3, 480, 640), (64, 128, 128)]),
    Kernel("Resize cubic", resize(2, mode="cubic"), [(3, 32, 32), (32, 60, 80), (64, 128, 128)]),
    Kernel("Resize nearest", resize(2, mode="nearest"), [(3, 32, 32), (32, 60, 80), (64, 128, 128)]),
    Kernel("Resize linear, run-time scales", resize_run_time, [(3, 32, 32), (32, 60, 80), (64, 128, 128)]),
    Kernel("Resize tf_crop", tf_crop, [(3, 32, 32), (3, 224, 224), (64, 128, 128)], exact=_tf_cropped),
    Kernel("Col2Im", col2im, [(4, 16), (16, 56), (64, 100)]),
    Kernel("Pad reflect", pad("reflect"), [(3, 32, 32), (3, 480, 640), (64, 128, 128)]),
    Kernel("Pad edge", pad("edge"), [(3, 32, 32), (3, 480, 640), (64, 128, 128)]),
    Kernel("STFT", stft, [(16000,), (160000,), (480000,)], _stft_libraries),
    Kernel("DFT", dft, [(10, 256), (100, 400), (64, 4096)]),
    Kernel("CumSum", running("CumSum", -1), [(1, 1000), (200, 300), (1000, 4000)]),
    Kernel("CumSum of one row", running("CumSum", 0), [(2000,), (100000,), (4000000,)]),
    Kernel("CumSum of columns", running("CumSum", 0), [(30, 40), (200, 300), (1000, 4000)]),
    Kernel("CumProd", running("CumProd", -1, 26), [(1, 1000), (200, 300), (1000, 4000)]),
    Kernel("Softmax", softmax, [(10, 100), (12, 128, 128), (1000, 1000)]),
    Kernel("Trilu", trilu, [(32, 32), (8, 256, 256), (4, 1500, 1500)]),
    Kernel("Det", det, [(10, 3), (100, 16), (8, 128)]),
    *(Kernel(op, unary(op), [(1000,), (128, 768), (2000, 2000)]) for op in ("Sin", "Erf", "Tanh", "Atan", "Tan", "Sinh", "Asinh", "Gelu")),
    *(Kernel(op, unary(op, -0.99, 0.99), [(1000,), (128, 768), (2000, 2000)]) for op in ("Asin", "Acos", "Atanh")),
    Kernel("BitwiseAnd", bits("BitwiseAnd"), [(1000,), (300, 1000), (2000, 2000)]),
    Kernel("QuantizeLinear of blocks", quantize, [(16, 4), (512, 16), (2048, 64)]),
    Kernel("DequantizeLinear of blocks", dequantize, [(16, 4), (512, 16), (2048, 64)]),
    Kernel("MatMul of 4 rows", matmul(), [(4, 256, 512), (4, 1024, 1024), (4, 4096, 4096)]),
    Kernel("MatMul, 1 column", matmul(1), [(64, 128), (1000, 512), (4096, 4096)]),
    Kernel("MatMul, 3 columns", matmul(3), [(64, 128), (1000, 512), (4096, 4096)]),
    Kernel("Einsum bhid,bhjd", einsum("bhid,bhjd->bhij", b=0, h=1, i=2, j=2, d=3), [(1, 2, 32, 16), (1, 8, 128, 64), (2, 12, 256, 64)]),
    Kernel("Einsum bhwc,hkc", einsum("bhwc,hkc->bhwk", b=0, h=1, w=1, k=1, c=2), [(2, 7, 16), (8, 14, 64), (25, 14, 80)]),
    Kernel("Einsum i,j", einsum("i,j->ij", i=0, j=1), [(50, 60), (500, 600), (2000, 2000)]),
    Kernel("vector quantization", quantized_vectors, [(20, 64, 8), (256, 512, 64), (1024, 1024, 256)]),
    Kernel("trees", trees, [(1, 100, 6), (100, 100, 6), (5000, 100, 6)]),
)  # fmt: skip

def names(seed: int | None = None) -> list[str]:
    """A name for each operator and size."""
    return [f"{kernel.name}: {'x'.join(map(str, _drawn(kernel, index, seed)))}" for kernel in KERNELS for index in range(3)]


def make(name: str) -> tuple[onnx.ModelProto, Arrays, Kernel, Graph]:
    """The model of a name that `names` gave, its inputs, its record and graph."""
    operator, _, sizes = name.partition(": ")
    kernel = next(kernel for kernel in KERNELS if kernel.name == operator)
    graph = kernel.build(np.random.default_rng(zlib.crc32(name.encode())), *map(int, sizes.split("x")))
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in graph.inputs.items()]
    constants = [numpy_helper.from_array(array, name) for name, array in graph.literals.items()]
    outputs = [helper.make_empty_tensor_value_info(output) for output in graph.nodes[-1].output]
    imports = [helper.make_opsetid("", graph.opset), helper.make_opsetid("ai.onnx.ml", 3)]
    made = helper.make_graph(list(graph.nodes), "kernel", infos, outputs, constants)
    return helper.make_model(made, opset_imports=imports, ir_version=10), graph.inputs, kernel, graph


def _drawn(kernel: Kernel, index: int, seed: int | None) -> tuple[int, ...]:
    """The sizes themselves; with a seed, each that is above 6 between two thirds of it and three halves."""
    sizes = kernel.sizes[index]
    if seed is None:
        return sizes
    rng = np.random.default_rng([seed, index, zlib.crc32(kernel.name.encode())])
    factors = np.exp(rng.uniform(-math.log(1.5), math.log(1.5), len(sizes)))
    return tuple(round(size * factor) if size > 6 else size for size, factor in zip(sizes, factors))
