"""The primitive that makes a second version of a program for some values of a dim."""

from __future__ import annotations

from tc.errors import ScheduleError
from tc.ir.arith import prove
from tc.ir.expr import Expr, ceildiv, const, logical_and
from tc.ir.loop import Alloc, Block, For, If, PrimFunc, Stmt, is_statement
from tc.ir.node import Node, replace, transform
from tc.ir.structural import fresh_binders
from tc.ir.uses import variables
from tc.schedule.tree import Place, facts_at, fresh_block_name, fresh_buffer_name, fresh_names, replace_stmt, statements


def specialize(func: PrimFunc, dim: str, at_least: int, second: str = "", second_at_least: int = 0) -> PrimFunc:
    """Two versions of the program, to be scheduled apart: one for a dim, or a loop, that is large enough, one for others.

        S          =>      if n >= 16: S
                           else: S'

    With a `second` dim, or loop, the first version is for those where both are.
    Loops, blocks and scratch buffers of the second version get new names. Of a program that has versions already, the one around
    the loop is made two. Raises ScheduleError unless `dim` is a symbolic dim of the function, or a loop whose extent dims decide,
    for which the question is open. Source: `specialize` of Halide.
    """
    place, extent = _find_extent(func, dim)
    condition, claim = const(at_least) <= extent, f"{dim} is {{}} at least {at_least}"
    if second:
        condition = logical_and(condition, const(second_at_least) <= _find_extent(func, second)[1])
        claim += f" and {second} {second_at_least}"
    return _with_versions(func, place, condition, claim)


def specialize_tiles(func: PrimFunc, dim: str, tile: int, tile_cost: int, other: int, other_cost: int) -> PrimFunc:
    """As `specialize`: one version for a dim, or a loop, that a tile fits and that such tiles cover no dearer than others do.

        S          =>      if 13 <= n and (n + 12) // 13 * 29 <= (n + 8) // 9 * 21: S
                           else: S'

    `tile`, `other`: iterations of a tile; the costs, here 29 and 21, are in any unit.
    """
    if min(tile, tile_cost, other, other_cost) < 1:
        raise ScheduleError(f"specialize: tiles of {tile} and {other} that cost {tile_cost} and {other_cost}; each is at least 1")
    place, extent = _find_extent(func, dim)
    is_cheaper = ceildiv(extent, tile) * tile_cost <= ceildiv(extent, other) * other_cost
    condition = logical_and(const(tile) <= extent, is_cheaper)
    return _with_versions(func, place, condition, f"{dim} is {{}} covered by tiles of {tile} as well as by tiles of {other}")


def _find_extent(func: PrimFunc, dim: str) -> tuple[Place, Expr]:
    """The root, or the version around the loop called `dim`, and the extent."""
    found = next((var for var in func.dims if var.name == dim), None)
    if found is not None:
        return Place(func.body, ()), found
    for place in statements(func.body):
        if isinstance(place.stmt, For) and place.stmt.var.name == dim and variables(place.stmt.extent) <= set(func.dims):
            depth = max((k + 1 for k, stmt in enumerate(place.path) if isinstance(stmt, If)), default=0)
            around = (*place.path, place.stmt)
            if not any(isinstance(stmt, For) for stmt in place.path[:depth]):
                return Place(around[depth], place.path[:depth]), place.stmt.extent
    known = ", ".join(var.name for var in func.dims) or "none"
    raise ScheduleError(f"specialize: {func.name} has no dim {dim}; there are: {known}")


def _with_versions(func: PrimFunc, place: Place, condition: Expr, claim: str) -> PrimFunc:
    """Make the statement at a place two; `claim` has a gap for "always" or "never"."""
    answer = prove(condition, facts_at(func, place))
    if answer is not None:
        raise ScheduleError(f"specialize: {claim.format('always' if answer else 'never')}")
    return replace_stmt(func, place, If(condition, place.stmt, _renamed_copy(func, place.stmt)))


def _renamed_copy(func: PrimFunc, stmt: Stmt) -> Stmt:
    """A statement again, with binders and names of its own."""
    places = list(statements(stmt))
    loops = [place.stmt.var for place in places if isinstance(place.stmt, For)]
    buffers = [place.stmt.buffer for place in places if isinstance(place.stmt, Alloc)]
    names: dict[Node, str] = dict(zip(loops, fresh_names(func, [var.name for var in loops]), strict=True))
    names.update((buffer, fresh_buffer_name(func, buffer.name)) for buffer in buffers)

    def rename(node: Node) -> Node | None:
        return replace(node, name=fresh_block_name(func, node.name)) if isinstance(node, Block) else None

    return transform(fresh_binders(stmt, names), rename, is_statement)
