"""Convolutions, pooling and normalisation of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.assumptions import assume_large_enough
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.ops_training import batch_norm_of_batch
from tc.frontend.onnx.tensors import dtype_of
from tc.frontend.onnx.values import ModelValue
from tc.ir.arith import Facts, prove, simplify
from tc.ir.dtype import DType, f32, f64, int_range
from tc.ir.expr import Const, Expr, ceildiv, const, equal, is_const, logical_and, maximum, select
from tc.ir.types import product
from tc.ops.common import normalize_axis, require_equal
from tc.ops.norm import require_divided
from tc.ops.registry import require
from tc.ops.window import Window, output_dim

_MAX_SPACE = 3


def _any_space(n: NodeContext, x: ModelValue) -> int:
    """The number of spatial axes of [n, c, *space]."""
    if x.rank < 3:
        raise ShapeError(f"{n.op_type}: the input must be [n, c, *space], found {x.type}")
    return x.rank - 2


def _space(n: NodeContext, x: ModelValue) -> int:
    """The same, of a convolution."""
    if _any_space(n, x) > _MAX_SPACE:
        supported = f"up to {_MAX_SPACE}"
        raise UnsupportedError(f"{n.op_type} over {x.rank - 2} spatial axes", code="TC1014", supported=supported)
    return x.rank - 2


def _list(n: NodeContext, name: str, count: int, default: int) -> list[int]:
    """An attribute with one integer per spatial axis."""
    found = n.attr(name) or [default] * count
    if len(found) != count:
        raise ShapeError(f"{n.op_type}: {name} has {len(found)} entries for {count} spatial axes")
    return list(found)


def _kernel(n: NodeContext, rank: int) -> list[int]:
    """The size of a pool's window."""
    given = n.attr("kernel_shape")
    if given is None or len(given) != rank:
        raise ShapeError(f"{n.op_type}: kernel_shape must have {rank} entries")
    return list(given)


def _weights(n: NodeContext, w: ModelValue, rank: int) -> tuple[ModelValue, list[Expr]]:
    """Weights [_, _, *kernel] and the kernel: `kernel_shape` where it is given, and the weights must then have it."""
    if w.rank != rank + 2:
        raise ShapeError(f"{n.op_type}: weights {w.type} for {rank} spatial axes")
    if not n.attr("kernel_shape"):
        return w, list(w.shape[2:])
    kernel: list[Expr] = [const(size) for size in _kernel(n, rank)]
    same = logical_and(*(equal(dim, size) for dim, size in zip(w.shape[2:], kernel, strict=True)))
    text = f"{n.op_type}: kernel_shape is {n.attr('kernel_shape')}, but the weights are {w.type}"
    n.graph.state(lambda: require(same, text), n.span)
    if list(w.shape[2:]) == kernel:
        return w, kernel
    return n.call("reshape", w, shape=(*w.shape[:2], *kernel)), kernel


