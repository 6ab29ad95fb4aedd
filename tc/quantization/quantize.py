"""`tc.quantize`: from a model and calibration inputs to a quantized model, or a front of them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from tc.autotune.tuning import parse_budget
from tc.compiler import compile_model
from tc.errors import QuantizationError, check_word
from tc.frontend.dims import Dim, checked_dims
from tc.frontend.registry import Model
from tc.quantization.calibration import constant_inputs, read_feeds
from tc.quantization.description import HardwareDescription, describe_hardware
from tc.quantization.evaluate import Evaluator, Metric, Predict, Quality, call_metric, compare_outputs, layer_noise
from tc.quantization.journal import Journal, is_cost
from tc.quantization.latency import LatencyModel, ModelTime, fit_latency, measure_in_turns, uniform_strategies
from tc.quantization.literals import quantize_dynamic, quantize_weights
from tc.quantization.observe import Compile, constant_zeros, observe, without_infinite
from tc.quantization.prepare import check_prepared, opset_of, prepare, read
from tc.quantization.realize import realize
from tc.quantization.result import FrontPoint, QuantizedModel, label_of, usual_choice
from tc.quantization.scales import Scales
from tc.quantization.search import ALGORITHMS, Search, Trial, worth_measuring
from tc.quantization.strategy import Strategy, all_small, is_all_float
from tc.quantization.topology import Topology, analyse, weight_arrays
from tc.runtime.digest import digest_of_calls
from tc.runtime.module import CompiledModule
from tc.target import Target, check_threads
from tc.version import __version__

MODES = ("static", "dynamic", "weights")
SEARCH_INPUTS = 16
"""Calibration inputs that guesses are tried on at most, and as many others that the front is checked on; statistics are of all."""

MEASURED = 6
"""Points of the search's front that are compiled and measured, beside f32 and everything in 8 bits."""

MEASURE_SECONDS = 10.0

STATE_FORMAT = 2
"""Of what a trial is in a state file; those of another one are left alone."""


@dataclass(frozen=True)
class QuantizationStep:
    """How far a quantization is: of `stage`, `done` of `total` (0: not known); `text`: what came of the last step."""

    stage: str
    done: int = 0
    total: int = 0
    text: str = ""


def quantize(
    model: Model,
    calibration: Any = None,
    mode: str = "static",
    metric: Metric | None = None,
    target: str | Target = "native",
    *,
    budget: str | float = "5m",
    trials: int | None = None,
    search: str = "greedy",
    hardware: str | os.PathLike[str] | HardwareDescription | None = None,
    keep: Sequence[str] = (),
    dims: Mapping[str, Dim | int] | None = None,
    threads: int | None = None,
    seed: int = 0,
    state: str | os.PathLike[str] | None = None,
    granularity: str = "tensor",
    bits: int = 8,
    block: int | None = None,
    callback: Callable[[QuantizationStep], None] | None = None,
) -> QuantizedModel:
    """Quantize an ONNX model: find which edges run in 8 bits, bf16 or f32, and with which scales, for the hardware at hand.

    model: path of an ONNX file, its bytes, or an onnx.ModelProto, in f32.
    calibration: inputs as the model will see them: arrays by name; one array; a list or iterator of either; a folder of `.npz` or `.npy`
        files. Sixteen to a few hundred calls. Needed by the mode "static", refused by the others.
    mode: "static" searches, and writes QuantizeLinear and DequantizeLinear with scales from calibration. "dynamic" quantizes the operands
        of products with literal weights as they come (granularity: a scale for each "tensor" or "row"). "weights" stores weights in 8 or
        4 `bits`, in blocks of `block` numbers, and computes in f32.
    metric: `metric(predict) -> float`, larger is better; `predict({"x": array})` gives outputs by name. Without it, guesses are measured
        by their relative distance from the model in f32.
    target: what latencies are measured on, as for `tc.compile`. hardware: a description by name ("vnni", "amx", "power_of_two", ...) or a
        JSON file; by default the one that fits the target. Of hardware that is not the target, latencies are predicted only.
    budget: time of the search, such as "90s"; preparing it and measuring the front come on top. trials: at most so many guesses instead.
    search: "greedy", "annealing" or "random". keep: patterns of names or operators of nodes that stay in f32. seed: of what is drawn.
    dims, threads: as for `tc.compile`. state: a file that every trial is written to; with the same request the search goes on from it.
    callback: told of the progress. Ctrl-C during the search, or while its front is measured, ends it with the best so far.

    The model is that of the fastest point whose relative error is at most 0.1, and 0.2 on any input, or which loses at most 1 % of the
    metric; one that takes up to 5 % longer is preferred if it is more accurate, and where nothing in integers or bf16 is so near, the model
    stays in f32.

    Returns a `QuantizedModel`: `.model`, `.save(path)`, `.front`, `.choose(max_error=..., min_metric=..., min_speedup=...)`,
    `.report(path)`.
    Raises UserError for calibration data that do not fit or are not finite, a metric that raises or gives no finite number, a model that is
    quantized already; UnsupportedError for a model with nothing to quantize.
    Source: HAGO, hardware-aware automated quantization, of TVM.
    """
    check_word("mode", mode, MODES)
    check_word("search", search, ALGORITHMS)
    check_word("granularity", granularity, ("tensor", "row"))
    given = {"granularity": granularity != "tensor", "bits": bits != 8, "block": block is not None}
    _check_meant(mode, {**given, "trials": trials is not None, "state": state is not None})
    request = _checked(model, metric, target, budget, trials, hardware, keep, dims, threads, seed, callback)
    if mode != "static":
        if calibration is not None or metric is not None:
            raise QuantizationError(f"calibration: the mode {mode!r} takes no inputs and no metric; only 'static' does")
        proto = prepare(model)
        notes: tuple[str, ...] = ()
        if mode == "dynamic":
            quantized, notes = quantize_dynamic(proto, request.hardware, request.keep, granularity)
        else:
            quantized = quantize_weights(proto, request.hardware, request.keep, bits, block)
        return _with_note_of_defaults(QuantizedModel(quantized, request.name, mode, request.hardware.title, notes=notes), model)
    if calibration is None:
        raise QuantizationError("calibration: the mode 'static' needs inputs; 'dynamic' and 'weights' need none")
    return _with_note_of_defaults(_Static(model, calibration, request, search, state).run(), model)


