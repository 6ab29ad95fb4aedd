"""Pooling over regions of images whose borders are data: RoiAlign and MaxRoiPool.

`roi_grid` and `roi_edges` find out once for each region where its bins lie; `roi_align` and `roi_max` read the images, whose channels come
last, so that they share what is computed for a bin.

RoiAlign (He et al., Mask R-CNN, 2017) samples each bin of a region at a grid of points, each made of the four elements around it, and
takes the mean or the maximum. With `sampling_ratio` 0 how many points there are is data: about one for each element. A point outside of
the image counts as 0, so only those that can be inside are visited, which bounds the loops for any region, NaN and infinity included.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError, UnsupportedError
from tc.ir.dtype import DType, f32, f64, i64
from tc.ir.expr import Expr, add, call, cast, const, equal, logical_and, logical_or, maximum, minimum, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, exprs, ints, operand, require_equal
from tc.ops.registry import REQUIRED, OpDef, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]

_SLACK = 6
"""More points along an axis than those between -1 and the axis' size, which are two for each element at most: for rounding."""
_MANY = float(1 << 60)
"""What numbers of points along an axis are cut to, so that their products are finite."""
_FAR = float(1 << 30)
"""Beyond any image: what borders of regions are cut to before they become integers."""


def _require_image(x: TensorType, op: str) -> None:
    if x.rank != 4 or not x.dtype.is_float:
        raise ShapeError(f"{op}: the images must be floats [n, h, w, c], found {x}")
    for d in (1, 2):
        require(x.shape[d] >= 1, f"{op}: dim {d} of the image {x} is {x.shape[d]}, of which nothing can be taken")


def _require_regions(rois: TensorType, columns: int, op: str) -> None:
    if rois.rank != 2 or not rois.dtype.is_float:
        raise ShapeError(f"{op}: regions must be floats [r, {columns}], found {rois}")
    require_equal(rois.shape[1], const(columns), f"{op}: dim 1 of the regions {rois}")


def _require_batch(x: TensorType, batch: TensorType, regions: Expr, op: str) -> None:
    if batch.rank != 1 or batch.dtype.is_float:
        raise ShapeError(f"{op}: the numbers of images must be a vector of integers, found {batch}")
    require_equal(batch.shape[0], regions, f"{op}: the number of images {batch}")
    require(logical_or(x.shape[0] >= 1, regions <= 0), f"{op}: there are regions, but {x} has no image")


def _wide(dtype: DType) -> DType:
    return f64 if dtype is f64 else f32


def _held(index: Expr, size: Expr) -> Expr:
    return maximum(minimum(index, size - 1), const(0))


def _image(batch: Tensor, r: Expr, count: Expr) -> Expr:
    """The number of the image that a region is of. It is there as others have made sure: held there, nothing changes."""
    return _held(cast(batch[r], i64), count)


def _reference_image(x: np.ndarray, number: np.generic) -> np.ndarray:
    return np.asarray(x[min(max(int(number), 0), len(x) - 1)])


# -- where the points of RoiAlign lie

BEGIN, BIN, POINTS, FIRST = range(4)
"""What is known of a bin along one axis: where it begins, its size, how many points it has, the number of the first that is visited."""