def _window_pads(
    n: NodeContext, x: ModelValue, kernel: Sequence[Expr | int], strides: Sequence[int], dilations: Sequence[int], *, cuts: bool = False
) -> list[Expr]:
    """Padding at the begin of all axes, then at their ends; `auto_pad` resolved.

    cuts: where windows are shorter than their steps, "SAME" may leave out elements in front: padding below 0, as ONNX says of pools.
    """
    rank = len(kernel)
    auto = n.attr("auto_pad", "NOTSET") or "NOTSET"
    if auto in ("NOTSET", "VALID"):
        pads = _list(n, "pads", 2 * rank, 0) if auto == "NOTSET" else [0] * (2 * rank)
        return [const(p) for p in pads]
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise NodeError(f"{n.op_type}: there is no auto_pad {auto!r}")
    begin, end = [], []
    for d in range(rank):
        dim = x.shape[2 + d]
        reach = (kernel[d] - 1) * dilations[d] + 1
        missing = (ceildiv(dim, strides[d]) - 1) * strides[d] + reach - dim
        total = simplify(missing if cuts else maximum(missing, 0), n.facts)
        twice = total if auto == "SAME_UPPER" else total + 1
        begin.append(simplify(twice // 2 + (select(twice < 0, twice % 2, 0) if cuts else 0), n.facts))  # the half, towards 0
        end.append(simplify(total - begin[-1], n.facts))
    return [*begin, *end]


def _fixed(n: NodeContext, x: ModelValue, pads: Sequence[Expr], fill: ModelValue | None) -> tuple[ModelValue, tuple[int, ...]]:
    """The input and padding in integers; padding that depends on dims is done before, with `fill`."""
    if all(isinstance(p, Const) for p in pads):
        return x, tuple(int(p) for p in pads)
    rank = len(pads) // 2
    zero = (const(0), const(0))
    amounts = (*zero, *pads[:rank], *zero, *pads[rank:])
    return n.call("pad", x, fill, pads=amounts), (0,) * len(pads)


# -- convolutions


@onnx_op("Conv")
def import_conv(n: NodeContext) -> NodeResult:
    return convolve(n, n.value(0), n.value(1), n.optional(2))


def convolve(n: NodeContext, x: ModelValue, w: ModelValue, bias: ModelValue | None) -> ModelValue:
    """A convolution with the node's attributes."""
    rank = _space(n, x)
    w, kernel = _weights(n, w, rank)
    strides, dilations = _list(n, "strides", rank, 1), _list(n, "dilations", rank, 1)
    x, pads = _fixed(n, x, _window_pads(n, x, kernel, strides, dilations), None)
    return n.call(
        "conv", x, w, bias, strides=tuple(strides), pads=pads, dilations=tuple(dilations), groups=n.attr("group", 1)
    )


@onnx_op("ConvTranspose")
def import_conv_transpose(n: NodeContext) -> NodeResult:
    return transposed_convolve(n, n.value(0), n.value(1), n.optional(2))


def transposed_convolve(
    n: NodeContext, x: ModelValue, w: ModelValue, bias: ModelValue | None, cut: Sequence[Expr] | None = None
) -> ModelValue:
    """A transposed convolution with the node's attributes. cut: its padding, where that is no attribute."""
    rank = _space(n, x)
    w, kernel = _weights(n, w, rank)
    strides, dilations = _list(n, "strides", rank, 1), _list(n, "dilations", rank, 1)
    extra = _list(n, "output_padding", rank, 0)
    pads, added = _transposed_pads(n, x, kernel, strides, dilations, extra) if cut is None else (cut, [const(more) for more in extra])
    attrs = {"strides": tuple(strides), "dilations": tuple(dilations), "groups": n.attr("group", 1)}
    if all(isinstance(amount, Const) for amount in (*pads, *added)):
        attrs |= {"pads": tuple(map(int, pads)), "output_padding": tuple(map(int, added))}
        return n.call("conv_transpose", x, w, bias, **attrs)
    # What depends on dims is cut off, or added, afterwards; the bias stands in what is added, too.
    whole = n.call("conv_transpose", x, w, None, **attrs, output_padding=tuple(extra))
    begin = [simplify(-pad) for pad in pads[:rank]]
    end = [simplify(more - own - pad) for more, own, pad in zip(added, extra, pads[rank:], strict=True)]
    zero = (const(0), const(0))
    result = n.call("pad", whole, None, pads=(*zero, *begin, *zero, *end))
    return result if bias is None else n.call("add", result, _per_channel(n, bias, x.rank))


def _transposed_pads(
    n: NodeContext,
    x: ModelValue,
    kernel: Sequence[Expr],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
) -> tuple[list[Expr], list[Expr]]:
    """What is cut off the begins and ends of the result, and what is added at its ends; from `output_shape` or
    `auto_pad` if they are given.

    Where a SAME result is larger than what the kernels cover, there is less than nothing to cut off, on both sides.
    """
    rank = len(kernel)
    auto = n.attr("auto_pad", "NOTSET") or "NOTSET"
    wanted = n.attr("output_shape")
    added: list[Expr] = [const(amount) for amount in extra]
    if not wanted and auto in ("NOTSET", "VALID"):
        pads = _list(n, "pads", 2 * rank, 0) if auto == "NOTSET" else [0] * (2 * rank)
        return [const(pad) for pad in pads], added
    begin, end = [], []
    for d in range(rank):
        # With a wanted size the whole result is strides * (dim - 1) + extra + reach; what is too much goes.
        reach = (kernel[d] - 1) * dilations[d] + 1
        dim = x.shape[2 + d]
        size = const(wanted[d]) if wanted else dim * strides[d]
        cut = simplify((dim - 1) * strides[d] + extra[d] + reach - size, n.facts)
        if wanted:
            cut, added[d] = maximum(cut, 0), simplify(added[d] + maximum(-cut, 0), n.facts)
        smaller = simplify(cut // 2, n.facts)
        larger = simplify(cut - smaller, n.facts)
        at_begin = auto == "SAME_LOWER" or (wanted and auto != "SAME_UPPER")
        begin.append(larger if at_begin else smaller)
        end.append(smaller if at_begin else larger)
    return [*begin, *end], added


@onnx_op("Col2Im", since=18)
def import_col2im(n: NodeContext) -> NodeResult:
    image, block = n.dims(1, "image_shape"), n.dims(2, "block_shape")
    rank = len(image)
    entries = (("strides", rank, 1), ("dilations", rank, 1), ("pads", 2 * rank, 0))
    attrs = {name: tuple(_list(n, name, count, default)) for name, count, default in entries}
    return n.call("col2im", n.value(0), image=image, block=block, **attrs)


def _per_channel(n: NodeContext, value: ModelValue, rank: int) -> ModelValue:
    """A value per channel, to broadcast along axis 1."""
    if is_const(product(value.shape), 1):
        return value if value.rank == 0 else n.call("reshape", value, shape=())
    return n.call("reshape", value, shape=(const(1), value.shape[0], *[const(1)] * (rank - 2)))


# -- pooling


def _may_be_short(n: NodeContext, x: ModelValue, window: Sequence[tuple[int, int, int]]) -> bool:
    """Whether a window, (reach, stride, padding) for each axis, may be longer than its padded input, by less than a stride.

    onnxruntime then computes one result, of what there is, where the formula of the specification gives none: it divides toward zero. The
    program may be one for images large enough, whose sizes then are what the formula says: a choice in each would be part of all behind it.
    """
    is_short = False
    for dim, (reach, stride, padding) in zip(x.shape[2:], window, strict=False):
        fits = partial(_fits, dim, reach - padding)
        if stride > 1 and not fits(n.facts):
            assume_large_enough(n.graph.builder, n.graph.shared, dim, fits, n.span)
            is_short = is_short or not fits(n.facts)
    return is_short


def _fits(dim: Expr, reach: int, facts: Facts) -> bool:
    """Whether a dim is one window long at least, if it is not 0."""
    return prove(dim - reach >= 0, facts.assume(dim >= 1)) is True


def _lowest(dtype: DType) -> int | float:
    """What no maximum is below."""
    return -math.inf if dtype.is_float else int_range(dtype)[0]


def _covering(x: ModelValue, pads: Sequence[Expr], window: Window) -> list[Expr]:
    """The padding with as much at the ends as the last windows reach beyond it where `ceil_mode` takes these."""
    rank = len(window.kernel)
    ends = []
    for d, dim in enumerate(x.shape[2:]):
        needed = (output_dim(dim, window, d, True) - 1) * window.strides[d] + window.reach(d) - (dim + window.begin[d])
        ends.append(simplify(maximum(needed, window.end[d])))
    return [*pads[:rank], *ends]


def pool(op: str, n: NodeContext, x: ModelValue, *, overhang_is_padding: bool = False, **attrs: bool | int) -> ModelValue:
    """A pool with the node's window. overhang_is_padding: so is what windows of `ceil_mode` reach beyond it."""
    rank = _any_space(n, x)
    kernel = _kernel(n, rank)
    strides, dilations = _list(n, "strides", rank, 1), _list(n, "dilations", rank, 1)
    pads = _window_pads(n, x, kernel, strides, dilations, cuts=True)
    ceil_mode = bool(n.attr("ceil_mode", 0))
    if ceil_mode and overhang_is_padding and all(isinstance(p, Const) for p in pads):
        begin, end = (tuple(int(p) for p in part) for part in (pads[:rank], pads[rank:]))
        pads, ceil_mode = _covering(x, pads, Window(tuple(kernel), tuple(strides), begin, end, tuple(dilations))), False
    if not all(isinstance(p, Const) for p in pads):
        if op == "max_pool":
            x, pads = _fixed(n, x, pads, n.const(_lowest(x.dtype), x.dtype))
        elif op == "lp_pool" or attrs.get("count_include_pad"):
            x, pads = _fixed(n, x, pads, None)
        elif op == "avg_pool":  # of what is inside: the sums over how many there are, each over the size of the window
            inside = n.call("full", value=1, dtype=x.dtype, shape=(1, 1, *x.shape[2:]))
            sums, counts = (pool(op, n, each, count_include_pad=True) for each in (x, inside))
            return n.call("div", sums, counts)
    if not all(isinstance(p, int | Const) for p in pads):
        raise UnsupportedError(f"{n.op_type}: the padding depends on dims: {', '.join(map(str, pads))}", code="TC1015")
    window = [
        ((kernel[d] - 1) * dilations[d] + 1, strides[d], int(pads[d]) + int(pads[rank + d])) for d in range(rank)
    ]
    return n.call(
        op,
        x,
        kernel=tuple(kernel),
        strides=tuple(strides),
        pads=tuple(int(p) for p in pads),
        dilations=tuple(dilations),
        ceil_mode=ceil_mode,
        clip=_may_be_short(n, x, window),
        **attrs,
    )


@onnx_op("MaxPool")
def import_max_pool(n: NodeContext) -> NodeResult:
    if not n.has_output(1):
        return pool("max_pool", n, n.value(0))
    x = n.value(0)
    rank = _any_space(n, x)
    kernel = _kernel(n, rank)
    strides, dilations = _list(n, "strides", rank, 1), _list(n, "dilations", rank, 1)
    pads = _window_pads(n, x, kernel, strides, dilations, cuts=True)
    own = [int(p) for p in pads if isinstance(p, Const)]
    is_known = len(own) == len(pads)
    window = [((kernel[d] - 1) * dilations[d] + 1, strides[d], own[d] + own[rank + d]) for d in range(rank)] if is_known else []
    return n.call_many(
        "max_pool_with_indices",
        x,
        kernel=tuple(kernel),
        strides=tuple(strides),
        pads=tuple(own if is_known else pads),
        dilations=tuple(dilations),
        ceil_mode=bool(n.attr("ceil_mode", 0)),
        clip=_may_be_short(n, x, window),
        storage_order=n.attr("storage_order", 0),
    )


@onnx_op("MaxUnpool", since=9)
def import_max_unpool(n: NodeContext) -> NodeResult:
    """Zeros, and the values at their places in the result, counted through all its axes."""
    x, places = n.value(0), n.value(1)
    shape = _unpooled_shape(n)
    places = n.call("check_range", places, limit=product(shape), what="index")  # none counts from the end
    zeros = n.call("full", shape=(product(shape),), value=0.0, dtype=x.dtype)
    values, places = (n.call("reshape", v, shape=(product(x.shape),)) for v in (x, places))
    return n.call("reshape", n.call("scatter_elements", zeros, places, values, axis=0), shape=shape)


def _unpooled_shape(n: NodeContext) -> tuple[Expr, ...]:
    """The shape of what a MaxUnpool makes: stated, or that of what a pool with its window has left."""
    x = n.value(0)
    rank = _space(n, x)
    if n.optional(2) is not None:
        shape = n.dims(2, "output_shape", x.rank)
        if len(shape) != x.rank:
            raise ShapeError(f"MaxUnpool: output_shape has {len(shape)} entries for {x.type}")
        return shape
    kernel, strides = _kernel(n, rank), _list(n, "strides", rank, 1)
    pads = _list(n, "pads", 2 * rank, 0)
    space = [(dim - 1) * strides[d] + kernel[d] - pads[d] - pads[rank + d] for d, dim in enumerate(x.shape[2:])]
    return (*x.shape[:2], *(simplify(dim, n.facts) for dim in space))


@onnx_op("AveragePool")
def import_average_pool(n: NodeContext) -> NodeResult:
    return pool("avg_pool", n, n.value(0), count_include_pad=bool(n.attr("count_include_pad", 0)))


@onnx_op("LpPool")
def import_lp_pool(n: NodeContext) -> NodeResult:
    return pool("lp_pool", n, n.value(0), p=n.attr("p", 2))


def _global_pool(op: str) -> Callable[[NodeContext], ModelValue]:
    def adapter(n: NodeContext) -> ModelValue:
        x = n.value(0)
        if x.rank < 3:
            raise ShapeError(f"{n.op_type}: the input must be [n, c, *space], found {x.type}")
        return n.call(op, x, axes=tuple(range(2, x.rank)), keepdims=True)

    return adapter


onnx_op("GlobalAveragePool")(_global_pool("mean"))
onnx_op("GlobalMaxPool")(_global_pool("max"))


@onnx_op("GlobalLpPool")
def import_global_lp_pool(n: NodeContext) -> NodeResult:
    x = n.value(0)
    return n.cast(_norm_of(n, x, n.attr("p", 2), tuple(range(2, x.rank))), x.dtype)


def _norm_of(n: NodeContext, x: ModelValue, p: int, axes: tuple[int, ...]) -> ModelValue:
    """The p-norm over some axes, which are kept as 1; of 16-bit floats in f32."""
    x = n.widened(x)
    if p in (1, 2):
        return n.call("l1" if p == 1 else "l2", x, axes=axes, keepdims=True)
    powers = n.call("pow", n.call("abs", x), n.const(p, x.dtype))
    return n.call("pow", n.call("sum", powers, axes=axes, keepdims=True), n.const(1.0 / p, x.dtype))


# -- normalisation


@onnx_op("BatchNormalization")
def import_batch_norm(n: NodeContext) -> NodeResult:
    if n.attr("training_mode", 0):
        return batch_norm_of_batch(n)
    if n.opset < 14 and any(n.has_output(k) for k in range(1, 5)):
        raise UnsupportedError("BatchNormalization in training mode: it has more than one output", code="TC1019")
    if n.opset < 9 and not n.attr("spatial", 1):
        return batch_norm_of_places(n)
    x, *parameters = n.values()
    if x.rank == 1 and n.opset >= 9:  # of one channel
        column = n.call("reshape", x, shape=(x.shape[0], const(1)))
        normalized = n.call("batch_norm", column, *parameters, epsilon=n.attr("epsilon", 1e-5))
        return n.call("reshape", normalized, shape=x.shape)
    if x.rank < 2:
        raise ShapeError(f"BatchNormalization: the input must be [n, c, *space], found {x.type}")
    return n.call("batch_norm", x, *parameters, epsilon=n.attr("epsilon", 1e-5))


def batch_norm_of_places(n: NodeContext) -> ModelValue:
    """With a mean and a variance for each place of the images, not only for each channel."""
    x, scale, bias, mean, variance = n.values()
    for k, each in enumerate((scale, bias, mean, variance), 1):
        if each.rank != x.rank - 1:
            raise ShapeError(f"BatchNormalization: input {k} must have the axes of {x.type} but the first, found {each.type}")
        for axis, (dim, wanted) in enumerate(zip(each.shape, x.shape[1:], strict=True)):
            n.graph.state(partial(require_equal, dim, wanted, f"BatchNormalization: dim {axis} of input {k}"), n.span)
    deviation = n.call("sqrt", n.call("add", variance, n.const(n.attr("epsilon", 1e-5), variance.dtype)))
    factor = n.call("div", scale, deviation)
    return n.call("add", n.call("mul", n.call("sub", x, mean), factor), bias)


@onnx_op("InstanceNormalization")
def import_instance_norm(n: NodeContext) -> NodeResult:
    return n.call("instance_norm", *n.values(), epsilon=n.attr("epsilon", 1e-5))


@onnx_op("LayerNormalization")
def import_layer_norm(n: NodeContext) -> NodeResult:
    """Mean and deviation, where they are wanted, are rounded to `stash_type`: they are computed in f32 at least, those of f64 in f64."""
    x, axis, epsilon = n.value(0), n.attr("axis", -1), n.attr("epsilon", 1e-5)
    normal = n.call("layer_norm", x, n.optional(1), n.optional(2), axis=axis, epsilon=epsilon)
    if not n.has_output(1) and not n.has_output(2):
        return normal
    axes, stash = tuple(range(normalize_axis(axis, x.rank, n.op_type), x.rank)), dtype_of(n.attr("stash_type", 1), "stash_type")
    wide = n.cast(x, f64 if f64 in (x.dtype, stash) else f32)
    mean = n.call("mean", wide, axes=axes, keepdims=True)
    away = n.call("sub", wide, mean)  # not the mean of squares less the square of the mean: where that is large nothing is left
    variance = n.call("mean", n.call("mul", away, away), axes=axes, keepdims=True)
    deviation = n.call("sqrt", n.call("add", variance, n.const(epsilon, wide.dtype)))
    return [normal, n.cast(mean, stash), n.cast(n.call("div", n.const(1, wide.dtype), deviation), stash)]


@onnx_op("RMSNormalization")
def import_rms_norm(n: NodeContext) -> NodeResult:
    axis, epsilon = n.attr("axis", -1), n.attr("epsilon", 1e-5)
    return n.call("rms_norm", n.value(0), n.optional(1), axis=axis, epsilon=epsilon)


@onnx_op("GroupNormalization", since=18)
def import_group_norm_by_group(n: NodeContext) -> NodeResult:
    """With one factor and one summand for each group instead of each channel."""
    x, groups = n.value(0), n.attr("num_groups")
    if x.rank < 2:
        raise ShapeError(f"GroupNormalization: the input must be [n, c, *space], found {x.type}")
    n.graph.state(partial(require_divided, x.type, groups), n.span)
    parameters = [_for_each_channel(n, n.value(k), x.shape[1], groups) for k in (1, 2)]
    return n.call("group_norm", x, *parameters, groups=groups, epsilon=n.attr("epsilon", 1e-5))


def _for_each_channel(n: NodeContext, value: ModelValue, channels: Expr, groups: int) -> ModelValue:
    """[groups] to [channels]: each repeated for the channels of its group."""
    if value.rank != 1 or prove(equal(value.shape[0], groups), n.facts) is False:
        raise ShapeError(f"GroupNormalization of opset {n.opset}: scale and bias must be [{groups}], found {value.type}")
    column = n.call("reshape", value, shape=(const(groups), const(1)))
    spread = n.call("expand", column, shape=(const(groups), simplify(channels // groups, n.facts)))
    return n.call("reshape", spread, shape=(channels,))


@onnx_op("GroupNormalization", since=21)
def import_group_norm(n: NodeContext) -> NodeResult:
    """One factor and summand for all channels are taken, too: other runtimes broadcast them. Elements of f64 are normalized in f32, unless
    `stash_type` is f64."""
    x = n.value(0)
    if x.rank < 2:
        raise ShapeError(f"GroupNormalization: the input must be [n, c, *space], found {x.type}")
    channels = x.shape[1]

    def may_be_one(p: ModelValue) -> bool:
        if p.rank != 1 or (is_const(p.shape[0]) and not is_const(p.shape[0], 1)):
            return False
        return prove(equal(p.shape[0], channels), n.facts) is not True

    parameters = [n.call("expand", p, shape=(channels,)) if may_be_one(p) else p for p in (n.value(1), n.value(2))]
    attrs = {"groups": n.attr("num_groups"), "epsilon": n.attr("epsilon", 1e-5)}
    if x.dtype is not f64 or n.dtype_attr("stash_type", 1) is f64:
        return n.call("group_norm", x, *parameters, **attrs)
    ones, zeros = (n.call("full", shape=(channels,), value=value, dtype=f32) for value in (1, 0))
    normal = n.call("cast", n.call("group_norm", n.call("cast", x, dtype=f32), ones, zeros, **attrs), dtype=f64)
    spread = (channels, *(const(1) for _ in range(x.rank - 2)))
    scale, shift = (n.call("reshape", p, shape=spread) for p in parameters)
    return n.call("add", n.call("mul", normal, scale), shift)


@onnx_op("LRN")
def import_lrn(n: NodeContext) -> NodeResult:
    alpha, beta, bias = n.attr("alpha", 1e-4), n.attr("beta", 0.75), n.attr("bias", 1.0)
    return n.call("lrn", n.value(0), size=n.attr("size"), alpha=alpha, beta=beta, bias=bias)


@onnx_op("MeanVarianceNormalization")
def import_mean_variance_norm(n: NodeContext) -> NodeResult:
    return n.call("mean_variance_norm", n.value(0), axes=tuple(n.attr("axes") or (0, 2, 3)))


@onnx_op("LpNormalization")
def import_lp_normalization(n: NodeContext) -> NodeResult:
    """x over its norm along an axis; 0 where the norm is 0."""
    x, axis = n.value(0), n.attr("axis", -1)
    norm = _norm_of(n, x, n.attr("p", 2), tuple(n.different_axes((axis,), x.rank)))
    zero, wide = n.const(0, norm.dtype), n.cast(x, norm.dtype)
    return n.cast(n.call("where", n.call("equal", norm, zero), zero, n.call("div", wide, norm)), x.dtype)
