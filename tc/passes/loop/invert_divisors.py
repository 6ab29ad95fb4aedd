"""Divide once by what all vectors of a loop are divided by, and multiply them: quantization by steps that are data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tc.ir.arith import Facts
from tc.ir.clipped_round import LEAST_DIVISOR, MOST_DIVISOR, MOST_SHIFT
from tc.ir.dtype import f32, i32
from tc.ir.expr import (
    Add,
    Cast,
    Const,
    Div,
    Expr,
    FloorDiv,
    MathCall,
    Max,
    Min,
    Sub,
    Var,
    call,
    cast,
    const,
    logical_and,
)
from tc.ir.loop import For, If, LoopKind, PrimFunc, Stmt
from tc.ir.node import Node, cached_on_node, children, replace, substitute, transform, walk
from tc.ir.structural import fresh_binders
from tc.ir.uses import variables
from tc.passes.loop.hoist_choices import change_loops, copies_vectors, is_readable
from tc.passes.manager import loop_pass

MOST_UNROLLED = 4
"""Vectors of a block."""


@loop_pass
def invert_divisors(func: PrimFunc) -> PrimFunc:
    """Before vectors that are quantized by one step, ask whether it is a usual number, whose quotients are found by products.

        for l in vectorized(16):                            if 2^-60 < S[i] and S[i] < 2^60:
            Y[i, l] = u8(clip(round(X[i, l] / S[i]) + Z))       for l in vectorized(16):
                                                      =>            Y[i, l] = u8(clip(round(bounded_quotient(X[i, l], S[i], 1 / S[i],
                                                                                                             low, high)) + Z))
                                                            else: (as it was)

    Every bit stays. Of loops that copy; `low` and `high` are what the bounds mean.
    """
    body = change_loops(func.body, Facts.of(func.facts), _rounds_quotients, _inverted)
    return func if body is func.body else replace(func, body=body)


@dataclass(frozen=True)
class _Step:
    """`clip(round(value / divisor) + shift, 0, high)` of f32, the shift as i32."""

    value: Expr
    divisor: Expr
    shift: Expr
    high: float


@cached_on_node
def _rounds_quotients(node: Node) -> bool:
    """Whether something is divided and rounded at or below a node."""
    return (isinstance(node, MathCall) and _is_rounded_quotient(node)) or any(map(_rounds_quotients, children(node)))


def _is_rounded_quotient(call: MathCall) -> bool:
    return call.name == "round" and isinstance(call.args[0], Div) and call.dtype is f32


def _inverted(loop: For, facts: Facts) -> Stmt | None:
    if not copies_vectors(loop):
        return None
    inside = {node.var for node in walk(loop) if isinstance(node, For)}
    for step in _steps(loop):
        divisor = step.divisor
        if isinstance(divisor, Const) or variables(divisor) & (inside - {loop.var}):
            continue
        if loop.var in variables(divisor):
            if (blocks := _in_blocks(loop, divisor)) is not None:
                return change_loops(blocks, facts, _rounds_quotients, _inverted)
        elif is_readable(divisor, facts):
            by_products = fresh_binders(transform(loop, partial(_by_products, divisor=divisor)))
            usual = logical_and(const(LEAST_DIVISOR, f32) < divisor, divisor < const(MOST_DIVISOR, f32))
            return If(usual, _inverted(by_products, facts) or by_products, loop)
    return None


def _in_blocks(loop: For, divisor: Expr) -> For | None:
    """The loop in two, the outer one over blocks of iterations that have one divisor."""
    found = [node for node in walk(divisor) if isinstance(node, FloorDiv) and node.lhs is loop.var]
    if not found or loop.kind is not LoopKind.SERIAL or not isinstance(loop.extent, Const):
        return None
    quotient = found[0]
    size = quotient.rhs.value if isinstance(quotient.rhs, Const) else 1
    block, place = Var(f"{loop.var.name}_block"), Var(f"{loop.var.name}_place")
    if size < 2 or loop.extent.value % size or loop.var in variables(substitute(divisor, {quotient: block})):
        return None
    body = substitute(substitute(loop.body, {quotient: block}), {loop.var: block * size + place})
    kind = LoopKind.UNROLLED if size <= MOST_UNROLLED else LoopKind.SERIAL
    return For(block, const(loop.extent.value // size), For(place, const(size), body, kind))


def _steps(loop: For) -> Iterator[_Step]:
    return (step for node in walk(loop) if (step := _as_step(node)) is not None)


def _as_step(node: Node) -> _Step | None:
    match node:
        case Cast(operand=Max(lhs=Min(lhs=inside, rhs=Const(value=high)), rhs=Const(value=0.0)), dtype=dtype) if dtype.is_int:
            shift: Expr = const(0, i32)
            while isinstance(inside, (Add, Sub)) and (number := _as_integer(inside.rhs)) is not None:
                shift = shift + number if isinstance(inside, Add) else shift - number
                inside = inside.lhs
            if isinstance(inside, MathCall) and _is_rounded_quotient(inside) and 0 < high < MOST_SHIFT and high == int(high):
                quotient = inside.args[0]
                assert isinstance(quotient, Div)
                return _Step(quotient.lhs, quotient.rhs, shift, high)
    return None


def _as_integer(expr: Expr) -> Expr | None:
    """An f32 that is a small integer, as i32."""
    match expr:
        case Const(value=value, dtype=dtype) if dtype is f32 and abs(value) < MOST_SHIFT and value == int(value):
            return const(int(value), i32)
        case Cast(operand=number, dtype=dtype) if dtype is f32 and number.dtype.is_int and number.dtype.bits <= 16:
            return cast(number, i32)
    return None


def _by_products(node: Node, divisor: Expr) -> Node | None:
    step = _as_step(node)
    if step is None or step.divisor != divisor:
        return None
    assert isinstance(node, Cast)
    shift = const(float(step.shift.value), f32) if isinstance(step.shift, Const) else cast(step.shift, f32)
    low, high = ((const(end, f32) - shift) * divisor for end in (0.0, step.high))
    rounded = call("round", call("bounded_quotient", step.value, divisor, const(1.0, f32) / divisor, low, high))
    if node.dtype is i32:  # within its bounds already
        return cast(rounded, i32) + step.shift
    return replace(node, operand=Max(Min(Add(rounded, shift), const(step.high, f32)), const(0.0, f32)))
