"""Steps of reductions in which neighbouring lanes combine what they have: by exchanges of registers, without shared memory and barriers.

    P: f32[2, 32] shared                                       P, T: f32[2, 32] local
    for y in thread.y(2): for x in thread.x(32): P[y, x] = ... for y in thread.y(2): for x in thread.x(32): P[y, x] = ...
    for y in thread.y(2):                                 =>   for y in thread.y(2): for x in thread.x(32): warp(shuffle.xor16, P, T)
        for x in thread.x(16):                                 for y in thread.y(2): for x in thread.x(32):
            Q[y, x] = P[y, x] + P[y, x + 16]                       Q[y, x] = P[y, x] + T[y, x]

A buffer of a block becomes registers if element x of a row is held by all threads of the row whose number is x modulo the elements that
a row has: all these compute it, so that the result of a reduction is there in each thread without being handed on. What a step combines
does not depend on the order of its two operands. Elements further on are those of a lane whose number differs in one bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from tc.ir.arith import linear_coefficients, simplify
from tc.ir.dtype import DType, i64
from tc.ir.expr import (
    Add,
    And,
    Buffer,
    Const,
    Expr,
    Load,
    Lt,
    Max,
    Min,
    Mul,
    Or,
    Select,
    Var,
    const,
    floormod,
    logical_and,
)
from tc.ir.intrinsic import has_all_of_one
from tc.ir.lane_exchange import EXCHANGED, FEATURES, MASKS, can_exchange, exchange_name
from tc.ir.launch import block_loops, launches_in, thread_extents
from tc.ir.loop import (
    Alloc,
    AsyncStore,
    For,
    If,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    WarpCall,
    seq,
    walk_statements,
)
from tc.ir.node import Node, binders, replace, substitute, transform, walk
from tc.ir.structural import fresh_binders
from tc.ir.uses import reads_memory
from tc.passes.manager import loop_pass

MOST_COPIES = 8
"""Iterations of an unrolled loop that is taken apart, at most."""

_ROW, _LANE = "thread.y", "thread.x"


@loop_pass
def exchange_lanes(func: PrimFunc, *, features: tuple[str, ...] = ()) -> PrimFunc:
    """Hold partial results of rows in registers wherever lanes need no others than their own and their partners'.

    For devices with exchanges of lanes, while threads fork and join.
    """
    if not has_all_of_one(features, FEATURES):
        return func
    changed: dict[Node, Node] = {}
    for launch in launches_in(func.body):
        made = _launch(launch)
        if made is not launch:
            changed[launch] = made
    return replace(func, body=transform(func.body, changed.get)) if changed else func


def _launch(launch: For) -> Stmt:
    blocks, body = block_loops(launch)
    allocs, parts = _taken_apart(body)
    extents = thread_extents(launch)
    lanes, rows = extents.get(_LANE, 1), extents.get(_ROW, 1)
    if not blocks or prod(extents.values()) != lanes * rows or lanes & (lanes - 1) or lanes * rows % 32:
        return launch
    nests = [_unrolled(nest, frozenset(allocs)) for nest in map(_nest_of, parts)]
    program = _Program(tuple(nests), lanes, rows)
    held = _held(program, [buffer for buffer in allocs if buffer.scope == "shared" and buffer.dtype in EXCHANGED])
    if not any(program.partners(nest, held) for nest in nests):
        return launch
    rewriter = _Rewriter(program, held, {buffer: _register(program, buffer) for buffer in held})
    done = seq(*(stmt for nest in nests for stmt in rewriter.statements(nest)))
    for buffer in (*rewriter.partners.values(), *(rewriter.homes.get(buffer, buffer) for buffer in reversed(allocs))):
        done = Alloc(buffer, done)
    for loop in reversed(blocks):
        done = replace(loop, body=done)
    return done


def _taken_apart(body: Stmt) -> tuple[list[Buffer], tuple[Stmt, ...]]:
    """What a block allocates, and what it does after that."""
    allocs = []
    while isinstance(body, Alloc):
        allocs.append(body.buffer)
        body = body.body
    return allocs, body.stmts if isinstance(body, Seq) else (body,)


@dataclass(frozen=True, eq=False)
class _Nest:
    """A part of what a block does: loops over the threads of rows and lanes, if it has these, around a body without any."""

    stmt: Stmt
    row: For | None = None
    lane: For | None = None
    body: Stmt | None = None

    @property
    def width(self) -> int:
        """Its lanes."""
        return 1 if self.lane is None else int(str(self.lane.extent))

    def accesses(self, buffer: Buffer) -> list[Load | Store]:
        return [node for node in walk(self.stmt) if isinstance(node, (Load, Store)) and node.buffer is buffer]


def _nest_of(stmt: Stmt) -> _Nest:
    """A part; with a body only if its loops are of a form that can be rewritten. What leaves out rows goes inside."""
    loops: dict[str, For] = {}
    guards: list[Expr] = []
    inner = stmt
    while True:
        match inner:
            case For(thread=thread, body=body) if thread in (_ROW, _LANE) and thread not in loops:
                loops[thread] = inner
            case If(condition=condition, then_body=body, else_body=None) if not reads_memory(condition):
                guards.append(condition)
            case _:
                break
        inner = body
    if not loops or any(isinstance(node, For) and node.thread for node in walk_statements(inner)):
        return _Nest(stmt)
    return _Nest(stmt, loops.get(_ROW), loops.get(_LANE), If(logical_and(*guards), inner) if guards else inner)


def _unrolled(nest: _Nest, buffers: frozenset[Buffer]) -> _Nest:
    """With short unrolled loops over elements of buffers as statements."""
    if nest.body is None:
        return nest

    def visit(node: Node) -> Node | None:
        match node:
            case For(var=var, extent=Const(value=count), body=body, kind=LoopKind.UNROLLED) if int(count) <= MOST_COPIES:
                if buffers & binders(body):
                    return seq(*(_simplified(fresh_binders(substitute(body, {var: const(k)}))) for k in range(int(count))))
        return None

    body = transform(nest.body, visit)
    return _Nest(nest.stmt, nest.row, nest.lane, body) if isinstance(body, Stmt) else nest


def _simplified(stmt: Node) -> Stmt:
    """Indices with their constants added up."""

    def visit(node: Node) -> Node | None:
        if isinstance(node, (Load, Store)):
            return replace(node, indices=tuple(map(simplify, node.indices)))
        return None

    made = transform(stmt, visit)
    assert isinstance(made, Stmt)
    return made


# -- which buffers become registers


@dataclass(frozen=True)
class _Place:
    """An element of a row: so much `further` on than the lane's own number, if it `moves` with that, or than the first."""

    further: int
    moves: bool


