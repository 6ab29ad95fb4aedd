"""Instructions that direct threads: branches, ends, barriers, fences."""

from __future__ import annotations

import numpy as np

from tests.ptx.coder import Coder, Run, builds, spread
from tests.ptx.errors import DivergentBarrier, Trap
from tests.ptx.errors import Unsupported as UnsupportedError
from tests.ptx.machine import Barrier, Machine, Waiting
from tests.ptx.syntax import Int

# ---------------------------------------------------------------- branches


@builds("bra")
def build_bra(c: Coder) -> Run:
    c.flag("uni")
    c.control = True
    place = c.label(c.operand(0))
    return lambda m, active, pc: [(place.pc, active)]


@builds("brx")
def build_brx(c: Coder) -> Run:
    c.flag("idx")
    c.flag("uni")
    c.control = True
    index, places = c.source(0, "u32"), c.label_table(c.operand(1))

    def run(m: Machine, active: np.ndarray | None, pc: int) -> list:
        lanes = m.indices(active)
        chosen = spread(index(m, active), len(lanes))
        return [(places[i].pc, lanes[chosen == i]) for i in np.unique(chosen).tolist()]

    return run


@builds("ret", "exit")
def build_end(c: Coder) -> Run:
    c.flag("uni")
    c.control = True
    place = c.returns_to
    if place is not None and c.opcode == "ret":
        return lambda m, active, pc: [(place.pc, active)]

    def run(m: Machine, active: np.ndarray | None, pc: int) -> list:
        m.end(active)
        return []

    return run


@builds("trap", "brkpt")
def build_trap(c: Coder) -> Run:
    def run(m: Machine, active: np.ndarray | None) -> None:
        raise Trap("trap", 0)

    return run


@builds("%external")
def build_external(c: Coder) -> Run:
    callee = c.mods.pop()

    def run(m: Machine, active: np.ndarray | None) -> None:
        if callee == "__assertfail":
            raise Trap("a device assertion failed", 0)
        raise UnsupportedError(f"line {c.instruction.line}: call of {callee}, which the module only declares")

    return run


# ---------------------------------------------------------------- nothing to do


def nothing(m: Machine, active: np.ndarray | None) -> None:
    """For what has no effect on values or order here."""


@builds("nanosleep", "pmevent", "setmaxnreg", "griddepcontrol", "prefetch", "prefetchu", "applypriority")
def build_nothing(c: Coder) -> Run:
    c.mods.clear()
    return nothing


@builds("membar", "fence")
def build_fence(c: Coder) -> Run:
    proxy = c.flag("proxy")
    asynchronous = proxy and any(mod.split("::")[0] == "async" for mod in c.mods)
    known = ("cta", "gl", "sys", "gpu", "cluster", "sc", "acq_rel", "acquire", "release", "alias", "mbarrier_init", "tensormap", "global")
    c.drop(*known, prefixes=("async", "shared", "tensormap", "sync_restrict"))
    if not asynchronous:
        return nothing
    return lambda m, active: m.clocks.fence_proxy(m.warps_of(active))


# ---------------------------------------------------------------- barriers of a block


def arrive(m: Machine, key: tuple[int, int], lanes: np.ndarray, count: int | None, aligned: bool) -> Barrier:
    """These lanes, of one block, arrive at its barrier."""
    expected = m.threads if count is None else count
    warps = m.warps_of(lanes)
    vector = m.clocks.publish(warps)
    barrier = m.barriers.get(key)
    if barrier is None:
        barrier = m.barriers[key] = Barrier(expected, vector)
    if barrier.expected != expected:
        raise DivergentBarrier(f"barrier {key[1]} waits for {barrier.expected} threads, and here for {expected}", 0)
    barrier.known = np.maximum(barrier.known, vector)
    barrier.arrived += len(lanes)
    if aligned and count is not None:  # a warp counts as 32 threads, also the last one of a block
        barrier.arrived += int((m.thread[warps * 32 + 31] + 1 - m.threads).clip(0).sum())
    if barrier.arrived > barrier.expected:
        raise DivergentBarrier(f"{barrier.arrived} threads arrive at barrier {key[1]}, which is for {barrier.expected}", 0)
    return barrier


def complete(m: Machine, key: tuple[int, int], reduce: str) -> list:
    """All have arrived: they know what the others did, and go on."""
    barrier = m.barriers.pop(key)
    m.barriers_passed[key[0]] += 1
    result = REDUCTIONS[reduce](np.concatenate(barrier.values)) if barrier.values else None
    for group in barrier.groups:
        m.clocks.learn(m.warps_of(group.lanes), barrier.known)
        if group.finish is not None:
            group.finish(m, group.lanes, np.array([result]))
    m.progress()
    return [(group.pc + 1, group.lanes) for group in barrier.groups]


REDUCTIONS = {"": len, "popc": np.count_nonzero, "and": np.all, "or": np.any}


