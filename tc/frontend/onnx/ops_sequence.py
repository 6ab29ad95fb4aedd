"""Sequences and optionals. They exist while a model is imported, with known lengths; the graph has tensors only."""

from __future__ import annotations

import numpy as np

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.tensors import dtype_of
from tc.frontend.onnx.values import (
    DeferredValue,
    ModelValue,
    OptionalValue,
    SequenceValue,
    StringsValue,
    constant_value,
)
from tc.ir.arith import prove
from tc.ir.expr import Const, Expr, const


def _sequence(n: NodeContext, index: int) -> SequenceValue:
    found = n.inputs[index] if index < len(n.inputs) else None
    if isinstance(found, OptionalValue):
        found = found.content
    if isinstance(found, DeferredValue):
        raise UnsupportedError(f"input {index} comes from {found.reason}", code="TC1017")
    if not isinstance(found, SequenceValue):
        raise NodeError(f"{n.op_type}: input {index} must be a sequence")
    return found


def _position(n: NodeContext, index: int, count: int, last: int) -> int | None:
    """A constant position in a sequence of `count`, at most `last` from its front; None when the input is absent."""
    found = n.ints(index, "the position")
    if found is None:
        return None
    if len(found) != 1:
        raise NodeError(f"{n.op_type}: the position (input {index}) has {len(found)} elements, must have one")
    place = found[0] + count if found[0] < 0 else found[0]
    if not 0 <= place <= last:
        raise NodeError(f"{n.op_type}: position {found[0]} in a sequence of {count}")
    return place


@onnx_op("SequenceConstruct")
def import_sequence_construct(n: NodeContext) -> NodeResult:
    return SequenceValue(tuple(n.values()))


@onnx_op("SequenceEmpty")
def import_sequence_empty(n: NodeContext) -> NodeResult:
    return SequenceValue((), dtype_of(n.attr("dtype", 1), "the attribute dtype"))


@onnx_op("SequenceLength")
def import_sequence_length(n: NodeContext) -> NodeResult:
    return constant_value(np.array(len(_sequence(n, 0).items), np.int64))


@onnx_op("SequenceAt")
def import_sequence_at(n: NodeContext) -> NodeResult:
    items = _sequence(n, 0).items
    place = _position(n, 1, len(items), len(items) - 1)
    if place is None:
        raise NodeError("SequenceAt: input 1, the position, is missing")
    return items[place]


@onnx_op("SequenceInsert")
def import_sequence_insert(n: NodeContext) -> NodeResult:
    items = list(_sequence(n, 0).items)
    place = _position(n, 2, len(items), len(items))
    items.insert(len(items) if place is None else place, n.value(1))
    return SequenceValue(tuple(items))


@onnx_op("SequenceErase")
def import_sequence_erase(n: NodeContext) -> NodeResult:
    items = list(_sequence(n, 0).items)
    place = _position(n, 1, len(items), len(items) - 1)
    if not items:
        raise NodeError("SequenceErase: the sequence is empty")
    del items[-1 if place is None else place]
    return SequenceValue(tuple(items))


@onnx_op("ConcatFromSequence")
def import_concat_from_sequence(n: NodeContext) -> NodeResult:
    items, axis = _sequence(n, 0).items, n.attr("axis")
    if not items:
        raise UnsupportedError("ConcatFromSequence of an empty sequence", code="TC1022")
    if not n.attr("new_axis", 0):
        return n.call("concat", *items, axis=axis)
    return n.call("concat", *(n.call("unsqueeze", item, axes=(axis,)) for item in items), axis=axis)


@onnx_op("SplitToSequence")
def import_split_to_sequence(n: NodeContext) -> NodeResult:
    x, axis = n.value(0), n.attr("axis", 0)
    if not -x.rank <= axis < x.rank:
        raise ShapeError(f"SplitToSequence: axis {axis} of {x.type}")
    axis %= x.rank
    sizes = _split_sizes(n, x, axis)
    parts = n.graph.call("split", x, span=n.span, names=[n.label] * len(sizes), axis=axis, sizes=tuple(sizes))
    if n.optional(1) is None and not n.attr("keepdims", 1):
        return SequenceValue(tuple(n.call("squeeze", part, axes=(axis,)) for part in parts))
    return SequenceValue(parts)


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
    if content is not None and not isinstance(content, (ModelValue, StringsValue, SequenceValue)):
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
        raise NodeError("OptionalGetElement: there is no element")
    return content
