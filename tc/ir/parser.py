"""Text to IR: the inverse of `printer`. Python's own `ast` reads the text; nothing of it is ever evaluated."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tc.errors import ParseError, Span
from tc.ir import dtype as dtypes
from tc.ir.box_copies import Arrive, AwaitPhase, AwaitProducts, BeginProducts, CommitProducts, CopyBox, SetUpBarrier
from tc.ir.dtype import DType, bool_, f32, i64
from tc.ir.expr import (
    MATH_CALLS,
    TRUE,
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
)
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
from tc.ir.hints import loop_hints
from tc.ir.loop import (
    Alloc,
    Annotations,
    AsyncStore,
    AwaitCopies,
    AxisKind,
    Barrier,
    Block,
    BlockAxis,
    CommitCopies,
    For,
    IntrinsicCall,
    Let,
    LoopKind,
    PrimFunc,
    Stmt,
    Store,
    WarpCall,
    While,
    seq,
)
from tc.ir.loop import If as LoopIf
from tc.ir.module import IRModule
from tc.ir.types import DimFact, FunctionType, TensorType, TupleType, Type

Constants = Mapping[str, np.ndarray]

BOX_STATEMENTS = ("copy_box", "set_up_barrier", "arrive", "await_phase", "begin_products", "commit_products", "await_products")
"""How statements of `box_copies` begin."""


def parse_module(text: str, constants: Constants | None = None, filename: str = "<text>") -> IRModule:
    """The module that a text describes; `constants` holds the arrays it refers to by name. ParseError with the position."""
    source = _Source(text, filename)
    functions: list[Function | PrimFunc] = []
    entry = "main"
    for node in source.tree.body:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id="entry"), args=[ast.Constant(value=str(name))])):
                entry = name
            case ast.FunctionDef(decorator_list=[ast.Name(id="loops")]):
                functions.append(_LoopParser(source).function(node))
            case ast.FunctionDef(decorator_list=[ast.Name(id="graph")]):
                functions.append(_GraphParser(source, {} if constants is None else constants).function(node))
            case _:
                raise source.error(node, "expected a function marked @graph or @loops")
    return IRModule(tuple(functions), entry)


def parse_prim_func(text: str, filename: str = "<text>") -> PrimFunc:
    """The one loop-level function of a text; ParseError when there is another number of functions, or one of a graph."""
    functions = parse_module(text, None, filename).functions
    if len(functions) != 1 or not isinstance(functions[0], PrimFunc):
        raise ParseError(f"{filename}: expected one function marked @loops, found {len(functions)} functions")
    return functions[0]


class _Source:
    """The text, its tree, and its comments by line."""

    def __init__(self, text: str, filename: str) -> None:
        self.lines = text.splitlines()
        self.filename = filename
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as error:
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


class _ExprParser:
    """Scalar expressions. `names` holds the variables and buffers in scope."""

    def __init__(self, source: _Source) -> None:
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
        if name in _DTYPES:
            return self._typed_literal(node, _DTYPES[name])
        if name in MATH_CALLS:
            args = tuple(map(self.expr, node.args))
            if len(args) != MATH_CALLS[name]:
                raise self.source.error(node, f"{name} takes {MATH_CALLS[name]} arguments, found {len(args)}")
            stated = next((self.dtype(k.value) for k in node.keywords if k.arg == "dtype"), None)
            usual = bool_ if name in ("isnan", "isinf") else args[0].dtype if args else i64
            return MathCall(name, args, stated or usual)
        raise self.source.error(node, f"there is no function {name}")

    def _typed_literal(self, node: ast.Call, dtype: DType) -> Const:
        (literal,) = self.arguments(node, 1)
        value = _literal(literal)
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
        value = _literal(node)
        if type(value) is not int:
            raise self.source.error(node, f"expected a whole number, found {ast.unparse(node)}")
        return value

    def dtype(self, node: ast.expr) -> DType:
        if isinstance(node, ast.Name) and node.id in _DTYPES:
            return _DTYPES[node.id]
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
        upper = None if _literal(high) is None else self.number(high)
        return DimFact(target, self.number(low), upper, self.number(multiple))


_DTYPES = {dtype.name: dtype for dtype in dtypes.ALL_DTYPES}


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ParseError(f"expected a literal, found {ast.unparse(node)}") from error


def _keywords(call: ast.Call) -> Annotations:
    return tuple((str(k.arg), _literal(k.value)) for k in call.keywords)


def _note(stmt: ast.stmt) -> tuple[str, ast.Call] | None:
    """A statement that is a call of a name, such as `outputs(1)`."""
    match stmt:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call):
            return name, call
    return None


_AXES = {kind.value: kind for kind in AxisKind}


class _LoopParser(_ExprParser):
    """Loop-level functions."""

    def function(self, node: ast.FunctionDef) -> PrimFunc:
        for arg in node.args.args:
            if isinstance(arg.annotation, ast.Name):
                self.names[arg.arg] = Var(arg.arg, self.dtype(arg.annotation))
        params: list[Buffer | Var] = []
        for arg in node.args.args:
            if arg.arg not in self.names:
                if arg.annotation is None:
                    raise self.source.error(arg, f"parameter {arg.arg} has no type")
                self.names[arg.arg] = self._buffer(arg.arg, arg.annotation, "global")
            params.append(self.names[arg.arg])
        name, outputs, facts = node.name, 1, list[DimFact]()
        attrs: Annotations = ()
        body = list(node.body)
        while body and (note := _note(body[0])) is not None and note[0] in ("named", "outputs", "promise", "notes"):
            match note:
                case ("named", call):
                    name = self.text(*self.arguments(call, 1))
                case ("outputs", call):
                    outputs = self.number(*self.arguments(call, 1))
                case ("promise", call):
                    facts.append(self.promise(call))
                case ("notes", call):
                    attrs = _keywords(call)
            body.pop(0)
        return PrimFunc(name, tuple(params), self.suite(body), outputs, tuple(facts), attrs)

    def _buffer(self, name: str, node: ast.expr, scope: str) -> Buffer:
        strides = None
        if isinstance(node, ast.Call):
            keywords = {k.arg: k.value for k in node.keywords}
            scope = self.text(keywords["scope"]) if "scope" in keywords else scope
            strides = self.indices(keywords["strides"]) if "strides" in keywords else None
            (node,) = self.arguments(node, 1)
        dtype, shape = self.shaped(node)
        return Buffer(name, shape, dtype, scope, strides)

    def suite(self, body: Sequence[ast.stmt]) -> Stmt:
        return seq(*(self.statement(stmt) for stmt in body if not isinstance(stmt, ast.Pass)))

    def statement(self, node: ast.stmt) -> Stmt:
        match node:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id=kind)) as call, body=body):
                return self._for(node, name, kind, call, body)
            case ast.With(items=[item], body=body):
                return self._with(node, item, body)
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                place = self.expr(target)
                assert isinstance(place, Load), "a subscript is a load"
                return Store(place.buffer, place.indices, self.expr(value))
            case ast.If(test=test, body=body, orelse=orelse):
                return LoopIf(self.expr(test), self.suite(body), self.suite(orelse) if orelse else None)
            case ast.While(test=test, body=body):
                return While(self.expr(test), self.suite(body))
            case ast.Expr(value=ast.Call(func=ast.Name(id="barrier"), args=[], keywords=[])):
                return Barrier()
            case ast.Expr(value=ast.Call(func=ast.Name(id="commit_copies"), args=[], keywords=[])):
                return CommitCopies()
            case ast.Expr(value=ast.Call(func=ast.Name(id="await_copies")) as call):
                return AwaitCopies(self.number(*self.arguments(call, 1)))
            case ast.Expr(value=ast.Call(func=ast.Name(id="copy_async"), args=[ast.Subscript() as target, value])):
                place = self.expr(target)
                assert isinstance(place, Load), "a subscript is a load"
                return AsyncStore(place.buffer, place.indices, self.expr(value))
            case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=args, keywords=[])) if name in BOX_STATEMENTS:
                return self._box_statement(node, name, args)
            case ast.Expr(value=ast.Call(func=ast.Name(id="intrinsic"), args=[ast.Constant(value=str(name)), *args])):
                return IntrinsicCall(name, tuple(map(self.expr, args)))
            case ast.Expr(value=ast.Call(func=ast.Name(id="warp"), args=[ast.Constant(value=str(name)), *args])):
                operands = tuple(map(self.expr, args))
                if not operands or not all(isinstance(operand, Load) for operand in operands):
                    raise self.source.error(node, f"{name} of a warp takes elements of buffers")
                return WarpCall(name, operands)  # type: ignore[arg-type]
            case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=args)):
                return IntrinsicCall(name, tuple(map(self.expr, args)))
        raise self.source.error(node, f"not a statement of the loop IR: {ast.unparse(node).splitlines()[0]}")

    def _box_statement(self, node: ast.stmt, name: str, args: list[ast.expr]) -> Stmt:
        match name, args:
            case "copy_box", [ast.Subscript() as to, ast.Subscript() as source, ast.Tuple(elts=box), ast.Subscript() as barrier]:
                target, corner = self._element(to), self._element(source)
                extents = tuple(const(self.number(extent)) for extent in box)
                return CopyBox(target.buffer, target.indices, corner.buffer, corner.indices, extents, self._element(barrier))
            case "set_up_barrier", [ast.Subscript() as barrier, arrivals]:
                return SetUpBarrier(self._element(barrier), self.number(arrivals))
            case "arrive", [ast.Subscript() as barrier, *count] if len(count) < 2:
                return Arrive(self._element(barrier), *map(self.number, count))
            case "await_phase", [ast.Subscript() as barrier, parity]:
                return AwaitPhase(self._element(barrier), self.expr(parity))
            case "begin_products", sums:
                return BeginProducts(tuple(map(self._element, sums)))
            case "commit_products", []:
                return CommitProducts()
            case "await_products", [pending, *sums]:
                return AwaitProducts(self.number(pending), tuple(map(self._element, sums)))
        raise self.source.error(node, f"{name} does not take these arguments")

    def _element(self, node: ast.expr) -> Load:
        place = self.expr(node)
        if not isinstance(place, Load):
            raise self.source.error(node, f"{ast.unparse(node)} is no element of a buffer")
        return place

    def _for(self, node: ast.stmt, name: str, kind: str, call: ast.Call, body: list[ast.stmt]) -> For:
        try:
            chosen = LoopKind(kind)
        except ValueError:
            raise self.source.error(node, f"no kind of loop {kind}") from None
        bound, *others = self.arguments(call, 2 if chosen is LoopKind.BOUND else 1)
        extent, thread = self.expr(bound), "".join(map(self.text, others))
        var = Var(name, extent.dtype)
        self.names[name] = var
        try:
            hints = loop_hints(_keywords(call))
        except ValueError as error:
            raise self.source.error(node, str(error)) from None
        return For(var, extent, self.suite(body), chosen, thread, hints)

    def _with(self, node: ast.With, item: ast.withitem, body: list[ast.stmt]) -> Stmt:
        match item:
            case ast.withitem(context_expr=ast.Call(func=ast.Name(id="block")) as call):
                return self._block(call, body)
            case ast.withitem(
                context_expr=ast.Call(func=ast.Name(id="let"), args=[value]), optional_vars=ast.Name(id=name)
            ):
                made = self.expr(value)
                var = Var(name, made.dtype)
                self.names[name] = var
                return Let(var, made, self.suite(body))
            case ast.withitem(context_expr=ast.Call(func=ast.Name(id="alloc")) as call, optional_vars=ast.Name(id=name)):
                buffer = self._buffer(name, call, "")
                self.names[name] = buffer
                return Alloc(buffer, self.suite(body))
        raise self.source.error(node, f"expected block, alloc or let, found {ast.unparse(item)}")

    def _block(self, call: ast.Call, body: list[ast.stmt]) -> Block:
        axes = tuple(self._axis(keyword) for keyword in call.keywords)
        where: Expr = TRUE
        annotations: Annotations = ()
        init: Stmt | None = None
        rest = list(body)
        while rest:
            note = _note(rest[0])
            if note is not None and note[0] == "where":
                where = self.expr(*self.arguments(note[1], 1))
            elif note is not None and note[0] == "annotate":
                annotations = _keywords(note[1])
            else:
                match rest[0]:
                    case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="init")))], body=inner):
                        init = self.suite(inner)
                    case _:
                        break
            rest.pop(0)
        return Block(self.text(*self.arguments(call, 1)), axes, self.suite(rest), init, where, annotations)

    def _axis(self, keyword: ast.keyword) -> BlockAxis:
        match keyword.value:
            case ast.Call(func=ast.Name(id=kind), args=[extent, value]) if kind in _AXES:
                size, driven = self.expr(extent), self.expr(value)
                var = Var(str(keyword.arg), size.dtype)
                self.names[str(keyword.arg)] = var
                return BlockAxis(var, size, _AXES[kind], driven)
        raise self.source.error(keyword.value, "expected spatial(extent, value), reduction(...) or ordered(...)")


class _GraphParser(_ExprParser):
    """Graph functions. A dim is a variable from where it is first named in a type."""

    def __init__(self, source: _Source, constants: Constants) -> None:
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
            match _note(stmt), stmt:
                case ("named", call), _:
                    name = self.text(*self.arguments(call, 1))
                case ("promise", call), _:
                    facts.append(self.promise(call))
                case ("attrs", call), _:
                    attrs = self._attrs(call.keywords)
                case _, ast.FunctionDef():
                    self.functions[stmt.name] = self.function(stmt)
                case _, ast.Return(value=value):
                    results = self._results(value)
                case _:
                    bindings.append(self._binding(stmt))
        return Function(name, tuple(params), tuple(bindings), results, tuple(facts), attrs)

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
                    _literal(effect) is True,
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
                return self._constant(node, _literal(value), type_)
            case ast.Call(func=ast.Name(id="named"), args=[name, type_]):
                kind = self.type(type_)
                assert isinstance(kind, FunctionType)
                return GlobalRef(_literal(name), kind)
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
            case ast.Name(id=name) if name in _DTYPES:
                return _DTYPES[name]
        return self.expr(node)


