"""Statements as C: loops stay loops, marked where they are to be unrolled; vectorized ones are operations on vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tc.codegen.c.expressions import ExpressionWriter
from tc.codegen.c.index_types import fits
from tc.codegen.c.scalars import PRIMARY, SUM, CValue, c_type
from tc.codegen.llvm.masks import has_spare_lanes
from tc.codegen.llvm.places import Lane
from tc.codegen.loops import can_vectorize, joined_branches
from tc.errors import CodegenError
from tc.ir.access import report_buffer
from tc.ir.arith import simplify
from tc.ir.dtype import i64
from tc.ir.expr import Add, Buffer, Const, Expr, Load, Max, Min, Mul, Select
from tc.ir.loop import Alloc, Block, For, If, IntrinsicCall, Let, LoopKind, PrimFunc, Seq, Stmt, Store, While
from tc.ir.node import walk
from tc.ir.tree_loop import TreeLoop, as_tree_loop, combine_tree
from tc.ir.types import product
from tc.ir.uses import buffers_read

MOST_UNROLLED_IN_LANES = 16


class StatementWriter(ExpressionWriter):
    """Statements of one PrimFunc."""

    func: PrimFunc
    tree: TreeLoop | None = None

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(stmts=stmts):
                for inner in joined_branches(stmts):
                    self.statement(inner)
            case For():
                self._for(stmt)
            case Store(buffer=buffer) if buffer in self.unread:
                pass
            case Store():
                is_tree = self.tree is not None and stmt is self.tree.store
                self.store_value(stmt, self._tree_value(self.tree) if is_tree else self.value(stmt.value))  # type: ignore[arg-type]
            case Let(var=var, value=value, body=body):
                self.scope.values[var] = self.declare(var.name, self.value(value))
                self.long.add(var)
                if not self.is_index(value):
                    self.wild.add(var)
                self.statement(body)
            case If():
                self._if(stmt)
            case Alloc():
                self._alloc(stmt)
            case While(condition=condition, body=body):
                self._while(condition, body)
            case IntrinsicCall(name="prefetch", operands=(Load() as place,)):
                self._prefetch(place)
            case IntrinsicCall(name=name):
                raise CodegenError(f"{name} is no statement of {self.dialect.name}; its loops are")
            case Block():
                raise CodegenError(f"block {stmt.name} reached code generation; run lower_blocks first")
            case _:
                self.other(stmt)

    def other(self, stmt: Stmt) -> None:
        """A statement that only some dialects have."""
        raise CodegenError(f"no code for {type(stmt).__name__}")

    def _prefetch(self, place: Load) -> None:
        if self.dialect.gnu_vectors and place.buffer.dtype.bits >= 8:
            offset, _ = self.place(place.buffer, place.indices)
            self.line(f"__builtin_prefetch(&{self.buffer_name(place.buffer)}[{self.index(offset)}]);")

    # -- memory

    def _alloc(self, stmt: Alloc) -> None:
        buffer = stmt.buffer
        if buffer in buffers_read(stmt.body):
            self.allocate(buffer)
        else:
            self.unread.add(buffer)
        is_spare = buffer.scope == "register" and has_spare_lanes(stmt, self.facts)
        if is_spare:
            self.spare.add(buffer)
        self.statement(stmt.body)
        self.spare.discard(buffer)

    def allocate(self, buffer: Buffer) -> None:
        """Memory of a scope, from here to the end of the block."""
        size = simplify(product(buffer.shape), self.facts)
        if not isinstance(size, Const):
            raise CodegenError(f"scratch buffer {buffer} has no constant size; lift it to a workspace")
        if buffer.scope == "global":
            raise CodegenError(f"scratch buffer {buffer} is global; run lift_workspace first")
        name = self.scope.buffers[buffer] = self.scope.names.new(buffer.name)
        self.line(self.declaration(buffer, name, max(int(size.value), 1)))

    def declaration(self, buffer: Buffer, name: str, size: int) -> str:
        """The line that makes memory of a scope."""
        return f"{self.element_type(buffer)} {name}[{size}] {self.dialect.alignment.format(64)};"

    def element_type(self, buffer: Buffer) -> str:
        """The type of an element in memory."""
        return c_type(buffer.dtype)

    # -- loops

    def _for(self, loop: For) -> None:
        count = int(loop.extent.value) if isinstance(loop.extent, Const) else None
        if loop.kind is LoopKind.BOUND:
            self.bound(loop)
        elif loop.kind is LoopKind.PARALLEL and not self.in_parallel and self.lane is None:
            self.parallel(loop)
        elif count is not None and loop.kind is LoopKind.UNROLLED and (tree := as_tree_loop(loop)) is not None:
            self._tree(loop, tree)
        elif count is not None and loop.kind is LoopKind.VECTORIZED and self.lane is None and count > 1:
            if can_vectorize(loop, report_buffer(self.func)):
                self._vectorized(loop, count)
            else:
                self._serial(loop)
        else:
            is_short = loop.kind is LoopKind.VECTORIZED and self.lane is not None and count is not None and count <= MOST_UNROLLED_IN_LANES
            self._serial(loop, count if loop.kind is LoopKind.UNROLLED or is_short else None)

    def bound(self, loop: For) -> None:
        """A loop over an axis of a device."""
        name = f"loop {loop.var.name} of {self.func.name}"
        raise CodegenError(f"{name} is bound to {loop.thread}, an axis of a GPU; {self.dialect.name} is for a CPU, which has none")

    def parallel(self, loop: For) -> None:
        """A loop whose iterations are shared out to threads."""
        self._serial(loop)

    def _serial(self, loop: For, unrolled: int | None = None) -> None:
        extent = self.value(loop.extent)
        if unrolled is not None and unrolled > 1:
            self.line(self.dialect.unroll.format(unrolled))
        elif self.dialect.rolled and extent.text != "1":
            self.line(self.dialect.rolled)
        self.counted(loop, "0", extent.at(SUM))

    def counted(self, loop: For, first: str, end: str) -> None:
        """for var in [first, end): body."""
        names = self.scope.names
        name = names.counter(loop.var.name)
        self.scope.values[loop.var] = CValue(name, i64)
        with self._knowing(loop), self.block(f"for ({self.counter_type(loop)} {name} = {first}; {name} < {end}; {name}++) {{"):
            self.statement(loop.body)
        names.release(name)

    def counter_type(self, loop: For) -> str:
        """The type of a loop's variable, which counts up to its extent."""
        if self.has_short_indices and fits(loop.extent, self.facts):
            return "i32"
        self.long.add(loop.var)
        return "i64"

    @contextmanager
    def _knowing(self, loop: For) -> Iterator[None]:
        outer, self.facts = self.facts, self.facts.with_range(loop.var, loop.extent)
        yield
        self.facts = outer

    def _vectorized(self, loop: For, count: int) -> None:
        with self._lanes(loop, count):
            self.statement(loop.body)

    @contextmanager
    def _lanes(self, loop: For, count: int) -> Iterator[None]:
        """Inside, what depends on the loop's variable is a vector."""
        self.scope.values[loop.var] = CValue("", i64, count)
        self.lane = Lane(loop.var, count)
        with self._knowing(loop):
            yield
        self.lane = None
        self.mask = None

    # -- trees

    def _tree(self, loop: For, tree: TreeLoop) -> None:
        """A loop that combines numbers as a tree. Where they follow each other in memory, halves of one vector are combined."""
        follows = isinstance(tree.value, Load) and any(n is loop.var for i in tree.value.indices for n in walk(i))
        if tree.store is not tree.body or not follows or self.lane is not None or tree.count & (tree.count - 1) or tree.count < 2:
            outer, self.tree = self.tree, tree
            self.statement(tree.body)
            self.tree = outer
            return
        with self._lanes(loop, tree.count):
            vector = self.value(tree.value)
        name = _TREE_NAMES[tree.operation]
        total = self.vectors.tree(name, vector, partial(self._combined, tree.operation))
        self.store_value(tree.store, self._combined(tree.operation, self.value(tree.old), total))

    def _tree_value(self, tree: TreeLoop) -> CValue:
        """What the store of a tree stores, at this point of the loops inside of it."""

        def leaf(number: int) -> CValue:
            self.scope.values[tree.var] = CValue(str(number), i64)
            return self.value(tree.value)

        def combine(a: CValue, b: CValue) -> CValue:
            made = self._combined(tree.operation, a, b)
            return self.declare("part", made) if len(made.text) > 100 else made

        return combine(self.value(tree.old), combine_tree(tree.count, leaf, combine))

    def _combined(self, operation: type[Expr], a: CValue, b: CValue) -> CValue:
        if operation is not Select:
            return self._binary(operation, a, b)
        return self.vectors.apply("larger", [a, b], self._larger)

    def _larger(self, a: CValue, b: CValue) -> CValue:
        """b where a < b, else a: the larger of two numbers where NaN does not count."""
        return self.scalars.larger(a, b)

    # -- branches

    def _if(self, stmt: If) -> None:
        condition = self.value(stmt.condition)
        if condition.lanes:
            self._masked(condition, stmt)
            return
        known = {"1": stmt.then_body, "0": stmt.else_body}
        if condition.text in known:
            body = known[condition.text]
            if body is not None:
                self.statement(body)
            return
        outer, self.facts = self.facts, self.facts.assume(stmt.condition)
        with self.block(f"if ({condition}) {{", "}" if stmt.else_body is None else "} else {"):
            self.statement(stmt.then_body)
        self.facts = outer
        if stmt.else_body is not None:
            self.depth += 1
            self.statement(stmt.else_body)
            self.depth -= 1
            self.line("}")

    def _masked(self, condition: CValue, stmt: If) -> None:
        """Both branches, each in the lanes that take it."""
        condition, outer = self.declare("mask", condition), self.mask
        self.mask = self.declare("mask", self.and_mask(condition)) if outer is not None else condition
        self.statement(stmt.then_body)
        if stmt.else_body is not None:
            self.mask = outer
            inverse = self.vectors.apply("not", [condition], self.scalars.opposite, self._native("~a"))
            self.mask = self.declare("mask", self.and_mask(inverse))
            self.statement(stmt.else_body)
        self.mask = outer

    def _while(self, condition: Expr, body: Stmt) -> None:
        with self.block("for (;;) {"):
            self.line(f"if (!{self.value(condition).at(PRIMARY)}) break;")
            self.statement(body)


_TREE_NAMES: dict[type[Expr], str] = {Add: "add", Select: "larger", Mul: "mul", Min: "min", Max: "max"}
