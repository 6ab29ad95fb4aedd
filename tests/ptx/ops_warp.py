"""Instructions of a warp: shuffles, votes, matches, reductions, and the matrix loads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.coder import Coder, Run, builds, spread
from tests.ptx.machine import Machine, pack_lanes


def together(c: Coder, act: Callable[[Machine, np.ndarray | None], None], member: Callable | None = None) -> Run:
    """A step that waits until the lanes that `member` names (all living ones without it) have come."""
    c.control = True

    def run(m: Machine, active: np.ndarray | None, pc: int) -> list:
        active = m.join_waiting(pc, active)
        active = m.gather(pc, active, None if member is None else spread(member(m, active), m.count(active)))
        if active is not None and len(active) == 0:
            return []
        m.acting = active
        act(m, active)
        return [(pc + 1, active)]

    return run


def present(m: Machine, active: np.ndarray | None) -> np.ndarray:
    here = np.zeros(m.n, bool)
    here[m.indices(active)] = True
    return here


# ---------------------------------------------------------------- shfl


@builds("shfl")
def build_shfl(c: Coder) -> Run:
    """`shfl.sync.mode.b32 d|p, a, b, c, membermask`: c holds the clamp in bits 0..4, the segment's mask in 8..12."""
    if not c.flag("sync"):
        raise c.unsupported("shfl without .sync")
    mode, type = c.choose("up", "down", "bfly", "idx"), c.type("b32")
    first, second = c.pair(0)
    write = c.destination(first, type)
    write_valid = None if second is None else c.destination(second, "pred")
    value, amount, control, member = c.source(1, type), c.source(2, "u32"), c.source(3, "u32"), c.source(4, "u32")

    def act(m: Machine, active: np.ndarray | None) -> None:
        lanes = m.indices(active)
        lane = lanes % 32
        by = (spread(amount(m, active), len(lanes)) & 31).astype(np.int64)
        word = spread(control(m, active), len(lanes)).astype(np.int64)
        segment, clamp = word >> 8 & 31, word & 31
        lowest = lane & segment
        highest = lowest | (clamp & ~segment)
        match mode:
            case "up":
                partner = lane - by
                valid = partner >= highest
            case "down":
                partner = lane + by
                valid = partner <= highest
            case "bfly":
                partner = lane ^ by
                valid = partner <= highest
            case _:
                partner = lowest | (by & ~segment)
                valid = partner <= highest
        partner = lanes - lane + np.where(valid, partner, lane)
        values = np.zeros(m.n, np.uint32)
        values[lanes] = value(m, active)
        # What a lane gets from one that takes no part is not defined: the pattern below shows it.
        result = np.where(present(m, active)[partner], values[partner], np.uint32(0xBAD0BAD0))
        write(m, active, result)
        if write_valid is not None:
            write_valid(m, active, valid)

    return together(c, act, member)


# ---------------------------------------------------------------- votes


def member_bits(m: Machine, active: np.ndarray | None, flags: np.ndarray) -> np.ndarray:
    """The flags of active lanes as uint32 per warp of the machine."""
    all_flags = np.zeros(m.n, bool)
    all_flags[m.indices(active)] = flags
    return pack_lanes(all_flags)


@builds("vote")
def build_vote(c: Coder) -> Run:
    if not c.flag("sync"):
        raise c.unsupported("vote without .sync")
    mode = c.choose("all", "any", "uni", "ballot")
    type = c.type("b32", "pred")
    write, value, member = c.destination(0, type), c.source(1, "pred"), c.source(2, "u32")

    def act(m: Machine, active: np.ndarray | None) -> None:
        lanes = m.indices(active)
        warp = m.lane_warp[lanes]
        mask = spread(member(m, active), len(lanes)) & member_bits(m, active, np.ones(len(lanes), bool))[warp]
        bits = member_bits(m, active, spread(value(m, active), len(lanes)))[warp] & mask
        result = {"ballot": bits, "any": bits != 0, "all": bits == mask, "uni": (bits == mask) | (bits == 0)}[mode]
        write(m, active, result)

    return together(c, act, member)


