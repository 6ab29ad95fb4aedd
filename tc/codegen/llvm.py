"""PrimFunc to LLVM IR text.

The input has no blocks: loops, stores, allocations. Vectorized loops become operations on explicit vectors, with masks where a
condition depends on the lane; unrolled loops are unrolled here, with the loop variable a known number, so that indices fold
and register tiles, which are allocas accessed at constant offsets, turn into SSA values. A parallel loop becomes a function of its
own that the thread pool calls on ranges of iterations.

`x + a * b` is one fused multiply-add, unless the function's attribute "numerics" is "strict". No other float operation is
reassociated, so the same program gives the same bits on any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tc.codegen.builder import FunctionBuilder, Module, Value, float_text, int_value, llvm_type, mangled
from tc.codegen.vecmath import emit_math
from tc.errors import CodegenError
from tc.ir.arith import Facts, Polynomial, bounds, polynomial, simplify
from tc.ir.dtype import DType, i64, int_range
from tc.ir.expr import (
    Add,
    And,
    BinaryExpr,
    Buffer,
    Cast,
    CompareExpr,
    Const,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Load,
    Lt,
    MathCall,
    Max,
    Min,
    Mul,
    Ne,
    Not,
    Or,
    Select,
    Sub,
    Var,
    const,
    mul,
)
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
    annotation,
)
from tc.ir.node import walk
from tc.ir.types import product

MAX_GATHER_LANES = 64
PARALLEL_FOR = "tc_parallel_for"


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
    emitter = _Emitter(module, name, func)
    emitter.emit_entry()
    return KernelSource(name, str(module))


@dataclass(frozen=True)
class _Lane:
    """The vectorized loop being emitted: its variable and its number of lanes."""

    var: Var
    lanes: int


@dataclass
class _Address:
    """An access reduced to a polynomial offset, in elements; computed once per access."""

    poly: Polynomial
    vars: frozenset[Var]


@dataclass
class _State:
    """What one emitted function needs: where values are."""

    builder: FunctionBuilder
    values: dict[Var, Value] = field(default_factory=dict)
    pointers: dict[Buffer, Value] = field(default_factory=dict)
    bases: list[dict[tuple[object, ...], Value]] = field(default_factory=lambda: [{}])


class ScalarEmitter:
    """Emits scalar expressions over dims, for code that is not a kernel. `values` holds the dims known so far."""

    def __init__(self, builder: FunctionBuilder, facts: Facts) -> None:
        empty = PrimFunc("dims", (), Seq(()), 0)
        self._emitter = _Emitter(builder.module, "dims", empty)
        self._emitter.state = _State(builder)
        self._emitter.facts = facts

    @property
    def values(self) -> dict[Var, Value]:
        return self._emitter.state.values

    @values.setter
    def values(self, values: dict[Var, Value]) -> None:
        self._emitter.state.values = values

    def value(self, expr: Expr) -> Value:
        return self._emitter.value(expr)


class _Emitter:
    """Walks the statements of one PrimFunc."""

    def __init__(self, module: Module, symbol: str, func: PrimFunc) -> None:
        self.module = module
        self.symbol = symbol
        self.func = func
        self.facts = Facts.of(func.facts)
        self.strict = annotation(func, "numerics") == "strict"
        self.lane: _Lane | None = None
        self.mask: Value | None = None
        self.parallel_count = 0
        self.in_parallel = False
        self.prefetched: dict[Buffer, int] = {}
        self.prefetch_places: set[object] = set()
        self.addresses: dict[tuple[Buffer, tuple[Expr, ...]], _Address] = {}
        self.dependence: dict[Expr, bool] = {}
        self.scopes = _alias_scopes(module, func)
        self.state = _State(FunctionBuilder(module))
        self.vars_of: dict[Expr, frozenset[Var]] = {}

    @property
    def b(self) -> FunctionBuilder:
        return self.state.builder

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
        self._finish(f"define void @{self.symbol}({', '.join(params)}) nounwind")

    def _finish(self, header: str) -> None:
        b = self.b
        b.emit_void("ret void")
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
            case Alloc(buffer=buffer, body=body):
                self._alloc(buffer)
                self.statement(body)
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
        element = _memory_type(buffer.dtype)
        self.state.pointers[buffer] = self.b.alloca(element, max(int(size.value), 1), 64, _safe(buffer.name))

    def _for(self, loop: For) -> None:
        count = loop.extent.value if isinstance(loop.extent, Const) else None
        if loop.kind is LoopKind.PARALLEL and not self.in_parallel and self.lane is None:
            self._parallel(loop)
        elif loop.kind is LoopKind.UNROLLED and count is not None:
            self._unrolled(loop, int(count))
        elif loop.kind is LoopKind.VECTORIZED and count is not None and self.lane is None and count > 1:
            if _can_vectorize(loop):
                self._vectorized(loop, int(count))
            else:
                self._serial(loop)
        elif loop.kind is LoopKind.VECTORIZED and count is not None and self.lane is not None and count <= 16:
            self._unrolled(loop, int(count))
        else:
            self._serial(loop)

    def _unrolled(self, loop: For, count: int) -> None:
        is_tree = annotation(loop, "tree") and not self.strict and self.lane is None and count & (count - 1) == 0
        if is_tree and self._combined(loop, count):
            return
        if annotation(loop, "transpose") and self.lane is None and count & (count - 1) == 0 and self._transposed(loop, count):
            return
        for iteration in range(count):
            self.state.values[loop.var] = int_value(iteration)
            self.statement(loop.body)

    def _combined(self, loop: For, count: int) -> bool:
        """A loop that folds numbers into one place, as a tree: halves of a vector are combined until one number is left.

        False when the loop is not of the form `A[i] = A[i] op x`, with x in memory one number after the other. Select
        stands for the larger of two numbers where NaN does not count.
        """
        store = loop.body
        if not isinstance(store, Store):
            return False
        state = Load(store.buffer, store.indices)
        match store.value:
            case Select(condition=Lt(lhs=old, rhs=new), true_value=kept) if kept is new and store.value.false_value is old:
                operation: type[Expr] = Select
            case Add(lhs=old, rhs=new) | Mul(lhs=old, rhs=new) | Min(lhs=old, rhs=new) | Max(lhs=old, rhs=new):
                operation = type(store.value)
            case _:
                return False
        folds = old is state and isinstance(new, Load) and any(n is loop.var for i in new.indices for n in walk(i))
        if not folds or not new.dtype.is_float or any(n is loop.var for i in store.indices for n in walk(i)):
            return False
        with self._lanes(loop, count):
            vector = self.value(new)
        while vector.lanes:
            vector = self._half(operation, vector)
        total = self._float_operation(operation, self.value(state), vector)
        self._store_scalar(store, total)
        return True

    def _transposed(self, loop: For, count: int) -> bool:
        """A square copied with its axes exchanged: rows are read as vectors, transposed in registers, and stored as vectors.

        False when the loop is not of the form `for i in unrolled(n): for j in vectorized(n): A[...] = x`. All of the square
        is read before anything is stored.
        """
        inner = loop.body
        if not isinstance(inner, For) or inner.kind is not LoopKind.VECTORIZED or not isinstance(inner.body, Store):
            return False
        if not isinstance(inner.extent, Const) or inner.extent.value != count or count < 2:
            return False
        store = inner.body
        rows = []
        for k in range(count):
            self.state.values[inner.var] = int_value(k)
            with self._lanes(loop, count):
                rows.append(self.b.splat(self._to_memory(self.value(store.value), store.buffer.dtype), count))
        for k, column in enumerate(self._exchange(rows)):
            self.state.values[loop.var] = int_value(k)
            with self._lanes(inner, count):
                self._store_value(store, column)
        return True

    def _exchange(self, rows: list[Value]) -> list[Value]:
        """The columns of a square of rows: blocks off the diagonal change places, half as large in each round."""
        count = len(rows)
        step = count // 2
        while step:
            for k in (k for k in range(count) if not k & step):
                a, b = rows[k], rows[k + step]
                low = [lane if not lane & step else count + lane - step for lane in range(count)]
                high = [lane + step if not lane & step else count + lane for lane in range(count)]
                rows[k], rows[k + step] = (self._shuffled(a, b, lanes) for lanes in (low, high))
            step //= 2
        return rows

    def _shuffled(self, a: Value, b: Value, lanes: list[int]) -> Value:
        text = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.b.emit(f"shufflevector {a}, {b}, <{len(lanes)} x i32> <{text}>", a.element, len(lanes))

    def _half(self, operation: type[Expr], vector: Value) -> Value:
        """The lower half of a vector combined with its upper half; a number when there are two."""
        b, half = self.b, vector.lanes // 2
        if half == 1:
            return self._float_operation(operation, b.extract(vector, 0), b.extract(vector, 1))
        sides = []
        for start in (0, half):
            lanes = ", ".join(f"i32 {start + k}" for k in range(half))
            text = f"shufflevector {vector}, {vector.type} poison, <{half} x i32> <{lanes}>"
            sides.append(b.emit(text, vector.element, half))
        return self._float_operation(operation, *sides)

    def _vectorized(self, loop: For, count: int) -> None:
        with self._lanes(loop, count):
            self.statement(loop.body)

    @contextmanager
    def _lanes(self, loop: For, count: int) -> Iterator[None]:
        """Inside, values that depend on the loop's variable are vectors of `count` lanes."""
        self.lane = _Lane(loop.var, count)
        self.dependence.clear()
        self.state.values[loop.var] = self._lane_numbers(count)
        outer, self.facts = self.facts, self.facts.with_range(loop.var, loop.extent)
        with self._region():
            yield
        self.facts, self.lane, self.mask = outer, None, None
        self.dependence.clear()

    @staticmethod
    def _lane_numbers(count: int) -> Value:
        numbers = ", ".join(f"i64 {k}" for k in range(count))
        return Value(f"<{numbers}>", "i64", count)

    @contextmanager
    def _region(self) -> Iterator[None]:
        """Code whose values do not dominate what follows."""
        self.state.bases.append({})
        with self.b.scope():
            yield
        self.state.bases.pop()

    def _serial(self, loop: For) -> None:
        extent = self.value(loop.extent)
        outer, ahead = self.prefetched, annotation(loop, "prefetch")
        if ahead is not None:  # "number of the buffer:bytes"
            number, _, distance = str(ahead).partition(":")
            self.prefetched = {**outer, self.func.buffers[int(number)]: int(distance)}
        places, self.prefetch_places = self.prefetch_places, set()
        self._counted(loop, int_value(0), extent)
        self.prefetched, self.prefetch_places = outer, places

    def _counted(self, loop: For, first: Value, end: Value, nested: Sequence[tuple[For, Value]] = ()) -> None:
        """for var in [first, end): body. Tested at the bottom; skipped when there is nothing to do.

        With `nested` loops and their extents, the counter numbers the iterations of the whole nest.
        """
        b = self.b
        start, body, done = b.label("loop"), b.label("body"), b.label("done")
        known = first.known is not None and end.known is not None
        if known and first.known >= end.known:  # type: ignore[operator]
            return
        if not known:
            b.branch_if(b.compare("icmp slt", first, end), start, done)
        else:
            b.branch(start)
        before = b.block
        b.start_block(start)
        b.branch(body)
        b.start_block(body)
        counter, following = b.name("i"), b.name("n")
        phi_at = len(b.lines)
        b.lines.append("")
        outer, self.facts = self.facts, self.facts.with_range(loop.var, loop.extent)
        with self._region():
            number = Value(counter, "i64")
            for inner, extent in reversed(nested):
                self.facts = self.facts.with_range(inner.var, inner.extent)
                self.state.values[inner.var] = b.binary("urem", number, extent)
                number = b.binary("udiv", number, extent)
            self.state.values[loop.var] = number
            self.statement(nested[-1][0].body if nested else loop.body)
        self.facts = outer
        latch = b.block
        b.lines[phi_at] = f"  {counter} = phi i64 [ {first.text}, %{start} ], [ {following}, %{latch} ]"
        b.emit_void(f"{following} = add nuw nsw i64 {counter}, 1")
        again = b.compare("icmp slt", Value(following, "i64"), end)
        b.emit_void(f"br i1 {again.text}, label %{body}, label %{done}, !llvm.loop {self._loop_metadata()}")
        b.start_block(done)
        del before

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
        with self._region():
            b.branch_if(self.condition(condition), inside, done)
            b.start_block(inside)
            self.statement(body)
            b.branch(test)
        b.start_block(done)

    def _if(self, stmt: If) -> None:
        condition = self.condition(stmt.condition)
        if condition.known is not None:
            branch = stmt.then_body if condition.known else stmt.else_body
            if branch is not None:
                self.statement(branch)
        elif condition.lanes:
            outer = self.mask
            self.mask = self._and_mask(outer, condition)
            with self._region():
                self.statement(stmt.then_body)
            if stmt.else_body is not None:
                inverse = self.b.binary("xor", condition, self.b.int(1, condition))
                self.mask = self._and_mask(outer, inverse)
                with self._region():
                    self.statement(stmt.else_body)
            self.mask = outer
        else:
            self._branch(condition, stmt)

    def _branch(self, condition: Value, stmt: If) -> None:
        b = self.b
        yes, no, done = b.label("then"), b.label("else"), b.label("endif")
        b.branch_if(condition, yes, no if stmt.else_body is not None else done)
        b.start_block(yes)
        outer, self.facts = self.facts, self.facts.assume(stmt.condition)
        with self._region():
            self.statement(stmt.then_body)
        self.facts = outer
        b.branch(done)
        if stmt.else_body is not None:
            b.start_block(no)
            with self._region():
                self.statement(stmt.else_body)
            b.branch(done)
        b.start_block(done)

    def _and_mask(self, a: Value | None, b: Value) -> Value:
        return b if a is None else self.b.binary("and", a, b)

    def _parallel(self, loop: For) -> None:
        """Outline the loop, with the parallel loops that are its whole body: their iterations are numbered as those of one loop.
        What the body uses from outside travels in a struct on the stack."""
        b = self.b
        nest = _parallel_nest(loop)
        extents = [self.value(each.extent) for each in nest]
        end = extents[0]
        for extent in extents[1:]:
            end = b.mul(end, extent)
        used = {node for node in walk(loop.body) if isinstance(node, (Var, Buffer))}
        outer = self.state
        captured: list[tuple[Var | Buffer, Value]] = []
        known: dict[Var, Value] = {}
        for var, value in outer.values.items():
            if var in used:
                if value.known is not None:
                    known[var] = value
                else:
                    captured.append((var, value))
        inner_extents = [(Var(f"extent{k}", i64), extent) for k, extent in enumerate(extents) if k and extent.known is None]
        captured += inner_extents
        captured += [(buffer, pointer) for buffer, pointer in outer.pointers.items() if buffer in used]
        frame = b.alloca("i64", max(len(captured), 1), 16, "frame")
        for k, (_, value) in enumerate(captured):
            place = b.emit(f"getelementptr i64, {frame}, i64 {k}", "ptr")
            b.emit_void(f"store {value}, {place}, align 8")
        name = f"{self.symbol}.par{self.parallel_count}"
        self.parallel_count += 1
        grain = int(annotation(loop, "grain", 1) or 1)
        self.module.declare(PARALLEL_FOR, "void", ["ptr", "ptr", "i64", "i64", "i64"])
        b.emit_void(f"call void @{PARALLEL_FOR}(ptr @{name}, {frame}, {end}, i64 {grain}, i64 {self._max_threads()})")
        sizes: list[Value | Var] = list(extents)
        for var, extent in inner_extents:
            sizes[extents.index(extent)] = var
        self._outlined(nest, sizes, name, captured, known)
        self.state = outer

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
        self.state = _State(FunctionBuilder(self.module), values=dict(known))
        b = self.b
        for k, (item, value) in enumerate(captured):
            place = b.emit(f"getelementptr i64, ptr %ctx, i64 {k}", "ptr")
            loaded = b.emit(f"load {value.type}, {place}, align 8", value.element, value.lanes)
            if isinstance(item, Buffer):
                self.state.pointers[item] = loaded
            else:
                self.state.values[item] = loaded
        self.in_parallel = True
        inner = [self.state.values[size] if isinstance(size, Var) else size for size in sizes[1:]]
        self._counted(nest[0], Value("%begin", "i64"), Value("%end", "i64"), list(zip(nest[1:], inner, strict=True)))
        self.in_parallel = False
        header = f"define internal void @{name}(ptr noalias noundef %ctx, i64 %begin, i64 %end, i64 %thread) nounwind"
        self._finish(header)

    # -- memory

    def _address(self, buffer: Buffer, indices: tuple[Expr, ...]) -> _Address:
        key = (buffer, indices)
        found = self.addresses.get(key)
        if found is None:
            offset: Expr = const(0)
            strides = buffer.strides or _row_major(buffer.shape)
            for index, stride in zip(indices, strides, strict=True):
                offset = offset + mul(_as_i64(index), stride)
            poly = polynomial(simplify(offset, self.facts))
            found = _Address(poly, frozenset(v for m in poly.terms for a in m for v in self._vars(a)))
            self.addresses[key] = found
        return found

    def _vars(self, expr: Expr) -> frozenset[Var]:
        found = self.vars_of.get(expr)
        if found is None:
            found = frozenset(node for node in walk(expr) if isinstance(node, Var))
            self.vars_of[expr] = found
        return found

    def _depends_on_lane(self, expr: Expr) -> bool:
        """Whether the value differs between lanes: by the lane variable, or through a Let that depends on it."""
        if self.lane is None:
            return False
        found = self.dependence.get(expr)
        if found is None:
            found = any(v is self.lane.var or self._is_vector(v) for v in self._vars(expr))
            self.dependence[expr] = found
        return found

    def _is_vector(self, var: Var) -> bool:
        value = self.state.values.get(var)
        return value is not None and value.lanes > 0

    def _offset(self, address: _Address) -> tuple[Value, int, Value | None, Value | None]:
        """(offset that is the same in all lanes, constant part, coefficient of the lane, offset that differs otherwise)."""
        b = self.b
        known = address.poly.constant
        parts: list[tuple[tuple[object, ...], int, list[Value]]] = []
        lane_known = 0
        lane_value: Value | None = None
        varying: Value | None = None
        for monomial, coefficient in address.poly.terms.items():
            factor, values, lane_count, differs = coefficient, [], 0, False
            for atom in monomial:
                if self.lane is not None and atom is self.lane.var:
                    lane_count += 1
                    continue
                differs = differs or self._depends_on_lane(atom)
                value = self.value(atom)
                if value.known is not None:
                    factor *= value.known
                else:
                    values.append(value)
            if lane_count == 0 and not differs:
                if not values:
                    known += factor
                elif factor:
                    parts.append(((*(v.text for v in values), factor), factor, values))
            elif lane_count == 1 and not differs:
                if not values:
                    lane_known += factor
                else:
                    term = self._term(factor, values)
                    lane_value = term if lane_value is None else b.add(lane_value, term)
            else:
                lanes = [self.state.values[self.lane.var]] * lane_count if self.lane is not None else []
                term = self._term(factor, [*values, *lanes])
                varying = term if varying is None else b.binary("add", varying, term)
        uniform = self._uniform(parts)
        lane: Value | None = int_value(lane_known)
        if lane_value is not None:
            lane = b.add(lane_value, int_value(lane_known))
        return uniform, known, (lane if self.lane is not None else None), varying

    def _term(self, factor: int, values: list[Value]) -> Value:
        result = values[0]
        for value in values[1:]:
            result = self.b.binary("mul", result, value)
        return result if factor == 1 else self.b.binary("mul", result, self.b.int(factor, result))

    def _uniform(self, parts: list[tuple[tuple[object, ...], int, list[Value]]]) -> Value:
        """The sum of the terms, shared by all accesses with the same terms."""
        if not parts:
            return int_value(0)
        key = tuple(sorted((part[0] for part in parts), key=str))
        for known in self.state.bases:
            if key in known:
                return known[key]
        total: Value | None = None
        for _, factor, values in parts:
            term = self._term(factor, values)
            total = term if total is None else self.b.add(total, term)
        assert total is not None
        self.state.bases[-1][key] = total
        return total

    def _pointer(self, buffer: Buffer, uniform: Value, known: int) -> Value:
        """base + uniform + known; the sum with `uniform` is shared, so that only constants differ between unrolled copies."""
        element = _memory_type(buffer.dtype)
        base = self.state.pointers.get(buffer)
        if base is None:
            raise CodegenError(f"buffer {buffer} is used outside its scope")
        if uniform.known is None or uniform.known != 0:
            key = ("ptr", base.text, element, uniform.text)
            shared = next((found[key] for found in self.state.bases if key in found), None)
            if shared is None:
                shared = self.b.emit(f"getelementptr inbounds {element}, {base}, {uniform}", "ptr")
                self.state.bases[-1][key] = shared
            base = shared
        if known == 0:
            return base
        return self.b.emit(f"getelementptr inbounds {element}, {base}, i64 {known}", "ptr")

    def _aliasing(self, buffer: Buffer) -> str:
        return self.scopes.get(buffer, "")

    def load(self, node: Load) -> Value:
        buffer = node.buffer
        uniform, known, lane, varying = self._offset(self._address(buffer, node.indices))
        if varying is not None or (lane is not None and lane.known not in (0, 1)):
            return self._from_memory(self._gather(buffer, uniform, known, lane, varying), buffer.dtype)
        pointer = self._pointer(buffer, uniform, known)
        contiguous = lane is not None and lane.known == 1
        if not contiguous:
            return self._from_memory(self._scalar_load(buffer, pointer), buffer.dtype)
        assert self.lane is not None
        element, lanes = _memory_type(buffer.dtype), self.lane.lanes
        align = buffer.dtype.size_bytes
        if buffer in self.prefetched:
            self._prefetch_ahead(buffer, node.indices, uniform, known)
        if self.mask is None or buffer.scope == "register":  # a register tile is whole: masked lanes exist as well
            loaded = self.b.emit(
                f"load <{lanes} x {element}>, {pointer}, align {align}{self._aliasing(buffer)}", element, lanes
            )
        else:
            loaded = self._masked_load(pointer, element, lanes, align)
        return self._from_memory(loaded, buffer.dtype)

    def _prefetch_ahead(self, buffer: Buffer, indices: tuple[Expr, ...], uniform: Value, known: int) -> None:
        """Prefetch what the loop will load some iterations later, once per address."""
        terms = [
            (tuple(value.text for atom in monomial if (value := self.value(atom)).known is None and not value.lanes), coefficient)
            for monomial, coefficient in self._address(buffer, indices).poly.terms.items()
        ]
        key = (buffer, known, tuple(term for term in terms if term[0]))
        if key in self.prefetch_places:
            return
        self.prefetch_places.add(key)
        ahead = self.prefetched[buffer] // buffer.dtype.size_bytes
        element, base = _memory_type(buffer.dtype), self.state.pointers[buffer]
        place = self.b.emit(f"getelementptr {element}, {base}, {self.b.add(uniform, int_value(known + ahead))}", "ptr")
        self.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
        self.b.emit_void(f"call void @llvm.prefetch.p0({place}, i32 0, i32 3, i32 1)")

    def _scalar_load(self, buffer: Buffer, pointer: Value) -> Value:
        """A load that all lanes share. Under a mask it happens only if some lane is active."""
        element, align = _memory_type(buffer.dtype), buffer.dtype.size_bytes
        if self.mask is None or self.state.pointers.get(buffer) is None or not self.mask.lanes:
            return self.b.emit(f"load {element}, {pointer}, align {align}{self._aliasing(buffer)}", element)
        b = self.b
        any_lane = self._any(self.mask)
        single = b.insert(Value("zeroinitializer", "i1", 1), any_lane, 0)
        name = f"llvm.masked.load.v1{_short(element)}.p0"
        vector = f"<1 x {element}>"
        self.module.declare(name, vector, ["ptr", "<1 x i1>", vector])
        loaded = b.emit(
            f"call {vector} @{name}(ptr align {align} {pointer.text}, {single}, {vector} zeroinitializer)", element, 1
        )
        return b.extract(loaded, 0)

    def _any(self, mask: Value) -> Value:
        name = f"llvm.vector.reduce.or.{mangled(mask)}"
        self.module.declare(name, "i1", [mask.type])
        return self.b.emit(f"call i1 @{name}({mask})", "i1")

    def _masked_load(self, pointer: Value, element: str, lanes: int, align: int) -> Value:
        assert self.mask is not None
        mask = self.b.splat(self.mask, lanes)
        vector = f"<{lanes} x {element}>"
        name = f"llvm.masked.load.v{lanes}{_short(element)}.p0"
        self.module.declare(name, vector, ["ptr", f"<{lanes} x i1>", vector])
        return self.b.emit(
            f"call {vector} @{name}(ptr align {align} {pointer.text}, {mask}, {vector} zeroinitializer)", element, lanes
        )

    def _vector_offset(self, uniform: Value, known: int, lane: Value | None, varying: Value | None) -> Value:
        assert self.lane is not None
        b, lanes = self.b, self.lane.lanes
        total = b.splat(b.add(uniform, int_value(known)), lanes)
        if lane is not None and lane.known != 0:
            total = b.binary("add", total, b.binary("mul", self.state.values[self.lane.var], b.splat(lane, lanes)))
        if varying is not None:
            total = b.binary("add", total, b.splat(varying, lanes))
        return total

    def _lane_pointers(
        self, buffer: Buffer, uniform: Value, known: int, lane: Value | None, varying: Value | None
    ) -> Value:
        assert self.lane is not None
        offsets = self._vector_offset(uniform, known, lane, varying)
        base = self.state.pointers[buffer]
        return self.b.emit(
            f"getelementptr inbounds {_memory_type(buffer.dtype)}, {base}, {offsets}", "ptr", self.lane.lanes
        )

    def _gather(self, buffer: Buffer, uniform: Value, known: int, lane: Value | None, varying: Value | None) -> Value:
        assert self.lane is not None
        element, lanes = _memory_type(buffer.dtype), self.lane.lanes
        pointers = self._lane_pointers(buffer, uniform, known, lane, varying)
        mask = self.b.splat(self.mask, lanes) if self.mask is not None else Value("splat (i1 true)", "i1", lanes)
        vector = f"<{lanes} x {element}>"
        name = f"llvm.masked.gather.v{lanes}{_short(element)}.v{lanes}p0"
        self.module.declare(name, vector, [f"<{lanes} x ptr>", f"<{lanes} x i1>", vector])
        align = buffer.dtype.size_bytes
        return self.b.emit(
            f"call {vector} @{name}(<{lanes} x ptr> align {align} {pointers.text}, {mask}, {vector} zeroinitializer)",
            element,
            lanes,
        )

    def _store(self, stmt: Store) -> None:
        self._store_value(stmt, self._to_memory(self.value(stmt.value), stmt.buffer.dtype))

    def _store_value(self, stmt: Store, value: Value) -> None:
        buffer = stmt.buffer
        uniform, known, lane, varying = self._offset(self._address(buffer, stmt.indices))
        element, align = _memory_type(buffer.dtype), buffer.dtype.size_bytes
        if self.lane is None:
            self._store_at(buffer, self._pointer(buffer, uniform, known), value)
            return
        lanes = self.lane.lanes
        value = self.b.splat(value, lanes)
        if varying is None and lane is not None and lane.known == 1:
            pointer = self._pointer(buffer, uniform, known)
            if self.mask is not None and buffer.scope == "register":  # blend, so that the tile can live in registers
                old = self.b.emit(f"load {value.type}, {pointer}, align {align}", value.element, lanes)
                value = self.b.select(self.b.splat(self.mask, lanes), value, old)
            if self.mask is None or buffer.scope == "register":
                self.b.emit_void(f"store {value}, {pointer}, align {align}{self._aliasing(buffer)}")
                return
            name = f"llvm.masked.store.v{lanes}{_short(element)}.p0"
            self.module.declare(name, "void", [value.type, "ptr", f"<{lanes} x i1>"])
            mask = self.b.splat(self.mask, lanes)
            self.b.emit_void(f"call void @{name}({value}, ptr align {align} {pointer.text}, {mask})")
            return
        pointers = self._lane_pointers(buffer, uniform, known, lane, varying)
        mask = self.b.splat(self.mask, lanes) if self.mask is not None else Value("splat (i1 true)", "i1", lanes)
        name = f"llvm.masked.scatter.v{lanes}{_short(element)}.v{lanes}p0"
        self.module.declare(name, "void", [value.type, f"<{lanes} x ptr>", f"<{lanes} x i1>"])
        self.b.emit_void(f"call void @{name}({value}, <{lanes} x ptr> align {align} {pointers.text}, {mask})")

    def _store_scalar(self, stmt: Store, value: Value) -> None:
        """Store a number that has been computed, outside vectorized loops."""
        uniform, known, _, _ = self._offset(self._address(stmt.buffer, stmt.indices))
        self._store_at(stmt.buffer, self._pointer(stmt.buffer, uniform, known), value)

    def _store_at(self, buffer: Buffer, pointer: Value, value: Value) -> None:
        align = buffer.dtype.size_bytes
        self.b.emit_void(f"store {value}, {pointer}, align {align}{self._aliasing(buffer)}")

    def _from_memory(self, value: Value, dtype: DType) -> Value:
        return self.b.convert("trunc", value, "i1") if dtype.is_bool else value

    def _to_memory(self, value: Value, dtype: DType) -> Value:
        if not dtype.is_bool:
            return value
        if value.known is not None:
            return int_value(value.known, "i8")
        return self.b.convert("zext", value, "i8")

    # -- expressions

    def condition(self, expr: Expr) -> Value:
        return self.value(expr)

    def value(self, expr: Expr) -> Value:
        match expr:
            case Const():
                return _literal(expr)
            case Var():
                found = self.state.values.get(expr)
                if found is None:
                    raise CodegenError(f"variable {expr.name} has no value here")
                return found
            case Load():
                return self.load(expr)
            case Cast(operand=operand, dtype=dtype):
                return self._cast(self.value(operand), operand.dtype, dtype)
            case Select():
                return self._select(expr)
            case Not(operand=operand):
                value = self.value(operand)
                if value.known is not None:
                    return _bool(not value.known)
                return self.b.binary("xor", value, self.b.int(1, value))
            case And(lhs=lhs, rhs=rhs):
                return self._logical("and", lhs, rhs)
            case Or(lhs=lhs, rhs=rhs):
                return self._logical("or", lhs, rhs)
            case MathCall():
                return self._math(expr)
            case CompareExpr(lhs=lhs, rhs=rhs):
                if (in_lanes := self._lane_compare(expr)) is not None:
                    return in_lanes
                return self._compare(expr, self.value(lhs), self.value(rhs), lhs.dtype)
            case BinaryExpr():
                return self._binary(expr)
        raise CodegenError(f"no code for {type(expr).__name__}")

    def _logical(self, op: str, lhs: Expr, rhs: Expr) -> Value:
        a = self.value(lhs)
        if a.known is not None:
            keep_other = bool(a.known) == (op == "and")
            return self.value(rhs) if keep_other else a
        b = self.value(rhs)
        if b.known is not None:
            return a if bool(b.known) == (op == "and") else b
        return self.b.binary(op, a, b)

    def _lane_compare(self, expr: CompareExpr) -> Value | None:
        """A comparison of known numbers in every lane: known itself, or a literal mask. None when it is not of that kind."""
        if self.lane is None or expr.lhs.dtype.name != "i64":
            return None
        poly = polynomial(expr.lhs).minus(polynomial(expr.rhs))
        base, slope = poly.constant, 0
        for monomial, coefficient in poly.terms.items():
            factor, in_lane = coefficient, 0
            for atom in monomial:
                if atom is self.lane.var:
                    in_lane += 1
                    continue
                known = self.state.values.get(atom) if isinstance(atom, Var) else None  # type: ignore[call-overload]
                if known is None or known.known is None:
                    return None
                factor *= known.known
            if in_lane > 1:
                return None
            base, slope = (base, slope + factor) if in_lane else (base + factor, slope)
        holds = [_PYTHON_COMPARE[type(expr)](base + slope * lane, 0) for lane in range(self.lane.lanes)]
        if all(holds) or not any(holds):
            return _bool(holds[0])
        text = ", ".join(f"i1 {'true' if bit else 'false'}" for bit in holds)
        return Value(f"<{text}>", "i1", self.lane.lanes)

    def _compare(self, expr: CompareExpr, a: Value, b: Value, dtype: DType) -> Value:
        if a.known is not None and b.known is not None:
            return _bool(_PYTHON_COMPARE[type(expr)](a.known, b.known))
        if dtype.is_float:
            return self.b.compare(f"fcmp {_FLOAT_COMPARE[type(expr)]}", a, b)
        table = _UNSIGNED_COMPARE if dtype.kind in ("uint", "bool") else _SIGNED_COMPARE
        return self.b.compare(f"icmp {table[type(expr)]}", a, b)

    def _binary(self, expr: BinaryExpr) -> Value:
        if expr.dtype.is_float:
            return self._float_binary(expr)
        a, b = self.value(expr.lhs), self.value(expr.rhs)
        if a.known is not None and b.known is not None:
            return _fold(expr, a, b)
        match expr:
            case Add():
                return self.b.add(a, b)
            case Sub():
                return a if b.known == 0 else self.b.binary("sub", a, b)
            case Mul():
                return self.b.mul(a, b)
            case Min() | Max():
                signed = expr.dtype.kind == "int"
                name = ("s" if signed else "u") + ("min" if isinstance(expr, Min) else "max")
                if expr.dtype.is_bool:
                    return self.b.binary("and" if isinstance(expr, Min) else "or", a, b)
                return self.b.intrinsic(name, a, b)
        return self._divide(expr, a, b)

    def _divide(self, expr: BinaryExpr, a: Value, b: Value) -> Value:
        """Div, FloorDiv and FloorMod: cheap where nothing is negative, and 0 when the divisor is 0."""
        builder = self.b
        unsigned = expr.dtype.kind == "uint"
        low, divisor = bounds(expr.lhs, self.facts).lo, bounds(expr.rhs, self.facts).lo
        plain = unsigned or (low is not None and low >= 0 and divisor is not None and divisor >= 0)
        if plain:
            nonzero = divisor is not None and divisor > 0
            safe = b if nonzero else self._nonzero(b)
            result = builder.binary("urem" if isinstance(expr, FloorMod) else "udiv", a, safe)
            return result if nonzero else self._zero_if_zero(b, result)
        safe = self._nonzero(b)
        minus_one = builder.compare("icmp eq", safe, builder.int(-1, safe))
        safe = builder.select(minus_one, builder.int(1, safe), safe)  # INT_MIN / -1 traps; x / -1 is -x
        quotient = builder.binary("sdiv", a, safe)
        negated = builder.binary("sub", builder.int(0, quotient), builder.unify(a, safe)[0])
        quotient = builder.select(minus_one, negated, quotient)
        if isinstance(expr, Div):
            return self._zero_if_zero(b, quotient)
        remainder = builder.binary("sub", a, builder.binary("mul", quotient, b))
        zero = builder.int(0, remainder)
        differs = builder.compare("icmp slt", builder.binary("xor", remainder, b), zero)
        adjust = builder.binary("and", differs, builder.compare("icmp ne", remainder, zero))
        if isinstance(expr, FloorDiv):
            lowered = builder.binary("sub", quotient, builder.int(1, quotient))
            return self._zero_if_zero(b, builder.select(adjust, lowered, quotient))
        raised = builder.binary("add", remainder, b)
        return self._zero_if_zero(b, builder.select(adjust, raised, remainder))

    def _nonzero(self, value: Value) -> Value:
        if value.known:
            return value
        is_zero = self.b.compare("icmp eq", value, self.b.int(0, value))
        return self.b.select(is_zero, self.b.int(1, value), value)

    def _zero_if_zero(self, divisor: Value, result: Value) -> Value:
        if divisor.known:
            return result
        is_zero = self.b.compare("icmp eq", divisor, self.b.int(0, divisor))
        if result.lanes and not is_zero.lanes:
            is_zero = self.b.splat(is_zero, result.lanes)
        return self.b.select(is_zero, self.b.int(0, result), result)

    def _float_binary(self, expr: BinaryExpr) -> Value:
        builder = self.b
        fused = expr.dtype.bits >= 32 and not self.strict
        match expr:
            case Add(lhs=Mul(lhs=x, rhs=y), rhs=other) if fused:
                return builder.fma(*builder.unify(self.value(x), self.value(y), self.value(other)))
            case Add(lhs=other, rhs=Mul(lhs=x, rhs=y)) if fused:
                accumulator = self.value(other)
                return builder.fma(*builder.unify(self.value(x), self.value(y), accumulator))
            case Sub(lhs=Mul(lhs=x, rhs=y), rhs=other) if fused:
                return builder.fma(
                    *builder.unify(self.value(x), self.value(y), builder.fneg(self.value(other)))
                )
            case Sub(lhs=other, rhs=Mul(lhs=x, rhs=y)) if fused:
                base = self.value(other)
                return builder.fma(*builder.unify(builder.fneg(self.value(x)), self.value(y), base))
        a, b = builder.unify(self.value(expr.lhs), self.value(expr.rhs))
        if isinstance(expr, (Min, Max)) and isinstance(expr.lhs, Const):
            return self._float_operation(type(expr), b, a, second=expr.lhs)
        return self._float_operation(type(expr), a, b, second=expr.rhs)

    def _float_operation(self, operation: type[Expr], a: Value, b: Value, second: Expr | None = None) -> Value:
        """a op b; `second` is what b was made from, if that is known.

        The extremes are NaN if either is NaN. An unordered comparison takes care of a; a literal b needs no test.
        """
        if operation in _FLOAT_OPS:
            return self.b.binary(_FLOAT_OPS[operation], a, b)
        if operation is Select:
            return self.b.select(self.b.compare("fcmp olt", a, b), b, a)
        if operation not in (Min, Max):
            raise CodegenError(f"{operation.__name__} is not defined for floats")
        chosen = self.b.select(self.b.compare("fcmp ult" if operation is Min else "fcmp ugt", a, b), a, b)
        if isinstance(second, Const) and second.value == second.value:
            return chosen
        return self.b.select(self.b.compare("fcmp uno", b, b), b, chosen)

    def _select(self, expr: Select) -> Value:
        condition = self.value(expr.condition)
        if condition.known is not None:
            return self.value(expr.true_value if condition.known else expr.false_value)
        performed = {node for node in walk(expr.condition) if isinstance(node, Load)}  # loads that happen anyway
        sides = (expr.true_value, expr.false_value)
        if not any(isinstance(node, Load) and node not in performed for side in sides for node in walk(side)):
            return self.b.select(condition, self.value(expr.true_value), self.value(expr.false_value))
        if self.lane is not None and self._depends_on_lane(expr):
            lanes = self.lane.lanes
            condition = self.b.splat(condition, lanes)
            outer = self.mask
            self.mask = self._and_mask(outer, condition)
            with self._region():
                a = self.value(expr.true_value)
            inverse = self.b.binary("xor", condition, self.b.int(1, condition))
            self.mask = self._and_mask(outer, inverse)
            with self._region():
                b = self.value(expr.false_value)
            self.mask = outer
            return self.b.select(condition, self.b.splat(a, lanes), self.b.splat(b, lanes))
        return self._branched_select(condition, expr)

    def _branched_select(self, condition: Value, expr: Select) -> Value:
        b = self.b
        yes, no, done = b.label("yes"), b.label("no"), b.label("join")
        b.branch_if(condition, yes, no)
        b.start_block(yes)
        with self._region():
            first = self.value(expr.true_value)
        yes_end = b.block
        b.branch(done)
        b.start_block(no)
        with self._region():
            second = self.value(expr.false_value)
        no_end = b.block
        b.branch(done)
        b.start_block(done)
        return b.emit(
            f"phi {first.type} [ {first.text}, %{yes_end} ], [ {second.text}, %{no_end} ]", first.element, first.lanes
        )

    def _math(self, expr: MathCall) -> Value:
        if expr.name == "thread_index":
            return Value("%thread", "i64") if self.in_parallel else int_value(0)
        args = self.b.unify(*(self.value(arg) for arg in expr.args))
        name = expr.name
        dtype = expr.args[0].dtype
        if name == "fma" and dtype.is_float:
            return self.b.fma(*args)
        if name in _BIT_OPS:
            op = "ashr" if name == "shift_right" and dtype.kind == "int" else _BIT_OPS[name]
            if name in ("shift_left", "shift_right"):
                return self._shift(op, args[0], args[1], dtype)
            return self.b.binary(op, *args)
        if name == "bit_not":
            return self.b.binary("xor", args[0], self.b.int(-1, args[0]))
        if dtype.is_float:
            return emit_math(self.b, name, *args)
        return self._integer_math(name, args, dtype)

    def _shift(self, op: str, value: Value, amount: Value, dtype: DType) -> Value:
        """Shifting by the width or more gives what shifting one by one would give."""
        limit = self.b.int(dtype.bits - 1, amount)
        too_far = self.b.compare("icmp ugt", amount, limit)
        shifted = self.b.binary(op, value, self.b.select(too_far, limit, amount))
        if op == "ashr":
            return shifted
        return self.b.select(too_far, self.b.int(0, shifted), shifted)

    def _integer_math(self, name: str, args: tuple[Value, ...], dtype: DType) -> Value:
        b, x = self.b, args[0]
        zero = b.int(0, x)
        match name:
            case "abs":
                if dtype.kind == "uint":
                    return x
                return b.select(b.compare("icmp slt", x, zero), b.binary("sub", zero, x), x)
            case "sign":
                positive = b.compare("icmp ugt" if dtype.kind == "uint" else "icmp sgt", x, zero)
                one = b.select(positive, b.int(1, x), zero)
                if dtype.kind == "uint":
                    return one
                return b.select(b.compare("icmp slt", x, zero), b.int(-1, x), one)
            case "floor" | "ceil" | "round" | "trunc":
                return x
            case "isnan" | "isinf":
                return Value("zeroinitializer", "i1", x.lanes) if x.lanes else _bool(False)
            case "fmod":
                return self._truncated_remainder(x, args[1], dtype)
            case "pow":
                return b.per_lane(lambda base, power: self._integer_power(base, power, dtype), *args)
        raise CodegenError(f"no code for {name} of {dtype}")

    def _truncated_remainder(self, a: Value, b: Value, dtype: DType) -> Value:
        """The remainder with the sign of the dividend; 0 when the divisor is 0."""
        safe = self._nonzero(b)
        if dtype.kind == "uint":
            return self._zero_if_zero(b, self.b.binary("urem", a, safe))
        minus_one = self.b.compare("icmp eq", safe, self.b.int(-1, safe))
        safe = self.b.select(minus_one, self.b.int(1, safe), safe)
        return self._zero_if_zero(b, self.b.binary("srem", a, safe))

    def _integer_power(self, base: Value, power: Value, dtype: DType) -> Value:
        """base ** power by squaring, wrapping; a negative power gives 0 except for bases 1 and -1."""
        b = self.b
        kind = base.element
        loop, done = b.label("pow"), b.label("powend")
        before = b.block
        b.branch(loop)
        b.start_block(loop)
        result, square, left = b.name("r"), b.name("s"), b.name("e")
        at = len(b.lines)
        b.lines.extend(["", "", ""])
        current = Value(left, kind)
        odd = b.compare("icmp ne", b.binary("and", current, int_value(1, kind)), int_value(0, kind))
        multiplied = b.binary("mul", Value(result, kind), Value(square, kind))
        next_result = b.select(odd, multiplied, Value(result, kind))
        next_square = b.binary("mul", Value(square, kind), Value(square, kind))
        next_left = b.binary("lshr", current, int_value(1, kind))
        b.lines[at] = f"  {result} = phi {kind} [ 1, %{before} ], [ {next_result.text}, %{loop} ]"
        b.lines[at + 1] = f"  {square} = phi {kind} [ {base.text}, %{before} ], [ {next_square.text}, %{loop} ]"
        b.lines[at + 2] = f"  {left} = phi {kind} [ {power.text}, %{before} ], [ {next_left.text}, %{loop} ]"
        b.branch_if(b.compare("icmp eq", next_left, int_value(0, kind)), done, loop)
        b.start_block(done)
        if dtype.kind == "uint":
            return next_result
        negative = b.compare("icmp slt", power, int_value(0, kind))
        is_one = b.compare("icmp eq", base, int_value(1, kind))
        is_minus_one = b.compare("icmp eq", base, int_value(-1, kind))
        power_odd = b.compare("icmp ne", b.binary("and", power, int_value(1, kind)), int_value(0, kind))
        sign = b.select(power_odd, int_value(-1, kind), int_value(1, kind))
        small = b.select(is_one, int_value(1, kind), b.select(is_minus_one, sign, int_value(0, kind)))
        return b.select(negative, small, next_result)

    def _cast(self, value: Value, source: DType, target: DType) -> Value:
        b = self.b
        kind = llvm_type(target)
        if source == target:
            return value
        if target.is_bool:
            if value.known is not None:
                return _bool(value.known != 0)
            if source.is_float:
                return b.compare("fcmp une", value, b.float(0.0, value))
            return b.compare("icmp ne", value, b.int(0, value))
        if source.is_float and target.is_float:
            if "bfloat" in (value.element, kind) and "half" in (value.element, kind):
                value = b.convert("fpext", value, "float")
                return b.convert("fptrunc", value, kind)
            return b.convert("fpext" if target.bits > source.bits else "fptrunc", value, kind)
        if source.is_float:
            signed = "s" if target.kind == "int" else "u"
            name = f"llvm.fpto{signed}i.sat.{mangled(Value('', kind, value.lanes))}.{mangled(value)}"
            result_type = Value("", kind, value.lanes).type
            self.module.declare(name, result_type, [value.type])
            return b.emit(f"call {result_type} @{name}({value})", kind, value.lanes)
        if target.is_float:
            if value.known is not None:
                return Value(float_text(float(value.known), kind), kind)
            return b.convert("sitofp" if source.kind == "int" else "uitofp", value, kind)
        if value.known is not None:
            return int_value(_wrap(value.known, target), kind)
        if source.is_bool or target.bits > source.bits:
            return b.convert("sext" if source.kind == "int" else "zext", value, kind)
        return b.convert("trunc", value, kind) if target.bits < source.bits else Value(value.text, kind, value.lanes)

    def _intrinsic(self, stmt: IntrinsicCall) -> None:
        if stmt.name == "prefetch":
            (target,) = stmt.operands
            assert isinstance(target, Load)
            uniform, known, _, _ = self._offset(self._address(target.buffer, target.indices))
            pointer = self._pointer(target.buffer, uniform, known)
            self.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
            self.b.emit_void(f"call void @llvm.prefetch.p0({pointer}, i32 0, i32 3, i32 1)")
            return
        raise CodegenError(f"no intrinsic {stmt.name!r}")


