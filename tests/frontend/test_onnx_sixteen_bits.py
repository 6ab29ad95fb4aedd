"""Models whose floats have 16 bits: what an operator computes is rounded to them once, against numpy's doubles."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto

import tc
from tests.frontend.models import make_model, node

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
NARROW = pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
NUMERICS = pytest.mark.parametrize("numerics", ["default", "strict"])


def run(model: ModelProto, *operands: np.ndarray, numerics: str = "default") -> Any:
    return tc.compile(model, numerics=numerics)(*operands)


def assert_rounded_once(found: np.ndarray, exact: np.ndarray, dtype: np.dtype, sums: float = 0.0) -> None:
    """Off by half of the last bit, by what sums in f32 may be off, and by half of the least number."""
    info = ml_dtypes.finfo(dtype)
    assert found.dtype == dtype
    bound = np.abs(exact) * (float(info.eps) / 2 * 1.01) + sums + float(info.smallest_subnormal)
    assert np.all(np.abs(found.astype(np.float64) - exact) <= bound)


def of_one(op: str, inputs: dict[str, tuple[Any, Any]], constants: dict[str, np.ndarray], opset: int = 17, **attributes: Any) -> ModelProto:
    domains = [("com.microsoft", 1)] if "domain" in attributes else []
    made = node(op, " ".join((*inputs, *constants)), "y", **attributes)
    return make_model([made], inputs, ["y"], constants, opset=opset, domains=domains)


@NARROW
@NUMERICS
@pytest.mark.parametrize("alpha", [1e6, 1e-9, 0.01, 0.3003])
@pytest.mark.parametrize("beta", [1.0, 1e-7])
def test_a_product_that_is_scaled(dtype: np.dtype, numerics: str, alpha: float, beta: float) -> None:
    """Neither alpha nor the product need be numbers of 16 bits."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.5, 1, shape) * np.sqrt(1 / alpha) for shape in ((3, 7), (7, 5)))
    a, b, c = a.astype(dtype), b.astype(dtype), rng.standard_normal(5).astype(dtype)
    x, y, z = (each.astype(np.float64) for each in (a, b, c))
    gemm = of_one("Gemm", {"a": (dtype, [3, 7])}, {"b": b, "c": c}, alpha=alpha, beta=beta)
    fused = of_one("FusedMatMul", {"a": (dtype, [3, 7])}, {"b": b}, alpha=alpha, domain="com.microsoft")

    assert_rounded_once(run(gemm, a, numerics=numerics), np.float32(alpha) * (x @ y) + np.float32(beta) * z, dtype, 1e-5)
    assert_rounded_once(run(fused, a, numerics=numerics), np.float32(alpha) * (x @ y), dtype, 1e-5)


@NARROW
def test_an_alpha_of_swish_that_16_bits_do_not_hold(dtype: np.dtype) -> None:
    x = np.array([0, 1, -1e-6, 1e-6, -0.5, 3], dtype)
    for alpha in (1e6, 1.703):
        model = of_one("QuickGelu", {"x": (dtype, [6])}, {}, alpha=alpha, domain="com.microsoft")
        wide = x.astype(np.float64)
        with np.errstate(over="ignore"):
            assert_rounded_once(run(model, x), wide / (1 + np.exp(-np.float32(alpha) * wide)), dtype, 1e-7)


@NARROW
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("size", [0, 1, 7, 5000])
def test_what_runs_along_an_axis_does_not_stop_growing(dtype: np.dtype, op: str, exclusive: int, reverse: int, size: int) -> None:
    x = np.ones((2, size)) if op == "CumSum" else np.full((2, size), 1 + 2.0**-7)
    x = x[:, :600].astype(dtype) if op == "CumProd" else x.astype(dtype)
    model = of_one(op, {"x": (dtype, ["n", "m"])}, {"axis": np.array(1)}, exclusive=exclusive, reverse=reverse, opset=26)
    exact = x.astype(np.float64)[:, ::-1] if reverse else x.astype(np.float64)
    exact = np.cumsum(exact, 1) if op == "CumSum" else np.cumprod(exact, 1)
    if exclusive:
        exact = np.concatenate([np.full((2, 1), op == "CumProd", float), exact[:, :-1]], 1)[:, : x.shape[1]]

    assert_rounded_once(run(model, x), exact[:, ::-1] if reverse else exact, dtype, 1e-4 * np.abs(exact).max(initial=0) * (op == "CumProd"))


