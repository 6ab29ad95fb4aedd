"""What is tuned: the distinct kernels of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tc.autotune.runner import Workload
from tc.autotune.search.space import Space
from tc.ir.expr import Var
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.schedule.knobs import Knob
from tc.target import Target


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to lower a task's node.

    `key`: of its workload, under which records are kept. `reference`: a graph module whose main function computes the same in
    numpy, `sizes`: what its symbolic dims are measured with.
    `literals`: operands, by place, that are literals of the model: in a run they were last read a whole run ago.
    `knob`, `answer`: what a graph pass must be told to lower the node this way; None for the way it takes untold.
    """

    key: str
    func: PrimFunc
    reference: IRModule
    sizes: Mapping[Var, int] = field(default_factory=dict)
    literals: Mapping[int, np.ndarray] = field(default_factory=dict)
    knob: Knob | None = None
    answer: int | str | bool | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """One distinct kernel on a target.

    `variants`: by name, the first being what compiles untuned. `dims`: the sizes at which symbolic dims are measured, by name.
    `calls`: per run of the model. `nodes`: the model's nodes inside. `apart_bytes`: how much else a run reads between two reads of
    a literal.
    """

    name: str
    variants: Mapping[str, Variant]
    target: Target
    dims: Mapping[str, int]
    calls: int = 1
    nodes: tuple[str, ...] = ()
    apart_bytes: int = 0

    @property
    def key(self) -> str:
        """The key of what compiles untuned."""
        return next(iter(self.variants.values())).key

    def workload(self, variant: str) -> Workload:
        """What is measured of a variant."""
        found = self.variants[variant]
        return Workload.of(
            found.key, found.func, self.dims, self.target, constants=tuple(found.literals), apart_bytes=self.apart_bytes
        )

    def space(self) -> Space:
        """All its schedules."""
        return Space({name: variant.func for name, variant in self.variants.items()}, self.target)
