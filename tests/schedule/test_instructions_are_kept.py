"""What schedules give to an instruction is its own when code is emitted: else it runs in loops, a hundred times as long, unnoticed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from tc.compiler import run_stages
from tc.ir.intrinsic import INTRINSICS
from tc.ir.loop import For, IntrinsicCall
from tc.ir.node import walk
from tc.passes.loop.intrinsics import select_intrinsics
from tc.target import Target
from tests.frontend.models import make_model, node
from tests.frontend.test_onnx_weights import PRODUCTS
from tests.golden_files import TARGETS

CHANNELS = [1, 3, 8, 16, 17, 24, 32, 33, 40, 64, 96, 100, 128, 144, 256]
SIDES = [1, 3, 7, 10, 14, 20, 28, 33, 56, 80, 112]


def quantized(op: onnx.NodeProto, x: dict[str, tuple[type, list[object]]], weights: np.ndarray, axis: int) -> onnx.ModelProto:
    """`op` of quantized x and literal weights, its result quantized."""
    literals = {
        "xs": np.float32(0.02), "xz": np.uint8(120), "ys": np.float32(0.05), "yz": np.uint8(128), "w": weights,
        "ws": np.linspace(0.001, 0.01, weights.shape[axis]).astype(np.float32), "wz": np.zeros(weights.shape[axis], np.int8),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x xs xz", "xq"),
        node("DequantizeLinear", "xq xs xz", "xd"),
        node("DequantizeLinear", "w ws wz", "wd", axis=axis),
        op,
        node("QuantizeLinear", "c ys yz", "yq"),
        node("DequantizeLinear", "yq ys yz", "y"),
    ]
    return make_model(nodes, x, ["y"], literals)


def convolution(rng: np.random.Generator) -> onnx.ModelProto:
    c, o = (int(size) for size in rng.choice(CHANNELS, 2))
    kernel, stride = int(rng.choice([1, 1, 2, 3, 5])), int(rng.choice([1, 1, 2]))
    h, w = (max(kernel, int(size)) for size in rng.choice(SIDES, 2))
    batch = "n" if rng.random() < 0.3 else int(rng.integers(1, 4))
    return convolution_of([batch, c, h, w], o, kernel, stride, int(rng.integers(0, kernel)))


def convolution_of(shape: list[object], channels: int, kernel: int = 1, stride: int = 1, pad: int = 0) -> onnx.ModelProto:
    weights = np.arange(channels * shape[1] * kernel**2).reshape(channels, shape[1], kernel, kernel) % 255 - 127  # type: ignore[operator]
    op = node("Conv", "xd wd", "c", kernel_shape=[kernel, kernel], pads=[pad] * 4, strides=[stride, stride])
    return quantized(op, {"x": (np.float32, shape)}, weights.astype(np.int8), axis=0)


def product(rng: np.random.Generator) -> onnx.ModelProto:
    k, n = (int(size) for size in rng.choice([16, 24, 48, 64, 100, 120, 128, 250, 384], 2))
    rows = [f"s{d}" if rng.random() < 0.4 else int(rng.choice([1, 2, 5, 16, 17, 31, 40, 100])) for d in range(int(rng.integers(1, 4)))]
    weights = rng.integers(-127, 128, (k, n)).astype(np.int8)
    return quantized(node("MatMul", "xd wd", "c"), {"x": (np.float32, [*rows, k])}, weights, axis=1)


def check_all_are_kept(model: onnx.ModelProto, target: Target) -> set[str]:
    """The instructions that there are."""
    found: set[str] = set()
    for kernel in run_stages(model, target).kernels.values():
        given = [loop.hints.intrinsic for loop in walk(kernel.final) if isinstance(loop, For) and loop.hints.intrinsic in INTRINSICS]
        emitted = [call.name for call in walk(select_intrinsics(kernel.final, target.features)) if isinstance(call, IntrinsicCall)]
        assert sorted(given) == sorted(name for name in emitted if name in given), kernel.final.name
        found.update(given)
    return found


@pytest.mark.covering
@pytest.mark.parametrize("make", [convolution, product])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["amx", "x86-64-v4"])
def test_loops_that_were_given_to_instructions_become_these(name: str, seed: int, make: Callable[..., onnx.ModelProto]) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(3):
        check_all_are_kept(make(rng), TARGETS[name])


@pytest.mark.parametrize("width", [16, 48, 80, 112])
def test_rows_that_are_whole_tiles_run_on(width: int) -> None:
    used = check_all_are_kept(convolution_of([1, 32, 16, width], 16), TARGETS["amx"])

    assert any(name.startswith("tile_dot") for name in used)


@pytest.mark.covering
@pytest.mark.parametrize("number", range(len(PRODUCTS)))
@pytest.mark.parametrize("accuracy", [0, 4])
def test_products_of_blocks_of_few_bits(number: int, accuracy: int) -> None:
    product = dataclasses.replace(PRODUCTS[number], level=accuracy)

    check_all_are_kept(product.model(), TARGETS["amx"])
