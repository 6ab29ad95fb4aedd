"""What one core of a kind of CPU does in a cycle and in a second: one table, read by whatever chooses between ways to compute.

Numbers are data of a kind, found by the names that LLVM gives to CPUs; where nothing is known of a name, those of GENERIC stand in.
Nothing is measured while a model is compiled, so the same model, target and version give the same code.
"""

from __future__ import annotations

from dataclasses import dataclass

from tc.target import Target


@dataclass(frozen=True)
class CoreRates:
    """Rates of one core.

    fma_per_cycle: fused multiply-adds of whole vectors. loads_per_cycle: vectors, or numbers that are broadcast, from the first-level
    cache. fma_latency: cycles until a result may be used. l2_cycles_per_vector: what a vector costs that comes from the second-level
    cache. bf16_dots_per_fma: how many times as fast products of bf16 are summed by `vdpbf16ps` as by converting and f32.
    flops_per_second_per_lane: what the register tiles of a contraction reach. *_bytes_per_second: streams from the second-level cache,
    from what lies near behind it and far, and of weights, which are prefetched.
    """

    fma_per_cycle: float = 2.0
    loads_per_cycle: float = 2.0
    fma_latency: float = 4.0
    l2_cycles_per_vector: float = 3.0
    bf16_dots_per_fma: float = 1.0
    flops_per_second_per_lane: float = 1.25e10
    weight_bytes_per_second: float = 1.4e10
    l2_bytes_per_second: float = 4e10
    near_bytes_per_second: float = 2e10
    far_bytes_per_second: float = 9e9


GENERIC = CoreRates()
"""Measured on Xeons with AVX-512 (Sapphire and Emerald Rapids)."""

KINDS: dict[str, CoreRates] = {
    # One 512-bit multiply-add a cycle, each in two halves, and one `vdpbf16ps` of twice as many products (AMD, "Software Optimization
    # Guide for the AMD Zen 4 Microarchitecture", 57647).
    "znver4": CoreRates(fma_per_cycle=1.0, loads_per_cycle=1.0, bf16_dots_per_fma=2.0),
    # On Intel's a `vdpbf16ps` takes the place of two multiply-adds: as many products.
    "cooperlake": GENERIC,
    "sapphirerapids": GENERIC,
    "emeraldrapids": GENERIC,
}
"""LLVM's name of a CPU -> its rates."""


def machine_of(target: Target) -> CoreRates:
    """The rates of a target's cores, or those of GENERIC."""
    return KINDS.get(target.cpu, GENERIC)
