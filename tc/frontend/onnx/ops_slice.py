"""Operators of ONNX that take parts of tensors along their axes, and those that add to them: slices and paddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tc.errors import ShapeError, UnsupportedError
from tc.frontend.onnx.node_context import Calls, NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.run_time_axes import axes_from_data, count_of, vector
from tc.frontend.onnx.values import ModelValue, constant_value
from tc.ir.arith import prove, simplify
from tc.ir.dtype import i64
from tc.ir.expr import Const, Expr, as_expr, ceildiv, const, equal, is_const, maximum, minimum, select
from tc.ops.common import BEYOND_ANY_DIM, require_equal
from tc.ops.registry import Requirement, require

# -- slices

_TO_THE_END = 1 << 24  # exporters write a large number where they mean the end of an axis


@onnx_op("Slice")
def import_slice_by_attributes(n: NodeContext) -> NodeResult:
    starts, ends = ([as_expr(v) for v in n.attr(name)] for name in ("starts", "ends"))
    axes = _different_axes(n, n.attr("axes"), len(starts), n.value(0).rank)
    return slice_value(n, n.value(0), starts, ends, axes, [1] * len(starts))


@onnx_op("Slice", since=10)
def import_slice(n: NodeContext) -> NodeResult:
    x = n.value(0)
    if n.is_data(3) or n.is_data(4):
        return _slice_axes_by_data(n, x)
    axes, steps = n.ints(3, "axes"), n.ints(4, "steps")
    bounds = [n.value(k) if n.value(k).rank else n.call("reshape", n.value(k), shape=(const(1),)) for k in (1, 2)]  # as torch writes some
    lengths = [bound.shape[0] for bound in bounds if bound.rank == 1]
    known = [int(length.value) for length in lengths if isinstance(length, Const)]
    known += [len(given) for given in (axes, steps) if given is not None]
    if len(lengths) == 2 and not known:
        bounds, known = _bounds_of_all(n, x, bounds), [x.rank]
    if len(lengths) < 2:
        raise ShapeError(f"Slice: the starts and ends must be vectors, one of known length, found {n.value(1).type}, {n.value(2).type}")
    count = known[0]
    axes = _different_axes(n, axes, count, x.rank)
    steps = [1] * count if steps is None else [max(-BEYOND_ANY_DIM, min(step, BEYOND_ANY_DIM)) for step in steps]
    first, last = (bound if is_const(bound.shape[0]) else n.call("reshape", bound, shape=(const(count),)) for bound in bounds)
    starts, ends = n.graph.elements(first), n.graph.elements(last)
    if starts is None or ends is None:
        return _slice_by_data(n, x, first, last, axes, steps)
    return slice_value(n, x, list(starts), list(ends), axes, steps)


def _different_axes(n: NodeContext, axes: Sequence[int] | None, count: int, rank: int) -> list[int]:
    """The axes of `count` starts: the first ones where none are named."""
    return n.different_axes(range(count) if axes is None else axes, rank)


def _bounds_of_all(n: NodeContext, x: ModelValue, bounds: Sequence[ModelValue]) -> list[ModelValue]:
    """Starts and ends of all axes, of vectors of which only the run tells how many of the first axes they are of."""
    starts, ends = bounds
    (count,), (other,) = starts.shape, ends.shape
    n.graph.state(lambda: require_equal(count, other, "Slice: the number of starts"), n.span)
    n.graph.state(lambda: require(count <= x.rank, f"Slice: {count} starts for {x.type}"), n.span)

    def filled(given: ModelValue, usual: int) -> ModelValue:
        wide = given if given.dtype == i64 else n.call("cast", given, dtype=i64)
        longer = n.call("concat", wide, n.const(np.full(x.rank, usual), i64), axis=0)
        return n.call("slice", longer, starts=(const(0),), sizes=(const(x.rank),), steps=(1,))

    return [filled(starts, 0), filled(ends, BEYOND_ANY_DIM)]


def _slice_axes_by_data(n: NodeContext, x: ModelValue) -> ModelValue:
    """A slice whose axes or steps are data: starts, ends and steps of all axes, those of axes that are not named as they do nothing."""
    names = ("starts", "ends", "axes", "steps")
    counts = {name: count_of(n, k, name) for k, name in enumerate(names, 1) if n.optional(k) is not None}
    count = counts["starts"]
    if any(other != count for other in counts.values()):
        raise ShapeError(f"Slice: there must be as many of each, found {', '.join(f'{k} {name}' for name, k in counts.items())}")
    if n.is_data(3):
        named = vector(axes_from_data(n, 3, x.rank))
    else:
        named = n.const(np.array(_different_axes(n, n.ints(3, "axes"), count, x.rank), np.int64), i64)
    dims, zero, one = vector(x.shape), n.const(0, i64), n.const(1, i64)

    def of_all(index: int, others: ModelValue) -> ModelValue:
        value = n.optional(index)
        if value is None:
            return others
        return n.call("scatter_elements", others, named, value if value.dtype == i64 else n.call("cast", value, dtype=i64))

    far = n.const(BEYOND_ANY_DIM, i64)
    none = n.const(np.zeros(x.rank), i64)
    step = of_all(4, n.const(np.ones(x.rank), i64))
    step = n.call("maximum", n.call("minimum", step, far), n.call("neg", far))
    what = "no step may be 0: the size of one, less 1,"
    size = n.call("check_range", n.call("sub", n.call("abs", step), one), limit=const(BEYOND_ANY_DIM), what=what)
    sign = n.call("sign", step)
    back = n.call("less", step, zero)
    hi = n.call("where", back, n.call("sub", dims, one), dims)

    def place(given: ModelValue, lowest: ModelValue) -> ModelValue:
        wrapped = n.call("where", n.call("less", given, zero), n.call("add", given, dims), given)
        return n.call("maximum", n.call("minimum", wrapped, hi), lowest)

    first = place(of_all(1, none), zero)
    last = place(of_all(2, dims), n.call("where", back, n.const(-1, i64), zero))
    reach = n.call("mul", n.call("sub", last, first), sign)  # how many elements lie between them, or fewer than none
    taken = n.call("add", n.call("div", n.call("sub", reach, one), n.call("add", size, one)), one)
    taken = n.call("minimum", n.call("where", n.call("less", reach, one), zero, taken), dims)
    return n.call("strided_slice", x, first, step, sizes=n.graph.dims(taken, f"{n.label}.size", n.span))


def slice_value(
    c: Calls, x: ModelValue, starts: Sequence[Expr], ends: Sequence[Expr], axes: Sequence[int], steps: Sequence[int]
) -> ModelValue:
    """x[starts:ends:steps] on some axes, with bounds clamped as ONNX says."""
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ShapeError(f"Slice: {len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps")
    begin: list[Expr] = [const(0)] * x.rank
    sizes, strides = list(x.shape), [1] * x.rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -x.rank <= axis < x.rank:
            raise ShapeError(f"Slice: axis {axis} of {x.type}")
        if step == 0:
            raise ShapeError("Slice: a step is 0")
        dim = x.shape[axis]
        begin[axis], sizes[axis] = _slice_range(c, start, end, step, dim)
        strides[axis] = step
    if all(is_const(b, 0) for b in begin) and all(a is b for a, b in zip(sizes, x.shape, strict=True)):
        return x
    return c.call("slice", x, starts=tuple(begin), sizes=tuple(sizes), steps=tuple(strides))


def _slice_range(c: Calls, start: Expr, end: Expr, step: int, dim: Expr) -> tuple[Expr, Expr]:
    """First index and number of elements of one axis. The first index means nothing where there are no elements."""
    if step > 0:
        last = _clamp(c, end, dim, 0, dim)
        if prove(start >= 0, c.facts) is True:
            first = start
            reach = last - first
        elif last is dim and isinstance(start, Const):
            reach = minimum(dim, 0 - start)
            first = dim - reach
        else:
            first = _clamp(c, start, dim, 0, dim)
            reach = last - first
    else:
        last = _clamp(c, end, dim, -1, dim - 1)
        whole = is_const(start, -1) or (isinstance(start, Const) and int(start) >= _TO_THE_END)
        whole = whole and not isinstance(dim, Const)
        first = dim - 1 if whole else _clamp(c, start, dim, 0, dim - 1)
        reach = first - last
        if not whole and prove(dim > 0, c.facts) is not True:
            reach = select(equal(dim, 0), 0, reach)  # the first index is 0 at least, but there is none
    size = maximum(ceildiv(reach, abs(step)), 0)
    return simplify(maximum(first, 0), c.facts), simplify(size, c.facts)


def _clamp(c: Calls, place: Expr, dim: Expr, lo: int, hi: Expr) -> Expr:
    """A slice bound as an index: negative ones count from the end; then clamped to lo..hi."""
    if isinstance(place, Const) and abs(int(place)) >= _TO_THE_END and not isinstance(dim, Const):
        far = abs(int(place))
        if far < BEYOND_ANY_DIM:
            c.graph.builder.require(Requirement(dim <= far, f"Slice: the dim {dim} must be at most {far}"))
        return hi if int(place) > 0 else const(lo)
    wrapped = place + dim
    if prove(place >= 0, c.facts) is True:
        index = place
    elif prove(place < 0, c.facts) is True:
        index = wrapped
    else:
        index = select(place < 0, wrapped, place)
    return simplify(maximum(minimum(index, hi), lo), c.facts)


def _slice_by_data(
    n: NodeContext, x: ModelValue, starts: ModelValue, ends: ModelValue, axes: Sequence[int], steps: Sequence[int]
) -> ModelValue:
    """A slice whose bounds are only known when it runs: start and size are computed as tensors, then read as dims."""
    lengths = {len(axes), len(steps), *(int(value.shape[0].value) for value in (starts, ends))}  # type: ignore[attr-defined]
    if len(lengths) > 1:
        raise ShapeError(f"Slice: starts {starts.type} and ends {ends.type} for {len(axes)} axes and {len(steps)} steps")
    if any(not -x.rank <= axis < x.rank for axis in axes) or 0 in steps:
        raise ShapeError(f"Slice: axes {list(axes)} and steps {list(steps)} on {x.type}")
    dims = vector([x.shape[axis] for axis in axes])
    hi = vector([x.shape[axis] if step > 0 else x.shape[axis] - 1 for axis, step in zip(axes, steps, strict=True)])
    zero, step = n.const(0, i64), constant_value(np.array(steps, np.int64))
    lo = constant_value(np.array([0 if s > 0 else -1 for s in steps], np.int64))

    def bound(place: ModelValue, lowest: ModelValue) -> ModelValue:
        place = place if place.dtype == i64 else n.call("cast", place, dtype=i64)
        wrapped = n.call("where", n.call("less", place, zero), n.call("add", place, dims), place)
        return n.call("maximum", n.call("minimum", wrapped, hi), lowest)

    first, last = bound(starts, zero), bound(ends, lo)
    sign = constant_value(np.sign(np.array(steps, np.int64)))
    reach = n.call("add", n.call("sub", last, first), n.call("sub", step, sign))
    size = n.call("minimum", n.call("maximum", n.call("div", reach, step), zero), dims)  # of no elements none are taken
    begin: list[Expr] = [const(0)] * x.rank
    sizes, strides = list(x.shape), [1] * x.rank
    begins = n.graph.dims(first, f"{n.label}.start", n.span)
    counts = n.graph.dims(size, f"{n.label}.size", n.span)
    for axis, a, b, s in zip(axes, begins, counts, steps, strict=True):
        begin[axis], sizes[axis], strides[axis] = a, b, s
    return n.call("slice", x, starts=tuple(begin), sizes=tuple(sizes), steps=tuple(strides))


# -- padding


@onnx_op("Pad")
def import_pad_by_attributes(n: NodeContext) -> NodeResult:
    x = n.value(0)
    fill = n.const(n.attr("value", 0.0), x.dtype)
    return pad_value(n, x, [as_expr(v) for v in n.attr("pads")], fill, n.attr("mode", "constant"))


@onnx_op("Pad", since=11)
def import_pad(n: NodeContext) -> NodeResult:
    x, num_axes = n.value(0), n.value(0).rank
    if n.optional(3) is not None:
        num_axes = count_of(n, 3)
    given_pads = n.of_length(1, 2 * num_axes)
    pads = n.graph.elements(given_pads)
    amounts: list[Expr] = _signed_dims(n, given_pads, "pads") if pads is None else list(pads.reshape(-1))
    if n.is_data(3):
        if len(amounts) != 2 * count_of(n, 3):
            raise ShapeError(f"Pad: {len(amounts)} pads for {count_of(n, 3)} axes; there must be two per axis")
        amounts = _pads_of_axes(amounts, axes_from_data(n, 3, x.rank), x.rank)
    elif (named := n.ints(3, "axes")) is not None:
        axes = n.different_axes(named, x.rank)
        if len(amounts) != 2 * len(axes):
            raise ShapeError(f"Pad: {len(amounts)} pads for {len(axes)} axes; there must be two per axis")
        given, amounts = amounts, [const(0)] * (2 * x.rank)
        for k, axis in enumerate(axes):
            amounts[axis], amounts[x.rank + axis] = given[k], given[len(axes) + k]
    fill = n.optional(2)
    if fill is not None and fill.rank:
        fill = n.call("reshape", fill, shape=())
    return pad_value(n, x, amounts, fill, n.attr("mode", "constant"))


def _pads_of_axes(given: Sequence[Expr], axes: Sequence[Expr], rank: int) -> list[Expr]:
    """Two pads per axis of the operand, of `given` ones for axes that are data."""
    amounts: list[Expr] = []
    for pads in (given[: len(axes)], given[len(axes) :]):
        for d in range(rank):
            amount: Expr = const(0)
            for axis, pad in zip(axes, pads, strict=True):
                amount = select(equal(axis, d), pad, amount)
            amounts.append(amount)
    return amounts


@onnx_op("CenterCropPad", since=18)
def import_center_crop_pad(n: NodeContext) -> NodeResult:
    """What is too much or missing is cut off or added on both sides, an odd one at the end."""
    x = n.value(0)
    axes = n.different_axes(n.attr("axes") or range(x.rank), x.rank)
    sizes = n.dims(1, "shape", len(axes))
    begin, end = [const(0)] * x.rank, [const(0)] * x.rank
    for axis, size in zip(axes, sizes, strict=True):
        missing = size - x.shape[axis]
        first = select(missing >= 0, missing // 2, -(-missing // 2))
        begin[axis], end[axis] = simplify(first, n.facts), simplify(missing - first, n.facts)
    return n.call("pad", x, None, pads=(*begin, *end))


def _signed_dims(n: NodeContext, value: ModelValue, what: str) -> list[Expr]:
    """Integers of any sign that are only known when it runs: dims are not negative, so each is a difference of two."""
    zero, value = n.const(0, value.dtype), n.call("maximum", value, n.const(-BEYOND_ANY_DIM, value.dtype))
    above = n.graph.dims(n.call("maximum", value, zero), f"{n.label}.{what}.above", n.span)
    below = n.graph.dims(n.call("maximum", n.call("neg", value), zero), f"{n.label}.{what}.below", n.span)
    return [a - b for a, b in zip(above, below, strict=True)]


_PAD_MODES = ("constant", "edge", "reflect", "wrap")


def pad_value(c: Calls, x: ModelValue, pads: Sequence[Expr], fill: ModelValue | None, mode: str) -> ModelValue:
    if len(pads) != 2 * x.rank:
        raise ShapeError(f"Pad: {len(pads)} pads for {x.type}; there must be two per axis")
    if mode not in _PAD_MODES:
        raise UnsupportedError(f"Pad: there is no mode {mode!r}", code="TC1013", supported=", ".join(_PAD_MODES))
    far = next((pad for pad in pads if isinstance(pad, Const) and abs(int(pad)) > BEYOND_ANY_DIM), None)
    if far is not None:
        raise ShapeError(f"Pad: {far} elements at one side of an axis of {x.type}")
    return c.call("pad", x, fill if mode == "constant" else None, pads=tuple(pads), mode=mode)
