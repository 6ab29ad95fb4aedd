"""From what a caller asks for to what stays f32: at once, by the ranges of values, or by a search under a tolerance.

The search is greedy. Each operation is rounded alone and its error measured, on the input where the error of all together is largest. Those
that save the most seconds for their squared error are rounded, as many as keep the error of all together in the tolerance. Squared errors
nearly add up, so few choices are tried to find how many these are. Products that are not rounded are split where that is faster: three
products of terms of 16 bits lose next to nothing. The program that results is then measured itself, on every input.
Seconds are estimated, so the same inputs choose the same on every run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from tc.frontend.signature import require_numbers
from tc.ir.dtype import bf16, f32
from tc.ir.graph import Atom, Binding, Call, TensorConst, TensorVar
from tc.ir.types import TensorType
from tc.passes.graph.convert_layout import CONVOLUTIONS, layout_seconds
from tc.passes.graph.narrowing import F32, Narrowing, Precision, Role, calls_of, choose_narrowing, factors_of
from tc.passes.manager import Stopwatch
from tc.passes.pipeline import PreparedModel, narrow_model
from tc.precision.calibrate import Build, Simulation, largest_values, relative_error, run_batch
from tc.precision.inputs import bind_calls, inputs_of
from tc.precision.request import Batch, PrecisionRequest
from tc.precision.savings import LEAST_SPLIT_GAIN, saved_seconds, split_seconds
from tc.runtime.finish import build_prepared
from tc.runtime.module import CompiledModule
from tc.runtime.program import AssumptionFails

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

SPLIT_ERROR = 2.0**-15
"""A tolerance below this is none for split products: what they lose is an eighth of it for each, and adds up."""


def choose_precision(model: PreparedModel, request: PrecisionRequest, build: Build) -> Precision:
    """What is narrowed in a model, and what is kept. `build` compiles what is measured."""
    if request.dtype is None:
        return F32
    plain = Precision(request.dtype)
    if not request.is_searched and not request.is_split:
        return plain
    narrowing = choose_narrowing(model.graph, plain)
    if request.is_split:
        return _all_split(model, narrowing)
    batches = bind_calls(request.calls, inputs_of(model.graph.main.params))
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


def _all_split(model: PreparedModel, narrowing: Narrowing) -> Precision:
    """Every product of two terms each that is faster so; all else in f32."""
    why = "products are added one by one" if model.numerics == "strict" else "no faster as three products of bf16"
    kept, split = [], []
    for place, binding in _candidates(model, narrowing):
        is_split = _split_seconds(model, narrowing, binding) > 0
        split += [place] if is_split else []
        kept.append((place, why if narrowing.role(binding) in (Role.PRODUCT, Role.DECODED) and not is_split else ""))
    return _with_layouts(model, Precision(narrowing.dtype, tuple(kept), tuple(split)))


def _split_seconds(model: PreparedModel, narrowing: Narrowing, binding: Binding) -> float:
    """What is saved where an operation is split: nothing where products are added one by one, or are of weights of fewer bits."""
    if model.numerics == "strict" or narrowing.role(binding) is not Role.PRODUCT:
        return 0.0
    return split_seconds(model.target, binding, model.graph.main.facts)


def _with_layouts(model: PreparedModel, chosen: Precision) -> Precision:
    """The same, without convolutions that are split, where these make the layouts of the others worse than they are worth."""
    calls = calls_of(model.graph)
    products = tuple(place for place in chosen.split if calls[place].value.op not in CONVOLUTIONS)  # type: ignore[union-attr]
    if products == chosen.split:
        return chosen
    without = dataclasses.replace(chosen, split=products)
    split, plain = (layout_seconds(narrow_model(model, each).graph.main, model.target) for each in (chosen, without))
    return chosen if split <= (1 - LEAST_SPLIT_GAIN / 2) * plain else without


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
    splits = [0.0] * len(candidates)
    if max(alone) > allowed:
        hardest_first = sorted(range(len(batches)), key=lambda place: (-alone[place], place))
        costs = [simulation.error((k,), hardest_first[0]) ** 2 for k in everything]
        facts = model.graph.main.facts
        splits = [_split_seconds(model, narrowing, binding) if allowed >= SPLIT_ERROR else 0.0 for _, binding in candidates]
        saved = [saved_seconds(model.target, binding, facts) - splits[k] for k, (_, binding) in enumerate(candidates)]
        error_of = lambda chosen: simulation.first_above(chosen, hardest_first, allowed)  # noqa: E731
        rounded, budget = _most_within(error_of, costs, saved, allowed, max(alone))
    split_places = {place for (place, _), seconds in zip(candidates, splits, strict=True) if seconds > 0}
    for round_ in range(ROUNDS):
        if round_ == ROUNDS - 1 and split_places:
            rounded = []
        if not rounded and not split_places:
            break
        chosen = _with_layouts(model, _keeping(candidates, set(everything).difference(rounded), tolerance, split_places))
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
