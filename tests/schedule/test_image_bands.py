"""Plain convolutions of images that are larger than the second-level cache: padded in bands of rows, whatever their number is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tc
from tests.frontend.models import run_onnxruntime


def convolution(channels: int, outputs: int, height: int | str, width: int | str, window: str = "pads = [1, 1, 1, 1]") -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, {channels}, {height}, {width}] x) => (float[n, a, b, c] y) {{
        z = Conv<{window}>(x, w)  y = Relu(z)
    }}"""
    model = parse_model(text)
    weights = np.random.default_rng(0).standard_normal((outputs, channels, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def check(model: onnx.ModelProto, shapes: list[tuple[int, ...]], threads: int = 2) -> None:
    module = tc.compile(model, threads=threads)
    rng = np.random.default_rng(1)
    for shape in shapes:
        x = rng.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(module(x), run_onnxruntime(model, {"x": x})[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("channels", "outputs", "height", "width", "is_in_bands"),
    [
        (128, 3, 113, 96, True),
        (64, 3, 256, 200, True),
        (8, 3, 64, 64, False),
        (128, 3, "h", "w", True),
        (64, 5, "h", 128, True),
        (64, 5, 128, "w", True),
    ],
)
def test_large_images_are_padded_in_bands(channels: int, outputs: int, height: int | str, width: int | str, is_in_bands: bool) -> None:
    lowered = tc.lower(convolution(channels, outputs, height, width), target="x86-64-v4", stage="final").as_text()

    assert ("conv_pad[thread_index()" in lowered) == is_in_bands


WINDOWS = ["pads = [1, 1, 1, 1]", "pads = [0, 2, 1, 1], strides = [2, 1]", "pads = [2, 1, 2, 3], dilations = [2, 1]"]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("height", "width"), [(113, 61), (97, 128), (64, 64)])
def test_known_heights(height: int, width: int, window: str) -> None:
    check(convolution(128, 3, height, width, window), [(1, 128, height, width), (2, 128, height, width)])


@pytest.mark.parametrize("window", ["pads = [1, 1, 1, 1]", "pads = [1, 0, 1, 2], strides = [1, 2]"])
@pytest.mark.parametrize("threads", [1, 2])
def test_heights_that_the_run_tells(threads: int, window: str) -> None:
    model = convolution(200, 3, "h", "w", window)

    check(model, [(1, 200, h, w) for h in (2, 15, 16, 27, 28, 33, 47) for w in (3, 27, 32, 57)], threads)


@pytest.mark.parametrize(("height", "width"), [(47, "w"), ("h", 47)])
def test_one_size_that_the_run_tells(height: int | str, width: int | str) -> None:
    sizes = (1, 9, 16, 17, 31, 48, 53)
    shapes = [(1, 120, height, size) if isinstance(height, int) else (1, 120, size, 47) for size in sizes]

    check(convolution(120, 6, height, width), shapes)