@NARROW
@pytest.mark.parametrize("p", [1, 2])
def test_norms_beyond_what_16_bits_hold(dtype: np.dtype, p: int) -> None:
    x = np.full((300, 2), 5000).astype(dtype)
    exact = x.astype(np.float64) / (np.abs(x.astype(np.float64)) ** p).sum(0, keepdims=True) ** (1 / p)

    found = run(of_one("LpNormalization", {"x": (dtype, ["n", 2])}, {}, axis=0, p=p), x)

    assert_rounded_once(found, exact, dtype, 1e-6)


@NARROW
@NUMERICS
@pytest.mark.parametrize("mean", [0.0, 20.0, 2000.0])
def test_a_mean_that_is_far_from_0(dtype: np.dtype, numerics: str, mean: float) -> None:
    """The product with a factor and what is added nearly cancel."""
    rng = np.random.default_rng(1)
    x = (mean + 2 * rng.standard_normal((2, 3, 4, 5))).astype(dtype)
    scale, shift, middle, variance = (np.array(each).astype(dtype) for each in ([1, 0.5, 2], [0, 1, -1], [mean] * 3, [3, 4, 5]))
    constants = {"scale": scale, "shift": shift, "mean": middle, "var": variance}
    wide = [each.astype(np.float64).reshape(-1, 1, 1) for each in constants.values()]
    exact = (x.astype(np.float64) - wide[2]) * (wide[0] / np.sqrt(wide[3] + np.float32(1e-5))) + wide[1]

    found = run(of_one("BatchNormalization", {"x": (dtype, [2, 3, 4, 5])}, constants), x, numerics=numerics)

    assert_rounded_once(found, exact, dtype, 2e-6 * max(mean, 1))


@NARROW
def test_means_of_a_batch(dtype: np.dtype) -> None:
    rng = np.random.default_rng(2)
    x = (300 + rng.standard_normal((4, 2, 8))).astype(dtype)
    one, none = np.ones(2, dtype), np.zeros(2, dtype)
    outputs = ["y", "mean", "var"]
    made = node("BatchNormalization", "x one none none one", " ".join(outputs), training_mode=1, momentum=0.9)
    y, mean, var = run(make_model([made], {"x": (dtype, [4, 2, 8])}, outputs, {"one": one, "none": none}, opset=15), x)
    wide = x.astype(np.float64)
    middle, spread = wide.mean((0, 2)), wide.var((0, 2))

    assert_rounded_once(mean, middle * (1 - np.float64(np.float32(0.9))), dtype, 1e-4)
    assert_rounded_once(var, spread * 0.1 + 0.9, dtype, 1e-4)
    assert_rounded_once(y, (wide - middle[:, None]) / np.sqrt(spread[:, None] + 1e-5), dtype, 2e-3)


