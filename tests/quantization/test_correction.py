"""Biases take off what quantization shifts the results of products by: beside convolutions that are really run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tc.quantization.correction import OperandSample, layer_inputs, mean_results, tap_shares
from tc.quantization.description import describe_hardware
from tc.quantization.strategy import Strategy, all_float, all_small
from tc.quantization.topology import Topology, analyse
from tc.target import Target
from tests.quantization.small_nets import NETS, OrtModule, attention, floats, make_model, mlp
from tests.quantization.test_realize import Setup


def convolution(rng: np.random.Generator, size: tuple[int, int], **attrs: object) -> tuple[onnx.ModelProto, np.ndarray]:
    weight = floats(rng, 6, 2, 3, 2)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", group=2, **attrs)
    return make_model([node], {"x": ("n", 4, *size)}, ["y"], {"w": weight}), weight


@pytest.mark.parametrize(
    "attrs",
    [
        {}, {"pads": [1, 0, 2, 1]}, {"strides": [2, 1], "pads": [2, 1, 2, 1]}, {"dilations": [2, 3], "pads": [2, 3, 2, 0]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"auto_pad": "SAME_LOWER", "strides": [1, 2]}, {"auto_pad": "VALID"},
    ],
)  # fmt: skip
def test_means_of_channels_that_are_flat_give_the_exact_means_of_results(attrs: dict[str, object], rng: np.random.Generator) -> None:
    size = tuple(int(n) for n in rng.integers(5, 9, 2))
    model, weight = convolution(rng, size, **attrs)
    means = rng.standard_normal(4)
    x = np.broadcast_to(means.astype(np.float32)[None, :, None, None], (1, 4, *size))
    sample = OperandSample(1, 1)
    sample.update(x)

    layer = layer_inputs(model, analyse_alone(model), {("x", 1): sample})["conv"]
    found = mean_results(weight, 0, means, layer)

    expected = OrtModule(model).run({"x": np.ascontiguousarray(x)})["y"].mean(axis=(0, 2, 3))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def analyse_alone(model: onnx.ModelProto) -> Topology:
    return analyse(model, describe_hardware("vnni", Target()))


def test_taps_that_only_read_padding_count_for_nothing() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1])

    assert tap_shares(node, (3,), [(1, 4, 1)]).tolist() == [0.0, 1.0, 0.0]
    assert tap_shares(node, (3,), [(1, 4, 1), (1, 4, 4)]).tolist() == [0.375, 1.0, 0.375]


@pytest.mark.parametrize("shape", [(1, 5), (3, 700, 5), (4000, 5)])
def test_samples_hold_channels_last_and_few_rows(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    array = rng.standard_normal(shape).astype(np.float32)
    sample = OperandSample(-1, 2)

    sample.update(array)
    sample.update(array)

    assert 2 <= len(sample.rows) <= 1024 and sample.rows.shape[1] == 5
    np.testing.assert_array_equal(sample.rows[0], array.reshape(-1, 5)[0])


@pytest.mark.parametrize("name", sorted(NETS))
def test_corrected_products_have_the_means_of_f32(name: str) -> None:
    """Weights are rounded much coarser than 8 bits here, and thresholds clip: without it the shift is the larger part of the error."""
    setup = Setup(name)
    for key in setup.scales.of_weights("minmax"):
        setup.scales.of_weights("minmax")[key] *= 8
    site = next(s for s in setup.topology.sites if s.is_contraction and any(e.is_weight for e in s.edges))
    alone = all_float(setup.topology, "kl").with_choice({site.name: 0})
    output = next(node.output[0] for node in setup.proto.graph.node if node.name == site.name)

    shifts = [results_of(setup, strategy, output) for strategy in (all_float(setup.topology), alone, replace(alone, is_corrected=True))]

    plain, corrected = (np.abs(each - shifts[0]).max() for each in shifts[1:])
    assert corrected <= 0.35 * plain


def results_of(setup: Setup, strategy: Strategy, output: str) -> np.ndarray:
    """float32[channels]: the mean of a value of the written model on the calibration inputs."""
    model = setup.write(strategy)
    written = {name for node in model.graph.node for name in node.output}
    model.graph.output.append(helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None))
    assert output in written
    module = OrtModule(model)
    values = np.concatenate([module.run(feed)[output] for feed in setup.feeds])
    return values.mean(axis=(0, 2, 3)) if values.ndim == 4 else values.reshape(-1, values.shape[-1]).mean(axis=0)


def test_a_sum_after_a_product_adds_the_correction(rng: np.random.Generator) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="first"), helper.make_node("Add", ["b", "h"], ["y"])]
    model = make_model(nodes, {"x": ("n", 16)}, ["y"], {"w": floats(rng, 16, 8), "b": floats(rng, 8)})
    setup = Setup.of(model, rng)
    strategy = replace(all_small(setup.topology, "kl"), is_corrected=True)

    written = setup.write(strategy)

    shift = setup.scales.corrections(strategy)["first"]
    stored = next(numpy_helper.to_array(t) for t in written.graph.initializer if t.name.startswith("b.corrected"))
    np.testing.assert_allclose(stored, numpy_helper.to_array(model.graph.initializer[1]) + shift, rtol=1e-6)
    assert [node.op_type for node in written.graph.node].count("Add") == 1


def test_where_nothing_is_added_a_sum_is(rng: np.random.Generator) -> None:
    setup = Setup.of(mlp(rng), rng)
    strategy = replace(all_small(setup.topology), is_corrected=True)

    written = setup.write(strategy)

    assert [node.op_type for node in written.graph.node].count("Add") == 1  # the MatMul's; the Gemm has a bias
    assert sorted(setup.scales.corrections(strategy)) == ["first", "second"]


def test_products_in_floats_and_of_computed_operands_have_no_correction(rng: np.random.Generator) -> None:
    setup = Setup.of(attention(rng), rng)
    strategy = replace(all_small(setup.topology), is_corrected=True)
    weighted = [site.name for site in setup.topology.sites if any(edge.is_weight for edge in site.edges)]

    assert sorted(setup.scales.corrections(strategy)) == sorted(weighted) and len(weighted) == 2
    assert not setup.scales.corrections(replace(all_float(setup.topology), is_corrected=True))
