"""Find the inputs whose memory the first output may take over: those read only where the output is written, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tc.cost.typical import typical
from tc.ir.arith import EMPTY, Facts, linear_coefficients, prove, simplify
from tc.ir.expr import Buffer, Expr, Load, Var, add, const, mul, sub
from tc.ir.loop import Alloc, For, If, PrimFunc, Seq, Stmt, Store, walk_statements
from tc.ir.node import Node, children, replace, walk
from tc.ir.uses import buffers_read, reads_memory, variables
from tc.passes.manager import loop_pass

_UNLIKE_OTHERS = 37
"""A size of dims that hardly any constant of a program has: factors are told apart by it."""


@dataclass(frozen=True)
class Site:
    """A store: its indices, the loops around it, and what is known there."""

    store: Store
    loops: tuple[For, ...]
    facts: Facts


@loop_pass
def mark_in_place(func: PrimFunc) -> PrimFunc:
    """Set the attribute "in_place" to the numbers of the inputs that may be the same memory as the first output.

        for i in parallel(64):                                  for i in parallel(64):      # in_place=(0,)
            y[i] = x[i] * w[63 - i]                      =>         y[i] = x[i] * w[63 - i]

    An input qualifies when it has the output's shape and element size, every load of it stands in the value of a store to the
    output at the same indices, and no element of the output is stored twice (so that nothing reads what was overwritten). That is
    proven from the loops: each store's indices are one to one with its loops, and different stores write different ranges.
    """
    attrs = tuple(item for item in func.attrs if item[0] != "in_place")  # what is claimed counts as little as any other word
    func = replace(func, attrs=attrs) if attrs != func.attrs else func
    if not func.outputs:
        return func
    output = func.outputs[0]
    candidates = [
        k for k, buffer in enumerate(func.inputs) if _same_memory(buffer, output) and _read_where_written(func, buffer, output)
    ]
    if not candidates or not is_stored_once(func, output):
        return func
    return replace(func, attrs=(*func.attrs, ("in_place", tuple(candidates))))


def _same_memory(buffer: Buffer, output: Buffer) -> bool:
    same_shape = len(buffer.shape) == len(output.shape) and all(map(_is_same, buffer.shape, output.shape))
    return same_shape and buffer.dtype.bits == output.dtype.bits and buffer.strides is None and output.strides is None


def _is_same(a: Expr, b: Expr) -> bool:
    return a is b


def _read_where_written(func: PrimFunc, buffer: Buffer, output: Buffer) -> bool:
    """Whether every load of `buffer` is at the indices, and in the value, of a store to `output`; and `output` is not read."""
    if output in buffers_read(func.body) or buffer not in buffers_read(func.body):
        return False
    allowed = 0
    for node in walk_statements(func.body):
        if isinstance(node, Store) and node.buffer is output:
            loads = _loads(node.value, buffer)
            if not all(load.indices == node.indices for load in loads):
                return False
            allowed += len(loads)
    return len(_loads(func.body, buffer)) == allowed


def _loads(node: Node, buffer: Buffer) -> list[Load]:
    """The loads of a buffer at or below a node, one that is shared by several as often as it occurs."""
    if buffer not in buffers_read(node):
        return []
    own = [node] if isinstance(node, Load) and node.buffer is buffer else []
    return own + [load for child in children(node) for load in _loads(child, buffer)]


def is_stored_once(func: PrimFunc, output: Buffer) -> bool:
    """Whether it is proven that no two iterations store the same element of `output`."""
    sites = _sites(func.body, output, (), Facts.of(func.facts))
    if not sites:
        return False
    dims = set(func.dims)
    for k, site in enumerate(sites):
        if not is_one_to_one(site, output, dims):
            return False
        if not all(_are_apart(site, other) for other in sites[:k]):
            return False
    return True


def _sites(stmt: Stmt, output: Buffer, loops: tuple[For, ...], facts: Facts) -> list[Site] | None:
    """The stores to `output` below a statement; None when one stands where nothing can be said."""
    match stmt:
        case Store(buffer=buffer):
            return [Site(stmt, loops, facts)] if buffer is output else []
        case For(var=var, extent=extent, body=body):
            return _sites(body, output, (*loops, stmt), facts.with_range(var, extent))
        case Alloc(body=body):
            return _sites(body, output, loops, facts)
        case If(condition=condition, then_body=then_body, else_body=else_body):
            inner = [(then_body, facts.assume(condition)), *([(else_body, facts)] if else_body is not None else [])]
            return _joined([_sites(part, output, loops, known) for part, known in inner])
        case Seq(stmts=stmts):
            return _joined([_sites(part, output, loops, facts) for part in stmts])
    return None if any(isinstance(node, Store) and node.buffer is output for node in walk(stmt)) else []


def _joined(parts: list[list[Site] | None]) -> list[Site] | None:
    found: list[Site] = []
    for part in parts:
        if part is None:
            return None
        found += part
    return found


def _groups(indices: Sequence[Expr], loop_vars: set[Var]) -> list[tuple[list[int], set[Var]]]:
    """Axes that share loop variables, together: (axes, variables)."""
    groups: list[tuple[list[int], set[Var]]] = []
    for axis, index in enumerate(indices):
        axes, own = [axis], set(variables(index) & loop_vars)
        for other in [group for group in groups if group[1] & own]:
            groups.remove(other)
            axes, own = [*other[0], *axes], own | other[1]
        groups.append((axes, own))
    return groups


def is_one_to_one(site: Site, output: Buffer, dims: set[Var]) -> bool:
    """Whether the loops' variables follow from the indices."""
    loop_vars = {loop.var for loop in site.loops}
    used: set[Var] = set()
    for axes, own in _groups(site.store.indices, loop_vars):
        used |= own
        offset: Expr = const(0)
        for axis in axes:
            index = site.store.indices[axis]
            if reads_memory(index) or not variables(index) <= loop_vars | dims:
                return False
            offset = add(mul(offset, output.shape[axis]), index)
        extents = {loop.var: loop.extent for loop in site.loops if loop.var in own}
        if not _is_mixed_radix(simplify(offset, site.facts), extents, site.facts):
            return False
    return all(loop.var in used or loop.extent is const(1) for loop in site.loops)


