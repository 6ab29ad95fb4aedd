"""Attention of few queries to keys that lie side by side, [depth, keys]: sums of vectors of keys, where a score was a gathered product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    scores = q.astype(np.float64) @ k.astype(np.float64) / 8 + (0 if mask is None else mask.astype(np.float64))
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v.astype(np.float64)


def model_of(q: list[Any], k: list[Any], v: list[Any], mask: list[Any] | None, dtype: type = np.float32) -> Any:
    nodes = [node("MatMul", "q k", "s"), node("Mul", "s scale", "m")]
    types = {"q": (dtype, q), "k": (dtype, k), "v": (dtype, v)}
    if mask is not None:
        nodes.append(node("Add", "m mask", "a"))
        types["mask"] = (dtype, mask)
    nodes += [node("Softmax", "m" if mask is None else "a", "p", axis=-1), node("MatMul", "p v", "y")]
    return make_model(nodes, types, ["y"], {"scale": np.array(1 / 8, dtype)})


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("keys", [1, 15, 128, 129, 300])
@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
def test_any_number_of_keys(queries: int, keys: int, is_symbolic: bool, has_mask: bool, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, queries, 40), (2, 3, 40, keys), (2, 3, keys, 33)))
    mask = np.where(rng.random((2, 1, queries, keys)) < 0.8, 0, -1e4).astype(np.float32) if has_mask else None
    n, s, t = ("n", "s", "t") if is_symbolic else (2, queries, keys)
    shapes = [n, 3, s, 40], [n, 3, 40, t], [n, 3, t, 33], [n, 1, s, t] if has_mask else None
    arrays = [q, k, v] + ([] if mask is None else [mask])

    found = tc.compile(model_of(*shapes), threads=2)(*arrays)

    np.testing.assert_allclose(found, attend(q, k, v, mask), atol=2e-5)


def test_no_key_is_gathered() -> None:
    model = model_of([1, 4, 1, 64], [1, 4, 64, 256], [1, 4, 256, 64], None)

    text = tc.lower(model, "scheduled", target="x86-64-v3").as_text()

    (scores,) = [line for line in text.splitlines() if " scores[" in line and "k[" in line]
    assert "scores_rf" not in text and "q[" in scores
