"""Whether iterations of a loop hand something on in scratch memory, which then cannot be allocated inside of the loop."""

from __future__ import annotations

from collections.abc import Callable

from tc.ir.arith import Facts, linear_coefficients, prove, simplify
from tc.ir.expr import Buffer, Const, Eq, Expr, FloorDiv, Var, conjuncts, const, equal, is_const, logical_and
from tc.ir.loop import For
from tc.ir.node import Node, substitute
from tc.ir.uses import buffers_written, reads_memory
from tc.schedule.accesses import ElementAccess, accesses
from tc.schedule.independence import differ_at_a_glance, never_meet


def hands_on(loop: For, buffer: Buffer, facts: Facts) -> bool:
    """Whether an iteration may read an element of a buffer that another one wrote, as far as is known.

    It does not where no other one writes the element, nor where the iteration itself has written it before. `facts` hold around the
    loop, whose body has no blocks.
    """
    found = accesses(loop.body, frozenset((buffer,)))
    stores = [access for access in found if access.is_store]
    inside = facts.with_range(loop.var, loop.extent)
    changed = buffers_written(loop.body)

    def differ(a: ElementAccess, b: ElementAccess) -> bool:
        return differ_at_a_glance(a, b, loop.var, loop.extent, inside)

    def never(a: ElementAccess, b: ElementAccess) -> bool:
        return never_meet(a, b, loop.var, inside, changed)

    for k, load in enumerate(found):
        if load.is_store or all(_both_ways(differ, load, store) for store in stores):
            continue
        if any(_makes(store, load, inside) for store in found[:k] if store.is_store):
            continue
        if not all(_both_ways(never, load, store) for store in stores):
            return True
    return False


def _both_ways(holds: Callable[[ElementAccess, ElementAccess], bool], a: ElementAccess, b: ElementAccess) -> bool:
    return holds(a, b) and holds(b, a)


def _makes(store: ElementAccess, load: ElementAccess, facts: Facts) -> bool:
    """Whether a store that comes before a load in the program has written what that reads, in each iteration of the loops around both.

    It has if there is an iteration of its own loops that stores to the element: the digits of what the load's indices say. A store in
    the first iteration of a loop around both is asked for that one.
    """
    shared = [own for own, other in zip(store.scope.ranges, load.scope.ranges) if own[0] is other[0]]
    around = {var for var, _ in shared}
    for var, extent in load.scope.ranges:
        facts = facts.with_range(var, extent)
    facts = facts.assume(logical_and(*(part for part in conjuncts(load.where) if not reads_memory(part))))
    first = {var for part in conjuncts(store.where) for var in _first_of(part) & around}
    chosen: dict[Node, Node] = dict.fromkeys(first, const(0))
    own = {var: extent for var, extent in store.scope.ranges if var not in around}
    needed: list[Expr] = []
    for made, read in zip(store.indices, load.indices, strict=True):
        form = linear_coefficients(made, [*own])
        if form is None or form[0].keys() & chosen.keys():
            return False
        value, unit = read - substitute(form[1], chosen), 1
        digits = sorted(form[0].items(), key=lambda item: item[1].value if isinstance(item[1], Const) else 0)
        for k, (var, step) in enumerate(digits):
            if not isinstance(step, Const) or step.value != unit:
                return False
            is_last = k == len(digits) - 1
            size = own[var]
            if not is_last and not isinstance(size, Const):
                return False
            chosen[var] = simplify(value // unit if is_last else (value // unit) % size, facts)
            unit *= 1 if is_last else int(size.value)  # type: ignore[attr-defined]
        if not digits:
            needed.append(equal(value, 0))
    for var, extent in own.items():
        at = chosen.setdefault(var, const(0))
        if not _is_less(at, substitute(extent, chosen), facts):  # type: ignore[arg-type]
            return False
        needed.append(at >= 0)  # type: ignore[operator, arg-type]
    needed += [substitute(part, chosen) for part in conjuncts(store.where)]
    return all(prove(part, facts) is True for part in needed)


def _is_less(value: Expr, extent: Expr, facts: Facts) -> bool:
    """Whether value < extent; of the number of tiles that something has also by what they cover."""
    if prove(value < extent, facts) is True:
        return True
    is_count = isinstance(extent, FloorDiv) and isinstance(extent.rhs, Const) and extent.rhs.value > 0
    return is_count and prove((value + 1) * extent.rhs <= extent.lhs, facts) is True  # type: ignore[attr-defined]


def _first_of(condition: Expr) -> frozenset[Var]:
    """The variable of which a condition says that it is 0."""
    match condition:
        case Eq(lhs=Var() as var, rhs=zero) if is_const(zero, 0):
            return frozenset((var,))
    return frozenset()
