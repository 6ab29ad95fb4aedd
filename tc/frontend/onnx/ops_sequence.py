"""Sequences and optionals. Those of known length exist while a model is imported; others are tensors (`stored_sequences`)."""

from __future__ import annotations

import numpy as np

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.branches import choose
from tc.frontend.onnx.control_flow import bind_loop
from tc.frontend.onnx.loops import UNROLL_CHANGING
from tc.frontend.onnx.node_context import Calls, NodeContext, NodeResult, no_run_passes, onnx_op
from tc.frontend.onnx.stored_sequences import (
    common_dims,
    erased,
    inserted,
    item,
    item_dtype,
    item_rank,
    limits,
    parts_of,
    stacked,
    stored,
    total,
)
from tc.frontend.onnx.tensors import dtype_of
from tc.frontend.onnx.values import (
    DeferredValue,
    ModelValue,
    OptionalValue,
    SequenceValue,
    StoredSequence,
    StringsValue,
    constant_value,
    size_value,
)
from tc.ir.arith import prove
from tc.ir.dtype import i64
from tc.ir.expr import Const, Expr, ceildiv, const, floordiv
from tc.ir.types import TensorType
from tc.ops.registry import require


def _sequence(n: NodeContext, index: int, position: int | None = None) -> SequenceValue | StoredSequence:
    """Input `index`; as tensors where the input `position` depends on data."""
    found = n.inputs[index] if index < len(n.inputs) else None
    if isinstance(found, OptionalValue):
        found = found.content
    if isinstance(found, DeferredValue):
        raise UnsupportedError(f"input {index} comes from {found.reason}", code="TC1017")
    if not isinstance(found, (SequenceValue, StoredSequence)):
        raise NodeError(f"{n.op_type}: input {index} must be a sequence")
    if position is None or not n.is_data(position):
        return found
    rank = item_rank(found)
    if rank is None:
        raise no_run_passes(f"{n.op_type}: a position in an empty sequence")
    return stored(n, found, rank, item_dtype(found))


def _position(n: NodeContext, index: int, count: int, last: int) -> int | None:
    """A constant position in a sequence of `count`, at most `last` from its front; None when the input is absent."""
    found = n.ints(index, "the position")
    if found is None:
        return None
    place = found[0] + count if found[0] < 0 else found[0]
    if not 0 <= place <= last:
        raise no_run_passes(f"{n.op_type}: position {found[0]} in a sequence of {count}")
    return place


@onnx_op("SequenceConstruct")
def import_sequence_construct(n: NodeContext) -> NodeResult:
    return SequenceValue(tuple(n.values()))


@onnx_op("SequenceEmpty")
def import_sequence_empty(n: NodeContext) -> NodeResult:
    return SequenceValue((), dtype_of(n.attr("dtype", 1), "the attribute dtype"))


@onnx_op("SequenceLength")
def import_sequence_length(n: NodeContext) -> NodeResult:
    found = _sequence(n, 0)
    length = found.length if isinstance(found, StoredSequence) else const(len(found.items))
    return size_value(length)


@onnx_op("SequenceAt")
def import_sequence_at(n: NodeContext) -> NodeResult:
    sequence = _sequence(n, 0, 1)
    if n.optional(1) is None:
        raise NodeError("SequenceAt: input 1, the position, is missing")
    if isinstance(sequence, StoredSequence):
        return item(n, sequence, n.value(1))
    place = _position(n, 1, len(sequence.items), len(sequence.items) - 1)
    assert place is not None, "the position is there"
    return sequence.items[place]


@onnx_op("SequenceInsert")
def import_sequence_insert(n: NodeContext) -> NodeResult:
    sequence = _sequence(n, 0)
    if isinstance(sequence, SequenceValue) and not sequence.items and n.is_data(2):
        (first,) = n.dims(2, "position", 1)  # below 0 it is refused
        n.graph.state(lambda: require(first <= 0, f"SequenceInsert: the position is {first}, but the sequence is empty"), n.span)
        return SequenceValue((n.value(1),))
    sequence = _sequence(n, 0, 2)
    if isinstance(sequence, StoredSequence):
        return inserted(n, sequence, n.value(1), n.optional(2))
    items = list(sequence.items)
    place = _position(n, 2, len(items), len(items))
    items.insert(len(items) if place is None else place, n.value(1))
    return SequenceValue(tuple(items))


