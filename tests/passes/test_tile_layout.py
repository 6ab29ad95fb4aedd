"""Blocks of channels for tile registers: as wide as a row of a tile where channels fill them, and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tc.frontend.imported import Imported
from tc.interp import run_function
from tc.ir.graph import Atom, Call, CallTir, TensorConst, TensorVar
from tc.passes.pipeline import finish_loops, lay_out, lower_model, prepare_model
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.codegen import tile_model
from tests.golden_files import TARGETS
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
    ((64, 64, 14, 1, "float"), 16),  # a vector of f32
]


@pytest.mark.parametrize(("sizes", "width"), NETWORKS, ids=str)
def test_blocks_are_rows_of_tiles_where_channels_fill_them(sizes: tuple[Any, ...], width: int) -> None:
    imported, _ = bottleneck(*sizes)

    assert widths(imported, WIDE) == {width}
    assert widths(imported, TARGETS["x86-64-v4"]) == {16}, "without tiles a block is a vector"


@pytest.mark.parametrize("sizes", [(128, 64, 7), (64, 64, 9, 64)], ids=str)
def test_kernels_on_wide_blocks_compute_the_network(sizes: tuple[int, ...]) -> None:
    imported, arrays = bottleneck(*sizes)
    assert widths(imported, WIDE) == {64}
    prepared = prepare_model(imported, WIDE)
    expected = run_function(prepared.graph, "main", list(arrays.values()))
    tile_model.used.clear()
    tile_model.errors.clear()

    lowered = lower_model(lay_out(prepared)).lowered
    values: dict[TensorVar, np.ndarray] = dict(zip(lowered.main.params, arrays.values(), strict=True))  # type: ignore[arg-type]

    def value(atom: Atom | None) -> np.ndarray:
        return atom.value if isinstance(atom, TensorConst) else values[atom]  # type: ignore[index]

    kernels = {func.name: func for func in lowered.prim_funcs}
    for binding in lowered.main.bindings:
        call = binding.value
        assert isinstance(call, CallTir)
        final = finish_loops(apply_rules(kernels[call.callee], NARROW).func, threads=2)
        results = run(final, [value(atom) for atom in call.args], target=NARROW)
        values.update(zip(binding.targets, results, strict=False))  # workspaces come behind

    found = [value(result) for result in lowered.main.results]  # type: ignore[arg-type]
    assert tile_model.errors == []
    assert "tdpbusd" in tile_model.used
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
