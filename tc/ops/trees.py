"""Decision trees, walked from their roots to their leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.dtype import f32, f64, i64, u32, u64
from tc.ir.expr import Const, Expr, call, cast, const, equal, is_const, logical_and, logical_or, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, operand
from tc.ops.elementwise import COMPARISONS
from tc.ops.registry import REQUIRED, OpDef, register, require
from tc.ops.statements import held
from tc.te import Tensor

_FLOATS = {4: f32, 5: f64}
_FEATURE, _YES, _NO, _VALUE = range(4)
_KIND_BITS, _FEATURE_BITS = 3, 28
MOST_FEATURES = 1 << _FEATURE_BITS
"""So many columns a row may have: the bits above say how a node compares."""


def node_words(
    feature: np.ndarray, value: np.ndarray, yes: np.ndarray, no: np.ndarray, kind: np.ndarray, missing: np.ndarray
) -> np.ndarray:
    """The nodes of `walk_trees`, u32 [nodes, 4], of f64 `value` [nodes, 5]: what a step reads of a node lies together."""
    first = feature.astype(np.uint32) | kind.astype(np.uint32) << _FEATURE_BITS | missing.astype(np.uint32) << (_FEATURE_BITS + _KIND_BITS)
    words = np.ascontiguousarray(value).view(np.uint32).reshape(len(value), -1)
    return np.column_stack([first, yes.astype(np.uint32), no.astype(np.uint32), words])


def _infer(types: Types, attrs: Attrs) -> TensorType:
    x, nodes, roots = (operand(types, k, "walk_trees") for k in range(3))
    if x.rank != 2 or not x.dtype.is_float or nodes.rank != 2 or roots.rank != 1 or (nodes.dtype, roots.dtype) != (u32, u32):
        raise ShapeError(f"walk_trees: floats [rows, features], u32 [nodes, words] and u32 [trees], not {x}, {nodes}, {roots}")
    if not (isinstance(nodes.shape[1], Const) and nodes.shape[1].value in _FLOATS):
        raise ShapeError(f"walk_trees: {nodes} has not 4 or 5 words for a node")
    if attrs.depth > 0:
        for what, dim in (("features", x.shape[1]), ("nodes", nodes.shape[0])):
            require(const(1) <= dim, f"walk_trees: there are no {what}")
    return TensorType((x.shape[0], roots.shape[0]), u32)


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, nodes, roots = tensors
    assert x is not None and nodes is not None and roots is not None
    names, is_plain = attrs.comparisons, len(attrs.comparisons) == 1 and not attrs.missing

    def bits(word: Expr, shift: int, count: int) -> Expr:
        return call("bit_and", call("shift_right", word, const(shift, u32)), const((1 << count) - 1, u32))

    def step(node: Expr, row: Expr, *_: Expr) -> Expr:
        at = held(cast(node, i64), nodes.shape[0])
        word = nodes[at, _FEATURE]
        against = _value(nodes, at)
        feature = word if is_plain else bits(word, 0, _FEATURE_BITS)
        found = x[row, held(cast(feature, i64), x.shape[1])]
        found, against = (cast(found, f64), cast(against, f64)) if f64 in (x.dtype, against.dtype) else (cast(found, f32), against)
        goes = COMPARISONS[names[0]][1](found, against)
        for k, name in enumerate(names[1:], 1):
            goes = select(equal(bits(word, _FEATURE_BITS, _KIND_BITS), const(k, u32)), COMPARISONS[name][1](found, against), goes)
        if attrs.missing:
            is_missing = equal(bits(word, _FEATURE_BITS + _KIND_BITS, 1), const(1, u32))
            goes = logical_or(goes, logical_and(is_missing, call("isnan", found)))
        return select(goes, nodes[at, _YES], nodes[at, _NO])

    if attrs.depth < 2:  # no loop
        return te.compute(types[0].shape, lambda *at: step(roots[at[1]], *at) if attrs.depth else roots[at[1]], "walk_trees")
    return te.fold(types[0].shape, lambda *axes: const(attrs.depth), lambda row, tree: roots[tree], step, "walk_trees")


def _value(nodes: Tensor, at: Expr) -> Expr:
    low = nodes[at, _VALUE]
    if is_const(nodes.shape[1], _VALUE + 1):
        return call("float_of_bits", low)
    high = call("shift_left", cast(nodes[at, _VALUE + 1], u64), const(32, u64))
    return call("float_of_bits", call("bit_or", cast(low, u64), high))


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, nodes, roots = arrays
    assert x is not None and nodes is not None and roots is not None
    word, value = nodes[:, _FEATURE], np.ascontiguousarray(nodes[:, _VALUE:]).view(_FLOATS[nodes.shape[1]].numpy)[:, 0]
    x = x.astype(np.result_type(x.dtype, value.dtype) if x.dtype.kind == "f" else value.dtype)
    feature, kind = word & (MOST_FEATURES - 1), word >> _FEATURE_BITS & ((1 << _KIND_BITS) - 1)
    node = np.broadcast_to(roots, (len(x), len(roots)))
    for _ in range(attrs.depth):
        node = np.minimum(node, len(nodes) - 1)
        found, against = np.take_along_axis(x, np.minimum(feature[node].astype(np.int64), x.shape[1] - 1), 1), value[node]
        goes = COMPARISONS[attrs.comparisons[0]][0](found, against)
        for k, name in enumerate(attrs.comparisons[1:], 1):
            goes = np.where(kind[node] == k, COMPARISONS[name][0](found, against), goes)
        if attrs.missing:
            goes = goes | (word[node] >> (_FEATURE_BITS + _KIND_BITS) == 1) & np.isnan(found)
        node = np.where(goes, nodes[node, _YES], nodes[node, _NO])
    return np.array(node, np.uint32)


def _samples(rng: np.random.Generator) -> Any:
    """Trees of three nodes each, of which the second may be a leaf or lead to the third."""
    for trees, rows, dtype in ((1, 3, np.float32), (5, 4, np.float64), (3, 0, np.float32), (20, 7, np.float32)):
        own = np.arange(3 * trees).reshape(trees, 3)
        yes, no = own.copy(), own.copy()
        yes[:, 0], no[:, 0], no[:, 1] = own[:, 1], own[:, 2], own[:, 2]
        x, count = rng.standard_normal((rows, 6)).astype(dtype), 3 * trees
        x[:, :2] = np.nan
        kind, missing = rng.integers(0, 3, count), rng.integers(0, 2, count)
        nodes = node_words(rng.integers(0, 6, count), rng.standard_normal(count).astype(dtype), yes.ravel(), no.ravel(), kind, missing)
        plain = nodes & np.array([MOST_FEATURES - 1] + [2**32 - 1] * (nodes.shape[1] - 1), np.uint32)
        roots = own[:, 0].astype(np.uint32)
        yield [x, plain, roots], {"depth": 2, "comparisons": ("less_equal",)}
        yield [x.astype(np.float64), plain, roots], {"depth": 2, "comparisons": ("less_equal",)}
        yield [x, nodes, roots], {"depth": 3, "comparisons": ("less", "not_equal", "greater_equal"), "missing": True}
        yield [x, nodes, roots], {"depth": 1, "comparisons": ("equal", "greater"), "missing": True}
        yield [x, nodes, roots], {"depth": 0, "comparisons": ("greater",), "missing": True}


register(OpDef("walk_trees", _infer, _run, _compute, {"depth": REQUIRED, "comparisons": REQUIRED, "missing": False}, samples=_samples))
"""The node, u32 [rows, trees], at which each row of x [rows, features], floats of any kind, is in each tree after `depth` steps from its
root.

A node is a row of `node_words`: it goes to `yes` where `x[row, feature]` compares with its value as `comparisons[kind]` says, or is NaN
and the node says so, if `missing`; else to `no`. A leaf goes to itself. Without other kinds than the first and without `missing` the bits
that tell them are 0. Nodes and features that are not there stand for the last ones.
"""
