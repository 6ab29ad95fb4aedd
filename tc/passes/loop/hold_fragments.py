"""Fragments as what the lanes of a warp hold: registers of each lane, by the layouts of the instructions that use them.

    for ty in thread.y(4):                              for ty in thread.y(4):
        mma: for i, j, r: C[i, j] += A[i, r] * ...          for lane in thread.x(32): warp(mma, A[lane, 0], B[lane, 0], C[lane, 0])
    for ty in thread.y(4):                      =>      for ty in thread.y(4):
        for lane in thread.x(32): for k in 4:               for lane in thread.x(32): for k in 4:
            Y[..., ...] = C[f(lane, k), g(lane, k)]             Y[..., ...] = C[lane, k]

A fragment of several tiles has as many times the registers. What lanes do one by one must concern elements that they hold. A device that
lacks an instruction gets its loops, the outermost shared out to the lanes, on fragments in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove, simplify
from tc.ir.bit_layout import BitLayout
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Expr, Load, Var, ceildiv, const, equal, floordiv, floormod
from tc.ir.fragments import ldmatrix_of
from tc.ir.hints import NO_HINTS
from tc.ir.intrinsic import INTRINSICS, Intrinsic, is_of_group, lanes_of, perfect_nest
from tc.ir.lane_exchange import exchange_name, masks_within, monoid_of
from tc.ir.launch import THREAD_AXES
from tc.ir.loop import (
    Alloc,
    For,
    If,
    LoopKind,
    PrimFunc,
    Stmt,
    Store,
    WarpCall,
    is_statement,
    seq,
    store,
    walk_statements,
)
from tc.ir.node import Node, binders, map_children, replace, substitute, transform
from tc.passes.manager import loop_pass

LANES = 32


@loop_pass
def hold_fragments(func: PrimFunc, *, features: tuple[str, ...] = ()) -> PrimFunc:
    """Give each lane its part of every fragment, where a device with these features has all instructions that are marked; else put
    fragments into shared memory.

    ScheduleError where a lane touches by itself an element that it does not hold.
    """
    allocs = [node for node in walk_statements(func.body) if isinstance(node, Alloc) and node.buffer.scope == "fragment"]
    if not allocs:
        return func
    calls = {nest: _call_of(nest) for nest in _marked(func.body)}
    if any(call is None or not call.intrinsic.is_there(features) or _kind(call.intrinsic) not in _HELD for call in calls.values()):
        return replace(func, body=_in_shared_memory(func.body, frozenset(calls)))
    known = {nest: call for nest, call in calls.items() if call is not None}
    homes = {alloc.buffer: _home(func.name, alloc.buffer, tuple(known.values())) for alloc in allocs}
    return replace(func, body=_Holder(func.name, known, homes).statement(func.body, _Around(Facts.of(func.facts))))


_HELD = ("mma", "wgmma", "ldmatrix", "combine_lanes", "fragment_zero", "fragment_load", "fragment_store")
"""Kinds of instructions that become such of warps, or are done lane by lane."""


def _kind(intrinsic: Intrinsic) -> str:
    return intrinsic.name.partition(".")[0]


def _marked(stmt: Stmt) -> Iterator[For]:
    """The nests that are marked as instructions on fragments."""
    for node in walk_statements(stmt):
        if isinstance(node, For) and node.hints.intrinsic in INTRINSICS and INTRINSICS[node.hints.intrinsic].layouts:
            yield node


@dataclass(frozen=True, eq=False)
class _Call:
    """An instruction, and the first elements of what it is done on."""

    intrinsic: Intrinsic
    operands: tuple[Load, ...]

    def fragments(self) -> Iterator[tuple[Load, BitLayout]]:
        for operand, found in zip(self.operands, self.intrinsic.layouts, strict=True):
            if found is not None:
                yield operand, found


def _call_of(nest: For) -> _Call | None:
    intrinsic = INTRINSICS[nest.hints.intrinsic]
    operands = intrinsic.match(*perfect_nest(nest), Facts())
    return None if isinstance(operands, str) else _Call(intrinsic, operands)


# -- without the instructions


def _in_shared_memory(body: Stmt, nests: frozenset[For]) -> Stmt:
    """Fragments as memory of the block, and the loops of instructions on lanes."""

    def visit(node: Node) -> Node | None:
        if isinstance(node, For) and node.hints.pipeline != 1:  # many barriers are between its copies and their use
            return replace(node, hints=node.hints.without("pipeline"), body=transform(node.body, visit, is_statement))
        if node in nests:
            return replace(node, kind=LoopKind.BOUND, thread=THREAD_AXES[0], hints=NO_HINTS)
        return None

    buffers = {node.buffer for node in walk_statements(body) if isinstance(node, Alloc) and node.buffer.scope == "fragment"}
    return substitute(transform(body, visit, is_statement), {buffer: replace(buffer, scope="shared") for buffer in buffers})


# -- where elements are


@dataclass(frozen=True)
class _Home:
    """Where the elements of a fragment are: in `buffer`, which has an index for each other dim, two for the tile (of the fragment's last
    two dims, in the order `dims`), one for the lane and one for its register; `tile`: of (register, lane)."""

    buffer: Buffer
    tile: BitLayout
    dims: tuple[int, int]

    def tile_indices(self, indices: Sequence[Expr], facts: Facts) -> tuple[Expr, ...]:
        """The indices up to those of the tile."""
        last, sizes = indices[-2:], self.sizes
        return (*indices[:-2], *(simplify(floordiv(last[d], const(sizes[d])), facts) for d in self.dims))

    @property
    def sizes(self) -> tuple[int, int]:
        first, second = (size for _, size in self.tile.outputs)
        return first, second

    def lane_and_register(self, indices: Sequence[Expr], facts: Facts) -> tuple[Expr, Expr]:
        """Of one element."""
        inside = {
            name: simplify(floormod(index, const(size)), facts)
            for (name, size), index in zip(self.tile.outputs, indices[-2:], strict=True)
        }
        inverse = self.tile.inverse()
        register, lane = (simplify(each, facts) for each in inverse.only("register", "lane").exprs(**inside))
        return lane, register


def _home(name: str, buffer: Buffer, calls: Sequence[_Call]) -> _Home:
    """The registers for a fragment, as the smallest tile that an instruction takes; larger ones must be several of these in a row."""
    layouts = list(dict.fromkeys(found for call in calls for load, found in call.fragments() if load.buffer is buffer))
    if not layouts:
        raise ScheduleError(f"{name}: no instruction uses the fragment {buffer}: nothing says which lane holds what")
    tile = min(layouts, key=lambda each: dict(each.inputs)["register"])
    for dims in ((0, 1), (1, 0)):
        if all(_is_row_of(found, tile, dims) for found in layouts):
            shape = [simplify(ceildiv(dim, size)) for dim, (_, size) in zip(buffer.shape[-2:], tile.outputs, strict=True)]
            counts = (shape[dims[0]], shape[dims[1]])
            registers = dict(tile.inputs)["register"]
            lanes = dict(tile.inputs)["lane"]
            local = replace(buffer, shape=(*buffer.shape[:-2], *counts, const(lanes), const(registers)), scope="local")
            return _Home(local, tile, dims)
    raise ScheduleError(f"{name}: instructions hold the fragment {buffer} in different ways")


def _is_row_of(large: BitLayout, tile: BitLayout, dims: tuple[int, int]) -> bool:
    """Whether a layout is tiles that follow each other along the last of `dims`, one after the other in the registers of each lane."""
    lanes = dict(tile.inputs)["lane"]
    if dict(large.inputs).get("lane") != lanes or dict(large.inputs).keys() != {"register", "lane"}:
        return False
    names = [name for name, _ in large.outputs]
    if names != [name for name, _ in tile.outputs]:
        return False
    registers, inverse, sizes = dict(tile.inputs)["register"], tile.inverse(), [size for _, size in tile.outputs]
    for register in range(dict(large.inputs)["register"]):
        for lane in (0, *(1 << bit for bit in range(lanes.bit_length() - 1))):
            point = large(register=register, lane=lane)
            number, inside = zip(*(divmod(int(x), size) for x, size in zip(point, sizes, strict=True)), strict=True)
            first, at = inverse.only("register", "lane")(**dict(zip(names, inside, strict=True)))
            if number[dims[0]] or at != lane or number[dims[1]] * registers + int(first) != register:
                return False
    return True


# -- what lanes do


@dataclass(frozen=True)
class _Around:
    """What is known where a statement stands, and the loop over lanes around it, if there is one."""

    facts: Facts
    lane: Var | None = None

    def inside(self, loop: For) -> _Around:
        lane = loop.var if loop.thread == THREAD_AXES[0] else self.lane
        return _Around(self.facts.with_range(loop.var, loop.extent), lane)


@dataclass(frozen=True)
class _Holder:
    """Rewrites a function. `calls`: the marked nests; `homes`: of each fragment."""

    name: str
    calls: Mapping[For, _Call]
    homes: Mapping[Buffer, _Home]

    def statement(self, stmt: Stmt, around: _Around) -> Stmt:
        if not self.homes.keys() & binders(stmt):
            return stmt
        match stmt:
            case For() if stmt in self.calls:
                return self.call(self.calls[stmt], stmt, around)
            case For():
                return self.parts(stmt, around, around.inside(stmt))
            case If(condition=condition):
                return self.parts(stmt, around, _Around(around.facts.assume(condition), around.lane))
            case Alloc(buffer=buffer, body=body) if buffer in self.homes:
                return Alloc(self.homes[buffer].buffer, self.statement(body, around), span=stmt.span)
            case Store(buffer=buffer, indices=indices) if buffer in self.homes:
                moved = self.parts(stmt, around, around)
                assert isinstance(moved, Store)
                return replace(moved, buffer=self.homes[buffer].buffer, indices=self.element(buffer, indices, around))
        return self.parts(stmt, around, around)

    def parts(self, stmt: Stmt, around: _Around, inside: _Around) -> Stmt:
        """A statement with what is below it rewritten. What an else branch knows is what is known around."""

        def visit(child: Node) -> Node:
            if isinstance(child, Stmt):
                is_else = isinstance(stmt, If) and child is stmt.else_body
                return self.statement(child, around if is_else else inside)
            return self.expr(child, around) if isinstance(child, Expr) else child

        rewritten = map_children(stmt, visit)
        assert isinstance(rewritten, Stmt)
        return rewritten

    def expr(self, expr: Node, around: _Around) -> Node:
        def visit(node: Node) -> Node | None:
            if isinstance(node, Load) and node.buffer in self.homes:
                return Load(self.homes[node.buffer].buffer, self.element(node.buffer, node.indices, around))
            return None

        return transform(expr, visit) if self.homes.keys() & binders(expr) else expr

    def element(self, buffer: Buffer, indices: Sequence[Expr], around: _Around) -> tuple[Expr, ...]:
        """Where an element is that a lane touches by itself."""
        home = self.homes[buffer]
        lane, register = home.lane_and_register(indices, around.facts)
        if around.lane is None or prove(equal(lane, around.lane), around.facts) is not True:
            who = "no loop over lanes is around" if around.lane is None else f"the lane is {around.lane}"
            text = f"{buffer.name}[{', '.join(map(str, indices))}]"
            raise ScheduleError(f"{self.name}: {text} of a fragment is held by lane {lane}, but {who}")
        return (*home.tile_indices(indices, around.facts), around.lane, register)

    # -- instructions

    def call(self, call: _Call, nest: For, around: _Around) -> Stmt:
        if around.lane is not None:
            raise ScheduleError(f"{self.name}: {call.intrinsic.name} is of a warp, but stands in a loop over lanes")
        lane, lanes = Var("lane", i64), lanes_of(call.intrinsic)
        inside = _Around(around.facts.with_range(lane, const(lanes)), lane)
        if _kind(call.intrinsic) == "combine_lanes":
            body = self.of_partners(call, inside)
        else:
            body = self.of_lanes(call, nest, inside) if _kind(call.intrinsic).startswith("fragment_") else self.of_warp(call, inside)
        return For(lane, const(lanes), body, LoopKind.BOUND, THREAD_AXES[0])

    def of_lanes(self, call: _Call, nest: For, around: _Around) -> Stmt:
        """An instruction that each lane does for itself: its elements one after the other."""
        loops, body = perfect_nest(nest)
        _, found = next(call.fragments())
        register = Var("register", i64)
        count = dict(found.inputs)["register"]
        places = found.exprs(register=register, lane=around.lane)  # type: ignore[arg-type]
        moved = substitute(body, {loop.var: place for loop, place in zip(loops, places, strict=True)})
        loop = For(register, const(count), moved, LoopKind.UNROLLED)
        return self.statement(loop, around)

    def of_warp(self, call: _Call, around: _Around) -> WarpCall:
        operands = []
        for buffer, operand, found in zip(call.intrinsic.pattern.buffers, call.operands, call.intrinsic.layouts, strict=True):
            if found is None and is_of_group(call.intrinsic.name):  # finds its rows by itself
                operands.append(operand)
            elif found is None:
                target = next(each for _, each in call.fragments())
                operands.append(self.row(operand, target, buffer, around))
            else:
                operands.append(self.first(operand, around))
        return WarpCall(call.intrinsic.name, tuple(operands))

    def of_partners(self, call: _Call, around: _Around) -> Stmt:
        """A combination of what lanes have: with what partners have combined, one after the other, then with what there was."""
        (part, found), (total, _) = call.fragments()
        combine = monoid_of(call.intrinsic.name)
        mine, theirs = (Buffer(name, (const(1),), part.dtype, "local")[const(0)] for name in ("mine", "theirs"))
        stmts: list[Stmt] = []
        for register in range(dict(found.inputs)["register"]):
            own, target = (self.first(operand, around, register) for operand in (part, total))
            stmts.append(store(mine, own))
            for mask in masks_within(found, "m"):
                exchange = WarpCall(exchange_name(mask, part.dtype), (mine, theirs))
                stmts += [exchange, store(mine, combine(mine, theirs))]
            stmts.append(store(target, combine(target, mine)))
        body: Stmt = seq(*stmts)
        for each in (theirs, mine):
            body = Alloc(each.buffer, body)
        return body

    def first(self, operand: Load, around: _Around, register: int = 0) -> Load:
        """The first register that the lane has of an operand, or another one."""
        home = self.homes[operand.buffer]
        return Load(home.buffer, (*home.tile_indices(operand.indices, around.facts), around.lane, const(register)))  # type: ignore[arg-type]

    def row(self, operand: Load, target: BitLayout, buffer: Buffer, around: _Around) -> Load:
        """The row of a matrix in shared memory whose address the lane gives."""
        load = ldmatrix_of(target, buffer.dtype.bits)
        assert load is not None and around.lane is not None, "the fragment is one that ldmatrix fills"
        count = dict(load.addresses.inputs)["lane"]
        first = load.addresses.exprs(lane=floormod(around.lane, const(count)) if count < LANES else around.lane)
        lead = operand.indices[: -len(first)]
        moved = (simplify(a + b, around.facts) for a, b in zip(operand.indices[-len(first) :], first, strict=True))
        return Load(operand.buffer, (*lead, *moved))


