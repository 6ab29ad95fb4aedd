"""Buffers of a block of which each thread keeps its own part: the threads' digits come off their indices.

    C: f32[64, 64], 16 x 16 threads of 4 x 4 elements                   C: f32[4, 4] of each thread
    C[ty * 4 + i, j * 16 + tx]                                   =>     C[i, j]

An index is a number whose digits are loops and threads. Where the threads' digits are at the same place in every access and tell the
thread, no two threads touch one element, and what is left of the index tells the elements of one thread apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tc.errors import ScheduleError
from tc.ir.arith import Facts, simplify
from tc.ir.bounds import bounds, poly_bounds
from tc.ir.columns import column, grid
from tc.ir.expr import Buffer, Const, Eq, Expr, Load, Lt, Var, conjuncts, const
from tc.ir.loop import For, If, Stmt, Store, WarpCall, walk_statements
from tc.ir.node import Node, binders, children, map_children, replace
from tc.ir.polynomial import Polynomial, polynomial
from tc.ir.uses import variables


@dataclass(frozen=True)
class _Digit:
    """The threads' part of an index: `value`, less than `size`, times `weight`."""

    weight: int
    size: int
    value: Expr


@dataclass(frozen=True, eq=False)
class _Access:
    """A load or a store: its indices, what is known there, and the conditions on threads alone."""

    node: Load | Store
    facts: Facts
    conditions: tuple[Expr, ...]


def keep_apart(name: str, body: Stmt, buffer: Buffer, threads: Mapping[Var, int], facts: Facts) -> tuple[Buffer, Stmt]:
    """The part of a buffer that is each thread's own, and the body with it. ScheduleError where the threads' parts are not told apart.

    Digits are as large as all threads of the launch make them, or, where that does not fit, the threads that conditions leave.
    """
    if buffer not in binders(body):
        return replace(buffer, shape=(const(0),) * len(buffer.shape)), body
    for inside in (_inside_of_all, _inside):
        found = list(_accesses(body, buffer, threads, facts, (), inside))
        digits = _of_one_size([_digits(access, threads) for access in found], found)
        if digits[0] is not None and all(each == digits[0] for each in digits):
            break
    for access, each in zip(found, digits, strict=True):
        text = f"{buffer.name}[{', '.join(map(str, access.node.indices))}]"
        if each is None:
            raise ScheduleError(f"{name}: {buffer.name} is each thread's own, but which part of it a thread touches is not clear: {text}")
        if each != digits[0]:
            first = f"{buffer.name}[{', '.join(map(str, found[0].node.indices))}]"
            raise ScheduleError(f"{name}: {buffer.name} is each thread's own, but {first} and {text} are of different threads")
    assert digits[0] is not None
    _check_apart(name, buffer, found, digits[0], threads)
    return _stripped(body, buffer, found, digits[0], facts, inside)


Inside = Callable[[Node, Node, Facts], Facts]
"""What is known in a part of a statement, from what is known at the statement."""


def _accesses(
    stmt: Node, buffer: Buffer, threads: Mapping[Var, int], facts: Facts, conditions: tuple[Expr, ...], inside: Inside
) -> Iterator[_Access]:
    if buffer not in binders(stmt):
        return
    if isinstance(stmt, (Load, Store)) and stmt.buffer is buffer:
        yield _Access(stmt, facts, conditions)
    for child in children(stmt):
        under = conditions
        if isinstance(stmt, If) and child is stmt.then_body:
            under = (*conditions, *(part for part in conjuncts(stmt.condition) if variables(part) <= threads.keys()))
        yield from _accesses(child, buffer, threads, inside(stmt, child, facts), under, inside)


def _inside_of_all(stmt: Node, child: Node, facts: Facts) -> Facts:
    """`Inside` by the loops alone."""
    return facts.with_range(stmt.var, stmt.extent) if isinstance(stmt, For) and child is stmt.body else facts


def _inside(stmt: Node, child: Node, facts: Facts) -> Facts:
    """`Inside` by loops and conditions."""
    if isinstance(stmt, For) and child is stmt.body:
        return facts.with_range(stmt.var, stmt.extent)
    if isinstance(stmt, If) and child is stmt.then_body:
        for part in conjuncts(stmt.condition):
            match part:
                case Lt(lhs=Var() as var, rhs=Const() as extent):
                    facts = facts.with_range(var, extent)
                case Eq(lhs=Var() as var, rhs=Const(value=0)):
                    facts = facts.with_range(var, const(1))
                case _:
                    facts = facts.assume(part)
    return facts


Digits = tuple[tuple[_Digit, ...], ...]
"""Of each index the threads' digits, the highest first."""


def _digits(access: _Access, threads: Mapping[Var, int]) -> Digits | None:
    result = []
    for index in access.node.indices:
        own: list[_Digit] = []
        for monomial, weight in polynomial(simplify(index, access.facts)).terms.items():
            used = frozenset[Var]().union(*map(variables, monomial))
            if not used & threads.keys():
                continue
            value = monomial[0]
            size = bounds(value, access.facts).hi
            if len(monomial) > 1 or not used <= threads.keys() or weight <= 0 or bounds(value, access.facts).lo != 0 or size is None:
                return None
            own.append(_Digit(weight, size + 1, value))
        result.append(tuple(sorted(own, key=lambda digit: -digit.weight)))
    return tuple(result) if all(_rest(index, own, access.facts) for index, own in zip(access.node.indices, result, strict=True)) else None


