"""Kernels as C functions for a host: void symbol(pointer per buffer, i64 per scalar, i64 max_threads).

A parallel loop becomes a function of its own, which `tc_parallel_for` calls on ranges of iterations; what it uses from outside travels in
a struct. The same program gives the same bits on any number of threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tc.codegen.c.dialect import C, Dialect
from tc.codegen.c.expressions import Scope
from tc.codegen.c.helpers import Helpers, without_unused
from tc.codegen.c.scalars import PRODUCT, CValue
from tc.codegen.c.statements import StatementWriter
from tc.codegen.loops import parallel_nest
from tc.ir.arith import Facts
from tc.ir.dtype import i64
from tc.ir.expr import Buffer, Const, Var
from tc.ir.loop import For, PrimFunc, in_place_inputs, is_strict
from tc.ir.node import binders
from tc.passes.loop.intrinsics import select_intrinsics

PARALLEL_FOR = "void tc_parallel_for(void (*body)(void *, i64, i64, i64), void *context, i64 count, i64 grain, i64 max_threads);"

MARK = "/* C"
"""What the text of a unit begins with."""


class CUnit:
    """Functions for one file of C, with the helpers that they share."""

    def __init__(self, dialect: Dialect = C) -> None:
        self.dialect = dialect
        self.helpers = Helpers(dialect)
        self.functions: list[str] = []
        self.symbols: list[str] = []

    def add(self, func: PrimFunc, symbol: str, comment: str = "") -> None:
        """One more kernel, under this symbol. CodegenError for what has no code."""
        writer = HostWriter(self.helpers, select_intrinsics(func, ()), symbol)
        writer.write_entry(comment)
        self.functions += writer.functions
        self.symbols.append(symbol)

    def text(self, lines: Iterable[str] = ()) -> str:
        """The whole file; `lines` come behind the types."""
        return unit_text(self.helpers, self.functions, (*lines,))


def unit_text(helpers: Helpers, functions: Sequence[str], lines: Sequence[str] = ()) -> str:
    """A file: a preamble, types, helpers, functions."""
    dialect = helpers.dialect
    helper_text = helpers.text((*lines, *functions))
    body = "\n\n".join(filter(None, (*lines, helper_text, *functions)))
    used = [name for name in dialect.types if re.search(rf"\b{name}\b", body)]
    types = "\n".join(f"typedef {dialect.types[name]} {name};" for name in used)
    options = f"compiled with {' '.join(dialect.options)}"
    head = f"{MARK} kernels, {options} */" if dialect.is_host else f"/* {options} */"
    return "\n\n".join(filter(None, (head, "\n".join(dialect.preamble), types, body))) + "\n"


def emit_host(func: PrimFunc, symbol: str, comment: str = "") -> str:
    """One kernel as a file of C."""
    unit = CUnit()
    unit.add(func, symbol, comment)
    return unit.text()


class HostWriter(StatementWriter):
    """Writes one kernel, and the functions of its parallel loops before it."""

    def __init__(self, helpers: Helpers, func: PrimFunc, symbol: str) -> None:
        super().__init__(helpers, Facts.of(func.facts), is_strict(func))
        self.func = func
        self.symbol = symbol
        self.functions: list[str] = []
        self._parallel_count = 0

    def write_entry(self, comment: str) -> None:
        header = self._header()
        with self.captured() as lines:
            self.statement(self.func.body)
        head = f"/* {(comment or self.func.name).replace('*/', '* /')} */\n"
        self.functions.append(f"{head}{header};\n{header} {{\n" + "\n".join((*without_unused(lines), "}")))

    def prototype(self) -> str:
        """The declaration of the kernel."""
        return f"{self._header()};"

    def _header(self) -> str:
        params = [self._parameter(number, param) for number, param in enumerate(self.func.params)]
        return f"void {self.symbol}({', '.join((*params, 'i64 max_threads'))})"

    def _parameter(self, number: int, param: Buffer | Var) -> str:
        name = self.scope.names.new(param.name)
        if isinstance(param, Var):
            self.scope.values[param] = CValue(name, i64)
            return f"i64 {name}"
        self.scope.buffers[param] = name
        shared = in_place_inputs(self.func)
        is_alone = number not in shared and not (shared and number == len(self.func.inputs))
        restrict = f"{self.dialect.restrict} " if is_alone else ""
        return f"{self.pointer_type(param, number < len(self.func.inputs))}{restrict}{name}"

    def parallel(self, loop: For) -> None:
        nest = parallel_nest(loop)
        extents = [self.value(each.extent) for each in nest]
        used = binders(loop.body)
        values = {var: value for var, value in self.scope.values.items() if var in used}
        kept = {var: value for var, value in values.items() if not value.text.isidentifier()}
        carried = [(value.text, self.vectors.type_of(value)) for var, value in values.items() if var not in kept]
        constness = {buffer: number < len(self.func.inputs) for number, buffer in enumerate(self.func.buffers)}
        buffers = {buffer: name for buffer, name in self.scope.buffers.items() if buffer in used}
        carried += [(name, self.pointer_type(buffer, constness.get(buffer, False)).rstrip()) for buffer, name in buffers.items()]
        sizes: list[str] = []
        for number, (each, extent) in enumerate(zip(nest, extents, strict=True)):
            is_constant = isinstance(each.extent, Const)
            sizes.append(str(extent) if is_constant else self._carried_extent(carried, number, extent))
        name = f"{self.symbol}_loop{self._parallel_count}"
        self._parallel_count += 1
        self.helpers.need("tc_parallel_for", lambda: PARALLEL_FOR)
        self._write_loop(name, nest, sizes, carried)
        arguments = ", ".join(target for target, _ in carried)
        count = " * ".join(extent.at(PRODUCT + (k > 0)) for k, extent in enumerate(extents))
        with self.block("{"):
            self.line(f"struct {name} context = {{{arguments or '0'}}};")
            self.line(f"tc_parallel_for({name}, &context, {count}, {loop.hints.grain}, max_threads);")

    def _carried_extent(self, carried: list[tuple[str, str]], number: int, extent: CValue) -> str:
        held = self.declare("extent", extent)
        carried.append((held.text, "i64"))
        return held.text

    def _write_loop(self, name: str, nest: Sequence[For], sizes: Sequence[str], carried: Sequence[tuple[str, str]]) -> None:
        """The function that runs some iterations of a nest, numbered as those of one loop."""
        outer, depth = self.scope, self.depth
        self.scope = Scope(outer.names.copy(), dict(outer.values), dict(outer.buffers))
        self.depth, self.in_parallel = 1, True
        with self.captured() as lines:
            for target, kind in carried:
                self.line(f"{kind}{target} = context->{target};" if kind.endswith("*") else f"const {kind} {target} = context->{target};")
            self._numbered(nest, sizes)
        self.scope, self.depth, self.in_parallel = outer, depth, False
        fields = [f"    {kind}{'' if kind.endswith('*') else ' '}{target};" for target, kind in carried] or ["    i64 nothing;"]
        receive = [f"    const struct {name} *const context = argument;"] if carried else []
        head = f"static void {name}(void *argument, i64 begin, i64 end, i64 thread) {{"
        self.functions.append("\n".join((f"struct {name} {{", *fields, "};", "", head, *receive, *without_unused(lines), "}")))

    def _numbered(self, nest: Sequence[For], sizes: Sequence[str]) -> None:
        """Iterations [begin, end); each run of the innermost loop is a loop of its own."""
        if len(nest) == 1:
            self.counted(nest[0], "begin", "end")
            return
        outer = self.facts
        with self.block("for (i64 number = begin; number < end;) {"):
            self.line(f"const i64 first = number % {_factor(sizes[-1])};")
            self.line(f"const i64 last = {_factor(sizes[-1])} - first < end - number ? {sizes[-1]} : first + (end - number);")
            rest = f"number / {_factor(sizes[-1])}"
            for level in range(len(nest) - 2, -1, -1):
                var = nest[level].var
                name = self.scope.names.new(var.name)
                self.scope.values[var] = CValue(name, i64)
                self.line(f"const i64 {name} = {rest}{f' % {_factor(sizes[level])}' if level else ''};")
                rest = f"{rest} / {_factor(sizes[level])}"
                self.facts = self.facts.with_range(var, nest[level].extent)
            self.counted(nest[-1], "first", "last")
            self.line("number += last - first;")
        self.facts = outer


def _factor(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
