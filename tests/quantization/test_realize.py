"""What is written: onnxruntime runs it, and it computes what the simulated graph said."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tc.quantization.description import describe_hardware
from tc.quantization.evaluate import Evaluator
from tc.quantization.migration import STRENGTHS
from tc.quantization.observe import observe
from tc.quantization.prepare import prepare
from tc.quantization.realize import realize
from tc.quantization.scales import Scales
from tc.quantization.strategy import Strategy, all_float, all_small
from tc.quantization.topology import Topology, analyse, weight_arrays
from tc.target import Target
from tests.quantization.small_nets import NETS, OrtModule, conv_net, feeds_of


class Setup:
    """A model as far as the search, with onnxruntime for the compiler."""

    def __init__(self, name: str, hardware: str = "vnni", seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._make(NETS[name](rng), rng, hardware)

    @classmethod
    def of(cls, model: onnx.ModelProto, rng: np.random.Generator, hardware: str = "vnni") -> Setup:
        """The same for a model of a test's own."""
        setup = cls.__new__(cls)
        setup._make(model, rng, hardware)
        return setup

    def _make(self, model: onnx.ModelProto, rng: np.random.Generator, hardware: str) -> None:
        self.proto = prepare(model)
        self.hardware = describe_hardware(hardware, Target())
        self.topology: Topology = analyse(self.proto, self.hardware)
        self.feeds = feeds_of(self.proto, rng)
        seen = observe(self.proto, self.topology, self.feeds, OrtModule)
        self.scales = Scales(self.topology, self.hardware, seen.statistics, weight_arrays(self.proto, self.topology), seen.layers)
        self.evaluator = Evaluator(self.proto, self.scales, self.feeds, seen.outputs, None, math.nan, OrtModule)

    def write(self, strategy: Strategy) -> onnx.ModelProto:
        model = realize(self.proto, self.topology, strategy, self.scales.numbers(strategy))
        onnx.checker.check_model(model, full_check=True)
        return model

    def simulated(self, strategy: Strategy, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        evaluator = self.evaluator
        controls = evaluator.simulation.controls(strategy, self.scales.numbers(strategy))
        return evaluator.module.run({**feed, **controls})


def random_strategy(topology: Topology, rng: np.random.Generator) -> Strategy:
    choices = {site.name: int(rng.integers(len(site.choices))) for site in topology.sites}
    strategy = all_small(topology).with_choice(choices)
    for index in range(len(topology.classes)):
        strategy = strategy.with_method(index, str(rng.choice(["minmax", "average", "mse"])))
    strengths = tuple(float(rng.choice([0.0, *STRENGTHS])) for _ in topology.groups)
    return replace(strategy, is_corrected=bool(rng.random() < 0.5), strengths=strengths)


@pytest.mark.parametrize("hardware", ["vnni", "vnni_bf16", "power_of_two"])
@pytest.mark.parametrize("name", sorted(NETS))
def test_the_written_model_computes_what_was_simulated(name: str, hardware: str) -> None:
    setup = Setup(name, hardware)
    rng = np.random.default_rng(1)

    for strategy in (all_small(setup.topology), *(random_strategy(setup.topology, rng) for _ in range(4))):
        module = OrtModule(setup.write(strategy))
        for feed in setup.feeds[:2]:
            expected, found = setup.simulated(strategy, feed), module.run(feed)
            for key, value in expected.items():
                # sums are rounded in another order, biases to 2^-30 of theirs: a number on the edge between two steps may fall to either
                assert np.mean(np.abs(found[key] - value)) <= 2e-3 * np.abs(value).max()


@pytest.mark.parametrize("name", sorted(NETS))
def test_in_f32_nothing_changes(name: str) -> None:
    setup = Setup(name)
    strategy = all_float(setup.topology)

    model = setup.write(strategy)

    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in model.graph.node}
    assert setup.evaluator.quality(strategy).error == 0.0
    np.testing.assert_array_equal(*(next(iter(m.run(setup.feeds[0]).values())) for m in (OrtModule(model), OrtModule(setup.proto))))


@pytest.mark.parametrize("name", sorted(NETS))
def test_eight_bits_are_near_f32(name: str) -> None:
    setup = Setup(name)

    quality = setup.evaluator.quality(all_small(setup.topology))

    assert 0 < quality.error < 0.05
    assert quality.cosine > 0.995


def test_biases_are_stored_in_32_bits() -> None:
    setup = Setup("conv_net")
    model = setup.write(all_small(setup.topology))

    kinds = Counter(node.op_type for node in model.graph.node)

    assert kinds["Conv"] == 4 and kinds["QuantizeLinear"] >= 5
    int32 = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT32]
    assert len(int32) == 4  # the three biases, and that of the normalization which was folded


def test_what_moves_is_moved_in_bytes() -> None:
    setup = Setup("conv_net")
    model = setup.write(all_small(setup.topology))
    producers = {name: node for node in model.graph.node for name in node.output}

    for op in ("MaxPool", "Concat", "Flatten"):
        (node,) = [node for node in model.graph.node if node.op_type == op]
        assert all(producers[name].op_type == "DequantizeLinear" for name in node.input)


def test_operands_of_a_concatenation_have_one_scale() -> None:
    setup = Setup("conv_net")
    model = setup.write(all_small(setup.topology, "mse"))
    producers = {name: node for node in model.graph.node for name in node.output}
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    (node,) = [node for node in model.graph.node if node.op_type == "Concat"]

    scales = {tuple(float(arrays[name]) for name in producers[operand].input[1:]) for operand in node.input}

    assert len(scales) == 1


def test_a_widened_product_reads_f32_and_the_others_bytes() -> None:
    setup = Setup("conv_net")
    strategy = all_small(setup.topology)
    wide = len(next(site for site in setup.topology.sites if site.name == "left").choices) - 1

    model = setup.write(strategy.with_choice({"left": wide}))

    producers = {name: node for node in model.graph.node for name in node.output}
    nodes = {node.name: node for node in model.graph.node}
    assert producers[nodes["left"].input[0]].op_type != "DequantizeLinear"
    assert producers[nodes["right"].input[0]].op_type == "DequantizeLinear"


def test_sixteen_bits_raise_the_opset() -> None:
    setup = Setup("mlp", "power_of_two")

    model = setup.write(all_small(setup.topology).with_choice({"first": 1, "second": 1}))

    assert [entry.version for entry in model.opset_import if not entry.domain] == [21]
    assert setup.evaluator.quality_of(OrtModule(model).run).error < 0.02


def test_scales_for_an_accelerator_are_powers_of_two() -> None:
    setup = Setup("conv_net", "power_of_two")
    strategy = all_small(setup.topology)

    model = setup.write(strategy)

    scales = [numpy_helper.to_array(t) for t in model.graph.initializer if t.name.endswith(".scale")]
    assert len(scales) > 8
    assert all(np.all(np.log2(scale) % 1 == 0) for scale in scales)


def test_the_given_model_is_not_changed(rng: np.random.Generator) -> None:
    model = conv_net(rng)
    before = model.SerializeToString(deterministic=True)

    prepare(model)

    assert model.SerializeToString(deterministic=True) == before
