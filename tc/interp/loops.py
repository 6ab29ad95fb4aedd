"""The reference meaning of PrimFuncs: run them as they are written, one scalar at a time.

The program becomes Python source, blocks included, that works on flat lists of scalars (see `scalars`). Nothing is shared with the
code generator, and nothing is reordered, so parallel and vectorized loops run in sequence, forward, backward or in a drawn order. So do the
loops of a launch, unless that is in its finished form: then its threads run side by side, and are watched (see `threads`). Scratch memory
starts as NaN (floats) or a large number (integers), an index out of range is an error, and so is an axis of a block outside its
extent: what a compiled kernel would get away with is found here. Loops annotated `tree` combine in that order (see `tree_loop`).
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from tc.errors import InputError, VerifyError
from tc.interp import scalars
from tc.interp.threads import UNWRITTEN, Watch, WatchedGlobal, WatchedMemory, unwritten
from tc.interp.warps import WarpStop
from tc.ir.access import report_buffer
from tc.ir.arith import evaluate
from tc.ir.box_copies import (
    Arrive,
    AwaitPhase,
    AwaitProducts,
    BeginProducts,
    CommitProducts,
    CopyBox,
    SetUpBarrier,
    box_buffers,
)
from tc.ir.dtype import DType, bool_, i64
from tc.ir.empty_reductions import start_empty_reductions
from tc.ir.expr import (
    Add,
    And,
    BinaryExpr,
    Buffer,
    Cast,
    Checked,
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
)
from tc.ir.intrinsic import INTRINSICS, is_of_group
from tc.ir.launch import FinishedLaunch, finished
from tc.ir.loop import (
    Alloc,
    AsyncStore,
    AwaitCopies,
    AxisKind,
    Barrier,
    Block,
    CommitCopies,
    For,
    If,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    WarpCall,
    While,
    walk_statements,
)
from tc.ir.node import Node, walk
from tc.ir.phases import BoxMemory, box_values
from tc.ir.printer import print_ir
from tc.ir.tree_loop import TreeLoop, as_tree_loop, combine_tree
from tc.ir.uses import buffers_written

_INFIX = {Add: "+", Sub: "-", Mul: "*", Div: "/", Eq: "==", Ne: "!=", Lt: "<", Le: "<=", And: "and", Or: "or"}
_OPERATIONS: dict[type[Expr], Callable[[Any, Any], Any]] = {
    Add: operator.add,
    Mul: operator.mul,
    Min: scalars.minimum,
    Max: scalars.maximum,
    Select: lambda a, b: b if a < b else a,
}
_INDEPENDENT = (LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.BOUND)
_MAX_NESTED_LOOPS = 16  # Python refuses more than 20 in one function


def run_prim_func(
    func: PrimFunc, arrays: Sequence[np.ndarray], dims: Sequence[int] = (), *, backward: bool = False, seed: int | None = None
) -> list[np.ndarray]:
    """The outputs of `func` on the inputs `arrays`, its symbolic dims being `dims`.

    `backward` runs the iterations of loops that claim to be independent in the opposite order, `seed` in one that it draws: the same
    results, if they are. VerifyError when the program uses an index or an axis outside its range, and when the threads of a launch in
    its finished form race, read what nothing was stored in, or do not meet at a barrier.
    """
    env = dict(zip(func.dims, dims, strict=True))
    shapes = [tuple(int(evaluate(dim, env)) for dim in buffer.shape) for buffer in func.buffers]
    lists: list[list[Any]] = []
    for buffer, array, shape in zip(func.inputs, arrays, shapes, strict=False):
        if array.shape != shape or array.dtype != buffer.dtype.numpy:
            raise VerifyError(f"{func.name}: {buffer} is given an array {array.dtype}{list(array.shape)}")
        lists.append(_to_list(array, buffer.dtype))
    for shape in shapes[len(lists) :]:
        lists.append([UNWRITTEN] * int(np.prod(shape, dtype=np.int64)))
    values = iter(lists)
    with np.errstate(all="ignore"):
        compile_to_python(func, _order(backward, seed))(*(next(values) if isinstance(p, Buffer) else env[p] for p in func.params))
    first = len(func.inputs)
    return [
        _to_array(items, buffer.dtype).reshape(shape)
        for buffer, items, shape in zip(func.outputs, lists[first:], shapes[first:], strict=True)
    ]


def _to_array(items: list[Any], dtype: DType) -> np.ndarray:
    """What nothing was stored in is rubbish."""
    rubbish = scalars.poison(dtype)
    return np.array([rubbish if item is UNWRITTEN else item for item in items], dtype.numpy)


def _to_list(array: np.ndarray, dtype: DType) -> list[Any]:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.tolist() if dtype in (i64, bool_) else list(flat)


Order = Callable[[Iterable[int]], Iterable[int]]


def _in_order(iterations: Iterable[int]) -> Iterable[int]:
    return iterations


def _order(backward: bool, seed: int | None) -> Order:
    """The order of iterations that are independent."""
    if seed is None:
        return (lambda iterations: list(iterations)[::-1]) if backward else _in_order
    drawn = random.Random(seed)
    return lambda iterations: drawn.sample(list(iterations), k=len(list(iterations)))


def compile_to_python(func: PrimFunc, order: Order = _in_order) -> Callable[..., None]:
    """A Python function of the parameters, buffers being flat lists of scalars."""
    writer = _Writer(func.name, func.outputs, report_buffer(func))
    writer.emit(f"def kernel({', '.join(map(writer.name, func.params))}):")
    writer.depth += 1
    for buffer in func.buffers:
        writer.declare_shape(buffer)
    writer.statement(start_empty_reductions(func).body)
    writer.emit("return None")
    watch = Watch(func.name, writer.sites, order)
    names: dict[str, Any] = {**writer.globals, "_out": _out_of_range, "_refuse": _refuse, "_order": order, "_watch": watch}
    exec(compile("\n".join(writer.lines), f"<{func.name}>", "exec"), names)
    kernel: Callable[..., None] = names["kernel"]
    return kernel


def _refuse(message: str, index: int, size: int) -> NoReturn:
    raise InputError(message.format(index=index, size=size), code="TC2004")


def _out_of_range(what: str, value: int, extent: int) -> NoReturn:
    raise VerifyError(f"{what} is {value}, outside [0, {extent})")


class _Writer:
    """Python source, line by line, and the objects that it names."""

    def __init__(self, func_name: str, outputs: Sequence[Buffer], report: Buffer | None = None) -> None:
        self.func_name = func_name
        self.outputs = frozenset(outputs)
        self.report = report  # of failed checks, in which any thread may write
        self.lines: list[str] = []
        self.depth = 0
        self.loops = 0
        self.globals: dict[str, Any] = {}
        self._names: dict[Node, str] = {}
        self._shapes: dict[Buffer, list[str]] = {}
        self._constants: dict[Const, str] = {}
        self._functions: dict[object, str] = {}
        self._from_data: dict[Node, bool] = {}
        self.tree: TreeLoop | None = None
        self.sites: list[Callable[[], str]] = []
        self.barriers = 0
        self.memories: dict[Buffer, str] = {}  # of what is watched, by name
        self.own: frozenset[Buffer] = frozenset()  # what is each thread's own
        self.boxes: frozenset[Buffer] = frozenset()  # what boxes are copied to
        self.thread_loops: list[str] | None = None  # those around a statement of a thread
        self.in_launch = False  # in one whose loops fork and join

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, binder: Var | Buffer) -> str:
        return self._names.setdefault(binder, f"{'b' if isinstance(binder, Buffer) else 'v'}{len(self._names)}")

    def function(self, key: object, make: Callable[[], Callable[..., Any]]) -> str:
        """The name of a helper in the program's globals."""
        if key not in self._functions:
            self._functions[key] = f"f{len(self._functions)}"
            self.globals[self._functions[key]] = make()
        return self._functions[key]

    # -- statements

    def nested(self, header: str, body: Stmt) -> None:
        self.emit(header)
        self.depth += 1
        self.statement(body)
        self.depth -= 1

    def loop(self, header: str, body: Stmt) -> None:
        """A loop; deep inside others, in a function of its own."""
        self.loops += 1
        if self.loops % _MAX_NESTED_LOOPS == 0:
            part = f"part{len(self.lines)}"
            self.emit(f"def {part}():")
            self.depth += 1
            self.nested(header, body)
            self.depth -= 1
            has_barrier = any(isinstance(node, (Barrier, WarpCall, AwaitPhase)) for node in walk_statements(body))
            self.emit(f"yield from {part}()" if has_barrier else f"{part}()")
        else:
            self.nested(header, body)
        self.loops -= 1

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case For() if (launch := None if self.in_launch else self.finished(stmt)) is not None:
                self.launch(launch)
            case For(kind=LoopKind.BOUND) if not self.in_launch:  # its loops fork and join, those inside too
                self.in_launch = True
                self.statement(stmt)
                self.in_launch = False
            case For() if (tree := as_tree_loop(stmt)) is not None:
                outer, self.tree = self.tree, tree
                self.statement(tree.body)
                self.tree = outer
            case For(var=var, extent=extent, body=body, kind=kind):
                order = "_order(range({}))" if kind in _INDEPENDENT else "range({})"
                self.note(stmt)
                header = f"for {self.name(var)} in {order.format(self.expression(extent))}:"
                self.around(self.name(var), lambda: self.loop(header, body))
            case Block():
                self.block(stmt)
            case Seq(stmts=stmts):
                self.emit("pass")
                for inner in stmts:
                    self.statement(inner)
            case If(condition=condition, then_body=then_body, else_body=else_body):
                self.note(stmt)
                self.nested(f"if {self.expression(condition)}:", then_body)
                if else_body is not None:
                    self.nested("else:", else_body)
            case While(condition=condition, body=body):
                self.note(stmt)
                self.loop(f"while {self.expression(condition)}:", body)
            case Let(var=var, value=value, body=body):
                self._from_data[var] = self.is_from_data(value)
                self.note(stmt)
                self.emit(f"{self.name(var)} = {self.expression(value)}")
                self.statement(body)
            case Store(buffer=buffer, indices=indices) if self.tree is not None and stmt is self.tree.store:
                self.note(stmt)
                self.store(buffer, indices, self.combined(self.tree))
            case Store(buffer=buffer, indices=indices, value=value):
                self.note(stmt)
                self.store(buffer, indices, self.expression(value), "copy" if isinstance(stmt, AsyncStore) else "store")
            case Alloc(buffer=buffer, body=body):
                self.allocate(buffer)
                self.statement(body)
            case Barrier():
                self.barrier()
            case CommitCopies() if self.thread_loops is not None:
                self.emit("_watch.commit()")
            case AwaitCopies(pending=pending) if self.thread_loops is not None:
                self.emit(f"_watch.wait({pending})")
            case CommitCopies() | AwaitCopies():
                self.emit("pass")  # where loops fork and join, copies are done at once
            case WarpCall():
                self.warp_call(stmt)
            case CopyBox() | SetUpBarrier() | Arrive() | AwaitPhase() | BeginProducts() | CommitProducts() | AwaitProducts():
                self.of_phases(stmt)
            case IntrinsicCall(name=name, operands=operands):
                self.statement(INTRINSICS[name].expand(operands))
            case _:
                raise VerifyError(f"no meaning for {type(stmt).__name__}")

    def combined(self, tree: TreeLoop) -> str:
        """What the store of a tree stores."""
        operation = self.function(("tree", tree.operation), lambda: _OPERATIONS[tree.operation])
        function = self.function(("tree", tree.count), lambda: partial(combine_tree, tree.count))
        leaf = f"lambda {self.name(tree.var)}: {self.expression(tree.value)}"
        return f"{operation}({self.expression(tree.old)}, {function}({leaf}, {operation}))"

    # -- launches

    def finished(self, stmt: For) -> FinishedLaunch | None:
        """A launch in its finished form. One with blocks is not: its scratch memory may yet be allocated anywhere."""
        if stmt.kind is not LoopKind.BOUND or any(isinstance(node, Block) for node in walk_statements(stmt)):
            return None
        return finished(stmt)

    def note(self, stmt: Stmt) -> None:
        """What is touched from here on is in a statement."""
        if self.thread_loops is not None:
            self.sites.append(lambda: print_ir(stmt).splitlines()[0])

    @property
    def site(self) -> int:
        return len(self.sites) - 1

    def around(self, var: str, write: Callable[[], None]) -> None:
        """Write a loop of a thread."""
        if self.thread_loops is not None:
            self.thread_loops.append(var)
        write()
        if self.thread_loops is not None:
            self.thread_loops.pop()

    def barrier(self) -> None:
        if self.thread_loops is None:
            raise VerifyError(f"{self.func_name}: a barrier stands in a launch that is not in its finished form")
        self.barriers += 1
        number = self.barriers
        self.sites.append(lambda: f"barrier {number}")
        self.emit(f"yield ({', '.join([str(self.site), *self.thread_loops])},)")

    def warp_call(self, call: WarpCall) -> None:
        """Stop, for all lanes to meet."""
        if self.thread_loops is None:
            raise VerifyError(f"{self.func_name}: {call.name} of a warp stands in a launch that is not in its finished form")
        self.note(call)
        intrinsic = INTRINSICS[call.name]
        parts = []
        for operand, found in zip(call.operands, intrinsic.layouts, strict=True):
            buffer = operand.buffer
            if (found is not None) != (buffer in self.own) or not (found is not None or buffer in self.memories):
                raise VerifyError(f"{self.func_name}: {operand} is no operand of {call.name}: fragments are the lane's own, others shared")
            if found is None and is_of_group(call.name):
                if buffer not in self.boxes:
                    raise VerifyError(f"{self.func_name}: {operand} is no operand of {call.name}, which reads boxes")
            elif found is None:  # a row is part of one of the buffer
                *lead, last = operand.indices
                self.emit(self.offset(buffer, (*lead, last + (16 // buffer.dtype.size_bytes - 1))))
            memory = self.name(buffer) if found is not None else self.memories[buffer]
            parts.append(f"({memory}, {self.offset(buffer, operand.indices)})")
        stop = self.constant(WarpStop, WarpStop)
        pattern = self.function(("pattern", call.name), lambda: compile_to_python(intrinsic.pattern))
        place = ", ".join([str(self.site), *self.thread_loops])
        self.emit(f"yield {stop}(({place},), {call.name!r}, {pattern}, ({', '.join(parts)},))")

    def of_phases(self, stmt: Stmt) -> None:
        """Copies of boxes, phase barriers, and products on their way."""
        if self.thread_loops is None:
            raise VerifyError(f"{self.func_name}: {type(stmt).__name__} stands in a launch that is not in its finished form")
        self.note(stmt)
        match stmt:
            case CopyBox():
                self.copy_box(stmt)
            case SetUpBarrier(barrier=barrier, arrivals=arrivals):
                self.emit(f"_watch.phases.set_up({self.barrier_at(barrier)}, {arrivals}, {self.site})")
            case Arrive(barrier=barrier, expected_bytes=count):
                self.emit(f"_watch.phases.arrive({self.barrier_at(barrier)}, {count}, {self.site})")
            case AwaitPhase(barrier=barrier, parity=parity):
                self.emit(f"yield _watch.phases.stop({self.barrier_at(barrier)}, {self.expression(parity)}, {self.site})")
            case BeginProducts():
                self.emit("_watch.phases.begin()")
            case CommitProducts():
                self.emit("_watch.phases.commit()")
            case AwaitProducts(pending=pending, sums=sums):
                self.emit(f"_watch.phases.wait({pending}, {bool(sums)}, {self.site})")

    def barrier_at(self, barrier: Load) -> str:
        """The memory of a phase barrier, and its place."""
        if barrier.buffer not in self.memories:
            raise VerifyError(f"{self.func_name}: {barrier} is no phase barrier: these are in shared memory")
        return f"{self.memories[barrier.buffer]}, {self.offset(barrier.buffer, barrier.indices)}"

    def copy_box(self, copy: CopyBox) -> None:
        if copy.source in self.memories or copy.buffer not in self.boxes:
            raise VerifyError(f"{self.func_name}: a box is copied from {copy.source}, which the launch writes, or to no memory of a block")
        filled = copy.filled
        assert filled is not None, "verified"
        lead = len(copy.indices) - len(filled)
        last = (*copy.indices[:lead], *(index + (extent - 1) for index, extent in zip(copy.indices[lead:], filled, strict=True)))
        self.emit(self.offset(copy.buffer, last))
        shape = "".join(f"{self.expression(size)}, " for size in copy.view)
        corner = "".join(f"{self.expression(index)}, " for index in copy.corner)
        zero = self.constant(("zero", copy.buffer.dtype), copy.buffer.dtype.numpy.type(0))
        values = f"{self.constant(box_values, box_values)}({self.name(copy.source)}, ({shape}), ({corner}), {copy.extents!r}, {zero})"
        to = f"{self.memories[copy.buffer]}, {self.offset(copy.buffer, copy.indices)}, {filled!r}"
        self.emit(f"_watch.phases.copy({to}, {values}, {self.barrier_at(copy.barrier)}, {self.site})")

    def launch(self, launch: FinishedLaunch) -> None:
        """The blocks of a launch one after the other, each a number of coroutines."""
        names = tuple(loop.var.name for loop in launch.threads)
        self.emit(f"_watch.begin({names!r})")
        written = buffers_written(launch.body)
        own = frozenset(node.buffer for node in walk_statements(launch.body) if isinstance(node, Alloc))
        for buffer in self._shapes:
            if buffer in written and buffer is not self.report:
                self.watch(buffer, WatchedGlobal)
        self.own = own
        self.boxes = box_buffers(launch.body)
        self.block_loops(launch, launch.blocks)
        self.memories.clear()
        self.own = frozenset()

    def block_loops(self, launch: FinishedLaunch, loops: tuple[For, ...]) -> None:
        if not loops:
            self.block_of_threads(launch)
            return
        first, *rest = loops
        self.emit(f"for {self.name(first.var)} in _order(range({self.expression(first.extent)})):")
        self.depth += 1
        self.block_loops(launch, tuple(rest))
        self.depth -= 1

    def block_of_threads(self, launch: FinishedLaunch) -> None:
        for buffer in launch.shared:
            self.declare_shape(buffer)
            self.emit(f"{self.name(buffer)} = [None] * ({self.count(buffer)})")
            self.watch(buffer, BoxMemory if buffer in self.boxes else WatchedMemory)
        part, loops = f"threads{len(self.lines)}", self.loops
        self.emit(f"def {part}({', '.join(self.name(loop.var) for loop in launch.threads)}):")
        self.depth += 1
        self.loops, self.thread_loops = 0, []
        self.statement(launch.body)
        self.emit("if False: yield")
        self.loops, self.thread_loops = loops, None
        self.depth -= 1
        extents = ", ".join(self.expression(loop.extent) for loop in launch.threads)
        self.emit(f"_watch.run_block({part}, ({extents},))")

    def watch(self, buffer: Buffer, kind: type[WatchedMemory | BoxMemory]) -> None:
        """From here on, notes are made of who touches a buffer."""
        self.memories[buffer] = f"{self.name(buffer)}_m"
        made, known = self.constant(kind, kind), self.constant(("buffer", buffer), buffer)
        shape = "".join(f"{size}, " for size in self._shapes[buffer])
        self.emit(f"{self.memories[buffer]} = {made}(_watch, {known}, ({shape}), {self.name(buffer)})")

    def block(self, block: Block) -> None:
        self.emit(f"if {self.expression(block.where)}:")
        self.depth += 1
        for axis in block.axes:
            var, extent = self.name(axis.var), self.expression(axis.extent)
            self.emit(f"{var} = {self.expression(axis.value)}")
            label = f"{self.func_name}: axis {axis.var.name} of block {block.name}"
            self.emit(f"if not 0 <= {var} < {extent}: _out({label!r}, {var}, {extent})")
        if block.init is not None:
            first = [f"{self.name(axis.var)} == 0" for axis in block.axes if axis.kind is not AxisKind.SPATIAL]
            self.nested(f"if {' and '.join(first) or True}:", block.init)
        self.statement(block.body)
        self.depth -= 1

    # -- memory

    def declare_shape(self, buffer: Buffer) -> None:
        """Names for the sizes of a buffer that are not literals."""
        sizes = []
        for axis, dim in enumerate(buffer.shape):
            size = self.expression(dim)
            if not isinstance(dim, Const):
                self.emit(f"{self.name(buffer)}_{axis} = {size}")
                size = f"{self.name(buffer)}_{axis}"
            sizes.append(size)
        self._shapes[buffer] = sizes

    def count(self, buffer: Buffer) -> str:
        """The number of elements."""
        return " * ".join(self._shapes[buffer]) or "1"

    def allocate(self, buffer: Buffer) -> None:
        self.declare_shape(buffer)
        start = "None" if buffer in self.own else self.rubbish(buffer)
        self.emit(f"{self.name(buffer)} = [{start}] * ({self.count(buffer)})")

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], value: str, how: str = "store") -> None:
        place = self.offset(buffer, indices)
        if buffer in self.memories:
            self.emit(f"{self.memories[buffer]}.{how}({place}, {value}, {self.site})")
        else:
            self.emit(f"{self.name(buffer)}[{place}] = {value}")

    def load(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        place = self.offset(buffer, indices)
        if buffer in self.memories:
            return f"{self.memories[buffer]}.load({place}, {self.site})"
        if buffer not in self.own and buffer not in self.outputs:
            return f"{self.name(buffer)}[{place}]"
        if self.thread_loops is None:
            return f"(u if (u := {self.name(buffer)}[{place}]) is not None else {self.rubbish(buffer)})"
        known = self.constant(("buffer", buffer), buffer)
        shape = "".join(f"{size}, " for size in self._shapes[buffer])
        refuse = f"{self.constant(unwritten, unwritten)}(_watch, {known}, ({shape}), p, {self.site})"
        return f"(u if (u := {self.name(buffer)}[p := {place}]) is not None else {refuse})"

    def rubbish(self, buffer: Buffer) -> str:
        """What an element of a buffer is before anything is stored, where nobody watches who reads it."""
        return self.constant(f"poison {buffer.dtype}", scalars.poison(buffer.dtype))

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        """The number of an element, each index checked against its own extent."""
        if buffer not in self._shapes:
            raise VerifyError(f"{self.func_name}: buffer {buffer} is used outside its scope")
        offset = ""
        for axis, (index, size) in enumerate(zip(indices, self._shapes[buffer], strict=True)):
            label = repr(f"{self.func_name}: index {axis} of {buffer}")
            text = self.expression(index)
            if isinstance(index, Var):
                checked = f"({text} if 0 <= {text} < {size} else _out({label}, {text}, {size}))"
            else:
                checked = f"(t if 0 <= (t := {text}) < {size} else _out({label}, t, {size}))"
            offset = f"({offset}) * {size} + {checked}" if offset else checked
        return offset or "0"

    # -- expressions

    def is_from_data(self, expr: Expr) -> bool:
        """Whether a value comes from memory: if so its arithmetic wraps; that of dims and indices does not."""
        found = self._from_data.get(expr)
        if found is None:
            found = any(isinstance(node, (Load, MathCall, Cast)) or self._from_data.get(node, False) for node in walk(expr))
            self._from_data[expr] = found
        return found

    def constant(self, key: object, value: Any) -> str:
        return self.function(("constant", key), lambda: value)

    def expression(self, expr: Expr) -> str:
        visit = self.expression
        match expr:
            case Const(value=value, dtype=dtype):
                return repr(value) if dtype in (i64, bool_) else self.constant(expr, scalars.literal(expr))
            case Var():
                return self.name(expr)
            case Load(buffer=buffer, indices=indices):
                return self.load(buffer, indices)
            case Not(operand=a):
                return f"(not {visit(a)})"
            case Select(condition=c, true_value=a, false_value=b):
                return f"({visit(a)} if {visit(c)} else {visit(b)})"
            case Cast(operand=a, dtype=dtype):
                convert = self.function((a.dtype, dtype), lambda: scalars.convert(a.dtype, dtype))
                return f"{convert}({visit(a)})"
            case Checked(value=value, index=index, extent=extent, given=given, message=message):
                refused = f"_refuse({message!r}, {visit(given)}, {visit(extent)})"
                return f"({visit(value)} if 0 <= {visit(index)} < {visit(extent)} else {refused})"
            case MathCall(name="thread_index"):
                return "0"  # one thread runs everything
            case MathCall(name=name, args=args):
                dtype = args[0].dtype
                return f"{self.function((name, dtype), lambda: scalars.function(name, dtype))}({', '.join(map(visit, args))})"
            case BinaryExpr(lhs=a, rhs=b):
                return self.binary(expr, visit(a), visit(b))
            case CompareExpr(lhs=a, rhs=b):
                return f"({visit(a)} {_INFIX[type(expr)]} {visit(b)})"
        raise VerifyError(f"no meaning for {type(expr).__name__}")

    def binary(self, expr: BinaryExpr, a: str, b: str) -> str:
        match expr:
            case Min():
                return f"{self.function(Min, lambda: scalars.minimum)}({a}, {b})"
            case Max():
                return f"{self.function(Max, lambda: scalars.maximum)}({a}, {b})"
            case FloorMod(rhs=Const(value=value)) if value and expr.dtype == i64:
                return f"({a} % {b})"
            case FloorMod():
                return f"{self.function(FloorMod, lambda: scalars.floor_modulo)}({a}, {b})"
            case Div() if not expr.dtype.is_float:
                return f"{self.function((Div, expr.dtype), lambda: scalars.divider(expr.dtype))}({a}, {b})"
            case FloorDiv(rhs=Const(value=value)) if value and expr.dtype == i64:
                text = f"({a} // {b})"
            case FloorDiv():
                text = f"({self.function(FloorDiv, lambda: scalars.floor_divide)}({a}, {b}))"
            case _:
                text = f"({a} {_INFIX[type(expr)]} {b})"
        if expr.dtype == i64 and self.is_from_data(expr):
            return f"{self.function('wrap', lambda: lambda x: scalars.wrap(x, i64))}{text}"
        return text
