"""What tests draw: cases, of which some run always and all with the slow ones, and bytes that a peer multiplies exactly."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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


def exact_range(dtype: type) -> tuple[int, int]:
    """The least and the largest number of a type that onnxruntime multiplies exactly. Without instructions for bytes its sums of two
    products of them saturate at 16 bits: half of the range of signed bytes is left."""
    info = np.iinfo(dtype)
    parts = 2 if dtype is np.int8 and not HAS_BYTE_DOTS else 1
    return int(info.min) // parts, int(info.max) // parts
