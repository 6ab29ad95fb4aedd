"""cp.async: copies from global to shared memory that a thread must wait for; groups of asynchronous instructions.

The bytes are there at once, but they belong to the warp's asynchronous column until it waits: whoever reads or writes
them before is told so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.coder import Coder, Run, builds, spread
from tests.ptx.machine import Machine
from tests.ptx.mbarriers import barriers_of, by_barrier, shared_address
from tests.ptx.ops_memory import HINT_PREFIXES, note_wavefronts, take_space
from tests.ptx.syntax import Int

BULK: list[Callable[[Coder], Run]] = []  # the builder of the bulk forms, which needs the groups below


@builds("cp")
def build_cp(c: Coder) -> Run:
    if "reduce" in c.mods or "bulk" in c.mods:
        return BULK[0](c)
    if not c.flag("async"):
        raise c.unsupported("cp without .async")
    if c.flag("commit_group"):
        return commit_step("copy")
    if c.flag("wait_all"):
        return lambda m, active: groups_of(m, "copy").wait_all(m.warps_of(active))
    if c.flag("wait_group"):
        return wait_step(c, "copy")
    if c.flag("mbarrier"):
        return build_copy_arrival(c)
    return build_copy(c)


class Groups:
    """Groups of one unit's instructions, per warp: the unit's clock when each was committed."""

    def __init__(self, m: Machine, unit: str) -> None:
        self.m, self.unit = m, unit
        self.clocks: list[list[int]] = [[] for _ in range(m.blocks * m.warps)]

    def commit(self, warps: np.ndarray) -> None:
        for warp, clock in zip(warps.tolist(), self.m.clocks.latest(self.unit, warps).tolist(), strict=True):
            self.clocks[warp].append(clock)

    def wait(self, warps: np.ndarray, allowed: int) -> None:
        """Until at most `allowed` groups of each warp are under way."""
        for warp in warps.tolist():
            pending = self.clocks[warp]
            done = len(pending) - allowed
            if done > 0:
                self.m.clocks.await_unit(self.unit, warp, pending[done - 1])
                self.clocks[warp] = pending[done:]

    def wait_all(self, warps: np.ndarray) -> None:
        """Also for what was not committed."""
        for warp, clock in zip(warps.tolist(), self.m.clocks.latest(self.unit, warps).tolist(), strict=True):
            self.m.clocks.await_unit(self.unit, warp, clock)
            self.clocks[warp] = []


def groups_of(m: Machine, unit: str) -> Groups:
    found = m.unit.get(f"groups of {unit}")
    if found is None:
        found = m.unit[f"groups of {unit}"] = Groups(m, unit)
    assert isinstance(found, Groups)
    return found


def commit_step(unit: str) -> Run:
    return lambda m, active: groups_of(m, unit).commit(m.warps_of(active))


def wait_step(c: Coder, unit: str) -> Run:
    count = c.operand(0)
    if not isinstance(count, Int):
        raise c.unsupported("a number of groups that is no literal")
    return lambda m, active: groups_of(m, unit).wait(m.warps_of(active), count.value)


def build_copy(c: Coder) -> Run:
    """`cp.async.cg.shared.global [to], [from], 16 {, bytes that are read | ignored if true}`"""
    level = c.choose("ca", "cg")
    if "L2::cache_hint" in c.mods:
        c.operands = c.operands[:-1]
    c.drop(prefixes=HINT_PREFIXES)
    if take_space(c) != "shared" or take_space(c) != "global":
        raise c.unsupported("spaces other than shared, global")
    count = c.operand(2)
    if not isinstance(count, Int) or count.value not in ((16,) if level == "cg" else (4, 8, 16)):
        raise c.unsupported("size of the copy")
    size = count.value
    target, source = c.address(0), c.address(1)
    filled = c.source(3, "u32") if len(c.operands) > 3 else None

    def run(m: Machine, active: np.ndarray | None) -> None:
        lanes = m.indices(active)
        to, start = spread(target(m, active), len(lanes)), spread(source(m, active), len(lanes))
        values = np.zeros((len(lanes), size), np.uint8)
        taken = np.full(len(lanes), size) if filled is None else spread(filled(m, active), len(lanes))
        reads = taken > 0
        if reads.any():
            values[reads] = m.heap.load(start[reads], 4, size // 4).view(np.uint8)
            if m.history is not None:
                m.history.read(m, lanes[reads], start[reads], size, False)
        values[np.arange(size) >= taken[:, None]] = 0
        warp = m.lane_warp[lanes]
        m.clocks.issue("copy", m.warps_of(active))
        words = to.astype(np.int64)[:, None] // 4 + np.arange(size // 4)
        note_wavefronts(m, len(m.warps_of(active)), np.repeat(lanes // (128 // size), size // 4), words.reshape(-1))
        m.shared.write_async(m.lane_block[lanes], warp, to, values, m.clocks.column("copy", warp), m.clocks.latest("copy", warp))

    return run




def build_copy_arrival(c: Coder) -> Run:
    """`cp.async.mbarrier.arrive{.noinc}.shared.b64 [barrier]`: an arrival when the lane's copies so far are done.

    They are done at once here, so the barrier learns of them; without .noinc the arrival was not expected before.
    """
    c.choose("arrive")
    counted = c.flag("noinc")
    generic = take_space(c) == "generic"
    c.type("b64")
    address = c.address(0)

    def run(m: Machine, active: np.ndarray | None) -> None:
        lanes = m.indices(active)
        for block, at, which in by_barrier(m, lanes, shared_address(spread(address(m, active), len(lanes)), generic)):
            warps, barriers = m.warps_of(lanes[which]), barriers_of(m)
            barrier = barriers.find(block, at)
            columns = m.clocks.column("copy", warps)
            vector = np.zeros_like(barrier.known)
            vector[:, columns] = m.clocks.latest("copy", warps)
            barrier.known = np.maximum(barrier.known, vector)
            if counted:
                barriers.arrive(barrier, len(which), None)

    return run
