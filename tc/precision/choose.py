"""From what a caller asks for to what stays f32: at once, by the ranges of values, or by a search under a tolerance.

The search is greedy. Each operation is rounded alone and its error measured, on the input where the error of all together is largest. Those
that save the most seconds for their squared error are rounded, as many as keep the error of all together in the tolerance. Squared errors
nearly add up, so few choices are tried to find how many these are. Products that are not rounded are split where that is faster: three
products of terms of 16 bits lose next to nothing. The program that results is then measured itself, on every input.
Seconds are estimated, so the same inputs choose the same on every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod

import numpy as np

from tc.cost.rates import kernel_rates
from tc.cost.typical import typical
from tc.frontend.signature import require_numbers
from tc.ir.arith import Facts
from tc.ir.dtype import bf16, f32
from tc.ir.graph import Atom, Binding, Call, TensorConst, TensorVar
from tc.ir.types import TensorType, product
from tc.ops.build import full_attrs, operand_types
from tc.ops.registry import get_op, inference
from tc.ops.terms import length_of_term
from tc.passes.graph.narrowing import (
    F32,
    Narrowing,
    Precision,
    Role,
    calls_of,
    can_split,
    choose_narrowing,
    depth_of,
    factors_of,
)
from tc.passes.manager import Stopwatch
from tc.passes.pipeline import PreparedModel, narrow_model
from tc.precision.calibrate import Build, Simulation, largest_values, relative_error, run_batch
from tc.precision.inputs import bind_calls, inputs_of
from tc.precision.request import Batch, PrecisionRequest
from tc.runtime.finish import build_prepared
from tc.runtime.module import CompiledModule
from tc.runtime.program import AssumptionFails
from tc.target import Target
from tc.target.machine import machine_of
from tc.te import placeholder, stages_of

LARGEST_F16 = 65504.0

SMALLEST_F16 = 2.0**-14
"""From here on f16 has all its digits."""

HEADROOM = 4.0
"""How many times larger than on calibration inputs values of f16 may get before they are infinite, and smaller before they lose digits."""

MARGIN = 0.9
"""The part of the tolerance that calibration inputs may use: others are a little different."""

MOST_TRIED = 8
"""Choices that the simulated graph is asked for beside everything and each operation alone."""

NEAR = 0.95
"""The part of what is allowed that is taken for all of it."""

ROUNDS = 6
"""How often the program itself is measured, and more stays f32, before all of it does."""

TERMS = 3
"""Products of terms that a split product consists of."""

SPLIT_BYTES = 12
"""That a split product moves for an element of a factor that is no literal: written and read three times with two bytes."""

SPLIT_LITERAL_BYTES = 2
"""That it reads more for an element of a literal: six for four."""

SPLIT_ERROR = 2.0**-15
"""A tolerance below this is none for split products: what they lose is an eighth of it for each, and adds up."""

TILE_SPEEDUP = 8.0
"""Of products of bf16 on tile registers over multiply-adds in f32, where whole kernels are compared."""


def choose_precision(model: PreparedModel, request: PrecisionRequest, build: Build) -> Precision:
    """What is narrowed in a model, and what is kept. `build` compiles what is measured."""
    if request.dtype is None:
        return F32
    plain = Precision(request.dtype)
    if not request.is_searched:
        return plain
    batches = bind_calls(request.calls, inputs_of(model.graph.main.params))
    narrowing = choose_narrowing(model.graph, plain)
    if request.tolerance is None:
        return Precision(request.dtype, _out_of_range(model, narrowing, batches, build))
    return _within(model, narrowing, batches, request.tolerance, build)


def prepare_in(prepare: Callable[[bool], PreparedModel], precision: PrecisionRequest, watch: Stopwatch | None = None) -> PreparedModel:
    """A model in a precision; programs in f32 and in 16 bits are compiled and run where calibration inputs decide.

    prepare: makes the model in f32, taking dims that may be broadcast to be equal, or not: where they differ in a calibration input.
    """
    try:
        return _narrowed(prepare(True), precision, watch)
    except AssumptionFails:
        return _narrowed(prepare(False), precision, watch)


def _narrowed(model: PreparedModel, precision: PrecisionRequest, watch: Stopwatch | None) -> PreparedModel:
    def build(part: PreparedModel) -> CompiledModule:
        module = build_prepared(part)
        module.set_general(differ)
        return module

    def differ() -> CompiledModule:
        raise AssumptionFails

    def search() -> Precision:
        if precision.is_searched:
            require_numbers(model.imported.signature, "calibration")
        return choose_precision(model, precision, build)

    chosen = search() if watch is None or not precision.is_searched else watch.apart("calibration", search)
    return narrow_model(model, chosen)


def _candidates(model: PreparedModel, narrowing: Narrowing) -> list[tuple[int, Binding]]:
    """The operations that are narrowed, with their places."""
    moved = (Role.PRODUCT, Role.DECODED, Role.STORE)
    return [
        (place, binding)
        for place, binding in enumerate(calls_of(model.graph))
        if narrowing.role(binding) in moved or (narrowing.role(binding) is Role.MOVE and any(map(_is_table, binding.value.args)))  # type: ignore[union-attr]
    ]


def _is_table(atom: Atom | None) -> bool:
    return isinstance(atom, TensorConst) and isinstance(atom.type, TensorType) and atom.type.dtype is f32


# -- f16: what would overflow


def _out_of_range(model: PreparedModel, narrowing: Narrowing, batches: Sequence[Batch], build: Build) -> tuple[tuple[int, str], ...]:
    candidates = _candidates(model, narrowing)
    params, own = model.graph.main.params, {target for binding in model.graph.main.bindings for target in binding.targets}
    seen = {*params, *own}
    read = {place: _values_of(binding) for place, binding in candidates}
    values = list(dict.fromkeys(value for found in read.values() for value in found if value in seen))
    largest = dict(zip(values, largest_values(model, values, batches, build), strict=True))
    kept = []
    for place, _ in candidates:
        if any(value not in seen for value in read[place]):
            kept.append((place, "inside of a loop or branch, whose values calibration does not see"))
            continue
        top = max((largest[value] for value in read[place]), key=lambda v: (v != v, v), default=0.0)
        if not top * HEADROOM <= LARGEST_F16:
            kept.append((place, f"reaches {top:.6g} on calibration inputs; f16 ends at 65,504, and {HEADROOM:g} times as much must fit"))
            continue
        low = min((found for value in read[place] if (found := largest[value]) > 0), default=LARGEST_F16)
        if low < SMALLEST_F16 * HEADROOM:
            kept.append((place, f"stays below {low:.6g} on calibration inputs; f16 has fewer digits of numbers below {SMALLEST_F16:.3g}"))
    return tuple(kept)


def _values_of(binding: Binding) -> list[TensorVar]:
    """What of an operation would have 16 bits."""
    call = binding.value
    assert isinstance(call, Call)
    values = [*binding.targets, *factors_of(call)]
    return [v for v in values if isinstance(v, TensorVar) and isinstance(v.type, TensorType) and v.type.dtype is f32]


# -- mixed: what breaks the tolerance


def _within(model: PreparedModel, narrowing: Narrowing, batches: Sequence[Batch], tolerance: float, build: Build) -> Precision:
    candidates, allowed = _candidates(model, narrowing), MARGIN * tolerance
    everything = range(len(candidates))
    exact = _results(build(model), batches)
    simulation = Simulation(model, narrowing, [binding for _, binding in candidates], batches, exact, build)
    rounded, budget = list(everything), math.inf
    alone = [simulation.error(everything, place) for place in range(len(batches))]
    costs, saved = [0.0] * len(candidates), [0.0] * len(candidates)
    split: list[float] = []
    if max(alone) > allowed:
        hardest_first = sorted(range(len(batches)), key=lambda place: (-alone[place], place))
        costs = [simulation.error((k,), hardest_first[0]) ** 2 for k in everything]
        facts = model.graph.main.facts
        split = [split_seconds(model.target, binding, facts) if allowed >= SPLIT_ERROR else 0.0 for _, binding in candidates]
        saved = [saved_seconds(model.target, binding, facts) - split[k] for k, (_, binding) in enumerate(candidates)]
        error_of = lambda chosen: simulation.first_above(chosen, hardest_first, allowed)  # noqa: E731
        rounded, budget = _most_within(error_of, costs, saved, allowed, max(alone))
    split_places = {place for (place, _), seconds in zip(candidates, split, strict=False) if seconds > 0}
    for round_ in range(ROUNDS):
        if round_ == ROUNDS - 1 and split_places:
            rounded = []
        if not rounded and not split_places:
            break
        chosen = _keeping(candidates, set(everything).difference(rounded), tolerance, split_places)
        found = _results(build(narrow_model(model, chosen)), batches)
        error = max(map(relative_error, found, exact))
        if error <= allowed:
            return chosen
        if not rounded:
            break
        before = len(rounded)
        budget = min(budget, math.fsum(costs[k] for k in rounded)) * MARGIN * min(allowed / error, 1.0) ** 2
        rounded = _fitting(costs, saved, budget)
        rounded = rounded if len(rounded) < before else rounded[: before * 3 // 4]
    return _keeping(candidates, everything, tolerance, ())


def _results(module: CompiledModule, batches: Sequence[Batch]) -> list[dict[str, np.ndarray]]:
    return [{name: np.array(result) for name, result in run_batch(module, batches, place).items()} for place in range(len(batches))]


def _most_within(
    error_of: Callable[[Sequence[int]], float], costs: Sequence[float], saved: Sequence[float], allowed: float, error: float
) -> tuple[list[int], float]:
    """The operations that are rounded by the largest budget of squared errors, of those tried, whose error is allowed; and that budget.

    error: of all operations. Squared errors nearly add up, up to a factor: each error that is measured says which budget is tried next,
    between the largest that was allowed and the smallest that was not.
    """
    best: list[int] = []
    total = math.fsum(cost for cost in costs if math.isfinite(cost))
    low, high, budget = 0.0, total, total * (allowed / error) ** 2 or total
    for _ in range(MOST_TRIED):
        rounded = _fitting(costs, saved, budget)
        error = error_of(rounded)
        if error <= allowed:
            best, low = rounded, budget
        else:
            high = budget
        if NEAR * allowed <= error <= allowed or high <= low / NEAR:
            break
        guess = budget * (allowed / max(error, 1e-30)) ** 2
        budget = guess if low / NEAR < guess < high * NEAR else (low + high) / 2
    return best, low


def _fitting(costs: Sequence[float], saved: Sequence[float], budget: float) -> list[int]:
    """Which operations are rounded by a budget of squared errors: those first that save most for theirs."""
    found, spent = [], 0.0
    for k in sorted(range(len(costs)), key=lambda k: (costs[k] / max(saved[k], 1e-12), k)):
        if spent + costs[k] <= budget:
            spent += costs[k]
            found.append(k)
    return found


def _keeping(candidates: Sequence[tuple[int, Binding]], kept: Iterable[int], tolerance: float, split: Collection[int]) -> Precision:
    reason = f"its rounding would break the tolerance of {tolerance:g}"
    places = [candidates[k][0] for k in sorted(kept)]
    return Precision(bf16, tuple((place, reason) for place in places), tuple(place for place in places if place in split))


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
    depth = depth_of(call)
    share = 1.0 - TERMS * typical(length_of_term(depth), known) / max(typical(depth, known), 1) / _speedup(target)
    factors = factors_of(call)
    moved = SPLIT_BYTES * _elements([factor for factor in factors if isinstance(factor, TensorVar)], known)
    moved += SPLIT_LITERAL_BYTES * _elements([factor for factor in factors if isinstance(factor, TensorConst)], known)
    machine, rates = machine_of(target), kernel_rates(target)
    more = moved / rates.near_bytes_per_second + machine.launch_cycles / machine.clock_hz
    return max(_seconds_in_f32(target, binding, known) * share - more, 0.0)


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
