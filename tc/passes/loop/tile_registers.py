"""Tile registers: operands of instructions on tiles are loaded once for all that use them, and sums stay over a loop.

Before, each call reads its three tiles from memory and writes the sums back. A machine has a few registers for tiles: the sums of a loop
take some of them, the tiles of operands share the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tc.ir.arith import Facts, simplify
from tc.ir.expr import Buffer, Const, Load, const
from tc.ir.intrinsic import INTRINSICS
from tc.ir.loop import Alloc, For, IntrinsicCall, LoopKind, PrimFunc, Seq, Stmt, is_statement, seq
from tc.ir.node import Node, map_children, replace, substitute, transform
from tc.ir.uses import has_intrinsic, variables
from tc.ir.x86_intrinsics import (
    NUM_TILES,
    TILE_ROWS,
    TileShape,
    base_and_shape,
    is_sum_load,
    is_tile_dot,
    is_tile_zero,
    tile_copy_name,
    tile_zero_name,
)

MOST_CALLS = 64
"""Calls in one iteration of a loop up to which they are looked at together."""


def keep_in_tiles(func: PrimFunc) -> PrimFunc:
    """Give tile registers, buffers of scope `tile`, to the operands of all products of tiles.

        for k in range(n):                     tile_load(c, C[0, 0])                    # tile_zero(c), where C was set to zero just before
            tile_dot(A[0, k], B[k], C[0, 0])   for k in range(n):
                                           =>      tile_load(a, A[0, k])
                                                   tile_load(b, B[k])
                                                   tile_dot(a, b, c)
                                               tile_store(c, C[0, 0])
    """
    if not has_intrinsic(func.body):
        return func
    return replace(func, body=transform(_visit(func.body, Facts.of(func.facts)), _zero_by_register, is_statement))


def _zero_by_register(node: Node) -> Node | None:
    """Zeros that no product follows, by way of a register."""
    if not isinstance(node, IntrinsicCall) or not is_tile_zero(node.name):
        return None
    (place,) = node.operands
    assert isinstance(place, Load), "operands are places in buffers"
    if place.buffer.scope == "tile":
        return None
    (operand,) = INTRINSICS[node.name].pattern.buffers
    tile = _tile(operand, "zeros")
    store = IntrinsicCall(tile_copy_name("store", tile.dtype, base_and_shape(node.name)[1]), (_first(tile), place))
    return Alloc(tile, seq(replace(node, operands=(_first(tile),)), store))


def _visit(stmt: Stmt, facts: Facts) -> Stmt:
    """The statement with all its products of tiles in registers."""
    loops, body = _serial_nest(stmt)
    calls = _calls(body, is_tile_dot)
    kept = _kept(calls, loops, facts) if calls else None
    if kept is not None:
        return kept
    assert not calls or not isinstance(stmt, IntrinsicCall), "one product of tiles fits the registers"

    def inside(node: Node) -> Node:
        return _visit(node, facts) if isinstance(node, Stmt) else node

    found = map_children(stmt, inside)
    return _with_zeros(found, facts) if isinstance(found, Seq) else found


def _serial_nest(stmt: Stmt) -> tuple[list[For], Stmt]:
    """The serial loops that are nested directly in each other, and what is inside."""
    loops: list[For] = []
    while isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL:
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _calls(stmt: Stmt, is_one: Callable[[str], bool]) -> list[IntrinsicCall] | None:
    """The calls that a statement is, its unrolled loops written out; None where it is anything else than calls of what `is_one` says."""
    match stmt:
        case IntrinsicCall(name=name):
            return [stmt] if is_one(name) else None
        case Seq(stmts=stmts):
            parts = (_calls(inner, is_one) for inner in stmts)
        case For(kind=LoopKind.UNROLLED, var=var, extent=Const(value=count), body=body) if count <= MOST_CALLS and has_intrinsic(body):
            parts = (_calls(substitute(body, {var: const(k)}), is_one) for k in range(int(count)))
        case _:
            return None
    found: list[IntrinsicCall] = []
    for part in parts:
        if part is None or len(found) + len(part) > MOST_CALLS:
            return None
        found += part
    return found


def _places(calls: Sequence[IntrinsicCall], operand: int, facts: Facts) -> list[Load]:
    """The first elements of an operand of each call, simplified: equal ones are one object."""
    loads = [call.operands[operand] for call in calls]
    assert all(isinstance(load, Load) for load in loads), "operands are places in buffers"
    return [Load(load.buffer, tuple(simplify(index, facts) for index in load.indices)) for load in loads]  # type: ignore[attr-defined]


def _kept(calls: Sequence[IntrinsicCall], loops: Sequence[For], facts: Facts) -> Stmt | None:
    """The calls, the body of a nest of loops if there are any, with their tiles in registers; None where they are too many, or may
    overlap."""
    a, b, c = (_places(calls, operand, facts) for operand in range(3))
    sums = list(dict.fromkeys(c))
    read = {load.buffer for load in (*a, *b)}
    moves = any(loop.var in variables(load) for load in sums for loop in loops)
    fits = len({call.name for call in calls}) == 1 and len(sums) <= NUM_TILES - 2
    if moves or not fits or any(load.buffer in read for load in sums) or not _are_apart(sums, calls[0].name, facts):
        return None
    base, shape = base_and_shape(calls[0].name)
    name = TileShape(shape.rows, shape.row_bytes).named(base)  # in registers rows are neighbours
    lhs, rhs, total = INTRINSICS[name].pattern.buffers
    num_lhs, num_rhs = _shares(a, b, NUM_TILES - len(sums))
    held = {load: _tile(total, f"sums{n}") for n, load in enumerate(sums)}
    pools = _Pool("lhs", lhs, num_lhs, shape), _Pool("rhs", rhs, num_rhs, shape)
    body: list[Stmt] = []
    for call, *operands, place in zip(calls, a, b, c, strict=True):
        tiles = [pool.hold(operand, body) for pool, operand in zip(pools, operands, strict=True)]
        body.append(replace(call, name=name, operands=tuple(map(_first, (*tiles, held[place])))))
    load, store = (tile_copy_name(what, total.dtype, shape) for what in ("load.sums", "store"))
    products = seq(*body)
    for loop in reversed(loops):
        products = replace(loop, body=products)
    found = seq(
        *(IntrinsicCall(load, (place, _first(tile))) for place, tile in held.items()),
        products,
        *(IntrinsicCall(store, (_first(tile), place)) for place, tile in held.items()),
    )
    for tile in (*held.values(), *pools[0].tiles, *pools[1].tiles):
        found = Alloc(tile, found)
    return found


def _shares(lhs: Sequence[Load], rhs: Sequence[Load], room: int) -> tuple[int, int]:
    """How many registers each side gets of `room`, so that operands are loaded least often; of equal shares the one of fewest registers."""
    splits = [(n, min(room - n, len(set(rhs)))) for n in range(1, min(room - 1, len(set(lhs))) + 1)]
    return min(splits, key=lambda split: (_num_loads(lhs, split[0]) + _num_loads(rhs, split[1]), sum(split)))


def _num_loads(operands: Sequence[Load], count: int) -> int:
    """How often these are loaded one after the other into so many registers, of which the one that was used last stays longest."""
    held: dict[Load, None] = {}
    loads = 0
    for operand in operands:
        if operand in held:
            del held[operand]
        else:
            loads += 1
            if len(held) == count:
                del held[next(iter(held))]
        held[operand] = None
    return loads


def _tile(operand: Buffer, name: str) -> Buffer:
    """A register for an operand of a pattern."""
    return Buffer(name, operand.shape, operand.dtype, scope="tile")


def _first(tile: Buffer) -> Load:
    return Load(tile, (const(0),) * len(tile.shape))


class _Pool:
    """The registers for one side of the products, and what they hold: that which was used last stays longest."""

    def __init__(self, side: str, operand: Buffer, count: int, shape: TileShape) -> None:
        self.tiles = [_tile(operand, f"{side}{n}") for n in range(count)]
        self._load = tile_copy_name(f"load.{side}", operand.dtype, shape)
        self._held: dict[Buffer, Load | None] = dict.fromkeys(self.tiles)  # the one used last comes last

    def hold(self, operand: Load, body: list[Stmt]) -> Buffer:
        """The register with an operand, which is loaded at the end of `body` if no register has it."""
        tile = next((tile for tile, held in self._held.items() if held is operand), None)
        if tile is None:
            tile = next(iter(self._held))
            body.append(IntrinsicCall(self._load, (operand, _first(tile))))
        self._held.pop(tile)
        self._held[tile] = operand
        return tile


def _are_apart(sums: Sequence[Load], name: str, facts: Facts) -> bool:
    """Whether no two of these tiles of sums share an element: they are whole tiles from each other along a dim."""
    sizes = (base_and_shape(name)[1].rows, TILE_ROWS)
    for n, one in enumerate(sums):
        for other in sums[:n]:
            if one.buffer is not other.buffer:
                continue
            distances = [simplify(i - j, facts) for i, j in zip(one.indices, other.indices, strict=True)]
            least = [*[1] * (len(distances) - 2), *sizes]
            if not any(isinstance(far, Const) and abs(far.value) >= size for far, size in zip(distances, least, strict=True)):
                return False
    return True


def _with_zeros(stmts: Seq, facts: Facts) -> Stmt:
    """A sequence in which sums that were set to zero just before they are loaded are set to zero in their registers."""
    kept: list[Stmt] = []
    for stmt in stmts.stmts:
        calls = _calls(kept[-1], is_tile_zero) if kept else None
        zeros = set(_places(calls, 0, facts)) if calls else set()
        loads = [load for load in _leading(stmt) if is_sum_load(load.name)]
        if zeros and {load.operands[0] for load in loads} == zeros:
            zero = {
                load: IntrinsicCall(tile_zero_name(load.operands[0].dtype, base_and_shape(load.name)[1]), (load.operands[1],))
                for load in loads
            }
            kept[-1] = substitute(stmt, zero)
        else:
            kept.append(stmt)
    return stmts if len(kept) == len(stmts.stmts) else seq(*kept)


def _leading(stmt: Stmt) -> list[IntrinsicCall]:
    """The calls inside the allocations that a statement is, before anything else happens."""
    while isinstance(stmt, Alloc):
        stmt = stmt.body
    found = []
    for inner in stmt.stmts if isinstance(stmt, Seq) else (stmt,):
        if not isinstance(inner, IntrinsicCall):
            break
        found.append(inner)
    return found
