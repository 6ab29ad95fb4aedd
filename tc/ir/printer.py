"""IR as text: a subset of Python syntax, made to be read; `parser` reads it back to an equal program.

    @loops
    def scale(A: f32[n], B: f32[n], n: i64):
        outputs(1)
        for i in parallel(n, grain=64):
            with block('scale', vi=spatial(n, i)):
                B[vi] = A[vi] * 2.0

    @graph
    def main(x: f32[n, 4]):
        y: f32[n, 4] = relu(x)  # Relu_3
        return y

Large constants are named, and kept in a dictionary beside the text. What follows `#` is where a piece comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tc.ir.box_copies import Arrive, AwaitPhase, AwaitProducts, BeginProducts, CommitProducts, CopyBox, SetUpBarrier
from tc.ir.dtype import DType
from tc.ir.expr import Buffer, Const, Expr, Load, format_expr
from tc.ir.graph import (
    Atom,
    AttrValue,
    Binding,
    Call,
    CallExtern,
    CallFunction,
    CallTir,
    Function,
    GetItem,
    GlobalRef,
    If,
    Loop,
    ReadDims,
    TensorConst,
    TensorVar,
    Tuple,
)
from tc.ir.loop import (
    Alloc,
    Annotations,
    AsyncStore,
    AwaitCopies,
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
)
from tc.ir.loop import If as LoopIf
from tc.ir.module import IRModule
from tc.ir.types import DimFact, FunctionType, TensorType, TupleType, Type

Constants = dict[str, np.ndarray]
_INDENT = "    "
_INLINE_ELEMENTS = 4


def print_ir(node: IRModule | Function | PrimFunc | Stmt, constants: Constants | None = None) -> str:
    """The text of a module, a function or a statement. `constants` receives the arrays that the text refers to by name."""
    table: Constants = {} if constants is None else constants
    match node:
        case IRModule():
            head = [] if node.entry == "main" else [f"entry({node.entry!r})"]
            return "\n\n".join([*head, *(print_ir(func, table) for func in node.functions)]) + "\n"
        case Function():
            return "\n".join(_GraphPrinter(table).function(node, 0))
        case PrimFunc():
            return "\n".join(_LoopPrinter().function(node))
    return "\n".join(_LoopPrinter().statement(node, 0))


class _Names:
    """A name of its own for every binder: the binder's name where that is free and no word of the language."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._used: set[str] = set(_RESERVED)

    def __call__(self, binder: object) -> str:
        found = self._names.get(binder)
        if found is None:
            base = identifier(binder.name)  # type: ignore[attr-defined]
            found, count = base, 0
            while found in self._used:
                count += 1
                found = f"{base}_{count}"
            self._used.add(found)
            self._names[binder] = found
        return found

    def expr(self, expr: Expr) -> str:
        return format_expr(expr, 0, self)

    def exprs(self, items: Iterable[Expr]) -> str:
        return ", ".join(map(self.expr, items))


_RESERVED = (
    "and as assert async await break class continue def del elif else except finally for from global if import in is lambda "
    "nonlocal not or pass raise return try while with yield None True False min max select cast narrow dim block init alloc let "
    "where annotate barrier range parallel vectorized unrolled bound spatial reduction ordered outputs promise attrs notes named "
    "const cond loop call_tir call_extern read_dims graph loops entry float tuple fn "
    "f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool"
).split()


def identifier(name: str) -> str:
    """`name` with everything that cannot stand in a name replaced."""
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name) or "v"
    return text if text[0].isalpha() or text[0] == "_" else f"v{text}"


def _promises(names: _Names, facts: Iterable[DimFact]) -> list[str]:
    return [f"promise({names(f.var)}, {f.lo}, {f.hi}, {f.multiple_of})" for f in facts]


def _keywords(items: Annotations) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in items)


def _named(name: str) -> list[str]:
    """The function's name, where it is not one that Python allows."""
    return [] if identifier(name) == name and name not in _RESERVED else [f"named({name!r})"]


