"""Random quantized graphs: the integers of exact arithmetic, and floats but for their roundings, interpreted and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import tc
from tc.frontend.onnx import load_model
from tc.fuzz.evaluate import Failed, run_onnxruntime
from tc.interp import run_function
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY
from tests.draws import some_of
from tests.frontend.qdq_draws import draw
from tests.frontend.qdq_values import Value, differing

FEW, MANY = 6, 60
"""So many runs of a graph say what is certain; and where a runtime differs from that."""

Arrays = dict[str, np.ndarray]
Compute = Callable[[onnx.ModelProto, Arrays], Sequence[np.ndarray]]


def interpret(model: onnx.ModelProto, inputs: Arrays) -> Sequence[np.ndarray]:
    imported = load_model(model, on_unsupported="error")
    module = run_pipeline(imported.module, SIMPLIFY)
    operands = [inputs[parameter.name] for parameter in module.main.params]
    return list(run_function(module, "main", operands, requirements=imported.requirements))


def run_compiled(model: onnx.ModelProto, inputs: Arrays) -> Sequence[np.ndarray]:
    results = tc.compile(model, threads=1).run(dict(inputs))
    return [results[value.name] for value in model.graph.output]


def faults(compute: Compute, seed: int, **options: Any) -> list[str]:
    """What is wrong, output by output, whatever roundings may do and onnxruntime has not as well."""
    net, model, outputs = draw(seed, runs=FEW, **options)
    found = compute(model, net.inputs)
    if not any(_is_wrong(value, array) for value, array in zip(outputs, found, strict=True)):
        return []
    net, again, outputs = draw(seed, runs=MANY, **options)
    assert again == model
    try:
        others: Sequence[Any] = run_onnxruntime(model, net.inputs)
    except Failed:
        others = [None] * len(outputs)
    return [text for value, array, other in zip(outputs, found, others, strict=True) if (text := _complaint(value, array, other))]


def _is_wrong(value: Value, found: np.ndarray) -> bool:
    return found.shape != value.shape or found.dtype != value.dtype or bool(differing(found, value).any())


def _complaint(value: Value, found: np.ndarray, other: np.ndarray | None) -> str:
    if (found.dtype, found.shape) != (value.dtype, value.shape):
        return f"{value.name} is {found.dtype}{found.shape}, not {value.dtype}{value.shape}"
    wrong = differing(found, value)
    if other is not None:
        wide = other.astype(np.float64) if value.is_float else other
        wrong &= differing(found, Value("", (wide,)))
    places = [f"{found[tuple(at)]}, not {value.exact[tuple(at)]}" for at in np.argwhere(wrong)[:3].tolist()]
    return f"{value.name}, {found.dtype}{found.shape}: {wrong.sum()} wrong, {'; '.join(places)}" if places else ""


@pytest.mark.parametrize("seed", some_of(range(24), quick=range(8)))
def test_drawn_graphs_are_interpreted_and_compiled_as_they_are_defined(seed: int) -> None:
    assert not faults(interpret, seed)
    assert not faults(run_compiled, seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_many_drawn_graphs_are_compiled_as_they_are_defined(first: int) -> None:
    wrong = {seed: found for seed in range(first, first + 50) if (found := faults(run_compiled, seed))}

    assert not wrong