def _infer_roi_grid(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    rois = operand(types, 0, "roi_grid")
    _require_regions(rois, 4, "roi_grid")
    if len(attrs.pooled) != 2 or min(attrs.pooled) < 1 or len(attrs.sizes) != 2:
        raise ShapeError(f"roi_grid: regions pooled to {attrs.pooled} of images of {attrs.sizes}")
    regions, wide = rois.shape[0], _wide(rois.dtype)
    bins = tuple(TensorType((regions, const(count), const(4)), wide) for count in attrs.pooled)
    return (*bins, *(TensorType((regions, const(count)), i64) for count in attrs.pooled))


def _compute_roi_grid(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    rois = tensors[0]
    assert rois is not None
    wide, offset = _wide(rois.dtype), 0.5 if attrs.half_pixel else 0.0

    def border(r: Expr, column: int) -> Expr:
        return cast(rois[(r, const(column))], wide) * float(attrs.scale) - offset

    def bin_size(r: Expr, axis: int) -> Expr:
        found = border(r, 3 - axis) - border(r, 1 - axis)
        return (found if attrs.half_pixel else maximum(found, const(1.0, wide))) / float(attrs.pooled[axis])

    def points(r: Expr, axis: int) -> Expr:
        if attrs.sampling_ratio:
            return const(float(attrs.sampling_ratio), wide)
        size = bin_size(r, axis)
        return select(size > 0, minimum(call("ceil", size), const(_MANY, wide)), const(0.0, wide))

    def first(begin: Expr, size: Expr, count: Expr) -> Expr:
        if attrs.sampling_ratio:
            return const(0.0, wide)
        number = call("floor", (begin * -1.0 - 1.0) * count / size - 0.5)
        return select(number > 0, minimum(number, count), const(0.0, wide))

    def bins(axis: int) -> Tensor:
        def entry(r: Expr, p: Expr, which: Expr) -> Expr:
            size, count = bin_size(r, axis), points(r, axis)
            begin = border(r, 1 - axis) + cast(p, wide) * size
            found: Expr = first(begin, size, count)
            for k, value in ((POINTS, count), (BIN, size), (BEGIN, begin)):
                found = select(equal(which, k), value, found)
            return found

        return te.compute(types[axis].shape, entry, f"bins{axis}")

    def visited(axis: int) -> Tensor:
        limit = cast(exprs(attrs.sizes)[axis] * 2 + _SLACK, wide)

        def number(r: Expr, p: Expr) -> Expr:
            size, count = bin_size(r, axis), points(r, axis)
            return cast(minimum(count - first(border(r, 1 - axis) + cast(p, wide) * size, size, count), limit), i64)

        return te.compute(types[2 + axis].shape, number, f"visited{axis}")

    return bins(0), bins(1), visited(0), visited(1)


def _run_roi_grid(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, ...]:
    rois = arrays[0]
    assert rois is not None
    wide = np.float64 if rois.dtype == np.float64 else np.float32
    bins, visited = [], []
    with np.errstate(all="ignore"):
        borders = rois.astype(wide) * wide(attrs.scale) - wide(0.5 if attrs.half_pixel else 0)
        for axis, count in enumerate(attrs.pooled):
            size = borders[:, 3 - axis] - borders[:, 1 - axis]
            size = (size if attrs.half_pixel else np.maximum(size, wide(1))) / wide(count)
            counted = np.where(size > 0, np.ceil(size).clip(0, _MANY), wide(0))
            points = np.full_like(size, attrs.sampling_ratio) if attrs.sampling_ratio else counted
            begin = borders[:, 1 - axis, None] + np.arange(count).astype(wide) * size[:, None]
            number = np.floor((-begin - wide(1)) * points[:, None] / size[:, None] - wide(0.5))
            first = np.where(number > 0, np.minimum(number, points[:, None]), wide(0)) * (attrs.sampling_ratio == 0)
            bins.append(np.stack(np.broadcast_arrays(begin, size[:, None], points[:, None], first), -1).astype(wide))
            visited.append(np.minimum(points[:, None] - first, 2 * int(attrs.sizes[axis]) + _SLACK).astype(np.int64))
    return (*bins, *visited)


def _rois(rng: np.random.Generator, count: int, size: float) -> np.ndarray:
    corners = rng.uniform(-0.3 * size, 1.1 * size, (count, 2))
    return np.concatenate([corners, corners + rng.uniform(-0.2 * size, 0.9 * size, (count, 2))], 1).astype(np.float32)


def _odd_rois() -> np.ndarray:
    nan, inf = np.nan, np.inf
    rows = [[1, 1, 1, 1], [5, 6, 2, 1], [-50, -50, -40, -40], [nan, 0, 3, 4], [0, 0, inf, 4], [-inf, 0, 4, inf], [-1e30, -9, 1e30, 9]]
    return np.array(rows, np.float32)


def _grids(rng: np.random.Generator) -> Iterator[Sample]:
    rois = np.concatenate([_rois(rng, 4, 9), _odd_rois()])
    for ratio in (0, 2):
        for half_pixel in (False, True):
            yield [rois], {"pooled": (2, 3), "sizes": (7, 9), "sampling_ratio": ratio, "half_pixel": half_pixel, "scale": 0.75}
    yield [rois.astype(np.float64)], {"pooled": (1, 1), "sizes": (1, 40), "sampling_ratio": 0, "half_pixel": True}
    yield [rois[:0]], {"pooled": (1, 1), "sizes": (3, 4), "sampling_ratio": 0, "half_pixel": True}


register(
    OpDef(
        "roi_grid",
        _infer_roi_grid,
        _run_roi_grid,
        _compute_roi_grid,
        {"pooled": REQUIRED, "sizes": REQUIRED, "sampling_ratio": REQUIRED, "half_pixel": REQUIRED, "scale": 1.0},
        apart=True,
        samples=_grids,
    )
)


# -- RoiAlign


def _infer_roi_align(types: Types, attrs: Attrs) -> TensorType:
    x, batch, *bins = (operand(types, k, "roi_align") for k in range(6))
    if attrs.mode not in ("avg", "max"):
        raise UnsupportedError(f"roi_align: no mode {attrs.mode!r}", code="TC1013", supported="avg, max")
    _require_image(x, "roi_align")
    if [b.rank for b in bins] != [3, 3, 2, 2]:
        raise ShapeError(f"roi_align: tables of bins {bins}")
    regions = bins[0].shape[0]
    _require_batch(x, batch, regions, "roi_align")
    for b in bins[1:]:
        require_equal(b.shape[0], regions, f"roi_align: dim 0 of the bins {b}")
    for b, visited in zip(bins[:2], bins[2:], strict=True):
        require_equal(b.shape[2], const(4), f"roi_align: dim 2 of the bins {b}")
        require_equal(visited.shape[1], b.shape[1], f"roi_align: dim 1 of the bins {visited}")
    return TensorType((regions, bins[0].shape[1], bins[1].shape[1], x.shape[3]), x.dtype)


def _taps(bins: Tensor, r: Expr, p: Expr, k: Expr, size: Expr) -> tuple[Expr, Expr, Expr]:
    """Of the k-th visited point: the element at or before it, and how much of it and of the next one the point is made of."""
    begin, extent, points, first = (bins[(r, p, const(which))] for which in range(4))
    wide = bins.dtype
    at = begin + (first + cast(k, wide) + 0.5) * extent / points
    inside = logical_and(at >= -1.0, at <= cast(size, wide))
    none = const(0.0, wide)
    held = minimum(maximum(select(inside, at, none), none), cast(size - 1, wide))
    low = call("floor", held)
    return cast(low, i64), select(inside, low - held + 1.0, none), select(inside, held - low, none)


def _compute_roi_align(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, batch, *tables = tensors
    assert x is not None and batch is not None
    rows, columns, visited_rows, visited_columns = tables
    assert rows is not None and columns is not None and visited_rows is not None and visited_columns is not None
    shape, (_, height, width, _) = types[0].shape, x.shape
    wide = f64 if f64 in (x.dtype, rows.dtype) else f32

    def point(r: Expr, p: Expr, q: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        row, column = _taps(rows, r, p, i, height), _taps(columns, r, q, j, width)
        image = _image(batch, r, x.shape[0])
        parts = []
        for dy in (0, 1):
            for dx in (0, 1):
                value = x[(image, _held(row[0] + dy, height), _held(column[0] + dx, width), c)]
                parts.append(cast(value, wide) * cast(row[1 + dy] * column[1 + dx], wide))
        return functools.reduce(add if attrs.mode == "avg" else maximum, parts)

    ratio = const(attrs.sampling_ratio)
    as_data = (lambda r, p, q, c: visited_rows[(r, p)], lambda r, p, q, c: visited_columns[(r, q)])
    extents = (ratio, ratio) if attrs.sampling_ratio else as_data
    pooled = te.reduce("sum" if attrs.mode == "avg" else "max", shape, extents, point, "pooled")

    def result(r: Expr, p: Expr, q: Expr, c: Expr) -> Expr:
        """A maximum is 0 at least where there are points that are not visited, and 0 where there are none."""
        value: Expr = pooled[(r, p, q, c)]
        count = cast(rows[(r, p, const(POINTS))] * columns[(r, q, const(POINTS))], wide)
        if attrs.mode == "avg":
            value = value / maximum(count, const(1.0, wide))
        elif not attrs.sampling_ratio:
            visited = cast(visited_rows[(r, p)] * visited_columns[(r, q)], wide)
            value = select(visited < count, maximum(value, const(0.0, wide)), select(visited > 0, value, const(0.0, wide)))
        return cast(value, x.dtype)

    return te.compute(shape, result, "roi_align")


def _reference_taps(bins: np.ndarray, visited: int, size: int) -> tuple[np.ndarray, list[np.ndarray]]:
    begin, extent, points, first = bins
    at = begin + (first + np.arange(visited).astype(bins.dtype) + bins.dtype.type(0.5)) * extent / points
    inside = (at >= -1) & (at <= size)
    held = np.where(inside, at, 0).clip(0, size - 1)
    low = np.floor(held)
    return low.astype(np.int64), [np.where(inside, w, 0).astype(bins.dtype) for w in (1 - (held - low), held - low)]


def _run_roi_align(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, batch, rows, columns, visited_rows, visited_columns = arrays
    assert x is not None and batch is not None and rows is not None and columns is not None
    assert visited_rows is not None and visited_columns is not None
    wide = np.float64 if np.float64 in (x.dtype, rows.dtype) else np.float32
    result = np.zeros((len(rows), rows.shape[1], columns.shape[1], x.shape[3]), wide)
    for r, p, q in np.ndindex(result.shape[:3]):
        image, points = _reference_image(x, batch[r]).astype(wide), float(rows[r, p, POINTS]) * float(columns[r, q, POINTS])
        with np.errstate(all="ignore"):
            i, of_row = _reference_taps(rows[r, p], int(visited_rows[r, p]), x.shape[1])
            j, of_column = _reference_taps(columns[r, q], int(visited_columns[r, q]), x.shape[2])
            parts = []
            for dy in (0, 1):
                for dx in (0, 1):
                    value = image[np.minimum(i + dy, x.shape[1] - 1)][:, np.minimum(j + dx, x.shape[2] - 1)]
                    parts.append(value * (of_row[dy][:, None] * of_column[dx])[..., None])
            if attrs.mode == "avg":
                result[r, p, q] = np.sum(parts, (0, 1, 2)) / max(points, 1.0)
            elif i.size and j.size:
                most = np.max(parts, (0, 1, 2))
                result[r, p, q] = np.maximum(most, 0) if i.size * j.size < points else most
    return result.astype(x.dtype)


def _align_samples(rng: np.random.Generator) -> Iterator[Sample]:
    defaults = {"scale": 1.0}
    x = rng.standard_normal((2, 7, 9, 5)).astype(np.float32)
    for [rois], attrs in _grids(rng):
        assert rois is not None
        image = x[:, : attrs["sizes"][0], : attrs["sizes"][1]].astype(rois.dtype)
        full = Attrs(tuple({**defaults, **attrs, "sizes": image.shape[1:3]}.items()))
        batch = rng.integers(0, 2, len(rois)).astype(np.int64)
        for mode in ("avg", "max"):
            tables = _run_roi_grid([rois], full)
            yield [image, batch, *tables], {"mode": mode, "sampling_ratio": attrs["sampling_ratio"]}


register(
    OpDef(
        "roi_align",
        _infer_roi_align,
        _run_roi_align,
        _compute_roi_align,
        {"mode": "avg", "sampling_ratio": 0},
        apart=True,
        samples=_align_samples,
    )
)


# -- MaxRoiPool


def _infer_roi_edges(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    rois = operand(types, 0, "roi_edges")
    _require_regions(rois, 4, "roi_edges")
    if len(attrs.pooled) != 2 or min(attrs.pooled) < 1 or len(attrs.sizes) != 2:
        raise ShapeError(f"roi_edges: regions pooled to {attrs.pooled} of images of {attrs.sizes}")
    return tuple(TensorType((rois.shape[0], const(count)), i64) for count in attrs.pooled for _ in range(2))


def _rounded(value: Expr) -> Expr:
    """The nearest integer, halves away from 0; NaN is 0."""
    found = select(value >= 0, call("floor", value + 0.5), call("ceil", value - 0.5))
    return cast(maximum(minimum(found, const(_FAR, value.dtype)), const(-_FAR, value.dtype)), i64)


def _compute_roi_edges(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    rois = tensors[0]
    assert rois is not None
    wide, sizes = _wide(rois.dtype), exprs(attrs.sizes)

    def edges(axis: int, end: int) -> Tensor:
        def edge(r: Expr, p: Expr) -> Expr:
            first, last = (_rounded(cast(rois[(r, const(1 - axis + 2 * k))], wide) * float(attrs.scale)) for k in (0, 1))
            bin_size = cast(maximum(last - first + 1, const(1)), wide) / float(attrs.pooled[axis])
            own = call("ceil" if end else "floor", cast(p + end, wide) * bin_size)
            return maximum(minimum(cast(own, i64) + first, sizes[axis]), const(0))

        return te.compute(types[2 * axis].shape, edge, f"edge{axis}_{end}")

    return tuple(edges(axis, end) for axis in (0, 1) for end in (0, 1))


def _run_roi_edges(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, ...]:
    rois = arrays[0]
    assert rois is not None
    wide = np.float64 if rois.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        scaled = rois.astype(wide) * wide(attrs.scale)
        rounded = np.where(scaled >= 0, np.floor(scaled + wide(0.5)), np.ceil(scaled - wide(0.5)))
    borders = np.nan_to_num(rounded.clip(-_FAR, _FAR)).astype(np.int64)
    found = []
    for axis, (count, size) in enumerate(zip(attrs.pooled, ints(attrs.sizes), strict=True)):
        first, last = borders[:, 1 - axis], borders[:, 3 - axis]
        bin_size = np.maximum(last - first + 1, 1).astype(wide)[:, None] / wide(count)
        places = np.arange(count).astype(wide)
        for edge in (np.floor(places * bin_size), np.ceil((places + wide(1)) * bin_size)):
            found.append((edge.astype(np.int64) + first[:, None]).clip(0, size))
    return tuple(found)


def _edge_samples(rng: np.random.Generator) -> Iterator[Sample]:
    rois = np.concatenate([_rois(rng, 5, 9), _odd_rois()])
    yield [rois], {"pooled": (3, 2), "sizes": (7, 9)}
    yield [rois], {"pooled": (1, 4), "sizes": (7, 9), "scale": 0.6}
    yield [rois.astype(np.float64)], {"pooled": (2, 2), "sizes": (1, 9), "scale": 2.0}
    yield [rois[:5].astype(np.float16)], {"pooled": (2, 2), "sizes": (7, 9)}
    yield [rois[:0]], {"pooled": (2, 2), "sizes": (7, 9)}


register(
    OpDef(
        "roi_edges",
        _infer_roi_edges,
        _run_roi_edges,
        _compute_roi_edges,
        {"pooled": REQUIRED, "sizes": REQUIRED, "scale": 1.0},
        apart=True,
        samples=_edge_samples,
    )
)


def _infer_roi_max(types: Types, attrs: Attrs) -> TensorType:
    x, batch, *edges = (operand(types, k, "roi_max") for k in range(6))
    _require_image(x, "roi_max")
    if any(edge.rank != 2 for edge in edges):
        raise ShapeError(f"roi_max: tables of edges {edges}")
    regions = edges[0].shape[0]
    _require_batch(x, batch, regions, "roi_max")
    for k, edge in enumerate(edges):
        require_equal(edge.shape[0], regions, f"roi_max: dim 0 of the edges {edge}")
        require_equal(edge.shape[1], edges[k - k % 2].shape[1], f"roi_max: dim 1 of the edges {edge}")
    return TensorType((regions, edges[0].shape[1], edges[2].shape[1], x.shape[3]), x.dtype)


def _compute_roi_max(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, batch, top, bottom, left, right = tensors
    assert x is not None and batch is not None and top is not None and bottom is not None and left is not None and right is not None
    shape = types[0].shape

    def rows(r: Expr, p: Expr) -> Expr:
        return maximum(minimum(bottom[(r, p)] - top[(r, p)], x.shape[1]), const(0))

    def columns(r: Expr, q: Expr) -> Expr:
        return maximum(minimum(right[(r, q)] - left[(r, q)], x.shape[2]), const(0))

    def element(r: Expr, p: Expr, q: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        return x[(_image(batch, r, x.shape[0]), _held(top[(r, p)] + i, x.shape[1]), _held(left[(r, q)] + j, x.shape[2]), c)]

    extents = (lambda r, p, q, c: rows(r, p), lambda r, p, q, c: columns(r, q))
    most = te.reduce("max", shape, extents, element, "most")

    def result(r: Expr, p: Expr, q: Expr, c: Expr) -> Expr:
        return select(rows(r, p) * columns(r, q) > 0, most[(r, p, q, c)], const(0.0, x.dtype))

    return te.compute(shape, result, "roi_max")


def _run_roi_max(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, batch, *edges = arrays
    assert x is not None and batch is not None
    top, bottom, left, right = (np.asarray(edge) for edge in edges)
    result = np.zeros((*top.shape, left.shape[1], x.shape[3]), x.dtype)
    for r, p, q in np.ndindex(result.shape[:3]):
        part = _reference_image(x, batch[r])[top[r, p] : bottom[r, p], left[r, q] : right[r, q]]
        if part.size:
            result[r, p, q] = part.max((0, 1))
    return result


def _max_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = rng.standard_normal((2, 7, 9, 5)).astype(np.float32)
    for [rois], attrs in _edge_samples(rng):
        assert rois is not None
        image = x[:, : attrs["sizes"][0]].astype(rois.dtype)
        edges = _run_roi_edges([rois], Attrs(tuple({"scale": 1.0, **attrs}.items())))
        yield [image, rng.integers(0, 2, len(rois)).astype(np.int64), *edges], {}


register(OpDef("roi_max", _infer_roi_max, _run_roi_max, _compute_roi_max, {}, apart=True, samples=_max_samples))
