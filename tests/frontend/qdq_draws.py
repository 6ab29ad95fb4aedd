"""Random quantized graphs: QDQ pairs around all operators that such files have, operators on quantized tensors, dynamic quantization.

Half of the graphs have scales and data that f32 computes with exactly, so that ties happen and have to be right; others have scales of real
networks, or such as no quantizer makes: denormal, huge, negative, infinite, of zero range. Scales and zero points are literals or inputs,
of the tensor, of an axis, or of blocks; dims are symbolic or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from tests.frontend.qdq_values import F8, HALF_PLACES, LARGEST, MICROSOFT, Evaluation, Net, Unfit, Value

BYTES = tuple(np.dtype(each) for each in (np.uint8, np.int8))
WORDS = tuple(np.dtype(each) for each in (np.uint16, np.int16))
NIBBLES = tuple(np.dtype(each) for each in (ml_dtypes.uint4, ml_dtypes.int4))
INTEGERS = BYTES * 2 + WORDS + NIBBLES
STYLES = ("exact", "exact", "real", "hostile")
SIZES, ODDS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17), (0.02, 0.18, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05)
HOSTILE_SCALES = (1e-45, 1e-40, 1e-20, 1e-23, 1e20, 3e38, 1e30, -0.05, -2, np.inf, 1e-30, 1.5e-38, 1.1e-12, 0.0)
HOSTILE_DATA = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0, 1e-45], np.float32)


@dataclass(frozen=True)
class Quantized:
    """A tensor of bytes with one scale and one zero point."""

    value: Value
    scale: Value
    zero: Value


class Draw(Net):
    """A graph that grows by one operator at a time, from what it has."""

    def __init__(self, seed: int, runs: int, style: str | None = None) -> None:
        super().__init__(seed, runs)
        self.style = style or str(self.rng.choice(STYLES))
        self.is_spoilt = self.style == "hostile" and self.chance(0.6)
        self.share_of_data, self.share_of_symbols = self.rng.choice([0, 0, 0.3, 1]), self.rng.choice([0, 0.5, 1])
        self.symbols: set[int] = set()
        self.floats: list[Value] = []
        self.bytes: list[Quantized] = []

    # -- chance

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def whole(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def one(self, choices: Sequence[Any]) -> Any:
        return choices[self.whole(0, len(choices) - 1)]

    # -- what is known, and what comes with the run

    def data(self, array: np.ndarray) -> Value:
        """An input, of dims that have names or not; equal dims may have one."""
        shape: list[Any] = []
        for dim in array.shape:
            is_named = self.chance(self.share_of_symbols) and (dim not in self.symbols or self.chance(0.7))
            shape.append(f"d{dim}" if is_named else dim)
            self.symbols |= {dim} if is_named else set()
        return self.input(array, shape)

    def parameter(self, array: np.ndarray) -> Value:
        can_be_fed = array.dtype not in NIBBLES and array.dtype not in F8
        return self.input(array) if can_be_fed and self.chance(self.share_of_data) else self.const(array)

    def scale(self, shape: tuple[int, ...] = (), around: float = 0.05) -> np.ndarray:
        if self.style == "exact":
            return np.asarray(self.rng.choice([0.25, 0.5, 1, 2], shape) * 2.0 ** np.round(np.log2(max(around, 1e-3)))).astype(np.float32)
        scales = self.rng.uniform(0.5, 1, shape) * around
        if self.style == "hostile" and self.chance(0.4):
            scales = np.where(self.rng.random(shape) < 0.7, self.rng.choice(HOSTILE_SCALES, shape), scales)
        return np.asarray(scales).astype(np.float32)

    def zero(self, dtype: np.dtype, shape: tuple[int, ...] = ()) -> np.ndarray:
        low, high = limits(dtype)
        if self.chance(0.5):
            return np.asarray(self.rng.choice([low, high, 0, (low + high + 1) // 2, low + 1], shape)).astype(dtype)
        return np.asarray(self.rng.integers(low, high + 1, shape)).astype(dtype)

    def integers(self, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Random ones, the ends of the range more often than others; sometimes nothing else, which makes sums as large as they get."""
        low, high = limits(dtype)
        ends = self.rng.choice([low, high], shape)
        if self.chance(0.05):
            return np.full(shape, self.one([low, high])).astype(dtype)
        return np.where(self.rng.random(shape) < 0.1, ends, self.rng.integers(low, high + 1, shape)).astype(dtype)

    def numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        if self.style == "exact":
            drawn = self.rng.integers(-400, 401, shape) / 8
        else:
            drawn = self.rng.standard_normal(shape) * self.rng.choice([0.3, 3])
        if self.chance(0.05):
            drawn = np.full(shape, self.one([0.0, -2.5, 7.0]))
        if self.is_spoilt:
            drawn = np.where(self.rng.random(shape) < 0.15, self.rng.choice(HOSTILE_DATA, shape), drawn)
        return np.asarray(drawn, np.float32)

    # -- quantization

    def layout(self, shape: Sequence[int]) -> tuple[dict[str, int], tuple[int, ...]]:
        """Attributes, and the shape of scales: one, one for each place of an axis, or for so many of them."""
        rank, kind = len(shape), self.rng.random()
        if not rank or kind < 0.6:
            return ({} if self.chance(0.8) else {"axis": self.whole(-max(rank, 1), max(rank, 1) - 1)}), ()
        axis = self.whole(0, rank - 1)
        attrs = {"axis": axis - rank if self.chance(0.4) else axis}
        if kind < 0.85 or not shape[axis]:
            return attrs, (shape[axis],)
        block = self.whole(1, shape[axis])
        return attrs | {"block_size": block}, tuple(-(-d // block) if k == axis else d for k, d in enumerate(shape))

    def quantized(self, x: Value, one_scale: bool = False) -> Value:
        """Through few bits and back, with the same parameters or, seldom, others."""
        attrs, shape = ({}, ()) if one_scale else self.layout(x.shape)
        if self.chance(0.12):
            return self.through_f8(x, attrs, shape)
        if self.style != "exact" and self.chance(0.08) and len(shape) < 2:
            return self.through_halves(x, attrs, shape)
        dtype = self.one(INTEGERS)
        scale = self.parameter(self.scale(shape, self.fitting(x, dtype)))
        zero = self.parameter(self.zero(dtype, shape)) if self.chance(0.85) or dtype != np.uint8 else None
        named = {"output_dtype": code(dtype)} if self.chance(0.5 if zero is None else 0.1) else {}
        narrow = self.emit("QuantizeLinear", x, scale, zero, **attrs, **named)
        if not shape and dtype in BYTES and zero is not None:
            self.bytes.append(Quantized(narrow, scale, zero))
        if self.chance(0.15):
            scale, zero = self.parameter(self.scale(shape)), self.parameter(self.zero(dtype, shape)) if self.chance(0.6) else None
        return self.emit("DequantizeLinear", narrow, scale, zero, **attrs)

    def fitting(self, x: Value, dtype: np.dtype) -> float:
        """A scale so that most of x is not clipped, or much of it is."""
        low, high = limits(dtype)
        most = np.abs(x.exact[np.isfinite(x.exact)]).max(initial=1e-3)
        return float(np.clip(2 * most / (high - low), 1e-6, 1e6) * self.rng.choice([1, 0.5]))

    def through_f8(self, x: Value, attrs: dict[str, int], shape: tuple[int, ...]) -> Value:
        dtype = self.one(F8)
        scale, zero = self.parameter(self.scale(shape, 0.1)), self.const(np.zeros(shape, dtype))
        narrow = self.emit("QuantizeLinear", x, scale, zero, **attrs, saturate=self.whole(0, 1))
        return self.emit("DequantizeLinear", narrow, scale, zero, **attrs)

    def through_halves(self, x: Value, attrs: dict[str, int], shape: tuple[int, ...]) -> Value:
        """With scales of f16, from values of f16 and to such; what is f32 again need not have been rounded to f16 on the way."""
        dtype = self.one(BYTES + NIBBLES)
        scale = self.parameter(np.clip(np.abs(self.scale(shape, self.fitting(x, dtype))), 2.0**-14, 2.0**10).astype(np.float16))
        zero = self.parameter(self.zero(dtype, shape))
        narrow = self.emit("QuantizeLinear", self.emit("Cast", x, to=code(np.float16)), scale, zero, **attrs)
        halves, to = self.emit("DequantizeLinear", narrow, scale, zero, **attrs), {"to": code(np.float32)}
        (wide,) = self.values("Cast", halves, **to)
        near = self.moved(wide, wide.exact != 0, ~np.isfinite(wide.exact), HALF_PLACES)
        return self.add("Cast", [halves], [near], **to)

    def weight(self, shape: tuple[int, ...]) -> Value:
        dtype = self.one(INTEGERS)
        attrs, own = self.layout(shape)
        values = self.integers(dtype, shape)
        weight = self.input(values) if dtype not in NIBBLES and self.chance(0.15) else self.const(values)
        zero = self.parameter(self.zero(dtype, own)) if self.chance(0.6) else None
        return self.emit("DequantizeLinear", weight, self.parameter(self.scale(own, 1 / limits(dtype)[1])), zero, **attrs)

    def bias(self, count: int, scale: np.ndarray | None = None) -> Value:
        """Of i32; with the scale that the product has, if it is given."""
        attrs = {"axis": 0} if self.chance(0.6) else {}
        values = self.const(self.rng.integers(-3000, 3000, count).astype(np.int32))
        own = self.parameter(self.scale((count,) if attrs else (), 0.01) if scale is None else scale)
        return self.emit("DequantizeLinear", values, own, **({} if scale is not None else attrs))

    # -- values to go on with

    def source(self) -> Value:
        rank = self.whole(0, 5) if self.chance(0.3) else self.whole(2, 4)
        dims = [int(self.rng.choice(SIZES, p=ODDS)) for _ in range(rank)]
        while math.prod(dims) > 1500:
            dims[int(np.argmax(dims))] //= 2
        if self.chance(0.75):
            return self.data(self.numbers(tuple(dims)))
        dtype = self.one(BYTES + WORDS)
        attrs, shape = self.layout(dims)
        narrow, scale = self.data(self.integers(dtype, tuple(dims))), self.parameter(self.scale(shape))
        zero = self.parameter(self.zero(dtype, shape)) if self.chance(0.8) else None
        if not shape and dtype in BYTES and zero is not None:
            self.bytes.append(Quantized(narrow, scale, zero))
        return self.emit("DequantizeLinear", narrow, scale, zero, **attrs)

    def pick(self, rank: int | None = None, least: int = 0, empty: bool = False) -> Value:
        """One of the floats, a late one rather than an early one."""
        fit = [v for v in self.floats if rank in (None, v.rank) and v.rank >= least and (empty or v.exact.size)]
        if not fit:
            raise Unfit
        return fit[int(len(fit) * self.rng.random() ** 0.5)]

    def pick_bytes(self, rank: int | None = None, least: int = 0) -> Quantized:
        fit = [q for q in self.bytes if rank in (None, q.value.rank) and q.value.rank >= least and q.value.exact.size]
        if not fit:
            raise Unfit
        return self.one(fit)

    def grow(self, steps: int) -> None:
        self.floats += [self.source() for _ in range(self.whole(1, 3))]
        if self.chance(0.7):
            self.floats.append(self.quantized(self.floats[-1]))
        done = 0
        for _ in range(steps * 8):
            try:
                made = self.one(STEPS)(self)
            except Unfit:
                continue
            for value in made if isinstance(made, list) else [made]:
                if self.chance(0.2):
                    self.floats.append(value)
                self.floats.append(self.quantized(value, one_scale=self.chance(0.6)) if self.chance(0.75) else value)
            done += 1
            if done == steps:
                break

    def finished(self) -> tuple[onnx.ModelProto, list[Value]]:
        """The model, and its outputs: what nothing reads, and some of the rest."""
        read = {name for node in self.nodes for name in node.input}
        made = [v for v in [*self.floats, *(q.value for q in self.bytes)] if v.name not in self.inputs]
        outputs = {v.name: v for v in made if v.name not in read or self.chance(0.15)} or {made[-1].name: made[-1]}
        return self.model(list(outputs.values())), list(outputs.values())


def limits(dtype: Any) -> tuple[int, int]:
    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


def code(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


# -- operators between pairs


def window(d: Draw, x: Value) -> dict[str, Any]:
    kernel = [min(d.whole(1, 3), size) for size in x.shape[2:]]
    pads = [d.whole(0, size // 2) for size in kernel * 2]
    return {"kernel_shape": kernel, "pads": pads, "strides": [d.whole(1, 2) for _ in kernel]}


def max_pool(d: Draw) -> Value:
    x = d.pick(4)
    return d.emit("MaxPool", x, **window(d, x))


def average_pool(d: Draw) -> Value:
    x = d.pick(4)
    return d.emit("AveragePool", x, **window(d, x), count_include_pad=d.whole(0, 1))


def global_average_pool(d: Draw) -> Value:
    return d.emit("GlobalAveragePool", d.pick(least=3))


def resize(d: Draw) -> Value:
    x, factors = d.pick(4), np.float32([1, 1, *d.rng.choice([0.5, 1, 2, 3], 2)])
    if not all(np.floor(x.shape * factors)):
        raise Unfit
    scales = Value(d.const(factors).name, (factors,) * d.count)
    mode = d.one(["nearest", "linear"])
    return d.emit("Resize", x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def concat(d: Draw) -> Value:
    x = d.pick(least=1, empty=True)
    axis = d.whole(0, x.rank - 1)
    fit = [v for v in d.floats if v.rank == x.rank and np.delete(v.shape, axis).tolist() == np.delete(x.shape, axis).tolist()]
    return d.emit("Concat", x, *(d.one(fit) for _ in range(d.whole(1, 2))), axis=axis - (x.rank if d.chance(0.4) else 0))


def pad(d: Draw) -> Value:
    x, mode = d.pick(least=1, empty=True), d.one(["constant", "constant", "edge", "reflect"])
    if mode != "constant" and min(x.shape) < 4:
        raise Unfit
    pads, numbers = d.const(np.int64([d.whole(0, 2) for _ in range(2 * x.rank)])), [0, 1.5, -0.25, 100, -1e38, 3.4e38, np.inf, -np.inf]
    filled = [d.const(np.float32(d.one(numbers)))] if mode == "constant" and d.chance(0.5) else []
    return d.emit("Pad", x, pads, *filled, mode=mode)


def clip(d: Draw) -> Value:
    low = d.const(np.float32(d.one([0, -LARGEST, -1, -0.5, -np.inf]))) if d.chance(0.5) else None
    high = d.const(np.float32(d.one([0, LARGEST, 6, 0.5, np.inf, 1e30]))) if d.chance(0.5) else None
    return d.emit("Clip", d.pick(empty=True), low, high)


def relu(d: Draw) -> Value:
    return d.emit("Relu", d.pick(empty=True))


def leaky_relu(d: Draw) -> Value:
    return d.emit("LeakyRelu", d.pick(empty=True), alpha=0.25)


def function(d: Draw) -> Value:
    return d.emit(d.one(["Sigmoid", "Tanh", "Gelu", "HardSwish", "Exp", "Erf"]), d.pick(empty=True))


def softmax(d: Draw) -> Value:
    x = d.pick(least=1)
    return d.emit("Softmax", x, axis=d.whole(-x.rank, x.rank - 1))


def layer_norm(d: Draw) -> Value:
    x = d.pick(least=1)
    return d.emit("LayerNormalization", x, d.weight((x.shape[-1],)), axis=-1)


def transpose(d: Draw) -> Value:
    x = d.pick(least=2, empty=True)
    return d.emit("Transpose", x, perm=d.rng.permutation(x.rank).tolist())


def split(d: Draw) -> list[Value]:
    x = d.pick(least=1)
    axis = d.whole(0, x.rank - 1)
    if x.shape[axis] < 2:
        raise Unfit
    first = d.whole(1, x.shape[axis] - 1)
    return list(d.emit("Split", x, d.const(np.int64([first, x.shape[axis] - first])), outputs=2, axis=axis))


def gather(d: Draw) -> Value:
    x = d.pick(least=1)
    axis = d.whole(0, x.rank - 1)
    places = d.rng.integers(-x.shape[axis], x.shape[axis], d.one([(), (3,), (2, 2)])).astype(np.int64)
    return d.emit("Gather", x, d.const(places) if d.chance(0.5) else d.input(places), axis=axis)


def reduce(d: Draw) -> Value:
    x = d.pick(least=1)
    return d.emit(d.one(["ReduceMean", "ReduceMax", "ReduceSum"]), x, d.const(np.int64([d.whole(0, x.rank - 1)])), keepdims=d.whole(0, 1))


def binary(d: Draw) -> Value:
    x = d.pick(empty=True)
    fit = [v for v in d.floats if _broadcasts(v.shape, x.shape)]
    return d.emit(d.one(["Add", "Mul", "Sub", "Max"]), x, d.one(fit))


def _broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(tuple(one), tuple(other))) < 8000
    except ValueError:
        return False


def matmul(d: Draw) -> Value:
    x = d.pick(least=2)
    match d.whole(0, 2):
        case 0:
            count = d.whole(1, 9)
            y = d.emit("MatMul", x, d.weight((x.shape[-1], count)))
            return d.emit("Add", y, d.bias(count)) if d.chance(0.4) else y
        case 1:
            return d.emit("MatMul", d.weight((d.whole(1, 9), x.shape[-2])), x)
        case _:
            fit = [v for v in d.floats if v.rank >= 2 and v.shape[-2] == x.shape[-1] and _broadcasts(v.shape[:-2], x.shape[:-2])]
            if not fit:
                raise Unfit
            return d.emit("MatMul", x, d.one(fit))


def gemm(d: Draw) -> Value:
    x, count, by_columns, by_rows = d.pick(2), d.whole(1, 9), d.whole(0, 1), d.whole(0, 1)
    depth = x.shape[0] if by_columns else x.shape[1]
    operands = [x, d.weight((count, depth) if by_rows else (depth, count))]
    operands += [d.bias(count)] if d.chance(0.6) else []
    return d.emit("Gemm", *operands, transA=by_columns, transB=by_rows, alpha=d.one([1.0, 0.5]), beta=1.0)


def filters(d: Draw, x: Value) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The shape of weights, and the geometry of a convolution."""
    attrs = window(d, x) | {"pads": [d.whole(0, 1) for _ in range(4)]}
    channels = x.shape[1]
    groups = d.one([1, 1, channels, math.gcd(channels, 2)])
    count = groups * d.whole(1, 4)
    if count > 40:
        raise Unfit
    return (count, channels // groups, *attrs["kernel_shape"]), attrs | {"group": groups}


def conv(d: Draw) -> Value:
    x = d.pick(4)
    shape, attrs = filters(d, x)
    return d.emit("Conv", x, d.weight(shape), *([d.bias(shape[0])] if d.chance(0.5) else []), **attrs)


def reshape(d: Draw) -> Value:
    x = d.pick()
    match d.whole(0, 3):
        case 0:
            return d.emit("Reshape", x, d.const(np.int64([-1])))
        case 1:
            return d.emit("Flatten", x, axis=d.whole(0, x.rank))
        case 2 if x.rank < 5:
            return d.emit("Unsqueeze", x, d.const(np.int64([d.whole(0, x.rank)])))
        case _ if x.rank:
            start, stop, axis = np.int64([0]), np.int64([2]), np.int64([d.whole(0, x.rank - 1)])
            return d.emit("Slice", x, d.const(start), d.const(stop), d.const(axis))
    raise Unfit


# -- operators on quantized tensors


def requantized(
    d: Draw, op: str, operands: Sequence[Value], result: Value, domain: str = "", last: Sequence[Value] = (), **attrs: Any
) -> Value:
    """A node that quantizes its result, and what that dequantizes to."""
    dtype = operands[0].dtype
    scale, zero = d.parameter(d.scale((), d.fitting(result, dtype))), d.parameter(d.zero(dtype))
    (narrow,) = d.values("QuantizeLinear", result, scale, zero)
    ends = (scale, zero)
    named = d.add(op, [*operands, *ends, *last], [narrow], domain, **attrs)
    d.bytes.append(Quantized(named, *ends))
    return d.emit("DequantizeLinear", named, *ends)


def as_floats(d: Draw, q: Quantized) -> Value:
    (value,) = d.values("DequantizeLinear", q.value, q.scale, q.zero)
    return value


def literal_weight(d: Draw, shape: tuple[int, ...], axis: int) -> tuple[list[Value], Value]:
    """Operands of an operator on quantized tensors, and what they mean: bytes with one scale or one for each place of an axis."""
    dtype, own = d.one(BYTES), d.one([(), (shape[axis],)])
    zero = np.zeros(own, dtype) if own or d.chance(0.5) else d.zero(dtype)
    operands = [d.const(d.integers(dtype, shape)), d.parameter(d.scale(own, 0.01)), d.parameter(zero)]
    (value,) = d.values("DequantizeLinear", *operands, axis=axis)
    return operands, value


def qlinear_conv(d: Draw) -> Value:
    q = d.pick_bytes(4)
    shape, attrs = filters(d, q.value)
    operands, w = literal_weight(d, shape, 0)
    (result,) = d.values("Conv", as_floats(d, q), w, **attrs)
    last: list[Value] = []
    if d.chance(0.5):
        last = [d.const(d.rng.integers(-3000, 3000, shape[0]).astype(np.int32))]
        scales = np.broadcast_to(q.scale.exact * operands[1].exact, (shape[0],)).reshape(-1, 1, 1)
        steps = last[0].exact.reshape(-1, 1, 1) * scales
        result = Value("", tuple(run + steps for run in result.runs))
    return requantized(d, "QLinearConv", [q.value, q.scale, q.zero, *operands], result, last=last, **attrs)


def qlinear_matmul(d: Draw) -> Value:
    q = d.pick_bytes(least=2)
    operands, w = literal_weight(d, (q.value.shape[-1], d.whole(1, 9)), 1)
    (result,) = d.values("MatMul", as_floats(d, q), w)
    return requantized(d, "QLinearMatMul", [q.value, q.scale, q.zero, *operands], result)


def qlinear_binary(d: Draw) -> Value:
    q = d.pick_bytes()
    fit = [o for o in d.bytes if o.value.dtype == q.value.dtype and _broadcasts(o.value.shape, q.value.shape)]
    op, other = d.one(["Add", "Mul"]), d.one(fit)
    (result,) = d.values(op, as_floats(d, q), as_floats(d, other))
    operands = [q.value, q.scale, q.zero, other.value, other.scale, other.zero]
    return requantized(d, f"QLinear{op}", operands, result, MICROSOFT)


def qlinear_unary(d: Draw) -> Value:
    op, q = d.one(["Sigmoid", "LeakyRelu", "GlobalAveragePool", "AveragePool"]), d.pick_bytes(4)
    attrs = {"Sigmoid": {}, "LeakyRelu": {"alpha": 0.25}, "GlobalAveragePool": {}, "AveragePool": window(d, q.value)}[op]
    (result,) = d.values(op, as_floats(d, q), **attrs)
    extra = {"channels_last": 0} if op == "GlobalAveragePool" else {}
    return requantized(d, f"QLinear{op}", [q.value, q.scale, q.zero], result, MICROSOFT, **attrs, **extra)


# -- products of integers, and quantization by data


def dynamic(d: Draw) -> Quantized:
    """Bytes of a tensor, with a scale that comes of it."""
    x = d.pick(least=2)
    if not np.isfinite(x.exact).all() or np.abs(x.exact).max() > 1e30:
        raise Unfit
    results = d.values("DynamicQuantizeLinear", d.moved(x, np.ones(x.shape, bool)), outputs=3)
    plain = quantized_in_f32(x.exact.astype(np.float32))
    runs = [(each.runs[0], own, *each.runs[2:]) for each, own in zip(results, plain, strict=True)]
    narrow, scale, zero = d.add("DynamicQuantizeLinear", [x], [Value("", each[: d.count]) for each in runs])
    return Quantized(narrow, scale, zero)


def quantized_in_f32(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What DynamicQuantizeLinear is, each step rounded to f32. Ties are ties together then: chance alone would not make them all so."""
    low, high = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.clip(np.round(-low / scale), 0, 255)
    numbers = np.clip(np.round(x / scale) + zero, 0, 255).astype(np.uint8)
    return numbers, np.asarray(scale, np.float64), np.asarray(zero, np.uint8)


def dequantized_dynamically(d: Draw) -> Value:
    q = dynamic(d)
    return d.emit("DequantizeLinear", q.value, q.scale, q.zero)


def integer_matmul(d: Draw) -> Value:
    q = dynamic(d) if d.chance(0.5) else d.pick_bytes(least=2)
    dtype, count = d.one(BYTES), d.whole(1, 9)
    w = d.const(d.integers(dtype, (q.value.shape[-1], count)))
    zero = d.parameter(d.zero(dtype, d.one([(), (count,)]))) if d.chance(0.6) else None
    sums = d.emit("MatMulInteger", q.value, w, *([q.zero, zero] if zero is not None or d.chance(0.8) else []))
    return _scaled_sums(d, sums, q, (count,))


def integer_conv(d: Draw) -> Value:
    q = d.pick_bytes(4) if d.chance(0.6) else dynamic(d)
    if q.value.rank != 4 or q.value.dtype != np.uint8:
        raise Unfit
    shape, attrs = filters(d, q.value)
    w, zero = d.const(d.integers(BYTES[0], shape)), d.parameter(d.zero(BYTES[0]))
    runs = Evaluation("Conv", (q.value, w), 1, attrs).of_all([_less(q.value, q.zero), _less(w, zero)], d.count)
    result = Value("", tuple(sums.astype(np.int64).astype(np.int32) for (sums,) in runs))
    sums = d.add("ConvInteger", [q.value, w, q.zero, zero], [result], **attrs)
    return _scaled_sums(d, sums, q, (shape[0], 1, 1))


def _less(x: Value, zero: Value) -> Value:
    return Value("", tuple(run.astype(np.float64) - point for run, point in zip(x.runs, zero.runs, strict=True)))


def _scaled_sums(d: Draw, sums: Value, q: Quantized, shape: tuple[int, ...]) -> Value:
    factor = d.emit("Mul", q.scale, d.parameter(d.scale(d.one([(), shape]), 0.01)))
    return d.emit("Mul", d.emit("Cast", sums, to=code(np.float32)), factor)


STEPS: tuple[Callable[[Draw], Any], ...] = (
    max_pool, average_pool, global_average_pool, resize, concat, pad, clip, relu, leaky_relu, function, softmax, layer_norm, transpose,
    split, gather, reduce, binary, matmul, matmul, gemm, conv, conv, reshape, qlinear_conv, qlinear_matmul, qlinear_binary, qlinear_unary,
    dequantized_dynamically, integer_matmul, integer_conv,
)  # fmt: skip


def draw(seed: int, style: str | None = None, steps: int = 4, runs: int = 6) -> tuple[Draw, onnx.ModelProto, list[Value]]:
    """A graph, its model, and the values of its outputs."""
    net = Draw(seed, runs, style)
    net.grow(steps)
    return net, *net.finished()