@builds("bar", "barrier")
def build_barrier(c: Coder) -> Run:
    if c.flag("cluster"):
        return build_cluster_barrier(c)
    if c.flag("warp"):
        return build_warp_barrier(c)
    aligned = c.opcode == "bar" or "aligned" in c.mods
    c.drop("cta", "aligned")
    what = c.choose("sync", "arrive", "red")
    operation = c.choose("popc", "and", "or") if what == "red" else ""
    if what != "red":
        return barrier_step(c, list(c.operands), what, aligned)
    result_type = c.type("u32", "pred")
    write = c.destination(0, result_type)
    value = c.source(c.operands[-1], "pred")
    finish = lambda m, active, result: write(m, active, result.astype(result_type.dtype))  # noqa: E731
    return barrier_step(c, list(c.operands[1:-1]), what, aligned, operation, value, finish)


def barrier_step(c: Coder, operands: list, what: str, aligned: bool, operation: str = "", value=None, finish=None) -> Run:  # type: ignore[no-untyped-def]
    c.control = True
    number = c.source(operands[0], "u32")
    count = c.source(operands[1], "u32") if len(operands) > 1 else None
    simple = what == "sync" and count is None and isinstance(operands[0], Int)

    def run(m: Machine, active: np.ndarray | None, pc: int) -> list:
        if simple and active is None and not m.barriers:  # every thread of every block
            m.clocks.join_all()
            m.barriers_passed += 1
            m.progress()
            return [(pc + 1, active)]
        lanes = m.join_waiting(pc, active)
        lanes = m.indices(m.gather(pc, lanes) if aligned else lanes)
        if len(lanes) == 0:
            return []
        numbers = spread(number(m, lanes), len(lanes)).astype(np.int64)
        counts = None if count is None else spread(count(m, lanes), len(lanes))
        keys = m.lane_block[lanes] * 16 + numbers
        onward = []
        for key in np.unique(keys).tolist():
            here = keys == key
            name = (key // 16, key % 16)
            barrier = arrive(m, name, lanes[here], None if counts is None else int(counts[here][0]), aligned)
            if what == "arrive":
                onward.append((pc + 1, lanes[here]))
            else:
                barrier.groups.append(Waiting(pc, lanes[here], finish))
            if value is not None:
                barrier.values.append(spread(value(m, lanes[here]), int(here.sum())))
            if barrier.arrived == barrier.expected:
                onward.extend(complete(m, name, operation))
        return merged(m, onward)

    return run


def merged(m: Machine, onward: list) -> list:
    """Groups that go on at one place as one group."""
    places: dict[int, list[np.ndarray]] = {}
    for pc, lanes in onward:
        places.setdefault(pc, []).append(lanes)
    return [(pc, m.tidy(np.sort(np.concatenate(groups)))) for pc, groups in places.items()]


def build_warp_barrier(c: Coder) -> Run:
    c.choose("sync")
    c.control = True
    mask = c.source(0, "u32")

    def run(m: Machine, active: np.ndarray | None, pc: int) -> list:
        active = m.join_waiting(pc, active)
        active = m.gather(pc, active, mask(m, active))
        return [(pc + 1, active)] if m.count(active) else []

    return run


# ---------------------------------------------------------------- the barrier of a cluster of one block


def build_cluster_barrier(c: Coder) -> Run:
    c.drop("aligned", "release", "relaxed", "acquire")
    waits = c.choose("arrive", "wait") == "wait"
    c.control = True

    def run(m: Machine, active: np.ndarray | None, pc: int) -> list:
        phases = m.unit.setdefault("cluster", ClusterBarriers(m))
        assert isinstance(phases, ClusterBarriers)
        return phases.wait(pc, m.indices(active)) if waits else phases.arrive(pc, m.indices(active))

    return run


class ClusterBarriers:
    """Phases of the cluster barrier of each block; with one block a cluster, all of its threads take part."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.phase = np.zeros(m.blocks, np.int64)
        self.arrived = np.zeros(m.blocks, np.int64)
        self.lane_phase = np.full(m.n, -1, np.int64)  # that each lane has arrived at
        self.known: dict[int, np.ndarray] = {}

    def arrive(self, pc: int, lanes: np.ndarray) -> list:
        m = self.m
        for block in np.unique(m.lane_block[lanes]).tolist():
            here = lanes[m.lane_block[lanes] == block]
            if (self.lane_phase[here] == self.phase[block]).any():
                raise DivergentBarrier("a thread arrives twice at the cluster barrier", 0)
            vector = m.clocks.publish(m.warps_of(here))
            self.known[block] = np.maximum(self.known.get(block, vector), vector)
            self.lane_phase[here] = self.phase[block]
            self.arrived[block] += len(here)
            if self.arrived[block] == m.threads:
                self.phase[block] += 1
                m.barriers_passed[block] += 1
                self.arrived[block] = 0
                m.wake(f"the cluster barrier of block {block}")
        return [(pc + 1, lanes)]

    def wait(self, pc: int, lanes: np.ndarray) -> list:
        m = self.m
        done = self.lane_phase[lanes] < self.phase[m.lane_block[lanes]]
        for block in np.unique(m.lane_block[lanes[done]]).tolist():
            m.clocks.learn(m.warps_of(lanes[done & (m.lane_block[lanes] == block)]), self.known[block])
        for block in np.unique(m.lane_block[lanes[~done]]).tolist():
            here = lanes[~done & (m.lane_block[lanes] == block)]
            m.waiting[f"the cluster barrier of block {block}"].append((pc, here, pc))
        return [(pc + 1, lanes[done])] if done.any() else []


