"""From a model to the tasks that a tuner works on: its distinct kernels, and the other ways to lower their nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tc.autotune.task import Task, Variant
from tc.collector import rare_collections
from tc.compiler import LoweredModel, Model, PreparedModel, lower_model, prepare_model
from tc.errors import TcError
from tc.frontend.dims import Dim
from tc.ir.arith import evaluate
from tc.ir.expr import Var
from tc.ir.graph import CallFunction, Function, GlobalRef, TensorConst, TensorVar, all_bindings, tir_calls
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.node import walk
from tc.kernels import workload_key
from tc.passes.graph.questions import Option, Question
from tc.schedule.canonical import canonical_names
from tc.target import Target

TYPICAL_SIZE = 64
"""What a symbolic dim is measured with when nothing is said, moved into its range."""

MOST_APART_BYTES = 256 << 20
"""No cache is larger, or at least no part of one that a process gets."""

OTHER_WAYS: tuple[Mapping[str, Option], ...] = (
    {"use_winograd": 0, "pack_matmul": 1},
    {"use_winograd": 2, "pack_matmul": 4},
    {"use_winograd": 4},
)
"""Answers to the questions of graph passes that are tried beside the passes' own. Nodes are of different kinds, so that one way
of lowering the whole model serves several questions at once."""


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

    def variant(self, question: Question | None = None, answer: Option | None = None) -> Variant:
        return Variant(self.key, self.func, self.reference, self.sizes, self.literals, question, answer)


@rare_collections()
def extract_tasks(
    model: Model,
    target: Target,
    dims: Mapping[str, Dim | int] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Extraction:
    """The distinct kernels of a model, equal ones joined, each with the other ways in which its nodes can be lowered.

    sizes: what symbolic dims are measured with, by name.
    """
    prepared = prepare_model(model, target, dims)
    base = list(_calls(lower_model(prepared), sizes or {}))
    others = [_lowered_otherwise(prepared, sizes or {}, wanted) for wanted in OTHER_WAYS]
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


Ways = Mapping[tuple[str, ...], tuple[_Call, Question, Option]]
"""Kernels by the nodes inside, each with a question about one of them and the answer that led to it."""


def _lowered_otherwise(prepared: PreparedModel, sizes: Mapping[str, int], wanted: Mapping[str, Option]) -> Ways:
    """The kernels that other answers to the questions of graph passes lead to."""
    asked: dict[str, tuple[Question, Option]] = {}

    def answer(question: Question) -> Option:
        value = wanted.get(question.pass_name, question.default)
        if value not in question.options:
            value = question.default
        if value != question.default:
            asked[question.node] = (question, value)
        return value

    found: dict[tuple[str, ...], tuple[_Call, Question, Option]] = {}
    for call in _calls(lower_model(prepared, answer), sizes):
        questions = [asked[node] for node in call.nodes if node in asked]
        if len(questions) == 1:
            found[call.nodes] = (call, *questions[0])
    return found


def _variants(base: _Call, ways: Ways, known: set[str]) -> Iterator[tuple[str, Variant]]:
    if base.nodes not in ways:
        return
    call, question, value = ways[base.nodes]
    if call.key not in known and call.values is not None:
        yield f"{question.pass_name}={value}", call.variant(question, value)


def _calls(found: LoweredModel, sizes: Mapping[str, int]) -> Iterator[_Call]:
    """Every call of a PrimFunc in the model, with its sizes if they do not come from data."""
    env = measured_sizes(found.lowered.main, sizes)
    primitives = dict(_primitive_calls(found.fused.main))
    for target, call in tir_calls(found.lowered.main):
        lowered = found.lowered[call.callee]
        primitive = found.fused[primitives[target]]
        assert isinstance(lowered, PrimFunc) and isinstance(primitive, Function)
        func = canonical_names(lowered)
        nodes = tuple(dict.fromkeys(str(b.span) for b in primitive.bindings if b.span is not None))
        try:
            values: tuple[int, ...] | None = tuple(int(evaluate(dim, env)) for dim in call.dims)
        except TcError:
            values = None
        literals = {place: arg.value for place, arg in enumerate(call.args) if isinstance(arg, TensorConst)}
        yield _Call(func, IRModule((primitive,), primitive.name), literals, env, values, nodes)


def measured_sizes(func: Function, sizes: Mapping[str, int]) -> dict[Var, int]:
    """The sizes of the model's symbolic dims."""
    facts = {fact.var: fact for fact in func.facts}
    env: dict[Var, int] = {}
    for var in dict.fromkeys(node for param in func.params for node in walk(param.type) if isinstance(node, Var)):
        fact = facts.get(var)
        size = sizes.get(var.name, TYPICAL_SIZE)
        if fact is not None:
            size = -(-max(size, fact.lo) // fact.multiple_of) * fact.multiple_of
            size = size if fact.hi is None else min(size, fact.hi // fact.multiple_of * fact.multiple_of)
        env[var] = size
    return env


def _primitive_calls(func: Function) -> Iterator[tuple[TensorVar, str]]:
    for binding in all_bindings(func):
        if isinstance(binding.value, CallFunction) and isinstance(binding.value.callee, GlobalRef):
            yield binding.targets[0], binding.value.callee.name
