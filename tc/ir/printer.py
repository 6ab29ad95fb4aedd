"""IR as text: a subset of Python syntax, made to be read."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tc.ir.expr import Buffer, Expr, format_expr
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
    Block,
    For,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    While,
)
from tc.ir.loop import If as LoopIf
from tc.ir.module import IRModule
from tc.ir.types import DimFact, Type

_INDENT = "    "


def print_ir(node: IRModule | Function | PrimFunc | Stmt) -> str:
    """The text of a module, a function or a statement. Variables of one name get a number each."""
    match node:
        case IRModule():
            return "\n\n".join(print_ir(func) for func in node.functions) + "\n"
        case Function():
            return "\n".join(_GraphPrinter().function(node, 0))
        case PrimFunc():
            return "\n".join(_LoopPrinter().function(node))
    return "\n".join(_LoopPrinter().statement(node, 0))


class _Names:
    """A name of its own for every binder, the binder's name where that is free."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._used: set[str] = set()

    def __call__(self, binder: object) -> str:
        found = self._names.get(binder)
        if found is None:
            base = _identifier(binder.name)  # type: ignore[attr-defined]
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


def _identifier(name: str) -> str:
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in name) or "v"
    return text if text[0].isalpha() or text[0] == "_" else f"v{text}"


def _fact(names: _Names, fact: DimFact) -> str:
    text = f"{names(fact.var)}: {fact.lo}..{'' if fact.hi is None else fact.hi}"
    return text if fact.multiple_of == 1 else f"{text} multiple of {fact.multiple_of}"


class _LoopPrinter:
    """Text of loop-level IR."""

    def __init__(self) -> None:
        self.names = _Names()

    def function(self, func: PrimFunc) -> list[str]:
        params = []
        for param in func.params:
            text = self._buffer(param) if isinstance(param, Buffer) else f"{self.names(param)}: i64"
            params.append(text)
        lines = [f"def {_identifier(func.name)}({', '.join(params)}):"]
        lines.append(f"{_INDENT}# outputs: {', '.join(self.names(b) for b in func.outputs)}")
        if func.facts:
            lines.append(f"{_INDENT}# {'; '.join(_fact(self.names, fact) for fact in func.facts)}")
        return [*lines, *self.statement(func.body, 1)]

    def _buffer(self, buffer: Buffer) -> str:
        return f"{self.names(buffer)}: {buffer.dtype}[{self.names.exprs(buffer.shape)}]"

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
                place = self.names.exprs(indices) or "()"
                return [f"{pad}{self.names(buffer)}[{place}] = {self.names.expr(value)}"]
            case Alloc(buffer=buffer, body=body):
                head = f"{pad}{self.names(buffer)} = alloc({buffer.dtype}[{self.names.exprs(buffer.shape)}], {buffer.scope!r})"
                return [head, *self.statement(body, depth)]
            case Let(var=var, value=value, body=body):
                return [f"{pad}{self.names(var)} = {self.names.expr(value)}", *self.statement(body, depth)]
            case LoopIf(condition=condition, then_body=then_body, else_body=else_body):
                lines = [f"{pad}if {self.names.expr(condition)}:", *self.statement(then_body, depth + 1)]
                if else_body is not None:
                    lines += [f"{pad}else:", *self.statement(else_body, depth + 1)]
                return lines
            case While(condition=condition, body=body):
                return [f"{pad}while {self.names.expr(condition)}:", *self.statement(body, depth + 1)]
            case IntrinsicCall(name=name, operands=operands):
                return [f"{pad}{name}({self.names.exprs(operands)})"]
        raise AssertionError(f"no text for {type(stmt).__name__}")

    def _range(self, loop: For) -> str:
        parts = [self.names.expr(loop.extent)]
        if loop.kind is LoopKind.BOUND:
            parts.append(repr(loop.thread))
        parts += [f"{key}={value!r}" for key, value in loop.annotations]
        return f"{loop.kind.value}({', '.join(parts)})"

    def _block(self, block: Block, depth: int) -> list[str]:
        pad = _INDENT * depth
        axes = ", ".join(
            f"{self.names(axis.var)}={axis.kind.value}({self.names.expr(axis.extent)}, {self.names.expr(axis.value)})"
            for axis in block.axes
        )
        lines = [f"{pad}with block({', '.join(filter(None, [repr(block.name), axes]))}):"]
        condition = self.names.expr(block.where)
        if condition != "True":
            lines.append(f"{pad}{_INDENT}where({condition})")
        if block.init is not None:
            lines.append(f"{pad}{_INDENT}with init():")
            lines += self.statement(block.init, depth + 2)
        return [*lines, *self.statement(block.body, depth + 1)]


