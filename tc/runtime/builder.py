"""From kernels and execution plans to linked programs: emit, object cache, LLVM, link, constants. Nothing else makes modules.

    builder = ModuleBuilder(target)
    builder.expect(module)                      # as soon as it is known which constants its program will have
    builder.want(kernel)                        # as soon as a kernel is scheduled
    (linked,) = builder.link([LinkUnit.of(plan, kernels)])

What several programs of one builder have in common is compiled once. `want` may be called at any time before `link`: LLVM compiles what
it is told of beside whatever its caller does until then. So are constants placed that are expected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tc.codegen.backend import Loaded
from tc.codegen.backends import backend_of
from tc.codegen.kernels import Kernel, object_key, schedule_kernel
from tc.codegen.llvm.jit import PLAIN_ENTRY_BYTES
from tc.errors import working_on
from tc.frontend.imported import Imported
from tc.ir.dtype import pack
from tc.ir.graph import TensorConst, constants_of
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.plan import ExecutionPlan
from tc.ops.registry import OpDef, scoped_ops, seeing
from tc.passes.graph.narrowing import NodePrecision
from tc.passes.lower import nodes_by_result
from tc.passes.manager import Stopwatch
from tc.runtime.callbacks import callback_for
from tc.runtime.entry import EntrySource, emit_entry
from tc.runtime.faults import COLLECT, collect_first, has_checks
from tc.runtime.memory import place_constants
from tc.runtime.module import CompiledModule
from tc.runtime.module_class import module_class
from tc.runtime.object_cache import ObjectCache
from tc.runtime.object_queue import ObjectQueue
from tc.runtime.pool import get_pool, has_pool
from tc.runtime.report import describe, explain_nodes, precision_notes
from tc.target import Target
from tc.target.machine import machine_fingerprint

LEAST_EXPECTED_BYTES = 1 << 20
"""Of constants that another thread places: about as long as a thread takes to begin."""

ENTRY = "tc_entry"
"""The symbol of every program's entry point."""


@dataclass(frozen=True)
class LinkUnit:
    """An execution plan, and of the kernels that it launches the linker symbols and how many results they have, by their names."""

    plan: ExecutionPlan
    symbols: Mapping[str, str]
    num_outputs: Mapping[str, int]

    @classmethod
    def of(cls, plan: ExecutionPlan, kernels: Mapping[str, Kernel]) -> LinkUnit:
        """The plan of a module with these kernels."""
        counts = {name: kernel.final.num_outputs for name, kernel in kernels.items()}
        return cls(plan, {name: kernel.symbol for name, kernel in kernels.items()}, counts)


@dataclass(frozen=True)
class Linked:
    """A program in the process: its entry point, and the objects that it was linked from, the entry's last."""

    entry: EntrySource
    library: Loaded
    objects: tuple[bytes, ...]


