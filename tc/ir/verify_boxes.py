"""What a single statement of `box_copies` must be to mean anything."""

from __future__ import annotations

from tc.ir.arith import simplify
from tc.ir.box_copies import MOST_BOX_DIMS, Arrive, AwaitPhase, AwaitProducts, BeginProducts, CopyBox, SetUpBarrier
from tc.ir.dtype import i64
from tc.ir.expr import TRUE, Const, Expr, Load, const, equal
from tc.ir.loop import Stmt
from tc.ir.types import product

MOST_ARRIVALS = (1 << 20) - 1
"""Of a phase, and bytes that one waits for at most. Source: PTX ISA, "Contents of the mbarrier object"."""


def element_operands(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement, of what it touches the first elements, that must be in scope."""
    match stmt:
        case CopyBox(buffer=buffer, indices=indices, source=source, view=view, corner=corner, barrier=barrier):
            return Load(buffer, indices), Load(source, (const(0),) * len(source.shape)), *view, *corner, barrier
        case SetUpBarrier(barrier=barrier) | Arrive(barrier=barrier):
            return (barrier,)
        case AwaitPhase(barrier=barrier, parity=parity):
            return barrier, parity
        case BeginProducts(sums=sums) | AwaitProducts(sums=sums):
            return sums
    return ()


def box_complaint(stmt: Stmt) -> str | None:
    """What is wrong with a statement; None when nothing is."""
    match stmt:
        case CopyBox():
            return _copy_complaint(stmt) or _barrier_complaint(stmt.barrier)
        case SetUpBarrier(barrier=barrier, arrivals=arrivals):
            wrong = None if 0 < arrivals <= MOST_ARRIVALS else f"a phase of {barrier} waits for {arrivals} arrivals"
            return wrong or _barrier_complaint(barrier)
        case Arrive(barrier=barrier, expected_bytes=count):
            wrong = None if 0 <= count <= MOST_ARRIVALS else f"{count} bytes are expected at {barrier}"
            return wrong or _barrier_complaint(barrier)
        case AwaitPhase(barrier=barrier, parity=parity):
            return _barrier_complaint(barrier) or (None if parity.dtype == i64 else f"the parity {parity} is no i64")
        case AwaitProducts(pending=pending) if pending < 0:
            return f"products are awaited until {pending} groups are left"
    return None


def _barrier_complaint(barrier: Load) -> str | None:
    good = barrier.buffer.scope == "shared" and barrier.buffer.dtype == i64
    return None if good else f"{barrier} is no phase barrier: these are of i64, in shared memory"


def _copy_complaint(copy: CopyBox) -> str | None:
    if copy.buffer.scope != "shared" or copy.source.scope != "global" or copy.buffer.dtype != copy.source.dtype:
        return f"a box is copied from {copy.source} to {copy.buffer}: it must be from global to shared memory, of one type"
    is_known = all(isinstance(extent, Const) and extent.value > 0 for extent in copy.box)
    if not len(copy.box) == len(copy.corner) == len(copy.view) or not is_known:
        return f"a box of {copy.source} has no constant extent for each dim of what it is seen as"
    if copy.filled is None:
        return f"a box of {' x '.join(map(str, copy.extents))} does not fill rows of {copy.buffer}"
    if simplify(equal(product(copy.view), product(copy.source.shape))) is not TRUE:
        return f"{copy.source} is seen as something of another size, {' x '.join(map(str, copy.view))}"
    if len(copy.view) > MOST_BOX_DIMS:
        return f"a box of {' x '.join(map(str, copy.extents))} of {copy.source} has more than {MOST_BOX_DIMS} dims"
    return None
