"""The mbarrier objects of the blocks that run together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.ptx.errors import AsyncMisuse, Misaligned
from tests.ptx.machine import Machine
from tests.ptx.memory import SHARED


def shared_address(address: np.ndarray, generic: bool) -> np.ndarray:
    """Addresses inside shared memory of what may be generic ones."""
    address = address.astype(np.int64)
    return np.where(address >= SHARED, address - SHARED, address) if generic else address


@dataclass(eq=False)
class MBarrier:
    """`phase` counts those that are over. The current one is over when nobody and no byte is pending any more."""

    name: str
    block: int
    expected: int
    pending: int
    known: np.ndarray  # what those who arrived in this phase know
    known_before: np.ndarray  # what one learns from a phase that is over
    pending_bytes: int = 0
    phase: int = 0


class MBarriers:
    """By block and address."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.table: dict[tuple[int, int], MBarrier] = {}

    def make(self, block: int, address: int, count: int, lanes: np.ndarray) -> None:
        m = self.m
        if address % 8:
            raise Misaligned(f"mbarrier at shared address 0x{address:x}, which is no multiple of 8", 0)
        warp = m.warps_of(lanes)[:1]
        m.shared.store(np.array([block]), warp, np.array([address]), 8, np.zeros((1, 1), np.uint64))
        nothing = np.zeros((2, m.clocks.columns), np.int32)
        name = f"the mbarrier {m.shared.name_of((block * m.shared.stride + address) // m.shared.granule)} of block {block}"
        self.table[block, address] = MBarrier(name, block, count, count, nothing, nothing)

    def drop(self, block: int, address: int) -> None:
        self.find(block, address)
        del self.table[block, address]

    def find(self, block: int, address: int, warps: np.ndarray | None = None) -> MBarrier:
        """The barrier there; `warps`, who use it, must know that it was made."""
        if (block, address) not in self.table:
            raise AsyncMisuse(f"there is no mbarrier at shared address 0x{address:x}", 0)
        if warps is not None:
            shared = self.m.shared
            cells = shared.cells(np.full(len(warps), block * shared.stride + address), 8)
            shared.check_writers(cells, warps, self.m.clocks.known[warps], "uses")
        return self.table[block, address]

    def arrive(self, barrier: MBarrier, count: int, warps: np.ndarray | None) -> None:
        """`count` arrivals by `warps`; without them nothing is published."""
        if warps is not None:
            barrier.known = np.maximum(barrier.known, self.m.clocks.publish(warps))
        while count:
            if barrier.pending == 0:
                raise AsyncMisuse(f"{barrier.name} gets more arrivals than it expects in a phase: {barrier.expected}", 0)
            now = min(count, barrier.pending)
            barrier.pending -= now
            count -= now
            self.settle(barrier)

    def settle(self, barrier: MBarrier) -> None:
        """End the phase when nothing is pending."""
        if barrier.pending or barrier.pending_bytes:
            return
        barrier.phase += 1
        self.m.barriers_passed[barrier.block] += 1
        barrier.pending = barrier.expected
        barrier.known_before = barrier.known
        self.m.wake(barrier.name)


def barriers_of(m: Machine) -> MBarriers:
    found = m.unit.get("mbarrier")
    if found is None:
        found = m.unit["mbarrier"] = MBarriers(m)
    assert isinstance(found, MBarriers)
    return found


def by_barrier(m: Machine, lanes: np.ndarray, address: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
    """(block, address, which of the lanes) for every barrier that these lanes name."""
    keys = m.lane_block[lanes] << 32 | address
    return [(key >> 32, key & 0xFFFFFFFF, np.flatnonzero(keys == key)) for key in np.unique(keys).tolist()]
