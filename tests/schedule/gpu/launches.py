"""Programs scheduled for devices, and what must hold of any such schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tc.interp import run_prim_func
from tc.ir.expr import Const
from tc.ir.loop import Alloc, For, IntrinsicCall, LoopKind, PrimFunc, Stmt, Store, walk_statements
from tc.ir.node import children
from tc.ir.verify import verify
from tc.passes.loop.compact_buffers import compact_buffers
from tc.passes.loop.lower_blocks import lower_blocks
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import DEVICE_FINISH_CALLS, run_pipeline
from tc.schedule.knobs import Decide, take_default
from tc.schedule.rules import Scheduled, apply_rules
from tc.schedule.step import Trace
from tc.target import Target

DEVICE = Target.parse("cuda:sm_80@x86-64-v3:cores=1")


def device_schedule(func: PrimFunc, target: Target = DEVICE, decide: Decide = take_default) -> Scheduled:
    """What the rules for devices make of a function."""
    return apply_rules(func, target, decide)


def stores_of_host(stmt: Stmt) -> list[Stmt]:
    """Statements that write memory and are under no bound loop."""
    if isinstance(stmt, For) and stmt.kind is LoopKind.BOUND:
        return []
    if isinstance(stmt, (Store, IntrinsicCall)):
        return [stmt]
    return [found for child in children(stmt) if isinstance(child, Stmt) for found in stores_of_host(child)]


def check_launches(func: PrimFunc, scheduled: PrimFunc) -> None:
    """A schedule that verifies, in which the host touches no memory, and whose launches the device can run."""
    verify(scheduled)
    assert stores_of_host(scheduled.body) == []
    assert DEVICE.device is not None
    for launch in launches(lowered(scheduled).body):
        threads: dict[str, int] = {}
        shared = 0
        for stmt in walk_statements(launch):
            if isinstance(stmt, For) and stmt.thread.startswith("thread"):
                assert isinstance(stmt.extent, Const), f"{stmt.var.name} has {stmt.extent} threads"
                threads[stmt.thread] = max(threads.get(stmt.thread, 1), int(stmt.extent.value))
            if isinstance(stmt, Alloc) and stmt.buffer.scope == "shared":
                sizes = [dim.value for dim in stmt.buffer.shape if isinstance(dim, Const)]
                assert len(sizes) == len(stmt.buffer.shape), f"{stmt.buffer} is of no constant size"
                shared += stmt.buffer.dtype.size_bytes * int(np.prod(sizes))
        assert np.prod([*threads.values()]) <= DEVICE.device.max_threads_per_block
        assert shared <= DEVICE.device.max_shared_bytes_per_block


def launches(stmt: Stmt) -> list[For]:
    """The outermost bound loops."""
    if isinstance(stmt, For) and stmt.kind is LoopKind.BOUND:
        return [stmt]
    return [found for child in children(stmt) if isinstance(child, Stmt) for found in launches(child)]


def drawn(rng: np.random.Generator) -> Decide:
    """Answers at random."""
    return lambda knob: knob.options[int(rng.integers(len(knob.options)))]


def lowered(scheduled: PrimFunc) -> PrimFunc:
    """Loops without blocks, scratch memory where it is used and as large as it need be."""
    return simplify_loops(compact_buffers(simplify_loops(lower_blocks(scheduled))))


def finished(scheduled: PrimFunc) -> PrimFunc:
    """What each thread runs, on the device."""
    assert DEVICE.device is not None
    return run_pipeline(scheduled, DEVICE_FINISH_CALLS, {"threads": 0, "features": DEVICE.device.features})


def check_schedule(
    func: PrimFunc,
    arrays: Sequence[np.ndarray],
    dims: tuple[int, ...] = (),
    rtol: float = 1e-5,
    decide: Decide = take_default,
    target: Target = DEVICE,
) -> Scheduled:
    """The schedule for devices does what the function does: in order, with independent iterations backward, and by threads that meet at
    barriers, without races."""
    schedule = device_schedule(func, target, decide)
    check_launches(func, schedule.func)
    expected = run_prim_func(func, arrays, dims)
    for final, backward in ((schedule.func, True), (finished(schedule.func), False)):
        verify(final)
        results = run_prim_func(final, arrays, dims, backward=backward)
        for want, got in zip(expected, results[: len(expected)], strict=True):  # workspaces follow
            np.testing.assert_allclose(got, want, rtol=rtol, err_msg=str(schedule.trace))
    assert Trace.from_json(schedule.trace.to_json()) == schedule.trace
    return schedule
