"""Slices along an axis that are equal: sorted, so that equal ones follow each other, and numbered.

Slices are compared element by element. They are sorted by one element after the other, the last one first, each time stably; so among
equal ones the first one stays first. What is read off then: where groups of equal ones begin, and which group each slice is of. How many
groups there are is a size that data decide; their values, first places and lengths are gathers and differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import bounds, prove
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Expr, cast, const, equal, logical_and, not_equal
from tc.ir.graph import Attrs
from tc.ir.loop import If, Stmt, Store, While, seq
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, operand, require_equal, unravel
from tc.ops.registry import OpDef, current_facts, register
from tc.ops.sort import Pairs, order_key, sort
from tc.ops.statements import cell, get, grow, held, in_vectors, let, loop, put, scratch
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]

# -- groups


def _infer_groups(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x = operand(types, 0, "equal_slices")
    if x.rank != 3:
        raise ShapeError(f"equal_slices: the operand is {x}, must have 3 dims")
    size = x.shape[1]
    return TensorType((size,), i64), TensorType((size + 1,), i64), TensorType((const(1),), i64)


def _compute_groups(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    """The places of slices along the middle axis, sorted; where groups of equal ones begin among these, and the end of all wherever there
    is no group; how many groups there are. `one_nan`: not a number equals itself."""
    x = tensors[0]
    assert x is not None
    (outer, size, inner), facts = x.shape, current_facts()
    columns = outer * inner
    is_single = prove(equal(columns, 1), facts) is True

    def element(place: Expr, column: Expr) -> Expr:
        before, after = unravel(column, (outer, inner))
        return x[(before, place, after)]

    def body(order: Buffer, starts: Buffer, total: Buffer) -> Stmt:
        # Of several elements, places are in the order of those sorted by before: a key and a place must not be one number then.
        most = bounds(size, facts).hi if is_single else None
        pairs = Pairs.of(order_key(element(const(0), const(0))).dtype, most, te.maximum(size, const(1)))
        count, column, is_new = cell("found"), cell("column"), cell("is_new")

        def sorted_by(number: Expr) -> Stmt:
            def again(i: Expr) -> Stmt:
                def with_key(place: Expr) -> Stmt:
                    return pairs.store(i, pairs.made_of(order_key(element(place, columns - 1 - number)), place))

                return let(held(pairs.place(i), size), with_key)

            return seq(loop(size, again), sort(pairs))

        def differs(i: Expr) -> Stmt:
            if is_single and attrs.one_nan:
                return put(is_new, cast(not_equal(pairs.key(i), pairs.key(i - 1)), i64))

            def elements(place: Expr, earlier: Expr) -> Stmt:
                values = element(place, get(column)), element(earlier, get(column))
                if attrs.one_nan:
                    values = order_key(values[0]), order_key(values[1])
                compare = seq(put(is_new, cast(not_equal(*values), i64)), grow(column))
                return seq(put(is_new, 0), put(column, 0), While(logical_and(get(column) < columns, equal(get(is_new), 0)), compare))

            return let(held(pairs.place(i), size), lambda place: let(held(pairs.place(i - 1), size), lambda other: elements(place, other)))

        def look(i: Expr) -> Stmt:
            has_earlier = If(const(0) < i, differs(i), put(is_new, 1))
            return seq(has_earlier, Store(starts, (held(get(count), size + 1),), i), grow(count, get(is_new)))

        def place(i: Expr) -> Stmt:
            return Store(order, (i,), held(pairs.place(i), size))

        if is_single:
            fill = in_vectors(size, lambda i: pairs.store(i, pairs.made_of(order_key(element(i, const(0))), i)))
            by_all = seq(fill, sort(pairs))
        else:
            first = loop(size, lambda i: pairs.store(i, pairs.made_of(const(0, pairs.kind), i)))
            by_all = seq(first, loop(columns, sorted_by, "c"))
        rest = loop(size + 1 - held(get(count), size + 1), lambda i: Store(starts, (held(get(count) + i, size + 1),), size))
        return scratch(
            (*pairs.buffers, count, column, is_new),
            seq(
                *(put(pairs.side, 0), put(pairs.count, size), put(count, 0)),
                by_all,
                loop(size, place),
                loop(size, look),
                rest,
                Store(total, (const(0),), get(count)),
            ),
        )

    outputs = [("order", types[0].shape, i64), ("starts", types[1].shape, i64), ("total", types[2].shape, i64)]
    return te.raw(outputs, body, "equal_slices")


def _run_groups(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, ...]:
    x = arrays[0]
    assert x is not None
    size = x.shape[1]
    columns = np.moveaxis(x, 1, 0).reshape(size, x.shape[0] * x.shape[2]).T
    order = np.arange(size)
    for column in columns[::-1]:
        order = order[np.argsort(column[order], kind="stable")]
    same = columns[:, order[1:]] == columns[:, order[:-1]]
    if attrs.one_nan:
        is_nan = columns[:, order] != columns[:, order]
        same |= is_nan[:, 1:] & is_nan[:, :-1]
    begins = np.concatenate([np.zeros(min(size, 1), np.int64), 1 + np.flatnonzero(~same.all(axis=0))])
    starts = np.full(size + 1, size, np.int64)
    starts[: len(begins)] = begins
    return order.astype(np.int64), starts, np.array([len(begins)])


def _group_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for one_nan in (True, False):
        yield [rng.integers(0, 3, (2, 12, 2)).astype(np.float32)], {"one_nan": one_nan}
        yield [np.array([2.0, np.nan, -0.0, 2.0, 0.0, np.nan, -np.inf], np.float32).reshape(1, -1, 1)], {"one_nan": one_nan}
    yield [rng.integers(-9, 9, (1, 70, 1))], {}
    yield [rng.random((1, 6, 3)) < 0.5], {}
    yield [np.zeros((1, 0, 1), np.float32)], {}
    yield [np.zeros((2, 3, 0), np.float32)], {}


register(OpDef("equal_slices", _infer_groups, _run_groups, _compute_groups, {"one_nan": True}, samples=_group_samples))


# -- numbers of groups


def _infer_numbers(types: Types, attrs: Attrs) -> TensorType:
    order, starts = operand(types, 0, "group_numbers"), operand(types, 1, "group_numbers")
    if order.rank != 1 or starts.rank != 1:
        raise ShapeError(f"group_numbers: the operands are {order} and {starts}, must have 1 dim each")
    require_equal(starts.shape[0], order.shape[0] + 1, "group_numbers: the number of starts")
    return TensorType(order.shape, i64)


def _compute_numbers(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    """Which group each slice is of; the operands are of `equal_slices`.

    Where an operand is changed meanwhile numbers are of no use, but written where they belong.
    """
    order, starts = tensors[0], tensors[1]
    assert order is not None and starts is not None
    size = order.shape[0]

    def body(numbers: Buffer) -> Stmt:
        group = cell("group")

        def one(i: Expr) -> Stmt:
            is_next = equal(starts[(held(get(group) + 1, size + 1),)], i)
            return seq(grow(group, cast(is_next, i64)), Store(numbers, (held(order[(i,)], size),), held(get(group), size)))

        return scratch([group], seq(put(group, 0), loop(size, one)))

    return te.raw([("numbers", types[0].shape, i64)], body, "group_numbers")[0]


def _run_numbers(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    order, starts = arrays[0], arrays[1]
    assert order is not None and starts is not None
    begins = np.zeros(order.size + 1, np.int64)
    begins[starts] = 1
    numbers = np.empty(order.size, np.int64)
    numbers[order] = np.cumsum(begins[:-1]) - 1
    return numbers


def _number_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, attrs in _group_samples(rng):
        order, starts, _ = _run_groups(x, Attrs((("one_nan", attrs.get("one_nan", True)),)))
        yield [order, starts], {}


register(OpDef("group_numbers", _infer_numbers, _run_numbers, _compute_numbers, samples=_number_samples))
