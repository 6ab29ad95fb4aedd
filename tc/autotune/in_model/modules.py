"""Modules of one model that differ in schedules, or in the form of its graph, built to be compared.

What two of them have in common is scheduled and compiled once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tc.codegen.kernels import Kernel, Tuned, object_key, schedule_kernel, with_kernels
from tc.codegen.llvm.emitter import emit_prim_func
from tc.compiler import LoweredModel, run_reference
from tc.ir.loop import PrimFunc
from tc.ir.node import replace
from tc.passes.graph.plan_memory import plan_memory
from tc.records.record import Record
from tc.runtime.entry import emit_entry
from tc.runtime.jit import compile_objects, link
from tc.runtime.memory import place_constants
from tc.runtime.module import CompiledModule
from tc.runtime.object_cache import ObjectCache
from tc.runtime.pool import get_pool
from tc.target import Target


class Schedules(Tuned, Protocol):
    """What tuning has found, and under which record."""

    def record(self, workload: str) -> Record | None:
        """Where the schedule of a workload comes from; None for the default."""


class Workshop:
    """Builds modules that have a clock around every launch."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._cache = ObjectCache()
        self._kernels: dict[tuple[str, str | None], Kernel] = {}  # by workload and schedule
        self._code: dict[str, bytes] = {}  # by symbol
        self._constants: tuple[LoweredModel, list[np.ndarray]] | None = None  # of the last graph

    def build(self, lowered: LoweredModel, schedules: Sequence[Schedules]) -> list[CompiledModule]:
        """A module for each of the schedules; they share their constants."""
        get_pool()  # what kernels call
        funcs = [(func, lowered.workloads[func.name]) for func in lowered.lowered.prim_funcs]
        staged = [{func.name: self._kernel(func, workload, each) for func, workload in funcs} for each in schedules]
        missing = {k.symbol: k.final for kernels in staged for k in kernels.values() if not self._has_code(k.symbol)}
        sources = [emit_prim_func(final, symbol, self.target.features).ir_text for symbol, final in missing.items()]
        plans = [plan_memory(with_kernels(lowered.lowered, kernels), lowered.imported.requirements) for kernels in staged]
        symbols = [{name: kernel.symbol for name, kernel in kernels.items()} for kernels in staged]
        entries = [emit_entry(plan, names, "tc_entry", profile=True) for plan, names in zip(plans, symbols, strict=True)]
        objects = compile_objects(sources, self.target, [entry.ir_text for entry in entries])
        for symbol, code in zip(missing, objects, strict=False):
            self._code[symbol] = code
            self._cache.put(object_key(symbol, self.target), code)
        if self._constants is None or self._constants[0] is not lowered:
            self._constants = lowered, place_constants([each.value for each in plans[0].constants])
        placed = self._constants[1]
        modules = []
        for plan, names, entry, code in zip(plans, symbols, entries, objects[len(missing) :], strict=True):
            library = link([*(self._code[symbol] for symbol in dict.fromkeys(names.values())), code])
            modules.append(CompiledModule(plan, entry, library, "tc_entry", placed, self.target.cores, run_reference))
        return modules

    def _has_code(self, symbol: str) -> bool:
        if symbol not in self._code:
            known = self._cache.get(object_key(symbol, self.target))
            if known is not None:
                self._code[symbol] = known
        return symbol in self._code

    def _kernel(self, func: PrimFunc, workload: str, schedules: Schedules) -> Kernel:
        record = schedules.record(workload)
        place = workload, None if record is None else record.schedule_key
        if place not in self._kernels:
            self._kernels[place] = schedule_kernel(func, self.target, schedules)
        found = self._kernels[place]
        return found if found.name == func.name else _renamed(found, func.name)


def _renamed(kernel: Kernel, name: str) -> Kernel:
    """The same kernel for an equal PrimFunc of another name."""
    return dataclasses.replace(kernel, name=name, final=replace(kernel.final, name=name))
