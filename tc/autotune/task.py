"""What is tuned: the distinct kernels of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tc.autotune.space import Space
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.passes.graph.questions import Question
from tc.target import Target


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to lower a task's node.

    `key`: of its workload, under which records are kept. `reference`: a graph module whose main function computes the same in numpy.
    `question`, `answer`: what a graph pass must be told to lower the node this way; None for the way it takes untold.
    """

    key: str
    func: PrimFunc
    reference: IRModule
    question: Question | None = None
    answer: int | str | bool | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """One distinct kernel on a target.

    `variants`: by name, the first being what compiles untuned. `dims`: the sizes at which symbolic dims are measured, by name.
    `calls`: per run of the model. `nodes`: the model's nodes inside.
    """

    name: str
    variants: Mapping[str, Variant]
    target: Target
    dims: Mapping[str, int]
    calls: int = 1
    nodes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key of what compiles untuned."""
        return next(iter(self.variants.values())).key

    def space(self) -> Space:
        """All its schedules."""
        return Space({name: variant.func for name, variant in self.variants.items()}, self.target)
