"""Boxes that overlap better ones: what onnxruntime keeps, on drawn boxes and at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node, run_onnxruntime

F32 = np.float32


def drawn(rng: np.random.Generator, batches: int, classes: int, size: int, *, center: bool) -> dict[str, np.ndarray]:
    """Boxes many of which overlap, some empty or with corners the wrong way round, and scores many of which are equal."""
    boxes = rng.integers(0, 24, (batches, size, 4)).astype(F32)
    if center:
        boxes[..., 2:] = rng.integers(0, 9, (batches, size, 2))
    return {"b": boxes, "s": (rng.integers(0, 8, (batches, classes, size)) / 8).astype(F32)}


def check(feeds: dict[str, np.ndarray], shapes: dict[str, list[Any]], constants: dict[str, np.ndarray], **attrs: int) -> np.ndarray:
    inputs = {name: (array.dtype, shapes.get(name, list(array.shape))) for name, array in feeds.items()}
    model = make_model([node("NonMaxSuppression", "b s m i t", "y", **attrs)], inputs, ["y"], constants, 11)
    module = tc.compile(model, threads=2, on_unsupported="error")
    found = np.asarray(module.run(feeds)["y"])

    np.testing.assert_array_equal(found, run_onnxruntime(model, feeds)[0])
    return found


@pytest.mark.covering
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 40), (2, 3, 17), (1, 2, 1), (3, 1, 200)], ids=str)
def test_the_same_boxes_are_kept(sizes: tuple[int, int, int], symbolic: bool, center: bool) -> None:
    shapes: dict[str, list[Any]] = {"b": ["n", "k", 4], "s": ["n", "c", "k"]} if symbolic else {}
    kept = 0
    for seed, (most, overlap, least) in enumerate(((1000, 0.5, 0.1), (3, 0.2, 0.5), (0, 0.5, 0.1), (7, 1.0, -1.0), (50, 0.0, 0.3))):
        constants = {"m": np.array([most]), "i": np.array([overlap], F32), "t": np.array([least], F32)}
        feeds = drawn(np.random.default_rng(seed), *sizes, center=center)
        kept += len(check(feeds, shapes, constants, center_point_box=int(center)))
    assert kept


def test_thresholds_and_the_number_may_be_known_at_run_time() -> None:
    feeds = drawn(np.random.default_rng(5), 2, 2, 30, center=False)
    feeds |= {"m": np.array([4]), "i": np.array([0.3], F32), "t": np.array([0.2], F32)}

    assert len(check(feeds, {}, {})) == 16


@pytest.mark.parametrize("sizes", [(0, 2, 5), (1, 0, 5), (1, 2, 0)], ids=str)
def test_of_nothing_nothing_is_kept(sizes: tuple[int, int, int]) -> None:
    constants = {"m": np.array([3]), "i": np.array([0.5], F32), "t": np.array([0.0], F32)}
    shapes: dict[str, list[Any]] = {"b": ["n", "k", 4], "s": ["n", "c", "k"]}
    inputs = {"b": (F32, shapes["b"]), "s": (F32, shapes["s"])}
    module = tc.compile(make_model([node("NonMaxSuppression", "b s m i t", "y")], inputs, ["y"], constants, 11))
    feeds = drawn(np.random.default_rng(0), *sizes, center=False)

    assert module.run(feeds)["y"].shape == (0, 3)


def test_scores_that_are_no_numbers_are_not_above_the_least() -> None:
    feeds = drawn(np.random.default_rng(1), 1, 1, 12, center=False)
    feeds["s"][0, 0, ::3] = np.nan
    constants = {"m": np.array([12]), "i": np.array([0.5], F32), "t": np.array([0.0], F32)}
    inputs = {name: (F32, list(array.shape)) for name, array in feeds.items()}
    module = tc.compile(make_model([node("NonMaxSuppression", "b s m i t", "y")], inputs, ["y"], constants, 11))

    assert not set(module.run(feeds)["y"][:, 2]) & set(range(0, 12, 3))
