"""What a quantization came to: a model, and the front that it was chosen from."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from tc.errors import QuantizationError
from tc.files import whole_file
from tc.quantization.evaluate import LayerNoise, Quality
from tc.quantization.report import ReportFacts, ReportPoint, write_quantization_report
from tc.quantization.search import Trial
from tc.quantization.strategy import Strategy
from tc.quantization.topology import Topology

SLOWER_SHARE = 1.05
"""A point may take so much of the fastest one's time and be chosen for its accuracy."""


@dataclass(frozen=True)
class FrontPoint:
    """A strategy that was written, compiled and measured.

    `seconds`: of a call, the median; `ratio`: over those of f32, in turns; NaN where nothing could be measured. `predicted`: what the
    search took it for. `quality`: of the written model, on calibration inputs that the search did not use; its `worst` is of all.
    `types`: of each product its name, its operator, and the types that it runs in.
    """

    label: str
    strategy: Strategy
    model: onnx.ModelProto
    quality: Quality
    predicted: float
    seconds: float = math.nan
    ratio: float = math.nan
    types: tuple[tuple[str, str, str], ...] = ()

    @property
    def cost(self) -> float:
        """What points are ordered by: the ratio where there is one, else the prediction."""
        return self.predicted if math.isnan(self.ratio) else self.ratio


@dataclass(frozen=True)
class QuantizedModel:
    """A quantized model.

    `model`: the ONNX file, standard operators only. `points`: all that were measured, fastest first; `front` those that no other beats;
    empty in modes that choose nothing. `trials`: of the search. `noise`: what each layer costs. `notes`: what a user should know.
    `ended`: why the search did, "budget", "finished" or "interrupted".
    """

    model: onnx.ModelProto
    name: str
    mode: str
    hardware: str
    point: FrontPoint | None = None
    points: tuple[FrontPoint, ...] = ()
    trials: tuple[Trial, ...] = ()
    noise: tuple[LayerNoise, ...] = ()
    notes: tuple[str, ...] = ()
    ended: str = "finished"

    @property
    def front(self) -> tuple[FrontPoint, ...]:
        """The points that no other beats in time and loss, fastest first."""
        return pareto_points(self.points)

    def choose(
        self, index: int | None = None, *, max_error: float | None = None, min_metric: float | None = None, min_speedup: float | None = None
    ) -> QuantizedModel:
        """The same with another model of the front.

        index: a place in `front`. max_error, min_metric: the fastest point that keeps them. min_speedup: the most accurate that is so many
        times as fast as f32. Without any, what `tc.quantize` chose: see `usual_choice`.
        UserError where no point does, naming what there is.
        """
        if not self.points:
            raise QuantizationError(f"choose: the mode {self.mode!r} has one model and no front")
        for name, limit in (("max_error", max_error), ("min_metric", min_metric), ("min_speedup", min_speedup)):
            check_limit(name, limit)
        if min_metric is not None and all(math.isnan(p.quality.metric) for p in self.points):
            raise QuantizationError("choose: min_metric needs a metric, and quantize was given none; max_error works without one")
        if index is not None:
            if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or not -len(self.front) <= index < len(self.front):
                raise QuantizationError(f"choose: index is {index!r}, but the front has {len(self.front)} points")
            return self._with(self.front[index])
        fitting = list(self.points)
        if max_error is not None:
            fitting = [p for p in fitting if p.quality.error <= max_error]
        if min_metric is not None:
            fitting = [p for p in fitting if p.quality.metric >= min_metric]
        if min_speedup is not None:
            fitting = [p for p in fitting if p.ratio <= 1 / min_speedup]
        if not fitting:
            raise QuantizationError(f"choose: no point is such; there are: {'; '.join(describe(p) for p in self.front)}")
        if max_error is not None or min_metric is not None:
            return self._with(min(fitting, key=lambda p: (p.cost, p.quality.loss)))
        if min_speedup is not None:
            return self._with(min(fitting, key=lambda p: (p.quality.loss, p.cost)))
        return self._with(usual_choice(self.points))

    def _with(self, point: FrontPoint) -> QuantizedModel:
        return replace(self, model=point.model, point=point)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model; the file appears whole or not at all. UserError where it cannot be written."""
        save_model(self.model, path)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write an HTML page: the front, each layer's signal to noise and sensitivity, the search. Needs matplotlib."""
        if not isinstance(path, (str, os.PathLike)):
            raise QuantizationError(f"report: the path is a {type(path).__name__}, must be a string or path")
        rows = tuple(
            ReportPoint(p.label, p.quality.error, p.quality.cosine, p.quality.metric, p.seconds, p.ratio, p in self.front, p is self.point)
            for p in self.points
        )
        trials = tuple((t.predicted, t.quality.loss) for t in self.trials)
        types = self.point.types if self.point is not None else ()
        facts = ReportFacts(self.name, self.mode, self.hardware, rows, trials, self.noise, self.notes, types)
        write_quantization_report(Path(path), facts)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.mode}, {self.hardware}"]
        lines += [f"{'*' if p is self.point else ' '} {describe(p)}" for p in self.points]
        return "\n".join((*lines, *(f"note: {note}" for note in self.notes)))


