"""Runs a program for some blocks at once: one lane per thread, groups of lanes that stand at one program counter.

The group with the lowest program counter goes first, so that lanes that parted meet again; all warps of all blocks
take part in this as one crowd. Lanes that must wait (at a barrier, for other lanes of their warp, for an mbarrier)
leave the crowd until what they wait for has happened. When nobody can go on and somebody has not ended, that is an
error, which names who waits where.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.ptx.element_types import TYPES
from tests.ptx.errors import Deadlock, DivergentBarrier, KernelFault
from tests.ptx.history import GlobalHistory
from tests.ptx.memory import Heap, LocalMemory
from tests.ptx.program import Program
from tests.ptx.shared import Clocks, SharedMemory

NOWHERE = 1 << 40
PATIENCE = 20_000  # jumps back that a group may do while others wait for their turn
IDLE_ROUNDS = 1_000  # rounds in which groups only polled


@dataclass(eq=False)
class Waiting:
    """Lanes at a barrier; `finish(machine, lanes, result)` hands them the result of a reduction over the barrier."""

    pc: int
    lanes: np.ndarray
    finish: Callable | None = None


@dataclass(eq=False)
class Barrier:
    """A named barrier of one block, from its first arrival until it completes."""

    expected: int
    known: np.ndarray  # what those who arrived know
    arrived: int = 0
    groups: list[Waiting] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)  # that the reduction is over


class Machine:
    """The state of the blocks that run together. `regs[i]` holds the bits of register i, one value a lane."""

    def __init__(
        self, program: Program, grid: tuple[int, ...], block: tuple[int, ...], blocks: np.ndarray, heap: Heap, param_base: int,
        dynamic_shared: int, objects: dict[int, object], history: GlobalHistory | None = None,
    ) -> None:  # fmt: skip
        self.program, self.steps = program, program.steps
        self.grid, self.block, self.dynamic_shared = grid, block, dynamic_shared
        self.heap, self.param_base, self.objects = heap, param_base, objects
        self.threads = int(np.prod(block))
        self.warps = -(-self.threads // 32)
        self.blocks = len(blocks)
        self.block_numbers = blocks.astype(np.int32)
        self.barriers_passed = np.zeros(self.blocks, np.int32)  # of any kind, by block
        self.history = history
        self.n = self.blocks * self.warps * 32
        self.place_lanes(blocks)
        self.make_memory()
        self.regs = [np.full(self.n, fill, dtype) for fill, dtype in register_fills(program)]
        self.ready: dict[int, np.ndarray | None] = {}
        self.later: list[tuple[int, np.ndarray]] = []
        self.gathering: dict[int, np.ndarray] = {}  # pc -> lanes that wait for others of their warp
        self.barriers: dict[tuple[int, int], Barrier] = {}
        self.waiting: dict[str, list[tuple[int, np.ndarray, int]]] = defaultdict(list)  # what -> (pc, lanes, where they go on)
        self.late: list[Callable] = []  # called when nobody can go on: what may still arrive; True when something did
        self.unit: dict[str, object] = {}  # state of asynchronous units, by their own name
        self.counts = [0] * len(self.steps)
        self.thread_counts = [0] * len(self.steps)
        self.conflicts: dict[int, list[int]] = {}
        self.executed = 0
        self.watch: Callable | None = None  # sees ordinary instructions before they run
        self.pc = 0
        self.acting: np.ndarray | None = None

    def place_lanes(self, blocks: np.ndarray) -> None:
        self.lanes = np.arange(self.n)
        self.lane_warp = self.lanes // 32
        self.lane_block = self.lane_warp // self.warps
        self.thread = self.lanes % (self.warps * 32)
        x, y, _ = self.block
        self.tid = (self.thread % x, self.thread // x % y, self.thread // (x * y))
        gx, gy, _ = self.grid
        number = blocks[self.lane_block]
        self.ctaid = (number % gx, number // gx % gy, number // (gx * gy))
        self.alive = self.thread < self.threads

    def make_memory(self) -> None:
        layout = self.program.layout
        self.clocks = Clocks(self.blocks, self.warps, self.program.units)
        extents = list(layout.shared)
        if layout.dynamic and self.dynamic_shared:
            start = layout.dynamic_start
            extents.append((layout.dynamic[0].name, start, start + self.dynamic_shared))
        self.shared = SharedMemory(self.blocks, extents, self.program.granule, self.clocks)
        self.local = LocalMemory(self.n, layout.local_size)

    # -- groups of lanes

    def indices(self, active: np.ndarray | None) -> np.ndarray:
        return self.lanes if active is None else active

    def count(self, active: np.ndarray | None) -> int:
        return self.n if active is None else len(active)

    def warps_of(self, active: np.ndarray | None) -> np.ndarray:
        """The warps that have active lanes, ascending."""
        if active is None:
            return np.arange(self.blocks * self.warps)
        warp = self.lane_warp[active]
        return warp[np.flatnonzero(np.diff(warp, prepend=-1))]

    def tidy(self, lanes: np.ndarray) -> np.ndarray | None:
        return None if len(lanes) == self.n else lanes

    def push(self, pc: int, lanes: np.ndarray | None) -> None:
        """These lanes go on at `pc`, together with those that are there already."""
        if lanes is not None and len(lanes) == 0:
            return
        if pc in self.ready:
            lanes = self.tidy(np.sort(np.concatenate([self.indices(self.ready[pc]), self.indices(lanes)])))
        self.ready[pc] = lanes

    # -- running

    def run(self, max_steps: int) -> None:
        start = np.flatnonzero(self.alive)
        self.push(0, self.tidy(start))
        with np.errstate(all="ignore"):
            while self.ready or self.rouse() or any(arrive(self) for arrive in self.late):
                pc = min(self.ready)
                group = self.ready.pop(pc)
                try:
                    self.run_group(pc, group, max_steps)
                except KernelFault as fault:
                    raise self.locate(fault) from None
        if self.alive.any():
            raise self.stuck()

    def run_group(self, pc: int, group: np.ndarray | None, max_steps: int) -> None:
        """Run `group` until it ends, waits, parts, or comes to where others stand."""
        limit = min(self.ready, default=NOWHERE)
        warps, threads, spins = len(self.warps_of(group)), self.count(group), 0
        while pc < limit:
            step = self.steps[pc]
            self.counts[pc] += warps
            self.thread_counts[pc] += threads
            self.executed += 1
            self.pc, self.acting = pc, group
            active, rest = (group, None) if step.guard is None else self.split(group, step.guard)
            if active is not None and len(active) == 0:
                pc += 1
                continue
            self.acting = active
            if self.watch is not None and step.registers and not step.asynchronous:
                self.watch(self, step, active)
            if not step.control:
                step.run(self, active)
                pc += 1
                continue
            onward = step.run(self, active, pc)
            if rest is not None:
                onward.append((pc + 1, rest))
            if len(onward) != 1:
                for where, lanes in onward:
                    self.push(where, lanes)
                return
            where, lanes = onward[0]
            spins += where <= pc
            if self.executed > max_steps:
                raise Deadlock(f"still running after {max_steps} steps", 0)
            if spins > PATIENCE and self.ready:
                self.later.append((where, self.indices(lanes)))
                return
            pc = where
            if lanes is not group:
                group, warps, threads = lanes, len(self.warps_of(lanes)), self.count(lanes)
        self.push(pc, group)

    def split(self, group: np.ndarray | None, guard: tuple[int, bool]) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The lanes whose guard holds, and the others (None for none of them)."""
        values = self.regs[guard[0]]
        holds = (values if group is None else values[group]) != guard[1]
        if holds.all():
            return group, None
        lanes = self.indices(group)
        return lanes[holds], lanes[~holds]

    def rouse(self) -> bool:
        """Bring back groups that gave way to others. False when there are none."""
        if not self.later:
            return False
        rounds = self.unit.get("idle", 0)
        assert isinstance(rounds, int)
        if rounds > IDLE_ROUNDS:
            return False
        self.unit["idle"] = rounds + 1
        groups, self.later = self.later, []
        for pc, lanes in groups:
            self.push(pc, lanes)
        return True

    def yield_at(self, pc: int, lanes: np.ndarray) -> None:
        """These lanes polled in vain: they go on at `pc` after everyone else had a turn."""
        self.later.append((pc, lanes))

    def progress(self) -> None:
        """Something happened that groups may poll for."""
        self.unit["idle"] = 0

    def wake(self, what: str) -> None:
        self.progress()
        for _, lanes, onward in self.waiting.pop(what, ()):
            self.push(onward, lanes)

    def end(self, active: np.ndarray | None) -> None:
        """These lanes exit."""
        lanes = self.indices(active)
        self.alive[lanes] = False
        self.progress()
        for pc in list(self.gathering):  # a warp's last missing lanes may have ended
            self.push(pc, self.gathering.pop(pc))

    # -- lanes of a warp that must act together

    def gather(self, pc: int, active: np.ndarray | None, member: np.ndarray | None = None) -> np.ndarray | None:
        """The active lanes whose partners are all here; the others wait at `pc` until theirs come.

        `member`, uint32 per active lane, names the partners; without it all living lanes of the warp are.
        Returns None for all lanes of the machine, and an empty array when everybody waits.
        """
        if active is None and member is None:
            return None
        lanes = self.indices(active)
        if pc in self.gathering:
            raise AssertionError("lanes that wait at a pc are taken along by those that come to it")
        here = np.zeros(self.n, bool)
        here[lanes] = True
        here_bits = pack_lanes(here)
        alive_bits = pack_lanes(self.alive)
        warp = self.lane_warp[lanes]
        wanted = alive_bits[warp] if member is None else alive_bits[warp] & member
        complete = (wanted & ~here_bits[warp]) == 0
        if complete.all():
            return active
        self.gathering[pc] = lanes[~complete]
        return lanes[complete]

    def join_waiting(self, pc: int, active: np.ndarray | None) -> np.ndarray | None:
        """The active lanes together with those that wait at `pc` for others of their warp."""
        if pc not in self.gathering:
            return active
        merged = np.sort(np.concatenate([self.indices(active), self.gathering.pop(pc)]))
        self.acting = self.tidy(merged)
        return self.acting

    # -- complaints

    def describe(self, lane: int) -> str:
        tid = ", ".join(str(int(t[lane])) for t in self.tid)
        ctaid = ", ".join(str(int(c[lane])) for c in self.ctaid)
        return f"thread ({tid}) of block ({ctaid})"

    def where(self, pc: int) -> str:
        instruction = self.steps[pc].instruction
        return f"line {instruction.line}: {instruction.text}"

    def locate(self, fault: KernelFault) -> KernelFault:
        lanes = self.indices(self.acting)
        lane = int(lanes[min(fault.position or 0, len(lanes) - 1)])
        return type(fault)(f"{fault}\n  at {self.where(self.pc)}\n  {self.describe(lane)}, kernel {self.program.name}")

    def stuck(self) -> KernelFault:
        """Nobody can go on: who waits where."""
        lines = []
        kind: type[KernelFault] = Deadlock
        for pc, lanes in self.gathering.items():
            kind = DivergentBarrier
            lines.append(f"{len(lanes)} lanes wait for others of their warp at {self.where(pc)} (first: {self.describe(int(lanes[0]))})")
        for (_, number), barrier in self.barriers.items():
            kind = DivergentBarrier
            if not barrier.groups:
                lines.append(f"{barrier.arrived} of {barrier.expected} threads arrived at barrier {number}, and nobody waits for it")
            for group in barrier.groups:
                lines.append(
                    f"{len(group.lanes)} threads wait at barrier {number} ({barrier.arrived} of {barrier.expected} arrived), "
                    f"{self.where(group.pc)} (first: {self.describe(int(group.lanes[0]))})"
                )
        for what, groups in self.waiting.items():
            for pc, lanes, _ in groups:
                lines.append(f"{len(lanes)} threads wait for {what} at {self.where(pc)} (first: {self.describe(int(lanes[0]))})")
        for pc, lanes in self.later:
            lines.append(f"{len(lanes)} threads poll in vain at {self.where(pc)} (first: {self.describe(int(lanes[0]))})")
        ended = int((~self.alive & (self.thread < self.threads)).sum())
        lines.append(f"{ended} threads have ended")
        return kind("nobody can go on:\n  " + "\n  ".join(lines))


GARBAGE = 0xA5A5A5A5A5A5A5A5  # in registers that nobody wrote


def register_fills(program: Program) -> list[tuple[int, np.dtype]]:
    """What each register holds at first, and its numpy type."""
    found = []
    for name in program.layout.registers:
        kind = TYPES[name]
        found.append((0, kind.dtype) if name == "pred" else (GARBAGE & ((1 << kind.bits) - 1), kind.unsigned))
    return found


def pack_lanes(flags: np.ndarray) -> np.ndarray:
    """bool[warps * 32] -> uint32[warps], lane i in bit i."""
    return np.packbits(flags.reshape(-1, 32), axis=1, bitorder="little").view(np.uint32)[:, 0]


