"""The rates of this machine's cores as `tc doctor --measure` takes them: programs that reach one limit each, timed in turns.

Measured is what differs between machines of one kind and what a short loop can show; all else stays as the table has it. The shortest
call counts: a machine that is busy makes calls longer, nothing makes them shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tc.measure.harness import Plan, Timings, time_interleaved
from tc.measure.machine import Limit, chains_text, native_loop, stream_limit
from tc.runtime.memory import aligned_empty
from tc.target import Target
from tc.target.machine import table_of

STEPS = 1 << 15
"""Of each chain of operations in one call."""

CHASE_STEPS = 1 << 14
"""Addresses that one call follows."""

MOST_L3_BYTES = 16 << 20
"""Of a third-level cache that cores and programs share, no more is tried."""

LEAST_MEMORY_BYTES, MOST_MEMORY_BYTES = 128 << 20, 512 << 20

PLAN = Plan(budget_seconds=8.0, min_rounds=4, max_rounds=12)


@dataclass(frozen=True)
class MeasuredRates:
    """`rates`: by their names in `CoreRates`. `shown`: what they were made of, with units, for people."""

    rates: Mapping[str, float]
    shown: Mapping[str, float]


def measure_rates(target: Target, plan: Plan = PLAN) -> MeasuredRates:
    """Measure one core of this machine, and streams on all that `target` has. Takes some ten seconds."""
    limits = {limit.name: limit for limit in _limits(target)}
    return rates_of(target, limits, time_interleaved({name: limit.step for name, limit in limits.items()}, plan))


def rates_of(target: Target, limits: Mapping[str, Limit], timings: Timings) -> MeasuredRates:
    """What the times of the limits, by name, say of a target's core."""
    per_second = {name: (limit.flops or limit.size_bytes) / timings.shortest(name) for name, limit in limits.items()}
    usual = table_of(target).kind.rates
    clock = per_second["f32 multiply-adds"] / (2 * usual.fma_per_cycle * target.lanes(32))
    rates = {"clock_hz": clock}
    for name, field in (("u8 x i8 products", "i8_dots_per_fma"), ("bf16 products", "bf16_dots_per_fma")):
        if name in limits:
            rates[field] = per_second[name] / per_second["f32 multiply-adds"]
    for level, field in (("L2", "l2_cycles_per_line"), ("L3", "l3_cycles_per_line"), ("memory", "memory_cycles_per_line")):
        if f"{level} stream" in limits:
            rates[field] = target.cache_line_bytes * clock / per_second[f"{level} stream"]
            rates[field.replace("cycles_per_line", "latency")] = clock * timings.shortest(f"{level} latency") / CHASE_STEPS
    shown = {f"{name}, G/s": rate / 1e9 for name, rate in per_second.items() if not name.endswith("latency")}
    shown |= {f"{name}, ns": timings.shortest(name) / CHASE_STEPS * 1e9 for name in limits if name.endswith("latency")}
    return MeasuredRates({name: float(f"{rate:.4g}") for name, rate in rates.items()}, shown)


