"""Images of any size between channels that are blocks and channels that are not: exchanged along the whole image, whatever its rows are."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tc
from tests.frontend.models import run_onnxruntime


def convolution(rank: int, taps: int, channels: int, outputs: int) -> onnx.ModelProto:
    space = ", ".join(f"s{d}" for d in range(rank))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, {channels}, {space}] x) => (float[a, b, {", ".join("cde"[:rank])}] y) {{
        y = Conv(x, w)
    }}"""
    model = parse_model(text)
    weights = np.random.default_rng(0).standard_normal((outputs, channels, *[taps] * rank)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


@pytest.mark.parametrize(("rank", "taps"), [(2, 2), (2, 5), (3, 2)])
def test_no_place_is_divided_by_a_row(rank: int, taps: int) -> None:
    # Rows of 3 elements took a vector each; places along the image were divided by the length of a row, of h - 1 too.
    lowered = tc.lower(convolution(rank, taps, 128, 128), target="x86-64-v4", stage="llvm").files()

    kernels = [text for name, text in lowered.items() if "block" in name]
    assert len(kernels) == 3, list(lowered)
    assert not any(re.search(r"(sdiv|srem) <", text) or "srem" in text for text in kernels)


@pytest.mark.covering
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rank", "taps"), [(2, 1), (2, 3), (3, 2)])
def test_images_of_any_rows(rank: int, taps: int, threads: int) -> None:
    model = convolution(rank, taps, 17, 40)
    module = tc.compile(model, threads=threads)
    rng = np.random.default_rng(taps)

    for _ in range(12):
        sizes = [int(rng.choice([taps, taps + 1, 5, 8, 17, 33])) for _ in range(rank)]
        x = rng.standard_normal((int(rng.choice([0, 1, 3])), 17, *sizes)).astype(np.float32)
        expected = run_onnxruntime(model, {"x": x})[0] if x.size else np.zeros((0, 40, *[s - taps + 1 for s in sizes]), np.float32)
        found = module(x)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
