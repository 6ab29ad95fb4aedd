"""Resize where it shrinks without passing elements over, leaves out what is outside, cuts out a region or keeps the aspect ratio."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import tc
from tests.frontend.models import make_model, node, run_onnxruntime

SIZES = [(9, 8, 4, 3), (5, 12, 5, 5), (4, 4, 9, 2), (1, 7, 3, 3)]


def compiled(model: Any) -> Any:
    return compiled_once(model.SerializeToString(deterministic=True))


@functools.lru_cache(maxsize=8)
def compiled_once(model: bytes) -> Any:
    """A model whose sizes are inputs is the same for all sizes."""
    assert not any(report.status != "native" for report in tc.inspect(model).nodes)
    return tc.compile(model)


def resize(attributes: dict[str, Any], known: bool, h: int, w: int, p: int, q: int, dtype: Any = np.float32) -> tuple[Any, dict[str, Any]]:
    """A model that makes [1, 2, p, q] of [1, 2, h, w], and its sizes as inputs where they are not known."""
    sizes = np.array([1, 2, p, q])
    inputs: dict[str, Any] = {"x": (dtype, [1, 2, h, w] if known else [1, "c", "h", "w"])}
    if not known:
        inputs["s"] = (np.int64, [4])
    return make_model([node("Resize", "x - - s", "y", **attributes)], inputs, ["y"], {"s": sizes} if known else {}, opset=19), (
        {} if known else {"s": sizes}
    )


@pytest.mark.covering
@pytest.mark.parametrize("mode, known, exclude", list(itertools.product(("linear", "cubic"), (True, False), (0, 1))))
def test_shrinking_passes_no_element_over(mode: str, known: bool, exclude: int) -> None:
    rng = np.random.default_rng(0)
    for h, w, p, q in SIZES:
        model, feed = resize({"mode": mode, "antialias": 1, "exclude_outside": exclude}, known, h, w, p, q)
        feed["x"] = rng.standard_normal((1, 2, h, w)).astype(np.float32)
        (expected,) = ReferenceEvaluator(model).run(None, feed)

        np.testing.assert_allclose(*compiled(model).run(feed).values(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
def test_what_lies_outside_is_left_out(coordinates: str) -> None:
    rng = np.random.default_rng(0)
    for (h, w, p, q), known in itertools.product(SIZES, (True, False)):
        attributes = {"mode": "cubic", "exclude_outside": 1, "coordinate_transformation_mode": coordinates}
        model, feed = resize(attributes, known, h, w, p, q)
        feed["x"] = rng.standard_normal((1, 2, h, w)).astype(np.float32)
        (expected,) = run_onnxruntime(model, feed)

        np.testing.assert_allclose(*compiled(model).run(feed).values(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("scales", [[0.5, 0.3], [1.5, 0.7]])
def test_scales_that_are_data_say_how_many_elements_count(scales: list[float]) -> None:
    model = make_model(
        [node("Resize", "x - s", "y", mode="linear", antialias=1, axes=[2, 3])],
        {"x": (np.float32, [1, "c", "h", "w"]), "s": (np.float32, [2])},
        ["y"],
        opset=19,
    )
    feed = {"x": np.random.default_rng(0).standard_normal((1, 2, 10, 11)).astype(np.float32), "s": np.array(scales, np.float32)}
    (expected,) = ReferenceEvaluator(model).run(None, feed)

    np.testing.assert_allclose(*compiled(model).run(feed).values(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("scales", [[1, 1, 1, 1, 1], [0.6, 0.6, 1, 1.5, 2], [2, 1, 2.4, 1, 1]])
def test_the_nearest_of_many_axes_is_one_element_read(scales: list[float]) -> None:
    """Each axis had two, for the case that it stays as it is: 32 of them in checks that were nested too deeply to be compiled."""
    model = make_model(
        [node("Resize", "x - s", "y", mode="nearest", coordinate_transformation_mode="pytorch_half_pixel", nearest_mode="floor")],
        {"x": (np.float32, list("abcde")), "s": (np.float32, [5])},
        ["y"],
        opset=18,
    )
    feed = {"x": np.random.default_rng(0).standard_normal((3, 4, 5, 2, 3)).astype(np.float32), "s": np.array(scales, np.float32)}
    (expected,) = run_onnxruntime(model, feed)

    np.testing.assert_array_equal(*compiled(model).run(feed).values(), expected)


def test_bytes_that_shrink_stay_bytes() -> None:
    model, _ = resize({"mode": "cubic", "antialias": 1}, True, 12, 12, 5, 7, np.uint8)
    x = np.random.default_rng(0).integers(0, 2, (1, 2, 12, 12)).astype(np.uint8) * np.uint8(255)
    of_floats, _ = resize({"mode": "cubic", "antialias": 1}, True, 12, 12, 5, 7)
    (expected,) = ReferenceEvaluator(of_floats).run(None, {"x": x.astype(np.float32)})

    found = compiled(model)(x)

    assert found.dtype == np.uint8
    np.testing.assert_allclose(found, np.clip(expected, 0, 255), atol=0.5 + 1e-3)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_sums_of_many_integers_are_rounded(mode: str, dtype: type) -> None:
    # They were cut off; onnxruntime, ONNX's reference and PyTorch round where there is antialiasing.
    model, _ = resize({"mode": mode, "antialias": 1}, True, 12, 40, 7, 13, dtype)
    x = np.random.default_rng(1).integers(0, 120, (1, 2, 12, 40)).astype(dtype)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})

    np.testing.assert_array_equal(compiled(model)(x), expected)


@pytest.mark.covering
@pytest.mark.parametrize("mode, known", list(itertools.product(("nearest", "linear", "cubic"), (True, False))))
def test_a_region_is_cut_out(mode: str, known: bool) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5, "axes": [2, 3]}
    rng = np.random.default_rng(0)
    for (h, w, p, q), region in itertools.product(SIZES, ([0.2, 0.3, 0.9, 0.72], [-0.3, 0.5, 1.2, 0.5], [0.9, 0.8, 0.1, 0.05])):
        constants = {"r": np.array(region, np.float32), "s": np.array([p, q])}
        inputs: dict[str, Any] = {"x": (np.float32, [1, 2, "h", "w"])}
        if not known:
            inputs |= {"r": (np.float32, [4]), "s": (np.int64, [2])}
        model = make_model([node("Resize", "x r - s", "y", **attributes)], inputs, ["y"], constants if known else {}, opset=19)
        feed = {"x": rng.standard_normal((1, 2, h, w)).astype(np.float32), **({} if known else constants)}
        (expected,) = ReferenceEvaluator(model).run(None, feed)  # onnxruntime keeps an axis of unchanged size as it is

        np.testing.assert_allclose(*compiled(model).run(feed).values(), expected, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("end", [np.nan, np.inf, -np.inf, 3e38])
def test_regions_that_are_no_numbers_touch_nothing_outside(end: float) -> None:
    model = make_model(
        [node("Resize", "x r - s", "y", mode="linear", coordinate_transformation_mode="tf_crop_and_resize", axes=[0])],
        {"x": (np.float32, ["n"]), "r": (np.float32, [2])},
        ["y"],
        {"s": np.array([4])},
        opset=19,
    )
    assert np.isin(compiled(model)(np.ones(3, np.float32), np.array([0.0, end], np.float32)), [0, 1]).all()


@pytest.mark.covering
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_the_aspect_ratio_is_kept_of_sizes_that_are_data(policy: str, mode: str) -> None:
    model = make_model(
        [node("Resize", "x - - s", "y", mode=mode, keep_aspect_ratio_policy=policy, axes=[2, 3])],
        {"x": (np.float32, [1, 2, "h", "w"]), "s": (np.int64, [2])},
        ["y"],
        opset=19,
    )
    module, rng = compiled(model), np.random.default_rng(0)
    for h, w, p, q in SIZES:
        feed = {"x": rng.standard_normal((1, 2, h, w)).astype(np.float32), "s": np.array([p, q])}
        (expected,) = run_onnxruntime(model, feed)

        np.testing.assert_allclose(*module.run(feed).values(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("op, opset", [("Upsample", 9), ("Resize", 10)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_scales_of_early_forms_are_data(op: str, opset: int, mode: str) -> None:
    model = make_model([node(op, "x s", "y", mode=mode)], {"x": (np.float32, [1, 2, "h", "w"]), "s": (np.float32, [4])}, ["y"], opset=opset)
    module, rng = compiled(model), np.random.default_rng(0)
    for scales in ([1, 1, 2, 3], [1, 1, 1.5, 2.2], *([[1, 1, 0.6, 1.7]] if op == "Resize" else [])):
        feed = {"x": rng.standard_normal((1, 2, 5, 6)).astype(np.float32), "s": np.array(scales, np.float32)}
        (expected,) = run_onnxruntime(model, feed)

        np.testing.assert_allclose(*module.run(feed).values(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor"])
def test_corners_that_fall_on_elements_are_these(rounding: str) -> None:
    """23 steps of 7 in 23 places had been a little less than 7 of them."""
    attributes = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": "align_corners"}
    for w, q in [(8, 24), (3, 7), (9, 17), (5, 29), (50, 99), (7, 4), (2, 90), (33, 11)]:
        for known in (True, False):
            model, feed = resize(attributes, known, 1, w, 1, q)
            feed["x"] = np.arange(2 * w, dtype=np.float32).reshape(1, 2, 1, w)
            exact = np.arange(q) * (w - 1) / (q - 1)  # whole ones are, in f64
            places = {"floor": np.floor, "ceil": np.ceil, "round_prefer_floor": lambda x: np.ceil(x - 0.5)}[rounding](exact).astype(int)

            np.testing.assert_array_equal(*compiled(model).run(feed).values(), feed["x"][..., places])


# Weights were of f32: doubles lost half of their digits.
@pytest.mark.parametrize("sizes", [(5, 4), (12, 20), (1, 11)])
@pytest.mark.parametrize(("mode", "attrs"), [("linear", {"antialias": 1}), ("cubic", {"antialias": 1}), ("cubic", {"exclude_outside": 1})])
def test_doubles_keep_their_digits(mode: str, attrs: dict[str, int], sizes: tuple[int, int], rng: np.random.Generator) -> None:
    shape = (1, 2, 9, 11)
    model = make_model([node("Resize", "x - - s", "y", mode=mode, **attrs)], {"x": (np.float64, shape)}, ["y"],
                       {"s": np.array([1, 2, *sizes])}, opset=19)  # fmt: skip
    module, x = tc.compile(model), rng.standard_normal(shape)

    np.testing.assert_allclose(module(np.full(shape, 1 / 3)), np.full((1, 2, *sizes), 1 / 3), rtol=1e-14)
    if mode == "linear":  # the coefficients of cubic resizing are of f32 in the evaluator
        np.testing.assert_allclose(module(x), ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-12, atol=1e-13)
