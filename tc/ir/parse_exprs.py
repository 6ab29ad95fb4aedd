"""A text's tree, the positions in it, and its scalar expressions: what functions of both levels are parsed with."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable
from typing import Any

from tc.errors import ParseError, Span
from tc.ir import dtype as dtypes
from tc.ir.dtype import DType, bool_, f32, i64
from tc.ir.expr import (
    MATH_CALLS,
    Add,
    And,
    Buffer,
    Cast,
    Checked,
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
    Narrow,
    Ne,
    Not,
    Or,
    Select,
    Sub,
    Var,
    const,
    result_of_call,
)
from tc.ir.loop import Annotations
from tc.ir.types import DimFact

DTYPES = {dtype.name: dtype for dtype in dtypes.ALL_DTYPES}
"""The dtypes by their names in texts."""


class Source:
    """The text, its tree, and its comments by line."""

    def __init__(self, text: str, filename: str) -> None:
        self.lines = text.splitlines()
        self.filename = filename
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last is what a deep tree ends in
            line, column = getattr(error, "lineno", 0) or 0, getattr(error, "offset", 0) or 0
            raise ParseError(str(getattr(error, "msg", error)), self._span(line, column)) from None
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        self.comments = {t.start[0]: t.string[1:].strip() for t in tokens if t.type == tokenize.COMMENT}

    def _span(self, line: int, column: int) -> Span:
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return Span(self.filename, line, column, text)

    def error(self, node: Any, message: str) -> ParseError:
        return ParseError(message, self._span(getattr(node, "lineno", 0), getattr(node, "col_offset", -1) + 1))

    def span(self, node: ast.stmt) -> Span | None:
        """Where a statement comes from: what its comment says."""
        comment = self.comments.get(node.end_lineno or node.lineno)
        return Span(comment) if comment else None


_BINARY = {ast.Add: Add, ast.Sub: Sub, ast.Mult: Mul, ast.Div: Div, ast.FloorDiv: FloorDiv, ast.Mod: FloorMod}
_COMPARE = {ast.Eq: Eq, ast.NotEq: Ne, ast.Lt: Lt, ast.LtE: Le}


class ExprParser:
    """Scalar expressions. `names` holds the variables and buffers in scope."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.names: dict[str, Any] = {}

    def expr(self, node: ast.expr) -> Expr:
        match node:
            case ast.Constant(value=bool(value)):
                return Const(value, bool_)
            case ast.Constant(value=int(value)):
                return Const(value, i64)
            case ast.Constant(value=float(value)):
                return Const(value, f32)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value) | float(value))):
                return Const(-value, i64 if isinstance(value, int) else f32)
            case ast.UnaryOp(op=ast.Not(), operand=negated):
                return Not(self.expr(negated))
            case ast.Name(id=name):
                return self.variable(node, name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._same_dtype(node, _BINARY[type(op)], left, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return self._same_dtype(node, _COMPARE[type(op)], left, right)
            case ast.BoolOp(op=op, values=[first, *rest]):
                combined = self.expr(first)
                for operand in rest:
                    combined = And(combined, self.expr(operand)) if isinstance(op, ast.And) else Or(combined, self.expr(operand))
                return combined
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                buffer = self.names.get(name)
                if not isinstance(buffer, Buffer):
                    raise self.source.error(node, f"{name} is not a buffer in scope")
                return Load(buffer, self.indices(index))
            case ast.Call(func=ast.Name(id=name)):
                return self._call(node, name)
        raise self.source.error(node, f"not an expression of the IR: {ast.unparse(node)}")

    def variable(self, node: ast.expr, name: str) -> Expr:
        found = self.names.get(name)
        if not isinstance(found, Var):
            raise self.source.error(node, f"{name} is not a variable in scope")
        return found

    def _same_dtype(self, node: ast.expr, cls: Callable[[Expr, Expr], Expr], left: ast.expr, right: ast.expr) -> Expr:
        a, b = self.expr(left), self.expr(right)
        if a.dtype is not b.dtype:
            raise self.source.error(node, f"operands of {ast.unparse(node)} are {a.dtype} and {b.dtype}")
        return cls(a, b)

    def indices(self, node: ast.expr) -> tuple[Expr, ...]:
        return tuple(map(self.expr, node.elts)) if isinstance(node, ast.Tuple) else (self.expr(node),)

    def _call(self, node: ast.Call, name: str) -> Expr:
        if name in ("min", "max"):
            left, right = map(self.expr, self.arguments(node, 2))
            return Min(left, right) if name == "min" else Max(left, right)
        if name == "select":
            condition, left, right = map(self.expr, self.arguments(node, 3))
            return Select(condition, left, right)
        if name == "checked":
            *parts, message, origin = self.arguments(node, 6)
            value, index, size, given = map(self.expr, parts)
            return Checked(value, index, size, given, self.text(message), self.number(origin))
        if name in ("cast", "narrow"):
            operand, dtype = self.arguments(node, 2)
            return (Cast if name == "cast" else Narrow)(self.expr(operand), self.dtype(dtype))
        if name in DTYPES:
            return self._typed_literal(node, DTYPES[name])
        if name in MATH_CALLS:
            args = tuple(map(self.expr, node.args))
            if len(args) != MATH_CALLS[name]:
                raise self.source.error(node, f"{name} takes {MATH_CALLS[name]} arguments, found {len(args)}")
            stated = next((self.dtype(k.value) for k in node.keywords if k.arg == "dtype"), None)
            usual = result_of_call(name, args[0].dtype) if args else i64
            return MathCall(name, args, stated or usual)
        raise self.source.error(node, f"there is no function {name}")

    def _typed_literal(self, node: ast.Call, dtype: DType) -> Const:
        (literal,) = self.arguments(node, 1)
        value = literal_value(literal)
        try:
            return const(float(value) if isinstance(value, str) else value, dtype)
        except (OverflowError, TypeError, ValueError):
            raise self.source.error(node, f"not a number of {dtype}: {ast.unparse(node)}") from None

    def arguments(self, call: ast.Call, count: int) -> list[ast.expr]:
        """The positional arguments of a call that takes so many."""
        if len(call.args) != count:
            raise self.source.error(call, f"{ast.unparse(call.func)} takes {count} arguments, found {len(call.args)}")
        return call.args

    def text(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=str(value)):
                return value
        raise self.source.error(node, f"expected a text, found {ast.unparse(node)}")

    def number(self, node: ast.expr) -> int:
        value = literal_value(node)
        if type(value) is not int:
            raise self.source.error(node, f"expected a whole number, found {ast.unparse(node)}")
        return value

    def dtype(self, node: ast.expr) -> DType:
        if isinstance(node, ast.Name) and node.id in DTYPES:
            return DTYPES[node.id]
        raise self.source.error(node, f"not a dtype: {ast.unparse(node)}")

    def shaped(self, node: ast.expr) -> tuple[DType, tuple[Expr, ...]]:
        """`f32[n, 4]`."""
        if not isinstance(node, ast.Subscript):
            raise self.source.error(node, f"expected a type such as f32[n, 4], found {ast.unparse(node)}")
        return self.dtype(node.value), self.indices(node.slice)

    def promise(self, node: ast.Call) -> DimFact:
        var, low, high, multiple = self.arguments(node, 4)
        target = self.expr(var)
        if not isinstance(target, Var):
            raise self.source.error(var, f"expected a dim, found {ast.unparse(var)}")
        upper = None if literal_value(high) is None else self.number(high)
        return DimFact(target, self.number(low), upper, self.number(multiple))


def literal_value(node: ast.expr) -> Any:
    """The plain value that is written; ParseError for what is none."""
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ParseError(f"expected a literal, found {ast.unparse(node)}") from error


def keyword_values(call: ast.Call) -> Annotations:
    """The keyword arguments of a call, all literals."""
    return tuple((str(k.arg), literal_value(k.value)) for k in call.keywords)


def call_statement(stmt: ast.stmt) -> tuple[str, ast.Call] | None:
    """A statement that is a call of a name, such as `outputs(1)`."""
    match stmt:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call):
            return name, call
    return None
