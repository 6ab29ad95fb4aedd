"""Quantized graphs in integers: exact sums, one rounding of each, and what onnxruntime makes of the same file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import tc
from tc.frontend.onnx import load_model
from tc.interp import run_function
from tc.ir.graph import Function, TensorConst, all_bindings, atoms_of
from tc.ir.module import IRModule
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY, STRICT_SIMPLIFY
from tests.draws import exact_range
from tests.frontend.models import make_model, node, run_onnxruntime
from tests.passes.test_graph_rules import ops_of

U8, S8 = np.uint8, np.int8
FLOATS = {"conv", "matmul", "einsum"}


class Net:
    """A quantized network in the making."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, tuple[Any, Sequence[Any]]] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}

    def input(self, dtype: type, *shape: int, declared: Sequence[Any] | None = None) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = (dtype, declared or shape)
        self.arrays[name] = self.numbers(dtype, shape)
        return name

    def numbers(self, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
        """Random ones, the ends of the range among them more often than others."""
        if dtype is np.float32:
            return self.rng.standard_normal(shape).astype(np.float32)
        least, most = exact_range(dtype)
        drawn: np.ndarray = self.rng.integers(least, most + 1, shape)
        return np.where(self.rng.random(shape) < 0.1, self.rng.choice([least, most], shape), drawn).astype(dtype)

    def const(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        names = " ".join(f"t{len(self.nodes)}_{k}" for k in range(outputs))
        self.nodes.append(node(op, " ".join(inputs), names, **attrs))
        return names

    def dq(self, x: str, scale: Any, zero: Any = None, **attrs: Any) -> str:
        return self.add("DequantizeLinear", x, self.const(np.float32(scale)), *([] if zero is None else [self.const(zero)]), **attrs)

    def q(self, x: str, scale: Any, zero: Any, **attrs: Any) -> str:
        return self.add("QuantizeLinear", x, self.const(np.float32(scale)), self.const(zero), **attrs)

    def model(self, *outputs: str) -> onnx.ModelProto:
        return make_model(self.nodes, self.inputs, outputs, self.constants, opset=21)


def integers_of(model: onnx.ModelProto, pipeline: str = SIMPLIFY) -> IRModule:
    return run_pipeline(load_model(model, on_unsupported="error").module, pipeline)


def run(module: IRModule, net: Net) -> list[np.ndarray]:
    return list(run_function(module, "main", list(net.arrays.values())))


def check(net: Net, *outputs: str, absent: set[str] = FLOATS, share: float = 1e-3) -> IRModule:
    """The network in integers has none of these operators, and onnxruntime's results but for a quantum in few places."""
    model = net.model(*outputs)
    module = integers_of(model)
    assert not absent & set(ops_of(module)), ops_of(module)
    for found, expected in zip(run(module, net), run_onnxruntime(model, net.arrays), strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        if found.dtype == np.float32:
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * float(np.abs(expected).max(initial=0)))
        else:
            apart = np.abs(found.astype(np.int64) - expected.astype(np.int64))
            assert apart.max(initial=0) <= 1 and (apart != 0).sum() <= max(share * apart.size, 1 if apart.size > 99 else 0)
    return module


def zero_points(rng: np.random.Generator, dtype: type, shape: tuple[int, ...] = ()) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.choice([info.min, info.max, 0, 7, (info.min + info.max + 1) // 2], shape).astype(dtype)


PRODUCTS = [((3, 5), (5, 4)), ((2, 3, 5), (5, 4)), ((5,), (5, 4)), ((2, 3, 5), (2, 5, 4)), ((3, 5), (5,)), ((0, 5), (5, 4))]
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]] = [
    ((1, 5, 7, 6), (6, 5, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 4, 6, 5), (6, 2, 3, 2), {"group": 2, "strides": [2, 1], "pads": [0, 1, 2, 0]}),
    ((1, 6, 6, 6), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1], "dilations": [1, 1]}),
    ((1, 3, 9), (4, 3, 4), {"strides": [3]}),
    ((1, 1, 4, 4), (1, 1, 1, 1), {}),
    ((0, 2, 4, 4), (3, 2, 2, 2), {}),
]


