"""Fourier transforms for targets without a kernel of them: products with constant matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tc.ir.arith import simplify
from tc.ir.dtype import DType, f32
from tc.ir.expr import Expr, const
from tc.ir.graph import Atom, TensorConst
from tc.ir.module import IRModule
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import GraphBuilder, full_attrs
from tc.ops.fourier import roots_of_one
from tc.ops.spectra import Spectra, is_direct, matrix_of
from tc.passes.graph.rewrite import GraphRule, Match, any_, op, rewrite_module
from tc.passes.manager import graph_pass


@graph_pass
def transforms_as_products(module: IRModule) -> IRModule:
    """Replace `transforms` by products with matrices: devices multiply matrices faster than their threads exchange what rows have."""
    return rewrite_module(module, TRANSFORM_RULES)


@dataclass(frozen=True)
class _Value:
    """An atom and what is known of it."""

    atom: Atom

    @property
    def type(self) -> TensorType:
        assert isinstance(self.atom.type, TensorType)
        return self.atom.type

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def dtype(self) -> DType:
        return self.type.dtype


@dataclass(frozen=True)
class _Binder:
    builder: GraphBuilder

    def call(self, op: str, *args: _Value | None, **attrs: Any) -> _Value:
        return _Value(self.builder.call(op, *(None if arg is None else arg.atom for arg in args), **attrs))

    def const(self, value: Any, dtype: DType) -> _Value:
        return _Value(self.builder.const(np.asarray(value, dtype.numpy)))


def _as_products(b: GraphBuilder, m: Match) -> Atom:
    call = m.call("transforms")
    attrs, bind = full_attrs(call), _Binder(b)
    frames = bind.call("frames", _Value(m.x), size=attrs.size * attrs.pair, step=attrs.step * attrs.pair)
    window = call.args[2] if len(call.args) > 2 else None
    if is_direct(attrs.size) and (window is None or isinstance(window, TensorConst)):
        matrix = matrix_of(attrs.size, attrs.kept, attrs.pair == 2, attrs.inverse)
        factors = 1.0 if window is None else np.repeat(window.value.astype(np.float64), attrs.pair)[:, None]
        return bind.call("matmul", frames, bind.const(matrix * factors, frames.dtype)).atom
    (batch, count, width), size = frames.shape, const(attrs.size)
    if window is not None:
        column = bind.call("expand", bind.call("reshape", _Value(window), shape=(size, const(1))), shape=(size, const(attrs.pair)))
        frames = bind.call("mul", frames, bind.call("reshape", column, shape=(width,)))
    rows = bind.call("reshape", frames, shape=(simplify(batch * count, m.facts), width))
    found = Spectra(bind, has_kernels=False).of(rows, attrs.size, attrs.kept, attrs.pair == 2, attrs.inverse)
    return bind.call("reshape", found, shape=(batch, count, const(2 * attrs.kept))).atom


def _example(b: GraphBuilder) -> Atom:
    x, window = b.param("x", tensor_type((2, 60), f32)), b.param("w", tensor_type((12,), f32))
    roots = b.const(roots_of_one(12, False).astype(np.float32))
    return b.call("transforms", x, roots, window, size=12, step=5, kept=7, pair=1)


TRANSFORM_RULES = (
    GraphRule("a transform, as products", op("transforms", any_("x"), rest=True), _as_products, example=_example, inexact=True),
)
