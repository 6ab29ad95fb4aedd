"""Asynchronous copies in pieces that hardware has: 4, 8 or 16 bytes of global memory, aligned in both places, or as many zeros.

What does not fit is an ordinary store, which means no less: it is there at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from tc.codegen.llvm.addresses import offset_of
from tc.ir.arith import Facts, simplify
from tc.ir.copies import copied
from tc.ir.expr import Buffer, Expr, Le, Load, Lt, Var, conjuncts, const
from tc.ir.loop import AsyncStore
from tc.ir.node import substitute
from tc.ir.polynomial import Polynomial, polynomial
from tc.ir.uses import variables

PIECE_BYTES = (4, 8, 16)


@dataclass(frozen=True, eq=False)
class CopyPiece:
    """`size_bytes` from the element that is loaded to the one at `indices`; zeros where `condition` does not hold."""

    size_bytes: int
    buffer: Buffer
    indices: tuple[Expr, ...]
    load: Load
    condition: Expr


def copy_pieces(
    stmt: AsyncStore, lane: Var | None, lanes: int, facts: Facts, differs: Callable[[Expr], bool]
) -> tuple[CopyPiece, ...] | None:
    """A copy of `lanes` elements, the first where `lane` is 0; None where hardware has no such copy. `differs`: whether a value differs
    between lanes. Where lanes are not side by side each is a piece."""
    found = copied(stmt.value)
    if found is None or stmt.buffer.dtype.bits < 8 or stmt.buffer.scope != "shared" or found[1].buffer.dtype != stmt.buffer.dtype:
        return None
    condition, load = found
    if any(differs(var) for part in (*stmt.indices, load, condition) for var in variables(part) if var is not lane):
        return None
    elements = lanes
    for buffer, indices in ((stmt.buffer, stmt.indices), (load.buffer, load.indices)):
        elements = gcd(elements, _aligned(offset_of(buffer, indices, facts), lane, differs))
    size = stmt.buffer.dtype.size_bytes
    while elements > 1 and (elements * size > PIECE_BYTES[-1] or not _is_alike(condition, lane, elements, differs)):
        elements //= 2
    if elements * size not in PIECE_BYTES:
        return None
    return tuple(_piece(stmt, load, condition, lane, first, elements * size, facts) for first in range(0, lanes, elements))


def _piece(stmt: AsyncStore, load: Load, condition: Expr, lane: Var | None, first: int, size_bytes: int, facts: Facts) -> CopyPiece:
    values = {} if lane is None else {lane: const(first)}
    indices = tuple(substitute(index, values) for index in stmt.indices)
    return CopyPiece(size_bytes, stmt.buffer, indices, substitute(load, values), simplify(substitute(condition, values), facts))


def _aligned(offset: Polynomial, lane: Var | None, differs: Callable[[Expr], bool]) -> int:
    """A number of elements, at most 16, whose multiple the first lane's offset is, the others being side by side; 1 for other lanes."""
    rest = dict(offset.terms)
    if lane is not None and (rest.pop((lane,), 0) != 1 or any(differs(atom) for monomial in rest for atom in monomial)):
        return 1
    return gcd(PIECE_BYTES[-1], offset.constant, *rest.values())


def _is_alike(condition: Expr, lane: Var | None, elements: int, differs: Callable[[Expr], bool]) -> bool:
    """Whether a condition holds in all of so many lanes, from a multiple of that on, or in none."""
    return lane is None or all(not differs(part) or _steps_with(part, lane, elements, differs) for part in conjuncts(condition))


def _steps_with(part: Expr, lane: Var, elements: int, differs: Callable[[Expr], bool]) -> bool:
    match part:
        case Lt(lhs=a, rhs=b):
            left = polynomial(b).minus(polynomial(a)).plus(Polynomial({}, -1))
        case Le(lhs=a, rhs=b):
            left = polynomial(b).minus(polynomial(a))
        case _:
            return False
    rest = dict(left.terms)
    slope = rest.pop((lane,), 0)
    if abs(slope) != 1 or any(differs(atom) for monomial in rest for atom in monomial):
        return False
    return all(factor % elements == 0 for factor in rest.values()) and (left.constant + (slope < 0)) % elements == 0
