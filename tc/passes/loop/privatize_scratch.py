"""Allocate scratch memory inside of the concurrent loops whose iterations each have some of their own."""

from __future__ import annotations

from tc.ir.expr import Buffer
from tc.ir.loop import Alloc, For, PrimFunc, While
from tc.ir.node import replace
from tc.ir.uses import own_reads, touches
from tc.passes.manager import loop_pass
from tc.schedule.independence import CONCURRENT, is_private_to_iterations
from tc.schedule.tree import Place, allocated_in, below, replace_stmt, statements, without_alloc


@loop_pass
def privatize_scratch(func: PrimFunc) -> PrimFunc:
    """Move allocations into the loops that were made concurrent because each iteration makes for itself what it reads there.

        T = alloc(f32[4])                               for k in range(8):
        for k in range(8):                                  for t in bound(32, 'thread.x'):
            for t in bound(32, 'thread.x'):                     T = alloc(f32[4])
                for i in range(4): T[i] = ...      =>           for i in range(4): T[i] = ...
                for i in range(4): ... T[i]                     for i in range(4): ... T[i]

    Only where a loop that is run in order is in between: into others `compact_buffers` moves them, but through such a loop only what it
    sees, without blocks, to hand nothing on. What iterations touch apart from each other stays, since it may be handed on.
    """
    for buffer in allocated_in(func.body):
        func = _privatized(func, buffer)
    return func


def _privatized(func: PrimFunc, buffer: Buffer) -> PrimFunc:
    for place in reversed(_loops_behind_others(func, buffer)):
        if is_private_to_iterations(func, place, buffer):
            inside = replace_stmt(func, place, replace(place.loop, body=Alloc(buffer, place.loop.body)))
            return without_alloc(inside, buffer)  # the first one, which is the outer
    return func


def _loops_behind_others(func: PrimFunc, buffer: Buffer) -> list[Place]:
    """The concurrent loops around all uses of a buffer that have one whose iterations are in order between them and its allocation."""
    found: list[Place] = []
    in_order = False
    users = [place for place in statements(func.body) if isinstance(place.stmt, Alloc) and place.stmt.buffer is buffer]
    while len(users) == 1:
        (place,) = users
        if isinstance(place.stmt, For) and place.loop.kind in CONCURRENT:
            found += [place] if in_order else []
        elif isinstance(place.stmt, (For, While)):
            in_order = True
        users = [] if buffer in own_reads(place.stmt) else [each for each in below(place) if touches(each.stmt, buffer)]
    return found
