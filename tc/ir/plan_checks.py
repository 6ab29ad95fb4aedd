"""What a program made of an execution plan checks when a call begins, in which order, and what its user is told: the same in whatever
language it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tc.ir.arith import Facts, simplify
from tc.ir.expr import Const, Expr, Le, Var
from tc.ir.graph import TensorVar
from tc.ir.node import walk
from tc.ir.plan import Check, ExecutionPlan, PlanStep
from tc.ir.types import DimFact

NO_ARENA = "no memory holds what the model computes"
NO_RESULT = "no memory holds a result"


def checks_at_start(plan: ExecutionPlan, is_bound: Callable[[Expr], bool]) -> tuple[list[Check], list[Check]]:
    """The checks of a plan whose conditions are known when a call begins: those before the promises about dims, and those after them.

    An assumed bound of a dim comes first, as the plan's facts speak of it as of a promise.
    """
    found = [step for step in plan.steps if isinstance(step, Check) and is_bound(step.condition)]
    first = [step for step in found if step.assumed and isinstance(step.condition, Le) and isinstance(step.condition.rhs, Var)]
    return first, [step for step in found if step not in first]


@dataclass(frozen=True)
class Promise:
    """`dim >= bound`, `dim <= bound` or `dim % bound == 0`, as `relation` says, and what is said where it does not hold."""

    relation: str
    bound: int
    message: str


def promises(fact: DimFact) -> Iterator[Promise]:
    """What is to be checked of a fact about a dim, one after the other; that it is not negative is known."""
    name = fact.var.name
    between = f"dim {name} is {{value}}: promised {fact.lo}..{'' if fact.hi is None else fact.hi}"
    if fact.lo > 0:
        yield Promise(">=", fact.lo, between)
    if fact.hi is not None:
        yield Promise("<=", fact.hi, between)
    if fact.multiple_of > 1:
        yield Promise("%", fact.multiple_of, f"dim {name} is {{value}}: promised a multiple of {fact.multiple_of}")


def wrong_size(name: str, axis: int, dim: Expr) -> str:
    """Of an axis of an input that should have another size."""
    return f'input "{name}": dim {axis} is {{value}}, but must be {dim}'


def negative_size(name: str, axis: int) -> str:
    """Of an axis of an input."""
    return f'input "{name}": dim {axis} is {{value}}, but must not be negative'


def negative_dim(dim: Var) -> str:
    """Of a size that the data decide."""
    return f"the size {dim.name} is {{value}}, but must not be negative"


def no_memory_for(output: TensorVar) -> str:
    """Of an output whose bytes 64 bits do not count."""
    return f'output "{output.name}": no memory holds {output.type}'


def countable(size: Expr, facts: Facts) -> Expr | None:
    """A size in its simplest form whose numbers are of 64 bits each, or as it is, of factors that are dims and no products of them; None
    where it is beyond 64 bits whatever its dims are."""
    return next((form for form in (simplify(size, facts), size) if _is_of_64_bits(form)), None)


def _is_of_64_bits(size: Expr) -> bool:
    return all(-(1 << 63) <= node.value < 1 << 63 for node in walk(size) if isinstance(node, Const))


def located(step: PlanStep, message: str) -> str:
    """A message with the model's node that the step comes from."""
    return f"{step.span}: {message}" if step.span is not None else message
