"""Copies of boxes, phase barriers and products of groups as PTX: texts with numbered places, for the C of CUDA and for LLVM IR.

Source: PTX ISA: mbarrier, cp.async.bulk.tensor, wgmma and its matrix descriptors.
"""

from __future__ import annotations

from math import prod

from tc.errors import CodegenError
from tc.ir.box_copies import BOX_ROW_BYTES
from tc.ir.expr import Buffer, Const
from tc.ir.loop import WarpCall

SET_UP_BARRIER = "mbarrier.init.shared::cta.b64 [{0}], {1}; fence.mbarrier_init.release.cluster;"
"""{0}: the barrier's address in shared memory, of 32 bits; {1}: arrivals."""

ARRIVE = "mbarrier.arrive.release.cta.shared::cta.b64 _, [{0}];"
ARRIVE_EXPECTING = "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [{0}], {1};"

AWAIT_PHASE = (
    "{{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [{0}], {1}; @p bra done; bra again; done: }}"
)
"""{1}: the parity, of 32 bits."""

BEGIN_PRODUCTS = "wgmma.fence.sync.aligned;"
COMMIT_PRODUCTS = "wgmma.commit_group.sync.aligned;"
AWAIT_PRODUCTS = "wgmma.wait_group.sync.aligned {};"

MAP_BYTES, MAP_ALIGNMENT = 128, 64
"""Of the description of a tensor that boxes are copied from. Source: CUDA driver API, CUtensorMap."""


def copy_box_text(rank: int) -> str:
    """A copy of a box of so many dims: {0} where to, in shared memory, {1} the map's address, {2} the barrier, then the corner, the last
    dim first, in 32 bits each."""
    corner = ", ".join(f"{{{3 + k}}}" for k in range(rank))
    head = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    return f"{head} [{{0}}], [{{1}}, {{{{{corner}}}}}], [{{2}}];"


# -- matrices behind descriptors

ROWS_AT_ONCE = 8
"""Rows in which a swizzle repeats."""

_SWIZZLED_BY_128 = 1 << 62


def descriptor_bits(call: WarpCall, place: int) -> int:
    """What the descriptor of a shared operand says beside its address: the distances of parts of 8 rows of 128 bytes, and of columns of
    such rows, in pieces of 16 bytes, and how places are mixed.

    CodegenError for a matrix whose rows are not those of boxes.
    """
    buffer = call.operands[place].buffer
    rows = _constant(buffer, -2)
    if _constant(buffer, -1) * buffer.dtype.size_bytes != BOX_ROW_BYTES or rows % ROWS_AT_ONCE:
        raise CodegenError(f"{call.name} reads {buffer}, whose rows are not of {BOX_ROW_BYTES} bytes")
    stride, leading = ROWS_AT_ONCE * BOX_ROW_BYTES, rows * BOX_ROW_BYTES
    return _SWIZZLED_BY_128 | (stride >> 4) << 32 | (leading >> 4 & 0x3FFF) << 16


def _constant(buffer: Buffer, axis: int) -> int:
    dim = buffer.shape[axis]
    assert isinstance(dim, Const), "memory of a block, or a thread, is of constant size"
    return int(dim.value)


def words_of(buffer: Buffer) -> int:
    """Registers of 32 bits that a thread has for a buffer of its own."""
    elements = prod(_constant(buffer, axis) for axis in range(len(buffer.shape)))
    return elements * buffer.dtype.bits // 32
