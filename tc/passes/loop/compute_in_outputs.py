"""Scratch buffers that an output is computed from, element by element, in the memory of that output."""

from __future__ import annotations

from tc.ir.arith import Facts
from tc.ir.expr import Buffer, Const, Expr, Load, const
from tc.ir.loop import Alloc, For, If, IntrinsicCall, PrimFunc, Seq, Stmt, Store, walk_statements
from tc.ir.node import Node, binders, children, replace, transform, walk
from tc.ir.uses import touches, variables
from tc.passes.loop.mark_in_place import Site, is_one_to_one, is_stored_once
from tc.passes.manager import loop_pass

LEAST_BYTES = 1024
"""What a smaller part of a buffer, all of it that is alive at once, holds stays in registers or near them. Of a larger one the lines of the
output are fetched while it is computed, and not when all is there."""


@loop_pass
def compute_in_outputs(func: PrimFunc, *, least_bytes: int = LEAST_BYTES) -> PrimFunc:
    """Replace scratch buffers by outputs that are computed from them.

        for i in range(n): T[i] = exp(x[i])                for i in range(n): y[i] = exp(x[i])
        for i in range(n): s[0] = s[0] + T[i]        =>    for i in range(n): s[0] = s[0] + y[i]
        for i in range(n): y[i] = T[i] / s[0]              for i in range(n): y[i] = y[i] / s[0]

    The output must have the buffer's shape and type, be stored by one statement, each element once, from the buffer's element at the
    same place, after everything else that happens to the buffer; where that is all inside of loops, their iterations must be known
    to touch different elements. Expects loops without blocks, before buffers are made smaller than they are.
    """
    if any(name == "in_place" for name, _ in func.attrs):
        return func
    for alloc in [node for node in walk_statements(func.body) if isinstance(node, Alloc) and node.buffer.scope == "global"]:
        version = replace(func, body=_version_with(func.body, alloc.buffer))
        output = next((output for output in func.outputs if _can_replace(version, alloc.buffer, output, least_bytes)), None)
        if output is not None:
            func = replace(func, body=_replaced(func.body, alloc.buffer, output))
    return func


def _version_with(body: Stmt, buffer: Buffer) -> Stmt:
    """The one of several versions of a program, one of which runs, that has to do with a buffer."""
    while True:
        match body:
            case Alloc(body=inner):
                body = inner
            case If(then_body=then_body, else_body=Stmt() as else_body) if not touches(else_body, buffer):
                body = then_body
            case If(then_body=then_body, else_body=Stmt() as else_body) if not touches(then_body, buffer):
                body = else_body
            case _:
                return body


def _replaced(body: Stmt, buffer: Buffer, output: Buffer) -> Stmt:
    def rewrite(node: Node) -> Node | None:
        match node:
            case Alloc(body=inner) if node.buffer is buffer:
                return inner
            case Load() | Store() if node.buffer is buffer:
                return replace(node, buffer=output)
        return None

    return transform(body, rewrite, lambda node: buffer in binders(node))


def _can_replace(func: PrimFunc, buffer: Buffer, output: Buffer, least_bytes: int) -> bool:
    same = len(buffer.shape) == len(output.shape) and all(a is b for a, b in zip(buffer.shape, output.shape))
    if not same or buffer.dtype is not output.dtype or buffer.strides is not None or output.strides is not None:
        return False
    nodes = list(walk(func.body))
    if any(isinstance(node, IntrinsicCall) and (touches(node, buffer) or touches(node, output)) for node in nodes):
        return False
    stores = [node for node in nodes if isinstance(node, Store) and node.buffer is output]
    if len(stores) != 1 or any(isinstance(node, Load) and node.buffer is output for node in nodes):
        return False
    (store,) = stores
    own = [node for node in walk(store.value) if isinstance(node, Load) and node.buffer is buffer]
    if not own or any(load.indices != store.indices for load in own):
        return False
    shared = _loops_around_all(func.body, buffer, store, Facts.of(func.facts))
    return shared is not None and _are_apart(func, buffer, store, *shared, least_bytes) and is_stored_once(func, output)


def _loops_around_all(body: Stmt, buffer: Buffer, last: Store, facts: Facts) -> tuple[tuple[For, ...], Facts] | None:
    """The loops around all that happens to a buffer and around `last`, and what is known there; None unless `last` comes last."""
    loops: tuple[For, ...] = ()
    while True:
        parts = [child for child in children(body) if touches(child, buffer) or touches(child, last.buffer)]
        if not parts or not all(isinstance(part, Stmt) for part in parts) or not isinstance(body, (For, Seq, Alloc, If)):
            return None
        if len(parts) > 1:
            break
        if isinstance(body, For):
            loops, facts = (*loops, body), facts.with_range(body.var, body.extent)
        body = parts[0]  # type: ignore[assignment]
    *_, end = parts
    is_behind = isinstance(body, Seq) and any(node is last for node in walk(end))
    return (loops, facts) if is_behind and not _is_used_beside(end, buffer, last) else None


def _is_used_beside(node: Node, buffer: Buffer, last: Store) -> bool:
    """Whether something other than `last` uses a buffer. One expression may stand in several statements."""
    if node is last:
        return False
    return getattr(node, "buffer", None) is buffer or any(_is_used_beside(child, buffer, last) for child in children(node))


def _are_apart(
    func: PrimFunc, buffer: Buffer, store: Store, loops: tuple[For, ...], facts: Facts, least_bytes: int
) -> bool:
    """Whether iterations of the loops around everything touch different elements, and each at least `least_bytes` of them."""
    accesses = [node for node in walk(func.body) if isinstance(node, (Load, Store)) and node.buffer is buffer]
    outer, dims = {loop.var for loop in loops}, set(func.dims)
    common: list[Expr] = []
    count = 1
    for axis, index in enumerate(store.indices):
        is_common = all(access.indices[axis] == index for access in accesses) and variables(index) <= outer | dims
        common.append(index if is_common else const(0))
        size = buffer.shape[axis]
        if not is_common:
            count = count * int(size.value) if isinstance(size, Const) and count else 0  # 0: not known
    if 0 < count * buffer.dtype.size_bytes <= least_bytes:
        return False
    return is_one_to_one(Site(replace(store, indices=tuple(common)), loops, facts), store.buffer, dims)