class ModuleBuilder:
    """Makes the code of kernels for one target, each once, and links programs from it.

    `made`: the symbols whose code came from no cache. `watch`: seconds by stage. The caches of object code on disk are read and written.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._backend = backend_of(target)
        self.made: set[str] = set()
        self.watch = Stopwatch()
        self._cache = ObjectCache()
        self._code: dict[str, bytes] = {}
        self._wanted: dict[str, None] = {}
        self._queue = ObjectQueue(target)
        self._expected: tuple[tuple[TensorConst, ...], Callable[[], list[np.ndarray]]] | None = None
        if not has_pool():  # what kernels call
            self._queue.beside(get_pool)

    def expect(self, module: IRModule) -> None:
        """Say that the constants of a module's entry will be asked for."""
        values = constants_of(module.main)
        if sum(constant.value.nbytes for constant in values) >= LEAST_EXPECTED_BYTES:
            self._expected = values, self._queue.beside(partial(_placed, values))

    def beside(self, task: Callable[[], object]) -> None:
        """Run something else while kernels are scheduled, if a processor is free for it."""
        self._queue.beside(task)

    def want(self, kernel: Kernel) -> None:
        """Say that a program will launch this kernel."""
        symbol = kernel.symbol
        if symbol in self._code or symbol in self._wanted:
            return
        with self.watch.time("cache"):
            known = self._cache.get(object_key(symbol, self.target))
        if known is not None:
            self._code[symbol] = known
            return
        target = self.target.host if kernel.on_host else self.target
        with self.watch.time("emit"):
            with working_on("emit", kernel.lowered):
                self._queue.put(backend_of(target).emit(kernel.final, symbol, target))
        self._wanted[symbol] = None

    def link(self, programs: Sequence[LinkUnit], *, profile: bool = False) -> list[Linked]:
        """The programs, of kernels that were wanted. `profile`: with a clock around every launch."""
        programs = [self._collecting(program) for program in programs]
        wanted, self._wanted = self._wanted, {}
        queue, self._queue = self._queue, ObjectQueue(self.target)
        with self.watch.time("emit"):
            entries = [
                emit_entry(each.plan, dict(each.symbols), each.num_outputs, ENTRY, profile, self._backend.calls) for each in programs
            ]
        with self.watch.time("llvm"):
            for entry in entries:
                queue.put(entry.ir_text, optimized=len(entry.ir_text) > PLAIN_ENTRY_BYTES)
            objects = queue.objects()
        for symbol, code in zip(wanted, objects[: len(wanted)], strict=True):
            self._code[symbol] = code
            self._cache.put(object_key(symbol, self.target), code)
        self.made.update(wanted)
        get_pool()
        with self.watch.time("link"):
            return [
                self._linked(program, entry, code)
                for program, entry, code in zip(programs, entries, objects[len(wanted) :], strict=True)
            ]

    def _collecting(self, program: LinkUnit) -> LinkUnit:
        """With the kernel that keeps faults, if it is for a device and has checks."""
        if not self._backend.calls or not has_checks(program.plan):
            return program
        kernel = schedule_kernel(collect_first(), self.target)
        self.want(kernel)
        return dataclasses.replace(program, symbols={**program.symbols, COLLECT: kernel.symbol})

    def _linked(self, program: LinkUnit, entry: EntrySource, code: bytes) -> Linked:
        objects = (*(self._code[symbol] for symbol in dict.fromkeys(program.symbols.values())), code)
        return Linked(entry, self._backend.load(objects, self.target), objects)

    def constants(self, plan: ExecutionPlan) -> list[np.ndarray]:
        """The constants of a plan, where kernels may read them: those that were expected, unless they are others."""
        expected, self._expected = self._expected, None
        with self.watch.time("constants"):
            if expected is None or set(expected[0]) != set(plan.constants):
                return _placed(plan.constants)
            found = dict(zip(expected[0], expected[1](), strict=True))
            return [found[constant] for constant in plan.constants]


def _placed(constants: Sequence[TensorConst]) -> list[np.ndarray]:
    return place_constants([pack(constant.value) for constant in constants])


def kernel_object(func: PrimFunc, symbol: str, target: Target) -> bytes:
    """The object file of one kernel, its loops finished, under a symbol; no cache takes part."""
    backend = backend_of(target)
    return backend.make([backend.emit(func, symbol, target)], True, target)[0]


@dataclass(frozen=True)
class Stages:
    """Everything that compilation makes on the way, for those who want to look at it."""

    imported: Imported
    graph: IRModule
    lowered: IRModule
    kernels: dict[str, Kernel]
    module: IRModule
    plan: ExecutionPlan
    seconds: dict[str, float]
    precisions: tuple[NodePrecision, ...] = ()
    operators: Mapping[str, OpDef] = field(default_factory=scoped_ops)  # of users, as they were then


def build_module(
    stages: Stages, builder: ModuleBuilder, threads: int, notes: tuple[str, ...] = (), precision: str = "f32"
) -> CompiledModule:
    """The module of a model, of whose kernels the builder was told; `notes` and what `precision` was asked for go into the report."""
    program = LinkUnit.of(stages.plan, stages.kernels)
    sources = nodes_by_result(stages.graph)
    explanations = explain_nodes(stages.lowered, stages.kernels, sources)
    (linked,) = builder.link([program])
    constants = builder.constants(stages.plan)  # which another thread has placed while this one helped LLVM
    described = describe(stages.lowered, stages.kernels, stages.plan, sources, builder.made)
    report = dataclasses.replace(
        described,
        seconds=tuple({**stages.seconds, **builder.watch.seconds}.items()),
        constant_bytes=sum(constant.nbytes for constant in constants),
        notes=(*notes, *described.notes, *precision_notes(precision, builder.target)),
        rates=machine_fingerprint(builder.target),
        precision=precision,
        precisions=stages.precisions,
    )
    with seeing(stages.operators):
        callback = callback_for(linked.entry.calls)
    facts = (callback, report, explanations, linked.objects, str(builder.target), partial(timed_entry, program, builder))
    module = module_class(linked.library)(stages.plan, linked.entry, linked.library, ENTRY, constants, threads, *facts)
    module.signature = stages.imported.signature
    return module


def timed_entry(program: LinkUnit, builder: ModuleBuilder) -> tuple[EntrySource, Loaded]:
    """The entry point that times every launch, of a program whose kernels the builder was told of."""
    (timed,) = builder.link([program], profile=True)
    return timed.entry, timed.library
