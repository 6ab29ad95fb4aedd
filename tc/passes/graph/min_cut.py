"""Minimum cuts, by the maximum flow of scipy."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

RESOLUTION = 1 << 20
"""Capacities become integers: the largest finite one is about this."""


def minimum_cut(capacities: Mapping[tuple[Any, Any], float], source: Hashable, sink: Hashable) -> set[Any]:
    """The nodes on the source's side of a cut of least capacity; the source included. Infinite capacities are never cut.

    Capacities are rounded to about six digits of the largest finite one. Among cuts of equal capacity, the one with the fewest nodes on
    the source's side is taken.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    nodes = list(dict.fromkeys([source, sink, *(node for edge in capacities for node in edge)]))
    number = {node: k for k, node in enumerate(nodes)}
    finite = [c for c in capacities.values() if c != float("inf")]
    scale = RESOLUTION / max(max(finite, default=1.0), 1e-300)
    never = 2**31 - 1
    total = 1 + sum(int(c * scale) for c in finite)
    infinite = min(never, total)
    values = [infinite if c == float("inf") else min(int(c * scale), never) for c in capacities.values()]
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
