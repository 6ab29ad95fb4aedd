"""Loops that combine numbers as a tree: the meaning of the hint `tree` on an unrolled loop.

    for k in unrolled(n, tree=1):
        for l in vectorized(16):
            A[l] = A[l] + P[k, l]

adds all P[k, l] of one l by a tree, and then their sum to A[l]. In each round number i is combined with number i + h, where h is half of
those there are, rounded up; what has no partner stays. A condition that depends on k leaves numbers out. Rounding errors then grow with
the logarithm of n rather than with n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tc.ir.dtype import DType, int_range
from tc.ir.expr import TRUE, Add, Const, Expr, Load, Lt, Max, Min, Mul, Select, Var, const, logical_and
from tc.ir.loop import For, If, LoopKind, Stmt, Store
from tc.ir.node import replace, walk
from tc.ir.uses import buffers_read

T = TypeVar("T")

@dataclass(frozen=True, eq=False)
class TreeLoop:
    """`store`, the one in `body`, is `old = old op value`, where `old` does not depend on `var`, the loop's variable.

    `body` is that of the loop without the conditions that depend on `var`: `value` has these. `operation` is the class of op; Select
    stands for the larger of two numbers where NaN does not count.
    """

    var: Var
    count: int
    body: Stmt
    store: Store
    operation: type[Expr]
    old: Expr
    value: Expr


def as_tree_loop(loop: For) -> TreeLoop | None:
    """What an unrolled loop with the hint `tree` combines; None for one that has to run as it is written."""
    if not loop.hints.tree or loop.kind is not LoopKind.UNROLLED or not isinstance(loop.extent, Const):
        return None
    found = _only_store(loop.body, loop.var)
    if found is None or _mentions(found[1].indices, loop.var):
        return None
    body, store, condition = found
    state = Load(store.buffer, store.indices)
    match store.value:
        case Select(condition=Lt(lhs=old, rhs=new), true_value=kept) if kept is new and store.value.false_value is old:
            operation: type[Expr] = Select
        case Add(lhs=old, rhs=new) | Mul(lhs=old, rhs=new) | Min(lhs=old, rhs=new) | Max(lhs=old, rhs=new):
            operation = type(store.value)
        case _:
            return None
    if old is not state or loop.extent.value < 1 or not (new.dtype.is_float or _is_extreme_of_integers(operation, new.dtype)):
        return None
    if any(store.buffer in buffers_read(part) for part in (new, condition, *store.indices, *_conditions(body))):
        return None
    if condition is not TRUE:
        new = Select(condition, new, const(_identity(operation, new.dtype), new.dtype))
    return TreeLoop(loop.var, int(loop.extent.value), body, store, operation, old, new)


def _is_extreme_of_integers(operation: type[Expr], dtype: DType) -> bool:
    """Whether integers are combined to one of them: sums of integers, which wrap, are added in any order by whoever compiles them."""
    return operation in (Min, Max) and dtype.kind in ("int", "uint")


def _identity(operation: type[Expr], dtype: DType) -> float | int:
    """What changes nothing that it is combined with."""
    return _IDENTITY[operation] if dtype.is_float else int_range(dtype)[operation is Min]


_IDENTITY = {Add: 0.0, Mul: 1.0, Min: float("inf"), Max: float("-inf"), Select: float("-inf")}


def _conditions(stmt: Stmt) -> list[Expr]:
    """The conditions around the one store of a statement."""
    match stmt:
        case If(condition=condition, then_body=body):
            return [condition, *_conditions(body)]
        case For(body=body):
            return _conditions(body)
    return []


def as_square(loop: For) -> tuple[For, Store] | None:
    """What an unrolled loop with the hint `transpose` copies: the vectorized loop in it, and the store of the one element.

        for i in unrolled(n, transpose=1):
            for j in vectorized(n):
                A[...] = x

    All of the square may be read before any of it is stored: x reads nothing of A, and each element is stored to a place that
    depends on j. Or the rows are shorter than there are rows. None for a loop that has to run as it is written.
    """
    inner, count = loop.body, loop.extent
    if not loop.hints.transpose or loop.kind is not LoopKind.UNROLLED or not isinstance(inner, For):
        return None
    if inner.kind is not LoopKind.VECTORIZED or not isinstance(inner.extent, Const) or not isinstance(count, Const):
        return None
    store, size = inner.body, int(count.value)
    if size & (size - 1) or not 2 <= int(inner.extent.value) <= size:
        return None
    if not isinstance(store, Store) or not _mentions(store.indices, inner.var):
        return None
    if any(store.buffer in buffers_read(part) for part in (store.value, *store.indices)):
        return None
    return inner, store


def _only_store(stmt: Stmt, var: Var) -> tuple[Stmt, Store, Expr] | None:
    """A statement around one store without the conditions that depend on `var`, the store, and these conditions."""
    match stmt:
        case Store():
            return stmt, stmt, TRUE
        case For(extent=extent, body=body, kind=LoopKind.VECTORIZED | LoopKind.UNROLLED) if not _mentions((extent,), var):
            condition: Expr = TRUE
        case If(condition=condition, then_body=body, else_body=None):
            pass
        case _:
            return None
    found = _only_store(body, var)
    if found is None:
        return None
    inner, store, conditions = found
    if isinstance(stmt, If) and _mentions((condition,), var):
        return inner, store, logical_and(condition, conditions)
    return replace(stmt, **{"then_body" if isinstance(stmt, If) else "body": inner}), store, conditions


def _mentions(exprs: Sequence[Expr], var: Var) -> bool:
    return any(node is var for expr in exprs for node in walk(expr))


def combine_tree(count: int, leaf: Callable[[int], T], combine: Callable[[T, T], T]) -> T:
    """The tree over leaves 0 to `count` - 1. A leaf is asked for when it is needed, so that few values are alive at once."""
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)

    def node(level: int, number: int) -> T:
        if level == 0:
            return leaf(number)
        other = number + sizes[level]
        value = node(level - 1, number)
        return combine(value, node(level - 1, other)) if other < sizes[level - 1] else value

    return node(len(sizes) - 1, 0)
