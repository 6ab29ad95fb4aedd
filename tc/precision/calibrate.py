"""What calibration inputs say of a model in 16 bits: how large its values get, and what each rounding does to its results.

    observed = largest_values(model, bindings, batches, build)
    simulated = Simulation(model, narrowing, operations, batches, exact, build)
    error = simulated.error({3, 17}, 0)         # of the results for the first batch, with operations 3 and 17 rounded

Both are graphs in f32, compiled once. In a simulated one a switch for each operation says, when it runs, whether its operands and its
result are rounded to 16 bits: one program answers for every choice.
Source: the simulated graph with run-time switches is that of HAGO (a search over simulated graphs for quantization, in TVM); theirs has
scales and clips, ours roundings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from tc.errors import CalibrationError, TcError
from tc.ir.dtype import bool_, f32
from tc.ir.expr import const
from tc.ir.graph import Atom, Attrs, Binding, Call, Function, TensorVar, atoms_of, bodies_of, map_bodies
from tc.ir.module import IRModule
from tc.ir.node import replace, substitute
from tc.ir.types import TensorType, tensor_type
from tc.passes.graph.narrowing import Narrowing, Role, factors_of
from tc.passes.pipeline import PreparedModel
from tc.precision.request import Batch
from tc.runtime.module import CompiledModule

Build = Callable[[PreparedModel], CompiledModule]
"""Compiles a model from the point where its floats are narrowed."""

SWITCHES = "tc.switches"
"""The name of the input that says what is rounded."""


def run_batch(module: CompiledModule, batches: Sequence[Batch], place: int, extra: Batch | None = None) -> dict[str, np.ndarray]:
    """The results for one batch; UserError where it is not what the model takes."""
    try:
        return module.run({**batches[place], **(extra or {})})
    except TcError as error:
        raise CalibrationError(f"calibration input {place}: {error.text}") from error


def _named(func: Function, key: str, names: Sequence[str]) -> tuple[tuple[str, object], ...]:
    return (*((name, value) for name, value in func.attrs if name != key), (key, tuple(names)))


# -- ranges


def largest_values(model: PreparedModel, values: Sequence[TensorVar], batches: Sequence[Batch], build: Build) -> list[float]:
    """The largest magnitude of each value of the main function over all batches; NaN where there is one. An empty one has 0."""
    if not values:
        return []
    main = model.graph.main
    bindings, results = list(main.bindings), []
    for value in values:
        assert isinstance(value.type, TensorType)
        size = TensorVar("size", value.type)
        largest = TensorVar("largest", tensor_type((), f32))
        padded, joined = TensorVar("flat", TensorType((value.type.num_elements,), f32)), TensorVar("joined", largest.type)
        bindings += [
            Binding((size,), Call("abs", (value,))),
            Binding((padded,), Call("reshape", (size,), (("shape", (value.type.num_elements,)),))),
            Binding((joined,), Call("max", (padded,), (("axes", (0,)), ("keepdims", False)))),
            Binding((largest,), Call("identity", (joined,))),
        ]
        results.append(largest)
    names = [f"value {k}" for k in range(len(values))]
    observing = replace(main, bindings=tuple(bindings), results=tuple(results), attrs=_named(main, "output_names", names))
    module = build(_with_main(model, observing))
    found = [[abs(float(v)) for v in run_batch(module, batches, place).values()] for place in range(len(batches))]
    return [max((0.0 if v == float("-inf") else v for v in column), key=lambda v: (v != v, v)) for column in zip(*found, strict=True)]


def _with_main(model: PreparedModel, main: Function) -> PreparedModel:
    module = model.graph
    functions = tuple(main if func is module.main else func for func in module.functions)
    return dataclasses.replace(model, graph=IRModule(functions, module.entry))


# -- simulation


class Simulation:
    """A model with a switch for each of some operations, and what its results are with all of them off."""

    def __init__(
        self,
        model: PreparedModel,
        narrowing: Narrowing,
        candidates: Sequence[Binding],
        batches: Sequence[Batch],
        exact: Sequence[Mapping[str, np.ndarray]],
        build: Build,
    ) -> None:
        self.candidates = tuple(candidates)
        self._batches, self._exact = batches, exact
        self._module = build(_with_main(model, _switched(model.graph.main, narrowing, self.candidates)))

    def error(self, rounded: Collection[int], place: int) -> float:
        """The largest relative L2 error of a result on one batch, with these candidates rounded."""
        switches = np.zeros(max(len(self.candidates), 1), np.bool_)
        switches[list(rounded)] = True
        return relative_error(run_batch(self._module, self._batches, place, {SWITCHES: switches}), self._exact[place])

    def first_above(self, rounded: Collection[int], places: Sequence[int], allowed: float) -> float:
        """The error on the first of these batches where it is not allowed; the largest of all where there is none."""
        worst = 0.0
        for place in places:
            worst = max(worst, self.error(rounded, place))
            if worst > allowed:
                break
        return worst


def relative_error(found: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> float:
    """The largest L2 norm of a difference over that of the exact result; of results of floats, of which both agree where they are not
    finite. A result of zeros has none or an infinite one."""
    worst = 0.0
    for name, wanted in exact.items():
        if wanted.dtype.kind != "f" or not wanted.size:
            continue
        have, want = found[name].astype(np.float64), wanted.astype(np.float64)
        finite = np.isfinite(want)
        if not np.array_equal(have[~finite], want[~finite], equal_nan=True) or not np.isfinite(have[finite]).all():
            return float("inf")
        norm, off = float(np.linalg.norm(want[finite])), float(np.linalg.norm(have[finite] - want[finite]))
        worst = max(worst, off / norm if norm else (float("inf") if off else 0.0))
    return worst


def _switched(main: Function, narrowing: Narrowing, candidates: Sequence[Binding]) -> Function:
    switches = TensorVar(SWITCHES, tensor_type((max(len(candidates), 1),), bool_))
    bindings, states = [], {}
    for place, candidate in enumerate(candidates):
        state = TensorVar("switch", tensor_type((1,), bool_))
        attrs = (("starts", (const(place),)), ("sizes", (const(1),)), ("steps", (1,)))
        bindings.append(Binding((state,), Call("slice", (switches,), attrs)))
        states[candidate] = state
    body = _Switcher(narrowing, states).function(main)
    names = (*Attrs(main.attrs).get("input_names", [p.name for p in main.params]), SWITCHES)  # type: ignore[misc]
    attrs = _named(main, "input_names", names)
    return replace(body, params=(*main.params, switches), bindings=(*bindings, *body.bindings), attrs=attrs)


class _Switcher:
    """Puts roundings with switches around operations; those of nested functions have the switches of the function around them."""

    def __init__(self, narrowing: Narrowing, states: Mapping[Binding, TensorVar]) -> None:
        self.narrowing = narrowing
        self.states = states
        self.renamed: dict[Atom, Atom] = {}

    def function(self, func: Function) -> Function:
        bindings: list[Binding] = []
        for binding in func.bindings:
            self._rewrite(binding, bindings)
        results = tuple(self.renamed.get(r, r) for r in func.results)
        return replace(func, bindings=tuple(bindings), results=results)

    def _rewrite(self, binding: Binding, bindings: list[Binding]) -> None:
        value, state = binding.value, self.states.get(binding)
        bodies = iter([self.function(body) for body in bodies_of(value)])
        if bodies_of(value):
            value = map_bodies(value, lambda _: next(bodies))
        known = {atom: self.renamed[atom] for atom in atoms_of(value) if atom in self.renamed}
        if known and not bodies_of(value):
            value = known.get(value) or substitute(value, known)  # type: ignore[arg-type, assignment]
        elif known:
            fields = {name: getattr(value, name) for name in ("condition", "init") if hasattr(value, name)}
            changed = {n: tuple(known.get(a, a) for a in f) if isinstance(f, tuple) else known.get(f, f) for n, f in fields.items()}
            value = replace(value, **changed)
        if state is None or not isinstance(value, Call):
            bindings.append(replace(binding, value=value))
            return
        role = self.narrowing.role(binding)
        if role in (Role.PRODUCT, Role.DECODED):
            rounds = [self.narrowing.rounds(factor) for factor in factors_of(binding.value)]  # type: ignore[arg-type]
            rounds += [False] * (len(value.args) - len(rounds))
            args = (self._rounded(a, state, bindings) if is_rounded else a for a, is_rounded in zip(value.args, rounds, strict=True))
            value = replace(value, args=tuple(args))
        bindings.append(replace(binding, value=value))
        for target in binding.targets:
            if target in self.narrowing.stored:  # what is moved: the numbers that are taken of a large table, not all of it
                self.renamed[target] = self._rounded(target, state, bindings)  # type: ignore[assignment]

    def _rounded(self, atom: Atom | None, state: TensorVar, bindings: list[Binding]) -> Atom | None:
        """The value, rounded where the switch is on: by a kernel of its own, so that few are compiled for many places."""
        if atom is None or not isinstance(atom.type, TensorType) or atom.type.dtype is not f32:
            return atom
        chosen = TensorVar("chosen", atom.type)
        bindings.append(Binding((chosen,), Call("round_where", (state, atom), (("dtype", self.narrowing.dtype),))))
        return chosen


