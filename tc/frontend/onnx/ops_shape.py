"""Operators of ONNX that rearrange elements, look elements up, or make tensors from shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.assumptions import assume_large_enough
from tc.frontend.onnx.control_flow import dims_bound_in
from tc.frontend.onnx.node_context import NodeContext, NodeResult, no_run_passes, onnx_op
from tc.frontend.onnx.run_time_axes import axes_from_data, count_of, vector, with_axes, without_axes
from tc.frontend.onnx.size_elements import make_elements
from tc.frontend.onnx.tensors import dtype_of
from tc.frontend.onnx.values import ModelValue, StringsValue, constant_value, elements_value, size_value
from tc.ir import dtype as dtypes
from tc.ir.arith import Facts, prove, simplify
from tc.ir.dtype import i64, u64
from tc.ir.expr import Const, Expr, Mul, Var, ceildiv, const, equal, floordiv, is_const, maximum, minimum
from tc.ir.node import walk
from tc.ir.types import product
from tc.ops.common import normalize_axis
from tc.ops.registry import Requirement

# -- constants


@onnx_op("Constant")
def import_constant(n: NodeContext) -> NodeResult:
    """A tensor from one of the attributes that may hold it."""
    name = n.outputs[0]
    for attribute in n.node.attribute:
        match attribute.name:
            case "value":
                return n.graph.constant(attribute.t)
            case "sparse_value":
                return constant_value(n.graph.shared.model.reader.read_sparse(attribute.sparse_tensor), name)
            case "value_float" | "value_floats":
                return constant_value(np.array(n.attr(attribute.name), np.float32), name)
            case "value_int" | "value_ints":
                return constant_value(np.array(n.attr(attribute.name), np.int64), name)
            case "value_string" | "value_strings":
                texts = np.array(n.attr(attribute.name), object)
                return StringsValue(constant_value(n.graph.shared.strings.numbers(texts, name), name))
    raise NodeError("Constant has no value")


@onnx_op("ConstantOfShape")
def import_constant_of_shape(n: NodeContext) -> NodeResult:
    value = n.attr("value")
    array = np.zeros(1, np.float32) if value is None else value
    if array.size != 1:
        raise NodeError(f"ConstantOfShape: the value must be one element, found {array.shape}")
    dtype = dtypes.from_numpy(array.dtype)
    return n.call("full", shape=n.dims(0, "shape"), value=array.reshape(()).item(), dtype=dtype)


@onnx_op("Shape")
def import_shape(n: NodeContext) -> NodeResult:
    raise AssertionError(f"the shape of {n.value(0).type} is always known")


@onnx_op("Size")
def import_size(n: NodeContext) -> NodeResult:
    raise AssertionError(f"the size of {n.value(0).type} is always known")


@onnx_op("Range")
def import_range(n: NodeContext) -> NodeResult:
    """start, start + delta, ... up to but without limit. Its size is known, or computed when it runs."""
    start, limit, delta = (n.call("reshape", v, shape=()) if v.rank else v for v in n.values())
    bounds = [n.graph.elements(v) for v in (start, limit, delta)]
    if start.dtype.is_int and all(b is not None for b in bounds):
        first, last, step = (b.reshape(-1)[0] for b in bounds if b is not None)
        if prove(step > 0, n.facts) is True:
            size = simplify(maximum(ceildiv(last - first, step), 0), n.facts)
        elif prove(step < 0, n.facts) is True:
            size = simplify(maximum(ceildiv(first - last, 0 - step), 0), n.facts)
        elif is_const(step, 0):
            raise no_run_passes("Range: delta is 0")
        else:
            raise UnsupportedError(f"Range: the sign of the step {step} is not known", code="TC1015")
        made = n.call("range", start=first, size=size, step=step)
        return made if start.dtype == i64 else n.call("cast", made, dtype=start.dtype)
    arrays = [n.graph.array(v) for v in (start, limit, delta)]
    if all(a is not None for a in arrays):
        a, b, c = (float(array.reshape(())) for array in arrays if array is not None)
        if not c or not np.isfinite((b - a) / c):
            raise no_run_passes(f"Range from {a} to {b} by {c} has no number of elements")
        return n.call("range_like", start, delta, size=max(int(np.ceil((b - a) / c)), 0))
    moves = n.call("cast", n.call("logical_not", n.call("equal", delta, n.const(0, delta.dtype))), dtype=i64)
    (is_moving,) = n.graph.dims(moves, f"{n.label}.is_moving", n.span)
    n.graph.builder.require(Requirement(equal(is_moving, 1), f"{n.label}: Range: delta is 0"))
    if start.dtype.is_float:
        count = n.call("ceil", n.call("div", n.call("sub", limit, start), delta))
    else:
        count = _steps_between(n, start, limit, delta)
    whole = n.call("maximum", n.call("cast", count, dtype=i64), n.const(0, i64))
    (size,) = n.graph.dims(whole, f"{n.label}.size", n.span)
    return n.call("range_like", start, delta, size=size)


def _steps_between(n: NodeContext, start: ModelValue, limit: ModelValue, delta: ModelValue) -> ModelValue:
    """How many steps of integers there are, in u64: the distance of two numbers need not be one of their type."""
    is_up = n.call("less", n.const(0, delta.dtype), delta)
    first, last = n.call("where", is_up, start, limit), n.call("where", is_up, limit, start)
    low, high, step = (n.call("cast", value, dtype=u64) for value in (first, last, delta))
    zero, one = n.const(0, u64), n.const(1, u64)
    step = n.call("where", is_up, step, n.call("sub", zero, step))
    whole = n.call("div", n.call("sub", n.call("sub", high, low), one), step)
    count = n.call("where", n.call("less", first, last), n.call("add", whole, one), zero)
    return n.call("minimum", count, n.const(MOST_STEPS, u64))


MOST_STEPS = 1 << 62
"""Of a range: more than there is memory for, and a number of i64."""


@onnx_op("EyeLike")
def import_eye_like(n: NodeContext) -> NodeResult:
    x, code = n.value(0), n.attr("dtype", 0)
    dtype = dtype_of(code, "the attribute dtype") if code else x.dtype
    return n.call("eye_like", shape=x.shape, k=n.attr("k", 0), dtype=dtype)


@onnx_op("OneHot")
def import_one_hot(n: NodeContext) -> NodeResult:
    (depth,) = n.dims(1, "depth", 1) if n.value(1).dtype.is_int else _float_dims(n, 1)
    return n.call("one_hot", n.value(0), n.value(2), depth=depth, axis=n.attr("axis", -1))


def _float_dims(n: NodeContext, index: int) -> tuple[Expr, ...]:
    """Sizes given as floats."""
    whole = n.call("cast", n.value(index), dtype=i64)
    return n.graph.dims(whole, f"{n.label}.size", n.span)


# -- shapes


@onnx_op("Reshape")
def import_reshape(n: NodeContext) -> NodeResult:
    """0 takes the dim of the input (unless allowzero), -1 what is left."""
    x, shape = n.value(0), n.value(1)
    if shape.rank != 1:
        raise ShapeError(f"Reshape: the shape must be a vector, found {shape.type}")
    elements = n.graph.elements(shape)
    allow_zero = bool(n.attr("allowzero", 0))
    if elements is None:
        return n.call("reshape", x, shape=_dims_from_data(n, x, shape, allow_zero))
    return n.call("reshape", x, shape=_reshaped(n, x.shape, list(elements), allow_zero))


def _reshaped(n: NodeContext, source: Sequence[Expr], target: list[Expr], allow_zero: bool) -> tuple[Expr, ...]:
    dims: list[Expr] = []
    inferred = None
    for d, dim in enumerate(target):
        if is_const(dim, -1):
            if inferred is not None:
                raise ShapeError("Reshape: the shape holds -1 more than once")
            inferred = d
            dims.append(const(1))
        elif is_const(dim, 0) and not allow_zero:
            if d >= len(source):
                raise ShapeError(f"Reshape: dim {d} of the shape is 0, but the input has rank {len(source)}")
            dims.append(source[d])
        else:
            dims.append(dim)
    if inferred is None:
        return tuple(dims if allow_zero or _is_shape_of(n, source, dims) else _copied_where_zero(n, source, dims))
    whole = [*dims[:inferred], _remaining(n, source, dims), *dims[inferred + 1 :]]
    if allow_zero or _is_shape_of(n, source, whole):
        return tuple(whole)
    dims = _copied_where_zero(n, source, dims)
    dims[inferred] = _remaining(n, source, dims)
    return tuple(dims)


def _is_shape_of(n: NodeContext, source: Sequence[Expr], dims: Sequence[Expr]) -> bool:
    """Whether there are as many elements in both whatever the dims: a 0 among these is then a size like any other."""
    return prove(equal(product(tuple(source)), product(tuple(dims))), n.facts) is True


def _copied_where_zero(n: NodeContext, source: Sequence[Expr], dims: list[Expr]) -> list[Expr]:
    """Sizes with the dim of the input in the place of those that are 0 when the model runs. The program may be one for dims of inputs with
    which none is; a 0 that operators find in data is itself where the input is empty by it."""
    factors = [set(walk(dim)) for dim in source]
    from_data: set[Var] | None = None
    for d, dim in enumerate(dims[: len(source)]):
        if is_const(dim) or _is_zero_with(source[d], dim, n.facts):
            continue
        if from_data is None:
            from_data = dims_bound_in(n.graph.builder)
        if any(node in from_data for node in walk(dim)):
            if any(dim in each for each in factors):
                continue
        else:
            assume_large_enough(n.graph.builder, n.graph.shared, dim, partial(_is_above_zero, dim), n.span)
        if not _is_above_zero(dim, n.facts):
            dims[d] = dim + source[d] * (1 - minimum(dim, 1))
    return dims


def _is_zero_with(source: Expr, dim: Expr, facts: Facts) -> bool:
    """Whether `source` is 0 wherever `dim` is: all its other factors are above 0."""
    others = _factors(dim)
    if source in others:
        others.remove(source)
    return all(_is_above_zero(factor, facts) for factor in others)


def _is_above_zero(dim: Expr, facts: Facts) -> bool:
    return prove(dim > 0, facts) is True


def _remaining(n: NodeContext, source: Sequence[Expr], dims: Sequence[Expr]) -> Expr:
    """What -1 stands for: the elements of `source` over those of the other dims.

    Common factors are taken out. Where one of them is 0 the tensor is empty and any size fits.
    """
    left = [factor for dim in source for factor in _factors(dim)]
    others = []
    for factor in (f for dim in dims for f in _factors(dim)):
        if factor in left:
            left.remove(factor)
        else:
            others.append(factor)
    total, known = simplify(product(tuple(left)), n.facts), simplify(product(tuple(others)), n.facts)
    if is_const(known, 0):
        return const(0)
    return simplify(floordiv(total, known), n.facts.assume(known > 0))


def _factors(dim: Expr) -> list[Expr]:
    """The factors of a product, from left to right."""
    if isinstance(dim, Mul):
        return [*_factors(dim.lhs), *_factors(dim.rhs)]
    return [dim]


def _dims_from_data(n: NodeContext, x: ModelValue, shape: ModelValue, allow_zero: bool) -> tuple[Expr, ...]:
    """The target of a Reshape that is only known when it runs."""
    target = shape if shape.dtype == i64 else n.call("cast", shape, dtype=i64)
    if not is_const(shape.shape[0]):
        raise UnsupportedError("Reshape: the rank of the result is not known", code="TC1014")
    rank = int(shape.shape[0])
    if not allow_zero:
        source = [*x.shape, *[const(0)] * rank][:rank]
        copied = elements_value(make_elements(source, (rank,)), i64)
        target = n.call("where", n.call("equal", target, n.const(0, i64)), copied, target)
    unknown = n.call("equal", target, n.const(-1, i64))
    others = n.call("prod", n.call("where", unknown, n.const(1, i64), target), axes=None, keepdims=False)
    total = size_value(product(x.shape))
    dims = n.call("where", unknown, n.call("div", total, others), target)
    num_unknown = n.call("sum", n.call("cast", unknown, dtype=i64), axes=None, keepdims=True)
    *found, most = n.graph.dims(n.call("concat", dims, num_unknown, axis=0), f"{n.label}.shape", n.span)  # which reads all at once
    n.graph.builder.require(Requirement(most <= 1, f"{n.label}: Reshape: the shape holds -1 more than once"))
    return tuple(found)


@onnx_op("Flatten")
def import_flatten(n: NodeContext) -> NodeResult:
    x, axis = n.value(0), n.attr("axis", 1)
    if not -x.rank <= axis <= x.rank:
        raise ShapeError(f"Flatten: axis {axis} of {x.type}")
    return n.call("flatten", x, axis=axis + x.rank if axis < 0 else axis)


@onnx_op("Squeeze")
def import_squeeze(n: NodeContext) -> NodeResult:
    x = n.value(0)
    if n.opset >= 13 and n.is_data(1):
        return x if not count_of(n, 1) else n.call("reshape", x, shape=without_axes(n, x.shape, axes_from_data(n, 1, x.rank)))
    axes = n.axes(1 if n.opset >= 13 else None)
    if axes is None:
        unsure = [dim for dim in x.shape if prove(equal(dim, 1), n.facts) is None]
        if unsure:
            raise UnsupportedError(f"Squeeze without axes: whether the dim {unsure[0]} is 1 is not known", code="TC1015")
        axes = [d for d, dim in enumerate(x.shape) if prove(equal(dim, 1), n.facts) is True]
    return n.call("squeeze", x, axes=tuple(axes)) if axes else x


@onnx_op("Unsqueeze")
def import_unsqueeze(n: NodeContext) -> NodeResult:
    if n.opset >= 13 and n.is_data(1):
        x, count = n.value(0), count_of(n, 1)
        return n.call("reshape", x, shape=with_axes(n, x.shape, axes_from_data(n, 1, x.rank + count))) if count else x
    axes = n.axes(1 if n.opset >= 13 else None)
    if axes is None:
        raise NodeError("Unsqueeze: the axes are missing")
    return n.call("unsqueeze", n.value(0), axes=tuple(axes)) if axes else n.value(0)


@onnx_op("Expand")
def import_expand(n: NodeContext) -> NodeResult:
    x, shape = n.value(0), n.value(1)
    if n.graph.elements(shape) is None and shape.rank == 1 and is_const(shape.shape[0]):
        # A 1 in the shape keeps the dim of the input, so it is replaced before the shape is read.
        rank = int(shape.shape[0])
        own = vector([const(1)] * (rank - x.rank) + list(x.shape[max(x.rank - rank, 0) :]))
        shape = n.call("where", n.call("equal", shape, n.const(1, i64)), own, shape)
    return n.call("expand", x, shape=n.graph.dims(shape, f"{n.label}.shape", n.span))


@onnx_op("Tile")
def import_tile(n: NodeContext) -> NodeResult:
    repeats = n.dims(1, "repeats", n.value(0).rank)
    if len(repeats) != n.value(0).rank:
        raise ShapeError(f"Tile: {len(repeats)} repeats for {n.value(0).type}")
    return n.call("tile", n.value(0), repeats=repeats)


@onnx_op("Transpose")
def import_transpose(n: NodeContext) -> NodeResult:
    perm = n.attr("perm")
    return n.call("transpose", n.value(0), perm=None if perm is None else tuple(perm))


@onnx_op("Concat")
def import_concat(n: NodeContext) -> NodeResult:
    return n.call("concat", *n.values(), axis=n.attr("axis", 1))


@onnx_op("Split")
def import_split(n: NodeContext) -> NodeResult:
    x, axis = n.value(0), n.attr("axis", 0)
    if not -x.rank <= axis < x.rank:
        raise ShapeError(f"Split: axis {axis} of {x.type}")
    axis %= x.rank
    sizes: Sequence[Expr | int] | None = n.attr("split") if n.opset < 13 else None
    if n.opset >= 13 and n.optional(1) is not None:
        sizes = n.dims(1, "split", n.num_outputs)
    if sizes is None:
        sizes = equal_parts(x.shape[axis], n.num_outputs, n)
    if len(sizes) != n.num_outputs:
        raise ShapeError(f"Split: {len(sizes)} sizes for {n.num_outputs} outputs")
    return n.call_many("split", x, axis=axis, sizes=tuple(sizes))


def equal_parts(dim: Expr, count: int, n: NodeContext) -> list[Expr]:
    """The sizes of `count` parts of a dim, the last one smaller if need be."""
    if n.opset < 18:
        return [simplify(floordiv(dim, count), n.facts)] * count
    part = simplify(ceildiv(dim, count), n.facts)
    return [*[part] * (count - 1), simplify(dim - part * (count - 1), n.facts)]


# -- rearranging


@onnx_op("DepthToSpace")
def import_depth_to_space(n: NodeContext) -> NodeResult:
    return n.call("depth_to_space", n.value(0), block=n.attr("blocksize"), mode=n.attr("mode", "DCR"))


@onnx_op("SpaceToDepth")
def import_space_to_depth(n: NodeContext) -> NodeResult:
    x, block, mode = n.value(0), n.attr("blocksize"), n.attr("mode", "DCR")
    if mode == "DCR":
        return n.call("space_to_depth", x, block=block)
    if x.rank != 4:
        raise ShapeError(f"SpaceToDepth: the input must be [n, c, h, w], found {x.type}")
    batch, channels, rows, columns = x.shape
    cut = n.call("reshape", x, shape=(batch, channels, rows // block, block, columns // block, block))
    moved = n.call("transpose", cut, perm=(0, 1, 3, 5, 2, 4))
    return n.call("reshape", moved, shape=(batch, channels * (block * block), rows // block, columns // block))


@onnx_op("ReverseSequence")
def import_reverse_sequence(n: NodeContext) -> NodeResult:
    batch, time = n.attr("batch_axis", 1), n.attr("time_axis", 0)
    return n.call("reverse_sequence", n.value(0), n.value(1), batch_axis=batch, time_axis=time)


@onnx_op("Trilu")
def import_trilu(n: NodeContext) -> NodeResult:
    if n.is_data(1):
        return n.call("trilu", n.value(0), n.value(1), upper=bool(n.attr("upper", 1)))
    k = n.ints(1, "k")
    return n.call("trilu", n.value(0), upper=bool(n.attr("upper", 1)), k=k[0] if k else 0)


# -- looking up


@onnx_op("Gather")
def import_gather(n: NodeContext) -> NodeResult:
    return n.call("gather", n.value(0), n.value(1), axis=n.attr("axis", 0))


@onnx_op("GatherElements")
def import_gather_elements(n: NodeContext) -> NodeResult:
    return n.call("gather_elements", n.value(0), n.value(1), axis=n.attr("axis", 0))


@onnx_op("GatherND")
def import_gather_nd(n: NodeContext) -> NodeResult:
    indices = n.value(1)
    if indices.rank and not isinstance(indices.shape[-1], Const):
        raise UnsupportedError(f"GatherND: how many axes are chosen is not known: indices {indices.type}", code="TC1014")
    return n.call("gather_nd", n.value(0), indices, batch_dims=n.attr("batch_dims", 0))


@onnx_op("Scatter", "ScatterElements")
def import_scatter_elements(n: NodeContext) -> NodeResult:
    return n.call("scatter_elements", *n.values(), axis=n.attr("axis", 0), reduction=n.attr("reduction", "none"))


@onnx_op("ScatterND")
def import_scatter_nd(n: NodeContext) -> NodeResult:
    x, indices, updates = n.values()
    if indices.rank and not isinstance(indices.shape[-1], Const):  # how many axes are chosen follows from the ranks
        depth = x.rank - (updates.rank - (indices.rank - 1))
        indices = n.call("reshape", indices, shape=(*indices.shape[:-1], const(depth)))
    return n.call("scatter_nd", x, indices, updates, reduction=n.attr("reduction", "none"))


@onnx_op("NonZero")
def import_nonzero(n: NodeContext) -> NodeResult:
    x = n.value(0)
    if not x.rank:
        return n.call("nonzero", x)
    return _places(n, n.call("reshape", x, shape=(product(x.shape),)), x.shape)


def _places(n: NodeContext, flat: ModelValue, shape: Sequence[Expr]) -> ModelValue:
    """Where a tensor is not zero, of which `flat` has the elements in one row: i64[rank, count], the count being a dim of its own."""
    starts, total = n.graph.call("count_nonzero", flat, span=n.span)
    (count,) = n.graph.dims(total, f"{n.label}.count", n.span)
    return n.call("nonzero_at", flat, starts, shape=tuple(shape), count=count)


@onnx_op("Unique")
def import_unique(n: NodeContext) -> NodeResult:
    axis = n.attr("axis")
    return unique_values(n, axis, in_order=bool(n.attr("sorted", 1)), one_nan=axis is None)


def unique_values(
    n: NodeContext, axis: int | None, *, in_order: bool, one_nan: bool
) -> tuple[ModelValue, ModelValue, ModelValue, ModelValue]:
    """Values, where each first is, which one each element is, and how often it is there; all NaN are one, or each is another."""
    x = n.value(0)
    along = 0 if axis is None else normalize_axis(axis, x.rank, "Unique")
    if axis is None:
        x = n.call("reshape", x, shape=(product(x.shape),))
    size = x.shape[along]
    slices = n.call("reshape", x, shape=(product(x.shape[:along]), size, product(x.shape[along + 1 :])))
    order, starts, total = n.graph.call("equal_slices", slices, span=n.span, one_nan=one_nan)
    (count,) = n.graph.dims(total, f"{n.label}.count", n.span)
    begins, ends = (n.call("slice", starts, starts=(const(k),), sizes=(count,), steps=(1,)) for k in range(2))
    first = n.call("gather", order, begins, axis=0, in_range=True)
    counts, numbers = n.call("sub", ends, begins), n.call("group_numbers", order, starts)
    if not in_order:
        _, by_place = n.graph.call("topk", first, span=n.span, k=count, largest=False)
        _, found = n.graph.call("topk", by_place, span=n.span, k=count, largest=False)
        first, counts = (n.call("gather", each, by_place, axis=0, in_range=True) for each in (first, counts))
        numbers = n.call("gather", found, numbers, axis=0, in_range=True)
    return n.call("gather", x, first, axis=along, in_range=True), first, numbers, counts


@onnx_op("Compress")
def import_compress(n: NodeContext) -> NodeResult:
    x, condition, axis = n.value(0), n.value(1), n.attr("axis")
    if condition.rank != 1:
        raise ShapeError(f"Compress: the condition is {condition.type}, but must have 1 dim")
    if axis is None or not x.rank:
        x, axis = n.call("reshape", x, shape=(product(x.shape),)), 0
    axis, size, given = normalize_axis(axis, x.rank, "Compress"), x.shape[axis], condition.shape[0]
    if prove(given <= size, n.facts) is not True:
        given = minimum(given, size)
        condition = n.call("slice", condition, starts=(const(0),), sizes=(given,), steps=(1,))
    places = _places(n, condition, (given,))
    places = n.call("reshape", places, shape=places.shape[1:])
    return n.call("gather", x, places, axis=axis, in_range=True)


@onnx_op("TensorScatter", since=24)
def import_tensor_scatter(n: NodeContext) -> NodeResult:
    """Where updates begin, for each batch, has been checked (`operand_checks`)."""
    past, update, begins = n.value(0), n.value(1), n.optional(2)
    mode, axis = n.attr("mode", "linear"), n.attr("axis", -2)
    if mode not in ("linear", "circular") or not -past.rank <= axis < past.rank or not axis % past.rank:
        raise NodeError(f"TensorScatter along axis {axis} of {past.type}, {mode}")
    return n.call("write_along", past, update, begins, axis=axis % past.rank, circular=mode == "circular")
