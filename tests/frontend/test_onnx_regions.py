"""Regions of images: beside ONNX Runtime, outside of the image, empty, turned around, and where borders are no numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node, run_onnxruntime


def regions(rng: np.random.Generator, count: int, size: float) -> np.ndarray:
    corners = rng.uniform(-0.3 * size, 1.1 * size, (count, 2))
    return np.concatenate([corners, corners + rng.uniform(0, 0.9 * size, (count, 2))], 1).astype(np.float32)


def native(model: object) -> object:
    assert not any(report.status != "native" for report in tc.inspect(model).nodes)
    return tc.compile(model)


SHAPES = [(1, 1, 1, 1, 1), (2, 3, 9, 7, 6), (1, 17, 16, 5, 3), (1, 2, 4, 4, 0)]


@pytest.mark.covering(2)
@pytest.mark.parametrize("mode, ratio, moved", list(itertools.product(("avg", "max"), (0, 1, 3), ("half_pixel", "output_half_pixel"))))
def test_aligned_regions_are_what_onnxruntime_makes_of_them(mode: str, ratio: int, moved: str) -> None:
    attributes = {"mode": mode, "sampling_ratio": ratio, "coordinate_transformation_mode": moved}
    model = make_model(
        [node("RoiAlign", "x r b", "y", output_height=3, output_width=2, spatial_scale=0.5, **attributes)],
        {"x": (np.float32, ["n", "c", "h", "w"]), "r": (np.float32, ["k", 4]), "b": (np.int64, ["k"])},
        ["y"],
        opset=16,
    )
    module, rng = native(model), np.random.default_rng(ratio)
    for n, c, h, w, k in SHAPES:
        feed = {
            "x": rng.standard_normal((n, c, h, w)).astype(np.float32),
            "r": regions(rng, k, 2.0 * max(h, w)),
            "b": rng.integers(0, n, k),
        }
        (expected,) = run_onnxruntime(model, feed)

        np.testing.assert_allclose(*module.run(feed).values(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_pooled_regions_are_what_onnxruntime_makes_of_them(scale: float) -> None:
    model = make_model(
        [node("MaxRoiPool", "x r", "y", pooled_shape=[3, 2], spatial_scale=scale)],
        {"x": (np.float32, ["n", "c", "h", "w"]), "r": (np.float32, ["k", 5])},
        ["y"],
    )
    module, rng = native(model), np.random.default_rng(0)
    for n, c, h, w, k in SHAPES[:-1]:
        numbers = rng.integers(0, n, (k, 1)).astype(np.float32)
        feed = {
            "x": rng.standard_normal((n, c, h, w)).astype(np.float32),
            "r": np.concatenate([numbers, regions(rng, k, max(h, w) / scale)], 1),
        }
        (expected,) = run_onnxruntime(model, feed)

        np.testing.assert_array_equal(*module.run(feed).values(), expected)


@pytest.mark.parametrize("mode, ratio", list(itertools.product(("avg", "max"), (0, 2))))
def test_borders_that_are_no_numbers_or_far_away_end_and_touch_nothing_outside(mode: str, ratio: int) -> None:
    model = make_model(
        [node("RoiAlign", "x r b", "y", output_height=2, output_width=2, mode=mode, sampling_ratio=ratio)],
        {"x": (np.float32, [1, 1, 3, 5]), "r": (np.float32, ["k", 4]), "b": (np.int64, ["k"])},
        ["y"],
        opset=16,
    )
    ends = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e10, -1e10, 2.0], np.float32)
    rows = np.stack(np.meshgrid(ends, ends, ends, ends), -1).reshape(-1, 4)
    x = np.ones((1, 1, 3, 5), np.float32)

    found = native(model)(x, rows, np.zeros(len(rows), np.int64))

    assert ((found >= 0) & (found <= 1 + 1e-6)).all()


def test_a_large_region_has_the_mean_of_the_points_that_are_inside() -> None:
    model = make_model(
        [node("RoiAlign", "x r b", "y")],
        {"x": (np.float32, [1, 1, 4, 4]), "r": (np.float32, [1, 4]), "b": (np.int64, [1])},
        ["y"],
        opset=16,
    )
    found = native(model)(np.ones((1, 1, 4, 4), np.float32), np.array([[-48, -48, 52, 52]], np.float32), np.zeros(1, np.int64))

    np.testing.assert_allclose(found, (6 / 100) ** 2, rtol=1e-5)  # of 100 points along an axis those from -1 to 4 count


def test_a_region_of_an_image_that_is_not_there_is_refused() -> None:
    model = make_model(
        [node("RoiAlign", "x r b", "y")],
        {"x": (np.float32, ["n", 1, 4, 4]), "r": (np.float32, [1, 4]), "b": (np.int64, [1])},
        ["y"],
        opset=16,
    )
    for number in (-1, 2, 1 << 40):
        with pytest.raises(tc.errors.TcError, match="batch index"):
            native(model)(np.ones((2, 1, 4, 4), np.float32), np.zeros((1, 4), np.float32), np.array([number]))
