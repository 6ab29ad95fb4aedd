"""Operators that move elements without computing on them, and sources of index-like tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.dtype import f32, i32, i64
from tc.ir.expr import (
    Expr,
    Select,
    as_expr,
    cast,
    const,
    equal,
    is_const,
    logical_and,
    maximum,
    minimum,
    mul,
    select,
)
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import (
    Arrays,
    Tensors,
    Types,
    broadcast_read,
    broadcast_shapes,
    exprs,
    ints,
    normalize_axes,
    normalize_axis,
    operand,
    ravel,
    same_dtype,
    unravel,
)
from tc.ops.registry import REQUIRED, BlockedForm, Form, OpDef, current_facts, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# -- views


def unflatten_read(x: Tensor, shape: Sequence[Expr], axes: Sequence[Expr]) -> Expr:
    """The element of `x` at the place that `axes` have in a tensor of `shape` with as many elements.

    Runs of dims with equal products on both sides are taken by themselves, so that indices stay small.
    """
    facts = current_facts()
    for axis, dim in zip(axes, shape, strict=True):
        facts = facts.with_range(axis, dim)  # type: ignore[arg-type]
    indices: list[Expr] = []
    for sources, targets in _matching_runs(x.shape, shape):
        flat = ravel(axes[targets], shape[targets])
        dims = x.shape[sources]
        for dim, index in zip(dims, unravel(flat, dims) if dims else (), strict=True):
            indices.append(const(0) if is_const(dim, 1) else simplify(index, facts))
    return x[tuple(indices)]


def _matching_runs(source: Sequence[Expr], target: Sequence[Expr]) -> list[tuple[slice, slice]]:
    """Cut two shapes with as many elements into the shortest runs of dims with equal products."""
    runs: list[tuple[slice, slice]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        i_end, j_end = next(
            (
                (i_end, j_end)
                for length in range(1, len(source) - i + len(target) - j + 1)
                for i_end in range(i, min(i + length, len(source)) + 1)
                if (j_end := j + length - (i_end - i)) <= len(target)
                and simplify(product(tuple(source[i:i_end]))) is simplify(product(tuple(target[j:j_end])))
            ),
            (len(source), len(target)),
        )
        runs.append((slice(i, i_end), slice(j, j_end)))
        i, j = i_end, j_end
    return runs


def _compute_view(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    shape = types[0].shape
    return te.compute(shape, lambda *axes: unflatten_read(x, shape, axes), "reshape")


def _infer_reshape(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "reshape")
    shape = exprs(attrs.shape)
    require(
        equal(product(x.shape), product(shape)),
        f"reshape: {x} has {product(x.shape)} elements, the shape ({', '.join(map(str, shape))}) has {product(shape)}",
    )
    return TensorType(shape, x.dtype)


register(
    OpDef(
        "reshape",
        _infer_reshape,
        lambda arrays, attrs: arrays[0].reshape(ints(attrs.shape)),  # type: ignore[union-attr]
        _compute_view,
        {"shape": REQUIRED},
        view=True,
        samples=lambda rng: iter(
            [
                ([_f32(rng, 2, 3, 4)], {"shape": (4, 6)}),
                ([_f32(rng, 2, 3, 4)], {"shape": (2, 12)}),
                ([_f32(rng, 6, 4)], {"shape": (3, 2, 1, 4)}),
                ([_f32(rng, 1, 1)], {"shape": ()}),
                ([_f32(rng, 0, 4)], {"shape": (2, 0)}),
            ]
        ),
    )
)


def _infer_squeeze(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "squeeze")
    if attrs.axes is None:
        axes: tuple[int, ...] = tuple(d for d, dim in enumerate(x.shape) if is_const(dim, 1))
    else:
        axes = normalize_axes(attrs.axes, x.rank, "squeeze")
    for axis in axes:
        require(equal(x.shape[axis], 1), f"squeeze: dim {axis} is {x.shape[axis]}, but must be 1")
    return TensorType(tuple(dim for d, dim in enumerate(x.shape) if d not in axes), x.dtype)


def _run_squeeze(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    return np.squeeze(x) if attrs.axes is None else np.squeeze(x, axis=normalize_axes(attrs.axes, x.ndim, "squeeze"))


register(
    OpDef(
        "squeeze",
        _infer_squeeze,
        _run_squeeze,
        _compute_view,
        {"axes": None},
        view=True,
        samples=lambda rng: iter(
            [([_f32(rng, 1, 3, 1)], {"axes": (0, -1)}), ([_f32(rng, 1, 3, 1)], {}), ([_f32(rng, 1)], {"axes": (0,)})]
        ),
    )
)


def _infer_unsqueeze(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "unsqueeze")
    axes = normalize_axes(attrs.axes, x.rank + len(attrs.axes), "unsqueeze")
    shape = list(x.shape)
    for axis in axes:
        shape.insert(axis, const(1))
    return TensorType(tuple(shape), x.dtype)


def _run_unsqueeze(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    return np.expand_dims(x, normalize_axes(attrs.axes, x.ndim + len(attrs.axes), "unsqueeze"))


register(
    OpDef(
        "unsqueeze",
        _infer_unsqueeze,
        _run_unsqueeze,
        _compute_view,
        {"axes": REQUIRED},
        view=True,
        samples=lambda rng: iter([([_f32(rng, 3, 2)], {"axes": (0, -1)}), ([np.array(1.5)], {"axes": (0,)})]),
    )
)


def _infer_flatten(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "flatten")
    axis = attrs.axis + x.rank if attrs.axis < 0 else attrs.axis
    return TensorType((simplify(product(x.shape[:axis])), simplify(product(x.shape[axis:]))), x.dtype)


def _run_flatten(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    axis = attrs.axis + x.ndim if attrs.axis < 0 else attrs.axis
    return x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), int(np.prod(x.shape[axis:], dtype=np.int64)))


register(
    OpDef(
        "flatten",
        _infer_flatten,
        _run_flatten,
        _compute_view,
        {"axis": 1},
        view=True,
        samples=lambda rng: iter([([_f32(rng, 2, 3, 4)], {}), ([_f32(rng, 2, 3)], {"axis": 0})]),
    )
)


# -- index maps


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
        lambda arrays, attrs: np.ascontiguousarray(np.transpose(arrays[0], _perm(attrs, arrays[0].ndim))),  # type: ignore[union-attr, arg-type]
        _compute_transpose,
        {"perm": None},
        samples=lambda rng: iter(
            [([_f32(rng, 2, 3, 4)], {"perm": (2, 0, 1)}), ([_f32(rng, 2, 3)], {}), ([_f32(rng, 5)], {"perm": (0,)})]
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
        lambda arrays, attrs: np.ascontiguousarray(
            np.broadcast_to(arrays[0], np.broadcast_shapes(arrays[0].shape, ints(attrs.shape)))  # type: ignore[union-attr, arg-type]
        ),
        lambda tensors, attrs, types: te.compute(
            types[0].shape,
            lambda *axes: broadcast_read(tensors[0], axes),  # type: ignore[arg-type]
            "expand",
        ),
        {"shape": REQUIRED},
        samples=lambda rng: iter([([_f32(rng, 3, 1)], {"shape": (2, 1, 4)}), ([_f32(rng, 3)], {"shape": (1,)})]),
    )
)


def _infer_concat(types: Types, attrs: Attrs) -> TensorType:
    present = [type_ for type_ in types if type_ is not None]
    first = operand(present, 0, "concat")
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


def _compute_concat(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    present = [tensor for tensor in tensors if tensor is not None]
    axis = normalize_axis(attrs.axis, types[0].rank, "concat")

    def body(*axes: Expr) -> Expr:
        starts: list[Expr] = [const(0)]
        for tensor in present:
            starts.append(starts[-1] + tensor.shape[axis])

        def element(k: int) -> Expr:
            return present[k][(*axes[:axis], axes[axis] - starts[k], *axes[axis + 1 :])]

        value = element(len(present) - 1)
        for k in reversed(range(len(present) - 1)):
            value = Select(axes[axis] < starts[k + 1], element(k), value)
        return value

    return te.compute(types[0].shape, body, "concat")


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


def _infer_slice(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "slice")
    sizes = exprs(attrs.sizes)
    if not len(sizes) == len(attrs.starts) == len(attrs.steps) == x.rank:
        raise ShapeError(f"slice: starts, sizes and steps must have one entry per axis of {x}")
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


register(
    OpDef(
        "slice",
        _infer_slice,
        _run_slice,
        _compute_slice,
        {"starts": REQUIRED, "sizes": REQUIRED, "steps": REQUIRED},
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
    return TensorType(
        tuple(simplify(dim + pads[d] + pads[x.rank + d]) for d, dim in enumerate(x.shape)), x.dtype
    )


def _run_pad(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    pads = ints(attrs.pads)
    begin, end = pads[: x.ndim], pads[x.ndim :]
    cut = tuple(slice(max(-b, 0), dim - max(-e, 0)) for b, e, dim in zip(begin, end, x.shape, strict=True))
    widths = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
    if attrs.mode == "constant":
        value = arrays[1].reshape(()) if len(arrays) > 1 and arrays[1] is not None else x.dtype.type(0)
        return np.pad(x[cut], widths, constant_values=value)
    return np.pad(x[cut], widths, mode=attrs.mode)


def _source_index(index: Expr, dim: Expr, mode: str) -> Expr:
    """Where an index outside [0, dim) takes its element from."""
    if mode == "edge":
        return maximum(minimum(index, dim - 1), 0)
    if mode == "wrap":
        return index % dim
    period = maximum((dim - 1) * 2, 1)  # reflect: 0 1 2 3 2 1 | 0 1 ...
    folded = index % period
    return minimum(folded, period - folded) if not is_const(dim, 1) else const(0)


def _compute_pad(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    rank = len(x.shape)
    pads = exprs(attrs.pads)
    fill = tensors[1] if len(tensors) > 1 else None

    def body(*axes: Expr) -> Expr:
        indices, inside = [], []
        for d, axis in enumerate(axes):
            index = axis - pads[d]
            begins, ends = not is_const(pads[d], 0), not is_const(pads[rank + d], 0)
            if attrs.mode != "constant":
                indices.append(_source_index(index, x.shape[d], attrs.mode) if begins or ends else axis)
                continue
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

    return te.compute(types[0].shape, body, "pad")


def _pad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for mode in ("constant", "edge", "reflect", "wrap"):
        yield [_f32(rng, 4, 5)], {"pads": (1, 2, 0, 3), "mode": mode}
    yield [_f32(rng, 4), np.array(7.0, np.float32)], {"pads": (2, 1), "mode": "constant"}
    yield [_f32(rng, 4, 5)], {"pads": (-1, 0, 2, -2), "mode": "constant"}


register(OpDef("pad", _infer_pad, _run_pad, _compute_pad, {"pads": REQUIRED, "mode": "constant"}, samples=_pad_samples))


def _infer_tile(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "tile")
    repeats = exprs(attrs.repeats)
    if len(repeats) != x.rank:
        raise ShapeError(f"tile: {len(repeats)} repeats for {x}")
    return TensorType(tuple(simplify(mul(dim, r)) for dim, r in zip(x.shape, repeats, strict=True)), x.dtype)


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
        lambda arrays, attrs: np.tile(arrays[0], ints(attrs.repeats)),  # type: ignore[arg-type]
        _compute_tile,
        {"repeats": REQUIRED},
        samples=lambda rng: iter([([_f32(rng, 2, 3)], {"repeats": (2, 3)}), ([_f32(rng, 2)], {"repeats": (0,)})]),
    )
)


def _infer_depth_to_space(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "depth_to_space")
    n, c, *space = x.shape
    b = attrs.block
    require(equal(c % (b * b), 0), f"depth_to_space: {c} channels are not a multiple of {b * b}")
    return TensorType((n, simplify(c // (b * b)), *(simplify(dim * b) for dim in space)), x.dtype)


def _run_depth_to_space(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    b = attrs.block
    n, c, h, w = x.shape
    if attrs.mode == "DCR":
        y = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return np.ascontiguousarray(y.reshape(n, c // (b * b), h * b, w * b))


def _compute_depth_to_space(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    b = attrs.block
    channels = types[0].shape[1]

    def body(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        inner = (h % b) * b + w % b
        source = inner * channels + c if attrs.mode == "DCR" else c * (b * b) + inner
        return x[n, source, h // b, w // b]

    return te.compute(types[0].shape, body, "depth_to_space")


register(
    OpDef(
        "depth_to_space",
        _infer_depth_to_space,
        _run_depth_to_space,
        _compute_depth_to_space,
        {"block": REQUIRED, "mode": "DCR"},
        samples=lambda rng: iter(
            [([_f32(rng, 1, 8, 2, 3)], {"block": 2}), ([_f32(rng, 1, 8, 2, 3)], {"block": 2, "mode": "CRD"})]
        ),
    )
)


def _infer_space_to_depth(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "space_to_depth")
    n, c, *space = x.shape
    b = attrs.block
    return TensorType((n, simplify(c * (b * b)), *(simplify(dim // b) for dim in space)), x.dtype)


def _run_space_to_depth(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    b = attrs.block
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return np.ascontiguousarray(y.reshape(n, c * b * b, h // b, w // b))


def _compute_space_to_depth(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    b, channels = attrs.block, x.shape[1]

    def body(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        inner = c // channels
        return x[n, c % channels, h * b + inner // b, w * b + inner % b]

    return te.compute(types[0].shape, body, "space_to_depth")


register(
    OpDef(
        "space_to_depth",
        _infer_space_to_depth,
        _run_space_to_depth,
        _compute_space_to_depth,
        {"block": REQUIRED},
        samples=lambda rng: iter([([_f32(rng, 1, 2, 4, 6)], {"block": 2})]),
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


register(
    OpDef(
        "reverse_sequence",
        lambda types, attrs: operand(types, 0, "reverse_sequence"),
        _run_reverse_sequence,
        _compute_reverse_sequence,
        {"batch_axis": 1, "time_axis": 0},
        samples=lambda rng: iter([([_f32(rng, 4, 3, 2), np.array([1, 4, 0], np.int64)], {})]),
    )
)


# -- sources


def _compute_full(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    return te.compute(types[0].shape, lambda *axes: const(attrs.value, attrs.dtype), "full")


register(
    OpDef(
        "full",
        lambda types, attrs: TensorType(exprs(attrs.shape), attrs.dtype),
        lambda arrays, attrs: np.full(ints(attrs.shape), attrs.value, attrs.dtype.numpy),
        _compute_full,
        {"shape": REQUIRED, "value": 0, "dtype": REQUIRED},
        cheap=True,
        samples=lambda rng: iter([([], {"shape": (2, 3), "value": 1.5, "dtype": f32})]),
    )
)


def _compute_shape_tensor(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    values = exprs(attrs.dims)

    def body(k: Expr) -> Expr:
        result = values[-1]
        for index in reversed(range(len(values) - 1)):
            result = Select(k < index + 1, values[index], result) if values[index] is not result else result
        return result

    if not values:
        return te.compute((0,), lambda k: const(0), "shape_tensor")
    return te.compute(types[0].shape, body, "shape_tensor")


register(
    OpDef(
        "shape_tensor",
        lambda types, attrs: TensorType((const(len(attrs.dims)),), i64),
        lambda arrays, attrs: np.array(ints(attrs.dims), np.int64),
        _compute_shape_tensor,
        {"dims": REQUIRED},
        cheap=True,
        samples=lambda rng: iter([([], {"dims": (3, 5, 5, 7)}), ([], {"dims": ()})]),
    )
)


def _compute_range(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    start, step = exprs((attrs.start, attrs.step))
    return te.compute(types[0].shape, lambda k: start + k * step, "range")


register(
    OpDef(
        "range",
        lambda types, attrs: TensorType(exprs((attrs.size,)), i64),
        lambda arrays, attrs: np.arange(int(attrs.size), dtype=np.int64) * int(attrs.step) + int(attrs.start),
        _compute_range,
        {"start": 0, "size": REQUIRED, "step": 1},
        cheap=True,
        samples=lambda rng: iter([([], {"start": 3, "size": 4, "step": -2}), ([], {"size": 0})]),
    )
)


def _compute_range_like(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    start, delta = tensors[0], tensors[1]
    assert start is not None and delta is not None
    return te.compute(
        types[0].shape, lambda k: start[()] + cast(k, start.dtype) * delta[()], "range_like"
    )


register(
    OpDef(
        "range_like",
        lambda types, attrs: TensorType(exprs((attrs.size,)), operand(types, 0, "range_like").dtype),
        lambda arrays, attrs: (
            arrays[0] + np.arange(int(attrs.size)).astype(arrays[0].dtype) * arrays[1]  # type: ignore[union-attr, operator]
        ).astype(arrays[0].dtype),  # type: ignore[union-attr]
        _compute_range_like,
        {"size": REQUIRED},
        samples=lambda rng: iter([([np.array(0.5, np.float32), np.array(0.25, np.float32)], {"size": 5})]),
    )
)


def _compute_iota(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    return te.compute(types[0].shape, lambda *axes: cast(axes[attrs.axis], attrs.dtype), "iota")


def _run_iota(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    shape = ints(attrs.shape)
    steps = np.arange(shape[attrs.axis]).reshape([-1 if d == attrs.axis else 1 for d in range(len(shape))])
    return np.ascontiguousarray(np.broadcast_to(steps, shape)).astype(attrs.dtype.numpy)


register(
    OpDef(
        "iota",
        lambda types, attrs: TensorType(exprs(attrs.shape), attrs.dtype),
        _run_iota,
        _compute_iota,
        {"shape": REQUIRED, "axis": REQUIRED, "dtype": REQUIRED},
        cheap=True,
        samples=lambda rng: iter([([], {"shape": (2, 3), "axis": 1, "dtype": i32})]),
    )
)

register(
    OpDef(
        "eye_like",
        lambda types, attrs: TensorType(exprs(attrs.shape), attrs.dtype),
        lambda arrays, attrs: np.eye(*ints(attrs.shape), k=attrs.k, dtype=attrs.dtype.numpy),
        lambda tensors, attrs, types: te.compute(
            types[0].shape, lambda i, j: cast(equal(j, i + attrs.k), attrs.dtype), "eye"
        ),
        {"shape": REQUIRED, "k": 0, "dtype": REQUIRED},
        cheap=True,
        samples=lambda rng: iter([([], {"shape": (3, 4), "k": 1, "dtype": f32})]),
    )
)


def _compute_trilu(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    given = tensors[1] if len(tensors) > 1 else None

    def body(*axes: Expr) -> Expr:
        k = as_expr(attrs.k) if given is None else given[tuple(const(0) for _ in given.shape)]
        i, j = axes[-2], axes[-1]
        keep = (i + k <= j) if attrs.upper else (j <= i + k)
        return Select(keep, x[axes], const(0, x.dtype))

    return te.compute(types[0].shape, body, "trilu")


def _run_trilu(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    k = int(arrays[1].reshape(())) if len(arrays) > 1 and arrays[1] is not None else int(attrs.k)
    return (np.triu if attrs.upper else np.tril)(arrays[0], k)  # type: ignore[operator]


register(
    OpDef(
        "trilu",
        lambda types, attrs: operand(types, 0, "trilu"),
        _run_trilu,
        _compute_trilu,
        {"upper": True, "k": 0},
        samples=lambda rng: iter(
            [
                ([_f32(rng, 2, 4, 5)], {}),
                ([_f32(rng, 4, 3), np.array(-1, np.int64)], {"upper": False}),
                ([_f32(rng, 3, 3)], {"k": 1}),
            ]
        ),
    )
)

