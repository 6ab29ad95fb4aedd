"""Remove what computes for nobody: blocks whose results nothing reads, and stores to scratch that nothing loads."""

from __future__ import annotations

from collections.abc import Iterator

from tc.ir.box_copies import Arrive, CopyBox, SetUpBarrier
from tc.ir.expr import Buffer, Load
from tc.ir.loop import Alloc, Block, For, If, PrimFunc, Seq, Stmt, Store, WarpCall, is_statement, seq, walk_statements
from tc.ir.node import Node, children, replace, transform
from tc.ir.uses import buffers_read, buffers_written
from tc.passes.manager import loop_pass


@loop_pass
def drop_unread(func: PrimFunc) -> PrimFunc:
    """Remove blocks on whose results no result of the PrimFunc depends, the loops around them and their buffers.

    Simplification leaves such blocks behind: `c > c` is false, and reads no c. What they read stays a parameter.
    """
    blocks: list[Block] = []
    live = set(func.buffers)
    for node in _outside_blocks(func.body):
        if isinstance(node, Block):
            blocks.append(node)
        elif isinstance(node, Load):
            live.add(node.buffer)
    waiting = blocks
    while read := [block for block in waiting if buffers_written(block) & live]:
        live.update(*map(buffers_read, read), *map(buffers_written, read))  # what they store for nobody, too, has a place
        waiting = [block for block in waiting if block not in read]
    if not waiting:
        return func
    dead = {block.name for block in waiting}

    def remove(node: Node) -> Node | None:
        match node:
            case Block(name=name) if name in dead:
                return Seq(())
            case For(body=Seq(stmts=())):
                return Seq(())
            case Seq(stmts=stmts) if any(_is_empty(stmt) for stmt in stmts):
                return seq(*stmts)
            case Alloc(buffer=buffer, body=body) if buffer not in live:
                return body
        return None

    return replace(func, body=transform(func.body, remove, is_statement))


def _is_empty(stmt: Stmt) -> bool:
    return isinstance(stmt, Seq) and not stmt.stmts


def _outside_blocks(root: Stmt) -> Iterator[Node]:
    """What is in a program, its outermost blocks included, but not what is in these."""
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, Block):
            stack += children(node)


@loop_pass
def drop_unread_scratch(func: PrimFunc) -> PrimFunc:
    """Remove scratch that nothing loads from, and the stores to it; then that which only such stores loaded."""
    while dead := _unread_scratch(func.body):

        def remove(node: Node) -> Node | None:
            match node:
                case Store(buffer=buffer) if buffer in dead:
                    return Seq(())
                case Alloc(buffer=buffer, body=body) if buffer in dead:
                    return body
                case If(then_body=Seq(stmts=()), else_body=None) | For(body=Seq(stmts=())):
                    return Seq(())
                case Seq(stmts=stmts) if any(_is_empty(stmt) for stmt in stmts):
                    return seq(*stmts)
            return None

        func = replace(func, body=transform(func.body, remove, is_statement))
    return func


def _unread_scratch(body: Stmt) -> frozenset[Buffer]:
    """What is allocated, and touched by stores alone."""
    nodes = list(walk_statements(body))
    allocated = {node.buffer for node in nodes if isinstance(node, Alloc)}
    touched = [buffers_written(node) for node in nodes if isinstance(node, (CopyBox, SetUpBarrier, Arrive, WarpCall))]
    return frozenset(allocated).difference(buffers_read(body), *touched)
