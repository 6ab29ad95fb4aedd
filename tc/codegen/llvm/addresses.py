"""Where an access lies, as a polynomial: which of its terms are numbers where it is emitted, and what the others add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tc.codegen.llvm.builder import Value
from tc.ir.arith import Facts, Polynomial, polynomial, prove, simplify
from tc.ir.bounds import VarFact
from tc.ir.expr import Buffer, Cast, Const, Expr, FloorMod, MathCall, Max, Min, Var, const, mul
from tc.ir.polynomial import Monomial


class Address(NamedTuple):
    """The polynomial offset of an access, in elements: `factors` times the variables `numbers`, which are known numbers wherever their
    unrolled loops are emitted; and the other terms, in which the variables are `unknown` (None where more than variables is in them)."""

    offset: Polynomial
    numbers: tuple[Var, ...]
    factors: tuple[int, ...]
    others: tuple[tuple[Monomial, int], ...]
    unknown: tuple[Var, ...] | None

    @classmethod
    def of(cls, offset: Polynomial, values: Mapping[Var, Value]) -> Address:
        """Of an offset, where variables have these values."""
        numbers: dict[Var, int] = {}
        others = []
        for monomial, factor in offset.terms.items():
            var = monomial[0]
            value = values.get(var) if len(monomial) == 1 and isinstance(var, Var) else None
            if isinstance(var, Var) and value is not None and value.known is not None:
                numbers[var] = factor
            else:
                others.append((monomial, factor))
        atoms = [atom for monomial, _ in others for atom in monomial]
        unknown = [atom for atom in atoms if isinstance(atom, Var)]
        only_variables = len(unknown) == len(atoms)
        return cls(offset, tuple(numbers), tuple(numbers.values()), tuple(others), tuple(unknown) if only_variables else None)


class Sum(NamedTuple):
    """What the terms of an address add up to that are no numbers: those that all lanes share, and their texts; a constant; the distance
    between lanes (None where there are none), and what differs between lanes otherwise."""

    parts: tuple[tuple[int, list[Value]], ...]
    texts: tuple[str, ...]
    known: int
    lane: Value | None
    varying: Value | None

    @property
    def is_computed(self) -> bool:
        """Whether instructions were emitted for it."""
        return self.varying is not None or (self.lane is not None and self.lane.known is None)


class Offset(NamedTuple):
    """Where an access lies, in elements: a sum that all lanes share, a constant, the distance between lanes, and what differs between
    lanes otherwise, as in `Sum`; `texts` of the terms that are shared."""

    shared: Value
    known: int
    lane: Value | None
    varying: Value | None
    texts: tuple[str, ...]


def offset_of(buffer: Buffer, indices: tuple[Expr, ...], facts: Facts) -> Polynomial:
    """The offset of an access, in elements."""
    offset: Expr = const(0)
    strides = buffer.strides or _row_major(buffer.shape)
    for index, stride in zip(indices, strides, strict=True):
        offset = offset + mul(_as_i64(index), stride)
    whole = polynomial(offset).rejoined({dim for dim in buffer.shape if isinstance(dim, Var)})  # they have elements
    if all(isinstance(atom, _SIMPLE) for monomial in whole.terms for atom in monomial):
        return whole.ordered()
    found = polynomial(simplify(offset, facts))
    if any(isinstance(atom, FloorMod) for monomial in found.terms for atom in monomial):
        found = polynomial(simplify(offset, _with_elements(facts, buffer)))
    return found


def _as_i64(index: Expr) -> Expr:
    return index if index.dtype.bits == 64 else Cast(index, _I64)


_I64 = const(0).dtype

_SIMPLE = (Var, Min, Max, MathCall)
"""Parts of offsets that are as simple as they are: passes have simplified indices, what is left is to sum up those of an access."""


def _with_elements(facts: Facts, buffer: Buffer) -> Facts:
    """Also that no dim of a buffer is 0: wherever it is accessed."""
    for dim in buffer.shape:
        if isinstance(dim, Var):
            known = facts.variables.get(dim, VarFact())
            if known.lo is None or (isinstance(known.lo, Const) and known.lo.value < 1):
                facts = Facts({**facts.variables, dim: replace(known, lo=const(1))}, facts.nonnegative)
    for dim in buffer.shape:
        if not isinstance(dim, Const | Var) and prove(dim >= 1, facts) is not True:
            facts = facts.assume(dim >= 1)
    return facts


def _row_major(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    strides: list[Expr] = []
    stride: Expr = const(1)
    for dim in reversed(shape):
        strides.append(stride)
        stride = mul(stride, dim)
    return tuple(reversed(strides))
