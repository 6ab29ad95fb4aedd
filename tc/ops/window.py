"""Windows that slide over the spatial axes of [n, c, *space], and convolutions, of any spatial rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.dtype import DType, bf16, f32
from tc.ir.expr import Const, Expr, Select, cast, const, equal, is_const, logical_and
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import (
    BEYOND_ANY_DIM,
    Arrays,
    Tensors,
    Types,
    contract,
    operand,
    product_dtype,
    ravel,
    require_equal,
    rounded_sums,
    same_dtype,
    sliding_windows,
    sum_dtype,
    unravel,
    wide,
)
from tc.ops.registry import REQUIRED, BlockedForm, Form, OpDef, register, require
from tc.te import Tensor

_MOST_COPIED = 1 << 26
"""So many elements of windows, most of them many times, the reference of a convolution puts side by side."""

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


@dataclass(frozen=True)
class Window:
    """The geometry of a sliding window; one entry per spatial axis."""

    kernel: tuple[Expr | int, ...]
    strides: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    dilations: tuple[int, ...]

    def reach(self, d: int) -> Any:
        """How far the window extends along spatial axis d."""
        return (self.kernel[d] - 1) * self.dilations[d] + 1


def window_of(attrs: Attrs, kernel: Sequence[Any], rank: int, op: str) -> Window:
    """The window that an operator's attributes describe; absent ones mean stride 1, no padding, no dilation."""
    strides = tuple(attrs.strides or (1,) * rank)
    pads = tuple(attrs.pads or (0,) * (2 * rank))
    dilations = tuple(attrs.dilations or (1,) * rank)
    if not len(strides) == len(dilations) == len(kernel) == rank or len(pads) != 2 * rank:
        raise ShapeError(f"{op}: kernel, strides, pads and dilations must fit {rank} spatial axes")
    if min(strides) < 1 or min(dilations) < 1:
        raise ShapeError(f"{op}: strides and dilations must be at least 1")
    window = Window(tuple(kernel), strides, pads[:rank], pads[rank:], dilations)
    spans = [int(span) for span in (*pads, *(window.reach(d) for d in range(rank))) if isinstance(span, (int, Const))]
    far = next((span for span in spans if abs(span) > BEYOND_ANY_DIM), None)
    if far is not None:
        raise ShapeError(f"{op}: a window or padding of {far} elements along an axis")
    return window


