"""`verify="always"`: every compiled kernel beside the reference interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tc
import tc.codegen.kernels
from tc.check.compare import difference, run_kernel, verify_kernels
from tc.errors import VerifyError
from tc.ir.dtype import bool_, f32, i32
from tc.ir.expr import Max, Min, Var, equal
from tc.ir.loop import PrimFunc
from tc.ir.node import Node, transform, walk
from tc.ir.parser import parse_module
from tc.ops.registry import Requirement
from tests.frontend.models import make_model, node

TEXT = """
@graph
def main(x: f32[n, 8], w: f32[8, 3]):
    a: f32[n, 8] = relu(x)
    b: f32[n, 3] = matmul(a, w)
    c: f32[n, 3] = softmax(b, axis=1)
    return c
"""


def test_kernels_that_keep_their_meaning_pass() -> None:
    module = tc.compile(parse_module(TEXT), verify="always")

    assert len(module.report().kernels) >= 2


def break_finish_loops(func: PrimFunc, *options: Any) -> PrimFunc:
    """What `finish_loops` does, and a maximum becomes a minimum."""

    def swap(node: Node) -> Node | None:
        return Min(node.lhs, node.rhs) if isinstance(node, Max) and node.dtype == f32 else None

    return transform(finish_loops(func, *options), swap)


finish_loops = tc.codegen.kernels.finish_loops


def test_a_kernel_that_computes_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tc.codegen.kernels, "finish_loops", break_finish_loops)

    with pytest.raises(VerifyError, match=r"kernel \w+: \w+ differs from the reference interpreter") as caught:
        tc.compile(parse_module(TEXT), verify="always")

    assert caught.value.exit_code == 3


def test_sizes_are_tried_until_the_conditions_hold() -> None:
    module = parse_module(TEXT)
    n = next(node for node in walk(module.main) if isinstance(node, Var))

    assert verify_kernels(module, module, {}, [Requirement(equal(n % 48, 0), "a multiple of 48")]) == 0
    assert verify_kernels(module, module, {}, [Requirement(equal(n, 7), "seven")]) == 0  # none of them; nothing is wrong


def test_what_counts_as_a_difference() -> None:
    ones = np.ones(2000, np.float32)
    hole = np.where(np.arange(2000) == 3, np.nan, ones).astype(np.float32)
    flipped = np.arange(2000) == 7

    assert difference(ones, ones * np.float32(1 + 1e-6), f32, True) is None
    assert "largest error" in (difference(ones, ones * np.float32(1.001), f32, True) or "")
    assert "NaN" in (difference(ones, hole, f32, True) or "")
    assert difference(hole, hole, f32, True) is None
    assert difference(np.zeros(2000, bool), flipped, bool_, True) is None
    assert difference(np.zeros(2000, bool), flipped, bool_, False) == "1 of 2000 elements are not equal"
    assert difference(np.zeros(2000, np.int32), flipped * np.int32(2), i32, True) is not None


def test_roundings_of_large_numbers_are_ties_more_often() -> None:
    # "12 of 3200 elements are not equal": values quantized to 16 bits, which f32 has to few thousandths of a step
    moved = np.where(np.arange(3200) % 256 == 0, 1, 0).astype(np.int32)
    large = np.full(3200, 30000, np.int32)

    assert difference(large, large + moved, i32, True) is None
    assert difference(large, large + moved, i32, False) is not None
    assert difference(large, large + moved * 2, i32, True) is not None
    assert difference(large // 100, large // 100 + moved, i32, True) == "13 of 3200 elements are not equal"


def test_a_kernel_that_nodes_share_gets_what_they_differ_in() -> None:
    # "numpy dtype object has no counterpart": the function was taken for the operand that the shared kernel has in addition.
    nodes = [node("MatMul", "x w", "a"), node("LeakyRelu", "a", "b", alpha=0.3), node("MatMul", "b w", "c")]
    nodes.append(node("LeakyRelu", "c", "d", alpha=-0.3))
    w = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)

    module = tc.compile(make_model(nodes, {"x": (np.float32, ["n", 4])}, ["d"], {"w": w}), verify="always")

    assert len(module.report().kernels) < len(nodes)


def test_kernels_whose_dims_are_merged_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    # "layer_norm takes x: f32[b * s, 64], found f32[b, s, 64]": a kernel has one dim where neighbours lie without gaps.
    module = parse_module("""
@graph
def main(x: f32[b, s, 64], scale: f32[64], shift: f32[64]):
    y: f32[b, s, 64] = layer_norm(x, scale, shift)
    return y
""")

    tc.compile(module, verify="always")

    monkeypatch.setattr("tc.check.compare.run_kernel", lambda *given: [array + 1 for array in run_kernel(*given)])
    with pytest.raises(VerifyError, match="the largest error is"):
        tc.compile(module, verify="always")


def test_a_model_without_a_suitable_input_is_not_called_wrong() -> None:
    # "the conditions of main hold for none of the sizes tried"; the sizes are data, and random data are no sizes.
    model = make_model([node("AffineGrid", "t s", "y")], {"t": (np.float32, ["n", 2, 3]), "s": (np.int64, [4])}, ["y"], opset=20)

    compiled = tc.compile(model, verify="always")

    assert compiled(np.ones((1, 2, 3), np.float32), np.array([1, 1, 2, 2])).shape == (1, 2, 2, 2)


def test_a_kernel_may_be_as_uncertain_as_what_it_computes() -> None:
    # One rounding of x * y + 10^6 instead of two was "the largest error is 0.0625": what cancels leaves the roundings before it.
    nodes = [node("Mul", "x y", "a"), node("Add", "a big", "b"), node("Sub", "b near", "c")]
    constants = {"big": np.full(64, 1e6, np.float32), "near": np.full(64, 1e6 - 1, np.float32)}
    inputs = {"x": (np.float32, [500, 64]), "y": (np.float32, [500, 64])}

    tc.compile(make_model(nodes, inputs, ["c"], constants), verify="always")


def test_uncertainty_does_not_excuse_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tc.codegen.kernels, "finish_loops", break_finish_loops)
    text = """
@graph
def main(x: f32[64], y: f32[64]):
    a: f32[64] = mul(x, y)
    b: f32[64] = relu(a)
    c: f32[64] = sub(b, x)
    return c
"""

    with pytest.raises(VerifyError, match="the largest error is"):
        tc.compile(parse_module(text), verify="always")
