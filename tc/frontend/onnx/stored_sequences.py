"""Sequences whose length data decide: their items lie one after the other in one tensor, and their shapes are the rows of another.

Both are tensors of the graph, so that a sequence grows in a loop, or comes out of a branch, as any other value of a size that the run
tells. All items are of one dtype and rank. Where that cannot be, the node is ONNX's reference's to run (`fallback`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np

from tc.errors import UnsupportedError
from tc.frontend.onnx.node_context import Calls
from tc.frontend.onnx.size_elements import make_elements
from tc.frontend.onnx.values import AnyValue, ModelValue, SequenceValue, StoredSequence, constant_value, elements_value
from tc.frontend.signature import PACKED_NAMES
from tc.ir.arith import prove
from tc.ir.dtype import DType, i64
from tc.ir.expr import Expr, as_expr, const, equal
from tc.ops.registry import Requirement


def item_rank(sequence: AnyValue | None) -> int | None:
    """The rank of the items of a sequence; None where there is none. UnsupportedError where they are not alike, or no sequence is."""
    match sequence:
        case StoredSequence():
            return sequence.rank
        case SequenceValue(items=items) if len({(item.dtype, item.rank) for item in items}) <= 1:
            return items[0].rank if items else None
    raise UnsupportedError("a sequence whose items are not of one dtype and rank", code="TC1017")


def item_dtype(sequence: SequenceValue | StoredSequence) -> DType:
    """The dtype of the items of a sequence that has some."""
    return sequence.elements.dtype if isinstance(sequence, StoredSequence) else sequence.items[0].dtype


def stored(c: Calls, sequence: AnyValue | None, rank: int, dtype: DType) -> StoredSequence:
    """A sequence as tensors. UnsupportedError where its items are not of the rank and dtype."""
    match sequence:
        case StoredSequence() if (sequence.rank, sequence.elements.dtype) == (rank, dtype):
            return sequence
        case SequenceValue(stack=ModelValue() as stack) if (stack.rank - 1, stack.dtype) == (rank, dtype):
            return parts_of(c, stack)
        case SequenceValue(items=items) if all((item.rank, item.dtype) == (rank, dtype) for item in items):
            rows = [dim for item in items for dim in item.shape]
            shapes = elements_value(make_elements(rows, (len(items), rank)), i64)
            empty = constant_value(np.empty(0, dtype.numpy))
            return StoredSequence(_joined(c, [_flat(c, item) for item in items]) if items else empty, shapes)
    raise UnsupportedError(f"a sequence that has to be of {dtype} tensors of rank {rank}, and is not", code="TC1017")


def parts_of(c: Calls, stack: ModelValue) -> StoredSequence:
    """The sequence of the parts along the first axis."""
    length, *dims = stack.shape
    row = elements_value(make_elements(dims, (1, len(dims))), i64)
    return StoredSequence(_flat(c, stack), c.call("expand", row, shape=(length, len(dims))), tuple(dims))


def followed_by(c: Calls, sequence: AnyValue | None, others: StoredSequence) -> StoredSequence:
    """A sequence with the items of another one behind its own. UnsupportedError where theirs are not of one dtype and rank."""
    if isinstance(sequence, SequenceValue) and not sequence.items:
        return others
    first = stored(c, sequence, others.rank, others.elements.dtype)
    ends = [first.dims] if isinstance(sequence, StoredSequence) else [item.shape for item in sequence.items]  # type: ignore[union-attr]
    dims = others.dims if all(are_same(c, end, others.dims) for end in ends) else None
    return StoredSequence(_joined(c, [first.elements, others.elements]), _joined(c, [first.shapes, others.shapes]), dims)


def are_same(c: Calls, dims: Sequence[Expr] | None, others: Sequence[Expr] | None) -> bool:
    """Whether two shapes of one rank are known, and known to be the same."""
    if dims is None or others is None:
        return False
    return all(prove(equal(a, b), c.facts) is True for a, b in zip(dims, others, strict=True))


Form = Union[None, tuple[int, DType], SequenceValue]
"""How a value of control flow is tensors: itself, or a sequence of such a rank and dtype; one that is empty, whatever runs, is none."""


def form_of(sequences: Sequence[AnyValue | None]) -> Form:
    """The form of what is one of these sequences."""
    for sequence in sequences:
        rank = item_rank(sequence)
        if rank is not None:
            assert isinstance(sequence, SequenceValue | StoredSequence), "it has items"
            return rank, item_dtype(sequence)
    return SequenceValue(())


def only_tensor(value: AnyValue | None) -> ModelValue:
    if not isinstance(value, ModelValue):
        raise UnsupportedError("control flow gives a sequence or an optional where a tensor is due", code="TC1018")
    return value


@dataclass(frozen=True)
class StoredForms:
    """Values of control flow as tensors, and back."""

    forms: Sequence[Form]

    def tensors(self, c: Calls, values: Sequence[AnyValue | None]) -> list[ModelValue]:
        found: list[ModelValue] = []
        for value, form in zip(values, self.forms, strict=True):
            if form is None:
                found.append(only_tensor(value))
            elif isinstance(form, tuple):
                sequence = stored(c, value, *form)
                found += [sequence.elements, sequence.shapes]
            elif item_rank(value) is not None:
                raise UnsupportedError("a loop puts something into a sequence later than in its first iteration", code="TC1018")
        return found

    def values(self, tensors: Sequence[ModelValue]) -> list[AnyValue]:
        """The inverse; tensors behind those of the forms follow as they are."""
        rest = iter(tensors)
        found: list[AnyValue] = []
        for form in self.forms:
            if isinstance(form, tuple):
                found.append(StoredSequence(next(rest), next(rest)))
            else:
                found.append(next(rest) if form is None else form)
        return [*found, *rest]

    def names(self, names: Sequence[str]) -> list[str]:
        """What the tensors are called, by the names of the values."""
        counts = (2 if isinstance(form, tuple) else int(form is None) for form in self.forms)
        return [name for name, count in zip(names, counts, strict=True) for _ in range(count)]


def packed_tensors(c: Calls, sequence: StoredSequence) -> tuple[ModelValue, ...]:
    """A sequence as the program's callers have it: `PACKED_NAMES`."""
    ranks = c.call("full", value=sequence.rank, dtype=i64, shape=(sequence.length,))
    found = {"elements": sequence.elements, "ranks": ranks, "dims": _flat(c, sequence.shapes)}
    return tuple(found[name] for name in PACKED_NAMES)


