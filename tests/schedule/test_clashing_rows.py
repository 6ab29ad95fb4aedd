"""Rows of a power of two of elements evict each other from the first-level cache, whatever dims are around them: tiles have few of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tc
from tc.schedule.rules.tiling import MOST_CLASHING_ROWS
from tests.frontend.models import make_model, node


def rows_of_tile(shape: list[int], columns: int, rng: np.random.Generator) -> int:
    weights = rng.standard_normal((shape[-1], columns)).astype(np.float32)
    model = make_model([node("MatMul", "x w", "y")], {"x": (np.float32, shape)}, ["y"], {"w": weights})
    x = rng.standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(tc.compile(model, threads=1)(x), x @ weights, atol=1e-3)

    text = tc.lower(model, "scheduled", target="x86-64-v4").as_text()
    before, _ = text.split("annotate(monoid='sum')")
    return max(int(size) for size in re.findall(r"for \w*it\w* in unrolled\((\d+)\)", before))


@pytest.mark.parametrize("lead", [[], [1], [1, 1]])
@pytest.mark.parametrize("depth", [1024, 3072])
def test_tiles_of_few_rows(lead: list[int], depth: int, rng: np.random.Generator) -> None:
    assert rows_of_tile([*lead, 64, depth], 320, rng) <= MOST_CLASHING_ROWS


@pytest.mark.parametrize("lead", [[], [1]])
def test_other_rows_make_high_tiles(lead: list[int], rng: np.random.Generator) -> None:
    assert rows_of_tile([*lead, 64, 1000], 320, rng) > MOST_CLASHING_ROWS
