"""Text to IR: the inverse of `printer`. Python's own `ast` reads the text; nothing of it is ever evaluated."""

from __future__ import annotations

import ast

from tc.errors import ParseError
from tc.ir.graph import Function
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.parse_exprs import Source
from tc.ir.parse_graph import Constants, GraphParser
from tc.ir.parse_loops import LoopParser


def parse_module(text: str, constants: Constants | None = None, filename: str = "<text>") -> IRModule:
    """The module that a text describes; `constants` holds the arrays it refers to by name. ParseError with the position."""
    source = Source(text, filename)
    functions: list[Function | PrimFunc] = []
    entry = "main"
    for node in source.tree.body:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id="entry"), args=[ast.Constant(value=str(name))])):
                entry = name
            case ast.FunctionDef(decorator_list=[ast.Name(id="loops")]):
                functions.append(LoopParser(source).function(node))
            case ast.FunctionDef(decorator_list=[ast.Name(id="graph")]):
                functions.append(GraphParser(source, {} if constants is None else constants).function(node))
            case _:
                raise source.error(node, "expected a function marked @graph or @loops")
    return IRModule(tuple(functions), entry)


def parse_prim_func(text: str, filename: str = "<text>") -> PrimFunc:
    """The one loop-level function of a text; ParseError when there is another number of functions, or one of a graph."""
    functions = parse_module(text, None, filename).functions
    if len(functions) != 1 or not isinstance(functions[0], PrimFunc):
        raise ParseError(f"{filename}: expected one function marked @loops, found {len(functions)} functions")
    return functions[0]
