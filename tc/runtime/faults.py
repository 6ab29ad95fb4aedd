"""What checks in kernels found, on a device: the first of a program in order, kept where its host finds it when it waits anyway.

A kernel with checks leaves a report behind (see `tc.ir.access`), in memory that later kernels use again. On a device nobody waits to
read it: a kernel of one thread follows, `collect_first`, and puts the first report with a fault into a record of the frame, which stays
until somebody reads it. So launches go on, with indices that were refused, and touch nothing outside of tensors meanwhile; the program
asks for the record before the host looks at data that kernels made, and its caller when results come to the host.

A record is three i64: the number of the check that failed, from 1 (0: none), the index, and the size.
"""

from __future__ import annotations

from functools import cache

from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_prim_func
from tc.ir.plan import ExecutionPlan, Launch, all_steps

COLLECT = "collect_first"
RECORD_BYTES = 24

_TEXT = """
@loops
def collect_first(report: i64[rows, 3], record: i64[1, 3], rows: i64, before: i64):
    outputs(1)
    promise(rows, 0, None, 1)
    for t in bound(1, 'thread.x'):
        for k in range(rows):
            if report[k, 0] != 0 and record[0, 0] == 0:
                record[0, 0] = before + k + 1
                record[0, 1] = report[k, 1]
                record[0, 2] = report[k, 2]
"""


@cache
def collect_first() -> PrimFunc:
    """The kernel: checks `before + 1` and on are those of the report's rows."""
    return parse_prim_func(_TEXT)


def has_checks(plan: ExecutionPlan) -> bool:
    """Whether a kernel of a plan may report faults."""
    return any(isinstance(step, Launch) and step.checks for step in all_steps(plan.steps))
