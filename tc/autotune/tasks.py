"""From a model to the tasks that a tuner works on: its distinct kernels, and the other ways to lower their nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tc.autotune.task import Task, Variant
from tc.cost.typical import USUAL_DIM, fitted
from tc.errors import TcError
from tc.frontend.dims import Dim
from tc.frontend.registry import Model, import_model
from tc.ir.arith import evaluate
from tc.ir.cached import cached_property
from tc.ir.expr import Var
from tc.ir.graph import Function, TensorConst, tir_calls
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.node import walk
from tc.passes.lower import nodes_by_result, primitive_calls
from tc.passes.pipeline import LoweredModel, PreparedModel, lay_out, lower_model, prepare_model
from tc.runtime.collector import rare_collections
from tc.schedule.canonical import canonical_names, workload_key
from tc.schedule.knobs import Decide, Knob, Value, take_default
from tc.target import Target

MOST_APART_BYTES = 256 << 20
"""No cache is larger, or at least no part of one that a process gets."""

OTHER_WAYS: tuple[Mapping[str, Value], ...] = (
    {"use_winograd": 0, "pack_matmul": 1},
    {"use_winograd": 2, "pack_matmul": 4},
    {"use_winograd": 4},
)
"""Answers to the knobs of graph passes that are tried beside the passes' own. Nodes are of different kinds, so that one way
of lowering the whole model serves several knobs at once."""


@dataclass(frozen=True)
class Extraction:
    """The tasks of a model, and the kernels that are left as they are, each with the reason."""

    tasks: tuple[Task, ...]
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Call:
    """One call of a kernel in the model. `values`: of the PrimFunc's dims; None when they come from data."""

    func: PrimFunc
    reference: IRModule
    literals: Mapping[int, np.ndarray]
    sizes: Mapping[Var, int]
    values: tuple[int, ...] | None
    nodes: tuple[str, ...]

    @property
    def dims(self) -> dict[str, int]:
        """The sizes by the names that the PrimFunc has for them."""
        assert self.values is not None, "calls whose sizes come from data are left out"
        return dict(zip((dim.name for dim in self.func.dims), self.values, strict=True))

    @cached_property
    def key(self) -> str:
        """What tuning records know the kernel by."""
        return workload_key(self.func)

    def variant(self, knob: Knob | None = None, answer: Value | None = None) -> Variant:
        return Variant(self.key, self.func, self.reference, self.sizes, self.literals, knob, answer)


def extract_tasks(
    model: Model,
    target: Target,
    dims: Mapping[str, Dim | int] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Extraction:
    """`tasks_of` a model as it compiles untuned."""
    return tasks_of(prepare_model(import_model(model, dims), target), sizes)


@rare_collections()
def tasks_of(model: PreparedModel, sizes: Mapping[str, int] | None = None, decide: Decide = take_default) -> Extraction:
    """The distinct kernels of a model, equal ones joined, each with the other ways in which its nodes can be lowered.

    sizes: what symbolic dims are measured with, by name. answer: to knobs that no kernel alone decides.
    """
    laid_out, target = lay_out(model, decide), model.target
    base = list(_calls(lower_model(laid_out, _only_for_models(decide)), sizes or {}))
    others = [_lowered_otherwise(laid_out, sizes or {}, wanted, decide) for wanted in OTHER_WAYS]
    apart_bytes = min(sum(_literal_bytes(call) for call in base), MOST_APART_BYTES)
    groups: dict[str, list[_Call]] = {}
    for call in base:
        groups.setdefault(call.key, []).append(call)
    tasks: list[Task] = []
    skipped: list[tuple[str, str]] = []
    for calls in groups.values():
        first = calls[0]
        if first.values is None:
            skipped.append((first.func.name, "its sizes come from data"))
            continue
        if any(buffer.dtype.per_byte > 1 for buffer in first.func.buffers):
            skipped.append((first.func.name, "elements of its tensors share bytes"))
            continue
        variants = {"default": first.variant()}
        for ways in others:
            variants.update(_variants(first, ways, {variant.key for variant in variants.values()}))
        nodes = tuple(dict.fromkeys(node for call in calls for node in call.nodes))
        tasks.append(Task(first.func.name, variants, target, first.dims, len(calls), nodes, apart_bytes))
    return Extraction(tuple(tasks), tuple(skipped))


def _literal_bytes(call: _Call) -> int:
    sizes = dict(zip(call.func.dims, call.values or (), strict=False))
    return sum(
        math.prod(int(evaluate(dim, sizes)) for dim in buffer.shape) * buffer.dtype.size_bytes
        for place, buffer in enumerate(call.func.inputs)
        if place in call.literals
    )


Ways = Mapping[tuple[str, ...], tuple[_Call, Knob, Value]]
"""Kernels by the nodes inside, each with a knob about one of them and the answer that led to it."""


def _only_for_models(decide: Decide) -> Decide:
    """The passes' own answers to knobs that a kernel alone decides."""
    return take_default if decide is take_default else lambda knob: knob.default if knob.alone else decide(knob)


def _lowered_otherwise(
    prepared: PreparedModel, sizes: Mapping[str, int], wanted: Mapping[str, Value], decided: Decide
) -> Ways:
    """The kernels that other answers to the knobs of graph passes lead to."""
    asked: dict[str, tuple[Knob, Value]] = {}

    def decide(knob: Knob) -> Value:
        if not knob.alone:
            return decided(knob)
        value = wanted.get(knob.name, knob.default)
        if value not in knob.options:
            value = knob.default
        if value != knob.default:
            asked[knob.node] = (knob, value)
        return value

    found: dict[tuple[str, ...], tuple[_Call, Knob, Value]] = {}
    for call in _calls(lower_model(prepared, decide), sizes):
        knobs = [asked[node] for node in call.nodes if node in asked]
        if len(knobs) == 1:
            found[call.nodes] = (call, *knobs[0])
    return found


def _variants(base: _Call, ways: Ways, known: set[str]) -> Iterator[tuple[str, Variant]]:
    if base.nodes not in ways:
        return
    call, knob, value = ways[base.nodes]
    if call.key not in known and call.values is not None:
        yield f"{knob.name}={value}", call.variant(knob, value)


def _calls(found: LoweredModel, sizes: Mapping[str, int]) -> Iterator[_Call]:
    """Every call of a PrimFunc in the model, with its sizes if they do not come from data."""
    env = measured_sizes(found.lowered.main, sizes)
    primitives = {binding.targets[0]: primitive for binding, primitive in primitive_calls(found.fused)}
    sources = nodes_by_result(found.fused)
    for target, call in tir_calls(found.lowered.main):
        lowered, primitive = found.lowered[call.callee], primitives[target]
        assert isinstance(lowered, PrimFunc)
        func = canonical_names(lowered)
        try:
            values: tuple[int, ...] | None = tuple(int(evaluate(dim, env)) for dim in call.dims)
        except TcError:
            values = None
        literals = {place: arg.value for place, arg in enumerate(call.args) if isinstance(arg, TensorConst)}
        yield _Call(func, IRModule((primitive,), primitive.name), literals, env, values, sources[target])


def measured_sizes(func: Function, sizes: Mapping[str, int]) -> dict[Var, int]:
    """The sizes of the model's symbolic dims."""
    facts = {fact.var: fact for fact in func.facts}
    env: dict[Var, int] = {}
    for var in dict.fromkeys(node for param in func.params for node in walk(param.type) if isinstance(node, Var)):
        fact = facts.get(var)
        size = sizes.get(var.name, USUAL_DIM)
        env[var] = size if fact is None else fitted(size, fact.lo, fact.hi, fact.multiple_of)
    return env