@pytest.mark.parametrize("literal", [False, True])
@NUMERICS
@pytest.mark.parametrize(("base", "exponent"), [
    (np.array([1e30, 2], BF16), np.array([1.003, -1], np.float32)),
    (np.array([1.0078125, -1], BF16), np.array([257, 257], np.int32)),
    (np.array([-1, -1], BF16), np.array([257, -257], np.int64)),
    (np.array([-1, 0.9995], F16), np.array([2049, 70000], np.int32)),
    (np.array([1, 0.5], F16), np.array([1e6, 1e6], np.float32)),
    (np.array([-1, -1], np.float32), np.array([2**24 + 1, 2**24], np.int32)),
    (np.array([1.0000001, -2], np.float32), np.array([16777217.5, 3], np.float64)),
    (np.array([-2, 3], np.float32), np.array([3, -1], np.int64)),
    (np.array([3, -2], np.int32), np.array([2.5, 3], np.float32)),
    (np.array([2**24 + 1, 10], np.int32), np.array([1, 0.5], np.float32)),
    (np.array([10, 4], np.int32), np.array([0.5, 0.5], np.float32)),
    (np.array([2, 3], np.float64), np.array([0.5, -3], np.float32)),
    (np.array([2, 3], F16), np.array([3, -3], np.int8)),
    (np.array([2, 3], np.float32), np.array([0.5, -3], BF16)),
], ids=lambda value: str(value.dtype))  # fmt: skip
def test_powers_hold_base_and_exponent(base: np.ndarray, exponent: np.ndarray, literal: bool, numerics: str) -> None:
    inputs = {"x": (base.dtype, ["n"])} | ({} if literal else {"p": (exponent.dtype, ["n"])})
    model = make_model([node("Pow", "x p", "y")], inputs, ["y"], {"p": exponent} if literal else {})
    with np.errstate(all="ignore"):
        exact = np.power(base.astype(np.float64), exponent.astype(np.float64))

    found = run(model, *((base,) if literal else (base, exponent)), numerics=numerics)

    if base.dtype.kind == "i":
        np.testing.assert_array_equal(found, np.trunc(exact).astype(base.dtype))
    else:
        assert_rounded_once(found, exact, base.dtype, 3e-7 * np.abs(exact).max())


def test_one_literal_exponent_that_an_integer_base_does_not_hold() -> None:
    model = make_model([node("Pow", "x p", "y")], {"x": (np.int32, ["n"])}, ["y"], {"p": np.array(0.5, np.float32)})

    assert run(model, np.array([4, 10, 0], np.int32)).tolist() == [2, 3, 0]


@NARROW
@pytest.mark.parametrize("op", ["MultiHeadAttention", "GroupQueryAttention"])
def test_attention_that_looks_back(dtype: np.dtype, op: str) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 5, 8)).astype(dtype) for _ in range(3))
    inputs = {name: (dtype, [1, 5, 8]) for name in ("q", "k", "v")}
    if op == "MultiHeadAttention":
        made, constants = node(op, "q k v", "y", num_heads=2, unidirectional=1, domain="com.microsoft"), {}
    else:
        made = node(op, "q k v - - last all", "y", num_heads=2, kv_num_heads=2, domain="com.microsoft")
        constants = {"last": np.array([4], np.int32), "all": np.array(5, np.int32)}
    found = run(make_model([made], inputs, ["y"], constants, domains=[("com.microsoft", 1)]), q, k, v)
    x, y, z = (each.astype(np.float64).reshape(5, 2, 4).transpose(1, 0, 2) for each in (q, k, v))
    scores = np.where(np.tri(5, dtype=bool), x @ y.transpose(0, 2, 1) / 2, -np.inf)
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    exact = (chances / chances.sum(-1, keepdims=True)) @ z

    most = 8 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(found.astype(np.float64)[0], exact.transpose(1, 0, 2).reshape(5, 8), rtol=0, atol=most)


@NARROW
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [1, 3, 301])
def test_a_grid_of_more_places_than_16_bits_tell_apart(dtype: np.dtype, align: int, size: int) -> None:
    theta = np.random.default_rng(1).uniform(-1, 1, (2, 2, 3)).astype(dtype)
    constants = {"size": np.array([2, 3, size, 4])}

    found = run(of_one("AffineGrid", {"theta": (dtype, [2, 2, 3])}, constants, opset=20, align_corners=align), theta)

    lines = [np.linspace(-1, 1, n) if align and n > 1 else -np.ones(1) if align else (np.arange(n) * 2 + 1) / n - 1 for n in (size, 4)]
    y, x = np.meshgrid(*lines, indexing="ij")
    places = np.stack([x, y, np.ones_like(x)], -1)
    assert_rounded_once(found, np.einsum("hwk,njk->nhwj", places, theta.astype(np.float64)), dtype, 1e-6)
