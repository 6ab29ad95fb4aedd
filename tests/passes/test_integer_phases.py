"""Transposed convolutions of quantized tensors: sums of integers, exact, whatever the strides; and what onnxruntime makes of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import tc
from tc.passes.pipeline import SIMPLIFY, STRICT_SIMPLIFY
from tests.passes.test_graph_rules import ops_of
from tests.passes.test_integer_graphs import FLOATS, S8, U8, Net, check, integers_of, run, zero_points

ABSENT = {*FLOATS, "conv_transpose"}
CASES: list[tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]] = [
    ((2, 5, 4, 3), (5, 6, 2, 2), {"strides": [2, 2]}),
    ((1, 4, 5, 4), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((1, 3, 4, 5), (3, 2, 4, 3), {"strides": [3, 1], "pads": [1, 0, 0, 2]}),
    ((1, 3, 4, 4), (3, 2, 2, 1), {"strides": [3, 2]}),
    ((2, 3, 6), (3, 4, 3), {"strides": [2]}),
    ((0, 2, 3, 3), (2, 2, 2, 2), {"strides": [2, 2]}),
    ((1, 6, 4, 3), (6, 2, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 3}),
    ((2, 4, 5), (4, 1, 2), {"strides": [2], "group": 4}),
    ((1, 3, 4, 5), (3, 2, 3, 2), {"strides": [1, 1], "dilations": [2, 3], "pads": [1, 0, 0, 2]}),
    ((1, 4, 4, 5), (4, 3, 3, 3), {"strides": [2, 3], "dilations": [2, 2], "output_padding": [1, 0], "group": 2}),
    ((1, 2, 4, 4), (2, 2, 3, 4), {"strides": [4, 2], "dilations": [1, 3], "pads": [0, 2, 5, 1]}),
    ((1, 2, 3, 5), (2, 1, 2, 1), {"strides": [1, 3], "pads": [2, 3, 0, 4]}),
    ((1, 5, 3, 4), (5, 24, 2, 2), {"strides": [2, 2]}),
    ((2, 3, 4, 3), (3, 9, 3, 3), {"strides": [2, 2], "pads": [1, 0, 1, 1]}),
]
"""The shapes of the operands, and attributes. The last two have channels that blocks are filled up with; those
before them are cropped by more than a kernel."""


def transposed(x: np.ndarray, w: np.ndarray, attrs: Mapping[str, Any]) -> np.ndarray:
    """In i64 or f64: each element of x times the whole kernel, added where it lies."""
    rank, groups = x.ndim - 2, attrs.get("group", 1)
    strides, apart = attrs["strides"], attrs.get("dilations", [1] * rank)
    pads, more = attrs.get("pads", [0] * 2 * rank), attrs.get("output_padding", [0] * rank)
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(w.shape[2:], apart, strict=True)]
    size = [(x.shape[2 + d] - 1) * strides[d] + reach[d] + more[d] for d in range(rank)]
    y = np.zeros((x.shape[0], groups, w.shape[1], *size), np.result_type(x, w))
    own = w.shape[0] // groups
    parts, kernels = x.reshape(len(x), groups, own, *x.shape[2:]), w.reshape(groups, own, *w.shape[1:])
    for place in np.ndindex(*x.shape[2:]):
        corner = (slice(p * s, p * s + r, d) for p, s, r, d in zip(place, strides, reach, apart, strict=True))
        y[(slice(None), slice(None), slice(None), *corner)] += np.einsum("ngi,gio...->ngo...", parts[(..., *place)], kernels)
    kept = tuple(slice(pads[d], size[d] - pads[rank + d]) for d in range(rank))
    return y.reshape(len(x), groups * w.shape[1], *size)[(slice(None), slice(None), *kept)]


def network(seed: int, x_type: type, w_type: type, case: int, per_channel: bool, named: bool = False) -> tuple[Net, str, np.ndarray]:
    """A transposed convolution with a bias, its output, and the same in numpy: sums, rounded once to f32, times the scale."""
    x_shape, w_shape, attrs = CASES[case]
    net = Net(seed)
    names = ["n", x_shape[1], *(f"s{d}" for d in range(len(x_shape) - 2))]
    x, rng = net.input(x_type, *x_shape, declared=names if named else None), net.rng
    own = (w_shape[1],) if per_channel else ()
    x_zero, w_zero = zero_points(rng, x_type), zero_points(rng, w_type, own)
    w, w_scale = net.numbers(w_type, w_shape), rng.uniform(0.01, 0.05, own).astype(np.float32)
    scale = np.float32(np.float32(0.04).astype(np.float64) * w_scale)
    groups = attrs.get("group", 1)
    bias = rng.integers(-5000, 5000, groups * w_shape[1]).astype(np.int32)
    of_all = np.tile(scale, groups) if per_channel else scale
    steps = net.dq(net.const(bias), of_all, **({"axis": 0} if per_channel else {}))
    kernels = net.dq(net.const(w), w_scale, w_zero, **({"axis": 1} if per_channel else {}))
    y = net.q(net.add("ConvTranspose", net.dq(x, 0.04, x_zero), kernels, steps, **attrs), 0.7, np.uint8(100))
    along = (1, -1, *[1] * (len(w_shape) - 2))
    differences = w.astype(np.int64) - (w_zero.astype(np.int64).reshape(along) if per_channel else int(w_zero))
    sums = transposed(net.arrays[x].astype(np.int64) - int(x_zero), differences, attrs) + bias.astype(np.int64).reshape(along)
    real = sums.astype(np.float32) * (of_all.reshape(along) if per_channel else scale)
    return net, y, np.clip(np.round(real / np.float32(0.7)) + 100, 0, 255).astype(np.uint8)


@pytest.mark.covering
@pytest.mark.parametrize("pipeline", [SIMPLIFY, STRICT_SIMPLIFY], ids=("default", "strict"))
@pytest.mark.parametrize("w_type", [U8, S8])
@pytest.mark.parametrize("x_type", [U8, S8])
def test_transposed_convolutions_are_exact(x_type: type, w_type: type, pipeline: str) -> None:
    for seed, case in enumerate(range(len(CASES))):
        for per_channel in (False, True):
            net, y, expected = network(seed, x_type, w_type, case, per_channel)

            module = integers_of(net.model(y), pipeline)

            assert not ABSENT & set(ops_of(module)) and "conv_integer" in ops_of(module)
            (found,) = run(module, net)
            np.testing.assert_array_equal(found, expected)


def test_a_transposed_convolution_is_onnxruntimes() -> None:
    for case in range(len(CASES)):
        net, y, _ = network(9, U8, S8, case, True)
        check(net, y, absent=ABSENT)


def test_what_is_dequantized_twice_as_large_is_moved_in_bytes() -> None:
    net, y, _ = network(0, U8, S8, 0, True)

    module = integers_of(net.model(y))

    assert ops_of(module).index("quantize_linear") < ops_of(module).index("interleave")


def test_channels_of_whole_blocks_keep_sums_of_integers_and_move_in_bytes() -> None:
    net, y, _ = network(0, U8, S8, len(CASES) - 2, True)

    ops = ops_of(integers_of(net.model(y)))

    assert ops.index("add") < ops.index("cast") < ops.index("quantize_linear") < ops.index("interleave") < ops.index("slice")


@pytest.mark.parametrize("case", [1, 9, 11])
def test_a_transposed_convolution_of_named_sizes_is_compiled(case: int) -> None:
    net, y, expected = network(3, U8, S8, case, True, named=True)

    found = tc.compile(net.model(y), on_unsupported="error", threads=1).run(net.arrays)

    np.testing.assert_array_equal(found[y], expected)
