"""Products whose rows are a known and a symbolic dim together."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node


@pytest.mark.parametrize("rows", [3, 4, 7])
@pytest.mark.parametrize("columns", [9, 33])
def test_a_product_of_known_by_symbolic_rows_keeps_its_tile_in_registers(rows: int, columns: int) -> None:
    """The accumulators of the smallest tile, for a symbolic dim of 1, had as many rows as the result: no code for them."""
    rng = np.random.default_rng(0)
    w = rng.integers(-4, 5, (4, columns)).astype(np.float32)
    model = make_model([node("MatMul", "x w", "y")], {"x": (np.float32, [rows, "n", 4])}, ["y"], {"w": w})
    module = tc.compile(model, threads=1)

    for n in range(8):
        x = rng.integers(-4, 5, (rows, n, 4)).astype(np.float32)
        assert np.array_equal(module(x), x @ w)
