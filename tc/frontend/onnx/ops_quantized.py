"""Operators on quantized tensors, of ONNX and of onnxruntime ("com.microsoft").

A tensor of integers means (integer - zero point) * scale. Where these are literals an operator is that of floats, between
dequantize_linear and quantize_linear: what can be computed in integers then is (`passes/graph/integer_graphs`), its sums without overflow.
Where they come as data, sums of products are those of integers here, exact as long as 32 bits hold them.
Sources: the operators page of ONNX, and the contrib operators page of onnxruntime's documentation.
"""

from __future__ import annotations

from tc.errors import NodeError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.ops_nn import convolve, pool
from tc.frontend.onnx.quantized import (
    are_literals,
    cast,
    dequantized,
    dynamically_quantized,
    integer_product,
    integer_sums,
    is_one,
    parameter,
    quantized,
    scalar,
    with_term,
)
from tc.frontend.onnx.tensors import dtype_of
from tc.frontend.onnx.values import ModelValue, size_value
from tc.ir.arith import prove
from tc.ir.dtype import f32, i32, i64, u8
from tc.ir.expr import const, is_const
from tc.ir.types import product

_DOMAIN = "com.microsoft"


# -- to and from integers


@onnx_op("QuantizeLinear")
@onnx_op("QuantizeLinear", domain=_DOMAIN)
def import_quantize(n: NodeContext) -> NodeResult:
    zero = n.optional(2)
    code = n.attr("output_dtype", 0)
    dtype = zero.dtype if zero is not None else dtype_of(code, "output_dtype") if code else u8
    attrs = {"axis": _channel_axis(n), "block_size": n.attr("block_size", 0), "saturate": bool(n.attr("saturate", 1))}
    return n.call("quantize_linear", n.value(0), n.value(1), zero, dtype=dtype, **attrs)


@onnx_op("DynamicQuantizeLinear")
def import_dynamic_quantize(n: NodeContext) -> NodeResult:
    return list(dynamically_quantized(n, n.value(0)))


@onnx_op("DequantizeLinear")
@onnx_op("DequantizeLinear", domain=_DOMAIN)
def import_dequantize(n: NodeContext) -> NodeResult:
    attrs = {"axis": _channel_axis(n), "block_size": n.attr("block_size", 0)}
    code, scale = n.attr("output_dtype", 0), n.value(1)
    if not code:
        return n.call("dequantize_linear", n.value(0), scale, n.optional(2), **attrs)
    made = n.call("dequantize_linear", n.value(0), cast(n, scale, f32), n.optional(2), **attrs)
    return cast(n, made, dtype_of(code, "output_dtype"))


def _channel_axis(n: NodeContext) -> int:
    """The axis that scales belong to; it means nothing for a scalar scale, and may then be out of range."""
    rank, axis = n.value(0).rank, n.attr("axis", 1)
    return int(axis) if -rank <= axis < rank else 0


# -- convolutions


@onnx_op("ConvInteger")
def import_conv_integer(n: NodeContext) -> NodeResult:
    x, w = (_without_zero_point(n, n.value(k), n.optional(2 + k)) for k in (0, 1))
    return convolve(n, x, w, None)


def _without_zero_point(n: NodeContext, x: ModelValue, zero: ModelValue | None) -> ModelValue:
    """A quantized tensor as i32 differences to its zero point; that of weights may be per output channel."""
    wide = n.call("cast", x, dtype=i32)
    if zero is None:
        return wide
    zero = n.call("cast", zero, dtype=i32)
    if zero.rank == 1 and not is_const(zero.shape[0], 1):
        zero = n.call("reshape", zero, shape=(zero.shape[0], *[const(1)] * (x.rank - 1)))
    elif zero.rank:
        zero = n.call("reshape", zero, shape=())
    return n.call("sub", wide, zero)


