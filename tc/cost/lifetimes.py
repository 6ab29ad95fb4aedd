"""How much of what a thread has by itself it needs at once: the most that is between a first and a last use anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from tc.ir.expr import Buffer, Expr
from tc.ir.loop import Alloc, For, Stmt, inner_statements, walk_statements
from tc.ir.node import children
from tc.ir.uses import buffers_read, buffers_written


def most_at_once(body: Stmt, size_of: Callable[[Buffer], float]) -> float:
    """The largest sum of the sizes of buffers that are allocated in `body` and hold something that is read later.

    An estimate: buffers are taken as a whole. What a loop reads before it writes it is there all the time that the loop runs.
    """
    own = frozenset(node.buffer for node in walk_statements(body) if isinstance(node, Alloc))
    uses = _Uses(own)
    uses.visit(body)
    changes = [0.0] * (uses.now + 2)
    for buffer, (first, last) in uses.ranges.items():
        size = size_of(buffer)
        changes[first] += size
        changes[last + 1] -= size
    return max(accumulate(changes), default=0.0)


@dataclass
class _Uses:
    """Statements in order, by numbers: of each buffer the first and the last that uses it. `read_first`: of each loop around, whether it
    reads a buffer before it writes it."""

    own: frozenset[Buffer]
    now: int = 0
    ranges: dict[Buffer, tuple[int, int]] = field(default_factory=dict)
    read_first: list[dict[Buffer, bool]] = field(default_factory=list)

    def visit(self, stmt: Stmt) -> None:
        inside = inner_statements(stmt)
        if not inside:
            self.use(buffers_read(stmt), buffers_written(stmt))
            return
        values = [child for child in children(stmt) if isinstance(child, Expr)]
        self.use(frozenset[Buffer]().union(*map(buffers_read, values)), frozenset())
        if isinstance(stmt, For):
            self.loop(stmt)
        else:
            for child in inside:
                self.visit(child)

    def loop(self, stmt: For) -> None:
        start = self.now
        self.read_first.append({})
        self.visit(stmt.body)
        for buffer, is_read in self.read_first.pop().items():
            if is_read:
                first, _ = self.ranges[buffer]
                self.ranges[buffer] = min(first, start), self.now

    def use(self, read: frozenset[Buffer], written: frozenset[Buffer]) -> None:
        self.now += 1
        for buffer in (read | written) & self.own:
            first, _ = self.ranges.get(buffer, (self.now, self.now))
            self.ranges[buffer] = first, self.now
            for found in self.read_first:
                found.setdefault(buffer, buffer in read)
