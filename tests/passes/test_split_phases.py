"""Transposed convolutions of floats are ordinary ones, in groups and with taps apart too, and compute what they did."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.frontend.onnx import load_model
from tc.ir.graph import constants_of
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY, SPLIT, STRICT_SIMPLIFY, STRICT_SPLIT
from tests.draws import some_of
from tests.frontend.models import make_model, node
from tests.passes.test_graph_rules import ops_of
from tests.passes.test_integer_phases import CASES, transposed


@pytest.mark.covering
@pytest.mark.parametrize("case", some_of(range(len(CASES)), quick=range(0, len(CASES), 2)))
@pytest.mark.parametrize("has_bias", [False, True])
def test_phases_of_floats(case: int, has_bias: bool) -> None:
    x_shape, w_shape, attrs = CASES[case]
    rng = np.random.default_rng(case)
    x, w = rng.standard_normal(x_shape).astype(np.float32), rng.standard_normal(w_shape).astype(np.float32)
    bias = rng.standard_normal(w_shape[1] * attrs.get("group", 1)).astype(np.float32)
    literals = {"w": w, **({"b": bias} if has_bias else {})}
    names = ["n", x_shape[1], *(f"s{d}" for d in range(len(x_shape) - 2))]
    model = make_model([node("ConvTranspose", "x w b" if has_bias else "x w", "y", **attrs)], {"x": (np.float32, names)}, ["y"], literals)
    module = load_model(model).module

    assert "conv_transpose" not in ops_of(run_pipeline(module, SIMPLIFY + SPLIT, {"block": 8}))
    found = tc.compile(model, threads=1)(x)

    expected = transposed(x.astype(np.float64), w.astype(np.float64), attrs)
    expected = expected + bias.reshape(1, -1, *[1] * (x.ndim - 2)) if has_bias else expected
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * w[:, 0].size)


@pytest.mark.parametrize(("stride", "kernel", "is_split"), [(320, 640, True), (700, 900, True), (4096, 1, True), (8192, 3, False)])
def test_hops_of_sound_are_phases_and_larger_ones_stay(stride: int, kernel: int, is_split: bool) -> None:
    """Their phases were looked for in time that grew with the square of the stride."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 2, 5)).astype(np.float32), rng.standard_normal((2, 3, kernel)).astype(np.float32)
    attrs = {"strides": [stride]}
    model = make_model([node("ConvTranspose", "x w", "y", **attrs)], {"x": (np.float32, ["n", 2, "s"])}, ["y"], {"w": w})

    made = ops_of(run_pipeline(load_model(model).module, SIMPLIFY + SPLIT, {"block": 8}))

    assert ("conv_transpose" not in made) == is_split
    np.testing.assert_allclose(tc.compile(model, threads=1)(x), transposed(x, w, attrs), rtol=1e-5, atol=1e-5)


def test_taps_that_no_phase_lacks_are_strict_too() -> None:
    """Zeros in place of taps that are not there would make NaN of infinities."""
    strict = STRICT_SIMPLIFY + STRICT_SPLIT
    for attrs, is_split in (({"dilations": [3, 2]}, True), ({"strides": [2, 2]}, True), ({"strides": [3, 1]}, False)):
        w, x = np.ones((4, 1, 2, 2), np.float32), np.full((1, 4, 3, 3), np.inf, np.float32)
        model = make_model([node("ConvTranspose", "x w", "y", group=2, **attrs)], {"x": (np.float32, x.shape)}, ["y"], {"w": w})

        made = ops_of(run_pipeline(load_model(model).module, strict, {"block": 8}))

        assert ("conv_transpose" not in made) == is_split
        assert not np.isnan(tc.compile(model, threads=1, numerics="strict")(x)).any()


@pytest.mark.parametrize(
    ("kernel", "stride", "together"),
    [((3, 3), (2, 2), False), ((3,), (2,), False), ((3, 3, 3), (2, 1, 2), False), ((4, 4), (2, 2), True), ((5, 5), (2, 2), True)],
)
def test_phases_of_fewer_taps_are_convolutions_of_their_own(kernel: tuple[int, ...], stride: tuple[int, ...], together: bool) -> None:
    # 3 x 3 taps in steps of 2 were 16 products, of which 7 were with zeros. (3 x 3 taps for all phases are done by fewer products.)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((100, 20, *kernel)).astype(np.float32)
    x = rng.standard_normal((2, 100, *(5 + d for d in range(len(kernel))))).astype(np.float32)
    ends = [(k - 1) // 2 for k in kernel]
    attrs = {"strides": list(stride), "pads": [*ends, *ends]}
    names = ["n", 100, *(f"s{d}" for d in range(len(kernel)))]
    model = make_model([node("ConvTranspose", "x w", "y", **attrs)], {"x": (np.float32, names)}, ["y"], {"w": w})

    split = run_pipeline(load_model(model).module, SIMPLIFY + SPLIT, {"block": 4})

    taps = [int(np.prod(weights.shape)) for weights in (c.value for c in constants_of(split.main)) if weights.ndim == w.ndim]
    assert (len(taps) == 1) == together
    if not together:
        assert sum(taps) == w.size and len(taps) == np.prod(stride)
    found = tc.compile(model, threads=1)(x)
    np.testing.assert_allclose(found, transposed(x.astype(np.float64), w.astype(np.float64), attrs), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "taps"), [(4, 2, (1, 1), 2), (16, 8, (4, 4), 2), (8, 4, (2, 1), 2), (4, 4, (3, 0), 1), (5, 2, (2, 2), 3)]
)
@pytest.mark.parametrize("channels", [3, 16])
def test_the_first_phase_is_one_that_leaves_the_fewest_taps(
    kernel: int, stride: int, pads: tuple[int, int], taps: int, channels: int
) -> None:
    # From the first element on, phases of 4 taps and a pad of 1 had 3 places for their 2, so that 9 products of an image stood for 4.
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, channels, kernel), (2, 20, 9)))
    attrs = {"strides": [stride], "pads": list(pads)}
    model = make_model([node("ConvTranspose", "x w", "y", **attrs)], {"x": (np.float32, ("n", 20, "s"))}, ["y"], {"w": w})

    split = run_pipeline(load_model(model).module, SIMPLIFY + SPLIT, {"block": 16})

    assert max(c.value.shape[-1] for c in constants_of(split.main) if c.value.ndim == 3) == taps
    found = tc.compile(model, threads=1)(x)
    np.testing.assert_allclose(found, transposed(x.astype(np.float64), w.astype(np.float64), attrs), rtol=0, atol=1e-3)


