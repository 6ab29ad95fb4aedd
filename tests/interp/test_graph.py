"""The graph interpreter: kernels inside graphs, types and requirements checked on the way."""

from __future__ import annotations

import numpy as np
import pytest

from tc.errors import InputError
from tc.interp import Observation, run_function
from tc.ir.expr import Var, equal
from tc.ir.graph import Call, CallFunction
from tc.ir.node import walk
from tc.ir.parser import parse_module
from tc.ops.registry import Requirement
from tc.passes.graph.fuse_ops import fuse_ops
from tc.passes.lower import lower_primitives

TEXT = """
@graph
def main(x: f32[n, 8], w: f32[8, 3]):
    a: f32[n, 8] = relu(x)
    b: f32[n, 3] = matmul(a, w)
    c: f32[n, 3] = softmax(b, axis=1)
    return c
"""


def arrays(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((n, 8), (8, 3))]


def test_a_lowered_module_means_what_its_graph_means() -> None:
    module = parse_module(TEXT)
    inputs = arrays(5)

    (expected,) = run_function(module, "main", inputs)
    (fused,) = run_function(fuse_ops(module), "main", inputs)
    (lowered,) = run_function(lower_primitives(fuse_ops(module)), "main", inputs)

    x, w = inputs
    e = np.exp(np.maximum(x, 0) @ w)
    np.testing.assert_allclose(expected, e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(fused, expected)
    np.testing.assert_allclose(lowered, expected, rtol=1e-5)


def test_observers_see_operands_results_and_dims() -> None:
    seen: list[Observation] = []

    run_function(fuse_ops(parse_module(TEXT)), "main", arrays(2), seen.append)

    outer = [item for item in seen if isinstance(item.binding.value, CallFunction)]
    assert next(call.op for item in seen if isinstance(call := item.binding.value, Call)) == "relu"
    assert outer and all({var.name: n for var, n in item.dims.items()}["n"] == 2 for item in outer)
    assert all(item.results[0].shape == (2, 3) for item in outer[-1:])


def test_requirements_are_checked_when_their_dims_are_known() -> None:
    module = parse_module(TEXT)
    n = next(node for node in walk(module.main) if isinstance(node, Var))
    odd = Requirement(equal(n % 2, 1), "n must be odd")

    run_function(module, "main", arrays(3), requirements=[odd])
    with pytest.raises(InputError, match="n must be odd"):
        run_function(module, "main", arrays(4), requirements=[odd])


def test_a_value_that_is_not_of_its_type_is_refused() -> None:
    module = parse_module(TEXT.replace("c: f32[n, 3]", "c: f32[n, 4]"))

    with pytest.raises(InputError, match=r"c is \[2, 3\], but must be f32\[n, 4\]"):
        run_function(module, "main", arrays(2))
