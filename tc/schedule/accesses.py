"""What a statement touches: every load and store below it, by the loops around and what each is under."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from tc.ir.box_copies import Arrive, CopyBox, SetUpBarrier
from tc.ir.cached import cached_property
from tc.ir.dtype import i64
from tc.ir.expr import TRUE, Buffer, Expr, Load, Var, const, logical_and, logical_not
from tc.ir.intrinsic import INTRINSICS, is_of_group
from tc.ir.loop import (
    AsyncStore,
    Block,
    BlockAxis,
    For,
    If,
    IntrinsicCall,
    Let,
    Stmt,
    Store,
    WarpCall,
    inner_statements,
)
from tc.ir.node import Node, children, substitute
from tc.ir.polynomial import polynomial
from tc.ir.uses import buffers_read, buffers_written
from tc.schedule.tree import loop_var


@dataclass(frozen=True, eq=False)
class AccessScope:
    """What surrounds an access, below the statement in question.

    `values`: of the axes of blocks, in terms of loops. `block`: the outermost one, None for what loops and conditions read. `ranges`: the
    variables of loops, with their extents, outermost first. `unknown`: variables of which nothing is known.
    """

    values: dict[Node, Node]
    block: Block | None = None
    ranges: tuple[tuple[Var, Expr], ...] = ()
    unknown: frozenset[Var] = frozenset()
    conditions: tuple[tuple[Expr, dict[Node, Node]], ...] = ()

    def within(self, **changes: object) -> AccessScope:
        return AccessScope(**{**self.__dict__, **changes})


@dataclass(frozen=True, eq=False)
class ElementAccess:
    """A load from or a store to an element; `text` are the indices as they are written."""

    buffer: Buffer
    text: tuple[Expr, ...]
    is_store: bool
    scope: AccessScope
    is_async: bool = False

    @property
    def block(self) -> Block | None:
        return self.scope.block

    @property
    def form(self) -> tuple[object, ...]:
        """What decides where it is."""
        return self.text, id(self.scope)

    @cached_property
    def indices(self) -> tuple[Expr, ...]:
        """The indices in terms of loops."""
        return tuple(substitute(index, self.scope.values) for index in self.text)

    @cached_property
    def where(self) -> Expr:
        """The conditions that it is under, in terms of loops."""
        return logical_and(*(substitute(condition, values) for condition, values in self.scope.conditions))

    @cached_property
    def linear(self) -> tuple[dict[Var | None, int] | None, ...]:
        """How many of each variable an index adds up, and of None: of 1; None for one that is no such sum."""
        return tuple(_linear(index, self.scope.values) for index in self.text)

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(str, self.indices))}]"


def _linear(index: Expr, values: dict[Node, Node]) -> dict[Var | None, int] | None:
    if index.dtype is not i64:
        return None
    poly = polynomial(index)
    found: dict[Var | None, int] = {None: poly.constant}
    for monomial, times in poly.terms.items():
        (atom,) = monomial if len(monomial) == 1 else (None,)
        value = values.get(atom, atom) if isinstance(atom, Var) else None
        if isinstance(value, Var):
            found[value] = found.get(value, 0) + times
            continue
        inner = None if value is None else _linear(value, {})  # type: ignore[arg-type]
        if inner is None:
            return None
        for var, count in inner.items():
            found[var] = found.get(var, 0) + times * count
    return found


def accesses(stmt: Stmt, buffers: Set[Buffer]) -> list[ElementAccess]:
    """Every load from and store to some buffers at or below a statement, each once."""
    found: dict[object, ElementAccess] = {}
    for access in _accesses(stmt, AccessScope({}), buffers):
        found.setdefault((access.buffer, access.is_store, access.is_async, *access.form), access)
    return list(found.values())


def _accesses(stmt: Stmt, scope: AccessScope, buffers: Set[Buffer]) -> Iterator[ElementAccess]:
    if buffers_read(stmt).isdisjoint(buffers) and buffers_written(stmt).isdisjoint(buffers):
        return
    for part in children(stmt):
        if not isinstance(part, (Stmt, BlockAxis)):
            yield from _loads(part, scope, buffers)
    match stmt:
        case For(var=var, extent=extent, body=body):
            own = loop_var(f"{var.name}'{len(scope.ranges)}") if scope.block is not None else var
            ranges = (*scope.ranges, (own, substitute(extent, scope.values)))
            values = scope.values if own is var else {**scope.values, var: own}
            yield from _accesses(body, scope.within(values=values, ranges=ranges), buffers)
        case Block(axes=axes, body=body, init=init, where=where):
            for axis in axes:
                yield from _loads(axis.value, scope, buffers)
            values = {**scope.values, **{axis.var: substitute(axis.value, scope.values) for axis in axes}}
            conditions = scope.conditions if where is TRUE else (*scope.conditions, (where, scope.values))
            inner = scope.within(values=values, block=scope.block or stmt, conditions=conditions)
            if init is not None:
                yield from _accesses(init, inner, buffers)
            yield from _accesses(body, inner, buffers)
        case If(condition=condition, then_body=then_body, else_body=else_body):
            yield from _accesses(then_body, scope.within(conditions=(*scope.conditions, (condition, scope.values))), buffers)
            if else_body is not None:
                other = (logical_not(condition), scope.values)
                yield from _accesses(else_body, scope.within(conditions=(*scope.conditions, other)), buffers)
        case Let(var=var, body=body):
            yield from _accesses(body, scope.within(unknown=scope.unknown | {var}), buffers)
        case Store(buffer=buffer, indices=indices) if buffer in buffers:
            yield ElementAccess(buffer, indices, True, scope, isinstance(stmt, AsyncStore))
        case WarpCall(operands=operands):
            for operand, part in zip(operands, INTRINSICS[stmt.name].pattern.buffers, strict=True):
                if operand.buffer in buffers:
                    yield _tile(operand, part, scope) if part.scope == "shared" and is_of_group(stmt.name) else _row(operand, scope)
        case CopyBox(buffer=buffer, indices=indices, filled=filled) if buffer in buffers:
            yield _all_of(buffer, indices, [const(extent) for extent in filled or ()], scope, True)
        case SetUpBarrier(barrier=barrier) | Arrive(barrier=barrier) if barrier.buffer in buffers:
            yield ElementAccess(barrier.buffer, barrier.indices, True, scope)
        case IntrinsicCall(name=name, operands=operands) if name != "prefetch":
            yield from _accesses(INTRINSICS[name].expand(operands), scope, buffers)
        case _:
            for child in inner_statements(stmt):
                yield from _accesses(child, scope, buffers)


def _row(operand: Load, scope: AccessScope) -> ElementAccess:
    """The 16 bytes of a row of a matrix, of which an operand is the first element."""
    own = loop_var("element")
    ranges = (*scope.ranges, (own, const(16 // operand.dtype.size_bytes)))
    return ElementAccess(operand.buffer, (*operand.indices[:-1], operand.indices[-1] + own), False, scope.within(ranges=ranges))


def _tile(operand: Load, part: Buffer, scope: AccessScope) -> ElementAccess:
    """A matrix in shared memory, of which an operand is the first element."""
    return _all_of(operand.buffer, operand.indices, part.shape, scope, False)


def _all_of(buffer: Buffer, first: Sequence[Expr], extents: Sequence[Expr], scope: AccessScope, is_store: bool) -> ElementAccess:
    """So many elements along the last dims, from one on."""
    own = [loop_var(f"element{k}") for k in range(len(extents))]
    lead = len(first) - len(own)
    indices = (*first[:lead], *(index + var for index, var in zip(first[lead:], own, strict=True)))
    ranges = (*scope.ranges, *zip(own, extents, strict=True))
    return ElementAccess(buffer, indices, is_store, scope.within(ranges=ranges))


def _loads(node: Node, scope: AccessScope, buffers: Set[Buffer]) -> Iterator[ElementAccess]:
    if buffers_read(node).isdisjoint(buffers):
        return
    if isinstance(node, Load) and node.buffer in buffers:
        yield ElementAccess(node.buffer, node.indices, False, scope)
    for child in children(node):
        if isinstance(child, Expr):
            yield from _loads(child, scope, buffers)