_MODE_OF = {"granularity": "dynamic", "bits": "weights", "block": "weights", "trials": "static", "state": "static"}


def _check_meant(mode: str, given: Mapping[str, bool]) -> None:
    """UserError for options that are given and say nothing in this mode."""
    for name, other in _MODE_OF.items():
        if given[name] and mode != other:
            raise QuantizationError(f"{name}: is for the mode {other!r}, not for {mode!r}")


def _with_note_of_defaults(found: QuantizedModel, model: Model) -> QuantizedModel:
    """Says which inputs, all of which had a default, the model has no more."""
    graph, left = read(model).graph, {value.name for value in found.model.graph.input}
    gone = [value.name for value in graph.input if value.name not in left]
    if not gone:
        return found
    return dataclasses.replace(found, notes=(*found.notes, f"inputs with a default are constants now: {', '.join(gone)}"))


@dataclass(frozen=True)
class _Request:
    name: str
    metric: Metric | None
    hardware: HardwareDescription
    is_measured: bool
    keep: tuple[str, ...]
    compile: Compile
    seconds: float | None
    trials: int | None
    seed: int
    tell: Callable[[QuantizationStep], None]


def _checked(
    model: Any,
    metric: Any,
    target: Any,
    budget: Any,
    trials: Any,
    hardware: Any,
    keep: Any,
    dims: Any,
    threads: Any,
    seed: Any,
    callback: Any,
) -> _Request:
    """The options, or UserError for one that cannot be, before any time is spent."""
    for name, given in (("metric", metric), ("callback", callback)):
        if given is not None and not callable(given):
            raise QuantizationError(f"{name} is a {type(given).__name__}, must be a function")
    if isinstance(keep, str) or not isinstance(keep, Sequence) or not all(isinstance(pattern, str) for pattern in keep):
        raise QuantizationError("keep must be a list of patterns of names or operators of nodes, such as ['head*', 'Gemm']")
    if trials is not None and (isinstance(trials, bool) or not isinstance(trials, (int, np.integer)) or trials < 1):
        raise QuantizationError(f"trials is {trials!r}, must be at least 1")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise QuantizationError(f"seed is {seed!r}, must be a whole number, not negative")
    chosen = Target.of(target)
    chosen = chosen if threads is None else dataclasses.replace(chosen, cores=check_threads(threads))
    described = describe_hardware(hardware, chosen)
    compile_ = partial(_compile, target=chosen, dims=checked_dims(dims))
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else "model"
    allowed, most = parse_budget(budget), None if trials is None else int(trials)
    seconds = allowed if most is None else None
    measured = described.describes(chosen) and chosen.device is None
    return _Request(str(name), metric, described, measured, tuple(keep), compile_, seconds, most, int(seed), callback or (lambda _: None))


