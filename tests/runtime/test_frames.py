"""Nodes that run in Python, inside a call."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.ir.parser import parse_module
from tc.ops import registry

TEXT = """
@graph
def main(x: f32[6]):
    a: f32[6] = exp(x)
    b: f32[6] = call_extern("py:test_frames_keep", (a, x), (), "pure")
    c: f32[6] = add(b, a)
    return c
"""


def test_a_function_of_the_user_may_keep_what_it_is_given_and_write_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broke: it was given the model's own memory, and the caller's inputs."""
    kept: list[np.ndarray] = []

    def keep(arrays: list[np.ndarray], attrs: object) -> tuple[np.ndarray]:
        kept.extend(arrays)
        result = arrays[0] * 2
        for array in arrays:
            array[...] = -1
        return (result,)

    monkeypatch.setitem(registry.PYTHON_FUNCTIONS, "test_frames_keep", keep)
    module = tc.compile(parse_module(TEXT), threads=1)
    x = np.arange(6, dtype=np.float32)

    first = module(x)
    module.trim()
    module(x + 1)

    np.testing.assert_allclose(first, 3 * np.exp(np.arange(6)), rtol=1e-6)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert all((array == -1).all() for array in kept)
