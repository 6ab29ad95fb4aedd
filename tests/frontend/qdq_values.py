"""Values of quantized graphs, exactly and as other roundings of f32 may have them; and what a runtime found beside them.

A value has several runs. The first is computed in f64. In the others, what f32 cannot hold is off by a random part of the last places
after each operator, as it is in any implementation. Elements that are the same in all runs are certain: a runtime has to have them, and
integers to the bit. So ties are asked for where arithmetic is exact, and nothing is where a rounding decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from benchmarks.qdq_reference import OPERATORS, along

F8 = tuple(np.dtype(getattr(ml_dtypes, f"float8_{kind}")) for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"))
LARGEST = float(np.finfo(np.float32).max)
OPSET, MICROSOFT = 21, "com.microsoft"

LAST_PLACES, LEAST, HALF_PLACES = 2.0**-19, 2.0**-147, 2.0**-11
"""How much of a number the roundings of an operator may take, its sums of some hundred terms included, and what denormal numbers add;
how much what is rounded to f16 may be off."""

SUMS = ("Conv", "MatMul", "Gemm", "ReduceSum")
ROUNDS = (
    "AveragePool GlobalAveragePool ReduceMean Softmax LayerNormalization Sigmoid Tanh Gelu HardSwish Exp Erf Resize".split()
)
"""Operators that have roundings inside, whatever they result in."""

DIFFERENCES = ("LayerNormalization", "Gelu")
"""Those of which small results are differences of larger numbers."""

SQUARES_FIT = 1e18


class Unfit(Exception):
    """What was drawn cannot be, or is too large."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a graph. `runs`: f64 for f32; other dtypes are as they are."""

    name: str
    runs: tuple[np.ndarray, ...]

    @property
    def exact(self) -> np.ndarray:
        return self.runs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.exact.shape

    @property
    def rank(self) -> int:
        return self.exact.ndim

    @property
    def is_float(self) -> bool:
        return self.exact.dtype == np.float64

    @property
    def dtype(self) -> np.dtype:
        """What a file declares."""
        return np.dtype(np.float32) if self.is_float else self.exact.dtype


