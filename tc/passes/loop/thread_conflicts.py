"""Whether two parts of a launch need a barrier between them: whether a thread touches in one what another thread writes in the other.

What can be counted is: all threads and all iterations of loops of constant extents, where what else the indices speak of is the same in
both parts. The rest is left to the proof that iterations do not meet, of two different threads. What is not proven is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from tc.ir.arith import Facts, simplify
from tc.ir.columns import column, grid
from tc.ir.copies import stages_apart
from tc.ir.dtype import i64
from tc.ir.expr import TRUE, Buffer, Const, Expr, FloorMod, Load, Var, conjuncts, const, logical_and
from tc.ir.loop import Stmt
from tc.ir.node import Node, substitute, walk
from tc.ir.polynomial import Polynomial, polynomial
from tc.ir.uses import buffers_read, variables
from tc.schedule.accesses import AccessScope, ElementAccess, accesses
from tc.schedule.independence import never_meet

MOST_POINTS = 1 << 20
"""Points of threads and loops that are counted at most."""


@dataclass(frozen=True, eq=False)
class Touch:
    """What the threads of a part touch of a buffer: an element for each thread and each iteration of `ranges`, where `where` holds.

    `unknown`: variables that are each thread's own, of which nothing is known. `is_async`: it is stored by asynchronous copies, which
    have been waited for if it `has_arrived`.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    is_store: bool
    ranges: tuple[tuple[Var, Expr], ...]
    where: Expr = TRUE
    unknown: frozenset[Var] = frozenset()
    is_async: bool = False
    has_arrived: bool = False

    @property
    def own(self) -> frozenset[Var]:
        """The variables that may have other values in another thread, beside those of the thread."""
        return frozenset(var for var, _ in self.ranges) | self.unknown

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(str, self.indices))}]"


def _touch(access: ElementAccess, unknown: frozenset[Var]) -> Touch:
    scope = access.scope
    return Touch(access.buffer, access.indices, access.is_store, scope.ranges, access.where, scope.unknown | unknown, access.is_async)


