"""Statistics of batches, steps of optimizers, filter banks, caches that are written, convolutions whose taps move: as ONNX has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import tc
from tests.frontend.models import make_model, node

TRAINING = "ai.onnx.preview.training"


def check(model: onnx.ModelProto, feed: Mapping[str, np.ndarray], tolerance: float = 2e-5) -> None:
    assert not any(report.status != "native" for report in tc.inspect(model).nodes)
    expected = ReferenceEvaluator(model).run(None, dict(feed))

    for found, wanted in zip(tc.compile(model).run(dict(feed)).values(), expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 7), (3, 2, 4, 5), (1, 3, 1, 1)], ids=str)
def test_batches_are_normalized_by_their_own_statistics(shape: tuple[int, ...]) -> None:
    rng, c = np.random.default_rng(0), shape[1]
    feed = {"x": (rng.standard_normal(shape) * 3 + 5).astype(np.float32)}
    feed |= {name: rng.uniform(0.5, 2, c).astype(np.float32) for name in ("s", "b", "m", "v")}
    inputs = {"x": (np.float32, ["n", c, *(f"d{k}" for k in range(len(shape) - 2))]), **{name: (np.float32, [c]) for name in "sbmv"}}
    normalize = node("BatchNormalization", "x s b m v", "y rm rv", training_mode=1, momentum=0.7, epsilon=1e-2)

    check(make_model([normalize], inputs, ["y", "rm", "rv"]), feed)


@pytest.mark.parametrize("count", [0, 1, 1000])
@pytest.mark.parametrize(
    "op, states, attributes",
    [
        ("Adagrad", 1, {"norm_coefficient": 0.01, "epsilon": 1e-5, "decay_factor": 0.1}),
        ("Adam", 2, {"norm_coefficient": 0.01, "alpha": 0.95, "beta": 0.99, "epsilon": 1e-7, "norm_coefficient_post": 0.02}),
        ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.95, "beta": 0.8, "mode": "standard"}),
        ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.95, "beta": 0.8, "mode": "nesterov"}),
    ],
)
def test_optimizers_take_steps(op: str, states: int, attributes: dict[str, Any], count: int) -> None:
    rng = np.random.default_rng(0)
    kinds = ["x", "g", *"hv"[:states]]
    names = [f"{kind}{k}" for kind in kinds for k in (0, 1)]
    feed = {name: rng.uniform(0.1, 1, (3, 2) if name[1] == "0" else 4).astype(np.float32) for name in names}
    inputs: dict[str, Any] = {"r": (np.float32, []), "t": (np.int64, []), **{k: (np.float32, list(v.shape)) for k, v in feed.items()}}
    outputs = [f"new_{kind}{k}" for kind in (kinds[0], *kinds[2:]) for k in (0, 1)]
    step = node(op, " ".join(["r", "t", *names]), " ".join(outputs), domain=TRAINING, **attributes)

    check(
        make_model([step], inputs, outputs, domains=[(TRAINING, 1)]),
        {"r": np.array(0.1, np.float32), "t": np.array(count), **feed},
    )


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("numbers", [(8, 16, 8192, 0.0, 4000.0), (40, 400, 16000, 20.0, 8000.0), (2, 7, 100, 1.0, 30.0)])
def test_filter_banks_are_triangles_on_the_mel_scale(numbers: tuple[float, ...], known: bool) -> None:
    values = {name: np.array(v, np.int64 if k < 3 else np.float32) for k, (name, v) in enumerate(zip("abcde", numbers, strict=True))}
    inputs = {} if known else {name: (value.dtype, []) for name, value in values.items()}
    model = make_model([node("MelWeightMatrix", "a b c d e", "y")], inputs, ["y"], values if known else {})

    check(model, {} if known else values)


@pytest.mark.parametrize("mode, axis", [("linear", -2), ("circular", 2), ("linear", 1)])
def test_caches_are_written_where_data_say(mode: str, axis: int) -> None:
    rng = np.random.default_rng(0)
    shape = [2, 5, 6, 3]
    update = [2 if d == axis % 4 else size for d, size in enumerate(shape)]
    feed = {
        "p": rng.standard_normal(shape).astype(np.float32),
        "u": rng.standard_normal(update).astype(np.float32),
        "w": np.array([5 if mode == "circular" else 3, 0]),
    }
    inputs = {"p": (np.float32, ["b", "h", "s", 3]), "u": (np.float32, ["b", *(f"u{d}" for d in (1, 2)), 3]), "w": (np.int64, ["b"])}

    check(make_model([node("TensorScatter", "p u w", "y", mode=mode, axis=axis)], inputs, ["y"], opset=24), feed)


@pytest.mark.covering
@pytest.mark.parametrize("groups, parts", [(1, 1), (2, 1), (1, 2), (2, 4), (2, 3), (12, 1), (12, 4), (1, 12), (4, 6)])
@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]}], ids=str)
def test_taps_of_convolutions_are_moved_by_data(groups: int, parts: int, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    (kh, kw), (h, w), (sh, sw), (dh, dw), pads = (
        *((3, 2), (7, 6), attributes.get("strides", (1, 1)), attributes.get("dilations", (1, 1))),
        attributes.get("pads", [0] * 4),
    )
    out = ((h + pads[0] + pads[2] - (kh - 1) * dh - 1) // sh + 1, (w + pads[1] + pads[3] - (kw - 1) * dw - 1) // sw + 1)
    taps = parts * kh * kw
    rows = groups if groups == 12 else 2 * groups
    shapes = {"x": (2, 12, h, w), "w": (rows, 12 // groups, kh, kw), "b": (rows,)}
    shapes |= {"o": (2, 2 * taps, *out), "m": (2, taps, *out)}
    feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    feed["o"] *= 2
    inputs = {name: (np.float32, list(shape)) for name, shape in shapes.items()}
    inputs["x"] = (np.float32, ["n", 12, "h", "w"])
    convolve = node("DeformConv", "x w o b m", "y", group=groups, offset_group=parts, kernel_shape=[kh, kw], **attributes)

    check(make_model([convolve], inputs, ["y"], opset=19), feed, 1e-4)


def _by_onnxruntime(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(feed))


def test_taps_moved_out_of_images_are_zero_for_sizes_known_when_it_runs() -> None:
    """Sizes, channels and weights are data; images hold infinities where no tap reaches."""
    rng = np.random.default_rng(1)
    inputs = {
        "x": (np.float32, ["n", "c", "h", "w"]), "w": (np.float32, ["m", "c", 3, 3]), "o": (np.float32, ["n", 18, "p", "q"]),
        "b": (np.float32, ["m"]), "k": (np.float32, ["n", 9, "p", "q"]),
    }  # fmt: skip
    model = make_model([node("DeformConv", "x w o b k", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], inputs, ["y"], opset=19)
    compiled = tc.compile(model)

    for n, c, m, h, w in ((1, 1, 1, 1, 1), (2, 3, 5, 4, 7), (1, 17, 9, 1, 6), (3, 8, 1, 5, 5)):
        shapes = {"x": (n, c, h, w), "w": (m, c, 3, 3), "o": (n, 18, h, w), "b": (m,), "k": (n, 9, h, w)}
        feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        feed["o"] = np.where(rng.random(feed["o"].shape) < 0.2, rng.choice([-1e9, -1.0, -0.5, 0.5, 1e9, 3e38], feed["o"].shape), feed["o"])
        feed["o"] = feed["o"].astype(np.float32)
        (found,) = compiled.run(feed).values()
        (wanted,) = _by_onnxruntime(model, feed)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        feed["x"][:, :, 0, 0] = np.inf
        feed["o"] = np.abs(feed["o"]) + 2.5  # no tap reaches the first element, whose weight would be 0
        assert np.isfinite(compiled.run(feed)["y"]).all()
        feed["x"] = np.nan_to_num(feed["x"], posinf=1.0, neginf=1.0)
        feed["k"][rng.random(feed["k"].shape) < 0.02] = np.inf  # of what is sampled, whatever of its elements do not count
        np.testing.assert_allclose(compiled.run(feed)["y"], _by_onnxruntime(model, feed)[0], rtol=1e-4, atol=1e-4)
    empty = {name: np.zeros(shape, np.float32) for name, shape in (("x", (0, 2, 3, 3)), ("w", (4, 2, 3, 3)), ("b", (4,)))}
    empty |= {"o": np.zeros((0, 18, 3, 3), np.float32), "k": np.zeros((0, 9, 3, 3), np.float32)}
    assert compiled.run(empty)["y"].shape == (0, 4, 3, 3)
