"""What a sum of products is: the one definition that fusion and scheduling share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from tc.ir.expr import Expr, Mul, Var
from tc.ir.node import Node, children
from tc.ir.uses import variables


@dataclass(frozen=True)
class Operand:
    """One side of a product: its expression, and the read of data in it. `axes`: the variables that it depends on."""

    value: Expr
    read: Expr

    @property
    def axes(self) -> frozenset[Var]:
        return variables(self.value)


@dataclass(frozen=True)
class Product:
    """The two sides of a product, and the read of data in each."""

    lhs: Expr
    rhs: Expr
    reads: tuple[Expr, Expr]


def product_of(value: Expr, axes: Collection[Var], is_read: Callable[[Node], bool]) -> Product | None:
    """The product that `value`, one term of a sum, is or contains: of two operands that each read data at one place.

    Reads inside the indices of a read choose elements. Of several others the data is the one that depends on all of the sum's `axes`
    that any of them does; the rest are scales, zero points, masks. None where there is no such product.
    """
    factors = _first_product(value, is_read)
    if factors is None:
        return None
    reads = [_data_read(side, frozenset(axes), is_read) for side in (factors.lhs, factors.rhs)]
    return None if None in reads else Product(factors.lhs, factors.rhs, (reads[0], reads[1]))  # type: ignore[arg-type]


def _data_read(value: Expr, axes: frozenset[Var], is_read: Callable[[Node], bool]) -> Expr | None:
    found = list(data_reads(value, is_read))
    used = axes.intersection(frozenset().union(*map(variables, found)))
    return next((read for read in found if variables(read) >= used), None)


def data_reads(value: Node, is_read: Callable[[Node], bool]) -> Iterator[Expr]:
    """The reads in an expression that are not part of the indices of another one."""
    if is_read(value):
        yield value  # type: ignore[misc]
        return
    for child in children(value):
        yield from data_reads(child, is_read)


def _first_product(value: Expr, is_read: Callable[[Node], bool]) -> Mul | None:
    """The first product that is not part of an index."""
    if isinstance(value, Mul):
        return value
    parts = () if is_read(value) else (child for child in children(value) if isinstance(child, Expr))
    return next((found for part in parts if (found := _first_product(part, is_read)) is not None), None)