def convolution(seed: int, x_type: type, w_type: type, case: int, per_channel: bool) -> tuple[Net, str, np.ndarray]:
    """A network of one convolution, its output, and the same in numpy: exact sums, rounded once to f32, times the scale."""
    x_shape, w_shape, attrs = CONVOLUTIONS[case]
    net = Net(seed)
    x, rng = net.input(x_type, *x_shape), net.rng
    outputs = w_shape[0]
    own = (outputs,) if per_channel else ()
    x_zero, w_zero = zero_points(rng, x_type), zero_points(rng, w_type, own)
    w, w_scale = net.numbers(w_type, w_shape), rng.uniform(0.01, 0.05, own).astype(np.float32)
    scale = np.float32(np.float32(0.04).astype(np.float64) * w_scale)
    bias = rng.integers(-5000, 5000, outputs).astype(np.int32)
    axis = {"axis": 0} if per_channel else {}
    steps = net.dq(net.const(bias), scale, **axis)
    made = net.add("Conv", net.dq(x, 0.04, x_zero), net.dq(net.const(w), w_scale, w_zero, **axis), steps, **attrs)
    y = net.q(made, 0.7, np.uint8(100))
    across = (-1, *[1] * (len(w_shape) - 1))
    differences = w.astype(np.int64) - w_zero.astype(np.int64).reshape(across if per_channel else ())
    sums = exact_convolution(net.arrays[x].astype(np.int64) - int(x_zero), differences, attrs)
    sums = sums + bias.astype(np.int64).reshape(1, -1, *[1] * (len(w_shape) - 2))
    real = sums.astype(np.float32) * scale.reshape((1, *across[:-1]) if per_channel else ())
    expected = np.clip(np.round(real / np.float32(0.7)) + 100, 0, 255).astype(np.uint8)
    return net, y, expected


def exact_convolution(x: np.ndarray, w: np.ndarray, attrs: Mapping[str, Any]) -> np.ndarray:
    """In i64, of numbers whose pads are 0."""
    rank, groups = x.ndim - 2, attrs.get("group", 1)
    pads, strides = attrs.get("pads", [0] * 2 * rank), attrs.get("strides", [1] * rank)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], tuple(range(2, 2 + rank)))
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
    inside, found = list(range(2 + rank, 2 + 2 * rank)), []
    for own, image in zip(np.split(w, groups), np.split(windows, groups, 1), strict=True):
        found.append(np.moveaxis(np.tensordot(image, own, ([1, *inside], list(range(1, 2 + rank)))), -1, 1))
    return np.concatenate(found, 1)


@pytest.mark.covering
@pytest.mark.parametrize("pipeline", [SIMPLIFY, STRICT_SIMPLIFY], ids=("default", "strict"))
@pytest.mark.parametrize(("x_type", "w_type"), list(itertools.product((U8, S8), (U8, S8))))
def test_convolutions_are_exact(x_type: type, w_type: type, pipeline: str) -> None:
    for case, per_channel in itertools.product(range(len(CONVOLUTIONS)), (False, True)):
        for seed in range(3):
            net, y, expected = convolution(seed, x_type, w_type, case, per_channel)

            module = integers_of(net.model(y), pipeline)

            assert not FLOATS & set(ops_of(module))
            np.testing.assert_array_equal(run(module, net)[0], expected)


def test_a_convolution_is_onnxruntimes() -> None:
    for case, (x_type, w_type) in itertools.product(range(4), [(U8, S8), (U8, U8), (S8, S8)]):
        net, y, _ = convolution(case, x_type, w_type, case, per_channel=x_type is not w_type)

        check(net, y)


