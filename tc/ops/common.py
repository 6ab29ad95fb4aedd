"""Shape rules and small expressions that several operator families share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import prove, simplify
from tc.ir.dtype import DType, bf16, f16, f32, from_numpy
from tc.ir.expr import Const, Expr, ExprLike, as_expr, const, equal, is_const, logical_or, select
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.registry import AxisKeys, BlockedForm, Form, current_facts, require
from tc.te import Tensor

Types = Sequence[TensorType | None]
Arrays = Sequence[np.ndarray | None]
Tensors = Sequence[Tensor | None]

BEYOND_ANY_DIM = 1 << 40
"""More than any dim, and so little that sums with dims are far from the end of i64: what steps and diagonals are cut to."""


def given(item: object, op: str, name: str = "operand") -> object:
    """An operand that must be there."""
    if item is None:
        raise ShapeError(f"{op}: {name} is required")
    return item


def operand(types: Types, index: int, op: str) -> TensorType:
    """Operand number `index`, which must be there."""
    if index >= len(types) or types[index] is None:
        raise ShapeError(f"{op}: operand {index} is required")
    return types[index]  # type: ignore[return-value]


def exprs(values: Sequence[ExprLike]) -> tuple[Expr, ...]:
    """A shape-like attribute as expressions, simplified under the current facts."""
    facts = current_facts()
    return tuple(simplify(as_expr(value), facts) for value in values)


def ints(values: Sequence[object]) -> tuple[int, ...]:
    """A shape-like attribute of a reference, as ints."""
    return tuple(int(value) for value in values)  # type: ignore[call-overload]


def normalize_axis(axis: int, rank: int, op: str) -> int:
    """A non-negative axis below `rank`."""
    if not -rank <= axis < max(rank, 1):
        raise ShapeError(f"{op}: axis {axis} is out of range for rank {rank}")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: Sequence[int] | None, rank: int, op: str) -> tuple[int, ...]:
    """Non-negative axes in increasing order; None means all."""
    if axes is None:
        return tuple(range(rank))
    found = tuple(sorted(normalize_axis(int(axis), rank, op) for axis in axes))
    if len(set(found)) != len(found):
        raise ShapeError(f"{op}: an axis is named twice in {tuple(axes)}")
    return found


def same_dtype(types: Types, op: str) -> DType:
    """The one dtype of all operands."""
    found = [type_ for type_ in types if type_ is not None]
    for type_ in found[1:]:
        if type_.dtype != found[0].dtype:
            raise ShapeError(f"{op}: operands must have one dtype, found {', '.join(str(t) for t in found)}")
    return found[0].dtype


def broadcast_dim(a: Expr, b: Expr, op: str, where: str = "") -> Expr:
    """One dim of two broadcast shapes. Where it depends on the values of dims which of them is 1, so does the result; that they fit
    is checked at run time. `where` says in words whose dim `b` is."""
    if a is b or is_const(b, 1):
        return a
    if is_const(a, 1):
        return b
    facts = current_facts()
    if prove(equal(a, b), facts) is True:
        return a if isinstance(a, Const) else b
    a_is_one, b_is_one = prove(equal(a, 1), facts), prove(equal(b, 1), facts)
    if a_is_one is True or b_is_one is True:
        return b if a_is_one else a
    fits = [equal(a, b), *(equal(dim, 1) for dim, is_one in ((a, a_is_one), (b, b_is_one)) if is_one is None)]
    require(logical_or(*fits), f"{op}: {where or 'a dim'} is {b}, which does not broadcast with {a}")
    if a_is_one is False:
        return b if b_is_one is False and isinstance(b, Const) else a
    return b if b_is_one is False else simplify(select(equal(a, 1), b, a), facts)


def broadcast_shapes(op: str, *shapes: Sequence[Expr]) -> tuple[Expr, ...]:
    """The shape that all shapes broadcast to, as in numpy."""
    rank = max(map(len, shapes))
    one = const(1)
    result: list[Expr] = [one] * rank
    for k, shape in enumerate(shapes):
        offset = rank - len(shape)
        for d, dim in enumerate(shape):
            known = result[offset + d]
            if known is one:
                result[offset + d] = dim
            elif dim is not known:
                result[offset + d] = broadcast_dim(known, dim, op, f"dim {d} of operand {k}")
    return tuple(result)


def require_broadcasts_to(own: Sequence[Expr], wide: Sequence[Expr], what: str) -> None:
    """State that a shape broadcasts to `wide` without making it wider. `what` says in words whose shape it is."""
    if len(own) > len(wide):
        raise ShapeError(f"{what} has {len(own)} dims, more than the {len(wide)} it is to fit")
    for dim, target in zip(own, wide[len(wide) - len(own) :], strict=True):
        if not is_const(dim, 1):
            require(logical_or(equal(dim, target), equal(dim, 1)), f"{what}: its dim {dim} must be 1 or {target}")


def require_equal(dim: Expr, wanted: Expr, what: str) -> None:
    """State that two dims are the same. `what` says in words what `dim` is."""
    require(equal(dim, wanted), f"{what} is {dim}, but must be {wanted}")


def require_within(own: Sequence[Expr], limits: Sequence[Expr], what: str, *, but: int | None = None) -> None:
    """State that no dim exceeds the one it indexes into; the dim `but` is free."""
    if len(own) != len(limits):
        raise ShapeError(f"{what} has {len(own)} dims, but must have {len(limits)}")
    for d, (dim, limit) in enumerate(zip(own, limits, strict=True)):
        if d != but and dim is not limit:
            require(dim <= limit, f"{what}: its dim {d} is {dim}, but must be at most {limit}")


def broadcast_index(index: Expr, dim: Expr, wide: Expr) -> Expr:
    """The place along an axis of size `dim` that is read for place `index` of a result of size `wide`."""
    if is_const(dim, 1):
        return const(0)
    facts = current_facts()
    if dim is wide or prove(equal(dim, wide), facts) is True:
        return index
    is_one = prove(equal(dim, 1), facts)
    return const(0) if is_one else index if is_one is False else select(equal(dim, 1), 0, index)


def broadcast_read(tensor: Tensor, axes: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """The element of `tensor` that the element at `axes` of a result of `shape` uses under broadcasting."""
    own = len(tensor.shape)
    places = zip(axes[len(axes) - own :], tensor.shape, shape[len(shape) - own :], strict=True)
    return tensor[tuple(broadcast_index(axis, dim, wide) for axis, dim, wide in places)]


def map_elements(
    fn: Callable[..., Expr], tensors: Tensors, types: Sequence[TensorType], name: str
) -> Tensor:
    """A stage that applies `fn` to the operands' elements, broadcast to the result."""
    present = [tensor for tensor in tensors if tensor is not None]
    shape = types[0].shape
    return te.compute(shape, lambda *axes: fn(*(broadcast_read(t, axes, shape) for t in present)), name)


