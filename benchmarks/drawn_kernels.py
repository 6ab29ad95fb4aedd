"""Kernels of all classes whose sizes are drawn by a seed: shapes that nobody had in mind when constants were chosen.

A recipe draws one model of one or few operators. Sizes are drawn log-uniformly, again and again until the work is neither so little
that a call is mere overhead nor so much that a search takes long. The same seed and recipe give the same model.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.products import INTEGER, MATMUL, OPERANDS, model, node

Arrays = dict[str, np.ndarray]

LEAST_OPERATIONS, MOST_OPERATIONS = 3e5, 1.5e8
"""Multiply-adds of products and convolutions."""

LEAST_ELEMENTS, MOST_ELEMENTS = 2e4, 3e6
"""Elements that others touch."""


@dataclass(frozen=True)
class Graph:
    """Nodes with the result y, inputs, literals; dims of inputs that are symbolic, by input and axis."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Arrays
    literals: Arrays = field(default_factory=dict)
    symbolic: Mapping[tuple[str, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawn:
    """A drawn kernel: its class, the recipe's name, its operands in words, the model, its inputs, sizes of symbolic dims."""

    kind: str
    name: str
    shape: str
    model: onnx.ModelProto
    arrays: Arrays
    sizes: Mapping[str, int]


class Draw:
    """What recipes draw with."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def size(self, low: int, high: int) -> int:
        """A whole number, log-uniform between both."""
        return round(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def sizes(self, *ranges: tuple[int, int], work: Callable[..., float] = math.prod, low: float, high: float) -> tuple[int, ...]:
        """Numbers from these ranges whose `work` lies between `low` and `high`."""
        while True:
            found = tuple(self.size(*each) for each in ranges)
            if low <= work(found) <= high:
                return found

    def terms(self, *ranges: tuple[int, int]) -> tuple[int, ...]:
        """Sizes whose product is a number of multiply-adds."""
        return self.sizes(*ranges, low=LEAST_OPERATIONS, high=MOST_OPERATIONS)

    def elements(self, *ranges: tuple[int, int]) -> tuple[int, ...]:
        """Sizes of a tensor."""
        return self.sizes(*ranges, low=LEAST_ELEMENTS, high=MOST_ELEMENTS)

    def one_of(self, *values: int) -> int:
        return int(values[self.rng.integers(len(values))])

    def floats(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def bytes(self, dtype: type, *shape: int) -> np.ndarray:
        info = np.iinfo(dtype)
        return self.rng.integers(info.min, info.max + 1, shape).astype(dtype)


Recipe = Callable[[Draw], Graph]

ANY, ROWS = (8, 1500), (20, 1500)


# -- products


def product(m: tuple[int, int] = ROWS, n: tuple[int, int] = ANY, *, constant: bool = True, symbolic: bool = False) -> Recipe:
    """x[m, k] @ w[k, n]."""

    def recipe(d: Draw) -> Graph:
        rows, columns, depth = d.terms(m, n, ANY)
        a, b = {"a": d.floats(rows, depth)}, {"b": d.floats(depth, columns)}
        dims = {("a", 0): "rows"} if symbolic else {}
        return Graph([MATMUL], a, b, dims) if constant else Graph([MATMUL], a | b, {}, dims)

    return recipe


def batched(*, shares_rhs: bool = False, symbolic: bool = False) -> Recipe:
    """A product for each of a batch, with a right operand each or one for all."""

    def recipe(d: Draw) -> Graph:
        batch, rows, columns, depth = d.terms((2, 48), (4, 400), (4, 400), (4, 400))
        right = d.floats(depth, columns) if shares_rhs else d.floats(batch, depth, columns)
        dims = {("a", 1): "rows"} if symbolic else {}
        return Graph([MATMUL], {"a": d.floats(batch, rows, depth), "b": right}, {}, dims)

    return recipe


def transposed(side: str) -> Recipe:
    """A product with one operand, an input, stored the other way."""

    def recipe(d: Draw) -> Graph:
        rows, columns, depth = d.terms(ROWS, ANY, ANY)
        turn = node("Transpose", [side], "turned", perm=[1, 0])
        names = ["turned" if name == side else name for name in "ab"]
        arrays = {"a": d.floats(rows, depth), "b": d.floats(depth, columns)}
        arrays[side] = np.ascontiguousarray(arrays[side].T)
        return Graph([turn, node("MatMul", names, "y")], arrays)

    return recipe


def narrow(lhs: type, rhs: type) -> Recipe:
    """A product of bytes, the right operand a literal."""

    def recipe(d: Draw) -> Graph:
        rows, columns, depth = d.terms(ROWS, ANY, ANY)
        return Graph([INTEGER], {"a": d.bytes(lhs, rows, depth)}, {"b": d.bytes(rhs, depth, columns)})

    return recipe


def half(dtype: type) -> Recipe:
    """A product of 16-bit floats, computed and given in f32."""

    def recipe(d: Draw) -> Graph:
        rows, columns, depth = d.terms(ROWS, ANY, ANY)
        casts = [node("Cast", [name], f"{name}_wide", to=TensorProto.FLOAT) for name in "ab"]
        arrays = d.floats(rows, depth).astype(dtype), d.floats(depth, columns).astype(dtype)
        return Graph([*casts, node("MatMul", ["a_wide", "b_wide"], "y")], {"a": arrays[0]}, {"b": arrays[1]})

    return recipe


def operand(name: str) -> Recipe:
    """One of the products of `benchmarks.products`, with drawn sizes."""

    def recipe(d: Draw) -> Graph:
        rows, columns, depth = d.terms(ROWS, ANY, ANY)
        return Graph(*OPERANDS[name](d.rng, rows, columns, depth))

    return recipe


def linear(d: Draw) -> Graph:
    """gelu(x @ w + b), as in a transformer."""
    rows, columns, depth = d.terms(ROWS, ANY, ANY)
    nodes = [node("MatMul", ["a", "b"], "p"), node("Add", ["p", "c"], "q"), node("Gelu", ["q"], "y")]
    return Graph(nodes, {"a": d.floats(rows, depth)}, {"b": d.floats(depth, columns), "c": d.floats(columns)})


# -- convolutions


def convolution(
    kernel: Sequence[int],
    *,
    channels: str = "any",
    strides: int = 1,
    dilation: int = 1,
    op: str = "Conv",
    constant: bool = True,
    symbolic: Sequence[int] = (),
    dtype: type = np.float32,
    size: tuple[int, int] = (6, 120),
) -> Recipe:
    """A convolution with bias and relu over images of two drawn sizes (one for a kernel of one).

    channels: "any"; "even": multiples of 16; "few": at most three in; "depthwise"; "grouped": a multiple of 16 in each group; "odd
    groups": any number in each. `symbolic`: axes of the input.
    """

    def recipe(d: Draw) -> Graph:
        while True:
            group, cin, cout = draw_channels(d, channels)
            spatial = [d.size(*size) for _ in kernel] if len(kernel) > 1 else [d.size(40, 4000)]
            out = [extent * strides if op == "ConvTranspose" else -(-extent // strides) for extent in spatial]
            places = math.prod(spatial if op == "ConvTranspose" else out)
            if LEAST_OPERATIONS <= group * cin * cout * math.prod(kernel) * places <= MOST_OPERATIONS:
                break
        taps = (group * cin, cout) if op == "ConvTranspose" else (group * cout, cin)
        weight = (d.floats(*taps, *kernel) * (cin * math.prod(kernel)) ** -0.5).astype(dtype)
        pads = [dilation * (extent - 1) // 2 for extent in kernel]
        attrs = {"group": group, "strides": [strides] * len(kernel), "dilations": [dilation] * len(kernel), "pads": pads + pads}
        x, w = {"x": d.floats(1, group * cin, *spatial).astype(dtype)}, {"w": weight}
        bias = {"b": (0.1 * d.floats(group * cout)).astype(dtype)}
        nodes = [node(op, ["x", "w", "b"], "c", **attrs), node("Relu", ["c"], "y")]
        dims = {("x", axis): f"size{axis}" for axis in symbolic}
        return Graph(nodes, x, w | bias, dims) if constant else Graph(nodes, x | w, bias, dims)

    return recipe


def draw_channels(d: Draw, channels: str) -> tuple[int, int, int]:
    """Groups, channels of a group that come in, and that go out."""
    match channels:
        case "even":
            return 1, 16 * d.size(1, 20), 16 * d.size(1, 20)
        case "few":
            return 1, d.size(1, 3), d.size(8, 96)
        case "depthwise":
            return d.size(8, 500), 1, 1
        case "grouped":
            return d.size(2, 16), 16 * d.size(1, 4), 16 * d.size(1, 4)
        case "odd groups":
            return d.size(2, 24), d.size(2, 30), d.size(2, 30)
    return 1, d.size(4, 320), d.size(4, 320)


# -- reductions, normalisations and scans


def along(op: str, axis: int, rank: int = 3, symbolic: int | None = None, **attrs: object) -> Recipe:
    """An operator along one axis of a tensor, which an attribute tells."""

    def recipe(d: Draw) -> Graph:
        shape = d.elements(*[(3, 3000)] * rank)
        dims = {} if symbolic is None else {("x", symbolic): "size"}
        return Graph([node(op, ["x"], "y", axis=axis, **attrs)], {"x": d.floats(*shape)}, {}, dims)

    return recipe


def reduction(op: str, axes: Sequence[int], rank: int = 3, **attrs: object) -> Recipe:
    """A reduction over some axes."""

    def recipe(d: Draw) -> Graph:
        shape = d.elements(*[(3, 3000)] * rank)
        return Graph([node(op, ["x", "axes"], "y", **attrs)], {"x": d.floats(*shape)}, {"axes": np.array(axes, np.int64)})

    return recipe


def cumulative(axis: int) -> Recipe:
    def recipe(d: Draw) -> Graph:
        shape = d.elements((3, 3000), (3, 3000))
        return Graph([node("CumSum", ["x", "axis"], "y")], {"x": d.floats(*shape)}, {"axis": np.array(axis, np.int64)})

    return recipe


def layer_norm(symbolic: bool = False) -> Recipe:
    def recipe(d: Draw) -> Graph:
        rows, width = d.elements((4, 3000), (17, 3000))
        dims = {("x", 0): "rows"} if symbolic else {}
        literals = {"scale": d.floats(width), "shift": d.floats(width)}
        return Graph([node("LayerNormalization", ["x", "scale", "shift"], "y")], {"x": d.floats(rows, width)}, literals, dims)

    return recipe


def rms_norm(d: Draw) -> Graph:
    """x / sqrt(mean(x * x) + eps) * scale, spelt out."""
    rows, width = d.elements((4, 3000), (17, 3000))
    nodes = [node("Mul", ["x", "x"], "square"), node("ReduceMean", ["square", "last"], "mean"), node("Add", ["mean", "eps"], "moved")]
    nodes += [node("Sqrt", ["moved"], "root"), node("Div", ["x", "root"], "ratio"), node("Mul", ["ratio", "scale"], "y")]
    literals = {"last": np.array([-1], np.int64), "eps": np.array(1e-5, np.float32), "scale": d.floats(width)}
    return Graph(nodes, {"x": d.floats(rows, width)}, literals)


def group_norm(d: Draw) -> Graph:
    groups, each, height, width = d.elements((1, 32), (2, 24), (5, 60), (5, 60))
    literals = {"scale": d.floats(groups * each), "shift": d.floats(groups * each)}
    norm = node("GroupNormalization", ["x", "scale", "shift"], "y", num_groups=groups)
    return Graph([norm], {"x": d.floats(1, groups * each, height, width)}, literals)


def pooling(op: str, kernel: int, strides: int) -> Recipe:
    def recipe(d: Draw) -> Graph:
        channels, height, width = d.elements((3, 300), (2 * kernel, 120), (2 * kernel, 120))
        pads = [kernel // 2] * 4
        pool = node(op, ["x"], "y", kernel_shape=[kernel] * 2, strides=[strides] * 2, pads=pads)
        return Graph([pool], {"x": d.floats(1, channels, height, width)})

    return recipe


# -- elementwise


def scaled(*literal_axes: int, symbolic: bool = False) -> Recipe:
    """sigmoid(x * a + b) - c: a and b, literals, are as long as x along `literal_axes` and 1 elsewhere; c is as long as the last axis."""

    def recipe(d: Draw) -> Graph:
        shape = d.elements((2, 700), (2, 700), (2, 700))
        small = [extent if axis in literal_axes else 1 for axis, extent in enumerate(shape)]
        nodes = [node("Mul", ["x", "a"], "p"), node("Add", ["p", "b"], "q"), node("Sigmoid", ["q"], "r"), node("Sub", ["r", "c"], "y")]
        inputs = {"x": d.floats(*shape), "c": d.floats(shape[-1])}
        return Graph(nodes, inputs, {"a": d.floats(*small), "b": d.floats(*small)}, {("x", 0): "size"} if symbolic else {})

    return recipe


def outer_sum(d: Draw) -> Graph:
    """tanh(a[m, 1] + b[1, n])."""
    m, n = d.elements((3, 3000), (3, 3000))
    nodes = [node("Add", ["a", "b"], "s"), node("Tanh", ["s"], "y")]
    return Graph(nodes, {"a": d.floats(m, 1), "b": d.floats(1, n)})


def selected(d: Draw) -> Graph:
    """where(x > z, x * z, -x)."""
    shape = d.elements((3, 3000), (3, 3000))
    nodes = [node("Greater", ["x", "z"], "more"), node("Mul", ["x", "z"], "p"), node("Neg", ["x"], "n")]
    nodes += [node("Where", ["more", "p", "n"], "y")]
    return Graph(nodes, {"x": d.floats(*shape), "z": d.floats(shape[-1])})


def quantized(d: Draw) -> Graph:
    """Bytes to floats, a relu, and back to bytes, with a scale for each channel."""
    shape = d.elements((1, 4), (8, 400), (8, 2000))
    nodes = [node("DequantizeLinear", ["x", "s"], "f", axis=1), node("Relu", ["f"], "r"), node("QuantizeLinear", ["r", "t", "z"], "y")]
    literals = {"s": d.rng.uniform(0.01, 0.02, shape[1]).astype(np.float32), "t": np.array(0.013, np.float32), "z": np.array(3, np.uint8)}
    return Graph(nodes, {"x": d.bytes(np.int8, *shape)}, literals)


def half_chain(d: Draw) -> Graph:
    """gelu of f16."""
    shape = d.elements((3, 3000), (3, 3000))
    return Graph([node("Gelu", ["x"], "y")], {"x": d.floats(*shape).astype(np.float16)})


# -- data movement


def transpose(*perm: int, dtype: type = np.float32, symbolic: bool = False) -> Recipe:
    def recipe(d: Draw) -> Graph:
        top = {2: 3000, 3: 500, 4: 120, 5: 60}[len(perm)]
        shape = d.elements(*[(2, top)] * len(perm))
        x = d.floats(*shape) if dtype is np.float32 else d.bytes(dtype, *shape)
        return Graph([node("Transpose", ["x"], "y", perm=perm)], {"x": x}, {}, {("x", 0): "size"} if symbolic else {})

    return recipe


def concat(axis: int) -> Recipe:
    """Three tensors of unequal lengths."""

    def recipe(d: Draw) -> Graph:
        *shape, one, two = d.sizes(
            *((2, 300), (2, 300), (2, 300), (1, 200), (1, 200)),
            work=lambda sizes: math.prod(sizes[:3]) // sizes[axis] * (sizes[axis] + sizes[3] + sizes[4]),
            low=LEAST_ELEMENTS,
            high=MOST_ELEMENTS,
        )
        lengths = (shape[axis], one, two)
        arrays = {name: d.floats(*shape[:axis], length, *shape[axis + 1 :]) for name, length in zip("abc", lengths, strict=True)}
        return Graph([node("Concat", list(arrays), "y", axis=axis)], arrays)

    return recipe


def padded(mode: str) -> Recipe:
    def recipe(d: Draw) -> Graph:
        shape = d.elements((2, 200), (8, 400), (8, 400))
        ends = [int(end) for end in d.rng.integers(0, 5, 6)]
        return Graph([node("Pad", ["x", "ends"], "y", mode=mode)], {"x": d.floats(*shape)}, {"ends": np.array(ends, np.int64)})

    return recipe


def sliced(step: int) -> Recipe:
    """Each `step`-th element along the last axis, some rows left out."""

    def recipe(d: Draw) -> Graph:
        rows, columns = d.elements((8, 3000), (40, 3000))
        bounds = {"starts": [3, columns // 7], "ends": [rows - 2, columns], "axes": [0, 1], "steps": [1, step]}
        literals = {name: np.array(value, np.int64) for name, value in bounds.items()}
        return Graph([node("Slice", ["x", *literals], "y")], {"x": d.floats(rows, columns)}, literals)

    return recipe


def gathered(axis: int) -> Recipe:
    def recipe(d: Draw) -> Graph:
        count, length, other = d.sizes(
            *((8, 3000), (8, 3000), (8, 1500)), work=lambda sizes: sizes[0] * sizes[2], low=LEAST_ELEMENTS, high=MOST_ELEMENTS
        )
        x = d.floats(*((length, other) if axis == 0 else (other, length)))
        return Graph([node("Gather", ["x", "i"], "y", axis=axis)], {"x": x, "i": d.rng.integers(-length, length, count)})

    return recipe


def resized(mode: str) -> Recipe:
    def recipe(d: Draw) -> Graph:
        channels, height, width = d.elements((2, 200), (5, 100), (5, 100))
        resize = node("Resize", ["x", "", "scales"], "y", mode=mode)
        return Graph([resize], {"x": d.floats(1, channels, height, width)}, {"scales": np.array([1, 1, 2, 2], np.float32)})

    return recipe


# -- attention


def attention(*, is_masked: bool = False, queries: tuple[int, int] = (12, 400), symbolic: bool = False) -> Recipe:
    """softmax(q @ k.T * scale (+ mask)) @ v, with heads of any width."""

    def recipe(d: Draw) -> Graph:
        heads, tokens, keys, width = d.sizes(
            *((1, 16), queries, (12, 600), (9, 140)), low=LEAST_OPERATIONS, high=MOST_OPERATIONS
        )
        scale = np.array(width**-0.5, np.float32)
        nodes = [node("Transpose", ["k"], "turned", perm=[0, 1, 3, 2]), node("MatMul", ["q", "turned"], "s")]
        nodes += [node("Mul", ["s", "scale"], "t")]
        nodes += [node("Add", ["t", "mask"], "u")] if is_masked else []
        nodes += [node("Softmax", ["u" if is_masked else "t"], "p", axis=-1), node("MatMul", ["p", "v"], "y")]
        arrays = {"q": d.floats(1, heads, tokens, width), "k": d.floats(1, heads, keys, width), "v": d.floats(1, heads, keys, width)}
        if is_masked:
            arrays["mask"] = np.where(d.rng.random((1, 1, tokens, keys)) < 0.8, 0, -1e4).astype(np.float32)
        axes = {("q", 2): "tokens", ("k", 2): "keys", ("v", 2): "keys", ("mask", 2): "tokens", ("mask", 3): "keys"}
        return Graph(nodes, arrays, {"scale": scale}, axes if symbolic else {})

    return recipe


RECIPES: Mapping[str, Mapping[str, Recipe]] = {
    "product": {
        "plain": product(),
        "plain, long": product((200, 1500), (200, 1500)),
        "right operand an input": product(constant=False),
        "one row": product((1, 1), (64, 4000)),
        "few rows": product((2, 7), (32, 3000)),
        "one column": product((20, 4000), (1, 1)),
        "three columns": product((20, 4000), (3, 3)),
        "few columns": product((20, 4000), (4, 14), constant=False),
        "batched": batched(),
        "batched, one right operand": batched(shares_rhs=True),
        "left transposed": transposed("a"),
        "right transposed": transposed("b"),
        "linear with gelu": linear,
        "symbolic rows": product((1, 1500), symbolic=True),
        "symbolic rows, three columns": product((20, 4000), (3, 3), symbolic=True),
        "batched, symbolic rows": batched(symbolic=True),
    },
    "narrow product": {
        "u8 x s8": narrow(np.uint8, np.int8),
        "s8 x s8": narrow(np.int8, np.int8),
        "bf16": half(ml_dtypes.bfloat16),
        "f16": half(np.float16),
        "int8 weights": operand("int8 weights"),
        "rows gathered": operand("rows gathered"),
        "depth gathered": operand("depth gathered"),
    },
    "convolution": {
        "1x1": convolution((1, 1)),
        "1x1, even channels": convolution((1, 1), channels="even"),
        "1x1, stride 2": convolution((1, 1), strides=2),
        "3x3": convolution((3, 3)),
        "3x3, even channels": convolution((3, 3), channels="even"),
        "3x3, stride 2": convolution((3, 3), strides=2),
        "3x3, few channels in": convolution((3, 3), channels="few"),
        "5x5": convolution((5, 5)),
        "7x7, few channels in, stride 2": convolution((7, 7), channels="few", strides=2),
        "1x7": convolution((1, 7)),
        "3x3, dilation 2": convolution((3, 3), dilation=2),
        "one dimension, 5": convolution((5,)),
        "transposed 3x3, stride 2": convolution((3, 3), strides=2, op="ConvTranspose"),
        "3x3, weights an input": convolution((3, 3), constant=False),
        "3x3, f16": convolution((3, 3), dtype=np.float16),
        "3x3, symbolic image": convolution((3, 3), symbolic=(2, 3)),
        "1x1, symbolic image": convolution((1, 1), symbolic=(2, 3)),
    },
    "grouped convolution": {
        "3x3, even": convolution((3, 3), channels="grouped"),
        "3x3, odd": convolution((3, 3), channels="odd groups"),
        "1x1, odd": convolution((1, 1), channels="odd groups"),
        "3x3, odd, symbolic image": convolution((3, 3), channels="odd groups", symbolic=(2, 3)),
        "depthwise 3x3": convolution((3, 3), channels="depthwise"),
        "depthwise 5x5, stride 2": convolution((5, 5), channels="depthwise", strides=2),
        "depthwise 7x7, symbolic image": convolution((7, 7), channels="depthwise", symbolic=(2, 3)),
    },
    "reduction": {
        "sum, last axis": reduction("ReduceSum", [2]),
        "sum, middle axis": reduction("ReduceSum", [1]),
        "mean, first axis": reduction("ReduceMean", [0]),
        "max, last two axes": reduction("ReduceMax", [1, 2]),
        "log of a sum of exponentials": reduction("ReduceLogSumExp", [1], 2),
        "argmax, last axis": along("ArgMax", 1, 2),
        "argmax, first axis": along("ArgMax", 0, 2),
        "cumulative sum, last axis": cumulative(1),
        "cumulative sum, first axis": cumulative(0),
        "max pool 3x3, stride 2": pooling("MaxPool", 3, 2),
        "average pool 5x5": pooling("AveragePool", 5, 1),
    },
    "normalisation": {
        "softmax, last axis": along("Softmax", 1, 2),
        "softmax, middle axis": along("Softmax", 1),
        "softmax, symbolic rows": along("Softmax", 1, 2, symbolic=0),
        "softmax, symbolic length": along("Softmax", 1, 2, symbolic=1),
        "layer norm": layer_norm(),
        "layer norm, symbolic rows": layer_norm(symbolic=True),
        "rms norm": rms_norm,
        "group norm": group_norm,
    },
    "elementwise": {
        "scaled along the last axis": scaled(2),
        "scaled along the middle axis": scaled(1),
        "scaled, symbolic": scaled(0, 1, symbolic=True),
        "outer sum": outer_sum,
        "selected": selected,
        "quantized": quantized,
        "gelu of f16": half_chain,
    },
    "data movement": {
        "transpose 10": transpose(1, 0),
        "transpose 10 of bytes": transpose(1, 0, dtype=np.uint8),
        "transpose 021": transpose(0, 2, 1),
        "transpose 0231": transpose(0, 2, 3, 1),
        "transpose 0213": transpose(0, 2, 1, 3),
        "transpose 42013": transpose(4, 2, 0, 1, 3),
        "transpose 102, symbolic": transpose(1, 0, 2, symbolic=True),
        "concat, last axis": concat(2),
        "concat, first axis": concat(0),
        "pad": padded("constant"),
        "pad, reflect": padded("reflect"),
        "slice, step 3": sliced(3),
        "gather, rows": gathered(0),
        "gather, columns": gathered(1),
        "resize, nearest": resized("nearest"),
        "resize, linear": resized("linear"),
    },
    "attention": {
        "plain": attention(),
        "masked": attention(is_masked=True),
        "one query": attention(queries=(1, 1)),
        "symbolic": attention(symbolic=True),
        "masked, symbolic": attention(is_masked=True, symbolic=True),
    },
}


def names() -> list[tuple[str, str]]:
    """Class and name of every recipe."""
    return [(kind, name) for kind, recipes in RECIPES.items() for name in recipes]


def draw(kind: str, name: str, seed: int) -> Drawn:
    """The kernel that a recipe makes of a seed; other recipes have no part in it."""
    graph = RECIPES[kind][name](Draw(np.random.default_rng([seed, zlib.crc32(f"{kind}/{name}".encode())])))
    proto = model(list(graph.nodes), graph.inputs, graph.literals)
    sizes = {}
    for info in proto.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            symbol = graph.symbolic.get((info.name, axis))
            if symbol is not None:
                sizes[symbol] = dim.dim_value
                dim.dim_param = symbol
    arrays = graph.inputs | {name: array for name, array in graph.literals.items() if array.ndim > 1}
    shape = ", ".join(f"{name}[{' x '.join(map(str, array.shape))}]" for name, array in arrays.items())
    return Drawn(kind, name, shape, proto, graph.inputs, sizes)
