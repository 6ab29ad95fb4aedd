"""Steps that are data: quantized by products where they are usual numbers, by divisions where they are not; every bit as numpy divides."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node

DTYPES = (np.uint8, np.int8, np.uint16, np.int16)
ODD = (1e-30, 1e30, 2.0**-60, 2.0**60, 1e-42, 0.0, -0.5, np.inf, np.nan)
"""Steps between which no quotient is found by products, or just so."""


def quantized(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """What QuantizeLinear is, scale and zero point for each element; NaN is the least number."""
    low, high = np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max
    with np.errstate(all="ignore"):
        value = np.clip(np.round(x / scale) + zero.astype(np.float32), low, high)
    return np.nan_to_num(value, nan=low).astype(zero.dtype)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], scale: np.ndarray) -> np.ndarray:
    """Whole, half and other numbers of steps, just beside them, and what no number of steps is."""
    steps = rng.choice([0.5, 1.0, 0.25, 0.3], shape) * rng.integers(-600, 600, shape)
    with np.errstate(all="ignore"):
        x = (steps * scale).astype(np.float32)
        x = np.where(rng.random(shape) < 0.3, np.nextafter(x, rng.choice(np.array([np.inf, -np.inf], np.float32), shape)), x)
    odd = rng.choice(np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0], np.float32), shape)
    return np.where(rng.random(shape) < 0.05, odd, x).astype(np.float32)


def is_by_products(model: object) -> bool:
    return "bounded_quotient" in tc.lower(model, "final").as_text()


@pytest.mark.covering
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 96), (33, 32), (2, 3, 160), ("b", 64)])
def test_blocks_of_a_row(dtype: type, shape: tuple[int | str, ...], rng: np.random.Generator) -> None:
    blocks = [*shape[:-1], shape[-1] // 32]
    inputs = {"x": (np.float32, list(shape)), "s": (np.float32, blocks), "z": (dtype, blocks)}
    model = make_model([node("QuantizeLinear", "x s z", "y", axis=-1, block_size=32)], inputs, ["y"], opset=21)
    assert is_by_products(model)
    compiled = tc.compile(model, threads=2)

    for rows in (0, 1, 7) if "b" in shape else (0,):
        sizes = tuple(rows if size == "b" else size for size in shape)
        scale = rng.uniform(1e-3, 3, (*sizes[:-1], blocks[-1])).astype(np.float32)
        scale.flat[::3] = rng.choice(ODD, len(scale.flat[::3]))
        info = np.iinfo(dtype)
        zero = rng.integers(info.min, info.max, scale.shape, endpoint=True).astype(dtype)
        each = [np.repeat(array, 32, -1) for array in (scale, zero)]
        x = drawn(rng, sizes, each[0])

        np.testing.assert_array_equal(compiled(x, scale, zero), quantized(x, *each))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 15, 64, 1000])
def test_one_step_of_all(dtype: type, size: int, rng: np.random.Generator) -> None:
    inputs = {"x": (np.float32, [size]), "s": (np.float32, []), "z": (dtype, [])}
    compiled = tc.compile(make_model([node("QuantizeLinear", "x s z", "y")], inputs, ["y"], opset=21), threads=2)

    for scale in (*rng.uniform(1e-3, 3, 4), *ODD):
        scale, zero = np.float32(scale), dtype(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, endpoint=True))
        x = drawn(rng, (size,), scale)

        np.testing.assert_array_equal(compiled(x, np.array(scale), np.array(zero)), quantized(x, scale, np.array(zero)), err_msg=str(scale))


def test_what_is_quantized_as_it_comes(rng: np.random.Generator) -> None:
    compiled = tc.compile(make_model([node("DynamicQuantizeLinear", "x", "y s z")], {"x": (np.float32, ["n", 33])}, ["y", "s", "z"]))

    for x in (rng.standard_normal((40, 33)), np.zeros((2, 33)), np.full((1, 33), 1e-36), np.full((3, 33), 3e38)):
        x = x.astype(np.float32)
        y, scale, zero = compiled(x)

        np.testing.assert_array_equal(y, quantized(x, scale if scale else np.float32(1), zero))
