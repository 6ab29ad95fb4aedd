"""Registration of passes, pipelines as text, and what is done around each pass (verify, print, time).

A graph pass maps an IRModule to an IRModule; a loop pass maps a PrimFunc to a PrimFunc and, run on a module, goes over all of
its PrimFuncs. Options are keyword-only and are written in the pipeline's text: `fold_constants,fuse_ops(max_ops=64)`.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tc.errors import ParseError, VerifyError
from tc.ir.graph import Function
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule

GraphPass = Callable[..., IRModule]
LoopPass = Callable[..., PrimFunc]
FuncT = TypeVar("FuncT", bound=Callable[..., Any])


@dataclass(frozen=True)
class Pass:
    """A registered pass: its name, its level ("graph" or "loop") and the function itself."""

    name: str
    level: str
    run: Callable[..., Any]


PASSES: dict[str, Pass] = {}


def graph_pass(func: FuncT) -> FuncT:
    """Register a function IRModule -> IRModule under its own name."""
    return _register(func, "graph")


def loop_pass(func: FuncT) -> FuncT:
    """Register a function PrimFunc -> PrimFunc under its own name."""
    return _register(func, "loop")


def _register(func: FuncT, level: str) -> FuncT:
    name = func.__name__
    assert name not in PASSES, f"pass {name} is registered twice"
    PASSES[name] = Pass(name, level, func)
    return func


class Stopwatch:
    """Adds up wall seconds (perf_counter) by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add what the body takes to the seconds of `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: wall seconds (perf_counter), and whether anything changed."""

    name: str
    seconds: float
    changed: bool


@dataclass(frozen=True)
class PassCall:
    """One step of a pipeline: a pass and its options."""

    target: Pass
    options: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options)
        return f"{self.target.name}({options})" if options else self.target.name

    def __call__(self, module: IRModule) -> IRModule:
        options = dict(self.options)
        if self.target.level == "graph":
            return self.target.run(module, **options)
        return map_prim_funcs(module, lambda func: self.target.run(func, **options))


def map_prim_funcs(module: IRModule, rewrite: Callable[[PrimFunc], PrimFunc]) -> IRModule:
    """The module with every PrimFunc rewritten; the same object when none changed."""
    return _map_functions(module, lambda func: rewrite(func) if isinstance(func, PrimFunc) else func)


def map_graph_functions(module: IRModule, rewrite: Callable[[Function], Function]) -> IRModule:
    """The module with every graph function rewritten; the same object when none changed."""
    return _map_functions(module, lambda func: rewrite(func) if isinstance(func, Function) else func)


def _map_functions(module: IRModule, rewrite: Callable[[Function | PrimFunc], Function | PrimFunc]) -> IRModule:
    functions = tuple(map(rewrite, module.functions))
    if all(new is old for new, old in zip(functions, module.functions, strict=True)):
        return module
    return IRModule(functions, module.entry)


def parse_pipeline(text: str) -> tuple[PassCall, ...]:
    """The passes that a text such as `fold_constants,unroll_loops(max_extent=4)` names. ParseError on unknown ones."""
    if not text.strip():
        return ()
    try:
        tree = ast.parse(f"({text},)", mode="eval").body
    except SyntaxError as error:
        raise ParseError(f"pipeline {text!r}: {error.msg}") from None
    assert isinstance(tree, ast.Tuple)
    return tuple(_parse_call(node, text) for node in tree.elts)


def _parse_call(node: ast.expr, text: str) -> PassCall:
    name_node = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name_node, ast.Name):
        raise ParseError(f"pipeline {text!r}: expected a pass name, found {ast.unparse(node)!r}")
    target = PASSES.get(name_node.id)
    if target is None:
        raise ParseError(f"pipeline {text!r}: no pass {name_node.id!r}; known: {', '.join(sorted(PASSES))}")
    if not isinstance(node, ast.Call):
        return PassCall(target, ())
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ParseError(f"pipeline {text!r}: options of {name_node.id} are written name=value")
    options = tuple((str(keyword.arg), ast.literal_eval(keyword.value)) for keyword in node.keywords)
    return PassCall(target, options)


def run_pipeline(
    module: IRModule,
    pipeline: str | Iterable[PassCall],
    *,
    verify: Callable[[IRModule], None] | None = None,
    after_each: Callable[[PassRecord, IRModule], None] | None = None,
) -> IRModule:
    """Run the passes in order. With `verify`, check the result of each and name the pass that broke it."""
    calls = parse_pipeline(pipeline) if isinstance(pipeline, str) else tuple(pipeline)
    for call in calls:
        start = time.perf_counter()
        result = call(module)
        record = PassRecord(str(call), time.perf_counter() - start, result is not module)
        module = result
        if verify is not None and record.changed:
            try:
                verify(module)
            except VerifyError as error:
                raise VerifyError(f"after {call}: {error}") from error
        if after_each is not None:
            after_each(record, module)
    return module
