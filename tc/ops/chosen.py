"""Where a tensor is not zero: results of a size that data decide, in two steps between which that size is read.

First each block of elements counts its own, and where each block's are to begin is their running sum. Then, the total being a dim, each
block gathers its places and copies them there. Blocks do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.arith import bounds
from tc.ir.dtype import i32, i64
from tc.ir.expr import Buffer, Const, Expr, Load, cast, ceildiv, const, logical_and, not_equal
from tc.ir.graph import Attrs
from tc.ir.hints import LoopHints
from tc.ir.loop import For, If, LoopKind, Stmt, Store, seq
from tc.ir.node import replace
from tc.ir.types import TensorType, product
from tc.ops.common import Arrays, Tensors, Types, exprs, ints, operand, require_equal, unravel
from tc.ops.registry import REQUIRED, OpDef, current_facts, register
from tc.ops.statements import LANES, cell, get, grow, held, in_vectors, let, loop, put, scratch, vector_loops
from tc.te import Tensor

Sample = tuple[list["np.ndarray | None"], dict[str, Any]]

BLOCK = 2048
"""Elements that are counted, and whose places are copied, as one."""

GRAIN = 8
"""Blocks that a thread takes at least."""

GROUP = 2 * LANES
"""Elements that are passed over together where all of them are zero."""


def _blocks(size: Expr) -> Expr:
    return ceildiv(size, BLOCK)


def _loop_over_blocks(size: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
    count = _blocks(size)
    if isinstance(count, Const) and count.value <= GRAIN:
        return loop(count, body, "b")
    nest = loop(count, body, "b", LoopKind.PARALLEL)
    assert isinstance(nest, For)
    return replace(nest, hints=LoopHints(grain=GRAIN))


def _is_set(x: Tensor, place: Expr) -> Expr:
    return not_equal(x[(place,)], const(0, x.dtype))


# -- counting


def _infer_count(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x = operand(types, 0, "count_nonzero")
    if x.rank != 1:
        raise ShapeError(f"count_nonzero: the operand is {x}, must have 1 dim")
    return TensorType((_blocks(x.shape[0]) + 1,), i64), TensorType((const(1),), i64)


def _compute_count(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Tensor, ...]:
    """Where each block's begin among all that are not zero, and behind the last block's; how many there are."""
    x = tensors[0]
    assert x is not None
    size = x.shape[0]

    def body(starts: Buffer, total: Buffer) -> Stmt:
        def block(b: Expr) -> Stmt:
            sums, count = Buffer("sums", (const(LANES),), i32), cell("count")

            def add(lane: Expr, place: Expr) -> Stmt:
                return Store(sums, (lane,), Load(sums, (lane,)) + cast(_is_set(x, place), i32))

            own = te.minimum(size - b * BLOCK, const(BLOCK))
            groups = own // LANES
            clear = vector_loops(LANES, lambda lane: Store(sums, (lane,), const(0, i32)))
            whole = loop(groups, lambda g: vector_loops(LANES, lambda lane: add(lane, b * BLOCK + g * LANES + lane)), "g")
            rest = loop(own - groups * LANES, lambda i: grow(count, cast(_is_set(x, b * BLOCK + groups * LANES + i), i64)))
            joined = loop(LANES, lambda lane: grow(count, cast(Load(sums, (lane,)), i64)))
            return scratch([sums, count], seq(clear, whole, put(count, 0), rest, joined, Store(starts, (b + 1,), get(count))))

        def add_up(b: Expr) -> Stmt:
            return seq(grow(so_far, Load(starts, (b + 1,))), Store(starts, (b + 1,), get(so_far)))

        so_far = cell("so_far")
        summed = seq(put(so_far, 0), Store(starts, (const(0),), const(0)), loop(_blocks(size), add_up, "b"))
        return seq(_loop_over_blocks(size, block), scratch([so_far], seq(summed, Store(total, (const(0),), get(so_far)))))

    return te.raw([("starts", types[0].shape, i64), ("total", types[1].shape, i64)], body, "count_nonzero")


def _run_count(arrays: Arrays, attrs: Attrs) -> tuple[np.ndarray, np.ndarray]:
    x = arrays[0]
    assert x is not None
    counts = [np.count_nonzero(x[start : start + BLOCK]) for start in range(0, x.size, BLOCK)]
    starts = np.cumsum([0, *counts], dtype=np.int64)
    return starts, starts[-1:].copy()


def _vectors(rng: np.random.Generator) -> Iterator[np.ndarray]:
    yield np.array([0.0, -0.0, np.nan, np.inf, 1e-45, 2.0, 0.0], np.float32)
    yield rng.random(68) < 0.2
    yield rng.integers(0, 2, 2 * BLOCK + 100).astype(np.uint8)
    yield np.zeros(40, np.int64)
    yield np.zeros(0, np.int32)


register(
    OpDef(
        "count_nonzero",
        _infer_count,
        _run_count,
        _compute_count,
        samples=lambda rng: iter([([x], {}) for x in _vectors(rng)]),
    )
)


# -- places


def _infer_at(types: Types, attrs: Attrs) -> TensorType:
    x, starts = operand(types, 0, "nonzero_at"), operand(types, 1, "nonzero_at")
    if x.rank != 1 or starts.rank != 1:
        raise ShapeError(f"nonzero_at: the operands are {x} and {starts}, must have 1 dim each")
    require_equal(starts.shape[0], _blocks(x.shape[0]) + 1, "nonzero_at: the number of starts")
    require_equal(product(exprs(attrs.shape)), x.shape[0], "nonzero_at: the number of elements")
    (count,) = exprs((attrs.count,))
    return TensorType((const(len(attrs.shape)), count), i64)


def _compute_at(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    """The places in a tensor of shape `shape`, one a column, of which there are `count`; `starts` is of `count_nonzero`.

    Where an operand is changed meanwhile places are of no use, but written where they belong.
    """
    x, starts = tensors[0], tensors[1]
    assert x is not None and starts is not None
    size, dims, (count,) = x.shape[0], exprs(attrs.shape), exprs((attrs.count,))
    most = bounds(size, current_facts()).hi
    number = i32 if most is not None and most < 1 << 31 else i64  # divided in vectors, which numbers of 64 bits are not

    def body(out: Buffer) -> Stmt:
        def block(b: Expr) -> Stmt:
            found, have = Buffer("found", (const(BLOCK),), i32), cell("have")
            flags, any_ = Buffer("flags", (const(GROUP),), i32), Buffer("any", (const(GROUP // 2),), i32)
            own = te.minimum(size - b * BLOCK, const(BLOCK))
            groups = own // GROUP

            def keep(place: Expr, is_set: Expr) -> Stmt:
                return seq(Store(found, (held(get(have), BLOCK),), cast(place, i32)), grow(have, is_set))

            def group(g: Expr) -> Stmt:
                first = g * GROUP
                halves, source, width = [], flags, GROUP // 2
                while width:
                    halves.append(vector_loops(width, partial(_either, source, any_, width)))
                    source, width = any_, width // 2
                return seq(
                    vector_loops(GROUP, lambda i: Store(flags, (i,), cast(_is_set(x, b * BLOCK + first + i), i32))),
                    *halves,
                    If(
                        not_equal(Load(any_, (const(0),)), const(0, i32)),
                        loop(GROUP, lambda i: keep(first + i, cast(Load(flags, (i,)), i64))),
                    ),
                )

            rest = loop(own - groups * GROUP, lambda i: keep(groups * GROUP + i, cast(_is_set(x, b * BLOCK + groups * GROUP + i), i64)))
            gather = seq(put(have, 0), loop(groups, group, "g"), rest)

            def copy(start: Expr, end: Expr) -> Stmt:
                def one(j: Expr) -> Stmt:
                    place = cast(Load(found, (j,)), number) + cast(b * BLOCK, number)
                    parts = unravel(place, [cast(dim, number) for dim in dims])
                    return seq(*(Store(out, (const(d), start + j), cast(part, i64)) for d, part in enumerate(parts)))

                fits = logical_and(const(0) <= start, start <= end, end <= count, end - start <= BLOCK)
                return If(fits, in_vectors(end - start, one))

            ends = let(starts[(b,)], lambda start: let(starts[(b + 1,)], lambda end: copy(start, end), "end"), "start")
            return scratch([found, have, flags, any_], seq(gather, ends))

        return _loop_over_blocks(size, block)

    return te.raw([("nonzero", types[0].shape, i64)], body, "nonzero_at")[0]


def _either(source: Buffer, target: Buffer, width: int, lane: Expr) -> Stmt:
    return Store(target, (lane,), te.maximum(Load(source, (lane,)), Load(source, (lane + width,))))


def _run_at(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    assert x is not None
    shape = ints(attrs.shape)
    return np.array(np.nonzero(x.reshape(shape)), np.int64).reshape(len(shape), int(attrs.count))


def _at_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x in _vectors(rng):
        for shape in ((x.size,), (x.size // 2, 2), (1, x.size, 1)):
            if int(np.prod(shape)) == x.size:
                yield [x, _run_count([x], Attrs(()))[0]], {"shape": shape, "count": int(np.count_nonzero(x))}


register(OpDef("nonzero_at", _infer_at, _run_at, _compute_at, {"shape": REQUIRED, "count": REQUIRED}, samples=_at_samples))