@builds("activemask")
def build_activemask(c: Coder) -> Run:
    write = c.destination(0, c.type("b32"))

    def run(m: Machine, active: np.ndarray | None) -> None:
        lanes = m.indices(active)
        write(m, active, pack_lanes(present(m, active))[m.lane_warp[lanes]])

    return run


@builds("elect")
def build_elect(c: Coder) -> Run:
    """`elect.sync d|p, membermask`: the lowest lane of the mask is chosen."""
    if not c.flag("sync"):
        raise c.unsupported("elect without .sync")
    first, second = c.pair(0)
    write = c.destination(first, "u32")
    write_chosen = None if second is None else c.destination(second, "pred")
    member = c.source(1, "u32")

    def act(m: Machine, active: np.ndarray | None) -> None:
        lanes = m.indices(active)
        mask = spread(member(m, active), len(lanes)) & pack_lanes(present(m, active))[m.lane_warp[lanes]]
        leader = np.bitwise_count((mask & -mask.astype(np.int64)).astype(np.uint32) - np.uint32(1)).astype(np.uint32)
        write(m, active, leader)
        if write_chosen is not None:
            write_chosen(m, active, lanes % 32 == leader)

    return together(c, act, member)


# ---------------------------------------------------------------- match and redux


def masks_of_groups(m: Machine, lanes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each lane, which lanes of its warp hold the same value: uint32[n]."""
    table = np.zeros((m.blocks * m.warps, 32), np.uint64)
    held = np.zeros((m.blocks * m.warps, 32), bool)
    table.reshape(-1)[lanes], held.reshape(-1)[lanes] = values, True
    warp = m.lane_warp[lanes]
    same = (table[warp] == values[:, None]) & held[warp]
    return (same * (np.uint64(1) << np.arange(32, dtype=np.uint64))).sum(1).astype(np.uint32)


@builds("match")
def build_match(c: Coder) -> Run:
    mode = c.choose("any", "all")
    if not c.flag("sync"):
        raise c.unsupported("match without .sync")
    type = c.type("b32", "b64")
    first, second = c.pair(0)
    write = c.destination(first, "b32")
    write_all = None if second is None else c.destination(second, "pred")
    value, member = c.source(1, type), c.source(2, "u32")

    def act(m: Machine, active: np.ndarray | None) -> None:
        lanes = m.indices(active)
        mask = spread(member(m, active), len(lanes)) & pack_lanes(present(m, active))[m.lane_warp[lanes]]
        same = masks_of_groups(m, lanes, spread(value(m, active), len(lanes)).astype(np.uint64)) & mask
        if mode == "any":
            write(m, active, same)
            return
        agreed = same == mask
        write(m, active, np.where(agreed, mask, np.uint32(0)))
        if write_all is not None:
            write_all(m, active, agreed)

    return together(c, act, member)


REDUCTIONS: dict[str, tuple[Callable, int]] = {
    "add": (np.add.reduce, 0), "and": (np.bitwise_and.reduce, -1), "or": (np.bitwise_or.reduce, 0), "xor": (np.bitwise_xor.reduce, 0),
}  # fmt: skip


@builds("redux")
def build_redux(c: Coder) -> Run:
    if not c.flag("sync"):
        raise c.unsupported("redux without .sync")
    operation, type = c.choose("add", "min", "max", "and", "or", "xor"), c.type("u32", "s32", "b32")
    write, value, member = c.destination(0, type), c.source(1, type), c.source(2, "u32")
    info = np.iinfo(type.dtype)
    table = {**REDUCTIONS, "min": (np.minimum.reduce, info.max), "max": (np.maximum.reduce, info.min)}
    reduce, neutral = table[operation]

    def act(m: Machine, active: np.ndarray | None) -> None:
        lanes = m.indices(active)
        values = np.full((m.blocks * m.warps, 32), np.array(neutral, np.int64).astype(type.dtype), type.dtype)
        values.reshape(-1)[lanes] = value(m, active)
        write(m, active, reduce(values, axis=1).astype(type.dtype)[m.lane_warp[lanes]])

    return together(c, act, member)