def aligned_from_right(types: Types, attrs: Attrs) -> AxisKeys:
    """The keys of axes (`OpDef.aligned`) of an operator that broadcasts whole shapes as numpy does."""
    return [None if type_ is None else range(-type_.rank, 0) for type_ in types]


def unravel(flat: Expr, dims: Sequence[Expr]) -> tuple[Expr, ...]:
    """The indices into `dims`, last one fastest, of element number `flat`."""
    places: list[Expr] = []
    for dim in reversed(dims[1:]):
        places.insert(0, flat % dim)
        flat = flat // dim
    return (flat, *places)


def ravel(indices: Sequence[Expr], dims: Sequence[Expr]) -> Expr:
    """The number of the element at `indices`; the inverse of `unravel`."""
    flat: Expr = const(0)
    for index, dim in zip(indices, dims, strict=True):
        flat = flat * dim + index
    return flat


def blocked_elementwise(name: str) -> Callable[[Types, Attrs, int], BlockedForm | None]:
    """The layout rule of an operator that broadcasts its operands: the same operator."""

    def blocked(types: Types, attrs: Attrs, block: int) -> BlockedForm | None:
        shapes = [() if type_ is None else type_.shape for type_ in types]
        shape = broadcast_shapes(name, *shapes)
        if len(shape) < 3 or is_const(shape[1], 1):
            return None
        channels = [own[1 - len(shape)] for own in shapes if len(own) >= len(shape) - 1]
        if any(dim is not shape[1] and not is_const(dim, 1) for dim in channels):
            return None  # whether it is broadcast is only known when it runs
        forms = tuple([Form.CHANNELS if len(own) == len(shape) and own[1] is shape[1] else Form.BROADCAST for own in shapes])
        return BlockedForm(name, tuple(attrs.items()), forms) if Form.CHANNELS in forms else None

    return blocked


def sum_dtype(dtype: DType) -> DType:
    """What sums of this dtype are accumulated in."""
    return f32 if dtype in (f16, bf16) else dtype


def product_dtype(attrs: Attrs, dtype: DType) -> DType:
    """The dtype of sums of products of operands of `dtype`: that of the operands, or by the attribute `dtype` of the sums themselves."""
    wanted: DType = attrs.dtype or dtype
    if wanted not in (dtype, sum_dtype(dtype)):
        raise ShapeError(f"sums of products of {dtype} are {dtype} or {sum_dtype(dtype)}, not {wanted}")
    return wanted


def rounded_sums(sums: np.ndarray, attrs: Attrs, factor: np.ndarray) -> np.ndarray:
    """Sums of products of an operand, in the dtype of the result."""
    return sums.astype(product_dtype(attrs, from_numpy(factor.dtype)).numpy)


def wide(array: np.ndarray) -> np.ndarray:
    """f16 and bf16 arrays in f32; others as they are."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 and array.dtype.kind in "fV" else array


def sliding_windows(x: np.ndarray, reach: Sequence[int], axes: Sequence[int]) -> np.ndarray:
    """[*counts, *reach]: every window along these axes, none along one that is shorter."""
    if all(x.shape[axis] >= size for axis, size in zip(axes, reach, strict=True)):
        return np.lib.stride_tricks.sliding_window_view(x, tuple(reach), axis=tuple(axes))
    sizes = dict(zip(axes, reach, strict=True))
    return np.zeros((*[max(0, n - sizes.get(axis, 1) + 1) for axis, n in enumerate(x.shape)], *reach), x.dtype)


def contract(x: np.ndarray, w: np.ndarray, axes: tuple[Sequence[int], Sequence[int]]) -> np.ndarray:
    """`np.tensordot`, every product computed: where one side is a single number, that scales by BLAS, which makes 0 * inf 0 and not NaN."""
    x, w = np.moveaxis(x, axes[0], range(x.ndim - len(axes[0]), x.ndim)), np.moveaxis(w, axes[1], range(len(axes[1])))
    rows, columns, depth = x.shape[: x.ndim - len(axes[0])], w.shape[len(axes[1]) :], math.prod(w.shape[: len(axes[1])])
    return (x.reshape(math.prod(rows), depth) @ w.reshape(depth, math.prod(columns))).reshape(*rows, *columns)
