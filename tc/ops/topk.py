"""The first elements of an axis in order, on a CPU.

A row is read once, in blocks. An element that may be among the first ones is put behind those kept; when there is no more room they are
sorted, the first k stay, and the last of these is what later elements are compared with. So few elements are ever moved where k is
small, and where it is not all of them are sorted once. Sorts are stable, so of equal elements the first one comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tc import te
from tc.ir.arith import bounds, prove, simplify
from tc.ir.dtype import i64
from tc.ir.expr import FALSE, TRUE, Buffer, Const, Expr, Load, const, equal, logical_or
from tc.ir.graph import Attrs
from tc.ir.loop import If, Stmt, Store, seq
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, exprs, normalize_axis, operand
from tc.ops.registry import REQUIRED, OpDef, current_facts, register, require
from tc.ops.sort import FEW, Pairs, order_key, sort
from tc.ops.statements import LANES, cell, get, held, in_vectors, let, loop, loops_over_rows, put, scratch, vector_loops
from tc.ops.topk_lanes import Lines, first_of_lines, suit_lanes
from tc.te import Tensor

BLOCK = 32
"""Elements of which one test says that none of them is among the first, at most."""

LONG = 8
"""Times as many elements as there are groups of them: in so long a row it pays to look for a bound before any is kept."""

SPARE = 256
"""Elements more than twice those kept for which there is room between two sorts, at most."""


def first_of_row(size: Expr, k: Expr, key: Callable[[Expr], Expr], use: Callable[[Pairs], Stmt]) -> Stmt:
    """`use` the pairs, in order, that are the k first by `key(place)` among `size`; k is at most `size`."""
    kind, facts = key(const(0)).dtype, current_facts()
    spare = max(FEW - LANES, min(4 * int(k.value), SPARE)) if isinstance(k, Const) else SPARE
    block = BLOCK if spare >= BLOCK else LANES
    if isinstance(k, Const):  # what is no whole block and the first block, of which all may stay
        spare = max(spare, 2 * block - 2 * int(k.value))
    room = simplify(2 * k + spare, facts)
    takes_all = prove(size <= room, facts) is True
    if takes_all and isinstance(size, Const):
        room = te.maximum(size, const(1))
    pairs = Pairs.of(kind, bounds(size, facts).hi, room)
    start = seq(put(pairs.side, 0), put(pairs.count, 0))
    if takes_all:
        fill = in_vectors(size, lambda i: pairs.store(i, pairs.made_of(key(i), i)))
        return scratch(pairs.buffers, seq(start, fill, put(pairs.count, size), sort(pairs), use(pairs)))
    limit, near, least = cell("limit", kind), Buffer("near", (const(block),), kind), Buffer("least", (const(block // 2),), kind)
    first = size % block
    blocks = size // block

    def append(key: Expr, place: Expr) -> Stmt:
        return pairs.append(key, place, key <= get(limit))

    def look(b: Expr) -> Stmt:
        base = first + b * block
        whole = vector_loops(block, lambda i: Store(near, (i,), key(base + i)))
        halves, source, width = [], near, block // 2
        while width:
            halves.append(vector_loops(width, partial(_less_of_two, source, least, width)))
            source, width = least, width // 2
        has_one = Load(least, (const(0),)) <= get(limit)
        return seq(whole, *halves, If(has_one, loop(block, lambda i: let(Load(near, (i,)), lambda own: append(own, base + i), "key"))))

    def cut() -> Stmt:
        last = pairs.key(get(pairs.count) - 1)
        return seq(
            sort(pairs),
            put(pairs.count, te.minimum(get(pairs.count), k)),
            put(limit, te.maximum(last, const(1, kind)) - const(1, kind)),
        )

    def round_(b: Expr) -> Stmt:
        is_full = logical_or(equal(b, blocks), const(0) <= get(pairs.count) + block - room)
        return seq(If(b < blocks, look(b)), If(is_full, cut()))

    rest = loop(first, lambda i: let(key(i), lambda own: append(own, i), "key"))
    begin = seq(put(limit, const((1 << kind.bits) - 1, kind)), _bound(pairs, size, k, key, limit))
    fill = seq(begin, rest, loop(blocks + 1, round_, "b"))
    return scratch((*pairs.buffers, limit, near, least), seq(start, fill, use(pairs)))


def _bound(pairs: Pairs, size: Expr, k: Expr, key: Callable[[Expr], Expr], limit: Buffer) -> Stmt:
    """Lower the `limit` of a long row to a key that k others do not exceed: the k-th least of the least ones of groups of places.

    A group is every n-th place, so that in rows of any order few more than k keys are below. The pairs are none again.
    """
    if not isinstance(k, Const) or k.value < 1:
        return seq()
    groups = max(64, -(-5 * int(k.value) // (2 * LANES)) * LANES)
    if not isinstance(pairs.room, Const) or pairs.room.value < groups:
        return seq()
    mins = Buffer("mins", (const(groups),), pairs.kind)

    def row(j: Expr) -> Stmt:
        return vector_loops(groups, lambda i: Store(mins, (i,), te.minimum(Load(mins, (i,)), key(j * groups + i))))

    first = vector_loops(groups, lambda i: Store(mins, (i,), key(i)))
    rest = loop(size // groups - 1, lambda j: row(j + 1), "j")
    fill = loop(groups, lambda i: pairs.store(i, pairs.made_of(Load(mins, (i,)), i)))
    chosen = seq(put(pairs.count, groups), sort(pairs), put(limit, pairs.key(k - 1)), put(pairs.count, 0), put(pairs.side, 0))
    return If(const(LONG * groups) <= size, scratch([mins], seq(first, rest, fill, chosen)))


def _less_of_two(source: Buffer, target: Buffer, width: int, lane: Expr) -> Stmt:
    return Store(target, (lane,), te.minimum(Load(source, (lane,)), Load(source, (lane + width,))))


def _infer_topk(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x = operand(types, 0, "topk")
    axis = normalize_axis(attrs.axis, x.rank, "topk")
    (k,) = exprs((attrs.k,))
    require(k <= x.shape[axis], f"topk: k is {k}, but dim {axis} is {x.shape[axis]}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(shape, x.dtype), TensorType(shape, i64)


_RANKED = frozenset(map(np.dtype, ("f4", "f2", "i4", "i2", "i1", "u2", "u1")))
"""Types of which a value and a place fit 64 bits."""


def _select(x: np.ndarray, k: int, largest: bool) -> np.ndarray:
    """The places of the k largest or smallest along the last axis, in order, the first of equal ones first; NaN is the largest of all.

    By selection among numbers that are all different, a value and its place in each: in linear time, where sorting takes longer.
    """
    size = x.shape[-1]
    if x.dtype.kind == "f":
        plain = x.astype(np.float32) + np.float32(0)  # -0.0 is 0.0
        plain[np.isnan(plain)] = np.nan
        bits = plain.view(np.int32)
        ranks = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)
    else:
        ranks = x.astype(np.int64)
    places = np.arange(size, dtype=np.int64)
    keys = (ranks << 32) | (size - 1 - places if largest else places)
    if largest:
        found = np.sort(np.partition(keys, size - k, axis=-1)[..., size - k :], axis=-1)[..., ::-1]
        return size - 1 - (found & 0xFFFFFFFF)
    return np.sort(np.partition(keys, k - 1, axis=-1)[..., :k], axis=-1) & 0xFFFFFFFF


def _run_topk(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, np.ndarray]:
    x = arrays[0]
    assert x is not None
    k = int(attrs.k)
    if 0 < k < x.shape[attrs.axis] and x.dtype in _RANKED:
        order = _select(np.moveaxis(x, attrs.axis, -1), k, attrs.largest)
        order = np.moveaxis(order, -1, attrs.axis)
        return np.take_along_axis(x, order, attrs.axis), order
    if attrs.largest:  # a stable descending sort: ascending on the flipped array keeps ties in order
        order = np.flip(x.shape[attrs.axis] - 1 - np.argsort(np.flip(x, attrs.axis), attrs.axis, kind="stable"), attrs.axis)
    else:
        order = np.argsort(x, attrs.axis, kind="stable")
    order = np.take(order, np.arange(k), axis=attrs.axis)
    return np.take_along_axis(x, order, attrs.axis), order.astype(np.int64)


def _compute_topk(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    x = tensors[0]
    assert x is not None
    axis = normalize_axis(attrs.axis, len(x.shape), "topk")
    size, k, rows = x.shape[axis], types[0].shape[axis], (*x.shape[:axis], *x.shape[axis + 1 :])

    lines = Lines(x, axis, k, attrs.largest)

    def body(values: Buffer, indices: Buffer) -> Stmt:
        def row(*outer: Expr) -> Stmt:
            def at(place: Expr) -> tuple[Expr, ...]:
                return (*outer[:axis], place, *outer[axis:])

            def result(pairs: Pairs, j: Expr) -> Stmt:
                place = held(pairs.place(j), size)
                return seq(Store(values, at(j), x[at(place)]), Store(indices, at(j), place))

            return first_of_row(
                size, k, lambda place: order_key(x[at(place)], attrs.largest), lambda pairs: loop(k, lambda j: result(pairs, j))
            )

        in_lanes = suit_lanes(lines)
        if in_lanes is TRUE:
            return If(const(0) < k, first_of_lines(lines, values, indices))
        by_row = loops_over_rows(rows, size, row)
        return If(const(0) < k, by_row if in_lanes is FALSE else If(in_lanes, first_of_lines(lines, values, indices), by_row))

    return te.raw([("values", types[0].shape, x.dtype), ("indices", types[1].shape, i64)], body, "topk")


def _topk_samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    yield [rng.standard_normal((3, 6)).astype(np.float32)], {"k": 2}
    yield [rng.standard_normal((3, 6)).astype(np.float32)], {"k": 3, "axis": 0, "largest": False}
    yield [rng.integers(-9, 9, (2, 40))], {"k": 40}  # sorted by digits
    yield [rng.integers(0, 200, (1, 700)).astype(np.uint8)], {"k": 3, "sorted": False}  # with a cut in between
    yield [rng.standard_normal((2, 0)).astype(np.float32)], {"k": 0}
    yield [rng.integers(0, 5, (2, 9, 17)).astype(np.float32)], {"k": 3, "axis": 1}  # lines side by side, of which two groups share some
    yield [rng.integers(-9, 9, (9, 20)).astype(np.int8)], {"k": 18, "largest": False}  # rows as lanes, sorted whole
    yield [rng.integers(0, 9, (3, 40, 3))], {"k": 2, "axis": 1}


register(
    OpDef(
        "topk",
        _infer_topk,
        _run_topk,
        _compute_topk,
        {"k": REQUIRED, "axis": -1, "largest": True, "sorted": True},
        samples=_topk_samples,
    )
)