def from_packed(c: Calls, tensors: Sequence[ModelValue], rank: int, what: str) -> StoredSequence:
    """The inverse, of items that must be of a rank; checked when the model runs."""
    found = dict(zip(PACKED_NAMES, tensors, strict=True))
    length = found["ranks"].shape[0]
    message = f"{what}: an item is not of rank {rank}"
    c.graph.builder.require(Requirement(equal(found["dims"].shape[0], length * rank), message))
    others = c.call("cast", c.call("not_equal", found["ranks"], c.const(rank, i64)), dtype=i64)
    (count,) = _dims(c, c.call("sum", others, axes=None, keepdims=False), "other_ranks")
    c.graph.builder.require(Requirement(equal(count, 0), message))
    return StoredSequence(found["elements"], c.call("reshape", found["dims"], shape=(length, rank)))


# -- reading


def item(c: Calls, sequence: StoredSequence, position: ModelValue) -> ModelValue:
    """The item at a position, which is checked when the model runs; one below 0 counts from the end."""
    dims = sequence.dims
    if dims is not None and all(prove(dim >= 1, c.facts) is True for dim in dims):
        return c.call("gather", stacked(c, sequence, dims, 0), c.call("reshape", position, shape=()), axis=0)
    place = _place(c, position, sequence.length)  # where an item has no elements, nothing would look at its position
    if dims is not None:
        return c.call("reshape", _rows(c, stacked(c, sequence, dims, 0), place, const(1)), shape=dims)
    first, size = _extent(c, sequence, place)
    row = c.call("reshape", _rows(c, sequence.shapes, place, const(1)), shape=(sequence.rank,))
    return c.call("reshape", _rows(c, sequence.elements, first, size), shape=_dims(c, row, "shape"))


def common_dims(c: Calls, sequence: StoredSequence, but: int | None = None) -> tuple[Expr, ...]:
    """The dims of the items, which must be the same in all, but for one axis; checked when the model runs."""
    has_items = sequence.length >= 1
    if prove(has_items, c.facts) is not True:
        c.graph.builder.require(Requirement(has_items, f"{c.label}: the sequence is empty"))
    if sequence.dims is not None:
        return sequence.dims
    least, most = limits(c, sequence)
    low, high = _dims(c, least, "least"), _dims(c, most, "most")  # the dims of the result last: what it requires is checked behind this
    for axis, ends in enumerate(zip(low, high, strict=True)):
        if axis != but:
            c.graph.builder.require(Requirement(equal(*ends), f"{c.label}: the items of the sequence differ along axis {axis}"))
    return high


def limits(c: Calls, sequence: StoredSequence) -> tuple[ModelValue, ModelValue]:
    """i64[rank]: the least and the largest dim of the items along each axis."""
    least, most = (c.call(op, sequence.shapes, axes=(0,), keepdims=False) for op in ("min", "max"))
    return least, most


