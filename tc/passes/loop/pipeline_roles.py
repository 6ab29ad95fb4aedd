"""Pipelined loops whose products are those of groups of warps: one thread of a group of its own copies boxes, the others multiply.

    for k in range(n, pipeline=4):                            full = alloc(i64[4], shared); empty = alloc(i64[4], shared)
        S = alloc(f16[64, 64], shared)                        set_up_barrier(full[...], 1); set_up_barrier(empty[...], 4)
        for i in 64: for j in 64: S[i, j] = A[i, k * 64 + j]  for y in thread.y(2): for x in thread.x(128):
        for y in thread.y(1): for x in thread.x(128):             if y < 1: for k in n: await_phase(full[k % 4], k // 4 % 2)
            warp('wgmma...', S[0, 0], ..., C[x, 0])      =>                             begin_products(); warp(...); commit_products()
                                                                                        await_products(1)
                                                                                        if k > 0: arrive(empty[(k - 1) % 4])
                                                                  else: if x == 0: for k in n: await_phase(empty[k % 4], (k // 4 + 1) % 2)
                                                                                               arrive(full[k % 4], 8192); copy_box(...)

What is copied is what no thread loop divides; it must be boxes (see `box_of`). A stage is full when its bytes are there, and empty when a
lane of each warp that multiplies it has arrived; the first time around nobody waits for empty stages. The products of one iteration are
computed while those of the next one begin, so a stage is given back an iteration later. Where threads do something else besides, on
registers of their own, each product is awaited at once, and the stage given back at the end of the iteration; other groups multiply then.
What all iterations read is copied in front of the loop, and awaited once.
Source: the warp-specialised main loops of CUTLASS (NVIDIA) and of FlashAttention-3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from tc.errors import ScheduleError
from tc.ir.arith import Facts
from tc.ir.box_copies import (
    Arrive,
    AwaitPhase,
    AwaitProducts,
    BeginProducts,
    CommitProducts,
    CopyBox,
    SetUpBarrier,
    box_copies,
)
from tc.ir.boxes import box_of
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Const, Expr, Load, Var, const, equal, floordiv, floormod
from tc.ir.intrinsic import GROUP_THREADS, INTRINSICS, is_of_group
from tc.ir.launch import has_launch
from tc.ir.loop import Alloc, For, If, Let, LoopKind, Seq, Stmt, Store, WarpCall, seq, walk_statements
from tc.ir.node import Node, binders, replace, substitute, transform
from tc.ir.structural import fresh_binders
from tc.ir.uses import buffers_read, buffers_written, reads_memory

WARPS, LANES = 4, 32
"""Of a group."""

REGISTERS = ("local", "register", "fragment")
"""Scopes of what a thread has by itself."""


def has_groups(stmt: Stmt) -> bool:
    """Whether groups of warps do something together in a statement."""
    return any(isinstance(node, WarpCall) and is_of_group(node.name) for node in walk_statements(stmt))


def allocated(body: Stmt) -> tuple[list[Buffer], Stmt]:
    """The buffers that are allocated around all of a body, and what is inside."""
    buffers = []
    while isinstance(body, Alloc):
        buffers.append(body.buffer)
        body = body.body
    return buffers, body


def in_roles(loop: For, stages: int, facts: Facts, once: tuple[Stmt, ...] = ()) -> Stmt:
    """A loop with products of groups, as what each role does; `once`: statements in front of it that copy what all iterations read.

    ScheduleError where it is not of the form that this needs, as products of groups read nothing but boxes.
    """
    buffers, stmt = allocated(loop.body)
    stmts = stmt.stmts if isinstance(stmt, Seq) else (stmt,)
    copies = tuple(part for part in stmts if not has_launch(part))
    if loop.kind is not LoopKind.SERIAL or stages < 2 or reads_memory(loop.extent) or stmts[: len(copies)] != copies:
        raise _refusal(loop, "is no pipeline of copies and products")
    used = stmts[len(copies) :]
    changed = frozenset[Buffer]().union(*map(buffers_written, used))
    filled, held = (frozenset[Buffer]().union(*map(buffers_written, each)) for each in (copies, once))
    own = [buffer for buffer in buffers if buffer not in filled]
    if not filled <= {*buffers} or (filled | held) & changed or changed & frozenset[Buffer]().union(*map(buffers_read, (*copies, *once))):
        raise _refusal(loop, "changes what it copies")
    pipeline = _Pipeline.of(loop, stages, _groups(loop, used), [buffer for buffer in buffers if buffer in filled], once)
    roles = For(pipeline.y, const(pipeline.groups + 1), pipeline.of_threads(copies, used, facts), LoopKind.BOUND, "thread.y")
    whole: Stmt = seq(pipeline.set_up(), roles)
    for buffer in (*pipeline.barriers, *reversed((*pipeline.staged.values(), *own))):
        whole = Alloc(buffer, whole)
    return whole


def _refusal(loop: For, what: str) -> ScheduleError:
    return ScheduleError(f"loop {loop.var.name} has products of groups of warps, but {what}")


def _groups(loop: For, stmts: tuple[Stmt, ...]) -> int:
    """How many groups multiply."""
    found = {1}
    for node in (node for stmt in stmts for node in walk_statements(stmt)):
        if isinstance(node, For) and node.kind is LoopKind.BOUND and isinstance(node.extent, Const):
            if node.thread == "thread.z" or (node.thread == "thread.x" and node.extent.value != GROUP_THREADS):
                raise _refusal(loop, f"loop {node.var.name} has {node.extent} threads along {node.thread}")
            found |= {int(node.extent.value)} if node.thread == "thread.y" else set()
    if len(found - {1}) > 1:
        raise _refusal(loop, "its groups are of different number")
    return max(found)


@dataclass(frozen=True, eq=False)
class _Pipeline:
    """A loop to be done in roles: how many stages and groups that multiply there are, the stages of each buffer, the barriers that tell
    full and empty ones, and the variables of threads; what is copied once in front of the loop, and the barrier that tells that."""

    loop: For
    stages: int
    groups: int
    staged: dict[Buffer, Buffer]
    full: Buffer
    empty: Buffer
    x: Var
    y: Var
    once: tuple[Stmt, ...]
    held: Buffer

    @staticmethod
    def of(loop: For, stages: int, groups: int, buffers: list[Buffer], once: tuple[Stmt, ...]) -> _Pipeline:
        counts = {"full": stages, "empty": stages, "held": 1}
        full, empty, held = (Buffer(name, (const(count),), i64, "shared") for name, count in counts.items())
        staged = {buffer: replace(buffer, shape=(const(stages), *buffer.shape)) for buffer in buffers}
        return _Pipeline(loop, stages, groups, staged, full, empty, Var("tx", i64), Var("ty", i64), once, held)

    @property
    def barriers(self) -> tuple[Buffer, ...]:
        return (self.empty, self.full, *([self.held] if self.once else []))

    def stage(self, number: Expr) -> Expr:
        return floormod(number, self.stages)

    def turn(self, number: Expr) -> Expr:
        """How often the stages have come around."""
        return floordiv(number, self.stages)

    def set_up(self) -> Stmt:
        """The barriers, by one thread."""
        stage, thread = Var("stage", i64), Var("t", i64)
        both = seq(SetUpBarrier(Load(self.full, (stage,)), 1), SetUpBarrier(Load(self.empty, (stage,)), WARPS * self.groups))
        all_stages: Stmt = For(stage, const(self.stages), both, LoopKind.UNROLLED)
        if self.once:
            all_stages = seq(SetUpBarrier(self.held[const(0)], 1), all_stages)
        return For(thread, const(1), all_stages, LoopKind.BOUND, "thread.x")

    def of_threads(self, copies: tuple[Stmt, ...], multiplied: tuple[Stmt, ...], facts: Facts) -> Stmt:
        body = If(self.y < self.groups, self.multiplying(multiplied), If(equal(self.x, 0), self.copying(copies, facts)))
        return For(self.x, const(GROUP_THREADS), body, LoopKind.BOUND, "thread.x")

    # -- the thread that copies

    def copying(self, copies: tuple[Stmt, ...], facts: Facts) -> Stmt:
        number = Var(f"{self.loop.var.name}p", i64)
        inside = facts.with_range(self.loop.var, self.loop.extent)
        stage = self.stage(self.loop.var)
        full = Load(self.full, (self.stage(number),))
        boxes = [substitute(self.boxes(copy, inside, Load(self.full, (stage,))), {self.loop.var: number}) for copy in copies]
        free = AwaitPhase(Load(self.empty, (self.stage(number),)), floormod(self.turn(number) + 1, 2))
        all_stages = For(number, self.loop.extent, seq(free, Arrive(full, sum(map(_size_bytes, boxes))), *boxes))
        if not self.once:
            return all_stages
        held = self.held[const(0)]
        first = [self.boxes(copy, facts, held) for copy in self.once]
        return seq(Arrive(held, sum(map(_size_bytes, first))), *first, all_stages)

    def boxes(self, stmt: Stmt, facts: Facts, barrier: Load) -> Stmt:
        """Stores as copies of boxes, the largest that hardware has, which count for a barrier. ScheduleError for what is none."""
        loops, store = _known_nest(stmt)
        found = box_of(loops, store, facts) if isinstance(store, Store) and loops else None
        if found is not None and isinstance(store, Store):
            stage = (self.stage(self.loop.var),) if store.buffer in self.staged else ()
            to = self.staged.get(store.buffer, store.buffer)
            return CopyBox(to, (*stage, *found.indices), found.source, found.view, found.corner, found.box, barrier)
        if isinstance(stmt, For) and stmt.kind in (LoopKind.SERIAL, LoopKind.UNROLLED) and isinstance(stmt.extent, Const):
            inner = self.boxes(stmt.body, facts.with_range(stmt.var, stmt.extent), barrier)
            return For(stmt.var, stmt.extent, inner, LoopKind.UNROLLED)
        raise _refusal(self.loop, f"copies what is no box: {store}")

    # -- the groups that multiply

    def multiplying(self, used: tuple[Stmt, ...]) -> Stmt:
        """What a thread of a group does. Products alone are awaited an iteration later; what else is done needs them at once."""
        number, extent = self.loop.var, self.loop.extent
        parts = [(has_groups(stmt), self.in_stage(self.by_thread(stmt), self.stage(number))) for stmt in used]
        sums = _registers([stmt for is_product, stmt in parts if is_product])
        full = AwaitPhase(Load(self.full, (self.stage(number),)), floormod(self.turn(number), 2))
        if all(is_product for is_product, _ in parts):
            products = [BeginProducts(sums), *(stmt for _, stmt in parts), CommitProducts(), AwaitProducts(1, ())]
            body = seq(full, *products, If(number > 0, self.given_back(number - 1)))
            behind = [AwaitProducts(0, sums)]
        else:
            body = seq(full, *_awaited(parts), self.given_back(number))
            behind = []
        first = [AwaitPhase(self.held[const(0)], const(0))] if self.once else []
        return fresh_binders(seq(*first, For(number, extent, body), *behind))

    def given_back(self, number: Expr) -> Stmt:
        """A lane of each warp says that a stage is empty."""
        return If(equal(floormod(self.x, LANES), 0), Arrive(Load(self.empty, (self.stage(number),))))

    def by_thread(self, stmt: Stmt, bound: frozenset[str] = frozenset()) -> Stmt:
        """A statement with the loops over threads taken away. `bound`: the axes of those around."""
        match stmt:
            case For(var=var, body=body, kind=LoopKind.BOUND, thread=thread):
                return self.by_thread(substitute(body, {var: self.x if thread == "thread.x" else self.y}), bound | {thread})
            case For(kind=LoopKind.SERIAL | LoopKind.UNROLLED | LoopKind.VECTORIZED, body=body):
                return replace(stmt, body=self.by_thread(body, bound))
            case If(then_body=first, else_body=second):
                otherwise = None if second is None else self.by_thread(second, bound)
                return replace(stmt, then_body=self.by_thread(first, bound), else_body=otherwise)
            case Let(body=body):
                return replace(stmt, body=self.by_thread(body, bound))
            case Alloc(body=body) if bound >= self.axes:
                return replace(stmt, body=self.by_thread(body, bound))
            case Seq(stmts=stmts):
                return seq(*(self.by_thread(part, bound) for part in stmts))
            case WarpCall() if is_of_group(stmt.name):
                return stmt
            case Store() | WarpCall() if bound >= self.axes and self.is_own(stmt):
                return stmt
        raise _refusal(self.loop, f"does something else with them: {type(stmt).__name__}")

    @property
    def axes(self) -> frozenset[str]:
        """Those along which threads differ."""
        return frozenset(("thread.x", "thread.y") if self.groups > 1 else ("thread.x",))

    def is_own(self, stmt: Stmt) -> bool:
        """Whether a statement touches nothing but registers, and reads what no thread changes."""
        written = buffers_written(stmt)
        return all(buffer.scope in REGISTERS for buffer in written) and all(
            buffer.scope in (*REGISTERS, "global") for buffer in buffers_read(stmt)
        )

    def in_stage(self, stmt: Stmt, stage: Expr) -> Stmt:
        def rewrite(node: Node) -> Node | None:
            if isinstance(node, Load) and node.buffer in self.staged:
                return replace(node, buffer=self.staged[node.buffer], indices=(stage, *node.indices))
            return None

        return transform(stmt, rewrite, lambda node: not binders(node).isdisjoint(self.staged))


def _known_nest(stmt: Stmt) -> tuple[list[tuple[Var, int]], Stmt]:
    loops = []
    while isinstance(stmt, For) and isinstance(stmt.extent, Const) and stmt.kind is not LoopKind.BOUND:
        loops.append((stmt.var, int(stmt.extent.value)))
        stmt = stmt.body
    return loops, stmt


def _size_bytes(stmt: Stmt) -> int:
    """Of all boxes that a statement copies."""
    if isinstance(stmt, For):
        assert isinstance(stmt.extent, Const), "loops around boxes are of constant extents"
        return int(stmt.extent.value) * _size_bytes(stmt.body)
    return sum(copy.size_bytes for copy in box_copies(stmt))


def _awaited(parts: list[tuple[bool, Stmt]]) -> Iterator[Stmt]:
    """Statements in order, products handed over and awaited: neighbours together."""
    for is_product, run in groupby(parts, key=lambda part: part[0]):
        stmts = [stmt for _, stmt in run]
        if is_product:
            registers = _registers(stmts)
            yield from (BeginProducts(registers), *stmts, CommitProducts(), AwaitProducts(0, registers))
        else:
            yield from stmts


def _registers(products: list[Stmt]) -> tuple[Load, ...]:
    """The first registers of the buffers that products add to, and of those that they read."""
    found: dict[Buffer, Load] = {}
    for stmt in products:
        inner: dict[Node, Node] = {node.var: const(0) for node in walk_statements(stmt) if isinstance(node, For)}
        for call in (node for node in walk_statements(stmt) if isinstance(node, WarpCall)):
            for layout, operand in zip(INTRINSICS[call.name].layouts, call.operands, strict=True):
                if layout is not None:
                    found.setdefault(operand.buffer, substitute(operand, inner))
    return tuple(found.values())
