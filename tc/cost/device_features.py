"""A program for a device as one row of numbers that a learned cost model reads: float32[n_features], named columns.

As with `features`, nothing but loops and buffers is counted, the first column is the estimate, and most others are ratios. They are about
the launch that takes longest; some about all launches. Logarithms have base 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tc.cost.device_estimate import PARTS, DeviceLaunchEstimate, estimate_launches, memory_bytes, total_seconds
from tc.ir.loop import PrimFunc
from tc.target.device import DeviceFacts

DEVICE_FEATURE_NAMES: tuple[str, ...] = (
    "log cycles", "log launches", "share of the longest launch", "log memory bytes of all",
    *(f"{part} / all" for part in PARTS),
    "log blocks per processor", "log waves", "fill of the last wave", "log threads", "warps of a processor / most", "log resident blocks",
    "shared / most of a block", "registers / most", "registers too many", "log shared bytes per thread",
    "log operations per memory byte", "log operations per moved byte", "log operations per wavefront", "share of matrix instructions",
    "moved / asked", "log bytes per request", "log moved / memory bytes", "log requests per thread",
    "wavefronts / least", "log wavefronts per thread", "log barriers", "log rounds", "copies ahead",
    "log operations per thread", "log other instructions per multiply-add", "log code", "idle", "log memory bytes per thread",
)  # fmt: skip
"""The columns of a row, in order."""

USUAL_HZ = 2.0**31.5
"""What a cycle of the first column is a cycle of, whatever the device's clock: as with processors, it stands for seconds."""

IMPOSSIBLE = 60.0
"""log2 of the cycles of a program that the device cannot run."""


def extract_device(func: PrimFunc, device: DeviceFacts, dims: Mapping[str, int]) -> np.ndarray:
    """float32[len(DEVICE_FEATURE_NAMES)] of a PrimFunc in the finished form, all finite; `dims` gives symbolic dims by name."""
    launches = estimate_launches(func, device, dims)
    if not launches:
        return np.zeros(len(DEVICE_FEATURE_NAMES), np.float32)
    longest = max(launches, key=lambda launch: launch.seconds)
    total = total_seconds(launches)
    row = [math.log2(total * USUAL_HZ) if math.isfinite(total) else IMPOSSIBLE, _log(sum(launch.work.times for launch in launches))]
    row += [longest.seconds / total if math.isfinite(total) else 1.0, _log(sum(memory_bytes(each.work, device) for each in launches))]
    row += _launch(longest, device)
    assert len(row) == len(DEVICE_FEATURE_NAMES), "a value for every column"
    found: np.ndarray = np.clip(np.nan_to_num(np.array(row)), -1e6, 1e6).astype(np.float32)
    return found


def _log(value: float) -> float:
    """log2 of a count or size; 0 and 1 are alike."""
    return math.log2(value) if value > 1.0 else 0.0


def _per(part: float, whole: float) -> float:
    """log2 of a ratio of counts, both at least 1."""
    return math.log2(max(part, 1.0) / max(whole, 1.0))


def _launch(launch: DeviceLaunchEstimate, device: DeviceFacts) -> list[float]:
    work = launch.work
    slowest = max(launch.parts) or 1.0
    full = math.ceil(launch.waves) or 1.0
    warps = math.ceil(work.threads / device.warp_size)
    products = 2 * work.multiply_adds
    matrices = sum(work.matrix_flops.values())
    operations = products + matrices
    memory, moved = memory_bytes(work, device), sum(amount for amount, _ in work.traffic.values())
    return [
        *(part / slowest for part in launch.parts),
        _log(work.blocks / device.processors),
        _log(1 + launch.waves),
        launch.waves / full,
        _log(work.threads),
        launch.resident * warps * device.warp_size / device.max_threads_per_processor,
        _log(1 + launch.resident),
        work.shared_bytes / max(device.max_shared_bytes_per_block, 1),
        min(work.registers / device.max_registers_per_thread, 4.0),
        _log(1 + max(work.registers - device.max_registers_per_thread, 0)),
        _per(work.shared_bytes, work.threads),
        _per(operations * work.blocks, memory),
        _per(operations, moved),
        _per(operations, work.wavefronts),
        matrices / max(operations, 1.0),
        min(work.sectors * 32 / max(work.asked_bytes, 1.0), 32.0),
        _log(work.asked_bytes / max(work.requests * 32, 1.0)),
        _per(moved * work.blocks, memory),
        _log(1 + 32 * work.requests / work.threads),
        min(work.wavefronts / max(work.least_wavefronts, 1.0), 32.0),
        _log(1 + 32 * work.wavefronts / work.threads),
        _log(1 + work.barriers),
        _log(1 + work.rounds),
        float(work.copies_ahead),
        _log(1 + operations / work.threads),
        _per(work.other, max(work.multiply_adds, matrices / 512)),
        _log(1 + work.code),
        work.idle / max(work.statements, 1.0),
        _per(memory, work.blocks * work.threads),
    ]
