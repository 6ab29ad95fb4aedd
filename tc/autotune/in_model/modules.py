"""Modules of one model that differ in schedules, or in the form of its graph, built to be compared.

What two of them have in common is scheduled and compiled once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tc.codegen.kernels import Kernel, TunedDecisions, schedule_kernel, with_kernels
from tc.ir.loop import PrimFunc
from tc.ir.node import replace
from tc.passes.graph.plan_memory import plan_memory
from tc.passes.pipeline import LoweredModel
from tc.records.record import Record
from tc.runtime.builder import ENTRY, LinkUnit, ModuleBuilder
from tc.runtime.callbacks import callback_for
from tc.runtime.module import CompiledModule
from tc.target import Target


class Schedules(TunedDecisions, Protocol):
    """What tuning has found, and under which record."""

    def record(self, workload: str) -> Record | None:
        """Where the schedule of a workload comes from; None for the default."""


class TimedModules:
    """Builds modules that have a clock around every launch."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._builder = ModuleBuilder(target)
        self._kernels: dict[tuple[str, str | None], Kernel] = {}  # by workload and schedule
        self._constants: tuple[LoweredModel, list[np.ndarray]] | None = None  # of the last graph

    def build(self, lowered: LoweredModel, schedules: Sequence[Schedules]) -> list[CompiledModule]:
        """A module for each of the schedules; they share their constants."""
        funcs = [(func, lowered.workloads[func.name]) for func in lowered.lowered.prim_funcs]
        staged = [{func.name: self._kernel(func, workload, each) for func, workload in funcs} for each in schedules]
        plans = [plan_memory(with_kernels(lowered.lowered, kernels), lowered.imported.requirements) for kernels in staged]
        linked = self._builder.link([LinkUnit.of(*each) for each in zip(plans, staged, strict=True)], profile=True)
        if self._constants is None or self._constants[0] is not lowered:
            self._constants = lowered, self._builder.constants(plans[0])
        placed = self._constants[1]
        return [
            CompiledModule(plan, each.entry, each.library, ENTRY, placed, self.target.cores, callback_for(each.entry.calls))
            for plan, each in zip(plans, linked, strict=True)
        ]

    def _kernel(self, func: PrimFunc, workload: str, schedules: Schedules) -> Kernel:
        record = schedules.record(workload)
        place = workload, None if record is None else record.schedule_key
        if place not in self._kernels:
            self._kernels[place] = schedule_kernel(func, self.target, schedules)
            self._builder.want(self._kernels[place])
        found = self._kernels[place]
        return found if found.name == func.name else _renamed(found, func.name)


def _renamed(kernel: Kernel, name: str) -> Kernel:
    """The same kernel for an equal PrimFunc of another name."""
    return dataclasses.replace(kernel, name=name, final=replace(kernel.final, name=name))
