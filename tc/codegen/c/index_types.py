"""Which numbers of indices fit 32 bits: a device computes with 64 in several instructions, and in two registers.

On devices the variables of loops are i32 where all their values are known to fit, sums and products are left to C where their results are
known to fit, and are made i64 by a cast of what comes first where they are not. What is i64 anyhow, such as dims, makes i64 of the rest.
"""

from __future__ import annotations

from tc.ir.arith import Facts, bounds
from tc.ir.expr import Expr
from tc.ir.polynomial import Monomial

LARGEST = (1 << 31) - 1


def largest_of(expr: Expr, facts: Facts) -> int | None:
    """The largest magnitude that a number may have; None where that is not known."""
    found = bounds(expr, facts)
    return None if found.lo is None or found.hi is None else max(abs(found.lo), abs(found.hi))


def fits(expr: Expr, facts: Facts) -> bool:
    """Whether all values fit 32 bits, proven."""
    return (found := largest_of(expr, facts)) is not None and found <= LARGEST


def largest_term(monomial: Monomial, factor: int, facts: Facts) -> int | None:
    """The same of a term, each part of which is a number by itself: of what its product begins with, too."""
    total = abs(factor)
    for atom in monomial:
        if (found := largest_of(atom, facts)) is None:
            return None
        total *= max(found, 1)
    return total
