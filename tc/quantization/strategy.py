"""One guess: a combination of types for each site, a method of thresholds for each scale class and for the weights, a strength of migration
for each operand; and the numbers that it comes to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tc.quantization.description import INTEGERS, Combination
from tc.quantization.thresholds import Quantizer
from tc.quantization.topology import Edge, QuantizationSite, ScaleClass, Topology


@dataclass(frozen=True)
class Strategy:
    """`choices`: of each site's combinations, by place. `methods`: thresholds of each scale class. `weights`: those of all weights.
    `is_corrected`: whether biases take off what quantization shifts the results of products by. `strengths`: of the migration of each
    group's operand in integers, 0 for none."""

    choices: tuple[tuple[str, int], ...]
    methods: tuple[str, ...]
    weights: str = "minmax"
    is_corrected: bool = False
    strengths: tuple[float, ...] = ()

    def combination(self, site: QuantizationSite) -> Combination:
        """What the site runs in."""
        return site.choices[dict(self.choices)[site.name]]

    def with_choice(self, names: Mapping[str, int]) -> Strategy:
        """Other choices for these sites."""
        return replace(self, choices=tuple((name, names.get(name, choice)) for name, choice in self.choices))

    def with_method(self, class_index: int, method: str) -> Strategy:
        """Another method for one scale class."""
        changed = list(self.methods)
        changed[class_index] = method
        return replace(self, methods=tuple(changed))

    def with_methods(self, method: str) -> Strategy:
        """One method for all scale classes."""
        return replace(self, methods=(method,) * len(self.methods))

    def with_strength(self, group_index: int, strength: float) -> Strategy:
        """Another strength for one group."""
        changed = list(self.strengths)
        changed[group_index] = strength
        return replace(self, strengths=tuple(changed))

    def with_strengths(self, strength: float) -> Strategy:
        """One strength for all groups."""
        return replace(self, strengths=(strength,) * len(self.strengths))

    @property
    def key(self) -> str:
        """A short text that two strategies share only when they are one."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()[:20]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        choices = [list(pair) for pair in self.choices]
        return {
            "choices": choices, "methods": list(self.methods), "weights": self.weights, "is_corrected": self.is_corrected,
            "strengths": list(self.strengths),
        }  # fmt: skip

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Strategy:
        """What `to_json` made."""
        choices = tuple((str(name), int(choice)) for name, choice in data["choices"])
        strengths = tuple(map(float, data["strengths"]))
        return Strategy(choices, tuple(map(str, data["methods"])), str(data["weights"]), bool(data["is_corrected"]), strengths)


def all_small(topology: Topology, method: str = "minmax") -> Strategy:
    """Everything in the first combination of its operator: 8 bits."""
    return _uniform(topology, tuple((site.name, 0) for site in topology.sites), method)


def all_float(topology: Topology, method: str = "minmax") -> Strategy:
    """Everything in f32."""
    return _uniform(topology, tuple((site.name, len(site.choices) - 1) for site in topology.sites), method)


def _uniform(topology: Topology, choices: tuple[tuple[str, int], ...], method: str) -> Strategy:
    return Strategy(choices, (method,) * len(topology.classes), strengths=(0.0,) * len(topology.groups))


def is_all_float(topology: Topology, strategy: Strategy) -> bool:
    """Whether everything is in f32."""
    return strategy.choices == all_float(topology).choices


def used_scales(topology: Topology, strategy: Strategy) -> set[tuple[int, str]]:
    """(scale, integer type) of what the strategy quantizes."""
    found = set()
    for site in topology.sites:
        for edge in site.edges:
            dtype = strategy.combination(site).operand(edge.operand)
            if dtype in INTEGERS and not edge.is_weight:
                found.add((scale_of(topology, strategy, site, edge), dtype))
    return found


def scale_of(topology: Topology, strategy: Strategy, site: QuantizationSite, edge: Edge) -> int:
    """The number of the scale of a computed operand in integers: that of its class, or of its group where that is migrated."""
    group = topology.group_of(site.name)
    return edge.class_index if group is None or not strategy.strengths[group] else len(topology.classes) + group


@dataclass(frozen=True)
class StrategyNumbers:
    """What a strategy comes to. `quantizers`: by scale and integer type. `weight_scales`: float32[channels] of each weight, times its
    factors where it has some. `corrections`: float64[results] by site, to be added to biases. `factors`: float32[channels] by the place
    of the group, of those that are migrated."""

    quantizers: Mapping[tuple[int, str], Quantizer]
    weight_scales: Mapping[str, np.ndarray]
    corrections: Mapping[str, np.ndarray] = field(default_factory=dict)
    factors: Mapping[int, np.ndarray] = field(default_factory=dict)


def class_label(scale_class: ScaleClass) -> str:
    """How a class is called in reports."""
    more = len(scale_class.origins) - 1
    return scale_class.name + (f" and {more} more" if more > 0 else "")
