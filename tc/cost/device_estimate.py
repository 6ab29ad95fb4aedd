"""How long the launches of a program take on a device: a roofline with occupancy, waves and the waits that nothing hides.

A processor holds some blocks at a time. What they ask of each of its parts adds up; the part that is asked most is the bound, when there
are warps enough. When there are few, what counts is how long one block takes by itself, wave after wave. Memory serves the whole device.
Source: the roofline of Williams et al. (2009); latency and throughput as in Hong and Kim, "An Analytical Model for a GPU Architecture"
(2009).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tc.cost.device_work import WARP, DeviceWork, device_work
from tc.ir.loop import PrimFunc
from tc.target.device import DeviceFacts, most_registers, occupancy

LAUNCH_SECONDS = 2.5e-6
"""From one launch to the next, of a program that does not wait."""

MEMORY_CYCLES = 600.0
"""Until device memory answers."""

BARRIER_CYCLES = 30.0
"""Of a block that has just met."""

ISSUED_PER_CYCLE = 4.0
"""Instructions of warps that a processor begins."""

DEPENDENT_CYCLES = 2.5
"""Between two instructions of one warp, some of which wait for the one before."""

L2_TIMES = 2.5
"""The bandwidth of the second-level cache over that of memory."""

L1_BYTES_PER_CYCLE = 64.0
"""That a processor gets from beyond its own memory."""

MATRIX_SHARE, MULTIPLY_SHARE, MEMORY_SHARE = 0.8, 0.85, 0.9
"""Of the vendor's peaks, that the best kernels reach."""

HIDDEN = 0.85
"""The part of the shorter of two that the longer one hides."""

PARTS = ("multiply-adds", "matrices", "instructions", "shared memory", "cache", "memory", "waiting")
"""What a launch may be bound by."""


@dataclass(frozen=True)
class DeviceLaunchEstimate:
    """One launch. `seconds` of all its times, the launching included; `parts`: of each of PARTS if it were the only bound.

    `resident`: blocks that a processor holds at a time, 0 for blocks that the device cannot run. `waves`: how many times it is filled.
    """

    work: DeviceWork
    resident: int
    waves: float
    parts: tuple[float, ...]
    seconds: float

    @property
    def bound(self) -> str:
        """The part that takes longest."""
        return PARTS[max(range(len(PARTS)), key=self.parts.__getitem__)]


def estimate_launches(func: PrimFunc, device: DeviceFacts, dims: Mapping[str, int]) -> list[DeviceLaunchEstimate]:
    """The launches of a PrimFunc in the finished form, on a device."""
    return [estimate_launch(work, device) for work in device_work(func, dims)]


def estimate_launch(work: DeviceWork, device: DeviceFacts) -> DeviceLaunchEstimate:
    """See `DeviceLaunchEstimate`. A block with more registers than there are keeps some in memory instead."""
    registers = min(work.registers, most_registers(work.threads, device))
    resident = occupancy(work.threads, registers, work.shared_bytes, device)
    if not resident or not work.blocks:
        return DeviceLaunchEstimate(work, resident, 0.0, (0.0,) * len(PARTS), math.inf if work.blocks else LAUNCH_SECONDS * work.times)
    each = -(-work.blocks // device.processors)
    waves = -(-each // resident)
    alone = _alone_cycles(work, device)
    spilt = max(work.registers - registers, 0) * 4.0 * work.threads * 2 * work.blocks
    moved = sum(amount for amount, _ in work.traffic.values()) * work.blocks + spilt
    parts = (
        *(each * cycles / device.clock_hz for cycles in _block_cycles(work, device)),
        moved / (L2_TIMES * device.memory_bytes_per_s),
        memory_bytes(work, device) / (MEMORY_SHARE * device.memory_bytes_per_s),
        waves * alone / device.clock_hz,
    )
    first, second = sorted(parts, reverse=True)[:2]
    seconds = (first + (1 - HIDDEN) * second + LAUNCH_SECONDS) * work.times
    return DeviceLaunchEstimate(work, resident, work.blocks / (device.processors * resident), parts, seconds)


def memory_bytes(work: DeviceWork, device: DeviceFacts) -> float:
    """What device memory moves for a launch: each buffer once, and again what is read again and too large to be found in the cache."""
    total = 0.0
    for moved, size in work.traffic.values():
        asked = moved * work.blocks
        again = max(asked - size, 0.0) * max(0.0, 1.0 - device.l2_bytes / max(size, 1.0)) / 4
        total += min(asked, size) + again
    return total


def _block_cycles(work: DeviceWork, device: DeviceFacts) -> tuple[float, float, float, float]:
    """Cycles of one block in each part of a processor that all its blocks share."""
    instructions = (work.multiply_adds + work.other) / min(WARP, device.warp_size * 4) + work.requests + work.wavefronts / 2
    peaks = dict(device.tensor_flops_per_cycle)
    matrices = sum(flops / max(peaks.get(dtype, 0), 1) for dtype, flops in work.matrix_flops.items()) / MATRIX_SHARE
    return (
        work.multiply_adds / device.f32_fma_per_cycle / MULTIPLY_SHARE,
        matrices,
        instructions / ISSUED_PER_CYCLE,
        max(work.wavefronts, work.sectors * 32 / L1_BYTES_PER_CYCLE),
    )


def _alone_cycles(work: DeviceWork, device: DeviceFacts) -> float:
    """Cycles of a block with a processor to itself: its warps' instructions one after the other where there are few, and its waits."""
    warps = math.ceil(work.threads / WARP)
    each = (work.multiply_adds + work.other) / max(work.threads, 1) * DEPENDENT_CYCLES
    busy = max(*_block_cycles(work, device), each if warps else 0.0)
    fetched = work.rounds - work.barriers if work.sectors else 0.0
    waits = max(fetched, work.barriers / 2 if work.copies_ahead else 0.0) * MEMORY_CYCLES / (1 + work.copies_ahead)
    hidden = 1.0 if warps < 4 else 0.6
    return busy + hidden * min(waits, work.rounds * MEMORY_CYCLES) + work.barriers * BARRIER_CYCLES


def total_seconds(launches: Sequence[DeviceLaunchEstimate]) -> float:
    """Of a program: its launches run one after the other."""
    return sum(launch.seconds for launch in launches)


# -- what a device can run


def exceeded(work: DeviceWork, device: DeviceFacts) -> str | None:
    """Why a device cannot run a launch, or would keep most of what it computes with in memory; None when it can."""
    if work.threads > device.max_threads_per_block:
        return f"a block has {work.threads} threads, {device.arch} takes {device.max_threads_per_block}"
    if work.shared_bytes > device.max_shared_bytes_per_block:
        return f"a block takes {work.shared_bytes} bytes of shared memory, {device.arch} has {device.max_shared_bytes_per_block}"
    most = most_registers(work.threads, device)
    spills = work.registers > most + min(MOST_SPILT, most // 4)
    if spills and most == device.max_registers_per_thread:
        return f"a thread takes about {work.registers} registers, {device.arch} has {most}"
    if spills or not occupancy(work.threads, min(work.registers, most), work.shared_bytes, device):
        return f"a block of {work.threads} threads with about {work.registers} registers each is more than {device.arch} holds"
    return None


MOST_SPILT = 64
"""Registers beyond what there are, and no more than a quarter of these, of which a candidate is still tried: the estimate is rough."""

