"""Run a PrimFunc as it is written, one scalar at a time: the meaning that every schedule has to keep.

The program becomes Python source, blocks included. Nothing is shared with the code generator, and nothing is reordered, so
parallel and vectorized loops run in sequence. Scratch memory starts as NaN (floats) or a large number (integers), an index out
of range is an error, and so is an axis of a block outside its extent: what a compiled kernel would get away with is found here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tc.ir.expr import (
    Add,
    And,
    Buffer,
    Cast,
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
from tc.ir.loop import Alloc, AxisKind, Block, For, If, IntrinsicCall, Let, PrimFunc, Seq, Stmt, Store, While
from tc.ir.node import Node
from tc.schedule.tensorize import INTRINSICS

POISON = 1_000_003
_INFIX = {Add: "+", Sub: "-", Mul: "*", Eq: "==", Ne: "!=", Lt: "<", Le: "<=", And: "and", Or: "or"}


def run_prim_func(func: PrimFunc, arrays: Sequence[np.ndarray], dims: Sequence[int] = ()) -> list[np.ndarray]:
    """The outputs of `func` on the inputs `arrays`, its symbolic dims being `dims`."""
    writer = _Writer()
    arguments = [writer.name(param) for param in func.params]
    writer.emit(f"def kernel({', '.join(arguments)}):")
    writer.depth += 1
    writer.statement(func.body)
    writer.emit("return None")
    names: dict[str, Any] = dict(_BUILTINS, _const=writer.constants)
    exec(compile("\n".join(writer.lines), "<evaluated>", "exec"), names)
    env = dict(zip(func.dims, dims, strict=True))
    outputs = [_fresh([_number(dim, env) for dim in buffer.shape], buffer.dtype.numpy.str) for buffer in func.outputs]
    values = iter([*(_Checked(a) for a in arrays), *outputs])
    names["kernel"](*(next(values) if isinstance(param, Buffer) else env[param] for param in func.params))
    return [output.array for output in outputs]


def _number(dim: Expr, env: dict[Var, int]) -> int:
    writer = _Writer()
    text = writer.expression(dim)
    return int(eval(text, dict(_BUILTINS), {writer.name(var): value for var, value in env.items()}))


class _Checked:
    """An array that refuses indices a kernel must not use."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def _check(self, index: tuple[int, ...]) -> None:
        inside = len(index) == self.array.ndim and all(0 <= i < n for i, n in zip(index, self.array.shape))
        assert inside, f"index {index} of an array of shape {self.array.shape}"

    def __getitem__(self, index: tuple[int, ...]) -> Any:
        self._check(index)
        return self.array[index].item()

    def __setitem__(self, index: tuple[int, ...], value: Any) -> None:
        self._check(index)
        self.array[index] = value


