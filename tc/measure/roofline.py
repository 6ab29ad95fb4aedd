"""How near a model comes to what the machine allows: its work, counted from its kernels' loops, over the rates of two limits.

The bound of a whole model is the longer of computing and moving: all operations of its kernels at the rate of multiply-adds
in registers, and its inputs, outputs and constants at the rate of a stream through memory. What kernels hand to each other may stay in
caches and is not part of it. Source: the roofline model (Williams, Waterman, Patterson, 2009).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tc.codegen.kernels import Kernel
from tc.errors import TcError
from tc.ir.arith import evaluate
from tc.ir.expr import Var
from tc.ir.plan import Branch, ExecutionPlan, Launch, Repeat, all_steps
from tc.ir.types import TensorType
from tc.measure.harness import Ratio, Timings
from tc.measure.machine import Limit, fma_limit, stream_limit
from tc.schedule.work import Work, bind_dims, count_work
from tc.target import Target

STREAM_BYTES = 64 << 20


@dataclass(frozen=True)
class LaunchWork:
    """One launch of a kernel in the plan of a model. `work` is None when it depends on data."""

    node: str
    kernel: str
    rule: str
    work: Work | None


@dataclass(frozen=True)
class ModelWork:
    """The launches of a call, and the work of all; None when the plan branches or repeats, or a launch depends on data."""

    launches: tuple[LaunchWork, ...]
    total: Work | None


def count_model(
    plan: ExecutionPlan, kernels: Mapping[str, Kernel], inputs: Mapping[str, np.ndarray], outputs: Sequence[np.ndarray]
) -> ModelWork:
    """The work of one call with these inputs, which gives these outputs, of a model with this plan and these kernels."""
    env = _dims_of(plan, inputs)
    launches = tuple(_launch_work(kernels[step.kernel], step, env) for step in all_steps(plan.steps) if isinstance(step, Launch))
    controlled = any(isinstance(step, Branch | Repeat) for step in plan.steps)
    known = [launch.work for launch in launches if launch.work is not None]
    if controlled or len(known) < len(launches):
        return ModelWork(launches, None)
    constants = (constant.value for constant in plan.constants)
    moved = sum(array.nbytes for array in (*inputs.values(), *outputs, *constants))
    return ModelWork(launches, Work(sum(work.flops for work in known), moved))


def machine_limits(target: Target) -> tuple[Limit, Limit]:
    """The two loops whose rates make the roofline, for the harness to time beside the model, on the cores of the target."""
    return fma_limit(target, target.cores), stream_limit(target, "update", STREAM_BYTES, target.cores)


def rates(timings: Timings, limits: tuple[Limit, Limit]) -> tuple[float, float]:
    """Operations and bytes per second of the limits, medians over the rounds."""
    compute, memory = limits
    return compute.flops / timings.median(compute.name), memory.size_bytes / timings.median(memory.name)


def roofline_fractions(work: Work, timings: Timings, limits: tuple[Limit, Limit]) -> dict[str, Ratio]:
    """For every timed program but the limits, the bound over its time, round by round."""
    compute, memory = limits
    bounds = np.maximum(
        timings.of(compute.name) * (work.flops / compute.flops), timings.of(memory.name) * (work.size_bytes / memory.size_bytes)
    )
    names = [name for name in timings.names if name not in (compute.name, memory.name)]
    quartiles = {name: np.percentile(bounds / timings.of(name), (25, 50, 75)) for name in names}
    return {name: Ratio(float(median), float(low), float(high)) for name, (low, median, high) in quartiles.items()}


def _dims_of(plan: ExecutionPlan, inputs: Mapping[str, np.ndarray]) -> dict[Var, int]:
    """The dims that shapes of inputs tell."""
    env: dict[Var, int] = {}
    for var in plan.inputs:
        assert isinstance(var.type, TensorType)
        env.update((dim, size) for dim, size in zip(var.type.shape, inputs[var.name].shape) if isinstance(dim, Var))
    return env


def _launch_work(kernel: Kernel, launch: Launch, env: Mapping[Var, int]) -> LaunchWork:
    try:
        dims = tuple(evaluate(dim, env) for dim in launch.dims)
    except TcError:  # the dim comes from data
        work = None
    else:
        work = count_work(kernel.lowered, bind_dims(kernel.lowered, dims))
    return LaunchWork(str(launch.span or ""), launch.kernel, kernel.rule, work)
