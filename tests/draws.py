"""Cases of a test, of which some run always and all with the slow ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_of(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The cases as parameters, those slow that are not among the quick. A case that is a tuple has a value for each parameter."""
    listed = list(cases)
    assert quick and all(case in listed for case in quick)
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in quick else pytest.mark.slow)
        for case in listed
    ]
