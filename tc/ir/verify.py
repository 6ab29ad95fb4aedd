"""Whether IR is well formed. A complaint shows the function with the reason under the offending line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tc.errors import VerifyError
from tc.ir.arith import prove
from tc.ir.box_copies import Arrive, AwaitPhase, AwaitProducts, BeginProducts, CommitProducts, CopyBox, SetUpBarrier
from tc.ir.coverage import first_uncovered
from tc.ir.dtype import bool_, f32, f64, i64, u32, u64
from tc.ir.expr import (
    MATH_CALLS,
    And,
    BinaryExpr,
    Buffer,
    Checked,
    CompareExpr,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    MathCall,
    Not,
    Or,
    Select,
    Var,
    equal,
    result_of_call,
)
from tc.ir.graph import (
    Binding,
    CallFunction,
    CallTir,
    Function,
    GetItem,
    GlobalRef,
    If,
    Loop,
    ReadDims,
    TensorVar,
    Tuple,
    atoms_of,
)
from tc.ir.intrinsic import INTRINSICS
from tc.ir.launch import first_complaint
from tc.ir.loop import (
    Alloc,
    AwaitCopies,
    AxisKind,
    Barrier,
    Block,
    CommitCopies,
    For,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    WarpCall,
    While,
    annotation,
)
from tc.ir.loop import If as LoopIf
from tc.ir.module import IRModule
from tc.ir.node import Node, children, substitute, walk
from tc.ir.printer import print_ir
from tc.ir.types import FunctionType, TensorType, TupleType, Type, product
from tc.ir.uses import reads_memory
from tc.ir.verify_boxes import box_complaint, element_operands
from tc.ir.verify_launch import first_launch_complaint

TypeRule = Callable[[Binding], Sequence[Type]]


def verify(node: IRModule | Function | PrimFunc, infer: TypeRule | None = None) -> None:
    """Check a module or function; VerifyError for the first thing that is wrong.

    `infer` gives the result types of an operator call, for those who know the operators; its result must equal what is stated.
    """
    match node:
        case IRModule():
            _verify_module(node, infer)
        case Function():
            _GraphVerifier(None, infer, node).function(node, set(), set())
        case PrimFunc():
            _LoopVerifier(node).run()


def _verify_module(module: IRModule, infer: TypeRule | None) -> None:
    names = [func.name for func in module.functions]
    for name in names:
        if names.count(name) > 1:
            raise VerifyError(f"the module has {names.count(name)} functions named {name!r}")
    if not isinstance(next((f for f in module.functions if f.name == module.entry), None), Function):
        raise VerifyError(f"the entry {module.entry!r} is not a graph function of the module")
    for func in module.functions:
        if isinstance(func, PrimFunc):
            _LoopVerifier(func).run()
        else:
            _GraphVerifier(module, infer, func).function(func, set(), set())


def _complain(func: Function | PrimFunc, marker: Node | None, message: str) -> VerifyError:
    """The function's text with the complaint under the line that prints `marker`."""
    try:
        lines = print_ir(func).splitlines()
    except (AssertionError, AttributeError, TypeError, ValueError):  # text of broken IR may not exist
        return VerifyError(f"{func.name}: {message}")
    place = _line_of(lines, marker)
    lines.insert(place + 1, f"    ^-- {message}")
    shown = lines[max(0, place - 8) : place + 6]
    return VerifyError(f"{func.name}: {message}\n" + "\n".join(shown))


def _line_of(lines: list[str], marker: Node | None) -> int:
    words: list[str] = []
    match marker:
        case For(var=var):
            words = [f"for {var.name}", " in "]
        case Block(name=name):
            words = [f"block({name!r}"]
        case Store(buffer=buffer):
            words = [f"{buffer.name}[", " = "]
        case Barrier():
            words = ["barrier()"]
        case CommitCopies():
            words = ["commit_copies()"]
        case AwaitCopies(pending=pending):
            words = [f"await_copies({pending})"]
        case SetUpBarrier() | Arrive() | AwaitPhase() | CopyBox() | WarpCall():
            words = [print_ir(marker).splitlines()[0]]
        case Binding(targets=targets) if targets:
            words = [targets[0].name]
    for k, line in enumerate(lines):
        if words and all(word in line for word in words):
            return k
    return 0