def _compile(model: onnx.ModelProto, *, target: Target, dims: Mapping[str, Dim]) -> CompiledModule:
    return compile_model(model.SerializeToString(), target, dims=dims)


class _Static:
    """The stages of the mode "static"; what one makes the next ones read."""

    def __init__(
        self, model: Model, calibration: Any, request: _Request, search: str, state: str | os.PathLike[str] | None
    ) -> None:
        self.request, self.search = request, search
        self.proto = prepare(model)
        given = read(model)
        self.feeds = read_feeds(calibration, self.proto)
        self.journal = Journal(state, self._facts())
        if opset_of(given) != opset_of(self.proto):
            self._check_converted(given)
        self.modules: dict[str, tuple[onnx.ModelProto, CompiledModule]] = {}

    def run(self) -> QuantizedModel:
        request, tell = self.request, self.request.tell
        found = analyse(self.proto, request.hardware, request.keep)
        reference = math.nan
        if request.metric is not None:
            tell(QuantizationStep("asking the metric of f32"))
            reference = call_metric(request.metric, request.compile(self.proto).run)
        tell(QuantizationStep("calibrating", 0, len(self.feeds)))
        seen = observe(self.proto, found, self.feeds, request.compile, lambda n, of: tell(QuantizationStep("calibrating", n, of)))
        topology, notes = without_infinite(found, seen)
        if not any(site.is_contraction for site in topology.sites):
            raise QuantizationError(f"nothing to quantize: {'; '.join(notes)}")
        weights = weight_arrays(self.proto, topology)
        scales = Scales(topology, request.hardware, seen.statistics, weights, seen.layers)
        searched, checked = split_places(len(self.feeds))
        feeds, references = [self.feeds[i] for i in searched], [seen.outputs[i] for i in searched]
        tell(QuantizationStep("compiling the simulated graph"))
        evaluator = Evaluator(self.proto, scales, feeds, references, request.metric, reference, request.compile)
        latency = self._latency(topology, scales)
        search = Search(
            topology, evaluator.quality, latency.predict, self.journal, error_of=evaluator.quick_error, seed=request.seed,
            max_trials=request.trials, budget_seconds=request.seconds,
            on_trial=lambda trial, n: tell(_trial_progress(trial, n, request.trials)),
            on_layer=lambda n, of: tell(QuantizationStep("measuring layers", n, of)),
        )  # fmt: skip
        ended = search.run(self.search)
        notes += constant_inputs(self.feeds) + constant_zeros(topology.classes, seen.statistics)
        if not request.is_measured:
            notes += (f"times are predicted from the description {request.hardware.name!r}: it is not what the target is",)
        others = [self.feeds[i] for i in checked], [seen.outputs[i] for i in checked]
        points, is_whole = self._measure(search.trials, topology, scales, partial(evaluator.quality_on, *others))
        ended = ended if is_whole else "interrupted"
        chosen = usual_choice(points)
        if is_all_float(topology, chosen.strategy):
            notes += ("the default choice is f32: no measured point is faster and as near to it as that must be; `choose` takes others",)
        noise = layer_noise(scales, all_small(topology), search.errors)
        return QuantizedModel(
            chosen.model, request.name, "static", request.hardware.title, chosen, points, tuple(search.trials), noise, tuple(notes),
            ended,
        )  # fmt: skip

    def _check_converted(self, given: onnx.ModelProto) -> None:
        """TcError where a newer opset made another model of it."""
        feed = self.feeds[0]
        before, after = (self.request.compile(model).run(feed) for model in (given, self.proto))
        check_prepared(compare_outputs([before], [after])[0])

    def _facts(self) -> dict[str, Any]:
        """What a search is known by."""
        request = self.request
        model = hashlib.sha256(self.proto.SerializeToString(deterministic=True)).hexdigest()[:16]
        return {
            "kind": "tc quantization", "version": __version__, "format": STATE_FORMAT, "model": model,
            "calibration": digest_of_calls(self.feeds), "hardware": request.hardware.name, "keep": list(request.keep),
            "search": self.search, "seed": request.seed,
            "metric": request.metric is not None,
        }  # fmt: skip

    def _latency(self, topology: Topology, scales: Scales) -> LatencyModel:
        """From profiles of the model with all products in one combination, or what an earlier search found so."""

        def profile() -> dict[str, Any]:
            strategies = uniform_strategies(topology, all_small(topology))
            labels = strategies if self.request.is_measured else {"f32": strategies["f32"]}
            profiled = {}
            for number, label in enumerate(labels):
                self.request.tell(QuantizationStep("profiling", number, len(labels), label))
                profiled[label] = self._compiled(strategies[label], topology, scales)
            found = fit_latency(topology, profiled, self.feeds[0])
            return {"rest": found.rest, "sites": {name: list(costs) for name, costs in found.sites.items()}}

        def is_whole(entry: dict[str, Any]) -> bool:
            counts = {name: len(costs) for name, costs in entry["sites"].items()} if is_cost(entry) else {}
            return counts == {site.name: len(site.choices) for site in topology.sites}

        entry = self.journal.remember("latency", profile, is_whole)
        return LatencyModel(entry["rest"], {name: tuple(costs) for name, costs in entry["sites"].items()})

    def _compiled(self, strategy: Strategy, topology: Topology, scales: Scales) -> tuple[onnx.ModelProto, CompiledModule]:
        if strategy.key not in self.modules:
            proto = realize(self.proto, topology, strategy, scales.numbers(strategy))
            self.modules[strategy.key] = (proto, self.request.compile(proto))
        return self.modules[strategy.key]

    def _measure(
        self, trials: list[Trial], topology: Topology, scales: Scales, quality_of: Callable[[Predict], Quality]
    ) -> tuple[tuple[FrontPoint, ...], bool]:
        """What is worth it, written, compiled, timed in turns and compared with f32; fastest first. False beside it where Ctrl-C ended
        that: not all are there then, or none is timed."""
        chosen = list(worth_measuring(topology, trials, MEASURED))
        compiled: list[tuple[onnx.ModelProto, CompiledModule]] = []
        times: Sequence[ModelTime | None] = []
        is_whole = True
        try:
            for number, trial in enumerate(chosen):
                self.request.tell(QuantizationStep("compiling the front", number, len(chosen)))
                compiled.append(self._compiled(trial.strategy, topology, scales))
            self.request.tell(QuantizationStep("measuring the front", 0, len(chosen)))
            if self.request.is_measured:
                times = measure_in_turns([m for _, m in compiled], self.feeds[0], MEASURE_SECONDS)
        except KeyboardInterrupt:
            if not compiled:
                raise
            is_whole, chosen = False, chosen[: len(compiled)]
        times = times or [None] * len(chosen)
        points: list[FrontPoint] = []
        try:
            for trial, (proto, module), time in zip(chosen, compiled, times, strict=True):
                quality, label = quality_of(module.run), label_of(topology, trial.strategy)
                worst = max(quality.worst, trial.quality.worst)  # what is rare needs all inputs to show
                quality = dataclasses.replace(quality, worst=worst)
                types = tuple((s.name, s.op_type, trial.strategy.combination(s).label) for s in topology.sites)
                point = FrontPoint(label, trial.strategy, proto, quality, trial.predicted, types=types)
                points.append(point if time is None else dataclasses.replace(point, seconds=time.seconds, ratio=time.ratio.median))
        except KeyboardInterrupt:
            if not points:
                raise
            is_whole = False
        return tuple(sorted(points, key=lambda p: (p.cost, p.quality.loss))), is_whole


def split_places(count: int) -> tuple[list[int], list[int]]:
    """Which calibration inputs guesses are tried on, and which the points of the front: others, so that a guess which only fits the
    first is not chosen for it; the same where there are fewer than four."""
    searched, checked = (range(count), range(count)) if count < 4 else (range(0, count, 2), range(1, count, 2))
    return _spread(searched), _spread(checked)


def _spread(places: Sequence[int]) -> list[int]:
    """At most SEARCH_INPUTS of the places, evenly spaced."""
    chosen = np.unique(np.linspace(0, len(places) - 1, min(SEARCH_INPUTS, len(places))).round().astype(int))
    return [places[int(i)] for i in chosen]


def _trial_progress(trial: Trial, number: int, total: int | None) -> QuantizationStep:
    text = f"loss {trial.quality.loss:.4g}, {trial.predicted * 1e3:.3f} ms predicted"
    return QuantizationStep(f"searching: {trial.stage}", number, total or 0, text)

