"""Large channels of operands go into the rows of weights: exactly, shared by all readers, and to the good of the error."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tc
from tc.quantization.correction import LayerInput, OperandSample
from tc.quantization.description import Combination, describe_hardware
from tc.quantization.migration import STRENGTHS, channel_factors, migrated_statistics
from tc.quantization.prepare import prepare
from tc.quantization.search import migrate
from tc.quantization.strategy import Strategy, all_float, all_small
from tc.quantization.topology import Edge, QuantizationSite, analyse, operand_groups
from tc.target import Target
from tests.quantization.small_nets import OrtModule, feeds_of, floats, make_model
from tests.quantization.test_realize import Setup

CHANNELS = 16


def outlier_net(rng: np.random.Generator) -> onnx.ModelProto:
    """A residual block whose second product reads channels of very different sizes; two products read one value, and so does the sum."""
    gains = np.ones(CHANNELS, np.float32)
    gains[[3, 11]] = 40.0, -25.0
    node = helper.make_node
    nodes = [
        node("Mul", ["x", "g"], ["h"]),
        node("MatMul", ["h", "w0"], ["p"], name="left"),
        node("Gemm", ["h", "w1", "b1"], ["q"], name="right", transB=1),
        node("Relu", ["p"], ["r"]),
        node("Add", ["r", "q"], ["s"], name="inner"),
        node("Gemm", ["s", "w2", "b2"], ["t"], name="last"),
        node("Add", ["t", "h"], ["u"], name="residual"),
        node("Gemm", ["u", "w3", "b3"], ["y"], name="head"),
    ]
    small = 1 / np.abs(gains)[:, None]  # such rows follow such channels in networks that were trained
    weights = {
        "g": gains, "w0": floats(rng, CHANNELS, 24) * small, "w1": np.ascontiguousarray((floats(rng, CHANNELS, 24) * small).T),
        "b1": floats(rng, 24), "w2": floats(rng, 24, CHANNELS), "b2": floats(rng, CHANNELS), "w3": floats(rng, CHANNELS, 5) * small,
        "b3": floats(rng, 5),
    }  # fmt: skip
    return make_model(nodes, {"x": ("n", CHANNELS)}, ["y"], {name: np.asarray(value, np.float32) for name, value in weights.items()})


@pytest.fixture(scope="module")
def setup() -> Setup:
    rng = np.random.default_rng(5)
    return Setup.of(outlier_net(rng), rng)


def migrated(setup: Setup, strength: float = 0.65) -> Strategy:
    return migrate(setup.topology, all_small(setup.topology), strength)


def layer_of(*calls: np.ndarray) -> LayerInput:
    sample = OperandSample(-1, len(calls))
    for array in calls:
        sample.update(array)
    return LayerInput("x", sample.rows, np.array(sample.lows), np.array(sample.highs))


@pytest.mark.parametrize("strength", STRENGTHS)
def test_factors_are_those_of_the_definition(rng: np.random.Generator, strength: float) -> None:
    calls = [rng.standard_normal((7, 6)).astype(np.float32) * np.array([1, 9, 3, 0.2, 5, 30], np.float32) for _ in range(3)]
    matrices = [floats(rng, 6, 4), floats(rng, 6, 9)]

    factors = channel_factors(layer_of(*calls), matrices, strength)

    operand, weight = np.abs(np.concatenate(calls)).max(axis=0), np.abs(np.concatenate(matrices, axis=1)).max(axis=1)
    plain = operand**strength / weight ** (1 - strength)
    np.testing.assert_allclose(factors, plain / plain.prod() ** (1 / 6), rtol=1e-5)


def test_channels_and_rows_of_zeros_have_finite_factors(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((5, 4)).astype(np.float32), floats(rng, 4, 3)
    x[:, 1], w[2] = 0, 0

    factors = channel_factors(layer_of(x), [w], 0.5)

    assert np.isfinite(factors).all() and (factors > 0).all() and factors.max() / factors.min() <= 1e4
    np.testing.assert_array_equal(channel_factors(layer_of(np.zeros_like(x)), [w], 0.5), np.ones(4))
    np.testing.assert_array_equal(channel_factors(layer_of(x), [np.zeros_like(w)], 0.5), np.ones(4))


def test_statistics_are_those_of_the_divided_operand(rng: np.random.Generator) -> None:
    calls = [rng.standard_normal((2, 40, 6)).astype(np.float32) * scale for scale in (1, 5, 2)]
    factors = rng.uniform(0.2, 4, 6).astype(np.float32)

    found = migrated_statistics(layer_of(*calls), factors)

    divided = [array / factors for array in calls]
    np.testing.assert_allclose(found.ranges, [(array.min(), array.max()) for array in divided], rtol=1e-6)
    assert found.counts.sum() == sum(array.size for array in calls)  # few enough that all are sampled
    assert found.low == min(low for low, _ in found.ranges) and found.high == max(high for _, high in found.ranges)


def test_products_of_one_operand_are_a_group(setup: Setup) -> None:
    groups = {group.value: group for group in setup.topology.groups}

    assert groups["h"].sites == ("left", "right") and groups["h"].weights == (("w0", 1), ("w1", 0))
    assert sorted(groups) == ["h", "s", "u"]


def test_what_others_read_too_is_in_no_group(rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="second"),
        helper.make_node("MatMul", ["b", "v"], ["y"], name="third"),
    ]
    model = prepare(make_model(nodes, {"x": ("n", 8)}, ["y"], {"w": floats(rng, 8, 8), "v": floats(rng, 8, 8)}))

    assert [group.sites for group in analyse(model, describe_hardware("vnni", Target())).groups] == [("third",)]
    assert analyse(model, describe_hardware("power_of_two", Target())).groups == ()
    mixed = (Combination(("u8", "f32"), 0.5), Combination(("f32", "f32"), 1.0))
    site = QuantizationSite("a", "MatMul", True, mixed, (Edge(0, "x", 0, None, 0), Edge(1, "w", 1, 1, -1)))
    assert operand_groups([site]) == () and len(operand_groups([replace(site, choices=mixed[1:])])) == 1


@pytest.mark.covering
@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("is_corrected", [False, True])
def test_the_written_model_computes_what_was_simulated(setup: Setup, strength: float, is_corrected: bool) -> None:
    strategy = replace(migrated(setup, strength), is_corrected=is_corrected)
    model = setup.write(strategy)
    feed = feeds_of(setup.proto, np.random.default_rng(6), calls=1, batch=256)[0]

    expected, found, compiled = (m.run(feed)["y"] for m in (Simulated(setup, strategy), OrtModule(model), tc.compile(model, threads=1)))

    # biases are rounded in the written model only: a number on the edge between two steps may fall to either, in one row of hundreds
    assert np.mean(np.abs(found - expected)) <= 5e-4 * np.abs(expected).max()
    assert np.mean(np.abs(compiled - found)) <= 5e-4 * np.abs(expected).max()


@dataclass(frozen=True)
class Simulated:
    """A strategy in the simulated graph, called as a model is."""

    setup: Setup
    strategy: Strategy

    def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.setup.simulated(self.strategy, feed)


def test_the_error_falls_where_channels_differ(setup: Setup) -> None:
    plain, better = (setup.evaluator.quality(migrated(setup, strength)).error for strength in (0.0, 0.65))

    assert better <= 0.35 * plain


def test_factors_are_written_once_for_all_readers(setup: Setup) -> None:
    model = setup.write(migrated(setup))
    readers: dict[str, list[str]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node.op_type)

    assert Counter(node.op_type for node in model.graph.node)["Mul"] == 1 + 3  # the network's own, and one for each operand
    assert sorted(readers["h"]) == ["Add", "Mul"]  # the residual sum reads it as it is
    assert readers["h.migrated"] == ["QuantizeLinear"]


def test_products_in_f32_read_operands_and_weights_as_they_are(setup: Setup) -> None:
    floating = all_float(setup.topology).with_strengths(0.65)
    half = migrated(setup).with_choice({"left": 1})

    assert setup.evaluator.quality(floating).error == 0.0
    np.testing.assert_array_equal(*(OrtModule(m).run(setup.feeds[0])["y"] for m in (setup.write(floating), setup.proto)))
    nodes = {node.name: node for node in setup.write(half).graph.node}
    assert list(nodes["left"].input) == ["h", "w0"] and nodes["right"].input[0].startswith("h.migrated")


def test_scaled_weights_are_those_of_the_factors(setup: Setup) -> None:
    strategy = migrated(setup)
    model = setup.write(strategy)
    tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    given = {t.name: numpy_helper.to_array(t) for t in setup.proto.graph.initializer}

    factors = 1 / tensors["h.factors"]
    left = tensors["w0.quantized"] * tensors["w0.scale"]
    right = tensors["w1.quantized"] * tensors["w1.scale"][:, None]

    assert np.abs(left - given["w0"] * factors[:, None]).max() <= 0.51 * tensors["w0.scale"].max()
    assert np.abs(right - given["w1"] * factors).max() <= 0.51 * tensors["w1.scale"].max()


def test_corrected_and_migrated_products_have_the_means_of_f32(setup: Setup) -> None:
    """Ranges are clipped by relative entropy: each result's mean is off without a correction."""
    floating = all_float(setup.topology, "kl")
    alone = floating.with_choice({"right": 0}).with_strengths(0.5)

    means = []
    for strategy in (floating, alone, replace(alone, is_corrected=True)):
        model = setup.write(strategy)
        model.graph.output.append(helper.make_tensor_value_info("q", onnx.TensorProto.FLOAT, None))
        means.append(np.concatenate([OrtModule(model).run(feed)["q"] for feed in setup.feeds]).mean(axis=0))

    plain, corrected = (np.abs(each - means[0]).max() for each in means[1:])
    assert plain > 0 and corrected <= 0.1 * plain