@dataclass(frozen=True, eq=False)
class _Program:
    """What a block does, by nests one after the other, with so many lanes in each of so many rows of threads."""

    nests: tuple[_Nest, ...]
    lanes: int
    rows: int

    def place(self, nest: _Nest, access: Load | Store) -> _Place | None:
        """Which element of its own row a thread touches; None where that is not known to be one of its own row."""
        further, moves, has_row = 0, False, self.rows == 1
        for index in access.indices:
            own = [loop.var for loop in (nest.row, nest.lane) if loop is not None]
            form = linear_coefficients(index, own)
            if form is None or not isinstance(form[1], Const) or not all(isinstance(step, Const) for step in form[0].values()):
                return None
            steps = {var: int(step.value) for var, step in form[0].items() if isinstance(step, Const) and step.value != 0}
            first = int(form[1].value)
            if nest.row is not None and steps == {nest.row.var: 1} and first == 0:
                has_row = True
            elif nest.lane is not None and steps == {nest.lane.var: 1} and not moves:
                moves, further = True, further + first
            elif steps:
                return None
            else:
                further += first
        return _Place(further, moves and nest.width > 1) if has_row else None

    def width(self, buffer: Buffer) -> int | None:
        """How many elements of it a row has, those that its nest stores; None where several nests do, or store others than their own."""
        storing = [nest for nest in self.nests if any(isinstance(access, Store) for access in nest.accesses(buffer))]
        if len(storing) != 1 or storing[0].body is None:
            return None
        (nest,) = storing
        places = [self.place(nest, access) for access in nest.accesses(buffer) if isinstance(access, Store)]
        is_own = all(place is not None and place.further == 0 and place.moves == (nest.width > 1) for place in places)
        fits = self.lanes % nest.width == 0 and nest.width & (nest.width - 1) == 0
        has_rows = self.rows == 1 or (nest.row is not None and str(nest.row.extent) == str(self.rows))
        is_row = sum(str(dim) != "1" for dim in buffer.shape) <= (self.rows > 1) + (nest.width > 1)
        return nest.width if is_own and fits and has_rows and is_row else None

    def partners(self, nest: _Nest, held: Mapping[Buffer, int]) -> list[Buffer]:
        """The buffers of which a nest needs what lanes further on hold."""
        return [buffer for buffer in held if nest.body is not None and any(self._is_further(nest, a) for a in _loads(nest, buffer))]

    def _is_further(self, nest: _Nest, load: Load) -> bool:
        place = self.place(nest, load)
        return place is not None and place.further != 0

    def reads_right(self, nest: _Nest, buffer: Buffer, width: int) -> bool:
        """Whether all that a nest reads of a buffer is held by its lanes, or their partners."""
        places = [self.place(nest, load) for load in _loads(nest, buffer)]
        if not places:
            return True
        if nest.body is None or None in places:
            return False
        if width == 1:
            return all(place.further == 0 and not place.moves for place in places if place is not None)
        moves = nest.width > 1
        numbers = {place.further for place in places if place is not None and place.moves == moves}
        if any(place is not None and place.moves != moves for place in places):
            return False
        if numbers == {0}:
            return nest.width <= width
        half = width // 2
        return nest.width == half and numbers <= {0, half} and half in MASKS and can_exchange(width, self.lanes, self.lanes * self.rows)


