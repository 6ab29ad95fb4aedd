"""Matrices in shared memory that warps load by rows: places mixed so that no bank is asked twice.

    A = alloc(f16[128, 32], shared)                         A = alloc(f16[4096], shared)
    A[i, j] = ...                                   =>      A[i * 32 + bit_xor(j // 8, i // 2 % 4) * 8 + j % 8] = ...
    warp('ldmatrix...', A[16 * p + lane % 16, ...], F[0])   warp('ldmatrix...', A[...], F[0])

Which bits are mixed follows from the loads' layouts, and from stores that fill rows by vectors; see `choose_swizzle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from tc.ir.bit_layout import BitLayout, layout
from tc.ir.expr import Buffer, Const, Load, const
from tc.ir.fragments import ldmatrix_of
from tc.ir.intrinsic import INTRINSICS, is_of_group
from tc.ir.loop import Alloc, PrimFunc, Store, WarpCall, walk_statements
from tc.ir.node import Node, replace, transform
from tc.ir.shared_memory import choose_swizzle
from tc.passes.manager import loop_pass

ROW_BYTES = 16
"""Of a row that a lane names, or of a vector that it stores."""

LANES = 32


@loop_pass
def swizzle_shared(func: PrimFunc) -> PrimFunc:
    """Lay out the matrices that `ldmatrix` reads so that banks of shared memory are asked as seldom as can be.

    Those that boxes are copied to, for products of groups, are mixed by the hardware.

    The last two dims of such a buffer become one. Those whose extents are no powers of two, or less than a row, stay as they are. Runs on
    launches in the finished form; indices are simplified by `simplify_loops`.
    """
    calls = [node for node in walk_statements(func.body) if isinstance(node, WarpCall) and not is_of_group(node.name)]
    shared = {node.buffer for node in walk_statements(func.body) if isinstance(node, Alloc) and node.buffer.scope == "shared"}
    body = func.body
    for buffer in dict.fromkeys(load.buffer for call in calls for load in call.operands if load.buffer in shared):
        found = _swizzle(buffer, [call for call in calls if any(load.buffer is buffer for load in call.operands)])
        if found is not None:
            flat = replace(buffer, shape=(*buffer.shape[:-2], const(dict(found.outputs)["offset"])))
            body = transform(body, partial(_moved, old=buffer, new=flat, by=found))
    return replace(func, body=body)


def _moved(node: Node, *, old: Buffer, new: Buffer, by: BitLayout) -> Node | None:
    match node:
        case Load(buffer=buffer, indices=(*lead, row, column)) | Store(buffer=buffer, indices=(*lead, row, column)) if buffer is old:
            return replace(node, buffer=new, indices=(*lead, *by.exprs(row=row, column=column)))
        case Alloc(buffer=buffer) if buffer is old:
            return replace(node, buffer=new)
    return None


def _swizzle(buffer: Buffer, calls: Iterable[WarpCall]) -> BitLayout | None:
    """From row and column to the place among the elements of a matrix; None where it has none."""
    if len(buffer.shape) < 2 or not all(isinstance(dim, Const) for dim in buffer.shape[-2:]):
        return None
    rows, columns = (int(dim.value) for dim in buffer.shape[-2:] if isinstance(dim, Const))
    chunk = ROW_BYTES // buffer.dtype.size_bytes
    if any(size & (size - 1) for size in (rows, columns)) or columns < chunk:
        return None
    loads = [access for call in calls for access in _loads(call, buffer, rows, columns)]
    return choose_swizzle(rows, columns, buffer.dtype.size_bytes, [*dict.fromkeys(loads), _store(rows, columns, chunk)])


def _loads(call: WarpCall, buffer: Buffer, rows: int, columns: int) -> Iterator[BitLayout]:
    """The rows that lanes name, from (element, lane) to (row, column), of one call on a matrix that is large enough."""
    intrinsic = INTRINSICS[call.name]
    target = next(found for found in intrinsic.layouts if found is not None)
    load = ldmatrix_of(target, buffer.dtype.bits)
    if load is not None and all(size <= most for (_, size), most in zip(load.addresses.outputs, (rows, columns), strict=True)):
        yield _access(rows, columns, ROW_BYTES // buffer.dtype.size_bytes, dict(load.addresses.images)["lane"])


def _store(rows: int, columns: int, chunk: int) -> BitLayout:
    """Vectors that lanes store one behind the other."""
    places = [divmod((1 << bit) * chunk, columns) for bit in range(LANES.bit_length() - 1)]
    return _access(rows, columns, chunk, [place for place in places if place[0] < rows])


def _access(rows: int, columns: int, chunk: int, lanes: Iterable[tuple[int, ...]]) -> BitLayout:
    return layout({"row": rows, "column": columns}, element=[(0, 1 << bit) for bit in range(chunk.bit_length() - 1)], lane=list(lanes))
