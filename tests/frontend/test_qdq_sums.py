"""Sums of dequantized numbers are rounded term by term: where scales are multiples of each other, ties are common."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tc
from tests.codegen.c.kernels import needs_compiler
from tests.draws import some_of
from tests.frontend.models import make_model, node

BOUNDS = {np.uint8: (0, 255), np.int8: (-128, 127)}
RATIOS = (1, 2, 3, 4, 0.5, 1.5, 0.75)


def quantize(x: np.ndarray, scale: np.float32, zero: int, dtype: type) -> np.ndarray:
    return np.clip(np.rint(x / scale) + np.float32(zero), *BOUNDS[dtype]).astype(dtype)


def dequantize(x: np.ndarray, scale: np.float32, zero: int) -> np.ndarray:
    return (x.astype(np.int32) - zero).astype(np.float32) * scale


def draw(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """A product of whole numbers, quantized, and residuals added to it one by one; in numpy, every operation on f32 rounds."""
    rng = np.random.default_rng(seed)
    dtype = (np.uint8, np.int8)[seed % 2]
    unit = np.float32(rng.uniform(0.01, 0.1))
    rows, depth, columns = (int(rng.choice([1, 3, 16, 17, 40, 64])) for _ in range(3))
    nodes, constants = [], {}

    def pair(value: np.ndarray, name: str, source: str) -> np.ndarray:
        scale, zero = unit * np.float32(rng.choice(RATIOS)), int(rng.integers(*BOUNDS[dtype]) // 4)
        constants.update({f"{name}s": scale, f"{name}z": dtype(zero)})
        nodes.append(node("QuantizeLinear", f"{source} {name}s {name}z", f"{name}q"))
        nodes.append(node("DequantizeLinear", f"{name}q {name}s {name}z", name))
        return dequantize(quantize(value, scale, zero, dtype), scale, zero)

    constants["w"] = rng.integers(-2, 3, (depth, columns)).astype(np.float32)
    arrays = {"x": rng.integers(-8, 9, (rows, depth)).astype(np.float32)}
    nodes.append(node("MatMul", "x w", "product"))
    last, total = "a", pair(arrays["x"] @ constants["w"], "a", "product")
    for number in range(int(rng.integers(1, 4))):
        name = f"r{number}"
        arrays[name] = (rng.normal(size=(rows, columns)) * 40 * unit).astype(np.float32)
        other = pair(arrays[name], f"{name}d", name)
        nodes.append(node("Add", f"{last} {name}d" if rng.random() < 0.5 else f"{name}d {last}", f"{name}y"))
        last, total = f"{name}y", total + other
        if rng.random() < 0.4:
            nodes.append(node("Relu", last, f"{name}p"))
            last, total = f"{name}p", np.maximum(total, np.float32(0))
    expected = pair(total, "y", last)
    dims = {name: (np.float32, ["n", value.shape[1]]) for name, value in arrays.items()}
    return make_model(nodes, dims, ["y"], constants), arrays, expected


@pytest.mark.parametrize(
    "seed, target",
    [
        *some_of(((seed, "cpu") for seed in range(12)), quick=[(seed, "cpu") for seed in range(6)]),
        pytest.param(1, "c", marks=needs_compiler),
        pytest.param(4, "c", marks=[needs_compiler, pytest.mark.slow]),
    ],
)
def test_residuals_have_the_bits_of_arithmetic_that_rounds_each_term(seed: int, target: str) -> None:
    model, arrays, expected = draw(seed)

    (found,) = tc.compile(model, target=target).run(arrays).values()

    np.testing.assert_array_equal(found, expected)


def test_drawn_scales_have_ties_that_a_fused_product_decides_otherwise() -> None:
    """What would make the test above empty."""
    a, b = np.meshgrid(np.arange(256), np.arange(256))
    unit = np.float32(0.05)
    rounded = dequantize(a, unit, 3) + dequantize(b, unit / 2, 4)
    fused = ((a - 3) * np.float64(unit) + dequantize(b, unit / 2, 4)).astype(np.float32)

    different = quantize(rounded, unit, 3, np.uint8) != quantize(fused, unit, 3, np.uint8)

    assert different.mean() > 0.005


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("columns", [1, 7, 16])
def test_a_product_by_what_was_requantized_on_the_way(columns: int, target: str) -> None:
    """The right side is no tensor of the program: rows that are reshaped and pass a table of bytes."""
    rng = np.random.default_rng(columns)
    w, x = rng.integers(0, 256, (16, 3)).astype(np.uint8), rng.integers(0, 256, (1, 3, 1, columns)).astype(np.uint8)
    literals = {
        "s": np.float32(0.125), "z": np.uint8(128), "s2": np.float32(0.25), "z0": np.uint8(0), "w": w, "ws": np.full(16, 0.01, np.float32),
        "s3": np.float32(0.05), "z3": np.uint8(127), "shape": np.array([3, columns]),
    }  # fmt: skip
    nodes = [
        node("DequantizeLinear", "x s z", "d"), node("Reshape", "d shape", "rows"), node("Relu", "rows", "up"),
        node("QuantizeLinear", "up s2 z0", "q"), node("DequantizeLinear", "q s2 z0", "right"),
        node("DequantizeLinear", "w ws", "left", axis=0),
        node("MatMul", "left right", "made"), node("QuantizeLinear", "made s3 z3", "y"),
    ]  # fmt: skip
    model = make_model(nodes, {"x": (np.uint8, [1, 3, 1, columns])}, ["y"], literals, opset=21)

    found = tc.compile(model, target, threads=2)(x)

    up = np.maximum(dequantize(x.reshape(3, columns), np.float32(0.125), 128), 0)
    right = dequantize(quantize(up, np.float32(0.25), 0, np.uint8), np.float32(0.25), 0)
    exact = w.astype(np.float64) * 0.01 @ right.astype(np.float64)
    assert np.abs(found.astype(int) - np.clip(np.rint(exact / 0.05) + 127, 0, 255)).max() <= 1