@onnx_op("SequenceErase")
def import_sequence_erase(n: NodeContext) -> NodeResult:
    sequence = _sequence(n, 0, 1)
    if isinstance(sequence, StoredSequence):
        return erased(n, sequence, n.optional(1))
    items = list(sequence.items)
    place = _position(n, 1, len(items), len(items) - 1)
    if not items:
        raise NodeError("SequenceErase: the sequence is empty")
    del items[-1 if place is None else place]
    return SequenceValue(tuple(items))


@onnx_op("ConcatFromSequence")
def import_concat_from_sequence(n: NodeContext) -> NodeResult:
    sequence, axis = _sequence(n, 0), n.attr("axis")
    if isinstance(sequence, StoredSequence):
        return _concat_stored(n, sequence, axis)
    items = sequence.items
    if not items:
        raise UnsupportedError("ConcatFromSequence of an empty sequence", code="TC1022")
    if not n.attr("new_axis", 0):
        return n.call("concat", *items, axis=axis)
    return n.call("concat", *(n.call("unsqueeze", item, axes=(axis,)) for item in items), axis=axis)


def _concat_stored(n: NodeContext, sequence: StoredSequence, axis: int) -> ModelValue:
    """Of a length that data decide. Items of different sizes along an axis behind others are joined one by one."""
    is_new = bool(n.attr("new_axis", 0))
    rank = sequence.rank + is_new
    if not -rank <= axis < rank:
        raise ShapeError(f"ConcatFromSequence: axis {axis} of a result of rank {rank}")
    axis %= rank
    if is_new:
        return stacked(n, sequence, common_dims(n, sequence), axis)
    dims = common_dims(n, sequence, but=axis)
    shape = (*dims[:axis], total(n, sequence, axis), *dims[axis + 1 :])
    if axis == 0:
        return n.call("reshape", sequence.elements, shape=shape)
    alike = (*dims[:axis], sequence.length * dims[axis], *dims[axis + 1 :])
    if sequence.dims is not None:
        return n.call("reshape", stacked(n, sequence, dims, axis), shape=alike)
    least, most = (n.call("slice", ends, starts=(axis,), sizes=(1,), steps=(1,)) for ends in limits(n, sequence))
    are_alike = n.call("reshape", n.call("equal", least, most), shape=())
    return choose(
        n,
        are_alike,
        TensorType(shape, sequence.elements.dtype),
        lambda c: c.call("reshape", stacked(c, sequence, dims, axis), shape=alike),
        lambda c: _one_by_one(c, sequence, (*dims[:axis], const(0), *dims[axis + 1 :]), axis),
    )


def _one_by_one(c: Calls, sequence: StoredSequence, shape: tuple[Expr, ...], axis: int) -> ModelValue:
    """The items joined along an axis, beginning with nothing, which has this shape."""
    nothing = c.call("full", value=0, dtype=sequence.elements.dtype, shape=shape)

    def add(c: Calls, i: ModelValue, carried: list[ModelValue]) -> tuple[ModelValue | None, list[ModelValue], list[ModelValue]]:
        return None, [c.call("concat", carried[0], item(c, sequence, i), axis=axis)], []

    return bind_loop(c, sequence.length, None, [nothing], add, "items")[0]


@onnx_op("SplitToSequence")
def import_split_to_sequence(n: NodeContext) -> NodeResult:
    x, axis = n.value(0), n.attr("axis", 0)
    if not -x.rank <= axis < x.rank:
        raise ShapeError(f"SplitToSequence: axis {axis} of {x.type}")
    axis %= x.rank
    if not isinstance(x.shape[axis], Const) and (n.optional(1) is None or n.value(1).rank == 0):
        return _split_stored(n, x, axis)
    sizes = _split_sizes(n, x, axis)
    parts = n.graph.call("split", x, span=n.span, names=[n.label] * len(sizes), axis=axis, sizes=tuple(sizes))
    loses_axis = _loses_axis(n)
    if loses_axis:
        parts = tuple(n.call("squeeze", part, axes=(axis,)) for part in parts)
    if len(sizes) <= UNROLL_CHANGING or any(size is not sizes[0] for size in sizes):
        return SequenceValue(parts)
    apart = x if loses_axis else n.call("reshape", x, shape=(*x.shape[:axis], len(sizes), sizes[0], *x.shape[axis + 1 :]))
    return SequenceValue(parts, stack=_to_front(n, apart, axis))


