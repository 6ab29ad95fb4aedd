"""Loops written out: cells, scratch and loops of which operators are made that no single expression says, for `te.raw`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tc import te
from tc.ir.dtype import DType, i64
from tc.ir.expr import Buffer, Const, Expr, Load, Var, ceildiv, const
from tc.ir.loop import Alloc, For, If, Let, LoopKind, Stmt, Store, seq
from tc.ir.types import product
from tc.ops.common import unravel

LANES = 16

PER_TASK = 8192
"""Elements of rows that a thread takes at least."""


def cell(name: str, dtype: DType = i64) -> Buffer:
    """A number that changes."""
    return Buffer(name, (), dtype)


def get(place: Buffer) -> Expr:
    return Load(place, ())


def put(place: Buffer, value: Expr | int) -> Stmt:
    return Store(place, (), value if isinstance(value, Expr) else const(value, place.dtype))


def grow(place: Buffer, by: Expr | int = 1) -> Stmt:
    return put(place, get(place) + by)


def loop(extent: Expr | int, body: Callable[[Expr], Stmt], name: str = "i", kind: LoopKind = LoopKind.SERIAL) -> Stmt:
    var = Var(name, i64)
    return For(var, extent if isinstance(extent, Expr) else const(extent), body(var), kind)


def let(value: Expr, body: Callable[[Expr], Stmt], name: str = "x") -> Stmt:
    var = Var(name, value.dtype)
    return Let(var, value, body(var))


def scratch(buffers: Sequence[Buffer], body: Stmt) -> Stmt:
    for buffer in reversed(buffers):
        body = Alloc(buffer, body)
    return body


def held(index: Expr, size: Expr | int) -> Expr:
    """An index that is in range as the algorithm has it: holding it there costs less than a check."""
    return te.maximum(te.minimum(index, (size if isinstance(size, Expr) else const(size)) - 1), const(0))


def in_vectors(size: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
    """`body(i)` for i < `size`, of which LANES at once where there are as many."""
    whole = size // LANES
    return seq(
        loop(whole, lambda b: loop(LANES, lambda i: body(b * LANES + i), "lane", LoopKind.VECTORIZED), "b"),
        loop(size - whole * LANES, lambda i: body(whole * LANES + i)),
    )


def vector_loops(count: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """`body(i)` for i < `count`, of which LANES at once."""
    lanes = min(count, LANES)
    return seq(*(loop(lanes, lambda i, base=base: body(base + i), "lane", LoopKind.VECTORIZED) for base in range(0, count, lanes)))


def loops_over_rows(rows: Sequence[Expr], size: Expr, body: Callable[..., Stmt]) -> Stmt:
    """`body(*axes)` for all rows, each of `size` elements, by several threads where there is work for them."""
    total = product(rows)
    if isinstance(total, Const) and (total.value <= 1 or (isinstance(size, Const) and total.value * size.value <= PER_TASK)):
        return loop(total, lambda row: body(*(unravel(row, rows) if rows else ())), "row")
    per = te.maximum(const(PER_TASK) // te.maximum(size, const(1)), const(1))

    def task(number: Expr) -> Stmt:
        def one(j: Expr) -> Stmt:
            row = number * per + j
            return If(row < total, body(*unravel(row, rows)))

        return loop(per, one, "row")

    return loop(ceildiv(total, per), task, "task", LoopKind.PARALLEL)