def _of_one_size(digits: list[Digits | None], found: list[_Access]) -> list[Digits | None]:
    """The digits of all accesses, as large as the largest where they differ in nothing else: conditions say less of some than of others."""
    known = [each for each in digits if each is not None]
    if len(known) < len(digits) or len({tuple(tuple((d.weight, d.value) for d in own) for own in each) for each in known}) != 1:
        return digits
    joined = tuple(tuple(max(alike, key=lambda digit: digit.size) for alike in zip(*own, strict=True)) for own in zip(*known, strict=True))
    fits = all(_rest(index, own, access.facts) for access in found for index, own in zip(access.node.indices, joined, strict=True))
    return [joined] * len(digits) if fits else digits


def _rest(index: Expr, digits: tuple[_Digit, ...], facts: Facts) -> Polynomial | None:
    """The index without the threads' digits, the higher ones moved down; None when they are no digits of it."""
    poly = polynomial(simplify(index, facts))
    for digit in digits:
        poly = poly.minus(polynomial(digit.value).scaled(digit.weight))
    for digit in digits:
        span = digit.weight * digit.size
        high = Polynomial({m: c for m, c in poly.terms.items() if c % span == 0}, poly.constant // span * span)
        low = poly.minus(high)
        ends = poly_bounds(low, facts)
        if ends.lo is None or ends.lo < 0 or ends.hi is None or ends.hi >= digit.weight:
            return None
        poly = low.plus(Polynomial({m: c // digit.size for m, c in high.terms.items()}, high.constant // digit.size))
    return poly


def _check_apart(name: str, buffer: Buffer, found: list[_Access], digits: Digits, threads: Mapping[Var, int]) -> None:
    """The digits are different for any two threads that touch the buffer at all."""
    values = grid(dict(threads))
    count = len(next(iter(values.values())))
    running = np.zeros(count, bool)
    for access in found:
        holds = [column(condition, values) for condition in access.conditions]
        running |= np.logical_and.reduce([np.ones(count, bool), *(each for each in holds if each is not None)])
    rows = [column(digit.value, values) for own in digits for digit in own]
    assert all(row is not None for row in rows), "a digit is made of threads"
    table = np.array([np.broadcast_to(row, count)[running] for row in rows if row is not None]).reshape(len(rows), -1)
    if np.unique(table, axis=1).shape[1] < running.sum() and (rows or running.sum() > 1):
        text = f"{buffer.name}[{', '.join(map(str, found[0].node.indices))}]"
        raise ScheduleError(f"{name}: {buffer.name} is each thread's own, but several threads touch the same element: {text}")


def _stripped(
    body: Stmt, buffer: Buffer, found: list[_Access], digits: Digits, facts: Facts, inside: Inside
) -> tuple[Buffer, Stmt]:
    sizes = [1] * len(buffer.shape)
    for access in found:
        for k, rest in enumerate(_rests(access.node.indices, digits, access.facts)):
            last = poly_bounds(rest, access.facts).hi
            sizes[k] = max(sizes[k], _whole(buffer.shape[k], digits[k]) if last is None else last + 1)
    if buffer in _of_warps(body):  # registers follow those that are named
        sizes[-1] = _whole(buffer.shape[-1], digits[-1])
    small = replace(buffer, shape=tuple(map(const, sizes)))

    def visit(node: Node, known: Facts) -> Node:
        if buffer not in binders(node):
            return node
        changed = map_children(node, lambda child: child if isinstance(child, Buffer) else visit(child, inside(node, child, known)))
        if isinstance(changed, (Load, Store)) and changed.buffer is buffer:
            return replace(changed, buffer=small, indices=tuple(rest.to_expr() for rest in _rests(changed.indices, digits, known)))
        return changed

    return small, visit(body, facts)  # type: ignore[return-value]


def _of_warps(body: Stmt) -> frozenset[Buffer]:
    """The buffers that hold operands of what warps do together."""
    calls = (node for node in walk_statements(body) if isinstance(node, WarpCall))
    return frozenset(operand.buffer for call in calls for operand in call.operands)


def _rests(indices: tuple[Expr, ...], digits: Digits, facts: Facts) -> list[Polynomial]:
    rests = [_rest(index, own, facts) for index, own in zip(indices, digits, strict=True)]
    assert all(rest is not None for rest in rests), "the digits have come off before"
    return [rest for rest in rests if rest is not None]


def _whole(size: Expr, digits: tuple[_Digit, ...]) -> int:
    """What a thread's part of an index is less than."""
    assert isinstance(size, Const), "sizes in a launch are constant"
    whole = int(size.value)
    for digit in digits:
        span = digit.weight * digit.size
        whole = whole // span * digit.weight + min(whole % span, digit.weight)
    return whole
