"""What tests draw: cases, of which some run always and all with the slow ones, and bytes that a peer multiplies exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from tc.target import native_target

HAS_BYTE_DOTS = any(map(native_target().has, ("avx512vnni", "avxvnni")))


def some_of(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The cases as parameters, those slow that are not among the quick. A case that is a tuple has a value for each parameter."""
    listed = list(cases)
    assert quick and all(case in listed for case in quick)
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in quick else pytest.mark.slow)
        for case in listed
    ]


def covering(cases: Sequence[Mapping[str, Hashable]], together: int = 1) -> list[int]:
    """Numbers of few cases in which each value of each parameter occurs, and each combination of values of as many parameters as
    are looked at together. The next case is the first of those that bring most that is new, of values that occur least until then."""
    parts = [set(combinations(sorted(case.items(), key=lambda part: part[0]), min(together, len(case)))) for case in cases]
    chosen: list[int] = []
    missing, uses = set().union(*parts), Counter[Any]()
    while missing:
        best = min(range(len(cases)), key=lambda n: (-len(parts[n] & missing), sum(uses[part] for part in cases[n].items())))
        chosen.append(best)
        missing -= parts[best]
        uses.update(cases[best].items())
    return sorted(chosen)


def exact_range(dtype: type) -> tuple[int, int]:
    """The least and the largest number of a type that onnxruntime multiplies exactly. Without instructions for bytes its sums of two
    products of them saturate at 16 bits: half of the range of signed bytes is left."""
    info = np.iinfo(dtype)
    parts = 2 if dtype is np.int8 and not HAS_BYTE_DOTS else 1
    return int(info.min) // parts, int(info.max) // parts
