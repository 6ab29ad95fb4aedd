"""Operators on quantized tensors, of ONNX and of onnxruntime ("com.microsoft").

A tensor of integers means (integer - zero point) * scale. Where these are literals an operator is that of floats, between
dequantize_linear and quantize_linear: what can be computed in integers then is (`passes/graph/integer_graphs`), its sums without overflow.
Where they come as data, sums of products are those of integers here, exact as long as 32 bits hold them.
Sources: the operators page of ONNX, and the contrib operators page of onnxruntime's documentation.
"""

from __future__ import annotations

from collections.abc import Callable

from tc.errors import ModelError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.ops_nn import convolve, pool
from tc.frontend.onnx.tensors import dtype_of
from tc.frontend.onnx.values import ModelValue
from tc.ir.arith import prove
from tc.ir.dtype import DType, f32, i32, u8
from tc.ir.expr import Const, Expr, const, equal, is_const
from tc.ir.graph import TensorConst
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
    return list(_dynamic(n, n.value(0)))


def _dynamic(n: NodeContext, x: ModelValue) -> tuple[ModelValue, ModelValue, ModelValue]:
    """To u8 with the range of the data, widened to hold 0, as scale and zero point; the scale of zeros alone is 1."""
    axes, zero = tuple(range(x.rank)), n.const(0, f32)
    low = n.call("minimum", n.call("min", x, axes=axes, keepdims=False), zero)
    high = n.call("maximum", n.call("max", x, axes=axes, keepdims=False), zero)
    scale = n.call("div", n.call("sub", high, low), n.const(255, f32))
    scale = n.call("where", n.call("equal", high, low), n.const(1, f32), scale)
    place = n.call("sub", zero, n.call("div", low, scale))
    shift = n.call("cast", n.call("round", n.call("clip", place, zero, n.const(255, f32))), dtype=u8)
    return n.call("quantize_linear", x, scale, shift, dtype=u8), scale, shift


@onnx_op("DequantizeLinear")
@onnx_op("DequantizeLinear", domain=_DOMAIN)
def import_dequantize(n: NodeContext) -> NodeResult:
    attrs = {"axis": _channel_axis(n), "block_size": n.attr("block_size", 0)}
    code, scale = n.attr("output_dtype", 0), n.value(1)
    if not code:
        return n.call("dequantize_linear", n.value(0), scale, n.optional(2), **attrs)
    made = n.call("dequantize_linear", n.value(0), _cast(n, scale, f32), n.optional(2), **attrs)
    return _cast(n, made, dtype_of(code, "output_dtype"))


def _channel_axis(n: NodeContext) -> int:
    """The axis that scales belong to; it means nothing for a scalar scale, and may then be out of range."""
    rank, axis = n.value(0).rank, n.attr("axis", 1)
    return int(axis) if -rank <= axis < rank else 0


def _cast(n: NodeContext, x: ModelValue, dtype: DType) -> ModelValue:
    return x if x.dtype == dtype else n.call("cast", x, dtype=dtype)


def _is_one(value: ModelValue) -> bool:
    return prove(equal(product(value.shape), 1)) is True


def _scalar(n: NodeContext, value: ModelValue) -> ModelValue:
    return value if value.rank == 0 else n.call("reshape", value, shape=())


def _parameter(n: NodeContext, value: ModelValue, dtype: DType | None = None) -> ModelValue:
    """A scale or zero point: a number, or one for each place of an axis."""
    value = value if dtype is None else _cast(n, value, dtype)
    return _scalar(n, value) if _is_one(value) else value


def _wide(n: NodeContext, x: ModelValue, scale: ModelValue, zero: ModelValue | None, axis: int = 1) -> ModelValue:
    """What integers mean, in f32."""
    own = None if zero is None else _parameter(n, zero)
    return n.call("dequantize_linear", x, _parameter(n, scale, f32), own, axis=axis if -x.rank <= axis < x.rank else 0)


