"""Quantized graphs of 16 bits in integers: sums exact, however long, of digits where 32 bits would not hold them; against numpy in i64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest

import tc
from benchmarks.qdq_reference import run_in_double
from tc.passes.pipeline import SIMPLIFY, STRICT_SIMPLIFY
from tests.frontend.models import run_onnxruntime
from tests.passes.test_graph_rules import ops_of
from tests.passes.test_integer_graphs import (
    CONVOLUTIONS,
    FLOATS,
    S8,
    U8,
    Net,
    exact_convolution,
    integers_of,
    run,
    zero_points,
)

U16, S16 = np.uint16, np.int16
PAIRS = [(x, w) for x, w in itertools.product((U8, S8, U16, S16), repeat=2) if {x, w} & {U16, S16}]
SCALE = np.float32(2.0**-13)


def rounded(sums: np.ndarray, *scales: Any) -> np.ndarray:
    """Exact sums, rounded once to f32, by the scale."""
    product: np.ndarray = np.prod([np.asarray(scale, np.float64) for scale in np.broadcast_arrays(*scales)], axis=0)
    return sums.astype(np.float32) * product.astype(np.float32)


def product(seed: int, x_type: type, w_type: type, shapes: Any, *, literal: str = "right", per_channel: bool = True) -> Any:
    """A product, its output, and what it is: the sums of i64, rounded, by the scales. `literal`: which side is, if one."""
    net = Net(seed)
    rng, (x_shape, w_shape) = net.rng, shapes
    axis = (len(w_shape) - 1 if literal == "right" else len(x_shape) - 2) if per_channel and literal else None
    own = () if axis is None else ((w_shape if literal == "right" else x_shape)[axis],)
    scale = rng.uniform(0.5, 1, own).astype(np.float32)
    sides, arrays, scales = [], [], []
    for side, dtype, shape in (("left", x_type, x_shape), ("right", w_type, w_shape)):
        mine = own if side == literal else ()
        zero = zero_points(rng, dtype, mine)
        values = net.numbers(dtype, shape)
        if side == literal:
            name = net.const(values)
        else:
            name = net.input(dtype, *shape)
            values = net.arrays[name]
        each = scale if side == literal else SCALE
        sides.append(net.dq(name, each, zero, **({"axis": axis} if mine else {})))
        along = zero.reshape(-1, 1) if mine and literal == "left" else zero
        arrays.append(values.astype(np.int64) - along.astype(np.int64))
        scales.append(each.reshape(-1, 1) if mine and literal == "left" else each)
    sums = arrays[0] @ arrays[1]
    return net, net.add("MatMul", *sides), rounded(sums, *scales) if sums.size else sums.astype(np.float32)


SHAPES = [((3, 5), (5, 9)), ((2, 17, 70), (70, 33)), ((300,), (300, 16)), ((2, 3, 5), (2, 5, 4)), ((0, 5), (5, 8)), ((20, 700), (700, 8))]


@pytest.mark.parametrize(("x_type", "w_type"), PAIRS)
def test_products_with_literals_are_exact(x_type: type, w_type: type) -> None:
    for seed, shapes in enumerate(SHAPES):
        pipeline = (SIMPLIFY, STRICT_SIMPLIFY)[seed % 2]
        net, y, expected = product(seed, x_type, w_type, shapes, per_channel=bool(seed % 2) and len(shapes[1]) == 2)

        module = integers_of(net.model(y), pipeline)

        assert not FLOATS & set(ops_of(module)), shapes
        np.testing.assert_array_equal(run(module, net)[0], expected)


@pytest.mark.parametrize(("x_type", "w_type"), [(U16, S8), (S16, S16), (U16, U16), (S16, U8), (U8, S16)])
def test_compiled_products_are_exact(x_type: type, w_type: type) -> None:
    """Panels of pairs of words, few rows and many, columns and terms left over, one thread and two."""
    for seed, (rows, depth, columns) in enumerate(((3, 37, 43), (40, 600, 16), (1, 90, 32), (17, 1, 5), (20, 33, 8))):
        net, y, expected = product(seed, x_type, w_type, ((rows, depth), (depth, columns)))
        np.testing.assert_array_equal(tc.compile(net.model(y), threads=1 + seed % 2).run(net.arrays)[y], expected)


@pytest.mark.parametrize(("x_type", "w_type"), PAIRS)
def test_literals_on_the_left(x_type: type, w_type: type) -> None:
    for seed, shapes in enumerate((((4, 6), (6, 5)), ((3, 300), (2, 300, 7)), ((5,), (5, 4)))):
        net, y, expected = product(seed, x_type, w_type, shapes, literal="left", per_channel=len(shapes[0]) > 1)

        module = integers_of(net.model(y))

        assert not FLOATS & set(ops_of(module)), shapes
        np.testing.assert_array_equal(run(module, net)[0], expected)


@pytest.mark.covering
@pytest.mark.parametrize(("x_type", "w_type"), PAIRS)
def test_products_of_activations_are_exact(x_type: type, w_type: type) -> None:
    for seed, shapes in enumerate((((4, 6), (6, 5)), ((2, 3, 64), (2, 64, 7)), ((3, 1), (1, 2)), ((2, 3, 300), (300, 5)))):
        net, y, expected = product(seed, x_type, w_type, shapes, literal="")

        module = integers_of(net.model(y))

        assert not FLOATS & set(ops_of(module)), shapes
        np.testing.assert_array_equal(run(module, net)[0], expected)
    np.testing.assert_array_equal(tc.compile(net.model(y), threads=1).run(net.arrays)[y], expected)


def test_sums_of_too_many_parts_stay_floats() -> None:
    net, y, _ = product(0, S16, S16, ((3, 4000), (4000, 2)), literal="")

    assert "matmul" in ops_of(integers_of(net.model(y)))


@pytest.mark.parametrize("value", [-(2**15), 2**15 - 1])
@pytest.mark.parametrize("depth", [1, 2, 255, 256, 257, 1000])
def test_the_largest_sums_do_not_wrap(value: int, depth: int) -> None:
    """All at one end: pairs of the least words overflow 32 bits at once, and 256 words times bytes just do not."""
    net = Net()
    x = net.input(S16, 3, depth)
    net.arrays[x][:] = -(2**15)
    w = np.full((depth, 9), value, np.int16)
    w[:, 0], w[:, 1] = -128, 127
    y = net.add("MatMul", net.dq(x, SCALE, S16(2**15 - 1)), net.dq(net.const(w), np.ones(9), np.zeros(9, np.int16), axis=1))

    module = integers_of(net.model(y))

    assert not FLOATS & set(ops_of(module))
    expected = rounded(np.full((3, depth), -(2**16) + 1, np.int64) @ w.astype(np.int64), SCALE)
    np.testing.assert_array_equal(run(module, net)[0], expected)
    np.testing.assert_array_equal(tc.compile(net.model(y), threads=1).run(net.arrays)[y], expected)


def convolution(seed: int, x_type: type, w_type: type, case: int, per_channel: bool) -> tuple[Net, str, np.ndarray]:
    x_shape, w_shape, attrs = CONVOLUTIONS[case]
    net = Net(seed)
    x, rng = net.input(x_type, *x_shape), net.rng
    own = (w_shape[0],) if per_channel else ()
    x_zero, w_zero = zero_points(rng, x_type), zero_points(rng, w_type, own)
    w, scale = net.numbers(w_type, w_shape), rng.uniform(0.5, 1, own).astype(np.float32)
    step = np.float32(np.float64(SCALE) * scale)
    steps = rng.integers(-(2**30), 2**30, w_shape[0]).astype(np.int32)
    bias = net.dq(net.const(steps), step, **({"axis": 0} if per_channel else {}))
    kernels = net.dq(net.const(w), scale, w_zero, **({"axis": 0} if per_channel else {}))
    y = net.add("Conv", net.dq(x, SCALE, x_zero), kernels, bias, **attrs)
    along = (-1, *[1] * (len(w_shape) - 1))
    less = w.astype(np.int64) - w_zero.astype(np.int64).reshape(along if per_channel else ())
    sums = exact_convolution(net.arrays[x].astype(np.int64) - int(x_zero), less, attrs)
    return net, y, (sums, steps, step)  # type: ignore[return-value]


@pytest.mark.parametrize(("x_type", "w_type"), PAIRS)
def test_convolutions_are_exact(x_type: type, w_type: type) -> None:
    """The bias is added to the integers where they have room for it, to the rounded numbers elsewhere."""
    for seed, (case, per_channel) in enumerate(itertools.product(range(len(CONVOLUTIONS)), (False, True))):
        pipeline = (STRICT_SIMPLIFY, SIMPLIFY)[seed % 3 > 0]
        net, y, (sums, steps, step) = convolution(seed, x_type, w_type, case, per_channel)
        along = (1, -1, *[1] * (sums.ndim - 2))

        module = integers_of(net.model(y), pipeline)

        assert not FLOATS & set(ops_of(module)) and "conv_integer" in ops_of(module)
        scale, bias = (each.reshape(along) if each.ndim else each for each in (step, steps))
        at_once, apart = (sums + bias).astype(np.float32) * scale, sums.astype(np.float32) * scale + bias.astype(np.float32) * scale
        (found,) = run(module, net)
        assert found.shape == at_once.shape
        assert ((found == at_once) | (found == apart)).all()


@pytest.mark.parametrize(("x_type", "w_type"), [(U16, S8), (S16, S16), (U16, U16), (U8, S16)])
def test_compiled_convolutions_are_the_interpreted_ones(x_type: type, w_type: type) -> None:
    for seed, case in enumerate(range(len(CONVOLUTIONS))):
        net, y, _ = convolution(seed, x_type, w_type, case, True)
        net.nodes.append(onnx.helper.make_node("Relu", [y], ["r"]))
        z = net.q("r", np.float32(3.0), U16(77))
        model = net.model(z)

        found = tc.compile(model, threads=2).run(net.arrays)[z]

        np.testing.assert_array_equal(found, run(integers_of(model), net)[0])


@pytest.mark.parametrize("x_type", [U16, S16])
def test_a_network_of_words_is_no_further_from_exact_numbers_than_onnxruntimes(x_type: type) -> None:
    net, low = Net(4), int(np.iinfo(x_type).min)
    zero = x_type(low + 32000)
    x = net.dq(net.q(net.dq(net.input(x_type, 2, 12, 8, 8), 1e-4, x_type(low + 30000)), 1.1e-4, zero), 1.1e-4, zero)
    w = net.dq(net.const(net.numbers(S8, (20, 12, 3, 3))), net.rng.uniform(0.001, 0.002, 20), np.zeros(20, S8), axis=0)
    made = net.q(net.add("Relu", net.add("Conv", x, w, pads=[1, 1, 1, 1])), 2e-4, x_type(low))
    rows = net.add("Reshape", net.dq(made, 2e-4, x_type(low)), net.const(np.array([2, 20, 64])))
    w = net.dq(net.const(net.numbers(S16, (64, 10))), 1e-5, S16(5))
    model = net.model(net.q(net.add("MatMul", rows, w), 2e-3, x_type(low + 32768)))
    (exact,) = (array.astype(np.float64) for array in run_in_double(model, net.arrays))
    (other,) = run_onnxruntime(model, net.arrays)

    found = tc.compile(model, threads=1)(*net.arrays.values())

    assert found.dtype == other.dtype and not FLOATS & set(ops_of(integers_of(model)))
    assert np.abs(found - exact).max() <= 1
    assert np.linalg.norm(found - exact) <= 1.05 * np.linalg.norm(other - exact)


def test_rows_of_any_number() -> None:
    net = Net(3)
    x = net.input(U16, 7, 96, declared=["n", 96])
    w = net.numbers(S8, (96, 24))
    y = net.add("MatMul", net.dq(x, SCALE, U16(32768)), net.dq(net.const(w), np.float32(1), S8(0)))
    module = tc.compile(net.model(y), threads=1)
    for rows in (0, 1, 2, 3, 4, 5, 13, 16, 50):
        values = net.numbers(U16, (rows, 96))
        np.testing.assert_array_equal(module(values), rounded((values.astype(np.int64) - 32768) @ w.astype(np.int64), SCALE))
