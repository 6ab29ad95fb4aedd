"""Text to loop-level functions."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tc.ir.box_copies import Arrive, AwaitPhase, AwaitProducts, BeginProducts, CommitProducts, CopyBox, SetUpBarrier
from tc.ir.expr import TRUE, Buffer, Expr, Load, Var, const
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
from tc.ir.parse_exprs import ExprParser, call_statement, keyword_values
from tc.ir.types import DimFact

BOX_STATEMENTS = ("copy_box", "set_up_barrier", "arrive", "await_phase", "begin_products", "commit_products", "await_products")
"""How statements of `box_copies` begin."""

_AXES = {kind.value: kind for kind in AxisKind}


class LoopParser(ExprParser):
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
        while body and (note := call_statement(body[0])) is not None and note[0] in ("named", "outputs", "promise", "notes"):
            match note:
                case ("named", call):
                    name = self.text(*self.arguments(call, 1))
                case ("outputs", call):
                    outputs = self.number(*self.arguments(call, 1))
                case ("promise", call):
                    facts.append(self.promise(call))
                case ("notes", call):
                    attrs = keyword_values(call)
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
            case "copy_box", [ast.Subscript() as to, ast.Subscript() as place, ast.Tuple(elts=box), ast.Subscript() as barrier, *seen]:
                target, corner = self._element(to), self._element(place)
                extents = tuple(const(self.number(extent)) for extent in box)
                shape = tuple(map(self.expr, seen[0].elts)) if seen and isinstance(seen[0], ast.Tuple) else corner.buffer.shape
                return CopyBox(target.buffer, target.indices, corner.buffer, shape, corner.indices, extents, self._element(barrier))
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
            hints = loop_hints(keyword_values(call))
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
            note = call_statement(rest[0])
            if note is not None and note[0] == "where":
                where = self.expr(*self.arguments(note[1], 1))
            elif note is not None and note[0] == "annotate":
                annotations = keyword_values(note[1])
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