def _narrow(n: NodeContext, x: ModelValue, scale: ModelValue, zero: ModelValue | None, dtype: DType = u8) -> ModelValue:
    """As integers of the zero point's dtype, or of `dtype`."""
    own = None if zero is None else _parameter(n, zero)
    return n.call("quantize_linear", x, _parameter(n, scale, f32), own, dtype=dtype if zero is None else zero.dtype)


def _are_literals(*values: ModelValue | None) -> bool:
    return all(value is None or isinstance(value.atom, TensorConst) for value in values)


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
    if n.attr("channels_last", 0):
        raise UnsupportedError("QLinearConv with channels last")
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (n.value(k) for k in range(8))
    bias = n.optional(8)
    if _are_literals(x_scale, x_zero, w, w_scale, w_zero, bias):
        scale = n.call("mul", _parameter(n, x_scale), _parameter(n, w_scale))
        term = None if bias is None else n.call("dequantize_linear", bias, scale, None, axis=0)
        real = convolve(n, _wide(n, x, x_scale, x_zero), _wide(n, w, w_scale, w_zero, 0), term)
    else:
        sums = convolve(n, _without_zero_point(n, x, x_zero), _without_zero_point(n, w, w_zero), bias)
        scale = n.call("mul", _scalar(n, x_scale), _per_channel(n, w_scale, x.rank))
        real = n.call("mul", n.call("cast", sums, dtype=f32), scale)
    return _narrow(n, real, y_scale, y_zero)


def _per_channel(n: NodeContext, value: ModelValue, rank: int) -> ModelValue:
    """A value per channel, to broadcast along axis 1."""
    if _is_one(value):
        return _scalar(n, value)
    return n.call("reshape", value, shape=(const(1), value.shape[0], *[const(1)] * (rank - 2)))


# -- matrix products


@onnx_op("MatMulInteger")
def import_matmul_integer(n: NodeContext) -> NodeResult:
    a_zero, b_zero = (_zero_points(n, n.optional(k)) for k in (2, 3))
    return n.call("matmul_integer", n.value(0), n.value(1), a_zero, b_zero)


def _zero_points(n: NodeContext, zero: ModelValue | None) -> ModelValue | None:
    """One for all, or a vector of those of the rows or columns."""
    if zero is None or zero.rank == 0:
        return zero
    if _is_one(zero):
        return _scalar(n, zero)
    if zero.rank > 1:
        raise UnsupportedError(f"{n.op_type}: zero points of rank {zero.rank}")
    return zero


def _product(
    n: NodeContext, a: ModelValue, a_scale: ModelValue, a_zero: ModelValue | None,
    b: ModelValue, b_scale: ModelValue, b_zero: ModelValue | None,
) -> ModelValue:  # fmt: skip
    """a @ b in f32; the scales may be those of a's rows and of b's columns."""
    if _are_literals(a_scale, a_zero, b_scale, b_zero) and _is_one(a_scale):
        return n.call("matmul", _wide(n, a, a_scale, a_zero), _wide(n, b, b_scale, b_zero, b.rank - 1))
    total = n.call("matmul_integer", a, b, _zero_points(n, a_zero), _zero_points(n, b_zero))
    rows, columns = _parameter(n, a_scale, f32), _parameter(n, b_scale, f32)
    if rows.rank == 1:
        rows = n.call("reshape", rows, shape=(rows.shape[0], const(1)))
    return n.call("mul", n.call("cast", total, dtype=f32), n.call("mul", rows, columns))


@onnx_op("QLinearMatMul")
def import_qlinear_matmul(n: NodeContext) -> NodeResult:
    """The product, rounded once."""
    *operands, y_scale, y_zero = n.values()
    return _narrow(n, _product(n, *operands), y_scale, y_zero)


@onnx_op("MatMulIntegerToFloat", domain=_DOMAIN)
def import_matmul_integer_to_float(n: NodeContext) -> NodeResult:
    a, b, a_scale, b_scale = (n.value(k) for k in range(4))
    return _with_term(n, _product(n, a, a_scale, n.optional(4), b, b_scale, n.optional(5)), n.optional(6))


