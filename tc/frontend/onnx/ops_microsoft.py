"""Operators of the domain "com.microsoft", which onnxruntime's optimizer writes into models.

Source: the contrib operators page of onnxruntime's documentation.
"""

from __future__ import annotations

from tc.errors import UnsupportedError
from tc.frontend.onnx.activations import fused_activation
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.ops_math import import_gemm
from tc.frontend.onnx.ops_nn import convolve
from tc.frontend.onnx.ops_shape import import_gather_nd, import_range, import_trilu, unique_values
from tc.frontend.onnx.ops_slice import import_pad
from tc.frontend.onnx.ops_vision import import_grid_sample
from tc.frontend.onnx.values import ModelValue
from tc.ir.dtype import i32

_DOMAIN = "com.microsoft"


@onnx_op("Gelu", domain=_DOMAIN)
def import_gelu(n: NodeContext) -> NodeResult:
    return n.call("gelu", n.value(0), approximate="none")


@onnx_op("BiasGelu", domain=_DOMAIN)
def import_bias_gelu(n: NodeContext) -> NodeResult:
    return n.call("gelu", n.call("add", n.value(0), n.value(1)), approximate="none")


@onnx_op("FastGelu", domain=_DOMAIN)
def import_fast_gelu(n: NodeContext) -> NodeResult:
    return n.call("gelu", _add(n, n.value(0), n.optional(1)), approximate="tanh")


@onnx_op("QuickGelu", domain=_DOMAIN)
def import_quick_gelu(n: NodeContext) -> NodeResult:
    """x * sigmoid(alpha * x)"""
    x = n.value(0)
    return n.call("mul", x, n.call("sigmoid", n.call("mul", x, n.const(n.attr("alpha", 1.702), x.dtype))))


@onnx_op("FusedConv", domain=_DOMAIN)
def import_fused_conv(n: NodeContext) -> NodeResult:
    """activation(conv + Z)"""
    result = _add(n, convolve(n, n.value(0), n.value(1), n.optional(2)), n.optional(3))
    return fused_activation(n, result, n.attr("activation"), list(n.attr("activation_params") or []))


@onnx_op("FusedGemm", domain=_DOMAIN)
def import_fused_gemm(n: NodeContext) -> NodeResult:
    result = import_gemm(n)
    assert isinstance(result, ModelValue)
    return fused_activation(n, result, n.attr("activation"), _activation_numbers(n))


def _activation_numbers(n: NodeContext) -> list[float]:
    """Of alpha, beta and gamma those that an activation has, in the order of its definition."""
    if (n.attr("activation") or "").lower() == "selu":
        return [n.attr("activation_alpha", 1.67326319217681884765625), n.attr("activation_gamma", 1.05070102214813232421875)]
    given = [n.attr(f"activation_{name}") for name in ("alpha", "beta")]
    return given[: next((k for k, number in enumerate(given) if number is None), len(given))]


@onnx_op("TransposeMatMul", domain=_DOMAIN)
@onnx_op("FusedMatMul", domain=_DOMAIN)
def import_fused_matmul(n: NodeContext) -> NodeResult:
    """alpha * A' B', with the last two axes of A or B exchanged, or the first one moved behind those of the batch."""
    a, b = (_transposed(n, n.value(k), *(bool(n.attr(name + "AB"[k], 0)) for name in ("transBatch", "trans"))) for k in (0, 1))
    result, alpha = n.call("matmul", a, b), n.attr("alpha", 1.0)
    return result if alpha == 1.0 else n.call("mul", result, n.const(alpha, result.dtype))


def _transposed(n: NodeContext, x: ModelValue, batch: bool, matrix: bool) -> ModelValue:
    if x.rank < 2 or not (batch or matrix):
        return x
    order = (*range(1, x.rank - 1), 0, x.rank - 1) if batch else tuple(range(x.rank))
    return n.call("transpose", x, perm=(*order[:-2], order[-1], order[-2]) if matrix else order)


@onnx_op("SkipLayerNormalization", domain=_DOMAIN)
def import_skip_layer_norm(n: NodeContext) -> NodeResult:
    """layer_norm(input + skip + bias); the fourth result is that sum."""
    total = _add(n, n.call("add", n.value(0), n.value(1)), n.optional(4))
    scale, shift, epsilon = n.optional(2), n.optional(3), n.attr("epsilon", 1e-12)
    normal = n.call("layer_norm", total, scale, shift, axis=-1, epsilon=epsilon)
    return [normal, None, None, total]


@onnx_op("SimplifiedLayerNormalization", domain="")
@onnx_op("SimplifiedLayerNormalization", domain=_DOMAIN)
def import_simplified_layer_norm(n: NodeContext) -> NodeResult:
    return n.call("rms_norm", n.value(0), n.value(1), axis=n.attr("axis", -1), epsilon=n.attr("epsilon", 1e-5))


@onnx_op("SkipSimplifiedLayerNormalization", domain=_DOMAIN)
def import_skip_simplified_layer_norm(n: NodeContext) -> NodeResult:
    total = _add(n, n.call("add", n.value(0), n.value(1)), n.optional(3))
    normal = n.call("rms_norm", total, n.value(2), axis=-1, epsilon=n.attr("epsilon", 1e-5))
    return [normal, None, None, total]


# -- what ONNX has too, from before it had it

for _name, _adapter in {
    "GatherND": import_gather_nd,
    "GridSample": import_grid_sample,
    "Pad": import_pad,
    "Trilu": import_trilu,
}.items():
    onnx_op(_name, domain=_DOMAIN)(_adapter)


@onnx_op("Range", domain=_DOMAIN)
def import_microsofts_range(n: NodeContext) -> NodeResult:
    """By steps of 1 where none is given."""
    if n.optional(2) is None:
        n.inputs[2:] = [n.const(1, n.value(0).dtype)]
    return import_range(n)


@onnx_op("ExpandDims", domain=_DOMAIN)
def import_expand_dims(n: NodeContext) -> NodeResult:
    axes = n.ints(1, "axis")
    if axes is None or len(axes) != 1:
        raise UnsupportedError("ExpandDims along an axis that only the run tells", code="TC1015")
    return n.call("unsqueeze", n.value(0), axes=tuple(axes))


@onnx_op("Unique", domain=_DOMAIN)
def import_microsofts_unique(n: NodeContext) -> NodeResult:
    """Values in the order in which they are met, each NaN another one, which one each element is, and how often it is there."""
    values, _, numbers, counts = unique_values(n, None, in_order=False, one_nan=False)
    return values, numbers, counts


@onnx_op("CDist", domain=_DOMAIN)
def import_cdist(n: NodeContext) -> NodeResult:
    """Distances of each row of a [m, k] from each of b [n, k]: of their elements, which of rows alike loses no digits."""
    a, b, metric = n.value(0), n.value(1), n.attr("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise UnsupportedError(f"CDist: no metric {metric!r}", code="TC1013", supported="euclidean, sqeuclidean")
    apart = n.call("sub", n.call("unsqueeze", a, axes=(1,)), n.call("unsqueeze", b, axes=(0,)))
    squares = n.call("sum", n.call("mul", apart, apart), axes=(2,), keepdims=False)
    return squares if metric == "sqeuclidean" else n.call("sqrt", squares)


@onnx_op("MatMulInteger16", domain=_DOMAIN)
def import_matmul_integer_16(n: NodeContext) -> NodeResult:
    return n.call("matmul", *(n.call("cast", n.value(k), dtype=i32) for k in range(2)))


def _add(n: NodeContext, x: ModelValue, bias: ModelValue | None) -> ModelValue:
    return x if bias is None else n.call("add", x, bias)