@pytest.mark.covering(2)
@pytest.mark.parametrize(("x_type", "w_type"), list(itertools.product((U8, S8), (U8, S8))))
@pytest.mark.parametrize("shapes", PRODUCTS)
def test_products_with_literals_are_exact(shapes: Any, x_type: type, w_type: type) -> None:
    for seed, per_column in itertools.product(range(4), (False, True)):
        net = Net(seed)
        x, w = net.input(x_type, *shapes[0]), net.numbers(w_type, shapes[1])
        own = (w.shape[-1],) if per_column and w.ndim > 1 else ()
        x_zero, w_zero = zero_points(net.rng, x_type), zero_points(net.rng, w_type, own)
        w_scale = net.rng.uniform(0.01, 0.05, own).astype(np.float32)
        axis = {"axis": w.ndim - 1} if own else {}
        y = net.add("MatMul", net.dq(x, 0.04, x_zero), net.dq(net.const(w), w_scale, w_zero, **axis))

        module = integers_of(net.model(y))

        assert not FLOATS & set(ops_of(module))
        sums = (net.arrays[x].astype(np.int64) - int(x_zero)) @ (w.astype(np.int64) - w_zero)
        scale = (np.float64(np.float32(0.04)) * w_scale).astype(np.float32)
        np.testing.assert_array_equal(run(module, net)[0], sums.astype(np.float32) * scale)


@pytest.mark.parametrize("rows", [False, True])
def test_products_with_a_literal_on_the_left(rows: bool) -> None:
    net = Net()
    x, w = net.input(U8, 2, 5, 4), net.numbers(S8, (3, 5))
    scale = net.rng.uniform(0.01, 0.05, (3,) if rows else ()).astype(np.float32)
    left = net.dq(net.const(w), scale, **({"axis": 0} if rows else {}))
    check(net, net.add("MatMul", left, net.dq(x, 0.02, np.uint8(130))))


@pytest.mark.parametrize(("left", "right"), list(itertools.product((U8, S8), (U8, S8))))
def test_products_of_activations_take_zero_points_from_both_sides(left: type, right: type) -> None:
    for seed in range(4):
        net = Net(seed)
        a, b = net.input(left, 2, 3, 6), net.input(right, 2, 6, 4)
        zeros = [zero_points(net.rng, dtype) for dtype in (left, right)]
        y = net.q(net.add("MatMul", net.dq(a, 0.05, zeros[0]), net.dq(b, 0.02, zeros[1])), 0.4987, np.uint8(128))

        check(net, y)


def test_gemm_adds_its_bias_to_the_integers() -> None:
    net = Net()
    x, w = net.dq(net.input(U8, 3, 5), 0.02, np.uint8(9)), net.dq(net.const(net.numbers(S8, (4, 5))), [0.1, 0.2, 0.3, 0.4], axis=0)
    scale = np.float32(0.02) * np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    bias = net.dq(net.const(np.array([2**20, -77, 0, 5], np.int32)), scale, axis=0)

    module = check(net, net.q(net.add("Gemm", x, w, bias, transB=1), 0.1, np.uint8(128)))

    assert [op for op in ops_of(module) if op in ("add", "cast")] == ["add", "cast"]


@pytest.mark.parametrize("depth", [66_000, 200_000])
def test_sums_that_32_bits_do_not_hold_are_split(depth: int) -> None:
    net = Net()
    x, w = net.input(U8, 2, depth), np.full((depth, 3), -128, np.int8)
    net.arrays[x][:] = 255
    y = net.add("MatMul", net.dq(x, 0.5, np.uint8(0)), net.dq(net.const(w), 0.25))

    module = integers_of(net.model(y))

    assert "matmul_integer" in ops_of(module)
    np.testing.assert_array_equal(run(module, net)[0], np.full((2, 3), np.float32(-128 * 255 * depth) * np.float32(0.125)))


def test_windows_whose_sums_32_bits_do_not_hold_are_split() -> None:
    net = Net()
    x, w = net.input(U8, 1, 70_000, 1, 2), np.full((2, 70_000, 1, 1), 127, np.int8)
    net.arrays[x][:] = 0
    y = net.add("Conv", net.dq(x, 0.5, np.uint8(255)), net.dq(net.const(w), 0.5))

    module = integers_of(net.model(y))

    assert ops_of(module).count("conv_integer") == 2
    np.testing.assert_array_equal(run(module, net)[0], np.full((1, 2, 1, 2), np.float32(-127 * 255 * 70_000) * np.float32(0.25)))