@onnx_op("QLinearConv")
@onnx_op("QLinearConv", domain=_DOMAIN)
def import_qlinear_conv(n: NodeContext) -> NodeResult:
    """The convolution, rounded once."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (n.value(k) for k in range(8))
    x, bias = _channels_first(n, x), n.optional(8)
    if are_literals(x_scale, x_zero, w, w_scale, w_zero, bias):
        scale = n.call("mul", parameter(n, x_scale), parameter(n, w_scale))
        term = None if bias is None else n.call("dequantize_linear", bias, scale, None, axis=0)
        real = convolve(n, dequantized(n, x, x_scale, x_zero), dequantized(n, w, w_scale, w_zero, 0), term)
    else:
        sums = convolve(n, _without_zero_point(n, x, x_zero), _without_zero_point(n, w, w_zero), bias)
        scale = n.call("mul", scalar(n, x_scale), _per_channel(n, w_scale, x.rank))
        real = n.call("mul", n.call("cast", sums, dtype=f32), scale)
    return quantized(n, _as_given(n, real), y_scale, y_zero)


def _per_channel(n: NodeContext, value: ModelValue, rank: int) -> ModelValue:
    """A value per channel, to broadcast along axis 1."""
    if is_one(value):
        return scalar(n, value)
    return n.call("reshape", value, shape=(const(1), value.shape[0], *[const(1)] * (rank - 2)))


# -- matrix products


@onnx_op("MatMulInteger")
def import_matmul_integer(n: NodeContext) -> NodeResult:
    return integer_sums(n, n.value(0), n.value(1), n.optional(2), n.optional(3))


@onnx_op("QLinearMatMul")
def import_qlinear_matmul(n: NodeContext) -> NodeResult:
    """The product, rounded once."""
    *operands, y_scale, y_zero = n.values()
    return quantized(n, integer_product(n, *operands), y_scale, y_zero)


@onnx_op("MatMulIntegerToFloat", domain=_DOMAIN)
def import_matmul_integer_to_float(n: NodeContext) -> NodeResult:
    a, b, a_scale, b_scale = (n.value(k) for k in range(4))
    return with_term(n, integer_product(n, a, a_scale, n.optional(4), b, b_scale, n.optional(5)), n.optional(6))


@onnx_op("DynamicQuantizeMatMul", domain=_DOMAIN)
def import_dynamic_quantize_matmul(n: NodeContext) -> NodeResult:
    return with_term(n, integer_product(n, *dynamically_quantized(n, n.value(0)), n.value(1), n.value(2), n.optional(3)), n.optional(4))


@onnx_op("QGemm", domain=_DOMAIN)
def import_qgemm(n: NodeContext) -> NodeResult:
    """alpha * (A' B' + C), where C counts in steps of both scales' product; quantized if there is a scale for the result."""
    a, a_scale, a_zero, b, b_scale, b_zero = (n.value(k) for k in range(6))
    a, b = (n.call("transpose", x, perm=(1, 0)) if n.attr(name, 0) else x for x, name in ((a, "transA"), (b, "transB")))
    real, term = integer_product(n, a, a_scale, a_zero, b, b_scale, b_zero), n.optional(6)
    if term is not None:
        scale = n.call("mul", parameter(n, a_scale), parameter(n, b_scale))
        if are_literals(term, a_scale, b_scale) and term.rank == 1:
            real = n.call("add", real, n.call("dequantize_linear", term, scale, None, axis=0))
        else:
            real = n.call("add", real, n.call("mul", n.call("cast", term, dtype=f32), scale))
    alpha, y_scale = n.attr("alpha", 1.0), n.optional(7)
    if alpha != 1.0:
        real = n.call("mul", real, n.const(alpha, f32))
    return real if y_scale is None else quantized(n, real, y_scale, n.optional(8), a.dtype)


# -- element by element


# onnxruntime rounds these, and averages of pools, when the zero point is added, unlike QuantizeLinear: where that is odd, every tie goes
# the other way, and scales that are multiples of each other make many.


