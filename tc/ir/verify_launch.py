"""What can be seen to be wrong with a launch in its finished form: barriers that not all threads reach, and memory of no known size."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tc.ir.box_copies import CopyBox
from tc.ir.copies import first_copy_complaint
from tc.ir.expr import Buffer, Const, Expr, Var
from tc.ir.launch import Complaint, FinishedLaunch, finished, launches_in
from tc.ir.loop import Alloc, AwaitCopies, Barrier, CommitCopies, For, If, Let, Stmt, While, walk_statements
from tc.ir.node import Node, children
from tc.ir.uses import buffers_read, variables
from tc.ir.verify_phases import first_phase_complaint

MOST_SHARED_BYTES = 232448
"""Bytes of shared memory that a block has on any device: those of an NVIDIA H100."""

THREAD_SCOPES = ("local", "register", "fragment")
"""Scopes of what each thread holds by itself."""


def first_launch_complaint(stmt: Stmt) -> tuple[Node, str] | None:
    """What is wrong with a launch that has barriers, or is in the finished form otherwise; None when nothing is seen."""
    for launch in launches_in(stmt):
        found = finished(launch)
        if found is None:
            barrier = next((node for node in walk_statements(launch) if isinstance(node, Barrier)), None)
            if barrier is not None:
                return barrier, "a barrier stands in a launch that is not in its finished form: one nest of thread loops around it"
            continue
        complaint = next(_complaints(launch, found), None) or first_copy_complaint(found) or first_phase_complaint(found)
        if complaint is not None:
            return complaint
    return None


def _complaints(launch: For, parts: FinishedLaunch) -> Iterator[Complaint | tuple[Node, str]]:
    if not any(isinstance(node, (Barrier, CommitCopies, AwaitCopies, CopyBox)) for node in walk_statements(parts.body)):
        return
    total = 0
    for buffer in parts.shared:
        if buffer.scope != "shared":
            yield launch, f"{buffer} is allocated for the whole block, but its scope is {buffer.scope!r}"
        if not _is_constant(buffer):
            yield launch, f"{buffer} has no constant size, which memory of a block must have"
        total += buffer.dtype.bytes_of(prod(int(dim.value) for dim in buffer.shape if isinstance(dim, Const)))
    if total > MOST_SHARED_BYTES:
        yield launch, f"the shared buffers of the launch have {total} bytes; no device has more than {MOST_SHARED_BYTES} for a block"
    for node in walk_statements(parts.body):
        if isinstance(node, Alloc) and (node.buffer.scope not in THREAD_SCOPES or not _is_constant(node.buffer)):
            yield launch, f"{node.buffer} is a thread's own, but is of scope {node.buffer.scope!r} or has no constant size"
    yield from _uneven_barriers(parts.body, frozenset(loop.var for loop in parts.threads), None)


def _is_constant(buffer: Buffer) -> bool:
    return all(isinstance(dim, Const) for dim in buffer.shape)


def _uneven_barriers(stmt: Node, varying: frozenset[Var], under: str | None) -> Iterator[tuple[Node, str]]:
    """Barriers under what may differ from thread to thread. `varying`: variables that do."""
    match stmt:
        case Barrier():
            if under is not None:
                yield stmt, f"a barrier stands {under}, which need not be the same for all threads"
            return
        case CommitCopies() | AwaitCopies():
            if under is not None:
                yield stmt, f"groups of copies are counted {under}, which need not be the same for all threads"
            return
        case For(var=var, extent=extent) if _varies(extent, varying):
            varying, under = varying | {var}, f"in loop {var.name} of {extent} iterations"
        case If(condition=condition) | While(condition=condition) if _varies(condition, varying):
            under = f"under the condition {condition}"
        case Let(var=var, value=value) if _varies(value, varying):
            varying = varying | {var}
    for child in children(stmt):
        if isinstance(child, Stmt):
            yield from _uneven_barriers(child, varying, under)


def _varies(expr: Expr, varying: frozenset[Var]) -> bool:
    return bool(variables(expr) & varying) or any(buffer.scope in THREAD_SCOPES for buffer in buffers_read(expr))
