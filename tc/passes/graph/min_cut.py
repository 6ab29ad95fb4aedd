"""Minimum cuts, by the maximum flow of scipy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

RESOLUTION = 1 << 29
"""Capacities become integers of 32 bits: that of a cut known to be no cheaper than the least one becomes this."""

NEVER = (1 << 30) - 1
"""What stands for a capacity that no least cut contains: more than any of them, and an edge and its opposite one together fit."""


def minimum_cut(capacities: Mapping[tuple[Any, Any], float], source: Hashable, sink: Hashable) -> set[Any]:
    """The nodes on the source's side of a cut of least capacity; the source included. Infinite capacities are never cut.

    Capacities are rounded down to multiples of a part in `RESOLUTION` of the cut nearest to the source or that nearest to the sink,
    whichever is cheaper. Among cuts of equal capacity, the one with the fewest nodes on the source's side is taken. ValueError when
    edges of infinite capacity lead from the source to the sink.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    unit = max((c for c in capacities.values() if c != math.inf), default=0.0) or 1.0  # so that sums are finite
    capacities = {edge: c / unit for edge, c in capacities.items()}
    most = _known_cut(capacities, source, sink)
    values = [NEVER if c > most else int(c / most * RESOLUTION) if most else 0 for c in capacities.values()]
    nodes = list(dict.fromkeys([source, sink, *(node for edge in capacities for node in edge)]))
    number = {node: k for k, node in enumerate(nodes)}
    rows = [number[a] for a, _ in capacities]
    columns = [number[b] for _, b in capacities]
    shape = (len(nodes), len(nodes))
    graph = csr_matrix((np.array(values, np.int32), (rows, columns)), shape)
    flow = maximum_flow(graph, number[source], number[sink]).flow
    left = graph - flow
    left.data[left.data < 0] = 0
    left.eliminate_zeros()
    reached = breadth_first_order(left, number[source], return_predecessors=False)
    return {nodes[k] for k in reached}


def _known_cut(capacities: Mapping[tuple[Any, Any], float], source: Hashable, sink: Hashable) -> float:
    """The capacity of a cut: behind what infinite edges tie to the source, or before what they tie to the sink."""
    infinite = [edge for edge, c in capacities.items() if c == math.inf]
    first = _reached(infinite, source)
    last = _reached([(b, a) for a, b in infinite], sink)
    if sink in first:
        raise ValueError(f"every cut between {source} and {sink} has an edge of infinite capacity")
    behind = math.fsum(c for (a, b), c in capacities.items() if a in first and b not in first)
    before = math.fsum(c for (a, b), c in capacities.items() if a not in last and b in last)
    return min(behind, before)


def _reached(edges: Iterable[tuple[Any, Any]], start: Hashable) -> set[Any]:
    """The nodes that edges lead to from a node, itself included."""
    following = defaultdict(list)
    for a, b in edges:
        following[a].append(b)
    found, open_nodes = {start}, [start]
    while open_nodes:
        for node in following[open_nodes.pop()]:
            if node not in found:
                found.add(node)
                open_nodes.append(node)
    return found
