"""How much a PrimFunc computes and moves, counted from its loops: never from the name of an operator.

Count the function as it was lowered. A schedule may compute values twice or keep them, but what must be done stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tc.errors import TcError
from tc.ir.arith import evaluate
from tc.ir.expr import BinaryExpr, Buffer, Checked, CompareExpr, Expr, Load, MathCall, Var
from tc.ir.loop import Block, For, If, IntrinsicCall, PrimFunc, Stmt, Store, While, inner_statements
from tc.ir.node import Node, children


@dataclass(frozen=True)
class Work:
    """`flops`: operations on values from memory; a multiply-add is two. `size_bytes`: what enters and leaves at least.

    Sums, differences, products, quotients, minima, maxima, comparisons and calls of functions (however long they take) count one
    each; index arithmetic, selections and conversions count nothing. A buffer that the caller gave counts once with all its
    elements, or with as many as the loops touch when these are fewer; the function's own buffers count nothing.
    """

    flops: int = 0
    size_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.size_bytes + other.size_bytes)

    def seconds_at(self, flops_per_s: float, bytes_per_s: float) -> float:
        """The least time at these rates, if computing and moving overlap: the roofline."""
        return max(self.flops / flops_per_s, self.size_bytes / bytes_per_s)

    def bound_by(self, flops_per_s: float, bytes_per_s: float) -> str:
        """Which of the two takes longer at these rates."""
        return "compute" if self.flops / flops_per_s > self.size_bytes / bytes_per_s else "memory"


def count_work(func: PrimFunc, dims: Mapping[Var, int] | None = None) -> Work | None:
    """The work of one call with these dims; None when it depends on data (a run-time extent, a `while`, an intrinsic)."""
    env = dims or {}
    try:
        stores = list(_stores(func.body, 1, env))
        flops = sum(times * _operations(store.value) for times, store in stores)
        touched = dict.fromkeys(func.buffers, 0)
        for times, store in stores:
            for buffer in _touched(store):
                if buffer in touched:
                    touched[buffer] += times
        moved = (min(times, _elements(buffer, env)) * buffer.dtype.size_bytes for buffer, times in touched.items())
        return Work(flops, sum(moved))
    except _UnknownError:
        return None


def bind_dims(func: PrimFunc, values: tuple[int, ...]) -> dict[Var, int]:
    """The dims of `func` as the caller passes them."""
    return dict(zip(func.dims, values, strict=True))


class _UnknownError(Exception):
    """The work depends on data."""


def _stores(stmt: Stmt, times: int, env: Mapping[Var, int]) -> Iterator[tuple[int, Store]]:
    """Every store, and how often it runs. Both sides of an `If` count, the `init` of a reduction does not."""
    match stmt:
        case Store():
            yield times, stmt
        case For(extent=extent, body=body):
            yield from _stores(body, times * max(_value(extent, env), 0), env)
        case Block(body=body):
            yield from _stores(body, times, env)
        case While() | IntrinsicCall():
            raise _UnknownError
        case If(then_body=first, else_body=second):
            yield from _stores(first, times, env)
            if second is not None:
                yield from _stores(second, times, env)
        case _:
            for child in inner_statements(stmt):
                yield from _stores(child, times, env)


def _operations(value: Expr) -> int:
    """Operations in `value` on what is loaded, those that occur twice counted once."""
    depends_on_load: dict[Node, bool] = {}
    total = 0

    def visit(expr: Node) -> bool:
        nonlocal total
        if expr not in depends_on_load:
            parts = [visit(child) for child in _computed(expr) if isinstance(child, Expr)]
            depends_on_load[expr] = isinstance(expr, Load) or any(parts)
            total += any(parts) and isinstance(expr, BinaryExpr | CompareExpr | MathCall)
        return depends_on_load[expr]

    visit(value)
    return total


def _computed(expr: Node) -> Sequence[Node]:
    """What an expression is computed from; indices and their checks do not count."""
    match expr:
        case Load():
            return ()
        case Checked(value=value):
            return (value,)
    return children(expr)


def _touched(store: Store) -> Iterator[Buffer]:
    """The buffer written, and each load's, those in indices too."""
    yield store.buffer
    loads: dict[Load, None] = {}
    stack: list[Node] = [store.value, *store.indices]
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            loads.setdefault(node)
        stack += children(node)
    yield from (load.buffer for load in loads)


def _elements(buffer: Buffer, env: Mapping[Var, int]) -> int:
    total = 1
    for extent in buffer.shape:
        total *= _value(extent, env)
    return total


def _value(expr: Expr, env: Mapping[Var, int]) -> int:
    try:
        return int(evaluate(expr, env))
    except TcError:
        raise _UnknownError from None
