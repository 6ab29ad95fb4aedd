"""Convolutions whose groups are narrower than blocks of channels: several groups are summed as one, with zeros between them."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.frontend.registry import import_model
from tc.interp import run_function
from tc.ir.dtype import bf16
from tc.ir.graph import Attrs, Call
from tc.ir.module import IRModule
from tc.ops.window import merged_groups
from tc.passes.graph.blocked_literals import merge_groups
from tc.passes.graph.narrowing import Precision
from tc.passes.pipeline import lay_out, prepare_model
from tc.target import Target, native_target
from tests.draws import some_of
from tests.frontend.models import run_onnxruntime
from tests.passes.test_integer_graphs import Net

WITH_VNNI = Target.parse("x86-64-v4:cores=1,machine=sapphirerapids")
WITH_VNNI = dataclasses.replace(WITH_VNNI, features=tuple(sorted({*WITH_VNNI.features, "avx512vnni"})))
WITH_TILES = dataclasses.replace(
    WITH_VNNI, features=tuple(sorted({*WITH_VNNI.features, "avx512bf16", "amx-tile", "amx-int8", "amx-bf16"}))
)

Shape = tuple[int, int, int, int, int]
"""Groups, channels and outputs of each, size of the kernel, stride."""


def draw(seed: int) -> tuple[Shape, int]:
    """A convolution, and the size of its image."""
    rng = np.random.default_rng(seed)
    groups, channels = int(rng.integers(2, 14)), int(rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48]))
    outputs = channels if rng.random() < 0.7 else int(rng.integers(1, 30))
    return (groups, channels, outputs, int(rng.choice([1, 3, 5])), int(rng.integers(1, 3))), int(rng.integers(1, 17))


def quantized(shape: Shape, image: int) -> tuple[Net, str]:
    """The convolution of bytes, and one of a single group behind it, so that blocks are wanted."""
    groups, channels, outputs, size, stride = shape
    net = Net(image)
    x = net.dq(net.q(net.input(np.float32, 1, groups * channels, image, image), 0.03, np.uint8(110)), 0.03, np.uint8(110))
    w = net.dq(net.const(net.numbers(np.int8, (groups * outputs, channels, size, size))), 0.01)
    made = net.add("Conv", x, w, group=groups, pads=[size // 2] * 4, strides=[stride, stride])
    made = net.dq(net.q(made, 0.02 * size * channels**0.5, np.uint8(120)), 0.02 * size * channels**0.5, np.uint8(120))
    v = net.dq(net.const(net.numbers(np.int8, (64, groups * outputs, 1, 1))), 0.01)
    last = net.add("Conv", made, v)
    return net, net.dq(net.q(last, 0.1, np.uint8(120)), 0.1, np.uint8(120))


def on_blocks(module: IRModule) -> list[Attrs]:
    """The attributes of the convolutions on blocks."""
    values = [binding.value for func in module.graph_functions for binding in func.bindings]
    return [Attrs(value.attrs) for value in values if isinstance(value, Call) and value.op == "conv_blocked"]


@pytest.mark.parametrize("seed", range(8))
def test_merged_weights_are_those_of_each_group_and_zeros(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups, merged, outputs, inputs = (int(count) for count in rng.integers(1, 7, 4))
    weights = rng.integers(1, 100, (groups * outputs, inputs, 2, 3)).astype(np.int8)

    made = merge_groups(weights, merged, groups)

    assert made.shape == (groups * outputs, merged * inputs, 2, 3)
    for output, row in enumerate(made.reshape(groups * outputs, merged, inputs, 2, 3)):
        own = output // outputs % merged
        np.testing.assert_array_equal(row[own], weights[output])
        assert not np.delete(row, own, axis=0).any()


@pytest.mark.parametrize("target", [WITH_VNNI, WITH_TILES], ids=["vnni", "tiles"])
@pytest.mark.parametrize("seed", range(12))
def test_graphs_on_blocks_compute_the_same(seed: int, target: Target) -> None:
    net, result = quantized(*draw(seed))
    model = net.model(result)
    plain = run_onnxruntime(model, net.arrays)

    module = lay_out(prepare_model(import_model(model), target)).graph

    for found, wanted in zip(run_function(module, "main", list(net.arrays.values())), plain, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0.1001)  # a quantum: onnxruntime sums floats


@pytest.mark.parametrize("seed", some_of(range(8), quick=range(3)))
def test_every_instruction_gives_the_same_bits(seed: int) -> None:
    net, result = quantized(*draw(100 + seed))
    native, level = native_target(), Target.parse("x86-64-v3:cores=2")
    without_tiles = dataclasses.replace(native, features=tuple(f for f in native.features if not f.startswith("amx")))
    x = next(iter(net.arrays.values()))

    found = [tc.compile(net.model(result), target)(x) for target in (native, without_tiles, level)]

    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "block", "merged"),
    [
        (16, 16, 18, 64, 4),  # the last block is half full
        (16, 16, 18, 32, 2),
        (32, 32, 4, 16, 1),  # none straddles blocks
        (24, 24, 12, 16, 2),
        (24, 24, 12, 64, 12),  # of 8 twice there would be six blocks, and the image has five
        (8, 16, 8, 64, 8),
        (1, 2, 20, 16, 20),
        (5, 3, 7, 16, 7),
    ],
)
def test_as_many_groups_are_one_as_fill_blocks(channels: int, outputs: int, groups: int, block: int, merged: int) -> None:
    assert merged_groups(channels, outputs, groups, block) == merged


@pytest.mark.parametrize(("groups", "width"), [(18, 16), (4, 16), (8, 8), (12, 24)])
def test_narrow_groups_run_on_blocks_of_tiles(groups: int, width: int) -> None:
    net, result = quantized((groups, width, width, 3, 1), 28)

    first, _ = on_blocks(lay_out(prepare_model(import_model(net.model(result)), WITH_TILES)).graph)

    assert first.groups < groups and first.in_channels // first.groups % width == 0


def floats(groups: int, width: int, image: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    channels = groups * width
    weights = [rng.standard_normal((channels, width, 3, 3)) / (3 * width**0.5), rng.standard_normal((64, channels, 1, 1)) / channels**0.5]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], group=groups, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["y"]),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, image, image])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64, image, image])],
        [numpy_helper.from_array(value.astype(np.float32), f"w{k}") for k, value in enumerate(weights)],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("groups", "width"), [(18, 16), (5, 12), (16, 4), (7, 24), (3, 40)])
def test_bf16_is_as_near_as_in_groups_by_themselves(groups: int, width: int) -> None:
    model = floats(groups, width, 14)
    x = np.random.default_rng(1).standard_normal((1, groups * width, 14, 14)).astype(np.float32)

    exact, found = (tc.compile(model, precision=precision)(x) for precision in ("f32", "bf16"))

    assert np.linalg.norm(found - exact) < 6e-3 * np.linalg.norm(exact)


def test_groups_of_floats_are_merged_where_tiles_multiply_halves_and_numerics_are_not_strict() -> None:
    model = floats(18, 16, 28)

    def laid_out(dtype: Precision, numerics: str) -> list[Attrs]:
        prepared = prepare_model(import_model(model), WITH_TILES, numerics, precision=dtype)
        return [attrs for attrs in on_blocks(lay_out(prepared).graph) if attrs.in_channels >= 288 and attrs.groups > 1]

    (halves,) = laid_out(Precision(bf16), "default")
    assert (halves.groups, halves.in_channels) == (9, 288)
    assert all(attrs.groups == 18 for attrs in laid_out(Precision(bf16), "strict"))
    assert all(attrs.groups == 18 for attrs in laid_out(Precision(), "default"))


@pytest.mark.parametrize(("precision", "numerics"), [("f32", "default"), ("bf16", "strict")])
def test_infinities_stay_in_their_group(precision: str, numerics: str) -> None:
    model = floats(8, 8, 14)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 64, 14, 14]))
    del model.graph.node[1:]
    x = np.random.default_rng(1).standard_normal((1, 64, 14, 14)).astype(np.float32)
    x[0, 13, 5, 5] = np.inf

    result = tc.compile(model, precision=precision, numerics=numerics)(x)

    spoilt = ~np.isfinite(result).all(axis=(0, 2, 3))
    assert spoilt[8:16].all() and not spoilt[:8].any() and not spoilt[16:].any()
