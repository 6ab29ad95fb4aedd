"""Sums of windows that share nothing: each tap is a plane, read as one stream."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node


def test_images_of_columns_are_put_together_row_by_row() -> None:
    """Five rows of nine taps were 45 streams, more than a prefetcher follows."""
    literals = {"i": np.array([100, 100]), "b": np.array([3, 3])}
    columns = node("Col2Im", "x i b", "y", pads=[1, 1, 1, 1])
    model = make_model([columns], {"x": (np.float32, [1, 9 * 64, 10000])}, ["y"], literals, opset=18)

    assert "alloc(f32[1, 1, 1, 64], scope='register')" in tc.lower(model, "final", target="x86-64-v3").as_text()


def test_windows_that_share_loads_are_tiles_of_rows() -> None:
    pool = node("MaxPool", "x", "y", kernel_shape=[3, 3])
    text = tc.lower(make_model([pool], {"x": (np.float32, [1, 4, 42, 42])}, ["y"]), "final", target="x86-64-v3").as_text()

    assert "alloc(f32[1, 1, 8, 8], scope='register')" in text


GEOMETRIES = [((3, 2), (1, 1), (1, 1), (1, 0, 1, 2)), ((2, 4), (2, 3), (2, 1), (0, 1, 3, 0))]


@pytest.mark.parametrize("block, strides, dilations, pads", GEOMETRIES)
def test_images_of_drawn_sizes_are_those_of_onnxruntime(
    block: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int], pads: tuple[int, ...], rng: np.random.Generator
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    for channels, image in ((1, (9, 8)), (3, (17, 41)), (8, (12, 100))):
        ends = [(pads[d] + pads[2 + d] + image[d] - (block[d] - 1) * dilations[d] - 1) // strides[d] + 1 for d in (0, 1)]
        x = rng.standard_normal((2, channels * block[0] * block[1], ends[0] * ends[1])).astype(np.float32)
        literals = {"i": np.array(image), "b": np.array(block)}
        attributes = {"strides": list(strides), "dilations": list(dilations), "pads": list(pads)}
        model = make_model([node("Col2Im", "x i b", "y", **attributes)], {"x": (np.float32, list(x.shape))}, ["y"], literals, opset=18)

        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

        np.testing.assert_allclose(tc.compile(model)(x), session.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)