class _GraphPrinter:
    """Text of graph-level IR."""

    def __init__(self) -> None:
        self.names = _Names()

    def function(self, func: Function, depth: int) -> list[str]:
        pad = _INDENT * depth
        params = ", ".join(f"{self.names(p)}: {self._type(p.type)}" for p in func.params)
        lines = [f"{pad}def {_identifier(func.name)}({params}):"]
        if func.facts and not depth:
            lines.append(f"{pad}{_INDENT}# {'; '.join(_fact(self.names, fact) for fact in func.facts)}")
        for binding in func.bindings:
            lines += self._binding(binding, depth + 1)
        lines.append(f"{pad}{_INDENT}return {', '.join(map(self._atom, func.results)) or 'None'}")
        return lines

    def _type(self, type_: Type) -> str:
        shape = getattr(type_, "shape", None)
        if shape is None:
            return str(type_)
        return f"{type_.dtype}[{self.names.exprs(shape)}]"  # type: ignore[union-attr]

    def _binding(self, binding: Binding, depth: int) -> list[str]:
        pad = _INDENT * depth
        note = f"  # {binding.span}" if binding.span is not None else ""
        value = binding.value
        if isinstance(value, ReadDims):
            targets = ", ".join(self.names(dim) for dim in value.dims)
            return [f"{pad}{targets} = read_dims({self._atom(value.operand)}){note}"]
        before, text = self._operation(value, depth)
        targets = ", ".join(f"{self.names(t)}: {self._type(t.type)}" for t in binding.targets)
        return [*before, f"{pad}{targets} = {text}{note}"]

    def _operation(self, value: object, depth: int) -> tuple[list[str], str]:
        match value:
            case TensorVar() | TensorConst() | GlobalRef():
                return [], self._atom(value)
            case Call(op=op, args=args, attrs=attrs):
                return [], f"{op}({', '.join([*map(self._atom, args), *self._attrs(attrs)])})"
            case CallTir(callee=callee, args=args, dims=dims):
                return [], f"call_tir({callee!r}, {', '.join([*map(self._atom, args), *map(self.names.expr, dims)])})"
            case CallFunction(callee=callee, args=args):
                return [], f"{self._atom(callee)}({', '.join(map(self._atom, args))})"
            case CallExtern(symbol=symbol, args=args):
                return [], f"call_extern({', '.join([repr(symbol), *map(self._atom, args)])})"
            case Tuple(fields=fields):
                return [], f"({', '.join(map(self._atom, fields))},)"
            case GetItem(operand=operand, index=index):
                return [], f"{self._atom(operand)}[{index}]"
            case If(condition=condition, then_branch=then_branch, else_branch=else_branch):
                before = [*self.function(then_branch, depth), *self.function(else_branch, depth)]
                names = f"{_identifier(then_branch.name)}, {_identifier(else_branch.name)}"
                return before, f"cond({self._atom(condition)}, {names})"
            case Loop(trip_count=trip_count, condition=condition, init=init, body=body):
                count = "None" if trip_count is None else self.names.expr(trip_count)
                args = ", ".join([count, *map(self._atom, (condition, *init)), _identifier(body.name)])
                return self.function(body, depth), f"loop({args})"
        raise AssertionError(f"no text for {type(value).__name__}")

    def _attrs(self, attrs: tuple[tuple[str, AttrValue], ...]) -> list[str]:
        return [f"{name}={self._value(value)}" for name, value in attrs]

    def _value(self, value: AttrValue) -> str:
        if isinstance(value, Expr):
            return self.names.expr(value)
        if isinstance(value, tuple):
            return f"({', '.join(map(self._value, value))}{',' if len(value) == 1 else ''})"
        return repr(value)

    def _atom(self, atom: Atom | None) -> str:
        match atom:
            case None:
                return "None"
            case TensorConst(value=value, name=name):
                if value.size <= 4:
                    return f"const({np.asarray(value).tolist()}, {atom.type})"
                return f"const({name or 'array'!r}, {atom.type})"
            case GlobalRef(name=name):
                return _identifier(name)
        return self.names(atom)


