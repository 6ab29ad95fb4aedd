"""What elements are chosen from is copied before where it comes from afar: the same numbers, and only where it pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

import tc
from tc.target import Target, native_target
from tests.frontend.models import make_model, node


def here(cores: int, l2_bytes: int) -> Target:
    """This machine with another second-level cache."""
    return replace(native_target(), cores=cores, l2_bytes=l2_bytes)


def sampled(batch: int, channels: int, size: tuple[int, int], mode: str = "linear") -> onnx.ModelProto:
    inputs = {"x": (np.float32, [batch, channels, *size]), "grid": (np.float32, [batch, *size, 2])}
    return make_model([node("GridSample", "x grid", "y", mode=mode, padding_mode="zeros")], inputs, ["y"], opset=20)


def copies(model: onnx.ModelProto, target: Target) -> bool:
    return "y_global" in tc.lower(model, "scheduled", target=target).as_text()


@pytest.mark.covering(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("batch", "channels"), [(1, 40), (2, 17), (3, 33)])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_images_copied_in_front_of_gathers_give_what_onnxruntime_gives(
    mode: str, batch: int, channels: int, threads: int, rng: np.random.Generator
) -> None:
    size = (33, 50)
    model = sampled(batch, channels, size, mode)
    assert copies(model, here(threads, 1 << 16)) == (mode == "linear")  # of the nearest there is one: nothing is found for several
    x = rng.standard_normal((batch, channels, *size)).astype(np.float32)
    x[0, 0, 3, 5], x[-1, -1, -1, -1] = np.nan, np.inf
    grid = rng.uniform(-1.2, 1.2, (batch, *size, 2)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    far, near = (tc.compile(model, target=here(threads, l2_bytes))(x, grid) for l2_bytes in (1 << 16, 1 << 24))

    np.testing.assert_array_equal(far, near)
    np.testing.assert_allclose(far, session.run(None, {"x": x, "grid": grid})[0], rtol=1e-4, atol=1e-5)


def test_what_is_near_or_has_few_channels_stays_where_it_is() -> None:
    assert copies(sampled(1, 40, (33, 50)), here(2, 1 << 16))
    assert not copies(sampled(1, 40, (33, 50)), here(2, 1 << 20))  # all of it is in the cache
    assert not copies(sampled(1, 15, (33, 50)), here(2, 1 << 16))  # too little for each thread
    assert not copies(sampled(1, 40, (133, 150)), here(2, 1 << 16))  # one image alone does not fit
