"""Networks that a seed draws: the same for each seed, of all kinds, and `tc` computes them as onnxruntime does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import tc
from benchmarks import zoo
from benchmarks.drawn_networks import make_drawn
from tests.frontend.models import run_onnxruntime


def test_a_seed_draws_one_network() -> None:
    first, again, other = (make_drawn(np.random.default_rng(seed)).SerializeToString() for seed in (3, 3, 4))

    assert first == again != other


def test_drawn_networks_are_valid_and_differ() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        model = make_drawn(np.random.default_rng(seed))
        onnx.checker.check_model(model, full_check=True)
        seen.update({node.op_type for node in model.graph.node})

    wanted = {"ConvTranspose", "Resize", "Concat", "Split", "MaxPool", "Gemm", "HardSigmoid", "LeakyRelu", "HardSwish", "Clip"}
    assert all(seen[name] >= 3 for name in wanted), seen


def test_the_zoo_knows_them_by_their_seeds() -> None:
    assert zoo.signature("drawn_7")[0].name == "image"
    assert zoo.entry_of("drawn_7_qdq").twin == "drawn_7"
    for name in ("drawn_", "drawn_x", "drawn_1_qdq_qdq"):
        with pytest.raises(zoo.ZooError, match="no model"):
            zoo.path(name)


@pytest.mark.parametrize("seed", [7, 9])
def test_a_drawn_network_is_computed_as_onnxruntime_does(seed: int, rng: np.random.Generator) -> None:
    name = f"drawn_{seed}"
    arrays = zoo.random_inputs(name, rng)
    (expected,) = run_onnxruntime(onnx.load(zoo.path(name)), arrays)

    (found,) = tc.compile(str(zoo.path(name))).run(arrays).values()

    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
