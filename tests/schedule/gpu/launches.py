"""Programs scheduled for devices, and what must hold of any such schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tc.interp import run_prim_func
from tc.ir.loop import For, IntrinsicCall, LoopKind, PrimFunc, Stmt, Store
from tc.ir.node import children
from tc.ir.verify import verify
from tc.passes.loop.compact_buffers import compact_buffers
from tc.passes.loop.lower_blocks import lower_blocks
from tc.passes.loop.simplify_loops import simplify_loops
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
    """A schedule that verifies, in which the host touches no memory."""
    verify(scheduled)
    assert stores_of_host(scheduled.body) == []


def check_schedule(func: PrimFunc, arrays: Sequence[np.ndarray], dims: tuple[int, ...] = (), rtol: float = 1e-5) -> Scheduled:
    """The schedule for devices does what the function does, in order and with independent iterations backward, and can be replayed."""
    schedule = device_schedule(func)
    check_launches(func, schedule.func)
    expected = run_prim_func(func, arrays, dims)
    for final in (schedule.func, simplify_loops(compact_buffers(simplify_loops(lower_blocks(schedule.func))))):
        for backward in (False, True):
            for want, got in zip(expected, run_prim_func(final, arrays, dims, backward=backward), strict=True):
                np.testing.assert_allclose(got, want, rtol=rtol, err_msg=str(schedule.trace))
    assert Trace.from_json(schedule.trace.to_json()) == schedule.trace
    return schedule
