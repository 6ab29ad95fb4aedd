"""Proof that the iterations of a loop do not depend on each other: none touches an element that another one writes.

Two iterations of a loop over v are v and v + d for a d of at least 1, each with inner loops of its own. Two accesses of a buffer do not
meet if some sum of multiples of their indices differs for all of these: one index, or the number of which several are the digits. What
is not proven is refused, but for two cases in which iterations do meet and it does not matter. A scratch buffer that is used in the loop
alone and is written in each iteration before it is read there is the iteration's own: `privatize_scratch` allocates it inside. And a block
without a reduction that makes an element in two iterations, of operands that are the same in both, makes the same element twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove, simplify
from tc.ir.bounds import VarFact, bounds, poly_bounds
from tc.ir.dtype import i64
from tc.ir.expr import (
    Buffer,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Var,
    conjuncts,
    const,
    equal,
    logical_and,
    mul,
)
from tc.ir.loop import (
    Alloc,
    AxisKind,
    Block,
    BlockAxis,
    For,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Store,
    While,
    inner_statements,
)
from tc.ir.node import Node, replace, substitute, walk
from tc.ir.polynomial import Polynomial, polynomial
from tc.ir.prover import proves_nonnegative
from tc.ir.types import DimFact
from tc.ir.uses import buffers_read, buffers_written, own_reads, reads_memory, touches, unbound, variables
from tc.schedule.accesses import AccessScope, ElementAccess, accesses
from tc.schedule.counting import are_counted_apart
from tc.schedule.touched import part_written, parts_read
from tc.schedule.tree import Place, allocated_in, facts_at, facts_inside, find_loop, loop_var, statements_from


def check_iterations_apart(func: PrimFunc, place: Place, what: str, kind: LoopKind) -> None:
    """ScheduleError unless it is proven that the iterations of the loop at a place may run in any order, or at the same time.

    Threads of a device, for loops of the kind BOUND, do not even read what another one writes once more.
    """
    if prove(place.loop.extent <= 1, facts_at(func, place)) is not True:
        _Proof(func, place, what, kind).check()


CONCURRENT = (LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.BOUND)
"""Kinds of loops whose iterations run in any order."""


def check_marked_loops(func: PrimFunc, names: Iterable[str], what: str) -> PrimFunc:
    """`func`; ScheduleError unless those of some loops that were made parallel, vectorized or bound may still be."""
    for name in names:
        place = find_loop(func, name)
        if place.loop.kind in CONCURRENT:
            check_iterations_apart(func, place, what, place.loop.kind)
    return func


def is_private_to_iterations(func: PrimFunc, place: Place, buffer: Buffer) -> bool:
    """Whether the iterations of a concurrent loop are independent only if each has a scratch buffer of its own, and may have one."""
    proof = _Proof(func, place, "", place.loop.kind)
    return proof.is_own(buffer) and not proof.are_stores_apart(buffer) and proof.is_private(buffer)


# -- two accesses


def differ_at_a_glance(first: ElementAccess, second: ElementAccess, var: Var, extent: Expr, facts: Facts) -> bool:
    """`never_meet` where intervals of numbers tell: fast, and mostly enough."""
    ends = {own: _last(count, facts) for own, count in (*first.scope.ranges, *second.scope.ranges)}
    inner = ends.keys() | first.scope.unknown | second.scope.unknown
    for a, b in zip(first.linear, second.linear, strict=True):
        if a is None or b is None:
            continue
        constant = b[None] - a[None]
        terms: list[tuple[int, int | None, int | None]] = [(b.get(var, 0), 1, _last(extent, facts))]  # how many, from, to
        for own in {*a, *b}:
            if own is None:
                continue
            apart = (-a.get(own, 0), b.get(own, 0)) if own in inner else (b.get(own, 0) - a.get(own, 0),)
            low, high = (0, ends[own]) if own in ends else (None, None) if own in inner else bounds(own, facts)
            terms += [(times, low, high) for times in apart if times]
        if _excludes_zero(constant, [term for term in terms if term[0]]):
            return True
    return False


def _last(extent: Expr, facts: Facts) -> int | None:
    """The last iteration of a loop, where that is a number."""
    high = int(extent.value) if isinstance(extent, Const) else bounds(extent, facts).hi
    return None if high is None else high - 1


def _excludes_zero(constant: int, terms: list[tuple[int, int | None, int | None]]) -> bool:
    """Whether a sum of multiples of numbers in intervals is never 0, or never once multiples of some number are left out."""
    for unit in (0, *{abs(times) for times, _, _ in terms if abs(times) > 1}):
        low: int | None = constant
        high: int | None = constant
        for times, first, last in terms:
            if unit and times % unit == 0:
                continue
            near, far = (first, last) if times > 0 else (last, first)
            low = None if low is None or near is None else low + times * near
            high = None if high is None or far is None else high + times * far
        if unit and low is not None and high is not None and low // unit == high // unit and low % unit:
            return True
        if not unit and ((low is not None and low > 0) or (high is not None and high < 0)):
            return True
    return False


def never_meet(first: ElementAccess, second: ElementAccess, var: Var, facts: Facts, changed: frozenset[Buffer] = frozenset()) -> bool:
    """Whether `first` in an iteration of the loop over `var`, and `second` in a later one, are proven to touch different elements.

    `facts` hold in the loop's body; what is read from the buffers `changed` may differ from one iteration to the next.
    """
    step = loop_var(f"{var.name}'")
    renamed: dict[Node, Node] = {var: var + step}
    ranges = list(first.scope.ranges)
    for k, (own, extent) in enumerate(second.scope.ranges):
        other = loop_var(f"{own.name}''{k}")
        ranges.append((other, substitute(extent, renamed)))
        renamed[own] = other
    for own in second.scope.unknown:
        renamed[own] = loop_var(f"{own.name}''")
    pairs = [
        (a, substitute(b, renamed))
        for a, b in zip(first.indices, second.indices, strict=True)
        if a.dtype is i64 and b.dtype is i64 and not (buffers_read(a) | buffers_read(b)) & changed
    ]
    distances = [polynomial(b).minus(polynomial(a)) for a, b in pairs]
    known = _two_iterations(facts, var, step)
    for own, extent in ranges:
        if not buffers_read(extent) & changed:
            known = known.with_range(own, extent)
    if any(_is_never_zero(distance, known) for distance in distances):
        return True
    moving = [(pair, distance) for pair, distance in zip(pairs, distances, strict=True) if step in variables(pair[1])]
    if any(_is_proven(distance, known) for _, distance in moving if not _has_divisions(distance)):
        return True
    range_ = facts.variables.get(var)
    guarded = known if range_ is None or range_.hi is None else known.assume(var + step <= range_.hi)
    for part in (*conjuncts(first.where), *(substitute(part, renamed) for part in conjuncts(second.where))):
        if not buffers_read(part) & changed:
            guarded = guarded.assume(part)
    if any(_differ(a, b, guarded) for (a, b), _ in moving):
        return True
    if any(_differ(a, b, guarded) for a, b in _numbers(pairs, first.buffer)):
        return True
    for k, (a, b) in enumerate(pairs if len(pairs) > 1 else ()):  # where all the others are equal
        if _differ(a, b, guarded.assume(logical_and(*(equal(*other) for other in (*pairs[:k], *pairs[k + 1 :]))))):
            return True
    if guarded.nonnegative:
        counting = guarded.counting_guards()
        if any(_differ(a, b, counting) for a, b in (*(pair for pair, _ in moving), *_numbers(pairs, first.buffer))):
            return True
    return are_counted_apart(first, second, var, facts, changed)


@lru_cache(256)
def _two_iterations(facts: Facts, var: Var, step: Var) -> Facts:
    """Also what is known of the distance `step` of two iterations of the loop over `var`."""
    known = facts.with_bounds(step, 1, None)
    range_ = facts.variables.get(var)
    return known if range_ is None else Facts({**known.variables, step: VarFact(const(1), range_.hi)}, facts.nonnegative, facts)


def _differ(a: Expr, b: Expr, facts: Facts) -> bool:
    distance = polynomial(simplify(b - a, facts))
    return _is_never_zero(distance, facts) or _is_proven(distance, facts)


def _is_never_zero(distance: Polynomial, facts: Facts) -> bool:
    """Whether its bounds tell, or those of the rest when multiples of a number are left out."""
    if distance.is_constant:
        return distance.constant != 0
    ends = poly_bounds(distance, facts)
    if (ends.lo is not None and ends.lo > 0) or (ends.hi is not None and ends.hi < 0):
        return True
    for unit in {abs(times) for times in distance.terms.values()} - {1}:
        rest = Polynomial({monomial: times for monomial, times in distance.terms.items() if times % unit}, distance.constant)
        low, high = poly_bounds(rest, facts)
        if low is not None and high is not None and low // unit == high // unit and low % unit:
            return True
    return False


def _is_proven(distance: Polynomial, facts: Facts) -> bool:
    """Whether it is proven to be positive, or negative."""
    return proves_nonnegative(distance.plus_const(-1), facts) or proves_nonnegative(distance.scaled(-1).plus_const(-1), facts)


def _has_divisions(distance: Polynomial) -> bool:
    return any(not isinstance(atom, Var) for monomial in distance.terms for atom in monomial)


def _numbers(pairs: Sequence[tuple[Expr, Expr]], buffer: Buffer) -> Iterator[tuple[Expr, Expr]]:
    """Sums of multiples of the indices of both accesses: where these differ, the indices do.

    The numbers of which two indices are a quotient and a remainder, again with those as indices, and the offset in memory.
    """
    known = list(pairs)
    k = 0
    while k < len(known) and len(known) <= len(pairs) + _MOST_SUMS:
        for j in range(k):
            for high, low in ((k, j), (j, k)):
                found = _joined(known[high], known[low])
                if found is not None and found not in known:
                    known.append(found)
                    yield found
        k += 1
    if len(pairs) == len(buffer.shape) > 1:
        first: Expr = const(0)
        second: Expr = const(0)
        for (a, b), dim in zip(pairs, buffer.shape, strict=True):
            first, second = mul(first, dim) + a, mul(second, dim) + b
        yield first, second


_MOST_SUMS = 8


def _joined(high: tuple[Expr, Expr], low: tuple[Expr, Expr]) -> tuple[Expr, Expr] | None:
    """x for (x // c, x % c), also where these are parts of sums."""
    for (quotient,), times in _atoms_of(high[0], FloorDiv):
        divided = quotient.lhs
        for (rest,), each in _atoms_of(low[0], FloorMod):
            inner = rest.lhs
            digit = mul(inner.rhs, rest.rhs) if isinstance(inner, FloorDiv) else rest.rhs  # of (y // a) % b and y // (a * b)
            of = inner.lhs if isinstance(inner, FloorDiv) else inner
            if (inner is divided and rest.rhs is quotient.rhs) or (of is divided and simplify(digit) is simplify(quotient.rhs)):
                a, b = (simplify(mul(mul(high[side], rest.rhs), each) + mul(low[side], times)) for side in (0, 1))
                return a, b
    return None


def _atoms_of(index: Expr, kind: type[Expr]) -> Iterator[tuple[tuple[Any, ...], int]]:
    """The atoms of a kind that an index adds up, and how many of each."""
    terms = polynomial(index).terms.items()
    return ((monomial, times) for monomial, times in terms if len(monomial) == 1 and isinstance(monomial[0], kind))


# -- all accesses of a loop


def _with_sizes(func: PrimFunc) -> tuple[DimFact, ...]:
    """The promises about dims, and that a size is not negative."""
    promised = {fact.var for fact in func.facts}
    sizes = dict.fromkeys(dim for buffer in func.buffers for dim in buffer.shape if isinstance(dim, Var) and dim not in promised)
    return (*func.facts, *(DimFact(dim, 0) for dim in sizes))


class _Proof:
    """What is known of the accesses of one loop."""

    def __init__(self, func: PrimFunc, place: Place, what: str, kind: LoopKind) -> None:
        self.place = place
        self.what = what
        self.kind = kind
        self.func = func = replace(func, facts=_with_sizes(func))
        self.facts = facts_inside(func, place)
        self.changed = buffers_written(place.loop.body)
        found = accesses(place.loop.body, self.changed.difference(allocated_in(place.loop.body)))
        self.stores = [access for access in found if access.is_store]
        self.loads = [access for access in found if not access.is_store]
        self.blocks = [each for each in statements_from(place) if isinstance(each.stmt, Block)]
        self._apart: dict[tuple[object, object], bool] = {}
        self._differ: dict[tuple[object, object], bool] = {}

    def check(self) -> None:
        for buffer in dict.fromkeys(store.buffer for store in self.stores):
            self.check_buffer(buffer)

    def check_buffer(self, buffer: Buffer) -> None:
        stores = [store for store in self.stores if store.buffer is buffer]
        loads = [load for load in self.loads if load.buffer is buffer]
        if self.is_private(buffer):
            return
        for load in loads:
            met = next((store for store in stores if not self.are_apart(store, load)), None)
            if met is not None and (self.kind is LoopKind.BOUND or not self.is_made_before(load)):
                self.refuse("reads", load, met)
        pairs = [(store, other) for k, store in enumerate(stores) for other in stores[: k + 1]]
        left = [(a, b) for a, b in pairs if not self.differ(a, b)]
        if left and not self.makes_the_same(stores):
            for store, other in left:
                if not self.are_apart(store, other):
                    self.refuse("writes", store, other)

    def refuse(self, verb: str, access: ElementAccess, met: ElementAccess) -> None:
        loop, buffer = self.place.loop.var.name, access.buffer.name
        names = [f"block {each.block.name}" if each.block is not None else "a loop or a condition" for each in (access, met)]
        raise ScheduleError(
            f"{self.what}: an iteration of loop {loop} {verb} {buffer} where another one writes it, as far as is known: "
            f"{names[0]} touches {access}, {names[1]} {met}"
        )

    def are_apart(self, a: ElementAccess, b: ElementAccess) -> bool:
        """Whether two accesses in different iterations never meet."""
        return self.differ(a, b) or (self.never_meet(a, b) and (a.form == b.form or self.never_meet(b, a)))

    def differ(self, a: ElementAccess, b: ElementAccess) -> bool:
        """Whether that is seen at a glance."""
        key = (a.form, b.form)
        if key not in self._differ:
            loop = self.place.loop
            found = differ_at_a_glance(a, b, loop.var, loop.extent, self.facts)
            self._differ[key] = found and (a.form == b.form or differ_at_a_glance(b, a, loop.var, loop.extent, self.facts))
        return self._differ[key]

    def never_meet(self, a: ElementAccess, b: ElementAccess) -> bool:
        key = (a.form, b.form)
        if key not in self._apart:
            self._apart[key] = never_meet(a, b, self.place.loop.var, self.facts, self.changed)
        return self._apart[key]

    def is_seen_by_others(self, load: ElementAccess) -> bool:
        """Whether a buffer of threads may be theirs together: `compact_buffers` does not allocate inside what is read where data say."""
        return self.kind is LoopKind.BOUND and any(map(reads_memory, load.indices))

    def is_private(self, buffer: Buffer) -> bool:
        """Whether each iteration may have a buffer of its own in place of this one: nothing is in it before, and nothing is read after."""
        loads = [load for load in self.loads if load.buffer is buffer]
        return self.is_own(buffer) and all(self.is_made_before(load) and not self.is_seen_by_others(load) for load in loads)

    def are_stores_apart(self, buffer: Buffer) -> bool:
        """Whether no two iterations write the same element of a buffer."""
        stores = [store for store in self.stores if store.buffer is buffer]
        return all(self.are_apart(store, other) for k, store in enumerate(stores) for other in stores[: k + 1])

    def is_own(self, buffer: Buffer) -> bool:
        """Whether a buffer is scratch memory that nothing outside of the loop's body uses."""
        path = (*self.place.path, self.place.stmt)
        start = next((k for k, stmt in enumerate(path) if isinstance(stmt, Alloc) and stmt.buffer is buffer), None)
        if start is None:
            return False
        for stmt, inner in zip(path[start:], path[start + 1 :], strict=False):
            others = [child for child in inner_statements(stmt) if child is not inner]
            if buffer in own_reads(stmt) or any(touches(child, buffer) for child in others):
                return False
        return buffer not in own_reads(self.place.loop)

    def is_made_before(self, load: ElementAccess) -> bool:
        """Whether the iteration is known to have made what a load of it reads."""
        reader = next((each for each in self.blocks if each.stmt is load.block), None)
        if reader is None:
            return False
        if reader.block.init is not None and all(
            store.indices == load.indices for store in self.stores if store.block is load.block and store.buffer is load.buffer
        ):
            return True
        return any(self.makes_all_that(reader, other, load.buffer) for other in self.blocks[: self.blocks.index(reader)])

    def makes_all_that(self, reader: Place, writer: Place, buffer: Buffer) -> bool:
        """Whether a block has made all that another one behind it reads of a buffer, in each iteration of the loops around both."""
        if buffer not in buffers_written(writer.block) or not _always_stores(writer.block, buffer):
            return False
        shared = [stmt for stmt, other in zip(reader.path, writer.path) if stmt is other]
        depth = max(k for k, stmt in enumerate(shared) if isinstance(stmt, For))
        target = Place(shared[depth], tuple(shared[:depth]))
        facts = facts_inside(self.func, target)
        made = part_written(target, writer, buffer, facts)
        if made is None or not self.runs_where(writer, reader, target, facts):
            return False
        read = parts_read(self.func, target, [reader], buffer)
        return all(
            prove(logical_and(a.low <= b.low, b.low + b.extent <= a.low + a.extent), facts) is True
            or prove(logical_and(a.low <= 0, a.low + a.extent >= dim), facts) is True
            for a, b, dim in zip(made, read, buffer.shape, strict=True)
        )

    def runs_where(self, writer: Place, reader: Place, target: Place, facts: Facts) -> bool:
        """Whether the conditions of a block hold at all of its points, or where another one runs."""
        depth = len(target.path) + 1
        inside = writer.path[depth:]
        if not all(isinstance(stmt, (For, Seq, Alloc)) for stmt in inside):
            return False
        for stmt in inside:
            if isinstance(stmt, For):
                facts = facts.with_range(stmt.var, stmt.extent)
        for axis in writer.block.axes:
            facts = facts.assume(logical_and(axis.value >= 0, axis.value < axis.extent))
        given = set(conjuncts(reader.block.where))
        return all(
            (part in given and not variables(part) & {stmt.var for stmt in reader.path[depth:] if isinstance(stmt, For)})
            or prove(part, facts) is True
            for part in conjuncts(writer.block.where)
        )

    def makes_the_same(self, stores: Sequence[ElementAccess]) -> bool:
        """Whether an element that two iterations make is the same in both: one block makes it, of what no iteration changes."""
        blocks = {store.block for store in stores}
        if len(blocks) != 1 or None in blocks:
            return False
        (block,) = blocks
        assert block is not None
        plain = all(axis.kind is AxisKind.SPATIAL for axis in block.axes) and not any(
            isinstance(node, (Block, For, While, IntrinsicCall)) for node in walk(block.body)
        )
        buffer = stores[0].buffer
        return plain and buffer not in buffers_read(block) and _tells_its_point(block, buffer, self.func) and self.is_settled(block, ())

    def is_settled(self, block: Block, seen: tuple[Block, ...]) -> bool:
        """Whether what a block reads is the same in all iterations that make the same point of it."""
        if block in seen:
            return True
        for load in self.loads:
            if load.block is not block or all(self.are_apart(store, load) for store in self.stores if store.buffer is load.buffer):
                continue
            makers = {store.block for store in self.stores if store.buffer is load.buffer}
            for maker in makers:
                if maker is None or not _tells_its_point(maker, load.buffer, self.func) or not _is_whole(maker, self.func):
                    return False
                if not self.is_settled(maker, (*seen, block)):
                    return False
        return True


def _is_whole(block: Block, func: PrimFunc) -> bool:
    """Whether the condition of a block leaves out nothing but what is no point of its axes."""
    facts = Facts.of(func.facts)
    for axis in block.axes:
        facts = facts.assume(logical_and(axis.value >= 0, axis.value < axis.extent))
    return all(prove(part, facts) is True for part in conjuncts(block.where))


def _always_stores(block: Block, buffer: Buffer) -> bool:
    """Whether a block stores to a buffer whenever it runs."""
    parts = [block.body] if block.init is None else [block.init]
    while parts:
        stmt = parts.pop()
        if isinstance(stmt, Store) and stmt.buffer is buffer:
            return True
        if isinstance(stmt, (Seq, Let, Alloc)):
            parts += inner_statements(stmt)
    return False


def _tells_its_point(block: Block, buffer: Buffer, func: PrimFunc) -> bool:
    """Whether different points of a block's spatial axes are different elements of a buffer."""
    axes = [axis for axis in block.axes if axis.kind is AxisKind.SPATIAL and axis.extent is not const(1)]
    others = tuple((axis.var, axis.extent) for axis in block.axes if axis.kind is not AxisKind.SPATIAL)
    stores = dict.fromkeys(node.indices for node in walk(block) if isinstance(node, Store) and node.buffer is buffer)
    outside = unbound(block.body) - {axis.var for axis in block.axes} - {*func.dims}
    if len(stores) != 1 or any(isinstance(node, (For, Let)) for node in walk(block.body)) or any(isinstance(node, Var) for node in outside):
        return False
    (indices,) = stores
    orders = ([*axes], [*reversed(axes)]) if len(axes) > 1 else ([*axes],)

    def holds_in(order: list[BlockAxis]) -> bool:
        facts = Facts.of(func.facts)
        for k, axis in enumerate(order):
            if variables(axis.extent) <= {*func.dims} and not reads_memory(axis.extent):
                facts = facts.with_range(axis.var, axis.extent)
            free = (*((each.var, each.extent) for each in order[k + 1 :]), *others)
            access = ElementAccess(buffer, indices, True, AccessScope({}, block, free))
            if not differ_at_a_glance(access, access, axis.var, axis.extent, facts) and not never_meet(access, access, axis.var, facts):
                return False
        return True

    return any(map(holds_in, orders))
