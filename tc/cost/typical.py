"""How large a symbolic dim is taken to be where a decision needs a number: one rule for all that decide.

The size is the usual one of what the dim counts, moved into the range that the facts state. Nothing is right or wrong by it: whatever is
decided holds for all sizes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tc.ir.arith import Facts, bounds, evaluate
from tc.ir.expr import Const, Expr, FloorDiv, FloorMod, Load, MathCall, Var, is_const
from tc.ir.node import walk

USUAL_DIM = 64
"""A dim of which nothing is known: a batch, a sequence, the side of an image."""

USUAL_IMAGE = 200
"""The side of an image, to an operator whose cost per pixel falls with it."""

USUAL_PRODUCT = 256
"""All symbolic dims of an operand together: rows of a product, of which a batch and a length are often two."""

SPREAD = (4, 32, USUAL_IMAGE)
"""Sizes from small to large, for what must do well at all of them."""


def fitted(usual: int, lo: int | None, hi: int | None, multiple_of: int = 1) -> int:
    """The multiple at or above `usual` and `lo`, no larger than `hi` allows; at least 1 where that is allowed."""
    size = -(-max(usual, lo or 1) // multiple_of) * multiple_of
    return size if hi is None else min(size, max(hi, lo or 1) // multiple_of * multiple_of)


def typical_dims(exprs: Iterable[Expr], facts: Facts, usual: int = USUAL_DIM) -> dict[Var, int]:
    """A size for each variable in the dims."""
    variables = dict.fromkeys(node for expr in exprs for node in walk(expr) if isinstance(node, Var))
    return {var: _fitted_to(usual, var, facts) for var in variables}


def _fitted_to(usual: int, var: Var, facts: Facts) -> int:
    limit, known = bounds(var, facts), facts.variables.get(var)
    return fitted(usual, limit.lo, limit.hi, 1 if known is None else known.multiple_of)


def typical(dim: Expr, facts: Facts, usual: int = USUAL_DIM) -> int:
    """The size that a dim is taken to have, at least 1 unless it is known to be 0; `usual` where it follows from dims in a way that not
    all sizes of these allow."""
    if isinstance(dim, Const):
        return int(dim.value)
    if any(isinstance(node, Load | MathCall) or (isinstance(node, FloorDiv | FloorMod) and not is_const(node.rhs)) for node in walk(dim)):
        return usual
    return max(1, evaluate(dim, typical_dims((dim,), facts, usual)))
