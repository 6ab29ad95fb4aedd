"""Images put together from the columns of their windows, each element the sum of what the windows that hold it say (col2im)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError, UnsupportedError
from tc.ir.arith import simplify
from tc.ir.expr import Expr, cast, ceildiv, const, equal, floordiv, logical_and, maximum, minimum, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import Arrays, Tensors, Types, exprs, ints, operand, ravel, require_equal, sum_dtype, wide
from tc.ops.registry import REQUIRED, OpDef, current_facts, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _windows(image: Sequence[Any], block: Sequence[Any], attrs: Attrs) -> list[Any]:
    """How many windows there are along each axis."""
    rank = len(image)
    return [
        (image[d] + attrs.pads[d] + attrs.pads[rank + d] - attrs.dilations[d] * (block[d] - 1) - 1) // attrs.strides[d] + 1
        for d in range(rank)
    ]


def _infer_col2im(types: Types, attrs: Attrs) -> TensorType:
    x, image, block = operand(types, 0, "col2im"), exprs(attrs.image), exprs(attrs.block)
    rank = len(image)
    if x.rank != 3 or rank < 1 or [len(block), len(attrs.strides), len(attrs.dilations), len(attrs.pads)] != [rank, rank, rank, 2 * rank]:
        raise ShapeError(f"col2im: {x} for an image of {len(image)} axes: it must be [n, c * block, windows], with an entry for each axis")
    if min((*attrs.strides, *attrs.dilations), default=1) < 1:
        raise ShapeError(f"col2im: strides {attrs.strides} and dilations {attrs.dilations} must be positive")
    if x.dtype.is_bool or x.dtype.is_storage:
        raise UnsupportedError(f"col2im: there is no sum of {x.dtype}", code="TC1012")
    for d, size in enumerate(block):
        require(size >= 1, f"col2im: axis {d} of the block is {size}")
    elements = product(block)
    channels = floordiv(x.shape[1], maximum(elements, const(1)))
    require(equal(channels * elements, x.shape[1]), f"col2im: dim 1 of {x} is no multiple of the {elements} elements of a block")
    found = [maximum(count, const(0)) for count in _windows(image, block, attrs)]
    require_equal(x.shape[2], simplify(product(tuple(found)), current_facts()), f"col2im: dim 2 of {x}, the number of windows,")
    return TensorType((x.shape[0], simplify(channels, current_facts()), *image), x.dtype)


def _compute_col2im(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    """Along an axis without dilation only every `stride`-th element of a block can be at a place: the others are not looked at."""
    x = tensors[0]
    assert x is not None
    image, block = exprs(attrs.image), exprs(attrs.block)
    rank, counts, dtype = len(image), exprs(_windows(image, block, attrs)), sum_dtype(x.dtype)
    elements = product(block)
    dense = [dilation == 1 for dilation in attrs.dilations]
    extents = [ceildiv(size, s) if d else size for size, s, d in zip(block, attrs.strides, dense, strict=True)]

    def term(n: Expr, c: Expr, *axes: Expr) -> Expr:
        places, offsets, windows, inside = axes[:rank], [], [], []
        for d, (place, step) in enumerate(zip(places, axes[rank:], strict=True)):
            stride, at = attrs.strides[d], place + attrs.pads[d]
            offset = at % stride + step * stride if dense[d] else step
            begin = at - offset * attrs.dilations[d]
            if not dense[d]:
                inside.append(equal(begin % stride, 0))
            window = begin // stride
            inside += [offset < block[d], window >= 0, window < counts[d]]
            offsets.append(maximum(minimum(offset, block[d] - 1), const(0)))
            windows.append(maximum(minimum(window, counts[d] - 1), const(0)))
        value = x[(n, c * elements + ravel(offsets, block), ravel(windows, counts))]
        return select(reduce(logical_and, inside), cast(value, dtype), const(0, dtype))

    total = te.reduce("sum", types[0].shape, extents, term, "col2im")
    return total if dtype is x.dtype else te.compute(types[0].shape, lambda *axes: cast(total[axes], x.dtype), "rounded")


def _run_col2im(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    image, block = ints(attrs.image), ints(attrs.block)
    counts = [max(count, 0) for count in _windows(image, block, attrs)]
    channels = x.shape[1] // int(np.prod(block))
    columns = wide(x).reshape(x.shape[0], channels, *block, *counts)
    result = np.zeros((x.shape[0], channels, *image), columns.dtype)
    for offset in np.ndindex(*block):
        axes = zip(offset, counts, image, attrs.strides, attrs.dilations, attrs.pads, strict=False)
        places = [(np.arange(count) * stride + o * dilation - pad, size) for o, count, size, stride, dilation, pad in axes]
        inside = [np.flatnonzero((at >= 0) & (at < size)) for at, size in places]
        targets = [at[kept] for (at, _), kept in zip(places, inside, strict=True)]
        for n, c in np.ndindex(*result.shape[:2]):
            result[n, c][np.ix_(*targets)] += columns[(n, c, *offset)][np.ix_(*inside)]
    return result.astype(x.dtype)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    def case(n: int, c: int, image: tuple[int, ...], block: tuple[int, ...], dtype: type = np.float32, **given: Any) -> Sample:
        rank = len(image)
        attrs = {"image": image, "block": block, "strides": (1,) * rank, "dilations": (1,) * rank, "pads": (0,) * 2 * rank, **given}
        counts = _windows(image, block, Attrs(tuple(attrs.items())))
        x = rng.standard_normal((n, c * int(np.prod(block)), int(np.prod(counts)))) * 4
        return [x.astype(dtype)], attrs

    yield case(1, 1, (5, 5), (1, 5))
    yield case(2, 3, (6, 7), (3, 2), strides=(2, 1), pads=(1, 0, 0, 1))
    yield case(1, 2, (9, 8), (3, 3), strides=(2, 3), dilations=(2, 1), pads=(1, 1, 1, 1))
    yield case(2, 1, (11,), (4,), strides=(5,))
    yield case(1, 2, (3, 4, 5), (2, 1, 3), strides=(1, 2, 1), dilations=(1, 1, 2), dtype=np.float64)
    yield case(1, 2, (6, 6), (2, 2), strides=(2, 2), dtype=np.int32)
    yield case(1, 2, (6, 6), (3, 3), dtype=np.float16)
    yield case(0, 2, (4, 4), (2, 2))


register(
    OpDef(
        "col2im",
        _infer_col2im,
        _run_col2im,
        _compute_col2im,
        {"image": REQUIRED, "block": REQUIRED, "strides": REQUIRED, "pads": REQUIRED, "dilations": REQUIRED},
        samples=_samples,
    )
)
