"""PrimFunc to LLVM IR text: functions, loops and branches. Expressions and accesses to memory have files of their own.

The input has no blocks: loops, stores, allocations. Vectorized loops become operations on explicit vectors, with masks where a
condition depends on the lane; unrolled loops are unrolled here, with the loop variable a known number, so that indices fold
and register tiles, which are allocas accessed at constant offsets, turn into SSA values. A parallel loop becomes a function of its
own that the thread pool calls on ranges of iterations. The same program gives the same bits on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from tc.codegen.llvm import tiles
from tc.codegen.llvm.builder import FunctionBuilder, Module, Value, int_value
from tc.codegen.llvm.expressions import ExpressionEmitter
from tc.codegen.llvm.intrinsics import emit_intrinsic
from tc.codegen.llvm.loop_intrinsics import emit_loop_intrinsic, tree_value
from tc.codegen.llvm.masks import has_spare_lanes
from tc.codegen.llvm.memory import alias_scopes
from tc.codegen.llvm.places import Lane, State, memory_type
from tc.codegen.llvm.products import EXCHANGES, MARK, exchanges_lanes, is_all_products
from tc.codegen.loops import can_vectorize, parallel_nest
from tc.errors import CodegenError
from tc.ir.access import report_buffer
from tc.ir.arith import Facts, simplify
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Const, Expr, Var
from tc.ir.loop import (
    Alloc,
    Block,
    For,
    If,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    While,
    in_place_inputs,
    is_strict,
)
from tc.ir.node import binders
from tc.ir.printer import identifier
from tc.ir.tree_loop import TreeLoop
from tc.ir.types import product
from tc.ir.uses import buffers_read, buffers_written, has_tiles
from tc.passes.loop.interleave_stores import interleave_stores
from tc.passes.loop.intrinsics import select_intrinsics
from tc.passes.loop.tile_registers import keep_in_tiles

PARALLEL_FOR = "tc_parallel_for"

STACK_ALIGNMENT = 64
"""Bytes at whose multiples a kernel's stack begins: registers that do not suffice are kept there, and a vector that lies across two
cache lines is slow to write and read again (measured: kernels with spilled sums run 1.1 times as fast)."""


@dataclass(frozen=True)
class KernelSource:
    """LLVM IR of one kernel. `symbol` is its entry: void symbol(ptr per buffer, i64 per scalar, i64 max_threads)."""

    symbol: str
    ir_text: str


def emit_prim_func(func: PrimFunc, symbol: str | None = None, features: Iterable[str] = ()) -> KernelSource:
    """Emit a PrimFunc without blocks, for a target that has `features`.

    CodegenError for scratch buffers of unknown size and other things without code.
    """
    name = symbol or func.name
    module = Module(features)
    chosen = interleave_stores(keep_in_tiles(select_intrinsics(func, module.features)))
    emitter = KernelEmitter(module, name, chosen)
    emitter.emit_entry()
    mark = MARK if emitter.is_all_products else EXCHANGES if exchanges_lanes(chosen.body) else ""
    return KernelSource(name, mark + str(module))


class KernelEmitter(ExpressionEmitter):
    """Walks the statements of one PrimFunc."""

    def __init__(self, module: Module, symbol: str, func: PrimFunc) -> None:
        strict = is_strict(func)
        super().__init__(module, Facts.of(func.facts), alias_scopes(module, func), strict)
        self.symbol = symbol
        self.func = func
        self.inputs = frozenset(func.inputs)
        self.read_back = buffers_read(func.body) - self.inputs
        self.parallel_count = 0
        self.report = report_buffer(func)
        self.tree: TreeLoop | None = None
        self.vectorizable: dict[For, bool] = {}
        self.state.tile_sizes = tiles.tile_registers(func.body)
        if has_tiles(func.body):  # which leave the registers of vectors free
            self.lasting = self.inputs - buffers_written(func.body) - {func.inputs[number] for number in in_place_inputs(func)}
        self.is_all_products = is_all_products(func)

    # -- functions

    def emit_entry(self) -> None:
        params = []
        for k, param in enumerate(self.func.params):
            text = f"%p{k}"
            if isinstance(param, Buffer):
                self.state.pointers[param] = Value(text, "ptr")
                params.append(f"ptr noundef {text}")
            else:
                self.state.values[param] = Value(text, "i64")
                params.append(f"i64 noundef {text}")
        params.append("i64 noundef %max_threads")
        self.statement(self.func.body)
        self._finish(f"define void @{self.symbol}({', '.join(params)})")

    def _finish(self, header: str) -> None:
        b = self.b
        if self.state.tile_sizes:
            b.entry.append(f"  {tiles.configuration(self)}")
            b.emit_void(tiles.release(self))
        b.emit_void("ret void")
        header += f" nounwind alignstack({STACK_ALIGNMENT})"
        self.module.definitions.append("\n".join([f"{header} {{", "entry:", *b.entry, *b.lines, "}"]))

    # -- statements

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(stmts=stmts):
                for inner in stmts:
                    self.statement(inner)
            case For():
                self._for(stmt)
            case Store():
                self._store(stmt)
            case Let(var=var, value=value, body=body):
                self.state.values[var] = self.value(value)
                self.statement(body)
            case If():
                self._if(stmt)
            case Alloc(buffer=buffer, body=body) if buffer.scope == "tile":
                tiles.allocate(self, buffer)
                self.statement(body)
                del self.state.tile_numbers[buffer]
            case Alloc(buffer=buffer, body=body):
                self._alloc(buffer)
                if has_spare_lanes(stmt, self.facts):
                    self.spare.add(buffer)
                self.statement(body)
                self.spare.discard(buffer)
            case While(condition=condition, body=body):
                self._while(condition, body)
            case IntrinsicCall():
                self._intrinsic(stmt)
            case Block():
                raise CodegenError(f"block {stmt.name} reached code generation; run lower_blocks first")
            case _:
                raise CodegenError(f"no code for {type(stmt).__name__}")

    def _alloc(self, buffer: Buffer) -> None:
        size = simplify(product(buffer.shape), self.facts)
        if not isinstance(size, Const):
            raise CodegenError(f"scratch buffer {buffer} has no constant size; lift it to a workspace")
        if buffer.scope == "global":
            raise CodegenError(f"scratch buffer {buffer} is global; run lift_workspace first")
        element = memory_type(buffer.dtype)
        self.state.pointers[buffer] = self.b.alloca(element, max(int(size.value), 1), 64, identifier(buffer.name))

    def _for(self, loop: For) -> None:
        if loop.kind is LoopKind.BOUND:
            self.bound(loop)
            return
        count = loop.extent.value if isinstance(loop.extent, Const) else None
        if loop.kind is LoopKind.PARALLEL and not self.in_parallel and self.lane is None:
            self._parallel(loop)
        elif loop.kind is LoopKind.UNROLLED and count is not None:
            self._unrolled(loop, int(count))
        elif loop.kind is LoopKind.VECTORIZED and count is not None and self.lane is None and count > 1:
            if self._can_vectorize(loop):
                self._vectorized(loop, int(count))
            else:
                self._serial(loop)
        elif loop.kind is LoopKind.VECTORIZED and count is not None and self.lane is not None and count <= 16:
            self._unrolled(loop, int(count))
        else:
            self._serial(loop)

    def bound(self, loop: For) -> None:
        """A loop that is bound to an axis of a device."""
        name = f"loop {loop.var.name} of {self.func.name}"
        raise CodegenError(f"{name} is bound to {loop.thread}, an axis of a GPU; the target is a CPU, which has none")

    def _can_vectorize(self, loop: For) -> bool:
        """`can_vectorize` of a loop, found out once for all its copies."""
        found = self.vectorizable.get(loop)
        if found is None:
            found = self.vectorizable[loop] = can_vectorize(loop, self.report)
        return found

    def _unrolled(self, loop: For, count: int) -> None:
        if not emit_loop_intrinsic(self, loop):
            self._one_by_one(loop, range(count))

    def _one_by_one(self, loop: For, iterations: Iterable[int]) -> None:
        outer, self.facts = self.facts, self.facts.with_range(loop.var, loop.extent)
        for iteration in iterations:
            self.state.values[loop.var] = int_value(iteration)
            self.statement(loop.body)
        self.facts = outer

    def _vectorized(self, loop: For, count: int) -> None:
        outer = self._begin_lanes(loop, count)
        self.statement(loop.body)
        self._end_lanes(outer)

    @contextmanager
    def lanes(self, loop: For, count: int) -> Iterator[None]:
        """Inside, values that depend on the loop's variable are vectors of `count` lanes."""
        outer = self._begin_lanes(loop, count)
        yield
        self._end_lanes(outer)

    def _begin_lanes(self, loop: For, count: int) -> Facts:
        """What is known outside, for `_end_lanes`."""
        self.lane = Lane(loop.var, count)
        self.dependence.clear()
        self.state.values[loop.var] = _lane_numbers(count)
        outer, self.facts = self.facts, self.facts.with_range(loop.var, loop.extent)
        return outer

    def _end_lanes(self, outer: Facts) -> None:
        self.facts, self.lane, self.mask = outer, None, None
        self.dependence.clear()

    def _serial(self, loop: For) -> None:
        if not emit_loop_intrinsic(self, loop):
            extent = self.value(loop.extent)
            places, self.prefetch_places = self.prefetch_places, set()
            self.counted(loop, int_value(0), extent)
            self.prefetch_places = places

    def counted(self, loop: For, first: Value, end: Value) -> None:
        """for var in [first, end): body."""

        def iterate(number: Value) -> Value:
            self.state.values[loop.var] = number
            self.statement(loop.body)
            return self.b.emit(f"add nuw nsw {number}, 1", "i64")

        with self.knowing(self.facts.with_range(loop.var, loop.extent)):
            self._upwards(first, end, iterate)

    def _numbered(self, nest: Sequence[For], extents: Sequence[Value], first: Value, end: Value) -> None:
        """Iterations [first, end) of a nest, numbered as those of one loop; each run of the innermost loop is a loop of its own.

        So the division of a number into loop variables is paid once a run, and what does not change along it is loaded once.
        """
        if len(nest) == 1:
            self.counted(nest[0], first, end)
            return

        def run(number: Value) -> Value:
            b = self.b
            begin, rest = b.binary("urem", number, extents[-1]), b.binary("udiv", number, extents[-1])
            for loop, extent in zip(reversed(nest[1:-1]), reversed(extents[1:-1]), strict=True):
                self.state.values[loop.var] = b.binary("urem", rest, extent)
                rest = b.binary("udiv", rest, extent)
            self.state.values[nest[0].var] = rest
            last = b.add(begin, b.binary("sub nuw nsw", end, number))
            last = b.select(b.compare("icmp slt", last, extents[-1]), last, extents[-1])
            self.counted(nest[-1], begin, last)
            return b.add(number, b.binary("sub nuw nsw", last, begin))

        facts = self.facts
        for loop in nest[:-1]:
            facts = facts.with_range(loop.var, loop.extent)
        with self.knowing(facts):
            self._upwards(first, end, run)

    def _upwards(self, first: Value, end: Value, iterate: Callable[[Value], Value]) -> None:
        """A loop from `first` while below `end`; `iterate` emits its body and returns the next number.

        Tested at the bottom; skipped when there is nothing to do.
        """
        b = self.b
        start, body, done = b.label("loop"), b.label("body"), b.label("done")
        if first.known is not None and end.known is not None and first.known >= end.known:
            return
        if first.known is None or end.known is None:
            b.branch_if(b.compare("icmp slt", first, end), start, done)
        else:
            b.branch(start)
        b.start_block(start)
        b.branch(body)
        b.start_block(body)
        counter = b.name("i")
        phi_at = len(b.lines)
        b.lines.append("")
        with self.region():
            following = iterate(Value(counter, "i64"))
            # LLVM's passes learn from "less" what numbers a loop goes through, and divide them as such; without them it counts down
            again = b.compare("icmp ne" if self.is_all_products else "icmp slt", following, end)
        b.lines[phi_at] = f"  {counter} = phi i64 [ {first.text}, %{start} ], [ {following.text}, %{b.block} ]"
        b.emit_void(f"br i1 {again.text}, label %{body}, label %{done}, !llvm.loop {self._loop_metadata()}")
        b.start_block(done)

    def _loop_metadata(self) -> str:
        """Keep LLVM from unrolling or vectorizing on its own."""
        unroll = self.module.add_metadata('!{!"llvm.loop.unroll.disable"}')
        vector = self.module.add_metadata('!{!"llvm.loop.vectorize.enable", i1 false}')
        own = f"!{len(self.module.metadata)}"
        return self.module.add_metadata(f"distinct !{{{own}, {unroll}, {vector}}}")

    def _while(self, condition: Expr, body: Stmt) -> None:
        b = self.b
        test, inside, done = b.label("while"), b.label("body"), b.label("done")
        b.branch(test)
        b.start_block(test)
        with self.region():
            b.branch_if(self.value(condition), inside, done)
            b.start_block(inside)
            self.statement(body)
            b.branch(test)
        b.start_block(done)

    def _if(self, stmt: If) -> None:
        condition = self.value(stmt.condition)
        if condition.known is not None:
            branch = stmt.then_body if condition.known else stmt.else_body
            if branch is not None:
                self.statement(branch)
        elif condition.lanes and self._is_report(stmt.else_body):
            self._checked_vector(condition, stmt)
        elif condition.lanes:
            outer = self.mask
            self.mask = self.and_mask(outer, condition)
            with self.region():
                self.statement(stmt.then_body)
            if stmt.else_body is not None:
                inverse = self.b.binary("xor", condition, self.b.int(1, condition))
                self.mask = self.and_mask(outer, inverse)
                with self.region():
                    self.statement(stmt.else_body)
            self.mask = outer
        else:
            self._branch(condition, stmt)

    def _is_report(self, stmt: Stmt | None) -> bool:
        """Whether all that a statement does is to say what failed."""
        stores = [stmt] if isinstance(stmt, Store) else stmt.stmts if isinstance(stmt, Seq) else ()
        return bool(stores) and all(isinstance(each, Store) and each.buffer is self.report for each in stores)

    def _checked_vector(self, condition: Value, stmt: If) -> None:
        """What is checked in each lane, without masks: where one fails so does the call, and nobody asks what the others would have got."""
        assert stmt.else_body is not None
        b, outer = self.b, self.mask
        failed = self.and_mask(outer, b.binary("xor", condition, b.int(1, condition)))
        yes, no, done = b.label("seldom"), b.label("usual"), b.label("checked")
        b.branch_if(self.any_lane(failed), yes, no)
        b.start_block(yes)
        self.mask = failed
        with self.region():
            self.statement(stmt.else_body)
        b.branch(done)
        self.mask = outer
        b.start_block(no)
        with self.region():
            self.statement(stmt.then_body)
        b.branch(done)
        b.start_block(done)

    def _branch(self, condition: Value, stmt: If) -> None:
        b = self.b
        yes, no, done = b.label("then"), b.label("else"), b.label("endif")
        b.branch_if(condition, yes, no if stmt.else_body is not None else done)
        b.start_block(yes)
        with self.knowing(self.facts.assume(stmt.condition)), self.region():
            self.statement(stmt.then_body)
        b.branch(done)
        if stmt.else_body is not None:
            b.start_block(no)
            with self.region():
                self.statement(stmt.else_body)
            b.branch(done)
        b.start_block(done)

    def _parallel(self, loop: For) -> None:
        """Outline the loop, with the parallel loops that are its whole body: their iterations are numbered as those of one loop.
        What the body uses from outside travels in a struct on the stack."""
        b = self.b
        nest = parallel_nest(loop)
        extents = [self.value(each.extent) for each in nest]
        end = extents[0]
        for extent in extents[1:]:
            end = b.mul(end, extent)
        used = binders(loop.body)
        outer = self.state
        captured: list[tuple[Var | Buffer, Value]] = []
        known: dict[Var, Value] = {}
        for var, value in outer.values.items():
            if var in used:
                if value.known is not None:
                    known[var] = value
                else:
                    captured.append((var, value))
        sizes: list[Value | Var] = [  # by place: a symbolic dim may be the extent of several loops
            Var(f"extent{k}", i64) if k and extent.known is None else extent for k, extent in enumerate(extents)
        ]
        inner_extents = [(size, extent) for size, extent in zip(sizes, extents, strict=True) if isinstance(size, Var)]
        captured += inner_extents
        captured += [(buffer, pointer) for buffer, pointer in outer.pointers.items() if buffer in used]
        frame = b.alloca("i64", max(len(captured), 1), 16, "frame")
        for k, (_, value) in enumerate(captured):
            place = b.emit(f"getelementptr i64, {frame}, i64 {k}", "ptr")
            b.emit_void(f"store {value}, {place}, align 8")
        name = f"{self.symbol}.par{self.parallel_count}"
        self.parallel_count += 1
        grain = loop.hints.grain
        self.module.declare(PARALLEL_FOR, "void", ["ptr", "ptr", "i64", "i64", "i64"])
        b.emit_void(f"call void @{PARALLEL_FOR}(ptr @{name}, {frame}, {end}, i64 {grain}, i64 {self._max_threads()})")
        self._outlined(nest, sizes, name, captured, known)
        self.state = outer
        self.forget_memory()
        if self.state.tile_sizes:  # workers released theirs, and this thread was one
            b.emit_void(tiles.configuration(self))

    def _max_threads(self) -> str:
        return "%max_threads"

    def _outlined(
        self,
        nest: Sequence[For],
        sizes: Sequence[Value | Var],
        name: str,
        captured: Sequence[tuple[Var | Buffer, Value]],
        known: dict[Var, Value],
    ) -> None:
        self.state = State(FunctionBuilder(self.module, shares=True), values=dict(known))
        b = self.b
        for k, (item, value) in enumerate(captured):
            place = b.emit(f"getelementptr i64, ptr %ctx, i64 {k}", "ptr")
            loaded = b.emit(f"load {value.type}, {place}, align 8", value.element, value.lanes)
            if isinstance(item, Buffer):
                self.state.pointers[item] = loaded
            else:
                self.state.values[item] = loaded
        self.state.tile_sizes = tiles.tile_registers(nest[-1].body, in_parallel=True)
        self.in_parallel = True
        extents = [self.state.values[size] if isinstance(size, Var) else size for size in sizes]
        self._numbered(nest, extents, Value("%begin", "i64"), Value("%end", "i64"))
        self.in_parallel = False
        self._finish(f"define internal void @{name}(ptr noalias noundef %ctx, i64 %begin, i64 %end, i64 %thread)")

    def _store(self, stmt: Store) -> None:
        if stmt.buffer is self.report and self.mask is not None:
            self.where(self.any_lane(self.mask), lambda: self._store_now(stmt), ("seldom", "usual"))
        else:
            self._store_now(stmt)

    def _store_now(self, stmt: Store) -> None:
        is_tree = self.tree is not None and stmt is self.tree.store
        value = tree_value(self, self.tree) if is_tree else self.value(stmt.value)  # type: ignore[arg-type]
        self.store_value(stmt, self.to_memory(value, stmt.buffer.dtype))

    def _intrinsic(self, stmt: IntrinsicCall) -> None:
        emit_intrinsic(self, stmt)


@cache
def _lane_numbers(count: int) -> Value:
    """0, 1, ... in so many lanes."""
    return Value(f"<{', '.join([f'i64 {k}' for k in range(count)])}>", "i64", count)
