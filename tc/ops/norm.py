"""Normalisations. All compute in f32 at least, and round once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import simplify
from tc.ir.expr import Const, Expr, Select, call, cast, const, equal, logical_and
from tc.ir.graph import Attrs
from tc.ir.types import TensorType, product
from tc.ops.common import (
    Arrays,
    Tensors,
    Types,
    broadcast_read,
    normalize_axes,
    normalize_axis,
    operand,
    require_broadcasts_to,
    sum_dtype,
    wide,
)
from tc.ops.reduce import reduce_stage
from tc.ops.registry import REQUIRED, BlockedForm, Form, OpDef, register, require
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _optional(items: Sequence[Any], index: int) -> Any:
    return items[index] if len(items) > index else None


# -- batch normalization


def _infer_batch_norm(types: Types, attrs: Attrs) -> TensorType:
    x = operand(types, 0, "batch_norm")
    for k in range(1, 5):
        require(
            equal(operand(types, k, "batch_norm").shape[0], x.shape[1]),
            f"batch_norm: {x} has {x.shape[1]} channels, operand {k} is {types[k]}",
        )
    return x


def _compute_batch_norm(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x, scale, bias, mean, var = tensors[:5]
    assert x is not None and scale is not None and bias is not None and mean is not None and var is not None
    dtype = sum_dtype(x.dtype)

    def body(*axes: Expr) -> Expr:
        c = axes[1]
        spread = call("sqrt", cast(var[c], dtype) + const(attrs.epsilon, dtype))
        factor = cast(scale[c], dtype) / spread
        return cast((cast(x[axes], dtype) - cast(mean[c], dtype)) * factor + cast(bias[c], dtype), x.dtype)

    return te.compute(x.shape, body, "batch_norm")


def _per_channel(array: np.ndarray, rank: int) -> np.ndarray:
    return wide(array).reshape(1, -1, *(1,) * (rank - 2))


def _run_batch_norm(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    scale, bias, mean, var = (_per_channel(a, x.ndim) for a in arrays[1:5])  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(var + np.asarray(attrs.epsilon, var.dtype))
        return ((wide(x) - mean) * factor + bias).astype(x.dtype)


register(
    OpDef(
        "batch_norm",
        _infer_batch_norm,
        _run_batch_norm,
        _compute_batch_norm,
        {"epsilon": 1e-5},
        samples=lambda rng: iter(
            [
                (
                    [
                        _normal(rng, 2, 3, 4, 2),
                        _normal(rng, 3),
                        _normal(rng, 3),
                        _normal(rng, 3),
                        np.abs(_normal(rng, 3)) + 0.1,
                    ],
                    {},
                )
            ]
        ),
    )
)


# -- normalizations over some axes of one tensor


def _normalized(
    x: Tensor,
    axes: Sequence[int],
    epsilon: float,
    affine: Callable[[Expr, Sequence[Expr]], Expr],
    name: str,
    centred: bool = True,
    of_deviation: bool = False,
) -> Tensor:
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon), then `affine(value, axes)`; without centring the mean is taken as 0. `of_deviation`:
    epsilon is added to the root; what rounding leaves of the mean is taken from x - mean then, which such an epsilon would not cover."""
    dtype = sum_dtype(x.dtype)
    count = cast(simplify(product(tuple(x.shape[axis] for axis in axes))), dtype)

    def pinned(places: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(const(0) if d in axes else place for d, place in enumerate(places))

    mean: Tensor | None = None
    if centred:
        total = reduce_stage("sum", x, axes, True, lambda value: cast(value, dtype), f"{name}_sum")
        mean = te.compute(total.shape, lambda *places: total[places] / count, f"{name}_mean")

    def centre(places: Sequence[Expr], rest: Tensor | None = None) -> Expr:
        value = cast(x[tuple(places)], dtype)
        value = value if mean is None else value - mean[pinned(places)]
        return value if rest is None else value - rest[pinned(places)] / count

    shape = x.shape
    pinned_shape = tuple(const(1) if d in axes else dim for d, dim in enumerate(shape))

    def summed(places: Sequence[Expr], rest: Tensor | None = None) -> Expr:
        spatial, reduction = places[: len(shape)], places[len(shape) :]
        index = list(spatial)
        for axis, place in zip(axes, reduction, strict=True):
            index[axis] = place
        return centre(index, rest)

    summed_dims = [shape[axis] for axis in axes]
    rest = te.reduce("sum", pinned_shape, summed_dims, lambda *places: summed(places), f"{name}_rest") if of_deviation else None

    def square(*places: Expr) -> Expr:
        value = summed(places, rest)
        return value * value

    squares = te.reduce("sum", pinned_shape, summed_dims, square, f"{name}_square")

    def scaled(*places: Expr) -> Expr:
        variance, least = squares[places] / count, const(epsilon, dtype)
        return const(1.0, dtype) / (call("sqrt", variance) + least) if of_deviation else call("rsqrt", variance + least)

    factor = te.compute(pinned_shape, scaled, f"{name}_factor")
    return te.compute(
        shape,
        lambda *places: cast(affine(centre(places, rest) * factor[pinned(places)], places), x.dtype),
        name,
    )


def _np_normalized(
    x: np.ndarray, axes: tuple[int, ...], epsilon: float, centred: bool = True, of_deviation: bool = False
) -> np.ndarray:
    values = wide(x)
    with np.errstate(all="ignore"):
        if centred:
            for _ in range(2 if of_deviation else 1):
                values = values - values.mean(axis=axes, keepdims=True)
        squares = (values * values).mean(axis=axes, keepdims=True)
        least = np.asarray(epsilon, values.dtype)
        return values / (np.sqrt(squares) + least if of_deviation else np.sqrt(squares + least))


def _trailing(tensor: Tensor | None, places: Sequence[Expr], shape: Sequence[Expr], dtype: Any) -> Expr | None:
    """The element of a tensor broadcast against the last axes of `shape`."""
    return None if tensor is None else cast(broadcast_read(tensor, places, shape), dtype)


def _affine_trailing(
    scale: Tensor | None, bias: Tensor | None, shape: Sequence[Expr]
) -> Callable[[Expr, Sequence[Expr]], Expr]:
    def affine(value: Expr, places: Sequence[Expr]) -> Expr:
        factor, shift = (_trailing(tensor, places, shape, value.dtype) for tensor in (scale, bias))
        value = value if factor is None else value * factor
        return value if shift is None else value + shift

    return affine


def _register_trailing(name: str, centred: bool) -> None:
    def axes_of(attrs: Attrs, rank: int) -> tuple[int, ...]:
        return tuple(range(normalize_axis(attrs.axis, rank, name), rank))

    def infer(types: Types, attrs: Attrs) -> TensorType:
        x = operand(types, 0, name)
        if not x.dtype.is_float:
            raise ShapeError(f"{name}: needs a float operand, found {x}")
        normalize_axis(attrs.axis, x.rank, name)
        for what, type_ in zip(("scale", "bias"), types[1:], strict=False):
            if type_ is not None:
                require_broadcasts_to(type_.shape, x.shape, f"{name}: the {what}")
        return x

    def run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
        x = arrays[0]
        assert x is not None
        y = _np_normalized(x, axes_of(attrs, x.ndim), attrs.epsilon, centred)
        scale, bias = _optional(arrays, 1), _optional(arrays, 2)
        y = y if scale is None else y * wide(scale)
        return (y if bias is None else y + wide(bias)).astype(x.dtype)

    def compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
        x = tensors[0]
        assert x is not None
        affine = _affine_trailing(_optional(tensors, 1), _optional(tensors, 2), types[0].shape)
        return _normalized(x, axes_of(attrs, len(x.shape)), attrs.epsilon, affine, name, centred)

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        yield [_normal(rng, 3, 8), _normal(rng, 8)] + ([_normal(rng, 8)] if centred else []), {}
        yield [_normal(rng, 2, 3, 4)], {"axis": 1}
        yield [_normal(rng, 2, 16).astype(np.float16), _normal(rng, 16).astype(np.float16)], {}

    register(OpDef(name, infer, run, compute, {"axis": -1, "epsilon": 1e-5}, samples=samples))


_register_trailing("layer_norm", True)
_register_trailing("rms_norm", False)


def _affine_channel(
    scale: Tensor | None, bias: Tensor | None, channel: Callable[[Sequence[Expr]], Expr]
) -> Callable[[Expr, Sequence[Expr]], Expr]:
    def affine(value: Expr, places: Sequence[Expr]) -> Expr:
        c = channel(places)
        value = value if scale is None else value * cast(scale[c], value.dtype)
        return value if bias is None else value + cast(bias[c], value.dtype)

    return affine


def _infer_channels(name: str) -> Callable[[Types, Attrs], TensorType]:
    """The type of the operand, whose scale and bias have an element for each channel."""

    def infer(types: Types, attrs: Attrs) -> TensorType:
        x = operand(types, 0, name)
        for what, type_ in zip(("scale", "bias"), types[1:3], strict=False):
            if type_ is not None:
                message = f"{name}: {x} has {x.shape[1]} channels, the {what} is {type_}"
                if type_.rank != 1:
                    raise ShapeError(message)
                require(equal(type_.shape[0], x.shape[1]), message)
        return x

    return infer


def _blocked_norm(types: Types, attrs: Attrs, groups: int) -> BlockedForm | None:
    """The layout rule of norms of `groups` groups of channels; 0: of each by itself."""
    x = operand(types, 0, "norm")
    channels = x.shape[1] if x.rank > 2 else None
    if not isinstance(channels, Const) or int(channels) == 0 or int(channels) % max(groups, 1):
        return None
    own = {"groups": groups or int(channels), "channels": int(channels), "epsilon": attrs.epsilon}
    return BlockedForm("norm_blocked", tuple(own.items()), (Form.CHANNELS, Form.OUTPUTS, Form.OUTPUTS)[: len(types)])


def _compute_instance_norm(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    affine = _affine_channel(_optional(tensors, 1), _optional(tensors, 2), lambda places: places[1])
    return _normalized(x, tuple(range(2, len(x.shape))), attrs.epsilon, affine, "instance_norm")


def _np_affine(normal: np.ndarray, arrays: Arrays) -> np.ndarray:
    """Times the scale and plus the bias of each channel, if there are any."""
    scale, bias = _optional(arrays, 1), _optional(arrays, 2)
    normal = normal if scale is None else normal * _per_channel(scale, normal.ndim)
    return normal if bias is None else normal + _per_channel(bias, normal.ndim)


def _run_instance_norm(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    return _np_affine(_np_normalized(x, tuple(range(2, x.ndim)), attrs.epsilon), arrays).astype(x.dtype)


register(
    OpDef(
        "instance_norm",
        _infer_channels("instance_norm"),
        _run_instance_norm,
        _compute_instance_norm,
        {"epsilon": 1e-5},
        blocked=lambda types, attrs, block: _blocked_norm(types, attrs, 0),
        samples=lambda rng: iter([([_normal(rng, 2, 3, 4, 5), _normal(rng, 3), _normal(rng, 3)], {})]),
    )
)


def require_divided(x: TensorType, groups: int) -> None:
    """State that there is a whole number of channels in each of some groups."""
    if groups < 1:
        raise ShapeError(f"group_norm: {groups} groups")
    require(equal(x.shape[1] % groups, 0), f"group_norm: {groups} groups do not divide the {x.shape[1]} channels of {x}")


def _infer_group_norm(types: Types, attrs: Attrs) -> TensorType:
    """As any norm of channels."""
    require_divided(operand(types, 0, "group_norm"), attrs.groups)
    return _infer_channels("group_norm")(types, attrs)


def _run_group_norm(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    grouped = x.reshape(x.shape[0], attrs.groups, -1)
    return _np_affine(_np_normalized(grouped, (2,), attrs.epsilon).reshape(x.shape), arrays).astype(x.dtype)


def _compute_group_norm(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    groups = attrs.groups
    per_group = simplify(x.shape[1] // groups)
    shape = (x.shape[0], groups, per_group, *x.shape[2:])
    grouped = te.compute(
        shape, lambda n, g, c, *space: x[(n, g * per_group + c, *space)], "grouped"
    )
    affine = _affine_channel(
        _optional(tensors, 1), _optional(tensors, 2), lambda places: places[1] * per_group + places[2]
    )
    y = _normalized(grouped, tuple(range(2, len(shape))), attrs.epsilon, affine, "group_norm")
    return te.compute(
        x.shape, lambda n, c, *space: y[(n, c // per_group, c % per_group, *space)], "ungrouped"
    )


register(
    OpDef(
        "group_norm",
        _infer_group_norm,
        _run_group_norm,
        _compute_group_norm,
        {"groups": REQUIRED, "epsilon": 1e-5},
        blocked=lambda types, attrs, block: _blocked_norm(types, attrs, attrs.groups),
        samples=lambda rng: iter(
            [
                ([_normal(rng, 2, 6, 3, 2), _normal(rng, 6), _normal(rng, 6)], {"groups": 3}),
                ([_normal(rng, 2, 6, 3, 2)], {"groups": 2}),
            ]
        ),
    )
)


def _compute_mean_variance(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    axes = normalize_axes(attrs.axes, len(x.shape), "mean_variance_norm")
    return _normalized(x, axes, 1e-9, lambda value, places: value, "mean_variance_norm", of_deviation=True)


register(
    OpDef(
        "mean_variance_norm",
        lambda types, attrs: operand(types, 0, "mean_variance_norm"),
        lambda arrays, attrs: _np_normalized(
            arrays[0],  # type: ignore[arg-type]
            normalize_axes(attrs.axes, arrays[0].ndim, "mean_variance_norm"),  # type: ignore[union-attr]
            1e-9,
            of_deviation=True,
        ).astype(arrays[0].dtype),  # type: ignore[union-attr]
        _compute_mean_variance,
        {"axes": (0, 2, 3)},
        samples=lambda rng: iter([([_normal(rng, 2, 3, 4, 5)], {})]),
    )
)


# -- local response normalization


def _compute_lrn(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    x = tensors[0]
    assert x is not None
    dtype = sum_dtype(x.dtype)
    before = (attrs.size - 1) // 2

    def square(n: Expr, c: Expr, *rest: Expr) -> Expr:
        *space, k = rest
        channel = c + k - before
        inside = logical_and(channel >= 0, channel < x.shape[1])
        value = cast(Select(inside, x[(n, channel, *space)], const(0, x.dtype)), dtype)
        return value * value

    total = te.reduce("sum", x.shape, (attrs.size,), square, "lrn_sum")

    def body(*axes: Expr) -> Expr:
        base = total[axes] * const(attrs.alpha / attrs.size, dtype) + const(attrs.bias, dtype)
        # base > 0 where the operator is meant to be used: exp(-beta log(base)) is much cheaper than a general power
        return cast(cast(x[axes], dtype) * call("exp", call("log", base) * const(-attrs.beta, dtype)), x.dtype)

    return te.compute(x.shape, body, "lrn")


def _run_lrn(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    squares = wide(x) ** 2
    before, after = (attrs.size - 1) // 2, attrs.size // 2
    padded = np.pad(squares, [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
    total = sum(padded[:, k : k + x.shape[1]] for k in range(attrs.size))
    return (wide(x) / (attrs.bias + attrs.alpha / attrs.size * total) ** attrs.beta).astype(x.dtype)


register(
    OpDef(
        "lrn",
        lambda types, attrs: operand(types, 0, "lrn"),
        _run_lrn,
        _compute_lrn,
        {"size": REQUIRED, "alpha": 0.0001, "beta": 0.75, "bias": 1.0},
        samples=lambda rng: iter([([_normal(rng, 1, 7, 3, 2)], {"size": 5, "alpha": 0.1})]),
    )
)
