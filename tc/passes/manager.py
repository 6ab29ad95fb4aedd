"""Registration of passes, pipelines as text, and what is done around each pass (verify, print, time).

A graph pass maps an IRModule to an IRModule; a loop pass maps a PrimFunc to a PrimFunc and, run on a module, goes over all of
its PrimFuncs. Options are keyword-only and are written in the pipeline's text: `fold_constants,fuse_ops(max_ops=64)`. What a text cannot
hold, or should not repeat, such as the lanes of the target, comes as `settings`: a pass gets those that it has an option for.
"""

from __future__ import annotations

import ast
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tc.errors import Activity, ParseError, TcError, VerifyError, note_activity
from tc.ir.graph import Function
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.printer import print_ir
from tc.ir.verify import verify

FuncT = TypeVar("FuncT", bound=Callable[..., Any])
ArgumentT = TypeVar("ArgumentT")
ProgramT = TypeVar("ProgramT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Pass:
    """A registered pass: its name, its level ("graph" or "loop"), the function itself, and the names of its options."""

    name: str
    level: str
    run: Callable[..., Any]
    options: frozenset[str] = frozenset()


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
    parameters = inspect.signature(func).parameters.values()
    PASSES[name] = Pass(name, level, func, frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY))
    return func


class Stopwatch:
    """Adds up wall seconds (perf_counter) by stage, and how often each ran."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._apart = 0.0

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add what the body takes to the seconds of `name`, but for calls that are `uncounted`."""
        start = time.perf_counter() - self._apart
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self._apart - start
            self.calls[name] = self.calls.get(name, 0) + 1

    def apart(self, name: str, call: Callable[[], ResultT]) -> ResultT:
        """What `call` returns; its seconds are those of `name` alone, whatever else is being timed."""
        start = time.perf_counter()
        try:
            return call()
        finally:
            seconds = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self.calls[name] = self.calls.get(name, 0) + 1
            self._apart += seconds

    def uncounted(self, call: Callable[[ArgumentT], None]) -> Callable[[ArgumentT], None]:
        """The function, with seconds that count for nothing that is being timed: another watch has them."""

        def apart(argument: ArgumentT) -> None:
            start = time.perf_counter()
            call(argument)
            self._apart += time.perf_counter() - start

        return apart


@dataclass(frozen=True)
class Hooks:
    """What is done around each pass.

    `verify`: check what it returns, as an error of the pass. `print_after`: names of passes whose results `show` gets as text.
    `watch`: gets the seconds of each pass, those of all kernels together.
    """

    verify: bool = False
    print_after: frozenset[str] = frozenset()
    show: Callable[[str], None] = print
    watch: Stopwatch | None = None

    def around(
        self, name: str, run: Callable[[ProgramT], ResultT], program: ProgramT, ir: Callable[[ResultT], object] = lambda result: result
    ) -> ResultT:
        """`run(program)`, checked, shown and timed as the step `name`, which an error that comes out of it names.

        ir: the program in what it returns.
        """
        try:
            if self.watch is None:
                result = run(program)
            else:
                with self.watch.time(name):
                    result = run(program)
        except Exception as error:
            note_activity(error, Activity(name, program, run))
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"in {name}")
            if self.verify and not isinstance(error, TcError):
                raise VerifyError(f"{name} failed: {type(error).__name__}: {error}") from error
            raise
        if self.verify or self.print_after:
            self._look(name, program, ir(result))
        return result

    def _look(self, name: str, before: object, after: object) -> None:
        assert isinstance(after, IRModule | PrimFunc)
        if name.partition("(")[0] in self.print_after:
            self.show(f"# after {name}\n{print_ir(after)}")
        if self.verify and after is not before:
            try:
                verify(after)
            except VerifyError as error:
                raise VerifyError(f"after {name}: {error.text}") from error


NO_HOOKS = Hooks()
NO_SETTINGS: Mapping[str, object] = {}


@dataclass(frozen=True)
class PassCall:
    """One step of a pipeline: a pass and its options."""

    target: Pass
    options: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options)
        return f"{self.target.name}({options})" if options else self.target.name

    def __call__(self, program: ProgramT, settings: Mapping[str, object] = NO_SETTINGS) -> ProgramT:
        """Run the pass on a module, or a loop pass on one PrimFunc."""
        options: dict[str, Any] = {name: settings[name] for name in self.target.options if name in settings} if settings else {}
        options.update(self.options)
        if isinstance(program, PrimFunc):
            assert self.target.level == "loop", f"{self.target.name} takes a whole module"
            return self.target.run(program, **options)  # type: ignore[no-any-return]
        assert isinstance(program, IRModule)
        if self.target.level == "graph":
            return self.target.run(program, **options)  # type: ignore[no-any-return]
        return map_prim_funcs(program, lambda func: self.target.run(func, **options))  # type: ignore[return-value]  # ProgramT is IRModule here


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
    """The passes that a text such as `fold_constants,unroll_loops(max_extent=4)` names; it may go over lines, with comments.

    ParseError on unknown ones.
    """
    try:
        tree = ast.parse(f"[{text}\n]", mode="eval").body
    except SyntaxError as error:
        raise ParseError(f"pipeline {text!r}: {error.msg}") from None
    if not isinstance(tree, ast.List):
        raise ParseError(f"pipeline {text!r}: expected passes with commas between them")
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
    unknown = [str(keyword.arg) for keyword in node.keywords if keyword.arg not in target.options]
    if unknown:
        known = ", ".join(sorted(target.options)) or "none"
        raise ParseError(f"pipeline {text!r}: {target.name} has no option {unknown[0]!r}; it has: {known}")
    return PassCall(target, tuple((str(keyword.arg), _parse_value(keyword.value, text)) for keyword in node.keywords))


def _parse_value(node: ast.expr, text: str) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ParseError(f"pipeline {text!r}: {ast.unparse(node)} is no literal") from None


def run_pipeline(
    program: ProgramT,
    pipeline: str | Iterable[PassCall],
    settings: Mapping[str, object] = NO_SETTINGS,
    hooks: Hooks = NO_HOOKS,
) -> ProgramT:
    """Run the passes in order on a module, or loop passes on one PrimFunc."""
    calls = parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    for call in calls:
        program = hooks.around(str(call), partial(call, settings=settings), program)
    return program
