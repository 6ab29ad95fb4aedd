"""Population annealing: chains that walk towards low cost, the good ones multiplying.

Every step lowers the temperature, draws the chains anew in proportion to how much more likely the new temperature makes them, and
moves each by a Metropolis step. With moves that join two chains it is simulated annealing and evolution in one.
Source: Hukushima and Iba (2003), "Population annealing and its application to a spin glass"; systematic resampling as in Douc et
al. (2005).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

COOLING = 50.0
"""The temperature at the start, which is the standard deviation of the costs there, over that at the end."""


def anneal(
    starts: Sequence[T],
    cost: Callable[[Sequence[T]], np.ndarray],
    move: Callable[[Sequence[tuple[T, T]]], Sequence[T | None]],
    steps: int,
    rng: np.random.Generator,
) -> list[T]:
    """Everything that was visited, the starts first, in order; things may come more than once.

    `cost`: float64[n], lower is better. `move` gives for each pair a neighbour of the first one, perhaps with traits of the second,
    any other chain (or the same); None where it found none, and the chain rests for a step.
    """
    visited = list(starts)
    if not starts:
        return visited
    chains, costs = list(starts), cost(starts)
    heat = float(costs.std()) or 1.0
    before = 0.0
    for temperature in heat * np.geomspace(1.0, 1.0 / COOLING, max(steps, 1))[:steps]:
        weights = np.exp(-(costs - costs.min()) * (1 / temperature - before))
        before = 1 / temperature
        picked = _resampled(weights, rng)
        chains, costs = [chains[i] for i in picked], costs[picked]
        partners = rng.integers(len(chains), size=len(chains))
        moved = move([(chain, chains[partner]) for chain, partner in zip(chains, partners)])
        found = [(i, chain) for i, chain in enumerate(moved) if chain is not None]
        draws = rng.random(len(found))
        for (i, chain), new, draw in zip(found, cost([chain for _, chain in found]), draws, strict=True):
            if draw < np.exp(-max(new - costs[i], 0.0) / temperature):
                chains[i], costs[i] = chain, new
        visited.extend(chain for _, chain in found)
    return visited


def _resampled(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many indices as there are weights, each about as often as its weight says: int64[n], ascending."""
    n = len(weights)
    places = (rng.random() + np.arange(n)) / n
    return np.minimum(np.searchsorted(np.cumsum(weights) / weights.sum(), places), n - 1)
