"""Triangles and bands whose sizes and diagonals are data: asked once for whole vectors, the same as element by element."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tests.frontend.models import make_model, node


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles_of_any_size_along_any_diagonal_are_those_of_numpy(upper: int, rng: np.random.Generator) -> None:
    model = make_model([node("Trilu", "x k", "y", upper=upper)], {"x": (np.float32, ["b", "n", "m"]), "k": (np.int64, [])}, ["y"], opset=20)
    compiled, by_numpy = tc.compile(model, threads=2), np.triu if upper else np.tril

    for shape in ((1, 1, 1), (2, 7, 33), (0, 3, 3), (3, 40, 0), (1, 65, 130), (2, 64, 64), (1, 100, 31)):
        x = rng.standard_normal(shape).astype(np.float32)
        x[x > 1.5] = np.nan  # what is left out is 0, whatever it was
        for k in (0, 1, -3, 50, -200, 2**62, -(2**63), 2**63 - 1):
            np.testing.assert_array_equal(compiled(x, np.array(k)), by_numpy(x, max(-(10**6), min(k, 10**6))), err_msg=f"{shape} {k}")


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int64, np.bool_])
def test_bands_of_other_types_are_those_of_numpy(dtype: type, rng: np.random.Generator) -> None:
    nodes = [node("Trilu", "x a", "t", upper=1), node("Trilu", "t b", "y", upper=0)]
    literals = {"a": np.array(-5), "b": np.array(9)}
    for shape in ((50, 70), (3, 17, 16), (1, 200)):
        x = rng.integers(0, 2 if dtype is np.bool_ else 100, shape).astype(dtype)
        compiled = tc.compile(make_model(nodes, {"x": (dtype, list(shape))}, ["y"], literals, opset=20))

        np.testing.assert_array_equal(compiled(x), np.tril(np.triu(x, -5), 9))


def test_what_works_in_place_still_does() -> None:
    """A store that had become three was none of which it is known that it reads its own place alone."""
    model = make_model([node("Trilu", "x", "y")], {"x": (np.float32, [256, 256])}, ["y"], opset=20)

    text = tc.lower(model, "final", target="x86-64-v3").as_text()

    assert "in_place=(0,)" in text and text.count("trilu[") == 3


@pytest.mark.parametrize("width", [1, 7, 63, 98])
@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_rows_that_data_place_are_written_there_alone(mode: str, width: int, rng: np.random.Generator) -> None:
    inputs = {"past": (np.float32, ["b", 2, 9, width]), "new": (np.float32, ["b", 2, 3, width]), "at": (np.int64, ["b"])}
    compiled = tc.compile(make_model([node("TensorScatter", "past new at", "y", mode=mode)], inputs, ["y"], opset=24), threads=2)

    for at in ([0], [6, 3, 0, 1], [5, 6], []) if mode == "linear" else ([8, 7], [0, 6, 5]):
        past, new = (rng.standard_normal((len(at), 2, count, width)).astype(np.float32) for count in (9, 3))
        expected = past.copy()
        for b, first in enumerate(at):
            expected[b][:, np.arange(first, first + 3) % 9] = new[b]

        np.testing.assert_array_equal(compiled(past, new, np.array(at, np.int64)), expected, err_msg=str(at))
