"""Transforms of all kinds of lengths: short, long, prime, odd, of one element, padded, cut, and of lengths that are data."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import tc
from tests.frontend.models import make_model, node

SIZES = [1, 2, 3, 8, 17, 250, 300, 400, 511, 512, 521, 600, 1021, 1024, 4096]


def compiled(model: onnx.ModelProto) -> Any:
    assert not any(report.status != "native" for report in tc.inspect(model).nodes)
    return tc.compile(model)


def pairs(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1).astype(np.float32)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6 * max(1.0, float(np.abs(expected).max(initial=0))))


@pytest.mark.covering
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("is_complex", [False, True])
def test_signals_of_any_length_are_transformed(size: int, onesided: int, is_complex: bool) -> None:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((2, size, 2 if is_complex else 1)).astype(np.float32)
    model = make_model([node("DFT", "x", "y", axis=1, onesided=onesided)], {"x": (np.float32, ["n", *x.shape[1:]])}, ["y"], opset=17)
    expected = np.fft.fft((x[..., 0] + 1j * (x[..., 1] if is_complex else 0)).astype(complex), axis=1)

    assert_close(compiled(model)(x), pairs(expected[:, : size // 2 + 1] if onesided else expected))


@pytest.mark.parametrize("size", SIZES[1:])
def test_half_spectra_become_real_signals(size: int) -> None:
    x = np.random.default_rng(size).standard_normal((3, size // 2 + 1, 2)).astype(np.float32)
    inputs = {"x": (np.float32, list(x.shape))}
    model = make_model(
        [node("DFT", "x n", "y", axis=1, onesided=1, inverse=1)], inputs, ["y"], {"n": np.array(size)}, opset=17
    )

    assert_close(compiled(model)(x)[..., 0], np.fft.irfft(x[..., 0] + 1j * x[..., 1], size, axis=1).astype(np.float32))


@pytest.mark.covering(2)
@pytest.mark.parametrize("axis", [0, 1, -2, -3])
@pytest.mark.parametrize("length", [None, 4, 9])
@pytest.mark.parametrize("known", [True, False])
def test_axes_are_cut_or_padded_to_the_length(axis: int, length: int | None, known: bool) -> None:
    x = np.random.default_rng(0).standard_normal((5, 6, 7, 2)).astype(np.float32)
    values = {"a": np.array(axis), **({} if length is None else {"n": np.array(length)})}
    inputs: dict[str, Any] = {"x": (np.float32, [5, 6, 7, 2] if known else ["a", "b", "c", 2])}
    if not known:
        inputs |= {name: (np.int64, []) for name in values}
    transform = node("DFT", f"x {'-' if length is None else 'n'} a", "y")
    module = compiled(make_model([transform], inputs, ["y"], values if known else {}, opset=20))
    expected = np.fft.fft(x[..., 0] + 1j * x[..., 1], length, axis % 4)

    assert_close(*module.run({"x": x, **({} if known else values)}).values(), pairs(expected))  # type: ignore[misc]


@pytest.mark.covering(2)
@pytest.mark.parametrize("size, step", [(16, 5), (400, 160), (600, 100)])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("is_complex", [True, False])
def test_frames_are_weighted_and_transformed(size: int, step: int, onesided: int, known: bool, is_complex: bool) -> None:
    rng = np.random.default_rng(0)
    x, window = rng.standard_normal((2, 2000, 2 if is_complex else 1)).astype(np.float32), np.hanning(size).astype(np.float32)
    values = {"s": np.array(step), "w": window}
    inputs: dict[str, Any] = {"x": (np.float32, ["n", "l", x.shape[2]])}
    if not known:
        inputs |= {"s": (np.int64, []), "w": (np.float32, ["k"])}
    module = compiled(make_model([node("STFT", "x s w", "y", onesided=onesided)], inputs, ["y"], values if known else {}))
    count = (2000 - size) // step + 1
    signal = x[..., 0] + 1j * (x[..., 1] if is_complex else 0)
    frames = np.stack([signal[:, f * step : f * step + size] * window for f in range(count)], 1)
    expected = np.fft.fft(frames, axis=2)[:, :, : size // 2 + 1 if onesided else size]

    assert_close(*module.run({"x": x, **({} if known else values)}).values(), pairs(expected))  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size, onesided, is_complex", [(12, 1, False), (9, 1, False), (12, 0, False), (12, 0, True)])
def test_any_number_of_frames_of_any_number_of_signals(dtype: Any, size: int, onesided: int, is_complex: bool) -> None:
    """Rows lie side by side in vectors: where they are none, less than fill one, and one more, and by two threads."""
    rng, pair = np.random.default_rng(1), 2 if is_complex else 1
    window = rng.uniform(0.5, 1, size).astype(dtype)
    model = make_model(
        [node("STFT", "x s w", "y", onesided=onesided)], {"x": (dtype, ["n", "l", pair])}, ["y"], {"s": np.array(3), "w": window}
    )
    modules = [tc.compile(model, threads=threads) for threads in (1, 2)]
    for batch, length in [(0, 30), (1, size), (2, size - 1), (1, size + 3 * 7), (3, size + 3 * 8), (40, size + 3 * 16), (size, size)]:
        x = rng.standard_normal((batch, length, pair)).astype(dtype)
        count = max((length - size) // 3 + 1, 0)
        signal = x[..., 0] + 1j * (x[..., 1] if is_complex else 0)
        frames = signal[:, np.arange(count)[:, None] * 3 + np.arange(size)] * window
        expected = np.fft.fft(frames.astype(complex), axis=2)[:, :, : size // 2 + 1 if onesided else size]
        found = [module(x) for module in modules]

        np.testing.assert_allclose(found[0], np.stack([expected.real, expected.imag], -1), atol=1e-5 if dtype is np.float32 else 1e-13)
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("op", ["DFT", "STFT"])
def test_devices_transform_by_products(op: str) -> None:
    """The kernel whose passes go from buffer to buffer is for CPUs; a device has the products it had."""
    given = {"x": (np.float32, ["n", 48, 1])}
    nodes = [node("DFT", "x", "y", axis=1)] if op == "DFT" else [node("STFT", "x s w", "y")]
    values = {"s": np.array(5), "w": np.hanning(16).astype(np.float32)} if op == "STFT" else {}
    model = make_model(nodes, given, ["y"], values, opset=17)

    device, cpu = (tc.lower(model, target=target).as_text() for target in ("cuda:sm_80", "x86-64-v3"))

    assert "transforms" not in device and "matmul" in device and "transforms" in cpu


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_window_of_a_size_that_a_call_says_is_as_long_as_a_frame(dtype: type) -> None:
    """Was refused, as the size of the window is a symbol and that of a frame a number."""
    values = {"s": np.array(3), "l": np.array(8)}
    module = compiled(make_model([node("STFT", "x s w l", "y")], {"x": (dtype, ["b", "n", 1]), "w": (dtype, ["m"])}, ["y"], values))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 40, 1)).astype(dtype), rng.standard_normal(8).astype(dtype)
    frames = np.stack([x[:, k : k + 8, 0] * w for k in range(0, 33, 3)], 1)

    assert_close(module(x, w), pairs(np.fft.rfft(frames)))
    for size in (0, 1, 7, 9):
        with pytest.raises(tc.errors.InputError, match=f"the size of the window is m, but must be 8 .here m = {size}"):
            module(x, np.ones(size, dtype))