_FLOAT_OPS: dict[type[Expr], str] = {Add: "fadd", Sub: "fsub", Mul: "fmul", Div: "fdiv"}
_FLOAT_COMPARE = {Eq: "oeq", Ne: "une", Lt: "olt", Le: "ole"}
_SIGNED_COMPARE = {Eq: "eq", Ne: "ne", Lt: "slt", Le: "sle"}
_UNSIGNED_COMPARE = {Eq: "eq", Ne: "ne", Lt: "ult", Le: "ule"}
_PYTHON_COMPARE = {
    Eq: lambda a, b: a == b,
    Ne: lambda a, b: a != b,
    Lt: lambda a, b: a < b,
    Le: lambda a, b: a <= b,
}
_BIT_OPS = {"bit_and": "and", "bit_or": "or", "bit_xor": "xor", "shift_left": "shl", "shift_right": "lshr"}


def _bool(value: bool) -> Value:
    return Value("true" if value else "false", "i1", 0, int(value))


def _literal(expr: Const) -> Value:
    kind = llvm_type(expr.dtype)
    if expr.dtype.is_float:
        return Value(float_text(float(expr.value), kind), kind)
    if expr.dtype.is_bool:
        return _bool(bool(expr.value))
    return int_value(int(expr.value), kind)


def _wrap(value: int, dtype: DType) -> int:
    low, high = int_range(dtype)
    return (value - low) % (high - low + 1) + low