def check_limit(name: str, limit: object) -> None:
    """UserError for a limit that nothing can be compared with."""
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, (int, float, np.number)) or math.isnan(limit):
        raise QuantizationError(f"choose: {name} is {limit!r}, must be a number")
    if name != "min_metric" and limit < 0:
        raise QuantizationError(f"choose: {name} is {limit}, must not be negative")
    if name == "min_speedup" and limit == 0:
        raise QuantizationError("choose: min_speedup is 0, must be above 0")


def describe(point: FrontPoint) -> str:
    """A point in a line."""
    speed = "" if math.isnan(point.ratio) else f", {1 / point.ratio:.2f}x as fast as f32"
    metric = "" if math.isnan(point.quality.metric) else f", metric {point.quality.metric:.4g}"
    return f"{point.label}: error {point.quality.error:.3g}{metric}{speed}"


def pareto_points(points: Iterable[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Those that no other beats, fastest first."""
    best, found = math.inf, []
    for point in sorted(points, key=lambda p: (p.cost, p.quality.loss)):
        if point.quality.loss < best:
            best = point.quality.loss
            found.append(point)
    return tuple(found)


def usual_choice(points: Iterable[FrontPoint]) -> FrontPoint:
    """The fastest that is accurate, or one that is more so and takes at most 5 % longer; the most accurate where none is.

    Accurate is what differs from f32 by a relative error of at most 0.1 (a cosine of about 0.995), and 0.2 on any input, or, with
    a metric, loses at most 1 % of its value in f32, on calibration inputs that the search did not use. f32 itself is a point, so there
    may be nothing faster.
    """
    known = list(points)
    accurate = [p for p in known if p.quality.is_within_limits]
    if not accurate:
        return min(known, key=lambda p: (p.quality.loss, p.cost))
    fastest = min(p.cost for p in accurate)
    return min((p for p in accurate if p.cost <= fastest * SLOWER_SHARE), key=lambda p: (p.quality.loss, p.cost))


def label_of(topology: Topology, strategy: Strategy) -> str:
    """How many products run in which types."""
    counts = Counter(strategy.combination(site).label for site in topology.sites if site.is_contraction)
    return ", ".join(f"{count} in {label}" for label, count in counts.items())


def save_model(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write an ONNX file at once. UserError for a folder, one that is missing, or a failure of the disk."""
    if not isinstance(path, (str, os.PathLike)):
        raise QuantizationError(f"save: the path is a {type(path).__name__}, must be a string or path")
    file = Path(path)
    try:
        if file.is_dir():
            raise QuantizationError(f"save {file}: that is a folder")
        if not file.parent.is_dir():
            raise QuantizationError(f"save {file}: there is no folder {str(file.parent)!r}")
        with whole_file(file) as unfinished:
            unfinished.write_bytes(model.SerializeToString())
    except (OSError, ValueError) as error:  # a zero byte in the name
        raise QuantizationError(f"save {file}: {getattr(error, 'strerror', None) or error}") from error
