"""What of a program stays with the host when its kernels run on a device, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tc.ir.loop import For, LoopKind, PrimFunc, Store
from tc.ir.node import Node, children, walk
from tc.ir.plan import (
    ON_HOST,
    BindDims,
    Branch,
    CallOut,
    ExecutionPlan,
    Launch,
    PlanStep,
    Repeat,
    StoreIndex,
    all_steps,
)


@dataclass(frozen=True)
class HostWork:
    """One thing that the host does itself: for which of the model's nodes, what, and why no device does it."""

    node: str
    what: str
    why: str


def host_work(plan: ExecutionPlan, kernels: Mapping[str, PrimFunc]) -> tuple[HostWork, ...]:
    """What the host does beside launching kernels and moving arrays, in the order of the plan. `kernels`: as scheduled, by name."""
    told = (work for step in all_steps(plan.steps) for work in _of_step(step, kernels))
    return tuple(dict.fromkeys(told))  # a kernel that is called again says the same


def _of_step(step: PlanStep, kernels: Mapping[str, PrimFunc]) -> Iterator[HostWork]:
    node = str(step.span) if step.span is not None else ""
    match step:
        case Launch(on_host=True, kernel=kernel):
            yield HostWork(node, f"runs kernel {kernel}", "it is small, and only sizes or branches follow from it")
        case Launch(kernel=kernel):
            yield from (HostWork(node, what, why) for what, why in _of_kernel(kernel, kernels[kernel]))
        case CallOut(symbol=symbol, found_dims=found):
            kind, _, name = symbol.partition(":")
            what = f"{name}: {_CALLED.get(kind, 'a function in Python')}"
            yield HostWork(node, what, "the size of its result depends on data" if found else "there are no loops for it")
        case BindDims(slot=slot, dims=dims) if slot.place in ON_HOST:
            yield HostWork(node, f"reads {', '.join(map(str, dims))}", "a shape comes from data, which the host has")
        case Branch(condition=condition) if condition.place in ON_HOST:
            yield HostWork(node, "takes one of two branches", "which kernels run comes from data, which the host has")
        case BindDims(dims=dims):
            yield HostWork(node, f"reads {', '.join(map(str, dims))}", "a shape comes from data: sizes and launches wait for it")
        case Branch():
            yield HostWork(node, "reads a condition, and takes one of two branches", "which kernels run comes from data")
        case Repeat(condition=None):
            yield HostWork(node, "runs the iterations of a loop", "an iteration needs what the one before has computed")
        case Repeat():
            yield HostWork(node, "reads a condition before each iteration of a loop", "how many there are comes from data")
        case StoreIndex():
            yield HostWork(node, "writes the number of an iteration", "the host counts them")


_CALLED = {"c": "a function in C", "op": "the reference kernel in Python"}


def _of_kernel(name: str, func: PrimFunc) -> Iterator[tuple[str, str]]:
    """What the host does of a kernel: loops around launches, and all of a kernel that has none."""
    if not _has_launches(func.body) and any(isinstance(node, Store) for node in walk(func.body)):
        yield f"runs kernel {name}", "none of its loops is bound to the threads of a device"
        return
    for loop in _around_launches(func.body):
        yield f"runs {loop.extent} iterations of launches of kernel {name}", "an iteration needs what the one before has computed"


def _around_launches(node: Node) -> Iterator[For]:
    """The outermost loops that are not part of a launch and have launches inside."""
    if isinstance(node, For):
        if node.kind is not LoopKind.BOUND and _has_launches(node.body):
            yield node
        return
    for child in children(node):
        yield from _around_launches(child)


def _has_launches(node: Node) -> bool:
    return any(isinstance(each, For) and each.kind is LoopKind.BOUND for each in walk(node))
