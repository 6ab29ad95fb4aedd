"""Copies of boxes of global memory to a block's memory, barriers with phases that they complete, and products on their way.

These statements stand in the finished form of launches alone. A *phase barrier* is an element of a shared buffer of i64 that nothing else
touches. It counts down, in each phase, the arrivals that `SetUpBarrier` names, and the bytes that arrivals announce and copies bring; when
nothing is missing the phase is complete and the next one begins. Phases are told apart by their parity, that of the first being 0.

    set_up_barrier(full[0], 1)                               one thread, and a barrier() behind it
    arrive(full[0], 8192); copy_box(S[0, 0, 0], X[i, k], (64, 64), full[0])          the thread that copies
    await_phase(full[0], 0); warp('wgmma...', S[0, 0, 0], ...)                           those that read S[0]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tc.ir.expr import Buffer, Const, Expr, Load
from tc.ir.loop import Stmt, inner_statements
from tc.ir.node import cached_on_node

BOX_ROW_BYTES = 128
"""Of a row of a box, which lies in shared memory as `swizzle_mode(128, ...)` says."""

BOX_ALIGNMENT = 1024
"""Bytes at whose multiples boxes begin in shared memory: where the pattern of the swizzle repeats."""


MOST_BOX_DIMS = 5
"""Of what boxes are copied from. Source: CUDA driver API, cuTensorMapEncodeTiled."""


@dataclass(frozen=True, eq=False)
class CopyBox(Stmt):
    """A box of a global buffer is copied to a shared one while the thread does something else; elements outside of the global buffer are
    zeros. Its bytes count for the current phase of `barrier` when they are there.

    The source is seen as an array of shape `view`, which has as many elements in the same order: several of its dims may be one there. The
    box begins at `corner`, which may be outside, and has the extents `box`, a constant for each dim of the view. It is stored at `indices`
    of `buffer`, row by row, as the last dims of that, each of which may be several of the box. Nobody touches these elements until the
    phase is complete; who has waited for that sees them.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    source: Buffer
    view: tuple[Expr, ...]
    corner: tuple[Expr, ...]
    box: tuple[Expr, ...]
    barrier: Load

    @property
    def extents(self) -> tuple[int, ...]:
        """Of the box."""
        return tuple(int(extent.value) for extent in self.box if isinstance(extent, Const))

    @property
    def filled(self) -> tuple[int, ...] | None:
        """The extents of the box as those of the last dims of `buffer`; None where it does not fill all of these but the first."""
        left, found = [extent for extent in self.extents if extent != 1], list[int]()
        for dim in reversed(self.buffer.shape):
            rows = 1
            while left and (not isinstance(dim, Const) or rows * left[-1] <= dim.value):
                rows *= left.pop()
            found.insert(0, rows)
            if not left:
                return tuple(found)
            if not isinstance(dim, Const) or rows != dim.value:
                return None
        return None

    @property
    def size_bytes(self) -> int:
        """Of the box."""
        return prod(self.extents) * self.buffer.dtype.size_bytes


@dataclass(frozen=True, eq=False)
class SetUpBarrier(Stmt):
    """An element becomes a phase barrier of so many arrivals a phase. Threads that use it wait at a `Barrier` first."""

    barrier: Load
    arrivals: int


@dataclass(frozen=True, eq=False)
class Arrive(Stmt):
    """The thread arrives at a phase barrier; the current phase also waits for so many more bytes of copies. What the thread did before is
    seen by those who wait for the phase."""

    barrier: Load
    expected_bytes: int = 0


@dataclass(frozen=True, eq=False)
class AwaitPhase(Stmt):
    """The thread waits until the current phase of a barrier is not of this parity: until the last phase of it is complete.

    A barrier at its start is in phase 0, so who waits for parity 1 there goes on at once.
    """

    barrier: Load
    parity: Expr


@dataclass(frozen=True, eq=False)
class BeginProducts(Stmt):
    """The registers that a group's threads stored in before may be operands of asynchronous products (see `WarpCall`) from here on.
    `sums`: the first registers of the buffers that these add to."""

    sums: tuple[Load, ...]


@dataclass(frozen=True, eq=False)
class CommitProducts(Stmt):
    """The products that the thread's group began since it came by here last are a group of products."""


@dataclass(frozen=True, eq=False)
class AwaitProducts(Stmt):
    """The thread waits until at most the last `pending` of its groups of products are computed. `sums`: the first registers of the buffers
    that products add to, each of which is no longer touched by them then, if nothing is pending."""

    pending: int
    sums: tuple[Load, ...]


BarrierStmt = (SetUpBarrier, Arrive, AwaitPhase)


def box_buffers(stmt: Stmt) -> frozenset[Buffer]:
    """The shared buffers that boxes are copied to at or below a statement."""
    return frozenset(node.buffer for node in box_copies(stmt))


@cached_on_node
def box_copies(stmt: Stmt) -> tuple[CopyBox, ...]:
    """The copies of boxes at or below a statement, in order."""
    own = (stmt,) if isinstance(stmt, CopyBox) else ()
    return own + tuple(copy for child in inner_statements(stmt) for copy in box_copies(child))


@cached_on_node
def barrier_buffers(stmt: Stmt) -> frozenset[Buffer]:
    """The buffers whose elements are phase barriers at or below a statement."""
    own = frozenset((stmt.barrier.buffer,)) if isinstance(stmt, (*BarrierStmt, CopyBox)) else frozenset[Buffer]()
    return own.union(*map(barrier_buffers, inner_statements(stmt)))
