"""About how many seconds operations save that are computed in 16 bits, or in terms of them: what searches choose by.

Seconds are estimated, not measured, so that the same inputs choose the same on every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tc.cost.rates import kernel_rates
from tc.cost.typical import typical
from tc.ir.arith import Facts
from tc.ir.dtype import f32
from tc.ir.graph import Atom, Binding, Call, TensorConst, TensorVar
from tc.ir.types import TensorType, product
from tc.ops.build import full_attrs, operand_types
from tc.ops.registry import get_op, inference
from tc.ops.terms import length_of_term
from tc.ops.winograd import has_fitting_window
from tc.passes.graph.convert_layout import WINOGRAD_SPEEDUP
from tc.passes.graph.narrowing import can_split, depth_of, factors_of, terms_of
from tc.schedule.rules.operands import LONGEST_CHAIN
from tc.target import Target
from tc.target.machine import machine_of
from tc.te import placeholder, stages_of

TERMS = 3
"""Products of terms that a split product consists of."""

SPLIT_BYTES = 12
"""That a split product moves for an element of a factor that is no literal: written and read three times with two bytes."""

SPLIT_LITERAL_BYTES = 2
"""That it reads more for an element of a literal: six for four."""

LEAST_SPLIT_GAIN = 0.15
"""Of its seconds in f32, that a product must save to be split."""

TILE_SPEEDUP = 8.0
"""Of products of bf16 on tile registers over multiply-adds in f32, where whole kernels are compared."""


def saved_seconds(target: Target, binding: Binding, facts: Sequence[object] = ()) -> float:
    """About how much less time an operation takes with 16 bits: products that instructions sum faster, bytes that are not moved."""
    call, known = binding.value, Facts.of(facts)  # type: ignore[arg-type]
    assert isinstance(call, Call)
    atoms = [*binding.targets, *(atom for atom in call.args if atom is not None)]
    seconds = 2.0 * _elements(atoms, known) / kernel_rates(target).near_bytes_per_second
    return seconds + _seconds_in_f32(target, binding, known) * (1.0 - 1.0 / _speedup(target)) if factors_of(call) else seconds


def split_seconds(target: Target, binding: Binding, facts: Sequence[object] = ()) -> float:
    """About how much less time an operation takes whose factors are split into terms of bf16; 0 where it takes more, or cannot be split."""
    call, known = binding.value, Facts.of(facts)  # type: ignore[arg-type]
    assert isinstance(call, Call)
    if not can_split(binding):
        return 0.0
    with inference(known):
        if terms_of(binding) > LONGEST_CHAIN:
            return 0.0
    depth = depth_of(call)
    row, size = typical(length_of_term(depth), known), max(typical(depth, known), 1)
    factors, machine, rates = factors_of(call), machine_of(target), kernel_rates(target)
    moved = SPLIT_BYTES * _elements([factor for factor in factors if isinstance(factor, TensorVar)], known)
    moved += SPLIT_LITERAL_BYTES * _elements([factor for factor in factors if isinstance(factor, TensorConst)], known)
    seconds = _seconds_in_f32(target, binding, known)
    split = seconds * TERMS * row / size / _speedup(target) + moved / rates.near_bytes_per_second + machine.launch_cycles / machine.clock_hz
    weights = factors[1].type.static_shape if call.op == "conv" else None  # type: ignore[union-attr]
    has_winograd = weights is not None and has_fitting_window(weights[2:], full_attrs(call))
    saved = seconds / (WINOGRAD_SPEEDUP if has_winograd else 1.0) - split
    return saved if saved >= LEAST_SPLIT_GAIN * seconds else 0.0


def _elements(atoms: Sequence[Atom], facts: Facts) -> int:
    return sum(typical(product(a.type.shape), facts) for a in atoms if isinstance(a.type, TensorType) and a.type.dtype is f32)


def _speedup(target: Target) -> float:
    """Of products of bf16 over those of f32."""
    return TILE_SPEEDUP if target.has("amx-bf16") else max(machine_of(target).bf16_dots_per_fma, 1.0)


def _seconds_in_f32(target: Target, binding: Binding, facts: Facts) -> float:
    return _flops(binding, facts) / kernel_rates(target).flops_per_second


def _flops(binding: Binding, facts: Facts) -> float:
    call = binding.value
    assert isinstance(call, Call)
    operands = [None if t is None else placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(operand_types(call))]
    with inference(facts):
        made = get_op(call.op).compute_tensors(operands, full_attrs(call), [t.type for t in binding.targets])  # type: ignore[misc]
    terms = [(*stage.buffers[0].shape, *stage.reduce_extents) for stage in stages_of(made) if stage.reduce_axes]
    return float(sum(2 * prod(typical(dim, facts) for dim in dims) for dims in terms))
