"""Operators that move elements without computing on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import prove, simplify
from tc.ir.dtype import i64
from tc.ir.expr import (
    Const,
    Expr,
    Select,
    cast,
    const,
    equal,
    is_const,
    logical_and,
    logical_or,
    maximum,
    minimum,
    mul,
    neg,
    select,
)
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.arrays import turned
from tc.ops.common import (
    Arrays,
    Tensors,
    Types,
    broadcast_read,
    broadcast_shapes,
    exprs,
    ints,
    normalize_axis,
    operand,
    require_equal,
    same_dtype,
)
from tc.ops.registry import REQUIRED, BlockedForm, Form, OpDef, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _infer_transpose(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "transpose")
    perm = _perm(attrs, x.rank)
    return TensorType(tuple(x.shape[axis] for axis in perm), x.dtype)


def _perm(attrs: Attrs, rank: int) -> tuple[int, ...]:
    perm = tuple(reversed(range(rank))) if attrs.perm is None else tuple(int(p) for p in attrs.perm)
    if sorted(perm) != list(range(rank)):
        raise ShapeError(f"transpose: {perm} is not a permutation of {rank} axes")
    return perm


def _compute_transpose(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    perm = _perm(attrs, len(x.shape))
    place = [perm.index(d) for d in range(len(perm))]
    return te.compute(types[0].shape, lambda *axes: x[tuple(axes[p] for p in place)], "transpose")


register(
    OpDef(
        "transpose",
        _infer_transpose,
        lambda arrays, attrs: turned(np.transpose(arrays[0], _perm(attrs, arrays[0].ndim))),  # type: ignore[union-attr, arg-type]
        _compute_transpose,
        {"perm": None},
        turned=lambda array, attrs: np.transpose(array, _perm(attrs, array.ndim)),
        samples=lambda rng: iter(
            [
                ([_f32(rng, 2, 3, 4)], {"perm": (2, 0, 1)}),
                ([_f32(rng, 2, 3)], {}),
                ([_f32(rng, 5)], {"perm": (0,)}),
                ([_f32(rng)], {}),
            ]
        ),
    )
)


def _infer_expand(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "expand")
    return TensorType(broadcast_shapes("expand", x.shape, exprs(attrs.shape)), x.dtype)


register(
    OpDef(
        "expand",
        _infer_expand,
        lambda arrays, attrs: np.broadcast_to(
            arrays[0], np.broadcast_shapes(arrays[0].shape, ints(attrs.shape))  # type: ignore[union-attr, arg-type]
        ).copy(),
        lambda tensors, attrs, types: te.compute(
            types[0].shape,
            lambda *axes: broadcast_read(tensors[0], axes, types[0].shape),  # type: ignore[arg-type]
            "expand",
        ),
        {"shape": REQUIRED},
        samples=lambda rng: iter(
            [([_f32(rng, 3, 1)], {"shape": (2, 1, 4)}), ([_f32(rng, 3)], {"shape": (1,)}), ([_f32(rng)], {"shape": ()})]
        ),
    )
)


def _infer_concat(types: Types, attrs: Attrs) -> TensorType:
    present = [type_ for type_ in types if type_ is not None]
    first = operand(present, 0, "concat")
    if not first.rank:
        raise ShapeError(f"concat: {first} has no axis")
    axis = normalize_axis(attrs.axis, first.rank, "concat")
    total: Expr = const(0)
    for type_ in present:
        if type_.rank != first.rank:
            raise ShapeError(f"concat: {first} and {type_} differ in rank")
        for d, (a, b) in enumerate(zip(first.shape, type_.shape, strict=True)):
            if d != axis:
                require(equal(a, b), f"concat: dim {d} is {a} in {first} but {b} in {type_}")
        total = total + type_.shape[axis]
    shape = (*first.shape[:axis], simplify(total), *first.shape[axis + 1 :])
    return TensorType(shape, same_dtype(present, "concat"))


MOST_IN_A_ROW = 16
"""Parts of a concatenation that are looked through one after the other."""


def _compute_concat(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    present = [tensor for tensor in tensors if tensor is not None]
    axis = normalize_axis(attrs.axis, types[0].rank, "concat")

    def body(*axes: Expr) -> Expr:
        starts: list[Expr] = [const(0)]
        for tensor in present:
            starts.append(starts[-1] + tensor.shape[axis])

        def element(k: int) -> Expr:
            return present[k][(*axes[:axis], axes[axis] - starts[k], *axes[axis + 1 :])]

        def one_of(first: int, end: int) -> Expr:
            """The element, of the parts from `first` on: one by one where they are few, else by halves, so that no choice is deep."""
            if end - first == 1:
                return element(first)
            cut = first + 1 if end - first <= MOST_IN_A_ROW else (first + end) // 2
            return Select(axes[axis] < starts[cut], one_of(first, cut), one_of(cut, end))

        return one_of(0, len(present))

    return te.compute(types[0].shape, body, "concat")


def _is_sequence(types: Types, attrs: Attrs) -> bool:
    """Whether the parts lie one after the other: every dim before the axis is 1."""
    first = operand(types, 0, "concat")
    return all(is_const(dim, 1) for dim in first.shape[: normalize_axis(attrs.axis, first.rank, "concat")])


def _blocked_concat(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
    """Along another axis than the channels, or where every part but the last fills its blocks."""
    axis = normalize_axis(attrs.axis, operand(types, 0, "concat").rank, "concat")
    channels = [type_.shape[1] for type_ in types if type_ is not None and type_.rank > 2]
    if not channels or (axis == 1 and any(not is_const(c) or int(c) % block for c in channels[:-1])):
        return None
    return BlockedForm("concat", (("axis", axis),), (Form.CHANNELS,) * len(types))


register(
    OpDef(
        "concat",
        _infer_concat,
        lambda arrays, attrs: np.concatenate([a for a in arrays if a is not None], axis=attrs.axis),
        _compute_concat,
        {"axis": REQUIRED},
        joins=_is_sequence,
        blocked=_blocked_concat,
        samples=lambda rng: iter(
            [
                ([_f32(rng, 2, 3), _f32(rng, 2, 1), _f32(rng, 2, 4)], {"axis": 1}),
                ([_f32(rng, 2, 3), _f32(rng, 0, 3)], {"axis": 0}),
                ([_f32(rng, 5)], {"axis": -1}),
            ]
        ),
    )
)


def _infer_split(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x = operand(types, 0, "split")
    axis = normalize_axis(attrs.axis, x.rank, "split")
    sizes = exprs(attrs.sizes)
    total: Expr = const(0)
    for size in sizes:
        total = total + size
    require(equal(total, x.shape[axis]), f"split: the sizes sum to {total}, but dim {axis} is {x.shape[axis]}")
    return tuple(TensorType((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype) for size in sizes)


def _run_split(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, ...]:
    assert arrays[0] is not None
    places = np.cumsum(ints(attrs.sizes))[:-1]
    return tuple(np.ascontiguousarray(part) for part in np.split(arrays[0], places, axis=attrs.axis))


def _compute_split(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    x = tensors[0]
    assert x is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "split")
    results = []
    start: Expr = const(0)
    for type_ in types:

        def body(*axes: Expr, start: Expr = start) -> Expr:
            return x[(*axes[:axis], axes[axis] + start, *axes[axis + 1 :])]

        results.append(te.compute(type_.shape, body, "split"))
        start = start + type_.shape[axis]
    return tuple(results)


register(
    OpDef(
        "split",
        _infer_split,
        _run_split,
        _compute_split,
        {"axis": 0, "sizes": REQUIRED},
        samples=lambda rng: iter([([_f32(rng, 2, 7)], {"axis": 1, "sizes": (3, 0, 4)})]),
    )
)


def _check_slice(dim: Expr, start: Expr, size: Expr, step: int, what: str) -> None:
    """ShapeError when a slice of known places leaves the axis; that others do not is for those who compute them."""
    if not (isinstance(dim, Const) and isinstance(start, Const) and isinstance(size, Const)) or size.value == 0:
        return
    last = int(start) + (int(size) - 1) * step
    if not (0 <= int(start) < int(dim) and 0 <= last < int(dim)):
        raise ShapeError(f"{what} it goes from {start} to {last}")


def _infer_slice(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "slice")
    sizes = exprs(attrs.sizes)
    if not len(sizes) == len(attrs.starts) == len(attrs.steps) == x.rank:
        raise ShapeError(f"slice: starts, sizes and steps must have one entry per axis of {x}")
    for d, (dim, start, size, step) in enumerate(zip(x.shape, exprs(attrs.starts), sizes, attrs.steps, strict=True)):
        _check_slice(dim, start, size, int(step), f"slice: along dim {d} of {x}")
    return TensorType(sizes, x.dtype)


def _run_slice(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    grids = [
        start + step * np.arange(size)
        for start, size, step in zip(ints(attrs.starts), ints(attrs.sizes), ints(attrs.steps), strict=True)
    ]
    return x[np.ix_(*grids)] if grids else x


def _compute_slice(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    starts = exprs(attrs.starts)

    def body(*axes: Expr) -> Expr:
        return x[tuple(start + axis * int(step) for start, axis, step in zip(starts, axes, attrs.steps, strict=True))]

    return te.compute(types[0].shape, body, "slice")


def _place_of_slice(types: Types, attrs: Attrs) -> Expr | None:
    """Where a slice begins in what it is taken from, in elements, if it lies there in one piece."""
    x = operand(types, 0, "slice")
    offset, stride, is_cut = const(0), const(1), False
    for start, size, step, dim in reversed(list(zip(exprs(attrs.starts), exprs(attrs.sizes), attrs.steps, x.shape, strict=True))):
        if (is_cut and not is_const(size, 1)) or step != 1:
            return None
        is_cut = is_cut or not is_const(start, 0) or simplify(size) is not simplify(dim)
        offset, stride = offset + start * stride, stride * dim
    return offset


def _blocked_slice(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
    """Where channels are cut between blocks."""
    x = operand(types, 0, "slice")
    starts, sizes = exprs(attrs.starts), exprs(attrs.sizes)
    start, size, channels = starts[1], sizes[1], x.shape[1]
    if not all(isinstance(value, Const) for value in (start, size, channels)) or attrs.steps[1] != 1:
        return None
    begin, count, total = (int(value.value) for value in (start, size, channels))  # type: ignore[attr-defined]
    if begin % block or (count % block and begin + count != total) or count == 0:
        return None
    inside = {
        "starts": (starts[0], const(begin // block), *starts[2:], const(0)),
        "sizes": (sizes[0], const(-(-count // block)), *sizes[2:], const(block)),
        "steps": (*attrs.steps, 1),
    }
    return BlockedForm("slice", tuple(inside.items()), (Form.CHANNELS,))


register(
    OpDef(
        "slice",
        _infer_slice,
        _run_slice,
        _compute_slice,
        {"starts": REQUIRED, "sizes": REQUIRED, "steps": REQUIRED},
        part=_place_of_slice,
        blocked=_blocked_slice,
        samples=lambda rng: iter(
            [
                ([_f32(rng, 5, 6)], {"starts": (1, 5), "sizes": (2, 3), "steps": (2, -2)}),
                ([_f32(rng, 5)], {"starts": (0,), "sizes": (0,), "steps": (1,)}),
            ]
        ),
    )
)


def _infer_pad(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "pad")
    pads = exprs(attrs.pads)
    if len(pads) != 2 * x.rank:
        raise ShapeError(f"pad: {len(pads)} pads for {x}; there must be two per axis")
    fill = types[1] if len(types) > 1 else None
    if fill is not None:
        if fill.dtype != x.dtype:
            raise ShapeError(f"pad: the value is {fill}, but must be of the type of {x}")
        require(equal(product(fill.shape), 1), f"pad: the value is {fill}, but must be one number")
    for d, dim in enumerate(x.shape):
        ends = (pads[d], pads[x.rank + d])
        cut = [minimum(pad, 0) for pad in ends if not (isinstance(pad, Const) and int(pad) >= 0)]
        if cut and attrs.mode == "constant":  # what is cut off at an end may be what was put on at the other one
            require(dim + ends[0] + ends[1] >= 0, f"pad: dim {d} of {x} is {dim}, less than what is cut off")
        elif cut:
            require(dim + sum(cut, const(0)) >= 0, f"pad: dim {d} of {x} is {dim}, less than what is cut off")
        if attrs.mode != "constant":
            grows = [pad for pad in ends if not is_const(pad, 0)]
            if grows:
                nothing = logical_and(*(pad <= 0 for pad in grows))
                left = _kept(dim, *ends)[1]
                require(logical_or(left >= 1, nothing), f"pad: dim {d} of {x} is {dim}, and has nothing to repeat")
    return TensorType(
        tuple(simplify(dim + pads[d] + pads[x.rank + d]) for d, dim in enumerate(x.shape)), x.dtype
    )


def _run_pad(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    pads = ints(attrs.pads)
    begin, end = pads[: x.ndim], pads[x.ndim :]
    if attrs.mode == "constant":
        value = arrays[1].reshape(()) if len(arrays) > 1 and arrays[1] is not None else x.dtype.type(0)
        widths = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
        padded = np.pad(x, widths, constant_values=value)
        cut = (slice(max(-b, 0), size - max(-e, 0)) for b, e, size in zip(begin, end, padded.shape, strict=True))
        return padded[tuple(cut)]
    cut = (slice(max(-b, 0), dim - max(-e, 0)) for b, e, dim in zip(begin, end, x.shape, strict=True))
    return np.pad(x[tuple(cut)], [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)], mode=attrs.mode)


def _kept(dim: Expr, before: Expr, after: Expr) -> tuple[Expr, Expr]:
    """The first element of a dim that is not cut off by negative pads, and how many there are. Those alone are repeated."""
    first = maximum(neg(before), 0)
    return first, dim - first - maximum(neg(after), 0)


def _source_index(index: Expr, dim: Expr, mode: str, is_near: bool) -> Expr:
    """Where an index outside [0, dim) takes its element from. `is_near`: it is no further out than the elements on the other side of
    the edge, which needs no division."""
    if mode == "edge":
        return maximum(minimum(index, dim - 1), 0)
    if is_near:
        return _near_index(index, dim, mode)
    if mode == "wrap":
        return index % dim
    period = maximum((dim - 1) * 2, 1)  # reflect: 0 1 2 3 2 1 | 0 1 ...
    folded = index % period
    return minimum(folded, period - folded) if not is_const(dim, 1) else const(0)


def _folded(index: Expr, dim: Expr) -> Expr:
    away = maximum(index, -index)
    return minimum(away, (dim - 1) * 2 - away)


def _near_index(index: Expr, dim: Expr, mode: str) -> Expr:
    """The same, without a division, where pads are smaller than their dims."""
    if mode == "reflect":
        return _folded(index, dim)
    return Select(0 <= index, Select(index < dim, index, index - dim), index + dim)  # in the middle, all conditions hold


def _compute_pad(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    rank = len(x.shape)
    pads = exprs(attrs.pads)
    fill = tensors[1] if len(tensors) > 1 else None

    def repeated(*axes: Expr) -> Expr:
        """Where it is not known that pads are smaller than their dims, that is asked once, for all axes: nothing is divided then."""
        near, far, asked = [], [], []
        for d, axis in enumerate(axes):
            if is_const(pads[d], 0) and is_const(pads[rank + d], 0):
                near.append(axis)
                far.append(axis)
                continue
            first, count = _kept(x.shape[d], pads[d], pads[rank + d])
            index, may_be_far = axis - pads[d] - first, [p < count for p in (pads[d], pads[rank + d]) if prove(p < count) is not True]
            far.append(first + _source_index(index, count, attrs.mode, not may_be_far))
            divides = attrs.mode != "edge" and bool(may_be_far)
            near.append(first + _near_index(index, count, attrs.mode) if divides else far[-1])
            asked += may_be_far if divides else []
        value = x[tuple(far)]
        return Select(logical_and(*asked), x[tuple(near)], value) if asked else value

    def body(*axes: Expr) -> Expr:
        indices, inside = [], []
        for d, axis in enumerate(axes):
            index = axis - pads[d]
            begins, ends = not is_const(pads[d], 0), not is_const(pads[rank + d], 0)
            indices.append(index)
            if begins:
                inside.append(index >= 0)
            if ends:
                inside.append(index < x.shape[d])
        value = x[tuple(indices)]
        if not inside:
            return value
        other = const(0, x.dtype) if fill is None else fill[tuple(const(0) for _ in fill.shape)]
        return Select(logical_and(*inside), value, other)

    return te.compute(types[0].shape, body if attrs.mode == "constant" else repeated, "pad")


def _blocked_pad(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
    """Of what is padded along other axes than that of channels."""
    rank, pads = operand(types, 0, "pad").rank, attrs.pads
    if rank < 2 or not all(is_const(each, 0) for each in exprs((pads[1], pads[rank + 1]))):
        return None
    own = {**dict(attrs), "pads": (*pads[:rank], 0, *pads[rank:], 0)}
    return BlockedForm("pad", tuple(own.items()), (Form.CHANNELS, Form.PLAIN)[: len(types)])


def _pad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for mode in ("constant", "edge", "reflect", "wrap"):
        yield [_f32(rng, 4, 5)], {"pads": (1, 2, 0, 3), "mode": mode}
        yield [_f32(rng, 4, 5)], {"pads": (-2, 4, 3, -3), "mode": mode}
        yield [_f32(rng, 4, 5)], {"pads": (3, 4, 3, 4), "mode": mode}
        yield [_f32(rng, 1, 5)], {"pads": (0, 9, 0, 6), "mode": mode}
    yield [_f32(rng, 4), np.array(7.0, np.float32)], {"pads": (2, 1), "mode": "constant"}
    yield [_f32(rng, 4, 5)], {"pads": (-1, 0, 2, -2), "mode": "constant"}
    yield [_f32(rng, 3, 5)], {"pads": (4, -6, -5, 3), "mode": "constant"}


register(
    OpDef(
        "pad", _infer_pad, _run_pad, _compute_pad, {"pads": REQUIRED, "mode": "constant"}, blocked=_blocked_pad, samples=_pad_samples
    )
)


def _infer_tile(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "tile")
    repeats = exprs(attrs.repeats)
    if len(repeats) != x.rank:
        raise ShapeError(f"tile: {len(repeats)} repeats for {x}")
    return TensorType(tuple(simplify(mul(dim, r)) for dim, r in zip(x.shape, repeats, strict=True)), x.dtype)


def _run_tile(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, repeats = arrays[0], ints(attrs.repeats)
    assert x is not None
    if 0 in repeats:  # numpy repeats axis by axis, whatever becomes of the result
        return np.empty([dim * repeat for dim, repeat in zip(x.shape, repeats, strict=True)], x.dtype)
    return np.tile(x, repeats)


def _compute_tile(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    repeats = exprs(attrs.repeats)

    def body(*axes: Expr) -> Expr:
        return x[
            tuple(
                axis if is_const(r, 1) else axis % dim for axis, dim, r in zip(axes, x.shape, repeats, strict=True)
            )
        ]

    return te.compute(types[0].shape, body, "tile")


register(
    OpDef(
        "tile",
        _infer_tile,
        _run_tile,
        _compute_tile,
        {"repeats": REQUIRED},
        samples=lambda rng: iter([([_f32(rng, 2, 3)], {"repeats": (2, 3)}), ([_f32(rng, 2)], {"repeats": (0,)})]),
    )
)


def _compute_reverse_sequence(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, lens = tensors[0], tensors[1]
    assert x is not None and lens is not None

    def body(*axes: Expr) -> Expr:
        t = axes[attrs.time_axis]
        length = cast(lens[axes[attrs.batch_axis]], i64)
        source = select(t < length, length - t - 1, t)
        return x[(*axes[: attrs.time_axis], source, *axes[attrs.time_axis + 1 :])]

    return te.compute(types[0].shape, body, "reverse_sequence")


def _run_reverse_sequence(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x, lens = arrays[0], arrays[1]
    assert x is not None and lens is not None
    result = x.copy()
    moved, source = (np.moveaxis(a, (attrs.batch_axis, attrs.time_axis), (0, 1)) for a in (result, x))
    for k, length in enumerate(lens):
        moved[k, :length] = source[k, :length][::-1]
    return result


def _infer_reverse_sequence(types: Types, attrs: Attrs) -> TensorType:
    x, lens = operand(types, 0, "reverse_sequence"), operand(types, 1, "reverse_sequence")
    if lens.rank != 1:
        raise ShapeError(f"reverse_sequence: the lengths must be a vector, found {lens}")
    require_equal(lens.shape[0], x.shape[attrs.batch_axis], "reverse_sequence: the number of lengths")
    return x


register(
    OpDef(
        "reverse_sequence",
        _infer_reverse_sequence,
        _run_reverse_sequence,
        _compute_reverse_sequence,
        {"batch_axis": 1, "time_axis": 0},
        samples=lambda rng: iter([([_f32(rng, 4, 3, 2), np.array([1, 4, 0], np.int64)], {})]),
    )
)
