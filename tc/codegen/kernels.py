"""From lowered PrimFuncs to the loops that code generation takes: schedules, loop passes, and the module around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tc.codegen.backends import backend_of
from tc.codegen.device import Device
from tc.errors import ScheduleError, working_on
from tc.ir.graph import Binding, CallTir, Function, TensorVar
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.node import Node, replace, substitute, transform
from tc.ir.structural import structural_hash
from tc.ir.types import TensorType
from tc.passes.graph.place_on_host import is_on_host
from tc.passes.manager import NO_HOOKS, Hooks
from tc.passes.pipeline import finish_loops
from tc.schedule.knobs import Knob, Value
from tc.schedule.rules import Scheduled, apply_rules
from tc.target import Target
from tc.target.machine import machine_fingerprint
from tc.version import compiler_fingerprint

SCHEDULE_STEP = "schedule"
"""What the rules do is called for those who watch passes."""


class TunedDecisions(Protocol):
    """What tuning has found best, for those kernels and nodes that it knows."""

    def schedule(self, func: PrimFunc) -> Scheduled | None:
        """The schedule of a PrimFunc; None for one that is not known."""

    def decide(self, knob: Knob) -> Value:
        """How a graph pass shall implement a node; the pass's own answer for one that is not known."""


@dataclass(frozen=True)
class Kernel:
    """A kernel on its way: as lowered, as scheduled, as emitted for LLVM (loops without blocks), and its linker symbol."""

    name: str
    lowered: PrimFunc
    scheduled: PrimFunc
    final: PrimFunc
    rule: str
    trace: str
    symbol: str
    is_tuned: bool = False
    unfit: tuple[str, ...] = ()

    @property
    def on_host(self) -> bool:
        """Whether it runs on the host of a device."""
        return is_on_host(self.lowered)

    def memory(self, device: Device | None) -> Device | None:
        """Where its buffers are, in a program for a device; None: in the memory of the process."""
        return None if self.on_host else device


def schedule_kernel(prim: PrimFunc, target: Target, tuned: TunedDecisions | None = None, hooks: Hooks = NO_HOOKS) -> Kernel:
    """Schedule one PrimFunc, as tuning has found best or else by the rules, and bring it to the form for code generation.

    A rule whose schedule turns out then to have no such form does not apply, which the kernel's `unfit` tells.
    """
    if is_on_host(prim):
        target, tuned = target.host, None
    known = None if tuned is None else tuned.schedule(prim)
    if known is not None:
        scheduled, final = known, finish_scheduled(known.func, target, hooks)
    else:
        scheduled, final, _ = schedule_that_fits(prim, target, hooks)
    symbol = f"tc_{structural_hash(final)[:20]}"
    return Kernel(prim.name, prim, scheduled.func, final, scheduled.rule, str(scheduled.trace), symbol, known is not None, scheduled.unfit)


def schedule_that_fits(prim: PrimFunc, target: Target, hooks: Hooks = NO_HOOKS) -> tuple[Scheduled, PrimFunc, dict[str, str]]:
    """The rules' schedule that has a form for code generation, that form, and the rules before it whose schedules have none, with why."""
    without: dict[str, str] = {}
    while True:
        rules = partial(apply_rules, target=target, without=without)
        scheduled = hooks.around(SCHEDULE_STEP, rules, prim, lambda found: found.func)
        try:
            return scheduled, finish_scheduled(scheduled.func, target, hooks), without
        except ScheduleError as error:
            if scheduled.rule in without:
                raise
            without[scheduled.rule] = error.text


def finish_scheduled(func: PrimFunc, target: Target, hooks: Hooks = NO_HOOKS) -> PrimFunc:
    """A scheduled PrimFunc as loops that the target's code generation takes."""
    features = () if target.device is None else target.device.features
    return finish_loops(func, target.cores, hooks, backend_of(target).finish, features)


def schedule_module(
    module: IRModule,
    target: Target,
    tuned: TunedDecisions | None = None,
    ready: Callable[[Kernel], None] | None = None,
    hooks: Hooks = NO_HOOKS,
) -> tuple[IRModule, dict[str, Kernel]]:
    """Schedule every PrimFunc, and put the kernels into the module. `ready` is told of each kernel as soon as it is there."""
    kernels: dict[str, Kernel] = {}
    for func in module.prim_funcs:
        with working_on(SCHEDULE_STEP, func):
            kernels[func.name] = schedule_kernel(func, target, tuned, hooks)
            if ready is not None:
                ready(kernels[func.name])
    return with_kernels(module, kernels), kernels


def with_kernels(module: IRModule, kernels: Mapping[str, Kernel]) -> IRModule:
    """The module with its PrimFuncs as loops for code generation; calls get the workspaces that their kernels ask for as additional,
    unused results."""

    def add_workspaces(node: Node) -> Node | None:
        match node:
            case Binding(targets=targets, value=CallTir() as call):
                kernel = kernels[call.callee]
                outputs = kernel.final.outputs
                extra = outputs[len(targets) :]
                if not extra:
                    return None
                dims: dict[Node, Node] = dict(zip(kernel.final.dims, call.dims, strict=True))
                types = tuple(
                    TensorType(tuple(substitute(dim, dims) for dim in buffer.shape), buffer.dtype) for buffer in extra
                )
                scratch = tuple(TensorVar("workspace", type_) for type_ in types)
                value = replace(call, result_types=(*call.result_types, *types))
                return replace(node, targets=(*targets, *scratch), value=value)
        return None

    functions = tuple(
        transform(func, add_workspaces) if isinstance(func, Function) else kernels[func.name].final
        for func in module.functions
    )
    return IRModule(functions, module.entry)


def object_key(symbol: str, target: Target) -> str:
    """The name under which the object cache keeps a kernel's code."""
    return f"{symbol}-{target.fingerprint()}-{machine_fingerprint(target)}-{compiler_fingerprint()}"
