"""Loads along symbolic dims that are reduced together."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import tc

MODEL = """<ir_version: 9, opset_import: ["" : 18]>
g (float[1, 3, h, w] x) => (float[1, 3, 1, 1] y) { y = GlobalAveragePool(x) }"""


def test_rows_of_symbolic_images_are_read_as_vectors() -> None:
    """The last vectors of a row were gathered, with a division for every lane: that w is not 0 was not known there."""
    text = tc.lower(parser.parse_model(MODEL), "llvm").as_text()

    assert "masked.load" in text
    assert "gather" not in text and " sdiv i64" not in text


@pytest.mark.parametrize("size", [(0, 4), (4, 0), (1, 1), (1, 65), (7, 9), (513, 1), (40, 130)])
def test_means_of_symbolic_images(size: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, *size)).astype(np.float32)

    y = tc.compile(parser.parse_model(MODEL))(x)

    expected = x.astype(np.float64).sum((2, 3), keepdims=True) / np.float64(max(size[0] * size[1], 1))
    if x.size:
        np.testing.assert_allclose(y, expected, atol=1e-6)
    else:
        assert y.shape == (1, 3, 1, 1)
