"""Text to graph functions."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tc.errors import Span
from tc.ir.dtype import i64
from tc.ir.expr import Expr, Var
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
    Operation,
    ReadDims,
    TensorConst,
    TensorVar,
    Tuple,
)
from tc.ir.parse_exprs import DTYPES, ExprParser, Source, call_statement, literal_value
from tc.ir.types import DimFact, FunctionType, TensorType, TupleType, Type

Constants = Mapping[str, np.ndarray]


class GraphParser(ExprParser):
    """Graph functions. A dim is a variable from where it is first named in a type."""

    def __init__(self, source: Source, constants: Constants) -> None:
        super().__init__(source)
        self.constants = constants
        self.functions: dict[str, Function] = {}

    def variable(self, node: ast.expr, name: str) -> Expr:
        found = self.names.get(name)
        if found is None:
            found = self.names[name] = Var(name, i64)
        if not isinstance(found, Var):
            raise self.source.error(node, f"{name} is a tensor, not a dim")
        return found

    def function(self, node: ast.FunctionDef) -> Function:
        params = []
        for arg in node.args.args:
            if arg.annotation is None:
                raise self.source.error(arg, f"parameter {arg.arg} has no type")
            params.append(self._bind(arg.arg, self.type(arg.annotation)))
        name, facts = node.name, list[DimFact]()
        attrs: tuple[tuple[str, AttrValue], ...] = ()
        bindings: list[Binding] = []
        results: tuple[Atom, ...] = ()
        for stmt in node.body:
            match call_statement(stmt), stmt:
                case ("named", call), _:
                    name = self.text(*self.arguments(call, 1))
                case ("promise", call), _:
                    facts.append(self.promise(call))
                case ("attrs", call), _:
                    attrs = self._attrs(call.keywords)
                case _, ast.FunctionDef():
                    self.functions[stmt.name] = self._nested(stmt)
                case _, ast.Return(value=value):
                    results = self._results(value)
                case _:
                    bindings.append(self._binding(stmt))
        return Function(name, tuple(params), tuple(bindings), results, tuple(facts), attrs)

    def _nested(self, node: ast.FunctionDef) -> Function:
        """A function inside of another one, as in Python: what it defines, but for dims, is known in it alone."""
        functions, names = self.functions, self.names
        self.functions, self.names = dict(functions), dict(names)
        try:
            return self.function(node)
        finally:
            dims = {name: found for name, found in self.names.items() if isinstance(found, Var)}
            self.functions, self.names = functions, {**dims, **names}

    def _bind(self, name: str, type_: Type, span: Span | None = None) -> TensorVar:
        var = TensorVar(name, type_, span=span)
        self.names[name] = var
        return var

    def _results(self, value: ast.expr | None) -> tuple[Atom, ...]:
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            return ()
        items = value.elts if isinstance(value, ast.Tuple) else [value]
        return tuple(self._required(item) for item in items)

    def type(self, node: ast.expr) -> Type:
        match node:
            case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=fields)):
                return TupleType(tuple(map(self.type, fields)))
            case ast.Subscript(value=ast.Name(id="fn"), slice=ast.Tuple(elts=[params, results])):
                left, right = self.type(params), self.type(results)
                if not isinstance(left, TupleType) or not isinstance(right, TupleType):
                    raise self.source.error(node, f"expected fn[tuple[...], tuple[...]], found {ast.unparse(node)}")
                return FunctionType(left.fields, right.fields)
        dtype, shape = self.shaped(node)
        return TensorType(shape, dtype)

    def _tensor_type(self, node: ast.expr) -> TensorType:
        found = self.type(node)
        if not isinstance(found, TensorType):
            raise self.source.error(node, f"expected the type of a tensor, found {ast.unparse(node)}")
        return found

    def _binding(self, stmt: ast.stmt) -> Binding:
        span = self.source.span(stmt)
        match stmt:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value) if value is not None:
                operation = self._operation(value, (annotation,), span)
                return Binding((self._bind(name, self.type(annotation), span),), operation, span=span)
            case ast.Assign(
                targets=[ast.Tuple(elts=targets)],
                value=ast.Call(func=ast.Name(id="read_dims"), args=[operand]),
            ):
                dims = tuple(self._dim(target) for target in targets)
                return Binding((), ReadDims(self._required(operand), dims, span=span), span=span)
            case ast.Assign(
                targets=[ast.Tuple(elts=targets)],
                value=ast.BinOp(left=value, op=ast.MatMult(), right=ast.Tuple(elts=types)),
            ) if len(targets) == len(types):
                operation = self._operation(value, types, span)
                made = [self._bind(ast.unparse(t), self.type(k), span) for t, k in zip(targets, types, strict=True)]
                return Binding(tuple(made), operation, span=span)
            case ast.Expr(value=value):
                return Binding((), self._operation(value, (), span), span=span)
        raise self.source.error(stmt, f"not a statement of the graph IR: {ast.unparse(stmt).splitlines()[0]}")

    def _dim(self, node: ast.expr) -> Var:
        name = ast.unparse(node)
        found = self.variable(node, name)
        assert isinstance(found, Var), "variable() returns nothing else"
        return found

    def _operation(self, node: ast.expr, types: Sequence[ast.expr], span: Span | None) -> Operation:
        match node:
            case ast.Call(func=ast.Name(id="const" | "named")) | ast.Name():
                return self._required(node)
            case ast.Tuple(elts=fields):
                return Tuple(tuple(map(self._required, fields)), span=span)
            case ast.Subscript(value=operand, slice=ast.Constant(value=int(index))):
                return GetItem(self._required(operand), index, span=span)
            case ast.Call(func=ast.Name(id="call_tir"), args=[callee, args, dims]):
                result_types = tuple(map(self._tensor_type, types))
                return CallTir(self.text(callee), self._all(args), self._exprs(dims), result_types, span=span)
            case ast.Call(func=ast.Name(id="call_extern"), args=[symbol, args, dims, effect], keywords=keywords):
                return CallExtern(
                    self.text(symbol),
                    self._all(args),
                    self._exprs(dims),
                    tuple(map(self._tensor_type, types)),
                    self._attrs(keywords),
                    literal_value(effect) is True,
                    span=span,
                )
            case ast.Call(func=ast.Name(id="call"), args=[callee, *args]):
                return CallFunction(self._required(callee), tuple(map(self._required, args)), span=span)
            case ast.Call(func=ast.Name(id="cond"), args=[condition, yes, no]):
                return If(self._required(condition), self._body(yes), self._body(no), span=span)
            case ast.Call(func=ast.Name(id="loop"), args=[body, count, condition, *init]):
                limit = None if isinstance(count, ast.Constant) and count.value is None else self.expr(count)
                carried = tuple(map(self._required, init))
                return Loop(limit, self._required(condition), carried, self._body(body), span=span)
            case ast.Call(func=ast.Name(id="call_op"), args=[name, *args], keywords=keywords):
                return Call(self.text(name), tuple(map(self._atom, args)), self._attrs(keywords), span=span)
            case ast.Call(func=ast.Name(id=op), args=args, keywords=keywords):
                return Call(op, tuple(map(self._atom, args)), self._attrs(keywords), span=span)
        raise self.source.error(node, f"not an operation of the graph IR: {ast.unparse(node)}")

    def _body(self, node: ast.expr) -> Function:
        name = ast.unparse(node)
        if name not in self.functions:
            raise self.source.error(node, f"there is no function {name} before this line")
        return self.functions[name]

    def _all(self, node: ast.expr) -> tuple[Atom, ...]:
        if not isinstance(node, ast.Tuple):
            raise self.source.error(node, f"expected a tuple, found {ast.unparse(node)}")
        return tuple(map(self._required, node.elts))

    def _exprs(self, node: ast.expr) -> tuple[Expr, ...]:
        if not isinstance(node, ast.Tuple):
            raise self.source.error(node, f"expected a tuple, found {ast.unparse(node)}")
        return tuple(map(self.expr, node.elts))

    def _required(self, node: ast.expr) -> Atom:
        atom = self._atom(node)
        if atom is None:
            raise self.source.error(node, "a value is needed here")
        return atom

    def _atom(self, node: ast.expr) -> Atom | None:
        match node:
            case ast.Constant(value=None):
                return None
            case ast.Name(id=name):
                found = self.names.get(name)
                if not isinstance(found, TensorVar):
                    raise self.source.error(node, f"{name} is not a tensor in scope")
                return found
            case ast.Call(func=ast.Name(id="const"), args=[value, type_]):
                return self._constant(node, literal_value(value), type_)
            case ast.Call(func=ast.Name(id="named"), args=[name, type_]):
                kind = self.type(type_)
                assert isinstance(kind, FunctionType)
                return GlobalRef(literal_value(name), kind)
        raise self.source.error(node, f"expected a variable or a constant, found {ast.unparse(node)}")

    def _constant(self, node: ast.expr, value: Any, type_: ast.expr) -> TensorConst:
        kind = self._tensor_type(type_)
        if not isinstance(value, str):
            try:
                return TensorConst(np.array(value, kind.dtype.numpy).reshape(kind.static_shape or ()))
            except (OverflowError, TypeError, ValueError):
                raise self.source.error(node, f"not an array of {kind}: {ast.unparse(node)}") from None
        if value not in self.constants:
            raise self.source.error(node, f"no array is given for the constant {value!r}")
        array = self.constants[value]
        if array.shape != kind.static_shape or array.dtype != kind.dtype.numpy:
            raise self.source.error(node, f"the array for {value!r} is {array.dtype}{list(array.shape)}, not {kind}")
        return TensorConst(array, value.rpartition("#")[0])

    def _attrs(self, keywords: Sequence[ast.keyword]) -> tuple[tuple[str, AttrValue], ...]:
        return tuple((str(k.arg), self._value(k.value)) for k in keywords)

    def _value(self, node: ast.expr) -> AttrValue:
        match node:
            case ast.Constant(value=(None | bool() | int() | float() | str()) as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value) | float(value))):
                return -value
            case ast.Tuple(elts=items):
                return tuple(map(self._value, items))
            case ast.Call(func=ast.Name(id="dim"), args=[value]):
                return self.expr(value)
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(value))]):
                try:
                    return float(value)
                except ValueError:
                    raise self.source.error(node, f"not a number: {value}") from None
            case ast.Name(id=name) if name in DTYPES:
                return DTYPES[name]
        return self.expr(node)