class _LoopPrinter:
    """Text of loop-level IR."""

    def __init__(self) -> None:
        self.names = _Names()

    def function(self, func: PrimFunc) -> list[str]:
        params = [
            self._buffer(param) if isinstance(param, Buffer) else f"{self.names(param)}: i64" for param in func.params
        ]
        notes = [*_named(func.name), f"outputs({func.num_outputs})", *_promises(self.names, func.facts)]
        if func.attrs:
            notes.append(f"notes({_keywords(func.attrs)})")
        head = ["@loops", f"def {_function_name(func.name)}({', '.join(params)}):"]
        return [*head, *(f"{_INDENT}{note}" for note in notes), *self.statement(func.body, 1)]

    def _buffer(self, buffer: Buffer) -> str:
        return f"{self.names(buffer)}: {self._buffer_type(buffer, 'global')}"

    def _buffer_type(self, buffer: Buffer, usual: str) -> str:
        text = f"{buffer.dtype}[{self.names.exprs(buffer.shape) or '()'}]"
        extra = [] if buffer.scope == usual else [f"scope={buffer.scope!r}"]
        if buffer.strides is not None:
            extra.append(f"strides=({self.names.exprs(buffer.strides)},)")
        return f"alloc({', '.join([text, *extra])})" if extra else text

    def statement(self, stmt: Stmt, depth: int) -> list[str]:
        pad = _INDENT * depth
        match stmt:
            case Seq(stmts=stmts):
                return [line for inner in stmts for line in self.statement(inner, depth)] or [f"{pad}pass"]
            case For():
                return [f"{pad}for {self.names(stmt.var)} in {self._range(stmt)}:", *self.statement(stmt.body, depth + 1)]
            case Block():
                return self._block(stmt, depth)
            case Store(buffer=buffer, indices=indices, value=value):
                place = f"{self.names(buffer)}[{self.names.exprs(indices) or '()'}]"
                if isinstance(stmt, AsyncStore):
                    return [f"{pad}copy_async({place}, {self.names.expr(value)})"]
                return [f"{pad}{place} = {self.names.expr(value)}"]
            case Alloc(buffer=buffer, body=body):
                kind = self._buffer_type(buffer, "")
                return [f"{pad}with {kind} as {self.names(buffer)}:", *self.statement(body, depth + 1)]
            case Let(var=var, value=value, body=body):
                head = f"{pad}with let({self.names.expr(value)}) as {self.names(var)}:"
                return [head, *self.statement(body, depth + 1)]
            case LoopIf(condition=condition, then_body=then_body, else_body=else_body):
                lines = [f"{pad}if {self.names.expr(condition)}:", *self.statement(then_body, depth + 1)]
                if else_body is not None:
                    lines += [f"{pad}else:", *self.statement(else_body, depth + 1)]
                return lines
            case While(condition=condition, body=body):
                return [f"{pad}while {self.names.expr(condition)}:", *self.statement(body, depth + 1)]
            case Barrier():
                return [f"{pad}barrier()"]
            case CommitCopies():
                return [f"{pad}commit_copies()"]
            case AwaitCopies(pending=pending):
                return [f"{pad}await_copies({pending})"]
            case CopyBox():
                return [f"{pad}{self._copy_box(stmt)}"]
            case SetUpBarrier(barrier=barrier, arrivals=arrivals):
                return [f"{pad}set_up_barrier({self.names.expr(barrier)}, {arrivals})"]
            case Arrive(barrier=barrier, expected_bytes=0):
                return [f"{pad}arrive({self.names.expr(barrier)})"]
            case Arrive(barrier=barrier, expected_bytes=count):
                return [f"{pad}arrive({self.names.expr(barrier)}, {count})"]
            case AwaitPhase(barrier=barrier, parity=parity):
                return [f"{pad}await_phase({self.names.exprs((barrier, parity))})"]
            case BeginProducts(sums=sums):
                return [f"{pad}begin_products({self.names.exprs(sums)})"]
            case CommitProducts():
                return [f"{pad}commit_products()"]
            case AwaitProducts(pending=pending, sums=sums):
                return [f"{pad}await_products({', '.join([str(pending), *map(self.names.expr, sums)])})"]
            case WarpCall(name=name, operands=operands):
                return [f"{pad}warp({name!r}, {self.names.exprs(operands)})"]
            case IntrinsicCall(name=name, operands=operands) if not name.isidentifier():
                return [f"{pad}intrinsic({name!r}, {self.names.exprs(operands)})"]
            case IntrinsicCall(name=name, operands=operands):
                return [f"{pad}{name}({self.names.exprs(operands)})"]
        raise AssertionError(f"no text for {type(stmt).__name__}")

    def _copy_box(self, stmt: CopyBox) -> str:
        places = (Load(stmt.buffer, stmt.indices), Load(stmt.source, stmt.corner))
        box = ", ".join(map(str, stmt.extents))
        seen = "" if stmt.view == stmt.source.shape else f", ({self.names.exprs(stmt.view)}{',' if len(stmt.view) == 1 else ''})"
        return f"copy_box({self.names.exprs(places)}, ({box}{',' if len(stmt.box) == 1 else ''}), {self.names.expr(stmt.barrier)}{seen})"

    def _range(self, loop: For) -> str:
        parts = [self.names.expr(loop.extent)]
        if loop.kind is LoopKind.BOUND:
            parts.append(repr(loop.thread))
        if loop.hints.items():
            parts.append(_keywords(loop.hints.items()))
        return f"{loop.kind.value}({', '.join(parts)})"

    def _block(self, block: Block, depth: int) -> list[str]:
        pad = _INDENT * depth
        axes = [
            f"{self.names(axis.var)}={axis.kind.value}({self.names.expr(axis.extent)}, {self.names.expr(axis.value)})"
            for axis in block.axes
        ]
        lines = [f"{pad}with block({', '.join([repr(block.name), *axes])}):"]
        condition = self.names.expr(block.where)
        if condition != "True":
            lines.append(f"{pad}{_INDENT}where({condition})")
        if block.annotations:
            lines.append(f"{pad}{_INDENT}annotate({_keywords(block.annotations)})")
        if block.init is not None:
            lines += [f"{pad}{_INDENT}with init():", *self.statement(block.init, depth + 2)]
        return [*lines, *self.statement(block.body, depth + 1)]


