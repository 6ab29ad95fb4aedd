"""What a reduction over no terms is: the identity of its monoid, as its initialisation says.

A block initialises a point where the point's first iteration runs, which no loop reaches where there is nothing to reduce. Whoever gives
blocks their meaning, the interpreter and `lower_blocks`, asks `start_empty_reductions` first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tc.ir.arith import Facts, prove
from tc.ir.dtype import i64
from tc.ir.expr import TRUE, Buffer, Expr, Var, conjuncts, const, equal, logical_and, logical_not, logical_or
from tc.ir.loop import Alloc, AxisKind, Block, BlockAxis, For, If, Let, PrimFunc, Seq, Stmt, inner_statements, seq
from tc.ir.node import Node, cached_on_node, map_children, replace, substitute
from tc.ir.paths import facts_along
from tc.ir.structural import fresh_binders
from tc.ir.uses import buffers_read, buffers_written, unbound, variables


def start_empty_reductions(func: PrimFunc) -> PrimFunc:
    """`func` with an initialisation in front of each reduction that is not known to run its own.

        for i in range(n):                          for i in range(n):
            for k in range(L[i]):                       if L[i] <= 0: C[i] = 0
                with block(vi = i, vk = k):     =>      for k in range(L[i]):
                    init: C[vi] = 0                         with block(vi = i, vk = k):
                    C[vi] = C[vi] + A[vi, vk]                   init: C[vi] = 0
                                                                ...

    It stands in front of the outermost loop of the reduction, under the loops inside that drive spatial axes. Where the first iteration
    may be left out although there are others, as the extent of a loop of the reduction depends on another one, or a condition on them,
    it replaces the block's own. The same object when every reduction is known to have a term.
    """
    if not has_start(func.body):
        return func
    return replace(func, body=_Starts(func).visit(func.body, ()))


@cached_on_node
def has_start(stmt: Stmt) -> bool:
    """Whether a block at or below a statement has an initialisation."""
    own = isinstance(stmt, Block) and stmt.init is not None
    return own or any(map(has_start, inner_statements(stmt)))


@dataclass
class _Starts:
    """One `start_empty_reductions`: what is to stand in front of which loop, until that loop is rebuilt."""

    func: PrimFunc
    before: dict[For, list[Stmt]] = field(default_factory=dict)

    def visit(self, stmt: Stmt, path: tuple[Stmt, ...]) -> Stmt:
        """The statement, rebuilt; `path`: those around it, outermost first."""
        if not has_start(stmt):
            return stmt
        if isinstance(stmt, Block) and stmt.init is not None:
            return self.block(stmt, path)
        inner = (*path, stmt)
        rebuilt = map_children(stmt, lambda node: self.visit(node, inner) if isinstance(node, Stmt) else node)
        return seq(*self.before.pop(stmt, ()), rebuilt) if isinstance(stmt, For) else rebuilt

    def block(self, block: Block, path: tuple[Stmt, ...]) -> Stmt:
        reduction = _reduction_of(block, path)
        start = None if reduction is None else _start_of(reduction, self.func)
        if start is not None:
            self.before.setdefault(start.loop, []).append(start.stmt)
        inner = (*path, block)
        return replace(block, body=self.visit(block.body, inner), init=None if start is not None and start.replaces else block.init)


@dataclass(frozen=True)
class _Start:
    """An initialisation, the loop that it stands in front of, and whether it replaces that of the block."""

    loop: For
    stmt: Stmt
    replaces: bool


@dataclass(frozen=True)
class _Reduction:
    """A block that reduces, from the outermost loop that an initialisation of it has to stand in front of.

    `around` are the statements around that loop, `inside` itself and those down to the block. Its axes and conditions are in terms of
    loops; `reducing` are the loops that drive axes which are not spatial, all of them inside.
    """

    block: Block
    around: tuple[Stmt, ...]
    inside: tuple[Stmt, ...]
    reducing: tuple[For, ...]
    spatial: tuple[BlockAxis, ...]
    others: tuple[BlockAxis, ...]
    conditions: tuple[Expr, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        return tuple(stmt for stmt in self.inside if isinstance(stmt, For))

    @property
    def counting(self) -> frozenset[Var]:
        """The variables of the loops that reduce."""
        return frozenset(loop.var for loop in self.reducing)


def _reduction_of(block: Block, path: tuple[Stmt, ...]) -> _Reduction | None:
    """None when no loop drives an axis of the reduction: then the block initialises in each of its runs."""
    own = path[1 + max((k for k, stmt in enumerate(path) if isinstance(stmt, Block)), default=-1) :]
    named: dict[Node, Node] = {}
    conditions = [block.where]
    for stmt, below in zip(own, (*own, block)[1:], strict=True):
        if isinstance(stmt, Let):
            named[stmt.var] = substitute(stmt.value, named)
        elif isinstance(stmt, If):
            conditions.append(stmt.condition if below is stmt.then_body else logical_not(stmt.condition))
    axes = [replace(axis, value=substitute(axis.value, named), extent=substitute(axis.extent, named)) for axis in block.axes]
    spatial = tuple(axis for axis in axes if axis.kind is AxisKind.SPATIAL)
    others = tuple(axis for axis in axes if axis.kind is not AxisKind.SPATIAL)
    counting = frozenset[Var]().union(*(variables(axis.value) for axis in others))
    reducing = tuple(stmt for stmt in own if isinstance(stmt, For) and stmt.var in counting)
    if not reducing:
        return None
    shared = frozenset[Var]().union(*(variables(axis.value) for axis in spatial if variables(axis.value) & counting))
    first = next(k for k, stmt in enumerate(own) if isinstance(stmt, For) and (stmt.var in counting or stmt.var in shared))
    start = len(path) - len(own) + first
    where = conjuncts(substitute(logical_and(*conditions), named))
    return _Reduction(block, path[:start], path[start:], reducing, spatial, others, tuple(where))


def _start_of(reduction: _Reduction, func: PrimFunc) -> _Start | None:
    """What a reduction needs beside its own initialisation; None when that is known to run, and where none can be made: a spatial
    axis is as long as the reduction says, or what is initialised is allocated inside."""
    facts = facts_along(func, reduction.around, reduction.inside[0])
    is_first = _begins_with_its_first(reduction, facts)
    empty = logical_or(*(loop.extent <= 0 for loop in reduction.reducing if prove(loop.extent >= 1, facts) is not True))
    if is_first and prove(empty, facts) is False:
        return None
    changed = buffers_written(reduction.inside[0])
    replaces = not is_first or bool(buffers_read(empty) & changed)
    stmt = _initialisation(reduction, None if replaces else empty, changed)
    return None if stmt is None else _Start(reduction.loops[0], stmt, replaces)


def _begins_with_its_first(reduction: _Reduction, facts: Facts) -> bool:
    """Whether the first iterations of the loops of a reduction, if each has one, start each of its points."""
    counting = reduction.counting
    for loop in reduction.loops:
        if variables(loop.extent) & counting:
            return False
        facts = facts.assume(loop.extent >= 1) if loop in reduction.reducing else facts.with_range(loop.var, loop.extent)
    shares = any(variables(axis.value) & counting for axis in reduction.spatial)
    zeros: dict[Node, Node] = dict.fromkeys(counting, const(0))
    if not shares and not all(prove(equal(substitute(axis.value, zeros), 0), facts) is True for axis in reduction.others):
        return False
    within = facts
    for axis in (*reduction.spatial, *reduction.others):
        within = within.assume(logical_and(axis.value >= 0, axis.value < axis.extent))
    for part in reduction.conditions:
        cuts = bool(variables(part) & counting) and prove(part, within) is not True  # more than what is no point at all
        if cuts and (shares or prove(substitute(part, zeros), facts) is not True):
            return False
    return True


def _initialisation(reduction: _Reduction, empty: Expr | None, changed: frozenset[Buffer]) -> Stmt | None:
    """The initialisation of all points of a reduction, in loops of its own; where it is empty, or always.

    An axis keeps the loops that drive it when these are there without the reduction, and else goes over the whole of its extent.
    """
    renamed = _kept_loops(reduction)
    lets = {stmt.var for stmt in reduction.inside if isinstance(stmt, Let)}
    lost = (lets | {loop.var for loop in reduction.loops}) - {loop.var for loop in renamed}
    whole = [axis for axis in reduction.spatial if variables(axis.value) & lost]
    conditions = [part for part in reduction.conditions if not variables(part) & lost]
    local = {stmt.buffer for stmt in reduction.inside if isinstance(stmt, Alloc)}
    init = reduction.block.init
    assert init is not None
    has_extents = not any(variables(axis.extent) & lost for axis in whole)
    if not has_extents or unbound(init) & local or any(buffers_read(part) & changed for part in conditions):
        return None
    own: dict[Node, Node] = {loop.var: var for loop, var in renamed.items()}
    values: dict[Node, Node] = {axis.var: substitute(axis.value, own) for axis in reduction.spatial}
    values |= {axis.var: Var(axis.var.name.removeprefix("v"), i64) for axis in whole}
    condition = substitute(logical_and(*conditions, *(() if empty is None else (empty,))), own)
    loops = [For(var, substitute(loop.extent, own), _NOTHING, loop.kind, loop.thread) for loop, var in renamed.items()]
    loops += [For(values[axis.var], substitute(axis.extent, own), _NOTHING) for axis in whole]  # type: ignore[arg-type]
    body: Stmt = substitute(fresh_binders(init), values)
    needed = variables(condition).union(*(variables(value) for value in values.values()))
    if condition is not TRUE and not variables(condition) & {loop.var for loop in loops}:
        return If(condition, _under(loops, body, needed))
    return _under(loops, body if condition is TRUE else If(condition, body), needed)


def _kept_loops(reduction: _Reduction) -> dict[For, Var]:
    """The loops that drive spatial axes alone and are as long as is known without the reduction, each with another variable."""
    bound: set[Var] = {stmt.var for stmt in reduction.inside if isinstance(stmt, (For, Let))}
    kept: dict[For, Var] = {}
    for loop in reduction.loops:
        if loop not in reduction.reducing and not variables(loop.extent) & bound:
            kept[loop] = Var(loop.var.name, i64)
            bound -= {loop.var}
    return kept


_NOTHING = Seq(())


def _under(loops: list[For], body: Stmt, needed: frozenset[Var]) -> Stmt:
    """A statement under those of some loops that it needs."""
    for loop in reversed(loops):
        if loop.var in needed:
            body = replace(loop, body=body)
            needed |= variables(loop.extent)
    return body
