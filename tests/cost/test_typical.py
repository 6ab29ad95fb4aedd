"""How large a symbolic dim is taken to be: the usual size, moved into the range that is known."""

from __future__ import annotations

import pytest

from tc.cost.typical import USUAL_DIM, USUAL_IMAGE, fitted, typical, typical_dims
from tc.ir.arith import Facts
from tc.ir.dtype import i64
from tc.ir.expr import Expr, Var, const
from tc.ir.types import DimFact

N, H, W = (Var(name, i64) for name in "nhw")
FACTS = Facts.of((DimFact(N, 1, 8), DimFact(H, 100, None), DimFact(W, 0, None, 48)))


@pytest.mark.parametrize(
    ("lo", "hi", "multiple_of", "size"),
    [(None, None, 1, 64), (0, None, 1, 64), (1, 8, 1, 8), (100, 1000, 1, 100), (0, None, 48, 96), (0, 90, 48, 48), (7, 7, 1, 7)],
)
def test_the_usual_size_is_moved_into_the_range(lo: int | None, hi: int | None, multiple_of: int, size: int) -> None:
    assert fitted(64, lo, hi, multiple_of) == size


@pytest.mark.parametrize(
    ("dim", "size"),
    [
        (const(7), 7),
        (Var("m", i64), USUAL_DIM),
        (N, 8),
        (H * const(2), 200),
        (N * H, 800),
        (W, 96),
        ((H - const(200)), 1),  # no size is negative
        (const(100) // (N - const(8)), USUAL_DIM),  # nor is anything divided by nothing
    ],
)
def test_dims_have_typical_sizes(dim: Expr, size: int) -> None:
    assert typical(dim, FACTS) == size


def test_what_is_asked_of_images_is_asked_at_their_size() -> None:
    assert typical_dims((N, H), FACTS, USUAL_IMAGE) == {N: 8, H: USUAL_IMAGE}
