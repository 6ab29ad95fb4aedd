"""A candidate from text to object code: what the children do that build.

Every request comes as text; what was parsed stays in the process, since most candidates are of the same few workloads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from tc.autotune.inputs import ArraySpec, signature
from tc.autotune.runner import Workload
from tc.codegen.kernels import finish_scheduled
from tc.cost.device_estimate import exceeded
from tc.cost.device_work import device_work
from tc.errors import MeasureError, ScheduleError
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_prim_func
from tc.ir.printer import identifier
from tc.runtime.builder import kernel_object
from tc.schedule.step import Trace
from tc.target import DeviceFacts, Target

SYMBOL = "tc_candidate"
"""The entry of every built kernel; each is linked by itself."""


@dataclass(frozen=True)
class BuildRequest:
    """Make code of `trace` on `workload`."""

    workload: Workload
    trace: str


@dataclass(frozen=True)
class Built:
    """Object code of a kernel and all that it takes to call it: void tc_candidate(ptr per array, i64 per scalar, i64 threads).

    `outputs` are the workload's results, `workspaces` scratch memory that the kernel asks for behind them. `seconds` it took to
    build. Operands with the numbers `constants` are read from another copy at each call, `apart_bytes` of them in turns.
    `device`: the target whose device runs it, by a host stub in `code` that takes addresses there and a queue in the place of threads;
    "" for one that runs on the processor.
    """

    code: bytes
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    workspaces: tuple[ArraySpec, ...]
    scalars: tuple[int, ...]
    threads: int
    seconds: float
    constants: tuple[int, ...] = ()
    apart_bytes: int = 0
    device: str = ""


def build(request: BuildRequest) -> Built:
    """ScheduleError when the trace is not legal, other errors when no code can be made."""
    start = time.perf_counter()
    workload = request.workload
    func = _parsed(workload.text)
    target = _target(workload.target)
    dims = _sizes(func, dict(workload.dims))
    final = finish_scheduled(Trace.from_json(request.trace).apply(func), replace(target, cores=workload.threads))
    if target.device is not None:
        _check_fits(final, target.device, dims)
    code = kernel_object(final, SYMBOL, target)
    inputs, outputs = _signature(workload.text, tuple(dims.items()))
    workspaces = signature(final, dims, with_values=False)[1][len(outputs) :]
    scalars = tuple(dims[var.name] for var in final.dims)
    seconds = time.perf_counter() - start
    literals = (workload.constants, workload.apart_bytes)
    device = "" if target.device is None else workload.target
    return Built(code, inputs, outputs, workspaces, scalars, workload.threads, seconds, *literals, device)


def _check_fits(final: PrimFunc, device: DeviceFacts, dims: Mapping[str, int]) -> None:
    """ScheduleError for launches that a device cannot run, before its compiler is asked."""
    for launch in device_work(final, dims):
        problem = exceeded(launch, device)
        if problem is not None:
            raise ScheduleError(f"{final.name}: {problem}")


@lru_cache(32)
def _parsed(text: str) -> PrimFunc:
    return parse_prim_func(text, "<workload>")


@lru_cache(32)
def _target(text: str) -> Target:
    return Target.parse(text)


@lru_cache(32)
def _signature(text: str, dims: tuple[tuple[str, int], ...]) -> tuple[tuple[ArraySpec, ...], tuple[ArraySpec, ...]]:
    """Of the workload itself: which inputs serve as indices shows best before it is scheduled."""
    return signature(_parsed(text), dict(dims))


def _sizes(func: PrimFunc, dims: Mapping[str, int]) -> dict[str, int]:
    """The sizes of the PrimFunc's symbolic dims. A dim's name in text may be another where the name is no identifier."""
    as_text = {identifier(name): size for name, size in dims.items()}
    missing = [var.name for var in func.dims if var.name not in dims and var.name not in as_text]
    if missing:
        raise MeasureError(f"no size is given for dim {missing[0]} of {func.name}; given are: {', '.join(dims) or 'none'}")
    return {var.name: dims[var.name] if var.name in dims else as_text[var.name] for var in func.dims}
