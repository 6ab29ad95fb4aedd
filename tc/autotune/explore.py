"""Candidates made in other processes: what comes back is all that a search wants to know of them.

Making a candidate and its features is Python and takes 5 to 25 ms, several hundred times for a batch; while the search does that, the
processes that build have nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tc.autotune.cost_model.learned import features_of
from tc.autotune.search.limits import refuse_unfit, written_out
from tc.autotune.search.space import Candidate, Point, Space
from tc.errors import ScheduleError
from tc.ir.parser import parse_prim_func
from tc.runtime.collector import rare_collections
from tc.schedule.knobs import Knob
from tc.schedule.step import Trace
from tc.target import Target


@dataclass(frozen=True)
class ExploreRequest:
    """Make the candidates at `points` of a space, which is given as its `texts`; `dims` are the sizes that features are for."""

    texts: tuple[tuple[str, str], ...]
    target: str
    dims: tuple[tuple[str, int], ...]
    points: tuple[Point, ...]


@dataclass(frozen=True, eq=False)
class Explored:
    """A candidate without its program. `operations`: see `limits.written_out`; `features`: float32[n_features]."""

    variant: str
    knobs: tuple[Knob, ...]
    point: Point
    rule: str
    trace: str
    operations: int
    features: np.ndarray

    def candidate(self, space: Space) -> Candidate:
        """The same with the program, which is made when somebody asks for it."""
        return Candidate(
            self.variant,
            self.knobs,
            self.point,
            self.rule,
            Trace.from_json(self.trace),
            lambda: space.at(dict(self.point)).func,
            self.operations,
            self.features,
            space.target,
        )


@rare_collections()
def explore(request: ExploreRequest) -> list[Explored | None]:
    """What a child does. None for a point that is not legal, or that the device cannot hold."""
    space = _space(request.texts, request.target)
    return [_explored(space, dict(request.dims), point) for point in request.points]


def _explored(space: Space, dims: Mapping[str, int], point: Point) -> Explored | None:
    try:
        made = space.at(dict(point))
    except ScheduleError:
        return None
    if space.target.device is not None and refuse_unfit(made, dims) is not None:
        return None
    features = features_of(made, space.target, dims)
    operations = sum(written_out(made.func))
    return Explored(made.variant, made.knobs, made.point, made.rule, made.trace.to_json(), operations, features)


@lru_cache(16)
def _space(texts: tuple[tuple[str, str], ...], target: str) -> Space:
    return Space({name: parse_prim_func(text, "<workload>") for name, text in texts}, Target.parse(target))
