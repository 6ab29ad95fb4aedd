"""Images put together from the columns of their windows: beside ONNX's reference, with sizes that are constants, dims and data.

ONNX Runtime takes padding and dilations of three axes for those of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import tc
from tests.frontend.models import make_model, node

CASES = [
    ((5, 5), (1, 5), {}),
    ((7, 9), (3, 2), {"strides": [2, 1], "pads": [1, 0, 0, 1]}),
    ((9, 8), (3, 3), {"strides": [2, 3], "dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    ((12,), (4,), {"strides": [6]}),
    ((4, 5, 6), (2, 1, 3), {"strides": [1, 2, 1], "dilations": [1, 1, 2], "pads": [0, 0, 1, 0, 0, 1]}),
]


def windows(image: tuple[int, ...], block: tuple[int, ...], attributes: dict[str, Any]) -> int:
    rank, count = len(image), 1
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * rank)
    for d in range(rank):
        count *= (image[d] + pads[d] + pads[rank + d] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1
    return count


@pytest.mark.covering
@pytest.mark.parametrize("image, block, attributes", CASES, ids=str)
@pytest.mark.parametrize("known", [True, False])
def test_columns_are_put_together_as_onnx_does(
    image: tuple[int, ...], block: tuple[int, ...], attributes: dict[str, Any], known: bool
) -> None:
    sizes = {"i": np.array(image), "k": np.array(block)}
    count = windows(image, block, attributes)
    inputs: dict[str, Any] = {"x": (np.float32, ["n", "c", count if known else "l"])}
    if not known:
        inputs |= {name: (np.int64, [len(image)]) for name in sizes}
    model = make_model([node("Col2Im", "x i k", "y", **attributes)], inputs, ["y"], sizes if known else {}, opset=18)
    assert not any(report.status != "native" for report in tc.inspect(model).nodes)
    module = tc.compile(model)
    for n, c in ((1, 1), (2, 3)):
        x = np.random.default_rng(c).standard_normal((n, c * int(np.prod(block)), count)).astype(np.float32)
        feed = {"x": x, **({} if known else sizes)}
        (expected,) = ReferenceEvaluator(model).run(None, feed)

        np.testing.assert_allclose(*module.run(feed).values(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "shape, block, words", [((1, 5, 16), 2, "multiple"), ((1, 4, 15), 2, "number of windows"), ((1, 4, 16), 0, "block")]
)
def test_columns_that_do_not_fit_are_refused(shape: tuple[int, ...], block: int, words: str) -> None:
    inputs = {"x": (np.float32, ["n", "c", "l"]), "i": (np.int64, [2]), "k": (np.int64, [2])}
    module = tc.compile(make_model([node("Col2Im", "x i k", "y")], inputs, ["y"], opset=18))

    with pytest.raises(tc.errors.TcError, match=words):
        module(np.zeros(shape, np.float32), np.array([5, 5]), np.array([block, block]))
