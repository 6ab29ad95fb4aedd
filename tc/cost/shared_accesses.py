"""How often the accesses of a launch ask the banks of shared memory: by the addresses of the lanes of each warp, proven for all iterations.

The loops around an access need not run. What they add to all addresses of a warp alike, in whole words, moves all to other banks and
changes nothing. Only what they mix into those of the lanes is tried, value by value, and of elements narrower than a word each place
in a word at which the loops may let them begin, whether some iteration does or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from tc.ir.arith import Facts, simplify
from tc.ir.expr import TRUE, Buffer, Const, Expr, Load, Var, const, logical_and, logical_not
from tc.ir.launch import launches_in
from tc.ir.loop import Block, For, If, Let, LoopKind, PrimFunc, Store, walk_statements
from tc.ir.node import Node, children, substitute
from tc.ir.polynomial import Monomial, Polynomial, polynomial
from tc.ir.samples import Samples
from tc.ir.shared_memory import BANK_BYTES, least_wavefronts_of, wavefronts_of
from tc.ir.uses import variables

AXES = ("thread.x", "thread.y", "thread.z")
WARP = 32
WIDEST_BYTES = 16
"""What a lane reads or writes at once at most."""

MOST_TRIED = 1 << 12
"""Values of the loops around that are tried for an access."""


@dataclass(frozen=True)
class SharedAccess:
    """An access of shared memory, of `width_bytes` by each lane at once.

    `wavefronts` are those of the warp, and of the iteration of the loops around, for which they exceed by most the `least` that the
    same words need in banks as good as can be. None where data, or too many loops, decide.
    """

    access: Load | Store
    width_bytes: int
    wavefronts: int | None
    least: int | None

    @property
    def conflicts(self) -> int | None:
        """Wavefronts that another layout might save."""
        return None if self.wavefronts is None or self.least is None else self.wavefronts - self.least


def shared_accesses(func: PrimFunc) -> tuple[SharedAccess, ...]:
    """Those of a scheduled PrimFunc, or of one in the finished form, in the order of the text."""
    found: list[SharedAccess] = []
    for launch in launches_in(func.body):
        size = _block_size(launch)
        found += [_counted(each, size) for each in _accesses(launch, _Around(Facts.of(func.facts)))]
    return tuple(found)


def _block_size(launch: For) -> tuple[int, int, int]:
    """Threads along each axis."""
    sizes = dict.fromkeys(AXES, 1)
    for loop in walk_statements(launch):
        if isinstance(loop, For) and loop.thread in sizes:
            assert isinstance(loop.extent, Const), "the number of threads is known"
            sizes[loop.thread] = max(sizes[loop.thread], int(loop.extent.value))
    return sizes["thread.x"], sizes["thread.y"], sizes["thread.z"]


# -- accesses


@dataclass(frozen=True)
class _Around:
    """What is around an access: facts, what names stand for, thread loops by their axes, vectors, and conditions."""

    facts: Facts
    values: dict[Node, Node] = field(default_factory=dict)
    threads: tuple[For, ...] = ()
    vector: For | None = None
    condition: Expr = TRUE

    def told(self, expr: Expr) -> Expr:
        """In terms of loops."""
        return simplify(substitute(expr, self.values), self.facts)


@dataclass(frozen=True)
class _Place:
    access: Load | Store
    around: _Around


def _accesses(node: Node, around: _Around) -> Iterator[_Place]:
    if isinstance(node, (Load, Store)) and node.buffer.scope == "shared":
        yield _Place(node, around)
    match node:
        case Buffer():
            return
        case For(var=var, extent=extent, body=body):
            inside = replace(around, facts=around.facts.with_range(var, around.told(extent)))
            if node.thread in AXES:
                inside = replace(inside, threads=(*inside.threads, node))
            if node.kind is LoopKind.VECTORIZED:
                inside = replace(inside, vector=node)
            yield from _accesses(body, inside)
        case Let(var=var, value=value, body=body):
            yield from _accesses(value, around)
            yield from _accesses(body, replace(around, values={**around.values, var: around.told(value)}))
        case If(condition=condition, then_body=first, else_body=second):
            yield from _accesses(condition, around)
            told = around.told(condition)
            yield from _accesses(first, replace(around, condition=logical_and(around.condition, told)))
            if second is not None:
                yield from _accesses(second, replace(around, condition=logical_and(around.condition, logical_not(told))))
        case Block(axes=axes, where=where):
            values: dict[Node, Node] = {axis.var: around.told(axis.value) for axis in axes}
            inside = replace(around, values=around.values | values, condition=logical_and(around.condition, around.told(where)))
            for part in (node.init, node.body):
                if part is not None:
                    yield from _accesses(part, inside)
        case _:
            for child in children(node):
                yield from _accesses(child, around)


# -- counting


def _counted(place: _Place, size: tuple[int, int, int]) -> SharedAccess:
    buffer, around = place.access.buffer, place.around
    offset = polynomial(around.told(_offset(buffer, place.access.indices)))
    count, offset = _vector(offset, around.vector, buffer.dtype.size_bytes)
    worst: tuple[int, int] | None = (0, 0)
    for addresses in _warps(offset, place, count, size):
        if addresses is None:
            worst = None
            break
        width_bytes = count * buffer.dtype.size_bytes
        found = wavefronts_of(addresses, width_bytes), least_wavefronts_of(addresses, width_bytes)
        assert worst is not None
        worst = max(worst, found, key=lambda each: (each[0] - each[1], each[0]))
    wavefronts, least = worst or (None, None)
    return SharedAccess(place.access, count * buffer.dtype.size_bytes, wavefronts, least)


def _offset(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """In elements from the start of the buffer."""
    strides = buffer.strides
    if strides is None:
        sizes = [const(1)]
        for dim in reversed(buffer.shape[1:]):
            sizes.append(simplify(sizes[-1] * dim))  # type: ignore[arg-type]
        strides = tuple(reversed(sizes))
    total: Expr = const(0)
    for index, stride in zip(indices, strides, strict=True):
        total = total + index * stride
    return total


def _vector(offset: Polynomial, loop: For | None, size_bytes: int) -> tuple[int, Polynomial]:
    """How many neighbours a lane takes at once, and where the first one is: those of a vectorized loop, if they are, 16 bytes at most."""
    if loop is None or not isinstance(loop.extent, Const) or offset.terms.get((loop.var,)) != 1:
        return 1, offset
    rest = {monomial: factor for monomial, factor in offset.terms.items() if monomial != (loop.var,)}
    count = min(int(loop.extent.value), max(1, WIDEST_BYTES // size_bytes))
    is_whole = count & (count - 1) == 0 and all(factor % count == 0 for factor in rest.values()) and offset.constant % count == 0
    if not is_whole or any(loop.var in _used(monomial) for monomial in rest):
        return 1, offset
    return count, Polynomial(rest, offset.constant)


def _used(monomial: Monomial) -> set[Var]:
    return set().union(*(variables(atom) for atom in monomial))


def _warps(offset: Polynomial, place: _Place, count: int, size: tuple[int, int, int]) -> Iterator[list[int | None] | None]:
    """The addresses of the lanes of each warp, for all that loops may add to them differently; None for some that are not known."""
    around, size_bytes = place.around, place.access.buffer.dtype.size_bytes
    threads = {loop.var for loop in around.threads}
    moving = {monomial: factor for monomial, factor in offset.terms.items() if _used(monomial) & threads}
    alike = [factor for monomial, factor in offset.terms.items() if monomial not in moving]
    together = max(BANK_BYTES // size_bytes, count, 1)
    step = math.gcd(together, *alike)
    starts = range(offset.constant % step, together, step)
    others = sorted(set().union(*map(_used, moving)) - threads, key=str)
    ranges = [_values(var, around.facts) for var in others]
    if any(each is None for each in ranges) or math.prod(len(each or ()) for each in ranges) > MOST_TRIED:
        yield None
        return
    for first in range(0, math.prod(size), WARP):
        lanes = _Lanes.of(first, size, around)
        for values in product(*(each or () for each in ranges)):
            for start in starts:
                yield lanes.addresses(Polynomial(moving), dict(zip(others, values, strict=True)), start, size_bytes)


def _values(var: Var, facts: Facts) -> range | None:
    """Those of a loop of a known number of iterations."""
    fact = facts.variables.get(var)
    return range(int(fact.hi.value) + 1) if fact is not None and isinstance(fact.hi, Const) else None


@dataclass(frozen=True)
class _Lanes:
    """The lanes of a warp: the values of thread loops in each, and which carry out a statement."""

    columns: dict[Var, list[int]]
    taking: list[bool]

    @staticmethod
    def of(first: int, size: tuple[int, int, int], around: _Around) -> _Lanes:
        """Of the warp that begins with a thread. Conditions on other than threads are taken to hold."""
        numbers = range(first, min(first + WARP, math.prod(size)))
        coordinates = [(n % size[0], n // size[0] % size[1], n // (size[0] * size[1])) for n in numbers]
        loops = {loop.thread: loop for loop in around.threads}
        extents = [int(loops[axis].extent.value) if axis in loops else 1 for axis in AXES]  # type: ignore[attr-defined]
        taking = [all(x < extent for x, extent in zip(point, extents, strict=True)) for point in coordinates]
        lanes = _Lanes({loops[axis].var: [point[k] for point in coordinates] for k, axis in enumerate(AXES) if axis in loops}, taking)
        holds = lanes.column(around.condition, {}) if variables(around.condition) <= lanes.columns.keys() else None
        return lanes if holds is None else replace(lanes, taking=[a and bool(b) for a, b in zip(taking, holds, strict=True)])

    def addresses(self, moving: Polynomial, values: dict[Var, int], start: int, size_bytes: int) -> list[int | None] | None:
        """In bytes; None for a lane that takes no part, and None where data decides."""
        offsets = self.column(moving.to_expr(), values)
        if offsets is None:
            return None
        return [(each + start) * size_bytes if taking else None for each, taking in zip(offsets, self.taking, strict=True)]

    def column(self, expr: Expr, values: dict[Var, int]) -> Sequence[int] | None:
        """The values of an expression in the lanes; None where it reads memory."""
        count = len(self.taking)
        known: dict[Expr, Sequence[int] | None] = {var: column for var, column in self.columns.items()}  # noqa: C416  other types
        known |= {var: [value] * count for var, value in values.items()}
        return Samples(count, known).column(expr)
