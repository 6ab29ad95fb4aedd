"""From what a caller asks for to what stays f32: at once, by the ranges of values, or by a search under a tolerance.

The search is greedy. Each operation is rounded alone and its error measured; those whose error is largest per second that rounding them
saves stay f32, as few as keep the error of all others together in the tolerance. The program that results is then measured itself. Seconds
are estimated, so the same inputs choose the same on every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tc.cost.rates import kernel_rates
from tc.cost.typical import typical
from tc.ir.arith import Facts
from tc.ir.dtype import bf16, f32
from tc.ir.graph import Atom, Binding, Call, TensorConst, TensorVar
from tc.ir.types import TensorType, product
from tc.ops.build import full_attrs, operand_types
from tc.ops.registry import get_op, inference
from tc.passes.graph.narrowing import F32, Narrowing, Precision, Role, calls_of, choose_narrowing, factors_of
from tc.passes.manager import Stopwatch
from tc.passes.pipeline import PreparedModel, narrow_model
from tc.precision.calibrate import Build, Simulation, largest_values, relative_error, run_batch
from tc.precision.request import PrecisionRequest, check_batches
from tc.runtime.finish import build_prepared
from tc.target import Target
from tc.target.machine import machine_of
from tc.te import placeholder, stages_of

LARGEST_F16 = 65504.0

HEADROOM = 4.0
"""How many times larger than on calibration inputs values of f16 may get before they are infinite."""

MARGIN = 0.9
"""The part of the tolerance that calibration inputs may use: others are a little different."""

SINGLE_BATCHES = 2
"""Calibration inputs on which each operation is rounded alone."""

MOST_TRIED = 32
"""Operations that are tried once more when it is known how many must stay f32."""

ROUNDS = 6
"""How often the program itself is measured, and more stays f32, before all of it does."""

TILE_SPEEDUP = 8.0
"""Of products of bf16 on tile registers over multiply-adds in f32, where whole kernels are compared."""


def choose_precision(model: PreparedModel, request: PrecisionRequest, build: Build) -> Precision:
    """What is narrowed in a model, and what is kept. `build` compiles what is measured."""
    if request.dtype is None:
        return F32
    plain = Precision(request.dtype)
    if not request.is_searched:
        return plain
    check_batches(request.batches, [param.name for param in model.graph.main.params])
    narrowing = choose_narrowing(model.graph, plain)
    if request.tolerance is None:
        return Precision(request.dtype, _out_of_range(model, narrowing, request, build))
    return _within(model, narrowing, request, request.tolerance, build)


def prepare_in(model: PreparedModel, precision: PrecisionRequest, watch: Stopwatch | None = None) -> PreparedModel:
    """A model in a precision; programs in f32 and in 16 bits are compiled and run where calibration inputs decide."""

    def search() -> Precision:
        return choose_precision(model, precision, build_prepared)

    chosen = search() if watch is None or not precision.is_searched else watch.apart("calibration", search)
    return narrow_model(model, chosen)


def _candidates(model: PreparedModel, narrowing: Narrowing) -> list[tuple[int, Binding]]:
    """The operations that are narrowed, with their places."""
    moved = (Role.PRODUCT, Role.STORE)
    return [
        (place, binding)
        for place, binding in enumerate(calls_of(model.graph))
        if narrowing.role(binding) in moved or (narrowing.role(binding) is Role.MOVE and any(map(_is_table, binding.value.args)))  # type: ignore[union-attr]
    ]


def _is_table(atom: Atom | None) -> bool:
    return isinstance(atom, TensorConst) and isinstance(atom.type, TensorType) and atom.type.dtype is f32


# -- f16: what would overflow


def _out_of_range(model: PreparedModel, narrowing: Narrowing, request: PrecisionRequest, build: Build) -> tuple[tuple[int, str], ...]:
    candidates = _candidates(model, narrowing)
    params, own = model.graph.main.params, {target for binding in model.graph.main.bindings for target in binding.targets}
    seen = {*params, *own}
    read = {place: _values_of(binding) for place, binding in candidates}
    values = list(dict.fromkeys(value for found in read.values() for value in found if value in seen))
    largest = dict(zip(values, largest_values(model, values, request.batches, build), strict=True))
    kept = []
    for place, _ in candidates:
        if any(value not in seen for value in read[place]):
            kept.append((place, "inside of a loop or branch, whose values calibration does not see"))
            continue
        top = max((largest[value] for value in read[place]), key=lambda v: (v != v, v), default=0.0)
        if not top * HEADROOM <= LARGEST_F16:
            kept.append((place, f"reaches {top:.6g} on calibration inputs; f16 ends at 65,504, and {HEADROOM:g} times as much must fit"))
    return tuple(kept)


def _values_of(binding: Binding) -> list[TensorVar]:
    """What of an operation would have 16 bits."""
    call = binding.value
    assert isinstance(call, Call)
    values = [*binding.targets, *factors_of(call)]
    return [v for v in values if isinstance(v, TensorVar) and isinstance(v.type, TensorType) and v.type.dtype is f32]


# -- mixed: what breaks the tolerance


def _within(model: PreparedModel, narrowing: Narrowing, request: PrecisionRequest, tolerance: float, build: Build) -> Precision:
    candidates = _candidates(model, narrowing)
    allowed = MARGIN * tolerance
    simulation = Simulation(model, narrowing, [binding for _, binding in candidates], request.batches, build)
    everything = range(len(candidates))
    order: list[int] = []
    count = 0
    if simulation.error(everything) > allowed:
        errors = [simulation.error((k,), SINGLE_BATCHES) for k in everything]
        saved = [saved_seconds(model.target, binding, model.graph.main.facts) for _, binding in candidates]
        order = sorted(everything, key=lambda k: (-(errors[k] ** 2) / max(saved[k], 1e-12), k))
        count = _fewest(simulation, order, allowed)
        fitting = _still_fitting(simulation, order, count, allowed, saved)
        order, count = [*(k for k in order[:count] if k not in fitting), *order[count:], *fitting], count - len(fitting)
    else:
        order = list(everything)
    exact = None
    for _ in range(ROUNDS):
        chosen = _keeping(candidates, order[:count], tolerance)
        if count == len(candidates):
            return chosen
        if exact is None:
            plain = build(model)
            exact = [dict(run_batch(plain, request.batches, place)) for place in range(len(request.batches))]
        module = build(narrow_model(model, chosen))
        error = max(relative_error(run_batch(module, request.batches, place), exact[place]) for place in range(len(exact)))
        if error <= allowed:
            return chosen
        count = min(len(candidates), count + max(1, (len(candidates) - count) // 4))
    return _keeping(candidates, everything, tolerance)


def _fewest(simulation: Simulation, order: Sequence[int], allowed: float) -> int:
    """Of how many of the first in order f32 must remain for the error of the others to be allowed: found by halving."""
    low, high = 0, len(order)
    while low + 1 < high:
        middle = (low + high) // 2
        if simulation.error(order[middle:]) <= allowed:
            high = middle
        else:
            low = middle
    return high


def _still_fitting(simulation: Simulation, order: Sequence[int], count: int, allowed: float, saved: Sequence[float]) -> list[int]:
    """Which of the first in order may be rounded after all, beside those behind them; what saves most is asked for first."""
    rounded, found = list(order[count:]), list[int]()
    for k in sorted(order[:count], key=lambda k: (-saved[k], k))[:MOST_TRIED]:
        if simulation.error((*rounded, k)) <= allowed:
            rounded.append(k)
            found.append(k)
    return found


def _keeping(candidates: Sequence[tuple[int, Binding]], kept: Sequence[int], tolerance: float) -> Precision:
    reason = f"its rounding would break the tolerance of {tolerance:g}"
    return Precision(bf16, tuple((candidates[k][0], reason) for k in sorted(kept)))


def saved_seconds(target: Target, binding: Binding, facts: Sequence[object] = ()) -> float:
    """About how much less time an operation takes with 16 bits: products that instructions sum faster, bytes that are not moved."""
    call, rates = binding.value, kernel_rates(target)
    assert isinstance(call, Call)
    known = Facts.of(facts)  # type: ignore[arg-type]
    atoms = [*binding.targets, *(atom for atom in call.args if atom is not None)]
    elements = sum(typical(product(a.type.shape), known) for a in atoms if isinstance(a.type, TensorType) and a.type.dtype is f32)
    seconds = 2.0 * elements / rates.near_bytes_per_second
    if not factors_of(call):
        return seconds
    machine = machine_of(target)
    speedup = TILE_SPEEDUP if target.has("amx-bf16") else max(machine.bf16_dots_per_fma, 1.0)
    return seconds + _flops(binding, known) / rates.flops_per_second * (1.0 - 1.0 / speedup)


def _flops(binding: Binding, facts: Facts) -> float:
    call = binding.value
    assert isinstance(call, Call)
    operands = [None if t is None else placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(operand_types(call))]
    with inference(facts):
        made = get_op(call.op).compute_tensors(operands, full_attrs(call), [t.type for t in binding.targets])  # type: ignore[misc]
    terms = [(*stage.buffers[0].shape, *stage.reduce_extents) for stage in stages_of(made) if stage.reduce_axes]
    return float(sum(2 * prod(typical(dim, facts) for dim in dims) for dims in terms))