def _function_name(name: str) -> str:
    return identifier(name) if name not in _RESERVED else f"{name}_"


class _GraphPrinter:
    """Text of graph-level IR."""

    def __init__(self, constants: Constants) -> None:
        self.names = _Names()
        self.constants = constants

    def function(self, func: Function, depth: int) -> list[str]:
        pad, inner = _INDENT * depth, _INDENT * (depth + 1)
        params = ", ".join(f"{self.names(p)}: {self._type(p.type)}" for p in func.params)
        lines = [] if depth else ["@graph"]
        lines.append(f"{pad}def {_function_name(func.name)}({params}):")
        notes = [*_named(func.name), *_promises(self.names, func.facts)]
        if func.attrs:
            notes.append(f"attrs({', '.join(self._attrs(func.attrs))})")
        lines += [f"{inner}{note}" for note in notes]
        for binding in func.bindings:
            lines += self._binding(binding, depth + 1)
        return [*lines, f"{inner}return {', '.join(map(self._atom, func.results)) or 'None'}"]

    def _type(self, type_: Type) -> str:
        match type_:
            case TensorType(shape=shape, dtype=dtype):
                return f"{dtype}[{self.names.exprs(shape) or '()'}]"
            case TupleType(fields=fields):
                return self._types(fields)
            case FunctionType(params=params, results=results):
                return f"fn[{self._types(params)}, {self._types(results)}]"
        raise AssertionError(f"no text for {type_}")

    def _types(self, fields: Sequence[Type]) -> str:
        return f"tuple[{', '.join(map(self._type, fields))},]" if fields else "tuple[()]"

    def _binding(self, binding: Binding, depth: int) -> list[str]:
        pad = _INDENT * depth
        note = f"  # {binding.span}".replace("\n", " ") if binding.span is not None else ""
        value = binding.value
        if isinstance(value, ReadDims):
            targets = ", ".join(self.names(dim) for dim in value.dims)
            return [f"{pad}{targets}, = read_dims({self._atom(value.operand)}){note}"]
        before, text = self._operation(value, depth)
        if len(binding.targets) == 1:
            (target,) = binding.targets
            return [*before, f"{pad}{self.names(target)}: {self._type(target.type)} = {text}{note}"]
        types = ", ".join(self._type(target.type) for target in binding.targets)
        names = ", ".join(self.names(target) for target in binding.targets)
        return [*before, f"{pad}{names}, = {text} @ ({types},){note}" if names else f"{pad}{text}{note}"]

    def _operation(self, value: object, depth: int) -> tuple[list[str], str]:
        match value:
            case TensorVar() | TensorConst() | GlobalRef():
                return [], self._atom(value)
            case Call(op=op, args=args, attrs=attrs) if not op.isidentifier():
                return [], f"call_op({', '.join([repr(op), *map(self._atom, args), *self._attrs(attrs)])})"
            case Call(op=op, args=args, attrs=attrs):
                return [], f"{op}({', '.join([*map(self._atom, args), *self._attrs(attrs)])})"
            case CallTir(callee=callee, args=args, dims=dims):
                return [], f"call_tir({callee!r}, {self._atoms(args)}, {self._tuple(dims)})"
            case CallFunction(callee=callee, args=args):
                return [], f"call({', '.join(map(self._atom, (callee, *args)))})"
            case CallExtern(symbol=symbol, args=args, dims=dims, attrs=attrs, effect=effect):
                parts = [repr(symbol), self._atoms(args), self._tuple(dims), repr(effect), *self._attrs(attrs)]
                return [], f"call_extern({', '.join(parts)})"
            case Tuple(fields=fields):
                return [], self._atoms(fields)
            case GetItem(operand=operand, index=index):
                return [], f"{self._atom(operand)}[{index}]"
            case If(condition=condition, then_branch=then_branch, else_branch=else_branch):
                before = [*self.function(then_branch, depth), *self.function(else_branch, depth)]
                names = f"{_function_name(then_branch.name)}, {_function_name(else_branch.name)}"
                return before, f"cond({self._atom(condition)}, {names})"
            case Loop(trip_count=trip_count, condition=condition, init=init, body=body):
                count = "None" if trip_count is None else self.names.expr(trip_count)
                given = ", ".join([_function_name(body.name), count, *map(self._atom, (condition, *init))])
                return self.function(body, depth), f"loop({given})"
        raise AssertionError(f"no text for {type(value).__name__}")

    def _atoms(self, atoms: Iterable[Atom]) -> str:
        return f"({''.join(f'{self._atom(atom)}, ' for atom in atoms)})"

    def _tuple(self, items: Iterable[Expr]) -> str:
        return f"({''.join(f'{self.names.expr(item)}, ' for item in items)})"

    def _attrs(self, attrs: tuple[tuple[str, AttrValue], ...]) -> list[str]:
        return [f"{name}={self._value(value)}" for name, value in attrs]

    def _value(self, value: AttrValue) -> str:
        match value:
            case Const():
                return f"dim({self.names.expr(value)})"
            case Expr():
                return self.names.expr(value)
            case DType():
                return value.name
            case tuple():
                return f"({''.join(f'{self._value(item)}, ' for item in value)})"
            case float() if not math.isfinite(value):
                return f"float({str(value)!r})"
        return repr(value)

    def _atom(self, atom: Atom | None) -> str:
        match atom:
            case None:
                return "None"
            case TensorConst(value=value, name=name):
                return self._constant(value, name)
            case GlobalRef(name=name, type=type_):
                return f"named({name!r}, {self._type(type_)})"
        return self.names(atom)

    def _constant(self, value: np.ndarray, name: str) -> str:
        type_ = self._type(TensorConst(value).type)
        exact = value.dtype.kind in "biu" or (value.dtype.kind == "f" and bool(np.isfinite(value).all()))
        if value.size <= _INLINE_ELEMENTS and exact:
            return f"const({value.tolist()}, {type_})"
        key = next((key for key, array in self.constants.items() if array is value), None)
        if key is None:
            key = f"{name or 'c'}#{len(self.constants)}"
            self.constants[key] = value
        return f"const({key!r}, {type_})"