def _loses_axis(n: NodeContext) -> bool:
    """Whether parts are without the axis along which they were split. ONNX says that this is asked for by leaving out how large they are;
    PyTorch exports `unbind` as parts of 1, and onnxruntime takes that for the same."""
    if n.attr("keepdims", 1):
        return False
    return n.optional(1) is None or (n.value(1).rank == 0 and n.ints(1, "split") == [1])


def _split_stored(n: NodeContext, x: ModelValue, axis: int) -> StoredSequence:
    """As many parts of one size as there are, the last one smaller where it is what is left."""
    asked = n.ints(1, "split")
    size, dim = const(1 if asked is None else asked[0]), x.shape[axis]
    if size.value <= 0:
        raise ShapeError(f"SplitToSequence: parts of {size}, which must be positive")
    if size.value == 1:
        parts = _to_front(n, x, axis)
        return parts_of(n, parts if _loses_axis(n) else n.call("unsqueeze", parts, axes=(axis + 1,)))
    elements = _part_by_part(n, x, axis, int(size))
    count = ceildiv(dim, size)
    left = n.call("range", start=dim, size=count, step=-size)
    rest: list[ModelValue | None] = [size_value(other) for other in x.shape]
    rest[axis] = n.call("minimum", left, n.const(size.value, i64))
    columns = [n.call("expand", n.call("reshape", each, shape=(each.type.num_elements, 1)), shape=(count, 1)) for each in rest]
    shapes = n.call("concat", *columns, axis=1)
    return StoredSequence(n.call("reshape", elements, shape=(x.type.num_elements,)), shapes)


def _part_by_part(n: NodeContext, x: ModelValue, axis: int, size: int) -> ModelValue:
    """The elements of parts of `size` along an axis, all of one part before those of the next."""
    if not axis:
        return x
    before, dim, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    count = floordiv(dim, size)
    whole = n.part(x, axis, 0, count * size)
    apart = _to_front(n, n.call("reshape", whole, shape=(*before, count, size, *behind)), axis)
    parts = (apart, n.part(x, axis, count * size, dim - count * size))
    return n.call("concat", *(n.call("reshape", part, shape=(part.type.num_elements,)) for part in parts), axis=0)


def _to_front(n: NodeContext, value: ModelValue, axis: int) -> ModelValue:
    return n.call("transpose", value, perm=(axis, *(k for k in range(value.rank) if k != axis)))


def _split_sizes(n: NodeContext, x: ModelValue, axis: int) -> list[Expr]:
    split = n.optional(1)
    dim = x.shape[axis]
    if split is not None and split.rank == 1:
        sizes = list(n.dims(1, "split"))
        if any(prove(size >= 0, n.facts) is False for size in sizes):
            raise ShapeError(f"SplitToSequence: the parts {', '.join(map(str, sizes))} must not be negative")
        return sizes
    if not isinstance(dim, Const):
        raise UnsupportedError(f"SplitToSequence: the number of parts of the dim {dim} is not known", code="TC1015")
    if split is None:
        return [const(1)] * int(dim)
    part = n.ints(1, "split")
    if part is None or len(part) != 1 or part[0] <= 0:
        raise ShapeError(f"SplitToSequence: parts of {', '.join(map(str, part or ()))} must be one positive size, or a list of sizes")
    whole, left = divmod(int(dim), part[0])
    return [*[const(part[0])] * whole, *([const(left)] if left else ())]


@onnx_op("Optional")
def import_optional(n: NodeContext) -> NodeResult:
    content = n.inputs[0] if n.inputs else None
    if isinstance(content, DeferredValue):
        raise UnsupportedError(f"input 0 comes from {content.reason}", code="TC1017")
    if content is not None and not isinstance(content, (ModelValue, StringsValue, SequenceValue, StoredSequence)):
        raise UnsupportedError("Optional of what is no tensor and no sequence", code="TC1017")
    return OptionalValue(content)


@onnx_op("OptionalHasElement")
def import_optional_has_element(n: NodeContext) -> NodeResult:
    found = n.inputs[0] if n.inputs else None
    if isinstance(found, DeferredValue):
        raise UnsupportedError(f"input 0 comes from {found.reason}", code="TC1017")
    there = found is not None and not (isinstance(found, OptionalValue) and found.content is None)
    return constant_value(np.array(there))


@onnx_op("OptionalGetElement")
def import_optional_get_element(n: NodeContext) -> NodeResult:
    found = n.inputs[0]
    content = found.content if isinstance(found, OptionalValue) else found
    if content is None:
        raise no_run_passes("OptionalGetElement: there is no element")
    return content
