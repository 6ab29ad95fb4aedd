"""Which pass of the graph changed what a model computes: the reference interpreter runs it after each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tc.errors import TcError
from tc.frontend.imported import Imported
from tc.interp.graph import run_function
from tc.passes.pipeline import USUAL, PassOptions, PreparedModel
from tc.target import Target


@dataclass(frozen=True)
class PassEffect:
    """What a pass did. error: the largest difference of any output from the imported model's, over its largest value, infinite where
    shapes, dtypes, NaNs or infinities differ; problem: why the result does not run, or is not well formed."""

    name: str
    changed: bool
    error: float
    problem: str = ""


def pass_effects(
    imported: Imported, inputs: Mapping[str, np.ndarray], target: Target, numerics: str = "default", passes: PassOptions = USUAL
) -> Iterator[PassEffect]:
    """The effect of each pass of the graph, up to the one that makes the kernels, in order."""
    operands = [np.asarray(inputs[param.name]) for param in imported.module.main.params]
    wanted = run_function(imported.module, "main", operands, requirements=imported.requirements)
    model = PreparedModel(imported, imported.module, target, numerics, passes)
    pipeline, error = model.pipeline, 0.0
    for call in (*pipeline.simplify, *pipeline.lay_out, *pipeline.fuse):
        try:
            after = model.run((call,))
            if after is not model.graph:
                found = run_function(after, "main", operands, requirements=imported.requirements)
                error = max((_error(f, w) for f, w in zip(found, wanted, strict=True)), default=0.0)
        except TcError as failure:
            yield PassEffect(str(call), True, np.inf, str(failure).splitlines()[0])
            return
        yield PassEffect(str(call), after is not model.graph, error)
        model = replace(model, graph=after)


def _error(found: np.ndarray, wanted: np.ndarray) -> float:
    f, w = np.asarray(found), np.asarray(wanted)
    if f.shape != w.shape or f.dtype != w.dtype:
        return np.inf
    f, w = f.astype(np.float64), w.astype(np.float64)
    numbers = np.isfinite(w)
    if not np.array_equal(f[~numbers], w[~numbers], equal_nan=True) or not np.isfinite(f[numbers]).all():
        return np.inf
    largest = float(np.abs(w[numbers]).max(initial=0))
    return float(np.abs(f - w)[numbers].max(initial=0)) / (largest or 1.0)
