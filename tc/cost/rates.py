"""What kernels reach of what a core can do: the rates that choices between whole kernels are made by.

The rates of a core are peaks. A kernel reaches a part of them that depends on how it is written, hardly on the core; those parts stand
here, fitted to kernels of this project on Xeons with AVX-512, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tc.target import Target
from tc.target.machine import machine_of
from tc.target.table import CoreRates

USUAL_TARGET = Target.parse("x86-64-v4:cores=1")
"""What passes of a graph take a target to be when they are run without one."""

PRODUCT_SHARE = 0.92
"""Of multiply-adds, reached by the register tiles of a contraction when all of them are full."""

L2_STREAMS = 2.0
"""How much longer than a line of one stream a vector of an operand takes that comes from the second-level cache between loads of others."""

LINE_CYCLES = 3.4
"""What a line of a tensor costs kernels that read and write its rows, some of them in another order, beside the time of the stream."""

NEAR_STREAMS, FAR_STREAMS = 1.365, 1.893
"""How much longer than of one stream a line takes them that comes from a cache, or from memory."""

WEIGHT_SHARE = 0.707
"""Of a stream through memory, reached by weights, which are read once, in order and fetched ahead."""


@dataclass(frozen=True)
class KernelRates:
    """Of one core. flops_per_second: of sums of products on full vectors of f32. *_bytes_per_second: of tensors in the second-level cache,
    in what lies near behind it, and far, and of weights."""

    flops_per_second: float
    l2_bytes_per_second: float
    near_bytes_per_second: float
    far_bytes_per_second: float
    weight_bytes_per_second: float


def kernel_rates(target: Target) -> KernelRates:
    """What kernels for a target reach on one of its cores."""
    return rates_of_core(machine_of(target), target.lanes(32), target.cache_line_bytes)


@lru_cache(maxsize=64)
def rates_of_core(core: CoreRates, lanes: int, line_bytes: int = 64) -> KernelRates:
    """The same of a core with vectors of so many f32."""
    second = line_bytes * core.clock_hz
    return KernelRates(
        PRODUCT_SHARE * core.fma_flops_per_lane * lanes,
        second / (LINE_CYCLES + NEAR_STREAMS * core.l2_cycles_per_line),
        second / (LINE_CYCLES + NEAR_STREAMS * core.l3_cycles_per_line),
        second / (LINE_CYCLES + FAR_STREAMS * core.memory_cycles_per_line),
        WEIGHT_SHARE * second / core.memory_cycles_per_line,
    )
