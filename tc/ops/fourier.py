"""Overlapping pieces of signals, one after the other, and the matrices that transform them, where their length is data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.dtype import f32, f64
from tc.ir.expr import Expr, call, cast, const, equal, floordiv, maximum, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, exprs, operand, require_equal
from tc.ops.registry import REQUIRED, OpDef, current_facts, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _infer(types: Types, attrs: Attrs) -> TensorType:
    """[b, n] becomes [b, frames, size]: those that fit whole, `step` apart."""
    x, (size, step) = operand(types, 0, "frames"), exprs((attrs.size, attrs.step))
    if x.rank != 2:
        raise ShapeError(f"frames: signals must be [b, n], found {x}")
    require(size >= 1, f"frames: a frame has {size} elements")
    require(step >= 1, f"frames: the step from frame to frame is {step}")
    count = maximum(floordiv(x.shape[1] - size, maximum(step, const(1))) + 1, const(0))
    return TensorType((x.shape[0], simplify(count, current_facts()), size), x.dtype)


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, step = tensors[0], exprs((attrs.step,))[0]
    assert x is not None
    return te.compute(types[0].shape, lambda b, f, k: x[(b, te.minimum(f * step + k, x.shape[1] - 1))], "frames")


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, size, step = arrays[0], int(attrs.size), int(attrs.step)
    assert x is not None
    count = max((x.shape[1] - size) // step + 1, 0)
    return np.ascontiguousarray(x[:, np.arange(count)[:, None] * step + np.arange(size)])


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 23)).astype(np.float32)
    for size, step in ((4, 3), (5, 1), (23, 7), (24, 2), (2, 6)):
        yield [x], {"size": size, "step": step}


register(OpDef("frames", _infer, _run, _compute, {"size": REQUIRED, "step": REQUIRED}, samples=_samples))


# -- the matrix of a transform


def _infer_matrix(types: Types, attrs: Attrs) -> TensorType:
    """[size * pair, kept * 2]: for each element of a row, or its real and imaginary part, those of what it adds to each element of the
    transform (unscaled); times a window of `size` numbers, if there is one."""
    size, kept = exprs((attrs.size, attrs.kept))
    if attrs.pair not in (1, 2) or attrs.dtype not in (f32, f64):
        raise ShapeError(f"dft_matrix: numbers of {attrs.pair} parts, {attrs.dtype}")
    require(size >= 1, f"dft_matrix: a transform of {size} elements")
    if types and types[0] is not None:
        if types[0].rank != 1:
            raise ShapeError(f"dft_matrix: the window is {types[0]}")
        require_equal(types[0].shape[0], size, "dft_matrix: the size of the window")
    return TensorType((simplify(size * attrs.pair, current_facts()), simplify(kept * 2, current_facts())), attrs.dtype)


def _compute_matrix(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    window, (size,) = (tensors[0] if tensors else None), exprs((attrs.size,))
    turn = 2 * math.pi * (1 if attrs.inverse else -1)

    def entry(i: Expr, j: Expr) -> Expr:
        row, part = (i // 2, i % 2) if attrs.pair == 2 else (i, const(0))
        angle = cast(row * (j // 2) % maximum(size, const(1)), f64) * turn / cast(size, f64)
        cos, sin = call("cos", angle), call("sin", angle)
        is_same = equal(part, j % 2)  # real of real, imaginary of imaginary
        found = select(is_same, cos, select(equal(part, 0), sin, sin * -1.0))
        return cast(found if window is None else found * cast(window[row], f64), types[0].dtype)

    return te.compute(types[0].shape, entry, "dft_matrix")


def _run_matrix(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    size, kept = int(attrs.size), int(attrs.kept)
    turns = np.arange(size)[:, None] * np.arange(kept) % size * (2 * math.pi * (1 if attrs.inverse else -1) / size)
    if arrays and arrays[0] is not None:
        factors = np.exp(1j * turns) * arrays[0].astype(np.float64)[:, None]
    else:
        factors = np.exp(1j * turns)
    rows = [factors] if attrs.pair == 1 else [factors, factors * 1j]
    found = np.stack([np.stack([row.real, row.imag], -1) for row in rows], 1)
    return found.reshape(size * attrs.pair, kept * 2).astype(attrs.dtype.numpy)


def _matrix_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for pair in (1, 2):
        for inverse in (False, True):
            yield [], {"size": 7, "kept": 4, "pair": pair, "inverse": inverse}
            yield [rng.standard_normal(8).astype(np.float32)], {"size": 8, "kept": 8, "pair": pair, "inverse": inverse, "dtype": f64}


register(
    OpDef(
        "dft_matrix",
        _infer_matrix,
        _run_matrix,
        _compute_matrix,
        {"size": REQUIRED, "kept": REQUIRED, "pair": 1, "inverse": False, "dtype": f32},
        apart=True,
        samples=_matrix_samples,
    )
)
