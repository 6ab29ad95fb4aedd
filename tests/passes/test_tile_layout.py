"""Blocks of channels for tile registers: as wide as a row of a tile where channels fill them, and the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tc.frontend.imported import Imported
from tc.frontend.registry import import_model
from tc.interp import run_function
from tc.ir.graph import Atom, Call, CallTir, TensorConst
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.ops.build import full_attrs
from tc.ops.registry import get_op
from tc.passes.pipeline import finish_loops, lay_out, lower_model, prepare_model
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.codegen import tile_model
from tests.golden_files import TARGETS, Literals
from tests.ops.kernels import run
from tests.passes.test_integer_graphs import Net, load_model
from tests.schedule.test_tile_products import NARROW, WIDE


def bottleneck(channels: int, inside: int, size: int, groups: int = 1, first: str = "quantized") -> tuple[Imported, dict[str, np.ndarray]]:
    """A quantized residual block: products of pixels around a window of 3 x 3, whose channels may be apart; `first`: whether its first
    convolution is quantized."""
    net, rng = Net(), np.random.default_rng(0)

    def conv(x: str, outputs: int, inputs: int, taps: int, groups: int = 1) -> str:
        shape = (outputs, inputs // groups, taps, taps)
        weights = net.const(rng.integers(-100, 100, shape).astype(np.int8))
        scales = rng.uniform(0.001, 0.01, outputs).astype(np.float32)
        w = net.add("DequantizeLinear", weights, net.const(scales), net.const(np.zeros(outputs, np.int8)), axis=0)
        if first == "float" and x == plain:
            w = net.const(rng.standard_normal(shape).astype(np.float32))
        bias = net.const(rng.standard_normal(outputs).astype(np.float32))
        return net.add("Conv", x, w, bias, kernel_shape=[taps, taps], pads=[taps // 2] * 4, group=groups)

    def bytes_of(x: str, zero: int = 0) -> str:
        return net.q(x, 0.05, np.uint8(zero))

    def again(x: str, zero: int = 0) -> str:
        return net.dq(bytes_of(x, zero), 0.05, np.uint8(zero))

    image = net.input(np.uint8, 1, channels, size, size)
    plain = net.dq(image, 0.02, np.uint8(3))
    h = again(net.add("Relu", conv(plain, inside, channels, 1)))
    h = again(net.add("Relu", conv(h, inside, inside, 3, groups)))
    h = again(conv(h, channels, inside, 1), 128)
    y = bytes_of(net.add("Relu", net.add("Add", h, plain)))
    return load_model(net.model(net.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])), on_unsupported="error"), net.arrays


def widths(imported: Imported, target: Target) -> set[int]:
    """Of the blocks of convolutions on blocks."""
    graph = lay_out(prepare_model(imported, target)).graph
    calls = [binding.value for binding in graph.main.bindings if isinstance(binding.value, Call) and binding.value.op == "conv_blocked"]
    assert len(calls) == 3
    return {int(dict(call.attrs)["in_block"]) for call in calls}


NETWORKS: list[tuple[tuple[Any, ...], int]] = [
    ((256, 64, 14), 64),  # a row of a tile is 64 bytes
    ((256, 64, 14, 64), 64),
    ((64, 96, 14, 96), 32),  # 96 channels would be 128
    ((24, 144, 28, 144), 16),
    ((256, 64, 14, 1, "float"), 32),  # two vectors of f32
]


@pytest.mark.parametrize(("sizes", "width"), NETWORKS, ids=str)
def test_blocks_are_rows_of_tiles_where_channels_fill_them(sizes: tuple[Any, ...], width: int) -> None:
    imported, _ = bottleneck(*sizes)

    assert widths(imported, WIDE) == {width}
    assert widths(imported, TARGETS["x86-64-v4"]) == {16}, "without tiles a block is a vector"


def values_of(module: IRModule, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a lowered network, its kernels scheduled for tiles, with a model in place of the instructions."""
    tile_model.used.clear()
    tile_model.errors.clear()
    values: dict[Atom, np.ndarray] = dict(zip(module.main.params, arrays, strict=True))

    def value(atom: Atom | None) -> np.ndarray:
        assert atom is not None
        return atom.value if isinstance(atom, TensorConst) else values[atom]

    kernels = {func.name: func for func in module.prim_funcs}
    for binding in module.main.bindings:
        call = binding.value
        if isinstance(call, Call):  # a view
            values.update(zip(binding.targets, get_op(call.op).run_reference([value(call.args[0])], full_attrs(call)), strict=True))
            continue
        assert isinstance(call, CallTir)
        final = finish_loops(apply_rules(kernels[call.callee], NARROW).func, threads=2)
        results = run(final, [value(atom) for atom in call.args], target=NARROW)
        values.update(zip(binding.targets, results, strict=False))  # workspaces come behind
    assert tile_model.errors == []
    return [value(result) for result in module.main.results]


@pytest.mark.parametrize(("channels", "taps"), [(64, 3), (96, 1)])
def test_convolutions_of_bf16_are_summed_on_tiles(channels: int, taps: int) -> None:
    weights = f"const('random bf16 64x{channels}x{taps}x{taps}', bf16[64, {channels}, {taps}, {taps}])"
    literals, rng = Literals(), np.random.default_rng(0)
    module = parse_module(
        f"""
@graph
def main(x: bf16[2, {channels}, 9, 20]):
    y: bf16[2, 64, 9, 20] = conv(x, {weights}, pads=({taps // 2}, {taps // 2}, {taps // 2}, {taps // 2}))
    z: bf16[2, 64, 9, 20] = relu(y)
    return z
""",
        literals,
    )
    x = rng.standard_normal((2, channels, 9, 20)).astype(ml_dtypes.bfloat16)

    prepared = lay_out(prepare_model(import_model(module), WIDE))
    (result,) = values_of(lower_model(prepared).lowered, [x])

    (w,) = literals.values()
    wide, size = (
        reference_conv([f(each.astype(np.float64)) for each in (x, w)], pads=(taps // 2,) * 4) for f in (np.asarray, np.abs)
    )
    assert "tdpbf16ps" in tile_model.used
    bound = 2.0**-8 * np.abs(wide) + channels * taps**2 * 2.0**-24 * size + 1e-30
    np.testing.assert_array_less(np.abs(result.astype(np.float64) - np.maximum(wide, 0)), bound)


def reference_conv(operands: list[np.ndarray], pads: tuple[int, ...]) -> np.ndarray:
    """A convolution of stride 1, in f64."""
    (x, w), (top, left, *_) = operands, pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w, optimize=True)


@pytest.mark.parametrize("sizes", [(128, 64, 7), (64, 64, 9, 64)], ids=str)
def test_kernels_on_wide_blocks_compute_the_network(sizes: tuple[int, ...]) -> None:
    imported, arrays = bottleneck(*sizes)
    assert widths(imported, WIDE) == {64}
    prepared = prepare_model(imported, WIDE)
    expected = run_function(prepared.graph, "main", list(arrays.values()))

    found = values_of(lower_model(lay_out(prepared)).lowered, list(arrays.values()))

    assert "tdpbusd" in tile_model.used
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