def test_strengths_are_part_of_a_strategy(setup: Setup) -> None:
    strategy = all_small(setup.topology).with_strength(1, 0.5)

    assert Strategy.from_json(strategy.to_json()) == strategy
    assert strategy.key != all_small(setup.topology).key
    assert strategy.strengths == (0.0, 0.5, 0.0)


def test_the_search_finds_migration(rng: np.random.Generator) -> None:
    model = outlier_net(rng)

    found = tc.quantize(model, feeds_of(model, rng, calls=8), hardware="vnni", trials=16)

    best = min((t for t in found.trials if t.stage == "migration"), key=lambda t: t.quality.loss)
    default = found.trials[1]
    assert best.predicted <= default.predicted and best.quality.loss <= 0.5 * default.quality.loss


def test_a_product_whose_operand_is_always_empty_is_not_migrated() -> None:
    """Its class is that of what is sliced, which is not empty, so that only the product itself shows that nothing was seen of it."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("Slice", ["x", "start", "end"], ["none"]),
        helper.make_node("MatMul", ["none", "w0"], ["p"], name="empty"),
        helper.make_node("MatMul", ["x", "w1"], ["q"], name="full"),
        helper.make_node("Concat", ["p", "q"], ["y"], axis=0),
    ]
    literals = {"w0": floats(rng, CHANNELS, 8), "w1": floats(rng, CHANNELS, 8), "start": np.array([9]), "end": np.array([99])}
    model = make_model(nodes, {"x": ("n", CHANNELS)}, ["y"], literals)
    feeds = [{"x": floats(rng, 5, CHANNELS)} for _ in range(6)]

    found = tc.quantize(model, feeds, hardware="vnni", trials=24)

    assert any(0.0 < max(trial.strategy.strengths) for trial in found.trials)
    wide = floats(rng, 12, CHANNELS)
    for feed in (feeds[0], {"x": wide}):
        expected = OrtModule(found.model).run(feed)["y"]
        np.testing.assert_allclose(np.asarray(tc.compile(found.model)(feed["x"])), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