def test_long_sums_that_fit_are_one() -> None:
    net = Net()
    x, w = net.input(U8, 2, 100_000), net.rng.integers(-3, 4, (100_000, 3)).astype(np.int8)

    assert ops_of(integers_of(net.model(net.add("MatMul", net.dq(x, 0.5), net.dq(net.const(w), 0.25))))).count("matmul_integer") == 1


def test_a_bias_that_32_bits_do_not_hold_stays_float() -> None:
    net = Net()
    x, w = net.input(U8, 1, 4, 3, 3), net.dq(net.const(net.numbers(S8, (2, 4, 1, 1))), 0.5)
    bias = net.dq(net.const(np.array([2**31 - 1, -(2**31)], np.int32)), 0.25)

    check(net, net.add("Conv", net.dq(x, 0.5), w, bias))


@pytest.mark.parametrize(
    ("scale", "kind"), [(0.0, "conv_integer"), (1e-42, "conv_integer"), (np.inf, "conv"), (np.nan, "conv"), (-0.5, "conv")]
)
def test_scales_that_are_no_scales_mean_what_floats_do(scale: float, kind: str) -> None:
    net = Net()
    x = net.dq(net.input(U8, 1, 3, 4, 4), scale, np.uint8(5))
    y = net.add("Conv", x, net.dq(net.const(net.numbers(S8, (2, 3, 3, 3))), 0.5))
    model = net.model(y)

    module = integers_of(model)

    assert kind in ops_of(module)
    np.testing.assert_allclose(run(module, net)[0], run_onnxruntime(model, net.arrays)[0], rtol=1e-4, atol=1e-37)


MOVES: dict[str, Any] = {
    "reshape": lambda net, x: net.add("Reshape", x, net.const(np.array([4, 30]))),
    "transpose": lambda net, x: net.add("Transpose", x, perm=[2, 0, 3, 1]),
    "slice": lambda net, x: net.add("Slice", x, net.const([1, 4]), net.const([3, -9]), net.const([1, 3]), net.const([1, -2])),
    "squeeze": lambda net, x: net.add("Squeeze", net.add("Slice", x, *map(net.const, ([1], [2], [0]))), net.const([0])),
    "expand": lambda net, x: net.add("Expand", x, net.const([3, 2, 4, 5, 3])),
    "gather": lambda net, x: net.add("Gather", x, net.const([[3, -1], [0, 0]]), axis=1),
    "pad": lambda net, x: net.add("Pad", x, net.const([0, 1, 0, 2, 0, 0, 1, 1])),
    "pad with a number": lambda net, x: net.add("Pad", x, net.const([0, 1, 0, 2, 0, 0, 1, 1]), net.const(np.float32(1.5))),
    "reflect": lambda net, x: net.add("Pad", x, net.const([0, 1, 0, 2, 0, 0, 1, 1]), mode="reflect"),
    "max pool": lambda net, x: net.add("MaxPool", x, kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1]),
    "resize": lambda net, x: net.add("Resize", x, "-", net.const(np.float32([1, 1, 2, 1.7])), mode="nearest"),
    "depth to space": lambda net, x: net.add("DepthToSpace", x, blocksize=2),
    "relu": lambda net, x: net.add("Relu", x),
    "clip": lambda net, x: net.add("Clip", x, net.const(np.float32(-2.5)), net.const(np.float32(30.0))),
    "clip at more than there is": lambda net, x: net.add("Clip", x, net.const(np.float32(-1e9)), net.const(np.float32(6.0))),
}


def dtypes_of(module: IRModule) -> set[str]:
    main = module.main
    assert isinstance(main, Function)
    return {str(target.type.dtype) for binding in main.bindings for target in binding.targets}  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [U8, S8, np.uint16, np.int16])