@onnx_op("QLinearAdd", domain=_DOMAIN)
def import_qlinear_add(n: NodeContext) -> NodeResult:
    """a s + (b t + c): s and t are the operands' scales over that of the result, c all that the zero points come to."""
    (a, s, a_zero), (b, t, b_zero) = (_with_steps(n, k, n.value(6)) for k in (0, 3))
    rest = n.call("sub", _zero_of(n, 7), n.call("add", n.call("mul", s, a_zero), n.call("mul", t, b_zero)))
    return _rounded(n, n.call("add", n.call("mul", a, s), n.call("add", n.call("mul", b, t), rest)))


@onnx_op("QLinearMul", domain=_DOMAIN)
def import_qlinear_mul(n: NodeContext) -> NodeResult:
    """a b s + c: s is the product of the operands' scales over that of the result, c its zero point."""
    a, b = (n.call("sub", n.call("cast", n.value(k), dtype=f32), _zero_of(n, k + 2)) for k in (0, 3))
    scale = n.call("div", n.call("mul", *(_number(n, n.value(k)) for k in (1, 4))), _number(n, n.value(6)))
    less = n.call("sub", n.const(0, f32), _zero_of(n, 7))  # what is taken from a product is taken from it rounded
    return _rounded(n, n.call("sub", n.call("mul", n.call("mul", a, b), scale), less))


def _with_steps(n: NodeContext, place: int, result_scale: ModelValue) -> tuple[ModelValue, ModelValue, ModelValue]:
    """Whole numbers, how many steps of the result one of them is, and their zero point, all as f32."""
    steps = n.call("div", _number(n, n.value(place + 1)), _number(n, result_scale))
    return n.call("cast", n.value(place), dtype=f32), steps, _zero_of(n, place + 2)


def _number(n: NodeContext, value: ModelValue) -> ModelValue:
    """The one number of a scale or zero point, as f32; these operators have none for each channel."""
    return scalar(n, cast(n, value, f32))


def _zero_of(n: NodeContext, place: int) -> ModelValue:
    """A zero point as f32; 0 where there is none."""
    zero = n.optional(place)
    return n.const(0, f32) if zero is None else _number(n, zero)


def _rounded(n: NodeContext, steps: ModelValue) -> ModelValue:
    """Steps of the result, zero point included, as the integers that the first input is of."""
    return n.call("quantize_linear", steps, n.const(1, f32), None, dtype=n.value(0).dtype)


@onnx_op("QLinearSigmoid", domain=_DOMAIN)
def import_qlinear_sigmoid(n: NodeContext) -> NodeResult:
    return _of_one(n, n.call("sigmoid", _first(n)))


@onnx_op("QLinearLeakyRelu", domain=_DOMAIN)
def import_qlinear_leaky_relu(n: NodeContext) -> NodeResult:
    return _of_one(n, n.call("leaky_relu", _first(n), alpha=n.attr("alpha", 0.01)))


@onnx_op("QLinearWhere", domain=_DOMAIN)
def import_qlinear_where(n: NodeContext) -> NodeResult:
    x, y = (dequantized(n, n.value(k), n.value(k + 1), n.value(k + 2)) for k in (1, 4))
    return quantized(n, n.call("where", n.value(0), x, y), n.value(7), n.value(8))


def _first(n: NodeContext) -> ModelValue:
    """What the first input means, whose scale and zero point follow it."""
    return dequantized(n, n.value(0), n.value(1), n.optional(2))


def _of_one(n: NodeContext, real: ModelValue) -> ModelValue:
    """A result whose scale and zero point follow those of the one input."""
    return quantized(n, real, n.value(3), n.optional(4), n.value(0).dtype)


# -- along axes


@onnx_op("QLinearSoftmax", domain=_DOMAIN)
def import_qlinear_softmax(n: NodeContext) -> NodeResult:
    """Over one axis, or before opset 13 over all from it on. Rounded as what is between DequantizeLinear and QuantizeLinear: onnxruntime's
    kernel multiplies by the inverse of the result's scale rounded down, which its optimizer puts into files that do not say so."""
    x = _first(n)
    axis = n.attr("axis", -1) % max(x.rank, 1)
    if n.attr("opset", 13) >= 13:
        return _of_one(n, n.call("softmax", x, axis=axis))
    rows = n.call("reshape", x, shape=(product(x.shape[:axis]), product(x.shape[axis:])))
    return _of_one(n, n.call("reshape", n.call("softmax", rows, axis=-1), shape=x.shape))


