"""Candidates that are not worth building: far more code than any good program has, or more than a device can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tc.autotune.search.space import Candidate
from tc.cost.device_estimate import exceeded
from tc.cost.device_work import device_work
from tc.errors import TcError
from tc.ir.expr import Const
from tc.ir.loop import Block, For, LoopKind, PrimFunc, Stmt, Store
from tc.ir.node import children

MOST_OPERATIONS = 3000
"""Vector operations written out one after the other; building takes about 0.2 ms for each."""


def refuse(candidate: Candidate, dims: Mapping[str, int]) -> str | None:
    """Why a candidate must not be built, or None. `dims`: the sizes it is measured with, by name."""
    if candidate.target is None or candidate.target.device is None:
        return refuse_large(candidate)
    return None if candidate.features is not None else refuse_unfit(candidate, dims)  # who made these has looked


def refuse_unfit(candidate: Candidate, dims: Mapping[str, int]) -> str | None:
    """Why a device cannot run a candidate: passes decline it, or a block takes more threads, shared memory or registers than there are."""
    assert candidate.target is not None and candidate.target.device is not None
    try:
        launches = device_work(candidate.final, dims)
    except TcError as error:
        return error.text
    return next(filter(None, (exceeded(launch, candidate.target.device) for launch in launches)), None)


def refuse_large(candidate: Candidate) -> str | None:
    """Why a candidate for processors must not be built, or None."""
    operations = sum(written_out(candidate.func)) if candidate.operations is None else candidate.operations
    if operations > MOST_OPERATIONS:
        return f"{operations} operations are written out, {MOST_OPERATIONS} are allowed"
    return None


def written_out(func: PrimFunc) -> Iterator[int]:
    """For every store how many times unrolling writes it."""
    stack: list[tuple[Stmt, int]] = [(func.body, 1)]
    while stack:
        stmt, times = stack.pop()
        if isinstance(stmt, Store):
            yield times
            continue
        if isinstance(stmt, For) and stmt.kind is LoopKind.UNROLLED and isinstance(stmt.extent, Const):
            times *= int(stmt.extent.value)
        inner = (stmt.body,) if isinstance(stmt, Block) else children(stmt)
        stack.extend((child, times) for child in inner if isinstance(child, Stmt))
