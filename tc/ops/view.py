"""Operators whose result is the memory of their operand under another shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.expr import (
    Const,
    Expr,
    const,
    equal,
    is_const,
)
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import (
    Arrays,
    Tensors,
    Types,
    exprs,
    ints,
    normalize_axes,
    operand,
    ravel,
    unravel,
)
from tc.ops.registry import REQUIRED, BlockedForm, Form, OpDef, current_facts, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def unflatten_read(x: Tensor, shape: Sequence[Expr], axes: Sequence[Expr]) -> Expr:
    """The element of `x` at the place that `axes` have in a tensor of `shape` with as many elements.

    Runs of dims with equal products on both sides are taken by themselves, so that indices stay small.
    """
    facts = current_facts()
    for axis, dim in zip(axes, shape, strict=True):
        facts = facts.with_range(axis, dim)  # type: ignore[arg-type]
    indices: list[Expr] = []
    for sources, targets in _matching_runs(x.shape, shape):
        flat = ravel(axes[targets], shape[targets])
        dims = x.shape[sources]
        for dim, index in zip(dims, unravel(flat, dims) if dims else (), strict=True):
            indices.append(const(0) if is_const(dim, 1) else simplify(index, facts))
    return x[tuple(indices)]


def _matching_runs(source: Sequence[Expr], target: Sequence[Expr]) -> list[tuple[slice, slice]]:
    """Cut two shapes with as many elements into the shortest runs of dims with equal products."""
    runs: list[tuple[slice, slice]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        i_end, j_end = next(
            (
                (i_end, j_end)
                for length in range(1, len(source) - i + len(target) - j + 1)
                for i_end in range(i, min(i + length, len(source)) + 1)
                if (j_end := j + length - (i_end - i)) <= len(target)
                and simplify(product(tuple(source[i:i_end]))) is simplify(product(tuple(target[j:j_end])))
            ),
            (len(source), len(target)),
        )
        runs.append((slice(i, i_end), slice(j, j_end)))
        i, j = i_end, j_end
    return runs


def _compute_view(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    shape = types[0].shape
    return te.compute(shape, lambda *axes: unflatten_read(x, shape, axes), "reshape")


def _infer_reshape(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "reshape")
    shape = exprs(attrs.shape)
    require(
        equal(product(x.shape), product(shape)),
        f"reshape: {x} has {product(x.shape)} elements, the shape ({', '.join(map(str, shape))}) has {product(shape)}",
    )
    return TensorType(shape, x.dtype)


register(
    OpDef(
        "reshape",
        _infer_reshape,
        lambda arrays, attrs: arrays[0].reshape(ints(attrs.shape)),  # type: ignore[union-attr]
        _compute_view,
        {"shape": REQUIRED},
        view=True,
        samples=lambda rng: iter(
            [
                ([_f32(rng, 2, 3, 4)], {"shape": (4, 6)}),
                ([_f32(rng, 2, 3, 4)], {"shape": (2, 12)}),
                ([_f32(rng, 6, 4)], {"shape": (3, 2, 1, 4)}),
                ([_f32(rng, 1, 1)], {"shape": ()}),
                ([_f32(rng, 0, 4)], {"shape": (2, 0)}),
            ]
        ),
    )
)


def _infer_match_shape(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "match_shape")
    shape = exprs(attrs.shape)
    if len(shape) != x.rank:
        raise ShapeError(f"match_shape: {x} has {x.rank} dims, not {len(shape)}")
    for axis, (dim, stated) in enumerate(zip(x.shape, shape, strict=True)):
        require(equal(dim, stated), f"match_shape: dim {axis} of {x} is {dim}, but must be {stated}")
    return TensorType(shape, x.dtype)


def _compute_match_shape(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    return te.compute(types[0].shape, lambda *axes: x[axes], "match_shape")


def _blocked_match_shape(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
    """Where other dims than the channels are in other words."""
    x, shape = operand(types, 0, "match_shape"), exprs(attrs.shape)
    if x.rank < 3 or not isinstance(shape[1], Const) or shape[1] is not x.shape[1]:
        return None
    inside = (shape[0], const(-(-int(shape[1]) // block)), *shape[2:], const(block))
    return BlockedForm("match_shape", (("shape", inside),), (Form.CHANNELS,))


register(
    OpDef(  # the operand, its dims in other words: equal ones, as is checked where the words come from
        "match_shape",
        _infer_match_shape,
        lambda arrays, attrs: arrays[0],
        _compute_match_shape,
        {"shape": REQUIRED},
        view=True,
        blocked=_blocked_match_shape,
        samples=lambda rng: iter([([_f32(rng, 2, 3)], {"shape": (2, 3)}), ([_f32(rng, 2, 5, 3)], {"shape": (2, 5, 3)})]),
    )
)


def _infer_squeeze(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "squeeze")
    if attrs.axes is None:
        axes: tuple[int, ...] = tuple(d for d, dim in enumerate(x.shape) if is_const(dim, 1))
    else:
        axes = normalize_axes(attrs.axes, x.rank, "squeeze")
    for axis in axes:
        require(equal(x.shape[axis], 1), f"squeeze: dim {axis} is {x.shape[axis]}, but must be 1")
    return TensorType(tuple(dim for d, dim in enumerate(x.shape) if d not in axes), x.dtype)


def _run_squeeze(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    return np.squeeze(x) if attrs.axes is None else np.squeeze(x, axis=normalize_axes(attrs.axes, x.ndim, "squeeze"))


register(
    OpDef(
        "squeeze",
        _infer_squeeze,
        _run_squeeze,
        _compute_view,
        {"axes": None},
        view=True,
        samples=lambda rng: iter(
            [([_f32(rng, 1, 3, 1)], {"axes": (0, -1)}), ([_f32(rng, 1, 3, 1)], {}), ([_f32(rng, 1)], {"axes": (0,)})]
        ),
    )
)


def _infer_unsqueeze(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "unsqueeze")
    axes = normalize_axes(attrs.axes, x.rank + len(attrs.axes), "unsqueeze")
    shape = list(x.shape)
    for axis in axes:
        shape.insert(axis, const(1))
    return TensorType(tuple(shape), x.dtype)


def _run_unsqueeze(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    return np.expand_dims(x, normalize_axes(attrs.axes, x.ndim + len(attrs.axes), "unsqueeze"))


register(
    OpDef(
        "unsqueeze",
        _infer_unsqueeze,
        _run_unsqueeze,
        _compute_view,
        {"axes": REQUIRED},
        view=True,
        samples=lambda rng: iter([([_f32(rng, 3, 2)], {"axes": (0, -1)}), ([np.array(1.5)], {"axes": (0,)})]),
    )
)


def _infer_flatten(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "flatten")
    axis = attrs.axis + x.rank if attrs.axis < 0 else attrs.axis
    return TensorType((simplify(product(x.shape[:axis])), simplify(product(x.shape[axis:]))), x.dtype)


def _run_flatten(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    axis = attrs.axis + x.ndim if attrs.axis < 0 else attrs.axis
    return x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), int(np.prod(x.shape[axis:], dtype=np.int64)))


register(
    OpDef(
        "flatten",
        _infer_flatten,
        _run_flatten,
        _compute_view,
        {"axis": 1},
        view=True,
        samples=lambda rng: iter([([_f32(rng, 2, 3, 4)], {}), ([_f32(rng, 2, 3)], {"axis": 0})]),
    )
)
