"""Execution plan to native code: one function that runs the whole graph, one that prepares a call, and the short way into the first.

Both take one pointer to a *frame* of 64-bit words that the caller fills (`FrameLayout`). `prepare` binds dims from the
inputs' shapes, checks every promise, and writes the output shapes and the arena size into the frame; `run` does the work.
They return 0, or the number of the check that failed plus 1, or a negative number when a callback raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from tc.codegen.llvm.builder import FunctionBuilder, Module, Value, int_value
from tc.codegen.llvm.expressions import ScalarEmitter
from tc.errors import CodegenError
from tc.ir.access import WORDS_PER_CHECK
from tc.ir.arith import Facts, prove, simplify
from tc.ir.expr import Const, Expr, Var
from tc.ir.plan import (
    ON_HOST,
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
    no_memory_for,
    promises,
    wrong_size,
)
from tc.ir.types import DimFact, TensorType
from tc.ir.uses import variables
from tc.runtime.entry_memory import EntryMemory
from tc.runtime.faults import COLLECT, has_checks
from tc.runtime.float_mode import wrapped_in_usual_mode
from tc.runtime.frame_layout import (
    ARENA,
    ARENA_BYTES,
    CALLBACK,
    CONSTANTS,
    DETAIL,
    FAULTS,
    NO_MEMORY,
    SIZE,
    THREADS,
    FrameLayout,
    frame_layout,
)
from tc.runtime.short_call import DECLARED, short_call

SHORT = 1 << 20
"""Iterations that take no time worth asking before."""


@dataclass(frozen=True)
class FailedCheck:
    """What to tell the user when a check fails. `input` and `axis` name the offending dim, if it is one.

    `assumed`: the call is not wrong; it needs the program that was made without the condition.
    `dims` are the names of the dims that the condition speaks of, each with its word among the frame's dims, where its value is then.
    """

    message: str
    input: int = -1
    axis: int = -1
    dims: tuple[tuple[str, int], ...] = ()
    assumed: bool = False


@dataclass(frozen=True)
class EntrySource:
    """The LLVM IR of prepare and run, the checks by number, and the callbacks by number.

    `timed` are the launches of an entry for profiling: word `layout.words + k` of the frame adds up the nanoseconds of launch k.
    `reports`: a record of faults (see `tc.runtime.faults`) is to be at the address in word FAULTS. `undecided`: see `what_data_decide`.
    """

    ir_text: str
    checks: tuple[FailedCheck, ...]
    calls: tuple[CallOut, ...]
    layout: FrameLayout
    timed: tuple[Launch, ...] = ()
    reports: bool = False
    undecided: str = ""


def emit_entry(
    plan: ExecutionPlan, kernels: dict[str, str], num_outputs: Mapping[str, int], symbol: str, profile: bool = False, calls: str = ""
) -> EntrySource:
    """Emit `<symbol>_prepare`, `<symbol>_run` and, on the host, `<symbol>_call`.

    `kernels` maps kernel names to linker symbols, on a device `COLLECT` of a plan with checks, too; `num_outputs`: how many of the slots
    of a launch, the last ones, its kernel writes; `calls`: see `Backend`.
    """
    emitter = _EntryEmitter(plan, kernels, num_outputs, profile, calls)
    emitter.emit_prepare(f"{symbol}_prepare")
    emitter.emit_run(f"{symbol}_run")
    if not calls:
        for declared in DECLARED:
            emitter.module.declare(*declared)
        emitter.module.definitions.append(short_call(plan, emitter.layout, symbol))
    return EntrySource(
        str(emitter.module), tuple(emitter.checks), tuple(emitter.callbacks), emitter.layout, tuple(emitter.timed), emitter.reports,
        what_data_decide(plan),
    )


def what_data_decide(plan: ExecutionPlan) -> str:
    """Why a plan may launch another thing for other data of the same shapes; "" where it does not."""
    for step in all_steps(plan.steps):
        match step:
            case BindDims() | Allocate():
                return located(step, "data decide sizes")
            case Branch(condition=condition) if condition.place is SlotPlace.HOST and not plan.host_inputs:
                pass  # made of sizes alone
            case Branch() | Repeat(condition=Slot()):
                return located(step, "data decide which steps follow")
            case CallOut(found_dims=dims) if dims:
                return located(step, "a reference kernel decides sizes")
    return ""


class _EntryEmitter:
    """Writes the two functions. While one is being written, `dims` evaluates dim expressions in it."""

    def __init__(
        self, plan: ExecutionPlan, kernels: dict[str, str], num_outputs: Mapping[str, int], profile: bool, calls: str
    ) -> None:
        self.plan = plan
        self.calls = calls
        self.reports = bool(calls) and has_checks(plan)
        self.kernels = kernels
        self.num_outputs = num_outputs
        self.profile = profile
        self.layout = frame_layout(plan)
        self.module = Module()
        self.checks: list[FailedCheck] = []
        self.callbacks: list[CallOut] = []
        self.facts = Facts.of(plan.facts)
        self.timed: list[Launch] = []
        self._start()

    def _start(self) -> None:
        self.b = FunctionBuilder(self.module)
        self.dims = ScalarEmitter(self.b, self.facts)
        self.bases: dict[tuple[SlotPlace, int], Value] = {}
        self.depth = 0

    # -- the frame

    def _word_pointer(self, word: int) -> Value:
        return self.b.emit(f"getelementptr i64, ptr %frame, i64 {word}", "ptr")

    def _word(self, word: int, element: str = "i64") -> Value:
        return self.b.emit(f"load {element}, {self._word_pointer(word)}, align 8", element)

    def _set_word(self, word: int, value: Value) -> None:
        self.b.emit_void(f"store {value}, {self._word_pointer(word)}, align 8")

    def _fail_unless(
        self,
        condition: Value,
        check: FailedCheck,
        detail: Value | None = None,
        about: Expr | None = None,
        details: Callable[[], dict[int, Value]] = dict,
    ) -> None:
        """Leave with the number of `check` unless `condition` holds; `about` is the expression whose dims the user is told.

        `details` emits, where it fails, what else goes into words of the frame.
        """
        if condition.known:
            return
        dims = self._dims_of(about)
        self.checks.append(replace(check, dims=tuple((dim.name, self.layout.dim_vars.index(dim)) for dim in dims)))
        b = self.b
        bad, good = b.label("bad"), b.label("good")
        b.branch_if(condition, good, bad)
        b.start_block(bad)
        with b.scope():
            if detail is not None:
                self._set_word(DETAIL, detail)
            for word, value in details().items():
                self._set_word(word, value)
            for dim in dims:
                self._set_word(self.layout.dims + self.layout.dim_vars.index(dim), self.dims.values[dim])
        b.emit_void(f"ret i64 {len(self.checks)}")
        b.start_block(good)

    def _dims_of(self, expr: Expr | None) -> list[Var]:
        """The dims in an expression that have a word in the frame."""
        found = frozenset[Var]() if expr is None else variables(expr)
        return [var for var in self.layout.dim_vars if var in found and var in self.dims.values]

    # -- prepare

    def emit_prepare(self, name: str) -> None:
        """Bind and check the dims; write output dims and arena size."""
        self._bind_inputs(check=True)
        first, second = checks_at_start(self.plan, self._is_bound)
        for step in first:
            self._check(step)
        for fact in self.plan.facts:
            if fact.var in self.dims.values:
                self._check_fact(fact)
        for step in second:
            self._check(step)
        for word, var in zip(self.layout.outputs, self.plan.outputs, strict=True):
            assert isinstance(var.type, TensorType)
            if self._is_bound(var.type.size_bytes):
                self._size(var.type.size_bytes, no_memory_for(var))
            for k, dim in enumerate(var.type.shape):
                if self._is_bound(dim):  # of nothing there may be too much along an axis
                    self._set_word(word + 1 + k, self._size(dim, no_memory_for(var)))
        self._set_word(ARENA_BYTES, self._size(self.plan.arena_bytes, NO_ARENA))
        self.b.emit_void("ret i64 0")
        self._finish(f"define i64 @{name}(ptr noundef %frame) nounwind")

    def _check(self, step: Check) -> None:
        """Leave unless the condition holds; products that 64 bits do not hold would make it say anything, so it fails with them."""
        with self.b.watch_overflow() as overflows:
            holds = self.dims.value(step.condition)
        for flag in overflows:
            holds = self.b.binary("and", holds, self.b.binary("xor", flag, int_value(1, "i1")))
        self._fail_unless(holds, FailedCheck(located(step, step.message), assumed=step.assumed), about=step.condition)

    def _size(self, size: Expr, message: str) -> Value:
        """The value of a size; leaves with `message` when 64 bits do not hold it."""
        simple = countable(size, self.facts)
        if simple is None:
            self._fail_unless(int_value(0, "i1"), FailedCheck(message), about=size)
            return int_value(0)
        with self.b.watch_overflow() as overflows:
            value = self.dims.value(simple)
        if overflows:
            fits = self.b.binary("xor", reduce(partial(self.b.binary, "or"), overflows), int_value(1, "i1"))
            self._fail_unless(fits, FailedCheck(message), about=size)
        return value

    def _is_bound(self, expr: Expr) -> bool:
        return variables(expr) <= self.dims.values.keys()

    def _bind_inputs(self, check: bool) -> None:
        equations: list[tuple[int, int, Expr, Value]] = []
        for index, (word, var) in enumerate(zip(self.layout.inputs, self.plan.inputs, strict=True)):
            assert isinstance(var.type, TensorType)
            for axis, dim in enumerate(var.type.shape):
                if isinstance(dim, Const):
                    if check:
                        equations.append((index, axis, dim, self._word(word + 1 + axis)))
                    continue
                actual = self._word(word + 1 + axis)
                if isinstance(dim, Var) and dim not in self.dims.values:
                    self.dims.values[dim] = actual
                elif check:
                    equations.append((index, axis, dim, actual))
        for index, axis, dim, actual in equations:
            expected = self.dims.value(dim)
            message = wrong_size(self.plan.inputs[index].name, axis, dim)
            condition = self.b.compare("icmp eq", actual, expected)
            self._fail_unless(condition, FailedCheck(message, index, axis), actual, about=dim)

    def _check_fact(self, fact: DimFact) -> None:
        actual = self.dims.values[fact.var]
        for promise in promises(fact):
            if promise.relation == "%":
                holds = self.b.compare("icmp eq", self.b.binary("srem", actual, int_value(promise.bound)), int_value(0))
            else:
                holds = self.b.compare("icmp sge" if promise.relation == ">=" else "icmp sle", actual, int_value(promise.bound))
            self._fail_unless(holds, FailedCheck(promise.message), actual)

    # -- run

    def emit_run(self, name: str) -> None:
        """Run the steps, in the usual floating-point mode whatever the caller's is."""
        self._start()
        self._bind_inputs(check=False)
        self.threads = self._word(THREADS)
        self.memory = EntryMemory(self.b, self.calls, self.threads)
        self._store_dims(list(self.dims.values))
        self._steps(self.plan.steps)
        for index, slot in enumerate(self.plan.output_slots):
            self._finish_output(index, slot)
        self._free_values_between()
        self.b.emit_void("ret i64 0")
        self._finish(f"define internal i64 @{name}_steps(ptr noundef %frame) noinline nounwind")
        self.module.definitions.append(wrapped_in_usual_mode(name, f"{name}_steps"))

    def _finish(self, header: str) -> None:
        self.module.definitions.append("\n".join([f"{header} {{", "entry:", *self.b.entry, *self.b.lines, "}"]))

    def _store_dims(self, dims: list[Var]) -> None:
        """Make dims visible to callbacks."""
        if not any(isinstance(step, CallOut) and not step.symbol.startswith("c:") for step in all_steps(self.plan.steps)):
            return
        for dim in dims:
            if dim in self.layout.dim_vars:
                self._set_word(self.layout.dims + self.layout.dim_vars.index(dim), self.dims.values[dim])

    def _finish_output(self, index: int, slot: Slot) -> None:
        """Tell the caller where an output of data-dependent size is, and how large."""
        if slot.place is not SlotPlace.DYNAMIC:
            return
        word = self.layout.outputs[index]
        self._set_word(word, self.pointer(slot))
        for k, dim in enumerate(slot.type.shape):
            self._set_word(word + 1 + k, self._size(dim, NO_RESULT))

    def _free_values_between(self) -> None:
        """Give back the blocks that are of no output; where a device may still use them the caller does, as after a failure."""
        results = {slot.index for slot in self.plan.output_slots if slot.place is SlotPlace.DYNAMIC}
        for index in sorted(set(range(self.plan.num_dynamic)) - results) if not self.calls else ():
            word = self.layout.dynamic + 2 * index
            self.memory.free(self._word(word, "ptr"))
            self._set_word(word, Value("null", "ptr"))

    def pointer(self, slot: Slot) -> Value:
        """The address of a slot."""
        b = self.b
        match slot.place:
            case SlotPlace.INPUT:
                base = self._cached(slot, lambda: self._word(self.layout.inputs[slot.index], "ptr"))
            case SlotPlace.OUTPUT:
                base = self._cached(slot, lambda: self._word(self.layout.outputs[slot.index], "ptr"))
            case SlotPlace.ARENA:
                base = self._cached(slot, lambda: self._word(ARENA, "ptr"))
            case SlotPlace.CONSTANT:
                table = self._cached_table()
                place = b.emit(f"getelementptr ptr, {table}, i64 {slot.index}", "ptr")
                base = b.emit(f"load ptr, {place}, align 8", "ptr")
            case SlotPlace.DYNAMIC:
                base = self._word(self.layout.dynamic + 2 * slot.index, "ptr")
            case SlotPlace.HOST:
                base = self._word(self.layout.host, "ptr")
            case SlotPlace.HOST_CONSTANT:
                table = self._word(self.layout.host + 1, "ptr")
                base = b.emit(f"load ptr, {b.emit(f'getelementptr ptr, {table}, i64 {slot.index}', 'ptr')}, align 8", "ptr")
            case SlotPlace.HOST_INPUT:
                base = self._word(self.layout.host + 2 + slot.index, "ptr")
        offset = self.dims.value(simplify(slot.offset, self.facts))
        if offset.known == 0:
            return base
        return b.emit(f"getelementptr i8, {base}, {offset}", "ptr")

    def _cached(self, slot: Slot, make: object) -> Value:
        key = (slot.place, slot.index)
        if self.depth == 0:
            if key not in self.bases:
                self.bases[key] = make()  # type: ignore[operator]
            return self.bases[key]
        return self.bases[key] if key in self.bases else make()  # type: ignore[operator]

    def _cached_table(self) -> Value:
        key = (SlotPlace.CONSTANT, -1)
        if key in self.bases:
            return self.bases[key]
        table = self._word(CONSTANTS, "ptr")
        if self.depth == 0:
            self.bases[key] = table
        return table

    def _steps(self, steps: tuple[PlanStep, ...]) -> None:
        for step in steps:
            self._step(step)

    def _inner(self, steps: tuple[PlanStep, ...]) -> None:
        """Steps whose values do not dominate what follows."""
        known = dict(self.dims.values)
        self.depth += 1
        with self.b.scope():
            self._steps(steps)
        self.depth -= 1
        self.dims.values = known

    def _step(self, step: PlanStep) -> None:
        match step:
            case Launch():
                self._launch(step)
            case Check():
                self._check(step)
            case Copy(source=source, target=target, size_bytes=size):
                self.memory.copy(self.pointer(target), self.pointer(source), self.dims.value(simplify(size, self.facts)))
            case StoreIndex(slot=slot, value=value):
                self.memory.write_word(self.pointer(slot), self.dims.value(value))
            case BindDims(slot=slot, dims=dims):
                self._bind_dims(step, slot, dims)
            case Allocate(index=index, size_bytes=size):
                self._allocate(index, self._size(size, located(step, NO_RESULT)))
            case Extend(index=index, size_bytes=size, kept_bytes=kept):
                self._extend(index, self._size(size, located(step, NO_RESULT)), self.dims.value(simplify(kept, self.facts)))
            case Exchange(first=first, second=second):
                words = [self.layout.dynamic + 2 * index + k for index in (first, second) for k in range(2)]
                for word, content in zip(words, [self._word(words[k]) for k in (2, 3, 0, 1)], strict=True):
                    self._set_word(word, content)
            case Branch(condition=condition, then_steps=then_steps, else_steps=else_steps):
                self._branch(condition, then_steps, else_steps)
            case Repeat():
                self._repeat(step)
            case CallOut():
                self._call_out(step)
            case _:
                raise CodegenError(f"no code for the step {type(step).__name__}")

    def _launch(self, step: Launch) -> None:
        """Run a kernel, unless all that it writes is empty and its loops might be long nevertheless."""
        pointers = [self.pointer(slot) for slot in step.slots]
        dims = [self.dims.value(dim) for dim in step.dims]
        has_work = None if self.calls else self._has_work(step)
        if has_work is None:
            self._call_kernel(step, pointers, dims)
            return
        b = self.b
        work, done = b.label("launch"), b.label("launched")
        b.branch_if(has_work, work, done)
        b.start_block(work)
        with b.scope():
            self._call_kernel(step, pointers, dims)
        b.branch(done)
        b.start_block(done)

    def _has_work(self, step: Launch) -> Value | None:
        """Whether a result of a launch has elements; None where some has, or where loops over nothing are short."""
        outputs = step.slots[len(step.slots) - self.num_outputs[step.kernel] : len(step.slots) - bool(step.checks)]
        found: Value | None = None
        for slot in outputs:
            shape = [simplify(dim, self.facts) for dim in slot.type.shape]
            unsure = [dim for dim in shape if prove(dim > 0, self.facts) is not True]
            least = math.prod(dim.value for dim in shape if isinstance(dim, Const))
            if not unsure or (least <= SHORT and sum(not isinstance(dim, Const) for dim in shape) == 1):
                return None
            values = [self.b.compare("icmp ne", self.dims.value(dim), int_value(0)) for dim in unsure]
            has_elements = reduce(partial(self.b.binary, "and"), values)
            found = has_elements if found is None else self.b.binary("or", found, has_elements)
        return found

    def _call_kernel(self, step: Launch, pointers: Sequence[Value], dims: Sequence[Value]) -> None:
        symbol = self.kernels[step.kernel]
        self.module.declare(symbol, "void", [*["ptr"] * len(pointers), *["i64"] * len(dims), "i64"])
        start = self._clock() if self.profile else None
        threads = int_value(1) if step.on_host else self.threads
        self.b.emit_void(f"call void @{symbol}({', '.join(map(str, [*pointers, *dims, threads]))})")
        if start is not None:
            self._record(start, step)
        if step.checks and self.reports and not step.on_host:
            self._collect_faults(pointers[len(step.slots) - 1], step)
            return
        for row, message in enumerate(step.checks):
            self._check_access(pointers[len(step.slots) - 1], row, message)

    def _check_access(self, report: Value, row: int, message: str) -> None:
        """Leave with `message` if the kernel found an index out of range: row `row` of its report says so."""
        b = self.b

        def word(k: int) -> Value:
            return b.emit(f"load i64, {b.emit(f'getelementptr i64, {report}, i64 {WORDS_PER_CHECK * row + k}', 'ptr')}, align 8", "i64")

        good = b.compare("icmp eq", word(0), int_value(0))
        self._fail_unless(good, FailedCheck(message), details=lambda: {DETAIL: word(1), SIZE: word(2)})

    def _collect_faults(self, report: Value, step: Launch) -> None:
        """Let the device keep what a launch reports, if it is the first that does."""
        rows, before = int_value(len(step.checks)), int_value(len(self.checks))
        self.checks += [FailedCheck(message) for message in step.checks]
        arguments = [report, self._word(FAULTS, "ptr"), rows, before, self.threads]
        symbol = self.kernels[COLLECT]
        self.module.declare(symbol, "void", [value.type for value in arguments])
        self.b.emit_void(f"call void @{symbol}({', '.join(map(str, arguments))})")

    def _raise_faults(self) -> None:
        """Leave with the first check that failed on the device so far: before the host looks at what kernels have made."""
        if not self.reports:
            return
        b, room, record = self.b, self.b.alloca("i64", 1, 8, "fault"), self._word(FAULTS, "ptr")
        self.memory.call("read", room, record, int_value(8))
        found = b.emit(f"load i64, {room}, align 8", "i64")
        bad, good = b.label("fault"), b.label("sound")
        b.branch_if(b.compare("icmp eq", found, int_value(0)), good, bad)
        b.start_block(bad)
        b.emit_void(f"ret {found}")
        b.start_block(good)

    def _clock(self) -> Value:
        """Nanoseconds of the monotonic clock."""
        b = self.b
        self.module.declare("clock_gettime", "i32", ["i32", "ptr"])
        time = b.alloca("i64", 2, 16, "time")
        b.emit(f"call i32 @clock_gettime(i32 1, {time})", "i32")
        seconds = b.emit(f"load i64, {time}, align 8", "i64")
        fraction = b.emit(f"load i64, {b.emit(f'getelementptr i64, {time}, i64 1', 'ptr')}, align 8", "i64")
        return b.binary("add", b.binary("mul", seconds, int_value(1_000_000_000)), fraction)

    def _record(self, start: Value, step: Launch) -> None:
        """Add the time since `start` to this launch's word of the profile, which follows the frame."""
        if self.calls:
            self.memory.call("finish")
        end = self._clock()
        place = self._word_pointer(self.layout.words + len(self.timed))
        self.timed.append(step)
        before = self.b.emit(f"load i64, {place}, align 8", "i64")
        total = self.b.binary("add", before, self.b.binary("sub", end, start))
        self.b.emit_void(f"store {total}, {place}, align 8")

    def _bind_dims(self, step: PlanStep, slot: Slot, dims: tuple[Var, ...]) -> None:
        b = self.b
        base = self.pointer(slot)
        bits, on_host = slot.type.dtype.bits, slot.place in ON_HOST
        if not on_host:
            self._raise_faults()
        for k, dim in enumerate(dims):
            place = b.emit(f"getelementptr i{bits}, {base}, i64 {k}", "ptr")
            value = self.memory.read(place, f"i{bits}", on_host)
            if bits < 64:
                value = b.convert("sext" if slot.type.dtype.kind == "int" else "zext", value, "i64")
            message = located(step, negative_dim(dim))
            self._fail_unless(b.compare("icmp sge", value, int_value(0)), FailedCheck(message), value)
            self.dims.values[dim] = value
        self._store_dims(list(dims))

    def _extend(self, index: int, size: Value, kept: Value) -> None:
        """Move a block to one that is half as large again, where it has no room."""
        b, word = self.b, self.layout.dynamic + 2 * index
        full, done = b.label("full"), b.label("roomy")
        b.branch_if(b.compare("icmp sge", self._word(word + 1), size), done, full)
        b.start_block(full)
        more = b.binary("add", kept, b.binary("lshr", kept, int_value(1)))
        wanted = b.select(b.compare("icmp sgt", more, size), more, size)
        block = self.memory.allocate(wanted)
        self._require_block(block, wanted)
        before = self._word(word, "ptr")
        self.memory.copy(block, before, kept)
        self.memory.free(before)
        self._set_word(word, block)
        self._set_word(word + 1, wanted)
        b.branch(done)
        b.start_block(done)

    def _allocate(self, index: int, size: Value) -> None:
        word = self.layout.dynamic + 2 * index
        self.memory.free(self._word(word, "ptr"))
        pointer = self.memory.allocate(size)
        self._set_word(word, pointer)  # before it is looked at: the old one is free
        self._require_block(pointer, size)
        self._set_word(word + 1, size)

    def _require_block(self, block: Value, size: Value) -> None:
        present = self.b.compare("icmp ne", block, Value("null", "ptr"))
        self._fail_unless(present, FailedCheck(NO_MEMORY), size)

    def _branch(self, condition: Slot, then_steps: tuple[PlanStep, ...], else_steps: tuple[PlanStep, ...]) -> None:
        b = self.b
        on_host = condition.place in ON_HOST
        if not on_host:
            self._raise_faults()
        flag = self.memory.read(self.pointer(condition), "i8", on_host)
        yes, no, done = b.label("then"), b.label("else"), b.label("endif")
        b.branch_if(b.compare("icmp ne", flag, int_value(0, "i8")), yes, no)
        b.start_block(yes)
        self._inner(then_steps)
        b.branch(done)
        b.start_block(no)
        self._inner(else_steps)
        b.branch(done)
        b.start_block(done)

    def _repeat(self, step: Repeat) -> None:
        b = self.b
        limit = None if step.trip_count is None else self.dims.value(simplify(step.trip_count, self.facts))
        test, body, done = b.label("test"), b.label("body"), b.label("done")
        before = b.label("before")
        b.branch(before)
        b.start_block(before)
        b.branch(test)
        b.start_block(test)
        counter, following = b.name("i"), b.name("n")
        at = len(b.lines)
        b.lines.append("")
        go: Value | None = None
        self.depth += 1
        if limit is not None:
            go = b.compare("icmp slt", Value(counter, "i64"), limit)
        if step.condition is not None:
            self._raise_faults()
            flag = self.memory.read(self.pointer(step.condition), "i8")
            holds = b.compare("icmp ne", flag, int_value(0, "i8"))
            go = holds if go is None else b.binary("and", go, holds)
        self.depth -= 1
        if go is None:
            raise CodegenError("a loop has neither a bound nor a condition")
        b.branch_if(go, body, done)
        b.start_block(body)
        known = dict(self.dims.values)
        self.dims.values[step.index] = Value(counter, "i64")
        self._inner(step.body)
        self.dims.values = known
        b.emit_void(f"{following} = add nuw nsw i64 {counter}, 1")
        latch = b.block
        b.branch(test)
        b.lines[at] = f"  {counter} = phi i64 [ 0, %{before} ], [ {following}, %{latch} ]"
        b.start_block(done)

    def _call_out(self, step: CallOut) -> None:
        b = self.b
        if step.symbol.startswith("c:"):
            if self.calls:
                raise CodegenError(located(step, f"{step.symbol[2:]} is a function of the host, which does not read a device's memory"))
            name = step.symbol[2:]
            slots = [slot for slot in (*step.args, *step.results) if slot is not None]
            pointers = [self.pointer(slot) for slot in slots]
            dims = [self.dims.value(dim) for dim in step.dims]
            self.module.declare(name, "void", [value.type for value in (*pointers, *dims)])
            b.emit_void(f"call void @{name}({', '.join(map(str, (*pointers, *dims)))})")
            return
        number = len(self.callbacks)
        self.callbacks.append(step)
        slots = [slot for slot in (*step.args, *step.results) if slot is not None]
        table = b.alloca("ptr", max(len(slots), 1), 8, "slots")
        self._store_dims([dim for dim in self.dims.values if dim in self.layout.dim_vars])
        for k, slot in enumerate(slots):
            place = b.emit(f"getelementptr ptr, {table}, i64 {k}", "ptr")
            b.emit_void(f"store {self.pointer(slot)}, {place}, align 8")
        callback = self._word(CALLBACK, "ptr")
        status = b.emit(f"call i64 {callback.text}(ptr %frame, i64 {number}, {table})", "i64")
        bad, good = b.label("raised"), b.label("good")
        b.branch_if(b.compare("icmp eq", status, int_value(0)), good, bad)
        b.start_block(bad)
        b.emit_void("ret i64 -1")
        b.start_block(good)
        for dim in step.found_dims:
            self.dims.values[dim] = self._word(self.layout.dims + self.layout.dim_vars.index(dim))
