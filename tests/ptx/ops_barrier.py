"""mbarrier: objects in shared memory that count arrivals and bytes, and complete phase after phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.ptx import ops_bulk
from tests.ptx.coder import Coder, Reader, Run, builds, spread
from tests.ptx.machine import Machine
from tests.ptx.mbarriers import barriers_of, by_barrier, shared_address
from tests.ptx.ops_memory import take_space

SCOPES = ("cta", "cluster", "release", "acquire")


@dataclass(frozen=True)
class Form:
    """Where an mbarrier instruction finds its barrier, and whether it orders what comes before or after."""

    address: Reader
    generic: bool
    relaxed: bool


@builds("mbarrier")
def build_mbarrier(c: Coder) -> Run:
    what = c.choose(*BUILDERS_OF)
    return BUILDERS_OF[what](c)


def take_form(c: Coder, position: int) -> Form:
    relaxed = c.flag("relaxed")
    space = take_space(c)
    c.drop(*SCOPES)
    c.drop("shared::cta", "shared::cluster")
    if c.flag("b64") is False:
        raise c.unsupported("a type other than .b64")
    return Form(c.address(position), space == "generic", relaxed)


def each(m: Machine, active: np.ndarray | None, form: Form) -> list[tuple[int, int, np.ndarray]]:
    """(block, address, which of the active lanes) for every barrier that is named."""
    lanes = m.indices(active)
    return by_barrier(m, lanes, shared_address(spread(form.address(m, active), len(lanes)), form.generic))


def build_init(c: Coder) -> Run:
    form, count = take_form(c, 0), c.source(1, "u32")

    def run(m: Machine, active: np.ndarray | None) -> None:
        counts = spread(count(m, active), m.count(active))
        for block, address, which in each(m, active, form):
            barriers_of(m).make(block, address, int(counts[which[0]]), m.indices(active)[which])

    return run


def build_inval(c: Coder) -> Run:
    form = take_form(c, 0)

    def run(m: Machine, active: np.ndarray | None) -> None:
        for block, address, _ in each(m, active, form):
            barriers_of(m).drop(block, address)

    return run


def build_arrive(c: Coder, drops: bool = False) -> Run:
    """`mbarrier.arrive state, [barrier] {, count}` and `.expect_tx state, [barrier], bytes`; `_` or nothing for no state."""
    c.drop("noComplete")
    expects = c.flag("expect_tx")
    at = 0 if c.instruction.text.split(None, 1)[1].lstrip().startswith("[") or len(c.operands) == 1 else 1
    form = take_form(c, at)
    state = c.destination(0, "b64") if at else None
    amount = c.source(at + 1, "u32") if len(c.operands) > at + 1 else None

    def run(m: Machine, active: np.ndarray | None) -> None:
        lanes = m.indices(active)
        amounts = np.ones(len(lanes), np.int64) if amount is None else spread(amount(m, active), len(lanes)).astype(np.int64)
        phases = np.zeros(len(lanes), np.uint64)
        for block, address, which in each(m, active, form):
            barrier = barriers_of(m).find(block, address, m.warps_of(lanes[which]))
            phases[which] = barrier.phase
            if expects:
                barrier.pending_bytes += int(amounts[which].sum())
            arrivals = len(which) if expects else int(amounts[which].sum())
            if drops:
                barrier.expected -= arrivals
            barriers_of(m).arrive(barrier, arrivals, None if form.relaxed else m.warps_of(lanes[which]))
        if state is not None:
            state(m, active, phases)

    return run


def build_expect(c: Coder) -> Run:
    form, amount = take_form(c, 0), c.source(1, "u32")

    def run(m: Machine, active: np.ndarray | None) -> None:
        amounts = spread(amount(m, active), m.count(active)).astype(np.int64)
        for block, address, which in each(m, active, form):
            barriers_of(m).find(block, address).pending_bytes += int(amounts[which].sum())

    return run


def build_complete(c: Coder) -> Run:
    form, amount = take_form(c, 0), c.source(1, "u32")

    def run(m: Machine, active: np.ndarray | None) -> None:
        amounts = spread(amount(m, active), m.count(active)).astype(np.int64)
        for block, address, which in each(m, active, form):
            barriers = barriers_of(m)
            barriers.find(block, address).pending_bytes -= int(amounts[which].sum())
            barriers.settle(barriers.find(block, address))

    return run


def build_wait(c: Coder, blocking: bool) -> Run:
    """test_wait and try_wait: true when the phase is over.

    A `try_wait` that finds it running suspends the lanes until it ends, and then still answers false: its time may
    always be up, so that code that does not ask again is found out.
    """
    parity = c.flag("parity")
    form = take_form(c, 1)
    c.control = True
    write, wanted = c.destination(0, "pred"), c.source(2, "u32" if parity else "b64")

    def run(m: Machine, active: np.ndarray | None, pc: int) -> list:
        lanes = m.indices(active)
        asked = spread(wanted(m, active), len(lanes)).astype(np.int64)
        onward = []
        for block, address, which in each(m, active, form):
            ops_bulk.deliver(m, block, address)
            barrier = barriers_of(m).find(block, address, m.warps_of(lanes[which]))
            over = (barrier.phase & 1) != (asked[which] & 1) if parity else barrier.phase > asked[which]
            here = lanes[which]
            write(m, here, over)
            if over.any():
                if not form.relaxed:
                    m.clocks.learn(m.warps_of(here[over]), barrier.known_before)
                onward.append(here[over])
            if not over.all():
                suspend(m, pc, here[~over], barrier.name, blocking)
        return [(pc + 1, m.tidy(np.sort(np.concatenate(onward))))] if onward else []

    return run


def suspend(m: Machine, pc: int, lanes: np.ndarray, name: str, blocking: bool) -> None:
    if blocking:
        m.waiting[name].append((pc, lanes, pc + 1))
    else:
        m.yield_at(pc + 1, lanes)


BUILDERS_OF = {
    "init": build_init, "inval": build_inval, "arrive": build_arrive, "arrive_drop": lambda c: build_arrive(c, True),
    "test_wait": lambda c: build_wait(c, False), "try_wait": lambda c: build_wait(c, True),
    "expect_tx": build_expect, "complete_tx": build_complete,
}  # fmt: skip
