"""How good a guess is: the simulated graph on calibration inputs, beside the model in f32 or under the user's metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from tc.errors import QuantizationError
from tc.precision.inputs import Feed
from tc.quantization.description import INTEGERS
from tc.quantization.observe import Compile, Outputs
from tc.quantization.scales import Scales
from tc.quantization.simulate import SimulatedGraph, simulate
from tc.quantization.statistics import Statistics
from tc.quantization.strategy import Strategy
from tc.quantization.thresholds import Quantizer, fake_weight
from tc.runtime.module import CompiledModule

Predict = Callable[[Mapping[str, np.ndarray]], Outputs]
Metric = Callable[[Predict], float]

QUICK_INPUTS = 2
"""On which the error of one layer alone is measured."""

AGREEMENT_SHARE = 1e-3
"""Of the relative error in the loss where there is a metric: metrics such as top-1 come in steps."""


ERROR_LIMIT = 0.1
"""The relative error that the model which is chosen by default has at most: a cosine of about 0.995."""

WORST_SHARE = 2.0
"""So many times the limit may be the error on one input: a mean hides that one result is another one."""

DROP_LIMIT = 0.01
"""Where there is a metric, the part of its value in f32 that the model which is chosen by default loses at most."""


@dataclass(frozen=True)
class Quality:
    """`error`: relative L2 distance of the outputs from those in f32, the mean over outputs. `cosine`: the least over outputs of the mean
    over inputs. `metric`: the user's, larger is better, NaN without one. `loss`: what the search lowers: the error, or with a metric
    what is lost of it and a thousandth of the error. `worst`: the largest error on one input, over the mean power of outputs."""

    error: float
    cosine: float
    metric: float
    loss: float
    worst: float

    @property
    def is_within_limits(self) -> bool:
        """Whether the metric loses at most DROP_LIMIT of what it is in f32; without one, whether the error is at most ERROR_LIMIT, and
        WORST_SHARE times that on any input."""
        if math.isnan(self.metric):
            return self.error <= ERROR_LIMIT and self.worst <= WORST_SHARE * ERROR_LIMIT
        lost = self.loss - AGREEMENT_SHARE * self.error
        return lost <= DROP_LIMIT * abs(self.metric + lost)


class Evaluator:
    """Runs guesses. The simulated graph is compiled when this is made, and never again. reference_metric: of the model in f32."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        scales: Scales,
        feeds: Sequence[Feed],
        references: Sequence[Outputs],
        metric: Metric | None,
        reference_metric: float,
        compile_model: Compile,
    ) -> None:
        self.scales, self.feeds, self.metric = scales, feeds, metric
        self.references = references
        self.simulation: SimulatedGraph = simulate(proto, scales.topology)
        self.module: CompiledModule = compile_model(self.simulation.model)
        self.reference_metric = reference_metric

    def quality(self, strategy: Strategy) -> Quality:
        """Of a guess, by the simulated graph."""
        return self.quality_of(self._simulated(strategy))

    def quick_error(self, strategy: Strategy) -> float:
        """The error of a guess on the first few inputs: enough to rank layers by."""
        predict = self._simulated(strategy)
        return compare_outputs(self.references[:QUICK_INPUTS], [predict(feed) for feed in self.feeds[:QUICK_INPUTS]])[0]

    def _simulated(self, strategy: Strategy) -> Predict:
        controls = self.simulation.controls(strategy, self.scales.numbers(strategy))
        return lambda feed: self.module.run({**feed, **controls})

    def quality_of(self, predict: Predict) -> Quality:
        """Of whatever gives outputs by name, on the inputs of the search."""
        return self.quality_on(self.feeds, self.references, predict)

    def quality_on(self, feeds: Sequence[Feed], references: Sequence[Outputs], predict: Predict) -> Quality:
        """The same on other inputs, with what the model in f32 gives for them."""
        found = [predict(feed) for feed in feeds]
        (error, cosine), worst = compare_outputs(references, found), worst_error(references, found)
        if self.metric is None:
            return Quality(error, cosine, math.nan, error, worst)
        value = call_metric(self.metric, predict)
        return Quality(error, cosine, value, max(self.reference_metric - value, 0.0) + AGREEMENT_SHARE * error, worst)


def call_metric(metric: Metric, predict: Predict) -> float:
    """The metric's value; UserError where it raises, or gives no number."""
    given: dict[str, None] = {}

    def watched(feed: Mapping[str, np.ndarray]) -> Outputs:
        outputs = predict(feed)
        given.update(dict.fromkeys(outputs))
        return outputs

    try:
        value = metric(watched)
    except (Exception, SystemExit) as error:
        outputs = f"; predict gave the outputs {', '.join(given)}" if isinstance(error, KeyError) and given else ""
        raise QuantizationError(f"metric: raised {type(error).__name__}: {error}{outputs}") from error
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        shape = f" of shape {list(value.shape)}" if isinstance(value, np.ndarray) else ""
        raise QuantizationError(f"metric: gave a {type(value).__name__}{shape}, must give a number, larger for better") from None
    if not math.isfinite(number):
        raise QuantizationError(f"metric: gave {number}, must give a finite number, larger for better")
    return number


