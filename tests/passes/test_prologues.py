"""What is gathered or widened joins the product that reads it; literals stay as narrow as the model has them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import tc
from tc.errors import InputError
from tc.ir.dtype import f32, i64
from tc.ir.expr import Var
from tc.ir.graph import Atom
from tc.ir.module import IRModule
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import GraphBuilder


def kernels(module: tc.CompiledModule) -> list[str]:
    return [kernel.rule for kernel in module.report().kernels]


def _module(b: GraphBuilder, result: Atom) -> IRModule:
    return IRModule((b.function("main", [result]),), "main")


def quantized(b: GraphBuilder, rng: np.random.Generator, *shape: int) -> tuple[Atom, np.ndarray]:
    """Weights i8[shape] with a scale and a zero point for each of the last axis, and what they mean."""
    weights = rng.integers(-128, 128, shape).astype(np.int8)
    scale, zero = rng.uniform(0.5, 1.5, shape[-1]).astype(np.float32), rng.integers(-9, 9, shape[-1]).astype(np.int8)
    meaning = (weights.astype(np.float32) - zero) * scale
    return b.call("dequantize_linear", b.const(weights), b.const(scale), b.const(zero), axis=len(shape) - 1), meaning


@pytest.mark.parametrize("rows", [1, 3, 16, 70])
def test_weights_of_bytes_stay_bytes(rows: int) -> None:
    rng = np.random.default_rng(rows)
    b = GraphBuilder()
    weights, meaning = quantized(b, rng, 256, 512)
    module = tc.compile(_module(b, b.call("matmul", b.param("x", tensor_type((rows, 256), f32)), weights)), threads=1)
    x = rng.standard_normal((rows, 256)).astype(np.float32)

    result = np.asarray(module(x)).reshape(rows, 512)

    assert kernels(module) == ["row reduction", "contraction"]  # zero points come off as often as a row sums up to
    assert module.report().constant_bytes < 2 * 256 * 512
    np.testing.assert_allclose(result, x @ meaning, rtol=1e-4, atol=1e-2)


def test_transposed_weights_of_bytes_stay_bytes() -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    weights, meaning = quantized(b, rng, 512, 256)
    product = b.call("matmul", b.param("x", tensor_type((20, 256), f32)), b.call("transpose", weights, perm=(1, 0)))
    module = tc.compile(_module(b, product), threads=1)
    x = rng.standard_normal((20, 256)).astype(np.float32)

    result = np.asarray(module(x)).reshape(20, 512)

    assert kernels(module) == ["contraction"]
    assert module.report().constant_bytes < 2 * 256 * 512
    np.testing.assert_allclose(result, x @ meaning.T, rtol=1e-4, atol=1e-2)


def test_weights_that_something_else_reads_too_are_widened_once() -> None:
    b = GraphBuilder()
    weights, _ = quantized(b, np.random.default_rng(0), 256, 512)
    product = b.call("matmul", b.param("x", tensor_type((20, 256), f32)), weights)
    module = tc.compile(_module(b, b.call("add", product, b.call("sum", weights, axes=(0,), keepdims=True))), threads=1)

    assert module.report().constant_bytes >= 4 * 256 * 512


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_weights_in_half_precision_stay_so(dtype: type) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((256, 512)).astype(dtype)
    b = GraphBuilder()
    module = tc.compile(
        _module(b, b.call("matmul", b.param("x", tensor_type((20, 256), f32)), b.call("cast", b.const(weights), dtype=f32))), threads=1
    )
    x = rng.standard_normal((20, 256)).astype(np.float32)

    result = np.asarray(module(x)).reshape(20, 512)

    assert kernels(module) == ["contraction"]
    assert module.report().constant_bytes == 2 * 256 * 512
    np.testing.assert_allclose(result, x @ weights.astype(np.float32), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("side", ["lhs", "rhs"])
def test_gathers_join_the_product_that_reads_them(axis: int, side: str) -> None:
    rng = np.random.default_rng(axis)
    x, w = rng.standard_normal((128, 128)).astype(np.float32), rng.standard_normal((128, 128)).astype(np.float32)
    places = rng.integers(-128, 128, 128)
    b = GraphBuilder()
    atoms = {"lhs": b.param("x", tensor_type((128, 128), f32)), "rhs": b.param("w", tensor_type((128, 128), f32))}
    atoms[side] = b.call("gather", atoms[side], b.param("i", tensor_type((128,), i64)), axis=axis)
    module = tc.compile(_module(b, b.call("matmul", atoms["lhs"], atoms["rhs"])), threads=1)
    arrays = {"x": x, "w": w, "i": places}

    result = np.asarray(module(*arrays.values())).reshape(128, 128)

    taken = {"lhs": x, "rhs": w}
    taken[side] = np.take(taken[side], places, axis)
    assert kernels(module) == ["contraction"]
    np.testing.assert_allclose(result, taken["lhs"] @ taken["rhs"], rtol=1e-4, atol=1e-3)
    places[77] = 128
    with pytest.raises(InputError, match="out of range"):
        module(*arrays.values())


@pytest.mark.parametrize("rows", [0, 1, 5, 33, 200])
def test_prologues_of_any_number_of_rows(rows: int) -> None:
    rng, n = np.random.default_rng(rows), Var("n", i64)
    b = GraphBuilder()
    weights, meaning = quantized(b, rng, 256, 512)
    table = b.param("table", tensor_type((50, 256), f32))
    taken = b.call("gather", table, b.param("i", TensorType((n,), i64)), axis=0)
    module = tc.compile(_module(b, b.call("matmul", taken, weights)), threads=1)
    x, places = rng.standard_normal((50, 256)).astype(np.float32), rng.integers(0, 50, rows)

    result = np.asarray(module(x, places)).reshape(rows, 512)

    np.testing.assert_allclose(result, x[places] @ meaning, rtol=1e-4, atol=1e-2)


def test_bindings_without_results_are_no_literals_to_keep() -> None:
    """A loop whose body makes an unused scan of sizes had a binding without targets."""
    model = onnx.parser.parse_model("""<ir_version: 11, opset_import: ["" : 23]>
    g (float[n] x) => (bool[k] y) <int64 trips = {3}, bool go = {1}> {
        a, b, y = Loop (trips, go, trips) <body: graph = body (int64 i, bool c, int64 s) => (bool v, int64 w, float[m] u, bool z) {
            size = Constant <value: tensor = int64[1] k28 {2}> ()
            u = CenterCropPad <axes: ints = [-1]> (x, size)
            w = Constant <value: tensor = int64 k34 {1}> ()
            v = Less (i, w)
            z = Identity (v)
        }>
    }""")

    np.testing.assert_array_equal(tc.compile(model)(np.zeros(2, np.float32)), [True, False])


@pytest.mark.parametrize(("op", "attrs", "names"), [
    ("max_pool", {"kernel": (3, 3), "strides": (2, 1)}, ["unblock", "max_pool"]),
    ("mean", {"axes": (2, 3)}, ["unblock_mean"]),
])  # fmt: skip
def test_blocks_of_channels_are_put_in_order_before_windows_read_them(
    op: str, attrs: dict[str, object], names: list[str], rng: np.random.Generator
) -> None:
    b = GraphBuilder()
    plain = b.call("unblock", b.param("x", tensor_type((1, 2, 9, 8, 16), f32)), axis=1, size=24)
    module = IRModule((b.function("main", (b.call(op, plain, **attrs),)),))
    x = rng.standard_normal((1, 2, 9, 8, 16), np.float32)
    image = x.transpose(0, 1, 4, 2, 3).reshape(1, 32, 9, 8)[:, :24]
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (2, 3))[:, :, ::2]
    expected = windows.max((-2, -1)) if op == "max_pool" else image.mean((2, 3))

    compiled = tc.compile(module, threads=1)

    assert [kernel.name for kernel in compiled.report().kernels] == names
    np.testing.assert_allclose(np.asarray(compiled(x)).reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)
