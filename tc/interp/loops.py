"""The reference meaning of PrimFuncs: run them as they are written, one scalar at a time.

The program becomes Python source, blocks included, that works on flat lists of scalars (see `scalars`). Nothing is shared with the
code generator, and nothing is reordered, so parallel and vectorized loops run in sequence, forward or backward. Scratch memory starts
as NaN (floats) or a large number (integers), an index out of range is an error, and so is an axis of a block outside its
extent: what a compiled kernel would get away with is found here. Loops annotated `tree` combine in that order (see `tree_loop`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from tc.errors import InputError, VerifyError
from tc.interp import scalars
from tc.ir.arith import evaluate
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
from tc.ir.intrinsic import INTRINSICS
from tc.ir.loop import (
    Alloc,
    AxisKind,
    Barrier,
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
)
from tc.ir.node import Node, walk
from tc.ir.tree_loop import TreeLoop, as_tree_loop, combine_tree

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
    func: PrimFunc, arrays: Sequence[np.ndarray], dims: Sequence[int] = (), *, backward: bool = False
) -> list[np.ndarray]:
    """The outputs of `func` on the inputs `arrays`, its symbolic dims being `dims`.

    `backward` runs the iterations of loops that claim to be independent in the opposite order: the same results, if they are.
    VerifyError when the program uses an index or an axis outside its range.
    """
    env = dict(zip(func.dims, dims, strict=True))
    shapes = [tuple(int(evaluate(dim, env)) for dim in buffer.shape) for buffer in func.buffers]
    lists: list[list[Any]] = []
    for buffer, array, shape in zip(func.inputs, arrays, shapes, strict=False):
        if array.shape != shape or array.dtype != buffer.dtype.numpy:
            raise VerifyError(f"{func.name}: {buffer} is given an array {array.dtype}{list(array.shape)}")
        lists.append(_to_list(array, buffer.dtype))
    for buffer, shape in zip(func.outputs, shapes[len(lists) :], strict=True):
        lists.append([scalars.poison(buffer.dtype)] * int(np.prod(shape, dtype=np.int64)))
    values = iter(lists)
    with np.errstate(all="ignore"):
        compile_to_python(func, backward)(*(next(values) if isinstance(p, Buffer) else env[p] for p in func.params))
    first = len(func.inputs)
    return [
        np.array(items, buffer.dtype.numpy).reshape(shape)
        for buffer, items, shape in zip(func.outputs, lists[first:], shapes[first:], strict=True)
    ]


def _to_list(array: np.ndarray, dtype: DType) -> list[Any]:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.tolist() if dtype in (i64, bool_) else list(flat)


def compile_to_python(func: PrimFunc, backward: bool = False) -> Callable[..., None]:
    """A Python function of the parameters, buffers being flat lists of scalars."""
    writer = _Writer(func.name, backward)
    writer.emit(f"def kernel({', '.join(map(writer.name, func.params))}):")
    writer.depth += 1
    for buffer in func.buffers:
        writer.declare_shape(buffer)
    writer.statement(start_empty_reductions(func).body)
    writer.emit("return None")
    names: dict[str, Any] = {**writer.globals, "_out": _out_of_range, "_refuse": _refuse}
    exec(compile("\n".join(writer.lines), f"<{func.name}>", "exec"), names)
    kernel: Callable[..., None] = names["kernel"]
    return kernel


def _refuse(message: str, index: int, size: int) -> NoReturn:
    raise InputError(message.format(index=index, size=size))


def _out_of_range(what: str, value: int, extent: int) -> NoReturn:
    raise VerifyError(f"{what} is {value}, outside [0, {extent})")


class _Writer:
    """Python source, line by line, and the objects that it names."""

    def __init__(self, func_name: str, backward: bool) -> None:
        self.func_name = func_name
        self.backward = backward
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
            self.emit(f"{part}()")
        else:
            self.nested(header, body)
        self.loops -= 1

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case For() if (tree := as_tree_loop(stmt)) is not None:
                outer, self.tree = self.tree, tree
                self.statement(tree.body)
                self.tree = outer
            case For(var=var, extent=extent, body=body, kind=kind):
                order = "range({})[::-1]" if self.backward and kind in _INDEPENDENT else "range({})"
                self.loop(f"for {self.name(var)} in {order.format(self.expression(extent))}:", body)
            case Block():
                self.block(stmt)
            case Seq(stmts=stmts):
                self.emit("pass")
                for inner in stmts:
                    self.statement(inner)
            case If(condition=condition, then_body=then_body, else_body=else_body):
                self.nested(f"if {self.expression(condition)}:", then_body)
                if else_body is not None:
                    self.nested("else:", else_body)
            case While(condition=condition, body=body):
                self.loop(f"while {self.expression(condition)}:", body)
            case Let(var=var, value=value, body=body):
                self._from_data[var] = self.is_from_data(value)
                self.emit(f"{self.name(var)} = {self.expression(value)}")
                self.statement(body)
            case Store(buffer=buffer, indices=indices) if self.tree is not None and stmt is self.tree.store:
                self.emit(f"{self.element(buffer, indices)} = {self.combined(self.tree)}")
            case Store(buffer=buffer, indices=indices, value=value):
                self.emit(f"{self.element(buffer, indices)} = {self.expression(value)}")
            case Alloc(buffer=buffer, body=body):
                self.declare_shape(buffer)
                count = " * ".join(self._shapes[buffer]) or "1"
                start = self.constant(f"poison {buffer.dtype}", scalars.poison(buffer.dtype))
                self.emit(f"{self.name(buffer)} = [{start}] * ({count})")
                self.statement(body)
            case Barrier():
                self.emit("pass")
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

    def element(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        """`b[offset]`, each index checked against its own extent."""
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
        return f"{self.name(buffer)}[{offset or 0}]"

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
                return self.element(buffer, indices)
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
