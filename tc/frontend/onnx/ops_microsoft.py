"""Operators of the domain "com.microsoft", which onnxruntime's optimizer writes into models.

Source: the contrib operators page of onnxruntime's documentation.
"""

from __future__ import annotations

from tc.errors import UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.values import ModelValue

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


@onnx_op("FusedMatMul", domain=_DOMAIN)
def import_fused_matmul(n: NodeContext) -> NodeResult:
    """alpha * A' B', with the last two axes of A or B exchanged."""
    if n.attr("transBatchA", 0) or n.attr("transBatchB", 0):
        raise UnsupportedError("FusedMatMul with transposed batches")
    a, b = (_transposed(n, n.value(k), bool(n.attr(name, 0))) for k, name in enumerate(("transA", "transB")))
    result, alpha = n.call("matmul", a, b), n.attr("alpha", 1.0)
    return result if alpha == 1.0 else n.call("mul", result, n.const(alpha, result.dtype))


def _transposed(n: NodeContext, x: ModelValue, wanted: bool) -> ModelValue:
    if not wanted or x.rank < 2:
        return x
    order = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
    return n.call("transpose", x, perm=order)


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


def _add(n: NodeContext, x: ModelValue, bias: ModelValue | None) -> ModelValue:
    return x if bias is None else n.call("add", x, bias)
