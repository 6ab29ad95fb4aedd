"""Operators whose operands are indices, all of them in range here."""

from __future__ import annotations

from typing import Any

import numpy as np

from tc.fuzz.builder import BOOL, F32, FLOATS, I32, I64, NUMBERS, Builder, Held, Rejected
from tc.fuzz.operators.row import Row


def indices(b: Builder, size: int, shape: Any, dtype: np.dtype | None = None, *, negative: bool = True) -> Held:
    """Indices into an axis of `size`, some counted from the end."""
    if size == 0 and np.prod(shape) > 0:
        raise Rejected("nothing to index")
    low = -size if negative and b.since(11) and b.chance(0.4) else 0
    drawn = b.rng.integers(low, max(size, 1), tuple(shape))
    return b.parameter(drawn, dtype or b.choose((I64, I64, I32)), kind="index")


def gather(b: Builder) -> None:
    x = b.pick(b.types("Gather"), ranks=(1, 4))
    axis = b.axis(x.rank)
    index = indices(b, x.shape[axis], b.shape(b.integer(0, 2), most=30))
    b.emit("Gather", [x, index], **({"axis": axis} if axis or b.chance(0.5) else {}))


def gather_elements(b: Builder) -> None:
    x = b.pick(b.types("GatherElements"), ranks=(1, 4))
    axis = b.axis(x.rank)
    shape = [
        b.dim() if k == axis % x.rank else b.integer(min(n, 1), n) if b.chance(0.3) else n
        for k, n in enumerate(x.shape)
    ]
    b.emit("GatherElements", [x, indices(b, x.shape[axis], shape)], axis=axis)


def tuples(b: Builder, sizes: tuple[int, ...], shape: tuple[int, ...], *, unique: bool = False) -> np.ndarray:
    """Index tuples into dims of `sizes`: an array of shape (*shape, len(sizes))."""
    if 0 in sizes and np.prod(shape) > 0:
        raise Rejected("nothing to index")
    total, count = int(np.prod(sizes)), int(np.prod(shape))
    if unique and count > total:
        raise Rejected("too few places")
    flat = b.rng.choice(total, count, replace=not unique) if total else np.zeros(0, np.int64)
    found = np.stack(np.unravel_index(flat, sizes), -1) if total else np.zeros((0, len(sizes)), np.int64)
    negative = b.rng.random(found.shape) < (0.3 if b.since(11) and b.chance(0.4) else 0.0)
    return np.where(negative, found - np.array(sizes), found).reshape(*shape, len(sizes))


def gather_nd(b: Builder) -> None:
    x = b.pick(b.types("GatherND"), ranks=(1, 4))
    batch = b.integer(0, min(x.rank - 1, 2)) if b.since(12) and b.chance(0.4) else 0
    depth = b.integer(1, x.rank - batch)
    shape = (*x.shape[:batch], *b.shape(b.integer(0, 2), most=20))
    index = b.parameter(tuples(b, x.shape[batch : batch + depth], shape), kind="index")
    b.emit("GatherND", [x, index], **({"batch_dims": batch} if batch else {}))


def reduction(b: Builder, dtype: np.dtype, since_max: int) -> dict[str, str]:
    """A way to combine updates; none before there were any."""
    if not b.since(16) or b.chance(0.5) or dtype == BOOL:
        return {}
    return {"reduction": b.choose(("add", "mul", *(("max", "min") if b.since(since_max) else ())))}


