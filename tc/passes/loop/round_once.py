"""Chains of operations on f16 and bf16 are computed in f32, and rounded where a value is stored.

So they are more exact, the same with and without instructions for such floats, and spared a conversion for every operation.
"""

from __future__ import annotations

from tc.interp.scalars import number
from tc.ir.dtype import DType, bf16, f16, f32
from tc.ir.expr import Add, BinaryExpr, Cast, Const, Div, Expr, Load, MathCall, Max, Min, Mul, Narrow, Select, Sub
from tc.ir.loop import PrimFunc, Store, is_strict
from tc.ir.node import Node, children, map_children, replace, transform, walk
from tc.ir.uses import buffers_read
from tc.passes.manager import loop_pass

_HALVES = (f16, bf16)


@loop_pass
def round_once(func: PrimFunc) -> PrimFunc:
    """Compute in f32 what a statement stores by two roundings to f16 or bf16 or more.

        y[i] = x[i] * c[i] + d[i]      =>      y[i] = cast(cast(x[i], f32) * cast(c[i], f32) + cast(d[i], f32), f16)

    A `cast` that rounds an f32 stays: whoever wrote it wants it; a `narrow` goes. Sums and extremes in halves, which read what they store,
    stay, and all where numerics are strict. Sums in f32 do not: a mean is of the numbers that it is subtracted from.
    """
    if is_strict(func) or not any(buffer.dtype in _HALVES for buffer in buffers_read(func.body)):
        return func

    def rewrite(node: Node) -> Node | None:
        if not isinstance(node, Store):
            return None
        if node.buffer.dtype in _HALVES and any(isinstance(load, Load) and load.buffer is node.buffer for load in walk(node.value)):
            return None
        value = _widened(node.value)
        return None if value is node.value else replace(node, value=value)

    return transform(func, rewrite, lambda node: not isinstance(node, Expr))


def _is_chained(expr: Expr) -> bool:
    """Whether an expression is an operation whose result would be rounded to a half."""
    return expr.dtype in _HALVES and (
        isinstance(expr, (Add, Sub, Mul, Div))
        or _is_narrowed(expr)
        or (isinstance(expr, MathCall) and all(a.dtype is expr.dtype for a in expr.args))
    )


def _is_narrowed(expr: Expr) -> bool:
    return isinstance(expr, Narrow) and expr.operand.dtype is f32


def _is_inner(expr: Expr, dtype: DType) -> bool:
    """Whether an expression is computed from numbers of its own dtype, by what f32 has as well."""
    return expr.dtype is dtype and (_is_chained(expr) or isinstance(expr, (Min, Max, Select)))


def _operands(expr: Expr) -> tuple[Expr, ...]:
    if _is_narrowed(expr):
        return ()
    values = (expr.true_value, expr.false_value) if isinstance(expr, Select) else children(expr)
    return tuple(value for value in values if isinstance(value, Expr))


def _roundings(expr: Expr) -> int:
    """How many operations of a chain round, two standing for more."""
    count = int(_is_chained(expr))
    for operand in _operands(expr):
        if count < 2 and _is_inner(operand, expr.dtype):
            count += _roundings(operand)
    return count


def _widened(expr: Expr) -> Expr:
    """The expression with its chains in f32."""
    if isinstance(expr, Cast) and expr.dtype is f32 and expr.operand.dtype in _HALVES:
        inner = expr.operand
        if _is_inner(inner, inner.dtype) and _roundings(inner):
            return _wide(inner)
    if expr.dtype in _HALVES and _is_inner(expr, expr.dtype) and _roundings(expr) > 1:
        return Cast(_wide(expr), expr.dtype)
    return map_children(expr, lambda child: _widened(child) if isinstance(child, Expr) else child)


def _wide(expr: Expr) -> Expr:
    """The f32 of which an expression of halves is the rounding."""
    if isinstance(expr, Const):
        return Const(float(number(expr.value, expr.dtype)), f32)
    if not _is_inner(expr, expr.dtype):
        return Cast(_widened(expr), f32)
    match expr:
        case Narrow(operand=a):
            return _widened(a)
        case Select(condition=condition, true_value=a, false_value=b):
            return Select(_widened(condition), _wide(a), _wide(b))
        case MathCall(name=name, args=args):
            return MathCall(name, tuple(map(_wide, args)), f32)
        case BinaryExpr(lhs=lhs, rhs=rhs):
            return type(expr)(_wide(lhs), _wide(rhs))
    raise AssertionError(f"{type(expr).__name__} is no operation on halves")
