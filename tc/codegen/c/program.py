"""Execution plans as C: a whole model as files that need nothing but a C compiler, POSIX threads and the mathematical library.

    model.h      what a program that uses it sees
    model.c      the plan: sizes, checks, and the launches of kernels in their order
    weights.bin  the constants, one behind the other, mapped into memory when the model is opened
    runtime.c    arena, messages, a small pool of threads; main.c: run it on files

`model.c` does what `tc.runtime.entry` writes as LLVM IR, step by step: dims are bound from the inputs' sizes, promises are checked, then
the steps run. Sizes that 64 bits do not hold are refused. What runs in Python cannot be exported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tc.codegen.backend import ExportedProgram
from tc.codegen.c.dialect import C
from tc.codegen.c.expressions import ExpressionWriter
from tc.codegen.c.helpers import Helpers
from tc.codegen.c.host import HostWriter, unit_text
from tc.codegen.c.scalars import CValue
from tc.errors import UnsupportedError
from tc.ir.access import WORDS_PER_CHECK
from tc.ir.arith import Facts, simplify
from tc.ir.dtype import i64, pack
from tc.ir.expr import Add, BinaryExpr, Expr, Mul, Var, const
from tc.ir.graph import tensor_type_of
from tc.ir.loop import PrimFunc
from tc.ir.node import walk
from tc.ir.plan import (
    Allocate,
    BindDims,
    Branch,
    CallOut,
    Check,
    Copy,
    Exchange,
    ExecutionPlan,
    Extend,
    Launch,
    PlanStep,
    Repeat,
    Slot,
    SlotPlace,
    StoreIndex,
    all_steps,
)
from tc.ir.plan_checks import (
    NO_ARENA,
    NO_RESULT,
    checks_at_start,
    countable,
    located,
    negative_dim,
    negative_size,
    no_memory_for,
    promises,
    wrong_size,
)
from tc.ir.types import DimFact

FILES = Path(__file__).parent / "files"
_ALIGNMENT, _HEAD_BYTES = 64, 64


def export_program(plan: ExecutionPlan, kernels: Mapping[str, tuple[str, PrimFunc]]) -> ExportedProgram:
    """A plan as a program in C. `kernels`: symbol and finished loops of each, by name. UnsupportedError for what runs in Python."""
    _refuse_python(plan.steps)
    weights, offsets = _weights(plan)
    mark = int.from_bytes(weights[:8], "little")
    writer = _ProgramWriter(plan, kernels, offsets)
    files: dict[str, str | bytes] = {name: (FILES / name).read_text(encoding="utf-8") for name in ("runtime.h", "runtime.c", "main.c")}
    files |= {"model.h": _header(plan), "model.c": writer.text(len(weights), mark), "weights.bin": weights}
    sources = ("model.c", "runtime.c", "main.c")
    compile_ = "${CC:-cc} -std=gnu11 -O2 -fPIC $CFLAGS -c " + " ".join(sources)
    objects = " ".join(f"{name.removesuffix('.c')}.o" for name in sources)
    link = f"${{CC:-cc}} $CFLAGS {objects} $OBJECTS -o model -lm -lpthread"
    return ExportedProgram(files, (compile_, link))


def _refuse_python(steps: Sequence[PlanStep]) -> None:
    found = [step for step in all_steps(steps) if isinstance(step, CallOut) and not step.symbol.startswith("c:")]
    names = [f"{step.span}: {step.symbol}" if step.span is not None else step.symbol for step in found]
    if names:
        listed = "\n  ".join(dict.fromkeys(names))
        raise UnsupportedError(f"these nodes run in Python, so there is no C for them:\n  {listed}")


def _weights(plan: ExecutionPlan) -> tuple[bytes, list[int]]:
    """The file of constants, and where each begins behind the head, whose first word tells it from others."""
    parts, offsets, at = [], [], 0
    for constant in plan.constants:
        data = pack(constant.value).tobytes()
        offsets.append(at)
        parts.append(data + bytes(-len(data) % _ALIGNMENT))
        at += len(parts[-1])
    body = b"".join(parts)
    head = hashlib.sha256(body).digest()[:8]
    return head + bytes(_HEAD_BYTES - len(head)) + body, offsets


def _quoted(text: str) -> str:
    """A literal of C."""
    return json.dumps(text, ensure_ascii=True).replace("\\u", "\\\\u").replace("?", "\\?")


def _header(plan: ExecutionPlan) -> str:
    ranks = [tensor_type_of(var).rank for var in (*plan.inputs, *plan.outputs)]
    groups = (("input", plan.inputs), ("output", plan.outputs))
    lines = [f"   {kind} {number}: {var.name} {var.type}" for kind, group in groups for number, var in enumerate(group)]
    what = "\n".join(line.replace("*/", "* /") for line in lines)
    return _HEADER.format(what=what, rank=max([*ranks, 1]), inputs=len(plan.inputs), outputs=len(plan.outputs))


_HEADER = """\
/* A model, as C.

{what}

   A model is used by one thread at a time. Data lie in order, rows first, at addresses that are multiples of their elements' size. */