@onnx_op("DynamicQuantizeMatMul", domain=_DOMAIN)
def import_dynamic_quantize_matmul(n: NodeContext) -> NodeResult:
    return _with_term(n, _product(n, *_dynamic(n, n.value(0)), n.value(1), n.value(2), n.optional(3)), n.optional(4))


def _with_term(n: NodeContext, x: ModelValue, term: ModelValue | None) -> ModelValue:
    return x if term is None else n.call("add", x, term)


@onnx_op("QGemm", domain=_DOMAIN)
def import_qgemm(n: NodeContext) -> NodeResult:
    """alpha * (A' B' + C), where C counts in steps of both scales' product; quantized if there is a scale for the result."""
    a, a_scale, a_zero, b, b_scale, b_zero = (n.value(k) for k in range(6))
    a, b = (n.call("transpose", x, perm=(1, 0)) if n.attr(name, 0) else x for x, name in ((a, "transA"), (b, "transB")))
    real, term = _product(n, a, a_scale, a_zero, b, b_scale, b_zero), n.optional(6)
    if term is not None:
        scale = n.call("mul", _parameter(n, a_scale), _parameter(n, b_scale))
        if _are_literals(term, a_scale, b_scale) and term.rank == 1:
            real = n.call("add", real, n.call("dequantize_linear", term, scale, None, axis=0))
        else:
            real = n.call("add", real, n.call("mul", n.call("cast", term, dtype=f32), scale))
    alpha, y_scale = n.attr("alpha", 1.0), n.optional(7)
    if alpha != 1.0:
        real = n.call("mul", real, n.const(alpha, f32))
    return real if y_scale is None else _narrow(n, real, y_scale, n.optional(8), a.dtype)


# -- element by element


def _of_two(op: str) -> Callable[[NodeContext], ModelValue]:
    def adapter(n: NodeContext) -> ModelValue:
        a, b = (_wide(n, n.value(k), n.value(k + 1), n.optional(k + 2)) for k in (0, 3))
        return _narrow(n, n.call(op, a, b), n.value(6), n.optional(7), n.value(0).dtype)

    return adapter


onnx_op("QLinearAdd", domain=_DOMAIN)(_of_two("add"))
onnx_op("QLinearMul", domain=_DOMAIN)(_of_two("mul"))


@onnx_op("QLinearSigmoid", domain=_DOMAIN)
def import_qlinear_sigmoid(n: NodeContext) -> NodeResult:
    return _of_one(n, n.call("sigmoid", _first(n)))


@onnx_op("QLinearLeakyRelu", domain=_DOMAIN)
def import_qlinear_leaky_relu(n: NodeContext) -> NodeResult:
    return _of_one(n, n.call("leaky_relu", _first(n), alpha=n.attr("alpha", 0.01)))


@onnx_op("QLinearWhere", domain=_DOMAIN)
def import_qlinear_where(n: NodeContext) -> NodeResult:
    x, y = (_wide(n, n.value(k), n.value(k + 1), n.value(k + 2)) for k in (1, 4))
    return _narrow(n, n.call("where", n.value(0), x, y), n.value(7), n.value(8))


def _first(n: NodeContext) -> ModelValue:
    """What the first input means, whose scale and zero point follow it."""
    return _wide(n, n.value(0), n.value(1), n.optional(2))


def _of_one(n: NodeContext, real: ModelValue) -> ModelValue:
    """A result whose scale and zero point follow those of the one input."""
    return _narrow(n, real, n.value(3), n.optional(4), n.value(0).dtype)


# -- along axes


@onnx_op("QLinearSoftmax", domain=_DOMAIN)
def import_qlinear_softmax(n: NodeContext) -> NodeResult:
    """Over one axis, or before opset 13 over all from it on."""
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