def output_dim(dim: Expr, window: Window, d: int, ceil_mode: bool = False) -> Expr:
    """The number of window positions along spatial axis d. With `ceil_mode` the last one may stick out at the end, if it
    starts inside the input or its leading padding."""
    free = dim + (window.begin[d] + window.end[d]) - window.reach(d)
    stride = window.strides[d]
    if not ceil_mode:
        return simplify(free // stride + 1)
    count = (free + (stride - 1)) // stride + 1
    starts_inside = (count - 1) * stride < dim + window.begin[d]
    return simplify(Select(starts_inside, count, count - 1))


def pad_stage(x: Tensor, window: Window, extra: Sequence[Expr | int], value: Expr, name: str) -> Tensor:
    """`x` with `value` around its spatial axes; `extra` more at the end. Itself when there is nothing to add."""
    rank = len(window.kernel)
    if not any(window.begin) and not any(window.end) and all(isinstance(e, int) and e == 0 for e in extra):
        return x
    space = [x.shape[2 + d] + (window.begin[d] + window.end[d]) + extra[d] for d in range(rank)]

    def body(n: Expr, c: Expr, *axes: Expr) -> Expr:
        indices = [axis - window.begin[d] for d, axis in enumerate(axes)]
        inside = []
        for d, index in enumerate(indices):
            if window.begin[d]:
                inside.append(index >= 0)
            if window.end[d] or not (isinstance(extra[d], int) and extra[d] == 0):
                inside.append(index < x.shape[2 + d])
        return Select(logical_and(*inside), x[(n, c, *indices)], value)

    return te.compute((*x.shape[:2], *map(simplify, space)), body, name)


def taps(window: Window, axes: Sequence[Expr], offsets: Sequence[Expr]) -> list[Expr]:
    """The spatial indices that window position `axes` reads at tap `offsets`."""
    return [
        axis * stride + offset * dilation
        for axis, offset, stride, dilation in zip(axes, offsets, window.strides, window.dilations, strict=True)
    ]


# -- convolution


def _conv_window(x: TensorType, w: TensorType, attrs: Attrs, op: str) -> Window:
    if x.rank < 3 or w.rank != x.rank:
        raise ShapeError(f"{op}: operands must be [n, c, *space] and [o, c / groups, *kernel], found {x} and {w}")
    return window_of(attrs, w.shape[2:], x.rank - 2, op)


def conv_shape(x: TensorType, w: TensorType, attrs: Attrs, op: str) -> tuple[Expr, ...]:
    """x [n, c, *space], w [o, c / groups, *kernel] -> [n, o, *space']."""
    window = _conv_window(x, w, attrs, op)
    require(
        equal(x.shape[1], w.shape[1] * attrs.groups),
        f"{op}: x has {x.shape[1]} channels, but the weights take {w.shape[1]} in each of {attrs.groups} groups",
    )
    require(equal(w.shape[0] % attrs.groups, 0), f"{op}: {w.shape[0]} output channels in {attrs.groups} groups")
    space = tuple(output_dim(x.shape[2 + d], window, d) for d in range(x.rank - 2))
    return (x.shape[0], w.shape[0], *space)


def _infer_conv(types: Types, attrs: Attrs) -> TensorType:
    x, w = operand(types, 0, "conv"), operand(types, 1, "conv")
    shape = conv_shape(x, w, attrs, "conv")
    if len(types) > 2 and types[2] is not None:
        require(equal(types[2].shape[0], w.shape[0]), f"conv: bias {types[2]} for {w.shape[0]} output channels")
    dtype = product_dtype(attrs, same_dtype(types[:2], "conv"))
    if dtype is x.dtype:
        same_dtype(types, "conv")
    return TensorType(shape, dtype)


def numpy_windows(x: np.ndarray, window: Window, counts: Sequence[int]) -> np.ndarray:
    """[n, c, *counts, *kernel]: every window of an already padded array."""
    rank = len(window.kernel)
    reach = tuple(int(window.reach(d)) for d in range(rank))
    view = sliding_windows(x, reach, range(2, 2 + rank))
    steps = tuple(slice(0, (n - 1) * s + 1 if n else 0, s) for n, s in zip(counts, window.strides, strict=True))
    return view[(slice(None), slice(None), *steps, *(slice(None, None, d) for d in window.dilations))]


def int_window(attrs: Attrs, kernel: Sequence[int], rank: int, op: str) -> Window:
    return window_of(attrs, [int(k) for k in kernel], rank, op)


def _count(size: int, window: Window, d: int) -> int:
    return int((size + window.begin[d] + window.end[d] - int(window.reach(d))) // window.strides[d] + 1)


def _run_conv(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, w = arrays[0], arrays[1]
    assert x is not None and w is not None
    result = numpy_conv(wide(x), wide(w), attrs, 0)
    if len(arrays) > 2 and arrays[2] is not None:
        result = result + wide(arrays[2]).reshape(1, -1, *(1,) * (x.ndim - 2))
    return rounded_sums(result, attrs, x)


def numpy_conv(x: np.ndarray, w: np.ndarray, attrs: Attrs, fill: int) -> np.ndarray:
    """The sums of a convolution of x with `fill` around it, in x's dtype."""
    rank = x.ndim - 2
    window = int_window(attrs, w.shape[2:], rank, "conv")
    counts = [max(_count(x.shape[2 + d], window, d), 0) for d in range(rank)]
    padded = np.pad(x, [(0, 0), (0, 0), *zip(window.begin, window.end, strict=True)], constant_values=fill)
    groups, per_group = attrs.groups, w.shape[0] // attrs.groups
    result = np.zeros((x.shape[0], w.shape[0], *counts), padded.dtype)
    if result.size:
        windows = numpy_windows(padded, window, counts)
        axes = [1, *range(2 + rank, 2 + 2 * rank)]
        many = windows[:, : w.shape[1]].size > _MOST_COPIED
        for g in range(groups):
            chosen = windows[:, g * w.shape[1] : (g + 1) * w.shape[1]]
            weights = w[g * per_group : (g + 1) * per_group]
            if many:  # tap by tap, as the windows side by side would not fit
                taps_of = np.ndindex(*weights.shape[2:])
                part = sum(contract(chosen[(..., *tap)], weights[(..., *tap)], ([1], [1])) for tap in taps_of)
            else:
                part = contract(chosen, weights, (axes, list(range(1, 2 + rank))))
            result[:, g * per_group : (g + 1) * per_group] = np.moveaxis(part, -1, 1)
    return result


def _compute_conv(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, w = tensors[0], tensors[1]
    assert x is not None and w is not None
    return compute_sums(x, w, tensors[2] if len(tensors) > 2 else None, attrs, types[0], sum_dtype(x.dtype), 0)


def compute_sums(
    x: Tensor, w: Tensor, bias: Tensor | None, attrs: Attrs, type_: TensorType, dtype: DType, fill: int
) -> Tensor:
    """A convolution of x with `fill` around it, summed in `dtype`.

    The sums have an axis for groups, if there are several, and one for all spatial axes of a kernel of one element: tiles of pixels
    then run on across the ends of rows.
    """
    rank, groups = len(x.shape) - 2, attrs.groups
    window = window_of(attrs, w.shape[2:], rank, "conv")
    padded = pad_stage(x, window, (0,) * rank, const(fill, x.dtype), "conv_pad")
    per_group = simplify(w.shape[0] // groups)
    single = is_const(w.shape[1], 1)  # one input channel per group: its axis is no reduction
    joint = is_pointwise(window) and rank > 1
    grouped = groups > 1 and not is_const(per_group, 1)
    n, _, *space = type_.shape
    channel_shape = (const(groups), per_group) if grouped else (type_.shape[1],)
    space_shape = (simplify(product(space)),) if joint else tuple(space)

    def body(n: Expr, *rest: Expr) -> Expr:
        channels, rest = rest[: len(channel_shape)], rest[len(channel_shape) :]
        axes, reduce_axes = rest[: len(space_shape)], rest[len(space_shape) :]
        o = ravel(channels, channel_shape)
        channel = const(0) if single else reduce_axes[0]
        offsets = tuple(const(0) for _ in space) if joint else reduce_axes[len(reduce_axes) - rank :]
        places = unravel(axes[0], space) if joint else taps(window, axes, offsets)
        first = channels[0] * w.shape[1] if groups > 1 else const(0)
        return cast(padded[(n, first + channel, *places)], dtype) * cast(w[(o, channel, *offsets)], dtype)

    reduce_shape = (() if single else w.shape[1:2]) + (() if joint else w.shape[2:])
    if not reduce_shape:
        reduce_shape = (const(1),)
    total = te.reduce("sum", (n, *channel_shape, *space_shape), reduce_shape, body, "conv")
    if bias is None and dtype == type_.dtype and not grouped and not joint:
        return total

    def at(n: Expr, o: Expr, *axes: Expr) -> Expr:
        place = (ravel(axes, space),) if joint else axes
        return total[(n, *unravel(o, channel_shape), *place)]

    return _with_bias(at, bias, type_, dtype)


def _with_bias(total: Callable[..., Expr], bias: Tensor | None, type_: TensorType, dtype: DType) -> Tensor:
    """The sums plus one number per channel, in the dtype of the result."""

    def finish(n: Expr, o: Expr, *axes: Expr) -> Expr:
        value = total(n, o, *axes)
        if bias is not None:
            value = value + cast(bias[o], dtype)
        return cast(value, type_.dtype)

    return te.compute(type_.shape, finish, "conv_bias")


def is_pointwise(window: Window) -> bool:
    """Whether every window is one element: then the operator is a matrix product over pixels."""
    ones = all(is_const(k, 1) if isinstance(k, Expr) else k == 1 for k in window.kernel)
    return ones and set(window.strides) == {1} and not any(window.begin) and not any(window.end)


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _conv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield [_normal(rng, 1, 3, 7, 6), _normal(rng, 4, 3, 3, 3), _normal(rng, 4)], {"pads": (1, 1, 1, 1)}
    yield [_normal(rng, 2, 4, 5, 5), _normal(rng, 6, 2, 3, 2)], {"groups": 2, "strides": (2, 1), "pads": (0, 1, 2, 0)}
    yield [_normal(rng, 1, 4, 8, 8), _normal(rng, 4, 1, 3, 3)], {"groups": 4, "dilations": (2, 2)}
    yield [_normal(rng, 1, 2, 4, 3), _normal(rng, 6, 1, 1, 1)], {"groups": 2}
    yield [_normal(rng, 2, 6, 5, 7), _normal(rng, 10, 3, 1, 1), _normal(rng, 10)], {"groups": 2}
    yield [_normal(rng, 1, 2, 9), _normal(rng, 3, 2, 4)], {"strides": (3,)}
    yield [_normal(rng, 1, 2, 3, 4, 3), _normal(rng, 2, 2, 2, 2, 2)], {"pads": (1,) * 6}
    yield [_normal(rng, 0, 2, 4, 4), _normal(rng, 2, 2, 1, 1)], {}
    halves = [_normal(rng, 1, 6, 5, 5).astype(bf16.numpy), _normal(rng, 4, 3, 3, 3).astype(bf16.numpy), _normal(rng, 4)]
    yield halves, {"groups": 2, "dtype": f32}


CONV_DEFAULTS: dict[str, Any] = {"strides": None, "pads": None, "dilations": None, "groups": 1}
FEW_CHANNELS = 4
"""Up to so many input channels a convolution reads its input unblocked, or bytes in blocks of so many: a block would be mostly empty."""

LEAST_OUTPUTS = 4
"""So many channels of sums of bytes are worth a block of any width: the other way is a copy of all windows and a product of few columns."""


def _blocked_conv(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
    is_float = all(type_ is None or (type_.dtype.bits in (16, 32) and type_.dtype.is_float) for type_ in types)
    return blocked_conv(types, attrs, block, "conv") if is_float else None


def blocked_conv(types: Types, attrs: Attrs, block: int, op: str) -> BlockedForm | None:
    """As `conv_blocked`; of as many groups together as fill blocks."""
    x, w = operand(types, 0, op), operand(types, 1, op)
    if not all(is_const(dim) for dim in w.shape) or not is_const(x.shape[1]):
        return None
    channels, outputs, groups = int(x.shape[1]), int(w.shape[0]), attrs.groups  # type: ignore[call-overload]
    depthwise = groups == channels == outputs and groups > 1
    if outputs < min(block // 4, block if x.dtype.is_float else LEAST_OUTPUTS):
        return None
    merged = 1 if groups == 1 or depthwise else merged_groups(channels // groups, outputs // groups, groups, block)
    window = _conv_window(x, w, attrs, op)
    few, is_integer = groups == 1 and channels <= FEW_CHANNELS, not x.dtype.is_float
    plain = few and not is_integer
    weights = Form.OUTPUTS if plain or depthwise else Form.GROUPED if is_integer else Form.WEIGHTS
    own = {
        "strides": window.strides,
        "pads": (*window.begin, *window.end),
        "dilations": window.dilations,
        "groups": 1 if depthwise else -(-groups // merged),
        "depthwise": depthwise,
        "in_channels": channels if merged in (1, groups) else -(-groups // merged) * merged * (channels // groups),
        "in_block": 0 if plain else FEW_CHANNELS if few else block,
    }
    if is_integer:
        own["fill"] = attrs.fill if any(own["pads"]) else 0  # convolutions that have nothing around them are equal
    elif attrs.dtype:
        own["dtype"] = attrs.dtype
    image = Form.PLAIN if plain else Form.FEW if few else Form.CHANNELS
    return BlockedForm("conv_blocked", tuple(own.items()), (image, weights, Form.OUTPUTS)[: len(types)], groups=groups if merged > 1 else 0)


def inputs_of_group(form: BlockedForm) -> int:
    """How many input channels a group of a convolution on blocks has."""
    own: dict[str, Any] = dict(form.attrs)
    return int(own["in_channels"] // own["groups"])


def merged_groups(channels: int, outputs: int, groups: int, block: int) -> int:
    """How many groups of so many channels and outputs together are whole blocks; all where the last of them would need blocks that the
    image or the result does not have."""
    merged = math.lcm(block // math.gcd(channels, block), block // math.gcd(outputs, block))
    rounds = -(-groups // merged)
    is_whole = all(rounds * merged * own // block == -(-groups * own // block) for own in (channels, outputs))
    return merged if is_whole else groups


register(
    OpDef(
        "conv",
        _infer_conv,
        _run_conv,
        _compute_conv,
        {**CONV_DEFAULTS, "dtype": None},
        blocked=_blocked_conv,
        factors=2,
        depth=(1, 1),
        samples=_conv_samples,
    )
)


# -- windows side by side


def _infer_windows(types: Types, attrs: Attrs) -> TensorType:
    """x [n, c, *space] -> [n, c, *kernel, *counts]: for each tap what it reads in each window of x with `fill` around it."""
    x = operand(types, 0, "windows")
    rank = len(attrs.kernel)
    if x.rank != rank + 2 or min(attrs.kernel) < 1:
        raise ShapeError(f"windows: a kernel of {attrs.kernel} does not fit {x}, which must be [n, c, *space]")
    window = window_of(attrs, attrs.kernel, rank, "windows")
    counts = [output_dim(dim, window, d) for d, dim in enumerate(x.shape[2:])]
    return TensorType((*x.shape[:2], *map(const, attrs.kernel), *counts), x.dtype)


def _run_windows(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    rank = x.ndim - 2
    window = int_window(attrs, attrs.kernel, rank, "windows")
    around = [(0, 0), (0, 0), *zip(window.begin, window.end, strict=True)]
    counts = [max(_count(x.shape[2 + d], window, d), 0) for d in range(rank)]
    if not all(x.shape[:2]) or not all(counts):
        return np.zeros((*x.shape[:2], *window.kernel, *counts), x.dtype)
    spatial, inside = range(2, 2 + rank), range(2 + rank, 2 + 2 * rank)
    padded = np.pad(x, around, constant_values=attrs.fill)
    return np.ascontiguousarray(numpy_windows(padded, window, counts).transpose(0, 1, *inside, *spatial))


def _compute_windows(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, rank = tensors[0], len(attrs.kernel)
    assert x is not None
    window = window_of(attrs, attrs.kernel, rank, "windows")
    padded = pad_stage(x, window, (0,) * rank, const(attrs.fill, x.dtype), "windows_pad")

    def body(n: Expr, c: Expr, *axes: Expr) -> Expr:
        return padded[(n, c, *taps(window, axes[rank:], axes[:rank]))]

    return te.compute(types[0].shape, body, "windows")


def _windows_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield [_normal(rng, 2, 3, 6, 5)], {"kernel": (3, 2)}
    yield [rng.integers(0, 256, (1, 4, 9, 8)).astype(np.uint8)], {"kernel": (3, 3), "strides": (2, 1), "dilations": (1, 2)}
    yield [rng.integers(0, 256, (1, 4, 3, 8)).astype(np.uint8)], {"kernel": (3, 2), "pads": (1, 0, 2, 1), "fill": 7}
    yield [_normal(rng, 1, 2, 7)], {"kernel": (7,)}
    yield [_normal(rng, 0, 2, 4)], {"kernel": (2,)}


register(
    OpDef(
        "windows",
        _infer_windows,
        _run_windows,
        _compute_windows,
        {"kernel": REQUIRED, "strides": None, "dilations": None, "pads": None, "fill": 0},
        samples=_windows_samples,
    )
)


# -- transposed convolution


def _transposed_dims(x: Sequence[Any], window: Window, extra: Sequence[int]) -> list[Any]:
    return [
        (x[2 + d] - 1) * window.strides[d] + window.reach(d) + extra[d] - window.begin[d] - window.end[d]
        for d in range(len(extra))
    ]


def _infer_conv_transpose(types: Types, attrs: Attrs) -> TensorType:
    x, w = operand(types, 0, "conv_transpose"), operand(types, 1, "conv_transpose")
    window = _conv_window(x, w, attrs, "conv_transpose")
    require(equal(x.shape[1], w.shape[0]), f"conv_transpose: {x.shape[1]} channels, weights for {w.shape[0]}")
    require(equal(x.shape[1] % attrs.groups, 0), f"conv_transpose: {x.shape[1]} channels in {attrs.groups} groups")
    extra = attrs.output_padding or (0,) * (x.rank - 2)
    space = tuple(map(simplify, _transposed_dims(x.shape, window, extra)))
    channels = simplify(w.shape[1] * attrs.groups)
    bias = types[2] if len(types) > 2 else None
    if bias is not None:
        if bias.rank != 1:
            raise ShapeError(f"conv_transpose: the bias is {bias}, but must have 1 dim")
        require_equal(bias.shape[0], channels, "conv_transpose: the bias' size")
    return TensorType((x.shape[0], channels, *space), same_dtype(types, "conv_transpose"))


def _run_conv_transpose(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, w = arrays[0], arrays[1]
    assert x is not None and w is not None
    rank = x.ndim - 2
    window = int_window(attrs, w.shape[2:], rank, "conv_transpose")
    extra = attrs.output_padding or (0,) * rank
    counts = [int(n) for n in _transposed_dims(x.shape, window, extra)]
    groups, inputs, outputs = attrs.groups, w.shape[0] // attrs.groups, w.shape[1]
    margins = [max(-window.begin[d], 0) for d in range(rank)]  # in front of what the kernels cover, where padding is negative
    full = [
        margins[d] + max(n + window.begin[d] + window.end[d] - extra[d], n + window.begin[d]) for d, n in enumerate(counts)
    ]
    result = np.zeros((x.shape[0], outputs * groups, *full), wide(x).dtype)
    for tap in np.ndindex(*w.shape[2:]):
        place = tuple(
            slice(m + t * dil, m + t * dil + (size - 1) * stride + 1, stride) if size else slice(0, 0)
            for m, t, dil, size, stride in zip(margins, tap, window.dilations, x.shape[2:], window.strides, strict=True)
        )
        for g in range(groups):
            part = contract(
                wide(x[:, g * inputs : (g + 1) * inputs]),
                wide(w[(slice(g * inputs, (g + 1) * inputs), slice(None), *tap)]),
                ([1], [0]),
            )
            result[(slice(None), slice(g * outputs, (g + 1) * outputs), *place)] += np.moveaxis(part, -1, 1)
    starts = [margins[d] + window.begin[d] for d in range(rank)]
    inside = tuple(slice(start, start + n) for start, n in zip(starts, counts, strict=True))
    result = result[(slice(None), slice(None), *inside)]
    if len(arrays) > 2 and arrays[2] is not None:
        result = result + wide(arrays[2]).reshape(1, -1, *(1,) * rank)
    return np.ascontiguousarray(result).astype(x.dtype)


def _compute_conv_transpose(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    """Each output element gathers the inputs whose windows cover it: those at (o + begin - tap * dilation) / stride."""
    x, w = tensors[0], tensors[1]
    assert x is not None and w is not None
    rank = len(x.shape) - 2
    window = window_of(attrs, w.shape[2:], rank, "conv_transpose")
    groups, outputs = attrs.groups, w.shape[1]
    inputs = simplify(w.shape[0] // groups)
    dtype = sum_dtype(x.dtype)

    def body(n: Expr, o: Expr, *rest: Expr) -> Expr:
        axes, channel, offsets = rest[:rank], rest[rank], rest[rank + 1 :]
        source, inside = [], []
        for d, (axis, offset) in enumerate(zip(axes, offsets, strict=True)):
            place = axis + window.begin[d] - offset * window.dilations[d]
            index = place // window.strides[d]
            source.append(index)
            inside += [place >= 0, index < x.shape[2 + d]]
            if window.strides[d] > 1:
                inside.append(equal(place % window.strides[d], 0))
        input_channel = channel if groups == 1 else o // outputs * inputs + channel
        output_channel = o if groups == 1 else o % outputs
        value = x[(n, input_channel, *source)]
        weight = w[(input_channel, output_channel, *offsets)]
        return Select(logical_and(*inside), cast(value, dtype) * cast(weight, dtype), const(0, dtype))

    total = te.reduce("sum", types[0].shape, (inputs, *w.shape[2:]), body, "conv_transpose")
    bias = tensors[2] if len(tensors) > 2 else None
    if bias is None and dtype == types[0].dtype:
        return total

    def finish(n: Expr, o: Expr, *axes: Expr) -> Expr:
        value: Expr = total[(n, o, *axes)]
        return cast(value if bias is None else value + cast(bias[o], dtype), types[0].dtype)

    return te.compute(types[0].shape, finish, "conv_bias")


def _transposed_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield [_normal(rng, 1, 3, 4, 5), _normal(rng, 3, 2, 3, 3), _normal(rng, 2)], {"strides": (2, 2), "pads": (1, 1, 1, 1)}
    yield [_normal(rng, 1, 4, 3), _normal(rng, 4, 2, 3)], {"groups": 2, "strides": (3,), "output_padding": (1,)}
    yield [_normal(rng, 1, 2, 4, 4), _normal(rng, 2, 1, 2, 2)], {"dilations": (2, 2)}
    yield [_normal(rng, 1, 2, 4), _normal(rng, 2, 3, 2)], {"strides": (5,), "pads": (-2, -1)}


register(
    OpDef(
        "conv_transpose",
        _infer_conv_transpose,
        _run_conv_transpose,
        _compute_conv_transpose,
        {**CONV_DEFAULTS, "output_padding": None},
        factors=2,
        samples=_transposed_samples,
    )
)
