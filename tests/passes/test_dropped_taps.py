"""Taps of dilated convolutions that only ever lie over padding are left out; results are those of all taps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tc
from tc.frontend.onnx import load_model
from tc.ir.graph import constants_of
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY
from tests.frontend.models import make_model, node


def convolved(x: np.ndarray, w: np.ndarray, dilation: tuple[int, int], pads: tuple[int, int, int, int], stride: int) -> np.ndarray:
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    reach = [(k - 1) * d for k, d in zip(w.shape[2:], dilation, strict=True)]
    height, width = ((n - r - 1) // stride + 1 for n, r in zip(wide.shape[2:], reach, strict=True))
    found = np.zeros((x.shape[0], w.shape[0], height, width))
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            part = wide[:, :, i * dilation[0] :, j * dilation[1] :][:, :, : stride * height : stride, : stride * width : stride]
            found += np.einsum("nchw,oc->nohw", part, w[:, :, i, j].astype(np.float64))
    return found


def model_of(shape: list[Any], w: np.ndarray, dilation: tuple[int, int], pads: tuple[int, int, int, int], stride: int) -> Any:
    conv = node("Conv", "x w", "y", dilations=list(dilation), pads=list(pads), strides=[stride] * 2)
    return make_model([conv], {"x": (np.float32, shape)}, ["y"], {"w": w})


def taps_of(model: Any) -> tuple[int, ...]:
    simplified = run_pipeline(load_model(model).module, SIMPLIFY)
    (weights,) = [c.value for c in constants_of(simplified.main) if c.value.ndim == 4]
    return tuple(weights.shape[2:])


@pytest.mark.parametrize(
    ("dilation", "pads", "taps"),
    [
        ((24, 24), (24, 24, 24, 24), (1, 1)),  # the wide branches of DeepLab on small images
        ((20, 9), (20, 9, 20, 9), (1, 1)),
        ((20, 8), (20, 8, 20, 8), (1, 3)),
        ((21, 3), (21, 3, 21, 3), (1, 3)),
        ((19, 19), (19, 0, 19, 40), (3, 2)),
        ((2, 2), (2, 2, 2, 2), (3, 3)),
        ((10, 4), (30, 4, 0, 4), (2, 3)),  # the last row reads the image's first row at most
    ],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_taps(
    dilation: tuple[int, int], pads: tuple[int, int, int, int], taps: tuple[int, int], stride: int, rng: np.random.Generator
) -> None:
    x, w = rng.standard_normal((2, 4, 20, 9)).astype(np.float32), rng.standard_normal((5, 4, 3, 3)).astype(np.float32)
    if any(n + pads[d] + pads[2 + d] < 2 * dilation[d] + 1 for d, n in enumerate(x.shape[2:])):
        pytest.skip("no window fits")
    model = model_of(["n", *x.shape[1:]], w, dilation, pads, stride)

    if stride == 1 and pads[:2] == pads[2:]:
        assert taps_of(model) == taps
    expected = convolved(x, w, dilation, pads, stride)
    for numerics in ("default", "strict"):
        np.testing.assert_allclose(tc.compile(model, numerics=numerics)(x), expected, atol=1e-4)


def test_sizes_that_only_the_run_tells_keep_all_taps(rng: np.random.Generator) -> None:
    w = rng.standard_normal((3, 2, 3, 3)).astype(np.float32)
    model = model_of([1, 2, "h", "w"], w, (6, 6), (6, 6, 6, 6), 1)

    assert taps_of(model) == (3, 3)
    module = tc.compile(model)
    for size in (1, 5, 6, 7, 13):
        x = rng.standard_normal((1, 2, size, size + 1)).astype(np.float32)
        np.testing.assert_allclose(module(x), convolved(x, w, (6, 6), (6, 6, 6, 6), 1), atol=1e-4)


def test_weights_that_make_nan_of_padding_stay() -> None:
    w, x = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 4, 4), np.float32)
    w[0, 0, 0, 0] = np.inf

    assert taps_of(model_of([1, 1, 4, 4], w, (9, 9), (9, 9, 9, 9), 1)) == (3, 3)
    assert np.isnan(tc.compile(model_of([1, 1, 4, 4], w, (9, 9), (9, 9, 9, 9), 1), numerics="strict")(x)).all()