def _fold(expr: BinaryExpr, a: Value, b: Value) -> Value:
    """Integer arithmetic on known numbers."""
    assert a.known is not None and b.known is not None
    x, y = a.known, b.known
    match expr:
        case Add():
            result = x + y
        case Sub():
            result = x - y
        case Mul():
            result = x * y
        case Min():
            result = min(x, y)
        case Max():
            result = max(x, y)
        case FloorDiv():
            result = x // y if y else 0
        case FloorMod():
            result = x % y if y else 0
        case _:
            result = 0 if y == 0 else abs(x) // abs(y) * (1 if (x >= 0) == (y > 0) else -1)
    return _bool(bool(result)) if expr.dtype.is_bool else int_value(_wrap(result, expr.dtype), a.element)


def _memory_type(dtype: DType) -> str:
    return "i8" if dtype.is_bool else llvm_type(dtype)


def _short(element: str) -> str:
    return mangled(Value("", element))


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def _as_i64(index: Expr) -> Expr:
    return index if index.dtype.bits == 64 else Cast(index, _I64)


_I64 = const(0).dtype


def _row_major(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    strides: list[Expr] = []
    stride: Expr = const(1)
    for dim in reversed(shape):
        strides.append(stride)
        stride = mul(stride, dim)
    return tuple(reversed(strides))


def _parallel_nest(loop: For) -> tuple[For, ...]:
    """The loop, and the parallel loops inside of it that are each the whole body of the one before and of independent extent."""
    nest = [loop]
    while isinstance(inner := nest[-1].body, For) and inner.kind is LoopKind.PARALLEL:
        if any(node is outer.var for outer in nest for node in walk(inner.extent)):
            break
        nest.append(inner)
    return tuple(nest)


def _can_vectorize(loop: For) -> bool:
    """Whether every lane may run in lockstep: no loop inside with a bound that depends on the lane, no While, and every store
    goes to a place of its own for each lane."""
    varying: set[Var] = {loop.var}

    def depends(expr: Expr) -> bool:
        return any(isinstance(node, Var) and node in varying for node in walk(expr))

    def check(stmt: Stmt) -> bool:
        match stmt:
            case Seq(stmts=stmts):
                return all(map(check, stmts))
            case For(kind=LoopKind.PARALLEL) | While() | IntrinsicCall():
                return False
            case For(extent=extent, body=body):
                return not depends(extent) and check(body)
            case Let(var=var, value=value, body=body):
                if depends(value):
                    varying.add(var)
                return check(body)
            case If(then_body=then_body, else_body=else_body):
                return check(then_body) and (else_body is None or check(else_body))
            case Store(indices=indices):
                return any(map(depends, indices))
            case Alloc(body=body):
                return False
        return False

    return check(loop.body)


def _alias_scopes(module: Module, func: PrimFunc) -> dict[Buffer, str]:
    """Metadata that tells LLVM which parameters do not overlap: all, but the first output and what it may take the place of."""
    count = len(func.buffers)
    if not 1 < count <= 24:
        return {}
    first_output = len(func.inputs)
    shared = {int(k) for k in str(annotation(func, "in_place") or "").split(",") if k}
    domain = module.add_metadata(f"distinct !{{!{len(module.metadata)}}}")
    own = [module.add_metadata(f"distinct !{{!{len(module.metadata)}, {domain}}}") for _ in func.buffers]
    result = {}
    for k, buffer in enumerate(func.buffers):
        may_be_same = shared if k == first_output else {first_output} if k in shared else set()
        mine = module.add_metadata(f"!{{{own[k]}}}")
        others = module.add_metadata(f"!{{{', '.join(own[j] for j in range(count) if j != k and j not in may_be_same)}}}")
        result[buffer] = f", !alias.scope {mine}, !noalias {others}"
    return result