def _loads(nest: _Nest, buffer: Buffer) -> list[Load]:
    stmt = nest.stmt if nest.body is None else nest.body
    return [node for node in walk(stmt) if isinstance(node, Load) and node.buffer is buffer]


def _held(program: _Program, buffers: Iterable[Buffer]) -> dict[Buffer, int]:
    """The buffers that become registers, and the elements of a row of each: all that do, as far as those do that they are made of."""
    held = {buffer: width for buffer in buffers if (width := program.width(buffer)) is not None}
    while True:
        kept = {
            buffer: width
            for buffer, width in held.items()
            if all(program.reads_right(nest, buffer, width) for nest in program.nests)
            and all(_can_repeat(program, nest, held) for nest in program.nests if _stores(nest, buffer))
        }
        if len(kept) == len(held):
            return held
        held = kept


def _stores(nest: _Nest, buffer: Buffer) -> bool:
    return any(isinstance(access, Store) for access in nest.accesses(buffer))


def _can_repeat(program: _Program, nest: _Nest, held: Mapping[Buffer, int]) -> bool:
    """Whether all threads of a row may run a nest, those behind its lanes as if they were these."""
    body = nest.body
    if body is None:
        return False
    statements = list(walk_statements(body))
    if not all(isinstance(node, (Seq, For, If, Let, Store)) and not isinstance(node, AsyncStore) for node in statements):
        return False
    if any(isinstance(node, Store) and node.buffer not in held for node in statements):
        return False
    if nest.width == program.lanes:
        return True
    loaded = {node.buffer for node in walk(body) if isinstance(node, Load)}
    if any(buffer.scope in ("local", "register", "fragment") for buffer in loaded):
        return False
    return not program.partners(nest, held) or all(_commutes(node.value) for node in statements if isinstance(node, Store))


def _commutes(value: Expr) -> bool:
    """Whether a step of a reduction gives the same whichever of its elements is which."""
    match value:
        case Const() | Load():
            return True
        case Add(lhs=Load() as a, rhs=Load() as b) | Mul(lhs=Load() as a, rhs=Load() as b):
            return a is not b
        case Max(lhs=Load(), rhs=Load()) | Min(lhs=Load(), rhs=Load()) | And(lhs=Load(), rhs=Load()) | Or(lhs=Load(), rhs=Load()):
            return True
        case Select(condition=Lt(lhs=Load() as a, rhs=Load() as b), true_value=c, false_value=d):
            return {a, b} == {c, d}
    return False


# -- the program with registers


def _register(program: _Program, buffer: Buffer) -> Buffer:
    """What each thread has of it, one element, by the numbers of threads."""
    shape = (program.rows, program.lanes) if program.rows > 1 else (program.lanes,)
    return replace(buffer, shape=tuple(map(const, shape)), scope="local", strides=None)