def _fresh(shape: Sequence[int], dtype: str) -> _Checked:
    kind = np.dtype(dtype)
    return _Checked(
        np.full(tuple(shape), np.nan if kind.kind == "f" else POISON % (1 << (8 * kind.itemsize - 1)), kind)
    )


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float):
        return a / b if b else math.nan if not a or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _extreme(pick: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: math.nan if a != a or b != b else pick(a, b)


def _axis(name: str, value: int, extent: int) -> int:
    assert 0 <= value < extent, f"axis {name} is {value}, outside [0, {extent})"
    return value


def _cast(value: Any, dtype: str) -> Any:
    return np.asarray(value).astype(dtype).item()


_BUILTINS: dict[str, Any] = {
    "_div": _divide,
    "_min": _extreme(min),
    "_max": _extreme(max),
    "_fdiv": lambda a, b: a // b if b else 0,
    "_fmod": lambda a, b: a % b if b else 0,
    "_axis": _axis,
    "_fresh": _fresh,
    "_cast": _cast,
    "_call": lambda name, *args: _FUNCTIONS[name](*args),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": lambda x: float(np.exp(x)),
    "log": lambda x: float(np.log(x)),
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "rsqrt": lambda x: 1.0 / math.sqrt(x) if x > 0 else math.inf,
    "tanh": math.tanh,
    "erf": math.erf,
    "abs": abs,
    "floor": math.floor,
    "isnan": lambda x: x != x,
    "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)),
    "fma": lambda a, b, c: a * b + c,
}


class _Writer:
    """Python source, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.constants: list[Any] = []
        self._names: dict[Node, str] = {}

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, binder: Var | Buffer) -> str:
        return self._names.setdefault(binder, f"{'b' if isinstance(binder, Buffer) else 'v'}{len(self._names)}")

    def nested(self, header: str, body: Stmt) -> None:
        self.emit(header)
        self.depth += 1
        self.statement(body)
        self.depth -= 1

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case For(var=var, extent=extent, body=body):
                self.nested(f"for {self.name(var)} in range({self.expression(extent)}):", body)
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
                self.nested(f"while {self.expression(condition)}:", body)
            case Let(var=var, value=value, body=body):
                self.emit(f"{self.name(var)} = {self.expression(value)}")
                self.statement(body)
            case Store(buffer=buffer, indices=indices, value=value):
                self.emit(f"{self.name(buffer)}[{self.index(indices)}] = {self.expression(value)}")
            case Alloc(buffer=buffer, body=body):
                shape = self.index(buffer.shape)
                self.emit(f"{self.name(buffer)} = _fresh([{shape.removeprefix('()')}], {buffer.dtype.numpy.str!r})")
                self.statement(body)
            case IntrinsicCall(name=name, operands=operands):
                self.statement(INTRINSICS[name].expand(operands))
            case _:
                raise AssertionError(f"no meaning for {type(stmt).__name__}")

    def block(self, block: Block) -> None:
        self.emit(f"if {self.expression(block.where)}:")
        self.depth += 1
        for axis in block.axes:
            value, extent = self.expression(axis.value), self.expression(axis.extent)
            self.emit(f"{self.name(axis.var)} = _axis({block.name + '.' + axis.var.name!r}, {value}, {extent})")
        if block.init is not None:
            first = [f"{self.name(axis.var)} == 0" for axis in block.axes if axis.kind is not AxisKind.SPATIAL]
            self.nested(f"if {' and '.join(first) or True}:", block.init)
        self.statement(block.body)
        self.depth -= 1

    def index(self, indices: tuple[Expr, ...]) -> str:
        return "".join(f"{self.expression(index)}, " for index in indices) or "()"

    def expression(self, expr: Expr) -> str:
        visit = self.expression
        match expr:
            case Const(value=value):
                return f"float({str(value)!r})" if isinstance(value, float) else repr(value)
            case Var():
                return self.name(expr)
            case Load(buffer=buffer, indices=indices):
                return f"{self.name(buffer)}[{self.index(indices)}]"
            case Div(lhs=a, rhs=b):
                return f"_div({visit(a)}, {visit(b)})"
            case FloorDiv(lhs=a, rhs=b):
                return f"_fdiv({visit(a)}, {visit(b)})"
            case FloorMod(lhs=a, rhs=b):
                return f"_fmod({visit(a)}, {visit(b)})"
            case Min(lhs=a, rhs=b):
                return f"_min({visit(a)}, {visit(b)})"
            case Max(lhs=a, rhs=b):
                return f"_max({visit(a)}, {visit(b)})"
            case Not(operand=a):
                return f"(not {visit(a)})"
            case Select(condition=c, true_value=a, false_value=b):
                return f"({visit(a)} if {visit(c)} else {visit(b)})"
            case Cast(operand=a, dtype=dtype):
                return f"_cast({visit(a)}, {dtype.numpy.str!r})"
            case MathCall(name=name, args=args):
                return f"_call({name!r}, {', '.join(map(visit, args))})"
        return f"({visit(expr.lhs)} {_INFIX[type(expr)]} {visit(expr.rhs)})"  # type: ignore[attr-defined]
