"""Small integers that several kernels read as floats are stored as integers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tc.frontend.registry import import_model
from tc.interp import run_function
from tc.ir.graph import Binding, CallFunction, Function
from tc.ir.module import IRModule
from tc.passes.pipeline import fuse_model, lay_out, prepare_model
from tc.target import Target
from tests.frontend.models import run_onnxruntime
from tests.passes.test_integer_graphs import Net

PLAIN = Target.parse("x86-64-v4:cores=1")
WITH_VNNI = dataclasses.replace(PLAIN, features=(*PLAIN.features, "avx512vnni"))
"""Which multiplies bytes as they are, where the plain target wants them as words in what convolutions read."""


def fused(net: Net, *outputs: str, target: Target = WITH_VNNI) -> IRModule:
    return fuse_model(lay_out(prepare_model(import_model(net.model(*outputs)), target))).graph


def stored(module: IRModule) -> list[str]:
    """The dtypes of what kernels hand to each other."""
    main = module.main
    assert isinstance(main, Function)
    inner = [b for b in main.bindings if isinstance(b, Binding) and not set(b.targets) & set(main.results)]
    return [str(target.type.dtype) for b in inner if isinstance(b.value, CallFunction) for target in b.targets]  # type: ignore[union-attr]


def check(net: Net, *outputs: str, target: Target = WITH_VNNI) -> IRModule:
    module = fused(net, *outputs, target=target)
    expected = run_onnxruntime(net.model(*outputs), net.arrays)
    for found, wanted in zip(run_function(module, "main", list(net.arrays.values())), expected, strict=True):
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=1e-5, atol=1)
    return module


def layer(net: Net, x: str, outputs: int, inputs: int, size: int, **attrs: object) -> str:
    made = net.add("Conv", x, net.dq(net.const(net.numbers(np.int8, (outputs, inputs, size, size))), 0.01), **attrs)
    return net.dq(net.q(made, 0.4, np.uint8(120)), 0.4, np.uint8(120))


each_target = pytest.mark.parametrize("target,dtypes", [(WITH_VNNI, {"u8", "i32"}), (PLAIN, {"u8", "i16", "i32"})], ids=["vnni", "plain"])


@each_target
def test_a_residual_block_stores_bytes_alone(target: Target, dtypes: set[str]) -> None:
    net = Net()
    x = net.dq(net.q(net.input(np.float32, 1, 16, 8, 8), 0.03, np.uint8(110)), 0.03, np.uint8(110))
    for _ in range(2):
        made = layer(net, layer(net, x, 16, 16, 1), 16, 16, 3, pads=[1, 1, 1, 1])
        x = net.dq(net.q(net.add("Relu", net.add("Add", made, x)), 0.3, np.uint8(0)), 0.3, np.uint8(0))
    y = net.q(net.add("GlobalAveragePool", x), 0.2, np.uint8(0))

    assert set(stored(check(net, y, target=target))) <= dtypes


@each_target
def test_readers_of_several_kinds_read_bytes(target: Target, dtypes: set[str]) -> None:
    net = Net()
    x = layer(net, net.dq(net.input(np.uint8, 1, 16, 8, 8), 0.03, np.uint8(110)), 16, 16, 1)
    mean = net.add("ReduceMean", x, net.const([2, 3]))
    normal = net.add("Softmax", x, axis=3)

    module = check(net, mean, normal, net.add("Mul", net.add("Sigmoid", x), x), target=target)

    assert set(stored(module)) <= dtypes


def test_what_leaves_is_stored_as_it_leaves() -> None:
    net = Net()
    x = layer(net, net.dq(net.input(np.uint8, 1, 16, 8, 8), 0.03, np.uint8(110)), 16, 16, 1)

    check(net, x, net.add("Sigmoid", x))


def test_a_reader_that_must_have_floats_gets_them() -> None:
    net = Net()
    x = layer(net, net.dq(net.input(np.uint8, 1, 16, 8, 8), 0.03, np.uint8(110)), 16, 16, 1)
    (largest, places) = net.add("TopK", x, net.const([3]), axis=1, outputs=2).split()

    check(net, largest, places, net.add("Sigmoid", x))


def test_what_is_dequantized_by_a_zero_point_of_its_own_kernel_stays_there() -> None:
    """Nothing else that its kernel holds has a place of its own."""
    net = Net()
    q, scale, zero = net.add("DynamicQuantizeLinear", net.input(np.float32, 2, 9, 8, 8), outputs=3).split()
    x = net.add("DequantizeLinear", q, scale, zero)

    check(net, net.add("Softmax", x, axis=3), net.add("ReduceMean", x, net.const([2, 3])))
