"""Normalisations of channels in blocks: of each channel of a sample, or of groups of them, which need not be whole blocks.

[n, c, *space] is [n, ceil(c / block), *space, block] there. Sums go over the pixels of each channel first, a vector of channels at
once, and then over the channels of a group, of which there are few; what the lanes past c hold has no part in any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.expr import Expr, call, cast, ceildiv, const, minimum
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.blocked import reference_block, reference_unblock
from tc.ops.common import Arrays, Tensors, Types, operand, require_equal, sum_dtype, wide
from tc.ops.registry import REQUIRED, OpDef, register
from tc.te import Tensor


def _infer(types: Types, attrs: Attrs) -> TensorType:
    """That of x. The scale and the bias are [ceil(c / block), block]."""
    x = operand(types, 0, "norm_blocked")
    channels, groups = attrs.channels, attrs.groups
    if x.rank < 3 or groups < 1 or channels % groups:
        raise ShapeError(f"norm_blocked: {groups} groups of {channels} channels of {x}")
    require_equal(x.shape[1], ceildiv(const(channels), x.shape[-1]), f"norm_blocked: blocks of {channels} channels in {x}")
    for what, type_ in zip(("scale", "bias"), types[1:], strict=False):
        if type_ is not None and type_.rank != 2:
            raise ShapeError(f"norm_blocked: the {what} is {type_}")
        for axis, dim in enumerate((x.shape[1], x.shape[-1])):
            if type_ is not None:
                require_equal(type_.shape[axis], dim, f"norm_blocked: dim {axis} of the {what}, for {x}")
    return x


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    values, channels = wide(x), attrs.channels
    last = reference_unblock([values], Attrs((("axis", 1), ("size", x.shape[1] * x.shape[-1]))))  # with what lies past the channels
    each = channels // attrs.groups
    sizes = (x.shape[0], channels // each, each, *last.shape[2:]) if each > 1 else (x.shape[0], last.shape[1], 1, *last.shape[2:])
    summed = last[:, : sizes[1] * each].reshape(sizes)
    over = tuple(range(2, summed.ndim))
    with np.errstate(all="ignore"):
        mean = summed.mean(axis=over)
        away = summed - mean.reshape((*mean.shape, *(1,) * len(over)))
        factor = 1 / np.sqrt((away * away).mean(axis=over) + np.asarray(attrs.epsilon, values.dtype))
        group = np.minimum(np.arange(last.shape[1]) // each, sizes[1] - 1)
        of_element = (x.shape[0], x.shape[1], *(1,) * (x.ndim - 3), x.shape[-1])
        result = (values - mean[:, group].reshape(of_element)) * factor[:, group].reshape(of_element)
        for place, combine in ((1, np.multiply), (2, np.add)):
            own = arrays[place] if len(arrays) > place else None
            result = result if own is None else combine(result, wide(own).reshape((1, *of_element[1:])))
    return np.asarray(result.astype(x.dtype))


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, *parameters = tensors
    assert x is not None
    n, blocks, *space, lanes = x.shape
    groups, each = attrs.groups, attrs.channels // attrs.groups
    dtype = sum_dtype(x.dtype)
    count = cast(simplify(product(tuple(space)) * each), dtype)

    def group_of(block: Expr, lane: Expr) -> Expr:
        return minimum((block * lanes + lane) // each, groups - 1)  # lanes past the channels have none

    def over_groups(of_channels: Tensor, name: str) -> Tensor:
        """The sums of the channels of each group."""

        def of_channel(i: Expr, group: Expr, k: Expr) -> Expr:
            return of_channels[i, (group * each + k) // lanes, (group * each + k) % lanes]

        return te.reduce("sum", (n, groups), (each,), of_channel, name)

    def statistic(total: Tensor, name: str) -> Tensor:
        """What each channel's group has of it, for an element."""
        if each == 1:
            return te.compute((n, blocks, lanes), lambda i, b, lane: total[i, b, lane] / count, name)
        grouped = over_groups(total, f"{name}_sum")
        return te.compute((n, blocks, lanes), lambda i, b, lane: grouped[i, group_of(b, lane)] / count, name)

    def over_space(body: Any, name: str) -> Tensor:
        return te.reduce("sum", (n, blocks, lanes), tuple(space), body, name)

    total = over_space(lambda i, b, lane, *at: cast(x[(i, b, *at, lane)], dtype), "norm_total")
    mean = statistic(total, "norm_mean")

    def centred(i: Expr, b: Expr, lane: Expr, at: Sequence[Expr]) -> Expr:
        return cast(x[(i, b, *at, lane)], dtype) - mean[i, b, lane]

    def square(i: Expr, b: Expr, lane: Expr, *at: Expr) -> Expr:
        value = centred(i, b, lane, at)
        return value * value

    variance = statistic(over_space(square, "norm_squares"), "norm_variance")
    factor = te.compute(
        (n, blocks, lanes), lambda i, b, lane: call("rsqrt", variance[i, b, lane] + const(attrs.epsilon, dtype)), "norm_factor"
    )

    def scaled(i: Expr, b: Expr, *rest: Expr) -> Expr:
        *at, lane = rest
        value = centred(i, b, lane, at) * factor[i, b, lane]
        scale, shift = (*parameters, None, None)[:2]
        value = value if scale is None else value * cast(scale[b, lane], dtype)
        return cast(value if shift is None else value + cast(shift[b, lane], dtype), x.dtype)

    return te.compute(x.shape, scaled, "norm")


def _samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    for channels, groups, lanes in ((8, 8, 4), (6, 3, 4), (8, 1, 4), (16, 2, 4), (12, 4, 8)):
        blocks = -(-channels // lanes)
        x = normal(2, blocks, 3, 2, lanes)
        reference = reference_unblock([x], Attrs((("axis", 1), ("size", channels))))
        x = reference_block([reference], Attrs((("axis", 1), ("block", lanes))))
        yield [x, normal(blocks, lanes), normal(blocks, lanes)], {"groups": groups, "channels": channels}


register(
    OpDef(
        "norm_blocked", _infer, _run, _compute, {"groups": REQUIRED, "channels": REQUIRED, "epsilon": 1e-5}, samples=_samples
    )
)