@dataclass
class Conflicts:
    """Answers about the parts of one launch, which are remembered. `threads`: the variables of the threads, and how many there are.
    `buffers`: those that several threads see; `changed`: all that are written."""

    threads: Mapping[Var, int]
    buffers: frozenset[Buffer]
    changed: frozenset[Buffer]
    _touches: dict[tuple[Node, frozenset[Var]], tuple[Touch, ...]] = field(default_factory=dict)
    _older: dict[tuple[Touch, Var], Touch] = field(default_factory=dict)
    _apart: dict[tuple[Touch, Touch], bool] = field(default_factory=dict)
    _arrived: dict[Touch, Touch] = field(default_factory=dict)

    def touches_of(self, stmt: Stmt, unknown: frozenset[Var]) -> tuple[Touch, ...]:
        """What a part touches. `unknown`: variables around it that differ from thread to thread."""
        key = (stmt, unknown)
        if key not in self._touches:
            self._touches[key] = tuple(_touch(access, unknown) for access in accesses(stmt, self.buffers))
        return self._touches[key]

    def touches_of_value(self, expr: Expr, unknown: frozenset[Var]) -> tuple[Touch, ...]:
        """What every thread reads to evaluate an expression."""
        key = (expr, unknown)
        if key not in self._touches:
            loads = dict.fromkeys(node for node in walk(expr) if isinstance(node, Load) and node.buffer in self.buffers)
            self._touches[key] = tuple(Touch(load.buffer, load.indices, False, (), unknown=unknown) for load in loads)
        return self._touches[key]

    def older(self, touch: Touch, var: Var, extent: Expr | None) -> Touch:
        """What was touched in some other iteration of the loop over `var`, or when it had another value of which nothing is known."""
        if var not in variables(logical_and(*(index >= 0 for index in touch.indices), touch.where)) | _of_ranges(touch):
            return touch
        key = (touch, var)
        if key not in self._older:
            other = Var(f"{var.name}'", i64)
            renamed: dict[Node, Node] = {var: other}
            ranges = tuple((own, substitute(each, renamed)) for own, each in touch.ranges)
            self._older[key] = Touch(
                touch.buffer,
                tuple(substitute(index, renamed) for index in touch.indices),
                touch.is_store,
                ranges if extent is None else ((other, extent), *ranges),
                substitute(touch.where, renamed),
                touch.unknown if extent is not None else touch.unknown | {other},
                touch.is_async,
                touch.has_arrived,
            )
        return self._older[key]

    def arrived(self, touch: Touch) -> Touch:
        """What is touched when the thread has waited for its copies."""
        if not touch.is_async or touch.has_arrived:
            return touch
        if touch not in self._arrived:
            self._arrived[touch] = replace(touch, has_arrived=True)
        return self._arrived[touch]

    def meet(self, first: Touch, second: Touch, facts: Facts) -> bool:
        """Whether two threads may touch one element, one of them writing it, as far as is known. `facts` hold where the second is."""
        if first.buffer is not second.buffer or not (first.is_store or second.is_store):
            return False
        key = (first, second)
        if key not in self._apart:
            self._apart[key] = self._take_turns(first, second) or (
                not _is_copied_and_read(first, second)
                and all(self._are_apart(a, b, facts) for a, b in self._cases(first, second, facts))
            )
        return not self._apart[key]

    def _take_turns(self, first: Touch, second: Touch) -> bool:
        """Whether the two are of different stages of a buffer."""
        return stages_apart(first.indices, second.indices, first.own | second.own | self.threads.keys())

    def _cases(self, first: Touch, second: Touch, facts: Facts) -> Iterator[tuple[Touch, Touch]]:
        """The two for each remainder of a variable that both share, where an index speaks of it: stages of a pipeline take turns."""
        found = next((stage for index in (*first.indices, *second.indices) for stage in _stages(index)), None)
        if found is None or found[0] in first.own | second.own | self.threads.keys():
            yield first, second
            return
        var, count = found
        for remainder in range(count):
            value: dict[Node, Node] = {var: Var(var.name, i64) * count + remainder}
            yield _with(first, value, facts), _with(second, value, facts)

    def _are_apart(self, first: Touch, second: Touch, facts: Facts) -> bool:
        counted = _are_counted_apart(first, second, self.threads)
        return self._is_proven(first, second, facts) if counted is None else counted

    def _is_proven(self, first: Touch, second: Touch, facts: Facts) -> bool:
        """Whether it is proven for the first axis of threads that differs, whichever that is."""
        axes = [(var, extent) for var, extent in self.threads.items() if extent > 1]
        for k, (var, _) in enumerate(axes):
            behind = tuple((other, const(extent)) for other, extent in axes[k + 1 :])
            for a, b in ((first, second), (second, first)):
                if not never_meet(_access(a, ()), _access(b, behind), var, facts, self.changed):
                    return False
        return True


def _is_copied_and_read(first: Touch, second: Touch) -> bool:
    """Whether one is an asynchronous copy that the other reads: these are told apart by stages alone, as the verifier does it."""
    return (first.is_async or second.is_async) and first.is_store is not second.is_store


def _of_ranges(touch: Touch) -> frozenset[Var]:
    return frozenset[Var]().union(*(variables(extent) for _, extent in touch.ranges))


def _access(touch: Touch, more: tuple[tuple[Var, Expr], ...]) -> ElementAccess:
    conditions: tuple[tuple[Expr, dict[Node, Node]], ...] = () if touch.where is TRUE else ((touch.where, {}),)
    scope = AccessScope({}, ranges=(*more, *touch.ranges), unknown=touch.unknown, conditions=conditions)
    return ElementAccess(touch.buffer, touch.indices, touch.is_store, scope)


_MOST_STAGES = 8


