"""Products with tensors of GGUF files, as operators whose kernels use their integers as they are."""

from __future__ import annotations

import numpy as np

from tc.errors import ShapeError
from tc.frontend.gguf.blocks import decode, quantized_blocks
from tc.frontend.gguf.reading import GgufTensor
from tc.ir.dtype import f32
from tc.ir.expr import Expr, ExprLike, as_expr, const, is_const
from tc.ir.graph import Atom
from tc.ir.module import IRModule
from tc.ir.types import TensorType
from tc.ops.build import GraphBuilder

_FLOATS = ("F32", "F16", "BF16")


def product_with(b: GraphBuilder, x: Atom, tensor: GgufTensor) -> Atom:
    """x W', as `ggml_mul_mat`: x [..., k] in f32, a tensor [n, k] -> [..., n].

    Blocks become literals of integers, scales and shifts. ShapeError where the tensor is no matrix of k columns; UnsupportedError for a
    kind that is not known.
    """
    type_ = x.type
    assert isinstance(type_, TensorType)
    *rows, depth = type_.shape
    if len(tensor.shape) != 2 or not is_const(depth, tensor.shape[1]) or type_.dtype is not f32:
        raise ShapeError(f"the product of {type_} and the tensor {tensor.name!r}, {list(tensor.shape)}: needed are f32[..., k] and [n, k]")
    if tensor.kind is not None and tensor.kind.name in _FLOATS:
        return b.call("matmul", x, b.const(np.ascontiguousarray(decode(tensor).T)))
    found = quantized_blocks(tensor)
    groups = found.scale.shape[1]
    blocks = b.call("reshape", x, shape=(*rows, groups, found.block))
    sums = None if found.shift is None else b.call("sum", blocks, axes=(-1,), keepdims=False)
    shift = None if found.shift is None else b.const(found.shift)
    return b.call("matmul_blocks", blocks, b.const(found.values), b.const(found.scale), None, shift, sums, columns=tensor.shape[0])


def tensor_product(tensor: GgufTensor, rows: ExprLike = 1) -> IRModule:
    """A module of one function, x [rows, k] -> x W', for `tc.compile`. `rows` may be a dim."""
    count: Expr = as_expr(rows)
    b = GraphBuilder()
    x = b.param("x", TensorType((count, const(tensor.shape[-1])), f32))
    return IRModule((b.function("product", [product_with(b, x, tensor)]),), "product")