class Net:
    """A graph in the making, its values with it. Noise has a generator of its own: the same seed draws the same graph, whatever `runs`."""

    def __init__(self, seed: int, runs: int) -> None:
        self.rng, self.noise = np.random.default_rng(seed), np.random.default_rng(seed + 1)
        self.count = runs
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.declared: dict[str, list[Any]] = {}
        self._names = 0

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _given(self, name: str, array: np.ndarray) -> Value:
        return Value(name, (array.astype(np.float64) if array.dtype == np.float32 else array,) * self.count)

    def const(self, array: Any) -> Value:
        array, name = np.asarray(array), self._name("c")
        self.constants.append(numpy_helper.from_array(array, name))
        return self._given(name, array)

    def input(self, array: Any, shape: Sequence[Any] | None = None) -> Value:
        array, name = np.asarray(array), self._name("x")
        self.inputs[name], self.declared[name] = array, list(array.shape if shape is None else shape)
        return self._given(name, array)

    def emit(self, op: str, *operands: Value | None, outputs: int = 1, **attrs: Any) -> Any:
        """A node of ONNX: its value, or as many as it has."""
        return self.add(op, operands, self.values(op, *operands, outputs=outputs, **attrs), **attrs)

    def add(self, op: str, operands: Sequence[Value | None], results: Sequence[Value], domain: str = "", **attrs: Any) -> Any:
        """A node with these results, as they come out."""
        named = [Value(self._name("t"), each.runs) for each in results]
        if any(each.exact.size > 20_000 for each in named):
            raise Unfit
        names = ["" if each is None else each.name for each in operands]
        outputs = [each.name for each in named]
        self.nodes.append(helper.make_node(op, names, outputs, name=f"the_{outputs[0]}", domain=domain, **attrs))
        return named if len(named) > 1 else named[0]

    def values(self, op: str, *operands: Value | None, outputs: int = 1, **attrs: Any) -> list[Value]:
        """What an operator gives, without a node."""
        run = Evaluation(op, operands, outputs, attrs)
        if op == "QuantizeLinear":
            assert operands[0] is not None and operands[1] is not None
            operands = (self.unsteady_places(operands[0], operands[1], attrs), *operands[1:])
        runs = run.of_all(operands, self.count)
        results = [Value("", tuple(_in_range(each[k]) for each in runs)) for k in range(outputs)]
        return [self.rounded(run, operands, each) for each in results]

    def rounded(self, run: Evaluation, operands: Sequence[Value | None], result: Value) -> Value:
        """A result with what roundings do to it; where f32 may run over on the way to it, nothing is known."""
        if not result.is_float or not result.exact.size:
            return result
        unsure, lost = run.roundings(operands, result)
        if not any(np.isnan(each.exact).any() for each in operands if each is not None and each.is_float):
            lost = lost | np.isnan(result.exact)  # of infinities, which may be scales that are multiplied later
        most = np.abs(result.exact[np.isfinite(result.exact)]).max(initial=0) if run.op in DIFFERENCES else 0
        return self.moved(result, unsure, lost, least=max(LEAST, LAST_PLACES * most)) if unsure.any() or lost.any() else result

    def moved(
        self, value: Value, unsure: np.ndarray, lost: np.ndarray | bool = False, places: float = LAST_PLACES, least: float = LEAST
    ) -> Value:
        """`value` in other runs than the first with noise of so many places where it is unsure, and so much at least; lost: anything."""
        runs = [value.exact]
        for k, each in enumerate(value.runs[1:]):
            part, rest = self.noise.uniform(-1, 1, (2, *each.shape))
            with np.errstate(all="ignore"):
                noisy = np.where(unsure, each * (1 + places * part) + least * rest, each)
            runs.append(np.where(lost, np.nan if k % 2 else part, noisy))
        return Value(value.name, tuple(runs))

    def unsteady_places(self, x: Value, scale: Value, attrs: dict[str, Any]) -> Value:
        """What is to be quantized, moved where the quotient with its scale has to be rounded."""
        if x.exact.dtype == np.float16:
            return x
        with np.errstate(all="ignore"):
            is_rounded = _is_rounded(x.exact / along(scale.exact, x.exact, attrs.get("axis", 1), attrs.get("block_size", 0)))
        return self.moved(x, is_rounded) if is_rounded.any() else x

    def model(self, outputs: Sequence[Value]) -> onnx.ModelProto:
        """All that `outputs` need."""
        needed, nodes = {each.name for each in outputs}, []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                nodes.append(node)
                needed |= set(node.input)
        self.inputs = {name: array for name, array in self.inputs.items() if name in needed}
        graph = helper.make_graph(
            nodes[::-1],
            "drawn",
            [_declared(name, array.dtype, self.declared[name]) for name, array in self.inputs.items()],
            [_declared(each.name, each.dtype, None) for each in outputs],
            [tensor for tensor in self.constants if tensor.name in needed],
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _declared(name: str, dtype: np.dtype, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def _in_range(array: np.ndarray) -> np.ndarray:
    """f64 as f32 has it: what is too large is infinite."""
    if array.dtype == np.float32:
        array = array.astype(np.float64)
    return np.where(np.abs(array) > LARGEST, np.sign(array) * np.inf, array) if array.dtype == np.float64 else array


def _is_rounded(array: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray((array.astype(np.float32) != array) & np.isfinite(array))


class Evaluation:
    """One operator, by ONNX's reference evaluator and what `benchmarks.qdq_reference` defines, in f64."""

    def __init__(self, op: str, operands: Sequence[Value | None], outputs: int, attrs: dict[str, Any]) -> None:
        self.op, self.attrs = op, attrs
        names = ["" if each is None else f"i{k}" for k, each in enumerate(operands)]
        results = [f"o{k}" for k in range(outputs)]
        declared = [_declared(n, each.exact.dtype, each.shape) for n, each in zip(names, operands, strict=True) if each is not None]
        node = helper.make_node(op, names, results, **attrs)
        graph = helper.make_graph([node], "one", declared, [helper.make_empty_tensor_value_info(name) for name in results])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        self.names, self.evaluator = names, ReferenceEvaluator(model, new_ops=list(OPERATORS))

    def of(self, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        feeds = {name: array for name, array in zip(self.names, arrays, strict=True) if array is not None}
        with np.errstate(all="ignore"):
            return [np.asarray(each) for each in self.evaluator.run(None, feeds)]

    def of_all(self, operands: Sequence[Value | None], count: int) -> list[list[np.ndarray]]:
        """The results of every run."""
        runs = [[None if each is None else each.runs[k] for each in operands] for k in range(count)]
        first = self.of(runs[0])
        return [first if all(a is b for a, b in zip(run, runs[0], strict=True)) else self.of(run) for run in runs]

    def roundings(self, operands: Sequence[Value | None], result: Value) -> tuple[np.ndarray, np.ndarray]:
        """Elements that f32 has to round, and those of which it may lose everything on the way: by an infinite part of a sum or square."""
        floats = [each.exact for each in operands if each is not None and each.is_float]
        everywhere = np.ones(result.shape, bool)
        if self.op in ROUNDS:
            is_large = any((np.abs(each[np.isfinite(each)]) > SQUARES_FIT).any() for each in floats)
            return everywhere, everywhere & is_large
        if self.op not in SUMS:
            return _is_rounded(result.exact), ~everywhere
        (most,) = self.of([None if e is None else np.abs(e.exact) if e.is_float else e.exact for e in operands])
        unit = np.prod([_unit(each) for each in floats[:2]]) * float(self.attrs.get("alpha", 1))
        unit = min([unit, *map(_unit, floats[2:])])
        is_lost = np.isfinite(result.exact) & ~(most <= LARGEST)
        return _is_rounded(result.exact) | ~(most <= 2.0**24 * unit), is_lost


def _unit(array: np.ndarray) -> float:
    """The largest power of two that all numbers are multiples of."""
    parts, powers = np.frexp(array[np.isfinite(array) & (array != 0)])
    whole = (parts * 2.0**53).astype(np.int64)
    return float(np.ldexp((whole & -whole).astype(np.float64), powers - 53).min(initial=1.0))


# -- what was found


def differing(found: np.ndarray, value: Value) -> np.ndarray:
    """bool of the shape of `value`: where a runtime has what no rounding explains."""
    exact = as_numbers(value.exact)
    mine, runs = as_numbers(found), np.stack([as_numbers(run) for run in value.runs])
    with np.errstate(all="ignore"):
        is_nan, is_finite = np.isnan(runs), np.isfinite(runs)
        apart = np.where(runs == exact, 0, np.abs(runs - exact)).max(0)
        allowed = 4 * apart + (2.0**-20 * np.abs(exact) + LEAST if value.is_float else 0)
        is_near = (mine == exact) | (np.abs(mine - exact) <= allowed) | (np.isnan(mine) & np.isnan(exact))
        is_near |= _over_the_edge(mine, exact, allowed)
    is_decided = (is_nan.all(0) | ~is_nan.any(0)) & (is_finite.all(0) | ~is_finite.any(0))
    return np.asarray(is_decided & ~is_near)


def _over_the_edge(mine: np.ndarray, exact: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Where infinity is found beside one of the largest numbers, or the other way around."""
    edge = np.minimum(np.abs(mine), np.abs(exact))
    return np.asarray((np.sign(mine) == np.sign(exact)) & (edge + allowed >= LARGEST))


def as_numbers(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32).astype(np.float64) if array.dtype in F8 else array.astype(np.float64)