def _stages(index: Expr) -> Iterator[tuple[Var, int]]:
    """The remainders of single variables, by small numbers, in an index."""
    for node in walk(index):
        match node:
            case FloorMod(lhs=number, rhs=Const(value=count)) if 1 < count <= _MOST_STAGES and len(variables(number)) == 1:
                yield next(iter(variables(number))), int(count)


def _with(touch: Touch, values: dict[Node, Node], facts: Facts) -> Touch:
    indices = tuple(simplify(substitute(index, values), facts) for index in touch.indices)
    ranges = tuple((var, substitute(extent, values)) for var, extent in touch.ranges)
    return replace(touch, indices=indices, ranges=ranges, where=substitute(touch.where, values))


def _are_counted_apart(first: Touch, second: Touch, threads: Mapping[Var, int]) -> bool | None:
    """Whether no two threads touch one element, by counting; None when that cannot be counted."""
    bases = [_split(touch, threads) for touch in (first, second)]
    if bases[0] is None or bases[1] is None or any(a != b for (a, _), (b, _) in zip(bases[0], bases[1], strict=True)):
        return None
    found = [_owners(touch, [rest for _, rest in base], threads) for touch, base in zip((first, second), bases) if base is not None]
    if found[0] is None or found[1] is None:
        return None
    (elements, low, high), (others, other_low, other_high) = found[0], found[1]
    _, here, there = np.intersect1d(elements, others, assume_unique=True, return_indices=True)
    return bool(
        np.all((low[here] == high[here]) & (other_low[there] == other_high[there]) & (low[here] == other_low[there]))
    )


def _split(touch: Touch, threads: Mapping[Var, int]) -> list[tuple[dict[tuple[Expr, ...], int], Polynomial]] | None:
    """Each index as a part that is the same for all threads, and the rest, which speaks of threads and own loops alone."""
    moving = touch.own | threads.keys()
    result = []
    for index in touch.indices:
        if index.dtype is not i64:
            return None
        poly = polynomial(index)
        common: dict[tuple[Expr, ...], int] = {}
        rest: dict[tuple[Expr, ...], int] = {}
        for monomial, times in poly.terms.items():
            used = frozenset[Var]().union(*(variables(atom) for atom in monomial))
            if used & moving and not used <= moving:
                return None
            (rest if used & moving else common)[monomial] = times
        if any(buffers_read(atom) for monomial in common for atom in monomial):
            return None
        result.append((common, Polynomial(rest, poly.constant)))
    return result


_BASE = 1 << 20
"""What an index is less than, in size; elements are numbers of such digits."""


def _owners(touch: Touch, rests: list[Polynomial], threads: Mapping[Var, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The elements, and of each the first and the last thread that touches it."""
    extents = dict(threads)
    needed = frozenset[Var]().union(*(variables(atom) for rest in rests for monomial in rest.terms for atom in monomial))
    for var, extent in touch.ranges:
        if var in needed:
            if not isinstance(extent, Const):
                return None
            extents[var] = int(extent.value)
    if needed & touch.unknown or len(rests) > 3 or not 0 < prod(extents.values()) <= MOST_POINTS:
        return None
    values = grid(extents)
    element = np.zeros(prod(extents.values()), np.int64)
    for rest in rests:
        index = column(rest.to_expr(), values)
        if index is None or np.abs(index).max(initial=0) >= _BASE // 2:
            return None
        element = element * _BASE + index
    thread = np.zeros_like(element)
    for var, count in threads.items():
        thread = thread * count + values[var]
    kept = np.ones(len(element), bool)
    for part in conjuncts(touch.where):
        holds = column(part, values)
        kept &= True if holds is None else holds
    return _by_element(element[kept], thread[kept])


def _by_element(element: np.ndarray, thread: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order = np.lexsort((thread, element))
    element, thread = element[order], thread[order]
    starts = np.flatnonzero(np.r_[True, element[1:] != element[:-1]]) if len(element) else np.zeros(0, np.int64)
    ends = np.r_[starts[1:], len(element)] - 1 if len(element) else starts
    return element[starts], thread[starts], thread[ends]