@pytest.mark.parametrize("move", MOVES)
def test_bytes_are_moved_as_bytes(move: str, dtype: type) -> None:
    net = Net()
    zero = np.array(19, dtype)
    x = net.dq(net.input(dtype, 2, 4, 5, 3), 0.5, zero)
    model = net.model(net.q(MOVES[move](net, x), 0.5, zero))

    module = integers_of(model)

    assert dtypes_of(module) == {np.dtype(dtype).name.replace("uint", "u").replace("int", "i")}
    np.testing.assert_array_equal(run(module, net)[0], expected_move(model, net))


def expected_move(model: onnx.ModelProto, net: Net) -> np.ndarray:
    return run_onnxruntime(model, net.arrays)[0]


@pytest.mark.parametrize("move", MOVES)
def test_floats_are_quantized_before_they_are_moved(move: str) -> None:
    net = Net()
    x = net.add("Mul", net.input(np.float32, 2, 4, 5, 3), net.const(np.float32(7)))
    model = net.model(net.q(MOVES[move](net, x), 0.5, np.uint8(19)))

    np.testing.assert_array_equal(run(integers_of(model), net)[0], expected_move(model, net))


@pytest.mark.parametrize("dtype", [U8, S8])
@pytest.mark.parametrize("equal", [True, False])
def test_what_is_joined_is_joined_as_bytes(equal: bool, dtype: type) -> None:
    net = Net()
    parts = [net.dq(net.input(dtype, 2, n, 3), 0.5 if equal else 0.3 + 0.1 * n, np.array(3, dtype)) for n in (2, 4, 1)]
    model = net.model(net.q(net.add("Concat", *parts, axis=1), 0.5, np.array(3, dtype)))

    module = integers_of(model)

    assert bool({"quantize_linear", "lookup"} & set(ops_of(module))) is not equal
    np.testing.assert_array_equal(run(module, net)[0], run_onnxruntime(model, net.arrays)[0])


