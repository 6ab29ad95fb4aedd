"""Who touched global memory: races between threads that nothing orders, in a block and between blocks.

Inside a block the clocks of its warps decide, as for shared memory. Blocks are never ordered, except in kernels that
use atomic operations, fences or volatile accesses: there only accesses of one block are compared. Of reads the last
one is kept; when several warps of a block read a place, that they did, and how many barriers of any kind the block had
passed by then. Two writes of the same value are no race.

The history is kept per granule, the smallest access of the kernel to memory that may be global.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.ptx.errors import Race
from tests.ptx.memory import HEAP, Heap

if TYPE_CHECKING:
    from tests.ptx.machine import Machine

NOBODY, MANY = -1, -2
MAX_CELLS = 1 << 24


class GlobalHistory:
    """Of one launch. `compare_blocks`: blocks are never ordered."""

    def __init__(self, heap: Heap, granule: int, compare_blocks: bool) -> None:
        self.heap, self.granule, self.compare_blocks = heap, granule, compare_blocks
        cells = heap.bytes.size // granule
        self.write_block, self.read_block = (np.full(cells, NOBODY, np.int32) for _ in range(2))
        self.write_warp, self.read_warp = (np.full(cells, NOBODY, np.int16) for _ in range(2))
        self.written_at, self.read_at = (np.zeros(cells, np.int32) for _ in range(2))

    def cells(self, address: np.ndarray, size: int) -> np.ndarray:
        return ((address.astype(np.int64) - HEAP) // self.granule)[:, None] + np.arange(max(size // self.granule, 1))

    def read(self, m: Machine, lanes: np.ndarray, address: np.ndarray, size: int, must_be_constant: bool) -> None:
        """`size` bytes at each address; `must_be_constant` for loads past the coherent caches."""
        cells = self.cells(address, size)
        warp = m.lane_warp[lanes]
        block, own = m.block_numbers[m.lane_block[lanes]][:, None], (warp % m.warps)[:, None]
        if must_be_constant:
            self.complain(self.write_block[cells] != NOBODY, m, lanes, cells, "reads as constant", "the kernel writes")
        self.check_writers(m, lanes, cells, block, own, None)
        clock = m.clocks.known[warp, warp % m.warps][:, None]
        same_block = self.read_block[cells] == block
        fresh = (self.read_block[cells] == NOBODY) | (same_block & (self.read_warp[cells] == own))
        several = same_block & ~fresh
        self.read_at[cells] = np.where(several, m.barriers_passed[m.lane_block[lanes]][:, None], clock)
        self.read_block[cells] = np.where(fresh | several, block, MANY)
        self.read_warp[cells] = np.where(several, MANY, own)
        crowded = self.read_warp[cells] != np.where(several, MANY, own)  # other lanes of this very access
        if crowded.any():
            where = cells[crowded]
            self.read_warp[where] = MANY
            self.read_at[where] = np.broadcast_to(m.barriers_passed[m.lane_block[lanes]][:, None], cells.shape)[crowded]
            alone = self.read_block[where] == np.broadcast_to(block, cells.shape)[crowded]
            self.read_block[where[~alone]] = MANY

    def write(self, m: Machine, lanes: np.ndarray, address: np.ndarray, values: np.ndarray) -> None:
        """Before values unsigned[n, count] are written to each address."""
        size = values.shape[1] * values.itemsize
        cells = self.cells(address, size)
        warp = m.lane_warp[lanes]
        block, own = m.block_numbers[m.lane_block[lanes]][:, None], (warp % m.warps)[:, None]
        old = self.heap.take(address.astype(np.int64) - HEAP, values.itemsize, values.shape[1])
        changes = (old != values).any(1)[:, None]
        self.check_writers(m, lanes, cells, block, own, changes)
        self.check_readers(m, lanes, cells, block, own, changes)
        self.write_block[cells], self.write_warp[cells] = block, own
        self.written_at[cells] = m.clocks.known[warp, warp % m.warps][:, None]

    def check_writers(
        self, m: Machine, lanes: np.ndarray, cells: np.ndarray, block: np.ndarray, own: np.ndarray, changes: np.ndarray | None
    ) -> None:
        theirs, warp = self.write_block[cells], self.write_warp[cells]
        if (theirs == NOBODY).all():
            return
        known = np.take_along_axis(m.clocks.known[m.lane_warp[lanes]], np.maximum(warp, 0), 1)
        bad = (theirs == block) & (warp != own) & (self.written_at[cells] > known)
        if self.compare_blocks:
            bad |= (theirs != block) & (theirs != NOBODY)
        if changes is not None:
            bad &= changes
        self.complain(bad, m, lanes, cells, "reads" if changes is None else "writes", "another one writes")

    def check_readers(
        self, m: Machine, lanes: np.ndarray, cells: np.ndarray, block: np.ndarray, own: np.ndarray, changes: np.ndarray
    ) -> None:
        theirs, warp = self.read_block[cells], self.read_warp[cells]
        known = np.take_along_axis(m.clocks.known[m.lane_warp[lanes]], np.maximum(warp, 0), 1)
        since = m.barriers_passed[m.lane_block[lanes]][:, None]
        bad = (theirs == block) & np.where(warp == MANY, self.read_at[cells] == since, (warp != own) & (self.read_at[cells] > known))
        if self.compare_blocks:
            bad |= (theirs != block) & (theirs != NOBODY)
        self.complain(bad & changes, m, lanes, cells, "writes", "another one reads")

    def complain(self, bad: np.ndarray, m: Machine, lanes: np.ndarray, cells: np.ndarray, verb: str, past: str) -> None:
        if not bad.any():
            return
        at, k = (int(i[0]) for i in np.nonzero(bad))
        cell = int(cells[at, k])
        region = self.heap.region_at(HEAP + cell * self.granule)
        where = "" if region is None else f"byte {cell * self.granule - region.start} of {region.name}"
        writer = "" if self.write_block[cell] < 0 else f" (warp {self.write_warp[cell]} of block {self.write_block[cell]})"
        who = writer if past.endswith("writes") else ""
        raise Race(f"a thread {verb} {where}, which {past}{who}, with nothing between that orders them", at)


def make_history(heap: Heap, granule: int, compare_blocks: bool) -> GlobalHistory | None:
    """None for memory that is too large to keep a history of."""
    return GlobalHistory(heap, granule, compare_blocks) if heap.bytes.size // granule <= MAX_CELLS else None
