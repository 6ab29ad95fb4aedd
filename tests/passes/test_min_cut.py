"""Minimum cuts against networkx, on random graphs."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from tc.passes.graph.min_cut import minimum_cut

INFINITE = float("inf")


def capacity_of(capacities: dict, side: set) -> float:
    return sum(c for (a, b), c in capacities.items() if a in side and b not in side)


def networkx_value(capacities: dict, source: object, sink: object) -> float:
    graph = nx.DiGraph()
    graph.add_nodes_from([source, sink])
    for (a, b), c in capacities.items():
        if c == INFINITE:
            graph.add_edge(a, b)  # networkx takes a missing capacity as infinite
        else:
            graph.add_edge(a, b, capacity=c)
    return nx.minimum_cut_value(graph, source, sink)


def random_graph(seed: int) -> dict:
    """Capacities from nanoseconds to seconds, or whole numbers; some infinite, but no infinite way from the source to the sink."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 30))
    capacities: dict = {}
    for _ in range(int(rng.integers(1, 4 * count))):
        a, b = (int(v) for v in rng.integers(0, count, 2))
        if a == b:
            continue
        whole = float(rng.integers(0, 10))
        capacities[a, b] = whole if seed % 2 else 10.0 ** float(rng.uniform(-9, 0))
        if rng.random() < 0.1 and a < b and 0 not in (a, b) and count - 1 not in (a, b):
            capacities[a, b] = INFINITE
    return capacities


@pytest.mark.parametrize("seed", range(200))
def test_the_cut_is_as_small_as_that_of_networkx(seed: int) -> None:
    capacities = random_graph(seed)
    sink = max([1, *(node for edge in capacities for node in edge)])

    side = minimum_cut(capacities, 0, sink)

    assert 0 in side and sink not in side
    finite = [c for c in capacities.values() if c != INFINITE]
    rounding = sum(finite) / (1 << 29) * len(capacities)  # the known cut, to whose parts capacities are rounded, is no dearer than all
    assert capacity_of(capacities, side) <= networkx_value(capacities, 0, sink) + rounding


def test_an_infinite_edge_is_never_cut() -> None:
    capacities = {("s", "a"): 3.0, ("a", "b"): INFINITE, ("b", "t"): 5.0, ("a", "t"): 1.0}

    assert minimum_cut(capacities, "s", "t") == {"s"}


def test_of_equal_cuts_the_one_nearest_the_source() -> None:
    assert minimum_cut({("s", "a"): 2.0, ("a", "b"): 2.0, ("b", "t"): 2.0}, "s", "t") == {"s"}


def test_edges_of_both_directions_count_once_each() -> None:
    capacities = {("s", "a"): 4.0, ("a", "b"): 1.0, ("b", "a"): 9.0, ("b", "t"): 4.0}

    assert minimum_cut(capacities, "s", "t") == {"s", "a"}


@pytest.mark.parametrize("capacities", [{}, {("s", "t"): 0.0}, {("a", "b"): 1.0}, {("s", "a"): INFINITE}])
def test_degenerate_graphs(capacities: dict) -> None:
    side = minimum_cut(capacities, "s", "t")

    assert "s" in side and "t" not in side


def test_many_infinite_and_huge_capacities_do_not_overflow() -> None:
    capacities: dict = {("s", "t"): 1e-12}
    for k in range(3000):
        capacities["s", k] = 1e6 + k
        capacities[k, "t"] = 2e6
        capacities[k, (k + 1) % 3000] = INFINITE

    side = minimum_cut(capacities, "s", "t")

    assert side == {"s"}


@pytest.mark.parametrize("count", [100, 5_000, 50_000])
def test_an_infinite_edge_is_not_cut_for_many_finite_ones(count: int) -> None:
    """Scaled to 20 bits each, 5,000 unit edges were together more than what stood for infinity."""
    edges = {("s", ("a", k)): 1.0 for k in range(count)} | {(("b", k), "t"): 2.0 for k in range(count)}
    edges |= {(("a", k), "a"): INFINITE for k in range(count)} | {("b", ("b", k)): INFINITE for k in range(count)}
    edges["a", "b"] = INFINITE

    assert minimum_cut(edges, "s", "t") == {"s"}


def dense_graph(seed: int) -> dict:
    """Many edges, whose capacities go over 25 orders of magnitude; a tenth are infinite, and lead to higher numbers."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(10, 60))
    scale = 10.0 ** float(rng.uniform(-150, 150))
    capacities: dict = {}
    for _ in range(20 * count):
        a, b = (int(v) for v in rng.integers(0, count, 2))
        if a != b:
            capacities[a, b] = scale * 10.0 ** float(rng.uniform(-12, 12) if seed % 2 else rng.uniform(0, 1))
            if rng.random() < 0.1 and a < b and (a or b < count // 2):
                capacities[a, b] = INFINITE
    return capacities


@pytest.mark.parametrize("seed", range(60))
def test_no_finite_cut_is_missed_whatever_the_scale(seed: int) -> None:
    """Against the maximum flow of networkx, in floats: the cut found has finite edges alone, and is as cheap."""
    capacities = dense_graph(seed)
    sink = max(node for edge in capacities for node in edge)
    least = None
    try:
        least = networkx_value(capacities, 0, sink)
    except nx.NetworkXUnbounded:
        pass
    if least is None:
        with pytest.raises(ValueError, match="has an edge of infinite capacity"):
            minimum_cut(capacities, 0, sink)
        return

    side = minimum_cut(capacities, 0, sink)

    found = capacity_of(capacities, side)
    assert 0 in side and sink not in side
    assert found <= least * (1 + 1e-6) + known_cut(capacities, 0, sink) / (1 << 29) * len(capacities)


def known_cut(capacities: dict, source: object, sink: object) -> float:
    """The cheaper of the cuts behind what is tied to the source and before what is tied to the sink."""
    tied = nx.DiGraph([edge for edge, c in capacities.items() if c == INFINITE])
    tied.add_nodes_from([source, sink])
    nodes = {node for edge in capacities for node in edge}
    first, last = {source, *nx.descendants(tied, source)}, {sink, *nx.ancestors(tied, sink)}
    return min(capacity_of(capacities, first), capacity_of(capacities, nodes - last))


def test_a_cut_of_nothing_takes_the_fewest_nodes() -> None:
    assert minimum_cut({("s", "a"): 0.0, ("a", "b"): INFINITE, ("b", "t"): 0.0, ("s", "c"): 1e-300}, "s", "t") == {"s", "c"}