def test_taps_that_a_phase_lacks_are_none_where_it_is_apart() -> None:
    w, x = np.ones((4, 3, 3, 3), np.float32), np.full((1, 4, 3, 3), np.inf, np.float32)
    model = make_model([node("ConvTranspose", "x w", "y", strides=[2, 2])], {"x": (np.float32, x.shape)}, ["y"], {"w": w})
    module = load_model(model).module

    assert "conv_transpose" not in ops_of(run_pipeline(module, STRICT_SIMPLIFY + STRICT_SPLIT, {"block": 8}))
    assert not np.isnan(tc.compile(model, threads=1, numerics="strict")(x)).any()


# Broke the speed: each element chose among all taps, in 14 to 96 times onnxruntime's time.
@pytest.mark.covering
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", some_of(range(len(CASES)), quick=range(1, len(CASES), 2)))
@pytest.mark.parametrize("has_bias", [False, True])
def test_phases_by_weights_that_are_data(case: int, has_bias: bool, dtype: type) -> None:
    x_shape, w_shape, attrs = CASES[case]
    rng = np.random.default_rng(case)
    arrays = {"x": rng.standard_normal(x_shape).astype(dtype), "w": rng.standard_normal(w_shape).astype(dtype)}
    if has_bias:
        arrays["b"] = rng.standard_normal(w_shape[1] * attrs.get("group", 1)).astype(dtype)
    types = {name: (dtype, array.shape) for name, array in arrays.items()}
    types["x"] = (dtype, ("n", x_shape[1], *(f"s{d}" for d in range(len(x_shape) - 2))))
    model = make_model([node("ConvTranspose", " ".join(arrays), "y", **attrs)], types, ["y"])
    expected = transposed(arrays["x"].astype(np.float64), arrays["w"].astype(np.float64), attrs)
    expected = expected + arrays["b"].reshape(1, -1, *[1] * (len(x_shape) - 2)) if has_bias else expected

    assert "conv_transpose" not in ops_of(run_pipeline(load_model(model).module, SIMPLIFY + SPLIT, {"block": 8}))
    for numerics in ("default", "strict"):
        found = tc.compile(model, threads=1, numerics=numerics)(*arrays.values())

        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * int(np.prod(w_shape)) / w_shape[1])


@pytest.mark.parametrize("group", [1, 2])
def test_a_bias_that_is_data_beside_literal_weights(group: int) -> None:
    rng = np.random.default_rng(group)
    x, w = rng.standard_normal((2, 6, 5, 4)).astype(np.float32), rng.standard_normal((6, 11, 3, 3)).astype(np.float32)
    bias, attrs = rng.standard_normal(11 * group).astype(np.float32), {"strides": [2, 2], "group": group}
    types = {"x": (np.float32, x.shape), "b": (np.float32, bias.shape)}
    model = make_model([node("ConvTranspose", "x w b", "y", **attrs)], types, ["y"], {"w": w})

    assert not {"conv_transpose", "gather"} & set(ops_of(run_pipeline(load_model(model).module, SIMPLIFY + SPLIT, {"block": 8})))
    expected = transposed(x.astype(np.float64), w.astype(np.float64), attrs) + bias.reshape(1, -1, 1, 1)
    np.testing.assert_allclose(tc.compile(model, threads=1)(x, bias), expected, rtol=0, atol=1e-4)


# What lies outside was zeros, which such weights multiplied: nearly all results were NaN.
@pytest.mark.covering
@pytest.mark.parametrize("numerics", ["literals", "strict literals", "strict"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_weights_that_are_not_finite_are_only_where_they_fall(case: int, numerics: str) -> None:
    x_shape, w_shape, attrs = CASES[case]
    rng = np.random.default_rng(case)
    x, w = rng.standard_normal(x_shape).astype(np.float32), rng.standard_normal(w_shape).astype(np.float32)
    w.flat[rng.integers(w.size)], w.flat[rng.integers(w.size)] = np.inf, np.nan
    is_literal = "literals" in numerics
    types = {"x": (np.float32, ["n", x_shape[1], *(f"s{d}" for d in range(len(x_shape) - 2))])}
    types |= {} if is_literal else {"w": (np.float32, w_shape)}
    model = make_model([node("ConvTranspose", "x w", "y", **attrs)], types, ["y"], {"w": w} if is_literal else {})
    module = tc.compile(model, threads=1, numerics="strict" if "strict" in numerics else "default")

    found = module(x) if is_literal else module(x, w)

    expected = transposed(x.astype(np.float64), w.astype(np.float64), attrs)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * w[:, 0].size)
