"""Exclusive ors of integers in indices, which `//`, `%`, `+` and `*` cannot say: the bits of swizzled shared memory mix.

Integers are read as unbounded, in two's complement: all identities here hold for negative ones as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from tc.ir.dtype import i64
from tc.ir.expr import Const, Expr, MathCall, call, const


def is_xor(expr: Expr) -> bool:
    """Whether an expression is the exclusive or of two integers of the kind that indices are."""
    return isinstance(expr, MathCall) and expr.name == "bit_xor" and expr.dtype == i64


def bit_xor(*operands: Expr) -> Expr:
    """The exclusive or of i64 expressions, in one form for all orders: equal ones cancel, and literals become one, which is last."""
    literal = 0
    odd: dict[Expr, None] = {}  # a set that keeps its order
    for operand in operands:
        for part in xor_operands(operand):
            if isinstance(part, Const):
                literal ^= int(part.value)
            elif part in odd:
                del odd[part]
            else:
                odd[part] = None
    parts = sorted(odd, key=str)
    if literal or not parts:
        parts.append(const(literal))
    result = parts[0]
    for part in parts[1:]:
        result = call("bit_xor", result, part)
    return result


def xor_operands(expr: Expr) -> Iterator[Expr]:
    """What an expression is the exclusive or of; itself when it is none."""
    if is_xor(expr):
        assert isinstance(expr, MathCall)
        for part in expr.args:
            yield from xor_operands(part)
    else:
        yield expr


def xor_limit(first: int, second: int) -> int:
    """The greatest exclusive or of two numbers from 0 to these."""
    return (1 << max(first, second).bit_length()) - 1