#ifndef MODEL_H
#define MODEL_H

#include <stdint.h>

enum {{ MODEL_INPUTS = {inputs}, MODEL_OUTPUTS = {outputs}, MODEL_RANK = {rank} }};

typedef struct model model;
typedef struct {{ void *data; int64_t dims[MODEL_RANK]; }} model_tensor;
typedef struct {{ const char *name, *dtype; int rank, bits; }} model_value;

extern const model_value model_inputs[], model_outputs[];

/* A model whose weights lie in this file, for so many threads; NULL if the file cannot be read, or is another one. */
model *model_open(const char *weights, int threads);
void model_close(model *m);

/* Compute the outputs; 0, or model_message says what went wrong. Sizes of outputs are set. An output whose data is NULL, and one whose
   size the data decide, gets memory that the caller frees. */
int model_run(model *m, const model_tensor *inputs, model_tensor *outputs);
const char *model_message(const model *m);

#endif
"""


class _DimWriter(ExpressionWriter):
    """Expressions over dims; while `is_checked`, sums and products that 64 bits do not hold set `overflow`."""

    is_checked = False

    def _index_arithmetic(self, expr: BinaryExpr, a: CValue, b: CValue) -> CValue | None:
        if not self.is_checked or not isinstance(expr, (Add, Mul)):
            return super()._index_arithmetic(expr, a, b)
        name = "add" if isinstance(expr, Add) else "mul"
        lines = (
            f"static inline i64 tc_checked_{name}(i32 *overflow, i64 a, i64 b) {{",
            "    i64 r;",
            f"    *overflow |= __builtin_{name}_overflow(a, b, &r);",
            "    return r;",
            "}",
        )
        return CValue(f"{self.helpers.need(f'tc_checked_{name}', lambda: chr(10).join(lines))}(&overflow, {a}, {b})", i64)


class _ProgramWriter:
    """Writes model.c."""

    def __init__(self, plan: ExecutionPlan, kernels: Mapping[str, tuple[str, PrimFunc]], offsets: Sequence[int]) -> None:
        self.plan = plan
        self.kernels = kernels
        self.offsets = offsets
        self.helpers = Helpers(C)
        self.w = _DimWriter(self.helpers, Facts.of(plan.facts), strict=True)
        self.dims: dict[Var, str] = {}
        self.externs: list[str] = []
        self.extends = any(isinstance(step, Extend) for step in all_steps(plan.steps))

    def text(self, weights_bytes: int, mark: int) -> str:
        """The whole file."""
        with self.w.captured() as body:
            self._run()
        dims = [f"    i64 {name} = 0;" for name in self.dims.values()]
        run = ["int model_run(model *m, const model_tensor *inputs, model_tensor *outputs) {", *dims, "    i32 overflow = 0;"]
        if self.plan.num_dynamic:
            run.append(f"    void *dynamic[{self.plan.num_dynamic}] = {{0}};")
        if self.extends:
            run.append(f"    i64 room[{self.plan.num_dynamic}] = {{0}};")
        run += ["    m->message[0] = 0;", *body]
        run += ["    (void)inputs, (void)outputs, (void)overflow;", "    return 0;"]
        if self.plan.num_dynamic:
            run += ["failed:", f"    for (i32 k = 0; k < {self.plan.num_dynamic}; k++) free(dynamic[k]);", "    return 1;"]
        lines = ["\n".join(f"#include {name}" for name in _INCLUDED), *self._prototypes(), *self._tables()]
        ways = _WAYS.format(size=weights_bytes, mark=f"{mark:#x}")
        return unit_text(self.helpers, [ways, "\n".join((*run, "}"))], lines)

    def _prototypes(self) -> list[str]:
        used = dict.fromkeys(step.kernel for step in all_steps(self.plan.steps) if isinstance(step, Launch))
        kernels = [self.kernels[name] for name in used]
        found = [HostWriter(Helpers(C), func, symbol).prototype() for symbol, func in kernels]
        return ["\n".join((*found, *dict.fromkeys(self.externs)))]

    def _tables(self) -> list[str]:
        found = []
        for table, group in (("model_inputs", self.plan.inputs), ("model_outputs", self.plan.outputs)):
            types = [(var.name, tensor_type_of(var)) for var in group]
            rows = [f"    {{{_quoted(name)}, {_quoted(t.dtype.name)}, {t.rank}, {t.dtype.bits}}}," for name, t in types]
            found.append("\n".join((f"const model_value {table}[] = {{", *rows, '    {"", "", 0, 0}', "};")))
        return found

    # -- sizes

    def _run(self) -> None:
        self._bind_inputs()
        first, second = checks_at_start(self.plan, self._is_bound)
        for step in first:
            self._check(step)
        for fact in self.plan.facts:
            if fact.var in self.dims:
                self._check_fact(fact)
        for step in second:
            self._check(step)
        self._prepare_outputs()
        self._sized("arena_bytes", self.plan.arena_bytes, NO_ARENA)
        with self.w.block("if (tc_reserve(m, arena_bytes)) {"):
            self._fail('"out of memory: an arena of %lld bytes", (long long)arena_bytes')
        self._steps([step for step in self.plan.steps if step not in (*first, *second)])
        for number, slot in enumerate(self.plan.output_slots):
            self._finish_output(number, slot)
        kept = [slot.index for slot in self.plan.output_slots if slot.place is SlotPlace.DYNAMIC]
        for index in range(self.plan.num_dynamic):
            if index not in kept:
                self.w.line(f"free(dynamic[{index}]);")

    def _is_bound(self, expr: Expr) -> bool:
        return all(node in self.dims for node in walk(expr) if isinstance(node, Var))

    def _dim(self, dim: Var) -> str:
        """The variable of a dim, which is known from here on."""
        if dim not in self.dims:
            name = self.dims[dim] = self.w.scope.names.new(f"dim_{dim.name}")
            self.w.scope.values[dim] = CValue(name, i64)
        return self.dims[dim]

    def _bind_inputs(self) -> None:
        equations: list[tuple[int, int, Expr]] = []
        for number, var in enumerate(self.plan.inputs):
            for axis, dim in enumerate(tensor_type_of(var).shape):
                if isinstance(dim, Var) and dim not in self.dims:
                    self.w.line(f"{self._dim(dim)} = inputs[{number}].dims[{axis}];")
                    self._fail_if(f"{self.dims[dim]} < 0", negative_size(var.name, axis), self.dims[dim])
                else:
                    equations.append((number, axis, dim))
        for number, axis, dim in equations:
            found = f"inputs[{number}].dims[{axis}]"
            message = wrong_size(self.plan.inputs[number].name, axis, dim)
            self._fail_if(f"{found} != {self.w.value(dim).at(10)}", message, found)

    def _check_fact(self, fact: DimFact) -> None:
        name = self.dims[fact.var]
        for promise in promises(fact):
            broken = f"{name} % {promise.bound} != 0" if promise.relation == "%" else f"!({name} {promise.relation} {promise.bound})"
            self._fail_if(broken, promise.message, name)

    def _check(self, step: Check) -> None:
        self.w.is_checked = True
        holds = self.w.value(step.condition)
        self.w.is_checked = False
        message = located(step, step.message)
        overflow = " || overflow" if self._watched(holds) else ""
        self._fail_if(f"!{holds.at(15)}{overflow}", message + (" (the exported program takes it for granted)" if step.assumed else ""))

    def _watched(self, value: CValue) -> bool:
        """Whether computing a value may set `overflow`, which is cleared now."""
        found = "&overflow" in value.text
        if found:
            self.w.line("overflow = 0;")
        return found

    def _sized(self, name: str, size_bytes: Expr, message: str) -> None:
        """A new variable with the value of a size."""
        simple = countable(size_bytes, self.w.facts)
        if simple is None:
            self._fail_if("1", message)
        self.w.is_checked = True
        value = self.w.value(const(0) if simple is None else simple)
        self.w.is_checked = False
        is_watched = self._watched(value)
        self.w.line(f"const i64 {name} = {value};")
        if is_watched:
            self._fail_if("overflow", message)

    def _prepare_outputs(self) -> None:
        for number, (var, slot) in enumerate(zip(self.plan.outputs, self.plan.output_slots, strict=True)):
            type_ = tensor_type_of(var)
            for axis, dim in enumerate(type_.shape):
                if self._is_bound(dim):
                    self.w.line(f"outputs[{number}].dims[{axis}] = {self.w.value(dim)};")
            if slot.place is SlotPlace.OUTPUT:
                self._sized(f"output{number}_bytes", type_.size_bytes, no_memory_for(var))
                with self.w.block(f"if (outputs[{number}].data == NULL) {{"):
                    self.w.line(f"outputs[{number}].data = tc_allocate(output{number}_bytes);")
                    self._fail_if(f"outputs[{number}].data == NULL", "out of memory: a result of {value} bytes", f"output{number}_bytes")

    def _finish_output(self, number: int, slot: Slot) -> None:
        if slot.place is SlotPlace.DYNAMIC:
            self.w.line(f"outputs[{number}].data = dynamic[{slot.index}];")
            for axis, dim in enumerate(slot.type.shape):
                self.w.line(f"outputs[{number}].dims[{axis}] = {self.w.value(dim)};")

    # -- failures

    def _fail_if(self, condition: str, message: str, *values: str) -> None:
        with self.w.block(f"if ({condition}) {{"):
            self._fail(", ".join((_format(message), *(f"(long long){value}" for value in values))))

    def _fail(self, arguments: str) -> None:
        if self.plan.num_dynamic:
            self.w.line(f"tc_fail(m, {arguments});")
            self.w.line("goto failed;")
        else:
            self.w.line(f"return tc_fail(m, {arguments});")

    # -- steps

    def _steps(self, steps: Sequence[PlanStep]) -> None:
        for step in steps:
            self._step(step)

    def _step(self, step: PlanStep) -> None:
        line = self.w.line
        match step:
            case Launch():
                self._launch(step)
            case Check():
                self._check(step)
            case Copy(source=source, target=target, size_bytes=size):
                line(f"memcpy({self._pointer(target)}, {self._pointer(source)}, (size_t)({self.w.value(simplify(size, self.w.facts))}));")
            case StoreIndex(slot=slot, value=value):
                line(f"*(i64 *){self._pointer(slot)} = {self.w.value(value)};")
            case BindDims(slot=slot, dims=dims):
                for number, dim in enumerate(dims):
                    line(f"{self._dim(dim)} = ((const {slot.type.dtype.name} *){self._pointer(slot)})[{number}];")
                    message = located(step, negative_dim(dim))
                    self._fail_if(f"{self.dims[dim]} < 0", message, self.dims[dim])
            case Allocate(index=index, size_bytes=size):
                self._allocate(step, index, size)
            case Exchange(first=first, second=second):
                for kind, array in (("void *", "dynamic"), *([("i64 ", "room")] if self.extends else [])):
                    with self.w.block("{"):
                        line(f"{kind}before = {array}[{first}];")
                        line(f"{array}[{first}] = {array}[{second}];")
                        line(f"{array}[{second}] = before;")
            case Extend(index=index, size_bytes=size, kept_bytes=kept):
                self._extend(step, index, size, kept)
            case Branch(condition=condition, then_steps=first, else_steps=second):
                with self.w.block(f"if ({self._flag(condition)}) {{", "} else {"):
                    self._steps(first)
                self.w.depth += 1
                self._steps(second)
                self.w.depth -= 1
                line("}")
            case Repeat():
                self._repeat(step)
            case CallOut():
                self._call_out(step)
            case _:
                raise AssertionError(f"no C for the step {type(step).__name__}")

    def _flag(self, slot: Slot) -> str:
        return f"*(const u8 *){self._pointer(slot)} != 0"

    def _pointer(self, slot: Slot) -> str:
        """The address of a slot, as a `void *`."""
        match slot.place:
            case SlotPlace.INPUT:
                base = f"inputs[{slot.index}].data"
            case SlotPlace.OUTPUT:
                base = f"outputs[{slot.index}].data"
            case SlotPlace.CONSTANT:
                base = f"(void *)(m->weights + {self.offsets[slot.index]})"
            case SlotPlace.ARENA:
                base = "m->arena"
            case SlotPlace.DYNAMIC:
                base = f"dynamic[{slot.index}]"
        offset = self.w.value(simplify(slot.offset, self.w.facts))
        if offset.text == "0":
            return base if slot.place is not SlotPlace.ARENA else f"(void *){base}"
        return f"(void *)((unsigned char *){base} + {offset.at(13)})"

    def _launch(self, step: Launch) -> None:
        pointers = [self._pointer(slot) for slot in step.slots]
        numbers = [str(self.w.value(dim)) for dim in step.dims]
        if step.span is not None:
            self.w.line(f"/* {str(step.span).replace('*/', '* /')} */")
        self.w.line(f"{self.kernels[step.kernel][0]}({', '.join((*pointers, *numbers, 'm->threads'))});")
        if step.checks:
            with self.w.block("{"):
                self.w.line(f"const i64 *report = {pointers[len(step.slots) - 1]};")
                for row, message in enumerate(step.checks):
                    at = WORDS_PER_CHECK * row
                    self._fail_if(f"report[{at}] != 0", message, *_found(message, at))

    def _allocate(self, step: Allocate, index: int, size_bytes: Expr) -> None:
        with self.w.block("{"):
            self._sized("size_bytes", size_bytes, located(step, NO_RESULT))
            self.w.line(f"free(dynamic[{index}]);")
            self.w.line(f"dynamic[{index}] = tc_allocate(size_bytes);")
            self._require_block(f"dynamic[{index}]", "size_bytes")
            if self.extends:
                self.w.line(f"room[{index}] = size_bytes;")

    def _require_block(self, block: str, size: str) -> None:
        self._fail_if(f"{block} == NULL", "out of memory: a result of {value} bytes", size)

    def _extend(self, step: Extend, index: int, size_bytes: Expr, kept_bytes: Expr) -> None:
        line = self.w.line
        with self.w.block("{"):
            self._sized("size_bytes", size_bytes, located(step, NO_RESULT))
            with self.w.block(f"if (room[{index}] < size_bytes) {{"):
                line(f"const i64 kept = {self.w.value(simplify(kept_bytes, self.w.facts))};")
                line("const i64 wanted = kept + kept / 2 > size_bytes ? kept + kept / 2 : size_bytes;")
                line("void *block = tc_allocate(wanted);")
                self._require_block("block", "wanted")
                line(f"memcpy(block, dynamic[{index}], (size_t)kept);")
                line(f"free(dynamic[{index}]);")
                line(f"dynamic[{index}] = block;")
                line(f"room[{index}] = wanted;")

    def _repeat(self, step: Repeat) -> None:
        name = self._dim(step.index)
        conditions = []
        if step.trip_count is not None:
            conditions.append(f"{name} < {self.w.value(simplify(step.trip_count, self.w.facts)).at(11)}")
        if step.condition is not None:
            conditions.append(self._flag(step.condition))
        with self.w.block(f"for ({name} = 0; {' && '.join(conditions)}; {name}++) {{"):
            self._steps(step.body)

    def _call_out(self, step: CallOut) -> None:
        name = step.symbol.removeprefix("c:")
        pointers = [self._pointer(slot) for slot in (*step.args, *step.results) if slot is not None]
        numbers = [str(self.w.value(dim)) for dim in step.dims]
        self.externs.append(f"void {name}({', '.join(['void *'] * len(pointers) + ['i64'] * len(numbers)) or 'void'});")
        self.w.line(f"{name}({', '.join((*pointers, *numbers))});")


_INCLUDED = ('"model.h"', '"runtime.h"', "<stdlib.h>", "<string.h>")

_WAYS = """\
model *model_open(const char *weights, int threads) {{
    return tc_open(weights, {size}, {mark}ULL, threads);
}}

void model_close(model *m) {{
    tc_close(m);
}}

const char *model_message(const model *m) {{
    return m->message;
}}"""


_PLACES = ("{value}", "{index}", "{size}")


def _format(message: str) -> str:
    """A message as a format of printf."""
    text = message.replace("%", "%%")
    for place in _PLACES:
        text = text.replace(place, "%lld")
    return _quoted(text)


def _found(message: str, at: int) -> list[str]:
    """What stands in a message of a failed check, in its order: words of the report."""
    places = sorted((message.find(place), word) for place, word in (("{index}", at + 1), ("{size}", at + 2)) if place in message)
    return [f"report[{word}]" for _, word in places]