def _is_mixed_radix(offset: Expr, extents: dict[Var, Expr], facts: Facts) -> bool:
    """Whether offset = sum of factor * variable, each factor beyond what all smaller ones reach together."""
    if not extents:
        return True
    form = linear_coefficients(offset, extents)
    if form is None or set(form[0]) != set(extents):
        return False
    reach: Expr = const(0)
    for var, factor in sorted(form[0].items(), key=lambda item: _typical(item[1])):
        if prove(reach < factor, facts) is not True:
            return False
        reach = add(reach, mul(factor, sub(extents[var], const(1))))
    return True


def _typical(factor: Expr) -> int:
    return typical(factor, EMPTY, _UNLIKE_OTHERS)


def _are_apart(first: Site, second: Site) -> bool:
    """Whether two stores, each one to one, never write the same element.

    Where both have the same index made of shared loops, the shared variables are equal whenever the indices are; then some other
    index, which speaks of those variables at most, must be smaller in one of the stores.
    """
    shared = {loop.var for loop in first.loops} & {loop.var for loop in second.loops}
    own = ({loop.var for loop in first.loops} | {loop.var for loop in second.loops}) - shared
    pairs = list(zip(first.store.indices, second.store.indices, strict=True))
    same = [a for a, b in pairs if a is b and not variables(a) & own]
    pinned = frozenset().union(*(variables(index) for index in same if isinstance(index, Var)))
    facts = first.facts
    for loop in second.loops:
        facts = facts.with_range(loop.var, loop.extent)
    for condition in second.facts.nonnegative:
        facts = Facts(facts.variables, (*facts.nonnegative, condition))
    for a, b in pairs:
        if (variables(a) | variables(b)) & shared <= pinned and (prove(a < b, facts) or prove(b < a, facts)):
            return True
    return False
