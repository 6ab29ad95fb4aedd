"""The numbers that strategies come to, each made once: quantizers, scales of weights, factors of channels, corrections of biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tc.quantization.correction import LayerInput, mean_results
from tc.quantization.description import INTEGERS, HardwareDescription
from tc.quantization.migration import channel_factors, migrated_statistics
from tc.quantization.statistics import Statistics
from tc.quantization.strategy import Strategy, StrategyNumbers, scale_of, used_scales
from tc.quantization.thresholds import Quantizer, choose_quantizer, fake_weight, weight_scales
from tc.quantization.topology import Edge, OperandGroup, QuantizationSite, Topology


@dataclass
class Scales:
    """What a strategy's numbers depend on, and those that were made."""

    topology: Topology
    hardware: HardwareDescription
    statistics: Sequence[Statistics]
    weights: Mapping[str, np.ndarray]
    layers: Mapping[str, LayerInput] = field(default_factory=dict)
    _quantizers: dict[tuple[int, float, str, str], Quantizer] = field(default_factory=dict)
    _weight_scales: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    _migrated_scales: dict[tuple[int, float, str], dict[str, np.ndarray]] = field(default_factory=dict)
    _factors: dict[tuple[int, float], np.ndarray] = field(default_factory=dict)
    _migrated: dict[tuple[int, float], Statistics] = field(default_factory=dict)
    _means: dict[tuple[str, float, Quantizer], np.ndarray] = field(default_factory=dict)
    _corrections: dict[tuple[str, float, Quantizer, str], np.ndarray] = field(default_factory=dict)

    def numbers(self, strategy: Strategy) -> StrategyNumbers:
        """All of a strategy's."""
        migrated = [(place, strength) for place, strength in enumerate(strategy.strengths) if strength]
        weights = dict(self.of_weights(strategy.weights))
        for place, strength in migrated:
            weights |= self._of_migrated(place, strength, strategy.weights)
        factors = {place: self.factors(place, strength) for place, strength in migrated}
        return StrategyNumbers(self.quantizers(strategy), weights, self.corrections(strategy), factors)

    def quantizers(self, strategy: Strategy) -> dict[tuple[int, str], Quantizer]:
        """Of every (scale, integer type) that the strategy has."""
        found = {}
        for index, dtype in used_scales(self.topology, strategy):
            place = index - len(self.topology.classes)
            if place < 0:
                found[index, dtype] = self.quantizer(index, dtype, strategy.methods[index])
            else:
                method = strategy.methods[self.topology.groups[place].class_index]
                found[index, dtype] = self._quantizer(index, strategy.strengths[place], dtype, method)
        return found

    def quantizer(self, class_index: int, dtype: str, method: str) -> Quantizer:
        """Of one class by one method."""
        return self._quantizer(class_index, 0.0, dtype, method)

    def _quantizer(self, index: int, strength: float, dtype: str, method: str) -> Quantizer:
        key = (index, strength, dtype, method)
        if key not in self._quantizers:
            place = index - len(self.topology.classes)
            statistics = self.statistics[index] if place < 0 else self._migrated_statistics(place, strength)
            self._quantizers[key] = choose_quantizer(method, statistics, dtype, self.hardware.is_power_of_two)
        return self._quantizers[key]

    def of_weights(self, method: str) -> dict[str, np.ndarray]:
        """Scales of the channels of each weight, without factors."""
        if method not in self._weight_scales:
            edges = {edge.value: edge for site in self.topology.sites for edge in site.edges if edge.is_weight}
            self._weight_scales[method] = {
                name: weight_scales(self.weights[name], edge.axis or 0, method, self.hardware.is_power_of_two)
                for name, edge in edges.items()
            }
        return self._weight_scales[method]

    def corrections(self, strategy: Strategy) -> dict[str, np.ndarray]:
        """float64[results] by site: what is added to the biases of products in integers; nothing where the strategy corrects none."""
        quantizers = self.quantizers(strategy) if strategy.is_corrected else {}
        found = {}
        for site in self.topology.sites if strategy.is_corrected else ():
            operand, weight = site.edges[0], next((edge for edge in site.edges if edge.is_weight), None)
            dtype = strategy.combination(site).operand(operand.operand)
            if weight is not None and site.name in self.layers and dtype in INTEGERS:
                quantizer = quantizers[scale_of(self.topology, strategy, site, operand), dtype]
                found[site.name] = self._correction(site, weight, quantizer, strategy)
        return found

    def _correction(self, site: QuantizationSite, weight: Edge, quantizer: Quantizer, strategy: Strategy) -> np.ndarray:
        place = self.topology.group_of(site.name)
        strength = 0.0 if place is None else strategy.strengths[place]
        key = (site.name, strength, quantizer, strategy.weights)
        if key not in self._corrections:
            layer, array, axis = self.layers[site.name], self.weights[weight.value], weight.axis or 0
            rows, wide, scales = layer.rows, array, self.of_weights(strategy.weights)[weight.value]
            if place is not None and strength:
                factors = self.factors(place, strength)
                rows, wide = rows / factors, times_rows(array, factors, axis)
                scales = self._of_migrated(place, strength, strategy.weights)[weight.value]
            if (layer.value, strength, quantizer) not in self._means:
                self._means[layer.value, strength, quantizer] = quantizer.fake(rows).mean(axis=0, dtype=np.float64)
            shifted = mean_results(fake_weight(wide, scales, axis), axis, self._means[layer.value, strength, quantizer], layer)
            self._corrections[key] = mean_results(array, axis, layer.rows.mean(axis=0, dtype=np.float64), layer) - shifted
        return self._corrections[key]

    # -- migration

    def factors(self, place: int, strength: float) -> np.ndarray:
        """float32[channels]: what channels of a group's operand are divided by, and the rows of its weights multiplied."""
        if (place, strength) not in self._factors:
            group = self.topology.groups[place]
            matrices = [np.moveaxis(self.weights[name], axis, 1) for name, axis in group.weights]
            self._factors[place, strength] = channel_factors(self._layer(group), matrices, strength)
        return self._factors[place, strength]

    def _layer(self, group: OperandGroup) -> LayerInput:
        return self.layers[group.sites[0]]

    def _migrated_statistics(self, place: int, strength: float) -> Statistics:
        if (place, strength) not in self._migrated:
            group = self.topology.groups[place]
            self._migrated[place, strength] = migrated_statistics(self._layer(group), self.factors(place, strength))
        return self._migrated[place, strength]

    def _of_migrated(self, place: int, strength: float, method: str) -> dict[str, np.ndarray]:
        key = (place, strength, method)
        if key not in self._migrated_scales:
            factors = self.factors(place, strength)
            self._migrated_scales[key] = {
                name: weight_scales(times_rows(self.weights[name], factors, axis), axis, method)
                for name, axis in self.topology.groups[place].weights
            }
        return self._migrated_scales[key]


def times_rows(matrix: np.ndarray, factors: np.ndarray, axis: int) -> np.ndarray:
    """float32[...]: a matrix whose columns lie on `axis`, each row times its factor."""
    return np.asarray(matrix * np.expand_dims(factors, axis), np.float32)
