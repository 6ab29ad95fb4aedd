"""What a compiled module says of itself: its inputs and outputs, its kernels, where their time goes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tc.codegen.kernels import Kernel
from tc.ir.dtype import DType
from tc.ir.expr import Const
from tc.ir.graph import Binding, CallTir, TensorVar, all_bindings
from tc.ir.module import IRModule
from tc.ir.plan import CallOut, ExecutionPlan, all_steps
from tc.ir.types import TensorType
from tc.passes.graph.narrowing import NodePrecision
from tc.target import Target
from tc.target.machine import machine_of


@dataclass(frozen=True)
class TensorInfo:
    """An input or output: its name, dtype, and shape (ints, and dim names or formulas as text)."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def tensor_info(name: str, type_: TensorType) -> TensorInfo:
    """The facts about an input or output of this type."""
    shape = tuple(int(dim.value) if isinstance(dim, Const) else str(dim) for dim in type_.shape)
    return TensorInfo(name, type_.dtype, shape)


@dataclass(frozen=True)
class KernelReport:
    """One kernel: its name, the model's nodes that it computes, how often it is called, how it was scheduled.

    `cached`: its code came from the cache; `tuned`: its schedule from a tuning database.
    """

    name: str
    nodes: tuple[str, ...]
    calls: int = 1
    rule: str = ""
    cached: bool = False
    tuned: bool = False


@dataclass(frozen=True)
class KernelTime:
    """Where the time of a call goes: a kernel launch, the model's node it ends with, and its seconds in one call of the module."""

    node: str
    kernel: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """What became of a model: kernels, nodes on reference kernels, sizes and seconds of compilation by stage.

    `notes`: kernels that a rule gave up halfway, which may be slow; what a tuning database holds that could not be used, and why; for a
    module from a file, what it was made with that is different now. `rates`: the fingerprint of the rates of cores that decided.
    `graphs`: which graphs of a device's driver calls launch, or why none; "" where there is no such thing. `precision`: as it was asked
    for; `precisions`: of every operation on floats, where it is not f32.
    """

    kernels: tuple[KernelReport, ...]
    fallbacks: tuple[str, ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()
    arena: str = "0"
    constant_bytes: int = 0
    notes: tuple[str, ...] = ()
    rates: str = ""
    graphs: str = ""
    precision: str = "f32"
    precisions: tuple[NodePrecision, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.kernels)} kernels, arena {self.arena} bytes, constants {self.constant_bytes} bytes"]
        for kernel in self.kernels:
            times = f" x{kernel.calls}" if kernel.calls > 1 else ""
            rule = f"{kernel.rule}, tuned" if kernel.tuned else kernel.rule
            lines.append(f"  {kernel.name}{times} [{rule}] <- {', '.join(kernel.nodes)}")
        lines += [f"  reference kernel: {node}" for node in self.fallbacks]
        lines += precision_lines(self.precision, self.precisions)
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  graphs: {self.graphs}"] if self.graphs else []
        lines.append("seconds: " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in self.seconds))
        return "\n".join(lines)


def precision_lines(precision: str, precisions: Sequence[NodePrecision]) -> list[str]:
    """The nodes of a model by how they are computed; nothing where all is as the model says."""
    groups: dict[str, list[str]] = {}
    for each in precisions:
        groups.setdefault(each.said, []).append(", ".join(each.nodes) or each.op)
    return [f"  precision {precision}: {said}: {'; '.join(dict.fromkeys(nodes))}" for said, nodes in groups.items()]


def precision_notes(precision: str, target: Target) -> tuple[str, ...]:
    """What a target has not got of a precision that is asked for, in words."""
    if precision == "f32" or target.device is not None:
        return ()
    if precision == "f16":
        return ("precision: this target has no products of f16: 16 bits in memory, arithmetic in f32",)
    has_dots = target.has("avx512bf16") and machine_of(target).bf16_dots_per_fma > 1
    if not has_dots and not target.has("amx-bf16"):
        rest = "all stay f32" if precision == "bf16x3" else "16 bits in memory, arithmetic in f32"
        return (f"precision: products of bf16 are no faster than those of f32 on this target: {rest}",)
    return ()


def describe(
    lowered: IRModule,
    kernels: Mapping[str, Kernel],
    plan: ExecutionPlan,
    sources: Mapping[TensorVar, tuple[str, ...]],
    made: Collection[str],
) -> Report:
    """The report of a model, but for constants, seconds and other notes.

    sources: for each result of a kernel the model's nodes behind it. made: the symbols whose code came from no cache.
    """
    reports = []
    for name, calls in nodes_by_call(lowered, sources).items():
        kernel = kernels[name]
        nodes = tuple(dict.fromkeys(node for call in calls for node in call))
        reports.append(KernelReport(name, nodes, len(calls), kernel.rule, kernel.symbol not in made, kernel.is_tuned))
    notes = tuple(f"{name}: a rule does not fit: {text}" for name, kernel in kernels.items() for text in kernel.unfit)
    fallbacks = tuple(f"{call.span} ({call.symbol})" for call in all_steps(plan.steps) if isinstance(call, CallOut))
    return Report(tuple(reports), fallbacks, arena=str(plan.arena_bytes), notes=notes)


def nodes_by_call(lowered: IRModule, sources: Mapping[TensorVar, tuple[str, ...]]) -> dict[str, list[tuple[str, ...]]]:
    """For each kernel, and for each call of it, the model's nodes behind it."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for binding in all_bindings(lowered.main):
        if isinstance(binding.value, CallTir):
            groups.setdefault(binding.value.callee, []).append(_nodes_of(sources, binding))
    return groups


def explain_nodes(
    lowered: IRModule, kernels: Mapping[str, Kernel], sources: Mapping[TensorVar, tuple[str, ...]]
) -> dict[str, str]:
    """For every node of the model, in which kernel it runs, with what, and how that kernel is scheduled."""
    texts: dict[str, str] = {}
    for binding in all_bindings(lowered.main):
        if isinstance(binding.value, CallTir):
            kernel = kernels[binding.value.callee]
            nodes = _nodes_of(sources, binding)
            together = ", ".join(nodes)
            for node in nodes:
                texts[node] = (
                    f"{node} runs in kernel {kernel.name}, together with: {together}\n"
                    f"rule: {kernel.rule}\nschedule:\n{kernel.trace or '(as written)'}"
                )
    return texts


def _nodes_of(sources: Mapping[TensorVar, tuple[str, ...]], binding: Binding) -> tuple[str, ...]:
    """The model's nodes behind one kernel call: the spans inside the primitive function that made its targets."""
    return sources.get(binding.targets[0], (str(binding.span),))