def scatter_elements(b: Builder) -> None:
    op = "ScatterElements" if b.since(11) else "Scatter"
    x = b.pick(b.types("ScatterElements") if b.since(11) else NUMBERS, ranks=(1, 4), where=lambda h: 0 not in h.shape)
    axis = b.axis(x.rank, negative=b.since(11))
    how = reduction(b, x.dtype, 18) if b.since(11) else {}
    shape = [b.integer(1, n) for n in x.shape]
    places = np.stack(
        [b.rng.permutation(x.shape[axis])[: shape[axis]] for _ in range(int(np.prod(shape)) // shape[axis])]
    )
    if how and b.chance(0.6):
        places = b.rng.integers(0, x.shape[axis], places.shape)
    rest = [n for k, n in enumerate(shape) if k != axis % x.rank]
    index = np.moveaxis(places.reshape(*rest, shape[axis]), -1, axis)
    if b.since(11) and b.chance(0.3):
        index = np.where(b.rng.random(index.shape) < 0.3, index - x.shape[axis], index)
    b.emit(op, [x, b.parameter(index, b.choose((I64, I32)), kind="index"), b.data(x.dtype, shape)], axis=axis, **how)


def scatter_nd(b: Builder) -> None:
    x = b.pick(b.types("ScatterND"), ranks=(1, 4), where=lambda h: 0 not in h.shape)
    depth = b.integer(1, x.rank)
    how = reduction(b, x.dtype, 18)
    shape = b.shape(b.integer(1, 2), most=12)
    index = tuples(b, x.shape[:depth], shape, unique=not how)
    updates = b.data(x.dtype, (*shape, *x.shape[depth:]))
    b.emit("ScatterND", [x, b.parameter(index, kind="index"), updates], **how)


def one_hot(b: Builder) -> None:
    depth = b.extent(1, 8)
    index = b.parameter(
        b.rng.integers(-depth, depth + 2 if b.chance(0.3) else depth, b.shape(b.integer(0, 3), most=50)),
        b.choose((I64, I32, F32)),
    )
    values = b.parameter(np.array([b.integer(-2, 2), b.integer(-2, 3)]), b.choose((F32, I64, I32)))
    axis = b.integer(-index.rank - 1, index.rank)
    depth_held = b.parameter(b.choose(([depth], depth)), b.choose((I64, I32)))
    b.emit("OneHot", [index, depth_held, values], **({"axis": axis} if b.chance(0.7) else {}))


def non_zero(b: Builder) -> None:
    b.emit("NonZero", [b.pick(b.types("NonZero"), ranks=(1, 4))])


def compress(b: Builder) -> None:
    x = b.pick(b.types("Compress"), ranks=(1, 4))
    axis = b.axis(x.rank, negative=b.since(11)) if b.chance(0.7) else None
    size = x.array.size if axis is None else x.shape[axis]
    condition = b.parameter(b.rng.random(b.integer(0, min(size, 60))) < 0.6, BOOL)
    b.emit("Compress", [x, condition], **({} if axis is None else {"axis": axis}))


def unique(b: Builder) -> None:
    x = b.pick(b.types("Unique"), ranks=(1, 3), where=lambda h: 0 not in h.shape)
    attrs: dict[str, Any] = {"sorted": b.integer(0, 1)} if b.chance(0.6) else {}
    if b.chance(0.4):
        attrs["axis"] = b.axis(x.rank)
    b.emit("Unique", [x], b.integer(1, 4), **attrs)


def distinct(b: Builder, dtypes: Any) -> Held:
    """A value without equal numbers along any axis, so that every order is the only one."""
    shape = b.shape(b.integer(1, 3), most=300)
    dtype = b.dtype([d for d in dtypes if d.itemsize >= 2 and d in b.style.dtypes])
    return b.fresh((b.rng.permutation(int(np.prod(shape))).reshape(shape) - 100).astype(dtype), "fixed", 0.2)


def top_k(b: Builder) -> None:
    dtypes = b.types("TopK")
    x = (
        distinct(b, [d for d in dtypes if d.kind in "fi" and d.itemsize > 2])
        if b.chance(0.7)
        else b.pick(dtypes, ranks=(1, 4))
    )
    axis = b.axis(x.rank, negative=b.since(11))
    k = b.integer(0 if b.chance(0.1) else min(1, x.shape[axis]), x.shape[axis])
    attrs: dict[str, Any] = {"axis": axis} if axis != -1 or b.chance(0.5) else {}
    if not b.since(10):
        if k == 0:
            raise Rejected("k must be positive")
        b.emit("TopK", [x], 2, k=k, **attrs)
        return
    if b.since(11):
        attrs["largest"] = b.integer(0, 1)
    b.emit("TopK", [x, b.parameter([k])], 2, **attrs)


def non_max_suppression(b: Builder) -> None:
    batches, boxes, classes = b.integer(1, 2), b.extent(1, 9), b.extent(1, 3)
    corners = b.rng.integers(0, 16, (batches, boxes, 2, 2)) / 4
    box = np.concatenate([corners.min(2), corners.max(2) + 0.5], -1).astype(np.float32)
    scores = (b.rng.permutation(batches * boxes * classes).reshape(batches, classes, boxes) / 64).astype(np.float32)
    inputs: list[Held | None] = [b.fresh(box, "fixed", 0.2), b.fresh(scores, "fixed", 0.2)]
    limits = [
        b.parameter([b.integer(0, 5)]),
        b.parameter([b.choose((0.25, 0.5))], F32),
        b.parameter([b.choose((0.0, 0.25))], F32),
    ]
    inputs += limits[: b.integer(0, 3)]
    b.emit("NonMaxSuppression", inputs, **({"center_point_box": 1} if b.chance(0.2) else {}))


def tensor_scatter(b: Builder) -> None:
    batch, heads, length, width, new = (
        b.integer(1, 3),
        b.integer(1, 2),
        b.integer(2, 8),
        b.integer(1, 4),
        b.integer(1, 2),
    )
    dtype = b.dtype(b.types("TensorScatter"))
    mode = b.choose(("linear", "circular"))
    places = b.parameter(b.rng.integers(0, length - new + 1, batch), kind="index") if b.chance(0.7) else None
    b.emit(
        "TensorScatter",
        [b.data(dtype, (batch, heads, length, width)), b.data(dtype, (batch, heads, new, width)), places],
        mode=mode,
        axis=-2,
    )


def embedding(b: Builder) -> None:
    """Rows of a table, by indices of two dims: what nearly every language model begins with."""
    table = b.data(b.dtype(FLOATS), (b.extent(2, 20), b.extent(1, 17)))
    b.emit("Gather", [table, indices(b, table.shape[0], b.shape(2, most=40))])


ROWS = (
    Row("Gather", gather, weight=2.0),
    Row("Gather", embedding, weight=0.5),
    Row("GatherElements", gather_elements, since=11),
    Row("GatherND", gather_nd, since=11),
    Row("ScatterElements", scatter_elements, since=9, weight=1.5),
    Row("ScatterND", scatter_nd, since=11, weight=1.5),
    Row("OneHot", one_hot, since=9),
    Row("NonZero", non_zero, since=9, weight=1.5),
    Row("Compress", compress, since=9),
    Row("Unique", unique, since=11),
    Row("TopK", top_k, weight=1.5),
    Row("NonMaxSuppression", non_max_suppression, since=10),
    Row("TensorScatter", tensor_scatter, since=24),
)