def _channels_first(n: NodeContext, x: ModelValue) -> ModelValue:
    last = n.attr("channels_last", 0)
    return n.call("transpose", x, perm=(0, x.rank - 1, *range(1, x.rank - 1))) if last else x


def _as_given(n: NodeContext, x: ModelValue) -> ModelValue:
    last = n.attr("channels_last", 0)
    return n.call("transpose", x, perm=(0, *range(2, x.rank), 1)) if last else x


MOST_BYTES_ADDED = (2**31 - 1) // 255
"""How many differences of bytes always have a sum of 32 bits."""


@onnx_op("QLinearGlobalAveragePool", domain=_DOMAIN)
def import_qlinear_global_average_pool(n: NodeContext) -> NodeResult:
    """Sums of integers, times how many steps of the result one of them is: no tie is broken by the rounding of a term. They are of 64 bits
    where 32 may not hold them."""
    given = _channels_first(n, n.value(0))
    pixels = product(given.shape[2:])
    wide = i32 if prove(pixels <= MOST_BYTES_ADDED, n.facts) is True else i64
    x, axes = n.cast(given, wide), tuple(range(2, given.rank))
    if n.optional(2) is not None:
        x = n.call("sub", x, n.cast(scalar(n, n.value(2)), wide))
    count = n.cast(size_value(pixels), f32)
    steps = n.call("div", _number(n, n.value(1)), n.call("mul", _number(n, n.value(3)), count))
    total = n.cast(n.call("sum", x, axes=axes, keepdims=True), f32)
    return quantized(n, _as_given(n, n.call("mul", total, steps)), n.const(1, f32), n.optional(4), n.value(0).dtype)


@onnx_op("QLinearReduceMean", domain=_DOMAIN)
def import_qlinear_reduce_mean(n: NodeContext) -> NodeResult:
    x, axes = _first(n), n.attr("axes")
    chosen = tuple(n.different_axes(axes, x.rank)) if axes else tuple(range(x.rank))
    return _of_one(n, n.call("mean", x, axes=chosen, keepdims=bool(n.attr("keepdims", 1))))


@onnx_op("NhwcMaxPool", domain=_DOMAIN)
def import_nhwc_max_pool(n: NodeContext) -> NodeResult:
    """A pool of integers, channels last."""
    x = n.value(0)
    to_first, to_last = (0, x.rank - 1, *range(1, x.rank - 1)), (0, *range(2, x.rank), 1)
    return n.call("transpose", pool("max_pool", n, n.call("transpose", x, perm=to_first)), perm=to_last)


@onnx_op("QLinearAveragePool", domain=_DOMAIN)
def import_qlinear_average_pool(n: NodeContext) -> NodeResult:
    """Where padding counts, windows are whole ones everywhere, unlike those of AveragePool."""
    x, counts = _channels_first(n, _first(n)), bool(n.attr("count_include_pad", 0))
    mean = _as_given(n, pool("avg_pool", n, x, count_include_pad=counts, overhang_is_padding=counts))
    return _rounded(n, n.call("add", n.call("div", mean, _number(n, n.value(3))), _zero_of(n, 4)))


@onnx_op("QLinearConcat", domain=_DOMAIN)
def import_qlinear_concat(n: NodeContext) -> NodeResult:
    """Of tensors each of which has its scale and zero point behind it; those of the result come first."""
    if len(n.inputs) < 5 or len(n.inputs) % 3 != 2:
        raise NodeError(f"QLinearConcat: {len(n.inputs)} inputs, which are no tensors with scales and zero points")
    parts = [dequantized(n, n.value(k), n.value(k + 1), n.value(k + 2)) for k in range(2, len(n.inputs), 3)]
    return quantized(n, n.call("concat", *parts, axis=n.attr("axis")), n.value(0), n.value(1))
