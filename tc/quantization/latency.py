"""What a guess costs in time: predicted from a few profiled models during the search, measured in turns for those that are left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from tc.measure.harness import Plan, Ratio, time_interleaved
from tc.precision.inputs import Feed
from tc.quantization.strategy import Strategy
from tc.quantization.topology import Topology
from tc.runtime.module import CompiledModule

PROFILES = 3
"""Of each, the fastest is taken, kernel by kernel: whatever else ran on the machine only adds."""


@dataclass(frozen=True)
class LatencyModel:
    """`rest`: seconds that belong to no site. `sites`: seconds of each choice of a site, what follows it elementwise included."""

    rest: float
    sites: Mapping[str, tuple[float, ...]]

    def predict(self, strategy: Strategy) -> float:
        """Seconds of a call."""
        return self.rest + sum(self.sites[name][choice] for name, choice in strategy.choices)


def uniform_strategies(topology: Topology, strategy: Strategy) -> dict[str, Strategy]:
    """Strategies in which every site has the combination of one label, or f32 where it has none of that label, by label."""
    labels = dict.fromkeys(choice.label for site in topology.sites if site.is_contraction for choice in site.choices)
    found = {}
    for label in labels:
        small = not label.startswith(("f32", "bf16"))
        names = {}
        for site in topology.sites:
            fitting = [i for i, choice in enumerate(site.choices) if choice.label == label]
            default = 0 if small and not site.is_contraction else len(site.choices) - 1
            names[site.name] = fitting[0] if fitting else default
        found[label] = strategy.with_choice(names)
    return found


def fit_latency(
    topology: Topology,
    profiled: Mapping[str, tuple[onnx.ModelProto, CompiledModule]],
    feed: Feed,
) -> LatencyModel:
    """The model of a topology from profiles of uniform strategies by label; a label that is not there costs what the description says."""
    seconds = {label: site_seconds(proto, module, topology, feed) for label, (proto, module) in profiled.items()}
    floats, rest = seconds["f32"]
    table = {}
    for site in topology.sites:
        base = floats.get(site.name, 0.0)
        costs = []
        for choice in site.choices:
            known = seconds.get(choice.label) if site.is_contraction else None
            costs.append(known[0].get(site.name, 0.0) if known else base * choice.cost / site.choices[-1].cost)
        table[site.name] = tuple(costs)
    rests = [other for _, other in seconds.values()] if len(seconds) > 1 else [rest]
    return LatencyModel(float(np.mean(rests)), table)


def site_seconds(
    proto: onnx.ModelProto, module: CompiledModule, topology: Topology, feed: Feed
) -> tuple[dict[str, float], float]:
    """Seconds of each contraction site in a call of a compiled model, and of everything that belongs to none."""
    owners = owners_of(proto, topology)
    runs: list[dict[str, float]] = []
    for _ in range(PROFILES):
        found: dict[str, float] = defaultdict(float)
        for row in module.profile(feed, repeat=3):
            found[owners.get(row.node, "")] += row.seconds
        runs.append(found)
    best = {name: min(run.get(name, 0.0) for run in runs) for name in runs[0]}
    return best, best.pop("", 0.0)


def owners_of(proto: onnx.ModelProto, topology: Topology) -> dict[str, str]:
    """For each node the contraction site that its time counts to: itself, the one before it, else the one after it."""
    sites = {site.name for site in topology.sites if site.is_contraction}
    by_value: dict[str, str] = {}
    owners: dict[str, str] = {}
    for node in proto.graph.node:
        found = node.name if node.name in sites else next((by_value[name] for name in node.input if name in by_value), "")
        if found:
            owners[node.name] = found
            by_value.update(dict.fromkeys(node.output, found))
    later: dict[str, str] = {}
    for node in reversed(proto.graph.node):
        found = owners.get(node.name) or next((later[name] for name in node.output if name in later), "")
        if found:
            owners[node.name] = found
            later.update(dict.fromkeys(node.input, found))
    return owners


@dataclass(frozen=True)
class ModelTime:
    """Seconds of a call, the median, and over those of the first model in turns."""

    seconds: float
    ratio: Ratio


def measure_in_turns(modules: Sequence[CompiledModule], feed: Feed, budget_seconds: float) -> list[ModelTime]:
    """Time modules beside each other on one input; ratios are over the first."""
    steps: dict[str, Callable[[], object]] = {str(i): (lambda m=module: m.run(feed)) for i, module in enumerate(modules)}  # type: ignore[misc]
    timings = time_interleaved(steps, Plan(budget_seconds=budget_seconds, min_rounds=4, max_rounds=24))
    return [ModelTime(timings.median(name), timings.ratio(name, "0")) for name in steps]
