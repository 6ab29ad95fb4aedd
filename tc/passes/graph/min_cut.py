"""Minimum cuts, by maximum flows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

RESOLUTION = 1 << 29
"""Capacities become integers: that of a cut known to be no cheaper than the least one becomes this."""

NEVER = (1 << 30) - 1
"""What stands for a capacity that no least cut contains: more than any of them."""


def minimum_cut(capacities: Mapping[tuple[Any, Any], float], source: Hashable, sink: Hashable) -> set[Any]:
    """The nodes on the source's side of a cut of least capacity; the source included. Infinite capacities are never cut.

    Capacities are rounded down to multiples of a part in `RESOLUTION` of the cut nearest to the source or that nearest to the sink,
    whichever is cheaper. Among cuts of equal capacity, the one with the fewest nodes on the source's side is taken. ValueError when
    edges of infinite capacity lead from the source to the sink.
    """
    unit = max((c for c in capacities.values() if c != math.inf), default=0.0) or 1.0  # so that sums are finite
    capacities = {edge: c / unit for edge, c in capacities.items()}
    most = _known_cut(capacities, source, sink)
    values = [NEVER if c > most else int(c / most * RESOLUTION) if most else 0 for c in capacities.values()]
    nodes = list(dict.fromkeys([source, sink, *(node for edge in capacities for node in edge)]))
    number = {node: k for k, node in enumerate(nodes)}
    edges = [(number[a], number[b], value) for (a, b), value in zip(capacities, values, strict=True)]
    return {nodes[k] for k in _source_side(len(nodes), edges)}


def _source_side(count: int, edges: Sequence[tuple[int, int, int]]) -> list[int]:
    """What node 0 still reaches beside a maximum flow from it to node 1; edges are (from, to, capacity).

    Source: Dinic's algorithm, flows along shortest paths until none is left. (That of scipy takes a fifth of a second to import.)
    """
    ends: list[int] = []
    left: list[int] = []  # what an edge can still carry; edge k ^ 1 is edge k backwards
    leaving: list[list[int]] = [[] for _ in range(count)]
    for a, b, capacity in edges:
        for start, end, room in ((a, b, capacity), (b, a, 0)):
            leaving[start].append(len(ends))
            ends.append(end)
            left.append(room)
    while True:
        level = [_FAR] * count
        level[0] = 0
        reached = [0]
        for node in reached:
            following = level[node] + 1
            for edge in leaving[node]:
                end = ends[edge]
                if left[edge] and level[end] == _FAR:
                    level[end] = following
                    reached.append(end)
        if level[1] == _FAR:
            return reached
        _saturate(level, leaving, ends, left)


_FAR = -1
"""The level of what is not reached."""


def _saturate(level: Sequence[int], leaving: Sequence[Sequence[int]], ends: Sequence[int], left: list[int]) -> None:
    """Send flow along paths that lead one level on with every edge, until each of them has a full edge."""
    tried, counts = [0] * len(leaving), [len(edges) for edges in leaving]
    path: list[int] = []
    node = 0
    while True:
        if node == 1:
            flow = min([left[edge] for edge in path])
            for edge in path:
                left[edge] -= flow
                left[edge ^ 1] += flow
            full = next(k for k, edge in enumerate(path) if not left[edge])
            node = ends[path[full] ^ 1]
            del path[full:]
            continue
        edges, following = leaving[node], level[node] + 1
        for k in range(tried[node], counts[node]):
            edge = edges[k]
            if left[edge] and level[ends[edge]] == following:
                tried[node] = k
                path.append(edge)
                node = ends[edge]
                break
        else:
            tried[node] = counts[node]
            if not path:
                return
            node = ends[path.pop() ^ 1]
            tried[node] += 1


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