def compare_outputs(expected: Sequence[Outputs], found: Sequence[Outputs]) -> tuple[float, float]:
    """Mean over outputs of the relative L2 error over all inputs, and the least over outputs of the mean cosine.

    Of integer outputs the error is the share of elements that differ. What is not finite has the error infinity.
    """
    errors, cosines = [], []
    for name in expected[0]:
        pairs = [(np.asarray(a[name]), np.asarray(b[name])) for a, b in zip(expected, found, strict=True)]
        if pairs[0][0].dtype.kind != "f":
            errors.append(float(np.mean([_differing(a, b) for a, b in pairs])))
            continue
        if any(a.shape != b.shape or not np.isfinite(b).all() for a, b in pairs):
            return math.inf, 0.0
        wide = [(a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)) for a, b in pairs]
        power = sum(float(a @ a) for a, _ in wide)
        noise = sum(float((a - b) @ (a - b)) for a, b in wide)
        errors.append(math.sqrt(noise / power) if power else float(noise > 0))
        cosines.append(float(np.mean([_cosine(a, b) for a, b in wide])))
    return float(np.mean(errors)) if errors else 0.0, min(cosines, default=1.0)


def worst_error(expected: Sequence[Outputs], found: Sequence[Outputs]) -> float:
    """The largest over inputs of the mean over outputs of the error on that input alone, relative to the root mean square of an output over
    all inputs: where it is near 0 on one of them, a little noise is no large error."""
    sums = np.zeros(len(expected))
    for name in expected[0]:
        pairs = [(np.asarray(a[name]), np.asarray(b[name])) for a, b in zip(expected, found, strict=True)]
        if pairs[0][0].dtype.kind != "f":
            sums += [_differing(a, b) for a, b in pairs]
            continue
        if any(a.shape != b.shape or not np.isfinite(b).all() for a, b in pairs):
            return math.inf
        power = sum(float(np.square(a, dtype=np.float64).sum()) for a, _ in pairs) / max(sum(a.size for a, _ in pairs), 1)
        noise = np.array([np.square(a.astype(np.float64) - b).sum() / max(a.size, 1) for a, b in pairs])
        sums += np.sqrt(noise / power) if power else noise > 0
    return float(sums.max(initial=0.0)) / max(len(expected[0]), 1)


def _differing(a: np.ndarray, b: np.ndarray) -> float:
    """The share of elements that differ."""
    if a.shape != b.shape or not a.size:
        return float(a.shape != b.shape)
    return float(np.mean(a != b))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else float(not a.any() and not b.any())


@dataclass(frozen=True)
class LayerNoise:
    """What a site costs in accuracy. `operand_db`, `weight_db`: signal to noise of quantizing its computed operand and its weight, in
    decibels; NaN without one. `error`: of the model's outputs when this site alone is quantized."""

    site: str
    op_type: str
    operand_db: float
    weight_db: float
    error: float


def layer_noise(scales: Scales, strategy: Strategy, errors: Mapping[str, float]) -> tuple[LayerNoise, ...]:
    """Signal to noise of each site in its smallest type. errors: of the outputs, by site."""
    found = []
    for site in scales.topology.sites:
        operand, weight = math.nan, math.nan
        for edge in site.edges:
            dtype = site.choices[0].operand(edge.operand)
            if dtype not in INTEGERS:
                continue
            if edge.is_weight:
                weight = _weight_db(scales, edge.value, edge.axis or 0, strategy.weights)
            elif math.isnan(operand):
                method = strategy.methods[edge.class_index]
                operand = _operand_db(scales.statistics[edge.class_index], scales.quantizer(edge.class_index, dtype, method))
        found.append(LayerNoise(site.name, site.op_type, operand, weight, errors.get(site.name, math.nan)))
    return tuple(found)


def _operand_db(statistics: Statistics, quantizer: Quantizer) -> float:
    fake = quantizer.fake(statistics.centers.astype(np.float32))
    signal = float((statistics.counts * statistics.centers**2).sum())
    noise = float((statistics.counts * (fake - statistics.centers) ** 2).sum())
    return decibels(signal, noise)


def _weight_db(scales: Scales, name: str, axis: int, method: str) -> float:
    weight = scales.weights[name].astype(np.float64)
    fake = fake_weight(weight, scales.of_weights(method)[name], axis)
    return decibels(float((weight**2).sum()), float(((weight - fake) ** 2).sum()))


def decibels(signal: float, noise: float) -> float:
    """Ten times the logarithm of the ratio of powers; infinity without noise."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


