"""One guess: a combination of types for each site, a method of thresholds for each scale class and for the weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tc.quantization.description import INTEGERS, Combination
from tc.quantization.topology import QuantizationSite, ScaleClass, Topology


@dataclass(frozen=True)
class Strategy:
    """`choices`: of each site's combinations, by place. `methods`: thresholds of each scale class. `weights`: those of all weights.
    `is_corrected`: whether biases take off what quantization shifts the results of products by."""

    choices: tuple[tuple[str, int], ...]
    methods: tuple[str, ...]
    weights: str = "minmax"
    is_corrected: bool = False

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

    @property
    def key(self) -> str:
        """A short text that two strategies share only when they are one."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()[:20]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        choices = [list(pair) for pair in self.choices]
        return {"choices": choices, "methods": list(self.methods), "weights": self.weights, "is_corrected": self.is_corrected}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Strategy:
        """What `to_json` made."""
        choices = tuple((str(name), int(choice)) for name, choice in data["choices"])
        return Strategy(choices, tuple(map(str, data["methods"])), str(data["weights"]), bool(data["is_corrected"]))


def all_small(topology: Topology, method: str = "minmax") -> Strategy:
    """Everything in the first combination of its operator: 8 bits."""
    return Strategy(tuple((site.name, 0) for site in topology.sites), (method,) * len(topology.classes))


def all_float(topology: Topology, method: str = "minmax") -> Strategy:
    """Everything in f32."""
    choices = tuple((site.name, len(site.choices) - 1) for site in topology.sites)
    return Strategy(choices, (method,) * len(topology.classes))


def is_all_float(topology: Topology, strategy: Strategy) -> bool:
    """Whether everything is in f32."""
    return strategy.choices == all_float(topology).choices


def used_quantizers(topology: Topology, strategy: Strategy) -> set[tuple[int, str]]:
    """(class, integer type) of what the strategy quantizes."""
    found = set()
    for site in topology.sites:
        combination = strategy.combination(site)
        for edge in site.edges:
            dtype = combination.operand(edge.operand)
            if dtype in INTEGERS and not edge.is_weight:
                found.add((edge.class_index, dtype))
    return found


def class_label(scale_class: ScaleClass) -> str:
    """How a class is called in reports."""
    more = len(scale_class.origins) - 1
    return scale_class.name + (f" and {more} more" if more > 0 else "")
