"""The launches of a PrimFunc: its outermost nests of loops that are bound to axes of a device.

Everything outside of launches is host code. Host code emits a call for each, device code a function for each; both go by this list, so
that they agree on the order of arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tc.errors import CodegenError
from tc.ir.box_copies import BOX_ALIGNMENT, CopyBox, box_buffers, box_copies
from tc.ir.expr import Buffer, Const, Expr, Load, Var, const
from tc.ir.launch import launches_in
from tc.ir.loop import Alloc, For, IntrinsicCall, Let, LoopKind, PrimFunc, Stmt, Store, walk_statements
from tc.ir.node import Node, cached_on_node, children, walk
from tc.ir.types import product
from tc.ir.uses import buffers_written, unbound, variables

AXES = ("x", "y", "z")

SHARED_ALIGNMENT = 16
"""Bytes at whose multiples shared buffers begin: those of the widest access."""

MOST_STATIC_SHARED_BYTES = 48 << 10
"""Of a CUDA function. Source: CUDA C++ Programming Guide, compute capabilities."""

FEW_THREADS = 64
"""Of a block for which ptxas is told that one at a time will do: it keeps registers for 12 to 16 of them by itself, and spills."""

MAX_GRID = (2**31 - 1, 65535, 65535)
"""Blocks along each axis that every device takes. Source: CUDA C++ Programming Guide, table of technical specifications."""


@dataclass(frozen=True, eq=False)
class BoxMap:
    """What boxes of these extents are copied from, seen as of this shape: the host describes it, where it is and its sizes, for each
    launch."""

    source: Buffer
    shape: tuple[Expr, ...]
    extents: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DeviceLaunch:
    """One launch of a device function.

    `body`: the outermost bound loop. Arguments: descriptions of what boxes are copied from, `maps`, then the addresses of `buffers`, then
    `scalars` as i64, each in order of first use in the PrimFunc's parameters and then in the host code around. `grid`: blocks along x, y,
    z, over `scalars`; `threads`: of a block, along x, y, z. `shared`: buffers of the block. `written`: those of `buffers` that it writes.
    """

    index: int
    body: For
    buffers: tuple[Buffer, ...]
    scalars: tuple[Var, ...]
    grid: tuple[Expr, Expr, Expr]
    threads: tuple[int, int, int]
    shared: tuple[Buffer, ...]
    written: frozenset[Buffer]
    maps: tuple[BoxMap, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """Bytes of a block's shared buffers, each beginning at a multiple of its alignment."""
        return self._end_of(len(self.shared))

    def shared_alignment(self, buffer: Buffer) -> int:
        """Bytes at whose multiples a shared buffer begins."""
        return BOX_ALIGNMENT if buffer in box_buffers(self.body) else SHARED_ALIGNMENT

    @property
    def most_shared_alignment(self) -> int:
        """Bytes at whose multiples all of shared memory begins."""
        return max(map(self.shared_alignment, self.shared), default=SHARED_ALIGNMENT)

    def _end_of(self, count: int) -> int:
        """Where the first shared buffers end, in bytes."""
        end = 0
        for buffer in self.shared[:count]:
            alignment = self.shared_alignment(buffer)
            end = -(-end // alignment) * alignment + _rounded_bytes(buffer)
        return end

    def map_of(self, copy: CopyBox) -> int:
        """The number of the description that a copy needs."""
        wanted = copy.source, copy.view, copy.extents
        return next(k for k, each in enumerate(self.maps) if (each.source, each.shape, each.extents) == wanted)

    @property
    def asks_for_shared(self) -> bool:
        """Whether a CUDA launch asks for its shared memory: there is more than a function may have by itself."""
        return self.shared_bytes > MOST_STATIC_SHARED_BYTES

    def shared_offset(self, buffer: Buffer) -> int:
        """Where a shared buffer begins, in bytes, among those of the block."""
        return self._end_of(self.shared.index(buffer) + 1) - _rounded_bytes(buffer)


def _rounded_bytes(buffer: Buffer) -> int:
    size = product(buffer.shape)
    count = buffer.dtype.bytes_of(int(size.value)) if isinstance(size, Const) else 0
    return -(-count // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


def launches_of(func: PrimFunc) -> tuple[DeviceLaunch, ...]:
    """The launches of a PrimFunc whose bound loops are in the finished form (see `distribute_threads`), in the order of the text.

    CodegenError where host code would touch memory, which is the device's, and for sizes that only the device knows.
    """
    _check_host(func.body, func)
    return tuple(_launch(index, loop, func) for index, loop in enumerate(launches_in(func.body)))


def _check_host(stmt: Stmt, func: PrimFunc) -> None:
    """CodegenError if statements outside of launches read or write memory."""
    if isinstance(stmt, For) and stmt.kind is LoopKind.BOUND:
        return
    if isinstance(stmt, (Store, IntrinsicCall, Alloc)):
        raise CodegenError(f"{func.name}: a {type(stmt).__name__.lower()} stands outside of every loop that is bound to a device")
    for child in children(stmt):
        if isinstance(child, Stmt):
            _check_host(child, func)
        elif any(isinstance(node, Load) for node in walk(child)):
            raise CodegenError(f"{func.name}: the host would read memory of the device to run a {type(stmt).__name__.lower()}")


def _launch(index: int, body: For, func: PrimFunc) -> DeviceLaunch:
    used = unbound(body)
    bound = _bound_loops(body)
    inside = {loop.var for loop in walk_statements(body) if isinstance(loop, (For, Let))}
    grid: list[Expr] = [const(1)] * 3
    threads = [1, 1, 1]
    for loop in bound:
        level, _, axis = loop.thread.partition(".")
        place = AXES.index(axis)
        if level == "thread":
            if not isinstance(loop.extent, Const):
                raise CodegenError(f"{func.name}: {loop.thread} runs over {loop.extent}, must be a known number of threads")
            threads[place] = max(threads[place], int(loop.extent.value))
        elif not inside.isdisjoint(variables(loop.extent)) or any(isinstance(node, Load) for node in walk(loop.extent)):
            raise CodegenError(f"{func.name}: the number of blocks along {loop.thread}, {loop.extent}, is not known before the launch")
        else:
            grid[place] = loop.extent
    scalars = tuple(var for var in (*func.dims, *_host_variables(func.body)) if var in used)
    buffers = tuple(param for param in func.buffers if param in used and param in _touched(body))
    shared = tuple(s.buffer for s in walk_statements(body) if isinstance(s, Alloc) and s.buffer.scope == "shared")
    written = buffers_written(body).intersection(buffers)
    return DeviceLaunch(index, body, buffers, scalars, tuple(grid), tuple(threads), shared, written, _maps(body))  # type: ignore[arg-type]


def _maps(body: For) -> tuple[BoxMap, ...]:
    found = dict.fromkeys((copy.source, copy.view, copy.extents) for copy in box_copies(body))
    return tuple(BoxMap(*each) for each in found)


@cached_on_node
def _touched(node: Node) -> frozenset[Buffer]:
    """The buffers whose elements threads touch by their addresses."""
    own = frozenset((node.buffer,)) if isinstance(node, (Load, Store)) else frozenset[Buffer]()
    return own.union(*map(_touched, children(node)))


def _bound_loops(stmt: Stmt) -> list[For]:
    return [node for node in walk_statements(stmt) if isinstance(node, For) and node.kind is LoopKind.BOUND]


def _host_variables(stmt: Stmt) -> Iterator[Var]:
    """What host code binds around launches, outermost first."""
    if isinstance(stmt, For) and stmt.kind is LoopKind.BOUND:
        return
    if isinstance(stmt, (For, Let)):
        yield stmt.var
    for child in children(stmt):
        if isinstance(child, Stmt):
            yield from _host_variables(child)