# -- loops


class _LoopVerifier:
    """Walks one PrimFunc with what is in scope."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.bound: set[Node] = set()
        self.blocks: set[str] = set()
        self.at: Node | None = None

    def fail(self, message: str) -> VerifyError:
        return _complain(self.func, self.at, message)

    def run(self) -> None:
        params = self.func.params
        if len(set(params)) != len(params):
            raise self.fail("a parameter is listed twice")
        if not 0 <= self.func.num_outputs <= len(self.func.buffers):
            raise self.fail(f"{self.func.num_outputs} outputs, but {len(self.func.buffers)} buffers")
        seen_scalar = False
        for param in params:
            seen_scalar = seen_scalar or isinstance(param, Var)
            if seen_scalar and isinstance(param, Buffer):
                raise self.fail(f"buffer {param.name} stands behind the scalars")
        scope: set[Node] = set(params)
        self.bound |= scope
        for buffer in self.func.buffers:
            self._buffer(buffer, scope)
        for fact in self.func.facts:
            if fact.var not in scope:
                raise self.fail(f"a promise speaks of {fact.var.name}, which is no parameter")
        shared = annotation(self.func, "in_place", ())
        if not isinstance(shared, tuple) or not all(type(k) is int and 0 <= k < len(self.func.inputs) for k in shared):
            raise self.fail(f"in_place is {shared!r}, must be numbers of inputs")
        complaint = first_complaint(self.func.body) or first_launch_complaint(self.func.body)
        if complaint is not None:
            self.at, message = complaint
            raise self.fail(message)
        self.statement(self.func.body, scope, ())
        found = first_uncovered(self.func)
        if found is not None:
            self.at, message = found
            raise self.fail(message)

    def _buffer(self, buffer: Buffer, scope: set[Node]) -> None:
        for dim in buffer.shape:
            self.expr(dim, scope, i64, f"a dim of {buffer.name}")
        if buffer.strides is not None and len(buffer.strides) != len(buffer.shape):
            raise self.fail(f"{buffer.name} has {len(buffer.strides)} strides for {len(buffer.shape)} dims")
        if buffer.scope not in ("global", "local", "register", "tile", "shared", "fragment"):
            raise self.fail(f"{buffer.name} is in the unknown scope {buffer.scope!r}")

    def _bind(self, binder: Node, scope: set[Node]) -> set[Node]:
        if binder in self.bound:
            raise self.fail(f"{getattr(binder, 'name', binder)} is bound twice")
        self.bound.add(binder)
        return scope | {binder}

    def statement(self, stmt: Stmt, scope: set[Node], racing: tuple[For, ...]) -> None:
        """`racing`: the loops around whose iterations run at the same time."""
        if not isinstance(stmt, Seq):
            self.at = stmt
        match stmt:
            case Seq(stmts=stmts):
                for inner in stmts:
                    self.statement(inner, scope, racing)
            case For():
                self._for(stmt, scope, racing)
            case Block():
                self._block(stmt, scope, racing)
            case Store():
                self._store(stmt, scope, racing)
            case Let(var=var, value=value, body=body):
                self.expr(value, scope, var.dtype, f"the value of {var.name}")
                self.statement(body, self._bind(var, scope), racing)
            case LoopIf(condition=condition, then_body=then_body, else_body=else_body):
                self.expr(condition, scope, bool_, "a condition")
                self.statement(then_body, scope, racing)
                if else_body is not None:
                    self.statement(else_body, scope, racing)
            case While(condition=condition, body=body):
                self.expr(condition, scope, bool_, "a condition")
                self.statement(body, scope, racing)
            case Alloc(buffer=buffer, body=body):
                self._buffer(buffer, scope)
                self.statement(body, self._bind(buffer, scope), racing)
            case IntrinsicCall(operands=operands):
                for operand in operands:
                    self.expr(operand, scope, operand.dtype, "an operand")
            case WarpCall(operands=operands):
                for operand in operands:
                    self.expr(operand, scope, operand.dtype, "an operand")
                self._warp_call(stmt, racing)
            case Barrier():
                if not any(loop.kind is LoopKind.BOUND for loop in racing):
                    raise self.fail("a barrier stands outside of bound loops, where there are no threads to wait")
            case CommitCopies() | AwaitCopies():
                if not any(loop.kind is LoopKind.BOUND for loop in racing):
                    raise self.fail("copies are awaited outside of bound loops, where there are no threads that copy")
                if isinstance(stmt, AwaitCopies) and stmt.pending < 0:
                    raise self.fail(f"copies are awaited until {stmt.pending} groups are left")
            case CopyBox() | SetUpBarrier() | Arrive() | AwaitPhase() | BeginProducts() | CommitProducts() | AwaitProducts():
                for operand in element_operands(stmt):
                    self.expr(operand, scope, operand.dtype, "an operand")
                complaint = box_complaint(stmt)
                if complaint is not None:
                    raise self.fail(complaint)
                if not any(loop.kind is LoopKind.BOUND for loop in racing):
                    raise self.fail(f"{type(stmt).__name__} stands outside of bound loops, where there are no threads")
            case _:
                raise self.fail(f"{type(stmt).__name__} is no statement of the loop IR")

    def _warp_call(self, call: WarpCall, racing: tuple[For, ...]) -> None:
        if not any(loop.thread == "thread.x" for loop in racing):
            raise self.fail(f"{call.name} is of the lanes of a warp, but stands outside of loops over them")
        known = INTRINSICS.get(call.name)
        if known is None:
            raise self.fail(f"there is no intrinsic {call.name!r}")
        if tuple(operand.dtype for operand in call.operands) != tuple(buffer.dtype for buffer in known.pattern.buffers):
            raise self.fail(f"{call.name} is given operands of other types, or another number of them")

    def _for(self, loop: For, scope: set[Node], racing: tuple[For, ...]) -> None:
        self.expr(loop.extent, scope, i64, f"the extent of loop {loop.var.name}")
        if loop.kind is LoopKind.VECTORIZED and not isinstance(loop.extent, Const):
            raise self.fail(f"loop {loop.var.name} is vectorized, but its extent {loop.extent} is not constant")
        complaint = loop.hints.complaint()
        if complaint is not None:
            raise self.fail(f"loop {loop.var.name}: {complaint}")
        if loop.hints.intrinsic and loop.hints.intrinsic not in INTRINSICS:
            raise self.fail(f"loop {loop.var.name}: there is no intrinsic {loop.hints.intrinsic!r}")
        ahead = loop.hints.prefetch
        if ahead is not None and ahead.parameter >= len(self.func.buffers):
            raise self.fail(f"loop {loop.var.name} fetches buffer {ahead.parameter} ahead; there are {len(self.func.buffers)}")
        if loop.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.BOUND):
            racing = (*racing, loop)
        self.statement(loop.body, self._bind(loop.var, scope), racing)

    def _block(self, block: Block, scope: set[Node], racing: tuple[For, ...]) -> None:
        if block.name in self.blocks:
            raise self.fail(f"two blocks are named {block.name!r}")
        self.blocks.add(block.name)
        for key, value in block.annotations:
            if key != "monoid" or not isinstance(value, str):
                raise self.fail(f"block {block.name} has the annotation {key}={value!r}; there is monoid, a name")
        self.expr(block.where, scope, bool_, f"the condition of block {block.name}")
        inside = scope
        for axis in block.axes:
            self.expr(axis.extent, scope, i64, f"the extent of axis {axis.var.name}")
            self.expr(axis.value, scope, i64, f"the value of axis {axis.var.name}")
            if axis.kind is not AxisKind.SPATIAL:
                for loop in racing:
                    if any(node is loop.var for node in walk(axis.value)):
                        raise self.fail(
                            f"loop {loop.var.name} is {loop.kind.name.lower()}, but drives the "
                            f"{axis.kind.value} axis {axis.var.name} of block {block.name}"
                        )
        for axis in block.axes:
            inside = self._bind(axis.var, inside)
        reductions = [axis for axis in block.axes if axis.kind is not AxisKind.SPATIAL]
        if block.init is not None:
            if not reductions:
                raise self.fail(f"block {block.name} has an initialisation but no reduction axis")
            hidden = inside - {axis.var for axis in reductions}
            self.statement(block.init, hidden, ())
        self.at = block
        self.statement(block.body, inside, ())

    def _store(self, stmt: Store, scope: set[Node], racing: tuple[For, ...]) -> None:
        self._access(stmt.buffer, stmt.indices, scope)
        self.expr(stmt.value, scope, stmt.buffer.dtype, f"the value stored to {stmt.buffer.name}")
        params = set(self.func.buffers)
        used = {node for index in stmt.indices for node in walk(index)}
        has_load = any(map(reads_memory, stmt.indices))
        if any(isinstance(node, MathCall) and node.name == "thread_index" for node in used):
            racing = tuple(loop for loop in racing if loop.kind is not LoopKind.PARALLEL)  # memory of each thread's own
        for loop in racing:
            if stmt.buffer in params and loop.var not in used and not has_load and not self._derived(loop):
                raise self.fail(
                    f"all iterations of the {loop.kind.name.lower()} loop {loop.var.name} "
                    f"store to the same element of {stmt.buffer.name}"
                )

    def _derived(self, loop: For) -> bool:
        """Whether an index may depend on the loop through a Let or a condition around the store."""
        guarded = any(isinstance(n, (LoopIf, Let)) for n in walk(loop.body))
        return guarded or not isinstance(loop.extent, Const) or loop.extent.value <= 1

    def _access(self, buffer: Buffer, indices: tuple[Expr, ...], scope: set[Node]) -> None:
        if buffer not in scope:
            raise self.fail(f"buffer {buffer.name} is not in scope")
        if len(indices) != len(buffer.shape):
            raise self.fail(f"{buffer.name} has {len(buffer.shape)} dims, but {len(indices)} indices are given")
        for index in indices:
            if not index.dtype.is_int:
                raise self.fail(f"an index of {buffer.name} is {index.dtype}, must be an integer")
            self.expr(index, scope, index.dtype, f"an index of {buffer.name}")

    def expr(self, expr: Expr, scope: set[Node], expected: object, what: str) -> None:
        if expr.dtype is not expected:
            raise self.fail(f"{what} is {expr.dtype}, must be {expected}")
        self._inside(expr, scope)

    def _inside(self, expr: Expr, scope: set[Node]) -> None:
        match expr:
            case Var():
                if expr not in scope:
                    raise self.fail(f"variable {expr.name} is not in scope")
            case Load(buffer=buffer, indices=indices):
                self._access(buffer, indices, scope)
                return
            case And(lhs=a, rhs=b) | Or(lhs=a, rhs=b):
                if a.dtype is not bool_ or b.dtype is not bool_:
                    raise self.fail(f"{expr} joins {a.dtype} and {b.dtype}, must be bools")
            case BinaryExpr(lhs=a, rhs=b) | CompareExpr(lhs=a, rhs=b):
                if a.dtype is not b.dtype:
                    raise self.fail(f"operands of {expr} are {a.dtype} and {b.dtype}")
                if isinstance(expr, (FloorDiv, FloorMod)) and a.dtype.is_float:
                    raise self.fail(f"{expr} divides floats and rounds down; that is for integers")
            case Not(operand=a):
                if a.dtype is not bool_:
                    raise self.fail(f"{expr} negates {a.dtype}, must be a bool")
            case Select(condition=c, true_value=a, false_value=b):
                if c.dtype is not bool_:
                    raise self.fail(f"the condition of {expr} is {c.dtype}, must be a bool")
                if a.dtype is not b.dtype:
                    raise self.fail(f"the values of {expr} are {a.dtype} and {b.dtype}")
            case Checked(index=index, extent=extent, given=given):
                if any(part.dtype is not i64 for part in (index, extent, given)):
                    raise self.fail(f"{expr} checks {index.dtype} against {extent.dtype}, must be i64")
            case MathCall(name=name, args=args):
                if MATH_CALLS.get(name) != len(args):
                    raise self.fail(f"there is no intrinsic {name} with {len(args)} arguments")
                if name == "float_bits" and (args[0].dtype not in (f32, f64) or expr.dtype is not result_of_call(name, args[0].dtype)):
                    raise self.fail(f"{expr} makes {expr.dtype} of {args[0].dtype}, must make u32 of f32 or u64 of f64")
                if name == "float_of_bits" and (args[0].dtype not in (u32, u64) or expr.dtype is not result_of_call(name, args[0].dtype)):
                    raise self.fail(f"{expr} makes {expr.dtype} of {args[0].dtype}, must make f32 of u32 or f64 of u64")
        if isinstance(expr, (BinaryExpr, CompareExpr, MathCall)):
            for operand in children(expr):
                if isinstance(operand, Expr) and operand.dtype.is_storage:
                    raise self.fail(f"{expr} computes with {operand.dtype}, which is only stored, moved and cast")
        for child in children(expr):
            if isinstance(child, Expr):
                self._inside(child, scope)


# -- graphs


class _GraphVerifier:
    """Walks one graph function and those inside it."""

    def __init__(self, module: IRModule | None, infer: TypeRule | None, root: Function) -> None:
        self.module = module
        self.infer = infer
        self.root = root
        self.bound: set[TensorVar] = set()
        self.at: Node | None = None

    def fail(self, message: str) -> VerifyError:
        return _complain(self.root, self.at, message)

    def function(self, func: Function, outer: set[TensorVar], outer_dims: set[Var]) -> None:
        scope, dims = set(outer), set(outer_dims)
        for param in func.params:
            self._bind(param, scope)
            dims |= {dim for dim in _dims_of(param.type) if _is_plain(dim, param.type)}
        if dict(func.attrs).get("primitive"):  # its dims are its caller's
            dims |= {dim for binding in func.bindings for dim in _vars_of(binding)}
            dims |= {dim for param in func.params for dim in _dims_of(param.type)}
        for param in func.params:
            self._type(param.type, dims, f"parameter {param.name}")
        for fact in func.facts:
            if fact.lo < 0 or (fact.hi is not None and fact.hi < fact.lo) or fact.multiple_of < 1:
                raise self.fail(f"the promise about {fact.var.name} cannot hold: {fact.lo}..{fact.hi} by {fact.multiple_of}")
        for binding in func.bindings:
            self._binding(binding, scope, dims)
        for result in func.results:
            self.at = None
            self._atom(result, scope)

    def _bind(self, var: TensorVar, scope: set[TensorVar]) -> None:
        if var in self.bound:
            raise self.fail(f"variable {var.name} is bound twice")
        self.bound.add(var)
        scope.add(var)

    def _atom(self, atom: Node, scope: set[TensorVar]) -> None:
        if isinstance(atom, TensorVar) and atom not in scope:
            raise self.fail(f"variable {atom.name} is used before it is bound, or outside its scope")
        if isinstance(atom, GlobalRef) and self.module is not None and atom.name not in self.module:
            raise self.fail(f"there is no function {atom.name!r} in the module")

    def _type(self, type_: Type, dims: set[Var], what: str) -> None:
        for dim in _dims_of(type_):
            if dim not in dims:
                raise self.fail(f"the type of {what} speaks of {dim.name}, which nothing has bound")
        if isinstance(type_, TensorType):
            for size in type_.shape:
                if size.dtype is not i64:
                    raise self.fail(f"a dim of {what} is {size.dtype}, must be i64")
                if isinstance(size, Const) and size.value < 0:
                    raise self.fail(f"a dim of {what} is {size.value}, must not be negative")

    def _binding(self, binding: Binding, scope: set[TensorVar], dims: set[Var]) -> None:
        self.at = binding
        value = binding.value
        for atom in atoms_of(value):
            self._atom(atom, scope)
        match value:
            case ReadDims(operand=operand, dims=new):
                if not isinstance(operand.type, TensorType) or not operand.type.dtype.is_int:
                    raise self.fail(f"read_dims reads integers, not {operand.type}")
                dims.update(new)
            case If(condition=condition, then_branch=then_branch, else_branch=else_branch):
                self._flag(condition.type)
                for branch in (then_branch, else_branch):
                    if branch.params:
                        raise self.fail("a branch takes no parameters")
                    self._results(branch, binding, 0)
                    self.function(branch, scope, dims)
            case Loop():
                self._loop(value, binding, scope, dims)
            case CallFunction():
                self._call(value, binding)
            case CallTir():
                self._call_tir(value, binding)
            case Tuple(fields=fields) if len(binding.targets) not in (1, len(fields)):
                raise self.fail(f"{len(fields)} fields for {len(binding.targets)} targets")
            case GetItem(operand=operand, index=index):
                if not isinstance(operand.type, TupleType) or not 0 <= index < len(operand.type.fields):
                    raise self.fail(f"there is no field {index} in {operand.type}")
        self.at = binding
        dims |= {
            dim for target in binding.targets for dim in _dims_of(target.type) if _may_bind(value) and _is_plain(dim, target.type)
        }
        for target in binding.targets:
            self._bind(target, scope)
            self._type(target.type, dims, target.name)
        if self.infer is not None:
            self._check_types(binding)

    def _check_types(self, binding: Binding) -> None:
        assert self.infer is not None
        found = self.infer(binding)
        if len(found) != len(binding.targets):
            raise self.fail(f"{len(found)} results for {len(binding.targets)} targets")
        for target, type_ in zip(binding.targets, found, strict=True):
            if str(target.type) != str(type_):
                raise self.fail(f"{target.name} is stated to be {target.type}, but is {type_}")

    def _flag(self, type_: Type) -> None:
        if not isinstance(type_, TensorType) or type_.dtype is not bool_:
            raise self.fail(f"a condition is {type_}, must be a bool")

    def _results(self, body: Function, binding: Binding, skip: int) -> None:
        if len(body.results) - skip != len(binding.targets):
            raise self.fail(f"{body.name} returns {len(body.results) - skip} values for {len(binding.targets)} targets")
        for result, target in zip(body.results[skip:], binding.targets, strict=True):
            a, b = result.type, target.type
            if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype is not b.dtype:
                raise self.fail(f"{body.name} returns {a} for {target.name}, which is {b}")

    def _loop(self, loop: Loop, binding: Binding, scope: set[TensorVar], dims: set[Var]) -> None:
        self._flag(loop.condition.type)
        if len(loop.body.params) != 1 + len(loop.init):
            raise self.fail(f"the body takes {len(loop.body.params)} parameters for {len(loop.init)} carried values")
        if len(loop.body.results) != 1 + len(binding.targets):
            raise self.fail(f"the body returns {len(loop.body.results)} values for {len(binding.targets)} targets")
        index = loop.body.params[0].type
        if not isinstance(index, TensorType) or index.dtype is not i64 or index.shape:
            raise self.fail(f"the body's first parameter is {index}, must be i64[()]")
        for dim in () if loop.trip_count is None else _vars_of(loop.trip_count):
            if dim not in dims:
                raise self.fail(f"the number of iterations speaks of {dim.name}, which nothing has bound")
        for atoms in zip(loop.init, loop.body.params[1:], loop.body.results[1:], binding.targets, strict=False):
            first, *others = [atom.type for atom in atoms]
            if not all(isinstance(t, TensorType) and isinstance(first, TensorType) and t.rank == first.rank for t in others):
                raise self.fail(f"the loop carries {first} as {', '.join(map(str, others))}, of another rank")
            self._carried_dims(*(type_ for type_ in others if isinstance(type_, TensorType)), dims=dims)
        self.function(loop.body, scope, dims)
        self._flag(loop.body.results[0].type)

    def _carried_dims(self, inside: TensorType, _: TensorType, after: TensorType, *, dims: set[Var]) -> None:
        """A size that changes is a dim of its own after the loop."""
        for dim, result in zip(inside.shape, after.shape, strict=True):
            if isinstance(dim, Var) and dim not in dims and (not isinstance(result, Var) or result in dims or result is dim):
                raise self.fail(f"the loop changes {dim.name}, and {result} after it is no dim of its own")

    def _call(self, call: CallFunction, binding: Binding) -> None:
        type_ = call.callee.type
        if not isinstance(type_, FunctionType):
            raise self.fail(f"{type_} is called, but is no function")
        if len(type_.params) != len(call.args):
            raise self.fail(f"{len(call.args)} arguments for {len(type_.params)} parameters")
        if len(type_.results) != len(binding.targets):
            raise self.fail(f"{len(type_.results)} results for {len(binding.targets)} targets")

    def _call_tir(self, call: CallTir, binding: Binding) -> None:
        if self.module is None:
            return
        callee = self.module[call.callee] if call.callee in self.module else None
        if not isinstance(callee, PrimFunc):
            raise self.fail(f"there is no loop-level function {call.callee!r} in the module")
        if len(callee.buffers) != len(call.args) + len(binding.targets):
            raise self.fail(
                f"{call.callee} has {len(callee.buffers)} buffers, but {len(call.args)} arguments and "
                f"{len(binding.targets)} results are given"
            )
        if len(callee.dims) != len(call.dims):
            raise self.fail(f"{call.callee} takes {len(callee.dims)} dims, found {len(call.dims)}")
        dims: dict[Node, Node] = dict(zip(callee.dims, call.dims, strict=True))
        for buffer, atom in zip(callee.buffers, (*call.args, *binding.targets), strict=True):
            type_ = atom.type
            if not isinstance(type_, TensorType) or type_.dtype is not buffer.dtype or not _is_same_memory(type_, buffer, dims):
                raise self.fail(f"{call.callee} takes {buffer}, found {type_}")


def _is_same_memory(type_: TensorType, buffer: Buffer, dims: dict[Node, Node]) -> bool:
    """Whether a parameter has as many dims as the tensor that it is given, or, where dims were merged, as many elements."""
    if type_.rank == len(buffer.shape):
        return True
    return buffer.strides is None and prove(equal(substitute(product(buffer.shape), dims), product(type_.shape))) is True


def _may_bind(value: Node) -> bool:
    """Whether results may have dims that are known only when the operation has run."""
    return not isinstance(value, (CallTir, Tuple, GetItem, TensorVar))


def _dims_of(type_: Node) -> list[Var]:
    return _vars_of(type_)


def _vars_of(node: Node) -> list[Var]:
    return list(dict.fromkeys(n for n in walk(node) if isinstance(n, Var)))


def _is_plain(dim: Var, type_: Type) -> bool:
    """Whether the dim stands by itself in the type, and is thereby bound by a value of it."""
    parts: Iterable[Type] = type_.fields if isinstance(type_, TupleType) else (type_,)
    return any(isinstance(part, TensorType) and any(size is dim for size in part.shape) for part in parts)
