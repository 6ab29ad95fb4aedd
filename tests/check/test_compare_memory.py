"""What `verify="always"` may ask of the machine."""

from __future__ import annotations

import tracemalloc

import numpy as np

import tc
from tests.frontend.models import make_model, node


def test_verifying_a_model_whose_sizes_are_never_found_takes_little_memory() -> None:
    """Seven scales fit one size of the last dim alone: every size up to 640 was tried, for four dims at once, and memory ran out."""
    scales = np.linspace(0.1, 0.8, 7, dtype=np.float32)
    nodes = [node("QuantizeLinear", "x s z", "q", axis=-1), node("DequantizeLinear", "q s z", "y", axis=-1)]
    inputs = {"x": (np.float32, ["a", 4, "b", "c"]), "z": (np.int8, [7])}
    model = make_model(nodes, inputs, ["y"], {"s": scales}, opset=19)
    tracemalloc.start()

    module = tc.compile(model, threads=1, verify="always")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 1 << 30
    x = np.full((1, 4, 2, 7), 0.8, np.float32)
    assert np.allclose(module(x, np.zeros(7, np.int8)), 0.8, atol=0.4)