@pytest.mark.parametrize("dtype", [U8, S8])
def test_all_parts_of_a_split_are_bytes(dtype: type) -> None:
    net = Net()
    parts = net.add("Split", net.dq(net.input(dtype, 2, 7), 0.5, np.array(3, dtype)), net.const([3, 4]), axis=1, outputs=2)
    model = net.model(*(net.q(part, 0.5, np.array(3, dtype)) for part in parts.split()))

    module = integers_of(model)

    assert "f32" not in dtypes_of(module)
    for found, expected in zip(run(module, net), run_onnxruntime(model, net.arrays), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_all_that_moves_moves_as_bytes() -> None:
    net = Net()
    x = net.add("Exp", net.input(np.float32, 4, 6))
    apart = net.add("Transpose", net.add("Reshape", x, net.const([2, 2, 3, 2])), perm=[0, 2, 3, 1])
    model = net.model(net.q(net.add("Concat", apart, net.dq(net.input(U8, 2, 3, 1, 2), 0.5), axis=2), 0.25, np.uint8(9)))

    module = integers_of(model)

    assert [op for op in ops_of(module) if "linear" not in op] == ["exp", "reshape", "transpose", "lookup", "concat"]
    assert dtypes_of(module) == {"f32", "u8"}
    np.testing.assert_array_equal(run(module, net)[0], run_onnxruntime(model, net.arrays)[0])


@pytest.mark.parametrize(("zero", "is_clipped"), [(0, False), (1, True)])
def test_what_saturates_is_not_clipped(zero: int, is_clipped: bool) -> None:
    net = Net()
    x = net.add("Mul", net.input(np.float32, 500), net.const(np.float32(3)))
    model = net.model(net.q(net.add("Relu", x), 0.01, np.uint8(zero)))

    module = integers_of(model)

    assert ("relu" in ops_of(module)) is is_clipped
    np.testing.assert_array_equal(run(module, net)[0], run_onnxruntime(model, net.arrays)[0])


@pytest.mark.parametrize("scale", [0.0, 1e-42])
def test_what_loses_its_numbers_is_quantized_again(scale: float) -> None:
    net = Net()
    wide = net.dq(net.input(U8, 50), scale, np.uint8(5))
    model = net.model(net.q(net.add("Relu", wide), scale, np.uint8(5)))

    np.testing.assert_array_equal(run(integers_of(model), net)[0], run_onnxruntime(model, net.arrays)[0])


def test_a_channel_of_zeros_has_any_scale() -> None:
    net = Net()
    w = net.numbers(S8, (3, 4, 1, 1))
    w[1] = 0
    wide = net.dq(net.const(w), [0.5, 6.9e-38, 0.25], np.zeros(3, np.int8), axis=0)

    check(net, net.add("Conv", net.dq(net.input(U8, 1, 4, 3, 3), 0.5, np.uint8(7)), wide))


@pytest.mark.parametrize("kind", ["channels", "columns", "rows", "activations"])
def test_scales_whose_product_is_no_normal_number_stay_apart(kind: str) -> None:
    """Two of 1e-22 were one of 1e-44, which is 7 times the least number of f32: all sums were 1.9 % too small."""
    net = Net()
    x, w = net.input(U8, 1, 40, 2, 2), net.numbers(S8, (4, 40))
    small, large = np.float32(1e-22), np.float32([1e-22, 0.5, 0, 3e-22])
    wide = net.dq(x, small, np.uint8(9))
    if kind == "channels":
        y = net.add("Conv", wide, net.dq(net.const(w.reshape(4, 40, 1, 1)), large, axis=0))
    else:
        matrix = net.add("Reshape", wide, net.const(np.array([40, 4])))
        match kind:
            case "columns":
                columns = net.dq(net.const(np.ascontiguousarray(w.T)), large, axis=1)
                y = net.add("MatMul", net.add("Transpose", matrix, perm=[1, 0]), columns)
            case "rows":
                y = net.add("MatMul", net.dq(net.const(w), large, axis=0), matrix)
            case _:
                net.inputs["w"], net.arrays["w"] = (S8, (4, 40)), w
                y, large = net.add("MatMul", net.dq("w", large[0]), matrix), large[:1]
    model = net.model(y)
    sums = w.astype(np.int64) @ (net.arrays[x].reshape(40, 4).astype(np.int64) - 9)
    exact = sums * (np.float64(small) * large.astype(np.float64).reshape(-1, 1))
    exact = exact.T if kind == "columns" else exact

    module = integers_of(model)

    assert not FLOATS & set(ops_of(module))
    for found in (run(module, net)[0], next(iter(tc.compile(model, threads=1).run(net.arrays).values()))):
        apart = np.abs(found.reshape(exact.shape) - exact)
        assert np.all(apart <= 2.0**-149 + 2.0**-22 * np.abs(exact)) and found.any()


def test_a_branch_that_leaves_keeps_its_floats() -> None:
    net = Net()
    wide = net.dq(net.input(U8, 1, 3, 5, 5), 0.5, np.uint8(3))
    y = net.q(net.add("Conv", wide, net.dq(net.const(net.numbers(S8, (4, 3, 3, 3))), 0.25)), 2.0, np.uint8(128))

    check(net, y, wide, net.add("Sigmoid", wide))


def test_a_pair_that_is_there_twice_is_there_once() -> None:
    net = Net()
    first = net.q(net.input(np.float32, 50), 0.1, np.int8(-5))
    again = net.q(net.dq(first, 0.1, np.int8(-5)), 0.1, np.int8(-5))

    module = integers_of(net.model(net.add("Exp", net.dq(again, 0.1, np.int8(-5)))))

    assert ops_of(module).count("quantize_linear") == ops_of(module).count("dequantize_linear") == 1


def test_signed_activations_between_products_are_unsigned() -> None:
    net = Net()
    x = net.dq(net.q(net.input(np.float32, 1, 4, 6, 6), 0.05, np.int8(-3)), 0.05, np.int8(-3))
    for _ in range(2):
        made = net.add("Conv", x, net.dq(net.const(net.numbers(S8, (4, 4, 3, 3))), 0.02), pads=[1, 1, 1, 1])
        x = net.dq(net.q(net.add("Relu", made), 0.4, np.int8(-128)), 0.4, np.int8(-128))

    module = check(net, x)

    assert "i8" not in dtypes_of(module)


@pytest.mark.parametrize("dtype", [U8, S8, np.uint16, np.int16])
def test_numbers_that_are_none_become_the_least_integer(dtype: type) -> None:
    net = Net()
    x = net.input(np.float32, 4, 9)
    net.arrays[x] = np.resize(np.array([np.nan, np.inf, -np.inf, 3e38, 2.5, 3.5, -2.5], np.float32), (4, 9))
    for zero in (np.iinfo(dtype).min, 3, np.iinfo(dtype).max):
        model = net.model(net.q(x, 1.0, np.array(zero, dtype)))

        np.testing.assert_array_equal(run(integers_of(model), net)[0], run_onnxruntime(model, net.arrays)[0])


def test_sizes_that_are_known_when_it_runs() -> None:
    net = Net()
    x = net.dq(net.input(U8, 2, 3, 6, 5, declared=["n", 3, "h", "w"]), 0.05, np.uint8(7))
    made = net.add("Conv", x, net.dq(net.const(net.numbers(S8, (4, 3, 3, 3))), 0.02), pads=[1, 1, 1, 1])
    pooled = net.add("MaxPool", net.dq(net.q(made, 0.3, np.uint8(90)), 0.3, np.uint8(90)), kernel_shape=[2, 2])
    flat = net.add("Transpose", net.dq(net.q(pooled, 0.3, np.uint8(90)), 0.3, np.uint8(90)), perm=[0, 2, 3, 1])
    wide = net.dq(net.q(flat, 0.3, np.uint8(90)), 0.3, np.uint8(90))
    y = net.q(net.add("MatMul", wide, net.dq(net.const(net.numbers(S8, (4, 6))), 0.01)), 0.1, np.uint8(128))

    module = check(net, y)

    assert ops_of(module).count("quantize_linear") == 2


def test_literals_stay_bytes() -> None:
    net = Net()
    x = net.dq(net.input(U8, 8, 64), 0.05, np.uint8(7))
    y = net.add("MatMul", x, net.dq(net.const(net.numbers(U8, (64, 32))), 0.02, np.uint8(128)))

    main = integers_of(net.model(y)).main

    assert isinstance(main, Function)
    literals = [atom.value for binding in all_bindings(main) for atom in atoms_of(binding.value) if isinstance(atom, TensorConst)]
    assert max(literals, key=lambda array: array.size).dtype == np.int8


@pytest.mark.parametrize("most", [np.finfo(np.float32).max, 1e30])
def test_clips_and_pads_by_numbers_beyond_all_steps(most: float) -> None:
    """FLT_MAX over a scale is infinite in f32, which is no integer: the import ended in an OverflowError."""
    net = Net()
    x = net.dq(net.input(U8, 3, 4), 0.05, np.uint8(7))
    bound = net.const(np.float32(most))
    clipped = net.add("Clip", x, net.const(np.float32(0)), bound)
    padded = net.add("Pad", x, net.const(np.int64([1, 0, 0, 1])), bound)

    check(net, net.q(clipped, 0.05, np.uint8(7)), net.q(padded, 0.1, np.uint8(100)))


def test_an_axis_that_means_nothing_is_forgotten_where_the_rank_changes() -> None:
    """`axis=-4` beside one scale was kept for the tensor of rank 3 before the unsqueeze, and refused there."""
    net = Net()
    x = net.input(np.float32, 2, 3, 4)
    wide = net.add("Unsqueeze", net.add("LeakyRelu", x), net.const(np.int64([1])))

    check(net, net.q(wide, 0.05, np.uint8(7), axis=-4))
