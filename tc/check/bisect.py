"""Which pass of the graph changed what a model computes: the reference interpreter runs it after each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tc.check.relative_error import relative_error
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
                error = max((relative_error(np.asarray(f), np.asarray(w)) for f, w in zip(found, wanted, strict=True)), default=0.0)
        except TcError as failure:
            yield PassEffect(str(call), True, np.inf, str(failure).splitlines()[0])
            return
        yield PassEffect(str(call), after is not model.graph, error)
        model = replace(model, graph=after)