def _limits(target: Target) -> list[Limit]:
    """The programs: operations on registers, streams and chains of addresses at the size of each cache, a stream on all cores."""
    found = [_float_chains(target, "f32", 32, "float"), _float_chains(target, "f64", 64, "double")]
    if target.has("avx512vnni") and target.vector_bits == 512:
        lanes = target.lanes(32)
        whole = f"<{lanes} x i32>"
        bytes_ = f"<{4 * lanes} x i8>"
        found.append(_dots(target, "u8 x i8 products", f"llvm.x86.avx512.vpdpbusd.{target.vector_bits}", whole, bytes_, 4))
    if target.has("avx512bf16") and target.vector_bits == 512:
        lanes = target.lanes(32)
        halves = f"<{2 * lanes} x bfloat>"
        found.append(_dots(target, "bf16 products", f"llvm.x86.avx512bf16.dpbf16ps.{target.vector_bits}", f"<{lanes} x float>", halves, 2))
    sizes = {"L2": target.l2_bytes // 2, "memory": min(max(LEAST_MEMORY_BYTES, 2 * target.l3_bytes), MOST_MEMORY_BYTES)}
    if target.l3_bytes >= 4 * target.l2_bytes:
        sizes["L3"] = min(target.l3_bytes // 2, max(MOST_L3_BYTES, 2 * target.l2_bytes))
    for level, size in sizes.items():
        found.append(_renamed(stream_limit(target, "read", size), f"{level} stream"))
        found.append(_chase(size, target.cache_line_bytes, f"{level} latency"))
    if target.cores > 1:
        found.append(_renamed(stream_limit(target, "read", sizes["memory"], target.cores), f"memory stream, {target.cores} cores"))
    return found


def _renamed(limit: Limit, name: str) -> Limit:
    return Limit(name, limit.step, limit.flops, limit.size_bytes)


def _float_chains(target: Target, name: str, bits: int, element: str) -> Limit:
    vector = f"<{target.lanes(bits)} x {element}>"
    update = f"call {vector} @llvm.fma({vector} {{chain}}, {vector} %a, {vector} %b)"
    declare = f"declare {vector} @llvm.fma({vector}, {vector}, {vector})\n"
    return _chains(target, f"{name} multiply-adds", update, declare, vector, target.lanes(bits))


def _dots(target: Target, name: str, intrinsic: str, total: str, terms: str, depth: int) -> Limit:
    """Sums of `depth` products in each lane; the operands' bits are whatever lies there, zeros."""
    update = f"call {total} @{intrinsic}({total} {{chain}}, {terms} %p, {terms} %q)"
    declare = f"declare {total} @{intrinsic}({total}, {terms}, {terms})\n"
    casts = [f"  %p = bitcast {total} %a to {terms}", f"  %q = bitcast {total} %b to {terms}"]
    return _chains(target, name, update, declare, total, depth * target.lanes(32), casts)


def _chains(target: Target, name: str, update: str, declare: str, vector: str, products: int, casts: list[str] | None = None) -> Limit:
    chains = target.num_vector_registers - 4
    sums = aligned_empty((4 * chains * target.vector_bits // 8,), np.dtype(np.uint8))
    sums.fill(0)
    text = chains_text(vector, chains, STEPS, update, casts or []) + declare
    return Limit(name, native_loop(text, 4, 1, sums, np.zeros(target.vector_bits // 8, np.uint8)), flops=2 * products * chains * STEPS * 4)


def _chase(size_bytes: int, line_bytes: int, name: str) -> Limit:
    """Follow addresses, each read from the one before, through all lines of so much memory in an order that nothing foresees."""
    lines = size_bytes // line_bytes
    order = np.random.default_rng(0).permutation(lines)
    table = aligned_empty((lines * line_bytes // 8,), np.dtype(np.int64))
    table.fill(0)
    table[order * (line_bytes // 8)] = np.roll(order, -1) * line_bytes
    return Limit(name, native_loop(_CHASE_TEXT, 1, 1, table, np.zeros(1, np.int64)), size_bytes=CHASE_STEPS * line_bytes)


_CHASE_TEXT = f"""
define internal void @work(ptr %context, i64 %begin, i64 %stop, i64 %thread) nounwind {{
entry:
  %x = load ptr, ptr %context
  %yp = getelementptr ptr, ptr %context, i64 1
  %y = load ptr, ptr %yp
  %from = load i64, ptr %y
  br label %again
again:
  %t = phi i64 [ 0, %entry ], [ %u, %again ]
  %at = phi i64 [ %from, %entry ], [ %next, %again ]
  %p = getelementptr i8, ptr %x, i64 %at
  %next = load i64, ptr %p
  %u = add i64 %t, 1
  %more = icmp slt i64 %u, {CHASE_STEPS}
  br i1 %more, label %again, label %done
done:
  store i64 %next, ptr %y
  ret void
}}
"""
