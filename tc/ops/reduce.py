"""Reductions over axes, and operators made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.dtype import DType, from_numpy, i32, i64, int_range
from tc.ir.expr import Const, Expr, call, cast, const, equal, logical_and, logical_or, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import Arrays, Tensors, Types, normalize_axes, normalize_axis, operand, sum_dtype, wide
from tc.ops.registry import BlockedForm, Form, OpDef, register
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def reduced_shape(shape: Sequence[Expr], axes: Sequence[int], keepdims: bool) -> tuple[Expr, ...]:
    """`shape` without `axes`, or with ones in their place."""
    kept = [const(1) if d in axes else dim for d, dim in enumerate(shape)]
    return tuple(dim for d, dim in enumerate(kept) if keepdims or d not in axes)


def reduce_stage(
    monoid: str, x: Tensor, axes: Sequence[int], keepdims: bool, element: Callable[[Expr], Expr], name: str
) -> Tensor:
    """Combine `element(x)` over `axes`."""
    shape = reduced_shape(x.shape, axes, keepdims)
    kept = [d for d in range(len(x.shape)) if d not in axes]

    def body(*places: Expr) -> Expr:
        spatial, reduction = places[: len(shape)], places[len(shape) :]
        index: dict[int, Expr] = dict(zip(axes, reduction, strict=True))
        index.update({d: spatial[d if keepdims else k] for k, d in enumerate(kept)})
        return element(x[tuple(index[d] for d in range(len(x.shape)))])

    if not axes:
        return te.compute(shape, lambda *places: element(x[places]), name)
    return te.reduce(monoid, shape, [x.shape[axis] for axis in axes], body, name)


def _infer_reduce(op: str, result: DType | None = None) -> Callable[[Types, Attrs], TensorType]:
    def infer(types: Types, attrs: Attrs) -> TensorType:
        x = operand(types, 0, op)
        axes = normalize_axes(attrs.axes, x.rank, op)
        return TensorType(reduced_shape(x.shape, axes, attrs.keepdims), result or x.dtype)

    return infer


def _finish(total: Tensor, types: Sequence[TensorType], fn: Callable[[Expr], Expr] | None, name: str) -> Tensor:
    dtype = types[0].dtype
    if fn is None and total.dtype == dtype:
        return total
    return te.compute(
        types[0].shape, lambda *axes: cast(fn(total[axes]) if fn is not None else total[axes], dtype), name
    )


def _blocked_reduce(name: str) -> Callable[[Types, Attrs, int], BlockedForm | None]:
    """Over spatial axes that stay as ones: the same axes."""

    def blocked(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
        x = operand(types, 0, name)
        axes = normalize_axes(attrs.axes, x.rank, name)
        if x.rank < 3 or not attrs.keepdims or 1 in axes:
            return None
        return BlockedForm(name, tuple({**dict(attrs), "axes": axes}.items()), (Form.CHANNELS,))

    return blocked


def _register_reduce(
    name: str,
    reference: Callable[..., np.ndarray],
    monoid: str,
    element: Callable[[Expr], Expr] = lambda x: x,
    finish: Callable[[Expr, Expr], Expr] | None = None,
    integers: bool = True,
) -> None:
    """`finish(total, number of elements)` is applied to the combined value."""

    def run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
        x = arrays[0]
        assert x is not None
        axes = normalize_axes(attrs.axes, x.ndim, name)
        with np.errstate(all="ignore"):
            return np.asarray(reference(wide(x), axes, bool(attrs.keepdims))).astype(x.dtype)

    def compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
        x = tensors[0]
        assert x is not None
        axes = normalize_axes(attrs.axes, len(x.shape), name)
        dtype = sum_dtype(x.dtype)
        total = reduce_stage(monoid, x, axes, attrs.keepdims, lambda value: element(cast(value, dtype)), name)
        count = simplify(product(tuple(x.shape[axis] for axis in axes)))
        ending = None if finish is None else (lambda value: finish(value, cast(count, dtype)))
        return _finish(total, types, ending, f"{name}_result")

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        x = rng.standard_normal((2, 3, 4)).astype(np.float32)
        yield [np.abs(x) + 0.1], {}
        yield [np.abs(x) + 0.1], {"axes": (-1,), "keepdims": False}
        yield [np.abs(x) + 0.1], {"axes": (0, 2)}
        yield [np.abs(x) + 0.1], {"axes": ()}
        if integers:
            yield [rng.integers(1, 5, (3, 4)).astype(np.int32)], {"axes": (0,)}

    defaults = {"axes": None, "keepdims": True}
    register(OpDef(name, _infer_reduce(name), run, compute, defaults, blocked=_blocked_reduce(name), samples=samples))


def _c(value: float, like: Expr) -> Expr:
    return const(value, like.dtype)


def _np_prod(x: np.ndarray, a: tuple[int, ...], k: bool) -> np.ndarray:
    return np.prod(x, axis=a, keepdims=k, dtype=x.dtype)


def _np_sum(x: np.ndarray, a: tuple[int, ...], k: bool) -> np.ndarray:
    return np.sum(x, axis=a, keepdims=k, dtype=x.dtype)


def _np_lse(x: np.ndarray, a: tuple[int, ...], k: bool) -> np.ndarray:
    x = x.astype(np.float64)
    top = np.max(x, axis=a, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0)
    result = np.log(np.sum(np.exp(x - shift), axis=a, keepdims=True)) + shift
    return result if k else np.squeeze(result, axis=a)


def _np_mean(x: np.ndarray, a: tuple[int, ...], k: bool) -> np.ndarray:
    if x.dtype.kind in "iu":
        count = int(np.prod([x.shape[d] for d in a], dtype=np.int64))
        total = np.sum(x, axis=a, keepdims=k, dtype=np.int64)
        return (np.abs(total) // max(count, 1)) * np.sign(total)
    return np.mean(x, axis=a, keepdims=k)


_register_reduce("sum", _np_sum, "sum")
_register_reduce("mean", _np_mean, "sum", finish=lambda total, count: total / count)
_register_reduce("prod", _np_prod, "prod")
# The extreme of no elements is the identity, as in ONNX.
_register_reduce(
    "max", lambda x, a, k: np.max(x, axis=a, keepdims=k, initial=te.lowest(from_numpy(x.dtype)).value), "max"
)
_register_reduce(
    "min", lambda x, a, k: np.min(x, axis=a, keepdims=k, initial=te.highest(from_numpy(x.dtype)).value), "min"
)
_register_reduce("l1", lambda x, a, k: _np_sum(np.abs(x), a, k), "sum", lambda x: call("abs", x))
_register_reduce(
    "l2",
    lambda x, a, k: np.sqrt(_np_sum(x * x, a, k)),
    "sum",
    lambda x: x * x,
    lambda total, count: call("sqrt", total),
    integers=False,
)
_register_reduce("sum_square", lambda x, a, k: _np_sum(x * x, a, k), "sum", lambda x: x * x)
_register_reduce(
    "log_sum",
    lambda x, a, k: np.log(_np_sum(x, a, k)),
    "sum",
    finish=lambda total, count: call("log", total),
    integers=False,
)


def _compute_log_sum_exp(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    axes = normalize_axes(attrs.axes, len(x.shape), "log_sum_exp")
    dtype = sum_dtype(x.dtype)
    top = reduce_stage("max", x, axes, True, lambda value: cast(value, dtype), "top")

    def shift(value: Expr) -> Expr:  # infinities have no useful distance
        return select(call("isinf", value), _c(0.0, value), value)

    def at(places: Sequence[Expr]) -> Expr:
        return top[tuple(const(0) if d in axes else place for d, place in enumerate(places))]

    scaled = te.compute(
        x.shape, lambda *places: call("exp", cast(x[places], dtype) - shift(at(places))), "scaled"
    )
    total = reduce_stage("sum", scaled, axes, attrs.keepdims, lambda value: value, "total")
    kept = [d for d in range(len(x.shape)) if d not in axes]

    def finish(*places: Expr) -> Expr:
        where: list[Expr] = [const(0)] * len(x.shape)
        for k, d in enumerate(kept):
            where[d] = places[d if attrs.keepdims else k]
        return cast(call("log", total[places]) + shift(top[tuple(where)]), types[0].dtype)

    return te.compute(types[0].shape, finish, "log_sum_exp")


register(
    OpDef(
        "log_sum_exp",
        _infer_reduce("log_sum_exp"),
        lambda arrays, attrs: _np_lse(
            wide(arrays[0]),  # type: ignore[arg-type]
            normalize_axes(attrs.axes, arrays[0].ndim, "log_sum_exp"),  # type: ignore[union-attr]
            bool(attrs.keepdims),
        ).astype(arrays[0].dtype),  # type: ignore[union-attr]
        _compute_log_sum_exp,
        {"axes": None, "keepdims": True},
        samples=lambda rng: iter(
            [
                ([rng.standard_normal((2, 5)).astype(np.float32) * 50], {"axes": (1,)}),
                ([np.array([[-np.inf, -np.inf], [0.0, -np.inf]], np.float32)], {"axes": (1,), "keepdims": False}),
            ]
        ),
    )
)


# -- arg max and min


def _register_arg(name: str, monoid: str, fn: Callable[..., np.ndarray]) -> None:
    def infer(types: Types, attrs: Attrs) -> TensorType:
        x = operand(types, 0, name)
        axis = normalize_axis(attrs.axis, x.rank, name)
        return TensorType(reduced_shape(x.shape, (axis,), attrs.keepdims), i64)

    def run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
        x = arrays[0]
        assert x is not None
        axis = normalize_axis(attrs.axis, x.ndim, name)
        if attrs.select_last_index:
            found = x.shape[axis] - 1 - fn(np.flip(x, axis), axis=axis)
        else:
            found = fn(x, axis=axis)
        found = np.asarray(found, np.int64)
        return np.expand_dims(found, axis) if attrs.keepdims else found

    def compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
        x = tensors[0]
        assert x is not None
        axis = normalize_axis(attrs.axis, len(x.shape), name)
        last = x.shape[axis] - 1

        def body(*places: Expr) -> tuple[Expr, Expr]:
            *spatial, k = places
            if not attrs.keepdims:
                spatial.insert(axis, k)
            else:
                spatial[axis] = k
            if attrs.select_last_index:
                spatial[axis] = last - k
            return x[tuple(spatial)], cast(k, _place_dtype(x.shape[axis]))

        index = _places_of_best(monoid, types[0].shape, x, axis, body)

        def result(*places: Expr) -> Expr:  # also where nothing is left to compute: a schedule may then have partial results
            found = cast(index[places], i64)
            return last - found if attrs.select_last_index else found

        return te.compute(types[0].shape, result, "position")

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        x = rng.integers(0, 4, (3, 7)).astype(np.float32)
        for last in (False, True):
            yield [x], {"axis": 1, "select_last_index": last}
            yield [x], {"axis": 0, "keepdims": False, "select_last_index": last}
        yield [np.array([1.0, np.nan, 3.0], np.float32)], {"axis": 0}
        yield [np.full((2, 3), -np.inf, np.float32)], {"axis": 1}

    defaults = {"axis": 0, "keepdims": True, "select_last_index": False}
    register(OpDef(name, infer, run, compute, defaults, samples=samples))


FEW_PLACES = 16
"""Of so short rows, the lanes of vectors are rows: the best element and its place are found together."""


def _place_dtype(length: Expr) -> DType:
    """What counts places along an axis: where that is known to be enough, half as many bits, so that vectors hold twice as many."""
    return i32 if isinstance(length, Const) and int(length.value) <= int_range(i32)[1] else i64


def _places_of_best(monoid: str, shape: Sequence[Expr], x: Tensor, axis: int, body: Callable[..., tuple[Expr, Expr]]) -> Tensor:
    """Where the best element along an axis is first; `body` gives an element and its place.

    Of rows, the best one is found, then the least place of its equals: each takes a fraction of the instructions of both at once, and a
    row is near when it is read again.
    """
    length = x.shape[axis]
    if axis < len(x.shape) - 1 or (isinstance(length, Const) and int(length.value) <= FEW_PLACES):
        return te.reduce_many(monoid, shape, (length,), body, ("best", "index"))[1]
    best = te.reduce(monoid.removeprefix("arg"), shape, (length,), lambda *places: body(*places)[0], "best")

    def place(*places: Expr) -> Expr:
        value, k = body(*places)
        top = best[places[:-1]]
        is_best = equal(value, top)
        if value.dtype.is_float:
            is_best = logical_or(is_best, logical_and(call("isnan", value), call("isnan", top)))
        return select(is_best, k, const(int_range(k.dtype)[1], k.dtype))

    return te.reduce("min", shape, (length,), place, "index")


_register_arg("argmax", "argmax", np.argmax)
_register_arg("argmin", "argmin", np.argmin)


# -- softmax and its kin


def _softmax_parts(x: Tensor, axis: int, dtype: DType) -> tuple[Tensor, Tensor, Callable[[Sequence[Expr]], list[Expr]]]:
    """(max over the axis, sum of exp(x - max)), and how to index them."""
    # a NaN that the maximum passes over reaches the sum through its own exponential
    top = reduce_stage("max_number", x, (axis,), True, lambda value: cast(value, dtype), "softmax_max")

    def pinned(places: Sequence[Expr]) -> list[Expr]:
        return [const(0) if d == axis else place for d, place in enumerate(places)]

    powers = te.compute(
        x.shape, lambda *places: call("decay", cast(x[places], dtype) - top[tuple(pinned(places))]), "softmax_exp"
    )
    return top, powers, pinned


def _compute_softmax(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "softmax")
    _, powers, pinned = _softmax_parts(x, axis, sum_dtype(x.dtype))
    total = reduce_stage("sum", powers, (axis,), True, lambda value: value, "softmax_sum")
    share = te.compute(total.shape, lambda *places: const(1.0, total.dtype) / total[places], "softmax_share")
    return te.compute(
        x.shape, lambda *places: cast(powers[places] * share[tuple(pinned(places))], x.dtype), "softmax"
    )


def _compute_log_softmax(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "log_softmax")
    dtype = sum_dtype(x.dtype)
    top, powers, pinned = _softmax_parts(x, axis, dtype)
    total = reduce_stage("sum", powers, (axis,), True, lambda value: value, "softmax_sum")

    def body(*places: Expr) -> Expr:
        at = tuple(pinned(places))
        return cast(cast(x[places], dtype) - top[at] - call("log", total[at]), x.dtype)

    return te.compute(x.shape, body, "log_softmax")


def _run_softmax(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = wide(arrays[0])  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        powers = np.exp(x - np.max(x, axis=attrs.axis, keepdims=True, initial=-np.inf))
        return (powers / powers.sum(axis=attrs.axis, keepdims=True)).astype(arrays[0].dtype)  # type: ignore[union-attr]


def _run_log_softmax(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = wide(arrays[0])  # type: ignore[arg-type]
    shifted = x - np.max(x, axis=attrs.axis, keepdims=True, initial=-np.inf)
    return (shifted - np.log(np.exp(shifted).sum(axis=attrs.axis, keepdims=True))).astype(arrays[0].dtype)  # type: ignore[union-attr]


def _softmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield [rng.standard_normal((3, 7)).astype(np.float32) * 20], {}
    yield [rng.standard_normal((2, 3, 4)).astype(np.float32)], {"axis": 1}
    yield [rng.standard_normal((2, 5)).astype(np.float16)], {"axis": -1}


def _infer_like_first(op: str) -> Callable[[Types, Attrs], TensorType]:
    def infer(types: Types, attrs: Attrs) -> TensorType:
        x = operand(types, 0, op)
        normalize_axis(attrs.axis, x.rank, op)
        if not x.dtype.is_float:
            raise ShapeError(f"{op}: needs a float operand, found {x}")
        return x

    return infer


register(
    OpDef("softmax", _infer_like_first("softmax"), _run_softmax, _compute_softmax, {"axis": -1}, samples=_softmax_samples)
)
register(
    OpDef(
        "log_softmax",
        _infer_like_first("log_softmax"),
        _run_log_softmax,
        _compute_log_softmax,
        {"axis": -1},
        samples=_softmax_samples,
    )
)


def _compute_hardmax(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "hardmax")
    shape = reduced_shape(x.shape, (axis,), True)

    def body(*places: Expr) -> tuple[Expr, Expr]:
        *spatial, k = places
        spatial[axis] = k
        return x[tuple(spatial)], cast(k, _place_dtype(x.shape[axis]))

    best = _places_of_best("argmax", shape, x, axis, body)

    def chosen(*places: Expr) -> Expr:
        at = tuple(const(0) if d == axis else place for d, place in enumerate(places))
        return cast(equal(cast(places[axis], best.dtype), best[at]), x.dtype)

    return te.compute(x.shape, chosen, "hardmax")


def _run_hardmax(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    result = np.zeros_like(x)
    if not x.size:
        return result
    np.put_along_axis(result, np.expand_dims(np.argmax(x, axis=attrs.axis), attrs.axis), 1, attrs.axis)
    return result


def _hardmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _softmax_samples(rng)
    yield [np.zeros((0, 4, 1), np.float32)], {"axis": -3}


register(
    OpDef("hardmax", _infer_like_first("hardmax"), _run_hardmax, _compute_hardmax, {"axis": -1}, samples=_hardmax_samples)
)

