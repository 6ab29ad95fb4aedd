"""Cases that stand for all."""

from __future__ import annotations

import itertools

import pytest

from tests.draws import covering

SIZES = {"a": range(3), "b": range(2), "c": range(4), "d": range(2)}
CASES = [dict(zip(SIZES, values, strict=True)) for values in itertools.product(*SIZES.values())]


@pytest.mark.parametrize(("together", "most"), [(1, 4), (2, 15), (3, 30), (4, 48), (9, 48)])
def test_few_cases_have_all_values_that_are_looked_at_together(together: int, most: int) -> None:
    chosen = covering(CASES, together)

    assert len(chosen) <= most
    for names in itertools.combinations(SIZES, min(together, len(SIZES))):
        every = set(itertools.product(*(SIZES[name] for name in names)))
        assert {tuple(CASES[number][name] for name in names) for number in chosen} == every


def test_the_same_cases_are_chosen_in_every_order_of_parameters() -> None:
    turned = [dict(reversed(case.items())) for case in CASES]

    assert covering(turned, 2) == covering(CASES, 2)


def test_values_that_are_free_alternate() -> None:
    cases = [{"name": name, "symbolic": symbolic} for name in range(10) for symbolic in (False, True)]

    chosen = covering(cases)

    assert len(chosen) == 10
    assert sum(bool(cases[number]["symbolic"]) for number in chosen) == 5


@pytest.mark.covering
@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize("b", [0, 1, 2])
def test_cases_that_add_nothing_are_slow(a: int, b: int, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("slow") is None) == ((a, b) in {(0, 0), (1, 1), (0, 2)})


@pytest.mark.covering
@pytest.mark.parametrize("a", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize("b", [0, 1])
def test_what_is_slow_anyway_stands_for_nothing(a: int, b: int, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("slow") is None) == (a == 1)
