"""Convolutions of few channels on tile registers: what a row of the kernel reads lies side by side, and is multiplied at once."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from tc.frontend.registry import import_model
from tc.interp import run_function
from tc.ir.graph import Call
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.ops.row_windows import row_channels
from tc.passes.pipeline import PreparedModel, lay_out, lower_model, prepare_model
from tests.codegen import tile_model
from tests.draws import some_of
from tests.golden_files import TARGETS, Literals
from tests.passes.test_tile_layout import values_of
from tests.schedule.test_tile_products import WIDE

BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Draw:
    """A convolution of an image: sizes, and what is around the image."""

    batch: int
    channels: int
    outputs: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, ...]
    fill: int

    @staticmethod
    def of(rng: np.random.Generator) -> Draw:
        def pair(low: int, high: int) -> tuple[int, int]:
            return int(rng.integers(low, high)), int(rng.integers(low, high))

        channels, outputs = int(rng.integers(1, 5)), int(rng.choice([16, 32, 40, 64]))
        kernel, dilations = (int(rng.integers(1, 6)), int(rng.integers(2, 8))), (1, 1) if rng.random() < 0.7 else pair(1, 3)
        pads = tuple(int(pad) for pad in rng.integers(0, 4, 4))
        image = tuple(int(rng.integers(34, 44)) for _ in range(2))
        return Draw(int(rng.integers(1, 3)), channels, outputs, image, kernel, pair(1, 3), dilations, pads, int(rng.integers(0, 256)))

    def sizes(self) -> tuple[int, int]:
        """Of the result."""
        (top, left, bottom, right), reach = self.pads, [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        free = (self.image[0] + top + bottom - reach[0], self.image[1] + left + right - reach[1])
        return free[0] // self.strides[0] + 1, free[1] // self.strides[1] + 1

    def module(self, op: str, x: str, w: str, result: str, literals: Literals) -> IRModule:
        shape = "x".join(map(str, (self.outputs, self.channels, *self.kernel)))
        weights = f"const('random {w} {shape}', {w}[{shape.replace('x', ', ')}])"
        attrs = f"strides={self.strides}, pads={self.pads}, dilations={self.dilations}"
        attrs += f", fill={self.fill}" if op == "conv_integer" else ""
        image = f"{self.batch}, {self.channels}, {self.image[0]}, {self.image[1]}"
        y = f"{result}[{self.batch}, {self.outputs}, {self.sizes()[0]}, {self.sizes()[1]}]"
        text = f"\n@graph\ndef main(x: {x}[{image}]):\n    y: {y} = {op}(x, {weights}, {attrs})\n    z: {y} = relu(y)\n    return z\n"
        return parse_module(text, literals)


def rows_in(module: IRModule) -> int:
    return sum(isinstance(binding.value, Call) and binding.value.op == "row_windows" for binding in module.main.bindings)


def first_with_rows(rng: np.random.Generator, *text: str) -> tuple[Draw, PreparedModel, PreparedModel]:
    """A drawn convolution for which rows pay, before and after layouts are chosen."""
    for draw in (Draw.of(rng) for _ in range(40)):
        prepared = prepare_model(import_model(draw.module(*text, Literals())), WIDE)
        laid = lay_out(prepared)
        if rows_in(laid.graph):
            return draw, prepared, laid
    raise AssertionError("rows never pay")


@pytest.mark.parametrize("seed", some_of(range(12), quick=range(5)))
def test_bytes_are_summed_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    draw, prepared, laid = first_with_rows(rng, "conv_integer", "u8", "i8", "i32")
    x = rng.integers(0, 256, (draw.batch, draw.channels, *draw.image)).astype(np.uint8)
    expected = run_function(prepared.graph, "main", [x])

    for found in (run_function(laid.graph, "main", [x]), values_of(lower_model(laid).lowered, [x])):
        np.testing.assert_array_equal(found[0], expected[0])
    assert any(name.startswith("tdpb") for name in tile_model.used)


@pytest.mark.parametrize("seed", some_of(range(100, 108), quick=range(100, 103)))
def test_bf16_is_summed_on_tiles_and_what_the_kernel_does_not_read_is_not_seen(seed: int) -> None:
    rng = np.random.default_rng(seed)
    draw, prepared, laid = first_with_rows(rng, "conv", "bf16", "bf16", "bf16")
    x = rng.standard_normal((draw.batch, draw.channels, *draw.image)).astype(BF16)
    x[0, 0, 20, 20] = np.nan
    (expected,) = run_function(prepared.graph, "main", [x])

    (found,) = values_of(lower_model(laid).lowered, [x])

    assert "tdpbf16ps" in tile_model.used
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=2.0**-7, atol=2.0**-7 * np.nanmax(expected))


def test_without_tiles_and_where_sizes_are_not_known_nothing_changes() -> None:
    draw = Draw.of(np.random.default_rng(0))
    module = draw.module("conv_integer", "u8", "i8", "i32", Literals())
    symbolic = """
@graph
def main(x: u8[1, 3, h, w]):
    y: i32[1, 32, h, w] = conv_integer(x, const('random i8 32x3x3x3', i8[32, 3, 3, 3]), pads=(1, 1, 1, 1), fill=3)
    return y
"""

    assert rows_in(lay_out(prepare_model(import_model(module), TARGETS["x86-64-v4"])).graph) == 0
    assert rows_in(lay_out(prepare_model(import_model(parse_module(symbolic, Literals())), WIDE)).graph) == 0


@pytest.mark.parametrize(("taps", "size", "channels"), [(3, 1, 16), (7, 1, 32), (7, 2, 32), (16, 1, 64), (17, 1, 128), (11, 2, 64)])
def test_a_row_is_a_power_of_two_or_whole_tiles(taps: int, size: int, channels: int) -> None:
    assert row_channels(taps, 4, 64 // size) == channels