def total(c: Calls, sequence: StoredSequence, axis: int) -> Expr:
    """The sum of the dims of all items along an axis."""
    if sequence.dims is not None:
        return sequence.length * sequence.dims[axis]
    sums = c.call("sum", sequence.shapes, axes=(0,), keepdims=False)
    return _dims(c, c.call("slice", sums, starts=(axis,), sizes=(1,), steps=(1,)), "size")[0]


def stacked(c: Calls, sequence: StoredSequence, dims: Sequence[Expr], axis: int) -> ModelValue:
    """The items, all of shape `dims`, along a new axis."""
    order = list(range(1, sequence.rank + 1))
    order.insert(axis, 0)
    return c.call("transpose", c.call("reshape", sequence.elements, shape=(sequence.length, *dims)), perm=tuple(order))


# -- changing


def inserted(c: Calls, sequence: StoredSequence, value: ModelValue, position: ModelValue | None) -> StoredSequence:
    """With `value` at a position, or at the end."""
    if (value.rank, value.dtype) != (sequence.rank, sequence.elements.dtype):
        raise UnsupportedError(f"{value.type} in a sequence of {sequence.elements.dtype} tensors of rank {sequence.rank}", code="TC1017")
    row = elements_value(make_elements(list(value.shape), (1, value.rank)), i64)
    if position is None:
        return StoredSequence(_joined(c, [sequence.elements, _flat(c, value)]), _joined(c, [sequence.shapes, row]))
    place = _place(c, position, sequence.length, may_be_end=True)
    first = _start(c, sequence, place)
    return _around(c, sequence, place, first, place, first, [_flat(c, value)], [row])


def erased(c: Calls, sequence: StoredSequence, position: ModelValue | None) -> StoredSequence:
    """Without the item at a position, or the last one."""
    place = _place(c, c.const(-1, i64) if position is None else position, sequence.length)
    first, size = _extent(c, sequence, place)
    return _around(c, sequence, place, first, place + 1, first + size, [], [])


def _around(
    c: Calls,
    sequence: StoredSequence,
    place: Expr,
    first: Expr,
    next_place: Expr,
    following: Expr,
    elements: Sequence[ModelValue],
    rows: Sequence[ModelValue],
) -> StoredSequence:
    """What lies before an item and behind it, with other elements and rows between."""
    count, length = sequence.elements.shape[0], sequence.length
    parts = [_rows(c, sequence.elements, const(0), first), *elements, _rows(c, sequence.elements, following, count - following)]
    shapes = [_rows(c, sequence.shapes, const(0), place), *rows, _rows(c, sequence.shapes, next_place, length - next_place)]
    return StoredSequence(_joined(c, parts), _joined(c, shapes))


# -- places


def _place(c: Calls, position: ModelValue, length: Expr, may_be_end: bool = False) -> Expr:
    """A position as a dim, looked up in a table of those that there are: that checks it."""
    position = c.call("cast", c.call("reshape", position, shape=()), dtype=i64)
    if may_be_end:  # of one more than there are items, so that one from the end is one more from the end of the table
        position = c.call("where", c.call("less", position, c.const(0, i64)), c.call("sub", position, c.const(1, i64)), position)
    table = c.call("range", start=0, size=as_expr(length) + (1 if may_be_end else 0), step=1)
    return _dims(c, c.call("gather", table, position, axis=0), "position")[0]


def _extent(c: Calls, sequence: StoredSequence, place: Expr) -> tuple[Expr, Expr]:
    """Where the elements of an item begin, and how many they are."""
    return _start(c, sequence, place), _dims(c, _rows(c, _counts(c, sequence), place, const(1)), "size")[0]


def _start(c: Calls, sequence: StoredSequence, place: Expr) -> Expr:
    before = _rows(c, _counts(c, sequence), const(0), place)
    return _dims(c, c.call("sum", before, axes=None, keepdims=False), "start")[0]


def _counts(c: Calls, sequence: StoredSequence) -> ModelValue:
    """i64[length]: how many elements each item has."""
    return c.call("prod", sequence.shapes, axes=(1,), keepdims=False)


def _dims(c: Calls, value: ModelValue, what: str) -> tuple[Expr, ...]:
    return c.graph.dims(value, f"{c.label}.{what}", c.span)


def _flat(c: Calls, value: ModelValue) -> ModelValue:
    return c.call("reshape", value, shape=(value.type.num_elements,))


def _joined(c: Calls, parts: Sequence[ModelValue]) -> ModelValue:
    return c.call("concat", *parts, axis=0)


def _rows(c: Calls, value: ModelValue, first: Expr, count: Expr) -> ModelValue:
    """A part along the first axis."""
    rest = value.shape[1:]
    return c.call("slice", value, starts=(first, *[const(0)] * len(rest)), sizes=(count, *rest), steps=(1,) * value.rank)