@dataclass
class _Rewriter:
    """`homes`: of what is held; `partners`: where what comes from partners goes, made on the way."""

    program: _Program
    held: Mapping[Buffer, int]
    homes: Mapping[Buffer, Buffer]
    partners: dict[tuple[DType, int], Buffer] = field(default_factory=dict)

    def statements(self, nest: _Nest) -> Iterator[Stmt]:
        """A nest, behind the exchanges that it needs."""
        if nest.body is None or not self.held.keys() & binders(nest.body):
            yield nest.stmt
            return
        partners = self.program.partners(nest, self.held)
        for number, buffer in enumerate(partners):
            yield self.exchange(buffer, self.partner(buffer, number), nest.width)
        row = Var("ty" if nest.row is None else nest.row.var.name, i64)
        lane = Var("lane" if nest.lane is None else nest.lane.var.name, i64)
        repeats = any(_stores(nest, buffer) for buffer in self.held)
        width = self.program.lanes if repeats else nest.width
        named: dict[Node, Node] = {} if nest.row is None else {nest.row.var: row}
        if nest.lane is not None:
            named[nest.lane.var] = floormod(lane, const(nest.width)) if nest.width < width else lane
        inside = self.body(nest, self.threads(row, lane), {buffer: self.partner(buffer, k) for k, buffer in enumerate(partners)})
        stmt: Stmt = For(lane, const(width), substitute(inside, named), LoopKind.BOUND, _LANE)
        if nest.row is not None:
            stmt = For(row, nest.row.extent, stmt, LoopKind.BOUND, _ROW)
        yield stmt

    def threads(self, row: Expr, lane: Expr) -> tuple[Expr, ...]:
        return (row, lane) if self.program.rows > 1 else (lane,)

    def partner(self, buffer: Buffer, number: int) -> Buffer:
        """Where what comes from partners is until a nest has used it: the same for all nests."""
        home = replace(self.homes[buffer], name=f"partner{number or ''}")
        return self.partners.setdefault((buffer.dtype, number), home)

    def body(self, nest: _Nest, at: tuple[Expr, ...], partners: Mapping[Buffer, Buffer]) -> Stmt:
        """Elements of a nest as registers of the thread `at` these numbers."""
        assert nest.body is not None

        def visit(node: Node) -> Node | None:
            if isinstance(node, Load) and node.buffer in self.held:
                place = self.program.place(nest, node)
                assert place is not None, "where it is was known before"
                return Load((partners if place.further else self.homes)[node.buffer], at)
            if isinstance(node, Store) and node.buffer in self.held:
                value = transform(node.value, visit)
                assert isinstance(value, Expr)
                return Store(self.homes[node.buffer], at, value, span=node.span)
            return None

        made = transform(nest.body, visit)
        assert isinstance(made, Stmt)
        return _as_one(made)

    def exchange(self, buffer: Buffer, target: Buffer, mask: int) -> Stmt:
        """Each thread gets what its partner has of a buffer."""
        home = self.homes[buffer]
        row, lane = Var("ty", i64), Var("lane", i64)
        at = self.threads(row, lane)
        call: Stmt = WarpCall(exchange_name(mask, buffer.dtype), (Load(home, at), Load(target, at)))
        call = For(lane, const(self.program.lanes), call, LoopKind.BOUND, _LANE)
        return call if self.program.rows == 1 else For(row, const(self.program.rows), call, LoopKind.BOUND, _ROW)


def _as_one(stmt: Stmt) -> Stmt:
    """Stores to one register one after the other as the last of them, of all that they compute."""
    if isinstance(stmt, If) and stmt.else_body is None:
        return replace(stmt, then_body=_as_one(stmt.then_body))
    parts = _flat(stmt)
    if not parts or not isinstance(first := parts[0], Store):
        return stmt
    value = first.value
    for other in parts[1:]:
        if not (isinstance(other, Store) and other.buffer is first.buffer and other.indices == first.indices):
            return stmt
        value = _with_value(other.value, first.buffer, value)
    return replace(first, value=value)


def _flat(stmt: Stmt) -> list[Stmt]:
    return [each for part in stmt.stmts for each in _flat(part)] if isinstance(stmt, Seq) else [stmt]


def _with_value(expr: Expr, buffer: Buffer, value: Expr) -> Expr:
    """An expression in which a register has a value."""
    made = transform(expr, lambda node: value if isinstance(node, Load) and node.buffer is buffer else None)
    assert isinstance(made, Expr)
    return made
