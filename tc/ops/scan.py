"""Operators that go through an axis in order: running sums, sorting, and what is left of a tensor when data choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.ir.dtype import from_numpy, i64
from tc.ir.expr import Expr, Load, Var, add, cast, const, equal, mul, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, normalize_axis, operand, sum_dtype
from tc.ops.registry import REQUIRED, Compute, OpDef, Reference, register
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _compute_running(combine: Callable[[Expr, Expr], Expr], none: int, name: str) -> Compute:
    """What is combined so far, along an axis, of 16-bit floats in f32; `none` stands before the first element."""

    def compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
        x = tensors[0]
        assert x is not None
        axis = normalize_axis(attrs.axis, len(x.shape), name)
        n, wide = x.shape[axis], sum_dtype(x.dtype)

        def body(out: Any, *axes: Expr) -> Expr:
            def at(place: Expr) -> tuple[Expr, ...]:
                return (*axes[:axis], place, *axes[axis + 1 :])

            t = axes[axis]  # at the first step the neighbour is outside
            neighbour = te.minimum(t + 1, n - 1) if attrs.reverse else te.maximum(t - 1, const(0))
            is_first = equal(t, n - 1 if attrs.reverse else const(0))
            own = cast(x[at(neighbour)] if attrs.exclusive else x[at(t)], wide)
            first = const(none, wide) if attrs.exclusive else own
            return select(is_first, first, combine(Load(out, at(neighbour)), own))

        found = te.scan(x.shape, wide, axis, body, name, backwards=attrs.reverse)
        return found if wide is x.dtype else te.compute(x.shape, lambda *axes: cast(found[axes], x.dtype), f"{name}_rounded")

    return compute


def _run_running(ufunc: np.ufunc, none: int) -> Reference:
    def run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
        x = arrays[0]
        assert x is not None
        axis = normalize_axis(attrs.axis, x.ndim, ufunc.__name__)
        values = np.flip(x, axis) if attrs.reverse else x
        wide = sum_dtype(from_numpy(x.dtype)).numpy
        total = ufunc.accumulate(values.astype(wide), axis=axis, dtype=wide).astype(x.dtype)
        if attrs.exclusive:
            total = np.roll(total, 1, axis)
            total[tuple(slice(0, 1) if d == axis else slice(None) for d in range(x.ndim))] = none
        return np.ascontiguousarray(np.flip(total, axis) if attrs.reverse else total)

    return run


def _running_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for exclusive in (False, True):
        for reverse in (False, True):
            yield [_normal(rng, 3, 5)], {"axis": 1, "exclusive": exclusive, "reverse": reverse}
    yield [np.arange(6).reshape(2, 3)], {"axis": 0}


for _name, _combine, _ufunc, _none in (("cumsum", add, np.add, 0), ("cumprod", mul, np.multiply, 1)):
    register(
        OpDef(
            _name,
            lambda types, attrs, name=_name: operand(types, 0, name),  # type: ignore[misc]
            _run_running(_ufunc, _none),
            _compute_running(_combine, _none, _name),
            {"axis": REQUIRED, "exclusive": False, "reverse": False},
            samples=_running_samples,
        )
    )


# -- results whose size depends on the data: the reference alone


def _fresh_dim(name: str) -> Var:
    return Var(name, i64)


def _run_compress(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, condition = arrays[0], arrays[1]
    assert x is not None and condition is not None
    return np.compress(condition, x, axis=attrs.axis)


def _infer_compress(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "compress")
    if attrs.axis is None:
        return TensorType((_fresh_dim("kept"),), x.dtype)
    axis = normalize_axis(attrs.axis, x.rank, "compress")
    return TensorType((*x.shape[:axis], _fresh_dim("kept"), *x.shape[axis + 1 :]), x.dtype)


def _compress_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for axis, size in ((None, 24), (0, 2), (1, 3), (-1, 4), (1, 2), (None, 5)):  # the last two: what is not spoken of is dropped
        yield [_normal(rng, 2, 3, 4), rng.random(size) < 0.5], {"axis": axis}
    yield [rng.integers(0, 9, (4, 2)), np.zeros(4, bool)], {"axis": 0}
    yield [_normal(rng, 0, 3), np.ones(3, bool)], {"axis": 1}
    yield [np.array(2.5, np.float32), np.ones(1, bool)], {"axis": None}


register(OpDef("compress", _infer_compress, _run_compress, None, {"axis": None}, samples=_compress_samples))


def _infer_nonzero(types: Types, attrs: Attrs) -> TensorType:
    return TensorType((const(operand(types, 0, "nonzero").rank), _fresh_dim("nonzero")), i64)


def _run_nonzero(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    """int64[rank, count]: the places, one a column, in order; of a scalar zero numbers a place."""
    x = arrays[0]
    assert x is not None
    places = np.nonzero(np.atleast_1d(x))[: x.ndim]
    return np.array(places, np.int64).reshape(x.ndim, np.count_nonzero(x))


def _nonzero_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield [rng.integers(0, 2, (2, 3, 4))], {}
    yield [np.array([0.0, -0.0, np.nan, np.inf, 1e-45, 2.0], np.float32)], {}
    yield [rng.random((5, 1)) < 0.5], {}
    yield [np.zeros((3, 2), np.uint8)], {}
    yield [_normal(rng, 2, 0)], {}
    yield [np.array(3, np.int32)], {}
    yield [np.array(0, np.int32)], {}


register(OpDef("nonzero", _infer_nonzero, _run_nonzero, samples=_nonzero_samples))
