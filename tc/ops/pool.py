"""Pooling over the spatial axes of [n, c, *space], of any spatial rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.dtype import from_numpy, i64
from tc.ir.expr import Expr, Select, cast, const, is_const, logical_and, maximum, minimum
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import Arrays, Tensors, Types, ints, operand, sum_dtype, unravel, wide
from tc.ops.registry import REQUIRED, BlockedForm, Form, OpDef, register, require
from tc.ops.window import Window, int_window, numpy_windows, output_dim, pad_stage, taps, window_of
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _pool_window(attrs: Attrs, rank: int, op: str) -> Window:
    return window_of(attrs, attrs.kernel, rank, op)


def _pool_dim(dim: Expr, window: Window, d: int, attrs: Attrs) -> Expr:
    """As `output_dim`. With `clip`, a window that is longer than the padded input, by less than a stride, counts once; if by less than two,
    there is none: quotients are rounded toward zero. The dim is named as seldom as can be, as dims behind it name this one."""
    plain, stride = output_dim(dim, window, d, attrs.ceil_mode), window.strides[d]
    if attrs.ceil_mode or not attrs.clip or stride == 1:
        return plain
    least = _least_size(window, d)
    free = dim - least
    rounded = maximum(free, 0) // stride + (minimum(free, 0) + (stride - 1)) // stride + 1
    never_of_nothing = isinstance(least, int) and least >= stride  # an input without elements is that much too short
    return simplify(rounded if never_of_nothing else Select(dim > 0, rounded, plain))


def _least_size(window: Window, d: int) -> Any:
    """Of an input that has room for one window with its padding."""
    return window.reach(d) - (window.begin[d] + window.end[d])


def _sticks_out(attrs: Attrs) -> bool:
    """Whether the last window may reach beyond the padded input."""
    return bool(attrs.ceil_mode or attrs.clip)


def _infer_pool(op: str) -> Callable[[Types, Attrs], TensorType]:
    def infer(types: Types, attrs: Attrs) -> TensorType:
        x = operand(types, 0, op)
        if x.rank < 3:
            raise ShapeError(f"{op}: the operand must be [n, c, *space], found {x}")
        window = _pool_window(attrs, x.rank - 2, op)
        space = tuple(_pool_dim(x.shape[2 + d], window, d, attrs) for d in range(x.rank - 2))
        for d, dim in enumerate(x.shape[2:]) if attrs.clip and not attrs.ceil_mode else ():
            least = _least_size(window, d)
            if isinstance(least, int) and least > window.strides[d] > 1:
                require(dim > 0, f"{op}: dim {2 + d} of the operand is 0, and a window is longer than its padding by {least}")
        return TensorType((*x.shape[:2], *space), x.dtype)

    return infer


def _overhang(x: Tensor, out: Sequence[Expr], window: Window) -> list[Expr | int]:
    """How far the last window sticks out beyond the padded input."""
    found: list[Expr | int] = []
    for d, count in enumerate(out):
        needed = (count - 1) * window.strides[d] + window.reach(d)
        extra = simplify(maximum(needed - (x.shape[2 + d] + (window.begin[d] + window.end[d])), 0))
        found.append(int(extra) if is_const(extra) else extra)
    return found


def _pooled(
    x: Tensor, attrs: Attrs, type_: TensorType, monoid: str, fill: Expr, name: str, element: Callable[[Expr], Expr]
) -> Tensor:
    rank = type_.rank - 2
    window = _pool_window(attrs, rank, name)
    extra = _overhang(x, type_.shape[2:], window) if _sticks_out(attrs) else [0] * rank
    padded = pad_stage(x, window, extra, fill, f"{name}_pad")
    wide_axes = [d for d, size in enumerate(window.kernel) if size != 1 and not (isinstance(size, Expr) and is_const(size, 1))] or [0]

    def body(n: Expr, c: Expr, *rest: Expr) -> Expr:
        offsets: list[Expr] = [const(0)] * rank
        for d, offset in zip(wide_axes, rest[rank:], strict=True):
            offsets[d] = offset
        return element(padded[(n, c, *taps(window, rest[:rank], offsets))])

    return te.reduce(monoid, type_.shape, [window.kernel[d] for d in wide_axes], body, name)


def _compute_max_pool(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    return _pooled(x, attrs, types[0], "max", te.lowest(x.dtype), "max_pool", lambda value: value)


def _padded_windows(x: np.ndarray, attrs: Attrs, fill: Any, op: str) -> tuple[np.ndarray, Window, list[int]]:
    rank = x.ndim - 2
    window = int_window(attrs, attrs.kernel, rank, op)
    begin, end_pads = ints(window.begin), ints(window.end)
    counts, widths = [], []
    for d in range(rank):
        count = int(_pool_dim(const(x.shape[2 + d]), window, d, attrs))
        needed = max(count - 1, 0) * window.strides[d] + int(window.reach(d))  # a window fits, even if none is taken
        end = max(needed - x.shape[2 + d] - begin[d], end_pads[d])
        counts.append(count)
        widths.append((begin[d], end))
    padded = np.pad(x, [(0, 0), (0, 0), *((max(b, 0), max(e, 0)) for b, e in widths)], constant_values=fill)
    cut = (slice(max(-b, 0), size - max(-e, 0)) for (b, e), size in zip(widths, padded.shape[2:], strict=True))
    return numpy_windows(padded[(slice(None), slice(None), *cut)], window, counts), window, counts


def _run_max_pool(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    low = -np.inf if from_numpy(x.dtype).is_float else np.iinfo(x.dtype).min
    windows, _, _ = _padded_windows(x, attrs, low, "max_pool")
    return windows.max(axis=tuple(range(x.ndim, windows.ndim)))


def _blocked_pool(op: str) -> Callable[[Types, Attrs, int], BlockedForm | None]:
    """Pooling of blocks: their lanes are one more spatial axis, with a window of one."""

    def blocked(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
        window = _pool_window(attrs, operand(types, 0, op).rank - 2, op)
        changed = {
            "kernel": (*window.kernel, 1),
            "strides": (*window.strides, 1),
            "pads": (*window.begin, 0, *window.end, 0),
            "dilations": (*window.dilations, 1),
        }
        return BlockedForm(op, tuple({**dict(attrs), **changed}.items()), (Form.CHANNELS,))

    return blocked


_POOL_DEFAULTS: dict[str, Any] = {
    "kernel": REQUIRED,
    "strides": None,
    "pads": None,
    "dilations": None,
    "ceil_mode": False,
    "clip": False,
}


def _pool_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield [_normal(rng, 1, 2, 6, 7)], {"kernel": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 1)}
    yield [_normal(rng, 2, 3, 8)], {"kernel": (3,), "dilations": (2,)}
    yield [_normal(rng, 1, 1, 5, 5)], {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True}
    yield [_normal(rng, 1, 1, 6, 6)], {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True, "pads": (0, 0, 1, 1)}
    yield [_normal(rng, 1, 2, 2, 8)], {"kernel": (3, 2), "strides": (3, 2), "clip": True}
    yield [_normal(rng, 1, 2, 2, 8)], {"kernel": (5, 2), "strides": (3, 2), "pads": (1, 0, 1, 0), "clip": True}
    yield [_normal(rng, 1, 2, 0, 8)], {"kernel": (2, 1), "strides": (2, 3), "ceil_mode": True}
    yield [_normal(rng, 2, 1, 1, 1)], {"kernel": (2, 2)}


register(
    OpDef(
        "max_pool",
        _infer_pool("max_pool"),
        _run_max_pool,
        _compute_max_pool,
        _POOL_DEFAULTS,
        blocked=_blocked_pool("max_pool"),
        samples=_pool_samples,
    )
)


_NOWHERE = 2**62  # the position of padding: behind every element that is as large


def _flat_position(x: Tensor, n: Expr, c: Expr, space: Sequence[Expr]) -> Expr:
    flat: Expr = n * x.shape[1] + c
    for index, dim in zip(space, x.shape[2:], strict=True):
        flat = flat * dim + index
    return flat


def _column_major(flat: Expr, dims: Sequence[Expr]) -> Expr:
    """A row-major position in [n, c, *space] with the axes of space in the other order, the first one fastest."""
    size = product(tuple(dims))
    inner: Expr = const(0)
    for index, dim in reversed(list(zip(unravel(flat % size, dims), dims, strict=True))):
        inner = inner * dim + index
    return flat // size * size + inner


def _compute_max_pool_indices(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, Tensor]:
    x = tensors[0]
    assert x is not None
    rank = types[0].rank - 2
    window = _pool_window(attrs, rank, "max_pool")
    low = te.lowest(x.dtype)

    def body(n: Expr, c: Expr, *rest: Expr) -> tuple[Expr, Expr]:
        places = [p - b for p, b in zip(taps(window, rest[:rank], rest[rank:]), window.begin, strict=True)]
        inside = [t for p, dim in zip(places, x.shape[2:], strict=True) for t in (p >= 0, p < dim)]
        value = Select(logical_and(*inside), x[(n, c, *places)], low)
        return value, Select(logical_and(*inside), _flat_position(x, n, c, places), const(_NOWHERE))

    values, indices = te.reduce_many("argmax", types[0].shape, attrs.kernel, body, ("max_pool", "indices"))
    if attrs.storage_order == 1:  # of equal numbers the first in rows is taken, in whatever order positions are counted
        rows = indices
        indices = te.compute(rows.shape, lambda *axes: _column_major(rows[axes], x.shape[2:]), "columns")
    return values, indices


def _run_max_pool_indices(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, np.ndarray]:
    x = arrays[0]
    assert x is not None
    low = -np.inf if from_numpy(x.dtype).is_float else np.iinfo(x.dtype).min
    windows, _, _ = _padded_windows(x, attrs, low, "max_pool")
    flat = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    positions, _, _ = _padded_windows(flat, attrs, _NOWHERE, "max_pool")
    taps_axes = tuple(range(x.ndim, windows.ndim))
    values = windows.max(axis=taps_axes)
    largest = (windows == values.reshape(*values.shape, *(1,) * len(taps_axes))) | (windows != windows)
    places = np.where(largest, positions, _NOWHERE).min(axis=taps_axes)
    if attrs.storage_order == 1:
        size = int(np.prod(x.shape[2:]))
        per_map = np.arange(size).reshape(x.shape[2:], order="F").reshape(-1)
        places = places // size * size + per_map[places % size]
    return values, places


def _infer_max_pool_indices(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    values = _infer_pool("max_pool_with_indices")(types, attrs)
    return values, TensorType(values.shape, i64)


def _indexed_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _pool_samples(rng)
    padded = {"kernel": (2, 3), "strides": (2, 2), "pads": (1, 1, 0, 1)}
    yield [np.zeros((1, 2, 3, 4), np.uint8)], padded
    yield [rng.integers(0, 3, (2, 2, 3, 5)).astype(np.float32)], {**padded, "storage_order": 1}


register(
    OpDef(
        "max_pool_with_indices",
        _infer_max_pool_indices,
        _run_max_pool_indices,
        _compute_max_pool_indices,
        {**_POOL_DEFAULTS, "storage_order": 0},
        samples=_indexed_samples,
    )
)


def _window_sizes(x: Tensor, attrs: Attrs, window: Window, axes: Sequence[Expr]) -> Expr:
    """How many elements the window at `axes` averages over."""
    total: Expr = const(1)
    for d, axis in enumerate(axes):
        start = axis * window.strides[d] - window.begin[d]
        dim = x.shape[2 + d]
        if attrs.count_include_pad:
            if not attrs.ceil_mode:
                count: Expr = const(int(window.kernel[d]))
            else:
                room = dim + window.end[d] - start
                count = minimum((room + (window.dilations[d] - 1)) // window.dilations[d], int(window.kernel[d]))
        else:
            dilation = window.dilations[d]
            first = maximum((const(0) - start + (dilation - 1)) // dilation, 0)
            last = minimum((dim - start + (dilation - 1)) // dilation, int(window.kernel[d]))
            count = maximum(last - first, 0)
        total = total * count
    return total


def _compute_avg_pool(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    dtype = sum_dtype(x.dtype)
    rank = types[0].rank - 2
    window = _pool_window(attrs, rank, "avg_pool")
    total = _pooled(x, attrs, types[0], "sum", const(0, x.dtype), "avg_pool", lambda value: cast(value, dtype))

    def divide(n: Expr, c: Expr, *axes: Expr) -> Expr:
        count = simplify(_window_sizes(x, attrs, window, axes))
        if is_const(count):
            return cast(total[(n, c, *axes)] / const(float(int(count)), dtype), types[0].dtype)
        return cast(total[(n, c, *axes)] / cast(count, dtype), types[0].dtype)

    return te.compute(types[0].shape, divide, "average")


def _run_avg_pool(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    windows, window, counts = _padded_windows(wide(x), attrs, 0, "avg_pool")
    ones = np.ones((1, 1, *x.shape[2:]), np.float64)
    if attrs.count_include_pad:
        ones = np.pad(ones, [(0, 0), (0, 0), *zip(window.begin, window.end, strict=True)], constant_values=1)
        kept = Attrs(tuple({**dict(attrs), "pads": (0,) * (2 * (x.ndim - 2))}.items()))
        extra = [
            max(max(n - 1, 0) * s + int(window.reach(d)) - ones.shape[2 + d], 0)
            for d, (n, s) in enumerate(zip(counts, window.strides, strict=True))
        ]
        ones = np.pad(ones, [(0, 0), (0, 0), *((0, e) for e in extra)], constant_values=0 if attrs.ceil_mode else 1)
        sizes = numpy_windows(ones, int_window(kept, attrs.kernel, x.ndim - 2, "avg_pool"), counts)
    else:
        sizes, _, _ = _padded_windows(ones, attrs, 0, "avg_pool")
    axes = tuple(range(x.ndim, windows.ndim))
    with np.errstate(all="ignore"):
        return (windows.sum(axis=axes) / sizes.sum(axis=axes)).astype(x.dtype)


def _avg_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for arrays, attrs in _pool_samples(rng):
        yield arrays, attrs
        yield arrays, {**attrs, "count_include_pad": True}


register(
    OpDef(
        "avg_pool",
        _infer_pool("avg_pool"),
        _run_avg_pool,
        _compute_avg_pool,
        {**_POOL_DEFAULTS, "count_include_pad": False},
        blocked=_blocked_pool("avg_pool"),
        samples=_avg_samples,
    )
)


PRODUCTS = (1, 2, 3, 4)
"""Powers that are products: of so few factors they round as little as the sum."""


def _compute_lp_pool(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    dtype = sum_dtype(x.dtype)
    p = const(float(attrs.p), dtype)

    def power(value: Expr) -> Expr:
        size = te.call("abs", cast(value, dtype))
        return reduce(mul, [size] * int(attrs.p)) if attrs.p in PRODUCTS else te.call("pow", size, p)

    total = _pooled(x, attrs, types[0], "sum", const(0, x.dtype), "lp_pool", power)

    def root(*axes: Expr) -> Expr:
        value = total[axes]
        if attrs.p != 1:
            value = te.call("sqrt", value) if attrs.p == 2 else te.call("pow", value, const(1.0 / attrs.p, dtype))
        return cast(value, types[0].dtype)

    return te.compute(types[0].shape, root, "root")


def _lp_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for k, (arrays, attrs) in enumerate(_pool_samples(rng)):
        yield arrays, {**attrs, "p": k % (len(PRODUCTS) + 1) + 1}


def _run_lp_pool(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    windows, _, _ = _padded_windows(wide(x), attrs, 0, "lp_pool")
    total = (np.abs(windows) ** attrs.p).sum(axis=tuple(range(x.ndim, windows.ndim)))
    return (total ** (1.0 / attrs.p)).astype(x.dtype)


register(
    OpDef(
        "lp_pool",
        _infer_pool("lp_pool"),
        _run_lp_pool,
        _compute_lp_pool,
        {**_POOL_DEFAULTS, "p": 2},
        blocked=_blocked_pool("lp_pool"),
        samples=_lp_samples,
    )
)
