"""Values of control flow whose sizes only the run tells: what a loop carries in another size from iteration to iteration.

Each size has an i64 in memory: it is written before the loop and at the end of each iteration, and read where the body and what follows
the loop begin.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from tc.ir.expr import Expr, Var
from tc.ir.graph import Loop, TensorVar
from tc.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class ChangingSize:
    """A dim of carried values: `inside` an iteration, `after` the loop; `first` before it, `following` at the end of an iteration."""

    inside: Var
    after: Var
    first: Expr
    following: Expr


def changing_sizes(loop: Loop, targets: tuple[TensorVar, ...], known: Set[Expr]) -> tuple[list[ChangingSize], set[int]]:
    """The dims that a loop's body binds by its parameters, each once, and the numbers of the carried values that have one; `known`: the
    dims that are bound around it."""
    found: dict[Var, ChangingSize] = {}
    values: set[int] = set()
    for number, atoms in enumerate(zip(loop.init, loop.body.params[1:], loop.body.results[1:], targets, strict=False)):
        for first, inside, following, after in zip(*(_shape(atom.type) for atom in atoms), strict=True):
            if isinstance(inside, Var) and inside not in known:
                assert isinstance(after, Var), "what changes inside of a loop is found after it"
                found.setdefault(inside, ChangingSize(inside, after, first, following))
                values.add(number)
    return list(found.values()), values


def _shape(type_: object) -> tuple[Expr, ...]:
    assert isinstance(type_, TensorType)
    return type_.shape
