"""Operators of the domain "com.microsoft", which onnxruntime's optimizer writes into models.

Source: the contrib operators page of onnxruntime's documentation.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.activations import fused_activation
from tc.frontend.onnx.control_flow import bind_loop
from tc.frontend.onnx.node_context import Calls, NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.ops_math import import_gemm, scaled_product, swish
from tc.frontend.onnx.ops_nn import convolve, transposed_convolve
from tc.frontend.onnx.ops_shape import import_gather_nd, import_range, import_trilu, unique_values
from tc.frontend.onnx.ops_slice import import_pad
from tc.frontend.onnx.ops_vision import import_grid_sample
from tc.frontend.onnx.values import ModelValue
from tc.ir.arith import prove, simplify
from tc.ir.dtype import bool_, f32, f64, i32, i64, u32, u64
from tc.ir.expr import const, equal, maximum
from tc.ir.types import product
from tc.ops.common import require_equal
from tc.ops.registry import require

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
    return swish(n, n.value(0), n.attr("alpha", 1.702))


@onnx_op("FusedConv", domain=_DOMAIN)
def import_fused_conv(n: NodeContext) -> NodeResult:
    """activation(conv + Z)"""
    result = _add(n, convolve(n, n.value(0), n.value(1), n.optional(2)), n.optional(3))
    return fused_activation(n, result, n.attr("activation"), list(n.attr("activation_params") or []))


@onnx_op("ConvTransposeWithDynamicPads", domain=_DOMAIN)
def import_conv_transpose_with_dynamic_pads(n: NodeContext) -> NodeResult:
    pads = None if n.optional(2) is None else n.dims(2, "pads", 2 * (n.value(0).rank - 2))
    return transposed_convolve(n, n.value(0), n.value(1), n.optional(3), pads)


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
    return n.cast(scaled_product(n, a, b, n.attr("alpha", 1.0)), a.dtype)


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


@onnx_op("BranchwiseRMSNorm", domain=_DOMAIN)
def import_branchwise_rms_norm(n: NodeContext) -> NodeResult:
    """rms_norm of each branch of x [.., c, h] or [.., c * h], in f32; the factors are [h], or for each branch."""
    x, scale, branches = n.value(0), n.optional(1), int(n.attr("num_branches", 0))
    apart = _in_branches(n, x, branches)
    normal = n.call("rms_norm", n.cast(apart, f32), None, axis=-1, epsilon=n.attr("epsilon", 1e-5))
    if scale is not None:
        wide, own = n.cast(scale, f32), apart.shape[-2:]
        is_of_all = scale.rank == 1 and prove(equal(scale.shape[0], own[1]), n.facts) is not True
        normal = n.call("mul", normal, n.call("reshape", wide, shape=own) if is_of_all else wide)
    return n.call("reshape", n.cast(normal, x.dtype), shape=x.shape)


@onnx_op("HyperConnectionPreMix", domain=_DOMAIN)
def import_hyper_connection_pre_mix(n: NodeContext) -> NodeResult:
    """The sum of branches [.., c, h] by their gates, in f32. Source: Zhu et al. (2024), Hyper-Connections."""
    x = _in_branches(n, n.value(0), int(n.attr("num_branches", 0)))
    gates = _gates_of(n, n.value(1), x)
    total = n.call("sum", n.call("mul", n.cast(x, f32), gates), axes=(-2,), keepdims=False)
    factor = n.attr("reduction_scale", 1.0)
    return n.cast(total if factor == 1 else n.call("mul", total, n.const(factor, f32)), x.dtype)


@onnx_op("HyperConnectionPostMix", domain=_DOMAIN)
def import_hyper_connection_post_mix(n: NodeContext) -> NodeResult:
    """Branches [.., c, h], mixed by a matrix [.., c, c] where there is one, and what a block gave [.., h] by the gates of each; in f32."""
    streams, given, mix = n.value(0), n.value(1), n.optional(3)
    x = _in_branches(n, streams, int(n.attr("num_branches", 0)))
    kept = n.cast(x, f32)
    if mix is not None:
        turned = n.call("transpose", n.cast(mix, f32), perm=(*range(mix.rank - 2), mix.rank - 1, mix.rank - 2))
        kept = n.call("matmul", turned, kept)
    added = n.call("mul", _gates_of(n, n.value(2), x), n.call("unsqueeze", n.cast(given, f32), axes=(-2,)))
    return n.call("reshape", n.cast(n.call("add", kept, added), streams.dtype), shape=streams.shape)


def _in_branches(n: NodeContext, x: ModelValue, branches: int) -> ModelValue:
    """[.., c, h] of that, or of [.., c * h]."""
    if not branches:
        if x.rank < 2:
            raise NodeError(f"{n.op_type} of {x.type}, which has no branches")
        return x
    size = n.known(x.shape[-1], "elements") if x.rank else 0
    if branches < 0 or size % branches:
        raise NodeError(f"{n.op_type} of {x.type} in {branches} branches")
    return n.call("reshape", x, shape=(*x.shape[:-1], branches, size // branches))


def _gates_of(n: NodeContext, gates: ModelValue, x: ModelValue) -> ModelValue:
    """Gates in f32, [.., c, h or 1], of [.., c], [.., c, h or 1] or [.., c * h]."""
    wide = n.cast(gates, f32)
    if gates.rank == x.rank:
        return wide
    if gates.rank != x.rank - 1:
        raise NodeError(f"{n.op_type}: gates of {gates.type} for {x.type}")
    is_for_each = prove(equal(gates.shape[-1], x.shape[-2]), n.facts) is True
    return n.call("unsqueeze", wide, axes=(-1,)) if is_for_each else n.call("reshape", wide, shape=x.shape)


@onnx_op("ScaledSiLU", domain=_DOMAIN)
def import_scaled_silu(n: NodeContext) -> NodeResult:
    """z sigmoid(z) of z = scale * x, each rounded to the type of x."""
    x, scale = n.value(0), n.optional(1)
    factor = n.const(n.attr("alpha", 1.0), f32) if scale is None else n.cast(scale, f32)
    scaled = n.cast(n.call("mul", n.cast(x, f32), n.call("reshape", factor, shape=())), x.dtype)
    return n.call("silu", scaled)


@onnx_op("GatedAdd", domain=_DOMAIN)
def import_gated_add(n: NodeContext) -> NodeResult:
    """x + y * gate, of a gate for each row."""
    if n.optional(3) is not None:
        raise UnsupportedError("GatedAdd that projects its gate", code="TC1013")
    return n.call("add", n.value(0), n.call("mul", n.value(1), n.value(2)))


@onnx_op("Inverse", domain=_DOMAIN)
def import_inverse(n: NodeContext) -> NodeResult:
    """The inverses of matrices [.., k, k], column by column (Gauss and Jordan), each by the largest element that is left of its column."""
    x = n.value(0)
    if x.rank < 2:
        raise NodeError(f"Inverse of {x.type}")
    size, dtype = x.shape[-1], x.dtype if x.dtype is f64 else f32
    n.graph.state(lambda: require_equal(x.shape[-2], size, "Inverse: the rows of a matrix"), n.span)
    matrices = n.call("reshape", n.cast(x, dtype), shape=(product(x.shape[:-2]), size, size))
    rows = n.call("range", size=size)
    is_diagonal = n.call("equal", n.call("unsqueeze", rows, axes=(1,)), rows)
    unit = n.call("expand", n.call("unsqueeze", n.cast(is_diagonal, dtype), axes=(0,)), shape=matrices.shape)

    def eliminate(c: Calls, j: ModelValue, carried: list[ModelValue]) -> tuple[None, list[ModelValue], list[ModelValue]]:
        (both,) = carried
        sizes = c.call("abs", c.call("gather", both, j, axis=2, in_range=True))
        left = c.call("where", c.call("less", rows, j), c.const(-1, dtype), sizes)
        best = c.call("unsqueeze", c.call("argmax", left, axis=1, keepdims=False), axes=(1,))
        pivot_row = c.call("gather_nd", both, best, batch_dims=1)
        other_row = c.call("gather", both, j, axis=1, in_range=True)
        is_best, is_here = (c.call("unsqueeze", flag, axes=(-1,)) for flag in (c.call("equal", best, rows), c.call("equal", rows, j)))
        both = c.call("where", is_best, c.call("unsqueeze", other_row, axes=(1,)), both)
        factors = c.call("unsqueeze", c.call("gather", both, j, axis=2, in_range=True), axes=(2,))
        pivot = c.call("unsqueeze", c.call("gather", pivot_row, j, axis=1, in_range=True), axes=(1,))
        normal = c.call("unsqueeze", c.call("div", pivot_row, pivot), axes=(1,))
        return None, [c.call("where", is_here, normal, c.call("sub", both, c.call("mul", factors, normal)))], []

    both = n.call("concat", matrices, unit, axis=2)
    (both,) = bind_loop(n, size, None, [both], eliminate, f"{n.place_here}/column", keeps_sizes=True)
    found = n.call("slice", both, starts=(0, 0, size), sizes=matrices.shape, steps=(1, 1, 1))
    return n.cast(n.call("reshape", found, shape=x.shape), x.dtype)


@onnx_op("UnfoldTensor", domain=_DOMAIN)
def import_unfold_tensor(n: NodeContext) -> NodeResult:
    """All runs of `size` elements along an axis, `step` apart, as a last axis."""
    x, size, step = n.value(0), int(n.attr("size", 0)), int(n.attr("step", 1))
    axis = int(n.attr("dim", -1))
    if not -x.rank <= axis < x.rank or size < 1 or step < 1:
        raise NodeError(f"UnfoldTensor of {x.type}: runs of {size} elements along axis {axis}, {step} apart")
    axis %= x.rank
    n.graph.state(lambda: require(x.shape[axis] >= size, f"UnfoldTensor: runs of {size} elements along axis {axis} of {x.type}"), n.span)
    count = simplify((x.shape[axis] - size) // step + 1, n.facts)
    starts = n.call("mul", n.call("range", size=count), n.const(step, i64))
    places = n.call("add", n.call("unsqueeze", starts, axes=(1,)), n.const(np.arange(size), i64))
    found = n.call("gather", x, places, axis=axis)
    order = [d for d in range(found.rank) if d != axis + 1]
    return n.call("transpose", found, perm=(*order, axis + 1))


# -- of images


@onnx_op("GroupNorm", domain=_DOMAIN)
def import_microsofts_group_norm(n: NodeContext) -> NodeResult:
    """group_norm of images [b, h, w, c] or [b, c, h, w], in f32."""
    return _group_norm(n, n.value(0))


@onnx_op("SkipGroupNorm", domain=_DOMAIN)
def import_skip_group_norm(n: NodeContext) -> NodeResult:
    """group_norm(x + skip + bias), and that sum; skip is an image, or a row [b, c] or [b, 1, 1, c]."""
    x, skip, last = n.value(0), n.value(3), bool(n.attr("channels_last", 1))
    if skip.rank == 2:
        skip = n.call("unsqueeze", skip, axes=(1, 2) if last else (2, 3))
    total, bias = n.call("add", x, skip), n.optional(4)
    if bias is not None:
        total = n.call("add", total, bias if last else n.call("unsqueeze", bias, axes=(1, 2)))
    return [_group_norm(n, total), total]


def _group_norm(n: NodeContext, x: ModelValue) -> ModelValue:
    scale, shift, last = n.cast(n.value(1), f32), n.cast(n.value(2), f32), bool(n.attr("channels_last", 1))
    if x.rank != 4:
        raise NodeError(f"{n.op_type} of {x.type}, which must be of rank 4")
    wide = n.cast(x, f32)
    if last:
        wide = n.call("transpose", wide, perm=(0, 3, 1, 2))
    made = n.call("group_norm", wide, scale, shift, groups=int(n.attr("groups", 1)), epsilon=n.attr("epsilon", 1e-5))
    if n.attr("activation", 0):
        made = n.call("silu", made)
    return n.cast(n.call("transpose", made, perm=(0, 2, 3, 1)) if last else made, x.dtype)


@onnx_op("BiasAdd", domain=_DOMAIN)
def import_bias_add(n: NodeContext) -> NodeResult:
    return n.call("add", n.call("add", n.value(0), n.value(1)), n.value(2))


@onnx_op("BiasSplitGelu", domain=_DOMAIN)
def import_bias_split_gelu(n: NodeContext) -> NodeResult:
    """left * gelu(right), of the halves of the columns of x + bias."""
    x = n.call("add", n.value(0), n.value(1))
    half = n.known(x.shape[-1], "columns") // 2
    left, right = (n.part(x, -1, at, half) for at in (0, half))
    return n.call("mul", left, n.call("gelu", right, approximate="none"))


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


@onnx_op("NGramRepeatBlock", domain=_DOMAIN)
def import_ngram_repeat_block(n: NodeContext) -> NodeResult:
    """Scores [b, tokens], minus infinity where a token would end a run of `ngram_size` that stands in ids [b, length] already."""
    ids, scores, size = n.value(0), n.value(1), n.attr("ngram_size")
    if ids.rank != 2 or scores.rank != 2 or size < 1:
        raise ShapeError(f"NGramRepeatBlock: ids {ids.type}, scores {scores.type} and runs of {size}; there must be two matrices")
    n.graph.state(partial(require_equal, ids.shape[0], scores.shape[0], "NGramRepeatBlock: dim 0 of the ids"), n.span)
    length, tokens = ids.shape[1], scores.shape[1]
    ids = n.call("pad", n.cast(ids, i64), None, pads=(0, size - 1, 0, 0))  # so that there is a last run, whatever the length
    starts = simplify(maximum(length - (size - 1), const(0)), n.facts)
    token = n.part(ids, 1, 2 * (size - 1), starts) if size > 1 else ids
    for k in range(size - 1):
        same = n.call("equal", n.part(ids, 1, size - 1 + k, starts), n.part(ids, 1, length + k, 1))
        token = n.call("where", same, token, n.const(-1, i64))
    is_met = n.call("greater_equal", token, n.const(0, i64))
    held = n.call("check_range", n.call("maximum", token, n.const(0, i64)), limit=tokens, what="token")
    none = n.call("full", shape=scores.shape, value=0, dtype=i32)
    barred = n.call("scatter_elements", none, held, n.cast(is_met, i32), axis=1, reduction="max")
    return n.call("where", n.cast(barred, bool_), n.const(-np.inf, scores.dtype), scores)


_MURMUR_BLOCK = (0xCC9E2D51, 15, 0x1B873593)
_MURMUR_ENDS = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1))


@onnx_op("MurmurHash3", domain=_DOMAIN)
def import_murmur_hash3(n: NodeContext) -> NodeResult:
    """The hash of 32 bits of each number's bytes (MurmurHash3_x86_32 of A. Appleby)."""
    x, seed = n.value(0), n.attr("seed", 0)
    if x.dtype.bits not in (32, 64):
        raise UnsupportedError(f"MurmurHash3 of {x.dtype}", code="TC1012")
    bits = u32 if x.dtype.bits == 32 else u64
    words = x if x.dtype is bits else n.call("bitcast", x, dtype=bits)
    parts = [words] if bits is u32 else [words, n.call("shift_right", words, n.const(32, u64))]

    def turned(h: ModelValue, places: int) -> ModelValue:
        left, right = n.call("shift_left", h, n.const(places, u32)), n.call("shift_right", h, n.const(32 - places, u32))
        return n.call("bit_or", left, right)

    result = n.const(seed % 2**32, u32)
    first, places, second = _MURMUR_BLOCK
    for part in parts:
        block = turned(n.call("mul", n.cast(part, u32), n.const(first, u32)), places)
        result = turned(n.call("bit_xor", result, n.call("mul", block, n.const(second, u32))), 13)
        result = n.call("add", n.call("mul", result, n.const(5, u32)), n.const(0xE6546B64, u32))
    result = n.call("bit_xor", result, n.const(4 * len(parts), u32))
    for places, factor in _MURMUR_ENDS:
        mixed = n.call("bit_xor", result, n.call("shift_right", result, n.const(places, u32)))
        result = mixed if factor == 1 else n.call("mul", mixed, n.const(factor, u32))
    return result if n.attr("positive", 1) else n.call("bitcast", result, dtype=i32)


@onnx_op("MatMulInteger16", domain=_DOMAIN)
def import_matmul_integer_16(n: NodeContext) -> NodeResult:
    return n.call("matmul", *(n.call("cast", n.value(k), dtype=i32) for k in range(2)))


def _add(n: NodeContext, x: ModelValue, bias: ModelValue | None) -> ModelValue:
    return x if bias is None else n.call("add", x, bias)
