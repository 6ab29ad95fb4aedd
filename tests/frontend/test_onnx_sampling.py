"""Images sampled at places that are data: beside ONNX Runtime, at the ends of axes, outside, and where coordinates are no numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node, run_onnxruntime

SAMPLING = list(itertools.product(("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)))


@pytest.mark.covering
@pytest.mark.parametrize("mode, padding, align", SAMPLING)
def test_grids_of_any_size_compute_what_onnxruntime_does(mode: str, padding: str, align: int) -> None:
    model = make_model(
        [node("GridSample", "x grid", "y", mode=mode, padding_mode=padding, align_corners=align)],
        {"x": (np.float32, ["n", "c", "h", "w"]), "grid": (np.float32, ["n", "p", "q", 2])},
        ["y"],
        opset=20,
    )
    module = tc.compile(model)
    assert not any(report.status != "native" for report in tc.inspect(model).nodes)
    rng = np.random.default_rng(0)
    for n, c, h, w, p, q in [(1, 1, 1, 1, 3, 9), (2, 3, 5, 4, 7, 17), (1, 2, 1, 6, 1, 40), (1, 3, 4, 4, 0, 5)]:
        x = rng.standard_normal((n, c, h, w)).astype(np.float32)
        grid = rng.uniform(-1.7, 1.7, (n, p, q, 2)).astype(np.float32)
        (expected,) = run_onnxruntime(model, {"x": x, "grid": grid})

        np.testing.assert_allclose(module(x, grid), expected, rtol=1e-4, atol=2e-5)


def test_points_outside_are_zero_whatever_the_image_holds() -> None:
    model = make_model(
        [node("GridSample", "x grid", "y", mode="nearest")],
        {"x": (np.float32, [1, 1, 2, 2]), "grid": (np.float32, [1, 1, 4, 2])},
        ["y"],
        opset=20,
    )
    x = np.array([[[[np.inf, np.nan], [-np.inf, 1.0]]]], np.float32)
    grid = np.array([[[[9.0, 0.0], [np.nan, 0.5], [np.inf, -np.inf], [0.5, 0.5]]]], np.float32)

    np.testing.assert_array_equal(tc.compile(model)(x, grid), [[[[0.0, 0.0, 0.0, 1.0]]]])


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_coordinates_beyond_all_numbers_touch_nothing_outside(padding: str) -> None:
    model = make_model(
        [node("GridSample", "x grid", "y", mode="nearest", padding_mode=padding)],
        {"x": (np.float32, [1, 1, 3, "w"]), "grid": (np.float32, [1, 1, "q", 2])},
        ["y"],
        opset=20,
    )
    module = tc.compile(model)
    x = np.arange(1, 16, dtype=np.float32).reshape(1, 1, 3, 5)
    ends = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e10, -1e10], np.float32)
    grid = np.stack(np.meshgrid(ends, ends), -1).reshape(1, 1, -1, 2)

    assert np.isin(module(x, grid), x).all()


def test_an_image_without_elements_is_refused() -> None:
    model = make_model(
        [node("GridSample", "x grid", "y")],
        {"x": (np.float32, [1, 1, "h", 3]), "grid": (np.float32, [1, 2, 2, 2])},
        ["y"],
        opset=20,
    )
    module = tc.compile(model)

    with pytest.raises(tc.errors.TcError, match="nothing can be sampled"):
        module(np.zeros((1, 1, 0, 3), np.float32), np.zeros((1, 2, 2, 2), np.float32))