@onnx_op("QLinearGlobalAveragePool", domain=_DOMAIN)
def import_qlinear_global_average_pool(n: NodeContext) -> NodeResult:
    x = _channels_first(n, _first(n))
    return _of_one(n, _as_given(n, n.call("mean", x, axes=tuple(range(2, x.rank)), keepdims=True)))


@onnx_op("QLinearAveragePool", domain=_DOMAIN)
def import_qlinear_average_pool(n: NodeContext) -> NodeResult:
    x = _channels_first(n, _first(n))
    return _of_one(n, _as_given(n, pool("avg_pool", n, x, count_include_pad=bool(n.attr("count_include_pad", 0)))))


@onnx_op("QLinearConcat", domain=_DOMAIN)
def import_qlinear_concat(n: NodeContext) -> NodeResult:
    """Of tensors each of which has its scale and zero point behind it; those of the result come first."""
    if len(n.inputs) < 5 or len(n.inputs) % 3 != 2:
        raise ModelError(f"QLinearConcat: {len(n.inputs)} inputs, which are no tensors with scales and zero points")
    parts = [_wide(n, n.value(k), n.value(k + 1), n.value(k + 2)) for k in range(2, len(n.inputs), 3)]
    return _narrow(n, n.call("concat", *parts, axis=n.attr("axis")), n.value(0), n.value(1))


# -- attention


@onnx_op("QAttention", domain=_DOMAIN)
def import_qattention(n: NodeContext) -> NodeResult:
    """Self-attention of x [b, s, h], whose queries, keys and values one product makes, of heads side by side; in f32 from there."""
    if n.optional(8) is not None or n.attr("do_rotary", 0):
        raise UnsupportedError("QAttention with past keys or rotations")
    x, w, term, x_scale, w_scale = (n.value(k) for k in range(5))
    made = _with_term(n, _product(n, x, x_scale, n.optional(6), w, w_scale, n.optional(7)), term)
    batch, length, heads = *x.shape[:2], n.attr("num_heads")
    total = made.shape[-1]
    if x.rank != 3 or not heads or not isinstance(total, Const) or int(total.value) % (3 * heads):
        raise ModelError(f"QAttention: {heads} heads of {x.type} times {w.type}")
    width = int(total.value) // (3 * heads)
    apart = n.call("reshape", made, shape=(batch, length, 3, heads, width))
    apart = n.call("transpose", apart, perm=(2, 0, 3, 1, 4))
    parts = n.graph.call("split", apart, span=n.span, names=[n.label] * 3, axis=0, sizes=(1, 1, 1))
    q, k, v = (n.call("reshape", part, shape=(batch, heads, length, width)) for part in parts)
    scores = n.call("matmul", q, n.call("transpose", k, perm=(0, 1, 3, 2)))
    scores = n.call("mul", scores, n.const(n.attr("scale", 0.0) or width**-0.5, f32))
    shares = n.call("softmax", _masked(n, scores, batch, length), axis=-1)
    joined = n.call("transpose", n.call("matmul", shares, v), perm=(0, 2, 1, 3))
    return n.call("reshape", joined, shape=(batch, length, heads * width))


def _masked(n: NodeContext, scores: ModelValue, batch: Expr, length: Expr) -> ModelValue:
    """Scores of what is not to be seen, much lowered: by the mask [b, s] of ones and zeros, and of later places if it is unidirectional."""
    low = n.const(n.attr("mask_filter_value", -10000.0), f32)
    mask = n.optional(5)
    if mask is not None:
        if mask.rank != 2:
            raise UnsupportedError(f"QAttention with a mask of rank {mask.rank}")
        hidden = n.call("sub", n.const(1, f32), n.call("cast", mask, dtype=f32))
        scores = n.call("add", scores, n.call("reshape", n.call("mul", hidden, low), shape=(batch, const(1), const(1), length)))
    if n.attr("unidirectional", 0):
        places = n.call("range", size=length)
        later = n.call("less", n.call("reshape", places, shape=(length, const(1))), places)
        scores = n.call("where", later, low, scores)
    return scores
